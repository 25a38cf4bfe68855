/** @file checkpoint.h  The folder of a run's checkpoints. */
// SPDX-License-Identifier: MIT
#ifndef TS_IO_CHECKPOINT_H
#define TS_IO_CHECKPOINT_H

#include "include/tessera/io.h"
#include "io/manifest.h"

#define TS_MANIFEST "manifest.json"

/** Kinds of folders by name. The order is that in which folders of one step are preferred. */
typedef enum ts_checkpoint_kind {
    TS_CHECKPOINT_WHOLE, /* STEP */
    TS_CHECKPOINT_ASIDE, /* STEP.old-PID: whole, about to be replaced by another of this step */
    TS_CHECKPOINT_LITTER /* STEP.tmp-PID: unfinished or being removed */
} ts_checkpoint_kind;

typedef struct ts_checkpoint_folder {
    char name[64];
    int64_t step;
    ts_checkpoint_kind kind;
} ts_checkpoint_folder;

/** Checkpoint folders under root, newest first; other names are left out. */
typedef struct ts_checkpoint_list {
    ts_checkpoint_folder *folders; // count
    int64_t count, room;
} ts_checkpoint_list;

/** A missing root gives an empty list. Free the list with ts_checkpoint_list_free(), also after a
 * failure. */
ts_status ts_checkpoint_list_make(const char *op, const char *root, ts_checkpoint_list *list);
void ts_checkpoint_list_free(ts_checkpoint_list *list);

/** Like ts_checkpoint_open(); errors name `op`. */
ts_checkpoint *ts_checkpoint_read(const char *op, const char *path);

#endif
