/** @file run.c  Starting and stopping a profile, its scopes and steps. */
// SPDX-License-Identifier: MIT
#include "core/error.h"
#include "core/hooks.h"
#include "dispatch/device_times.h"
#include "dispatch/timers.h"
#include "include/tessera/check.h"
#include "ops/kernel.h"
#include "profile/device.h"
#include "profile/schedule.h"

static void recording_ended(void)
{
    ts_device_measure_early();
    ts_schedule_recording_ended();
}

ts_status ts_prof_record(const ts_prof_opts *o, int64_t first, int64_t last, int64_t before)
{
    ts_timers_record_as(&(ts_recording){.first = first, .last = last, .before = before,
                                        .trace = o->trace, .flight = o->flight,
                                        .detail = o->detail});
    ts_memory_begin();
    ts_device_times_begin();
    ts_device_times_name_ranges(o->ranges);
    ts_memory_log_begin(o->memory);
    ts_status status = ts_timers_record(true);
    if (status != TS_OK) {
        ts_memory_log_end();
        ts_device_times_end();
    }
    return status;
}

static ts_status check_steps(const ts_prof_opts *o)
{
    if (o->first_step < 0 || o->last_step < 0 || (o->last_step && o->last_step < o->first_step))
        return ts_error_set(TS_ERR_VALUE,
                            "prof_start: expected 0 <= first_step <= last_step, or last_step 0, "
                            "got %lld and %lld",
                            (long long)o->first_step, (long long)o->last_step);
    enum { MOST = 1 << 30 }; /* sums of these have no overflow */
    const struct {
        const char *name;
        int64_t count;
    } counts[] = {{"skip_first", o->skip_first}, {"wait", o->wait}, {"warmup", o->warmup},
                  {"active", o->active}, {"repeat", o->repeat}};
    bool any = false;
    for (int i = 0; i < TS_COUNTOF(counts); i++) {
        any = any || counts[i].count;
        if (counts[i].count < 0 || counts[i].count > MOST)
            return ts_error_set(TS_ERR_VALUE,
                                "prof_start: argument '%s': expected 0 to %d steps, got %lld",
                                counts[i].name, MOST, (long long)counts[i].count);
    }
    if (any && !o->active)
        return ts_error_set(TS_ERR_VALUE, "prof_start: argument 'active': expected at least 1 step "
                                          "with a schedule (skip_first, wait, warmup, repeat), "
                                          "got 0");
    if (any && (o->first_step || o->last_step))
        return ts_error_set(TS_ERR_VALUE, "prof_start: expected a schedule or a range of steps "
                                          "(first_step, last_step), got both");
    if (any && !o->ready)
        return ts_error_set(TS_ERR_NULL, "prof_start: argument 'ready': expected a function that "
                                         "receives the profiles of the schedule, got NULL");
    return TS_OK;
}

ts_status ts_prof_start(const ts_prof_opts *opts)
{
    static const int updates[] = {TS_OP_adamw, TS_OP_sgd};
    ts_prof_opts o;
    TS_TRY(TS_CHECK_OPTS(&o, opts));
    TS_TRY(check_steps(&o));
    if (ts_prof_active())
        return ts_error_set_hint(TS_ERR_STATE, "call ts_prof_stop() first, or run without TS_PROF",
                                 "prof_start: a profile is already being recorded");
    ts_tally_chain(ts_profile_chains);
    TS_TRY(ts_prof_measure_calls(o.trace));
    ts_timers_mark_updates(updates, TS_COUNTOF(updates));
    ts_above.profile_ended = recording_ended;
    return o.active ? ts_schedule_start(&o) : ts_prof_record(&o, o.first_step, o.last_step, 0);
}

ts_status ts_prof_stop(void)
{
    ts_schedule_stop();
    return ts_timers_record(false);
}

bool ts_prof_active(void) { return ts_timers_active(); }
void ts_prof_step(void) { ts_timers_step(); }

ts_status ts_prof_enter(const char *name)
{
    TS_TRY(TS_CHECK_POINTERS(name));
    ts_timers_scope(name);
    return TS_OK;
}

void ts_prof_leave(void) { ts_timers_scope(NULL); }
