/** @file capture.h  A plan as a graph of a device: what parts.c finds and capture.c runs. */
// SPDX-License-Identifier: MIT
#ifndef TS_COMPILE_CAPTURE_H
#define TS_COMPILE_CAPTURE_H

#include "compile/cache.h"

/** State of a plan's capture. */
typedef enum stage { COLD, SEEN, READY, CAPTURED, REFUSED } stage;

/** Whether a step runs in the graph, before it or after it. */
typedef enum where { INSIDE, BEFORE, AFTER } where;

/** The storages and numbers of a step, and its position. */
typedef struct part {
    uint32_t first_touch, touches; /* in the list of touches */
    uint32_t first_number, last_number; /* half-open; the range may include numbers of other
                                           calls */
    uint8_t where;
    bool anew;
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
    bool calls_beside; /* some steps run before or after */
    ts_capture *capture;
    char *arena;
    int64_t planned, scratch; /* bytes of the arena: of storages, then of one call */
    _Atomic int64_t launches; /* of the graph */
    int64_t captures;
    bool deterministic;
    char why[256];            /* REFUSED */
    ts_array parts, touches;
    ts_array places;          /* offset in the arena per storage; -1: not in the arena */
    ts_array numbers, sites;  /* captured values, per number and node */
    ts_array addresses, tables; /* captured values, per storage and node */
} ts_captured;

static inline const touch *touches_of(const ts_captured *k, const part *p)
{
    return (const touch *)k->touches.data + p->first_touch;
}

/** Looks at a plan for the first time: its parts, its device, which calls run beside a graph. A
 *  plan that cannot be captured is refused. False without memory. */
bool ts_captured_look(ts_captured *k, const ts_run *r, const ts_lazy *l);
/** A place in the arena for each storage of the plan alone: the lowest that is free from its first
 *  step to its last. The plan has run, so its groups have kernels or are refused. False without
 *  memory. */
bool ts_captured_place(ts_captured *k, const ts_exec *e);
/** Frees graph and memory; the plan runs call by call from now on. */
void ts_captured_refuse(ts_captured *k, const ts_lazy *l, const char *why);
/** Like ts_captured_refuse(), with a step's op and call site. */
void ts_captured_refuse_step(ts_captured *k, const ts_run *r, const ts_lazy *l, uint32_t step,
                             const char *why);
/** Frees the graph and its memory. */
void ts_captured_drop(ts_captured *k);
void ts_captured_release(ts_captured *k);

#endif
