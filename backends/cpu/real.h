/*
 * One body of code for both real types. A kernel file defines TS_REAL as 32 or 64 and includes its
 * body, which includes this header first and is written in these names:
 *
 *   T, V, LANES          float, vf, VF_LANES    or  double, vd, VD_LANES
 *   F(load), M(bits)     vf_load, vm_bits       or  vd_load, vdm_bits
 *   S(name)              name_f32               or  name_f64
 *
 * The row helpers below take n contiguous elements. Their order of summation is a function of n
 * alone: four running vectors, folded pairwise at the end.
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

/** Sum of a row. */
VEC_FN T S(row_sum)(const T *x, int64_t n)
{
    V a = F(zero)(), b = a, c = a, d = a;
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES) {
        a += F(load)(x + i);
        b += F(load)(x + i + LANES);
        c += F(load)(x + i + 2 * LANES);
        d += F(load)(x + i + 3 * LANES);
    }
    for (; i + LANES <= n; i += LANES)
        a += F(load)(x + i);
    if (i < n)
        b += F(load_n)(x + i, n - i);
    return F(hsum)((a + b) + (c + d));
}

/** Largest of a row; NaN is passed over. -Inf for an empty row. */
VEC_FN T S(row_max)(const T *x, int64_t n)
{
    V low = F(set1)(-(T)INFINITY), a = low, b = low, c = low, d = low;
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES) {
        a = F(max_fast)(F(load)(x + i), a);
        b = F(max_fast)(F(load)(x + i + LANES), b);
        c = F(max_fast)(F(load)(x + i + 2 * LANES), c);
        d = F(max_fast)(F(load)(x + i + 3 * LANES), d);
    }
    for (; i + LANES <= n; i += LANES)
        a = F(max_fast)(F(load)(x + i), a);
    if (i < n)
        b = F(max_fast)(F(load_n_or)(x + i, n - i, low), b);
    return F(hmax_fast)(F(max_fast)(F(max_fast)(a, b), F(max_fast)(c, d)));
}

/** Sum of exp(x - shift) over a row; the terms go to y unless it is NULL (y may be x). */
VEC_FN T S(row_exp)(T *y, const T *x, T shift, int64_t n)
{
    V s = F(set1)(shift), a = F(zero)(), b = a;
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        V e = F(exp)(F(load)(x + i) - s), g = F(exp)(F(load)(x + i + LANES) - s);
        a += e;
        b += g;
        if (y) {
            F(store)(y + i, e);
            F(store)(y + i + LANES, g);
        }
    }
    for (; i < n; i += LANES) {
        V e = F(exp)(S(load_some)(x + i, n - i, F(set1)(-(T)INFINITY)) - s);
        e = n - i >= LANES ? e : F(select)(M(first_n)(n - i), e, F(zero)());
        a += e;
        if (y)
            S(store_some)(y + i, e, n - i);
    }
    return F(hsum)(a + b);
}
