/**
 * @file idle.c  Idle time of a device, divided by cause.
 *
 * A gap is a time without work on the device; it ends when the next work begins. The host part of
 * a gap lasts until the host calls the function that queues this work; the rest is the delay of the
 * launch. If the work was queued before the gap, the gap is the usual pause between two kernels or
 * a wait for other work. The host part is also divided among the scopes in which the host was
 * during the gap and, in a trace, among the layers. For this purpose host ticks are converted to
 * the device's clock by readings of both clocks at the start and at the end of the recording.
 */
// SPDX-License-Identifier: MIT
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "dispatch/marks.h"
#include "profile/device.h"

const char *const ts_idle_names[TS_IDLE_COUNT] = {"host",   "data",       "sync",   "allocator",
                                                  "launch", "dependency", "device", "unknown"};

/* --------------------------------------------------------------------------- intervals ---- */

/** An interval in ns on the device's clock. sum: total length of the intervals before it. */
typedef struct interval {
    double from, to, sum;
} interval;
/** Disjoint intervals in ascending order. */
typedef struct intervals {
    interval *all;
    int64_t count, capacity;
} intervals;

/** Adds an interval that ends no earlier than the last one, and merges it with those that it
 *  overlaps or touches. False if out of memory. */
static bool append(intervals *l, double from, double to)
{
    if (to <= from)
        return true;
    for (; l->count && l->all[l->count - 1].to >= from; l->count--) {
        const interval *last = &l->all[l->count - 1];
        from = last->from < from ? last->from : from;
        to = last->to > to ? last->to : to;
    }
    if (l->count == l->capacity) {
        int64_t capacity = 2 * l->capacity + 256;
        interval *grown = ts_sys_realloc(l->all, (size_t)capacity * sizeof *grown);
        if (!grown)
            return false;
        l->all = grown;
        l->capacity = capacity;
    }
    const interval *last = l->count ? &l->all[l->count - 1] : NULL;
    l->all[l->count++] = (interval){from, to, last ? last->sum + last->to - last->from : 0};
    return true;
}

/** Total length of the intervals' parts before `at`. */
static double before(const intervals *l, double at)
{
    int64_t low = 0, high = l->count;
    while (low < high) {
        int64_t mid = (low + high) / 2;
        if (l->all[mid].from < at)
            low = mid + 1;
        else
            high = mid;
    }
    if (!low)
        return 0;
    const interval *i = &l->all[low - 1];
    return i->sum + (at < i->to ? at : i->to) - i->from;
}

/** Total length of the intervals' parts between `from` and `to`. */
static double within(const intervals *l, double from, double to)
{
    return to > from ? before(l, to) - before(l, from) : 0;
}

/* ------------------------------------------------------------------------------ exposed ---- */

typedef struct study {
    ts_profile *p;
    ts_device_sums *s;
    const ts_device_clock *clock; /* NULL: unknown */
    intervals host;      /* host parts of gaps */
    intervals data;      /* times of the host in scopes "data" */
    intervals allocator; /* times of the host in allocations and frees */
    double usual_gap;    /* ns between two kernels if the second was queued in time */
} study;

/** A time of the host, in ns on the device's clock. u->clock is not NULL. */
static double device_time(const study *u, int64_t tick)
{
    const ts_device_clock *c = u->clock;
    double rate = (double)(c->ns[1] - c->ns[0]) / (double)(c->ticks[1] - c->ticks[0]);
    return (double)c->ns[0] + (double)(tick - c->ticks[0]) * rate;
}

/** Adds ns, which may be negative, to a scope or layer in p->exposed. False if out of memory. */
static bool expose(ts_profile *p, const char *name, bool layer, double ns)
{
    for (int64_t i = 0; i < p->nexposed; i++)
        if (p->exposed[i].layer == layer && strcmp(p->exposed[i].name, name) == 0) {
            p->exposed[i].ns += ns;
            return true;
        }
    if (ns == 0)
        return true;
    ts_exposed *grown = ts_sys_realloc(p->exposed, (size_t)(p->nexposed + 1) * sizeof *grown);
    if (!grown)
        return false;
    p->exposed = grown;
    grown[p->nexposed] = (ts_exposed){.layer = layer, .ns = ns};
    snprintf(grown[p->nexposed++].name, sizeof grown->name, "%s", name);
    return true;
}

/** True if a scope or one around it is named "data". */
static bool is_data(uint32_t scope)
{
    for (; scope; scope = ts_scope_get(scope).parent)
        if (strcmp(ts_scope_get(scope).name, "data") == 0)
            return true;
    return false;
}

/** Calls fn for each interval between two changes of scope in the thread that marks steps; without
 *  steps, in the thread of the first mark. If marks were lost, the intervals end at the last mark.
 *  False if fn returned false. Without a clock it does nothing. */
static bool each_scope_interval(study *u,
                                bool (*fn)(study *u, uint32_t scope, double from, double to))
{
    int64_t lost, n = ts_marks(&lost);
    ts_mark m, last = {0};
    int thread = u->p->steps_thread;
    bool good = true;
    u->p->device.lost_scopes = lost;
    for (int64_t i = 0; u->clock && i < n; i++) {
        if (!ts_mark_at(i, &m))
            continue;
        thread = thread < 0 ? m.thread : thread;
        if (m.thread != thread)
            continue;
        if (last.tick)
            good = fn(u, last.scope, device_time(u, last.tick), device_time(u, m.tick)) && good;
        last = m;
    }
    return good && (!last.tick || lost || fn(u, last.scope, device_time(u, last.tick), 1e300));
}

static bool note_data(study *u, uint32_t scope, double from, double to)
{
    return !is_data(scope) || append(&u->data, from, to);
}

static bool expose_scope(study *u, uint32_t scope, double from, double to)
{
    char path[TS_SCOPE_TEXT];
    double ns = within(&u->host, from, to);
    ts_scope_path(path, sizeof path, scope);
    return ns <= 0 || expose(u->p, path, false, ns);
}

/** The host tick of a time in e, which stores times as shifted ticks since its begin. */
static double tick_of(const ts_event *e, uint32_t ticks)
{
    return (double)(e->begin + ((int64_t)ticks << e->shift));
}

/** Divides the host parts of gaps among the layers of the calls in a trace. Each layer gets its own
 *  time; the time of a call inside another is subtracted from the lowest layer of the outer call.
 *  False if out of memory. */
static bool expose_layers(study *u)
{
    ts_profile *p = u->p;
    for (int64_t i = 0; u->clock && p->events && i < p->nevents; i++) {
        const ts_event *e = &p->events[i].event;
        bool good = true;
        if (e->inside || (p->steps_thread >= 0 && p->events[i].thread != p->steps_thread))
            continue;
        double whole = 0, inner = 0;
        for (int k = e->layers - 1; k >= 0 && good; k--) {
            double from = k ? tick_of(e, e->enter[k - 1]) : (double)e->begin;
            whole = within(&u->host, device_time(u, (int64_t)from),
                           device_time(u, (int64_t)tick_of(e, e->leave[k])));
            good = expose(p, ts_key_name(e->keys[k]), true, whole - inner);
            inner = whole;
        }
        for (int64_t k = i; k > 0 && e->parent && good; k--) { /* the outer call is before it */
            const ts_event *outer = &p->events[k - 1].event;
            if (p->events[k - 1].thread == p->events[i].thread && outer->depth < e->depth &&
                !outer->inside && outer->layers) {
                good = expose(p, ts_key_name(outer->keys[outer->layers - 1]), true, -whole);
                break;
            }
        }
        if (!good)
            return false;
    }
    return true;
}

/* --------------------------------------------------------------------------------- gaps ---- */

/** The host's last wait that ended between `from` and `at`; NULL: none. Allocations do not count
 *  as waits. */
static const ts_device_wait *last_wait(const ts_device_sums *s, int64_t from, int64_t at)
{
    int64_t low = 0, high = s->nwaits;
    while (low < high) {
        int64_t mid = (low + high) / 2;
        if (s->waits[mid].end_ns <= at)
            low = mid + 1;
        else
            high = mid;
    }
    while (low-- > 0 && s->waits[low].end_ns >= from)
        if (!s->waits[low].allocates)
            return &s->waits[low];
    return NULL;
}

/** Divides the gap from `from` to the start of w by cause. False if out of memory. */
static bool split(study *u, const ts_device_work *w, int64_t from)
{
    double *idle = u->p->device.idle, gap = (double)(w->begin_ns - from);
    ts_device_row *row = ts_device_find(u->s, ts_tag_row(w->tag));
    if (!w->called_ns) {
        idle[TS_IDLE_UNKNOWN] += gap;
        return true;
    }
    if (w->queued_ns <= from) {
        idle[gap <= 3 * u->usual_gap ? TS_IDLE_DEVICE : TS_IDLE_DEPENDENCY] += gap;
        return true;
    }
    int64_t called = w->called_ns < w->begin_ns ? w->called_ns : w->begin_ns;
    double host = called > from ? (double)(called - from) : 0;
    idle[TS_IDLE_LAUNCH] += gap - host;
    if (host == 0)
        return true;
    double a = within(&u->allocator, (double)from, (double)called);
    double d = within(&u->data, (double)from, (double)called);
    double rest = host - a - d > 0 ? host - a - d : 0;
    const ts_device_wait *wait = last_wait(u->s, from, called);
    idle[TS_IDLE_ALLOCATOR] += a;
    idle[TS_IDLE_DATA] += d;
    idle[wait ? TS_IDLE_SYNC : TS_IDLE_HOST] += rest;
    ts_device_row *waits = wait ? ts_device_find(u->s, ts_tag_row(wait->tag)) : NULL;
    row = wait ? waits : row; /* after a wait, the host part belongs to the call that waited */
    if (row)
        row->idle_ns += host;
    return append(&u->host, (double)from, (double)called);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/** Divides each gap between `first` and `last` by cause. If `gaps` is not NULL, only appends to it
 *  the lengths of those gaps whose work was queued before them. False if out of memory. */
static bool each_gap(study *u, int64_t first, int64_t last, double *gaps, int64_t *ngaps)
{
    int64_t until = 0;
    bool good = true;
    for (int64_t i = 0; i < u->s->nwork && good; i++) {
        const ts_device_work *w = &u->s->work[i];
        int64_t from = until > first ? until : first;
        if (until && w->begin_ns > from && w->begin_ns <= last) {
            if (!gaps)
                good = split(u, w, from);
            else if (w->queued_ns && w->queued_ns <= from)
                gaps[(*ngaps)++] = (double)(w->begin_ns - from);
        }
        until = w->end_ns > until ? w->end_ns : until;
    }
    return good;
}

static int by_exposure(const void *a, const void *b)
{
    double x = ((const ts_exposed *)a)->ns, y = ((const ts_exposed *)b)->ns;
    return (x < y) - (x > y);
}

/** Sets the usual gap and the median delay of a launch, then divides the idle time between `first`
 *  and `last`. False if out of memory. */
static bool divide_idle_time(study *u, int64_t first, int64_t last)
{
    enum { USUAL = 1500 }; /* ns; upper limit of usual_gap, and its value if no work was queued
                              before its gap */
    ts_profile *p = u->p;
    int64_t n = 0;
    double *list = ts_sys_alloc((size_t)(u->s->nwork + 1) * sizeof *list);
    if (!list)
        return false;
    each_gap(u, first, last, list, &n);
    if (n > 1)
        qsort(list, (size_t)n, sizeof *list, by_value);
    u->usual_gap = n && list[n / 2] < USUAL ? list[n / 2] : USUAL;
    n = 0;
    for (int64_t i = 0; i < u->s->nwork; i++)
        if (u->s->work[i].called_ns && u->s->work[i].begin_ns > u->s->work[i].called_ns)
            list[n++] = (double)(u->s->work[i].begin_ns - u->s->work[i].called_ns);
    if (n > 1)
        qsort(list, (size_t)n, sizeof *list, by_value);
    p->device.delay_ns = n ? list[n / 2] : 0;
    ts_sys_free(list);
    for (int64_t i = 0; i < u->s->nwaits; i++)
        if (u->s->waits[i].allocates && !append(&u->allocator, (double)u->s->waits[i].begin_ns,
                                                (double)u->s->waits[i].end_ns))
            return false;
    bool good = each_scope_interval(u, note_data) && each_gap(u, first, last, NULL, NULL) &&
                each_scope_interval(u, expose_scope) && expose_layers(u);
    if (p->nexposed > 1)
        qsort(p->exposed, (size_t)p->nexposed, sizeof *p->exposed, by_exposure);
    return good;
}

ts_status ts_device_idle(ts_device_sums *s, ts_profile *p, int64_t first_ns, int64_t last_ns)
{
    study u = {.p = p, .s = s, .clock = ts_device_times_clock()};
    bool good = divide_idle_time(&u, first_ns, last_ns);
    ts_sys_free(u.host.all);
    ts_sys_free(u.data.all);
    ts_sys_free(u.allocator.all);
    return good ? TS_OK : ts_error_memory("a profile's idle times",
                                            (s->nwork + 1) * (int64_t)sizeof(double));
}
