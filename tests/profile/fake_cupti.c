/**
 * @file fake_cupti.c  CUPTI's functions over a scripted device.
 *
 * Records are delivered as CUPTI does: in the client's buffers, from another thread, and not in the
 * order in which the work ran.
 */
// SPDX-License-Identifier: MIT
#include "tests/profile/fake_cupti.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
enum { RECORD = 216, ALL = 4096, DRIVER = 1, RUNTIME = 2, LAUNCH_API = 307, WAIT_API = 131,
       ALLOCATE_API = 20, LAST = 24, TAKEN = 39, APIS = 1024 };

EXPORT fake_device fake;
EXPORT void fake_launch(uint32_t kind, int64_t gap, int64_t ns, int n);
EXPORT void fake_wait(bool allocates, int64_t begin, int64_t end);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t records[ALL][RECORD];
static int count;
static bool enabled[64], called_back[3][APIS]; /* APIs with callbacks, by domain and id */
static uint32_t correlation;
static void (*request)(uint8_t **buffer, size_t *bytes, size_t *most);
static void (*complete)(void *context, uint32_t stream, uint8_t *buffer, size_t bytes,
                        size_t valid);
static bool began, ended; /* like a GPU's libraries: the first work registers an exit() handler,
                             which ends the library */
typedef struct api_data { /* CUpti_CallbackData */
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
static void (*subscriber)(void *data, uint32_t domain, uint32_t id, const api_data *call);
static void *subscriber_data;
static _Thread_local int64_t stamp; /* the clock in a callback */

static void put32(uint8_t *record, size_t at, uint32_t value)
{
    memcpy(record + at, &value, sizeof value);
}
static void put64(uint8_t *record, size_t at, uint64_t value)
{
    memcpy(record + at, &value, sizeof value);
}

static uint8_t *next_record(uint32_t kind)
{
    if (count == ALL)
        abort();
    uint8_t *record = records[count++];
    memset(record, 0, RECORD);
    put32(record, 0, kind);
    return record;
}

static void end_library(void) { ended = true; }
static void call(void (*hook)(void))
{
    if (hook)
        hook();
}

/** Time on the device's clock, ns. */
static int64_t real_time(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    int64_t host = t.tv_sec * 1000000000ll + t.tv_nsec;
    return host + fake.offset + (int64_t)(fake.drift * (double)(host - fake.drifts_from));
}

/** Calls the subscriber back at the start, unless that is 0, and at the end of an API call. */
static void call_back(uint32_t domain, uint32_t api, uint32_t id, int64_t begin, int64_t end)
{
    api_data call = {.correlation = id};
    if (!fake.subscribers || !called_back[domain][api] || fake.no_calls)
        return;
    stamp = begin;
    if (begin)
        subscriber(subscriber_data, domain, api, &call);
    stamp = begin ? end : real_time();
    call.site = 1;
    subscriber(subscriber_data, domain, api, &call);
    stamp = 0;
}

void fake_wait(bool allocates, int64_t begin, int64_t end)
{
    pthread_mutex_lock(&lock);
    call_back(RUNTIME, allocates ? ALLOCATE_API : WAIT_API, ++correlation, begin, end);
    pthread_mutex_unlock(&lock);
}

static void put_kernel(uint8_t *work)
{
    uint64_t name = (uint64_t)(uintptr_t)fake.name;
    memcpy(work + 104, &name, sizeof name);
    work[6] = 32;
    put32(work, 52, fake.blocks);
    put32(work, 56, 1);
    put32(work, 60, 1);
    put32(work, 64, 256);
    put32(work, 68, 1);
    put32(work, 72, 1);
}

void fake_launch(uint32_t kind, int64_t gap, int64_t ns, int n)
{
    pthread_mutex_lock(&lock);
    call(fake.at_launch);
    if (!began)
        began = atexit(end_library) == 0;
    uint32_t id = ++correlation;
    int64_t called = fake.real ? real_time() : fake.called;
    call_back(DRIVER, LAUNCH_API, id, called, called + fake.call_ns);
    if (fake.real && called + 1000 > fake.clock)
        fake.clock = called + 1000;
    fake.called = 0;
    for (int i = 0; i < n; i++) {
        int64_t begin = fake.clock + gap;
        fake.clock = begin + ns;
        if (!enabled[kind])
            continue;
        uint8_t *work = next_record(kind);
        put64(work, 16, fake.zero_times ? 0 : (uint64_t)begin);
        put64(work, 24, fake.zero_times ? 0 : (uint64_t)fake.clock);
        if (kind == FAKE_KERNEL)
            put_kernel(work);
        else if (kind == FAKE_MEMCPY)
            work[5] = fake.pageable ? 1 : 3;
        put32(work, kind == FAKE_KERNEL ? 92 : kind == FAKE_MEMCPY_PEER ? 60 : 44, id);
    }
    fake.zero_times = false;
    pthread_mutex_unlock(&lock);
}

static void *deliver(void *ctx)
{
    (void)ctx;
    while (count) {
        uint8_t *buffer = NULL;
        size_t bytes = 0, most = 0, used = 0;
        request(&buffer, &bytes, &most);
        while (count && used + RECORD <= bytes && used < 3 * RECORD) { /* 3 records per buffer */
            memcpy(buffer + used, records[--count], RECORD);
            used += RECORD;
        }
        complete(NULL, 0, buffer, bytes, used);
    }
    return NULL;
}

EXPORT uint32_t cuptiGetVersion(uint32_t *version);
uint32_t cuptiGetVersion(uint32_t *version) { return *version = 7, 0; }
EXPORT uint32_t cuptiGetResultString(uint32_t result, const char **text);
uint32_t cuptiGetResultString(uint32_t result, const char **text)
{
    *text = result == 1 ? "a wrong parameter" : "something else";
    return 0;
}
EXPORT uint32_t cuptiSubscribe(void **handle, void *callback, void *data);
uint32_t cuptiSubscribe(void **handle, void *callback, void *data)
{
    if (fake.taken || fake.subscribers)
        return TAKEN;
    fake.subscribers++;
    memcpy(&subscriber, &callback, sizeof callback);
    subscriber_data = data;
    *handle = &subscriber;
    return 0;
}
EXPORT uint32_t cuptiUnsubscribe(void *handle);
uint32_t cuptiUnsubscribe(void *handle)
{
    fake.subscribers -= handle != NULL;
    memset(called_back, 0, sizeof called_back);
    return 0;
}
EXPORT uint32_t cuptiEnableCallback(uint32_t on, void *handle, uint32_t domain, uint32_t id);
uint32_t cuptiEnableCallback(uint32_t on, void *handle, uint32_t domain, uint32_t id)
{
    if (handle != &subscriber || domain > RUNTIME || id >= APIS)
        return 1;
    called_back[domain][id] = on;
    return 0;
}
EXPORT uint32_t cuptiActivityRegisterCallbacks(void (*ask)(uint8_t **, size_t *, size_t *),
                                               void (*done)(void *, uint32_t, uint8_t *, size_t,
                                                            size_t));
uint32_t cuptiActivityRegisterCallbacks(void (*ask)(uint8_t **, size_t *, size_t *),
                                        void (*done)(void *, uint32_t, uint8_t *, size_t, size_t))
{
    request = ask;
    complete = done;
    return 0;
}
static uint32_t switch_kind(uint32_t kind, bool on)
{
    pthread_mutex_lock(&lock);
    fake.kinds += on - enabled[kind];
    enabled[kind] = on;
    pthread_mutex_unlock(&lock);
    return 0;
}
EXPORT uint32_t cuptiActivityEnable(uint32_t kind);
uint32_t cuptiActivityEnable(uint32_t kind) { return switch_kind(kind, true); }
EXPORT uint32_t cuptiActivityDisable(uint32_t kind);
uint32_t cuptiActivityDisable(uint32_t kind) { return switch_kind(kind, false); }
EXPORT uint32_t cuptiGetTimestamp(uint64_t *ns);
uint32_t cuptiGetTimestamp(uint64_t *ns)
{
    call(fake.at_clock);
    return *ns = (uint64_t)(stamp ? stamp : real_time()), 0;
}
EXPORT uint32_t cuptiFinalize(void);
uint32_t cuptiFinalize(void) { return fake.finalized++, 0; }
EXPORT uint32_t cuptiActivityFlushAll(uint32_t flag);
uint32_t cuptiActivityFlushAll(uint32_t flag)
{
    pthread_t thread;
    (void)flag;
    call(fake.at_flush);
    if (ended)
        abort(); /* the real CUPTI would read freed memory */
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
    if (pthread_create(&thread, NULL, deliver, NULL) != 0)
        return 1;
    pthread_join(thread, NULL);
    return 0;
}
EXPORT uint32_t cuptiActivityGetNextRecord(uint8_t *buffer, size_t bytes, uint8_t **record);
uint32_t cuptiActivityGetNextRecord(uint8_t *buffer, size_t bytes, uint8_t **record)
{
    uint8_t *next = *record ? *record + RECORD : buffer;
    if (next + RECORD > buffer + bytes)
        return LAST;
    *record = next;
    return 0;
}
EXPORT uint32_t cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *dropped);
uint32_t cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *dropped)
{
    (void)context, (void)stream;
    *dropped = fake.dropped;
    fake.dropped = 0;
    return 0;
}
