/**
 * @file onednn.h
 * oneDNN as a second engine for f32 convolutions: Debian's libdnnl2, opened at run time.
 *
 * Each call of a primitive runs on one thread. The thread pool of core/parallel.h runs the parts of
 * a convolution, whose number and sizes depend only on the shape, so results do not depend on the
 * number of threads.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_ONEDNN_H
#define TS_BACKENDS_CPU_ONEDNN_H

#include "core/error.h"

/** What a primitive computes. */
typedef enum ts_onednn_result { TS_ONEDNN_Y, TS_ONEDNN_WEIGHT } ts_onednn_result;

/**
 * A convolution of f32 with two spatial dims: y = x * weight + bias, or the gradient of the weight
 * from x and y. Position i along dim d reads elements i move[d] + base[d] + j shift[d] of x, one
 * for each tap j; shift is positive. Strides are in elements. All members are int64_t, so calls can
 * be compared as bytes.
 */
typedef struct ts_onednn_call {
    int64_t result;                         /* ts_onednn_result */
    int64_t batch, groups, channels, rows;  /* channels of x and of y per group */
    int64_t size[2], count[2], taps[2];     /* sizes of x and y; taps */
    int64_t move[2], base[2], shift[2];
    int64_t x[4], y[4];                     /* strides of batch, channels and spatial dims */
    int64_t weight[5];                      /* of groups, rows, channels and taps */
    int64_t flip[2];                        /* 1: tap j is the weight's tap taps - 1 - j; for y */
    int64_t bias;                           /* 1: there is a bias */
} ts_onednn_call;

/** The primitives of a call. */
typedef struct ts_onednn_plan ts_onednn_plan;

/**
 * Sets *plan to the primitives of a call; NULL if the library's own kernels compute it, because
 * oneDNN is not installed, not wanted, does not support the call, or is slower. Plans of earlier
 * calls are kept. The caller returns the plan by ts_onednn_release().
 * Errors: TS_ERR_MEMORY.
 */
ts_status ts_onednn_plan_of(const ts_onednn_call *call, ts_onednn_plan **plan);
void ts_onednn_release(ts_onednn_plan *plan);
/** Bytes of scratch memory that a plan needs with the current number of threads. */
int64_t ts_onednn_scratch(const ts_onednn_plan *plan);
/** Computes the result: y, or with TS_ONEDNN_WEIGHT the gradient of the weight. bias: dense, or
 *  NULL. Returns false if oneDNN failed, which it does only without memory. */
bool ts_onednn_run(const ts_onednn_plan *plan, float *x, float *weight, float *bias, float *y,
                   char *scratch);

/** Registers the lock of the plans. */
void ts_onednn_install(void);

#endif
