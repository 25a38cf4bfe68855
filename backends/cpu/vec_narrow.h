// Primitives of vec.h for 16-byte vectors in portable C, shared by the baseline and NEON.
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_VEC_NARROW_H
#define TS_BACKENDS_CPU_VEC_NARROW_H

#include "backends/cpu/vec_lanemask.h"

VEC_FN vi vi_select(vm m, vi a, vi b) { return (a & m) | (b & ~m); }
VEC_FN vf vf_select(vm m, vf a, vf b) { return (vf)vi_select(m, (vi)a, (vi)b); }
VEC_FN vd vd_select(vdm m, vd a, vd b) { return (vd)(((vl)a & m) | ((vl)b & ~m)); }

VEC_FN vf vf_min_fast(vf a, vf b) { return vf_select(vf_lt(a, b), a, b); }
VEC_FN vf vf_max_fast(vf a, vf b) { return vf_select(vf_gt(a, b), a, b); }
VEC_FN vd vd_min_fast(vd a, vd b) { return vd_select(vd_lt(a, b), a, b); }
VEC_FN vd vd_max_fast(vd a, vd b) { return vd_select(vd_gt(a, b), a, b); }

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
VEC_FN void vf_store_first(float *p, vf v, int64_t n)
{
    memcpy(p, &v, (size_t)n * sizeof(float));
}
VEC_FN void vd_store_first(double *p, vd v, int64_t n)
{
    memcpy(p, &v, (size_t)n * sizeof(double));
}

VEC_FN float vf_hsum(vf v) { return (v[0] + v[2]) + (v[1] + v[3]); }
VEC_FN double vd_hsum(vd v) { return v[0] + v[1]; }
VEC_FN float vec_maxf(float a, float b) { return a > b ? a : b; }
VEC_FN float vec_minf(float a, float b) { return a < b ? a : b; }
VEC_FN float vf_hmax_fast(vf v) { return vec_maxf(vec_maxf(v[0], v[2]), vec_maxf(v[1], v[3])); }
VEC_FN float vf_hmin_fast(vf v) { return vec_minf(vec_minf(v[0], v[2]), vec_minf(v[1], v[3])); }
VEC_FN double vd_hmax_fast(vd v) { return v[0] > v[1] ? v[0] : v[1]; }
VEC_FN double vd_hmin_fast(vd v) { return v[0] < v[1] ? v[0] : v[1]; }

VEC_FN vf vf_gather(const float *base, vi indices)
{
    return (vf){base[indices[0]], base[indices[1]], base[indices[2]], base[indices[3]]};
}
VEC_FN vf vf_permute2(vf a, vf b, vi lanes)
{
    float both[8];
    vf_store(both, a);
    vf_store(both + 4, b);
    return vf_gather(both, lanes & 7);
}
VEC_FN vf vf_permute(vf v, vi lanes) { return vf_permute2(v, v, lanes); }

#endif
