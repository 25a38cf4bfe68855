// Losses against formulas in double: reductions, ignored positions, smoothing, gradients, errors,
// threads.
// SPDX-License-Identifier: MIT
#include "tests/ops/rows.h"

/** Targets below `classes`; every fourth is -100, which is ignored. */
static ts_tensor *targets(const int64_t *sizes, int ndim, int64_t classes, ts_dtype dtype)
{
    ts_tensor *t = ts_empty(sizes, ndim, dtype);
    for (int64_t i = 0; i < t->numel; i++) {
        int64_t c = i % 4 == 3 ? -100 : i * 7 % classes;
        if (dtype == TS_I64)
            ((int64_t *)t->data)[i] = c;
        else
            ((int32_t *)t->data)[i] = (int32_t)c;
    }
    return t;
}

static const int64_t logits_sizes[][3] = {
    {5, 3, 1}, {70, 33, 1}, {9, 256, 1}, {3, 20, 7}, {1, 5, 65}};

/** Gradient of cross_entropy with respect to random logits, multiples of 1/16 plus `offset`, as
 *  f64. */
static ts_tensor *moved_gradient(const int64_t *sizes, int ndim, ts_dtype dtype, double offset,
                                 double smoothing, bool recorded)
{
    ts_tensor *x = ts_randint_on(sizes, ndim, 0, 64, TS_F64, TS_DEVICE_CPU);
    x = ts_to(ts_add_scalar(ts_div_scalar(x, 16), offset), dtype);
    ck_assert_ptr_nonnull(ts_set_requires_grad(x, true));
    ts_tensor *t = targets((const int64_t[]){sizes[0], sizes[2]}, ndim - 1, sizes[1], TS_I64), *dx;
    ts_loss_opts opts = {.size = sizeof opts, .label_smoothing = smoothing};
    ts_backward_opts create = {.size = sizeof create, .create_graph = recorded};
    ts_tensor *loss = ts_cross_entropy_ex(x, t, &opts);
    ck_assert_msg(ts_grad_of(loss, TS_NONE, &x, 1, &dx, &create) == TS_OK, "%s",
                  ts_error_message());
    return ts_to(ts_detach(dx), TS_F64);
}

TS_TEST(gradients_of_cross_entropy_do_not_depend_on_the_size_of_logits, .loop = 8)
{
    bool recorded = _i & 1;
    double smoothing = _i & 2 ? 0.1 : 0;
    ts_dtype dtype = _i & 4 ? TS_F64 : TS_F32;
    for (int s = 0; s < TS_COUNTOF(logits_sizes); s++)
        for (int sign = -1; sign < 2; sign += 2) {
            TS_SCOPE;
            double offset = sign * (dtype == TS_F64 ? 0x1p40 : 0x1p19);
            int ndim = logits_sizes[s][2] > 1 ? 3 : 2;
            ts_manual_seed(7);
            ts_tensor *want =
                moved_gradient(logits_sizes[s], ndim, TS_F64, 0, smoothing, recorded);
            ts_manual_seed(7);
            ts_tensor *got =
                moved_gradient(logits_sizes[s], ndim, dtype, offset, smoothing, recorded);
            double eps = dtype == TS_F64 ? DBL_EPSILON : (double)FLT_EPSILON;
            for (int64_t i = 0; i < want->numel; i++)
                ck_assert_double_eq_tol(element(got, i), element(want, i), 4 * eps);
        }
}

TS_TEST(cross_entropy_over_classes, .loop = 12)
{
    ts_dtype dtype = _i & 1 ? TS_F64 : TS_F32;
    double smoothing = _i & 2 ? 0.1 : 0;
    ts_reduction reduction = (ts_reduction)(_i / 4);
    for (int s = 0; s < TS_COUNTOF(logits_sizes); s++) {
        TS_SCOPE;
        int64_t n = logits_sizes[s][0], classes = logits_sizes[s][1], inner = logits_sizes[s][2],
                count = 0;
        int ndim = inner > 1 ? 3 : 2;
        ts_tensor *x = numbers(3, logits_sizes[s], ndim, dtype);
        ts_tensor *t =
            targets((const int64_t[]){n, inner}, ndim - 1, classes, _i & 4 ? TS_I32 : TS_I64);
        ts_loss_opts opts = {
            .size = sizeof opts, .reduction = reduction, .label_smoothing = smoothing};
        ts_tensor *y = ts_cross_entropy_ex(x, t, &opts);
        ts_tensor *logs = ts_nll_loss_ex(ts_log_softmax(x, 1), t, &opts);
        double total = 0;
        for (int64_t r = 0; r < n * inner; r++) {
            double sum = 0, mean = 0, target = element(t, r), loss = 0;
            for (int64_t c = 0; c < classes; c++) {
                double v = element(x, (r / inner * classes + c) * inner + r % inner);
                sum += exp(v);
                mean += v / (double)classes;
            }
            if (target >= 0) {
                double own =
                    element(x, (r / inner * classes + (int64_t)target) * inner + r % inner);
                loss = (1 - smoothing) * (log(sum) - own) + smoothing * (log(sum) - mean);
                count++;
            }
            total += loss;
            if (reduction == TS_REDUCTION_NONE)
                assert_near(y, r, loss, 16, 2);
        }
        if (reduction == TS_REDUCTION_MEAN)
            assert_near(y, 0, total / (double)count, 16, 2);
        else if (reduction == TS_REDUCTION_SUM)
            assert_near(y, 0, total, 16, 2);
        if (smoothing == 0)
            for (int64_t i = 0; i < y->numel; i++)
                assert_near(logs, i, element(y, i), 16, 2);
    }
}

/** ts_cross_entropy_last() over (B, T, V), a transposed view, and (V) has the losses and gradients
 *  of the same rows as (rows, V). */
TS_TEST(cross_entropy_over_the_last_dim, .loop = 12)
{
    static const ts_dtype dtypes[] = {TS_F64, TS_F32, TS_BF16, TS_F16};
    enum { B = 3, T = 5, V = 7 };
    TS_SCOPE;
    ts_dtype dtype = dtypes[_i % 4];
    ts_reduction reduction = (ts_reduction)(_i / 4);
    const ts_loss_opts *opts =
        TS_OPTS(ts_loss_opts, .reduction = reduction, .label_smoothing = 0.1);
    ts_tensor *x = ts_to(numbers(3, TS_SIZES(B, T, V), TS_F32), dtype),
              *rows = ts_reshape(x, TS_SIZES(B * T, V)), *t = targets(TS_SIZES(B, T), V, TS_I64);
    ts_set_requires_grad(x, true);
    rows = ts_set_requires_grad(ts_detach(ts_clone(rows)), true);
    ts_tensor *loss = ts_cross_entropy_last_ex(x, t, opts),
              *want = ts_cross_entropy_ex(rows, ts_reshape(t, TS_SIZES(B * T)), opts);
    ck_assert_int_eq(ts_ndim(loss), reduction == TS_REDUCTION_NONE ? 2 : 0);
    ck_assert(same_bits(ts_reshape(ts_detach(loss), TS_SIZES(-1)),
                        ts_reshape(ts_detach(want), TS_SIZES(-1))));
    ck_assert_int_eq(ts_backward(ts_sum(loss)), TS_OK);
    ck_assert_int_eq(ts_backward(ts_sum(want)), TS_OK);
    ck_assert_int_eq(ts_ndim(ts_grad(x)), 3);
    ck_assert(same_bits(ts_reshape(ts_grad(x), TS_SIZES(B * T, V)), ts_grad(rows)));
    ts_tensor *turned = ts_transpose(ts_detach(x), 0, 1); // (T, B, V), not contiguous
    ck_assert(same_bits(
        ts_cross_entropy_last(turned, ts_transpose(t, 0, 1)),
        ts_cross_entropy_last(ts_contiguous(turned), ts_contiguous(ts_transpose(t, 0, 1)))));
    ts_tensor *one = ts_select(rows, 0, 0), *class = ts_full(NULL, 0, TS_SCALAR(2), TS_I64);
    ck_assert(same_bits(ts_detach(ts_cross_entropy_last(one, class)),
                        ts_detach(ts_cross_entropy(one, class))));
}

TS_TEST(errors_of_cross_entropy_over_the_last_dim_name_the_argument)
{
    TS_SCOPE;
    ts_tensor *x = numbers(3, TS_SIZES(2, 3, 4), TS_F32), *t = ts_zeros(TS_SIZES(3, 2), TS_I64);
    ck_assert_ptr_null(ts_cross_entropy_last(x, t)); /* (3, 2) targets for (2, 3) positions */
    ck_assert_int_eq(ts_error_code(), TS_ERR_SHAPE);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "'target': expected the sizes (2, 3, 4)"));
    ck_assert_ptr_null(ts_cross_entropy_last(ts_zeros(NULL, 0, TS_F32), t));
    ck_assert_int_eq(ts_error_code(), TS_ERR_SHAPE);
    ck_assert_ptr_null(ts_cross_entropy_last(x, TS_NONE));
    ck_assert_int_eq(ts_error_code(), TS_ERR_NULL);
    t = ts_full(TS_SIZES(2, 3), TS_SCALAR(4), TS_I64);
    ck_assert_ptr_null(ts_cross_entropy_last(x, t));
    ck_assert_int_eq(ts_error_code(), TS_ERR_INDEX);
}

TS_TEST(one_position_and_all_ignored)
{
    TS_SCOPE;
    ts_tensor *x = numbers(3, TS_SIZES(4), TS_F32), *t = ts_full(NULL, 0, TS_SCALAR(2), TS_I64);
    assert_near(ts_cross_entropy(x, t), 0, element(ts_logsumexp(x), 0) - element(x, 2), 8, 1);
    t = ts_full(NULL, 0, TS_SCALAR(-100), TS_I64);
    assert_near(ts_cross_entropy(x, t), 0, NAN, 0, 0);
    int64_t two = 2;
    ts_loss_opts opts = {.size = sizeof opts, .ignore_index = &two, .reduction = TS_REDUCTION_SUM};
    assert_near(ts_cross_entropy_ex(x, ts_full(NULL, 0, TS_SCALAR(2), TS_I64), &opts), 0, 0, 0, 0);
}

TS_TEST(large_logits_are_safe)
{
    TS_SCOPE;
    ts_tensor *x = ts_from_array((float[]){1e30f, 0, 3e38f, 3e38f}, TS_F32, TS_SIZES(2, 2));
    int64_t two[] = {0, 1};
    ts_loss_opts opts = {.size = sizeof opts, .reduction = TS_REDUCTION_NONE};
    ts_tensor *y = ts_cross_entropy_ex(x, ts_from_array(two, TS_I64, TS_SIZES(2)), &opts);
    assert_near(y, 0, 0, 0, 0);
    assert_near(y, 1, log(2), 1, 0);
}

TS_TEST(targets_are_checked_before_anything)
{
    TS_SCOPE;
    ts_tensor *x = numbers(3, TS_SIZES(3, 4), TS_F32);
    int64_t bad[] = {0, 1, 4};
    ck_assert_ptr_null(ts_cross_entropy(x, ts_from_array(bad, TS_I64, TS_SIZES(3))));
    ck_assert_int_eq(ts_error_code(), TS_ERR_INDEX);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "'target'"));
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "got 4 at position 2"));
    bad[2] = -1;
    ck_assert_ptr_null(ts_nll_loss(x, ts_from_array(bad, TS_I64, TS_SIZES(3))));
    ck_assert_int_eq(ts_error_code(), TS_ERR_INDEX);
    ck_assert_ptr_null(ts_cross_entropy(x, numbers(1, TS_SIZES(3), TS_F32)));
    ck_assert_int_eq(ts_error_code(), TS_ERR_DTYPE);
    ck_assert_ptr_null(ts_cross_entropy(x, ts_zeros(TS_SIZES(4), TS_I64)));
    ck_assert_int_eq(ts_error_code(), TS_ERR_SHAPE);
    ck_assert_ptr_null(ts_mse_loss(x, ts_zeros(TS_SIZES(4), TS_F32)));
    ck_assert_int_eq(ts_error_code(), TS_ERR_SHAPE);
    ts_loss_opts opts = {.size = sizeof opts, .label_smoothing = 2};
    ck_assert_ptr_null(ts_cross_entropy_ex(x, ts_zeros(TS_SIZES(3), TS_I64), &opts));
    ck_assert_int_eq(ts_error_code(), TS_ERR_VALUE);
    opts.reduction = TS_REDUCTION_BATCHMEAN;
    ck_assert_ptr_null(ts_l1_loss_ex(x, x, &opts));
    ck_assert_int_eq(ts_error_code(), TS_ERR_VALUE);
}

/* A loss of pairs (x, t). reference: loss of one pair. */
typedef struct pair_loss {
    ts_tensor *(*call)(ts_tensor *self, ts_tensor *target, const ts_loss_opts *opts);
    double (*reference)(double x, double t);
    bool positive, log_target; /* target in (0, 1) */
} pair_loss;

static const double half = 0.5;
static double ref_mse(double x, double t) { return (x - t) * (x - t); }
static double ref_l1(double x, double t) { return fabs(x - t); }
static double ref_smooth(double x, double t)
{
    return fabs(x - t) < half ? (x - t) * (x - t) : fabs(x - t) - half / 2;
}
static double ref_huber(double x, double t)
{
    return fabs(x - t) <= half ? (x - t) * (x - t) / 2 : half * (fabs(x - t) - half / 2);
}
static double ref_bce(double x, double t)
{
    return -t * log(1 / (1 + exp(-x))) - (1 - t) * log(1 / (1 + exp(x)));
}
static double ref_kl(double x, double t) { return t * (log(t) - x); }
static double ref_kl_log(double x, double t) { return exp(t) * (t - x); }

TS_TEST(binary_cross_entropy_is_accurate_near_the_target, .loop = 2)
{
    ts_dtype dtype = _i & 1 ? TS_F64 : TS_F32;
    double unit = _i & 1 ? DBL_EPSILON : (double)FLT_EPSILON;
    for (double off = 0.25; off > 4 * unit; off /= 2)
        for (double x = 50; x < 1e7; x *= 1.7) {
            TS_SCOPE;
            ts_tensor *logit = ts_to((ts_full)(NULL, 0, ts_scalar_float(x), TS_F64), dtype);
            ts_tensor *target = ts_to((ts_full)(NULL, 0, ts_scalar_float(1 - off), TS_F64), dtype);
            ts_tensor *y = ts_binary_cross_entropy_with_logits(logit, target);
            double far = element(logit, 0);
            double want = far * (1 - element(target, 0)) + log1p(exp(-far));
            ck_assert_double_eq_tol(element(y, 0) / want, 1, 2 * unit);
            y = ts_binary_cross_entropy_with_logits(ts_neg(logit), ts_rsub_scalar(target, 1));
            ck_assert_double_eq_tol(element(y, 0) / want, 1, 2 * unit);
        }
}

static const pair_loss pairs[] = {
    {ts_mse_loss_ex, ref_mse, false, false},       {ts_l1_loss_ex, ref_l1, false, false},
    {ts_smooth_l1_loss_ex, ref_smooth, false, false}, {ts_huber_loss_ex, ref_huber, false, false},
    {ts_binary_cross_entropy_with_logits_ex, ref_bce, true, false},
    {ts_kl_div_ex, ref_kl, true, false},
    {ts_kl_div_ex, ref_kl_log, false, true},
};

static ts_tensor *pair_target(const pair_loss *p, const int64_t *sizes, int ndim, ts_dtype dtype)
{
    ts_tensor *t = numbers(12, sizes, ndim, dtype);
    return p->positive ? ts_add_scalar(ts_mul_scalar(t, 0.2), 0.5) : t;
}

TS_TEST(pairs_in_every_reduction, .loop = 2 * TS_COUNTOF(pairs))
{
    const pair_loss *p = &pairs[_i / 2];
    ts_dtype dtype = _i & 1 ? TS_F64 : TS_F32;
    static const int64_t lengths[] = {1, 17, 300, 9000};
    for (int s = 0; s < TS_COUNTOF(lengths); s++)
        for (int reduction = 0; reduction < 3; reduction++) {
            TS_SCOPE;
            int64_t n = lengths[s];
            ts_tensor *x = numbers(11, &n, 1, dtype), *t = pair_target(p, &n, 1, dtype);
            ts_loss_opts opts = {.size = sizeof opts,
                                 .reduction = (ts_reduction)reduction,
                                 .beta = &half,
                                 .log_target = p->log_target};
            ts_tensor *y = p->call(x, t, &opts);
            long double total = 0;
            for (int64_t i = 0; i < n; i++) {
                double want = p->reference(element(x, i), element(t, i));
                total += want;
                if (reduction == TS_REDUCTION_NONE)
                    assert_near(y, i, want, 8, 4);
            }
            if (reduction == TS_REDUCTION_SUM)
                assert_near(y, 0, (double)total, 32, 4);
            else if (reduction == TS_REDUCTION_MEAN)
                assert_near(y, 0, (double)(total / n), 32, 4);
        }
}

TS_TEST(kl_div_of_zero_targets_and_batchmean)
{
    TS_SCOPE;
    ts_tensor *x = numbers(1, TS_SIZES(2, 3), TS_F64),
              *t = ts_from_array((double[]){0, 1, 0, 0, 0, 0}, TS_F64, TS_SIZES(2, 3));
    ts_loss_opts opts = {.size = sizeof opts, .reduction = TS_REDUCTION_BATCHMEAN};
    assert_near(ts_kl_div_ex(x, t, &opts), 0, -element(x, 1) / 2, 4, 0);
}

/* The function of a gradient check. */
typedef struct check {
    const pair_loss *pair;
    ts_reduction reduction;
    bool by_target, classes;
    double smoothing;
    int ndim;
} check;

static ts_tensor *loss(ts_tensor *v, void *payload)
{
    const check *c = payload;
    ts_loss_opts opts = {.size = sizeof opts, .reduction = c->reduction,
                         .label_smoothing = c->smoothing, .beta = &half};
    if (c->classes) {
        ts_tensor *t = targets((const int64_t[]){5, 3}, c->ndim - 1, 4, TS_I64);
        return weighted_sum(ts_cross_entropy_ex(v, t, &opts));
    }
    opts.log_target = c->pair->log_target;
    ts_tensor *other = c->by_target ? numbers(11, v->sizes, v->ndim, TS_F64)
                                    : pair_target(c->pair, v->sizes, v->ndim, TS_F64);
    return weighted_sum(c->by_target ? c->pair->call(other, v, &opts)
                                     : c->pair->call(v, other, &opts));
}

TS_TEST(gradients_of_pairs, .loop = 6 * TS_COUNTOF(pairs))
{
    TS_SCOPE;
    check c = {
        .pair = &pairs[_i / 6], .reduction = (ts_reduction)(_i % 3), .by_target = _i / 3 % 2};
    int64_t n = 19;
    assert_gradient(c.by_target ? pair_target(c.pair, &n, 1, TS_F64) : numbers(11, &n, 1, TS_F64),
                    loss, &c);
}

TS_TEST(cross_entropy_grad_is_loss_and_gradient_also_in_place, .loop = 3)
{
    TS_SCOPE;
    ts_tensor *x = numbers(3, TS_SIZES(9, 20), TS_F32), *t = targets(TS_SIZES(9), 20, TS_I64),
              *loss;
    ts_loss_opts opts = {
        .size = sizeof opts, .reduction = (ts_reduction)_i, .label_smoothing = 0.1};
    ts_tensor *grad = ts_cross_entropy_grad(x, t, &opts, &loss),
              *v = ts_set_requires_grad(ts_clone(x), true);
    ts_tensor *y = ts_cross_entropy_ex(v, t, &opts);
    ck_assert_int_eq(ts_backward(opts.reduction == TS_REDUCTION_NONE ? ts_sum(y) : y), TS_OK);
    ck_assert(same_bits(loss, ts_detach(y)));
    ck_assert(same_bits(grad, ts_grad(v)));
    ck_assert(same_bits(ts_cross_entropy_grad_(x, t, &opts), loss));
    ck_assert(same_bits(x, grad));
}

/** In place on a strided view: writes nothing beside the view's elements. */
TS_TEST(cross_entropy_grad_in_place_on_a_transposed_view, .loop = 4)
{
    TS_SCOPE;
    static const ts_dtype dtypes[] = {TS_F64, TS_F32, TS_BF16, TS_F16};
    ts_tensor *base = ts_to(numbers(3, TS_SIZES(20, 9), TS_F64), dtypes[_i]),
              *t = targets(TS_SIZES(7), 20, TS_I64), *loss;
    ts_tensor *x = ts_narrow(ts_transpose(base, 0, 1), 0, 1, 7),
              *before = ts_clone(base); // (7, 20)
    ts_tensor *grad = ts_cross_entropy_grad(x, t, NULL, &loss);
    uint32_t version = ts_version(base);
    ck_assert(same_bits(ts_cross_entropy_grad_(x, t, NULL), loss));
    ck_assert(same_bits(ts_contiguous(x), grad));
    ck_assert_uint_eq(ts_version(base), version + 1);
    for (int side = 0; side < 2; side++)
        ck_assert(same_bits(ts_contiguous(ts_narrow(base, 1, 8 * side, 1)),
                            ts_contiguous(ts_narrow(before, 1, 8 * side, 1))));
}

/** The destination may be self or separate memory. If it overlaps self partly, the call is an
 *  error. */
TS_TEST(cross_entropy_grad_refuses_a_destination_that_overlaps)
{
    TS_SCOPE;
    ts_tensor *base = numbers(3, TS_SIZES(10, 20), TS_F32), *before = ts_clone(base),
              *x = ts_narrow(base, 0, 0, 9);
    ts_value args[] = {ts_value_tensor(x), ts_value_tensor(targets(TS_SIZES(9), 20, TS_I64)),
                       ts_value_int(TS_REDUCTION_MEAN), ts_value_int(-100), ts_value_float(0)};
    ts_value rets[] = {ts_value_tensor(ts_narrow(base, 0, 1, 9)), ts_value_none()};
    ck_assert_int_eq(ts_call_boxed(ts_op_by_name("cross_entropy_grad"), args, 5, rets, 2),
                     TS_ERR_VALUE);
    ck_assert_ptr_nonnull(
        strstr(ts_error_message(),
               "cross_entropy_grad: argument 'out': shares memory with argument 'self'"));
    ck_assert(same_bits(base, before));
}

TS_TEST(cross_entropy_grad_in_place_leaves_the_logits_when_a_target_is_wrong, .loop = 8)
{
    TS_SCOPE;
    ts_dtype dtype = (ts_dtype[]){TS_F32, TS_F64, TS_BF16, TS_F16}[_i / 2];
    ts_tensor *x = ts_to(numbers(3, TS_SIZES(3, 4), TS_F64), dtype);
    if (_i % 2)
        x = ts_transpose(ts_to(numbers(3, TS_SIZES(4, 3), TS_F64), dtype), 0, 1);
    ts_tensor *before = ts_clone(x);
    int64_t bad[] = {0, 1, 4};
    uint32_t version = ts_version(x);
    ck_assert_ptr_null(ts_cross_entropy_grad_(x, ts_from_array(bad, TS_I64, TS_SIZES(3)), NULL));
    ck_assert_int_eq(ts_error_code(), TS_ERR_INDEX);
    ck_assert(same_bits(ts_contiguous(x), ts_contiguous(before)));
    ck_assert_uint_eq(ts_version(x), version); /* unchanged: graphs that saved x stay valid */
}

/** As docs/write-a-training-loop.md has it: the loss is not recorded; backward starts from the
 * gradient of the logits. */
TS_TEST(a_backward_from_cross_entropy_grad_equals_the_recorded_one, .loop = 2)
{
    TS_SCOPE;
    bool in_place = _i;
    ts_tensor *x = numbers(3, TS_SIZES(9, 6), TS_F32), *t = targets(TS_SIZES(9), 20, TS_I64), *loss;
    ts_tensor *w = ts_set_requires_grad(numbers(5, TS_SIZES(20, 6), TS_F32), true),
              *y = ts_cross_entropy(ts_linear(x, w, TS_NONE), t);
    ck_assert_int_eq(ts_backward(y), TS_OK);
    ts_tensor *right = ts_clone(ts_grad(w)), *logits = ts_linear(x, w, TS_NONE),
              *plain = ts_detach(logits);
    ts_zero_grad(w);
    ts_tensor *grad = in_place ? plain : ts_cross_entropy_grad(plain, t, NULL, &loss);
    if (in_place)
        loss = ts_cross_entropy_grad_(plain, t, NULL);
    ck_assert_int_eq(ts_backward_ex(logits, grad, NULL), TS_OK);
    ck_assert(same_bits(ts_grad(w), right));
    ck_assert(same_bits(loss, ts_detach(y)));
}

TS_TEST(gradients_of_cross_entropy, .loop = 12)
{
    TS_SCOPE;
    check c = {.classes = true, .reduction = (ts_reduction)(_i % 3), .smoothing = _i / 3 % 2 * 0.1,
               .ndim = 2 + _i / 6};
    assert_gradient(numbers(8, (const int64_t[]){5, 4, 3}, c.ndim, TS_F64), loss, &c);
}

TS_TEST(threads_do_not_change_a_bit)
{
    TS_SCOPE;
    ts_tensor *x = numbers(3, TS_SIZES(1500, 130), TS_F32),
              *t = targets(TS_SIZES(1500), 130, TS_I64), *y[2], *m[2], *g[2];
    for (int threads = 1; threads <= 2; threads++) {
        ck_assert_int_eq(ts_set_num_threads(threads), TS_OK);
        ts_tensor *v = ts_clone(x);
        ck_assert_ptr_nonnull(ts_set_requires_grad(v, true));
        y[threads - 1] = ts_cross_entropy(v, t);
        ck_assert_int_eq(ts_backward(y[threads - 1]), TS_OK);
        g[threads - 1] = ts_clone(ts_grad(v));
        m[threads - 1] = ts_mse_loss(x, ts_neg(x));
    }
    ck_assert(same_bits(y[0], y[1]) && same_bits(m[0], m[1]) && same_bits(g[0], g[1]));
}

/** A tensor of these sizes whose elements are every second one, transposed or broadcast. */
static ts_tensor *drawn_view(uint64_t seed, int kind, int64_t rows, int64_t columns, ts_dtype dtype)
{
    ts_dtype drawn = dtype == TS_F64 ? TS_F64 : TS_F32;
    ts_tensor *t;
    switch (kind) {
    case 0: t = numbers(seed, TS_SIZES(rows, columns), drawn); break;
    case 1: t = numbers(seed, TS_SIZES(rows, 2 * columns), drawn); break;
    case 2: t = numbers(seed, TS_SIZES(columns, rows), drawn); break;
    default: t = numbers(seed, TS_SIZES(1, columns), drawn);
    }
    t = ts_to(t, dtype);
    return kind == 1   ? ts_slice(t, 1, 0, TS_END, 2)
           : kind == 2 ? ts_t(t)
           : kind == 3 ? ts_expand(t, TS_SIZES(rows, columns))
                       : t;
}

/* Blocks of strided operands are gathered; the bits are those of contiguous copies. */
TS_TEST(losses_of_views_have_the_bits_of_copies, .loop = 96)
{
    static const char *const names[] = {"mse_loss", "smooth_l1_loss", "huber_loss"};
    static const ts_dtype dtypes[] = {TS_F32, TS_F64, TS_BF16, TS_F16};
    TS_SCOPE;
    uint64_t seed = (uint64_t)_i;
    int64_t rows = 1 + (int64_t)(fabs(number(seed, 1)) * 70),
            columns = 1 + (int64_t)(fabs(number(seed, 2)) * 130), reduction = _i / 4 % 3;
    const char *name = names[_i / 12 % 3];
    char backward[32];
    snprintf(backward, sizeof backward, "%s_backward", name);
    ts_dtype dtype = dtypes[_i % 4];
    ts_tensor *x = drawn_view(seed + 100, _i % 4 ^ _i / 4 % 4, rows, columns, dtype),
              *t = drawn_view(seed + 200, _i / 16 % 4, rows, columns, dtype),
              *g = reduction == TS_REDUCTION_NONE
                       ? drawn_view(seed + 300, _i / 3 % 4, rows, columns, dtype)
                       : ts_to(numbers(seed, NULL, 0, dtype == TS_F64 ? TS_F64 : TS_F32), dtype);
    ts_tensor *results[2][3];
    ts_set_num_threads(1 + _i % 3);
    for (int copied = 0; copied < 2; copied++) {
        ts_tensor *operands[] = {x, t, g};
        for (int k = 0; copied && k < 3; k++)
            operands[k] = ts_contiguous(operands[k]);
        ts_value args[] = {ts_value_tensor(operands[2]), ts_value_tensor(operands[0]),
                           ts_value_tensor(operands[1]), ts_value_int(reduction),
                           ts_value_float(0.75)};
        int more = name[0] != 'm'; /* mse_loss has no bound */
        ts_value loss = ts_value_none(), grads[2] = {ts_value_none(), ts_value_none()};
        ck_assert_int_eq(ts_call_boxed(ts_op_by_name(name), args + 1, 3 + more, &loss, 1), TS_OK);
        ck_assert_int_eq(ts_call_boxed(ts_op_by_name(backward), args, 4 + more, grads, 2), TS_OK);
        results[copied][0] = ts_adopt(loss.t);
        results[copied][1] = ts_adopt(grads[0].t);
        results[copied][2] = ts_adopt(grads[1].t);
    }
    for (int k = 0; k < 3; k++)
        ck_assert_msg(same_bits(results[0][k], results[1][k]), "%s, result %d", name, k);
}
