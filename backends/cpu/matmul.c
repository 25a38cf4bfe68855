/**
 * @file matmul.c
 * Matrix products: mm, bmm, addmm, linear and its gradients. A product runs as a product with a
 * vector (matvec_real.h), by the library's micro-kernels (sgemm.h, hgemm.h), by the CBLAS (gemm.h)
 * tile by tile, or by plain loops. Shape, strides and dtype choose the method and the order of each
 * sum, so results do not depend on the number of threads.
 */
// SPDX-License-Identifier: MIT
#include "backends/cpu/gemm.h"
#include "backends/cpu/hgemm.h"
#include "backends/cpu/loops.h"
#include "backends/cpu/sgemm.h"
#include "core/parallel.h"
#include "include/tessera/ops.h"
#include "ops/kernel.h"

/* ------------------------------------------------------------------ matrix times vector ---- */

enum { MATVEC_ROWS = 4, MATVEC_COLUMNS = 8, MATVEC_DEPTH = 1024 };

/** y = matrix (rows, k) times x (k); steps in elements. */
typedef struct matvec {
    const char *a, *x, *bias; /* bias: added to the results, or NULL */
    char *y;
    int64_t rows, k, a_row, a_column, x_step, y_step, bias_step;
    bool add;
} matvec;

#define TS_REAL 32
#include "backends/cpu/matvec_real.h"
#undef TS_REAL
#define TS_REAL 64
#include "backends/cpu/matvec_real.h"
#undef TS_REAL

/** Returns the loop of a product of f32 or f64 of which one operand is a vector; NULL for another
 *  product, or if the matrix is dense in no dim. */
static ts_parallel_body as_matvec(const ts_gemm *g, ts_dtype dtype, matvec *v)
{
    bool wide = dtype == TS_F64;
    if ((dtype != TS_F32 && !wide) || (g->m != 1 && g->n != 1))
        return NULL;
    *v = (matvec){.a = g->a, .x = g->b, .bias = g->bias, .y = g->c, .rows = g->m, .k = g->k,
                  .a_row = g->a_row, .a_column = g->a_column, .x_step = g->b_row,
                  .y_step = g->c_row, .add = g->add};
    if (g->n != 1) {
        v->a = g->b;
        v->x = g->a;
        v->rows = g->n;
        v->a_row = g->b_column;
        v->a_column = g->b_row;
        v->x_step = g->a_column;
        v->y_step = v->bias_step = 1;
    }
    if (v->rows > 1 && v->a_row == 1 && v->y_step == 1)
        return wide ? matvec_columns_f64 : matvec_columns_f32;
    return v->a_column != 1 && v->k > 1 ? NULL : wide ? matvec_rows_f64 : matvec_rows_f32;
}

/* ------------------------------------------------------------------------- plain loops ---- */

enum { PANEL_ROWS = 16, PANEL_BYTES = 512, NARROW = 8 };

/* Adds the products of k elements of a and k rows of b to n elements of c. */
#define PLAIN_ROW(T, U, name)                                                                      \
    VEC_FN void name##_row(T *c, U alpha, const T *a, int64_t a_step, const T *b, int64_t b_step,  \
                           int64_t k, int64_t n)                                                   \
    {                                                                                              \
        int64_t p = 0;                                                                             \
        for (; p + 4 <= k; p += 4, b += 4 * b_step) {                                              \
            U x0 = alpha * (U)a[p * a_step], x1 = alpha * (U)a[(p + 1) * a_step],                  \
              x2 = alpha * (U)a[(p + 2) * a_step], x3 = alpha * (U)a[(p + 3) * a_step];            \
            TS_INDEPENDENT                                                                         \
            for (int64_t j = 0; j < n; j++)                                                        \
                c[j] = (T)((U)c[j] + x0 * (U)b[j] + x1 * (U)b[b_step + j] +                        \
                           x2 * (U)b[2 * b_step + j] + x3 * (U)b[3 * b_step + j]);                 \
        }                                                                                          \
        for (; p < k; p++, b += b_step) {                                                          \
            U x = alpha * (U)a[p * a_step];                                                        \
            TS_INDEPENDENT                                                                         \
            for (int64_t j = 0; j < n; j++)                                                        \
                c[j] = (T)((U)c[j] + x * (U)b[j]);                                                 \
        }                                                                                          \
    }
PLAIN_ROW(float, float, plain_f32)
PLAIN_ROW(double, double, plain_f64)
PLAIN_ROW(int64_t, uint64_t, plain_i64)
PLAIN_ROW(int32_t, uint32_t, plain_i32)
PLAIN_ROW(uint8_t, uint8_t, plain_u8_rest)

typedef vhh vhh_bytes __attribute__((aligned(1)));

/** plain_T_row() for u8. The even and the odd bytes of a vector are summed in 16-bit lanes, of
 * which the lower eight bits are the result. */
VEC_FN void plain_u8_row(uint8_t *c, uint8_t alpha, const uint8_t *a, int64_t a_step,
                         const uint8_t *b, int64_t b_step, int64_t k, int64_t n)
{
    int64_t j = 0;
    for (; j + VEC_BYTES <= n; j += VEC_BYTES) {
        vhh even = *(const vhh_bytes *)(c + j), odd = even >> 8;
        for (int64_t p = 0; p < k; p++) {
            vhh x = *(const vhh_bytes *)(b + p * b_step + j);
            uint16_t factor = (uint16_t)(alpha * a[p * a_step]);
            even += x * factor;
            odd += (x >> 8) * factor;
        }
        *(vhh_bytes *)(c + j) = (even & 0xff) | odd << 8;
    }
    plain_u8_rest_row(c + j, alpha, a, a_step, b + j, b_step, k, n - j);
}

/*
 * Integers are summed as the unsigned type U, so that sums wrap. A panel of b is packed unless its
 * rows are contiguous, and all rows of a use it. name_narrow() computes integer products with few
 * columns, or with few rows and dense columns, as dot products; name_outer() multiplies a column by
 * a row. any_order: the order of a sum does not change its value.
 */
#define PLAIN(T, U, name, any_order)                                                               \
    static void name##_narrow(const ts_gemm *g)                                                    \
    {                                                                                              \
        T buffer[PANEL_ROWS * PANEL_BYTES / sizeof(T)];                                            \
        U alpha = g->alpha ? (U)*g->alpha : 1;                                                     \
        for (int64_t j = 0; j < g->n; j++)                                                         \
            for (int64_t p = 0; p < g->k || !p; p += TS_COUNTOF(buffer)) {                         \
                int64_t k = ts_min64(TS_COUNTOF(buffer), g->k - p);                                \
                const T *column = (const T *)g->b + p * g->b_row + j * g->b_column;                \
                for (int64_t q = 0; g->b_row != 1 && q < k; q++)                                   \
                    buffer[q] = column[q * g->b_row];                                              \
                column = g->b_row == 1 ? column : buffer;                                          \
                for (int64_t i = 0; i < g->m; i++) {                                               \
                    T *c = (T *)g->c + i * g->c_row + j;                                           \
                    const T *a = (const T *)g->a + i * g->a_row + p * g->a_column;                 \
                    U sum = 0, start = p || g->add ? (U)*c                                         \
                                       : g->bias   ? (U)((const T *)g->bias)[j]                    \
                                                   : 0;                                            \
                    if (g->a_column == 1)                                                          \
                        for (int64_t q = 0; q < k; q++)                                            \
                            sum += (U)a[q] * (U)column[q];                                         \
                    else                                                                           \
                        for (int64_t q = 0; q < k; q++)                                            \
                            sum += (U)a[q * g->a_column] * (U)column[q];                           \
                    *c = (T)(start + alpha * sum);                                                 \
                }                                                                                  \
            }                                                                                      \
    }                                                                                              \
    VEC_FN void name##_outer(const ts_gemm *g)                                                     \
    {                                                                                              \
        U alpha = g->alpha ? (U)*g->alpha : 1;                                                     \
        const T *a = g->a, *b = g->b;                                                              \
        for (int64_t i = 0; i < g->m; i++, a += g->a_row) {                                        \
            T *c = (T *)g->c + i * g->c_row;                                                       \
            U x = alpha * (U)*a;                                                                   \
            int64_t n = g->n;                                                                      \
            if (g->b_column == 1)                                                                  \
                for (int64_t j = 0; j < n; j++)                                                    \
                    c[j] = (T)(x * (U)b[j]);                                                       \
            else                                                                                   \
                for (int64_t j = 0; j < n; j++)                                                    \
                    c[j] = (T)(x * (U)b[j * g->b_column]);                                         \
        }                                                                                          \
    }                                                                                              \
    static void name(const ts_gemm *g)                                                             \
    {                                                                                              \
        const int64_t most = PANEL_BYTES / sizeof(T);                                              \
        T panel[PANEL_ROWS * PANEL_BYTES / sizeof(T)];                                             \
        if (any_order && g->k == 1 && !g->add && !g->bias) {                                       \
            name##_outer(g);                                                                       \
            return;                                                                                \
        }                                                                                          \
        if (any_order && (g->n < NARROW || (g->m < NARROW && g->b_row == 1))) {                    \
            name##_narrow(g);                                                                      \
            return;                                                                                \
        }                                                                                          \
        const T *a = g->a, *bias = g->bias;                                                        \
        U alpha = g->alpha ? (U)*g->alpha : 1;                                                     \
        for (int64_t j = 0; j < g->n; j += most)                                                   \
            for (int64_t p = 0; p < g->k || !p; p += PANEL_ROWS) {                                 \
                int64_t n = ts_min64(most, g->n - j), k = ts_min64(PANEL_ROWS, g->k - p);          \
                const T *b = (const T *)g->b + p * g->b_row + j * g->b_column;                     \
                int64_t step = g->b_row;                                                           \
                if (g->b_column != 1) {                                                            \
                    for (int64_t i = 0; i < n; i++)                                                \
                        for (int64_t q = 0; q < k; q++)                                            \
                            panel[q * most + i] = b[q * g->b_row + i * g->b_column];               \
                    b = panel;                                                                     \
                    step = most;                                                                   \
                }                                                                                  \
                for (int64_t i = 0; i < g->m; i++) {                                               \
                    T *c = (T *)g->c + i * g->c_row + j;                                           \
                    for (int64_t q = 0; !p && !g->add && q < n; q++)                               \
                        c[q] = bias ? bias[j + q] : 0;                                             \
                    name##_row(c, alpha, a + i * g->a_row + p * g->a_column, g->a_column, b, step, \
                               k, n);                                                              \
                }                                                                                  \
            }                                                                                      \
    }
PLAIN(float, float, plain_f32, false)
PLAIN(double, double, plain_f64, false)
PLAIN(int64_t, uint64_t, plain_i64, true)
PLAIN(int32_t, uint32_t, plain_i32, true)
PLAIN(uint8_t, uint8_t, plain_u8, true)

typedef void (*tile_fn)(const ts_gemm *g);

/** Computes a product if one operand is a vector; otherwise returns false. */
static bool run_matvec(const ts_gemm *g, ts_dtype dtype)
{
    matvec v;
    ts_parallel_body body = as_matvec(g, dtype, &v);
    if (body)
        body(&v, 0, v.rows);
    return body;
}
static void blas_f32(const ts_gemm *g)
{
    ts_sgemm_plan plan;
    if (run_matvec(g, TS_F32))
        return;
    if (TS_V(ts_sgemm_cut)(&plan, g, NULL) && plan.small)
        TS_V(ts_sgemm_run)(&plan, NULL);
    else if (!ts_blas_f32(g))
        plain_f32(g);
}
static void blas_f64(const ts_gemm *g)
{
    if (!run_matvec(g, TS_F64) && !ts_blas_f64(g))
        plain_f64(g);
}

static const tile_fn tiles[TS_DTYPE_COUNT] = {[TS_F32] = blas_f32,
                                              [TS_F64] = blas_f64,
                                              [TS_I64] = plain_i64,
                                              [TS_I32] = plain_i32,
                                              [TS_U8] = plain_u8};

/* ------------------------------------------------------------------------ the tile grid ---- */

/** Products of a batch, tile by tile. */
typedef struct grid {
    ts_gemm g;
    tile_fn tile;
    int64_t item, a_step, b_step, c_step; /* bytes */
    int64_t rows, columns;                /* of a tile */
    int64_t down, across;                 /* tiles of one product */
} grid;

static void run_tiles(void *ctx, int64_t begin, int64_t end)
{
    const grid *r = ctx;
    for (int64_t task = begin; task < end; task++) {
        int64_t j = task % r->across * r->columns, i = task / r->across % r->down * r->rows;
        int64_t batch = task / r->across / r->down;
        ts_gemm t = r->g;
        t.m = ts_min64(r->rows, t.m - i);
        t.n = ts_min64(r->columns, t.n - j);
        t.a = (const char *)t.a + batch * r->a_step + i * t.a_row * r->item;
        t.b = (const char *)t.b + batch * r->b_step + j * t.b_column * r->item;
        t.c = (char *)t.c + batch * r->c_step + (i * t.c_row + j) * r->item;
        t.bias = t.bias ? (const char *)t.bias + j * r->item : NULL;
        r->tile(&t);
    }
}

/** Computes `count` products whose operands are a_step, b_step, c_step elements apart, without
 * ts_sgemm_run(). */
static void multiply_tiles(const ts_gemm *g, ts_dtype dtype, int64_t count, int64_t a_step,
                           int64_t b_step, int64_t c_step)
{
    if (!g->m || !g->n || !count)
        return;
    double work = (double)g->m * (double)g->n * (double)ts_max64(g->k, 1);
    int64_t item = ts_dtype_sizes[dtype];
    grid r = {
        *g, tiles[dtype], item, a_step * item, b_step * item, c_step * item, g->m, g->n, 1, 1};
    if (count == 1 && work < 1 << 18) {
        r.tile(g);
        return;
    }
    if (work >= 1 << 18) { /* else whole products are the tasks */
        r.rows = g->m >= 1024 ? 256 : 64;
        r.columns = g->m >= 1024 ? 512 : 128;
        r.down = ts_ceil_div(g->m, r.rows);
        r.across = ts_ceil_div(g->n, r.columns);
    }
    double each = work / (double)(r.down * r.across);
    ts_parallel_for(count * r.down * r.across, 1 + (int64_t)((1 << 17) / (each + 1)), run_tiles,
                    &r);
}

/** Computes a product of which one operand is a vector, on several threads; otherwise returns
 * false. */
static bool run_as_matvec(const ts_gemm *g, ts_dtype dtype)
{
    matvec v;
    ts_parallel_body body = as_matvec(g, dtype, &v);
    if (body)
        ts_parallel_for(v.rows, TS_CPU_GRAIN(1) / ts_max64(v.k, 1) + 1, body, &v);
    return body;
}

/** Computes `count` products by the fastest method. Failure to allocate scratch is an error,
 * because another method would change the bits. */
static ts_status multiply(ts_thread *thread, const ts_gemm *g, ts_dtype dtype, int64_t count,
                          int64_t a_step, int64_t b_step, int64_t c_step)
{
    ts_sgemm_plan plan;
    if (count == 1 && run_as_matvec(g, dtype))
        return TS_OK;
    if (dtype != TS_F32 || count != 1 || !TS_V(ts_sgemm_cut)(&plan, g, NULL)) {
        multiply_tiles(g, dtype, count, a_step, b_step, c_step);
        return TS_OK;
    }
    void *scratch = plan.bytes ? ts_alloc(thread, plan.bytes) : NULL;
    if (plan.bytes && !scratch)
        return ts_error_memory("a matrix product", (int64_t)plan.bytes);
    TS_V(ts_sgemm_run)(&plan, scratch);
    if (scratch)
        ts_free(thread, scratch, plan.bytes);
    return TS_OK;
}

size_t TS_V(ts_product_bytes)(const ts_gemm *g, ts_dtype dtype)
{
    ts_sgemm_plan plan;
    matvec v;
    return dtype == TS_F32 && !as_matvec(g, dtype, &v) && TS_V(ts_sgemm_cut)(&plan, g, NULL)
               ? plan.bytes
               : 0;
}

void TS_V(ts_product)(const ts_gemm *g, ts_dtype dtype, void *scratch)
{
    ts_sgemm_plan plan;
    if (run_as_matvec(g, dtype))
        return;
    if (dtype == TS_F32 && TS_V(ts_sgemm_cut)(&plan, g, NULL))
        TS_V(ts_sgemm_run)(&plan, scratch);
    else
        multiply_tiles(g, dtype, 1, 0, 0, 0);
}

/** Steps of the last two dims. */
static void matrix_steps(const ts_tensor *t, int64_t *row, int64_t *column)
{
    *row = t->strides[t->ndim - 2];
    *column = t->strides[t->ndim - 1];
}

/** multiply() for any dtype. Halves whose product needs f32 operands run the whole call in f32. */
static ts_status multiply_any(ts_frame *f, const ts_gemm *g, int64_t count, int64_t a_step,
                              int64_t b_step, int64_t c_step)
{
    ts_dtype dtype = f->plan->compute;
    if (!ts_dtype_is_half(dtype))
        return multiply(f->thread, g, dtype, count, a_step, b_step, c_step);
    if (!TS_V(ts_half_suits)(g, dtype))
        return ts_run_widened(f);
    return TS_V(ts_half_product)(f, g, dtype, count, a_step, b_step, c_step);
}

static ts_status mm(ts_frame *f)
{
    const ts_tensor *a = f->args[0].t, *b = f->args[1].t, *c = f->rets[0].t;
    int last = a->ndim - 1;
    ts_gemm g = {.m = a->sizes[last - 1], .n = b->sizes[last], .k = a->sizes[last], .a = a->data,
                 .b = b->data, .c = c->data};
    matrix_steps(a, &g.a_row, &g.a_column);
    matrix_steps(b, &g.b_row, &g.b_column);
    g.c_row = g.n;
    return multiply_any(f, &g, last == 2 ? a->sizes[0] : 1, last == 2 ? a->strides[0] : 0,
                        last == 2 ? b->strides[0] : 0, g.m * g.n);
}

/* -------------------------------------------------------------------------------- addmm ---- */

/** The sum of addmm, by rows. Floats, after the product: c = beta x + alpha c. Integers, before the
 * product: c = beta x. x is broadcast by steps of 0. */
typedef struct sum_job {
    char *c;
    const char *x;
    int64_t n, x_row, x_column; /* in elements */
    double beta_d, alpha_d;
    int64_t beta_i, alpha_i;
} sum_job;

/* more: the term, with its sign, that is added to element j of beta x */
#define SUM_ROWS(T, U, name, suffix, more)                                                         \
    VEC_FN void name##_row(T *c, const T *x, int64_t step, int64_t n, U beta, U alpha)             \
    {                                                                                              \
        (void)alpha;                                                                               \
        TS_INDEPENDENT                                                                             \
        for (int64_t j = 0; j < n; j++)                                                            \
            c[j] = (T)(beta * (U)x[j * step] more);                                                \
    }                                                                                              \
    static void name(void *ctx, int64_t begin, int64_t end)                                        \
    {                                                                                              \
        const sum_job *s = ctx;                                                                    \
        U beta = (U)s->beta_##suffix, alpha = (U)s->alpha_##suffix;                                \
        for (int64_t i = begin; i < end; i++) {                                                    \
            T *c = (T *)s->c + i * s->n;                                                           \
            const T *x = (const T *)s->x + i * s->x_row;                                           \
            if (s->beta_d == 0)                                                                    \
                for (int64_t j = 0; j < s->n; j++)                                                 \
                    c[j] = (T)(alpha * (U)c[j]);                                                   \
            else if (s->x_column == 1)                                                             \
                name##_row(c, x, 1, s->n, beta, alpha);                                            \
            else if (s->x_column == 0)                                                             \
                name##_row(c, x, 0, s->n, beta, alpha);                                            \
            else                                                                                   \
                name##_row(c, x, s->x_column, s->n, beta, alpha);                                  \
        }                                                                                          \
    }
SUM_ROWS(float, float, sum_f32, d, + alpha * c[j])
SUM_ROWS(double, double, sum_f64, d, + alpha * c[j])
SUM_ROWS(int64_t, uint64_t, start_i64, i, )
SUM_ROWS(int32_t, uint32_t, start_i32, i, )
SUM_ROWS(uint8_t, uint8_t, start_u8, i, )

/* addmm(self, mat1, mat2, beta, alpha) */
static ts_status addmm(ts_frame *f)
{
    static const ts_parallel_body bodies[TS_DTYPE_COUNT] = {[TS_F32] = sum_f32,
                                                            [TS_F64] = sum_f64,
                                                            [TS_I64] = start_i64,
                                                            [TS_I32] = start_i32,
                                                            [TS_U8] = start_u8};
    const ts_tensor *x = f->args[0].t, *a = f->args[1].t, *b = f->args[2].t, *c = f->rets[0].t;
    const ts_value *beta = &f->args[3], *alpha = &f->args[4];
    sum_job s = {.c = c->data, .x = x->data, .n = c->sizes[1], .beta_d = ts_value_number(beta),
                 .alpha_d = ts_value_number(alpha)};
    if (beta->tag != TS_TAG_FLOAT)
        s.beta_i = beta->i;
    if (alpha->tag != TS_TAG_FLOAT)
        s.alpha_i = alpha->i;
    if (x->ndim > 0 && x->sizes[x->ndim - 1] > 1)
        s.x_column = x->strides[x->ndim - 1];
    if (x->ndim > 1 && x->sizes[0] > 1)
        s.x_row = x->strides[0];
    ts_gemm g = {.m = a->sizes[0], .n = s.n, .k = s.alpha_d == 0 ? 0 : a->sizes[1], .a = a->data,
                 .b = b->data, .c = c->data};
    matrix_steps(a, &g.a_row, &g.a_column);
    matrix_steps(b, &g.b_row, &g.b_column);
    g.c_row = g.n;
    bool plain =
        s.alpha_d == 1 && (s.beta_d == 0 || (s.beta_d == 1 && !s.x_row && s.x_column == 1));
    if (plain && s.beta_d == 1) /* linear's bias is a row */
        g.bias = x->data;
    ts_dtype dtype = f->plan->compute;
    if (ts_dtype_is_half(dtype))
        return plain ? multiply_any(f, &g, 1, 0, 0, 0) : ts_run_widened(f);
    ts_parallel_body body = bodies[dtype];
    int64_t grain = TS_CPU_GRAIN(4) / ts_max64(s.n, 1) + 1;
    bool is_float = dtype == TS_F32 || dtype == TS_F64;
    if (!plain && !is_float) {
        g.alpha = &s.alpha_i;
        g.add = s.beta_d != 0;
        if (g.add)
            ts_parallel_for(g.m, grain, body, &s);
    }
    TS_TRY(multiply(f->thread, &g, dtype, 1, 0, 0, 0));
    if (!plain && is_float)
        ts_parallel_for(g.m, grain, body, &s);
    return TS_OK;
}

/* ------------------------------------------------------------------------------- linear ---- */

/** Merges all dims of t but the last into rows; returns their number and sets *step to their
 * stride in elements. The op's infer function ensures that these dims can be merged. */
static int64_t rows_of(const ts_tensor *t, int64_t *step)
{
    int64_t rows = 1;
    *step = t->sizes[t->ndim - 1];
    for (int d = t->ndim - 2; d >= 0; d--) {
        if (rows == 1 && t->sizes[d] > 1)
            *step = t->strides[d];
        rows *= t->sizes[d];
    }
    return rows;
}

/* y (m, n) = x (m, k) weight (n, k) transposed */
static ts_status linear(ts_frame *f)
{
    const ts_tensor *x = f->args[0].t, *w = f->args[1].t;
    ts_gemm g = {.n = w->sizes[0], .k = w->sizes[1], .a = x->data, .b = w->data,
                 .c = f->rets[0].t->data, .a_column = 1};
    g.m = rows_of(x, &g.a_row);
    matrix_steps(w, &g.b_column, &g.b_row);
    g.c_row = g.n;
    if (f->args[2].tag == TS_TAG_TENSOR)
        g.bias = f->args[2].t->data;
    return multiply_any(f, &g, 1, 0, 0, 0);
}

/* -------------------------------------------------------------------------- column sums ---- */

typedef struct columns {
    const char *data;
    char *out;
    int64_t rows, step, n; /* step in elements */
    int64_t chunk;         /* rows of a task; the sums of tasks are added in order */
} columns;

/* Sums of a task's rows, read in the order of memory: (tasks, n). */
#define SUM_COLUMNS(T, U, name)                                                                    \
    static void name(void *ctx, int64_t begin, int64_t end)                                        \
    {                                                                                              \
        const columns *s = ctx;                                                                    \
        for (int64_t task = begin; task < end; task++) {                                           \
            T *out = (T *)s->out + task * s->n;                                                    \
            int64_t i = task * s->chunk, last = ts_min64(i + s->chunk, s->rows);                   \
            memset(out, 0, (size_t)s->n * sizeof(T));                                              \
            for (; i + 4 <= last; i += 4) {                                                        \
                const T *r0 = (const T *)s->data + i * s->step, *r1 = r0 + s->step;                \
                const T *r2 = r1 + s->step, *r3 = r2 + s->step;                                    \
                for (int64_t j = 0; j < s->n; j++)                                                 \
                    out[j] = (T)((U)out[j] + (((U)r0[j] + (U)r1[j]) + ((U)r2[j] + (U)r3[j])));     \
            }                                                                                      \
            for (; i < last; i++)                                                                  \
                for (int64_t j = 0; j < s->n; j++)                                                 \
                    out[j] = (T)((U)out[j] + (U)((const T *)s->data)[i * s->step + j]);            \
        }                                                                                          \
    }
SUM_COLUMNS(float, float, columns_f32)
SUM_COLUMNS(double, double, columns_f64)
SUM_COLUMNS(int64_t, uint64_t, columns_i64)
SUM_COLUMNS(int32_t, uint32_t, columns_i32)
SUM_COLUMNS(uint8_t, uint32_t, columns_u8)

/** Plans the sums over all but the last dim of t. Returns the scratch bytes of columns_run(). */
static size_t columns_cut(columns *s, const ts_tensor *t, const ts_tensor *out)
{
    *s = (columns){.data = t->data, .out = out->data, .n = out->numel};
    s->rows = rows_of(t, &s->step);
    s->chunk = ts_max64(128, ts_ceil_div(s->rows, 64));
    return s->rows <= s->chunk
               ? 0
               : (size_t)(ts_ceil_div(s->rows, s->chunk) * s->n) * ts_dtype_sizes[t->dtype];
}

static void columns_run(const columns *sums, ts_dtype dtype, void *scratch)
{
    static const ts_parallel_body bodies[TS_DTYPE_COUNT] = {[TS_F32] = columns_f32,
                                                            [TS_F64] = columns_f64,
                                                            [TS_I64] = columns_i64,
                                                            [TS_I32] = columns_i32,
                                                            [TS_U8] = columns_u8};
    columns s = *sums;
    int64_t tasks = ts_ceil_div(s.rows, s.chunk);
    if (tasks <= 1) {
        bodies[dtype](&s, 0, 1);
        return;
    }
    if (!s.n)
        return;
    s.out = scratch;
    ts_parallel_for(tasks, 1 + 16384 / (s.chunk * s.n + 1), bodies[dtype], &s);
    columns total = {
        .data = scratch, .out = sums->out, .rows = tasks, .step = s.n, .n = s.n, .chunk = tasks};
    bodies[dtype](&total, 0, 1);
}

/** Gradients of bf16 or f16. g: the products for the gradients of input and weight, valid if they
 * are requested. The gradient of the bias is a sum over rows, which is stored last, so that a call
 * without memory writes no result. */
static ts_status linear_backward_halves(ts_frame *f, const ts_gemm *g)
{
    static const int64_t dims[TS_MAX_DIMS] = {0, 1, 2, 3, 4, 5, 6, 7};
    ts_tensor *grad = f->args[0].t, *sums = NULL;
    ts_dtype half = f->plan->compute;
    bool wanted[2];
    for (int i = 0; i < 2; i++) {
        wanted[i] = f->rets[i].tag == TS_TAG_TENSOR;
        if (wanted[i] && !TS_V(ts_half_suits)(&g[i], half))
            return ts_run_widened(f);
    }
    TS_KEEP_MODES; /* in an autocast region the sum would be cast */
    f->thread->exclude |= TS_KEYSET(TS_KEY_AUTOCAST);
    TS_SCOPE;
    if (f->rets[2].tag == TS_TAG_TENSOR)
        TS_TRY(sums = ts_sum_dims(grad, dims, grad->ndim - 1, false));
    if (wanted[0] && wanted[1])
        TS_TRY(TS_V(ts_half_products)(f, &g[0], &g[1], half));
    else if (wanted[0] || wanted[1])
        TS_TRY(TS_V(ts_half_product)(f, &g[wanted[1]], half, 1, 0, 0, 0));
    if (sums)
        memcpy(f->rets[2].t->data, sums->data, (size_t)sums->numel * sizeof(uint16_t));
    return TS_OK;
}

static ts_status linear_backward(ts_frame *f)
{
    const ts_tensor *grad = f->args[0].t;
    ts_dtype dtype = f->plan->compute;
    int64_t n = grad->sizes[grad->ndim - 1], grad_row, rows = rows_of(grad, &grad_row);
    bool wants_input = f->rets[0].tag == TS_TAG_TENSOR,
         wants_weight = f->rets[1].tag == TS_TAG_TENSOR;
    bool wants_sums = f->rets[2].tag == TS_TAG_TENSOR, own[2] = {false, false}, summed = false;
    ts_gemm g[2];
    ts_sgemm_plan plan[2];
    columns sums = {0};
    size_t bytes = 0;
    if (wants_input) { /* (m, k) = grad (m, n) weight (n, k) */
        const ts_tensor *w = f->args[2].t;
        g[0] = (ts_gemm){.m = rows, .n = w->sizes[1], .k = n, .a = grad->data, .b = w->data,
                         .c = f->rets[0].t->data,
                         .a_row = grad_row, .a_column = 1, .c_row = w->sizes[1]};
        matrix_steps(w, &g[0].b_row, &g[0].b_column);
        own[0] = dtype == TS_F32 && TS_V(ts_sgemm_cut)(&plan[0], &g[0], NULL);
        bytes = own[0] ? plan[0].bytes : 0;
    }
    if (wants_weight) { /* (n, k) = grad (m, n) transposed, input (m, k) */
        const ts_tensor *x = f->args[1].t;
        int64_t k = x->sizes[x->ndim - 1];
        g[1] = (ts_gemm){.m = n, .n = k, .k = rows, .a = grad->data, .b = x->data,
                         .c = f->rets[1].t->data,
                         .a_row = 1, .a_column = grad_row, .b_column = 1, .c_row = k};
        rows_of(x, &g[1].b_row);
        /* if the plan allows sums, sgemm computes the column sums in the same pass over grad */
        summed = wants_sums && dtype == TS_F32 &&
                 TS_V(ts_sgemm_cut)(&plan[1], &g[1], (float *)f->rets[2].t->data);
        own[1] = summed || (dtype == TS_F32 && TS_V(ts_sgemm_cut)(&plan[1], &g[1], NULL));
        bytes = own[1] && plan[1].bytes > bytes ? plan[1].bytes : bytes;
    }
    if (ts_dtype_is_half(dtype))
        return linear_backward_halves(f, g);
    if (wants_sums && !summed) {
        size_t need = columns_cut(&sums, grad, f->rets[2].t);
        bytes = need > bytes ? need : bytes;
    }
    /* one scratch block for all three results, allocated before any result is written */
    void *scratch = bytes ? ts_alloc(f->thread, bytes) : NULL;
    if (bytes && !scratch)
        return ts_error_memory("gradients of a linear layer", (int64_t)bytes);
    for (int i = 0; i < 2; i++) {
        if (own[i])
            TS_V(ts_sgemm_run)(&plan[i], scratch);
        else if (i ? wants_weight : wants_input)
            multiply_tiles(&g[i], dtype, 1, 0, 0, 0);
    }
    if (wants_sums && !summed)
        columns_run(&sums, dtype, scratch);
    if (scratch)
        ts_free(f->thread, scratch, bytes);
    return TS_OK;
}

#define NUMBERS (TS_DT_FLOATS | TS_DT(TS_I64) | TS_DT(TS_I32) | TS_DT(TS_U8))
TS_CPU_FAMILY(matmul,
    {TS_OP_mm, mm, {NUMBERS | TS_DT_HALVES, 0}},
    {TS_OP_bmm, mm, {NUMBERS | TS_DT_HALVES, 0}},
    {TS_OP_addmm, addmm, {NUMBERS | TS_DT_HALVES, 0}},
    {TS_OP_linear, linear, {NUMBERS | TS_DT_HALVES, 0}},
    {TS_OP_linear_backward, linear_backward, {NUMBERS | TS_DT_HALVES, 0}})
