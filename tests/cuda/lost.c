/** @file lost.c  After a kernel that faults, the device is lost, and calls on it are errors. */
// SPDX-License-Identifier: MIT
#include "tests/cuda/driver.h"

#include <sys/wait.h>
#include <unistd.h>

static const char wild[] = ".version 7.0\n.target sm_80\n.address_size 64\n"
                           ".visible .entry wild()\n{\n"
                           "    .reg .b64 %at;\n    .reg .b32 %x;\n"
                           "    mov.u64 %at, 64;\n    mov.u32 %x, 1;\n"
                           "    st.global.u32 [%at], %x;\n    ret;\n}\n";

/** Asserts that a call failed with TS_ERR_DEVICE and a message that names the fault. */
static void expect_lost(ts_status status, const char *call)
{
    ck_assert_msg(status == TS_ERR_DEVICE && ts_error_code() == TS_ERR_DEVICE, "%s: %s", call,
                  ts_status_name(status));
    ck_assert_msg(strstr(ts_error_message(), "cuda:0 is lost") &&
                      strstr(ts_error_message(), "IllegalAddress"),
                  "%s: %s", call, ts_error_message());
    ck_assert_msg(strstr(ts_error_hint(), "CPU"), "%s: %s", call, ts_error_hint());
    ts_error_clear();
}

TS_TEST(after_a_fault_each_call_on_the_device_reports_it_and_the_CPU_still_works)
{
    GPU(device);
    TS_SCOPE;
    ts_stream *stream, *other;
    ts_event *event, *later;
    float values[3] = {1, 2, 3};
    ts_tensor *here = ts_from_array(values, TS_F32, TS_SIZES(3));
    OK(ts_stream_new(device, &stream));
    OK(ts_stream_new(device, &other));
    OK(ts_event_new(device, &event));
    OK(ts_stream_use(device, stream));
    ts_tensor *there = ts_to_device(here, device),
              *pinned = ts_empty_pinned(TS_SIZES(3), TS_F32, device);
    OK(ts_sigmoid(there));
    OK(ts_synchronize(device)); /* so that the error does not name sigmoid */
    ts_tensor *sum = ts_add(there, there), *product = ts_mul(there, there);
    launch_ptx(wild, "wild", stream, NULL);

    ck_assert_int_eq(ts_synchronize(device), TS_ERR_DEVICE);
    const char *message = ts_error_message();
    ck_assert_msg(strstr(message, "cudaErrorIllegalAddress"), "%s", message);
    ck_assert_msg(strstr(message, "launched since the last successful synchronization: add, mul"),
                  "%s", message);
    ts_error_clear();

    expect_lost(TS_STATUS_OF(ts_add(there, there)), "an op");
    expect_lost(TS_STATUS_OF(ts_mm(ts_view(sum, TS_SIZES(3, 1)), ts_view(product, TS_SIZES(1, 3)))),
                "a product");
    expect_lost(TS_STATUS_OF(ts_empty_on(TS_SIZES(1 << 20), TS_F32, device)), "an allocation");
    expect_lost(ts_copy_to(there, values, sizeof values), "a copy to the CPU");
    expect_lost(TS_STATUS_OF(ts_to_device(here, device)), "a copy from the CPU");
    expect_lost(TS_STATUS_OF(ts_empty_pinned(TS_SIZES(3), TS_F32, device)), "pinned memory");
    expect_lost(ts_synchronize(device), "a wait");
    expect_lost(ts_stream_synchronize(device, stream), "a wait for a stream");
    expect_lost(ts_event_record(device, event), "an event");
    expect_lost(ts_stream_new(device, &other), "a stream");
    expect_lost(ts_event_new(device, &later), "an event that is new");

    ts_event_free(device, event);
    ts_stream_free(device, stream);
    ts_drop(there);
    ts_drop(pinned);
    ck_assert_msg(ts_error_code() == TS_OK, "giving back set an error: %s", ts_error_message());

    double value;
    OK(ts_item(ts_sum(ts_mul(here, here)), &value));
    ck_assert_double_eq(value, 14);
}

/** Uses the parent's device in a forked child. Returns 0, or the number of a failed check. */
static int try_in_child(ts_device device, ts_tensor *there, ts_tensor *here)
{
    double value = 0;
    if (ts_add(there, there) || ts_error_code() != TS_ERR_DEVICE ||
        !strstr(ts_error_message(), "forked"))
        return 1;
    ts_error_clear();
    if (ts_synchronize(device) != TS_ERR_DEVICE)
        return 2;
    ts_error_clear();
    ts_release(there); /* must set no error */
    if (ts_error_code() != TS_OK)
        return 3;
    return ts_item(ts_sum(here), &value) == TS_OK && value == 6 ? 0 : 4;
}

TS_TEST(a_forked_child_gets_an_error_for_its_parents_device)
{
    GPU(device);
    TS_SCOPE;
    float values[3] = {1, 2, 3};
    ts_tensor *here = ts_from_array(values, TS_F32, TS_SIZES(3));
    ts_tensor *there = ts_retain(full_on(device, 100, 2));
    int status = 0;
    OK(there);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0)
        _exit(try_in_child(device, there, here));
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with %x", status);
    ck_assert(all_are(ts_add(there, there), 4)); /* the parent can still use it */
    ts_release(there);
}
