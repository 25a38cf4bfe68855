/** @file timers_read.c  Reads the timers and the profile of all threads. */
// SPDX-License-Identifier: MIT
#include "dispatch/timers_state.h"

typedef struct visit {
    void (*fn)(ts_timers *t, void *ctx);
    void *ctx;
} visit;

static void visit_live(ts_thread *thread, void *ctx)
{
    const visit *v = ctx;
    ts_timers *t = __atomic_load_n(&thread->timers, __ATOMIC_ACQUIRE);
    if (!t || t->reset != ts_timing.reset)
        return;
    if (thread == &ts_tls)
        ts_timers_close(t);
    v->fn(t, v->ctx);
}

/** Calls fn for the timers of all threads, live or ended, with counts since the last reset. */
static void each_timers(void (*fn)(ts_timers *t, void *ctx), void *ctx)
{
    visit v = {fn, ctx};
    /* under the lock, so that no thread ends meanwhile and is counted twice */
    pthread_mutex_lock(&ts_timing.lock);
    ts_thread_walk(visit_live, &v);
    for (ts_timers *t = ts_timing.ended; t; t = t->next)
        if (t->reset == ts_timing.reset)
            fn(t, ctx);
    pthread_mutex_unlock(&ts_timing.lock);
}

/** A row's values, read from its atomic fields. */
typedef struct plain {
    int64_t calls, ticks;
} plain;

static int rows_of(const ts_timers *t)
{
    return atomic_load_explicit(&t->record.count, memory_order_acquire);
}
/** Index of the cell for a row's op and key. */
static int cell_index(const ts_tally_row *row) { return row->op * TS_KEY_COUNT + row->key; }
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
        if (cell_index(row) == q->index)
            add_row(&sum, row);
    }
    q->sum.calls += (uint64_t)sum.calls;
    q->sum.self_ns += (double)sum.ticks * ts_timing.ns_per_tick;
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
    double ns = ts_timing.ns_per_tick;
    plain calls = {0, 0}, outside = {0, get(&t->cells[OUTSIDE].ticks)};
    for (int i = 0; i <= ENGINE; i++) {
        calls.calls += get(&t->cells[i].calls);
        calls.ticks += get(&t->cells[i].ticks);
    }
    for (int i = 0, n = rows_of(t); i < n; i++) {
        const ts_tally_row *row = ts_tally_at(&t->record, i);
        add_row(cell_index(row) <= ENGINE ? &calls : &outside, row);
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
    /* sums of the profile's rows, by cell */
    plain *sums = n ? ts_sys_calloc(CELLS * sizeof *sums) : NULL;
    all->failed = all->failed || (n && !sums);
    for (int i = 0; i < n && sums; i++)
        add_row(&sums[cell_index(ts_tally_at(&t->record, i))], ts_tally_at(&t->record, i));
    for (int i = 0; i < CELLS && !all->failed; i++) {
        int64_t calls = get(&t->cells[i].calls) + (sums ? sums[i].calls : 0),
                spent = get(&t->cells[i].ticks) + (sums ? sums[i].ticks : 0);
        if (!calls && !spent)
            continue;
        if (all->count == all->capacity) {
            int capacity = all->capacity ? 2 * all->capacity : 256;
            ts_timer_row *grown = ts_sys_realloc(all->items, (size_t)capacity * sizeof *grown);
            all->failed = !grown;
            if (!grown)
                break;
            all->items = grown;
            all->capacity = capacity;
        }
        bool call = i < ENGINE;
        all->items[all->count++] =
            (ts_timer_row){call ? ts_row_op(i / TS_KEY_COUNT) : ts_timers_outside[i - ENGINE],
                           call ? ts_key_name((ts_key)(i % TS_KEY_COUNT)) : "-", (uint64_t)calls,
                           (double)spent * ts_timing.ns_per_tick, t->thread_id};
    }
    ts_sys_free(sums);
}

void ts_timers_rows(ts_timer_rows *rows) { each_timers(add_rows, rows); }

double ts_timers_stamp_ns(void)
{
    return (double)get(&ts_timing.stamp_cost) * ts_timing.ns_per_tick;
}

typedef struct rows_visit {
    void (*fn)(const ts_thread_record *r, void *ctx);
    void *ctx;
} rows_visit;

static void visit_record(ts_timers *t, void *ctx)
{
    const rows_visit *v = ctx;
    double ns = ts_timing.ns_per_tick;
    ts_thread_record r = {.table = &t->record,
                          .thread = t->thread_id,
                          .threads = t->threads ? t->threads : 1,
                          .wall_ns = (double)t->wall * ns,
                          .stamps_ns = (double)t->stamps * ns,
                          .most_ns = (double)t->most * ns,
                          .preempted_ns = (double)t->preempted,
                          .begun = get(&t->begun)};
    v->fn(&r, v->ctx);
}

void ts_timers_each_record(void (*fn)(const ts_thread_record *r, void *ctx), void *ctx)
{
    each_timers(visit_record, &(rows_visit){fn, ctx});
}

const ts_step *ts_timers_steps(int64_t *count, int64_t *first, int64_t *lost, int *thread,
                               bool *traced)
{
    *thread = ts_timing.step_thread;
    *traced = atomic_load_explicit(&ts_timing.tracing, memory_order_relaxed);
    *count = get(&ts_timing.nsteps);
    *lost = get(&ts_timing.lost_steps);
    *first = ts_timing.before_steps + ts_timing.all_steps - *count - *lost + 1;
    return ts_timing.steps;
}

double ts_timers_tick_ns(void) { return ts_timing.ns_per_tick; }
