/**
 * @file mlp_amp.c  The network of mlp.c, trained in mixed precision.
 *
 *     build/examples/mlp_amp [--compile] [bf16|f16|f32] [steps]
 *
 * Matrix products run in the given dtype, the loss in f32. With f16 the gradients are scaled.
 * Parameters stay f32. With --compile, each step is a compiled function, with the same bits. Exit
 * status 0 if the last loss is below 0.001.
 */
// SPDX-License-Identifier: MIT
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/tessera.h>

static ts_module *make_network(void)
{
    ts_module *net = ts_sequential_new();
    if (ts_sequential_add(net, ts_linear_new(2, 64, true)) == TS_OK &&
        ts_sequential_add(net, ts_activation_new("Tanh", ts_tanh)) == TS_OK &&
        ts_sequential_add(net, ts_linear_new(64, 64, true)) == TS_OK &&
        ts_sequential_add(net, ts_activation_new("Tanh", ts_tanh)) == TS_OK &&
        ts_sequential_add(net, ts_linear_new(64, 1, true)) == TS_OK)
        return net;
    ts_module_free(net);
    return NULL;
}

typedef struct training {
    ts_module *net;
    ts_optimizer *optimizer;
    ts_grad_scaler *scaler;
    ts_dtype dtype; // of matrix products; TS_DTYPE_NONE: as without autocast
} training;

/** Trains on 128 new points of y = sin(3 a) * b. *out: mean squared error before the update. */
static ts_status learn(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)in, (void)n, (void)m;
    const training *t = ctx;
    TS_SCOPE;
    ts_tensor *x = ts_uniform(TS_SIZES(128, 2), -1, 1, TS_F32);
    ts_tensor *a = ts_narrow(x, 1, 0, 1), *b = ts_narrow(x, 1, 1, 1); // (128, 1) each
    ts_tensor *y = ts_mul(ts_sin(ts_mul_scalar(a, 3)), b), *error;
    {
        TS_AUTOCAST(TS_DEVICE_CPU, t->dtype);        // linear layers in dtype, the loss in f32
        error = ts_mse_loss(ts_forward(t->net, x), y);
    }
    TS_TRY(ts_backward(ts_grad_scaler_scale(t->scaler, error)));
    // unscales and clips; skips the step if a gradient is not finite
    TS_TRY(ts_grad_scaler_step(t->scaler, t->optimizer));
    TS_TRY(ts_grad_scaler_update(t->scaler));
    ts_optimizer_zero_grad(t->optimizer);
    *out = ts_keep(ts_detach(error));
    return TS_OK;
}

/** Runs a step, eagerly if `compiled` is NULL, and reads its loss. */
static ts_status train_step(training *t, ts_compiled *compiled, double *loss)
{
    TS_SCOPE;
    ts_tensor *error;
    TS_TRY(compiled ? ts_compiled_call(compiled, NULL, 0, &error, 1)
                    : learn(t, NULL, 0, &error, 1));
    return ts_item(error, loss);
}

int main(int argc, char **argv)
{
    const char *name = "bf16";
    int64_t steps = 1000;
    bool compile = false;
    int status;
    const ts_argument arguments[] = {
        {"--compile", "run each step as a compiled function", .flag = &compile},
        {"DTYPE", "dtype of matrix products", .text = &name, .one_of = "bf16|f16|f32"},
        {"STEPS", "training steps", .number = &steps, .least = 1, .most = 1000000000},
    };
    if (!ts_program_begin(argc, argv, "Trains a small network in mixed precision.", arguments, 3,
                          &status))
        return status;
    ts_dtype dtype = strcmp(name, "f16") == 0    ? TS_F16
                     : strcmp(name, "bf16") == 0 ? TS_BF16
                                                 : TS_DTYPE_NONE;
    double loss = 1;
    ts_manual_seed(1);
    ts_module *net = make_network();
    ts_group_opts opts = ts_optimizer_defaults(TS_ADAMW, 0.01);
    training t = {net, ts_optimizer_for(net, TS_ADAMW, &opts), .dtype = dtype};
    ts_optimizer_set_max_norm(t.optimizer, 1);
    ts_schedule schedule = {.kind = TS_SCHEDULE_COSINE, .warmup_steps = 20, .total_steps = steps};
    t.scaler = ts_grad_scaler_new(TS_OPTS(ts_grad_scaler_opts, .disabled = dtype != TS_F16));
    ts_compiled *compiled = NULL;
    if (t.optimizer && t.scaler && compile)
        compiled = ts_compile(learn, &t, TS_OPTS(ts_compile_opts, .name = "step", .replay = true));
    bool ready = t.optimizer && t.scaler && (compiled || !compile);
    for (int64_t step = 0; ready && step < steps; step++) {
        if (ts_schedule_apply(&schedule, t.optimizer, step) != TS_OK ||
            train_step(&t, compiled, &loss) != TS_OK)
            break;
        if (step % 100 == 0 || step == steps - 1)
            printf("step %4d  loss %.6f  scale %g\n", (int)step, loss,
                   ts_grad_scaler_get_scale(t.scaler));
    }
    ts_error_print(); // prints nothing without an error
    ts_compiled_free(compiled);
    ts_grad_scaler_free(t.scaler);
    ts_optimizer_free(t.optimizer);
    ts_module_free(net);
    return ts_program_end(ts_error_code() == TS_OK && loss < 0.001 ? 0 : EXIT_FAILURE);
}
