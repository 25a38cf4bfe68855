/** @file children.h  Children that do one thing, and what becomes of them. */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_TESTS_PROCESS_CHILDREN_H
#define TESSERA_TESTS_PROCESS_CHILDREN_H

#include "tests/harness.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__)
#define TS_NO_THREADS_AFTER_FORK TS_SKIP("TSan allows no new threads after a fork")
#elif defined(__SANITIZE_ADDRESS__)
#define TS_NO_THREADS_AFTER_FORK \
    TS_SKIP("AddressSanitizer's own locks are not reset in the child of a process with threads")
#else
#define TS_NO_THREADS_AFTER_FORK
#endif

/** Exit status of a child that runs body(arg); 0 when it returns, 128 and the signal's number when
 * a signal ended it, SIGALRM after 20 seconds. */
static inline int ts_child(void (*body)(int arg), int arg)
{
    pid_t child = fork();
    int status;
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        signal(SIGALRM, SIG_DFL);
        alarm(20);
        body(arg);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

#endif
