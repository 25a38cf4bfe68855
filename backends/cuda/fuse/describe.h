/** @file describe.h  Description of a pointwise kernel: the functor that its loop applies. */
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
    bool draws;        /* the functor's first parameter is the random word of its element */
    double members[TS_CUDA_FORMULA_BYTES / 8]; /* copy of the functor's members */
    int8_t arg[TS_KERNEL_OPERANDS];      /* index among the arguments; [0], the result, is unused */
    bool host[TS_KERNEL_OPERANDS];       /* the operand is a number */
    double number[TS_KERNEL_OPERANDS];   /* the number's bits, as number_as() (group.cuh) reads
                                            them: in the operand's type or, for a half in a functor
                                            of two or more operands, in f32 */
} ts_cuda_formula;

/** True if the thread runs a kernel only for its description; ts_cuda_use() then returns NULL
 * without an error. */
bool ts_cuda_describing(void);
/** Records the formula of the running kernel. Copies *formula; `names` must be static text. */
void ts_cuda_describe(const ts_cuda_formula *formula);

TS_END_DECLS
#endif
