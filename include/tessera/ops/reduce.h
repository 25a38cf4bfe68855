/** @file reduce.h  Reductions over dims. */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_REDUCE_H
#define TESSERA_OPS_REDUCE_H

#include "../core.h"

TS_BEGIN_DECLS

/** Sums t over the dims that broadcasting from `sizes` would have added or stretched. */
TS_API ts_tensor *ts_sum_to_size(ts_tensor *t, const int64_t *sizes, int ndim);

TS_END_DECLS
#endif
