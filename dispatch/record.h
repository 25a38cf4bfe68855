/**
 * @file record.h  Rows of a profile: the calls of one op, layer, scope and class of shapes.
 *
 * Each thread has its own table and is the only writer of it. Rows stay at their address and live
 * as long as the thread's timers, so a call in flight may hold one across a reset. A row begins
 * with a cell, to which timers.c gives ticks.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_DISPATCH_RECORD_H
#define TS_DISPATCH_RECORD_H

#include "dispatch/op.h"

/** Calls and self time. Only the owner writes; readers may see counters of slightly different
 *  moments. */
typedef struct ts_cell {
    _Atomic int64_t calls, ticks;
} ts_cell;

/** Ticks go to the cell, work to the rest. */
typedef struct ts_tally_row {
    ts_cell cell;
    _Atomic double flops, bytes;  /* of the calls, less the work of inner calls */
    _Atomic int64_t unknown;      /* calls without a known cost */
    uint64_t hash;
    uint32_t scope;
    uint16_t op;
    uint8_t key;
    uint8_t dtype;                /* of the first tensor, or TS_DTYPE_NONE */
    char call[96];                /* op, shapes and dtypes of the first call */
} ts_tally_row;

/** Whose time a row is. */
enum { TS_PART_KERNELS, TS_PART_LAYERS, TS_PART_OUTSIDE, TS_PART_COUNT };

enum {
    TS_TALLY_CHUNK = 128,
    TS_TALLY_CHUNKS = 72,
    TS_TALLY_SHAPED = 64 * TS_TALLY_CHUNK, /* rows; later classes share a row without shapes */
    TS_STEPS_MOST = 65536,
    TS_SCOPES_MOST = 4096
};

enum { TS_EVENT_LAYERS = 4 };

/** One call in a trace. Layers beyond the fourth belong to the fourth. Ticks are since `begin`,
 *  shifted right by `shift` in calls of more than 2^32 ticks. */
typedef struct ts_event {
    int64_t begin;
    uint32_t enter[TS_EVENT_LAYERS - 1]; /* layers of the call from the second on */
    uint32_t leave[TS_EVENT_LAYERS];
    uint32_t row; /* row of the lowest layer, which has the shapes */
    uint32_t scope;
    uint32_t parent; /* number of the enclosing call's event + 1 */
    uint16_t op;
    uint16_t depth;
    uint8_t layers, shift, failed;
    uint8_t inside; /* layers that have not ended yet */
    uint8_t keys[TS_EVENT_LAYERS];
} ts_event;
_Static_assert(sizeof(ts_event) == 64, "a cache line");

enum {
    TS_EVENT_CHUNK = 16384,    /* events of a block of 1 MiB */
    TS_EVENT_CHUNKS = 256      /* blocks at most; later events are counted as lost */
};

/** The rows of a thread. */
typedef struct ts_tally_table {
    ts_tally_row *chunk[TS_TALLY_CHUNKS];
    _Atomic int count;      /* rows that are complete; published with a release store */
    uint32_t *index;        /* open addressing: number of a row + 1 */
    uint32_t mask;
    uint32_t scope;         /* the thread's innermost */
    _Atomic int64_t shared; /* calls that found no room for their class of shapes */
    double flops, bytes;    /* work of all calls so far; a difference gives the work of inner
                               calls */
    ts_event **events;      /* TS_EVENT_CHUNKS blocks; NULL: none yet */
    _Atomic int64_t nevents, lost_events;
    int64_t open;           /* number of the event of the innermost call in flight, -1: none */
    bool updated;           /* the last call was an update of an optimizer */
} ts_tally_table;

/** The row of the running hop of f; NULL without memory. */
ts_tally_row *ts_tally_hop(ts_tally_table *r, const ts_frame *f);
/** The row for time outside of calls; op and key identify it. */
ts_tally_row *ts_tally_other(ts_tally_table *r, uint16_t op, ts_key key, const char *name);
/** The row that another scope has instead of `row`. */
ts_tally_row *ts_tally_in_scope(ts_tally_table *r, const ts_tally_row *row);
/** Adds the work of a call that has ended. flops and bytes: r's counters when the call began. */
void ts_tally_work(ts_tally_table *r, ts_tally_row *row, const ts_frame *f, double flops,
                   double bytes);
/** Adds the ticks of all rows by part; rows of the op `beside` are no calls. */
void ts_tally_sum(const ts_tally_table *r, uint16_t beside, int64_t parts[TS_PART_COUNT]);
/** Sets all figures to zero; rows stay. */
void ts_tally_clear(ts_tally_table *r);
/** Adds the figures of a thread that ended; false when there was no memory for a row. */
bool ts_tally_merge(ts_tally_table *to, const ts_tally_table *from);
void ts_tally_free(ts_tally_table *r);
/** Begins an event, or a layer of the open one; returns the number that `open` had, for
 *  ts_event_end(), which ends it. `now` is a tick. */
int64_t ts_event_begin(ts_tally_table *r, const ts_frame *f, const ts_tally_row *row, int64_t now);
void ts_event_end(ts_tally_table *r, int64_t before, ts_status status, int64_t now);
TS_INLINE ts_event *ts_event_at(const ts_tally_table *r, int64_t i)
{
    return &r->events[i / TS_EVENT_CHUNK][i % TS_EVENT_CHUNK];
}
TS_INLINE ts_tally_row *ts_tally_at(const ts_tally_table *r, int i)
{
    return &r->chunk[i / TS_TALLY_CHUNK][i % TS_TALLY_CHUNK];
}

/* ------------------------------------------------------------------------------ scopes ---- */

/** A named part of a program; 0 is the whole of it. */
typedef struct ts_scope_name {
    char name[40];
    uint32_t parent;
} ts_scope_name;

/** The scope `name` inside of `parent`; `parent` if there are too many scopes. */
uint32_t ts_scope_named(uint32_t parent, const char *name);
ts_scope_name ts_scope_get(uint32_t scope);
enum { TS_SCOPE_DEPTH = 16 };
/** The scopes from the outermost one that TS_SCOPE_DEPTH allows down to `scope`; their number. */
int ts_scope_chain(uint32_t scope, uint32_t chain[TS_SCOPE_DEPTH]);
/** The scope inside of `base` with the names of `scope`, less those that both have from the
 *  outermost on, and less "forward". */
uint32_t ts_scope_below(uint32_t base, uint32_t scope);

void ts_record_install(void);

#endif
