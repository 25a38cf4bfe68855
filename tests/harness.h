/**
 * @file harness.h
 * Test cases that register themselves, and one main for every test executable.
 *
 * A test file includes this header and writes cases; it needs no list and no main:
 *
 *     TS_TEST(wrong_dtype_is_named)
 *     {
 *         ck_assert_int_eq(ts_error_code(), TS_ERR_DTYPE);
 *     }
 *     TS_TEST(every_dtype_round_trips, .loop = TS_DTYPE_COUNT, .timeout = 10)
 *     {
 *         ts_dtype dtype = (ts_dtype)_i;
 *         ...
 *     }
 *
 * The executable runs all its cases, each in a forked child.
 *
 *     --list            prints the names of the selected cases, and runs none
 *     --threads         selects the cases marked `.threads = true`
 *     WORD ...          selects the cases whose names contain one of the words
 *     CK_RUN_CASE=NAME  selects one case
 *     CK_FORK=no        runs without fork: a single case in this process (for debuggers), each of
 *                       several cases in a new process (for TSan); skips cases that must end by a
 *                       signal or exit
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_TESTS_HARNESS_H
#define TESSERA_TESTS_HARNESS_H

#include <check.h>
#include <stdatomic.h>
#include <stdbool.h>

/*
 * The check library writes the source line of each assertion that holds to a file, to report it
 * after a crash. In loops over elements this takes most of the time, so each line is written
 * at most once.
 */
static atomic_bool ts_test_told[1024] __attribute__((unused));
#define _mark_point(file, line)                                                                    \
    (atomic_load_explicit(&ts_test_told[(line) & 1023], memory_order_relaxed)                      \
         ? (void)0                                                                                 \
         : ts_test_tell(file, line))
static inline void ts_test_tell(const char *file, int line)
{
    atomic_store_explicit(&ts_test_told[line & 1023], true, memory_order_relaxed);
    (_mark_point)(file, line);
}

typedef struct ts_test_case {
    const char *name;
    const char *file;
    int line;
    void (*body)(int _i);
    const TTest *ttest;
    struct ts_test_case *next;
    /* Options, given as designated initialisers after the name in TS_TEST(). */
    int loop;              /* run the body with _i = 0 … loop-1; 0 means once */
    double timeout;        /* seconds; 0: the environment variable CK_DEFAULT_TIMEOUT, or 120 */
    int signal;            /* signal that must end the body; 0: none */
    int exit;              /* exit status with which the body must exit; 0: it must return */
    bool threads;          /* several threads share data: `make tsan` runs the case. It searches
                              the source for the text ".threads = true" */
    void (*setup)(void);   /* runs in the case's process before the body */
    void (*teardown)(void); /* runs in the case's process after the body */
} ts_test_case;

void ts_test_register(ts_test_case *test);
void ts_test_run_body(const ts_test_case *test, int _i);
void ts_test_note_skip(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** Kinds of checks that a tally counts besides test cases; a run prints one sum per kind. */
typedef enum ts_count_kind {
    TS_COUNT_SAMPLES,      /* calls whose results were compared with expected ones */
    TS_COUNT_GRADIENTS,    /* gradients compared with differences or with another dtype's */
    TS_COUNT_WRONG_CALLS,  /* calls that must fail, whose error was compared */
    TS_COUNT_FAULT_POINTS, /* places at which an allocation or a system call failed on purpose */
    TS_COUNT_FUZZ_INPUTS,  /* inputs for a reader: arbitrary bytes, or a valid file cut short or
                              with flipped bits */
    TS_COUNT_KINDS
} ts_count_kind;

/**
 * Counts checks of one kind. Works from the forked child of a case, its children and its threads.
 * Count a check only if it compared something. If a counted check failed, the case fails; the body
 * needs no assertion.
 *
 * Samples are added to the totals of passed, failed and skipped tests; a case that counts samples
 * is not itself added. Other kinds have separate totals, and their case counts as one test.
 */
void ts_tally_as(ts_count_kind kind, int passed, int failed, int skipped);
/** ts_tally_as() of samples. */
void ts_tally(int passed, int failed, int skipped);

/** Ends the body of a case, or of one iteration of its loop, and counts it as skipped. The
 * arguments are the reason, as for printf(). */
#define TS_SKIP(...)                    \
    do {                                \
        ts_test_note_skip(__VA_ARGS__); \
        return;                         \
    } while (0)

/** Defines and registers a case; the options are designated initialisers of ts_test_case. */
#define TS_TEST(title, ...) TS_TEST_CASE(title, __VA_ARGS__)
/** TS_TEST() for macros that define cases in its place, such as VEC_TEST(). */
#define TS_TEST_CASE(title, ...)                                                              \
    static void title##_body(int _i);                                                         \
    static void title##_run(int _i);                                                          \
    static const TTest title##_ttest = {#title, title##_run, __FILE__, __LINE__};             \
    static ts_test_case title##_case = {.name = #title, .file = __FILE__, .line = __LINE__,   \
                                        .body = title##_body, .ttest = &title##_ttest,        \
                                        __VA_ARGS__};                                         \
    static void title##_run(int _i) { ts_test_run_body(&title##_case, _i); }                  \
    __attribute__((constructor)) static void title##_register(void)                           \
    {                                                                                         \
        ts_test_register(&title##_case);                                                      \
    }                                                                                         \
    static void title##_body(int _i __attribute__((unused)))

#endif
