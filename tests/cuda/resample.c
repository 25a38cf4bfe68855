/** @file resample.c  Padding, resizing and average pools of random images on CUDA, compared with
 * the CPU in f64. */
// SPDX-License-Identifier: MIT
#include "tests/cuda/drawn.h"

static const ts_dtype dtypes[] = {TS_F32, TS_BF16, TS_F16};

/** Random sizes (N, C, spatial...) of at most 300,000 elements. */
static void drawn_image(int64_t *sizes, int spatial)
{
    int64_t limit = 300000;
    for (int d = 1 + spatial; d >= 0; d--)
        sizes[d] = drawn_size(&limit);
}

/** A leaf with the values of x, in channels-last if `last`. */
static ts_tensor *leaf_like(ts_tensor *x, bool last)
{
    x = last ? ts_movedim(ts_contiguous(ts_movedim(x, 1, -1)), -1, 1) : x;
    OK(x);
    return ts_set_requires_grad(ts_detach(x), true);
}

/** One call of an op over images. */
typedef struct image_call {
    int spatial;
    const ts_interpolate_opts *resize; /* NULL: no resizing */
    const ts_pool_opts *pool;          /* NULL: no pools */
    const int64_t *adaptive;           /* sizes of an adaptive pool, or NULL */
    int64_t padding[6], mode;
} image_call;

static ts_tensor *result_of(const image_call *c, ts_tensor *x)
{
    ts_tensor *(*pools[])(ts_tensor *, const ts_pool_opts *) = {ts_avg_pool1d, ts_avg_pool2d,
                                                                ts_avg_pool3d};
    if (c->resize)
        return ts_interpolate(x, c->resize);
    if (c->adaptive)
        return ts_adaptive_avg_pool(x, c->adaptive, c->spatial);
    if (c->pool)
        return pools[c->spatial - 1](x, c->pool);
    return ts_pad(x, c->padding, 2 * c->spatial, c->mode, ts_scalar_float(1.5));
}

/** Compares result and gradient of a call over values of `dtype`. An element of the gradient is a
 * sum; its error may reach the dtype's unit times the sum of absolute values. */
static void compare_images(const image_call *c, const int64_t *sizes, ts_dtype dtype,
                           ts_device device, double absolute, const char *what)
{
    bool last = drawn(3) == 0;
    ts_tensor *x = ts_to(ts_normal(sizes, 2 + c->spatial, 0, 1, TS_F32), dtype),
              *wide = ts_to(x, TS_F64);
    ts_tensor *from[] = {leaf_like(wide, false), leaf_like(ts_to_device(x, device), last),
                         leaf_like(wide, false)},
              *y[3];
    for (int k = 0; k < 3; k++)
        OK(y[k] = result_of(c, from[k]));
    ts_tensor *g = ts_to(ts_normal(ts_sizes(y[0]), ts_ndim(y[0]), 0, 1, TS_F32), dtype),
              *slopes[] = {ts_to(g, TS_F64), ts_to_device(g, device), ts_abs(ts_to(g, TS_F64))};
    for (int k = 0; k < 3; k++)
        OK(ts_backward(ts_sum(ts_mul(y[k], slopes[k]))));
    assert_alike(y[1], y[0], unit_of(dtype), absolute, what, dtype);
    double *got = doubles_of(ts_grad(from[1])), *want = doubles_of(ts_grad(from[0])),
           *sum = doubles_of(ts_grad(from[2]));
    for (int64_t i = 0; i < ts_numel(x); i++)
        ck_assert_msg(fabs(got[i] - want[i]) <=
                          unit_of(dtype) * fmax(fabs(sum[i]), fabs(want[i])) + 16 * absolute,
                      "gradient of %s of %s, element %lld of %lld: got %.9g, expected %.9g", what,
                      ts_dtype_name(dtype), (long long)i, (long long)ts_numel(x), got[i], want[i]);
    free(got);
    free(want);
    free(sum);
}

TS_TEST(padding_of_drawn_images_equals_that_of_the_CPU, .loop = 3, .timeout = 120)
{
    GPU(device);
    seed_draws((uint64_t)(1300 + _i));
    for (int turn = 0; turn < 60; turn++) {
        TS_SCOPE;
        image_call c = {.spatial = 1 + (int)drawn(3), .mode = drawn(4)};
        int64_t sizes[5];
        drawn_image(sizes, c.spatial);
        for (int k = 0; k < 2 * c.spatial; k++) {
            int64_t n = sizes[1 + c.spatial - k / 2];
            c.padding[k] = c.mode == TS_PAD_CONSTANT ? drawn(20) - (n > 8 ? 4 : 0)
                           : c.mode == TS_PAD_REFLECT ? drawn(n)
                                                      : drawn(n + 1);
        }
        compare_images(&c, sizes, dtypes[_i], device, 1e-5, "padding");
    }
}

TS_TEST(padding_copies_elements_of_each_dtype, .loop = 2, .timeout = 120)
{
    static const ts_dtype each[] = {TS_U8, TS_BOOL, TS_BF16, TS_I32, TS_F64};
    GPU(device);
    seed_draws((uint64_t)(1350 + _i));
    for (int turn = 0; turn < 60; turn++) {
        TS_SCOPE;
        int64_t sizes[4], padding[] = {drawn(9), drawn(20), drawn(3), drawn(3)};
        drawn_image(sizes, 2);
        ts_dtype dtype = each[turn % 5];
        ts_tensor *x = drawn_values(sizes, 4, dtype, true);
        ts_tensor *on = ts_to_device(x, device);
        assert_alike(ts_pad(on, padding, 4, TS_PAD_CONSTANT, ts_scalar_int(1)),
                     ts_pad(x, padding, 4, TS_PAD_CONSTANT, ts_scalar_int(1)), 0, 0, "padding",
                     dtype);
    }
}

TS_TEST(resizing_of_drawn_images_equals_that_of_the_CPU, .loop = 3, .timeout = 120)
{
    GPU(device);
    seed_draws((uint64_t)(1400 + _i));
    for (int turn = 0; turn < 90; turn++) {
        TS_SCOPE;
        ts_interpolate_opts opts = {.size = sizeof opts, .mode = (ts_interpolation)drawn(3)};
        image_call c = {.spatial = opts.mode == TS_CUBIC ? 2 : 1 + (int)drawn(3), .resize = &opts};
        int64_t sizes[5];
        bool factor = drawn(2);
        drawn_image(sizes, c.spatial);
        opts.align_corners = opts.mode != TS_NEAREST && drawn(2);
        for (int d = 0; d < c.spatial; d++) {
            int64_t n = sizes[2 + d];
            opts.sizes[d] = factor ? 0 : 1 + drawn(2 * n + 2);
            opts.scale_factor[d] = !factor ? 0 : (n > 3 ? 0.3 : 1) + 0.01 * (double)drawn(200);
        }
        compare_images(&c, sizes, dtypes[_i], device, 3e-4, "resizing");
    }
}

TS_TEST(resizing_of_a_long_dim_adds_the_gradient_of_every_element, .timeout = 120)
{
    GPU(device);
    TS_SCOPE;
    const int64_t sizes[] = {1, 1, 300001}, resized = 30000007;
    ts_tensor *x = leaf_like(ts_to_device(ts_zeros(sizes, 3, TS_F32), device), false);
    ts_tensor *y = ts_interpolate(x, TS_OPTS(ts_interpolate_opts, .mode = TS_NEAREST,
                                             .sizes = {resized}));
    OK(y);
    OK(ts_backward(ts_sum(y)));
    double sum;
    OK(ts_item(ts_sum(ts_to(ts_grad(x), TS_F64)), &sum));
    ck_assert_double_eq(sum, (double)resized);
}

TS_TEST(average_pools_of_drawn_images_equal_those_of_the_CPU, .loop = 3, .timeout = 120)
{
    GPU(device);
    seed_draws((uint64_t)(1500 + _i));
    for (int turn = 0; turn < 60; turn++) {
        TS_SCOPE;
        ts_pool_opts opts = {.size = sizeof opts, .ceil = drawn(2), .exclude_padding = drawn(2)};
        image_call c = {.spatial = 1 + (int)drawn(3), .pool = &opts};
        int64_t sizes[5];
        drawn_image(sizes, c.spatial);
        for (int d = 0; d < c.spatial; d++) {
            int64_t most = sizes[2 + d] < 5 || turn % 4 == 3 ? sizes[2 + d] : 5;
            opts.kernel[d] = 1 + drawn(most);
            opts.stride[d] = drawn(4);
            opts.padding[d] = drawn(opts.kernel[d] / 2 + 1);
        }
        compare_images(&c, sizes, dtypes[_i], device, 1e-5, "avg_pool");
        int64_t made[3];
        for (int d = 0; d < c.spatial; d++)
            made[d] = 1 + drawn(turn % 2 ? sizes[2 + d] + 1 : 3);
        c.adaptive = made;
        compare_images(&c, sizes, dtypes[_i], device, 1e-5, "adaptive_avg_pool");
    }
}
