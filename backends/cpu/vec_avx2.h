// The primitives that vec.h lists, for AVX2 with FMA and F16C.
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_VEC_AVX2_H
#define TS_BACKENDS_CPU_VEC_AVX2_H

#include <immintrin.h>

#include "backends/cpu/vec_lanemask.h"

VEC_FN uint32_t vm_bits(vm a) { return (uint32_t)_mm256_movemask_ps((__m256)a); }
VEC_FN uint32_t vdm_bits(vdm a) { return (uint32_t)_mm256_movemask_pd((__m256d)a); }
VEC_FN vf vf_select(vm m, vf a, vf b)
{
    return (vf)_mm256_blendv_ps((__m256)b, (__m256)a, (__m256)m);
}
VEC_FN vd vd_select(vdm m, vd a, vd b)
{
    return (vd)_mm256_blendv_pd((__m256d)b, (__m256d)a, (__m256d)m);
}
VEC_FN vi vi_select(vm m, vi a, vi b) { return (vi)vf_select(m, (vf)a, (vf)b); }

VEC_FN vf vf_fma(vf a, vf b, vf c)
{
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
VEC_FN vd vd_fma(vd a, vd b, vd c)
{
    return (vd)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
}
VEC_FN vf vf_sqrt(vf a) { return (vf)_mm256_sqrt_ps((__m256)a); }
VEC_FN vd vd_sqrt(vd a) { return (vd)_mm256_sqrt_pd((__m256d)a); }
VEC_FN vf vf_min_fast(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }
VEC_FN vf vf_max_fast(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
VEC_FN vd vd_min_fast(vd a, vd b) { return (vd)_mm256_min_pd((__m256d)a, (__m256d)b); }
VEC_FN vd vd_max_fast(vd a, vd b) { return (vd)_mm256_max_pd((__m256d)a, (__m256d)b); }

/* Immediate of vround: no inexact exception, then the rounding mode. */
VEC_FN vf vf_rint(vf a) { return (vf)_mm256_round_ps((__m256)a, 8 | 0); }
VEC_FN vf vf_floor(vf a) { return (vf)_mm256_round_ps((__m256)a, 8 | 1); }
VEC_FN vf vf_ceil(vf a) { return (vf)_mm256_round_ps((__m256)a, 8 | 2); }
VEC_FN vf vf_trunc(vf a) { return (vf)_mm256_round_ps((__m256)a, 8 | 3); }
VEC_FN vd vd_rint(vd a) { return (vd)_mm256_round_pd((__m256d)a, 8 | 0); }
VEC_FN vd vd_floor(vd a) { return (vd)_mm256_round_pd((__m256d)a, 8 | 1); }
VEC_FN vd vd_ceil(vd a) { return (vd)_mm256_round_pd((__m256d)a, 8 | 2); }
VEC_FN vd vd_trunc(vd a) { return (vd)_mm256_round_pd((__m256d)a, 8 | 3); }

VEC_FN vf vf_load_n_or(const float *p, int64_t n, vf other)
{
    vm m = vm_first_n(n);
    return vf_select(m, (vf)_mm256_maskload_ps(p, (__m256i)m), other);
}
VEC_FN vd vd_load_n_or(const double *p, int64_t n, vd other)
{
    vdm m = vdm_first_n(n);
    return vd_select(m, (vd)_mm256_maskload_pd(p, (__m256i)m), other);
}
VEC_FN void vf_store_first(float *p, vf v, int64_t n)
{
    _mm256_maskstore_ps(p, (__m256i)vm_first_n(n), (__m256)v);
}
VEC_FN void vd_store_first(double *p, vd v, int64_t n)
{
    _mm256_maskstore_pd(p, (__m256i)vdm_first_n(n), (__m256d)v);
}

/* Folds 8 lanes (f64: 4) to 4, 2, 1 with one operation, low half first. */
#define VEC_FOLD_F(v, op)                                                                       \
    __m128 f4 = _mm_##op##_ps(_mm256_castps256_ps128((__m256)v),                                \
                              _mm256_extractf128_ps((__m256)v, 1));                             \
    __m128 f2 = _mm_##op##_ps(f4, _mm_movehl_ps(f4, f4));                                       \
    return _mm_cvtss_f32(_mm_##op##_ss(f2, _mm_shuffle_ps(f2, f2, 1)))
#define VEC_FOLD_D(v, op)                                                                       \
    __m128d d2 = _mm_##op##_pd(_mm256_castpd256_pd128((__m256d)v),                              \
                               _mm256_extractf128_pd((__m256d)v, 1));                           \
    return _mm_cvtsd_f64(_mm_##op##_sd(d2, _mm_unpackhi_pd(d2, d2)))

VEC_FN float vf_hsum(vf v) { VEC_FOLD_F(v, add); }
VEC_FN float vf_hmax_fast(vf v) { VEC_FOLD_F(v, max); }
VEC_FN float vf_hmin_fast(vf v) { VEC_FOLD_F(v, min); }
VEC_FN double vd_hsum(vd v) { VEC_FOLD_D(v, add); }
VEC_FN double vd_hmax_fast(vd v) { VEC_FOLD_D(v, max); }
VEC_FN double vd_hmin_fast(vd v) { VEC_FOLD_D(v, min); }
#undef VEC_FOLD_F
#undef VEC_FOLD_D

VEC_FN vi vf_to_vi(vf v) { return (vi)_mm256_cvtps_epi32((__m256)v); }
VEC_FN vl vl_mul_u32(vl a, vl b) { return (vl)_mm256_mul_epu32((__m256i)a, (__m256i)b); }
VEC_FN vd vf_widen_lo(vf v) { return (vd)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)v)); }
VEC_FN vd vf_widen_hi(vf v) { return (vd)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)v, 1)); }
VEC_FN vf vf_narrow(vd lo, vd hi)
{
    return (vf)_mm256_set_m128(_mm256_cvtpd_ps((__m256d)hi), _mm256_cvtpd_ps((__m256d)lo));
}
VEC_FN vf vh_to_vf_f16(vh h) { return (vf)_mm256_cvtph_ps((__m128i)h); }
VEC_FN vh vf_to_vh_f16(vf v)
{
    return (vh)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
VEC_FN vu vh_to_vu(vh h) { return (vu)_mm256_cvtepu16_epi32((__m128i)h); }
VEC_FN vh vu_to_vh(vu v)
{
    __m256i low = (__m256i)(v & 0xffffu); // packus saturates, so nothing may exceed 16 bits
    return (vh)_mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
}
VEC_FN vf vf_gather(const float *base, vi indices)
{
    return (vf)_mm256_i32gather_ps(base, (__m256i)indices, 4);
}
VEC_FN vf vf_permute(vf v, vi lanes)
{
    return (vf)_mm256_permutevar8x32_ps((__m256)v, (__m256i)lanes);
}
VEC_FN vf vf_permute2(vf a, vf b, vi lanes)
{
    __m256i in_b = _mm256_slli_epi32((__m256i)lanes, 28);
    return (vf)_mm256_blendv_ps((__m256)vf_permute(a, lanes), (__m256)vf_permute(b, lanes),
                                _mm256_castsi256_ps(in_b));
}

#endif
