/** @file infer.c  Shape and dtype rules that all families share. */
// SPDX-License-Identifier: MIT
#include "core/device.h"
#include "ops/ops.h"

#include <string.h>

void ts_plan_result(ts_plan *plan, int i, const int64_t *sizes, int ndim, ts_dtype dtype,
                    ts_device device)
{
    if (ndim)
        memcpy(plan->buffer[i], sizes, (size_t)ndim * sizeof *sizes);
    plan->ret[i] = ts_meta_of(plan->buffer[i], dtype, device, ndim, 0);
}

ts_status ts_compare_devices(ts_frame *f, bool scalars_ok, ts_device *device)
{
    const ts_tensor *first = NULL; /* the tensor that determines the device; a 0-dim CPU tensor,
                                      used as a number, only if there is no other */
    int first_arg = 0;
    bool first_number = false;
    for (int i = 0; i < f->nargs; i++) {
        uint32_t n;
        ts_tensor *const *t = ts_value_members(&f->args[i], &n);
        for (uint32_t k = 0; k < n; k++) {
            if (first && !first_number && ts_same_device(first->device, t[k]->device))
                continue;
            if (ts_is_none(t[k]))
                continue;
            bool number =
                scalars_ok && t[k]->ndim == 0 && t[k]->device.backend == TS_KEY_CPU;
            if (!first || (first_number && !number)) {
                first = t[k];
                first_arg = i;
                first_number = number;
            } else if (!number && !ts_same_device(first->device, t[k]->device)) {
                int64_t member = f->args[i].tag == TS_TAG_TENSORS ? (int64_t)k : -1;
                return ts_fail_member(f, i, member, TS_ERR_DEVICE,
                                      ts_move_hint(t[k]->device, first->device),
                                      "expected device %s as argument '%s', got %s",
                                      ts_device_name(first->device),
                                      f->table->info->schema.args[first_arg].name,
                                      ts_device_name(t[k]->device));
            }
        }
    }
    if (first)
        *device = first->device;
    return TS_OK;
}

ts_status ts_rule_result(ts_frame *f, int i, const int64_t *sizes, int ndim, ts_dtype dtype)
{
    TS_TRY(TS_CHECK_LENT(f, "frame"));
    TS_TRY(ts_check_rule(f, "rule_result"));
    TS_TRY(ts_check_result(f, "rule_result", i, sizes, ndim, dtype));
    ts_device device = ts_kernel_device(f);
    TS_TRY(ts_check_devices(f, false, &device));
    ts_plan_result(f->plan, i, sizes, ndim, dtype, device);
    return TS_OK;
}

ts_status ts_rule_pointwise(ts_frame *f, int n, ts_dtype result, bool float_math)
{
    TS_TRY(TS_CHECK_LENT(f, "frame"));
    TS_TRY(ts_check_rule(f, "rule_pointwise"));
    int most = f->nargs < TS_MAX_OPERANDS ? f->nargs : TS_MAX_OPERANDS - 1;
    if (n < 1 || n > most || f->nrets != 1)
        return ts_fail_op(
            TS_ERR_VALUE, ts_op_name(f->op), f->site, NULL,
            "rule_pointwise: argument 'n': expected 1 to %d, for an op with one result, got %d, "
            "for an op with %d", most, n, f->nrets);
    if (result != TS_DTYPE_NONE)
        TS_TRY(ts_check_result(f, "rule_pointwise", 0, NULL, 0, result));
    return ts_infer_pointwise(f, n, result, float_math);
}

void ts_fail_decoder(const ts_frame *f, const char *function)
{
    ts_fail_op(TS_ERR_STATE, ts_op_name(f->op), f->site, "write a kernel of another op without it",
               "%s: expected a call of an op that it decodes", function);
}

ts_status ts_check_dim(ts_frame *f, int arg, int64_t dim, int ndim, int64_t *out)
{
    int64_t n = ndim ? ndim : 1;
    if (dim < -n || dim >= n)
        return ts_fail_arg(f, arg, TS_ERR_INDEX, "expected a dim from %lld to %lld, got %lld",
                           (long long)-n, (long long)n - 1, (long long)dim);
    *out = dim < 0 ? dim + n : dim;
    return TS_OK;
}

ts_status ts_check_float(ts_frame *f, int arg)
{
    const ts_tensor *t = f->args[arg].t;
    if (ts_dtype_is_float((ts_dtype)t->dtype))
        return TS_OK;
    return ts_fail_arg_hint(f, arg, TS_ERR_DTYPE, "cast with ts_to()",
                            "expected a floating dtype, got %s", ts_dtype_name((ts_dtype)t->dtype));
}

ts_status ts_check_dtype(ts_frame *f, int arg, ts_dtype dtype)
{
    ts_dtype got = (ts_dtype)f->args[arg].t->dtype;
    return got == dtype ? TS_OK
                        : ts_fail_arg_hint(f, arg, TS_ERR_DTYPE, "cast with ts_to()",
                                           "expected dtype %s, got %s", ts_dtype_name(dtype),
                                           ts_dtype_name(got));
}

ts_status ts_fail_dtype_as(ts_frame *f, int arg, int as, const char *hint)
{
    ts_dtype dtype = (ts_dtype)f->args[as].t->dtype, got = (ts_dtype)f->args[arg].t->dtype;
    return ts_fail_arg_hint(f, arg, TS_ERR_DTYPE, hint,
                            "expected dtype %s as argument '%s', got %s", ts_dtype_name(dtype),
                            f->table->info->schema.args[as].name, ts_dtype_name(got));
}

ts_status ts_fail_dtype_number(ts_frame *f, int arg)
{
    return ts_fail_arg(f, arg, TS_ERR_DTYPE, "expected a dtype, got number %lld",
                       (long long)f->args[arg].i);
}

ts_status ts_fail_ndim(ts_frame *f, int arg, int ndim)
{
    const ts_tensor *t = f->args[arg].t;
    return ts_fail_arg(f, arg, TS_ERR_SHAPE, "expected %d dims, got %d: sizes %s", ndim, t->ndim,
                       TS_SIZES_TEXT(t));
}

ts_status ts_fail_sizes(ts_frame *f, int arg, const int64_t *sizes, int ndim)
{
    return ts_fail_arg(f, arg, TS_ERR_SHAPE, "expected sizes %s, got %s", TS_LIST_TEXT(sizes, ndim),
                       TS_SIZES_TEXT(f->args[arg].t));
}

ts_status ts_check_fits(ts_frame *f, int arg)
{
    const ts_value *v = &f->args[arg];
    ts_dtype compute = f->plan->compute;
    if (TS_LIKELY(v->tag != TS_TAG_INT || (compute != TS_U8 && compute != TS_I32)))
        return TS_OK;
    int64_t low = compute == TS_U8 ? -UINT8_MAX : INT32_MIN,
            high = compute == TS_U8 ? UINT8_MAX : INT32_MAX;
    if (v->i >= low && v->i <= high)
        return TS_OK;
    return ts_fail_arg_hint(f, arg, TS_ERR_VALUE, "cast the tensor with ts_to()",
                            "expected a number that fits %s, got %lld", ts_dtype_name(compute),
                            (long long)v->i);
}

ts_status ts_check_broadcasts(ts_frame *f, int arg, const int64_t *sizes, int ndim)
{
    const ts_tensor *t = f->args[arg].t;
    bool fits = t->ndim <= ndim;
    for (int d = 0; fits && d < t->ndim; d++)
        fits = t->sizes[d] == 1 || t->sizes[d] == sizes[ndim - t->ndim + d];
    return fits ? TS_OK
                : ts_fail_arg(f, arg, TS_ERR_SHAPE, "expected sizes that broadcast to %s, got %s",
                              TS_LIST_TEXT(sizes, ndim), TS_SIZES_TEXT(t));
}

bool ts_broadcast(const int64_t *a, int na, const int64_t *b, int nb, int64_t *out, int *nout)
{
    int n = na > nb ? na : nb;
    for (int i = 0; i < n; i++) {
        int64_t x = i < n - na ? 1 : a[i - (n - na)], y = i < n - nb ? 1 : b[i - (n - nb)];
        if (x != y && x != 1 && y != 1)
            return false;
        out[i] = x == 1 ? y : x;
    }
    *nout = n;
    return true;
}

bool ts_dim_ok(int *dim, int n, const char *op, const char *name, const void *site)
{
    if (n == 0) {
        ts_fail_op(TS_ERR_INDEX, op, site, NULL,
                   "argument '%s': expected a tensor with dims, got one without", name);
        return false;
    }
    if (*dim < -n || *dim >= n) {
        ts_fail_op(TS_ERR_INDEX, op, site, NULL,
                   "argument '%s': expected a dim from %d to %d, got %d", name, -n, n - 1, *dim);
        return false;
    }
    *dim += *dim < 0 ? n : 0;
    return true;
}

void ts_fail_ints(int n, const char *op, const char *name, const void *site)
{
    if (n >= 0 && n <= TS_MAX_DIMS)
        ts_fail_op(TS_ERR_NULL, op, site, NULL, "argument '%s': expected %d numbers, got NULL",
                   name, n);
    else
        ts_fail_op(TS_ERR_SHAPE, op, site, NULL, "argument '%s': expected 0 to %d numbers, got %d",
                   name, TS_MAX_DIMS, n);
}

void ts_fail_list(int n, const char *op, const char *name, const void *site)
{
    if (n > 0)
        ts_fail_op(TS_ERR_NULL, op, site, NULL, "argument '%s': expected %d tensors, got NULL",
                   name, n);
    else
        ts_fail_op(TS_ERR_VALUE, op, site, NULL,
                   "argument '%s': expected at least one tensor, got %d", name, n);
}

/** 0 bool, 1 integer, 2 float. */
static int category(ts_dtype d) { return ts_dtype_is_float(d) ? 2 : d == TS_BOOL ? 0 : 1; }

ts_dtype ts_promote_values(const ts_value *args, int n)
{
    /* tensors with dims decide; 0-dim tensors and scalars matter only when of a higher category */
    ts_dtype dims = TS_DTYPE_NONE, zero = TS_DTYPE_NONE, weak = TS_DTYPE_NONE;
    for (int i = 0; i < n; i++) {
        ts_dtype *slot, d;
        if (args[i].tag == TS_TAG_TENSOR) {
            d = (ts_dtype)args[i].t->dtype;
            slot = args[i].t->ndim ? &dims : &zero;
        } else if (args[i].tag >= TS_TAG_BOOL && args[i].tag <= TS_TAG_FLOAT) {
            d = args[i].tag == TS_TAG_FLOAT ? TS_F32 : args[i].tag == TS_TAG_INT ? TS_I64 : TS_BOOL;
            slot = &weak;
        } else {
            continue;
        }
        *slot = *slot == TS_DTYPE_NONE ? d : ts_dtype_promote(*slot, d);
    }
    ts_dtype result = dims;
    if (zero != TS_DTYPE_NONE && (result == TS_DTYPE_NONE || category(zero) > category(result)))
        result = result == TS_DTYPE_NONE ? zero : ts_dtype_promote(result, zero);
    if (weak != TS_DTYPE_NONE && (result == TS_DTYPE_NONE || category(weak) > category(result)))
        result = result == TS_DTYPE_NONE ? weak : category(weak) == 2 ? TS_F32 : TS_I64;
    return result;
}

/** True if v is a number, or a tensor with a's sizes and device. typed: v takes part in promotion,
 * so it must also leave a's dtype unchanged. */
TS_INLINE bool has_same_layout(const ts_tensor *a, const ts_value *v, bool typed)
{
    if (v->tag != TS_TAG_TENSOR)
        return !typed || v->tag - TS_TAG_BOOL <= category((ts_dtype)a->dtype);
    const ts_tensor *b = v->t;
    return b->ndim == a->ndim && (!typed || b->dtype == a->dtype) &&
           ts_same_device(b->device, a->device) && ts_same_sizes(a->sizes, b->sizes, a->ndim);
}

static TS_COLD ts_status fail_broadcast(const ts_frame *f, int arg, const int64_t *sizes, int ndim)
{
    const ts_tensor *t = f->args[arg].t;
    return ts_fail_arg(f, arg, TS_ERR_SHAPE, "expected sizes that broadcast with %s, got %s",
                       TS_LIST_TEXT(sizes, ndim), TS_SIZES_TEXT(t));
}

void ts_plan_dims(ts_plan *plan, const ts_value *args, int nargs)
{
    int n = 0, ndim = plan->ret[0].ndim;
    bool contiguous = true;
    for (int i = 0; i < nargs; i++)
        contiguous = contiguous && (args[i].tag != TS_TAG_TENSOR || args[i].t->numel <= 1 ||
                                    args[i].t->flags & TS_TENSOR_CONTIGUOUS);
    if (contiguous)
        return;
    for (int i = 0; i < nargs; i++)
        if (args[i].tag == TS_TAG_TENSOR)
            ts_iter_strides(&plan->iter, n++, args[i].t, ndim, 1);
    plan->ordered |= ts_iter_order(&plan->iter, ndim, n, plan->order);
}

ts_status ts_infer_pointwise_typed(ts_frame *f, int nargs, int first, int last, ts_dtype result,
                                   bool float_math)
{
    ts_plan *plan = f->plan;
    const ts_value *args = f->args;
    plan->pointwise = TS_POINTWISE;
    uint16_t typed = (uint16_t)((1u << last) - (1u << first));
    plan->operands = (uint16_t)((1u << nargs) - 1);
    plan->cast = typed;

    /* the common case: tensors of one shape, dtype and device, numbers of no higher category */
    const ts_tensor *a = NULL;
    for (int i = first; !a && i < last; i++)
        a = args[i].tag == TS_TAG_TENSOR ? args[i].t : NULL;
    bool alike = a != NULL;
    for (int i = 0; alike && i < nargs; i++)
        alike = has_same_layout(a, &args[i], typed >> i & 1);
    ts_dtype compute;
    if (TS_LIKELY(alike)) {
        compute = (ts_dtype)a->dtype;
        plan->ret[0] = ts_meta_of(a->sizes, compute, a->storage->device, a->ndim, a->numel);
        plan->cast = 0; /* unless integers go to a float compute dtype, below */
    } else {
        int64_t sizes[2][TS_MAX_DIMS], *so_far = sizes[0], *next = sizes[1];
        int ndim = 0, had;
        ts_device device = TS_DEVICE_CPU;
        for (int i = 0; i < nargs; i++) {
            if (args[i].tag != TS_TAG_TENSOR)
                continue;
            const ts_tensor *t = args[i].t;
            had = ndim;
            if (TS_UNLIKELY(!ts_broadcast(so_far, had, t->sizes, t->ndim, next, &ndim)))
                return fail_broadcast(f, i, so_far, had);
            int64_t *swap = so_far;
            so_far = next;
            next = swap;
        }
        TS_TRY(ts_check_devices(f, true, &device));
        compute = ts_promote_values(args + first, last - first);
        if (compute == TS_DTYPE_NONE)
            return ts_fail_arg(f, first, TS_ERR_VALUE, "expected a tensor or a number");
        ts_plan_result(plan, 0, so_far, ndim, compute, device);
        /* 0-dim CPU tensors beside another device become scalars */
        for (int i = 0; i < nargs && !ts_is_on_cpu(f); i++)
            if (args[i].tag == TS_TAG_TENSOR && !ts_same_device(args[i].t->storage->device, device))
                plan->strided |= (uint16_t)(1u << i);
    }
    if (float_math && !ts_dtype_is_float(compute)) {
        plan->ret[0].dtype = compute = TS_F32;
        plan->cast = typed;
    }
    plan->compute = compute;
    if (result != TS_DTYPE_NONE)
        plan->ret[0].dtype = result;
    if (!(f->given & 1))
        ts_plan_dims(plan, args, nargs);
    return TS_OK;
}
