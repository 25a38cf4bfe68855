/** @file copy.c  Copies between layouts, at sizes that take every path and leave tails. */
// SPDX-License-Identifier: MIT
#include "tests/ops/values.h"

static const ts_dtype dtypes[] = {TS_F32, TS_F64, TS_I64, TS_I32, TS_BF16, TS_U8};

/** Element (i, j, k) of the (a, b, c) tensor counting up, modulo the largest number that the dtype
 *  holds exactly. */
static double wanted(int64_t i, int64_t j, int64_t k, int64_t b, int64_t c)
{
    return (double)(((i * b + j) * c + k) % 128);
}

TS_TEST(permuted_copies_keep_every_element, .loop = 6)
{
    static const int64_t shapes[][3] = {{1, 1, 1}, {2, 3, 5}, {3, 16, 16}, {2, 33, 17}, {5, 40, 70},
                                        {3, 130, 129}};
    static const int64_t orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1},
                                        {2, 1, 0}};
    for (int s = 0; s < 6; s++)
        for (int o = 0; o < 6; o++)
            for (int threads = 1; threads <= 3; threads += 2) {
                TS_SCOPE;
                ts_set_num_threads(threads);
                const int64_t *n = shapes[s], *p = orders[o];
                int64_t numel = n[0] * n[1] * n[2];
                double *values = malloc((size_t)numel * sizeof *values);
                for (int64_t i = 0; i < numel; i++)
                    values[i] = (double)(i % 128);
                ts_tensor *x = ts_to(ts_from_array(values, TS_F64, n, 3), dtypes[_i]);
                ts_tensor *y = ts_contiguous(ts_permute(x, p, 3));
                /* a copy from contiguous to strided */
                ts_tensor *into = ts_permute(ts_empty_like(x), p, 3);
                ck_assert_ptr_nonnull(ts_copy_(into, y));
                for (int pass = 0; pass < 2; pass++) {
                    ck_assert_int_eq(ts_copy_to(ts_to(pass ? into : y, TS_F64), values,
                                                (size_t)numel * sizeof *values),
                                     TS_OK);
                    int64_t at[3], e = 0;
                    for (at[0] = 0; at[0] < n[p[0]]; at[0]++)
                        for (at[1] = 0; at[1] < n[p[1]]; at[1]++)
                            for (at[2] = 0; at[2] < n[p[2]]; at[2]++, e++) {
                                int64_t from[3];
                                for (int d = 0; d < 3; d++)
                                    from[p[d]] = at[d];
                                ck_assert(values[e] ==
                                          wanted(from[0], from[1], from[2], n[1], n[2]));
                            }
                }
                free(values);
            }
}

/** A number of [0, n), by a linear congruential generator. */
static int64_t below(uint64_t *state, int64_t n)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)(*state >> 33) % n;
}

/* Drawn permutations of 2 to 5 dims: few small dims, and dims that take tiles and edges. Copies,
 * conversions and sums with a contiguous operand read the permuted operand. */
TS_TEST(drawn_permutations_keep_every_element, .loop = 12)
{
    uint64_t state = (uint64_t)_i * 77 + 5;
    for (int round = 0; round < 25; round++) {
        TS_SCOPE;
        ts_set_num_threads(1 + round % 2);
        int ndim = 2 + (int)below(&state, 4);
        int64_t sizes[5], order[5], made[5], steps[5], numel = 1;
        for (int d = 0; d < ndim; d++) {
            sizes[d] = 1 + below(&state, ndim == 2 ? 150 : ndim == 3 ? 40 : 9);
            order[d] = d;
            numel *= sizes[d];
        }
        for (int d = ndim - 1; d > 0; d--) {
            int64_t other = below(&state, d + 1), t = order[d];
            order[d] = order[other];
            order[other] = t;
        }
        ts_dtype from = dtypes[below(&state, 6)], to = dtypes[below(&state, 6)];
        double *values = malloc((size_t)numel * sizeof *values);
        for (int64_t i = 0; i < numel; i++)
            values[i] = (double)(i * 7 % 61);
        ts_tensor *x = ts_permute(ts_to(ts_from_array(values, TS_F64, sizes, ndim), from), order,
                                  ndim);
        for (int64_t d = ndim - 1, step = 1; d >= 0; step *= sizes[d--])
            steps[d] = step;
        for (int d = 0; d < ndim; d++)
            made[d] = sizes[order[d]];
        ts_tensor *ones = ts_ones(made, ndim, to);
        ts_tensor *results[3] = {ts_contiguous(x), ts_copy_(ts_zeros(made, ndim, to), x),
                                 ts_add(ones, x)};
        double *got = malloc((size_t)numel * sizeof *got);
        for (int r = 0; r < 3; r++) {
            ck_assert_msg(results[r] != NULL, "%s", ts_error_message());
            ck_assert_int_eq(ts_copy_to(ts_to(ts_contiguous(results[r]), TS_F64), got,
                                        (size_t)numel * sizeof *got),
                             TS_OK);
            for (int64_t e = 0; e < numel; e++) {
                int64_t at = 0, rest = e;
                for (int d = ndim - 1; d >= 0; d--) {
                    at += rest % made[d] * steps[order[d]];
                    rest /= made[d];
                }
                double want = values[at] + (r == 2);
                ck_assert_msg(got[e] == want, "result %d, element %lld: %g, expected %g", r,
                              (long long)e, got[e], want);
            }
        }
        free(got);
        free(values);
    }
}

TS_TEST(vectors_and_scalar_code_convert_halves_alike, .loop = 2)
{
    ts_dtype half = _i ? TS_F16 : TS_BF16;
    enum { N = 1031 };
    float values[N];
    uint32_t state = 7;
    for (int i = 0; i < N; i++) {
        state = state * 1664525u + 1013904223u;
        values[i] = (float)((int32_t)state) / 3e7f * (i % 5 ? 1.0f : 1e-4f);
    }
    ts_tensor *x = ts_from_array(values, TS_F32, TS_SIZES(N));
    ts_tensor *one = ts_squeeze(
        ts_contiguous(ts_slice(ts_expand(ts_unsqueeze(x, 1), TS_SIZES(N, 3)), 1, 0, TS_END, 2)));
    ts_tensor *h = ts_to(x, half), *strided = ts_to(ts_select(one, 1, 1), half);
    ck_assert_int_eq(memcmp(ts_data(h), ts_data(strided), N * 2), 0);
    ts_tensor *wide = ts_to(h, TS_F32);
    for (int i = 0; i < N; i++) {
        float got = ((const float *)ts_data(wide))[i], off = got - values[i],
              most = values[i] / (_i ? 2048 : 256);
        ck_assert(off * off <= most * most * 1.0001f + 1e-14f);
    }
}

TS_TEST(scalars_are_rounded_as_copies_are)
{
    static const double values[] = {NAN, -NAN, INFINITY, -INFINITY, 0, -0.0, 1 + 0x1p-9,
                                    1 + 0x1.8p-8, 65519, 65520, 0x1p-25, -2.5, 300.7, 3e9, -3e9,
                                    1e19, -1e19, 3.4e38};
    static const ts_dtype all[] = {TS_F64, TS_F32, TS_BF16, TS_F16, TS_I64, TS_I32, TS_U8, TS_BOOL};
    for (size_t v = 0; v < sizeof values / sizeof *values; v++)
        for (int k = 0; k < 8; k++) {
            TS_SCOPE;
            uint64_t bits[2] = {0, 0};
            ts_tensor *filled = ts_full((int64_t[]){1}, 1, TS_SCALAR(values[v]), all[k]);
            ts_tensor *copied = ts_to(ts_from_array(&values[v], TS_F64, (int64_t[]){1}, 1), all[k]);
            ck_assert_int_eq(ts_copy_to(filled, &bits[0], ts_dtype_size(all[k])), TS_OK);
            ck_assert_int_eq(ts_copy_to(copied, &bits[1], ts_dtype_size(all[k])), TS_OK);
            ck_assert_msg(bits[0] == bits[1], "%g as %s: %llx, a copy gives %llx", values[v],
                          ts_dtype_name(all[k]), (unsigned long long)bits[0],
                          (unsigned long long)bits[1]);
        }
}

/* Blocks are converted by vectors if all their elements are near 0; a block of one element that is
 * far is converted by scalar code. */
TS_TEST(long_runs_are_converted_as_single_elements_are, .loop = 4)
{
    static const ts_dtype all[] = {TS_F64, TS_F32, TS_BF16, TS_F16, TS_I64, TS_I32, TS_U8, TS_BOOL};
    static const double far[] = {NAN, INFINITY, -INFINITY, 0x1p31, -0x1p31, 0x1p31 + 1, -0x1p32,
                                 0x1p40, 1e300};
    enum { N = 1031 };
    double values[N];
    uint32_t state = 11;
    for (int i = 0; i < N; i++) {
        state = state * 1664525u + 1013904223u;
        values[i] = (double)(int32_t)state / (i % 3 ? 3e7 : 3e3);
    }
    for (int i = 0; i < 9; i++)
        values[600 + 17 * i] = far[i];
    ts_tensor *x = ts_to(ts_from_array(values, TS_F64, TS_SIZES(N)), all[_i]);
    for (int k = 0; k < 8; k++)
        for (int strided = 0; strided < 2; strided++) {
            TS_SCOPE;
            ts_tensor *wide = ts_to(strided ? ts_select(ts_clone(ts_stack((ts_tensor *[]){x, x}, 2,
                                                                          1)), 1, 0)
                                            : x,
                                    all[k]);
            int64_t item = (int64_t)ts_dtype_size(all[k]);
            for (int64_t i = 0; i < N; i++) {
                TS_SCOPE;
                ts_tensor *one = ts_to(ts_slice(x, 0, i, i + 1, 1), all[k]);
                ck_assert_msg(!memcmp((const char *)ts_data(wide) + i * item, ts_data(one),
                                      (size_t)item) || values[i] != values[i],
                              "%s to %s, element %lld: %g", ts_dtype_name(all[_i]),
                              ts_dtype_name(all[k]), (long long)i, values[i]);
            }
        }
}

TS_TEST(a_wide_number_becomes_a_half_in_one_rounding, .loop = 2)
{
    ts_dtype half = _i ? TS_F16 : TS_BF16;
    double unit = _i ? 0x1p-10 : 0x1p-7;
    /* values near the middle between two neighbours: rounding to f32 first would give the middle,
     * and then the even neighbour */
    const double above = 1 + unit / 2 + 0x1p-40, below = 1 + unit * 1.5 - 0x1p-40;
    const double values[] = {above, -above, below, -below, 1 + unit / 2, 0x1p-200, -1e300};
    const double wanted[] = {1 + unit, -1 - unit, 1 + unit, -1 - unit, 1, 0, -INFINITY};
    int64_t n = sizeof values / sizeof *values;
    ts_tensor *copied = ts_to(ts_from_array(values, TS_F64, &n, 1), half);
    for (int64_t i = 0; i < n; i++) {
        double got[2];
        ck_assert_int_eq(ts_item(ts_select(copied, 0, i), &got[0]), TS_OK);
        ck_assert_int_eq(ts_item(ts_full(NULL, 0, TS_SCALAR(values[i]), half), &got[1]), TS_OK);
        ck_assert_double_eq(got[0], wanted[i]);
        ck_assert_double_eq(got[1], wanted[i]);
    }
    if (_i)
        return;
    const int64_t large = ((int64_t)1 << 62) + ((int64_t)1 << 54);
    const int64_t wholes[] = {large + 1, -large - 1, large, large - 1, (1 << 30) + (1 << 22) + 1};
    const double whole_wanted[] = {0x1.02p62, -0x1.02p62, 0x1p62, 0x1p62, 0x1.02p30};
    n = sizeof wholes / sizeof *wholes;
    ts_tensor *from = ts_from_array(wholes, TS_I64, &n, 1);
    for (int64_t i = 0; i < n; i++) {
        double got[3];
        ck_assert_int_eq(ts_item(ts_to(ts_select(from, 0, i), half), &got[0]), TS_OK);
        ck_assert_int_eq(ts_item(ts_full(NULL, 0, ts_scalar_int(wholes[i]), half), &got[1]), TS_OK);
        ck_assert_double_eq(got[0], whole_wanted[i]);
        ck_assert_double_eq(got[1], whole_wanted[i]);
        if (wholes[i] > INT32_MAX || wholes[i] < INT32_MIN)
            continue;
        ck_assert_int_eq(ts_item(ts_to(ts_to(ts_select(from, 0, i), TS_I32), half), &got[2]),
                         TS_OK);
        ck_assert_double_eq(got[2], whole_wanted[i]);
    }
}

TS_TEST(long_copies_are_complete)
{
    ts_tensor *x = count_up(TS_SIZES(70001), TS_F64), *y = ts_clone(x);
    ck_assert_int_eq(memcmp(ts_data(x), ts_data(y), 70001 * sizeof(double)), 0);
    ck_assert_ptr_ne(ts_data(x), ts_data(y));
}

TS_TEST(moving_copies_within_the_host_and_leaves_meta_its_sizes)
{
    ts_tensor *t = count_up(TS_SIZES(2, 3), TS_F32), *here = ts_to_device(ts_t(t), TS_DEVICE_CPU);
    EXPECT(here, 0, 3, 1, 4, 2, 5);
    ck_assert(ts_is_contiguous(here) && ts_data(here) != ts_data(t));
    ts_tensor *meta = ts_to_device(t, TS_DEVICE_META);
    EXPECT_SIZES(meta, 2, 3);
    ck_assert_str_eq(ts_device_name(ts_device_of(meta)), "meta");
    ck_assert_ptr_null(ts_data(meta));
    EXPECT_SIZES(ts_to_device(meta, TS_DEVICE_META), 2, 3);
    EXPECT_ERROR(ts_to_device(meta, TS_DEVICE_CPU), TS_ERR_UNSUPPORTED, "cpu");
    EXPECT_ERROR(ts_to_device(t, ((ts_device){TS_KEY_CUDA, 0})), TS_ERR_UNSUPPORTED, "cuda:0");
    EXPECT_ERROR(ts_to_device(t, ((ts_device){16, 0})), TS_ERR_DEVICE, "16");
    EXPECT_ERROR(ts_to_device(NULL, TS_DEVICE_CPU), TS_ERR_NULL, "self");
}

TS_TEST(casts_and_moves_keep_channels_last)
{
    for (int dims = 3; dims <= 5; dims++) {
        ts_tensor *plain = ts_normal(TS_SIZES(2, 3, 4, 2, 5), 0, 1, TS_F32);
        while (ts_ndim(plain) > dims)
            plain = ts_select(plain, -1, 0);
        ts_tensor *last = ts_to_channels_last(plain);
        ts_tensor *cast = ts_to(last, TS_F64), *moved = ts_to_device(last, TS_DEVICE_CPU);
        ck_assert(!ts_is_contiguous(cast) && ts_is_contiguous(ts_movedim(cast, 1, -1)));
        ck_assert_int_eq(ts_is_contiguous(moved), dims < 4);
        double apart[2];
        ck_assert_int_eq(ts_item(ts_amax(ts_abs(ts_sub(cast, plain))), &apart[0]), TS_OK);
        ck_assert_int_eq(ts_item(ts_amax(ts_abs(ts_sub(moved, plain))), &apart[1]), TS_OK);
        ck_assert(apart[0] == 0 && apart[1] == 0);
    }
}

static ts_status cast_it(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    return ts_status_of_pointer(out[0] = ts_to(in[0], TS_F64));
}

/* An expanded tensor has more elements than memory; in a wider dtype their bytes exceed 63 bits. */
TS_TEST(a_cast_whose_bytes_overflow_is_refused, .loop = 2)
{
    int64_t n = ((int64_t)1 << (_i ? 60 : 61)) + 16;
    ts_tensor *x = ts_expand(ts_ones(TS_SIZES(1), TS_U8), TS_SIZES(n)), *y;
    ck_assert_ptr_nonnull(x);
    ck_assert_ptr_null(ts_to(x, TS_F64));
    ck_assert_int_eq(ts_error_code(), TS_ERR_SHAPE);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "to: a new tensor: expected sizes >= 0 whose "
                                                     "bytes fit 63 bits"));
    ck_assert_ptr_null(ts_add(x, ts_ones(TS_SIZES(1), TS_I64)));
    ck_assert_int_eq(ts_error_code(), TS_ERR_SHAPE);
    ck_assert_ptr_null(ts_exp(x));
    ck_assert_int_ne(ts_error_code(), TS_OK);
    ck_assert_int_eq(strncmp(ts_error_message(), "exp: ", 5), 0);
    ts_compiled *compiled = ts_compile(cast_it, NULL, NULL);
    ck_assert_int_eq(ts_compiled_call(compiled, &x, 1, &y, 1), TS_ERR_SHAPE);
    ts_compiled_free(compiled);
}

/* Rows of elements that are a few elements apart, and small planes, in the source. */
TS_TEST(transposes_of_planes_with_few_columns)
{
    static const ts_dtype dtypes[] = {TS_U8, TS_BF16, TS_F32, TS_F64};
    static const int64_t rows[] = {4, 7, 63, 64, 65, 200, 515};
    for (int i = 0; i < 4 * 7 * 3; i++)
        for (int64_t columns = 2; columns <= 8; columns++) {
            TS_SCOPE;
            int64_t n = rows[i % 7], step = columns + i / 28, plane = n * columns;
            size_t item = ts_dtype_size(dtypes[i / 7 % 4]);
            ts_tensor *x = ts_arange(0, (double)(3 * n * step), 1, TS_F64);
            x = ts_view(ts_to(x, dtypes[i / 7 % 4]), TS_SIZES(3, n, step));
            ts_tensor *y = ts_contiguous(ts_transpose(ts_slice(x, 2, 0, columns, 1), 1, 2));
            ck_assert_ptr_nonnull(y);
            const char *from = ts_data(x), *to = ts_data(y);
            for (int64_t k = 0; k < 3 * plane; k++) {
                int64_t row = k % n, column = k / n % columns, at = k / plane * n + row;
                ck_assert_mem_eq(to + (size_t)k * item,
                                 from + (size_t)(at * step + column) * item, item);
            }
        }
}
