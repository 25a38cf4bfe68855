/** @file values.h  Small tensors with known values, and comparison with literal values. */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_TESTS_OPS_VALUES_H
#define TESSERA_TESTS_OPS_VALUES_H

#include <stdlib.h>
#include <string.h>
#include "include/tessera/tessera.h"
#include "tests/harness.h"

/** 0, 1, 2, ... in a contiguous tensor. */
__attribute__((unused)) static ts_tensor *count_up(const int64_t *sizes, int ndim, ts_dtype dtype)
{
    int64_t n = 1;
    for (int i = 0; i < ndim; i++)
        n *= sizes[i];
    double *values = malloc((size_t)(n ? n : 1) * sizeof *values);
    for (int64_t i = 0; i < n; i++)
        values[i] = (double)i;
    ts_tensor *t = ts_to(ts_from_array(values, TS_F64, sizes, ndim), dtype);
    free(values);
    ck_assert_msg(t != NULL, "%s", ts_error_message());
    return t;
}

/** A one-dim tensor of n values, converted to dtype. */
__attribute__((unused)) static ts_tensor *row(ts_dtype dtype, const double *values, int64_t n)
{
    ts_tensor *t = ts_to(ts_from_array(values, TS_F64, &n, 1), dtype);
    ck_assert_msg(t != NULL, "%s", ts_error_message());
    return t;
}
#define ROW(dtype, ...) \
    row(dtype, (const double[]){__VA_ARGS__},                                                      \
        (int64_t)(sizeof((const double[]){__VA_ARGS__}) / sizeof(double)))

__attribute__((unused)) static void check_values(ts_tensor *t, const double *want, int64_t n,
                                                 int line)
{
    ck_assert_msg(t != NULL, "line %d: %s", line, ts_error_message());
    ck_assert_msg(ts_numel(t) == n, "line %d: %lld elements, expected %lld", line,
                  (long long)ts_numel(t), (long long)n);
    TS_SCOPE;
    double *got = malloc((size_t)(n ? n : 1) * sizeof *got);
    ck_assert_int_eq(ts_copy_to(ts_to(t, TS_F64), got, (size_t)n * sizeof *got), TS_OK);
    for (int64_t i = 0; i < n; i++)
        ck_assert_msg(got[i] == want[i], "line %d: element %lld is %.17g, expected %.17g", line,
                      (long long)i, got[i], want[i]);
    free(got);
}
/** Checks that the elements of t, in row-major order, equal the values exactly. */
#define EXPECT(t, ...)                                    \
    check_values(t, (const double[]){__VA_ARGS__},        \
                 (int64_t)(sizeof((const double[]){__VA_ARGS__}) / sizeof(double)), __LINE__)

__attribute__((unused)) static void check_sizes(ts_tensor *t, const int64_t *want, int n, int line)
{
    ck_assert_msg(t != NULL, "line %d: %s", line, ts_error_message());
    ck_assert_msg(ts_ndim(t) == n, "line %d: %d dims, expected %d", line, ts_ndim(t), n);
    for (int i = 0; i < n; i++)
        ck_assert_msg(ts_sizes(t)[i] == want[i], "line %d: size %lld in dim %d, expected %lld",
                      line, (long long)ts_sizes(t)[i], i, (long long)want[i]);
}
#define EXPECT_SIZES(t, ...) check_sizes(t, TS_SIZES(__VA_ARGS__), __LINE__)

__attribute__((unused)) static void check_error(const void *result, ts_status code,
                                                const char *part, int line)
{
    ck_assert_msg(result == NULL, "line %d: the call succeeded", line);
    ck_assert_msg(ts_error_code() == code, "line %d: %s, expected %s: %s", line,
                  ts_status_name(ts_error_code()), ts_status_name(code), ts_error_message());
    ck_assert_msg(strstr(ts_error_message(), part) || strstr(ts_error_hint(), part),
                  "line %d: '%s' is not in '%s' (%s)", line, part, ts_error_message(),
                  ts_error_hint());
    ts_error_clear();
}
/** Checks that the call returns NULL with this code and that message or hint contains `part`. */
#define EXPECT_ERROR(call, code, part) \
    do { ts_error_clear(); check_error(call, code, part, __LINE__); } while (0)
/** EXPECT_ERROR() for calls that return a status. */
#define EXPECT_STATUS(call, code, part)                                                            \
    do {                                                                                           \
        ts_error_clear();                                                                          \
        check_error((call) == TS_OK ? "" : NULL, code, part, __LINE__);                            \
    } while (0)

/** A leaf with the f64 values 0, 1, 2, ... */
__attribute__((unused)) static ts_tensor *leaf(const int64_t *sizes, int ndim)
{
    return ts_set_requires_grad(count_up(sizes, ndim, TS_F64), true);
}
/** Backward from y with the gradient 1, 2, 3, ... */
__attribute__((unused)) static void backward_counting(ts_tensor *y)
{
    ck_assert_msg(y != NULL, "%s", ts_error_message());
    ts_tensor *g = ts_add_scalar(count_up(ts_sizes(y), ts_ndim(y), ts_dtype_of(y)), 1);
    ck_assert_msg(ts_backward_ex(y, g, NULL) == TS_OK, "%s", ts_error_message());
}

#endif
