/** @file reduce.cu  Sums, products, means and norms over dims; the family's table. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/fuse/fuse.h"
#include "backends/cuda/reduce_plain.cuh"

using namespace ts;

/** Sums of integers of T, in i64. */
template <class T> static ts_status sum_integers(ts_frame *f)
{
    return reduce<T, int64_t>(f, plain_fold<T, op_add, keep, int64_t>{});
}
static ts_status sum(ts_frame *f)
{
    if (ts_kernel_dtype(f) != TS_I64)
        return real<op_add, keep>(f);
    switch (ts_dtype_size(ts_dtype_of(f->args[0].t))) {
    case 8: return sum_integers<int64_t>(f);
    case 4: return sum_integers<int32_t>(f);
    default: return sum_integers<uint8_t>(f);
    }
}
static ts_status prod(ts_frame *f)
{
    return ts_kernel_dtype(f) == TS_I64 ? plain<int64_t, op_multiply, keep>(f, 1, false)
                                        : real<op_multiply, keep>(f);
}

/** The mean of no elements is NaN. */
static ts_status mean(ts_frame *f)
{
    int64_t n = length_of(f);
    return real<op_add, keep>(f, n ? 1.0 / (double)n : (double)NAN);
}

static ts_status norm(ts_frame *f)
{
    double p = f->args[3].d;
    return p == 1   ? real<op_add, absolute>(f)
           : p == 2 ? real<op_add, squared>(f, 1, true)
                    : real<op_largest, absolute>(f);
}

void ts_cuda_divide_folds(ts_cuda_group_folds *folds, int piece, int item)
{
    reduction r = {};
    int64_t inner = (int64_t)folds->inner, count = (int64_t)folds->count,
            outer = (int64_t)folds->results / inner;
    r.results = (int64_t)folds->results;
    r.count = count;
    r.ndim[0] = r.ndim[1] = 1;
    r.sizes[0][0] = 1;
    r.sizes[1][0] = count;
    r.steps[1][0] = inner;
    if (inner > 1) {
        r.sizes[0][0] = inner;
        r.steps[0][0] = 1;
    }
    if (outer > 1) {
        int k = inner > 1;
        r.ndim[0] = k + 1;
        r.sizes[0][k] = outer;
        r.steps[0][k] = count * inner;
    }
    reduction_plan plan = divide(r, piece, item, true);
    folds->share = (uint64_t)r.share;
    folds->beside = plan.beside;
    folds->vector = r.vector;
    folds->all = (uint64_t)(plan.beside || !r.vector ? count : count / piece);
    folds->blocks = (uint32_t)plan.blocks;
    folds->shares = (uint32_t)plan.shares;
    folds->group = (uint32_t)r.group;
    folds->merges = (uint32_t)plan.merges;
}

TS_CUDA_FAMILY(reduce,
    {"sum_to_size", sum, floats | TS_DTYPE_BIT(TS_I64), true, true},
    {"sum", sum, floats | TS_DTYPE_BIT(TS_I64), true, true},
    {"mean", mean, floats, true},
    {"prod", prod, floats | TS_DTYPE_BIT(TS_I64), true},
    {"amax", reduce_amax, everything, true},
    {"amin", reduce_amin, everything, true},
    {"all", reduce_all, everything, true},
    {"any", reduce_any, everything, true},
    {"var", reduce_var, floats, true},
    {"std", reduce_std, floats, true},
    {"norm", norm, floats, true},
    {"logsumexp", reduce_logsumexp, floats, true},
)
