/** @file loops.c  Walks an iteration space around a loop, on one thread or several. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/loops.h"
#include "core/parallel.h"

typedef struct walk {
    const ts_iter *it;
    ts_loop loop;
    const void *params;
} walk;

/** Elements begin..end of the space, in row-major order of the dims. */
static void run_range(void *ctx, int64_t begin, int64_t end)
{
    const walk *w = ctx;
    const ts_iter *it = w->it;
    int64_t at[TS_MAX_DIMS], inner[TS_MAX_OPERANDS];
    char *data[TS_MAX_OPERANDS];
    int64_t rest = begin;
    for (int d = 0; d < it->ndim; d++) {
        at[d] = rest ? rest % it->sizes[d] : 0; /* divisions are slow, and most runs begin at 0 */
        rest = rest ? rest / it->sizes[d] : 0;
    }
    for (int k = 0; k < it->operands; k++) {
        data[k] = it->data[k];
        inner[k] = it->strides[k][0];
        for (int d = 0; d < it->ndim; d++)
            data[k] += at[d] * it->strides[k][d];
    }
    while (begin < end) {
        int64_t n = ts_min64(it->sizes[0] - at[0], end - begin);
        w->loop(data, inner, n, w->params);
        begin += n;
        if (begin == end)
            return;
        /* to the start of the next run; the first may have begun in the middle of one */
        for (int k = 0; k < it->operands; k++)
            data[k] -= at[0] * inner[k];
        at[0] = 0;
        for (int d = 1; d < it->ndim; d++) {
            for (int k = 0; k < it->operands; k++)
                data[k] += it->strides[k][d];
            if (++at[d] < it->sizes[d])
                break;
            for (int k = 0; k < it->operands; k++)
                data[k] -= it->sizes[d] * it->strides[k][d];
            at[d] = 0;
        }
    }
}

void ts_cpu_run(const ts_iter *it, ts_loop loop, const void *params, int cost)
{
    int64_t grain = TS_CPU_GRAIN(cost);
    if (TS_LIKELY(it->numel < 2 * grain && it->ndim == 1)) {
        int64_t strides[TS_MAX_OPERANDS];
        for (int k = 0; k < it->operands; k++)
            strides[k] = it->strides[k][0];
        loop(it->data, strides, it->numel, params);
        return;
    }
    if (!it->numel)
        return;
    walk w = {it, loop, params};
    if (it->numel < 2 * grain)
        run_range(&w, 0, it->numel);
    else
        ts_parallel_for(it->numel, grain, run_range, &w);
}

void ts_cpu_run_serial(const ts_iter *it, ts_loop loop, const void *params)
{
    walk w = {it, loop, params};
    if (it->numel)
        run_range(&w, 0, it->numel);
}

ts_status ts_cpu_pointwise(ts_frame *f, const ts_loop *loops, const void *params, int cost)
{
    ts_loop loop = loops[f->plan->compute];
    if (TS_UNLIKELY(!loop))
        return ts_fail_op(TS_ERR_DTYPE, ts_op_name(f->op), f->site, "cast with ts_to()",
                          "not defined for dtype %s on the CPU", ts_dtype_name(f->plan->compute));
    ts_cpu_run(&f->plan->iter, loop, params, cost);
    return TS_OK;
}
