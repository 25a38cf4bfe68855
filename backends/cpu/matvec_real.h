/* Products of a matrix (rows, k) and a vector x for one real type T (real_names.h); included by
 * matmul.c, which defines the struct matvec. Within an instruction-set variant (vec.h), the order
 * of the terms of a sum depends only on their number and on which dim of the matrix is dense. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/real.h"

/** Initial value of result i: the element of y (with `add`), the bias, or 0. */
VEC_FN T S(begin_at)(const matvec *v, int64_t i)
{
    return v->add ? ((const T *)v->y)[i * v->y_step]
                  : v->bias ? ((const T *)v->bias)[i * v->bias_step] : 0;
}

/** Adds to the `rows` results at y, which are y_step apart, the dot products of x with as many
 * dense rows at a, which are a_row apart; each has n elements. */
VEC_FN void S(add_dots)(const T *a, int64_t a_row, int rows, const T *x, int64_t n, T *y,
                        int64_t y_step)
{
    V even[MATVEC_ROWS], odd[MATVEC_ROWS], zero = F(zero)();
    TS_UNROLL(4) for (int r = 0; r < rows; r++)
        even[r] = odd[r] = zero;
    int64_t p = 0;
    for (; p + 2 * LANES <= n; p += 2 * LANES)
        TS_UNROLL(4) for (int r = 0; r < rows; r++) {
            even[r] = F(fma)(F(load)(a + r * a_row + p), F(load)(x + p), even[r]);
            odd[r] = F(fma)(F(load)(a + r * a_row + p + LANES), F(load)(x + p + LANES), odd[r]);
        }
    for (; p < n; p += LANES)
        TS_UNROLL(4) for (int r = 0; r < rows; r++)
            even[r] = F(fma)(S(load_some)(a + r * a_row + p, n - p, zero),
                             S(load_some)(x + p, n - p, zero), even[r]);
    TS_UNROLL(4) for (int r = 0; r < rows; r++)
        y[r * y_step] += F(hsum)(even[r] + odd[r]);
}

/** Computes results begin to end - 1 if rows of the matrix are dense, in pieces of MATVEC_DEPTH
 * elements of x. */
static void S(matvec_rows)(void *ctx, int64_t begin, int64_t end)
{
    const matvec *v = ctx;
    T buffer[MATVEC_DEPTH], *y = (T *)v->y;
    for (int64_t i = begin; i < end; i++)
        y[i * v->y_step] = S(begin_at)(v, i);
    for (int64_t p = 0; p < v->k; p += MATVEC_DEPTH) {
        int64_t n = ts_min64(MATVEC_DEPTH, v->k - p), i = begin;
        const T *a = (const T *)v->a + p, *x = (const T *)v->x + p * v->x_step;
        for (int64_t k = 0; v->x_step != 1 && k < n; k++)
            buffer[k] = x[k * v->x_step];
        x = v->x_step == 1 ? x : buffer;
        for (; i + MATVEC_ROWS <= end; i += MATVEC_ROWS)
            S(add_dots)(a + i * v->a_row, v->a_row, MATVEC_ROWS, x, n, y + i * v->y_step,
                        v->y_step);
        for (; i < end; i++)
            S(add_dots)(a + i * v->a_row, v->a_row, 1, x, n, y + i * v->y_step, v->y_step);
    }
}

/** Adds `columns` dense columns at a, each times a number of `times`, to min(left, LANES) results
 * starting at i. */
VEC_FN void S(add_columns_at)(const matvec *v, const T *a, const V *times, int columns, int64_t i,
                              int64_t left)
{
    T *y = (T *)v->y + i;
    V sum = S(load_some)(y, left, F(zero)());
    TS_UNROLL(8) for (int k = 0; k < columns; k++)
        sum = F(fma)(S(load_some)(a + k * v->a_column + i, left, F(zero)()), times[k], sum);
    S(store_some)(y, sum, left);
}

/** Adds `columns` columns at a, times the elements at x, to results begin to end - 1, which are
 * dense. */
VEC_FN void S(add_columns)(const matvec *v, const T *a, const T *x, int columns, int64_t begin,
                           int64_t end)
{
    V times[MATVEC_COLUMNS];
    TS_UNROLL(8) for (int k = 0; k < columns; k++)
        times[k] = F(set1)(x[k * v->x_step]);
    int64_t i = begin;
    for (; i + LANES <= end; i += LANES)
        S(add_columns_at)(v, a, times, columns, i, LANES);
    if (i < end)
        S(add_columns_at)(v, a, times, columns, i, end - i);
}

/** Computes results begin to end - 1 if columns of the matrix are dense. */
static void S(matvec_columns)(void *ctx, int64_t begin, int64_t end)
{
    const matvec *v = ctx;
    const T *a = (const T *)v->a, *x = (const T *)v->x;
    int64_t k = 0;
    for (int64_t i = begin; i < end; i++)
        ((T *)v->y)[i] = S(begin_at)(v, i);
    for (; k + MATVEC_COLUMNS <= v->k; k += MATVEC_COLUMNS)
        S(add_columns)(v, a + k * v->a_column, x + k * v->x_step, MATVEC_COLUMNS, begin, end);
    for (; k < v->k; k++)
        S(add_columns)(v, a + k * v->a_column, x + k * v->x_step, 1, begin, end);
}
