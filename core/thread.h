/** @file thread.h  Everything the library keeps per thread, in one hot struct. */
// SPDX-License-Identifier: MIT
#ifndef TS_CORE_THREAD_H
#define TS_CORE_THREAD_H

#include <stdatomic.h>

#include "core/base.h"
#include "include/tessera/dispatch.h"

typedef struct ts_heap ts_heap;
typedef struct ts_error ts_error;
typedef struct ts_timers ts_timers;
typedef struct ts_recorder ts_recorder; /* core/recorder.h */
typedef struct ts_tape ts_tape;

/** Bits of ts_thread.state. A fresh thread is all zero,
 * so the fast path is one compare with READY. */
enum {
    TS_THREAD_READY = 1,
    TS_THREAD_TIMING = 2
};

/** Calls nested deeper than this are taken for a recursion without end.
 * A power of two: the depth reaches its bit first. */
#define TS_MAX_DEPTH 256

struct ts_thread {
    ts_keyset include, exclude;
    _Atomic ts_keyset include_all; /* set by ts_layer_enable_all() from any thread */
    _Atomic uint32_t state;        /* written by others only to switch timers */
    int32_t depth;
    ts_scope *scope; /* innermost */
    ts_heap *heap;
    ts_timers *timers;
    uint64_t seq; /* Lamport clock of autograd nodes */
    ts_rng_state rng;
    ts_device device; /* of factories */
    bool casting;     /* the AUTOCAST layer runs a cast of its own; layers below mark it */
    uint32_t autocast; /* ts_autocast_state */
    ts_tape *tape; /* of the checkpointed function that runs; NULL: nodes save tensors themselves */
    struct ts_inside *inside; /* the user's code that a backward is in (autograd/engine.h) */
    ts_error *error;
    ts_recorder *recorder; /* of a trace that is under way; NULL */
    ts_scope root;
    ts_thread *next, **link; /* list of live threads */
    int id;
};

extern _Thread_local ts_thread ts_tls __attribute__((tls_model("initial-exec")));

/** First use of the library in a thread: heap, error record, root scope, place in the list. */
void ts_thread_init(ts_thread *thread);
/** The calling thread's state, ready for use. */
TS_INLINE ts_thread *ts_thread_self(void)
{
    ts_thread *thread = &ts_tls;
    if (TS_UNLIKELY(!atomic_load_explicit(&thread->state, memory_order_relaxed)))
        ts_thread_init(thread);
    return thread;
}
/** Calls visit for each live thread under the list's lock. */
void ts_thread_walk(void (*visit)(ts_thread *thread, void *ctx), void *ctx);
/** Makes future threads start with these bits; used with a walk over present ones. */
void ts_thread_defaults(ts_keyset include_set, ts_keyset include_clear, uint32_t state_set,
                        uint32_t state_clear);

#endif
