/** @file net.h  A small network for tracing tests, and comparison of two such networks. */
// SPDX-License-Identifier: MIT
#ifndef TESTS_TRACING_NET_H
#define TESTS_TRACING_NET_H

#include "tests/tracing/common.h"

typedef struct net {
    ts_module *module;
    ts_optimizer *optimizer;
    bool accumulate; /* a step of trace.c only adds to the gradients */
} net;

static inline net net_new(double dropout, ts_optimizer_kind kind)
{
    net t = {ts_sequential_new(), NULL, false};
    ts_manual_seed(5);
    OK(ts_sequential_add(t.module, ts_linear_new(6, 8, true)));
    OK(ts_sequential_add(t.module, ts_activation_new("ReLU", ts_relu)));
    OK(ts_sequential_add(t.module, ts_dropout_new(dropout)));
    OK(ts_sequential_add(t.module, ts_linear_new(8, 3, true)));
    ts_group_opts opts = ts_optimizer_defaults(kind, 0.1);
    OK(t.optimizer = ts_optimizer_for(t.module, kind, &opts));
    return t;
}

static inline void net_free(net t)
{
    ts_optimizer_free(t.optimizer);
    ts_module_free(t.module);
}

/** Checks that all parameters (or their gradients) of two networks have equal bits. */
static inline void check_same_nets(net a, net b, bool gradients)
{
    int64_t n;
    ts_tensor *const *p = ts_optimizer_params(a.optimizer, &n),
                     *const *q = ts_optimizer_params(b.optimizer, &n);
    for (int64_t i = 0; i < n; i++)
        ck_assert(gradients ? same(ts_grad(p[i]), ts_grad(q[i])) : same(p[i], q[i]));
}

/** A ts_trace_fn: the network's forward. ctx: a net. */
static inline ts_status forward(TRACED)
{
    const net *t = ctx;
    return TS_STATUS_OF(out[0] = ts_forward(t->module, in[0]));
}

/** A ts_trace_fn: adds the input three times to a constant 0 in place, and returns the sum. */
static inline ts_status three_times(TRACED)
{
    TS_SCOPE;
    float zero = 0;
    ts_tensor *sum = ts_from_array(&zero, TS_F32, TS_SIZES(1));
    for (int i = 0; i < 3; i++)
        TS_TRY(ts_add_(sum, in[0]));
    out[0] = ts_keep(sum);
    return TS_OK;
}

#endif
