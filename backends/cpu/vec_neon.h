// The NEON primitives that vec.h lists. They use only instructions that every aarch64 CPU has.
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_VEC_NEON_H
#define TS_BACKENDS_CPU_VEC_NEON_H

#include <arm_neon.h>

#include "backends/cpu/vec_narrow.h"

VEC_FN uint32_t vm_bits(vm a) { return vaddvq_u32((uint32x4_t)(a & (vi){1, 2, 4, 8})); }
VEC_FN uint32_t vdm_bits(vdm a) { return (uint32_t)vaddvq_u64((uint64x2_t)(a & (vl){1, 2})); }

VEC_FN vf vf_fma(vf a, vf b, vf c)
{
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
VEC_FN vd vd_fma(vd a, vd b, vd c)
{
    return (vd)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
}
VEC_FN vf vf_sqrt(vf a) { return (vf)vsqrtq_f32((float32x4_t)a); }
VEC_FN vd vd_sqrt(vd a) { return (vd)vsqrtq_f64((float64x2_t)a); }

VEC_FN vf vf_rint(vf a) { return (vf)vrndnq_f32((float32x4_t)a); }
VEC_FN vf vf_floor(vf a) { return (vf)vrndmq_f32((float32x4_t)a); }
VEC_FN vf vf_ceil(vf a) { return (vf)vrndpq_f32((float32x4_t)a); }
VEC_FN vf vf_trunc(vf a) { return (vf)vrndq_f32((float32x4_t)a); }
VEC_FN vd vd_rint(vd a) { return (vd)vrndnq_f64((float64x2_t)a); }
VEC_FN vd vd_floor(vd a) { return (vd)vrndmq_f64((float64x2_t)a); }
VEC_FN vd vd_ceil(vd a) { return (vd)vrndpq_f64((float64x2_t)a); }
VEC_FN vd vd_trunc(vd a) { return (vd)vrndq_f64((float64x2_t)a); }

VEC_FN vi vf_to_vi(vf v) { return (vi)vcvtnq_s32_f32((float32x4_t)v); }
VEC_FN vl vl_mul_u32(vl a, vl b)
{
    return (vl)vmull_u32(vmovn_u64((uint64x2_t)a), vmovn_u64((uint64x2_t)b));
}
VEC_FN vd vf_widen_lo(vf v) { return (vd)vcvt_f64_f32(vget_low_f32((float32x4_t)v)); }
VEC_FN vd vf_widen_hi(vf v) { return (vd)vcvt_high_f64_f32((float32x4_t)v); }
VEC_FN vf vf_narrow(vd lo, vd hi)
{
    return (vf)vcvt_high_f32_f64(vcvt_f32_f64((float64x2_t)lo), (float64x2_t)hi);
}
VEC_FN vu vh_to_vu(vh h) { return (vu)vmovl_u16((uint16x4_t)h); }
VEC_FN vh vu_to_vh(vu v) { return (vh)vmovn_u32((uint32x4_t)v); }
VEC_FN vf vh_to_vf_f16(vh h) { return (vf)vcvt_f32_f16((float16x4_t)h); }
VEC_FN vh vf_to_vh_f16(vf v) { return (vh)vcvt_f16_f32((float32x4_t)v); }

#endif
