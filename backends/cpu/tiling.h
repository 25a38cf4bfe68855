/** @file tiling.h  Ways to run a loop over an iteration space. */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_TILING_H
#define TS_BACKENDS_CPU_TILING_H

#include "backends/cpu/loops.h"

/** Runs a loop over any iteration space, run by run. In loops.c. */
void ts_cpu_run_each(const ts_iter *it, ts_loop loop, const void *params, int cost);
/** Runs a loop over a space whose result is dense along dim 0 and some of whose other operands are
 *  dense along one outer dim: tiles of these operands are transposed into contiguous memory.
 *  it->items are set. Returns false, and runs nothing, if the space is of another kind. */
bool ts_cpu_run_tiles(const ts_iter *it, ts_loop loop, const void *params, int cost);

#endif
