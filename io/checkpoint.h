/** @file checkpoint.h  Internal interface of checkpoints: the folder DIR/checkpoints of a run. */
// SPDX-License-Identifier: MIT
#ifndef TS_IO_CHECKPOINT_H
#define TS_IO_CHECKPOINT_H

#include "include/tessera/io.h"
#include "io/manifest.h"

#define TS_MANIFEST "manifest.json"

/** Kinds of checkpoint folders, distinguished by name. If a step has several folders, readers use
 *  the WHOLE one, or else an ASIDE one. */
typedef enum ts_checkpoint_kind {
    TS_CHECKPOINT_WHOLE,    /* STEP: complete */
    TS_CHECKPOINT_ASIDE,    /* STEP.old-PID: complete, renamed while STEP is being replaced */
    TS_CHECKPOINT_TEMPORARY /* STEP.tmp-PID: unfinished or being removed; readers ignore it */
} ts_checkpoint_kind;

typedef struct ts_checkpoint_folder {
    char name[64];
    int64_t step;
    ts_checkpoint_kind kind;
} ts_checkpoint_folder;

/** The checkpoint folders in a root folder: highest step first, then by kind. */
typedef struct ts_checkpoint_list {
    ts_checkpoint_folder *folders; // count
    int64_t count, capacity;
} ts_checkpoint_list;

/** Lists the checkpoint folders in `root`; a missing root gives an empty list. The caller frees the
 * list with ts_checkpoint_list_free(), also after a failure. Errors, which name `op`: TS_ERR_IO,
 * TS_ERR_MEMORY. */
ts_status ts_checkpoint_list_make(const char *op, const char *root, ts_checkpoint_list *list);
void ts_checkpoint_list_free(ts_checkpoint_list *list);

/** Like ts_checkpoint_open(): opens the folder `path` and verifies the hashes of all its files.
 *  Errors name `op`. The caller closes the result with ts_checkpoint_close(). */
ts_checkpoint *ts_checkpoint_read(const char *op, const char *path);

#endif
