/**
 * @file batch_norm.c
 * Batch norm and group norm: running statistics, layouts, threads, and errors.
 */
// SPDX-License-Identifier: MIT
#include <math.h>
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
