/** @file pointwise.c  Arithmetic of two and three operands with broadcasting
 * and promotion; bounds. */
// SPDX-License-Identifier: MIT
#include "include/tessera/ops.h"
#include "ops/ops.h"

/* ------------------------------------------------------------------------------- rules ---- */

ts_status ts_infer_binary(ts_frame *f) { return ts_infer_pointwise(f, 2, TS_DTYPE_NONE, false); }
ts_status ts_infer_binary_float(ts_frame *f)
{
    return ts_infer_pointwise(f, 2, TS_DTYPE_NONE, true);
}

ts_status ts_infer_pow(ts_frame *f)
{
    TS_TRY(ts_infer_pointwise(f, 2, TS_DTYPE_NONE, false));
    const ts_value *e = &f->args[1];
    if (TS_UNLIKELY(e->tag == TS_TAG_INT && e->i < 0 && !ts_dtype_is_float(f->plan->compute)))
        return ts_fail_arg_hint(f, 1, TS_ERR_VALUE, "cast self to a floating dtype with ts_to()",
                                "expected an exponent >= 0 for integers, got %lld",
                                (long long)e->i);
    return TS_OK;
}

/** A number as weight is a parameter of the kernel, a tensor its third operand. */
ts_status ts_infer_lerp(ts_frame *f)
{
    TS_TRY(ts_check_float(f, 0));
    return ts_infer_pointwise(f, f->args[2].tag == TS_TAG_TENSOR ? 3 : 2, TS_DTYPE_NONE, false);
}

ts_status ts_infer_addc(ts_frame *f) { return ts_infer_pointwise(f, 3, TS_DTYPE_NONE, false); }

/** Bounds promote as operands would, but are parameters of the kernel. */
ts_status ts_infer_clamp(ts_frame *f)
{
    if (TS_UNLIKELY(f->args[1].tag == TS_TAG_NONE && f->args[2].tag == TS_TAG_NONE))
        return ts_fail_arg(f, 1, TS_ERR_VALUE, "expected a bound here or as 'max', got none");
    TS_TRY(ts_infer_pointwise(f, 3, TS_DTYPE_NONE, false));
    f->plan->operands = f->plan->cast = 1;
    TS_TRY(ts_check_fits(f, 1));
    return ts_check_fits(f, 2);
}

/* -------------------------------------------------------------------------- public forms ---- */

/** The forms of a binary op: tensors, scalar on the right, in place, destination first. */
#define BINARY(name)                                                                  \
    ts_tensor *ts_##name(ts_tensor *self, ts_tensor *other)                           \
    {                                                                                 \
        return TS_INVOKE(TS_OP_##name, V_T(self), V_T(other));                        \
    }                                                                                 \
    ts_tensor *(ts_##name##_scalar)(ts_tensor *self, ts_scalar other)                 \
    {                                                                                 \
        return TS_INVOKE(TS_OP_##name, V_T(self), V_S(other));                        \
    }                                                                                 \
    ts_tensor *ts_##name##_(ts_tensor *self, ts_tensor *other)                        \
    {                                                                                 \
        return TS_INVOKE_OUT(self, TS_OP_##name, V_T(self), V_T(other));              \
    }                                                                                 \
    ts_tensor *(ts_##name##_scalar_)(ts_tensor *self, ts_scalar other)                \
    {                                                                                 \
        return TS_INVOKE_OUT(self, TS_OP_##name, V_T(self), V_S(other));              \
    }                                                                                 \
    ts_tensor *ts_##name##_out(ts_tensor *out, ts_tensor *self, ts_tensor *other)     \
    {                                                                                 \
        return TS_INVOKE_OUT(out, TS_OP_##name, V_T(self), V_T(other));               \
    }
/** A scalar on the left. */
#define REVERSE(name, op)                                                             \
    ts_tensor *(ts_##name##_scalar)(ts_tensor *self, ts_scalar other)                 \
    {                                                                                 \
        return TS_INVOKE(TS_OP_##op, V_S(other), V_T(self));                          \
    }

BINARY(add)
BINARY(sub)
BINARY(mul)
BINARY(div)
BINARY(floor_divide)
BINARY(remainder)
BINARY(pow)
BINARY(maximum)
BINARY(minimum)
BINARY(atan2)
BINARY(bitwise_and)
BINARY(bitwise_or)
BINARY(bitwise_xor)
REVERSE(rsub, sub)
REVERSE(rdiv, div)
REVERSE(rpow, pow)

ts_tensor *ts_lerp(ts_tensor *self, ts_tensor *end, ts_tensor *weight)
{
    return TS_INVOKE(TS_OP_lerp, V_T(self), V_T(end), V_T(weight));
}
ts_tensor *(ts_lerp_scalar)(ts_tensor *self, ts_tensor *end, ts_scalar weight)
{
    return TS_INVOKE(TS_OP_lerp, V_T(self), V_T(end), V_S(weight));
}
ts_tensor *ts_lerp_(ts_tensor *self, ts_tensor *end, ts_tensor *weight)
{
    return TS_INVOKE_OUT(self, TS_OP_lerp, V_T(self), V_T(end), V_T(weight));
}
ts_tensor *(ts_lerp_scalar_)(ts_tensor *self, ts_tensor *end, ts_scalar weight)
{
    return TS_INVOKE_OUT(self, TS_OP_lerp, V_T(self), V_T(end), V_S(weight));
}

/** self + value * (a op b) and its in-place form. */
#define ADDC(name)                                                                              \
    ts_tensor *(ts_##name)(ts_tensor *self, ts_tensor *a, ts_tensor *b, ts_scalar value)        \
    {                                                                                           \
        return TS_INVOKE(TS_OP_##name, V_T(self), V_T(a), V_T(b), V_S(value));                  \
    }                                                                                           \
    ts_tensor *(ts_##name##_)(ts_tensor *self, ts_tensor *a, ts_tensor *b, ts_scalar value)     \
    {                                                                                           \
        return TS_INVOKE_OUT(self, TS_OP_##name, V_T(self), V_T(a), V_T(b), V_S(value));        \
    }
ADDC(addcmul)
ADDC(addcdiv)

/** Bounds: new result, in place, destination first. */
#define BOUNDS(name, op, low, high, ...)                                        \
    ts_tensor *(ts_##name)(ts_tensor *self, __VA_ARGS__)                        \
    {                                                                           \
        return TS_INVOKE(TS_OP_##op, V_T(self), low, high);                     \
    }                                                                           \
    ts_tensor *(ts_##name##_)(ts_tensor *self, __VA_ARGS__)                     \
    {                                                                           \
        return TS_INVOKE_OUT(self, TS_OP_##op, V_T(self), low, high);           \
    }                                                                           \
    ts_tensor *(ts_##name##_out)(ts_tensor *out, ts_tensor *self, __VA_ARGS__)  \
    {                                                                           \
        return TS_INVOKE_OUT(out, TS_OP_##op, V_T(self), low, high);            \
    }
BOUNDS(clamp, clamp, V_S(min), V_S(max), ts_scalar min, ts_scalar max)
BOUNDS(clamp_min, clamp, V_S(min), ts_value_none(), ts_scalar min)
BOUNDS(clamp_max, clamp, ts_value_none(), V_S(max), ts_scalar max)
BOUNDS(hardtanh, hardtanh, V_S(min), V_S(max), ts_scalar min, ts_scalar max)

ts_tensor *ts_relu6(ts_tensor *self)
{
    return TS_INVOKE(TS_OP_hardtanh, V_T(self), V_I(0), V_I(6));
}

ts_tensor *ts_clamp_backward(ts_tensor *grad, ts_tensor *self, const ts_scalar *min,
                             const ts_scalar *max, bool open)
{
    return TS_INVOKE(TS_OP_clamp_backward, V_T(grad), V_T(self), min ? V_S(*min) : ts_value_none(),
                     max ? V_S(*max) : ts_value_none(), V_B(open));
}
