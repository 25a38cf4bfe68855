/**
 * @file graph.h
 * The graph of calls: one type for all recorders, one interpreter.
 *
 * All data is in growing arrays with references by index, so recording is a few stores and freeing
 * is cheap. A value represents a tensor handle, not one state of its memory: in-place calls stay in
 * place, and a pass that needs pure values creates them. Calls are in the order in which they ran.
 * A region (backward, an op by parts) precedes its parts, which follow without a gap; the region
 * itself does nothing.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_TRACING_GRAPH_H
#define TS_TRACING_GRAPH_H

#include "dispatch/op.h"
#include "include/tessera/trace.h"

/** Id of a tensor or storage: serial number of the graph in the high bits, index + 1 in the low; 0
 * is none. */
typedef uint64_t ts_id;
#define TS_ID_BITS 28

/** A growing array from the thread's allocator. */
typedef struct ts_array {
    void *data;
    uint32_t count, room;
} ts_array;

/** Makes room for n more items. If out of memory, false and an unchanged array. */
bool ts_array_reserve(ts_array *a, uint32_t n, size_t item);
void ts_array_free(ts_array *a, size_t item);
/** The next of an array of items for which room was reserved. */
#define TS_PUSH(array, type) ((type *)(array).data + (array).count++)

typedef enum ts_source { TS_SOURCE_INPUT, TS_SOURCE_CAPTURE, TS_SOURCE_RESULT } ts_source;

typedef struct ts_graph_value {
    uint8_t source, dtype, ndim;
    uint8_t requires_grad;
    ts_device device;
    uint32_t slot;    /* index of the input or capture; for a result, its node */
    uint32_t storage; /* index of its storage */
    uint32_t before;  /* value of the same storage before this one, + 1; 0: none */
    uint32_t ints;    /* place of sizes, then strides */
    uint32_t last;    /* last node that uses the value, + 1; 0: none; UINT32_MAX: an output. Set in
                         finished graphs */
    int64_t offset;   /* bytes from the storage's begin */
} ts_graph_value;

/** Memory that values share. */
typedef struct ts_graph_storage {
    uint32_t newest;  /* value, + 1 */
    uint32_t version; /* after the last recorded write; for the recorder */
    uint8_t source;   /* of its first value */
    bool written;     /* by a recorded call */
} ts_graph_storage;

/** Kinds of arguments beyond the tag. */
typedef enum ts_role {
    TS_ROLE_PLAIN,
    TS_ROLE_SEED,
    TS_ROLE_OFFSET, /* of random numbers drawn in the graph */
    TS_ROLE_VALUE   /* passed at run time, in the run's numbers at index `at` */
} ts_role;

typedef struct ts_graph_arg {
    uint8_t tag, role;
    uint16_t reserved;
    uint32_t count; /* members of a list */
    union {
        ts_id id;    /* TENSOR */
        uint32_t at; /* TENSORS, INTS: place in ints; STRING: in text;
                        of role VALUE: in the numbers of a run */
        int64_t i;
        double d;
        ts_device device;
    };
} ts_graph_arg;

typedef enum ts_node_kind {
    TS_NODE_CALL,     /* of an op */
    TS_NODE_REGION,   /* its parts follow, up to `end`; an op by parts has
                         args and results to show */
    TS_NODE_CONSTANT, /* result = copy of the capture args[0] */
    TS_NODE_ALIAS,    /* result = args[0]'s memory with sizes, strides,
                         elements beyond args[0]: made without a call */
    TS_NODE_GET_GRAD, /* result = gradient of args[0] */
    TS_NODE_SET_GRAD  /* gradient of args[0] = args[1], or none */
} ts_node_kind;

enum {
    TS_NODE_NO_GRAD = 1,      /* AUTOGRAD was excluded */
    TS_NODE_INSERTED = 2,     /* called by a layer above for the call that follows */
    TS_NODE_RNG_ABSOLUTE = 4, /* rng is no place in the stream of the trace */
    TS_NODE_RANDOM = 8,
    TS_NODE_AUTOCAST = 16     /* a cast that AUTOCAST inserted */
};

typedef struct ts_graph_node {
    const void *site;
    ts_rng_state rng;     /* generator state at the call: offset from the start of the trace, or the
                             whole state if absolute */
    ts_id rets[TS_MAX_RETS];
    uint32_t args;        /* first of nargs */
    uint32_t parent;      /* region, + 1; 0: none */
    uint32_t end;         /* REGION: node after its last part */
    uint32_t name;        /* REGION: place in text */
    uint16_t op;          /* CALL, REGION by parts; else TS_OP_NONE */
    uint8_t kind, nargs, nrets, want, given, flags;
} ts_graph_node;
#define TS_OP_NONE 0xffff

struct ts_graph {
    uint64_t serial;
    bool has_backward;
    const char *reason;   /* not NULL: incomplete */
    ts_array nodes, values, args, ints, text, storages;
    ts_array inputs;      /* ts_id */
    ts_array outputs;     /* ts_id, or none */
    ts_array captures;    /* ts_tensor *, owned */
    uint32_t widest;      /* most tensors in the lists of one call */
    uint32_t constants;
    ts_rng_state rng;     /* drawn in all: an advance, or the state at the end */
    bool rng_absolute;
};

/* ----------------------------------------------------------------------------- building ---- */

/** A serial number that no graph has. */
uint64_t ts_graph_serial(void);
/** An empty graph with a serial number of its own; NULL if out of memory (records no error). */
ts_graph *ts_graph_new(void);

/** Functions that allocate return false when memory runs out; the graph is then incomplete. */
bool ts_graph_fail(ts_graph *g, const char *reason);

/** A value for t, on storage number `storage`. */
bool ts_graph_add_value(ts_graph *g, const ts_tensor *t, ts_source source, uint32_t slot,
                        uint32_t storage, ts_id *id);
bool ts_graph_add_storage(ts_graph *g, ts_source source, uint32_t version, uint32_t *storage);
/** Places for n arguments, tags NONE; *at is the first. */
bool ts_graph_add_args(ts_graph *g, int n, uint32_t *at);
bool ts_graph_add_node(ts_graph *g, const ts_graph_node *node, uint32_t *index);
bool ts_graph_add_ints(ts_graph *g, const int64_t *ints, uint32_t n, uint32_t *at);
bool ts_graph_add_text(ts_graph *g, const char *text, uint32_t *at);
bool ts_graph_add_id(ts_graph *g, ts_array *ids, ts_id id);
bool ts_graph_add_capture(ts_graph *g, ts_tensor *t, uint32_t *slot);
/** The value with the same memory and layout as t, or NULL. */
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
/** Name of a call or region. */
const char *ts_graph_node_name(const ts_graph *g, const ts_graph_node *n);

/* -------------------------------------------------------------------------- interpreting ---- */

/** How nodes are run. Zero runs all of them with AUTOGRAD as recorded. */
typedef struct ts_interpretation {
    ts_keyset exclude;       /* layers that are not visited */
    const uint64_t *chosen;  /* bit per node; NULL: all */
    bool keep;               /* keep results after their last use:
                                the registers are read afterwards */
    ts_rng_state rng;        /* where the graph's stream of random numbers begins */
} ts_interpretation;
/**
 * The one interpreter: runs nodes in order. registers[i] is the tensor of value i: inputs and
 * captures borrowed, results owned; values that no chosen node makes must be present.
 */
ts_status ts_interpret(const ts_graph *g, ts_tensor **registers, const ts_interpretation *how);
/** Gives up the results that registers hold. */
void ts_registers_clear(const ts_graph *g, ts_tensor **registers);

/* ------------------------------------------------------------------------------- writing ---- */

ts_status ts_graph_write_text(const ts_graph *g, FILE *out);
ts_status ts_graph_write_dot(const ts_graph *g, FILE *out);
ts_status ts_graph_write_json(const ts_graph *g, FILE *out);

#endif
