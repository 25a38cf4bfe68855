/** @file activation.c  Activation functions and their fused gradients. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/loops.h"
#include "backends/cpu/recipes.h"
#include "backends/cpu/vmath.h"
#include "ops/kernel.h"

/* x is an element; in a gradient a is the upstream gradient and b the saved tensor. */
#define FORWARD(name, f32_expr, f64_expr) \
    TS_LOOP1(vf, name##_f32, f32_expr)    \
    TS_LOOP1(vd, name##_f64, f64_expr)
#define BACKWARD(name, f32_expr, f64_expr) \
    TS_LOOP2(vf, name##_f32, f32_expr)     \
    TS_LOOP2(vd, name##_f64, f64_expr)
#define FLOAT_LOOPS(name) [TS_F32] = name##_f32, [TS_F64] = name##_f64
#define REAL_LOOPS(name) FLOAT_LOOPS(name), [TS_BF16] = name##_bf16, [TS_F16] = name##_f16
#define KERNEL(name, cost, params, ...)                                  \
    static ts_status name##_kernel(ts_frame *f)                          \
    {                                                                    \
        static const ts_loop loops[TS_DTYPE_COUNT] = {__VA_ARGS__};      \
        return ts_cpu_pointwise(f, loops, params, cost);                 \
    }
/* params of a loop: the op's numeric arguments, as doubles. */
#define P(i) (((const double *)params)[i])
#define PF(i) vf_set1((float)P(i))
#define PD(i) vd_set1(P(i))

/* ---------------------------------------------------------------------- piecewise linear ---- */

FORWARD(relu, vf_max_fast(vf_zero(), x), vd_max_fast(vd_zero(), x))
TS_HALF_LOOPS(1, relu)
TS_SCALAR_LOOP1(int64_t, int64_t, relu_i64, x > 0 ? x : 0)
TS_SCALAR_LOOP1(int32_t, int32_t, relu_i32, x > 0 ? x : 0)
TS_SCALAR_LOOP1(uint8_t, uint8_t, relu_u8, x)
KERNEL(relu, 1, NULL,
       REAL_LOOPS(relu), [TS_I64] = relu_i64, [TS_I32] = relu_i32, [TS_U8] = relu_u8)

BACKWARD(threshold_backward, vf_select(vf_le(b, PF(0)), vf_zero(), a),
         vd_select(vd_le(b, PD(0)), vd_zero(), a))
TS_HALF_LOOPS(2, threshold_backward)
KERNEL(threshold_backward, 2, &f->args[2].d, REAL_LOOPS(threshold_backward))

FORWARD(leaky_relu, vf_select(vf_gt(x, vf_zero()), x, x * PF(0)),
        vd_select(vd_gt(x, vd_zero()), x, x * PD(0)))
TS_HALF_LOOPS(1, leaky_relu)
KERNEL(leaky_relu, 1, &f->args[1].d, REAL_LOOPS(leaky_relu))
BACKWARD(leaky_relu_backward, vf_select(vf_gt(b, vf_zero()), a, a * PF(0)),
         vd_select(vd_gt(b, vd_zero()), a, a * PD(0)))
TS_HALF_LOOPS(2, leaky_relu_backward)
KERNEL(leaky_relu_backward, 2, &f->args[2].d, REAL_LOOPS(leaky_relu_backward))

/* -------------------------------------------------------------------------- exponential ---- */

FORWARD(elu, vf_select(vf_gt(x, vf_zero()), x, PF(0) * vf_expm1(x)),
        vd_select(vd_gt(x, vd_zero()), x, PD(0) * vd_expm1(x)))
KERNEL(elu, 4, &f->args[1].d, FLOAT_LOOPS(elu))
BACKWARD(elu_backward, vf_select(vf_gt(b, vf_zero()), a, a * PF(0) * vf_exp(b)),
         vd_select(vd_gt(b, vd_zero()), a, a * PD(0) * vd_exp(b)))
KERNEL(elu_backward, 4, &f->args[2].d, FLOAT_LOOPS(elu_backward))

FORWARD(sigmoid, vf_sigmoid(x), vd_sigmoid(x))
KERNEL(sigmoid, 4, NULL, FLOAT_LOOPS(sigmoid))
BACKWARD(sigmoid_backward, a * (1.0f - b) * b, a * (1.0 - b) * b)
TS_HALF_LOOPS(2, sigmoid_backward)
KERNEL(sigmoid_backward, 2, NULL, REAL_LOOPS(sigmoid_backward))

FORWARD(tanh, vf_tanh(x), vd_tanh(x))
KERNEL(tanh, 4, NULL, FLOAT_LOOPS(tanh))
BACKWARD(tanh_backward, a * (1.0f - b * b), a * (1.0 - b * b))
TS_HALF_LOOPS(2, tanh_backward)
KERNEL(tanh_backward, 2, NULL, REAL_LOOPS(tanh_backward))

FORWARD(log_sigmoid, vf_neg(vf_softplus(vf_neg(x))), vd_neg(vd_softplus(vd_neg(x))))
KERNEL(log_sigmoid, 6, NULL, FLOAT_LOOPS(log_sigmoid))

FORWARD(silu, vf_silu(x), vd_silu(x))
KERNEL(silu, 4, NULL, FLOAT_LOOPS(silu))
BACKWARD(silu_backward, a * vf_silu_grad(b), a * vd_silu_grad(b))
KERNEL(silu_backward, 4, NULL, FLOAT_LOOPS(silu_backward))

/* softplus: log(1 + exp(beta x)) / beta, or x where beta x > threshold. P(0): beta; P(1):
 * threshold */
FORWARD(softplus, vf_select(vf_gt(x * PF(0), PF(1)), x, vf_softplus(x * PF(0)) / PF(0)),
        vd_select(vd_gt(x * PD(0), PD(1)), x, vd_softplus(x * PD(0)) / PD(0)))
BACKWARD(softplus_backward, vf_select(vf_gt(b * PF(0), PF(1)), a, a * vf_sigmoid(b * PF(0))),
         vd_select(vd_gt(b * PD(0), PD(1)), a, a * vd_sigmoid(b * PD(0))))

static ts_status softplus_kernel(ts_frame *f)
{
    static const ts_loop loops[TS_DTYPE_COUNT] = {FLOAT_LOOPS(softplus)};
    double params[] = {f->args[1].d, f->args[2].d};
    return ts_cpu_pointwise(f, loops, params, 6);
}
static ts_status softplus_backward_kernel(ts_frame *f)
{
    static const ts_loop loops[TS_DTYPE_COUNT] = {FLOAT_LOOPS(softplus_backward)};
    double params[] = {f->args[2].d, f->args[3].d};
    return ts_cpu_pointwise(f, loops, params, 4);
}

FORWARD(mish, x * vf_tanh(vf_softplus(x)), x * vd_tanh(vd_softplus(x)))
KERNEL(mish, 10, NULL, FLOAT_LOOPS(mish))
BACKWARD(mish_backward, a * vf_mish_grad(b), a * vd_mish_grad(b))
KERNEL(mish_backward, 6, NULL, FLOAT_LOOPS(mish_backward))

/* --------------------------------------------------------------------------------- gelu ---- */

FORWARD(gelu, vf_gelu(x), vd_gelu(x))
FORWARD(gelu_tanh, vf_gelu_tanh(x), vd_gelu_tanh(x))
BACKWARD(gelu_backward, a * vf_gelu_grad(b), a * vd_gelu_grad(b))
BACKWARD(gelu_tanh_backward, a * vf_gelu_tanh_grad(b), a * vd_gelu_tanh_grad(b))

static ts_status gelu_kernel(ts_frame *f)
{
    static const ts_loop loops[2][TS_DTYPE_COUNT] = {{FLOAT_LOOPS(gelu)}, {FLOAT_LOOPS(gelu_tanh)}};
    return ts_cpu_pointwise(f, loops[f->args[1].i != 0], NULL, 5);
}
static ts_status gelu_backward_kernel(ts_frame *f)
{
    static const ts_loop loops[2][TS_DTYPE_COUNT] = {{FLOAT_LOOPS(gelu_backward)},
                                                     {FLOAT_LOOPS(gelu_tanh_backward)}};
    return ts_cpu_pointwise(f, loops[f->args[2].i != 0], NULL, 6);
}

/* --------------------------------------------------------------------------- recipes ---- */

static const char *gelu_recipe(const ts_frame *f, double *numbers)
{
    (void)numbers;
    if (f->plan->compute == TS_F64)
        return f->args[1].i ? RECIPE_GELU_TANH(D) : NULL;
    return f->args[1].i ? RECIPE_GELU_TANH(F) : RECIPE_GELU;
}
static const char *gelu_backward_recipe(const ts_frame *f, double *numbers)
{
    (void)numbers;
    if (f->plan->compute == TS_F64)
        return f->args[2].i ? RECIPE_GELU_TANH_BACKWARD(D) : NULL;
    return f->args[2].i ? RECIPE_GELU_TANH_BACKWARD(F) : RECIPE_GELU_BACKWARD;
}

#define REAL_RECIPE(name, text) TS_RECIPE(name, TS_TEXTS(text))
TS_CPU_RECIPES(activation,
    TS_RECIPE(sigmoid, RECIPE_BOTH(SIGMOID)), TS_RECIPE(tanh, RECIPE_BOTH(TANH)),
    TS_RECIPE(silu, RECIPE_BOTH(SILU)), TS_RECIPE(gelu, .choose = gelu_recipe),
    TS_RECIPE(silu_backward, RECIPE_BOTH(SILU_BACKWARD)),
    TS_RECIPE(gelu_backward, .choose = gelu_backward_recipe),
    TS_RECIPE(elu, RECIPE_BOTH(ELU)), TS_RECIPE(elu_backward, RECIPE_BOTH(ELU_BACKWARD)),
    TS_RECIPE(relu, TS_TEXTS("0 a max"), TS_WHOLES("a #0 imax")),
    REAL_RECIPE(threshold_backward, "b n2 le 0 a sel"),
    REAL_RECIPE(leaky_relu, "a 0 gt a a n1 mul sel"),
    REAL_RECIPE(leaky_relu_backward, "b 0 gt a a n2 mul sel"),
    REAL_RECIPE(sigmoid_backward, "a 1 b sub mul b mul"),
    REAL_RECIPE(tanh_backward, "a 1 b b mul sub mul"))

#define ROW(name) {TS_OP_##name, name##_kernel, TS_CPU_POINTWISE}

TS_CPU_FAMILY(activation,
    ROW(relu), ROW(threshold_backward), ROW(leaky_relu), ROW(leaky_relu_backward),
    ROW(elu), ROW(elu_backward), ROW(sigmoid), ROW(sigmoid_backward), ROW(tanh), ROW(tanh_backward),
    ROW(log_sigmoid), ROW(silu), ROW(silu_backward), ROW(softplus), ROW(softplus_backward),
    ROW(mish), ROW(mish_backward), ROW(gelu), ROW(gelu_backward))
