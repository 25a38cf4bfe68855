// The thread pool. Each worker has one atomic word, through which a thread claims the worker's
// part of a loop.
// SPDX-License-Identifier: MIT

#include "core/parallel.h"

#include <errno.h>
#include <fenv.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

#include "core/checked.h"
#include "tessera/core.h"

/* Workers spin this long (in ns) before they sleep: longer than the time between the loops of a
 * training step. */
#define SPIN_NS 100000
#define SPIN_MOST 100000 /* most iterations of the spin, for a clock that does not advance */

/*
 * A worker's word. Odd: nothing to do. Even: a part of the current loop waits, and the thread that
 * sets the lowest bit runs it: the worker itself, or the thread that owns the loop. Each loop uses
 * new even values, so a late worker finds an odd word or a part that is still to be done.
 */
typedef struct worker {
    _Alignas(64) atomic_uint word;
    atomic_bool asleep;
    pthread_t thread;
} worker;

static struct pool {
    atomic_bool busy;     // true while the loop of a user thread runs, and forever after shutdown
    atomic_bool stopping;
    atomic_bool spin;     // false when there are more threads than processors
    int started;          // running workers; `busy` guards the fields from here to `parts`
    int refused_at;       // starting more workers than this failed; 0: no failure
    unsigned round;       // even value of the current loop
    ts_parallel_body body;
    void *ctx;
    int64_t tasks;
    int parts;
    _Alignas(64) atomic_uint pending; // parts offered to workers that are not done
    atomic_bool owner_asleep;
    worker workers[TS_PARALLEL_MAX]; // part p is offered to workers[p]; workers[0] stays unused
} pool;

static atomic_int thread_count; // 0 until the first use
static _Thread_local bool inside;
static _Thread_local struct {
    int count, threads; // pins not yet undone; ts_num_threads() while there are any
} pinned;

/* ------------------------------------------------------------------- number of threads ---- */

static int processors(void)
{
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return CPU_COUNT(&set);
#endif
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online < 1 ? 1 : online > INT_MAX ? INT_MAX : (int)online;
}

static int initial_threads(void)
{
    const char *wanted = getenv("TS_NUM_THREADS");
    if (wanted && *wanted) {
        int64_t n;
        if (ts_read_int(wanted, 1, INT_MAX, &n))
            return (int)n;
        ts_log_write("warning",
                     "TS_NUM_THREADS: expected a whole number of at least 1, got '%.200s'; the "
                     "variable is ignored",
                     wanted);
    }
    return processors();
}

int ts_num_threads(void)
{
    if (pinned.count)
        return pinned.threads;
    int n = atomic_load_explicit(&thread_count, memory_order_relaxed);
    if (n == 0) {
        n = initial_threads();
        int expected = 0; // a number that ts_set_num_threads() set meanwhile takes precedence
        if (!atomic_compare_exchange_strong(&thread_count, &expected, n))
            n = expected;
    }
    return n;
}

void ts_threads_pin(void)
{
    pinned.threads = ts_num_threads();
    pinned.count++;
}

void ts_threads_unpin(void)
{
    pinned.count--;
}

ts_status ts_set_num_threads(int threads)
{
    if (threads < 1)
        return ts_error_set(TS_ERR_VALUE,
                            "set_num_threads: argument 'threads': expected at least 1, got %d",
                            threads);
    atomic_store(&thread_count, threads);
    return TS_OK;
}

bool ts_in_parallel(void)
{
    return inside;
}

/* ------------------------------------------------------------------- waiting and waking ---- */

#if defined(__linux__)
static void word_sleep(atomic_uint *word, unsigned value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}
static void word_wake(atomic_uint *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}
#else
static pthread_mutex_t sleep_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t sleep_end = PTHREAD_COND_INITIALIZER;

static void word_sleep(atomic_uint *word, unsigned value)
{
    pthread_mutex_lock(&sleep_lock);
    if (atomic_load(word) == value)
        pthread_cond_wait(&sleep_end, &sleep_lock);
    pthread_mutex_unlock(&sleep_lock);
}
static void word_wake(atomic_uint *word)
{
    (void)word;
    pthread_mutex_lock(&sleep_lock);
    pthread_cond_broadcast(&sleep_end);
    pthread_mutex_unlock(&sleep_lock);
}
#endif

static inline void pause_spin(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Waits until the word differs from value in the bits of mask: spins, then sleeps. The sleeper sets
 * `asleep` before it loads the word again; the waker stores the word before it loads `asleep`. All
 * four accesses are sequentially consistent, so no wake-up is lost. */
static unsigned word_wait(atomic_uint *word, unsigned mask, unsigned value, atomic_bool *asleep)
{
    unsigned seen;
    int64_t deadline = 0;
    for (int turn = 0; turn < SPIN_MOST && atomic_load_explicit(&pool.spin, memory_order_relaxed);
         turn++) {
        seen = atomic_load_explicit(word, memory_order_acquire);
        if ((seen & mask) != value)
            return seen;
        pause_spin();
        if (turn % 32 == 0) {
            int64_t now = now_ns();
            if (deadline == 0)
                deadline = now + SPIN_NS;
            else if (now >= deadline)
                break;
        }
    }
    atomic_store(asleep, true);
    while (((seen = atomic_load(word)) & mask) == value)
        word_sleep(word, seen);
    atomic_store(asleep, false);
    return seen;
}

/* -------------------------------------------------------------------------------- loops ---- */

static void run_part(int part)
{
    int64_t size = pool.tasks / pool.parts, longer = pool.tasks % pool.parts;
    int64_t begin = part * size + (part < longer ? part : longer);
    pool.body(pool.ctx, begin, begin + size + (part < longer));
}

static bool claim(worker *w, unsigned word)
{
    return atomic_compare_exchange_strong(&w->word, &word, word | 1);
}

/* Sleepers are woken along a binary tree, so that no thread pays for all the system calls. */
static void wake_below(int part, int parts)
{
    for (int p = 2 * part + 1; p <= 2 * part + 2 && p < parts; p++)
        if (atomic_load(&pool.workers[p].asleep))
            word_wake(&pool.workers[p].word);
}

static void *worker_main(void *argument)
{
    worker *w = argument;
    int part = (int)(w - pool.workers);
    fesetenv(FE_DFL_ENV);
    inside = true;
    for (;;) {
        unsigned word = word_wait(&w->word, 1, 1, &w->asleep);
        if (!claim(w, word))
            continue;
        if (atomic_load(&pool.stopping))
            return NULL;
        wake_below(part, pool.parts);
        run_part(part);
        if (atomic_fetch_sub(&pool.pending, 1) == 1 && atomic_load(&pool.owner_asleep))
            word_wake(&pool.pending);
    }
}

void ts_parallel_forked(void)
{
    pool.started = 0;
    pool.refused_at = 0;
    atomic_store(&pool.pending, 0);
    atomic_store(&pool.owner_asleep, false);
    atomic_store(&pool.busy, atomic_load(&pool.stopping));
}

/* Starts workers until `wanted` run or the system refuses one. */
static void start_workers(int wanted)
{
    if (pool.refused_at && wanted > pool.refused_at)
        return;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (pool.started < wanted) {
        worker *w = &pool.workers[pool.started + 1];
        atomic_store(&w->word, pool.round | 1);
        atomic_store(&w->asleep, false);
        if (pthread_create(&w->thread, NULL, worker_main, w) != 0) {
            pool.refused_at = wanted - 1;
            break;
        }
#if defined(__linux__)
        char name[16];
        snprintf(name, sizeof name, "tessera-%u", (uint8_t)(pool.started + 1));
        pthread_setname_np(w->thread, name);
#endif
        pool.started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void run_loop(int64_t tasks, int parts, ts_parallel_body body, void *ctx)
{
    if (pool.started < parts - 1) {
        atomic_store_explicit(&pool.spin, parts <= processors(), memory_order_relaxed);
        start_workers(parts - 1);
    }
    if (parts > pool.started + 1)
        parts = pool.started + 1;
    pool.body = body;
    pool.ctx = ctx;
    pool.tasks = tasks;
    pool.parts = parts;
    pool.round += 2;
    atomic_store_explicit(&pool.pending, (unsigned)(parts - 1), memory_order_relaxed);
    for (int p = parts - 1; p > 0; p--) // in descending order: a worker's children come before it
        atomic_store(&pool.workers[p].word, pool.round);

    inside = true;
    wake_below(0, parts);
    run_part(0);
    for (int p = 1; p < parts; p++)
        if (claim(&pool.workers[p], pool.round)) {
            wake_below(p, parts);
            run_part(p);
            atomic_fetch_sub(&pool.pending, 1);
        }
    inside = false;
    if (atomic_load_explicit(&pool.pending, memory_order_acquire) != 0)
        for (unsigned left; (left = atomic_load(&pool.pending)) != 0;)
            word_wait(&pool.pending, UINT_MAX, left, &pool.owner_asleep);
}

void ts_parallel_for(int64_t tasks, int64_t grain, ts_parallel_body body, void *ctx)
{
    if (tasks <= 0)
        return;
    int64_t parts = tasks / (grain < 1 ? 1 : grain);
    int threads = ts_num_threads();
    if (threads > TS_PARALLEL_MAX)
        threads = TS_PARALLEL_MAX;
    if (parts > threads)
        parts = threads;
    if (parts <= 1 || inside || atomic_exchange_explicit(&pool.busy, true, memory_order_acquire)) {
        body(ctx, 0, tasks);
        return;
    }
    run_loop(tasks, (int)parts, body, ctx);
    atomic_store_explicit(&pool.busy, false, memory_order_release);
}

/* Workers of a loop that still runs stay. Otherwise `busy` stays set, so later loops run inline. */
void ts_parallel_stop(void)
{
    if (atomic_exchange(&pool.busy, true))
        return;
    atomic_store(&pool.stopping, true);
    pool.round += 2;
    for (int p = 1; p <= pool.started; p++) {
        atomic_store(&pool.workers[p].word, pool.round);
        word_wake(&pool.workers[p].word);
    }
    for (int p = 1; p <= pool.started; p++)
        pthread_join(pool.workers[p].thread, NULL);
    pool.started = 0;
}
