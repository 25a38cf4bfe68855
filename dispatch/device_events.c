/**
 * @file device_events.c  Times of device work by events.
 *
 * Events are recorded before and after each call of a kernel on the calling thread's stream of
 * device 0. The time between them is the call's interval; it includes the time in which the device
 * waits for the host inside the call. Times are read in batches, when the device has executed the
 * events long before, so recording does not wait. An interval is shortened by the time between two
 * events without work.
 */
// SPDX-License-Identifier: MIT
#include "dispatch/device_events.h"
#include "core/device.h"
#include "core/error.h"
#include "core/thread.h"
#include "core/alloc.h"

#include <pthread.h>
#include <stdio.h>

enum {
    BATCH = 4096,       /* most intervals whose times are read together */
    WORK_MOST = 1 << 22 /* most intervals of a recording; later ones are lost */
};

typedef struct interval {
    uint64_t tag; /* see device_times.h */
    ts_event *begin, *end;
} interval;

static struct {
    pthread_mutex_t lock;
    const ts_backend *backend;
    interval pending[BATCH]; /* in the order of their ends */
    int npending;
    ts_event *free[2 * BATCH];
    int nfree;
    ts_event *anchor; /* event from which times are measured */
    double anchor_ns, empty_ns; /* time of the anchor since the start of the recording, plus 1;
                                   shortest time between two events without work */
    ts_device_work *work;
    int64_t count, capacity, lost; /* of work: entries, capacity, intervals not stored */
    uint32_t session;          /* number of the recording */
} all = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local struct {
    ts_event *begin; /* event at which the interval in progress begins; NULL: none */
    uint64_t tag;
    uint32_t session;
} own;

/** An event from the free list, or a new one; NULL on failure. */
static ts_event *take(void)
{
    const ts_backend *b = all.backend;
    return all.nfree ? all.free[--all.nfree] : b->event_new(b->state, 0);
}

/** Puts an event into the free list, or frees it if the list is full. NULL-safe. */
static void recycle(ts_event *e)
{
    const ts_backend *b = all.backend;
    if (e && all.nfree < 2 * BATCH)
        all.free[all.nfree++] = e;
    else if (e)
        b->event_free(b->state, 0, e);
}

/** Records an event on the calling thread's stream; NULL on failure. */
static ts_event *now(void)
{
    const ts_backend *b = all.backend;
    ts_device device = {0, 0};
    for (uint8_t k = 0; k < 16; k++)
        device.backend = ts_backend_of((ts_device){k, 0}) == b ? k : device.backend;
    ts_event *e = take();
    if (e && b->event_record(b->state, 0, e, ts_stream_current(device)) != TS_OK) {
        recycle(e);
        e = NULL;
    }
    return e;
}

/** The time of an event after the anchor, in ns; -1 on failure. */
static double time_of(ts_event *e)
{
    const ts_backend *b = all.backend;
    double ms = 0;
    return b->event_elapsed(b->state, 0, all.anchor, e, &ms) == TS_OK ? 1e6 * ms : -1;
}

/** Appends an interval, in ns after the anchor, to all.work. */
static void keep(uint64_t tag, double from, double to)
{
    if (all.count == all.capacity) {
        int64_t wanted = all.capacity ? 2 * all.capacity : BATCH;
        void *grown = wanted <= WORK_MOST
                          ? ts_sys_realloc(all.work, (size_t)wanted * sizeof *all.work)
                          : NULL;
        if (!grown) {
            all.lost++;
            return;
        }
        all.work = grown;
        all.capacity = wanted;
    }
    int64_t begin = (int64_t)(all.anchor_ns + from);
    all.work[all.count++] = (ts_device_work){.tag = tag, .begin_ns = begin,
                                             .end_ns = begin + (int64_t)(to - from - all.empty_ns),
                                             .kernel = true};
}

/** Reads the times of the pending intervals. The last event becomes the anchor, because the
 *  resolution of a difference falls with its length. */
static void read_pending(void)
{
    const ts_backend *b = all.backend;
    for (int i = 0; i < all.npending; i++) {
        interval *p = &all.pending[i];
        bool last = i + 1 == all.npending;
        bool read = b->event_synchronize(b->state, 0, p->end) == TS_OK;
        double from = read ? time_of(p->begin) : -1, to = read ? time_of(p->end) : -1;
        if (from < 0 || to < from)
            all.lost++;
        else if (to - from > all.empty_ns)
            keep(p->tag, from, to);
        recycle(p->begin);
        if (last && to > 0) {
            recycle(all.anchor);
            all.anchor = p->end;
            all.anchor_ns += to;
        } else {
            recycle(p->end);
        }
    }
    all.npending = 0;
}

bool ts_device_events_begin(const ts_backend *b)
{
    if (!b->event_new || !b->event_elapsed)
        return false;
    pthread_mutex_lock(&all.lock);
    all.backend = b;
    all.session++;
    all.npending = 0;
    all.count = all.lost = 0;
    all.anchor_ns = 1; /* not 0, which means that a time is unknown */
    all.empty_ns = 1e9;
    all.anchor = now();
    for (int i = 0; i < 5 && all.anchor; i++) {
        ts_event *e = now(), *f = now();
        double ms = 1e3;
        if (e && f && b->event_synchronize(b->state, 0, f) == TS_OK &&
            b->event_elapsed(b->state, 0, e, f, &ms) == TS_OK && 1e6 * ms < all.empty_ns)
            all.empty_ns = 1e6 * ms;
        recycle(e);
        recycle(f);
    }
    bool works = all.anchor && all.empty_ns < 1e9;
    if (!works)
        recycle(all.anchor);
    pthread_mutex_unlock(&all.lock);
    return works;
}

void ts_device_events_tag(const ts_backend *backend, uint64_t tag, bool kernel)
{
    if (backend != all.backend || ts_is_captured(&ts_tls))
        return; /* in a capture, an event would become a node of the graph */
    pthread_mutex_lock(&all.lock);
    if (own.begin && own.session == all.session) {
        if (all.npending == BATCH)
            read_pending();
        ts_event *end = now();
        if (end)
            all.pending[all.npending++] = (interval){own.tag, own.begin, end};
        else
            all.lost++;
    }
    own.session = all.session;
    own.tag = tag;
    own.begin = kernel ? now() : NULL;
    pthread_mutex_unlock(&all.lock);
}

void ts_device_events_drop(void)
{
    pthread_mutex_lock(&all.lock);
    if (all.npending)
        read_pending();
    all.count = all.lost = 0;
    pthread_mutex_unlock(&all.lock);
}

ts_status ts_device_events_end(const ts_backend *b, ts_device_record *record)
{
    pthread_mutex_lock(&all.lock);
    read_pending();
    recycle(all.anchor);
    all.anchor = NULL;
    while (all.nfree)
        b->event_free(b->state, 0, all.free[--all.nfree]);
    all.session++; /* intervals in progress are not recorded */
    *record = (ts_device_record){.work = all.work, .count = all.count, .lost = all.lost};
    snprintf(record->source, sizeof record->source, "events, gaps included");
    pthread_mutex_unlock(&all.lock);
    return TS_OK;
}
