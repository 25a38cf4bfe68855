/**
 * @file convolution.c
 * Convolutions (docs/convolution.md). cuDNN runs the shapes for which it is faster
 * (convolution/cudnn.h); all other calls use the library's kernels. bf16 and f16 use kernels for
 * images of few channels (convolution/few.h) and kernels that read windows straight from the image
 * (convolution/gemm.h) where these support the call. Depthwise convolutions
 * (convolution/depthwise.h) and groups of few channels (convolution/windows.h) use kernels that sum
 * windows without a matrix. The remaining calls gather windows into matrices, at most 256 MiB at a
 * time, for matrix products.
 *
 * All kernels work on images with channels innermost; other images are transposed before the
 * product, and its result afterwards. y and the gradient of x, which this file computes, are sums
 * over one window per element; convolution/weight.c computes the gradient of the weight.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/batch_norm.h"
#include "backends/cuda/convolution/product.h"
#include "backends/cuda/convolution/cudnn.h"
#include "backends/cuda/convolution/depthwise.h"
#include "backends/cuda/product/epilogue.h"

enum {
    MOST_FUSED = 384, /* 1 x 1 kernels: with more channels, cuBLASLt's product and a pass take less
                         time than an own product with an epilogue */
    PLAIN_FEW = 64   /* 1 x 1 kernels: most channels of an image that convolution/few.h computes */
};

/* -------------------------------------------------------------------------------- images ---- */

/** Returns a dense copy of the weight as (groups, rows, taps of the windows, channels per group of
 *  the windows' image); NULL with an error. */
static ts_tensor *weight_matrix(const ts_cuda_conv_product *p, ts_tensor *weight, bool to_x)
{
    const ts_convolution *c = &p->c;
    ts_tensor *w = ts_unflatten(weight, 0, (int64_t[]){c->groups, c->features / c->groups}, 2);
    int64_t order[6] = {0, to_x ? 2 : 1};
    for (int d = 0; d < c->dims; d++) {
        const ts_window_axis *a = &p->windows.axis[3 - c->dims + d];
        w = ts_slice(w, 3 + d, a->first, a->first + (a->taps - 1) * a->every + 1, a->every);
        order[2 + d] = 3 + d;
    }
    order[2 + c->dims] = to_x ? 1 : 2;
    w = ts_cuda_conv_dense(ts_permute(w, order, 3 + c->dims));
    return ts_cuda_conv_padded(p->f, w, p->windows.channels / c->groups);
}

/** to (count, groups * rows) = windows first to first + count - 1, times the transposed weight
 *  (groups, rows, depth), plus bias (groups * rows) unless NULL. */
static ts_status multiply(ts_cuda_conv_product *p, ts_tensor *to, int64_t first, int64_t count,
                          ts_tensor *weight, ts_tensor *bias)
{
    TS_SCOPE;
    int64_t groups = p->c.groups, rows = ts_size(to, 1) / groups;
    ts_tensor *windows = ts_cuda_conv_gathered(p, first, count);
    if (groups == 1)
        return ts_status_of_pointer(ts_linear_out(
            to, windows, ts_view(weight, (int64_t[]){rows, p->depth}, 2), bias ? bias : TS_NONE));
    windows = ts_view(windows, (int64_t[]){count, groups, p->depth}, 3);
    weight = ts_view(weight, (int64_t[]){groups, rows, p->depth}, 3);
    to = ts_view(to, (int64_t[]){count, groups, rows}, 3);
    if (!bias) {
        ts_tensor *y = ts_bmm(ts_transpose(windows, 0, 1), ts_transpose(weight, 1, 2));
        return ts_status_of_pointer(ts_copy_(to, ts_transpose(y, 0, 1)));
    }
    for (int64_t g = 0; g < groups; g++) { /* adding the bias after bmm would round twice */
        ts_tensor *y = ts_linear(ts_select(windows, 1, g), ts_select(weight, 0, g),
                                 ts_narrow(bias, 0, g * rows, rows));
        TS_TRY(ts_copy_(ts_select(to, 1, g), y));
    }
    return TS_OK;
}

/** View (N, ..., C) of the elements of the result that the windows compute. */
static ts_tensor *positions(const ts_cuda_conv_product *p, ts_tensor *result)
{
    const ts_convolution *c = &p->c;
    ts_tensor *v = ts_cuda_conv_last(result);
    for (int d = 0; d < c->dims && v; d++) {
        const ts_window_axis *a = &p->windows.axis[3 - c->dims + d];
        if (a->step != 1)
            v = ts_slice(v, 1 + d, a->start, ts_size(v, 1 + d), a->step);
    }
    return v;
}

/** Arguments of make_images(); to: dense (N, ..., C) for bf16, f16 and cuDNN. */
typedef struct images {
    ts_frame *f;
    ts_tensor *to, *from, *weight, *bias;
    bool to_x;
    const ts_cuda_conv_after *after; /* epilogue of y, or NULL */
    const ts_cuda_few *few; /* the same call for the kernels for few channels, or NULL */
} images;

static ts_status fail_epilogue(const ts_frame *f)
{
    return ts_error_set(TS_ERR_UNSUPPORTED, "%s: no kernel computes this epilogue",
                        ts_op_name(f->op));
}

/** Runs the epilogue as a pass over the result. */
static ts_status apply_after(void *context)
{
    const images *i = context;
    int64_t channels = ts_size(i->to, 1);
    return ts_cuda_conv_apply(i->f, i->after, ts_numel(i->to) / channels, channels,
                              ts_kernel_data(i->to));
}

/** Computes y (form -1), or the elements of x of one form. i->from: by ts_cuda_conv_innermost(). */
static ts_status make_image(images *i, int64_t form)
{
    TS_SCOPE;
    ts_frame *f = i->f;
    ts_tensor *result = i->to, *weight = i->weight, *bias = i->bias;
    ts_cuda_conv_product p;
    TS_TRY(ts_cuda_conv_open(&p, f, i->from, form));
    bool to_x = form >= 0;
    ts_tensor *to = positions(&p, result);
    TS_TRY(to);
    if (!ts_numel(to))
        return TS_OK;
    if (!p.depth) { /* sums of nothing */
        if (bias)
            return ts_status_of_pointer(ts_copy_(to, bias));
        return ts_status_of_pointer((ts_fill_)(to, ts_scalar_int(0)));
    }
    TS_TRY(weight = weight_matrix(&p, weight, to_x));
    if (bias)
        TS_TRY(bias = ts_cuda_conv_dense(bias));
    bool direct = ts_is_contiguous(to);
    int64_t channels = ts_size(result, 1), sizes[] = {p.all, channels};
    ts_cuda_window_product q =
        ts_cuda_conv_in_place(&p, weight, bias, channels / p.c.groups, result);
    q.after = i->after;
    /* plain: a product of matrices */
    bool plain = direct && p.c.groups == 1 && ts_cuda_conv_of_pixels(&p);
    bool passes = plain && p.depth > MOST_FUSED; /* the epilogue is a pass after the product */
    if (i->after && !passes)
        return ts_cuda_window_product_fits(&q) ? ts_cuda_multiply_windows(f, &q)
                                               : fail_epilogue(f);
    if (ts_cuda_conv_is_depthwise(&p) && ts_is_contiguous(ts_cuda_conv_last(result))) {
        weight = ts_view(weight, (int64_t[]){channels, p.taps}, 2);
        TS_TRY(weight = ts_cuda_conv_dense(ts_transpose(weight, 0, 1)));
        q.other = ts_kernel_data(weight);
        return ts_cuda_multiply_channels(f, &q);
    }
    if (!plain && ts_is_contiguous(ts_cuda_conv_last(result)) && ts_cuda_window_product_fits(&q))
        return ts_cuda_multiply_windows(f, &q);
    ts_tensor *matrix = direct ? ts_view(to, sizes, 2)
                               : ts_empty_on(sizes, 2, ts_kernel_dtype(f), ts_kernel_device(f));
    TS_TRY(matrix);
    if (p.c.groups > 1 && p.windows.channels / p.c.groups <= TS_CUDA_CONV_FEW) {
        p.windows.count = p.all;
        TS_TRY(ts_cuda_sum_windows(f, &p.windows, ts_kernel_data(weight),
                                   bias ? ts_kernel_data(bias) : NULL, channels / p.c.groups,
                                   ts_kernel_data(matrix)));
    } else {
        int64_t most = ts_cuda_conv_chunk(&p);
        for (int64_t first = 0, count; first < p.all; first += count) {
            count = most < p.all - first ? most : p.all - first;
            TS_TRY(multiply(&p, ts_narrow(matrix, 0, first, count), first, count, weight, bias));
        }
    }
    if (passes && i->after)
        return apply_after(i);
    return direct ? TS_OK
                  : ts_status_of_pointer(
                        ts_copy_(to, ts_view(matrix, ts_sizes(to), ts_ndim(to))));
}

/** Computes all forms of x by one kernel, if it supports the call. */
static ts_status make_x_at_once(images *i, bool *done)
{
    TS_SCOPE;
    ts_convolution c = ts_kernel_convolution(i->f);
    ts_tensor *weight = i->weight, *bias = i->bias, *to = ts_cuda_conv_last(i->to);
    int item = (int)ts_dtype_size(ts_kernel_dtype(i->f));
    *done = false;
    if (c.groups == 1 || c.channels != c.groups || c.features != c.groups || !ts_numel(i->to) ||
        !ts_cuda_spreads(&c, item, (uintptr_t)ts_kernel_data(i->to) |
                                   (uintptr_t)ts_kernel_data(i->from)) || !ts_is_contiguous(to))
        return TS_OK;
    if (bias)
        TS_TRY(bias = ts_cuda_conv_dense(bias));
    int64_t taps = ts_numel(weight) / c.channels;
    weight = ts_view(ts_cuda_conv_dense(weight), (int64_t[]){c.channels, taps}, 2);
    TS_TRY(weight = ts_cuda_conv_dense(ts_transpose(weight, 0, 1)));
    if ((uintptr_t)ts_kernel_data(weight) % 16 || (bias && (uintptr_t)ts_kernel_data(bias) % 16))
        return TS_OK;
    *done = true;
    return ts_cuda_spread_channels(i->f, &c, ts_kernel_data(i->from), ts_kernel_data(weight),
                                   bias ? ts_kernel_data(bias) : NULL, ts_kernel_data(i->to));
}

/** Runs own kernels: those for few channels, or others form by form. */
static ts_status make_forms(void *context)
{
    images *i = context;
    if (i->few)
        return ts_cuda_few_multiply(i->f, i->few);
    int64_t forms = i->to_x ? ts_kernel_window_forms(i->f) : 1;
    bool done = false;
    if (forms > 1)
        TS_TRY(make_x_at_once(i, &done));
    if (done)
        return TS_OK;
    for (int64_t form = 0; form < forms; form++)
        TS_TRY(make_image(i, i->to_x ? form : -1));
    return TS_OK;
}

/** Returns a dense copy of the weight as (features, taps * channels), with zeros for features and
 *  channels of c that it lacks; NULL with an error. */
static ts_tensor *weight_image(ts_frame *f, const ts_convolution *c, ts_tensor *weight)
{
    ts_tensor *w = ts_cuda_conv_dense(ts_cuda_conv_last(weight));
    w = ts_cuda_conv_padded(f, w, c->channels / c->groups);
    if (!w)
        return NULL;
    int64_t rows = ts_size(w, 0), depth = ts_numel(w) / rows, more = c->features - rows;
    w = ts_view(w, (int64_t[]){c->groups, rows / c->groups, depth}, 3);
    if (more)
        w = ts_pad(w, (int64_t[]){0, 0, 0, more / c->groups}, 4, 0, ts_scalar_int(0));
    return w ? ts_view(w, (int64_t[]){c->features, depth}, 2) : NULL;
}

/** Runs the call by cuDNN, if cuDNN is the faster engine. */
static ts_status make_by_cudnn(images *i, ts_cuda_cudnn *cudnn, const ts_convolution *c, bool *done)
{
    TS_SCOPE;
    ts_tensor *weight = weight_image(i->f, c, i->weight),
              *bias = i->bias ? ts_cuda_conv_dense(i->bias) : NULL;
    TS_TRY(weight);
    if (i->bias)
        TS_TRY(bias);
    ts_tensor *x = i->to_x ? i->to : i->from, *y = i->to_x ? i->from : i->to;
    const ts_cuda_conv_operands o = {ts_kernel_data(x), ts_kernel_data(weight), ts_kernel_data(y),
                                     bias ? ts_kernel_data(bias) : NULL};
    const ts_cuda_conv_own own = {make_forms, i->after ? apply_after : NULL, i};
    return ts_cuda_cudnn_run(i->f, cudnn, &o, &own, done);
}

/** A number for the calls of an epilogue, 0 for none (ts_cuda_cudnn_of()). */
static int number_of(const ts_cuda_conv_after *after)
{
    return !after ? 0 : 1 + (after->factors != NULL) + 2 * (after->added != NULL) +
                            4 * after->relu_first + 8 * after->relu_last;
}

/** Runs the faster engine. c: the call with the channels of i->from. */
static ts_status make_by_faster(images *i, ts_cuda_cudnn *cudnn, const ts_convolution *c)
{
    bool done = false;
    if (cudnn)
        TS_TRY(make_by_cudnn(i, cudnn, c, &done));
    return done ? TS_OK : make_forms(i);
}

static ts_cuda_cudnn *cudnn_of(const images *i, const ts_convolution *c)
{
    return ts_cuda_cudnn_of(i->f, c, i->to_x ? TS_CUDA_CONV_X : TS_CUDA_CONV_Y, i->bias != NULL,
                            number_of(i->after));
}

/** Computes all.to by the kernels for few channels or by cuDNN, without copies padded to 8
 *  channels, if the former support the call. */
static ts_status make_few(images all, bool *done)
{
    TS_SCOPE;
    ts_frame *f = all.f;
    ts_cuda_few few;
    ts_cuda_conv_product p;
    ts_tensor *result = all.to, *to = ts_cuda_conv_last(result);
    *done = false;
    TS_TRY(to);
    if (!ts_cuda_conv_is_few(f, all.from, all.weight, all.to_x - 1, PLAIN_FEW))
        return TS_OK;
    TS_TRY(ts_cuda_conv_open_few(&few, &p, f, all.from, all.weight, all.to_x - 1));
    bool there = ts_is_contiguous(to) && (uintptr_t)ts_kernel_data(to) % 16 == 0;
    few.after = all.after;
    if ((all.after && !there) || !ts_cuda_few_fits(&few))
        return TS_OK;
    if (!there)
        TS_TRY(to = ts_empty_on(ts_sizes(to), ts_ndim(to), ts_kernel_dtype(f),
                                ts_kernel_device(f)));
    if (all.bias)
        TS_TRY(all.bias = ts_cuda_conv_dense(all.bias));
    few.bias = all.bias ? ts_kernel_data(all.bias) : NULL;
    few.to = ts_kernel_data(to);
    TS_TRY(all.to = ts_cuda_conv_second(to));
    TS_TRY(all.from = ts_cuda_conv_second(p.image));
    all.few = &few;
    *done = true;
    const ts_convolution c = ts_kernel_convolution(f);
    TS_TRY(make_by_faster(&all, cudnn_of(&all, &c), &c));
    return there ? TS_OK : ts_status_of_pointer(ts_copy_(result, all.to));
}

/** Computes y with its epilogue, or with to_x the gradient of x, into result (N, C, ...). */
static ts_status make_images(ts_frame *f, ts_tensor *result, ts_tensor *from, ts_tensor *weight,
                             ts_tensor *bias, bool to_x, const ts_cuda_conv_after *after)
{
    TS_SCOPE;
    bool done;
    images all = {f, result, from, weight, bias, to_x, after, NULL};
    TS_TRY(make_few(all, &done));
    if (done)
        return TS_OK;
    ts_tensor *to = ts_cuda_conv_last(result);
    ts_convolution c = ts_kernel_convolution(f);
    TS_TRY(all.from = ts_cuda_conv_innermost(f, from, ts_size(from, 1) / c.groups));
    TS_TRY(to);
    if (after && !ts_is_contiguous(to))
        return fail_epilogue(f);
    *(to_x ? &c.features : &c.channels) = ts_size(all.from, 1);
    ts_cuda_cudnn *cudnn = cudnn_of(&all, &c);
    bool there = (!cudnn && ts_dtype_size(ts_kernel_dtype(f)) != 2) || ts_is_contiguous(to);
    if (!there)
        to = ts_empty_on(ts_sizes(to), ts_ndim(to), ts_kernel_dtype(f), ts_kernel_device(f));
    TS_TRY(all.to = ts_cuda_conv_second(to));
    TS_TRY(make_by_faster(&all, cudnn, &c));
    return there ? TS_OK : ts_status_of_pointer(ts_copy_(result, all.to));
}

/* ------------------------------------------------------------------------------- kernels ---- */

static ts_tensor *tensor_of(ts_value v) { return v.tag == TS_TAG_TENSOR ? v.t : NULL; }

/* input, weight, bias, ... -> output */
static ts_status convolution(ts_frame *f)
{
    if (!ts_numel(f->rets[0].t))
        return TS_OK;
    return make_images(f, f->rets[0].t, f->args[0].t, f->args[1].t, tensor_of(f->args[2]),
                       f->args[6].i, NULL);
}

/** convolution() with the calls after it. */
static ts_status convolution_with(ts_frame *f, const ts_cuda_after *calls)
{
    if (!calls)
        return convolution(f);
    ts_device where = ts_kernel_device(f);
    int64_t bytes = calls->norm ? ts_size(calls->result, 1) * 3 * (int64_t)sizeof(float) : 0;
    float *factors = NULL;
    if (bytes && !(factors = ts_scratch_take(where, bytes)))
        return ts_error_code();
    const ts_cuda_conv_after after = {factors, calls->added ? ts_kernel_data(calls->added) : NULL,
                                      calls->relu_first, calls->relu_last};
    ts_status status = factors ? ts_cuda_batch_norm_factors(calls->norm, factors) : TS_OK;
    if (status == TS_OK)
        status = make_images(f, calls->result, f->args[0].t, f->args[1].t, tensor_of(f->args[2]),
                             false, &after);
    if (factors)
        ts_scratch_give(where, factors, bytes);
    return status;
}

/** True if t is a channels-last image or, with `always`, any tensor, in the frame's dtype. */
static bool is_ready(const ts_frame *f, const ts_tensor *t, bool always)
{
    int n = ts_ndim(t);
    int64_t step = ts_size(t, 1);
    bool last = n > 2 && ts_strides(t)[1] == 1;
    for (int d = n - 1; d >= 2 && last; d--) {
        last = ts_strides(t)[d] == step || ts_size(t, d) == 1;
        step *= ts_size(t, d);
    }
    last = last && (ts_strides(t)[0] == step || ts_size(t, 0) == 1);
    return ts_dtype_of(t) == ts_kernel_dtype(f) && ts_numel(t) && (always || last);
}

/** Kernels for implicit products of halves have epilogues. A convolution whose result is not
 *  channels-last is transposed, and the measurement of engines repeats the call, so the result must
 *  not be an argument. */
static bool convolution_takes(const ts_frame *f, ts_cuda_after *after)
{
    if (!ts_dtype_is_half(ts_kernel_dtype(f)) || f->args[6].i || after->gelu || after->gelu_of ||
        after->wide || ts_cuda_conv_allowed() == TS_CUDA_CONV_MATRIX ||
        !is_ready(f, f->args[0].t, false) || !is_ready(f, f->args[1].t, true) ||
        !is_ready(f, after->result, false) ||
        (after->added && ts_kernel_data(after->added) == ts_kernel_data(after->result)))
        return false;
    int64_t groups = f->args[8].i, each = ts_size(f->args[1].t, 1);
    return groups == 1 || each % 8 == 0;
}
const ts_cuda_product ts_cuda_convolution_product = {convolution, convolution_with,
                                                     convolution_takes};

/* grad, input, weight, ... -> gradients of input, weight and bias */
static ts_status convolution_backward(ts_frame *f)
{
    static const int64_t dims[] = {0, 2, 3, 4};
    ts_tensor *grad = f->args[0].t, *input = tensor_of(f->args[1]), *of[3];
    bool transposed = ts_kernel_convolution(f).transposed;
    for (int i = 0; i < 3; i++) {
        of[i] = tensor_of(f->rets[i]);
        if (of[i] && !ts_numel(grad)) {
            TS_TRY(ts_zero_(of[i]));
            of[i] = NULL;
        }
    }
    if (of[0])
        TS_TRY(make_images(f, of[0], grad, f->args[2].t, NULL, !transposed, NULL));
    if (of[1])
        TS_TRY(ts_cuda_conv_weigh(f, of[1], transposed ? grad : input, transposed ? input : grad));
    return of[2] ? ts_status_of_pointer(ts_sum_out(of[2], grad, dims, ts_ndim(grad) - 1, false))
                 : TS_OK;
}

#define FLOATS                                                                                     \
    (TS_DTYPE_BIT(TS_F64) | TS_DTYPE_BIT(TS_F32) | TS_DTYPE_BIT(TS_BF16) | TS_DTYPE_BIT(TS_F16))
static const ts_cuda_kernel kernels[] = {
    {"convolution", convolution, FLOATS, .strided = true},
    {"convolution_backward", convolution_backward, FLOATS, .strided = true},
};
const ts_cuda_family ts_cuda_convolution = {kernels, sizeof kernels / sizeof *kernels};
