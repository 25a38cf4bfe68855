/** @file function.h  The node of a ts_function: data of the user's function in the graph. */
// SPDX-License-Identifier: MIT
#ifndef TS_AUTOGRAD_FUNCTION_H
#define TS_AUTOGRAD_FUNCTION_H

#include "autograd/recompute.h"
#include "include/tessera/check.h"

/** A call of a user's function; in the tail of its node's block. */
struct ts_function_call {
    ts_function fn;
    void *ctx;
    ts_node *node;        /* the node whose block contains this struct */
    ts_tensor **inputs;   /* set while forward runs; NULL afterwards */
    ts_end *saved;  /* nsaved tensors. `next` is weak: for an input that is not dirty, `next` of the
                       node's input; for an output that is not constant, this node; otherwise
                       NULL */
    int nsaved;
    bool records;   /* some input needs a gradient */
    uint8_t *marks; /* bits DIRTY and CONSTANT, per input, then per output */
};

TS_INLINE ts_function_call *ts_function_of(const ts_node *n)
{
    return (ts_function_call *)(n->args + n->nargs);
}
/** Checks the lists of n inputs, which may be TS_NONE, and m outputs. Errors:
 *    TS_ERR_NULL   a list with entries is NULL, or an input is NULL; for an input, a recorded
 *                  failure takes precedence
 *    TS_ERR_STATE  a freed input
 *    TS_ERR_VALUE  n is negative, or m is not in [1, most]; `expected` names this range
 */
ts_status ts_check_ends(ts_check_place at, ts_tensor *const *inputs, int n, ts_tensor **outputs,
                        int m, int most, const char *expected);
/** Releases the function's data when its node is freed. */
void ts_function_end(ts_node *n);

#endif
