/** @file again.c  Plans that recompute values to lower their peak memory, and arenas of plans. */
// SPDX-License-Identifier: MIT
#include "compile/testing.h"
#include "tests/compile/explains.h"
#include "tests/compile/whole.h"

typedef struct model {
    ts_tensor *w[4];
    double dropout;
} model;

static model model_new(double dropout)
{
    model m = {.dropout = dropout};
    for (int i = 0; i < 4; i++) {
        ts_tensor *w = ts_mul_scalar(numbers((uint64_t)i + 5, TS_SIZES(64, 64)), 0.2);
        m.w[i] = ts_set_requires_grad(ts_retain(ts_to_device(w, ts_default_device())), true);
    }
    return m;
}
static void model_free(model *own)
{
    for (int i = 0; i < 4; i++)
        ts_release(own->w[i]);
}

/** Layers with a residual, a norm, two activations and dropout; gradients and a step of SGD. */
static ts_status train(TRACED)
{
    model *own = ctx;
    TS_SCOPE;
    ts_tensor *x = in[0];
    for (int i = 0; i < 4; i += 2) {
        ts_tensor *h = ts_gelu(ts_linear(ts_layer_norm(x, TS_NONE, TS_NONE), own->w[i], TS_NONE));
        if (own->dropout > 0)
            h = ts_dropout(h, own->dropout, true);
        x = ts_add(x, ts_silu(ts_linear(h, own->w[i + 1], TS_NONE)));
    }
    ts_tensor *loss = ts_mean(ts_mul(x, x));
    TS_TRY(ts_backward(loss));
    TS_NO_GRAD;
    for (int i = 0; i < 4; i++) {
        TS_TRY(ts_add_(own->w[i], ts_mul_scalar(ts_grad(own->w[i]), -0.1)));
        ts_zero_grad(own->w[i]);
    }
    return TS_STATUS_OF(out[0] = ts_keep(ts_detach(loss)));
}

/** Runs steps eagerly and compiled; checks equal bits of losses and weights. */
static ts_compile_stats check_steps(double dropout, const ts_compile_opts *opts)
{
    TS_SCOPE;
    model a = model_new(dropout), b = model_new(dropout);
    ts_compiled *c = ts_compile(train, &a, opts);
    OK(c);
    for (uint64_t k = 0; k < 6; k++) {
        TS_SCOPE;
        ts_tensor *x = ts_to_device(numbers(30 + k, TS_SIZES(512, 64)), ts_default_device()),
                  *loss, *want;
        ts_manual_seed(k);
        OK(ts_compiled_call(c, &x, 1, &loss, 1));
        ts_manual_seed(k);
        OK(train(&b, &x, 1, &want, 1));
        ck_assert(same_values(loss, want));
        for (int i = 0; i < 4; i++)
            ck_assert(same_values(a.w[i], b.w[i]));
    }
    ts_compile_stats stats = ts_compiled_get_stats(c);
    if (stats.recomputed)
        ck_assert(explains(c, " recomputed calls"));
    ts_compiled_free(c);
    model_free(&a);
    model_free(&b);
    return stats;
}

TS_TEST(steps_that_compute_values_again_have_the_bits_of_calls, .loop = 3)
{
    ts_compile_opts opts = {.size = sizeof opts, .recompute = 1, .replay = _i == 1,
                            .max_groups = _i == 2 ? -1 : 0};
    ts_compile_stats stats = check_steps(0, &opts);
    ck_assert_int_gt(stats.recomputed, 3);
    ck_assert_int_lt(stats.peak * 10, stats.kept_peak * 9);
}

/* A recomputed dropout mask has the random words of the first computation. */
TS_TEST(dropout_is_drawn_again, .loop = 2, .setup = set_up_whole_groups,
        .teardown = tear_down_whole)
{
    ts_compile_opts opts = {.size = sizeof opts, .recompute = 1, .graph = _i};
    OK(ts_set_default_device(device));
    ts_compile_stats stats = check_steps(0.4, &opts);
    ck_assert_int_gt(stats.recomputed, 3);
    ck_assert_int_eq(stats.replays > 0, _i);
    OK(ts_set_default_device(TS_DEVICE_CPU));
}

TS_TEST(only_plans_that_need_much_memory_compute_values_again)
{
    ts_compile_opts opts = {.size = sizeof opts};
    ts_compile_stats stats = check_steps(0, &opts);
    ck_assert_int_eq(stats.recomputed, 0);
    ck_assert_int_eq(stats.peak, stats.kept_peak);
    opts.recompute = stats.peak;
    ck_assert_int_eq(check_steps(0, &opts).recomputed, 0);
    opts.recompute = stats.peak - 1;
    ck_assert_int_gt(check_steps(0, &opts).recomputed, 0);
    opts.recompute = -1;
    ck_assert_int_eq(check_steps(0, &opts).recomputed, 0);
    opts.recompute = -2;
    FAILS(TS_ERR_VALUE, ts_compile(train, NULL, &opts));
}

/** g is read before and after the peak; it can be computed from y, which is kept in any case. */
static ts_status around_a_peak(TRACED)
{
    TS_SCOPE;
    ts_tensor *y = ts_matmul(in[0], in[0]), *g = ts_gelu(y), *product = ts_matmul(g, g);
    ts_tensor *large = ts_matmul(in[1], product),
              *all = ts_matmul(ts_transpose(large, 0, 1), large);
    return TS_STATUS_OF(out[0] = ts_keep(ts_matmul(ts_matmul(all, g), y)));
}

/* The call could also join the step of its product, before the peak. */
TS_TEST(a_value_that_is_computed_again_is_in_no_epilogue_before_the_peak,
        .setup = set_up_whole_groups, .teardown = tear_down_whole)
{
    TS_SCOPE;
    ts_compiled *c = ts_compile(around_a_peak, NULL, TS_OPTS(ts_compile_opts, .recompute = 1));
    ts_tensor *in[] = {remote(3, TS_SIZES(32, 32)), remote(4, TS_SIZES(128, 32))}, *got, *want;
    OK(ts_compiled_call(c, in, 2, &got, 1));
    OK(around_a_peak(NULL, in, 2, &want, 1));
    ck_assert(same_values(got, want));
    ts_compile_stats stats = ts_compiled_get_stats(c);
    ck_assert_int_eq(stats.recomputed, 1);
    ck_assert_int_lt(stats.peak, stats.kept_peak);
    ck_assert(explains(c, "product with an epilogue"));
    ts_compiled_free(c);
}

/** g and h depend on in[1], which is written before their last use: they cannot be recomputed. */
static ts_status changed(TRACED)
{
    TS_SCOPE;
    ts_tensor *h = ts_gelu(ts_mul(in[0], in[1])), *g = ts_exp(h);
    ts_tensor *product = ts_matmul(g, ts_transpose(h, 0, 1));
    TS_TRY(ts_mul_scalar_(in[1], 0.5));
    for (int i = 0; i < 4; i++) /* the peak of memory, between the uses of g and h */
        product = ts_matmul(product, product);
    return TS_STATUS_OF(out[0] = ts_keep(ts_matmul(product, ts_add(g, h))));
}

TS_TEST(a_value_is_kept_if_its_arguments_change)
{
    TS_SCOPE;
    ts_compiled *c = ts_compile(changed, NULL, TS_OPTS(ts_compile_opts, .recompute = 1));
    for (int turn = 0; turn < 3; turn++) {
        ts_tensor *in[2][2], *out[2];
        for (int k = 0; k < 2; k++) {
            in[k][0] = ts_mul_scalar(numbers(3, TS_SIZES(100, 100)), 0.01);
            in[k][1] = numbers(4, TS_SIZES(100, 100));
        }
        OK(changed(NULL, in[0], 2, &out[0], 1));
        OK(ts_compiled_call(c, in[1], 2, &out[1], 1));
        ck_assert(same(out[0], out[1]));
        ck_assert(same(in[0][1], in[1][1]));
    }
    ts_compiled_free(c);
}

/** `square` is written after its last read and before the second use of h = exp(square). */
static ts_status overwritten(TRACED)
{
    ts_tensor *square = ts_mul(in[0], in[0]), *h = ts_exp(square), *product = ts_matmul(h, h);
    for (int i = 0; i < 4; i++)
        product = ts_matmul(product, product);
    TS_TRY(ts_fill_(square, 7));
    return TS_STATUS_OF(out[0] = ts_sum(ts_mul(h, product)));
}

TS_TEST(a_write_that_nothing_reads_does_not_reach_copies)
{
    TS_SCOPE;
    ts_tensor *x = ts_mul_scalar(numbers(3, TS_SIZES(100, 100)), 0.01), *y, *want;
    ts_compiled *c = ts_compile(overwritten, NULL, TS_OPTS(ts_compile_opts, .recompute = 1));
    OK(ts_compiled_call(c, &x, 1, &y, 1));
    OK(overwritten(NULL, &x, 1, &want, 1));
    ck_assert(same(y, want));
    ck_assert_int_eq(ts_compiled_get_stats(c).recomputed, 2);
    ts_compiled_free(c);
}

/* --------------------------------------------------------------------------------- order ---- */

/** n 2: `big` has one use, long after it is made. n 1: `big` is used at once and again at the end.
 *  Each product has as many bytes as in[0]. */
static ts_status wait_for_products(TRACED)
{
    ts_tensor *big = ts_exp(in[0]), *t = n > 1 ? in[1] : ts_matmul(big, big);
    for (int i = 0; i < 5; i++)
        t = ts_matmul(t, t);
    return TS_STATUS_OF(out[0] = ts_add(ts_sum(t), ts_sum(big)));
}

TS_TEST(a_step_moves_where_memory_peaks_lower, .loop = 2)
{
    TS_SCOPE;
    int64_t bytes = 200 * 200 * 4;
    ts_tensor *in[] = {ts_mul_scalar(numbers(1, TS_SIZES(200, 200)), 0.01),
                       ts_mul_scalar(numbers(2, TS_SIZES(200, 200)), 0.01)}, *y, *want;
    ts_compiled *c = ts_compile(wait_for_products, NULL, NULL);
    OK(ts_compiled_call(c, in, 1 + _i, &y, 1));
    OK(wait_for_products(NULL, in, 1 + _i, &want, 1));
    ck_assert(same(y, want));
    /* two products, but not also `big` */
    ck_assert_int_lt(ts_compiled_get_stats(c).peak, 2 * bytes + 1000);
    ts_compiled_free(c);
}

/* -------------------------------------------------------------------------------- arenas ---- */

static int poisoned;
static ts_status negate(ts_frame *f)
{
    const float *x = (const float *)f->args[0].t->data;
    float *y = (float *)f->rets[0].t->data;
    const unsigned char *bytes = (const unsigned char *)y;
    size_t n = (size_t)f->args[0].t->numel, k = 0;
    while (k < n * sizeof *y && bytes[k] == 255)
        k++;
    poisoned += k == n * sizeof *y;
    for (k = 0; k < n; k++)
        y[k] = -x[k];
    return TS_OK;
}
static ts_status negate_often(TRACED)
{
    return TS_STATUS_OF(out[0] = ts_neg(ts_neg(ts_neg(in[0]))));
}

TS_TEST(a_poisoned_arena_is_overwritten_before_each_use)
{
    TS_SCOPE;
    ts_kernel_opts fills = {.size = sizeof fills, .dtypes = TS_DTYPE_BIT(TS_F32)};
    OK(ts_register_kernel_ex("neg", TS_KEY_CPU, negate, &fills, NULL));
    ts_tensor *x = numbers(1, TS_SIZES(300)), *y;
    ts_compiled *c = ts_compile(negate_often, NULL, TS_OPTS(ts_compile_opts, .max_groups = -1));
    for (int on = 0; on < 2; on++) {
        poisoned = 0;
        ts_arena_poison(on);
        OK(ts_compiled_call(c, &x, 1, &y, 1));
        ck_assert_int_eq(poisoned, on ? 2 : 0); /* the output is not in the arena */
        ck_assert(same(y, ts_neg(x)));
    }
    ts_arena_poison(false);
    ts_compiled_free(c);
}
