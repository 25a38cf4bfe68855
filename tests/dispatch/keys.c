/** @file keys.c  Keys, priority, masks, layers. */
// SPDX-License-Identifier: MIT
#include "tests/dispatch/common.h"
#include "tests/instructions.h"

#include <pthread.h>

char ran[64];

static ts_status leaf_cpu(ts_frame *f) { (void)f; note('c'); return TS_OK; }
static ts_status leaf_cuda(ts_frame *f) { (void)f; note('u'); return TS_OK; }
static ts_status layer_x(ts_frame *f) { note('x'); return ts_redispatch(f); }
static ts_status layer_y(ts_frame *f) { note('y'); return ts_redispatch(f); }
static ts_status layer_z(ts_frame *f) { note('z'); return ts_redispatch(f); }

TS_TEST(a_key_set_is_one_word)
{
    ck_assert_uint_eq(sizeof(ts_keyset), 8);
    ck_assert_uint_eq(sizeof(ts_value), 16);
}

TS_TEST(backends_and_layers_are_placed_at_run_time_until_the_gaps_are_full)
{
    int backends = 0, layers = 0;
    char name[24];
    ts_key key;
    for (;; backends++) {
        snprintf(name, sizeof name, "BACKEND%d", backends);
        if (ts_register_backend_key(name, &key) != TS_OK)
            break;
        ck_assert_uint_lt(key, 16);
    }
    SAYS("is full");
    const char *const above[] = {"backends", "AUTOGRAD", "TRACING", "AUTOCAST"};
    for (int g = 0; g < 4; g++)
        for (;; layers++) {
            snprintf(name, sizeof name, "LAYER%d", layers);
            if (ts_register_layer(name, above[g], &key) != TS_OK) {
                SAYS("is full");
                SAYS(above[g]);
                break;
            }
        }
    ck_assert_int_eq(backends, 12);
    ck_assert_int_eq(layers, 44);
}

TS_TEST(a_layer_is_placed_between_the_layers_that_were_named)
{
    ts_key low, high, top;
    OK(ts_register_layer("LOW", "backends", &low));
    OK(ts_register_layer("HIGH", "AUTOGRAD", &high));
    OK(ts_register_layer("TOP", "AUTOCAST", &top));
    ck_assert(low < TS_KEY_AUTOGRAD && TS_KEY_AUTOGRAD < high && high < TS_KEY_TRACING &&
              top > TS_KEY_AUTOCAST);
    FAILS(TS_ERR_REGISTRY, ts_register_layer("LOW", "", NULL));
    SAYS("is taken");
    FAILS(TS_ERR_REGISTRY, ts_register_layer("OTHER", "NOWHERE", NULL));
    SAYS("NOWHERE");
}

TS_TEST(the_highest_backend_among_the_arguments_runs)
{
    OK(ts_register_kernel("noop", TS_KEY_CPU, leaf_cpu, NULL, NULL));
    OK(ts_register_kernel("noop", TS_KEY_CUDA, leaf_cuda, NULL, NULL));
    ts_tensor *cpu = one(), *cuda = with_key_of(TS_KEY_CUDA);
    OK(call_noop(cpu, cpu));
    ck_assert_str_eq(ran, "c");
    OK(call_noop(cpu, cuda));
    ck_assert_str_eq(ran, "u");
    OK(call_noop(cuda, cpu));
    ck_assert_str_eq(ran, "u");
}

TS_TEST(autocast_runs_before_tracing_before_autograd)
{
    OK(ts_register_kernel("noop", TS_KEY_CPU, leaf_cpu, NULL, NULL));
    OK(ts_register_kernel("noop", TS_KEY_AUTOGRAD, layer_x, NULL, NULL));
    OK(ts_register_kernel("noop", TS_KEY_TRACING, layer_y, NULL, NULL));
    OK(ts_register_kernel("noop", TS_KEY_AUTOCAST, layer_z, NULL, NULL));
    ts_tensor *a = one(), *w = ts_set_requires_grad(one(), true);
    OK(ts_layer_enable(TS_KEY_TRACING, true));
    OK(ts_layer_enable(TS_KEY_AUTOCAST, true));
    OK(call_noop(a, w));
    ck_assert_str_eq(ran, "zyxc");
    OK(call_noop(a, a)); /* no argument requires grad: AUTOGRAD is skipped */
    ck_assert_str_eq(ran, "zyc");
}

TS_TEST(exclude_wins_over_include)
{
    ts_key key;
    OK(ts_register_layer("X", "", &key));
    OK(ts_register_kernel("noop", key, layer_x, NULL, NULL));
    ts_tensor *a = one();
    ts_mask_guard g = ts_mask_push(TS_KEYSET(key), 0);
    OK(call_noop(a, a));
    ck_assert_str_eq(ran, "x");
    ts_mask_guard h = ts_mask_push(0, TS_KEYSET(key));
    OK(call_noop(a, a));
    ck_assert_str_eq(ran, "");
    ts_mask_pop(h);
    OK(call_noop(a, a));
    ck_assert_str_eq(ran, "x");
    ts_mask_pop(g);
    OK(call_noop(a, a));
    ck_assert_str_eq(ran, "");
}

static void *call_in_thread(void *a)
{
    OK(call_noop(a, a));
    return NULL;
}

TS_TEST(layers_enabled_for_all_threads_are_enabled_in_later_threads)
{
    ts_key key;
    OK(ts_register_layer("X", "", &key));
    OK(ts_register_kernel("noop", key, layer_x, NULL, NULL));
    ts_tensor *a = one();
    pthread_t thread;
    OK(ts_layer_enable_all(key, true));
    OK(call_noop(a, a));
    ck_assert_str_eq(ran, "x");
    pthread_create(&thread, NULL, call_in_thread, a);
    pthread_join(thread, NULL);
    ck_assert_str_eq(ran, "x");
    OK(ts_layer_enable_all(key, false));
    pthread_create(&thread, NULL, call_in_thread, a);
    pthread_join(thread, NULL);
    ck_assert_str_eq(ran, "");
    OK(ts_layer_enable(key, true)); /* this thread only */
    pthread_create(&thread, NULL, call_in_thread, a);
    pthread_join(thread, NULL);
    ck_assert_str_eq(ran, "");
}

/** Nests mask guards with random keys to a random depth; each must restore the masks. */
static void nest(int depth, unsigned *seed)
{
    ts_mask_guard model = ts_mask_get();
    ts_keyset in = (ts_keyset)rand_r(seed) << 16 & ~TS_BACKEND_KEYS,
              out = (ts_keyset)rand_r(seed) << 20 & ~TS_BACKEND_KEYS;
    ts_mask_guard g = ts_mask_push(in, out);
    ts_mask_guard now = ts_mask_get();
    ck_assert(now.include == (model.include | in) && now.exclude == (model.exclude | out));
    for (int i = rand_r(seed) % 3; depth < 12 && i > 0; i--) {
        nest(depth + 1, seed);
        now = ts_mask_get();
        ck_assert(now.include == (model.include | in) && now.exclude == (model.exclude | out));
    }
    ts_mask_pop(g);
    now = ts_mask_get();
    ck_assert(now.include == model.include && now.exclude == model.exclude);
}

TS_TEST(nested_guards_restore_the_exact_state)
{
    unsigned seed = 7;
    for (int i = 0; i < 500; i++)
        nest(0, &seed);
}

static ts_status layer_fails(ts_frame *f)
{
    (void)f;
    return ts_error_set(TS_ERR_STATE, "planted");
}

TS_TEST(a_failing_layer_leaves_the_masks_as_they_were)
{
    ts_key low, high;
    OK(ts_register_layer("LOW", "", &low));
    OK(ts_register_layer("HIGH", "AUTOGRAD", &high));
    OK(ts_register_kernel("noop", low, layer_fails, NULL, NULL));
    OK(ts_register_kernel("noop", high, layer_x, NULL, NULL));
    OK(ts_layer_enable(low, true));
    OK(ts_layer_enable(high, true));
    ts_mask_guard before = ts_mask_get();
    ts_tensor *a = one();
    FAILS(TS_ERR_STATE, call_noop(a, a));
    ts_mask_guard after = ts_mask_get();
    ck_assert(before.include == after.include && before.exclude == after.exclude);
    ck_assert_int_eq(ts_tls.depth, 0);
}

static void run_noop(void *a) { ts_noop(a, a, ts_scalar_int(1)); }

TS_TEST(layers_that_are_not_enabled_cost_no_instruction)
{
    ts_tensor *a = one();
    ts_key key;
    run_noop(a);
    long bare = ts_instructions(run_noop, a);
    if (bare < 0)
        TS_SKIP("a process may not trace its child here");
    for (int i = 0; i < 8; i++) {
        char name[16];
        snprintf(name, sizeof name, "L%d", i);
        OK(ts_register_layer(name, "", &key));
        OK(ts_register_kernel("noop", key, layer_x, NULL, NULL));
    }
    ck_assert_int_eq(ts_instructions(run_noop, a), bare);
    OK(ts_layer_enable(key, true)); /* ts_instructions() sees an enabled layer */
    ck_assert_int_gt(ts_instructions(run_noop, a), bare);
}

TS_TEST(a_key_that_falls_through_costs_nothing)
{
    ts_tensor *a = one();
    ts_key key;
    run_noop(a);
    long bare = ts_instructions(run_noop, a);
    if (bare < 0)
        TS_SKIP("a process may not trace its child here");
    /* enabled layers without a kernel for the op, which the op's mask removes */
    for (int i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof name, "L%d", i);
        OK(ts_register_layer(name, "", &key));
        OK(ts_layer_enable(key, true));
    }
    ck_assert_int_eq(ts_instructions(run_noop, a), bare);
}

TS_TEST(a_table_has_64_slots_of_8_bytes)
{
    ck_assert_uint_eq(sizeof(ts_kernel), 8);
    ck_assert_uint_eq(sizeof(((ts_op_table *)0)->slot), 512);
    ck_assert_uint_le(sizeof(ts_op_table), 1024);
}

TS_TEST(a_layer_may_be_switched_only_by_a_known_key)
{
    FAILS(TS_ERR_VALUE, ts_layer_enable(TS_KEY_CPU, true));
    FAILS(TS_ERR_VALUE, ts_layer_enable(60, true));
    FAILS(TS_ERR_VALUE, ts_layer_enable(TS_KEY_ABSENT, true));
    FAILS(TS_ERR_VALUE, ts_layer_enable_all(TS_KEY_INVALID, true));
}
