/** @file describe.h  Description of a pointwise kernel: the functor that its loop applies. To
 * describe a call, fuse.c runs the kernel's host code without a device; the launcher of the
 * kernel's loop then calls ts_cuda_describe() instead of launching (describe.cuh). */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_DESCRIBE_H
#define TS_CUDA_DESCRIBE_H

#include "backends/cuda/runtime/runtime.h"

TS_BEGIN_DECLS

enum { TS_CUDA_FORMULA_BYTES = 48 /* maximum size of a functor */ };

/** A functor that a kernel's loop applies to elements. */
typedef struct ts_cuda_formula {
    const char *names; /* a __PRETTY_FUNCTION__ that names the types of functor, result and
                          operands: "... [with X = {F, R, T...}]" */
    int operands;      /* number of operands, including the result */
    int bytes;         /* bytes of the functor's members; 0: none */
    bool draws;        /* the functor's first parameter is a random word, one per element */
    double members[TS_CUDA_FORMULA_BYTES / 8]; /* copy of the functor's members */
    /* For each operand; [0], the result, is unused. */
    int8_t arg[TS_KERNEL_OPERANDS];    /* index among the call's arguments */
    bool host[TS_KERNEL_OPERANDS];     /* the operand is a number of the host, not a tensor */
    double number[TS_KERNEL_OPERANDS]; /* the number's bits, as number_as() (group.cuh) reads them:
                                          in the operand's type or, for a half in a functor of two
                                          or more operands besides the result, as f32 */
} ts_cuda_formula;

/** True if the thread runs a kernel's host code only to describe it; ts_cuda_use() then returns
 * NULL without an error. */
bool ts_cuda_describing(void);
/** Records the functor of the running kernel's loop. Call only while ts_cuda_describing(). Copies
 *  *formula; `names` must be static text. A kernel that calls it twice cannot be in a group. */
void ts_cuda_describe(const ts_cuda_formula *formula);

TS_END_DECLS
#endif
