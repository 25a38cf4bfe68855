/**
 * @file batch_norm.c
 * Batch norm and group norm: running statistics, layouts, threads, and errors.
 */
// SPDX-License-Identifier: MIT
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/tensor.h"
#include "tests/ops/images.h"

TS_TEST(running_statistics_move_by_the_momentum)
{
    TS_SCOPE;
    static const float values[] = {1, 2, 3, 4, 10, 20, 30, 40};
    ts_tensor *x = ts_from_array(values, TS_F32, TS_SIZES(2, 2, 2)),
              *mean = ts_zeros(TS_SIZES(2), TS_F32), *var = ts_ones(TS_SIZES(2), TS_F32);
    OK(ts_batch_norm(x, mean, var, TS_NONE, TS_NONE, true, 0.25, 1e-5));
    /* channel 0 has 1, 2, 10, 20: mean 8.25, squared deviations 232.75 over 3 */
    ck_assert_double_eq_tol(at(mean, 0), 0.25 * 8.25, 1e-6);
    ck_assert_double_eq_tol(at(var, 0), 0.75 + 0.25 * 232.75 / 3, 1e-5);
    ts_tensor *y = ts_batch_norm(x, mean, var, TS_NONE, TS_NONE, false, 0.25, 0);
    ck_assert_double_eq_tol(at(y, 0), (1 - at(mean, 0)) / sqrt(at(var, 0)), 1e-6);
    ck_assert_double_eq_tol(at(mean, 0), 0.25 * 8.25, 1e-6);
    /* running statistics in bf16 or f16 are rounded once per update */
    ts_tensor *half[] = {ts_to(mean, TS_BF16), ts_to(var, TS_BF16)};
    OK(ts_batch_norm(ts_to(x, TS_BF16), half[0], half[1], TS_NONE, TS_NONE, true, 1, 1e-5));
    ck_assert_double_eq(at(ts_to(half[0], TS_F32), 0), 8.25);
}

/** Result of batch norm and relu, as one op (fused) or two, and the gradients of x, w and b. */
static void normalise(bool fused, bool training, ts_tensor *const *in, ts_tensor **results)
{
    ts_tensor *x = ts_set_requires_grad(ts_detach(in[0]), true),
              *w = ts_set_requires_grad(ts_clone(in[1]), true),
              *b = ts_set_requires_grad(ts_clone(in[2]), true), *mean = ts_clone(in[3]),
              *var = ts_clone(in[4]);
    ts_tensor *y = fused ? ts_batch_norm_relu(x, mean, var, w, b, training, 0.25, 1e-5)
                         : ts_relu(ts_batch_norm(x, mean, var, w, b, training, 0.25, 1e-5));
    OK(y);
    OK(ts_backward(ts_sum(ts_mul(y, in[5]))));
    ts_tensor *all[] = {y, mean, var, ts_grad(x), ts_grad(w), ts_grad(b)};
    memcpy(results, all, sizeof all);
}

TS_TEST(batch_norm_relu_is_relu_of_batch_norm, .loop = 4)
{
    TS_SCOPE;
    ts_manual_seed(5);
    bool training = _i % 2, last = _i / 2;
    ts_tensor *in[] = {ts_normal(TS_SIZES(3, 8, 5, 4), 0, 2, TS_F32),
                       ts_normal(TS_SIZES(8), 1, 1, TS_F32), ts_normal(TS_SIZES(8), 0, 1, TS_F32),
                       ts_normal(TS_SIZES(8), 0, 1, TS_F32), ts_ones(TS_SIZES(8), TS_F32),
                       ts_normal(TS_SIZES(3, 8, 5, 4), 0, 1, TS_F32)};
    if (last)
        in[0] = ts_movedim(ts_contiguous(ts_movedim(in[0], 1, -1)), -1, 1);
    ts_tensor *one[6], *two[6];
    normalise(true, training, in, one);
    normalise(false, training, in, two);
    double active = 0;
    for (int i = 0; i < 6; i++)
        for (int64_t k = 0; k < ts_numel(one[i]); k++) {
            active += i == 0 && at(one[0], k) > 0;
            ck_assert_double_eq_tol(at(one[i], k), at(two[i], k), 1e-5);
        }
    ck_assert(active > 100 && active < 380); /* of 480 */
    ck_assert_int_eq(ts_is_contiguous(one[0]), !last);
}

TS_TEST(norms_keep_channels_last)
{
    TS_SCOPE;
    ts_manual_seed(4);
    static const int64_t shapes[][4] = {{2, 3, 5, 7}, {3, 64, 9, 9}, {1, 130, 4, 33},
                                        {2, 24, 1, 1}};
    for (int k = 0; k < 4; k++) {
        int64_t c = shapes[k][1];
        ts_tensor *values = ts_normal(shapes[k], 4, 1, 2, TS_F32), *w = ts_normal(&c, 1, 1, 1,
                                                                                  TS_F32),
                  *b = ts_normal(&c, 1, 0, 1, TS_F32), *g = ts_normal(shapes[k], 4, 0, 1, TS_F32),
                  *y[2][2], *dx[2][2], *dw[2][2];
        OK(ts_set_requires_grad(w, true));
        for (int last = 0; last < 2; last++)
            for (int op = 0; op < 2; op++) {
                ts_tensor *x = last ? last_of(values) : ts_clone(values);
                OK(ts_set_requires_grad(x, true));
                y[last][op] = op ? ts_group_norm(x, c % 3 ? 2 : 3, w, b, 1e-5)
                                 : ts_batch_norm(x, TS_NONE, TS_NONE, w, b, true, 0.1, 1e-5);
                OK(y[last][op]);
                ts_zero_grad(w);
                OK(ts_backward(ts_sum(ts_mul(y[last][op], g))));
                dx[last][op] = ts_grad(x);
                dw[last][op] = ts_clone(ts_grad(w));
                if (last && shapes[k][2] > 1)
                    ck_assert(ts_is_dense_last(y[last][op]));
            }
        /* gradients of leaves are contiguous; those of other tensors have the tensor's layout */
        ts_tensor *zeros = ts_zeros(&c, 1, TS_F32), *x = last_of(values),
                  *inner = ts_batch_norm_backward(last_of(g), x, zeros, w, w, 1, false, NULL, NULL);
        ck_assert(shapes[k][2] == 1 || ts_is_dense_last(inner));
        for (int op = 0; op < 2; op++) {
            assert_close(y[0][op], y[1][op], 2e-5);
            assert_close(dx[0][op], dx[1][op], 2e-5);
            assert_close(dw[0][op], dw[1][op], 1e-3);
        }
    }
}

/** A number from least to most; *state: of the generator, advanced. */
static int64_t drawn(uint64_t *state, int64_t least, int64_t most)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return least + (int64_t)((*state >> 33) % (uint64_t)(most - least + 1));
}

/* Channels that fill bands, strips and vectors, or not; positions of one piece or several. */
TS_TEST(drawn_norms_of_channels_last_equal_those_in_f64, .loop = 16)
{
    TS_SCOPE;
    const char *text = getenv("TS_TEST_SEED");
    uint64_t state = (text ? strtoull(text, NULL, 10) : 1) + (uint64_t)_i * 7919;
    int64_t c = drawn(&state, 1, (int64_t[]){8, 70, 300, 1300}[_i % 4]),
            h = drawn(&state, 2, c > 100 ? 20 : 60), w = drawn(&state, 2, 20);
    ts_manual_seed(state);
    ts_tensor *x = last_of(ts_normal(TS_SIZES(drawn(&state, 1, 3), c, h, w), 1, 2, TS_F32)),
              *g = last_of(ts_normal(x->sizes, 4, 0, 1, TS_F32)),
              *weight = ts_normal(&c, 1, 1, 1, TS_F32), *bias = ts_normal(&c, 1, 0, 1, TS_F32),
              *mean = ts_mean_dims(x, TS_SIZES(0, 2, 3), false), *y[3], *dx[3];
    ts_tensor *var = ts_mean_dims(ts_square(ts_sub(x, ts_reshape(mean, TS_SIZES(c, 1, 1)))),
                                  TS_SIZES(0, 2, 3), false);
    for (int k = 0; k < 3; k++) { /* 1 and 3 threads, then f64 */
        ts_dtype dtype = k < 2 ? TS_F32 : TS_F64;
        ts_set_num_threads(1 + 2 * (k & 1));
        ts_tensor *xk = ts_to(x, dtype), *gk = ts_to(g, dtype);
        if (k == 2) {
            xk = ts_clone(ts_contiguous(xk));
            gk = ts_contiguous(gk);
        }
        y[k] = ts_batch_norm(xk, TS_NONE, TS_NONE, ts_to(weight, dtype), ts_to(bias, dtype), true,
                             0.1, 1e-5);
        dx[k] = ts_batch_norm_backward(gk, xk, ts_to(mean, dtype), ts_to(var, dtype),
                                       ts_to(weight, dtype), 1e-5, false, NULL, NULL);
        OK(y[k]);
        OK(dx[k]);
    }
    ck_assert_mem_eq(ts_data(y[0]), ts_data(y[1]), (size_t)ts_numel(x) * 4);
    ck_assert_mem_eq(ts_data(dx[0]), ts_data(dx[1]), (size_t)ts_numel(x) * 4);
    assert_close(y[0], y[2], 1e-4);
    assert_close(dx[0], dx[2], 1e-4);
}

/* Gradients of group norm against those in f64, also for few positions. */
TS_TEST(drawn_group_norm_gradients_equal_those_in_f64, .loop = 16)
{
    TS_SCOPE;
    const char *text = getenv("TS_TEST_SEED");
    uint64_t state = (text ? strtoull(text, NULL, 10) : 1) + (uint64_t)_i * 7919;
    int64_t groups = drawn(&state, 1, 20), c = groups * drawn(&state, 1, 9),
            sizes[] = {drawn(&state, 1, 9), c, drawn(&state, 1, 7), drawn(&state, 2, 9)};
    ts_manual_seed(state);
    ts_tensor *x = ts_normal(sizes, 4, 1, 2, TS_F32), *g = ts_normal(sizes, 4, 0, 1, TS_F32),
              *weight = ts_normal(&c, 1, 1, 1, TS_F32),
              *rows = ts_reshape(ts_to(x, TS_F64), TS_SIZES(sizes[0], groups, -1)),
              *mean = ts_mean_dims(rows, TS_SIZES(2), true),
              *var = ts_mean_dims(ts_square(ts_sub(rows, mean)), TS_SIZES(2), false);
    mean = ts_reshape(mean, TS_SIZES(sizes[0], groups));
    x = _i % 2 ? last_of(x) : x;
    ts_tensor *dx[3], *dw[3], *db[3];
    for (int k = 0; k < 3; k++) { /* 1 and 3 threads, then f64 */
        ts_dtype dtype = k < 2 ? TS_F32 : TS_F64;
        ts_set_num_threads(1 + 2 * (k & 1));
        OK(dx[k] = ts_group_norm_backward(ts_to(g, dtype), ts_to(x, dtype), ts_to(mean, dtype),
                                          ts_to(var, dtype), ts_to(weight, dtype), groups, 1e-5,
                                          &dw[k], &db[k]));
    }
    ck_assert_mem_eq(ts_data(ts_contiguous(dx[0])), ts_data(ts_contiguous(dx[1])),
                     (size_t)ts_numel(x) * 4);
    ck_assert_mem_eq(ts_data(dw[0]), ts_data(dw[1]), (size_t)c * 4);
    assert_close(dx[0], dx[2], 1e-4);
    assert_close(dw[0], dw[2], 1e-4);
    assert_close(db[0], db[2], 1e-4);
    /* the sum over a group of a gradient of normalized values is 0 */
    ts_tensor *sums = ts_sum_dims(ts_reshape(ts_contiguous(dx[2]),
                                             TS_SIZES(sizes[0], groups, -1)), TS_SIZES(2), false);
    assert_close(sums, ts_zeros_like(sums), 1e-9);
}

TS_TEST(norms_have_the_same_bits_for_any_number_of_threads)
{
    TS_SCOPE;
    ts_manual_seed(5);
    for (int last = 0; last < 2; last++) {
        ts_tensor *x = ts_normal(TS_SIZES(5, 70, 31, 33), 0, 1, TS_F32), *y[3];
        x = last ? last_of(x) : x;
        for (int k = 0; k < 3; k++) {
            ts_set_num_threads(k + 1);
            y[k] = ts_contiguous(ts_batch_norm(x, TS_NONE, TS_NONE, TS_NONE, TS_NONE, true, 0,
                                               1e-5));
            OK(y[k]);
            ck_assert_mem_eq(ts_data(y[k]), ts_data(y[0]), (size_t)ts_numel(x) * 4);
        }
    }
}

TS_TEST(variances_survive_a_large_mean)
{
    TS_SCOPE;
    ts_tensor *x = ts_add_scalar(ts_normal(TS_SIZES(4, 3, 40, 50), 0, 1, TS_F32), 10000);
    ts_tensor *y = ts_batch_norm(x, TS_NONE, TS_NONE, TS_NONE, TS_NONE, true, 0, 0), *wide;
    OK(y);
    wide = ts_batch_norm(ts_to(x, TS_F64), TS_NONE, TS_NONE, TS_NONE, TS_NONE, true, 0, 0);
    assert_close(y, wide, 2e-3);
}

TS_TEST(wrong_calls_of_batch_norm_change_nothing)
{
    TS_SCOPE;
    ts_tensor *x = ts_ones(TS_SIZES(2, 3, 4), TS_F32), *mean = ts_zeros(TS_SIZES(3), TS_F32),
              *var = ts_ones(TS_SIZES(3), TS_F32), *other = ts_ones(TS_SIZES(4), TS_F32);
    expect_error(ts_batch_norm(x, mean, other, TS_NONE, TS_NONE, true, 0.1, 1e-5), TS_ERR_SHAPE,
                 "running_var");
    ck_assert_double_eq(at(mean, 0), 0);
    expect_error(ts_batch_norm(x, mean, var, TS_NONE, TS_NONE, true, 2, 1e-5), TS_ERR_VALUE,
                 "momentum");
    expect_error(ts_batch_norm(x, TS_NONE, TS_NONE, TS_NONE, TS_NONE, false, 0.1, 1e-5),
                 TS_ERR_NULL, "running_mean");
    expect_error(ts_batch_norm(ts_ones(TS_SIZES(1, 3), TS_F32), mean, var, TS_NONE, TS_NONE, true,
                               0.1, 1e-5), TS_ERR_SHAPE, "more than one element");
    ts_tensor *none = ts_empty(TS_SIZES(0, 3, 4), TS_F32);
    ck_assert_int_eq(ts_numel(ts_batch_norm(none, mean, var, TS_NONE, TS_NONE, true, 0.1, 1e-5)),
                     0);
    ck_assert_double_eq(at(mean, 0), 0);
}

/** Fails the case unless result is NULL and the error's text is `text`. */
static void expect_text(const void *result, const char *text)
{
    ck_assert_ptr_null(result);
    ck_assert_str_eq(ts_error_message(), text);
    ts_error_clear();
}

TS_TEST(errors_of_batch_norm_name_its_arguments, .loop = 2)
{
    TS_SCOPE;
    ts_tensor *(*norm)(ts_tensor *, ts_tensor *, ts_tensor *, ts_tensor *, ts_tensor *, bool,
                       double, double) = _i ? ts_batch_norm_relu : ts_batch_norm;
    ts_tensor *x = ts_ones(TS_SIZES(2, 3, 4), TS_F32), *mean = ts_zeros(TS_SIZES(3), TS_F32),
              *var = ts_ones(TS_SIZES(3), TS_F32), *four = ts_ones(TS_SIZES(4), TS_F32),
              *whole = ts_ones(TS_SIZES(3), TS_I64),
              *meta = ts_empty_on(TS_SIZES(3), TS_F32, TS_DEVICE_META), *none = TS_NONE;
    const struct {
        ts_tensor *self, *mean, *var;
        bool training;
        double momentum, eps;
        const char *text;
    } calls[] = {
        {x, four, four, true, 0.1, 1e-5, "argument 'running_mean': expected sizes (3), got (4)"},
        {x, four, var, false, 0.1, 1e-5, "argument 'running_mean': expected sizes (3), got (4)"},
        {x, mean, four, true, 0.1, 1e-5, "argument 'running_var': expected sizes (3), got (4)"},
        {x, mean, none, true, 0.1, 1e-5,
         "argument 'running_var': expected a tensor as argument 'running_mean', got TS_NONE"},
        {x, none, var, true, 0.1, 1e-5,
         "argument 'running_mean': expected a tensor as argument 'running_var', got TS_NONE"},
        {x, none, none, false, 0.1, 1e-5,
         "argument 'running_mean': expected a tensor in evaluation, got TS_NONE"},
        {x, mean, none, false, 0.1, 1e-5,
         "argument 'running_var': expected a tensor in evaluation, got TS_NONE"},
        {x, NULL, var, true, 0.1, 1e-5, "argument 'running_mean': expected a tensor, got NULL"},
        {x, whole, var, true, 0.1, 1e-5,
         "argument 'running_mean': expected a floating dtype, got i64"},
        {x, whole, var, false, 0.1, 1e-5,
         "argument 'running_mean': expected dtype f32 as argument 'self', got i64"},
        {x, mean, var, true, 1.5, 1e-5, "argument 'momentum': expected 0 to 1, got 1.5"},
        {x, mean, var, true, 0.1, -1, "argument 'eps': expected a finite number from 0, got -1"},
        {x, mean, var, false, 0.1, NAN, "argument 'eps': expected a finite number from 0, got nan"},
        {x, none, none, true, 0.1, INFINITY,
         "argument 'eps': expected a finite number from 0, got inf"},
        {whole, mean, var, true, 0.1, 1e-5,
         "argument 'self': expected a floating dtype, got i64"},
        {mean, mean, var, true, 0.1, 1e-5,
         "argument 'self': expected 2 dims at least, (N, C, ...), got sizes (3)"},
        {x, meta, var, true, 0.1, 1e-5,
         "argument 'running_mean': expected device cpu as argument 'self', got meta"},
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        char text[256];
        snprintf(text, sizeof text, "%s: %s", _i ? "batch_norm_relu" : "batch_norm",
                 calls[i].text);
        expect_text(norm(calls[i].self, calls[i].mean, calls[i].var, TS_NONE, TS_NONE,
                         calls[i].training, calls[i].momentum, calls[i].eps), text);
        ck_assert_double_eq(at(mean, 0), 0);
    }
}

TS_TEST(norms_refuse_an_eps_that_is_negative_or_not_finite, .loop = 3)
{
    TS_SCOPE;
    double eps = (double[]){-1e-5, NAN, INFINITY}[_i];
    ts_normalization_opts opts = {.size = sizeof opts, .eps = eps};
    ts_tensor *x = ts_ones(TS_SIZES(2, 3), TS_F32), *row = ts_ones(TS_SIZES(3), TS_F32),
              *pair = ts_ones(TS_SIZES(2, 1), TS_F32), *dw, *db;
    const void *results[] = {
        ts_group_norm(x, 1, TS_NONE, TS_NONE, eps), ts_instance_norm(x, TS_NONE, TS_NONE, eps),
        ts_layer_norm_ex(x, TS_NONE, TS_NONE, &opts), ts_rms_norm_ex(x, TS_NONE, &opts),
        ts_batch_norm_backward(x, x, row, row, TS_NONE, eps, false, &dw, &db),
        ts_batch_norm_relu_backward(x, x, row, row, TS_NONE, TS_NONE, eps, false, &dw, &db),
        ts_group_norm_backward(x, x, pair, pair, TS_NONE, 1, eps, &dw, &db)};
    for (size_t i = 0; i < sizeof results / sizeof *results; i++)
        ck_assert_ptr_null(results[i]);
    expect_error(ts_instance_norm(x, TS_NONE, TS_NONE, eps), TS_ERR_VALUE,
                 "instance_norm: argument 'eps'");
    expect_error(ts_layer_norm_ex(x, TS_NONE, TS_NONE, &opts), TS_ERR_VALUE,
                 "layer_norm: argument 'eps'");
}

/* PyTorch's list of ops that run in f32 has group norm, but not instance norm. */
TS_TEST(instance_norm_keeps_its_dtype_in_autocast_regions, .loop = 2)
{
    TS_SCOPE;
    ts_dtype dtype = _i ? TS_F32 : TS_BF16;
    ts_tensor *x = ts_set_requires_grad(ts_to(ts_normal(TS_SIZES(2, 3, 4, 5), 0, 1, TS_F32), dtype),
                                        true),
              *w = ts_ones(TS_SIZES(3), TS_F32);
    ts_tensor *want = ts_instance_norm(x, w, TS_NONE, 1e-5), *got, *group;
    {
        TS_AUTOCAST(TS_DEVICE_CPU, TS_BF16);
        OK(got = ts_instance_norm(x, w, TS_NONE, 1e-5));
        OK(group = ts_group_norm(x, 3, w, TS_NONE, 1e-5));
    }
    ck_assert_int_eq(ts_dtype_of(got), dtype);
    ck_assert_int_eq(ts_dtype_of(group), TS_F32);
    assert_close(got, want, 0);
    OK(ts_backward(ts_sum(ts_square(got))));
    ck_assert_int_eq(ts_dtype_of(ts_grad(x)), dtype);
    FAILS(TS_ERR_SHAPE, ts_instance_norm(x, ts_ones(TS_SIZES(4), TS_F32), TS_NONE, 1e-5));
    SAYS("instance_norm: argument 'weight': expected sizes (3), got (4)");
}
