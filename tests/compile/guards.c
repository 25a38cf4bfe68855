/** @file guards.c  Replays, which are compiled calls that do not run the function: guards, aliases,
 * checks, threads. */
// SPDX-License-Identifier: MIT
#include "tests/compile/replay.h"
#include "tests/threads.h"

#include <unistd.h>

/* -------------------------------------------------------------------------------- guards ---- */

static ts_status guarded(TRACED)
{
    hooks *h = ctx;
    ran++;
    TS_TRY(ts_depends_on(&h->branch, sizeof h->branch));
    ts_tensor *t = ts_mul(in[0], h->branch ? ts_exp(h->w) : h->w);
    return TS_STATUS_OF(out[0] = ts_add(ts_dropout(t, 0.25, true), in[1]));
}

enum {
    SIZES, DTYPE, STRIDES, OFFSET, DIMS, ALIAS, VARIABLE, REQUIRES_GRAD, MEMORY, STATE,
    DETERMINISTIC, GRAD_MODE, AUTOCAST, DEFAULT_DEVICE, LAYER, GUARDS
};
/** For each guard: the reason that the log has after the first change. */
static const char *const reasons[GUARDS] = {
    [SIZES] = "input 0 had size 3 in dim 0, now 1",
    [DTYPE] = "input 0 had dtype f32, now f64",
    [STRIDES] = "input 0 had stride 4 in dim 0, now 1",
    [OFFSET] = "input 1 began at byte 0 of its memory, now at 4",
    [DIMS] = "input 1 had 1 dims, now 2",
    [ALIAS] = "an input has other memory than before", /* it was the same in all calls */
    [VARIABLE] = "an input has other memory than before",
    [REQUIRES_GRAD] = "input 1 did not require grad, now it does",
    [MEMORY] = "memory that ts_depends_on() declares changed",
    [STATE] = "a module, an optimizer, requires_grad of a tensor or the registry changed",
    [DETERMINISTIC] = "deterministic mode was off, now on",
    [GRAD_MODE] = "grad mode was off, now on",
    [AUTOCAST] = "autocast has changed",
    [DEFAULT_DEVICE] = "the default device was cpu, now meta",
    [LAYER] = "the layer SHAPES sees its calls",
};

/** Changes the state that a guard checks; odd false: restores it. */
static void change(int guard, hooks *h, ts_tensor **in, ts_tensor *const *first, bool odd)
{
    in[0] = first[0];
    in[1] = first[1];
    switch (guard) {
    case SIZES: in[0] = odd ? numbers(3, TS_SIZES(1, 4)) : in[0]; break;
    case DTYPE: in[0] = odd ? ts_to(in[0], TS_F64) : in[0]; break;
    case STRIDES:
        if (odd)
            in[0] = ts_transpose(ts_contiguous(ts_transpose(in[0], 0, 1)), 0, 1);
        break;
    case OFFSET: in[1] = odd ? ts_narrow(numbers(4, TS_SIZES(9)), 0, 1, 4) : in[1]; break;
    case DIMS: in[1] = odd ? numbers(4, TS_SIZES(3, 4)) : in[1]; break;
    case ALIAS: in[1] = odd ? ts_select(in[0], 0, 0) : in[1]; break;
    case VARIABLE: in[1] = odd ? ts_select(h->w, 0, 0) : in[1]; break;
    case REQUIRES_GRAD: in[1] = odd ? h->kept : in[1]; break;
    case MEMORY: h->branch = odd; break;
    case STATE: /* such as the mode of a module */
        ts_state_changed();
        break;
    case DETERMINISTIC: OK(ts_set_deterministic(odd)); break;
    case DEFAULT_DEVICE: OK(ts_set_default_device(odd ? TS_DEVICE_META : TS_DEVICE_CPU)); break;
    case LAYER: OK(ts_shape_logger(TS_THIS_THREAD, odd)); break;
    }
}

static char logged[1 << 14];
static void keep_log(void *payload, const char *topic, const char *text)
{
    (void)payload;
    size_t used = strlen(logged);
    if (strcmp(topic, "compile") == 0)
        snprintf(logged + used, sizeof logged - used, "%s\n", text);
}

/** check_call() with grad mode on, or in a region of autocast. */
static void check_call_in_mode(int guard, ts_compiled *c, hooks *h, ts_tensor **in, bool odd)
{
    if (guard == GRAD_MODE && odd) {
        TS_ENABLE_GRAD;
        check_call(c, guarded, h, in, 2);
    } else if (guard == AUTOCAST && odd) {
        TS_AUTOCAST(TS_DEVICE_CPU, TS_BF16);
        check_call(c, guarded, h, in, 2);
    } else {
        check_call(c, guarded, h, in, 2);
    }
}

TS_TEST(a_failing_guard_runs_the_function_once_and_the_log_has_the_reason, .loop = GUARDS)
{
    TS_SCOPE;
    TS_NO_GRAD;
    hooks a = {.w = numbers(7, TS_SIZES(3, 4)),
               .kept = ts_set_requires_grad(numbers(8, TS_SIZES(4)), true)};
    ts_tensor *in[] = {numbers(1, TS_SIZES(3, 4)), numbers(2, TS_SIZES(4))},
              *first[] = {in[0], in[1]};
    ts_compiled *c = replays_of(guarded, &a);
    ts_log_set_callback(keep_log, NULL);
    ts_manual_seed(4);
    for (int k = 0; k < 5; k++)
        check_call(c, guarded, &a, in, 2);
    ck_assert_int_eq(ran, 2);
    for (int turn = 0; turn < 3; turn++)
        for (int odd = 1; odd >= 0; odd--) {
            logged[0] = '\0';
            change(_i, &a, in, first, odd);
            int before = ran;
            for (int k = 0; k < 4; k++)
                check_call_in_mode(_i, c, &a, in, odd);
            /* A plan has one replay, made from its last two calls; both cases may share a plan.
             * While a layer sees the calls there are no replays. */
            bool shared = _i == REQUIRES_GRAD || _i >= DETERMINISTIC;
            int most = _i == LAYER && odd ? 4 : shared || (turn == 0 && odd) ? 2 : 1;
            ck_assert_msg(ran - before <= most, "turn %d, odd %d: ran %d times", turn, odd,
                          ran - before);
            ck_assert(ran > before || turn || !odd);
            if (turn == 0 && odd) {
                char want[200];
                snprintf(want, sizeof want, "fn: the function runs on each call: %s\n",
                         reasons[_i]);
                ck_assert_msg(strstr(logged, want), "expected '%s' in:\n%s", want, logged);
            }
        }
    ts_log_set_callback(NULL, NULL);
    ck_assert_int_le(ts_compiled_get_stats(c).compiles, 2);
    ts_compiled_free(c);
}

TS_TEST(new_inputs_are_replayed_and_inputs_that_share_memory_are_not)
{
    TS_SCOPE;
    TS_NO_GRAD;
    hooks a = {.w = numbers(7, TS_SIZES(4))};
    ts_compiled *c = replays_of(guarded, &a);
    ts_tensor *one = numbers(50, TS_SIZES(4));
    ts_log_set_callback(keep_log, NULL);
    for (int k = 0; k < 30; k++) {
        TS_SCOPE;
        ts_tensor *in[] = {numbers((uint64_t)k, TS_SIZES(4)), numbers(99, TS_SIZES(4))};
        if (k == 10 || k == 20)
            in[0] = in[1] = one; /* inputs that share memory fail a guard */
        if (k == 15)
            in[1] = a.w; /* so does an input that the function also reads as a.w */
        check_call(c, guarded, &a, in, 2);
    }
    ts_log_set_callback(NULL, NULL);
    ck_assert_int_le(ran, 6);
    ck_assert_int_ge(ts_compiled_get_stats(c).skipped, 24);
    ck_assert_msg(strstr(logged, "inputs share their memory"), "%s", logged);
    ck_assert_msg(strstr(logged, "an input shares its memory with a tensor of the function"), "%s",
                  logged);
    ts_compiled_free(c);
}

static ts_tensor *doubled(void *payload, ts_tensor *g)
{
    (void)payload;
    return ts_mul_scalar(g, 2);
}

TS_TEST(a_modules_mode_and_another_optimizer_are_guards)
{
    TS_SCOPE;
    net a = net_new(0.5, TS_ADAMW), b = net_new(0.5, TS_ADAMW);
    ts_compiled *c = replays_of(step, &a);
    for (int k = 0; k < 60; k++) {
        TS_SCOPE;
        ts_tensor *batch[] = {numbers(10 + (uint64_t)k, TS_SIZES(4, 6)),
                              numbers(20 + (uint64_t)k, TS_SIZES(4, 3))};
        if (k % 10 == 5) {
            ts_module_train(a.module, k % 20 == 5);
            ts_module_train(b.module, k % 20 == 5);
        }
        if (k == 30) { /* replaces the optimizer by a new one */
            ts_group_opts opts = ts_optimizer_defaults(TS_ADAMW, 0.05);
            ts_optimizer_free(a.optimizer), ts_optimizer_free(b.optimizer);
            OK(a.optimizer = ts_optimizer_for(a.module, TS_ADAMW, &opts));
            OK(b.optimizer = ts_optimizer_for(b.module, TS_ADAMW, &opts));
        }
        if (k == 40) { /* freezes a parameter, so its moments stay as they are */
            int64_t n;
            OK(ts_set_requires_grad(ts_optimizer_params(a.optimizer, &n)[0], false));
            OK(ts_set_requires_grad(ts_optimizer_params(b.optimizer, &n)[0], false));
        }
        if (k == 50 || k == 55) { /* a hook doubles a gradient */
            static ts_hook *hooks[2];
            int64_t n;
            ts_tensor *p = ts_optimizer_params(a.optimizer, &n)[1],
                      *q = ts_optimizer_params(b.optimizer, &n)[1];
            if (k == 50) {
                OK(ts_register_hook(p, doubled, NULL, &hooks[0]));
                OK(ts_register_hook(q, doubled, NULL, &hooks[1]));
            } else {
                ts_hook_remove(p, hooks[0]), ts_hook_remove(q, hooks[1]);
            }
        }
        check_call(c, step, &b, batch, 2);
        check_same_nets(a, b, false);
        check_same_states(a, b);
    }
    ck_assert_int_ge(ts_compiled_get_stats(c).skipped, 35);
    ts_compiled_free(c);
    net_free(a);
    net_free(b);
}

static ts_status with_buffer(TRACED)
{
    hooks *h = ctx;
    ran++;
    TS_TRY(ts_add_(h->w, in[0]));
    return TS_STATUS_OF(out[0] = ts_mul(h->w, in[0]));
}

TS_TEST(a_released_tensor_is_a_guard)
{
    TS_SCOPE;
    hooks a = {0}, b = {.w = numbers(7, TS_SIZES(5))};
    {
        TS_SCOPE;
        a.w = ts_retain(numbers(7, TS_SIZES(5)));
    }
    ts_compiled *c = replays_of(with_buffer, &a);
    for (int k = 0; k < 20; k++) {
        TS_SCOPE;
        ts_tensor *x = numbers((uint64_t)k, TS_SIZES(5));
        if (k == 10) {
            ts_release(a.w);
            a.w = ts_retain(numbers(8, TS_SIZES(5)));
            OK(ts_copy_(b.w, a.w));
        }
        check_call(c, with_buffer, &b, &x, 1);
        ck_assert(same(a.w, b.w));
        ck_assert_uint_eq(ts_version(a.w) + (k >= 10 ? 11 : 0), ts_version(b.w));
    }
    ck_assert_int_le(ran, 4);
    ts_compiled_free(c);
    ts_release(a.w);
}

/* ------------------------------------------------------------------------------ aliasing ---- */

static ts_status write_input(TRACED)
{
    ran++;
    ts_tensor *row = ts_select(in[0], 0, 1);
    TS_TRY(ts_mul_scalar_(in[0], 2));
    TS_TRY(ts_add_(row, in[1]));
    out[0] = in[0];
    out[1] = row;
    return TS_STATUS_OF(out[2] = ts_add(row, in[1]));
}
static ts_status same_twice(TRACED)
{
    ran++;
    out[0] = out[1] = ts_add(ts_select(in[0], 0, 0), in[1]);
    out[2] = ts_select(ts_reshape(out[0], TS_SIZES(2, 2)), 0, 1); /* a view of an output */
    return TS_STATUS_OF(out[2]);
}
static ts_status captured_output(TRACED)
{
    hooks *h = ctx;
    ran++;
    TS_TRY(ts_add_(h->w, in[1]));
    out[0] = h->w;
    out[1] = ts_narrow(h->w, 0, 1, 2);
    out[2] = TS_NONE;
    return TS_STATUS_OF(out[1]);
}

TS_TEST(outputs_alias_the_tensors_of_eager_calls, .loop = 3)
{
    static const ts_trace_fn all[] = {write_input, same_twice, captured_output};
    enum { CALLS = 8 };
    TS_SCOPE;
    hooks a = {.w = numbers(7, TS_SIZES(4))}, b = {.w = numbers(7, TS_SIZES(4))};
    ts_compiled *c = replays_of(all[_i], &a);
    ts_tensor *got[CALLS][3], *want[CALLS][3];
    for (int k = 0; k < CALLS; k++) {
        ts_tensor *in[] = {numbers((uint64_t)k, TS_SIZES(2, 4)), numbers(9, TS_SIZES(4))},
                  *too[] = {ts_clone(in[0]), ts_clone(in[1])};
        OK(ts_compiled_call(c, in, 2, got[k], 3));
        int before = ran;
        OK(all[_i](&b, too, 2, want[k], 3));
        ran = before;
        ck_assert(same(in[0], too[0]));
        ck_assert_uint_eq(ts_version(in[0]), ts_version(too[0]));
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < 3; j++)
                if (got[k][i] != TS_NONE && got[k][j] != TS_NONE) {
                    ck_assert_int_eq(got[k][i] == got[k][j], want[k][i] == want[k][j]);
                    bool alias = want[k][i]->storage == want[k][j]->storage;
                    ck_assert_int_eq(got[k][i]->storage == got[k][j]->storage, alias);
                    ck_assert_int_eq(alias ? got[k][i]->data - got[k][j]->data : 0,
                                     alias ? want[k][i]->data - want[k][j]->data : 0);
                }
        ck_assert_int_eq(got[k][0] == in[0], want[k][0] == too[0]);
        ck_assert_int_eq(got[k][0] == a.w, want[k][0] == b.w);
    }
    for (int k = 0; k < CALLS; k++)
        for (int i = 0; i < 3; i++) /* later calls have not overwritten it */
            ck_assert(same(got[k][i], want[k][i]));
    ck_assert_int_eq(ran, 2);
    ts_compiled_free(c);
}

static ts_status decay(TRACED)
{
    ran++;
    return TS_STATUS_OF(out[0] = ts_tanh(ts_mul_scalar(in[0], 0.5)));
}

TS_TEST(an_output_may_be_the_next_input_and_draws_between_calls_stay_in_order)
{
    TS_SCOPE;
    ts_compiled *c = replays_of(decay, NULL);
    ts_tensor *x = numbers(1, TS_SIZES(300)), *y = x, *next;
    for (int k = 0; k < 20; k++) {
        OK(ts_compiled_call(c, &x, 1, &next, 1));
        x = next;
        OK(decay(NULL, &y, 1, &next, 1));
        y = next;
        ck_assert(same(x, y));
    }
    ck_assert_int_eq(ran, 22);
    ts_compiled_free(c);
}

static ts_status drops(TRACED)
{
    ran++;
    ts_tensor *t = ts_dropout(in[0], 0.5, true);
    return TS_STATUS_OF(out[0] = ts_add(t, ts_dropout(in[0], 0.5, true)));
}

TS_TEST(masks_of_replays_are_those_of_eager_calls_at_any_generator_state)
{
    TS_SCOPE;
    ts_compiled *c = replays_of(drops, NULL);
    ts_tensor *x = ts_ones(TS_SIZES(64), TS_F32), *last = NULL, *y;
    for (int k = 0; k < 30; k++) {
        if (k % 7 == 6)
            ts_manual_seed((uint64_t)k); /* between calls */
        if (k % 5 == 4)
            OK(ts_normal(TS_SIZES(3), 0, 1, TS_F32));
        ts_rng_state begin = ts_rng_get_state();
        check_call(c, drops, NULL, &x, 1);
        ts_rng_set_state(begin);
        OK(ts_compiled_call(c, &x, 1, &y, 1));
        ck_assert(!last || !same(last, y));
        last = y;
    }
    ck_assert_int_eq(ran, 2);
    ts_compiled_free(c);
}

/* ----------------------------------------------------------------- changes without a guard ---- */

static ts_status counts_calls(TRACED)
{
    hooks *h = ctx;
    ran++;
    h->count++;
    return TS_STATUS_OF(out[0] = h->count % h->branch ? ts_neg(in[0]) : ts_exp(in[0]));
}

TS_TEST(a_function_that_differs_although_all_guards_hold_is_never_replayed_again)
{
    TS_SCOPE;
    hooks a = {.branch = 2}, b = a; /* the calls alternate between two branches */
    ts_compiled *c = replays_of(counts_calls, &a);
    ts_tensor *x = numbers(1, TS_SIZES(3)), *got, *want;
    for (int k = 0; k < 20; k++) {
        OK(ts_compiled_call(c, &x, 1, &got, 1));
        OK(counts_calls(&b, &x, 1, &want, 1));
        ck_assert(same(got, want));
    }
    ck_assert_int_eq(ran, 40);
    ck_assert(explains(c, "calls differ although no guard does"));
    ts_compiled_free(c);
}

static int warnings;
static void on_log(void *payload, const char *topic, const char *text)
{
    (void)payload;
    warnings += strcmp(topic, "warning") == 0 && strstr(text, "no more replays") != NULL;
}

TS_TEST(verify_finds_a_branch_that_no_guard_detects)
{
    TS_SCOPE;
    hooks a = {.branch = 1000}, b = a;
    warnings = 0;
    ran = 0;
    ts_log_set_callback(on_log, NULL);
    ts_compiled *c = ts_compile(
        counts_calls, &a, TS_OPTS(ts_compile_opts, .replay = true, .verify = 5));
    ts_tensor *x = numbers(1, TS_SIZES(3)), *got, *want;
    for (int k = 0; k < 40; k++) {
        if (k == 20)
            a.branch = b.branch = 1; /* from now on it calls exp */
        OK(ts_compiled_call(c, &x, 1, &got, 1));
        int before = ran;
        OK(counts_calls(&b, &x, 1, &want, 1));
        ran = before;
        if (k < 20 || k > 25)
            ck_assert(same(got, want));
    }
    ts_log_set_callback(NULL, NULL);
    ts_compile_stats stats = ts_compiled_get_stats(c);
    ck_assert_int_ge(stats.verified, 4);
    ck_assert_int_ge(stats.skipped, 10);
    ck_assert_int_eq(warnings, 1);
    ck_assert(explains(c, "a check found another call than a replay makes"));
    ck_assert(explains(c, "mode: the function runs on each call"));
    ts_compiled_free(c);
}

/* ----------------------------------------------------------------------------- the rest ---- */

static ts_status fails_late(TRACED)
{
    hooks *h = ctx;
    ran++;
    TS_SCOPE;
    TS_TRY(out[0] = ts_neg(in[0]));
    if (h->count++ == 2)
        return ts_error_set(TS_ERR_VALUE, "the third call");
    out[0] = ts_keep(out[0]);
    return TS_OK;
}
TS_TEST(a_function_that_fails_after_its_output_is_not_replayed)
{
    TS_SCOPE;
    hooks a = {.count = 1};
    ts_compiled *c = replays_of(fails_late, &a);
    ts_tensor *x = numbers(1, TS_SIZES(3)), *y;
    OK(ts_compiled_call(c, &x, 1, &y, 1));
    FAILS(TS_ERR_VALUE, ts_compiled_call(c, &x, 1, &y, 1));
    for (int k = 0; k < 4; k++)
        OK(ts_compiled_call(c, &x, 1, &y, 1));
    ck_assert_int_eq(ran, 3); /* the failed call counts neither for nor against a replay */
    ts_compiled_free(c);
}

static ts_status fails_at_a_place(TRACED)
{
    ran++;
    return TS_STATUS_OF(out[0] = ts_index_select(in[0], 0, in[1]));
}

TS_TEST(an_error_of_a_replay_is_that_of_the_eager_call_and_the_next_replay_works)
{
    TS_SCOPE;
    ts_compiled *c = replays_of(fails_at_a_place, NULL);
    ts_tensor *x = numbers(1, TS_SIZES(3, 2)), *y;
    for (int k = 0; k < 8; k++) {
        TS_SCOPE;
        int64_t places[] = {0, k == 5 ? 7 : 2};
        ts_tensor *in[] = {x, ts_from_array(places, TS_I64, TS_SIZES(2))};
        if (k == 5) {
            FAILS(TS_ERR_INDEX, ts_compiled_call(c, in, 2, &y, 1));
            SAYS("7");
            ck_assert_ptr_null(y);
        } else {
            OK(ts_compiled_call(c, in, 2, &y, 1));
        }
    }
    ck_assert_int_eq(ran, 2);
    ts_compiled_free(c);
}

static ts_status pure(TRACED)
{
    return TS_STATUS_OF(out[0] = ts_gelu(ts_mul(in[0], in[0])));
}
static ts_compiled *shared;
static bool call_shared(int number, void *ctx)
{
    (void)ctx;
    bool good = true;
    for (int k = 0; k < 50 && good; k++) {
        TS_SCOPE;
        ts_tensor *x = numbers((uint64_t)(100 * number + k), TS_SIZES(40)), *got = NULL, *want;
        good = ts_compiled_call(shared, &x, 1, &got, 1) == TS_OK &&
               pure(NULL, &x, 1, &want, 1) == TS_OK && same(got, want);
    }
    return good;
}

TS_TEST(threads_replay_and_run_the_function_at_once, .threads = true)
{
    shared = replays_of(pure, NULL);
    ck_assert_int_eq(ts_together(4, call_shared, NULL), 4);
    ck_assert_int_gt(ts_compiled_get_stats(shared).skipped, 20);
    ts_compiled_free(shared);
}

static ts_tensor *leaves[2];
/** Adds in[0] to the gradients of both leaves, in the order that ctx gives. */
static ts_status add_to_both(TRACED)
{
    TS_SCOPE;
    for (int k = 0; k < 2; k++) {
        TS_TRY(ts_backward(ts_sum(ts_mul(in[0], leaves[k ^ *(const int *)ctx]))));
        usleep(50); /* other threads run meanwhile */
    }
    return TS_OK;
}

static bool call_one_of_two(int number, void *ctx)
{
    ts_compiled *const *both = ctx;
    bool good = true;
    for (int k = 0; k < 50 && good; k++) {
        TS_SCOPE;
        ts_tensor *x = ts_ones(TS_SIZES(64, 64), TS_F32);
        good = ts_compiled_call(both[number % 2], &x, 1, NULL, 0) == TS_OK;
    }
    return good;
}

TS_TEST(threads_add_to_the_same_gradients_in_any_order, .threads = true, .loop = 4)
{
    TS_SCOPE;
    int order[] = {0, _i % 2};
    ts_compiled *both[2];
    for (int k = 0; k < 2; k++) {
        leaves[k] = ts_set_requires_grad(numbers((uint64_t)k, TS_SIZES(64, 64)), true);
        both[k] = ts_compile(add_to_both, &order[k],
                             TS_OPTS(ts_compile_opts, .replay = _i / 2, .fullgraph = !order[1]));
    }
    ck_assert_int_eq(ts_together(4, call_one_of_two, both), 4);
    for (int k = 0; k < 2; k++) {
        double least, most;
        OK(ts_item(ts_amin(ts_grad(leaves[k])), &least));
        OK(ts_item(ts_amax(ts_grad(leaves[k])), &most));
        ck_assert_double_eq(least, 200);
        ck_assert_double_eq(most, 200);
        ts_compiled_free(both[k]);
    }
}

TS_TEST(storages_that_replays_hold_may_be_written_in_place)
{
    TS_SCOPE;
    hooks a = {.w = numbers(7, TS_SIZES(5))};
    ts_compiled *c = replays_of(with_buffer, &a);
    ts_tensor *x = numbers(1, TS_SIZES(5)), *y;
    for (int k = 0; k < 4; k++)
        OK(ts_compiled_call(c, &x, 1, &y, 1));
    ts_tensor *leaf = ts_set_requires_grad(numbers(2, TS_SIZES(5)), true);
    OK(ts_mul_(a.w, leaf)); /* would be an error if another tensor shared a.w's memory */
    ts_compiled_free(c);
}

/** Calls the shared function with inputs of sizes that no other thread passes. */
static bool call_with_own_sizes(int number, void *ctx)
{
    (void)ctx;
    bool good = true;
    for (int k = 0; k < 50 && good; k++) {
        TS_SCOPE;
        ts_tensor *x = numbers((uint64_t)k, TS_SIZES(50 + number, 512)), *got = NULL, *want;
        good = ts_compiled_call(shared, &x, 1, &got, 1) == TS_OK &&
               pure(NULL, &x, 1, &want, 1) == TS_OK && same(got, want);
    }
    return good;
}

TS_TEST(a_plan_runs_with_all_places_for_plans_taken, .threads = true, .loop = 2)
{
    shared = ts_compile(pure, NULL, TS_OPTS(ts_compile_opts, .max_plans = 1, .replay = _i));
    ck_assert_int_eq(ts_together(4, call_with_own_sizes, NULL), 4);
    ck_assert_int_eq(ts_compiled_get_stats(shared).plans, 1);
    ts_compiled_free(shared);
}

/** Odd threads read the tensor ctx, even ones pass it to the shared function. TSan checks that the
 *  calls do not write to it. */
static bool read_or_call(int number, void *ctx)
{
    ts_tensor *x = ctx, *got;
    bool good = true;
    for (int k = 0; k < 50 && good; k++) {
        TS_SCOPE;
        good = number % 2 ? ts_exp(x) && ts_version(x) == 0
                          : ts_compiled_call(shared, &x, 1, &got, 1) == TS_OK;
    }
    return good;
}

TS_TEST(threads_share_an_input_that_no_call_writes, .threads = true, .loop = 2)
{
    TS_SCOPE;
    ts_tensor *x = ts_ones(TS_SIZES(64, 64), TS_F32);
    shared = ts_compile(pure, NULL, TS_OPTS(ts_compile_opts, .replay = _i));
    ck_assert_int_eq(ts_together(4, read_or_call, x), 4);
    ts_compiled_free(shared);
}
