/** @file loader.c  Order of samples, threads that prepare batches ahead, copies to a device. */
// SPDX-License-Identifier: MIT
#include "nn/nn.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/** A prepared batch. */
typedef struct prepared {
    bool filled;
    ts_loader_state at;
    ts_tensor *fields[TS_SAMPLE_FIELDS]; /* owned */
    ts_status status;                    /* TS_OK, or why there are no fields */
    char message[1024], hint[256];
} prepared;

enum { MOST_WORKERS = 256, MOST_AHEAD = 1024 };

struct ts_loader {
    ts_loader_opts opts;
    ts_nn_source source;
    int64_t batches;
    ts_loader_state next; /* state of the batch to return next */
    ts_stream *copies; /* for copies to the device; NULL: the device is the CPU */
    ts_event *copied;  /* recorded after the copy of `staged` */
    prepared staged;   /* the batch to return next, on the loader's device */
    prepared copying;  /* pinned source of `staged`, in use until `copied` is complete */
    ts_nn_pins pins;
    /* shared with the threads: batches taken .. claimed - 1 are ready or in preparation */
    pthread_t *threads;
    int nthreads;
    pid_t process; /* the process that started the threads */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    prepared *ring; /* opts.ahead entries; batch number k is entry k % opts.ahead */
    int64_t taken, claimed;
    ts_loader_state ahead; /* state of the batch to claim next */
    uint64_t turn; /* incremented by ts_loader_set_state(); drops batches of earlier turns */
    bool stop;
};

/* --------------------------------------------------------------------------- the order ---- */

uint64_t ts_nn_mix(uint64_t x)
{
    /* Stafford's Mix13, the finalizer of SplitMix64 */
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/**
 * Element i of a pseudorandom permutation of [0, n): a Feistel network over an even number of bits,
 * repeated until the value is below n (cycle walking). It needs no table; its expected time is
 * constant.
 */
static int64_t permute(int64_t i, int64_t n, uint64_t key)
{
    int bits = 2;
    while (bits < 64 && (uint64_t)1 << bits < (uint64_t)n)
        bits += 2;
    int half = bits / 2;
    uint64_t mask = ((uint64_t)1 << half) - 1, x = (uint64_t)i;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (int round = 0; round < 4; round++) {
            uint64_t swap =
                left ^ (ts_nn_mix(right + key + (uint64_t)round * 0x9e3779b97f4a7c15ull) & mask);
            left = right;
            right = swap;
        }
        x = left << half | right;
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}

int64_t ts_nn_drawn(const ts_nn_draw *d, int64_t i)
{
    return d->in_order ? d->first + i : permute(d->first + i, d->samples, d->key);
}

/** A fraction of 1 gives exactly `all`, also if a double cannot represent it. */
int64_t ts_nn_part(int64_t all, double fraction)
{
    return fraction >= 1 ? all : (int64_t)((double)all * fraction);
}

static ts_loader_state after(const ts_loader *l, ts_loader_state s)
{
    s.index++;
    if (s.index >= l->batches)
        s = (ts_loader_state){s.epoch + 1, 0};
    return s;
}

/* -------------------------------------------------------------------------- preparation ---- */

static bool on_cpu(const ts_loader *l) { return l->opts.device.backend == 0; }

ts_tensor *ts_nn_batch_memory(const ts_nn_draw *d, const int64_t *sizes, int ndim, ts_dtype dtype)
{
    return d->pins ? ts_nn_pins_take(d->pins, sizes, ndim, dtype, d->device)
                   : ts_empty_on(sizes, ndim, dtype, TS_DEVICE_CPU);
}

/** Frees a batch and makes its pinned memory available again. */
static void release(ts_loader *l, prepared *r)
{
    for (int f = 0; f < TS_SAMPLE_FIELDS; f++) {
        if (!on_cpu(l))
            ts_nn_pins_give(&l->pins, r->fields[f]);
        ts_release(r->fields[f]);
    }
    *r = (prepared){0};
}

/** Makes the batch `at` in *r. If r->status is not TS_OK, the calling thread's error record has the
 *  message. */
static void prepare(ts_loader *l, ts_loader_state at, prepared *r)
{
    TS_SCOPE;
    TS_NO_GRAD;
    ts_rng_state rng = ts_rng_get_state();
    ts_device device = ts_default_device();
    ts_tensor *fields[TS_SAMPLE_FIELDS] = {NULL};
    ts_nn_draw d = {.first = at.index * l->opts.batch, .n = l->opts.batch,
                    .samples = l->source.samples,
                    .key = ts_nn_mix(l->opts.seed ^ ts_nn_mix((uint64_t)at.epoch + 1)),
                    .in_order = l->opts.in_order, .device = l->opts.device,
                    .pins = on_cpu(l) ? NULL : &l->pins};
    if (d.n > d.samples - d.first)
        d.n = d.samples - d.first;
    *r = (prepared){.filled = true, .at = at};
    ts_set_default_device(TS_DEVICE_CPU);
    r->status = l->source.make(l->source.payload, &d, fields);
    for (int f = 0; f < l->source.nfields && r->status == TS_OK; f++)
        r->fields[f] = ts_retain(fields[f]);
    ts_set_default_device(device);
    ts_rng_set_state(rng);
}

static void *work(void *arg)
{
    ts_loader *l = arg;
    prepared r;
    pthread_mutex_lock(&l->lock);
    while (!l->stop) {
        if (l->claimed - l->taken >= l->opts.ahead) {
            pthread_cond_wait(&l->changed, &l->lock);
            continue;
        }
        int64_t number = l->claimed++;
        ts_loader_state at = l->ahead;
        l->ahead = after(l, at);
        uint64_t turn = l->turn;
        pthread_mutex_unlock(&l->lock);
        ts_error_clear(); /* a failure of an earlier batch was passed on */
        {
            TS_PROF_SCOPE("loader thread");
            prepare(l, at, &r);
        }
        if (r.status != TS_OK) { /* the thread that takes the batch has another error record */
            snprintf(r.message, sizeof r.message, "%s", ts_error_message());
            snprintf(r.hint, sizeof r.hint, "%s", ts_error_hint());
        }
        pthread_mutex_lock(&l->lock);
        if (turn == l->turn) {
            l->ring[number % l->opts.ahead] = r;
            pthread_cond_broadcast(&l->changed);
        } else {
            release(l, &r);
        }
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* ------------------------------------------------------------------------ open and close ---- */

ts_status ts_nn_check_loader(ts_check_place at, const ts_loader_opts *o)
{
    const struct {
        const char *name, *expected;
        bool holds;
        ts_scalar got;
    } rules[] = {
        {"opts.batch", "at least 1", o->batch >= 1, TS_SCALAR(o->batch)},
        {"opts.from", "0 to opts.to", o->from >= 0 && o->from <= o->to, TS_SCALAR(o->from)},
        {"opts.to", "at most 1", o->to <= 1, TS_SCALAR(o->to)},
        {"opts.workers", "0 to 256", o->workers >= 0 && o->workers <= MOST_WORKERS,
         TS_SCALAR(o->workers)},
        {"opts.ahead", "0 to 1,024", o->ahead >= 0 && o->ahead <= MOST_AHEAD, TS_SCALAR(o->ahead)},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (!rules[i].holds)
            return ts_check_refuse(at, rules[i].name, rules[i].expected, rules[i].got);
    bool meta = o->device.backend == TS_DEVICE_META.backend;
    if (meta || (int)o->device.index >= ts_device_count(o->device.backend))
        return ts_error_set(TS_ERR_DEVICE, "%s: argument 'device': expected a device %s, got %s",
                            at.function + (strncmp(at.function, "ts_", 3) ? 0 : 3),
                            meta ? "with memory" : "that exists", ts_device_name(o->device));
    return TS_OK;
}

/** Starts the threads. If none can start, batches are prepared in the caller's thread. */
static void start(ts_loader *l)
{
    if (l->opts.no_thread)
        return;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the loader's threads block all signals */
    l->process = getpid();
    for (int i = 0; i < l->opts.workers; i++)
        l->nthreads += pthread_create(&l->threads[l->nthreads], NULL, work, l) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/** Initialises lock and condition. Waits use the monotonic clock, which does not jump when the
 *  system time is set. */
static void make_lock(ts_loader *l)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

/** In a forked child, drops the prepared batches and makes a new lock. The child has none of the
 *  loader's threads, and one of them may have held the lock, so the child prepares batches in the
 *  caller's thread. */
static void detach_after_fork(ts_loader *l)
{
    if (!l->nthreads || l->process == getpid())
        return;
    l->nthreads = 0;
    pthread_mutex_init(&l->pins.lock, NULL);
    memset(l->ring, 0, (size_t)l->opts.ahead * sizeof *l->ring);
    make_lock(l);
}

ts_loader *ts_nn_loader_new(const ts_loader_opts *o, const ts_nn_source *source)
{
    ts_loader *l = ts_nn_alloc(1, sizeof *l, "a loader");
    if (!l) {
        source->close(source->payload);
        free(source->path);
        return NULL;
    }
    l->opts = *o;
    l->source = *source;
    l->opts.workers = o->workers ? o->workers : 1;
    l->opts.ahead = o->ahead ? o->ahead : 2 * l->opts.workers;
    l->batches = source->samples / o->batch + (source->samples % o->batch && !o->drop_last);
    make_lock(l);
    l->threads = ts_nn_alloc(l->opts.workers, sizeof *l->threads, "a loader's threads");
    l->ring = l->threads ? ts_nn_alloc(l->opts.ahead, sizeof *l->ring, "batches") : NULL;
    /* batches in the ring, in preparation, in `staged` and in `copying` */
    int pins = source->nfields * (l->opts.ahead + l->opts.workers + 2);
    if (!l->ring || (!on_cpu(l) && (ts_nn_pins_begin(&l->pins, pins) != TS_OK ||
                                    ts_stream_new(o->device, &l->copies) != TS_OK ||
                                    ts_event_new(o->device, &l->copied) != TS_OK))) {
        ts_loader_close(l);
        return NULL;
    }
    start(l);
    return l;
}

void ts_loader_close(ts_loader *l)
{
    if (!l)
        return;
    detach_after_fork(l);
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    for (int i = 0; i < l->nthreads; i++)
        pthread_join(l->threads[i], NULL);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->changed);
    for (int i = 0; i < l->opts.ahead && l->ring; i++)
        release(l, &l->ring[i]);
    if (l->copies)
        ts_stream_synchronize(l->opts.device, l->copies);
    release(l, &l->staged);
    release(l, &l->copying);
    ts_nn_pins_end(&l->pins);
    ts_event_free(l->opts.device, l->copied);
    ts_stream_free(l->opts.device, l->copies);
    l->source.close(l->source.payload);
    free(l->source.path);
    free(l->ring);
    free(l->threads);
    free(l);
}

/* -------------------------------------------------------------------------------- batches ---- */

/** Waits until the next batch is prepared. False if opts.stop was set and the batch is not finished
 *  half a second later. */
static bool wait_for_batch(ts_loader *l)
{
    enum { TENTHS = 5 };
    int stopped = 0;
    const prepared *r = &l->ring[l->taken % l->opts.ahead];
    while (!r->filled && !l->opts.stop)
        pthread_cond_wait(&l->changed, &l->lock);
    for (; !r->filled && stopped < TENTHS; stopped += *l->opts.stop != 0) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += 100000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&l->changed, &l->lock, &until);
    }
    return r->filled;
}

/** Moves the next batch from the ring to *r. Without `wait`, leaves *r empty (r->filled is false)
 *  unless the batch is ready and has no error. */
static ts_status take(ts_loader *l, prepared *r, bool wait)
{
    *r = (prepared){0};
    if (!l->nthreads) {
        if (wait)
            prepare(l, l->next, r);
        return r->status;
    }
    pthread_mutex_lock(&l->lock);
    prepared *head = &l->ring[l->taken % l->opts.ahead];
    bool there = wait ? wait_for_batch(l) : head->filled && head->status == TS_OK;
    if (there) {
        *r = *head;
        *head = (prepared){0};
        l->taken++;
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    if (!there && wait)
        return ts_error_set(TS_ERR_STATE, "loader_next: interrupted while waiting for %s%s%s",
                            l->source.path ? "'" : "a batch", l->source.path ? l->source.path : "",
                            l->source.path ? "'" : "");
    return r->status == TS_OK ? TS_OK
                              : ts_error_set_hint(r->status, r->hint[0] ? r->hint : NULL, "%s",
                                                  r->message);
}

/** Queues copies of r's fields to the device on the loader's stream and puts the copies into r. */
static ts_status copy_to_device(ts_loader *l, prepared *r)
{
    TS_SCOPE;
    ts_device device = l->opts.device;
    ts_stream *before = ts_stream_current(device);
    if (l->copying.filled) /* waits for the previous batch's copy, which was queued a step ago */
        TS_TRY(ts_event_synchronize(device, l->copied));
    release(l, &l->copying);
    l->copying = *r;
    *r = (prepared){.filled = true, .at = l->copying.at};
    TS_TRY(ts_stream_use(device, l->copies));
    ts_status status = TS_OK;
    for (int f = 0; f < l->source.nfields && status == TS_OK; f++)
        status = TS_STATUS_OF(
            r->fields[f] = ts_retain(ts_to_device(l->copying.fields[f], device)));
    if (status == TS_OK)
        status = ts_event_record(device, l->copied);
    if (status != TS_OK) { /* copies may be queued without the event */
        ts_stream_synchronize(device, l->copies);
        release(l, &l->copying);
    }
    ts_stream_use(device, before);
    return status;
}

/** Moves the next batch to `staged`, and copies it to the device if that is not the CPU. */
static ts_status stage(ts_loader *l, bool wait)
{
    ts_status status = l->staged.filled ? TS_OK : take(l, &l->staged, wait);
    if (status == TS_OK && l->staged.filled && !on_cpu(l))
        status = copy_to_device(l, &l->staged);
    if (status != TS_OK)
        release(l, &l->staged);
    return status;
}

/** Moves the staged batch to the caller's scope. */
static ts_status deliver(ts_loader *l, ts_batch *batch)
{
    prepared *r = &l->staged;
    if (!on_cpu(l)) {
        TS_TRY(ts_event_wait(l->opts.device, l->copied));
        for (int f = 0; f < l->source.nfields; f++)
            TS_TRY(ts_record_stream(r->fields[f]));
    }
    *batch = (ts_batch){.epoch = r->at.epoch, .index = r->at.index};
    for (int f = 0; f < TS_SAMPLE_FIELDS; f++) {
        batch->fields[f] = r->fields[f] ? ts_adopt(r->fields[f]) : TS_NONE;
        if (r->fields[f])
            ts_prof_hold(r->fields[f], TS_HOLD_INPUT);
    }
    batch->x = batch->fields[0];
    batch->y = batch->fields[1];
    *r = (prepared){0};
    return TS_OK;
}

ts_status ts_loader_next(ts_loader *loader, ts_batch *batch)
{
    TS_TRY(TS_CHECK_OBJECTS(loader));
    TS_TRY(TS_CHECK_POINTERS(batch));
    TS_PROF_SCOPE("data");
    ts_loader *l = loader;
    detach_after_fork(l);
    ts_status status = l->staged.filled ? TS_OK : stage(l, true);
    if (status == TS_OK)
        status = deliver(l, batch);
    if (status != TS_OK) { /* the batch is not lost: the next call tries it again */
        ts_loader_set_state(l, l->next);
        return status;
    }
    l->next = after(l, l->next);
    if (!on_cpu(l) && stage(l, false) != TS_OK) {
        ts_error_clear(); /* the next call tries again, and reports */
        ts_loader_set_state(l, l->next);
    }
    return TS_OK;
}

const ts_nn_source *ts_nn_loader_source(const ts_loader *l) { return l ? &l->source : NULL; }
int64_t ts_loader_batches(const ts_loader *l) { return l ? l->batches : 0; }
int64_t ts_loader_tokens(const ts_loader *l) { return l ? l->source.tokens : 0; }
ts_loader_state ts_loader_get_state(const ts_loader *l)
{
    return l ? l->next : (ts_loader_state){0, 0};
}

ts_status ts_loader_set_state(ts_loader *loader, ts_loader_state state)
{
    TS_TRY(TS_CHECK_OBJECTS(loader));
    ts_loader *l = loader;
    const int64_t most = (int64_t)1 << 53; /* as the numbers of a checkpoint */
    if (state.epoch < 0 || state.epoch > most || state.index < 0 || state.index >= l->batches)
        return ts_error_set(
            TS_ERR_VALUE,
            "loader_set_state: expected an epoch from 0 to 2^53 and a batch below %lld, got %lld "
            "and %lld",
            (long long)l->batches, (long long)state.epoch, (long long)state.index);
    detach_after_fork(l);
    release(l, &l->staged);
    pthread_mutex_lock(&l->lock);
    l->next = l->ahead = state;
    for (int i = 0; i < l->opts.ahead; i++)
        release(l, &l->ring[i]);
    l->taken = l->claimed = 0;
    l->turn++;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    return TS_OK;
}
