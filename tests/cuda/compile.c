/** @file compile.c  Compiled functions on a GPU: the bits of calls, one plan, memory given back. */
// SPDX-License-Identifier: MIT
#include "tests/cuda/cuda.h"

typedef struct layers {
    ts_module *module;
    ts_optimizer *optimizer;
} layers;

static layers layers_new(void)
{
    layers l = {ts_sequential_new(), NULL};
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
    ts_tensor *loss = ts_cross_entropy(ts_forward(l->module, in[0]), in[1]);
    TS_TRY(ts_backward(loss));
    TS_TRY(ts_optimizer_step(l->optimizer));
    ts_optimizer_zero_grad(l->optimizer);
    out[0] = ts_keep(ts_detach(loss));
    return TS_OK;
}

TS_TEST(fifty_compiled_steps_have_the_bits_of_calls)
{
    GPU(device);
    TS_SCOPE;
    OK(ts_set_default_device(device));
    layers a = layers_new(), b = layers_new();
    ts_compiled *c = ts_compile(step, &a, NULL);
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
    ts_compiled_free(c);
    ts_optimizer_free(a.optimizer), ts_optimizer_free(b.optimizer);
    ts_module_free(a.module), ts_module_free(b.module);
}
