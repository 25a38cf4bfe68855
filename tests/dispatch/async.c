/**
 * @file async.c  Streams, events and memory on a mock device that works asynchronously.
 *
 * Each stream of the device is a thread with a queue and a gate. While a test keeps the gate
 * closed, no queued task runs. Freed memory is overwritten, so that a read after a too early reuse
 * shows.
 */
// SPDX-License-Identifier: MIT
#include "tests/dispatch/offset.h"
#include "tests/threads.h"

#include <pthread.h>
#include <unistd.h>

typedef struct task {
    struct task *next;
    void (*run)(struct task *);
    void *to, *from;
    int64_t bytes;
    double number;
    ts_space space;
    ts_event *event;
    uint64_t ticket;
} task;

struct ts_stream {
    pthread_t thread;
    task *first, **last;
    bool busy, closed, stop;
    uint64_t done; /* number of finished tasks */
};

struct ts_event {
    uint64_t recorded, happened; /* number of the last recorded, and of the last reached, record */
};

/* One lock for all queues: the mock is about order, not speed. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct ts_stream own; /* the device's own stream */
static struct ts_stream *streams[8] = {&own};
static int nstreams = 1;
static bool broken;        /* work has failed; the next wait reports it */
static bool deterministic; /* last value of set_deterministic */
static _Atomic int pinned; /* live blocks */

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

static void gate(ts_stream *stream, bool closed)
{
    pthread_mutex_lock(&lock);
    stream_of(stream)->closed = closed;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

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
    int nstreams, left;
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
    synchronize_device(state, device); /* copies from it may be queued */
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
/** Without it, memory checkers would report work that is still queued. */
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
static double first(ts_tensor *t)
{
    TS_SCOPE;
    return value(ts_to_device(ts_select(t, 0, 999), TS_DEVICE_CPU));
}

/* ----------------------------------------------------------------------------- cases ---- */

TS_TEST(ops_return_before_their_work_is_done_and_reading_values_waits, .threads = true, MOCK)
{
    TS_SCOPE;
    ts_tensor *a = full_there(3);
    OK(ts_synchronize(device));
    uint64_t before = done(NULL);
    gate(NULL, true);
    ts_tensor *y = ts_mul(ts_mul(a, a), ts_mul_scalar(a, 2));
    OK(y);
    usleep(2000);
    ck_assert_uint_eq(done(NULL), before); /* queued, not done */
    gate(NULL, false);
    ck_assert_double_eq(first(y), 54);
}

TS_TEST(memory_is_not_reused_before_the_work_on_it_is_done, .threads = true, MOCK)
{
    TS_SCOPE;
    ts_tensor *y;
    gate(NULL, true);
    {
        TS_SCOPE;
        ts_tensor *a = full_there(3); /* freed while its copy and its use are still queued */
        y = ts_keep(ts_mul(a, a));
    }
    gate(NULL, false);
    ck_assert_double_eq(first(y), 9);
    /* a block that is used on another stream than the one it was allocated for */
    ts_stream *s;
    OK(ts_stream_new(device, &s));
    ts_tensor *a = ts_retain(full_there(5));
    OK(ts_synchronize(device));
    OK(ts_stream_use(device, s));
    gate(s, true);
    y = ts_mul(a, a);
    OK(ts_record_stream(a));
    ts_drop(a);
    ts_release(a);
    OK(ts_stream_synchronize(device, NULL));
    gate(s, false);
    ck_assert_double_eq(first(y), 25);
    ts_drop(y); /* before its stream ends */
    ts_stream_free(device, s);
    ck_assert_ptr_null(ts_stream_current(device));
}

TS_TEST(an_event_orders_streams_that_are_otherwise_free_of_each_other, .threads = true, MOCK)
{
    TS_SCOPE;
    ts_stream *s;
    ts_event *e;
    OK(ts_stream_new(device, &s));
    OK(ts_event_new(device, &e));
    ts_tensor *a = full_there(2), *b = full_there(10);
    OK(ts_synchronize(device));
    gate(NULL, true);
    ts_tensor *x = ts_mul(a, a); /* waits behind the gate */
    OK(ts_event_record(device, e));
    OK(ts_stream_use(device, s));
    ck_assert_ptr_eq(ts_stream_current(device), s);
    ts_tensor *y = ts_mul(b, b); /* the gate of this stream is open */
    ck_assert_double_eq(first(y), 100);
    uint64_t before = done(s);
    OK(ts_event_wait(device, e));
    ts_tensor *z = ts_mul(x, b);
    usleep(2000);
    ck_assert_uint_eq(done(s), before);
    gate(NULL, false);
    ck_assert_double_eq(first(z), 40);
    OK(ts_event_synchronize(device, e));
    double ms;
    OK(ts_event_elapsed(device, e, e, &ms));
    OK(ts_record_stream(x)); /* its memory belongs to the other stream */
    ts_drop(y), ts_drop(z), ts_drop(x);
    OK(ts_stream_use(device, NULL));
    OK(ts_synchronize(device));
    ts_stream_free(device, s);
    ts_event_free(device, e);
}

TS_TEST(a_copy_from_pinned_memory_is_only_queued, MOCK)
{
    {
        TS_SCOPE;
        ts_tensor *host = ts_empty_pinned(TS_SIZES(4), TS_F32, device),
                  *plain = (ts_full)(TS_SIZES(4), ts_scalar_float(1), TS_F32);
        OK(host);
        ck_assert_int_eq(pinned, 1);
        OK((ts_fill_)(host, ts_scalar_float(1)));
        gate(NULL, true);
        ts_tensor *slow = ts_to_device(plain, device), *fast = ts_to_device(host, device);
        ((float *)ts_data_mut(plain))[0] = 7; /* the copy has read it */
        ((float *)ts_data_mut(host))[0] = 7;  /* the copy has not */
        gate(NULL, false);
        ck_assert_double_eq(value(ts_select(slow, 0, 0)), 1);
        ck_assert_double_eq(value(ts_select(fast, 0, 0)), 7);
        FAILS(TS_ERR_SHAPE, ts_empty_pinned(TS_SIZES(-1), TS_F32, device));
        OK(ts_empty_pinned(TS_SIZES(2), TS_F32, TS_DEVICE_CPU));
    }
    ck_assert_int_eq(pinned, 0);
}

/** A dataset of seven samples; sample i is (3) f32, filled with i. */
static int64_t seven(void *payload) { return (void)payload, 7; }
static ts_status numbered(void *payload, int64_t index, ts_tensor **sample)
{
    (void)payload;
    return TS_STATUS_OF(sample[0] = (ts_full)(TS_SIZES(3), ts_scalar_int(index), TS_F32));
}

static void run_loader(bool no_thread)
{
    const ts_dataset set = {sizeof set, seven, numbered, NULL, 1};
    ts_loader *l = ts_loader_new(&set, TS_OPTS(ts_loader_opts, .batch = 2, .in_order = true,
                                               .device = device, .no_thread = no_thread));
    OK(l);
    for (int turn = 0; turn < 3; turn++) {
        TS_SCOPE;
        ts_tensor *doubled[4];
        gate(NULL, true);
        for (int k = 0; k < 4; k++) { /* returns while the gate is closed */
            ts_batch b;
            OK(ts_loader_next(l, &b));
            ck_assert(b.index == k && b.y == TS_NONE);
            ck_assert_int_eq(ts_device_of(b.x).backend, device.backend);
            ck_assert_int_eq(ts_size(b.x, 0), k < 3 ? 2 : 1);
            OK(doubled[k] = ts_mul_scalar(b.x, 2));
            ts_drop(b.x); /* while its use is queued */
        }
        gate(NULL, false);
        for (int k = 0; k < 4; k++)
            ck_assert_double_eq(value(ts_select(ts_select(doubled[k], 0, 0), 0, 2)), 4 * k);
        ck_assert_int_le(pinned, 5); /* memory is reused */
        if (turn == 1)
            OK(ts_loader_set_state(l, (ts_loader_state){5, 0}));
    }
    ts_loader_close(l);
    ck_assert_int_eq(pinned, 0);
}

TS_TEST(a_loader_copies_batches_while_the_callers_stream_is_busy, .threads = true, MOCK)
{
    run_loader(false);
    run_loader(true);
}

TS_TEST(a_failure_of_earlier_work_is_reported_by_the_call_that_waits, MOCK)
{
    TS_SCOPE;
    ts_tensor *a = full_there(1);
    OK(ts_neg(a)); /* queued; fails later */
    ts_error_clear();
    double v;
    ck_assert_int_eq(ts_item(ts_select(a, 0, 0), &v), TS_ERR_STATE);
    SAYS("failed earlier");
    OK(ts_item(ts_select(a, 0, 0), &v)); /* later calls work */
}

TS_TEST(backends_receive_the_deterministic_mode, MOCK)
{
    ck_assert(!deterministic);
    OK(ts_set_deterministic(true));
    ck_assert(deterministic && ts_deterministic());
    OK(ts_set_deterministic(false));
    ck_assert(!deterministic);
}

/** Computes a chain of products on streams[number]. */
static bool multiply_on_stream(int number, void *streams)
{
    TS_SCOPE;
    if (ts_stream_use(device, ((ts_stream **)streams)[number]) != TS_OK)
        return false;
    ts_tensor *x = full_there(1 + number), *y = x;
    for (int i = 0; i < 20; i++)
        y = ts_mul(ts_mul_scalar(y, 2),
                   ts_to_device((ts_full)(TS_SIZES(1000), ts_scalar_float(0.5), TS_F32), device));
    double last = 0;
    return ts_item(ts_select(y, 0, 999), &last) == TS_OK && last == 1 + number &&
           ts_stream_current(device) == ((ts_stream **)streams)[number];
}

TS_TEST(threads_work_on_streams_of_their_own, .threads = true, MOCK)
{
    ts_stream *of[3];
    for (int i = 0; i < 3; i++)
        OK(ts_stream_new(device, &of[i]));
    ck_assert_int_eq(ts_together(3, multiply_on_stream, of), 3);
    ck_assert_ptr_null(ts_stream_current(device));
    for (int i = 0; i < 3; i++)
        ts_stream_free(device, of[i]);
}

TS_TEST(asynchronous_kernels_and_round_trips_mix_in_one_training, .threads = true, MOCK)
{
    double losses[2];
    for (int d = 0; d < 2; d++) {
        TS_SCOPE;
        OK(ts_set_default_device(d ? device : TS_DEVICE_CPU));
        ts_manual_seed(11);
        ts_module *net = ts_mlp_new(3, 8, NULL);
        ts_group_opts opts = ts_optimizer_defaults(TS_SGD, 0.1);
        ts_optimizer *sgd = ts_optimizer_for(net, TS_SGD, &opts);
        OK(sgd);
        for (int step = 0; step < 4; step++) {
            TS_SCOPE;
            ts_tensor *y = ts_forward(net, ts_normal(TS_SIZES(5, 3), 0, 1, TS_F32)),
                      *loss = ts_mean(ts_mul(y, y));
            OK(ts_backward(loss));
            OK(ts_optimizer_step(sgd));
            ts_optimizer_zero_grad(sgd);
            OK(ts_item(loss, &losses[d]));
        }
        ts_optimizer_free(sgd);
        ts_module_free(net);
    }
    OK(ts_set_default_device(TS_DEVICE_CPU));
    ck_assert_double_eq(losses[0], losses[1]);
}
