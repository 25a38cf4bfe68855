/** @file calls_graph.c  Out-of-memory sweeps: graph nodes, hooks, anomaly mode, compiled functions,
 * and ops registered with a gradient. */
// SPDX-License-Identifier: MIT
#include "tests/compile/tape.h"
#include "tests/faults/calls.h"

static ts_status double_before(void *payload, ts_node *node, ts_tensor **grads, int n)
{
    (void)payload, (void)node;
    for (int i = 0; i < n; i++)
        TS_TRY(grads[i] = ts_mul_scalar(grads[i], 2));
    return TS_OK;
}

static ts_status double_after(void *payload, ts_node *node, ts_tensor **in, int n,
                              ts_tensor *const *out, int m)
{
    (void)out, (void)m;
    return double_before(payload, node, in, n);
}

CALLS(nodes)
{
    TS_SCOPE;
    ts_tensor *w = ts_set_requires_grad(ts_ones(TS_SIZES(2, 3), TS_F32), true);
    ts_node *node = NULL;
    ts_hook *before = NULL, *after = NULL;
    char text[200];
    int output;
    fault_watch(f, w);
    FAULTY(f, node = ts_grad_node(w));
    QUIET(f, ts_node_leaf(node));
    QUIET(f, ts_node_name(node));
    ts_tensor *y = ts_mul(w, w), *z = ts_sum(y);
    node = ts_grad_node(y);
    QUIET(f, ts_node_inputs(node));
    QUIET(f, ts_node_outputs(node));
    QUIET(f, ts_node_next(node, 0, &output));
    QUIET(f, ts_node_describe(node, text, sizeof text));
    QUIET(f, ts_node_retain(node));
    QUIET(f, ts_node_release(node));
    FAULTY(f, ts_node_hook_before(node, double_before, NULL, &before));
    FAULTY(f, ts_node_hook_after(node, double_after, NULL, &after));
    ts_backward_opts retain = {.size = sizeof retain, .retain_graph = true};
    FAULTY(f, (ts_zero_grad(w), ts_backward_ex(z, TS_NONE, &retain)));
    fault_see(f, ts_grad(w));
    QUIET(f, ts_node_hook_remove(node, before));
    QUIET(f, ts_node_hook_remove(node, after));
    FAULTY(f, (ts_zero_grad(w), ts_backward_ex(z, TS_NONE, &retain)));
    fault_see(f, ts_grad(w));
}

CALLS(anomalies)
{
    TS_SCOPE;
    ts_tensor *w = ts_set_requires_grad(ts_ones(TS_SIZES(2, 3), TS_F32), true);
    fault_watch(f, w);
    QUIET(f, ts_anomaly_enable(true));
    QUIET(f, ts_anomaly_enabled());
    /* a failed backward frees the graph too, so each attempt builds it again */
    FAULTY(f, (ts_zero_grad(w), ts_backward(ts_sum(ts_mul(w, w)))));
    ts_anomaly_enable(false);
    fault_see(f, ts_grad(w));
}

/* ---------------------------------------------------------------------- compiled functions ---- */

static ts_status chain(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    ts_tensor *t = ts_relu(ts_add(in[0], in[1]));
    return TS_STATUS_OF(out[0] = ts_add(ts_sum_dim(t, 0, false), ts_softmax(t, 1)));
}

CALLS(compiled_functions)
{
    TS_SCOPE;
    ts_tensor *in[] = {ts_ones(TS_SIZES(20, 30), TS_F32), ts_ones(TS_SIZES(30), TS_F32)}, *out;
    ts_compiled *c = NULL;
    WATCH(in[0], in[1]);
    FAULTY(f, c = ts_compile(chain, NULL, NULL));
    for (int i = 0; i < 2 && c; i++) { /* the first call makes the plan */
        FAULTY(f, ts_compiled_call(c, in, 2, &out, 1));
        fault_see(f, out);
    }
    QUIET(f, ts_compiled_get_stats(c));
    FILE *file = fopen("/dev/null", "w");
    FAULTY(f, ts_explain(c, file));
    fclose(file);
    QUIET(f, ts_compiled_free(c));
    FAULTY(f, c = ts_step_graph(chain, NULL));
    ts_compiled_free(c);
}

/** A function whose values t and u are cheap and used again after the products. */
static ts_status again(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    ts_tensor *t = ts_exp(in[0]), *u = ts_gelu(t), *p = ts_matmul(u, t);
    for (int i = 0; i < 3; i++)
        p = ts_matmul(p, p);
    return TS_STATUS_OF(out[0] = ts_add(ts_mul(ts_matmul(p, u), t), ts_matmul(t, u)));
}

/** Plans that recompute values, and their arena. */
CALLS(recomputations)
{
    TS_SCOPE;
    ts_tensor *x = ts_mul_scalar(ts_ones(TS_SIZES(40, 40), TS_F32), 0.01), *out;
    WATCH(x);
    ts_compiled *c = ts_compile(again, NULL, TS_OPTS(ts_compile_opts, .recompute = 1));
    for (int i = 0; i < 3 && c; i++) {
        FAULTY(f, ts_compiled_call(c, &x, 1, &out, 1));
        fault_see(f, out);
    }
    ts_compiled_free(c);
}

typedef struct declared {
    double factor;
    int64_t steps, *counts[1];
    ts_tensor *w, *kept;
} declared;

/** A function with declared numbers, a gradient that is kept, and an output. */
static ts_status declare(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)n, (void)m;
    declared *d = ctx;
    TS_SCOPE;
    d->counts[0] = &d->steps;
    TS_TRY(ts_depends_on(&d->w, sizeof d->w));
    TS_TRY(ts_number_from("mul", "other", &d->factor));
    ts_tensor *t = ts_mul_scalar(ts_mul(in[0], d->w), d->factor), *g = ts_ones_like(in[0]);
    ts_zero_grad(d->w);
    TS_TRY(ts_backward_ex(t, g, NULL));
    d->steps++;
    TS_TRY(ts_counts_from("sgd", "steps", d->counts, 1));
    {
        TS_NO_GRAD;
        ts_tensor *copy = ts_clone(d->w), *grads[] = {ts_grad(d->w)};
        TS_TRY(ts_sgd_(&copy, grads, NULL, &d->steps, 1,
                       &(ts_sgd_rule){.lr = 0.5, .momentum = 0}));
        TS_TRY(ts_replaces(&d->kept));
        TS_TRY(out[0] = ts_keep(ts_add(copy, ts_detach(t))));
        TS_TRY(copy = ts_neg(copy));
        ts_release(d->kept);
        d->kept = ts_retain(copy);
    }
    return TS_OK;
}

/** Calls of a compiled function with and without a run of the function. */
CALLS(replays)
{
    TS_SCOPE;
    ts_tensor *x = ts_ones(TS_SIZES(20, 30), TS_F32), *out = NULL,
              *w = ts_set_requires_grad(ts_ones(TS_SIZES(20, 30), TS_F32), true);
    WATCH(x, w);
    declared d = {.factor = 3, .w = w};
    ts_compiled *c =
        ts_compile(declare, &d, TS_OPTS(ts_compile_opts, .replay = true, .verify = 4));
    for (int i = 0; i < 7 && c; i++) {
        FAULTY(f, ts_compiled_call(c, &x, 1, &out, 1));
        fault_see(f, out);
    }
    FILE *file = fopen("/dev/null", "w");
    FAULTY(f, ts_explain(c, file));
    fclose(file);
    ts_compiled_free(c);
    QUIET(f, ts_state_changed());
    ts_release(d.kept);
    ts_zero_grad(w);
}

/* A device that captures, with one kernel. */
static void run_negated(const task *t)
{
    const float *x = from_handle(t->from);
    for (int64_t i = 0; i < t->n; i++)
        ((float *)from_handle(t->to))[i] = -x[i];
}
static ts_status queue_negated(ts_frame *frame)
{
    return queue(ts_kernel_stream(frame),
                 (task){.run = run_negated, .from = ts_kernel_data(frame->args[0].t),
                        .to = ts_kernel_data(frame->rets[0].t),
                        .n = ts_numel(frame->rets[0].t)});
}
static ts_status install_negated(void *state, ts_key key)
{
    (void)state;
    ts_kernel_opts opts = {.size = sizeof opts, .dtypes = TS_DTYPE_BIT(TS_F32)};
    return ts_register_kernel_ex("neg", key, queue_negated, &opts, NULL);
}
static ts_status negated(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    return TS_STATUS_OF(out[0] = ts_neg(ts_neg(ts_neg(ts_to_device(in[0], device)))));
}

CALLS(graphs)
{
    if (!device.backend)
        set_up_with(install_negated);
    TS_SCOPE;
    ts_tensor *x = ts_arange(0, 40, 1, TS_F32), *out;
    WATCH(x);
    ts_compiled *c = ts_compile(negated, NULL, TS_OPTS(ts_compile_opts, .graph = true));
    for (int i = 0; i < 5 && c; i++) { /* call by call, captured, replayed */
        FAULTY(f, ts_compiled_call(c, &x, 1, &out, 1));
        fault_see(f, ts_to_device(out, TS_DEVICE_CPU));
    }
    ts_compiled_free(c);
    tear_down();
}

/* A device that runs groups. */
static void run_flat(const task *t)
{
    const float *x = from_handle(t->space.operand[1].data);
    for (int64_t i = 0; i < t->space.numel; i++)
        ((float *)from_handle(t->space.operand[0].data))[i] = -x[i];
}
static ts_status queue_flat(ts_frame *frame)
{
    task t = {.run = run_flat};
    TS_TRY(ts_kernel_space(frame, &t.space));
    return queue(ts_kernel_stream(frame), t);
}
static ts_status install_flat(void *state, ts_key key)
{
    (void)state;
    ts_kernel_opts opts = {.size = sizeof opts, .dtypes = TS_DTYPE_BIT(TS_F32), .strided = true};
    return ts_register_kernel_ex("neg", key, queue_flat, &opts, NULL);
}

/** Groups that the device runs, and groups that it refuses; call by call, and as a graph. */
CALLS(groups)
{
    static ts_device here;
    if (!here.backend) {
        ts_device before = device;
        has_groups = true;
        set_up_named("GROUPS", install_flat);
        here = device;
        device = before;
    }
    TS_SCOPE;
    ts_tensor *x = ts_arange(0, 40, 1, TS_F32), *out;
    WATCH(x);
    for (int how = 0; how < 4; how++) {
        ts_device before = device;
        device = here;
        refuses_groups = how & 1;
        ts_compiled *c = ts_compile(negated, NULL, TS_OPTS(ts_compile_opts, .graph = how & 2));
        for (int i = 0; i < 4 && c; i++) {
            FAULTY(f, ts_compiled_call(c, &x, 1, &out, 1));
            fault_see(f, ts_to_device(out, TS_DEVICE_CPU));
        }
        ts_compiled_free(c);
        refuses_groups = false;
        device = before;
    }
    ck_assert_int_gt(groups_run, 0);
    tear_down();
}

/* ------------------------------------------------------------------- ops with a gradient ---- */

static ts_status rule(ts_frame *frame) { return ts_rule_pointwise(frame, 1, TS_DTYPE_NONE, true); }

/** 2 a, of packed f32. */
static ts_status kernel(ts_frame *frame)
{
    const float *a = ts_kernel_data(frame->args[0].t);
    float *y = ts_kernel_data(frame->rets[0].t);
    for (int64_t i = 0; i < ts_numel(frame->rets[0].t); i++)
        y[i] = 2 * a[i];
    return TS_OK;
}

static ts_status gradient(ts_vjp_call *call)
{
    ts_tensor *doubled = ts_mul_scalar(ts_rule_grad(call, 0), 2);
    return ts_rule_give(call, 0, ts_rule_reduce_to(call, 0, doubled));
}

static ts_tensor *call_op(int op, ts_tensor *a)
{
    ts_value args[] = {ts_value_tensor(a)}, y = ts_value_none();
    return ts_call_boxed(op, args, 1, &y, 1) == TS_OK ? ts_adopt(y.t) : NULL;
}

CALLS_WITH(ops_with_a_gradient, FAULT_KEEPS, .loop = 0)
{
    static int number;
    char schema[80], name[40];
    int op = -1;
    snprintf(name, sizeof name, "fault.doubled%d", number++);
    snprintf(schema, sizeof schema, "%s(Tensor a) -> Tensor", name);
    ts_op_opts about = {.size = sizeof about, .rule = rule, .doc = "2 a"};
    ts_kernel_opts takes = {.size = sizeof takes, .schema = schema, .dtypes = TS_DTYPE_BIT(TS_F32)};
    ts_vjp_opts reads = {.size = sizeof reads};
    FAULTY(f, ts_register_op_ex(schema, &about, &op));
    FAULTY(f, ts_register_kernel_ex(name, TS_KEY_CPU, kernel, &takes, NULL));
    FAULTY(f, ts_register_vjp(name, gradient, &reads));
    TS_SCOPE;
    ts_tensor *w = ts_set_requires_grad(ts_ones(TS_SIZES(2, 3), TS_F32), true), *y = NULL;
    fault_watch(f, w);
    FAULTY(f, y = call_op(op, w));
    fault_see(f, y);
    FAULTY(f, (ts_zero_grad(w), ts_backward(ts_sum(call_op(op, w)))));
    fault_see(f, ts_grad(w));
}
