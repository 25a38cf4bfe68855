/**
 * @file timers.c  Where the ticks of a thread go.
 *
 * A thread always has one running cell. At a stamp the ticks since the last stamp go to it,
 * less the stamp's own calibrated cost, which goes to the timers' own row; then another cell runs.
 * So every tick lands in exactly one place: layers, the timers, or the unattributed cell that runs
 * outside calls. Nothing is a remainder and nothing is clamped.
 *
 * A thread's counters are written by itself alone; others may read them at any time, so each is
 * atomic, without order and without read-modify-write. Figures of a thread that is running are of
 * slightly different moments. After a reset a thread clears its cells at its next stamp. The order
 * of locks is state, then the list of threads.
 */
// SPDX-License-Identifier: MIT
#include "dispatch/timers.h"
#include "core/hooks.h"
#include "core/process.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

typedef ts_cell cell;

/* No op has the last number: its cells hold time that no call of an op takes. */
enum {
    CELLS = TS_MAX_OPS * TS_KEY_COUNT,
    ENGINE = CELLS - TS_KEY_COUNT, /* the backward engine between rules */
    STAMPS,                        /* what stamps cost */
    OUTSIDE,                       /* no call is running */
    BESIDE = TS_MAX_OPS - 1        /* the number of no op, whose keys are ENGINE and so on */
};
_Static_assert(ENGINE == BESIDE * TS_KEY_COUNT, "rows of a profile name these by op and key");
static const char *const beside[] = {"(backward engine)", "(timers)", "(unattributed)"};

struct ts_timers {
    cell *running;
    _Atomic int64_t last; /* tick of the last stamp */
    _Atomic int64_t begun;
    ts_timers *next; /* of threads that ended */
    int64_t period;  /* the last period of timing it took part in; 0: none since the reset */
    int64_t reset;   /* the last reset that it knows of; cells of an older one count for nothing */
    int thread_id;
    ts_tally_table record; /* while a profile records, its rows take the place of cells */
    int64_t wall, stamps; /* of the profile, at its end or that of the thread */
    cell cells[CELLS]; /* by op, then key; the system provides a page when it is first written */
};

static struct {
    pthread_mutex_t lock;
    ts_timers *ended; /* those of threads that ended, the last one first */
    int nended;
    _Atomic double ns_per_tick;
    _Atomic int64_t stamp_cost; /* ticks */
    atomic_bool on; /* the program wants timers */
    atomic_bool recording; /* a profile does */
    _Atomic int64_t record_cost; /* ticks of a recorded call beyond its stamps */
    ts_step *steps;
    _Atomic int64_t nsteps, lost_steps;
    int64_t all_steps, first_step, last_step; /* since recording began; those that are kept */
    int step_thread; /* the one that marks steps; -1: none yet */
    atomic_bool marked; /* the program marks its steps itself */
    uint8_t updates[TS_MAX_OPS]; /* ops that update parameters */
    _Atomic int64_t period; /* times switched on or reset */
    int64_t reset;          /* times reset */
    _Atomic int64_t off_at; /* tick of the last switch off */
} state = {.lock = PTHREAD_MUTEX_INITIALIZER, .step_thread = -1};

static inline bool running(void)
{
    return atomic_load_explicit(&state.on, memory_order_relaxed) ||
           atomic_load_explicit(&state.recording, memory_order_relaxed);
}

static int64_t nanoseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static inline int64_t ticks(void)
{
#if defined(__x86_64__)
    return (int64_t)__rdtsc();
#else
    return nanoseconds();
#endif
}

static inline int64_t get(const _Atomic int64_t *place)
{
    return atomic_load_explicit(place, memory_order_relaxed);
}
static inline void set(_Atomic int64_t *place, int64_t value)
{
    atomic_store_explicit(place, value, memory_order_relaxed);
}
static inline void add(_Atomic int64_t *place, int64_t value) { set(place, get(place) + value); }

/** The row that begins with a cell; NULL for one of t's own. */
static inline ts_tally_row *row_of(ts_timers *t, cell *c)
{
    uintptr_t at = (uintptr_t)c - (uintptr_t)t->cells;
    return at < sizeof t->cells ? NULL : (ts_tally_row *)c;
}

/** What gets the ticks of a cell: once a profile has ended, its rows change no more. */
static inline cell *counted(ts_timers *t, cell *c)
{
    if (TS_LIKELY(atomic_load_explicit(&state.recording, memory_order_relaxed)))
        return c;
    const ts_tally_row *row = row_of(t, c);
    return TS_LIKELY(!row) ? c : &t->cells[row->op * TS_KEY_COUNT + row->key];
}

/** Gives the ticks since the last stamp to the running cell and starts another. */
static inline cell *stamp(ts_timers *t, cell *next)
{
    int64_t now = ticks(), cost = get(&state.stamp_cost);
    cell *before = t->running;
    add(&counted(t, before)->ticks, now - get(&t->last) - cost);
    add(&t->cells[STAMPS].ticks, cost);
    set(&t->last, now);
    t->running = next;
    return before;
}

/** A moment by both clocks. */
typedef struct moment {
    int64_t ticks, ns;
} moment;

/** Of some readings the closest: a thread may be set aside between the two clocks. */
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

/** Cost of a stamp: minimum over batches, in ticks; ns per tick over 5 ms.
 *  Nothing has been timed yet, so t can be stamped for it and begin anew. */
static ts_status calibrate(ts_timers *t, const char *function)
{
    enum { READINGS = 10000000 }; /* of a clock that stands, until it is believed */
    if (state.ns_per_tick > 0)
        return TS_OK;
    moment from = moment_now(), to;
    for (int i = 0; nanoseconds() - from.ns < 5000000; i++)
        if (i == READINGS)
            return ts_error_set(TS_ERR_STATE, "%s: the monotonic clock stands still", function);
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
    set(&state.stamp_cost, best);
    state.ns_per_tick = (double)(to.ns - from.ns) / (double)(to.ticks - from.ticks);
    return TS_OK;
}

/** Brings a thread's own figures up to now, or to the moment when timing was switched off. */
static void close_interval(ts_timers *t)
{
    int64_t missed = get(&state.period) - t->period;
    if (!t->period || missed > 1)
        return;
    int64_t end = !missed && running() ? ticks() : get(&state.off_at);
    if (end > get(&t->last)) {
        add(&counted(t, t->running)->ticks, end - get(&t->last));
        set(&t->last, end);
    }
}

static inline bool is_timing(const ts_thread *thread)
{
    return atomic_load_explicit(&thread->state, memory_order_relaxed) & TS_THREAD_TIMING;
}
static inline bool is_recording(const ts_thread *thread)
{
    return atomic_load_explicit(&thread->state, memory_order_relaxed) & TS_THREAD_RECORDING;
}

/** The cell of what is no call; that of the thread's scope while a profile records. */
static cell *other(ts_timers *t, int which)
{
    ts_tally_row *row = NULL;
    if (atomic_load_explicit(&state.recording, memory_order_relaxed))
        row = ts_tally_other(&t->record, BESIDE, (ts_key)(which - ENGINE),
                              beside[which - ENGINE]);
    return row ? &row->cell : &t->cells[which];
}

/** A thread's first stamp in a period: what lies between periods counts for nothing. */
static TS_COLD void begin_period(ts_timers *t)
{
    pthread_mutex_lock(&state.lock);
    if (t->reset != state.reset) {
        for (cell *c = t->cells; c < t->cells + CELLS; c++)
            if (get(&c->calls) || get(&c->ticks)) { /* a page without counts stays unmapped */
                set(&c->calls, 0);
                set(&c->ticks, 0);
            }
        ts_tally_clear(&t->record);
        t->wall = t->stamps = 0;
        t->reset = state.reset;
        t->period = 0;
    }
    close_interval(t);
    int64_t now = ticks();
    set(&t->begun, t->period ? get(&t->begun) + now - get(&t->last) : now);
    set(&t->last, now);
    t->period = get(&state.period);
    t->running = other(t, OUTSIDE);
    pthread_mutex_unlock(&state.lock);
}

/** The calling thread's timers; NULL when there is no memory for them. */
static ts_timers *timers_of(ts_thread *thread)
{
    ts_timers *t = thread->timers;
    if (!t) {
        if (!(t = ts_sys_calloc(sizeof *t)))
            return NULL;
        t->thread_id = thread->id;
        __atomic_store_n(&thread->timers, t, __ATOMIC_RELEASE);
    }
    if (TS_UNLIKELY(t->period != get(&state.period)))
        begin_period(t);
    return t;
}

/** Notes what the thread has spent so far. A profile's steps are those of one thread. */
static TS_COLD void mark_step(ts_timers *t)
{
    bool restart = false, stop = false;
    stamp(t, t->running);
    pthread_mutex_lock(&state.lock);
    if (state.step_thread < 0)
        state.step_thread = t->thread_id;
    if (state.step_thread == t->thread_id && state.steps) {
        int64_t n = get(&state.nsteps);
        if (n == TS_STEPS_MOST) {
            add(&state.lost_steps, 1);
        } else {
            ts_step *step = &state.steps[n];
            *step = (ts_step){.wall = get(&t->last) - get(&t->begun),
                              .stamps = get(&t->cells[STAMPS].ticks)};
            ts_tally_sum(&t->record, BESIDE, step->parts);
            set(&state.nsteps, n + 1);
        }
        state.all_steps++;
        restart = state.all_steps == state.first_step - 1;
        stop = state.all_steps == state.last_step;
    }
    pthread_mutex_unlock(&state.lock);
    if (restart)
        ts_timers_reset();
    if (stop)
        ts_timers_record(false);
}

/** As ts_timed_hop() into a row of the profile, with the work of the call. The row is looked up
 *  before the first stamp and the work counted after the last, so a kernel's time is its own. */
static ts_status recorded_hop(ts_timers *t, ts_frame *f, ts_kernel kernel)
{
    ts_tally_table *r = &t->record;
    if (TS_UNLIKELY(r->updated != state.updates[f->op]) && f->thread->depth == 1) {
        r->updated = !r->updated;
        if (!r->updated && !atomic_load_explicit(&state.marked, memory_order_relaxed)) {
            mark_step(t);
            if (!is_recording(f->thread)) /* that was the last one to be recorded */
                return is_timing(f->thread) ? ts_timed_hop(f, kernel) : kernel(f);
        }
    }
    ts_tally_row *row = ts_tally_hop(r, f);
    cell *c = TS_LIKELY(row != NULL) ? &row->cell : &t->cells[f->op * TS_KEY_COUNT + f->key];
    double flops = r->flops, bytes = r->bytes;
    add(&c->calls, 1);
    cell *before = stamp(t, c);
    ts_status status = kernel(f);
    stamp(t, before);
    if (f->key < 16 && row) {
        int64_t cost = get(&state.record_cost);
        if (status == TS_OK)
            ts_tally_work(r, row, f, flops, bytes);
        add(&counted(t, before)->ticks, -cost);
        add(&t->cells[STAMPS].ticks, cost);
    }
    return status;
}

ts_status ts_timed_hop(ts_frame *f, ts_kernel kernel)
{
    ts_timers *t = timers_of(f->thread);
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
    ts_timers *t = timers_of(thread);
    if (!t)
        return NULL;
    if (is_recording(thread) && strcmp(ts_scope_get(t->record.scope).name, "backward") != 0)
        t->record.scope = ts_scope_named(t->record.scope, "backward");
    cell *engine = other(t, ENGINE);
    add(&engine->calls, 1);
    return stamp(t, engine);
}

void ts_timer_leave(ts_thread *thread, void *token)
{
    if (!token)
        return;
    const ts_tally_row *row = row_of(thread->timers, token);
    thread->timers->record.scope = row ? row->scope : 0;
    stamp(thread->timers, token);
}

/* ---------------------------------------------------------------------- scopes and steps ---- */

/** Goes on in another scope: what runs now continues in its row of that scope. */
static void change_scope(ts_timers *t, uint32_t scope)
{
    t->record.scope = scope;
    const ts_tally_row *row = row_of(t, t->running);
    ts_tally_row *next = row ? ts_tally_in_scope(&t->record, row) : NULL;
    if (next)
        stamp(t, &next->cell);
}

void ts_timers_step(void)
{
    ts_thread *thread = ts_thread_self();
    ts_timers *t = is_recording(thread) ? timers_of(thread) : NULL;
    atomic_store_explicit(&state.marked, true, memory_order_relaxed);
    if (t)
        mark_step(t);
}

void ts_timers_scope(const char *name)
{
    ts_thread *thread = ts_thread_self();
    ts_timers *t = is_recording(thread) ? timers_of(thread) : NULL;
    if (t)
        change_scope(t, name ? ts_scope_named(t->record.scope, name)
                             : ts_scope_get(t->record.scope).parent);
}

/* ------------------------------------------------------------------------------ switching ---- */

enum { SWITCHED = TS_THREAD_TIMING | TS_THREAD_RECORDING };

static void switch_thread(ts_thread *thread, void *ctx)
{
    uint32_t bits = *(uint32_t *)ctx;
    atomic_fetch_or(&thread->state, bits);
    atomic_fetch_and(&thread->state, bits | ~(uint32_t)SWITCHED);
}

/** Switches timers or a profile, under the lock. Threads stamp while either is on. */
static void switch_to(bool timers, bool recording)
{
    bool before = running(), now = timers || recording;
    uint32_t bits = (now ? TS_THREAD_TIMING : 0u) | (recording ? TS_THREAD_RECORDING : 0u);
    if (now && !before)
        add(&state.period, 1);
    else if (before && !now)
        set(&state.off_at, ticks());
    atomic_store_explicit(&state.on, timers, memory_order_relaxed);
    atomic_store_explicit(&state.recording, recording, memory_order_relaxed);
    ts_thread_defaults(0, 0, bits, SWITCHED & ~bits);
    ts_thread_walk(switch_thread, &bits);
}

/** Adds the figures of a thread to those of another; both have ended. */
static void merge(ts_timers *to, const ts_timers *t)
{
    for (int i = 0; i < CELLS; i++) {
        int64_t calls = get(&t->cells[i].calls), spent = get(&t->cells[i].ticks);
        if (calls || spent) { /* a page without counts stays unmapped */
            add(&to->cells[i].calls, calls);
            add(&to->cells[i].ticks, spent);
        }
    }
    ts_tally_merge(&to->record, &t->record);
    to->wall += t->wall;
    to->stamps += t->stamps;
    add(&to->begun, get(&t->begun) - get(&t->last));
    to->thread_id = TS_TIMERS_MERGED;
}

static void free_timers(ts_timers *t)
{
    ts_tally_free(&t->record);
    ts_sys_free(t);
}

/** Notes what the profile's rows of a thread sum to. */
static void end_profile(ts_thread *thread, void *ctx)
{
    ts_timers *t = ctx ? ctx : __atomic_load_n(&thread->timers, __ATOMIC_ACQUIRE);
    if (t) {
        t->wall = get(&t->last) - get(&t->begun);
        t->stamps = get(&t->cells[STAMPS].ticks);
    }
}

/** Keeps the cells of a thread that ends: of the first ones by themselves, of later ones as one. */
static void thread_ended(ts_thread *thread)
{
    ts_timers *t = thread->timers;
    close_interval(t);
    pthread_mutex_lock(&state.lock);
    if (atomic_load_explicit(&state.recording, memory_order_relaxed))
        end_profile(thread, t);
    bool counts = t->reset == state.reset, full = state.nended == TS_TIMERS_ENDED;
    if (counts && full)
        merge(state.ended, t);
    if (counts && !full) {
        t->next = state.ended;
        state.ended = t;
        state.nended++;
    } else {
        free_timers(t);
    }
    __atomic_store_n(&thread->timers, NULL, __ATOMIC_RELEASE); /* a reader finds it in one place */
    pthread_mutex_unlock(&state.lock);
}

void ts_timers_install(void)
{
    ts_above.thread_ended = thread_ended;
    ts_fork_guard(&state.lock);
}

/** Timers of the calling thread, calibrated; with the lock held if TS_OK. */
static ts_status begin_change(const char *function, bool on)
{
    if (on && !TS_TIMERS)
        return ts_error_set(TS_ERR_UNSUPPORTED, "%s: this build has no timers (-Dtimers=false)",
                            function);
    ts_thread *self = ts_thread_self();
    if (on && !timers_of(self))
        return ts_fail_memory("timers", sizeof(ts_timers));
    pthread_mutex_lock(&state.lock);
    ts_status status = on ? calibrate(self->timers, function) : TS_OK;
    if (status != TS_OK)
        pthread_mutex_unlock(&state.lock);
    return status;
}

ts_status ts_timers_enable(bool on)
{
    TS_TRY(begin_change("timers_enable", on));
    switch_to(on, atomic_load_explicit(&state.recording, memory_order_relaxed));
    pthread_mutex_unlock(&state.lock);
    if (on)
        timers_of(ts_thread_self()); /* takes part from now on */
    return TS_OK;
}

ts_status ts_timers_record(bool on)
{
    TS_TRY(begin_change("prof_start", on));
    bool before = atomic_load_explicit(&state.recording, memory_order_relaxed);
    if (on && !state.steps &&
        !(state.steps = ts_sys_calloc(TS_STEPS_MOST * sizeof *state.steps))) {
        pthread_mutex_unlock(&state.lock);
        return ts_fail_memory("a profile's steps", TS_STEPS_MOST * sizeof *state.steps);
    }
    if (!on && before) {
        ts_timers *own = ts_tls.timers;
        if (own && own->period == get(&state.period)) /* from here on it is no profile's time */
            stamp(own, own->running);
        ts_thread_walk(end_profile, NULL);
    }
    if (on && !before) {
        state.all_steps = 0;
        atomic_store_explicit(&state.marked, false, memory_order_relaxed);
    }
    switch_to(atomic_load_explicit(&state.on, memory_order_relaxed), on);
    pthread_mutex_unlock(&state.lock);
    if (on && !before)
        ts_timers_reset(); /* each thread begins with a row of its own at its next stamp */
    return TS_OK;
}

void ts_timers_record_steps(int64_t first, int64_t last)
{
    pthread_mutex_lock(&state.lock);
    state.first_step = first;
    state.last_step = last;
    pthread_mutex_unlock(&state.lock);
}

bool ts_timers_recording(void)
{
    return atomic_load_explicit(&state.recording, memory_order_relaxed);
}

void ts_timers_mark_updates(const int *ops, int n)
{
    for (int i = 0; i < n; i++)
        state.updates[ops[i]] = 1;
}

void ts_timers_record_cost(double ns)
{
    set(&state.record_cost, state.ns_per_tick > 0 ? (int64_t)(ns / state.ns_per_tick) : 0);
}

void ts_timers_reset(void)
{
    pthread_mutex_lock(&state.lock);
    state.reset++;
    add(&state.period, 1);
    for (ts_timers *t = state.ended, *next; t; t = next) {
        next = t->next;
        free_timers(t);
    }
    state.ended = NULL;
    state.nended = 0;
    set(&state.nsteps, 0);
    set(&state.lost_steps, 0);
    state.step_thread = -1;
    pthread_mutex_unlock(&state.lock);
    if (running() && ts_tls.timers)
        timers_of(&ts_tls);
}

bool ts_timers_enabled(void) { return atomic_load_explicit(&state.on, memory_order_relaxed); }

/* ------------------------------------------------------------------------------- reading ---- */

typedef struct visit {
    void (*fn)(ts_timers *t, void *ctx);
    void *ctx;
} visit;

static void visit_live(ts_thread *thread, void *ctx)
{
    const visit *v = ctx;
    ts_timers *t = __atomic_load_n(&thread->timers, __ATOMIC_ACQUIRE);
    if (!t || t->reset != state.reset)
        return;
    if (thread == &ts_tls)
        close_interval(t);
    v->fn(t, v->ctx);
}

static void each_timers(void (*fn)(ts_timers *t, void *ctx), void *ctx)
{
    visit v = {fn, ctx};
    /* no thread moves to the ended ones, which would be seen twice */
    pthread_mutex_lock(&state.lock);
    ts_thread_walk(visit_live, &v);
    for (ts_timers *t = state.ended; t; t = t->next)
        if (t->reset == state.reset)
            fn(t, ctx);
    pthread_mutex_unlock(&state.lock);
}

typedef struct plain {
    int64_t calls, ticks;
} plain;

static int rows_of(const ts_timers *t)
{
    return atomic_load_explicit(&t->record.count, memory_order_acquire);
}
static int home_of(const ts_tally_row *row) { return row->op * TS_KEY_COUNT + row->key; }
static void add_row(plain *sum, const ts_tally_row *row)
{
    sum->calls += get(&row->cell.calls);
    sum->ticks += get(&row->cell.ticks);
}

typedef struct query {
    int index;
    ts_timer_cell sum;
} query;

static void sum_cell(ts_timers *t, void *ctx)
{
    query *q = ctx;
    plain sum = {get(&t->cells[q->index].calls), get(&t->cells[q->index].ticks)};
    for (int i = 0, n = rows_of(t); i < n; i++) {
        ts_tally_row *row = ts_tally_at(&t->record, i);
        if (home_of(row) == q->index)
            add_row(&sum, row);
    }
    q->sum.calls += (uint64_t)sum.calls;
    q->sum.self_ns += (double)sum.ticks * state.ns_per_tick;
}

ts_timer_cell ts_timers_get(const char *op, const char *layer)
{
    int number = ts_op_by_name(op);
    ts_key key = ts_key_by_name(layer);
    query q = {number * TS_KEY_COUNT + key, {0, 0}};
    if (number >= 0 && key != TS_KEY_INVALID)
        each_timers(sum_cell, &q);
    return q.sum;
}

static void sum_totals(ts_timers *t, void *ctx)
{
    ts_timer_totals *s = ctx;
    double ns = state.ns_per_tick;
    plain calls = {0, 0}, outside = {0, get(&t->cells[OUTSIDE].ticks)};
    for (int i = 0; i <= ENGINE; i++) {
        calls.calls += get(&t->cells[i].calls);
        calls.ticks += get(&t->cells[i].ticks);
    }
    for (int i = 0, n = rows_of(t); i < n; i++) {
        const ts_tally_row *row = ts_tally_at(&t->record, i);
        add_row(home_of(row) <= ENGINE ? &calls : &outside, row);
    }
    s->calls += (uint64_t)calls.calls;
    s->attributed_ns += (double)calls.ticks * ns;
    s->overhead_ns += (double)get(&t->cells[STAMPS].ticks) * ns;
    s->unattributed_ns += (double)outside.ticks * ns;
    s->wall_ns += (double)(get(&t->last) - get(&t->begun)) * ns;
}

ts_timer_totals ts_timers_totals(void)
{
    ts_timer_totals totals = {0};
    each_timers(sum_totals, &totals);
    return totals;
}

static void add_rows(ts_timers *t, void *ctx)
{
    ts_timer_rows *all = ctx;
    int n = rows_of(t);
    plain *sums = n ? ts_sys_calloc(CELLS * sizeof *sums) : NULL; /* of the profile's rows */
    all->failed = all->failed || (n && !sums);
    for (int i = 0; i < n && sums; i++)
        add_row(&sums[home_of(ts_tally_at(&t->record, i))], ts_tally_at(&t->record, i));
    for (int i = 0; i < CELLS && !all->failed; i++) {
        int64_t calls = get(&t->cells[i].calls) + (sums ? sums[i].calls : 0),
                spent = get(&t->cells[i].ticks) + (sums ? sums[i].ticks : 0);
        if (!calls && !spent)
            continue;
        if (all->count == all->room) {
            int room = all->room ? 2 * all->room : 256;
            ts_timer_row *grown = ts_sys_realloc(all->items, (size_t)room * sizeof *grown);
            all->failed = !grown;
            if (!grown)
                break;
            all->items = grown;
            all->room = room;
        }
        bool call = i < ENGINE;
        all->items[all->count++] =
            (ts_timer_row){call ? ts_op_name(i / TS_KEY_COUNT) : beside[i - ENGINE],
                           call ? ts_key_name((ts_key)(i % TS_KEY_COUNT)) : "-", (uint64_t)calls,
                           (double)spent * state.ns_per_tick, t->thread_id};
    }
    ts_sys_free(sums);
}

void ts_timers_rows(ts_timer_rows *rows) { each_timers(add_rows, rows); }

double ts_timers_stamp_ns(void) { return (double)get(&state.stamp_cost) * state.ns_per_tick; }

typedef struct rows_visit {
    void (*fn)(const ts_tally_table *r, int thread, double wall_ns, double stamps_ns, void *ctx);
    void *ctx;
} rows_visit;

static void visit_record(ts_timers *t, void *ctx)
{
    const rows_visit *v = ctx;
    double ns = state.ns_per_tick;
    v->fn(&t->record, t->thread_id, (double)t->wall * ns, (double)t->stamps * ns, v->ctx);
}

void ts_timers_each_record(void (*fn)(const ts_tally_table *r, int thread, double wall_ns,
                                      double stamps_ns, void *ctx),
                           void *ctx)
{
    each_timers(visit_record, &(rows_visit){fn, ctx});
}

const ts_step *ts_timers_steps(int64_t *count, int64_t *first, int64_t *lost)
{
    *count = get(&state.nsteps);
    *first = state.all_steps - *count + 1;
    *lost = get(&state.lost_steps);
    return state.steps;
}

double ts_timers_tick_ns(void) { return state.ns_per_tick; }
