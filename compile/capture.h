/** @file capture.h  The capture of a plan as a device graph: parts.c divides the plan, capture.c
 * captures and replays it. */
// SPDX-License-Identifier: MIT
#ifndef TS_COMPILE_CAPTURE_H
#define TS_COMPILE_CAPTURE_H

#include "compile/cache.h"
#include "dispatch/marks.h"

/** State of a plan's capture: no run yet, one run, two runs and the arena planned, captured, cannot
 *  be captured. */
typedef enum stage { COLD, SEEN, READY, CAPTURED, REFUSED } stage;

/** Where a step runs: in the graph, before it or after it. */
typedef enum where { INSIDE, BEFORE, AFTER } where;

/** The storages and numbers that a step uses, and where it runs. */
typedef struct part {
    uint32_t first_touch, touches; /* in the list of touches */
    uint32_t first_number, last_number; /* half-open; the range may include numbers of other
                                           calls */
    uint8_t where;
    bool anew; /* must be captured again before the next replay */
} part;

/** A storage that a step reads or writes. */
typedef struct touch {
    uint32_t storage;
    bool writes;
} touch;

typedef struct ts_captured {
    _Atomic int stage;
    atomic_flag busy; /* one run at a time uses the graph; others run call by call */
    ts_device device;
    const ts_backend *backend;
    ts_stream *stream; /* stream of the last replay */
    bool calls_beside; /* some steps run before or after the graph */
    ts_capture *capture;
    char *arena;
    int64_t planned, scratch; /* bytes of the arena: for storages, then for scratch of one call */
    _Atomic int64_t launches; /* kernel launches in the graph */
    int64_t captures;
    bool deterministic;
    char why[256];            /* reason of REFUSED */
    ts_array parts, touches;
    ts_array places;          /* offset in the arena per storage; -1: not in the arena */
    ts_array numbers, sites;  /* captured values, per number and node */
    ts_array addresses, tables; /* captured values, per storage and node */
    int64_t profiled;         /* ts_graph_period() of the next two; 0: none */
    ts_array rows, works;     /* ts_graph_part per step; its address per work of the graph */
} ts_captured;

static inline const touch *touches_of(const ts_captured *k, const part *p)
{
    return (const touch *)k->touches.data + p->first_touch;
}

/** Analyses a plan at its first run: its parts, its device, and the calls that run before or after
 *  the graph. Refuses a plan that cannot be captured. False if out of memory. */
bool ts_captured_look(ts_captured *k, const ts_run *r, const ts_lazy *l);
/** Assigns each internal storage of the plan the lowest arena offset that is free from its first
 *  step to its last. The plan must have run, because storages inside a group need memory only if
 *  the group has no kernel. False if out of memory. */
bool ts_captured_place(ts_captured *k, const ts_exec *e);
/** The row and the work of a step, for a profile of the graph. TS_ERR_MEMORY. */
ts_status ts_group_profile(const ts_run *r, const ts_step *s, ts_graph_part *part);
/** Frees the graph and its memory; from now on the plan runs call by call. */
void ts_captured_refuse(ts_captured *k, const ts_lazy *l, const char *why);
/** Like ts_captured_refuse(), with a step's op and call site. */
void ts_captured_refuse_step(ts_captured *k, const ts_run *r, const ts_lazy *l, uint32_t step,
                             const char *why);
/** Frees the graph and its memory; the plan may be captured again. */
void ts_captured_drop(ts_captured *k);
void ts_captured_release(ts_captured *k);

#endif
