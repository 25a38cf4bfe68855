/**
 * @file device.c  Device work in a profile: joined to rows and steps by tags, and a timeline of
 * busy and idle time.
 *
 * A step on the devices lasts from the first work that was queued in it to the first work that was
 * queued in the next step. It is busy while at least one kernel, copy or memset runs.
 */
// SPDX-License-Identifier: MIT
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "profile/device.h"

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

/** Removes work from before the last reset. Kept are work with a current tag, and work without a
 *  tag that begins no earlier than the first of these. Returns the number kept. */
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

/** Sums the work, sorted by tag, per row. */
static void sum_rows(ts_device_sums *s)
{
    for (int64_t i = 0; i < s->nwork; i++) {
        const ts_device_work *w = &s->work[i];
        uint64_t row = ts_tag_row(w->tag);
        if (!s->nrows || s->rows[s->nrows - 1].row != row)
            s->rows[s->nrows++] = (ts_device_row){.row = row};
        ts_device_row *r = &s->rows[s->nrows - 1];
        r->ns += (double)(w->end_ns - w->begin_ns);
        r->kernels += w->kernel;
        r->works++;
    }
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
    s->rows = ts_sys_alloc((size_t)record->count * sizeof *s->rows);
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
    if (s->nwork)
        qsort(s->work, (size_t)s->nwork, sizeof *s->work, by_tag);
    sum_rows(s);
    return TS_OK;
}

void ts_device_sums_free(ts_device_sums *s)
{
    ts_sys_free(s->work);
    ts_sys_free(s->rows);
    *s = (ts_device_sums){0};
}

void ts_device_claim(ts_device_sums *s, uint64_t hash, ts_entry *e)
{
    int64_t low = 0, high = s->nrows;
    uint64_t row = hash >> TS_TAG_ROW;
    while (low < high) {
        int64_t mid = (low + high) / 2;
        if (s->rows[mid].row < row)
            low = mid + 1;
        else
            high = mid;
    }
    if (low == s->nrows || s->rows[low].row != row || s->rows[low].claimed)
        return;
    s->rows[low].claimed = true; /* rows of other threads may have the same hash */
    e->device_ns += s->rows[low].ns;
    e->kernels += s->rows[low].kernels;
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
    for (int64_t i = 0; i < s->nrows; i++)
        if (!s->rows[i].claimed) {
            p->device.untagged_ns += s->rows[i].ns;
            p->device.untagged += s->rows[i].works;
        }
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
    if (in_steps > 0) { /* with steps, exclude work before the first and after the last step */
        p->device.busy_ns = in_steps;
        p->device.idle_ns = idle;
    }
    ts_sys_free(borders);
    return TS_OK;
}
