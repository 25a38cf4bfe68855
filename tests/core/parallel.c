// The thread pool: each task of a loop runs once, with any number of threads.
// SPDX-License-Identifier: MIT
#include "core/parallel.h"
#include "tests/threads.h"

#include <fenv.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/core.h"

#define MOST 5000

#if defined(__SANITIZE_THREAD__)
#define SKIP_UNDER_TSAN TS_SKIP("TSan allows no new threads after a fork")
#else
#define SKIP_UNDER_TSAN (void)0
#endif

typedef struct counted {
    int64_t tasks, grain;
    atomic_int seen[MOST];
    atomic_int calls;
    atomic_int longest;
    atomic_bool bad_range;
    void (*more)(struct counted *c, int64_t task);
} counted;

static void count(void *ctx, int64_t begin, int64_t end)
{
    counted *c = ctx;
    if (begin < 0 || begin >= end || end > c->tasks) {
        atomic_store(&c->bad_range, true);
        return;
    }
    atomic_fetch_add(&c->calls, 1);
    int length = (int)(end - begin), longest = atomic_load(&c->longest);
    while (length > longest && !atomic_compare_exchange_weak(&c->longest, &longest, length))
        ;
    for (int64_t i = begin; i < end; i++) {
        atomic_fetch_add(&c->seen[i], 1);
        if (c->more)
            c->more(c, i);
    }
}

static counted *new_count(int64_t tasks, int64_t grain)
{
    counted *c = calloc(1, sizeof *c);
    ck_assert_ptr_nonnull(c);
    c->tasks = tasks;
    c->grain = grain;
    return c;
}

static bool each_once(const counted *c)
{
    bool good = !c->bad_range;
    for (int64_t i = 0; i < MOST; i++)
        good = good && c->seen[i] == (i < c->tasks);
    return good;
}

TS_TEST(every_task_once_for_any_number_of_threads, .loop = 8, .threads = true)
{
    const int64_t sizes[] = {1, 2, 3, 7, 8, 9, 64, 1000, 4999}, grains[] = {0, 1, 3, 100, 1 << 20};
    ck_assert_int_eq(ts_set_num_threads(_i + 1), TS_OK);
    for (int s = 0; s < 9; s++)
        for (int g = 0; g < 5; g++)
            for (int turn = 0; turn < 5; turn++) {
                counted *c = new_count(sizes[s], grains[g]);
                ts_parallel_for(sizes[s], grains[g], count, c);
                ck_assert(each_once(c));
                int64_t parts = sizes[s] / (grains[g] < 1 ? 1 : grains[g]);
                parts = parts > _i + 1 ? _i + 1 : parts < 1 ? 1 : parts;
                ck_assert_int_le(c->calls, parts);
                ck_assert_int_le(c->longest, (sizes[s] + c->calls - 1) / c->calls);
                free(c);
            }
}

TS_TEST(nothing_to_do_calls_nothing)
{
    counted *c = new_count(0, 1);
    ts_parallel_for(0, 1, count, c);
    ts_parallel_for(-5, 1, count, c);
    ts_parallel_for(INT64_MIN, 1, count, c);
    ck_assert(!c->bad_range && c->calls == 0);
    free(c);
}

typedef struct spans {
    int64_t tasks;
    atomic_llong covered;
    atomic_llong first_begin, last_end;
} spans;

static void add_span(void *ctx, int64_t begin, int64_t end)
{
    spans *s = ctx;
    atomic_fetch_add(&s->covered, end - begin);
    if (begin == 0)
        atomic_fetch_add(&s->first_begin, 1);
    if (end == s->tasks)
        atomic_fetch_add(&s->last_end, 1);
}

TS_TEST(huge_counts_do_not_overflow)
{
    ts_set_num_threads(7);
    spans a = {.tasks = INT64_MAX}, b = {.tasks = INT64_MAX};
    ts_parallel_for(INT64_MAX, 1, add_span, &a);
    ts_parallel_for(INT64_MAX, INT64_MAX / 3, add_span, &b);
    ck_assert(a.covered == INT64_MAX && a.first_begin == 1 && a.last_end == 1);
    ck_assert(b.covered == INT64_MAX && b.first_begin == 1 && b.last_end == 1);
}

static atomic_int at_once, most_at_once;

/* Returns once four calls have run at the same time. Waits as long as a busy machine needs to start
 * them. */
static void overlap(void *ctx, int64_t begin, int64_t end)
{
    (void)ctx, (void)begin, (void)end;
    int now = atomic_fetch_add(&at_once, 1) + 1, most = atomic_load(&most_at_once);
    while (now > most && !atomic_compare_exchange_weak(&most_at_once, &most, now))
        ;
    while (atomic_load(&most_at_once) < 4)
        usleep(1000);
    atomic_fetch_sub(&at_once, 1);
}

TS_TEST(parts_run_in_parallel)
{
    ts_set_num_threads(4);
    ts_parallel_for(4, 1, overlap, NULL);
    ck_assert_int_eq(most_at_once, 4);
    usleep(100000); // the workers are asleep now, and all wake again
    atomic_store(&most_at_once, 0);
    ts_parallel_for(4, 1, overlap, NULL);
    ck_assert_int_eq(most_at_once, 4);
}

static void loop_inside(counted *c, int64_t task)
{
    (void)task;
    if (!ts_in_parallel()) {
        atomic_store(&c->bad_range, true);
        return;
    }
    counted *inner = calloc(1, sizeof *inner);
    inner->tasks = 50;
    ts_parallel_for(50, 1, count, inner);
    if (inner->calls != 1 || !each_once(inner))
        atomic_store(&c->bad_range, true);
    free(inner);
}

TS_TEST(nested_loops_run_inline, .threads = true)
{
    ts_set_num_threads(4);
    counted *c = new_count(64, 1);
    c->more = loop_inside;
    ts_parallel_for(64, 1, count, c);
    ck_assert(each_once(c));
    ck_assert(!ts_in_parallel());
    free(c);
}

static void *user_thread(void *failed)
{
    for (int turn = 0; turn < 300; turn++) {
        counted *c = calloc(1, sizeof *c);
        c->tasks = 200 + turn;
        ts_parallel_for(c->tasks, turn % 2 ? 1 : 7, count, c);
        if (!each_once(c))
            atomic_fetch_add((atomic_int *)failed, 1);
        free(c);
    }
    return NULL;
}

TS_TEST(many_user_threads_share_the_pool, .threads = true)
{
    ts_set_num_threads(4);
    pthread_t users[8];
    atomic_int failed = 0;
    for (int i = 0; i < 8; i++)
        ck_assert_int_eq(pthread_create(&users[i], NULL, user_thread, &failed), 0);
    for (int turn = 1; turn < 50; turn++) // the number may change meanwhile
        ck_assert_int_eq(ts_set_num_threads(1 + turn % 6), TS_OK);
    for (int i = 0; i < 8; i++)
        pthread_join(users[i], NULL);
    ck_assert_int_eq(failed, 0);
}

/* Plain memory, not atomic: the parts see the caller's stores, and the caller sees theirs. */
typedef struct sums {
    int64_t in[MOST], out[MOST];
} sums;

static void double_all(void *ctx, int64_t begin, int64_t end)
{
    sums *s = ctx;
    for (int64_t i = begin; i < end; i++)
        s->out[i] = 2 * s->in[i];
}

static bool double_often(int number, void *ctx)
{
    (void)ctx;
    bool good = true;
    sums *s = calloc(1, sizeof *s);
    for (int turn = 0; turn < 100; turn++) {
        int64_t tasks = 64 + 13 * turn;
        for (int64_t i = 0; i < tasks; i++)
            s->in[i] = number + i;
        ts_parallel_for(tasks, turn % 2 ? 1 : 5, double_all, s);
        for (int64_t i = 0; i < tasks; i++)
            good &= s->out[i] == 2 * (number + i);
    }
    free(s);
    return good;
}

TS_TEST(a_loop_hands_plain_memory_to_its_parts_and_back, .threads = true)
{
    ts_set_num_threads(4);
    ck_assert_int_eq(ts_together(2, double_often, NULL), 2);
}

TS_TEST(a_forked_child_starts_its_own_pool)
{
    SKIP_UNDER_TSAN;
    ts_set_num_threads(4);
    atomic_store(&most_at_once, 0);
    ts_parallel_for(4, 1, overlap, NULL);
    ck_assert_int_eq(most_at_once, 4);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        atomic_store(&most_at_once, 0);
        ts_parallel_for(4, 1, overlap, NULL);
        _exit(most_at_once == 4 ? 0 : 1);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    atomic_store(&most_at_once, 0);
    ts_parallel_for(4, 1, overlap, NULL); // the parent's pool is as before
    ck_assert_int_eq(most_at_once, 4);
}

static void *loop_until_stopped(void *stop)
{
    while (!atomic_load((atomic_bool *)stop))
        user_thread(&(int){0});
    return NULL;
}

TS_TEST(fork_during_another_threads_loop)
{
    SKIP_UNDER_TSAN;
#if defined(__SANITIZE_ADDRESS__)
    TS_SKIP("AddressSanitizer's own locks are not reset in the child while another thread runs");
#endif
    ts_set_num_threads(3);
    atomic_bool stop = false;
    pthread_t user;
    ck_assert_int_eq(pthread_create(&user, NULL, loop_until_stopped, &stop), 0);
    for (int turn = 0; turn < 20; turn++) {
        pid_t child = fork();
        if (child == 0) {
            most_at_once = at_once = 0;
            ts_set_num_threads(4);
            ts_parallel_for(4, 1, overlap, NULL);
            _exit(most_at_once == 4 ? 0 : 1);
        }
        int status;
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    atomic_store(&stop, true);
    pthread_join(user, NULL);
}

static atomic_int odd_environments;

static void look_at_environment(void *ctx, int64_t begin, int64_t end)
{
    (void)begin, (void)end;
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    bool worker = !pthread_equal(pthread_self(), *(pthread_t *)ctx);
    if (worker && (fegetround() != FE_TONEAREST || !sigismember(&blocked, SIGINT)))
        atomic_fetch_add(&odd_environments, 1);
    overlap(NULL, 0, 1);
}

TS_TEST(workers_inherit_no_rounding_mode_and_take_no_signals)
{
    ts_set_num_threads(4);
    pthread_t self = pthread_self();
    sigset_t blocked;
    fesetround(FE_UPWARD);
    ts_parallel_for(4, 1, look_at_environment, &self);
    ck_assert_int_eq(fegetround(), FE_UPWARD);
    fesetround(FE_TONEAREST);
    ck_assert_int_eq(odd_environments, 0);
    ck_assert_int_eq(most_at_once, 4);
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    ck_assert(!sigismember(&blocked, SIGINT));
}

TS_TEST(refused_threads_leave_a_smaller_pool)
{
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    TS_SKIP("a sanitizer needs the address space that this case takes away");
#endif
    /* With no address space left for a stack, thread creation fails, also for root. */
    struct rlimit limit = {64 << 20, RLIM_INFINITY};
    FILE *statm = fopen("/proc/self/statm", "r");
    long pages;
    if (!statm || fscanf(statm, "%ld", &pages) != 1)
        TS_SKIP("no /proc/self/statm");
    fclose(statm);
    pthread_attr_t attr;
    size_t stack;
    pthread_attr_init(&attr);
    pthread_attr_getstacksize(&attr, &stack);
    limit.rlim_cur = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + (rlim_t)stack + (stack / 2);
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &limit), 0);
    ts_set_num_threads(64);
    counted *c = new_count(64, 1);
    for (int turn = 0; turn < 3; turn++)
        ts_parallel_for(64, 1, count, c);
    ck_assert_int_lt(c->calls, 3 * 8);
    for (int i = 0; i < 64; i++)
        ck_assert_int_eq(c->seen[i], 3);
    free(c);
}

TS_TEST(a_pinned_number_stays_until_its_last_unpin)
{
    ck_assert_int_eq(ts_set_num_threads(3), TS_OK);
    ts_threads_pin();
    ck_assert_int_eq(ts_set_num_threads(5), TS_OK);
    ts_threads_pin();
    ck_assert_int_eq(ts_num_threads(), 3);
    ts_threads_unpin();
    ck_assert_int_eq(ts_num_threads(), 3);
    ts_threads_unpin();
    ck_assert_int_eq(ts_num_threads(), 5);
}

TS_TEST(environment_sets_the_number)
{
    setenv("TS_NUM_THREADS", "3", 1);
    ck_assert_int_eq(ts_num_threads(), 3);
    ck_assert_int_eq(ts_set_num_threads(0), TS_ERR_VALUE);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "expected at least 1, got 0"));
    ck_assert_int_eq(ts_set_num_threads(-1), TS_ERR_VALUE);
    ck_assert_int_eq(ts_num_threads(), 3);
}

TS_TEST(invalid_numbers_in_the_environment_are_ignored, .loop = 5)
{
    const char *values[] = {"", "0", "-4", "3x", "99999999999"};
    setenv("TS_NUM_THREADS", values[_i], 1);
    int n = ts_num_threads();
    ck_assert_int_ge(n, 1);
    ck_assert_int_le(n, 1 << 16);
}

/* A loop in a fresh process that then ends normally: the destructor joins and does not hang. */
TS_TEST(process_ends_with_a_running_pool, .exit = 5)
{
    ts_set_num_threads(4);
    ts_parallel_for(4, 1, overlap, NULL);
    exit(5);
}
