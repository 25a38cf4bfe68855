/** @file common.h  Common functions of the tracing tests. */
// SPDX-License-Identifier: MIT
#ifndef TESTS_TRACING_COMMON_H
#define TESTS_TRACING_COMMON_H

#include "core/alloc.h"
#include "tests/expect.h"

#include <stdlib.h>

/** The parameters of a ts_trace_fn; its body may leave some unused. */
#define TRACED                                                                                     \
    void *ctx __attribute__((unused)), ts_tensor *const *in __attribute__((unused)),               \
        int n __attribute__((unused)), ts_tensor **out __attribute__((unused)),                    \
        int m __attribute__((unused))

/** Standard normal f32 numbers that depend only on seed. The thread's generator is unchanged. */
static inline ts_tensor *numbers(uint64_t seed, const int64_t *sizes, int ndim)
{
    ts_rng_state before = ts_rng_get_state();
    ts_rng_set_state((ts_rng_state){seed, 0});
    ts_tensor *t = ts_normal(sizes, ndim, 0, 1, TS_F32);
    ts_rng_set_state(before);
    OK(t);
    return t;
}

/** True if both are dense CPU tensors with equal sizes, order of dims, dtype and bits, or both are
 * TS_NONE. */
static inline bool same(const ts_tensor *a, const ts_tensor *b)
{
    if (a == TS_NONE || b == TS_NONE)
        return a == b;
    size_t dims = (size_t)ts_ndim(a) * sizeof(int64_t);
    int64_t last = 0; /* index in memory of the last element */
    for (int d = 0; d < ts_ndim(a); d++)
        last += (ts_sizes(a)[d] - 1) * ts_strides(a)[d];
    return ts_ndim(a) == ts_ndim(b) && ts_dtype_of(a) == ts_dtype_of(b) &&
           memcmp(ts_sizes(a), ts_sizes(b), dims) == 0 &&
           ((ts_is_contiguous(a) && ts_is_contiguous(b)) ||
            (last == ts_numel(a) - 1 && memcmp(ts_strides(a), ts_strides(b), dims) == 0)) &&
           (!ts_numel(a) || memcmp(ts_data(a), ts_data(b),
                                   (size_t)ts_numel(a) * ts_dtype_size(ts_dtype_of(a))) == 0);
}

/** Output of ts_graph_write(); the caller frees it. */
static inline char *written(const ts_graph *graph, ts_graph_format format)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    OK(ts_graph_write(graph, file, format));
    fclose(file);
    return text;
}

/** Traces fn with `inputs` and replays the graph with `others`. Calls fn with `again`, which must
 * equal `others`, and checks that outputs, inputs and generator are as after the replay. n: number
 * of inputs; m: number of outputs, at most 8. */
static inline void check_replay(ts_trace_fn fn, void *ctx, ts_tensor *const *inputs,
                                ts_tensor *const *others, ts_tensor *const *again, int n, int m)
{
    ts_tensor *recorded[8], *replayed[8], *called[8];
    ts_graph *graph;
    ts_rng_state begin = ts_rng_get_state();
    OK(ts_trace(fn, ctx, inputs, n, recorded, m, &graph));
    ck_assert_str_eq(ts_graph_get_info(graph).reason, "");
    ts_rng_set_state(begin);
    OK(ts_replay(graph, others, n, replayed, m));
    ts_rng_state drawn = ts_rng_get_state();
    ts_rng_set_state(begin);
    OK(fn(ctx, again, n, called, m));
    ck_assert_uint_eq(ts_rng_get_state().offset, drawn.offset);
    for (int i = 0; i < m; i++)
        ck_assert_msg(same(replayed[i], called[i]), "output %d differs", i);
    for (int i = 0; i < n; i++)
        ck_assert_msg(same(others[i], again[i]), "input %d differs", i);
    ts_graph_free(graph);
}

#endif
