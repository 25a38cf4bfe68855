/** @file gpt.c  A small GPT on a GPU: the loss curve of the CPU from the same seed, and a run that
 * continues from a checkpoint. */
// SPDX-License-Identifier: MIT
#include "tests/cuda/cuda.h"

#include <math.h>
#include <unistd.h>

enum { LAYERS = 2, HEADS = 2, C = 64, T = 32, B = 4, V = 64, STEPS = 30 };

typedef struct block {
    ts_module *ln1, *attention, *ln2, *mlp;
} block;

static ts_tensor *block_forward(ts_module *m, ts_tensor *x) // (B, T, C) -> (B, T, C)
{
    block *b = ts_module_payload(m);
    x = ts_add(x, ts_forward(b->attention, ts_forward(b->ln1, x)));
    return ts_add(x, ts_forward(b->mlp, ts_forward(b->ln2, x)));
}

static ts_module *block_new(void)
{
    static const ts_module_type type = {sizeof type, "Block", sizeof(block), block_forward, NULL};
    ts_module *m = ts_module_new(&type);
    block *b = ts_module_payload(m);
    const ts_multihead_opts *causal = TS_OPTS(ts_multihead_opts, .causal = true);
    const ts_mlp_opts *gelu = TS_OPTS(ts_mlp_opts, .activation = ts_gelu_tanh);
    OK(ts_module_add(m, "ln1", ts_layer_norm_new(C, 0, true), &b->ln1));
    OK(ts_module_add(m, "attention", ts_multihead_new(C, HEADS, causal), &b->attention));
    OK(ts_module_add(m, "ln2", ts_layer_norm_new(C, 0, true), &b->ln2));
    OK(ts_module_add(m, "mlp", ts_mlp_new(C, 4 * C, gelu), &b->mlp));
    return m;
}

static ts_module *gpt_new(void)
{
    ts_module *m = ts_sequential_new();
    OK(ts_sequential_add(m, ts_embedding_new(V, C)));
    for (int i = 0; i < LAYERS; i++)
        OK(ts_sequential_add(m, block_new()));
    OK(ts_sequential_add(m, ts_layer_norm_new(C, 0, true)));
    OK(ts_sequential_add(m, ts_linear_new(C, V, false)));
    return m;
}

/** A model on the thread's default device, and its optimizer. */
static ts_training training_new(void)
{
    ts_training t = {.size = sizeof t, .model = gpt_new()};
    ts_group_opts adamw = ts_optimizer_defaults(TS_ADAMW, 1e-3);
    t.optimizer = ts_optimizer_for(t.model, TS_ADAMW, &adamw);
    ck_assert_msg(t.optimizer, "%s", ts_error_message());
    return t;
}

static void training_free(ts_training *t)
{
    ts_optimizer_free(t->optimizer);
    ts_module_free(t->model);
}

/** One step on tokens that depend only on the number of the step. Returns the loss. */
static double step(ts_training *t, ts_device device)
{
    TS_SCOPE;
    int64_t text[B * (T + 1)], n;
    double value;
    for (int i = 0; i < B * (T + 1); i++)
        text[i] = (7 * (i % (T + 1)) + 13 * (i / (T + 1)) + 5 * t->step) % V;
    ts_tensor *all = ts_to_device(ts_from_array(text, TS_I64, TS_SIZES(B, T + 1)), device);
    ts_tensor *logits = ts_forward(t->model, ts_narrow(all, 1, 0, T)); // (B, T, V)
    ts_tensor *loss = ts_cross_entropy(ts_reshape(logits, TS_SIZES(-1, V)),
                                       ts_reshape(ts_narrow(all, 1, 1, T), TS_SIZES(-1)));
    OK(ts_backward(loss));
    ts_tensor *const *params = ts_optimizer_params(t->optimizer, &n);
    OK(ts_clip_grad_norm(params, n, 1.0, NULL));
    OK(ts_optimizer_step(t->optimizer));
    ts_optimizer_zero_grad(t->optimizer);
    OK(ts_item(loss, &value));
    t->step++;
    return value;
}

/* Both devices draw the same weights up to rounding. Bound: 1e-3 of the loss, over 30 steps. */
TS_TEST(a_GPT_trains_along_the_curve_of_the_CPU)
{
    GPU(device);
    ts_device devices[] = {device, TS_DEVICE_CPU};
    double curves[2][STEPS];
    for (int d = 0; d < 2; d++) {
        TS_SCOPE;
        OK(ts_set_default_device(devices[d]));
        ts_manual_seed(3);
        ts_training t = training_new();
        for (int i = 0; i < STEPS; i++)
            curves[d][i] = step(&t, devices[d]);
        training_free(&t);
    }
    for (int i = 0; i < STEPS; i++)
        ck_assert_msg(fabs(curves[0][i] - curves[1][i]) <= 1e-3 * curves[1][i],
                      "step %d: %.9g, on the CPU %.9g", i, curves[0][i], curves[1][i]);
    ck_assert_msg(curves[1][STEPS - 1] < 0.8 * curves[1][0], "nothing was learned: %g to %g",
                  curves[1][0], curves[1][STEPS - 1]);
}

TS_TEST(a_resumed_run_has_the_same_bits)
{
    GPU(device);
    TS_SCOPE;
    char folder[] = "/tmp/tessera-cuda-XXXXXX", command[64];
    double first[STEPS], again;
    ck_assert_ptr_nonnull(mkdtemp(folder));
    OK(ts_set_default_device(device));
    ts_manual_seed(3);
    ts_training t = training_new();
    for (int i = 0; i < STEPS; i++) {
        if (i == 10)
            OK(ts_training_save(&t, folder));
        first[i] = step(&t, device);
    }
    training_free(&t);
    ts_manual_seed(4);
    t = training_new();
    OK(ts_training_resume(&t, folder, NULL, 0));
    ck_assert_int_eq(t.step, 10);
    for (int i = 10; i < STEPS; i++) {
        again = step(&t, device);
        ck_assert_msg(again == first[i], "step %d: %.17g, before %.17g", i, again, first[i]);
    }
    training_free(&t);
    snprintf(command, sizeof command, "rm -r %s", folder);
    ck_assert_int_eq(system(command), 0);
}
