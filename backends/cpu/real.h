/*
 * One body of code for both real types. A kernel file defines TS_REAL as 32 or 64 and includes its
 * body, which includes this header first and is written in these names:
 *
 *   T, V, LANES          float, vf, VF_LANES    or  double, vd, VD_LANES
 *   F(load), M(bits)     vf_load, vm_bits       or  vd_load, vdm_bits
 *   S(name)              name_f32               or  name_f64
 */
// SPDX-License-Identifier: MIT
#include "backends/cpu/vmath.h"

#undef T
#undef V
#undef VM
#undef LANES
#undef F
#undef M
#undef S
#if TS_REAL == 32
#define T float
#define V vf
#define VM vm
#define LANES VF_LANES
#define F(name) vf_##name
#define M(name) vm_##name
#define S(name) name##_f32
#elif TS_REAL == 64
#define T double
#define V vd
#define VM vdm
#define LANES VD_LANES
#define F(name) vd_##name
#define M(name) vdm_##name
#define S(name) name##_f64
#else
#error "define TS_REAL as 32 or 64"
#endif

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
