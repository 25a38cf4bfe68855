/**
 * @file sgemm.c  Products of f32 matrices on the micro-kernels.
 *
 * The depth k is cut into slices, evenly. A few slices at a time, the second operand is packed into
 * panels of two vectors' columns; the panel of a slice stays in the first cache while it meets the
 * rows of the first operand, which are read where they stand when they are dense, else from a packed
 * copy as well. An element of the result is one chain of fused multiply-adds a slice, and the slices'
 * sums are added in order: how tiles are dealt to threads changes no bit. Where both operands are
 * packed, as for gradients of weights, each thread has a tile of the result, or of its sum over one
 * half of k, and packs for itself.
 */
// SPDX-License-Identifier: MIT
#include "backends/cpu/sgemm.h"
#include "backends/cpu/pack.h"
#include "core/alloc.h"
#include "core/parallel.h"

#define DEPTH 256    /* most rows of a slice */
#define AT_A_TIME 2  /* slices that are packed together; one when both operands are, for the second cache */
#define PANEL MICRO_COLUMNS_F
#define BLOCK ((MICRO_ROWS + VF_LANES - 1) / VF_LANES * VF_LANES) /* floats of a step of a packed block of rows */
#define TOGETHER 16  /* blocks of rows that meet a panel one after the other */
#define TILE_WORK (1 << 20)    /* multiply-adds that make two tiles of one */
#define PARTED_DEPTH (4 * DEPTH) /* least k that is cut in two parts */
#define PARTED_RESULTS (1 << 16) /* and most results */
#define PACKED_BYTES (8 << 20) /* most that a packed part of the second operand takes */

typedef struct product {
    const ts_gemm *g;
    float *b;                 /* packed: panels of `depth` rows; NULL: the second operand as it stands */
    float *a;                 /* packed: blocks of `depth` steps; NULL: the first operand as it stands */
    float *sums;              /* (m): of the first operand over k; NULL when not wanted */
    int64_t first;            /* column where the part begins that is packed */
    int64_t panels, group;    /* of this part, and of a task */
    int64_t blocks;           /* of rows */
    int64_t slices;           /* of k */
    int64_t slice, last;      /* those that are packed */
    int64_t start, depth;     /* and their rows */
    int64_t a_at, b_at;       /* where the packed operands begin, in floats; -1: not packed */
} product;

/** Begin of part i when n things are dealt to `parts` as evenly as can be. */
TS_INLINE int64_t deal(int64_t n, int64_t parts, int64_t i) { return n / parts * i + ts_min64(i, n % parts); }

/** Width of the panel at a column: one vector where that is enough. */
TS_INLINE int64_t panel_width(const ts_gemm *g, int64_t column)
{
    return g->n - column > VF_LANES ? PANEL : VF_LANES;
}

/* ----------------------------------------------------------------------------- packing ---- */

#define PACK_ROWS 16 /* of a task, when rows are copied */

/** Rows begin to end of the second operand into all panels: memory is read in its order. */
static void pack_b_rows(void *ctx, int64_t begin, int64_t end)
{
    const product *r = ctx;
    const ts_gemm *g = r->g;
    for (int64_t p = begin * PACK_ROWS; p < ts_min64(end * PACK_ROWS, r->depth); p++)
        for (int64_t j = 0; j < r->panels; j++) {
            int64_t column = r->first + j * PANEL, width = panel_width(g, column);
            vf_pack_rows(r->b + j * PANEL * r->depth + p * width, width,
                         (const float *)g->b + (r->start + p) * g->b_row + column, 0, ts_min64(PANEL, g->n - column), 1);
        }
}

/** Panels begin to end of a second operand whose columns are dense. */
static void pack_b_columns(void *ctx, int64_t begin, int64_t end)
{
    const product *r = ctx;
    const ts_gemm *g = r->g;
    for (int64_t j = begin; j < end; j++) {
        int64_t column = r->first + j * PANEL;
        vf_pack_transposed(r->b + j * PANEL * r->depth, panel_width(g, column),
                           (const float *)g->b + column * g->b_column + r->start, g->b_column,
                           ts_min64(PANEL, g->n - column), r->depth);
    }
}

/** Steps begin to end of a first operand whose columns are dense, into all blocks: nearly in memory's order. */
static void pack_a_columns(void *ctx, int64_t begin, int64_t end)
{
    const product *r = ctx;
    const ts_gemm *g = r->g;
    for (int64_t p = begin * PACK_ROWS; p < ts_min64(end * PACK_ROWS, r->depth); p += PACK_ROWS)
        for (int64_t i = 0; i < r->blocks; i++) {
            int64_t row = deal(g->m, r->blocks, i);
            vf_pack_rows(r->a + (i * r->depth + p) * BLOCK, BLOCK, (const float *)g->a + row + (r->start + p) * g->a_column,
                         g->a_column, ts_min64(BLOCK, g->m - row), ts_min64(PACK_ROWS, r->depth - p));
        }
}

/** Adds the sums of packed blocks begin to end over the steps to those of their rows. */
static void add_sums(const product *r, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++) {
        int64_t row = deal(r->g->m, r->blocks, i), rows = deal(r->g->m, r->blocks, i + 1) - row;
        for (int64_t j = 0; j < rows; j += VF_LANES) {
            const float *a = r->a + i * r->depth * BLOCK + j;
            float *to = r->sums + row + j;
            int64_t lanes = ts_min64(VF_LANES, rows - j);
            vf sum = vf_zero();
            for (int64_t p = 0; p < r->depth; p++)
                sum += vf_load(a + p * BLOCK);
            vf_store_n(to, (r->slice ? vf_load_n(to, lanes) : vf_zero()) + sum, lanes);
        }
    }
}

/* ------------------------------------------------------------------------- multiplying ---- */

/** Blocks of rows begin to end times panels from to, over the slices that are packed. */
static void run_part(const product *r, int64_t begin, int64_t end, int64_t from, int64_t to)
{
    const ts_gemm *g = r->g;
    int64_t a_row = r->a ? 1 : g->a_row, a_step = r->a ? BLOCK : g->a_column;
    if (r->sums && !from && !r->first)
        add_sums(r, begin, end);
    for (int64_t slice = r->slice; slice < r->last; slice++) {
        int64_t p = deal(g->k, r->slices, slice), depth = deal(g->k, r->slices, slice + 1) - p;
        for (int64_t j = from; j < to; j++) {
            int64_t column = r->first + j * PANEL, columns = ts_min64(PANEL, g->n - column);
            int64_t width = panel_width(g, column), b_row = r->b ? width : g->b_row;
            const float *b = r->b ? r->b + j * PANEL * r->depth + (p - r->start) * width
                                  : (const float *)g->b + p * b_row + column;
            const float *bias = g->bias && !slice ? (const float *)g->bias + column : NULL;
            for (int64_t i = begin; i < end; i++) {
                int64_t row = deal(g->m, r->blocks, i), rows = deal(g->m, r->blocks, i + 1) - row;
                const float *a = r->a ? r->a + (i * r->depth + p - r->start) * BLOCK
                                      : (const float *)g->a + row * a_row + p * a_step;
                TS_V(ts_micro_f32)[rows][width > VF_LANES](depth, a, a_row, a_step, b, b_row,
                                                           (float *)g->c + row * g->c_row + column, g->c_row, columns,
                                                           bias, slice > 0);
            }
        }
    }
}

/* Tasks are blocks of rows, for one group of panels after the other. Blocks go through the panels
 * together as far as they stay in the second cache, while a panel stays in the first. */
static void run_blocks(void *ctx, int64_t begin, int64_t end)
{
    const product *r = ctx;
    while (begin < end) {
        int64_t group = begin / r->blocks, block = begin % r->blocks;
        int64_t next = ts_min64(ts_min64(block + TOGETHER, r->blocks), block + end - begin);
        run_part(r, block, next, group * r->group, ts_min64((group + 1) * r->group, r->panels));
        begin += next - block;
    }
}

/** How a product is cut, and the floats that its packed operands take. */
static int64_t cut(product *r, bool a_packed, int64_t *part, int64_t *together)
{
    const ts_gemm *g = r->g;
    r->slices = ts_ceil_div(g->k, DEPTH);
    r->blocks = ts_ceil_div(g->m, MICRO_ROWS);
    *together = a_packed ? 1 : AT_A_TIME;
    int64_t panels = ts_ceil_div(g->n, PANEL), most = ts_min64(*together * DEPTH, g->k);
    bool b_stands = r->blocks <= 2 && g->b_column == 1 && g->n % VF_LANES == 0;
    *part = b_stands ? panels : ts_max64(1, ts_min64(panels, PACKED_BYTES / (PANEL * 4) / most));
    int64_t b_floats = b_stands ? 0 : *part * PANEL * most;
    r->a_at = a_packed ? b_floats : -1;
    r->b_at = b_stands ? -1 : 0;
    return b_floats + (a_packed ? r->blocks * BLOCK * most : 0);
}

/** The product with room for what is packed. */
static void multiply(const ts_gemm *g, float *sums, bool a_packed, float *packed)
{
    product r = {.g = g, .sums = sums};
    int64_t part, together, panels = ts_ceil_div(g->n, PANEL);
    int64_t work = 2 * MICRO_ROWS; /* of a block of rows, a panel and a row of it, in multiply-adds of vectors */
    cut(&r, a_packed, &part, &together);
    r.b = r.b_at < 0 ? NULL : packed + r.b_at;
    r.a = r.a_at < 0 ? NULL : packed + r.a_at;
    bool b_rows = g->b_column == 1 || g->n == 1;
    for (int64_t j = 0; j < panels; j += part) {
        r.first = j * PANEL;
        r.panels = ts_min64(part, panels - j);
        /* panels are shared out only where there are too few rows to share */
        r.group = r.blocks >= 32 ? 32 : ts_max64(1, r.panels * r.blocks / 32);
        for (r.slice = 0; r.slice < r.slices; r.slice = r.last) {
            r.last = ts_min64(r.slice + together, r.slices);
            r.start = deal(g->k, r.slices, r.slice);
            r.depth = deal(g->k, r.slices, r.last) - r.start;
            if (r.b && b_rows)
                ts_parallel_for(ts_ceil_div(r.depth, PACK_ROWS), 1 + 4096 / (PANEL * r.panels), pack_b_rows, &r);
            else if (r.b)
                ts_parallel_for(r.panels, 1 + 65536 / (PANEL * r.depth), pack_b_columns, &r);
            if (r.a)
                ts_parallel_for(ts_ceil_div(r.depth, PACK_ROWS), 1 + 4096 / g->m, pack_a_columns, &r);
            ts_parallel_for(r.blocks * ts_ceil_div(r.panels, r.group), 1 + 32768 / (work * r.depth * r.group), run_blocks,
                            &r);
        }
    }
}

/* ------------------------------------------------------------------------------- tiles ---- */

/** Tiles of a product whose operands are both packed. */
static void run_tiles(void *ctx, int64_t begin, int64_t end)
{
    const ts_sgemm_plan *t = ctx;
    for (int64_t task = begin; task < end; task++) {
        int64_t tile = task / t->parts, part = task % t->parts, k = deal(t->g->k, t->parts, part);
        int64_t i = tile / t->across * t->rows, j = tile % t->across * t->columns;
        ts_gemm g = *t->g;
        float *sums = t->sums;
        if (part) {
            g.c = t->rest;
            g.c_row = g.n;
            g.bias = NULL;
            sums = sums ? t->rest + g.m * g.n : NULL;
        }
        g.k = deal(g.k, t->parts, part + 1) - k;
        g.m = ts_min64(t->rows, g.m - i);
        g.n = ts_min64(t->columns, g.n - j);
        g.a = (const float *)g.a + i * g.a_row + k * g.a_column;
        g.b = (const float *)g.b + j * g.b_column + k * g.b_row;
        g.bias = g.bias ? (const float *)g.bias + j : NULL;
        g.c = (float *)g.c + i * g.c_row + j;
        multiply(&g, sums && !j ? sums + i : NULL, true, t->packed + task * t->floats);
    }
}

/** Adds the rest to rows begin to end of the result; behind them stand the sums. */
static void add_rest(void *ctx, int64_t begin, int64_t end)
{
    const ts_sgemm_plan *t = ctx;
    for (int64_t i = begin; i < end; i++) {
        int64_t n = i < t->g->m ? t->g->n : t->g->m;
        float *to = i < t->g->m ? (float *)t->g->c + i * t->g->c_row : t->sums;
        const float *from = t->rest + i * t->g->n;
        for (int64_t j = 0; j < n; j += VF_LANES) {
            int64_t lanes = ts_min64(VF_LANES, n - j);
            vf_store_n(to + j, vf_load_n(to + j, lanes) + vf_load_n(from + j, lanes), lanes);
        }
    }
}

/**
 * Cuts g into as many tiles as there are threads, or a few more. What a thread packs stays in its own
 * caches, and it waits for no other; packed twice costs less than that. Tiles change no bit; parts do,
 * so the shape alone decides: few results of a long k, where tiles would pack as much as they multiply.
 */
static void cut_tiles(ts_sgemm_plan *t, const ts_gemm *g)
{
    int64_t threads = t->alone ? 1 : ts_num_threads();
    t->parts = g->k >= PARTED_DEPTH && g->n <= PARTED_RESULTS / g->m ? 2 : 1;
    double work = (double)g->m * (double)g->n * (double)g->k / (double)t->parts;
    for (int64_t count = t->parts; count < threads && work > TILE_WORK; count *= 2) {
        if (t->columns >= t->rows)
            t->columns = ts_ceil_div(ts_ceil_div(t->columns, 2), PANEL) * PANEL;
        else
            t->rows = ts_ceil_div(ts_ceil_div(t->rows, 2), VF_LANES) * VF_LANES;
        work /= 2;
    }
    t->across = ts_ceil_div(g->n, t->columns);
    t->count = ts_ceil_div(g->m, t->rows) * t->across * t->parts;
}

bool TS_V(ts_sgemm_cut)(ts_sgemm_plan *t, const ts_gemm *g, float *sums)
{
    bool a_columns = g->a_row == 1 && g->a_column != 1 && g->m > 1 && g->k > 1;
    if (VEC_ISA == VEC_IS_baseline || !g->m || !g->n || !g->k || (sums && !a_columns))
        return false;
    *t = (ts_sgemm_plan){.g = g, .sums = sums, .rows = g->m, .columns = g->n, .across = 1, .parts = 1, .count = 1};
    t->alone = ts_in_parallel() || ts_num_threads() == 1;
    /* packing the first operand pays when several panels meet it */
    t->a_packed = a_columns && (sums || (g->n > PANEL && g->m > MICRO_ROWS));
    if (t->a_packed)
        cut_tiles(t, g);
    int64_t part, together;
    ts_gemm one = *g;
    one.m = t->rows;
    one.n = t->columns;
    one.k = ts_ceil_div(g->k, t->parts);
    int64_t floats = cut(&(product){.g = &one}, t->a_packed, &part, &together);
    t->packed_floats = floats * (t->alone ? 1 : t->count); /* alone, tasks share what they pack */
    t->floats = t->alone ? 0 : floats;
    t->bytes = (size_t)(t->packed_floats + (t->parts > 1 ? g->m * (g->n + 1) : 0)) * sizeof(float);
    return true;
}

void TS_V(ts_sgemm_run)(ts_sgemm_plan *t, void *scratch)
{
    const ts_gemm *g = t->g;
    t->packed = scratch;
    if (t->count == 1) {
        multiply(g, t->sums, t->a_packed, t->packed);
        return;
    }
    t->rest = t->packed + t->packed_floats;
    if (t->alone)
        run_tiles(t, 0, t->count);
    else
        ts_parallel_for(t->count, (double)g->m * (double)g->n * (double)g->k > TILE_WORK ? 1 : t->count, run_tiles, t);
    if (t->parts > 1)
        ts_parallel_for(g->m + (t->sums != NULL), 1 + 16384 / g->n, add_rest, t);
}
