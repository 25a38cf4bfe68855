/** @file describe.h  A kernel's loop in words: which functor it applies to the elements. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_DESCRIBE_H
#define TS_CUDA_DESCRIBE_H

#include "backends/cuda/runtime.h"

TS_BEGIN_DECLS

enum { TS_CUDA_FORMULA_BYTES = 48 };

/** A functor that a kernel's loop applies to elements. */
typedef struct ts_cuda_formula {
    const char *names; /* types of functor, result and operands: "... [with X = {F, R, T...}]" */
    int operands;      /* result included */
    int bytes;         /* bytes of the functor's members; 0: none */
    bool draws;        /* the functor takes the random word of its element first */
    double members[TS_CUDA_FORMULA_BYTES / 8]; /* bytes of the functor */
    int8_t arg[TS_KERNEL_OPERANDS];      /* place among the arguments */
    bool host[TS_KERNEL_OPERANDS];       /* a number */
    double number[TS_KERNEL_OPERANDS];   /* its bits, in the type that the operand is computed in */
} ts_cuda_formula;

/** Whether the thread runs a kernel for its description: ts_cuda_use() gives it no device. */
bool ts_cuda_describing(void);
/** Notes the formula of the kernel that runs. */
void ts_cuda_describe(const ts_cuda_formula *formula);

TS_END_DECLS
#endif
