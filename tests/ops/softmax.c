// softmax and log_softmax against loops in double: dims, limits, gradients, threads, errors.
// SPDX-License-Identifier: MIT
#include "tests/ops/rows.h"

static const int64_t shapes[][3] = {{2, 3, 4}, {1, 7, 65}, {5, 33, 1}, {3, 2, 128}, {2, 300, 17}};

static ts_tensor *call(int which, ts_tensor *t, int dim)
{
    return which ? ts_log_softmax(t, dim) : ts_softmax(t, dim);
}

TS_TEST(values_over_every_dim, .loop = 4)
{
    ts_dtype dtype = _i & 1 ? TS_F64 : TS_F32;
    int which = _i >> 1;
    for (int s = 0; s < TS_COUNTOF(shapes); s++)
        for (int dim = 0; dim < 3; dim++) {
            TS_SCOPE;
            static const int order[] = {1, 2, 0};
            ts_tensor *x = numbers(8, shapes[s], 3, dtype);
            ts_tensor *y = call(which, x, dim - 3),
                      *z = call(which, permuted(x, order), (dim + 2) % 3);
            int64_t n = x->sizes[dim], inner = x->strides[dim];
            for (int64_t i = 0; i < x->numel; i++) {
                int64_t first = i / (n * inner) * n * inner + i % inner;
                double sum = 0, own = element(x, i);
                for (int64_t k = 0; k < n; k++)
                    sum += exp(element(x, first + k * inner));
                assert_near(y, i, which ? own - log(sum) : exp(own) / sum, 8, which ? 1 : 0);
            }
            ck_assert_int_eq(z->numel, y->numel);
            for (int64_t i = 0; i < z->numel; i++) { /* compare with a permuted input */
                int64_t b = i % z->sizes[2], rest = i / z->sizes[2];
                int64_t at =
                    b * y->strides[0] + rest / z->sizes[1] * y->strides[1] + rest % z->sizes[1];
                assert_near(z, i, element(y, at), 8, which ? 1 : 0);
            }
        }
}

TS_TEST(limits, .loop = 2)
{
    TS_SCOPE;
    float values[] = {-INFINITY, -INFINITY, 0, -INFINITY, 3e38f, 3e38f, NAN, 0, INFINITY, 0};
    ts_tensor *x = ts_from_array(values, TS_F32, TS_SIZES(5, 2));
    static const double soft[] = {NAN, NAN, 1, 0, 0.5, 0.5, NAN, NAN, NAN, NAN};
    ts_tensor *rows = call(_i, x, 1);
    int order[] = {1, 0};
    ts_tensor *columns = call(_i, ts_contiguous(permuted(x, order)), 0);
    for (int64_t i = 0; i < 8; i++) {
        assert_near(rows, i, _i ? log(soft[i]) : soft[i], 1, 0);
        assert_near(columns, i % 2 * 5 + i / 2, _i ? log(soft[i]) : soft[i], 1, 0);
    }
}

TS_TEST(the_dtype_argument_converts_first)
{
    TS_SCOPE;
    int64_t values[] = {1, 2, 3};
    ts_tensor *t = ts_from_array(values, TS_I64, TS_SIZES(3));
    ts_tensor *y = ts_softmax_as(t, 0, TS_F64);
    ck_assert_int_eq(y->dtype, TS_F64);
    assert_near(y, 2, 1 / (1 + exp(-1) + exp(-2)), 4, 0);
    ck_assert_ptr_null(ts_softmax(t, 0));
    ck_assert_int_eq(ts_error_code(), TS_ERR_DTYPE);
    ck_assert_ptr_null(ts_softmax_as(t, 0, TS_I32));
    ck_assert_int_eq(ts_error_code(), TS_ERR_DTYPE);
    ck_assert_ptr_null(ts_softmax(y, 1));
    ck_assert_int_eq(ts_error_code(), TS_ERR_INDEX);
}

TS_TEST(empty_and_zero_dim_tensors)
{
    TS_SCOPE;
    ck_assert_int_eq(ts_numel(ts_softmax(ts_zeros(TS_SIZES(0, 3), TS_F32), 1)), 0);
    ck_assert_int_eq(ts_numel(ts_log_softmax(ts_zeros(TS_SIZES(3, 0), TS_F32), 1)), 0);
    assert_near(ts_softmax(ts_full(NULL, 0, TS_SCALAR(4.0), TS_F32), 0), 0, 1, 0, 0);
}

static ts_tensor *loss(ts_tensor *x, void *payload)
{
    const int *what = payload;
    return weighted_sum(call(what[0], x, what[1]));
}

TS_TEST(gradients, .loop = 6)
{
    TS_SCOPE;
    int what[] = {_i / 3, _i % 3};
    assert_gradient(numbers(6, TS_SIZES(2, 5, 3), TS_F64), loss, what);
}

/** Sum of the squares of the gradient of weighted_sum(softmax(x)). A gradient of it is a second
 *  derivative of softmax. */
static ts_tensor *slope(ts_tensor *x, void *payload)
{
    (void)payload;
    ts_tensor *y = weighted_sum(ts_softmax(x, 1)), *g = NULL;
    ts_backward_opts opts = {.size = sizeof opts, .create_graph = true};
    if (ts_grad_of(y, TS_NONE, &x, 1, &g, &opts) != TS_OK)
        return NULL;
    return ts_sum(ts_mul(g, g));
}

TS_TEST(softmax_differentiates_twice)
{
    TS_SCOPE;
    assert_gradient(numbers(6, TS_SIZES(3, 5), TS_F64), slope, NULL);
}

TS_TEST(threads_do_not_change_a_bit)
{
    static const int64_t sizes[] = {64, 40, 130};
    TS_SCOPE;
    ts_tensor *x = numbers(5, sizes, 3, TS_F32);
    for (int which = 0; which < 2; which++)
        for (int dim = 0; dim < 3; dim++) {
            ts_tensor *y[2], *dx[2];
            for (int threads = 1; threads <= 2; threads++) {
                ck_assert_int_eq(ts_set_num_threads(threads), TS_OK);
                y[threads - 1] = call(which, x, dim);
                dx[threads - 1] = which ? ts_log_softmax_backward(x, y[0], dim)
                                        : ts_softmax_backward(x, y[0], dim);
            }
            ck_assert(same_bits(y[0], y[1]));
            ck_assert(same_bits(dx[0], dx[1]));
        }
}

/** A row has the bits that it has alone, among rows that share vectors. */
TS_TEST(short_rows_have_the_bits_of_single_rows)
{
    static const ts_dtype dtypes[] = {TS_F64, TS_F32, TS_BF16};
    for (int d = 0; d < 3; d++)
        for (int64_t n = 1; n <= 17; n++) {
            TS_SCOPE;
            const int64_t rows = 37;
            ts_tensor *x = ts_to(numbers(n, TS_SIZES(rows, n), TS_F32), dtypes[d]);
            ts_tensor *g = ts_to(numbers(n + 40, TS_SIZES(rows, n), TS_F32), dtypes[d]);
            for (int which = 0; which < 2; which++) {
                ts_tensor *y = call(which, x, 1), *dx = which ? ts_log_softmax_backward(g, y, 1)
                                                              : ts_softmax_backward(g, y, 1);
                for (int64_t r = 0; r < rows; r++) {
                    ts_tensor *one = ts_contiguous(ts_slice(x, 0, r, r + 1, 1)),
                              *of = ts_contiguous(ts_slice(g, 0, r, r + 1, 1)),
                              *z = call(which, one, 1),
                              *dz = which ? ts_log_softmax_backward(of, z, 1)
                                          : ts_softmax_backward(of, z, 1);
                    ck_assert(same_bits(z, ts_contiguous(ts_slice(y, 0, r, r + 1, 1))));
                    ck_assert(same_bits(dz, ts_contiguous(ts_slice(dx, 0, r, r + 1, 1))));
                }
            }
        }
}

/* Columns of halves are computed in f32 and rounded once. */
TS_TEST(columns_of_halves_have_the_bits_of_rounded_columns, .loop = 12)
{
    TS_SCOPE;
    const char *text = getenv("TS_TEST_SEED");
    uint64_t state = (text ? strtoull(text, NULL, 10) : 1) + (uint64_t)_i * 7919;
    int64_t sizes[3];
    for (int d = 0; d < 3; d++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        sizes[d] = 1 + (int64_t)((state >> 33) % (d ? 150 : 4));
    }
    ts_dtype half = _i % 2 ? TS_BF16 : TS_F16;
    ts_tensor *x = ts_to(numbers(_i, sizes, 3, TS_F32), half),
              *g = ts_to(numbers(_i + 9, sizes, 3, TS_F32), half);
    for (int which = 0; which < 2; which++) {
        ts_tensor *y = call(which, x, 1), *wide = ts_to(y, TS_F32), *up = ts_to(g, TS_F32);
        ck_assert(same_bits(y, ts_to(call(which, ts_to(x, TS_F32), 1), half)));
        ck_assert(same_bits(which ? ts_log_softmax_backward(g, y, 1) : ts_softmax_backward(g, y, 1),
                            ts_to(which ? ts_log_softmax_backward(up, wide, 1)
                                        : ts_softmax_backward(up, wide, 1), half)));
    }
}
