/**
 * @file groups.h  Random functions of pointwise calls, for tests of fused groups on a device.
 *
 * Inputs have random dtypes and layouts: contiguous, transposed, broadcast, not 16-byte aligned.
 * The calls cover all families of pointwise kernels; most calls have operands of one dtype.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_TESTS_CUDA_GROUPS_H
#define TESSERA_TESTS_CUDA_GROUPS_H

#include "tests/cuda/cuda.h"

enum { GROUP_INPUTS = 5, GROUP_CALLS = 24, GROUP_POOL = GROUP_INPUTS + 2 * GROUP_CALLS,
       GROUP_OUTPUTS = 6 };

typedef struct group_draw {
    uint64_t state;
} group_draw;
/** A random integer from 0 to n - 1. */
static inline uint32_t below(group_draw *d, uint32_t n)
{
    d->state = d->state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(d->state >> 33) % n;
}

/** A random function: the seed determines its calls. */
typedef struct group_program {
    uint64_t seed;
    int calls;
    int64_t rows, columns;
    double shift; /* added to the numbers among the arguments; changes from call to call */
    bool random;  /* may call dropout */
} group_program;

static inline group_program draw_group(uint64_t seed)
{
    static const int64_t sizes[] = {1, 2, 3, 5, 8, 16, 17, 33, 64, 129, 256, 1000};
    group_draw d = {seed * 0x9e3779b97f4a7c15ull + 7};
    below(&d, 2);
    group_program p = {.seed = seed, .calls = 2 + (int)below(&d, GROUP_CALLS - 1)};
    p.rows = sizes[below(&d, 12)];
    p.columns = sizes[below(&d, 12)];
    p.random = below(&d, 3) == 0;
    return p;
}

/** Input k of a program. The program determines its dtype and layout. Its values come from the
 *  thread's generator, so seed the generator to get the same input again. */
static inline ts_tensor *group_input(const group_program *p, int k, ts_device device)
{
    static const ts_dtype dtypes[] = {TS_F32, TS_F32, TS_BF16, TS_F16, TS_F64, TS_I64,
                                      TS_I32, TS_U8, TS_BOOL, TS_BF16};
    group_draw d = {p->seed * 31 + (uint64_t)k * 977 + 3};
    below(&d, 2);
    ts_dtype dtype = dtypes[below(&d, 10)];
    int64_t r = p->rows, c = p->columns;
    ts_tensor *t = ts_normal(TS_SIZES(r + 1, c + 1), 0, 2, TS_F32);
    t = ts_to_device(ts_to(dtype == TS_U8 ? ts_abs(t) : t, dtype), device);
    ts_tensor *line = ts_flatten(t, 0, -1);
    switch (below(&d, 6)) {
    case 0: return ts_narrow(ts_narrow(t, 0, 1, r), 1, 1, c); /* rows with gaps */
    case 1: return ts_narrow(line, 0, 0, c);
    case 2: return ts_narrow(ts_narrow(t, 0, 0, r), 1, 0, 1);
    case 3: return ts_transpose(ts_reshape(ts_narrow(line, 0, 0, r * c), TS_SIZES(c, r)), 0, 1);
    case 4: return ts_reshape(ts_narrow(line, 0, 1, r * c), TS_SIZES(r, c));
    default: return ts_reshape(ts_narrow(line, 0, 0, r * c), TS_SIZES(r, c));
    }
}

typedef ts_tensor *(*unary_function)(ts_tensor *);
typedef ts_tensor *(*binary_function)(ts_tensor *, ts_tensor *);

/* ops on floating dtypes */
static const unary_function group_unary[] = {
    ts_neg, ts_abs, ts_sign, ts_square, ts_floor, ts_ceil, ts_round, ts_trunc, ts_frac, ts_exp,
    ts_exp2, ts_expm1, ts_log, ts_log2, ts_log10, ts_log1p, ts_sqrt, ts_rsqrt, ts_reciprocal,
    ts_sin, ts_cos, ts_tan, ts_asin, ts_acos, ts_atan, ts_sinh, ts_cosh, ts_erf, ts_erfc, ts_relu,
    ts_sigmoid, ts_tanh, ts_log_sigmoid, ts_gelu, ts_gelu_tanh, ts_silu, ts_mish};
static const binary_function group_binary[] = {
    ts_add, ts_sub, ts_mul, ts_div, ts_maximum, ts_minimum, ts_atan2, ts_hypot, ts_pow,
    ts_remainder, ts_floor_divide, ts_sigmoid_backward, ts_tanh_backward, ts_silu_backward,
    ts_mish_backward};
/* ops that are called with two dtypes, so that an argument is cast */
static const binary_function group_mixed[] = {ts_add, ts_sub, ts_mul, ts_maximum, ts_lt, ts_atan2};
/* ops on any dtype; below: ops on integers (group_whole) and on bool (group_truth) */
static const binary_function group_compare[] = {
    ts_eq, ts_ne, ts_lt, ts_le, ts_gt, ts_ge, ts_logical_and, ts_logical_or, ts_logical_xor};
static const unary_function group_test[] = {ts_isnan, ts_isinf, ts_isfinite, ts_logical_not};
static const binary_function group_whole[] = {ts_add, ts_sub, ts_mul, ts_maximum, ts_minimum,
                                              ts_bitwise_and, ts_bitwise_or, ts_bitwise_xor};
static const binary_function group_truth[] = {ts_bitwise_and, ts_bitwise_or, ts_bitwise_xor,
                                              ts_maximum, ts_add};
static const binary_function group_in_place[] = {ts_add_, ts_sub_, ts_mul_, ts_maximum_};
#define DRAWN(list) list[below(d, sizeof list / sizeof *list)]

/** Calls a random op with a number x among its arguments. a and b have the same dtype. */
static inline ts_tensor *group_number(group_draw *d, ts_tensor *a, ts_tensor *b, double x)
{
    switch (below(d, 24)) {
    case 0: return ts_add_scalar(a, x);
    case 1: return ts_mul_scalar(a, x);
    case 2: return ts_div_scalar(a, x + 3);
    case 3: return ts_pow_scalar(a, ts_scalar_int(2 + (int)below(d, 2)));
    case 4: return ts_clamp(a, ts_scalar_float(-0.5), ts_scalar_float(x));
    case 5: return ts_clamp_min(a, ts_scalar_float(x));
    case 6: return ts_lerp_scalar(a, b, ts_scalar_float(x));
    case 7: return ts_addcmul(a, b, a, ts_scalar_float(x));
    case 8: return ts_addcdiv(a, b, a, ts_scalar_float(x));
    case 9: return ts_sub_scalar(a, x);
    case 10: return ts_maximum_scalar(a, x);
    case 11: return ts_hardtanh(a, ts_scalar_float(-1), ts_scalar_float(1));
    case 12: return ts_add_scalar(a, (int64_t)(x * 3));
    case 13: return ts_leaky_relu(a, x);
    case 14: return ts_elu(a, x);
    case 15: return ts_softplus(a, 0.7, x);
    case 16: return ts_threshold_backward(a, b, x);
    case 17: return ts_leaky_relu_backward(a, b, x);
    case 18: return ts_elu_backward(a, b, x);
    case 19: return ts_softplus_backward(a, b, 0.7, x);
    case 20: return ts_gelu_backward(a, b, x < 0);
    case 21: return ts_add(a, ts_full_like(b, x));
    default: return ts_mul(ts_add_scalar(a, x), b);
    }
}

/** Makes a drawn call on tensors of pool[0..n), most often on the newest. NULL with an error. */
static inline ts_tensor *group_step(group_draw *d, const group_program *p, ts_tensor **pool, int n)
{
    static const ts_dtype dtypes[] = {TS_F32, TS_BF16, TS_F16, TS_F64, TS_I64, TS_I32, TS_U8,
                                      TS_BOOL, TS_F32, TS_BF16};
    ts_tensor *a = pool[below(d, 3) ? (uint32_t)n - 1 : below(d, (uint32_t)n)],
              *b = pool[below(d, (uint32_t)n)];
    ts_dtype dtype = ts_dtype_of(a);
    double x = (double)below(d, 2000) / 500 - 2 + p->shift;
    uint32_t kind = below(d, 100);
    if (kind < 12)
        return ts_to(a, dtypes[below(d, 10)]);
    if (kind < 20) {
        ts_tensor *c = DRAWN(group_compare)(a, ts_dtype_of(b) == dtype ? b : ts_to(b, dtype));
        return ts_where(c, a, ts_dtype_of(b) == dtype ? b : ts_to(b, dtype));
    }
    if (kind < 24)
        return DRAWN(group_test)(a);
    if (ts_dtype_of(b) != dtype && kind >= 78 && ts_dtype_is_float(dtype) &&
        ts_dtype_of(b) != TS_BOOL && below(d, 2))
        return below(d, 3) ? DRAWN(group_mixed)(a, b) : ts_where(ts_gt(a, b), a, b);
    if (ts_dtype_of(b) != dtype)
        b = ts_to(b, dtype);
    if (kind < 28)
        return ts_masked_fill_scalar(a, ts_lt(a, b), ts_scalar_int(1));
    if (dtype == TS_BOOL)
        return DRAWN(group_truth)(a, b);
    if (!ts_dtype_is_float(dtype))
        return DRAWN(group_whole)(a, b);
    if (kind < 50)
        return DRAWN(group_unary)(a);
    if (kind < 65)
        return group_number(d, a, b, x);
    if (kind < 70 && p->random)
        return ts_dropout(a, 0.3, true);
    if (kind < 78 && n > GROUP_INPUTS && ts_numel(pool[n - 1]) == p->rows * p->columns &&
        ts_ndim(pool[n - 1]) == 2 && ts_dtype_of(pool[n - 1]) == dtype)
        return DRAWN(group_in_place)(pool[n - 1], b);
    return DRAWN(group_binary)(a, b);
}

/** The ts_trace_fn of a program; ctx is a group_program. Outputs are results of its calls. */
static inline ts_status group_function(void *ctx, ts_tensor *const *in, int n, ts_tensor **out,
                                       int m)
{
    const group_program *p = ctx;
    group_draw draw = {p->seed * 0xd1342543de82ef95ull + 11}, *d = &draw;
    ts_tensor *pool[GROUP_POOL];
    memcpy(pool, in, (size_t)n * sizeof *pool);
    for (int i = 0; i < p->calls; i++) {
        pool[n] = group_step(d, p, pool, n);
        if (!pool[n])
            return ts_error_code();
        n++;
    }
    for (int i = 0; i < m; i++)
        out[i] = pool[n - 1 - i * (n - GROUP_INPUTS) / (m + 1)];
    return TS_OK;
}

/* ------------------------------------------------------------------- the same calls ---- */

enum { ALIKE_INPUTS = 12 };

/** Input k of alike_function(): contiguous. The program determines its size and dtype, and in some
 *  programs some inputs are not 16-byte aligned. */
static inline ts_tensor *alike_input(const group_program *p, int k, ts_device device)
{
    static const int64_t sizes[] = {1, 3, 8, 100, 768, 4096, 5001, 16387};
    group_draw d = {p->seed * 37 + (uint64_t)k * 991 + 5};
    below(&d, 2);
    int64_t n = sizes[below(&d, 8)];
    ts_dtype dtype = p->seed % 3 ? TS_F32 : TS_BF16;
    ts_tensor *t = ts_to_device(ts_to(ts_normal(TS_SIZES(n + 1), 0, 2, TS_F32), dtype), device);
    return ts_narrow(t, 0, p->seed % 5 == 0 && below(&d, 2), n);
}

/** A ts_trace_fn that makes the same drawn calls on each input; ctx is a group_program. Some
 *  programs write inputs in place. */
static inline ts_status alike_function(void *ctx, ts_tensor *const *in, int n, ts_tensor **out,
                                       int m)
{
    const group_program *p = ctx;
    for (int i = 0; i < n && i < m; i++) {
        group_draw draw = {p->seed * 0xd1342543de82ef95ull + 13}, *d = &draw;
        below(d, 2);
        ts_tensor *t = in[i];
        for (int c = 0; c < 1 + p->calls % 4 && t; c++)
            switch (below(d, 5)) {
            case 0: t = ts_to(t, ts_dtype_of(t) == TS_F32 ? TS_BF16 : TS_F32); break;
            case 1: t = ts_mul_scalar(t, 0.25 * (1 + i) + p->shift); break; /* 1 for input 3 */
            case 2: t = t == in[i] ? ts_add_scalar_(t, 1 + p->shift) : ts_neg(t); break;
            case 3: t = ts_add(t, ts_square(t)); break;
            default: t = DRAWN(group_unary)(t);
            }
        if (t == in[i])
            t = ts_neg(t);
        if (!t)
            return ts_error_code();
        out[i] = t;
    }
    return TS_OK;
}

#endif
