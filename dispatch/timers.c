/**
 * @file timers.c  Where the ticks of a thread go.
 *
 * A thread always has one running cell. At a stamp the ticks since the last stamp go to it,
 * less the stamp's own calibrated cost, which goes to the timers' own row; then another cell runs.
 * So every tick lands in exactly one place: layers, the timers, or the unattributed cell that runs
 * outside calls. Nothing is a remainder and nothing is clamped.
 *
 * A thread's counters are written by itself (and by a reset); others may read them at any time, so
 * each is atomic, without order and without read-modify-write: a stamp costs what it did.
 * Figures of a thread that is running are of slightly different moments. The order of locks is
 * state, then the list of threads.
 */
// SPDX-License-Identifier: MIT
#include "dispatch/timers.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#if TS_TIMERS

typedef struct cell {
    _Atomic int64_t calls, ticks;
} cell;

/** Columns of an op: its 64 keys. Rows are made when an op is first timed. */
typedef struct row {
    cell cells[TS_KEY_COUNT];
} row;

struct ts_timers {
    cell *running;
    _Atomic int64_t last; /* tick of the last stamp */
    _Atomic int64_t begun;
    cell outside;         /* no call is running */
    _Atomic int64_t own;  /* ticks that stamps cost */
    _Atomic(row *) rows[TS_MAX_OPS];
    cell lost;         /* hops whose row could not be allocated */
    ts_timers *next;   /* of threads that ended */
    int64_t period; /* the last period of timing it took part in; 0: none */
    int thread_id;
};

static struct {
    pthread_mutex_t lock;
    ts_timers *ended;
    _Atomic double ns_per_tick;
    _Atomic int64_t stamp_cost; /* ticks */
    atomic_bool on;
    _Atomic int64_t period; /* times switched on */
    _Atomic int64_t off_at; /* tick of the last switch off */
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

static inline int64_t ticks(void)
{
#if defined(__x86_64__)
    return (int64_t)__rdtsc();
#else
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
#endif
}

static int64_t nanoseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
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
    add(&t->own, cost);
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

/** Cost of a stamp: minimum over batches, in ticks; ns per tick over 5 ms. */
static void calibrate(void)
{
    if (state.ns_per_tick > 0)
        return;
    moment from = moment_now(), to;
    while (nanoseconds() - from.ns < 5000000)
        ;
    to = moment_now();
    state.ns_per_tick = (double)(to.ns - from.ns) / (double)(to.ticks - from.ticks);
    ts_timers probe = {0};
    int64_t best = INT64_MAX;
    for (int batch = 0; batch < 20; batch++) {
        probe.running = &probe.outside;
        int64_t begin = ticks();
        set(&probe.last, begin);
        for (int i = 0; i < 100; i++)
            stamp(&probe, &probe.outside);
        int64_t cost = (ticks() - begin) / 100;
        best = cost < best ? cost : best;
    }
    set(&state.stamp_cost, best);
}

/** A thread's timers, which only the thread itself makes and takes away; others look. */
static ts_timers *timers_seen(ts_thread *thread)
{
    return __atomic_load_n(&thread->timers, __ATOMIC_ACQUIRE);
}

/** Brings a thread's own figures up to now, or to the moment when timing was switched off. */
static void settle(ts_timers *t)
{
    bool current = t->period == get(&state.period);
    if (!t->period || (!current && t->period != get(&state.period) - 1))
        return;
    int64_t end = current && ts_timers_enabled() ? ticks() : get(&state.off_at);
    if (end > get(&t->last)) {
        add(&t->running->ticks, end - get(&t->last));
        set(&t->last, end);
    }
}

/** A thread's first stamp in a period: what lies between periods counts for nothing. */
static void take_part(ts_timers *t)
{
    settle(t);
    int64_t now = ticks();
    set(&t->begun, t->period ? get(&t->begun) + now - get(&t->last) : now);
    set(&t->last, now);
    t->running = &t->outside;
    t->period = get(&state.period);
}

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
        take_part(t);
    return t;
}

static row *row_of(const ts_timers *t, int op)
{
    return atomic_load_explicit(&t->rows[op], memory_order_acquire);
}

static cell *cell_of(ts_timers *t, int op, int key)
{
    row *r = row_of(t, op);
    if (TS_UNLIKELY(!r)) {
        if (!(r = ts_sys_calloc(sizeof *r)))
            return &t->lost;
        atomic_store_explicit(&t->rows[op], r, memory_order_release);
    }
    return &r->cells[key];
}

ts_status ts_timed_hop(ts_frame *f, ts_kernel kernel)
{
    ts_timers *t = timers_of(f->thread);
    if (!t)
        return kernel(f);
    cell *c = cell_of(t, f->op, f->key);
    add(&c->calls, 1);
    cell *before = stamp(t, c);
    ts_status status = kernel(f);
    stamp(t, before);
    return status;
}

void *ts_timer_enter(ts_thread *thread, int op)
{
    if (TS_LIKELY(!(atomic_load_explicit(&thread->state, memory_order_relaxed) & TS_THREAD_TIMING)))
        return NULL;
    ts_timers *t = timers_of(thread);
    if (!t)
        return NULL;
    cell *c = cell_of(t, op, 0);
    add(&c->calls, 1);
    return stamp(t, c);
}

void ts_timer_leave(ts_thread *thread, void *token)
{
    if (token && thread->timers)
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

void ts_timers_thread_ended(ts_thread *thread)
{
    ts_timers *t = thread->timers;
    settle(t);
    pthread_mutex_lock(&state.lock);
    t->next = state.ended;
    state.ended = t;
    __atomic_store_n(&thread->timers, NULL, __ATOMIC_RELEASE); /* a reader finds it in one place */
    pthread_mutex_unlock(&state.lock);
}

ts_status ts_timers_enable(bool on)
{
    ts_thread *self = ts_thread_self();
    pthread_mutex_lock(&state.lock);
    calibrate();
    if (on && !ts_timers_enabled())
        add(&state.period, 1);
    else if (!on && ts_timers_enabled())
        set(&state.off_at, ticks());
    atomic_store_explicit(&state.on, on, memory_order_relaxed);
    ts_thread_defaults(0, 0, on ? TS_THREAD_TIMING : 0, on ? 0 : TS_THREAD_TIMING);
    ts_thread_walk(switch_thread, &on);
    pthread_mutex_unlock(&state.lock);
    if (on && !timers_of(self))
        return ts_fail_memory("timers", sizeof(ts_timers));
    return TS_OK;
}

bool ts_timers_enabled(void) { return atomic_load_explicit(&state.on, memory_order_relaxed); }

static void cell_zero(cell *c)
{
    set(&c->calls, 0);
    set(&c->ticks, 0);
}

static void timers_zero(ts_timers *t)
{
    if (!t)
        return;
    for (int op = 0; op < TS_MAX_OPS; op++) {
        row *r = row_of(t, op);
        for (int k = 0; r && k < TS_KEY_COUNT; k++)
            cell_zero(&r->cells[k]);
    }
    cell_zero(&t->outside);
    cell_zero(&t->lost);
    int64_t now = ticks();
    set(&t->own, 0);
    set(&t->begun, now);
    set(&t->last, now);
}

static void zero_thread(ts_thread *thread, void *ctx)
{
    (void)ctx;
    timers_zero(timers_seen(thread));
}

void ts_timers_reset(void)
{
    pthread_mutex_lock(&state.lock);
    ts_thread_walk(zero_thread, NULL);
    for (ts_timers *t = state.ended, *next; t; t = next) {
        next = t->next;
        for (int op = 0; op < TS_MAX_OPS; op++)
            ts_sys_free(row_of(t, op));
        ts_sys_free(t);
    }
    state.ended = NULL;
    pthread_mutex_unlock(&state.lock);
}

/* ------------------------------------------------------------------------------- reading ---- */

typedef struct visit {
    void (*fn)(const ts_timers *t, void *ctx);
    void *ctx;
} visit;

static void visit_live(ts_thread *thread, void *ctx)
{
    visit *v = ctx;
    const ts_timers *t = timers_seen(thread);
    if (!t)
        return;
    if (thread == &ts_tls)
        settle(thread->timers);
    v->fn(t, v->ctx);
}

static void each_timers(void (*fn)(const ts_timers *t, void *ctx), void *ctx)
{
    visit v = {fn, ctx};
    /* no thread moves to the ended ones, which would be seen twice */
    pthread_mutex_lock(&state.lock);
    ts_thread_walk(visit_live, &v);
    for (const ts_timers *t = state.ended; t; t = t->next)
        fn(t, ctx);
    pthread_mutex_unlock(&state.lock);
}

static const char *row_name(int op)
{
    return op == TS_TIMER_ENGINE ? "(backward engine)" : ts_op_name(op);
}

typedef struct query {
    int op, key;
    ts_timer_cell sum;
} query;

static void sum_cell(const ts_timers *t, void *ctx)
{
    query *q = ctx;
    const row *r = row_of(t, q->op);
    if (r) {
        q->sum.calls += (uint64_t)get(&r->cells[q->key].calls);
        q->sum.self_ns += (double)get(&r->cells[q->key].ticks) * state.ns_per_tick;
    }
}

ts_timer_cell ts_timers_get(const char *op, const char *layer)
{
    query q = {ts_op_by_name(op), ts_key_by_name(layer), {0, 0}};
    if (q.op >= 0 && q.key != TS_KEY_INVALID)
        each_timers(sum_cell, &q);
    return q.sum;
}

static void sum_totals(const ts_timers *t, void *ctx)
{
    ts_timer_totals *s = ctx;
    int64_t attributed = get(&t->lost.ticks);
    for (int op = 0; op < TS_MAX_OPS; op++) {
        const row *r = row_of(t, op);
        for (int k = 0; r && k < TS_KEY_COUNT; k++) {
            attributed += get(&r->cells[k].ticks);
            s->calls += (uint64_t)get(&r->cells[k].calls);
        }
    }
    s->attributed_ns += (double)attributed * state.ns_per_tick;
    s->overhead_ns += (double)get(&t->own) * state.ns_per_tick;
    s->unattributed_ns += (double)get(&t->outside.ticks) * state.ns_per_tick;
    s->wall_ns += (double)(get(&t->last) - get(&t->begun)) * state.ns_per_tick;
}

ts_timer_totals ts_timers_totals(void)
{
    ts_timer_totals totals = {0};
    each_timers(sum_totals, &totals);
    return totals;
}

typedef struct rows {
    void (*visit)(const ts_timer_row *row, void *ctx);
    void *ctx;
} rows;

static void each_row(const ts_timers *t, void *ctx)
{
    const rows *to = ctx;
    double ns = state.ns_per_tick;
    for (int op = 0; op < TS_MAX_OPS; op++) {
        const row *r = row_of(t, op);
        for (int k = 0; r && k < TS_KEY_COUNT; k++) {
            int64_t calls = get(&r->cells[k].calls);
            if (calls)
                to->visit(&(ts_timer_row){row_name(op),
                                          op == TS_TIMER_ENGINE ? "-" : ts_key_name((ts_key)k),
                                          (uint64_t)calls, (double)get(&r->cells[k].ticks) * ns,
                                          t->thread_id},
                          to->ctx);
        }
    }
    if (get(&t->lost.calls))
        to->visit(&(ts_timer_row){"(rows without memory)", "-", (uint64_t)get(&t->lost.calls),
                                  (double)get(&t->lost.ticks) * ns, t->thread_id}, to->ctx);
    to->visit(&(ts_timer_row){"(timers)", "-", 0, (double)get(&t->own) * ns, t->thread_id},
              to->ctx);
    to->visit(&(ts_timer_row){"(unattributed)", "-", 0, (double)get(&t->outside.ticks) * ns,
                              t->thread_id},
              to->ctx);
}

void ts_timers_rows(void (*visit)(const ts_timer_row *row, void *ctx), void *ctx)
{
    each_timers(each_row, &(rows){visit, ctx});
}

double ts_timers_stamp_ns(void) { return (double)get(&state.stamp_cost) * state.ns_per_tick; }

#else /* a build without timers */

void *ts_timer_enter(ts_thread *thread, int op) { (void)thread, (void)op; return NULL; }
void ts_timer_leave(ts_thread *thread, void *token) { (void)thread, (void)token; }
void ts_timers_thread_ended(ts_thread *thread) { (void)thread; }
ts_status ts_timers_enable(bool on)
{
    return on ? ts_error_set(TS_ERR_UNSUPPORTED,
                             "timers_enable: this build has no timers (-Dtimers=false)")
              : TS_OK;
}
bool ts_timers_enabled(void) { return false; }
void ts_timers_reset(void) {}
ts_timer_cell ts_timers_get(const char *op, const char *layer)
{
    (void)op, (void)layer;
    return (ts_timer_cell){0, 0};
}
ts_timer_totals ts_timers_totals(void) { return (ts_timer_totals){0}; }
void ts_timers_rows(void (*visit)(const ts_timer_row *row, void *ctx), void *ctx)
{
    (void)visit, (void)ctx;
}
double ts_timers_stamp_ns(void) { return 0; }

#endif
