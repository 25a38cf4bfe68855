/**
 * @file alloc.h  The allocator of host memory. Blocks of up to TS_SMALL_MAX bytes come from free
 * lists of the calling thread; larger blocks come from one region, in which free neighbours merge.
 *
 * Blocks are 64-byte aligned. The caller passes the block's size to ts_free(), so small blocks have
 * no header. A thread that frees a block of another thread's heap pushes it to that heap's
 * lock-free list.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CORE_ALLOC_H
#define TS_CORE_ALLOC_H

#include "core/thread.h"

#define TS_SMALL_MAX 8192   /* bytes; larger blocks come from the region */
#define TS_SMALL_CLASSES 25 /* number of size classes, the class of tensor headers included */
/** Size class of tensor headers. Its slabs hold headers only, so a stale tensor handle points to a
 *  header, unless ts_alloc_system is set. */
#define TS_HEADER_CLASS 24
#define TS_HEADER_BYTES 256 /* size of its blocks */
#define TS_SLAB_BYTES 65536

/** The small blocks of one thread. The arrays have an entry per size class. */
struct ts_heap {
    void *free[TS_SMALL_CLASSES];  /* first free block, linked by ts_next_free() */
    char *bump[TS_SMALL_CLASSES];  /* start of the unused rest of the class's newest slab */
    char *limit[TS_SMALL_CLASSES]; /* end of that slab */
    _Atomic(void *) remote;        /* first block freed by another thread, linked like `free` */
    ts_heap *next;                 /* next in the list of orphans: heaps of ended threads */
};

/** Header at the start of a slab. A slab is TS_SLAB_BYTES of memory, aligned to its size, that
 *  holds blocks of one size class. */
typedef struct ts_slab {
    ts_heap *heap; /* owner */
    size_t klass;  /* size class */
} ts_slab;

/** True if each block comes from the C library, for memory checkers: with TS_ALLOC=system or
 *  TS_DEBUG=scopes, and in sanitizer builds. */
extern bool ts_alloc_system;
/** Sets ts_alloc_system by the environment variable TS_ALLOC. */
void ts_alloc_from_environment(void);
/** Registers the allocator's locks with TS_FORK_GUARD(). */
void ts_alloc_guard_forks(void);
/** Returns the slabs, the region and the heaps of ended threads to the system, when the library
 *  unloads. No block may be in use, and no other thread may call the allocator. */
void ts_alloc_remove(void);

/** Size class of a block of bytes <= TS_SMALL_MAX: multiples of 64 up to 512, then four classes per
 *  power of two. */
TS_INLINE int ts_small_class(size_t bytes)
{
    if (bytes <= 512)
        return (int)((bytes + 63) >> 6) - (bytes != 0);
    int octave = 63 - __builtin_clzll(bytes - 1); /* 9 for 513..1024 */
    return 8 + (octave - 9) * 4 + (int)(((bytes - 1) >> (octave - 2)) & 3);
}

/** Slow paths of ts_alloc(), ts_header_alloc() and ts_free(). klass: the size class of a small
 *  block; ignored if bytes > TS_SMALL_MAX. */
void *ts_alloc_slow(ts_thread *thread, size_t bytes, int klass);
void ts_free_slow(void *block, size_t bytes);

/** Free blocks are linked by their second word, because the first word of a dead header holds its
 *  keys. */
TS_INLINE void **ts_next_free(void *block) { return (void **)block + 1; }

/** Takes a block off a free list; NULL if the list is empty. */
TS_INLINE void *ts_heap_take(ts_heap *heap, int klass)
{
    void **list = &heap->free[klass];
    void *block = *list;
    if (TS_LIKELY(block != NULL))
        *list = *ts_next_free(block);
    return block;
}

/** Allocates `bytes` bytes, uninitialised. NULL if out of memory; no error is recorded. */
TS_INLINE void *ts_alloc(ts_thread *thread, size_t bytes)
{
    void *block = NULL;
    int klass = bytes <= TS_SMALL_MAX ? ts_small_class(bytes) : 0;
    if (TS_LIKELY(bytes <= TS_SMALL_MAX && thread->heap))
        block = ts_heap_take(thread->heap, klass);
    return TS_LIKELY(block != NULL) ? block : ts_alloc_slow(thread, bytes, klass);
}
/** Memory for a tensor header of at most TS_HEADER_BYTES, uninitialised; free it with ts_free().
 *  NULL if out of memory; no error is recorded. */
TS_INLINE void *ts_header_alloc(ts_thread *thread, size_t bytes)
{
    void *block = thread->heap ? ts_heap_take(thread->heap, TS_HEADER_CLASS) : NULL;
    return TS_LIKELY(block != NULL) ? block : ts_alloc_slow(thread, bytes, TS_HEADER_CLASS);
}

/** Header of the slab that contains a small block of a heap. */
TS_INLINE ts_slab *ts_slab_of(void *block)
{
    return (ts_slab *)((uintptr_t)block & ~(uintptr_t)(TS_SLAB_BYTES - 1));
}
/** Puts a small block of this heap into its free list. */
TS_INLINE void ts_heap_put(ts_heap *heap, void *block)
{
    void **list = &heap->free[ts_slab_of(block)->klass];
    *ts_next_free(block) = *list;
    *list = block;
}

/** Puts a header of this heap into its free list. */
TS_INLINE void ts_heap_put_header(ts_heap *heap, void *block)
{
    *ts_next_free(block) = heap->free[TS_HEADER_CLASS];
    heap->free[TS_HEADER_CLASS] = block;
}

/** Frees a block of ts_alloc() or ts_header_alloc(), not NULL. bytes: the size passed there. */
TS_INLINE void ts_free(ts_thread *thread, void *block, size_t bytes)
{
    ts_heap *heap = thread->heap; /* NULL while blocks come from malloc, or memory was short */
    if (TS_LIKELY(bytes <= TS_SMALL_MAX && heap && ts_slab_of(block)->heap == heap))
        ts_heap_put(heap, block);
    else
        ts_free_slow(block, bytes);
}

/** A heap for a thread: an orphan or a new heap; NULL if out of memory. */
ts_heap *ts_heap_acquire(void);
/** Makes the heap an orphan that a later thread takes over. */
void ts_heap_abandon(ts_heap *heap);

/** malloc, zeroed malloc, realloc and free of the C library. NULL if out of memory; no error is
 *  recorded. Tests make them fail through ts_alloc_fault (core/testing.h). */
void *ts_sys_alloc(size_t bytes);
void *ts_sys_calloc(size_t bytes);
void *ts_sys_realloc(void *block, size_t bytes);
void ts_sys_free(void *block);

/** A block of ts_alloc(). A variable declared with TS_HELD frees it at the end of the enclosing C
 *  block, also when an exception ends the block. */
typedef struct ts_held {
    ts_thread *thread;
    void *at; /* the block; NULL: none */
    size_t bytes;
} ts_held;
TS_INLINE void ts_held_free(ts_held *held)
{
    if (held->at)
        ts_free(held->thread, held->at, held->bytes);
}
#define TS_HELD __attribute__((cleanup(ts_held_free)))

#endif
