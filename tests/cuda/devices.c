/** @file devices.c  Two GPUs in one process: copies between them, kernels on the second GPU after
 * the first has run them, and each GPU's memory, streams and threads. Skipped with one GPU. */
// SPDX-License-Identifier: MIT
#include "tests/cuda/cuda.h"
#include "tests/threads.h"

#ifndef TWO_GPUS
#define TWO_GPUS(first, second)                 \
    GPU(first);                                 \
    ts_device second = {first.backend, 1};      \
    if (ts_device_count(first.backend) < 2)     \
    TS_SKIP("there is one GPU alone")
#endif

static ts_tensor *normal_on(ts_device device, const int64_t *sizes, int ndim, ts_dtype dtype)
{
    return ts_to_device(ts_to(ts_normal(sizes, ndim, 0, 1, TS_F32), dtype), device);
}

/** True if two tensors, wherever they are, have the same bits. */
static bool same_bits(ts_tensor *a, ts_tensor *b)
{
    size_t bytes = (size_t)ts_numel(a) * ts_dtype_size(ts_dtype_of(a));
    char *x = malloc(bytes), *y = malloc(bytes);
    OK(ts_copy_to(a, x, bytes));
    OK(ts_copy_to(b, y, bytes));
    bool same = ts_numel(a) == ts_numel(b) && memcmp(x, y, bytes) == 0;
    free(x), free(y);
    return same;
}

/* ------------------------------------------------------------------------------ copies ---- */

/* Products with a matrix of 1 / 1024 make the source, which takes time; each result is i again. The
 * source's memory is overwritten right after the copy is queued. */
TS_TEST(copies_between_devices_are_ordered_with_the_streams_of_both, .loop = 4)
{
    TWO_GPUS(first, second);
    enum { N = 1 << 20, ROUNDS = 40 };
    ts_device from = _i % 2 ? second : first, to = _i % 2 ? first : second;
    ts_stream *streams[2] = {NULL, NULL};
    TS_SCOPE;
    if (_i / 2) {
        OK(ts_stream_new(from, &streams[0]));
        OK(ts_stream_new(to, &streams[1]));
        OK(ts_stream_use(from, streams[0]));
        OK(ts_stream_use(to, streams[1]));
    }
    ts_tensor *a = ts_view(full_on(from, 1024 * 1024, 1.0 / 1024), TS_SIZES(1024, 1024));
    ts_tensor *y[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        TS_SCOPE;
        ts_tensor *x = full_on(from, N, i);
        for (int k = 0; k < 4; k++)
            x = ts_view(ts_mm(a, ts_view(x, TS_SIZES(1024, 1024))), TS_SIZES(N));
        OK(y[i] = ts_keep(ts_to_device(x, to)));
        ts_drop(x);
        OK(full_on(from, N, -1));
    }
    for (int i = 0; i < ROUNDS; i++)
        ck_assert_msg(all_are(y[i], (float)i), "round %d", i);
    for (int i = 0; i < ROUNDS; i++)
        ts_drop(y[i]);
    ts_stream_free(from, streams[0]);
    ts_stream_free(to, streams[1]);
}

TS_TEST(copies_between_devices_broadcast_and_convert_as_on_one_device, .loop = 2)
{
    TWO_GPUS(first, second);
    TS_SCOPE;
    ts_device from = _i ? second : first, to = _i ? first : second;
    ts_tensor *x = ts_arange(0, 40, 1, TS_F32), *y = ts_zeros(TS_SIZES(40, 60), TS_F64);
    ts_tensor *there = ts_to_device(y, to), *source = ts_to_device(x, from);
    OK(ts_copy_(ts_transpose(ts_slice(there, 1, 0, 60, 2), 0, 1), source));
    OK(ts_copy_(ts_transpose(ts_slice(y, 1, 0, 60, 2), 0, 1), x));
    ck_assert(same_bits(there, y));
    ck_assert(same_bits(source, x));
}

/* Pinned memory is allocated through one device, and all devices read it. It may be released before
 * the copy has run. */
TS_TEST(pinned_memory_of_one_device_may_be_copied_to_the_other)
{
    TWO_GPUS(first, second);
    TS_SCOPE;
    enum { N = 8 << 20, ROUNDS = 20 };
    ts_tensor *y[ROUNDS];
    OK(full_on(second, 1, 0));
    for (int i = 0; i < ROUNDS; i++) {
        ts_tensor *host = ts_empty_pinned(TS_SIZES(N), TS_F32, first);
        OK(host);
        OK(ts_fill_(host, i));
        OK(y[i] = ts_to_device(host, second));
        ts_drop(host);
    }
    for (int i = 0; i < ROUNDS; i++)
        ck_assert_msg(all_are(y[i], (float)i), "round %d", i);
}

TS_TEST(ops_with_tensors_of_two_devices_fail_naming_both)
{
    TWO_GPUS(first, second);
    TS_SCOPE;
    ts_tensor *a = ts_view(full_on(first, 6, 1), TS_SIZES(2, 3));
    ts_tensor *b = ts_view(full_on(second, 6, 2), TS_SIZES(2, 3)), *turned = ts_transpose(b, 0, 1);
    int64_t zeros[6] = {0};
    ts_tensor *index = ts_to_device(ts_from_array(zeros, TS_I64, TS_SIZES(2, 3)), second);
#define REFUSED(op, expr)                                                               \
    do {                                                                                \
        ts_error_clear();                                                               \
        ts_status status = TS_STATUS_OF(expr);                                          \
        const char *text = ts_error_message();                                          \
        ck_assert_msg(status == TS_ERR_DEVICE && strstr(text, op ": argument '") &&     \
                          strstr(text, ts_device_name(first)) &&                        \
                          strstr(text, ts_device_name(second)),                         \
                      "%s: %s", #expr, text);                                           \
    } while (0)
    REFUSED("add", ts_add(a, b));
    REFUSED("mul", ts_mul_(a, b));
    REFUSED("mm", ts_mm(a, turned));
    REFUSED("linear", ts_linear(a, b, TS_NONE));
    REFUSED("cat", ts_cat((ts_tensor *[]){a, b}, 2, 0));
    REFUSED("gather", ts_gather(a, 0, index));
    REFUSED("neg", ts_neg_out(a, b));
    REFUSED("layer_norm", ts_layer_norm(a, ts_select(b, 0, 0), TS_NONE));
#undef REFUSED
    ts_error_clear();
    ck_assert(all_are(ts_add(a, a), 2) && all_are(ts_add(b, b), 4));
}

/* ----------------------------------------------------------------------------- kernels ---- */

/* Rows in registers, in clusters of 4 and 8, and longer than a cluster: results and gradients. */
static const int64_t widths[] = {8192, 16384, 36864, 65536, 131072, 262144};
enum { WIDTHS = sizeof widths / sizeof *widths };

enum { SOFTMAX, LAYER_NORM, CROSS_ENTROPY, ROW_OPS };

/** out[0] is a result, out[1] a gradient, of the same numbers on any device. */
static void run_rows(ts_device device, int op, int64_t n, ts_dtype dtype, ts_tensor *out[2])
{
    ts_manual_seed(6);
    ts_tensor *x = ts_set_requires_grad(normal_on(device, TS_SIZES(40, n), dtype), true);
    ts_tensor *g = normal_on(device, TS_SIZES(40, n), dtype);
    ts_tensor *w = normal_on(device, TS_SIZES(n), dtype);
    if (op == CROSS_ENTROPY) {
        ts_tensor *target = ts_to_device(ts_arange(0, 40, 1, TS_I64), device);
        OK(out[1] = ts_cross_entropy_grad(ts_detach(x), target, NULL, &out[0]));
        return;
    }
    out[0] = op == SOFTMAX ? ts_softmax(x, 1) : ts_layer_norm(x, w, TS_NONE);
    OK(out[0]);
    OK(ts_backward(ts_sum(ts_mul(out[0], g))));
    out[0] = ts_detach(out[0]);
    out[1] = ts_grad(x);
}

TS_TEST(long_rows_have_the_same_bits_on_the_second_device_after_the_first, .loop = 2 * WIDTHS)
{
    TWO_GPUS(first, second);
    ts_dtype dtype = _i % 2 ? TS_BF16 : TS_F32;
    for (int op = 0; op < ROW_OPS; op++) {
        TS_SCOPE;
        ts_tensor *there[2], *here[2];
        run_rows(first, op, widths[_i / 2], dtype, here);
        run_rows(second, op, widths[_i / 2], dtype, there);
        ck_assert_int_eq(ts_device_of(there[0]).index, 1);
        ck_assert_msg(same_bits(here[0], there[0]), "op %d: results differ", op);
        ck_assert_msg(same_bits(here[1], there[1]), "op %d: gradients differ", op);
    }
}

/** Result and gradients of causal attention. */
static void run_attention(ts_device device, ts_dtype dtype, int64_t depth, ts_tensor *out[4])
{
    ts_tensor *leaves[3];
    ts_manual_seed(8);
    for (int i = 0; i < 3; i++)
        leaves[i] = ts_set_requires_grad(normal_on(device, TS_SIZES(2, 3, 300, depth), dtype),
                                         true);
    ts_attention_opts opts = {.size = sizeof opts, .causal = true};
    out[0] = ts_scaled_dot_product_attention_ex(leaves[0], leaves[1], leaves[2], NULL, &opts);
    OK(out[0]);
    OK(ts_backward(ts_sum(ts_mul(out[0], out[0]))));
    out[0] = ts_detach(out[0]);
    for (int i = 0; i < 3; i++)
        out[1 + i] = ts_grad(leaves[i]);
}

TS_TEST(attention_has_the_same_bits_on_the_second_device_after_the_first, .loop = 6)
{
    TWO_GPUS(first, second);
    TS_SCOPE;
    static const int64_t depths[] = {64, 128, 256};
    ts_tensor *there[4], *here[4];
    OK(ts_set_deterministic(true));
    run_attention(first, _i % 2 ? TS_BF16 : TS_F32, depths[_i / 2], here);
    run_attention(second, _i % 2 ? TS_BF16 : TS_F32, depths[_i / 2], there);
    for (int i = 0; i < 4; i++)
        ck_assert_msg(same_bits(here[i], there[i]), "%d of result and gradients", i);
}

/* A line of a scatter is in shared memory; sums of integers are exact in any order. */
TS_TEST(scatters_into_lines_of_growing_length_are_the_CPUs_on_both_devices)
{
    TWO_GPUS(first, second);
    static const int64_t lengths[] = {1000, 9000, 24000, 17000};
    ts_device devices[] = {first, second, second, first};
    ts_manual_seed(3);
    for (int i = 0; i < 8; i++) {
        TS_SCOPE;
        int64_t n = lengths[i / 2];
        ts_device device = devices[i % 4];
        ts_tensor *x = ts_to(ts_randint(TS_SIZES(96, n), 0, 9), TS_F32);
        ts_tensor *index = ts_randint(TS_SIZES(96, n), 0, n);
        ts_tensor *sums = ts_scatter_add(ts_to_device(x, device), 1, ts_to_device(index, device),
                                         ts_to_device(x, device));
        OK(sums);
        ck_assert_msg(same_bits(sums, ts_scatter_add(x, 1, index, x)), "lines of %lld on %s",
                      (long long)n, ts_device_name(device));
    }
}

/* ------------------------------------------------------------------------------ memory ---- */

TS_TEST(memory_statistics_are_kept_per_device)
{
    TWO_GPUS(first, second);
    TS_SCOPE;
    enum { N = 1 << 20 };
    OK(full_on(second, 1, 0));
    ts_memory_stats before[2] = {memory_of(first), memory_of(second)};
    ts_tensor *t = full_on(second, 8 * N, 1);
    OK(t);
    ck_assert_int_eq(memory_of(first).in_use, before[0].in_use);
    ck_assert_int_eq(memory_of(second).in_use - before[1].in_use, 32 * (int64_t)N);
    ts_drop(t);
    ck_assert_int_eq(memory_of(second).in_use, before[1].in_use);
    OK(full_on(first, 1, 0)); /* makes the first device current while the second's peak is reset */
    int64_t peak = memory_of(first).peak;
    OK(ts_device_memory_reset_peak(second));
    ck_assert_int_eq(memory_of(second).peak, memory_of(second).in_use);
    ck_assert_int_eq(memory_of(first).peak, peak);
}

static bool release(int number, void *ctx)
{
    ts_tensor **tensors = ctx;
    ts_release(tensors[number]);
    return true;
}

TS_TEST(a_tensor_may_be_released_by_another_thread_while_another_device_is_current)
{
    TWO_GPUS(first, second);
    enum { N = 4 };
    ts_tensor *tensors[N];
    ts_device devices[] = {first, second};
    int64_t before[2];
    for (int d = 0; d < 2; d++) {
        TS_SCOPE;
        OK(full_on(devices[d], 1, 0));
    }
    for (int d = 0; d < 2; d++)
        before[d] = memory_of(devices[d]).in_use;
    for (int i = 0; i < N; i++) {
        TS_SCOPE;
        tensors[i] = ts_retain(full_on(devices[i % 2], 1000000, i));
        OK(tensors[i]);
    }
    ck_assert_int_eq(ts_together(N, release, tensors), N);
    for (int d = 0; d < 2; d++) {
        TS_SCOPE;
        ck_assert_int_eq(memory_of(devices[d]).in_use, before[d]);
        ck_assert(all_are(full_on(devices[d], 1000000, 7), 7));
    }
}

/* ------------------------------------------------------------------ training and threads ---- */

enum { STEPS = 30 };

/** Makes `device` the thread's default, trains a network on it and stores its losses. */
static bool train(ts_device device, double losses[STEPS])
{
    TS_SCOPE;
    ts_manual_seed(5);
    if (ts_set_default_device(device) != TS_OK)
        return false;
    ts_module *net = ts_sequential_new();
    ts_group_opts opts = ts_optimizer_defaults(TS_ADAMW, 0.01);
    bool good = ts_sequential_add(net, ts_linear_new(2, 64, true)) == TS_OK &&
                ts_sequential_add(net, ts_mlp_new(64, 64, NULL)) == TS_OK &&
                ts_sequential_add(net, ts_linear_new(64, 1, true)) == TS_OK;
    ts_optimizer *adamw = ts_optimizer_for(net, TS_ADAMW, &opts);
    good = good && adamw && ts_optimizer_set_max_norm(adamw, 1) == TS_OK;
    for (int i = 0; i < STEPS && good; i++) {
        TS_SCOPE;
        ts_tensor *x = ts_normal(TS_SIZES(128, 2), 0, 1, TS_F32);
        ts_tensor *y = ts_mul(ts_sin(ts_narrow(x, 1, 0, 1)), ts_narrow(x, 1, 1, 1));
        ts_tensor *loss = ts_mse_loss(ts_forward(net, x), y);
        good = ts_backward(loss) == TS_OK && ts_optimizer_step(adamw) == TS_OK &&
               ts_item(loss, &losses[i]) == TS_OK;
        ts_optimizer_zero_grad(adamw);
    }
    ts_optimizer_free(adamw);
    ts_module_free(net);
    return ts_set_default_device(TS_DEVICE_CPU) == TS_OK && good;
}

TS_TEST(a_network_trains_on_the_second_device_as_on_the_first)
{
    TWO_GPUS(first, second);
    double there[STEPS], here[STEPS];
    OK(ts_set_deterministic(true));
    ck_assert_msg(train(second, there), "%s", ts_error_message());
    ck_assert_msg(train(first, here), "%s", ts_error_message());
    for (int i = 0; i < STEPS; i++)
        ck_assert_msg(there[i] == here[i], "step %d: %.9g, on the first %.9g", i, there[i],
                      here[i]);
    ck_assert_double_lt(here[STEPS - 1], 0.7 * here[0]);
}

enum { THREADS = 6 };
typedef struct parts {
    ts_device devices[2];
    double losses[THREADS][STEPS];
    ts_tensor *rows[2]; /* per device: gradient of softmax, computed by one thread alone */
} parts;

/** Trains on device number % 2, in turn with kernels over rows that need clusters. */
static bool work(int number, void *ctx)
{
    TS_SCOPE;
    parts *p = ctx;
    ts_device device = p->devices[number % 2];
    for (int i = 0; i < 3; i++) {
        TS_SCOPE;
        ts_tensor *out[2];
        run_rows(device, SOFTMAX, 36864, TS_F32, out);
        if (!same_bits(out[1], p->rows[number % 2]) || !train(device, p->losses[number]))
            return false;
    }
    return true;
}

/* All threads load kernels, make plans of products and allocate memory at once. */
TS_TEST(threads_with_a_device_each_compute_independently, .timeout = 120)
{
    TWO_GPUS(first, second);
    TS_SCOPE;
    static parts p;
    p.devices[0] = first, p.devices[1] = second;
    OK(ts_set_deterministic(true));
    for (int d = 0; d < 2; d++) {
        ts_tensor *out[2];
        run_rows(p.devices[d], SOFTMAX, 36864, TS_F32, out);
        p.rows[d] = out[1];
    }
    ck_assert_int_eq(ts_together(THREADS, work, &p), THREADS);
    for (int k = 1; k < THREADS; k++)
        ck_assert_mem_eq(p.losses[k], p.losses[0], sizeof p.losses[0]);
}

/* Trains on devices that no thread has used before, so that first launches coincide. */
static bool begin(int number, void *ctx)
{
    parts *p = ctx;
    return train(p->devices[number % 2], p->losses[number]);
}

TS_TEST(threads_may_be_the_first_to_use_their_devices, .timeout = 120)
{
    TWO_GPUS(first, second);
    static parts p;
    p.devices[0] = first, p.devices[1] = second;
    OK(ts_set_deterministic(true));
    ck_assert_int_eq(ts_together(THREADS, begin, &p), THREADS);
    for (int k = 1; k < THREADS; k++)
        ck_assert_mem_eq(p.losses[k], p.losses[0], sizeof p.losses[0]);
}
