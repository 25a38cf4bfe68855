/** @file device_times.c  Recording of device work by a backend while a profile records. */
// SPDX-License-Identifier: MIT
#include "dispatch/device_times.h"
#include "core/device.h"
#include "core/error.h"
#include "core/process.h"
#include "dispatch/timers_state.h"

#include <stdio.h>

/* Written only while a profile starts or stops, or a backend is loaded. */
static ts_device_record record;
static char note[160];
static bool wanted;     /* between ts_device_times_begin() and ts_device_times_end() */
static ts_key recorder; /* key of the backend that made the last recording; TS_KEY_CPU: none */

static uint64_t reset_part(int64_t reset) { return (uint64_t)reset % (1 << TS_TAG_RESET); }

bool ts_tag_is_current(uint64_t tag)
{
    return (tag >> TS_TAG_STEP) % (1 << TS_TAG_RESET) == reset_part(ts_timing.reset);
}

void ts_device_times_tag(const ts_backend *backend, const ts_tally_row *row, int64_t reset)
{
    uint64_t step = (uint64_t)get(&ts_timing.nsteps) % (1 << TS_TAG_STEP);
    uint64_t tag = (row ? row->hash >> TS_TAG_ROW : 0) << TS_TAG_ROW |
                   reset_part(reset) << TS_TAG_STEP | step;
    backend->profile_tag(backend->state, tag);
    /* Libraries of the backend register exit() handlers when they first run. The profile must be
       read before these handlers run, so its own handler is registered again later (handlers run
       in reverse order): at tags 1, 2, 4, 8, ... */
    static _Atomic uint32_t tags;
    uint32_t n = atomic_fetch_add_explicit(&tags, 1, memory_order_relaxed) + 1;
    if (TS_UNLIKELY((n & (n - 1)) == 0) && n)
        ts_process_watch_end();
}

void ts_device_times_open_scope(const char *name) { ts_timers_scope(name); }

/** Moves the thread's error to `note`. */
static void keep_note(void)
{
    snprintf(note, sizeof note, "%.159s", ts_error_message());
    ts_error_clear();
}

void ts_device_times_join(const ts_backend *backend)
{
    if (!backend || !backend->profile_begin || !wanted || atomic_load(&ts_timing.device))
        return;
    if (backend->device_count && backend->device_count(backend->state) <= 0) {
        ts_error_clear();
        return; /* there is nothing to record */
    }
    note[0] = 0;
    if (backend->profile_begin(backend->state) != TS_OK) {
        keep_note();
        return;
    }
    atomic_store_explicit(&ts_timing.device, backend, memory_order_release);
}

void ts_device_times_begin(void)
{
    record = (ts_device_record){0};
    note[0] = 0;
    wanted = true;
    for (uint8_t k = 0; k < 16; k++)
        ts_device_times_join(ts_backend_of((ts_device){k, 0}));
}

void ts_device_times_drop(void)
{
    const ts_backend *b = atomic_load_explicit(&ts_timing.device, memory_order_acquire);
    if (b && b->profile_begin(b->state) != TS_OK)
        ts_error_clear(); /* old work stays, but ts_tag_is_current() excludes it */
}

void ts_device_times_end(void)
{
    const ts_backend *b = atomic_exchange(&ts_timing.device, NULL);
    wanted = false;
    recorder = TS_KEY_CPU;
    if (b)
        ts_process_watch_end(); /* as in ts_device_times_tag(), for the measurement of ceilings */
    for (uint8_t k = 0; k < 16 && b; k++)
        recorder = ts_backend_of((ts_device){k, 0}) == b ? k : recorder;
    if (b && b->profile_end(b->state, &record) != TS_OK) {
        record = (ts_device_record){0};
        keep_note();
    }
}

const ts_device_record *ts_device_times(const char **why)
{
    *why = note;
    return &record;
}

ts_device ts_device_of_times(void) { return (ts_device){recorder, 0}; }
