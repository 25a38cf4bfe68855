/** @file function.h  The node of a ts_function: data of the user's function in the graph. */
// SPDX-License-Identifier: MIT
#ifndef TS_AUTOGRAD_FUNCTION_H
#define TS_AUTOGRAD_FUNCTION_H

#include "autograd/recompute.h"
#include "include/tessera/check.h"

struct ts_function_call {
    ts_function fn;
    void *ctx;
    ts_node *node;        /* the node whose block contains this struct */
    ts_tensor **inputs;   /* set while forward runs; NULL afterwards */
    ts_end *saved;  /* nsaved tensors. `next` is weak: for a saved input, `next` of the node's
                       input; for a saved output, this node; otherwise NULL */
    int nsaved;
    bool records;   /* some input needs a gradient */
    uint8_t *marks; /* bits DIRTY and CONSTANT, per input, then per output */
};

TS_INLINE ts_function_call *ts_function_of(const ts_node *n)
{
    return (ts_function_call *)(n->args + n->nargs);
}
/** Error if a list or an input is NULL, if an input is a freed tensor, or if m is not in
 *  [1, most]; `expected` is the error's text for this range. Inputs may be TS_NONE. */
ts_status ts_check_ends(ts_check_place at, ts_tensor *const *inputs, int n, ts_tensor **outputs,
                        int m, int most, const char *expected);
/** Releases the function's data when its node is freed. */
void ts_function_end(ts_node *n);

#endif
