/** @file thread.h  Everything the library keeps per thread, in one hot struct. */
// SPDX-License-Identifier: MIT
#ifndef TS_CORE_THREAD_H
#define TS_CORE_THREAD_H

#include <stdatomic.h>

#include "core/base.h"
#include "include/tessera/autocast.h"
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
    TS_THREAD_TIMING = 2,
    TS_THREAD_RECORDING = 4 /* a profile gets rows; only beside TIMING */
};

/** Calls nested deeper than this are taken for a recursion without end.
 * A power of two: the depth reaches its bit first. */
#define TS_MAX_DEPTH 256

/** The thread's modes at a scope's begin, which its end restores. */
#define TS_THREAD_MODES                                                                            \
    ts_keyset include, exclude;                                                                    \
    ts_recorder *recorder; /* of a trace that is under way; NULL */                                \
    struct ts_lazy *lazy;  /* of a compiled call that records; NULL */                             \
    ts_tape *tape; /* of the checkpointed function that runs; NULL: nodes save tensors */         \
    struct ts_inside *inside; /* the user's code that a backward is in (autograd/engine.h) */      \
    ts_autocast_region *region; /* the innermost */                                                \
    uint32_t autocast;          /* ts_autocast_state */                                            \
    bool no_cast_cache;         /* of that region */                                               \
    bool casting;   /* the AUTOCAST layer runs a cast of its own; layers below mark it */          \
    uint16_t depth; /* of calls inside calls */
typedef struct ts_modes {
    TS_THREAD_MODES
} ts_modes;

/** A scope that is open. */
typedef struct ts_block {
    ts_tensor *first; /* list of its temporaries */
    uint64_t serial;  /* of this entering; 0: not open */
    const char *place;
    ts_modes modes;
} ts_block;

struct ts_thread {
    union {
        ts_modes modes;
        struct {
            TS_THREAD_MODES
        };
    };
    _Atomic ts_keyset include_all; /* set by ts_layer_enable_all() from any thread */
    _Atomic uint32_t state;        /* written by others only to switch timers */
    ts_block *scope; /* innermost of blocks */
    ts_heap *heap;
    ts_timers *timers;
    uint64_t seq; /* Lamport clock of autograd nodes */
    ts_rng_state rng;
    ts_device device; /* of factories */
    struct ts_workspace *workspace; /* memory for calls that are captured (core/device.h); NULL */
    ts_error *error;
    ts_block *blocks; /* this many; the first holds results made outside of scopes */
    int64_t room;
    uint64_t serial; /* of the scope that was entered last */
    ts_block root;
    ts_thread *next, **link; /* list of live threads */
    int id;
};

extern _Thread_local ts_thread ts_tls __attribute__((tls_model("initial-exec")));

/** Rest of the block may change the thread's modes: its end, however it comes, puts them back. */
TS_INLINE void ts_modes_restore(const ts_modes *modes) { ts_tls.modes = *modes; }
#define TS_KEEP_MODES                                                                              \
    const ts_modes modes_before __attribute__((cleanup(ts_modes_restore), unused)) = ts_tls.modes

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
/** Opens the block of a thread outside scopes; ends all that are open. */
void ts_blocks_begin(ts_thread *thread);
void ts_blocks_end(ts_thread *thread);
void ts_scopes_from_environment(void); /* TS_DEBUG */
void ts_scopes_remove(void);
/** Calls visit for each live thread under the list's lock. */
void ts_thread_walk(void (*visit)(ts_thread *thread, void *ctx), void *ctx);
/** Makes future threads start with these bits; used with a walk over present ones. */
void ts_thread_defaults(ts_keyset include_set, ts_keyset include_clear, uint32_t state_set,
                        uint32_t state_clear);

#endif
