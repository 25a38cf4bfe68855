/**
 * @file alloc.c  A caching allocator for device memory.
 *
 * Memory comes from cudaMalloc in segments and is divided into blocks of multiples of 512 bytes. A
 * block belongs to the stream of its request. A freed block can serve the same stream at once,
 * because the stream orders its uses. A block that other streams used first waits for their events.
 * Free blocks are in bins, four per power of two; adjacent free blocks are merged. Blocks of up to
 * 16 KiB stay separate after use, for the next request of that size; they are merged with their
 * neighbours before another segment is allocated.
 *
 * Requests of up to 1 MiB share segments of 2 MiB; requests below 10 MiB share segments of 20 MiB;
 * a larger request gets a segment of its size, rounded up to 2 MiB. If the device is full, the
 * allocator frees all unused segments and retries the request. TS_CUDA_ALLOC=system passes each
 * request to cudaMalloc, for memory checkers.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/runtime/alloc.h"
#include "backends/cuda/runtime/capture.h"
#include "tessera/program.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROUND = 512,
    BINS = 48 * 4,
    STREAMS = 32,   /* streams whose blocks are cached; blocks of further streams come directly from
                       the device */
    USERS = 4,      /* maximum number of other streams that use a block */
    READY = 32      /* sizes, in units of ROUND, whose blocks stay separate */
};
static const int64_t small_request = 1 << 20, small_segment = 2 << 20, middle_request = 10 << 20,
                     middle_segment = 20 << 20, large_round = 2 << 20;

typedef struct block {
    struct block *before, *after; /* neighbours by address in the segment */
    struct block *next, **link;   /* position in the one list that holds the block: a bin, a `ready`
                                     list, the table of used blocks, or the waiting blocks */
    char *data;
    int64_t bytes;
    struct pool *pool;
    bool taken;
    int nusers;
    cudaStream_t users[USERS];
    cudaEvent_t events[USERS];
} block;

/** Free blocks of one stream and one class of segments. */
typedef struct pool {
    cudaStream_t stream; /* NULL: the stream was destroyed; another stream may take over the pool */
    bool small;
    uint64_t some[BINS / 64]; /* bit per bin that holds blocks */
    block *bins[BINS];
    block *ready[READY]; /* by size; not merged with their neighbours */
} pool;

typedef struct heap {
    atomic_flag lock;
    pool pools[2 * STREAMS];
    int npools;
    block **taken; /* used blocks, by address */
    int64_t buckets, ntaken;
    block *waiting; /* freed, but other streams may still use them */
    block *spare;   /* unused block headers */
    ts_memory_stats stats;
} heap;

static heap heaps[TS_CUDA_DEVICES] = {[0 ... TS_CUDA_DEVICES - 1] = {.lock = ATOMIC_FLAG_INIT}};

/* A spin lock, which costs one exchange and one store, half of a mutex. It is held for about ten
 * instructions, except for rare calls into CUDA. */
static void lock(heap *h)
{
    while (atomic_flag_test_and_set_explicit(&h->lock, memory_order_acquire))
        sched_yield();
}
static void unlock(heap *h) { atomic_flag_clear_explicit(&h->lock, memory_order_release); }

static bool direct(void)
{
    static _Atomic int known;
    int is = atomic_load_explicit(&known, memory_order_relaxed);
    if (!is) {
        atomic_store(&known, is = ts_variable_choice("TS_CUDA_ALLOC", "system") == 0 ? 2 : 1);
    }
    return is == 2;
}

/* ------------------------------------------------------------------------------ lists ---- */

static void put(block **list, block *b)
{
    b->next = *list;
    b->link = list;
    if (b->next)
        b->next->link = &b->next;
    *list = b;
}

static void take(block *b)
{
    *b->link = b->next;
    if (b->next)
        b->next->link = b->link;
}

/** Bin of a block of bytes >= ROUND: the binary exponent of its size in units of ROUND, and the
 * next two bits. */
static int bin_of(int64_t bytes)
{
    uint64_t units = (uint64_t)bytes / ROUND;
    int power = 63 - __builtin_clzll(units);
    int quarter = power >= 2 ? (int)(units >> (power - 2) & 3) : (int)(units << (2 - power) & 3);
    int bin = power * 4 + quarter;
    return bin < BINS ? bin : BINS - 1;
}

static void bin_put(block *b)
{
    int bin = bin_of(b->bytes);
    put(&b->pool->bins[bin], b);
    b->pool->some[bin / 64] |= 1ull << bin % 64;
}

static void bin_take(block *b)
{
    int bin = bin_of(b->bytes);
    take(b);
    if (!b->pool->bins[bin])
        b->pool->some[bin / 64] &= ~(1ull << bin % 64);
}

/** A zeroed block header; NULL if memory is exhausted. */
static block *header(heap *h)
{
    block *b = h->spare;
    if (b) {
        h->spare = b->next;
        memset(b, 0, sizeof *b);
        return b;
    }
    enum { MANY = 64 };
    block *fresh = calloc(MANY, sizeof *fresh); /* never freed */
    if (!fresh)
        return NULL;
    for (int i = 1; i < MANY; i++) {
        fresh[i].next = h->spare;
        h->spare = &fresh[i];
    }
    return fresh;
}

static void header_drop(heap *h, block *b)
{
    b->next = h->spare;
    h->spare = b;
}

/* ----------------------------------------------------------------------- taken blocks ---- */

static block **bucket(heap *h, const void *data)
{
    uint64_t key = (uint64_t)(uintptr_t)data / ROUND * 0x9e3779b97f4a7c15ull;
    return &h->taken[key >> 32 & (uint64_t)(h->buckets - 1)];
}

static bool table_grow(heap *h)
{
    int64_t was = h->buckets, now = was ? 2 * was : 1024;
    block **old = h->taken, **fresh = calloc((size_t)now, sizeof *fresh);
    if (!fresh)
        return was > 0; /* an existing table still works, with longer chains */
    h->taken = fresh;
    h->buckets = now;
    for (int64_t i = 0; i < was; i++)
        for (block *b = old[i], *next; b; b = next) {
            next = b->next;
            put(bucket(h, b->data), b);
        }
    free(old);
    return true;
}

static block *find_taken(heap *h, const void *data)
{
    block *b = h->buckets ? *bucket(h, data) : NULL;
    while (b && b->data != data)
        b = b->next;
    return b;
}

/* ---------------------------------------------------------------------- free and merge ---- */

static void merge(heap *h, block *b, block *gone)
{
    b->bytes += gone->bytes;
    if (gone->data < b->data)
        b->data = gone->data;
    if (gone == b->before) {
        b->before = gone->before;
        if (b->before)
            b->before->after = b;
    } else {
        b->after = gone->after;
        if (b->after)
            b->after->before = b;
    }
    header_drop(h, gone);
}

/** Frees a block: merges it with its free neighbours and puts it into the bin of its size. */
static void merge_free(heap *h, block *b)
{
    block *beside[] = {b->before, b->after};
    b->taken = false;
    b->nusers = 0;
    for (int i = 0; i < 2; i++)
        if (beside[i] && !beside[i]->taken) {
            bin_take(beside[i]);
            merge(h, b, beside[i]);
        }
    bin_put(b);
}

/** Frees a block. Small blocks stay separate in `ready` for the next request of their size. */
static void give_back(heap *h, block *b)
{
    if (b->bytes > READY * ROUND) {
        merge_free(h, b);
    } else {
        b->nusers = 0;
        put(&b->pool->ready[b->bytes / ROUND - 1], b);
    }
}

/** Merges a pool's `ready` blocks with their free neighbours. Returns false if it has none. */
static bool join(heap *h, pool *p)
{
    bool any = false;
    for (int i = 0; i < READY; i++)
        for (block *b = p->ready[i]; b; b = p->ready[i]) {
            take(b);
            merge_free(h, b);
            any = true;
        }
    return any;
}

/** Frees blocks whose events have completed; with wait, waits for all events. */
static void poll(heap *h, bool wait)
{
    for (block *b = h->waiting, *next; b; b = next) {
        next = b->next;
        while (b->nusers && (wait ? cudaEventSynchronize(b->events[b->nusers - 1])
                                  : cudaEventQuery(b->events[b->nusers - 1])) != cudaErrorNotReady)
            cudaEventDestroy(b->events[--b->nusers]);
        if (!b->nusers) {
            take(b);
            give_back(h, b);
        }
    }
}

/** Frees all segments without used blocks. */
static void flush(heap *h)
{
    poll(h, true);
    /* cudaFree waits as well. Not patient: a capturing thread may wait for this heap's lock. */
    ts_cuda_wait_for_device(false);
    for (int p = 0; p < h->npools; p++)
        join(h, &h->pools[p]);
    for (int p = 0; p < h->npools; p++)
        for (int bin = 0; bin < BINS; bin++)
            for (block *b = h->pools[p].bins[bin], *next; b; b = next) {
                next = b->next;
                if (b->before || b->after)
                    continue;
                bin_take(b);
                cudaFree(b->data);
                h->stats.reserved -= b->bytes;
                header_drop(h, b);
            }
    cudaGetLastError();
}

/* ---------------------------------------------------------------------------- allocate ---- */

/** The pool of a stream for small or larger requests, or NULL if STREAMS streams have pools. */
static pool *pool_of(heap *h, cudaStream_t stream, bool small)
{
    pool *p = NULL;
    for (int i = 0; i < h->npools; i++) {
        if (h->pools[i].stream == stream && h->pools[i].small == small)
            return &h->pools[i];
        if (!h->pools[i].stream && h->pools[i].small == small)
            p = &h->pools[i];
    }
    if (!p && h->npools == 2 * STREAMS)
        return NULL;
    p = p ? p : &h->pools[h->npools++];
    p->stream = stream;
    p->small = small;
    return p;
}

static block *find_in_bins(const pool *p, int64_t bytes)
{
    int bin = bin_of(bytes);
    for (block *b = p->bins[bin]; b; b = b->next)
        if (b->bytes >= bytes)
            return b;
    for (int word = (bin + 1) / 64, skip = (bin + 1) % 64; word < BINS / 64; word++, skip = 0) {
        uint64_t some = p->some[word] >> skip << skip;
        if (some)
            return p->bins[word * 64 + __builtin_ctzll(some)];
    }
    return NULL;
}

/** Removes a free block of at least `bytes` bytes from its list and returns it; NULL if there is
 * none. */
static block *find_free(heap *h, pool *p, int64_t bytes)
{
    block *b = bytes <= READY * ROUND ? p->ready[bytes / ROUND - 1] : NULL;
    if (b) {
        take(b);
        return b;
    }
    if (!(b = find_in_bins(p, bytes)) && join(h, p))
        b = find_in_bins(p, bytes);
    if (b)
        bin_take(b);
    return b;
}

static cudaError_t from_device(heap *h, void **data, int64_t bytes)
{
    h->stats.system_allocs++;
    cudaError_t e = cudaMalloc(data, (size_t)bytes);
    if (e != cudaSuccess)
        cudaGetLastError();
    return e;
}

/** cudaMalloc; if the device is full, frees all unused segments and tries again. */
static cudaError_t from_device_or_flush(heap *h, void **data, int64_t bytes)
{
    cudaError_t e = from_device(h, data, bytes);
    if (e != cudaErrorMemoryAllocation)
        return e;
    flush(h);
    return from_device(h, data, bytes);
}

/** Allocates a segment that consists of one block of at least `bytes` bytes. NULL: *error, or no
 * memory for a header. */
static block *segment(heap *h, pool *p, int64_t bytes, cudaError_t *error)
{
    int64_t size = p->small                 ? small_segment
                   : bytes < middle_request ? middle_segment
                                            : (bytes + large_round - 1) / large_round * large_round;
    block *b = header(h);
    void *data = NULL;
    if (!b)
        return NULL;
    *error = from_device_or_flush(h, &data, size);
    if (*error == cudaErrorMemoryAllocation && size != bytes)
        *error = from_device(h, &data, size = bytes);
    if (*error != cudaSuccess) {
        header_drop(h, b);
        return NULL;
    }
    h->stats.reserved += size;
    b->data = data;
    b->bytes = size;
    b->pool = p;
    return b;
}

static void split(heap *h, block *b, int64_t bytes)
{
    int64_t rest = b->bytes - bytes;
    block *tail;
    if (rest < (b->pool->small ? ROUND : small_request) || !(tail = header(h)))
        return;
    tail->data = b->data + bytes;
    tail->bytes = rest;
    tail->pool = b->pool;
    tail->before = b;
    tail->after = b->after;
    if (tail->after)
        tail->after->before = tail;
    b->after = tail;
    b->bytes = bytes;
    bin_put(tail);
}

static void *fail(const ts_cuda_device *d, int64_t bytes, cudaError_t error)
{
    if (error == cudaSuccess || error == cudaErrorMemoryAllocation)
        ts_error_set(TS_ERR_MEMORY, "cuda:%d: out of memory: %lld bytes", d->index,
                     (long long)bytes);
    else
        ts_cuda_check(error, "cuda:%d: allocating %lld bytes", d->index, (long long)bytes);
    return NULL;
}

static void count(heap *h, int64_t bytes)
{
    h->stats.in_use += bytes;
    if (h->stats.in_use > h->stats.peak)
        h->stats.peak = h->stats.in_use;
}

void *ts_cuda_allocate(void *state, int device, int64_t bytes, ts_stream *stream)
{
    (void)state;
    const ts_cuda_device *d = ts_cuda_use(device);
    if (!d)
        return NULL;
    heap *h = &heaps[device];
    cudaError_t error = cudaSuccess;
    void *data = NULL;
    if (bytes > INT64_MAX - large_round)
        return fail(d, bytes, cudaErrorMemoryAllocation);
    bytes = (bytes + ROUND - 1) / ROUND * ROUND;
    lock(h);
    pool *p = direct() ? NULL : pool_of(h, ts_cuda_stream(d, stream), bytes <= small_request);
    if (!p) {
        error = from_device_or_flush(h, &data, bytes);
        if (data) {
            h->stats.reserved += bytes;
            count(h, bytes);
        }
    } else {
        if (h->waiting)
            poll(h, false);
        bool grown = h->ntaken < h->buckets || table_grow(h);
        block *b = grown ? find_free(h, p, bytes) : NULL;
        if (!b && grown)
            b = segment(h, p, bytes, &error);
        if (b) {
            if (b->bytes > bytes)
                split(h, b, bytes);
            b->taken = true;
            put(bucket(h, b->data), b);
            h->ntaken++;
            count(h, b->bytes);
            data = b->data;
        }
    }
    unlock(h);
    return data ? data : fail(d, bytes, error);
}

/** Records an event on each other stream that used the block. The block is freed after all events
 * have completed; if there are none, at once. */
static void wait_for_users(heap *h, block *b)
{
    int users = 0;
    for (int i = 0; i < b->nusers; i++) {
        cudaEvent_t event = NULL;
        if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess &&
            cudaEventRecord(event, b->users[i]) == cudaSuccess) {
            b->events[users++] = event;
            continue;
        }
        if (event)
            cudaEventDestroy(event);
        cudaStreamSynchronize(b->users[i]);
        cudaGetLastError(); /* the program destroyed the stream itself */
    }
    b->nusers = users;
    if (users)
        put(&h->waiting, b);
    else
        give_back(h, b);
}

void ts_cuda_free(void *state, int device, void *data, int64_t bytes)
{
    (void)state;
    heap *h = &heaps[device];
    lock(h);
    block *b = find_taken(h, data);
    if (b) {
        take(b);
        h->ntaken--;
        h->stats.in_use -= b->bytes;
    }
    bool well = !ts_cuda_is_lost(device);
    if (b && (!b->nusers || !well)) { /* the common case, without a CUDA call */
        give_back(h, b);
    } else if (b && ts_cuda_use(device)) {
        wait_for_users(h, b);
    } else if (!b) {
        bytes = (bytes + ROUND - 1) / ROUND * ROUND;
        h->stats.in_use -= bytes;
        h->stats.reserved -= bytes;
        if (well && ts_cuda_use(device))
            cudaFree(data); /* waits for the device */
        cudaGetLastError();
    }
    unlock(h);
}

ts_status ts_cuda_record_stream(void *state, int device, void *data, int64_t bytes,
                                ts_stream *stream)
{
    (void)state, (void)bytes;
    const ts_cuda_device *d = ts_cuda_use(device);
    if (!d)
        return ts_error_code();
    heap *h = &heaps[device];
    cudaStream_t user = ts_cuda_stream(d, stream);
    ts_status status = TS_OK;
    lock(h);
    block *b = find_taken(h, data);
    bool known = !b || b->pool->stream == user;
    for (int i = 0; b && i < b->nusers; i++)
        known = known || b->users[i] == user;
    if (!known && b->nusers < USERS)
        b->users[b->nusers++] = user;
    else if (!known)
        status = ts_error_set(
            TS_ERR_STATE, "record_stream: a tensor may be used on at most %d other streams", USERS);
    unlock(h);
    return status;
}

void ts_cuda_stream_ended(int device, cudaStream_t stream)
{
    heap *h = &heaps[device];
    lock(h);
    for (int i = 0; i < h->npools; i++)
        if (h->pools[i].stream == stream)
            h->pools[i].stream = NULL;
    for (int64_t i = 0; i < h->buckets; i++)
        for (block *b = h->taken[i]; b; b = b->next)
            for (int k = b->nusers; k-- > 0;)
                if (b->users[k] == stream)
                    b->users[k] = b->users[--b->nusers];
    unlock(h);
}

ts_status ts_cuda_memory_stats(void *state, int device, ts_memory_stats *stats)
{
    (void)state;
    heap *h = &heaps[device];
    lock(h);
    *stats = h->stats;
    unlock(h);
    return TS_OK;
}

ts_status ts_cuda_memory_reset_peak(void *state, int device)
{
    (void)state;
    heap *h = &heaps[device];
    lock(h);
    h->stats.peak = h->stats.in_use;
    unlock(h);
    return TS_OK;
}
