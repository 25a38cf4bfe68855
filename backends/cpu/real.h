/*
 * One body of code for both real types. A kernel file defines TS_REAL as 32 or 64 and includes its
 * body, which includes this header first and is written in the names of real_names.h.
 */
// SPDX-License-Identifier: MIT
#include "backends/cpu/vmath.h"

#undef REAL_BITS
#define REAL_BITS TS_REAL
#include "backends/cpu/real_names.h"

/** First n of LANES elements when fewer are left, the other lanes `other`. */
VEC_FN V S(load_some)(const T *p, int64_t left, V other)
{
    return left >= LANES ? F(load)(p) : F(load_n_or)(p, left, other);
}
VEC_FN void S(store_some)(T *p, V v, int64_t left)
{
    if (left >= LANES)
        F(store)(p, v);
    else
        F(store_n)(p, v, left);
}

/** Logarithm of one number by the vectors' formula. */
VEC_FN T S(log_of)(T x) { return F(log)(F(set1)(x))[0]; }
