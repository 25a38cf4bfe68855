/**
 * @file bench_step.c
 * Times a training step of a small GPT (forward, backward, clipping, AdamW; batch and loss stay on
 * the device): eager, compiled, and compiled as a graph, in turn. Milliseconds a step, and of these
 * the host's until the call returns, both as medians of nine batches.
 *
 *   bench_step [B T C LAYERS HEADS]     without arguments: 16 128 128 4 4, the model of train_gpt
 */
// SPDX-License-Identifier: MIT
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <tessera/tessera.h>

enum { VOCABULARY = 256, BATCHES = 9, STEPS = 40, WARM = 10 };

typedef struct model {
    ts_module *all;
    ts_optimizer *optimizer;
} model;

/** x + f(norm(x)) of two members. */
static ts_tensor *residual_forward(ts_module *m, ts_tensor *x)
{
    ts_module **f = ts_module_payload(m);
    return ts_add(x, ts_forward(f[1], ts_forward(f[0], x)));
}

static ts_module *residual_new(int64_t c, ts_module *inner)
{
    static const ts_module_type type = {sizeof type, "Residual", 2 * sizeof(ts_module *),
                                        residual_forward, NULL};
    ts_module *m = ts_module_new(&type), **f = m ? ts_module_payload(m) : NULL;
    if (m && ts_module_add(m, "norm", ts_layer_norm_new(c, 0, true), &f[0]) == TS_OK &&
        ts_module_add(m, "inner", inner, &f[1]) == TS_OK)
        return m;
    ts_module_free(m);
    return NULL;
}

static ts_status model_new(model *m, const int64_t *n)
{
    ts_multihead_opts causal = {.size = sizeof causal, .causal = true};
    ts_mlp_opts mlp = {.size = sizeof mlp, .activation = ts_gelu_tanh};
    ts_group_opts adamw = ts_optimizer_defaults(TS_ADAMW, 1e-3);
    ts_manual_seed(1);
    TS_TRY(m->all = ts_sequential_new());
    TS_TRY(ts_sequential_add(m->all, ts_embedding_new(VOCABULARY, n[2])));
    for (int64_t i = 0; i < n[3]; i++) {
        TS_TRY(ts_sequential_add(
            m->all, residual_new(n[2], ts_multihead_new(n[2], n[4], &causal))));
        TS_TRY(ts_sequential_add(m->all, residual_new(n[2], ts_mlp_new(n[2], 4 * n[2], &mlp))));
    }
    TS_TRY(ts_sequential_add(m->all, ts_layer_norm_new(n[2], 0, true)));
    TS_TRY(ts_sequential_add(m->all, ts_linear_new(n[2], VOCABULARY, false)));
    TS_TRY(m->optimizer = ts_optimizer_for(m->all, TS_ADAMW, &adamw));
    return ts_optimizer_set_max_norm(m->optimizer, 1);
}

static ts_status step(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int k)
{
    (void)n, (void)k;
    model *m = ctx;
    TS_SCOPE;
    ts_tensor *loss = ts_cross_entropy_last(ts_forward(m->all, in[0]), in[1]);
    TS_TRY(ts_backward(loss));
    TS_TRY(ts_optimizer_step(m->optimizer));
    ts_optimizer_zero_grad(m->optimizer);
    *out = ts_keep(ts_detach(loss));
    return TS_OK;
}

static double now(void) /* milliseconds */
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static ts_status time_steps(const char *name, ts_device device, const int64_t *n, bool compiled,
                            bool graph)
{
    TS_SCOPE;
    model m = {0};
    double all[BATCHES], host[BATCHES];
    ts_compiled *c = NULL;
    TS_TRY(model_new(&m, n));
    ts_tensor *in[] = {ts_randint(TS_SIZES(n[0], n[1]), 0, VOCABULARY),
                       ts_randint(TS_SIZES(n[0], n[1]), 0, VOCABULARY)}, *loss;
    if (compiled)
        TS_TRY(c = ts_compile(step, &m, TS_OPTS(ts_compile_opts, .name = name, .graph = graph)));
    for (int k = -WARM; k < BATCHES; k++) {
        TS_TRY(ts_synchronize(device));
        double begin = now(), queued = 0;
        for (int i = 0; i < (k < 0 ? 1 : STEPS); i++) {
            TS_SCOPE;
            double before = now();
            ts_optimizer_group(m.optimizer, 0)->lr *= 0.999;
            TS_TRY(c ? ts_compiled_call(c, in, 2, &loss, 1) : step(&m, in, 2, &loss, 1));
            queued += now() - before;
        }
        TS_TRY(ts_synchronize(device));
        if (k >= 0) {
            all[k] = (now() - begin) / STEPS;
            host[k] = queued / STEPS;
        }
    }
    qsort(all, BATCHES, sizeof *all, by_value);
    qsort(host, BATCHES, sizeof *host, by_value);
    printf("%s\t%.3f\t%.3f\n", name, all[BATCHES / 2], host[BATCHES / 2]);
    ts_compiled_free(c);
    ts_optimizer_free(m.optimizer);
    ts_module_free(m.all);
    return TS_OK;
}

int main(int argc, char **argv)
{
    int64_t n[5] = {16, 128, 128, 4, 4};
    ts_device device;
    for (int i = 0; i < 5 && argc == 6; i++)
        n[i] = strtoll(argv[i + 1], NULL, 10);
    if (ts_device_open("auto", &device, NULL, 0) != TS_OK ||
        ts_set_default_device(device) != TS_OK) {
        ts_error_print();
        return 1;
    }
    printf("%s\tms\thost ms\n", ts_device_name(device));
    if (time_steps("eager", device, n, false, false) != TS_OK ||
        time_steps("compiled", device, n, true, false) != TS_OK ||
        time_steps("graph", device, n, true, true) != TS_OK) {
        ts_error_print();
        return 1;
    }
    return 0;
}
