/*
 * Type-generic names for code that is compiled for f32 and f64. Define REAL_BITS as 32 or 64 before
 * each inclusion; a later inclusion redefines the names.
 *
 *   name       meaning                                  32          64
 *   T          element type                             float       double
 *   V, VM      vector of T, and its mask (vec.h)        vf, vm      vd, vdm
 *   LANES      elements of a vector                     VF_LANES    VD_LANES
 *   F(load)    function of vectors                      vf_load     vd_load
 *   M(bits)    function of masks                        vm_bits     vdm_bits
 *   S(name)    name of the including file for this T    name_f32    name_f64
 *   K(x)       the number x in every lane
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
