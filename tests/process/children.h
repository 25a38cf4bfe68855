/** @file children.h  Runs a function in a forked child. */
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

/** Runs body(arg) in a forked child. Returns its exit status, 0 if body returned, or 128 plus the
 * number of the signal that ended the child. After 20 seconds SIGALRM ends the child. */
static inline int run_in_child(void (*body)(int arg), int arg)
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
