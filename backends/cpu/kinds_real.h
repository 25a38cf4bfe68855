/* Loads and stores of the dtypes that one real type computes: f64, or f32, bf16 and f16. `kind` is
 * a constant, so that each dtype has a loop of its own. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/real.h"

/** Up to LANES elements from i on of memory of a dtype, the other lanes 0. */
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
VEC_FN void S(set)(ts_dtype kind, void *p, int64_t i, V v, int64_t left)
{
#if TS_REAL == 32
    uint16_t *h = (uint16_t *)p + i;
    if (kind == TS_BF16) {
        vf_store_bf16_n(h, v, left < LANES ? left : LANES);
        return;
    }
    if (kind == TS_F16) {
        vf_store_f16_n(h, v, left < LANES ? left : LANES);
        return;
    }
#endif
    (void)kind;
    S(store_some)((T *)p + i, v, left);
}
/** The last `left` < LANES elements of a row of n, and `other` in the other lanes. The load is a
 * whole vector, into the row, unless the row is shorter. */
VEC_FN V S(get_last)(ts_dtype kind, const void *p, int64_t from, int64_t n, int64_t left, V other)
{
    if (n < LANES)
        return F(select)(M(first_n)(left), S(get)(kind, p, from, left), other);
    return F(select)(M(first_n)(LANES - left), other, S(get)(kind, p, from + n - LANES, LANES));
}
