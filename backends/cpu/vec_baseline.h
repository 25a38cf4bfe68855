// The portable primitives of vec.h, which lists their meaning: any architecture, 16-byte vectors.
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_VEC_BASELINE_H
#define TS_BACKENDS_CPU_VEC_BASELINE_H

#include "backends/cpu/vec_lanemask.h"

VEC_FN uint32_t vm_bits(vm a)
{
    vi bit = a & (vi){1, 2, 4, 8};
    return (uint32_t)(bit[0] | bit[1] | bit[2] | bit[3]);
}
VEC_FN uint32_t vdm_bits(vdm a) { return (uint32_t)((a[0] & 1) | (a[1] & 2)); }
VEC_FN vi vi_select(vm m, vi a, vi b) { return (a & m) | (b & ~m); }
VEC_FN vf vf_select(vm m, vf a, vf b) { return (vf)vi_select(m, (vi)a, (vi)b); }
VEC_FN vd vd_select(vdm m, vd a, vd b) { return (vd)(((vl)a & m) | ((vl)b & ~m)); }

VEC_FN vf vf_fma(vf a, vf b, vf c)
{
#ifdef __FP_FAST_FMAF
    for (int i = 0; i < VF_LANES; i++)
        c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
#else
    return a * b + c; // two roundings: the library's fmaf is a hundred times slower
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
VEC_FN vf vf_min_fast(vf a, vf b) { return vf_select(vf_lt(a, b), a, b); }
VEC_FN vf vf_max_fast(vf a, vf b) { return vf_select(vf_gt(a, b), a, b); }
VEC_FN vd vd_min_fast(vd a, vd b) { return vd_select(vd_lt(a, b), a, b); }
VEC_FN vd vd_max_fast(vd a, vd b) { return vd_select(vd_gt(a, b), a, b); }

/* Adding and taking away 2^23 (2^52) leaves no room for a fraction; larger values, Inf and NaN are
 * integers already. The sign is put back for -0. */
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

VEC_FN vf vf_load_n_or(const float *p, int64_t n, vf other)
{
    memcpy(&other, p, (size_t)n * sizeof(float));
    return other;
}
VEC_FN vd vd_load_n_or(const double *p, int64_t n, vd other)
{
    memcpy(&other, p, (size_t)n * sizeof(double));
    return other;
}
VEC_FN void vf_store_n(float *p, vf v, int64_t n) { memcpy(p, &v, (size_t)n * sizeof(float)); }
VEC_FN void vd_store_n(double *p, vd v, int64_t n) { memcpy(p, &v, (size_t)n * sizeof(double)); }

VEC_FN float vf_hsum(vf v) { return (v[0] + v[2]) + (v[1] + v[3]); }
VEC_FN double vd_hsum(vd v) { return v[0] + v[1]; }
VEC_FN float vec_maxf(float a, float b) { return a > b ? a : b; }
VEC_FN float vec_minf(float a, float b) { return a < b ? a : b; }
VEC_FN float vf_hmax_fast(vf v) { return vec_maxf(vec_maxf(v[0], v[2]), vec_maxf(v[1], v[3])); }
VEC_FN float vf_hmin_fast(vf v) { return vec_minf(vec_minf(v[0], v[2]), vec_minf(v[1], v[3])); }
VEC_FN double vd_hmax_fast(vd v) { return v[0] > v[1] ? v[0] : v[1]; }
VEC_FN double vd_hmin_fast(vd v) { return v[0] < v[1] ? v[0] : v[1]; }

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

/* f16 to f32: the fields moved to f32's places give the value times 2^-112, denormals included.
 * 65536 and more can only come from the exponent of Inf and NaN. */
VEC_FN vf vh_to_vf_f16(vh h)
{
    vu bits = vh_to_vu(h);
    vf magnitude = (vf)((bits & 0x7fffu) << 13) * vf_set1(0x1p112f);
    vi special = vf_ge(magnitude, vf_set1(65536.0f)) & 0x7f800000;
    return (vf)((vi)magnitude | special | (vi)((bits & 0x8000u) << 16));
}
/* f32 to f16, to nearest even: normals by adding just under half a unit to the bits; below 2^-14
 * adding 0.5, whose last bit is worth 2^-24 as f16's is there, rounds in hardware. */
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
VEC_FN vf vf_gather(const float *base, vi indices)
{
    return (vf){base[indices[0]], base[indices[1]], base[indices[2]], base[indices[3]]};
}

#endif
