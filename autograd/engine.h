/** @file engine.h  The backward engine: the state of a run (tasks, pending gradients, captures,
 * user code) and the functions that rules, hooks and walks of the graph share. engine.c explains
 * the order in which nodes run. */
// SPDX-License-Identifier: MIT
#ifndef TS_AUTOGRAD_ENGINE_H
#define TS_AUTOGRAD_ENGINE_H

#include "autograd/node.h"

typedef struct ts_collected ts_collected; /* autograd/recompute.h */

/** A gradient that the run returns to the caller instead of accumulating it in a leaf. */
typedef struct ts_capture {
    ts_node *node; /* borrowed */
    int output;
    ts_tensor *grad; /* owned; NULL while none has arrived */
} ts_capture;

/** Pending gradients of parts of a node's results. When the node runs, the parts of each result are
 *  added into one tensor (pieces.c). */
typedef struct ts_pieces ts_pieces;

/** A node of a run with the gradients that have arrived for its results (owned). */
typedef struct ts_task {
    ts_node *node;
    ts_pieces *pieces; /* owned, or NULL */
    union {
        ts_tensor *few[TS_MAX_RETS];
        ts_tensor **many; /* for a node with more than TS_MAX_RETS results; NULL until the first
                             gradient arrives */
    };
} ts_task;

/** User code that a backward of the thread currently runs: a hook, a ts_function or a checkpointed
 *  part. */
typedef struct ts_user_code {
    struct ts_user_code *outer;
    ts_node *node;
    ts_vjp_call *call; /* the running backward of a ts_function; NULL otherwise */
    struct ts_run *run; /* the backward; NULL for a hook */
} ts_user_code;

/** The state of one backward. Its arrays are on the stack (few_tasks) or, for a larger graph, in
 *  one block of ts_alloc(). */
typedef struct ts_run {
    ts_thread *thread;
    ts_task *tasks;
    uint32_t *heap;               /* indices of waiting tasks, largest seq first; no leaves */
    uint32_t *table;              /* open addressing: node -> task index + 1 */
    uint32_t ntasks, nheap, capacity; /* of tasks and heap; table has twice as many */
    uint32_t nleaves;             /* the leaves among tasks[0..nleaves) have run */
    uint32_t self;                /* this thread's id for ts_node_lock() */
    bool record, retain, anomaly;
    const ts_user_code *around; /* user code of an outer run that started this run; NULL: none */
    ts_capture *captures;
    int ncaptures;
    uint64_t floor;          /* nodes with a smaller seq lead to no capture and are skipped */
    ts_collected *collected; /* tensors recomputed for checkpoints */
    ts_task *now;            /* the running task; NULL between tasks */
    ts_node *root;           /* owned reference */
    void *timer;             /* token of ts_timer_enter(); NULL: timers are off */
    uint32_t scope;          /* scope of the profile around the backward */
} ts_run;

/** The argument of a gradient rule: one call of the rule. */
struct ts_vjp_call {
    ts_run *run;
    ts_node *node;
    ts_tensor *const *grads; /* gradients of the results; NULL if none arrived */
    ts_tensor **given;       /* per input, borrowed from the rule's scope */
};

/**
 * Stores g (borrowed) as a pending gradient of the part `at` of a tensor, which is a result of a
 * task's node. If the pending gradients have more than about twice the tensor's elements, all of
 * them are added to *slot, so time and memory are linear in the gradients and the tensor.
 * @param all   the task's pending gradients
 * @param slot  gradient of the whole result; NULL in *slot: none arrived
 * @param end   the input of another node that is this result; holds the tensor's sizes and its
 *              index among the results
 */
ts_status ts_pieces_add(ts_run *run, ts_pieces **all, ts_tensor **slot, const ts_end *end,
                        ts_tensor *g, const ts_positions *at);
/**
 * Finishes the pending parts of node n's results and frees `all`. If n is a view, the parts become
 * parts of the view's argument where possible: no hook, capture or whole gradient needs them in one
 * tensor, they have no more elements than the result, and their positions in the argument are
 * distinct with constant strides. Other parts are added to `grads`. The gradient of a view of a
 * view therefore costs the size of the inner part only.
 */
ts_status ts_pieces_end(ts_run *run, const ts_node *n, ts_pieces *all, ts_tensor **grads);
void ts_pieces_free(ts_pieces *all);
/** Sends a gradient (borrowed) of a part of a node's input to the node that made the input. Does
 *  nothing if the input needs no gradient in this run. */
ts_status ts_run_send_part(ts_run *run, const ts_end *in, ts_tensor *g, const ts_positions *at);
/**
 * Runs the hooks of one kind: all PRE or POST hooks of n, or the GRAD hooks of result `output`.
 * @param edited  `count` gradients that the hooks may replace. For POST hooks they are a rule's
 *                results (none for a leaf), borrowed from the caller's scope; for other kinds they
 *                are the run's, and each entry owns a reference. An entry is NULL after a PRE or
 *                POST hook removed the gradient
 * @param grads   gradients of the results, for POST hooks; NULL for other kinds
 */
TS_COLD ts_status ts_run_hooks(ts_run *run, ts_node *n, ts_hook_kind kind, int output,
                               ts_tensor **edited, int count, ts_tensor **grads);
/** For each result: runs the GRAD hooks on its gradient, then adds the gradient that they leave to
 *  the one that ts_retain_grad() keeps. */
TS_COLD ts_status ts_run_grad_hooks(ts_run *run, ts_node *n, ts_tensor **grads);

/** Argument `what` of ts_anomaly_check() for the gradients that a rule gave. */
#define TS_GIVEN "the gradient that its backward gave for input"

/**
 * Runs a backward through the graph of `root`. Returns the first error, such as one of a rule, hook
 * or user function; gradients that leaves have received by then stay.
 * @param gradient  gradient of root's result `output`; the run takes over the reference
 * @param record    record the ops of the rules, for double backward
 * @param retain    keep saved tensors, so that the graph can run again
 * @param captures  gradients to return; NULL: accumulate gradients in leaves
 */
ts_status ts_engine_run(ts_node *root, int output, ts_tensor *gradient, bool record, bool retain,
                        ts_capture *captures, int ncaptures);

/**
 * Enter and leave user code in a node's rule. The node is unlocked meanwhile and counts the run in
 * `unlocked_runs`. Other runs may then run the rule, unless this run frees the saved tensors. They
 * are freed only after the last of the counted runs has left its user code.
 */
TS_COLD void ts_user_code_enter(ts_run *run, ts_user_code *in);
TS_COLD void ts_user_code_leave(ts_user_code *in);
/** Calls ts_user_code_enter() now, and ts_user_code_leave() at the end of the block, also if an
 *  exception ends it. */
#define TS_USER_CODE(run, ...)                                                                     \
    ts_user_code user_code_ __attribute__((cleanup(ts_user_code_leave))) = {__VA_ARGS__};          \
    ts_user_code_enter(run, &user_code_)

/** A saved tensor (TS_NONE if it was absent), recomputed if needed; borrowed. NULL with an error:
 *  of the recomputation, or one that names `what` if the tensor was not saved or was written in
 *  place since. */
ts_tensor *ts_saved_read(ts_vjp_call *b, const ts_end *end, const char *what);
/** If the run records, t is floating and maker is not NULL, returns an alias of t whose history is
 *  result `output` of `maker`, owned by the rule's scope, or NULL with an error. Otherwise returns
 *  t, which may be NULL. */
ts_tensor *ts_relink(ts_vjp_call *b, ts_tensor *t, ts_node *maker, int output);

/** The task of a node, made if it has none; a new task is added to the heap unless the node is a
 *  leaf. The indices in run->tasks are in the order of discovery. The pointer is valid until the
 *  next call. NULL with TS_ERR_MEMORY. */
ts_task *ts_run_schedule(ts_run *run, ts_node *node);
/**
 * Calls visit once for root and for each node that visit schedules with ts_run_schedule(); a node
 * comes after all its consumers. number: index of the node's task in walk->tasks; 0 for root. A
 * status other than TS_OK ends the walk and is returned.
 */
ts_status ts_engine_walk(ts_node *root,
                         ts_status (*visit)(ts_run *walk, ts_node *node, uint32_t number,
                                            void *ctx),
                         void *ctx);

/**
 * Break reference cycles: the history of a gradient may have saved the tensor that owns the
 * gradient. Both functions replace such saved tensors by aliases with the same history.
 * ts_break_cycle() searches the graph below `history`. ts_break_cycles() runs after a recorded
 * backward and searches the graph of `root` and the histories of the gradients of its leaves and of
 * tensors with ts_retain_grad().
 */
void ts_break_cycle(ts_node *history);
TS_COLD void ts_break_cycles(const ts_run *run, ts_node *root);

/** TS_ERR_AUTOGRAD if one of the n gradients holds NaN or infinity; the error says "`what` i is
 *  NaN" or "`what` i is Inf" with the gradient's index i. */
TS_COLD ts_status ts_anomaly_check(const ts_node *node, ts_tensor *const *given, int n,
                                   const char *what);
/** Adds the node's forward call to the error on record and returns the error's status. Changes
 *  nothing for a leaf, or if an inner backward has added a forward call. */
TS_COLD ts_status ts_anomaly_explain(const ts_node *node, ts_status status);

#endif
