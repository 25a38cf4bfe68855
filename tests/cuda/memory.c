/** @file memory.c  The device's allocator: reuse of blocks on a stream, blocks that other streams
 * use, and a full device. */
// SPDX-License-Identifier: MIT
#include "tests/cuda/cuda.h"

enum { MIB = 1 << 20 };

TS_TEST(the_next_call_of_a_stream_reuses_released_memory)
{
    GPU(device);
    TS_SCOPE;
    ts_tensor *t = full_on(device, MIB, 1);
    const void *was = ts_data(t);
    ts_drop(t);
    uint64_t calls = memory_of(device).system_allocs;
    ck_assert_ptr_eq(ts_data(full_on(device, MIB, 2)), was);
    ck_assert_uint_eq(memory_of(device).system_allocs, calls);
}

TS_TEST(statistics_count_bytes_in_use_cached_bytes_and_their_peak)
{
    GPU(device);
    TS_SCOPE;
    ts_drop(full_on(device, MIB, 1));
    ts_memory_stats before = memory_of(device);
    ts_tensor *a = full_on(device, 8 * MIB, 1), *b = full_on(device, 8 * MIB, 1);
    ts_memory_stats held = memory_of(device);
    ck_assert_int_eq(held.in_use - before.in_use, 64 * (int64_t)MIB);
    ck_assert_int_eq(held.peak, held.in_use);
    ck_assert_int_ge(held.reserved, held.in_use);
    ck_assert_uint_gt(held.system_allocs, before.system_allocs);
    ts_drop(a);
    ts_drop(b);
    ts_memory_stats after = memory_of(device);
    ck_assert_int_eq(after.in_use, before.in_use);
    ck_assert_int_eq(after.peak, held.peak);
    ck_assert_int_eq(after.reserved, held.reserved);
}

TS_TEST(without_a_cache_each_tensor_has_its_own_allocation)
{
    setenv("TS_CUDA_ALLOC", "system", 1);
    GPU(device);
    TS_SCOPE;
    ts_memory_stats before = memory_of(device);
    for (int i = 1; i <= 10; i++) {
        ts_tensor *t = full_on(device, 1000, i);
        ck_assert(all_are(t, (float)i));
        ck_assert_int_eq(memory_of(device).reserved - before.reserved, 4096);
        ts_drop(t);
        ck_assert_uint_eq(memory_of(device).system_allocs - before.system_allocs, (uint64_t)i);
        ck_assert_int_eq(memory_of(device).reserved, before.reserved);
    }
}

/* Random sizes and lifetimes: no blocks overlap, and all freed memory can be allocated again. */
TS_TEST(blocks_never_overlap_or_leak_under_random_use, .timeout = 120)
{
    GPU(device);
    enum { LIVE = 64, TURNS = 4000 };
    ts_tensor *live[LIVE] = {0};
    float mark[LIVE] = {0};
    int64_t before = memory_of(device).in_use;
    srand(7);
    for (int turn = 0; turn < TURNS; turn++) {
        TS_SCOPE;
        int i = rand() % LIVE;
        if (live[i]) {
            if (turn % 8 == 0)
                ck_assert_msg(all_are(live[i], mark[i]), "turn %d: a block of %lld lost its values",
                              turn, (long long)ts_numel(live[i]));
            ts_release(live[i]);
        }
        int64_t n = 1 + (int64_t)(rand() % 1000) * (1 << rand() % 14) / (1 + rand() % 50);
        mark[i] = (float)(turn % 4096);
        live[i] = ts_retain(full_on(device, n, mark[i]));
        ck_assert_msg(live[i], "%s", ts_error_message());
    }
    for (int i = 0; i < LIVE; i++) {
        ck_assert(!live[i] || all_are(live[i], mark[i]));
        ts_release(live[i]);
    }
    ck_assert_int_eq(memory_of(device).in_use, before);
}

/** Queues products of (2048, 2048) matrices, some milliseconds of work, on the current stream. */
static void keep_busy(ts_tensor *a, int products)
{
    for (int i = 0; i < products; i++)
        ts_drop(ts_mm(a, a));
}

/* The reader's stream lags behind. Without ts_record_stream() the allocator would reuse the block
 * for the next write at once. */
TS_TEST(memory_in_use_by_another_stream_is_not_reused, .timeout = 120)
{
    GPU(device);
    TS_SCOPE;
    enum { ROUNDS = 200 };
    ts_stream *reader;
    ts_event *written;
    ts_tensor *a = full_on(device, 2048 * 2048, 1e-3), *seen[ROUNDS];
    a = ts_view(a, TS_SIZES(2048, 2048));
    OK(ts_stream_new(device, &reader));
    OK(ts_event_new(device, &written));
    OK(ts_synchronize(device));
    for (int i = 0; i < ROUNDS; i++) {
        ts_tensor *x = full_on(device, MIB / 4, i);
        OK(ts_event_record(device, written));
        OK(ts_stream_use(device, reader));
        OK(ts_event_wait(device, written));
        if (i % 20 == 0)
            keep_busy(a, 20);
        seen[i] = ts_add(x, x);
        ck_assert_ptr_nonnull(seen[i]);
        OK(ts_record_stream(x));
        OK(ts_stream_use(device, NULL));
        ts_drop(x);
    }
    OK(ts_synchronize(device));
    for (int i = 0; i < ROUNDS; i++)
        ck_assert_msg(all_are(seen[i], (float)(2 * i)), "round %d read what was written later", i);
    ts_event_free(device, written);
    ts_stream_free(device, reader);
}

/* Each block is written on one random stream and read on another, and released while both may lag
 * behind. */
TS_TEST(values_survive_random_reuse_of_memory_on_several_streams, .timeout = 120)
{
    GPU(device);
    TS_SCOPE;
    enum { STREAMS = 4, TURNS = 3000, SEEN = 100 };
    ts_stream *streams[STREAMS];
    ts_event *written;
    ts_tensor *sums[SEEN] = {0},
              *busy = ts_retain(ts_view(full_on(device, 1 << 20, 1e-3), TS_SIZES(1024, 1024)));
    float expected[SEEN] = {0};
    int64_t before = memory_of(device).in_use;
    for (int i = 0; i < STREAMS; i++)
        OK(ts_stream_new(device, &streams[i]));
    OK(ts_event_new(device, &written));
    OK(ts_synchronize(device));
    srand(11);
    for (int turn = 0; turn < TURNS; turn++) {
        TS_SCOPE;
        int maker = rand() % STREAMS, reader = rand() % STREAMS, place = rand() % SEEN;
        int64_t n = 1 + (int64_t)(rand() % 1000) * (1 << rand() % 10);
        OK(ts_stream_use(device, streams[maker]));
        ts_tensor *x = full_on(device, n, turn % 512);
        OK(ts_event_record(device, written));
        OK(ts_stream_use(device, streams[reader]));
        OK(ts_event_wait(device, written));
        if (rand() % 20 == 0)
            keep_busy(busy, 10);
        ts_tensor *sum = ts_add(x, x);
        OK(sum);
        OK(ts_record_stream(x));
        if (sums[place]) {
            OK(ts_synchronize(device));
            ck_assert_msg(all_are(sums[place], expected[place]), "turn %d: a sum has other values",
                          turn);
            ts_release(sums[place]);
        }
        sums[place] = rand() % 8 ? NULL : ts_retain(sum);
        expected[place] = (float)(2 * (turn % 512));
    }
    OK(ts_synchronize(device));
    for (int i = 0; i < SEEN; i++) {
        ck_assert(!sums[i] || all_are(sums[i], expected[i]));
        ts_release(sums[i]);
    }
    ck_assert_int_eq(memory_of(device).in_use, before);
    ts_release(busy);
    OK(ts_stream_use(device, NULL));
    ts_event_free(device, written);
    for (int i = 0; i < STREAMS; i++)
        ts_stream_free(device, streams[i]);
}

TS_TEST(new_streams_reuse_the_cached_memory_of_freed_streams)
{
    GPU(device);
    TS_SCOPE;
    enum { AT_ONCE = 80, TURNS = 100 };
    ts_stream *streams[AT_ONCE];
    ts_tensor *live[AT_ONCE];
    for (int i = 0; i < AT_ONCE; i++) {
        OK(ts_stream_new(device, &streams[i]));
        OK(ts_stream_use(device, streams[i]));
        live[i] = full_on(device, 1000 + i, i);
        ck_assert_msg(live[i], "stream %d: %s", i, ts_error_message());
    }
    for (int i = 0; i < AT_ONCE; i++) {
        OK(ts_stream_use(device, streams[i]));
        ck_assert_msg(all_are(live[i], (float)i), "stream %d", i);
        ts_drop(live[i]);
        ts_stream_free(device, streams[i]);
    }
    uint64_t before = memory_of(device).system_allocs;
    for (int i = 0; i < TURNS; i++) {
        OK(ts_stream_new(device, &streams[0]));
        OK(ts_stream_use(device, streams[0]));
        ck_assert(all_are(full_on(device, 1000, i), (float)i));
        ts_stream_free(device, streams[0]);
    }
    ck_assert_uint_eq(memory_of(device).system_allocs, before);
}

/* Recording an event on a destroyed stream would be a CUDA error. */
TS_TEST(memory_that_was_used_on_a_stream_may_be_released_after_the_stream)
{
    GPU(device);
    TS_SCOPE;
    ts_stream *reader;
    ts_tensor *x = full_on(device, 1000, 2), *y;
    OK(ts_synchronize(device));
    OK(ts_stream_new(device, &reader));
    OK(ts_stream_use(device, reader));
    OK(y = ts_add(x, x));
    OK(ts_record_stream(x));
    ts_stream_free(device, reader);
    const void *was = ts_data(x);
    ts_drop(x);
    ts_tensor *next = full_on(device, 1000, 3);
    ck_assert_ptr_eq(ts_data(next), was);
    OK(ts_cumsum(next, 0));
    ck_assert(all_are(y, 4) && all_are(next, 3));
}

/** Allocates pieces of `bytes` until an allocation fails. Returns their number. */
static int fill(ts_device device, int64_t bytes, ts_tensor **pieces, int most)
{
    TS_SCOPE;
    int n = 0;
    while (n < most && (pieces[n] = ts_retain(ts_empty_on(TS_SIZES(bytes), TS_U8, device))))
        n++;
    ck_assert_int_lt(n, most);
    ck_assert_int_eq(ts_error_code(), TS_ERR_MEMORY);
    ts_error_clear();
    return n;
}

TS_TEST(a_full_device_is_an_error_until_memory_is_released_1000_times,
        .timeout = 300)
{
    GPU(device);
    enum { MOST = 4096 };
    static ts_tensor *large[MOST], *small[MOST];
    int64_t gib = (int64_t)1 << 30;
    int nlarge = fill(device, 2 * gib, large, MOST), nsmall = fill(device, 64 * MIB, small, MOST);
    ck_assert_int_gt(nlarge, 0);
    for (int i = 0; i < 1000; i++) {
        TS_SCOPE;
        ck_assert_ptr_null(ts_empty_on(TS_SIZES(2 * gib), TS_U8, device));
        ck_assert_int_eq(ts_error_code(), TS_ERR_MEMORY);
        ck_assert_msg(strstr(ts_error_message(),
                             "out of memory on cuda:0: a tensor needs 2147483648 bytes (in use "),
                      "%s", ts_error_message());
        ts_error_clear();
        int k = i % nlarge;
        ts_release(large[k]);
        large[k] = ts_retain(ts_empty_on(TS_SIZES(2 * gib), TS_U8, device));
        ck_assert_msg(large[k], "turn %d: %s", i, ts_error_message());
    }
    /* releasing one piece is enough for a small computation */
    if (nsmall)
        ts_release(small[--nsmall]);
    else
        ts_release(large[--nlarge]);
    ck_assert(all_are(full_on(device, 1000, 3), 3));
    for (int i = 0; i < nlarge; i++)
        ts_release(large[i]);
    for (int i = 0; i < nsmall; i++)
        ts_release(small[i]);
}

/* Cached pieces of one size must return to the device if another size needs the memory. */
TS_TEST(cached_memory_is_returned_when_the_device_is_full)
{
    GPU(device);
    TS_SCOPE;
    enum { MOST = 4096 };
    static ts_tensor *pieces[MOST];
    int64_t gib = (int64_t)1 << 30;
    int n = fill(device, 2 * gib, pieces, MOST);
    for (int i = 0; i < n; i++)
        ts_release(pieces[i]);
    ck_assert_int_gt(n, 2);
    ck_assert_msg(ts_empty_on(TS_SIZES((n - 1) * 2 * gib), TS_U8, device), "%s",
                  ts_error_message());
}
