/**
 * @file one_tap.h
 * Convolutions of bf16 whose windows are single elements, and the gradients of such convolutions of
 * bf16 and f16, as products of matrices of halves. Widened copies of whole images would take longer
 * than the products. Included by convolution.c only. Tensors that the functions return belong to
 * the current scope, and are NULL after an error.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_ONE_TAP_H
#define TS_BACKENDS_CPU_ONE_TAP_H

#include "backends/cpu/copy.h"
#include "backends/cpu/windows.h"
#include "include/tessera/ops.h"
#include "ops/kernel.h"

enum { ONE_TAP_FEW = 16 }; /* most channels of pixels that are too short for window_tiles.h */

/** True if each position of y reads one element of each channel of x, inside the image, and there
 *  is one group. False for transposed and for empty convolutions. */
static bool has_one_tap(const ts_convolution *c)
{
    for (int d = 0; d < 3; d++)
        if (c->kernel[d] != 1 || c->padding[d] || (c->y_size[d] - 1) * c->stride[d] >= c->size[d])
            return false;
    return c->groups == 1 && !c->transposed && c->batch && c->channels && c->features;
}

/** A view of the elements of x that positions of y read: (batch, channels, y_size). NULL without
 *  memory. */
static ts_tensor *read_elements(ts_tensor *x, const ts_convolution *c)
{
    for (int d = 0; d < c->dims && x; d++) {
        int at = 3 - c->dims + d;
        int64_t end = (c->y_size[at] - 1) * c->stride[at] + 1;
        if (c->stride[at] > 1 || end < x->sizes[2 + d])
            x = ts_slice(x, 2 + d, 0, end, c->stride[at]);
    }
    return x;
}

/** An image (batch, channels, ...) as a matrix (rows, channels), one row per position: a view if
 *  the strides allow, else a copy. */
static ts_tensor *position_rows(ts_tensor *image, int64_t rows)
{
    int64_t order[5] = {0}, sizes[2] = {rows, image ? image->sizes[1] : 0};
    int n = image ? image->ndim : 0;
    for (int d = 2; d < n; d++)
        order[d - 1] = d;
    order[n ? n - 1 : 0] = 1;
    return ts_reshape(ts_permute(image, order, n), sizes, 2);
}

/** The inverse of position_rows(): an image of the sizes of `like`. */
static ts_tensor *image_of_rows(ts_tensor *rows, const ts_tensor *like)
{
    int n = like ? like->ndim : 2;
    int64_t order[5] = {0, n - 1}, sizes[5] = {0};
    if (like) {
        memcpy(sizes, like->sizes, sizeof *sizes);
        memcpy(sizes + 1, like->sizes + 2, (size_t)(n - 2) * sizeof *sizes);
        sizes[n - 1] = like->sizes[1];
    }
    for (int d = 2; d < n; d++)
        order[d] = d - 1;
    return ts_permute(ts_reshape(rows, sizes, n), order, n);
}

/** Number of positions of y in the batch. */
static int64_t positions_of(const ts_convolution *c)
{
    return c->batch * c->y_size[0] * c->y_size[1] * c->y_size[2];
}

/** True if a forward call of bf16 is computed by make_one_tap() instead of window_tiles.h: with a
 *  stride, for which tiles would load cache lines that no window needs, or in channels-last with
 *  few channels, whose tiles would be short. */
static bool suits_one_tap(const ts_convolution *c, const ts_tensor *y)
{
    int64_t step = c->stride[0] * c->stride[1] * c->stride[2];
    return has_one_tap(c) && (step > 1 || (y->strides[1] == 1 && c->channels <= ONE_TAP_FEW));
}

/** Runs a call of convolution for which has_one_tap() is true. */
static ts_status make_one_tap(ts_frame *f, const ts_convolution *c)
{
    ts_tensor *bias = f->args[2].tag == TS_TAG_TENSOR ? f->args[2].t : TS_NONE, *out = f->rets[0].t;
    const int64_t matrix[] = {c->features, c->channels};
    TS_SCOPE;
    ts_tensor *x = position_rows(read_elements(f->args[0].t, c), positions_of(c)),
              *weight = ts_reshape(f->args[1].t, matrix, 2);
    if (out->strides[1] == 1 && !f->given) {
        ts_tensor *y = position_rows(out, positions_of(c));
        if (y && y->data == out->data) /* a view */
            return TS_STATUS_OF(ts_linear_out(y, x, weight, bias));
    }
    ts_tensor *image = image_of_rows(ts_linear(x, weight, bias), out);
    if (image)
        ts_cpu_copy_to(out, image);
    return TS_STATUS_OF(image);
}

/** Runs a call of convolution_backward for which has_one_tap() is true. Writes results only after
 * all calls that may fail. */
static ts_status grad_one_tap(ts_frame *f, const ts_convolution *c)
{
    static const int64_t dims[] = {0, 2, 3, 4}, still[TS_MAX_DIMS];
    static const uint16_t zero;
    const int64_t matrix[] = {c->features, c->channels};
    ts_tensor *grad = f->args[0].t, *weight = f->args[2].t, *to[3], *made[3] = {NULL}, *read = NULL;
    TS_KEEP_MODES; /* in an autocast region the calls below would be cast */
    f->thread->exclude |= TS_KEYSET(TS_KEY_AUTOCAST);
    TS_SCOPE;
    for (int i = 0; i < 3; i++)
        to[i] = f->rets[i].tag == TS_TAG_TENSOR ? f->rets[i].t : NULL;
    ts_tensor *y = position_rows(grad, positions_of(c));
    if (to[0]) {
        TS_TRY(read = read_elements(to[0], c));
        TS_TRY(made[0] = image_of_rows(ts_mm(y, ts_reshape(weight, matrix, 2)), read));
    }
    if (to[1]) {
        ts_tensor *x = position_rows(read_elements(f->args[1].t, c), positions_of(c));
        TS_TRY(made[1] = ts_reshape(ts_mm(ts_t(y), x), to[1]->sizes, to[1]->ndim));
    }
    if (to[2])
        TS_TRY(made[2] = ts_sum_dims(grad, dims, grad->ndim - 1, false));
    if (to[0] && read != to[0])
        TS_V(ts_cpu_copy_part)(to[0]->data, to[0]->strides, (ts_dtype)to[0]->dtype,
                               (const char *)&zero, still, (ts_dtype)to[0]->dtype, to[0]->sizes,
                               to[0]->ndim);
    for (int i = 0; i < 3; i++)
        if (to[i])
            ts_cpu_copy_to(i ? to[i] : read, made[i]);
    return TS_OK;
}

#endif
