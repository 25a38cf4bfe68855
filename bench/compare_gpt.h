/**
 * @file compare_gpt.h  A GPT and its training step (forward, backward, clipping, AdamW), on the
 * default device. The library libcompare, which bench/compare.py loads, and bench/study use it.
 * Functions that return int return 0, or another number after an error.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BENCH_COMPARE_GPT_H
#define TS_BENCH_COMPARE_GPT_H

#include "tessera/tessera.h"

typedef struct compare_gpt compare_gpt;

/**
 * Makes a GPT with its data; the caller frees it with compare_gpt_free(). NULL after an error.
 * @param dims     7 numbers: batch B, tokens T per sequence, channels C, heads H, layers L (at most
 *                 64), vocabulary V; and 1 to run the forward under autocast to bf16, else 0
 * @param values   one f32 array per parameter, in the order of PyTorch's parameters(); NULL: random
 *                 weights and data
 * @param tokens   (B, T) token ids; not read if values is NULL
 * @param targets  (B * T) token ids; not read if values is NULL
 */
TS_API compare_gpt *compare_gpt_new(const int64_t *dims, double dropout,
                                    const float *const *values, const int64_t *tokens,
                                    const int64_t *targets);
/** Compiles the step: later steps are calls of a compiled function with these options of
 *  ts_compile_opts. Call it at most once. */
TS_API int compare_gpt_compile(compare_gpt *g, bool graph, bool replay, int64_t recompute);
TS_API void compare_gpt_free(compare_gpt *g);
/** Runs one step without reading its loss, so the host does not wait for the device. */
TS_API ts_status compare_gpt_step(compare_gpt *g);
/** Runs `turns` steps and reads the loss after each. Returns the mean time of a step with its read,
 *  in ns, or -1 after a failure. *loss receives the last loss. */
TS_API double compare_gpt_run(compare_gpt *g, int turns, double *loss);
/** Mean host time of a step of the last compare_gpt_run(), in ns, without the read of the loss. */
TS_API double compare_gpt_host(const compare_gpt *g);
/** Writes ts_explain() of the compiled step to stdout. An error if the step is not compiled. */
TS_API int compare_gpt_explain(const compare_gpt *g);
/** Runs one eager step. bytes receives 3 numbers, host memory of the library in use: before the
 *  step (parameters, state, data), after its forward (with saved tensors), and the peak. */
TS_API int compare_gpt_memory(compare_gpt *g, int64_t *bytes);
/** Sets *bytes to the peak of the bytes in use on the default device since the last reset. If
 *  `reset` is true, resets the peak first. */
TS_API int compare_gpt_peak(bool reset, int64_t *bytes);

#endif
