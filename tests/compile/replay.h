/** @file replay.h  Common code of the tests of replays (compile/replay.h): compiled calls that do
 * not run the user's function. */
// SPDX-License-Identifier: MIT
#ifndef TESTS_COMPILE_REPLAY_H
#define TESTS_COMPILE_REPLAY_H

#include "core/tensor.h"
#include "tests/compile/explains.h"
#include "tests/tracing/net.h"

static int ran; /* calls that ran the function */

/** Compiles fn with replays enabled and resets `ran`. */
static inline ts_compiled *replays_of(ts_trace_fn fn, void *ctx)
{
    ran = 0;
    return ts_compile(fn, ctx, TS_OPTS(ts_compile_opts, .name = "fn", .replay = true));
}

/** A ts_trace_fn: a training step of a net (ctx) for inputs in[0] and targets in[1]. Output: the
 *  loss. */
static inline ts_status step(TRACED)
{
    const net *t = ctx;
    TS_SCOPE;
    ran++;
    ts_tensor *loss = ts_mse_loss(ts_forward(t->module, in[0]), in[1]);
    TS_TRY(ts_backward(loss));
    TS_TRY(ts_optimizer_step(t->optimizer));
    ts_optimizer_zero_grad(t->optimizer);
    out[0] = ts_keep(ts_detach(loss));
    return TS_OK;
}

/** Checks that two optimizers have state with equal names and bits, equal numbers, and parameters
 * with equal versions. */
static inline void check_same_states(net a, net b)
{
    ts_named_tensors x, y;
    ts_named_number p[16], q[16];
    OK(ts_optimizer_state(a.optimizer, &x));
    OK(ts_optimizer_state(b.optimizer, &y));
    ck_assert_int_eq(x.n, y.n);
    for (int64_t i = 0; i < x.n; i++) {
        ck_assert_str_eq(x.names[i], y.names[i]);
        ck_assert(same(x.tensors[i], y.tensors[i]));
    }
    ts_named_tensors_free(&x), ts_named_tensors_free(&y);
    int64_t n = ts_optimizer_numbers(a.optimizer, p, 16);
    ck_assert_int_eq(ts_optimizer_numbers(b.optimizer, q, 16), n);
    for (int64_t i = 0; i < n; i++)
        ck_assert(p[i].value == q[i].value);
    ts_tensor *const *u = ts_optimizer_params(a.optimizer, &n),
                     *const *v = ts_optimizer_params(b.optimizer, &n);
    for (int64_t i = 0; i < n; i++)
        ck_assert_uint_eq(ts_version(u[i]), ts_version(v[i]));
}

/** State of the functions under test, passed as ctx. Each test uses the fields that it needs. */
typedef struct hooks {
    double factor, other;
    int64_t count;
    int branch;
    ts_tensor *w, *kept;
    const char *op;
} hooks;

/** Calls c, and then `fn` with ctx `other` from the same generator state. Checks that the outputs
 * and the generator's offsets are equal, and that c ran its function at most once. */
static inline void check_call(ts_compiled *c, ts_trace_fn fn, void *other,
                              ts_tensor *const *in, int n)
{
    ts_tensor *got, *want;
    int before = ran;
    ts_rng_state begin = ts_rng_get_state();
    OK(ts_compiled_call(c, in, n, &got, 1));
    int after = ran;
    ts_rng_state end = ts_rng_get_state();
    ts_rng_set_state(begin);
    OK(fn(other, in, n, &want, 1));
    ran = after;
    ck_assert(same(got, want));
    ck_assert_uint_eq(ts_rng_get_state().offset, end.offset);
    ck_assert_int_le(ran - before, 1);
}

#endif
