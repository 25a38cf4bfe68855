/** @file engine.h  The backward engine. */
// SPDX-License-Identifier: MIT
#ifndef TS_AUTOGRAD_ENGINE_H
#define TS_AUTOGRAD_ENGINE_H

#include "autograd/node.h"

typedef struct ts_collected ts_collected; /* autograd/recompute.h */

/** A gradient to hand out instead of accumulating it. */
typedef struct ts_capture {
    ts_node *node; /* borrowed */
    int output;
    ts_tensor *grad; /* owned; NULL while none has arrived */
} ts_capture;

/** Gradients of parts of a node's results, which wait to be written together. */
typedef struct ts_pieces ts_pieces;

/** A node of a run with the gradients that have arrived for its results (owned). */
typedef struct ts_task {
    ts_node *node;
    ts_pieces *pieces; /* owned, or NULL */
    union {
        ts_tensor *few[TS_MAX_RETS];
        ts_tensor **many; /* for a node with several results; NULL until the first gradient
                             arrives */
    };
} ts_task;

/** Code of the user that a backward of the thread is in: a hook, a function or a part. */
typedef struct ts_inside {
    struct ts_inside *outer;
    ts_node *node;
    ts_vjp_call *call; /* of a function; else NULL */
    struct ts_run *run;
} ts_inside;

/** One backward. Arrays come from the thread's free lists. */
typedef struct ts_run {
    ts_thread *thread;
    ts_task *tasks;
    uint32_t *heap;               /* indices of waiting tasks, largest seq first; no leaves */
    uint32_t *table;              /* open addressing: node -> task index + 1 */
    uint32_t ntasks, nheap, room; /* room: of tasks and heap; table has 2 * room */
    uint32_t nleaves;             /* leaves among the tasks below this index have run */
    uint32_t self;                /* of ts_node_lock() */
    bool record, retain, anomaly;
    const ts_inside *around; /* the user's code that started the run */
    ts_capture *captures;
    int ncaptures;
    uint64_t floor;          /* seq below which nothing is captured */
    ts_collected *collected; /* tensors recomputed for checkpoints */
    ts_task *now;            /* the task that runs; NULL between two */
    ts_node *root;           /* retained */
    void *timer;
    uint32_t scope; /* of the profile, around all nodes */
} ts_run;

/** The argument of a rule. */
struct ts_vjp_call {
    ts_run *run;
    ts_node *node;
    ts_tensor *const *grads; /* gradients of the results; NULL if none arrived */
    ts_tensor **given;       /* per input, borrowed from the rule's scope */
};

/**
 * Keeps g, borrowed, for a part of the tensor at the input `end` of a node that has run. All that
 * waits for the tensor is written to *slot when it exceeds the tensor, so time and memory
 * are linear in the gradients and the tensor.
 */
ts_status ts_pieces_add(ts_run *run, ts_pieces **all, ts_tensor **slot, const ts_end *end,
                        ts_tensor *g, const ts_places *at);
/**
 * Finishes the pending parts of node n's results: passes them on as parts of a view's argument, or
 * adds them to `grads`. A view of a view therefore costs its own size, not the size of the view
 * between.
 */
ts_status ts_pieces_end(ts_run *run, const ts_node *n, ts_pieces *all, ts_tensor **grads);
void ts_pieces_free(ts_pieces *all);
/** Sends a gradient (borrowed) of a part of a node's input to the input's maker. */
ts_status ts_run_send_part(ts_run *run, const ts_end *in, ts_tensor *g, const ts_places *at);
/** The verdict of ts_anomaly_check() on the gradients of a rule. */
#define TS_GIVEN "the gradient that its backward gave for input"

/**
 * Runs the graph below `root` with the gradient of its result `output`,
 * whose reference it takes over. record: record the rules' ops; retain: keep saved tensors;
 * captures: NULL accumulates into leaves.
 */
ts_status ts_engine_run(ts_node *root, int output, ts_tensor *gradient, bool record, bool retain,
                        ts_capture *captures, int ncaptures);

/**
 * Enclose user code in a node's rule. Other runs may enter the node meanwhile; its saved tensors
 * stay until the last guest has run the rule.
 */
TS_COLD void ts_inside_enter(ts_run *run, ts_inside *in);
TS_COLD void ts_inside_leave(ts_inside *in);
/** User code runs in the rest of the block. The end of the block, also by an exception, leaves. */
#define TS_INSIDE(run, ...)                                                                        \
    ts_inside inside_ __attribute__((cleanup(ts_inside_leave))) = {__VA_ARGS__};                   \
    ts_inside_enter(run, &inside_)

/** A saved tensor, recomputed if needed. NULL with an error that names `what` if the tensor was not
 *  saved or was written in place since. */
ts_tensor *ts_saved_read(ts_vjp_call *b, const ts_end *end, const char *what);
/** When the rule is recorded: t with its history, result `output` of maker,
 * in the rule's scope; else t. */
ts_tensor *ts_relink(ts_vjp_call *b, ts_tensor *t, ts_node *maker, int output);

/** The task of a node; a new task is added to the heap. Its index in run->tasks is the order of
 *  discovery. NULL with an error. */
ts_task *ts_run_schedule(ts_run *run, ts_node *node);
/**
 * Visits root and each node that visit schedules, once, consumers before makers; anything but TS_OK
 * ends the walk.
 */
ts_status ts_engine_walk(ts_node *root,
                         ts_status (*visit)(ts_run *walk, ts_node *node, uint32_t number,
                                            void *ctx),
                         void *ctx);

/**
 * The history of a gradient may have saved the tensor that owns the gradient, which is a reference
 * cycle. This function replaces the saved tensors by aliases with the same node in the graph: below
 * `history`, and behind a recorded run in its graph and in the histories of the gradients that its
 * leaves, and tensors of ts_retain_grad(), have now.
 */
void ts_break_cycle(ts_node *history);
TS_COLD void ts_break_cycles(const ts_run *run, ts_node *root);

/** Checks the gradients of a rule or of the start of a backward; an error if one is not finite. */
TS_COLD ts_status ts_anomaly_check(const ts_node *node, ts_tensor *const *given, int n,
                                   const char *what);
/** Adds the node's forward call to the error on record. */
TS_COLD ts_status ts_anomaly_explain(const ts_node *node, ts_status status);

#endif
