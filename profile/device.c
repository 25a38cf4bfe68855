/**
 * @file device.c  Device work in a profile: assigned to rows and steps by tags, and a timeline of
 * busy and idle time.
 *
 * A step on the devices lasts from the first work queued in it to the first work queued in the next
 * step. The devices are busy while at least one kernel, copy or memset runs.
 */
// SPDX-License-Identifier: MIT
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "profile/device.h"

/** Most waves (rounded up) of a kernel whose last, partial wave counts as lost time. */
#define WAVES_FEW 4

static int by_tag(const void *a, const void *b)
{
    uint64_t x = ((const ts_device_work *)a)->tag, y = ((const ts_device_work *)b)->tag;
    return (x > y) - (x < y);
}
static int by_begin(const void *a, const void *b)
{
    int64_t x = ((const ts_device_work *)a)->begin_ns, y = ((const ts_device_work *)b)->begin_ns;
    return (x > y) - (x < y);
}

/** Removes work from before the last reset. Keeps work with a current tag, and untagged work that
 *  begins no earlier than the first work with a current tag. Returns the number kept. */
static int64_t select_current(ts_device_work *work, int64_t count)
{
    int64_t first = INT64_MAX, kept = 0;
    for (int64_t i = 0; i < count; i++)
        if (work[i].tag && ts_tag_is_current(work[i].tag) && work[i].begin_ns < first)
            first = work[i].begin_ns;
    for (int64_t i = 0; i < count; i++)
        if (work[i].tag ? ts_tag_is_current(work[i].tag) : work[i].begin_ns >= first)
            work[kept++] = work[i];
    return kept;
}

static int by_launch(const void *a, const void *b)
{
    const ts_device_work *x = a, *y = b;
    if (x->launch != y->launch)
        return (x->launch > y->launch) - (x->launch < y->launch);
    return (x->begin_ns > y->begin_ns) - (x->begin_ns < y->begin_ns);
}

/** Replaces the graph's id in the tags of its works by the row of each work. A graph runs its works
 *  one after another, so the k-th work of a launch belongs to the k-th row. If the launch has
 *  another number of works, all get the row of the launch. s->work is sorted by launch. */
static void resolve_graphs(ts_device_sums *s)
{
    int nmaps;
    const ts_graph_map *maps = ts_device_times_graphs(&nmaps);
    for (int64_t i = 0, n; i < s->nwork; i += n) {
        const ts_graph_map *map = NULL;
        for (n = 1; i + n < s->nwork && s->work[i + n].launch == s->work[i].launch;)
            n++;
        for (int k = 0; k < nmaps && !map && s->work[i].tag; k++)
            map = ts_tag_row(s->work[i].tag) == maps[k].id ? &maps[k] : NULL;
        for (int64_t k = 0; k < n && map; k++) {
            uint64_t row = n == map->count ? map->rows[k] : map->launch_row;
            uint64_t low = s->work[i + k].tag & ((1 << TS_TAG_ROW) - 1);
            s->work[i + k].tag = row << TS_TAG_ROW | low;
        }
    }
}

/** Fills s->rows with sums over s->work, which is sorted by tag. */
static void sum_rows(ts_device_sums *s)
{
    for (int64_t i = 0; i < s->nwork; i++) {
        const ts_device_work *w = &s->work[i];
        uint64_t row = ts_tag_row(w->tag);
        if (!s->nrows || s->rows[s->nrows - 1].row != row)
            s->rows[s->nrows++] = (ts_device_row){.row = row};
        ts_device_row *r = &s->rows[s->nrows - 1];
        double ns = (double)(w->end_ns - w->begin_ns), whole = ceil((double)w->waves);
        r->ns += ns;
        r->kernels += w->kernel;
        r->works++;
        r->pageable_ns += w->pageable ? ns : 0;
        r->delay_ns += w->called_ns ? (double)(w->begin_ns - w->called_ns) : 0;
        if (whole > 0 && whole <= WAVES_FEW)
            r->partial_ns += ns * (1 - (double)w->waves / whole);
    }
}

static int by_end(const void *a, const void *b)
{
    int64_t x = ((const ts_device_wait *)a)->end_ns, y = ((const ts_device_wait *)b)->end_ns;
    return (x > y) - (x < y);
}

/** Copies the waits and allocations since the last reset, sorted by end, and sums them in *d and in
 *  the rows. Error: TS_ERR_MEMORY. */
static ts_status copy_waits(ts_device_sums *s, const ts_device_record *record, ts_device_part *d)
{
    s->waits = ts_sys_alloc((size_t)(record->nwaits + 1) * sizeof *s->waits);
    if (!s->waits)
        return ts_error_memory("a profile's device work", record->nwaits);
    for (int64_t i = 0; i < record->nwaits; i++) {
        const ts_device_wait *w = &record->waits[i];
        if (!w->tag || !ts_tag_is_current(w->tag))
            continue;
        s->waits[s->nwaits++] = *w;
        d->waits += !w->allocates;
        d->wait_ns += w->allocates ? 0 : (double)(w->end_ns - w->begin_ns);
        d->allocations += w->allocates;
        d->late_allocations += w->allocates && ts_tag_step(w->tag) > 0;
        ts_device_row *row = w->allocates ? NULL : ts_device_find(s, ts_tag_row(w->tag));
        if (row)
            row->wait_ns += (double)(w->end_ns - w->begin_ns);
    }
    if (s->nwaits)
        qsort(s->waits, (size_t)s->nwaits, sizeof *s->waits, by_end);
    return TS_OK;
}

ts_status ts_device_sums_make(ts_device_sums *s, ts_profile *p)
{
    const char *note;
    const ts_device_record *record = ts_device_times(&note);
    *s = (ts_device_sums){0};
    snprintf(p->device.note, sizeof p->device.note, "%s", note);
    snprintf(p->device.source, sizeof p->device.source, "%s", record->source);
    p->device.lost = record->lost;
    if (!record->count)
        return TS_OK;
    s->work = ts_sys_alloc((size_t)record->count * sizeof *s->work);
    s->rows = ts_sys_calloc((size_t)record->count * sizeof *s->rows);
    if (!s->work || !s->rows) {
        ts_device_sums_free(s);
        return ts_error_memory("a profile's device work",
                               record->count * (int64_t)sizeof *s->work);
    }
    memcpy(s->work, record->work, (size_t)record->count * sizeof *s->work);
    s->nwork = select_current(s->work, record->count);
    for (int64_t i = 0; i < s->nwork; i++) {
        p->device.kernels += s->work[i].kernel;
        p->device.copies += !s->work[i].kernel;
    }
    if (s->nwork) {
        qsort(s->work, (size_t)s->nwork, sizeof *s->work, by_launch);
        resolve_graphs(s);
        qsort(s->work, (size_t)s->nwork, sizeof *s->work, by_tag);
    }
    sum_rows(s);
    ts_status status = copy_waits(s, record, &p->device);
    if (status != TS_OK)
        ts_device_sums_free(s);
    return status;
}

void ts_device_sums_free(ts_device_sums *s)
{
    ts_sys_free(s->work);
    ts_sys_free(s->rows);
    ts_sys_free(s->waits);
    *s = (ts_device_sums){0};
}

ts_device_row *ts_device_find(ts_device_sums *s, uint64_t row)
{
    int64_t low = 0, high = s->nrows;
    while (low < high) {
        int64_t mid = (low + high) / 2;
        if (s->rows[mid].row < row)
            low = mid + 1;
        else
            high = mid;
    }
    return low < s->nrows && s->rows[low].row == row ? &s->rows[low] : NULL;
}

void ts_device_claim(ts_device_sums *s, uint64_t hash, ts_entry *e)
{
    ts_device_row *row = ts_device_find(s, hash >> TS_TAG_ROW);
    e->row = hash >> TS_TAG_ROW;
    if (!row || row->claimed)
        return;
    row->claimed = true; /* other threads' tables may have a row with the same hash */
    e->device_ns += row->ns;
    e->kernels += row->kernels;
    e->delay_ns += row->delay_ns;
    e->idle_ns += row->idle_ns;
    e->partial_ns += row->partial_ns;
    e->pageable_ns += row->pageable_ns;
    e->wait_ns += row->wait_ns;
}

/** Adds the busy time from `from` to `to` to the steps that it overlaps. borders: ascending starts
 *  of the p->nsteps steps on the device clock, and the end of the last. */
static void add_busy(ts_profile *p, const int64_t *borders, int64_t from, int64_t to)
{
    int64_t low = 0, high = p->nsteps;
    while (low < high) { /* the first step that ends after `from` */
        int64_t mid = (low + high) / 2;
        if (borders[mid + 1] <= from)
            low = mid + 1;
        else
            high = mid;
    }
    for (; low < p->nsteps && borders[low] < to; low++) {
        int64_t begin = borders[low] > from ? borders[low] : from;
        int64_t end = borders[low + 1] < to ? borders[low + 1] : to;
        p->steps[low].busy_ns += end > begin ? (double)(end - begin) : 0;
    }
}

/** Finds the first work of each step; borders[i] to borders[i + 1] is step i on the device. */
static void find_borders(const ts_device_sums *s, const ts_profile *p, int64_t last,
                         int64_t *borders)
{
    for (int64_t i = 0; i <= p->nsteps; i++)
        borders[i] = INT64_MAX;
    for (int64_t i = 0; i < s->nwork; i++) {
        int64_t step = ts_tag_step(s->work[i].tag);
        if (s->work[i].tag && step <= p->nsteps && s->work[i].begin_ns < borders[step])
            borders[step] = s->work[i].begin_ns;
    }
    borders[p->nsteps] = borders[p->nsteps] < last ? borders[p->nsteps] : last;
    for (int64_t i = p->nsteps; i-- > 0;) /* a step without work is empty */
        borders[i] = borders[i] < borders[i + 1] ? borders[i] : borders[i + 1];
}

ts_status ts_device_timeline(ts_device_sums *s, ts_profile *p)
{
    int64_t last = 0, until = 0;
    if (!s->nwork)
        return TS_OK;
    int64_t *borders = ts_sys_alloc((size_t)(p->nsteps + 1) * sizeof *borders);
    if (!borders)
        return ts_error_memory("a profile's steps", p->nsteps * (int64_t)sizeof *borders);
    qsort(s->work, (size_t)s->nwork, sizeof *s->work, by_begin);
    for (int64_t i = 0; i < s->nwork; i++)
        last = s->work[i].end_ns > last ? s->work[i].end_ns : last;
    find_borders(s, p, last, borders);
    double busy = 0;
    for (int64_t i = 0; i < s->nwork; i++) { /* the union of intervals */
        int64_t from = s->work[i].begin_ns > until ? s->work[i].begin_ns : until;
        int64_t to = s->work[i].end_ns;
        if (to > from) {
            busy += (double)(to - from);
            add_busy(p, borders, from, to);
            until = to;
        }
    }
    p->device.busy_ns = busy;
    p->device.idle_ns = (double)(last - s->work[0].begin_ns) - busy;
    double in_steps = 0, idle = 0;
    for (int64_t i = 0; i < p->nsteps; i++) {
        p->steps[i].idle_ns = (double)(borders[i + 1] - borders[i]) - p->steps[i].busy_ns;
        in_steps += p->steps[i].busy_ns;
        idle += p->steps[i].idle_ns;
    }
    if (in_steps > 0) /* with steps, exclude idle time before the first and after the last step */
        p->device.idle_ns = idle;
    ts_status status = ts_device_idle(s, p, in_steps > 0 ? borders[0] : 0,
                                      in_steps > 0 ? borders[p->nsteps] : last);
    ts_sys_free(borders);
    return status;
}

void ts_device_rest(const ts_device_sums *s, ts_profile *p)
{
    for (int64_t i = 0; i < s->nrows; i++)
        if (!s->rows[i].claimed) {
            p->device.untagged_ns += s->rows[i].ns;
            p->device.untagged += s->rows[i].works;
        }
    double most = 0;
    for (int64_t i = 0; i < p->count; i++)
        if (p->entries[i].wait_ns > most) {
            most = p->entries[i].wait_ns;
            snprintf(p->device.wait_row, sizeof p->device.wait_row, "%s", p->entries[i].call);
        }
}

void ts_device_name_kernel(const ts_device_sums *s, ts_profile *p)
{
    const ts_entry *worst = NULL;
    for (int64_t i = 0; i < p->count; i++) {
        const ts_entry *e = &p->entries[i];
        if (e->kernels && (!worst || e->device_ns - e->roof_ns > worst->device_ns - worst->roof_ns))
            worst = e;
    }
    const char *name = NULL;
    int64_t longest = 0;
    for (int64_t i = 0; i < s->nwork && worst; i++) {
        const ts_device_work *w = &s->work[i];
        if (w->name && ts_tag_row(w->tag) == worst->row && w->end_ns - w->begin_ns > longest) {
            longest = w->end_ns - w->begin_ns;
            name = w->name;
        }
    }
    if (!name || strlen(name) >= sizeof p->device.kernel)
        return;
    snprintf(p->device.kernel, sizeof p->device.kernel, "%s", name);
    for (int64_t i = 0; i < s->nwork; i++)
        p->device.kernel_launches += s->work[i].name && strcmp(s->work[i].name, name) == 0;
}
