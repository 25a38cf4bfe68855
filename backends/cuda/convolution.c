/**
 * @file convolution.c
 * Convolutions (docs/convolution.md). cuDNN runs the shapes for which it is faster (cudnn.h); all
 * other calls use the library's kernels. bf16 and f16 use kernels that read windows straight from
 * the image (convolution_gemm.h) where these support the call. Depthwise convolutions (depthwise.h)
 * and groups of few channels (windows.h) use kernels that sum windows without a matrix. The
 * remaining calls gather windows into matrices, at most 256 MiB at a time, for matrix products.
 *
 * All kernels work on images with channels innermost; other images are transposed before the
 * product, and its result afterwards. y and the gradient of x are sums over one window per element.
 * The gradient of the weight is a sum over all windows, which is added up over chunks or parts.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/batch_norm.h"
#include "backends/cuda/cudnn.h"
#include "backends/cuda/depthwise.h"
#include "backends/cuda/epilogue.h"

#include "tessera/ops.h"

enum {
    FEW_CHANNELS = 4,     /* groups with more channels use matrix products */
    MOST_FUSED = 384,     /* 1 x 1 kernels: with more channels, cuBLASLt's product and a pass take
                             less time than an own product with an epilogue */
    PART = 8192,          /* windows per part of ts_cuda_weigh_windows(); more with PARTS parts */
    PARTS = 64,           /* maximum number of parts */
    MOST_TAPS = 65535     /* maximum taps for ts_cuda_weigh_windows() */
};
#define CHUNK_BYTES ((int64_t)256 << 20) /* maximum size of a chunk of more than one window */

/** A product over windows of an image: of x (form -1), or of y for one form of x's gradient. */
typedef struct product {
    ts_frame *f;
    ts_convolution c;
    ts_cuda_windows windows;
    ts_tensor *image; /* (N, ..., C), dense */
    int64_t all;      /* number of windows */
    int64_t taps, depth; /* taps of a window; elements of a window in one group */
    ts_tensor *into;  /* gradient of the weight: where it may be written, (features, ..., channels)
                         in memory; NULL: to a new tensor */
} product;

/** View of t (N, C, ...) as (N, ..., C). */
static ts_tensor *last_view(ts_tensor *t)
{
    int64_t order[5] = {0};
    int n = ts_ndim(t);
    for (int d = 1; d < n; d++)
        order[d] = d + 1;
    order[n - 1] = 1;
    return ts_permute(t, order, n);
}

/** View of t (N, ..., C) as (N, C, ...). */
static ts_tensor *second_view(ts_tensor *t)
{
    int64_t order[5] = {0};
    int n = ts_ndim(t);
    order[1] = n - 1;
    for (int d = 2; d < n; d++)
        order[d] = d - 1;
    return ts_permute(t, order, n);
}

static ts_tensor *dense(ts_tensor *t) { return t ? ts_contiguous(t) : NULL; }

/** Returns t, which is dense, extended by zeros to `size` elements along the last dim; if that is
 *  more, a multiple of 8 elements of 2 bytes. NULL for t NULL or with an error. */
static ts_tensor *padded(ts_frame *f, ts_tensor *t, int64_t size)
{
    int last = t ? ts_ndim(t) - 1 : 0;
    int64_t sizes[TS_MAX_DIMS], channels = t ? ts_size(t, last) : 0;
    if (!t || channels == size)
        return t;
    for (int d = 0; d < last; d++)
        sizes[d] = ts_size(t, d);
    sizes[last] = size;
    ts_tensor *to = ts_empty_on(sizes, last + 1, ts_kernel_dtype(f), ts_kernel_device(f));
    int64_t pixels = channels ? ts_numel(t) / channels : 0;
    return to && ts_cuda_extend_channels(f, ts_kernel_data(t), channels, pixels, ts_kernel_data(to),
                                         size) == TS_OK ? to : NULL;
}

/** Returns t (N, C, ...) with channels innermost in memory; NULL with an error. For bf16 and f16
 *  without groups, zeros extend C to a multiple of 8, because kernels copy 16 bytes at a time. */
static ts_tensor *innermost(ts_frame *f, ts_tensor *t)
{
    ts_tensor *last = dense(last_view(t));
    if (last && ts_dtype_size(ts_kernel_dtype(f)) == 2 && ts_kernel_convolution(f).groups == 1)
        last = padded(f, last, (ts_size(t, 1) + 7) / 8 * 8);
    return last ? second_view(last) : NULL;
}

/** Initialises *p for the windows of x that compute y (form -1), or the windows of y that compute
 *  one form of x (ts_kernel_windows()). from: the image of the windows, returned by innermost().
 *  TS_ERR_UNSUPPORTED if a window of all groups has more than INT32_MAX elements. */
static ts_status open_product(product *p, ts_frame *f, ts_tensor *from, int64_t form)
{
    ts_convolution c = ts_kernel_convolution(f);
    *p = (product){.f = f, .c = c, .image = last_view(from)};
    TS_TRY(p->image);
    ts_cuda_windows *w = &p->windows;
    ts_kernel_windows(f, form, w->axis);
    w->image = ts_kernel_data(p->image);
    w->groups = c.groups;
    w->channels = ts_size(from, 1);
    w->item = (int)ts_dtype_size(ts_kernel_dtype(f));
    p->all = c.batch;
    p->taps = 1;
    for (int d = 0; d < 3; d++) {
        w->size[d] = form < 0 ? c.size[d] : c.y_size[d];
        p->all *= w->axis[d].count;
        p->taps *= w->axis[d].taps;
    }
    p->depth = p->taps * (w->channels / c.groups);
    if (p->depth > INT32_MAX / c.groups)
        return ts_error_set(TS_ERR_UNSUPPORTED,
                            "%s: expected windows of at most %d elements, got %lld",
                            ts_op_name(f->op), INT32_MAX, (long long)(p->depth * c.groups));
    return TS_OK;
}

/** Number of windows per chunk. */
static int64_t chunk_of(const product *p)
{
    int64_t bytes = p->depth * p->c.groups * p->windows.item;
    int64_t most = bytes ? CHUNK_BYTES / bytes : p->all;
    return most < 1 ? 1 : most < p->all ? most : p->all;
}

/** True if each window is one pixel, in the order of the image. */
static bool windows_are_pixels(const product *p)
{
    bool same = p->taps == 1;
    for (int d = 0; d < 3; d++) {
        const ts_window_axis *a = &p->windows.axis[d];
        same = same && a->count == p->windows.size[d] && a->base == 0 &&
               (a->move == 1 || a->count == 1);
    }
    return same;
}

/** Returns `count` windows from `first` on as a matrix (count, groups * depth); NULL with an
 *  error. */
static ts_tensor *gathered(product *p, int64_t first, int64_t count)
{
    int64_t sizes[] = {count, p->c.groups * p->depth};
    if (windows_are_pixels(p))
        return ts_narrow(ts_view(p->image, (int64_t[]){p->all, sizes[1]}, 2), 0, first, count);
    ts_tensor *to = ts_empty_on(sizes, 2, ts_kernel_dtype(p->f), ts_kernel_device(p->f));
    p->windows.first = first;
    p->windows.count = count;
    return to && ts_cuda_gather_windows(p->f, &p->windows, ts_kernel_data(to)) == TS_OK ? to : NULL;
}

/** Returns a dense copy of the weight as (groups, rows, taps of the windows, channels per group of
 *  the windows' image); NULL with an error. */
static ts_tensor *weight_matrix(const product *p, ts_tensor *weight, bool to_x)
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
    return padded(p->f, dense(ts_permute(w, order, 3 + c->dims)), p->windows.channels / c->groups);
}

static bool is_depthwise(const product *p)
{
    return p->c.groups > 1 && p->c.channels == p->c.groups && p->c.features == p->c.groups;
}

/** Arguments for a kernel of convolution_gemm.h. to: (N, C, ...) in memory (N, ..., C). */
static ts_cuda_window_product in_place(const product *p, ts_tensor *other, ts_tensor *bias,
                                       int64_t rows, ts_tensor *to)
{
    ts_cuda_window_product q = {.windows = p->windows, .all = p->all, .rows = rows,
                                .other = ts_kernel_data(other),
                                .bias = bias ? ts_kernel_data(bias) : NULL,
                                .to = ts_kernel_data(to), .size = {1, 1, 1}};
    q.windows.count = p->all;
    for (int d = 0; d < p->c.dims; d++)
        q.size[3 - p->c.dims + d] = ts_size(to, 2 + d);
    return q;
}

/* -------------------------------------------------------------------------------- images ---- */

/** to (count, groups * rows) = windows first to first + count - 1, times the transposed weight
 *  (groups, rows, depth), plus bias (groups * rows) unless NULL. */
static ts_status multiply(product *p, ts_tensor *to, int64_t first, int64_t count,
                          ts_tensor *weight, ts_tensor *bias)
{
    TS_SCOPE;
    int64_t groups = p->c.groups, rows = ts_size(to, 1) / groups;
    ts_tensor *windows = gathered(p, first, count);
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
static ts_tensor *positions(const product *p, ts_tensor *result)
{
    const ts_convolution *c = &p->c;
    ts_tensor *v = last_view(result);
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

/** Computes y (form -1), or the elements of x of one form. i->from: by innermost(). */
static ts_status make_image(images *i, int64_t form)
{
    TS_SCOPE;
    ts_frame *f = i->f;
    ts_tensor *result = i->to, *weight = i->weight, *bias = i->bias;
    product p;
    TS_TRY(open_product(&p, f, i->from, form));
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
        TS_TRY(bias = dense(bias));
    bool direct = ts_is_contiguous(to);
    int64_t channels = ts_size(result, 1), sizes[] = {p.all, channels};
    ts_cuda_window_product q = in_place(&p, weight, bias, channels / p.c.groups, result);
    q.after = i->after;
    bool plain = direct && p.c.groups == 1 && windows_are_pixels(&p); /* a product of matrices */
    bool passes = plain && p.depth > MOST_FUSED; /* the epilogue is a pass after the product */
    if (i->after && !passes)
        return ts_cuda_window_product_fits(&q) ? ts_cuda_multiply_windows(f, &q)
                                               : fail_epilogue(f);
    if (is_depthwise(&p) && ts_is_contiguous(last_view(result))) {
        weight = ts_view(weight, (int64_t[]){channels, p.taps}, 2);
        TS_TRY(weight = dense(ts_transpose(weight, 0, 1)));
        q.other = ts_kernel_data(weight);
        return ts_cuda_multiply_channels(f, &q);
    }
    if (!plain && ts_is_contiguous(last_view(result)) && ts_cuda_window_product_fits(&q))
        return ts_cuda_multiply_windows(f, &q);
    ts_tensor *matrix = direct ? ts_view(to, sizes, 2)
                               : ts_empty_on(sizes, 2, ts_kernel_dtype(f), ts_kernel_device(f));
    TS_TRY(matrix);
    if (p.c.groups > 1 && p.windows.channels / p.c.groups <= FEW_CHANNELS) {
        p.windows.count = p.all;
        TS_TRY(ts_cuda_sum_windows(f, &p.windows, ts_kernel_data(weight),
                                   bias ? ts_kernel_data(bias) : NULL, channels / p.c.groups,
                                   ts_kernel_data(matrix)));
    } else {
        int64_t most = chunk_of(&p);
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
    ts_tensor *weight = i->weight, *bias = i->bias, *to = last_view(i->to);
    int item = (int)ts_dtype_size(ts_kernel_dtype(i->f));
    *done = false;
    if (c.groups == 1 || c.channels != c.groups || c.features != c.groups || !ts_numel(i->to) ||
        !ts_cuda_spreads(&c, item, (uintptr_t)ts_kernel_data(i->to) |
                                   (uintptr_t)ts_kernel_data(i->from)) || !ts_is_contiguous(to))
        return TS_OK;
    if (bias)
        TS_TRY(bias = dense(bias));
    int64_t taps = ts_numel(weight) / c.channels;
    weight = ts_view(dense(weight), (int64_t[]){c.channels, taps}, 2);
    TS_TRY(weight = dense(ts_transpose(weight, 0, 1)));
    if ((uintptr_t)ts_kernel_data(weight) % 16 || (bias && (uintptr_t)ts_kernel_data(bias) % 16))
        return TS_OK;
    *done = true;
    return ts_cuda_spread_channels(i->f, &c, ts_kernel_data(i->from), ts_kernel_data(weight),
                                   bias ? ts_kernel_data(bias) : NULL, ts_kernel_data(i->to));
}

/** Runs own kernels, form by form. */
static ts_status make_forms(void *context)
{
    images *i = context;
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
    ts_tensor *w = padded(f, dense(last_view(weight)), c->channels / c->groups);
    w = w ? ts_view(w, (int64_t[]){ts_size(w, 0), ts_numel(w) / ts_size(w, 0)}, 2) : NULL;
    int64_t more = w ? c->features - ts_size(w, 0) : 0;
    return more ? ts_pad(w, (int64_t[]){0, 0, 0, more}, 4, 0, ts_scalar_int(0)) : w;
}

/** Runs the call by cuDNN, if cuDNN is the faster engine. */
static ts_status make_by_cudnn(images *i, ts_cuda_cudnn *cudnn, const ts_convolution *c, bool *done)
{
    TS_SCOPE;
    ts_tensor *weight = weight_image(i->f, c, i->weight), *bias = i->bias ? dense(i->bias) : NULL;
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

/** Computes y with its epilogue, or with to_x the gradient of x, into result (N, C, ...). */
static ts_status make_images(ts_frame *f, ts_tensor *result, ts_tensor *from, ts_tensor *weight,
                             ts_tensor *bias, bool to_x, const ts_cuda_conv_after *after)
{
    TS_SCOPE;
    ts_tensor *to = last_view(result);
    TS_TRY(from = innermost(f, from));
    TS_TRY(to);
    if (after && !ts_is_contiguous(to))
        return fail_epilogue(f);
    ts_convolution c = ts_kernel_convolution(f);
    *(to_x ? &c.features : &c.channels) = ts_size(from, 1);
    ts_cuda_cudnn *cudnn =
        ts_cuda_cudnn_of(f, &c, to_x ? TS_CUDA_CONV_X : TS_CUDA_CONV_Y, bias != NULL,
                         number_of(after));
    bool there = (!cudnn && ts_dtype_size(ts_kernel_dtype(f)) != 2) || ts_is_contiguous(to),
         done = false;
    if (!there)
        to = ts_empty_on(ts_sizes(to), ts_ndim(to), ts_kernel_dtype(f), ts_kernel_device(f));
    TS_TRY(to = second_view(to));
    images all = {f, to, from, weight, bias, to_x, after};
    if (cudnn)
        TS_TRY(make_by_cudnn(&all, cudnn, &c, &done));
    if (!done)
        TS_TRY(make_forms(&all));
    return there ? TS_OK : ts_status_of_pointer(ts_copy_(result, to));
}

/* ------------------------------------------------------------------------------- weights ---- */

/** Returns the gradient of the weight (groups, rows, depth) over `count` windows from `first` on,
 *  by a matrix product. y: (windows, groups * rows). The product of all windows is p->into, if that
 *  is given and there is one group. */
static ts_tensor *weigh(product *p, ts_tensor *y, int64_t first, int64_t count)
{
    TS_SCOPE;
    int64_t groups = p->c.groups, rows = ts_size(y, 1) / groups;
    ts_tensor *windows = gathered(p, first, count), *w = NULL;
    y = ts_narrow(y, 0, first, count);
    if (groups == 1 && p->into && count == p->all) {
        ts_tensor *to = ts_view(p->into, (int64_t[]){rows, p->depth}, 2);
        TS_TRY_NULL(ts_mm_out(to, ts_transpose(y, 0, 1), windows));
        return ts_keep(ts_view(p->into, (int64_t[]){1, rows, p->depth}, 3));
    }
    if (groups == 1) {
        TS_TRY_NULL(ts_linear_backward(y, windows, TS_NONE, NULL, &w, NULL));
        return ts_keep(ts_view(w, (int64_t[]){1, rows, p->depth}, 3));
    }
    const int64_t order[] = {1, 2, 0};
    y = ts_permute(ts_view(y, (int64_t[]){count, groups, rows}, 3), order, 3);
    windows = ts_transpose(ts_view(windows, (int64_t[]){count, groups, p->depth}, 3), 0, 1);
    return ts_keep(ts_bmm(y, windows));
}

/** Returns the gradient of the weight over all windows without a matrix, for groups of few
 *  channels: (groups, rows, depth) in f32, or f64 for f64. */
static ts_tensor *weigh_few(product *p, ts_tensor *y)
{
    int64_t parts = (p->all + PART - 1) / PART, rows = p->c.features / p->c.groups;
    parts = parts < PARTS ? parts : PARTS;
    ts_dtype wide = ts_kernel_dtype(p->f) == TS_F64 ? TS_F64 : TS_F32;
    int64_t sizes[] = {parts, p->c.groups, rows, p->depth};
    ts_tensor *sums = ts_empty_on(sizes, 4, wide, ts_kernel_device(p->f));
    p->windows.count = p->all;
    if (!sums || ts_cuda_weigh_windows(p->f, &p->windows, ts_kernel_data(y), rows, parts,
                                       ts_kernel_data(sums)) != TS_OK)
        return NULL;
    return ts_sum_dim(sums, 0, false);
}

/** A tensor for the gradient of the weight in the order of p->into. */
static ts_tensor *weight_place(const product *p, const int64_t *sizes, int ndim)
{
    return p->into ? ts_view(p->into, sizes, ndim)
                   : ts_empty_on(sizes, ndim, ts_kernel_dtype(p->f), ts_kernel_device(p->f));
}

/** The same for one channel and one feature per group, in the frame's dtype. */
static ts_tensor *weigh_channels(product *p, ts_tensor *y)
{
    int64_t sizes[] = {p->windows.channels, p->taps};
    ts_tensor *to = weight_place(p, sizes, 2);
    if (!to)
        return NULL;
    ts_cuda_window_product q = {.windows = p->windows, .all = p->all, .rows = 1,
                                .other = ts_kernel_data(y), .to = ts_kernel_data(to)};
    q.windows.count = p->all;
    return ts_cuda_weigh_channels(p->f, &q) == TS_OK ? to : NULL;
}

/** Sets *w to the gradient of the weight over all windows by convolution_gemm.h, for bf16 and f16.
 *  y may have more features than the weight, because innermost() adds zeros. Sets *w to NULL and
 *  returns TS_OK if no kernel supports the windows. */
static ts_status weigh_in_place(product *p, ts_tensor *y, ts_tensor **w)
{
    int64_t sizes[] = {p->c.groups, ts_size(y, 1) / p->c.groups, p->depth};
    *w = NULL;
    if (p->windows.item != 2 || (p->c.groups == 1 && windows_are_pixels(p)) || sizes[1] % 8)
        return TS_OK;
    ts_tensor *to = weight_place(p, sizes, 3);
    TS_TRY(to);
    ts_cuda_window_product q = in_place(p, y, NULL, sizes[1], to);
    if (!ts_cuda_window_product_fits(&q))
        return TS_OK;
    *w = to;
    return ts_cuda_multiply_by_windows(p->f, &q);
}

/** Returns the gradient of the weight over all windows by own kernels: groups * rows * depth
 *  elements in this order. y: (windows, groups * rows). */
static ts_tensor *weigh_all(product *p, ts_tensor *y)
{
    TS_SCOPE;
    ts_tensor *w = NULL;
    TS_TRY_NULL(weigh_in_place(p, y, &w));
    if (w)
        return ts_keep(w);
    if (is_depthwise(p) && p->taps <= MOST_TAPS)
        return ts_keep(weigh_channels(p, y));
    if (p->c.groups > 1 && p->c.channels / p->c.groups <= FEW_CHANNELS && p->taps <= MOST_TAPS)
        return ts_keep(weigh_few(p, y));
    int64_t most = chunk_of(p);
    for (int64_t first = 0, count; first < p->all; first += count) {
        count = most < p->all - first ? most : p->all - first;
        ts_tensor *part = weigh(p, y, first, count);
        if (most < p->all && ts_kernel_dtype(p->f) != TS_F64)
            part = ts_to(part, TS_F32);
        TS_TRY_NULL(w = first ? ts_add_(w, part) : part);
    }
    return ts_keep(w);
}

/** A call of weigh_all() for a measurement. */
typedef struct weighing {
    product *p;
    ts_tensor *y;
} weighing;
static ts_status weigh_once(void *context)
{
    TS_SCOPE;
    weighing *w = context;
    return ts_status_of_pointer(weigh_all(w->p, w->y));
}

/** Sets *w to the gradient of the weight by cuDNN; leaves it unchanged if own kernels are the
 *  faster engine. y: (windows, features). */
static ts_status weigh_by_cudnn(product *p, ts_tensor *y, ts_tensor **w)
{
    ts_convolution c = p->c;
    c.channels = p->windows.channels, c.features = ts_size(y, 1);
    ts_cuda_cudnn *cudnn = ts_cuda_cudnn_of(p->f, &c, TS_CUDA_CONV_WEIGHT, false, 0);
    if (!cudnn)
        return TS_OK;
    int64_t sizes[] = {c.features, p->depth};
    ts_tensor *to = weight_place(p, sizes, 2);
    TS_TRY(to);
    bool done;
    weighing context = {p, y};
    const ts_cuda_conv_own own = {weigh_once, NULL, &context};
    const ts_cuda_conv_operands o = {ts_kernel_data(p->image), ts_kernel_data(to),
                                     ts_kernel_data(y), NULL};
    TS_TRY(ts_cuda_cudnn_run(p->f, cudnn, &o, &own, &done));
    *w = done ? to : NULL;
    return TS_OK;
}

static ts_status make_weight(ts_frame *f, ts_tensor *result, ts_tensor *x, ts_tensor *y)
{
    TS_SCOPE;
    product p;
    TS_TRY(x = innermost(f, x));
    TS_TRY(y = innermost(f, y));
    TS_TRY(open_product(&p, f, x, -1));
    if (!ts_numel(result))
        return TS_OK;
    if (!p.all)
        return ts_status_of_pointer((ts_fill_)(result, ts_scalar_int(0)));
    const ts_convolution *c = &p.c;
    int64_t channels = c->channels / c->groups, features = ts_size(y, 1);
    ts_tensor *w = NULL;
    TS_TRY(y = ts_view(last_view(y), (int64_t[]){p.all, features}, 2));
    if (features == c->features && p.windows.channels == c->channels &&
        ts_is_contiguous(last_view(result)) && (uintptr_t)ts_kernel_data(result) % 16 == 0)
        p.into = last_view(result);
    TS_TRY(weigh_by_cudnn(&p, y, &w));
    if (!w)
        TS_TRY(w = weigh_all(&p, y));
    int64_t sizes[5] = {features}, order[5] = {0, c->dims + 1};
    for (int d = 0; d < c->dims; d++) {
        sizes[1 + d] = c->kernel[3 - c->dims + d];
        order[2 + d] = 1 + d;
    }
    sizes[1 + c->dims] = p.windows.channels / c->groups;
    if (p.into && ts_kernel_data(w) == ts_kernel_data(p.into))
        return TS_OK;
    w = ts_permute(ts_view(w, sizes, c->dims + 2), order, c->dims + 2);
    return ts_status_of_pointer(
        ts_copy_(result, ts_narrow(ts_narrow(w, 0, 0, c->features), 1, 0, channels)));
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
        TS_TRY(make_weight(f, of[1], transposed ? grad : input, transposed ? input : grad));
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
