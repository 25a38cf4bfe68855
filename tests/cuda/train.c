/** @file train.c  Training on a GPU: the CPU's curve, the same bits each time, and no system
 * allocations in steady state. */
// SPDX-License-Identifier: MIT
#include "tests/cuda/cuda.h"

#include <math.h>

enum { IN = 2, HIDDEN = 64, ROWS = 128, PARAMS = 6, STEPS = 100 };

/** Three linear layers with tanh between them, and AdamW. */
typedef struct network {
    ts_tensor *params[PARAMS]; // weight and bias of each
    ts_optimizer *optimizer;
} network;

/** Drawn on the CPU, then moved: the same numbers everywhere. */
static ts_tensor *drawn(ts_device device, int64_t rows, int64_t columns, double std)
{
    ts_tensor *t = ts_normal(TS_SIZES(rows, columns), 0, std, TS_F32);
    return device.backend == TS_DEVICE_CPU.backend ? t : ts_to_device(t, device);
}

static network network_new(ts_device device)
{
    static const int64_t sizes[] = {IN, HIDDEN, HIDDEN, 1};
    static const char *const names[PARAMS] = {"w1", "b1", "w2", "b2", "w3", "b3"};
    network net = {.optimizer = ts_optimizer_new(TS_ADAMW)};
    ts_group_opts opts = ts_optimizer_defaults(TS_ADAMW, 0.003);
    TS_SCOPE;
    for (int i = 0; i < PARAMS / 2; i++) {
        ts_tensor *w = drawn(device, sizes[i + 1], sizes[i], 1 / sqrt((double)sizes[i]));
        ts_tensor *b = ts_select(drawn(device, 1, sizes[i + 1], 0.1), 0, 0);
        net.params[2 * i] = ts_retain(ts_set_requires_grad(w, true));
        net.params[2 * i + 1] = ts_retain(ts_set_requires_grad(ts_clone(b), true));
    }
    OK(ts_optimizer_add_group(net.optimizer, names, net.params, PARAMS, &opts));
    return net;
}

static void network_free(network *net)
{
    ts_optimizer_free(net->optimizer);
    for (int i = 0; i < PARAMS; i++)
        ts_release(net->params[i]);
}

/** y = sin(3 a) b on fresh points. */
static double step(network *net, ts_device device)
{
    TS_SCOPE;
    double value;
    ts_tensor *x = drawn(device, ROWS, IN, 1), *const *p = net->params;
    ts_tensor *a = ts_narrow(x, 1, 0, 1), *b = ts_narrow(x, 1, 1, 1); // (ROWS, 1) each
    ts_tensor *y = ts_tanh(ts_linear(x, p[0], p[1]));
    y = ts_linear(ts_tanh(ts_linear(y, p[2], p[3])), p[4], p[5]);
    ts_tensor *loss = ts_mse_loss(y, ts_mul(ts_sin(ts_mul_scalar(a, 3)), b));
    OK(ts_backward(loss));
    OK(ts_clip_grad_norm(p, PARAMS, 1.0, NULL));
    OK(ts_optimizer_step(net->optimizer));
    ts_optimizer_zero_grad(net->optimizer);
    OK(ts_item(loss, &value));
    return value;
}

/* Products and sums in another order differ by some eps (1.2e-7) per step, which Adam amplifies
 * where gradients are near 0. Bound: 1e-3 of the loss, over 100 steps. */
TS_TEST(a_network_trains_along_the_curve_of_the_CPU)
{
    GPU(device);
    TS_SCOPE;
    double there[STEPS], here[STEPS];
    ts_device devices[] = {device, TS_DEVICE_CPU};
    double *curves[] = {there, here};
    for (int d = 0; d < 2; d++) {
        ts_manual_seed(5);
        network net = network_new(devices[d]);
        for (int i = 0; i < STEPS; i++)
            curves[d][i] = step(&net, devices[d]);
        network_free(&net);
    }
    for (int i = 0; i < STEPS; i++)
        ck_assert_msg(fabs(there[i] - here[i]) <= 1e-3 * here[i], "step %d: %.9g, on the CPU %.9g",
                      i, there[i], here[i]);
    ck_assert_msg(here[STEPS - 1] < 0.5 * here[0], "nothing was learned: %g to %g", here[0],
                  here[STEPS - 1]);
}

static uint64_t hash_of(const network *net)
{
    TS_SCOPE;
    uint64_t hash = 0xcbf29ce484222325u;
    for (int i = 0; i < PARAMS; i++) {
        float *values = values_of(ts_detach(net->params[i]));
        const unsigned char *bytes = (const unsigned char *)values;
        for (int64_t k = 0; k < ts_numel(net->params[i]) * 4; k++)
            hash = (hash ^ bytes[k]) * 0x100000001b3u;
        free(values);
    }
    return hash;
}

TS_TEST(ten_runs_end_with_the_same_bits)
{
    GPU(device);
    TS_SCOPE;
    OK(ts_set_deterministic(true));
    uint64_t first = 0;
    for (int run = 0; run < 10; run++) {
        TS_SCOPE;
        /* gives the blocks other addresses in each run */
        ts_tensor *odd = full_on(device, 1000 * run + 17, 1);
        (void)odd;
        ts_manual_seed(5);
        network net = network_new(device);
        for (int i = 0; i < 50; i++)
            step(&net, device);
        uint64_t hash = hash_of(&net);
        network_free(&net);
        if (run == 0)
            first = hash;
        ck_assert_msg(hash == first, "run %d: %016llx, the first one %016llx", run,
                      (unsigned long long)hash, (unsigned long long)first);
    }
}

/** Hash of the gradients of attention, whose keys are shared by heads,
 * and of an embedding with few rows. */
static uint64_t hash_of_backward(ts_device device, ts_dtype dtype)
{
    TS_SCOPE;
    enum { ROWS_OF_TABLE = 11, T = 700, C = 64, HEADS = 4 };
    int64_t index[T];
    ts_tensor *leaves[4]; /* table, query, key, value */
    ts_manual_seed(4);
    OK(ts_set_default_device(device));
    for (int i = 0; i < T; i++)
        index[i] = i * 7 % ROWS_OF_TABLE;
    for (int i = 0; i < 4; i++)
        leaves[i] =
            ts_set_requires_grad(i ? ts_normal(TS_SIZES(1, i == 1 ? HEADS : 2, T, C), 0, 1, dtype)
                                   : ts_normal(TS_SIZES(ROWS_OF_TABLE, C), 0, 1, dtype),
                                 true);
    ts_tensor *words = ts_embedding(
        leaves[0], ts_to_device(ts_from_array(index, TS_I64, TS_SIZES(T)), device), -1); // (T, C)
    ts_attention_opts opts = {.size = sizeof opts, .causal = true};
    ts_tensor *y = ts_scaled_dot_product_attention_ex(ts_mul(leaves[1], words), leaves[2],
                                                      leaves[3], NULL, &opts);
    OK(ts_backward(ts_sum(ts_mul(y, y))));
    uint64_t hash = 0xcbf29ce484222325u;
    for (int i = 0; i < 4; i++) {
        ts_tensor *g = ts_to(ts_grad(leaves[i]), TS_F32);
        float *values = values_of(g);
        for (int64_t k = 0; k < ts_numel(g) * 4; k++)
            hash = (hash ^ ((unsigned char *)values)[k]) * 0x100000001b3u;
        free(values);
    }
    return hash;
}

TS_TEST(ten_backward_passes_of_attention_and_embedding_have_the_same_bits, .loop = 3)
{
    GPU(device);
    static const ts_dtype dtypes[] = {TS_F32, TS_BF16, TS_F16};
    OK(ts_set_deterministic(true));
    uint64_t first = hash_of_backward(device, dtypes[_i]);
    for (int run = 1; run < 10; run++) {
        TS_SCOPE;
        full_on(device, 1000 * run + 17, 1); /* so that blocks lie elsewhere each time */
        uint64_t hash = hash_of_backward(device, dtypes[_i]);
        ck_assert_msg(hash == first, "run %d: %016llx, the first one %016llx", run,
                      (unsigned long long)hash, (unsigned long long)first);
    }
}

TS_TEST(repeated_steps_allocate_no_system_memory)
{
    GPU(device);
    TS_SCOPE;
    network net = network_new(device);
    for (int i = 0; i < 10; i++)
        step(&net, device);
    uint64_t there = memory_of(device).system_allocs, here = ts_memory_get_stats().system_allocs;
    int64_t held = memory_of(device).in_use;
    for (int i = 0; i < 100; i++)
        step(&net, device);
    ck_assert_uint_eq(memory_of(device).system_allocs, there);
    ck_assert_uint_eq(ts_memory_get_stats().system_allocs, here);
    ck_assert_int_eq(memory_of(device).in_use, held);
    network_free(&net);
}
