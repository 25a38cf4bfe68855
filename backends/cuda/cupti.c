/**
 * @file cupti.c  Times of device work by CUPTI's activity API.
 *
 * CUPTI writes a record per kernel, copy and memset (a work), and per API call a record of its time
 * and a record of the number that the calling thread last pushed: the tag. All have the call's
 * correlation id, by which ts_cupti_end() joins them. Works of a graph have the id of the graph's
 * launch.
 *
 * The file loads CUPTI at run time and declares the parts of its interface that it uses. The
 * offsets in records are equal in CUPTI 12 and 13.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/cupti.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------ library ---- */

enum { MEMCPY = 1, MEMSET = 2, DRIVER = 4, RUNTIME = 5, KERNEL = 10, MEMCPY_PEER = 22,
       EXTERNAL_ID = 39 }; /* CUpti_ActivityKind */
enum { LIMIT_REACHED = 12, TAKEN = 39 }; /* CUptiResult */
enum { OURS = 3 }; /* kind of the tags; CUpti_ExternalCorrelationKind: CUSTOM0 */
enum { PAGEABLE = 1 }; /* CUpti_ActivityMemoryKind */

/** Records of these kinds, in the order of enabling. */
static const uint32_t kinds[] = {EXTERNAL_ID, DRIVER, RUNTIME, KERNEL, MEMCPY, MEMCPY_PEER, MEMSET};

/** API calls that queue work, wait or allocate. CUPTI records no other calls, because the record of
 *  a trivial call costs as much as that of a launch. */
enum { QUEUES, WAITS, ALLOCATES };
static const struct {
    uint32_t id; /* CUpti_driver_api_trace_cbid or CUpti_runtime_api_trace_cbid */
    bool driver;
    uint8_t what;
} apis[] = {
    {307, true, QUEUES},     /* cuLaunchKernel */
    {652, true, QUEUES},     /* cuLaunchKernelEx */
    {514, true, QUEUES},     /* cuGraphLaunch */
    {211, false, QUEUES},    /* cudaLaunchKernel */
    {430, false, QUEUES},    /* cudaLaunchKernelExC */
    {505, false, QUEUES},    /* __cudaLaunchKernel */
    {311, false, QUEUES},    /* cudaGraphLaunch */
    {31, false, QUEUES},     /* cudaMemcpy */
    {41, false, QUEUES},     /* cudaMemcpyAsync */
    {44, false, QUEUES},     /* cudaMemcpy2DAsync */
    {51, false, QUEUES},     /* cudaMemsetAsync */
    {161, false, QUEUES},    /* cudaMemcpyPeerAsync */
    {131, false, WAITS},     /* cudaStreamSynchronize */
    {137, false, WAITS},     /* cudaEventSynchronize */
    {165, false, WAITS},     /* cudaDeviceSynchronize */
    {20, false, ALLOCATES},  /* cudaMalloc */
    {22, false, ALLOCATES},  /* cudaFree */
    {27, false, ALLOCATES},  /* cudaHostAlloc */
    {26, false, ALLOCATES},  /* cudaFreeHost */
};
enum { APIS = sizeof apis / sizeof *apis, API_IDS = 1000 /* above the highest id of a call */ };

typedef void (*request_fn)(uint8_t **buffer, size_t *bytes, size_t *most);
typedef void (*complete_fn)(void *context, uint32_t stream, uint8_t *buffer, size_t bytes,
                            size_t valid);

static struct {
    uint32_t (*version)(uint32_t *version);
    uint32_t (*text)(uint32_t result, const char **text);
    uint32_t (*subscribe)(void **subscriber, void *callback, void *data);
    uint32_t (*unsubscribe)(void *subscriber);
    uint32_t (*callbacks)(request_fn request, complete_fn complete);
    uint32_t (*enable)(uint32_t kind);
    uint32_t (*disable)(uint32_t kind);
    uint32_t (*flush)(uint32_t flag);
    uint32_t (*next)(uint8_t *buffer, size_t bytes, uint8_t **record);
    uint32_t (*dropped)(void *context, uint32_t stream, size_t *count);
    uint32_t (*push)(uint32_t kind, uint64_t id);
    uint32_t (*pop)(uint32_t kind, uint64_t *id);
    uint32_t (*clock)(uint64_t *ns);
    uint32_t (*driver_api)(uint32_t id, uint8_t on);
    uint32_t (*runtime_api)(uint32_t id, uint8_t on);
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
        void *place;
        const char *name;
    } functions[] = {
        {&cupti.version, "cuptiGetVersion"},
        {&cupti.text, "cuptiGetResultString"},
        {&cupti.subscribe, "cuptiSubscribe"},
        {&cupti.unsubscribe, "cuptiUnsubscribe"},
        {&cupti.callbacks, "cuptiActivityRegisterCallbacks"},
        {&cupti.enable, "cuptiActivityEnable"},
        {&cupti.disable, "cuptiActivityDisable"},
        {&cupti.flush, "cuptiActivityFlushAll"},
        {&cupti.next, "cuptiActivityGetNextRecord"},
        {&cupti.dropped, "cuptiActivityGetNumDroppedRecords"},
        {&cupti.push, "cuptiActivityPushExternalCorrelationId"},
        {&cupti.pop, "cuptiActivityPopExternalCorrelationId"},
        {&cupti.clock, "cuptiGetTimestamp"},
        {&cupti.driver_api, "cuptiActivityEnableDriverApi"},
        {&cupti.runtime_api, "cuptiActivityEnableRuntimeApi"},
        {&cupti.finalize, "cuptiFinalize"},
    };
    void *library = open_library();
    for (size_t i = 0; library && i < sizeof functions / sizeof *functions; i++) {
        void *function = dlsym(library, functions[i].name);
        if (!function) {
            snprintf(cupti.why, sizeof cupti.why, "CUPTI has no function %s", functions[i].name);
            return;
        }
        memcpy(functions[i].place, &function, sizeof function);
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
/* Other offsets in bytes: START, END in records of kernels, copies and memsets; ID_* in records of
 * tags; COPY_* (bytes) in records of copies; REGISTERS to KERNEL_NAME in records of kernels; API_*
 * in records of API calls. */
enum { START = 16, END = 24, ID = 8, ID_CORRELATION = 16, ID_KIND = 4 };
enum { COPY_FROM = 5, COPY_TO = 6 };
enum { REGISTERS = 6, GRID = 52, BLOCK = 64, SHARED = 76, KERNEL_NAME = 104 };
enum { API_ID = 4, API_START = 8, API_END = 16, API_CORRELATION = 32 };

/** Tag of an API call. */
typedef struct call_tag {
    uint64_t tag;
    uint32_t correlation;
} call_tag;
/** Time of an API call. */
typedef struct api_call {
    int64_t begin_ns, end_ns;
    uint32_t correlation;
    uint8_t what; /* QUEUES, WAITS or ALLOCATES */
} api_call;

/* RECORDS_MOST: maximum number of works, of tags and of calls. Later works count as lost; later
 * tags and calls are dropped, which leaves their works untagged. BUFFER: bytes of a CUPTI buffer.
 * NAMES: maximum number of kernels with a name. SPARE: maximum number of buffers kept. */
enum { RECORDS_MOST = 4 << 20, BUFFER = 4 << 20, NAMES = 4096, SPARE = 256 };

/** A growing array. */
typedef struct list {
    void *items;
    int64_t count, room;
} list;

static struct {
    pthread_mutex_t lock; /* CUPTI delivers buffers from a thread of its own */
    list works, tags, calls, waits; /* ts_device_work, call_tag, api_call, ts_device_wait */
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
} session = {.lock = PTHREAD_MUTEX_INITIALIZER};
static ts_cupti_limits limits[16]; /* by device */

void ts_cupti_set_limits(int device, const ts_cupti_limits *of)
{
    if (device >= 0 && device < 16)
        limits[device] = *of;
}

/** Room for one more item, or NULL. */
static void *next_item(list *l, size_t item)
{
    if (l->count == l->room) {
        int64_t wanted = l->room ? 2 * l->room : 4096;
        void *grown = wanted <= RECORDS_MOST ? realloc(l->items, (size_t)wanted * item) : NULL;
        if (!grown)
            return NULL;
        l->items = grown;
        l->room = wanted;
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

/** A copy of a kernel's name, because CUPTI's text may end with CUPTI; NULL if there is no room. */
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
    ts_device_work *place = good ? next_item(&session.works, sizeof w) : NULL;
    if (place)
        *place = w;
    else
        session.lost++;
}

static void keep_tag(const uint8_t *record)
{
    call_tag *t = read32(record + ID_KIND) == OURS ? next_item(&session.tags, sizeof *t) : NULL;
    if (t)
        *t = (call_tag){read64(record + ID), read32(record + ID_CORRELATION)};
}

static void keep_call(const uint8_t *record, bool driver)
{
    uint32_t id = read32(record + API_ID);
    for (int i = 0; i < APIS; i++)
        if (apis[i].id == id && apis[i].driver == driver) {
            api_call *c = next_item(&session.calls, sizeof *c);
            if (c)
                *c = (api_call){(int64_t)read64(record + API_START),
                                (int64_t)read64(record + API_END),
                                read32(record + API_CORRELATION), apis[i].what};
            return;
        }
}

static void keep(const uint8_t *record)
{
    uint32_t kind = read32(record);
    switch (kind) {
    case KERNEL: keep_work(record, (layout){40, 92}, kind); break;
    case MEMCPY:
    case MEMSET: keep_work(record, (layout){32, 44}, kind); break;
    case MEMCPY_PEER: keep_work(record, (layout){32, 60}, kind); break;
    case EXTERNAL_ID: keep_tag(record); break;
    case DRIVER:
    case RUNTIME: keep_call(record, kind == DRIVER); break;
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

static void ignore(void *data, uint32_t domain, uint32_t id, const void *call)
{
    (void)data, (void)domain, (void)id, (void)call;
}

/** Excludes all API calls but those of `apis` from the records. CUPTI writes no tags if the calls
 *  are enabled one by one instead. */
static void exclude_apis(void)
{
    for (uint32_t id = 1; id < API_IDS; id++) {
        bool wanted[2] = {false, false};
        for (int i = 0; i < APIS; i++)
            if (apis[i].id == id)
                wanted[apis[i].driver] = true;
        if (!wanted[0])
            cupti.runtime_api(id, 0); /* fails for ids without a call */
        if (!wanted[1])
            cupti.driver_api(id, 0);
    }
}

/** Starts CUPTI. A subscriber without callbacks excludes other tools, and fails if one runs. */
static ts_status start(void)
{
    void (*callback)(void *, uint32_t, uint32_t, const void *) = ignore;
    void *address;
    memcpy(&address, &callback, sizeof address);
    TS_TRY(check(cupti.subscribe(&session.subscriber, address, NULL), "cuptiSubscribe"));
    ts_status status = check(cupti.callbacks(request, complete), "cuptiActivityRegisterCallbacks");
    size_t n = 0;
    while (n < sizeof kinds / sizeof *kinds && status == TS_OK)
        status = check(cupti.enable(kinds[n++]), "cuptiActivityEnable");
    if (status == TS_OK)
        exclude_apis();
    if (status != TS_OK) {
        while (n > 1)
            cupti.disable(kinds[--n - 1]);
        cupti.unsubscribe(session.subscriber);
    }
    return status;
}

/** Drops the records and names of the last session. */
static void drop_records(void)
{
    empty(&session.works);
    empty(&session.tags);
    empty(&session.calls);
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

/* Number of ended sessions. Each thread remembers in which session it pushed a tag; its stack of
 * tags in CUPTI has at most one. */
static _Atomic uint32_t sessions;

/** Threads that are inside CUPTI in set_tag(). CUPTI must not end meanwhile. */
static _Atomic uint32_t tagging;

static void set_tag(uint64_t tag)
{
    static _Thread_local uint32_t pushed;
    static _Thread_local uint64_t last;
    uint32_t now = atomic_load_explicit(&sessions, memory_order_relaxed) + 1;
    if (pushed == now && last == tag)
        return;
    if (pushed == now)
        cupti.pop(OURS, NULL);
    pushed = cupti.push(OURS, tag) == 0 ? now : 0;
    last = tag;
}

void ts_cupti_tag(void *state, uint64_t tag)
{
    (void)state;
    if (!atomic_load_explicit(&session.on, memory_order_relaxed))
        return;
    atomic_fetch_add(&tagging, 1);
    if (atomic_load(&session.on))
        set_tag(tag);
    atomic_fetch_sub(&tagging, 1);
}

int64_t ts_cupti_clock(void *state)
{
    (void)state;
    uint64_t ns = 0;
    return atomic_load(&session.on) && cupti.clock(&ns) == 0 ? (int64_t)ns : 0;
}

static int by_tag(const void *a, const void *b)
{
    uint32_t x = ((const call_tag *)a)->correlation, y = ((const call_tag *)b)->correlation;
    return (x > y) - (x < y);
}
static int by_call(const void *a, const void *b)
{
    uint32_t x = ((const api_call *)a)->correlation, y = ((const api_call *)b)->correlation;
    return (x > y) - (x < y);
}

/** bsearch() in a list that may be empty. */
static void *find(const list *l, const void *key, size_t item,
                  int (*compare)(const void *a, const void *b))
{
    return l->count ? bsearch(key, l->items, (size_t)l->count, item, compare) : NULL;
}

static uint64_t tag_of(uint32_t correlation)
{
    call_tag key = {0, correlation}, *t = find(&session.tags, &key, sizeof key, by_tag);
    return t ? t->tag : 0;
}

/** Joins works and waits with tags and calls, by correlation id. */
static void join(void)
{
    ts_device_work *w = session.works.items;
    api_call *c = session.calls.items;
    if (session.tags.count)
        qsort(session.tags.items, (size_t)session.tags.count, sizeof(call_tag), by_tag);
    if (session.calls.count)
        qsort(c, (size_t)session.calls.count, sizeof *c, by_call);
    for (int64_t i = 0; i < session.works.count; i++) {
        api_call key = {.correlation = w[i].launch};
        const api_call *call = find(&session.calls, &key, sizeof key, by_call);
        w[i].tag = tag_of(w[i].launch);
        w[i].called_ns = call ? call->begin_ns : 0;
        w[i].queued_ns = call ? call->end_ns : 0;
    }
    for (int64_t i = 0; i < session.calls.count; i++) {
        ts_device_wait *wait =
            c[i].what == QUEUES ? NULL : next_item(&session.waits, sizeof *wait);
        if (wait)
            *wait = (ts_device_wait){tag_of(c[i].correlation), c[i].begin_ns, c[i].end_ns,
                                     c[i].what == ALLOCATES};
    }
}

ts_status ts_cupti_end(ts_device_record *record)
{
    uint32_t version = 0;
    if (!atomic_exchange(&session.on, false))
        return ts_error_set(TS_ERR_STATE, "no GPU times: nothing was recorded");
    while (atomic_load(&tagging))
        sched_yield();
    ts_status status = check(cupti.flush(1), "cuptiActivityFlushAll");
    for (size_t i = sizeof kinds / sizeof *kinds; i-- > 0;)
        cupti.disable(kinds[i]);
    cupti.version(&version);
    cupti.unsubscribe(session.subscriber);
    cupti.finalize(); /* else its hooks slow down each later API call */
    atomic_fetch_add(&sessions, 1); /* the tags of all threads have ended with CUPTI's session */
    TS_TRY(status);
    pthread_mutex_lock(&session.lock);
    join();
    *record = (ts_device_record){.work = session.works.items, .count = session.works.count,
                                 .lost = session.lost, .waits = session.waits.items,
                                 .nwaits = session.waits.count};
    snprintf(record->source, sizeof record->source, "CUPTI %u", version);
    empty(&session.tags);
    empty(&session.calls);
    pthread_mutex_unlock(&session.lock);
    return TS_OK;
}
