/**
 * @file onednn.h
 * oneDNN as a second engine for f32 convolutions: the shared library libdnnl.so.2, opened at run
 * time. onednn_calls.h gets a plan for a call (ts_onednn_plan_of()), asks for its scratch size and
 * runs it; convolution.c releases the plan.
 *
 * Each call of a primitive (an operation of oneDNN for fixed shapes and layouts) runs on one
 * thread. The thread pool of core/parallel.h runs the parts of a convolution, whose number and
 * sizes depend only on sizes and strides, so results do not depend on the number of threads.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_ONEDNN_H
#define TS_BACKENDS_CPU_ONEDNN_H

#include "core/error.h"

/** What a primitive computes. */
typedef enum ts_onednn_result { TS_ONEDNN_Y, TS_ONEDNN_WEIGHT } ts_onednn_result;

/**
 * A convolution of f32 with two spatial dims: y = x * weight + bias, or the gradient of the weight
 * from x and y. In a call that computes the gradient of the convolution's input, x is the gradient
 * of its result and y the gradient of its input. Position i along dim d reads elements
 * i move[d] + base[d] + j shift[d] of x, one for each tap j; shift is positive. Strides are in
 * elements. All members are int64_t, so calls can be compared as bytes.
 */
typedef struct ts_onednn_call {
    int64_t result;                         /* ts_onednn_result */
    int64_t batch, groups, channels, rows;  /* channels, rows: channels of x and y per group */
    int64_t size[2], count[2], taps[2];     /* sizes of x, of y and of the kernel */
    int64_t move[2], base[2], shift[2];
    int64_t x[4], y[4];                     /* strides of batch, channels and spatial dims */
    int64_t weight[5];                      /* strides of groups, rows, channels and taps */
    int64_t flip[2];                        /* 1: tap j is the weight's tap taps - 1 - j; always 0
                                               for TS_ONEDNN_WEIGHT */
    int64_t bias;                           /* 1: there is a bias */
} ts_onednn_call;

/** The primitives of a call. */
typedef struct ts_onednn_plan ts_onednn_plan;

/**
 * Sets *plan to the primitives of a call. *plan is NULL if the library's own kernels compute the
 * call: TS_CPU_CONV=own, deterministic mode, the baseline variant, no usable oneDNN 2, a call that
 * oneDNN does not support, or (unless TS_CPU_CONV=onednn) one for which it is likely slower.
 * Plans are cached; the caller returns a plan by ts_onednn_release(), after which the cache may
 * drop it. Errors: TS_ERR_MEMORY.
 */
ts_status ts_onednn_plan_of(const ts_onednn_call *call, ts_onednn_plan **plan);
/** Returns a plan, which must not be NULL, to the cache. */
void ts_onednn_release(ts_onednn_plan *plan);
/** Bytes of scratch memory that a plan needs with the current number of threads, which must be the
 *  same in ts_onednn_run(). */
int64_t ts_onednn_scratch(const ts_onednn_plan *plan);
/** Computes the result on the thread pool: y, or with TS_ONEDNN_WEIGHT the gradient of the weight.
 *  bias: dense, or NULL. scratch: ts_onednn_scratch() bytes. Returns false if oneDNN failed, which
 *  happens only if memory is short. */
bool ts_onednn_run(const ts_onednn_plan *plan, float *x, float *weight, float *bias, float *y,
                   char *scratch);

/** Registers the lock of the cache, which a fork takes. */
void ts_onednn_install(void);

#endif
