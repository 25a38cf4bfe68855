/*
 * Elementary and activation functions on vectors of f32 and f64. Every variant, and the recipes of
 * fused groups (recipes.h), use the same formulas, so eager and fused kernels compute the same
 * bits. A lane's result depends only on its arguments. Kernel files include this file.
 *
 *   vmath_real.h   the formulas that f32 and f64 share
 *   vmath.h        polynomials, range reductions and further formulas of f32
 *   vmath_d.h      the same for f64
 *
 * The comment of a function states its error bound in units in the last place (ulp).
 * tests/cpu/vmath.c asserts the bounds for samples of all f32 and f64 numbers. They hold with FMA
 * instructions; a baseline without FMA has one ulp more. For results below the normal range, one
 * ulp is that of the smallest normal number, unless the comment says otherwise. Infinities, NaN and
 * signed zeros follow the function's limits, also where PyTorch's formula computes -Inf * 0 = NaN
 * (silu, gelu: -0 here).
 *
 * tools/minimax.py NAME computes the coefficients; a comment above each list states the name.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_VMATH_H
#define TS_BACKENDS_CPU_VMATH_H

#include "backends/cpu/vmath_d.h"

/** c[0] + c[1] x + ... + c[n-1] x^(n-1) by Horner's rule. */
VEC_FN vf vec_horner(vf x, const float *c, int n)
{
    vf p = vf_set1(c[n - 1]);
    for (int i = n - 2; i >= 0; i--)
        p = vf_fma(p, x, vf_set1(c[i]));
    return p;
}
#define VEC_POLY(x, ...)                                                                        \
    vec_horner(x, (const float[]){__VA_ARGS__}, (int)(sizeof((float[]){__VA_ARGS__}) / 4))

/* ------------------------------------------ f32 functions that vmath_real.h requires ---- */

/* 2^n for whole n in [-126, 127]. */
VEC_FN vf vf_power(vf n) { return (vf)(((vu)vf_trunc_to_vi(n) + 127u) << 23); }

/* x without its last 12 bits: products of two such numbers are exact. */
VEC_FN vf vf_short(vf x) { return (vf)((vi)x & ~0xfff); }

/* x - n ln 2 (Cody and Waite's reduction). ln 2 is the sum of two constants; the first has 15
 * significant bits, so that its product with an exponent n is exact even without FMA. */
#define VEC_LN2_HI 0x1.62e4p-1f
#define VEC_LN2_LO 0x1.7f7d1cp-20f
VEC_FN vf vf_exp_reduce(vf x, vf n)
{
    return vf_fma(n, vf_set1(-VEC_LN2_LO), vf_fma(n, vf_set1(-VEC_LN2_HI), x));
}

/* p(r) of e^r = 1 + r + r^2 p(r), |r| <= ln(2)/2. expm1_poly() is the same for e^r - 1, with one
 * more coefficient; exp2_poly() is p(r) of 2^r = 1 + r p(r), |r| <= 1/2. */
VEC_FN vf vf_exp_poly(vf r)
{
    /* minimax.py exp */
    return VEC_POLY(r, 0.49999994f, 0.166665211f, 0.041668389f, 0.0083687352f, 0.00138145592f);
}
VEC_FN vf vf_expm1_poly(vf r)
{
    /* minimax.py expm1 */
    return VEC_POLY(r, 0.5f, 0.166666657f, 0.0416663624f, 0.00833338965f, 0.00139406545f,
                    0.000198458787f);
}
VEC_FN vf vf_exp2_poly(vf r)
{
    /* minimax.py exp2 */
    return VEC_POLY(r, 0.693147182f, 0.240226477f, 0.0555033237f, 0.00961843692f,
                    0.00133988739f, 0.000153533634f);
}

/* Splits x > 0 into m 2^k with m in [2/3, 4/3); returns m. Denormals are scaled first. */
VEC_FN vf vf_split(vf x, vf *k)
{
    vm tiny = vf_lt(x, vf_set1(0x1p-126f));
    vu bits = (vu)vf_select(tiny, x * 0x1p23f, x);
    vu e = (bits - 0x3f2aaaabu) & 0xff800000u;
    *k = vi_to_vf((vi)e >> 23) + vf_select(tiny, vf_set1(-23.0f), vf_zero());
    return (vf)(bits - e);
}

/* k ln 2 + log(1 + f), f in [-1/3, 1/3] */
VEC_FN vf vf_log_sum(vf f, vf k)
{
    /* minimax.py log */
    vf q = VEC_POLY(f, 0.333332151f, -0.249997973f, 0.200104058f, -0.16680488f,
                    0.140058696f, -0.121842608f, 0.139844358f, -0.128916845f);
    vf r = vf_fma(f * f, vf_fma(f, q, vf_set1(-0.5f)), k * VEC_LN2_LO);
    return vf_fma(k, vf_set1(VEC_LN2_HI), r + f);
}

/* x - n pi/2 with the nearest n, in f64. pi/2 is split into a 33-bit part and a rest, so the first
 * product is exact for |n| < 2^20. */
VEC_FN vd vec_reduce_d(vd x, vd *n)
{
    *n = vd_rint(x * 0x1.45f306dc9c883p-1);
    vd r = x - *n * 0x1.921fb544p+0;
    return r - *n * 0x1.0b4611a626331p-34;
}

#ifdef __FP_FAST_FMAF
/* The same reduction for |x| <= 2^13 in f32. The parts of pi/2 have 24 bits. The first sum is
 * exact: it is a multiple of 2^-24 below 1. */
VEC_FN vf vec_reduce_near(vf x, vf *n)
{
    *n = vf_rint(x * 0x1.45f306p-1f);
    vf r = vf_fma(*n, vf_set1(-0x1.921fb6p+0f), x);
    r = vf_fma(*n, vf_set1(0x1.777a5cp-25f), r);
    return vf_fma(*n, vf_set1(0x1.ee59dap-50f), r);
}
#endif

/* x - n pi/2 in f32. */
VEC_FN vf vec_reduce(vf x, vf *n)
{
#ifdef __FP_FAST_FMAF
    vm near = vf_le(vf_abs(x), vf_set1(0x1p13f));
    vf near_n, r = vec_reduce_near(x, &near_n);
    *n = near_n;
    if (__builtin_expect(vm_all(near), 1))
        return r;
#endif
    vd n_lo, n_hi;
    vd lo = vec_reduce_d(vf_widen_lo(x), &n_lo), hi = vec_reduce_d(vf_widen_hi(x), &n_hi);
    vf far_n = vf_narrow(n_lo, n_hi), far = vf_narrow(lo, hi);
#ifdef __FP_FAST_FMAF
    *n = vf_select(near, near_n, far_n);
    return vf_select(near, r, far);
#else
    *n = far_n;
    return far;
#endif
}

/* Writes sine and cosine of the reduced argument, swapped in odd quadrants. The low two bits of the
 * result are the quadrant of x. */
VEC_FN vu vf_trig(vf x, vf *sine, vf *cosine)
{
    vf whole, r = vec_reduce(x, &whole), z = r * r;
    /* minimax.py sin */
    vf s = VEC_POLY(z, -0.166666552f, 0.008332178f, -0.000195172732f);
    s = vf_fma(r * z, s, r);
    /* minimax.py cos */
    vf c = VEC_POLY(z, 0.0416666456f, -0.00138873677f, 2.44384228e-05f);
    c = vf_fma(z * z, c, vf_fma(z, vf_set1(-0.5f), vf_set1(1.0f)));
    vu n = (vu)vf_to_vi(whole);
    vm swap = vi_eq((vi)(n & 1u), vi_set1(1));
    *sine = vf_select(swap, c, s);
    *cosine = vf_select(swap, s, c);
    return n;
}

/* g(z) of asin(x) = x + x z g(z), z = x^2 <= 1/4; of atan(x) = x + x z g(z), z <= tan(pi/8)^2 */
VEC_FN vf vf_asin_rest(vf z)
{
    /* minimax.py asin */
    return VEC_POLY(z, 0.166667536f, 0.0749524161f, 0.0454770997f, 0.0241475943f, 0.0422185771f);
}
VEC_FN vf vf_atan_rest(vf z)
{
    /* minimax.py atan */
    return VEC_POLY(z, -0.333329558f, 0.199779257f, -0.138798505f, 0.0806031004f);
}

/* Phi(-t), where Phi is the standard normal distribution function, for t in [0, 15], with a small
 * relative error even where Phi is tiny. bell is exp(-t^2/2). */
VEC_FN vf vf_normal_tail(vf t, vf bell)
{
    vf u = 1.0f / vf_fma(t, vf_set1(0.5f), vf_set1(1.0f));
    /* minimax.py normal_tail */
    vf g = VEC_POLY(u - 0.625f, 0.378244728f, 0.339008003f, 0.00401609577f,
                    -0.134642199f, 0.0469938666f, 0.0538239144f, -0.0702407882f, 0.0226599313f,
                    0.0363606066f, -0.0718368292f, 0.0170000996f, 0.0681116283f);
    return bell * u * g;
}

#define REAL_BITS 32
#include "backends/cpu/vmath_real.h"
#undef REAL_BITS

/* ----------------------------------------------------------- formulas of f32 alone ---- */

/** Logarithm to base 2: 2 ulp. The factor log2(e) of the linear term has two parts. */
VEC_FN vf vf_log2(vf x)
{
    vf k, f = vf_split(x, &k) - 1.0f;
    /* minimax.py log2 */
    vf q = VEC_POLY(f, -0.721347511f, 0.480896533f, -0.360669672f, 0.288694054f,
                    -0.240674794f, 0.201994061f, -0.175534904f, 0.202045888f, -0.186814174f);
    vf r = vf_fma(f, vf_set1(0x1.4ae0cp-26f), f * f * q);
    return vf_log_limits(x, vf_fma(f, vf_set1(0x1.715476p+0f), r) + k);
}

/** Logarithm to base 10: 2 ulp. */
VEC_FN vf vf_log10(vf x)
{
    vf k, f = vf_split(x, &k) - 1.0f;
    /* minimax.py log10 */
    vf q = VEC_POLY(f, -0.217147246f, 0.144764289f, -0.108572394f, 0.0869055688f,
                    -0.0724503323f, 0.0608062707f, -0.0528412722f, 0.0608218722f, -0.0562366731f);
    vf r = vf_fma(f, vf_set1(-0x1.5b235ep-27f), f * f * q);
    r = vf_fma(k, vf_set1(0x1.3509f8p-18f), r);
    r = vf_fma(f, vf_set1(0x1.bcb7b2p-2f), r);
    return vf_log_limits(x, vf_fma(k, vf_set1(0x1.344p-2f), r)); // log10(2): 11 + 24 bits
}

/** Error function: 2 ulp. x + x g(x^2) up to 1, then 1 - exp(-x (1 + g(x))). */
VEC_FN vf vf_erf(vf x)
{
    vf a = vf_min_fast(vf_set1(4.0f), vf_abs(x));
    /* minimax.py erf */
    vf p = VEC_POLY(x * x, 0.128379166f, -0.37612626f, 0.112835854f, -0.0268538129f,
                    0.00518832775f, -0.000801019429f, 7.85386292e-05f);
    /* minimax.py erfc */
    vf q = VEC_POLY(a, 0.128488988f, 0.635978341f, 0.104414709f, -0.0215389952f,
                    0.00200403086f, 0.000421880919f, -0.000191806685f, 3.01978853e-05f,
                    -1.86071907e-06f);
    vf large = 1.0f - vf_exp(vf_neg(vf_fma(a, q, a)));
    return vf_select(vf_lt(a, vf_set1(1.0f)), vf_fma(x, p, x), vf_copysign(large, x));
}

/* y log2(x) in f64 for x = m 2^k, m in [2/3, 4/3), clamped to [-200, 200]. */
VEC_FN vd vec_pow_log2(vd m, vd k, vd y)
{
    vd f = m - 1.0;
    /* minimax.py pow_log2 */
    vd q = VEC_POLY_D(f, -0.72134751962906307, 0.48089834454141728,
                      -0.36067397130023104, 0.28853940795482141, -0.2404339565196762,
                      0.20607688315658476, -0.18080078919347509, 0.16087881958191433,
                      -0.13750394690148576, 0.12364610176996797, -0.1659754626527907,
                      0.1573232146882893);
    vd log = vd_fma(f * f, q, vd_fma(f, vd_set1(0x1.71547652b82fep+0), k));
    return vd_max_fast(vd_set1(-200.0), vd_min_fast(vd_set1(200.0), y * log));
}

/** x^y with the limits of C's pow(): 2 ulp. Lanes with x = 0, or with an infinite or NaN argument,
 * call libm. */
VEC_FN vf vf_pow(vf x, vf y)
{
    vf k, m = vf_split(vf_abs(x), &k);
    vd lo = vec_pow_log2(vf_widen_lo(m), vf_widen_lo(k), vf_widen_lo(y));
    vd hi = vec_pow_log2(vf_widen_hi(m), vf_widen_hi(k), vf_widen_hi(y));
    vd n_lo = vd_rint(lo), n_hi = vd_rint(hi);
    vf n = vf_clamp(vf_narrow(n_lo, n_hi), -160.0f, 129.0f);
    vf r = vf_narrow(lo - n_lo, hi - n_hi);
    vf p = vf_fma(r, vf_exp2_poly(r), vf_set1(1.0f));
    vf result = vf_ldexp_fast(p, n);

    /* A negative base: NaN unless y is an integer, negative if y is odd. */
    vm negative = vf_lt(x, vf_zero());
    if (vm_any(negative)) {
        vm whole = vf_eq(vf_rint(y), y);
        vf half = y * 0.5f;
        vm odd = vm_and(whole, vf_ne(vf_rint(half), half));
        result = vf_select(vm_and(negative, odd), vf_neg(result), result);
        result = vf_select(vm_and(negative, vm_not(whole)), vf_set1(NAN), result);
    }
    vf inf = vf_set1(INFINITY);
    vm plain = vm_and(vm_and(vf_lt(vf_abs(x), inf), vf_ne(x, vf_zero())), vf_lt(vf_abs(y), inf));
    if (__builtin_expect(vm_all(plain), 1))
        return result;
    for (int i = 0; i < VF_LANES; i++)
        if (!(fabsf(x[i]) < INFINITY && x[i] != 0.0f && fabsf(y[i]) < INFINITY))
            result[i] = powf(x[i], y[i]);
    return result;
}

#endif
