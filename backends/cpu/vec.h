/*
 * Vectors of f32, i32 and f64 in the width of the variant that a kernel file is built for.
 *
 * Each kernel file is compiled once per variant with -DTS_VARIANT=baseline|avx2|avx512; TS_V(name)
 * appends the variant to external symbols. Everything here is static; VEC_FN functions are
 * inlined in optimized builds. The baseline is NEON on aarch64 and portable C elsewhere, which
 * compilers turn into SSE2 on x86-64.
 *
 *   vf, vi, vu    VF_LANES of float, int32_t, uint32_t      vm   their mask
 *   vd, vl, vul   VD_LANES of double, int64_t, uint64_t     vdm  their mask
 *   vh, vhh       VF_LANES and 2 VF_LANES of uint16_t: the bits of bf16 or f16 ("halves")
 *
 * All but the masks are GCC vector types. Arithmetic uses the operators + - * / (and << >> & | ^ ~
 * on integers), and a cast between vf and vi (vd and vl) reinterprets bits. Contraction is off:
 * a * b + c rounds twice, vf_fma() once (twice in a baseline without FMA instructions).
 * Comparisons go through functions, because masks are predicate registers on AVX-512.
 *
 * Tails: vf_load_n/vf_store_n touch exactly the first n elements (0 <= n <= VF_LANES) and run the
 * same arithmetic as whole vectors, so a result never depends on an element's position.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_VEC_H
#define TS_BACKENDS_CPU_VEC_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifndef TS_VARIANT
#error "vec.h is for kernel files, which are built with -DTS_VARIANT=baseline|avx2|avx512"
#endif
#define TS_V_PASTE_(name, variant) name##_##variant
#define TS_V_PASTE(name, variant) TS_V_PASTE_(name, variant)
/** External symbol of this variant: TS_V(ts_cpu_norm) is ts_cpu_norm_avx2 in the AVX2 build. */
#define TS_V(name) TS_V_PASTE(name, TS_VARIANT)

#define VEC_IS_baseline 0
#define VEC_IS_avx2 1
#define VEC_IS_avx512 2
/** 0, 1 or 2: for #if around code of one variant. */
#define VEC_ISA TS_V_PASTE(VEC_IS, TS_VARIANT)

/* Without optimization, or with AddressSanitizer or ThreadSanitizer, functions need not be inlined,
 * because the inlined code takes many times as long to compile. */
#if !defined __OPTIMIZE__ || defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define VEC_FN static __attribute__((unused))
#else
#define VEC_FN static inline __attribute__((always_inline, unused))
#endif

#if VEC_ISA == VEC_IS_avx512
#define VEC_BYTES 64
#define VF_LANES 16
#define VD_LANES 8
#elif VEC_ISA == VEC_IS_avx2
#define VEC_BYTES 32
#define VF_LANES 8
#define VD_LANES 4
#else
#define VEC_BYTES 16
#define VF_LANES 4
#define VD_LANES 2
#endif

typedef float vf __attribute__((vector_size(VEC_BYTES), may_alias));
typedef double vd __attribute__((vector_size(VEC_BYTES), may_alias));
typedef int32_t vi __attribute__((vector_size(VEC_BYTES), may_alias));
typedef uint32_t vu __attribute__((vector_size(VEC_BYTES), may_alias));
typedef int64_t vl __attribute__((vector_size(VEC_BYTES), may_alias));
typedef uint64_t vul __attribute__((vector_size(VEC_BYTES), may_alias));
typedef vf vf_unaligned __attribute__((aligned(4)));
typedef vd vd_unaligned __attribute__((aligned(8)));
typedef vi vi_unaligned __attribute__((aligned(4)));
typedef uint16_t vh __attribute__((vector_size(VEC_BYTES / 2), may_alias)); // VF_LANES halves
typedef vh vh_unaligned __attribute__((aligned(2)));
typedef uint16_t vhh __attribute__((vector_size(VEC_BYTES), may_alias)); // 2 VF_LANES halves
typedef vhh vhh_unaligned __attribute__((aligned(2)));
typedef int8_t vec_bytes_f __attribute__((vector_size(VF_LANES)));
typedef int8_t vec_bytes_d __attribute__((vector_size(VD_LANES)));

/* ----------------------------------------------------------------------------- shuffles ---- */

/** lane(0, a), ..., lane(n - 1, a): indices for __builtin_shufflevector(). */
#define VEC_INDICES(n, lane, a) TS_V_PASTE(VEC_INDICES, n)(lane, a)
#define VEC_INDICES_2(lane, a) lane(0, a), lane(1, a)
#define VEC_INDICES_4(lane, a) VEC_INDICES_2(lane, a), lane(2, a), lane(3, a)
#define VEC_INDICES_8(lane, a)                                                                     \
    VEC_INDICES_4(lane, a), lane(4, a), lane(5, a), lane(6, a), lane(7, a)
#define VEC_INDICES_16(lane, a)                                                                 \
    VEC_INDICES_8(lane, a), lane(8, a), lane(9, a), lane(10, a), lane(11, a), lane(12, a),      \
        lane(13, a), lane(14, a), lane(15, a)

/** Interleaves lanes of a and b (vectors of n lanes) from the lower or the upper halves. */
#define VEC_ZIP_LOW(a, b, n) __builtin_shufflevector(a, b, VEC_INDICES(n, VEC_LOW_LANE, n))
#define VEC_ZIP_HIGH(a, b, n) __builtin_shufflevector(a, b, VEC_INDICES(n, VEC_HIGH_LANE, n))
#define VEC_LOW_LANE(i, n) ((i) / 2 + (i) % 2 * (n))
#define VEC_HIGH_LANE(i, n) ((n) / 2 + (i) / 2 + (i) % 2 * (n))
/** The odd lanes of a, then those of b (vectors of 2 VF_LANES lanes). */
#define VEC_ODD(a, b)                                                                 \
    __builtin_shufflevector(a, b, VEC_INDICES(VF_LANES, VEC_ODD_LANE, 0),             \
                            VEC_INDICES(VF_LANES, VEC_ODD_LANE, VF_LANES))
#define VEC_ODD_LANE(i, a) (2 * ((i) + (a)) + 1)

/* ------------------------------------------------------------- loads, stores, constants ---- */

VEC_FN vf vf_load(const float *p) { return *(const vf_unaligned *)p; }
VEC_FN vd vd_load(const double *p) { return *(const vd_unaligned *)p; }
VEC_FN vi vi_load(const int32_t *p) { return *(const vi_unaligned *)p; }
VEC_FN void vf_store(float *p, vf v) { *(vf_unaligned *)p = v; }
VEC_FN void vd_store(double *p, vd v) { *(vd_unaligned *)p = v; }
VEC_FN void vi_store(int32_t *p, vi v) { *(vi_unaligned *)p = v; }

VEC_FN vf vf_set1(float x) { return x - (vf){0}; }
VEC_FN vd vd_set1(double x) { return x - (vd){0}; }
VEC_FN vi vi_set1(int32_t x) { return x - (vi){0}; }
VEC_FN vl vl_set1(int64_t x) { return x - (vl){0}; }
VEC_FN vf vf_zero(void) { return (vf){0}; }
VEC_FN vd vd_zero(void) { return (vd){0}; }
VEC_FN vi vi_zero(void) { return (vi){0}; }

/** The vector 0, 1, 2, ... */
VEC_FN vi vi_iota(void)
{
    static const int32_t lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return vi_load(lanes);
}

VEC_FN vf vf_abs(vf a) { return (vf)((vi)a & vi_set1(0x7fffffff)); }
VEC_FN vf vf_neg(vf a) { return (vf)((vi)a ^ vi_set1(INT32_MIN)); }
VEC_FN vd vd_abs(vd a) { return (vd)((vl)a & vl_set1(INT64_MAX)); }
VEC_FN vd vd_neg(vd a) { return (vd)((vl)a ^ vl_set1(INT64_MIN)); }
/** Magnitude of a with the sign of b. */
VEC_FN vf vf_copysign(vf a, vf b)
{
    return (vf)(((vi)a & vi_set1(0x7fffffff)) | ((vi)b & vi_set1(INT32_MIN)));
}
VEC_FN vd vd_copysign(vd a, vd b)
{
    return (vd)(((vl)a & vl_set1(INT64_MAX)) | ((vl)b & vl_set1(INT64_MIN)));
}

/** (float)v, rounded to nearest. */
VEC_FN vf vi_to_vf(vi v) { return __builtin_convertvector(v, vf); }
/** Truncation; every lane must be within int32_t. */
VEC_FN vi vf_trunc_to_vi(vf v) { return __builtin_convertvector(v, vi); }
VEC_FN vi vi_shr_logical(vi v, int n) { return (vi)((vu)v >> (uint32_t)n); }

/*
 * The other primitives depend on the instruction set. Each of the four headers below defines these
 * names. v{f,d}_x stands for vf_x and vd_x; L is the number of lanes.
 *
 *   masks        vm_first_n(n): the first n lanes; vm_and vm_or vm_xor vm_not; vm_bits(m): bit i is
 *                lane i; the same with vdm_
 *   compare      v{f,d}_{eq,ne,lt,le,gt,ge}, vi_{eq,lt,gt}; NaN compares as in C
 *   select       v{f,d,i}_select(m, a, b): a where m is set, else b
 *   arithmetic   v{f,d}_{fma,sqrt,floor,ceil,rint,trunc,min_fast,max_fast}
 *                fma(a, b, c) = a*b + c; min_fast(a, b) = a < b ? a : b, the second when unordered
 *   integers     vl_mul_u32(a, b): 64-bit products of the low halves of the lanes, unsigned
 *   partial      v{f,d}_load_n_or(p, n, other): n elements, then lanes of other;
 *                v{f,d}_store_first(p, v, n): the first n lanes
 *   reduce       v{f,d}_hsum, v{f,d}_hmax_fast, v{f,d}_hmin_fast: lane i is folded with lane
 *                i + L/2, then with i + L/4, ... until one is left
 *   convert      vf_to_vi (nearest even, in range); vf_widen_lo, vf_widen_hi: the lower or upper
 *                lanes as f64; vf_narrow(lo, hi): their inverse; vh_to_vf_f16, vf_to_vh_f16,
 *                vh_to_vu, vu_to_vh (low 16 bits)
 *   shuffle      vf_permute(v, lanes): lane i is v[lanes[i] % L]; vf_permute2(a, b, lanes): lane i
 *                is lane lanes[i] % 2L of a followed by b; lanes are at least 0
 *   memory       vf_gather(base, indices); vm_load_bool(p): the mask of the L bytes at p, set where
 *                a byte is not 0; vm_store_bool(p, m): L bytes 0 or 1; the same with vdm_
 *   scale        vf_ldexp_fast(x, n) = x * 2^n, x in [0.5, 2), n whole in [-160, 129]: one rounding
 */
#if VEC_ISA == VEC_IS_avx512
#include "backends/cpu/vec_avx512.h"
#elif VEC_ISA == VEC_IS_avx2
#include "backends/cpu/vec_avx2.h"
#elif defined(__aarch64__)
#include "backends/cpu/vec_neon.h"
#else
#include "backends/cpu/vec_baseline.h"
#endif

/* ---------------------------------------------------------------------- derived: masks ---- */

VEC_FN bool vm_any(vm m) { return vm_bits(m) != 0; }
VEC_FN bool vm_all(vm m) { return vm_bits(m) == (1u << VF_LANES) - 1; }
VEC_FN bool vdm_any(vdm m) { return vdm_bits(m) != 0; }
VEC_FN bool vdm_all(vdm m) { return vdm_bits(m) == (1u << VD_LANES) - 1; }
VEC_FN vm vf_isnan(vf a) { return vf_ne(a, a); }
VEC_FN vdm vd_isnan(vd a) { return vd_ne(a, a); }

/** vm_store_bool_n() stores the first n lanes of a mask as bytes 0 or 1. vm_load_bool_n() loads a
 * mask from n bytes: a lane is set if its byte is not 0; lanes starting at n are not set. */
VEC_FN void vm_store_bool_n(uint8_t *p, vm m, int64_t n)
{
    uint8_t bytes[VF_LANES];
    vm_store_bool(bytes, m);
    memcpy(p, bytes, (size_t)n);
}
VEC_FN void vdm_store_bool_n(uint8_t *p, vdm m, int64_t n)
{
    uint8_t bytes[VD_LANES];
    vdm_store_bool(bytes, m);
    memcpy(p, bytes, (size_t)n);
}
VEC_FN vm vm_load_bool_n(const uint8_t *p, int64_t n)
{
    uint8_t bytes[VF_LANES] = {0};
    memcpy(bytes, p, (size_t)n);
    return vm_load_bool(bytes);
}
VEC_FN vdm vdm_load_bool_n(const uint8_t *p, int64_t n)
{
    uint8_t bytes[VD_LANES] = {0};
    memcpy(bytes, p, (size_t)n);
    return vdm_load_bool(bytes);
}

/* ------------------------------------------------------------- derived: min, max, tails ---- */

/** Maximum and minimum that return NaN if an operand is NaN, like torch.maximum and
 * torch.minimum. */
VEC_FN vf vf_max(vf a, vf b) { return vf_select(vf_isnan(a), a, vf_max_fast(a, b)); }
VEC_FN vf vf_min(vf a, vf b) { return vf_select(vf_isnan(a), a, vf_min_fast(a, b)); }
VEC_FN vd vd_max(vd a, vd b) { return vd_select(vd_isnan(a), a, vd_max_fast(a, b)); }
VEC_FN vd vd_min(vd a, vd b) { return vd_select(vd_isnan(a), a, vd_min_fast(a, b)); }

VEC_FN float vf_hmax(vf v) { return vm_any(vf_isnan(v)) ? (float)NAN : vf_hmax_fast(v); }
VEC_FN float vf_hmin(vf v) { return vm_any(vf_isnan(v)) ? (float)NAN : vf_hmin_fast(v); }
VEC_FN double vd_hmax(vd v) { return vdm_any(vd_isnan(v)) ? (double)NAN : vd_hmax_fast(v); }
VEC_FN double vd_hmin(vd v) { return vdm_any(vd_isnan(v)) ? (double)NAN : vd_hmin_fast(v); }

/** True if n is a compile-time constant equal to `lanes`. Whole vectors then use the same source as
 * tails at no cost. */
#define VEC_WHOLE(n, lanes) (__builtin_constant_p(n) && (n) == (lanes))

/** Loads the first n elements; the other lanes are 0. */
VEC_FN vf vf_load_n(const float *p, int64_t n)
{
    return VEC_WHOLE(n, VF_LANES) ? vf_load(p) : vf_load_n_or(p, n, vf_zero());
}
VEC_FN vd vd_load_n(const double *p, int64_t n)
{
    return VEC_WHOLE(n, VD_LANES) ? vd_load(p) : vd_load_n_or(p, n, vd_zero());
}
VEC_FN vi vi_load_n(const int32_t *p, int64_t n) { return (vi)vf_load_n((const float *)p, n); }

VEC_FN void vf_store_n(float *p, vf v, int64_t n)
{
    if (VEC_WHOLE(n, VF_LANES))
        vf_store(p, v);
    else
        vf_store_first(p, v, n);
}
VEC_FN void vd_store_n(double *p, vd v, int64_t n)
{
    if (VEC_WHOLE(n, VD_LANES))
        vd_store(p, v);
    else
        vd_store_first(p, v, n);
}
VEC_FN void vi_store_n(int32_t *p, vi v, int64_t n) { vf_store_n((float *)p, (vf)v, n); }

/* -------------------------------------------------------- derived: bf16 and f16 memory ---- */

/** bf16 is the upper half of an f32. Conversion to bf16 rounds to nearest even; every NaN becomes
 * 0x7fc0. */
VEC_FN vf vh_to_vf_bf16(vh h) { return (vf)(vh_to_vu(h) << 16); }
VEC_FN vh vf_to_vh_bf16(vf v)
{
    vu bits = (vu)v;
    vu rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return vu_to_vh((vu)vi_select(vf_isnan(v), vi_set1(0x7fc0), (vi)rounded));
}

VEC_FN vh vh_load(const uint16_t *p) { return *(const vh_unaligned *)p; }
VEC_FN void vh_store(uint16_t *p, vh h) { *(vh_unaligned *)p = h; }
#if VEC_ISA == VEC_IS_avx512
VEC_FN vh vh_load_n(const uint16_t *p, int64_t n)
{
    return (vh)_mm256_maskz_loadu_epi16(vm_first_n(n), p);
}
VEC_FN void vh_store_n(uint16_t *p, vh h, int64_t n)
{
    _mm256_mask_storeu_epi16(p, vm_first_n(n), (__m256i)h);
}
#else
VEC_FN vh vh_load_n(const uint16_t *p, int64_t n)
{
    vh h = {0};
    memcpy(&h, p, (size_t)n * 2);
    return h;
}
VEC_FN void vh_store_n(uint16_t *p, vh h, int64_t n) { memcpy(p, &h, (size_t)n * 2); }
#endif

VEC_FN vf vf_load_bf16(const uint16_t *p) { return vh_to_vf_bf16(vh_load(p)); }
VEC_FN vf vf_load_f16(const uint16_t *p) { return vh_to_vf_f16(vh_load(p)); }
VEC_FN vf vf_load_bf16_n(const uint16_t *p, int64_t n) { return vh_to_vf_bf16(vh_load_n(p, n)); }
VEC_FN vf vf_load_f16_n(const uint16_t *p, int64_t n) { return vh_to_vf_f16(vh_load_n(p, n)); }
VEC_FN void vf_store_bf16(uint16_t *p, vf v) { vh_store(p, vf_to_vh_bf16(v)); }
VEC_FN void vf_store_f16(uint16_t *p, vf v) { vh_store(p, vf_to_vh_f16(v)); }
/** Stores the halves of a, then those of b. */
VEC_FN void vf_store2_bf16(uint16_t *p, vf a, vf b)
{
    vu x = (vu)a, y = (vu)b; /* rounded: the upper 16 bits are the bf16 */
    x += 0x7fffu + ((x >> 16) & 1u);
    y += 0x7fffu + ((y >> 16) & 1u);
    if (vm_any(vm_or(vf_isnan(a), vf_isnan(b)))) {
        vf_store_bf16(p, a);
        vf_store_bf16(p + VF_LANES, b);
        return;
    }
    *(vhh_unaligned *)p = VEC_ODD((vhh)x, (vhh)y);
}
VEC_FN void vf_store2_f16(uint16_t *p, vf a, vf b)
{
    vf_store_f16(p, a);
    vf_store_f16(p + VF_LANES, b);
}
VEC_FN void vf_store_bf16_n(uint16_t *p, vf v, int64_t n) { vh_store_n(p, vf_to_vh_bf16(v), n); }
VEC_FN void vf_store_f16_n(uint16_t *p, vf v, int64_t n) { vh_store_n(p, vf_to_vh_f16(v), n); }

#endif
