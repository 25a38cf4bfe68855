/**
 * @file timers.c  Attributes a thread's time, in clock ticks, to cells (one per op and layer).
 *
 * A thread always has one running cell. A stamp takes the ticks since the last stamp, adds the
 * calibrated cost of a stamp to the timers' own cell and the rest to the running cell, and then
 * switches to another running cell. Every tick is therefore counted in exactly one cell: that of a
 * layer, of the engine, of the timers, or the unattributed cell, which runs outside calls. No cell
 * is computed as a remainder.
 *
 * Only the thread itself writes its counters; other threads may read them at any time. Counters are
 * therefore atomic, with relaxed loads and stores and no read-modify-write; counters of a running
 * thread may be from slightly different times. After a reset a thread clears its cells at its next
 * stamp. Lock order: ts_timing.lock, then the list of threads.
 */
// SPDX-License-Identifier: MIT
#include "dispatch/device_times.h"
#include "dispatch/marks.h"
#include "dispatch/timers_state.h"
#include "core/device.h"
#include "core/files.h"
#include "core/hooks.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct ts_timing_state ts_timing = {.lock = PTHREAD_MUTEX_INITIALIZER, .step_thread = -1};
const char *const ts_timers_outside[3] = {"(backward engine)", "(timers)", "(unattributed)"};

void ts_timers_close(ts_timers *t)
{
    int64_t missed = get(&ts_timing.period) - t->period;
    if (!t->period || missed > 1)
        return;
    int64_t end = !missed && running() ? ticks() : get(&ts_timing.off_at);
    if (end > get(&t->last)) {
        add(&counted(t, t->running)->ticks, end - get(&t->last));
        set(&t->last, end);
    }
}

static inline bool is_timing(const ts_thread *thread)
{
    return atomic_load_explicit(&thread->state, memory_order_relaxed) & TS_THREAD_TIMING;
}

/** The cell `which` (ENGINE, STAMPS or OUTSIDE); while a profile records, the cell of its row in
 *  the thread's scope. */
static cell *other(ts_timers *t, int which)
{
    ts_tally_row *row = NULL;
    if (atomic_load_explicit(&ts_timing.recording, memory_order_relaxed))
        row = ts_tally_other(&t->record, TS_ROW_OUTSIDE, (ts_key)(which - ENGINE),
                             ts_timers_outside[which - ENGINE]);
    return row ? &row->cell : &t->cells[which];
}

int64_t ts_preempted_ns(int tid)
{
    char path[64], text[96];
    long long ran, waited;
    snprintf(path, sizeof path, "/proc/self/task/%d/schedstat", tid);
    int fd = ts_files.open(path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    ssize_t n = ts_files.pread(fd, text, sizeof text - 1, 0);
    ts_files.close(fd);
    text[n > 0 ? n : 0] = 0;
    return sscanf(text, "%lld %lld", &ran, &waited) == 2 ? waited : -1;
}

/** A thread's first stamp in a period. Time between periods is not counted. */
static TS_COLD void begin_period(ts_timers *t)
{
    pthread_mutex_lock(&ts_timing.lock);
    if (t->reset != ts_timing.reset) {
        for (cell *c = t->cells; c < t->cells + CELLS; c++)
            if (get(&c->calls) || get(&c->ticks)) { /* a page without counts stays unmapped */
                set(&c->calls, 0);
                set(&c->ticks, 0);
            }
        ts_tally_clear(&t->record);
        t->record.ring = ts_timing.flight ? TS_EVENT_RING : 0;
        t->wall = t->most = t->stamps = 0;
        atomic_store_explicit(&t->updated, false, memory_order_relaxed);
        t->reset = ts_timing.reset;
        t->period = 0;
    }
    ts_timers_close(t);
    if (!t->period && atomic_load_explicit(&ts_timing.recording, memory_order_relaxed)) {
        t->tid = gettid();
        t->preempted = ts_preempted_ns(t->tid);
    }
    int64_t now = ticks();
    set(&t->begun, t->period ? get(&t->begun) + now - get(&t->last) : now);
    set(&t->last, now);
    t->period = get(&ts_timing.period);
    t->running = other(t, OUTSIDE);
    pthread_mutex_unlock(&ts_timing.lock);
    tag(t, t->running);
}

/** The calling thread's timers, or NULL if out of memory. */
ts_timers *ts_timers_of(ts_thread *thread)
{
    ts_timers *t = thread->timers;
    if (!t) {
        if (!(t = ts_sys_calloc(sizeof *t)))
            return NULL;
        t->thread_id = thread->id;
        t->record.open = -1;
        __atomic_store_n(&thread->timers, t, __ATOMIC_RELEASE);
    }
    if (TS_UNLIKELY(t->period != get(&ts_timing.period)))
        begin_period(t);
    return t;
}

bool ts_timers_add_step(const ts_timers *t, const int64_t parts[TS_PART_COUNT])
{
    if (ts_timing.step_thread < 0)
        ts_timing.step_thread = t->thread_id;
    if (ts_timing.step_thread != t->thread_id || !ts_timing.steps)
        return false;
    int64_t n = get(&ts_timing.nsteps), stamps = get(&t->cells[STAMPS].ticks), covered = stamps;
    for (int i = 0; i < TS_PART_COUNT; i++)
        covered += parts[i];
    int64_t wall = get(&t->last) - get(&t->begun);
    if (n == TS_STEPS_MOST) {
        add(&ts_timing.lost_steps, 1);
    } else {
        ts_step *step = &ts_timing.steps[n];
        *step = (ts_step){.wall = covered > wall ? covered : wall, .stamps = stamps};
        memcpy(step->parts, parts, sizeof step->parts);
        set(&ts_timing.nsteps, n + 1);
    }
    ts_timing.all_steps++;
    return true;
}

TS_COLD void ts_timers_mark_step(ts_timers *t)
{
    bool restart = false, stop = false;
    int64_t parts[TS_PART_COUNT] = {0};
    stamp(t, t->running);
    /* summed without the lock: in a loop of short steps a crash would often find the lock held, and
     * the report after the crash needs the lock */
    ts_tally_sum(&t->record, parts);
    pthread_mutex_lock(&ts_timing.lock);
    if (ts_timers_add_step(t, parts)) {
        ts_timing.guessed += !atomic_load_explicit(&ts_timing.marked, memory_order_relaxed);
        restart = ts_timing.all_steps == ts_timing.first_step - 1;
        stop = ts_timing.all_steps == ts_timing.last_step;
    }
    pthread_mutex_unlock(&ts_timing.lock);
    tag(t, t->running);
    ts_device_times_range_step();
    if (restart)
        ts_timers_reset();
    if (stop)
        ts_timers_record(false);
}

bool ts_timers_take_over(const ts_thread *thread)
{
    pthread_mutex_lock(&ts_timing.lock);
    bool own = ts_timing.guessed, kept = own && is_recording(thread) && ts_timing.all_steps;
    if (own)
        ts_timing.step_thread = thread->id;
    if (kept) {
        set(&ts_timing.nsteps, 0);
        set(&ts_timing.lost_steps, 0);
        ts_timing.all_steps = 0;
    }
    ts_timing.guessed = 0;
    pthread_mutex_unlock(&ts_timing.lock);
    if (own && !kept && is_recording(thread))
        ts_timers_reset();
    return !own || kept;
}

void ts_timers_pass_step(ts_thread *thread)
{
    void (*passed)(void) = atomic_load(&ts_timing.watching);
    if (!passed)
        return;
    pthread_mutex_lock(&ts_timing.lock);
    if (ts_timing.step_thread < 0)
        ts_timing.step_thread = thread->id;
    bool marks = ts_timing.step_thread == thread->id;
    ts_timing.guessed += marks && !atomic_load_explicit(&ts_timing.marked, memory_order_relaxed);
    pthread_mutex_unlock(&ts_timing.lock);
    if (marks)
        passed();
}

static inline bool is_update(uint16_t op)
{
    return atomic_load_explicit(&ts_timing.updates[op], memory_order_relaxed);
}

static _Thread_local bool updated; /* the thread's last call was an update of an optimizer */
static _Thread_local uint16_t update_depth; /* nesting depth of that call */

void ts_timers_note_call(const ts_thread *thread, bool update, int depth)
{
    updated = update;
    update_depth = (uint16_t)depth;
    if (thread->timers)
        atomic_store_explicit(&thread->timers->updated, update, memory_order_relaxed);
}

/** Called when an update follows another kind of call, or another kind of call follows an update.
 *  Unless the program marks steps, a step ends at the first call after updates of parameters. An
 *  update counts where a backend runs it: a call of LAZY is only recorded, and runs later in a
 *  plan. */
static TS_COLD void note_update(ts_frame *f)
{
    if (!updated && !ts_key_runs(f->key))
        return;
    if (updated && (f->thread->depth > update_depth || f->thread->workspace))
        return; /* no step ends inside an update, or inside the capture of a graph */
    ts_timers *t = is_recording(f->thread) ? ts_timers_of(f->thread) : NULL;
    bool stale = updated && t && !atomic_load_explicit(&t->updated, memory_order_relaxed);
    ts_timers_note_call(f->thread, !updated, f->thread->depth);
    if (stale || updated || atomic_load_explicit(&ts_timing.marked, memory_order_relaxed))
        return;
    if (t)
        ts_timers_mark_step(t);
    else
        ts_timers_pass_step(f->thread);
}

void ts_timer_note_launched(const ts_thread *thread, uint16_t op)
{
    if (is_update(op))
        ts_timers_note_call(thread, true, thread->depth + 1);
}

/** Calls ts_event_prepare() and counts its time as the profiler's. */
static TS_COLD void prepare_event(ts_timers *t)
{
    cell *before = stamp(t, &t->cells[STAMPS]);
    ts_event_prepare(&t->record);
    stamp(t, before);
}

/** Like ts_timed_hop(), but adds time and work of the call to a row of the profile. The row is
 * looked up before the first stamp and the work is counted after the last, so neither is part of
 * the kernel's time; their calibrated cost is subtracted from the caller's cell, which ran then.
 * Half of an event's cost falls before the kernel and half after it. A call that a graph captures
 * adds only its time, because each launch of the graph counts it. */
static ts_status recorded_hop(ts_timers *t, ts_frame *f, ts_kernel kernel)
{
    ts_tally_table *r = &t->record;
    ts_tally_row *row = ts_tally_hop(r, f);
    cell *c = TS_LIKELY(row != NULL) ? &row->cell : &t->cells[f->op * TS_KEY_COUNT + f->key];
    double flops = r->flops, bytes = r->bytes;
    bool runs = !ts_is_captured(f->thread), shaped = row && f->key < 16;
    add(&c->calls, runs);
    int64_t cost = shaped ? get(&ts_timing.record_cost) : 0, half = 0, around = -1;
    bool traced = row && atomic_load_explicit(&ts_timing.tracing, memory_order_relaxed);
    if (TS_UNLIKELY(traced)) {
        half = get(&ts_timing.trace_cost) / 2;
        if (TS_UNLIKELY(get(&r->nevents) >= r->ready))
            prepare_event(t);
    }
    if (f->key < 16)
        tag(t, c);
    cell *before = stamp_with(t, c, cost + half);
    if (TS_UNLIKELY(traced))
        around = ts_event_begin(r, f, row, get(&t->last));
    ts_status status = kernel(f);
    stamp_with(t, before, half);
    if (TS_UNLIKELY(traced))
        ts_event_end(r, around, status, get(&t->last));
    if (f->key < 16)
        tag(t, before);
    if (shaped && status == TS_OK && runs)
        ts_tally_work(r, row, f, flops, bytes);
    return status;
}

ts_status ts_timed_hop(ts_frame *f, ts_kernel kernel)
{
    if (TS_UNLIKELY(updated != is_update(f->op)) &&
        atomic_load_explicit(&f->thread->state, memory_order_relaxed) &
            (TS_THREAD_RECORDING | TS_THREAD_WATCHING))
        note_update(f); /* this may start or stop a recording */
    ts_timers *t = is_timing(f->thread) ? ts_timers_of(f->thread) : NULL;
    if (!t)
        return kernel(f);
    if (is_recording(f->thread))
        return recorded_hop(t, f, kernel);
    cell *c = &t->cells[f->op * TS_KEY_COUNT + f->key];
    add(&c->calls, 1);
    cell *before = stamp(t, c);
    ts_status status = kernel(f);
    stamp(t, before);
    return status;
}

void *ts_timer_enter(ts_thread *thread)
{
    if (TS_LIKELY(!(atomic_load_explicit(&thread->state, memory_order_relaxed) & TS_THREAD_TIMING)))
        return NULL;
    ts_timers *t = ts_timers_of(thread);
    if (!t)
        return NULL;
    if (is_recording(thread)) {
        ts_device_times_range("backward");
        if (strcmp(ts_scope_get(t->record.scope).name, "backward") != 0)
            ts_mark_scope(t, t->record.scope = ts_scope_named(t->record.scope, "backward"));
    }
    cell *engine = other(t, ENGINE);
    add(&engine->calls, 1);
    tag(t, engine);
    return stamp(t, engine);
}

void ts_timer_leave(ts_thread *thread, void *token)
{
    if (!token)
        return;
    const ts_tally_row *row = row_of(thread->timers, token);
    thread->timers->record.scope = row ? row->scope : 0;
    thread->timers->record.rule = 0;
    if (is_recording(thread)) {
        ts_device_times_range(NULL);
        ts_mark_scope(thread->timers, thread->timers->record.scope);
    }
    stamp(thread->timers, token);
    tag(thread->timers, token);
}
