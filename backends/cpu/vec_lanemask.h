// Masks, comparisons and vf_ldexp_fast() of vec.h for the baseline, NEON and AVX2: a lane of a mask
// is the integer 0 or -1.
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_VEC_LANEMASK_H
#define TS_BACKENDS_CPU_VEC_LANEMASK_H

typedef vi vm;
typedef vl vdm;

VEC_FN vm vm_first_n(int64_t n) { return vi_iota() < vi_set1((int32_t)n); }
VEC_FN vm vm_and(vm a, vm b) { return a & b; }
VEC_FN vm vm_or(vm a, vm b) { return a | b; }
VEC_FN vm vm_xor(vm a, vm b) { return a ^ b; }
VEC_FN vm vm_not(vm a) { return ~a; }
VEC_FN vdm vdm_first_n(int64_t n)
{
    static const int64_t lanes[4] = {0, 1, 2, 3};
    vl iota;
    memcpy(&iota, lanes, sizeof iota);
    return iota < vl_set1(n);
}
VEC_FN vdm vdm_and(vdm a, vdm b) { return a & b; }
VEC_FN vdm vdm_or(vdm a, vdm b) { return a | b; }
VEC_FN vdm vdm_xor(vdm a, vdm b) { return a ^ b; }
VEC_FN vdm vdm_not(vdm a) { return ~a; }

VEC_FN vm vf_eq(vf a, vf b) { return (vm)(a == b); }
VEC_FN vm vf_ne(vf a, vf b) { return (vm)(a != b); }
VEC_FN vm vf_lt(vf a, vf b) { return (vm)(a < b); }
VEC_FN vm vf_le(vf a, vf b) { return (vm)(a <= b); }
VEC_FN vm vf_gt(vf a, vf b) { return (vm)(a > b); }
VEC_FN vm vf_ge(vf a, vf b) { return (vm)(a >= b); }
VEC_FN vdm vd_eq(vd a, vd b) { return (vdm)(a == b); }
VEC_FN vdm vd_ne(vd a, vd b) { return (vdm)(a != b); }
VEC_FN vdm vd_lt(vd a, vd b) { return (vdm)(a < b); }
VEC_FN vdm vd_le(vd a, vd b) { return (vdm)(a <= b); }
VEC_FN vdm vd_gt(vd a, vd b) { return (vdm)(a > b); }
VEC_FN vdm vd_ge(vd a, vd b) { return (vdm)(a >= b); }
VEC_FN vm vi_eq(vi a, vi b) { return (vm)(a == b); }
VEC_FN vm vi_lt(vi a, vi b) { return (vm)(a < b); }
VEC_FN vm vi_gt(vi a, vi b) { return (vm)(a > b); }

VEC_FN vm vm_load_bool(const uint8_t *p)
{
    vec_bytes_f bytes;
    memcpy(&bytes, p, sizeof bytes);
    return __builtin_convertvector(bytes, vi) != 0;
}
VEC_FN void vm_store_bool(uint8_t *p, vm m)
{
    vec_bytes_f bytes = __builtin_convertvector(m & 1, vec_bytes_f);
    memcpy(p, &bytes, sizeof bytes);
}
VEC_FN vdm vdm_load_bool(const uint8_t *p)
{
    vec_bytes_d bytes;
    memcpy(&bytes, p, sizeof bytes);
    return __builtin_convertvector(bytes, vl) != 0;
}
VEC_FN void vdm_store_bool(uint8_t *p, vdm m)
{
    vec_bytes_d bytes = __builtin_convertvector(m & 1, vec_bytes_d);
    memcpy(p, &bytes, sizeof bytes);
}

/* Multiplies by 2^n in two factors, because 2^n alone may overflow or underflow. The first product
 * is exact, so only the second one rounds. */
VEC_FN vf vf_ldexp_fast(vf x, vf n)
{
    vi whole = vf_trunc_to_vi(n);
    vi half = whole >> 1;
    return x * (vf)(((vu)half + 127u) << 23) * (vf)(((vu)(whole - half) + 127u) << 23);
}

#endif
