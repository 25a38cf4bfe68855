/**
 * @file replay.h  Compiled calls without their function: what a call depends on, what it leaves.
 *
 * While the function runs, notes.c writes down what the recording does not say: gradients of
 * leaves, numbers that come from the program's memory, what forbids a replay. summary.c makes a
 * ts_repeat of notes and recording: guards, where numbers and storages come from, results. Two
 * equal ones in a row grant the replay of a plan (replay.c): later calls whose guards hold run the
 * plan without the function, and leave the state that the function would have left.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_COMPILE_REPLAY_H
#define TS_COMPILE_REPLAY_H

#include "autograd/node.h"
#include "compile/cache.h"
#include "core/recorder.h"

/* -------------------------------------------------------------------------------- notes ---- */

/** A tensor without its memory. */
typedef struct ts_layout {
    uint8_t dtype, ndim, flags;
    int64_t place; /* bytes from the storage's begin */
    int64_t sizes[TS_MAX_DIMS], strides[TS_MAX_DIMS];
} ts_layout;
void ts_layout_of(ts_layout *l, const ts_tensor *t);

/** Where a number of a run comes from. */
typedef enum ts_number_kind {
    TS_NUMBER_FIXED,  /* the same in each call */
    TS_NUMBER_CELL,   /* *cell, a double */
    TS_NUMBER_COUNT,  /* ++*cell, an int64_t */
    TS_NUMBER_SEED,   /* of the thread's generator */
    TS_NUMBER_OFFSET  /* so far from the generator's at the begin of the call */
} ts_number_kind;

typedef struct ts_number_rule {
    uint32_t node;
    uint8_t kind, arg; /* arg: UINT8_MAX for the state of a random call */
    union {
        void *cell;
        uint64_t distance;
    };
} ts_number_rule;

/** A declared source of numbers: waits for a call, then belongs to number `at`. */
typedef struct ts_cell {
    void *address;
    uint32_t at;
    uint16_t op;
    uint8_t arg, kind;
    uint32_t member; /* of a list */
} ts_cell;

/** Memory of the program that decides what the function calls. */
typedef struct ts_dependency {
    const void *memory;
    size_t bytes, at; /* at: of the copy */
} ts_dependency;

/** A leaf whose gradient the function reads, adds to, sets or removes, or a declared variable that
 *  owns a tensor. */
typedef struct ts_leaf {
    ts_tensor *leaf;    /* one reference; NULL: a variable */
    ts_tensor **slot;   /* the variable */
    ts_tensor *before;  /* the tensor there at the begin, borrowed; NULL: none */
    ts_storage *memory; /* of that */
    bool alone;         /* nobody else held it */
    ts_layout layout;
} ts_leaf;

typedef struct ts_notes {
    ts_recorder events; /* the thread's, while the function runs */
    ts_thread *thread;
    ts_tensor *const *inputs;
    ts_tensor **outputs;
    int ninputs, noutputs;
    ts_rng_state rng;   /* at the begin; so are modes */
    struct ts_replay_modes {
        uint64_t epoch;
        ts_keyset include, exclude;
        uint32_t autocast;
        ts_device device;
        bool no_cast_cache, deterministic;
    } modes;
    bool failed;        /* the function, or the notes for want of memory: the call shows nothing */
    char why[240];      /* there is no replay; "" */
    uint32_t last_leaf;
    ts_array waiting, cells;       /* ts_cell */
    ts_array dependencies, copies; /* ts_dependency, bytes */
    ts_array leaves;               /* ts_leaf */
} ts_notes;

void ts_notes_begin(ts_notes *n, ts_thread *thread, ts_tensor *const *inputs, int ninputs,
                    ts_tensor **outputs, int noutputs);
void ts_notes_end(ts_notes *n);
/** The first reason why there is no replay of the call; site may be NULL. */
void ts_notes_refuse(ts_notes *n, const char *what, const void *site);
void ts_notes_unrepeatable(const char *what);
/** Gives the numbers of argument `arg` of a call, from `first` on, to cells that wait for it. */
void ts_notes_bind(ts_lazy *l, const ts_frame *f, int arg, uint32_t first);
struct ts_replay_modes ts_replay_modes_now(const ts_thread *thread);

/* ------------------------------------------------------------------------------- replay ---- */

/** Whose a storage of the plan is. */
typedef enum ts_origin {
    TS_ORIGIN_PLAN,    /* made by the run */
    TS_ORIGIN_FIXED,   /* this one in each call */
    TS_ORIGIN_INPUT,   /* of input `at` */
    TS_ORIGIN_GRADIENT /* of the gradient of leaf `at` */
} ts_origin;

typedef struct ts_holder {
    ts_storage *storage; /* FIXED: one reference */
    uint32_t at;
    uint32_t input;      /* FIXED: the input that it was of, + 1 */
    uint8_t origin;
    uint16_t writer;
    uint32_t writes;     /* of outside: how many a call makes; of the plan: the version */
} ts_holder;

typedef struct ts_input_guard {
    ts_keyset keys;
    ts_kind kind;
    uint32_t holder; /* + 1; 0: its memory is not touched */
    ts_layout layout;
} ts_input_guard;

typedef enum ts_gradient_kind {
    TS_GRADIENT_KEPT, /* the tensor stays */
    TS_GRADIENT_NONE,
    TS_GRADIENT_NEW
} ts_gradient_kind;

typedef struct ts_leaf_rule {
    ts_tensor *leaf;  /* one reference; NULL: */
    ts_tensor **slot; /* the variable */
    uint32_t input;  /* + 1: the leaf is this input; 0: it is `leaf` in each call */
    bool had, alone, read; /* a gradient at the begin; read: its memory is touched */
    uint8_t after;         /* a ts_gradient_kind */
    uint32_t holder;       /* NEW */
    ts_layout before, now;
} ts_leaf_rule;

typedef enum ts_output_kind {
    TS_OUTPUT_NONE,
    TS_OUTPUT_INPUT,    /* input `at` itself */
    TS_OUTPUT_SAME,     /* as output `at` */
    TS_OUTPUT_GRADIENT, /* of leaf `at`, a new one */
    TS_OUTPUT_HANDLE,   /* this tensor in each call */
    TS_OUTPUT_NEW       /* a layout over holder `at` */
} ts_output_kind;

typedef struct ts_output_rule {
    uint8_t kind;
    uint32_t at;
    ts_tensor *handle; /* HANDLE: one reference */
    ts_layout layout;
} ts_output_rule;

typedef struct ts_repeat {
    struct ts_replay_modes modes;
    ts_rng_state rng; /* seed and offset at the begin of the call that this is made of */
    uint64_t drawn;
    int agreed;       /* equal calls; 2 grant the replay */
    bool refused;     /* for good */
    bool matched;     /* its guards hold for the call that runs now */
    bool busy;        /* one run at a time; others run the function */
    int64_t since;    /* replays since the function ran */
    ts_array inputs, holders, leaves, outputs; /* of the structs above */
    ts_array fixed;                            /* ts_storage *, sorted */
    ts_array numbers, rules, sites;            /* by number; by node */
    ts_array predicted;                        /* numbers of the next call, where cells say so */
    ts_array dependencies, copies;
    ts_array storages;                         /* ts_lazy_storage of a run */
    ts_array made;                             /* ts_tensor * of a run: gradients, then outputs */
    struct ts_repeat *next, **link;            /* among all that hold storages */
} ts_repeat;

/** Summarises the call that has just been recorded, before its plan runs; NULL if it cannot be
 *  replayed, and notes say why. */
ts_repeat *ts_replay_of(const ts_lazy *l, const ts_exec *e);
void ts_replay_free(ts_repeat *p);
/** The tensor of a rule: the gradient of its leaf, or that of its variable; NULL: none. */
TS_INLINE ts_tensor **ts_leaf_slot(const ts_leaf_rule *r, ts_tensor *leaf)
{
    return r->slot ? r->slot : leaf->grad ? &leaf->grad->grad : NULL;
}
TS_INLINE ts_tensor *ts_leaf_tensor(const ts_leaf_rule *r, ts_tensor *leaf)
{
    ts_tensor **slot = ts_leaf_slot(r, leaf);
    return slot && *slot != TS_NONE ? *slot : NULL;
}
/** Says why there is no replay: of which call a number is; which call first touches a storage. */
void ts_replay_refuse_number(char *why, size_t size, const ts_exec *e, const ts_number_rule *r,
                             const void *site, const char *what);
void ts_replay_refuse_storage(char *why, size_t size, const ts_exec *e, const ts_array *sites,
                              uint32_t storage, const char *what);
/** Lists the storages that are FIXED; false without memory. */
bool ts_replay_add_fixed(ts_repeat *p);
/** Whether a storage is the same in each call. */
bool ts_replay_is_fixed(const ts_repeat *p, const ts_storage *s);
/** Whether two calls of one plan do the same. *varies: if not, a third would not either. */
bool ts_replay_agrees(const ts_exec *e, const ts_repeat *before, ts_repeat *now, bool *varies,
                      char *why, size_t size);
/** How many replays hold a storage, and the list of those that do. */
int32_t ts_replays_hold(const ts_storage *s);
void ts_replay_list(ts_repeat *p);

/** Compares a recorded call with earlier ones. Takes over `call`, which may be NULL. Returns the
 *  status, or TS_ERR_STATE where fullgraph asks for replays and the call can have none. */
ts_status ts_replay_learn(const ts_lazy *l, ts_exec *e, ts_repeat *call, ts_status status);
bool ts_replay_is_granted(const ts_exec *e);
/** Marks the plans whose guards hold, before a function runs. */
void ts_replay_expect(ts_compiled *c, ts_tensor *const *inputs, int ninputs);
/** Runs a call without its function if that was granted; false: nothing has happened. */
bool ts_replay_call(ts_compiled *c, ts_tensor *const *inputs, int ninputs, ts_tensor **outputs,
                    int noutputs, ts_status *status);

#endif
