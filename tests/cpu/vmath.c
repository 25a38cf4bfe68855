// vmath.h against libm in f64 over all of f32: documented bounds, limits, independence of lanes.
// SPDX-License-Identifier: MIT
#include "backends/cpu/vmath.h"
#include "tests/cpu/vec_test.h"

#include <stdio.h>

/* The sweep takes every STRIDE-th f32, negative and positive, denormals, Inf and NaN included. */
#define STRIDE 997

typedef void (*vector_fn)(float *y, const float *x);
typedef double (*scalar_fn)(double x);

typedef struct function {
    const char *name;
    vector_fn vector;
    scalar_fn exact;
    double ulp;      // bound in ulp of the result with FMA
    double absolute; // or an absolute bound, where that is larger
    float lo, hi;    // the ulp bound is for these arguments, both 0 for all
} function;

#define VECTOR(name)                                                                          \
    static void run_##name(float *y, const float *x) { vf_store(y, vf_##name(vf_load(x))); }
VECTOR(exp) VECTOR(exp2) VECTOR(expm1) VECTOR(log) VECTOR(log1p) VECTOR(log2) VECTOR(log10)
VECTOR(sigmoid) VECTOR(silu) VECTOR(silu_grad) VECTOR(tanh) VECTOR(softplus) VECTOR(erf)
VECTOR(gelu) VECTOR(gelu_grad) VECTOR(gelu_tanh) VECTOR(gelu_tanh_grad) VECTOR(sin) VECTOR(cos)
VECTOR(rsqrt) VECTOR(tan) VECTOR(asin) VECTOR(acos) VECTOR(atan) VECTOR(sinh) VECTOR(cosh)
VECTOR(erfc)

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double silu(double x) { return isinf(x) && x < 0 ? -0.0 : x * sigmoid(x); }
static double silu_grad(double x)
{
    return isinf(x) ? x > 0 : sigmoid(x) * (1 + x * sigmoid(-x));
}
static double softplus(double x) { return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)); }
static double gelu(double x) { return x < -1e3 ? -0.0 : x * 0.5 * erfc(-x / sqrt(2)); }
static double gelu_grad(double x)
{
    if (isinf(x))
        return x > 0;
    return 0.5 * erfc(-x / sqrt(2)) + x * exp(-x * x / 2) / sqrt(2 * acos(-1));
}
static double gelu_tanh_2y(double x) { return sqrt(8 / acos(-1)) * (x + 0.044715 * x * x * x); }
static double gelu_tanh(double x)
{
    return isinf(x) && x < 0 ? -0.0 : x * sigmoid(gelu_tanh_2y(x));
}
static double gelu_tanh_grad(double x)
{
    if (fabs(x) > 1e3)
        return x > 0;
    double s = sigmoid(gelu_tanh_2y(x)), t = sigmoid(-gelu_tanh_2y(x));
    return s + x * s * t * sqrt(8 / acos(-1)) * (1 + 3 * 0.044715 * x * x);
}
static double rsqrt(double x) { return 1 / sqrt(x); }

static const function functions[] = {
    {"exp", run_exp, exp, 1, 0, 0, 0},
    {"exp2", run_exp2, exp2, 1, 0, 0, 0},
    {"expm1", run_expm1, expm1, 2, 0, 0, 0},
    {"log", run_log, log, 1, 0, 0, 0},
    {"log1p", run_log1p, log1p, 2, 0, 0, 0},
    {"log2", run_log2, log2, 2, 0, 0, 0},
    {"log10", run_log10, log10, 2, 0, 0, 0},
    {"sin", run_sin, sin, 2, 0, 0, 0},
    {"cos", run_cos, cos, 2, 0, 0, 0},
    {"tanh", run_tanh, tanh, 3, 0, 0, 0},
    {"erf", run_erf, erf, 2, 0, 0, 0},
    {"sigmoid", run_sigmoid, sigmoid, 3, 0, 0, 0},
    {"silu", run_silu, silu, 4, 0x1p-140, -87, INFINITY},
    {"silu_grad", run_silu_grad, silu_grad, 0, 0x1p-22, 0, 0},
    {"softplus", run_softplus, softplus, 3, 0, 0, 0},
    {"gelu", run_gelu, gelu, 5, 0x1p-120, -13, INFINITY},
    {"gelu_grad", run_gelu_grad, gelu_grad, 0, 0x1p-22, 0, 0},
    {"gelu_tanh", run_gelu_tanh, gelu_tanh, 4, 0x1p-22, -1, INFINITY},
    {"gelu_tanh_grad", run_gelu_tanh_grad, gelu_tanh_grad, 0, 0x1p-21, 0, 0},
    {"rsqrt", run_rsqrt, rsqrt, 2, 0, 0, 0},
    {"tan", run_tan, tan, 4, 0, 0, 0},
    {"asin", run_asin, asin, 3, 0, 0, 0},
    {"acos", run_acos, acos, 3, 0, 0, 0},
    {"atan", run_atan, atan, 2, 0, 0, 0},
    {"sinh", run_sinh, sinh, 4, 0, 0, 0},
    {"cosh", run_cosh, cosh, 2, 0, 0, 0},
    {"erfc", run_erfc, erfc, 5, 0, 0, 0},
};
#define FUNCTIONS ((int)(sizeof functions / sizeof functions[0]))

#if VEC_ISA == 0 && !defined(__FP_FAST_FMAF)
#define EXTRA_ULP 1.0
#else
#define EXTRA_ULP 0.0
#endif

/* Error of y in ULPs: units in the last place of the exact value as f32. */
static double ulps(float y, double exact)
{
    if (isnan(exact) || isnan(y))
        return isnan(exact) && isnan(y) ? 0 : INFINITY;
    if (fabs(exact) >= 0x1.ffffffp127 || isinf(y)) {
        /* near the largest f32, infinity and the largest number both count as correct */
        bool both = isinf(y) && fabs(exact) >= 0x1.fffffcp127 && (y > 0) == (exact > 0);
        bool last = !isinf(exact) && fabs(exact) < 0x1.000002p128 && fabsf(y) >= 0x1.fffffcp127f;
        return both || last ? 0 : INFINITY;
    }
    int e;
    frexp(exact, &e);
    if (exact == 0 || e < -125)
        e = -125;
    return fabs(y - exact) / ldexp(1, e - 24);
}

static double ulps_d(double y, long double exact)
{
    if (isnan(exact) || isnan(y))
        return isnan(exact) && isnan(y) ? 0 : INFINITY;
    if (fabsl(exact) >= 0x1.fffffffffffffp1023L || isinf(y)) {
        bool both = isinf(y) && fabsl(exact) >= 0x1.ffffffffffffep1023L && (y > 0) == (exact > 0);
        bool last = !isinf(exact) && fabsl(exact) < 0x1.0000000000001p1024L &&
                    fabs(y) >= 0x1.ffffffffffffep1023;
        return both || last ? 0 : INFINITY;
    }
    int e;
    frexpl(exact, &e);
    if (exact == 0 || e < -1021)
        e = -1021;
    return (double)(fabsl(y - exact) / ldexpl(1, e - 53));
}

static void sweep(const function *f)
{
    float x[VF_LANES], y[VF_LANES], worst_x = 0;
    double worst = 0, worst_absolute = 0;
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += STRIDE * VF_LANES) {
        for (int i = 0; i < VF_LANES; i++)
            x[i] = bits_float((uint32_t)(bits + (uint64_t)i * STRIDE));
        f->vector(y, x);
        for (int i = 0; i < VF_LANES; i++) {
            double exact = f->exact(x[i]), error = fabs(y[i] - exact);
            if (isnan(y[i]) || isnan(exact) || isinf(y[i]) || isinf(exact))
                error = ulps(y[i], exact);
            bool in_ulp = f->ulp > 0 && (f->lo == f->hi || (x[i] >= f->lo && x[i] <= f->hi));
            if (!in_ulp) {
                worst_absolute = fmax(worst_absolute, error);
                MUST(error <= f->absolute, "%s(%a): %a instead of %a", f->name, x[i],
                              y[i], exact);
                continue;
            }
            double u = ulps(y[i], exact);
            if (u > worst) {
                worst = u;
                worst_x = x[i];
            }
            MUST(exact != 0 || !signbit(exact) == !signbit(y[i]), "%s(%a): sign of zero",
                          f->name, x[i]);
        }
    }
    printf("%s: %.2f ulp at %a, absolute 2^%.1f\n", f->name, worst, worst_x, log2(worst_absolute));
    ck_assert_msg(worst <= f->ulp + EXTRA_ULP, "%s(%a): %.2f ulp, documented %g", f->name, worst_x,
                  worst, f->ulp + EXTRA_ULP);
}

VEC_TEST(bounds_hold_over_all_floats, .loop = FUNCTIONS)
{
    sweep(&functions[loop]);
}

VEC_TEST(gelu_tanh_tail_is_relative)
{
    float x[VF_LANES], y[VF_LANES];
    for (float base = -9.0f; base < -1.0f; base += 1e-4f) {
        for (int i = 0; i < VF_LANES; i++)
            x[i] = base + (float)i * 3e-6f;
        run_gelu_tanh(y, x);
        for (int i = 0; i < VF_LANES; i++)
            MUST(ulps(y[i], gelu_tanh(x[i])) <= 4 + 3 * fabs(gelu_tanh_2y(x[i])),
                 "gelu_tanh(%a): %a", x[i], y[i]);
    }
}

/* The result of a lane does not depend on the other lanes, also if these are Inf or NaN. */
VEC_TEST(lanes_are_independent, .loop = FUNCTIONS)
{
    const function *f = &functions[loop];
    const float odd[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f, -1.0f, 1e30f, 1e-42f};
    float x[VF_LANES], y[VF_LANES], alone[VF_LANES];
    uint32_t state = 7;
    for (int turn = 0; turn < 3000; turn++) {
        for (int i = 0; i < VF_LANES; i++) {
            state = state * 1664525u + 1013904223u;
            x[i] = turn % 3 == 0 ? odd[state >> 29] : turn % 3 == 1 ? bits_float(state)
                   : (float)(int32_t)state * 0x1p-28f;
        }
        f->vector(y, x);
        for (int i = 0; i < VF_LANES; i++) {
            float same[VF_LANES];
            vf_store(same, vf_load_n(&x[i], 1)); // as the tail of one element
            f->vector(alone, same);
            MUST(same_float(y[i], alone[0]), "%s(%a): %a in lane %d, %a alone", f->name,
                          x[i], y[i], i, alone[0]);
        }
    }
}

VEC_TEST(pow_follows_c)
{
    const float odd[] = {0.0f, -0.0f, 1.0f, -1.0f, 2.0f, -2.0f, 3.0f, -3.0f, 0.5f, -0.5f, 2.5f,
                         INFINITY, -INFINITY, NAN, 1e-40f, -1e-40f, 3e38f, -3e38f, 16777217.0f,
                         16777216.0f, -8388609.0f, 1.0000001f, 0.99999994f, 127.0f, -149.0f};
    enum { N = sizeof odd / sizeof odd[0] };
    float x[VF_LANES], y[VF_LANES], r[VF_LANES];
    double worst = 0;
    uint32_t state = 3;
    for (int turn = 0; turn < 400000; turn++) {
        for (int i = 0; i < VF_LANES; i++) {
            state = state * 1664525u + 1013904223u;
            x[i] = turn < N * N ? odd[turn % N] : exp2f((float)(int32_t)state * 0x1p-24f);
            state = state * 1664525u + 1013904223u;
            y[i] = turn < N * N ? odd[turn / N]
                                : (float)(int32_t)state * (turn % 2 ? 0x1p-24f : 0x1p-30f);
        }
        vf_store(r, vf_pow(vf_load(x), vf_load(y)));
        for (int i = 0; i < VF_LANES; i++) {
            double exact = pow((double)x[i], (double)y[i]), u = ulps(r[i], exact);
            MUST(u <= 2 + EXTRA_ULP, "pow(%a, %a): %a instead of %a", x[i], y[i], r[i],
                          exact);
            MUST(isnan(exact) || !signbit(r[i]) == !signbit(exact), "pow(%a, %a): sign of %a", x[i],
                 y[i], r[i]);
            worst = fmax(worst, u);
        }
    }
    printf("pow: %.2f ulp\n", worst);
}

/* Special values, any bases with exponents whose powers are finite, and bases near 1. */
VEC_TEST(pow_of_doubles_follows_c)
{
    const double odd[] = {0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 2.5, INFINITY,
                          -INFINITY, NAN, 1e-310, -1e-310, 1.7e308, -1.7e308, 0x1p53 - 1,
                          1 - 0x1p53, 0x1p53, 1 + 0x1p-52, 1 - 0x1p-53, 1023.0, -1074.0};
    enum { N = sizeof odd / sizeof odd[0] };
    double worst = 0;
    uint64_t state = 9;
    for (int turn = 0; turn < 200000; turn++) {
        double x[VD_LANES], y[VD_LANES], r[VD_LANES];
        for (int i = 0; i < VD_LANES; i++) {
            double unit[2];
            for (int k = 0; k < 2; k++) {
                state = state * 6364136223846793005u + 1442695040888963407u;
                unit[k] = (double)(int64_t)(state ^ state >> 31) * 0x1p-63;
            }
            x[i] = turn % 2 ? exp2(unit[0] * 1075) : 1 + unit[0] * ldexp(1, -(turn % 50));
            y[i] = turn % 3 ? unit[1] * 1100 / log2(x[i]) : unit[1] * 4;
            if (turn < N * N) {
                x[i] = odd[turn % N];
                y[i] = odd[turn / N];
            }
        }
        vd_store(r, vd_pow(vd_load(x), vd_load(y)));
        for (int i = 0; i < VD_LANES; i++) {
            long double exact = powl(x[i], y[i]);
            double u = ulps_d(r[i], exact);
            MUST(u <= 2, "pow(%a, %a): %a instead of %La", x[i], y[i], r[i], exact);
            MUST(isnan(exact) || !signbit(r[i]) == !signbit(exact), "pow(%a, %a): sign of %a", x[i],
                 y[i], r[i]);
            worst = fmax(worst, u);
        }
    }
    printf("pow of f64: %.2f ulp\n", worst);
}

/* f32 and f64: zeros, infinities, NaN, the ends of the exponents, and angles drawn around the
 * borders of the formula. */
VEC_TEST(atan2_follows_c)
{
    const double odd[] = {0.0, -0.0, 1.0, -1.0, INFINITY, -INFINITY, NAN, 1e-45, -1e-45, 3.4e38,
                          -3.4e38, 2.4142135623730949, 0.41421356237309503, 1e-310, -1.7e308};
    enum { N = sizeof odd / sizeof odd[0] };
    uint32_t state = 5;
    for (int turn = 0; turn < 300000; turn++) {
        double at[2];
        for (int i = 0; i < 2; i++) {
            state = state * 1664525u + 1013904223u;
            at[i] = turn < N * N ? odd[i ? turn / N : turn % N]
                                 : ldexp((int32_t)state, (int)(state % 7) * (turn % 50) - 90);
        }
        float y = (float)at[0], x = (float)at[1], r = vf_atan2(vf_set1(y), vf_set1(x))[0];
        double exact = atan2((double)y, (double)x), d = vd_atan2(vd_set1(at[0]), vd_set1(at[1]))[0];
        long double exact_d = atan2l(at[0], at[1]);
        MUST(ulps(r, exact) <= 3 + EXTRA_ULP, "atan2(%a, %a): %a instead of %a", y, x, r, exact);
        MUST(ulps_d(d, exact_d) <= 3 + EXTRA_ULP, "atan2(%a, %a): %a instead of %La", at[0], at[1],
             d, exact_d);
        MUST(isnan(exact) || (!signbit(r) == !signbit(exact) && !signbit(d) == !signbit(exact_d)),
             "atan2(%a, %a): sign of %a", y, x, r);
    }
}

/* ------------------------------------------------------------------------------- f64 ------ */

typedef vd (*vector_fn_d)(vd x);
typedef long double (*scalar_fn_d)(long double x);

#define VECTOR_D(name) static vd run_d_##name(vd x) { return vd_##name(x); }
VECTOR_D(exp) VECTOR_D(exp2) VECTOR_D(expm1) VECTOR_D(log) VECTOR_D(log1p) VECTOR_D(log2)
VECTOR_D(log10) VECTOR_D(sin) VECTOR_D(cos) VECTOR_D(tan) VECTOR_D(asin) VECTOR_D(acos)
VECTOR_D(atan) VECTOR_D(sinh) VECTOR_D(cosh) VECTOR_D(tanh) VECTOR_D(erf) VECTOR_D(erfc)
VECTOR_D(rsqrt) VECTOR_D(sigmoid) VECTOR_D(silu) VECTOR_D(silu_grad) VECTOR_D(softplus)
VECTOR_D(gelu) VECTOR_D(gelu_grad) VECTOR_D(gelu_tanh) VECTOR_D(gelu_tanh_grad)

static long double rsqrt_l(long double x) { return 1 / sqrtl(x); }
static long double sigmoid_l(long double x) { return 1 / (1 + expl(-x)); }
static long double silu_l(long double x) { return x < -1e4L ? -0.0L : x * sigmoid_l(x); }
static long double silu_grad_l(long double x)
{
    return fabsl(x) > 1e4L ? x > 0 : sigmoid_l(x) * (1 + x * sigmoid_l(-x));
}
static long double softplus_l(long double x)
{
    return x > 0 ? x + log1pl(expl(-x)) : log1pl(expl(x));
}
static long double cdf_l(long double x) { return 0.5L * erfcl(-x * sqrtl(0.5L)); }
static long double gelu_l(long double x) { return x < -1e3L ? -0.0L : x * cdf_l(x); }
static long double gelu_grad_l(long double x)
{
    return fabsl(x) > 1e3L ? x > 0 : cdf_l(x) + x * expl(-x * x / 2) / sqrtl(2 * acosl(-1));
}
static long double gelu_tanh_2y_l(long double x)
{
    return sqrtl(8 / acosl(-1)) * (x + 0.044715L * x * x * x);
}
static long double gelu_tanh_l(long double x)
{
    return x < -1e3L ? -0.0L : x * sigmoid_l(gelu_tanh_2y_l(x));
}
static long double gelu_tanh_grad_l(long double x)
{
    if (fabsl(x) > 1e3L)
        return x > 0;
    long double s = sigmoid_l(gelu_tanh_2y_l(x)), t = sigmoid_l(-gelu_tanh_2y_l(x));
    return s + x * s * t * sqrtl(8 / acosl(-1)) * (1 + 3 * 0.044715L * x * x);
}

static const struct {
    const char *name;
    vector_fn_d vector;
    scalar_fn_d exact;
    double ulp, absolute; /* error bounds: in ULPs with FMA for x >= lo, absolute for x < lo */
    double lo;
} functions_d[] = {
    {"exp", run_d_exp, expl, 1, 0, -INFINITY},
    {"exp2", run_d_exp2, exp2l, 1, 0, -INFINITY},
    {"expm1", run_d_expm1, expm1l, 2, 0, -INFINITY},
    {"log", run_d_log, logl, 1, 0, -INFINITY},
    {"log1p", run_d_log1p, log1pl, 2, 0, -INFINITY},
    {"log2", run_d_log2, log2l, 2, 0, -INFINITY},
    {"log10", run_d_log10, log10l, 2, 0, -INFINITY},
    {"sin", run_d_sin, sinl, 1, 0, -INFINITY},
    {"cos", run_d_cos, cosl, 1, 0, -INFINITY},
    {"tan", run_d_tan, tanl, 3, 0, -INFINITY},
    {"asin", run_d_asin, asinl, 3, 0, -INFINITY},
    {"acos", run_d_acos, acosl, 3, 0, -INFINITY},
    {"atan", run_d_atan, atanl, 2, 0, -INFINITY},
    {"sinh", run_d_sinh, sinhl, 4, 0, -INFINITY},
    {"cosh", run_d_cosh, coshl, 2, 0, -INFINITY},
    {"tanh", run_d_tanh, tanhl, 3, 0, -INFINITY},
    {"erf", run_d_erf, erfl, 2, 0, -INFINITY},
    {"erfc", run_d_erfc, erfcl, 5, 0, -INFINITY},
    {"rsqrt", run_d_rsqrt, rsqrt_l, 2, 0, -INFINITY},
    {"sigmoid", run_d_sigmoid, sigmoid_l, 3, 0, -INFINITY},
    {"silu", run_d_silu, silu_l, 4, 0x1p-990, -700},
    {"silu_grad", run_d_silu_grad, silu_grad_l, 0, 0x1p-51, INFINITY},
    {"softplus", run_d_softplus, softplus_l, 3, 0, -INFINITY},
    {"gelu", run_d_gelu, gelu_l, 5, 0x1p-970, -37},
    {"gelu_grad", run_d_gelu_grad, gelu_grad_l, 0, 0x1p-51, INFINITY},
    {"gelu_tanh", run_d_gelu_tanh, gelu_tanh_l, 4, 0x1p-50, -1},
    {"gelu_tanh_grad", run_d_gelu_tanh_grad, gelu_tanh_grad_l, 0, 0x1p-50, INFINITY},
};
#define FUNCTIONS_D ((int)(sizeof functions_d / sizeof functions_d[0]))

/* A random f64, by turn: a special value, any bits, a number below 1, 40 or 800 in magnitude, or
 * one near a multiple of pi/2. */
static double draw_d(uint64_t *state, int turn)
{
    const double odd[] = {NAN, INFINITY, -INFINITY, 0.0, -0.0, -1.0, 1.0, 0x1p-1074};
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    uint64_t bits = *state ^ *state >> 31;
    double unit = (double)(int64_t)bits * 0x1p-63, drawn;
    memcpy(&drawn, &bits, sizeof drawn);
    switch (turn % 8) {
    case 0: return odd[bits >> 61];
    case 1:
    case 2: return drawn;
    case 3: return unit * 800;
    case 4: return unit;
    case 5: return unit * 40;
    case 6: return ldexp(unit, (int)(bits & 31) - 16);
    default: return (double)(int32_t)(bits & 0xfffff) * 1.57079632679489662 * (1 + unit * 0x1p-50);
    }
}

VEC_TEST(bounds_hold_over_all_doubles, .loop = FUNCTIONS_D)
{
    uint64_t state = 11;
    double worst = 0, worst_x = 0;
    for (int turn = 0; turn < 400000 / VD_LANES; turn++) {
        double x[VD_LANES], y[VD_LANES];
        for (int i = 0; i < VD_LANES; i++)
            x[i] = draw_d(&state, turn + i);
        vd_store(y, functions_d[loop].vector(vd_load(x)));
        for (int i = 0; i < VD_LANES; i++) {
            long double exact = functions_d[loop].exact(x[i]);
            double u = ulps_d(y[i], exact);
            double alone = functions_d[loop].vector(vd_set1(x[i]))[0];
            MUST(memcmp(&alone, &y[i], 8) == 0 || isnan(alone), "%s(%a): %a in lane %d, %a alone",
                 functions_d[loop].name, x[i], y[i], i, alone);
            MUST(exact != 0 || isnan(y[i]) || !signbit(exact) == !signbit(y[i]) || x[i] < -30,
                 "%s(%a): sign of zero", functions_d[loop].name, x[i]);
            if (x[i] < functions_d[loop].lo) {
                MUST(fabsl(y[i] - exact) <= functions_d[loop].absolute, "%s(%a): %a instead of %La",
                     functions_d[loop].name, x[i], y[i], exact);
            } else if (u > worst) {
                worst = u;
                worst_x = x[i];
            }
        }
    }
    printf("%s of f64: %.2f ulp at %a\n", functions_d[loop].name, worst, worst_x);
    ck_assert_msg(worst <= functions_d[loop].ulp + EXTRA_ULP, "%s(%a): %.2f ulp, documented %g",
                  functions_d[loop].name, worst_x, worst, functions_d[loop].ulp + EXTRA_ULP);
}

VEC_TEST(limits_of_doubles_are_right)
{
    const double limits[] = {INFINITY, -INFINITY};
    for (int i = 0; i < 2; i++) {
        vd x = vd_set1(limits[i]);
        ck_assert_double_eq(vd_silu(x)[0], i ? 0 : INFINITY);
        ck_assert_double_eq(vd_gelu(x)[0], i ? 0 : INFINITY);
        ck_assert_double_eq(vd_gelu_tanh(x)[0], i ? 0 : INFINITY);
        ck_assert_double_eq(vd_silu_grad(x)[0], !i);
        ck_assert_double_eq(vd_gelu_grad(x)[0], !i);
        ck_assert_double_eq(vd_gelu_tanh_grad(x)[0], !i);
    }
    ck_assert(isnan(vd_gelu(vd_set1(NAN))[0]) && isnan(vd_silu_grad(vd_set1(NAN))[0]));
    ck_assert_double_eq(vd_pow(vd_set1(3), vd_set1(4))[0], 81);
}
