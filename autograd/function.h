/** @file function.h  Inside a node of a user's function. */
// SPDX-License-Identifier: MIT
#ifndef TS_AUTOGRAD_FUNCTION_H
#define TS_AUTOGRAD_FUNCTION_H

#include "autograd/recompute.h"
#include "include/tessera/check.h"

struct ts_function_call {
    ts_function fn;
    void *ctx;
    ts_node *node;        /* the node whose block contains this struct */
    ts_tensor **inputs;   /* forward is running */
    ts_end *saved; /* next: weak, the maker of an input or the node itself of an output */
    int nsaved;
    bool records;
    uint8_t *marks; /* of inputs, then of outputs */
};

TS_INLINE ts_function_call *ts_function_of(const ts_node *n)
{
    return (ts_function_call *)(n->args + n->nargs);
}
/** Refuses NULL lists and inputs, and m outside of 1 to most, which `expected` says. */
ts_status ts_check_ends(ts_check_place at, ts_tensor *const *inputs, int n, ts_tensor **outputs,
                        int m, int most, const char *expected);
/** Part of a node's end. */
void ts_function_end(ts_node *n);

#endif
