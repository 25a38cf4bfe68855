/** @file micro.c  The micro-kernels of micro.h: small products in registers, one function for each
 * number of rows and of vectors of columns. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/micro.h"

#define MICRO_AHEAD 12 /* steps between the prefetch and the load of copied data */

/* Three pointers, five rows apart, reach all rows with scaled addressing; one pointer per row would
 * need more address registers than there are. */
#define MICRO_BODY(T, V, p, L)                                                                     \
    VEC_FN void p##_micro(const int rows, const int vectors, const bool copy, MICRO_PARAMS(T),     \
                          T *a_to, T *b_to, T *sums)                                               \
    {                                                                                              \
        V sum[MICRO_ROWS][2], total[(MICRO_ROWS + L - 1) / L];                                     \
        TS_UNROLL(16) for (int i = 0; i < rows; i++)                                               \
            TS_UNROLL(2) for (int j = 0; j < vectors; j++) sum[i][j] = p##_zero();                 \
        TS_UNROLL(4) for (int i = 0; copy && i < rows; i += L) total[i / L] = p##_zero();          \
        _Alignas(64) T unwanted[2 * L]; /* discarded copies */                                     \
        const int64_t a_to_step = a_to ? MICRO_BLOCK : 0, b_to_step = b_to ? vectors * L : 0;      \
        a_to = a_to ? a_to : unwanted;                                                             \
        b_to = b_to ? b_to : unwanted;                                                             \
        const int64_t s = a_row * (int64_t)sizeof(T), s3 = 3 * s,                                  \
                      step = a_step * (int64_t)sizeof(T);                                          \
        const char *at[3] = {(const char *)a, (const char *)a + 5 * s, (const char *)a + 10 * s};  \
        for (int64_t n = k; n > 0; n--) {                                                          \
            V x[2];                                                                                \
            TS_UNROLL(2) for (int j = 0; j < vectors; j++) x[j] = p##_load(b + j * L);             \
            if (copy) {                                                                            \
                __builtin_prefetch(at[0] + MICRO_AHEAD * step + (rows - 1) * (int64_t)sizeof(T));  \
                TS_UNROLL(2) for (int j = 0; j < vectors; j++) {                                   \
                    __builtin_prefetch(b + MICRO_AHEAD * b_row + j * L);                           \
                    p##_store(b_to + j * L, x[j]);                                                 \
                }                                                                                  \
                TS_UNROLL(4) for (int i = 0; i < rows; i += L) {                                   \
                    V y = p##_load_n((const T *)at[0] + i, rows - i < L ? rows - i : L);           \
                    total[i / L] = total[i / L] + y;                                               \
                    p##_store(a_to + i, y);                                                        \
                }                                                                                  \
                __builtin_prefetch(a_to + MICRO_AHEAD * a_to_step, 1);                             \
                a_to += a_to_step;                                                                 \
                b_to += b_to_step;                                                                 \
            }                                                                                      \
            TS_UNROLL(16) for (int i = 0; i < rows; i++) {                                         \
                const int r = i % 5;                                                               \
                V y = p##_set1(*(const T *)(at[i / 5] + (r == 3 ? s3 : r * s)));                   \
                TS_UNROLL(2) for (int j = 0; j < vectors; j++)                                     \
                    sum[i][j] = p##_fma(y, x[j], sum[i][j]);                                       \
            }                                                                                      \
            __builtin_prefetch(fetch, 0, 2);                                                       \
            fetch += fetch_step;                                                                   \
            b += b_row;                                                                            \
            at[0] += step;                                                                         \
            at[1] += step;                                                                         \
            at[2] += step;                                                                         \
        }                                                                                          \
        if (copy && sums)                                                                          \
            TS_UNROLL(4) for (int i = 0; i < rows; i += L) {                                       \
                int64_t lanes = rows - i < L ? rows - i : L;                                       \
                V before = add ? p##_load_n(sums + i, lanes) : p##_zero();                         \
                p##_store_n(sums + i, before + total[i / L], lanes);                               \
            }                                                                                      \
        if (columns == vectors * L) {                                                              \
            if (bias)                                                                              \
                TS_UNROLL(2) for (int j = 0; j < vectors; j++) {                                   \
                    V y = p##_load(bias + j * L);                                                  \
                    TS_UNROLL(16) for (int i = 0; i < rows; i++) sum[i][j] = sum[i][j] + y;        \
                }                                                                                  \
            if (add)                                                                               \
                TS_UNROLL(16) for (int i = 0; i < rows; i++)                                       \
                    TS_UNROLL(2) for (int j = 0; j < vectors; j++)                                 \
                        sum[i][j] = p##_load(c + i * c_row + j * L) + sum[i][j];                   \
            TS_UNROLL(16) for (int i = 0; i < rows; i++)                                           \
                TS_UNROLL(2) for (int j = 0; j < vectors; j++)                                     \
                    p##_store(c + i * c_row + j * L, sum[i][j]);                                   \
            return;                                                                                \
        }                                                                                          \
        TS_UNROLL(2) for (int j = 0; j < vectors; j++) {                                           \
            int64_t lanes = j + 1 < vectors ? L : columns - j * L;                                 \
            V y = bias ? p##_load_n(bias + j * L, lanes) : p##_zero();                             \
            TS_UNROLL(16) for (int i = 0; i < rows; i++) {                                         \
                T *to = c + i * c_row + j * L;                                                     \
                V v = sum[i][j];                                                                   \
                if (bias)                                                                          \
                    v = v + y;                                                                     \
                if (add)                                                                           \
                    v = p##_load_n(to, lanes) + v;                                                 \
                p##_store_n(to, v, lanes);                                                         \
            }                                                                                      \
        }                                                                                          \
    }
MICRO_BODY(float, vf, vf, VF_LANES)
MICRO_BODY(double, vd, vd, VD_LANES)

#define MICRO_ARGS k, a, a_row, a_step, b, b_row, c, c_row, columns, bias, add, fetch, fetch_step
#define MICRO_DEFINE_ONE(rows, n)                                                                  \
    static void vf_micro_##rows##_##n(MICRO_PARAMS(float))                                         \
    {                                                                                              \
        vf_micro(rows, n, false, MICRO_ARGS, NULL, NULL, NULL);                                    \
    }                                                                                              \
    static void vd_micro_##rows##_##n(MICRO_PARAMS(double))                                        \
    {                                                                                              \
        vd_micro(rows, n, false, MICRO_ARGS, NULL, NULL, NULL);                                    \
    }                                                                                              \
    static void vf_micro_copy_##rows##_##n(MICRO_PARAMS(float), float *a_to, float *b_to,          \
                                           float *sums)                                            \
    {                                                                                              \
        vf_micro(rows, n, true, MICRO_ARGS, a_to, b_to, sums);                                     \
    }
#define MICRO_DEFINE(rows) MICRO_DEFINE_ONE(rows, 1) MICRO_DEFINE_ONE(rows, 2)
#if MICRO_ROWS == 14
#define MICRO_EACH(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#else
#define MICRO_EACH(X) X(1) X(2) X(3) X(4) X(5) X(6)
#endif
MICRO_EACH(MICRO_DEFINE)

#define ROW_F(rows) [rows] = {vf_micro_##rows##_1, vf_micro_##rows##_2},
#define ROW_D(rows) [rows] = {vd_micro_##rows##_1, vd_micro_##rows##_2},
const ts_micro_f32 TS_V(ts_micro_f32)[MICRO_ROWS + 1][2] = {MICRO_EACH(ROW_F)};
const ts_micro_f64 TS_V(ts_micro_f64)[MICRO_ROWS + 1][2] = {MICRO_EACH(ROW_D)};
#define ROW_COPY(rows) [rows] = {vf_micro_copy_##rows##_1, vf_micro_copy_##rows##_2},
const ts_micro_copy_f32 TS_V(ts_micro_copy_f32)[MICRO_ROWS + 1][2] = {MICRO_EACH(ROW_COPY)};
