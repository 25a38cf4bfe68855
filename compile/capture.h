/** @file capture.h  The capture of a plan as a device graph: parts.c divides the plan into steps
 * inside, before and after the graph; capture.c captures and replays the graph. */
// SPDX-License-Identifier: MIT
#ifndef TS_COMPILE_CAPTURE_H
#define TS_COMPILE_CAPTURE_H

#include "compile/cache.h"
#include "dispatch/marks.h"

/** State of a plan's capture. COLD: not run yet. SEEN: the next run measures scratch memory. READY:
 *  the arena is planned, and the next run captures. CAPTURED: the graph exists. REFUSED: the plan
 *  cannot be captured. */
typedef enum stage { COLD, SEEN, READY, CAPTURED, REFUSED } stage;

/** Where a step runs: in the device graph, or call by call before or after the graph. */
typedef enum where { INSIDE, BEFORE, AFTER } where;

/** The storages and numbers that a step uses, and where it runs. */
typedef struct part {
    uint32_t first_touch, touches; /* index of its first touch in `touches`; number of touches */
    uint32_t first_number, last_number; /* half-open; the range may include numbers of other
                                           calls */
    uint8_t where; /* an enum where */
    bool anew;     /* the step must be captured again before the next replay */
    bool scratch;  /* the step used scratch memory when it was captured */
} part;

/** A storage that a step reads or writes. */
typedef struct touch {
    uint32_t storage;
    bool writes;
} touch;

/** The device graph of a plan, and the state of its capture. */
typedef struct ts_captured {
    _Atomic int stage; /* a stage */
    atomic_flag busy; /* one run at a time uses the graph; others run call by call */
    ts_device device;
    const ts_backend *backend;
    ts_stream *stream; /* stream of the last replay */
    bool calls_outside; /* some steps run before or after the graph */
    ts_capture *capture; /* the backend's graph; NULL: none */
    char *arena;         /* device memory of the intermediates, owned; NULL: none */
    int64_t planned, scratch; /* bytes: the arena has `planned` bytes for storages, then
                                 `lanes` scratch memories of `scratch` bytes, which suffice for
                                 every call */
    uint32_t lanes;           /* number of scratch memories: step s uses number s % lanes. Steps
                                 that use the same one never run at the same time */
    bool branches, linear;    /* branches: steps may run at the same time. linear: the captured
                                 graph runs the steps in the order of the plan */
    _Atomic int64_t launches; /* kernel launches in the graph */
    int64_t captures;         /* captures of the whole plan so far */
    bool deterministic;       /* deterministic mode when the plan was captured */
    char why[256];            /* reason of REFUSED */
    ts_array parts, touches;
    ts_array offsets;         /* int64_t per storage: offset in the arena; -1: not in the arena */
    ts_array numbers, sites;  /* as captured: the numbers; the call site of each node */
    ts_array addresses, tables; /* as captured: address of each storage; op table of each node */
    int64_t profiled;         /* ts_graph_period() in which rows and works are valid; 0: never */
    ts_array rows, works;     /* rows: a ts_graph_part per step. works: for each kernel, copy and
                                 memset of the graph, in the order in which they run, a pointer to
                                 its step's row, or NULL */
} ts_captured;

static inline const touch *touches_of(const ts_captured *k, const part *p)
{
    return (const touch *)k->touches.data + p->first_touch;
}

/** Analyses a plan at its first run: its parts, its device, and the calls that run before or after
 *  the graph. Refuses a plan that cannot be captured. False if out of memory. */
bool ts_captured_look(ts_captured *k, const ts_run *r, const ts_lazy *l);
/** Assigns arena offsets to the storages on the graph's device that are not `outside`, `held` or
 *  `constant` (ts_plan_storage). Storages inside a group that has a kernel get none. The plan must
 *  have run, because a group gets its kernel in a run. False if out of memory. */
bool ts_captured_assign_offsets(ts_captured *k, const ts_exec *e);
/** Adds a ts_part_pair to *pairs for each step of the graph that must run after another
 *  (branches.c); pairs that follow from other pairs may be missing. The steps must have been
 *  captured. False if memory is short or there are too many steps; *pairs is then incomplete. */
bool ts_captured_order(const ts_captured *k, const ts_exec *e, ts_array *pairs);
/** False if a group was refused after ts_captured_assign_offsets(), so that values inside it need
 * memory, but have no offset. */
bool ts_captured_has_offsets(const ts_captured *k, const ts_exec *e);
/** Sets *part to the profile's row of a step and the step's work (FLOPs, bytes). Only while a
 *  profile records. Error: TS_ERR_MEMORY. */
ts_status ts_group_profile(const ts_run *r, const ts_step *s, ts_graph_part *part);
/** Frees the graph and the arena, and sets k->why; from now on the plan runs call by call. */
void ts_captured_refuse(ts_captured *k, const ts_lazy *l, const char *why);
/** Like ts_captured_refuse(), with a step's op and call site. */
void ts_captured_refuse_step(ts_captured *k, const ts_run *r, const ts_lazy *l, uint32_t step,
                             const char *why);

#endif
