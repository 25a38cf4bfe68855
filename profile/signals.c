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
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "profile/profile.h"

enum { PATIENCE = 20000 /* ms that a crashed thread waits, whose locks may block the report */ };

static const struct {
    int number;
    bool crash;
} signals[] = {{SIGINT, false}, {SIGTERM, false}, {SIGHUP, false}, {SIGABRT, true},
               {SIGSEGV, true}, {SIGBUS, true},   {SIGFPE, true},  {SIGILL, true}};

static struct {
    int ask[2], done[2]; /* pipes to the thread and from it */
    pid_t owner;         /* a forked child has no such thread */
    void (*report)(void);
} wake;

static bool is_crash(int number)
{
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (signals[i].number == number)
            return signals[i].crash;
    return false;
}

/** Wakes the thread. The handler is removed already (SA_RESETHAND), so the default action follows:
 *  after a crash when this function returns, otherwise when the thread raises the signal. */
static void handle(int number)
{
    int before = errno;
    unsigned char byte = (unsigned char)number;
    bool asked = getpid() == wake.owner && write(wake.ask[1], &byte, 1) == 1;
    if (asked && is_crash(number))
        poll(&(struct pollfd){.fd = wake.done[0], .events = POLLIN}, 1, PATIENCE);
    if (!asked || is_crash(number))
        raise(number);
    errno = before;
}

static void *wait_for_signals(void *unused)
{
    unsigned char byte;
    while (read(wake.ask[0], &byte, 1) == 1) {
        wake.report();
        if (!is_crash(byte))
            kill(wake.owner, byte);
        else if (write(wake.done[1], &byte, 1) != 1)
            break;
    }
    return unused;
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
    wake.report = report;
    wake.owner = getpid();
    if (pipe2(wake.ask, O_CLOEXEC) != 0 || pipe2(wake.done, O_CLOEXEC) != 0 || !start_thread())
        return;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct sigaction now, ours = {.sa_handler = handle, .sa_flags = SA_RESETHAND | SA_RESTART};
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
        if (sigaction(signals[i].number, NULL, &now) == 0 && now.sa_handler == handle)
            signal(signals[i].number, SIG_DFL);
    }
}
