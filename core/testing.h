/** @file testing.h  Variables and functions that only the library's own tests use, to inject faults
 * and to replace measurements. */
// SPDX-License-Identifier: MIT
#ifndef TS_CORE_TESTING_H
#define TS_CORE_TESTING_H

#include <stdbool.h>
#include <stddef.h>

/** If not NULL, called before each allocation of host memory that core/alloc.c makes from the
 *  system, with its size. If it returns true, the allocation fails. */
extern bool (*ts_alloc_fault)(size_t bytes);

/** Factor on the duration of the measurements of the machine's ceilings (peak rates and bandwidths,
 *  profile/calibrate.c); default 1. */
extern double ts_measure_time;
struct ts_prof_machine;
/** Replaces the measured ceilings; NULL: the next profile measures again. */
void ts_prof_assume(const struct ts_prof_machine *machine);
struct ts_device_part;
/** Replaces the measured ceilings of devices by the fields `machine` and `measured` of *part; NULL:
 *  the next profile measures again. */
void ts_prof_assume_device(const struct ts_device_part *part);

/** How many ms a report of TS_PROF waits for another thread that writes a report and, after a
 *  signal, for the times of devices. [0]: the usual wait; [1]: the wait after a crash. */
extern int ts_profile_wait_ms[2];

/** Maximum number of event blocks (TS_EVENT_CHUNK events each) over all threads. */
extern int ts_event_chunks_most;

#endif
