/** @file testing.h  Hooks for the library's own tests. */
// SPDX-License-Identifier: MIT
#ifndef TS_CORE_TESTING_H
#define TS_CORE_TESTING_H

#include <stdbool.h>
#include <stddef.h>

/** NULL, or called with the bytes before each system allocation; returning true makes it fail. */
extern bool (*ts_alloc_fault)(size_t bytes);

/** Scales the time of measurements of the machine; default 1. */
extern double ts_measure_time;
struct ts_prof_machine;
/** Replaces the measured ceilings; NULL: the next profile measures again. */
void ts_prof_assume(const struct ts_prof_machine *machine);
struct ts_device_part;
/** Replaces the ceilings of devices, from the fields machine and half_flops. */
void ts_prof_assume_device(const struct ts_device_part *part);

/** Limit on the number of blocks of events, over all threads. */
extern int ts_event_chunks_most;

#endif
