/**
 * @file compile.h  Common declarations of compile/: the recording, and the plan made from it.
 *
 * A recording (lazy.c) has three parts: a stream of words that describes the structure of all
 * calls, a list of the numbers that were passed, and the storages that the calls read and write.
 * The stream is the key of a plan (plan.c): equal streams share a plan, which runs with the numbers
 * and storages of the recording (run.c). Fused groups (group.c) run by tiles on the CPU (tile.c)
 * and as one kernel on other devices.
 *
 * Dependences are between storages, not values. A value is a layout over a storage, an in-place
 * call writes its storage, and a view is another layout. Two calls conflict if both use a storage
 * that at least one of them writes. Calls may be reordered if all conflicting calls keep their
 * order.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_COMPILE_COMPILE_H
#define TS_COMPILE_COMPILE_H

#include "core/device.h"
#include "include/tessera/compile.h"
#include "tracing/graph.h"

#include <stdio.h>

/* ----------------------------------------------------------------------------- recording ---- */

/** Tags of the words of a stream; each is the low byte of a record's first word. */
enum ts_word {
    TS_WORD_STORAGE = 1, /* source, device, bytes */
    TS_WORD_VALUE,       /* dtype, ndim, storage; offset; sizes; strides */
    TS_WORD_CALL,        /* op, counts; arguments; results */
    TS_WORD_END          /* which promised storages are still referenced outside the recording */
};

/** A storage of a recording: promised (made by a recorded call, core/tensor.h), or outside (it
 *  existed before a recorded call used it). */
typedef struct ts_lazy_storage {
    ts_storage *storage; /* promised: borrowed, NULL after its last release; outside: one
                            reference */
    const char *base;    /* promised: its address, a placeholder until the plan runs; outside:
                            address of the next promised storage, which keeps the list sorted by
                            address */
    uint32_t newest;     /* index + 1 of its newest value; 0: none */
    uint32_t version;    /* outside: its version when a recorded call first used it */
    bool outside;
} ts_lazy_storage;

/** A layout over a storage that a call takes or makes. */
typedef struct ts_lazy_value {
    uint32_t before; /* index + 1 of the previous value of the same storage; 0: none */
    uint32_t word;   /* index of its record in the stream */
} ts_lazy_value;

/** The recording of a thread. */
typedef struct ts_lazy {
    struct ts_compiled *compiled;
    ts_thread *thread;
    uint64_t serial;    /* number of the recording, in the ids of its tensors and storages */
    char *next;         /* address of the next promised storage */
    ts_array words, numbers, storages, values, sites; /* words, numbers: uint64_t; storages:
                                                         ts_lazy_storage; values: ts_lazy_value;
                                                         sites: const void *, one per call */
    ts_array table;     /* uint32_t: hash table of outside storages (open addressing); an entry is
                           the storage's index + 1, or 0 if unused */
    uint32_t outside;   /* number of outside storages */
    ts_array leaves;    /* ts_node *: leaves whose gradients the recorded calls add to, locked until
                           these have run; one reference each */
    ts_keyset keys;     /* union of the keys of all tensors in calls */
    struct ts_notes *notes; /* for replays (replay.h); NULL: replays are off */
    const struct ts_repeat *repeat; /* the replay that runs; NULL: the function was recorded */
    const ts_array *ahead;  /* expected numbers of the next run; NULL: unknown */
    uint32_t segment;   /* number of recordings of the call that have ended in a break */
    bool failed;        /* out of memory: the recording is lost */
    bool running;       /* the plan of the recording is running */
} ts_lazy;
/** Number of the recording in its call, starting at 0; later recordings than 63 share the number
 * 63. */
static inline uint32_t ts_lazy_segment(const ts_lazy *l)
{
    return l->segment < 63 ? l->segment : 63;
}

/** Runs the recorded calls, if there are any, and starts a new recording. why: cause of the graph
 *  break; NULL at the end of the compiled function. site: call site of the break, or NULL. Errors:
 *  those of ts_exec_run() and ts_replay_learn(), TS_ERR_MEMORY, and TS_ERR_STATE for a break in a
 *  function compiled with fullgraph; the recording then continues. */
ts_status ts_lazy_flush(ts_lazy *l, const char *why, const void *site);
/** Index + 1 of an outside storage in the recording; 0: no recorded call uses it. */
uint32_t ts_lazy_find(const ts_lazy *l, const ts_storage *s);
/** Initialises an empty recording of the calling thread for a call of c. */
void ts_lazy_begin(ts_lazy *l, struct ts_compiled *c);
/** Frees the recording. Calls that ts_lazy_flush() has not run never run. */
void ts_lazy_end(ts_lazy *l);

/* ---------------------------------------------------------------------------------- plan ---- */

/** A storage in a plan. */
typedef struct ts_plan_storage {
    int64_t bytes; /* 0 if outside */
    ts_device device;
    bool outside; /* existed before the recording */
    bool held;    /* promised, and still referenced after the recording */
    bool inside;  /* used by one group only, which keeps it in registers or tiles */
    bool constant; /* made by constant calls (fold.c); the plan keeps its values between runs */
    uint32_t first, last;    /* first and last step that uses it; UINT32_MAX: none */
    uint32_t writer, reader; /* only while the plan is made: index + 1 of the newest step that
                                writes it, and of the newest step that reads it; 0: none */
} ts_plan_storage;

/** A step of a plan: one call, a fused group of calls, or members that run as one kernel. */
typedef struct ts_step {
    uint32_t first, count; /* its nodes: ts_exec.order[first .. first + count) */
    uint32_t opens, closes; /* ends of this step's ranges in ts_exec.opens and ts_exec.closes; a
                               range begins where the range of the previous step ends */
    bool fused;            /* a group, members, or a product with an epilogue; false: one call */
    bool product;          /* the first call is a product, the others its epilogue (epilogue.c) */
    uint8_t rows;          /* of a group: number of last dims of its iteration space that form a
                              row; 0: pointwise */
    uint8_t inner;         /* ts_group_part.inner of the calls of a group; 0 for a group by rows */
    uint8_t folds, from, fold_dtype; /* ts_group_part.folds, from and dtype of its reductions */
    int64_t saved;         /* bytes that its joins and merges save (join.c); for dumps */
    bool narrow;           /* a group on the CPU whose calls run one by one, because its runs of
                              contiguous elements are short (ts_group_is_narrow()) */
    uint32_t members;      /* number of members, each with the same count / members calls over other
                              tensors (horizontal.c), listed member by member; 0: no members */
    ts_device device;      /* device of a group */
    uint8_t ndim;          /* ndim, sizes, numel: the iteration space of a group. With members, ndim
                              is 0 and numel the sum of their elements */
    int64_t sizes[TS_MAX_DIMS];
    int64_t numel;
} ts_step;

/** State of a group's kernel on a device: not run yet, has run, or the device refused the group. */
typedef enum ts_kernel_stage { TS_KERNEL_NONE, TS_KERNEL_READY, TS_KERNEL_REFUSED } ts_kernel_stage;
/** The kernel of a group on a device. */
typedef struct ts_group_kernel {
    _Atomic int stage;      /* a ts_kernel_stage */
    ts_group_report report; /* of the last change to READY */
    char why[200];          /* reason, if REFUSED */
} ts_group_kernel;

/** A dropped call that equals an earlier one (common.c): numbers of recorded calls, and the op. */
typedef struct ts_merged {
    uint32_t call, first;
    uint16_t op;
} ts_merged;
/** Two of a recording's numbers that a plan takes as equal. */
typedef struct ts_equal_numbers {
    uint32_t a, b;
} ts_equal_numbers;
/** A folded call (fold.c): number of the recorded call, and its op. */
typedef struct ts_folded {
    uint32_t call;
    uint16_t op;
    bool constant; /* it runs once; false: dropped, an argument takes the place of its result */
} ts_folded;
/** A call that takes halves (bf16 or f16 tensors) in place of their f32 copies (widen.c). */
typedef struct ts_widened {
    uint32_t call, members; /* members: number of list members that are halves now */
    uint16_t op;
} ts_widened;
/** A dropped cat (cats.c). */
typedef struct ts_dropped_cat {
    uint32_t call, parts;
    int64_t bytes; /* of its result */
} ts_dropped_cat;
/** A step that moved to lower the peak (order.c). */
typedef struct ts_moved {
    uint32_t node;          /* its first node */
    uint32_t from, to;      /* its position before and after */
    int64_t peak, new_peak; /* of the plan, before and after */
} ts_moved;
/** A number of a recording on whose bits a plan depends. */
typedef struct ts_known_number {
    uint32_t at;
    uint64_t bits;
} ts_known_number;

/** A plan. ts_compiled owns it. */
typedef struct ts_exec {
    ts_graph *graph;       /* sources and storages of its values refer to the recording */
    ts_plan_storage *storages;
    ts_step *steps;
    ts_group_kernel *kernels; /* one per step */
    _Atomic(struct ts_tiles *) *tiles; /* one per step: kept state of groups on the CPU (tile.c) */
    _Atomic(struct ts_emitted *) *code; /* one per step: machine code of groups on the CPU, one for
                                           each choice of recipes (emit.c) */
    uint32_t *order;       /* nodes in the order of steps, without dead ones */
    ts_array merged, equal; /* ts_merged; ts_equal_numbers: the plan serves only recordings in
                               which all these pairs are equal */
    ts_array folded, known; /* ts_folded; ts_known_number: the plan serves only recordings with
                               these numbers */
    ts_array widened, cats, moved; /* ts_widened; ts_dropped_cat; ts_moved; for dumps only */
    _Atomic(struct ts_slots *) slots; /* kept for the next run (handles.c); NULL: the plan has not
                                         run, or a run has taken them */
    _Atomic(struct ts_kept *) kept; /* values of constant calls; NULL: the plan has not run, or has
                                       none (nconstants) */
    uint32_t nconstants;    /* number of constant calls */
    uint32_t *opens, *closes;       /* storages sorted by their first step; by their last step */
    uint32_t nstorages, nsteps, ngroups, nfused, nnodes; /* nfused: nodes in fused steps; nnodes:
                                                            all nodes that are not dead */
    uint32_t nrecorded;    /* number of the recording's storages, which come first in `storages`;
                              recomputed copies follow (rebuild.c) */
    uint32_t nrecomputed;  /* number of recomputed calls */
    int64_t bytes, fused_bytes; /* bytes that the nodes load and store without groups; with them */
    int64_t kept_peak;     /* peak in bytes of the plan without recomputed calls */
    int64_t peak;          /* largest number of bytes of storages in use at a time, of those with
                              ts_needs_memory() (memory.c) */
    uint32_t peak_step;    /* the first step at which the peak is reached */
    int64_t *offsets;      /* per storage: its byte offset in the arena, or TS_OFFSET_NONE */
    int64_t arena_bytes;   /* size of the arena, one block for temporary storages; 0: no arena */
    ts_device arena_device;
    uint64_t *words;       /* the recorded stream, key of the plan */
    uint32_t nwords;
    uint64_t hash, used;   /* hash of words; used: ts_compiled.clock at the last run */
    uint32_t dumped;       /* earlier plans with this hash that wrote files to TS_DUMP */
    uint64_t segments;     /* bit i: it served recordings with ts_lazy_segment() i */
    uint32_t runs;         /* runs in progress */
    bool uncached;         /* in no list of plans: when it was made, the list was full or could not
                              grow, and all plans in it ran */
    bool small;            /* on the CPU, and its calls move, or its groups save, so few bytes that
                              recording the calls takes longer than it saves (small.c) */
    bool tried;            /* on the CPU; trials compare its runs with eager calls. A small plan is
                              tried only if its groups save many bytes */
    uint64_t number;       /* of the plan in its compiled function, starting at 1 */
    int64_t seen;          /* ts_compiled.calls at its last recording */
    int64_t fastest[2], timed; /* of a trial: nanoseconds of its fastest call, eager and recorded;
                                  number of recorded calls */
    uint64_t inputs, next; /* of a trial: hash of the inputs' sizes; number of the plan after it */
    struct ts_captured *captured; /* the device graph (capture.c), or NULL */
    struct ts_repeat *replay;     /* summary for replays (replay.h), or NULL */
} ts_exec;

/** How a plan is made. */
typedef struct ts_plan_options {
    int64_t max_groups; /* limit for fused groups, as in ts_compile_opts */
    bool lowers;        /* the planner may drop and move calls; false: the plan has all recorded
                           calls, in their order */
    bool widens;        /* lists may have halves instead of their f32 copies (widen.c) */
    bool merges;        /* calls that equal earlier calls may be dropped (common.c) */
    bool folds;         /* calls may be folded (fold.c) */
    bool knows;         /* also calls with numbers that are not part of the structure: the plan then
                           serves only recordings with the same numbers */
    bool by_rows;       /* groups may contain norms, softmax and reductions over the last dims
                           (rows.c) */
    int64_t recompute;  /* the planner tries recomputation if the plan's peak exceeds these bytes
                           (recompute.c); INT64_MAX: never */
} ts_plan_options;
/** Makes the plan of a recorded stream. numbers: those of the recording. The plan keeps a copy of
 *  the words. The caller frees it with ts_exec_free(). NULL with TS_ERR_MEMORY. */
ts_exec *ts_exec_new(const uint64_t *words, uint32_t nwords, const uint64_t *numbers,
                     const ts_plan_options *options);
/** True if the numbers of a recording, whose words are those of the plan, have the equal pairs and
 *  the known values on which the plan depends. */
bool ts_exec_serves(const ts_exec *e, const uint64_t *numbers);
/** Whether and how a call can be part of a group. */
typedef struct ts_group_part {
    bool takes;      /* the call can be in a group on its device */
    bool cheap;      /* the call is pointwise or by rows, whether or not its device runs groups */
    uint8_t rows;    /* last dims of the iteration space that form a row, which the call needs as a
                        whole; 0: the call is pointwise */
    uint8_t inner;   /* of a pointwise call on the CPU: the innermost dim in memory + 1; else 0 */
    uint8_t results; /* bit i: no call of the group may use result i, because it is a sum over rows,
                        complete only after the group, or lacks the dims of a row */
    uint8_t folds;   /* number of adjacent dims that a device reduces in the order of its eager
                        kernel. Other calls of the group may then use the result, if they have its
                        sizes; 0: none */
    uint8_t from;    /* the first of these dims */
    uint8_t dtype;   /* of the reduced tensor */
} ts_group_part;
/** Whether and how a node's call can be in a fused group. The call must be pointwise, by rows, a
 *  reduction of all elements (ts_whole_part()) or, on a device with groups, a reduction of adjacent
 *  dims (ts_fold_part()). On the CPU a pointwise call must also need no casts. numbers: the numbers
 *  of a run. */
ts_group_part ts_group_takes(const ts_graph *g, const ts_graph_node *n, const uint64_t *numbers);
/** The frame of a node's call on a device, without arguments, results, plan and call site. */
ts_frame ts_group_frame(const ts_graph_node *n, ts_device device, ts_thread *thread);
/** ts_group_takes() for a call whose shape rule ran and set plan->rows (rows.c). */
ts_group_part ts_rows_part(const ts_frame *f);
/** ts_group_takes() for a call that may reduce all elements of a contiguous tensor, which a group
 *  computes in pieces (ts_fold_share). All dims of the group's space then form one row. */
ts_group_part ts_whole_part(const ts_frame *f);
/** ts_group_takes() for a call on a device that reduces adjacent dims of a contiguous tensor, and
 *  that ts_rows_part() does not take. */
ts_group_part ts_fold_part(const ts_frame *f);
/** True if a value can be in a group with folds over s's space: it is contiguous with the space's
 *  elements, or broadcast to them. */
bool ts_fold_fits(const ts_graph *g, const ts_graph_value *v, const ts_step *s);
/** True if a value of a group with folds over s's space has the sizes of the folds' results, except
 *  for dims of size 1, and is contiguous. */
bool ts_fold_is_result(const ts_graph *g, const ts_graph_value *v, const ts_step *s);
/** True if the group has a reduction of all elements of its space: all its tensors are contiguous,
 *  or have one element. */
static inline bool ts_is_whole(const ts_step *s) { return s->rows && s->rows == s->ndim; }
/** True if a value can be in a group over these sizes whose last `rows` dims form rows: along a row
 *  it is contiguous, or one element broadcast. */
bool ts_rows_fit(const ts_graph *g, const ts_graph_value *v, const int64_t *sizes, int ndim,
                 int rows);
/** True if v has the group's ndim dims and one element per row. */
bool ts_rows_each(const ts_graph *g, const ts_graph_value *v, const int64_t *sizes, int ndim,
                  int rows);
/** Maximum number of tensors (arguments and results) of one call in a group. */
enum { TS_GROUP_TENSORS = 10 };
/** Bytes of a value's elements. */
int64_t ts_value_bytes(const ts_graph *g, const ts_graph_value *v);
/** True if a storage needs memory from its first step to its last: it is made by the plan's calls
 *  and neither inside a group nor constant. */
static inline bool ts_needs_memory(const ts_plan_storage *s)
{
    return !s->outside && !s->inside && !s->constant && s->first != UINT32_MAX;
}
/** Sets e->peak and e->peak_step. */
void ts_exec_find_peak(ts_exec *e);
/** Entries of `offsets` that are not offsets. NONE: the storage is not in the arena. WANTED:
 *  ts_exec_assign_offsets() shall choose an offset. */
enum { TS_OFFSET_NONE = -1, TS_OFFSET_WANTED = -2 };
/** Replaces each TS_OFFSET_WANTED in `offsets` (one entry per storage) by a byte offset >= begin,
 * so that storages in use at the same time get disjoint ranges. *end receives the largest end of
 * the ranges, or `begin` if there are none. apart: number of steps after the last use of a storage
 * for which no other storage gets its range. False if out of memory. */
bool ts_exec_assign_offsets(const ts_exec *e, int64_t *offsets, int64_t begin, int64_t *end,
                            uint32_t apart);
/** Sets e->offsets, e->arena_bytes and e->arena_device, the device on which the plan needs the most
 *  memory. False if out of memory. */
bool ts_exec_plan_arena(ts_exec *e);
/** Frees a plan. It must not be running. */
void ts_exec_free(ts_exec *e);
/** Writes the plan as text to one file per stage, such as plan-HASH.txt (dump.c), in the folder
 *  that the environment variable TS_DUMP names, and sets e->dumped; does nothing if it is unset.
 *  `name` is the function's name, for the first line. Errors are ignored. */
void ts_exec_dump(ts_exec *e, const char *name);
/** Opens the file STAGE-HASHEND for writing in the folder that TS_DUMP names. HASH is that of the
 *  plan, with a number if it is not the first plan of the process with this hash: HASH.2. NULL: the
 *  variable is unset, or an error. The caller closes the file. */
FILE *ts_dump_open(const ts_exec *e, const char *stage, const char *end);

/* ----------------------------------------------------------------------------------- run ---- */

/** A storage's version and the op of its last write. */
typedef struct ts_write_count {
    uint32_t version;
    uint16_t writer;
} ts_write_count;

/** What a run of a plan keeps for the next one (handles.c). */
typedef struct ts_slots {
    uint64_t bound;        /* serial of the replays whose fixed storages are bound; 0: none */
    ts_tensor **registers, **handles, **lists; /* as in ts_run */
    ts_storage **storages;
    ts_write_count *counts; /* per storage: before the run */
} ts_slots;

/** One run of a plan. */
typedef struct ts_run {
    struct ts_compiled *compiled;
    const ts_exec *exec;
    const uint64_t *numbers;
    const void *const *sites;   /* per recorded call; see ts_run_site() */
    ts_storage **storages;  /* per storage; promised storages are allocated when needed */
    ts_tensor **registers;  /* handle of each value; NULL: its storage is not open */
    ts_tensor **handles;    /* handle of each value, open or not; NULL: none yet */
    const bool *fixed;      /* per storage: it stays open for the next replay; NULL: none does */
    ts_tensor **lists;      /* buffer for the lists of one call's arguments */
    ts_thread *thread;
    ts_workspace *workspace;     /* scratch memory for calls; NULL: the device's allocator */
    char *arena;            /* NULL: promised storages are allocated one by one */
    const int64_t *offsets; /* offsets of promised storages in the arena, or TS_OFFSET_NONE */
    bool poison;            /* bytes of the arena are overwritten before and after their use */
    uint32_t *failed;       /* receives the number of the recorded call that failed */
    uint32_t *keeps;        /* receives the step from which on the workspace always had memory that
                               calls have not freed, or UINT32_MAX; NULL: not asked for */
} ts_run;

/** The call site of a node. */
static inline const void *ts_run_site(const ts_run *r, uint32_t node)
{
    return r->sites[ts_graph_node_at(r->exec->graph, node)->end];
}
/** Runs the plan e of the recording l. Versions and writers of storages do not change, because
 *  recording has counted the writes. Errors: TS_ERR_MEMORY, the errors of the calls, and
 *  TS_ERR_UNSUPPORTED if the function was compiled with graph and fullgraph and the plan
 *  cannot be captured. */
ts_status ts_exec_run(ts_exec *e, ts_lazy *l);
/** Runs all steps in order, without a device graph. After an error other than TS_ERR_MEMORY, also
 *  runs the later steps whose calls precede the failed call in the program, because the program
 *  would have made them eagerly. Returns the error of the program's earliest call that fails. */
ts_status ts_exec_steps(const ts_run *r);
/** Makes the values of constant calls (fold.c) available to a run, and computes them if the plan
 *  has not run before. Errors: those of the calls, TS_ERR_MEMORY. */
ts_status ts_constants_open(const ts_run *r);
/** Releases the values of constant calls; NULL is allowed. */
void ts_constants_free(const ts_exec *e, struct ts_kept *kept);
/** Takes what the plan's last run has kept, or makes it; NULL with TS_ERR_MEMORY. */
ts_slots *ts_slots_take(ts_exec *e, ts_thread *thread);
/** Removes storages that replays with another serial have left bound. */
void ts_slots_bind(const ts_exec *e, ts_slots *s, uint64_t serial);
/** Keeps s for the plan's next run; frees s if another run has kept its own. */
void ts_slots_keep(ts_exec *e, ts_slots *s);
/** Frees s; NULL is allowed. */
void ts_slots_free(const ts_exec *e, ts_slots *s);
/** Gives value `number` a handle over its storage in the run; false with TS_ERR_MEMORY. */
bool ts_handle_bind(const ts_run *r, uint32_t number);
/** Removes the storage from the handle of a value, if it is bound. The run still has a reference to
 *  the storage. */
void ts_handle_unbind(const ts_run *r, uint32_t number);
/** After a run, checks the handles of storages that stay open for the next replay; false if some
 *  must be bound again. */
bool ts_handles_stay(const ts_run *r);
/** Binds the handles of a storage's values, and allocates its memory if it has none, before the
 *  first step that uses it. Does nothing if the storage is open or inside a group. Errors:
 *  TS_ERR_MEMORY, and errors of ts_arena_fill(). */
ts_status ts_exec_open(const ts_run *r, uint32_t storage);
/** Unbinds the handles of a storage after the last step that uses it, and releases its memory
 *  unless the storage is outside, held or constant. Does nothing if the storage stays open
 *  (r->fixed); a repeated call does nothing either. */
void ts_exec_close(const ts_run *r, uint32_t storage);
/** Runs the call of a node. */
ts_status ts_exec_call(const ts_run *r, uint32_t node);
/** Writes the boxed arguments of a node to args; tensors are borrowed from the registers. */
void ts_run_unbox(const ts_run *r, const ts_graph_node *n, ts_value *args);
/** Like ts_exec_open() for a storage inside a group, which needs memory if its calls run one by
 *  one. TS_ERR_STATE during a capture, if the arena has no place for it. */
ts_status ts_exec_open_inside(const ts_run *r, uint32_t storage);

/** Allocates the arena of a run that is not a device graph, and sets r->arena, r->offsets and
 *  r->poison. Returns one reference, which the caller releases after the run. NULL, without an
 *  error, if the run allocates its storages one by one: the plan has no arena, memory is short, or
 *  a memory checker or memory profile must see each storage (unless runs poison their arenas). */
ts_storage *ts_arena_begin(ts_run *r);
/** If the run poisons its arena, fills a storage in the arena with the byte 255, which makes
 *  floating elements NaN. Errors: those of ts_fill_(). */
ts_status ts_arena_fill(const ts_run *r, uint32_t storage);
/** Switches poisoning (ts_arena_poison()) on if the environment variable TS_DEBUG is "arena", else
 *  off. */
void ts_arenas_from_environment(void);

/** Runs a step with ts_step.fused: on the CPU in tiles, or call by call if the group is narrow or a
 *  program has replaced its reduction of all elements; elsewhere as one kernel, or call by call if
 *  the device refuses the kernel. Errors: TS_ERR_MEMORY, and errors of the kernel or the calls. */
ts_status ts_group_run(const ts_run *r, const ts_step *s);
/** A run is a row of contiguous elements. Beginning a run takes about as long as one call takes for
 *  this many elements, so a narrow group is one whose length of runs times number of calls is less
 *  (ts_group_is_narrow() has further conditions). */
enum { TS_RUN_WORK = 96 };
/** True if tiles of a group cost more than they save: it is pointwise and has no members, few
 *  calls, short runs of contiguous elements, and tensors that fit the caches. */
bool ts_group_is_narrow(const ts_exec *e, const ts_step *s);
/** Runs a fused group on the CPU. */
ts_status ts_tile_run(const ts_run *r, const ts_step *s);
/** Frees the state that a group keeps between runs; NULL is allowed. */
void ts_tiles_free(struct ts_tiles *tiles);
/** Fills t as a tensor header for value v, without memory. */
void ts_group_header(const ts_graph *g, const ts_graph_value *v, ts_tensor *t);
/** True if a group can run f's call, by its plan: a pointwise call with a result of t's dtype,
 *  computed in a dtype that the kernel accepts. Integer calls that may refuse elements
 *  (TS_OP_CHECKED) and, on the CPU, calls with casts are excluded. */
bool ts_group_plans(const ts_frame *f, const ts_tensor *t);

/* ------------------------------------------------------------------------------- capture ---- */

/** Runs a plan as a device graph, which the third run or a later one captures. Earlier runs, runs
 *  while another thread uses the graph, and plans that cannot be captured run call by call. Errors:
 *  those of ts_exec_run(). */
ts_status ts_capture_run(ts_run *r, ts_exec *e, ts_lazy *l);
/** Frees a plan's device graph; NULL is allowed. */
void ts_captured_free(struct ts_captured *captured);
/** Writes one line about the state of a plan's graph to text, which has `size` bytes. Returns text.
 *  captured may be NULL. */
const char *ts_captured_text(const struct ts_captured *captured, char *text, size_t size);

#endif
