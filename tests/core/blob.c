// ts_from_blob(): tensors over memory of the caller; its release function, and invalid arguments.
// SPDX-License-Identifier: MIT
#include "tests/harness.h"

#include <string.h>

#include "core/testing.h"
#include "tessera/tessera.h"

typedef struct receipt {
    int calls;
    void *data;
    int64_t bytes;
} receipt;

static void note(void *payload, void *data, int64_t bytes)
{
    receipt *r = payload;
    r->calls++;
    r->data = data;
    r->bytes = bytes;
}

TS_TEST(ops_read_and_write_the_callers_memory)
{
    float x[6] = {1, 2, 3, 4, 5, 6}, ten[3] = {10, 20, 30};
    TS_SCOPE;
    ts_tensor *a = ts_from_blob(x, TS_F32, (int64_t[]){2, 3}, 2, NULL, NULL);
    ts_tensor *b = ts_from_blob(ten, TS_F32, (int64_t[]){3}, 1, NULL, NULL);
    ck_assert_ptr_eq(ts_data(a), x);
    ck_assert(ts_is_contiguous(a));
    ck_assert_int_eq(ts_ndim(a), 2);
    ck_assert_int_eq(ts_numel(a), 6);
    uint32_t before = ts_version(a);
    ck_assert_ptr_eq(ts_add_(a, b), a);
    const float want[6] = {11, 22, 33, 14, 25, 36};
    ck_assert_mem_eq(x, want, sizeof want);
    ck_assert_uint_ne(ts_version(a), before);
}

TS_TEST(the_last_tensor_releases_the_memory_once)
{
    double x[4] = {1, 2, 3, 4};
    receipt r = {0};
    ts_tensor *held;
    {
        TS_SCOPE;
        ts_tensor *a = ts_from_blob(x, TS_F64, (int64_t[]){2, 2}, 2, note, &r);
        held = ts_retain(ts_detach(a));
        ck_assert_ptr_nonnull(held);
    }
    ck_assert_int_eq(r.calls, 0);
    ts_release(held);
    ck_assert_int_eq(r.calls, 1);
    ck_assert_ptr_eq(r.data, x);
    ck_assert_int_eq(r.bytes, (int64_t)sizeof x);
}

/* The blob has the size of a large block: freeing it with the library's allocator would show. */
TS_TEST(memory_without_release_stays_the_callers)
{
    static float x[1 << 16];
    x[7] = 3;
    int64_t in_use[4];
    for (int i = 0; i < 4; i++) { // the first takes memory for headers
        TS_SCOPE;
        ck_assert_ptr_nonnull(ts_from_blob(x, TS_F32, (int64_t[]){1 << 16}, 1, NULL, NULL));
        in_use[i] = ts_memory_get_stats().in_use;
    }
    for (int i = 1; i < 4; i++)
        ck_assert_int_eq(in_use[i], in_use[0]);
    ck_assert(x[7] == 3);
}

TS_TEST(a_graph_keeps_the_memory_until_it_is_freed)
{
    float x[2] = {2, 3}, y[2] = {5, 7};
    receipt r = {0};
    {
        TS_SCOPE;
        ts_tensor *w = ts_set_requires_grad(ts_from_array(y, TS_F32, (int64_t[]){2}, 1), true);
        ts_tensor *product;
        {
            TS_SCOPE;
            product = ts_keep(ts_mul(w, ts_from_blob(x, TS_F32, (int64_t[]){2}, 1, note, &r)));
        }
        ck_assert_int_eq(r.calls, 0);
        ts_tensor *one = ts_ones(TS_SIZES(2), TS_F32);
        ck_assert_int_eq(ts_backward_ex(product, one, NULL), TS_OK);
        ck_assert_mem_eq(ts_data(ts_grad(w)), x, sizeof x);
    }
    ck_assert_int_eq(r.calls, 1);
}

TS_TEST(empty_and_0_dim_tensors_are_allowed)
{
    float one = 4;
    receipt r = {0};
    {
        TS_SCOPE;
        ts_tensor *empty = ts_from_blob(NULL, TS_F32, (int64_t[]){3, 0}, 2, note, &r);
        ck_assert_ptr_nonnull(empty);
        ck_assert_int_eq(ts_numel(empty), 0);
        ck_assert_ptr_null(ts_data(empty));
        ts_tensor *scalar = ts_from_blob(&one, TS_F32, NULL, 0, NULL, NULL);
        double value = 0;
        ck_assert_int_eq(ts_item(scalar, &value), TS_OK);
        ck_assert(value == 4);
    }
    ck_assert_int_eq(r.calls, 1);
    ck_assert_int_eq(r.bytes, 0);
}

static bool refuse(size_t bytes)
{
    (void)bytes;
    return true;
}

/* Each row: wrong arguments, the status code, a word of the message. */
TS_TEST(errors_name_the_argument_and_release_nothing)
{
    double x[2] = {0};
    receipt r = {0};
    static const struct {
        ts_dtype dtype;
        int64_t sizes[2];
        int ndim;
        bool no_sizes, no_data;
        int shift;
        ts_status code;
        const char *word;
    } rows[] = {
        {TS_DTYPE_COUNT, {1, 1}, 2, false, false, 0, TS_ERR_DTYPE, "'dtype'"},
        {TS_F32, {1, 1}, -1, false, false, 0, TS_ERR_SHAPE, "'ndim'"},
        {TS_F32, {1, 1}, TS_MAX_DIMS + 1, false, false, 0, TS_ERR_SHAPE, "'ndim'"},
        {TS_F32, {1, -1}, 2, false, false, 0, TS_ERR_SHAPE, "'sizes'"},
        {TS_F32, {INT64_MAX, 4}, 2, false, false, 0, TS_ERR_SHAPE, "'sizes'"},
        {TS_F32, {1, 1}, 2, true, false, 0, TS_ERR_NULL, "'sizes'"},
        {TS_F32, {1, 1}, 2, false, true, 0, TS_ERR_NULL, "'data'"},
        {TS_F64, {1, 1}, 2, false, false, 4, TS_ERR_VALUE, "multiple of 8"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ts_error_clear();
        ck_assert_ptr_null(ts_from_blob(rows[i].no_data ? NULL : (char *)x + rows[i].shift,
                                        rows[i].dtype, rows[i].no_sizes ? NULL : rows[i].sizes,
                                        rows[i].ndim, note, &r));
        ck_assert_int_eq(ts_error_code(), rows[i].code);
        ck_assert_str_eq(ts_error_op(), "from_blob");
        ck_assert_msg(strstr(ts_error_message(), rows[i].word), "%s", ts_error_message());
    }
    ck_assert_int_eq(r.calls, 0);
}

TS_TEST(out_of_memory_leaves_the_memory_to_the_caller)
{
    static float x[4];
    receipt r = {0};
    TS_SCOPE;
    ts_alloc_fault = refuse;
    int made = 0;
    // use up cached blocks
    while (made < 100000 && ts_from_blob(x, TS_F32, (int64_t[]){4}, 1, note, &r))
        made++;
    ts_alloc_fault = NULL;
    ck_assert_int_lt(made, 100000);
    ck_assert_int_eq(ts_error_code(), TS_ERR_MEMORY);
    ck_assert_int_eq(r.calls, 0);
    ck_assert_ptr_nonnull(ts_from_blob(x, TS_F32, (int64_t[]){4}, 1, NULL, NULL));
}
