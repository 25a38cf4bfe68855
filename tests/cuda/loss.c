/** @file loss.c  Cross-entropy over wide rows on a GPU: options, dtypes, and all functions that
 * compute it, compared with the CPU in f64. */
// SPDX-License-Identifier: MIT
#include "tests/cuda/cuda.h"

#include <math.h>

/** One call over logits (rows, classes). */
typedef struct wide {
    int64_t rows, classes;
    ts_dtype dtype;
    ts_loss_opts opts;
    bool odd;          /* the logits begin at an address that is not a multiple of 16 */
    bool short_target; /* the targets are i32 */
} wide;

/** Uninitialised contiguous logits (rows, classes), which begin at element 0 of their memory, or at
 *  element 1 if `odd`. */
static ts_tensor *rows_on(const wide *w, ts_device device)
{
    ts_tensor *all = ts_empty_on(TS_SIZES(w->rows * w->classes + 1), w->dtype, device);
    return ts_view(ts_narrow(all, 0, w->odd, w->rows * w->classes), TS_SIZES(w->rows, w->classes));
}

/** Targets (rows) that include the first and the last class. Every fifth is the ignored class:
 *  -100, or the class ignore_index. */
static ts_tensor *targets_of(const wide *w)
{
    int64_t *goals = malloc((size_t)w->rows * sizeof *goals);
    for (int64_t r = 0; r < w->rows; r++)
        goals[r] = r % 5 == 3 ? (w->opts.ignore_index ? *w->opts.ignore_index : -100)
                   : r == 1   ? w->classes - 1
                              : r * 7919 % w->classes;
    ts_tensor *t = ts_from_array(goals, TS_I64, TS_SIZES(w->rows));
    free(goals);
    return w->short_target ? ts_to(t, TS_I32) : t;
}

static double *doubles_of(ts_tensor *t)
{
    ts_tensor *here = ts_to(ts_to_device(t, TS_DEVICE_CPU), TS_F64);
    double *values = malloc((size_t)ts_numel(here) * sizeof *values);
    OK(ts_copy_to(here, values, (size_t)ts_numel(here) * sizeof *values));
    return values;
}

static bool same_bits(ts_tensor *a, ts_tensor *b)
{
    size_t bytes = (size_t)ts_numel(a) * ts_dtype_size(ts_dtype_of(a));
    char *x = malloc(2 * bytes), *y = x + bytes;
    OK(ts_copy_to(a, x, bytes));
    OK(ts_copy_to(b, y, bytes));
    bool same = memcmp(x, y, bytes) == 0;
    free(x);
    return same;
}

static double eps_of(ts_dtype dtype)
{
    return dtype == TS_F32 ? 0x1p-23 : dtype == TS_BF16 ? 0x1p-7 : 0x1p-10;
}

/* Bound of the error: 32 eps of f32, for exponentials and sums of 50,000 terms in f32, and one
 * rounding to the dtype, for f16 at least its smallest step (6e-8). It is relative to the element
 * plus `share`, the smoothed target that a gradient subtracts. */
static void assert_near(const wide *w, const char *what, ts_tensor *got_, ts_tensor *want_,
                        double share)
{
    double *got = doubles_of(got_), *want = doubles_of(want_);
    ts_dtype dtype = ts_dtype_of(got_);
    for (int64_t i = 0; i < ts_numel(want_); i++) {
        double most = (32 * eps_of(TS_F32) + (dtype == TS_F32 ? 0 : eps_of(dtype) / 2)) *
                          (fabs(want[i]) + share) +
                      (dtype == TS_F16 ? 0x1p-24 : 0);
        if (!(fabs(got[i] - want[i]) <= most))
            ck_abort_msg("%s %d of (%d, %d), reduction %d, smoothing %g: got %.9g, expected %.9g",
                         what, (int)i, (int)w->rows, (int)w->classes, w->opts.reduction,
                         w->opts.label_smoothing, got[i], want[i]);
    }
    free(got);
    free(want);
}

static void judge(const wide *w, ts_device device)
{
    TS_SCOPE;
    ts_tensor *x = rows_on(w, device), *t = targets_of(w), *there = ts_to_device(t, device), *loss,
              *right_loss;
    ts_tensor *drawn = ts_to(ts_normal(TS_SIZES(w->rows, w->classes), 0, 2, TS_F32), w->dtype);
    OK(ts_copy_(x, ts_to_device(drawn, device)));
    ts_tensor *right = ts_cross_entropy_grad(ts_to(drawn, TS_F64), t, &w->opts, &right_loss);
    ts_tensor *grad = ts_cross_entropy_grad(x, there, &w->opts, &loss);
    OK(ts_synchronize(device));
    double share = 2 * w->opts.label_smoothing / (double)w->classes;
    assert_near(w, "gradient", grad, right, share);
    assert_near(w, "loss", loss, right_loss, 0);

    ts_tensor *v = ts_set_requires_grad(ts_detach(x), true),
              *y = ts_cross_entropy_ex(v, there, &w->opts);
    OK(ts_backward(w->opts.reduction == TS_REDUCTION_NONE ? ts_sum(y) : y));
    assert_near(w, "recorded gradient", ts_grad(v), right, share);
    assert_near(w, "recorded loss", ts_detach(y), right_loss, 0);

    wide other = *w; /* a destination of another alignment gets the same bits */
    other.odd = !w->odd;
    ts_value args[] = {ts_value_tensor(x), ts_value_tensor(there), ts_value_int(w->opts.reduction),
                       ts_value_int(w->opts.ignore_index ? *w->opts.ignore_index : -100),
                       ts_value_float(w->opts.label_smoothing)};
    ts_value rets[] = {ts_value_tensor(rows_on(&other, device)), ts_value_none()};
    OK(ts_call_boxed(ts_op_by_name("cross_entropy_grad"), args, 5, rets, 2));
    ck_assert_msg(same_bits(rets[0].t, grad), "the destination's alignment changes bits");
    ck_assert(same_bits(ts_adopt(rets[1].t), loss));

    uint32_t version = ts_version(x);
    ck_assert_msg(same_bits(ts_cross_entropy_grad_(x, there, &w->opts), loss),
                  "in place the loss has other bits");
    ck_assert_msg(same_bits(x, grad), "in place the gradient has other bits");
    ck_assert_uint_eq(ts_version(x), version + 1);
}

static const ts_dtype dtypes[] = {TS_F32, TS_BF16, TS_F16};
static const int64_t third = 3;

/** Rows that fit registers, the shared memory of one block, or that of clusters of 2, 4 and 8; and
 *  unaligned rows, which take two passes. */
TS_TEST(loss_and_gradient_of_wide_rows_equal_those_of_the_CPU, .loop = 6)
{
    GPU(device);
    static const int64_t classes[] = {8192, 10248, 20000, 50257, 50304, 100352, 151936};
    wide w = {.rows = 5, .dtype = dtypes[_i % 3], .opts = {.size = sizeof w.opts}};
    if (_i / 3)
        w.opts.label_smoothing = 0.1, w.opts.ignore_index = &third, w.short_target = true;
    for (int k = 0; k < 3 * 8; k++) {
        w.opts.reduction = (ts_reduction)(k % 3);
        w.odd = k / 3 == 7;
        w.classes = w.odd ? 8200 : classes[k / 3];
        judge(&w, device);
    }
}

/** More rows than resident blocks, so that each block works on several rows. */
TS_TEST(many_wide_rows_share_the_blocks, .loop = 3)
{
    GPU(device);
    wide w = {.rows = 300, .classes = 50304, .dtype = dtypes[_i],
              .opts = {.size = sizeof w.opts, .label_smoothing = 0.1}};
    judge(&w, device);
}

TS_TEST(a_class_out_of_range_is_an_error_of_the_called_op)
{
    GPU(device);
    TS_SCOPE;
    static const int64_t classes[] = {10, 50304, 50257};
    for (int k = 0; k < 3; k++) {
        ts_tensor *x = ts_view(full_on(device, 3 * classes[k], 1), TS_SIZES(3, classes[k])), *loss;
        ts_tensor *target =
            ts_to_device(ts_from_array((int64_t[]){1, 2, classes[k]}, TS_I64, TS_SIZES(3)), device);
        OK(ts_cross_entropy_grad(x, target, NULL, &loss));
        ck_assert_int_eq(ts_synchronize(device), TS_ERR_INDEX);
        ck_assert_msg(strstr(ts_error_message(), "cross_entropy_grad: argument 'target'"), "%s",
                      ts_error_message());
        ts_error_clear();
    }
}
