/**
 * @file weight.c
 * The gradient of the weight of a convolution: a sum over all windows, which is added up over
 * chunks or parts.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/convolution/product.h"
#include "backends/cuda/convolution/cudnn.h"
#include "backends/cuda/convolution/depthwise.h"

enum {
    PART = 8192,      /* windows per part of ts_cuda_weigh_windows(); more with PARTS parts */
    PARTS = 64,       /* maximum number of parts */
    MOST_TAPS = 65535 /* maximum taps for ts_cuda_weigh_windows() */
};

/** Returns the gradient of the weight (groups, rows, depth) over `count` windows from `first` on,
 *  by a matrix product. y: (windows, groups * rows). The product of all windows is p->into, if that
 *  is given and there is one group. */
static ts_tensor *weigh(ts_cuda_conv_product *p, ts_tensor *y, int64_t first, int64_t count)
{
    TS_SCOPE;
    int64_t groups = p->c.groups, rows = ts_size(y, 1) / groups;
    ts_tensor *windows = ts_cuda_conv_gathered(p, first, count), *w = NULL;
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
static ts_tensor *weigh_few(ts_cuda_conv_product *p, ts_tensor *y)
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
static ts_tensor *weight_place(const ts_cuda_conv_product *p, const int64_t *sizes, int ndim)
{
    return p->into ? ts_view(p->into, sizes, ndim)
                   : ts_empty_on(sizes, ndim, ts_kernel_dtype(p->f), ts_kernel_device(p->f));
}

/** The same for one channel and one feature per group, in the frame's dtype. */
static ts_tensor *weigh_channels(ts_cuda_conv_product *p, ts_tensor *y)
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

/** Sets *w to the gradient of the weight over all windows by gemm.h, for bf16 and f16.
 *  y may have more features than the weight, because ts_cuda_conv_innermost() adds zeros. Sets *w
 *  to NULL and returns TS_OK if no kernel supports the windows. */
static ts_status weigh_in_place(ts_cuda_conv_product *p, ts_tensor *y, ts_tensor **w)
{
    int64_t sizes[] = {p->c.groups, ts_size(y, 1) / p->c.groups, p->depth};
    *w = NULL;
    if (p->windows.item != 2 || (p->c.groups == 1 && ts_cuda_conv_of_pixels(p)) || sizes[1] % 8)
        return TS_OK;
    ts_tensor *to = weight_place(p, sizes, 3);
    TS_TRY(to);
    ts_cuda_window_product q = ts_cuda_conv_in_place(p, y, NULL, sizes[1], to);
    if (!ts_cuda_window_product_fits(&q))
        return TS_OK;
    *w = to;
    return ts_cuda_multiply_by_windows(p->f, &q);
}

/** Returns the gradient of the weight over all windows by own kernels: groups * rows * depth
 *  elements in this order. y: (windows, groups * rows). */
static ts_tensor *weigh_all(ts_cuda_conv_product *p, ts_tensor *y)
{
    TS_SCOPE;
    ts_tensor *w = NULL;
    TS_TRY_NULL(weigh_in_place(p, y, &w));
    if (w)
        return ts_keep(w);
    if (ts_cuda_conv_is_depthwise(p) && p->taps <= MOST_TAPS)
        return ts_keep(weigh_channels(p, y));
    if (p->c.groups > 1 && p->c.channels / p->c.groups <= TS_CUDA_CONV_FEW && p->taps <= MOST_TAPS)
        return ts_keep(weigh_few(p, y));
    int64_t most = ts_cuda_conv_chunk(p);
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
    ts_cuda_conv_product *p;
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
static ts_status weigh_by_cudnn(ts_cuda_conv_product *p, ts_tensor *y, ts_tensor **w)
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

/** A call of ts_cuda_few_weigh() for a measurement. */
typedef struct few_weighing {
    ts_frame *f;
    const ts_cuda_few *few;
} few_weighing;
static ts_status weigh_few_once(void *context)
{
    const few_weighing *w = context;
    return ts_cuda_few_weigh(w->f, w->few);
}

/** Computes the gradient of the weight by cuDNN, if it is faster than the kernels for few channels.
 *  x and y: dense (N, ..., C). */
static ts_status weigh_few_by_cudnn(const ts_cuda_few *few, ts_frame *f, ts_tensor *result,
                                    ts_tensor *x, ts_tensor *y, bool *done)
{
    TS_SCOPE;
    const ts_convolution c = ts_kernel_convolution(f);
    ts_cuda_cudnn *cudnn = ts_cuda_cudnn_of(f, &c, TS_CUDA_CONV_WEIGHT, false, 0);
    *done = false;
    if (!cudnn)
        return TS_OK;
    ts_tensor *last = ts_cuda_conv_last(result), *to = last;
    TS_TRY(last);
    if (!ts_is_contiguous(last) || (uintptr_t)ts_kernel_data(last) % 16)
        TS_TRY(to = ts_empty_on(ts_sizes(last), ts_ndim(last), ts_kernel_dtype(f),
                                ts_kernel_device(f)));
    few_weighing context = {f, few};
    const ts_cuda_conv_own own = {weigh_few_once, NULL, &context};
    const ts_cuda_conv_operands o = {ts_kernel_data(x), ts_kernel_data(to), ts_kernel_data(y),
                                     NULL};
    TS_TRY(ts_cuda_cudnn_run(f, cudnn, &o, &own, done));
    return *done && to != last ? ts_status_of_pointer(ts_copy_(last, to)) : TS_OK;
}

/** Computes the gradient of the weight by the kernels for few channels or by cuDNN, without copies
 *  padded to 8 channels, if x or y has few channels and the former support the call. */
static ts_status weigh_few_channels(ts_frame *f, ts_tensor *result, ts_tensor *x, ts_tensor *y,
                                    bool *done)
{
    TS_SCOPE;
    ts_cuda_few few;
    ts_cuda_conv_product p;
    bool of_x = ts_cuda_conv_is_few(f, x, result, -1, 0);
    *done = false;
    if (!of_x && !ts_cuda_conv_is_few(f, y, result, 0, 0))
        return TS_OK;
    TS_TRY(ts_cuda_conv_open_few(&few, &p, f, of_x ? x : y, result, of_x ? -1 : 0));
    ts_tensor *other = ts_cuda_conv_dense(ts_cuda_conv_last(of_x ? y : x));
    TS_TRY(other);
    few.other = ts_kernel_data(other);
    if (!ts_cuda_few_fits(&few))
        return TS_OK;
    TS_TRY(weigh_few_by_cudnn(&few, f, result, of_x ? p.image : other, of_x ? other : p.image,
                              done));
    if (*done)
        return TS_OK;
    *done = true;
    return ts_cuda_few_weigh(f, &few);
}

ts_status ts_cuda_conv_weigh(ts_frame *f, ts_tensor *result, ts_tensor *x, ts_tensor *y)
{
    TS_SCOPE;
    ts_cuda_conv_product p;
    bool done;
    TS_TRY(weigh_few_channels(f, result, x, y, &done));
    if (done)
        return TS_OK;
    int64_t each = ts_size(x, 1) / ts_kernel_convolution(f).groups;
    TS_TRY(x = ts_cuda_conv_innermost(f, x, each));
    TS_TRY(y = ts_cuda_conv_innermost(f, y, each));
    TS_TRY(ts_cuda_conv_open(&p, f, x, -1));
    if (!ts_numel(result))
        return TS_OK;
    if (!p.all)
        return ts_status_of_pointer((ts_fill_)(result, ts_scalar_int(0)));
    const ts_convolution *c = &p.c;
    int64_t groups = c->groups, rows = c->features / groups, features = ts_size(y, 1);
    ts_tensor *w = NULL;
    TS_TRY(y = ts_view(ts_cuda_conv_last(y), (int64_t[]){p.all, features}, 2));
    if (features == c->features && p.windows.channels == c->channels &&
        ts_is_contiguous(ts_cuda_conv_last(result)) && (uintptr_t)ts_kernel_data(result) % 16 == 0)
        p.into = ts_cuda_conv_last(result);
    TS_TRY(weigh_by_cudnn(&p, y, &w));
    if (!w)
        TS_TRY(w = weigh_all(&p, y));
    if (p.into && ts_kernel_data(w) == ts_kernel_data(p.into))
        return TS_OK;
    int64_t sizes[6] = {groups, features / groups}, order[6] = {0, 1, c->dims + 2};
    for (int d = 0; d < c->dims; d++) {
        sizes[2 + d] = c->kernel[3 - c->dims + d];
        order[3 + d] = 2 + d;
    }
    sizes[2 + c->dims] = p.windows.channels / groups;
    w = ts_permute(ts_view(w, sizes, c->dims + 3), order, c->dims + 3);
    w = ts_narrow(ts_narrow(w, 1, 0, rows), 2, 0, c->channels / groups);
    return ts_status_of_pointer(
        ts_copy_(ts_unflatten(result, 0, (int64_t[]){groups, rows}, 2), w));
}
