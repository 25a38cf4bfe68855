/**
 * @file compare_loop.c
 * Runs calls of ops in a loop and times them, for bench/compare.py: what a binding costs per call
 * stays out of the figure.
 */
// SPDX-License-Identifier: MIT
#include <time.h>

#include "tessera/tessera.h"

/** One call of a sequence; results that are given stay, others are released
 * after each call, or turn. */
typedef struct compare_call {
    int op, nargs, nrets;
    const ts_value *args;
    const ts_value *given; /* nrets values, of kind NONE where the call makes the result */
} compare_call;

TS_API double compare_run(const compare_call *calls, int ncalls, int turns, int hold);

static ts_status call_once(const compare_call *c, int hold)
{
    ts_value rets[TS_MAX_RETS];
    for (int i = 0; i < c->nrets; i++)
        rets[i] = c->given[i];
    TS_TRY(ts_call_boxed(c->op, c->args, c->nargs, rets, c->nrets));
    for (int i = 0; i < c->nrets; i++)
        if (c->given[i].tag == TS_TAG_NONE && rets[i].tag == TS_TAG_TENSOR) {
            if (hold)
                ts_adopt(rets[i].t);
            else
                ts_release(rets[i].t);
        }
    return TS_OK;
}

/** Nanoseconds of one turn through the sequence, the mean of `turns`; -1 after a failure. With
 *  `hold` results live to the end of the turn, so that each call writes to memory of its own. */
double compare_run(const compare_call *calls, int ncalls, int turns, int hold)
{
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int t = 0; t < turns; t++) {
        TS_SCOPE;
        TS_NO_GRAD;
        for (int i = 0; i < ncalls; i++)
            if (call_once(&calls[i], hold) != TS_OK)
                return -1;
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    return ((double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec)) /
           turns;
}
