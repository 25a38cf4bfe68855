/** @file thread.h  The per-thread state that several rooms share, in one struct: ts_tls. */
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

/** Bits of ts_thread.state. The state of a new thread is 0. A call takes the fast path if the state
 * equals READY, which is one comparison. */
enum {
    TS_THREAD_READY = 1,     /* ts_thread_init() has run */
    TS_THREAD_TIMING = 2,    /* timers are on, or a profile records */
    TS_THREAD_RECORDING = 4, /* a profile records; only together with TIMING */
    TS_THREAD_DETAIL = 8,    /* the profile times parts of calls; only together with RECORDING */
    TS_THREAD_WATCHING = 16  /* a profile's schedule waits for a step: each call is tested for an
                                update of parameters, which ends a step */
};

/** Deeper nesting of calls is an error (endless recursion). A power of two, so one bit test detects
 * it. */
#define TS_MAX_DEPTH 256

/** The modes of a thread. A scope saves them when it opens and restores them when it ends. */
#define TS_THREAD_MODES                                                                            \
    ts_keyset include, exclude; /* keys that every call adds, and keys that it skips */            \
    ts_recorder *recorder; /* of the running trace or compiled call; NULL: none */                 \
    struct ts_lazy *lazy;  /* recording of the running compiled call; NULL: none */                \
    ts_tape *tape; /* of the running checkpointed function; NULL: nodes save tensors */            \
    struct ts_user_code *user_code; /* hook or function that a backward runs; NULL: none */        \
    ts_autocast_region *region; /* innermost autocast region; NULL: none */                        \
    uint32_t autocast;          /* ts_autocast_state */                                            \
    bool no_cast_cache;         /* the autocast region does not cache casts */                     \
    bool casting;   /* AUTOCAST runs a cast that it inserted, which a trace marks */               \
    uint16_t depth; /* nesting depth of calls */
typedef struct ts_modes {
    TS_THREAD_MODES
} ts_modes;

/** A scope that is open. */
typedef struct ts_block {
    ts_tensor *first; /* list of its temporaries */
    uint64_t serial;  /* serial number of this entry; 0: not open */
    const char *place; /* source location, for reports of unclosed scopes; may be NULL */
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
    _Atomic uint32_t state;        /* other threads write it only to switch timers and profiles */
    ts_block *scope; /* the innermost open scope, an entry of `blocks` */
    ts_heap *heap;
    ts_timers *timers;
    uint64_t seq; /* seq of the newest autograd node that the thread made (autograd/node.h) */
    ts_rng_state rng;
    ts_device device; /* default device of factory functions */
    struct ts_workspace *workspace; /* memory for captured calls (core/device.h), or NULL */
    ts_error *error;
    ts_block *blocks; /* array of open scopes; blocks[0] owns results made outside scopes */
    int64_t capacity; /* size of the array `blocks` in bytes */
    uint64_t serial; /* serial number of the last scope entered */
    ts_block root;
    ts_thread *next, **link; /* list of live threads */
    int id; /* number of the thread, from 0 in the order of first use of the library */
};

extern _Thread_local ts_thread ts_tls __attribute__((tls_model("initial-exec")));

/** Restores the thread's modes at the end of the block, also after an exception. */
TS_INLINE void ts_modes_restore(const ts_modes *modes) { ts_tls.modes = *modes; }
#define TS_KEEP_MODES                                                                              \
    const ts_modes modes_before __attribute__((cleanup(ts_modes_restore), unused)) = ts_tls.modes

/** First use of the library in a thread: creates heap, error record and root scope, and adds the
 *  thread to the list. Never fails: if memory is short, the thread gets its heap at a later
 *  allocation, and shares an error record with other such threads. */
void ts_thread_init(ts_thread *thread);
/** The calling thread's state, ready for use. */
TS_INLINE ts_thread *ts_thread_self(void)
{
    ts_thread *thread = &ts_tls;
    if (TS_UNLIKELY(!atomic_load_explicit(&thread->state, memory_order_relaxed)))
        ts_thread_init(thread);
    return thread;
}
/** Opens the root scope of a thread. */
void ts_blocks_begin(ts_thread *thread);
/** Ends all open scopes of a thread, when it ends. */
void ts_blocks_end(ts_thread *thread);
/** Reads the environment variable TS_DEBUG. */
void ts_scopes_from_environment(void);
/** Frees the headers that TS_DEBUG=scopes keeps from reuse, when the library unloads. */
void ts_scopes_remove(void);
/** Calls visit for each live thread under the list's lock. */
void ts_thread_walk(void (*visit)(ts_thread *thread, void *ctx), void *ctx);
/** Sets and clears bits of the include_all and the state that new threads start with. Running
 *  threads are changed through ts_thread_walk(). */
void ts_thread_defaults(ts_keyset include_set, ts_keyset include_clear, uint32_t state_set,
                        uint32_t state_clear);

#endif
