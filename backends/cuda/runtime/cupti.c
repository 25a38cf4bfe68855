/**
 * @file cupti.c  Times of device work by CUPTI's activity API.
 *
 * CUPTI writes a record per kernel, copy and memset (a work), and calls on_call() at the start and
 * the end of API calls. A work and the call that queued it have the same correlation id, by which
 * ts_cupti_end() joins them. Works of a graph have the id of the graph's launch.
 *
 * The file loads CUPTI at run time and declares the parts of its interface that it uses. The
 * offsets in records are equal in CUPTI 12 and 13.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/runtime/cupti.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------ library ---- */

enum { MEMCPY = 1, MEMSET = 2, KERNEL = 10, MEMCPY_PEER = 22 }; /* CUpti_ActivityKind */
enum { LIMIT_REACHED = 12, TAKEN = 39 }; /* CUptiResult */
enum { PAGEABLE = 1 }; /* CUpti_ActivityMemoryKind */
enum { DRIVER = 1, RUNTIME = 2 }; /* CUpti_CallbackDomain */
enum { ENTERS = 0 }; /* CUpti_ApiCallbackSite */

/** Records of these kinds, in the order of enabling. */
static const uint32_t kinds[] = {KERNEL, MEMCPY, MEMCPY_PEER, MEMSET};

/** API calls that queue work, wait or allocate. CUPTI calls on_call() for no others. The runtime
 *  starts kernels and graphs by calls of the driver. */
enum { QUEUES, WAITS, ALLOCATES };
static const struct {
    uint32_t domain, id; /* id: CUpti_driver_api_trace_cbid or CUpti_runtime_api_trace_cbid */
    uint8_t what;
} apis[] = {
    {DRIVER, 652, QUEUES},     /* cuLaunchKernelEx */
    {DRIVER, 307, QUEUES},     /* cuLaunchKernel */
    {DRIVER, 477, QUEUES},     /* cuLaunchCooperativeKernel */
    {DRIVER, 514, QUEUES},     /* cuGraphLaunch */
    {DRIVER, 653, QUEUES},     /* these four for the default stream of a thread */
    {DRIVER, 442, QUEUES},
    {DRIVER, 478, QUEUES},
    {DRIVER, 515, QUEUES},
    {RUNTIME, 41, QUEUES},     /* cudaMemcpyAsync */
    {RUNTIME, 31, QUEUES},     /* cudaMemcpy */
    {RUNTIME, 44, QUEUES},     /* cudaMemcpy2DAsync */
    {RUNTIME, 51, QUEUES},     /* cudaMemsetAsync */
    {RUNTIME, 161, QUEUES},    /* cudaMemcpyPeerAsync */
    {RUNTIME, 131, WAITS},     /* cudaStreamSynchronize */
    {RUNTIME, 137, WAITS},     /* cudaEventSynchronize */
    {RUNTIME, 165, WAITS},     /* cudaDeviceSynchronize */
    {RUNTIME, 20, ALLOCATES},  /* cudaMalloc */
    {RUNTIME, 22, ALLOCATES},  /* cudaFree */
    {RUNTIME, 27, ALLOCATES},  /* cudaHostAlloc */
    {RUNTIME, 26, ALLOCATES},  /* cudaFreeHost */
};
enum { APIS = sizeof apis / sizeof *apis };

/** CUpti_CallbackData. */
typedef struct api_data {
    uint32_t site;
    const char *function;
    const void *arguments;
    void *result;
    const char *symbol;
    void *context;
    uint32_t context_id;
    uint64_t *data;
    uint32_t correlation;
} api_data;

typedef void (*request_fn)(uint8_t **buffer, size_t *bytes, size_t *most);
typedef void (*complete_fn)(void *context, uint32_t stream, uint8_t *buffer, size_t bytes,
                            size_t valid);

static struct {
    uint32_t (*version)(uint32_t *version);
    uint32_t (*text)(uint32_t result, const char **text);
    uint32_t (*subscribe)(void **subscriber, void *callback, void *data);
    uint32_t (*unsubscribe)(void *subscriber);
    uint32_t (*call_back)(uint32_t on, void *subscriber, uint32_t domain, uint32_t id);
    uint32_t (*callbacks)(request_fn request, complete_fn complete);
    uint32_t (*enable)(uint32_t kind);
    uint32_t (*disable)(uint32_t kind);
    uint32_t (*flush)(uint32_t flag);
    uint32_t (*next)(uint8_t *buffer, size_t bytes, uint8_t **record);
    uint32_t (*dropped)(void *context, uint32_t stream, size_t *count);
    uint32_t (*clock)(uint64_t *ns);
    uint32_t (*finalize)(void);
    char why[120]; /* reason why CUPTI cannot be used; empty if it can */
} cupti;

static void *open_library(void)
{
    static const char *const names[] = {
        "libcupti.so.13", "/usr/local/cuda/lib64/libcupti.so.13",
        "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13", "libcupti.so.12",
        "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.12"};
    const char *named = getenv("TS_CUDA_CUPTI");
    void *library = NULL;
    if (named && *named) {
        library = strcmp(named, "0") == 0 ? NULL : dlopen(named, RTLD_NOW | RTLD_LOCAL);
        if (!library)
            snprintf(cupti.why, sizeof cupti.why, "TS_CUDA_CUPTI=%.80s", named);
        return library;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!library)
        snprintf(cupti.why, sizeof cupti.why, "libcupti.so.13 and libcupti.so.12 are not found");
    return library;
}

static void load(void)
{
    const struct {
        void *address;
        const char *name;
    } functions[] = {
        {&cupti.version, "cuptiGetVersion"},
        {&cupti.text, "cuptiGetResultString"},
        {&cupti.subscribe, "cuptiSubscribe"},
        {&cupti.unsubscribe, "cuptiUnsubscribe"},
        {&cupti.call_back, "cuptiEnableCallback"},
        {&cupti.callbacks, "cuptiActivityRegisterCallbacks"},
        {&cupti.enable, "cuptiActivityEnable"},
        {&cupti.disable, "cuptiActivityDisable"},
        {&cupti.flush, "cuptiActivityFlushAll"},
        {&cupti.next, "cuptiActivityGetNextRecord"},
        {&cupti.dropped, "cuptiActivityGetNumDroppedRecords"},
        {&cupti.clock, "cuptiGetTimestamp"},
        {&cupti.finalize, "cuptiFinalize"},
    };
    void *library = open_library();
    for (size_t i = 0; library && i < sizeof functions / sizeof *functions; i++) {
        void *function = dlsym(library, functions[i].name);
        if (!function) {
            snprintf(cupti.why, sizeof cupti.why, "CUPTI has no function %s", functions[i].name);
            return;
        }
        memcpy(functions[i].address, &function, sizeof function);
    }
}

/** Turns a CUptiResult of `function` into TS_OK or TS_ERR_UNSUPPORTED. */
static ts_status check(uint32_t result, const char *function)
{
    const char *text = NULL;
    if (!result)
        return TS_OK;
    if (result == TAKEN || result == LIMIT_REACHED)
        return ts_error_set(TS_ERR_UNSUPPORTED,
                            "no GPU times: another tool uses CUPTI in this process");
    if (cupti.text(result, &text) || !text)
        text = "an unknown error";
    return ts_error_set(TS_ERR_UNSUPPORTED, "no GPU times: %s: %.60s", function, text);
}

/* ------------------------------------------------------------------------------ records ---- */

/** Offsets in bytes in records of kernels, copies and memsets that depend on the kind. */
typedef struct layout {
    size_t device, correlation;
} layout;
/* Other offsets in bytes: START, END in records of kernels, copies and memsets; COPY_* (bytes) in
 * records of copies; REGISTERS to KERNEL_NAME in records of kernels. */
enum { START = 16, END = 24 };
enum { COPY_FROM = 5, COPY_TO = 6 };
enum { REGISTERS = 6, GRID = 52, BLOCK = 64, SHARED = 76, KERNEL_NAME = 104 };

/** An API call: its thread's tag and its time, 0 if the recording began inside the call. */
typedef struct api_call {
    uint64_t tag;
    int64_t begin_ns, end_ns;
    uint32_t correlation;
    uint8_t what; /* QUEUES, WAITS or ALLOCATES */
} api_call;

/* RECORDS_MOST: maximum number of works and of calls. Later works count as lost; later calls are
 * dropped, which leaves their works untagged. BUFFER: bytes of a CUPTI buffer.
 * NAMES: maximum number of kernels with a name. SPARE: maximum number of buffers kept. */
enum { RECORDS_MOST = 4 << 20, BUFFER = 4 << 20, NAMES = 4096, SPARE = 256 };

/** A growing array. */
typedef struct list {
    void *items;
    int64_t count, capacity;
} list;

static struct {
    pthread_mutex_t lock; /* CUPTI delivers buffers from a thread of its own */
    list works, waits; /* ts_device_work, ts_device_wait */
    pthread_mutex_t calls_lock; /* apart, because a thread that reads a buffer takes long */
    list calls; /* api_call */
    int64_t lost;
    uint8_t *spare[SPARE]; /* returned buffers, for reuse. They are not freed, so a late write by
                              CUPTI cannot reach other memory */
    int nspare;
    struct {
        const char *from; /* CUPTI's text, which is the same for all launches of a kernel */
        char *text;
    } names[NAMES];
    void *subscriber;
    atomic_bool on;
} session = {.lock = PTHREAD_MUTEX_INITIALIZER, .calls_lock = PTHREAD_MUTEX_INITIALIZER};
static ts_cupti_limits limits[16]; /* by device */

void ts_cupti_set_limits(int device, const ts_cupti_limits *of)
{
    if (device >= 0 && device < 16)
        limits[device] = *of;
}

/** Room for one more item, or NULL. */
static void *next_item(list *l, size_t item)
{
    if (l->count == l->capacity) {
        int64_t wanted = l->capacity ? 2 * l->capacity : 4096;
        void *grown = wanted <= RECORDS_MOST ? realloc(l->items, (size_t)wanted * item) : NULL;
        if (!grown)
            return NULL;
        l->items = grown;
        l->capacity = wanted;
    }
    return (char *)l->items + (size_t)l->count++ * item;
}

static void empty(list *l)
{
    free(l->items);
    *l = (list){0};
}

static uint32_t read32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}
static uint64_t read64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/** A copy of a kernel's name, because CUPTI may free its text; NULL if the table is full. */
static const char *keep_name(const char *from)
{
    size_t at = (uintptr_t)from / 8 * 0x9e3779b97f4a7c15u >> 52;
    for (int i = 0; from && i < 16; i++, at = (at + 1) % NAMES) {
        if (!session.names[at].from) {
            session.names[at].text = strdup(from);
            session.names[at].from = session.names[at].text ? from : NULL;
            return session.names[at].text;
        }
        if (session.names[at].from == from)
            return session.names[at].text;
    }
    return NULL;
}

/** Blocks of a kernel's grid, divided by the blocks that the device runs at once. 0: unknown, or
 *  the number of blocks is a multiple of the multiprocessors, as in kernels whose blocks loop over
 *  the work. */
static float waves_of(const uint8_t *record, uint32_t device)
{
    enum { BLOCKS_MOST = 32, REGISTER_UNIT = 8, RESERVED = 1024 };
    const ts_cupti_limits *l = &limits[device % 16];
    uint64_t blocks = 1, threads = 1, fit = BLOCKS_MOST, registers = record[REGISTERS];
    if (device > 15 || !l->processors)
        return 0;
    for (size_t i = 0; i < 3; i++) {
        blocks *= read32(record + GRID + 4 * i);
        threads *= read32(record + BLOCK + 4 * i);
    }
    threads = (threads + 31) / 32 * 32;
    registers = (registers + REGISTER_UNIT - 1) / REGISTER_UNIT * REGISTER_UNIT * threads;
    uint64_t shared = read32(record + SHARED) + read32(record + SHARED + 4) + RESERVED;
    fit = threads && l->threads / threads < fit ? l->threads / threads : fit;
    fit = registers && l->registers / registers < fit ? l->registers / registers : fit;
    fit = l->shared / shared < fit ? l->shared / shared : fit;
    if (!fit || blocks % l->processors == 0)
        return 0;
    return (float)blocks / (float)(fit * l->processors);
}

static void keep_work(const uint8_t *record, layout at, uint32_t kind)
{
    ts_device_work w = {.begin_ns = (int64_t)read64(record + START),
                        .end_ns = (int64_t)read64(record + END),
                        .launch = read32(record + at.correlation),
                        .device = (uint8_t)read32(record + at.device),
                        .kernel = kind == KERNEL};
    bool good = w.begin_ns > 0 && w.end_ns >= w.begin_ns;
    if (w.kernel) {
        w.name = keep_name((const char *)(uintptr_t)read64(record + KERNEL_NAME));
        w.waves = waves_of(record, w.device);
    }
    if (kind == MEMCPY)
        w.pageable = record[COPY_FROM] == PAGEABLE || record[COPY_TO] == PAGEABLE;
    ts_device_work *work = good ? next_item(&session.works, sizeof w) : NULL;
    if (work)
        *work = w;
    else
        session.lost++;
}

static void keep(const uint8_t *record)
{
    uint32_t kind = read32(record);
    switch (kind) {
    case KERNEL: keep_work(record, (layout){40, 92}, kind); break;
    case MEMCPY:
    case MEMSET: keep_work(record, (layout){32, 44}, kind); break;
    case MEMCPY_PEER: keep_work(record, (layout){32, 60}, kind); break;
    default: break;
    }
}

static void request(uint8_t **buffer, size_t *bytes, size_t *most)
{
    *most = 0;
    pthread_mutex_lock(&session.lock);
    *buffer = session.nspare ? session.spare[--session.nspare] : NULL;
    pthread_mutex_unlock(&session.lock);
    if (!*buffer)
        *buffer = aligned_alloc(64, BUFFER);
    *bytes = *buffer ? BUFFER : 0;
}

static void complete(void *context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid)
{
    uint8_t *record = NULL;
    size_t dropped = 0;
    (void)bytes;
    pthread_mutex_lock(&session.lock);
    while (valid && cupti.next(buffer, valid, &record) == 0)
        keep(record);
    if (cupti.dropped(context, stream, &dropped) == 0)
        session.lost += (int64_t)dropped;
    if (session.nspare < SPARE)
        session.spare[session.nspare++] = buffer;
    pthread_mutex_unlock(&session.lock);
}

/* ------------------------------------------------------------------------------ session ---- */

/** Number of ended sessions. */
static _Atomic uint32_t sessions;
/** The thread's last tag, and the session of it. */
static _Thread_local struct {
    uint64_t tag;
    uint32_t session;
} tagged;

void ts_cupti_tag(void *state, uint64_t tag)
{
    (void)state;
    if (!atomic_load_explicit(&session.on, memory_order_relaxed))
        return;
    tagged.tag = tag;
    tagged.session = atomic_load_explicit(&sessions, memory_order_relaxed);
}

/** CUPTI calls this in the thread of an API call, at its begin and its end. */
static void on_call(void *unused, uint32_t domain, uint32_t id, const api_data *call)
{
    static _Thread_local struct {
        int64_t ns;
        uint32_t correlation;
    } begin;
    uint64_t ns = 0;
    int i = 0;
    (void)unused;
    cupti.clock(&ns);
    if (call->site == ENTERS) {
        begin.ns = (int64_t)ns;
        begin.correlation = call->correlation;
        return;
    }
    while (i < APIS - 1 && (apis[i].id != id || apis[i].domain != domain))
        i++;
    bool whole = begin.correlation == call->correlation;
    bool ours = tagged.session == atomic_load_explicit(&sessions, memory_order_relaxed);
    pthread_mutex_lock(&session.calls_lock);
    api_call *item = next_item(&session.calls, sizeof *item);
    if (item)
        *item = (api_call){ours ? tagged.tag : 0, whole ? begin.ns : 0, whole ? (int64_t)ns : 0,
                            call->correlation, apis[i].what};
    pthread_mutex_unlock(&session.calls_lock);
}

/** Starts CUPTI. Fails if another tool uses it. */
static ts_status start(void)
{
    void (*callback)(void *, uint32_t, uint32_t, const api_data *) = on_call;
    void *address;
    memcpy(&address, &callback, sizeof address);
    TS_TRY(check(cupti.subscribe(&session.subscriber, address, NULL), "cuptiSubscribe"));
    ts_status status = check(cupti.callbacks(request, complete), "cuptiActivityRegisterCallbacks");
    size_t n = 0;
    while (n < sizeof kinds / sizeof *kinds && status == TS_OK)
        status = check(cupti.enable(kinds[n++]), "cuptiActivityEnable");
    for (int i = 0; i < APIS && status == TS_OK; i++)
        status = check(cupti.call_back(1, session.subscriber, apis[i].domain, apis[i].id),
                       "cuptiEnableCallback");
    if (status != TS_OK) {
        while (n > 0)
            cupti.disable(kinds[--n]);
        cupti.unsubscribe(session.subscriber);
    }
    return status;
}

/** Drops the records and names of the last session. */
static void drop_records(void)
{
    pthread_mutex_lock(&session.calls_lock);
    empty(&session.calls);
    pthread_mutex_unlock(&session.calls_lock);
    empty(&session.works);
    empty(&session.waits);
    session.lost = 0;
    for (int i = 0; i < NAMES; i++)
        free(session.names[i].text);
    memset(session.names, 0, sizeof session.names);
}

ts_status ts_cupti_begin(void *state)
{
    (void)state;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    if (cupti.why[0])
        return ts_error_set(TS_ERR_UNSUPPORTED, "no GPU times: %s", cupti.why);
    if (!atomic_load(&session.on))
        TS_TRY(start());
    pthread_mutex_lock(&session.lock);
    drop_records();
    pthread_mutex_unlock(&session.lock);
    atomic_store(&session.on, true);
    return TS_OK;
}

int64_t ts_cupti_clock(void *state)
{
    (void)state;
    uint64_t ns = 0;
    return atomic_load(&session.on) && cupti.clock(&ns) == 0 ? (int64_t)ns : 0;
}

static int by_call(const void *a, const void *b)
{
    uint32_t x = ((const api_call *)a)->correlation, y = ((const api_call *)b)->correlation;
    return (x > y) - (x < y);
}

/** Joins works with calls by correlation id, and lists the waits. */
static void join(void)
{
    ts_device_work *w = session.works.items;
    api_call *c = session.calls.items;
    if (session.calls.count)
        qsort(c, (size_t)session.calls.count, sizeof *c, by_call);
    for (int64_t i = 0; i < session.works.count && session.calls.count; i++) {
        api_call key = {.correlation = w[i].launch};
        const api_call *call = bsearch(&key, c, (size_t)session.calls.count, sizeof *c, by_call);
        if (!call)
            continue;
        w[i].tag = call->tag;
        w[i].called_ns = call->begin_ns;
        w[i].queued_ns = call->end_ns;
    }
    for (int64_t i = 0; i < session.calls.count; i++) {
        ts_device_wait *wait =
            c[i].what == QUEUES || !c[i].begin_ns ? NULL : next_item(&session.waits, sizeof *wait);
        if (wait)
            *wait = (ts_device_wait){c[i].tag, c[i].begin_ns, c[i].end_ns,
                                     c[i].what == ALLOCATES};
    }
}

ts_status ts_cupti_end(ts_device_record *record)
{
    uint32_t version = 0;
    if (!atomic_exchange(&session.on, false))
        return ts_error_set(TS_ERR_STATE, "no GPU times: nothing was recorded");
    ts_status status = check(cupti.flush(1), "cuptiActivityFlushAll");
    for (size_t i = sizeof kinds / sizeof *kinds; i-- > 0;)
        cupti.disable(kinds[i]);
    cupti.version(&version);
    cupti.unsubscribe(session.subscriber);
    cupti.finalize(); /* else its hooks slow down each later API call */
    atomic_fetch_add(&sessions, 1); /* the tags of all threads end with the session */
    TS_TRY(status);
    pthread_mutex_lock(&session.lock);
    pthread_mutex_lock(&session.calls_lock);
    join();
    *record = (ts_device_record){.work = session.works.items, .count = session.works.count,
                                 .lost = session.lost, .waits = session.waits.items,
                                 .nwaits = session.waits.count};
    snprintf(record->source, sizeof record->source, "CUPTI %u", version);
    empty(&session.calls);
    pthread_mutex_unlock(&session.calls_lock);
    pthread_mutex_unlock(&session.lock);
    return TS_OK;
}
