/**
 * @file padding.c
 * Products of halves over padded copies.
 *
 * cuBLASLt's fast kernels read and write vectors of 16 bytes. If a row of an operand or of the
 * result is no multiple of 8 halves, it takes kernels that are three to six times slower. Copies
 * whose rows are filled up with zeros give the same sums at the fast kernels' speed.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/padding.h"
#include "backends/cuda/strips.h"
#include "tessera/program.h"

#include <stdatomic.h>

enum { GRAIN = 8 /* halves in 16 bytes */, ITEM = 2, ALIGNMENT = 256 };

/* Measured on one H200 (docs/matmul.md); their ratios decide. */
static const double FAST = 780e12,    /* operations per second over rows of multiples of 8 halves */
    SLOW_EVEN = 250e12,               /* of 2 or 4 */
    SLOW_ODD = 140e12,
    MEMORY = 4e12,                    /* bytes per second */
    COPY = 3e-6;                      /* seconds that the launch of a copy adds */

static int64_t up(int64_t n) { return (n + GRAIN - 1) / GRAIN * GRAIN; }
static double most(double a, double b) { return a > b ? a : b; }

/** The dim of a matrix that is dense, and the step between its lines. */
static bool by_rows(const ts_cuda_matrix *m) { return m->column == 1; }
static int64_t step(const ts_cuda_matrix *m) { return by_rows(m) ? m->row : m->column; }

static int64_t count(const ts_cuda_matrix *m, int64_t batches) { return m->batch ? batches : 1; }
static double bytes_of(int64_t rows, int64_t columns, int64_t batches)
{
    return (double)ITEM * (double)rows * (double)columns * (double)batches;
}

/** TS_CUDA_MATMUL: -1 as costs say, 0 never, 1 always. */
static int forced(void)
{
    static _Atomic int known; /* 2 + choice */
    int is = atomic_load_explicit(&known, memory_order_relaxed);
    if (!is)
        atomic_store(&known, is = 2 + ts_variable_choice("TS_CUDA_MATMUL", "direct|padded"));
    return is - 2;
}

/** Bits that are set where a length or a step is no multiple of 8. */
static int64_t odd_bits(const ts_cuda_matrix *m, int64_t batches)
{
    return ((by_rows(m) ? m->columns : m->rows) | step(m) | (batches > 1 ? m->batch : 0)) % GRAIN;
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
    p->c = odd_bits(c, batches) || p->rows != m || p->columns != n;
    if (forced() == 1)
        return true;
    double whole_a = bytes_of(p->rows, p->inner, count(a, batches)),
           whole_b = bytes_of(p->inner, p->columns, count(b, batches)),
           whole_c = bytes_of(p->rows, p->columns, batches), all = whole_a + whole_b + whole_c,
           work = 2.0 * (double)m * (double)n * (double)k * (double)batches,
           padded = 2.0 * (double)p->rows * (double)p->columns * (double)p->inner * (double)batches,
           copies = 2 * (p->a * whole_a + p->b * whole_b + p->c * whole_c);
    return most(work / (bits % 2 ? SLOW_ODD : SLOW_EVEN), all / MEMORY) >
           most(padded / FAST, all / MEMORY) + copies / MEMORY +
               ((p->a || p->b) + p->c) * COPY;
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

/** Operands and result of the padded product; those that are not copied keep data and steps. */
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
                 p->a ? " first operand," : "", p->b ? " second operand," : "",
                 p->c ? " result," : "", call);
}

ts_status ts_cuda_gemm_padded(ts_frame *f, ts_dtype dtype, const ts_cuda_matrix *a,
                              const ts_cuda_matrix *b, const ts_cuda_matrix *c, int64_t batches,
                              const ts_cuda_epilogue *then, const ts_cuda_padding *p)
{
    ts_device where = ts_kernel_device(f);
    ts_cuda_matrix made[3];
    ts_cuda_epilogue within = *then;
    padded_operands(a, b, c, p, made);
    int64_t bytes = (p->a ? bytes_in(&made[0], batches) : 0) +
                    (p->b ? bytes_in(&made[1], batches) : 0) +
                    (p->c ? bytes_in(&made[2], batches) : 0) +
                    (then->bias ? rounded(ITEM * p->columns) : 0) +
                    (then->sums ? rounded(ITEM * p->rows) : 0);
    char *scratch = NULL, *next = NULL;
    log_padding(f, p);
    if (bytes && !(next = scratch = ts_scratch_take(where, bytes)))
        return ts_error_code();
    ts_cuda_strip in[TS_CUDA_STRIPS], out[TS_CUDA_STRIPS];
    int nin = 0, nout = 0;
    if (p->a) {
        made[0].data = next;
        next += bytes_in(&made[0], batches);
        in[nin++] = strip_of(a, &made[0], batches);
    }
    if (p->b) {
        made[1].data = next;
        next += bytes_in(&made[1], batches);
        in[nin++] = strip_of(b, &made[1], batches);
    }
    if (then->bias) {
        within.bias = next;
        in[nin++] = row_strip(then->bias, next, c->columns, p->columns);
        next += rounded(ITEM * p->columns);
    }
    if (p->c) {
        made[2].data = next;
        next += bytes_in(&made[2], batches);
        out[nout] = strip_of(&made[2], c, batches);
        /* the copy back leaves the padding behind */
        out[nout].rows = c->rows;
        out[nout++].columns = c->columns;
    }
    if (then->sums) {
        within.sums = next;
        out[nout++] = row_strip(next, then->sums, c->rows, c->rows);
    }
    ts_status status = nin ? ts_cuda_copy_strips(f, in, nin) : TS_OK;
    if (status == TS_OK)
        status = ts_cuda_gemm(f, dtype, &made[0], &made[1], &made[2], batches, &within);
    if (status == TS_OK && nout)
        status = ts_cuda_copy_strips(f, out, nout);
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
