/*
 * One source for f32 and f64 kernels. A kernel file includes a body (`*_real.h`) twice, with
 * TS_REAL defined as 32 and as 64. The body includes this header, directly or through kinds_real.h
 * or fold_real.h, and uses the names of real_names.h: T (the element type), V (its vector), F(),
 * S(). Only vmath_real.h, direct_real.h and depthwise_real.h use REAL_BITS and real_names.h alone.
 */
// SPDX-License-Identifier: MIT
#include "backends/cpu/vmath.h"

#undef REAL_BITS
#define REAL_BITS TS_REAL
#include "backends/cpu/real_names.h"

/** Loads min(left, LANES) elements; the other lanes are those of `other`. */
VEC_FN V S(load_some)(const T *p, int64_t left, V other)
{
    return left >= LANES ? F(load)(p) : F(load_n_or)(p, left, other);
}
/** Stores the first min(left, LANES) lanes. */
VEC_FN void S(store_some)(T *p, V v, int64_t left)
{
    if (left >= LANES)
        F(store)(p, v);
    else
        F(store_n)(p, v, left);
}

/** Logarithm of one number, with the same bits as a lane of the vector function. */
VEC_FN T S(log_of)(T x) { return F(log)(F(set1)(x))[0]; }
