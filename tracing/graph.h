/**
 * @file graph.h  The graph of calls. Traces (tracing/layer.c) and plans (compile/) use the same
 * type; the interpreter (interpret.c) runs the graphs of traces.
 *
 * All data is in growing arrays with references by index, so recording is a few stores and freeing
 * is cheap. A value represents a tensor handle, not a state of its memory: a call that writes in
 * place has the same value as argument and result. Calls are in the order in which they ran. A
 * region node (a backward, an op that runs by parts) comes directly before its parts; the
 * interpreter runs the parts and skips the region.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_TRACING_GRAPH_H
#define TS_TRACING_GRAPH_H

#include "dispatch/op.h"
#include "include/tessera/trace.h"

/** Id of a value or storage: the graph's serial number in the high bits, index + 1 in the low
 * TS_ID_BITS bits; 0 is none. */
typedef uint64_t ts_id;
#define TS_ID_BITS 28

/** A growing array from the thread's allocator. */
typedef struct ts_array {
    void *data;
    uint32_t count, capacity;
} ts_array;

/** The slow part of ts_array_reserve(). */
bool ts_array_grow(ts_array *a, uint32_t n, size_t item);
/** Reserves memory for n more items of `item` bytes. False if out of memory, or if the capacity,
 *  which at least doubles, would reach 2^TS_ID_BITS items; the array is then unchanged. */
TS_INLINE bool ts_array_reserve(ts_array *a, uint32_t n, size_t item)
{
    return TS_LIKELY(n <= a->capacity - a->count) || ts_array_grow(a, n, item);
}
/** Frees the items. *a must not be used afterwards without being set to {0}. */
void ts_array_free(ts_array *a, size_t item);
/** Appends an item to an array with reserved memory; evaluates to the item's address. */
#define TS_PUSH(array, type) ((type *)(array).data + (array).count++)

/** Origin of a value: an input, a tensor captured from outside the function, a result of a node. */
typedef enum ts_source { TS_SOURCE_INPUT, TS_SOURCE_CAPTURE, TS_SOURCE_RESULT } ts_source;

typedef struct ts_graph_value {
    uint8_t source, dtype, ndim; /* source: a ts_source */
    uint8_t requires_grad;
    ts_device device;
    uint32_t slot;    /* index of the input or capture; for a result, its node */
    uint32_t storage; /* index of its storage */
    uint32_t before;  /* index + 1 of the previous value of the same storage; 0: none */
    uint32_t ints;    /* index in graph.ints of ndim sizes, then ndim strides in elements */
    uint32_t last;    /* index + 1 of the last node that makes or uses the value; 0: none;
                         UINT32_MAX: an output. Set by ts_graph_finish() */
    int64_t offset;   /* bytes from the start of the storage */
} ts_graph_value;

/** A storage, which values share. */
typedef struct ts_graph_storage {
    uint32_t newest;  /* index + 1 of its newest value; 0: none */
    uint32_t version; /* version after the last recorded write; used by the recorder */
    uint8_t source;   /* ts_source of its first value */
    bool written;     /* a recorded call has written to it */
} ts_graph_storage;

/** The source of an argument's value at run time. */
typedef enum ts_role {
    TS_ROLE_PLAIN,  /* the recorded value */
    TS_ROLE_SEED,   /* seed of the run's random stream */
    TS_ROLE_OFFSET, /* offset in the run's random stream, relative to its start */
    TS_ROLE_VALUE   /* entry `at` of the run's list of numbers */
} ts_role;

typedef struct ts_graph_arg {
    uint8_t tag, role; /* a ts_tag; a ts_role */
    uint16_t reserved;
    uint32_t count; /* members of a list */
    union {
        ts_id id;    /* TENSOR */
        uint32_t at; /* TENSORS, INTS: index in graph.ints; STRING: index in graph.text;
                        role VALUE: index in the run's numbers */
        int64_t i;
        double d;
        ts_device device;
    };
} ts_graph_arg;

typedef enum ts_node_kind {
    TS_NODE_CALL,     /* a call of an op */
    TS_NODE_REGION,   /* its parts follow, up to `end`; for an op that ran by parts, args and rets
                         are for display only */
    TS_NODE_CONSTANT, /* result = copy of the capture args[0] */
    TS_NODE_ALIAS,    /* result = alias of args[0] that was made without a call; args[1..3]: sizes,
                         strides, offset in elements from args[0] */
    TS_NODE_GET_GRAD, /* result = gradient of args[0] */
    TS_NODE_SET_GRAD  /* gradient of args[0] = args[1], or none */
} ts_node_kind;

enum {
    TS_NODE_NO_GRAD = 1,      /* AUTOGRAD was excluded */
    TS_NODE_INSERTED = 2,     /* a layer above inserted the call before the next call */
    TS_NODE_RNG_ABSOLUTE = 4, /* rng is a whole state, not an offset in the trace's stream */
    TS_NODE_RANDOM = 8,       /* draws random numbers; rng is set */
    TS_NODE_AUTOCAST = 16,    /* a cast that AUTOCAST inserted */
    TS_NODE_RECOMPUTED = 32,  /* in a plan: recomputes a result of an earlier call
                                 (compile/recompute.c) */
    TS_NODE_CONSTANT_CALL = 64 /* in a plan: runs once, before the steps (compile/fold.c) */
};

typedef struct ts_graph_node {
    const void *site;
    ts_rng_state rng;     /* generator state at the call: its offset from the start of the trace, or
                             the whole state with TS_NODE_RNG_ABSOLUTE. In a plan: rng.offset is the
                             index of seed and offset in the run's numbers */
    ts_id rets[TS_MAX_RETS];
    uint32_t args;        /* index in graph.args of the first of nargs arguments */
    uint32_t parent;      /* index + 1 of the enclosing region; 0: none */
    uint32_t end;         /* REGION: index of the node after its last part; in a plan: number of the
                             recorded call */
    uint32_t name;        /* REGION without op: index in graph.text; in a plan: index of the call's
                             record in the recorded stream */
    uint16_t op;          /* of a CALL and of an op by parts; otherwise TS_OP_NONE */
    uint8_t kind, nargs, nrets, want, given, flags; /* kind: a ts_node_kind; want, given: bit i:
                             result i is requested, was passed as a destination; flags: TS_NODE_* */
} ts_graph_node;
#define TS_OP_NONE 0xffff

struct ts_graph {
    uint64_t serial;
    bool has_backward;
    const char *reason;   /* why the graph is incomplete; NULL: it is complete */
    ts_array nodes, values, args, ints, text, storages;
    ts_array inputs;      /* ts_id */
    ts_array outputs;     /* ts_id, or none */
    ts_array captures;    /* ts_tensor *, owned */
    uint32_t widest;      /* maximum number of list members in one call */
    uint32_t constants;   /* number of CONSTANT nodes */
    ts_rng_state rng;     /* advance of the generator; if rng_absolute, its final state */
    bool rng_absolute;
};

/* ----------------------------------------------------------------------------- building ---- */

/** A new serial number, unique in the process. */
uint64_t ts_graph_serial(void);
/** An empty graph with a new serial number; NULL if out of memory (records no error). */
ts_graph *ts_graph_new(void);

/** Marks the graph as incomplete and returns false. The graph keeps the first reason, a string that
 *  must outlive it. The functions below call ts_graph_fail() and return false if out of memory. */
bool ts_graph_fail(ts_graph *g, const char *reason);

/** Adds a value with t's layout, dtype, device and requires_grad on storage number `storage`. *id
 *  receives its id. slot: as in ts_graph_value. */
bool ts_graph_add_value(ts_graph *g, const ts_tensor *t, ts_source source, uint32_t slot,
                        uint32_t storage, ts_id *id);
/** Adds a storage; *storage receives its number. version: its version now. */
bool ts_graph_add_storage(ts_graph *g, ts_source source, uint32_t version, uint32_t *storage);
/** Adds n arguments with tag NONE; *at receives the index of the first. */
bool ts_graph_add_args(ts_graph *g, int n, uint32_t *at);
/** Adds a copy of *node; *index receives its index. index may be NULL. */
bool ts_graph_add_node(ts_graph *g, const ts_graph_node *node, uint32_t *index);
/** Adds n numbers to g->ints, or a string with its NUL to g->text; *at receives the index of the
 *  first. */
bool ts_graph_add_ints(ts_graph *g, const int64_t *ints, uint32_t n, uint32_t *at);
bool ts_graph_add_text(ts_graph *g, const char *text, uint32_t *at);
/** Adds an id to ids, which is g->inputs or g->outputs. */
bool ts_graph_add_id(ts_graph *g, ts_array *ids, ts_id id);
/** Adds a reference to t to g->captures; *slot receives its index. */
bool ts_graph_add_capture(ts_graph *g, ts_tensor *t, uint32_t *slot);
/** The newest value on storage number `storage` with t's dtype, offset, sizes and strides; NULL if
 *  there is none. */
const ts_graph_value *ts_graph_find_layout(const ts_graph *g, uint32_t storage, const ts_tensor *t);
/** Computes the interpreter's tables; the graph does not change afterwards. */
void ts_graph_finish(ts_graph *g);

/* ------------------------------------------------------------------------------ reading ---- */

TS_INLINE uint32_t ts_id_index(ts_id id) { return (uint32_t)(id & ((1u << TS_ID_BITS) - 1)) - 1; }
TS_INLINE ts_id ts_id_make(const ts_graph *g, uint32_t index)
{
    return g->serial << TS_ID_BITS | (index + 1);
}
/** True for an id of this graph. */
TS_INLINE bool ts_id_of(const ts_graph *g, ts_id id) { return id >> TS_ID_BITS == g->serial; }
TS_INLINE ts_graph_value *ts_graph_value_at(const ts_graph *g, ts_id id)
{
    return (ts_graph_value *)g->values.data + ts_id_index(id);
}
TS_INLINE ts_graph_node *ts_graph_node_at(const ts_graph *g, uint32_t i)
{
    return (ts_graph_node *)g->nodes.data + i;
}
TS_INLINE ts_graph_arg *ts_graph_args_of(const ts_graph *g, const ts_graph_node *n)
{
    return (ts_graph_arg *)g->args.data + n->args;
}
TS_INLINE int64_t *ts_graph_ints_at(const ts_graph *g, uint32_t at)
{
    return (int64_t *)g->ints.data + at;
}
TS_INLINE const char *ts_graph_text_at(const ts_graph *g, uint32_t at)
{
    return (const char *)g->text.data + at;
}
TS_INLINE ts_id ts_graph_id_at(const ts_array *ids, uint32_t i)
{
    return ((const ts_id *)ids->data)[i];
}
/** Calls visit for each tensor argument of a node, list members included. */
void ts_graph_each_arg(const ts_graph *g, const ts_graph_node *n,
                       void (*visit)(void *ctx, int arg, ts_id id), void *ctx);
/** Name of a node: its op, its region, or its kind. The string is valid as long as the graph. */
const char *ts_graph_node_name(const ts_graph *g, const ts_graph_node *n);

/* -------------------------------------------------------------------------- interpreting ---- */

/** How ts_interpret() runs nodes. All zero: runs all nodes, with AUTOGRAD as recorded. */
typedef struct ts_interpretation {
    ts_keyset exclude;       /* keys of layers to skip */
    const uint64_t *chosen;  /* nodes to run, one bit each; NULL: all */
    bool keep;               /* keep results in the registers after their last use */
    ts_rng_state rng;        /* generator state at the start of the graph */
} ts_interpretation;
/**
 * Runs the nodes of a graph in order. registers[i] is the tensor of value i: borrowed for inputs
 * and captures, owned for results. The caller must set the values that no chosen node makes. Sets
 * the thread's generator to the state at the end of the graph, or to how->rng if a node failed.
 * Errors: the first error of a call; TS_ERR_INTERNAL if a node needs a missing value; TS_ERR_VALUE
 * if the base of an ALIAS has other strides or less memory than recorded; TS_ERR_STATE if the leaf
 * of a GET_GRAD has no gradient; TS_ERR_MEMORY.
 */
ts_status ts_interpret(const ts_graph *g, ts_tensor **registers, const ts_interpretation *how);
/** Releases the results in the registers. */
void ts_registers_clear(const ts_graph *g, ts_tensor **registers);

/* ------------------------------------------------------------------------------- writing ---- */

/** Writes a node as text, without an end of line. */
void ts_graph_write_node(const ts_graph *g, const ts_graph_node *n, FILE *out);
/** Formats of ts_graph_write(), which sets the C locale before and checks `out` afterwards.
 *  Error: TS_ERR_MEMORY; ts_graph_write_json() also TS_ERR_IO. */
ts_status ts_graph_write_dot(const ts_graph *g, FILE *out);
ts_status ts_graph_write_json(const ts_graph *g, FILE *out);

#endif
