/**
 * @file compare_loop.c  Runs calls of ops in a loop and times them, for bench/compare.py: the times
 * exclude the cost of a Python binding.
 */
// SPDX-License-Identifier: MIT
#include <time.h>

#include "tessera/tessera.h"

/** One call of a sequence. The results that the call makes are released after the call, or at the
 *  end of the turn (see compare_run()). */
typedef struct compare_call {
    int op, nargs, nrets;
    const ts_value *args;
    const ts_value *given; /* nrets values, of kind NONE where the call makes the result */
} compare_call;

/** A recorded call and the gradients of one of its results. */
typedef struct compare_gradient {
    compare_call call;
    int chosen; /* index of the result */
    int nleaves;
    ts_tensor *upstream;
    ts_tensor *const *leaves;
} compare_gradient;

TS_API double compare_run(const compare_call *calls, int ncalls, int turns, int hold);
TS_API double compare_gradients(const compare_gradient *of, int turns);
TS_API ts_compiled *compare_compile(const compare_gradient *of);
TS_API double compare_compiled(ts_compiled *compiled, int noutputs, int turns);
TS_API double compare_backward(ts_tensor *root, ts_tensor *upstream, ts_tensor *const *leaves,
                               int nleaves, int turns);

static ts_status call_once(const compare_call *c, int hold)
{
    ts_value rets[TS_MAX_RETS];
    for (int i = 0; i < c->nrets; i++)
        rets[i] = c->given[i];
    TS_TRY(ts_call_boxed(c->op, c->args, c->nargs, rets, c->nrets));
    for (int i = 0; i < c->nrets; i++)
        if (c->given[i].tag == TS_TAG_NONE && rets[i].tag == TS_TAG_TENSOR) {
            if (hold)
                ts_adopt(rets[i].t);
            else
                ts_release(rets[i].t);
        }
    return TS_OK;
}

static double mean_ns(const struct timespec *begin, int turns)
{
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    return ((double)(end.tv_sec - begin->tv_sec) * 1e9 + (double)(end.tv_nsec - begin->tv_nsec)) /
           turns;
}

/** Nanoseconds of one turn through the sequence, the mean of `turns`; -1 after a failure. With
 *  `hold` results live to the end of the turn, so that each call writes to memory of its own. */
double compare_run(const compare_call *calls, int ncalls, int turns, int hold)
{
    struct timespec begin;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int t = 0; t < turns; t++) {
        TS_SCOPE;
        TS_NO_GRAD;
        for (int i = 0; i < ncalls; i++)
            if (call_once(&calls[i], hold) != TS_OK)
                return -1;
    }
    return mean_ns(&begin, turns);
}

/** Makes the call's results, which the scope owns; results that are not tensors become TS_NONE. */
static ts_status make_results(const compare_call *c, ts_tensor **made)
{
    ts_value rets[TS_MAX_RETS] = {{0}};
    for (int i = 0; i < c->nrets; i++)
        rets[i] = c->given[i];
    TS_TRY(ts_call_boxed(c->op, c->args, c->nargs, rets, c->nrets));
    for (int i = 0; i < c->nrets; i++) {
        bool own = c->given[i].tag == TS_TAG_NONE && rets[i].tag == TS_TAG_TENSOR;
        made[i] = own ? ts_adopt(rets[i].t) : TS_NONE;
    }
    return TS_OK;
}

/** The gradients of the chosen result for the leaves. */
static ts_status make_gradients(const compare_gradient *of, ts_tensor **grads)
{
    ts_tensor *made[TS_MAX_RETS];
    TS_TRY(make_results(&of->call, made));
    return ts_grad_of(made[of->chosen], of->upstream, of->leaves, of->nleaves, grads, NULL);
}

/** Nanoseconds of one forward and backward, the mean of `turns`; -1 after a failure. Results and
 *  gradients live to the end of their turn. */
double compare_gradients(const compare_gradient *of, int turns)
{
    struct timespec begin;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int t = 0; t < turns; t++) {
        TS_SCOPE;
        ts_tensor *grads[TS_MAX_ARGS];
        if (make_gradients(of, grads) != TS_OK)
            return -1;
    }
    return mean_ns(&begin, turns);
}

static ts_status traced(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)in, (void)n, (void)m;
    const compare_gradient *of = ctx;
    if (of->nleaves)
        return make_gradients(of, out);
    TS_NO_GRAD;
    return make_results(&of->call, out);
}

/** A compiled function without inputs that returns the gradients or, without leaves, the results of
 *  the call. Owned by the caller; NULL with an error. */
ts_compiled *compare_compile(const compare_gradient *of)
{
    return ts_compile(traced, (void *)of, TS_OPTS(ts_compile_opts, .replay = true));
}

/** compare_gradients() of a function of compare_compile(). */
double compare_compiled(ts_compiled *compiled, int noutputs, int turns)
{
    struct timespec begin;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int t = 0; t < turns; t++) {
        TS_SCOPE;
        ts_tensor *out[TS_MAX_ARGS + TS_MAX_RETS];
        if (ts_compiled_call(compiled, NULL, 0, out, noutputs) != TS_OK)
            return -1;
    }
    return mean_ns(&begin, turns);
}

/** Nanoseconds of one backward from `root`, the mean of `turns`; -1 after a failure. */
double compare_backward(ts_tensor *root, ts_tensor *upstream, ts_tensor *const *leaves, int nleaves,
                        int turns)
{
    struct timespec begin;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int t = 0; t < turns; t++) {
        TS_SCOPE;
        ts_tensor *grads[TS_MAX_ARGS];
        if (ts_grad_of(root, upstream, leaves, nleaves, grads,
                       TS_OPTS(ts_backward_opts, .retain_graph = true)) != TS_OK)
            return -1;
    }
    return mean_ns(&begin, turns);
}
