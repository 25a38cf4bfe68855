/** @file open.c  Opening the library's own backends by name, and choosing the device of a program:
 * search, errors, messages. */
// SPDX-License-Identifier: MIT
#include <tessera/tessera.h>

#include "tests/harness.h"

#include <stdlib.h>
#include <string.h>

#define OK(expr) ck_assert_msg(TS_STATUS_OF(expr) == TS_OK, "%s: %s", #expr, ts_error_message())
#define FAILS(expr, status, says)                                                                  \
    do {                                                                                           \
        ts_error_clear();                                                                          \
        ck_assert_msg((expr) == status, "%s: expected %s: %s", #expr, ts_status_name(status),      \
                      ts_error_message());                                                         \
        ck_assert_msg(strstr(ts_error_message(), says), "'%s' is not in: %s", says,                \
                      ts_error_message());                                                         \
    } while (0)

TS_TEST(TS_CUDA_names_the_file_and_a_second_opening_returns_the_same_key)
{
    ts_key first = TS_KEY_INVALID, second = TS_KEY_INVALID;
    ts_device device = TS_DEVICE_CPU;
    setenv("TS_CUDA", TS_PLUGINS "/plugin_as_cuda.so", 1);
    OK(ts_backend_open("cuda", &first));
    OK(ts_backend_open("CUDA", &second));
    ck_assert_int_eq(first, TS_KEY_CUDA);
    ck_assert_int_eq(second, first);
    OK(ts_device_open("cuda:0", &device, NULL, 0));
    ck_assert_str_eq(ts_device_name(device), "cuda:0");
    FAILS(ts_device_open("cuda:1", &device, NULL, 0), TS_ERR_DEVICE,
          "expected cuda:0, the only one, got cuda:1");
}

TS_TEST(auto_is_the_first_existing_device_and_logs_the_reason)
{
    char why[100];
    ts_device device = TS_DEVICE_CPU;
    setenv("TS_CUDA", TS_PLUGINS "/plugin_as_cuda.so", 1);
    OK(ts_device_open("auto", &device, why, sizeof why));
    ck_assert_str_eq(ts_device_name(device), "cuda:0");
    ck_assert_str_eq(why, "the first of 1 CUDA devices");
}

TS_TEST(auto_is_the_CPU_without_an_error_when_the_backend_is_refused_missing_or_without_a_device)
{
    static const char *const cases[][2] = {
        {"0", "TS_CUDA=0 disables CUDA"},
        {"/nowhere/lib.so", "cannot open '/nowhere/lib.so'"},
        {TS_PLUGINS "/plugin_no_device.so", "the cable hangs loose"}};
    for (int i = 0; i < 3; i++) {
        char why[600];
        ts_device device = {9, 9};
        setenv("TS_CUDA", cases[i][0], 1);
        OK(ts_device_open("auto", &device, why, sizeof why));
        ck_assert_int_eq(device.backend, 0);
        ck_assert_msg(strstr(why, cases[i][1]), "'%s' is not in: %s", cases[i][1], why);
        ck_assert_int_eq(ts_error_code(), TS_OK);
    }
}

TS_TEST(a_device_requested_by_name_that_is_missing_is_an_error)
{
    ts_device device = {9, 9};
    setenv("TS_CUDA", "0", 1);
    FAILS(ts_device_open("cuda", &device, NULL, 0), TS_ERR_DEVICE, "TS_CUDA=0 disables CUDA");
    FAILS(ts_device_open("moon", &device, NULL, 0), TS_ERR_VALUE, "'moon'");
    FAILS(ts_backend_open("moon", NULL), TS_ERR_VALUE, "'moon'");
    FAILS(ts_backend_open(NULL, NULL), TS_ERR_NULL, "name");
    FAILS(ts_device_open("cpu", NULL, NULL, 0), TS_ERR_NULL, "device");
    setenv("TS_CUDA", "/nowhere/lib.so", 1);
    FAILS(ts_device_open("cuda", &device, NULL, 0), TS_ERR_IO, "/nowhere/lib.so");
    setenv("TS_CUDA", TS_PLUGINS "/plugin_no_device.so", 1);
    FAILS(ts_device_open("cuda", &device, NULL, 0), TS_ERR_DEVICE,
          "there is no CUDA device: the cable hangs loose");
    ck_assert_str_eq(ts_error_hint(), "plug it in");
    ck_assert_int_eq(device.backend, 9);
    OK(ts_device_open("cpu", &device, NULL, 0));
    ck_assert_int_eq(device.backend, 0);
}
