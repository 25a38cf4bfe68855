/**
 * @file one_tap.h
 * Convolutions of bf16 and f16 whose windows are single elements, and their gradients, as products
 * of matrices of halves. Widened copies of whole images would take longer than the products.
 * Included by convolution.c only.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_ONE_TAP_H
#define TS_BACKENDS_CPU_ONE_TAP_H

#include "backends/cpu/windows.h"
#include "include/tessera/ops.h"
#include "ops/kernel.h"

enum { ONE_TAP_FEW = 16 }; /* most channels of pixels that are too short for tiles */

/** True if each position reads one element of each channel, inside the image. */
static bool has_one_tap(const ts_convolution *c)
{
    for (int d = 0; d < 3; d++)
        if (c->kernel[d] != 1 || c->padding[d] || (c->y_size[d] - 1) * c->stride[d] >= c->size[d])
            return false;
    return c->groups == 1 && !c->transposed && c->batch && c->channels && c->features;
}

/** The elements of x that positions read: (batch, channels, y_size). */
static ts_tensor *read_elements(ts_tensor *x, const ts_convolution *c)
{
    for (int d = 0; d < c->dims; d++) {
        int at = 3 - c->dims + d;
        int64_t end = (c->y_size[at] - 1) * c->stride[at] + 1;
        if (c->stride[at] > 1 || end < x->sizes[2 + d])
            x = ts_slice(x, 2 + d, 0, end, c->stride[at]);
    }
    return x;
}

/** An image (batch, channels, ...) as a matrix with a row per position. */
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

static int64_t positions_of(const ts_convolution *c)
{
    return c->batch * c->y_size[0] * c->y_size[1] * c->y_size[2];
}

/** True if a forward call of bf16 is a product of matrices: elements are skipped, so tiles would
 *  read lines that nothing needs, or pixels have few channels, so tiles would be short. */
static bool suits_one_tap(const ts_convolution *c, const ts_tensor *y)
{
    int64_t step = c->stride[0] * c->stride[1] * c->stride[2];
    return has_one_tap(c) && (step > 1 || (y->strides[1] == 1 && c->channels <= ONE_TAP_FEW));
}

/** convolution() of a call for which has_one_tap() is true. */
static ts_status make_one_tap(ts_frame *f, const ts_convolution *c)
{
    ts_tensor *bias = f->args[2].tag == TS_TAG_TENSOR ? f->args[2].t : TS_NONE, *out = f->rets[0].t;
    const int64_t matrix[] = {c->features, c->channels};
    TS_SCOPE;
    ts_tensor *x = position_rows(read_elements(f->args[0].t, c), positions_of(c)),
              *weight = ts_reshape(f->args[1].t, matrix, 2);
    if (out->strides[1] == 1) {
        ts_tensor *y = position_rows(out, positions_of(c));
        if (y && y->data == out->data) /* a view */
            return TS_STATUS_OF(ts_linear_out(y, x, weight, bias));
    }
    return TS_STATUS_OF(ts_copy_(out, image_of_rows(ts_linear(x, weight, bias), out)));
}

/** Stores the gradient of x, given by its rows, in `to`. */
static ts_status store_positions(ts_tensor *to, const ts_convolution *c, ts_tensor *rows)
{
    ts_tensor *read = read_elements(to, c);
    if (read != to)
        TS_TRY(ts_zero_(to));
    return TS_STATUS_OF(ts_copy_(read, image_of_rows(rows, read)));
}

/** convolution_backward() of a call for which has_one_tap() is true. */
static ts_status grad_one_tap(ts_frame *f, const ts_convolution *c)
{
    static const int64_t dims[] = {0, 2, 3, 4};
    ts_tensor *grad = f->args[0].t, *weight = f->args[2].t, *to[3];
    const int64_t matrix[] = {c->features, c->channels};
    int64_t positions = positions_of(c);
    TS_SCOPE;
    for (int i = 0; i < 3; i++)
        to[i] = f->rets[i].tag == TS_TAG_TENSOR ? f->rets[i].t : NULL;
    ts_tensor *y = position_rows(grad, positions);
    if (to[0])
        TS_TRY(store_positions(to[0], c, ts_mm(y, ts_reshape(weight, matrix, 2))));
    if (to[1]) {
        ts_tensor *x = position_rows(read_elements(f->args[1].t, c), positions);
        TS_TRY(ts_copy_(to[1], ts_reshape(ts_mm(ts_t(y), x), to[1]->sizes, to[1]->ndim)));
    }
    return to[2] ? TS_STATUS_OF(ts_sum_out(to[2], grad, dims, grad->ndim - 1, false)) : TS_OK;
}

#endif
