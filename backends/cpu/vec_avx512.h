// The primitives that vec.h lists, for AVX-512 (F, DQ, BW, VL).
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_VEC_AVX512_H
#define TS_BACKENDS_CPU_VEC_AVX512_H

#include <immintrin.h>

typedef __mmask16 vm;
typedef __mmask8 vdm;

VEC_FN vm vm_first_n(int64_t n) { return (vm)((1u << n) - 1); }
VEC_FN vm vm_and(vm a, vm b) { return (vm)(a & b); }
VEC_FN vm vm_or(vm a, vm b) { return (vm)(a | b); }
VEC_FN vm vm_xor(vm a, vm b) { return (vm)(a ^ b); }
VEC_FN vm vm_not(vm a) { return (vm)~a; }
VEC_FN uint32_t vm_bits(vm a) { return a; }
VEC_FN vdm vdm_first_n(int64_t n) { return (vdm)((1u << n) - 1); }
VEC_FN vdm vdm_and(vdm a, vdm b) { return (vdm)(a & b); }
VEC_FN vdm vdm_or(vdm a, vdm b) { return (vdm)(a | b); }
VEC_FN vdm vdm_xor(vdm a, vdm b) { return (vdm)(a ^ b); }
VEC_FN vdm vdm_not(vdm a) { return (vdm)~a; }
VEC_FN uint32_t vdm_bits(vdm a) { return a; }

VEC_FN vm vf_eq(vf a, vf b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_EQ_OQ); }
VEC_FN vm vf_ne(vf a, vf b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_NEQ_UQ); }
VEC_FN vm vf_lt(vf a, vf b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LT_OQ); }
VEC_FN vm vf_le(vf a, vf b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LE_OQ); }
VEC_FN vm vf_gt(vf a, vf b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ); }
VEC_FN vm vf_ge(vf a, vf b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GE_OQ); }
VEC_FN vdm vd_eq(vd a, vd b) { return _mm512_cmp_pd_mask((__m512d)a, (__m512d)b, _CMP_EQ_OQ); }
VEC_FN vdm vd_ne(vd a, vd b) { return _mm512_cmp_pd_mask((__m512d)a, (__m512d)b, _CMP_NEQ_UQ); }
VEC_FN vdm vd_lt(vd a, vd b) { return _mm512_cmp_pd_mask((__m512d)a, (__m512d)b, _CMP_LT_OQ); }
VEC_FN vdm vd_le(vd a, vd b) { return _mm512_cmp_pd_mask((__m512d)a, (__m512d)b, _CMP_LE_OQ); }
VEC_FN vdm vd_gt(vd a, vd b) { return _mm512_cmp_pd_mask((__m512d)a, (__m512d)b, _CMP_GT_OQ); }
VEC_FN vdm vd_ge(vd a, vd b) { return _mm512_cmp_pd_mask((__m512d)a, (__m512d)b, _CMP_GE_OQ); }
VEC_FN vm vi_eq(vi a, vi b) { return _mm512_cmpeq_epi32_mask((__m512i)a, (__m512i)b); }
VEC_FN vm vi_lt(vi a, vi b) { return _mm512_cmplt_epi32_mask((__m512i)a, (__m512i)b); }
VEC_FN vm vi_gt(vi a, vi b) { return _mm512_cmpgt_epi32_mask((__m512i)a, (__m512i)b); }

VEC_FN vf vf_select(vm m, vf a, vf b) { return (vf)_mm512_mask_blend_ps(m, (__m512)b, (__m512)a); }
VEC_FN vd vd_select(vdm m, vd a, vd b)
{
    return (vd)_mm512_mask_blend_pd(m, (__m512d)b, (__m512d)a);
}
VEC_FN vi vi_select(vm m, vi a, vi b)
{
    return (vi)_mm512_mask_blend_epi32(m, (__m512i)b, (__m512i)a);
}

VEC_FN vf vf_fma(vf a, vf b, vf c)
{
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
VEC_FN vd vd_fma(vd a, vd b, vd c)
{
    return (vd)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
}
VEC_FN vf vf_sqrt(vf a) { return (vf)_mm512_sqrt_ps((__m512)a); }
VEC_FN vd vd_sqrt(vd a) { return (vd)_mm512_sqrt_pd((__m512d)a); }
VEC_FN vf vf_min_fast(vf a, vf b) { return (vf)_mm512_min_ps((__m512)a, (__m512)b); }
VEC_FN vf vf_max_fast(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
VEC_FN vd vd_min_fast(vd a, vd b) { return (vd)_mm512_min_pd((__m512d)a, (__m512d)b); }
VEC_FN vd vd_max_fast(vd a, vd b) { return (vd)_mm512_max_pd((__m512d)a, (__m512d)b); }

/* Immediate of vrndscale: 0 fraction bits, no inexact exception, then the rounding mode. */
VEC_FN vf vf_rint(vf a) { return (vf)_mm512_roundscale_ps((__m512)a, 8 | 0); }
VEC_FN vf vf_floor(vf a) { return (vf)_mm512_roundscale_ps((__m512)a, 8 | 1); }
VEC_FN vf vf_ceil(vf a) { return (vf)_mm512_roundscale_ps((__m512)a, 8 | 2); }
VEC_FN vf vf_trunc(vf a) { return (vf)_mm512_roundscale_ps((__m512)a, 8 | 3); }
VEC_FN vd vd_rint(vd a) { return (vd)_mm512_roundscale_pd((__m512d)a, 8 | 0); }
VEC_FN vd vd_floor(vd a) { return (vd)_mm512_roundscale_pd((__m512d)a, 8 | 1); }
VEC_FN vd vd_ceil(vd a) { return (vd)_mm512_roundscale_pd((__m512d)a, 8 | 2); }
VEC_FN vd vd_trunc(vd a) { return (vd)_mm512_roundscale_pd((__m512d)a, 8 | 3); }

VEC_FN vf vf_load_n_or(const float *p, int64_t n, vf other)
{
    return (vf)_mm512_mask_loadu_ps((__m512)other, vm_first_n(n), p);
}
VEC_FN vd vd_load_n_or(const double *p, int64_t n, vd other)
{
    return (vd)_mm512_mask_loadu_pd((__m512d)other, vdm_first_n(n), p);
}
VEC_FN void vf_store_first(float *p, vf v, int64_t n)
{
    _mm512_mask_storeu_ps(p, vm_first_n(n), (__m512)v);
}
VEC_FN void vd_store_first(double *p, vd v, int64_t n)
{
    _mm512_mask_storeu_pd(p, vdm_first_n(n), (__m512d)v);
}

/* Folds 16 lanes (f64: 8) to 8, 4, 2, 1 with one operation, low half first. */
#define VEC_FOLD_F(v, op)                                                                       \
    __m256 f8 = _mm256_##op##_ps(_mm512_castps512_ps256((__m512)v),                             \
                                 _mm512_extractf32x8_ps((__m512)v, 1));                         \
    __m128 f4 = _mm_##op##_ps(_mm256_castps256_ps128(f8), _mm256_extractf128_ps(f8, 1));        \
    __m128 f2 = _mm_##op##_ps(f4, _mm_movehl_ps(f4, f4));                                       \
    return _mm_cvtss_f32(_mm_##op##_ss(f2, _mm_shuffle_ps(f2, f2, 1)))
#define VEC_FOLD_D(v, op)                                                                       \
    __m256d d4 = _mm256_##op##_pd(_mm512_castpd512_pd256((__m512d)v),                           \
                                  _mm512_extractf64x4_pd((__m512d)v, 1));                       \
    __m128d d2 = _mm_##op##_pd(_mm256_castpd256_pd128(d4), _mm256_extractf128_pd(d4, 1));       \
    return _mm_cvtsd_f64(_mm_##op##_sd(d2, _mm_unpackhi_pd(d2, d2)))

VEC_FN float vf_hsum(vf v) { VEC_FOLD_F(v, add); }
VEC_FN float vf_hmax_fast(vf v) { VEC_FOLD_F(v, max); }
VEC_FN float vf_hmin_fast(vf v) { VEC_FOLD_F(v, min); }
VEC_FN double vd_hsum(vd v) { VEC_FOLD_D(v, add); }
VEC_FN double vd_hmax_fast(vd v) { VEC_FOLD_D(v, max); }
VEC_FN double vd_hmin_fast(vd v) { VEC_FOLD_D(v, min); }
#undef VEC_FOLD_F
#undef VEC_FOLD_D

VEC_FN vi vf_to_vi(vf v) { return (vi)_mm512_cvtps_epi32((__m512)v); }
VEC_FN vl vl_mul_u32(vl a, vl b) { return (vl)_mm512_mul_epu32((__m512i)a, (__m512i)b); }
VEC_FN vd vf_widen_lo(vf v) { return (vd)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)v)); }
VEC_FN vd vf_widen_hi(vf v) { return (vd)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)v, 1)); }
VEC_FN vf vf_narrow(vd lo, vd hi)
{
    return (vf)_mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps((__m512d)lo)),
                                  _mm512_cvtpd_ps((__m512d)hi), 1);
}
VEC_FN vf vh_to_vf_f16(vh h) { return (vf)_mm512_cvtph_ps((__m256i)h); }
VEC_FN vh vf_to_vh_f16(vf v)
{
    return (vh)_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
VEC_FN vu vh_to_vu(vh h) { return (vu)_mm512_cvtepu16_epi32((__m256i)h); }
VEC_FN vh vu_to_vh(vu v) { return (vh)_mm512_cvtepi32_epi16((__m512i)v); }

VEC_FN vf vf_gather(const float *base, vi indices)
{
    return (vf)_mm512_i32gather_ps((__m512i)indices, base, 4);
}
VEC_FN vf vf_permute(vf v, vi lanes)
{
    return (vf)_mm512_permutexvar_ps((__m512i)lanes, (__m512)v);
}
VEC_FN vf vf_permute2(vf a, vf b, vi lanes)
{
    return (vf)_mm512_permutex2var_ps((__m512)a, (__m512i)lanes, (__m512)b);
}
VEC_FN vm vm_load_bool(const uint8_t *p)
{
    __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    return _mm_test_epi8_mask(bytes, bytes);
}
VEC_FN void vm_store_bool(uint8_t *p, vm m)
{
    _mm_storeu_si128((__m128i *)p, _mm_maskz_set1_epi8(m, 1));
}
VEC_FN vdm vdm_load_bool(const uint8_t *p)
{
    __m128i bytes = _mm_loadl_epi64((const __m128i *)p);
    return (vdm)_mm_test_epi8_mask(bytes, bytes);
}
VEC_FN void vdm_store_bool(uint8_t *p, vdm m)
{
    _mm_storel_epi64((__m128i *)p, _mm_maskz_set1_epi8(m, 1));
}

VEC_FN vf vf_ldexp_fast(vf x, vf n) { return (vf)_mm512_scalef_ps((__m512)x, (__m512)n); }

#endif
