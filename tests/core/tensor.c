/** @file tensor.c  Making tensors, reading them, and devices by name. */
// SPDX-License-Identifier: MIT
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/tensor.h"
#include "include/tessera/tessera.h"
#include "tests/blocks.h"
#include "tests/harness.h"

TS_TEST(from_array_copies_and_copy_to_returns_it, .loop = TS_DTYPE_COUNT)
{
    TS_SCOPE;
    ts_dtype dtype = (ts_dtype)_i;
    unsigned char data[6 * 8], back[6 * 8];
    for (int i = 0; i < (int)sizeof data; i++)
        data[i] = (unsigned char)(dtype == TS_BOOL ? i & 1 : i);
    size_t bytes = 6 * ts_dtype_size(dtype);
    ts_tensor *t = ts_from_array(data, dtype, (int64_t[]){2, 3}, 2);
    memset(data, 0xee, sizeof data); /* ts_from_array() has copied */
    ck_assert_int_eq(ts_copy_to(t, back, bytes), TS_OK);
    for (size_t i = 0; i < bytes; i++)
        ck_assert_uint_eq(back[i], dtype == TS_BOOL ? i & 1 : i);
    ck_assert_int_eq(ts_ndim(t), 2);
    ck_assert_int_eq(ts_size(t, 0), 2);
    ck_assert_int_eq(ts_size(t, -1), 3);
    ck_assert_int_eq(ts_strides(t)[0], 3);
    ck_assert_int_eq(ts_numel(t), 6);
    ck_assert_int_eq(ts_dtype_of(t), dtype);
    ck_assert(ts_is_contiguous(t));
}

TS_TEST(sizes_from_outside_are_checked)
{
    TS_SCOPE;
    const float x[1] = {0};
    ck_assert_ptr_null(ts_from_array(x, TS_F32, (int64_t[]){-1}, 1));
    ck_assert_int_eq(ts_error_code(), TS_ERR_SHAPE);
    ck_assert_ptr_null(ts_from_array(x, TS_F32, (int64_t[]){INT64_MAX, 2}, 2));
    ck_assert_int_eq(ts_error_code(), TS_ERR_SHAPE);
    ck_assert_ptr_null(ts_from_array(x, TS_F64, (int64_t[]){INT64_MAX / 8 + 1}, 1));
    ck_assert_int_eq(ts_error_code(), TS_ERR_SHAPE);
    /* a size of 0 does not hide that the product of the other sizes overflows */
    ck_assert_ptr_null(ts_from_array(x, TS_F32, (int64_t[]){0, INT64_MAX, INT64_MAX}, 3));
    ck_assert_int_eq(ts_error_code(), TS_ERR_SHAPE);
    ck_assert_ptr_null(ts_from_array(x, TS_F32, (int64_t[]){1, 1, 1, 1, 1, 1, 1, 1, 1}, 9));
    ck_assert_int_eq(ts_error_code(), TS_ERR_SHAPE);
    ck_assert_ptr_null(ts_from_array(x, TS_F32, NULL, -1));
    ck_assert_int_eq(ts_error_code(), TS_ERR_SHAPE);
    ck_assert_ptr_null(ts_from_array(x, (ts_dtype)99, (int64_t[]){1}, 1));
    ck_assert_int_eq(ts_error_code(), TS_ERR_DTYPE);
    ck_assert_ptr_null(ts_from_array(NULL, TS_F32, (int64_t[]){1}, 1));
    ck_assert_int_eq(ts_error_code(), TS_ERR_NULL);
    ck_assert_ptr_null(ts_from_array(x, TS_F32, (int64_t[]){(int64_t)1 << 44}, 1));
    ck_assert_int_eq(ts_error_code(), TS_ERR_MEMORY);
    ck_assert_ptr_nonnull(ts_from_array(NULL, TS_F32, (int64_t[]){0, 3}, 2));
    ck_assert_ptr_nonnull(ts_from_array(x, TS_F32, NULL, 0));
}

TS_TEST(an_empty_tensor_has_no_address_and_is_contiguous)
{
    TS_SCOPE;
    ts_tensor *t = ts_zeros(TS_SIZES(3, 0), TS_F32);
    ck_assert_ptr_null(ts_data(t));
    ck_assert_ptr_null(ts_data_mut(t));
    ck_assert_int_eq(ts_copy_to(t, NULL, 0), TS_OK);
    ts_tensor *odd =
        ts_adopt(ts_tensor_alias(ts_thread_self(), t, (int64_t[]){0, 3}, (int64_t[]){7, 5}, 2, 0));
    ck_assert(ts_is_contiguous(odd));
}

TS_TEST(a_size_out_of_range_is_an_error)
{
    TS_SCOPE;
    ts_tensor *t = ts_zeros(TS_SIZES(3, 4), TS_F32);
    ck_assert_int_eq(ts_size(t, 2), -1);
    ck_assert_int_eq(ts_error_code(), TS_ERR_INDEX);
    ck_assert_int_eq(ts_size(t, -3), -1);
    ck_assert_int_eq(ts_size(t, -2), 3);
    ts_error_clear();
    ck_assert_int_eq(ts_size(NULL, 0), -1);
    ck_assert_int_eq(ts_error_code(), TS_ERR_NULL);
}

TS_TEST(item_requires_one_element)
{
    TS_SCOPE;
    double d = 0;
    int64_t i = 0;
    ck_assert_int_eq(ts_item(ts_full(TS_SIZES(1, 1), TS_SCALAR(2.5), TS_F32), &d), TS_OK);
    ck_assert_double_eq(d, 2.5);
    ck_assert_int_eq(ts_item(ts_full(NULL, 0, TS_SCALAR(1.5L), TS_BF16), &d), TS_OK);
    ck_assert_double_eq(d, 1.5);
    ck_assert_int_eq(ts_item(ts_full(NULL, 0, TS_SCALAR(-0.75), TS_F16), &d), TS_OK);
    ck_assert_double_eq(d, -0.75);
    ck_assert_int_eq(ts_item_int(ts_full(NULL, 0, TS_SCALAR(INT64_MAX), TS_I64), &i), TS_OK);
    ck_assert_int_eq(i, INT64_MAX);
    ck_assert_int_eq(ts_item_int(ts_full(NULL, 0, TS_SCALAR(-5), TS_I32), &i), TS_OK);
    ck_assert_int_eq(i, -5);
    ck_assert_int_eq(ts_item_int(ts_full(NULL, 0, TS_SCALAR(true), TS_BOOL), &i), TS_OK);
    ck_assert_int_eq(i, 1);
    ck_assert_int_eq(ts_item(ts_zeros(TS_SIZES(2), TS_F32), &d), TS_ERR_SHAPE);
    ck_assert_int_eq(ts_item(ts_zeros(TS_SIZES(0), TS_F32), &d), TS_ERR_SHAPE);
    ck_assert_int_eq(ts_item_int(ts_zeros(TS_SIZES(1), TS_F32), &i), TS_ERR_DTYPE);
    ck_assert_int_eq(ts_item(ts_empty_on(NULL, 0, TS_F32, TS_DEVICE_META), &d), TS_ERR_DEVICE);
    ts_error_clear();
    ck_assert_int_eq(ts_item(ts_zeros(NULL, 0, TS_F32), NULL), TS_ERR_NULL);
    ts_error_clear();
    ck_assert_int_eq(ts_item(TS_NONE, &d), TS_ERR_NULL);
}

TS_TEST(copy_to_packs_any_strides_and_requires_the_exact_size)
{
    TS_SCOPE;
    const float x[6] = {0, 1, 2, 3, 4, 5};
    float back[6] = {0};
    ts_tensor *t = ts_from_array(x, TS_F32, (int64_t[]){2, 3}, 2);
    ts_tensor *turned =
        ts_adopt(ts_tensor_alias(ts_thread_self(), t, (int64_t[]){3, 2}, (int64_t[]){1, 3}, 2, 0));
    ck_assert_int_eq(ts_copy_to(turned, back, sizeof back), TS_OK);
    const float want[6] = {0, 3, 1, 4, 2, 5};
    ck_assert_mem_eq(back, want, sizeof want);
    ck_assert_int_eq(ts_copy_to(t, back, sizeof back - 1), TS_ERR_VALUE);
    ck_assert_int_eq(ts_copy_to(t, back, 0), TS_ERR_VALUE);
    ck_assert_int_eq(ts_copy_to(t, NULL, sizeof back), TS_ERR_NULL);
    ck_assert_int_eq(ts_copy_to(ts_empty_on(TS_SIZES(2), TS_F32, TS_DEVICE_META), back, 8),
                     TS_ERR_DEVICE);
}

TS_TEST(writing_through_the_address_bumps_the_version)
{
    TS_SCOPE;
    ts_tensor *t = ts_zeros(TS_SIZES(2), TS_F32), *view = ts_detach(t);
    uint32_t version = ts_version(t);
    ck_assert_ptr_nonnull(ts_data(t));
    ck_assert_uint_eq(ts_version(t), version);
    *(float *)ts_data_mut(view) = 1;
    ck_assert_uint_eq(ts_version(t), version + 1);
}

TS_TEST(devices_have_names)
{
    ts_device d;
    ck_assert_int_eq(ts_device_from_name("cpu", &d), TS_OK);
    ck_assert_uint_eq(d.backend, TS_KEY_CPU);
    ck_assert_int_eq(ts_device_from_name("cuda:3", &d), TS_OK);
    ck_assert(d.backend == TS_KEY_CUDA && d.index == 3);
    ck_assert_str_eq(ts_device_name(d), "cuda:3");
    ck_assert_int_eq(ts_device_from_name("meta", &d), TS_OK);
    ck_assert_str_eq(ts_device_name(d), "meta");
    const char *const wrong[] = {"", "cpux", "gpu", "cuda:", "cuda:x", "cuda:1x", "cuda:-1",
                                 "cuda:256", "autograd", "?", ":0",
                                 "a name that is much longer than any device that there could be"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ck_assert_msg(ts_device_from_name(wrong[i], &d) == TS_ERR_VALUE,
                      "'%s' was taken for a device", wrong[i]);
        ck_assert_ptr_nonnull(strstr(ts_error_message(), "expected a device"));
    }
    ck_assert_int_eq(ts_device_from_name(NULL, &d), TS_ERR_NULL);
    ck_assert_int_eq(ts_device_from_name("cpu", NULL), TS_ERR_NULL);
}

TS_TEST(factories_use_the_default_device)
{
    TS_SCOPE;
    ck_assert_int_eq(ts_set_default_device(TS_DEVICE_META), TS_OK);
    ck_assert_uint_eq(ts_device_of(ts_zeros(TS_SIZES(2), TS_F32)).backend, TS_KEY_META);
    ck_assert_int_eq(ts_set_default_device((ts_device){200, 0}), TS_ERR_DEVICE);
    ck_assert_int_eq(ts_set_default_device((ts_device){9, 0}), TS_ERR_DEVICE);
    ck_assert_uint_eq(ts_default_device().backend, TS_KEY_META);
    ck_assert_int_eq(ts_set_default_device(TS_DEVICE_CPU), TS_OK);
}

TS_TEST(a_device_without_a_backend_is_refused)
{
    TS_SCOPE;
    ck_assert_ptr_null(ts_empty_on(TS_SIZES(2), TS_F32, (ts_device){TS_KEY_CUDA, 0}));
    ck_assert_int_eq(ts_error_code(), TS_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "empty"));
    ck_assert_ptr_null(ts_empty_on(TS_SIZES(2), TS_F32, (ts_device){16, 0}));
    ck_assert_int_eq(ts_error_code(), TS_ERR_DEVICE);
    ck_assert_ptr_null(ts_to_device(ts_ones(NULL, 0, TS_F32), (ts_device){TS_KEY_LAZY, 0}));
    ck_assert_int_eq(ts_error_code(), TS_ERR_DEVICE);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "known backend"));
}

/** Output of ts_print(), through a temporary file in place of stdout. */
static char *printed(ts_tensor *t)
{
    static char text[65536];
    FILE *file = tmpfile();
    fflush(stdout);
    int saved = dup(1);
    dup2(fileno(file), 1);
    ts_status status = ts_print(t);
    fflush(stdout);
    dup2(saved, 1);
    close(saved);
    rewind(file);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    ck_assert_int_eq(status, TS_OK);
    return text;
}

TS_TEST(print_shows_values_sizes_and_dtype)
{
    TS_SCOPE;
    const float x[4] = {1, 2.5f, -3, 0};
    ck_assert_str_eq(printed(ts_from_array(x, TS_F32, (int64_t[]){2, 2}, 2)),
                     "[[1, 2.5],\n [-3, 0]] (2, 2) f32 cpu\n");
    ck_assert_str_eq(printed(ts_full(NULL, 0, TS_SCALAR(7), TS_I64)), "7 () i64 cpu\n");
    ck_assert_str_eq(printed(ts_zeros(TS_SIZES(0), TS_BOOL)), "[] (0) bool cpu\n");
    ck_assert_str_eq(printed(ts_empty_on(TS_SIZES(3), TS_F32, TS_DEVICE_META)), "(3) f32 meta\n");
    const char *many = printed(ts_zeros(TS_SIZES(100, 100), TS_F32));
    ck_assert_uint_lt(strlen(many), 1000);
    ck_assert_ptr_nonnull(strstr(many, "..."));
}

TS_TEST(promotion_is_symmetric_and_keeps_the_stronger, .loop = TS_DTYPE_COUNT)
{
    ts_dtype a = (ts_dtype)_i;
    for (int k = 0; k < TS_DTYPE_COUNT; k++) {
        ts_dtype b = (ts_dtype)k, both = ts_dtype_promote(a, b);
        ck_assert_int_eq(both, ts_dtype_promote(b, a));
        ck_assert_int_eq(ts_dtype_promote(both, a), both);
        ck_assert(ts_dtype_is_float(both) == (ts_dtype_is_float(a) || ts_dtype_is_float(b)));
    }
    ck_assert_int_eq(ts_dtype_promote(TS_BF16, TS_F16), TS_F32);
    ck_assert_int_eq(ts_dtype_promote(TS_I64, TS_F16), TS_F16);
    ck_assert_int_eq(ts_dtype_promote(TS_U8, TS_BOOL), TS_U8);
}

/* If header and data are separate blocks and happen to be adjacent, both are freed. */
TS_TEST(tensors_of_any_size_free_their_data)
{
    if (!blocks_from_malloc())
        TS_SKIP(TOO_LATE);
    int64_t before = ts_memory_get_stats().in_use;
    for (int i = 0; i < 200; i++) {
        TS_SCOPE;
        for (int k = 0; k < 16; k++) {
            ts_tensor *t = ts_empty(TS_SIZES(257 + (37 * i + 101 * k) % 4000), TS_F32);
            ck_assert_ptr_nonnull(t);
            if (k % 3 == 0)
                ts_drop(t);
        }
    }
    ck_assert_int_eq(ts_memory_get_stats().in_use, before);
}
