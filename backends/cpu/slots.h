/**
 * @file slots.h
 * Scratch memory for the body of one parallel loop (ts_parallel_for()). A body may not allocate and
 * its stack may be small, so the kernel allocates slots before the loop, one for each call of the
 * body: the loop calls it at most ts_num_threads() times, and at most once per task.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_SLOTS_H
#define TS_BACKENDS_CPU_SLOTS_H

#include "core/parallel.h"
#include "ops/kernel.h"

typedef struct ts_slots {
    char *memory;
    size_t each, bytes; /* bytes of a slot, of all slots */
    atomic_int taken;   /* number of slots taken so far */
} ts_slots;

/**
 * Allocates slots of `bytes` bytes, each aligned to a cache line, for one loop over `tasks` >= 1
 * tasks, and pins the number of threads. Call ts_slots_end() after the loop.
 * @param what  names the memory in the error
 * @return TS_ERR_MEMORY if the allocation fails; nothing is allocated or pinned then
 */
TS_INLINE ts_status ts_slots_begin(ts_frame *f, ts_slots *s, int64_t tasks, int64_t bytes,
                                   const char *what)
{
    ts_threads_pin();
    int64_t threads = ts_min64(ts_min64(ts_num_threads(), TS_PARALLEL_MAX), tasks);
    s->each = ((size_t)bytes + 64) & ~(size_t)63; /* at least 64, even if bytes is 0 */
    s->bytes = (size_t)threads * s->each;
    s->memory = ts_alloc(f->thread, s->bytes);
    atomic_init(&s->taken, 0);
    if (s->memory)
        return TS_OK;
    ts_threads_unpin();
    return ts_error_memory(what, (int64_t)s->bytes);
}
/** Returns an unused slot, whose contents are undefined. Each call of the body takes one slot. */
TS_INLINE void *ts_slot(ts_slots *s)
{
    return s->memory +
           (size_t)atomic_fetch_add_explicit(&s->taken, 1, memory_order_relaxed) * s->each;
}
/** Frees the slots and unpins the number of threads. */
TS_INLINE void ts_slots_end(ts_frame *f, ts_slots *s)
{
    ts_free(f->thread, s->memory, s->bytes);
    ts_threads_unpin();
}

#endif
