/*
 * Functions whose formulas are the same for f32 and f64. vmath.h and vmath_d.h each define the
 * polynomials and range reductions of their type and then include this file. real_names.h defines
 * the names: F(exp) is vf_exp or vd_exp, K(x) is x in every lane. A comment states the error bound
 * in units in the last place (ulp), for both types unless it says otherwise.
 */
// SPDX-License-Identifier: MIT
#include "backends/cpu/real_names.h"

/*
 * EXP_LOW, EXP_HIGH    e^x rounds to 0 below EXP_LOW and is Inf above EXP_HIGH; EXP2_LOW and
 *                      EXP2_HIGH likewise for 2^x
 * EXPM1_LOW            e^x - 1 rounds to -1 for smaller x
 * TANH_END             tanh(x) rounds to ±1 for larger |x|
 * NORMAL_END           Phi(-x) rounds to 0 and Phi(x) to 1 for larger x; Phi: standard normal
 *                      distribution function
 * ERFC_END             erfc(x) rounds to 0 for larger x
 * LEAST_POWER          least n for which F(power)(n) is a normal number
 * HALF_PI_LOW          pi/2 minus HALF_PI, pi/2 rounded to the type
 * HUGE_SUM             the sum of two numbers up to HUGE_SUM is finite
 * TRIG_LIMIT           F(trig) reduces arguments |x| < TRIG_LIMIT; others call libm
 */
#if REAL_BITS == 32
#define NORMAL_END 15
#define ERFC_END 10.5
#define HALF_PI_LOW -0x1.777a5cp-25
#define HUGE_SUM 0x1p125
#define EXP_LOW -104
#define EXP_HIGH 89
#define EXP2_LOW -151
#define EXP2_HIGH 129
#define EXPM1_LOW -18
#define TANH_END 10
#define LEAST_POWER -126
#define BITS vu
#else
#define NORMAL_END 40
#define ERFC_END 27.5
#define HALF_PI_LOW 0x1.1a62633145c07p-54
#define HUGE_SUM 0x1p1021
#define EXP_LOW -746
#define EXP_HIGH 710
#define EXP2_LOW -1076
#define EXP2_HIGH 1025
#define EXPM1_LOW -40
#define TANH_END 20
#define LEAST_POWER -1022
#define BITS vul
#endif
#define LOG2E 0x1.71547652b82fep+0
#define TRIG_LIMIT 0x1p20
#define HALF_PI 0x1.921fb54442d18p+0

/** max(lo, min(hi, x)); NaN stays NaN. */
VEC_FN V F(clamp)(V x, T lo, T hi) { return F(max_fast)(K(lo), F(min_fast)(K(hi), x)); }

/* ------------------------------------------------------------------------ exponentials ---- */

/* 2^n e^r, for |r| at most slightly more than ln(2)/2. */
VEC_FN V F(exp_reduced)(V r, V n)
{
    return F(ldexp_fast)(F(fma)(r * r, F(exp_poly)(r), r) + K(1), n);
}

/** e^x: 1 ulp. */
VEC_FN V F(exp)(V x)
{
    x = F(clamp)(x, EXP_LOW, EXP_HIGH);
    V n = F(rint)(x * K(LOG2E));
    return F(exp_reduced)(F(exp_reduce)(x, n), n);
}

/** e^x / 2, which is finite wherever sinh(x) and cosh(x) are: 1 ulp. */
VEC_FN V F(exp_half)(V x)
{
    x = F(clamp)(x, EXP_LOW, EXP_HIGH + 1);
    V n = F(rint)(x * K(LOG2E));
    return F(exp_reduced)(F(exp_reduce)(x, n), n - K(1));
}

/** e^(-s a^2), a >= 0, s = 1 or 1/2. The square is split into an exact part and a rest, because exp
 * turns the absolute error of its argument into a relative error of the result. */
VEC_FN V F(exp_square)(V a, T s)
{
    V coarse = F(short)(a);
    V x = F(max_fast)(K(EXP_LOW), coarse * coarse * -s);
    V tail = (a - coarse) * (a + coarse) * -s;
    V n = F(rint)((x + tail) * K(LOG2E));
    return F(exp_reduced)(F(exp_reduce)(x, n) + tail, n);
}

/** 2^x: 1 ulp. */
VEC_FN V F(exp2)(V x)
{
    x = F(clamp)(x, EXP2_LOW, EXP2_HIGH);
    V n = F(rint)(x), r = x - n;
    return F(ldexp_fast)(F(fma)(r, F(exp2_poly)(r), K(1)), n);
}

/* e^r - 1, where x = n ln 2 + r with the nearest whole n; *n receives n. */
VEC_FN V F(expm1_rest)(V x, V *n)
{
    *n = F(rint)(x * K(LOG2E));
    V r = F(exp_reduce)(x, *n);
    return F(fma)(r * r, F(expm1_poly)(r), r);
}

/** e^x - 1: 2 ulp, as 2^n (e^r - 1) + (2^n - 1). It is computed with 2^(n-1) and doubled, because
 * 2^n may overflow. */
VEC_FN V F(expm1)(V x)
{
    V n, e = F(expm1_rest)(F(clamp)(x, EXPM1_LOW, EXP_HIGH), &n), half = F(power)(n - K(1));
    V y = F(fma)(half, e, half - K(0.5)) * K(2);
    return F(copysign)(F(select)(F(eq)(n, F(zero)()), e, y), x);
}

/** Hyperbolic tangent: 3 ulp, from y = e^(2|x|) - 1 as y / (y + 2). |x| is clamped to TANH_END, so
 * 2^n neither overflows nor underflows. */
VEC_FN V F(tanh)(V x)
{
    V n, e = F(expm1_rest)(F(min_fast)(K(TANH_END), F(abs)(x)) * K(2), &n), scale = F(power)(n);
    V y = F(fma)(scale, e, scale - K(1));
    return F(copysign)(y / (y + K(2)), x);
}

/* -------------------------------------------------------------------------- logarithms ---- */

/* y where 0 < x < Inf, else the logarithm's limit: -Inf at 0, Inf at Inf, NaN for x < 0 and NaN. */
VEC_FN V F(log_limits)(V x, V y)
{
    VM inside = M(and)(F(gt)(x, F(zero)()), F(lt)(x, K(INFINITY)));
    if (__builtin_expect(M(all)(inside), 1))
        return y;
    V limit = F(select)(F(gt)(x, F(zero)()), x, K(NAN));
    limit = F(select)(F(eq)(x, F(zero)()), K(-INFINITY), limit);
    return F(select)(inside, y, limit);
}

/** Natural logarithm: 1 ulp. */
VEC_FN V F(log)(V x)
{
    V k, m = F(split)(x, &k);
    return F(log_limits)(x, F(log_sum)(m - K(1), k));
}

/** log(1 + x): 2 ulp. u is the rounded 1 + x, c its rounding error, which is scaled and added to
 * the mantissa f of u. */
VEC_FN V F(log1p)(V x)
{
    V u = x + K(1), back = u - K(1);
    V c = (x - back) + (K(1) - (u - back));
    V k, m = F(split)(u, &k);
    V f = (m - K(1)) + c * F(power)(F(max_fast)(K(LEAST_POWER), F(neg)(k)));
    return F(copysign)(F(log_limits)(u, F(log_sum)(f, k)), x);
}

/* ------------------------------------------------------------------ sin, cos and tan ---- */

/* y in lanes with |x| < TRIG_LIMIT; the other lanes call libm's `function` in f64. */
VEC_FN V F(trig_far)(V x, V y, double (*function)(double))
{
    if (__builtin_expect(M(all)(F(lt)(F(abs)(x), K(TRIG_LIMIT))), 1))
        return y;
    for (int i = 0; i < LANES; i++)
        if (!(fabs((double)x[i]) < TRIG_LIMIT))
            y[i] = (T)function((double)x[i]);
    return y;
}

/** Sine and cosine of x, |x| < TRIG_LIMIT, with the bits of F(sin)() and F(cos)(). */
VEC_FN void F(sin_cos)(V x, V *sine, V *cosine)
{
    V s, c;
    BITS quadrant = F(trig)(x, &s, &c);
    s = (V)((BITS)s ^ (quadrant & 2u) << (REAL_BITS - 2));
    *sine = F(select)(F(eq)(x, F(zero)()), x, s); /* sin(-0) is -0 */
    *cosine = (V)((BITS)c ^ ((quadrant + 1u) & 2u) << (REAL_BITS - 2));
}

/** Sine: 2 ulp (f64: 1). */
VEC_FN V F(sin)(V x)
{
    V s, c;
    F(sin_cos)(x, &s, &c);
    return F(trig_far)(x, s, sin);
}

/** Cosine: 2 ulp (f64: 1). */
VEC_FN V F(cos)(V x)
{
    V s, c;
    F(sin_cos)(x, &s, &c);
    return F(trig_far)(x, c, cos);
}

/** Tangent: 4 ulp (f64: 3). */
VEC_FN V F(tan)(V x)
{
    V s, c;
    BITS quadrant = F(trig)(x, &s, &c);
    V y = (V)((BITS)(s / c) ^ (quadrant & 1u) << (REAL_BITS - 1));
    return F(trig_far)(x, F(select)(F(eq)(x, F(zero)()), x, y), tan);
}

/* ------------------------------------------------------------------ sigmoid and related --- */

/** 1 / sqrt(x): 2 ulp. */
VEC_FN V F(rsqrt)(V x) { return K(1) / F(sqrt)(x); }

/** 1 / (1 + e^-x): 3 ulp. */
VEC_FN V F(sigmoid)(V x)
{
    V e = F(exp)(F(neg)(F(abs)(x)));
    return F(select)(F(lt)(x, F(zero)()), e, K(1)) / (e + K(1));
}

/** x sigmoid(x): 4 ulp for x > -87 (f64: -700). */
VEC_FN V F(silu)(V x)
{
    V e = F(exp)(F(neg)(F(abs)(x)));
    V c = F(max_fast)(K(-1000), x);
    return c * F(select)(F(lt)(x, F(zero)()), e, K(1)) / (e + K(1));
}

/** Derivative of silu: s (1 + x (1 - s)), s = sigmoid(x). Absolute error 2^-22 (f64: 2^-51). */
VEC_FN V F(silu_grad)(V x)
{
    V e = F(exp)(F(neg)(F(abs)(x)));
    V inverse = K(1) / (e + K(1));
    V s = F(select)(F(lt)(x, F(zero)()), e, K(1)) * inverse;
    return F(fma)(F(clamp)(x, -1000, 1000), e * inverse * inverse, s);
}

/**
 * Derivative of mish: t + x s (1 - t^2), with t = tanh(softplus(x)) and s = sigmoid(x). With
 * e = e^x and n = e (e + 2), t = n / (n + 2) and s (1 - t^2) = 4 e (1 + e) / (n + 2)^2. Absolute
 * error 2^-21 (f64: 2^-50).
 */
VEC_FN V F(mish_grad)(V x)
{
    V c = F(clamp)(x, -1000, 40), e = F(exp)(c), n = e * (e + K(2)), inverse = K(1) / (n + K(2));
    return inverse * F(fma)(c * K(4) * e, (K(1) + e) * inverse, n);
}

/** log(1 + e^x): 3 ulp. */
VEC_FN V F(softplus)(V x)
{
    return F(max_fast)(x, F(zero)()) + F(log1p)(F(exp)(F(neg)(F(abs)(x))));
}

/* -------------------------------------------------------------------- erfc and gelu ------- */

/** Complementary error function: 5 ulp. */
VEC_FN V F(erfc)(V x)
{
    V a = F(min_fast)(K(ERFC_END), F(abs)(x));
    V tail = F(normal_tail)(a * K(0x1.6a09e667f3bcdp+0), F(exp_square)(a, 1)) * K(2);
    return F(select)(F(lt)(x, F(zero)()), K(2) - tail, tail);
}

/* Returns Phi(x), the standard normal distribution function; *bell receives exp(-x^2/2). */
VEC_FN V F(normal_cdf)(V x, V *bell)
{
    V t = F(min_fast)(K(NORMAL_END), F(abs)(x));
    *bell = F(exp_square)(t, (T)0.5);
    V tail = F(normal_tail)(t, *bell);
    return F(select)(F(lt)(x, F(zero)()), tail, K(1) - tail);
}

/** x Phi(x), the erf form: 5 ulp for x > -13 (f64: -37). */
VEC_FN V F(gelu)(V x)
{
    V bell, cdf = F(normal_cdf)(x, &bell);
    return F(max_fast)(K(-NORMAL_END), x) * cdf;
}

/** Derivative of gelu: Phi(x) + x phi(x), phi the normal density. Absolute error 2^-22 (f64:
 * 2^-51). */
VEC_FN V F(gelu_grad)(V x)
{
    V bell, cdf = F(normal_cdf)(x, &bell);
    return F(fma)(F(clamp)(x, -NORMAL_END, NORMAL_END), bell * K(0.39894228040143267794), cdf);
}

/* gelu's tanh form is x sigmoid(2 y), 2 y = sqrt(8/pi) (x + 0.044715 x^3). */
#define GELU_1 K(1.59576912160573071176)
#define GELU_3 K(0.07135481627260024878)

/**
 * 0.5 x (1 + tanh(y)): 4 ulp for x >= -1. For x < -1 the bound is 4 + 3 |2 y| ulp, because exp
 * amplifies the five rounding errors of 2 y.
 */
VEC_FN V F(gelu_tanh)(V x)
{
    V y = x * F(fma)(x * x, GELU_3, GELU_1);
    V e = F(exp)(F(neg)(F(abs)(y)));
    V c = F(max_fast)(K(-NORMAL_END), x);
    return c * F(select)(F(lt)(x, F(zero)()), e, K(1)) / (e + K(1));
}

/** Derivative of gelu_tanh: s + x s (1 - s) (2 y)', s = sigmoid(2 y). Absolute error 2^-21 (f64:
 * 2^-50). */
VEC_FN V F(gelu_tanh_grad)(V x)
{
    V c = F(clamp)(x, -NORMAL_END, NORMAL_END), z = c * c;
    V y = c * F(fma)(z, GELU_3, GELU_1);
    V e = F(exp)(F(neg)(F(abs)(y)));
    V inverse = K(1) / (e + K(1));
    V s = F(select)(F(lt)(c, F(zero)()), e, K(1)) * inverse;
    V slope = c * F(fma)(z, GELU_3 * K(3), GELU_1);
    return F(fma)(e * inverse * inverse, slope, s);
}

/* -------------------------------------------------------------------- hyperbolic ---------- */

/** Hyperbolic sine: 4 ulp. */
VEC_FN V F(sinh)(V x)
{
    V a = F(abs)(x), e = F(expm1)(F(min_fast)(K(22), a));
    V near = (e + e / (e + K(1))) * K(0.5);
    return F(copysign)(F(select)(F(lt)(a, K(22)), near, F(exp_half)(a)), x);
}

/** Hyperbolic cosine: 2 ulp. */
VEC_FN V F(cosh)(V x)
{
    V h = F(exp_half)(F(abs)(x));
    return h + K(0.25) / h;
}

/* -------------------------------------------------------------------- inverse ------------- */

/** Arc sine: 3 ulp. For |x| > 1/2: asin(|x|) = pi/2 - 2 asin(sqrt((1 - |x|) / 2)). */
VEC_FN V F(asin)(V x)
{
    V a = F(abs)(x);
    VM small = F(le)(a, K(0.5));
    V z = F(select)(small, a * a, K(0.5) - a * K(0.5));
    V s = F(select)(small, a, F(sqrt)(z));
    V y = F(fma)(s * z, F(asin_rest)(z), s);
    V large = K(HALF_PI) - (y * K(2) - K(HALF_PI_LOW));
    return F(copysign)(F(select)(small, y, large), x);
}

/** Arc cosine: 3 ulp. */
VEC_FN V F(acos)(V x)
{
    V a = F(abs)(x);
    VM small = F(le)(a, K(0.5));
    V z = F(select)(small, a * a, K(0.5) - a * K(0.5));
    V s = F(select)(small, x, F(sqrt)(z));
    V p = s * z * F(asin_rest)(z), y = (s + p) * K(2);
    V middle = K(HALF_PI) - (s + (p - K(HALF_PI_LOW)));
    V left = K(2 * HALF_PI) - (y - K(2 * HALF_PI_LOW));
    return F(select)(small, middle, F(select)(F(lt)(x, F(zero)()), left, y));
}

/* atan(b / a) for a, b >= 0, not both 0 or both Inf, a + b finite unless one is Inf, with a single
 * division. If b / a > tan(3 pi/8), the result is pi/2 - atan(a / b); else if b / a > tan(pi/8), it
 * is pi/4 + atan((b - a) / (b + a)). */
VEC_FN V F(atan_ratio)(V b, V a)
{
    VM high = F(gt)(b, a * K(0x1.3504f333f9de6p+1)), middle = F(gt)(b, a * K(0x1.a827999fcef32p-2));
    V over = F(select)(high, F(neg)(a), F(select)(middle, b - a, b));
    V under = F(select)(high, b, F(select)(middle, b + a, a));
    V t = over / under, z = t * t;
    V part = F(select)(high, K(1), F(select)(middle, K(0.5), F(zero)()));
    V low = F(fma)(t * z, F(atan_rest)(z), part * K(HALF_PI_LOW));
    return part * K(HALF_PI) + (t + low);
}

/** Arc tangent: 2 ulp. */
VEC_FN V F(atan)(V x) { return F(copysign)(F(atan_ratio)(F(abs)(x), K(1)), x); }

/** Angle of (x, y), in [-pi, pi], as C's atan2: 3 ulp. */
VEC_FN V F(atan2)(V y, V x)
{
    V a = F(abs)(x), b = F(abs)(y);
    VM most = M(and)(F(eq)(a, K(INFINITY)), F(eq)(b, K(INFINITY))), none = F(eq)(a + b, K(0));
    V scale = F(select)(F(gt)(F(max_fast)(a, b), K(HUGE_SUM)), K(0.25), K(1));
    a = F(select)(M(or)(most, none), K(1), a * scale);
    b = F(select)(most, K(1), b * scale);
    V r = F(atan_ratio)(b, a);
    V left = K(2 * HALF_PI) - (r - K(2 * HALF_PI_LOW));
    return F(copysign)(F(select)(F(lt)(F(copysign)(K(1), x), F(zero)()), left, r), y);
}

#undef NORMAL_END
#undef EXP_LOW
#undef EXP_HIGH
#undef EXP2_LOW
#undef EXP2_HIGH
#undef EXPM1_LOW
#undef TANH_END
#undef LEAST_POWER
#undef BITS
#undef LOG2E
#undef TRIG_LIMIT
#undef ERFC_END
#undef HALF_PI_LOW
#undef HUGE_SUM
#undef HALF_PI
#undef GELU_1
#undef GELU_3
