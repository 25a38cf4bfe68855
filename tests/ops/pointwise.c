/** @file pointwise.c  Cases of the pointwise families that samples cannot express: errors by value,
 * kinks, in-place gradients. */
// SPDX-License-Identifier: MIT
#include <float.h>
#include <math.h>
#include <string.h>

#include "include/tessera/tessera.h"
#include "tests/harness.h"

static ts_tensor *f32(int64_t n, const float *x) { return ts_from_array(x, TS_F32, &n, 1); }
#define F32(...) f32((int64_t)(sizeof((float[]){__VA_ARGS__}) / 4), (float[]){__VA_ARGS__})
#define I64(...) \
    ts_from_array((int64_t[]){__VA_ARGS__}, TS_I64,                                                \
                  (int64_t[]){(int64_t)(sizeof((int64_t[]){__VA_ARGS__}) / 8)}, 1)

/** Asserts that t has n f32 elements with exactly these values; NaN equals NaN. */
static void check_values(ts_tensor *t, int64_t n, const float *want)
{
    ck_assert_msg(t != NULL, "%s", ts_error_message());
    ck_assert_int_eq(ts_numel(t), n);
    ck_assert_int_eq(ts_dtype_of(t), TS_F32);
    const float *x = ts_data(t);
    for (int64_t i = 0; i < n; i++)
        ck_assert_msg(x[i] == want[i] || (isnan(x[i]) && isnan(want[i])),
                      "element %d is %g, expected %g", (int)i, (double)x[i], (double)want[i]);
}
#define CHECK(t, ...)                                                                              \
    check_values(t, (int64_t)(sizeof((float[]){__VA_ARGS__}) / 4), (float[]){__VA_ARGS__})

static ts_tensor *leaf(ts_tensor *t) { return ts_set_requires_grad(t, true); }
/** d sum(y) / d x. */
static ts_tensor *slope(ts_tensor *y, ts_tensor *x)
{
    ts_tensor *loss = ts_sum_to_size(y, NULL, 0);
    ck_assert_msg(loss && ts_backward(loss) == TS_OK, "%s", ts_error_message());
    return ts_grad(x);
}

TS_TEST(integer_division_by_zero_is_an_error_and_writes_nothing)
{
    TS_SCOPE;
    ts_tensor *a = I64(7, 8, 9), *zero = I64(2, 0, 3);
    ck_assert_ptr_null(ts_floor_divide_(a, zero));
    ck_assert_int_eq(ts_error_code(), TS_ERR_VALUE);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "other"));
    ck_assert_ptr_null(ts_remainder_scalar_(a, 0));
    ck_assert_int_eq(ts_error_code(), TS_ERR_VALUE);
    ck_assert_int_eq(memcmp(ts_data(a), (int64_t[]){7, 8, 9}, 24), 0);
    CHECK(ts_floor_divide(F32(1, -1, 0), F32(0, 0, 0)), INFINITY, -INFINITY, NAN);
    CHECK(ts_div(I64(1, -1, 0), I64(0, 0, 0)), INFINITY, -INFINITY, NAN);
}

TS_TEST(the_lowest_integer_divides_by_minus_one)
{
    TS_SCOPE;
    int64_t x;
    ck_assert_int_eq(ts_item_int(ts_floor_divide_scalar(I64(INT64_MIN), -1), &x), TS_OK);
    ck_assert(x == INT64_MIN);
    ck_assert_int_eq(ts_item_int(ts_remainder_scalar(I64(INT64_MIN), -1), &x), TS_OK);
    ck_assert(x == 0);
}

/* remainder(a, b) from r = fmod(a, b): the result has b's sign. */
static double remainder_by(double r, double b) { return r != 0 && (b < 0) != (r < 0) ? r + b : r; }
static bool same_number(double a, double b)
{
    return (isnan(a) && isnan(b)) || (a == b && signbit(a) == signbit(b));
}

/* Random operands: any bits, quotients near integers, and quotients around 2^23 and 2^52. */
TS_TEST(remainders_are_exact)
{
    TS_SCOPE;
    enum { COUNT = 4099 };
    static float a[COUNT], b[COUNT];
    static double c[COUNT], d[COUNT];
    uint64_t state = 7;
    for (int i = 0; i < COUNT; i++) {
        uint64_t bits[2];
        for (int k = 0; k < 2; k++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            bits[k] = state ^ state >> 29;
        }
        uint32_t half[2] = {(uint32_t)(bits[0] >> 32), (uint32_t)(bits[1] >> 32)};
        memcpy(&a[i], &half[0], 4);
        memcpy(&b[i], &half[1], 4);
        memcpy(&c[i], &bits[0], 8);
        memcpy(&d[i], &bits[1], 8);
        if (i % 3) {
            int most = i % 3 == 1 ? 20 : 60, scale = (int)(half[0] % 30) - 15;
            double n = floor(ldexp(1 + (double)(bits[0] >> 12) * 0x1p-52, (int)(bits[1] % most)));
            d[i] = ldexp((i % 2 ? 1 : -1) * (1 + (double)(bits[1] >> 12) * 0x1p-52), scale);
            b[i] = (float)d[i];
            a[i] = nextafterf((float)(n * (double)b[i]), i % 5 < 2 ? INFINITY : -INFINITY);
            c[i] = nextafter(n * d[i], i % 5 < 2 ? INFINITY : -INFINITY);
        }
    }
    ts_tensor *in[] = {ts_from_array(a, TS_F32, (int64_t[]){COUNT}, 1),
                       ts_from_array(b, TS_F32, (int64_t[]){COUNT}, 1),
                       ts_from_array(c, TS_F64, (int64_t[]){COUNT}, 1),
                       ts_from_array(d, TS_F64, (int64_t[]){COUNT}, 1)};
    const float *narrow = ts_data(ts_remainder(in[0], in[1]));
    const double *wide = ts_data(ts_remainder(in[2], in[3]));
    ck_assert_ptr_nonnull(narrow);
    ck_assert_ptr_nonnull(wide);
    for (int i = 0; i < COUNT; i++) {
        float r = fmodf(a[i], b[i]);
        ck_assert_msg(same_number(narrow[i], r != 0 && (b[i] < 0) != (r < 0) ? r + b[i] : r),
                      "f32 %d: %a mod %a: got %a", i, (double)a[i], (double)b[i],
                      (double)narrow[i]);
        ck_assert_msg(same_number(wide[i], remainder_by(fmod(c[i], d[i]), d[i])),
                      "f64 %d: %a mod %a: got %a", i, c[i], d[i], wide[i]);
    }
}

TS_TEST(remainder_has_the_sign_of_the_divisor)
{
    TS_SCOPE;
    CHECK(ts_remainder(F32(7, -7, 7, -7), F32(3, 3, -3, -3)), 1, 2, -2, -1);
    CHECK(ts_floor_divide(F32(7, -7, 7, -7), F32(3, 3, -3, -3)), 2, -3, -3, 2);
}

TS_TEST(powers_0_and_1_are_exact, .loop = 4)
{
    TS_SCOPE;
    static const ts_dtype dtypes[] = {TS_F32, TS_F64, TS_BF16, TS_F16};
    ts_tensor *x = ts_to(F32(-2, 0, INFINITY, -INFINITY, NAN, 3), dtypes[_i]);
    CHECK(ts_to(ts_pow_scalar(x, 0), TS_F32), 1, 1, 1, 1, 1, 1);
    ts_tensor *t = ts_transpose(ts_view(ts_slice(x, 0, 0, 4, 1), TS_SIZES(2, 2)), 0, 1);
    CHECK(ts_to(ts_contiguous(ts_pow_scalar(t, 1)), TS_F32), -2, INFINITY, 0, -INFINITY);
    ck_assert_ptr_nonnull(ts_pow_scalar_(t, 1));
    CHECK(ts_to(ts_slice(x, 0, 0, 4, 1), TS_F32), -2, 0, INFINITY, -INFINITY);
    double last;
    ck_assert_int_eq(ts_item(ts_pow_scalar(ts_select(x, 0, 4), 1), &last), TS_OK);
    ck_assert(isnan(last));
}

TS_TEST(powers_of_u8_wrap)
{
    TS_SCOPE;
    static uint8_t a[65536], e[65536];
    for (int i = 0; i < 65536; i++) {
        a[i] = (uint8_t)i;
        e[i] = (uint8_t)(i >> 8);
    }
    ts_tensor *y = ts_pow(ts_from_array(a, TS_U8, TS_SIZES(65536)),
                          ts_from_array(e, TS_U8, TS_SIZES(65536)));
    const uint8_t *found = ts_data(y);
    for (int i = 0; i < 65536; i++) {
        uint8_t want = 1;
        for (int k = 0; k < e[i]; k++)
            want = (uint8_t)(want * a[i]);
        ck_assert_int_eq(found[i], want);
    }
}

TS_TEST(integer_powers_wrap_and_truncate)
{
    TS_SCOPE;
    CHECK(ts_to(ts_pow(I64(2, -1, -1, 1, 0, 3), I64(-1, -3, -2, -5, 0, 4)), TS_F32), 0, -1, 1, 1, 1,
          81);
    ck_assert_ptr_null(ts_pow_scalar(I64(2), -1));
    ck_assert_int_eq(ts_error_code(), TS_ERR_VALUE);
}

TS_TEST(rounding_goes_to_the_even_neighbour)
{
    TS_SCOPE;
    CHECK(ts_round(F32(-2.5f, -1.5f, -0.5f, 0.5f, 1.5f, 2.5f)), -2, -2, 0, 0, 2, 2);
}

TS_TEST(numbers_may_stand_on_the_left)
{
    TS_SCOPE;
    ts_tensor *x = F32(1, 2, 4);
    CHECK(ts_rsub_scalar(x, 1), 0, -1, -3);
    CHECK(ts_rdiv_scalar(x, 2), 2, 1, 0.5f);
    CHECK(ts_rpow_scalar(x, 2), 2, 4, 16);
    CHECK(ts_where_scalars(ts_gt_scalar(x, 1.5), 1.0, 0.0), 0, 1, 1);
}

TS_TEST(relu_in_place_keeps_its_gradient)
{
    TS_SCOPE;
    ts_tensor *w = leaf(F32(-2, -1, 0, 1, 2)), *h = ts_mul_scalar(w, 3);
    ck_assert_ptr_eq(ts_relu_(h), h);
    CHECK(h, 0, 0, 0, 3, 6);
    CHECK(slope(h, w), 0, 0, 0, 3, 3);
}

TS_TEST(a_result_that_a_rule_reads_must_not_change)
{
    TS_SCOPE;
    ts_tensor *w = leaf(F32(1, 2)), *y = ts_exp(w);
    ts_mask_guard guard = ts_grad_push(false);
    ck_assert_ptr_nonnull(ts_add_scalar_(y, 1));
    ts_mask_pop(guard);
    ck_assert_int_eq(ts_backward(ts_sum_to_size(y, NULL, 0)), TS_ERR_AUTOGRAD);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "add"));
}

TS_TEST(ties_share_the_gradient)
{
    TS_SCOPE;
    ts_tensor *a = leaf(F32(1, 2, 3)), *b = F32(2, 2, 2);
    CHECK(slope(ts_maximum(a, b), a), 0, 0.5f, 1);
    ts_tensor *c = leaf(F32(1, 2, 3));
    CHECK(slope(ts_minimum(c, b), c), 1, 0.5f, 0);
}

TS_TEST(clamp_passes_gradients_at_its_bounds_and_hardtanh_does_not)
{
    TS_SCOPE;
    ts_tensor *a = leaf(F32(-2, -1, 0, 1, 2)), *b = leaf(F32(-2, -1, 0, 1, 2)),
              *c = leaf(F32(-1, 0, 3, 6, 7));
    CHECK(slope(ts_clamp(a, -1, 1), a), 0, 1, 1, 1, 0);
    CHECK(slope(ts_hardtanh(b, -1, 1), b), 0, 0, 1, 0, 0);
    CHECK(slope(ts_relu6(c), c), 0, 0, 1, 0, 0);
}

/** Bits of the gradient of argument `which` of op, in the promoted dtype; converted: the arguments
 * are cast to it first. */
static void mixed_gradient(int op, ts_dtype left, ts_dtype right, int which, bool converted,
                           uint64_t *bits)
{
    static const double values[] = {20, 200, 3, 7, 0.7, 131.25, 40000, 2.6};
    TS_SCOPE;
    ts_dtype dtypes[] = {left, right};
    ts_tensor *made[2], *leaf = NULL;
    for (int i = 0; i < 2; i++) {
        double turned[8];
        for (int k = 0; k < 8; k++)
            turned[k] = values[i ? 7 - k : k];
        made[i] = ts_to(ts_from_array(turned, TS_F64, TS_SIZES(8)), dtypes[i]);
        if (i == which)
            leaf = ts_set_requires_grad(made[i], true);
        if (converted)
            made[i] = ts_to(made[i], ts_dtype_promote(left, right));
    }
    ts_value args[] = {ts_value_tensor(made[0]), ts_value_tensor(made[1])},
             y = ts_value_none();
    ck_assert_msg(ts_call_boxed(op, args, 2, &y, 1) == TS_OK, "%s", ts_error_message());
    ck_assert_msg(ts_backward(ts_sum(ts_adopt(y.t))) == TS_OK, "%s", ts_error_message());
    ck_assert_int_eq(ts_copy_to(ts_to(ts_grad(leaf), TS_F64), bits, 64), TS_OK);
}

TS_TEST(gradients_are_computed_in_the_dtype_of_the_call)
{
    static const char *const ops[] = {"add",     "sub",     "mul",       "div",   "pow",  "maximum",
                                      "minimum", "atan2",   "remainder", "hypot"};
    for (int op = 0; op < (int)(sizeof ops / sizeof *ops); op++)
        for (int side = 0; side < 2; side++)
            for (int floating = TS_F64; floating <= TS_F16; floating++)
                for (int other = TS_F64; other <= TS_U8; other++) {
                    ts_dtype of[2];
                    of[side] = (ts_dtype)floating;
                    of[1 - side] = (ts_dtype)other;
                    uint64_t got[8], want[8];
                    int number = ts_op_by_name(ops[op]);
                    mixed_gradient(number, of[0], of[1], side, false, got);
                    mixed_gradient(number, of[0], of[1], side, true, want);
                    ck_assert_msg(memcmp(got, want, 64) == 0, "%s of %s and %s, gradient %d",
                                  ops[op], ts_dtype_name(of[0]), ts_dtype_name(of[1]), side);
                }
}

TS_TEST(power_of_zero_has_a_finite_gradient)
{
    TS_SCOPE;
    ts_tensor *x = leaf(F32(0, 0, 2)), *e = leaf(F32(0, 1, 2));
    ts_tensor *y = ts_pow(x, e);
    CHECK(slope(y, x), 0, 1, 4);
    ts_tensor *ge = ts_grad(e);
    CHECK(ge, 0, 0, 4 * logf(2));
}

TS_TEST(a_number_beside_a_half_equals_the_element_made_of_it)
{
    static const double numbers[] = {0.1, 1.0001, 65504, 1e-8, -3.3, 7e-46, 1000.3};
    for (int d = TS_BF16; d <= TS_F16; d++)
        for (int i = 0; i < (int)(sizeof numbers / sizeof *numbers); i++) {
            TS_SCOPE;
            double s = numbers[i];
            ts_tensor *x = ts_full(TS_SIZES(3), ts_scalar_float(s), (ts_dtype)d);
            ts_tensor *by = ts_full(TS_SIZES(3), ts_scalar_float(2), (ts_dtype)d);
            bool got;
            struct { ts_tensor *number, *element; } pairs[] = {
                {ts_eq_scalar(x, s), ts_eq(x, x)},
                {ts_lt_scalar(x, s), ts_lt(x, x)},
                {ts_ge_scalar(x, s), ts_ge(x, x)},
                {ts_logical_xor_scalar(by, s), ts_logical_xor(by, x)},
                {ts_remainder_scalar(by, s), ts_remainder(by, x)},
                {ts_floor_divide_scalar(by, s), ts_floor_divide(by, x)}};
            for (int k = 0; k < 6; k++) {
                ts_tensor *same = ts_logical_or(ts_eq(pairs[k].number, pairs[k].element),
                                                ts_ne(pairs[k].element, pairs[k].element));
                ck_assert_int_eq(ts_copy_to(ts_all(same), &got, 1), TS_OK);
                ck_assert_msg(got, "number %g, dtype %s, pair %d", s, ts_dtype_name((ts_dtype)d),
                              k);
            }
        }
}

TS_TEST(a_bound_passes_what_it_would_clamp_to_itself)
{
    for (int d = TS_F64; d <= TS_F16; d++) {
        TS_SCOPE;
        ts_scalar bound = ts_scalar_float(0.1);
        ts_tensor *x = leaf(ts_full(TS_SIZES(1), bound, (ts_dtype)d));
        CHECK(ts_to(slope(ts_clamp_max(x, 0.1), x), TS_F32), 1);
        x = leaf(ts_full(TS_SIZES(1), bound, (ts_dtype)d));
        CHECK(ts_to(slope(ts_hardtanh(x, -1, 0.1), x), TS_F32), 0);
    }
    ts_scalar zero = ts_scalar_float(0), top = ts_scalar_float(INFINITY);
    ts_tensor *x = F32(-INFINITY, -1, 0, 1, INFINITY, NAN), *g = F32(1, 2, 3, 4, 5, 6);
    CHECK(ts_clamp_backward(g, x, NULL, &zero, true), 1, 2, 0, 0, 0, 0);
    CHECK(ts_clamp_backward(g, x, &zero, NULL, true), 0, 0, 0, 4, 5, 0);
    CHECK(ts_clamp_backward(g, x, &zero, NULL, false), 0, 0, 3, 4, 5, 0);
    CHECK(ts_clamp_backward(g, x, &zero, &top, true), 0, 0, 0, 4, 0, 0);
    CHECK(ts_clamp_backward(g, x, &top, NULL, true), 0, 0, 0, 0, 0, 0);
}

TS_TEST(division_by_infinity_is_floored)
{
    TS_SCOPE;
    CHECK(ts_floor_divide(F32(1, -1, 1, -1, 0, -0.0f),
                          F32(INFINITY, INFINITY, -INFINITY, -INFINITY, INFINITY, INFINITY)),
          0, -1, -1, 0, 0, 0);
    CHECK(ts_to(ts_floor_divide_scalar(ts_to(F32(-2, 2), TS_F64), -INFINITY), TS_F32), 0, -1);
    CHECK(ts_remainder_scalar(F32(-2, 2), INFINITY), INFINITY, 2);
}

TS_TEST(a_gradient_next_to_the_largest_number_stays_finite)
{
    for (int d = TS_F64; d <= TS_F16; d++) {
        TS_SCOPE;
        double most = d == TS_F64 ? DBL_MAX : d == TS_F32 ? FLT_MAX : d == TS_BF16 ? 0x1.fep127
                                                                               : 65504;
        ts_tensor *x = leaf(ts_full(TS_SIZES(1), ts_scalar_float(2), (ts_dtype)d)), *dx;
        ts_tensor *g = ts_full(TS_SIZES(1), ts_scalar_float(most), (ts_dtype)d);
        ts_tensor *small = ts_full(TS_SIZES(1), ts_scalar_float(0.25), (ts_dtype)d);
        ts_tensor *three = leaf(ts_mul_scalar(small, 0.5)), *of[] = {x, x, x, three};
        ts_tensor *y[] = {ts_erf(x), ts_erfc(x), ts_pow_scalar(x, -3), ts_hypot(three, small)};
        for (int k = 0; k < 4; k++) {
            bool finite;
            ck_assert_msg(ts_grad_of(y[k], g, &of[k], 1, &dx, NULL) == TS_OK, "%s",
                          ts_error_message());
            ck_assert_int_eq(ts_copy_to(ts_isfinite(dx), &finite, 1), TS_OK);
            ck_assert_msg(finite, "%d in %s", k, ts_dtype_name((ts_dtype)d));
        }
    }
}

TS_TEST(the_gradient_of_the_start_of_a_lerp_is_accurate)
{
    for (double weight = 0.6; weight < 0.99999; weight += (1 - weight) / 3)
        for (int number = 0; number < 2; number++) {
            TS_SCOPE;
            float found, w = (float)weight;
            ts_tensor *x = leaf(F32(1)), *dx, *g = F32(1.27f);
            ts_tensor *y = number ? ts_lerp_scalar(x, F32(3), w) : ts_lerp(x, F32(3), F32(w));
            ck_assert_int_eq(ts_grad_of(y, g, &x, 1, &dx, NULL), TS_OK);
            ck_assert_int_eq(ts_copy_to(dx, &found, sizeof found), TS_OK);
            ck_assert_double_eq_tol(found / (1.27f * (1 - (double)w)), 1, 0x1p-23);
        }
}

TS_TEST(the_exponent_of_a_number_near_1_has_a_gradient_in_halves)
{
    for (int d = TS_F64; d <= TS_F16; d++)
        for (int k = -3; k <= 3; k++) {
            TS_SCOPE;
            double found, base = 1 + k * 1e-4;
            ts_tensor *e = leaf(ts_to(F32(-0.625f), (ts_dtype)d)), *de;
            ts_tensor *y = ts_rpow_scalar(e, base);
            ts_tensor *g = ts_ones_like(y);
            ck_assert_int_eq(ts_grad_of(y, g, &e, 1, &de, NULL), TS_OK);
            ck_assert_int_eq(ts_copy_to(ts_to(de, TS_F64), &found, sizeof found), TS_OK);
            double wanted = pow(base, -0.625) * log(base);
            ck_assert_double_eq_tol(found, wanted, 4e-3 * fabs(log(base)) + 1e-30);
        }
}

TS_TEST(recording_changes_no_bit_of_the_gradient_of_elu)
{
    for (int d = TS_F64; d <= TS_F32; d++)
        for (double alpha = 0.3; alpha < 3; alpha *= 1.7) {
            TS_SCOPE;
            ts_tensor *x = ts_arange(ts_scalar_float(d == TS_F64 ? -745 : -104), ts_scalar_float(3),
                                     ts_scalar_float(0.37), (ts_dtype)d);
            ts_tensor *g = ts_mul_scalar(ts_ones_like(x), -95215.97);
            ts_tensor *plain = ts_elu_backward(g, x, alpha);
            ck_assert_ptr_nonnull(plain);
            ts_tensor *recorded = ts_elu_backward(leaf(g), x, alpha);
            ck_assert_ptr_nonnull(recorded);
            ck_assert_mem_eq(ts_data(plain), ts_data(recorded),
                             (size_t)ts_numel(x) * (d == TS_F64 ? 8 : 4));
        }
}

TS_TEST(bounds_of_nan_make_everything_nan)
{
    TS_SCOPE;
    CHECK(ts_clamp_min(F32(1, NAN, 3), (double)NAN), NAN, NAN, NAN);
    CHECK(ts_clamp(F32(1, NAN, 3), 2, INFINITY), 2, NAN, 3);
}

TS_TEST(numbers_that_do_not_fit_are_not_compared)
{
    TS_SCOPE;
    ts_tensor *x = ts_to(F32(44, 1), TS_U8);
    ck_assert_ptr_null(ts_eq_scalar(x, 300));
    ck_assert_int_eq(ts_error_code(), TS_ERR_VALUE);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "fits u8, got 300"));
    ck_assert_ptr_null(ts_clamp_min(x, 300));
    ck_assert_ptr_null(ts_masked_fill_scalar(ts_to(x, TS_I32), ts_eq(x, x), (int64_t)1 << 31));
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "fits i32"));
    CHECK(ts_to(ts_eq_scalar(x, 44), TS_F32), 1, 0);
    CHECK(ts_to(ts_ge_scalar(x, 1.5), TS_F32), 1, 0);
}

TS_TEST(comparisons_write_into_bool_only)
{
    TS_SCOPE;
    ts_tensor *x = F32(1, 2);
    ck_assert_ptr_null(ts_eq_out(F32(0, 0), x, x));
    ck_assert_int_eq(ts_error_code(), TS_ERR_DTYPE);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "bool"));
}

TS_TEST(second_gradients_of_logistic_functions_are_accurate)
{
    ts_backward_opts opts = {.size = sizeof opts, .create_graph = true};
    for (double point = -60; point < 61; point += 0.75)
        for (int which = 0; which < 3; which++) {
            TS_SCOPE;
            ts_tensor *x = leaf(F32((float)point)), *g, *gg;
            ts_tensor *y = which == 0   ? ts_log_sigmoid(x)
                           : which == 1 ? ts_softplus(x, 1, 100)
                                        : ts_silu(x);
            double s = 1 / (1 + exp(-point)), rest = 1 / (1 + exp(point)), slope = s * rest;
            double want = which == 0   ? -slope
                          : which == 1 ? slope
                                       : slope * (2 + point * (rest - s));
            float found;
            ck_assert_int_eq(ts_grad_of(y, TS_NONE, &x, 1, &g, &opts), TS_OK);
            ck_assert_int_eq(ts_grad_of(g, TS_NONE, &x, 1, &gg, NULL), TS_OK);
            ck_assert_int_eq(ts_copy_to(gg, &found, sizeof found), TS_OK);
            double size = which < 2 ? slope : slope * (2 + fabs(point));
            ck_assert_double_eq_tol(found, want, 8 * FLT_EPSILON * size);
        }
}

TS_TEST(activations_differentiate_twice)
{
    TS_SCOPE;
    const double points[] = {-1.3, -0.2, 0.4, 1.7};
    for (int i = 0; i < 4; i++) {
        /* d^2 tanh(x)/dx^2 = -2 y (1 - y^2), and of sigmoid y (1 - y) (1 - 2 y) */
        ts_tensor *x = leaf((ts_full)(NULL, 0, ts_scalar_float(points[i]), TS_F64)), *g, *gg;
        double t = tanh(points[i]), s = 1 / (1 + exp(-points[i])), got;
        ts_backward_opts opts = {.size = sizeof opts, .create_graph = true};
        ts_tensor *y = ts_tanh(x);
        ck_assert_int_eq(ts_grad_of(y, TS_NONE, &x, 1, &g, &opts), TS_OK);
        ck_assert_int_eq(ts_grad_of(g, TS_NONE, &x, 1, &gg, NULL), TS_OK);
        ts_item(gg, &got);
        ck_assert_double_eq_tol(got, -2 * t * (1 - t * t), 1e-12);
        y = ts_sigmoid(x);
        ck_assert_int_eq(ts_grad_of(y, TS_NONE, &x, 1, &g, &opts), TS_OK);
        ck_assert_int_eq(ts_grad_of(g, TS_NONE, &x, 1, &gg, NULL), TS_OK);
        ts_item(gg, &got);
        ck_assert_double_eq_tol(got, s * (1 - s) * (1 - 2 * s), 1e-12);
    }
}
