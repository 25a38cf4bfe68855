/** @file judge.h  Runs the samples on one backend and fills its score card. */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_CONFORMANCE_JUDGE_H
#define TESSERA_CONFORMANCE_JUDGE_H

#include "conformance/card.h"

/** The device under test, by name, or the backend in a shared library. */
typedef struct ts_candidate {
    const char *name;   /* "cuda:1"; NULL with a plugin */
    const char *plugin; /* path; NULL without */
} ts_candidate;

enum { CHOICES_MOST = 64 };

/** Names of which one must match; none: all do. */
typedef struct ts_choice {
    const char *names[CHOICES_MOST];
    int count;
} ts_choice;

typedef struct ts_judge_opts {
    ts_choice ops, families;
    uint16_t dtypes;  /* bit per dtype; 0 is all */
    uint8_t parts;    /* bit per ts_part; 0 is all */
    bool brief;       /* as in drive.h */
    bool isolate;     /* run each op in its own process */
    int jobs;         /* processes at a time, when isolated */
    int timeout;      /* seconds per op, when isolated */
    /** NULL, or called when ops are done. */
    void (*progress)(void *ctx, int done, int all);
    void *ctx;
} ts_judge_opts;

/** Adjacent rows of one op in a family. */
typedef struct ts_unit {
    const ts_sample_family *family;
    int first, count;
} ts_unit;

/** The units that opts choose; returns how many, at most `room` are written. */
int units_choose(const ts_judge_opts *opts, ts_unit *units, int room);
/** Judges; false, with card->error, when the backend cannot be opened or shared memory ran out. */
bool judge(ts_card *card, const ts_candidate *candidate, const ts_judge_opts *opts);

#endif
