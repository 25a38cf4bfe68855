/**
 * @file mlp.c  Trains a small network on a function of two numbers: y = sin(3 a) * b.
 *
 *     build/examples/mlp [--plugin path] [--compile] [steps]
 *
 * Prints the loss every 100 steps and at the end. With --plugin, the first device of the backend in
 * that shared library does all computation for which it has kernels; the training code names no
 * device. With --compile, each step is a compiled function. Exit status 0 if the last loss is below
 * 0.001.
 */
// SPDX-License-Identifier: MIT
#include <stdio.h>
#include <stdlib.h>
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
} training;

/** Trains on 128 new random points. *out: the mean squared error before the update, 0-dim. */
static ts_status learn(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)in, (void)n, (void)m;
    const training *t = ctx;
    TS_SCOPE; // everything made below is released when the block ends
    ts_tensor *x = ts_uniform(TS_SIZES(128, 2), -1, 1, TS_F32);
    ts_tensor *a = ts_narrow(x, 1, 0, 1), *b = ts_narrow(x, 1, 1, 1); // (128, 1) each
    ts_tensor *error = ts_sub(ts_forward(t->net, x), ts_mul(ts_sin(ts_mul_scalar(a, 3)), b));
    ts_tensor *mean = ts_mean(ts_mul(error, error));
    TS_TRY(ts_backward(mean)); // also fails if a call above failed
    TS_TRY(ts_optimizer_step(t->optimizer));
    ts_optimizer_zero_grad(t->optimizer);
    *out = ts_keep(ts_detach(mean));
    return TS_OK;
}

/** Runs a step, eagerly if `compiled` is NULL, and reads its loss. */
static ts_status train_step(training *t, ts_compiled *compiled, double *loss)
{
    TS_SCOPE;
    ts_tensor *mean;
    TS_TRY(compiled ? ts_compiled_call(compiled, NULL, 0, &mean, 1) : learn(t, NULL, 0, &mean, 1));
    return ts_item(mean, loss);
}

/** Loads a backend. New tensors and parameters are then made on its first device, *device. */
static ts_status use_plugin(const char *path, ts_device *device)
{
    TS_TRY(ts_backend_load(path, &device->backend));
    printf("training on %s\n", ts_device_name(*device));
    return ts_set_default_device(*device);
}

int main(int argc, char **argv)
{
    ts_device device = TS_DEVICE_CPU;
    const char *plugin = NULL;
    int64_t steps = 1000;
    bool compile = false;
    int status;
    const ts_argument arguments[] = {
        {"--plugin", "shared library of a backend, to train on its first device", .text = &plugin},
        {"--compile", "run each step as a compiled function", .flag = &compile},
        {"STEPS", "training steps", .number = &steps, .least = 1, .most = 1000000000},
    };
    if (!ts_program_begin(argc, argv, "Trains a small network on y = sin(3 a) * b.", arguments, 3,
                          &status))
        return status;
    if (plugin && use_plugin(plugin, &device) != TS_OK) {
        ts_error_print();
        return EXIT_FAILURE;
    }
    double loss = 1;
    ts_manual_seed(1);
    ts_module *net = make_network();
    ts_group_opts opts = ts_optimizer_defaults(TS_ADAMW, 0.01);
    training t = {net, ts_optimizer_for(net, TS_ADAMW, &opts)};
    ts_compiled *compiled = NULL;
    if (t.optimizer && compile)
        compiled = ts_compile(learn, &t, TS_OPTS(ts_compile_opts, .name = "step", .replay = true));
    bool ready = t.optimizer && (compiled || !compile);
    ts_schedule schedule = {.kind = TS_SCHEDULE_COSINE, .warmup_steps = 20, .total_steps = steps};
    for (int64_t step = 0; ready && step < steps; step++) {
        if (ts_schedule_apply(&schedule, t.optimizer, step) != TS_OK ||
            train_step(&t, compiled, &loss) != TS_OK)
            break;
        if (step % 100 == 0 || step == steps - 1)
            printf("step %4d  loss %.6f\n", (int)step, loss);
    }
    ts_backend_stats stats;
    if (device.backend != TS_DEVICE_CPU.backend &&
        ts_backend_get_stats(device.backend, &stats) == TS_OK)
        printf("%llu calls had no kernel there and ran on the CPU\n",
               (unsigned long long)stats.round_trips);
    ts_error_print(); // prints nothing without an error
    ts_compiled_free(compiled);
    ts_optimizer_free(t.optimizer);
    ts_module_free(net);
    return ts_program_end(ts_error_code() == TS_OK && loss < 0.001 ? 0 : EXIT_FAILURE);
}
