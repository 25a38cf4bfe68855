/** @file unary.cu  Elementary functions of one tensor. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/loops.cuh"
#include "backends/cuda/unary_fn.cuh"

using namespace ts;

#define KERNEL(name, dtypes)                                                                       \
    static ts_status name##_kernel(ts_frame *f)                                                    \
    {                                                                                              \
        return pointwise<dtypes, 1>(f, fn::name##_fn{});                                           \
    }
KERNEL(neg, numbers)
KERNEL(abs, numbers)
KERNEL(sign, everything)
KERNEL(square, numbers)
KERNEL(floor, numbers)
KERNEL(ceil, numbers)
KERNEL(round, numbers)
KERNEL(trunc, numbers)
KERNEL(frac, floats)
KERNEL(exp, floats)
KERNEL(exp2, floats)
KERNEL(expm1, floats)
KERNEL(log, floats)
KERNEL(log2, floats)
KERNEL(log10, floats)
KERNEL(log1p, floats)
KERNEL(sqrt, floats)
KERNEL(rsqrt, floats)
KERNEL(reciprocal, floats)
KERNEL(sin, floats)
KERNEL(cos, floats)
KERNEL(tan, floats)
KERNEL(asin, floats)
KERNEL(acos, floats)
KERNEL(atan, floats)
KERNEL(sinh, floats)
KERNEL(cosh, floats)
KERNEL(erf, floats)
KERNEL(erfc, floats)

#define ROW(name, dtypes) {#name, name##_kernel, dtypes, true, true}
TS_CUDA_FAMILY(unary,
    ROW(neg, numbers), ROW(abs, numbers), ROW(sign, everything), ROW(square, numbers),
    ROW(floor, numbers),
    ROW(ceil, numbers), ROW(round, numbers), ROW(trunc, numbers), ROW(frac, floats),
    ROW(exp, floats),
    ROW(exp2, floats), ROW(expm1, floats), ROW(log, floats), ROW(log2, floats), ROW(log10, floats),
    ROW(log1p, floats), ROW(sqrt, floats), ROW(rsqrt, floats), ROW(reciprocal, floats),
    ROW(sin, floats),
    ROW(cos, floats), ROW(tan, floats), ROW(asin, floats), ROW(acos, floats), ROW(atan, floats),
    ROW(sinh, floats), ROW(cosh, floats), ROW(erf, floats), ROW(erfc, floats))
