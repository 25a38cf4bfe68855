/** @file ops.h  Functions shared by the families of operators. */
// SPDX-License-Identifier: MIT
#ifndef TS_OPS_OPS_H
#define TS_OPS_OPS_H

#include "dispatch/invoke.h"
#include "ops/kernel.h"
#include "ops/rows.h"

/* ------------------------------------------------------------------ helpers of infer ---- */

TS_COLD ts_status ts_fail_dtype_as(ts_frame *f, int arg, int as, const char *hint);
TS_COLD ts_status ts_fail_dtype_number(ts_frame *f, int arg);

/** Result i gets these sizes (copied into the plan), dtype and device. */
void ts_plan_result(ts_plan *plan, int i, const int64_t *sizes, int ndim, ts_dtype dtype,
                    ts_device device);
/** Result i is like t. Borrows t's sizes. */
TS_INLINE void ts_plan_result_like(ts_plan *plan, int i, const ts_tensor *t, ts_dtype dtype)
{
    plan->ret[i] = ts_meta_of(t->sizes, dtype, t->storage->device, t->ndim, t->numel);
}
/** Plans a result 0 with t's sizes and dtype; the kernel has t's dtype too. */
TS_INLINE void ts_plan_like(ts_plan *plan, const ts_tensor *t)
{
    plan->compute = t->dtype;
    ts_plan_result_like(plan, 0, t, (ts_dtype)t->dtype);
}
/** t as (outer, count, inner): dims first to before last are count. */
TS_INLINE void ts_plan_split(ts_plan *plan, const ts_tensor *t, int64_t first, int64_t last)
{
    plan->outer = plan->count = plan->inner = 1;
    for (int d = 0; d < t->ndim; d++)
        *(d < first ? &plan->outer : d < last ? &plan->count : &plan->inner) *= t->sizes[d];
}
/** Whether every tensor is on the CPU. */
TS_INLINE bool ts_is_on_cpu(const ts_frame *f)
{
    return f->keys == TS_KEYSET(TS_KEY_CPU) && !(f->thread->exclude & TS_BACKEND_KEYS);
}
ts_status ts_compare_devices(ts_frame *f, bool scalars_ok, ts_device *device);
/**
 * All tensor arguments must be on one device, which is returned through *device. scalars_ok: 0-dim
 * CPU tensors are allowed, as in pointwise ops.
 */
TS_INLINE ts_status ts_check_devices(ts_frame *f, bool scalars_ok, ts_device *device)
{
    if (TS_UNLIKELY(!ts_is_on_cpu(f)))
        return ts_compare_devices(f, scalars_ok, device);
    *device = TS_DEVICE_CPU;
    return TS_OK;
}
TS_INLINE ts_status ts_check_one_device(ts_frame *f)
{
    ts_device device;
    return ts_check_devices(f, false, &device);
}
/** Result i becomes an alias of argument 0; offset in elements. */
TS_INLINE ts_status ts_give_alias(ts_frame *f, int i, const int64_t *sizes, const int64_t *strides,
                                  int ndim, int64_t offset)
{
    ts_tensor *alias = ts_tensor_alias(f->thread, f->args[0].t, sizes, strides, ndim, offset);
    if (TS_UNLIKELY(!alias))
        return ts_error_code();
    f->rets[i] = V_T(alias);
    return TS_OK;
}
/** The plan of a factory; dtype and device are the two arguments from dtype_arg on. */
ts_status ts_infer_sizes(ts_frame *f, int sizes_arg, int dtype_arg);
/** dim in [-ndim, ndim) made non-negative; a 0-dim tensor counts as one dim. */
ts_status ts_check_dim(ts_frame *f, int arg, int64_t dim, int ndim, int64_t *out);
/** Argument must be a tensor of a floating dtype. */
ts_status ts_check_float(ts_frame *f, int arg);
/** Argument must be a tensor of this dtype. */
ts_status ts_check_dtype(ts_frame *f, int arg, ts_dtype dtype);
/** Argument must be a tensor of the dtype of argument `as`. */
TS_INLINE ts_status ts_check_dtype_as(ts_frame *f, int arg, int as, const char *hint)
{
    return TS_LIKELY(f->args[arg].t->dtype == f->args[as].t->dtype)
               ? TS_OK
               : ts_fail_dtype_as(f, arg, as, hint);
}
/** Checks that a dtype argument is a valid dtype. */
TS_INLINE ts_status ts_check_dtype_number(ts_frame *f, int arg)
{
    return TS_LIKELY((uint64_t)f->args[arg].i < TS_DTYPE_COUNT) ? TS_OK
                                                                : ts_fail_dtype_number(f, arg);
}
TS_COLD ts_status ts_fail_ndim(ts_frame *f, int arg, int ndim);
TS_COLD ts_status ts_fail_sizes(ts_frame *f, int arg, const int64_t *sizes, int ndim);
/** Argument must be a tensor with exactly ndim dims. */
TS_INLINE ts_status ts_check_ndim(ts_frame *f, int arg, int ndim)
{
    return TS_LIKELY(f->args[arg].t->ndim == ndim) ? TS_OK : ts_fail_ndim(f, arg, ndim);
}
/** Sizes of the argument must equal these. */
TS_INLINE ts_status ts_check_sizes(ts_frame *f, int arg, const int64_t *sizes, int ndim)
{
    const ts_tensor *t = f->args[arg].t;
    return TS_LIKELY(t->ndim == ndim && ts_same_sizes(t->sizes, sizes, ndim))
               ? TS_OK
               : ts_fail_sizes(f, arg, sizes, ndim);
}
/** Sizes of the argument must broadcast to these. */
ts_status ts_check_broadcasts(ts_frame *f, int arg, const int64_t *sizes, int ndim);
/** Broadcasts two lists of sizes into out (room for 8); false when they do not fit. */
bool ts_broadcast(const int64_t *a, int na, const int64_t *b, int nb, int64_t *out, int *nout);
/**
 * Contiguous tensors of one kind and one shape, the commonest arguments of all: fills the plan
 * and, but for the result, the iteration space. False for any others.
 */
TS_INLINE bool ts_plan_flat(ts_frame *f, int nargs, ts_dtype result, bool float_math)
{
    ts_plan *plan = f->plan;
    ts_iter *it = &plan->iter;
    if (f->args[0].tag != TS_TAG_TENSOR)
        return false;
    const ts_tensor *a = f->args[0].t;
    int64_t item = ts_dtype_sizes[a->dtype];
    if (!(a->flags & TS_TENSOR_CONTIGUOUS) ||
        (float_math && !ts_dtype_is_float((ts_dtype)a->dtype)))
        return false;
    it->data[1] = a->data;
    it->strides[0][1] = item;
    TS_UNROLL(4)
    for (int i = 1; i < nargs; i++) {
        const ts_tensor *b = f->args[i].t;
        if (f->args[i].tag != TS_TAG_TENSOR || b->kind.bits != a->kind.bits ||
            !(b->flags & TS_TENSOR_CONTIGUOUS) || !ts_same_sizes(a->sizes, b->sizes, a->ndim))
            return false;
        it->data[i + 1] = b->data;
        it->strides[0][i + 1] = item;
    }
    it->ndim = 1;
    it->operands = nargs + 1;
    it->numel = it->sizes[0] = a->numel;
    plan->pointwise = TS_POINTWISE;
    plan->flat = true;
    plan->operands = (uint16_t)((1u << nargs) - 1);
    plan->compute = (ts_dtype)a->dtype;
    plan->ret[0] = (ts_meta){a->sizes, a->numel, {a->kind}};
    if (result != TS_DTYPE_NONE)
        plan->ret[0].dtype = (uint8_t)result;
    return true;
}

/** The pointwise plan over args[0..nargs) where only args[first..last) decide on the dtype
 * and are cast to it; the others keep theirs. */
ts_status ts_infer_pointwise_typed(ts_frame *f, int nargs, int first, int last, ts_dtype result,
                                   bool float_math);
/**
 * The pointwise plan over args[0..nargs): promotion with weak scalars, broadcasting,
 * operands = these args. result: dtype of the result, or TS_DTYPE_NONE for the promoted one.
 * float_math: integers compute in f32.
 */
TS_INLINE ts_status ts_infer_pointwise(ts_frame *f, int nargs, ts_dtype result, bool float_math)
{
    if (TS_LIKELY(ts_plan_flat(f, nargs, result, float_math)))
        return TS_OK;
    return ts_infer_pointwise_typed(f, nargs, 0, nargs, result, float_math);
}
/** The plan of two operands for a function that jumps: a number beside halves is rounded to them,
 * since an element that holds it must count as equal to it. */
TS_INLINE ts_status ts_infer_jumping(ts_frame *f, ts_dtype result)
{
    TS_TRY(ts_infer_pointwise(f, 2, result, false));
    f->plan->pointwise = TS_POINTWISE_ROUNDED;
    return TS_OK;
}
/** A number as argument must fit the plan's compute dtype;
 * a negative one may wrap in u8, as in PyTorch. */
ts_status ts_check_fits(ts_frame *f, int arg);
/** dtype that a mix of tensors and scalars computes in (PyTorch's categories). */
ts_dtype ts_promote_values(const ts_value *args, int n);

/** Makes a dim in [-n, n) of a public function non-negative; false with an error. */
bool ts_dim_ok(int *dim, int n, const char *op, const char *name, const void *site);
/** A list of n numbers that is NULL or of a wrong length. */
TS_COLD void ts_fail_ints(int n, const char *op, const char *name, const void *site);
/** A list of n tensors that is NULL or empty. */
TS_COLD void ts_fail_list(int n, const char *op, const char *name, const void *site);
/* Checks of values that functions read before boxing: each is false with an error. */
/** A list of sizes or dims has 0 to 8 members. */
TS_INLINE bool ts_ints_ok(const int64_t *list, int n, const char *op, const char *name,
                          const void *site)
{
    if (TS_LIKELY((unsigned)n <= TS_MAX_DIMS && (list || !n)))
        return true;
    ts_fail_ints(n, op, name, site);
    return false;
}
/** A list of tensors has members, or at least one. */
TS_INLINE bool ts_list_ok(ts_tensor *const *list, int n, const char *op, const char *name,
                          const void *site)
{
    if (TS_LIKELY(n > 0 && list))
        return true;
    ts_fail_list(n, op, name, site);
    return false;
}
/** Error if a tensor is absent whose sizes, dtype or device the function reads. */
TS_INLINE bool ts_tensor_ok(const ts_tensor *t, const char *op, const char *name, const void *site)
{
    if (TS_LIKELY(t && !(t->keys >> TS_KEY_ABSENT)))
        return true;
    if (!t || t == TS_NONE)
        ts_fail_null(op, site, name);
    else
        ts_fail_dead(op, site, name, t);
    return false;
}

/* Op without results that writes its argument t, which is returned. */
#define TS_INVOKE_WRITTEN(t, op, ...)                                       \
    ({                                                                      \
        const ts_value args_[] = {__VA_ARGS__};                             \
        ts_invoke_status(op, args_, TS_N(args_)) == TS_OK ? t : NULL;       \
    })

/** Calls an op whose results are all optional: result i goes to *outs[i] if outs[i] is not NULL. */
TS_INLINE ts_status ts_invoke_wanted(int op, const ts_value *args, int nargs, ts_tensor ***outs,
                                     int nrets, const void *site)
{
    ts_value rets[TS_MAX_RETS];
    int want = 0;
    for (int i = 0; i < nrets; i++) {
        rets[i] = ts_value_none();
        want |= (outs[i] != NULL) << i;
        if (outs[i])
            *outs[i] = NULL;
    }
    TS_TRY(ts_call(op, args, nargs, rets, nrets, 0, want, site));
    for (int i = 0; i < nrets; i++)
        if (outs[i])
            *outs[i] = ts_scope_adopt(&ts_tls, rets[i].t);
    return TS_OK;
}

/** f32 for bf16 and f16, else the dtype itself: the dtype in which composites compute and kernels
 * keep statistics for their gradient. */
TS_INLINE ts_dtype ts_widened_dtype(ts_dtype d) { return ts_dtype_is_half(d) ? TS_F32 : d; }

/** A tensor in a struct of options, given by address; a NULL address means none. */
TS_INLINE ts_value ts_value_at(ts_tensor *const *t) { return t ? V_OPT(*t) : ts_value_none(); }

/** Bytes that a call moves at least, and elements of its largest tensor. */
double ts_cost_bytes(const ts_frame *f, double *elements);
/** Sets the hooks by which rooms below copy and convert. */
void ts_copy_install(void);

#endif
