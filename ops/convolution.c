/** @file convolution.c  Convolutions: shape rules and public functions. */
// SPDX-License-Identifier: MIT
#include "include/tessera/check.h"
#include "core/checked.h"
#include "ops/parts.h"
#include "ops/spatial.h"

/** Argument indices of an op. input and weight: in the backward op, the lists of sizes of the two
 * tensors, because the tensors may be absent. bias: -1 if the op has none. */
typedef struct indices {
    int input, weight, bias, stride, padding, dilation, transposed, output_padding, groups;
} indices;
static const indices forward = {0, 1, 2, 3, 4, 5, 6, 7, 8};
static const indices backward = {3, 4, -1, 5, 6, 7, 8, 9, 10};

static const indices *indices_of(const ts_frame *f)
{
    return f->op == TS_OP_convolution ? &forward : &backward;
}

/** The sizes of a tensor argument, or the numbers of an argument that is a list of sizes. */
static const int64_t *sizes_of(const ts_value *v, int *ndim)
{
    *ndim = v->tag == TS_TAG_TENSOR ? v->t->ndim : (int)v->count;
    return v->tag == TS_TAG_TENSOR ? v->t->sizes : v->ints;
}

/* The padding list has n numbers, each for both ends of a dim, or 2 n: the numbers for all
 * beginnings, then those for all ends. */
static int64_t padding_before(const ts_value *v, int d) { return ts_spatial_number(v, d); }
static int64_t padding_after(const ts_value *v, int d, int n)
{
    return v->count == 2 * (uint32_t)n ? v->ints[n + d] : ts_spatial_number(v, d);
}

ts_convolution ts_kernel_convolution(const ts_frame *f)
{
    if (TS_CHECK_LENT(f, "frame") != TS_OK)
        return (ts_convolution){0};
    if (f->op != TS_OP_convolution && f->op != TS_OP_convolution_backward) {
        ts_fail_decoder(f, "kernel_convolution");
        return (ts_convolution){0};
    }
    const indices *at = indices_of(f);
    const ts_value *a = f->args;
    int ndim;
    const int64_t *in = sizes_of(&a[at->input], &ndim), *w = sizes_of(&a[at->weight], &ndim);
    ts_convolution c = {.transposed = a[at->transposed].i, .dims = ndim - 2, .batch = in[0],
                        .groups = a[at->groups].i, .features = w[0]};
    c.channels = w[1] * c.groups;
    for (int k = 0; k < TS_MAX_SPATIAL; k++) {
        int d = k - (TS_MAX_SPATIAL - c.dims);
        c.size[k] = c.y_size[k] = c.kernel[k] = c.stride[k] = c.dilation[k] = 1;
        if (d < 0)
            continue;
        c.kernel[k] = w[2 + d];
        c.stride[k] = ts_spatial_number(&a[at->stride], d);
        c.dilation[k] = ts_spatial_number(&a[at->dilation], d);
        c.padding[k] = padding_before(&a[at->padding], d);
        int64_t after = padding_after(&a[at->padding], d, c.dims);
        c.size[k] = c.y_size[k] = in[2 + d];
        if (c.transposed)
            c.size[k] = (in[2 + d] - 1) * c.stride[k] - c.padding[k] - after +
                        c.dilation[k] * (c.kernel[k] - 1) +
                        ts_spatial_number(&a[at->output_padding], d) + 1;
        else
            c.y_size[k] = ts_window_count(in[2 + d], c.kernel[k], c.stride[k], c.dilation[k],
                                          c.padding[k], after, false);
    }
    return c;
}

/* ------------------------------------------------------------------------------- windows ---- */

/* The windows of all positions of y: form -1 of ts_kernel_windows(). */
static ts_window_axis axis_of_place(const ts_convolution *c, int d)
{
    return (ts_window_axis){.count = c->y_size[d], .step = 1, .taps = c->kernel[d], .every = 1,
                            .move = c->stride[d], .base = -c->padding[d],
                            .shift = c->dilation[d]};
}

/* The windows of positions r, r + stride, ... of x. Element k of the kernel connects x[i] and y[j]
 * if i + padding = j stride + k dilation. */
static ts_window_axis axis_of_remainder(const ts_convolution *c, int d, int64_t r)
{
    int64_t stride = c->stride[d], at = r + c->padding[d], k = 0, common = stride;
    for (int64_t rest = c->dilation[d] % stride; rest;) { /* greatest common divisor */
        int64_t last = common % rest;
        common = rest;
        rest = last;
    }
    ts_window_axis a = {.count = (c->size[d] - r - 1) / stride + 1, .start = r, .step = stride,
                        .move = 1, .every = stride / common};
    int64_t most = ts_min64(a.every, c->kernel[d]);
    while (k < most && (at - k * c->dilation[d]) % stride)
        k++;
    if (k == most)
        return a;
    a.first = k;
    a.taps = (c->kernel[d] - 1 - k) / a.every + 1;
    a.base = (at - k * c->dilation[d]) / stride;
    a.shift = -(c->dilation[d] / common);
    return a;
}

/** Number of remainders r in dim d; see ts_kernel_windows(). */
static int64_t forms_of(const ts_convolution *c, int d)
{
    return ts_min64(c->stride[d], c->size[d]);
}

int64_t ts_kernel_window_forms(const ts_frame *f)
{
    if (TS_CHECK_LENT(f, "frame") != TS_OK)
        return 0;
    ts_convolution c = ts_kernel_convolution(f);
    return forms_of(&c, 0) * forms_of(&c, 1) * forms_of(&c, 2);
}

void ts_kernel_windows(const ts_frame *f, int64_t form, ts_window_axis axis[3])
{
    if (TS_CHECK_POINTERS(axis) != TS_OK)
        return;
    for (int d = 0; d < TS_MAX_SPATIAL; d++)
        axis[d] = (ts_window_axis){0};
    if (TS_CHECK_LENT(f, "frame") != TS_OK)
        return;
    const ts_convolution c = ts_kernel_convolution(f);
    if (!c.dims)
        return; /* another op: ts_kernel_convolution() has recorded the error */
    int64_t forms = forms_of(&c, 0) * forms_of(&c, 1) * forms_of(&c, 2), left = form;
    if (form < -1 || form >= forms) {
        ts_fail_op(TS_ERR_VALUE, ts_op_name(f->op), f->site, NULL,
                   "kernel_windows: argument 'form': expected -1 or a form below %lld, got %lld",
                   (long long)forms, (long long)form);
        return;
    }
    for (int d = TS_MAX_SPATIAL - 1; d >= 0; d--) {
        if (form < 0) {
            axis[d] = axis_of_place(&c, d);
            continue;
        }
        axis[d] = axis_of_remainder(&c, d, left % forms_of(&c, d));
        left /= forms_of(&c, d);
    }
}

/* --------------------------------------------------------------------------------- rules ---- */

/** Checks the lists of numbers for n spatial dims, and groups. */
static ts_status check_numbers(ts_frame *f, const indices *at, int n)
{
    int64_t stride[TS_MAX_SPATIAL], dilation[TS_MAX_SPATIAL], more[2 * TS_MAX_SPATIAL];
    const ts_value *a = f->args, *groups = &a[at->groups];
    TS_TRY(ts_spatial_list(f, at->stride, n, 1, stride));
    TS_TRY(ts_spatial_list(f, at->padding,
                           a[at->padding].count == 2 * (uint32_t)n ? 2 * n : n, 0, more));
    TS_TRY(ts_spatial_list(f, at->dilation, n, 1, dilation));
    TS_TRY(ts_spatial_list(f, at->output_padding, n, 0, more));
    for (int d = 0; d < n; d++) {
        int64_t most = a[at->transposed].i ? ts_max64(stride[d], dilation[d]) - 1 : 0;
        if (more[d] > most)
            return ts_fail_arg(f, at->output_padding, TS_ERR_VALUE,
                               a[at->transposed].i
                                   ? "expected at most %lld for spatial dim %d, less than its "
                                     "stride or dilation; got %lld"
                                   : "expected %lld for spatial dim %d of a convolution that is "
                                     "not transposed, got %lld",
                               (long long)most, d, (long long)more[d]);
    }
    if (groups->i < 1)
        return ts_fail_arg(f, at->groups, TS_ERR_VALUE, "expected at least 1, got %lld",
                           (long long)groups->i);
    return TS_OK;
}

static ts_status check_channels(ts_frame *f, const indices *at, const int64_t *in,
                                const int64_t *w)
{
    int64_t groups = f->args[at->groups].i, channels, rows = w[0];
    int n = (int)(f->args[at->weight].tag == TS_TAG_TENSOR ? f->args[at->weight].t->ndim
                                                           : f->args[at->weight].count);
    const char *text = TS_LIST_TEXT(w, n);
    if (rows < 1 || rows % groups || !ts_mul_size(w[1], groups, &channels))
        return ts_fail_arg(f, at->weight, TS_ERR_SHAPE,
                           "expected a first dim that is a multiple of %lld groups, got sizes %s",
                           (long long)groups, text);
    for (int d = 2; d < n; d++)
        if (w[d] < 1 || w[d] > INT32_MAX)
            return ts_fail_arg(f, at->weight, TS_ERR_SHAPE,
                               "expected a window of 1 to 2147483647 elements per dim, got "
                               "sizes %s", text);
    if (f->args[at->transposed].i)
        channels = rows;
    if (in[1] != channels)
        return ts_fail_arg(f, at->input, TS_ERR_SHAPE,
                           "expected %lld channels for a%s weight of sizes %s in %lld groups, got "
                           "sizes %s",
                           (long long)channels, f->args[at->transposed].i ? " transposed" : "",
                           text, (long long)groups, TS_LIST_TEXT(in, n));
    return TS_OK;
}

/** Checks all but dtypes and devices; writes the result's sizes. */
static ts_status check_call(ts_frame *f, const indices *at, int64_t *out)
{
    const ts_value *a = f->args;
    int ndim, wdim;
    const int64_t *in = sizes_of(&a[at->input], &ndim), *w = sizes_of(&a[at->weight], &wdim);
    if (ndim < 3 || ndim > 2 + TS_MAX_SPATIAL)
        return ts_fail_arg(f, at->input, TS_ERR_SHAPE,
                           "expected 3 to 5 dims (N, C, spatial dims), got sizes %s",
                           TS_LIST_TEXT(in, ndim));
    if (wdim != ndim)
        return ts_fail_arg(f, at->weight, TS_ERR_SHAPE,
                           "expected %d dims as argument 'input', got sizes %s", ndim,
                           TS_LIST_TEXT(w, wdim));
    TS_TRY(check_numbers(f, at, ndim - 2));
    TS_TRY(check_channels(f, at, in, w));
    for (int d = 0; d < ndim; d++) { /* these bounds keep the sums and products below in 63 bits */
        int64_t most = d < 2 ? INT64_MAX : INT64_MAX / 4 / ts_spatial_number(&a[at->stride], d - 2);
        if (in[d] < 0 || in[d] > most)
            return ts_fail_arg(f, at->input, TS_ERR_SHAPE, "expected 0 to %lld in dim %d, got %lld",
                               (long long)most, d, (long long)in[d]);
    }
    ts_convolution c = ts_kernel_convolution(f);
    out[0] = in[0];
    out[1] = c.transposed ? c.channels : c.features;
    for (int d = 2; d < ndim; d++) {
        int k = d - 2 + TS_MAX_SPATIAL - c.dims;
        out[d] = c.transposed ? c.size[k] : c.y_size[k];
        if (out[d] < !c.transposed || (c.transposed && !in[d]))
            return ts_fail_arg(f, at->input, TS_ERR_SHAPE,
                               c.transposed
                                   ? "expected one element or more and a result of 0 or more, for "
                                     "kernel size %lld and dilation %lld in dim %d; got sizes %s "
                                     "and padding %s"
                                   : "expected padded sizes of at least one window, for kernel "
                                     "size %lld and dilation %lld in dim %d; got sizes %s and "
                                     "padding %s",
                               (long long)c.kernel[k], (long long)c.dilation[k], d,
                               TS_LIST_TEXT(in, ndim),
                               TS_LIST_TEXT(a[at->padding].ints, a[at->padding].count));
    }
    return TS_OK;
}

static ts_status check_dtype(ts_frame *f, int arg, int as)
{
    return f->args[arg].tag == TS_TAG_TENSOR
               ? ts_check_dtype_as(f, arg, as, "cast one with ts_to()")
               : TS_OK;
}

/** Result i, channels-last if one of the arguments 0 to last is. */
static void plan_result(ts_frame *f, int i, const int64_t *sizes, int ndim, int last)
{
    const ts_tensor *t = f->args[0].t;
    ts_plan_result(f->plan, i, sizes, ndim, (ts_dtype)t->dtype, t->storage->device);
    for (int k = 0; k <= last; k++)
        if (f->args[k].tag == TS_TAG_TENSOR && ts_is_channels_last(f->args[k].t)) {
            ts_plan_channels_last(f->plan, i, ndim);
            return;
        }
}

/* input (N, C, ...), weight, bias (O), numbers -> (N, O, ...) */
ts_status ts_infer_convolution(ts_frame *f)
{
    int64_t sizes[2 + TS_MAX_SPATIAL];
    TS_TRY(ts_check_float(f, 0));
    TS_TRY(check_dtype(f, 1, 0));
    TS_TRY(check_dtype(f, 2, 0));
    TS_TRY(ts_check_one_device(f));
    TS_TRY(check_call(f, &forward, sizes));
    if (f->args[2].tag == TS_TAG_TENSOR)
        TS_TRY(ts_check_sizes(f, 2, &sizes[1], 1));
    f->plan->compute = (ts_dtype)f->args[0].t->dtype;
    plan_result(f, 0, sizes, f->args[0].t->ndim, 1);
    return TS_OK;
}

/**
 * grad (N, O, ...), input, weight, their sizes, numbers -> gradients of input, weight and bias. A
 * tensor that no wanted result reads may be absent: the first reads grad and weight, the second
 * grad and input, the third grad.
 */
ts_status ts_infer_convolution_backward(ts_frame *f)
{
    const ts_value *in = &f->args[3], *w = &f->args[4];
    int64_t sizes[2 + TS_MAX_SPATIAL];
    TS_TRY(ts_check_float(f, 0));
    TS_TRY(check_call(f, &backward, sizes));
    TS_TRY(ts_check_sizes(f, 0, sizes, (int)in->count));
    for (int i = 1; i <= 2; i++) {
        const ts_value *v = &f->args[2 + i];
        TS_TRY(check_dtype(f, i, 0));
        if (f->args[i].tag == TS_TAG_TENSOR)
            TS_TRY(ts_check_sizes(f, i, v->ints, (int)v->count));
        else if (f->want >> (2 - i) & 1)
            return ts_fail_arg(f, i, TS_ERR_NULL,
                               "expected a tensor, since gradient %d is wanted; got none", 2 - i);
    }
    TS_TRY(ts_check_one_device(f));
    f->plan->compute = (ts_dtype)f->args[0].t->dtype;
    plan_result(f, 0, in->ints, (int)in->count, 2);
    plan_result(f, 1, w->ints, (int)w->count, 2);
    plan_result(f, 2, &sizes[1], 1, -1);
    return TS_OK;
}

/* -------------------------------------------------------------------------------- cost ---- */

/** Two operations per pair of a window and a kernel element; pairs in the padding count, too. */
static double product_flops(const ts_frame *f)
{
    ts_convolution c = ts_kernel_convolution(f);
    double flops = 2 * (double)c.batch * (double)c.features * (double)(c.channels / c.groups);
    for (int d = 0; d < TS_MAX_SPATIAL; d++)
        flops *= (double)c.y_size[d] * (double)c.kernel[d];
    return flops;
}

ts_work ts_cost_convolution(const ts_frame *f)
{
    double elements, bytes = ts_cost_bytes(f, &elements);
    return (ts_work){product_flops(f), bytes};
}

/** A product for each gradient of input and weight, a sum for the bias. */
ts_work ts_cost_convolution_backward(const ts_frame *f)
{
    double elements, bytes = ts_cost_bytes(f, &elements);
    int products = (f->rets[0].tag == TS_TAG_TENSOR) + (f->rets[1].tag == TS_TAG_TENSOR);
    double sums = f->rets[2].tag == TS_TAG_TENSOR ? (double)f->args[0].t->numel : 0;
    return (ts_work){products * product_flops(f) + sums, bytes};
}

/* -------------------------------------------------------------------------- public forms ---- */

/** Storage for the lists that the boxed options point to. */
typedef struct lists {
    int64_t stride[TS_MAX_SPATIAL], padding[2 * TS_MAX_SPATIAL], dilation[TS_MAX_SPATIAL];
} lists;

static ts_status refuse(ts_check_place at, const char *name, const char *expected, int64_t got)
{
    return ts_check_refuse(at, name, expected, ts_scalar_int(got));
}

/** Sets l->padding for opts.same, which keeps the sizes. If the sum of a dim's padding is odd, its
 * end gets the extra element. */
static ts_status pad_same(lists *l, const ts_conv_opts *o, const ts_tensor *weight, int n,
                          bool transposed, ts_check_place at)
{
    if (transposed)
        return refuse(at, "opts.same", "false for a transposed convolution", o->same);
    for (int d = 0; d < n; d++) {
        if (l->stride[d] != 1)
            return refuse(at, "opts.stride", "1 beside opts.same", l->stride[d]);
        if (o->padding[d])
            return refuse(at, "opts.padding", "0 beside opts.same", o->padding[d]);
        /* the shape rule reports sizes that are too large */
        int64_t kernel = weight->ndim == n + 2 ? weight->sizes[2 + d] : 1, sum;
        if (!ts_mul_size(l->dilation[d], kernel - 1, &sum))
            sum = 0;
        l->padding[d] = sum / 2;
        l->padding[n + d] = sum - sum / 2;
    }
    return TS_OK;
}

/** Fills *l from the options, with defaults for 0. TS_ERR_VALUE for numbers of dims that the
 * convolution does not have. */
static ts_status read_opts(lists *l, const ts_conv_opts *o, const ts_tensor *weight, int n,
                           bool transposed, ts_check_place at)
{
    for (int d = 0; d < TS_MAX_SPATIAL; d++) {
        const int64_t numbers[] = {o->stride[d], o->padding[d], o->dilation[d],
                                   o->output_padding[d]};
        if (d >= n)
            TS_TRY(ts_check_spatial_unused(at, numbers, TS_COUNTOF(numbers)));
        l->stride[d] = o->stride[d] ? o->stride[d] : 1;
        l->dilation[d] = o->dilation[d] ? o->dilation[d] : 1;
    }
    for (int d = 0; d < n; d++)
        l->padding[d] = l->padding[n + d] = o->padding[d];
    return o->same ? pad_same(l, o, weight, n, transposed, at) : TS_OK;
}

/** Checks the channels of one sample, whose sizes the shape rule would show with a batch dim. */
static ts_status check_sample(const ts_tensor *input, const ts_tensor *weight, int64_t groups,
                              bool transposed, ts_check_place at)
{
    int64_t channels = weight->sizes[0];
    if (weight->ndim != input->ndim + 1 || groups < 1 ||
        (!transposed && !ts_mul_size(weight->sizes[1], groups, &channels)) ||
        input->sizes[0] == channels)
        return TS_OK; /* the shape rule reports other errors */
    return ts_fail_op(TS_ERR_SHAPE, at.function + 3, at.site,
                      "tensors with one dim less than a batch are one sample",
                      "argument 'input': expected %lld channels in dim 0 of one sample, got sizes "
                      "%s", (long long)channels, TS_SIZES_TEXT(input));
}

static ts_tensor *convolve(ts_tensor *input, ts_tensor *weight, ts_tensor *bias,
                           const ts_conv_opts *opts, int n, bool transposed, ts_check_place at)
{
    TS_SCOPE;
    ts_conv_opts o;
    lists l;
    ts_value y = ts_value_none();
    TS_TRY_NULL(ts_check_tensors(at, "input, weight", (const ts_tensor *[]){input, weight}, 2));
    if (!bias) {
        ts_fail_null(at.function + 3, at.site, "bias");
        return NULL;
    }
    TS_TRY_NULL(ts_check_opts(at, "opts", &o, sizeof o, opts));
    TS_TRY_NULL(read_opts(&l, &o, weight, n, transposed, at));
    if (input->ndim != n + 1 && input->ndim != n + 2) {
        ts_fail_op(TS_ERR_SHAPE, at.function + 3, at.site, NULL,
                   "argument 'input': expected %d dims, or %d for one sample, got sizes %s", n + 2,
                   n + 1, TS_SIZES_TEXT(input));
        return NULL;
    }
    bool single = input->ndim == n + 1;
    if (single) {
        TS_TRY_NULL(check_sample(input, weight, o.groups ? o.groups : 1, transposed, at));
        TS_TRY_NULL(input = ts_unsqueeze(input, 0));
    }
    ts_value args[] = {V_T(input), V_T(weight), V_OPT(bias), V_IS(l.stride, n),
                       V_IS(l.padding, o.same ? 2 * n : n), V_IS(l.dilation, n), V_B(transposed),
                       V_IS(o.output_padding, n), V_I(o.groups ? o.groups : 1)};
    TS_TRY_NULL(ts_call(TS_OP_convolution, args, TS_N(args), &y, 1, 0, 1, at.site));
    ts_tensor *result = ts_adopt_result(&ts_tls, y.t, TS_OP_convolution, at.site);
    TS_TRY_NULL(result);
    return ts_keep(single ? ts_squeeze_dim(result, 0) : result);
}

#define FORMS(n, dims)                                                                             \
    ts_tensor *ts_conv##n(ts_tensor *input, ts_tensor *weight, ts_tensor *bias,                    \
                          const ts_conv_opts *opts)                                                \
    {                                                                                              \
        return convolve(input, weight, bias, opts, dims, false, TS_CHECK_HERE);                    \
    }                                                                                              \
    ts_tensor *ts_conv_transpose##n(ts_tensor *input, ts_tensor *weight, ts_tensor *bias,          \
                                    const ts_conv_opts *opts)                                      \
    {                                                                                              \
        return convolve(input, weight, bias, opts, dims, true, TS_CHECK_HERE);                     \
    }
FORMS(1d, 1)
FORMS(2d, 2)
FORMS(3d, 3)
