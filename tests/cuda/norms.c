/** @file norms.c  Norms and cross-entropy on CUDA over random rows, compared with the CPU in f64.
 * Rows at another address and a second call give the same bits. */
// SPDX-License-Identifier: MIT
#include "tests/cuda/drawn.h"

enum { PLACES = 4 }; /* the CPU in f64; the GPU; the GPU one element further on; the GPU again */

static const ts_dtype dtypes[] = {TS_F32, TS_BF16, TS_F16};

/** A leaf with the values of x at place k. */
static ts_tensor *leaf_at(ts_tensor *x, int k, ts_device device)
{
    ts_tensor *leaf = k ? ts_to_device(x, device) : ts_to(x, TS_F64);
    if (k == 2) {
        int64_t n = ts_numel(x);
        ts_tensor *wide = ts_empty_on(TS_SIZES(n + 1), ts_dtype_of(x), device);
        leaf = ts_copy_(ts_reshape(ts_narrow(wide, 0, 1, n), ts_sizes(x), ts_ndim(x)), leaf);
    }
    OK(leaf);
    return ts_set_requires_grad(ts_detach(leaf), true);
}

/** Asserts that t[1] is near t[0], and that t[2] and t[3] have the bits of t[1]. */
static void assert_places(ts_tensor *const t[PLACES], double relative, double absolute,
                          const char *what, ts_dtype dtype)
{
    assert_alike(t[1], t[0], relative, absolute, what, dtype);
    for (int k = 2; k < PLACES; k++)
        assert_alike(t[k], t[1], 0, 0, k == 2 ? "result at another address" : "second result",
                     dtype);
}

/** A number of rows of n elements. */
static int64_t drawn_rows(int64_t n)
{
    int64_t most = 400000 / n;
    return 1 + drawn(most < 3000 ? most : 3000);
}

/** A row length: often short, and a multiple of 16 bytes in one of four cases. */
static int64_t drawn_length(void)
{
    static const int64_t most[] = {8, 40, 600, 3000, 20000};
    int64_t n = 1 + drawn(most[drawn(5)]);
    return drawn(4) ? n : (n + 7) / 8 * 8;
}

TS_TEST(norms_of_drawn_rows_equal_those_of_the_CPU, .loop = 3, .timeout = 120)
{
    GPU(device);
    ts_dtype dtype = dtypes[_i];
    ts_normalization_opts opts = {.size = sizeof opts, .eps = 0.1};
    seed_draws((uint64_t)(1100 + _i));
    for (int turn = 0; turn < 120; turn++) {
        TS_SCOPE;
        int64_t n = drawn_length(), rows = drawn_rows(n);
        bool rms = drawn(2), affine = drawn(3);
        const int64_t sizes[] = {rows, n};
        ts_tensor *x = ts_to(ts_normal(sizes, 2, 1, 2, TS_F32), dtype),
                  *w = ts_to(ts_normal(&n, 1, 0, 1, TS_F32), dtype),
                  *b = ts_to(ts_normal(&n, 1, 0, 1, TS_F32), dtype),
                  *g = ts_to(ts_normal(sizes, 2, 0, 1, TS_F32), dtype), *y[PLACES], *dx[PLACES],
                  *dw[PLACES], *db[PLACES];
        for (int k = 0; k < PLACES; k++) {
            ts_tensor *from = leaf_at(x, k, device), *weight = leaf_at(w, k, device),
                      *bias = leaf_at(b, k, device), *none = TS_NONE;
            y[k] = rms ? ts_rms_norm_ex(from, affine ? weight : none, &opts)
                       : ts_layer_norm_ex(from, affine ? weight : none, affine ? bias : none,
                                          &opts);
            OK(ts_backward(ts_sum(ts_mul(y[k], ts_detach(leaf_at(g, k, device))))));
            dx[k] = ts_grad(from);
            dw[k] = ts_grad(weight);
            db[k] = ts_grad(bias);
        }
        double unit = unit_of(dtype), many = 1e-5 * sqrt((double)rows);
        assert_places(y, unit, 1e-5, rms ? "rms_norm" : "layer_norm", dtype);
        assert_places(dx, unit, 1e-5, "gradient", dtype);
        if (affine)
            assert_places(dw, unit, many, "gradient of the weight", dtype);
        if (affine && !rms)
            assert_places(db, unit, many, "gradient of the bias", dtype);
    }
}

TS_TEST(cross_entropy_of_drawn_rows_equals_that_of_the_CPU, .loop = 3, .timeout = 120)
{
    GPU(device);
    ts_dtype dtype = dtypes[_i];
    seed_draws((uint64_t)(1200 + _i));
    for (int turn = 0; turn < 60; turn++) {
        TS_SCOPE;
        int64_t n = drawn_length(), rows = drawn_rows(n);
        ts_loss_opts opts = {.size = sizeof opts,
                             .reduction = drawn(2) ? TS_REDUCTION_SUM : TS_REDUCTION_NONE,
                             .label_smoothing = drawn(2) ? 0.1 : 0};
        ts_tensor *x = ts_to(ts_normal(TS_SIZES(rows, n), 0, 3, TS_F32), dtype),
                  *target = ts_randint(&rows, 1, 0, n), *loss[PLACES], *dx[PLACES],
                  *recorded[PLACES];
        for (int k = 0; k < PLACES; k++) {
            ts_tensor *from = leaf_at(x, k, device),
                      *goal = k ? ts_to_device(target, device) : target;
            dx[k] = ts_cross_entropy_grad(ts_detach(from), goal, &opts, &loss[k]);
            OK(ts_backward(ts_sum(ts_cross_entropy_ex(from, goal, &opts))));
            recorded[k] = ts_grad(from);
        }
        double unit = unit_of(dtype);
        assert_places(loss, 1e-5, 1e-4, "loss", TS_F32);
        assert_places(dx, unit, 1e-5, "gradient", dtype);
        assert_places(recorded, unit, 1e-5, "recorded gradient", dtype);
    }
}
