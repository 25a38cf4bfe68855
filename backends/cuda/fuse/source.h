/** @file source.h  Shared by the files that generate sources of fused groups. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_FUSE_SOURCE_H
#define TS_CUDA_FUSE_SOURCE_H

#include "backends/cuda/fuse/fuse.h"

#include <stddef.h>

/** A text that grows. */
typedef struct text {
    char *at;
    size_t used, capacity;
    bool failed;
} text;
/** A type name in the text of a formula, with its length. */
typedef struct name {
    const char *text;
    int length;
} name;
/** The type names of each call's formula: the functor, the result, the operands. */
typedef name (*call_names)[TS_KERNEL_OPERANDS + 1];

/** Appends to a text, as printf(). */
void ts_cuda_text_put(text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define put(...) ts_cuda_text_put(__VA_ARGS__)

/** Names of element types in generated sources, by dtype. */
extern const char *const ts_cuda_type_names[];
/** Appends the declaration of a kernel, and the opening brace. */
void ts_cuda_put_kernel(text *t, const ts_cuda_group *g, call_names names, const char *kernel);
/** Appends the declaration of pointwise call c's result, an expression of the newest versions of
 *  its operands, and counts its version. */
void ts_cuda_put_call(text *t, const ts_cuda_group *g, int c, const name *names, int *version);
/** Appends the load of a value's access u, and the store of an access. */
void ts_cuda_put_load(text *t, const ts_cuda_group *g, int i);
void ts_cuda_put_store(text *t, const ts_cuda_group *g, int i);
/** Appends the kernels of a group with folds (folds_source.c). version: zeroed, one per
 *  value. */
void ts_cuda_put_folds(text *t, const ts_cuda_group *g, call_names names, int *version);

#endif
