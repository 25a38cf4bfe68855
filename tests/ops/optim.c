// Update rules over lists: against plain C in double, against torch.optim, in any layout.
// SPDX-License-Identifier: MIT
#include <float.h>
#include <math.h>
#include <string.h>

#include "core/tensor.h"
#include "include/tessera/tessera.h"
#include "tests/harness.h"

enum { MOST = 6 };
/* one element, tails of vectors, whole vectors, empty, and enough for several threads */
static const int64_t lengths[MOST] = {1, 7, 64, 0, 301, 40000};

typedef struct list {
    ts_tensor *t[MOST];
} list;

static double value(uint64_t seed, int64_t i)
{
    return sin((double)seed * 12.9898 + (double)i * 78.233);
}

static list make_list(uint64_t seed, ts_dtype dtype)
{
    static double values[40000];
    list l;
    for (int k = 0; k < MOST; k++) {
        for (int64_t i = 0; i < lengths[k]; i++)
            values[i] = value(seed + (uint64_t)k, i);
        ts_tensor *t = ts_from_array(values, TS_F64, &lengths[k], 1);
        l.t[k] = dtype == TS_F64 ? t : ts_to(t, dtype);
        ck_assert_ptr_nonnull(l.t[k]);
    }
    return l;
}

static list zeros_like(const list *l)
{
    list z;
    for (int k = 0; k < MOST; k++)
        z.t[k] = ts_zeros_like(l->t[k]);
    return z;
}

static double at(const ts_tensor *t, int64_t i)
{
    return ts_dtype_of(t) == TS_F64 ? ((const double *)ts_data(t))[i]
                                    : (double)((const float *)ts_data(t))[i];
}

/* Asserts a relative error of at most c eps, absolute for values below 1. */
static void assert_near(const ts_tensor *t, int64_t i, double want, int c)
{
    double eps = ts_dtype_of(t) == TS_F64 ? DBL_EPSILON : (double)FLT_EPSILON;
    ck_assert_double_eq_tol(at(t, i), want, c * eps * fmax(1, fabs(want)));
}

/* -------------------------------------------------------------------- against plain C ---- */

TS_TEST(unscaling_finds_one_element_that_is_not_finite_at_any_place, .loop = 2)
{
    static const double odd[] = {INFINITY, -INFINITY, NAN};
    list l = make_list(1, _i ? TS_F64 : TS_F32), same = make_list(1, _i ? TS_F64 : TS_F32);
    double found;
    ck_assert_int_eq(ts_item(ts_unscale_(l.t, MOST, 0.25), &found), TS_OK);
    ck_assert_double_eq(found, 0);
    for (int k = 0; k < MOST; k++) {
        ck_assert_int_eq(ts_version(l.t[k]), 1);
        for (int64_t i = 0; i < lengths[k]; i++)
            ck_assert_double_eq(at(l.t[k], i), 0.25 * at(same.t[k], i));
    }
    for (int k = 0; k < MOST; k++)
        for (int64_t i = 0; i < lengths[k]; i += i < 70 || i > lengths[k] - 70 ? 1 : 1777) {
            TS_SCOPE;
            ts_tensor *place = ts_narrow(l.t[k], 0, i, 1), *before = ts_clone(place);
            ck_assert_ptr_nonnull(ts_fill_(place, odd[i % 3]));
            ck_assert_int_eq(ts_item(ts_unscale_(l.t, MOST, 1), &found), TS_OK);
            ck_assert_double_eq(found, 1);
            ck_assert_ptr_nonnull(ts_copy_(place, before));
        }
    ck_assert_ptr_nonnull(ts_fill_(l.t[0], 4)); /* 4 * DBL_MAX overflows */
    ck_assert_int_eq(ts_item(ts_unscale_(l.t, MOST, DBL_MAX), &found), TS_OK);
    ck_assert_double_eq(found, 1);
    ck_assert_int_eq(ts_item(ts_unscale_(NULL, 0, 2), &found), TS_OK);
    ck_assert_double_eq(found, 0);
}

TS_TEST(unscaling_finds_elements_that_overflow_when_rounded)
{
    for (int d = TS_BF16; d <= TS_F16; d++) {
        TS_SCOPE;
        double found, big = d == TS_F16 ? 40000 : 0x1.8p127, factor = d == TS_F16 ? 2 : 1.332;
        ts_tensor *t = ts_full(TS_SIZES(1000), ts_scalar_float(1), (ts_dtype)d);
        ck_assert_int_eq(ts_item(ts_unscale_(&t, 1, factor), &found), TS_OK);
        ck_assert_double_eq(found, 0);
        for (int64_t i = 0; i < 1000; i += 37) {
            ck_assert_ptr_nonnull(ts_fill_(t, 1));
            ck_assert_ptr_nonnull(ts_fill_(ts_narrow(t, 0, i, 1), big));
            ck_assert_int_eq(ts_item(ts_unscale_(&t, 1, factor), &found), TS_OK);
            ck_assert_double_eq(found, 1); /* finite in f32, but not in the dtype */
            ck_assert_int_eq(ts_item(ts_narrow(t, 0, i, 1), &found), TS_OK);
            ck_assert(isinf(found));
        }
    }
}

TS_TEST(adamw_follows_its_formula, .loop = 4)
{
    ts_dtype dtype = _i & 1 ? TS_F32 : TS_F64;
    /* eps is large, so that m / sqrt(v) does not magnify the rounding of gradients that cancel */
    ts_adamw_rule rule = {.lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .eps = 0.01, .weight_decay = 0.3,
                          .decoupled = _i & 2};
    TS_SCOPE;
    list p = make_list(1, dtype), m = zeros_like(&p), v = zeros_like(&p);
    list before = make_list(1, dtype);
    list g[4] = {make_list(10, dtype), make_list(20, dtype), make_list(30, dtype),
                 make_list(40, dtype)};
    for (int64_t step = 1; step <= 4; step++) {
        int64_t steps[MOST] = {step, step, step, step, step, step};
        ck_assert_int_eq(ts_adamw_(p.t, g[step - 1].t, m.t, v.t, steps, MOST, &rule), TS_OK);
    }
    for (int k = 0; k < MOST; k++)
        for (int64_t i = 0; i < lengths[k]; i++) {
            double x = at(before.t[k], i), first = 0, second = 0;
            for (int step = 1; step <= 4; step++) {
                double d = at(g[step - 1].t[k], i);
                if (rule.decoupled)
                    x -= rule.lr * rule.weight_decay * x;
                else
                    d += rule.weight_decay * x;
                first = rule.beta1 * first + (1 - rule.beta1) * d;
                second = rule.beta2 * second + (1 - rule.beta2) * d * d;
                double mhat = first / (1 - pow(rule.beta1, step)),
                       vhat = second / (1 - pow(rule.beta2, step));
                x -= rule.lr * mhat / (sqrt(vhat) + rule.eps);
            }
            assert_near(p.t[k], i, x, 16);
            assert_near(m.t[k], i, first, 16);
            assert_near(v.t[k], i, second, 16);
        }
}

TS_TEST(sgd_follows_its_formula, .loop = 8)
{
    ts_dtype dtype = _i & 1 ? TS_F32 : TS_F64;
    int variant = _i >> 1; /* plain, momentum, dampening, nesterov */
    ts_sgd_rule rule = {.lr = 0.1,
                        .momentum = variant ? 0.9 : 0,
                        .dampening = variant == 2 ? 0.25 : 0,
                        .weight_decay = 0.05,
                        .nesterov = variant == 3};
    TS_SCOPE;
    list p = make_list(1, dtype), b = make_list(90, dtype), before = make_list(1, dtype);
    list g[3] = {make_list(10, dtype), make_list(20, dtype), make_list(30, dtype)};
    for (int64_t step = 1; step <= 3; step++) {
        int64_t steps[MOST] = {step, step, step, step, step, step};
        ck_assert_int_eq(ts_sgd_(p.t, g[step - 1].t, variant ? b.t : NULL, steps, MOST, &rule),
                         TS_OK);
    }
    for (int k = 0; k < MOST; k++)
        for (int64_t i = 0; i < lengths[k]; i++) {
            double x = at(before.t[k], i), buffer = 0;
            for (int step = 1; step <= 3; step++) {
                double d = at(g[step - 1].t[k], i) + rule.weight_decay * x;
                if (variant) {
                    buffer = step == 1 ? d : rule.momentum * buffer + (1 - rule.dampening) * d;
                    d = rule.nesterov ? d + rule.momentum * buffer : buffer;
                }
                x -= rule.lr * d;
            }
            assert_near(p.t[k], i, x, 16);
            if (variant)
                assert_near(b.t[k], i, buffer, 16);
        }
}

/** Makes every third element infinite. */
static void make_infinite(const list *l)
{
    for (int k = 0; k < MOST; k++)
        for (int64_t i = 0; i < lengths[k]; i += 3)
            if (ts_dtype_of(l->t[k]) == TS_F64)
                ((double *)ts_data(l->t[k]))[i] = INFINITY;
            else
                ((float *)ts_data(l->t[k]))[i] = INFINITY;
}

TS_TEST(without_decay_no_step_reads_the_parameter, .loop = 2)
{
    ts_dtype dtype = _i ? TS_F32 : TS_F64;
    TS_SCOPE;
    list g = make_list(10, dtype), b = make_list(20, dtype), m = make_list(30, dtype),
         v = zeros_like(&g), p = make_list(1, dtype), q = make_list(1, dtype);
    make_infinite(&p);
    make_infinite(&q);
    int64_t steps[MOST] = {1, 1, 1, 1, 1, 1};
    ts_sgd_rule sgd = {.lr = 0.1, .momentum = 0.9};
    ts_adamw_rule adam = {.lr = 0.1, .beta1 = 0.8, .beta2 = 0.9, .eps = 0.1};
    list before = make_list(30, dtype);
    ck_assert_int_eq(ts_sgd_(p.t, g.t, b.t, steps, MOST, &sgd), TS_OK);
    ck_assert_int_eq(ts_adamw_(q.t, g.t, m.t, v.t, steps, MOST, &adam), TS_OK);
    for (int k = 0; k < MOST; k++)
        for (int64_t i = 0; i < lengths[k]; i++) {
            double d = at(g.t[k], i);
            ck_assert_double_eq(at(b.t[k], i), d);
            assert_near(m.t[k], i, 0.8 * at(before.t[k], i) + 0.2 * d, 4);
            ck_assert(i % 3 ? isfinite(at(p.t[k], i)) && isfinite(at(q.t[k], i))
                            : isinf(at(p.t[k], i)) && isinf(at(q.t[k], i)));
        }
}

TS_TEST(an_average_with_decay_0_is_the_gradient, .loop = 2)
{
    ts_dtype dtype = _i ? TS_F32 : TS_F64;
    TS_SCOPE;
    list p = make_list(1, dtype), g = make_list(10, dtype), m = make_list(20, dtype),
         v = zeros_like(&p);
    for (int k = 0; k < MOST; k++)
        ck_assert_ptr_nonnull(ts_mul_(m.t[k], ts_full_like(m.t[k], 1e6)));
    int64_t steps[MOST] = {2, 2, 2, 2, 2, 2};
    ts_adamw_rule rule = {.lr = 0.1, .beta2 = 0.9, .eps = 0.1};
    ck_assert_int_eq(ts_adamw_(p.t, g.t, m.t, v.t, steps, MOST, &rule), TS_OK);
    for (int k = 0; k < MOST; k++)
        for (int64_t i = 0; i < lengths[k]; i++)
            ck_assert_double_eq(at(m.t[k], i), at(g.t[k], i));
}

/* ------------------------------------------------------------------------ against torch ---- */

/* Three steps from (0.5, -1, 2) with the gradients (0.1 t, -0.3, 0.7 / t),
 * computed by torch.optim in f64. */
TS_TEST(results_are_those_of_torch, .loop = 5)
{
    static const double start[3] = {0.5, -1, 2};
    static const double want[5][3] = {
        /* AdamW(lr=.01, betas=(.9, .99), eps=1e-6, weight_decay=.1), the same of Adam */
        {0.46933724378481378, -0.96703308889970019, 1.9659434062060004},
        {0.47042625582079506, -0.97000228889221785, 1.9710882364685163},
        /* SGD(lr=.1, weight_decay=.01) with momentum .9 and dampening .2,
         * with momentum .9 and nesterov, without */
        {0.41603003327999993, -0.84418406015999992, 1.7286158472533333},
        {0.35056756198049993, -0.75091193537099998, 1.6048631988186666},
        {0.43854148949999999, -0.90709296899999992, 1.8658475946666666},
    };
    TS_SCOPE;
    ts_tensor *p = ts_from_array(start, TS_F64, TS_SIZES(3)), *m = ts_zeros_like(p),
              *v = ts_zeros_like(p);
    for (int64_t t = 1; t <= 3; t++) {
        double grad[3] = {0.1 * (double)t, -0.3, 0.7 / (double)t};
        ts_tensor *g = ts_from_array(grad, TS_F64, TS_SIZES(3));
        ts_status status;
        if (_i < 2)
            status = ts_adamw_(&p, &g, &m, &v, &t, 1,
                               &(ts_adamw_rule){0.01, 0.9, 0.99, 1e-6, 0.1, _i == 0, NULL, NULL});
        else
            status =
                ts_sgd_(&p, &g, &m, &t, 1,
                        &(ts_sgd_rule){
                            0.1, _i == 4 ? 0 : 0.9, _i == 2 ? 0.2 : 0, 0.01, _i == 3, NULL, NULL});
        ck_assert_int_eq(status, TS_OK);
    }
    for (int i = 0; i < 3; i++)
        ck_assert_double_eq_tol(at(p, i), want[_i][i], 1e-14);
}

/* ----------------------------------------------------------------------- norms and scales ---- */

TS_TEST(the_norm_is_that_of_all_elements, .loop = 2)
{
    TS_SCOPE;
    list l = make_list(5, _i ? TS_F64 : TS_F32);
    double sum = 0;
    for (int k = 0; k < MOST; k++)
        for (int64_t i = 0; i < lengths[k]; i++)
            sum += at(l.t[k], i) * at(l.t[k], i);
    ts_tensor *norm = ts_global_norm(l.t, MOST);
    ck_assert_int_eq(ts_ndim(norm), 0);
    ck_assert_int_eq(ts_dtype_of(norm), _i ? TS_F64 : TS_F32);
    ck_assert_double_eq_tol(at(norm, 0), sqrt(sum),
                            (_i ? 64 * DBL_EPSILON : (double)FLT_EPSILON) * sqrt(sum));
    ck_assert_double_eq(at(ts_global_norm(NULL, 0), 0), 0);
    /* squares that f32 cannot hold */
    ts_tensor *large = ts_full(TS_SIZES(4), ts_scalar_float(1e30), TS_F32);
    ck_assert_double_eq_tol(at(ts_global_norm(&large, 1), 0), 2e30, 1e24);
}

TS_TEST(scaling_and_clipping)
{
    TS_SCOPE;
    list l = make_list(5, TS_F32), before = make_list(5, TS_F32);
    ck_assert_int_eq(ts_scale_(l.t, MOST, 2), TS_OK);
    ck_assert_int_eq(ts_scale_by_(l.t, MOST, ts_full(NULL, 0, ts_scalar_float(0.25), TS_F64)),
                     TS_OK);
    for (int k = 0; k < MOST; k++)
        for (int64_t i = 0; i < lengths[k]; i++)
            ck_assert_double_eq(at(l.t[k], i), at(before.t[k], i) * 0.5);
    ts_tensor *norm = ts_global_norm(l.t, MOST);
    double n = at(norm, 0);
    ck_assert_int_eq(ts_clip_norm_(l.t, MOST, norm, n * 2), TS_OK);
    ck_assert_double_eq(at(l.t[4], 300), at(before.t[4], 300) * 0.5);
    ck_assert_int_eq(ts_clip_norm_(l.t, MOST, norm, 1.5), TS_OK);
    ck_assert_double_eq_tol(at(ts_global_norm(l.t, MOST), 0), 1.5, 1e-6);
    /* as in PyTorch, a norm that is not finite makes the scaled gradients not finite */
    ts_tensor *bad = ts_full(TS_SIZES(3), ts_scalar_float(INFINITY), TS_F32);
    ck_assert_int_eq(ts_clip_norm_(&bad, 1, ts_global_norm(&bad, 1), 1), TS_OK);
    ck_assert(isnan(at(bad, 1)));
}

/* -------------------------------------------------------------------- layouts, threads ---- */

/** (rows, columns) stored by columns, with t's values. */
static ts_tensor *transposed(ts_tensor *t, int64_t rows, int64_t columns)
{
    static double buffer[4096];
    int64_t sizes[2] = {rows, columns}, strides[2] = {1, rows};
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            buffer[c * rows + r] = at(t, r * columns + c);
    ts_tensor *base = ts_to(ts_from_array(buffer, TS_F64, TS_SIZES(columns, rows)), ts_dtype_of(t));
    return ts_adopt(ts_tensor_alias(ts_thread_self(), base, sizes, strides, 2, 0));
}

TS_TEST(layouts_do_not_change_a_bit, .loop = 2)
{
    enum { R = 31, C = 43 };
    ts_dtype dtype = _i ? TS_F64 : TS_F32;
    TS_SCOPE;
    int64_t one = 1, n = R * C;
    ts_tensor *plain[4], *turned[4];
    ts_manual_seed(2);
    for (int k = 0; k < 4; k++) {
        plain[k] = ts_uniform(&n, 1, 0, 1, dtype);
        turned[k] = transposed(plain[k], R, C);
    }
    turned[2] = ts_contiguous(turned[2]); /* layouts differ within the list */
    ts_adamw_rule rule = {0.1, 0.9, 0.99, 1e-8, 0.1, true, NULL, NULL};
    ts_adamw_(&plain[0], &plain[1], &plain[2], &plain[3], &one, 1, &rule);
    ck_assert_int_eq(ts_adamw_(&turned[0], &turned[1], &turned[2], &turned[3], &one, 1, &rule),
                     TS_OK);
    ck_assert_double_eq(at(ts_global_norm(plain, 4), 0), at(ts_global_norm(turned, 4), 0));
    for (int k = 0; k < 4; k++) {
        const ts_tensor *rows = ts_contiguous(turned[k]);
        ck_assert_mem_eq(ts_data(rows), ts_data(plain[k]), (size_t)n * ts_dtype_size(dtype));
    }
}

TS_TEST(results_do_not_depend_on_the_number_of_threads)
{
    TS_SCOPE;
    list p[2], m[2], v[2];
    double norm[2];
    int64_t steps[MOST] = {3, 3, 3, 3, 3, 3};
    for (int k = 0; k < 2; k++) {
        ck_assert_int_eq(ts_set_num_threads(k ? 4 : 1), TS_OK);
        p[k] = make_list(1, TS_F32), m[k] = make_list(2, TS_F32), v[k] = make_list(3, TS_F32);
        for (int q = 0; q < MOST; q++)
            v[k].t[q] = ts_mul(v[k].t[q], v[k].t[q]);
        list g = make_list(4, TS_F32);
        norm[k] = at(ts_global_norm(g.t, MOST), 0);
        ts_clip_norm_(g.t, MOST, ts_global_norm(g.t, MOST), 1);
        ck_assert_int_eq(ts_adamw_(p[k].t, g.t, m[k].t, v[k].t, steps, MOST,
                                   &(ts_adamw_rule){0.1, 0.9, 0.99, 1e-8, 0.1, true, NULL, NULL}),
                         TS_OK);
    }
    ck_assert_double_eq(norm[0], norm[1]);
    for (int q = 0; q < MOST; q++)
        if (lengths[q]) /* an empty tensor has no address */
            ck_assert_mem_eq(ts_data(p[0].t[q]), ts_data(p[1].t[q]), (size_t)lengths[q] * 4);
}

/* --------------------------------------------------------------------------- misuse ---- */

static void expect(ts_status status, ts_status code, const char *words)
{
    ck_assert_int_eq(status, code);
    ck_assert_msg(strstr(ts_error_message(), words) != NULL, "%s", ts_error_message());
    ts_error_clear();
}

/** A step with grad_scale has the bits of a step with scaled gradients, because factors of 1 and
 *  powers of two are exact. The step does not change the gradients. */
TS_TEST(grad_scale_equals_scaled_gradients_and_does_not_write_them, .loop = 4)
{
    TS_SCOPE;
    ts_dtype dtype = _i % 2 ? TS_F32 : TS_F64;
    ts_tensor *quarter = ts_full(NULL, 0, ts_scalar_float(0.25), TS_F32),
              *one = ts_ones(TS_SIZES(1, 1), TS_F32);
    /* [0]: the given gradients; [1] and [2]: gradients scaled by 0.25 before the step */
    ts_tensor *factors[3] = {quarter, TS_NONE, one};
    list p[3], g[3], m[3], v[3];
    int64_t steps[MOST] = {3, 3, 3, 3, 3, 3};
    for (int k = 0; k < 3; k++) {
        p[k] = make_list(1, dtype), g[k] = make_list(20, dtype), m[k] = make_list(2, dtype),
        v[k] = make_list(3, dtype);
        for (int q = 0; q < MOST; q++)
            v[k].t[q] = ts_mul(v[k].t[q], v[k].t[q]);
        if (k)
            ck_assert_int_eq(ts_scale_(g[k].t, MOST, 0.25), TS_OK);
        if (_i / 2)
            ck_assert_int_eq(ts_sgd_(p[k].t, g[k].t, m[k].t, steps, MOST,
                                     &(ts_sgd_rule){.lr = 0.1,
                                                    .momentum = 0.9,
                                                    .weight_decay = 0.1,
                                                    .grad_scale = &factors[k]}),
                             TS_OK);
        else
            ck_assert_int_eq(
                ts_adamw_(p[k].t, g[k].t, m[k].t, v[k].t, steps, MOST,
                          &(ts_adamw_rule){0.1, 0.9, 0.99, 1e-8, 0.1, false, NULL, &factors[k]}),
                TS_OK);
    }
    list same = make_list(20, dtype);
    for (int q = 0; q < MOST; q++) {
        size_t bytes = (size_t)lengths[q] * ts_dtype_size(dtype);
        if (!bytes) /* an empty tensor has no address */
            continue;
        ck_assert_mem_eq(ts_data(g[0].t[q]), ts_data(same.t[q]), bytes);
        for (int k = 1; k < 3; k++) {
            ck_assert_mem_eq(ts_data(p[0].t[q]), ts_data(p[k].t[q]), bytes);
            ck_assert_mem_eq(ts_data(m[0].t[q]), ts_data(m[k].t[q]), bytes);
            ck_assert_mem_eq(ts_data(v[0].t[q]), ts_data(v[k].t[q]), bytes);
        }
    }
}

/** A step on bf16 or f16 tensors computes in f32 and rounds once. The state may be f32, and f32
 *  parameters may have bf16 or f16 gradients. */
TS_TEST(halves_step_in_f32, .loop = 4)
{
    TS_SCOPE;
    ts_dtype half = _i % 2 ? TS_F16 : TS_BF16;
    bool single_params = _i / 2;
    ts_adamw_rule rule = {0.01, 0.9, 0.99, 1e-8, 0.1, true, NULL, NULL};
    int64_t steps[MOST] = {1, 1, 2, 3, 4, 5};
    list p = make_list(1, half), g = make_list(20, half), w, gw;
    for (int k = 0; k < MOST; k++) {
        w.t[k] = ts_to(p.t[k], TS_F32);
        gw.t[k] = ts_to(g.t[k], TS_F32);
        if (single_params)
            p.t[k] = ts_clone(w.t[k]);
    }
    list m = zeros_like(&w), v = zeros_like(&w), mw = zeros_like(&w), vw = zeros_like(&w);
    ck_assert_int_eq(ts_adamw_(p.t, g.t, m.t, v.t, steps, MOST, &rule), TS_OK);
    ck_assert_int_eq(ts_adamw_(w.t, gw.t, mw.t, vw.t, steps, MOST, &rule), TS_OK);
    for (int k = 0; k < MOST; k++) {
        ts_tensor *got = ts_to(p.t[k], TS_F32),
                  *want = single_params ? w.t[k] : ts_to(ts_to(w.t[k], half), TS_F32);
        size_t bytes = (size_t)lengths[k] * sizeof(float);
        if (!bytes)
            continue;
        ck_assert_int_eq(memcmp(ts_data(got), ts_data(want), bytes), 0);
        ck_assert_int_eq(memcmp(ts_data(m.t[k]), ts_data(mw.t[k]), bytes), 0);
        ck_assert_int_eq(memcmp(ts_data(v.t[k]), ts_data(vw.t[k]), bytes), 0);
    }
    /* a state narrower than the parameters, or in f64, is an error */
    ts_error_clear();
    list small = make_list(3, half), wide = make_list(3, TS_F64);
    ck_assert_int_eq(ts_adamw_(w.t, gw.t, small.t, vw.t, steps, MOST, &rule), TS_ERR_DTYPE);
    ts_error_clear();
    ck_assert_int_eq(ts_adamw_(small.t, g.t, wide.t, v.t, steps, MOST, &rule), TS_ERR_DTYPE);
    ts_error_clear();
    ck_assert_int_eq(ts_adamw_(small.t, gw.t, m.t, v.t, steps, MOST, &rule), TS_ERR_DTYPE);
    ts_error_clear();
    double norm, single;
    ck_assert_int_eq(ts_item(ts_global_norm(g.t, MOST), &norm), TS_OK);
    ck_assert_int_eq(ts_item(ts_global_norm(gw.t, MOST), &single), TS_OK);
    ck_assert_double_eq(norm, single);
}

TS_TEST(misuse_is_named_and_writes_nothing)
{
    TS_SCOPE;
    ts_tensor *p[2] = {ts_ones(TS_SIZES(2, 3), TS_F32), ts_ones(TS_SIZES(4), TS_F32)};
    ts_tensor *g[2] = {ts_ones(TS_SIZES(2, 3), TS_F32), ts_ones(TS_SIZES(4), TS_F32)};
    ts_tensor *wrong[2] = {g[0], ts_ones(TS_SIZES(5), TS_F32)},
              *wide[2] = {g[0], ts_ones(TS_SIZES(4), TS_F64)};
    ts_tensor *whole[2] = {g[0], ts_ones(TS_SIZES(4), TS_I64)}, *none[2] = {g[0], TS_NONE},
              *null[2] = {g[0], NULL};
    int64_t steps[2] = {1, 1}, early[2] = {1, 0};
    ts_sgd_rule plain = {.lr = 1};
    uint32_t version = ts_version(p[0]);
    expect(ts_sgd_(p, wrong, NULL, steps, 2, &plain), TS_ERR_SHAPE,
           "argument 'grads[1]': expected sizes (4), got (5)");
    expect(ts_sgd_(p, wide, NULL, steps, 2, &plain), TS_ERR_DTYPE,
           "argument 'grads[1]': expected dtype f32, got f64");
    expect(ts_sgd_(whole, whole, NULL, steps, 2, &plain), TS_ERR_DTYPE, "argument 'params[1]'");
    expect(ts_sgd_(p, none, NULL, steps, 2, &plain), TS_ERR_NULL, "argument 'grads[1]'");
    expect(ts_sgd_(p, null, NULL, steps, 2, &plain), TS_ERR_NULL, "argument 'grads'");
    expect(ts_sgd_(NULL, g, NULL, steps, 2, &plain), TS_ERR_NULL, "argument 'params'");
    expect(ts_sgd_(p, g, NULL, early, 2, &plain), TS_ERR_VALUE, "argument 'steps[1]'");
    expect(ts_sgd_(p, g, NULL, NULL, 2, &plain), TS_ERR_NULL, "argument 'steps'");
    expect(ts_sgd_(p, g, NULL, steps, 2, NULL), TS_ERR_NULL, "argument 'rule'");
    expect(ts_sgd_(p, g, NULL, steps, -1, &plain), TS_ERR_VALUE, "argument 'n'");
    expect(ts_sgd_(p, g, NULL, steps, 2, &(ts_sgd_rule){.lr = NAN}), TS_ERR_VALUE, "argument 'lr'");
    expect(ts_sgd_(p, g, NULL, steps, 2, &(ts_sgd_rule){.lr = 1, .nesterov = true}), TS_ERR_VALUE,
           "argument 'nesterov'");
    expect(ts_sgd_(p, g, NULL, steps, 2, &(ts_sgd_rule){.lr = 1, .momentum = 0.9}), TS_ERR_NULL,
           "argument 'momentum_buffers'");
    expect(ts_adamw_(p, g, g, g, steps, 2, &(ts_adamw_rule){.lr = 1, .beta1 = 1}), TS_ERR_VALUE,
           "argument 'beta1'");
    expect(ts_scale_by_(p, 2, p[0]), TS_ERR_SHAPE, "argument 'factor': expected one element");
    expect(ts_scale_by_(p, 2, NULL), TS_ERR_NULL, "argument 'factor'");
    expect(ts_clip_norm_(p, 2, TS_NONE, 1), TS_ERR_NULL, "argument 'norm'");
    expect(ts_scale_by_(p, 0, NULL), TS_ERR_NULL, "argument 'factor'"); /* also with 0 tensors */
    expect(TS_STATUS_OF(ts_unscale_by_(p, 0, NULL)), TS_ERR_NULL, "argument 'factor'");
    expect(ts_clip_norm_(p, 0, NULL, 1), TS_ERR_NULL, "argument 'norm'");
    expect(ts_clip_norm_(p, 2, ts_global_norm(p, 2), -1), TS_ERR_VALUE, "argument 'max_norm'");
    expect(ts_sgd_(p, g, NULL, steps, 2, &(ts_sgd_rule){.lr = 1, .grad_scale = &p[0]}),
           TS_ERR_SHAPE, "argument 'grad_scale': expected one element, got sizes (2, 3)");
    ts_tensor *factor = ts_ones(NULL, 0, TS_F64), *failed = NULL;
    expect(ts_sgd_(p, g, NULL, steps, 2, &(ts_sgd_rule){.lr = 1, .grad_scale = &factor}),
           TS_ERR_DTYPE, "argument 'grad_scale': expected dtype f32, got f64");
    expect(ts_adamw_(p, g, g, g, steps, 2, &(ts_adamw_rule){.lr = 1, .grad_scale = &failed}),
           TS_ERR_NULL, "argument 'grad_scale'");
    expect(ts_sgd_(p, g, NULL, steps, 2, &(ts_sgd_rule){.lr = 1, .guard = &(ts_step_guard){0}}),
           TS_ERR_NULL, "argument 'found'");
    expect(ts_sgd_(p, g, NULL, steps, 2,
                   &(ts_sgd_rule){.lr = 1, .guard = &(ts_step_guard){factor, NULL}}),
           TS_ERR_NULL, "argument 'skipped'");
    ck_assert_ptr_null(ts_global_norm(whole, 2));
    expect(ts_error_code(), TS_ERR_DTYPE, "argument 'tensors[1]'");
    ck_assert_uint_eq(ts_version(p[0]), version);
    ck_assert_double_eq(at(p[1], 3), 1);
    ck_assert_int_eq(ts_sgd_(NULL, NULL, NULL, NULL, 0, &plain), TS_OK);

    ts_set_requires_grad(p[0], true);
    expect(ts_sgd_(p, g, NULL, steps, 2, &plain), TS_ERR_AUTOGRAD,
           "argument 'params[0]': expected a tensor that does not require grad, got");
    TS_NO_GRAD;
    ck_assert_int_eq(ts_sgd_(p, g, NULL, steps, 2, &plain), TS_OK);
    ck_assert_uint_gt(ts_version(p[0]), version);
    ck_assert_double_eq(at(p[0], 5), 0);
}

TS_TEST(a_step_takes_no_memory_from_the_system)
{
    TS_SCOPE;
    list p = make_list(1, TS_F32), g = make_list(2, TS_F32), m = zeros_like(&p), v = zeros_like(&p);
    int64_t steps[MOST] = {1, 1, 1, 1, 1, 1};
    uint64_t before = 0;
    for (int round = 0; round < 3; round++) {
        TS_SCOPE;
        if (round == 1)
            before = ts_memory_get_stats().system_allocs;
        ts_clip_norm_(g.t, MOST, ts_global_norm(g.t, MOST), 1);
        ck_assert_int_eq(ts_adamw_(p.t, g.t, m.t, v.t, steps, MOST,
                                   &(ts_adamw_rule){0.1, 0.9, 0.99, 1e-8, 0.1, true, NULL, NULL}),
                         TS_OK);
    }
    if (!ts_alloc_system)
        ck_assert_uint_eq(ts_memory_get_stats().system_allocs, before);
}
