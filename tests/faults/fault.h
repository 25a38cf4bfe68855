/**
 * @file fault.h
 * Sweeps of allocation failures: a piece of code runs again and again while its first, second, ...
 * last allocation fails, once alone and once with all that follow.
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
 * Every allocation counts, those inside libc, jansson and xxhash too: the programs bring a malloc
 * of their own (fault.c), and each block of the library comes from it (TS_ALLOC=system).
 * Under a sanitizer malloc is the sanitizer's; there the library's own hook fails what
 * goes through core/alloc.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_TESTS_FAULT_H
#define TESSERA_TESTS_FAULT_H

#include <stdio.h>

#include "include/tessera/tessera.h"
#include "tests/harness.h"

typedef struct fault_try fault_try;
/** Runs from beginning to end, with its own scope; leaves no block behind. */
typedef void (*fault_body)(fault_try *f, void *ctx);

enum {
    /** A call that succeeds leaves blocks for the life of the library (tables, names). */
    FAULT_KEEPS = 1,
    /** Hundreds of equal allocations: the distance between points grows by an eighth. */
    FAULT_SPARSE = 2,
    /** The body changes the process for good (a layer takes its place, a backend its name):
     *  each attempt runs in a process of its own, which has seen none before. */
    FAULT_FRESH = 4
};

/**
 * Sweeps a body. Each injection point counts as one fault point, which fails when the call gave
 * another code than out of memory, a watched tensor changed, blocks were lost, or the repeated
 * call gave other bits. A body that allocates nothing counts no point.
 * @return injection points
 */
long fault_sweep(const char *name, fault_body body, void *ctx, unsigned flags);
/** True in the whole sweep (TS_FAULTS=all); otherwise the sweeps skip the most expensive bodies. */
bool fault_whole(void);
/** Injection points so far, over all cases of the program. */
long fault_points(void);

/** From here to fault_end() allocations of this thread are counted and may fail. */
void fault_begin(fault_try *f);
void fault_end(fault_try *f);
/** Number of allocations between begin and end so far. */
long fault_allocations(void);
/** After a failure: judges code, message and watched tensors. False when no fault had happened. */
bool fault_judge(fault_try *f, const char *text, ts_status status);
/** After the repeated call. */
void fault_repeated(fault_try *f, const char *text, ts_status status);
/** A complaint about the running attempt. */
void fault_wrong(fault_try *f, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** A tensor that must be as it is now whenever a call fails; at most 16, until fault_unwatch(). */
void fault_watch(fault_try *f, const ts_tensor *t);
/** As above for a destination: a kernel that fails has perhaps written,
 * so the version may have gone up. */
void fault_watch_written(fault_try *f, const ts_tensor *t);
void fault_unwatch(fault_try *f);
void fault_unwatch_one(fault_try *f, const ts_tensor *t);
/** Results go into the attempt's digest. */
void fault_see(fault_try *f, ts_tensor *t);
void fault_see_bytes(fault_try *f, const void *data, size_t bytes);
void fault_see_number(fault_try *f, double x);

/* the texts of all swept expressions, for test_coverage.py */
#define FAULT_TEXT(...) \
    static const char fault_text[] __attribute__((section("ts_faults"), used)) = #__VA_ARGS__

/** An expression that gives a status or a pointer; fails, is judged,
 * and is then repeated without a fault. */
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

/** An expression that cannot fail and so must not allocate. */
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
