/** @file streams.c  Asynchronous work: several streams, concurrent copies, errors that a kernel
 * finds. */
// SPDX-License-Identifier: MIT
#include "tests/cuda/driver.h"

#include <time.h>

/* The operating system may suspend the host while it queues work, so the best of several tries
 * counts. */
enum { TRIES = 8 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

TS_TEST(a_call_returns_before_its_work_is_done_and_reading_values_waits)
{
    GPU(device);
    TS_SCOPE;
    ts_tensor *a = ts_view(full_on(device, 8192 * 8192, 1), TS_SIZES(8192, 8192)), *b = ts_mm(a, a);
    double value, queued = 1, waited = 0;
    for (int tries = 0; tries < TRIES && queued >= waited / 4; tries++) {
        TS_SCOPE;
        OK(ts_synchronize(device));
        double t0 = now();
        for (int i = 0; i < 10; i++)
            b = ts_mm(a, a);
        queued = now() - t0;
        OK(ts_item(ts_select(ts_select(b, 0, 8191), 0, 8191), &value));
        waited = now() - t0;
        ck_assert_double_eq(value, 8192);
    }
    ck_assert_msg(queued < waited / 4, "10 products took %.3g s to queue of %.3g s", queued,
                  waited);
}

TS_TEST(events_measure_the_device_and_order_streams)
{
    GPU(device);
    TS_SCOPE;
    ts_event *begin, *end;
    ts_stream *other;
    double ms = 0;
    ts_tensor *a = ts_view(full_on(device, 4096 * 4096, 1), TS_SIZES(4096, 4096)), *b = NULL;
    OK(ts_event_new(device, &begin));
    OK(ts_event_new(device, &end));
    OK(ts_stream_new(device, &other));
    ts_mm(a, a);
    OK(ts_event_record(device, begin));
    for (int i = 0; i < 5; i++)
        b = ts_mm(a, a);
    OK(ts_event_record(device, end));
    OK(ts_stream_use(device, other));
    OK(ts_event_wait(device, end));
    ts_tensor *c = ts_add(b, b); /* reads the last result of the first stream */
    OK(ts_stream_synchronize(device, other));
    OK(ts_event_elapsed(device, begin, end, &ms));
    ck_assert_msg(all_are(c, 8192), "read before it was written");
    OK(ts_stream_use(device, NULL));
    ck_assert_msg(ms > 0.1 && ms < 1000, "%g ms", ms);
    ts_event_free(device, begin);
    ts_event_free(device, end);
    ts_stream_free(device, other);
}

TS_TEST(a_stream_of_the_program_may_be_the_current_stream)
{
    GPU(device);
    TS_SCOPE;
    int (*create)(void **stream, unsigned flags) = driver_function("cuStreamCreate");
    int (*query)(void *stream) = driver_function("cuStreamQuery");
    int (*destroy)(void *stream) = driver_function("cuStreamDestroy_v2");
    void *own = NULL;
    enum { NON_BLOCKING = 1, NOT_READY = 600 };
    ts_tensor *x = full_on(device, 1000, 3), *flag = ts_empty_pinned(TS_SIZES(1), TS_I32, device);
    volatile int32_t *open = ts_data_mut(flag);
    OK(ts_synchronize(device));
    ck_assert_int_eq(create(&own, NON_BLOCKING), 0);
    OK(ts_stream_use(device, own));
    ck_assert_ptr_eq(ts_stream_current(device), own);
    OK(ts_add(x, x)); /* its kernel is loaded */
    OK(ts_stream_synchronize(device, own));
    ck_assert_int_eq(query(own), 0);
    stop_stream(own, open);
    ts_tensor *y = ts_add(x, x);
    ck_assert_int_eq(query(own), NOT_READY);
    OK(ts_stream_use(device, NULL));
    ck_assert_msg(all_are(full_on(device, 10, 1), 1),
                  "the device's own stream does not wait for it");
    ck_assert_int_eq(query(own), NOT_READY);
    *open = 1;
    OK(ts_stream_synchronize(device, own));
    ck_assert(all_are(y, 6));
    ts_drop(y);
    OK(ts_synchronize(device));
    ck_assert_int_eq(destroy(own), 0);
}

TS_TEST(freeing_a_stream_of_the_program_releases_its_cached_memory)
{
    GPU(device);
    int (*create)(void **stream, unsigned flags) = driver_function("cuStreamCreate");
    enum { NON_BLOCKING = 1, TURNS = 40 }; /* memory is kept for fewer streams */
    uint64_t calls = 0;
    OK(ts_synchronize(device));
    for (int i = 0; i < TURNS; i++) {
        TS_SCOPE;
        void *own = NULL;
        ck_assert_int_eq(create(&own, NON_BLOCKING), 0);
        OK(ts_stream_use(device, own));
        ck_assert(all_are(full_on(device, 1000, i), (float)i));
        calls = i ? calls : memory_of(device).system_allocs;
        ts_stream_free(device, own);
        ck_assert_ptr_null(ts_stream_current(device));
    }
    ck_assert_uint_eq(memory_of(device).system_allocs, calls);
}

TS_TEST(a_copy_from_pinned_memory_runs_beside_work_on_another_stream)
{
    GPU(device);
    TS_SCOPE;
    int64_t n = (int64_t)256 << 20; /* bytes; some 5 to 10 ms */
    ts_tensor *host = ts_empty_pinned(TS_SIZES(n), TS_U8, device);
    ts_tensor *a = ts_view(full_on(device, 4096 * 4096, 1), TS_SIZES(4096, 4096));
    ts_stream *copies;
    OK(ts_stream_new(device, &copies));
    memset(ts_data_mut(host), 3, (size_t)n);
    double alone[2], both, queued;
    bool good = false;
    for (int turn = 0; turn <= TRIES && !good; turn++) { /* the first one warms up */
        TS_SCOPE;
        OK(ts_synchronize(device));
        double t0 = now();
        for (int i = 0; i < 4; i++)
            ts_mm(a, a);
        OK(ts_synchronize(device));
        alone[0] = now() - t0;
        OK(ts_stream_use(device, copies));
        t0 = now();
        ts_drop(ts_to_device(host, device));
        OK(ts_synchronize(device));
        alone[1] = now() - t0;
        t0 = now();
        ts_tensor *there = ts_to_device(host, device);
        queued = now() - t0;
        OK(ts_stream_use(device, NULL));
        for (int i = 0; i < 4; i++)
            ts_mm(a, a);
        OK(ts_synchronize(device));
        both = now() - t0;
        ts_drop(there);
        double least = alone[0] < alone[1] ? alone[0] : alone[1];
        good = turn > 0 && queued < alone[1] / 2 && both < alone[0] + alone[1] - least / 2;
    }
    ck_assert_msg(good, "work %.3g s, copy %.3g s, queued in %.3g s; both %.3g s", alone[0],
                  alone[1], queued, both);
    ts_stream_free(device, copies);
}

TS_TEST(an_index_out_of_range_is_reported_once_by_the_next_wait)
{
    GPU(device);
    TS_SCOPE;
    int64_t bad[] = {1, 2, 99};
    ts_tensor *x = ts_view(full_on(device, 30, 1), TS_SIZES(3, 10));
    ts_tensor *target = ts_to_device(ts_from_array(bad, TS_I64, TS_SIZES(3)), device);
    OK(ts_cross_entropy(x, target));
    ck_assert_int_eq(ts_synchronize(device), TS_ERR_INDEX);
    ck_assert_msg(strstr(ts_error_message(), "99") && strstr(ts_error_message(), "cross_entropy"),
                  "%s", ts_error_message());
    ts_error_clear();
    OK(ts_synchronize(device));
    ck_assert(all_are(full_on(device, 100, 5), 5)); /* the device still works */
}

TS_TEST(an_integer_division_by_0_is_reported_by_the_next_wait, .loop = 2)
{
    GPU(device);
    TS_SCOPE;
    int64_t some[] = {7, -7, 0}, none[] = {2, 0, 1};
    ts_tensor *a = ts_to_device(ts_from_array(some, TS_I64, TS_SIZES(3)), device);
    ts_tensor *b = ts_to_device(ts_from_array(none, TS_I64, TS_SIZES(3)), device);
    OK(_i ? ts_remainder(a, b) : ts_floor_divide(a, b));
    ck_assert_int_eq(ts_synchronize(device), TS_ERR_VALUE);
    ck_assert_msg(strstr(ts_error_message(), _i ? "remainder" : "floor_divide") &&
                      strstr(ts_error_message(),
                             "argument 'other': expected integers other than 0, got 0; found"),
                  "%s", ts_error_message());
    ts_error_clear();
    OK(ts_floor_divide(b, ts_add_scalar(b, 1)));
    OK(ts_synchronize(device));
}

TS_TEST(with_TS_SYNC_the_call_itself_returns_the_error)
{
    setenv("TS_SYNC", "1", 1);
    GPU(device);
    TS_SCOPE;
    int64_t bad[] = {-7};
    ts_tensor *x = ts_view(full_on(device, 10, 1), TS_SIZES(1, 10));
    ts_tensor *target = ts_to_device(ts_from_array(bad, TS_I64, TS_SIZES(1)), device);
    ck_assert_ptr_null(ts_cross_entropy(x, target));
    ck_assert_int_eq(ts_error_code(), TS_ERR_INDEX);
    ck_assert_msg(strstr(ts_error_message(), "-7"), "%s", ts_error_message());
}

TS_TEST(a_missing_device_is_an_error_with_the_number_of_devices)
{
    GPU(device);
    ck_assert_int_eq(ts_device_open("cuda:15", &device, NULL, 0), TS_ERR_DEVICE);
    ck_assert_msg(strstr(ts_error_message(), "cuda:15"), "%s", ts_error_message());
}
