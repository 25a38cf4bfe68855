/** @file alloc.c  The host allocator. alloc.h describes its structure. */
// SPDX-License-Identifier: MIT
#include "core/alloc.h"
#include "core/testing.h"
#include "core/process.h"
#include "include/tessera/program.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
bool ts_alloc_system = true;
#else
bool ts_alloc_system = false;
#endif
bool (*ts_alloc_fault)(size_t bytes) = NULL;

static _Atomic uint64_t system_allocs;
static _Atomic int64_t in_use, peak, reserved;

static void account(int64_t delta)
{
    int64_t now = atomic_fetch_add_explicit(&in_use, delta, memory_order_relaxed) + delta;
    int64_t top = atomic_load_explicit(&peak, memory_order_relaxed);
    while (now > top && !atomic_compare_exchange_weak_explicit(
                            &peak, &top, now, memory_order_relaxed, memory_order_relaxed))
        ;
}

/* -------------------------------------------------------------- memory from the system ---- */

/** Counts an allocation from the system; true if a test makes it fail. */
static bool refused(size_t bytes)
{
    atomic_fetch_add_explicit(&system_allocs, 1, memory_order_relaxed);
    return TS_UNLIKELY(ts_alloc_fault != NULL) && ts_alloc_fault(bytes);
}

void *ts_sys_alloc(size_t bytes) { return refused(bytes) ? NULL : malloc(bytes ? bytes : 1); }
void *ts_sys_calloc(size_t bytes) { return refused(bytes) ? NULL : calloc(1, bytes ? bytes : 1); }
void *ts_sys_realloc(void *block, size_t bytes)
{
    return refused(bytes) ? NULL : realloc(block, bytes ? bytes : 1);
}
void ts_sys_free(void *block) { free(block); }

/* --------------------------------------------------------------------- the large region ---- */

/*
 * One reserved range of addresses that grows at its end. Blocks are adjacent. Each has a 64-byte
 * header with its own size and the size of the block before it, so a freed block merges with both
 * neighbours and the range's high-water mark stays near the largest sum of live blocks.
 */
typedef struct block {
    size_t size;          /* bytes of the block with its header; a multiple of 64 */
    size_t before;        /* size of the block before this one; 0 for the first */
    bool used;
    struct block *next, **link; /* free list of the bin */
} block;

#define HEADER 64
#define BINS 160
#define GROW ((size_t)32 << 20)
_Static_assert(sizeof(block) <= HEADER, "header of a block");

static struct {
    pthread_mutex_t lock;
    char *base;
    size_t reserved; /* size of the address range in bytes */
    size_t limit;   /* the most bytes that may be used */
    size_t mapped;  /* bytes readable and writable */
    size_t end;     /* bytes carved into blocks */
    size_t last;    /* size of the block before end */
    block *bins[BINS]; /* lists of free blocks by size (bin_of()) */
    uint64_t filled[(BINS + 63) / 64]; /* a bit per bin: its list is not empty */
} region = {.lock = PTHREAD_MUTEX_INITIALIZER};

/** Four bins per octave: sizes in a bin differ by at most 25 %. */
static int bin_of(size_t size)
{
    int octave = 63 - __builtin_clzll(size);
    int bin = (octave - 6) * 4 + (int)((size >> (octave - 2)) & 3);
    return bin < BINS ? bin : BINS - 1;
}

static void bin_insert(block *b)
{
    int bin = bin_of(b->size);
    b->used = false;
    b->next = region.bins[bin];
    b->link = &region.bins[bin];
    if (b->next)
        b->next->link = &b->next;
    region.bins[bin] = b;
    region.filled[bin / 64] |= 1ull << (bin % 64);
}

static void bin_remove(block *b)
{
    *b->link = b->next;
    if (b->next)
        b->next->link = b->link;
    int bin = bin_of(b->size);
    if (!region.bins[bin])
        region.filled[bin / 64] &= ~(1ull << (bin % 64));
}

static bool region_reserve(void)
{
    if (region.base)
        return true;
    size_t ask = (size_t)1 << 40;
    for (; ask >= ((size_t)64 << 20); ask >>= 1) {
        void *p = mmap(NULL, ask, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p != MAP_FAILED) {
            /* limit to physical memory: an error is better than the OOM killer */
            long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
            size_t physical = pages > 0 ? (size_t)pages * (size_t)page : ask;
            region.base = p;
            region.reserved = ask;
            region.limit = ask < physical ? ask : physical;
            return true;
        }
    }
    return false;
}

/** Makes the first `need` bytes of the range readable and writable; false if out of memory. */
static bool region_grow(size_t need)
{
    if (need <= region.mapped)
        return true;
    if (need > region.limit || refused(need - region.mapped))
        return false;
    size_t to = (need + GROW - 1) / GROW * GROW;
    if (to > region.limit)
        to = need;
    to = (to + 4095) & ~(size_t)4095;
    if (mprotect(region.base + region.mapped, to - region.mapped, PROT_READ | PROT_WRITE) != 0)
        return false;
#ifdef MADV_HUGEPAGE
    (void)madvise(region.base + region.mapped, to - region.mapped, MADV_HUGEPAGE);
#endif
    atomic_fetch_add_explicit(&reserved, (int64_t)(to - region.mapped), memory_order_relaxed);
    region.mapped = to;
    return true;
}

static block *block_after(block *b)
{
    char *p = (char *)b + b->size;
    return p < region.base + region.end ? (block *)p : NULL;
}

/** Shrinks b to size and puts the rest into a bin. Keeps b whole if the rest is below 4 headers. */
static void block_split(block *b, size_t size)
{
    size_t rest = b->size - size;
    if (rest < 4 * HEADER)
        return;
    block *tail = (block *)((char *)b + size), *after = block_after(b);
    b->size = size;
    tail->size = rest;
    tail->before = size;
    if (after)
        after->before = rest;
    else
        region.last = rest;
    bin_insert(tail);
}

/** The smallest block of at least `size` bytes in the first bin that has one; NULL if none has. */
static block *find_fit(size_t size)
{
    int first = bin_of(size);
    block *best = NULL;
    for (block *b = region.bins[first]; b; b = b->next)
        if (b->size >= size && (!best || b->size < best->size))
            best = b;
    for (int bin = first + 1; !best && bin < BINS; bin++) {
        if (!(region.filled[bin / 64] >> (bin % 64) & 1)) {
            uint64_t word = region.filled[bin / 64] >> (bin % 64);
            bin += word ? __builtin_ctzll(word) - 1 : 63 - bin % 64;
            continue;
        }
        for (block *b = region.bins[bin]; b; b = b->next)
            if (b->size >= size && (!best || b->size < best->size))
                best = b;
    }
    return best;
}

static void *large_alloc(size_t bytes)
{
    if (bytes > (size_t)1 << 46)
        return NULL;
    size_t size = ((bytes + 63) & ~(size_t)63) + HEADER;
    pthread_mutex_lock(&region.lock);
    block *b = NULL;
    if (region_reserve() && !(b = find_fit(size))) {
        /* a free block at the end grows in place; otherwise a new block starts at the end */
        block *tail = region.last ? (block *)(region.base + region.end - region.last) : NULL;
        size_t start = tail && !tail->used ? region.end - region.last : region.end;
        if (region_grow(start + size)) {
            b = (block *)(region.base + start);
            if (tail && !tail->used)
                bin_remove(tail);
            else
                b->before = region.last;
            b->size = size;
            region.end = start + size;
            region.last = size;
            b->used = true;
        }
    } else if (b) {
        bin_remove(b);
        b->used = true;
        block_split(b, size);
    }
    if (b)
        account((int64_t)b->size);
    pthread_mutex_unlock(&region.lock);
    return b ? (char *)b + HEADER : NULL;
}

static void large_free(void *p)
{
    block *b = (block *)((char *)p - HEADER);
    pthread_mutex_lock(&region.lock);
    account(-(int64_t)b->size);
    block *after = block_after(b);
    if (after && !after->used) {
        bin_remove(after);
        b->size += after->size;
    }
    if (b->before) {
        block *front = (block *)((char *)b - b->before);
        if (!front->used) {
            bin_remove(front);
            front->size += b->size;
            b = front;
        }
    }
    after = block_after(b);
    if (after)
        after->before = b->size;
    else
        region.last = b->size;
    bin_insert(b);
    pthread_mutex_unlock(&region.lock);
}

/* ------------------------------------------------------------------------ small blocks ---- */

static pthread_mutex_t slab_lock = PTHREAD_MUTEX_INITIALIZER;
static char *slab_next, *slab_end;
static struct batch *batches;
static ts_heap *orphans;
static pthread_mutex_t orphan_lock = PTHREAD_MUTEX_INITIALIZER;

static size_t small_class_bytes(int klass)
{
    if (klass == TS_HEADER_CLASS)
        return TS_HEADER_BYTES;
    if (klass < 8)
        return 64 * (size_t)(klass + 1);
    int octave = (klass - 8) / 4, quarter = (klass - 8) % 4;
    return ((size_t)512 << octave) + (size_t)(quarter + 1) * ((size_t)128 << octave);
}

/** Descriptor of a mapping that is divided into 16 slabs. The mapping is one slab longer, so that
 *  the slabs can be aligned; the descriptor is in the unused rest after the last slab. */
typedef struct batch {
    struct batch *next;
    void *base;
} batch;
enum { BATCH_BYTES = 16 * TS_SLAB_BYTES, BATCH_MAPPED = BATCH_BYTES + TS_SLAB_BYTES };

/** A new slab of 64 KiB, aligned to its size; NULL if out of memory. Slabs are mapped sixteen at a
 *  time and stay mapped until ts_alloc_remove(). */
static char *slab_new(void)
{
    pthread_mutex_lock(&slab_lock);
    if (slab_next == slab_end) {
        char *p = refused(BATCH_BYTES) ? MAP_FAILED
                                       : mmap(NULL, BATCH_MAPPED, PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) {
            pthread_mutex_unlock(&slab_lock);
            return NULL;
        }
        slab_next = (char *)(((uintptr_t)p + TS_SLAB_BYTES - 1) & ~(uintptr_t)(TS_SLAB_BYTES - 1));
        slab_end = slab_next + BATCH_BYTES;
        batch *b = (batch *)slab_end;
        *b = (batch){batches, p};
        batches = b;
        atomic_fetch_add_explicit(&reserved, BATCH_BYTES, memory_order_relaxed);
    }
    char *slab = slab_next;
    slab_next += TS_SLAB_BYTES;
    pthread_mutex_unlock(&slab_lock);
    account(TS_SLAB_BYTES);
    return slab;
}

static void drain_remote(ts_heap *heap)
{
    void *block = atomic_exchange_explicit(&heap->remote, NULL, memory_order_acquire);
    while (block) {
        void *next = *ts_next_free(block);
        ts_heap_put(heap, block);
        block = next;
    }
}

static void *small_alloc(ts_heap *heap, int klass)
{
    drain_remote(heap);
    void *block = heap->free[klass];
    if (block) {
        heap->free[klass] = *ts_next_free(block);
        return block;
    }
    size_t bytes = small_class_bytes(klass);
    if ((size_t)(heap->limit[klass] - heap->bump[klass]) < bytes) {
        char *slab = slab_new();
        if (!slab)
            return NULL;
        *(ts_slab *)slab = (ts_slab){heap, (size_t)klass};
        heap->bump[klass] = slab + 64;
        heap->limit[klass] = slab + TS_SLAB_BYTES;
    }
    block = heap->bump[klass];
    heap->bump[klass] += bytes;
    return block;
}

void *ts_alloc_slow(ts_thread *thread, size_t bytes, int klass)
{
    if (TS_UNLIKELY(ts_alloc_system)) {
        void *p = NULL;
        if (thread->heap) /* with a heap, ts_free() would read a slab header that p lacks */
            ts_heap_abandon(thread->heap);
        thread->heap = NULL;
        if (refused(bytes) || posix_memalign(&p, 64, bytes ? bytes : 1) != 0)
            return NULL;
        account((int64_t)bytes);
        return p;
    }
    if (bytes > TS_SMALL_MAX)
        return large_alloc(bytes);
    if (!thread->heap)
        ts_thread_init(thread);
    if (!thread->heap && !(thread->heap = ts_heap_acquire()))
        return NULL;
    return small_alloc(thread->heap, klass);
}

void ts_free_slow(void *block, size_t bytes)
{
    if (ts_alloc_system) {
        account(-(int64_t)bytes);
        free(block);
        return;
    }
    if (bytes > TS_SMALL_MAX) {
        large_free(block);
        return;
    }
    ts_slab *slab = ts_slab_of(block);
    void *head = atomic_load_explicit(&slab->heap->remote, memory_order_relaxed);
    do
        *ts_next_free(block) = head;
    while (!atomic_compare_exchange_weak_explicit(&slab->heap->remote, &head, block,
                                                  memory_order_release, memory_order_relaxed));
}

ts_heap *ts_heap_acquire(void)
{
    pthread_mutex_lock(&orphan_lock);
    ts_heap *heap = orphans;
    if (heap)
        orphans = heap->next;
    pthread_mutex_unlock(&orphan_lock);
    return heap ? heap : ts_sys_calloc(sizeof *heap);
}

void ts_heap_abandon(ts_heap *heap)
{
    pthread_mutex_lock(&orphan_lock);
    heap->next = orphans;
    orphans = heap;
    pthread_mutex_unlock(&orphan_lock);
}

/* -------------------------------------------------------------------------- statistics ---- */

ts_memory_stats ts_memory_get_stats(void)
{
    return (ts_memory_stats){
        .in_use = atomic_load(&in_use),
        .peak = atomic_load(&peak),
        .reserved = atomic_load(&reserved),
        .system_allocs = atomic_load(&system_allocs),
    };
}

void ts_memory_reset_peak(void) { atomic_store(&peak, atomic_load(&in_use)); }

void ts_alloc_guard_forks(void)
{
    TS_FORK_GUARD(&region.lock);
    TS_FORK_GUARD(&slab_lock);
    TS_FORK_GUARD(&orphan_lock);
}

void ts_alloc_remove(void)
{
    while (batches) {
        batch *b = batches;
        batches = b->next;
        munmap(b->base, BATCH_MAPPED);
    }
    while (orphans) {
        ts_heap *heap = orphans;
        orphans = heap->next;
        ts_sys_free(heap);
    }
    if (region.base)
        munmap(region.base, region.reserved);
}

void ts_alloc_from_environment(void)
{
    if (ts_variable_choice("TS_ALLOC", "system") == 0)
        ts_alloc_system = true;
}
