/**
 * @file signals.c  Writes the report of TS_PROF if a signal ends the process: Ctrl-C, kill, or a
 * crash.
 *
 * A signal handler may call few functions, so it only wakes a thread, which writes the report.
 * After a crash the handler waits for this thread, because the process ends when the handler
 * returns.
 */
// SPDX-License-Identifier: MIT
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "profile/profile.h"

enum { PATIENCE = 20000 /* ms that a crashed thread waits, whose locks may block the report */ };

static const struct {
    int number;
    bool crash;
} signals[] = {{SIGINT, false}, {SIGTERM, false}, {SIGHUP, false}, {SIGABRT, true},
               {SIGSEGV, true}, {SIGBUS, true},   {SIGFPE, true},  {SIGILL, true}};

static struct {
    sem_t asked; /* no pipe: a program may close all descriptors and get the same numbers again */
    _Atomic uint32_t pending; /* bits of signals that the thread has not seen */
    atomic_bool ending, done; /* a signal came; the report after it is written */
    pid_t owner;              /* a forked child has no such thread */
    void (*report)(void);
} wake;

static bool is_crash(int number)
{
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (signals[i].number == number)
            return signals[i].crash;
    return false;
}

/** Waits until `flag` is set, at most PATIENCE. */
static void wait_for(const atomic_bool *flag)
{
    for (int ms = 0; !atomic_load(flag) && ms < PATIENCE; ms++)
        poll(NULL, 0, 1);
}

/** Wakes the thread. The handler is removed already (SA_RESETHAND), so the default action follows:
 *  after a crash when this function returns, otherwise when the thread sends the signal. A fault
 *  (si_code > 0) repeats with its own siginfo, which a core dump then has. */
static void handle(int number, siginfo_t *info, void *unused)
{
    int before = errno;
    bool asked = false;
    (void)unused;
    if (getpid() == wake.owner) {
        atomic_fetch_or(&wake.pending, 1u << number);
        atomic_store(&wake.ending, true);
        asked = sem_post(&wake.asked) == 0;
    }
    if (asked && is_crash(number))
        wait_for(&wake.done);
    if (!asked || (is_crash(number) && info->si_code <= 0))
        raise(number);
    errno = before;
}

static void *wait_for_signals(void *unused)
{
    while (sem_wait(&wake.asked) == 0 || errno == EINTR) {
        uint32_t asked = atomic_exchange(&wake.pending, 0);
        if (!asked)
            continue;
        wake.report();
        atomic_store(&wake.done, true);
        for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
            if (asked >> signals[i].number & 1 && !signals[i].crash) {
                signal(signals[i].number, SIG_DFL); /* a handler that calls ours would repeat it */
                kill(wake.owner, signals[i].number);
            }
    }
    return unused;
}

void ts_profile_await_signal(void)
{
    static const atomic_bool never;
    if (getpid() == wake.owner && atomic_load(&wake.ending))
        wait_for(&never); /* the thread ends the process */
}

static bool start_thread(void)
{
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool good = pthread_create(&thread, NULL, wait_for_signals, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (good)
        pthread_detach(thread);
    return good;
}

void ts_profile_watch_signals(void (*report)(void))
{
    static char space[1 << 16];
    stack_t stack = {.ss_flags = 0};
    wake.report = report;
    wake.owner = getpid();
    if (sem_init(&wake.asked, 0, 0) != 0 || !start_thread())
        return;
    if (sigaltstack(NULL, &stack) == 0 && stack.ss_flags & SS_DISABLE)
        /* for an overflow of the stack of this, the main thread */
        sigaltstack(&(stack_t){.ss_sp = space, .ss_size = sizeof space}, NULL);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct sigaction now, ours = {.sa_sigaction = handle,
                                      .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESETHAND |
                                                  SA_RESTART};
        sigemptyset(&ours.sa_mask);
        if (sigaction(signals[i].number, NULL, &now) == 0 && !(now.sa_flags & SA_SIGINFO) &&
            now.sa_handler == SIG_DFL)
            sigaction(signals[i].number, &ours, NULL);
    }
}

void ts_profile_ignore_signals(void)
{
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct sigaction now;
        if (sigaction(signals[i].number, NULL, &now) == 0 && now.sa_flags & SA_SIGINFO &&
            now.sa_sigaction == handle)
            signal(signals[i].number, SIG_DFL);
    }
}
