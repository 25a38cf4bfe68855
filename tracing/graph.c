/** @file graph.c  Builds, reads and frees graphs. */
// SPDX-License-Identifier: MIT
#include "dispatch/registry.h"
#include "include/tessera/check.h"
#include "tracing/graph.h"

#include <string.h>

/* ------------------------------------------------------------------------------- arrays ---- */

bool ts_array_grow(ts_array *a, uint32_t n, size_t item)
{
    int64_t bytes, count;
    count = ts_max64(a->capacity ? 2 * (int64_t)a->capacity : 16, (int64_t)a->count + n);
    if (count >= 1 << TS_ID_BITS || !ts_mul_size(count, (int64_t)item, &bytes))
        return false;
    ts_thread *thread = ts_thread_self();
    void *data = ts_alloc(thread, (size_t)bytes);
    if (!data)
        return false;
    if (a->capacity) {
        memcpy(data, a->data, a->count * item);
        ts_free(thread, a->data, a->capacity * item);
    }
    a->data = data;
    a->capacity = (uint32_t)count;
    return true;
}

void ts_array_free(ts_array *a, size_t item)
{
    if (a->capacity)
        ts_free(&ts_tls, a->data, a->capacity * item);
}

/* ------------------------------------------------------------------------------ building ---- */

uint64_t ts_graph_serial(void)
{
    static _Atomic uint64_t serials;
    return atomic_fetch_add_explicit(&serials, 1, memory_order_relaxed) + 1;
}

ts_graph *ts_graph_new(void)
{
    ts_graph *g = ts_alloc(ts_thread_self(), sizeof *g);
    if (!g)
        return NULL;
    memset(g, 0, sizeof *g);
    g->serial = ts_graph_serial();
    return g;
}

bool ts_graph_fail(ts_graph *g, const char *reason)
{
    if (!g->reason)
        g->reason = reason;
    return false;
}

static bool no_memory(ts_graph *g) { return ts_graph_fail(g, "out of memory in the recorder"); }

bool ts_graph_add_ints(ts_graph *g, const int64_t *ints, uint32_t n, uint32_t *at)
{
    if (!ts_array_reserve(&g->ints, n, sizeof *ints))
        return no_memory(g);
    *at = g->ints.count;
    for (uint32_t i = 0; i < n; i++)
        *TS_PUSH(g->ints, int64_t) = ints[i];
    return true;
}

bool ts_graph_add_text(ts_graph *g, const char *text, uint32_t *at)
{
    size_t n = strlen(text) + 1;
    if (n >= 1u << TS_ID_BITS || !ts_array_reserve(&g->text, (uint32_t)n, 1))
        return no_memory(g);
    *at = g->text.count;
    memcpy((char *)g->text.data + *at, text, n);
    g->text.count += (uint32_t)n;
    return true;
}

bool ts_graph_add_storage(ts_graph *g, ts_source source, uint32_t version, uint32_t *storage)
{
    if (!ts_array_reserve(&g->storages, 1, sizeof(ts_graph_storage)))
        return no_memory(g);
    *storage = g->storages.count;
    *TS_PUSH(g->storages, ts_graph_storage) =
        (ts_graph_storage){0, version, (uint8_t)source, false};
    return true;
}

bool ts_graph_add_value(ts_graph *g, const ts_tensor *t, ts_source source, uint32_t slot,
                        uint32_t storage, ts_id *id)
{
    if (!ts_array_reserve(&g->values, 1, sizeof(ts_graph_value)) ||
        !ts_array_reserve(&g->ints, 2 * TS_MAX_DIMS, sizeof(int64_t)))
        return no_memory(g);
    ts_graph_storage *s = (ts_graph_storage *)g->storages.data + storage;
    ts_graph_value *v = TS_PUSH(g->values, ts_graph_value);
    *v = (ts_graph_value){.source = (uint8_t)source,
                          .dtype = t->dtype,
                          .ndim = t->ndim,
                          .requires_grad = t->flags & TS_TENSOR_REQUIRES_GRAD,
                          .device = t->storage->device,
                          .slot = slot,
                          .storage = storage,
                          .before = s->newest,
                          .ints = g->ints.count,
                          .offset = ts_tensor_byte_offset(t)};
    int64_t *ints = ts_graph_ints_at(g, v->ints);
    for (int d = 0; d < t->ndim; d++) {
        ints[d] = t->sizes[d];
        ints[t->ndim + d] = t->strides[d];
    }
    g->ints.count += 2u * t->ndim;
    s->newest = g->values.count;
    *id = ts_id_make(g, g->values.count - 1);
    return true;
}

bool ts_graph_add_args(ts_graph *g, int n, uint32_t *at)
{
    if (!ts_array_reserve(&g->args, (uint32_t)n, sizeof(ts_graph_arg)))
        return no_memory(g);
    *at = g->args.count;
    for (int i = 0; i < n; i++)
        *TS_PUSH(g->args, ts_graph_arg) = (ts_graph_arg){0};
    return true;
}

bool ts_graph_add_node(ts_graph *g, const ts_graph_node *node, uint32_t *index)
{
    if (!ts_array_reserve(&g->nodes, 1, sizeof *node))
        return no_memory(g);
    if (index)
        *index = g->nodes.count;
    *TS_PUSH(g->nodes, ts_graph_node) = *node;
    return true;
}

bool ts_graph_add_id(ts_graph *g, ts_array *ids, ts_id id)
{
    if (!ts_array_reserve(ids, 1, sizeof id))
        return no_memory(g);
    *TS_PUSH(*ids, ts_id) = id;
    return true;
}

bool ts_graph_add_capture(ts_graph *g, ts_tensor *t, uint32_t *slot)
{
    if (!ts_array_reserve(&g->captures, 1, sizeof t))
        return no_memory(g);
    *slot = g->captures.count;
    *TS_PUSH(g->captures, ts_tensor *) = ts_tensor_ref(t);
    return true;
}

const ts_graph_value *ts_graph_find_layout(const ts_graph *g, uint32_t storage, const ts_tensor *t)
{
    int64_t offset = ts_tensor_byte_offset(t);
    uint32_t next = ((const ts_graph_storage *)g->storages.data)[storage].newest;
    while (next) {
        const ts_graph_value *v = (const ts_graph_value *)g->values.data + (next - 1);
        const int64_t *ints = ts_graph_ints_at(g, v->ints);
        bool same = v->dtype == t->dtype && v->ndim == t->ndim && v->offset == offset;
        for (int d = 0; same && d < t->ndim; d++)
            same = ints[d] == t->sizes[d] && ints[t->ndim + d] == t->strides[d];
        if (same)
            return v;
        next = v->before;
    }
    return NULL;
}

/* -------------------------------------------------------------------------------- reading ---- */

void ts_graph_each_arg(const ts_graph *g, const ts_graph_node *n,
                       void (*visit)(void *ctx, int arg, ts_id id), void *ctx)
{
    const ts_graph_arg *args = ts_graph_args_of(g, n);
    for (int i = 0; i < n->nargs; i++) {
        if (args[i].tag == TS_TAG_TENSOR)
            visit(ctx, i, args[i].id);
        for (uint32_t k = 0; args[i].tag == TS_TAG_TENSORS && k < args[i].count; k++)
            visit(ctx, i, (ts_id)ts_graph_ints_at(g, args[i].at)[k]);
    }
}

const char *ts_graph_node_name(const ts_graph *g, const ts_graph_node *n)
{
    static const char *const names[] = {[TS_NODE_CONSTANT] = "constant",
                                        [TS_NODE_ALIAS] = "alias",
                                        [TS_NODE_GET_GRAD] = "get_grad",
                                        [TS_NODE_SET_GRAD] = "set_grad"};
    if (n->op != TS_OP_NONE)
        return ts_op_name(n->op);
    return n->kind == TS_NODE_REGION ? ts_graph_text_at(g, n->name) : names[n->kind];
}

/* ---------------------------------------------------------------------------- finishing ---- */

typedef struct step {
    const ts_graph *graph;
    uint32_t node;
} step;

static void set_last_use(void *ctx, int arg, ts_id id)
{
    const step *s = ctx;
    (void)arg;
    ts_graph_value_at(s->graph, id)->last = s->node + 1;
}

void ts_graph_finish(ts_graph *g)
{
    for (uint32_t i = 0; i < g->nodes.count; i++) {
        ts_graph_node *n = ts_graph_node_at(g, i);
        if (n->kind == TS_NODE_REGION)
            continue;
        ts_graph_each_arg(g, n, set_last_use, &(step){g, i});
        for (int k = 0; k < n->nrets; k++)
            if (n->rets[k])
                ts_graph_value_at(g, n->rets[k])->last = i + 1;
        uint32_t wide = 0;
        const ts_graph_arg *args = ts_graph_args_of(g, n);
        for (int k = 0; k < n->nargs; k++)
            wide += args[k].tag == TS_TAG_TENSORS ? args[k].count : 0;
        g->widest = wide > g->widest ? wide : g->widest;
    }
    for (uint32_t i = 0; i < g->outputs.count; i++)
        if (ts_graph_id_at(&g->outputs, i))
            ts_graph_value_at(g, ts_graph_id_at(&g->outputs, i))->last = UINT32_MAX;
}

void ts_graph_free(ts_graph *g)
{
    if (!g)
        return;
    ts_thread_self();
    for (uint32_t i = 0; i < g->captures.count; i++)
        ts_tensor_unref(((ts_tensor **)g->captures.data)[i]);
    ts_array_free(&g->nodes, sizeof(ts_graph_node));
    ts_array_free(&g->values, sizeof(ts_graph_value));
    ts_array_free(&g->args, sizeof(ts_graph_arg));
    ts_array_free(&g->ints, sizeof(int64_t));
    ts_array_free(&g->text, 1);
    ts_array_free(&g->storages, sizeof(ts_graph_storage));
    ts_array_free(&g->inputs, sizeof(ts_id));
    ts_array_free(&g->outputs, sizeof(ts_id));
    ts_array_free(&g->captures, sizeof(ts_tensor *));
    ts_free(&ts_tls, g, sizeof *g);
}

ts_graph_info ts_graph_get_info(const ts_graph *g)
{
    ts_graph_info info = {.reason = ""};
    if (!g)
        return info;
    info = (ts_graph_info){.inputs = g->inputs.count,
                           .outputs = g->outputs.count,
                           .captures = g->captures.count - g->constants,
                           .constants = g->constants,
                           .tensors = g->values.count,
                           .complete = !g->reason,
                           .reason = g->reason ? g->reason : ""};
    for (uint32_t i = 0; i < g->nodes.count; i++) {
        const ts_graph_node *n = ts_graph_node_at(g, i);
        info.calls += n->kind == TS_NODE_CALL;
        info.regions += n->kind == TS_NODE_REGION;
        info.casts += n->kind == TS_NODE_CALL && (n->flags & TS_NODE_AUTOCAST);
    }
    info.bytes = (int64_t)(sizeof *g + g->nodes.capacity * sizeof(ts_graph_node) +
                           g->values.capacity * sizeof(ts_graph_value) +
                           g->args.capacity * sizeof(ts_graph_arg) +
                           g->ints.capacity * sizeof(int64_t) + g->text.capacity +
                           g->storages.capacity * sizeof(ts_graph_storage) +
                           (g->inputs.capacity + g->outputs.capacity + g->captures.capacity) *
                               sizeof(ts_id));
    return info;
}

int64_t ts_graph_count(const ts_graph *graph, const char *op)
{
    const ts_graph *g = graph;
    if (TS_CHECK_OBJECTS(graph) != TS_OK || TS_CHECK_POINTERS(op) != TS_OK)
        return -1;
    int number = ts_op_by_name(op);
    if (number < 0) {
        ts_fail_unknown_op("graph_count", op);
        return -1;
    }
    int64_t count = 0;
    for (uint32_t i = 0; i < g->nodes.count; i++)
        count += ts_graph_node_at(g, i)->op == number;
    return count;
}
