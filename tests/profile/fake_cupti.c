/**
 * @file fake_cupti.c  CUPTI's functions over a scripted device.
 *
 * Records are delivered as by CUPTI: in the client's buffers, from another thread, each work after
 * the record of its tag, but not in the order in which the work ran.
 */
// SPDX-License-Identifier: MIT
#include "tests/profile/fake_cupti.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
enum { RECORD = 160, ALL = 1024, DRIVER = 4, EXTERNAL_ID = 39, EMPTY = 11, LAST = 24, TAKEN = 39 };

EXPORT fake_device fake;
EXPORT void fake_launch(uint32_t kind, int64_t gap, int64_t ns, int n);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t records[ALL][RECORD];
static int count;
static bool enabled[64];
static uint32_t correlation;
static void (*request)(uint8_t **buffer, size_t *bytes, size_t *most);
static void (*complete)(void *context, uint32_t stream, uint8_t *buffer, size_t bytes,
                        size_t valid);
static bool began, ended; /* as libraries of a GPU, which end by a handler that they set at work */
static _Thread_local uint64_t stack[8];
static _Thread_local int depth;

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

void fake_launch(uint32_t kind, int64_t gap, int64_t ns, int n)
{
    pthread_mutex_lock(&lock);
    if (!began)
        began = atexit(end_library) == 0;
    uint32_t id = ++correlation;
    if (enabled[EXTERNAL_ID] && enabled[DRIVER] && depth && !fake.no_tags) {
        uint8_t *tag = next_record(EXTERNAL_ID);
        put32(tag, 4, 3);
        put64(tag, 8, stack[depth - 1]);
        put32(tag, 16, id);
    }
    if (enabled[DRIVER])
        next_record(DRIVER);
    for (int i = 0; i < n; i++) {
        int64_t begin = fake.clock + gap;
        fake.clock = begin + ns;
        if (!enabled[kind])
            continue;
        uint8_t *work = next_record(kind);
        put64(work, 16, fake.zero_times ? 0 : (uint64_t)begin);
        put64(work, 24, fake.zero_times ? 0 : (uint64_t)fake.clock);
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
        while (count && used + RECORD <= bytes && used < 3 * RECORD) { /* several buffers */
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
EXPORT uint32_t cuptiSubscribe(void **subscriber, void *callback, void *data);
uint32_t cuptiSubscribe(void **subscriber, void *callback, void *data)
{
    (void)data;
    if (fake.taken || fake.subscribers)
        return TAKEN;
    fake.subscribers++;
    *subscriber = callback;
    return 0;
}
EXPORT uint32_t cuptiUnsubscribe(void *subscriber);
uint32_t cuptiUnsubscribe(void *subscriber)
{
    fake.subscribers -= subscriber != NULL;
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
EXPORT uint32_t cuptiActivityFlushAll(uint32_t flag);
uint32_t cuptiActivityFlushAll(uint32_t flag)
{
    pthread_t thread;
    (void)flag;
    if (ended)
        abort(); /* CUPTI reads memory that is gone */
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
EXPORT uint32_t cuptiActivityPushExternalCorrelationId(uint32_t kind, uint64_t id);
uint32_t cuptiActivityPushExternalCorrelationId(uint32_t kind, uint64_t id)
{
    (void)kind;
    if (depth == 8)
        return 1;
    stack[depth++] = id;
    return 0;
}
EXPORT uint32_t cuptiActivityPopExternalCorrelationId(uint32_t kind, uint64_t *id);
uint32_t cuptiActivityPopExternalCorrelationId(uint32_t kind, uint64_t *id)
{
    (void)kind, (void)id;
    return depth ? depth--, 0 : EMPTY;
}
