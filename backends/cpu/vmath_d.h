/*
 * Elementary functions on vectors of f64: the f64 half of vmath.h, which includes this file. The
 * rules of vmath.h apply: every variant uses the same formulas, a lane's result depends only on its
 * argument, and tests/cpu/vmath.c asserts the error bounds, which are in units in the last place
 * (ulp).
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_VMATH_D_H
#define TS_BACKENDS_CPU_VMATH_D_H

#include "backends/cpu/vec.h"

/** c[0] + c[1] x + ... + c[n-1] x^(n-1) by Horner's rule. */
VEC_FN vd vec_horner_d(vd x, const double *c, int n)
{
    vd p = vd_set1(c[n - 1]);
    for (int i = n - 2; i >= 0; i--)
        p = vd_fma(p, x, vd_set1(c[i]));
    return p;
}
#define VEC_POLY_D(x, ...)                                                                      \
    vec_horner_d(x, (const double[]){__VA_ARGS__}, (int)(sizeof((double[]){__VA_ARGS__}) / 8))

/* ------------------------------------------ f64 functions that vmath_real.h requires ---- */

/* 2^n for whole n in [-1022, 1023]. The sum's low bits are the biased exponent. */
VEC_FN vd vd_power(vd n) { return (vd)((vul)(n + (0x1.8p52 + 1023)) << 52); }

/* x 2^n for x in [0.5, 2), whole n in [-1100, 1026]: two exact factors, one rounding. */
VEC_FN vd vd_ldexp_fast(vd x, vd n)
{
    vd half = vd_rint(n * 0.5);
    return x * vd_power(half) * vd_power(n - half);
}

/* x without its last 27 bits: products of two such numbers are exact. */
VEC_FN vd vd_short(vd x) { return (vd)((vl)x & ~INT64_C(0x7ffffff)); }

/* x - n ln 2; the first part of ln 2 has 41 bits, so its products with n are exact. */
VEC_FN vd vd_exp_reduce(vd x, vd n)
{
    vd r = vd_fma(n, vd_set1(-0x1.62e42fefa3p-1), x);
    return vd_fma(n, vd_set1(-0x1.3de6af278ece6p-42), r);
}

/* p(r) of e^r = 1 + r + r^2 p(r), |r| <= ln(2)/2. expm1_poly() is the same for e^r - 1, with one
 * more coefficient; exp2_poly() is p(r) of 2^r = 1 + r p(r), |r| <= 1/2. */
VEC_FN vd vd_exp_poly(vd r)
{
    /* minimax.py exp_d */
    return VEC_POLY_D(r, 0.50000000000000111, 0.16666666666666413, 0.041666666666529871,
                      0.00833333333349481, 0.001388888894371597, 0.00019841269506027924,
                      2.4801493000213903e-05, 2.7557586676062859e-06, 2.7630286644853791e-07,
                      2.5000027435882775e-08);
}
VEC_FN vd vd_expm1_poly(vd r)
{
    /* minimax.py expm1_d */
    return VEC_POLY_D(r, 0.5, 0.16666666666666677, 0.041666666666666512,
                      0.0083333333333216672, 0.001388888888896252, 0.00019841269886037229,
                      2.4801587172347316e-05, 2.7557244294626245e-06, 2.755740272018602e-07,
                      2.5109009099220903e-08, 2.0875332294065263e-09);
}
VEC_FN vd vd_exp2_poly(vd r)
{
    /* minimax.py exp2_d */
    return VEC_POLY_D(r, 0.69314718055994529, 0.24022650695910072, 0.055504108664821687,
                      0.0096181291076283294, 0.0013333558146392691, 0.0001540353039364072,
                      1.5252733854318436e-05, 1.3215486594914396e-06, 1.0178051941929791e-07,
                      7.0549744770552931e-09, 4.4565705107098272e-10, 2.5625422887287152e-11);
}

/* Splits x > 0 into m 2^k with m in [sqrt(1/2), sqrt(2)); returns m. Denormals are scaled first. */
VEC_FN vd vd_split(vd x, vd *k)
{
    vdm tiny = vd_lt(x, vd_set1(0x1p-1022));
    vul bits = (vul)vd_select(tiny, x * 0x1p54, x);
    vul e = (bits - 0x3fe6a09e667f3bcdu) & 0xfff0000000000000u;
    vul biased = (e + 0x3ff0000000000000u) >> 52 | 0x4330000000000000u; /* as 2^52 + k + 1023 */
    *k = ((vd)biased - (0x1p52 + 1023)) - vd_select(tiny, vd_set1(54.0), vd_zero());
    return (vd)(bits - e);
}

/* k ln 2 + log(1 + f) = k ln 2 + f - (f^2/2 - s (f^2/2 + z g(z))), s = f / (2 + f), z = s^2 */
VEC_FN vd vd_log_sum(vd f, vd k)
{
    vd s = f / (f + 2.0), z = s * s, half = f * f * 0.5;
    /* minimax.py log_d */
    vd g = VEC_POLY_D(z, 0.66666666666667351, 0.39999999999407015, 0.2857142874425691,
                      0.22222198365672879, 0.18183575877371425, 0.15313736422181415,
                      0.14799270294136604);
    vd r = vd_fma(s, vd_fma(z, g, half), k * 0x1.3de6af278ece6p-42);
    return vd_fma(k, vd_set1(0x1.62e42fefa3p-1), f - (half - r));
}

/* x - n pi/2 with the nearest n, for |x| <= 2^20; *tail receives the low part. The first three
 * parts of pi/2 have 33 bits, so their products with n are exact. The subtractions are exact, or
 * `low` accumulates their rounding errors. */
VEC_FN vd vec_trig_reduce_d(vd x, vd *n, vd *tail)
{
    *n = vd_rint(x * 0x1.45f306dc9c883p-1);
    vd a = x - *n * 0x1.921fb544p+0;
    vd w = *n * 0x1.0b4611a6p-34, b = a - w, low = (a - b) - w;
    w = *n * 0x1.3198a2ep-69;
    vd c = b - w;
    low += ((b - c) - w) - *n * 0x1.b839a252049c1p-104;
    vd r = c + low;
    *tail = (c - r) + low;
    return r;
}

/* Writes sine and cosine of the reduced argument, swapped in odd quadrants. The low two bits of the
 * result are the quadrant of x. */
VEC_FN vul vd_trig(vd x, vd *sine, vd *cosine)
{
    vd n, tail, r = vec_trig_reduce_d(x, &n, &tail), z = r * r;
    /* minimax.py sin_d */
    vd s = VEC_POLY_D(z, -0.16666666666666632, 0.0083333333333224201, -0.00019841269829813253,
                      2.7557313693886775e-06, -2.5050758435333099e-08, 1.5896814854031079e-10);
    s = r + vd_fma(r * z, s, tail * (1.0 - z * 0.5));
    /* minimax.py cos_d */
    vd c = VEC_POLY_D(z, 0.041666666666666602, -0.0013888888888874133, 2.4801587289487978e-05,
                      -2.7557314354079273e-07, 2.0875723519957196e-09, -1.1359661036383303e-11);
    vd half = z * 0.5, w = 1.0 - half;
    c = w + (((1.0 - w) - half) + (z * z * c - r * tail));

    vul quadrant = (vul)(n + 0x1.8p52);
    vdm swap = vd_ne((vd)(((quadrant & 1u) << 52)), vd_zero());
    *sine = vd_select(swap, c, s);
    *cosine = vd_select(swap, s, c);
    return quadrant;
}

/* g(z) of asin(x) = x + x z g(z), z = x^2 <= 1/4; of atan(x) = x + x z g(z), z <= tan(pi/8)^2 */
VEC_FN vd vd_asin_rest(vd z)
{
    /* minimax.py asin_d */
    return VEC_POLY_D(z, 0.16666666666665383, 0.075000000003430586, 0.04464285682347291,
                      0.030381959331552289, 0.022371753518163888, 0.017359771159441775,
                      0.013884598130926511, 0.012173280767321168, 0.0065108492259052173,
                      0.019573913230101294, -0.016294079750426904, 0.031958967141158513);
}
VEC_FN vd vd_atan_rest(vd z)
{
    /* minimax.py atan_d */
    return VEC_POLY_D(z, -0.33333333333330217, 0.19999999999104684, -0.1428571419652801,
                      0.11111106703600662, -0.090907835293990893, 0.076900833633149049,
                      -0.066412463077680228, 0.056931650666586689, -0.043608260435221237,
                      0.021280149153956526);
}

/* erf(x) = x + x g(x^2), |x| <= 1 */
VEC_FN vd vec_erf_near_d(vd x)
{
    /* minimax.py erf_d */
    vd g = VEC_POLY_D(x * x, 0.12837916709551259, -0.37612638903183748, 0.11283791670954857,
                      -0.026866170645072893, 0.0052239776247808576, -0.00085483269787416235,
                      0.00012055331036877693, -1.492559350635416e-05, 1.6460972808387967e-06,
                      -1.635002513160405e-07, 1.4657879238000612e-08, -1.1365663671403912e-09,
                      5.9452579668130759e-11);
    return vd_fma(x, g, x);
}

/* Phi(-t), where Phi is the standard normal distribution function, for t in [0, 40], with a small
 * relative error even where Phi is tiny. bell is exp(-t^2/2). g amplifies the relative error of u
 * threefold, so u is split into a short number and a rest. For t < 0.75 the result is computed from
 * erf. */
VEC_FN vd vd_normal_tail(vd t, vd bell)
{
    vd w = t + 5.0, inverse = 1.0 / w, u = vd_short(inverse * 5.0), coarse = vd_short(w);
    vd rest = ((5.0 - u * coarse) - u * (w - coarse)) - u * (t - (w - 5.0));
    rest *= inverse;
    /* minimax.py normal_tail_d */
    vd g = VEC_POLY_D((u - 0.5625) + rest, 0.17215197210376754, 0.32211330113315911,
                      0.50382332793676954, 0.652287154382588, 0.6825030864793642,
                      0.54779359099136282, 0.29406103826751706, 0.048114366311625016,
                      -0.073459883628102587, -0.05837225131278953, 0.0047910114966675616,
                      0.027906544820146369, 0.005533074597064769, -0.012848313172622132,
                      -0.0046787439455659311, 0.0066882010908865261, 0.0027850188790291782,
                      -0.0039825321715014688, -0.0014233973664298548, 0.0023651693735528192,
                      0.00066606843226972253, -0.00095165514277253721, -0.00027132984074654465);
    vd near = 0.5 - vec_erf_near_d(t * 0x1.6a09e667f3bcdp-1) * 0.5;
    return vd_select(vd_lt(t, vd_set1(0.75)), near, bell * vd_fma(u, g, rest * g));
}

#define REAL_BITS 64
#include "backends/cpu/vmath_real.h"
#undef REAL_BITS

/* ----------------------------------------------------------- formulas of f64 alone ---- */

/** Logarithm to base 2: 2 ulp. The factor log2(e) has two parts. */
VEC_FN vd vd_log2(vd x)
{
    vd k, f = vd_split(x, &k) - 1.0, y = vd_log_sum(f, vd_zero());
    vd r = vd_fma(y, vd_set1(0x1.777d0ffda0d24p-56), y * 0x1.71547652b82fep+0);
    return vd_log_limits(x, k + r);
}

/** Logarithm to base 10: 2 ulp. */
VEC_FN vd vd_log10(vd x)
{
    vd k, f = vd_split(x, &k) - 1.0, y = vd_log_sum(f, vd_zero());
    vd r = vd_fma(k, vd_set1(0x1.3fde623e2566bp-43), y * 0x1.bcb7b1526e50ep-2);
    return vd_log_limits(x, vd_fma(k, vd_set1(0x1.34413509f7p-2), r));
}

/* e^(x + low) for x in [-746, 710], |low| at most an ulp of x. */
VEC_FN vd vec_exp_sum_d(vd x, vd low)
{
    vd n = vd_rint(x * 0x1.71547652b82fep+0);
    return vd_exp_reduced(vd_exp_reduce(x, n) + low, n);
}

/** Error function: 2 ulp. */
VEC_FN vd vd_erf(vd x)
{
    vd a = vd_min_fast(vd_set1(6.0), vd_abs(x));
    /* minimax.py erfc_d; erf rounds to 1 at 6, so erfc needs only a small absolute error */
    vd g = VEC_POLY_D(a - 3.5, 3.0321249720422894, 0.92399274753331162, 0.012217230723157699,
                      -0.0019975919922257039, 0.00032111516412871422, -4.9664258081218686e-05,
                      7.2191883970355784e-06, -9.516542269759556e-07, 1.0945547827551804e-07,
                      -9.3035942468943225e-10, 2.071265645396705e-09, -3.9690343008546603e-10,
                      -2.2545664946944475e-09, -1.4904448241901943e-09, -6.2082772759501511e-10,
                      -1.5385604154646949e-10, -2.2707341665068326e-11, -1.5079233293013574e-12);
    vd large = 1.0 - vec_exp_sum_d(vd_neg(vd_fma(a, g, a)), vd_zero());
    return vd_select(vd_lt(a, vd_set1(1.0)), vec_erf_near_d(x), vd_copysign(large, x));
}

/* log(x) of a positive x as the result plus *low: relative error 2^-63. With x = m 2^k, s = (m - 1)
 * / (m + 1) and z = s^2, it is k ln 2 + s (2 + z (2/3 + z g(z))). A name with _l is the low part of
 * a sum of two numbers. */
VEC_FN vd vec_log_parts_d(vd x, vd *low)
{
    vd k, m = vd_split(x, &k), f = m - 1.0, sum = m + 1.0, sum_l = m - (sum - 1.0);
    vd inverse = 1.0 / sum, s = f * inverse;
    vd s_l = (vd_fma(vd_neg(s), sum, f) - s * sum_l) * inverse;
    vd z = s * s, z_l = vd_fma(s, s, vd_neg(z)) + 2.0 * s * s_l;
    /* minimax.py log_parts_d */
    vd t = z * VEC_POLY_D(z, 0.40000000000002289, 0.28571428570082619, 0.22222222523087887,
                          0.18181784079020735, 0.15386771078058645, 0.13256487361040775,
                          0.13199484068884315);
    vd base = vd_set1(0x1.5555555555555p-1), q = base + t;
    vd q_l = (t - (q - base)) + 0x1.5555555555555p-55;
    vd r = z * q, r_l = vd_fma(z, q, vd_neg(r)) + (z * q_l + z_l * q);
    vd u = r + 2.0, u_l = (r - (u - 2.0)) + r_l;
    vd y = s * u, y_l = vd_fma(s, u, vd_neg(y)) + (s * u_l + s_l * u);
    vd whole = k * 0x1.62e42fefa3p-1, high = whole + y;
    *low = (y - (high - whole)) + (y_l + k * 0x1.3de6af278ece6p-42);
    return high;
}

/** x^y with the limits of C's pow(): 2 ulp. Lanes with x = 0, or with an infinite or NaN argument,
 * call libm. All lanes do so in a baseline without FMA, because the formula needs FMA for the
 * rounding errors of products. */
VEC_FN vd vd_pow(vd x, vd y)
{
#if VEC_ISA == VEC_IS_baseline && !defined __FP_FAST_FMA
    for (int i = 0; i < VD_LANES; i++)
        x[i] = pow(x[i], y[i]);
    return x;
#else
    vd inf = vd_set1(INFINITY), low, log = vec_log_parts_d(vd_abs(x), &low), e = y * log;
    low = vd_fma(y, log, vd_neg(e)) + y * low;
    vdm inside = vd_lt(vd_abs(e), vd_set1(1000.0));
    vd result = vec_exp_sum_d(vd_clamp(e, -746, 710), vd_select(inside, low, vd_zero()));

    /* A negative base: NaN unless y is an integer, negative if y is odd. */
    vdm negative = vd_lt(x, vd_zero());
    if (vdm_any(negative)) {
        vd half = y * 0.5;
        vdm whole = vd_eq(vd_rint(y), y), odd = vdm_and(whole, vd_ne(vd_rint(half), half));
        result = vd_select(vdm_and(negative, odd), vd_neg(result), result);
        result = vd_select(vdm_and(negative, vdm_not(whole)), vd_set1(NAN), result);
    }
    vdm plain = vdm_and(vdm_and(vd_lt(vd_abs(x), inf), vd_ne(x, vd_zero())),
                        vd_lt(vd_abs(y), inf));
    if (__builtin_expect(vdm_all(plain), 1))
        return result;
    for (int i = 0; i < VD_LANES; i++)
        if (!(fabs(x[i]) < INFINITY && x[i] != 0 && fabs(y[i]) < INFINITY))
            result[i] = pow(x[i], y[i]);
    return result;
#endif
}

#endif
