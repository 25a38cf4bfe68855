/**
 * @file pool.c
 * Pooling, padding and resizing: public functions, layouts, and errors.
 */
// SPDX-License-Identifier: MIT
#include <math.h>
#include <stdlib.h>
#include <string.h>

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

/* torch.nn.functional.max_pool2d and avg_pool2d of arange(9) as (1, 1, 3, 3), ceil_mode=True */
TS_TEST(with_ceil_the_only_window_may_be_larger_than_the_padded_image)
{
    static const struct {
        int64_t size, kernel, stride, padding, dilation, places;
    } cases[] = {
        {3, 4, 4, 0, 1, 1}, {3, 4, 2, 0, 1, 1}, {3, 5, 3, 0, 1, 1}, {3, 3, 5, 0, 2, 1},
        {3, 5, 2, 0, 1, 0}, {1, 3, 2, 0, 1, 0}, {1, 3, 3, 0, 1, 1}, {2, 7, 3, 1, 1, 0},
        {2, 7, 4, 1, 1, 1}, {1, 2, 4, 1, 1, 1}, {4, 2, 3, 1, 1, 2}, {5, 2, 4, 1, 1, 2},
    };
    TS_SCOPE;
    ts_tensor *nine = ts_view(ts_arange(0, 9, 1, TS_F32), TS_SIZES(1, 1, 3, 3)), *y;
    for (int64_t stride = 2; stride < 5; stride += 2) {
        OK(y = ts_max_pool2d(nine, POOL(.kernel = {4, 4}, .stride = {stride, stride}, .ceil = true),
                             NULL));
        ck_assert_int_eq(ts_numel(y), 1);
        ck_assert_double_eq(at(y, 0), 8);
        OK(y = ts_avg_pool2d(nine, POOL(.kernel = {4, 4}, .stride = {stride, stride},
                                        .ceil = true)));
        ck_assert_int_eq(ts_numel(y), 1);
        ck_assert_double_eq(at(y, 0), 4);
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ts_tensor *x = ts_zeros(TS_SIZES(1, 1, cases[i].size), TS_F32);
        ts_pool_opts o = {.size = sizeof o, .kernel = {cases[i].kernel},
                          .stride = {cases[i].stride}, .padding = {cases[i].padding},
                          .dilation = {cases[i].dilation}, .ceil = true};
        y = ts_max_pool1d(x, &o, NULL);
        ck_assert_int_eq(y ? ts_size(y, 2) : 0, cases[i].places);
        if (cases[i].dilation == 1) {
            y = ts_avg_pool1d(x, &o);
            ck_assert_int_eq(y ? ts_size(y, 2) : 0, cases[i].places);
        }
        ts_error_clear();
    }
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

/** State of drawn(): TS_TEST_SEED, or 1. */
static uint64_t seed(void)
{
    const char *text = getenv("TS_TEST_SEED");
    return text ? strtoull(text, NULL, 10) : 1;
}

/* Contiguous rows of a few elements are joined, and those of channels-last images are not. */
TS_TEST(joined_rows_change_no_value)
{
    uint64_t state = seed();
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

/* Channels-last pixels have vectors of channels; contiguous planes are transposed if they are small
 * and many. */
TS_TEST(adaptive_maxima_of_drawn_planes_are_the_same_in_both_layouts)
{
    static const ts_dtype dtypes[] = {TS_F32, TS_F64, TS_BF16, TS_F16};
    uint64_t state = seed();
    for (int i = 0; i < 120; i++) {
        TS_SCOPE;
        int64_t n = drawn(&state, 1, 3), c = drawn(&state, 1, i % 2 ? 150 : 12),
                h = drawn(&state, 1, 34), w = drawn(&state, 1, i % 3 ? 34 : 5),
                to[2] = {drawn(&state, 1, h + 2), drawn(&state, 1, w + 2)};
        ts_tensor *values = ts_to(ts_round(ts_normal(TS_SIZES(n, c, h, w), 0, 2, TS_F32)),
                                  dtypes[drawn(&state, 0, 3)]);
        ts_tensor *y[2], *places[2];
        for (int last = 0; last < 2; last++) {
            ts_set_num_threads(1 + last);
            OK(y[last] = ts_adaptive_max_pool(last ? last_of(values) : values, to, 2,
                                              &places[last]));
        }
        ts_tensor *wide = ts_to(values, TS_F64), *best = ts_to(ts_contiguous(y[0]), TS_F64),
                  *at = ts_contiguous(places[0]);
        const double *x = ts_data(wide), *found = ts_data(best);
        const int64_t *index = ts_data(at);
        for (int64_t o = 0; o < n * c * to[0] * to[1]; o++) {
            int64_t row = o / to[1] % to[0], column = o % to[1], top = row * h / to[0],
                    left = column * w / to[1], bottom = ((row + 1) * h + to[0] - 1) / to[0],
                    right = ((column + 1) * w + to[1] - 1) / to[1], first = top * w + left;
            const double *plane = x + o / to[0] / to[1] * h * w;
            for (int64_t r = top; r < bottom; r++)
                for (int64_t k = left; k < right; k++)
                    first = plane[r * w + k] > plane[first] ? r * w + k : first;
            ck_assert_int_eq(index[o], first);
            ck_assert_double_eq(found[o], plane[first]);
        }
        assert_close(ts_to(y[0], TS_F64), ts_to(y[1], TS_F64), 0);
        assert_close(ts_to(places[0], TS_F64), ts_to(places[1], TS_F64), 0);
    }
}

/* Vectors of contiguous rows may hold elements of the next rows; those of channels-last images hold
 * channels. */
TS_TEST(maxima_of_short_rows_have_the_same_indices_in_both_layouts)
{
    static const ts_dtype dtypes[] = {TS_F32, TS_F64, TS_BF16, TS_F16};
    uint64_t state = seed();
    for (int i = 0; i < 120; i++) {
        TS_SCOPE;
        int64_t h = drawn(&state, 1, 12), w = drawn(&state, 1, 20),
                c = drawn(&state, 2, i % 2 ? 9 : 150);
        ts_tensor *values = ts_to(ts_round(ts_normal(TS_SIZES(drawn(&state, 1, 3), c, h, w), 0, 2,
                                                     TS_F32)),
                                  dtypes[drawn(&state, 0, 3)]);
        ts_pool_opts *opts = POOL(.kernel = {drawn(&state, 1, h), drawn(&state, 1, w)},
                                  .stride = {drawn(&state, 1, 3), drawn(&state, 1, 3)});
        for (int d = 0; d < 2; d++)
            opts->padding[d] = drawn(&state, 0, opts->kernel[d] / 2);
        ts_tensor *y[2], *places[2];
        for (int last = 0; last < 2; last++)
            OK(y[last] = ts_max_pool2d(last ? last_of(values) : values, opts, &places[last]));
        assert_close(ts_to(y[0], TS_F64), ts_to(y[1], TS_F64), 0);
        assert_close(ts_to(places[0], TS_F64), ts_to(places[1], TS_F64), 0);
    }
}

/* Pixels of large channels-last images are read in another order than those of small ones. */
TS_TEST(pools_of_large_images_equal_those_of_each_sample)
{
    static const ts_dtype dtypes[] = {TS_F32, TS_F64, TS_BF16, TS_F16};
    uint64_t state = seed();
    for (int i = 0; i < 4; i++) {
        TS_SCOPE;
        int64_t c = drawn(&state, 65, 300), h = drawn(&state, 20, 40), w = drawn(&state, 20, 40),
                kernel = drawn(&state, 2, 3), n = (8 << 20) / (c * h * w) + 2;
        ts_tensor *x = last_of(ts_to(ts_round(ts_normal(TS_SIZES(n, c, h, w), 0, 2, TS_F32)),
                                     dtypes[i]));
        ts_pool_opts *opts = POOL(.kernel = {2, kernel}, .stride = {2, kernel}, .padding = {1, 1});
        ts_tensor *places, *y = ts_max_pool2d(x, opts, &places), *mean = ts_avg_pool2d(x, opts);
        OK(y);
        OK(mean);
        for (int64_t k = 0; k < n; k += n - 1) {
            ts_tensor *one = ts_slice(x, 0, k, k + 1, 1), *at_one,
                      *y_one = ts_max_pool2d(one, opts, &at_one);
            assert_close(ts_slice(y, 0, k, k + 1, 1), y_one, 0);
            assert_close(ts_slice(places, 0, k, k + 1, 1), at_one, 0);
            assert_close(ts_slice(mean, 0, k, k + 1, 1), ts_avg_pool2d(one, opts), 0);
        }
    }
}

/** Result of op for lines x (N, C, L), and the gradient of x for weights that depend only on the
 * position. to: length of resized lines. */
static ts_tensor *run_lines(int op, ts_tensor *x, int64_t to, int64_t kernel, ts_tensor **dx)
{
    OK(ts_set_requires_grad(x, true));
    ts_tensor *y = op == 0   ? ts_adaptive_avg_pool(x, &to, 1)
                   : op == 1 ? ts_avg_pool1d(x, POOL(.kernel = {kernel}, .stride = {1 + kernel / 2},
                                                     .padding = {kernel / 2}))
                             : ts_interpolate(x, RESIZE(.sizes = {to},
                                                        .align_corners = op == 3 && to % 2,
                                                        .mode = op == 2 ? TS_NEAREST : TS_LINEAR));
    OK(y);
    ts_tensor *factors = ts_to(ts_cos(ts_arange(0, (double)ts_size(y, 2), 1, TS_F32)),
                               ts_dtype_of(x));
    OK(ts_backward(ts_sum(ts_mul(y, factors))));
    *dx = ts_grad(x);
    return y;
}

/* Few long lines are computed without the tables of many lines. */
TS_TEST(few_long_lines_equal_many)
{
    static const ts_dtype dtypes[] = {TS_F32, TS_F64, TS_BF16, TS_F16};
    uint64_t state = seed();
    for (int i = 0; i < 60; i++) {
        TS_SCOPE;
        enum { MANY = 24 };
        int op = (int)drawn(&state, 0, 3);
        int64_t n = drawn(&state, 1, 2), c = drawn(&state, 1, 4), l = drawn(&state, 700, 3000),
                to = drawn(&state, 1, 3000), kernel = drawn(&state, 1, 40);
        ts_dtype dtype = dtypes[drawn(&state, 0, 3)];
        ts_tensor *x = ts_to(ts_normal(TS_SIZES(n, c, l), 0, 1, TS_F32), dtype), *y[2], *dx[2];
        ts_tensor *wide = ts_reshape(ts_expand(ts_to(ts_unsqueeze(x, 1), TS_F64),
                                               TS_SIZES(n, MANY, c, l)), TS_SIZES(n, MANY * c, l));
        if (drawn(&state, 0, 1)) /* channels innermost */
            x = ts_to_channels_last(x);
        ts_set_num_threads((int)drawn(&state, 1, 3));
        y[0] = run_lines(op, x, to, kernel, &dx[0]);
        y[1] = run_lines(op, ts_contiguous(wide), to, kernel, &dx[1]);
        double unit = dtype == TS_BF16 ? 0.008 : dtype == TS_F16 ? 0.001 : 1e-6;
        assert_close(y[0], ts_narrow(y[1], 1, 0, c), 4 * unit);
        double most;
        OK(ts_item(ts_max(ts_abs(dx[1])), &most));
        assert_close(dx[0], ts_narrow(dx[1], 1, 0, c), (1 + most) * 4 * unit);
    }
}

/** The element of a line of n that element o of its padded line equals; -1: the value. Negative
 *  numbers of circular padding remove elements first. */
static int64_t padded_from(ts_pad_mode mode, int64_t o, int64_t before, int64_t after, int64_t n)
{
    int64_t i = o - before, left = before < 0 ? -before : 0,
            rest = n - left + (after < 0 ? after : 0);
    switch (mode) {
    case TS_PAD_CONSTANT: return i >= 0 && i < n ? i : -1;
    case TS_PAD_REFLECT: return i < 0 ? -i : i < n ? i : 2 * (n - 1) - i;
    case TS_PAD_REPLICATE: return i < 0 ? 0 : i < n ? i : n - 1;
    default: return left + (i - left + rest) % rest;
    }
}

TS_TEST(pads_have_the_elements_that_their_mode_names)
{
    static const ts_dtype dtypes[] = {TS_F32, TS_F64, TS_F16, TS_U8, TS_I64};
    uint64_t state = seed();
    for (int i = 0; i < 150; i++) {
        TS_SCOPE;
        ts_pad_mode mode = (ts_pad_mode)drawn(&state, 0, 3);
        int64_t n = drawn(&state, 1, 3), c = drawn(&state, 1, 20), size[3], pads[6], to[3];
        for (int d = 0; d < 3; d++) {
            size[d] = d ? drawn(&state, 3, 40) : drawn(&state, 1, 4);
            int64_t cut = (size[d] - 1) / 3, /* leaves an element more than circular pads add */
                    most = mode == TS_PAD_CONSTANT ? 40 : mode == TS_PAD_CIRCULAR ? cut
                                                                                  : size[d] - 1,
                    least = mode == TS_PAD_CONSTANT || mode == TS_PAD_CIRCULAR ? -cut : 0;
            for (int side = 0; side < 2; side++)
                pads[2 * (2 - d) + side] = drawn(&state, least, most);
            to[d] = size[d] + pads[2 * (2 - d)] + pads[2 * (2 - d) + 1];
        }
        int64_t elements = n * c * size[0] * size[1] * size[2];
        ts_tensor *values = ts_remainder_scalar(ts_arange(0, (double)elements, 1, TS_I64), 200),
                  *x = ts_to(ts_reshape(values, TS_SIZES(n, c, size[0], size[1], size[2])),
                             dtypes[drawn(&state, 0, 4)]);
        if (drawn(&state, 0, 1))
            x = ts_to_channels_last(x);
        ts_set_num_threads((int)drawn(&state, 1, 3));
        ts_tensor *y = ts_pad(x, pads, 6, mode, TS_SCALAR(201));
        ck_assert(ts_is_dense_last(x) <= ts_is_dense_last(y));
        OK(y = ts_contiguous(ts_to(y, TS_I64)));
        const int64_t *found = ts_data(y);
        for (int64_t p = 0; p < n * c; p++)
            for (int64_t k = 0; k < to[0] * to[1] * to[2]; k++) {
                const int64_t o[3] = {k / to[2] / to[1], k / to[2] % to[1], k % to[2]};
                int64_t at = p;
                for (int d = 0; d < 3 && at >= 0; d++) {
                    const int64_t *ends = pads + 2 * (2 - d);
                    int64_t from = padded_from(mode, o[d], ends[0], ends[1], size[d]);
                    at = from < 0 ? -1 : at * size[d] + from;
                }
                ck_assert_int_eq(found[p * to[0] * to[1] * to[2] + k], at < 0 ? 201 : at % 200);
            }
    }
}

/* Constant padding takes numbers for all dims, none included, and keeps channels-last. */
TS_TEST(constant_padding_takes_any_number_of_dims)
{
    uint64_t state = seed();
    for (int i = 0; i < 120; i++) {
        TS_SCOPE;
        int ndim = (int)drawn(&state, 1, 6), dims = (int)drawn(&state, 0, ndim);
        int64_t sizes[6], pads[12], made[6];
        for (int d = 0; d < ndim; d++)
            made[d] = sizes[d] = drawn(&state, 1, 4);
        for (int k = 0; k < dims; k++)
            for (int side = 0; side < 2; side++) {
                pads[2 * k + side] = drawn(&state, side ? 0 : -1, 2);
                made[ndim - 1 - k] += pads[2 * k + side];
            }
        ts_tensor *x = ts_normal(sizes, ndim, 0, 1, TS_F64);
        bool last = ndim >= 4 && ndim <= 5 && drawn(&state, 0, 1);
        x = ts_set_requires_grad(last ? ts_clone(ts_to_channels_last(x)) : x, true);
        ts_tensor *y = ts_pad(x, pads, 2 * dims, TS_PAD_CONSTANT, TS_SCALAR(7)),
                  *want = ts_detach(x);
        OK(y);
        for (int d = 0; d < ndim; d++)
            ck_assert_int_eq(ts_size(y, d), made[d]);
        for (int k = 0; k < dims; k++) { /* by cat and slice */
            int d = ndim - 1 - k;
            int64_t n[6], cut = pads[2 * k] < 0 ? 1 : 0;
            memcpy(n, ts_sizes(want), (size_t)ndim * sizeof *n);
            want = ts_narrow(want, d, cut, n[d] - cut);
            n[d] = cut ? 0 : pads[2 * k];
            ts_tensor *before = ts_full(n, ndim, TS_SCALAR(7), TS_F64);
            n[d] = pads[2 * k + 1];
            ts_tensor *parts[] = {before, want, ts_full(n, ndim, TS_SCALAR(7), TS_F64)};
            OK(want = ts_cat(parts, 3, d));
        }
        if (ts_numel(y))
            assert_close(y, want, 0);
        ck_assert_ptr_ne(ts_data(y), ts_data(x));
        OK(ts_backward(ts_sum(ts_square(y))));
        double sum, all;
        OK(ts_item(ts_sum(ts_grad(x)), &sum));
        OK(ts_item(ts_sum(ts_mul_scalar(ts_masked_fill_scalar(want, ts_eq_scalar(want, 7), 0), 2)),
                   &all));
        ck_assert_double_eq_tol(sum, all, 1e-12 * 1000);
    }
    TS_SCOPE;
    ts_tensor *x = ts_to_channels_last(ts_ones(TS_SIZES(2, 3, 4, 5), TS_F32));
    ts_tensor *y = ts_pad(x, TS_SIZES(1, 1, 1, 1, 1, 1, 1, 1), TS_PAD_CONSTANT, TS_SCALAR(0));
    OK(y);
    ck_assert(ts_is_contiguous(ts_movedim(y, 1, -1)));
    ts_tensor *row = ts_ones(TS_SIZES(3), TS_F32);
    const int64_t eight[] = {1, 1, 1, 1, 1, 1, 1, -9}, far[] = {0, 0, 0, 0, 0, 0, INT64_MAX, 0};
    expect_error(ts_pad(row, eight, 8, TS_PAD_CONSTANT, TS_SCALAR(0)), TS_ERR_SHAPE,
                 "pad: argument 'self': expected 4 dims at least, got sizes (3)");
    expect_error(ts_pad(x, eight, 8, TS_PAD_CONSTANT, TS_SCALAR(0)), TS_ERR_SHAPE,
                 "elements in dim 0, got sizes (2, 3, 4, 5), which give -6");
    expect_error(ts_pad(x, far, 8, TS_PAD_CONSTANT, TS_SCALAR(0)), TS_ERR_VALUE, "for dim 0");
    expect_error(ts_pad(x, eight, 7, TS_PAD_CONSTANT, TS_SCALAR(0)), TS_ERR_VALUE,
                 "two numbers per dim");
    expect_error(ts_pad(x, eight, 8, TS_PAD_REFLECT, TS_SCALAR(0)), TS_ERR_VALUE, "1 to 3 dims");
    expect_error(ts_pad(x, NULL, 8, TS_PAD_CONSTANT, TS_SCALAR(0)), TS_ERR_NULL, "8 numbers");
    expect_error(ts_pad(x, eight, 18, TS_PAD_CONSTANT, TS_SCALAR(0)), TS_ERR_SHAPE, "got 18");
    expect_error(ts_pad(x, NULL, 0, TS_PAD_REFLECT, TS_SCALAR(0)), TS_ERR_VALUE, "1 to 3 dims");
}

TS_TEST(gradients_of_maxima_are_sums_at_their_indices)
{
    static const ts_dtype dtypes[] = {TS_F32, TS_F64, TS_BF16, TS_F16};
    uint64_t state = seed();
    for (int i = 0; i < 80; i++) {
        TS_SCOPE;
        int64_t n = drawn(&state, 1, 3), c = drawn(&state, 1, 70), h = drawn(&state, 1, 12),
                w = drawn(&state, 1, 30), kernel[2] = {drawn(&state, 1, h), drawn(&state, 1, w)};
        ts_dtype dtype = dtypes[drawn(&state, 0, 3)];
        ts_tensor *x = ts_to(ts_normal(TS_SIZES(n, c, h, w), 0, 1, TS_F32), dtype), *places, *dx[2];
        if (drawn(&state, 0, 1))
            x = last_of(x);
        ts_tensor *y[2];
        for (int k = 0; k < 2; k++) {
            ts_set_num_threads(1 + 2 * k);
            x = ts_detach(x);
            OK(ts_set_requires_grad(x, true));
            OK(y[k] = ts_max_pool2d(x, POOL(.kernel = {kernel[0], kernel[1]}, .stride = {1, 2}),
                                    &places));
            ts_tensor *g = ts_to(ts_reshape(ts_sin(ts_arange(0, (double)ts_numel(y[k]), 1, TS_F32)),
                                            TS_SIZES(n, c, ts_size(y[k], 2), ts_size(y[k], 3))),
                                 dtype);
            OK(ts_backward(ts_sum(ts_mul(y[k], g))));
            OK(dx[k] = ts_contiguous(ts_grad(x)));
            if (k)
                continue;
            int64_t out = ts_size(y[k], 2) * ts_size(y[k], 3);
            ts_tensor *zeros = ts_zeros(TS_SIZES(n * c, h * w), TS_F64);
            ts_tensor *want = ts_scatter_add(
                zeros, 1, ts_reshape(places, TS_SIZES(n * c, out)),
                ts_reshape(ts_to(g, TS_F64), TS_SIZES(n * c, out)));
            double unit = dtype == TS_BF16 ? 0.004 : dtype == TS_F16 ? 0.0005 : 1e-6, most;
            OK(ts_item(ts_max(ts_abs(want)), &most));
            assert_close(ts_reshape(dx[k], TS_SIZES(n * c, h * w)), want, unit * (1 + most));
        }
        ck_assert_mem_eq(ts_data(dx[0]), ts_data(dx[1]),
                         (size_t)(ts_numel(dx[0]) * ts_dtype_size(dtype)));
    }
}

/** The gradient of x through a max pool, with or without indices, and through another use of x
 *  before the pool, whose gradient therefore arrives first. */
static ts_tensor *pooled_gradient(ts_tensor *x, const ts_pool_opts *opts, bool indices, bool slice)
{
    ts_tensor *places, *leaf = ts_set_requires_grad(ts_detach(x), true),
              *h = ts_mul_scalar(leaf, 1);
    ts_tensor *y = ts_max_pool2d(h, opts, indices ? &places : NULL);
    OK(y);
    int64_t n = ts_size(x, 0), c = ts_size(x, 1), out[] = {n, c, ts_size(y, 2), ts_size(y, 3)};
    ts_tensor *g = ts_reshape(ts_sin(ts_arange(0, (double)ts_numel(y), 1, TS_F32)), out, 4),
              *beside = slice ? ts_narrow(ts_cat((ts_tensor *[]){h, h}, 2, 1), 1, c / 2, c) : h,
              *w = ts_reshape(ts_cos(ts_arange(0, (double)ts_numel(x), 1, TS_F32)), ts_sizes(x), 4);
    OK(ts_backward(ts_add(ts_sum(ts_mul(y, ts_to(g, ts_dtype_of(x)))),
                          ts_sum(ts_mul(beside, ts_to(w, ts_dtype_of(x)))))));
    return ts_to(ts_contiguous(ts_grad(leaf)), TS_F64);
}

TS_TEST(gradients_by_taps_equal_those_by_indices)
{
    uint64_t state = seed();
    for (int i = 0; i < 80; i++) {
        TS_SCOPE;
        int64_t n = drawn(&state, 1, 3), c = drawn(&state, 1, 40), size[2], kernel[2];
        ts_pool_opts opts = {.size = sizeof opts, .ceil = drawn(&state, 0, 1)};
        bool touching = drawn(&state, 0, 1);
        for (int d = 0; d < 2; d++) {
            kernel[d] = touching ? 2 + (d ? kernel[0] - 2 : drawn(&state, 0, 1))
                                 : drawn(&state, 1, 4);
            opts.kernel[d] = kernel[d];
            opts.stride[d] = touching ? kernel[d] : drawn(&state, 1, 3);
            opts.dilation[d] = touching ? 1 : drawn(&state, 1, 2);
            opts.padding[d] = touching ? 0 : drawn(&state, 0, kernel[d] / 2);
            size[d] = touching ? kernel[d] * drawn(&state, 1, 6)
                               : drawn(&state, opts.dilation[d] * kernel[d], 20);
        }
        ts_tensor *x = ts_normal(TS_SIZES(n, c, size[0], size[1]), 0, 1, TS_F32);
        ts_dtype dtype = drawn(&state, 0, 1) ? TS_F32 : TS_BF16;
        x = ts_to(drawn(&state, 0, 1) ? last_of(x) : x, dtype);
        bool slice = drawn(&state, 0, 1);
        assert_close(pooled_gradient(x, &opts, false, slice),
                     pooled_gradient(x, &opts, true, slice), dtype == TS_BF16 ? 0.1 : 1e-5);
    }
}

/** The gradient, for the result's gradient, of the sum of `factors` times the gradient of x, with
 *  or without indices. */
static ts_tensor *second_gradient(ts_tensor *x, ts_tensor *factors, const ts_pool_opts *opts,
                                  bool indices)
{
    ts_tensor *places, *dx, *dg, *y;
    OK(x = ts_set_requires_grad(ts_clone(x), true));
    OK(y = ts_max_pool3d(x, opts, indices ? &places : NULL));
    ts_tensor *g = ts_set_requires_grad(ts_ones(ts_sizes(y), ts_ndim(y), TS_F32), true);
    OK(g);
    ck_assert_int_eq(ts_grad_of(y, g, &x, 1, &dx,
                                TS_OPTS(ts_backward_opts, .create_graph = true)), TS_OK);
    ck_assert_int_eq(ts_grad_of(dx, factors, &g, 1, &dg, NULL), TS_OK);
    return dg;
}

/* The rule of the second gradient reads taps, which kernels write in an order of their own if dims
 * have size 1. */
TS_TEST(second_gradients_of_max_pools_do_not_depend_on_indices)
{
    uint64_t state = seed();
    for (int k = 0; k < 200; k++) {
        TS_SCOPE;
        ts_pool_opts opts = {.size = sizeof opts};
        int64_t sizes[5] = {drawn(&state, 1, 4), drawn(&state, 1, 20)};
        for (int d = 0; d < 3; d++) {
            sizes[2 + d] = drawn(&state, 0, 1) ? 1 : drawn(&state, 1, 6);
            opts.kernel[d] = sizes[2 + d] > 1 ? drawn(&state, 1, 2) : 2 * drawn(&state, 0, 1) + 1;
            opts.padding[d] = opts.kernel[d] / 2;
            opts.stride[d] = drawn(&state, 1, 4);
        }
        ts_tensor *x = ts_normal(sizes, 5, 0, 1, TS_F32), *f = ts_normal(sizes, 5, 0, 1, TS_F32);
        x = drawn(&state, 0, 1) ? last_of(x) : x;
        assert_close(second_gradient(x, f, &opts, false), second_gradient(x, f, &opts, true), 0);
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

/* (C, H, W) of sizes (1, H, 1) may have the strides of (N, C, ...) in channels-last. */
TS_TEST(strides_of_dims_of_size_1_change_no_sample)
{
    for (int64_t h = 2; h < 40; h++) {
        TS_SCOPE;
        ts_tensor *flat = ts_normal(TS_SIZES(h), 0, 1, TS_F32), *y[2], *z[2], *mean[2];
        for (int k = 0; k < 2; k++) {
            const int64_t sizes[] = {1, h, 1}, strides[] = {h, 1, h};
            ts_tensor *x = k ? ts_as_strided(flat, sizes, strides, 3, 0)
                             : ts_reshape(flat, sizes, 3);
            y[k] = ts_adaptive_max_pool(x, TS_SIZES(h % 3 ? 1 : h, 1), NULL);
            mean[k] = ts_adaptive_avg_pool(x, TS_SIZES(h % 3 ? 1 : h, 1));
            OK(z[k] = ts_interpolate(x, RESIZE(.sizes = {3})));
            OK(y[k]);
            OK(mean[k]);
            }
        assert_close(y[1], y[0], 0);
        assert_close(mean[1], mean[0], 0);
        assert_close(z[1], z[0], 0);
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
    ts_tensor *last = ts_pixel_shuffle(last_of(x), 2);
    ck_assert(ts_is_dense_last(last));
    assert_close(last, ts_pixel_shuffle(x, 2), 0);
    y = ts_pixel_unshuffle(last, 2);
    ck_assert(ts_is_dense_last(y));
    assert_close(x, y, 0);
}

TS_TEST(gradients_of_shuffles_keep_channels_last)
{
    uint64_t state = seed();
    for (int k = 0; k < 100; k++) {
        TS_SCOPE;
        int64_t by = drawn(&state, 2, 3), side = drawn(&state, 2, 5);
        bool back = drawn(&state, 0, 1);
        const int64_t sizes[] = {drawn(&state, 1, 3), (back ? 1 : by * by) * drawn(&state, 2, 5),
                                 (back ? by : 1) * side, (back ? by : 1) * drawn(&state, 2, 5)};
        ts_tensor *x = ts_normal(sizes, 4, 0, 1, TS_F32), *factors = NULL, *dx[2];
        for (int last = 0; last < 2; last++) {
            ts_tensor *leaf = ts_set_requires_grad(last ? last_of(x) : ts_clone(x), true), *y;
            OK(leaf);
            OK(y = back ? ts_pixel_unshuffle(leaf, by) : ts_pixel_shuffle(leaf, by));
            factors = last ? last_of(factors) : ts_normal(ts_sizes(y), 4, 0, 1, TS_F32);
            ck_assert_int_eq(ts_grad_of(y, factors, &leaf, 1, &dx[last], NULL), TS_OK);
        }
        ck_assert(ts_is_dense_last(dx[1]));
        assert_close(dx[0], dx[1], 0);
    }
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
    expect_error(ts_interpolate(x, RESIZE(.sizes = {2})), TS_ERR_VALUE,
                 "argument 'sizes': expected 1 or more for each spatial dim, got 0");
    expect_error(ts_interpolate(x, RESIZE(.sizes = {2, 2}, .scale_factor = {1, 3})), TS_ERR_VALUE,
                 "argument 'scale_factor': expected 0 beside sizes, got 1");
    expect_error(ts_interpolate(x, RESIZE(.scale_factor = {2})), TS_ERR_VALUE,
                 "for each spatial dim, got 0");
    expect_error(ts_interpolate(x, RESIZE(.scale_factor = {2, 1e9})), TS_ERR_VALUE,
                 "at most 2147483647 elements per dim, got 1e+09");
    expect_error(ts_interpolate(x, RESIZE(.scale_factor = {0.1, 1})), TS_ERR_VALUE, "from 1");
    expect_error(ts_pad(x, TS_SIZES(6, 0), TS_PAD_REFLECT, TS_SCALAR(0)), TS_ERR_VALUE,
                 "less than 6");
}

/* Padding by negative amounts, and the gradient of padding by constants, copy a part of x. */
TS_TEST(negative_padding_is_a_narrowed_copy)
{
    for (int64_t i = 0; i < 48; i++) {
        TS_SCOPE;
        int64_t planes = 1 + i % 13, h = 4 + i % 7, w = 5 + i * 5 % 41, top = i % 3, left = i % 4;
        ts_tensor *x = ts_arange(0, (double)(planes * h * w), 1, TS_F32);
        x = ts_reshape(x, TS_SIZES(1, planes, h, w));
        if (i % 5 == 4)
            x = ts_to_channels_last(x);
        ts_tensor *want = ts_narrow(ts_narrow(x, 2, top, h - top - 1), 3, left, w - left),
                  *got = ts_pad(x, TS_SIZES(-left, 0, -top, -1), TS_PAD_CONSTANT, TS_SCALAR(0)),
                  *back = ts_pad_backward(x, TS_SIZES(left, 0, top, 1), TS_PAD_CONSTANT);
        double differs = 1;
        OK(ts_item(ts_max(ts_abs(ts_sub(got, want))), &differs));
        ck_assert_double_eq(differs, 0);
        OK(ts_item(ts_max(ts_abs(ts_sub(back, want))), &differs));
        ck_assert_double_eq(differs, 0);
    }
}
