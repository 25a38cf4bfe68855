/**
 * @file widen.c  Replaces f32 copies of bf16 and f16 tensors (halves) in lists of tensors by the
 * halves, for calls that compute in f32 anyway, such as adamw with its list of gradients. If
 * nothing else reads the copies, the casts are dead and the plan drops them.
 *
 * The shape rule of a call sets ts_plan.widens: bit i means that list argument i may have halves,
 * with the same results as for their f32 copies.
 */
// SPDX-License-Identifier: MIT
#include "compile/plan.h"
#include "dispatch/entries.h"
#include "ops/ops.h"

#include <string.h>

/** The cast from a half to f32 that made a value. */
typedef struct widened {
    uint32_t from; /* index of the half, + 1; 0: no such cast made the value */
    uint32_t node; /* the cast */
} widened;

/** The pass over the calls, in their order. */
typedef struct pass {
    ts_graph *graph;
    const uint64_t *numbers;
    widened *values;   /* per value */
    uint32_t *written; /* per storage: the last call so far that writes it, + 1 */
    /* scratch of widened_arguments() */
    ts_tensor *headers;             /* one per tensor argument */
    ts_tensor **registers, **lists; /* ts_run.registers and ts_run.lists */
} pass;

static const ts_graph_value *value_at(const pass *p, uint32_t i)
{
    return (const ts_graph_value *)p->graph->values.data + i;
}

/** If call i is a cast from a half to f32 with the same layout, sets `values` of its result. */
static void note_cast(const pass *p, uint32_t i, const ts_graph_node *n)
{
    const ts_graph_arg *a = ts_graph_args_of(p->graph, n);
    if (n->op != TS_OP_to || n->given || !n->rets[0] || a[0].tag != TS_TAG_TENSOR)
        return;
    uint32_t to = ts_id_index(n->rets[0]), from = ts_id_index(a[0].id);
    const ts_graph_value *v = value_at(p, to), *half = value_at(p, from);
    if (v->dtype == TS_F32 && ts_dtype_is_half((ts_dtype)half->dtype) &&
        ts_same_device(v->device, half->device) && v->ndim == half->ndim &&
        memcmp(ts_graph_ints_at(p->graph, v->ints), ts_graph_ints_at(p->graph, half->ints),
               2 * v->ndim * sizeof(int64_t)) == 0) /* equal sizes and strides */
        p->values[to] = (widened){from + 1, i};
}

/** The value to pass for member `value` of a list: the half, if no call has written the half or its
 *  copy since the cast; else `value`. */
static uint32_t half_of(const pass *p, uint32_t value)
{
    const widened *w = &p->values[value];
    if (!w->from || p->written[value_at(p, value)->storage] != w->node + 1 ||
        p->written[value_at(p, w->from - 1)->storage] > w->node)
        return value;
    return w->from - 1;
}

/** Fills the next header of widened_arguments() for a value, over one of its two storages. */
static ts_tensor *header_for(const pass *p, uint32_t value, uint32_t *headers, ts_storage *storages)
{
    ts_tensor *t = &p->headers[(*headers)++];
    ts_group_header(p->graph, value_at(p, value), t);
    t->storage = &storages[t->device.backend != TS_KEY_CPU];
    t->storage->device = t->device;
    return t;
}

/** Runs the shape rule of a call with halves in its lists. Returns ts_plan.widens, or 0 if the rule
 *  fails. */
static uint16_t widened_arguments(const pass *p, const ts_graph_node *n)
{
    const ts_graph *g = p->graph;
    const ts_graph_arg *a = ts_graph_args_of(g, n);
    ts_value args[TS_MAX_ARGS], rets[TS_MAX_RETS];
    ts_tensor results[TS_MAX_RETS];
    ts_plan plan;
    uint32_t headers = 0;
    ts_storage storages[2] = {{.refs = 1}, {.refs = 1}}; /* on the CPU; on the device */
    ts_device device = TS_DEVICE_CPU;
    for (int i = 0; i < n->nargs; i++) {
        bool list = a[i].tag == TS_TAG_TENSORS;
        for (uint32_t k = 0; k < (list ? a[i].count : a[i].tag == TS_TAG_TENSOR); k++) {
            uint32_t value = ts_id_index(list ? (ts_id)ts_graph_ints_at(g, a[i].at)[k] : a[i].id);
            ts_tensor *t = p->registers[value] = header_for(p, value, &headers, storages);
            if (t->device.backend != TS_KEY_CPU)
                device = t->device;
        }
    }
    ts_run r = {.exec = &(ts_exec){.graph = p->graph}, .numbers = p->numbers,
                .registers = p->registers, .lists = p->lists};
    ts_run_unbox(&r, n, args);
    for (int i = 0; i < n->nargs; i++) /* members only: another argument may be the copy itself */
        for (uint32_t k = 0; a[i].tag == TS_TAG_TENSORS && k < a[i].count; k++) {
            uint32_t value = ts_id_index((ts_id)ts_graph_ints_at(g, a[i].at)[k]),
                     half = half_of(p, value);
            if (half != value)
                ((ts_tensor **)(uintptr_t)args[i].list)[k] =
                    header_for(p, half, &headers, storages);
        }
    for (int i = 0; i < n->nrets; i++) {
        rets[i] = n->rets[i] ? ts_value_tensor(&results[i]) : ts_value_none();
        if (n->rets[i])
            ts_group_header(g, ts_graph_value_at(g, n->rets[i]), &results[i]);
    }
    ts_frame f = ts_group_frame(n, device, ts_thread_self());
    f.args = args;
    f.rets = rets;
    ts_plan_open(&f, &plan);
    plan.widens = 0;
    ts_error before = *f.thread->error;
    ts_status status = f.table->infer(&f);
    *f.thread->error = before;
    return status == TS_OK ? plan.widens : 0;
}

/** Replaces f32 copies by halves in those lists of a call that take halves; returns the number of
 *  replaced members. */
static uint32_t pass_halves(const pass *p, const ts_graph_node *n)
{
    ts_graph *g = p->graph;
    const ts_graph_arg *a = ts_graph_args_of(g, n);
    const ts_op_table *table = atomic_load_explicit(&ts_tables[n->op], memory_order_acquire);
    bool some = false;
    for (int i = 0; i < n->nargs && !some; i++)
        for (uint32_t k = 0; a[i].tag == TS_TAG_TENSORS && k < a[i].count && !some; k++) {
            uint32_t value = ts_id_index((ts_id)ts_graph_ints_at(g, a[i].at)[k]);
            some = half_of(p, value) != value;
        }
    if (!some || n->nrets > TS_MAX_RETS || !table->info->infer ||
        (table->info->flags & TS_OP_RUNTIME))
        return 0;
    uint32_t replaced = 0;
    uint16_t lists = widened_arguments(p, n);
    for (int i = 0; i < n->nargs; i++)
        for (uint32_t k = 0; (lists >> i & 1) && a[i].tag == TS_TAG_TENSORS && k < a[i].count;
             k++) {
            int64_t *id = &ts_graph_ints_at(g, a[i].at)[k];
            uint32_t value = ts_id_index((ts_id)*id), half = half_of(p, value);
            *id = (int64_t)ts_id_make(g, half);
            replaced += half != value;
        }
    return replaced;
}

/** Sets `written` of the storages that call i writes. */
static void note_writes(const pass *p, uint32_t i, const ts_graph_node *n)
{
    const ts_graph *g = p->graph;
    const ts_schema *schema = &ts_ops[n->op].schema;
    const ts_graph_arg *a = ts_graph_args_of(g, n);
    for (int k = 0; k < n->nargs; k++) {
        if (!schema->args[k].written)
            continue;
        if (a[k].tag == TS_TAG_TENSOR)
            p->written[ts_graph_value_at(g, a[k].id)->storage] = i + 1;
        for (uint32_t j = 0; a[k].tag == TS_TAG_TENSORS && j < a[k].count; j++)
            p->written[ts_graph_value_at(g, (ts_id)ts_graph_ints_at(g, a[k].at)[j])->storage] =
                i + 1;
    }
    for (int k = 0; k < n->nrets; k++)
        if (n->rets[k])
            p->written[ts_graph_value_at(g, n->rets[k])->storage] = i + 1;
}

bool ts_plan_widen(ts_exec *e, ts_graph *g, const uint64_t *numbers)
{
    bool some = false, ok = true;
    for (uint32_t i = 0; i < g->nodes.count && !some; i++)
        some = ts_graph_node_at(g, i)->op == TS_OP_to;
    size_t values = g->values.count + 1, most = (size_t)g->widest + TS_MAX_ARGS,
           bytes = most * (2 * sizeof(ts_tensor) + sizeof(ts_tensor *)) +
                   values * (sizeof(ts_tensor *) + sizeof(widened)) +
                   e->nrecorded * sizeof(uint32_t);
    if (!some)
        return true;
    char *block = ts_alloc(ts_thread_self(), bytes);
    if (!block)
        return false;
    memset(block, 0, bytes);
    pass p = {.graph = g, .numbers = numbers, .headers = (ts_tensor *)block};
    p.registers = (ts_tensor **)(p.headers + 2 * most); /* a copy and its half per member */
    p.lists = p.registers + values;
    p.values = (widened *)(p.lists + most);
    p.written = (uint32_t *)(p.values + values);
    for (uint32_t i = 0; i < g->nodes.count && ok; i++) {
        const ts_graph_node *n = ts_graph_node_at(g, i);
        note_writes(&p, i, n);
        uint32_t replaced = pass_halves(&p, n);
        ok = !replaced || ts_array_reserve(&e->widened, 1, sizeof(ts_widened));
        if (replaced && ok)
            *TS_PUSH(e->widened, ts_widened) = (ts_widened){n->end, replaced, n->op};
        note_cast(&p, i, n);
    }
    ts_free(ts_thread_self(), block, bytes);
    return ok;
}
