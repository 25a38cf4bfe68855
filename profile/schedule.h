/** @file schedule.h  Repeated recordings: each cycle of a schedule waits, warms up, and records a
 * profile. ts_prof_opts in include/tessera/profile.h describes schedules. */
// SPDX-License-Identifier: MIT
#ifndef TS_PROFILE_SCHEDULE_H
#define TS_PROFILE_SCHEDULE_H

#include "include/tessera/profile.h"

/** Starts one recording: of devices, memory and calls, as the options and the range of steps say.
 *  first, last, before: as in ts_recording (dispatch/timers.h). */
ts_status ts_prof_record(const ts_prof_opts *o, int64_t first, int64_t last, int64_t before);

/** Starts a schedule (o->active is above 0). Errors: those of ts_prof_record(). */
ts_status ts_schedule_start(const ts_prof_opts *o);
/** Ends the schedule. If a cycle records and at least one step of its active phase has ended, the
 *  recording so far becomes the cycle's profile. Does nothing without a schedule. */
void ts_schedule_stop(void);
/** Number of the cycle whose active phase has recorded at least one step; 0: none. Reads counters
 *  only, so that a report after a signal can call it. */
int64_t ts_schedule_recorded(void);
/** Called when a recording has ended: passes the cycle's profile to the program's callback and
 *  begins the next cycle. */
void ts_schedule_recording_ended(void);

#endif
