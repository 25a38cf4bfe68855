/**
 * @file compile.h  Common declarations of this room: the recording, and the plan made from it.
 *
 * A recording (lazy.c) is a stream of words that describes the structure of all calls, a list of
 * the numbers that were passed, and the storages that it reads and writes. The stream is the key of
 * a plan (plan.c): the same words are the same plan, run with other numbers and storages (run.c).
 * Fused groups (group.c) run by tiles on the CPU (tile.c), and as one kernel of other devices.
 *
 * Memory, not values, is what calls depend on: a value is a layout over a storage, an in-place call
 * writes its storage, a view is one more layout, and an order of the calls is right if it keeps the
 * order of each two that touch a storage which one of them writes.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_COMPILE_COMPILE_H
#define TS_COMPILE_COMPILE_H

#include "core/device.h"
#include "include/tessera/compile.h"
#include "tracing/graph.h"

/* ----------------------------------------------------------------------------- recording ---- */

/** Tags of the words of a stream; each is the low byte of a record's first word. */
enum ts_word {
    TS_WORD_STORAGE = 1, /* source, device, bytes */
    TS_WORD_VALUE,       /* dtype, ndim, storage; offset; sizes; strides */
    TS_WORD_CALL,        /* op, counts; arguments; results */
    TS_WORD_END          /* which promised storages are held outside */
};

/** A storage of a recording. */
typedef struct ts_lazy_storage {
    ts_storage *storage; /* promised: borrowed, NULL after its last reference; outside: one
                            reference */
    const char *base;    /* promised address; outside: address of the next promised storage */
    uint32_t newest;     /* value, + 1 */
    uint32_t version;    /* of outside: when a call first named it */
    bool outside;
} ts_lazy_storage;

/** A layout over a storage that a call takes or makes. */
typedef struct ts_lazy_value {
    uint32_t before; /* value of the same storage, + 1 */
    uint32_t word;   /* index of its record */
} ts_lazy_value;

/** The recording of a thread. */
typedef struct ts_lazy {
    struct ts_compiled *compiled;
    ts_thread *thread;
    uint64_t serial;
    char *next;         /* promised address */
    ts_array words, numbers, storages, values, sites;
    ts_array table;     /* outside storage -> its index; open addressing */
    uint32_t outside;   /* number of outside storages */
    ts_keyset keys;     /* of all tensors that calls named */
    struct ts_notes *notes; /* for a replay (replay.h); NULL: there will be none */
    const ts_array *ahead;  /* numbers that the next run will probably have; NULL: unknown */
    bool failed;        /* out of memory: the recording is lost */
    bool running;       /* its calls are being run */
} ts_lazy;

/** Runs the recorded calls and starts a new recording. `why` names the break; NULL at the end of a
 *  call. */
ts_status ts_lazy_flush(ts_lazy *l, const char *why, const void *site);
/** Number of a storage of outside in the recording, + 1; 0: no call has named it. */
uint32_t ts_lazy_find(const ts_lazy *l, const ts_storage *s);
/** Begins and ends recording in a thread. */
void ts_lazy_begin(ts_lazy *l, struct ts_compiled *c);
void ts_lazy_end(ts_lazy *l);

/* ---------------------------------------------------------------------------------- plan ---- */

/** A storage in a plan. */
typedef struct ts_plan_storage {
    int64_t bytes;
    ts_device device;
    bool outside; /* existed before the recording */
    bool held;    /* promised, and read after it */
    bool inside;  /* used by one group only: stored in its tiles */
    uint32_t first, last;    /* step; UINT32_MAX: none */
    uint32_t writer, reader; /* last step that wrote (read), + 1; used while steps are made */
} ts_plan_storage;

/** A run of nodes: one call, or a fused group. */
typedef struct ts_step {
    uint32_t first, count; /* in ts_exec.order */
    uint32_t opens, closes; /* ends of this step's storages in the lists of that name */
    bool fused;
    ts_device device;      /* of a group */
    uint8_t ndim;          /* of a group's space */
    int64_t sizes[TS_MAX_DIMS];
    int64_t numel;
} ts_step;

/** The kernel of a group on a device. */
typedef enum ts_kernel_stage { TS_KERNEL_NONE, TS_KERNEL_READY, TS_KERNEL_REFUSED } ts_kernel_stage;
typedef struct ts_group_kernel {
    _Atomic int stage;
    ts_group_report report;
    char why[200]; /* REFUSED */
} ts_group_kernel;

typedef struct ts_exec {
    ts_graph *graph;       /* sources and storages of its values refer to the recording */
    ts_plan_storage *storages;
    ts_step *steps;
    ts_group_kernel *kernels; /* by step */
    uint32_t *order;       /* nodes in the order of steps */
    uint32_t *opens, *closes;       /* storages by their first and last step */
    uint32_t nstorages, nsteps, ngroups, nfused, nnodes;
    int64_t bytes, fused_bytes;
    uint64_t *words;       /* the key */
    uint32_t nwords;
    uint64_t hash, used;   /* used: time of the last run */
    uint32_t runs;         /* runs in progress */
    struct ts_captured *captured; /* capture.c; NULL without */
    struct ts_repeat *replay;     /* replay.h; NULL without */
} ts_exec;

/** The plan of a recorded stream; NULL with an error. */
ts_exec *ts_exec_new(const uint64_t *words, uint32_t nwords, const uint64_t *numbers,
                     int64_t max_groups);
/** Whether a node's call can be part of a fused group of its device: the call is elementwise and,
 *  on the CPU, casts no argument. numbers: the numbers of a run. */
bool ts_group_takes(const ts_graph *g, const ts_graph_node *n, const uint64_t *numbers);
/** Bytes of a value's elements. */
int64_t ts_value_bytes(const ts_graph *g, const ts_graph_value *v);
void ts_exec_free(ts_exec *e);

/* ----------------------------------------------------------------------------------- run ---- */

/** One run of a plan. */
typedef struct ts_run {
    struct ts_compiled *compiled;
    const ts_exec *exec;
    const uint64_t *numbers;
    const void *const *sites;
    ts_storage **storages;  /* per storage; promised storages are allocated when needed */
    ts_tensor **registers;  /* by value */
    ts_tensor **lists;
    ts_thread *thread;
    ts_workspace *workspace;     /* memory for allocations of calls; NULL: the usual allocator */
    char *arena;            /* NULL: promised storages are allocated one by one */
    const int64_t *places;  /* offsets of promised storages in the arena; -1: not in the arena */
} ts_run;

ts_status ts_exec_run(ts_exec *e, ts_lazy *l);
/** All steps, call by call. */
ts_status ts_exec_steps(const ts_run *r);
/** Creates memory and handles of a storage before the first step that uses it. Repeating is
 *  harmless. */
ts_status ts_exec_open(const ts_run *r, uint32_t storage);
/** Releases them after the last step that uses the storage. Repeating is harmless. */
void ts_exec_close(const ts_run *r, uint32_t storage);
/** A step of one call. */
ts_status ts_exec_call(const ts_run *r, uint32_t node);
/** The boxed arguments of a node; its tensors are in the registers. */
void ts_run_unbox(const ts_run *r, const ts_graph_node *n, ts_value *args);
/** Like ts_exec_open() for a storage inside a group, which needs memory if its calls run one by
 *  one. */
ts_status ts_exec_open_inside(const ts_run *r, uint32_t storage);

/** Runs a fused group. */
ts_status ts_group_run(const ts_run *r, const ts_step *s);
/** Runs a fused group on the CPU. */
ts_status ts_tile_run(const ts_run *r, const ts_step *s);
/** A header of value v, without memory. */
void ts_group_header(const ts_graph *g, const ts_graph_value *v, ts_tensor *t);
/** Whether the plan of f, for a result like t, is that of a call of a group. */
bool ts_group_plans(const ts_frame *f, const ts_tensor *t);

/* ------------------------------------------------------------------------------- capture ---- */

/** Runs a plan as the graph of a device, which its third run captures; call by call where that
 *  cannot be. */
ts_status ts_capture_run(ts_run *r, ts_exec *e, ts_lazy *l);
/** Ends a plan's graph. NULL-safe. */
void ts_captured_free(struct ts_captured *captured);
/** One line of text about the state of a plan's graph. */
const char *ts_captured_text(const struct ts_captured *captured, char *text, size_t size);

#endif
