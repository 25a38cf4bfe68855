// Training in bf16 and f16: parameters are halves, the optimizer's arithmetic and state are f32.
// SPDX-License-Identifier: MIT
#include <math.h>
#include <string.h>

#include "include/tessera/tessera.h"
#include "tests/harness.h"

static ts_dtype half_of(int i) { return i ? TS_F16 : TS_BF16; }

TS_TEST(steps_below_the_last_bit_of_a_half_add_up, .loop = 6)
{
    TS_SCOPE;
    ts_dtype half = half_of(_i % 2);
    ts_optimizer_kind kind = (ts_optimizer_kind)(_i / 2);
    int64_t one = 1;
    ts_tensor *p = ts_set_requires_grad(ts_ones(&one, 1, half), true);
    ts_tensor *wide = ts_set_requires_grad(ts_ones(&one, 1, TS_F32), true);
    /* steps of 1e-4 are below half the spacing under 1: 2^-9 (bf16) or 2^-12 (f16) */
    ts_group_opts opts = ts_optimizer_defaults(kind, 1e-4);
    opts.momentum = kind == TS_SGD ? 0.5 : 0;
    ts_optimizer *o[2] = {ts_optimizer_new(kind), ts_optimizer_new(kind)};
    ck_assert_int_eq(ts_optimizer_add_group(o[0], (const char *[]){"p"}, &p, 1, &opts), TS_OK);
    ck_assert_int_eq(ts_optimizer_add_group(o[1], (const char *[]){"p"}, &wide, 1, &opts), TS_OK);
    for (int step = 0; step < 400; step++) {
        ck_assert_int_eq(ts_set_grad(p, ts_ones(&one, 1, half)), TS_OK);
        ck_assert_int_eq(ts_set_grad(wide, ts_ones(&one, 1, TS_F32)), TS_OK);
        ck_assert_int_eq(ts_optimizer_step(o[0]), TS_OK);
        ck_assert_int_eq(ts_optimizer_step(o[1]), TS_OK);
    }
    double got, want;
    ck_assert_int_eq(ts_item(ts_detach(p), &got), TS_OK);
    ck_assert_int_eq(ts_item(ts_to(ts_detach(wide), half), &want), TS_OK);
    ck_assert_double_eq(got, want);
    ck_assert_double_lt(got, 0.97);
    ts_named_tensors state;
    ck_assert_int_eq(ts_optimizer_state(o[0], &state), TS_OK);
    int masters = 0;
    for (int64_t i = 0; i < state.n; i++) {
        ck_assert_int_eq(ts_dtype_of(state.tensors[i]),
                         strcmp(state.names[i], "steps") ? TS_F32 : TS_I64);
        masters += strcmp(state.names[i], "master.p") == 0;
    }
    ck_assert_int_eq(masters, 1);
    ts_named_tensors_free(&state);
    ts_optimizer_free(o[0]);
    ts_optimizer_free(o[1]);
}

/** Trains a network with weights of `dtype` on sin(3x). Returns the mean loss of the last tenth of
 *  the steps, and stores the loss of the first step. */
static double train_perceptron(ts_dtype dtype, double *first)
{
    enum { STEPS = 300 };
    int64_t sizes[] = {64, 1};
    double sum = 0;
    ts_manual_seed(3);
    ts_module *m = ts_sequential_new();
    ck_assert_int_eq(ts_sequential_add(m, ts_linear_new(1, 32, true)), TS_OK);
    ck_assert_int_eq(ts_sequential_add(m, ts_activation_new("GELU", ts_gelu)), TS_OK);
    ck_assert_int_eq(ts_sequential_add(m, ts_linear_new(32, 1, true)), TS_OK);
    ck_assert_int_eq(ts_module_to(m, dtype), TS_OK);
    ts_group_opts opts = ts_optimizer_defaults(TS_ADAMW, 0.01);
    ts_optimizer *o = ts_optimizer_for(m, TS_ADAMW, &opts);
    ck_assert_ptr_nonnull(o);
    for (int step = 0; step < STEPS; step++) {
        TS_SCOPE;
        ts_tensor *x = ts_uniform(sizes, 2, -1, 1, TS_F32), *y = ts_sin(ts_mul_scalar(x, 3));
        ts_tensor *loss = ts_mse_loss(ts_forward(m, ts_to(x, dtype)), ts_to(y, dtype));
        double value = NAN;
        ck_assert_int_eq(ts_item(loss, &value), TS_OK);
        ck_assert_int_eq(ts_backward(loss), TS_OK);
        ck_assert_int_eq(ts_optimizer_step(o), TS_OK);
        ts_optimizer_zero_grad(o);
        if (step == 0)
            *first = value;
        sum += step >= STEPS - STEPS / 10 ? value / (STEPS / 10) : 0;
    }
    ts_optimizer_free(o);
    ts_module_free(m);
    return sum;
}

TS_TEST(a_perceptron_of_halves_learns_as_one_of_f32, .loop = 2)
{
    double first, begin, single = train_perceptron(TS_F32, &first),
                         got = train_perceptron(half_of(_i), &begin);
    ck_assert_double_eq_tol(begin, first, 0.02 * first);
    ck_assert_double_lt(got, first / 20);
    ck_assert_double_lt(got, 1.5 * single + 1e-3);
}

/** Calls one of four ops that save f32 statistics for bf16 and f16 arguments. */
static ts_tensor *call_with_statistics(int op, ts_tensor *x)
{
    switch (op) {
    case 0: return ts_layer_norm(x, ts_ones(TS_SIZES(8), ts_dtype_of(x)), TS_NONE);
    case 1: return ts_rms_norm(x, TS_NONE);
    case 2: return ts_cross_entropy(x, ts_zeros(TS_SIZES(4), TS_I64));
    default: {
        ts_tensor *q = ts_reshape(x, TS_SIZES(1, 1, 4, 8));
        return ts_scaled_dot_product_attention(q, q, q);
    }
    }
}

TS_TEST(statistics_of_f32_serve_second_gradients_of_halves, .loop = 8)
{
    TS_SCOPE;
    double norms[2];
    for (int k = 0; k < 2; k++) {
        ts_manual_seed(1);
        ts_dtype dtype = k ? half_of(_i % 2) : TS_F32;
        ts_tensor *x =
            ts_set_requires_grad(ts_to(ts_normal(TS_SIZES(4, 8), 0, 1, TS_F32), dtype), true);
        ts_tensor *loss = ts_sum(ts_square(call_with_statistics(_i / 2, x)));
        ck_assert_ptr_nonnull(loss);
        ck_assert_int_eq(
            ts_backward_ex(loss, TS_NONE, TS_OPTS(ts_backward_opts, .create_graph = true)), TS_OK);
        ts_tensor *g = ts_grad(x);
        ck_assert_int_eq(ts_dtype_of(g), dtype);
        ts_tensor *again = ts_sum(ts_square(ts_to(g, TS_F32)));
        ts_zero_grad(x);
        ck_assert_msg(ts_backward(again) == TS_OK, "%s", ts_error_message());
        ck_assert_int_eq(ts_dtype_of(ts_grad(x)), dtype);
        ck_assert_int_eq(
            ts_item(ts_global_norm((ts_tensor *[]){ts_detach(ts_grad(x))}, 1), &norms[k]), TS_OK);
    }
    ck_assert_double_eq_tol(norms[1], norms[0], 0.1 * norms[0] + 0.1);
}
