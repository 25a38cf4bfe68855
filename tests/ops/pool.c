/**
 * @file pool.c
 * Pooling, padding and resizing: public functions, layouts, and errors.
 */
// SPDX-License-Identifier: MIT
#include <math.h>
#include <stdlib.h>

#include "core/tensor.h"
#include "tests/ops/images.h"

#define POOL(...) (&(ts_pool_opts){.size = sizeof(ts_pool_opts), __VA_ARGS__})
#define RESIZE(...) (&(ts_interpolate_opts){.size = sizeof(ts_interpolate_opts), __VA_ARGS__})

TS_TEST(pools_take_one_sample_and_default_strides)
{
    TS_SCOPE;
    static const float values[] = {1, 5, 2, 0, 3, 4};
    ts_tensor *x = ts_from_array(values, TS_F32, TS_SIZES(1, 6)), *places = NULL;
    ts_tensor *y = ts_max_pool1d(x, POOL(.kernel = {2}), &places);
    OK(y);
    ck_assert_int_eq(ts_ndim(y), 2);
    ck_assert_double_eq(at(y, 0), 5);
    ck_assert_double_eq(at(y, 1), 2);
    ck_assert_int_eq(((const int64_t *)ts_data(places))[2], 5);
    y = ts_avg_pool1d(x, POOL(.kernel = {3}, .stride = {2}, .padding = {1},
                              .exclude_padding = true));
    ck_assert_double_eq(at(y, 0), 3);
    y = ts_avg_pool1d(x, POOL(.kernel = {3}, .stride = {2}, .padding = {1}));
    ck_assert_double_eq(at(y, 0), 2);
    y = ts_avg_pool1d(x, POOL(.kernel = {2}, .divisor = 4));
    ck_assert_double_eq(at(y, 0), 1.5);
    ck_assert_int_eq(ts_size(ts_max_pool1d(x, POOL(.kernel = {4}, .stride = {3}), NULL), 1), 1);
    ck_assert_int_eq(ts_size(ts_max_pool1d(x, POOL(.kernel = {4}, .stride = {3}, .ceil = true),
                                           NULL), 1), 2);
}

/** The function that a test runs on both layouts. */
static ts_tensor *run(int op, ts_tensor *x)
{
    switch (op) {
    case 0: return ts_max_pool2d(x, POOL(.kernel = {3, 2}, .stride = {2, 1}, .padding = {1, 0}),
                                 NULL);
    case 1: return ts_avg_pool2d(x, POOL(.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}));
    case 2: return ts_adaptive_avg_pool(x, TS_SIZES(3, 2));
    case 3: return ts_adaptive_max_pool(x, TS_SIZES(2, 3), NULL);
    case 4: return ts_interpolate(x, RESIZE(.sizes = {12, 9}, .mode = TS_LINEAR));
    case 5: return ts_interpolate(x, RESIZE(.scale_factor = {2, 1.5}, .mode = TS_CUBIC));
    case 6: return ts_interpolate(x, RESIZE(.sizes = {7, 15}));
    case 7: return ts_pad(x, TS_SIZES(1, 2, 3, 0), TS_PAD_REFLECT, TS_SCALAR(0));
    case 8: return ts_pad(x, TS_SIZES(1, 2, 3, 0), TS_PAD_CONSTANT, TS_SCALAR(0.5));
    case 9: return ts_pad(x, TS_SIZES(-1, -1), TS_PAD_CONSTANT, TS_SCALAR(0));
    default: return ts_adaptive_avg_pool(x, TS_SIZES(1, 1));
    }
}

/** A number from least to most; *state: of the generator, advanced. */
static int64_t drawn(uint64_t *state, int64_t least, int64_t most)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return least + (int64_t)((*state >> 33) % (uint64_t)(most - least + 1));
}

/* Contiguous rows of a few elements are joined, and those of channels-last images are not. */
TS_TEST(joined_rows_change_no_value)
{
    const char *text = getenv("TS_TEST_SEED");
    uint64_t state = text ? strtoull(text, NULL, 10) : 1;
    for (int i = 0; i < 120; i++) {
        TS_SCOPE;
        int64_t h = drawn(&state, 1, 9), w = drawn(&state, 1, 9), to[2];
        ts_tensor *values = ts_normal(TS_SIZES(drawn(&state, 1, 9), drawn(&state, 16, 70), h, w), 0,
                                      1, drawn(&state, 0, 1) ? TS_F32 : TS_F64);
        int op = (int)drawn(&state, 0, 5);
        ts_tensor *y[2], *dx[2];
        for (int d = 0; d < 2; d++)
            to[d] = drawn(&state, 1, 20);
        int64_t kernel[2] = {drawn(&state, 1, h), drawn(&state, 1, w)};
        for (int last = 0; last < 2; last++) {
            ts_tensor *x = last ? last_of(values) : ts_clone(values);
            OK(ts_set_requires_grad(x, true));
            OK(y[last] = op == 0   ? ts_adaptive_avg_pool(x, to, 2)
                         : op == 1 ? ts_avg_pool2d(x, POOL(.kernel = {kernel[0], kernel[1]}))
                         : op == 2 ? ts_pad(x, TS_SIZES(to[0], -1, 0, to[1]), TS_PAD_CONSTANT,
                                            TS_SCALAR(0.5))
                                   : ts_interpolate(x, RESIZE(.sizes = {to[0], to[1]},
                                                              .mode = op == 3   ? TS_NEAREST
                                                                      : op == 4 ? TS_LINEAR
                                                                                : TS_CUBIC)));
            ts_tensor *factors = ts_sin(ts_arange(0, (double)ts_numel(y[last]), 1,
                                                  ts_dtype_of(values)));
            OK(ts_backward(ts_sum(ts_mul(y[last], ts_view(factors, ts_sizes(y[last]), 4)))));
            dx[last] = ts_grad(x);
        }
        assert_close(y[0], y[1], 2e-6);
        assert_close(dx[0], dx[1], 2e-5);
    }
}

TS_TEST(images_keep_channels_last)
{
    TS_SCOPE;
    ts_manual_seed(4);
    static const int64_t channels[] = {3, 20, 64, 129};
    for (int k = 0; k < 4; k++)
        for (int op = 0; op < 11; op++) {
            TS_SCOPE;
            ts_tensor *values = ts_normal(TS_SIZES(2, channels[k], 6, 7), 0, 1, TS_F32), *y[2],
                *dx[2];
            for (int last = 0; last < 2; last++) {
                ts_tensor *x = last ? last_of(values) : ts_clone(values);
                OK(ts_set_requires_grad(x, true));
                OK(y[last] = run(op, x));
                ts_tensor *factors = ts_add_scalar(ts_arange(0, (double)ts_numel(y[last]), 1,
                                                             TS_F32), 1);
                factors = ts_view(ts_sin(factors), ts_sizes(y[last]), 4);
                OK(ts_backward(ts_sum(ts_mul(y[last], factors))));
                dx[last] = ts_grad(x);
            }
            ck_assert_msg(ts_is_dense_last(y[1]) || ts_size(y[1], 2) * ts_size(y[1], 3) == 1,
                          "op %d of %d channels", op, (int)channels[k]);
            assert_close(y[0], y[1], 2e-6);
            assert_close(dx[0], dx[1], 5e-6);
        }
}

TS_TEST(images_have_the_same_bits_for_any_number_of_threads)
{
    TS_SCOPE;
    ts_tensor *values = ts_normal(TS_SIZES(3, 40, 61, 47), 0, 1, TS_F32);
    for (int op = 0; op < 11; op++)
        for (int last = 0; last < 2; last++) {
            TS_SCOPE;
            ts_tensor *x = last ? last_of(values) : values, *y[3];
            for (int n = 0; n < 3; n++) {
                ts_set_num_threads(n + 1);
                OK(y[n] = ts_contiguous(run(op, x)));
                ck_assert_mem_eq(ts_data(y[n]), ts_data(y[0]), (size_t)ts_numel(y[0]) * 4);
            }
        }
}

TS_TEST(shuffles_undo_each_other)
{
    TS_SCOPE;
    ts_tensor *x = ts_normal(TS_SIZES(2, 12, 5, 3), 0, 1, TS_F32),
              *y = ts_pixel_unshuffle(ts_pixel_shuffle(x, 2), 2);
    OK(y);
    ck_assert_mem_eq(ts_data(x), ts_data(y), (size_t)ts_numel(x) * 4);
}

TS_TEST(wrong_options_of_pools_and_resizing)
{
    TS_SCOPE;
    ts_tensor *x = ts_ones(TS_SIZES(1, 2, 6, 6), TS_F32);
    expect_error(ts_max_pool2d(x, POOL(.kernel = {2}), NULL), TS_ERR_VALUE, "from 1");
    expect_error(ts_max_pool1d(x, POOL(.kernel = {2, 3}), NULL), TS_ERR_VALUE,
                 "expected 0 in lists after the last spatial dim, got 3");
    expect_error(ts_avg_pool2d(x, POOL(.kernel = {2, 2}, .dilation = {2, 2})), TS_ERR_VALUE,
                 "averages");
    expect_error(ts_interpolate(x, RESIZE(.sizes = {2})), TS_ERR_VALUE, "each of 2");
    expect_error(ts_interpolate(x, RESIZE(.sizes = {2, 2}, .scale_factor = {1, 1})), TS_ERR_VALUE,
                 "each of 2");
    expect_error(ts_interpolate(x, RESIZE(.scale_factor = {0.1, 1})), TS_ERR_VALUE, "from 1");
    expect_error(ts_pad(x, TS_SIZES(6, 0), TS_PAD_REFLECT, TS_SCALAR(0)), TS_ERR_VALUE,
                 "less than 6");
}
