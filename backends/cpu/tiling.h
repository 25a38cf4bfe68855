/** @file tiling.h  Ways to run a pointwise loop over an iteration space (ts_iter), shared by
 * loops.c, tiling.c and copy.c. A run is the elements along dim 0, the innermost. cost: approximate
 * cycles per element; determines when to use threads. */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_TILING_H
#define TS_BACKENDS_CPU_TILING_H

#include "backends/cpu/loops.h"

/** Runs a loop over any iteration space, run by run. In loops.c. */
void ts_cpu_run_each(const ts_iter *it, ts_loop loop, const void *params, int cost);
/** Runs a loop over a space whose result is dense along dim 0, while one to three of its other
 *  operands are dense along an outer dim, the same for all of them, and the rest are dense or
 *  broadcast along dim 0. Tiles of those one to three operands are transposed into contiguous
 *  memory. Requires it->items. Returns false, and runs nothing, for any other space, and if one of
 *  the two dims has fewer than 4 elements. */
bool ts_cpu_run_tiles(const ts_iter *it, ts_loop loop, const void *params, int cost);

#endif
