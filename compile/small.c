/** @file small.c  Decides which calls of a compiled function run without a recording: those of
 *  small plans, and those of plans on the CPU that are slower than eager calls in a trial. */
// SPDX-License-Identifier: MIT
#include "compile/cache.h"

#include <math.h>
#include <string.h>
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
                             After as many recordings without a new plan, a trial begins */
    SMALL_AGAIN = 256,    /* then one call is recorded after this many without a recording, the next
                             after twice as many, and so on */
    SMALL_MOST = 8192,    /* the largest such number; also the recordings between two trials */
    TRIAL = 16,           /* calls per plan that a trial times with a recording, and without */
    TRIAL_PLANS = 8,      /* plans that make a trial longer */
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

/** True if a trial counts the plan: one of the last SMALL_FIRST recordings had it. */
static bool is_recent(const ts_compiled *c, const ts_exec *e)
{
    return e->seen > c->calls - SMALL_FIRST;
}

/** Begins a trial of the plans of the newest recordings. */
static void begin_trial(ts_compiled *c)
{
    int plans = 0;
    for (int64_t i = 0; i < c->nplans; i++) {
        ts_exec *e = c->plans[i];
        e->fastest[0] = e->fastest[1] = INT64_MAX;
        e->timed = 0;
        plans += is_recent(c, e);
    }
    c->length = TRIAL * (plans < TRIAL_PLANS ? plans : TRIAL_PLANS);
    c->before = 0;
    memset(c->times, 0, sizeof c->times);
    atomic_store(&c->timed, true);
    atomic_store(&c->eager_end, 0);
}

/** True if the calls of the trial would have been faster without a recording. If most of their
 *  plans ran in both ways, it compares the sums over the recorded calls of the fastest time of
 *  their plan; else the mean times, which must differ by more than two standard errors. */
static bool is_eager_faster(const ts_compiled *c)
{
    double eager = 0, recorded = 0;
    int64_t both = 0, all = 0;
    for (int64_t i = 0; i < c->nplans; i++) {
        const ts_exec *e = c->plans[i];
        all += e->timed;
        if (e->fastest[0] == INT64_MAX || e->fastest[1] == INT64_MAX)
            continue;
        both += e->timed;
        eager += (double)e->timed * (double)e->fastest[0];
        recorded += (double)e->timed * (double)e->fastest[1];
    }
    if (2 * both > all)
        return eager < recorded;
    double mean[2], error = 0;
    for (int k = 0; k < 2; k++) {
        double n = (double)(c->times[k].n ? c->times[k].n : 1);
        mean[k] = c->times[k].sum / n;
        error += (c->times[k].squares / n - mean[k] * mean[k]) / n;
    }
    return c->times[0].n && mean[1] - mean[0] > 2 * sqrt(error > 0 ? error : 0);
}

/** Continues the trial: times calls with a recording, then as many without, and compares them. */
static void time_both(ts_compiled *c, int64_t eager)
{
    int64_t turn = c->same - c->trial;
    if (turn == 0) {
        begin_trial(c);
    } else if (turn == c->length) {
        atomic_store(&c->eager_end, eager + c->length);
    } else if (turn > c->length) {
        bool slower = is_eager_faster(c);
        atomic_store(&c->timed, false);
        c->trial = c->same + (slower ? 1 : SMALL_MOST);
        if (slower)
            skip_recordings(c, eager);
        else
            atomic_store(&c->eager_end, c->small_gap = 0);
    }
}

void ts_small_recorded(ts_compiled *c, ts_exec *e, bool made, bool first)
{
    int64_t eager = atomic_load(&c->eager);
    if (first)
        c->small = e && e->small ? c->small + 1 : 0;
    else if (!e || !e->small)
        c->small = 0;
    if (c->opts.graph || c->opts.replay || c->opts.fullgraph)
        return;
    if (made || !e || !(e->tried || e->small)) {
        c->same = 0;
        c->trial = SMALL_FIRST;
        c->tried = -SMALL_FIRST;
        atomic_store(&c->timed, false);
        c->largest = c->fresh;
    }
    if (!first)
        return;
    c->same++;
    c->calls++;
    if (e) {
        e->seen = c->calls;
        c->last = e->number;
    }
    if (e && e->tried)
        c->tried = c->same;
    bool tried = c->tried > c->same - SMALL_FIRST;
    if (c->small >= SMALL_FIRST && !tried) {
        if (eager >= atomic_load(&c->eager_end))
            skip_recordings(c, eager);
    } else if (tried && c->same >= c->trial) {
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
    c->fresh = elements;
    c->largest = ts_max64(c->largest, elements);
    if (!c->small || elements > atomic_load(&c->small_inputs))
        atomic_store(&c->small_inputs, c->largest);
    pthread_mutex_unlock(&c->lock);
}

int64_t ts_small_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/** The plan with this number; NULL: there is none, or it is freed. */
static ts_exec *plan_of(const ts_compiled *c, uint64_t number)
{
    for (int64_t i = 0; i < c->nplans; i++)
        if (number && c->plans[i]->number == number)
            return c->plans[i];
    return NULL;
}

/** The plan that a call without a recording would probably have had: the one that last followed the
 *  plan of the call before, if it had inputs of these sizes; else the only recent plan that had;
 *  NULL: unknown. */
static ts_exec *probable_plan(const ts_compiled *c, uint64_t inputs)
{
    const ts_exec *before = plan_of(c, c->before);
    ts_exec *next = before ? plan_of(c, before->next) : NULL, *only = NULL;
    if (next && next->inputs == inputs)
        return next;
    for (int64_t i = 0; i < c->nplans; i++) {
        ts_exec *e = c->plans[i];
        if (e->inputs != inputs || !is_recent(c, e))
            continue;
        if (only)
            return NULL;
        only = e;
    }
    return only;
}

void ts_small_time(ts_compiled *c, bool recorded, ts_tensor *const *inputs, int ninputs,
                   int64_t begin)
{
    int64_t ns = ts_small_clock() - begin;
    uint64_t hash = (uint64_t)ninputs;
    for (int i = 0; i < ninputs; i++)
        for (int d = 0; inputs[i] != TS_NONE && d < inputs[i]->ndim; d++)
            hash = ts_hash_word(hash, (uint64_t)inputs[i]->sizes[d]);
    pthread_mutex_lock(&c->lock);
    ts_exec *e = recorded ? plan_of(c, c->last) : probable_plan(c, hash),
            *before = plan_of(c, c->before);
    if (e && recorded) {
        e->timed++;
        e->inputs = hash;
        if (before)
            before->next = e->number;
    }
    c->times[recorded].n++;
    c->times[recorded].sum += (double)ns;
    c->times[recorded].squares += (double)ns * (double)ns;
    if (e && ns < e->fastest[recorded])
        e->fastest[recorded] = ns;
    c->before = e ? e->number : 0;
    pthread_mutex_unlock(&c->lock);
}
