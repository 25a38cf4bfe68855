/**
 * @file trace.c  Device work in a trace: each kernel, copy and memset at its time on the host's
 * clock, with the call that queued it.
 *
 * The tag of a work names its row (device_times.h). Among the calls of this row, the work belongs
 * to the one that ran when the host queued it; a work of a graph belongs to no single call.
 */
// SPDX-License-Identifier: MIT
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "profile/device.h"

enum { SLACK = 1000 }; /* ns; error of the conversion between the clocks */

static int by_row(const void *a, const void *b)
{
    uint64_t x = ((const ts_trace_row *)a)->row, y = ((const ts_trace_row *)b)->row;
    return (x > y) - (x < y);
}

/** A call of a trace. */
typedef struct start {
    uint64_t row;
    double begin_ns;
    int64_t event; /* its number */
} start;

static int by_start(const void *a, const void *b)
{
    const start *x = a, *y = b;
    if (x->row != y->row)
        return (x->row > y->row) - (x->row < y->row);
    return (x->begin_ns > y->begin_ns) - (x->begin_ns < y->begin_ns);
}

/** The calls of a trace, sorted by row and time. NULL if out of memory. */
static start *sort_calls(const ts_profile *p, const ts_trace_row *rows)
{
    start *all = ts_sys_alloc((size_t)(p->nevents + 1) * sizeof *all);
    for (int64_t i = 0; all && i < p->nevents; i++)
        all[i] = (start){rows[p->events[i].event.row].row, p->events[i].begin_ns, i};
    if (all && p->nevents > 1)
        qsort(all, (size_t)p->nevents, sizeof *all, by_start);
    return all;
}

/** The call of a row that ran at `ns`, or -1. */
static int64_t call_at(const ts_profile *p, const start *all, uint64_t row, double ns)
{
    int64_t low = 0, high = p->nevents;
    const start last = {row, ns + SLACK, 0};
    while (low < high) { /* the first call after `last` */
        int64_t mid = (low + high) / 2;
        if (by_start(&all[mid], &last) <= 0)
            low = mid + 1;
        else
            high = mid;
    }
    if (!low || all[low - 1].row != row)
        return -1;
    const ts_call_event *c = &p->events[all[low - 1].event];
    double end = c->begin_ns + (double)((int64_t)c->event.leave[0] << c->event.shift) * p->tick_ns;
    return ns <= end + SLACK ? all[low - 1].event : -1;
}

static int by_address(const void *a, const void *b)
{
    const ts_kernel_name *x = a, *y = b;
    return ((uintptr_t)x->from > (uintptr_t)y->from) - ((uintptr_t)x->from < (uintptr_t)y->from);
}

/** Copies the kernels' names, each once, to p->kernels, sorted by address. */
static bool copy_names(const ts_device_sums *s, ts_profile *p)
{
    p->kernels = ts_sys_calloc((size_t)(s->nwork + 1) * sizeof *p->kernels);
    if (!p->kernels)
        return false;
    int64_t n = 0;
    for (int64_t i = 0; i < s->nwork; i++)
        if (s->work[i].name)
            p->kernels[n++].from = s->work[i].name;
    if (n > 1)
        qsort(p->kernels, (size_t)n, sizeof *p->kernels, by_address);
    for (int64_t i = 0; i < n; i++) {
        if (p->nkernels && p->kernels[p->nkernels - 1].from == p->kernels[i].from)
            continue;
        ts_kernel_name *k = &p->kernels[p->nkernels];
        k->from = p->kernels[i].from;
        size_t bytes = strlen(k->from) + 1;
        if (!(k->text = ts_sys_alloc(bytes)))
            return false;
        memcpy(k->text, k->from, bytes);
        p->nkernels++;
    }
    return true;
}

ts_status ts_trace_works(const ts_device_sums *s, ts_profile *p, ts_trace_row *rows,
                         int64_t first_tick)
{
    const ts_device_clock *c = ts_device_times_clock();
    if (!s->nwork || !p->events || !c || c->ns[1] <= c->ns[0])
        return TS_OK;
    double rate = (double)(c->ticks[1] - c->ticks[0]) / (double)(c->ns[1] - c->ns[0]);
    start *calls = sort_calls(p, rows);
    p->works = ts_sys_alloc((size_t)s->nwork * sizeof *p->works);
    if (!calls || !p->works || !copy_names(s, p)) {
        ts_sys_free(calls);
        return ts_error_memory("a trace's device work", s->nwork * (int64_t)sizeof *p->works);
    }
    if (p->ncalls > 1)
        qsort(rows, (size_t)p->ncalls, sizeof *rows, by_row);
    for (int64_t i = 0; i < s->nwork; i++) {
        const ts_device_work *w = &s->work[i];
        const ts_trace_row wanted = {.row = ts_tag_row(w->tag)};
        const ts_kernel_name name = {.from = w->name};
        const ts_trace_row *row = wanted.row && p->ncalls
                                      ? bsearch(&wanted, rows, (size_t)p->ncalls, sizeof *rows,
                                                by_row)
                                      : NULL;
        const ts_kernel_name *kernel =
            w->name ? bsearch(&name, p->kernels, (size_t)p->nkernels, sizeof name, by_address)
                    : NULL;
        double begin = (double)(c->ticks[0] - first_tick) + (double)(w->begin_ns - c->ns[0]) * rate;
        double called = begin - (double)(w->begin_ns - w->called_ns) * rate;
        p->works[p->nworks++] = (ts_work_event){
            .begin_ns = begin * p->tick_ns,
            .ns = (double)(w->end_ns - w->begin_ns),
            .delay_ns = w->called_ns ? (double)(w->begin_ns - w->called_ns) : -1,
            .kernel = kernel ? kernel->text : NULL,
            .call = row ? row->call : -1,
            .scope = row ? row->scope : 0,
            .event = row && w->called_ns
                         ? call_at(p, calls, wanted.row, called * p->tick_ns)
                         : -1,
            .device = w->device};
    }
    ts_sys_free(calls);
    return TS_OK;
}
