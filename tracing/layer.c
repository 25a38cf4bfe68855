/**
 * @file layer.c  The TRACING layer and ts_trace(): redispatches, then records the call.
 *
 * Identifying tensors: the handle and storage of a result are new and belong to this thread, so the
 * layer writes the graph's id to both. A tensor from outside may be shared with other threads and
 * is not written; a table maps its address to its id, and a reference keeps the address from being
 * reused. An unknown handle with a known storage is an alias that was made without a call.
 */
// SPDX-License-Identifier: MIT
#include "core/recorder.h"
#include "init.h"
#include "include/tessera/autograd.h"
#include "include/tessera/check.h"
#include "tracing/graph.h"
#include "tracing/outside.h"

#include <string.h>

#define TRACING TS_KEYSET(TS_KEY_TRACING)

/** A call that is running; allocated on the stack of the layer's kernel. */
typedef struct traced_call {
    struct traced_call *outer;
    uint32_t args;    /* index of the first argument in graph->args */
    int32_t depth;    /* the thread's call depth */
    ts_rng_state rng; /* before the call */
    bool kept, parts; /* begin() succeeded; the inner calls are recorded in place of the call */
    uint32_t outer_parent; /* tracer.parent and tracer.depth, to restore after the parts */
    int32_t outer_depth;
    ts_id rets[TS_MAX_RETS]; /* given results, and results that AUTOGRAD keeps */
} traced_call;

typedef struct tracer {
    ts_recorder events;
    ts_graph *graph;
    ts_thread *thread;
    ts_outside outside;
    traced_call *innermost; /* running call; NULL: none */
    uint32_t parent;   /* index of the open region, plus 1; 0: none */
    int32_t depth;     /* nesting depth of calls around the function */
    bool random;       /* a random op was called */
    ts_rng_state base; /* random state at the start of the trace */
} tracer;

/** True if events are recorded: nothing made the graph incomplete, and the thread does not exclude
 *  TRACING, as it does inside kernels. */
static bool is_visible(const tracer *r)
{
    return !r->graph->reason && !(r->thread->exclude & TRACING);
}

/* ------------------------------------------------------------------ tensors from outside ---- */

static const ts_outside_entry *find(const tracer *r, const void *key)
{
    return ts_outside_find(&r->outside, key);
}

static bool insert_key(tracer *r, const void *key, uint32_t index)
{
    return ts_outside_insert(&r->outside, r->thread, key, index) ||
           ts_graph_fail(r->graph, "out of memory in the recorder");
}

static bool find_storage(const tracer *r, const ts_storage *s, uint32_t *storage)
{
    bool ours = ts_id_of(r->graph, s->id);
    const ts_outside_entry *e = ours ? NULL : find(r, s);
    if (ours || e)
        *storage = e ? e->index : ts_id_index(s->id);
    return ours || e;
}

static ts_graph_storage *storage_at(const tracer *r, uint32_t i)
{
    return (ts_graph_storage *)r->graph->storages.data + i;
}

/** Adds a node that is not a call of an op: args is the index of its first argument, ret the id of
 *  its result; 0: none. */
static bool add_plain_node(tracer *r, ts_node_kind kind, uint32_t args, uint8_t nargs, ts_id ret)
{
    ts_graph_node n = {.rets = {ret}, .args = args, .parent = r->parent, .op = TS_OP_NONE,
                       .kind = (uint8_t)kind, .nargs = nargs, .nrets = ret != 0, .want = ret != 0};
    return ts_graph_add_node(r->graph, &n, NULL);
}

/** Adds an input or a capture, and its storage if that is unknown. The caller holds a reference to
 * t until the trace ends. */
static bool add_outside(tracer *r, ts_tensor *t, ts_source source, uint32_t slot, ts_id *id)
{
    ts_graph *g = r->graph;
    uint32_t storage;
    if (!find_storage(r, t->storage, &storage) &&
        !(ts_graph_add_storage(g, source, t->storage->version, &storage) &&
          insert_key(r, t->storage, storage)))
        return false;
    return ts_graph_add_value(g, t, source, slot, storage, id) &&
           insert_key(r, t, ts_id_index(*id));
}

/** Adds a result of node `slot`, and writes ids to its handle and storage if they have none. */
static bool add_result(tracer *r, ts_tensor *t, uint32_t slot, ts_id *id)
{
    ts_graph *g = r->graph;
    ts_storage *s = t->storage;
    const ts_outside_entry *e;
    uint32_t storage;
    if (ts_id_of(g, t->id)) {
        *id = t->id;
        return true;
    }
    /* a new tensor has one owner and cannot be known */
    if (atomic_load_explicit(&t->refs, memory_order_relaxed) > 1 && (e = find(r, t)) != NULL) {
        *id = ts_id_make(g, e->index);
        return true;
    }
    bool shared = atomic_load_explicit(&s->refs, memory_order_relaxed) > 1 || ts_id_of(g, s->id);
    if (!shared || !find_storage(r, s, &storage)) {
        if (!ts_graph_add_storage(g, TS_SOURCE_RESULT, s->version, &storage))
            return false;
        s->id = ts_id_make(g, storage);
    }
    if (!ts_graph_add_value(g, t, TS_SOURCE_RESULT, slot, storage, id))
        return false;
    t->id = *id;
    return true;
}

/** Records t as an alias of a value of the graph that has the same storage. */
static bool add_alias(tracer *r, ts_tensor *t, uint32_t storage, ts_id *id)
{
    ts_graph *g = r->graph;
    ts_id base = ts_id_make(g, storage_at(r, storage)->newest - 1);
    const ts_graph_value *v = ts_graph_value_at(g, base);
    int64_t offset = t->data - (char *)t->storage->data - v->offset;
    uint32_t at, sizes, strides;
    if (v->dtype != t->dtype || !t->data)
        return ts_graph_fail(g, "a tensor reads recorded memory as another dtype, without a call");
    if (!ts_graph_add_args(g, 4, &at) || !ts_graph_add_ints(g, t->sizes, t->ndim, &sizes) ||
        !ts_graph_add_ints(g, t->strides, t->ndim, &strides) ||
        !ts_graph_add_value(g, t, TS_SOURCE_RESULT, g->nodes.count, storage, id))
        return false;
    ts_graph_arg *args = (ts_graph_arg *)g->args.data + at;
    args[0] = (ts_graph_arg){.tag = TS_TAG_TENSOR, .id = base};
    args[1] = (ts_graph_arg){.tag = TS_TAG_INTS, .count = t->ndim, .at = sizes};
    args[2] = (ts_graph_arg){.tag = TS_TAG_INTS, .count = t->ndim, .at = strides};
    args[3] = (ts_graph_arg){.tag = TS_TAG_INT, .i = offset / ts_dtype_sizes[t->dtype]};
    return add_plain_node(r, TS_NODE_ALIAS, at, 4, *id);
}

/** Sets *id to the id of an argument. An unknown handle becomes an alias if its storage is that of
 * an input or result, else a capture. */
static bool id_of(tracer *r, ts_tensor *t, ts_id *id)
{
    ts_graph *g = r->graph;
    uint32_t storage = 0, slot;
    const ts_outside_entry *e;
    const ts_graph_value *v;
    *id = ts_id_of(g, t->id) ? t->id : (e = find(r, t)) != NULL ? ts_id_make(g, e->index) : 0;
    if (*id)
        storage = ts_graph_value_at(g, *id)->storage;
    bool known = *id || find_storage(r, t->storage, &storage);
    if (known && storage_at(r, storage)->version != t->storage->version)
        return ts_graph_fail(g, "memory was written without a call, as by ts_data_mut()");
    if (*id)
        return true;
    if (known && (v = ts_graph_find_layout(g, storage, t)) != NULL) {
        *id = ts_id_make(g, (uint32_t)(v - (const ts_graph_value *)g->values.data));
        return true;
    }
    if (known && storage_at(r, storage)->source != TS_SOURCE_CAPTURE)
        return add_alias(r, t, storage, id);
    return ts_graph_add_capture(g, t, &slot) && add_outside(r, t, TS_SOURCE_CAPTURE, slot, id);
}

/* --------------------------------------------------------------------------------- calls ---- */

static bool is_int_arg(const ts_frame *f, int i, const char *name)
{
    return i < f->nargs && f->args[i].tag == TS_TAG_INT &&
           strcmp(f->table->info->schema.args[i].name, name) == 0;
}

/** If arguments named seed and offset are the counters of an earlier draw in the trace, gives them
 *  the roles SEED and OFFSET, so that a replay uses its own stream. */
static void link_counters(const tracer *r, const ts_frame *f, ts_graph_arg *args)
{
    for (int i = 0; i + 1 < f->nargs; i++) {
        if (!is_int_arg(f, i, "seed") || !is_int_arg(f, i + 1, "offset"))
            continue;
        uint64_t seed = (uint64_t)f->args[i].i, offset = (uint64_t)f->args[i + 1].i;
        if (seed != r->base.seed || offset < r->base.offset)
            continue;
        args[i].role = TS_ROLE_SEED;
        args[i + 1].role = TS_ROLE_OFFSET;
        args[i + 1].i = (int64_t)(offset - r->base.offset);
    }
}

static bool put_list(tracer *r, const ts_value *v, uint32_t *at)
{
    ts_id id;
    /* adds unknown members first: their sizes go to the same array of integers as the list */
    for (uint32_t k = 0; k < v->count; k++)
        if (!id_of(r, v->list[k], &id))
            return false;
    *at = r->graph->ints.count;
    uint32_t ignored;
    for (uint32_t k = 0; k < v->count; k++)
        if (!id_of(r, v->list[k], &id) ||
            !ts_graph_add_ints(r->graph, &(int64_t){(int64_t)id}, 1, &ignored))
            return false;
    return true;
}

static bool put_arg(tracer *r, const ts_value *v, uint32_t at)
{
    ts_graph_arg a = {.tag = v->tag, .count = v->count};
    bool ok = true;
    switch (v->tag) {
    case TS_TAG_TENSOR: ok = id_of(r, v->t, &a.id); break;
    case TS_TAG_TENSORS: ok = put_list(r, v, &a.at); break;
    case TS_TAG_INTS: ok = ts_graph_add_ints(r->graph, v->ints, v->count, &a.at); break;
    case TS_TAG_STRING: ok = ts_graph_add_text(r->graph, v->str, &a.at); break;
    case TS_TAG_FLOAT: a.d = v->d; break;
    case TS_TAG_DEVICE: a.device = v->device; break;
    default: a.i = v->i;
    }
    if (ok)
        ((ts_graph_arg *)r->graph->args.data)[at] = a;
    return ok;
}

/** Before the call: records the ids of arguments and given results. */
static bool begin(tracer *r, const ts_frame *f, traced_call *call)
{
    ts_graph *g = r->graph;
    if (!ts_graph_add_args(g, f->nargs, &call->args))
        return false;
    for (int i = 0; i < f->nargs; i++)
        if (!put_arg(r, &f->args[i], call->args + (uint32_t)i))
            return false;
    for (int i = 0; i < f->nrets; i++)
        if ((f->given >> i & 1) && !id_of(r, f->rets[i].t, &call->rets[i]))
            return false;
    call->rng = r->thread->rng;
    if (f->table->flags & TS_OP_RANDOM) {
        r->random = true;
        call->rng = f->rng;
    } else if (r->random) {
        link_counters(r, f, (ts_graph_arg *)g->args.data + call->args);
    }
    return true;
}

static void wrote(tracer *r, const ts_tensor *t)
{
    uint32_t storage;
    if (!find_storage(r, t->storage, &storage))
        return;
    storage_at(r, storage)->version = t->storage->version;
    storage_at(r, storage)->written = true;
}

static ts_graph_node node_of(const tracer *r, const ts_frame *f, const traced_call *call,
                             ts_node_kind kind)
{
    ts_graph_node n = {.site = f->site, .args = call->args, .parent = r->parent, .op = f->op,
                       .kind = (uint8_t)kind, .nargs = f->nargs, .nrets = f->nrets, .want = f->want,
                       .given = f->given, .rng = call->rng};
    bool ours = call->rng.seed == r->base.seed && call->rng.offset >= r->base.offset;
    if (ours)
        n.rng = (ts_rng_state){0, call->rng.offset - r->base.offset};
    n.flags = (uint8_t)((ours ? 0 : TS_NODE_RNG_ABSOLUTE) |
                        (f->table->flags & TS_OP_RANDOM ? TS_NODE_RANDOM : 0) |
                        (r->thread->exclude & TS_KEYSET(TS_KEY_AUTOGRAD) ? TS_NODE_NO_GRAD : 0) |
                        (r->thread->depth > r->depth + 1 ? TS_NODE_INSERTED : 0) |
                        (r->thread->casting ? TS_NODE_AUTOCAST : 0));
    return n;
}

/** After the call: gives the results ids and adds the node. */
static bool end(tracer *r, const ts_frame *f, traced_call *call)
{
    ts_graph *g = r->graph;
    ts_graph_node n = node_of(r, f, call, TS_NODE_CALL);
    for (int i = 0; i < f->nrets; i++) {
        if (!(f->given >> i & 1) && f->rets[i].tag == TS_TAG_TENSOR) {
            if (!add_result(r, f->rets[i].t, g->nodes.count, &call->rets[i]))
                return false;
        } else if (!(f->given >> i & 1) && call->rets[i]) { /* AUTOGRAD keeps it */
            n.want |= (uint8_t)(1 << i);
            ts_graph_value_at(g, call->rets[i])->slot = g->nodes.count;
        } else if (f->given >> i & 1) {
            wrote(r, f->rets[i].t);
        }
        n.rets[i] = call->rets[i];
    }
    for (int i = 0; f->table->written >> i; i++) {
        const ts_value *v = &f->args[i];
        if (!(f->table->written >> i & 1))
            continue;
        if (v->tag == TS_TAG_TENSOR)
            wrote(r, v->t);
        for (uint32_t k = 0; v->tag == TS_TAG_TENSORS && k < v->count; k++)
            wrote(r, v->list[k]);
    }
    return ts_graph_add_node(g, &n, NULL);
}

/** The TRACING layer of every op. */
static ts_status record(ts_frame *f)
{
    tracer *r = (tracer *)f->thread->recorder;
    if (!r || r->graph->reason)
        return ts_redispatch(f);
    traced_call call = {.outer = r->innermost, .depth = f->thread->depth};
    call.kept = begin(r, f, &call);
    r->innermost = &call;
    ts_status status = ts_redispatch(f);
    r->innermost = call.outer;
    if (status == TS_OK && call.kept && !call.parts && !r->graph->reason)
        end(r, f, &call);
    return status;
}

/* -------------------------------------------------------------------------------- events ---- */

static uint32_t enter(ts_recorder *events, const char *name, const void *site)
{
    tracer *r = (tracer *)events;
    ts_graph_node n = {.site = site, .parent = r->parent, .op = TS_OP_NONE, .kind = TS_NODE_REGION};
    uint32_t region;
    if (!is_visible(r) || !ts_graph_add_text(r->graph, name, &n.name) ||
        !ts_graph_add_node(r->graph, &n, &region))
        return TS_NO_REGION;
    r->graph->has_backward = true;
    r->parent = region + 1;
    return region;
}

static void leave(ts_recorder *events, uint32_t region)
{
    tracer *r = (tracer *)events;
    ts_graph_node *n = ts_graph_node_at(r->graph, region);
    n->end = r->graph->nodes.count;
    r->parent = n->parent;
}

/** The call that this layer redispatched and that the layers below are running; NULL if none. */
static traced_call *open_call(const tracer *r)
{
    traced_call *call = r->innermost;
    return call && call->kept && !r->graph->reason && r->thread->depth == call->depth ? call : NULL;
}

static uint32_t parts(ts_recorder *events, const ts_frame *f)
{
    tracer *r = (tracer *)events;
    traced_call *call = open_call(r);
    uint32_t region;
    if (!call)
        return TS_NO_REGION;
    ts_graph_node n = node_of(r, f, call, TS_NODE_REGION);
    if (!ts_graph_add_node(r->graph, &n, &region))
        return TS_NO_REGION;
    call->parts = true;
    call->outer_parent = r->parent;
    call->outer_depth = r->depth;
    r->parent = region + 1;
    r->depth = r->thread->depth;
    r->thread->exclude &= ~TRACING;
    return region;
}

static void parts_end(ts_recorder *events, uint32_t region, const ts_frame *f)
{
    tracer *r = (tracer *)events;
    const traced_call *call = r->innermost;
    ts_graph_node *n = ts_graph_node_at(r->graph, region);
    n->end = r->graph->nodes.count;
    for (int i = 0; i < f->nrets; i++)
        if (f->rets[i].tag == TS_TAG_TENSOR && ts_id_of(r->graph, f->rets[i].t->id))
            n->rets[i] = f->rets[i].t->id;
    r->parent = call->outer_parent;
    r->depth = call->outer_depth;
}

static void record_kept_result(ts_recorder *events, int i, ts_tensor *t)
{
    tracer *r = (tracer *)events;
    traced_call *call = open_call(r);
    if (call && !call->parts)
        add_result(r, t, 0, &call->rets[i]);
}

static void before(ts_recorder *events)
{
    tracer *r = (tracer *)events;
    if (open_call(r))
        r->thread->exclude &= ~TRACING;
}

/** Records a constant: captures a copy of the values, because the tensor may be written later. */
static void constant(ts_recorder *events, ts_tensor *t)
{
    tracer *r = (tracer *)events;
    ts_graph *g = r->graph;
    uint32_t at, slot, storage;
    ts_id source, id;
    if (!is_visible(r) || !ts_graph_add_args(g, 1, &at))
        return;
    ts_error before = *r->thread->error; /* only the graph's status reports out of memory */
    ts_tensor *copy =
        ts_tensor_new(r->thread, (ts_dtype)t->dtype, t->sizes, t->ndim, TS_DEVICE_CPU);
    if (!copy) {
        *r->thread->error = before;
        ts_graph_fail(g, "out of memory in the recorder");
        return;
    }
    if (t->numel)
        memcpy(copy->data, t->data, (size_t)t->numel * ts_dtype_sizes[t->dtype]);
    if (ts_graph_add_capture(g, copy, &slot)) {
        g->constants++;
        if (ts_graph_add_storage(g, TS_SOURCE_CAPTURE, 0, &storage) &&
            ts_graph_add_value(g, copy, TS_SOURCE_CAPTURE, slot, storage, &source) &&
            add_result(r, t, g->nodes.count, &id)) {
            ((ts_graph_arg *)g->args.data)[at] = (ts_graph_arg){.tag = TS_TAG_TENSOR, .id = source};
            add_plain_node(r, TS_NODE_CONSTANT, at, 1, id);
        }
    }
    ts_tensor_unref(copy);
}

/** Adds two arguments, the leaf and its gradient (or none); *at receives the index of the first. */
static bool grad_args(tracer *r, ts_tensor *leaf, ts_tensor *grad, uint32_t *at)
{
    ts_id leaf_id, grad_id = 0;
    if (!id_of(r, leaf, &leaf_id) || (grad && !id_of(r, grad, &grad_id)) ||
        !ts_graph_add_args(r->graph, 2, at))
        return false;
    ts_graph_arg *args = (ts_graph_arg *)r->graph->args.data + *at;
    args[0] = (ts_graph_arg){.tag = TS_TAG_TENSOR, .id = leaf_id};
    args[1] = (ts_graph_arg){.tag = grad ? TS_TAG_TENSOR : TS_TAG_NONE, .id = grad_id};
    return true;
}

static void grad_read(ts_recorder *events, ts_tensor *leaf, ts_tensor *grad)
{
    tracer *r = (tracer *)events;
    uint32_t at, storage;
    ts_id id;
    if (!is_visible(r) || find_storage(r, grad->storage, &storage) ||
        !grad_args(r, leaf, NULL, &at) ||
        !ts_graph_add_storage(r->graph, TS_SOURCE_RESULT, grad->storage->version, &storage))
        return;
    /* no other thread uses grad: the leaf owns it, and the training thread owns the leaf */
    grad->storage->id = ts_id_make(r->graph, storage);
    if (add_result(r, grad, r->graph->nodes.count, &id))
        add_plain_node(r, TS_NODE_GET_GRAD, at, 1, id);
}

static void grad_set(ts_recorder *events, ts_tensor *leaf, ts_tensor *grad)
{
    tracer *r = (tracer *)events;
    uint32_t at;
    if (is_visible(r) && grad_args(r, leaf, grad, &at))
        add_plain_node(r, TS_NODE_SET_GRAD, at, 2, 0);
}

static void grad_absent(ts_recorder *events, ts_tensor *leaf) { (void)events, (void)leaf; }

/* ------------------------------------------------------------------------------ ts_trace ---- */

static ts_status check_args(ts_trace_fn fn, ts_tensor *const *inputs, int ninputs,
                            ts_tensor **outputs, int noutputs, ts_graph **graph, const void *site)
{
    const ts_thread *thread = ts_thread_self();
    const ts_check_place at = {"trace", site};
    TS_TRY(ts_check_pointers(at, "fn, graph", (const void *[]){(void *)(uintptr_t)fn, graph}, 2,
                             false));
    TS_TRY(ts_check_tensor_list(at, "inputs", "ninputs", inputs, ninputs));
    TS_TRY(ts_check_list(at, "outputs", "noutputs", outputs, noutputs));
    if (ts_tracing())
        return ts_fail_op(TS_ERR_STATE, "trace", site,
                          "call the function directly: the running trace records its ops",
                          "expected no running trace in this thread, got a trace inside a trace");
    if (thread->exclude & TRACING)
        return ts_fail_op(
            TS_ERR_STATE, "trace", site, "start the trace around the call",
            "the thread excludes the TRACING layer, as it is inside a kernel or a guard");
    return TS_OK;
}

static bool add_inputs(tracer *r, ts_tensor *const *inputs, int n)
{
    for (int i = 0; i < n; i++) {
        const ts_outside_entry *e = find(r, inputs[i]);
        ts_id id;
        if (e)
            id = ts_id_make(r->graph, e->index); /* the same tensor twice */
        else if (!add_outside(r, inputs[i], TS_SOURCE_INPUT, (uint32_t)i, &id))
            return false;
        if (!ts_graph_add_id(r->graph, &r->graph->inputs, id))
            return false;
    }
    return true;
}

/** Calls fn with the layer and its events on, then restores the thread's modes. */
static ts_status run_recorded(tracer *r, ts_trace_fn fn, void *ctx, ts_tensor *const *inputs,
                              int ninputs, ts_tensor **outputs, int noutputs, const void *site)
{
    ts_thread *thread = r->thread;
    TS_KEEP_MODES; /* of a compiled call, too, whose recorder gets no events during the trace */
    thread->include |= TRACING;
    thread->recorder = &r->events;
    uint64_t scope = thread->scope->serial;
    ts_status status = ts_fail_callback(fn(ctx, inputs, ninputs, outputs, noutputs), "trace", site,
                                        "the function");
    status = ts_end_open_scopes(status, scope, "trace", site, "the function");
    for (int i = 0; i < noutputs && status == TS_OK; i++)
        if (!outputs[i]) /* NULL propagates an earlier failure, which is on record */
            status = ts_error_code() != TS_OK ? ts_error_code()
                                              : ts_fail_op(TS_ERR_NULL, "trace", site, NULL,
                                                           "the function left output %d NULL", i);
        else if (outputs[i] != TS_NONE && ts_tensor_is_dead(outputs[i]))
            status = ts_fail_dead("trace", site, "outputs", outputs[i]);
    return status;
}

static bool add_outputs(tracer *r, ts_tensor *const *outputs, int n)
{
    for (int i = 0; i < n; i++) {
        ts_id id = 0;
        if ((outputs[i] != TS_NONE && !id_of(r, outputs[i], &id)) ||
            !ts_graph_add_id(r->graph, &r->graph->outputs, id))
            return false;
    }
    return true;
}

ts_status ts_trace(ts_trace_fn fn, void *ctx, ts_tensor *const *inputs, int ninputs,
                   ts_tensor **outputs, int noutputs, ts_graph **graph)
{
    const void *site = __builtin_return_address(0);
    if (graph)
        *graph = NULL;
    TS_TRY(check_args(fn, inputs, ninputs, outputs, noutputs, graph, site));
    ts_thread *thread = ts_thread_self();
    tracer r = {.events = {enter, leave, parts, parts_end, record_kept_result, constant, grad_read,
                         grad_set, grad_absent, before, false},
                .graph = ts_graph_new(), .thread = thread, .depth = thread->depth,
                .base = thread->rng};
    if (!r.graph)
        return ts_error_memory("a graph", sizeof *r.graph);
    for (int i = 0; i < noutputs; i++)
        outputs[i] = NULL;
    for (int i = 0; i < ninputs; i++)
        ts_tensor_ref(inputs[i]);
    add_inputs(&r, inputs, ninputs);
    ts_above.clear_cast_cache(); /* a cached cast would be captured and become stale */
    ts_mark_unrepeatable("a trace");
    ts_status status = run_recorded(&r, fn, ctx, inputs, ninputs, outputs, noutputs, site);
    for (int i = 0; i < noutputs && status != TS_OK; i++)
        outputs[i] = NULL;
    if (status != TS_OK)
        ts_graph_fail(r.graph, "the function failed");
    else if (!r.graph->reason)
        add_outputs(&r, outputs, noutputs);
    ts_rng_state now = thread->rng;
    r.graph->rng_absolute = now.seed != r.base.seed || now.offset < r.base.offset;
    r.graph->rng = r.graph->rng_absolute ? now : (ts_rng_state){0, now.offset - r.base.offset};
    ts_graph_finish(r.graph);
    ts_outside_free(&r.outside, thread);
    for (int i = 0; i < ninputs; i++)
        ts_tensor_unref(inputs[i]);
    *graph = r.graph;
    return status;
}

bool ts_tracing(void) { return ts_tls.recorder && !ts_tls.recorder->compiles; }

ts_status ts_tracing_install(void)
{
    return ts_register_fallback(TS_KEY_TRACING, record, NULL);
}
