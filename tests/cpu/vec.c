// The primitives of vec.h against scalar C, lane by lane, for the variant this file is built for.
// SPDX-License-Identifier: MIT
#include "tests/cpu/vec_test.h"

#define SPECIALS 24
static const float specials[SPECIALS] = {
    0.0f, -0.0f, 1.0f, -1.0f, 0.5f, -0.5f, 1.5f, -1.5f, 2.5f, -2.5f, 0.49999997f, 8388607.5f,
    -8388609.0f, 3e9f, -3e38f, 1e-40f, -1e-40f, 1.17549435e-38f, INFINITY, -INFINITY, NAN, 65519.0f,
    65520.0f, 5.9604645e-8f,
};

/* Runs its block for vectors a and b that together hold all pairs of special values. */
#define FOR_PAIRS(a, b)                                                                       \
    float a[VF_LANES], b[VF_LANES];                                                           \
    for (int base = 0; base < SPECIALS * SPECIALS; base++)                                    \
        for (int once = fill_pair(a, b, base); once; once = 0)

static int fill_pair(float *a, float *b, int base)
{
    for (int i = 0; i < VF_LANES; i++) {
        a[i] = specials[(base + i) % SPECIALS];
        b[i] = specials[(base / SPECIALS + i * 5) % SPECIALS];
    }
    return 1;
}

VEC_TEST(arithmetic_follows_c)
{
    float r[VF_LANES];
    FOR_PAIRS(a, b)
    {
        vf va = vf_load(a), vb = vf_load(b);
#define SAME(vector, scalar)                                                                  \
    vf_store(r, vector);                                                                      \
    for (int i = 0; i < VF_LANES; i++)                                                        \
        MUST(same_float(r[i], scalar), "%s of %a, %a: %a", #vector, a[i], b[i], r[i])
        SAME(va + vb, a[i] + b[i]);
        SAME(va * vb, a[i] * b[i]);
        SAME(va / vb, a[i] / b[i]);
        SAME(vf_abs(va), fabsf(a[i]));
        SAME(vf_neg(va), -a[i]);
        SAME(vf_copysign(va, vb), copysignf(a[i], b[i]));
        SAME(vf_sqrt(va), sqrtf(a[i]));
        SAME(vf_rint(va), rintf(a[i]));
        SAME(vf_floor(va), floorf(a[i]));
        SAME(vf_ceil(va), ceilf(a[i]));
        SAME(vf_trunc(va), truncf(a[i]));
        SAME(vf_max_fast(va, vb), a[i] > b[i] ? a[i] : b[i]);
        SAME(vf_min_fast(va, vb), a[i] < b[i] ? a[i] : b[i]);
        SAME(vf_max(va, vb), isnan(a[i]) || a[i] > b[i] ? a[i] : b[i]);
        SAME(vf_min(va, vb), isnan(a[i]) || a[i] < b[i] ? a[i] : b[i]);
        SAME(vf_select(vf_lt(va, vb), va, vb), a[i] < b[i] ? a[i] : b[i]);
#if VEC_ISA == 0 && !defined(__FP_FAST_FMAF)
        SAME(vf_fma(va, vb, va), a[i] * b[i] + a[i]);
#else
        SAME(vf_fma(va, vb, va), fmaf(a[i], b[i], a[i]));
#endif
#undef SAME
    }
}

VEC_TEST(double_arithmetic_follows_c)
{
    double r[VD_LANES];
    FOR_PAIRS(fa, fb)
    {
        double a[VD_LANES], b[VD_LANES];
        for (int i = 0; i < VD_LANES; i++) {
            a[i] = fa[i] * (isfinite(fa[i]) && fabsf(fa[i]) > 1e6f ? 0x1p30 : 1.0);
            b[i] = fb[i];
        }
        vd va = vd_load(a), vb = vd_load(b);
#define SAME(vector, scalar)                                                                  \
    vd_store(r, vector);                                                                      \
    for (int i = 0; i < VD_LANES; i++) {                                                      \
        double want = scalar;                                                                 \
        MUST((isnan(r[i]) && isnan(want)) || memcmp(&r[i], &want, 8) == 0,           \
                      "%s of %a, %a: %a", #vector, a[i], b[i], r[i]);                         \
    }
        SAME(va + vb, a[i] + b[i]);
        SAME(va / vb, a[i] / b[i]);
        SAME(vd_abs(va), fabs(a[i]));
        SAME(vd_neg(va), -a[i]);
        SAME(vd_sqrt(va), sqrt(a[i]));
        SAME(vd_rint(va), rint(a[i]));
        SAME(vd_floor(va), floor(a[i]));
        SAME(vd_ceil(va), ceil(a[i]));
        SAME(vd_trunc(va), trunc(a[i]));
        SAME(vd_max(va, vb), isnan(a[i]) || a[i] > b[i] ? a[i] : b[i]);
        SAME(vd_min(va, vb), isnan(a[i]) || a[i] < b[i] ? a[i] : b[i]);
        SAME(vd_select(vd_ge(va, vb), va, vb), a[i] >= b[i] ? a[i] : b[i]);
#undef SAME
    }
}

VEC_TEST(comparisons_follow_c)
{
    FOR_PAIRS(a, b)
    {
        vf va = vf_load(a), vb = vf_load(b);
        vd da = vf_widen_hi(va), db = vf_widen_hi(vb);
        uint8_t bytes[VF_LANES];
#define SAME(op, symbol)                                                                      \
    vm_store_bool(bytes, vf_##op(va, vb));                                                    \
    ck_assert_uint_eq(vm_bits(vm_load_bool(bytes)), vm_bits(vf_##op(va, vb)));                \
    for (int i = 0; i < VF_LANES; i++)                                                        \
        ck_assert_int_eq(bytes[i], a[i] symbol b[i]);                                         \
    vdm_store_bool(bytes, vd_##op(da, db));                                                   \
    ck_assert_uint_eq(vdm_bits(vdm_load_bool(bytes)), vdm_bits(vd_##op(da, db)));             \
    for (int i = 0; i < VD_LANES; i++)                                                        \
        ck_assert_int_eq(bytes[i], a[i + VD_LANES] symbol b[i + VD_LANES])
        SAME(eq, ==);
        SAME(ne, !=);
        SAME(lt, <);
        SAME(le, <=);
        SAME(gt, >);
        SAME(ge, >=);
#undef SAME
        vm less = vf_lt(va, vb), nan = vf_isnan(va);
        ck_assert_uint_eq(vm_bits(vm_and(vm_not(less), vm_xor(nan, less))),
                          vm_bits(vm_and(nan, vm_not(less))));
        ck_assert_int_eq(vm_any(less), vm_bits(less) != 0);
        ck_assert(vm_all(vm_or(less, vm_not(less))));
    }
    for (int n = 0; n <= VF_LANES; n++)
        ck_assert_uint_eq(vm_bits(vm_first_n(n)), (1u << n) - 1);
    for (int n = 0; n <= VD_LANES; n++)
        ck_assert_uint_eq(vdm_bits(vdm_first_n(n)), (1u << n) - 1);
}

VEC_TEST(partial_access_touches_exactly_n)
{
    float in[VF_LANES], out[VF_LANES + 1];
    double din[VD_LANES], dout[VD_LANES + 1];
    for (int i = 0; i < VF_LANES; i++)
        in[i] = (float)i + 0.5f;
    for (int i = 0; i < VD_LANES; i++)
        din[i] = i + 0.25;
    for (int n = 0; n <= VF_LANES; n++) {
        vf v = vf_load_n_or(in, n, vf_set1(-7.0f));
        vf_store(out, v);
        for (int i = 0; i < VF_LANES; i++)
            ck_assert_float_eq(out[i], i < n ? in[i] : -7.0f);
        for (int i = 0; i <= VF_LANES; i++)
            out[i] = -1.0f;
        vf_store_n(out, vf_load(in), n);
        for (int i = 0; i <= VF_LANES; i++)
            ck_assert_float_eq(out[i], i < n ? in[i] : -1.0f);
    }
    for (int n = 0; n <= VD_LANES; n++) {
        vd_store(dout, vd_load_n_or(din, n, vd_set1(-7.0)));
        for (int i = 0; i < VD_LANES; i++)
            ck_assert_double_eq(dout[i], i < n ? din[i] : -7.0);
        for (int i = 0; i <= VD_LANES; i++)
            dout[i] = -1.0;
        vd_store_n(dout, vd_load(din), n);
        for (int i = 0; i <= VD_LANES; i++)
            ck_assert_double_eq(dout[i], i < n ? din[i] : -1.0);
    }
}

/* Sum of n lanes in the vector code's order: adds lane i + n/2 to lane i, then i + n/4, ... */
static double folded(const double *v, int n)
{
    double a[16];
    memcpy(a, v, (size_t)n * sizeof(double));
    for (int half = n / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            a[i] = a[i] + a[i + half];
    return a[0];
}

static float foldedf(const float *v, int n)
{
    float a[16];
    memcpy(a, v, (size_t)n * sizeof(float));
    for (int half = n / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            a[i] = a[i] + a[i + half];
    return a[0];
}

VEC_TEST(reductions_fold_halves)
{
    uint32_t state = 1;
    for (int turn = 0; turn < 1000; turn++) {
        float a[VF_LANES], top = -INFINITY, low = INFINITY;
        double d[VD_LANES];
        for (int i = 0; i < VF_LANES; i++) {
            state = state * 1664525u + 1013904223u;
            a[i] = ((float)(int32_t)state) * 0x1p-20f;
            top = fmaxf(top, a[i]);
            low = fminf(low, a[i]);
        }
        for (int i = 0; i < VD_LANES; i++)
            d[i] = a[i] * 1.1;
        ck_assert_float_eq(vf_hsum(vf_load(a)), foldedf(a, VF_LANES));
        ck_assert_double_eq(vd_hsum(vd_load(d)), folded(d, VD_LANES));
        ck_assert_float_eq(vf_hmax(vf_load(a)), top);
        ck_assert_float_eq(vf_hmin(vf_load(a)), low);
        a[turn % VF_LANES] = NAN;
        d[turn % VD_LANES] = NAN;
        ck_assert(isnan(vf_hmax(vf_load(a))) && isnan(vf_hmin(vf_load(a))));
        ck_assert(isnan(vd_hmax(vd_load(d))) && isnan(vd_hmin(vd_load(d))));
    }
}

VEC_TEST(integers_and_widths_convert)
{
    FOR_PAIRS(a, b)
    {
        int32_t ints[VF_LANES];
        float back[VF_LANES];
        for (int i = 0; i < VF_LANES; i++)
            a[i] = fabsf(b[i]) < 2e9f ? b[i] : 7.0f;
        vi_store(ints, vf_to_vi(vf_load(a)));
        for (int i = 0; i < VF_LANES; i++)
            ck_assert_int_eq(ints[i], (int32_t)rintf(a[i]));
        vi_store(ints, vf_trunc_to_vi(vf_load(a)));
        vf_store(back, vi_to_vf(vi_load(ints)));
        for (int i = 0; i < VF_LANES; i++)
            ck_assert_float_eq(back[i], (float)(int32_t)a[i]);
        vf_store(back, vf_narrow(vf_widen_lo(vf_load(b)), vf_widen_hi(vf_load(b))));
        for (int i = 0; i < VF_LANES; i++)
            ck_assert(same_float(back[i], b[i]));
        for (int i = 0; i < VF_LANES; i++)
            ints[i] = (i * 7 + 3) % SPECIALS;
        vf_store(back, vf_gather(specials, vi_load(ints)));
        for (int i = 0; i < VF_LANES; i++)
            ck_assert(same_float(back[i], specials[ints[i]]));
    }
}

VEC_TEST(permutes_choose_lanes)
{
    FOR_PAIRS(a, b)
    {
        int32_t lanes[VF_LANES];
        float back[VF_LANES];
        for (int step = 0; step < 2 * VF_LANES; step++) {
            for (int i = 0; i < VF_LANES; i++)
                lanes[i] = (i * step + step / 2) % (2 * VF_LANES);
            vf_store(back, vf_permute(vf_load(a), vi_load(lanes)));
            for (int i = 0; i < VF_LANES; i++)
                ck_assert(same_float(back[i], a[lanes[i] % VF_LANES]));
            vf_store(back, vf_permute2(vf_load(a), vf_load(b), vi_load(lanes)));
            for (int i = 0; i < VF_LANES; i++)
                ck_assert(same_float(back[i], (lanes[i] < VF_LANES ? a : b)[lanes[i] % VF_LANES]));
        }
    }
}

/* Value of a finite f16. */
static double f16_value(uint16_t h)
{
    int exponent = (h >> 10) & 31, fraction = h & 1023;
    double v = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return h & 0x8000 ? -v : v;
}

VEC_TEST(f16_converts_exactly_and_rounds_to_even)
{
    float wide[VF_LANES];
    uint16_t in[VF_LANES], out[VF_LANES];
    for (uint32_t h = 0; h < 0x10000; h += VF_LANES) {
        for (int i = 0; i < VF_LANES; i++)
            in[i] = (uint16_t)(h + (uint32_t)i);
        vf_store(wide, vf_load_f16(in));
        /* without a barrier compilers drop both conversions, which quiet a NaN */
        __asm__ volatile("" : : "r"(wide) : "memory");
        vf_store_f16(out, vf_load(wide));
        for (int i = 0; i < VF_LANES; i++) {
            bool special = (in[i] & 0x7c00) == 0x7c00;
            if (special && (in[i] & 0x3ff)) {
                MUST(isnan(wide[i]) && (out[i] & 0x7c00) == 0x7c00 && (out[i] & 0x200), "at %x", h);
                continue;
            }
            if (special)
                MUST(isinf(wide[i]) && (wide[i] < 0) == in[i] >> 15, "at %x", h);
            else
                MUST(wide[i] == f16_value(in[i]), "at %x", h);
            MUST(out[i] == in[i], "%x at %x", (unsigned)out[i], h);
        }
    }
    /* Around each midpoint of neighbours: just below, at, just above. */
    for (uint32_t h = 0; h < 0x7bff; h++) {
        float mid = (float)((f16_value((uint16_t)h) + f16_value((uint16_t)(h + 1))) / 2);
        float x[VF_LANES] = {nextafterf(mid, 0), mid, nextafterf(mid, 1e9f), -mid};
        vf_store_f16(out, vf_load(x));
        MUST(out[0] == h, "%x at %x", (unsigned)out[0], h);
        MUST(out[1] == (h + (h & 1)), "%x at %x", (unsigned)out[1], h);
        MUST(out[2] == h + 1, "%x at %x", (unsigned)out[2], h);
        MUST(out[3] == (0x8000u | (h + (h & 1))), "%x at %x", (unsigned)out[3], h);
    }
    float big[VF_LANES] = {65519.0f, 65520.0f, 1e30f, -INFINITY};
    vf_store_f16(out, vf_load(big));
    ck_assert_uint_eq(out[0], 0x7bff);
    ck_assert_uint_eq(out[1], 0x7c00);
    ck_assert_uint_eq(out[2], 0x7c00);
    ck_assert_uint_eq(out[3], 0xfc00);
}

VEC_TEST(bf16_converts_exactly_and_rounds_to_even)
{
    float wide[VF_LANES];
    uint16_t in[VF_LANES], out[VF_LANES];
    for (uint32_t h = 0; h < 0x10000; h += VF_LANES) {
        for (int i = 0; i < VF_LANES; i++)
            in[i] = (uint16_t)(h + (uint32_t)i);
        vf_store(wide, vf_load_bf16(in));
        vf_store_bf16(out, vf_load(wide));
        for (int i = 0; i < VF_LANES; i++) {
            MUST(float_bits(wide[i]) == (uint32_t)in[i] << 16, "at %x", h);
            MUST(out[i] == (isnan(wide[i]) ? 0x7fc0 : in[i]), "%x at %x", (unsigned)out[i], h);
        }
    }
    for (uint32_t h = 0; h < 0x7f7f; h++) {
        uint32_t mid = h << 16 | 0x8000;
        float x[VF_LANES] = {bits_float(mid - 1), bits_float(mid), bits_float(mid + 1),
                             -bits_float(mid)};
        vf_store_bf16(out, vf_load(x));
        MUST(out[0] == h, "%x at %x", (unsigned)out[0], h);
        MUST(out[1] == (h + (h & 1)), "%x at %x", (unsigned)out[1], h);
        MUST(out[2] == h + 1, "%x at %x", (unsigned)out[2], h);
        MUST(out[3] == (0x8000u | (h + (h & 1))), "%x at %x", (unsigned)out[3], h);
    }
    for (int n = 0; n <= VF_LANES; n++) {
        memset(in, 0x11, sizeof in);
        memset(out, 0xee, sizeof out);
        vf_store_bf16_n(out, vf_load_bf16_n(in, n), n);
        for (int i = 0; i < VF_LANES; i++)
            ck_assert_uint_eq(out[i], i < n ? 0x1111 : 0xeeee);
    }
}

VEC_TEST(ldexp_rounds_once)
{
    for (int n = -160; n <= 129; n++)
        for (int k = 0; k < 64; k++) {
            float x = 0.5f + (float)k * 0.0234372f, r[VF_LANES];
            vf_store(r, vf_ldexp_fast(vf_set1(x), vf_set1((float)n)));
            MUST(same_float(r[0], ldexpf(x, n)), "%a * 2^%d: %a", x, n, r[0]);
            ck_assert(same_float(r[VF_LANES - 1], r[0]));
        }
}

VEC_TEST(products_of_low_halves_are_unsigned_and_whole)
{
    static const uint64_t a[] = {0xffffffff, 0xffffffffffffffff, 0xD2511F53, 0x100000002};
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            vl p = vl_mul_u32(vl_set1((int64_t)a[i]), vl_set1((int64_t)a[j]));
            for (int k = 0; k < VD_LANES; k++)
                ck_assert_uint_eq((uint64_t)p[k], (a[i] & 0xffffffff) * (a[j] & 0xffffffff));
        }
}
