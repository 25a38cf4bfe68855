/**
 * @file autograd.h
 * Reverse-mode differentiation: each op on a tensor that requires grad records a node, and
 * ts_backward() runs the gradient rules of the nodes in reverse order. Rules call ordinary ops, so
 * with create_graph gradients can be differentiated again.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_AUTOGRAD_H
#define TESSERA_AUTOGRAD_H

#include "dispatch.h"

TS_BEGIN_DECLS

/** Sets whether t requires grad; a gradient that t has stays. Returns t. NULL with TS_ERR_DTYPE if
 *  `requires_grad` is true and t is not f64, f32, bf16 or f16; with TS_ERR_AUTOGRAD if it is false
 *  and t is not a leaf; with TS_ERR_NULL or TS_ERR_STATE (released). */
TS_API ts_tensor *ts_set_requires_grad(ts_tensor *t, bool requires_grad);
/** True if t requires grad: a leaf by ts_set_requires_grad(), or the result of a recorded op. */
TS_API bool ts_requires_grad(const ts_tensor *t);
/** True if t is not the result of a recorded op; false for NULL. */
TS_API bool ts_is_leaf(const ts_tensor *t);
/** The accumulated gradient, borrowed until a call replaces or removes it or t is freed; TS_NONE if
 *  there is none. NULL, with an error, if t is NULL. */
TS_API ts_tensor *ts_grad(const ts_tensor *t);
/** Replaces the gradient; TS_NONE removes it. grad has t's sizes, dtype and device. t keeps a
 *  reference to grad, or to an alias of grad if grad can have a gradient of its own. Errors:
 *  TS_ERR_SHAPE (sizes or dtype), TS_ERR_DEVICE, TS_ERR_NULL, TS_ERR_MEMORY. */
TS_API ts_status ts_set_grad(ts_tensor *t, ts_tensor *grad);
/** Removes the gradient; the next backward stores its gradient without an addition. NULL-safe. */
TS_API void ts_zero_grad(ts_tensor *t);
/** Makes backward accumulate a gradient in a tensor t that is not a leaf; no effect on a leaf that
 *  requires grad. Errors: TS_ERR_AUTOGRAD if t does not require grad, TS_ERR_NULL, TS_ERR_STATE
 *  (released), TS_ERR_MEMORY. */
TS_API ts_status ts_retain_grad(ts_tensor *t);
/** Alias of self that does not require grad and has no node. */
TS_API ts_tensor *ts_detach(ts_tensor *self);

/** Options of ts_backward_ex(); zero is default. */
typedef struct ts_backward_opts {
    size_t size;       /**< sizeof(ts_backward_opts) */
    bool retain_graph; /**< keep saved tensors for another backward */
    bool create_graph; /**< record the backward itself; implies retain_graph */
} ts_backward_opts;

/** Computes the gradients of `loss` (one element) and adds them to ts_grad() of the leaves on which
 *  it depends. Frees the saved tensors. Errors: TS_ERR_AUTOGRAD (loss does not require grad; a
 *  saved tensor was written, or an earlier backward freed it; an op has no gradient rule),
 *  TS_ERR_SHAPE (not one element), TS_ERR_NULL, TS_ERR_STATE (released), TS_ERR_MEMORY, and those
 *  of rules and hooks. After an error, the gradients of leaves may be incomplete and saved tensors
 *  freed. */
TS_API ts_status ts_backward(ts_tensor *loss);
/**
 * Backward from a root of any sizes, with options.
 * @param gradient  gradient of the root, with the root's sizes, dtype and device; TS_NONE means 1
 *                  and is allowed only if the root has one element
 * Errors: those of ts_backward(), TS_ERR_SHAPE (sizes or dtype of gradient), TS_ERR_DEVICE,
 * TS_ERR_VALUE (opts).
 */
TS_API ts_status ts_backward_ex(ts_tensor *root, ts_tensor *gradient, const ts_backward_opts *opts);
/**
 * Returns the gradients of `output` with respect to `inputs`, and leaves ts_grad() of leaves
 * unchanged. As in ts_backward(), tensors marked by ts_retain_grad() accumulate their gradients if
 * the run reaches them.
 * @param gradient  as in ts_backward_ex()
 * @param inputs    n tensors that require grad, leaves or not; n <= 256
 * @param grads     receives n tensors in the caller's scope; TS_NONE for an input on which the
 *                  output does not depend. Not valid after an error
 * Errors: those of ts_backward_ex(), TS_ERR_AUTOGRAD (an input does not require grad), TS_ERR_VALUE
 * (n).
 */
TS_API ts_status ts_grad_of(ts_tensor *output, ts_tensor *gradient, ts_tensor *const *inputs, int n,
                            ts_tensor **grads, const ts_backward_opts *opts);

/* -------------------------------------------------------------------------------- hooks ---- */

/** A recorded call, or the accumulator of a leaf's gradient. */
typedef struct ts_node ts_node;

/** Called in the thread of the backward when the gradient of a tensor is complete. Autograd records
 *  the hook's op calls only with create_graph. Returns the gradient to propagate: a tensor with
 *  grad's sizes, dtype and device (else TS_ERR_SHAPE, TS_ERR_DEVICE), or TS_NONE for grad itself.
 *  NULL ends the backward with the recorded error, or TS_ERR_NULL. */
typedef ts_tensor *(*ts_grad_hook)(void *payload, ts_tensor *grad);
/** Handle of a hook of a tensor or a node, with which the program removes the hook. */
typedef struct ts_hook ts_hook;
/** Adds a hook to a tensor that requires grad; fn gets payload. The handle *out (out may be NULL)
 *  is valid until ts_hook_remove(), or until t's node is freed. Hooks may add and remove hooks,
 *  drop tensors and run other backwards. A hook that is added while hooks of the same tensor run is
 *  first called in the next backward. Errors: TS_ERR_AUTOGRAD (t does not require grad),
 *  TS_ERR_NULL, TS_ERR_STATE (released), TS_ERR_MEMORY. */
TS_API ts_status ts_register_hook(ts_tensor *t, ts_grad_hook fn, void *payload, ts_hook **out);
/** Removes a hook of t; does nothing if t or hook is NULL or t's node has no such hook. Waits until
 *  no thread runs the hook, except if called inside a function that a backward calls. */
TS_API void ts_hook_remove(ts_tensor *t, ts_hook *hook);

/**
 * Called before a node's gradient rule and after the hooks of the node's result tensors; for a
 * leaf, before its gradient is accumulated.
 * @param grads  gradients of the node's n results, TS_NONE where none arrived. The hook may replace
 *               entries (same sizes, dtype and device) or set them to TS_NONE; if all are TS_NONE,
 *               the rule or the accumulation does not run
 * @return TS_OK, or an error, which ends the backward
 */
typedef ts_status (*ts_node_pre_hook)(void *payload, ts_node *node, ts_tensor **grads, int n);
/**
 * Called after a node's rule, before the gradients are propagated; for a leaf, after its gradient
 * was accumulated.
 * @param input_grads  gradients of the node's n inputs that the rule returned, TS_NONE for none.
 *                     The hook may replace entries (same sizes, dtype and device) or set them to
 *                     TS_NONE. n is 0 for a leaf
 * @param grads        gradients of the node's m results; for a leaf, its accumulated gradient
 * @return TS_OK, or an error, which ends the backward
 */
typedef ts_status (*ts_node_post_hook)(void *payload, ts_node *node, ts_tensor **input_grads, int n,
                                       ts_tensor *const *grads, int m);
/** Both add a hook to a node; fn gets payload. Hooks of one kind run in the order of registration.
 *  out receives the handle for ts_node_hook_remove() and may be NULL. Errors: TS_ERR_NULL,
 *  TS_ERR_MEMORY. */
TS_API ts_status ts_node_hook_before(ts_node *node, ts_node_pre_hook fn, void *payload,
                                     ts_hook **out);
TS_API ts_status ts_node_hook_after(ts_node *node, ts_node_post_hook fn, void *payload,
                                    ts_hook **out);
/** Removes a hook of a node, and waits, as ts_hook_remove(). NULL-safe. */
TS_API void ts_node_hook_remove(ts_node *node, ts_hook *hook);

/* ---------------------------------------------------------------------- looking at a graph ---- */

/** The node of the call that returned t, or the accumulator of a leaf. Borrowed: valid while t or a
 *  graph that uses it exists. NULL, without an error, if t is NULL or does not require grad; NULL
 *  with TS_ERR_MEMORY. */
TS_API ts_node *ts_grad_node(ts_tensor *t);
/** Name of the node's op or function; "leaf" for a leaf, "?" for NULL. */
TS_API const char *ts_node_name(const ts_node *node);
/** Number of tensor arguments of the node's call; each member of a list counts. */
TS_API int ts_node_inputs(const ts_node *node);
/** Number of results of the node's call. */
TS_API int ts_node_outputs(const ts_node *node);
/** The node of the call that returned input i, or the accumulator of a leaf; borrowed. *output (if
 *  output is not NULL) receives the index of the input among that node's results. NULL if the input
 *  needs no gradient or i is out of range. */
TS_API ts_node *ts_node_next(const ts_node *node, int i, int *output);
/** The leaf of an accumulator, borrowed; NULL for other nodes and if the leaf was freed. */
TS_API ts_tensor *ts_node_leaf(const ts_node *node);
/** Adds a reference to a node. It keeps alive the node and all nodes that ts_node_next() reaches
 *  from it. Returns the node. NULL-safe. */
TS_API ts_node *ts_node_retain(ts_node *node);
/** Releases a reference of ts_node_retain(). NULL-safe. */
TS_API void ts_node_release(ts_node *node);
/** Writes the recorded call as text, tensors as shapes and dtypes: "sum((2, 3) f32, (1), false)".
 *  Returns the length of the whole text, as snprintf. */
TS_API int ts_node_describe(const ts_node *node, char *buffer, size_t size);

/** Formats of ts_autograd_write(): text, or the language of Graphviz. */
typedef enum ts_autograd_format { TS_AUTOGRAD_TEXT, TS_AUTOGRAD_DOT } ts_autograd_format;
/**
 * Prints the graph of nodes from t backwards. In text, each line has a node's number, its call and
 * the numbers of the nodes that receive its gradients. Errors: TS_ERR_AUTOGRAD if t does not
 * require grad, TS_ERR_NULL, TS_ERR_VALUE (format), TS_ERR_IO, TS_ERR_MEMORY.
 */
TS_API ts_status ts_autograd_write(ts_tensor *t, FILE *out, ts_autograd_format format);

/* ------------------------------------------------------------------ user-defined functions ---- */

/** One application of a ts_function, passed to its forward and backward. */
typedef struct ts_function_call ts_function_call;

/**
 * A function with a user-defined backward. ts_function_apply() copies the struct and passes ctx to
 * its functions.
 *
 * Forward runs without recording and writes m tensors to outputs; ts_function_apply() returns
 * aliases of them, or an input itself if forward marked it dirty. Backward receives the gradients
 * of the m outputs, TS_NONE for outputs that do not require grad. For each input with
 * ts_function_needs(), it writes the gradient, with the input's sizes and dtype, to input_grads[i];
 * TS_NONE means zero. The engine calls backward only if at least one gradient arrived. If backward
 * does not consist of ordinary ops, which can be differentiated again, set `once`.
 */
typedef struct ts_function {
    size_t size;      /**< sizeof(ts_function) */
    const char *name; /**< for errors; must outlive all graphs with the function */
    ts_status (*forward)(ts_function_call *call, void *ctx, ts_tensor *const *inputs, int n,
                         ts_tensor **outputs, int m);
    ts_status (*backward)(ts_function_call *call, void *ctx, ts_tensor *const *grads, int m,
                          ts_tensor **input_grads, int n);
    /** Optional: frees ctx. Called once per application: when the graph with the application is
     *  freed, or immediately if nothing was recorded, also after errors, except that of an invalid
     *  `size`. May run in any thread. */
    void (*release)(void *ctx);
    bool none_grads;  /**< backward gets TS_NONE where no gradient arrived, instead of zeros */
    bool once;        /**< backward cannot be differentiated; doing so is an error */
} ts_function;

/**
 * Applies a function.
 * @param inputs  n tensors; TS_NONE for an absent optional tensor; NULL propagates an earlier
 *                failure
 * @param outputs  receives m tensors (1 to 255), NULL after an error
 *
 * Errors name the function: those of forward, TS_ERR_NULL (a field of fn, an input or an output is
 * missing), TS_ERR_AUTOGRAD (forward wrote an input without marking it dirty, did not return a
 * dirty input exactly once, or marked it constant), TS_ERR_STATE (a released tensor, or a scope
 * that forward did not leave), TS_ERR_VALUE (fn->size, n, m), TS_ERR_MEMORY. ts_backward() returns
 * those of the function's backward, TS_ERR_NULL (a gradient is missing), TS_ERR_SHAPE,
 * TS_ERR_DTYPE, TS_ERR_DEVICE, TS_ERR_STATE (a released gradient, or a scope that backward did not
 * leave).
 */
TS_API ts_status ts_function_apply(const ts_function *fn, void *ctx, ts_tensor *const *inputs,
                                   int n, ts_tensor **outputs, int m);
/** True if input i needs a gradient. For forward and backward. */
TS_API bool ts_function_needs(const ts_function_call *call, int i);
/**
 * For forward: saves n tensors (inputs, outputs, others or TS_NONE) for backward. Further calls
 * append. A tensor that is neither input nor output is saved without history, so a second
 * derivative treats it as a constant. Outside of forward, this function and both
 * ts_function_mark_ functions return TS_ERR_STATE. Further errors: TS_ERR_VALUE (n), TS_ERR_NULL,
 * TS_ERR_MEMORY.
 */
TS_API ts_status ts_function_save(ts_function_call *call, ts_tensor *const *tensors, int n);
/** For backward: saved tensor i in the order of saving, borrowed; TS_NONE if that was saved. NULL
 *  with TS_ERR_AUTOGRAD if the tensor was written after saving, with TS_ERR_INDEX if there is no
 *  tensor i or no backward of this application runs, or with an error of ts_recompute(). */
TS_API ts_tensor *ts_function_saved_tensor(ts_function_call *call, int i);
/** For forward: declares that output k does not require grad. Integer and bool outputs never do.
 *  TS_ERR_INDEX if there is no output k. */
TS_API ts_status ts_function_mark_constant(ts_function_call *call, int k);
/**
 * For forward: declares that it will write input i in place; call this function before the write.
 * The input must then be one of the outputs. TS_ERR_AUTOGRAD if the application is recorded and the
 * input is a leaf that requires grad, is a view, or shares its memory with another live tensor;
 * TS_ERR_INDEX if input i is TS_NONE or does not exist.
 */
TS_API ts_status ts_function_mark_dirty(ts_function_call *call, int i);

/* -------------------------------------------------------------------------------- anomaly ---- */

/**
 * Switches anomaly mode in all threads. While the mode is on, each recorded call keeps its C call
 * chain, and a backward checks the gradient that it starts with and every gradient that a rule
 * returns: the first NaN or Inf ends the backward with TS_ERR_AUTOGRAD. Errors of a recorded call's
 * rule and hooks then name the forward call with shapes, dtypes and call chain. Values of META
 * tensors are not checked. A step takes several times as long while the mode is on. The program's
 * functions appear by name if they are not static and the program is linked with -rdynamic; others
 * appear as file and offset, for addr2line.
 */
TS_API void ts_anomaly_enable(bool on);
/** True while anomaly mode is on. */
TS_API bool ts_anomaly_enabled(void);

/* --------------------------------------------------------------- activation checkpointing ---- */

/** A part of a forward pass: computes m outputs from n inputs and from tensors that ctx refers to.
 *  Each run must call the same ops. */
typedef ts_status (*ts_recompute_fn)(void *ctx, ts_tensor *const *inputs, int n,
                                     ts_tensor **outputs, int m);

/** Options of ts_recompute_ex(); zero is default. */
typedef struct ts_recompute_opts {
    size_t size;                /**< sizeof(ts_recompute_opts) */
    void (*release)(void *ctx); /**< frees ctx when the graph is freed, or immediately if nothing
                                     was recorded, also after errors, except that of an invalid
                                     `size`; NULL: nothing to free */
} ts_recompute_opts;

/**
 * Activation checkpointing: runs fn without saving tensors for backward. Backward runs fn again, in
 * the thread of the backward, with the first run's random numbers, key masks, autocast state and
 * default device. During backward, memory holds the activations of one part and the inputs of all
 * parts: for n layers in √n parts of √n layers, 2√n activations instead of n. Tensors that fn reads
 * through ctx get gradients too. Parts may be nested; hooks, ts_grad_of() and create_graph work as
 * without recomputation.
 *
 * fn and ctx must be valid until the graph is freed. fn must not write to its inputs in place
 * (TS_ERR_AUTOGRAD) or start a backward through its own ops. Backward returns TS_ERR_STATE if the
 * second run calls other ops or has other sizes or dtypes, and TS_ERR_AUTOGRAD if an input, or a
 * leaf that a rule reads, was written between the runs; while the graph lives, recorded writes to
 * inputs are refused.
 * @param inputs   n tensors; TS_NONE for an absent one; NULL returns the recorded failure
 * @param outputs  receives m >= 1 tensors in the caller's scope; NULL after an error
 * Errors: those of fn, TS_ERR_NULL, TS_ERR_VALUE (n, m), TS_ERR_STATE (a released tensor, or a
 * scope that fn did not leave), TS_ERR_MEMORY.
 */
TS_API ts_status ts_recompute(ts_recompute_fn fn, void *ctx, ts_tensor *const *inputs, int n,
                              ts_tensor **outputs, int m);
/** Like ts_recompute(), with options. */
TS_API ts_status ts_recompute_ex(ts_recompute_fn fn, void *ctx, ts_tensor *const *inputs, int n,
                                  ts_tensor **outputs, int m, const ts_recompute_opts *opts);

/* ---------------------------------------------------------------------------- grad mode ---- */

/** Grad mode of the calling thread: true if calls on tensors that require grad are recorded. */
TS_API bool ts_grad_enabled(void);
/** Sets the grad mode of the calling thread. Returns the state to restore with ts_grad_pop(). */
TS_API ts_mask_guard ts_grad_push(bool enabled);
/** Restores the state that ts_grad_push() returned. */
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
