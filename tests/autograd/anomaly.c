/** @file anomaly.c  Anomaly mode, and the errors of a backward: both name the forward call. */
// SPDX-License-Identifier: MIT
#include "tests/autograd/common.h"

static ts_tensor *pair(double a, double b)
{
    double v[] = {a, b};
    return ts_set_requires_grad(ts_from_array(v, TS_F64, TS_SIZES(2)), true);
}

TS_TEST(the_first_gradient_that_is_not_finite_ends_the_backward_and_names_its_call)
{
    TS_SCOPE;
    ts_tensor *x = pair(0, 4);
    OK(ts_backward(ts_sum(ts_mul(ts_sqrt(x), ts_sqrt(x))))); /* mode off: a NaN is not an error */
    ts_zero_grad(x);
    ck_assert(!ts_anomaly_enabled());
    ts_anomaly_enable(true);
    ck_assert(ts_anomaly_enabled());
    ts_tensor *root = ts_sqrt(x), *loss = ts_sum(ts_mul_scalar(root, 3));
    FAILS(TS_ERR_AUTOGRAD, ts_backward(loss));
    SAYS("sqrt: the gradient that its backward gave for input 0 is Inf");
    SAYS("forward call: sqrt((2) f64), called at ");
    SAYS("test_autograd");
    ck_assert_str_eq(ts_error_op(), "sqrt");
    ck_assert_ptr_eq(ts_grad(x), TS_NONE);
    FAILS(TS_ERR_AUTOGRAD, ts_backward(ts_sum(ts_mul_scalar(ts_sqrt(x), 0)))); /* 0 / 0 */
    SAYS("for input 0 is NaN");
    FAILS(TS_ERR_AUTOGRAD,
          ts_backward_ex(ts_mul_scalar(x, 2),
                         ts_full(TS_SIZES(2), ts_scalar_float(1e308 * 10), TS_F64), NULL));
    SAYS("starts with a gradient that is not finite");
    OK(ts_backward(ts_sum(ts_sqrt(ts_add_scalar(x, 1)))));
    ts_anomaly_enable(false);
    ts_zero_grad(x);
    OK(ts_backward(ts_sum(ts_mul_scalar(ts_sqrt(x), 3)))); /* mode off: Inf is not an error */
    ck_assert_double_gt(value(ts_max(ts_grad(x))), 1e300);
}

TS_TEST(other_errors_of_a_backward_name_the_forward_call_too)
{
    TS_SCOPE;
    ts_anomaly_enable(true);
    ts_tensor *x = pair(1, 2), *y = ts_mul(x, x), *sum = ts_sum_dim(y, 0, true);
    OK(ts_backward(sum));
    FAILS(TS_ERR_AUTOGRAD, ts_backward(sum));
    SAYS("mul: backward runs a second time");
    SAYS("; forward call: mul((2) f64, (2) f64), called at ");
    ck_assert_str_eq(ts_error_hint(), "pass retain_graph to the first backward");
    ts_anomaly_enable(false);
    FAILS(TS_ERR_AUTOGRAD, ts_backward(sum));
    ck_assert_ptr_null(strstr(ts_error_message(), "forward call"));
}

static ts_status forward(ts_function_call *call, void *ctx, ts_tensor *const *in, int n,
                         ts_tensor **out, int m)
{
    (void)call, (void)ctx, (void)n, (void)m;
    out[0] = ts_clone(in[0]);
    return TS_OK;
}

static ts_status no_number(ts_function_call *call, void *ctx, ts_tensor *const *g, int m,
                           ts_tensor **out, int n)
{
    (void)call, (void)ctx, (void)m, (void)n;
    out[0] = ts_div(g[0], ts_sub(g[0], g[0]));
    return TS_OK;
}

static ts_status fails(ts_function_call *call, void *ctx, ts_tensor *const *g, int m,
                       ts_tensor **out, int n)
{
    (void)call, (void)ctx, (void)g, (void)m, (void)out, (void)n;
    return ts_error_set(TS_ERR_STATE, "no today");
}

TS_TEST(user_functions_are_named_like_ops)
{
    TS_SCOPE;
    ts_anomaly_enable(true);
    ts_function f = {.size = sizeof f, .name = "mine", .forward = forward, .backward = no_number};
    ts_tensor *x = pair(1, 2), *y;
    OK(ts_function_apply(&f, NULL, &x, 1, &y, 1));
    FAILS(TS_ERR_AUTOGRAD, ts_backward(ts_sum(y)));
    SAYS("mine: the gradient that its backward gave for input 0 is Inf");
    SAYS("; forward call: mine([(2) f64]), called at ");
    f.backward = fails;
    OK(ts_function_apply(&f, NULL, &x, 1, &y, 1));
    FAILS(TS_ERR_STATE, ts_backward(ts_sum(y)));
    SAYS("mine: in backward: no today; forward call: mine([(2) f64]), called at ");
    ts_anomaly_enable(false);
}
