/** @file reduce.cu  Sums, products, means and norms over dims; the family's table. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/reduce_plain.cuh"

using namespace ts;

static ts_status sum(ts_frame *f) { return whole<op_add>(f); }
static ts_status prod(ts_frame *f) { return whole<op_multiply>(f); }

/** Of nothing the mean is NaN. */
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

TS_CUDA_FAMILY(reduce,
    {"sum_to_size", sum, floats | TS_DTYPE_BIT(TS_I64), false},
    {"sum", sum, floats | TS_DTYPE_BIT(TS_I64), false},
    {"mean", mean, floats, false},
    {"prod", prod, floats | TS_DTYPE_BIT(TS_I64), false},
    {"amax", reduce_amax, everything, false},
    {"amin", reduce_amin, everything, false},
    {"all", reduce_all, everything, false},
    {"any", reduce_any, everything, false},
    {"var", reduce_var, floats, false},
    {"std", reduce_std, floats, false},
    {"norm", norm, floats, false},
    {"logsumexp", reduce_logsumexp, floats, false},
)
