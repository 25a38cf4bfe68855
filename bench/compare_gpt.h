/**
 * @file compare_gpt.h  A training step of a GPT: of libcompare, which bench/compare.py loads, and
 * of bench/study.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BENCH_COMPARE_GPT_H
#define TS_BENCH_COMPARE_GPT_H

#include "tessera/tessera.h"

typedef struct compare_gpt compare_gpt;

/** dims: B, T, C, H, L, V, and 1 for a forward under autocast to bf16. values: one array a
 *  parameter, or NULL for random weights and data. NULL after an error. */
TS_API compare_gpt *compare_gpt_new(const int64_t *dims, double dropout,
                                    const float *const *values, const int64_t *tokens,
                                    const int64_t *targets);
/** From now on the step is a compiled function, with graph a graph of the device, with replay
 *  without a run of the C code. recompute: as in ts_compile_opts. */
TS_API int compare_gpt_compile(compare_gpt *g, bool graph, bool replay, int64_t recompute);
TS_API void compare_gpt_free(compare_gpt *g);
/** Queues one step and does not read its loss. */
TS_API ts_status compare_gpt_step(compare_gpt *g);
/** Nanoseconds of a step with a read of its loss, the mean of `turns`; -1 after a failure. */
TS_API double compare_gpt_run(compare_gpt *g, int turns, double *loss);
/** Nanoseconds of the host's part of a step in the last run: the call, without the read. */
TS_API double compare_gpt_host(const compare_gpt *g);
/** Writes what became of the compiled step to stdout. */
TS_API int compare_gpt_explain(const compare_gpt *g);
/** Bytes of the library's host memory in use before a step (parameters, state, data), after its
 *  forward (with what the graph saved), and at most. */
TS_API int compare_gpt_memory(compare_gpt *g, int64_t *bytes);
/** Bytes in use on the default device, at most since the last reset. */
TS_API int compare_gpt_peak(bool reset, int64_t *bytes);

#endif
