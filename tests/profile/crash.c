/** @file crash.c  Tests that a program that crashes or is killed leaves a profile, wherever it is
 * and whatever the device's driver does then. */
// SPDX-License-Identifier: MIT
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/profile/scripted.h"

enum { CALLS = 300 };

/** Where the crash comes, or what hangs after it. */
typedef enum place {
    PROGRAM,    /* in the program's own code */
    LAUNCH,     /* inside of the driver, whose lock a flush needs */
    FLUSH_HANGS, CLOCK_HANGS, FLUSH_CRASHES, FLUSH_ABORTS,
    TIMERS,     /* with the lock of the timers */
    THREADS,    /* with the lock of the list of threads */
    MEMORY,     /* with the lock of the memory of tensors */
    OUTPUT,     /* with the lock of stderr */
    TWO_THREADS, /* two threads crash */
    PLACES
} place;
static const char *const place_names[PLACES] = {
    "program", "launch", "flush hangs", "clock hangs", "flush crashes", "flush aborts",
    "timers", "threads", "memory", "output", "two threads"};

static int number; /* the signal of the crash */
static ts_device device;

static volatile int zero, quotient;
static int *volatile nowhere;

/** Crashes as a bug would: a fault, or abort(). UBSan would find it before. */
__attribute__((no_sanitize("undefined"))) static void crash(void)
{
    if (number == SIGSEGV)
        *nowhere = 1;
    else if (number == SIGFPE)
        quotient = 7 / zero;
    else if (number == SIGABRT)
        abort();
    else
        raise(number); /* SIGBUS and SIGILL */
}
static void hang(void)
{
    for (;;)
        pause();
}
__attribute__((no_sanitize("undefined"))) static void fault(void) { *nowhere = 1; }
static void crash_in_walk(ts_thread *thread, void *ctx)
{
    (void)thread, (void)ctx;
    crash();
}
static void *crash_in_thread(void *unused)
{
    crash();
    return unused;
}

static void crash_at(place where)
{
    pthread_t thread;
    switch (where) {
    case LAUNCH: fake->at_launch = crash; break;
    case FLUSH_HANGS: fake->at_flush = hang; break;
    case CLOCK_HANGS: fake->at_clock = hang; break;
    case FLUSH_CRASHES: fake->at_flush = fault; break;
    case FLUSH_ABORTS: fake->at_flush = abort; break;
    case TIMERS: pthread_mutex_lock(&ts_timing.lock); break;
    case THREADS: ts_thread_walk(crash_in_walk, NULL); break;
    case OUTPUT: flockfile(stderr); break;
    case TWO_THREADS: pthread_create(&thread, NULL, crash_in_thread, NULL); break;
    default: break;
    }
    if (where == LAUNCH) {
        TS_SCOPE;
        OK(ts_relu(ts_to_device(ts_ones(TS_SIZES(3), TS_F32), device)));
    }
    crash();
}

/** The program: profiles itself, calls relu CALLS times, and crashes, or continues until it is
 *  killed. */
static void run(const char *folder, place where, bool crashes)
{
    static const int all[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGINT, SIGTERM, SIGHUP};
    char setting[128];
    for (int i = 0; i < TS_COUNTOF(all); i++)
        signal(all[i], SIG_DFL); /* not the handlers of a sanitizer or of the harness */
    snprintf(setting, sizeof setting, "1,memory,out=%s", folder);
    setenv("TS_PROF", setting, 1);
    ck_assert_ptr_nonnull(freopen("/dev/null", "w", stderr));
    ts_profile_from_environment();
    device = on_device();
    for (int i = 0; i < CALLS || !crashes; i++) {
        TS_SCOPE;
        ts_tensor *x = ts_ones(TS_SIZES(1000), TS_F32);
        if (i < CALLS) /* the fake CUPTI has room for so many records */
            OK(ts_relu(ts_to_device(x, device)));
        else
            OK(ts_exp(x));
        if (i == 20 && !crashes)
            ck_assert_int_eq(write(STDOUT_FILENO, "", 1), 1);
    }
    crash_at(where);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/** Runs the program in a child. killed: signal that it gets after `delay` µs; 0: it crashes. */
static ts_profile *profile_of(place where, int killed, unsigned delay)
{
    char folder[64] = "/tmp/tessera-crash-XXXXXX", path[96];
    int state, ready[2];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(pipe(ready), 0);
    double begin = now();
    pid_t child = fork();
    if (!child) {
        dup2(ready[1], STDOUT_FILENO);
        run(folder, where, !killed);
        _exit(1);
    }
    close(ready[1]);
    if (killed) {
        char byte;
        ck_assert_int_eq(read(ready[0], &byte, 1), 1);
        usleep(delay);
        kill(child, killed);
    }
    close(ready[0]);
    ck_assert_int_eq(waitpid(child, &state, 0), child);
    ck_assert_msg(WIFSIGNALED(state) && WTERMSIG(state) == (killed ? killed : number),
                  "%s, signal %d: ended with %x", place_names[where], killed ? killed : number,
                  (unsigned)state);
    ck_assert_double_lt(now() - begin, 30);
    snprintf(path, sizeof path, "%s/profile.json", folder);
    ts_profile *p = ts_profile_read(path);
    ck_assert_msg(p != NULL, "%s, signal %d: %s", place_names[where], killed ? killed : number,
                  ts_error_message());
    unlink(path);
    rmdir(folder);
    return p;
}

/** Each place with each signal. The host's part is always there; the device's part is there unless
 *  it cannot come. */
TS_TEST(a_crash_leaves_a_profile, .loop = PLACES)
{
    static const int all[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    BEGIN;
    place where = (place)_i;
    bool never = where >= LAUNCH && where <= FLUSH_ABORTS;
    ts_profile_wait_ms[1] = never ? 300 : 10000;
    for (int i = 0; i < TS_COUNTOF(all); i++) {
        number = all[i];
        ts_profile *p = profile_of(where, 0, 0);
        ck_assert_int_ge(must_find(p, "relu", "")->calls, CALLS);
        ck_assert_msg(p->device.incomplete == never, "%s, signal %d: %s", place_names[where],
                      number, p->device.note);
        if (never)
            ck_assert_str_eq(p->shares.verdict, "unreliable");
        else
            ck_assert_int_eq(must_find(p, "relu", "")->kernels, CALLS);
        ts_profile_free(p);
    }
}

/** A program that another process kills continues while the report is written, so that the driver's
 *  locks come free. */
TS_TEST(a_killed_program_leaves_a_whole_profile)
{
    static const int all[] = {SIGSEGV, SIGABRT, SIGINT, SIGTERM, SIGHUP};
    BEGIN;
    const char *text = getenv("TS_TEST_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 10) : 22;
    fake->real = true;
    for (int i = 0; i < 25; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        ts_profile *p = profile_of(PROGRAM, all[i % 5], (unsigned)(seed >> 40) % 20000);
        ck_assert_int_ge(must_find(p, "relu", "")->calls, 20);
        ck_assert_msg(!p->device.incomplete, "%s", p->device.note);
        ck_assert_int_ge(must_find(p, "relu", "")->kernels, 20);
        ts_profile_free(p);
    }
}
