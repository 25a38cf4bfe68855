/** @file judge.h  Runs the samples on one backend and fills its score card. */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_CONFORMANCE_JUDGE_H
#define TESSERA_CONFORMANCE_JUDGE_H

#include "conformance/card.h"

/** The device under test: a device by name, or device 0 of a backend in a shared library. */
typedef struct ts_candidate {
    const char *name;   /* such as "cuda:1"; NULL if plugin is set */
    const char *plugin; /* path of the library, or NULL */
} ts_candidate;

enum { CHOICES_MOST = 64 };

/** A set of names to select; an empty set selects every name. */
typedef struct ts_choice {
    const char *names[CHOICES_MOST];
    int count;
} ts_choice;

typedef struct ts_judge_opts {
    ts_choice ops, families;
    uint16_t dtypes;  /* bit per dtype; 0 is all */
    uint8_t parts;    /* bit per ts_part; 0 is all */
    bool brief;       /* see ts_sample_run in drive.h */
    bool isolate;     /* run each unit (ts_unit) in its own process */
    int jobs;         /* with isolate: processes at a time; limited to 1 to 256 */
    int timeout;      /* with isolate: seconds per unit */
    /** NULL, or called after each unit with the numbers of finished units and of all units. */
    void (*progress)(void *ctx, int done, int all);
    void *ctx;
} ts_judge_opts;

/** The adjacent samples of one op in a family: samples[first .. first + count - 1]. */
typedef struct ts_unit {
    const ts_sample_family *family;
    int first, count;
} ts_unit;

/** Returns the number of units that opts select. Writes them to `units`, at most `capacity` of
 *  them. */
int units_choose(const ts_judge_opts *opts, ts_unit *units, int capacity);
/** Tests the candidate and fills the card. Returns false, with the reason in card->error, if the
 *  backend cannot be opened, a process cannot be started or memory runs out. */
bool judge(ts_card *card, const ts_candidate *candidate, const ts_judge_opts *opts);

#endif
