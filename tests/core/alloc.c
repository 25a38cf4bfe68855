/** @file alloc.c  The host allocator against a model, over threads, and when memory runs out. */
// SPDX-License-Identifier: MIT
#include <stdlib.h>
#include <string.h>

#include "core/testing.h"
#include "core/tensor.h"
#include "include/tessera/tessera.h"
#include "tests/blocks.h"
#include "tests/threads.h"

typedef struct held {
    unsigned char *p;
    size_t bytes;
    unsigned char mark;
} held;

static uint64_t next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/** A random size in bytes: mostly below 600, some near the limit between small and large blocks, a
 *  few up to 3 MB. */
static size_t some_size(uint64_t *state)
{
    uint64_t kind = next(state) % 16;
    return kind < 10   ? next(state) % 600
           : kind < 13 ? 7900 + next(state) % 600
           : kind < 15 ? next(state) % 100000
                       : next(state) % 3000000;
}

static void check(const held *h)
{
    size_t good = 0;
    ck_assert_uint_eq((uintptr_t)h->p % 64, 0);
    while (good < h->bytes && h->p[good] == h->mark)
        good++;
    ck_assert_msg(good == h->bytes, "byte %zu of %zu was overwritten", good, h->bytes);
}

static held take(uint64_t *state)
{
    held h = {.bytes = some_size(state), .mark = (unsigned char)next(state)};
    h.p = ts_alloc(ts_thread_self(), h.bytes);
    ck_assert_ptr_nonnull(h.p);
    memset(h.p, h.mark, h.bytes);
    return h;
}

static void check_and_free(held *h)
{
    check(h);
    ts_free(ts_thread_self(), h->p, h->bytes);
    h->p = NULL;
}

TS_TEST(blocks_keep_their_contents)
{
    enum { BLOCKS = 300 };
    static held blocks[BLOCKS];
    uint64_t state = 5;
    for (int i = 0; i < (ts_alloc_system ? 2000 : 20000); i++) {
        held *h = &blocks[next(&state) % BLOCKS];
        if (h->p)
            check_and_free(h);
        else
            *h = take(&state);
    }
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].p)
            check_and_free(&blocks[i]);
}

/* Blocks travel through a shared board, so most are freed by another thread than their maker. */
enum { BOARD = 64, WORKERS = 4 };
static held board[BOARD];
static pthread_mutex_t board_lock = PTHREAD_MUTEX_INITIALIZER;

static bool exchange_blocks(int number, void *turns)
{
    uint64_t state = (uint64_t)number + 1;
    for (int i = 0; i < *(int *)turns; i++) {
        held mine = take(&state), theirs;
        pthread_mutex_lock(&board_lock);
        held *place = &board[next(&state) % BOARD];
        theirs = *place;
        *place = mine;
        pthread_mutex_unlock(&board_lock);
        if (theirs.p)
            check_and_free(&theirs);
    }
    return true;
}

TS_TEST(blocks_may_be_freed_by_another_thread, .threads = true)
{
    int turns = ts_alloc_system ? 300 : 5000; /* fewer under a sanitizer, which is slow */
    if (!blocks_from_heaps())
        TS_SKIP(TOO_LATE);
    for (int round = 0; round < 2; round++) /* threads of round 1 reuse the heaps of round 0 */
        ck_assert_int_eq(ts_together(WORKERS, exchange_blocks, &turns), WORKERS);
    for (int i = 0; i < BOARD; i++)
        if (board[i].p)
            check_and_free(&board[i]);
}

static void *free_all(void *arg)
{
    held *blocks = arg;
    for (int i = 0; i < 1000; i++)
        check_and_free(&blocks[i]);
    return NULL;
}

TS_TEST(blocks_freed_by_another_thread_return_to_their_owner)
{
    static held blocks[1000];
    int64_t reserved = 0;
    if (!blocks_from_heaps())
        TS_SKIP(TOO_LATE);
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 1000; i++) {
            blocks[i] = (held){ts_alloc(ts_thread_self(), 500), 500, (unsigned char)i};
            ck_assert_ptr_nonnull(blocks[i].p);
            memset(blocks[i].p, i, 500);
        }
        pthread_t thread;
        ck_assert_int_eq(pthread_create(&thread, NULL, free_all, blocks), 0);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        if (round == 1)
            reserved = ts_memory_get_stats().reserved;
    }
    ck_assert_int_eq(ts_memory_get_stats().reserved, reserved);
}

/* Blocks that thread 0 allocates and other threads free, while thread 0 allocates more. */
enum { HANDED = 3000, HANDED_BYTES = 200 };
typedef struct handed {
    pthread_barrier_t made;
    void *first[HANDED], *second[HANDED];
} handed;

static void write_blocks(void **blocks)
{
    for (int i = 0; i < HANDED; i++)
        if ((blocks[i] = ts_alloc(ts_thread_self(), HANDED_BYTES)))
            memset(blocks[i], i, HANDED_BYTES);
}

static bool make_or_free(int number, void *ctx)
{
    handed *h = ctx;
    bool good = true;
    if (number == 0)
        write_blocks(h->first);
    pthread_barrier_wait(&h->made);
    if (number == 0)
        write_blocks(h->second); /* may reuse blocks that the others free */
    for (int i = 0; i < HANDED; i++) {
        void *block = number == 0                       ? h->second[i]
                      : i % (WORKERS - 1) == number - 1 ? h->first[i]
                                                        : NULL;
        good &= number > 0 ||
                (block && *((unsigned char *)block + HANDED_BYTES - 1) == (unsigned char)i);
        if (block)
            ts_free(ts_thread_self(), block, HANDED_BYTES);
    }
    return good;
}

TS_TEST(blocks_return_while_their_thread_allocates, .threads = true)
{
    if (!blocks_from_heaps())
        TS_SKIP(TOO_LATE);
    static handed h;
    pthread_barrier_init(&h.made, NULL, WORKERS);
    for (int round = 0; round < 10; round++)
        ck_assert_int_eq(ts_together(WORKERS, make_or_free, &h), WORKERS);
    pthread_barrier_destroy(&h.made);
}

TS_TEST(free_neighbours_merge)
{
    if (!blocks_from_heaps())
        TS_SKIP(TOO_LATE);
    enum { PARTS = 64 };
    const size_t part = 100 * 1000;
    ts_thread *self = ts_thread_self();
    void *parts[PARTS], *fence;
    for (int i = 0; i < PARTS; i++)
        ck_assert_ptr_nonnull(parts[i] = ts_alloc(self, part));
    /* occupies the space after the parts, so that `whole` must reuse theirs */
    ck_assert_ptr_nonnull(fence = ts_alloc(self, part));
    int64_t reserved = ts_memory_get_stats().reserved;
    char *first = parts[0];
    for (int step = 2; step >= 1; step--) /* odd, then even parts: merges on both sides */
        for (int i = step - 1; i < PARTS; i += 2)
            ts_free(self, parts[i], part);
    char *whole = ts_alloc(self, PARTS * part);
    ck_assert_ptr_eq(whole, first);
    ck_assert_int_eq(ts_memory_get_stats().reserved, reserved);
    ts_free(self, whole, PARTS * part);
    ts_free(self, fence, part);
}

TS_TEST(statistics_follow_blocks)
{
    ts_thread *self = ts_thread_self();
    const size_t bytes = 10 << 20;
    int64_t before = ts_memory_get_stats().in_use;
    ts_memory_reset_peak();
    void *p = ts_alloc(self, bytes);
    ck_assert_int_ge(ts_memory_get_stats().in_use, before + (int64_t)bytes);
    ts_free(self, p, bytes);
    ck_assert_int_eq(ts_memory_get_stats().in_use, before);
    ck_assert_int_ge(ts_memory_get_stats().peak, before + (int64_t)bytes);
    ts_memory_reset_peak();
    ck_assert_int_eq(ts_memory_get_stats().peak, before);
}

TS_TEST(the_largest_sizes_are_refused)
{
    ts_thread *self = ts_thread_self();
    ck_assert_ptr_null(ts_alloc(self, (size_t)1 << 50));
    ck_assert_ptr_null(ts_alloc(self, SIZE_MAX / 2));
    void *p = ts_alloc(self, 0);
    ck_assert_ptr_nonnull(p);
    ts_free(self, p, 0);
}

/* ------------------------------------------------------------------------ out of memory ---- */

static int64_t refuse_from; /* least bytes of an allocation that fails; 0: none fails */
static bool refuse(size_t bytes) { return refuse_from && (int64_t)bytes >= refuse_from; }

TS_TEST(out_of_memory_is_an_ordinary_error)
{
    TS_SCOPE;
    const int64_t n = 64 << 20;
    ts_alloc_fault = refuse;
    ts_tensor *a = ts_ones(TS_SIZES(4), TS_F32);
    refuse_from = 1 << 20;
    ck_assert_ptr_null(ts_zeros(&n, 1, TS_F32));
    ck_assert_int_eq(ts_error_code(), TS_ERR_MEMORY);
    ck_assert_str_eq(ts_error_op(), "zeros");
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "268435456 bytes"));
    int64_t in_use = ts_memory_get_stats().in_use;
    for (int i = 0; i < 100; i++)
        ck_assert_ptr_null(ts_zeros(&n, 1, TS_F32));
    ck_assert_int_eq(ts_memory_get_stats().in_use, in_use);
    ts_tensor *b = ts_add(a, a);
    ck_assert_ptr_nonnull(b);
    ck_assert_float_eq(((const float *)ts_data(b))[3], 2);
    refuse_from = 0;
    ck_assert_ptr_nonnull(ts_zeros(&n, 1, TS_F32));
    ts_alloc_fault = NULL;
}

TS_TEST(a_step_in_steady_state_requests_no_memory_from_the_system)
{
    if (!blocks_from_heaps())
        TS_SKIP(TOO_LATE);
    TS_SCOPE;
    ts_tensor *small = ts_ones(TS_SIZES(4), TS_F32), *large = ts_ones(TS_SIZES(512, 1024), TS_F32);
    ts_tensor *leaf = ts_set_requires_grad(ts_ones(TS_SIZES(4), TS_F32), true);
    uint64_t before = 0;
    for (int i = 0; i < 300; i++) {
        TS_SCOPE;
        if (i == 50)
            before = ts_memory_get_stats().system_allocs;
        ts_tensor *y = ts_mul(ts_add(small, leaf), small);
        ck_assert_ptr_nonnull(y);
        ck_assert_int_eq(ts_backward_ex(y, small, NULL), TS_OK);
        ts_zero_grad(leaf);
        ck_assert_ptr_nonnull(ts_add(large, ts_mul(large, large)));
    }
    ck_assert_uint_eq(ts_memory_get_stats().system_allocs, before);
}
