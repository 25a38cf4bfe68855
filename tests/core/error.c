/** @file error.c  Error records: setting, propagation through NULL, messages, threads. */
// SPDX-License-Identifier: MIT
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "include/tessera/tessera.h"
#include "tests/threads.h"

static ts_tensor *numbers(int64_t n)
{
    static const float zeros[16];
    return ts_from_array(zeros, TS_F32, &n, 1);
}

TS_TEST(a_failure_names_op_argument_expected_and_got)
{
    TS_SCOPE;
    ck_assert_ptr_null(ts_add(numbers(2), numbers(3)));
    ck_assert_int_eq(ts_error_code(), TS_ERR_SHAPE);
    ck_assert_str_eq(ts_error_op(), "add");
    ck_assert_ptr_nonnull(
        strstr(ts_error_message(),
               "add: argument 'other': expected sizes that broadcast with (2), got (3)"));
    ck_assert_ptr_nonnull(ts_error_site());
}

TS_TEST(propagation_leaves_the_root_failure)
{
    TS_SCOPE;
    ts_tensor *a = numbers(2);
    ts_tensor *bad = ts_add(a, numbers(3));
    char first[1200];
    strcpy(first, ts_error_message());
    ck_assert_ptr_null(ts_mul(ts_sub(bad, a), a));
    ck_assert_ptr_null(ts_add_(bad, a));
    ck_assert_ptr_null(ts_add_out(bad, a, a));
    ck_assert_ptr_null(ts_clone(bad));
    ck_assert_int_eq(ts_backward(bad), TS_ERR_SHAPE);
    ck_assert_int_eq(ts_item(bad, &(double){0}), TS_ERR_SHAPE);
    ck_assert_str_eq(ts_error_message(), first);
}

TS_TEST(the_next_root_failure_overwrites)
{
    TS_SCOPE;
    ts_tensor *a = numbers(2);
    ts_add(a, numbers(3));
    ts_to(a, (ts_dtype)77);
    ck_assert_int_eq(ts_error_code(), TS_ERR_DTYPE);
    ck_assert_str_eq(ts_error_op(), "to");
}

/** Fails with the message of the first failure, whatever the call with the query's result says. */
static void expect_first(const char *first, const char *call, bool failed)
{
    ck_assert_msg(failed, "%s succeeded", call);
    ck_assert_int_eq(ts_error_code(), TS_ERR_SHAPE);
    ck_assert_msg(strcmp(ts_error_message(), first) == 0, "%s: %s", call, ts_error_message());
}
#define FIRST(call) expect_first(first, #call, !(call))

TS_TEST(numbers_of_a_failed_tensor_keep_the_root_failure)
{
    TS_SCOPE;
    ts_tensor *a = numbers(4), *bad = ts_add(a, numbers(3));
    char first[1200];
    strcpy(first, ts_error_message());
    FIRST(ts_arange(0, ts_size(bad, 0), 1, TS_I64));
    FIRST(ts_narrow(a, 0, 0, ts_size(bad, 0)));
    FIRST(ts_reshape(a, ts_sizes(bad), ts_ndim(bad)));
    FIRST(ts_view(a, TS_SIZES(ts_numel(bad), 2)));
    FIRST(ts_zeros(TS_SIZES(2), ts_dtype_of(bad)));
    int64_t n = ts_size(bad, 0);
    ck_assert_int_eq(n, -1);
    ck_assert_ptr_null(ts_sub(ts_zeros(TS_SIZES(n), TS_F32), ts_arange(0, n, 1, TS_F32)));
    ck_assert_int_eq(ts_error_set(TS_ERR_VALUE, "expected 3 channels, got %d", (int)n),
                     TS_ERR_SHAPE);
    FIRST(ts_ones(TS_SIZES(n), TS_F32));
}

TS_TEST(a_query_that_fails_is_the_root_failure)
{
    TS_SCOPE;
    ck_assert_ptr_null(ts_arange(0, ts_size(numbers(2), 5), 1, TS_I64));
    ck_assert_str_eq(ts_error_op(), "size");
    ts_error_clear();
    ck_assert_ptr_null(ts_arange(0, ts_size(NULL, 0), 1, TS_I64));
    ck_assert_str_eq(ts_error_op(), "size");
}

TS_TEST(a_failure_that_was_read_or_cleared_is_replaced, .loop = 3)
{
    TS_SCOPE;
    ts_tensor *bad = ts_add(numbers(2), numbers(3));
    ck_assert_int_eq(ts_ndim(_i == 2 ? numbers(2) : bad), _i == 2); /* only NULL keeps it */
    if (_i == 0)
        ts_error_clear();
    else if (_i == 1)
        ck_assert_str_ne(ts_error_message(), "");
    ck_assert_ptr_null(ts_arange(0, -1, 1, TS_I64));
    ck_assert_str_eq(ts_error_op(), "arange");
}

TS_TEST(success_leaves_the_record)
{
    TS_SCOPE;
    ts_tensor *a = numbers(2);
    ts_add(a, numbers(3));
    ck_assert_ptr_nonnull(ts_add(a, a));
    ck_assert_int_eq(ts_error_code(), TS_ERR_SHAPE);
}

TS_TEST(clear_empties_the_record)
{
    TS_SCOPE;
    ts_add(numbers(2), numbers(3));
    ts_error_clear();
    ck_assert_int_eq(ts_error_code(), TS_OK);
    ck_assert_str_eq(ts_error_message(), "");
    ck_assert_str_eq(ts_error_op(), "");
    ck_assert_str_eq(ts_error_hint(), "");
    ck_assert_ptr_null(ts_error_site());
}

TS_TEST(null_with_an_empty_record_is_a_root_failure)
{
    TS_SCOPE;
    ck_assert_ptr_null(ts_add(NULL, numbers(2)));
    ck_assert_int_eq(ts_error_code(), TS_ERR_NULL);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "add: argument 'self'"));
    ts_error_clear();
    ck_assert_int_eq(ts_status_of_pointer(NULL), TS_ERR_NULL);
    ck_assert_int_eq(ts_error_code(), TS_ERR_NULL);
}

TS_TEST(backward_takes_none_for_no_gradient)
{
    TS_SCOPE;
    ts_tensor *leaf = ts_set_requires_grad(ts_ones(NULL, 0, TS_F64), true);
    ts_tensor *y = ts_mul_scalar(leaf, 3.0);
    double d = 0;
    ck_assert_int_eq(ts_backward_ex(y, TS_NONE, NULL), TS_OK);
    ck_assert_int_eq(ts_item(ts_grad(leaf), &d), TS_OK);
    ck_assert_double_eq(d, 3);
}

static ts_status chain(ts_tensor *a, ts_tensor *b)
{
    TS_SCOPE;
    TS_TRY(ts_add(a, b));
    TS_TRY(ts_set_num_threads(1));
    return TS_OK;
}

TS_TEST(try_takes_pointers_and_statuses)
{
    TS_SCOPE;
    ck_assert_int_eq(chain(numbers(2), numbers(2)), TS_OK);
    ck_assert_int_eq(chain(numbers(2), numbers(3)), TS_ERR_SHAPE);
    ck_assert_int_eq(ts_set_num_threads(0), TS_ERR_VALUE);
}

TS_TEST(an_application_makes_failures_of_its_own)
{
    ck_assert_int_eq(ts_error_set_hint(TS_ERR_FORMAT, "look", "line %d", 3), TS_ERR_FORMAT);
    ck_assert_str_eq(ts_error_message(), "line 3");
    ck_assert_str_eq(ts_error_hint(), "look");
    /* the message of the record may be an argument of ts_error_set() */
    ts_error_set(TS_ERR_IO, "while reading: %s", ts_error_message());
    ck_assert_str_eq(ts_error_message(), "while reading: line 3");
    ck_assert_str_eq(ts_error_hint(), "");
}

TS_TEST(a_long_message_is_cut)
{
    char text[4000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    ts_error_set(TS_ERR_IO, "%s", text);
    ck_assert_uint_gt(strlen(ts_error_message()), 1000);
    ck_assert_uint_lt(strlen(ts_error_message()), sizeof text - 1);
}

static void *other_thread(void *arg)
{
    ts_status *seen = arg;
    *seen = ts_error_code();
    ts_error_set(TS_ERR_INDEX, "of the other thread");
    return NULL;
}

TS_TEST(each_thread_has_a_record)
{
    ts_status seen = TS_ERR_INTERNAL;
    ts_error_set(TS_ERR_IO, "of this thread");
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, other_thread, &seen), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(seen, TS_OK);
    ck_assert_str_eq(ts_error_message(), "of this thread");
}

/** Fails in thread-specific ways and reads its record. */
static bool fail_often(int number, void *ctx)
{
    (void)ctx;
    char expected[80];
    bool good = true;
    for (int i = 0; i < 500; i++) {
        TS_SCOPE;
        ts_error_clear();
        snprintf(expected, sizeof expected, "broadcast with (%d), got (%d)", 2 + number, 7 + i % 5);
        good &= !ts_add(numbers(2 + number), numbers(7 + i % 5)) && ts_error_code() == TS_ERR_SHAPE;
        good &= strcmp(ts_error_op(), "add") == 0 && strstr(ts_error_message(), expected);
    }
    return good;
}

TS_TEST(threads_that_fail_at_once_read_their_own_failures, .threads = true)
{
    ck_assert_int_eq(ts_together(4, fail_often, NULL), 4);
    ck_assert_int_eq(ts_error_code(), TS_OK);
}

TS_TEST(every_status_has_a_name, .loop = TS_ERR_INTERNAL + 1)
{
    ck_assert_ptr_null(strchr(ts_status_name((ts_status)_i), '?'));
    ck_assert_str_eq(ts_status_name((ts_status)1000), "TS_ERR_?");
}

static int lines;
static void count_line(void *payload, const char *topic, const char *line)
{
    (void)payload;
    ck_assert(topic[0] && line[0] && !strchr(line, '\n'));
    lines++;
}

TS_TEST(nothing_is_logged_for_an_ordinary_error)
{
    TS_SCOPE;
    ts_log_set_callback(count_line, NULL);
    ts_add(numbers(2), numbers(3));
    ck_assert_int_eq(lines, 0);
}

TS_TEST(a_printed_call_site_can_be_looked_up)
{
    TS_SCOPE;
    ts_mm(numbers(2), numbers(3));
    char path[] = "/tmp/ts-error-XXXXXX", text[2000] = "";
    int fd = mkstemp(path), console = dup(2);
    dup2(fd, 2);
    ts_error_print();
    dup2(console, 2);
    ck_assert_int_gt(pread(fd, text, sizeof text - 1, 0), 0);
    unlink(path);
    /* "called from main+0x1c in prog" or "prog+0x11c9": an offset, which is the same in each run */
    const char *site = strstr(text, "\n  called from ");
    char module[100];
    unsigned long offset;
    ck_assert_msg(site && sscanf(site, " called from %99[^+]+%lx", module, &offset) == 2, "%s",
                  text);
    ck_assert_uint_lt(offset, 1ul << 32);
}

TS_TEST(no_byte_of_a_message_controls_a_terminal)
{
    static const struct {
        const char *text, *shown;
    } cases[] = {
        {"plain, \xc3\xa9 and \xe2\x82\xac", "plain, \xc3\xa9 and \xe2\x82\xac"},
        {"\x1b[31m\a\r\x7f", "\\x1b[31m\\x07\\x0d\\x7f"},
        {"c1 \xc2\x9b", "c1 \\xc2\\x9b"},
        {"bidi \xe2\x80\xae", "bidi \\xe2\\x80\\xae"},
        {"no UTF-8 \xff\xc3", "no UTF-8 \\xff\\xc3"},
        {"overlong \xc0\x9b", "overlong \\xc0\\x9b"},
        {"no first byte \x80\x9d\x85\x9b", "no first byte \\x80\\x9d\\x85\\x9b"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ts_error_set_hint(TS_ERR_VALUE, cases[i].text, "%s", cases[i].text);
        ck_assert_str_eq(ts_error_message(), cases[i].shown);
        ck_assert_str_eq(ts_error_hint(), cases[i].shown);
    }
    ts_error_clear();
}

TS_TEST(a_scalar_of_an_unknown_kind_is_refused)
{
    TS_SCOPE;
    ts_tensor *x = numbers(2);
    for (int kind = 0; kind < 256; kind++) {
        ts_scalar s = {.kind = (uint8_t)kind};
        s.i = 0x0102030405060708;
        if (kind >= TS_SCALAR_BOOL && kind <= TS_SCALAR_FLOAT)
            continue;
        ck_assert_ptr_null(ts_add_scalar(x, s));
        ck_assert_int_eq(ts_error_code(), TS_ERR_VALUE);
        char text[80];
        snprintf(text, sizeof text,
                 "argument 'other': expected a scalar of kind 1 to 3, got kind %d", kind);
        ck_assert_ptr_nonnull(strstr(ts_error_message(), text));
        ts_error_clear();
        ts_value args[] = {ts_value_tensor(x), ts_value_scalar(s)}, sum = ts_value_none();
        ck_assert_int_eq(ts_call_boxed(ts_op_by_name("add"), args, 2, &sum, 1), TS_ERR_VALUE);
        ck_assert_ptr_nonnull(strstr(ts_error_message(), "got kind"));
        ts_error_clear();
    }
}

static char logged[1200], logged_topic[32];
static void note_line(void *payload, const char *topic, const char *line)
{
    (void)payload;
    snprintf(logged, sizeof logged, "%s", line);
    snprintf(logged_topic, sizeof logged_topic, "%s", topic);
}

/** Characters that a terminal may interpret or not show, by Unicode's tables only. */
static bool is_safe(const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        uint32_t c = *p;
        int more = c < 0x80 ? 0 : c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
        c &= more ? 0x3fu >> more : 0x7fu;
        for (int i = 0; i < more; i++) {
            if ((*++p & 0xc0) != 0x80)
                return false;
            c = c << 6 | (*p & 0x3f);
        }
        if (c < 0x20 || (c >= 0x7f && c <= 0x9f) || c == 0x61c || c == 0x200e || c == 0x200f ||
            (c >= 0x202a && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069))
            return false;
    }
    return true;
}

TS_TEST(any_bytes_of_a_name_are_escaped)
{
    ts_log_set_callback(note_line, NULL);
    uint32_t state = 1;
    for (int round = 0; round < 20000; round++) {
        static const char *const parts[] = {"\xe2\x80\xae", "\xe2\x81\xa6", "\xd8\x9c", "\xc2\x85",
                                            "\x1b[2J",     "\r",           "\n",       "\t",
                                            "a",           "\xc3\xa9",     "\xe2\x82\xac",
                                            "\xf0\x9f\x98\x80", "\xf8\x88\x80\x80\x80",
                                            "\xed\xa0\x80"};
        char name[40] = "", shown[61], copy[400];
        size_t used = 0;
        while (used + 6 < sizeof name) {
            state = state * 1664525 + 1013904223;
            unsigned pick = state >> 16 & 31;
            if (pick < sizeof parts / sizeof *parts)
                used += (size_t)snprintf(name + used, sizeof name - used, "%s", parts[pick]);
            else
                name[used++] = (char)(state >> 24 ? state >> 24 : 1);
        }
        name[used] = 0;
        ck_assert_ptr_eq(ts_escape_text(shown, sizeof shown, name), shown);
        ck_assert_msg(is_safe(shown), "round %d: %s", round, shown);
        ts_log_write("warning", "%s", name);
        ck_assert_msg(is_safe(logged) && strncmp(logged, shown, strlen(shown)) == 0,
                      "round %d: %s and %s", round, logged, shown);
        ts_error_set(TS_ERR_VALUE, "%s", name);
        for (char *p = strcpy(copy, "x"), *q = (char *)(uintptr_t)ts_error_message(); *q; q++)
            if (*q != '\n' && *q != '\t' && (size_t)(p - copy) < sizeof copy - 1)
                *p++ = *q, *p = 0;
        ck_assert(is_safe(copy));
        size_t small = state % 20;
        memset(shown, 'z', sizeof shown);
        ts_escape_text(shown, small, name);
        ck_assert(small == 0 ? shown[0] == 'z' : strlen(shown) < small && is_safe(shown));
    }
    ck_assert_ptr_null(ts_escape_text(NULL, 10, "a"));
    ts_log_set_callback(NULL, NULL);
    ts_error_clear();
}

TS_TEST(a_variable_with_a_wrong_value_is_a_warning)
{
    ts_log_set_callback(note_line, NULL);
    setenv("TS_TEST_CHOICE", "two", 1);
    ck_assert_int_eq(ts_variable_choice("TS_TEST_CHOICE", "one|two"), 1);
    ck_assert_int_eq(ts_variable_choice("TS_TEST_UNSET", "one|two"), -1);
    setenv("TS_TEST_CHOICE", "", 1);
    ck_assert_int_eq(ts_variable_choice("TS_TEST_CHOICE", "one|two"), -1);
    ck_assert_str_eq(logged, "");
    setenv("TS_TEST_CHOICE", "tw\x1b", 1);
    ck_assert_int_eq(ts_variable_choice("TS_TEST_CHOICE", "one|two"), -1);
    ck_assert_str_eq(logged_topic, "warning");
    ck_assert_str_eq(logged,
                     "TS_TEST_CHOICE: expected one|two, got 'tw\\x1b'; the variable is ignored");
    ts_log_set_callback(NULL, NULL);
    ck_assert(ts_log_on("warning") && !ts_log_on("warnings") && !ts_log_on(NULL));
}

TS_TEST(a_device_is_named_with_its_index)
{
    ck_assert_str_eq(ts_device_name((ts_device){0, 3}), "cpu:3");
    ck_assert_str_eq(ts_device_name((ts_device){15, 255}), "meta:255");
    ck_assert_str_eq(ts_device_name(TS_DEVICE_CPU), "cpu");
    ck_assert_str_eq(ts_device_name((ts_device){1, 0}), "cuda:0");
    TS_SCOPE;
    ts_tensor *x = numbers(2);
    for (int i = 1; i < 256; i++) {
        char got[32];
        ts_device cpu = {0, (uint8_t)i}, meta = {15, (uint8_t)i};
        snprintf(got, sizeof got, "got cpu:%d", i);
        ck_assert_ptr_null(ts_empty_on(TS_SIZES(2), TS_F32, cpu));
        ck_assert_int_eq(ts_error_code(), TS_ERR_DEVICE);
        ck_assert_ptr_nonnull(strstr(ts_error_message(), "expected cpu, the only one, "));
        ck_assert_ptr_nonnull(strstr(ts_error_message(), got));
        ck_assert_ptr_null(ts_to_device(x, cpu));
        ck_assert_ptr_nonnull(strstr(ts_error_message(), got));
        ck_assert_ptr_null(ts_to_device(x, meta));
        ck_assert_int_eq(ts_set_default_device(cpu), TS_ERR_DEVICE);
        ck_assert_ptr_nonnull(strstr(ts_error_message(), got));
        ck_assert_int_eq(ts_set_default_device(meta), TS_ERR_DEVICE);
        ck_assert_int_eq(ts_synchronize(cpu), TS_ERR_DEVICE);
        ck_assert_ptr_nonnull(strstr(ts_error_message(), got));
    }
    ts_error_clear();
}

TS_TEST(meta_tensors_are_refused_where_values_are_needed)
{
    TS_SCOPE;
    ts_tensor *x = numbers(2), *w = ts_set_requires_grad(numbers(2), true);
    ts_tensor *meta = ts_empty_on(ts_sizes(x), ts_ndim(x), TS_F32, TS_DEVICE_META);
    uint32_t version = ts_version(x);
    double value;
    ck_assert_ptr_null(ts_copy_(x, meta));
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "a META tensor has no values"));
    ck_assert_uint_eq(ts_version(x), version);
    ck_assert_ptr_null(ts_to_device(meta, TS_DEVICE_CPU));
    ck_assert_ptr_nonnull(ts_copy_(meta, x)); /* META copies need no values */
    ck_assert_int_eq(ts_item(ts_sum(meta), &value), TS_ERR_DEVICE);
    ck_assert_int_eq(ts_set_grad(w, meta), TS_ERR_DEVICE);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "expected a tensor on cpu, got one on meta"));
    ck_assert_ptr_nonnull(strstr(ts_error_hint(), "META tensors have no values"));
    ck_assert_int_eq(ts_backward_ex(ts_mul(w, w), meta, NULL), TS_ERR_DEVICE);
    ck_assert_ptr_nonnull(strstr(ts_error_hint(), "META tensors have no values"));
    ck_assert_ptr_null(ts_add(x, meta));
    ck_assert_ptr_nonnull(strstr(ts_error_hint(), "META tensors have no values"));
    ts_error_clear();
}

TS_TEST(no_error_text_has_equal_expected_and_actual_values)
{
    TS_SCOPE;
    ts_tensor *x = numbers(2);
    size_t bytes = (size_t)ts_numel(x) * 4;
    ck_assert_int_eq(ts_copy_to(x, NULL, bytes), TS_ERR_NULL);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "argument 'data': expected "));
    ck_assert_ptr_nonnull(strstr(ts_error_message(), ", got NULL"));
    ts_value place = ts_value_none();
    static const int64_t counts[] = {-1, INT64_MIN, INT32_MIN, (int64_t)INT32_MAX + 1, UINT32_MAX,
                                     (int64_t)1 << 32, ((int64_t)1 << 32) + 1, INT64_MAX};
    for (size_t k = 0; k < 2 * sizeof counts / sizeof *counts; k++) {
        int64_t n = counts[k / 2];
        char text[80];
        ts_value args[] = {k % 2 ? ts_value_tensors(&x, n) : ts_value_tensor(x),
                           k % 2 ? ts_value_int(0) : ts_value_ints((int64_t[]){2}, n)};
        int op = ts_op_by_name(k % 2 ? "cat" : "reshape");
        snprintf(text, sizeof text, "': expected 0 to 2147483647 entries, got %lld", (long long)n);
        ck_assert_int_eq(ts_call_boxed(op, args, 2, &place, 1), TS_ERR_VALUE);
        ck_assert_ptr_nonnull(strstr(ts_error_message(), text));
        ts_error_clear();
    }
    ts_error_clear();
}
