/**
 * @file cupti.c  Times of device work by CUPTI's activity API.
 *
 * CUPTI writes a record per kernel, copy and memset. It also writes, per API call, the number that
 * the calling thread last pushed: the tag. Both records have the call's correlation id, by which
 * ts_cupti_end() joins them. Kernels of a graph have the id of the graph's launch.
 *
 * The file loads CUPTI at run time and declares the parts of its interface that it uses. The
 * offsets in records are equal in CUPTI 12 and 13.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/cupti.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------ library ---- */

enum { MEMCPY = 1, MEMSET = 2, DRIVER = 4, RUNTIME = 5, KERNEL = 10, MEMCPY_PEER = 22,
       EXTERNAL_ID = 39 }; /* CUpti_ActivityKind */
enum { LIMIT_REACHED = 12, TAKEN = 39 }; /* CUptiResult */
enum { OURS = 3 }; /* kind of the tags; CUpti_ExternalCorrelationKind: CUSTOM0 */

/** Records of these kinds, in the order of enabling. */
static const uint32_t kinds[] = {EXTERNAL_ID, DRIVER, RUNTIME, KERNEL, MEMCPY, MEMCPY_PEER, MEMSET};

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

/** Offsets in a record of a kernel, copy or memset. START and END are the same for all kinds. */
typedef struct layout {
    size_t device, correlation;
    bool kernel;
} layout;
enum { START = 16, END = 24, ID = 8, ID_CORRELATION = 16, ID_KIND = 4 };

typedef struct work {
    int64_t begin_ns, end_ns;
    uint32_t correlation;
    uint8_t device;
    bool kernel;
} work;
/** Tag of an API call. */
typedef struct call_tag {
    uint64_t tag;
    uint32_t correlation;
} call_tag;

/* RECORDS_MOST: maximum number of works and of tags. Later works count as lost; later tags are
 * dropped, which leaves their works untagged. BUFFER: bytes of a CUPTI buffer. */
enum { RECORDS_MOST = 4 << 20, BUFFER = 4 << 20 };

static struct {
    pthread_mutex_t lock; /* CUPTI delivers buffers from a thread of its own */
    work *works;
    call_tag *tags;
    int64_t nworks, works_room, ntags, tags_room, lost;
    ts_device_work *joined; /* of the last session */
    void *subscriber;
    atomic_bool on;
} session = {.lock = PTHREAD_MUTEX_INITIALIZER};

/** Grows an array of `count` items if needed; false if there is no room for one more. */
static bool has_room(void **items, int64_t count, int64_t *room, size_t item)
{
    if (count < *room)
        return true;
    int64_t wanted = *room ? 2 * *room : 4096;
    void *grown = wanted <= RECORDS_MOST ? realloc(*items, (size_t)wanted * item) : NULL;
    if (!grown)
        return false;
    *items = grown;
    *room = wanted;
    return true;
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

static void keep_work(const uint8_t *record, layout at)
{
    work w = {.begin_ns = (int64_t)read64(record + START),
              .end_ns = (int64_t)read64(record + END),
              .correlation = read32(record + at.correlation),
              .device = (uint8_t)read32(record + at.device),
              .kernel = at.kernel};
    bool good = w.begin_ns > 0 && w.end_ns >= w.begin_ns;
    if (good && has_room((void **)&session.works, session.nworks, &session.works_room, sizeof w))
        session.works[session.nworks++] = w;
    else
        session.lost++;
}

static void keep_tag(const uint8_t *record)
{
    call_tag t = {read64(record + ID), read32(record + ID_CORRELATION)};
    if (read32(record + ID_KIND) == OURS &&
        has_room((void **)&session.tags, session.ntags, &session.tags_room, sizeof t))
        session.tags[session.ntags++] = t;
}

static void keep(const uint8_t *record)
{
    switch (read32(record)) {
    case KERNEL: keep_work(record, (layout){40, 92, true}); break;
    case MEMCPY:
    case MEMSET: keep_work(record, (layout){32, 44, false}); break;
    case MEMCPY_PEER: keep_work(record, (layout){32, 60, false}); break;
    case EXTERNAL_ID: keep_tag(record); break;
    default: break; /* API calls: enabled because CUPTI writes tags only with them */
    }
}

static void request(uint8_t **buffer, size_t *bytes, size_t *most)
{
    *most = 0;
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
    pthread_mutex_unlock(&session.lock);
    free(buffer);
}

/* ------------------------------------------------------------------------------ session ---- */

static void ignore(void *data, uint32_t domain, uint32_t id, const void *call)
{
    (void)data, (void)domain, (void)id, (void)call;
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
    if (status != TS_OK) {
        while (n > 1)
            cupti.disable(kinds[--n - 1]);
        cupti.unsubscribe(session.subscriber);
    }
    return status;
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
    session.nworks = session.ntags = session.lost = 0;
    free(session.joined);
    session.joined = NULL;
    pthread_mutex_unlock(&session.lock);
    atomic_store(&session.on, true);
    return TS_OK;
}

void ts_cupti_tag(void *state, uint64_t tag)
{
    (void)state;
    static _Thread_local bool pushed; /* a tag is on the thread's stack, which has at most one */
    if (!atomic_load_explicit(&session.on, memory_order_relaxed))
        return;
    if (pushed)
        cupti.pop(OURS, NULL);
    pushed = cupti.push(OURS, tag) == 0;
}

static int by_correlation(const void *a, const void *b)
{
    uint32_t x = ((const call_tag *)a)->correlation, y = ((const call_tag *)b)->correlation;
    return (x > y) - (x < y);
}

/** Joins works and tags by correlation id. */
static void join(void)
{
    if (session.ntags)
        qsort(session.tags, (size_t)session.ntags, sizeof *session.tags, by_correlation);
    for (int64_t i = 0; i < session.nworks; i++) {
        const work *w = &session.works[i];
        call_tag key = {0, w->correlation};
        const call_tag *found = session.ntags
                                    ? bsearch(&key, session.tags, (size_t)session.ntags,
                                              sizeof key, by_correlation)
                                    : NULL;
        session.joined[i] = (ts_device_work){found ? found->tag : 0, w->begin_ns, w->end_ns,
                                             w->device, w->kernel};
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
    cupti.unsubscribe(session.subscriber);
    TS_TRY(status);
    cupti.version(&version);
    pthread_mutex_lock(&session.lock);
    session.joined = malloc((size_t)(session.nworks + 1) * sizeof *session.joined);
    if (session.joined)
        join();
    *record = (ts_device_record){session.joined, session.nworks, session.lost, ""};
    snprintf(record->source, sizeof record->source, "CUPTI %u", version);
    free(session.works);
    free(session.tags);
    session.works = NULL;
    session.tags = NULL;
    session.nworks = session.works_room = session.ntags = session.tags_room = 0;
    pthread_mutex_unlock(&session.lock);
    return record->work ? TS_OK : ts_error_set(TS_ERR_MEMORY, "no GPU times: no memory");
}
