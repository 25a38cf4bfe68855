/**
 * @file my_op.c  A user-defined operator, registered at run time: schema, shape rule, kernel and
 * gradient.
 *
 *     build/examples/my_op
 *
 * softsign_gate(x, g) = x / (1 + |x|) * g. The shape rule gives the op broadcasting, dtype
 * promotion, META and out= destinations. The kernel computes on the CPU. The gradient rule consists
 * of ordinary ops, so it also gives second gradients. Exit status 0 if the gradient agrees with
 * central differences.
 */
// SPDX-License-Identifier: MIT
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <tessera/tessera.h>

static const char schema[] = "mine.softsign_gate(Tensor x, Tensor g) -> Tensor";
static int softsign_gate_op;

/** x and g broadcast against each other and are cast to one floating dtype. */
static ts_status rule(ts_frame *f) { return ts_rule_pointwise(f, 2, TS_DTYPE_NONE, true); }

/** f64, any strides. The operands of the space are the result, x and g; dim 0 is the innermost. */
static ts_status kernel(ts_frame *f)
{
    ts_space s;
    TS_TRY(ts_kernel_space(f, &s));
    for (int64_t i = 0; i < s.numel; i++) {
        char *p[3];
        int64_t rest = i;
        for (int k = 0; k < 3; k++)
            p[k] = s.operand[k].data;
        for (int d = 0; d < s.ndim; d++) {
            for (int k = 0; k < 3; k++)
                p[k] += rest % s.sizes[d] * s.operand[k].strides[d];
            rest /= s.sizes[d];
        }
        double x = *(double *)p[1], g = *(double *)p[2];
        *(double *)p[0] = x / (1 + fabs(x)) * g;
    }
    return TS_OK;
}

/** dx = dy g / (1 + |x|)^2, dg = dy x / (1 + |x|). If an op fails, ts_rule_give() gets NULL and
 * returns the error. */
static ts_status gradient(ts_vjp_call *call)
{
    ts_tensor *dy = ts_rule_grad(call, 0), *x = ts_rule_saved_arg(call, 0);
    ts_tensor *scale = ts_add_scalar(ts_abs(x), 1);
    if (ts_rule_needs(call, 0)) {
        ts_tensor *dx = ts_div(ts_mul(dy, ts_rule_saved_arg(call, 1)), ts_square(scale));
        TS_TRY(
            ts_rule_give(call, 0, ts_rule_reduce_to(call, 0, dx))); // sums over broadcast dims
    }
    if (ts_rule_needs(call, 1))
        TS_TRY(ts_rule_give(call, 1, ts_rule_reduce_to(call, 1, ts_div(ts_mul(dy, x), scale))));
    return TS_OK;
}

static ts_status install(void)
{
    ts_op_opts op = {.size = sizeof op, .rule = rule, .doc = "x / (1 + |x|) * g"};
    ts_kernel_opts cpu = {
        .size = sizeof cpu, .schema = schema, .dtypes = TS_DTYPE_BIT(TS_F64), .strided = true};
    ts_vjp_opts reads = {
        .size = sizeof reads, .saves = TS_SAVE_ARG(0), .saves_for = {[0] = TS_SAVE_ARG(1)}};
    TS_TRY(ts_register_op_ex(schema, &op, &softsign_gate_op));
    TS_TRY(ts_register_kernel_ex("mine.softsign_gate", TS_KEY_CPU, kernel, &cpu, NULL));
    return ts_register_vjp("mine.softsign_gate", gradient, &reads);
}

/** The public function: boxes the arguments, calls the op, adds the result to the innermost
 * scope. */
static ts_tensor *softsign_gate(ts_tensor *x, ts_tensor *g)
{
    ts_value args[] = {ts_value_tensor(x), ts_value_tensor(g)}, y = ts_value_none();
    return ts_call_boxed(softsign_gate_op, args, 2, &y, 1) == TS_OK ? ts_adopt(y.t) : NULL;
}

static ts_status run(void)
{
    TS_SCOPE;
    TS_TRY(install());
    ts_manual_seed(1);
    ts_tensor *x = ts_set_requires_grad(ts_normal(TS_SIZES(4, 3), 0, 1, TS_F64), true);
    ts_tensor *g = ts_set_requires_grad(ts_normal(TS_SIZES(3), 0, 1, TS_F64), true);
    TS_TRY(ts_backward(ts_sum(softsign_gate(x, g))));
    TS_TRY(ts_print(ts_grad(g)));

    /* the slope along a direction d of x: from the gradient, and as a central difference */
    TS_NO_GRAD;
    const double step = 1e-5;
    ts_tensor *d = ts_normal(TS_SIZES(4, 3), 0, 1, TS_F64), *far = ts_mul_scalar(d, step);
    double up, down, slope;
    TS_TRY(ts_item(ts_sum(softsign_gate(ts_add(x, far), g)), &up));
    TS_TRY(ts_item(ts_sum(softsign_gate(ts_sub(x, far), g)), &down));
    TS_TRY(ts_item(ts_sum(ts_mul(ts_grad(x), d)), &slope));
    printf("slope %.9f, by difference %.9f\n", slope, (up - down) / (2 * step));
    ts_tensor *meta = ts_to_device(x, TS_DEVICE_META); // shapes alone: the rule is enough
    TS_TRY(ts_print(softsign_gate(meta, meta)));
    return fabs(slope - (up - down) / (2 * step)) < 1e-8
               ? TS_OK
               : ts_error_set(TS_ERR_STATE, "the gradient is wrong");
}

int main(int argc, char **argv)
{
    int ended;
    static const char about[] =
        "Registers a user-defined operator, and checks its gradients by differences.";
    if (!ts_program_begin(argc, argv, about, NULL, 0, &ended))
        return ended;
    ts_status status = run();
    ts_error_print(); // prints nothing without an error
    return ts_program_end(status == TS_OK ? EXIT_SUCCESS : EXIT_FAILURE);
}
