/** @file dead.c  Use of released tensors; scopes that are left late, out of order or by a jump. */
// SPDX-License-Identifier: MIT
#include "core/tensor.h"
#include "dispatch/op.h"
#include "include/tessera/tessera.h"
#include "tests/core/dead.h"
#include "tests/expect.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

static ts_tensor *two(void) { return ts_ones(TS_SIZES(2), TS_F32); }

static ts_tensor *dead(void)
{
#define DEAD_LINE 19 /* number of the next line */
    TS_SCOPE;
    return two();
}

/** Asserts that the last call failed because its argument was released; clears the record. */
static void expect_dead(const char *argument)
{
    char part[80];
    snprintf(part, sizeof part, "argument '%s': expected a tensor, got one that was released",
             argument);
    ck_assert_msg(ts_error_code() == TS_ERR_STATE && strstr(ts_error_message(), part), "%s: %s",
                  ts_status_name(ts_error_code()), ts_error_message());
    ts_error_clear();
}

/* ------------------------------------------------------------------------------- handles ---- */

/** Calls each op of the table with a released tensor as each of its tensor arguments, and as a
 *  member of each list. */
TS_TEST(each_op_names_the_argument_that_is_dead)
{
    NEEDS_HEAP;
    TS_SCOPE;
    ts_tensor *x = two(), *gone = dead(); /* each call fails, so no tensor reuses its header */
    int places = 0;
    for (int op = 0; op < ts_op_count(); op++) {
        const ts_schema *s = &ts_ops[op].schema;
        for (int at = 0; at < s->nargs; at++) {
            bool one = s->args[at].kinds >> TS_TAG_TENSOR & 1;
            bool list = s->args[at].kinds >> TS_TAG_TENSORS & 1;
            if (!one && !list)
                continue;
            ts_value args[TS_MAX_ARGS], rets[TS_MAX_RETS];
            ts_tensor *members[] = {x, gone};
            for (int i = 0; i < s->nargs; i++) {
                int tag = __builtin_ctz(s->args[i].kinds);
                args[i] = (ts_value){.tag = (uint8_t)tag};
                if (s->args[i].kinds >> TS_TAG_TENSOR & 1)
                    args[i] = ts_value_tensor(x);
                else if (s->args[i].kinds >> TS_TAG_TENSORS & 1)
                    args[i] = ts_value_tensors(members, 1);
            }
            args[at] = one ? ts_value_tensor(gone) : ts_value_tensors(members, 2);
            for (int i = 0; i < s->nrets; i++)
                rets[i] = ts_value_none();
            ck_assert_int_eq(ts_call_boxed(op, args, s->nargs, rets, s->nrets), TS_ERR_STATE);
            char name[40];
            snprintf(name, sizeof name, one ? "%s" : "%s[1]", s->args[at].name);
            expect_dead(name);
            places++;
        }
    }
    ck_assert_int_gt(places, 300);
    ts_add_out(gone, x, x);
    expect_dead("out");
}

TS_TEST(owners_refuse_a_dead_handle)
{
    NEEDS_HEAP;
    ts_tensor *gone = dead();
    ck_assert_ptr_null(ts_keep(gone));
    expect_dead("t");
    ck_assert_ptr_null(ts_retain(gone));
    expect_dead("t");
    ck_assert_ptr_null(ts_adopt(gone));
    expect_dead("t");
    ts_drop(gone);
    expect_dead("t");
    ts_release(gone);
    expect_dead("t");
    ck_assert_ptr_null(ts_set_requires_grad(gone, true));
    expect_dead("t");
    ck_assert_int_eq(ts_backward(gone), TS_ERR_STATE);
    expect_dead("loss");
    ck_assert_ptr_null(ts_data(gone));
    ck_assert_ptr_null(ts_data_mut(gone));
    ck_assert_int_eq(ts_device_of(gone).backend, TS_KEY_CPU);
    ck_assert_ptr_ne(two(), NULL);
}

TS_TEST(a_tensor_is_dropped_and_released_once)
{
    NEEDS_HEAP;
    ts_tensor *t = two(), *held = ts_retain(two());
    ts_drop(t);
    ts_drop(t);
    expect_dead("t");
    ts_drop(held);
    ts_release(held);
    ts_release(held);
    expect_dead("t");
}

TS_TEST(the_scopes_own_reference_is_not_released)
{
    TS_SCOPE;
    ts_tensor *t = two();
    ts_release(t);
    ck_assert_int_eq(ts_error_code(), TS_ERR_STATE);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "expected a reference that ts_retain() took"));
    ck_assert_float_eq(((const float *)ts_data(t))[1], 1);
}

/* The header of a released tensor may be reused by a later tensor, but never for other memory. */
TS_TEST(the_header_of_a_dead_handle_stays_valid_memory)
{
    NEEDS_HEAP;
    TS_SCOPE;
    ts_tensor *gone[64], *x = two();
    for (int i = 0; i < 64; i++)
        gone[i] = dead();
    unsigned state = 7;
    for (int round = 0; round < 2000; round++) {
        TS_SCOPE;
        for (int i = 0; i < 20; i++) {
            state = state * 1664525 + 1013904223;
            ts_ones(TS_SIZES(1 + (state >> 16) % 60), TS_F32);
        }
        ts_tensor *t = gone[round % 64];
        ck_assert_int_le(ts_ndim(t), TS_MAX_DIMS);
        ts_add(t, x); /* an error; or, if t's header was reused, a sum */
        ts_error_clear();
    }
}

TS_TEST(a_watched_scope_is_named)
{
    if (!ts_scopes_watched)
        TS_SKIP("TS_DEBUG=scopes is not set");
    ts_tensor *gone = dead(), *dropped = two(), *x = two();
    ts_drop(dropped);
    for (int i = 0; i < 1000; i++)
        ts_drop(two()); /* must not reuse a released header */
    FAILS(TS_ERR_STATE, ts_add(gone, x));
    SAYS("add: argument 'self': expected a tensor, got one that was released with the scope of ");
    SAYS("tests/core/dead.c:" TS_TEXT(DEAD_LINE));
    FAILS(TS_ERR_STATE, ts_add(x, dropped));
    SAYS("released by ts_drop(), ts_release() or its owner");
}

/* -------------------------------------------------------------------------------- scopes ---- */

TS_TEST(ten_thousand_scopes_nest)
{
    enum { DEEP = 10000 };
    ts_scope *scopes = calloc(DEEP, sizeof *scopes);
    int64_t before = ts_memory_get_stats().in_use;
    ts_tensor *last = NULL;
    for (int i = 0; i < DEEP; i++) {
        ts_scope_enter(&scopes[i], NULL);
        last = two();
    }
    ck_assert_float_eq(((const float *)ts_data(last))[1], 1);
    for (int i = DEEP; i-- > 0;)
        ts_scope_leave(&scopes[i]);
    ck_assert_int_eq(ts_error_code(), TS_OK);
    ck_assert_int_eq(ts_alloc_system && !ts_scopes_watched ? ts_memory_get_stats().in_use : before,
                     before);
    free(scopes);
}

static void expect_refused(ts_scope *scope, const char *part)
{
    ts_scope_leave(scope);
    ck_assert_msg(ts_error_code() == TS_ERR_STATE && strstr(ts_error_message(), part), "%s",
                  ts_error_message());
    ts_error_clear();
}

TS_TEST(a_scope_that_is_not_open_cannot_be_left)
{
    ts_scope outer, inner, other;
    ts_scope_enter(&outer, NULL);
    ts_scope_enter(&inner, NULL);
    ts_tensor *t = ts_retain(two());
    ts_scope_leave(&outer); /* also leaves inner */
    ck_assert_int_eq(ts_error_code(), TS_OK);
    ts_release(t);
    ts_scope_enter(&other, NULL);
    expect_refused(&inner, "is open");
    expect_refused(&outer, "is open");
    ts_tensor *x = two();
    ck_assert_float_eq(((const float *)ts_data(x))[1], 1);
    ts_scope_leave(&other);
    expect_refused(&other, "is open");
    ts_scope_leave(NULL);
    ck_assert_int_eq(ts_error_code(), TS_ERR_NULL);
    ts_error_clear();
}

TS_TEST(without_a_handle_no_scope_opens)
{
    ck_assert_int_eq(ts_scope_enter(NULL, "here.c:1"), 0);
    ck_assert_int_eq(ts_error_code(), TS_ERR_NULL);
    ck_assert_msg(strstr(ts_error_message(), "scope_enter: argument 'scope'") != NULL, "%s",
                  ts_error_message());
    ts_error_clear();
    ts_scope scope;
    ts_scope_enter(&scope, NULL);
    ts_tensor *x = two();
    ck_assert_float_eq(((const float *)ts_data(x))[1], 1);
    ts_scope_leave(&scope);
    ck_assert_int_eq(ts_error_code(), TS_OK);
}

static void *leave_here(void *scope)
{
    expect_refused(scope, "of this thread");
    ts_scope own;
    ts_scope_enter(&own, NULL);
    expect_refused(scope, "of this thread");
    ts_scope_leave(&own);
    return NULL;
}

TS_TEST(a_scope_ends_in_its_own_thread)
{
    ts_scope scope;
    ts_scope_enter(&scope, NULL);
    ts_tensor *t = two();
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, leave_here, &scope), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_float_eq(((const float *)ts_data(t))[1], 1);
    ts_scope_leave(&scope);
    ck_assert_int_eq(ts_error_code(), TS_OK);
}

/* A release function, called at the end of a scope, makes a tensor and drops `neighbour`. */
static ts_tensor *neighbour; /* the scope would release it next */
static double outside[2];
static void make_and_drop(void *payload, void *data, int64_t bytes)
{
    (void)payload, (void)data, (void)bytes;
    two();
    ts_drop(neighbour);
    neighbour = NULL;
    TS_SCOPE;
    two();
}

TS_TEST(tensors_made_while_a_scope_ends_are_counted_once)
{
    for (int round = 0; round < 3; round++) {
        TS_SCOPE;
        neighbour = two();
        ts_from_blob(outside, TS_F64, TS_SIZES(2), make_and_drop, NULL);
    }
    ck_assert_int_eq(ts_error_code(), TS_OK);
    TS_SCOPE;
    ts_tensor *a = two(), *b = two();
    ck_assert_ptr_ne(a, b);
}

/* -------------------------------------------------------------------------- ways out ---- */

static jmp_buf back;

static ts_status jump(ts_frame *f)
{
    (void)f;
    TS_SCOPE;
    TS_NO_GRAD;
    TS_AUTOCAST(TS_DEVICE_CPU, TS_BF16);
    two();
    longjmp(back, 1);
}

static void jump_now(int unused)
{
    (void)unused;
    longjmp(back, 1);
}

/** Opens depth + 1 nested scopes, then jumps out of all of them. */
static void jump_from(int depth)
{
    TS_SCOPE;
    TS_NO_GRAD;
    two();
    (depth ? jump_from : jump_now)(depth - 1);
}

static int jumping_op(void)
{
    int op;
    OK(ts_register_op("jump(Tensor x) -> Tensor", &op));
    OK(ts_register_kernel("jump", TS_KEY_CPU, jump, NULL, NULL));
    return op;
}

TS_TEST(a_scope_releases_the_tensors_of_inner_scopes_that_a_longjmp_left, .loop = 2)
{
    int op = _i ? jumping_op() : 0;
    ts_mask_guard masks = ts_mask_get();
    ts_tensor *w = ts_set_requires_grad(two(), true);
    volatile int64_t before = 0;
    for (volatile int round = 0; round < 50; round++) {
        if (round == 1)
            before = ts_memory_get_stats().in_use;
        {
            TS_SCOPE;
            if (!setjmp(back)) {
                if (_i) {
                    ts_value x = ts_value_tensor(two()), ret = ts_value_none();
                    ts_call_boxed(op, &x, 1, &ret, 1);
                } else {
                    jump_from(round);
                }
                ck_abort_msg("no jump");
            }
        }
        ts_mask_guard now = ts_mask_get();
        ck_assert(now.include == masks.include && now.exclude == masks.exclude);
        ck_assert_int_eq(ts_autocast_dtype(TS_DEVICE_CPU), TS_DTYPE_NONE);
        ck_assert_int_eq(ts_tls.depth, 0);
    }
    ck_assert_int_eq(ts_error_code(), TS_OK);
    int64_t after = ts_memory_get_stats().in_use;
    ck_assert(ts_scopes_watched || after == before);
    TS_SCOPE;
    ck_assert_int_eq(ts_backward(ts_sum(ts_mul(w, w))), TS_OK);
    ck_assert_ptr_ne(ts_grad(w), TS_NONE);
}

TS_TEST(a_layer_switched_on_in_a_scope_stays_on)
{
    {
        TS_SCOPE;
        ck_assert_int_eq(ts_layer_enable(TS_KEY_TRACING, true), TS_OK);
    }
    ck_assert(ts_mask_get().include & TS_KEYSET(TS_KEY_TRACING));
    {
        TS_SCOPE;
        ck_assert_int_eq(ts_layer_enable(TS_KEY_TRACING, false), TS_OK);
    }
    ck_assert(!(ts_mask_get().include & TS_KEYSET(TS_KEY_TRACING)));
}

static ts_status leave_thread(ts_frame *f)
{
    (void)f;
    TS_SCOPE;
    two();
    pthread_exit(NULL);
}

static void *exits_in_a_call(void *how)
{
    TS_SCOPE;
    TS_NO_GRAD;
    ts_tensor *x = two();
    if (how) {
        ts_value arg = ts_value_tensor(x), ret = ts_value_none();
        ts_call_boxed(*(int *)how, &arg, 1, &ret, 1);
    }
    for (;;) {
        TS_SCOPE;
        ts_add(x, x);
        pthread_testcancel();
    }
    return NULL;
}

TS_TEST(a_thread_that_exits_or_is_cancelled_leaves_nothing, .loop = 2)
{
#ifdef __SANITIZE_ADDRESS__
    TS_SKIP("AddressSanitizer keeps the marks of frames that a thread's exit passed over");
#endif
    int op;
    OK(ts_register_op("leave(Tensor x) -> Tensor", &op));
    OK(ts_register_kernel("leave", TS_KEY_CPU, leave_thread, NULL, NULL));
    int64_t before = 0;
    for (int i = 0; i < 20; i++) {
        if (i == 2)
            before = ts_memory_get_stats().in_use;
        pthread_t thread;
        ck_assert_int_eq(pthread_create(&thread, NULL, exits_in_a_call, _i ? &op : NULL), 0);
        if (!_i)
            pthread_cancel(thread);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
    }
    if (!ts_scopes_watched)
        ck_assert_int_eq(ts_memory_get_stats().in_use, before);
}
