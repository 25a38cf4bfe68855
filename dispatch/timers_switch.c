/**
 * @file timers_switch.c  Switches timers and recordings on and off, calibrates the timers, and
 * keeps the counters of ended threads.
 *
 * Each switch changes the state of all threads under ts_timing.lock. Lock order: ts_timing.lock,
 * then the list of threads.
 */
// SPDX-License-Identifier: MIT
#include "dispatch/device_times.h"
#include "dispatch/timers_state.h"
#include "core/hooks.h"
#include "core/process.h"
#include "dispatch/memory_log.h"

#include <stdlib.h>
#include <string.h>

/** One point in time on both clocks. */
typedef struct moment {
    int64_t ticks, ns;
} moment;

/** Reads both clocks. Of several readings it uses the one with the fewest ticks between the clocks,
 *  because the thread may be preempted between them. */
static moment moment_now(void)
{
    moment m = {0};
    int64_t closest = INT64_MAX;
    for (int i = 0; i < 20; i++) {
        int64_t before = ticks(), ns = nanoseconds(), apart = ticks() - before;
        if (apart < closest) {
            closest = apart;
            m = (moment){before + apart / 2, ns};
        }
    }
    return m;
}

/** Measures the cost of a stamp (minimum over batches, in ticks) and ns per tick (over 5 ms), once
 *  per process. The stamps are made on t, which has no data yet; its period is reset afterwards. */
static ts_status calibrate(ts_timers *t, const char *function)
{
    enum { READINGS = 10000000 }; /* after this many equal readings, the clock counts as stopped */
    if (ts_timing.ns_per_tick > 0)
        return TS_OK;
    moment from = moment_now(), to;
    for (int i = 0; nanoseconds() - from.ns < 5000000; i++)
        if (i == READINGS)
            return ts_error_set(TS_ERR_STATE, "%s: the monotonic clock does not advance", function);
    to = moment_now();
    cell *outside = t->running = &t->cells[OUTSIDE];
    int64_t best = INT64_MAX;
    for (int batch = 0; batch < 20; batch++) {
        int64_t begin = ticks();
        set(&t->last, begin);
        for (int i = 0; i < 100; i++)
            stamp(t, outside);
        int64_t cost = (ticks() - begin) / 100;
        best = cost < best ? cost : best;
    }
    set(&outside->ticks, 0);
    t->period = 0;
    set(&ts_timing.stamp_cost, best);
    ts_timing.ns_per_tick = (double)(to.ns - from.ns) / (double)(to.ticks - from.ticks);
    return TS_OK;
}
enum { SWITCHED = TS_THREAD_TIMING | TS_THREAD_RECORDING | TS_THREAD_DETAIL | TS_THREAD_WATCHING };

static void switch_thread(ts_thread *thread, void *ctx)
{
    uint32_t bits = *(uint32_t *)ctx;
    atomic_fetch_or(&thread->state, bits);
    atomic_fetch_and(&thread->state, bits | ~(uint32_t)SWITCHED);
}

/** Switches timers and profile recording on or off; the lock is held. Threads stamp while either is
 *  on. */
static void switch_to(bool timers, bool recording)
{
    bool before = running(), now = timers || recording;
    bool watching = atomic_load(&ts_timing.watching) &&
                    !atomic_load_explicit(&ts_timing.marked, memory_order_relaxed);
    uint32_t bits = (now ? TS_THREAD_TIMING : 0u) | (recording ? TS_THREAD_RECORDING : 0u) |
                    (recording && ts_timing.detail ? TS_THREAD_DETAIL : 0u) |
                    (watching && !recording ? TS_THREAD_WATCHING : 0u);
    if (now && !before)
        add(&ts_timing.period, 1);
    else if (before && !now)
        set(&ts_timing.off_at, ticks());
    atomic_store_explicit(&ts_timing.on, timers, memory_order_relaxed);
    atomic_store_explicit(&ts_timing.recording, recording, memory_order_relaxed);
    ts_thread_defaults(0, 0, bits, SWITCHED & ~bits);
    ts_thread_walk(switch_thread, &bits);
}

/** Adds the counters of an ended thread, t, to those of another. */
static void merge(ts_timers *to, ts_timers *t)
{
    to->threads = (to->threads ? to->threads : ts_tally_has_calls(&to->record)) +
                  ts_tally_has_calls(&t->record);
    for (int i = 0; i < CELLS; i++) {
        int64_t calls = get(&t->cells[i].calls), spent = get(&t->cells[i].ticks);
        if (calls || spent) { /* a page without counts stays unmapped */
            add(&to->cells[i].calls, calls);
            add(&to->cells[i].ticks, spent);
        }
    }
    ts_tally_merge(&to->record, &t->record);
    to->wall += t->wall;
    to->most += t->most;
    to->stamps += t->stamps;
    to->preempted += t->preempted;
    add(&to->begun, get(&t->begun) - get(&t->last));
    to->thread_id = TS_TIMERS_MERGED;
}

static void free_timers(ts_timers *t)
{
    ts_tally_free(&t->record);
    ts_sys_free(t);
}

/** Stores the wall time that a thread's profile rows cover, and the ticks spent on stamps. ctx: the
 *  thread's timers; NULL: thread->timers. */
static void end_profile(ts_thread *thread, void *ctx)
{
    ts_timers *t = ctx ? ctx : __atomic_load_n(&thread->timers, __ATOMIC_ACQUIRE);
    if (t) {
        t->wall = t->most = get(&t->last) - get(&t->begun);
        t->stamps = get(&t->cells[STAMPS].ticks);
        int64_t end = t->tid && t->preempted >= 0 ? ts_preempted_ns(t->tid) : -1;
        t->preempted = end > t->preempted ? end - t->preempted : 0;
        t->tid = 0;
    }
}

/** Sets ts_timers.most of another thread after the end of the profile: the thread may then be
 *  between adding ticks to a row and storing its last stamp. */
static void bound_wall(ts_thread *thread, void *unused)
{
    ts_timers *t = __atomic_load_n(&thread->timers, __ATOMIC_ACQUIRE);
    if (t && thread != &ts_tls && !unused)
        t->most = ticks() - get(&t->begun);
}

/** Ends the step of a thread whose last call is an update, when the thread or the recording
 *  ends. */
static void end_step(ts_timers *t)
{
    int64_t parts[TS_PART_COUNT] = {0};
    if (!atomic_exchange_explicit(&t->updated, false, memory_order_relaxed) ||
        t->reset != ts_timing.reset ||
        atomic_load_explicit(&ts_timing.marked, memory_order_relaxed))
        return;
    ts_tally_sum(&t->record, parts);
    ts_timers_add_step(t, parts);
}

static void end_thread_step(ts_thread *thread, void *unused)
{
    ts_timers *t = __atomic_load_n(&thread->timers, __ATOMIC_ACQUIRE);
    if (t && !unused)
        end_step(t);
}

/** Keeps the cells of a thread that ends: separately for the first TS_TIMERS_ENDED threads, then
 *  merged into the newest of these. */
static void thread_ended(ts_thread *thread)
{
    ts_timers *t = thread->timers;
    ts_timers_close(t);
    pthread_mutex_lock(&ts_timing.lock);
    if (atomic_load_explicit(&ts_timing.recording, memory_order_relaxed)) {
        end_profile(thread, t);
        end_step(t);
    }
    bool counts = t->reset == ts_timing.reset, full = ts_timing.nended == TS_TIMERS_ENDED;
    if (counts && (full || get(&t->record.nevents) < TS_EVENT_CHUNK))
        ts_events_compact(&t->record, t->thread_id);
    if (counts && full)
        merge(ts_timing.ended, t);
    if (counts && !full) {
        t->next = ts_timing.ended;
        ts_timing.ended = t;
        ts_timing.nended++;
    } else {
        free_timers(t);
    }
    __atomic_store_n(&thread->timers, NULL, __ATOMIC_RELEASE); /* a reader must find the thread in
                                                                  exactly one list */
    pthread_mutex_unlock(&ts_timing.lock);
}

void ts_timers_install(void)
{
    ts_above.thread_ended = thread_ended;
    TS_FORK_GUARD(&ts_timing.lock);
    ts_device_times_install();
    ts_memory_log_install();
}

/** Before a switch of the timers: if `on`, makes and calibrates the calling thread's timers. After
 *  TS_OK, ts_timing.lock is held. function: prefix of error messages. */
static ts_status begin_change(const char *function, bool on)
{
    if (on && !TS_TIMERS)
        return ts_error_set(TS_ERR_UNSUPPORTED, "%s: this build has no timers (-Dtimers=false)",
                            function);
    ts_thread *self = ts_thread_self();
    if (on && !ts_timers_of(self))
        return ts_error_memory("timers", sizeof(ts_timers));
    pthread_mutex_lock(&ts_timing.lock);
    ts_status status = on ? calibrate(self->timers, function) : TS_OK;
    if (status != TS_OK)
        pthread_mutex_unlock(&ts_timing.lock);
    return status;
}

ts_status ts_timers_enable(bool on)
{
    TS_TRY(begin_change("timers_enable", on));
    switch_to(on, atomic_load_explicit(&ts_timing.recording, memory_order_relaxed));
    pthread_mutex_unlock(&ts_timing.lock);
    if (on)
        ts_timers_of(ts_thread_self()); /* starts this thread's period now, not at its next call */
    return TS_OK;
}

/** Stops the counters and the log of memory. False if nothing records. */
static bool stop_counting(void)
{
    pthread_mutex_lock(&ts_timing.lock);
    bool recording = atomic_load_explicit(&ts_timing.recording, memory_order_relaxed);
    if (recording) {
        ts_timers *own = ts_tls.timers;
        if (own && own->period == get(&ts_timing.period)) /* later time belongs to no profile */
            stamp(own, own->running);
        ts_thread_walk(end_profile, NULL);
        ts_thread_walk(end_thread_step, NULL);
        switch_to(atomic_load_explicit(&ts_timing.on, memory_order_relaxed), false);
        ts_thread_walk(bound_wall, NULL);
    }
    pthread_mutex_unlock(&ts_timing.lock);
    if (recording)
        ts_memory_log_end();
    return recording;
}

void ts_timers_halt(void) { stop_counting(); }

/** Resets the record of the thread that marks steps, and of the kind of its marks. */
static void reset_step_marks(void)
{
    ts_timing.step_thread = -1;
    ts_timing.guessed = 0;
    atomic_store_explicit(&ts_timing.marked, false, memory_order_relaxed);
    ts_timers_note_call(&ts_tls, false, 0);
}

void ts_timers_schedule(bool on)
{
    pthread_mutex_lock(&ts_timing.lock);
    atomic_store_explicit(&ts_timing.scheduled, on, memory_order_relaxed);
    if (on)
        reset_step_marks();
    pthread_mutex_unlock(&ts_timing.lock);
}

void ts_timers_watch_steps(void (*passed)(void))
{
    pthread_mutex_lock(&ts_timing.lock);
    atomic_store(&ts_timing.watching, passed);
    switch_to(atomic_load_explicit(&ts_timing.on, memory_order_relaxed),
              atomic_load_explicit(&ts_timing.recording, memory_order_relaxed));
    pthread_mutex_unlock(&ts_timing.lock);
}

static ts_status start_counting(void)
{
    TS_TRY(begin_change("prof_start", true));
    bool before = atomic_load_explicit(&ts_timing.recording, memory_order_relaxed);
    if (!ts_timing.steps &&
        !(ts_timing.steps = ts_sys_calloc(TS_STEPS_MOST * sizeof *ts_timing.steps))) {
        pthread_mutex_unlock(&ts_timing.lock);
        return ts_error_memory("a profile's steps", TS_STEPS_MOST * sizeof *ts_timing.steps);
    }
    if (!before) {
        ts_timing.all_steps = 0;
        if (!ts_timing.scheduled)
            reset_step_marks();
    }
    switch_to(atomic_load_explicit(&ts_timing.on, memory_order_relaxed), true);
    pthread_mutex_unlock(&ts_timing.lock);
    if (!before)
        ts_timers_reset(); /* from its next stamp on, each thread counts in the profile's rows */
    return TS_OK;
}

ts_status ts_timers_record(bool on)
{
    if (on)
        return start_counting();
    if (stop_counting()) {
        ts_device_times_end();
        if (ts_above.profile_ended)
            ts_above.profile_ended();
    }
    return TS_OK;
}

void ts_timers_record_as(const ts_recording *r)
{
    pthread_mutex_lock(&ts_timing.lock);
    atomic_store_explicit(&ts_timing.tracing, r->trace, memory_order_relaxed);
    ts_timing.first_step = r->first;
    ts_timing.last_step = r->last;
    ts_timing.before_steps = r->before;
    ts_timing.detail = r->detail;
    ts_timing.flight = r->flight;
    pthread_mutex_unlock(&ts_timing.lock);
}

bool ts_timers_recording(void)
{
    return atomic_load_explicit(&ts_timing.recording, memory_order_relaxed);
}

bool ts_timers_active(void)
{
    return atomic_load_explicit(&ts_timing.recording, memory_order_relaxed) ||
           atomic_load_explicit(&ts_timing.scheduled, memory_order_relaxed);
}

void ts_timers_mark_updates(const int *ops, int n)
{
    for (int i = 0; i < n; i++) /* other threads may be reading */
        atomic_store_explicit(&ts_timing.updates[ops[i]], true, memory_order_relaxed);
}

void ts_timers_record_cost(double ns, double trace_ns)
{
    double tick = ts_timing.ns_per_tick;
    set(&ts_timing.record_cost, tick > 0 ? (int64_t)(ns / tick) : 0);
    set(&ts_timing.trace_cost, tick > 0 ? (int64_t)(trace_ns / tick) : 0);
}

void ts_timers_reset(void)
{
    pthread_mutex_lock(&ts_timing.lock);
    ts_timing.reset++;
    add(&ts_timing.period, 1);
    for (ts_timers *t = ts_timing.ended, *next; t; t = next) {
        next = t->next;
        free_timers(t);
    }
    ts_timing.ended = NULL;
    ts_timing.nended = 0;
    set(&ts_timing.nsteps, 0);
    set(&ts_timing.lost_steps, 0);
    if (!ts_timing.scheduled)
        ts_timing.step_thread = -1;
    pthread_mutex_unlock(&ts_timing.lock);
    ts_device_times_drop();
    if (running() && ts_tls.timers)
        ts_timers_of(&ts_tls);
}

bool ts_timers_enabled(void) { return atomic_load_explicit(&ts_timing.on, memory_order_relaxed); }
