/** @file compile.c  Compiled functions on a GPU, call by call and as graphs: results have the bits
 * of eager calls, and plans are made once and release their memory. */
// SPDX-License-Identifier: MIT
#include "tests/compile/explains.h"
#include "tests/cuda/bits.h"
#include "tests/cuda/cuda.h"
#include "tests/threads.h"

typedef struct layers {
    ts_module *module;
    ts_optimizer *optimizer;
    ts_dtype region; /* of autocast */
} layers;

static layers layers_new(void)
{
    layers l = {ts_sequential_new(), NULL, TS_DTYPE_NONE};
    ts_manual_seed(5);
    OK(ts_sequential_add(l.module, ts_linear_new(40, 64, true)));
    OK(ts_sequential_add(l.module, ts_activation_new("GELU", ts_gelu)));
    OK(ts_sequential_add(l.module, ts_dropout_new(0.3)));
    OK(ts_sequential_add(l.module, ts_layer_norm_new(64, 0, true)));
    OK(ts_sequential_add(l.module, ts_linear_new(64, 10, true)));
    ts_group_opts opts = ts_optimizer_defaults(TS_ADAMW, 0.01);
    OK(l.optimizer = ts_optimizer_for(l.module, TS_ADAMW, &opts));
    OK(ts_optimizer_set_max_norm(l.optimizer, 1));
    return l;
}

static ts_status step(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)n, (void)m;
    const layers *l = ctx;
    TS_SCOPE;
    ts_tensor *loss;
    {
        TS_AUTOCAST(ts_device_of(in[0]), l->region);
        loss = ts_cross_entropy(ts_forward(l->module, in[0]), in[1]);
    }
    TS_TRY(ts_backward(loss));
    TS_TRY(ts_optimizer_step(l->optimizer));
    ts_optimizer_zero_grad(l->optimizer);
    out[0] = ts_keep(ts_detach(loss));
    return TS_OK;
}

/* The last case is a graph of eager calls. */
TS_TEST(fifty_compiled_steps_have_the_bits_of_calls, .loop = 9)
{
    GPU(device);
    bool graph = _i % 2 || _i == 8, replay = _i >= 4;
    POINTWISE_GROUPS_ONLY;
    TS_SCOPE;
    OK(ts_set_default_device(device));
    layers a = layers_new(), b = layers_new();
    a.region = b.region = _i / 2 % 2 ? TS_BF16 : TS_DTYPE_NONE;
    ts_compiled *c =
        _i == 8 ? ts_step_graph(step, &a)
                : ts_compile(step, &a, TS_OPTS(ts_compile_opts, .graph = graph, .replay = replay));
    int64_t used = 0;
    ts_manual_seed(9);
    for (int k = 0; k < 50; k++) {
        TS_SCOPE;
        ts_tensor *in[] = {ts_normal(TS_SIZES(16, 40), 0, 1, TS_F32),
                           ts_randint(TS_SIZES(16), 0, 10)};
        ts_tensor *loss, *want;
        ts_rng_state begin = ts_rng_get_state();
        OK(ts_compiled_call(c, in, 2, &loss, 1));
        ts_rng_state end = ts_rng_get_state();
        ts_rng_set_state(begin);
        OK(step(&b, in, 2, &want, 1));
        ck_assert_uint_eq(ts_rng_get_state().offset, end.offset);
        double got, expected;
        OK(ts_item(loss, &got));
        OK(ts_item(want, &expected));
        ck_assert_msg(got == expected, "step %d: loss %.9g, eager %.9g", k, got, expected);
        if (k == 10)
            used = memory_of(device).in_use;
        ck_assert(k <= 10 || memory_of(device).in_use == used);
    }
    ck_assert_int_le(ts_compiled_get_stats(c).compiles, 2);
    ck_assert_int_eq(ts_compiled_get_stats(c).breaks, 0);
    ck_assert_int_eq(ts_compiled_get_stats(c).skipped, replay ? 48 : 0);
    if (graph) { /* as a graph: the first 2 of 50 calls run call by call */
        ck_assert_int_eq(ts_compiled_get_stats(c).captures, 1);
        ck_assert_int_eq(ts_compiled_get_stats(c).replays, 48);
    }
    int64_t n;
    ts_tensor *const *p = ts_optimizer_params(a.optimizer, &n),
                     *const *q = ts_optimizer_params(b.optimizer, &n);
    for (int64_t i = 0; i < n; i++) {
        size_t bytes = (size_t)ts_numel(p[i]) * sizeof(float);
        float *x = values_of(p[i]), *y = values_of(q[i]);
        ck_assert_msg(memcmp(x, y, bytes) == 0, "parameter %d differs", (int)i);
        free(x), free(y);
    }
    ts_compiled_free(c);
    ts_optimizer_free(a.optimizer), ts_optimizer_free(b.optimizer);
    ts_module_free(a.module), ts_module_free(b.module);
}

/* ------------------------------------------------------------------------------- graphs ---- */

static ts_status layer(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)n, (void)m;
    const double *factor = ctx;
    ts_tensor *h = ts_softmax(ts_mul_scalar(ts_linear(in[0], in[1], in[2]), *factor), -1);
    out[0] = ts_linear(ts_gelu(h), in[1], TS_NONE); /* an output of cuBLASLt */
    return TS_STATUS_OF(out[0]);
}

TS_TEST(graphs_follow_inputs_at_other_addresses, .loop = 2)
{
    GPU(device);
    POINTWISE_GROUPS_ONLY;
    TS_SCOPE;
    OK(ts_set_default_device(device));
    double factor = 1;
    ts_compiled *c = ts_compile(layer, &factor, TS_OPTS(ts_compile_opts, .graph = true));
    enum { CALLS = 30, WIDE = 64 };
    ts_tensor *got[CALLS], *want[CALLS], *w = ts_normal(TS_SIZES(WIDE, WIDE), 0, 0.2, TS_F32),
                                         *bias = ts_normal(TS_SIZES(WIDE), 0, 1, TS_F32);
    for (int k = 0; k < CALLS; k++) {
        /* some inputs begin at no multiple of 16 bytes, which needs other kernels */
        ts_tensor *all = ts_normal(TS_SIZES(33 * WIDE), 0, 1, TS_F32);
        int64_t at = _i && k % 10 == 9 ? 1 : 0;
        ts_tensor *x = ts_reshape(ts_narrow(all, 0, at, 32 * WIDE), TS_SIZES(32, WIDE));
        factor = 1 + 0.01 * k;
        ts_tensor *in[] = {x, w, bias};
        OK(ts_compiled_call(c, in, 3, &got[k], 1));
        OK(layer(&factor, in, 3, &want[k], 1));
    }
    for (int k = 0; k < CALLS; k++) {
        float *x = values_of(got[k]), *y = values_of(want[k]);
        ck_assert_msg(memcmp(x, y, 32 * WIDE * sizeof *x) == 0, "call %d differs", k);
        free(x), free(y);
    }
    ck_assert_int_gt(ts_compiled_get_stats(c).replays, 20);
    ck_assert_int_gt(ts_compiled_get_stats(c).replaced, 20);
    ts_compiled_free(c);
}

TS_TEST(graphs_run_on_the_threads_own_stream)
{
    GPU(device);
    POINTWISE_GROUPS_ONLY;
    TS_SCOPE;
    OK(ts_set_default_device(device));
    double factor = 2;
    ts_compiled *c = ts_compile(layer, &factor, TS_OPTS(ts_compile_opts, .graph = true));
    ts_tensor *in[] = {ts_normal(TS_SIZES(512, 64), 0, 1, TS_F32),
                       ts_normal(TS_SIZES(64, 64), 0, 0.2, TS_F32), ts_zeros(TS_SIZES(64), TS_F32)};
    OK(ts_synchronize(device));
    ts_stream *stream;
    OK(ts_stream_new(device, &stream));
    for (int k = 0; k < 20; k++) {
        TS_SCOPE;
        ts_tensor *got, *want;
        OK(ts_stream_use(device, k % 3 ? stream : NULL));
        OK(ts_compiled_call(c, in, 3, &got, 1));
        OK(layer(&factor, in, 3, &want, 1));
        float *x = values_of(got), *y = values_of(want);
        ck_assert_msg(memcmp(x, y, 512 * 64 * sizeof *x) == 0, "call %d differs", k);
        free(x), free(y);
    }
    ck_assert_int_eq(ts_compiled_get_stats(c).replays, 18);
    ts_compiled_free(c);
    OK(ts_stream_use(device, NULL));
    ts_stream_free(device, stream);
}

static ts_status with_copy(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)n, (void)m;
    const ts_device *device = ctx;
    return TS_STATUS_OF(out[0] = ts_relu(ts_to_device(in[0], *device)));
}
static ts_status with_wait(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m; /* the op reads from the device whether in[2] is long enough */
    return TS_STATUS_OF(out[0] = ts_masked_scatter(in[0], in[1], in[2]));
}

TS_TEST(calls_that_cannot_be_captured_are_named_and_run)
{
    GPU(device);
    TS_SCOPE;
    ts_tensor *x = (ts_full)(TS_SIZES(3), ts_scalar_float(2), TS_F32), *y;
    ts_compiled *c = ts_compile(with_copy, &device, TS_OPTS(ts_compile_opts, .graph = true));
    for (int k = 0; k < 8; k++) { /* the copy runs before the graph */
        OK(ts_fill_(x, 2 + k));
        OK(ts_compiled_call(c, &x, 1, &y, 1));
        ck_assert(all_are(y, (float)(2 + k)));
    }
    ck_assert_int_eq(ts_compiled_get_stats(c).replays, 6);
    ts_compiled_free(c);
    ts_tensor *mask = ts_to_device(ts_lt_scalar(ts_arange(0, 100, 1, TS_F32), 30), device);
    ts_tensor *in[] = {full_on(device, 100, 3), mask, full_on(device, 50, 3)};
    c = ts_compile(with_wait, NULL, TS_OPTS(ts_compile_opts, .graph = true));
    for (int k = 0; k < 5; k++) {
        OK(ts_compiled_call(c, in, 3, &y, 1));
        ck_assert(all_are(y, 3));
    }
    ck_assert(explains(c, "no graph: masked_scatter, called from"));
    ts_compiled_free(c);
}

static ts_status reads(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    double sum;
    TS_TRY(ts_item(ts_sum(in[0]), &sum));
    return TS_STATUS_OF(out[0] = ts_mul_scalar(in[0], sum));
}
static ts_status selects(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    return TS_STATUS_OF(out[0] = ts_masked_select(in[0], ts_gt_scalar(in[0], ts_scalar_int(0))));
}
static ts_status copies(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)n, (void)m;
    return TS_STATUS_OF(out[0] = ts_add(in[0], ts_to_device(ctx, ts_device_of(in[0]))));
}

TS_TEST(a_step_graph_names_the_cause_that_cannot_be_captured, .loop = 2)
{
    static const struct {
        ts_trace_fn fn;
        const char *cause;
    } cases[] = {{reads, "a read of values, called from "}, {selects, "masked_select"}};
    GPU(device);
    TS_SCOPE;
    ts_tensor *x = ts_to_device(ts_normal(TS_SIZES(1000), 0, 1, TS_F32), device), *y;
    ts_compiled *c = ts_step_graph(cases[_i].fn, NULL);
    ts_status status = TS_OK;
    for (int k = 0; k < 4 && status == TS_OK; k++)
        status = ts_compiled_call(c, &x, 1, &y, 1);
    ck_assert_msg(status == TS_ERR_STATE || status == TS_ERR_UNSUPPORTED, "%d: %s", status,
                  ts_error_message());
    ck_assert_msg(strstr(ts_error_message(), cases[_i].cause) != NULL, "%s", ts_error_message());
    ts_error_clear();
    OK(cases[_i].fn(NULL, &x, 1, &y, 1)); /* the device is still usable */
    OK(ts_synchronize(device));
    ts_compiled_free(c);
}

/* The copy from the host runs before each launch of the graph, so the graph reads the tensor's
 * current elements. */
TS_TEST(a_step_graph_copies_the_hosts_current_numbers)
{
    GPU(device);
    TS_SCOPE;
    ts_tensor *line = ts_ones(TS_SIZES(1000), TS_F32), *x = ts_to_device(line, device), *y;
    ts_compiled *c = ts_step_graph(copies, line);
    for (int k = 0; k < 8; k++) {
        TS_SCOPE;
        OK(ts_fill_(line, k));
        OK(ts_compiled_call(c, &x, 1, &y, 1));
        ck_assert(all_are(y, (float)k + 1));
    }
    ck_assert_int_ge(ts_compiled_get_stats(c).replays, 5);
    ts_compiled_free(c);
}

TS_TEST(with_TS_SYNC_there_is_no_graph)
{
    setenv("TS_SYNC", "1", 1);
    GPU(device);
    TS_SCOPE;
    ts_tensor *x = full_on(device, 10, 2), *y;
    ts_compiled *c = ts_compile(with_copy, &device, TS_OPTS(ts_compile_opts, .graph = true));
    for (int k = 0; k < 5; k++) {
        OK(ts_compiled_call(c, &x, 1, &y, 1));
        ck_assert(all_are(y, 2));
    }
    ck_assert(explains(c, "TS_SYNC=1 waits for each call"));
    ts_compiled_free(c);
}

/** Selects rows by index. The test passes an index out of range to a replay of the graph. */
static ts_status pick(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    return TS_STATUS_OF(out[0] = ts_index_select(in[0], 0, in[1]));
}
TS_TEST(a_wrong_index_in_a_replay_is_reported_with_its_op)
{
    GPU(device);
    TS_SCOPE;
    int64_t numbers[] = {0, 2, 1};
    ts_tensor *x = full_on(device, 10, 2), *y;
    ts_tensor *i = ts_to_device(ts_from_array(numbers, TS_I64, TS_SIZES(3)), device);
    ts_tensor *in[] = {x, i};
    ts_compiled *c = ts_compile(pick, NULL, TS_OPTS(ts_compile_opts, .graph = true));
    for (int k = 0; k < 6; k++) {
        OK(ts_compiled_call(c, in, 2, &y, 1));
        ck_assert(all_are(y, 2));
    }
    ck_assert_int_eq(ts_compiled_get_stats(c).replays, 4);
    OK(ts_fill_(i, 10));
    OK(ts_compiled_call(c, in, 2, &y, 1));
    ck_assert_int_eq(ts_synchronize(device), TS_ERR_INDEX);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "index_select"));
    OK(ts_fill_(i, 9));
    OK(ts_compiled_call(c, in, 2, &y, 1));
    ck_assert(all_are(y, 2));
    ts_compiled_free(c);
}

/** Thread 0 waits for the device all the time, which CUDA forbids while a stream captures. */
static bool wait_or_call(int number, void *ctx)
{
    ts_device device = *(const ts_device *)ctx;
    double factor = number;
    ts_compiled *c = ts_compile(layer, &factor, TS_OPTS(ts_compile_opts, .graph = true));
    bool good = ts_set_default_device(device) == TS_OK;
    for (int k = 0; k < 300 && good; k++) {
        TS_SCOPE;
        ts_tensor *in[] = {ts_normal(TS_SIZES(8, 16), 0, 1, TS_F32),
                           ts_normal(TS_SIZES(16, 16), 0, 1, TS_F32),
                           ts_zeros(TS_SIZES(16), TS_F32)}, *y;
        factor = number + 0.5 + 0.01 * k; /* not 1, by which multiplication is folded */
        good = number ? ts_compiled_call(c, in, 3, &y, 1) == TS_OK
                      : ts_synchronize(device) == TS_OK;
    }
    good = good && (!number || ts_compiled_get_stats(c).replays == 298);
    if (!good)
        fprintf(stderr, "thread %d: %s\n", number, ts_error_message());
    ts_compiled_free(c);
    return good;
}

TS_TEST(threads_capture_while_others_wait_for_the_device)
{
    GPU(device);
    OK(ts_empty_on(TS_SIZES(1), TS_F32, device));
    ck_assert_int_eq(ts_together(4, wait_or_call, &device), 4);
}
