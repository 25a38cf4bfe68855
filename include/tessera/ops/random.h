/**
 * @file random.h  Dropout.
 * What holds for the family stands in generated.h.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_RANDOM_H
#define TESSERA_OPS_RANDOM_H

#include "../core.h"

TS_BEGIN_DECLS

/**
 * In training sets each element to 0 with probability p in [0, 1] and multiplies the others by
 * 1 / (1 - p); else, and for p = 0, an alias of x. No mask is kept: backward draws it again.
 */
TS_API ts_tensor *ts_dropout(ts_tensor *x, double p, bool train);
TS_API ts_tensor *ts_dropout_(ts_tensor *x, double p, bool train);
/** What dropout at the generator's state `at` did, done to grad. */
TS_API ts_tensor *ts_dropout_backward(ts_tensor *grad, double p, ts_rng_state at);

TS_END_DECLS
#endif
