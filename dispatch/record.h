/**
 * @file record.h  Rows of a profile: the calls of one op, layer, scope and, for backends, class of
 * shapes.
 *
 * Calls are of one class if their tensors have the same sizes, dtypes, devices and contiguity,
 * their lists of tensors the same length, and their bool arguments the same values. A list of
 * tensors is compared by its first and its last tensor only. Calls without tensors and bools, such
 * as factories, are of one class if their lists of ints are equal.
 *
 * Each thread has its own table and is its only writer. A row keeps its address and lives as long
 * as the thread's timers, so a running call may hold a row across a reset. A row starts with a
 * cell, to which timers.c adds ticks.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_DISPATCH_RECORD_H
#define TS_DISPATCH_RECORD_H

#include "dispatch/op.h"

/** Calls and self time in ticks. Only the owner writes; a reader in another thread may see counters
 *  from slightly different times. */
typedef struct ts_cell {
    _Atomic int64_t calls, ticks;
} ts_cell;

/** A row: time in the cell, work in the other fields. */
typedef struct ts_tally_row {
    ts_cell cell;
    _Atomic double flops, bytes;  /* work of the calls, without the work of inner calls */
    _Atomic int64_t unknown;      /* calls without a known cost */
    _Atomic int64_t examined;     /* calls among the first TS_TALLY_EXAMINED of the thread */
    _Atomic int64_t chained;      /* of these, calls of chained ops (ts_tally_chain()) that read the
                                     result of another such call, or whose result another such
                                     call reads */
    uint64_t hash;
    uint32_t scope;
    uint16_t op;
    uint8_t key;
    uint8_t dtype;                /* of the first tensor argument, else the dtype argument;
                                     TS_DTYPE_NONE: neither */
    uint8_t part;                 /* a ts_part; 0: the row of whole calls */
    bool chains;                  /* op is a chained op */
    struct ts_tally_row *whole;   /* parts only: the row of the whole calls */
    char call[96];                /* op, shapes and dtypes of the first call */
} ts_tally_row;

/** True if calls of this key run kernels: a backend's key, but not LAZY, which only records. */
TS_INLINE bool ts_key_runs(int key) { return key < 16 && key != TS_KEY_LAZY; }

/** Op numbers of rows that do not count calls of one op; no op has these numbers. */
enum {
    TS_ROW_GROUP = TS_MAX_OPS - 2,  /* a fused group */
    TS_ROW_OUTSIDE = TS_MAX_OPS - 1 /* time outside of calls; the key says which (timers_state.h) */
};

/** Parts of the time of a backend's row, in profiles with detail. */
typedef enum ts_part {
    TS_PART_KERNEL,     /* the row itself */
    TS_PART_RULE,       /* shape rule */
    TS_PART_ALLOCATION, /* making results */
    TS_PART_CASTS       /* casting and packing arguments and results */
} ts_part;

/** Classes of time: backend kernels, layers and the engine, time outside calls. */
enum { TS_PART_KERNELS, TS_PART_LAYERS, TS_PART_OUTSIDE, TS_PART_COUNT };

enum {
    TS_TALLY_CHUNK = 128,  /* rows per chunk of a table */
    TS_TALLY_CHUNKS = 256, /* most chunks of a table */
    TS_TALLY_SHAPED = 64 * TS_TALLY_CHUNK,  /* a table with more rows gets no new row per class:
                                               further classes share one row per op, layer and
                                               scope */
    TS_TALLY_SCOPED = 240 * TS_TALLY_CHUNK, /* a table with more rows gets no new row per scope:
                                               further scopes share one row per op and layer */
    TS_STEPS_MOST = 65536, /* most steps that a recording keeps */
    TS_SCOPES_MOST = 4096  /* most scopes that the process can name */
};

enum { TS_EVENT_LAYERS = 4 }; /* most layers of an event */

/** One call in a trace. Layers after the fourth are merged into the fourth. enter and leave are
 *  ticks since `begin`, shifted right by `shift` if the call takes 2^32 ticks or more. */
typedef struct ts_event {
    int64_t begin;
    uint32_t enter[TS_EVENT_LAYERS - 1]; /* of the second and later layers; the first enters at
                                            `begin` */
    uint32_t leave[TS_EVENT_LAYERS];
    uint32_t row; /* row of the lowest layer, which has the shapes */
    uint32_t scope;
    uint32_t parent; /* number of the enclosing call's event + 1; 0: none */
    uint16_t op;
    uint16_t depth;
    uint8_t layers, shift;
    uint8_t failed : 1, backward : 1; /* backward: a call of a backward rule */
    uint8_t inside; /* layers that have not ended yet */
    uint8_t keys[TS_EVENT_LAYERS];
    uint32_t seq; /* number of the call's node in the graph of gradients; for a call of a backward
                     rule, number of the forward call's node; 0: none. Numbers of a thread grow */
} ts_event;
_Static_assert(sizeof(ts_event) == 64, "a cache line");

enum {
    TS_EVENT_CHUNK = 16384,    /* events per block of 1 MiB */
    TS_EVENT_PIECE = 1024,     /* events whose pages are touched at a time */
    TS_EVENT_RING = 4 * TS_EVENT_CHUNK, /* latest events that a flight recording keeps */
    TS_EVENT_CHUNKS = 256      /* maximum number of blocks; further events count as lost */
};

/** The events of an ended thread, oldest first. Their rows are those of the table that has the
 *  list; their parents are numbers in the list. */
typedef struct ts_event_list {
    struct ts_event_list *next;
    int thread;
    int64_t count, overwritten; /* overwritten: by later events, in a flight recording */
    ts_event events[];
} ts_event_list;

/** The call that last wrote the memory at `data`. row: NULL if its op is not a chained op. */
typedef struct ts_tally_writer {
    const void *data;
    ts_tally_row *row;
    bool counted; /* in row->chained */
} ts_tally_writer;
enum {
    TS_TALLY_WRITERS = 16,   /* a power of 2 */
    TS_TALLY_EXAMINED = 4096 /* calls of a thread whose operands are compared with earlier results;
                                later calls are not compared, to save time */
};

/** The rows of a thread. */
typedef struct ts_tally_table {
    ts_tally_row *chunk[TS_TALLY_CHUNKS];
    _Atomic int count;      /* rows that are complete; published with a release store */
    uint32_t *index;        /* open addressing: number of a row + 1 */
    uint32_t mask;
    uint32_t scope;         /* the thread's innermost scope */
    uint32_t around, within; /* within: number of open scopes that have no number; around: the scope
                                around them, if within > 0 */
    uint32_t rule;          /* ts_event.seq of the calls of the running backward rule; 0: none */
    _Atomic int64_t shared; /* calls counted in a row that classes of shapes share, because the
                               table was full */
    double flops, bytes;    /* work of all calls so far; a difference gives the work of inner
                               calls */
    ts_tally_writer writers[TS_TALLY_WRITERS]; /* latest calls, by a hash of `data` */
    int examined;           /* calls, up to TS_TALLY_EXAMINED */
    ts_event **events;      /* TS_EVENT_CHUNKS blocks; NULL: none yet */
    _Atomic int64_t nevents, lost_events; /* nevents counts overwritten events too */
    ts_event_list *ended;   /* events of ended threads */
    int64_t ready;          /* events before this number have memory whose pages were touched */
    int64_t ring;           /* keep this number of latest events; 0: keep the first events */
    int64_t open;           /* number of the event of the innermost call in flight, -1: none */
} ts_tally_table;

/** Finds or makes the row for f's op, key, scope and, for backends, shapes. If the table is full
 * for rows by shape, returns the row that classes share. NULL if out of memory. */
ts_tally_row *ts_tally_hop(ts_tally_table *r, const ts_frame *f);
/** Finds or makes the row for op and key without shapes, in the current scope of r: time outside of
 *  calls, or calls that get no row of their own. If the table is full for rows by scope, returns
 *  the row of TS_SCOPE_REST, which scopes share. name: text of a new row. */
ts_tally_row *ts_tally_other(ts_tally_table *r, uint16_t op, ts_key key, const char *name);
/** ts_tally_other() with the op, key and text of `row`. */
ts_tally_row *ts_tally_in_scope(ts_tally_table *r, const ts_tally_row *row);
/** Finds or makes a row with this hash, op, key and text in the current scope of r; if the table is
 * full, returns the row that classes share. */
ts_tally_row *ts_tally_named(ts_tally_table *r, uint64_t hash, uint16_t op, ts_key key,
                             uint8_t dtype, const char *text);
/** Name of a row's op. */
TS_INLINE const char *ts_row_op(int op)
{
    return op == TS_ROW_GROUP ? "(fused group)" : ts_op_name(op);
}
/** Finds or makes the row of a part of the calls of `whole`. NULL if the table is full or memory
 * ran out: the time of the part then belongs to `whole`. */
ts_tally_row *ts_tally_part(ts_tally_table *r, ts_tally_row *whole, ts_part part);
/** Combines a hash with that of a call's op and shapes. */
uint64_t ts_tally_hash(const ts_frame *f, uint64_t hash);
/** Adds the work of a call that ended to its row. Adds nothing for layers, LAZY and META, which
 *  compute nothing, and for composites, whose inner calls do the work. flops, bytes: the values of
 *  r's counters when the call began. */
void ts_tally_work(ts_tally_table *r, ts_tally_row *row, const ts_frame *f, double flops,
                   double bytes);
/** Sets the function that returns whether an op is a chained op: one that compile/ can join with
 *  its neighbours in a group, such as a pointwise op. Calls of chained ops count in
 *  ts_tally_row.chained. The function is called once per new row. */
void ts_tally_chain(bool (*is_chained)(int op));
/** Sums the ticks of all rows by TS_PART_*. */
void ts_tally_sum(const ts_tally_table *r, int64_t parts[TS_PART_COUNT]);
/** Sets all figures to zero; rows stay. */
void ts_tally_clear(ts_tally_table *r);
/** Adds the rows and events of an ended thread. False if some rows are missing, because the table
 * is full or memory ran out; its events then count as lost. */
bool ts_tally_merge(ts_tally_table *to, ts_tally_table *from);
/** Moves the events of an ended thread from blocks, of which it may have used little, to a list. */
void ts_events_compact(ts_tally_table *r, int thread);
/** True if some row has a call. */
bool ts_tally_has_calls(const ts_tally_table *r);
/** Frees the rows and events of a table. */
void ts_tally_free(ts_tally_table *r);
/** Allocates and touches the memory of the next events, so that ts_event_begin() does not wait for
 *  the system inside a call. Call it if nevents has reached r->ready. */
void ts_event_prepare(ts_tally_table *r);
/** Begins an event for a call, or a lower layer in the event of the running call. Returns the
 *  previous value of r->open, which ts_event_end() takes as `before`. now: in ticks. */
int64_t ts_event_begin(ts_tally_table *r, const ts_frame *f, const ts_tally_row *row, int64_t now);
/** Ends a layer that ts_event_begin() began and sets r->open to `before`. status: of the layer. */
void ts_event_end(ts_tally_table *r, int64_t before, ts_status status, int64_t now);
/** Sets the number of the node that the running call made (ts_event.seq). Does nothing without an
 *  event, and in a backward rule. */
void ts_event_note_node(ts_tally_table *r, uint64_t seq);
TS_INLINE ts_event *ts_event_at(const ts_tally_table *r, int64_t i)
{
    i = r->ring ? i % r->ring : i;
    return &r->events[i / TS_EVENT_CHUNK][i % TS_EVENT_CHUNK];
}
/** True if event i of n was recorded and not overwritten. */
TS_INLINE bool ts_event_is_kept(const ts_tally_table *r, int64_t i, int64_t n)
{
    return i >= 0 && i < n && (!r->ring || n - i <= r->ring);
}
TS_INLINE ts_tally_row *ts_tally_at(const ts_tally_table *r, int i)
{
    return &r->chunk[i / TS_TALLY_CHUNK][i % TS_TALLY_CHUNK];
}

/* ------------------------------------------------------------------------------ scopes ---- */

/** The scope of calls whose own scope has no number, or whose rows do not fit into the table. */
enum { TS_SCOPE_REST = 1 };

/** A named part of a program; 0 is the whole of it. */
typedef struct ts_scope_name {
    char name[40];
    uint32_t parent;
} ts_scope_name;

/** The scope `name` inside of `parent`; `parent` if there are too many scopes. The name is escaped,
 *  cut to 39 bytes, and gets '_' for '/' and ';'. */
uint32_t ts_scope_named(uint32_t parent, const char *name);
/** Name and parent of a scope. */
ts_scope_name ts_scope_get(uint32_t scope);
enum { TS_SCOPE_DEPTH = 16 };
/** Writes the path of `scope`, outermost first, to chain; keeps the innermost TS_SCOPE_DEPTH
 *  scopes. Returns their number. */
int ts_scope_chain(uint32_t scope, uint32_t chain[TS_SCOPE_DEPTH]);
/** The scope of a backward call: for base "step/backward" and scope "step/forward/mlp" it is
 *  "step/backward/mlp". Drops from scope's path the prefix that it shares with base's parent, and
 *  scopes named "forward"; creates the remaining scopes below base. */
uint32_t ts_scope_below(uint32_t base, uint32_t scope);

void ts_scopes_install(void);

#endif
