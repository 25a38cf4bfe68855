/**
 * @file instructions.h  Counts the instructions of a call one by one; the count does not depend on
 * the machine's load.
 *
 *     long before = ts_instructions(call, ctx);
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_TESTS_INSTRUCTIONS_H
#define TESSERA_TESTS_INSTRUCTIONS_H

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/harness.h"

/**
 * Number of instructions that body(ctx) executes in a forked child, plus a small constant number
 * for the counting itself. -1 if a process cannot trace its child here, or if the child crashes or
 * exits with another status than 0.
 * Run one-time initialisation before the call, so that it is not counted.
 */
static inline long ts_instructions(void (*body)(void *ctx), void *ctx)
{
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
            _exit(1);
        raise(SIGSTOP);
        body(ctx);
        _exit(0);
    }
    long count = -1;
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    while (WIFSTOPPED(status)) {
        count++;
        if (ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) != 0)
            kill(child, SIGKILL);
        ck_assert_int_eq(waitpid(child, &status, 0), child);
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? count : -1;
}

#endif
