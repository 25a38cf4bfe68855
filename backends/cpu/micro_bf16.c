/** @file micro_bf16.c  Micro-kernels (micro.h) of bf16 by the instruction AVX512_BF16 for dot
 * products of pairs. Only the AVX-512 variant has them, and they run only if ts_cpu_has_bf16(). */
// SPDX-License-Identifier: MIT
#include "backends/cpu/micro.h"

#if VEC_ISA == VEC_IS_avx512
#define BF16_FN __attribute__((target("avx512bf16")))

/** sum + the products of 16 pairs at b with the pair in the bits of `pair`. */
static inline __attribute__((always_inline)) BF16_FN __m512 dot_pairs(__m512 sum, int32_t pair,
                                                                      __m512i b)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)b);
}

static inline __attribute__((always_inline)) int32_t pair_at(const char *p)
{
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return pair;
}

/* Three pointers reach all rows, as in micro.c. */
static inline __attribute__((always_inline)) BF16_FN void micro_bf16(const int rows,
                                                                     const int vectors,
                                                                     MICRO_PARAMS_BF16)
{
    __m512 sum[MICRO_ROWS][2];
    const char *at[3] = {a, a + 5 * a_row, a + 10 * a_row};
    const int64_t s = a_row, s3 = 3 * a_row;
    TS_UNROLL(16) for (int i = 0; i < rows; i++)
        TS_UNROLL(2) for (int j = 0; j < vectors; j++) sum[i][j] = _mm512_setzero_ps();
    for (int64_t p = 0; p < pairs - odd; p++) {
        __m512i x[2];
        TS_UNROLL(2) for (int j = 0; j < vectors; j++) x[j] = _mm512_loadu_si512(b + 32 * j);
        TS_UNROLL(16) for (int i = 0; i < rows; i++) {
            const int r = i % 5;
            int32_t pair = pair_at(at[i / 5] + (r == 3 ? s3 : r * s));
            TS_UNROLL(2) for (int j = 0; j < vectors; j++)
                sum[i][j] = dot_pairs(sum[i][j], pair, x[j]);
        }
        b += MICRO_PAIR_BF16;
        at[0] += a_step;
        at[1] += a_step;
        at[2] += a_step;
    }
    if (odd) {
        TS_UNROLL(16) for (int i = 0; i < rows; i++) {
            uint16_t last;
            memcpy(&last, at[i / 5] + i % 5 * s, sizeof last);
            TS_UNROLL(2) for (int j = 0; j < vectors; j++)
                sum[i][j] = dot_pairs(sum[i][j], last, _mm512_loadu_si512(b + 32 * j));
        }
    }
    TS_UNROLL(16) for (int i = 0; i < rows; i++)
        TS_UNROLL(2) for (int j = 0; j < vectors; j++) {
            float *to = c + i * c_row + j * VF_LANES;
            vf y = (vf)sum[i][j];
            if (add)
                y = vf_load(to) + y;
            vf_store(to, y);
        }
}

#define MICRO_DEFINE_ONE(rows, n)                                                \
    static BF16_FN void micro_bf16_##rows##_##n(MICRO_PARAMS_BF16)               \
    {                                                                            \
        micro_bf16(rows, n, pairs, a, a_row, a_step, b, c, c_row, odd, add);     \
    }
#define MICRO_DEFINE(rows) MICRO_DEFINE_ONE(rows, 1) MICRO_DEFINE_ONE(rows, 2)
#define MICRO_EACH(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
MICRO_EACH(MICRO_DEFINE)

#define ROW(rows) [rows] = {micro_bf16_##rows##_1, micro_bf16_##rows##_2},
const ts_micro_bf16 TS_V(ts_micro_bf16)[MICRO_ROWS + 1][2] = {MICRO_EACH(ROW)};
#else
const ts_micro_bf16 TS_V(ts_micro_bf16)[MICRO_ROWS + 1][2] = {{NULL}};
#endif
