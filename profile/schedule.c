/**
 * @file schedule.c  Recordings that repeat.
 *
 * While a cycle waits, the timers only look for the ends of steps (ts_timers_watch_steps()), which
 * count_down() counts. A cycle's recording drops its warm-up and stops itself after its
 * last step (ts_recording.first, last). The thread that ends a step does all of this; any thread
 * may stop the schedule, so each change of the phase is atomic.
 */
// SPDX-License-Identifier: MIT
#include "profile/schedule.h"

#include <stdatomic.h>

#include "core/error.h"
#include "dispatch/timers.h"
#include "include/tessera/program.h"

static struct {
    _Atomic enum { OFF, WAITS, STARTS, RECORDS, DELIVERS } phase;
    ts_prof_opts o;
    int64_t cycle;  /* number of the current cycle, from 1 */
    int64_t left;   /* WAITS: steps until its recording starts */
    int64_t before; /* steps that ended before its recording */
} schedule;

static bool change_phase(unsigned from, unsigned to)
{
    return atomic_compare_exchange_strong(&schedule.phase, &from, to);
}

/** Starts the recording of the cycle; the phase is STARTS. */
static ts_status begin_recording(void)
{
    const ts_prof_opts *o = &schedule.o;
    ts_status status = ts_prof_record(o, o->warmup + 1, o->warmup + o->active, schedule.before);
    if (status != TS_OK) {
        atomic_store(&schedule.phase, OFF);
        ts_timers_schedule(false);
    } else if (!change_phase(STARTS, RECORDS)) {
        ts_timers_record(false); /* stopped meanwhile */
    }
    return status;
}

static void count_down(void);

/** Starts the cycle after `steps` steps; the phase is STARTS. */
static ts_status begin_cycle(int64_t steps)
{
    schedule.before += steps;
    schedule.left = steps;
    if (!steps)
        return begin_recording();
    ts_timers_watch_steps(count_down);
    if (!change_phase(STARTS, WAITS))
        ts_timers_watch_steps(NULL);
    return TS_OK;
}

/** Logs the error of a begin_cycle() or begin_recording() that no caller waits for. */
static void log_failure(ts_status status)
{
    if (status != TS_OK)
        ts_log_write("warning", "prof_start: the schedule ends before cycle %lld: %s",
                     (long long)schedule.cycle, ts_error_message());
    if (status != TS_OK)
        ts_error_clear();
}

static void count_down(void)
{
    if (atomic_load(&schedule.phase) != WAITS || --schedule.left > 0 ||
        !change_phase(WAITS, STARTS))
        return;
    ts_timers_watch_steps(NULL);
    log_failure(begin_recording());
}

ts_status ts_schedule_start(const ts_prof_opts *o)
{
    schedule.o = *o;
    schedule.cycle = 1;
    schedule.before = 0;
    ts_timers_schedule(true);
    atomic_store(&schedule.phase, STARTS);
    return begin_cycle(o->skip_first + o->wait);
}

int64_t ts_schedule_recorded(void)
{
    int64_t count, first, lost;
    int thread;
    bool traced;
    ts_timers_steps(&count, &first, &lost, &thread, &traced);
    return count > 0 && first == schedule.before + schedule.o.warmup + 1 ? schedule.cycle : 0;
}

static void pass_to_caller(void)
{
    ts_profile *p = ts_profile_take();
    if (p)
        schedule.o.ready(p, schedule.cycle, schedule.o.user);
    else
        ts_log_write("warning", "prof_start: cycle %lld has no profile: %s",
                     (long long)schedule.cycle, ts_error_message());
    ts_error_clear();
}

void ts_schedule_recording_ended(void)
{
    const ts_prof_opts *o = &schedule.o;
    if (!change_phase(RECORDS, DELIVERS))
        return;
    pass_to_caller();
    schedule.before += o->warmup + o->active;
    bool last = schedule.cycle++ == o->repeat;
    if (!change_phase(DELIVERS, last ? OFF : STARTS))
        return;
    if (last)
        ts_timers_schedule(false);
    else
        log_failure(begin_cycle(o->wait));
}

void ts_schedule_stop(void)
{
    unsigned phase = atomic_exchange(&schedule.phase, OFF);
    if (phase == OFF)
        return;
    if (phase == WAITS)
        ts_timers_watch_steps(NULL);
    if (phase == RECORDS) {
        ts_timers_record(false); /* the phase is OFF, so no cycle follows */
        if (ts_schedule_recorded())
            pass_to_caller();
    }
    ts_timers_schedule(false);
}
