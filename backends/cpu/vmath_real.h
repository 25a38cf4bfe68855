/*
 * Functions whose formula is the same for f32 and f64, over the functions of vmath.h and vmath_d.h.
 * vmath.h includes this file once for each type. Bounds are for both types unless a line says
 * otherwise.
 */
// SPDX-License-Identifier: MIT
#include "backends/cpu/real_names.h"

/* NORMAL_END: beyond it Phi is 0 or 1. HALF_PI_LOW: pi/2 less its nearest number. HUGE_SUM: the
 * sum of two numbers up to it is finite. */
#if REAL_BITS == 32
#define NORMAL_END 15
#define ERFC_END 10.5
#define HALF_PI_LOW -0x1.777a5cp-25
#define HUGE_SUM 0x1p125
#else
#define NORMAL_END 40
#define ERFC_END 27.5
#define HALF_PI_LOW 0x1.1a62633145c07p-54
#define HUGE_SUM 0x1p1021
#endif
#define HALF_PI 0x1.921fb54442d18p+0

/** 1 / sqrt(x): 2 ulp. */
VEC_FN V F(rsqrt)(V x) { return K(1) / F(sqrt)(x); }

/* -------------------------------------------------------------------- sigmoid and kin ----- */

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

/* The normal distribution: Phi(x), and exp(-x^2/2) to *bell. */
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

/** Derivative: Phi(x) + x phi(x). Absolute error 2^-22 (f64: 2^-51). */
VEC_FN V F(gelu_grad)(V x)
{
    V bell, cdf = F(normal_cdf)(x, &bell);
    return F(fma)(F(clamp)(x, -NORMAL_END, NORMAL_END), bell * K(0.39894228040143267794), cdf);
}

/* gelu's tanh form is x sigmoid(2 y), 2 y = sqrt(8/pi) (x + 0.044715 x^3). */
#define GELU_1 K(1.59576912160573071176)
#define GELU_3 K(0.07135481627260024878)

/**
 * 0.5 x (1 + tanh(y)): 4 ulp for x >= -1; to the left 4 + 3 |2 y| ulp,
 * since the five roundings of 2 y go through exp.
 */
VEC_FN V F(gelu_tanh)(V x)
{
    V y = x * F(fma)(x * x, GELU_3, GELU_1);
    V e = F(exp)(F(neg)(F(abs)(y)));
    V c = F(max_fast)(K(-NORMAL_END), x);
    return c * F(select)(F(lt)(x, F(zero)()), e, K(1)) / (e + K(1));
}

/** Derivative: s + x s (1 - s) (2 y)', s = sigmoid(2 y). Absolute error 2^-21 (f64: 2^-50). */
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

/** Arc sine: 3 ulp. Above 1/2 by asin(x) = pi/2 - 2 asin(sqrt((1 - x) / 2)). */
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

/* atan(b / a) for a, b >= 0, not both 0 or both Inf, a + b finite unless one is Inf. One division:
 * above tan(3 pi/8) by pi/2 - atan(a / b), above tan(pi/8) by pi/4 + atan((b - a) / (b + a)). */
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
#undef ERFC_END
#undef HALF_PI_LOW
#undef HUGE_SUM
#undef HALF_PI
#undef GELU_1
#undef GELU_3
