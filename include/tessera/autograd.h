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

/** Makes a leaf ask for gradients (or not). Floating dtypes only. Returns t. */
TS_API ts_tensor *ts_set_requires_grad(ts_tensor *t, bool requires_grad);
TS_API bool ts_requires_grad(const ts_tensor *t);
/** True when no recorded op made t. */
TS_API bool ts_is_leaf(const ts_tensor *t);
/** The accumulated gradient, borrowed; TS_NONE when there is none. */
TS_API ts_tensor *ts_grad(const ts_tensor *t);
/** Replaces the gradient (same sizes and dtype); TS_NONE removes it. */
TS_API ts_status ts_set_grad(ts_tensor *t, ts_tensor *grad);
/** Removes the gradient, so that the next one is taken without a sum. */
TS_API void ts_zero_grad(ts_tensor *t);
/** Keeps the gradient of a tensor that is no leaf. */
TS_API ts_status ts_retain_grad(ts_tensor *t);
/** Alias without history. */
TS_API ts_tensor *ts_detach(ts_tensor *t);

/** Options of ts_backward_ex(); zero is default. */
typedef struct ts_backward_opts {
    size_t size;          /**< sizeof(ts_backward_opts) */
    ts_tensor *gradient;  /**< gradient of the root, its sizes; NULL: one, for a single element */
    bool retain_graph;    /**< keep saved tensors for another backward */
    bool create_graph;    /**< record the backward itself; implies retain_graph */
} ts_backward_opts;

/** Accumulates gradients of `loss` (one element) into the leaves it was made from. */
TS_API ts_status ts_backward(ts_tensor *loss);
TS_API ts_status ts_backward_ex(ts_tensor *root, const ts_backward_opts *opts);
/**
 * Gradients of `output` with respect to `inputs`, returned instead of accumulated.
 * @param grads  receives n tensors; TS_NONE where the output does not depend on the input
 */
TS_API ts_status ts_grad_of(ts_tensor *output, ts_tensor *const *inputs, int n, ts_tensor **grads,
                            const ts_backward_opts *opts);

/** Runs when t's gradient is complete; returns the gradient to go on with (grad itself, a
 *  replacement, or NULL for an error). */
typedef ts_tensor *(*ts_grad_hook)(void *payload, ts_tensor *grad);
typedef struct ts_hook ts_hook;
/** Adds a hook to a tensor that requires grad. The handle lives until ts_hook_remove() or its node's end. */
TS_API ts_status ts_register_hook(ts_tensor *t, ts_grad_hook fn, void *payload, ts_hook **out);
/** Removes a hook; t is the tensor it was registered on. */
TS_API void ts_hook_remove(ts_tensor *t, ts_hook *hook);

/** Grad mode of the calling thread. */
TS_API bool ts_grad_enabled(void);
TS_API ts_mask_guard ts_grad_push(bool enabled);
static inline void ts_grad_pop(ts_mask_guard *guard) { ts_mask_pop(*guard); }
/** Rest of the block runs without recording. */
#define TS_NO_GRAD                                                                          \
    ts_mask_guard TS_CAT(ts_no_grad_, __LINE__) __attribute__((cleanup(ts_grad_pop), unused)) = ts_grad_push(false)
/** Rest of the block records, inside a TS_NO_GRAD block too. */
#define TS_ENABLE_GRAD                                                                      \
    ts_mask_guard TS_CAT(ts_with_grad_, __LINE__) __attribute__((cleanup(ts_grad_pop), unused)) = ts_grad_push(true)

TS_END_DECLS
#endif
