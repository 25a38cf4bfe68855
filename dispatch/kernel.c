/** @file kernel.c  The public view of frame and plan for kernels outside the library. */
// SPDX-License-Identifier: MIT
#include "include/tessera/kernel.h"
#include "core/device.h"
#include "dispatch/entries.h"

_Static_assert(TS_KERNEL_OPERANDS == TS_MAX_OPERANDS, "the public form holds every operand");

/* -------------------------------------------------------------------------- in a kernel ---- */

ts_dtype ts_kernel_dtype(const ts_frame *f)
{
    return TS_CHECK_LENT(f, "frame") == TS_OK && f->plan ? f->plan->compute : TS_DTYPE_NONE;
}

ts_device ts_kernel_device(const ts_frame *f)
{
    if (TS_CHECK_LENT(f, "frame") != TS_OK)
        return TS_DEVICE_CPU;
    for (int i = 0; i < f->nrets; i++)
        if (f->rets[i].tag == TS_TAG_TENSOR && f->rets[i].t->device.backend == f->key)
            return f->rets[i].t->device;
    for (int i = 0; i < f->nargs; i++)
        if (f->args[i].tag == TS_TAG_DEVICE && f->args[i].device.backend == f->key)
            return f->args[i].device;
    for (int i = 0; i < f->nargs; i++) {
        uint32_t n;
        ts_tensor *const *t = ts_value_members(&f->args[i], &n);
        for (uint32_t k = 0; k < n; k++)
            if (!ts_is_none(t[k]) && t[k]->device.backend == f->key)
                return t[k]->device;
    }
    return (ts_device){f->key, 0};
}

ts_stream *ts_kernel_stream(const ts_frame *f)
{
    TS_TRY_NULL(TS_CHECK_LENT(f, "frame"));
    return ts_stream_current(ts_kernel_device(f));
}
void *ts_kernel_data(const ts_tensor *t) { return t && t->numel ? t->data : NULL; }

ts_status ts_kernel_space(const ts_frame *f, ts_space *space)
{
    TS_TRY(TS_CHECK_LENT(f, "frame"));
    if (!space)
        return ts_fail_op(TS_ERR_NULL, ts_op_name(f->op), f->site, NULL,
                          "kernel_space: argument 'space': expected an address, got NULL");
    const ts_plan *plan = f->plan;
    if (!plan || !plan->pointwise)
        return ts_fail_op(TS_ERR_STATE, ts_op_name(f->op), f->site, NULL,
                          "kernel_space: expected a call of a pointwise op");
    const ts_iter *it = &plan->iter;
    const ts_value *v = &f->rets[0];
    const int ndim = it->ndim, operands = it->operands;
    const uint32_t which = plan->operands;
    const bool may_be_host = f->key != TS_KEY_CPU;
    const bool wide = plan->pointwise == TS_POINTWISE &&
                      ts_dtype_is_half(plan->compute);
    space->ndim = ndim;
    space->numel = it->numel;
    for (int d = 0; d < ndim; d++)
        space->sizes[d] = it->sizes[d];
    for (int k = 0, arg = -1;;) {
        ts_operand *o = &space->operand[k];
        o->data = it->data[k];
        for (int d = 0; d < ndim; d++)
            o->strides[d] = it->strides[d][k];
        o->arg = (int8_t)arg;
        o->wide = false;
        if (TS_LIKELY(v->tag == TS_TAG_TENSOR)) {
            o->dtype = (ts_dtype)v->t->dtype;
            o->host = may_be_host && v->t->device.backend == TS_KEY_CPU;
        } else {
            o->dtype = plan->compute;
            o->host = true;
            o->wide = wide;
        }
        if (++k == operands)
            break;
        do
            v = &f->args[++arg];
        while (!(which >> arg & 1) || v->tag == TS_TAG_NONE);
    }
    /* stored late: one load of ndim and operands would stall on two recent stores */
    space->operands = operands;
    return TS_OK;
}

double ts_operand_number(const ts_operand *o)
{
    if (TS_CHECK_LENT(o, "operand") != TS_OK)
        return 0;
    if (!o->host || !o->data) {
        ts_error_set(TS_ERR_VALUE, "operand_number: argument 'operand': expected a number in host "
                                   "memory, got %s",
                     o->data ? "an operand of the device" : "an operand without elements");
        return 0;
    }
    ts_value v = ts_scalar_load(o->data, o->dtype);
    return ts_value_number(&v);
}

ts_rows ts_kernel_rows(const ts_frame *f)
{
    const ts_plan *p = TS_CHECK_LENT(f, "frame") == TS_OK ? f->plan : NULL;
    return p ? (ts_rows){p->outer, p->count, p->inner} : (ts_rows){0, 0, 0};
}

int64_t ts_kernel_dim(const ts_frame *f)
{
    return TS_CHECK_LENT(f, "frame") == TS_OK && f->plan ? f->plan->dim : 0;
}

int ts_kernel_row_dims(const ts_frame *f, bool *summed)
{
    const ts_plan *p = TS_CHECK_LENT(f, "frame") == TS_OK ? f->plan : NULL;
    int rows = p && !p->pointwise ? p->rows : 0;
    if (summed)
        *summed = rows & TS_ROWS_SUMMED;
    return rows & ~TS_ROWS_SUMMED;
}

int64_t ts_kernel_reduced(const ts_frame *f)
{
    return TS_CHECK_LENT(f, "frame") == TS_OK && f->plan ? f->plan->reduced : 0;
}

ts_slice_range ts_kernel_slice(const ts_frame *f)
{
    const ts_plan *p = TS_CHECK_LENT(f, "frame") == TS_OK ? f->plan : NULL;
    return p ? (ts_slice_range){p->dim, p->start, p->step} : (ts_slice_range){0, 0, 1};
}

ts_status ts_check_result(const ts_frame *f, const char *function, int i, const int64_t *sizes,
                          int ndim, ts_dtype dtype)
{
    const char *op = ts_op_name(f->op);
    if (i < 0 || i >= f->nrets)
        return ts_fail_op(TS_ERR_VALUE, op, f->site, NULL,
                          "%s: argument 'i': expected a result number below %d, got %d",
                          function, f->nrets, i);
    if (ndim < 0 || ndim > TS_MAX_DIMS)
        return ts_fail_op(TS_ERR_VALUE, op, f->site, NULL,
                          "%s: argument 'ndim': expected 0 to %d sizes, got %d", function,
                          TS_MAX_DIMS, ndim);
    if (ndim && !sizes)
        return ts_fail_op(TS_ERR_NULL, op, f->site, NULL,
                          "%s: argument 'sizes': expected a list of numbers, got NULL", function);
    if ((unsigned)dtype >= TS_DTYPE_COUNT)
        return ts_fail_op(TS_ERR_DTYPE, op, f->site, NULL,
                          "%s: argument 'dtype': expected a dtype, got number %d", function,
                          (int)dtype);
    return TS_OK;
}

ts_status ts_kernel_result(ts_frame *f, int i, const int64_t *sizes, int ndim, ts_dtype dtype)
{
    TS_TRY(TS_CHECK_LENT(f, "frame"));
    TS_TRY(ts_check_result(f, "kernel_result", i, sizes, ndim, dtype));
    if (f->rets[i].tag == TS_TAG_TENSOR) {
        const ts_tensor *t = f->rets[i].t;
        bool fits = t->ndim == ndim && t->dtype == dtype && ts_same_sizes(t->sizes, sizes, ndim);
        return fits ? TS_OK
                    : ts_fail_op(TS_ERR_SHAPE, ts_op_name(f->op), f->site, NULL,
                                 "kernel_result: result %d: expected %s %s, got a destination of "
                                 "%s %s", i, TS_LIST_TEXT(sizes, ndim), ts_dtype_name(dtype),
                                 TS_SIZES_TEXT(t), ts_dtype_name(t->dtype));
    }
    if (!(f->want >> i & 1))
        return TS_OK;
    ts_tensor *t = ts_tensor_new(f->thread, dtype, sizes, ndim, ts_kernel_device(f));
    if (!t)
        return ts_fail_within(ts_op_name(f->op), f->site);
    f->rets[i] = ts_value_tensor(t);
    return TS_OK;
}

bool ts_is_argument(const ts_frame *f, const ts_tensor *t)
{
    bool found = false;
    for (int a = 0; a < f->nargs; a++) {
        uint32_t n;
        ts_tensor *const *members = ts_value_members(&f->args[a], &n);
        for (uint32_t k = 0; k < n; k++)
            found |= members[k] == t;
    }
    return found;
}

ts_status ts_kernel_give(ts_frame *f, int i, ts_tensor *t)
{
    TS_TRY(TS_CHECK_LENT(f, "frame"));
    if (!t)
        return ts_fail_null(ts_op_name(f->op), f->site, "t");
    TS_TRY(ts_check_result(f, "kernel_give", i, NULL, 0, TS_F32));
    if (ts_is_none(t))
        return ts_fail_op(TS_ERR_VALUE, ts_op_name(f->op), f->site, NULL,
                          "kernel_give: argument 't': expected a tensor, got TS_NONE");
    if (!(f->want >> i & 1))
        return TS_OK;
    ts_tensor *owned = ts_is_argument(f, t) /* the caller owns arguments; the result is an alias */
                           ? ts_tensor_alias(f->thread, t, t->sizes, t->strides, t->ndim, 0)
                           : ts_scope_disown(t);
    TS_TRY(owned);
    f->rets[i] = ts_value_tensor(owned);
    return TS_OK;
}

void *ts_scratch_take(ts_device device, int64_t bytes)
{
    if (bytes <= 0) {
        ts_error_set(TS_ERR_VALUE, "scratch_take: argument 'bytes': expected more than 0, got %lld",
                     (long long)bytes);
        return NULL;
    }
    if (device.backend != TS_KEY_CPU && !ts_backend_of(device)) {
        ts_error_set(TS_ERR_DEVICE,
                     "scratch_take: argument 'device': expected the CPU or a device with a loaded "
                     "backend, got %s", ts_device_name(device));
        return NULL;
    }
    if (device.backend != TS_KEY_CPU)
        return ts_device_allocate(device, bytes, "scratch");
    void *data = ts_alloc(ts_thread_self(), (size_t)bytes);
    if (!data)
        ts_error_memory("scratch", bytes);
    return data;
}

void ts_scratch_give(ts_device device, void *data, int64_t bytes)
{
    if (data && device.backend == TS_KEY_CPU)
        ts_free(&ts_tls, data, (size_t)bytes);
    else if (data)
        ts_device_release(device, data, bytes);
}

ts_status ts_infer_declared(ts_frame *f)
{
    ts_plan *plan = f->plan;
    for (int i = 0; i < f->nrets; i++)
        plan->ret[i].sizes = NULL;
    TS_TRY(f->table->info->rule(f));
    for (int i = 0; i < f->nrets; i++)
        if (!plan->ret[i].sizes)
            return ts_fail_op(TS_ERR_INTERNAL, ts_op_name(f->op), f->site,
                              "a rule declares each result with ts_rule_result()",
                              "the shape rule returned TS_OK without a result; result %d is not "
                              "declared", i);
    if ((unsigned)plan->compute >= TS_DTYPE_COUNT)
        return ts_fail_op(TS_ERR_DTYPE, ts_op_name(f->op), f->site, NULL,
                          "rule_compute: argument 'dtype': expected a dtype, got number %d",
                          (int)plan->compute);
    return TS_OK;
}

ts_status ts_check_rule(const ts_frame *f, const char *function)
{
    return f->plan ? TS_OK
                   : ts_fail_op(TS_ERR_STATE, ts_op_name(f->op), f->site,
                                "pass the rule as ts_op_opts.rule",
                                "%s: expected a call in the op's shape rule, got one of an op "
                                "without a rule, or in a layer", function);
}

void ts_rule_compute(ts_frame *f, ts_dtype dtype, uint32_t cast)
{
    if (TS_CHECK_LENT(f, "frame") != TS_OK || ts_check_rule(f, "rule_compute") != TS_OK)
        return;
    f->plan->compute = dtype;
    f->plan->cast = (uint16_t)cast;
}

void ts_rule_rows(ts_frame *f, ts_rows rows)
{
    if (TS_CHECK_LENT(f, "frame") != TS_OK || ts_check_rule(f, "rule_rows") != TS_OK)
        return;
    f->plan->outer = rows.outer;
    f->plan->count = rows.count;
    f->plan->inner = rows.inner;
}
