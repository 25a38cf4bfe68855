/**
 * @file hooks.h  Functions that lower rooms call and upper rooms install. A room is a top-level
 * folder of the library; docs/architecture.md lists the rooms.
 *
 * Each room's install function sets the members of its room, except profile_ended. init.c calls the
 * install functions before the first use of the library. If one fails, no operators are registered,
 * so no call reaches a NULL member.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CORE_HOOKS_H
#define TS_CORE_HOOKS_H

#include <stdatomic.h>

#include "core/thread.h"

typedef struct ts_storage ts_storage;
typedef struct ts_node ts_node;

typedef struct ts_hooks {
    /** profile/run.c: called when a profile has stopped recording. NULL until the first
     *  ts_prof_start(), which sets it. */
    void (*profile_ended)(void);
    /** dispatch/memory_log.c: adds a storage whose data was just allocated to the profile's log of
     *  memory. */
    void (*storage_allocated)(ts_thread *thread, ts_storage *s);
    /** dispatch/memory_log.c: called before a storage in the log is freed. */
    void (*storage_freed)(ts_storage *s);
    /** dispatch/timers_switch.c: called when a thread that has timers ends, before its heap is
     *  released. */
    void (*thread_ended)(ts_thread *thread);
    /** ops/copy.c: a contiguous tensor of dtype with t's values, owned by the caller;
     *  NULL on failure. */
    ts_tensor *(*convert)(ts_tensor *t, ts_dtype dtype);
    /** ops/copy.c: copies values between tensors of the same sizes, of any dtypes and devices;
     *  counts as a write of op. */
    ts_status (*copy_into)(ts_tensor *destination, ts_tensor *source, uint16_t op);
    /** ops/copy.c: handles a call whose argument `arg` is not on the kernel's device: runs copies
     *  and transfers between devices, and returns TS_ERR_DEVICE for other ops. arg = nargs means a
     *  destination that the caller passed. */
    ts_status (*across)(ts_frame *f, int arg);
    /** autograd/node.c: releases a tensor's node and gradient. */
    void (*release_history)(ts_tensor *t);
    /** compile/lazy.c: runs the recorded calls, which compute t's values. */
    ts_status (*resolve)(ts_tensor *t, const void *site);
    /** compile/notes.c: excludes the calling thread's compiled call from replays, with the reason
     *  `what`. */
    void (*unrepeatable)(const char *what);
    /** compile/lazy.c: number of references to s that the calling thread's recording and all
     *  replays own. */
    int32_t (*holds)(const ts_storage *s);
    /** compile/lazy.c: locks a leaf's node until the calling thread's recording, which adds to the
     *  leaf's gradient, has run. */
    ts_status (*hold_leaf)(ts_node *leaf);
    /** layers/autocast.c: runs body under the autocast state of an earlier call. */
    ts_status (*run_autocast)(uint32_t state, ts_status (*body)(void *ctx), void *ctx);
    /** layers/cast_cache.c: empties the calling thread's cache of casts. */
    void (*clear_cast_cache)(void);
} ts_hooks;

extern ts_hooks ts_above;

/** A replay runs the plan of an earlier compiled call instead of the compiled function
 *  (compile/replay.h). ts_epoch counts changes of state on which replays depend and which they do
 *  not compare: registered kernels and layers, requires_grad and hooks of tensors, modules and
 *  optimizers. */
extern _Atomic uint64_t ts_epoch;
/** Number of replays that hold storages. */
extern _Atomic int32_t ts_replays;
/** Counts a change. Compiled calls that were recorded before it can no longer be replayed. */
TS_INLINE void ts_epoch_ends(void)
{
    atomic_fetch_add_explicit(&ts_epoch, 1, memory_order_relaxed);
}
/** ts_epoch_ends() for a change of a tensor on s, if there are replays and the calling thread's
 *  recording or a replay holds s. */
TS_INLINE void ts_epoch_ends_for(const ts_storage *s)
{
    if (TS_UNLIKELY(atomic_load_explicit(&ts_replays, memory_order_relaxed)) && ts_above.holds(s))
        ts_epoch_ends();
}
/** Excludes the calling thread's compiled call, if there is one, from replays. */
TS_INLINE void ts_mark_unrepeatable(const char *what)
{
    if (TS_UNLIKELY(ts_tls.lazy != NULL))
        ts_above.unrepeatable(what);
}

#endif
