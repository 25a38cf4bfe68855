/** @file calls.h  Macros for fault sweeps (fault.h) of single public functions. */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_TESTS_CALLS_H
#define TESSERA_TESTS_CALLS_H

#include "tests/faults/fault.h"

/** Defines a test case that sweeps the body that follows the macro. `flags` are those of
 * fault_sweep(); the arguments after `flags` are options of TS_TEST(). */
#define CALLS_WITH(name, flags, ...)                                    \
    static void name##_calls(fault_try *f, void *ctx);                  \
    TS_TEST(name##_runs_out_of_memory, .timeout = 300, __VA_ARGS__)     \
    {                                                                   \
        ts_set_num_threads(1);                                          \
        long points = fault_sweep(#name, name##_calls, NULL, flags);    \
        printf("%s: %ld injection points\n", #name, points);            \
    }                                                                   \
    static void name##_calls(fault_try *f, void *ctx __attribute__((unused)))
#define CALLS(name) CALLS_WITH(name, 0, .loop = 0)

/** Calls fault_watch() for each tensor: a failure must leave them unchanged. */
#define WATCH(...)                                                                           \
    do {                                                                                     \
        const ts_tensor *const watch[] = {__VA_ARGS__};                                      \
        for (size_t i = 0; i < sizeof watch / sizeof *watch; i++)                            \
            fault_watch(f, watch[i]);                                                        \
    } while (0)

/** Sweeps an expression that returns a new tensor. */
#define NEW(...)                     \
    do {                             \
        ts_tensor *new_ = NULL;        \
        FAULTY(f, new_ = __VA_ARGS__); \
        fault_see(f, new_);            \
    } while (0)

/** Sweeps an expression that writes to x, a copy of `source`. */
#define INPLACE(source, ...)              \
    do {                                  \
        ts_tensor *x = ts_clone(source);  \
        fault_watch_written(f, x);        \
        FAULTY(f, __VA_ARGS__);           \
        fault_unwatch_one(f, x);          \
        fault_see(f, x);                  \
    } while (0)

#endif
