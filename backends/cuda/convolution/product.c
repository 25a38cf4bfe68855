/** @file product.c  Layouts of images, and products over the windows of an image. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/convolution/product.h"

#define CHUNK_BYTES ((int64_t)256 << 20) /* maximum size of a chunk of more than one window */

ts_tensor *ts_cuda_conv_last(ts_tensor *t)
{
    int64_t order[5] = {0};
    int n = ts_ndim(t);
    for (int d = 1; d < n; d++)
        order[d] = d + 1;
    order[n - 1] = 1;
    return ts_permute(t, order, n);
}

ts_tensor *ts_cuda_conv_second(ts_tensor *t)
{
    int64_t order[5] = {0};
    int n = ts_ndim(t);
    order[1] = n - 1;
    for (int d = 2; d < n; d++)
        order[d] = d - 1;
    return ts_permute(t, order, n);
}

ts_tensor *ts_cuda_conv_padded(ts_frame *f, ts_tensor *t, int64_t size)
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

ts_tensor *ts_cuda_conv_innermost(ts_frame *f, ts_tensor *t, int64_t each)
{
    const ts_convolution c = ts_kernel_convolution(f);
    ts_tensor *last = ts_cuda_conv_dense(ts_cuda_conv_last(t));
    int64_t mine = ts_size(t, 1) / c.groups, padded = (mine + 7) / 8 * 8, sizes[TS_MAX_DIMS];
    bool taps = c.kernel[0] > 1 || c.kernel[1] > 1 || c.kernel[2] > 1;
    if (last && ts_dtype_size(ts_kernel_dtype(f)) == 2 && padded > mine &&
        (c.groups == 1 || (each > TS_CUDA_CONV_FEW && taps))) {
        int n = ts_ndim(last);
        for (int d = 0; d < n; d++)
            sizes[d] = ts_size(last, d);
        sizes[n - 1] = padded * c.groups;
        int64_t pixels = ts_numel(last) / (mine * c.groups);
        last = ts_view(last, (int64_t[]){pixels, c.groups, mine}, 3);
        last = ts_cuda_conv_padded(f, last, padded);
        last = last ? ts_view(last, sizes, n) : NULL;
    }
    return last ? ts_cuda_conv_second(last) : NULL;
}

ts_status ts_cuda_conv_open(ts_cuda_conv_product *p, ts_frame *f, ts_tensor *from, int64_t form)
{
    ts_convolution c = ts_kernel_convolution(f);
    *p = (ts_cuda_conv_product){.f = f, .c = c, .image = ts_cuda_conv_last(from)};
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

int64_t ts_cuda_conv_chunk(const ts_cuda_conv_product *p)
{
    int64_t bytes = p->depth * p->c.groups * p->windows.item;
    int64_t most = bytes ? CHUNK_BYTES / bytes : p->all;
    return most < 1 ? 1 : most < p->all ? most : p->all;
}

bool ts_cuda_conv_of_pixels(const ts_cuda_conv_product *p)
{
    bool same = p->taps == 1;
    for (int d = 0; d < 3; d++) {
        const ts_window_axis *a = &p->windows.axis[d];
        same = same && a->count == p->windows.size[d] && a->base == 0 &&
               (a->move == 1 || a->count == 1);
    }
    return same;
}

ts_tensor *ts_cuda_conv_gathered(ts_cuda_conv_product *p, int64_t first, int64_t count)
{
    int64_t sizes[] = {count, p->c.groups * p->depth};
    if (ts_cuda_conv_of_pixels(p))
        return ts_narrow(ts_view(p->image, (int64_t[]){p->all, sizes[1]}, 2), 0, first, count);
    ts_tensor *to = ts_empty_on(sizes, 2, ts_kernel_dtype(p->f), ts_kernel_device(p->f));
    p->windows.first = first;
    p->windows.count = count;
    return to && ts_cuda_gather_windows(p->f, &p->windows, ts_kernel_data(to)) == TS_OK ? to : NULL;
}

bool ts_cuda_conv_is_depthwise(const ts_cuda_conv_product *p)
{
    return p->c.groups > 1 && p->c.channels == p->c.groups && p->c.features == p->c.groups;
}

ts_cuda_window_product ts_cuda_conv_in_place(const ts_cuda_conv_product *p, ts_tensor *other,
                                             ts_tensor *bias, int64_t rows, ts_tensor *to)
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

bool ts_cuda_conv_is_few(ts_frame *f, ts_tensor *from, ts_tensor *weight, int64_t form,
                         int64_t most)
{
    int64_t rows = ts_size(weight, form >= 0), plane = ts_size(weight, 0) * ts_size(weight, 1);
    return ts_dtype_size(ts_kernel_dtype(f)) == 2 && ts_kernel_convolution(f).groups == 1 &&
           ts_size(from, 1) < 8 && ts_numel(from) && ts_numel(weight) && rows % 8 == 0 &&
           (ts_numel(weight) > plane || rows <= most) &&
           (form < 0 || ts_kernel_window_forms(f) == 1);
}

ts_status ts_cuda_conv_open_few(ts_cuda_few *few, ts_cuda_conv_product *p, ts_frame *f,
                                ts_tensor *from, ts_tensor *weight, int64_t form)
{
    TS_TRY(from = ts_cuda_conv_dense(ts_cuda_conv_last(from)));
    TS_TRY(from = ts_cuda_conv_second(from));
    TS_TRY(ts_cuda_conv_open(p, f, from, form));
    const int64_t *steps = ts_strides(weight);
    *few = (ts_cuda_few){.windows = p->windows, .all = p->all,
                         .rows = form < 0 ? p->c.features : p->c.channels,
                         .step = {steps[form >= 0], steps[form < 0]}};
    int64_t first = 0;
    for (int d = 0; d < p->c.dims; d++) {
        const ts_window_axis *a = &p->windows.axis[3 - p->c.dims + d];
        first += a->first * steps[2 + d];
        if (d + 2 >= p->c.dims) /* few.h has the last two dims */
            few->step[4 - p->c.dims + d] = a->every * steps[2 + d];
    }
    few->weight = (char *)ts_kernel_data(weight) + first * p->windows.item;
    return TS_OK;
}
