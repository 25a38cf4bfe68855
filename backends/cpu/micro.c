/** @file micro.c  Small products in registers, one function for each number of rows and vectors. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/micro.h"

/* Three pointers five rows apart reach all rows with scaled addresses; a pointer a row would not
 * leave enough registers for addresses. */
#define MICRO_BODY(T, V, p, L)                                                                       \
    VEC_FN void p##_micro(const int rows, const int vectors, MICRO_PARAMS(T))                        \
    {                                                                                                \
        V sum[MICRO_ROWS][2];                                                                        \
        _Pragma("GCC unroll 16") for (int i = 0; i < rows; i++)                                      \
            _Pragma("GCC unroll 2") for (int j = 0; j < vectors; j++) sum[i][j] = p##_zero();        \
        const int64_t s = a_row * (int64_t)sizeof(T), s3 = 3 * s, step = a_step * (int64_t)sizeof(T); \
        const char *at[3] = {(const char *)a, (const char *)a + 5 * s, (const char *)a + 10 * s};    \
        for (int64_t n = k; n > 0; n--) {                                                            \
            V x[2];                                                                                  \
            _Pragma("GCC unroll 2") for (int j = 0; j < vectors; j++) x[j] = p##_load(b + j * L);    \
            _Pragma("GCC unroll 16") for (int i = 0; i < rows; i++) {                                \
                const int r = i % 5;                                                                 \
                V y = p##_set1(*(const T *)(at[i / 5] + (r == 3 ? s3 : r * s)));                     \
                _Pragma("GCC unroll 2") for (int j = 0; j < vectors; j++)                            \
                    sum[i][j] = p##_fma(y, x[j], sum[i][j]);                                         \
            }                                                                                        \
            b += b_row;                                                                              \
            at[0] += step;                                                                           \
            at[1] += step;                                                                           \
            at[2] += step;                                                                           \
        }                                                                                            \
        if (columns == vectors * L) {                                                                \
            if (bias)                                                                                \
                _Pragma("GCC unroll 2") for (int j = 0; j < vectors; j++) {                          \
                    V y = p##_load(bias + j * L);                                                    \
                    _Pragma("GCC unroll 16") for (int i = 0; i < rows; i++) sum[i][j] = sum[i][j] + y; \
                }                                                                                    \
            if (add)                                                                                 \
                _Pragma("GCC unroll 16") for (int i = 0; i < rows; i++)                              \
                    _Pragma("GCC unroll 2") for (int j = 0; j < vectors; j++)                        \
                        sum[i][j] = p##_load(c + i * c_row + j * L) + sum[i][j];                     \
            _Pragma("GCC unroll 16") for (int i = 0; i < rows; i++)                                  \
                _Pragma("GCC unroll 2") for (int j = 0; j < vectors; j++)                            \
                    p##_store(c + i * c_row + j * L, sum[i][j]);                                     \
            return;                                                                                  \
        }                                                                                            \
        _Pragma("GCC unroll 2") for (int j = 0; j < vectors; j++) {                                  \
            int64_t lanes = j + 1 < vectors ? L : columns - j * L;                                   \
            V y = bias ? p##_load_n(bias + j * L, lanes) : p##_zero();                               \
            _Pragma("GCC unroll 16") for (int i = 0; i < rows; i++) {                                \
                T *to = c + i * c_row + j * L;                                                       \
                V v = sum[i][j];                                                                     \
                if (bias)                                                                            \
                    v = v + y;                                                                       \
                if (add)                                                                             \
                    v = p##_load_n(to, lanes) + v;                                                   \
                p##_store_n(to, v, lanes);                                                           \
            }                                                                                        \
        }                                                                                            \
    }
MICRO_BODY(float, vf, vf, VF_LANES)
MICRO_BODY(double, vd, vd, VD_LANES)

#define MICRO_ARGS k, a, a_row, a_step, b, b_row, c, c_row, columns, bias, add
#define MICRO_DEFINE(rows)                                                                           \
    static void vf_micro_##rows##_1(MICRO_PARAMS(float)) { vf_micro(rows, 1, MICRO_ARGS); }          \
    static void vf_micro_##rows##_2(MICRO_PARAMS(float)) { vf_micro(rows, 2, MICRO_ARGS); }          \
    static void vd_micro_##rows##_1(MICRO_PARAMS(double)) { vd_micro(rows, 1, MICRO_ARGS); }         \
    static void vd_micro_##rows##_2(MICRO_PARAMS(double)) { vd_micro(rows, 2, MICRO_ARGS); }
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
