/** @file small.c  Decides which calls of a compiled function run without a recording: those of
 *  small plans, and those of plans on the CPU that are slower than eager calls in a trial. */
// SPDX-License-Identifier: MIT
#include "compile/cache.h"

#include <time.h>

enum {
    SMALL_CALL = 1 << 16, /* a plan is small if its calls move at most this many bytes on average.
                             If its groups save much, a trial decides */
    TINY_CALL = 1 << 14,  /* no trial for plans whose calls move at most this many */
    RECORDED = 1 << 12,   /* ... or if it drops no call, and its groups save at most this many bytes
                             per call: about what moves in the time that a recorded call takes */
    CACHED = 1 << 22,     /* a plan whose calls move at most this many bytes finds most of them in a
                             cache, where four times as many move in that time */
    SMALL_RUN = 10,       /* a recording and the run of its plan take as long as this many calls */
    SMALL_FIRST = 64,     /* after this many small plans in a row, calls run without a recording.
                             After as many runs of one other plan, a trial begins */
    SMALL_AGAIN = 256,    /* then one call is recorded after this many without a recording, the next
                             after twice as many, and so on */
    SMALL_MOST = 8192,    /* the largest such number; also the recordings between two trials */
    TRIAL = 16,           /* calls that a trial times with a recording, and without */
    TRIED = 1 << 26       /* plans that move more bytes get no trial */
};

static bool is_on_cpu(const ts_exec *e)
{
    for (uint32_t i = 0; i < e->nstorages; i++)
        if (e->storages[i].device.backend != TS_KEY_CPU)
            return false;
    return true;
}

void ts_small_set(ts_exec *e)
{
    bool cpu = is_on_cpu(e), drops = e->graph->nodes.count > e->nnodes || e->nrecomputed;
    int64_t saved = e->bytes - e->fused_bytes, recorded = e->bytes <= CACHED ? 4 * RECORDED
                                                                             : RECORDED;
    bool near = e->bytes <= (int64_t)e->nnodes * SMALL_CALL;
    bool saves = saved > (SMALL_RUN + (int64_t)e->nnodes) * recorded;
    e->small = cpu && (near || !(drops || saves));
    e->tried = cpu && !e->nrecomputed &&
               (near ? saves && e->bytes > (int64_t)e->nnodes * TINY_CALL
                     : !e->small && e->bytes <= TRIED);
}

/** Lets more calls run without a recording, each time twice as many. */
static void skip_recordings(ts_compiled *c, int64_t eager)
{
    c->small_gap = c->small_gap ? ts_min64(2 * c->small_gap, SMALL_MOST) : SMALL_AGAIN;
    atomic_store(&c->eager_end, eager + c->small_gap);
}

/** Continues the trial of a plan that ran c->same times in a row: times TRIAL recorded calls, then
 *  TRIAL calls without a recording, and compares the fastest of both. */
static void time_both(ts_compiled *c, int64_t eager)
{
    int64_t turn = c->same - c->trial;
    if (turn == 0) {
        atomic_store(&c->fastest[0], INT64_MAX);
        atomic_store(&c->fastest[1], INT64_MAX);
        atomic_store(&c->timed, true);
        atomic_store(&c->eager_end, 0);
    } else if (turn == TRIAL) {
        atomic_store(&c->eager_end, eager + TRIAL);
    } else if (turn > TRIAL) {
        bool slower = atomic_load(&c->fastest[0]) < atomic_load(&c->fastest[1]);
        atomic_store(&c->timed, false);
        c->trial = c->same + (slower ? 1 : SMALL_MOST);
        if (slower)
            skip_recordings(c, eager);
        else
            atomic_store(&c->eager_end, c->small_gap = 0);
    }
}

void ts_small_recorded(ts_compiled *c, const ts_exec *e)
{
    int64_t eager = atomic_load(&c->eager);
    c->small = e && e->small ? c->small + 1 : 0;
    if (c->opts.graph || c->opts.replay || c->opts.fullgraph)
        return;
    if (!e || e != c->last) {
        c->same = 0;
        c->trial = SMALL_FIRST;
        atomic_store(&c->timed, false);
    }
    c->last = e;
    c->same++;
    if (c->small >= SMALL_FIRST && !(e->tried && c->same >= SMALL_FIRST)) {
        if (eager >= atomic_load(&c->eager_end))
            skip_recordings(c, eager);
    } else if (e && e->tried && c->same >= c->trial) {
        time_both(c, eager);
    } else {
        atomic_store(&c->eager_end, c->small_gap = 0);
    }
}

static int64_t elements_of(ts_tensor *const *inputs, int ninputs)
{
    int64_t elements = 0;
    for (int i = 0; i < ninputs; i++)
        elements += inputs[i] != TS_NONE ? inputs[i]->numel : 0;
    return elements;
}

bool ts_small_is_eager(ts_compiled *c, ts_tensor *const *inputs, int ninputs)
{
    int64_t end = atomic_load_explicit(&c->eager_end, memory_order_relaxed);
    if (!end || elements_of(inputs, ninputs) >
                    atomic_load_explicit(&c->small_inputs, memory_order_relaxed))
        return false;
    if (TS_LIKELY(atomic_fetch_add_explicit(&c->eager, 1, memory_order_relaxed) < end))
        return true;
    atomic_fetch_sub_explicit(&c->eager, 1, memory_order_relaxed);
    return false;
}

void ts_small_count(ts_compiled *c, ts_tensor *const *inputs, int ninputs)
{
    int64_t elements = elements_of(inputs, ninputs);
    pthread_mutex_lock(&c->lock);
    c->stats.calls++;
    if (!c->small || elements > atomic_load(&c->small_inputs))
        atomic_store(&c->small_inputs, elements);
    pthread_mutex_unlock(&c->lock);
}

int64_t ts_small_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void ts_small_time(ts_compiled *c, bool recorded, int64_t begin)
{
    int64_t ns = ts_small_clock() - begin, least = atomic_load(&c->fastest[recorded]);
    while (ns < least && !atomic_compare_exchange_weak(&c->fastest[recorded], &least, ns))
        ;
}
