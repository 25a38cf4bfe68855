/**
 * @file memory.c  The memory of a plan: the peak of the bytes in use, and the offsets of its
 * storages in one block, the arena.
 *
 * A storage needs memory from its first step to its last, its life. The planner chooses the
 * offsets, the largest storage first: each storage gets the smallest gap that is free during its
 * life. Storages that outlive the run, and storages on another device than the arena, are not in
 * it.
 */
// SPDX-License-Identifier: MIT
#include "compile/compile.h"
#include "compile/testing.h"
#include "dispatch/memory_log.h"
#include "include/tessera/ops.h"
#include "include/tessera/program.h"

#include <stdlib.h>
#include <string.h>

void ts_exec_find_peak(ts_exec *e)
{
    uint32_t opened = 0, closed = 0;
    int64_t live = 0;
    e->peak = 0;
    e->peak_step = 0;
    for (uint32_t k = 0; k < e->nsteps; k++) {
        for (; opened < e->steps[k].opens; opened++) {
            const ts_plan_storage *s = &e->storages[e->opens[opened]];
            live += ts_needs_memory(s) ? s->bytes : 0;
        }
        if (live > e->peak) {
            e->peak = live;
            e->peak_step = k;
        }
        for (; closed < e->steps[k].closes; closed++) {
            const ts_plan_storage *s = &e->storages[e->closes[closed]];
            live -= ts_needs_memory(s) && !s->held ? s->bytes : 0;
        }
    }
}

/* ------------------------------------------------------------------------------ offsets ---- */

/** A storage that needs an offset. */
typedef struct block {
    int64_t bytes, offset; /* size, rounded up to the alignment; offset in the arena */
    uint32_t storage;
} block;

/** Comparison for qsort(): the largest block first. */
static int by_size(const void *x, const void *y)
{
    const block *a = x, *b = y;
    return a->bytes != b->bytes ? (a->bytes < b->bytes ? 1 : -1)
                                : (a->storage > b->storage) - (a->storage < b->storage);
}

/** Sets the offset of b, at least `begin`, so that b overlaps none of the n assigned blocks that
 * live at the same time or less than `apart` steps later. `assigned` is sorted by offset; returns
 * the index at which to insert b. */
static uint32_t fit(const ts_exec *e, block *b, const block *assigned, uint32_t n, int64_t begin,
                    uint32_t apart)
{
    const ts_plan_storage *own = &e->storages[b->storage];
    int64_t end = begin, least = INT64_MAX;
    b->offset = -1;
    for (uint32_t k = 0; k < n; k++) {
        const ts_plan_storage *s = &e->storages[assigned[k].storage];
        if ((uint64_t)s->last + apart < own->first || (uint64_t)own->last + apart < s->first)
            continue;
        int64_t gap = assigned[k].offset - end;
        if (gap >= b->bytes && gap < least) {
            least = gap;
            b->offset = end;
        }
        end = ts_max64(end, assigned[k].offset + assigned[k].bytes);
    }
    b->offset = b->offset < 0 ? end : b->offset;
    uint32_t at = 0;
    while (at < n && assigned[at].offset <= b->offset)
        at++;
    return at;
}

bool ts_exec_assign_offsets(const ts_exec *e, int64_t *offsets, int64_t begin, int64_t *end,
                            uint32_t apart)
{
    size_t bytes = 2 * (e->nstorages + 1) * sizeof(block);
    block *blocks = ts_alloc(ts_thread_self(), bytes);
    if (!blocks)
        return false;
    block *assigned = blocks + e->nstorages + 1;
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->nstorages; i++) {
        int64_t align = e->storages[i].device.backend == TS_KEY_CPU ? 64 : 512;
        if (offsets[i] == TS_OFFSET_WANTED)
            blocks[n++] = (block){.bytes = (e->storages[i].bytes + align - 1) / align * align,
                                  .storage = i};
    }
    qsort(blocks, n, sizeof *blocks, by_size);
    *end = begin;
    for (uint32_t k = 0; k < n; k++) {
        uint32_t at = fit(e, &blocks[k], assigned, k, begin, apart);
        memmove(assigned + at + 1, assigned + at, (k - at) * sizeof *assigned);
        assigned[at] = blocks[k];
        offsets[blocks[k].storage] = blocks[k].offset;
        *end = ts_max64(*end, blocks[k].offset + blocks[k].bytes);
    }
    ts_free(ts_thread_self(), blocks, bytes);
    return true;
}

/** The device whose storages need the most bytes. */
static ts_device largest_device(const ts_exec *e)
{
    ts_device best = TS_DEVICE_CPU;
    int64_t most = -1;
    for (uint32_t i = 0; i < e->nstorages; i++) {
        int64_t bytes = 0;
        bool seen = false;
        for (uint32_t k = 0; k < i && !seen; k++)
            seen = ts_same_device(e->storages[k].device, e->storages[i].device);
        for (uint32_t k = i; k < e->nstorages && !seen; k++)
            if (ts_same_device(e->storages[k].device, e->storages[i].device))
                bytes += ts_needs_memory(&e->storages[k]) ? e->storages[k].bytes : 0;
        if (!seen && bytes > most) {
            most = bytes;
            best = e->storages[i].device;
        }
    }
    return best;
}

bool ts_exec_plan_arena(ts_exec *e)
{
    e->arena_device = largest_device(e);
    for (uint32_t i = 0; i < e->nstorages; i++) {
        const ts_plan_storage *s = &e->storages[i];
        e->offsets[i] =
            ts_needs_memory(s) && !s->held && s->bytes && ts_same_device(s->device, e->arena_device)
                ? TS_OFFSET_WANTED
                : TS_OFFSET_NONE;
    }
    return ts_exec_assign_offsets(e, e->offsets, 0, &e->arena_bytes, 0);
}

/* --------------------------------------------------------------------------------- runs ---- */

static bool poisons;

void ts_arena_poison(bool on) { poisons = on; }

void ts_arenas_from_environment(void)
{
    poisons = ts_variable_choice("TS_DEBUG", "scopes|arena") == 1;
}

ts_storage *ts_arena_begin(ts_run *r)
{
    const ts_exec *e = r->exec;
    bool seen = ts_alloc_system || ts_memory_log_is_on(); /* a memory checker or a memory profile
                                                             must see each storage */
    if (!e->arena_bytes || (seen && !poisons))
        return NULL;
    ts_error before = *r->thread->error;
    ts_storage *arena = ts_storage_new(r->thread, e->arena_device, e->arena_bytes);
    if (!arena) { /* its storages are then allocated one by one */
        *r->thread->error = before;
        return NULL;
    }
    r->arena = arena->data;
    r->offsets = e->offsets;
    r->poison = poisons;
    return arena;
}

ts_status ts_arena_fill(const ts_run *r, uint32_t storage)
{
    ts_storage *s = r->storages[storage];
    if (!r->poison || r->offsets[storage] < 0 || !s)
        return TS_OK;
    ts_tensor base = {.keys = TS_KEYSET(s->device.backend), .storage = s, .data = s->data};
    base.dtype = TS_U8;
    base.device = s->device;
    TS_SCOPE;
    ts_tensor *bytes = ts_scope_adopt(r->thread, ts_tensor_alias(r->thread, &base, &s->bytes,
                                                                 (int64_t[]){1}, 1, 0));
    return TS_STATUS_OF(bytes ? ts_fill_(bytes, 255) : NULL);
}
