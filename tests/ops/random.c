// Random fills and draws against the formulas of core/philox.h; dropout and its gradient.
// SPDX-License-Identifier: MIT
#include <math.h>
#include <string.h>

#include "core/philox.h"
#include "include/tessera/tessera.h"
#include "tests/harness.h"

#define SEED 0x123456789abcdefull

/** Elements of t as doubles, row-major. */
static void read_all(ts_tensor *t, double *out)
{
    TS_SCOPE;
    ts_tensor *d = ts_to(ts_detach(t), TS_F64);
    ck_assert_int_eq(ts_copy_to(d, out, (size_t)ts_numel(t) * 8), TS_OK);
}

/** Number of counters used since the seed was set. */
static uint64_t drawn(void) { return ts_rng_get_state().offset; }

TS_TEST(uniform_is_the_stated_function_of_seed_position_and_element, .loop = 5)
{
    static const int64_t lengths[] = {0, 1, 7, 64, 1003};
    int64_t n = lengths[_i];
    static double got[1003];
    TS_SCOPE;
    ts_manual_seed(SEED);
    ts_rng_set_state((ts_rng_state){SEED, 0xffffffff}); /* the counter's high word changes */
    ts_tensor *t = ts_uniform(&n, 1, -2, 6, TS_F32);
    ck_assert_uint_eq(drawn(), 0xffffffffu + (uint64_t)(n + 3) / 4);
    read_all(t, got);
    for (int64_t i = 0; i < n; i++)
        ck_assert_double_eq(
            got[i], (double)(ts_philox_uniform_f32(SEED, 0xffffffff, (uint64_t)i) * 8.0f - 2.0f));
    ts_rng_set_state((ts_rng_state){SEED, 5});
    t = ts_uniform(&n, 1, 0, 1, TS_F64);
    ck_assert_uint_eq(drawn(), 5 + (uint64_t)(n + 1) / 2);
    read_all(t, got);
    for (int64_t i = 0; i < n; i++)
        ck_assert_double_eq(got[i], ts_philox_uniform_f64(SEED, 5, (uint64_t)i));
}

TS_TEST(normal_is_the_stated_function_of_seed_position_and_element)
{
    int64_t n = 333;
    double got[333];
    TS_SCOPE;
    ts_manual_seed(SEED);
    ts_tensor *t = ts_normal(&n, 1, 0, 1, TS_F32);
    read_all(t, got);
    for (int64_t i = 0; i < n; i++)
        ck_assert_double_eq(got[i], (double)ts_philox_normal_f32(SEED, 0, (uint64_t)i));
    ck_assert_uint_eq(drawn(), 84);
    t = ts_normal(&n, 1, 3, 2, TS_F64);
    read_all(t, got);
    for (int64_t i = 0; i < n; i++)
        ck_assert_double_eq(got[i], ts_philox_normal_f64(SEED, 84, (uint64_t)i) * 2 + 3);
}

TS_TEST(in_place_fills_write_the_same_numbers_into_any_layout)
{
    TS_SCOPE;
    ts_manual_seed(7);
    ts_tensor *fresh = ts_uniform(TS_SIZES(6, 9), 0, 1, TS_F32),
              *given = ts_zeros(TS_SIZES(6, 9), TS_F32);
    ts_manual_seed(7);
    ck_assert_ptr_eq(ts_uniform_(given, 0, 1), given);
    ck_assert_mem_eq(ts_data(fresh), ts_data(given), 6 * 9 * 4);
    uint32_t version = ts_version(given);
    ts_normal_(given, 0, 1);
    ck_assert_uint_gt(ts_version(given), version);
    ts_randint_(given, 3, 4);
    ck_assert_float_eq(((const float *)ts_data(given))[53], 3);
    ts_bernoulli_(given, 0);
    ck_assert_float_eq(((const float *)ts_data(given))[53], 0);
}

TS_TEST(a_leaf_that_requires_grad_is_filled_only_under_no_grad)
{
    TS_SCOPE;
    ts_tensor *w = ts_set_requires_grad(ts_zeros(TS_SIZES(3), TS_F32), true);
    ck_assert_ptr_null(ts_normal_(w, 0, 1));
    ck_assert_int_eq(ts_error_code(), TS_ERR_AUTOGRAD);
    TS_NO_GRAD;
    ck_assert_ptr_eq(ts_normal_(w, 0, 1), w);
}

TS_TEST(uniform_never_reaches_its_open_end)
{
    TS_SCOPE;
    int64_t n = 1 << 16;
    ts_manual_seed(1);
    /* the interval contains two f32 values, and half of the draws round up to its open end */
    ts_tensor *t = ts_uniform(&n, 1, 16777214, 16777216, TS_F32);
    const float *x = ts_data(t);
    for (int64_t i = 0; i < n; i++)
        ck_assert(x[i] == 16777214 || x[i] == 16777215);
    t = ts_uniform(&n, 1, 2, 2, TS_F32);
    ck_assert_float_eq(((const float *)ts_data(t))[9], 2);
}

TS_TEST(uniforms_of_halves_are_those_of_f32_rounded_and_stay_below_the_end, .loop = 2)
{
    TS_SCOPE;
    ts_dtype half = _i ? TS_F16 : TS_BF16;
    const double ends[][3] = {{0, 1, _i ? 0x1.ffcp-1 : 0x1.fep-1},
                              {-3, -2, _i ? -0x1.004p1 : -0x1.02p1},
                              {-1, 0, _i ? -0x1p-24 : -0x1p-133},
                              {2, 2.001, 2},
                              {5, 5, 5}};
    int64_t n = 70000;
    for (size_t k = 0; k < sizeof ends / sizeof *ends; k++) {
        ts_manual_seed(5);
        ts_tensor *single = ts_uniform(&n, 1, ends[k][0], ends[k][1], TS_F32);
        ts_manual_seed(5);
        ts_tensor *x = ts_to(ts_uniform(&n, 1, ends[k][0], ends[k][1], half), TS_F32);
        ts_tensor *rounded = ts_to(ts_to(single, half), TS_F32);
        const float *got = ts_data(x), *all = ts_data(rounded);
        float last = (float)ends[k][2]; /* largest value below the open end */
        for (int64_t i = 0; i < n; i++)
            ck_assert_float_eq(got[i], all[i] < last ? all[i] : last);
    }
}

TS_TEST(integers_cover_their_range_evenly)
{
    TS_SCOPE;
    int64_t n = 70000, counts[7] = {0};
    ts_manual_seed(11);
    ts_tensor *t = ts_randint(&n, 1, -3, 4);
    ck_assert_int_eq(ts_dtype_of(t), TS_I64);
    const int64_t *x = ts_data(t);
    for (int64_t i = 0; i < n; i++) {
        ck_assert(x[i] >= -3 && x[i] < 4);
        counts[x[i] + 3]++;
    }
    for (int i = 0; i < 7; i++) /* within five standard deviations */
        ck_assert_double_eq_tol((double)counts[i], 10000, 5 * sqrt(10000.0 * 6 / 7));
    /* the whole range of the type */
    t = ts_randint_on(&n, 1, INT64_MIN, INT64_MAX, TS_I64, TS_DEVICE_CPU);
    int64_t negative = 0;
    for (int64_t i = 0; i < n; i++)
        negative += ((const int64_t *)ts_data(t))[i] < 0;
    ck_assert_double_eq_tol((double)negative, 35000, 5 * sqrt(70000) / 2);
    ck_assert_ptr_nonnull(ts_randint_on(&n, 1, 0, 256, TS_U8, TS_DEVICE_CPU));
    ck_assert_ptr_null(ts_randint_on(&n, 1, 0, 257, TS_U8, TS_DEVICE_CPU));
    ck_assert_int_eq(ts_error_code(), TS_ERR_VALUE);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "argument 'high'"));
}

TS_TEST(permutations_hold_each_number_once)
{
    enum { N = 1000 };
    TS_SCOPE;
    ts_manual_seed(4);
    const int64_t *p = ts_data(ts_randperm(N));
    bool seen[N] = {0};
    int64_t moved = 0;
    for (int64_t i = 0; i < N; i++) {
        ck_assert(p[i] >= 0 && p[i] < N && !seen[p[i]]);
        seen[p[i]] = true;
        moved += p[i] != i;
    }
    ck_assert_int_gt(moved, N / 2);
    ck_assert_int_eq(ts_numel(ts_randperm(0)), 0);
    /* the six permutations of three are equally frequent */
    int counts[6] = {0};
    for (int i = 0; i < 6000; i++) {
        TS_SCOPE;
        const int64_t *q = ts_data(ts_randperm(3));
        counts[q[0] * 2 + (q[1] > q[2])]++;
    }
    for (int i = 0; i < 6; i++)
        ck_assert_double_eq_tol(counts[i], 1000, 5 * sqrt(1000.0 * 5 / 6));
}

TS_TEST(bernoulli_compares_uniforms_with_p)
{
    TS_SCOPE;
    int64_t n = 500;
    double p[500], got[500];
    ts_tensor *u = ts_uniform(&n, 1, 0, 1, TS_F32);
    read_all(u, p);
    ts_manual_seed(SEED);
    read_all(ts_bernoulli(u), got);
    for (int64_t i = 0; i < n; i++)
        ck_assert_double_eq(got[i], ts_philox_uniform_f32(SEED, 0, (uint64_t)i) < (float)p[i]);
    static const ts_dtype dtypes[] = {TS_F32, TS_I64, TS_I32, TS_U8, TS_BOOL};
    for (int k = 0; k < 5; k++) {
        ts_manual_seed(SEED);
        read_all(ts_bernoulli_p(&n, 1, 0.3, dtypes[k]), got);
        for (int64_t i = 0; i < n; i++)
            ck_assert_double_eq(got[i], (double)ts_philox_uniform_f32(SEED, 0, (uint64_t)i) < 0.3);
    }
    ts_manual_seed(SEED);
    read_all(ts_bernoulli_p(&n, 1, 0.3, TS_F64), got);
    for (int64_t i = 0; i < n; i++)
        ck_assert_double_eq(got[i], ts_philox_uniform_f64(SEED, 0, (uint64_t)i) < 0.3);
    read_all(ts_bernoulli_p(&n, 1, 1, TS_F32), got);
    for (int64_t i = 0; i < n; i++)
        ck_assert_double_eq(got[i], 1);
    ck_assert_ptr_null(ts_bernoulli(ts_full(TS_SIZES(2), ts_scalar_float(1.5), TS_F32)));
    ck_assert_int_eq(ts_error_code(), TS_ERR_VALUE);
}

/* ----------------------------------------------------------------------------- dropout ---- */

TS_TEST(dropout_zeros_a_share_and_scales_the_rest, .loop = 2)
{
    enum { N = 1001 };
    ts_dtype dtype = _i ? TS_F64 : TS_F32;
    static double x[N], y[N], g[N];
    TS_SCOPE;
    int64_t n = N;
    ts_tensor *t = ts_set_requires_grad(ts_normal(&n, 1, 0, 1, dtype), true);
    read_all(t, x);
    ts_manual_seed(SEED);
    ts_tensor *out = ts_dropout(t, 0.25, true);
    ck_assert_uint_eq(drawn(), (N + 3) / 4);
    read_all(out, y);
    ts_tensor *gradient = ts_full(&n, 1, ts_scalar_float(3), dtype);
    ck_assert_int_eq(ts_backward_ex(out, gradient, NULL), TS_OK);
    read_all(ts_grad(t), g);
    double scale = _i ? 1 / 0.75 : (double)(float)(1 / 0.75);
    for (uint64_t i = 0; i < N; i++) {
        bool kept = ts_philox_uniform_f32(SEED, 0, i) >= 0.25f;
        double want = _i ? x[i] * scale : (double)((float)x[i] * (float)scale);
        ck_assert_double_eq(y[i], kept ? want : 0);
        ck_assert_double_eq(g[i], kept ? (_i ? 3 * scale : (double)(3 * (float)scale)) : 0);
    }
}

TS_TEST(dropout_outside_training_and_at_the_ends)
{
    TS_SCOPE;
    ts_manual_seed(1);
    ts_tensor *x = ts_ones(TS_SIZES(10), TS_F32);
    double y[10];
    ck_assert_ptr_eq(ts_data(ts_dropout(x, 0.5, false)), ts_data(x));
    ck_assert_ptr_eq(ts_data(ts_dropout(x, 0, true)), ts_data(x));
    ck_assert_uint_eq(drawn(), 0);
    read_all(ts_dropout(x, 1, true), y);
    for (int i = 0; i < 10; i++)
        ck_assert_double_eq(y[i], 0);
    ck_assert_ptr_null(ts_dropout(x, -0.1, false));
    ck_assert_ptr_null(ts_dropout(x, NAN, true));
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "argument 'p'"));
    ck_assert_ptr_eq(ts_dropout_(x, 1, true), x);
    read_all(x, y);
    ck_assert_double_eq(y[3], 0);
}

/* ------------------------------------------------------------------------- multinomial ---- */

TS_TEST(draws_with_replacement_follow_the_weights)
{
    enum { N = 40000 };
    static const float weights[2][4] = {{1, 0, 2, 1}, {0, 5, 0, 0}};
    TS_SCOPE;
    ts_manual_seed(3);
    ts_tensor *p = ts_from_array(weights, TS_F32, TS_SIZES(2, 4)), *t = ts_multinomial(p, N, true);
    ck_assert_int_eq(ts_ndim(t), 2);
    ck_assert_int_eq(ts_size(t, 1), N);
    const int64_t *x = ts_data(t);
    int counts[4] = {0};
    for (int i = 0; i < N; i++) {
        counts[x[i]]++;
        ck_assert_int_eq(x[N + i], 1);
    }
    ck_assert_int_eq(counts[1], 0);
    ck_assert_double_eq_tol(counts[0], N / 4, 5 * sqrt(N * 3.0 / 16));
    ck_assert_double_eq_tol(counts[2], N / 2, 5 * sqrt(N / 4.0));
}

TS_TEST(draws_without_replacement_are_distinct_and_follow_the_weights)
{
    enum { N = 20000 };
    static const double weights[4] = {1, 0, 2, 1};
    TS_SCOPE;
    ts_manual_seed(3);
    ts_tensor *p = ts_from_array(weights, TS_F64, TS_SIZES(4));
    int first[4] = {0}, second_after_2[4] = {0};
    for (int i = 0; i < N; i++) {
        TS_SCOPE;
        const int64_t *x = ts_data(ts_multinomial(p, 3, false));
        ck_assert(x[0] != x[1] && x[1] != x[2] && x[0] != x[2]);
        ck_assert(x[0] != 1 && x[1] != 1 && x[2] != 1);
        first[x[0]]++;
        if (x[0] == 2)
            second_after_2[x[1]]++;
    }
    ck_assert_double_eq_tol(first[2], N / 2, 5 * sqrt(N / 4.0));
    ck_assert_double_eq_tol(first[0], N / 4, 5 * sqrt(N * 3.0 / 16));
    ck_assert_double_eq_tol(second_after_2[0], first[2] / 2.0, 5 * sqrt(first[2] / 4.0));
}

TS_TEST(invalid_weights_are_refused)
{
    static const float bad[][3] = {{0, 0, 0}, {1, -1, 1}, {1, NAN, 1}, {1, INFINITY, 1}};
    TS_SCOPE;
    for (int i = 0; i < 4; i++) {
        ck_assert_ptr_null(ts_multinomial(ts_from_array(bad[i], TS_F32, TS_SIZES(3)), 1, true));
        ck_assert_int_eq(ts_error_code(), TS_ERR_VALUE);
        ck_assert_ptr_nonnull(strstr(ts_error_message(), "argument 'probs'"));
    }
    static const float two[] = {1, 0, 1};
    ts_tensor *p = ts_from_array(two, TS_F32, TS_SIZES(3));
    ck_assert_ptr_null(ts_multinomial(p, 3, false));
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "2 weights above 0"));
    ck_assert_ptr_null(ts_multinomial(p, 0, true));
    ck_assert_ptr_null(ts_multinomial(ts_ones(TS_SIZES(2), TS_I64), 1, true));
    ck_assert_int_eq(ts_error_code(), TS_ERR_DTYPE);
    ck_assert_ptr_null(ts_multinomial(ts_ones(TS_SIZES(1, 2, 2), TS_F32), 1, true));
    ck_assert_int_eq(ts_error_code(), TS_ERR_SHAPE);
}

/* ------------------------------------------------------------------------- all of them ---- */

TS_TEST(numbers_do_not_depend_on_the_number_of_threads, .loop = 5)
{
    TS_SCOPE;
    int64_t n = 300001;
    ts_tensor *x = ts_ones(&n, 1, TS_F32), *t[2];
    for (int k = 0; k < 2; k++) {
        ck_assert_int_eq(ts_set_num_threads(k ? 3 : 1), TS_OK);
        ts_manual_seed(9);
        t[k] = _i == 0   ? ts_uniform(&n, 1, 0, 1, TS_F32)
               : _i == 1 ? ts_normal(&n, 1, 0, 1, TS_F32)
               : _i == 2 ? ts_randint_on(&n, 1, 0, 100, TS_I32, TS_DEVICE_CPU)
               : _i == 3 ? ts_bernoulli(ts_mul_scalar(x, 0.5))
                         : ts_dropout(x, 0.5, true);
        ck_assert_ptr_nonnull(t[k]);
    }
    ck_assert_mem_eq(ts_data(t[0]), ts_data(t[1]), (size_t)n * 4);
}

TS_TEST(wrong_arguments_are_named)
{
    TS_SCOPE;
    int64_t huge[] = {INT64_MAX, 3}, negative = -1, two = 2;
    ts_manual_seed(1);
    ck_assert_ptr_null(ts_uniform(huge, 2, 0, 1, TS_F32));
    ck_assert_int_eq(ts_error_code(), TS_ERR_SHAPE);
    ck_assert_ptr_null(ts_normal(&negative, 1, 0, 1, TS_F32));
    ck_assert_int_eq(ts_error_code(), TS_ERR_SHAPE);
    ck_assert_ptr_null(ts_uniform(NULL, 1, 0, 1, TS_F32));
    ck_assert_ptr_null(ts_uniform(&two, 1, 1, 0, TS_F32));
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "argument 'high'"));
    ck_assert_ptr_null(ts_uniform(&two, 1, NAN, 0, TS_F32));
    ck_assert_ptr_null(ts_normal(&two, 1, 0, -1, TS_F32));
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "argument 'std'"));
    ck_assert_ptr_null(ts_uniform(&two, 1, 0, 1, TS_I64));
    ck_assert_int_eq(ts_error_code(), TS_ERR_DTYPE);
    ck_assert_ptr_null(ts_randint(&two, 1, 4, 4));
    ck_assert_ptr_null(ts_randperm(-1));
    ck_assert_ptr_null(ts_bernoulli_p(&two, 1, 2, TS_F32));
    ck_assert_uint_eq(drawn() <= 8, 1);
    ts_error_clear();
    ck_assert_ptr_null(ts_uniform_(NULL, 0, 1));
    ck_assert_int_eq(ts_error_code(), TS_ERR_NULL);
    ck_assert_ptr_null(ts_bernoulli(NULL));
    ck_assert_ptr_null(ts_multinomial(NULL, 1, true));
    ck_assert_ptr_null(ts_dropout(NULL, 0.5, true));
    ck_assert_ptr_null(ts_dropout_(NULL, 0, true));
    ck_assert_ptr_null(ts_dropout(ts_ones(&two, 1, TS_I64), 0.5, true));
    ck_assert_int_eq(ts_error_code(), TS_ERR_DTYPE);
}

TS_TEST(meta_tensors_have_shapes_and_no_numbers)
{
    TS_SCOPE;
    ts_tensor *t = ts_normal_on(TS_SIZES(2, 3), 0, 1, TS_F32, TS_DEVICE_META);
    ck_assert_int_eq(ts_size(t, 1), 3);
    ck_assert_int_eq(ts_size(ts_multinomial(t, 5, true), 1), 5);
    ck_assert_int_eq(ts_numel(ts_dropout(t, 0.5, true)), 6);
}
