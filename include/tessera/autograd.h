/**
 * @file autograd.h
 * Gradients by recording: ops on tensors that require grad leave a node; ts_backward() runs the
 * nodes' rules in reverse. Rules are ordinary ops, so with create_graph they can be differentiated.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_AUTOGRAD_H
#define TESSERA_AUTOGRAD_H

#include "dispatch.h"

TS_BEGIN_DECLS

/** Sets whether a leaf requires grad. t is f64, f32, bf16 or f16. Returns t. */
TS_API ts_tensor *ts_set_requires_grad(ts_tensor *t, bool requires_grad);
TS_API bool ts_requires_grad(const ts_tensor *t);
/** True when no recorded op made t. */
TS_API bool ts_is_leaf(const ts_tensor *t);
/** The accumulated gradient, borrowed; TS_NONE without one. */
TS_API ts_tensor *ts_grad(const ts_tensor *t);
/** Replaces the gradient (same sizes, dtype and device); TS_NONE removes it. A grad that may have a
 *  gradient itself is kept as an alias without one. */
TS_API ts_status ts_set_grad(ts_tensor *t, ts_tensor *grad);
/** Removes the gradient; the next one is stored without a sum. */
TS_API void ts_zero_grad(ts_tensor *t);
/** Keeps the gradient of a tensor that is no leaf. */
TS_API ts_status ts_retain_grad(ts_tensor *t);
/** Alias without history. */
TS_API ts_tensor *ts_detach(ts_tensor *self);

/** Options of ts_backward_ex(); zero is default. */
typedef struct ts_backward_opts {
    size_t size;       /**< sizeof(ts_backward_opts) */
    bool retain_graph; /**< keep saved tensors for another backward */
    bool create_graph; /**< record the backward itself; implies retain_graph */
} ts_backward_opts;

/** Accumulates gradients of `loss` (one element) into the leaves it was made from. */
TS_API ts_status ts_backward(ts_tensor *loss);
/**
 * Backward from a root of any sizes, with options.
 * @param gradient  gradient of the root, of its sizes, dtype and device; TS_NONE: 1, for
 *                  one element
 */
TS_API ts_status ts_backward_ex(ts_tensor *root, ts_tensor *gradient, const ts_backward_opts *opts);
/**
 * Gradients of `output` with respect to `inputs`, returned instead of accumulated.
 * @param gradient  as in ts_backward_ex()
 * @param grads     receives n tensors; TS_NONE where the output does not depend on the input
 */
TS_API ts_status ts_grad_of(ts_tensor *output, ts_tensor *gradient, ts_tensor *const *inputs, int n,
                            ts_tensor **grads, const ts_backward_opts *opts);

/* -------------------------------------------------------------------------------- hooks ---- */

/** A recorded call, or the accumulator of a leaf's gradient. */
typedef struct ts_node ts_node;

/** Runs when t's gradient is complete; returns the gradient to propagate: grad itself, a
 *  replacement, or NULL for an error. */
typedef ts_tensor *(*ts_grad_hook)(void *payload, ts_tensor *grad);
typedef struct ts_hook ts_hook;
/** Adds a hook to a tensor that requires grad. The handle lives until ts_hook_remove() or its
 *  node's end. Hooks may add and remove hooks, drop tensors and run other backwards; a hook added
 *  while its node's hooks run is first called in the next backward. */
TS_API ts_status ts_register_hook(ts_tensor *t, ts_grad_hook fn, void *payload, ts_hook **out);
/** Removes a hook; t is the tensor it was registered on. Called outside of hooks it waits until
 *  no thread is in the hook. */
TS_API void ts_hook_remove(ts_tensor *t, ts_hook *hook);

/**
 * Runs before a node's rule, after the hooks on its tensors.
 * @param grads  gradients of the node's n results, TS_NONE where none arrived;
 *               entries may be replaced (same sizes and dtype),
 *               or taken away with TS_NONE: without any, the rule does not run
 */
typedef ts_status (*ts_node_pre_hook)(void *payload, ts_node *node, ts_tensor **grads, int n);
/**
 * Runs after a node's rule, before the gradients are passed on; for a leaf, after its gradient was
 * accumulated.
 * @param input_grads  the rule's gradients of its n inputs, TS_NONE for none; the hook may replace
 *                     entries (same sizes and dtype) or set them to TS_NONE. n is 0 for a leaf.
 * @param grads        gradients of the m results; for a leaf, its whole gradient
 */
typedef ts_status (*ts_node_post_hook)(void *payload, ts_node *node, ts_tensor **input_grads, int n,
                                       ts_tensor *const *grads, int m);
/** Adds a hook to a node; hooks of a kind run in the order of registration. out may be NULL. */
TS_API ts_status ts_node_hook_before(ts_node *node, ts_node_pre_hook fn, void *payload,
                                     ts_hook **out);
TS_API ts_status ts_node_hook_after(ts_node *node, ts_node_post_hook fn, void *payload,
                                    ts_hook **out);
/** Removes a hook of a node; also from inside a hook. */
TS_API void ts_node_hook_remove(ts_node *node, ts_hook *hook);

/* ---------------------------------------------------------------------- looking at a graph ---- */

/** The node that made t, or a leaf's accumulator. Borrowed: it lives as long as t or a graph that
 *  uses it. NULL, without an error, if t does not require grad. */
TS_API ts_node *ts_grad_node(ts_tensor *t);
/** Name of the node's op or function; "leaf" for a leaf. */
TS_API const char *ts_node_name(const ts_node *node);
/** Number of tensor arguments of the call (members of lists count one each), and of its results. */
TS_API int ts_node_inputs(const ts_node *node);
TS_API int ts_node_outputs(const ts_node *node);
/** The node that made input i and, when output is not NULL, which of its results the input is.
 *  Borrowed; NULL when the input needs no gradient or i is out of range. */
TS_API ts_node *ts_node_next(const ts_node *node, int i, int *output);
/** The leaf of an accumulator, borrowed; NULL for other nodes and if the leaf was freed. */
TS_API ts_tensor *ts_node_leaf(const ts_node *node);
/** Keeps a node, and all nodes below it, alive beyond its tensors until ts_node_release().
 * NULL-safe. */
TS_API ts_node *ts_node_retain(ts_node *node);
TS_API void ts_node_release(ts_node *node);
/** Writes the recorded call with shapes, dtypes and plain arguments: "sum((2, 3) f32, (1), false)".
 *  Returns its length, as snprintf. */
TS_API int ts_node_describe(const ts_node *node, char *buffer, size_t size);

/** Forms of ts_autograd_write(). */
typedef enum ts_autograd_format { TS_AUTOGRAD_TEXT, TS_AUTOGRAD_DOT } ts_autograd_format;
/**
 * Prints the graph that made t, consumers before makers: a line per node with its number,
 * its call and the numbers of the nodes it passes gradients to; or a graph for `dot`.
 * TS_ERR_AUTOGRAD when t does not require grad.
 */
TS_API ts_status ts_autograd_write(ts_tensor *t, FILE *out, ts_autograd_format format);

/* ------------------------------------------------------------------ user-defined functions ---- */

/** One application of a ts_function, as its forward and backward see it. */
typedef struct ts_function_call ts_function_call;

/**
 * A function with a user-defined backward. The struct is copied when it is applied; ctx is passed
 * to its functions.
 *
 * Forward runs without recording and puts m tensors into outputs; results of the function are
 * aliases of them. Backward gets the gradients of the m outputs and puts a gradient of input i's
 * sizes and dtype into input_grads[i] for each input with ts_function_needs(), TS_NONE for zero.
 * It is called only if some gradient arrived. A backward made of ordinary ops can be differentiated
 * again; any other must set `once`.
 */
typedef struct ts_function {
    size_t size;      /**< sizeof(ts_function) */
    const char *name; /**< for errors, lasting as long as any graph */
    ts_status (*forward)(ts_function_call *call, void *ctx, ts_tensor *const *inputs, int n,
                         ts_tensor **outputs, int m);
    ts_status (*backward)(ts_function_call *call, void *ctx, ts_tensor *const *grads, int m,
                          ts_tensor **input_grads, int n);
    /** Optional: frees ctx, once per application, when its graph is freed, or immediately if
     *  nothing was recorded (also after errors). May run in any thread. */
    void (*release)(void *ctx);
    bool none_grads;  /**< backward gets TS_NONE where no gradient arrived, instead of zeros */
    bool once;        /**< backward is not made of ops: differentiating it again is
                           an error */
} ts_function;

/**
 * Applies a function.
 * @param inputs  n tensors; TS_NONE for an absent optional tensor; NULL propagates an earlier
 *                failure
 * @param outputs  receives m tensors (1 to 255), NULL after an error
 *
 * Errors name the function: those of forward, TS_ERR_NULL (an output is missing), TS_ERR_AUTOGRAD
 * (an input was written that is not marked dirty), TS_ERR_VALUE, TS_ERR_MEMORY. In backward: those
 * of backward, TS_ERR_NULL (a gradient is missing), TS_ERR_SHAPE, TS_ERR_DTYPE, TS_ERR_DEVICE.
 */
TS_API ts_status ts_function_apply(const ts_function *fn, void *ctx, ts_tensor *const *inputs,
                                   int n, ts_tensor **outputs, int m);
/** Whether input i needs a gradient; in forward and backward. */
TS_API bool ts_function_needs(const ts_function_call *call, int i);
/**
 * In forward: keeps tensors for backward, inputs and outputs among them; TS_NONE is kept as such.
 * Several calls append. A tensor that is neither input nor output is kept without history: a second
 * derivative treats it as a constant.
 */
TS_API ts_status ts_function_save(ts_function_call *call, ts_tensor *const *tensors, int n);
/** In backward: tensor i of those saved, in the order of saving; borrowed. NULL with an error if it
 *  was written since (TS_ERR_AUTOGRAD) or does not exist (TS_ERR_INDEX). */
TS_API ts_tensor *ts_function_saved_tensor(ts_function_call *call, int i);
/** In forward: output k has no gradient. Integer and bool outputs never have one. */
TS_API ts_status ts_function_mark_constant(ts_function_call *call, int k);
/**
 * In forward, before input i is written in place: it becomes a result and must be one of the
 * outputs. TS_ERR_AUTOGRAD if it is a leaf that requires grad, a view, or shares its memory.
 */
TS_API ts_status ts_function_mark_dirty(ts_function_call *call, int i);

/* -------------------------------------------------------------------------------- anomaly ---- */

/**
 * Switches anomaly mode in all threads. While it is on, each recorded call keeps its C call chain,
 * and a backward checks every gradient that a rule returns: the first NaN or Inf ends it with
 * TS_ERR_AUTOGRAD. This and all other errors of a backward then name the forward call with shapes,
 * dtypes and call site. A step takes several times as long while the mode is on. Names of static
 * functions need a program linked with -rdynamic; otherwise use addr2line with file and offset.
 */
TS_API void ts_anomaly_enable(bool on);
TS_API bool ts_anomaly_enabled(void);

/* ------------------------------------------------------------- activations computed again ---- */

/** A part of a forward pass: m outputs from n inputs and the tensors that ctx reaches. A second run
 *  must compute the same. */
typedef ts_status (*ts_recompute_fn)(void *ctx, ts_tensor *const *inputs, int n,
                                     ts_tensor **outputs, int m);

/** Options of ts_recompute_ex(); zero is default. */
typedef struct ts_recompute_opts {
    size_t size;                /**< sizeof(ts_recompute_opts) */
    void (*release)(void *ctx); /**< frees ctx when the graph is freed, or immediately if nothing
                                     was recorded */
} ts_recompute_opts;

/**
 * Activation checkpointing: runs fn without keeping what backward will read; backward runs fn
 * again, with the same random numbers, masks, autocast state and default device, in the thread
 * of the backward. Memory holds the activations of one part and the inputs of all parts: with n
 * layers in parts of √n, 2√n activations instead of n. Tensors that ctx reaches get their
 * gradients; parts may be nested; hooks, ts_grad_of() and create_graph work as without
 * recomputation.
 *
 * fn and ctx must last as long as the graph. fn must not write to its inputs in place
 * (TS_ERR_AUTOGRAD), nor start a backward through its own ops. The second run is compared with the
 * first: other ops, sizes or dtypes are TS_ERR_STATE in backward. Inputs, and leaves that rules
 * read, that were written in between are TS_ERR_AUTOGRAD, as without recomputation.
 * @param inputs   TS_NONE stands for an absent one, NULL passes a failure on
 * @param outputs  receives m tensors, in the caller's scope; NULL after an error
 */
TS_API ts_status ts_recompute(ts_recompute_fn fn, void *ctx, ts_tensor *const *inputs, int n,
                              ts_tensor **outputs, int m);
TS_API ts_status ts_recompute_ex(ts_recompute_fn fn, void *ctx, ts_tensor *const *inputs, int n,
                                  ts_tensor **outputs, int m, const ts_recompute_opts *opts);

/* ---------------------------------------------------------------------------- grad mode ---- */

/** Grad mode of the calling thread. */
TS_API bool ts_grad_enabled(void);
TS_API ts_mask_guard ts_grad_push(bool enabled);
static inline void ts_grad_pop(ts_mask_guard *guard) { ts_mask_pop(*guard); }
/** The rest of the block runs without recording. */
#define TS_NO_GRAD                                                                                 \
    ts_mask_guard TS_CAT(ts_no_grad_, __LINE__) __attribute__((cleanup(ts_grad_pop), unused)) =    \
        ts_grad_push(false)
/** The rest of the block records, also inside a TS_NO_GRAD block. */
#define TS_ENABLE_GRAD                                                                             \
    ts_mask_guard TS_CAT(ts_with_grad_, __LINE__) __attribute__((cleanup(ts_grad_pop), unused)) =  \
        ts_grad_push(true)

TS_END_DECLS
#endif
