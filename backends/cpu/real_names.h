/*
 * Type-generic names for code that is compiled for f32 and f64. Define REAL_BITS as 32 or 64 before
 * each inclusion; a later inclusion redefines the names.
 *
 *   T, V, VM, LANES      float, vf, vm, VF_LANES    or  double, vd, vdm, VD_LANES
 *   F(load), M(bits)     vf_load, vm_bits           or  vd_load, vdm_bits
 *   S(name)              name_f32                   or  name_f64
 *   K(x)                 the number x in every lane
 */
// SPDX-License-Identifier: MIT
#undef T
#undef V
#undef VM
#undef LANES
#undef F
#undef M
#undef S
#undef K
#if REAL_BITS == 32
#define T float
#define V vf
#define VM vm
#define LANES VF_LANES
#define F(name) vf_##name
#define M(name) vm_##name
#define S(name) name##_f32
#elif REAL_BITS == 64
#define T double
#define V vd
#define VM vdm
#define LANES VD_LANES
#define F(name) vd_##name
#define M(name) vdm_##name
#define S(name) name##_f64
#else
#error "define REAL_BITS as 32 or 64"
#endif
#define K(x) F(set1)((T)(x))
