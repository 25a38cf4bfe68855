/**
 * @file tile.c  Fused groups on the CPU: all calls of a group on one tile, then the next tile.
 *
 * A tile is a part of the group's iteration space. Its values fit the L1 cache, except in machine
 * code (emit.h), which keeps values in registers. The other calls run the eager kernels, so a group
 * gives the same bits as its calls one by one. Each call's shape rule runs once per size of tiles;
 * other tiles of that size change only the addresses. A value that only the group uses is stored in
 * a buffer of one tile.
 */
// SPDX-License-Identifier: MIT
#include "compile/emit.h"
#include "core/float_env.h"
#include "core/parallel.h"

#include <string.h>

enum { KEPT_BUFFERS = 8192 /* bytes of buffers up to which they are on the stack */ };

/** True if a kernel has changed the space that its shape rule made. Entries after the last dim and
 *  operand are not set. before: the addresses of the operands before the kernel ran. */
static bool has_changed(const tile_call *c, char *const *before)
{
    const ts_iter *it = &c->plan.iter, *made = &c->space;
    size_t operands = (size_t)c->operands;
    bool changed = it->ndim != made->ndim || it->numel != made->numel ||
                   memcmp(it->data, before, operands * sizeof *before) != 0;
    for (int d = 0; d < made->ndim && !changed; d++)
        changed = it->sizes[d] != made->sizes[d] ||
                  memcmp(it->strides[d], made->strides[d], operands * sizeof **made->strides) != 0;
    return changed;
}

/** Runs the kernel of a call. A failure is recorded in the thread that runs it, with op and call
 *  site; the kernel's own record comes first. */
static bool run_kernel(tile_call *c)
{
    const ts_error *e = c->f.thread->error;
    unsigned before = e->count;
    ts_status status = c->kernel(&c->f);
    if (TS_LIKELY(status == TS_OK))
        return true;
    if (e->count == before)
        ts_error_set(status, "failed without recording an error");
    ts_fail_within(ts_op_name(c->f.op), c->f.site);
    return false;
}

static bool run_tile(const ts_tiles *w, tile_worker *own, int64_t tile)
{
    int64_t outer = tile / w->along, own_tile = tile % w->along, at = own_tile * w->chunk,
            length = !w->ndim                    ? 1
                     : own_tile + 1 < w->along ? w->chunk
                                                 : w->sizes[w->split] - at,
            index[TS_MAX_DIMS];
    for (int d = w->split - 1; d >= 0; d--) {
        index[d] = outer % w->sizes[d];
        outer /= w->sizes[d];
    }
    for (uint32_t i = 0; i < w->nvalues; i++) {
        tile_value *v = &own->values[i];
        if (!v->base) {
            v->t.data = v->buffer < 0 ? NULL : own->buffers + v->buffer * w->buffer;
            continue;
        }
        v->t.data = v->base + (w->ndim ? at * v->step[w->split] : 0);
        for (int d = 0; d < w->split; d++)
            v->t.data += index[d] * v->step[d];
    }
    if (!ts_tile_is_code(w) && length != own->length && !ts_tile_prepare(w, own, length))
        return false;
    const ts_emitted_part *part = w->code ? w->code->parts : NULL,
                          *stop = part ? part + w->code->nparts : NULL;
    char *parts = w->parts;
    for (uint32_t k = 0; k < w->ncalls; k++) {
        if (part != stop && part->first == k) {
            int64_t sizes[TS_MAX_DIMS];
            memcpy(sizes, w->sizes, sizeof sizes);
            sizes[w->split] = length;
            ts_emit_run(part, own->values, sizes, w->split, w->ndim, w->numbers);
            k = part++->end - 1;
            continue;
        }
        tile_call *c = &own->calls[k];
        ts_iter *it = &c->plan.iter;
        if (c->rewrites)
            *it = c->space;
        for (int i = 0; i < c->operands; i++)
            if (c->operand[i])
                it->data[i] = own->values[c->operand[i] - 1].t.data;
        char *before[TS_MAX_OPERANDS];
        bool tries = !c->tried && !c->plan.rows && !c->whole;
        ts_fold_share share;
        if (c->whole) {
            share = (ts_fold_share){.data = own->values[c->arg[0] - 1].t.data,
                                .first = at / TS_PIECE, .count = ts_ceil_div(length, TS_PIECE),
                                .parts = parts};
            c->plan.share = &share;
            parts += w->npieces * (int64_t)sizeof(double);
        }
        for (int i = 0; i < c->operands && tries; i++)
            before[i] = it->data[i];
        if (!run_kernel(c))
            return false;
        if (tries) {
            c->tried = true;
            c->rewrites = has_changed(c, before);
        }
    }
    return true;
}

/** A worker's share of a divided run: tiles begin to end - 1. */
static void run_tiles(void *ctx, int64_t begin, int64_t end)
{
    ts_tiles *w = ctx;
    int number = atomic_fetch_add(&w->workers, 1);
    if (number >= w->nworkers) {
        atomic_store(&w->failed, 1);
        return;
    }
    char *memory = w->memory + (size_t)number * w->worker;
    tile_worker own = {.values = (tile_value *)memory};
    own.calls = (tile_call *)(own.values + w->nvalues);
    own.buffers = (char *)(((uintptr_t)(own.calls + w->ncalls) + 63) & ~(uintptr_t)63);
    memcpy(own.values, w->values, w->nvalues * sizeof *own.values);
    if (!ts_tile_is_code(w))
        memcpy(own.calls, w->calls, w->ncalls * sizeof *own.calls);
    for (uint32_t k = 0; k < w->ncalls && !ts_tile_is_code(w); k++)
        own.calls[k].f.thread = ts_thread_self();
    const ts_error *e = ts_thread_self()->error;
    unsigned before = e->count;
    for (int64_t i = begin; i < end; i++)
        if (!run_tile(w, &own, i)) {
            if (!atomic_exchange(&w->failed, 1) && e->count != before)
                *w->error = *e;
            return;
        }
}

/** Folds the parts of the whole calls to their results. */
static bool join_pieces(ts_tiles *w)
{
    char *parts = w->parts;
    for (uint32_t k = 0; k < w->ncalls && w->parts; k++) {
        tile_call *c = &w->calls[k];
        if (!c->whole)
            continue;
        ts_fold_share share = {.parts = parts};
        tile_value *result = &w->values[c->ret[0] - 1];
        parts += w->npieces * (int64_t)sizeof(double);
        result->t.data = result->base;
        if (!ts_tile_plan(&w->only, c))
            return false;
        c->plan.share = &share;
        if (!run_kernel(c))
            return false;
    }
    return true;
}

/** Runs all tiles in this thread and keeps the state for the next run; frees it on failure, or if
 *  another thread has kept one. */
static bool run_serial(ts_tiles *w)
{
    char memory[KEPT_BUFFERS + 64], *buffers = memory;
    bool large = w->nbuffers * w->buffer > KEPT_BUFFERS, ok = true;
    const ts_exec *e = w->run->exec;
    ts_tiles *none = NULL;
    size_t bytes = (size_t)(w->nbuffers * w->buffer) + 64;
    if (large && !(buffers = ts_alloc(w->run->thread, bytes))) {
        ts_error_memory("a fused group", (int64_t)bytes);
        ts_tiles_free(w);
        return false;
    }
    w->only.buffers = (char *)(((uintptr_t)buffers + 63) & ~(uintptr_t)63);
    for (int64_t i = 0; i < w->outer * w->along && ok; i++)
        ok = run_tile(w, &w->only, i);
    ok = ok && join_pieces(w);
    if (large)
        ts_free(w->run->thread, buffers, bytes);
    if (!ok || !atomic_compare_exchange_strong(&e->tiles[w->step - e->steps], &none, w))
        ts_tiles_free(w);
    return ok;
}

/** Divides the tiles between threads, and frees the state. */
static bool run_parallel(ts_tiles *w)
{
    ts_thread *thread = w->run->thread;
    w->worker = (w->nvalues * sizeof(tile_value) + w->ncalls * sizeof(tile_call) + 128 +
                 (size_t)(w->nbuffers * w->buffer) + 63) & ~(size_t)63;
    size_t memory = (size_t)w->nworkers * w->worker;
    ts_error error = {0};
    w->error = &error;
    bool ok = (w->memory = ts_alloc(thread, memory)) != NULL;
    if (ok) {
        ts_parallel_for(w->outer * w->along, w->grain, run_tiles, w);
        ts_free(thread, w->memory, memory);
        if (error.code != TS_OK) {
            error.count = thread->error->count + 1;
            if (thread->error->kept)
                thread->error->count = error.count;
            else
                *thread->error = error;
        }
        ok = !w->failed && join_pieces(w);
    } else {
        ts_error_memory("a fused group", (int64_t)memory);
    }
    ts_tiles_free(w);
    return ok;
}

static ts_status run_group(const ts_run *r, const ts_step *s)
{
    ts_tiles *w = ts_tiles_of(r, s);
    if (!w)
        return ts_error_code();
    w->nworkers = (int)ts_min64(ts_num_threads(),
                                ts_max64(w->outer * w->along / w->grain, 1));
    size_t parts = 0;
    for (uint32_t k = 0; k < w->ncalls; k++)
        parts += w->calls[k].whole ? (size_t)w->npieces * sizeof(double) : 0;
    char *memory = w->parts = parts ? ts_alloc(r->thread, parts) : NULL;
    if (parts && !memory) {
        ts_tiles_free(w);
        return ts_error_memory("a fused group", (int64_t)parts);
    }
    unsigned before = r->thread->error->count;
    bool ok = w->nworkers > 1 ? run_parallel(w) : run_serial(w);
    if (memory)
        ts_free(r->thread, memory, parts);
    if (ok)
        return TS_OK;
    return r->thread->error->count != before
               ? ts_error_code()
               : ts_error_set(TS_ERR_INTERNAL, "a fused group of %u calls failed", s->count);
}

ts_status ts_tile_run(const ts_run *r, const ts_step *s)
{
    if (TS_LIKELY(ts_float_env_is_plain()))
        return run_group(r, s);
    TS_PLAIN_FLOATS;
    return run_group(r, s);
}
