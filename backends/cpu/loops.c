/** @file loops.c  Runs a pointwise loop over an iteration space, on one or several threads. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/loops.h"
#include "backends/cpu/bytes.h"
#include "backends/cpu/isa.h"
#include "backends/cpu/tiling.h"
#include "core/parallel.h"

#include <string.h>

/** Elements of dtype `from` converted to `to`; in copy.c. */
TS_ISA_DECLARE(ts_loop, ts_cpu_copy_loop, (ts_dtype to, ts_dtype from));

typedef struct walk {
    const ts_iter *it;
    ts_loop loop;
    const void *params;
} walk;

/** Runs the loop over elements begin to end - 1 of the space, in row-major order of the dims. */
static void run_range(void *ctx, int64_t begin, int64_t end)
{
    const walk *w = ctx;
    const ts_iter *it = w->it;
    int64_t at[TS_MAX_DIMS], step[TS_MAX_DIMS][TS_MAX_OPERANDS]; /* to the next run, if dim d is the
                                                                   first that does not wrap */
    char *data[TS_MAX_OPERANDS];
    int64_t rest = begin;
    for (int d = 0; d < it->ndim; d++) {
        at[d] = rest ? rest % it->sizes[d] : 0; /* divisions are slow, and most runs begin at 0 */
        rest = rest ? rest / it->sizes[d] : 0;
    }
    for (int k = 0; k < it->operands; k++) {
        int64_t back = 0;
        data[k] = it->data[k];
        for (int d = 0; d < it->ndim; d++) {
            data[k] += at[d] * it->strides[d][k];
            step[d][k] = it->strides[d][k] - back;
            back += d ? (it->sizes[d] - 1) * it->strides[d][k] : 0;
        }
    }
    int64_t n = ts_min64(it->sizes[0] - at[0], end - begin);
    w->loop(data, it->strides[0], n, w->params);
    for (int k = 0; k < it->operands; k++) /* the first run may start in the middle */
        data[k] -= at[0] * it->strides[0][k];
    while ((begin += n) < end) {
        int d = 1;
        while (++at[d] == it->sizes[d])
            at[d++] = 0;
        for (int k = 0; k < it->operands; k++)
            data[k] += step[d][k];
        n = ts_min64(it->sizes[0], end - begin);
        w->loop(data, it->strides[0], n, w->params);
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

void ts_cpu_run_each(const ts_iter *it, ts_loop loop, const void *params, int cost)
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

enum { BLOCK = 256 }; /* elements of a block */

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

/** True if a loop can take the operand as one run. */
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
                ts_copy_bytes((char *)to, from, n * (int64_t)sizeof(T));                           \
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

/** Copies n elements starting at index `at` to the block (in) or from it, and advances `at` by n.
 */
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

void ts_cpu_gather(const ts_tensor *t, int64_t first, int64_t n, char *block)
{
    layout l = {.data = t->data, .item = ts_dtype_sizes[t->dtype], .ndim = 0};
    int64_t at[TS_MAX_DIMS];
    for (int d = t->ndim - 1; d >= 0; d--) {
        int64_t stride = t->strides[d] * l.item;
        if (t->sizes[d] == 1)
            continue;
        if (l.ndim && stride == l.strides[l.ndim - 1] * l.sizes[l.ndim - 1]) {
            l.sizes[l.ndim - 1] *= t->sizes[d];
            continue;
        }
        l.sizes[l.ndim] = t->sizes[d];
        l.strides[l.ndim++] = stride;
    }
    if (!l.ndim) {
        l.sizes[0] = 1;
        l.strides[l.ndim++] = l.item;
    }
    for (int d = 0; d < l.ndim; d++) {
        at[d] = first % l.sizes[d];
        first /= l.sizes[d];
    }
    move_block(&l, true, block, at, n);
}

bool ts_cpu_gathers_well(const ts_tensor *t)
{
    enum { LINES = 128 }; /* cache lines that stay in the L1 cache */
    for (int d = t->ndim - 1; d >= 0; d--)
        if (t->sizes[d] > 1)
            return t->strides[d] <= 2 || t->sizes[d] <= LINES;
    return true;
}

/** A word filled with copies of the element at p, which has 1, 2, 4 or 8 bytes. */
static uint64_t word_of_copies(const char *p, int item)
{
    uint64_t word;
    uint32_t word4;
    uint16_t word2;
    switch (item) {
    case 1: return *(const uint8_t *)p * (UINT64_MAX / UINT8_MAX);
    case 2: memcpy(&word2, p, sizeof word2); return word2 * (UINT64_MAX / UINT16_MAX);
    case 4: memcpy(&word4, p, sizeof word4); return word4 * (UINT64_MAX / UINT32_MAX);
    default: memcpy(&word, p, sizeof word); return word;
    }
}

/** Fills `run` bytes at each element of the layout starting at index `at` with n elements of a
 * block, and advances `at` by n. */
static void fill_runs(const layout *l, const char *block, int64_t *at, int64_t n, int64_t run)
{
    char *to = l->data;
    for (int d = 0; d < l->ndim; d++)
        to += at[d] * l->strides[d];
    for (int64_t i = 0; i < n; i++, block += l->item) {
        typedef uint64_t words __attribute__((vector_size(TS_FILL_LINE)));
        words line = word_of_copies(block, l->item) - (words){0};
        ts_fill_bytes(to, run, (const char *)&line);
        for (int d = 0; d < l->ndim; d++) {
            to += l->strides[d];
            if (++at[d] < l->sizes[d])
                break;
            to -= l->sizes[d] * l->strides[d];
            at[d] = 0;
        }
    }
}

typedef struct blocks {
    const ts_iter *it;
    ts_loop loop;
    const void *params;
    int64_t length; /* elements of a block: whole repetitions of repeated operands, if they fit */
    int64_t run;    /* bytes of copies that replace each element of the result; 0: no copies */
    layout layouts[TS_MAX_OPERANDS];
} blocks;

/** True if each block of `length` elements has the same elements of the operand. */
static bool is_repeated(const layout *l, int64_t length)
{
    return l->ndim == 2 && l->strides[1] == 0 && length % l->sizes[0] == 0;
}

/** Runs the loop over blocks begin to end - 1 of the space. */
static void run_blocks(void *ctx, int64_t begin, int64_t end)
{
    const blocks *b = ctx;
    uint64_t room[TS_MAX_OPERANDS][BLOCK];
    int64_t at[TS_MAX_OPERANDS][TS_MAX_DIMS], strides[TS_MAX_OPERANDS];
    bool moved[TS_MAX_OPERANDS];
    int operands = b->it->operands;
    for (int k = 0; k < operands; k++) {
        const layout *l = &b->layouts[k];
        int64_t rest = begin * b->length;
        moved[k] = !is_one_run(l) || (!k && b->run);
        strides[k] = moved[k] ? l->item : l->strides[0];
        for (int d = 0; d < l->ndim; d++) {
            at[k][d] = rest % l->sizes[d];
            rest /= l->sizes[d];
        }
    }
    for (int64_t i = begin; i < end; i++) {
        int64_t n = ts_min64(b->length, b->it->numel - i * b->length);
        char *data[TS_MAX_OPERANDS];
        for (int k = 0; k < operands; k++) {
            const layout *l = &b->layouts[k];
            data[k] = moved[k] ? (char *)room[k] : l->data + i * b->length * strides[k];
            if (k && moved[k] && (i == begin || !is_repeated(l, b->length)))
                move_block(l, true, data[k], at[k], n);
        }
        b->loop(data, strides, n, b->params);
        if (b->run)
            fill_runs(&b->layouts[0], data[0], at[0], n, b->run);
        else if (moved[0])
            move_block(&b->layouts[0], false, data[0], at[0], n);
    }
}

static void converting_loop(char *const *data, const int64_t *strides, int64_t n,
                            const void *params);

/** True if the innermost runs are short, or strided in some operand. converting_loop() needs longer
 *  runs than others, because it calls several loops. */
static bool has_short_runs(const ts_iter *it, ts_loop loop)
{
    if (it->ndim > 1 && it->sizes[0] < (loop == converting_loop ? BLOCK / 2 : BLOCK / 8))
        return true;
    for (int k = 0; k < it->operands; k++)
        if (it->strides[0][k] != 0 && it->strides[0][k] != it->items[k])
            return true;
    return false;
}

/** Runs a loop by blocks. run: see blocks. */
static void run_by_blocks(const ts_iter *it, ts_loop loop, const void *params, int cost,
                          int64_t run)
{
    blocks b = {.it = it, .loop = loop, .params = params, .run = run};
    int64_t period = 1;
    for (int k = 0; k < it->operands; k++) {
        const layout *l = &b.layouts[k];
        b.layouts[k] = layout_of(it, k);
        if (l->ndim == 2 && l->strides[1] == 0 && l->sizes[0] <= BLOCK)
            period = ts_max64(period, l->sizes[0]);
    }
    b.length = BLOCK / period * period;
    ts_parallel_for(ts_ceil_div(it->numel, b.length), TS_CPU_GRAIN(cost + 2) / b.length + 1,
                    run_blocks, &b);
}

void ts_cpu_run_ragged(const ts_iter *it, ts_loop loop, const void *params, int cost)
{
    if (it->numel < BLOCK / 4 || !has_short_runs(it, loop))
        ts_cpu_run_each(it, loop, params, cost);
    else if (!ts_cpu_run_tiles(it, loop, params, cost))
        run_by_blocks(it, loop, params, cost, 0);
}

/** A loop whose runs have equal elements, because all operands are broadcast along them. */
typedef struct equal_runs {
    ts_loop loop;
    const void *params;
} equal_runs;

/** Computes the first element of a run, and copies it to the others. */
static void equal_loop(char *const *data, const int64_t *strides, int64_t n, const void *params)
{
    enum { FILLED = 4096 }; /* largest memcpy(): its source stays in cache */
    const equal_runs *e = params;
    int64_t bytes = n * strides[0];
    e->loop(data, strides, 1, e->params);
    for (int64_t done = strides[0], more; done < bytes; done += more) {
        more = ts_min64(ts_min64(done, FILLED), bytes - done);
        memcpy(data[0] + done, data[0], (size_t)more);
    }
}

/** True if an inner run of a ragged space is long and all its elements are equal. */
static bool has_equal_runs(const ts_iter *it)
{
    bool equal = it->sizes[0] >= BLOCK / 4 && it->strides[0][0] == it->items[0];
    for (int k = 1; k < it->operands; k++)
        equal = equal && it->strides[0][k] == 0;
    return equal;
}

/** Computes a space whose inner runs have equal elements. If a run has at most MOST bytes, blocks
 * compute the first elements of many runs together, which are then copied along their runs. */
static void run_equal(const ts_iter *it, ts_loop loop, const void *params, int cost)
{
    enum { MOST = 2048 }; /* bytes of a run whose first element is computed in a block */
    int64_t run = it->sizes[0] * it->strides[0][0];
    if (it->ndim == 1 || run > MOST) {
        ts_cpu_run_each(it, equal_loop, &(equal_runs){loop, params}, 1);
        return;
    }
    ts_iter rest = *it;
    rest.numel /= it->sizes[0];
    rest.ndim--;
    memmove(rest.sizes, rest.sizes + 1, sizeof rest.sizes - sizeof rest.sizes[0]);
    memmove(rest.strides, rest.strides + 1, sizeof rest.strides - sizeof rest.strides[0]);
    run_by_blocks(&rest, loop, params, cost + (int)(run / TS_FILL_LINE), run);
}

void ts_cpu_run_space(const ts_frame *f, ts_loop loop, const void *params, int cost)
{
    const ts_iter *it = &f->plan->iter;
    if (!f->plan->ragged)
        ts_cpu_run_each(it, loop, params, cost);
    else if (has_equal_runs(it))
        run_equal(it, loop, params, cost);
    else
        ts_cpu_run_ragged(it, loop, params, cost);
}

/* -------------------------------------------------------- operands converted by blocks ---- */

enum { CONVERTED = 2048 }; /* bytes of a block of converted elements */

typedef struct conversions {
    ts_loop loop;
    const void *params;
    int operands, item;             /* item: bytes of an element that the loop reads */
    /* loops per operand, or NULL. round: to the half dtype in which the op computes, before apply.
     * apply: to the loop's dtype; for operand 0, the result, from the loop's dtype */
    ts_loop round[TS_MAX_OPERANDS], apply[TS_MAX_OPERANDS];
} conversions;

static void converting_loop(char *const *data, const int64_t *strides, int64_t n,
                            const void *params)
{
    const conversions *c = params;
    char blocks[TS_MAX_OPERANDS][CONVERTED] __attribute__((aligned(64)));
    uint16_t rounded[CONVERTED / sizeof(float)];
    char *at[TS_MAX_OPERANDS];
    int64_t steps[TS_MAX_OPERANDS], most = CONVERTED / c->item;
    for (int64_t i = 0; i < n; i += most) {
        int64_t m = ts_min64(most, n - i);
        for (int k = 0; k < c->operands; k++) {
            at[k] = data[k] + i * strides[k];
            steps[k] = strides[k];
            if (!c->apply[k])
                continue;
            char *pair[] = {blocks[k], at[k]};
            int64_t pair_steps[] = {c->item, strides[k]}, some = strides[k] ? m : 1;
            at[k] = blocks[k];
            steps[k] = strides[k] ? c->item : 0;
            if (!k || (!strides[k] && i)) /* an operand of stride 0 is converted once */
                continue;
            if (c->round[k]) {
                c->round[k]((char *[]){(char *)rounded, pair[1]},
                            (int64_t[]){sizeof *rounded, strides[k]}, some, NULL);
                pair[1] = (char *)rounded;
                pair_steps[1] = sizeof *rounded;
            }
            c->apply[k](pair, pair_steps, some, NULL);
        }
        c->loop(at, steps, m, c->params);
        if (c->apply[0])
            c->apply[0]((char *[]){data[0] + i * strides[0], blocks[0]},
                        (int64_t[]){strides[0], c->item}, m, NULL);
    }
}

/** Finds the conversions that a loop over elements of `dtype` needs; false if it needs none. If the
 * op computes in a half dtype and the loop in f32, number arguments are stored in plan->scalars
 * again as f32, unless the plan is TS_POINTWISE_ROUNDED. */
static bool find_conversions(ts_frame *f, conversions *c, ts_dtype dtype)
{
    ts_plan *plan = f->plan;
    ts_dtype compute = plan->compute;
    ts_loop (*loop)(ts_dtype, ts_dtype) = TS_ISA_PICK(ts_cpu_copy_loop);
    bool any = compute != dtype && f->rets[0].t->dtype == compute;
    c->apply[0] = any ? loop(compute, dtype) : NULL;
    for (int i = 0, k = 1; k < c->operands; i++) {
        const ts_value *v = &f->args[i];
        if (!(plan->operands >> i & 1) || v->tag == TS_TAG_NONE)
            continue;
        bool tensor = v->tag == TS_TAG_TENSOR;
        ts_dtype from = tensor ? (ts_dtype)v->t->dtype : compute;
        c->apply[k] = c->round[k] = NULL;
        if (!tensor && compute != dtype && plan->pointwise != TS_POINTWISE_ROUNDED) {
            ts_scalar_store(v, dtype, &plan->scalars[k]);
        } else if (from == compute || (plan->cast >> i & 1)) {
            c->round[k] = from != compute && compute != dtype ? loop(compute, from) : NULL;
            c->apply[k] = from == dtype && !c->round[k] ? NULL
                                                        : loop(dtype, c->round[k] ? compute : from);
        }
        any |= c->apply[k] != NULL;
        k++;
    }
    return any;
}

/** True if the op computes in a half dtype and combines a tensor with a number that it does not
 * round to the half. */
static bool has_wide_number(const ts_frame *f)
{
    const ts_plan *plan = f->plan;
    if (!ts_dtype_is_half(plan->compute) || plan->pointwise == TS_POINTWISE_ROUNDED)
        return false;
    bool tensor = false, number = false;
    for (int i = 0; i < f->nargs; i++)
        if (plan->operands >> i & 1) {
            tensor |= f->args[i].tag == TS_TAG_TENSOR;
            number |= f->args[i].tag != TS_TAG_TENSOR && f->args[i].tag != TS_TAG_NONE;
        }
    return tensor && number;
}

/** ts_cpu_pointwise() for any dtype and space. */
static __attribute__((noinline)) ts_status pointwise_any(ts_frame *f, const ts_loop *loops,
                                                         const void *params, int cost)
{
    ts_dtype compute = f->plan->compute, dtype = compute;
    if (ts_dtype_is_half(compute) && loops[TS_F32] && (!loops[compute] || has_wide_number(f)))
        dtype = TS_F32;
    if (TS_LIKELY(loops[dtype])) {
        conversions c = {.loop = loops[dtype], .params = params,
                         .operands = f->plan->iter.operands, .item = ts_dtype_sizes[dtype]};
        if ((f->plan->cast || dtype != compute) && find_conversions(f, &c, dtype))
            ts_cpu_run_space(f, converting_loop, &c, cost + 1);
        else
            ts_cpu_run_space(f, loops[dtype], params, cost);
        return TS_OK;
    }
    ts_wrote_nothing(f);
    uint16_t dtypes = 0;
    for (int d = 0; d < TS_DTYPE_COUNT; d++)
        dtypes |= (uint16_t)((loops[d] || (ts_dtype_is_half((ts_dtype)d) && loops[TS_F32])) << d);
    return ts_fail_kernel_dtype(f, dtypes);
}

ts_status ts_cpu_pointwise(ts_frame *f, const ts_loop *loops, const void *params, int cost)
{
    const ts_plan *plan = f->plan;
    const ts_iter *it = &plan->iter;
    ts_loop loop = loops[plan->compute];
    /* flat: one run, and all operands are tensors of the compute dtype, so none is converted */
    bool plain = plan->flat || (it->ndim == 1 && !plan->ragged && !plan->cast &&
                                !ts_dtype_is_half(plan->compute));
    if (TS_UNLIKELY(!loop || !plain || it->numel * cost >= TS_CPU_GRAIN(1)))
        return pointwise_any(f, loops, params, cost);
    loop(it->data, it->strides[0], it->numel, params);
    return TS_OK;
}
