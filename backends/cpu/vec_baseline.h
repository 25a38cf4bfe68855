// The primitives that vec.h lists, in portable C with 16-byte vectors.
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_VEC_BASELINE_H
#define TS_BACKENDS_CPU_VEC_BASELINE_H

#include "backends/cpu/vec_narrow.h"

VEC_FN uint32_t vm_bits(vm a)
{
    vi bit = a & (vi){1, 2, 4, 8};
    return (uint32_t)(bit[0] | bit[1] | bit[2] | bit[3]);
}
VEC_FN uint32_t vdm_bits(vdm a) { return (uint32_t)((a[0] & 1) | (a[1] & 2)); }
VEC_FN vf vf_fma(vf a, vf b, vf c)
{
#ifdef __FP_FAST_FMAF
    for (int i = 0; i < VF_LANES; i++)
        c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
#else
    return a * b + c; // two roundings: fmaf() would be emulated in software, lane by lane
#endif
}
VEC_FN vd vd_fma(vd a, vd b, vd c)
{
#ifdef __FP_FAST_FMA
    for (int i = 0; i < VD_LANES; i++)
        c[i] = __builtin_fma(a[i], b[i], c[i]);
    return c;
#else
    return a * b + c;
#endif
}
VEC_FN vf vf_sqrt(vf a)
{
    for (int i = 0; i < VF_LANES; i++)
        a[i] = __builtin_sqrtf(a[i]);
    return a;
}
VEC_FN vd vd_sqrt(vd a)
{
    for (int i = 0; i < VD_LANES; i++)
        a[i] = __builtin_sqrt(a[i]);
    return a;
}
/* Adding and subtracting 2^23 (f64: 2^52) rounds to an integer. Larger magnitudes, which have
 * no fraction, Inf and NaN are returned unchanged. vf_copysign() restores the sign of -0. */
VEC_FN vf vf_rint(vf a)
{
    vf magic = vf_copysign(vf_set1(0x1p23f), a);
    vf r = vf_copysign((a + magic) - magic, a);
    return vf_select(vf_lt(vf_abs(a), vf_set1(0x1p23f)), r, a);
}
VEC_FN vf vf_floor(vf a)
{
    vf r = vf_rint(a);
    return r - (vf)((vi)vf_set1(1.0f) & vf_gt(r, a));
}
VEC_FN vf vf_ceil(vf a) { return vf_neg(vf_floor(vf_neg(a))); }
VEC_FN vf vf_trunc(vf a) { return vf_copysign(vf_floor(vf_abs(a)), a); }
VEC_FN vd vd_rint(vd a)
{
    vd magic = vd_copysign(vd_set1(0x1p52), a);
    vd r = vd_copysign((a + magic) - magic, a);
    return vd_select(vd_lt(vd_abs(a), vd_set1(0x1p52)), r, a);
}
VEC_FN vd vd_floor(vd a)
{
    vd r = vd_rint(a);
    return r - (vd)((vl)vd_set1(1.0) & vd_gt(r, a));
}
VEC_FN vd vd_ceil(vd a) { return vd_neg(vd_floor(vd_neg(a))); }
VEC_FN vd vd_trunc(vd a) { return vd_copysign(vd_floor(vd_abs(a)), a); }

VEC_FN vi vf_to_vi(vf v) { return vf_trunc_to_vi(vf_rint(v)); }
VEC_FN vl vl_mul_u32(vl a, vl b)
{
    return (vl){(int64_t)((uint64_t)(uint32_t)a[0] * (uint32_t)b[0]),
                (int64_t)((uint64_t)(uint32_t)a[1] * (uint32_t)b[1])};
}
VEC_FN vd vf_widen_lo(vf v) { return (vd){v[0], v[1]}; }
VEC_FN vd vf_widen_hi(vf v) { return (vd){v[2], v[3]}; }
VEC_FN vf vf_narrow(vd lo, vd hi)
{
    return (vf){(float)lo[0], (float)lo[1], (float)hi[0], (float)hi[1]};
}
VEC_FN vu vh_to_vu(vh h) { return __builtin_convertvector(h, vu); }
VEC_FN vh vu_to_vh(vu v) { return __builtin_convertvector(v, vh); }

/* f16 to f32: exponent and mantissa at f32's bit positions are the value times 2^-112, also for
 * denormals. A result of 65536 or more comes from Inf or NaN and gets their exponent in f32. */
VEC_FN vf vh_to_vf_f16(vh h)
{
    vu bits = vh_to_vu(h);
    vf magnitude = (vf)((bits & 0x7fffu) << 13) * vf_set1(0x1p112f);
    vi special = vf_ge(magnitude, vf_set1(65536.0f)) & 0x7f800000;
    return (vf)((vi)magnitude | special | (vi)((bits & 0x8000u) << 16));
}
/* f32 to f16, to nearest even. Normal numbers: add 0xfff plus the last kept bit, then shift. Below
 * 2^-14: add 0.5, whose last bit is 2^-24 like that of an f16 denormal, so the addition rounds. */
VEC_FN vh vf_to_vh_f16(vf v)
{
    vi a = (vi)vf_abs(v);
    vi normal = (vi)(((vu)a + 0xfffu + (((vu)a >> 13) & 1u) - (112u << 23)) >> 13);
    vi denormal = (vi)((vf)a + vf_set1(0.5f)) - (vi)vf_set1(0.5f);
    vi nan = 0x7e00 | ((a >> 13) & 0x3ff);
    vi h = vi_select(vi_lt(a, vi_set1(0x38800000)), denormal, normal);
    h = vi_select(vi_gt(a, vi_set1(0x477fffff)), vi_set1(0x7c00), h);
    h = vi_select(vi_gt(a, vi_set1(0x7f800000)), nan, h);
    return vu_to_vh((vu)h | (((vu)v >> 16) & 0x8000u));
}

#endif
