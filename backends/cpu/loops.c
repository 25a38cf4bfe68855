/** @file loops.c  Runs a pointwise loop over an iteration space, on one or several threads. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/loops.h"
#include "backends/cpu/isa.h"
#include "core/parallel.h"

#include <string.h>

/** Elements of dtype `from` converted to `to`; in copy.c. */
TS_ISA_DECLARE(ts_loop, ts_cpu_copy_loop, (ts_dtype to, ts_dtype from));

typedef struct walk {
    const ts_iter *it;
    ts_loop loop;
    const void *params;
} walk;

/** Elements begin..end of the space, in row-major order of the dims. */
static void run_range(void *ctx, int64_t begin, int64_t end)
{
    const walk *w = ctx;
    const ts_iter *it = w->it;
    const int64_t *inner = it->strides[0];
    int64_t at[TS_MAX_DIMS];
    char *data[TS_MAX_OPERANDS];
    int64_t rest = begin;
    for (int d = 0; d < it->ndim; d++) {
        at[d] = rest ? rest % it->sizes[d] : 0; /* divisions are slow, and most runs begin at 0 */
        rest = rest ? rest / it->sizes[d] : 0;
    }
    for (int k = 0; k < it->operands; k++) {
        data[k] = it->data[k];
        for (int d = 0; d < it->ndim; d++)
            data[k] += at[d] * it->strides[d][k];
    }
    while (begin < end) {
        int64_t n = ts_min64(it->sizes[0] - at[0], end - begin);
        w->loop(data, inner, n, w->params);
        begin += n;
        if (begin == end)
            return;
        /* to the start of the next run; the first run may start in the middle */
        for (int k = 0; k < it->operands; k++)
            data[k] -= at[0] * inner[k];
        at[0] = 0;
        for (int d = 1; d < it->ndim; d++) {
            for (int k = 0; k < it->operands; k++)
                data[k] += it->strides[d][k];
            if (++at[d] < it->sizes[d])
                break;
            for (int k = 0; k < it->operands; k++)
                data[k] -= it->sizes[d] * it->strides[d][k];
            at[d] = 0;
        }
    }
}

static __attribute__((noinline)) void run_walk(const ts_iter *it, ts_loop loop, const void *params,
                                               int cost)
{
    walk w = {it, loop, params};
    int64_t grain = TS_CPU_GRAIN(cost);
    if (it->numel >= 2 * grain)
        ts_parallel_for(it->numel, grain, run_range, &w);
    else if (it->numel)
        run_range(&w, 0, it->numel);
}

/** True if the space is one run that is too short for several threads. */
TS_INLINE bool is_short_run(const ts_iter *it, int cost)
{
    return it->ndim == 1 && it->numel * cost < TS_CPU_GRAIN(1);
}

/** A loop over any iteration space, run by run. */
static void run_each(const ts_iter *it, ts_loop loop, const void *params, int cost)
{
    if (TS_LIKELY(is_short_run(it, cost)))
        loop(it->data, it->strides[0], it->numel, params);
    else
        run_walk(it, loop, params, cost);
}

void ts_cpu_run_serial(const ts_iter *it, ts_loop loop, const void *params)
{
    walk w = {it, loop, params};
    if (it->numel)
        run_range(&w, 0, it->numel);
}

/* ------------------------------------------------ short runs by way of contiguous blocks ---- */

enum { BLOCK = 256, HALVES = 512 }; /* elements of a block; of a block that converts halves */

/** The elements of an operand in memory; dims of the iteration space are merged if possible. */
typedef struct layout {
    char *data;
    int item, ndim;
    int64_t sizes[TS_MAX_DIMS], strides[TS_MAX_DIMS]; /* [0] is the innermost */
} layout;

static layout layout_of(const ts_iter *it, int k)
{
    layout l = {it->data[k], it->items[k], 1, {it->sizes[0]}, {it->strides[0][k]}};
    for (int d = 1; d < it->ndim; d++) {
        int last = l.ndim - 1;
        if (it->strides[d][k] == l.strides[last] * l.sizes[last]) {
            l.sizes[last] *= it->sizes[d];
            continue;
        }
        l.sizes[l.ndim] = it->sizes[d];
        l.strides[l.ndim++] = it->strides[d][k];
    }
    return l;
}

/** Whether a loop can take the operand as one run. */
static bool is_one_run(const layout *l)
{
    return l->ndim == 1 && (l->strides[0] == 0 || l->strides[0] == l->item);
}

/* Copies rows of a strided operand to (in) or from a block. Rows that are contiguous, broadcast or
 * equal to each other have loops that compilers vectorize. Otherwise the inner loop that fills a
 * block runs along the longer dim, or along the rows if they are adjacent in memory. */
#define MOVE_ROWS(T)                                                                               \
    static void move_rows_##T(bool in, T *block, char *at, int64_t rows, int64_t row, int64_t n,   \
                              int64_t step)                                                        \
    {                                                                                              \
        if (!in) {                                                                                 \
            for (int64_t r = 0; r < rows; r++)                                                     \
                for (int64_t i = 0; i < n; i++)                                                    \
                    *(T *)(at + r * row + i * step) = block[r * n + i];                            \
            return;                                                                                \
        }                                                                                          \
        if (row != 0 && step != 0 &&                                                               \
            (n < (step == (int64_t)sizeof(T) ? ts_min64(rows, 8) : rows) ||                        \
             (row == (int64_t)sizeof(T) && rows > 1))) {                                           \
            for (int64_t i = 0; i < n; i++)                                                        \
                for (int64_t r = 0; r < rows; r++)                                                 \
                    block[r * n + i] = *(const T *)(at + r * row + i * step);                      \
            return;                                                                                \
        }                                                                                          \
        int64_t own = row ? rows : 1; /* others are equal: copies of copies */                     \
        for (int64_t r = 0; r < own; r++) {                                                        \
            const char *from = at + r * row;                                                       \
            T *to = block + r * n;                                                                 \
            if (step == (int64_t)sizeof(T)) {                                                      \
                memcpy(to, from, (size_t)n * sizeof(T));                                           \
            } else if (step == 0) {                                                                \
                T x = *(const T *)from;                                                            \
                for (int64_t i = 0; i < n; i++)                                                    \
                    to[i] = x;                                                                     \
            } else if (step == 2 * (int64_t)sizeof(T)) {                                           \
                for (int64_t i = 0; i < n; i++)                                                    \
                    to[i] = ((const T *)from)[2 * i];                                              \
            } else {                                                                               \
                for (int64_t i = 0; i < n; i++)                                                    \
                    to[i] = *(const T *)(from + i * step);                                         \
            }                                                                                      \
        }                                                                                          \
        for (int64_t done = own * n, more; done < rows * n; done += more) {                        \
            more = ts_min64(done, rows * n - done);                                                \
            memcpy(block + done, block, (size_t)more * sizeof(T));                                 \
        }                                                                                          \
    }
MOVE_ROWS(uint8_t)
MOVE_ROWS(uint16_t)
MOVE_ROWS(uint32_t)
MOVE_ROWS(uint64_t)

/** Copies n elements from index `at` on to the block (in) or from it, and advances `at` by n. */
static void move_block(const layout *l, bool in, char *block, int64_t *at, int64_t n)
{
    while (n > 0) {
        int64_t run = ts_min64(l->sizes[0] - at[0], n), rows = 1, row = 0, done = run;
        char *from = l->data;
        for (int d = 0; d < l->ndim; d++)
            from += at[d] * l->strides[d];
        if (run == l->sizes[0] && l->ndim > 1) {
            rows = ts_min64(l->sizes[1] - at[1], n / run);
            row = l->strides[1];
            done = rows * run;
        }
        switch (l->item) {
        case 1: move_rows_uint8_t(in, (void *)block, from, rows, row, run, l->strides[0]); break;
        case 2: move_rows_uint16_t(in, (void *)block, from, rows, row, run, l->strides[0]); break;
        case 4: move_rows_uint32_t(in, (void *)block, from, rows, row, run, l->strides[0]); break;
        default: move_rows_uint64_t(in, (void *)block, from, rows, row, run, l->strides[0]);
        }
        block += done * l->item;
        n -= done;
        at[0] += run == l->sizes[0] ? 0 : run;
        if (at[0] == l->sizes[0])
            at[0] = 0;
        else if (at[0])
            return; /* n is 0 */
        for (int d = 1, more = (int)rows; d < l->ndim && more; d++) {
            at[d] += more;
            more = at[d] == l->sizes[d];
            if (more)
                at[d] = 0;
        }
    }
}

typedef struct blocks {
    const ts_iter *it;
    ts_loop loop;
    const void *params;
    layout layouts[TS_MAX_OPERANDS];
} blocks;

/** Blocks begin..end of the space. */
static void run_blocks(void *ctx, int64_t begin, int64_t end)
{
    const blocks *b = ctx;
    uint64_t room[TS_MAX_OPERANDS][BLOCK];
    int64_t at[TS_MAX_OPERANDS][TS_MAX_DIMS], strides[TS_MAX_OPERANDS];
    bool moved[TS_MAX_OPERANDS];
    int operands = b->it->operands;
    for (int k = 0; k < operands; k++) {
        const layout *l = &b->layouts[k];
        int64_t rest = begin * BLOCK;
        moved[k] = !is_one_run(l);
        strides[k] = moved[k] ? l->item : l->strides[0];
        for (int d = 0; d < l->ndim; d++) {
            at[k][d] = rest % l->sizes[d];
            rest /= l->sizes[d];
        }
    }
    for (int64_t i = begin; i < end; i++) {
        int64_t n = ts_min64(BLOCK, b->it->numel - i * BLOCK);
        char *data[TS_MAX_OPERANDS];
        for (int k = 0; k < operands; k++) {
            const layout *l = &b->layouts[k];
            data[k] = moved[k] ? (char *)room[k] : l->data + i * BLOCK * strides[k];
            if (k && moved[k])
                move_block(l, true, data[k], at[k], n);
        }
        b->loop(data, strides, n, b->params);
        if (moved[0])
            move_block(&b->layouts[0], false, data[0], at[0], n);
    }
}

/** True if the innermost runs are short, or strided in some operand. */
static bool has_short_runs(const ts_iter *it)
{
    if (it->ndim > 1 && it->sizes[0] < BLOCK / 4)
        return true;
    for (int k = 0; k < it->operands; k++)
        if (it->strides[0][k] != 0 && it->strides[0][k] != it->items[k])
            return true;
    return false;
}

void ts_cpu_run_ragged(const ts_iter *it, ts_loop loop, const void *params, int cost)
{
    if (it->numel < BLOCK / 4 || !has_short_runs(it)) {
        run_each(it, loop, params, cost);
        return;
    }
    blocks b = {.it = it, .loop = loop, .params = params};
    for (int k = 0; k < it->operands; k++)
        b.layouts[k] = layout_of(it, k);
    ts_parallel_for(ts_ceil_div(it->numel, BLOCK), TS_CPU_GRAIN(cost + 2) / BLOCK + 1, run_blocks,
                    &b);
}

void ts_cpu_run_space(const ts_frame *f, ts_loop loop, const void *params, int cost)
{
    (f->plan->ragged ? ts_cpu_run_ragged : run_each)(&f->plan->iter, loop, params, cost);
}

/* -------------------------------------------------------------- bf16 and f16 by way of f32 ---- */

typedef struct halves {
    ts_loop loop, widen, narrow;
    const void *params;
    int operands;
    uint8_t half; /* bit k: operand k is of the half dtype */
} halves;

static void halves_loop(char *const *data, const int64_t *strides, int64_t n, const void *params)
{
    const halves *h = params;
    float blocks[TS_MAX_OPERANDS][HALVES] __attribute__((aligned(64)));
    char *at[TS_MAX_OPERANDS];
    int64_t steps[TS_MAX_OPERANDS];
    for (int64_t i = 0; i < n; i += HALVES) {
        int64_t m = ts_min64(HALVES, n - i);
        for (int k = 0; k < h->operands; k++) {
            at[k] = data[k] + i * strides[k];
            steps[k] = strides[k];
            if (!(h->half >> k & 1))
                continue;
            char *pair[] = {(char *)blocks[k], at[k]};
            at[k] = pair[0];
            steps[k] = strides[k] ? (int64_t)sizeof(float) : 0;
            if (k && (strides[k] || !i)) /* an operand of stride 0 is converted once */
                h->widen(pair, (int64_t[]){sizeof(float), strides[k]}, strides[k] ? m : 1, NULL);
        }
        h->loop(at, steps, m, h->params);
        if (h->half & 1)
            h->narrow((char *[]){data[0] + i * strides[0], (char *)blocks[0]},
                      (int64_t[]){strides[0], sizeof(float)}, m, NULL);
    }
}

/** Runs an f32 loop on bf16 or f16 operands, which are converted block by block. Scalar operands
 * are stored again as f32, unless the plan is TS_POINTWISE_ROUNDED. */
static TS_COLD void run_halves(ts_frame *f, ts_loop loop, const void *params, int cost)
{
    ts_plan *plan = f->plan;
    ts_iter *it = &plan->iter;
    ts_dtype half = plan->compute;
    halves h = {.loop = loop, .params = params, .operands = it->operands,
                .half = f->rets[0].t->dtype == half,
                .widen = TS_ISA_PICK(ts_cpu_copy_loop)(TS_F32, half),
                .narrow = TS_ISA_PICK(ts_cpu_copy_loop)(half, TS_F32)};
    for (int i = 0, k = 1; k < it->operands; i++) {
        const ts_value *v = &f->args[i];
        if (!(plan->operands >> i & 1) || v->tag == TS_TAG_NONE)
            continue;
        if (v->tag == TS_TAG_TENSOR ? v->t->dtype == half
                                    : plan->pointwise == TS_POINTWISE_ROUNDED)
            h.half |= (uint8_t)(1 << k);
        else if (v->tag != TS_TAG_TENSOR)
            ts_scalar_store(v, TS_F32, &plan->scalars[k]);
        k++;
    }
    ts_cpu_run_space(f, halves_loop, &h, cost + 1);
}

/** Any dtype, any space. */
static __attribute__((noinline)) ts_status pointwise_any(ts_frame *f, const ts_loop *loops,
                                                         const void *params, int cost)
{
    ts_dtype compute = f->plan->compute;
    if (loops[compute]) {
        ts_cpu_run_space(f, loops[compute], params, cost);
        return TS_OK;
    }
    if (ts_dtype_is_half(compute) && loops[TS_F32]) {
        run_halves(f, loops[TS_F32], params, cost);
        return TS_OK;
    }
    ts_wrote_nothing(f);
    return ts_fail_op(TS_ERR_DTYPE, ts_op_name(f->op), f->site, "cast with ts_to()",
                      "not defined for dtype %s on the CPU", ts_dtype_name(compute));
}

ts_status ts_cpu_pointwise(ts_frame *f, const ts_loop *loops, const void *params, int cost)
{
    const ts_plan *plan = f->plan;
    const ts_iter *it = &plan->iter;
    ts_loop loop = loops[plan->compute];
    if (TS_UNLIKELY(!loop || plan->ragged || !is_short_run(it, cost)))
        return pointwise_any(f, loops, params, cost);
    loop(it->data, it->strides[0], it->numel, params);
    return TS_OK;
}
