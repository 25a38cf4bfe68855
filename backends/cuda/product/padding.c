/**
 * @file padding.c
 * Products of halves over padded copies.
 *
 * cuBLASLt's fast kernels read and write vectors of 16 bytes. If the rows of an operand or of the
 * result are not a multiple of 8 halves, it uses kernels that are three to six times slower. Copies
 * with rows padded by zeros give the same sums at the speed of the fast kernels.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/product/padding.h"
#include "backends/cuda/product/strips.h"
#include "tessera/program.h"

#include <stdatomic.h>

enum {
    GRAIN = 8, /* halves in 16 bytes */
    ITEM = 2,
    ALIGNMENT = 256,
    SLOW_TILE = 128, /* rows and columns of a tile of the slow kernels */
    LEAST_TILE = 64, /* the same of their smallest tile */
    LONG = 1 << 15,  /* inner dim from which an undivided one may dominate */
    MULTIPROCESSORS = 132
};

/* Measured on one H200 (docs/matmul.md). Only their ratios matter. */
static const double FAST = 780e12,    /* operations per second over rows of multiples of 8 halves */
    SLOW_EVEN = 250e12,               /* the same over rows of multiples of 2 or 4 halves */
    SLOW_ODD = 140e12,                /* the same over rows of an odd number of halves */
    MEMORY = 4e12,                    /* bytes per second */
    COPY = 3e-6,                      /* seconds that the launch of a copy adds */
    MARGIN = 1.2;                     /* minimum gain of padding */

static int64_t up(int64_t n) { return (n + GRAIN - 1) / GRAIN * GRAIN; }
static double most(double a, double b) { return a > b ? a : b; }

/** True if rows of a matrix are dense; otherwise columns are. step(): stride from one dense row or
 * column to the next. */
static bool by_rows(const ts_cuda_matrix *m) { return m->column == 1; }
static int64_t step(const ts_cuda_matrix *m) { return by_rows(m) ? m->row : m->column; }

static int64_t count(const ts_cuda_matrix *m, int64_t batches) { return m->batch ? batches : 1; }
static double bytes_of(int64_t rows, int64_t columns, int64_t batches)
{
    return (double)ITEM * (double)rows * (double)columns * (double)batches;
}

/** The choice of TS_CUDA_MATMUL: -1 pad by estimated cost, 0 never pad, 1 always pad. */
static int forced(void)
{
    static _Atomic int known; /* 2 + choice */
    int is = atomic_load_explicit(&known, memory_order_relaxed);
    if (!is)
        atomic_store(&known, is = 2 + ts_variable_choice("TS_CUDA_MATMUL", "direct|padded"));
    return is - 2;
}

/** Nonzero if a length or a stride is not a multiple of 8. */
static int64_t odd_bits(const ts_cuda_matrix *m, int64_t batches)
{
    return ((by_rows(m) ? m->columns : m->rows) | step(m) | (batches > 1 ? m->batch : 0)) % GRAIN;
}

bool ts_cuda_is_uneven(ts_dtype dtype, const ts_cuda_matrix *a, const ts_cuda_matrix *b,
                       const ts_cuda_matrix *c, int64_t batches)
{
    return ts_dtype_is_half(dtype) &&
           (odd_bits(a, batches) | odd_bits(b, batches) | odd_bits(c, batches)) != 0;
}

/** Rounds a size up to whole tiles; a single row or column has separate kernels. */
static int64_t in_tiles(int64_t n)
{
    return n == 1 ? 1 : (n + SLOW_TILE - 1) / SLOW_TILE * SLOW_TILE;
}

bool ts_cuda_pads(ts_dtype dtype, const ts_cuda_matrix *a, const ts_cuda_matrix *b,
                  const ts_cuda_matrix *c, int64_t batches, const ts_cuda_epilogue *then,
                  ts_cuda_padding *p)
{
    if ((dtype != TS_BF16 && dtype != TS_F16) || then->gelu || forced() == 0)
        return false;
    int64_t bits = odd_bits(a, batches) | odd_bits(b, batches) | odd_bits(c, batches);
    if (!bits)
        return false;
    int64_t m = c->rows, n = c->columns, k = a->columns;
    p->rows = by_rows(a) ? m : up(m);
    p->columns = up(n);
    p->inner = by_rows(a) || !by_rows(b) ? up(k) : k;
    p->a = odd_bits(a, batches) || p->rows != m || p->inner != k;
    p->b = odd_bits(b, batches) || p->columns != n || p->inner != k;
    p->last = !odd_bits(b, batches) && p->inner == k && p->columns != n && n >= GRAIN &&
              batches == 1 && !then->sums;
    p->b = p->b && !p->last;
    p->c = odd_bits(c, batches) || p->rows != m || p->columns != n;
    if (forced() == 1)
        return true;
    double whole_a = bytes_of(p->rows, p->inner, count(a, batches)),
           whole_b = bytes_of(p->inner, p->columns, count(b, batches)),
           whole_c = bytes_of(p->rows, p->columns, batches), all = whole_a + whole_b + whole_c,
           work = 2.0 * (double)in_tiles(m) * (double)in_tiles(n) * (double)k * (double)batches,
           padded = 2.0 * (double)p->rows * (double)p->columns * (double)p->inner * (double)batches,
           copies = 2 * (p->a * whole_a + p->b * whole_b + p->c * whole_c),
           slow = bits % 2 ? SLOW_ODD : SLOW_EVEN, direct = most(work / slow, all / MEMORY);
    /* one multiprocessor computes a tile: the slow kernels do not divide k */
    if (m > 1 && n > 1 && k >= LONG)
        direct = most(direct, 2.0 * LEAST_TILE * LEAST_TILE * (double)k * MULTIPROCESSORS / slow);
    int launches = (p->a || p->b || p->last) + p->c + 2 * p->last;
    return direct >
           MARGIN * (most(padded / FAST, all / MEMORY) + copies / MEMORY + launches * COPY);
}

/** A matrix laid out like `m` in dense padded lines, without data. */
static ts_cuda_matrix padded_like(const ts_cuda_matrix *m, int64_t rows, int64_t columns)
{
    bool lines = by_rows(m);
    return (ts_cuda_matrix){NULL,
                            rows,
                            columns,
                            lines ? columns : 1,
                            lines ? 1 : rows,
                            m->batch ? rows * columns : 0};
}

/** Operands and result of the padded product; operands that are not copied keep data and steps. */
static void padded_operands(const ts_cuda_matrix *a, const ts_cuda_matrix *b,
                            const ts_cuda_matrix *c, const ts_cuda_padding *p,
                            ts_cuda_matrix made[3])
{
    const ts_cuda_matrix *given[3] = {a, b, c};
    const bool copied[3] = {p->a, p->b, p->c};
    const int64_t sizes[3][2] = {
        {p->rows, p->inner}, {p->inner, p->columns}, {p->rows, p->columns}};
    for (int i = 0; i < 3; i++) {
        made[i] = copied[i] ? padded_like(given[i], sizes[i][0], sizes[i][1]) : *given[i];
        made[i].rows = sizes[i][0];
        made[i].columns = sizes[i][1];
    }
}

bool ts_cuda_padded_gemm_is_there(const ts_frame *f, ts_dtype dtype, const ts_cuda_matrix *a,
                                  const ts_cuda_matrix *b, const ts_cuda_matrix *c,
                                  int64_t batches, const ts_cuda_epilogue *then,
                                  const ts_cuda_padding *p)
{
    ts_cuda_matrix made[3];
    padded_operands(a, b, c, p, made);
    return ts_cuda_gemm_is_there(f, dtype, &made[0], &made[1], &made[2], batches, then);
}

/** The copy of one matrix, or of a result back from its padded copy. */
static ts_cuda_strip strip_of(const ts_cuda_matrix *from, const ts_cuda_matrix *to, int64_t batches)
{
    bool lines = by_rows(to);
    return (ts_cuda_strip){.from = from->data,
                           .to = to->data,
                           .rows = lines ? from->rows : from->columns,
                           .columns = lines ? from->columns : from->rows,
                           .to_rows = lines ? to->rows : to->columns,
                           .to_columns = lines ? to->columns : to->rows,
                           .from_row = step(from),
                           .to_row = step(to),
                           .from_batch = from->batch,
                           .to_batch = to->batch,
                           .batches = count(to, batches)};
}
static ts_cuda_strip row_strip(const void *from, void *to, int64_t n, int64_t to_n)
{
    return (ts_cuda_strip){from, to, 1, n, 1, to_n, 0, 0, 0, 0, 1};
}

static int64_t rounded(int64_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }
static int64_t bytes_in(const ts_cuda_matrix *m, int64_t batches)
{
    return rounded(ITEM * m->rows * m->columns * count(m, batches));
}

static void log_padding(const ts_frame *f, const ts_cuda_padding *p)
{
    char call[512];
    if (!ts_log_on("matmul"))
        return;
    ts_frame_describe(f, call, sizeof call);
    ts_log_write("matmul", "cuda, padded to %lld x %lld x %lld, copying%s%s%s in %s",
                 (long long)p->rows, (long long)p->inner, (long long)p->columns,
                 p->a ? " first operand," : "",
                 p->b      ? " second operand,"
                 : p->last ? " end of second operand,"
                           : "",
                 p->c ? " result," : "", call);
}

void ts_cuda_log_direct(const ts_frame *f, ts_dtype dtype, const ts_cuda_matrix *a,
                        const ts_cuda_matrix *b, const ts_cuda_matrix *c, int64_t batches)
{
    char call[512];
    if (!ts_log_on("matmul") || !ts_cuda_is_uneven(dtype, a, b, c, batches))
        return;
    ts_frame_describe(f, call, sizeof call);
    ts_log_write("matmul", "cuda, without padding %lld x %lld x %lld in %s", (long long)c->rows,
                 (long long)a->columns, (long long)c->columns, call);
}

/** Operands of a padded product, and its scratch memory. */
typedef struct padded_product {
    ts_cuda_matrix made[3], end; /* a, b, c; end: the padded copy of the last columns of b */
    void *bias, *sums;
} padded_product;

/** Assigns each copy its address starting at `at` and returns the total bytes. at NULL: only
 * returns the bytes. */
static int64_t place_copies(padded_product *w, const ts_cuda_padding *p,
                            const ts_cuda_epilogue *then, int64_t batches, char *at)
{
    int64_t bytes = 0;
    const bool copied[3] = {p->a, p->b, p->c};
    for (int i = 0; i < 3; i++)
        if (copied[i]) {
            w->made[i].data = at ? at + bytes : NULL;
            bytes += bytes_in(&w->made[i], batches);
        }
    if (p->last) {
        w->end.data = at ? at + bytes : NULL;
        bytes += bytes_in(&w->end, 1);
    }
    w->bias = at ? at + bytes : NULL;
    bytes += then->bias ? rounded(ITEM * p->columns) : 0;
    w->sums = at ? at + bytes : NULL;
    return bytes + (then->sums ? rounded(ITEM * p->rows) : 0);
}

/** The matrix starting at column `first`. */
static ts_cuda_matrix columns_from(ts_cuda_matrix m, int64_t first, int64_t columns)
{
    m.data = (char *)m.data + ITEM * first * m.column;
    m.columns = columns;
    return m;
}

static ts_status copy_operands(ts_frame *f, const padded_product *w, const ts_cuda_matrix *a,
                               const ts_cuda_matrix *b, const ts_cuda_matrix *c,
                               int64_t batches, const ts_cuda_epilogue *then,
                               const ts_cuda_padding *p)
{
    ts_cuda_strip in[TS_CUDA_STRIPS];
    int64_t columns = c->columns;
    int n = 0;
    if (p->a)
        in[n++] = strip_of(a, &w->made[0], batches);
    if (p->b)
        in[n++] = strip_of(b, &w->made[1], batches);
    if (p->last) {
        ts_cuda_matrix end = columns_from(*b, columns / GRAIN * GRAIN, columns % GRAIN);
        in[n++] = strip_of(&end, &w->end, 1);
    }
    if (then->bias)
        in[n++] = row_strip(then->bias, w->bias, columns, p->columns);
    if (p->c && then->factors && then->factors[1] != 0) {
        ts_cuda_matrix added = *c;
        added.data = then->added ? (void *)then->added : c->data;
        in[n++] = strip_of(&added, &w->made[2], batches);
    }
    return n ? ts_cuda_copy_strips(f, in, n) : TS_OK;
}

/** Computes the padded product. If only the last columns of b were copied (fewer than GRAIN), a
 * second product computes them. */
static ts_status multiply(ts_frame *f, ts_dtype dtype, const padded_product *w, int64_t columns,
                          int64_t batches, const ts_cuda_epilogue *then, const ts_cuda_padding *p)
{
    ts_cuda_epilogue within = *then;
    within.bias = then->bias ? w->bias : NULL;
    within.sums = then->sums ? w->sums : NULL;
    within.added = p->c ? NULL : then->added; /* a padded result already holds it */
    if (!p->last)
        return ts_cuda_gemm(f, dtype, &w->made[0], &w->made[1], &w->made[2], batches, &within);
    int64_t whole = columns / GRAIN * GRAIN;
    ts_cuda_matrix b = columns_from(w->made[1], 0, whole), c = columns_from(w->made[2], 0, whole);
    TS_TRY(ts_cuda_gemm(f, dtype, &w->made[0], &b, &c, 1, &within));
    c = columns_from(w->made[2], whole, GRAIN);
    if (within.bias)
        within.bias = (char *)w->bias + ITEM * whole;
    return ts_cuda_gemm(f, dtype, &w->made[0], &w->end, &c, 1, &within);
}

/** Copies the result and the sums, without the padding, to their destinations. */
static ts_status copy_results(ts_frame *f, const padded_product *w, const ts_cuda_matrix *c,
                              int64_t batches, const ts_cuda_epilogue *then,
                              const ts_cuda_padding *p)
{
    ts_cuda_strip out[TS_CUDA_STRIPS];
    int n = 0;
    if (p->c) {
        ts_cuda_matrix from = w->made[2];
        from.rows = c->rows;
        from.columns = c->columns;
        out[n++] = strip_of(&from, c, batches);
    }
    if (then->sums)
        out[n++] = row_strip(w->sums, then->sums, c->rows, c->rows);
    return n ? ts_cuda_copy_strips(f, out, n) : TS_OK;
}

ts_status ts_cuda_gemm_padded(ts_frame *f, ts_dtype dtype, const ts_cuda_matrix *a,
                              const ts_cuda_matrix *b, const ts_cuda_matrix *c, int64_t batches,
                              const ts_cuda_epilogue *then, const ts_cuda_padding *p)
{
    ts_device where = ts_kernel_device(f);
    padded_product w = {0};
    padded_operands(a, b, c, p, w.made);
    if (p->last)
        w.end = padded_like(b, p->inner, GRAIN);
    log_padding(f, p);
    int64_t bytes = place_copies(&w, p, then, batches, NULL);
    char *scratch = NULL;
    if (bytes && !(scratch = ts_scratch_take(where, bytes)))
        return ts_error_code();
    place_copies(&w, p, then, batches, scratch);
    ts_status status = copy_operands(f, &w, a, b, c, batches, then, p);
    if (status == TS_OK)
        status = multiply(f, dtype, &w, c->columns, batches, then, p);
    if (status == TS_OK)
        status = copy_results(f, &w, c, batches, then, p);
    if (scratch)
        ts_scratch_give(where, scratch, bytes);
    return status;
}

ts_status ts_cuda_pad_matrix(ts_frame *f, const ts_cuda_matrix *from, int64_t rows, int64_t columns,
                             ts_cuda_padded *to)
{
    ts_device where = ts_kernel_device(f);
    to->matrix = padded_like(from, rows, columns);
    to->bytes = bytes_in(&to->matrix, 1);
    if (!(to->data = ts_scratch_take(where, to->bytes)))
        return ts_error_code();
    to->matrix.data = to->data;
    ts_cuda_strip strip = strip_of(from, &to->matrix, 1);
    ts_status status = ts_cuda_copy_strips(f, &strip, 1);
    if (status == TS_OK)
        return TS_OK;
    ts_scratch_give(where, to->data, to->bytes);
    to->data = NULL;
    return status;
}
