/**
 * @file signals.c  Writes the report of TS_PROF if a signal ends the process: Ctrl-C, kill, or a
 * crash.
 *
 * A signal handler may call few functions, so it only wakes a thread, which writes the report. A
 * crashed thread waits in the handler, because the process ends when the handler returns. A thread
 * that another process interrupts continues, also if the signal is one of a crash: it may hold a
 * lock that the report needs.
 */
// SPDX-License-Identifier: MIT
#include "profile/signals.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

enum { PATIENCE = 60000 /* ms that a crashed thread waits for the report */ };

static const struct {
    int number;
    bool crash;
} signals[] = {{SIGINT, false}, {SIGTERM, false}, {SIGHUP, false}, {SIGABRT, true},
               {SIGSEGV, true}, {SIGBUS, true},   {SIGFPE, true},  {SIGILL, true}};
enum { SIGNALS = sizeof signals / sizeof *signals };

static struct {
    sem_t asked; /* no pipe: a program may close all descriptors and get the same numbers again */
    _Atomic uint32_t pending; /* bits of signals that the thread sends again after the report */
    atomic_bool crashed;      /* a thread waits in the handler */
    atomic_bool ending, done; /* a signal came; the report after it is written */
    pid_t owner;              /* a forked child has no such thread */
    void (*report)(bool crashed);
} wake;

/** The thread of ts_profile_run_within(). */
static struct {
    void (*fetch)(void);
    pthread_t thread;
    atomic_bool runs, good, over; /* over: it ended, with good, or crashed */
} fetching;

static bool is_crash(int number)
{
    for (size_t i = 0; i < SIGNALS; i++)
        if (signals[i].number == number)
            return signals[i].crash;
    return false;
}

/** Waits until `flag` is set, at most `ms`. Returns its last value. */
static bool wait_for(const atomic_bool *flag, int ms)
{
    for (int i = 0; !atomic_load(flag) && i < ms; i++)
        poll(NULL, 0, 1);
    return atomic_load(flag);
}

/** Restores the signal's default action, which ends the process: at once if the signal was sent,
 *  otherwise when the faulting instruction runs again, so that a core dump has its siginfo. */
static void end_process(int number, const siginfo_t *info)
{
    signal(number, SIG_DFL);
    if (info->si_code <= 0)
        raise(number);
}

static void handle(int number, siginfo_t *info, void *unused)
{
    int before = errno;
    uint32_t bit = 1u << number;
    (void)unused;
    while (atomic_load(&fetching.runs) && pthread_equal(pthread_self(), fetching.thread)) {
        atomic_store(&fetching.over, true); /* the report continues without this thread */
        poll(NULL, 0, -1);
    }
    bool sent = (info->si_code == SI_USER || info->si_code == SI_QUEUE) &&
                info->si_pid != wake.owner;
    if (getpid() != wake.owner) {
        end_process(number, info);
    } else if (is_crash(number) && !sent) {
        atomic_store(&wake.crashed, true);
        atomic_store(&wake.ending, true);
        if (sem_post(&wake.asked) == 0)
            wait_for(&wake.done, PATIENCE);
        end_process(number, info);
    } else if (atomic_fetch_or(&wake.pending, bit) & bit) {
        end_process(number, info); /* a second signal: the user does not want to wait */
    } else {
        atomic_store(&wake.ending, true);
        if (sem_post(&wake.asked) != 0)
            end_process(number, info);
    }
    errno = before;
}

static void *wait_for_signals(void *unused)
{
    free(malloc(1)); /* this thread gets a heap before a crashed thread can hold the heap's lock */
    while (sem_wait(&wake.asked) != 0)
        if (errno != EINTR)
            return unused;
    wake.report(atomic_load(&wake.crashed));
    uint32_t pending = atomic_exchange(&wake.pending, 0);
    sigset_t none;
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, NULL); /* the other threads may block the signals */
    for (size_t i = 0; i < SIGNALS; i++)
        if (pending >> signals[i].number & 1) {
            signal(signals[i].number, SIG_DFL); /* a handler that calls ours would repeat it */
            kill(wake.owner, signals[i].number);
        }
    atomic_store(&wake.done, true);
    return unused;
}

void ts_profile_await_signal(void)
{
    static const atomic_bool never;
    if (getpid() == wake.owner && atomic_load(&wake.ending))
        wait_for(&never, PATIENCE); /* the thread ends the process */
}

/** Starts a thread that no signal interrupts. */
static bool start_thread(pthread_t *thread, void *(*run)(void *))
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool good = pthread_create(thread, NULL, run, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (good)
        pthread_detach(*thread);
    return good;
}

static void *run_fetch(void *unused)
{
    sigset_t crashes;
    sigemptyset(&crashes);
    for (size_t i = 0; i < SIGNALS; i++)
        if (signals[i].crash)
            sigaddset(&crashes, signals[i].number);
    fetching.thread = pthread_self();
    atomic_store(&fetching.runs, true);
    pthread_sigmask(SIG_UNBLOCK, &crashes, NULL); /* a blocked crash would end the process */
    fetching.fetch();
    atomic_store(&fetching.runs, false);
    atomic_store(&fetching.good, true);
    atomic_store(&fetching.over, true);
    return unused;
}

bool ts_profile_run_within(int ms, void (*fetch)(void))
{
    pthread_t thread;
    fetching.fetch = fetch;
    return start_thread(&thread, run_fetch) && wait_for(&fetching.over, ms) &&
           atomic_load(&fetching.good);
}

void ts_profile_watch_signals(void (*report)(bool crashed))
{
    static char space[1 << 16];
    stack_t stack = {.ss_flags = 0};
    pthread_t thread;
    wake.report = report;
    wake.owner = getpid();
    if (sem_init(&wake.asked, 0, 0) != 0 || !start_thread(&thread, wait_for_signals))
        return;
    if (sigaltstack(NULL, &stack) == 0 && stack.ss_flags & SS_DISABLE)
        /* for an overflow of the stack of this, the main thread */
        sigaltstack(&(stack_t){.ss_sp = space, .ss_size = sizeof space}, NULL);
    for (size_t i = 0; i < SIGNALS; i++) {
        struct sigaction now, ours = {.sa_sigaction = handle,
                                      .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
        sigemptyset(&ours.sa_mask);
        if (sigaction(signals[i].number, NULL, &now) == 0 && !(now.sa_flags & SA_SIGINFO) &&
            now.sa_handler == SIG_DFL)
            sigaction(signals[i].number, &ours, NULL);
    }
}

void ts_profile_ignore_signals(void)
{
    for (size_t i = 0; i < SIGNALS; i++) {
        struct sigaction now;
        if (sigaction(signals[i].number, NULL, &now) == 0 && now.sa_flags & SA_SIGINFO &&
            now.sa_sigaction == handle)
            signal(signals[i].number, SIG_DFL);
    }
}
