/**
 * @file stack.c  Each op runs, forward and backward, in a thread with a stack of 128 KiB.
 * One case per family.
 */
// SPDX-License-Identifier: MIT
#include "tests/samples/call.h"

#include <pthread.h>

enum { STACK = 128 << 10 };

#if defined(__SANITIZE_ADDRESS__) || !defined(__OPTIMIZE__)
enum { FRAMES_OF_A_RELEASE = 0 };
#else
enum { FRAMES_OF_A_RELEASE = 1 };
#endif

static void call_on_a_small_stack(const ts_case *c, ts_trace_fn fn)
{
    static sets s;
    TS_SCOPE;
    if (sets_build(&s, c, fn, 1)) {
        if (sets_run(&s, fn, 0) == TS_OK)
            sample_passed(c);
        else
            sample_failed(c, "%s", ts_error_message());
    }
    sets_free(&s);
}

static void *drive(void *family)
{
    each_sample(family, "on a small stack", call_on_a_small_stack);
    return NULL;
}

static void in_a_small_thread(const ts_sample_family *family)
{
    if (!FRAMES_OF_A_RELEASE) {
        ts_test_note_skip("frames of this build are larger than those of a release");
        return;
    }
    pthread_t thread;
    pthread_attr_t attr;
    ck_assert_int_eq(pthread_attr_init(&attr), 0);
    ck_assert_int_eq(pthread_attr_setstacksize(&attr, STACK), 0);
    ck_assert_int_eq(pthread_create(&thread, &attr, drive, (void *)family), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attr);
}

#define TS_FAMILY(family) \
    TS_TEST(family##_samples_need_a_small_stack) { in_a_small_thread(&ts_family_##family); }
#include "conformance/families.def"
