/** @file source.h  Functions that append parts of a kernel's source, for the files that generate
 * the sources of fused groups: source.c defines all of them, except ts_cuda_put_folds().
 *
 * Names in a generated kernel, with i the index of a value in g->values, c the index of a call:
 *
 *   t<i>      parameter: the tensor in memory (group_tensor)
 *   p<i>      parameter: partial sums over rows
 *   n<c>_<k>  parameter: operand k of call c, a number
 *   f<c>      parameter: the functor of call c
 *   n<c>      parameter: the factor of fold c
 *   q<c>      parameter: the states of fold c in memory
 *   x<i>[u]   the tensor's elements in access u of the thread, loaded (vec)
 *   y<i>      the tensor's elements in an access, to be stored (vec)
 *   v<i>_<n>  version n of one element: 0 is the loaded element; each call that writes the tensor
 *             declares the next version
 *   w<c>      the random words of call c
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_FUSE_SOURCE_H
#define TS_CUDA_FUSE_SOURCE_H

#include "backends/cuda/fuse/fuse.h"

#include <stddef.h>

/** A text that grows. Zeroed, it is empty; the owner frees `at`. */
typedef struct text {
    char *at;
    size_t used, capacity;
    bool failed; /* memory is exhausted: later appends do nothing */
} text;
/** A type name in the text of a formula, with its length. */
typedef struct name {
    const char *text;
    int length;
} name;
/** An array with one element per call: the type names of the call's functor, its result, then its
 *  operands. */
typedef name (*call_names)[TS_KERNEL_OPERANDS + 1];

/** Appends to a text, with a format as for printf(). */
void ts_cuda_text_put(text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define put(...) ts_cuda_text_put(__VA_ARGS__)

/** Names of element types in generated sources, indexed by ts_dtype. */
extern const char *const ts_cuda_type_names[];
/** Appends the declaration of a kernel, its opening brace and the variable `block`, the index of
 *  the block. The kernel is named `kernel`, or `group` if the group has members. */
void ts_cuda_put_kernel(text *t, const ts_cuda_group *g, call_names names, const char *kernel);
/** Appends the declaration of pointwise call c's result: an expression of the newest versions of
 *  its operands. Increments version[] of the result. names: the call's element of a call_names.
 *  version: the newest version of each value. */
void ts_cuda_put_call(text *t, const ts_cuda_group *g, int c, const name *names, int *version);
/** Appends the load of value i into x<i>[u]. */
void ts_cuda_put_load(text *t, const ts_cuda_group *g, int i);
/** Appends the store of y<i> to value i. */
void ts_cuda_put_store(text *t, const ts_cuda_group *g, int i);
/** Appends the body of the kernel of a group with folds and, unless g->direct, the kernel `merge`
 *  (folds_source.c). version: zeroed, one number per value. */
void ts_cuda_put_folds(text *t, const ts_cuda_group *g, call_names names, int *version);

#endif
