/** @file higher.c  Gradients of gradients: higher orders, in-place forms, and their cost. */
// SPDX-License-Identifier: MIT
#include "tests/autograd/common.h"

#include <math.h>

static const ts_backward_opts recorded = {.size = sizeof recorded, .create_graph = true};

/** The gradient of sum(y) with respect to x, recorded so that it can be differentiated again. */
static ts_tensor *derivative(ts_tensor *y, ts_tensor *x)
{
    ts_tensor *g = NULL;
    OK(ts_grad_of(ts_sum(y), TS_NONE, &x, 1, &g, &recorded));
    return g;
}

static ts_tensor *cube_root(ts_tensor *x) { return ts_pow_scalar(x, 1.0 / 3); }
static ts_tensor *square_norm(ts_tensor *x) { return ts_square(ts_norm(x)); }

/** Third derivatives in closed form. */
TS_TEST(smooth_functions_have_third_derivatives)
{
    const double at = 0.7, s = 1 / (1 + exp(-at)), t = tanh(at),
                 phi = exp(-at * at / 2) / sqrt(2 * M_PI);
    const struct {
        const char *name;
        ts_tensor *(*fn)(ts_tensor *x);
        double want;
    } rows[] = {
        {"exp", ts_exp, exp(at)},
        {"sin", ts_sin, -cos(at)},
        {"log", ts_log, 2 / (at * at * at)},
        {"sqrt", ts_sqrt, 3.0 / 8 * pow(at, -2.5)},
        {"reciprocal", ts_reciprocal, -6 / pow(at, 4)},
        {"pow", cube_root, 10.0 / 27 * pow(at, -8.0 / 3)},
        {"sigmoid", ts_sigmoid, s * (1 - s) * (1 - 6 * s + 6 * s * s)},
        {"tanh", ts_tanh, (1 - t * t) * (6 * t * t - 2)},
        {"gelu", ts_gelu, phi * (at * at * at - 4 * at)}, /* gelu' = Phi + x phi */
        {"norm", square_norm, 0},
    };
    for (int i = 0; i < TS_COUNTOF(rows); i++) {
        TS_SCOPE;
        ts_tensor *x = leaf(at), *y = rows[i].fn(x);
        for (int order = 0; order < 3; order++)
            y = derivative(y, x);
        ck_assert_msg(fabs(value(y) - rows[i].want) <= 1e-10 * (1 + fabs(rows[i].want)),
                      "%s: %.15g, expected %.15g", rows[i].name, value(y), rows[i].want);
    }
}

TS_TEST(a_hessian_times_a_vector_costs_one_more_backward)
{
    TS_SCOPE;
    ts_tensor *m = ts_normal(TS_SIZES(5, 5), 0, 1, TS_F64),
              *v = ts_normal(TS_SIZES(5, 1), 0, 1, TS_F64);
    ts_tensor *x = parameter(5, 1), *hv;
    ts_tensor *f = ts_sum(ts_mul(x, ts_mm(m, x))); /* its Hessian is m + transpose(m) */
    OK(ts_grad_of(ts_sum(ts_mul(derivative(f, x), v)), TS_NONE, &x, 1, &hv, NULL));
    ck_assert_double_le(distance(hv, ts_mm(ts_add(m, ts_transpose(m, 0, 1)), v)), 1e-12);
}

TS_TEST(gradients_of_leaves_keep_their_history_with_create_graph)
{
    TS_SCOPE;
    ts_tensor *x = leaf(3);
    OK(ts_backward_ex(ts_mul(x, ts_mul(x, x)), TS_NONE, &recorded));
    ts_tensor *g = ts_grad(x); /* 3 x^2 */
    ck_assert(ts_requires_grad(g));
    ck_assert_double_eq_tol(value(derivative(g, x)), 18, 1e-12);
    ts_zero_grad(x);
}

TS_TEST(a_given_gradient_is_differentiated_too)
{
    TS_SCOPE;
    ts_tensor *x = leaf(2), *v = leaf(5), *g[2], *x2[] = {x, x};
    OK(ts_grad_of(ts_mul_scalar(x, 1), v, &x, 1, g, &recorded)); /* v itself */
    ck_assert_double_eq(value(derivative(g[0], v)), 1);
    /* the same input twice in the list */
    OK(ts_grad_of(ts_add(x, ts_square(x)), v, x2, 2, g, &recorded));
    ck_assert_double_eq(value(derivative(g[0], x)), 10);
    ck_assert_double_eq(value(derivative(g[1], x)), 10);
}

TS_TEST(in_place_forms_differentiate_twice)
{
    static ts_tensor *(*const forms[][2])(ts_tensor *) = {
        {ts_exp, ts_exp_}, {ts_tanh, ts_tanh_}, {ts_sigmoid, ts_sigmoid_}, {ts_sqrt, ts_sqrt_},
        {ts_reciprocal, ts_reciprocal_},
        {ts_relu, ts_relu_},
    };
    for (int i = 0; i < TS_COUNTOF(forms); i++) {
        double second[2];
        for (int k = 0; k < 2; k++) {
            TS_SCOPE;
            ts_tensor *x = leaf(0.6);
            second[k] = value(derivative(derivative(forms[i][k](ts_mul(x, x)), x), x));
        }
        ck_assert_msg(second[0] == second[1] && isfinite(second[0]),
                      "form %d: %.17g and in place %.17g", i, second[0], second[1]);
    }
}

TS_TEST(statistics_of_a_norm_have_gradients)
{
    TS_SCOPE;
    ts_tensor *x = parameter(3, 4), *mean, *rstd, *wanted, *got;
    ts_normalization_opts opts = {.size = sizeof opts, .mean = &mean, .rstd = &rstd};
    OK(ts_layer_norm_ex(x, TS_NONE, TS_NONE, &opts));
    got = derivative(ts_add(mean, ts_log(rstd)), x);
    ts_tensor *variance = ts_var_dim(x, 1, 0, true);
    wanted = derivative(
        ts_sub(ts_mean_dim(x, 1, true), ts_mul_scalar(ts_log(ts_add_scalar(variance, 1e-5)), 0.5)),
        x);
    ck_assert_double_le(distance(got, wanted), 1e-12);
    opts.mean = NULL;
    OK(ts_rms_norm_ex(x, TS_NONE, &opts));
    got = derivative(rstd, x);
    wanted = derivative(ts_rsqrt(ts_add_scalar(ts_mean_dim(ts_square(x), 1, true), 0x1p-52)), x);
    ck_assert_double_le(distance(got, wanted), 1e-12);
}

/** Counts, in one backward of layer_norm, the calls of the fused backward kernel and those of the
 *  reductions that replace it in a recorded backward. */
static void count(bool create_graph, uint64_t *fused, uint64_t *parts)
{
    TS_SCOPE;
    ts_tensor *x = parameter(4, 8), *w = parameter(1, 8);
    ts_tensor *y = ts_sum(ts_square(ts_layer_norm(x, ts_reshape(w, TS_SIZES(8)), TS_NONE)));
    ts_backward_opts opts = {.size = sizeof opts, .create_graph = create_graph};
    OK(ts_timers_enable(true));
    ts_timers_reset();
    OK(ts_backward_ex(y, TS_NONE, &opts));
    OK(ts_timers_enable(false));
    *fused = ts_timers_get("layer_norm_backward", "CPU").calls;
    *parts = ts_timers_get("mean", "CPU").calls;
    ts_zero_grad(x);
    ts_zero_grad(w);
}

TS_TEST(only_a_recorded_backward_runs_by_parts)
{
    uint64_t fused, parts;
    count(false, &fused, &parts);
    ck_assert_uint_eq(fused, 1);
    ck_assert_uint_eq(parts, 0);
    count(true, &fused, &parts);
    ck_assert_uint_eq(fused, 0);
    ck_assert_uint_eq(parts, 2);
}

TS_TEST(parts_check_their_arguments_as_the_kernel_does)
{
    TS_SCOPE;
    ts_tensor *x = parameter(3, 4), *target = ts_zeros(TS_SIZES(2, 4), TS_F64);
    FAILS(TS_ERR_SHAPE,
          ts_mse_loss_backward(ts_ones(NULL, 0, TS_F64), x, target, TS_REDUCTION_MEAN, NULL));
    SAYS("mse_loss_backward");
    SAYS("'target'");
    ts_tensor *rows = ts_zeros(TS_SIZES(3, 1), TS_F64);
    FAILS(TS_ERR_SHAPE, ts_layer_norm_backward(x, x, rows, rows, TS_NONE, 3, NULL, NULL));
    SAYS("layer_norm_backward");
}
