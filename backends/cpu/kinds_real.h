/* Vector loads and stores for the dtypes that are computed in one real type T: f64 in f64; f32,
 * bf16 and f16 in f32. Most kernel bodies (*_real.h) include this file; real_names.h defines T, V
 * (a vector of LANES elements) and S(name). Callers pass `kind`, a dtype, as a constant, so the
 * compiler makes a loop of its own for each dtype. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/real.h"

/* FOR_KINDS(DO): DO(suffix, kind) for each dtype that is computed in T. */
#undef FOR_KINDS
#if TS_REAL == 64
#define FOR_KINDS(DO) DO(f64, TS_F64)
#else
#define FOR_KINDS(DO) DO(f32, TS_F32) DO(bf16, TS_BF16) DO(f16, TS_F16)
#endif

/** Loads min(left, LANES) elements of dtype `kind` from element i of p; the other lanes are 0. */
VEC_FN V S(get)(ts_dtype kind, const void *p, int64_t i, int64_t left)
{
#if TS_REAL == 32
    const uint16_t *h = (const uint16_t *)p + i;
    if (kind == TS_BF16)
        return left >= LANES ? vf_load_bf16(h) : vf_load_bf16_n(h, left);
    if (kind == TS_F16)
        return left >= LANES ? vf_load_f16(h) : vf_load_f16_n(h, left);
#endif
    (void)kind;
    return S(load_some)((const T *)p + i, left, F(zero)());
}
/** Stores the first min(left, LANES) lanes of v at elements i, i + 1, ... of p, rounded to
 * `kind`. */
VEC_FN void S(set)(ts_dtype kind, void *p, int64_t i, V v, int64_t left)
{
#if TS_REAL == 32
    uint16_t *h = (uint16_t *)p + i;
    if (kind == TS_BF16 || kind == TS_F16) {
        vh halves = kind == TS_BF16 ? vf_to_vh_bf16(v) : vf_to_vh_f16(v);
        if (left >= LANES)
            vh_store(h, halves);
        else
            vh_store_n(h, halves, left);
        return;
    }
#endif
    (void)kind;
    S(store_some)((T *)p + i, v, left);
}
/** Loads the last `left` elements of a row, 0 < left < LANES. The row is the n elements of p that
 * start at element `from`. If n >= LANES, the row's last whole vector is loaded and the elements
 * are in its last lanes. Otherwise left is n, and they are in the first lanes. The other lanes are
 * those of `other`. */
VEC_FN V S(get_last)(ts_dtype kind, const void *p, int64_t from, int64_t n, int64_t left, V other)
{
    if (n < LANES)
        return F(select)(M(first_n)(left), S(get)(kind, p, from, left), other);
    return F(select)(M(first_n)(LANES - left), other, S(get)(kind, p, from + n - LANES, LANES));
}
