/** @file async.c  Streams, events and memory on the mock device of async.h. */
// SPDX-License-Identifier: MIT
#include "tests/dispatch/async.h"

TS_TEST(ops_return_before_their_work_is_done_and_reading_values_waits, .threads = true, MOCK)
{
    TS_SCOPE;
    ts_tensor *a = full_there(3);
    OK(ts_synchronize(device));
    uint64_t before = done(NULL);
    gate(NULL, true);
    ts_tensor *y = ts_mul(ts_mul(a, a), ts_mul_scalar(a, 2));
    OK(y);
    usleep(2000);
    ck_assert_uint_eq(done(NULL), before); /* queued, not done */
    gate(NULL, false);
    ck_assert_double_eq(first(y), 54);
}

TS_TEST(memory_is_not_reused_before_the_work_on_it_is_done, .threads = true, MOCK)
{
    TS_SCOPE;
    ts_tensor *y;
    gate(NULL, true);
    {
        TS_SCOPE;
        ts_tensor *a = full_there(3); /* freed while its copy and its use are still queued */
        y = ts_keep(ts_mul(a, a));
    }
    gate(NULL, false);
    ck_assert_double_eq(first(y), 9);
    /* a block that is used on a stream other than that of its allocation */
    ts_stream *s;
    OK(ts_stream_new(device, &s));
    ts_tensor *a = ts_retain(full_there(5));
    OK(ts_synchronize(device));
    OK(ts_stream_use(device, s));
    gate(s, true);
    y = ts_mul(a, a);
    OK(ts_record_stream(a));
    ts_drop(a);
    ts_release(a);
    OK(ts_stream_synchronize(device, NULL));
    gate(s, false);
    ck_assert_double_eq(first(y), 25);
    ts_drop(y); /* before its stream ends */
    ts_stream_free(device, s);
    ck_assert_ptr_null(ts_stream_current(device));
}

TS_TEST(an_event_orders_streams_that_are_otherwise_independent, .threads = true, MOCK)
{
    TS_SCOPE;
    ts_stream *s;
    ts_event *e;
    OK(ts_stream_new(device, &s));
    OK(ts_event_new(device, &e));
    ts_tensor *a = full_there(2), *b = full_there(10);
    OK(ts_synchronize(device));
    gate(NULL, true);
    ts_tensor *x = ts_mul(a, a); /* waits behind the gate */
    OK(ts_event_record(device, e));
    OK(ts_stream_use(device, s));
    ck_assert_ptr_eq(ts_stream_current(device), s);
    ts_tensor *y = ts_mul(b, b); /* the gate of this stream is open */
    ck_assert_double_eq(first(y), 100);
    uint64_t before = done(s);
    OK(ts_event_wait(device, e));
    ts_tensor *z = ts_mul(x, b);
    usleep(2000);
    ck_assert_uint_eq(done(s), before);
    gate(NULL, false);
    ck_assert_double_eq(first(z), 40);
    OK(ts_event_synchronize(device, e));
    double ms;
    OK(ts_event_elapsed(device, e, e, &ms));
    OK(ts_record_stream(x)); /* its memory belongs to the other stream */
    ts_drop(y), ts_drop(z), ts_drop(x);
    OK(ts_stream_use(device, NULL));
    OK(ts_synchronize(device));
    ts_stream_free(device, s);
    ts_event_free(device, e);
}

TS_TEST(a_copy_from_pinned_memory_is_only_queued, MOCK)
{
    {
        TS_SCOPE;
        ts_tensor *host = ts_empty_pinned(TS_SIZES(4), TS_F32, device),
                  *plain = (ts_full)(TS_SIZES(4), ts_scalar_float(1), TS_F32);
        OK(host);
        ck_assert_int_eq(pinned, 1);
        OK((ts_fill_)(host, ts_scalar_float(1)));
        gate(NULL, true);
        ts_tensor *slow = ts_to_device(plain, device), *fast = ts_to_device(host, device);
        ((float *)ts_data_mut(plain))[0] = 7; /* the copy has read it */
        ((float *)ts_data_mut(host))[0] = 7;  /* the copy has not */
        gate(NULL, false);
        ck_assert_double_eq(value(ts_select(slow, 0, 0)), 1);
        ck_assert_double_eq(value(ts_select(fast, 0, 0)), 7);
        FAILS(TS_ERR_SHAPE, ts_empty_pinned(TS_SIZES(-1), TS_F32, device));
        OK(ts_empty_pinned(TS_SIZES(2), TS_F32, TS_DEVICE_CPU));
    }
    ck_assert_int_eq(pinned, 0);
}

/** A dataset of seven samples; sample i is (3) f32, filled with i. */
static int64_t seven(void *payload) { return (void)payload, 7; }
static ts_status numbered(void *payload, int64_t index, ts_tensor **sample)
{
    (void)payload;
    return TS_STATUS_OF(sample[0] = (ts_full)(TS_SIZES(3), ts_scalar_int(index), TS_F32));
}

static void run_loader(bool no_thread)
{
    const ts_dataset set = {sizeof set, seven, numbered, NULL, 1};
    ts_loader *l = ts_loader_new(&set, TS_OPTS(ts_loader_opts, .batch = 2, .in_order = true,
                                               .device = device, .no_thread = no_thread));
    OK(l);
    for (int turn = 0; turn < 3; turn++) {
        TS_SCOPE;
        ts_tensor *doubled[4];
        gate(NULL, true);
        for (int k = 0; k < 4; k++) { /* returns while the gate is closed */
            ts_batch b;
            OK(ts_loader_next(l, &b));
            ck_assert(b.index == k && b.y == TS_NONE);
            ck_assert_int_eq(ts_device_of(b.x).backend, device.backend);
            ck_assert_int_eq(ts_size(b.x, 0), k < 3 ? 2 : 1);
            OK(doubled[k] = ts_mul_scalar(b.x, 2));
            ts_drop(b.x); /* while its use is queued */
        }
        gate(NULL, false);
        for (int k = 0; k < 4; k++)
            ck_assert_double_eq(value(ts_select(ts_select(doubled[k], 0, 0), 0, 2)), 4 * k);
        ck_assert_int_le(pinned, 5); /* memory is reused */
        if (turn == 1)
            OK(ts_loader_set_state(l, (ts_loader_state){5, 0}));
    }
    ts_loader_close(l);
    ck_assert_int_eq(pinned, 0);
}

TS_TEST(a_loader_copies_batches_while_the_callers_stream_is_busy, .threads = true, MOCK)
{
    run_loader(false);
    run_loader(true);
}

TS_TEST(a_failure_of_earlier_work_is_reported_by_the_call_that_waits, MOCK)
{
    TS_SCOPE;
    ts_tensor *a = full_there(1);
    OK(ts_neg(a)); /* queued; fails later */
    ts_error_clear();
    double v;
    ck_assert_int_eq(ts_item(ts_select(a, 0, 0), &v), TS_ERR_STATE);
    SAYS("failed earlier");
    OK(ts_item(ts_select(a, 0, 0), &v)); /* later calls work */
}

TS_TEST(backends_receive_the_deterministic_mode, MOCK)
{
    ck_assert(!deterministic);
    OK(ts_set_deterministic(true));
    ck_assert(deterministic && ts_deterministic());
    OK(ts_set_deterministic(false));
    ck_assert(!deterministic);
}

/** Computes a chain of products on streams[number]. */
static bool multiply_on_stream(int number, void *streams)
{
    TS_SCOPE;
    if (ts_stream_use(device, ((ts_stream **)streams)[number]) != TS_OK)
        return false;
    ts_tensor *x = full_there(1 + number), *y = x;
    for (int i = 0; i < 20; i++)
        y = ts_mul(ts_mul_scalar(y, 2),
                   ts_to_device((ts_full)(TS_SIZES(1000), ts_scalar_float(0.5), TS_F32), device));
    double last = 0;
    return ts_item(ts_select(y, 0, 999), &last) == TS_OK && last == 1 + number &&
           ts_stream_current(device) == ((ts_stream **)streams)[number];
}

TS_TEST(threads_work_on_streams_of_their_own, .threads = true, MOCK)
{
    ts_stream *streams[3];
    for (int i = 0; i < 3; i++)
        OK(ts_stream_new(device, &streams[i]));
    ck_assert_int_eq(ts_together(3, multiply_on_stream, streams), 3);
    ck_assert_ptr_null(ts_stream_current(device));
    for (int i = 0; i < 3; i++)
        ts_stream_free(device, streams[i]);
}

TS_TEST(asynchronous_kernels_and_round_trips_mix_in_one_training, .threads = true, MOCK)
{
    double losses[2];
    for (int d = 0; d < 2; d++) {
        TS_SCOPE;
        OK(ts_set_default_device(d ? device : TS_DEVICE_CPU));
        ts_manual_seed(11);
        ts_module *net = ts_mlp_new(3, 8, NULL);
        ts_group_opts opts = ts_optimizer_defaults(TS_SGD, 0.1);
        ts_optimizer *sgd = ts_optimizer_for(net, TS_SGD, &opts);
        OK(sgd);
        for (int step = 0; step < 4; step++) {
            TS_SCOPE;
            ts_tensor *y = ts_forward(net, ts_normal(TS_SIZES(5, 3), 0, 1, TS_F32)),
                      *loss = ts_mean(ts_mul(y, y));
            OK(ts_backward(loss));
            OK(ts_optimizer_step(sgd));
            ts_optimizer_zero_grad(sgd);
            OK(ts_item(loss, &losses[d]));
        }
        ts_optimizer_free(sgd);
        ts_module_free(net);
    }
    OK(ts_set_default_device(TS_DEVICE_CPU));
    ck_assert_double_eq(losses[0], losses[1]);
}
