/** @file cast_cache.c  The cache of autocast's casts of parameters: use, renewal, gradients. */
// SPDX-License-Identifier: MIT
#include "core/testing.h"
#include "tests/blocks.h"
#include "tests/dispatch/common.h"
#include "tests/threads.h"

/** A (4, 4) f32 leaf that requires grad. On META calls compute nothing, but casts are the same. */
static ts_tensor *leaf(ts_device device)
{
    ts_tensor *t = ts_empty_on(TS_SIZES(4, 4), TS_F32, device);
    OK(t);
    if (device.backend == TS_KEY_CPU)
        OK(ts_fill_(t, 0.5));
    return ts_set_requires_grad(t, true);
}

static uint64_t casts(void) { return ts_autocast_get_stats().casts; }
static uint64_t hits(void) { return ts_autocast_get_stats().hits; }
static int64_t cached(void) { return ts_autocast_get_stats().cached; }

TS_TEST(a_parameter_is_cast_once_and_the_casts_end_with_the_outermost_region)
{
    ts_tensor *w = leaf(TS_DEVICE_META), *x = ts_detach(w);
    {
        TS_AUTOCAST(TS_DEVICE_META, TS_BF16);
        OK(ts_mm(x, w));
        ck_assert_uint_eq(casts(), 2);
        ck_assert_int_eq(cached(), 1); /* x requires no grad */
        {
            TS_AUTOCAST(TS_DEVICE_META, TS_BF16);
            OK(ts_mm(x, w));
        }
        OK(ts_mm(w, w));
        ck_assert_uint_eq(casts(), 3);
        ck_assert_uint_eq(hits(), 3);
        ck_assert_int_eq(cached(), 1);
    }
    ck_assert_int_eq(cached(), 0);
    TS_AUTOCAST(TS_DEVICE_META, TS_BF16);
    OK(ts_mm(w, w));
    ck_assert_uint_eq(casts(), 4);
}

TS_TEST(a_write_invalidates_the_cached_cast)
{
    ts_tensor *w = leaf(TS_DEVICE_META);
    TS_AUTOCAST(TS_DEVICE_META, TS_BF16);
    OK(ts_mm(w, w));
    ck_assert_uint_eq(casts(), 1);
    {
        TS_NO_GRAD;
        OK(ts_fill_(w, 2));
    }
    OK(ts_mm(w, w));
    ck_assert_uint_eq(casts(), 2);
    ck_assert_int_eq(cached(), 1);
}

TS_TEST(an_unrecorded_cast_is_not_used_in_a_recorded_call)
{
    ts_tensor *w = leaf(TS_DEVICE_META);
    TS_AUTOCAST(TS_DEVICE_META, TS_BF16);
    {
        TS_NO_GRAD;
        ck_assert(!ts_requires_grad(ts_mm(w, w)));
    }
    ck_assert(ts_requires_grad(ts_mm(w, w)));
    ck_assert_uint_eq(casts(), 2);
    TS_NO_GRAD;
    ck_assert(!ts_requires_grad(ts_mm(w, w))); /* uses the recorded cast */
    ck_assert_uint_eq(casts(), 2);
}

TS_TEST(another_dtype_or_no_cache_casts_again)
{
    ts_tensor *w = leaf(TS_DEVICE_META);
    TS_AUTOCAST(TS_DEVICE_META, TS_BF16);
    OK(ts_mm(w, w));
    {
        TS_AUTOCAST(TS_DEVICE_META, TS_F16);
        ck_assert_int_eq(ts_dtype_of(ts_mm(w, w)), TS_F16);
    }
    ck_assert_uint_eq(casts(), 2);
    ts_autocast_region region;
    OK(ts_autocast_enter_ex(&region, TS_DEVICE_META, TS_BF16,
                            TS_OPTS(ts_autocast_opts, .no_cache = true)));
    ck_assert_int_eq(ts_dtype_of(ts_mm(w, w)), TS_BF16);
    OK(ts_autocast_exit(&region));
    ck_assert_uint_eq(casts(), 4);
    ts_autocast_clear_cache();
    ck_assert_int_eq(cached(), 0);
    OK(ts_mm(w, w));
    ck_assert_uint_eq(casts(), 5);
}

TS_TEST(many_parameters_have_a_cast_each)
{
    enum { N = 500 };
    ts_tensor *w[N];
    for (int i = 0; i < N; i++)
        w[i] = leaf(TS_DEVICE_META);
    TS_AUTOCAST(TS_DEVICE_META, TS_BF16);
    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; i < N; i++)
            OK(ts_mm(w[i], w[i]));
    ck_assert_uint_eq(casts(), N);
    ck_assert_uint_eq(hits(), 3 * N);
    ck_assert_int_eq(cached(), N);
}

static void *leaves_a_region_open(void *unused)
{
    (void)unused;
    static _Thread_local ts_autocast_region region;
    OK(ts_autocast_enter(&region, TS_DEVICE_META, TS_BF16));
    ts_tensor *w = leaf(TS_DEVICE_META);
    OK(ts_mm(w, w));
    return NULL;
}

TS_TEST(a_thread_that_exits_inside_a_region_leaks_nothing)
{
    int64_t before = 0;
    for (int turn = 0; turn < 3; turn++) {
        pthread_t thread;
        ck_assert_int_eq(pthread_create(&thread, NULL, leaves_a_region_open, NULL), 0);
        pthread_join(thread, NULL);
        if (turn)
            ck_assert_int_eq(ts_memory_get_stats().in_use, before);
        before = ts_memory_get_stats().in_use;
    }
}

/* ---------------------------------------------------------------------------- gradients ---- */

/** A network of two products and a loss; false when something failed. */
static bool forward_backward(ts_tensor *x, ts_tensor *w)
{
    TS_SCOPE;
    TS_AUTOCAST(ts_device_of(w), TS_BF16);
    ts_tensor *loss = ts_sum(ts_softmax(ts_linear(ts_relu(ts_mm(x, w)), w, TS_NONE), -1));
    return ts_backward(loss) == TS_OK;
}

/** Each thread has its own region and casts; all threads share the parameter and its gradient. */
static bool train_in_a_region(int number, void *w)
{
    (void)number;
    for (int i = 0; i < 50; i++) {
        TS_SCOPE;
        TS_AUTOCAST(TS_DEVICE_CPU, TS_BF16);
        ts_tensor *y = ts_mm(ts_ones(TS_SIZES(4, 4), TS_F32), w);
        if (ts_backward(ts_sum(ts_mm(y, w))) != TS_OK || cached() != 1)
            return false;
    }
    return cached() == 0;
}

TS_TEST(each_thread_casts_a_shared_parameter_for_itself, .threads = true)
{
    ts_tensor *w = leaf(TS_DEVICE_CPU);
    ck_assert_int_eq(ts_together(3, train_in_a_region, w), 3);
    OK(ts_grad(w));
    ck_assert_int_eq(cached(), 0);
}

TS_TEST(gradients_flow_through_casts_and_rules_run_without_autocast)
{
    ts_tensor *w = leaf(TS_DEVICE_META), *x = leaf(TS_DEVICE_META);
    uint64_t before = casts();
    ck_assert(forward_backward(x, w));
    ck_assert_int_eq(ts_dtype_of(ts_grad(w)), TS_F32);
    ck_assert_int_eq(ts_dtype_of(ts_grad(x)), TS_F32);
    /* casts of x, w, and of the logits to f32; backward casts nothing */
    ck_assert_uint_eq(casts() - before, 3);
}

TS_TEST(several_backwards_inside_a_region_share_the_cast)
{
    ts_tensor *w = leaf(TS_DEVICE_META), *x = leaf(TS_DEVICE_META);
    TS_AUTOCAST(TS_DEVICE_META, TS_BF16);
    for (int k = 0; k < 3; k++)
        ck_assert_msg(forward_backward(x, w), "%s", ts_error_message());
    ck_assert_int_eq(cached(), 2);
    ck_assert_uint_eq(casts(), 2 + 3); /* x and w once, the logits 3 times */
}

TS_TEST(a_tensor_that_is_no_leaf_keeps_its_history_through_the_cast)
{
    ts_tensor *w = leaf(TS_DEVICE_META), *y = ts_exp(w);
    {
        TS_AUTOCAST(TS_DEVICE_META, TS_F16);
        OK(ts_backward(ts_sum(ts_mm(y, y))));
    }
    ck_assert_int_eq(ts_dtype_of(ts_grad(w)), TS_F32);
}

enum { LEAVES = 4 };
typedef struct net {
    ts_tensor *w[LEAVES]; /* (16, 8), (16), (8, 16), (8) */
} net;

static net make_net(void)
{
    static const int64_t sizes[LEAVES][2] = {{16, 8}, {16}, {8, 16}, {8}};
    net n;
    for (int k = 0; k < LEAVES; k++)
        n.w[k] = ts_set_requires_grad(ts_normal(sizes[k], k % 2 ? 1 : 2, 0, 0.5, TS_F32), true);
    return n;
}

static ts_tensor *as_it_is(ts_tensor *t) { return t; }
static ts_tensor *to_bf16(ts_tensor *t) { return ts_to(t, TS_BF16); }
static ts_tensor *to_f32(ts_tensor *t) { return ts_to(t, TS_F32); }

/** Loss of linear layers, a norm and attention by separate ops. low, high: casts to bf16 and to f32
 *  at the places where autocast casts. */
static double loss_of(const net *n, ts_tensor *x, ts_tensor *(*low)(ts_tensor *),
                      ts_tensor *(*high)(ts_tensor *))
{
    ts_tensor *h = ts_gelu(ts_linear(low(x), low(n->w[0]), low(n->w[1])));             // (6, 16)
    ts_tensor *y =
        ts_layer_norm(high(ts_linear(h, low(n->w[2]), TS_NONE)), n->w[3], TS_NONE);      // (6, 8)
    ts_tensor *scores = ts_softmax(high(ts_mm(low(y), low(ts_transpose(y, 0, 1)))), -1); // (6, 6)
    ts_tensor *loss = ts_sum(high(ts_square(ts_mm(low(scores), low(y)))));
    double value;
    OK(ts_backward(loss));
    OK(ts_item(loss, &value));
    return value;
}

TS_TEST(a_region_computes_the_values_of_explicit_casts)
{
    ts_manual_seed(5);
    net a = make_net();
    ts_tensor *x = ts_normal(TS_SIZES(6, 8), 0, 1, TS_F32);
    double full = loss_of(&a, x, as_it_is, as_it_is);
    ts_tensor *full_grads[LEAVES], *by_hand[LEAVES];
    for (int k = 0; k < LEAVES; k++) {
        full_grads[k] = ts_clone(ts_grad(a.w[k]));
        ts_zero_grad(a.w[k]);
    }
    double hand = loss_of(&a, x, to_bf16, to_f32);
    for (int k = 0; k < LEAVES; k++) {
        by_hand[k] = ts_clone(ts_grad(a.w[k]));
        ts_zero_grad(a.w[k]);
    }
    TS_AUTOCAST(TS_DEVICE_CPU, TS_BF16);
    ck_assert_double_eq(loss_of(&a, x, as_it_is, as_it_is), hand);
    ck_assert_double_ne(hand, full);
    ck_assert_double_eq_tol(hand, full, 8 * 0x1p-8 * full);
    for (int k = 0; k < LEAVES; k++) {
        ts_tensor *g = ts_grad(a.w[k]);
        ck_assert_int_eq(ts_dtype_of(g), TS_F32);
        ck_assert_mem_eq(ts_data(g), ts_data(by_hand[k]), (size_t)ts_numel(g) * sizeof(float));
        /* each gradient depends on about ten bf16 products, with errors of 2^-8 */
        double apart = value(ts_amax(ts_abs(ts_sub(g, full_grads[k])))),
               size = value(ts_amax(ts_abs(full_grads[k])));
        ck_assert_double_lt(apart, 16 * 0x1p-8 * size);
    }
}

/* ------------------------------------------------------------------------------- memory ---- */

TS_TEST(a_step_inside_a_region_allocates_nothing_in_the_steady_state)
{
    if (ts_alloc_system)
        TS_SKIP("every block comes from the system");
    ts_tensor *w = leaf(TS_DEVICE_META), *x = leaf(TS_DEVICE_META);
    uint64_t before = 0;
    for (int k = 0; k < 200; k++) {
        if (k == 100)
            before = ts_memory_get_stats().system_allocs;
        ck_assert(forward_backward(x, w));
        ts_zero_grad(w);
        ts_zero_grad(x);
    }
    ck_assert_uint_eq(ts_memory_get_stats().system_allocs, before);
}

static int failing_after;
static bool fail_once(size_t bytes)
{
    (void)bytes;
    return failing_after-- == 0;
}

TS_TEST(out_of_memory_at_any_point_is_an_error_that_leaks_nothing)
{
    if (!blocks_from_malloc())
        TS_SKIP(TOO_LATE);
    ts_tensor *w = leaf(TS_DEVICE_META), *x = leaf(TS_DEVICE_META);
    int64_t before = 0;
    int failures = 0;
    for (int n = -1;; n++) {
        ck_assert_int_lt(n, 2000);
        ts_error_clear();
        failing_after = n;
        ts_alloc_fault = n < 0 ? NULL : fail_once;
        bool ok = forward_backward(x, w);
        ts_alloc_fault = NULL;
        ck_assert_int_eq(cached(), 0);
        ts_zero_grad(w);
        ts_zero_grad(x);
        if (n < 0)
            before = ts_memory_get_stats().in_use;
        ck_assert_int_eq(ts_memory_get_stats().in_use, before);
        if (ok && failing_after >= 0)
            break;
        if (!ok) {
            ck_assert_int_eq(ts_error_code(), TS_ERR_MEMORY);
            failures++;
        }
    }
    ck_assert_int_gt(failures, 30);
}
