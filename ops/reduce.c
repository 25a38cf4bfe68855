/** @file reduce.c  Reductions over dims. */
// SPDX-License-Identifier: MIT
#include "include/tessera/ops.h"
#include "ops/ops.h"

ts_status ts_infer_sum_to_size(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t;
    const ts_value *sizes = &f->args[1];
    int n = (int)sizes->count, shift = t->ndim - n;
    char want[192], got[192];
    bool fits = sizes->count <= TS_MAX_DIMS && shift >= 0;
    for (int d = 0; fits && d < n; d++)
        fits = sizes->ints[d] == t->sizes[d + shift] || sizes->ints[d] == 1;
    if (!fits)
        return ts_fail_arg(f, 1, TS_ERR_SHAPE, "expected sizes that broadcast to %s, got %s",
                           ts_format_sizes(got, sizeof got, t->sizes, t->ndim),
                           ts_format_sizes(want, sizeof want, sizes->ints, n > TS_MAX_DIMS ? TS_MAX_DIMS : n));
    f->plan->compute = (ts_dtype)t->dtype;
    ts_plan_result(f->plan, 0, sizes->ints, n, (ts_dtype)t->dtype, t->storage->device);
    return TS_OK;
}

ts_tensor *ts_sum_to_size(ts_tensor *t, const int64_t *sizes, int ndim)
{
    ts_value args[] = {V_T(t), V_IS(sizes, ndim)};
    return ts_invoke(TS_OP_sum_to_size, args, TS_N(args), 1);
}
