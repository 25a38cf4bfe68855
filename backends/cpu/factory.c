/** @file factory.c  Fills. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/loops.h"
#include "ops/kernel.h"

static ts_status empty(ts_frame *f)
{
    (void)f;
    return TS_OK;
}

#define FILL(bits)                                                                                   \
    static void fill_##bits(char *const *d, const int64_t *s, int64_t n, const void *params)        \
    {                                                                                                \
        (void)params;                                                                                \
        uint##bits##_t v = *(const uint##bits##_t *)d[1];                                            \
        if (s[0] == sizeof v)                                                                        \
            for (int64_t i = 0; i < n; i++)                                                          \
                ((uint##bits##_t *)d[0])[i] = v;                                                     \
        else                                                                                         \
            for (int64_t i = 0; i < n; i++)                                                          \
                *(uint##bits##_t *)(d[0] + i * s[0]) = v;                                            \
    }
FILL(8)
FILL(16)
FILL(32)
FILL(64)

static const ts_loop fills[TS_DTYPE_COUNT] = {
    [TS_F64] = fill_64, [TS_F32] = fill_32, [TS_BF16] = fill_16, [TS_F16] = fill_16,
    [TS_I64] = fill_64, [TS_I32] = fill_32, [TS_U8] = fill_8,    [TS_BOOL] = fill_8,
};

static ts_status full(ts_frame *f) { return ts_cpu_pointwise(f, fills, NULL, 1); }

/** fill writes its argument, so the iteration space is made here: the tensor as if it were a result. */
static ts_status fill(ts_frame *f)
{
    ts_value args[2] = {f->args[1]}, ret = f->args[0];
    ts_frame inner = *f;
    inner.args = args;
    inner.nargs = 1;
    inner.rets = &ret;
    inner.nrets = 1;
    f->plan->operands = 1;
    ts_plan_iterate(&inner);
    return ts_cpu_pointwise(f, fills, NULL, 1);
}

TS_CPU_FAMILY(factory,
    {TS_OP_empty, empty, {0, 1}},
    {TS_OP_full, full, {0, 1}},
    {TS_OP_fill, fill, {0, 1}})
