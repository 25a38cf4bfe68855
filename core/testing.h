/** @file testing.h  Hooks that the library has for its tests alone. */
// SPDX-License-Identifier: MIT
#ifndef TS_CORE_TESTING_H
#define TS_CORE_TESTING_H

#include <stdbool.h>
#include <stddef.h>

/** NULL, or called with the bytes before each system allocation; returning true makes it fail. */
extern bool (*ts_alloc_fault)(size_t bytes);

/** The share of the usual time that measurements of a machine take; 1. */
extern double ts_measure_time;
struct ts_prof_machine;
/** Sets ceilings in the place of measured ones; NULL: the next profile measures again. */
void ts_prof_assume(const struct ts_prof_machine *machine);

/** The most blocks of events of all threads together. */
extern int ts_event_chunks_most;

#endif
