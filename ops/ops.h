/** @file ops.h  Helpers for shape rules and public functions of all families of operators. A shape
 * rule (`infer`) checks the arguments of a call and writes its plan (ts_plan, dispatch/op.h). */
// SPDX-License-Identifier: MIT
#ifndef TS_OPS_OPS_H
#define TS_OPS_OPS_H

#include "dispatch/invoke.h"
#include "ops/kernel.h"
#include "ops/rows.h"

/* ------------------------------------------------------------------ helpers of infer ---- */

/* ts_fail_NAME() records the error of the check ts_check_NAME(). */
TS_COLD ts_status ts_fail_dtype_as(ts_frame *f, int arg, int as, const char *hint);
TS_COLD ts_status ts_fail_dtype_number(ts_frame *f, int arg);

/** Plans result i with these sizes (copied into the plan), dtype and device. */
void ts_plan_result(ts_plan *plan, int i, const int64_t *sizes, int ndim, ts_dtype dtype,
                    ts_device device);
/** Plans result i with t's sizes (borrowed) and device, and this dtype. */
TS_INLINE void ts_plan_result_like(ts_plan *plan, int i, const ts_tensor *t, ts_dtype dtype)
{
    plan->ret[i] = ts_meta_of(t->sizes, dtype, t->storage->device, t->ndim, t->numel);
}
/** Plans result 0 with t's sizes, dtype and device; the compute dtype is t's dtype. */
TS_INLINE void ts_plan_like(ts_plan *plan, const ts_tensor *t)
{
    plan->compute = t->dtype;
    ts_plan_result_like(plan, 0, t, (ts_dtype)t->dtype);
}
/** Sets plan->outer, count and inner to the numbers of elements of t's dims [0, first),
 *  [first, last) and [last, ndim). */
TS_INLINE void ts_plan_split(ts_plan *plan, const ts_tensor *t, int64_t first, int64_t last)
{
    plan->outer = plan->count = plan->inner = 1;
    for (int d = 0; d < t->ndim; d++)
        *(d < first ? &plan->outer : d < last ? &plan->count : &plan->inner) *= t->sizes[d];
}
/** True if the call has the CPU key only, so every tensor is on the CPU. A tensor with the key LAZY
 *  also has that of its device. */
TS_INLINE bool ts_is_on_cpu(const ts_frame *f)
{
    const ts_keyset devices = TS_BACKEND_KEYS & ~TS_KEYSET(TS_KEY_LAZY);
    return f->keys == TS_KEYSET(TS_KEY_CPU) && !(f->thread->exclude & devices);
}
/** The slow part of ts_check_devices(). */
ts_status ts_compare_devices(ts_frame *f, bool scalars_ok, ts_device *device);
/**
 * Checks that all tensor arguments are on one device, and stores it in *device. A caller whose call
 * may have no tensors sets *device before. TS_ERR_DEVICE. scalars_ok: 0-dim CPU tensors may be
 * mixed with tensors of another device, as in pointwise ops.
 */
TS_INLINE ts_status ts_check_devices(ts_frame *f, bool scalars_ok, ts_device *device)
{
    if (TS_UNLIKELY(!ts_is_on_cpu(f)))
        return ts_compare_devices(f, scalars_ok, device);
    *device = TS_DEVICE_CPU;
    return TS_OK;
}
/** ts_check_devices() without scalars_ok, for rules that do not need the device. */
TS_INLINE ts_status ts_check_one_device(ts_frame *f)
{
    ts_device device;
    return ts_check_devices(f, false, &device);
}
/** Makes result i an alias of argument 0. strides and offset are in elements; offset counts from
 *  the first element of argument 0. Nothing is checked. TS_ERR_MEMORY. */
TS_INLINE ts_status ts_give_alias(ts_frame *f, int i, const int64_t *sizes, const int64_t *strides,
                                  int ndim, int64_t offset)
{
    ts_tensor *alias = ts_tensor_alias(f->thread, f->args[0].t, sizes, strides, ndim, offset);
    if (TS_UNLIKELY(!alias))
        return ts_error_code();
    f->rets[i] = V_T(alias);
    return TS_OK;
}
/** Plans result 0 of a factory op. sizes_arg: index of the sizes argument; dtype_arg: index of the
 *  dtype argument, directly before the device argument. TS_ERR_SHAPE, TS_ERR_DTYPE. */
ts_status ts_infer_sizes(ts_frame *f, int sizes_arg, int dtype_arg);
/** TS_ERR_STATE: `function`, which decodes calls of certain ops, got a call of another op. */
TS_COLD void ts_fail_decoder(const ts_frame *f, const char *function);
/* The checks below record an error about argument `arg` and return its code. Where they check a
 * tensor, the argument must be one. */
/** Checks that dim, the value of `arg`, is in [-ndim, ndim), or [-1, 1) for ndim 0, and stores it
 *  in *out, made non-negative. TS_ERR_INDEX. */
ts_status ts_check_dim(ts_frame *f, int arg, int64_t dim, int ndim, int64_t *out);
/** The tensor must have a floating dtype. TS_ERR_DTYPE. */
ts_status ts_check_float(ts_frame *f, int arg);
/** The tensor must have this dtype. TS_ERR_DTYPE. */
ts_status ts_check_dtype(ts_frame *f, int arg, ts_dtype dtype);
/** The tensor must have the dtype of argument `as`. TS_ERR_DTYPE with `hint`, which may be NULL. */
TS_INLINE ts_status ts_check_dtype_as(ts_frame *f, int arg, int as, const char *hint)
{
    return TS_LIKELY(f->args[arg].t->dtype == f->args[as].t->dtype)
               ? TS_OK
               : ts_fail_dtype_as(f, arg, as, hint);
}
/** The number in a dtype argument must be a ts_dtype. TS_ERR_DTYPE. */
TS_INLINE ts_status ts_check_dtype_number(ts_frame *f, int arg)
{
    return TS_LIKELY((uint64_t)f->args[arg].i < TS_DTYPE_COUNT) ? TS_OK
                                                                : ts_fail_dtype_number(f, arg);
}
TS_COLD ts_status ts_fail_ndim(ts_frame *f, int arg, int ndim);
TS_COLD ts_status ts_fail_sizes(ts_frame *f, int arg, const int64_t *sizes, int ndim);
/** The tensor must have exactly ndim dims. TS_ERR_SHAPE. */
TS_INLINE ts_status ts_check_ndim(ts_frame *f, int arg, int ndim)
{
    return TS_LIKELY(f->args[arg].t->ndim == ndim) ? TS_OK : ts_fail_ndim(f, arg, ndim);
}
/** The tensor must have these sizes. TS_ERR_SHAPE. */
TS_INLINE ts_status ts_check_sizes(ts_frame *f, int arg, const int64_t *sizes, int ndim)
{
    const ts_tensor *t = f->args[arg].t;
    return TS_LIKELY(t->ndim == ndim && ts_same_sizes(t->sizes, sizes, ndim))
               ? TS_OK
               : ts_fail_sizes(f, arg, sizes, ndim);
}
/** The tensor's sizes must broadcast to these. TS_ERR_SHAPE. */
ts_status ts_check_broadcasts(ts_frame *f, int arg, const int64_t *sizes, int ndim);
/** Broadcasts two lists of sizes into out, an array of TS_MAX_DIMS; false if they do not broadcast.
 */
bool ts_broadcast(const int64_t *a, int na, const int64_t *b, int nb, int64_t *out, int *nout);
/**
 * The fast path of pointwise rules, for contiguous tensors of one dtype, device and shape: fills
 * the plan and the iteration space except for the result. Returns false for other arguments, and
 * for integer and bool tensors if float_math.
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

/** Gives a new result 0 the memory order of the arguments: its dims by falling strides, as
 *  PyTorch's TensorIterator sorts them. The first argument takes precedence. */
void ts_plan_dims(ts_plan *plan, const ts_value *args, int nargs);
/** Like ts_infer_pointwise(), but only args[first..last) determine the compute dtype and are cast
 * to it; the other arguments keep their dtypes. */
ts_status ts_infer_pointwise_typed(ts_frame *f, int nargs, int first, int last, ts_dtype result,
                                   bool float_math);
/**
 * Plans a pointwise loop over args[0..nargs), which become the operands: promotes dtypes by
 * ts_promote_values() and broadcasts sizes. TS_ERR_SHAPE, TS_ERR_DEVICE, TS_ERR_VALUE.
 * @param result      dtype of the result; TS_DTYPE_NONE: the promoted dtype
 * @param float_math  integers and bool compute in f32
 */
TS_INLINE ts_status ts_infer_pointwise(ts_frame *f, int nargs, ts_dtype result, bool float_math)
{
    if (TS_LIKELY(ts_plan_flat(f, nargs, result, float_math)))
        return TS_OK;
    return ts_infer_pointwise_typed(f, nargs, 0, nargs, result, float_math);
}
/** Plans a pointwise loop of two operands for a discontinuous function, such as a comparison. For
 * bf16 and f16 a scalar is rounded to the dtype, so that an element with its value equals it. */
TS_INLINE ts_status ts_infer_discontinuous(ts_frame *f, ts_dtype result)
{
    TS_TRY(ts_infer_pointwise(f, 2, result, false));
    f->plan->pointwise = TS_POINTWISE_ROUNDED;
    return TS_OK;
}
/** If the argument is an integer, it must be in the range of the plan's compute dtype if that is u8
 * or i32. For u8 the range is -255 to 255; negative numbers wrap, as in PyTorch. TS_ERR_VALUE. */
ts_status ts_check_fits(ts_frame *f, int arg);
/** Promoted dtype of tensors and numbers, as in PyTorch: tensors with dims decide. A 0-dim tensor
 *  counts only if its kind (bool, integer, floating) is higher than theirs or there are none; a
 *  number only if its kind is higher than that of all tensors or there are none. TS_DTYPE_NONE if
 *  there are neither tensors nor numbers. */
ts_dtype ts_promote_values(const ts_value *args, int n);

/** Checks that *dim, an argument of a public function, is in [-n, n) and makes it non-negative.
 * False with TS_ERR_INDEX if it is not, and always if n is 0. */
bool ts_dim_ok(int *dim, int n, const char *op, const char *name, const void *site);
/** Error for a list of n numbers that is NULL or has an invalid length. */
TS_COLD void ts_fail_ints(int n, const char *op, const char *name, const void *site);
/** Error for a list of n tensors that is NULL or empty. */
TS_COLD void ts_fail_list(int n, const char *op, const char *name, const void *site);
/* Checks of arguments that public functions read before boxing; each is false with an error. */
/** A list of sizes or dims must have 0 to TS_MAX_DIMS members. */
TS_INLINE bool ts_ints_ok(const int64_t *list, int n, const char *op, const char *name,
                          const void *site)
{
    if (TS_LIKELY((unsigned)n <= TS_MAX_DIMS && (list || !n)))
        return true;
    ts_fail_ints(n, op, name, site);
    return false;
}
/** A list of tensors must have at least one member. Members are not checked. */
TS_INLINE bool ts_list_ok(ts_tensor *const *list, int n, const char *op, const char *name,
                          const void *site)
{
    if (TS_LIKELY(n > 0 && list))
        return true;
    ts_fail_list(n, op, name, site);
    return false;
}
/** t must be a live tensor, not NULL, TS_NONE or freed: the function reads its sizes, dtype or
 *  device. */
TS_INLINE bool ts_tensor_ok(const ts_tensor *t, const char *op, const char *name, const void *site)
{
    if (TS_LIKELY(t && !(t->keys >> TS_KEY_ABSENT)))
        return true;
    ts_fail_tensor(op, site, name, t);
    return false;
}

/** Calls an op whose first argument is the sizes of t, and returns its result with t's sizes, dense
 *  and in t's memory order. Overwrites args[0]; site: as for ts_call(). */
ts_tensor *ts_invoke_ordered(const ts_tensor *t, int op, ts_value *args, int nargs,
                             const void *site);
/* ts_invoke_ordered(); for a contiguous t, one call with the arguments as they are. */
#define TS_INVOKE_LIKE(t, op, ...)                                                                 \
    ({                                                                                             \
        ts_value args_[] = {__VA_ARGS__};                                                          \
        TS_LIKELY((t)->flags & TS_TENSOR_CONTIGUOUS)                                               \
        ? ts_invoke(op, args_, TS_N(args_), 1)                                                     \
        : ts_invoke_ordered(t, op, args_, TS_N(args_), __builtin_return_address(0));               \
    })

/* Calls an op without results that writes its argument t. Returns t; NULL with an error. */
#define TS_INVOKE_WRITTEN(t, op, ...)                                       \
    ({                                                                      \
        const ts_value args_[] = {__VA_ARGS__};                             \
        ts_invoke_status(op, args_, TS_N(args_)) == TS_OK ? t : NULL;       \
    })

/* Evaluates `call` for a public function whose name is not the op's: errors name the function. */
#define TS_NAMED(function, op, call)                                                               \
    ({                                                                                             \
        ts_tensor *made_ = call;                                                                   \
        TS_LIKELY(made_ != NULL) ? made_ : ts_fail_as(function, op, __builtin_return_address(0)); \
    })

/** Calls an op whose results are all optional. Stores result i in *outs[i] if outs[i] is not NULL;
 *  the innermost scope owns it. On an error these *outs[i] are NULL. */
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
        if (outs[i] && rets[i].tag == TS_TAG_TENSOR && TS_LIKELY(rets[i].t != NULL))
            *outs[i] = ts_adopt_result(&ts_tls, rets[i].t, op, site);
    return TS_OK;
}

/** f32 for bf16 and f16, otherwise d. Composites compute in this dtype, and kernels store the
 * statistics for their gradient in it. */
TS_INLINE ts_dtype ts_widened_dtype(ts_dtype d) { return ts_dtype_is_half(d) ? TS_F32 : d; }

/** Boxes the optional tensor at address t, such as a field of options; NULL means none. */
TS_INLINE ts_value ts_value_at(ts_tensor *const *t) { return t ? V_OPT(*t) : ts_value_none(); }

/** Minimum number of bytes that a call moves; *elements receives the number of elements of its
 *  largest tensor. */
double ts_cost_bytes(const ts_frame *f, double *elements);
/** Installs the functions that lower rooms call to copy and convert tensors. */
void ts_copy_install(void);

#endif
