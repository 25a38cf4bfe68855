/**
 * @file harness.c
 * The shared main: collects the registered cases, runs them with check, writes the tally.
 */
// SPDX-License-Identifier: MIT
#include "tests/harness.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEFAULT_TIMEOUT_S 120

/* Counts in memory that is shared with the forked children. */
typedef struct counters {
    atomic_long passed, failed, skipped; /* samples */
    atomic_long checks[TS_COUNT_KINDS];  /* passed and failed checks of each kind */
    atomic_long failed_checks;           /* failed checks of kinds other than samples */
    atomic_long sampled_passed;          /* passed and (below) failed runs of cases with samples; */
    atomic_long sampled_failed;          /* only the samples of these count */
    atomic_long skipped_runs;
} counters;

static counters *shared;
static ts_test_case *first_case;
static ts_test_case **next_case = &first_case;
static bool run_skipped;
static bool threads_only;
static bool unforked; /* cases run in this process, where check enforces no timeout */

void ts_test_register(ts_test_case *test)
{
    *next_case = test;
    next_case = &test->next;
}

/* Names of the kinds in the tally's line, for tools/run-tests. */
static const char *const kind_names[TS_COUNT_KINDS] = {
    [TS_COUNT_SAMPLES] = "samples",
    [TS_COUNT_GRADIENTS] = "gradients",
    [TS_COUNT_WRONG_CALLS] = "wrong_calls",
    [TS_COUNT_FAULT_POINTS] = "fault_points",
    [TS_COUNT_FUZZ_INPUTS] = "fuzz_inputs",
};

void ts_tally_as(ts_count_kind kind, int passed, int failed, int skipped)
{
    atomic_fetch_add(&shared->checks[kind], passed + failed);
    if (kind == TS_COUNT_SAMPLES) {
        atomic_fetch_add(&shared->passed, passed);
        atomic_fetch_add(&shared->failed, failed);
        atomic_fetch_add(&shared->skipped, skipped);
    } else {
        atomic_fetch_add(&shared->failed_checks, failed);
    }
}

void ts_tally(int passed, int failed, int skipped)
{
    ts_tally_as(TS_COUNT_SAMPLES, passed, failed, skipped);
}

void ts_test_note_skip(const char *format, ...)
{
    va_list arguments;
    printf("%s: skipped: ", tcase_name());
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
    fflush(stdout);
    run_skipped = true;
}

static long samples_counted(void)
{
    return shared->passed + shared->failed + shared->skipped;
}

/* Cases run one after another, so the counters' increase during a body is the number of its
   samples. */
void ts_test_run_body(const ts_test_case *test, int _i)
{
    long samples = samples_counted();
    long failed = shared->failed, failed_checks = shared->failed_checks;
    run_skipped = false;
    const char *slow = getenv("CK_TIMEOUT_MULTIPLIER");
    double seconds = test->timeout > 0 ? test->timeout : DEFAULT_TIMEOUT_S;
    if (unforked)
        alarm((unsigned)(seconds * (slow ? atof(slow) : 1)));
    test->body(_i);
    alarm(0);
    samples = samples_counted() - samples;
    failed = shared->failed - failed;
    failed_checks = shared->failed_checks - failed_checks;
    if (failed > 0)
        shared->sampled_failed++;
    if (failed + failed_checks > 0)
        fflush(stdout); /* ck_abort_msg() ends the child without a flush */
    if (failed > 0)
        ck_abort_msg("%ld of %ld samples failed", failed, samples);
    if (failed_checks > 0)
        ck_abort_msg("%ld checks failed", failed_checks);
    if (run_skipped)
        shared->skipped_runs++;
    else if (samples > 0)
        shared->sampled_passed++;
}

static bool selected(const ts_test_case *test, int words, char **word)
{
    const char *wanted = getenv("CK_RUN_CASE");
    if (threads_only && !test->threads)
        return false;
    if (wanted && *wanted && strcmp(wanted, test->name) != 0)
        return false;
    for (int i = 0; i < words; i++) {
        if (strstr(test->name, word[i]))
            return true;
    }
    return words == 0;
}

/* One TCase per case gives each its own timeout, fixtures and name for CK_RUN_CASE. */
static void add_case(Suite *suite, const ts_test_case *test)
{
    TCase *tcase = tcase_create(test->name);
    if (test->timeout > 0 || !getenv("CK_DEFAULT_TIMEOUT"))
        tcase_set_timeout(tcase, test->timeout > 0 ? test->timeout : DEFAULT_TIMEOUT_S);
    if (test->setup || test->teardown)
        tcase_add_checked_fixture(tcase, test->setup, test->teardown);
    _tcase_add_test(tcase, test->ttest, test->signal, test->exit, 0, test->loop ? test->loop : 1);
    suite_add_tcase(suite, tcase);
}

/* O_APPEND alone keeps short lines whole; the lock also covers a tally kept on a network disk. */
static bool write_tally(const char *path, const char *name, long passed, long failed, long skipped)
{
    char line[512];
    int length = snprintf(line, sizeof line, "%ld %ld %ld %s", passed, failed, skipped, name);
    for (int kind = 0; kind < TS_COUNT_KINDS && length < (int)sizeof line; kind++)
        if (shared->checks[kind])
            length += snprintf(line + length, sizeof line - (size_t)length, " %s=%ld",
                               kind_names[kind], shared->checks[kind]);
    if (length < (int)sizeof line)
        length += snprintf(line + length, sizeof line - (size_t)length, "\n");
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    bool ok = fd >= 0 && length < (int)sizeof line && flock(fd, LOCK_EX) == 0 &&
              write(fd, line, (size_t)length) == length;
    if (!ok)
        fprintf(stderr, "%s: cannot write the tally to %s: %s\n", name, path, strerror(errno));
    if (fd >= 0)
        close(fd);
    return ok;
}

/**
 * Without fork, cases would see state that earlier cases left in the process (layers, kernels,
 * timers), so each case runs alone in a new process. Adds its counts.
 */
static void run_apart(const ts_test_case *test, const char *program, long counts[3])
{
    char path[32], line[512] = "";
    int tally = memfd_create("tally", 0), status = -1;
    pid_t child;
    snprintf(path, sizeof path, "/proc/self/fd/%d", tally);
    setenv("CK_RUN_CASE", test->name, 1);
    setenv("TS_TEST_TALLY", path, 1);
    char *const arguments[] = {(char *)program, NULL};
    fflush(stdout);
    if (tally >= 0 && posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ) == 0)
        waitpid(child, &status, 0);
    long got[3];
    if (tally < 0 || pread(tally, line, sizeof line - 1, 0) < 1 ||
        sscanf(line, "%ld %ld %ld", &got[0], &got[1], &got[2]) != 3) {
        printf("%s: ended without a tally, status %d\n", test->name, status);
        got[0] = got[2] = 0;
        got[1] = 1;
    } else if (got[1] == 0 && status != 0) { /* such as a sanitizer's report at exit */
        printf("%s: status %d\n", test->name, status);
        got[1] = 1;
    }
    for (int i = 0; i < 3; i++)
        counts[i] += got[i];
    for (int kind = 0; kind < TS_COUNT_KINDS; kind++) {
        char word[32];
        snprintf(word, sizeof word, " %s=", kind_names[kind]);
        const char *found = strstr(line, word);
        if (found)
            atomic_fetch_add(&shared->checks[kind], atol(found + strlen(word)));
    }
    if (tally >= 0)
        close(tally);
}

/** True if the first word is this option; removes it from the words. */
static bool take_option(const char *option, int *words, char ***word)
{
    bool given = *words > 0 && strcmp(**word, option) == 0;
    *words -= given;
    *word += given;
    return given;
}

int main(int argc, char **argv)
{
    const char *slash = strrchr(argv[0], '/');
    const char *name = slash ? slash + 1 : argv[0];
    int words = argc - 1;
    char **word = argv + 1;
    bool list = take_option("--list", &words, &word);
    threads_only = take_option("--threads", &words, &word);

    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        perror(name);
        return 2;
    }

    Suite *suite = suite_create(name);
    SRunner *runner = srunner_create(suite);
    bool forks = srunner_fork_status(runner) == CK_FORK;
    unforked = !forks;
    int chosen = 0, skipped_unforked = 0, several = 0;
    long apart[3] = {0};
    char tally[4096];
    snprintf(tally, sizeof tally, "%s", getenv("TS_TEST_TALLY") ? getenv("TS_TEST_TALLY") : "");
    for (ts_test_case *test = first_case; test; test = test->next)
        several += selected(test, words, word) && !test->signal && !test->exit;
    for (ts_test_case *test = first_case; test; test = test->next) {
        if (!selected(test, words, word))
            continue;
        chosen++;
        if (list) {
            printf("%s\n", test->name);
        } else if (!forks && (test->signal || test->exit)) {
            printf("%s: skipped: needs a process of its own\n", test->name);
            skipped_unforked++;
        } else if (!forks && several > 1) {
            run_apart(test, argv[0], apart);
            unsetenv("CK_RUN_CASE"); /* run_apart() set it for the child */
        } else {
            add_case(suite, test);
        }
    }
    if (chosen == 0)
        fprintf(stderr, "%s: no case has such a name; --list prints them\n", name);
    if (list || chosen == 0) {
        srunner_free(runner);
        return chosen ? 0 : 2;
    }

    fflush(stdout);
    srunner_run_all(runner, CK_ENV);
    long failed = srunner_ntests_failed(runner);
    long passed = srunner_ntests_run(runner) - failed;
    srunner_free(runner);

    passed += apart[0];
    failed += apart[1];
    passed += shared->passed - shared->sampled_passed - shared->skipped_runs;
    failed += shared->failed - shared->sampled_failed;
    long skipped = shared->skipped + shared->skipped_runs + skipped_unforked + apart[2];
    printf("%s: %ld passed, %ld failed, %ld skipped\n", name, passed, failed, skipped);
    if (*tally && !write_tally(tally, name, passed, failed, skipped))
        return 2;
    /* a failed assertion jumped out of open scopes, whose exit handlers must not run */
    if (failed && !forks) {
        fflush(stdout);
        _exit(1);
    }
    return failed ? 1 : 0;
}
