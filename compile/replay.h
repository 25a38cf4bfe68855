/**
 * @file replay.h  Replays: compiled calls that run a plan without running the user's function.
 *
 * While the function runs, notes.c collects facts that the recording does not contain: gradients of
 * leaves, numbers read from the program's memory, reasons that forbid a replay. summary.c combines
 * notes and recording into a ts_repeat: guards, sources of numbers and storages, results. A plan
 * may be replayed after two consecutive calls with equal ts_repeats. A later call whose guards hold
 * then runs the plan and leaves the same state as the function (replay.c).
 */
// SPDX-License-Identifier: MIT
#ifndef TS_COMPILE_REPLAY_H
#define TS_COMPILE_REPLAY_H

#include "autograd/node.h"
#include "compile/cache.h"
#include "core/recorder.h"

/* -------------------------------------------------------------------------------- notes ---- */

/** Layout of a tensor in its storage. Layouts are compared byte by byte. */
typedef struct ts_layout {
    uint8_t dtype, ndim, flags; /* flags: TS_TENSOR_CONTIGUOUS, TS_TENSOR_VIEW */
    int64_t offset;             /* bytes from the start of the storage */
    int64_t sizes[TS_MAX_DIMS], strides[TS_MAX_DIMS]; /* strides in elements; unused entries 0 */
} ts_layout;
/** Sets *l to the layout of t. */
void ts_layout_of(ts_layout *l, const ts_tensor *t);

/** Source of a number of a run. */
typedef enum ts_number_kind {
    TS_NUMBER_FIXED,  /* the same number in each call */
    TS_NUMBER_CELL,   /* *cell, a double (ts_number_from()) */
    TS_NUMBER_COUNT,  /* ++*cell, an int64_t (ts_counts_from()) */
    TS_NUMBER_SEED,   /* seed of the thread's generator */
    TS_NUMBER_OFFSET  /* the generator's offset at the start of the call, plus distance */
} ts_number_kind;

/** Source of one number of a recording, and the argument that has the number. */
typedef struct ts_number_rule {
    uint32_t node;     /* the call */
    uint8_t kind, arg; /* arg: index of the argument; UINT8_MAX: generator state of a random call */
    union {
        void *cell;
        uint64_t distance;
    };
} ts_number_rule;

/** A declared source of a number. It waits for the next call of `op`, which assigns it to a number
 *  of the recording. */
typedef struct ts_cell {
    void *address;
    uint32_t at;       /* index of the assigned number */
    uint16_t op;
    uint8_t arg, kind; /* index of the argument; a ts_number_kind */
    uint32_t member;   /* index in a list argument */
} ts_cell;

/** Memory of the program on which the function's control flow depends (ts_depends_on()). */
typedef struct ts_dependency {
    const void *memory;
    size_t bytes, at; /* at: offset of its contents at declaration, in `copies` */
} ts_dependency;

/** A leaf whose gradient the function reads, adds to, sets or removes; or a variable that
 *  ts_replaces() declares, which owns a tensor. */
typedef struct ts_leaf {
    ts_tensor *leaf;    /* one reference; NULL: a variable */
    ts_tensor **slot;   /* address of the variable; NULL for a leaf */
    ts_tensor *before;  /* gradient or tensor before the call, borrowed; NULL: none */
    ts_storage *memory; /* storage of `before`, or NULL */
    bool alone;         /* a leaf's `before` and its storage had no other owner */
    ts_layout layout;   /* layout of `before` */
} ts_leaf;

/** Notes on the running call of a compiled function. */
typedef struct ts_notes {
    ts_recorder events; /* the thread's recorder while the function runs */
    ts_thread *thread;
    ts_tensor *const *inputs;
    ts_tensor **outputs;
    int ninputs, noutputs;
    ts_rng_state rng;   /* generator state at the start of the call */
    struct ts_replay_modes {
        uint64_t epoch; /* ts_epoch (core/hooks.h) */
        ts_keyset include, exclude;
        uint32_t autocast;
        ts_device device;
        bool no_cast_cache, deterministic;
    } modes;            /* at the start of the call; compared byte by byte */
    uint64_t leaf_runs; /* ts_leaf_runs at the start of the call */
    bool failed;        /* the function failed or memory ran out: the call is not judged */
    char why[240];      /* first reason why the call cannot be replayed; "": none */
    uint32_t last_leaf; /* where the search in `leaves` starts */
    ts_array waiting, cells;       /* ts_cell: not yet assigned; assigned */
    ts_array dependencies, copies; /* ts_dependency, bytes */
    ts_array leaves;               /* ts_leaf */
} ts_notes;

/** Initialises *n for a call, which borrows `inputs` and `outputs`. */
void ts_notes_begin(ts_notes *n, ts_thread *thread, ts_tensor *const *inputs, int ninputs,
                    ts_tensor **outputs, int noutputs);
/** Removes the notes of leaves that only the notes still hold: leaves that the function made and
 *  released. Nothing can read their gradients. */
void ts_notes_forget(ts_notes *n);
/** Frees the arrays of *n and releases the leaves. */
void ts_notes_end(ts_notes *n);
/** Records in n->why that the call cannot be replayed because of `what`, unless an earlier reason
 *  is there. site: call site, or NULL. */
void ts_notes_refuse(ts_notes *n, const char *what, const void *site);
/** ts_notes_refuse() for the compiled call that the calling thread runs; it must run one. Does
 *  nothing if the call's replays are off. */
void ts_notes_unrepeatable(const char *what);
/** Assigns the waiting cells for argument `arg` of f's op to the argument's numbers, which start at
 *  index `first` of the recording. If some cells wait for the argument, but more or fewer than it
 *  has numbers, the call cannot be replayed. */
void ts_notes_bind(ts_lazy *l, const ts_frame *f, int arg, uint32_t first);
/** The thread's modes now, for ts_notes.modes and their guard. */
struct ts_replay_modes ts_replay_modes_now(const ts_thread *thread);

/* ------------------------------------------------------------------------------- replay ---- */

/** Source of a storage of the plan. */
typedef enum ts_origin {
    TS_ORIGIN_PLAN,    /* allocated by the run */
    TS_ORIGIN_FIXED,   /* the same storage in each call */
    TS_ORIGIN_INPUT,   /* the storage of input `at` */
    TS_ORIGIN_GRADIENT /* the storage of leaf `at`'s gradient, or of variable `at`'s tensor */
} ts_origin;

/** A storage that a replay needs. `holders` lists the plan's storages by number, then storages of
 *  gradients and outputs that no call of the plan uses. */
typedef struct ts_holder {
    ts_storage *storage; /* FIXED: one reference */
    uint32_t at;         /* INPUT, GRADIENT: index of the input or leaf */
    uint32_t input;      /* FIXED: index + 1 of an input with this storage; 0: none */
    uint32_t writes;     /* increments of the version per call; for PLAN the version afterwards */
    uint32_t version;    /* FIXED: before the running replay */
    int32_t held;        /* references to the storage that ts_repeats have */
    uint16_t writer;     /* op of the last write */
    uint8_t origin;      /* a ts_origin */
} ts_holder;

/** Properties that an input must have in a replay. */
typedef struct ts_input_guard {
    ts_keyset keys;
    ts_kind kind;
    uint32_t holder; /* index + 1 of its storage in `holders`; 0: the call does not use it */
    ts_layout layout;
} ts_input_guard;

/** Effect of a call on a leaf's gradient or on a variable's tensor. */
typedef enum ts_gradient_kind {
    TS_GRADIENT_KEPT, /* the tensor is not replaced */
    TS_GRADIENT_NONE, /* no gradient afterwards */
    TS_GRADIENT_NEW   /* replaced by a new tensor */
} ts_gradient_kind;

/** Guard and effect for a leaf's gradient or a declared variable. "The tensor" below is that
 *  gradient, or the variable's tensor. */
typedef struct ts_leaf_rule {
    ts_tensor *leaf;  /* one reference; NULL for a variable */
    ts_tensor **slot; /* address of the variable; NULL for a leaf */
    uint32_t input;   /* index + 1 of the input that is the leaf; 0: always `leaf` */
    bool had,         /* guard: there is a tensor before the call */
        alone,        /* guard, if read: the leaf is the tensor's only owner */
        read;         /* calls use the tensor's memory */
    uint8_t after;    /* a ts_gradient_kind */
    int32_t held;     /* references to the leaf that ts_repeats have */
    uint32_t holder;  /* NEW: index of its storage in `holders` */
    ts_layout before, now; /* guard, if read: layout before the call; NEW: layout afterwards */
} ts_leaf_rule;

typedef enum ts_output_kind {
    TS_OUTPUT_NONE,     /* TS_NONE */
    TS_OUTPUT_INPUT,    /* input `at` itself */
    TS_OUTPUT_SAME,     /* the same tensor as output `at` */
    TS_OUTPUT_GRADIENT, /* the new gradient of leaf `at`, or the new tensor of variable `at` */
    TS_OUTPUT_HANDLE,   /* the same tensor in each call */
    TS_OUTPUT_NEW       /* a new tensor on storage `at` of `holders` */
} ts_output_kind;

typedef struct ts_output_rule {
    uint8_t kind;
    uint32_t at;
    ts_tensor *handle; /* HANDLE: one reference */
    int32_t held;      /* references to it that ts_repeats have */
    ts_layout layout;
} ts_output_rule;

/** Summary of a recorded call: guards, sources and results of its replays. */
typedef struct ts_repeat {
    struct ts_replay_modes modes; /* guard: the thread's modes */
    ts_rng_state rng; /* generator state at the start of the summarised call */
    uint64_t drawn;   /* Philox counters that a call takes from the generator */
    int agreed;       /* consecutive equal calls; replays are allowed from 2 on */
    bool refused;     /* the plan is never replayed */
    bool matched;     /* the guards hold for the running call */
    bool busy;        /* a replay is running; other threads run the function meanwhile */
    int64_t since;    /* replays since the function last ran */
    ts_array inputs, holders, leaves, outputs; /* ts_input_guard, ts_holder,
                                                  ts_leaf_rule, ts_output_rule */
    ts_array fixed;     /* void *, sorted: storages of FIXED holders, leaves and handles of outputs,
                           to each of which there is one reference per entry */
    uint64_t counted;   /* number of changes of the list of ts_repeats when `held` was counted */
    ts_array stays,     /* bool per storage of the plan: FIXED */
        varying;        /* uint32_t: the other storages of the recording, in ascending order */
    uint64_t serial;    /* number of these replays in the process; 0: none has run */
    ts_array numbers, rules, /* per number: uint64_t; ts_number_rule */
        sites;               /* per node: call site */
    ts_array predicted;                        /* expected numbers of the next call */
    ts_array dependencies, copies;             /* as in ts_notes */
    ts_array storages;  /* of the running replay: a ts_lazy_storage per storage of the recording */
    ts_array made;      /* of the running replay: per leaf, then per output, the new ts_tensor *, or
                           NULL */
    struct ts_repeat *next, **link;            /* list of all that ts_replay_list() added */
} ts_repeat;

/** Summarises the call that was just recorded, before its plan runs. The caller owns the result.
 *  NULL if the call cannot be replayed; the notes then contain the reason. */
ts_repeat *ts_replay_of(const ts_lazy *l, const ts_exec *e);
/** Frees a summary and releases its references; NULL is allowed. */
void ts_replay_free(ts_repeat *p);
/** Address of the rule's tensor: the gradient of `leaf`, or the variable. NULL if the leaf has no
 *  ts_grad_meta. ts_leaf_tensor() returns the tensor, borrowed, or NULL if there is none. */
TS_INLINE ts_tensor **ts_leaf_slot(const ts_leaf_rule *r, ts_tensor *leaf)
{
    return r->slot ? r->slot : leaf->grad ? &leaf->grad->grad : NULL;
}
TS_INLINE ts_tensor *ts_leaf_tensor(const ts_leaf_rule *r, ts_tensor *leaf)
{
    ts_tensor **slot = ts_leaf_slot(r, leaf);
    return slot && *slot != TS_NONE ? *slot : NULL;
}
/** Write a reason against a replay to `why`. It names the number's argument and call, or the first
 *  call that uses the storage; `what` completes the sentence. */
void ts_replay_refuse_number(char *why, size_t size, const ts_exec *e, const ts_number_rule *r,
                             const void *site, const char *what);
void ts_replay_refuse_storage(char *why, size_t size, const ts_exec *e, const ts_array *sites,
                              uint32_t storage, const char *what);
/** Fills p->stays, p->varying and p->fixed, the last without storages that have no bytes; false if
 *  out of memory. */
bool ts_replay_add_fixed(ts_repeat *p, const ts_exec *e);
/** True if p->fixed contains s. */
bool ts_replay_is_fixed(const ts_repeat *p, const ts_storage *s);
/** True if two calls of one plan are equal. Otherwise *varies is true if later calls will differ
 *  too, and `why` receives the difference. Also sets the origins and outputs of *now that only a
 *  comparison of two calls determines. */
bool ts_replay_agrees(const ts_exec *e, const ts_repeat *before, ts_repeat *now, bool *varies,
                      char *why, size_t size);
/** Writes to `text` why the guards of p fail: the mode of the thread or the property of an input
 *  that differs, with both values, else `why`. now: the modes of the thread. */
void ts_replay_name_miss(const ts_repeat *p, const struct ts_replay_modes *now,
                         ts_tensor *const *inputs, int n, const char *why, char *text,
                         size_t size);
/** Makes fork() hold the lock of the list of ts_replay_list(). */
void ts_replays_install(void);
/** Number of references to s that listed ts_repeats have. */
int32_t ts_replays_hold(const ts_storage *s);
/** Updates the fields `held` of p if ts_repeats were listed or freed. If no other owner than
 *  ts_repeats is left, the program has released the storage or tensor. */
void ts_replay_count_held(ts_repeat *p);
/** Adds p to the list that ts_replays_hold() searches; ts_replay_free() removes it. */
void ts_replay_list(ts_repeat *p);

/** The leaf of a rule in a call with these inputs; NULL for a variable. */
ts_tensor *ts_leaf_of(const ts_leaf_rule *r, ts_tensor *const *inputs);
/** Locks the leaves and checks all guards. Returns NULL, or the reason against a replay, with no
 *  leaf locked. granted: an input that had the same storage in all calls so far must have it
 *  again. */
const char *ts_replay_check(ts_repeat *p, const struct ts_replay_modes *modes,
                            ts_tensor *const *inputs, int n, bool granted);
/** Unlocks the first `count` leaves of p. */
void ts_replay_unlock(const ts_repeat *p, ts_tensor *const *inputs, uint32_t count);
/** Compares `call`, the summary of the recorded call, with the previous call of its plan, and makes
 *  it the plan's summary or frees it. NULL: the call cannot be replayed. Returns
 *  `status`, the call's status; or TS_ERR_STATE if the function was compiled with replay and
 *  fullgraph and the call can have no replay. */
ts_status ts_replay_learn(const ts_lazy *l, ts_exec *e, ts_repeat *call, ts_status status);
/** True if the plan may be replayed when its guards hold. */
bool ts_replay_is_granted(const ts_exec *e);
/** Counts ends of runs that had locked leaves. If a run of another thread ends while a call is
 *  recorded, gradients may differ from those that the guards found. */
extern _Atomic uint64_t ts_leaf_runs;
/** Call it before the function runs. Sets `matched` of the plans whose guards hold for these
 *  inputs, so that ts_replay_learn() detects calls that a replay would have got wrong. */
void ts_replay_expect(ts_compiled *c, ts_tensor *const *inputs, int ninputs);
/** Replays a plan whose guards hold, without running the function, and sets *status. Returns false
 *  if no plan may be replayed now, or if this call must run the function to verify a replay
 *  (ts_compile_opts.verify); the caller then runs the function. */
bool ts_replay_call(ts_compiled *c, ts_tensor *const *inputs, int ninputs, ts_tensor **outputs,
                    int noutputs, ts_status *status);

#endif
