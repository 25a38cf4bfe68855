/** @file cost.c  FLOPs of a call, by kind of op. */
// SPDX-License-Identifier: MIT
#include "ops/ops.h"

double ts_cost_zero(const ts_frame *f)
{
    (void)f;
    return 0;
}

/** One operation an element of the largest operand. */
double ts_cost_elementwise(const ts_frame *f)
{
    int64_t n = 0;
    for (int i = 0; i < f->nargs; i++)
        if (f->args[i].tag == TS_TAG_TENSOR)
            n = ts_max64(n, f->args[i].t->numel);
    for (int i = 0; i < f->nrets; i++)
        if (f->rets[i].tag == TS_TAG_TENSOR)
            n = ts_max64(n, f->rets[i].t->numel);
    return (double)n;
}
