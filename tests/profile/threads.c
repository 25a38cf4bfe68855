/** @file threads.c  Tests of profiles of programs with several threads. */
// SPDX-License-Identifier: MIT
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "core/testing.h"
#include "dispatch/timers_state.h"
#include "profile/profile.h"
#include "tests/dispatch/common.h"
#include "tests/profile/rival.h"
#include "tests/profile/take.h"

enum { WORK = 20000, OFTEN = 1000, LARGE = 4096 /* bytes */ };

/** Calls `add` WORK times, or as often as *arg says; each OFTEN-th time also `mul`, in a scope, and
 *  allocates a tensor of LARGE bytes. */
static void *work(void *arg)
{
    ts_tensor *a = ts_ones(TS_SIZES(4), TS_F32);
    for (int i = 0, n = arg ? *(int *)arg : WORK; i < n; i++) {
        TS_SCOPE;
        ts_add(a, a);
        if (i % OFTEN == 0) {
            TS_PROF_SCOPE("part");
            ts_mul(a, a);
            ts_empty(TS_SIZES(LARGE / 4), TS_F32);
        }
    }
    return arg;
}

/** The threads end before the profile does. TS_TEST_FULL: a million calls in each. */
TS_TEST(threads_are_counted_exactly, .threads = true, .timeout = 1200)
{
    BEGIN;
    enum { THREADS = 16 };
    pthread_t threads[THREADS];
    int calls = getenv("TS_TEST_FULL") ? 1000000 : WORK;
    OK(ts_prof_start(TS_OPTS(ts_prof_opts, .memory = true)));
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, &calls);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    ts_profile *p = take();
    ck_assert_int_eq(must_find(p, "add((4) f32, (4) f32)")->calls, (int64_t)THREADS * calls);
    ck_assert_int_eq(must_find(p, "mul((4) f32, (4) f32)")->calls, THREADS * calls / OFTEN);
    sums(p);
    int64_t count, lost, begun, large = 0;
    const ts_memory_life *lives = ts_memory_lives(&count, &lost, &begun);
    for (int64_t i = 0; i < count; i++) {
        large += lives[i].bytes == LARGE;
        ck_assert_int_ge(lives[i].freed, lives[i].allocated);
    }
    ck_assert_int_eq(large, THREADS * calls / OFTEN);
    ck_assert_int_eq(lost, 0);
    ck_assert_double_ge(p->memory.peak_bytes, LARGE);
    ts_profile_free(p);
}

static atomic_int waiting;

/** Calls one op before the recording and, if *ctx is set, one while it runs; then waits. */
static void *call_and_wait(void *ctx)
{
    ts_ones(TS_SIZES(4), TS_F32);
    atomic_fetch_add(&waiting, 1);
    while (atomic_load(&waiting) < 2)
        sched_yield();
    if (*(bool *)ctx)
        ts_ones(TS_SIZES(4), TS_F32);
    atomic_fetch_add(&waiting, 1);
    while (atomic_load(&waiting) < 4)
        sched_yield();
    return NULL;
}
/** Starts call_and_wait() and a profile. Returns when the thread waits after its last call. */
static pthread_t record_beside_a_thread(bool *calls)
{
    pthread_t thread;
    atomic_store(&waiting, 0);
    pthread_create(&thread, NULL, call_and_wait, calls);
    while (!atomic_load(&waiting))
        sched_yield();
    OK(ts_prof_start(NULL));
    atomic_fetch_add(&waiting, 1);
    while (atomic_load(&waiting) < 3)
        sched_yield();
    return thread;
}

/* A thread without a call is left out. Of a thread that calls, but ends no step, only the calls
 * count. */
TS_TEST(waiting_threads_are_left_out, .threads = true, .loop = 2)
{
    BEGIN;
    bool calls = _i;
    pthread_t thread = record_beside_a_thread(&calls);
    for (int i = 0; i < 4; i++) {
        work(NULL);
        ts_prof_step();
    }
    ts_profile *p = take();
    atomic_fetch_add(&waiting, 1);
    pthread_join(thread, NULL);
    ck_assert_int_eq(p->threads, 1 + calls);
    ck_assert_int_eq(p->nsteps, 4);
    double steps = 0;
    for (int i = 0; i < 4; i++)
        steps += p->steps[i].wall_ns;
    ck_assert_double_lt(p->wall_ns, 1.5 * steps); /* the thread waits as long as the steps take */
    sums(p);
    ts_profile_free(p);
}

typedef struct late_time {
    int64_t ticks; /* to be added */
    int found;     /* rows that got them */
} late_time;

/** Adds the time to the row of ones() in any thread. */
static void add_late(const ts_thread_record *r, void *ctx)
{
    late_time *late = ctx;
    for (int i = 0; i < atomic_load(&r->table->count); i++) {
        ts_tally_row *row = ts_tally_at(r->table, i);
        if (row->op != TS_ROW_OUTSIDE && strcmp(ts_row_op(row->op), "full") == 0) {
            add(&row->cell.ticks, late->ticks);
            late->found++;
        }
    }
}

/* A thread that stamps while the profile ends may add its last ticks to a row after its wall time
 * was read. These count as wall time if they fit into the time until the profile ended; if they do
 * not, the profile reports that its rows cover too much. */
TS_TEST(a_row_may_grow_while_the_profile_ends, .threads = true, .loop = 2)
{
    BEGIN;
    bool calls = true, fits = _i;
    pthread_t thread = record_beside_a_thread(&calls);
    double begin = seconds();
    while (seconds() < begin + 0.05)
        sched_yield();
    OK(ts_prof_stop());
    late_time late = {.ticks = (int64_t)((fits ? 4e7 : 4e10) / ts_timers_tick_ns())};
    ts_timers_each_record(add_late, &late);
    ck_assert_int_eq(late.found, 1);
    ts_profile *p = ts_profile_take();
    atomic_fetch_add(&waiting, 1);
    pthread_join(thread, NULL);
    OK(p);
    ck_assert_int_eq(p->threads, 1);
    if (fits)
        sums(p);
    else
        ck_assert_double_gt(p->own_share, 10);
    ts_profile_free(p);
}

/** More threads than have rows of their own. */
TS_TEST(threads_that_end_one_after_the_other_are_merged)
{
    BEGIN;
    enum { THREADS = TS_TIMERS_ENDED + 9 };
    OK(ts_prof_start(NULL));
    for (int i = 0; i < THREADS; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, work, NULL);
        pthread_join(thread, NULL);
    }
    ts_profile *p = take();
    ck_assert_int_eq(must_find(p, "add((4) f32, (4) f32)")->calls, THREADS * WORK);
    sums(p);
    ts_profile_free(p);
}

TS_TEST(time_in_which_the_system_runs_others_is_reported, .threads = true)
{
    BEGIN;
    if (!waits_are_counted())
        TS_SKIP("the system does not count the time in which a thread is ready and does not run");
    ts_tensor *x = one();
    rival other;
    rival_start(&other);
    OK(ts_prof_start(NULL));
    for (double begin = seconds(); seconds() < begin + 0.4;)
        OK(ts_add_(x, x));
    ts_profile *p = take();
    rival_stop(&other);
    ck_assert_msg(p->preempted_ns > 0.2 * p->wall_ns && p->preempted_ns < 1.01 * p->wall_ns,
                  "%f of %f", p->preempted_ns, p->wall_ns);
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    OK(ts_profile_write(p, out, TS_PROFILE_TABLES));
    fclose(out);
    ck_assert_msg(strstr(text, "the processors ran other threads for ") != NULL, "%s", text);
    free(text);
    ts_profile_free(p);
}
