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

typedef struct cell {
    _Atomic int64_t calls, ticks;
} cell;

/* No op has the last number: its cells hold time that no call of an op takes. */
enum {
    CELLS = TS_MAX_OPS * TS_KEY_COUNT,
    ENGINE = CELLS - TS_KEY_COUNT, /* the backward engine between rules */
    STAMPS,                        /* what stamps cost */
    OUTSIDE                        /* no call is running */
};

struct ts_timers {
    cell *running;
    _Atomic int64_t last; /* tick of the last stamp */
    _Atomic int64_t begun;
    ts_timers *next; /* of threads that ended */
    int64_t period;  /* the last period of timing it took part in; 0: none since the reset */
    int64_t reset;   /* the last reset that it knows of; cells of an older one count for nothing */
    int thread_id;
    cell cells[CELLS]; /* by op, then key; the system provides a page when it is first written */
};

static struct {
    pthread_mutex_t lock;
    ts_timers *ended; /* those of threads that ended, the last one first */
    int nended;
    _Atomic double ns_per_tick;
    _Atomic int64_t stamp_cost; /* ticks */
    atomic_bool on;
    _Atomic int64_t period; /* times switched on or reset */
    int64_t reset;          /* times reset */
    _Atomic int64_t off_at; /* tick of the last switch off */
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

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

/** Gives the ticks since the last stamp to the running cell and starts another. */
static inline cell *stamp(ts_timers *t, cell *next)
{
    int64_t now = ticks(), cost = get(&state.stamp_cost);
    cell *before = t->running;
    add(&before->ticks, now - get(&t->last) - cost);
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
static ts_status calibrate(ts_timers *t)
{
    enum { READINGS = 10000000 }; /* of a clock that stands, until it is believed */
    if (state.ns_per_tick > 0)
        return TS_OK;
    moment from = moment_now(), to;
    for (int i = 0; nanoseconds() - from.ns < 5000000; i++)
        if (i == READINGS)
            return ts_error_set(TS_ERR_STATE, "timers_enable: the monotonic clock stands still");
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
    int64_t end = !missed && ts_timers_enabled() ? ticks() : get(&state.off_at);
    if (end > get(&t->last)) {
        add(&t->running->ticks, end - get(&t->last));
        set(&t->last, end);
    }
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
        t->reset = state.reset;
        t->period = 0;
    }
    close_interval(t);
    int64_t now = ticks();
    set(&t->begun, t->period ? get(&t->begun) + now - get(&t->last) : now);
    set(&t->last, now);
    t->running = &t->cells[OUTSIDE];
    t->period = get(&state.period);
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

ts_status ts_timed_hop(ts_frame *f, ts_kernel kernel)
{
    ts_timers *t = timers_of(f->thread);
    if (!t)
        return kernel(f);
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
    add(&t->cells[ENGINE].calls, 1);
    return stamp(t, &t->cells[ENGINE]);
}

void ts_timer_leave(ts_thread *thread, void *token)
{
    if (token)
        stamp(thread->timers, token);
}

/* ------------------------------------------------------------------------------ switching ---- */

static void switch_thread(ts_thread *thread, void *ctx)
{
    bool on = *(bool *)ctx;
    if (on)
        atomic_fetch_or(&thread->state, TS_THREAD_TIMING);
    else
        atomic_fetch_and(&thread->state, ~(uint32_t)TS_THREAD_TIMING);
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
    add(&to->begun, get(&t->begun) - get(&t->last));
    to->thread_id = TS_TIMERS_MERGED;
}

/** Keeps the cells of a thread that ends: of the first ones by themselves, of later ones as one. */
static void thread_ended(ts_thread *thread)
{
    ts_timers *t = thread->timers;
    close_interval(t);
    pthread_mutex_lock(&state.lock);
    bool counts = t->reset == state.reset, full = state.nended == TS_TIMERS_ENDED;
    if (counts && full)
        merge(state.ended, t);
    if (counts && !full) {
        t->next = state.ended;
        state.ended = t;
        state.nended++;
    } else {
        ts_sys_free(t);
    }
    __atomic_store_n(&thread->timers, NULL, __ATOMIC_RELEASE); /* a reader finds it in one place */
    pthread_mutex_unlock(&state.lock);
}

void ts_timers_install(void)
{
    ts_above.thread_ended = thread_ended;
    ts_fork_guard(&state.lock);
}

ts_status ts_timers_enable(bool on)
{
    if (on && !TS_TIMERS)
        return ts_error_set(TS_ERR_UNSUPPORTED,
                            "timers_enable: this build has no timers (-Dtimers=false)");
    ts_thread *self = ts_thread_self();
    if (on && !timers_of(self))
        return ts_fail_memory("timers", sizeof(ts_timers));
    pthread_mutex_lock(&state.lock);
    ts_status status = on ? calibrate(self->timers) : TS_OK;
    if (status != TS_OK) {
        pthread_mutex_unlock(&state.lock);
        return status;
    }
    if (on && !ts_timers_enabled()) {
        add(&state.period, 1);
    } else if (!on && ts_timers_enabled()) {
        set(&state.off_at, ticks());
    }
    atomic_store_explicit(&state.on, on, memory_order_relaxed);
    ts_thread_defaults(0, 0, on ? TS_THREAD_TIMING : 0, on ? 0 : TS_THREAD_TIMING);
    ts_thread_walk(switch_thread, &on);
    pthread_mutex_unlock(&state.lock);
    if (on)
        timers_of(self); /* takes part from now on */
    return TS_OK;
}

void ts_timers_reset(void)
{
    pthread_mutex_lock(&state.lock);
    state.reset++;
    add(&state.period, 1);
    for (ts_timers *t = state.ended, *next; t; t = next) {
        next = t->next;
        ts_sys_free(t);
    }
    state.ended = NULL;
    state.nended = 0;
    pthread_mutex_unlock(&state.lock);
    if (ts_timers_enabled() && ts_tls.timers)
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

typedef struct query {
    int index;
    ts_timer_cell sum;
} query;

static void sum_cell(ts_timers *t, void *ctx)
{
    query *q = ctx;
    q->sum.calls += (uint64_t)get(&t->cells[q->index].calls);
    q->sum.self_ns += (double)get(&t->cells[q->index].ticks) * state.ns_per_tick;
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
    int64_t attributed = 0;
    for (int i = 0; i <= ENGINE; i++) {
        attributed += get(&t->cells[i].ticks);
        s->calls += (uint64_t)get(&t->cells[i].calls);
    }
    s->attributed_ns += (double)attributed * ns;
    s->overhead_ns += (double)get(&t->cells[STAMPS].ticks) * ns;
    s->unattributed_ns += (double)get(&t->cells[OUTSIDE].ticks) * ns;
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
    static const char *const beside[] = {"(backward engine)", "(timers)", "(unattributed)"};
    ts_timer_rows *all = ctx;
    for (int i = 0; i < CELLS && !all->failed; i++) {
        int64_t calls = get(&t->cells[i].calls), spent = get(&t->cells[i].ticks);
        if (!calls && !spent)
            continue;
        if (all->count == all->room) {
            int room = all->room ? 2 * all->room : 256;
            ts_timer_row *grown = ts_sys_realloc(all->items, (size_t)room * sizeof *grown);
            all->failed = !grown;
            if (!grown)
                return;
            all->items = grown;
            all->room = room;
        }
        bool call = i < ENGINE;
        all->items[all->count++] =
            (ts_timer_row){call ? ts_op_name(i / TS_KEY_COUNT) : beside[i - ENGINE],
                           call ? ts_key_name((ts_key)(i % TS_KEY_COUNT)) : "-", (uint64_t)calls,
                           (double)spent * state.ns_per_tick, t->thread_id};
    }
}

void ts_timers_rows(ts_timer_rows *rows) { each_timers(add_rows, rows); }

double ts_timers_stamp_ns(void) { return (double)get(&state.stamp_cost) * state.ns_per_tick; }
