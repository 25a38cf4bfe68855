/**
 * @file module.h
 * Modules: named parameters, buffers and children with a forward function.
 *
 * A user-defined module is a struct for its members and a ts_module_type for its functions:
 *
 *     typedef struct block { ts_module *norm, *mlp; ts_tensor *scale; } block;
 *     static ts_tensor *block_forward(ts_module *m, ts_tensor *x)   // (B, T, C) -> (B, T, C)
 *     {
 *         block *b = ts_module_payload(m);
 *         return ts_add(x, ts_mul(ts_forward(b->mlp, ts_forward(b->norm, x)), b->scale));
 *     }
 *     static const ts_module_type block_type = {sizeof(ts_module_type), "Block", sizeof(block),
 *                                               block_forward};
 *
 *     ts_module *m = ts_module_new(&block_type);
 *     block *b = ts_module_payload(m);
 *     if (ts_module_add(m, "norm", ts_layer_norm_new(C, 0, true), &b->norm) != TS_OK || ...) {
 *         ts_module_free(m);
 *         return NULL;
 *     }
 *
 * A parent owns its children. Modules hold references to tensors, so two modules may share a
 * parameter (tied weights). The payload is the module's own struct. A `slot` is a field of the
 * payload that receives a borrowed pointer to the member; ts_module_to() updates it when it
 * replaces the tensor. Only one thread at a time may use a module. A constructor that fails returns
 * NULL and frees everything that it made.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_NN_MODULE_H
#define TESSERA_NN_MODULE_H

#include <stdio.h>

#include "../core.h"

TS_BEGIN_DECLS

/** One module of a model. */
typedef struct ts_module ts_module;

/** A kind of module. The struct must live at least as long as the modules of this type. */
typedef struct ts_module_type {
    size_t size;         /**< sizeof(ts_module_type) */
    const char *name;    /**< "Linear", for messages; 1 to 511 printable ASCII characters without
                              blanks */
    size_t payload;      /**< bytes of the module's own struct, which starts zeroed; 0: none */
    /** Computes the module's result, in the caller's scope; returns NULL on failure. May be NULL:
     *  ts_forward() then calls the function set by ts_module_set_forward_list(). */
    ts_tensor *(*forward)(ts_module *m, ts_tensor *x);
    void (*free)(void *payload); /**< optional: frees what the payload owns besides the module's
                                      members; not called without a payload */
} ts_module_type;

/** Makes a module without members, in training mode. Owned by the caller; NULL with TS_ERR_NULL,
 *  TS_ERR_VALUE or TS_ERR_MEMORY. */
TS_API ts_module *ts_module_new(const ts_module_type *type);
/** Frees a module, with its children, and releases its tensors. Does nothing if the module has a
 *  parent. NULL-safe. */
TS_API void ts_module_free(ts_module *m);
/** The module's own struct, 64-byte aligned; NULL if m is NULL or has none. */
TS_API void *ts_module_payload(const ts_module *m);
/** The type that ts_module_new() was called with, borrowed; NULL if m is NULL. */
TS_API const ts_module_type *ts_module_type_of(const ts_module *m);

/**
 * Adds a parameter: keeps a reference to t and makes t require grad.
 * @param name  1 to 511 printable ASCII characters without blanks and '.', unique in the module and
 *              not "__metadata__"
 * @param t     a leaf of dtype f64, f32, bf16 or f16. NULL returns the recorded failure; TS_NONE
 *              adds nothing, and *slot becomes TS_NONE
 * @param slot  receives t; may be NULL
 * Errors: TS_ERR_NULL, TS_ERR_STATE (released), TS_ERR_VALUE (name), TS_ERR_AUTOGRAD (not a leaf),
 * TS_ERR_DTYPE, TS_ERR_MEMORY.
 */
TS_API ts_status ts_module_add_parameter(ts_module *m, const char *name, ts_tensor *t,
                                         ts_tensor **slot);
/** Like ts_module_add_parameter(), for a tensor of any dtype that is not a parameter: it need not
 *  be a leaf, and requires_grad stays as it is.
 *  @param persistent  whether the state dict contains it */
TS_API ts_status ts_module_add_buffer(ts_module *m, const char *name, ts_tensor *t, bool persistent,
                                      ts_tensor **slot);
/**
 * Adds a child and takes ownership of it. The function frees the child if it fails, so a
 * constructor can be called in the argument list. Exception: a child that already has a parent, is
 * `m`, or contains `m` (TS_ERR_VALUE) is not freed. A NULL child returns the recorded failure.
 * @param name, slot  as in ts_module_add_parameter()
 * Errors: TS_ERR_NULL, TS_ERR_VALUE (name, child), TS_ERR_MEMORY.
 */
TS_API ts_status ts_module_add(ts_module *m, const char *name, ts_module *child, ts_module **slot);

/**
 * Runs the module's forward between its hooks; the result is in the caller's scope. An error's
 * message names the innermost module by its path ("blocks.3.attn.qkv"). A profile has a scope with
 * the module's name for the calls of forward and of their backward. Errors: those of forward and
 * the hooks (TS_ERR_NULL if one returns NULL without an error), TS_ERR_UNSUPPORTED if the module
 * has no forward function, TS_ERR_STATE if the module runs inside itself more than 256 deep,
 * TS_ERR_NULL.
 */
TS_API ts_tensor *ts_forward(ts_module *m, ts_tensor *x);
/** Forward function of n inputs, such as queries and keys. Returns a tensor in the caller's scope,
 *  or NULL on failure. */
typedef ts_tensor *(*ts_forward_list_fn)(ts_module *m, ts_tensor *const *inputs, int n);
/** Sets the function that ts_forward_list() calls. ts_forward() calls it, with n = 1, if the type
 *  has no forward. TS_ERR_NULL if m or forward is NULL. */
TS_API ts_status ts_module_set_forward_list(ts_module *m, ts_forward_list_fn forward);
/** ts_forward() for n tensors, 1 to 16. With n = 1 and a type that has a forward, calls that
 *  forward; otherwise calls the function set by ts_module_set_forward_list(). Errors: those of
 *  ts_forward(), TS_ERR_VALUE (n) and TS_ERR_NULL. */
TS_API ts_tensor *ts_forward_list(ts_module *m, ts_tensor *const *inputs, int n);

/** Functions around a module's forward; each may be NULL. */
typedef struct ts_forward_hook {
    size_t size; /**< sizeof(ts_forward_hook) */
    /** Returns the module's first input: x, or another tensor in the caller's scope; NULL on
     *  failure. */
    ts_tensor *(*before)(void *payload, ts_module *m, ts_tensor *x);
    /** Returns the module's result: y, or another tensor in the caller's scope; NULL on failure.
     *  x: the first input, as the functions before the forward left it. */
    ts_tensor *(*after)(void *payload, ts_module *m, ts_tensor *x, ts_tensor *y);
    void *payload;                  /**< passed to the functions */
    void (*release)(void *payload); /**< called when the hook is removed or the module freed */
    /** Like `before`, for all n inputs, of which it may replace any; runs after `before`. */
    ts_status (*before_list)(void *payload, ts_module *m, ts_tensor **inputs, int n);
    /** Like `after`, with all n inputs; runs after `after`. */
    ts_tensor *(*after_list)(void *payload, ts_module *m, ts_tensor *const *inputs, int n,
                             ts_tensor *y);
} ts_forward_hook;
/**
 * Adds a hook. Hooks run in the order in which they were added.
 * @param hook  copied
 * @param id    receives the number for ts_module_remove_forward_hook(), which no other hook of the
 *              module gets, also later; may be NULL
 * Errors: TS_ERR_NULL, TS_ERR_VALUE (size), TS_ERR_MEMORY, TS_ERR_STATE while the module runs.
 */
TS_API ts_status ts_module_add_forward_hook(ts_module *m, const ts_forward_hook *hook, int64_t *id);
/** Removes a hook. TS_ERR_INDEX if the module has no hook with this id, TS_ERR_STATE while the
 *  module runs, TS_ERR_NULL. */
TS_API ts_status ts_module_remove_forward_hook(ts_module *m, int64_t id);

/**
 * Runs a forward pass of x without recording gradients and prints a line for each module: its path,
 * type, the sizes of its last result ("-" if the pass did not run it by ts_forward()), the number
 * of its own parameters, and the FLOPs of its calls and those of its children. Work of ops without
 * a cost is not counted.
 * Errors: those of the pass, TS_ERR_NULL, TS_ERR_STATE while a module of the tree runs, TS_ERR_IO,
 * TS_ERR_MEMORY.
 */
TS_API ts_status ts_module_summary(ts_module *m, ts_tensor *x, FILE *out);

/** Sets training mode, in which dropout is active, or evaluation mode, for m and all its
 *  descendants. NULL-safe. */
TS_API void ts_module_train(ts_module *m, bool train);
/** True in training mode; false for NULL. */
TS_API bool ts_module_training(const ts_module *m);
/** Sets whether the parameters of m and its descendants require grad. Errors: those of
 *  ts_module_each(). */
TS_API ts_status ts_module_set_requires_grad(ts_module *m, bool requires_grad);
/** Removes the gradients of all parameters and buffers. NULL-safe. */
TS_API void ts_module_zero_grad(ts_module *m);
/** Number of elements of all parameters; a shared parameter counts once. -1 with an error of
 *  ts_module_parameters(). */
TS_API int64_t ts_module_num_parameters(const ts_module *m);
/**
 * Converts the parameters and buffers of other floating dtypes to the floating dtype `dtype`. A
 * converted tensor is a new one without a gradient, and its slot is updated. Create optimizers
 * afterwards, because they hold the old tensors. Errors: TS_ERR_DTYPE (not floating), TS_ERR_MEMORY
 * and those of ts_module_each() and ts_to(); nothing changes then.
 */
TS_API ts_status ts_module_to(ts_module *m, ts_dtype dtype);
/**
 * Stores parameters and buffers of 4 or 5 dims, such as weights of convolutions, with dim 1
 * innermost in memory, as PyTorch's to(memory_format=torch.channels_last). Convolutions of
 * channels-last images then use the weights without a copy. A replaced tensor loses its gradient,
 * and its slot is updated; create optimizers afterwards. Errors: those of ts_module_each() and
 * TS_ERR_MEMORY; nothing changes then.
 */
TS_API ts_status ts_module_to_channels_last(ts_module *m);

/* --------------------------------------------------------------------- walking a module ---- */

/** Number of direct children. */
TS_API int ts_module_num_children(const ts_module *m);
/** Direct child by index, borrowed; NULL when out of range. */
TS_API ts_module *ts_module_child(const ts_module *m, int index);
/** Name of a direct child by index, borrowed; NULL when out of range. */
TS_API const char *ts_module_child_name(const ts_module *m, int index);

/** The role of a tensor in its module. */
typedef enum ts_member_kind {
    TS_MEMBER_PARAMETER,
    TS_MEMBER_BUFFER,
    TS_MEMBER_TEMPORARY /**< a buffer that is not in the state dict */
} ts_member_kind;
/** Called with one tensor, borrowed, and its dotted name ("blocks.0.norm.weight"), which is valid
 *  during the call. A status other than TS_OK ends the walk, which returns the recorded failure, or
 *  the status if none is recorded. */
typedef ts_status (*ts_module_visit)(void *ctx, const char *name, ts_tensor *t,
                                     ts_member_kind kind);
/** Visits parameters and buffers in the order in which they were added, depth first. `visit` must
 *  not free a module that is being visited. Errors: TS_ERR_NULL, TS_ERR_VALUE for a dotted name of
 *  more than 511 bytes, and those of `visit`. */
TS_API ts_status ts_module_each(const ts_module *m, ts_module_visit visit, void *ctx);
/** Parameter or buffer by dotted name, borrowed; NULL with TS_ERR_INDEX. */
TS_API ts_tensor *ts_module_tensor(const ts_module *m, const char *name);

/** A list of n tensors and their names. Holds a reference to each tensor; free it with
 *  ts_named_tensors_free(). */
typedef struct ts_named_tensors {
    int64_t n;
    const char **names;
    ts_tensor **tensors;
} ts_named_tensors;
/** Releases the references of a list and empties it. NULL-safe. */
TS_API void ts_named_tensors_free(ts_named_tensors *list);
/** Writes all parameters to *list, each once, under the first of its dotted names. Errors, after
 *  which the list is empty: TS_ERR_NULL, TS_ERR_MEMORY, TS_ERR_VALUE for a dotted name of more than
 *  511 bytes. */
TS_API ts_status ts_module_parameters(const ts_module *m, ts_named_tensors *list);

/* ----------------------------------------------------------------------------- state ---- */

/** Writes parameters and persistent buffers to *list; a shared tensor appears under each of its
 *  dotted names. Errors as ts_module_parameters(). */
TS_API ts_status ts_module_state_dict(const ts_module *m, ts_named_tensors *list);

/** Differences that ts_module_load_state_dict() found. */
typedef struct ts_load_report {
    int64_t missing;    /**< names of the module that are not in the list */
    int64_t unexpected; /**< names in the list that the module does not have, or duplicates */
    int64_t mismatched; /**< names whose sizes differ */
    char text[1000];    /**< these names (the first eight of each kind), cut to 999 bytes, or "" */
} ts_load_report;

/**
 * Copies the values of n tensors into the module's tensors of the same dotted names, converting
 * dtypes and moving between devices. Sizes must match. With `strict`, a missing or unexpected name
 * is an error; without, it is only reported. Errors: TS_ERR_VALUE, whose message has the report's
 * text, and those of ts_module_state_dict(), after which nothing is copied; and those of
 * ts_copy_(), after which earlier tensors are copied.
 * @param report  receives the differences; may be NULL
 */
TS_API ts_status ts_module_load_state_dict(ts_module *m, const char *const *names,
                                           ts_tensor *const *tensors, int64_t n, bool strict,
                                           ts_load_report *report);

/** Writes the state dict to a safetensors file; errors as ts_safetensors_save(). */
TS_API ts_status ts_module_save(const ts_module *m, const char *path);
/** Reads a file of ts_module_save(), or any safetensors file with exactly the names and sizes of
 *  the module's state dict. Errors: those of ts_safetensors_open() and
 *  ts_module_load_state_dict(). */
TS_API ts_status ts_module_load(ts_module *m, const char *path);

TS_END_DECLS
#endif
