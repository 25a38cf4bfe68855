// Layer and RMS normalisation against loops in double: shapes, arguments, gradients, threads,
// errors.
// SPDX-License-Identifier: MIT
#include "tests/ops/rows.h"

static const int64_t shapes[][2] = {{1, 1}, {3, 5}, {70, 33}, {5, 128}, {2, 3000}};

TS_TEST(values_with_and_without_weight_and_bias, .loop = 8)
{
    ts_dtype dtype = _i & 1 ? TS_F64 : TS_F32;
    for (int s = 0; s < TS_COUNTOF(shapes); s++) {
        TS_SCOPE;
        int64_t n = shapes[s][1];
        ts_tensor *x = numbers(1, shapes[s], 2, dtype), *w = TS_NONE, *b = TS_NONE, *mean, *rstd,
                  *root;
        if (_i & 2)
            w = numbers(2, &n, 1, dtype);
        if (_i & 4)
            b = numbers(3, &n, 1, dtype);
        ts_normalization_opts opts = {.size = sizeof opts, .eps = 1e-3,
                                      .mean = &mean, .rstd = &rstd};
        ts_normalization_opts rms = {.size = sizeof rms, .eps = 1e-3, .rstd = &root};
        ts_tensor *y = ts_layer_norm_ex(x, w, b, &opts), *z = ts_rms_norm_ex(x, w, &rms);
        ck_assert_int_eq(mean->ndim, 2);
        ck_assert_int_eq(mean->numel, shapes[s][0]);
        for (int64_t r = 0; r < shapes[s][0]; r++) {
            /* in double, the reference's error would exceed the kernel's */
            long double sum = 0, var = 0, square = 0;
            for (int64_t i = 0; i < n; i++) {
                sum += element(x, r * n + i);
                square += element(x, r * n + i) * element(x, r * n + i);
            }
            double mu = (double)(sum / n);
            for (int64_t i = 0; i < n; i++)
                var += pow(element(x, r * n + i) - mu, 2);
            double scale = 1 / sqrt((double)(var / n) + 1e-3),
                   inverse = 1 / sqrt((double)(square / n) + 1e-3);
            assert_near(mean, r, mu, 8, 2);
            assert_near(rstd, r, scale, 16, 0);
            assert_near(root, r, inverse, 16, 0);
            for (int64_t i = 0; i < n; i++) {
                double wi = _i & 2 ? element(w, i) : 1, bi = _i & 4 ? element(b, i) : 0,
                       xi = element(x, r * n + i);
                assert_near(y, r * n + i, (xi - mu) * scale * wi + bi, 16, 2 * scale);
                assert_near(z, r * n + i, xi * inverse * wi, 16, 0);
            }
        }
    }
}

TS_TEST(default_epsilons_are_those_of_pytorch)
{
    TS_SCOPE;
    ts_tensor *x = ts_from_array((float[]){1e-3f, -1e-3f}, TS_F32, TS_SIZES(1, 2));
    assert_near(ts_layer_norm(x, TS_NONE, TS_NONE), 0, 1e-3 / sqrt(1e-6 + 1e-5), 16, 0);
    assert_near(ts_rms_norm(x, TS_NONE), 0, 1e-3 / sqrt(1e-6 + 0x1p-23), 16, 0);
}

TS_TEST(several_dims_are_one_row)
{
    TS_SCOPE;
    ts_tensor *x = numbers(1, TS_SIZES(3, 4, 5), TS_F32),
              *flat = numbers(1, TS_SIZES(3, 20), TS_F32);
    ts_tensor *w = numbers(2, TS_SIZES(4, 5), TS_F32), *v = numbers(2, TS_SIZES(20), TS_F32);
    ck_assert(same_bits(ts_layer_norm(x, w, TS_NONE), ts_layer_norm(flat, v, TS_NONE)));
    ck_assert(same_bits(ts_rms_norm(x, w), ts_rms_norm(flat, v)));
}

TS_TEST(a_permuted_input_gives_the_same)
{
    TS_SCOPE;
    int order[] = {1, 0};
    ts_tensor *x = permuted(numbers(1, TS_SIZES(6, 9), TS_F32), order);
    ck_assert(same_bits(ts_layer_norm(x, TS_NONE, TS_NONE),
                        ts_layer_norm(ts_contiguous(x), TS_NONE, TS_NONE)));
}

/* Function of a gradient check. variable: 0: x, 1: weight, 2: bias; the others are constant. */
typedef struct place {
    bool rms;
    int variable;
    int64_t rows;
} place;

static ts_tensor *loss(ts_tensor *v, void *payload)
{
    const place *p = payload;
    ts_tensor *args[3] = {numbers(1, TS_SIZES(p->rows, 5), TS_F64), numbers(2, TS_SIZES(5), TS_F64),
                          numbers(3, TS_SIZES(5), TS_F64)};
    args[p->variable] = v;
    return weighted_sum(p->rms ? ts_rms_norm(args[0], args[1])
                               : ts_layer_norm(args[0], args[1], args[2]));
}

TS_TEST(gradients, .loop = 5)
{
    for (int64_t rows = 3; rows < 200; rows += 67) { /* one chunk of rows and several */
        TS_SCOPE;
        place p = {_i > 2, _i % 3, rows};
        ts_tensor *v =
            p.variable ? numbers(4, TS_SIZES(5), TS_F64) : numbers(4, TS_SIZES(p.rows, 5), TS_F64);
        assert_gradient(v, loss, &p);
    }
}

static ts_tensor *plain_loss(ts_tensor *x, void *payload)
{
    return weighted_sum(payload ? ts_rms_norm(x, TS_NONE) : ts_layer_norm(x, TS_NONE, TS_NONE));
}

TS_TEST(gradients_without_weight, .loop = 2)
{
    TS_SCOPE;
    assert_gradient(numbers(4, TS_SIZES(3, 19), TS_F64), plain_loss, _i ? &_i : NULL);
}

TS_TEST(add_layer_norm_is_the_sum_and_its_layer_norm, .loop = 4)
{
    TS_SCOPE;
    static const ts_dtype dtypes[] = {TS_F64, TS_F32, TS_BF16, TS_F16};
    ts_dtype dtype = dtypes[_i];
    ts_tensor *x = ts_to(numbers(1, TS_SIZES(7, 33), TS_F32), dtype),
              *r = ts_to(numbers(2, TS_SIZES(7, 33), TS_F32), dtype);
    ts_tensor *w = ts_to(numbers(3, TS_SIZES(33), TS_F32), dtype), *sum, *mean, *rstd, *mean2,
              *rstd2;
    ts_normalization_opts opts = {.size = sizeof opts, .eps = 1e-3, .mean = &mean, .rstd = &rstd};
    ts_normalization_opts again = {.size = sizeof again, .eps = 1e-3,
                                   .mean = &mean2, .rstd = &rstd2};
    ts_tensor *y = ts_add_layer_norm_ex(x, r, w, w, &sum, &opts);
    ck_assert(same_bits(sum, ts_add(x, r)));
    ck_assert(same_bits(y, ts_layer_norm_ex(sum, w, w, &again)));
    ck_assert(same_bits(mean, mean2));
    ck_assert(same_bits(rstd, rstd2));
    ck_assert(same_bits(ts_add_layer_norm(x, r, w, w, NULL), ts_layer_norm(sum, w, w)));
}

TS_TEST(threads_do_not_change_a_bit)
{
    TS_SCOPE;
    ts_tensor *x = numbers(1, TS_SIZES(2000, 65), TS_F32),
              *g = numbers(2, TS_SIZES(2000, 65), TS_F32);
    ts_tensor *w = numbers(3, TS_SIZES(65), TS_F32), *y[2], *dx[2], *dw[2], *db[2], *mean, *rstd;
    ts_normalization_opts opts = {.size = sizeof opts, .mean = &mean, .rstd = &rstd};
    for (int threads = 1; threads <= 2; threads++) {
        ck_assert_int_eq(ts_set_num_threads(threads), TS_OK);
        int k = threads - 1;
        y[k] = ts_layer_norm_ex(x, w, w, &opts);
        dx[k] = ts_layer_norm_backward(g, x, mean, rstd, w, 1, &dw[k], &db[k]);
    }
    ck_assert(same_bits(y[0], y[1]));
    ck_assert(same_bits(dx[0], dx[1]));
    ck_assert(same_bits(dw[0], dw[1]));
    ck_assert(same_bits(db[0], db[1]));
}

TS_TEST(rows_of_equal_elements_are_exactly_0)
{
    static const double values[] = {0.1, 1e6 + 1.0 / 3, -12345.678, 3e-5, 1 / 3.0, 16777213};
    for (int d = TS_F64; d <= TS_F16; d++)
        for (int v = 0; v < TS_COUNTOF(values); v++)
            for (int64_t n = 1; n < 3000; n += n < 40 ? 1 : 371) {
                TS_SCOPE;
                ts_tensor *x = ts_full(TS_SIZES(2, n), ts_scalar_float(values[v]), (ts_dtype)d),
                          *mean;
                if (d == TS_F16 && fabs(values[v]) > 60000)
                    continue;
                ts_normalization_opts opts = {.size = sizeof opts, .mean = &mean};
                ts_tensor *y = ts_layer_norm_ex(x, TS_NONE, TS_NONE, &opts);
                ck_assert_double_eq(element(ts_to(mean, TS_F64), 0),
                                    element(ts_to(x, TS_F64), 0));
                double found;
                ck_assert_int_eq(ts_item(ts_to(ts_any(y), TS_F64), &found), TS_OK);
                ck_assert_msg(found == 0, "%d of %g, %s", (int)n, values[v],
                              ts_dtype_name((ts_dtype)d));
            }
}

TS_TEST(empty_batches_and_errors)
{
    TS_SCOPE;
    ts_tensor *w = numbers(2, TS_SIZES(4), TS_F32), *none = ts_zeros(TS_SIZES(0, 4), TS_F32), *mean,
              *rstd, *dw, *db;
    ts_normalization_opts opts = {.size = sizeof opts, .mean = &mean, .rstd = &rstd};
    ck_assert_int_eq(ts_numel(ts_layer_norm_ex(none, w, w, &opts)), 0);
    ck_assert_ptr_nonnull(ts_layer_norm_backward(none, none, mean, rstd, w, 1, &dw, &db));
    for (int64_t i = 0; i < 4; i++) {
        ck_assert_double_eq(element(dw, i), 0);
        ck_assert_double_eq(element(db, i), 0);
    }
    ts_tensor *x = numbers(1, TS_SIZES(3, 5), TS_F32);
    ck_assert_ptr_null(ts_layer_norm(x, w, TS_NONE));
    ck_assert_int_eq(ts_error_code(), TS_ERR_SHAPE);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "weight"));
    ck_assert_ptr_null(ts_layer_norm(x, TS_NONE, ts_zeros(TS_SIZES(5), TS_F64)));
    ck_assert_int_eq(ts_error_code(), TS_ERR_DTYPE);
    ck_assert_ptr_null(ts_rms_norm(ts_zeros(TS_SIZES(3, 4), TS_I64), TS_NONE));
    ck_assert_int_eq(ts_error_code(), TS_ERR_DTYPE);
    ck_assert_ptr_null(ts_layer_norm(ts_full(NULL, 0, TS_SCALAR(1.0), TS_F32), TS_NONE, TS_NONE));
    ck_assert_int_eq(ts_error_code(), TS_ERR_SHAPE);
    ts_error_clear();
    ck_assert_ptr_null(ts_layer_norm(x, NULL, TS_NONE));
    ck_assert_int_eq(ts_error_code(), TS_ERR_NULL);
}

/** Long rows have the same bits for any number of threads, alone and among many rows; halves have
 * those of f32, rounded. */
TS_TEST(long_rows_do_not_depend_on_threads)
{
    static const ts_dtype dtypes[] = {TS_F64, TS_F32, TS_BF16, TS_F16};
    for (int d = 0; d < 4; d++)
        for (int rms = 0; rms < 2; rms++) {
            TS_SCOPE;
            const int64_t n = 131072 + 5017, rows = 20;
            ts_tensor *x = ts_to(numbers(7, TS_SIZES(rows, n), TS_F32), dtypes[d]);
            ts_tensor *w = ts_to(numbers(8, TS_SIZES(n), TS_F32), dtypes[d]), *y[2], *one[2];
            for (int threads = 1; threads <= 2; threads++) {
                ck_assert_int_eq(ts_set_num_threads(threads), TS_OK);
                y[threads - 1] = rms ? ts_rms_norm(x, w) : ts_layer_norm(x, w, w);
                ts_tensor *row = ts_contiguous(ts_slice(x, 0, 3, 4, 1));
                one[threads - 1] = rms ? ts_rms_norm(row, w) : ts_layer_norm(row, w, w);
            }
            ck_assert(same_bits(y[0], y[1]));
            ck_assert(same_bits(one[0], one[1]));
            ck_assert(same_bits(one[0], ts_contiguous(ts_slice(y[0], 0, 3, 4, 1))));
            if (d >= 2) {
                ts_tensor *wide = ts_to(x, TS_F32), *by = ts_to(w, TS_F32);
                wide = rms ? ts_rms_norm(wide, by) : ts_layer_norm(wide, by, by);
                ck_assert(same_bits(y[0], ts_to(wide, dtypes[d])));
            }
        }
}
