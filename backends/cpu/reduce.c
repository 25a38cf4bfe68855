/** @file reduce.c  Reductions. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/loops.h"
#include "ops/kernel.h"

/* The result is the loop's operand, with stride 0 along the summed dims. */
#define ADD_INTO(T, name, A)                                                                  \
    static void name(char *const *d, const int64_t *s, int64_t n, const void *params)         \
    {                                                                                         \
        (void)params;                                                                         \
        if (s[0] == 0) {                                                                      \
            A sum = *(T *)d[0];                                                               \
            for (int64_t i = 0; i < n; i++)                                                   \
                sum += *(const T *)(d[1] + i * s[1]);                                         \
            *(T *)d[0] = (T)sum;                                                              \
            return;                                                                           \
        }                                                                                     \
        for (int64_t i = 0; i < n; i++)                                                       \
            *(T *)(d[0] + i * s[0]) += *(const T *)(d[1] + i * s[1]);                         \
    }
ADD_INTO(float, add_into_f32, float)
ADD_INTO(double, add_into_f64, double)

static ts_status sum_to_size(ts_frame *f)
{
    static const ts_loop loops[TS_DTYPE_COUNT] = {[TS_F32] = add_into_f32, [TS_F64] = add_into_f64};
    const ts_tensor *t = f->args[0].t;
    ts_tensor *out = f->rets[0].t;
    ts_iter it = {.ndim = t->ndim ? t->ndim : 1, .operands = 2, .numel = t->numel, .data = {out->data, t->data}};
    int item = ts_dtype_sizes[t->dtype], shift = t->ndim - out->ndim;
    it.sizes[0] = 1;
    for (int d = 0; d < t->ndim; d++) {
        int to = t->ndim - 1 - d, o = d - shift;
        it.sizes[to] = t->sizes[d];
        it.strides[1][to] = t->strides[d] * item;
        it.strides[0][to] = o < 0 || out->sizes[o] != t->sizes[d] ? 0 : out->strides[o] * item;
    }
    if (out->numel)
        memset(out->data, 0, (size_t)(out->numel * item));
    ts_loop loop = loops[f->plan->compute];
    if (!loop)
        return ts_fail_op(TS_ERR_DTYPE, ts_op_name(f->op), f->site, "cast with ts_to()",
                          "not defined for dtype %s on the CPU", ts_dtype_name(f->plan->compute));
    ts_cpu_run_serial(&it, loop, NULL);
    return TS_OK;
}

TS_CPU_FAMILY(reduce, {TS_OP_sum_to_size, sum_to_size, {0, 1}})
