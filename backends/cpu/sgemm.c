/**
 * @file sgemm.c  f32 matrix products c (m, n) = a (m, k) b (k, n), made of the micro-kernels.
 *
 * k is divided evenly into slices, and b into panels as wide as two vectors. A panel of a slice is
 * packed and stays in the L1 cache while it is multiplied with rows of a. The kernel reads a in
 * place, or from a packed copy if several panels use it and columns of a are dense, or rows of a
 * share the sets of the L1 cache. An element of the result is one chain of fused multiply-adds per
 * slice, and the sums of slices are added in order, so the division of tiles among threads changes
 * no bit.
 *
 * If a is read in place, PACKED_SLICES slices of b are packed before they are multiplied. If both
 * operands are packed, as for gradients of weights, each thread computes a tile of the result (or
 * of its sum over one half of k) and packs its own operands: the first micro-kernel that uses an
 * operand copies it. Later micro-kernels prefetch the cache lines to be packed next, because the
 * operands of such products exceed the L2 cache and cache misses would cost as much as packing.
 */
// SPDX-License-Identifier: MIT
#include "backends/cpu/sgemm.h"
#include "backends/cpu/pack.h"
#include "core/alloc.h"
#include "core/parallel.h"

#define DEPTH 256    /* most rows of a slice */
#define PACKED_SLICES 2 /* slices of b that are packed before they are multiplied */
#define LINE (64 / (int64_t)sizeof(float)) /* floats of a cache line */
#define ALIASED (4096 / (int64_t)sizeof(float)) /* rows so many floats apart share L1 sets */
#define PANEL MICRO_COLUMNS_F
#define BLOCK_GROUP 4   /* blocks of rows that use a panel while it is in the L1 cache */
#define PACKED_GROUP 16 /* the same if the rows are packed */
#define TILE_WORK (1 << 20)    /* a tile of more multiply-adds is halved */
#define PARTED_DEPTH (4 * DEPTH) /* least k for two parts */
#define PARTED_RESULTS (1 << 16) /* most results for two parts */
#define PACKED_BYTES (8 << 20) /* most bytes of a packed part of the second operand */
#define SMALL_WORK (1 << 15)   /* most multiply-adds of a product without a plan */
#define SMALL_DEPTH 64         /* most k of a product without a plan */

/** An even division: each part has `each` items, the first `more` parts have one item more. */
typedef struct shares {
    int64_t each, more;
} shares;

TS_INLINE shares split_evenly(int64_t n, int64_t parts) { return (shares){n / parts, n % parts}; }

/** Start of part i. */
TS_INLINE int64_t share(shares s, int64_t i) { return s.each * i + ts_min64(i, s.more); }

typedef struct product {
    const ts_gemm *g;
    float *b;                 /* packed panels of `depth` rows; NULL: the second operand is read in
                                 place */
    int64_t first;            /* first column of the packed part */
    int64_t panels, group;    /* panels of the packed part; panels of a task */
    int64_t blocks, slices;   /* blocks of rows, slices of k */
    shares rows, steps;       /* rows of a block, steps of a slice */
    int64_t slice, last;      /* first and one past the last packed slice */
    int64_t start, depth;     /* first row of b in the packed slices; number of rows */
} product;

/** Width of the panel at `column`: one vector if the columns left fit in it, else two. */
TS_INLINE int64_t panel_width(const ts_gemm *g, int64_t column)
{
    return g->n - column > VF_LANES ? PANEL : VF_LANES;
}

/* ----------------------------------------------------------------------------- packing ---- */

#define PACK_ROWS 16 /* rows of a task that copies rows */

/** Packs groups begin to end - 1 of PACK_ROWS rows of b into all panels. Reads b in memory
 * order. */
static void pack_b_rows(void *ctx, int64_t begin, int64_t end)
{
    const product *r = ctx;
    const ts_gemm *g = r->g;
    for (int64_t p = begin * PACK_ROWS; p < ts_min64(end * PACK_ROWS, r->depth); p++)
        for (int64_t j = 0; j < r->panels; j++) {
            int64_t column = r->first + j * PANEL, width = panel_width(g, column);
            vf_pack_rows(r->b + j * PANEL * r->depth + p * width, width,
                         (const float *)g->b + (r->start + p) * g->b_row + column, 0,
                         ts_min64(PANEL, g->n - column), 1);
        }
}

/** Packs panels begin to end - 1 of a second operand with dense columns. */
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

/* ------------------------------------------------------------------------- multiplying ---- */

/** Multiplies blocks of rows [begin, end) with panels [from, to) over the packed slices. */
static void run_part(const product *r, int64_t begin, int64_t end, int64_t from, int64_t to)
{
    const ts_gemm *g = r->g;
    int64_t row = share(r->rows, begin);
    for (int64_t slice = r->slice; slice < r->last; slice++) {
        int64_t p = share(r->steps, slice), depth = share(r->steps, slice + 1) - p;
        for (int64_t j = from; j < to; j++) {
            int64_t column = r->first + j * PANEL, columns = ts_min64(PANEL, g->n - column);
            int64_t width = panel_width(g, column), b_row = r->b ? width : g->b_row;
            const float *b = r->b ? r->b + j * PANEL * r->depth + (p - r->start) * width
                                  : (const float *)g->b + p * b_row + column;
            const float *bias = g->bias && !slice ? (const float *)g->bias + column : NULL;
            const float *a = (const float *)g->a + row * g->a_row + p * g->a_column;
            float *c = (float *)g->c + row * g->c_row + column;
            /* in the first panel, block i prefetches the rows of block i + BLOCK_GROUP */
            int64_t fetched = j == from && g->a_column == 1 ? r->blocks - BLOCK_GROUP : 0;
            for (int64_t i = begin; i < end; i++) {
                int64_t rows = r->rows.each + (i < r->rows.more);
                bool fetching = i < fetched;
                const float *fetch = fetching ? (const float *)g->a + p * LINE +
                                                    share(r->rows, i + BLOCK_GROUP) * g->a_row
                                              : b;
                TS_V(ts_micro_f32)[rows][width > VF_LANES](depth, a, g->a_row, g->a_column, b,
                                                           b_row, c, g->c_row, columns, bias,
                                                           slice > 0 || g->add, fetch,
                                                           fetching ? LINE : 0);
                a += rows * g->a_row;
                c += rows * g->c_row;
            }
        }
    }
}

/* A task is one block of rows times one group of panels. BLOCK_GROUP blocks, which stay in the L2
 * cache, are multiplied with a panel while it is in the L1 cache. */
static void run_blocks(void *ctx, int64_t begin, int64_t end)
{
    const product *r = ctx;
    while (begin < end) {
        int64_t group = begin / r->blocks, block = begin % r->blocks;
        int64_t next = ts_min64(ts_min64(block + BLOCK_GROUP, r->blocks), block + end - begin);
        run_part(r, block, next, group * r->group, ts_min64((group + 1) * r->group, r->panels));
        begin += next - block;
    }
}

/** Divides a product whose first operand is read in place. Sets *part to the number of panels
 * that are packed together. Returns the floats of the packed second operand; 0 if it is read in
 * place. */
static int64_t cut(product *r, int64_t *part)
{
    const ts_gemm *g = r->g;
    r->slices = ts_ceil_div(g->k, DEPTH);
    r->blocks = ts_ceil_div(g->m, MICRO_ROWS);
    r->steps = split_evenly(g->k, r->slices);
    r->rows = split_evenly(g->m, r->blocks);
    int64_t panels = ts_ceil_div(g->n, PANEL), most = ts_min64(PACKED_SLICES * DEPTH, g->k);
    bool b_in_place = r->blocks <= 2 && g->b_column == 1 && g->n % VF_LANES == 0;
    *part = b_in_place ? panels : ts_max64(1, ts_min64(panels, PACKED_BYTES / (PANEL * 4) / most));
    return b_in_place ? 0 : *part * PANEL * most;
}

/** Computes the product. packed: the floats that cut() returns, for the packed second operand. */
static void multiply(const ts_gemm *g, float *packed)
{
    product r = {.g = g};
    int64_t part, panels = ts_ceil_div(g->n, PANEL);
    /* work of a block, a panel and one row of k, in vector multiply-adds */
    int64_t work = 2 * MICRO_ROWS;
    r.b = cut(&r, &part) ? packed : NULL;
    bool b_rows = g->b_column == 1 || g->n == 1;
    for (int64_t j = 0; j < panels; j += part) {
        r.first = j * PANEL;
        r.panels = ts_min64(part, panels - j);
        /* tasks divide panels only if there are too few blocks of rows */
        r.group = r.blocks >= 32 ? 32 : ts_max64(1, r.panels * r.blocks / 32);
        for (r.slice = 0; r.slice < r.slices; r.slice = r.last) {
            r.last = ts_min64(r.slice + PACKED_SLICES, r.slices);
            r.start = share(r.steps, r.slice);
            r.depth = share(r.steps, r.last) - r.start;
            if (r.b && b_rows)
                ts_parallel_for(ts_ceil_div(r.depth, PACK_ROWS), 1 + 4096 / (PANEL * r.panels),
                                pack_b_rows, &r);
            else if (r.b)
                ts_parallel_for(r.panels, 1 + 65536 / (PANEL * r.depth), pack_b_columns, &r);
            ts_parallel_for(r.blocks * ts_ceil_div(r.panels, r.group),
                            1 + 32768 / (work * r.depth * r.group), run_blocks, &r);
        }
    }
}

/* ------------------------------------------------------------------------ both packed ---- */

/** Division of a product that packs both operands. */
typedef struct packing {
    int64_t slices, depth; /* slices of k, and the largest number of rows of a slice */
    int64_t blocks, group; /* blocks of rows: total, and packed together */
    int64_t panels, part;  /* panels: total, and processed before blocks are packed again */
    int64_t kept;          /* packed panels in scratch */
    shares rows, steps;    /* rows of a block, steps of a slice */
} packing;

static packing cut_both(const ts_gemm *g)
{
    packing c = {.slices = ts_ceil_div(g->k, DEPTH), .blocks = ts_ceil_div(g->m, MICRO_ROWS),
                 .panels = ts_ceil_div(g->n, PANEL)};
    c.depth = ts_ceil_div(g->k, c.slices);
    c.steps = split_evenly(g->k, c.slices);
    c.rows = split_evenly(g->m, c.blocks);
    c.group = ts_min64(c.blocks, PACKED_GROUP);
    /* if one group has all blocks, a panel is used once and the next panel can overwrite it */
    bool once = c.group == c.blocks;
    c.part = once ? c.panels : ts_min64(c.panels, PACKED_BYTES / (PANEL * 4) / c.depth);
    c.kept = once ? 1 : c.part;
    return c;
}

static int64_t packing_floats(const packing *c)
{
    return (c->group * MICRO_BLOCK + c->kept * PANEL) * c->depth;
}

/** Packs rows p to p + depth - 1 of the panel of b that starts at `column`. */
static void pack_panel(const ts_gemm *g, int64_t p, int64_t depth, int64_t column, float *to)
{
    const float *from = (const float *)g->b + p * g->b_row + column * g->b_column;
    int64_t width = panel_width(g, column), columns = ts_min64(PANEL, g->n - column);
    if (g->b_column == 1 || g->n == 1)
        vf_pack_rows(to, width, from, g->b_row, columns, depth);
    else
        vf_pack_transposed(to, width, from, g->b_column, columns, depth);
}

/* ------------------------------------------------------------------------------ small ---- */

static bool is_small(const ts_gemm *g)
{
    return g->k <= SMALL_DEPTH && g->m <= SMALL_WORK && g->n <= SMALL_WORK &&
           g->m * g->n * g->k <= SMALL_WORK;
}

/** Sums `lanes` rows of a, starting at `row`, over k into sums. Columns of a are dense. */
VEC_FN void sum_lanes(const ts_gemm *g, int64_t row, int64_t lanes, float *sums)
{
    const float *a = (const float *)g->a + row;
    vf sum = vf_zero();
    for (int64_t p = 0; p < g->k; p++, a += g->a_column)
        sum += vf_load_n(a, lanes);
    vf_store_n(sums + row, sum, lanes);
}

static void sum_columns(const ts_gemm *g, float *sums)
{
    int64_t row = 0;
    for (; row + VF_LANES <= g->m; row += VF_LANES)
        sum_lanes(g, row, VF_LANES, sums);
    if (row < g->m)
        sum_lanes(g, row, g->m - row, sums);
}

/**
 * Computes a product of at most SMALL_WORK multiply-adds on the calling thread. A plan, tasks and
 * scratch would cost more time than the product.
 * @param sums  NULL, or receives the sums of the first operand over k, (m). Requires dense columns
 */
static void multiply_small(const ts_gemm *g, float *sums)
{
    if (sums)
        sum_columns(g, sums);
    float packed[SMALL_DEPTH * PANEL];
    bool in_place = g->b_column == 1 && g->n % VF_LANES == 0;
    for (int64_t column = 0; column < g->n; column += PANEL) {
        int64_t width = panel_width(g, column), b_row = in_place ? g->b_row : width, rows;
        const float *b = in_place ? (const float *)g->b + column : packed;
        const float *bias = g->bias ? (const float *)g->bias + column : NULL;
        if (!in_place)
            pack_panel(g, 0, g->k, column, packed);
        for (int64_t row = 0; row < g->m; row += rows) {
            rows = ts_min64(MICRO_ROWS, g->m - row);
            TS_V(ts_micro_f32)[rows][width > VF_LANES](
                g->k, (const float *)g->a + row * g->a_row, g->a_row, g->a_column, b, b_row,
                (float *)g->c + row * g->c_row + column, g->c_row, ts_min64(PANEL, g->n - column),
                bias, g->add, b, 0);
        }
    }
}

/** Cache lines to prefetch: the operands of the next group of blocks, or of the next slice. A line
 * of `a_lines` or `b_lines` is a column of cache lines, one per step of k. */
typedef struct ahead {
    const float *a, *b;
    int64_t a_lines, b_lines; /* not prefetched yet */
} ahead;

/** Returns the cache lines that run_group() with these arguments prefetches. */
static ahead look_ahead(const ts_gemm *g, const packing *c, int64_t slice, int64_t first,
                        int64_t begin)
{
    bool last = begin + c->group >= c->blocks; /* last group: the next one is in the next slice */
    int64_t block = last ? 0 : begin + c->group;
    slice += last;
    if (slice == c->slices)
        return (ahead){0};
    int64_t p = share(c->steps, slice), row = share(c->rows, block);
    int64_t rows = share(c->rows, ts_min64(block + c->group, c->blocks)) - row;
    int64_t columns =
        last && g->b_column == 1 ? ts_min64(c->part * PANEL, g->n - first * PANEL) : 0;
    return (ahead){.a = (const float *)g->a + row + p * g->a_column,
                   .a_lines = g->a_row == 1 ? ts_ceil_div(rows, LINE) : 0,
                   .b = (const float *)g->b + p * g->b_row + first * PANEL,
                   .b_lines = ts_ceil_div(columns, LINE)};
}

/** Address and step of the next cache lines to prefetch; `idle` and step 0 if none are left. */
static const float *take_lines(ahead *next, const ts_gemm *g, const float *idle, int64_t *step)
{
    if (next->a_lines) {
        next->a_lines--;
        *step = g->a_column;
        return next->a + next->a_lines * LINE;
    }
    if (next->b_lines) {
        next->b_lines--;
        *step = g->b_row;
        return next->b + next->b_lines * LINE;
    }
    *step = 0;
    return idle;
}

/**
 * Multiplies the group of blocks at `begin` with the part of the panels at `first`, over one
 * slice. The micro-kernel of the first panel also packs the block, if columns of a are dense; other
 * blocks are packed before. The micro-kernel of the first block also packs the panel if rows of b
 * are dense and the panel is full; other panels are packed before.
 */
static void run_group(const ts_gemm *g, const packing *c, int64_t slice, int64_t first,
                      int64_t begin, float *sums, float *packed)
{
    int64_t p = share(c->steps, slice), depth = share(c->steps, slice + 1) - p;
    int64_t last = ts_min64(first + c->part, c->panels),
            end = ts_min64(begin + c->group, c->blocks);
    float *blocks = packed + c->kept * PANEL * c->depth;
    ahead next = look_ahead(g, c, slice, first, begin);
    for (int64_t j = first; j < last; j++) {
        int64_t column = j * PANEL, columns = ts_min64(PANEL, g->n - column),
                width = panel_width(g, column);
        const float *bias = g->bias && !slice ? (const float *)g->bias + column : NULL;
        float *panel = packed + (j - first) % c->kept * PANEL * c->depth;
        bool copied = begin > 0;
        if (!copied && (g->b_column != 1 || columns < width)) {
            pack_panel(g, p, depth, column, panel);
            copied = true;
        }
        for (int64_t i = begin; i < end; i++, copied = true) {
            int64_t row = share(c->rows, i), rows = share(c->rows, i + 1) - row;
            float *block = blocks + (i - begin) * MICRO_BLOCK * c->depth;
            float *to = (float *)g->c + row * g->c_row + column;
            bool new_block = j == first && g->a_row == 1;
            if (j == first && !new_block)
                vf_pack_transposed(block, MICRO_BLOCK,
                                   (const float *)g->a + row * g->a_row + p, g->a_row, rows, depth);
            const float *a = new_block ? (const float *)g->a + row + p * g->a_column : block;
            const float *b = copied ? panel : (const float *)g->b + p * g->b_row + column;
            int64_t a_step = new_block ? g->a_column : MICRO_BLOCK,
                    b_row = copied ? width : g->b_row, fetch_step;
            if (new_block || !copied) {
                TS_V(ts_micro_copy_f32)[rows][width > VF_LANES](
                    depth, a, 1, a_step, b, b_row, to, g->c_row, columns, bias,
                    slice > 0 || g->add, b, 0,
                    new_block ? block : NULL, copied ? NULL : panel,
                    sums && !j ? sums + row : NULL);
            } else {
                const float *fetch = take_lines(&next, g, b, &fetch_step);
                TS_V(ts_micro_f32)[rows][width > VF_LANES](depth, a, 1, a_step, b, b_row, to,
                                                           g->c_row, columns, bias,
                                                           slice > 0 || g->add, fetch, fetch_step);
            }
        }
    }
}

/**
 * Computes a product on one thread and packs both operands during it.
 * @param sums  NULL, or receives the sums of the first operand over k, (m)
 */
static void multiply_both(const ts_gemm *g, float *sums, float *packed)
{
    const packing c = cut_both(g);
    for (int64_t first = 0; first < c.panels; first += c.part)
        for (int64_t slice = 0; slice < c.slices; slice++)
            for (int64_t begin = 0; begin < c.blocks; begin += c.group)
                run_group(g, &c, slice, first, begin, sums, packed);
}

/* ------------------------------------------------------------------------------- tiles ---- */

/** Computes tiles of a product with both operands packed. */
static void run_tiles(void *ctx, int64_t begin, int64_t end)
{
    const ts_sgemm_plan *t = ctx;
    for (int64_t task = begin; task < end; task++) {
        int64_t tile = task / t->parts, part = task % t->parts;
        shares steps = split_evenly(t->g->k, t->parts);
        int64_t k = share(steps, part);
        int64_t i = tile / t->across * t->rows, j = tile % t->across * t->columns;
        ts_gemm g = *t->g;
        float *sums = t->sums;
        if (part) {
            g.c = t->rest;
            g.c_row = g.n;
            g.bias = NULL;
            g.add = false;
            sums = sums ? t->rest + g.m * g.n : NULL;
        }
        g.k = share(steps, part + 1) - k;
        g.m = ts_min64(t->rows, g.m - i);
        g.n = ts_min64(t->columns, g.n - j);
        g.a = (const float *)g.a + i * g.a_row + k * g.a_column;
        g.b = (const float *)g.b + j * g.b_column + k * g.b_row;
        g.bias = g.bias ? (const float *)g.bias + j : NULL;
        g.c = (float *)g.c + i * g.c_row + j;
        multiply_both(&g, sums && !j ? sums + i : NULL, t->packed + task * t->floats);
    }
}

/** Adds `rest`, the result of the second part, to rows [begin, end) of c; row m means the sums. */
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
 * Divides g into one tile per thread, or a few more. Each thread packs its operands into its own
 * caches, because packing some panels twice costs less than waiting for another thread. The number
 * of tiles changes no bit of the result. The number of parts does, so it depends on the shape
 * alone: two for a small result and a long k, where tiles would spend as much time on packing as on
 * multiplying.
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
    t->small = is_small(g);
    if (VEC_ISA == VEC_IS_baseline || !g->m || !g->n || !g->k || (sums && !a_columns))
        return false;
    if (t->small) {
        t->g = g;
        t->sums = sums;
        t->bytes = 0;
        return true;
    }
    *t = (ts_sgemm_plan){
        .g = g, .sums = sums, .rows = g->m, .columns = g->n, .across = 1, .parts = 1, .count = 1};
    t->alone = ts_in_parallel() || ts_num_threads() == 1;
    /* packing a saves time if several panels use it */
    bool aliased = g->a_column == 1 && g->a_row > 1 && g->a_row % ALIASED == 0;
    t->a_packed = (a_columns && sums) ||
                  ((a_columns || aliased) && g->n > PANEL && g->m > MICRO_ROWS);
    if (t->a_packed)
        cut_tiles(t, g);
    int64_t part, floats;
    ts_gemm one = *g;
    one.m = t->rows;
    one.n = t->columns;
    one.k = ts_ceil_div(g->k, t->parts);
    if (t->a_packed) {
        packing c = cut_both(&one);
        floats = packing_floats(&c);
    } else {
        floats = cut(&(product){.g = &one}, &part);
    }
    t->packed_floats = floats * (t->alone ? 1 : t->count); /* tasks of a single tile share the
                                                              packed operands */
    t->floats = t->alone ? 0 : floats;
    t->bytes = (size_t)(t->packed_floats + (t->parts > 1 ? g->m * (g->n + 1) : 0)) * sizeof(float);
    return true;
}

void TS_V(ts_sgemm_run)(ts_sgemm_plan *t, void *scratch)
{
    const ts_gemm *g = t->g;
    if (t->small) {
        multiply_small(g, t->sums);
        return;
    }
    t->packed = scratch;
    if (!t->a_packed) {
        multiply(g, t->packed);
        return;
    }
    t->rest = t->packed + t->packed_floats;
    if (t->alone)
        run_tiles(t, 0, t->count);
    else
        ts_parallel_for(t->count,
                        (double)g->m * (double)g->n * (double)g->k > TILE_WORK ? 1 : t->count,
                        run_tiles, t);
    if (t->parts > 1)
        ts_parallel_for(g->m + (t->sums != NULL), 1 + 16384 / g->n, add_rest, t);
}
