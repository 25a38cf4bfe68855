/** @file norms.c  Norms, softmax, cross-entropy and reductions on CUDA over random rows, compared
 * with the CPU in f64. Rows at another address and a second call give the same bits. */
// SPDX-License-Identifier: MIT
#include "tests/cuda/drawn.h"

/* The CPU in f64; the GPU; the GPU 1 to 7 elements further on; the GPU again. */
enum { PLACES = 4 };

static const ts_dtype dtypes[] = {TS_F32, TS_BF16, TS_F16};

/** A leaf with the values of x at place k. */
static ts_tensor *leaf_at(ts_tensor *x, int k, ts_device device)
{
    ts_tensor *leaf = k ? ts_to_device(x, device) : ts_to(x, TS_F64);
    if (k == 2) {
        int64_t n = ts_numel(x), on = 1 + n % 7;
        ts_tensor *wide = ts_empty_on(TS_SIZES(n + on), ts_dtype_of(x), device);
        leaf = ts_copy_(ts_reshape(ts_narrow(wide, 0, on, n), ts_sizes(x), ts_ndim(x)), leaf);
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

/** A number of rows of n elements; in one of eight cases up to several per resident block. */
static int64_t drawn_rows(int64_t n)
{
    int64_t most = (drawn(8) ? 400000 : 8000000) / n + 1;
    return 1 + drawn(most < 3000 ? most : 3000);
}

/** A row length: often short, and a multiple of 16 bytes in one of four cases. */
static int64_t drawn_length(void)
{
    static const int64_t most[] = {8, 40, 600, 3000, 20000, 300000};
    int64_t n = 1 + drawn(most[drawn(6)]);
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

/** A tensor of `sizes` whose memory is permuted, strided, expanded or, in one of four cases,
 *  contiguous. */
static ts_tensor *drawn_view(const int64_t *sizes, int ndim, ts_dtype dtype, ts_device device)
{
    int64_t wide[3];
    int way = (int)drawn(4), from = (int)drawn(ndim), to = (int)drawn(ndim);
    for (int d = 0; d < ndim; d++)
        wide[d] = sizes[d];
    if (way == 0) { /* dim `from` is expanded */
        wide[from] = 1;
        return ts_expand(ts_to_device(ts_to(ts_normal(wide, ndim, 1, 2, TS_F32), dtype), device),
                         sizes, ndim);
    }
    if (way == 1)
        wide[from] += drawn(9);
    ts_tensor *t = ts_to_device(ts_to(ts_normal(wide, ndim, 1, 2, TS_F32), dtype), device);
    if (way == 1)
        return ts_narrow(t, from, wide[from] - sizes[from], sizes[from]);
    return way == 2 ? ts_movedim(ts_contiguous(ts_movedim(t, from, to)), to, from) : t;
}

/** Asserts that two tensors, or TS_NONE, have the same bits. */
static void assert_same(ts_tensor *got, ts_tensor *want, const char *what, ts_dtype dtype)
{
    assert_alike(got, want, 0, 0, what, dtype);
}

TS_TEST(gradients_of_strided_norms_and_losses_have_the_bits_of_contiguous_ones, .loop = 3,
        .timeout = 120)
{
    GPU(device);
    ts_dtype dtype = dtypes[_i];
    seed_draws((uint64_t)(1150 + _i));
    for (int turn = 0; turn < 120; turn++) {
        TS_SCOPE;
        int64_t limit = drawn(4) ? 30000 : 600000, sizes[3], rows = 1, dims = 1 + drawn(2);
        for (int d = 0; d < 3; d++)
            sizes[d] = drawn_size(&limit);
        for (int d = 0; d < 3 - dims; d++)
            rows *= sizes[d];
        const int64_t stats[] = {sizes[0], dims == 2 ? 1 : sizes[1], 1};
        ts_tensor *g = drawn_view(sizes, 3, dtype, device),
                  *x = drawn_view(sizes, 3, dtype, device),
                  *w = drawn_view(sizes + 3 - dims, (int)dims, dtype, device),
                  *mean = ts_to_device(ts_normal(stats, 3, 1, 1, TS_F32), device),
                  *rstd = ts_to_device(ts_uniform(stats, 3, 0.3, 1, TS_F32), device), *dx[2],
                  *dw[2], *db[2];
        bool rms = drawn(2);
        for (int k = 0; k < 2; k++) {
            ts_tensor *gk = k ? ts_contiguous(g) : g, *xk = k ? ts_contiguous(x) : x,
                      *wk = k ? ts_contiguous(w) : w;
            dx[k] = rms ? ts_rms_norm_backward(gk, xk, rstd, wk, (int)dims, &dw[k])
                        : ts_layer_norm_backward(gk, xk, mean, rstd, wk, (int)dims, &dw[k], &db[k]);
        }
        assert_same(dx[0], dx[1], "gradient", dtype);
        assert_same(dw[0], dw[1], "gradient of the weight", dtype);
        if (!rms)
            assert_same(db[0], db[1], "gradient of the bias", dtype);
        ts_loss_opts opts = {.size = sizeof opts, .reduction = (ts_reduction)drawn(3)};
        ts_tensor *loss[2], *slope[2];
        for (int k = 0; k < 2; k++) {
            ts_tensor *gk = k ? ts_contiguous(g) : g, *xk = k ? ts_contiguous(x) : x;
            loss[k] = ts_smooth_l1_loss_ex(xk, gk, &opts);
            slope[k] = ts_mse_loss_backward(gk, xk, gk, TS_REDUCTION_NONE, NULL);
        }
        assert_same(loss[0], loss[1], "loss", dtype);
        assert_same(slope[0], slope[1], "gradient of the loss", dtype);
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

TS_TEST(nll_loss_of_drawn_positions_equals_that_of_the_CPU, .loop = 3, .timeout = 120)
{
    GPU(device);
    ts_dtype dtype = dtypes[_i];
    const int64_t ignored = 1;
    seed_draws((uint64_t)(1250 + _i));
    for (int turn = 0; turn < 60; turn++) {
        TS_SCOPE;
        ts_loss_opts opts = {.size = sizeof opts, .reduction = (ts_reduction)drawn(3)};
        if (drawn(2))
            opts.ignore_index = &ignored;
        bool small = dtype == TS_F16 && opts.reduction == TS_REDUCTION_SUM; /* below 65504 */
        int64_t limit = small ? 12000 : 400000, classes = 2 + drawn(40),
                sizes[] = {drawn_size(&limit), classes, drawn_size(&limit)};
        const int64_t positions[] = {sizes[0], sizes[2]};
        ts_tensor *x = ts_to(ts_normal(sizes, 3, -3, 1, TS_F32), dtype),
                  *target = ts_randint(positions, 2, 0, classes), *loss[PLACES], *entropy[PLACES];
        for (int k = 0; k < PLACES; k++) {
            ts_tensor *from = ts_detach(leaf_at(x, k, device)),
                      *goal = k ? ts_to_device(target, device) : target;
            loss[k] = ts_nll_loss_ex(from, goal, &opts);
            entropy[k] = ts_cross_entropy_ex(from, goal, &opts);
        }
        assert_places(loss, unit_of(dtype), 1e-6, "nll_loss", dtype);
        assert_places(entropy, unit_of(dtype), 1e-5, "cross_entropy", dtype);
    }
}

/** Calls softmax, or log_softmax, of x into the middle of a tensor of sevens. The result has the
 * bits of `want`; the other elements stay seven. */
static void assert_softmax_out(ts_tensor *x, ts_tensor *want, bool log, ts_device device)
{
    int64_t n = ts_numel(x), on = 8 + drawn(8);
    ts_dtype dtype = ts_dtype_of(x);
    ts_tensor *wide = ts_empty_on(TS_SIZES(on + n + 16), dtype, device);
    OK(ts_fill_(wide, 7));
    ts_tensor *out = ts_reshape(ts_narrow(wide, 0, on, n), ts_sizes(x), ts_ndim(x));
    OK((log ? ts_log_softmax_out : ts_softmax_out)(out, x, 1));
    assert_alike(out, want, 0, 0, "softmax into a given result", dtype);
    ts_tensor *sides[] = {ts_narrow(wide, 0, 0, on), ts_narrow(wide, 0, on + n, 16)};
    for (int k = 0; k < 2; k++)
        assert_alike(sides[k], ts_full(ts_sizes(sides[k]), 1, TS_SCALAR(7), TS_F32), 0, 0,
                     k ? "element after the result" : "element before the result", dtype);
}

TS_TEST(softmax_of_drawn_rows_equals_that_of_the_CPU, .loop = 3, .timeout = 120)
{
    GPU(device);
    ts_dtype dtype = dtypes[_i];
    seed_draws((uint64_t)(1300 + _i));
    for (int turn = 0; turn < 120; turn++) {
        TS_SCOPE;
        int64_t n = drawn_length(), rows = drawn_rows(n);
        bool log = drawn(2);
        ts_tensor *x = ts_to(ts_normal(TS_SIZES(rows, n), 0, 2, TS_F32), dtype),
                  *g = ts_to(ts_normal(TS_SIZES(rows, n), 0, 1, TS_F32), dtype), *y[PLACES],
                  *dx[PLACES];
        for (int k = 0; k < PLACES; k++)
            y[k] = (log ? ts_log_softmax : ts_softmax)(ts_detach(leaf_at(x, k, device)), 1);
        ts_tensor *known = ts_to_device(y[1], TS_DEVICE_CPU);
        for (int k = 0; k < PLACES; k++)
            dx[k] = (log ? ts_log_softmax_backward : ts_softmax_backward)(
                ts_detach(leaf_at(g, k, device)), ts_detach(leaf_at(known, k, device)), 1);
        double unit = unit_of(dtype), *all = doubles_of(known), top = 0;
        for (int64_t i = 0; i < rows * n; i++)
            top = fmax(top, log ? 0 : all[i]);
        free(all);
        assert_places(y, unit + 32 * 0x1p-23, log ? 1e-6 : 0x1p-24, "softmax", dtype);
        /* y times a difference of numbers below 8, each with an error of some eps of f32 */
        assert_places(dx, 2 * unit, log ? 0x1p-19 * sqrt((double)n) : 0x1p-24 + 0x1p-20 * top,
                      "gradient", dtype);
        assert_softmax_out(ts_detach(leaf_at(x, 1 + (int)drawn(2), device)), y[1], log, device);
    }
}

TS_TEST(reductions_of_drawn_rows_equal_those_of_the_CPU, .loop = 3, .timeout = 120)
{
    GPU(device);
    ts_dtype dtype = dtypes[_i];
    seed_draws((uint64_t)(1400 + _i));
    for (int turn = 0; turn < 120; turn++) {
        TS_SCOPE;
        int64_t n = drawn_length(), rows = drawn_rows(n);
        ts_tensor *x = ts_to(ts_normal(TS_SIZES(rows, n), 0, 2, TS_F32), dtype), *sum[PLACES],
                  *most[PLACES], *where[PLACES];
        for (int k = 0; k < PLACES; k++) {
            ts_tensor *from = ts_detach(leaf_at(x, k, device));
            sum[k] = ts_sum_dim(from, 1, false);
            most[k] = ts_amax_dim(from, 1, false);
            where[k] = ts_argmax_dim(from, 1, false);
        }
        assert_places(sum, unit_of(dtype), 4e-6 * sqrt((double)n), "sum", dtype);
        assert_places(most, 0, 0, "amax", dtype);
        assert_places(where, 0, 0, "argmax", TS_I64);
    }
}
