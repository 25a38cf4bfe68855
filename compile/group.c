/**
 * @file group.c  Fused groups: which calls join one, and how a group runs on its device.
 *
 * The CPU runs groups by tiles (tile.c). Another device gets the calls of a group as prepared
 * frames and runs them as one kernel; if it refuses the group, the calls run one by one.
 */
// SPDX-License-Identifier: MIT
#include "compile/capture.h"
#include "compile/testing.h"
#include "dispatch/device_times.h"
#include "dispatch/entries.h"
#include "ops/ops.h"

#include <stdio.h>
#include <string.h>

void ts_group_header(const ts_graph *g, const ts_graph_value *v, ts_tensor *t)
{
    static ts_storage nowhere = {.refs = 1};
    const int64_t *sizes = ts_graph_ints_at(g, v->ints);
    ts_tensor_init(t);
    t->keys = TS_KEYSET(v->device.backend);
    t->storage = &nowhere;
    t->data = (char *)&nowhere;
    t->kind = ts_kind_of((ts_dtype)v->dtype, v->ndim, v->device);
    t->numel = 1;
    for (int d = 0; d < v->ndim; d++) {
        t->numel *= t->sizes[d] = sizes[d];
        t->strides[d] = sizes[v->ndim + d];
    }
    t->flags = ts_strides_contiguous(t->sizes, t->strides, t->ndim) ? TS_TENSOR_CONTIGUOUS : 0;
}

bool ts_group_plans(const ts_frame *f, const ts_tensor *t)
{
    const ts_plan *p = f->plan;
    uint16_t takes = f->table->accepts[f->key].dtypes;
    for (int i = 0; i < f->nargs && f->key == TS_KEY_CPU; i++)
        if ((p->cast >> i & 1) && f->args[i].tag == TS_TAG_TENSOR &&
            f->args[i].t->dtype != p->compute)
            return false; /* kernels on tiles do not cast */
    /* a division of integers by zero is the error of the whole call; floats have none */
    bool fails = f->table->info->flags & TS_OP_CHECKED && !ts_dtype_is_float((ts_dtype)p->compute);
    return p->pointwise && (takes >> p->compute & 1) && p->ret[0].dtype == t->dtype &&
           (!p->converts || (takes >> t->dtype & 1)) && !fails;
}

ts_frame ts_group_frame(const ts_graph_node *n, ts_device device, ts_thread *thread)
{
    return (ts_frame){
        .table = atomic_load_explicit(&ts_tables[n->op], memory_order_acquire),
        .thread = thread, .op = n->op, .nargs = n->nargs, .nrets = n->nrets, .want = n->want,
        .keys = TS_KEYSET(device.backend), .key = device.backend};
}

/** True if the device can run groups that contain this op. *backend: the device's backend; NULL for
 *  the CPU. */
static bool can_group(const ts_graph_node *n, ts_device device, const ts_backend **backend)
{
    const ts_op_table *t = atomic_load_explicit(&ts_tables[n->op], memory_order_acquire);
    *backend = NULL;
    if (device.backend == TS_KEY_CPU)
        return !(n->flags & TS_NODE_RANDOM) && t->slot[TS_KEY_CPU] == ts_enter_fill;
    *backend = ts_backend_of(device);
    return *backend && (*backend)->group_takes && t->slot[device.backend] == ts_enter_device &&
           t->info->kind == TS_FILL;
}

/** The innermost dim in memory of a pointwise call, + 1: the dim of the result with the smallest
 *  stride. 0 if an argument has another: a tile of it would be scattered over memory, while the
 *  eager kernel reads it in blocks. */
static uint8_t inner_of(const ts_frame *f)
{
    const ts_tensor *t = f->rets[0].t;
    int inner = t->ndim - 1;
    for (int d = inner; d >= 0; d--)
        if (t->sizes[d] > 1 && (t->sizes[inner] == 1 || t->strides[d] < t->strides[inner]))
            inner = d;
    for (int i = 0; i < f->nargs; i++) {
        if (f->args[i].tag != TS_TAG_TENSOR)
            continue;
        const ts_tensor *a = f->args[i].t;
        int at = inner - (t->ndim - a->ndim);
        if (at < 0 || a->sizes[at] == 1)
            continue;
        for (int d = 0; d < a->ndim; d++)
            if (a->sizes[d] > 1 && a->strides[d] && a->strides[d] < a->strides[at])
                return 0;
    }
    return (uint8_t)(inner < 0 ? 1 : inner + 1);
}

/** True if the op reduces dims (plan->reduced) by a fold whose state is one number. */
static bool is_fold(uint16_t op)
{
    return op == TS_OP_sum || op == TS_OP_sum_to_size || op == TS_OP_mean || op == TS_OP_prod ||
           op == TS_OP_amax || op == TS_OP_amin || op == TS_OP_norm;
}

/** True if a device reduces in the order of its eager kernel, though the rule has set plan->rows:
 *  it has no call by rows for the op, dtype and dims. */
static bool is_no_row_call(const ts_frame *f)
{
    bool sum = f->op == TS_OP_sum || f->op == TS_OP_sum_to_size,
         other = f->op == TS_OP_mean || f->op == TS_OP_amax || f->op == TS_OP_amin;
    return is_fold(f->op) && (f->plan->compute == TS_F64 ||
                              !(sum || (other && !(f->plan->rows & TS_ROWS_SUMMED))));
}

/** ts_group_takes() for a call whose shape rule has run, without asking the backend. Clears
 *  f->plan->rows if the device computes the call as a fold. */
static ts_group_part part_of(const ts_frame *f)
{
    if (f->plan->rows || (is_fold(f->op) && f->key != TS_KEY_CPU)) {
        ts_group_part part = {0};
        if (f->plan->rows && (f->key == TS_KEY_CPU || !is_no_row_call(f)))
            part = ts_rows_part(f);
        if (!part.takes && is_fold(f->op) && f->key != TS_KEY_CPU) {
            part = ts_fold_part(f);
            f->plan->rows = 0;
        }
        return part;
    }
    if (f->table->accepts[f->key].takes & TS_TAKES_PIECES)
        return ts_whole_part(f);
    bool alone = f->nrets == 1 && ts_group_plans(f, f->rets[0].t);
    bool strides = f->key == TS_KEY_CPU || (f->table->accepts[f->key].takes & TS_TAKES_STRIDES);
    uint8_t inner = alone && f->key == TS_KEY_CPU ? inner_of(f) : 0;
    return (ts_group_part){.takes = alone && strides && (inner || f->key != TS_KEY_CPU),
                           .inner = inner};
}

ts_group_part ts_group_takes(const ts_graph *g, const ts_graph_node *n, const uint64_t *numbers)
{
    const ts_graph_arg *a = ts_graph_args_of(g, n);
    const ts_backend *backend;
    ts_value args[TS_MAX_ARGS], rets[TS_MAX_RETS];
    ts_tensor tensors[TS_MAX_ARGS], results[TS_MAX_RETS];
    ts_group_part none = {0}, part = none;
    if (!n->nrets || n->nrets > TS_MAX_RETS || !n->rets[0])
        return none;
    ts_group_header(g, ts_graph_value_at(g, n->rets[0]), &results[0]);
    ts_frame f = ts_group_frame(n, results[0].device, ts_thread_self());
    if (!results[0].numel || f.table->written || (f.table->info->flags & TS_OP_RUNTIME) ||
        !f.table->infer)
        return none;
    bool can = can_group(n, results[0].device, &backend);
    for (int i = 0; i < n->nrets; i++) {
        rets[i] = n->rets[i] ? ts_value_tensor(&results[i]) : ts_value_none();
        if (n->rets[i])
            ts_group_header(g, ts_graph_value_at(g, n->rets[i]), &results[i]);
    }
    ts_run r = {.exec = &(ts_exec){.graph = (ts_graph *)g}, .numbers = numbers};
    for (int i = 0; i < n->nargs; i++) {
        if (a[i].tag == TS_TAG_TENSORS)
            return none;
        if (!backend && a[i].tag == TS_TAG_INT && a[i].role == TS_ROLE_VALUE)
            can = false; /* a random op needs indices of elements in the tensor, not in a tile */
        if (a[i].tag != TS_TAG_TENSOR)
            continue;
        ts_group_header(g, ts_graph_value_at(g, a[i].id), &tensors[i]);
        if (!ts_same_device(tensors[i].device, results[0].device))
            return none;
    }
    ts_run_unbox(&r, n, args);
    for (int i = 0; i < n->nargs; i++)
        if (a[i].tag == TS_TAG_TENSOR)
            args[i].t = &tensors[i];
    ts_plan plan;
    f.args = args;
    f.rets = rets;
    ts_plan_open(&f, &plan);
    plan.rows = 0;
    ts_error before = *f.thread->error;
    if (f.table->infer(&f) == TS_OK && !(plan.rows && n->given)) {
        bool cheap = plan.pointwise || plan.rows;
        if (can && !(backend && is_fold(n->op) && n->given))
            part = part_of(&f);
        part.cheap = cheap;
    }
    if (part.takes && backend) {
        if (plan.pointwise)
            ts_fill_space(&f);
        part.takes = (!backend->supports || backend->supports(backend->state, &f)) &&
                     backend->group_takes(backend->state, &f, f.table->impl[f.key]);
    }
    *f.thread->error = before;
    return part;
}

/* ---------------------------------------------------------------------------- on a device ---- */

/** A call of a group on a device. */
typedef struct device_call {
    ts_frame f;
    ts_plan plan;
    ts_value args[TS_MAX_ARGS], rets[TS_MAX_RETS];
} device_call;

/** Finds or adds the tensor header of a value, which the calls of the group share. headers,
 *  numbers: the headers so far and the indices of their values; *count of each. */
static ts_tensor *header_in(const ts_run *r, ts_id id, ts_tensor *headers, uint32_t *numbers,
                            uint32_t *count)
{
    uint32_t number = ts_id_index(id), i = 0;
    while (i < *count && numbers[i] != number)
        i++;
    if (i == *count) {
        const ts_tensor *there = r->registers[number];
        ts_group_header(r->exec->graph, ts_graph_value_at(r->exec->graph, id), &headers[i]);
        headers[i].data = there ? there->data : NULL;
        headers[i].storage = there ? there->storage : headers[i].storage;
        numbers[(*count)++] = number;
    }
    return &headers[i];
}

/** Prepares call k of step s in *c: boxes arguments, runs the shape rule, checks the kernel. */
static ts_status ready(const ts_run *r, const ts_step *s, uint32_t k, device_call *c,
                       ts_tensor *headers, uint32_t *numbers, uint32_t *count)
{
    uint32_t node = r->exec->order[s->first + k];
    const ts_graph *g = r->exec->graph;
    const ts_graph_node *n = ts_graph_node_at(g, node);
    const ts_graph_arg *a = ts_graph_args_of(g, n);
    ts_run_unbox(r, n, c->args);
    for (int i = 0; i < n->nargs; i++)
        if (a[i].tag == TS_TAG_TENSOR)
            c->args[i].t = header_in(r, a[i].id, headers, numbers, count);
    for (int i = 0; i < n->nrets; i++)
        c->rets[i] = n->rets[i]
                         ? ts_value_tensor(header_in(r, n->rets[i], headers, numbers, count))
                         : ts_value_none();
    c->f = ts_group_frame(n, s->device, r->thread);
    c->f.site = ts_run_site(r, node);
    c->f.args = c->args;
    c->f.rets = c->rets;
    if (n->flags & TS_NODE_RANDOM)
        c->f.rng = (ts_rng_state){r->numbers[n->rng.offset], r->numbers[n->rng.offset + 1]};
    ts_plan_open(&c->f, &c->plan);
    c->plan.rows = 0;
    TS_TRY(c->f.table->infer(&c->f));
    /* the backend checks the kernels of a product and its epilogue */
    if (!c->f.table->impl[c->f.key] || !(s->product || part_of(&c->f).takes))
        return ts_error_set(TS_ERR_UNSUPPORTED, "%s has another kernel than when it was planned",
                            ts_op_name(n->op));
    if (c->plan.pointwise)
        ts_fill_space(&c->f);
    return TS_OK;
}

/** Runs a group, or a step with members, on its device as one kernel. TS_ERR_UNSUPPORTED if the
 *  device or a changed kernel does not allow it. */
static ts_status run_as_kernel(const ts_run *r, const ts_step *s, ts_group_report *report)
{
    size_t n = s->count, most = n * TS_GROUP_TENSORS;
    size_t bytes = n * (sizeof(device_call) + sizeof(ts_group_call)) +
                   most * (sizeof(ts_tensor) + sizeof(uint32_t));
    char *block = ts_alloc(r->thread, bytes);
    if (!block)
        return ts_error_memory("a fused group", (int64_t)bytes);
    device_call *calls = (device_call *)block;
    ts_group_call *group = (ts_group_call *)(calls + n);
    ts_tensor *headers = (ts_tensor *)(group + n);
    uint32_t *numbers = (uint32_t *)(headers + most), count = 0;
    uint32_t each = s->members ? s->count / s->members : s->count; /* members share no header */
    ts_status status = TS_OK;
    for (uint32_t k = 0; k < n && status == TS_OK; k++) {
        if (k % each == 0) {
            headers += count;
            count = 0;
        }
        status = ready(r, s, k, &calls[k], headers, numbers, &count);
        group[k] = (ts_group_call){&calls[k].f, calls[k].f.table->impl[calls[k].f.key]};
    }
    if (status == TS_OK) {
        const ts_backend *b = ts_backend_of(s->device);
        if (r->workspace)
            r->workspace->used = 0;
        r->thread->workspace = r->workspace;
        ts_device_times_scope(r->thread, "compiled");
        ts_stream *stream = ts_stream_current(s->device);
        void *timed = ts_timer_group_enter(r->thread, group, (int)n);
        status = s->members ? b->group_run_members(b->state, s->device.index, group, (int)each,
                                                   (int)s->members, stream, report)
                            : b->group_run(b->state, s->device.index, group, (int)n, stream,
                                           report);
        ts_timer_group_leave(r->thread, timed);
        ts_device_times_scope(r->thread, NULL);
        r->thread->workspace = NULL;
    }
    ts_free(r->thread, block, bytes);
    return status;
}

/** Upper bound of the number of tensors in a node's arguments and results. */
static size_t tensors_of(const ts_graph *g, const ts_graph_node *n)
{
    size_t count = n->nrets;
    for (int i = 0; i < n->nargs; i++)
        count += ts_graph_args_of(g, n)[i].tag == TS_TAG_TENSORS ? ts_graph_args_of(g, n)[i].count
                                                                 : 1;
    return count;
}

/** Boxes a node's call with headers in place of all tensors, to compute its work. The headers'
 *  addresses are never read: equal addresses stand for the same memory, NULL for a value that has
 *  no memory because only its step uses it. */
static void box_shapes(const ts_run *r, const ts_graph_node *n, device_call *c, ts_tensor *headers,
                       uint32_t *numbers, uint32_t *count)
{
    const ts_graph *g = r->exec->graph;
    const ts_graph_arg *a = ts_graph_args_of(g, n);
    ts_run_unbox(r, n, c->args);
    for (int i = 0; i < n->nargs; i++) {
        if (a[i].tag == TS_TAG_TENSOR)
            c->args[i].t = header_in(r, a[i].id, headers, numbers, count);
        for (uint32_t k = 0; a[i].tag == TS_TAG_TENSORS && k < a[i].count; k++)
            ((ts_tensor **)c->args[i].list)[k] =
                header_in(r, (ts_id)ts_graph_ints_at(g, a[i].at)[k], headers, numbers, count);
    }
    for (int i = 0; i < n->nrets && i < TS_MAX_RETS; i++)
        c->rets[i] = n->rets[i]
                         ? ts_value_tensor(header_in(r, n->rets[i], headers, numbers, count))
                         : ts_value_none();
    for (uint32_t i = 0; i < *count; i++) {
        const ts_graph_value *v = (const ts_graph_value *)g->values.data + numbers[i];
        uintptr_t address = ((uintptr_t)v->storage + 1) << 32;
        headers[i].data = r->exec->storages[v->storage].inside ? NULL : (char *)address + v->offset;
    }
}

ts_status ts_group_profile(const ts_run *r, const ts_step *s, ts_graph_part *part)
{
    const ts_graph *g = r->exec->graph;
    size_t n = s->fused ? s->count : 1, most = 0;
    for (size_t k = 0; k < n; k++)
        most += tensors_of(g, ts_graph_node_at(g, r->exec->order[s->first + k]));
    size_t bytes = n * (sizeof(device_call) + sizeof(ts_group_call)) +
                   (most + 1) * (sizeof(ts_tensor) + sizeof(uint32_t));
    char *block = ts_alloc(r->thread, bytes);
    if (!block)
        return ts_error_memory("a profile's row", (int64_t)bytes);
    device_call *calls = (device_call *)block;
    ts_group_call *group = (ts_group_call *)(calls + n);
    ts_tensor *headers = (ts_tensor *)(group + n);
    uint32_t *numbers = (uint32_t *)(headers + most), count = 0;
    for (size_t k = 0; k < n; k++) {
        const ts_graph_node *node = ts_graph_node_at(g, r->exec->order[s->first + k]);
        ts_device device = s->device;
        box_shapes(r, node, &calls[k], headers, numbers, &count);
        for (uint32_t i = 0; i < count && !s->fused; i++)
            if (headers[i].device.backend != TS_KEY_CPU)
                device = headers[i].device;
        calls[k].f = ts_group_frame(node, device, r->thread);
        calls[k].f.args = calls[k].args;
        calls[k].f.rets = calls[k].rets;
        group[k] = (ts_group_call){&calls[k].f, NULL};
    }
    ts_status status = ts_graph_row(r->thread, group, (int)n, s->fused, part);
    ts_free(r->thread, block, bytes);
    return status;
}

/** Runs the calls of a group one by one, with temporary memory for values inside the group. */
static ts_status run_one_by_one(const ts_run *r, const ts_step *s)
{
    const ts_exec *e = r->exec;
    uint32_t opened = s == e->steps ? 0 : s[-1].opens;
    for (; opened < s->opens; opened++)
        TS_TRY(ts_exec_open_inside(r, e->opens[opened]));
    for (uint32_t k = 0; k < s->count; k++)
        TS_TRY(ts_exec_call(r, e->order[s->first + k]));
    return TS_OK;
}

/** False if a program has replaced the kernel of a reduction of all elements by one that does not
 *  compute pieces. */
static bool has_pieces(const ts_run *r, const ts_step *s)
{
    const ts_graph *g = r->exec->graph;
    for (uint32_t k = 0; k < s->count; k++) {
        const ts_graph_node *n = ts_graph_node_at(g, r->exec->order[s->first + k]);
        const ts_graph_value *v = ts_graph_value_at(g, n->rets[0]);
        bool whole = v->ndim != s->ndim ||
                     !ts_same_sizes(ts_graph_ints_at(g, v->ints), s->sizes, s->ndim);
        if (whole && !(atomic_load(&ts_tables[n->op])->accepts[TS_KEY_CPU].takes & TS_TAKES_PIECES))
            return false;
    }
    return true;
}

/** True if runs of `run` elements of value v continue along dim d of the group's space. v may have
 *  fewer dims than the space. */
static bool continues(const ts_graph *g, const ts_graph_value *v, const ts_step *s, int d,
                      int64_t run)
{
    int own = d - (s->ndim - v->ndim);
    const int64_t *sizes = ts_graph_ints_at(g, v->ints);
    bool same = true; /* the dims further in are one element */
    if (own >= 0 && sizes[own] > 1)
        return sizes[v->ndim + own] == run;
    for (int k = own < 0 ? 0 : own; k < v->ndim; k++)
        same &= sizes[k] == 1 || !sizes[v->ndim + k];
    return same || s->sizes[d] == 1;
}

bool ts_group_is_narrow(const ts_exec *e, const ts_step *s)
{
    enum { ELEMENTS = 1 << 20 };
    const ts_graph *g = e->graph;
    int64_t run = 1;
    if (s->rows || s->members || s->numel > ELEMENTS)
        return false;
    for (int d = s->ndim - 1; d >= 0; d--) {
        for (uint32_t k = s->first; k < s->first + s->count; k++) {
            const ts_graph_node *n = ts_graph_node_at(g, e->order[k]);
            const ts_graph_arg *a = ts_graph_args_of(g, n);
            for (int i = 0; i < n->nargs; i++)
                if (a[i].tag == TS_TAG_TENSOR &&
                    !continues(g, ts_graph_value_at(g, a[i].id), s, d, run))
                    return run * s->count < TS_RUN_WORK;
            if (!continues(g, ts_graph_value_at(g, n->rets[0]), s, d, run))
                return run * s->count < TS_RUN_WORK;
        }
        run *= s->sizes[d];
    }
    return false;
}

int64_t ts_tile_elements;

/** Runs a group on the CPU in tiles, in a profile as a call of its row. */
static ts_status run_in_tiles(const ts_run *r, const ts_step *s)
{
    ts_graph_part part = {0};
    void *before = ts_timer_own(r->thread);
    if (before && ts_group_profile(r, s, &part) != TS_OK)
        ts_error_clear(); /* the time then belongs to the row around it */
    ts_timer_part_enter(r->thread, before, &part);
    ts_status status = ts_tile_run(r, s);
    ts_timer_group_leave(r->thread, before);
    return status;
}

ts_status ts_group_run(const ts_run *r, const ts_step *s)
{
    if (s->device.backend == TS_KEY_CPU)
        return s->narrow || (ts_is_whole(s) && !has_pieces(r, s)) ? run_one_by_one(r, s)
                                                                  : run_in_tiles(r, s);
    ts_group_kernel *k = &r->exec->kernels[s - r->exec->steps];
    ts_group_report report = {0};
    ts_error before = *r->thread->error;
    ts_status status = run_as_kernel(r, s, &report);
    if (status == TS_OK && (atomic_load(&k->stage) != TS_KERNEL_READY || report.compile_ms > 0))
        ts_compiled_kernel(r->compiled, k, &report);
    if (status != TS_ERR_UNSUPPORTED)
        return status;
    if (atomic_load(&k->stage) != TS_KERNEL_REFUSED)
        ts_compiled_refused(r->compiled, k, ts_error_message());
    *r->thread->error = before;
    return run_one_by_one(r, s);
}
