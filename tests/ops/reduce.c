// Reductions against loops in double: every set of dims, layouts, threads, empty tensors, errors.
// SPDX-License-Identifier: MIT
#include "tests/ops/rows.h"

/** A row of the table of reductions. reference: the result over n elements, in double. */
typedef struct reduction {
    const char *name;
    ts_tensor *(*call)(ts_tensor *t, const int64_t *dims, int ndims, bool keepdim);
    double (*reference)(const double *x, int64_t n);
} reduction;

static double ref_sum(const double *x, int64_t n)
{
    long double y = 0;
    for (int64_t i = 0; i < n; i++)
        y += x[i];
    return (double)y;
}
static double ref_mean(const double *x, int64_t n) { return ref_sum(x, n) / (double)n; }
static double ref_prod(const double *x, int64_t n)
{
    long double y = 1;
    for (int64_t i = 0; i < n; i++)
        y *= x[i];
    return (double)y;
}
static double ref_max(const double *x, int64_t n)
{
    double y = x[0];
    for (int64_t i = 1; i < n; i++)
        y = fmax(y, x[i]);
    return (double)y;
}
static double ref_min(const double *x, int64_t n)
{
    double y = x[0];
    for (int64_t i = 1; i < n; i++)
        y = fmin(y, x[i]);
    return (double)y;
}
static double ref_var(const double *x, int64_t n)
{
    long double y = 0, mean = ref_mean(x, n);
    for (int64_t i = 0; i < n; i++)
        y += (x[i] - mean) * (x[i] - mean);
    return (double)(y / ((double)n - 1));
}
static double ref_std(const double *x, int64_t n) { return sqrt(ref_var(x, n)); }
static double ref_norm(const double *x, int64_t n)
{
    long double y = 0;
    for (int64_t i = 0; i < n; i++)
        y += x[i] * x[i];
    return (double)sqrtl(y);
}
static double ref_norm1(const double *x, int64_t n)
{
    long double y = 0;
    for (int64_t i = 0; i < n; i++)
        y += fabs(x[i]);
    return (double)y;
}
static double ref_norm_inf(const double *x, int64_t n)
{
    return fmax(ref_max(x, n), -ref_min(x, n));
}
static double ref_logsumexp(const double *x, int64_t n)
{
    long double y = 0;
    for (int64_t i = 0; i < n; i++)
        y += expl(x[i]);
    return (double)logl(y);
}

static ts_tensor *call_var(ts_tensor *t, const int64_t *d, int n, bool k)
{
    return ts_var_dims(t, d, n, 1, k);
}
static ts_tensor *call_std(ts_tensor *t, const int64_t *d, int n, bool k)
{
    return ts_std_dims(t, d, n, 1, k);
}
static ts_tensor *call_norm(ts_tensor *t, const int64_t *d, int n, bool k)
{
    return ts_norm_dims(t, 2, d, n, k);
}
static ts_tensor *call_norm1(ts_tensor *t, const int64_t *d, int n, bool k)
{
    return ts_norm_dims(t, 1, d, n, k);
}
static ts_tensor *call_norm_inf(ts_tensor *t, const int64_t *d, int n, bool k)
{
    return ts_norm_dims(t, INFINITY, d, n, k);
}

static const reduction table[] = {
    {"sum", ts_sum_dims, ref_sum},     {"mean", ts_mean_dims, ref_mean},
    {"prod", ts_prod_dims, ref_prod},  {"amax", ts_amax_dims, ref_max},
    {"amin", ts_amin_dims, ref_min},   {"var", call_var, ref_var},
    {"std", call_std, ref_std},        {"norm 2", call_norm, ref_norm},
    {"norm 1", call_norm1, ref_norm1}, {"norm inf", call_norm_inf, ref_norm_inf},
    {"logsumexp", ts_logsumexp_dims, ref_logsumexp},
};

static const int64_t shapes[][3] = {{2, 3, 4}, {7, 1, 65}, {3, 70, 33}, {2, 5000, 3}, {70, 3, 140},
                                    {2, 2, 9000}};

/** Compares a reduction of t over the dims of `mask` with the reference. values, steps: t's
 *  elements and its strides in them. */
static void compare(const reduction *r, ts_tensor *t, const double *values, const int64_t *steps,
                    int mask, bool keepdim)
{
    TS_SCOPE;
    int64_t dims[3], n = 1, results = 1;
    int ndims = 0;
    for (int d = 0; d < 3; d++)
        if (mask >> d & 1) {
            n *= t->sizes[d];
            dims[ndims] = ndims & 1 ? d - 3 : d; /* some count from the end */
            ndims++;
        } else {
            results *= t->sizes[d];
        }
    if (n < 2 && r->reference == ref_var)
        return;
    ts_tensor *y = r->call(t, dims, ndims, keepdim);
    ck_assert_msg(y != NULL, "%s: %s", r->name, ts_error_message());
    ck_assert_int_eq(y->ndim, keepdim ? 3 : 3 - ndims);
    ck_assert_int_eq(y->numel, results);
    double *x = malloc((size_t)n * sizeof *x);
    for (int64_t o = 0; o < results; o++) {
        int64_t kept = 0, rest = o;
        for (int d = 2; d >= 0; d--)
            if (!(mask >> d & 1)) {
                kept += rest % t->sizes[d] * steps[d];
                rest /= t->sizes[d];
            }
        for (int64_t i = 0; i < n; i++) {
            int64_t at = kept, left = i;
            for (int d = 2; d >= 0; d--)
                if (mask >> d & 1) {
                    at += left % t->sizes[d] * steps[d];
                    left /= t->sizes[d];
                }
            x[i] = values[at];
        }
        /* roundings per element: at most 64 in a block of rows, plus the logarithm of the number of
         * blocks. If terms cancel, the error is relative to the terms, at most 2 each. */
        double want = r->reference(x, n), scale = 2,
               depth = r->reference == ref_prod ? (double)n : 64;
        if (r->reference == ref_max || r->reference == ref_min)
            depth = 0;
        if (r->reference == ref_sum)
            scale *= sqrt((double)n);
        assert_near(y, o, want, depth, scale);
    }
    free(x);
}

TS_TEST(every_set_of_dims_in_three_layouts, .loop = 2 * TS_COUNTOF(table))
{
    const reduction *r = &table[_i / 2];
    ts_dtype dtype = _i % 2 ? TS_F64 : TS_F32;
    static const int orders[][3] = {{0, 1, 2}, {2, 0, 1}, {1, 2, 0}};
    for (int s = 0; s < TS_COUNTOF(shapes); s++) {
        TS_SCOPE;
        ts_tensor *base = numbers((uint64_t)s, shapes[s], 3, dtype);
        if (r->reference == ref_prod) /* factors near 1 avoid underflow */
            for (int64_t i = 0; i < base->numel; i++) {
                if (dtype == TS_F64)
                    ((double *)base->data)[i] = 1 + number(1, i) / 512;
                else
                    ((float *)base->data)[i] = 1 + (float)number(1, i) / 512;
            }
        double *values = malloc((size_t)base->numel * sizeof *values);
        for (int64_t i = 0; i < base->numel; i++)
            values[i] = element(base, i);
        for (int layout = 0; layout < 3; layout++) {
            ts_tensor *t = permuted(base, orders[layout]);
            for (int mask = 1; mask < 8; mask++)
                compare(r, t, values, t->strides, mask, mask & 1);
        }
        free(values);
    }
}

TS_TEST(an_expanded_dim_counts_each_time)
{
    TS_SCOPE;
    ts_tensor *x = numbers(3, TS_SIZES(5), TS_F32);
    ts_tensor *t = ts_unreduce(x, TS_SIZES(200, 5), TS_SIZES(0));
    ts_tensor *rows = ts_sum_dim(t, 0, false), *columns = ts_sum_dim(t, 1, false);
    for (int64_t i = 0; i < 5; i++)
        assert_near(rows, i, 200 * element(x, i), 64, 0);
    for (int64_t i = 0; i < 200; i++)
        assert_near(columns, i, element(ts_sum(x), 0), 4, 1);
}

TS_TEST(integers_and_bool_are_summed_in_i64)
{
    static const ts_dtype dtypes[] = {TS_I64, TS_I32, TS_U8, TS_BOOL};
    for (int k = 0; k < 4; k++) {
        TS_SCOPE;
        ts_tensor *t =
            ts_full(TS_SIZES(3, 500), TS_SCALAR(dtypes[k] == TS_BOOL ? 1 : 200), dtypes[k]);
        ts_tensor *s = ts_sum_dim(t, 1, false), *c = ts_sum_dim(t, 0, false);
        ck_assert_int_eq(s->dtype, TS_I64);
        for (int64_t i = 0; i < 3; i++)
            ck_assert_double_eq(element(s, i), dtypes[k] == TS_BOOL ? 500 : 100000);
        for (int64_t i = 0; i < 500; i++)
            ck_assert_double_eq(element(c, i), dtypes[k] == TS_BOOL ? 3 : 600);
        ck_assert_int_eq(ts_amax(t)->dtype, dtypes[k]);
        ck_assert_double_eq(element(ts_amin(t), 0), dtypes[k] == TS_BOOL ? 1 : 200);
        ck_assert_ptr_null(ts_mean(t));
        ck_assert_int_eq(ts_error_code(), TS_ERR_DTYPE);
    }
}

TS_TEST(all_and_any_of_floats_integers_and_nothing)
{
    TS_SCOPE;
    float values[] = {1, 0, 0, 0, NAN, 2};
    ts_tensor *t = ts_from_array(values, TS_F32, TS_SIZES(3, 2));
    ts_tensor *every = ts_all_dim(t, 1, false), *some = ts_any_dim(t, 1, false);
    const double want_every[] = {0, 0, 1}, want_some[] = {1, 0, 1};
    for (int64_t i = 0; i < 3; i++) {
        ck_assert_double_eq(element(every, i), want_every[i]);
        ck_assert_double_eq(element(some, i), want_some[i]);
    }
    ts_tensor *none = ts_zeros(TS_SIZES(0), TS_BOOL);
    ck_assert_double_eq(element(ts_all(none), 0), 1);
    ck_assert_double_eq(element(ts_any(none), 0), 0);
}

TS_TEST(an_empty_tensor_reduces_to_the_neutral_element)
{
    TS_SCOPE;
    ts_tensor *t = ts_zeros(TS_SIZES(0, 3), TS_F32);
    for (int64_t i = 0; i < 3; i++) {
        assert_near(ts_sum_dim(t, 0, false), i, 0, 0, 0);
        assert_near(ts_mean_dim(t, 0, false), i, NAN, 0, 0);
        assert_near(ts_prod_dim(t, 0, false), i, 1, 0, 0);
        assert_near(ts_norm_dims(t, 2, TS_SIZES(0), false), i, 0, 0, 0);
        assert_near(ts_var_dim(t, 0, 1, false), i, NAN, 0, 0);
        assert_near(ts_logsumexp_dim(t, 0, false), i, -INFINITY, 0, 0);
    }
    ck_assert_int_eq(ts_numel(ts_amax_dim(t, 1, false)), 0);
    ck_assert_ptr_null(ts_amax_dim(t, 0, false));
    ck_assert_int_eq(ts_error_code(), TS_ERR_SHAPE);
    ck_assert_ptr_null(ts_norm_dims(t, INFINITY, TS_SIZES(0), false));
    ck_assert_int_eq(ts_error_code(), TS_ERR_SHAPE);
    assert_near(ts_sum(t), 0, 0, 0, 0);
}

TS_TEST(a_zero_dim_tensor_is_one_element)
{
    TS_SCOPE;
    ts_tensor *t = ts_full(NULL, 0, TS_SCALAR(3.5), TS_F64);
    ck_assert_int_eq(ts_ndim(ts_sum(t)), 0);
    assert_near(ts_sum(t), 0, 3.5, 0, 0);
    assert_near(ts_mean_dim(t, -1, false), 0, 3.5, 0, 0);
    assert_near(ts_logsumexp(t), 0, 3.5, 1, 0);
    assert_near(ts_var_dims(t, NULL, 0, 0, false), 0, 0, 0, 0);
    assert_near(ts_var(t), 0, NAN, 0, 0);
}

TS_TEST(limits_of_logsumexp_and_extremes)
{
    TS_SCOPE;
    float values[] = {-INFINITY, -INFINITY, 1e30f, 1e30f, INFINITY, 0, NAN, 1};
    ts_tensor *t = ts_from_array(values, TS_F32, TS_SIZES(4, 2));
    ts_tensor *y = ts_logsumexp_dim(t, 1, false), *m = ts_amax_dim(t, 1, false),
              *l = ts_amin_dim(t, 1, false);
    const double want[] = {-INFINITY, 1e30f, INFINITY, NAN},
                 most[] = {-INFINITY, 1e30f, INFINITY, NAN};
    const double least[] = {-INFINITY, 1e30f, 0, NAN};
    for (int64_t i = 0; i < 4; i++) {
        assert_near(y, i, want[i], 0, 0);
        assert_near(m, i, most[i], 0, 0);
        assert_near(l, i, least[i], 0, 0);
    }
}

/* Added one by one, a sum of 0.1f stops growing near 2^21. */
TS_TEST(the_error_of_a_long_sum_grows_with_the_logarithm, .loop = 2)
{
    TS_SCOPE;
    ts_dtype dtype = _i ? TS_F64 : TS_F32;
    double tenth = _i ? 0.1 : (double)0.1f;
    const int64_t lengths[] = {63, 1000, 4095, 100003, 1 << 22};
    for (int k = 0; k < TS_COUNTOF(lengths); k++) {
        int64_t n = lengths[k];
        ts_tensor *t = ts_full(&n, 1, TS_SCALAR(0.1), dtype);
        assert_near(ts_sum(t), 0, (double)n * tenth, 2, 0);
        ts_tensor *rows = ts_full(TS_SIZES(n / 8, 8), TS_SCALAR(0.1), dtype);
        assert_near(ts_sum_dim(rows, 0, false), 7, (double)(n / 8) * tenth, 2, 0);
        assert_near(ts_sum_dims(rows, TS_SIZES(0, 1), false), 0, (double)(n / 8 * 8) * tenth, 2, 0);
    }
}

TS_TEST(threads_do_not_change_a_bit)
{
    static const int64_t sizes[][3] = {{1, 1, 300000}, {1, 20000, 33}, {40, 333, 65}, {3000, 5, 7}};
    for (int s = 0; s < TS_COUNTOF(sizes); s++) {
        TS_SCOPE;
        ts_tensor *t = numbers(5, sizes[s], 3, TS_F32);
        for (int k = 0; k < TS_COUNTOF(table); k++)
            for (int64_t d = 0; d < 3; d++) {
                ts_tensor *y[3];
                for (int threads = 1; threads <= 3; threads++) {
                    ck_assert_int_eq(ts_set_num_threads(threads), TS_OK);
                    y[threads - 1] = table[k].call(t, &d, 1, false);
                }
                ck_assert_msg(same_bits(y[0], y[1]) && same_bits(y[0], y[2]), "%s over dim %d",
                              table[k].name, (int)d);
            }
    }
}

/* The bits of a column's result do not depend on the number of columns. */
TS_TEST(columns_have_the_bits_of_columns_among_many, .loop = 30)
{
    static const ts_dtype dtypes[] = {TS_F32, TS_F64, TS_BF16, TS_F16};
    TS_SCOPE;
    int64_t rows = 1 + 211 * _i * _i % 9973, sizes[] = {1 + _i % 3, rows, 41};
    ts_tensor *all = ts_to(numbers(6, sizes, 3, TS_F32), dtypes[_i % 4]);
    ck_assert_int_eq(ts_set_num_threads(1 + _i % 3), TS_OK);
    for (int k = 0; k < TS_COUNTOF(table); k++) {
        ts_tensor *want = table[k].call(all, TS_SIZES(1), false);
        for (int64_t width = 2; width < 9; width += 1 + _i % 2) {
            ts_tensor *some = ts_slice(all, 2, 3, 3 + width, 1);
            ts_tensor *expected = ts_contiguous(ts_slice(want, 1, 3, 3 + width, 1));
            ck_assert_msg(same_bits(table[k].call(some, TS_SIZES(1), false), expected) &&
                              same_bits(table[k].call(ts_contiguous(some), TS_SIZES(1), false),
                                        expected),
                          "%s of %d columns of %d rows", table[k].name, (int)width, (int)rows);
        }
    }
    ts_set_num_threads(1);
}

TS_TEST(out_forms_write_their_destination)
{
    TS_SCOPE;
    ts_tensor *t = numbers(7, TS_SIZES(4, 6), TS_F32);
    ts_tensor *wide = ts_zeros(TS_SIZES(6, 2), TS_F32);
    int64_t size = 6, stride = 2;
    /* every second element */
    ts_tensor *out = ts_adopt(ts_tensor_alias(ts_thread_self(), wide, &size, &stride, 1, 0));
    ck_assert_ptr_eq(ts_sum_out(out, t, TS_SIZES(0), false), out);
    ts_tensor *want = ts_sum_dim(t, 0, false);
    for (int64_t i = 0; i < 6; i++) {
        ck_assert_double_eq(element(wide, 2 * i), element(want, i));
        ck_assert_double_eq(element(wide, 2 * i + 1), 0);
    }
    ck_assert_ptr_null(ts_sum_out(out, t, TS_SIZES(1), false));
    ck_assert_int_eq(ts_error_code(), TS_ERR_SHAPE);
}

TS_TEST(errors_name_the_argument)
{
    TS_SCOPE;
    ts_tensor *t = numbers(1, TS_SIZES(2, 3), TS_F32);
    ck_assert_ptr_null(ts_sum_dim(t, 2, false));
    ck_assert_int_eq(ts_error_code(), TS_ERR_INDEX);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "dims"));
    ck_assert_ptr_null(ts_sum_dims(t, TS_SIZES(0, -2), false));
    ck_assert_int_eq(ts_error_code(), TS_ERR_VALUE);
    ck_assert_ptr_null(ts_norm_dims(t, 3, TS_SIZES(0), false));
    ck_assert_int_eq(ts_error_code(), TS_ERR_VALUE);
    ck_assert_ptr_null(ts_sum_to_size(t, TS_SIZES(2, 2)));
    ck_assert_int_eq(ts_error_code(), TS_ERR_SHAPE);
    ck_assert_ptr_null(ts_unreduce(t, TS_SIZES(4, 3), TS_SIZES(0)));
    ck_assert_int_eq(ts_error_code(), TS_ERR_SHAPE);
    ts_error_clear();
    ck_assert_ptr_null(ts_sum(NULL));
    ck_assert_int_eq(ts_error_code(), TS_ERR_NULL);
}

TS_TEST(sum_to_size_undoes_broadcasting)
{
    TS_SCOPE;
    ts_tensor *t = numbers(2, TS_SIZES(3, 4, 5), TS_F32);
    ts_tensor *a = ts_sum_to_size(t, TS_SIZES(4, 1)), *b = ts_sum_to_size(t, NULL, 0);
    for (int64_t i = 0; i < 4; i++) {
        double want = 0;
        for (int64_t k = 0; k < 15; k++)
            want += element(t, (k / 5 * 4 + i) * 5 + k % 5);
        assert_near(a, i, want, 16, 1);
    }
    assert_near(b, 0, element(ts_sum(t), 0), 0, 0);
    ck_assert(same_bits(ts_sum_to_size(t, t->sizes, 3), t));
    for (int d = TS_I64; d <= TS_BOOL; d++) { /* sums beyond the range of the dtype */
        ts_tensor *most = ts_full(TS_SIZES(300), ts_scalar_int(255), (ts_dtype)d);
        ts_tensor *sum = ts_sum_to_size(most, NULL, 0);
        ck_assert_int_eq(sum->dtype, TS_I64);
        assert_near(sum, 0, d == TS_BOOL ? 300 : 300 * 255, 0, 0);
        ck_assert_int_eq(ts_sum_to_size(most, TS_SIZES(300))->dtype, TS_I64);
    }
    ts_tensor *top = ts_full(TS_SIZES(3), ts_scalar_int(INT32_MAX), TS_I32);
    assert_near(ts_sum_to_size(top, NULL, 0), 0, 3.0 * INT32_MAX, 0, 0);
}

/* ------------------------------------------------------------------------------ gradients ---- */

static ts_tensor *loss_of(ts_tensor *x, void *payload)
{
    static const int64_t dims[] = {0, 2};
    const reduction *r = payload;
    return ts_add(weighted_sum(r->call(x, dims, 2, false)),
                  weighted_sum(r->call(x, dims + 1, 1, true)));
}

TS_TEST(gradients, .loop = TS_COUNTOF(table))
{
    TS_SCOPE;
    assert_gradient(numbers(4, TS_SIZES(2, 3, 4), TS_F64), loss_of, (void *)&table[_i]);
}

TS_TEST(the_gradient_of_a_product_passes_one_zero)
{
    for (int zeros = 1; zeros <= 2; zeros++) {
        TS_SCOPE;
        ts_tensor *x = numbers(4, TS_SIZES(2, 3, 4), TS_F64);
        ((double *)x->data)[1] = 0;
        if (zeros == 2)
            ((double *)x->data)[3] = 0;
        assert_gradient(x, loss_of, (void *)&table[2]);
    }
}

TS_TEST(recording_changes_no_value_of_the_gradient_of_a_product)
{
    for (int d = TS_F64; d <= TS_F16; d++)
        for (int zeros = 0; zeros < 4; zeros++) {
            TS_SCOPE;
            ts_tensor *x = ts_sub_scalar(ts_randint(TS_SIZES(300), 1, 7), 7), *dx[2];
            for (int k = 0; k < zeros; k++)
                ((int64_t *)x->data)[k * 117 + 31] = 0;
            ck_assert_ptr_nonnull(x = ts_set_requires_grad(ts_to(x, (ts_dtype)d), true));
            for (int k = 0; k < 2; k++)
                ck_assert_int_eq(ts_grad_of(ts_prod(x), TS_NONE, &x, 1, &dx[k],
                                            TS_OPTS(ts_backward_opts, .create_graph = k)),
                                 TS_OK);
            for (int64_t i = 0; i < x->numel; i++) {
                double a = element(ts_to(dx[0], TS_F64), i), b = element(ts_to(dx[1], TS_F64), i);
                ck_assert_msg(a == b || fabs(a - b) <= 1e-12 * fabs(a), "%g, recorded %g, %s", a, b,
                              ts_dtype_name((ts_dtype)d));
            }
        }
}

TS_TEST(equal_extremes_share_the_gradient)
{
    TS_SCOPE;
    ts_tensor *x = ts_from_array((double[]){2, 1, 2, -2}, TS_F64, TS_SIZES(4));
    ck_assert_ptr_nonnull(ts_set_requires_grad(x, true));
    ck_assert_int_eq(ts_backward(ts_amax(x)), TS_OK);
    const double want[] = {0.5, 0, 0.5, 0}, want_norm[] = {1. / 3, 0, 1. / 3, -1. / 3};
    for (int64_t i = 0; i < 4; i++)
        ck_assert_double_eq(element(ts_grad(x), i), want[i]);
    ts_zero_grad(x);
    ck_assert_int_eq(ts_backward(ts_norm_dims(x, INFINITY, NULL, 0, false)), TS_OK);
    for (int64_t i = 0; i < 4; i++)
        assert_near(ts_grad(x), i, want_norm[i], 1, 0);
}

TS_TEST(gradients_where_formulas_divide_by_zero)
{
    TS_SCOPE;
    ts_tensor *x = ts_full(TS_SIZES(3), TS_SCALAR(0.0), TS_F64),
              *low = ts_full(TS_SIZES(2), TS_SCALAR(-INFINITY), TS_F64);
    ck_assert_ptr_nonnull(ts_set_requires_grad(x, true));
    ck_assert_ptr_nonnull(ts_set_requires_grad(low, true));
    ck_assert_int_eq(ts_backward(ts_add(ts_norm(x), ts_std(x))), TS_OK);
    ck_assert_int_eq(ts_backward(ts_logsumexp(low)), TS_OK);
    for (int64_t i = 0; i < 2; i++) {
        ck_assert_double_eq(element(ts_grad(x), i), 0);
        ck_assert_double_eq(element(ts_grad(low), i), 0);
    }
}

TS_TEST(equal_elements_have_no_variance)
{
    static const double values[] = {0.1, 1e6 + 1.0 / 3, -12345.678, 3e-5, 1 / 3.0, 16777213};
    for (int d = TS_F64; d <= TS_F16; d++)
        for (int v = 0; v < TS_COUNTOF(values); v++)
            for (int64_t n = 2; n < 10000; n += n < 40 ? 1 : 1371)
                for (int dim = 0; dim < 2; dim++) {
                    TS_SCOPE;
                    if (d == TS_F16 && fabs(values[v]) > 60000)
                        continue;
                    ts_tensor *row = ts_full(TS_SIZES(dim ? 1 : n, dim ? n : 1),
                                             ts_scalar_float(values[v]), (ts_dtype)d);
                    ts_tensor *other = ts_to(numbers(4, row->sizes, 2, TS_F64), (ts_dtype)d);
                    ts_tensor *x = ts_cat((ts_tensor *[]){row, other}, 2, 1 - dim);
                    ts_tensor *var = ts_to(ts_var_dim(x, dim, 1, false), TS_F64),
                              *std = ts_to(ts_std_dim(x, dim, 1, false), TS_F64);
                    ck_assert_msg(element(var, 0) == 0 && element(std, 0) == 0, "%d of %g, %s: %g",
                                  (int)n, values[v], ts_dtype_name((ts_dtype)d), element(var, 0));
                    ck_assert_double_gt(element(std, 1), 0);
                }
}

/** The gradient of y by x, in f64. */
static ts_tensor *slope(ts_tensor *y, ts_tensor *x)
{
    ck_assert_msg(ts_backward(y) == TS_OK, "%s", ts_error_message());
    return ts_to(ts_grad(x), TS_F64);
}

TS_TEST(gradients_of_norm_and_std_fit_f16_where_their_factors_overflow)
{
    for (int power = -20; power < -12; power++) { /* 1 / length overflows f16 */
        TS_SCOPE;
        double x[] = {3 * ldexp(1, power), 4 * ldexp(1, power)};
        double y[] = {ldexp(1, power), -ldexp(1, power)};
        ts_tensor *a = ts_to(ts_from_array(x, TS_F64, TS_SIZES(2)), TS_F16),
                  *b = ts_to(ts_from_array(y, TS_F64, TS_SIZES(2)), TS_F16);
        ck_assert_ptr_nonnull(ts_set_requires_grad(a, true));
        ck_assert_ptr_nonnull(ts_set_requires_grad(b, true));
        ts_tensor *da = slope(ts_norm(a), a), *db = slope(ts_std(b), b);
        ck_assert_double_eq_tol(element(da, 0), 0.6, 0x1p-9);
        ck_assert_double_eq_tol(element(da, 1), 0.8, 0x1p-9);
        ck_assert_double_eq_tol(element(db, 0), sqrt(0.5), 0.03); /* std is rounded to f16 */
    }
}

TS_TEST(gradients_of_amax_are_shared_by_more_elements_than_a_half_can_count)
{
    for (int d = TS_BF16; d <= TS_F16; d++) {
        TS_SCOPE;
        ts_tensor *x = ts_full(TS_SIZES(70001), ts_scalar_float(2), (ts_dtype)d);
        ck_assert_ptr_nonnull(ts_set_requires_grad(x, true));
        ck_assert_double_eq_tol(element(slope(ts_amax(x), x), 0) * 70001, 1, 0.01);
    }
}

static ts_tensor *loss_to_size(ts_tensor *x, void *payload)
{
    (void)payload;
    ts_tensor *a = ts_sum_to_size(x, TS_SIZES(3, 1)), *b = ts_sum_to_size(x, TS_SIZES(2, 1, 4));
    ts_tensor *c = ts_unreduce(b, TS_SIZES(2, 5, 4), TS_SIZES(1));
    return ts_add(ts_add(weighted_sum(a), weighted_sum(b)), weighted_sum(c));
}

TS_TEST(gradients_of_sum_to_size_and_unreduce)
{
    TS_SCOPE;
    assert_gradient(numbers(4, TS_SIZES(2, 3, 4), TS_F64), loss_to_size, NULL);
}
