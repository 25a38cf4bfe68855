/**
 * @file memory.c  The timeline of tensors' memory by owner, its peak, and the ops and scopes whose
 * tensors make up the peak.
 *
 * The log (dispatch/memory_log.h) has one life per storage: its allocation and its release. The
 * study walks both in the order of their times. If tensors were allocated on a device, the study
 * covers that device's backend; otherwise it covers the CPU.
 */
// SPDX-License-Identifier: MIT
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/device.h"
#include "core/error.h"
#include "dispatch/timers.h"
#include "profile/profile.h"

const char *const ts_owner_names[TS_OWNERS] = {"temporary", "saved",     "input",
                                               "gradient",  "optimizer", "parameter"};

void ts_prof_hold(ts_tensor *t, ts_hold hold)
{
    ts_storage *s = t && !ts_tensor_is_dead(t) ? t->storage : NULL;
    if (s)
        ts_storage_own(s, hold == TS_HOLD_INPUT ? TS_OWNER_INPUT : TS_OWNER_OPTIMIZER);
}

static double before_recording[16]; /* bytes in use on the first device, by backend */

void ts_memory_begin(void)
{
    for (uint8_t k = 0; k < 16; k++) {
        const ts_backend *b = ts_backend_of((ts_device){k, 0});
        ts_memory_stats stats = {0};
        if (b && b->memory_stats && b->memory_stats(b->state, 0, &stats) != TS_OK)
            ts_error_clear();
        before_recording[k] = (double)stats.in_use;
    }
    before_recording[TS_KEY_CPU] = (double)ts_memory_get_stats().in_use;
}

/** The allocation or the release of a storage. */
typedef struct change {
    int64_t tick;
    int64_t life; /* index in study.lives */
    bool birth;
} change;

static int by_tick(const void *a, const void *b)
{
    const change *x = a, *y = b;
    if (x->tick != y->tick)
        return (x->tick > y->tick) - (x->tick < y->tick);
    return (int)x->birth - (int)y->birth;
}

typedef struct study {
    ts_memory_part *m;
    const ts_memory_life *lives;
    change *changes; /* of one backend, sorted by tick, releases first */
    int64_t nchanges, begun; /* begun: tick at which the log began */
    double tick_ns;
} study;

static double sum_of(const double *bytes)
{
    double sum = 0;
    for (int i = 0; i < TS_OWNERS; i++)
        sum += bytes[i];
    return sum;
}

/** Walks the changes. Divides the time into TS_MEMORY_POINTS equal parts and sets m->points to the
 *  largest state in each part that has changes; sets the peak. Returns the tick of the peak. */
static int64_t walk(const study *u)
{
    ts_memory_part *m = u->m;
    double now[TS_OWNERS] = {0};
    int64_t at = u->begun, last = u->changes[u->nchanges - 1].tick;
    double part = (double)(last - u->begun + 1) / TS_MEMORY_POINTS;
    for (int64_t i = 0; i < u->nchanges; i++) {
        const change *c = &u->changes[i];
        const ts_memory_life *l = &u->lives[c->life];
        now[l->owner] += c->birth ? (double)l->bytes : -(double)l->bytes;
        int64_t point = (int64_t)((double)(c->tick - u->begun) / part);
        point = point < TS_MEMORY_POINTS ? point : TS_MEMORY_POINTS - 1;
        ts_memory_point *p = m->npoints ? &m->points[m->npoints - 1] : NULL;
        double ns = (double)(c->tick - u->begun) * u->tick_ns;
        bool next = !p || (int64_t)(p->ns / u->tick_ns / part) != point;
        if (next && m->npoints < TS_MEMORY_POINTS)
            p = &m->points[m->npoints++];
        if (next || sum_of(now) > sum_of(p->bytes)) {
            p->ns = ns;
            memcpy(p->bytes, now, sizeof now);
        }
        if (sum_of(now) > m->peak_bytes) {
            m->peak_bytes = sum_of(now);
            m->peak_ns = ns;
            memcpy(m->peak, now, sizeof now);
            at = c->tick;
        }
    }
    return at;
}

static int by_bytes(const void *a, const void *b)
{
    double x = ((const ts_memory_holder *)a)->bytes, y = ((const ts_memory_holder *)b)->bytes;
    return (x < y) - (x > y);
}

/** Sums the lives at tick `peak` by op, scope and owner, and stores the largest sums in m->holders.
 *  Error: TS_ERR_MEMORY. */
static ts_status find_holders(const study *u, int64_t count, uint8_t device, int64_t peak)
{
    ts_memory_holder *all = NULL;
    int64_t n = 0, capacity = 0;
    for (int64_t i = 0; i < count; i++) {
        const ts_memory_life *l = &u->lives[i];
        char scope[TS_SCOPE_TEXT];
        int64_t k = 0;
        if (l->device != device || l->allocated > peak || (l->freed && l->freed <= peak))
            continue;
        const char *op = l->op == TS_ROW_OUTSIDE ? "(program)" : ts_row_op(l->op);
        ts_scope_path(scope, sizeof scope, l->scope);
        while (k < n && (all[k].owner != l->owner || strcmp(all[k].scope, scope) != 0 ||
                         strcmp(all[k].op, op) != 0))
            k++;
        if (k == capacity) {
            capacity = 2 * capacity + 64;
            ts_memory_holder *grown = ts_sys_realloc(all, (size_t)capacity * sizeof *grown);
            if (!grown) {
                ts_sys_free(all);
                return ts_error_memory("a profile's memory", capacity * (int64_t)sizeof *grown);
            }
            all = grown;
        }
        if (k == n) {
            all[n] = (ts_memory_holder){.owner = l->owner};
            snprintf(all[n].op, sizeof all[n].op, "%.47s", op);
            memcpy(all[n++].scope, scope, sizeof scope);
        }
        all[k].bytes += (double)l->bytes;
        all[k].blocks++;
    }
    if (n > 1)
        qsort(all, (size_t)n, sizeof *all, by_bytes);
    u->m->nholders = n < TS_MEMORY_HOLDERS ? n : TS_MEMORY_HOLDERS;
    if (n)
        memcpy(u->m->holders, all, (size_t)u->m->nholders * sizeof *all);
    ts_sys_free(all);
    return TS_OK;
}

/** Bytes of memory of a backend's first device; 0: unknown. */
static double capacity_of(uint8_t device)
{
    const ts_backend *b = ts_backend_of((ts_device){device, 0});
    if (device != TS_KEY_CPU)
        return b && b->memory_capacity ? (double)b->memory_capacity(b->state, 0) : 0;
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (double)pages * (double)page : 0;
}

ts_status ts_memory_study(ts_profile *p, int64_t first_tick, bool devices)
{
    int64_t count, lost;
    study u = {.m = &p->memory, .tick_ns = p->tick_ns};
    uint8_t device = TS_KEY_CPU;
    u.lives = ts_memory_lives(&count, &lost, &u.begun);
    for (int64_t i = 0; i < count; i++)
        device = u.lives[i].device != TS_KEY_CPU ? u.lives[i].device : device;
    if (!count)
        return TS_OK;
    u.changes = ts_sys_alloc((size_t)count * 2 * sizeof *u.changes);
    if (!u.changes)
        return ts_error_memory("a profile's memory", count * 2 * (int64_t)sizeof *u.changes);
    for (int64_t i = 0; i < count; i++) {
        if (u.lives[i].device != device)
            continue;
        u.changes[u.nchanges++] = (change){u.lives[i].allocated, i, true};
        if (u.lives[i].freed)
            u.changes[u.nchanges++] = (change){u.lives[i].freed, i, false};
    }
    qsort(u.changes, (size_t)u.nchanges, sizeof *u.changes, by_tick);
    snprintf(u.m->device, sizeof u.m->device, "%.31s", ts_device_name((ts_device){device, 0}));
    u.m->capacity = devices || device == TS_KEY_CPU ? capacity_of(device) : 0;
    u.m->lost = lost;
    u.m->shift_ns = (double)(u.begun - first_tick) * p->tick_ns;
    u.m->before = before_recording[device % 16];
    ts_status status = find_holders(&u, count, device, walk(&u));
    ts_sys_free(u.changes);
    return status;
}
