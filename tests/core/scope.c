/** @file scope.c  Ownership: scopes, ts_keep(), ts_drop(), ts_retain(), and owners in threads. */
// SPDX-License-Identifier: MIT
#include "core/tensor.h"
#include "include/tessera/tessera.h"
#include "tests/threads.h"

/** Calls of the release function of the test's memory, which show when a tensor is freed. */
static _Atomic int released;
static double outside[4] = {1, 2, 3, 4};
static void release(void *foreign, void *data, int64_t bytes)
{
    (void)foreign;
    ck_assert(data == outside && bytes == sizeof outside);
    released++;
}
static ts_tensor *watched(void)
{
    return ts_from_blob(outside, TS_F64, (int64_t[]){4}, 1, release, NULL);
}

TS_TEST(a_scope_releases_what_was_made_in_it)
{
    {
        TS_SCOPE;
        ck_assert_ptr_nonnull(watched());
        ck_assert_int_eq(released, 0);
    }
    ck_assert_int_eq(released, 1);
}

TS_TEST(every_way_out_of_a_block_closes_its_scope)
{
    for (int i = 0; i < 3; i++) {
        TS_SCOPE;
        watched();
        if (i == 0)
            continue;
        if (i == 1)
            break;
    }
    ck_assert_int_eq(released, 2);
    {
        TS_SCOPE;
        watched();
        goto out;
    }
out:
    ck_assert_int_eq(released, 3);
}

static ts_tensor *kept(void)
{
    TS_SCOPE;
    watched();
    return ts_keep(watched());
}

TS_TEST(keep_moves_one_tensor_to_the_parent)
{
    {
        TS_SCOPE;
        ts_tensor *t = kept();
        ck_assert_int_eq(released, 1);
        ck_assert_double_eq(((const double *)ts_data(t))[3], 4);
    }
    ck_assert_int_eq(released, 2);
}

/** Returns its argument through ts_keep(), as functions with a scope return results. */
static ts_tensor *same(ts_tensor *t)
{
    TS_SCOPE;
    return ts_keep(t);
}

TS_TEST(keep_leaves_what_an_outer_scope_owns)
{
    TS_SCOPE;
    ts_tensor *t = watched();
    {
        TS_SCOPE;
        for (int i = 0; i < 3; i++)
            ck_assert_ptr_eq(same(t), t);
    }
    ck_assert_int_eq(released, 0);
    ck_assert_double_eq(((const double *)ts_data(t))[0], 1);
}

TS_TEST(drop_releases_early_and_leaves_the_others)
{
    TS_SCOPE;
    ts_tensor *a = watched(), *b = watched(), *c = watched();
    ts_drop(b);
    ck_assert_int_eq(released, 1);
    ts_drop(c);
    ts_drop(a);
    ck_assert_int_eq(released, 3);
    ck_assert_ptr_nonnull(watched());
}

TS_TEST(retain_outlives_the_scope)
{
    ts_tensor *held;
    {
        TS_SCOPE;
        held = ts_retain(watched());
    }
    ck_assert_int_eq(released, 0);
    ts_release(held);
    ck_assert_int_eq(released, 1);
}

TS_TEST(adopting_a_tensor_that_a_scope_holds_releases_the_reference)
{
    {
        TS_SCOPE;
        ts_tensor *t = watched(), *other = watched();
        ck_assert_ptr_eq(ts_adopt(ts_retain(t)), t);
        ts_drop(other);
        ck_assert_int_eq(released, 1);
    }
    ck_assert_int_eq(released, 2);
}

TS_TEST(null_and_none_pass_through)
{
    TS_SCOPE;
    ck_assert_ptr_null(ts_keep(NULL));
    ck_assert_ptr_null(ts_retain(NULL));
    ck_assert_ptr_eq(ts_keep(TS_NONE), TS_NONE);
    ck_assert_ptr_eq(ts_retain(TS_NONE), TS_NONE);
    ts_drop(NULL);
    ts_drop(TS_NONE);
    ts_release(NULL);
    ts_release(TS_NONE);
    ck_assert_int_eq(ts_error_code(), TS_OK);
}

static void *thread_with_root_scope(void *arg)
{
    (void)arg;
    watched(); /* belongs to the thread's root scope */
    return NULL;
}

TS_TEST(a_threads_root_scope_ends_with_the_thread)
{
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, thread_with_root_scope, NULL), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(released, 1);
}

static void *release_it(void *arg)
{
    ts_release(arg);
    return NULL;
}

TS_TEST(the_last_owner_may_be_another_thread)
{
    ts_tensor *held;
    {
        TS_SCOPE;
        held = ts_retain(watched());
    }
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, release_it, held), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(released, 1);
}

enum { OWNERS = 4 };

/** Reads an element through a view, then releases one reference to the tensor; the last release
 *  frees it. */
static bool read_and_release(int number, void *ctx)
{
    TS_SCOPE;
    ts_tensor *t = ctx, *view = ts_slice(t, 0, number, number + 1, 1);
    bool good = view && *(const double *)ts_data(view) == number + 1;
    ts_release(t);
    return good;
}

TS_TEST(threads_release_one_tensor_at_once, .threads = true)
{
    for (int round = 1; round <= 200; round++) {
        ts_tensor *t;
        {
            TS_SCOPE;
            t = watched();
            for (int i = 0; i < OWNERS; i++)
                ts_retain(t);
        }
        ck_assert_int_eq(ts_together(OWNERS, read_and_release, t), OWNERS);
        ck_assert_int_eq(released, round);
    }
}

TS_TEST(a_view_holds_the_storage)
{
    {
        TS_SCOPE;
        ts_tensor *t = watched(), *view = ts_detach(t);
        ts_drop(t);
        ck_assert_int_eq(released, 0);
        ck_assert_double_eq(((const double *)ts_data(view))[1], 2);
    }
    ck_assert_int_eq(released, 1);
}
