/** @file interpret.c  The one interpreter of graphs, and ts_replay(). */
// SPDX-License-Identifier: MIT
#include "dispatch/invoke.h"
#include "include/tessera/autograd.h"
#include "include/tessera/check.h"
#include "tracing/graph.h"

#include <string.h>

typedef struct machine {
    const ts_graph *graph;
    ts_tensor **registers; /* one per value; owns results, borrows inputs and captures */
    ts_tensor **lists;     /* buffer for the list members of one call */
    ts_thread *thread;
    const ts_interpretation *how;
} machine;

static bool is_result(const ts_graph *g, ts_id id)
{
    return ts_graph_value_at(g, id)->source == TS_SOURCE_RESULT;
}

static ts_tensor *get(const machine *m, ts_id id) { return m->registers[ts_id_index(id)]; }

/** Stores t in the register of value id and takes over the reference. If the register is set, it
 *  already holds the same tensor. */
static void put(const machine *m, ts_id id, ts_tensor *t)
{
    ts_tensor **slot = &m->registers[ts_id_index(id)], *before = *slot;
    if (!is_result(m->graph, id)) { /* the call returned an input or capture: borrowed registers */
        ts_tensor_unref(t);
        return;
    }
    *slot = t;
    if (before)
        ts_tensor_unref(before);
}

void ts_registers_clear(const ts_graph *g, ts_tensor **registers)
{
    for (uint32_t i = 0; i < g->values.count; i++)
        if (registers[i] && is_result(g, ts_id_make(g, i))) {
            ts_tensor_unref(registers[i]);
            registers[i] = NULL;
        }
}

/* --------------------------------------------------------------------------------- calls ---- */

/** Boxes the arguments of a node. Arguments with the role seed or offset get the run's random
 * state. */
static void unbox(const machine *m, const ts_graph_node *n, ts_value *args)
{
    const ts_graph *g = m->graph;
    const ts_graph_arg *a = ts_graph_args_of(g, n);
    uint32_t listed = 0;
    for (int i = 0; i < n->nargs; i++) {
        args[i] = (ts_value){.tag = a[i].tag, .count = a[i].count};
        switch (a[i].tag) {
        case TS_TAG_TENSOR: args[i].t = get(m, a[i].id); break;
        case TS_TAG_TENSORS:
            args[i].list = m->lists + listed;
            for (uint32_t k = 0; k < a[i].count; k++)
                m->lists[listed++] = get(m, (ts_id)ts_graph_ints_at(g, a[i].at)[k]);
            break;
        case TS_TAG_INTS: args[i].ints = ts_graph_ints_at(g, a[i].at); break;
        case TS_TAG_STRING: args[i].str = ts_graph_text_at(g, a[i].at); break;
        case TS_TAG_FLOAT: args[i].d = a[i].d; break;
        case TS_TAG_DEVICE: args[i].device = a[i].device; break;
        default:
            args[i].i = a[i].role == TS_ROLE_SEED ? (int64_t)m->how->rng.seed
                        : a[i].role == TS_ROLE_OFFSET
                            ? (int64_t)(m->how->rng.offset + (uint64_t)a[i].i)
                            : a[i].i;
        }
    }
}

static ts_status run_call(const machine *m, const ts_graph_node *n)
{
    ts_value args[TS_MAX_ARGS], rets[TS_MAX_RETS];
    ts_thread *thread = m->thread;
    int nrets = n->nrets <= TS_MAX_RETS ? n->nrets : TS_MAX_RETS; /* always initialised; the
                                                                     compiler cannot prove it */
    unbox(m, n, args);
    for (int i = 0; i < nrets; i++)
        rets[i] = n->given >> i & 1 ? ts_value_tensor(get(m, n->rets[i])) : ts_value_none();
    ts_rng_state base = m->how->rng;
    thread->rng = n->flags & TS_NODE_RNG_ABSOLUTE
                      ? n->rng
                      : (ts_rng_state){base.seed, base.offset + n->rng.offset};
    ts_keyset exclude = thread->exclude;
    thread->exclude |=
        m->how->exclude | (n->flags & TS_NODE_NO_GRAD ? TS_KEYSET(TS_KEY_AUTOGRAD) : 0);
    ts_status status = ts_call(n->op, args, n->nargs, rets, nrets, n->given, n->want, n->site);
    thread->exclude = exclude;
    if (status != TS_OK)
        return status;
    for (int i = 0; i < nrets; i++) {
        if (n->given >> i & 1 || rets[i].tag != TS_TAG_TENSOR)
            continue;
        if (n->rets[i])
            put(m, n->rets[i], rets[i].t);
        else
            ts_tensor_unref(rets[i].t);
    }
    return TS_OK;
}

static ts_status run_constant(const machine *m, const ts_graph_node *n)
{
    TS_SCOPE;
    const ts_tensor *from = get(m, ts_graph_args_of(m->graph, n)->id);
    ts_tensor *t = ts_from_array(from->data, (ts_dtype)from->dtype, from->sizes, from->ndim);
    TS_TRY(t);
    put(m, n->rets[0], ts_tensor_ref(t));
    return TS_OK;
}

/** Runs an ALIAS node: an alias of a value's memory with another layout. TS_ERR_VALUE if the base
 *  has other strides than in the trace, or its storage is too small for the alias. */
static ts_status run_alias(const machine *m, const ts_graph_node *n)
{
    const ts_graph *g = m->graph;
    const ts_graph_arg *a = ts_graph_args_of(g, n);
    const ts_tensor *base = get(m, a[0].id);
    const int64_t *sizes = ts_graph_ints_at(g, a[1].at), *strides = ts_graph_ints_at(g, a[2].at);
    const ts_graph_value *was = ts_graph_value_at(g, a[0].id);
    const int64_t *recorded = ts_graph_ints_at(g, was->ints) + was->ndim;
    for (int d = 0; d < base->ndim; d++)
        if (base->sizes[d] > 1 && base->strides[d] != recorded[d])
            return ts_error_set_hint(TS_ERR_VALUE, "pass inputs with the strides of the trace",
                                     "replay: the trace has an alias, made without a call, of a "
                                     "tensor that now has other strides");
    int64_t item = ts_dtype_sizes[base->dtype], first = a[3].i, last = a[3].i, numel = 1;
    for (uint32_t d = 0; d < a[1].count; d++) {
        int64_t reach = (sizes[d] - 1) * strides[d];
        first += reach < 0 ? reach : 0;
        last += reach > 0 ? reach : 0;
        numel *= sizes[d];
    }
    int64_t here = base->data ? base->data - (char *)base->storage->data : 0;
    if (numel && (here + first * item < 0 || here + (last + 1) * item > base->storage->bytes))
        return ts_error_set(
            TS_ERR_VALUE,
            "replay: the trace has an alias, made without a call, of a tensor whose storage is now "
            "too small for it");
    ts_tensor *t = ts_tensor_alias(m->thread, base, sizes, strides, (int)a[1].count, a[3].i);
    TS_TRY(t);
    put(m, n->rets[0], t);
    return TS_OK;
}

static ts_status run_node(const machine *m, const ts_graph_node *n)
{
    const ts_graph_arg *a = ts_graph_args_of(m->graph, n);
    switch ((ts_node_kind)n->kind) {
    case TS_NODE_CALL: return run_call(m, n);
    case TS_NODE_CONSTANT: return run_constant(m, n);
    case TS_NODE_ALIAS: return run_alias(m, n);
    case TS_NODE_SET_GRAD:
        return ts_set_grad(get(m, a[0].id), a[1].tag == TS_TAG_NONE ? TS_NONE : get(m, a[1].id));
    case TS_NODE_GET_GRAD: {
        ts_tensor *grad = ts_grad(get(m, a[0].id));
        if (grad == TS_NONE)
            return ts_error_set_hint(
                TS_ERR_STATE, "run a backward first, or record while no leaf has a gradient",
                "replay: a leaf has no gradient, but had one when the function was recorded");
        put(m, n->rets[0], ts_tensor_ref(grad));
        return TS_OK;
    }
    case TS_NODE_REGION: break;
    }
    return TS_OK;
}

/* ------------------------------------------------------------------------ life of values ---- */

/** ts_graph_each_arg() visitor: sets *ctx, a machine *, to NULL if the register of id is empty. */
static void check_there(void *ctx, int arg, ts_id id)
{
    (void)arg;
    const machine **m = ctx;
    if (*m && !get(*m, id))
        *m = NULL;
}

typedef struct step {
    const machine *m;
    uint32_t node;
} step;

/** Releases a value that the step's node uses last. */
static void release_last_use(void *ctx, int arg, ts_id id)
{
    (void)arg;
    const step *s = ctx;
    ts_tensor **slot = &s->m->registers[ts_id_index(id)];
    if (*slot && ts_graph_value_at(s->m->graph, id)->last == s->node + 1 &&
        is_result(s->m->graph, id)) {
        ts_tensor_unref(*slot);
        *slot = NULL;
    }
}

static ts_status run_all(const machine *m)
{
    const ts_graph *g = m->graph;
    for (uint32_t i = 0; i < g->nodes.count; i++) {
        const ts_graph_node *n = ts_graph_node_at(g, i);
        if (n->kind == TS_NODE_REGION ||
            (m->how->chosen && !(m->how->chosen[i / 64] >> i % 64 & 1)))
            continue;
        const machine *there = m;
        ts_graph_each_arg(g, n, check_there, &there);
        if (!there)
            return ts_error_set(TS_ERR_INTERNAL,
                                "interpreter: '%s' needs a tensor that nothing made",
                                ts_graph_node_name(g, n));
        TS_TRY(run_node(m, n));
        if (m->how->keep)
            continue;
        step done = {m, i};
        ts_graph_each_arg(g, n, release_last_use, &done);
        for (int k = 0; k < n->nrets; k++)
            if (n->rets[k])
                release_last_use(&done, 0, n->rets[k]);
    }
    return TS_OK;
}

ts_status ts_interpret(const ts_graph *g, ts_tensor **registers, const ts_interpretation *how)
{
    ts_thread *thread = ts_thread_self();
    machine m = {g, registers, NULL, thread, how};
    size_t bytes = g->widest * sizeof *m.lists;
    if (bytes && !(m.lists = ts_alloc(thread, bytes)))
        return ts_error_memory("lists of tensors", (int64_t)bytes);
    ts_status status = run_all(&m);
    if (bytes)
        ts_free(thread, m.lists, bytes);
    thread->rng = status != TS_OK ? how->rng
                  : g->rng_absolute
                      ? g->rng
                      : (ts_rng_state){how->rng.seed, how->rng.offset + g->rng.offset};
    return status;
}

/* ------------------------------------------------------------------------------- ts_replay ---- */

static void format_value(char *buffer, size_t size, const int64_t *sizes, int ndim, ts_dtype dtype,
                         ts_device device)
{
    char text[192];
    snprintf(buffer, size, "%s %s on %s", ts_format_sizes(text, sizeof text, sizes, ndim),
             ts_dtype_name(dtype), ts_device_name(device));
}

static ts_status check_input(const ts_graph *g, int i, const ts_tensor *t, const void *site)
{
    const ts_graph_value *v = ts_graph_value_at(g, ts_graph_id_at(&g->inputs, (uint32_t)i));
    const int64_t *sizes = ts_graph_ints_at(g, v->ints);
    bool fits = v->ndim == t->ndim;
    for (int d = 0; fits && d < t->ndim; d++)
        fits = sizes[d] == t->sizes[d];
    if (fits && v->dtype == t->dtype && ts_same_device(v->device, t->storage->device))
        return TS_OK;
    char want[256], got[256];
    format_value(want, sizeof want, sizes, v->ndim, (ts_dtype)v->dtype, v->device);
    format_value(got, sizeof got, t->sizes, t->ndim, (ts_dtype)t->dtype, t->storage->device);
    return ts_fail_op(!fits                  ? TS_ERR_SHAPE
                      : v->dtype != t->dtype ? TS_ERR_DTYPE
                                             : TS_ERR_DEVICE,
                      "replay", site, "record the function again with inputs like these",
                      "input %d: expected %s, got %s", i, want, got);
}

/** TS_ERR_VALUE unless inputs that were one tensor in the trace are one tensor, and each written
 *  input shares memory with the same other inputs as in the trace. */
static ts_status check_sharing(const ts_graph *g, ts_tensor *const *inputs, const void *site)
{
    const ts_graph_storage *storages = g->storages.data;
    for (uint32_t i = 0; i < g->inputs.count; i++) {
        uint32_t first = ts_graph_value_at(g, ts_graph_id_at(&g->inputs, i))->slot;
        if (inputs[first] != inputs[i])
            return ts_fail_op(TS_ERR_VALUE, "replay", site, NULL,
                              "inputs %u and %u: expected one tensor, as in the trace, got two",
                              first, i);
    }
    for (uint32_t i = 0; i < g->inputs.count; i++) {
        const ts_graph_value *v = ts_graph_value_at(g, ts_graph_id_at(&g->inputs, i));
        for (uint32_t k = 0; storages[v->storage].written && k < g->inputs.count; k++) {
            bool shared =
                ts_graph_value_at(g, ts_graph_id_at(&g->inputs, k))->storage == v->storage;
            if (shared != (inputs[k]->storage == inputs[i]->storage))
                return ts_fail_op(
                    TS_ERR_VALUE, "replay", site, "pass ts_clone() of one of them",
                    "input %u, which is written, %s memory with input %u; in the trace it %s", i,
                    shared ? "does not share" : "shares", k, shared ? "did" : "did not");
        }
    }
    return TS_OK;
}

static ts_status check_replay(const ts_graph *g, ts_tensor *const *inputs, int ninputs,
                              ts_tensor **outputs, int noutputs, const void *site)
{
    const ts_check_place at = {"replay", site};
    TS_TRY(ts_check_pointers(at, "graph", (const void *[]){g}, 1, true));
    TS_TRY(ts_check_list(at, "inputs", "ninputs", inputs, ninputs));
    TS_TRY(ts_check_list(at, "outputs", "noutputs", outputs, noutputs));
    if (g->reason)
        return ts_fail_op(TS_ERR_STATE, "replay", site, "record the function again",
                          "the graph is incomplete: %s", g->reason);
    if ((uint32_t)ninputs != g->inputs.count || (uint32_t)noutputs != g->outputs.count)
        return ts_fail_op(TS_ERR_VALUE, "replay", site, NULL,
                          "expected %u inputs and %u outputs, got %d and %d", g->inputs.count,
                          g->outputs.count, ninputs, noutputs);
    TS_TRY(ts_check_tensor_list(at, "inputs", "ninputs", inputs, ninputs));
    for (int i = 0; i < ninputs; i++)
        TS_TRY(check_input(g, i, inputs[i], site));
    return check_sharing(g, inputs, site);
}

ts_status ts_replay(const ts_graph *g, ts_tensor *const *inputs, int ninputs, ts_tensor **outputs,
                    int noutputs)
{
    TS_TRY(check_replay(g, inputs, ninputs, outputs, noutputs, __builtin_return_address(0)));
    ts_thread *thread = ts_thread_self();
    size_t bytes = g->values.count * sizeof(ts_tensor *);
    ts_tensor **registers = bytes ? ts_alloc(thread, bytes) : NULL;
    for (uint32_t i = 0; registers && i < g->values.count; i++) {
        const ts_graph_value *v = ts_graph_value_at(g, ts_id_make(g, i));
        registers[i] = v->source == TS_SOURCE_INPUT     ? inputs[v->slot]
                       : v->source == TS_SOURCE_CAPTURE ? ((ts_tensor **)g->captures.data)[v->slot]
                                                        : NULL;
    }
    for (int i = 0; i < noutputs; i++)
        outputs[i] = NULL; /* after the inputs were read, because both may be one array */
    if (bytes && !registers)
        return ts_error_memory("registers of a replay", (int64_t)bytes);
    ts_interpretation how = {.rng = thread->rng, .exclude = TS_KEYSET(TS_KEY_AUTOCAST)};
    if (g->has_backward)
        how.exclude |= TS_KEYSET(TS_KEY_AUTOGRAD);
    ts_status status = ts_interpret(g, registers, &how);
    for (int i = 0; i < noutputs && status == TS_OK; i++) {
        ts_id id = ts_graph_id_at(&g->outputs, (uint32_t)i);
        outputs[i] = !id ? TS_NONE : registers[ts_id_index(id)];
        if (id && is_result(g, id))
            ts_adopt(ts_tensor_ref(outputs[i]));
    }
    ts_registers_clear(g, registers);
    if (bytes)
        ts_free(thread, registers, bytes);
    return status;
}
