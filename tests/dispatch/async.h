/**
 * @file async.h  A mock device that works asynchronously, for the cases in async.c.
 *
 * Each stream of the device is a thread with a queue and a gate. While a test keeps the gate
 * closed, no queued task of the stream starts. Freed memory is overwritten, so that a read of
 * memory that is freed too early is detected.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_TESTS_DISPATCH_ASYNC_H
#define TS_TESTS_DISPATCH_ASYNC_H

#include "tests/dispatch/offset.h"
#include "tests/threads.h"

#include <pthread.h>
#include <unistd.h>

/** Work on the device. */
typedef struct task {
    struct task *next;
    void (*run)(struct task *);
    void *to, *from;
    int64_t bytes;
    double number;   /* a number among the call's arguments */
    ts_space space;
    ts_event *event;
    uint64_t ticket; /* number of a record of the event */
} task;

struct ts_stream {
    pthread_t thread;
    task *first, **last; /* queue; address of the pointer at its end */
    bool busy, closed, stop; /* a task runs; the gate is closed; the thread ends when the queue is
                                empty */
    uint64_t done;       /* number of finished tasks */
};

struct ts_event {
    uint64_t recorded, happened; /* number of the last recorded, and of the last reached, record */
};

/* One lock for all queues: the mock tests order, not speed. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct ts_stream own; /* the device's own stream */
static struct ts_stream *streams[8] = {&own};
static int nstreams = 1;
static bool broken;        /* work has failed; the next wait reports it */
static bool deterministic; /* last value of set_deterministic */
static _Atomic int pinned; /* live blocks of pinned memory */

static void *work(void *arg)
{
    struct ts_stream *s = arg;
    pthread_mutex_lock(&lock);
    for (;;) {
        while ((!s->first || s->closed) && !s->stop)
            pthread_cond_wait(&changed, &lock);
        if (!s->first)
            break;
        task *t = s->first;
        s->first = t->next;
        if (!s->first)
            s->last = &s->first;
        s->busy = true;
        pthread_mutex_unlock(&lock);
        t->run(t);
        free(t);
        pthread_mutex_lock(&lock);
        s->busy = false;
        s->done++;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void stream_start(struct ts_stream *s)
{
    *s = (struct ts_stream){.last = &s->first};
    s->last = &s->first;
    pthread_create(&s->thread, NULL, work, s);
}

static struct ts_stream *stream_of(ts_stream *s) { return s ? s : &own; }

static void queue(ts_stream *stream, task t)
{
    struct ts_stream *s = stream_of(stream);
    task *p = malloc(sizeof *p);
    *p = t;
    p->next = NULL;
    pthread_mutex_lock(&lock);
    *s->last = p;
    s->last = &p->next;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/** Closes or opens the gate of a stream. */
static void gate(ts_stream *stream, bool closed)
{
    pthread_mutex_lock(&lock);
    stream_of(stream)->closed = closed;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/** Number of tasks that a stream has finished. */
static uint64_t done(ts_stream *stream)
{
    pthread_mutex_lock(&lock);
    uint64_t n = stream_of(stream)->done;
    pthread_mutex_unlock(&lock);
    return n;
}

/* ---------------------------------------------------------------------------- memory ---- */

/** Header before each block: the stream that the block was allocated for, and recorded streams. */
typedef struct block {
    ts_stream *streams[4];
    int nstreams, left; /* left: after the release, streams that have not reached it */
    int64_t bytes;
} block;
#define HEAD 128
_Static_assert(sizeof(block) <= HEAD, "a head");

static void *allocate(void *state, int device, int64_t bytes, ts_stream *stream)
{
    (void)state, (void)device;
    char *p = aligned_alloc(64, (size_t)(HEAD + (bytes + 63) / 64 * 64));
    if (!p)
        return NULL;
    *(block *)p = (block){.streams = {stream}, .nstreams = 1, .bytes = bytes};
    return to_handle(p + HEAD);
}

static void run_free(task *t)
{
    block *b = t->to;
    pthread_mutex_lock(&lock);
    bool last = --b->left == 0;
    pthread_mutex_unlock(&lock);
    if (last) {
        memset((char *)b + HEAD, 0xab, (size_t)b->bytes);
        free(b);
    }
}

static void release(void *state, int device, void *data, int64_t bytes)
{
    (void)state, (void)device, (void)bytes;
    block *b = (block *)((char *)from_handle(data) - HEAD);
    int n = b->left = b->nstreams;
    ts_stream *of[4];
    memcpy(of, b->streams, sizeof of);
    for (int i = 0; i < n; i++)
        queue(of[i], (task){.run = run_free, .to = b});
}

static ts_status record_stream(void *state, int device, void *data, int64_t bytes,
                               ts_stream *stream)
{
    (void)state, (void)device, (void)bytes;
    block *b = (block *)((char *)from_handle(data) - HEAD);
    b->streams[b->nstreams++] = stream;
    return TS_OK;
}

static void run_copy(task *t) { memcpy(t->to, t->from, (size_t)t->bytes); }
static void run_copy_snapshot(task *t)
{
    run_copy(t);
    free(t->from);
}

typedef struct pin {
    char *data;
    int64_t bytes;
} pin;
static pin pins[8];

static void *host_allocate(void *state, int device, int64_t bytes)
{
    (void)state, (void)device;
    for (int i = 0; i < 8; i++)
        if (!pins[i].data) {
            pins[i] = (pin){malloc((size_t)bytes), bytes};
            pinned++;
            return pins[i].data;
        }
    return NULL;
}
static ts_status synchronize_device(void *state, int device);
static void host_free(void *state, int device, void *data, int64_t bytes)
{
    (void)bytes;
    synchronize_device(state, device); /* copies from `data` may be queued */
    for (int i = 0; i < 8; i++)
        if (pins[i].data == data) {
            pins[i].data = NULL;
            pinned--;
        }
    free(data);
}

static ts_status copy_in(void *state, int device, void *to, const void *from, int64_t bytes,
                         ts_stream *stream)
{
    (void)state, (void)device;
    for (int i = 0; i < 8; i++)
        if (pins[i].data && (const char *)from >= pins[i].data &&
            (const char *)from < pins[i].data + pins[i].bytes) {
            queue(stream, (task){.run = run_copy, .to = from_handle(to), .from = (void *)from,
                                 .bytes = bytes});
            return TS_OK;
        }
    void *snapshot = malloc((size_t)bytes);
    memcpy(snapshot, from, (size_t)bytes);
    queue(
        stream,
        (task){.run = run_copy_snapshot, .to = from_handle(to), .from = snapshot, .bytes = bytes});
    return TS_OK;
}
static ts_status copy_out(void *state, int device, void *to, const void *from, int64_t bytes,
                          ts_stream *stream)
{
    (void)state, (void)device;
    queue(stream, (task){.run = run_copy, .to = to, .from = from_handle(from), .bytes = bytes});
    return TS_OK;
}
static ts_status copy_within(void *state, int device, void *to, const void *from, int64_t bytes,
                             ts_stream *stream)
{
    (void)state, (void)device;
    queue(
        stream,
        (task){.run = run_copy, .to = from_handle(to), .from = from_handle(from), .bytes = bytes});
    return TS_OK;
}

/* ---------------------------------------------------------------- streams and events ---- */

static ts_stream *stream_new(void *state, int device)
{
    (void)state, (void)device;
    if (nstreams == 8)
        return NULL;
    struct ts_stream *s = malloc(sizeof *s);
    stream_start(s);
    streams[nstreams++] = s;
    return s;
}

static ts_status wait_for(struct ts_stream *s)
{
    pthread_mutex_lock(&lock);
    while (s->first || s->busy)
        pthread_cond_wait(&changed, &lock);
    bool failed = broken;
    broken = false;
    pthread_mutex_unlock(&lock);
    return failed ? ts_error_set(TS_ERR_STATE, "the mock device failed earlier") : TS_OK;
}
static ts_status synchronize(void *state, int device, ts_stream *stream)
{
    (void)state, (void)device;
    return wait_for(stream_of(stream));
}
static ts_status synchronize_device(void *state, int device)
{
    (void)state, (void)device;
    for (int i = 0; i < nstreams; i++)
        TS_TRY(wait_for(streams[i]));
    return TS_OK;
}
static void stream_free(void *state, int device, ts_stream *stream)
{
    synchronize(state, device, stream);
    pthread_mutex_lock(&lock);
    stream->stop = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    pthread_join(stream->thread, NULL);
    for (int i = 0; i < nstreams; i++)
        if (streams[i] == stream)
            streams[i] = streams[--nstreams];
    free(stream);
}

static ts_event *event_new(void *state, int device)
{
    (void)state, (void)device;
    return calloc(1, sizeof(ts_event));
}
static void event_free(void *state, int device, ts_event *event)
{
    (void)state, (void)device;
    free(event);
}
static void run_record(task *t)
{
    pthread_mutex_lock(&lock);
    t->event->happened = t->ticket;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}
static void run_wait(task *t)
{
    pthread_mutex_lock(&lock);
    while (t->event->happened < t->ticket)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}
static ts_status event_record(void *state, int device, ts_event *event, ts_stream *stream)
{
    (void)state, (void)device;
    queue(stream, (task){.run = run_record, .event = event, .ticket = ++event->recorded});
    return TS_OK;
}
static ts_status event_wait(void *state, int device, ts_event *event, ts_stream *stream)
{
    (void)state, (void)device;
    queue(stream, (task){.run = run_wait, .event = event, .ticket = event->recorded});
    return TS_OK;
}
static ts_status event_synchronize(void *state, int device, ts_event *event)
{
    (void)state, (void)device;
    task t = {.event = event, .ticket = event->recorded};
    run_wait(&t);
    return TS_OK;
}
/** *ms: the sum of the numbers of the records that the two events reached last, which tests can
 * predict. */
static ts_status event_elapsed(void *state, int device, ts_event *start, ts_event *end, double *ms)
{
    (void)state, (void)device;
    *ms = (double)(end->happened + start->happened);
    return TS_OK;
}
static ts_status set_deterministic(void *state, bool on)
{
    (void)state;
    deterministic = on;
    return TS_OK;
}

/* --------------------------------------------------------------------------- kernels ---- */

static void run_mul(task *t)
{
    const ts_space *s = &t->space;
    for (int64_t i = 0; i < s->numel; i++) {
        int64_t rest = i, offset[3] = {0};
        for (int d = 0; d < s->ndim; d++) {
            for (int k = 0; k < 3; k++)
                offset[k] += rest % s->sizes[d] * s->operand[k].strides[d];
            rest /= s->sizes[d];
        }
        float x[2];
        for (int k = 1; k < 3; k++)
            x[k - 1] = s->operand[k].host
                           ? (float)t->number
                           : *(float *)((char *)from_handle(s->operand[k].data) + offset[k]);
        *(float *)((char *)from_handle(s->operand[0].data) + offset[0]) = x[0] * x[1];
    }
}
static ts_status mul(ts_frame *f)
{
    task t = {.run = run_mul};
    TS_TRY(ts_kernel_space(f, &t.space));
    for (int k = 1; k < 3; k++)
        if (t.space.operand[k].host) /* read now: the frame ends before the work begins */
            t.number = ts_operand_number(&t.space.operand[k]);
    queue(ts_kernel_stream(f), t);
    return TS_OK;
}
static void run_fail(task *t)
{
    (void)t;
    pthread_mutex_lock(&lock);
    broken = true;
    pthread_mutex_unlock(&lock);
}
/** A kernel whose work fails: the next wait for the device reports it. */
static ts_status neg(ts_frame *f)
{
    queue(ts_kernel_stream(f), (task){.run = run_fail});
    return TS_OK;
}
static ts_status install(void *state, ts_key key)
{
    (void)state;
    ts_kernel_opts opts = {.size = sizeof opts, .dtypes = TS_DTYPE_BIT(TS_F32), .strided = true};
    TS_TRY(ts_register_kernel_ex("mul", key, mul, &opts, NULL));
    return ts_register_kernel("neg", key, neg, NULL, NULL);
}

static const ts_backend mock = {
    .struct_size = sizeof mock, .abi_version = TS_BACKEND_ABI, .name = "LATER",
    .flags = TS_BACKEND_CPU_FALLBACK,
    .install = install, .allocate = allocate, .free = release,
    .copy_in = copy_in, .copy_out = copy_out, .copy_within = copy_within,
    .host_allocate = host_allocate, .host_free = host_free,
    .synchronize = synchronize, .synchronize_device = synchronize_device,
    .stream_new = stream_new, .stream_free = stream_free,
    .event_new = event_new, .event_free = event_free, .event_record = event_record,
    .event_wait = event_wait,
    .event_synchronize = event_synchronize, .event_elapsed = event_elapsed,
    .record_stream = record_stream, .set_deterministic = set_deterministic,
};

static ts_device device;
static void set_up(void)
{
    ts_key key;
    stream_start(&own);
    OK(ts_register_backend(&mock, &key));
    device = (ts_device){key, 0};
}
/** Waits for the device and ends the thread of its own stream, so that memory checkers do not
 *  report queued work. */
static void tear_down(void)
{
    OK(ts_synchronize(device));
    pthread_mutex_lock(&lock);
    own.stop = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    pthread_join(own.thread, NULL);
}
#define MOCK .setup = set_up, .teardown = tear_down

static ts_tensor *full_there(double v)
{
    return ts_to_device((ts_full)(TS_SIZES(1000), ts_scalar_float(v), TS_F32), device);
}
/** The last element of a tensor of 1000 elements on the device. */
static double first(ts_tensor *t)
{
    TS_SCOPE;
    return value(ts_to_device(ts_select(t, 0, 999), TS_DEVICE_CPU));
}

#endif
