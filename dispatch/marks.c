/**
 * @file marks.c  Scopes, steps and fused groups of a profile, and the work of graphs.
 *
 * Each change of scope is recorded as a mark: a time, a scope and a thread. Marks show what the
 * host did while a device was idle. A recording keeps the first TS_MARKS_MOST marks. A thread
 * claims an entry with one atomic addition and writes the entry's tick last, so a reader skips
 * unfinished marks.
 */
// SPDX-License-Identifier: MIT
#include "dispatch/marks.h"
#include "core/alloc.h"
#include "core/device.h"
#include "core/error.h"
#include "dispatch/timers_state.h"

#include <math.h>
#include <string.h>

static struct {
    _Atomic(ts_mark *) all;
    _Atomic int64_t count; /* of all marks, lost ones included */
} marks;

void ts_marks_clear(void)
{
    ts_mark *all = atomic_load(&marks.all);
    int64_t lost, count = ts_marks(&lost);
    for (int64_t i = 0; i < count; i++)
        atomic_store(&all[i].tick, 0);
    atomic_store(&marks.count, 0);
}

/** The array of marks; NULL if out of memory. */
static ts_mark *marks_array(void)
{
    ts_mark *all = atomic_load_explicit(&marks.all, memory_order_acquire), *made;
    if (TS_LIKELY(all != NULL) || !(made = ts_sys_calloc(TS_MARKS_MOST * sizeof *made)))
        return all;
    if (atomic_compare_exchange_strong(&marks.all, &all, made))
        return made;
    ts_sys_free(made); /* another thread was first */
    return all;
}

void ts_mark_scope(const ts_timers *t, uint32_t scope)
{
    if (!atomic_load_explicit(&ts_timing.device, memory_order_relaxed))
        return;
    ts_mark *all = marks_array();
    int64_t at = atomic_fetch_add_explicit(&marks.count, 1, memory_order_relaxed);
    if (!all || at >= TS_MARKS_MOST)
        return;
    all[at].scope = scope;
    all[at].thread = t->thread_id;
    atomic_store_explicit(&all[at].tick, ticks(), memory_order_release);
}

int64_t ts_marks(int64_t *lost)
{
    int64_t count = atomic_load(&marks.count),
            capacity = atomic_load(&marks.all) ? TS_MARKS_MOST : 0;
    *lost = count > capacity ? count - capacity : 0;
    return count - *lost;
}

bool ts_mark_at(int64_t i, ts_mark *mark)
{
    const ts_mark *m = &atomic_load(&marks.all)[i];
    mark->tick = atomic_load_explicit(&m->tick, memory_order_acquire);
    mark->scope = m->scope;
    mark->thread = m->thread;
    return mark->tick != 0;
}

/* ---------------------------------------------------------------------- scopes and steps ---- */

uint32_t ts_recorded_scope(const ts_thread *thread, uint64_t seq)
{
    ts_timers *t = thread->timers;
    if (t && seq)
        ts_event_note_node(&t->record, seq);
    return t ? t->record.scope : 0;
}

void ts_timer_follow(ts_thread *thread, uint32_t base, uint32_t forward, uint64_t seq)
{
    ts_timers *t = is_recording(thread) ? ts_timers_of(thread) : NULL;
    if (!t)
        return;
    if (t->follows != base) {
        memset(t->following, 0, sizeof t->following);
        t->follows = base;
    }
    uint16_t *known = &t->following[forward % TS_SCOPES_MOST];
    if (forward && !*known)
        *known = (uint16_t)ts_scope_below(base, forward);
    t->record.scope = forward ? *known : base;
    t->record.rule = (uint32_t)seq;
}

/** Switches to another scope. Returns the row of `running` in that scope. */
static cell *change_scope(ts_timers *t, cell *running, uint32_t scope)
{
    t->record.scope = scope;
    const ts_tally_row *row = row_of(t, running);
    ts_tally_row *next = row ? ts_tally_in_scope(&t->record, row) : NULL;
    if (next)
        tag(t, &next->cell);
    ts_mark_scope(t, scope);
    return next ? &next->cell : running;
}

void ts_timers_step(void)
{
    ts_thread *thread = ts_thread_self();
    ts_timers *t = is_recording(thread) ? ts_timers_of(thread) : NULL;
    void (*passed)(void) = atomic_load(&ts_timing.watching);
    bool first = !atomic_exchange_explicit(&ts_timing.marked, true, memory_order_relaxed);
    if (first && passed)
        ts_timers_watch_steps(passed); /* calls need not look for updates any more */
    if (first && !ts_timers_take_over(thread))
        return;
    if (t)
        ts_timers_mark_step(t);
    else
        ts_timers_pass_step(thread);
}

void ts_timers_scope(const char *name)
{
    ts_thread *thread = ts_thread_self();
    ts_timers *t = is_recording(thread) ? ts_timers_of(thread) : NULL;
    if (!t)
        return;
    cell *running = stamp(t, &t->cells[STAMPS]); /* the change is the profiler's time */
    ts_tally_table *r = &t->record;
    if (name || r->scope)
        ts_device_times_range(name);
    uint32_t inner = !name ? ts_scope_get(r->scope).parent
                     : r->within ? r->scope : ts_scope_named(r->scope, name);
    if (name && inner == r->scope) { /* the new scope got no number */
        r->around = r->within++ ? r->around : r->scope;
        inner = TS_SCOPE_REST;
    } else if (r->within) {
        inner = --r->within ? TS_SCOPE_REST : r->around;
    }
    stamp(t, change_scope(t, running, inner));
}

void *ts_timer_part(ts_thread *thread, ts_part part)
{
    ts_timers *t = ts_timers_of(thread);
    ts_tally_row *row = t ? row_of(t, t->running) : NULL;
    row = row && row->whole ? row->whole : row;
    if (row && part != TS_PART_KERNEL)
        row = row->op < TS_ROW_GROUP && row->key < 16 ? ts_tally_part(&t->record, row, part) : NULL;
    return row ? stamp(t, &row->cell) : NULL;
}

void ts_timer_part_leave(ts_thread *thread, void *token) { stamp(thread->timers, token); }

/* ----------------------------------------------------------------- groups and graphs ---- */

/** Lower bound of the bytes that a fused group moves: each distinct tensor counts once; only the
 *  first 128 count. */
static double group_bytes(const ts_group_call *calls, int count)
{
    enum { MOST = 128 };
    const void *seen[MOST];
    int nseen = 0;
    double bytes = 0;
    for (int i = 0; i < count; i++) {
        const ts_frame *f = calls[i].frame;
        for (int k = 0; k < f->nargs + f->nrets; k++) {
            const ts_value *v = k < f->nargs ? &f->args[k] : &f->rets[k - f->nargs];
            const ts_tensor *x = v->tag == TS_TAG_TENSOR ? v->t : NULL;
            int at = 0;
            if (!x || !x->data || x->flags & TS_TENSOR_NONE)
                continue;
            while (at < nseen && seen[at] != x->data)
                at++;
            if (at == nseen && nseen < MOST)
                seen[nseen++] = x->data;
            else
                continue;
            bytes += (double)x->numel * ts_dtype_sizes[x->dtype];
        }
    }
    return bytes;
}

/** The profile's row of a fused group; NULL if out of memory. *work: the flops of the calls (NAN:
 *  unknown) and group_bytes(). */
static ts_tally_row *group_row(ts_timers *t, const ts_group_call *calls, int count, ts_work *work)
{
    char text[sizeof((ts_tally_row *)NULL)->call] = "";
    uint64_t hash = 0x9ddfea08eb382d69u;
    *work = (ts_work){0, group_bytes(calls, count)};
    for (int i = 0; i < count; i++) {
        const ts_frame *f = calls[i].frame;
        size_t used = strlen(text);
        ts_cost cost = f->table->info->cost;
        ts_work one = cost ? cost(f) : (ts_work){NAN, NAN};
        work->flops += one.flops;
        snprintf(text + used, sizeof text - used, "%s%s", i ? " " : "", ts_op_name(f->op));
        hash = ts_tally_hash(f, hash);
    }
    const ts_frame *last = calls[count - 1].frame;
    return ts_tally_named(&t->record, hash, TS_ROW_GROUP, last->key,
                          last->rets[0].tag == TS_TAG_TENSOR ? last->rets[0].t->dtype
                                                             : (uint8_t)TS_DTYPE_NONE,
                          text);
}

/** Adds a call and its work to a row; NAN: unknown. */
static void add_call(ts_tally_row *row, ts_work work)
{
    add(&row->cell.calls, 1);
    if (isnan(work.flops) || isnan(work.bytes)) {
        add(&row->unknown, 1);
        return;
    }
    atomic_store_explicit(&row->flops, atomic_load(&row->flops) + work.flops, memory_order_relaxed);
    atomic_store_explicit(&row->bytes, atomic_load(&row->bytes) + work.bytes, memory_order_relaxed);
}

void *ts_timer_group_enter(ts_thread *thread, const ts_group_call *calls, int count)
{
    ts_timers *t = is_recording(thread) ? ts_timers_of(thread) : NULL;
    ts_work work;
    if (!t || ts_is_captured(thread))
        return NULL;
    ts_tally_row *row = group_row(t, calls, count, &work);
    if (!row)
        return NULL;
    add_call(row, work);
    tag(t, &row->cell);
    return stamp(t, &row->cell);
}

void *ts_timer_own(ts_thread *thread)
{
    ts_timers *t = is_recording(thread) ? ts_timers_of(thread) : NULL;
    return t ? stamp(t, &t->cells[STAMPS]) : NULL;
}

void ts_timer_part_enter(ts_thread *thread, void *token, const ts_graph_part *part)
{
    if (!token)
        return;
    if (part->row)
        add_call(part->row, part->work);
    stamp(thread->timers, part->row ? &part->row->cell : token);
}

void ts_timer_group_leave(ts_thread *thread, void *token)
{
    if (!token)
        return;
    stamp(thread->timers, token);
    tag(thread->timers, token);
}

int64_t ts_graph_period(ts_thread *thread)
{
    ts_timers *t = is_recording(thread) ? ts_timers_of(thread) : NULL;
    return t ? t->reset * TS_SCOPES_MOST + t->record.scope + 1 : 0;
}

ts_status ts_graph_row(ts_thread *thread, const ts_group_call *calls, int count, bool fused,
                       ts_graph_part *part)
{
    ts_timers *t = ts_timers_of(thread);
    if (!t)
        return ts_error_memory("timers", sizeof *t);
    if (fused) {
        part->row = group_row(t, calls, count, &part->work);
    } else {
        const ts_frame *f = calls[0].frame;
        ts_cost cost = f->table->info->cost;
        part->row = ts_tally_hop(&t->record, f);
        part->work = cost ? cost(f) : (ts_work){NAN, NAN};
    }
    return part->row ? TS_OK : ts_error_memory("a profile's row", sizeof *part->row);
}

void ts_graph_launches(ts_thread *thread, const void *graph, const ts_graph_part *parts, int nparts,
                       const ts_graph_part *const *works, int nworks)
{
    ts_timers *t = is_recording(thread) ? ts_timers_of(thread) : NULL;
    const ts_backend *b = atomic_load_explicit(&ts_timing.device, memory_order_acquire);
    if (!t)
        return;
    for (int i = 0; i < nparts; i++)
        if (parts[i].row)
            add_call(parts[i].row, parts[i].work);
    const ts_tally_row *row = row_of(t, t->running);
    if (b && row)
        ts_device_times_graph(b, row, t->reset, graph, works, nworks);
}
