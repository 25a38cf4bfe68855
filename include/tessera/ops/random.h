/**
 * @file random.h  Dropout. The section random of generated.h explains how random numbers are drawn.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_RANDOM_H
#define TESSERA_OPS_RANDOM_H

#include "../core.h"

TS_BEGIN_DECLS

/**
 * In training, sets each element of a floating x to 0 with probability p in [0, 1] and multiplies
 * the others by 1 / (1 - p). Otherwise, and for p = 0, returns an alias of x, of any dtype, and
 * draws nothing. No mask is stored: backward draws the same random numbers again. bf16 and f16 are
 * computed in f32. Errors: TS_ERR_VALUE (p), TS_ERR_DTYPE, TS_ERR_MEMORY.
 */
TS_API ts_tensor *ts_dropout(ts_tensor *x, double p, bool train);
/** ts_dropout() in place; returns x, unchanged where ts_dropout() returns an alias. */
TS_API ts_tensor *ts_dropout_(ts_tensor *x, double p, bool train);
/** Gradient of dropout: applies to grad the mask and scale of the forward call that drew from the
 *  generator at state `at`. */
TS_API ts_tensor *ts_dropout_backward(ts_tensor *grad, double p, ts_rng_state at);

TS_END_DECLS
#endif
