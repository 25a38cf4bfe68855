/**
 * @file hgemm.c
 * Products of bf16 and f16 matrices by two methods. The division into tasks changes no bit.
 *
 * "In place": products with at most FEW rows (or columns). Each task widens these rows to f32,
 * reads the other operand in place and widens it in registers, because an f32 copy of that operand
 * would cost more than the product. A task computes whole sums over k.
 *
 * "Pairs": other products of bf16, on processors with AVX512_BF16, whose instruction adds the
 * products of two pairs of bf16 to an f32. A task packs a group of panels of the second operand and
 * multiplies it with a group of rows. k is divided into slices. An element of the result is one
 * chain of additions per slice, and the slices are added in order.
 */
// SPDX-License-Identifier: MIT
#include "backends/cpu/hgemm.h"
#include "backends/cpu/isa.h"
#include "backends/cpu/loops.h"
#include "backends/cpu/pack.h"
#include "backends/cpu/slots.h"
#include "core/convert.h"

enum {
    FEW = 2,             /* most rows (or columns) of a product "in place" */
    COLUMNS = 4,         /* vectors of columns that are summed together */
    SLICE = 4096,        /* most rows of a slice of k */
    GROUP_BYTES = 1 << 18, /* most bytes of a packed group of panels, unless it is one panel */
    GROUP_PANELS = 32,
    GROUP_ROWS = 12 * MICRO_ROWS, /* rows of a task */
    SHORT = 2 * VF_LANES, /* most rows of dense columns that are transposed */
    PAIRS_ROWS = FEW + 1 /* fewest rows of a product of pairs */
};

/** Products of a batch. */
typedef struct product {
    ts_gemm g;
    ts_dtype half;
    int64_t a_step, b_step, c_step; /* elements between products */
    int64_t c_column;               /* elements between columns of c */
    bool transposed;                /* rows and columns are swapped; the bias is a column */
    int64_t tiles;                  /* in place: tiles of columns of a product */
    int64_t panels, group, groups;  /* pairs: panels of b, panels of a group, groups of panels */
    int64_t blocks;                 /* pairs: groups of rows */
    int64_t slices, depth;          /* of k; depth: most rows of a slice, even */
    int64_t tasks, bytes;           /* bytes of scratch memory per task */
    double work;                    /* of a task */
    ts_parallel_body body;
    ts_slots slots;
} product;

VEC_FN vf load_half(ts_dtype half, const uint16_t *p)
{
    return half == TS_BF16 ? vf_load_bf16(p) : vf_load_f16(p);
}
VEC_FN vf load_half_n(ts_dtype half, const uint16_t *p, int64_t n)
{
    return half == TS_BF16 ? vf_load_bf16_n(p, n) : vf_load_f16_n(p, n);
}
VEC_FN float widen_one(ts_dtype half, uint16_t h)
{
    return half == TS_BF16 ? ts_bf16_to_f32(h) : ts_f16_to_f32(h);
}
VEC_FN vh narrow_half(ts_dtype half, vf v)
{
    return half == TS_BF16 ? vf_to_vh_bf16(v) : vf_to_vh_f16(v);
}

/* ------------------------------------------------------------------------------ in place ---- */

/** Adds the bias to `lanes` sums of row i, starting at column j, and stores them rounded. */
VEC_FN void store_row(ts_dtype half, const product *r, uint16_t *c, int64_t i, int64_t j, vf sum,
                      int64_t lanes)
{
    const uint16_t *bias = r->g.bias;
    uint16_t buffer[VF_LANES];
    if (bias)
        sum = sum + (r->transposed ? vf_set1(widen_one(half, bias[i]))
                                   : load_half_n(half, bias + j, lanes));
    uint16_t *to = c + i * r->g.c_row + j * r->c_column;
    if (r->c_column == 1) {
        vh_store_n(to, narrow_half(half, sum), lanes);
        return;
    }
    vh_store(buffer, narrow_half(half, sum));
    for (int64_t k = 0; k < lanes; k++)
        to[k * r->c_column] = buffer[k];
}

/** Computes `rows` rows of `vectors` vectors of columns, starting at column j; the last vector has
 * `lanes` lanes. a: the rows of a in f32. Rows of b are dense. */
VEC_FN void sum_down(ts_dtype half, const product *r, const float *const *a, const uint16_t *b,
                     uint16_t *c, int rows, int64_t j, int vectors, int64_t lanes)
{
    vf sum[FEW][COLUMNS];
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < vectors; v++)
            sum[i][v] = vf_zero();
    for (int64_t p = 0; p < r->g.k; p++, b += r->g.b_row)
        for (int v = 0; v < vectors; v++) {
            vf x = lanes == VF_LANES ? load_half(half, b + j + v * VF_LANES)
                                     : load_half_n(half, b + j, lanes);
            for (int i = 0; i < rows; i++)
                sum[i][v] = vf_fma(vf_set1(a[i][p]), x, sum[i][v]);
        }
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < vectors; v++)
            store_row(half, r, c, i, j + v * VF_LANES, sum[i][v], lanes);
}

/** Computes the dot products of `rows` rows with `columns` dense columns of b, from column j. */
VEC_FN void dot_columns(ts_dtype half, const product *r, const float *const *a, const uint16_t *b,
                        uint16_t *c, int rows, int64_t j, int columns)
{
    int64_t k = r->g.k, p = 0;
    vf sum[FEW][COLUMNS];
    for (int i = 0; i < rows; i++)
        for (int q = 0; q < columns; q++)
            sum[i][q] = vf_zero();
    b += j * r->g.b_column;
    for (; p + VF_LANES <= k; p += VF_LANES)
        for (int q = 0; q < columns; q++) {
            vf y = load_half(half, b + q * r->g.b_column + p);
            for (int i = 0; i < rows; i++)
                sum[i][q] = vf_fma(vf_load(a[i] + p), y, sum[i][q]);
        }
    for (int q = 0; p < k && q < columns; q++) {
        vf y = load_half_n(half, b + q * r->g.b_column + p, k - p);
        for (int i = 0; i < rows; i++)
            sum[i][q] = vf_fma(vf_load_n(a[i] + p, k - p), y, sum[i][q]);
    }
    for (int i = 0; i < rows; i++)
        for (int q = 0; q < columns; q++)
            store_row(half, r, c, i, j + q, vf_set1(vf_hsum(sum[i][q])), 1);
}

/** Computes columns j to last - 1 of `rows` rows. Columns of b are dense and have at most SHORT
 * rows; blocks of them are transposed. */
VEC_FN void dot_short(ts_dtype half, const product *r, const float *const *a, const uint16_t *b,
                      uint16_t *c, int rows, int64_t j, int64_t last)
{
    float buffer[VF_LANES * SHORT], transposed[SHORT * VF_LANES];
    int64_t k = r->g.k, lanes;
    for (; j < last; j += lanes) {
        lanes = ts_min64(VF_LANES, last - j);
        for (int64_t q = 0; q < lanes; q++)
            for (int64_t p = 0; p < k; p += VF_LANES)
                vf_store(buffer + q * SHORT + p,
                         load_half_n(half, b + (j + q) * r->g.b_column + p,
                                     ts_min64(VF_LANES, k - p)));
        vf_transpose_matrix(transposed, VF_LANES, buffer, SHORT, lanes, k);
        for (int i = 0; i < rows; i++) {
            vf sum = vf_zero();
            for (int64_t p = 0; p < k; p++)
                sum = vf_fma(vf_set1(a[i][p]), vf_load_n(transposed + p * VF_LANES, lanes), sum);
            store_row(half, r, c, i, j, sum, lanes);
        }
    }
}

/** Computes columns j to last - 1 of `rows` rows by dot products. */
VEC_FN void sum_along(ts_dtype half, const product *r, const float *const *a, const uint16_t *b,
                      uint16_t *c, int rows, int64_t j, int64_t last)
{
    if (r->g.k <= SHORT) {
        dot_short(half, r, a, b, c, rows, j, last);
        return;
    }
    for (; j + COLUMNS <= last; j += COLUMNS)
        dot_columns(half, r, a, b, c, rows, j, COLUMNS);
    for (; j < last; j++)
        dot_columns(half, r, a, b, c, rows, j, 1);
}

enum { TILE = 16 * COLUMNS * VF_LANES }; /* columns of a task of run_in_place() */

/** A task is a tile of columns of a product. Its rows of a are widened first. */
VEC_FN void run_in_place(ts_dtype half, product *r, int64_t begin, int64_t end)
{
    const ts_gemm *g = &r->g;
    float *wide = ts_slot(&r->slots);
    int64_t room = ts_ceil_div(g->k, VF_LANES) * VF_LANES;
    const float *rows[FEW] = {wide, wide + room};
    for (int64_t task = begin, before = -1; task < end; task++) {
        int64_t batch = task / r->tiles, j = task % r->tiles * TILE,
                last = ts_min64(j + TILE, g->n);
        const uint16_t *a = (const uint16_t *)g->a + batch * r->a_step,
                       *b = (const uint16_t *)g->b + batch * r->b_step;
        uint16_t *c = (uint16_t *)g->c + batch * r->c_step;
        for (int64_t i = 0; batch != before && i < g->m; i++) {
            const uint16_t *row = a + i * g->a_row;
            if (g->a_column == 1 || g->k == 1)
                for (int64_t p = 0; p < g->k; p += VF_LANES)
                    vf_store(wide + i * room + p,
                             load_half_n(half, row + p, ts_min64(VF_LANES, g->k - p)));
            else
                for (int64_t p = 0; p < g->k; p += VF_LANES) {
                    uint16_t buffer[VF_LANES] = {0};
                    for (int64_t q = 0; q < VF_LANES && p + q < g->k; q++)
                        buffer[q] = row[(p + q) * g->a_column];
                    vf_store(wide + i * room + p, load_half(half, buffer));
                }
        }
        before = batch;
        if (g->b_column != 1 && g->n > 1) {
            if (g->m == 1)
                sum_along(half, r, rows, b, c, 1, j, last);
            else
                sum_along(half, r, rows, b, c, 2, j, last);
            continue;
        }
        for (; j + COLUMNS * VF_LANES <= last; j += COLUMNS * VF_LANES)
            if (g->m == 1)
                sum_down(half, r, rows, b, c, 1, j, COLUMNS, VF_LANES);
            else
                sum_down(half, r, rows, b, c, 2, j, COLUMNS, VF_LANES);
        for (int64_t lanes; j < last; j += lanes) {
            lanes = ts_min64(VF_LANES, last - j);
            if (g->m == 1)
                sum_down(half, r, rows, b, c, 1, j, 1, lanes);
            else
                sum_down(half, r, rows, b, c, 2, j, 1, lanes);
        }
    }
}
static void in_place_bf16(void *ctx, int64_t begin, int64_t end)
{
    run_in_place(TS_BF16, ctx, begin, end);
}
static void in_place_f16(void *ctx, int64_t begin, int64_t end)
{
    run_in_place(TS_F16, ctx, begin, end);
}

/* --------------------------------------------------------------------------------- pairs ---- */

#if VEC_ISA == VEC_IS_avx512

/** Packs `depth` rows of n <= width columns of a matrix with dense rows as (pairs, width, 2); the
 * last row of an odd depth is paired with zeros. width: 16 or 32. */
static void pack_rows(uint16_t *to, const uint16_t *from, int64_t row, int64_t depth, int64_t n,
                      int64_t width)
{
    static const uint16_t low[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                     8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    __m512i first = _mm512_loadu_si512(low),
            second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
    for (int64_t p = 0; p < depth; p += 2, to += 2 * width) {
        vhh x = vhh_load_n(from + p * row, n),
            y = p + 1 < depth ? vhh_load_n(from + (p + 1) * row, n) : (vhh){0};
        _mm512_storeu_si512(to, _mm512_permutex2var_epi16((__m512i)x, first, (__m512i)y));
        if (width > VF_LANES)
            _mm512_storeu_si512(to + 32,
                                _mm512_permutex2var_epi16((__m512i)x, second, (__m512i)y));
    }
}

/** Adds the bias, rounds, and stores rows of sums. */
static void store_sums(const product *r, const float *sums, uint16_t *c, int64_t rows, int64_t j,
                       int64_t n)
{
    const uint16_t *bias = r->g.bias;
    vf more[2] = {vf_zero(), vf_zero()};
    for (int v = 0; bias && n == MICRO_COLUMNS_F && v < 2; v++)
        more[v] = vf_load_bf16(bias + j + v * VF_LANES);
    for (int64_t i = 0; n == MICRO_COLUMNS_F && i < rows; i++) {
        vf x = vf_load(sums + i * n), y = vf_load(sums + i * n + VF_LANES);
        if (bias) {
            x = x + more[0];
            y = y + more[1];
        }
        vf_store2_bf16(c + i * r->g.c_row + j, x, y);
    }
    for (int64_t i = 0; n < MICRO_COLUMNS_F && i < rows; i++, sums += MICRO_COLUMNS_F)
        for (int64_t v = 0; v < n; v += VF_LANES) {
            int64_t lanes = ts_min64(VF_LANES, n - v);
            vf y = vf_load(sums + v);
            if (bias)
                y = y + vf_load_bf16_n(bias + j + v, lanes);
            vf_store_bf16_n(c + i * r->g.c_row + j + v, y, lanes);
        }
}

/** A task is a group of rows times a group of panels of a product. */
static void run_pairs(void *ctx, int64_t begin, int64_t end)
{
    product *r = ctx;
    const ts_gemm *g = &r->g;
    uint16_t *packed = ts_slot(&r->slots), *buffer = packed + r->group * MICRO_COLUMNS_F * r->depth;
    float *sums = (float *)(void *)(buffer + VF_LANES * r->depth);
    for (int64_t task = begin; task < end; task++) {
        int64_t group = task / r->blocks % r->groups, batch = task / r->blocks / r->groups,
                row0 = task % r->blocks * GROUP_ROWS, rows = ts_min64(GROUP_ROWS, g->m - row0),
                panel0 = group * r->group, panels = ts_min64(r->group, r->panels - panel0);
        const uint16_t *a = (const uint16_t *)g->a + batch * r->a_step + row0 * g->a_row,
                       *b = (const uint16_t *)g->b + batch * r->b_step;
        uint16_t *c = (uint16_t *)g->c + batch * r->c_step + row0 * g->c_row;
        for (int64_t k = 0; k < g->k; k += r->depth) {
            int64_t depth = ts_min64(r->depth, g->k - k), pairs = ts_ceil_div(depth, 2);
            for (int64_t q = 0; q < panels; q++) {
                int64_t j = (panel0 + q) * MICRO_COLUMNS_F,
                        n = ts_min64(MICRO_COLUMNS_F, g->n - j);
                uint16_t *to = packed + q * MICRO_COLUMNS_F * r->depth;
                const uint16_t *from = b + k * g->b_row + j * g->b_column;
                if (g->b_column == 1)
                    pack_rows(to, from, g->b_row, depth, n, MICRO_COLUMNS_F);
                else
                    vhh_pack_columns(to, from, g->b_column, depth, n);
            }
            bool last = k + depth == g->k;
            for (int64_t i = 0, some; i < rows; i += some) {
                some = ts_min64(MICRO_ROWS, rows - i);
                const uint16_t *at = a + i * g->a_row + k * g->a_column;
                bool in_place = g->a_column == 1;
                if (!in_place)
                    pack_rows(buffer, at, g->a_column, depth, some, VF_LANES);
                for (int64_t q = 0; q < panels; q++) {
                    int64_t j = (panel0 + q) * MICRO_COLUMNS_F,
                            n = ts_min64(MICRO_COLUMNS_F, g->n - j);
                    float *to = r->slices > 1 ? sums + i * MICRO_COLUMNS_F : sums;
                    TS_V(ts_micro_bf16)[some][n > VF_LANES](
                        pairs, (const char *)(in_place ? at : buffer),
                        in_place ? 2 * g->a_row : 4, in_place ? 4 : 4 * VF_LANES,
                        packed + q * MICRO_COLUMNS_F * r->depth, to, MICRO_COLUMNS_F,
                        in_place && (depth & 1), k > 0);
                    if (last)
                        store_sums(r, to, c + i * g->c_row, some, j, n);
                }
            }
        }
    }
}
#endif

/* ----------------------------------------------------------------------------- the calls ---- */

static bool suits_pairs(const ts_gemm *g, ts_dtype half)
{
    return VEC_ISA == VEC_IS_avx512 && half == TS_BF16 && g->m >= PAIRS_ROWS && g->k > 1 &&
           g->n >= PAIRS_ROWS && ts_cpu_has_bf16();
}

bool TS_V(ts_half_suits)(const ts_gemm *g, ts_dtype half)
{
    return g->m > 0 && g->n > 0 && g->k > 0 &&
           (g->m <= FEW || g->n <= FEW || suits_pairs(g, half));
}

/** Cuts `count` products into tasks, and sets r->bytes, the scratch memory of a task, r->work, a
 * measure of its time, and r->body. */
static void cut(product *r, const ts_gemm *g, int64_t count)
{
    if (g->m <= FEW || g->n <= FEW) {
        if (g->m > FEW || (g->n <= FEW && g->n < g->m)) { /* the transposed product */
            int64_t step = r->a_step;
            r->g = (ts_gemm){.m = g->n, .n = g->m, .k = g->k, .a = g->b, .b = g->a, .c = g->c,
                             .bias = g->bias, .a_row = g->b_column, .a_column = g->b_row,
                             .b_row = g->a_column, .b_column = g->a_row, .c_row = 1};
            r->a_step = r->b_step;
            r->b_step = step;
            r->c_column = g->c_row;
            r->transposed = true;
        }
        r->tiles = ts_ceil_div(r->g.n, TILE);
        r->tasks = count * r->tiles;
        r->bytes = FEW * ts_ceil_div(g->k, VF_LANES) * VF_LANES * (int64_t)sizeof(float);
        r->work = (double)r->g.m * (double)ts_min64(r->g.n, TILE) * (double)g->k / 4;
        r->body = r->half == TS_BF16 ? in_place_bf16 : in_place_f16;
        return;
    }
#if VEC_ISA == VEC_IS_avx512
    r->slices = ts_ceil_div(g->k, SLICE);
    r->depth = ts_min64(SLICE, (g->k + 1) / 2 * 2);
    r->panels = ts_ceil_div(g->n, MICRO_COLUMNS_F);
    r->group = ts_min64(GROUP_BYTES / (2 * MICRO_COLUMNS_F * r->depth), GROUP_PANELS);
    r->group = r->slices > 1 ? 1 : ts_max64(1, ts_min64(r->group, r->panels));
    r->groups = ts_ceil_div(r->panels, r->group);
    r->blocks = ts_ceil_div(g->m, GROUP_ROWS);
    int64_t halves = (r->group * MICRO_COLUMNS_F + VF_LANES) * r->depth,
            rows = r->slices > 1 ? GROUP_ROWS : MICRO_ROWS;
    r->tasks = count * r->groups * r->blocks;
    r->bytes = 2 * halves + 4 * rows * MICRO_COLUMNS_F;
    r->work = (double)ts_min64(g->m, GROUP_ROWS) * (double)g->k *
              (double)ts_min64(g->n, r->group * MICRO_COLUMNS_F) / 4;
    r->body = run_pairs;
#endif
}

static void run(product *r)
{
    ts_parallel_for(r->tasks, 1 + (int64_t)((1 << 17) / (r->work + 1)), r->body, r);
}

ts_status TS_V(ts_half_product)(ts_frame *f, const ts_gemm *g, ts_dtype half, int64_t count,
                                int64_t a_step, int64_t b_step, int64_t c_step)
{
    product r = {.g = *g, .half = half, .a_step = a_step, .b_step = b_step, .c_step = c_step,
                 .c_column = 1};
    if (!count)
        return TS_OK;
    cut(&r, g, count);
    TS_TRY(ts_slots_begin(f, &r.slots, r.tasks, r.bytes, "operands of a product"));
    run(&r);
    ts_slots_end(f, &r.slots);
    return TS_OK;
}

ts_status TS_V(ts_half_products)(ts_frame *f, const ts_gemm *first, const ts_gemm *second,
                                 ts_dtype half)
{
    product r = {.g = *first, .half = half, .c_column = 1},
            then = {.g = *second, .half = half, .c_column = 1};
    cut(&r, first, 1);
    cut(&then, second, 1);
    TS_TRY(ts_slots_begin(f, &r.slots, r.tasks, r.bytes, "operands of a product"));
    ts_status status =
        ts_slots_begin(f, &then.slots, then.tasks, then.bytes, "operands of a product");
    if (status == TS_OK) {
        run(&r);
        run(&then);
        ts_slots_end(f, &then.slots);
    }
    ts_slots_end(f, &r.slots);
    return status;
}
