/**
 * @file fault.h
 * Sweeps of allocation failures. A sweep runs a piece of code repeatedly: the first, second, ...
 * last allocation fails, once alone and once together with all later allocations.
 *
 *     static void linear(fault_try *f, void *ctx)
 *     {
 *         TS_SCOPE;
 *         ts_tensor *y = NULL, *x = ts_ones(TS_SIZES(2, 3), TS_F32);
 *         fault_watch(f, x);                       // must be as before after a failure
 *         FAULTY(f, y = ts_relu(x));               // fails here, and here only
 *         fault_see(f, y);                         // result: the same bits in every run
 *     }
 *     fault_sweep("linear", linear, NULL, 0);
 *
 * All allocations of swept calls count, including those inside libc, jansson and xxhash but not
 * those of OpenBLAS: the test programs replace malloc (fault.c), and every block of the library
 * comes from malloc (TS_ALLOC=system). A sanitizer has its own malloc; in such a build, and without
 * glibc, the hook of core/testing.h fails only the allocations that go through core/alloc.h.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_TESTS_FAULT_H
#define TESSERA_TESTS_FAULT_H

#include <stdio.h>

#include "include/tessera/tessera.h"
#include "tests/harness.h"

typedef struct fault_try fault_try;
/** The code of a sweep. It opens its own scope and must free all blocks that it allocates. */
typedef void (*fault_body)(fault_try *f, void *ctx);

enum {
    /** A successful call keeps blocks until the library ends (tables, names). */
    FAULT_KEEPS = 1,
    /** For bodies with hundreds of similar allocations: tests only some of them; the distance
     *  between injection points grows by an eighth each time. */
    FAULT_SPARSE = 2,
    /** The body changes the process permanently, for example registers a layer or a backend: each
     *  attempt runs in a new process. */
    FAULT_FRESH = 4
};

/**
 * Sweeps a body. Each injection point counts as one fault point. The point fails if the call
 * returned another error than TS_ERR_MEMORY or a message without the word "memory", a watched
 * tensor changed, blocks leaked, or the repeated call failed or computed other bits. A body without
 * allocations has no injection points.
 * @return the number of injection points; 0 also if the body fails without a fault
 */
long fault_sweep(const char *name, fault_body body, void *ctx, unsigned flags);
/** True with TS_FAULTS=all; otherwise sweeps skip the most expensive bodies. */
bool fault_whole(void);
/** Number of injection points of all sweeps that have ended, over all cases of the program. */
long fault_points(void);

/** Until fault_end(), allocations of this thread are counted and may fail. */
void fault_begin(fault_try *f);
void fault_end(fault_try *f);
/** Number of allocations so far between fault_begin() and fault_end() in this attempt. */
long fault_allocations(void);
/** Call it after a failed call: checks the code, the message and the watched tensors. False if no
 *  fault was injected, so the failure has another cause. `text`: the call, for messages. */
bool fault_judge(fault_try *f, const char *text, ts_status status);
/** Call it after the repeated call, which must have succeeded. */
void fault_repeated(fault_try *f, const char *text, ts_status status);
/** Reports a defect in the running attempt. */
void fault_wrong(fault_try *f, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** Watches t, at most 16 tensors at a time: until fault_unwatch(), a failed call must not change
 *  it. */
void fault_watch(fault_try *f, const ts_tensor *t);
/** Like fault_watch() for a destination: its version may grow, because a failed kernel may have
 *  written to it. */
void fault_watch_written(fault_try *f, const ts_tensor *t);
void fault_unwatch(fault_try *f);
void fault_unwatch_one(fault_try *f, const ts_tensor *t);
/** Each adds a result to the attempt's digest, which must be equal in all attempts. */
void fault_see(fault_try *f, ts_tensor *t);
void fault_see_bytes(fault_try *f, const void *data, size_t bytes);
void fault_see_number(fault_try *f, double x);

/* the texts of all swept expressions, for test_coverage.py */
#define FAULT_TEXT(...) \
    static const char fault_text[] __attribute__((section("ts_faults"), used)) = #__VA_ARGS__

/** Evaluates an expression of type ts_status or pointer, with the fault. If it fails, judges the
 * failure and evaluates the expression again without a fault. */
#define FAULTY(f, ...)                                              \
    do {                                                            \
        FAULT_TEXT(__VA_ARGS__);                                   \
        fault_begin(f);                                             \
        ts_status fault_status = TS_STATUS_OF((__VA_ARGS__));       \
        fault_end(f);                                               \
        if (fault_status != TS_OK && fault_judge(f, fault_text, fault_status)) \
            fault_status = TS_STATUS_OF((__VA_ARGS__));             \
        fault_repeated(f, fault_text, fault_status);                \
    } while (0)

/** Evaluates an expression that cannot report a failure, so it must not allocate. */
#define QUIET(f, ...)                                                                      \
    do {                                                                                   \
        FAULT_TEXT(__VA_ARGS__);                                                          \
        long fault_before = fault_allocations();                                           \
        fault_begin(f);                                                                    \
        (void)(__VA_ARGS__);                                                               \
        fault_end(f);                                                                      \
        if (fault_allocations() != fault_before)                                           \
            fault_wrong(f, "%s allocates, and has no way to say that it failed", fault_text); \
    } while (0)

#endif
