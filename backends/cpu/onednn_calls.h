/** @file onednn_calls.h  Describes convolutions as calls of onednn.h and runs them. Included by
 * convolution.c only. "Without memory" is the first of two runs (scratch in chunks.h). */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_ONEDNN_CALLS_H
#define TS_BACKENDS_CPU_ONEDNN_CALLS_H

#include "backends/cpu/chunks.h"
#include "backends/cpu/onednn.h"

/** Describes a call whose windows read `from`, at positions of `to`, with up to two spatial dims.
 *  to_x: `to` is x and `from` y. The members about the weight and the bias stay 0. */
static ts_onednn_call onednn_call(const job *b, const image *from, const image *to, const axis *a,
                                  bool to_x)
{
    const ts_convolution *c = &b->c;
    ts_onednn_call call = {.batch = c->batch, .groups = c->groups,
                           .channels = (to_x ? c->features : c->channels) / c->groups,
                           .rows = (to_x ? c->channels : c->features) / c->groups,
                           .x = {from->n, from->c}, .y = {to->n, to->c}};
    for (int d = 0; d < 2; d++) {
        call.size[d] = from->size[d + 1];
        call.count[d] = a[d + 1].count;
        call.taps[d] = a[d + 1].taps;
        call.move[d] = a[d + 1].move;
        call.base[d] = a[d + 1].base;
        call.shift[d] = a[d + 1].shift;
        call.x[2 + d] = from->at[d + 1];
        call.y[2 + d] = to->at[d + 1];
    }
    return call;
}

/** True if onednn.h can describe the call: f32, up to two spatial dims, no empty operand. */
static bool suits_onednn(const job *b, const axis *a)
{
    const ts_convolution *c = &b->c;
    return b->dtype == TS_F32 && c->dims <= 2 && c->batch && c->channels && c->features &&
           a[0].taps == 1 && a[1].taps && a[2].taps && a[1].count && a[2].count &&
           c->size[1] && c->size[2];
}

/** Runs a call; without memory, finds its plan and its scratch size. Returns false if the library's
 *  kernels compute the call, true otherwise: also after a failure, which sets s->status. */
static bool run_onednn(job *b, const ts_onednn_call *call, const image *x, float *weight,
                       float *bias, const image *y, scratch *s)
{
    if (!s->allocated)
        s->status = ts_onednn_plan_of(call, &b->plan);
    if (!b->plan)
        return s->status != TS_OK;
    size_t used = s->used;
    char *memory = take(s, ts_onednn_scratch(b->plan));
    s->used = used;
    if (s->allocated && !ts_onednn_run(b->plan, (float *)(void *)x->data, weight, bias,
                                       (float *)(void *)y->data, memory))
        s->status = ts_error_memory("primitives of a convolution", 0);
    return true;
}

/** Computes y, or (to_x) x if all its positions have one form, as with stride 1. Returns false if
 *  the library's kernels compute the result. */
static bool make_image_by_onednn(job *b, bool to_x, scratch *s)
{
    const ts_convolution *c = &b->c;
    axis a[3];
    if (b->dtype != TS_F32 || (s->allocated && !b->plan) ||
        (to_x && ts_kernel_window_forms(b->frame) != 1))
        return false;
    ts_kernel_windows(b->frame, to_x ? 0 : -1, a);
    for (int d = 0; d < 3; d++)
        a[d] = forwards(a[d]);
    if (!suits_onednn(b, a))
        return false;
    ts_onednn_call call = onednn_call(b, to_x ? &b->y : &b->x, to_x ? &b->x : &b->y, a, to_x);
    weights w = weights_of(b, 0, a, to_x, false);
    float *weight = (float *)(void *)w.data;
    call.bias = b->bias != NULL;
    call.weight[0] = (c->features / c->groups) * b->weight->strides[0];
    call.weight[1] = w.row;
    call.weight[2] = w.column;
    for (int d = 0; d < 2; d++) {
        const axis *line = &a[d + 1];
        call.flip[d] = line->every < 0;
        call.weight[3 + d] = w.at[d + 1] * (call.flip[d] ? -line->every : line->every);
        weight += w.at[d + 1] *
                  (line->first + (call.flip[d] ? (line->taps - 1) * line->every : 0));
    }
    const image *from = to_x ? &b->y : &b->x, *to = to_x ? &b->x : &b->y;
    float *bias = b->bias ? (float *)(void *)b->bias->data : NULL;
    return run_onednn(b, &call, from, weight, bias, to, s);
}

/** Computes the gradient of the weight. Returns false if the library's kernels compute the
 *  gradient. */
static bool make_weight_by_onednn(job *b, scratch *s)
{
    axis a[3];
    if (b->dtype != TS_F32 || (s->allocated && !b->plan))
        return false;
    ts_kernel_windows(b->frame, -1, a);
    if (!suits_onednn(b, a) || a[1].shift < 1 || a[2].shift < 1)
        return false;
    ts_onednn_call call = onednn_call(b, &b->x, &b->y, a, false);
    weights w = weights_of(b, 0, a, false, false);
    call.result = TS_ONEDNN_WEIGHT;
    call.weight[0] = call.rows * b->weight->strides[0];
    call.weight[1] = w.row;
    call.weight[2] = w.column;
    call.weight[3] = w.at[1];
    call.weight[4] = w.at[2];
    return run_onednn(b, &call, &b->x, (float *)(void *)w.data, NULL, &b->y, s);
}

#endif
