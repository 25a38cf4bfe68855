// Argument checks of check.h: accepted values, messages, and option structs of other versions.
// SPDX-License-Identifier: MIT
#include "include/tessera/check.h"

#include <string.h>

#include "include/tessera/ops.h"
#include "tests/harness.h"

#define SAYS(text) ck_assert_str_eq(ts_error_message(), text)

static ts_status ts_scores_add(void *scores, const char *name, const double *values, int64_t n)
{
    TS_TRY(TS_CHECK_OBJECTS(scores));
    TS_TRY(TS_CHECK_POINTERS(scores, name));
    TS_TRY(TS_CHECK_LIST(values, n));
    TS_TRY(TS_CHECK_VALUE(n, n <= 3, "at most 3"));
    return TS_OK;
}

TS_TEST(checks_name_function_and_argument)
{
    int scores;
    double values[4] = {0};
    ck_assert_int_eq(ts_scores_add(&scores, "a", values, 3), TS_OK);
    ck_assert_int_eq(ts_scores_add(&scores, "a", NULL, 0), TS_OK);
    ck_assert_int_eq(ts_scores_add(&scores, NULL, values, 3), TS_ERR_NULL);
    SAYS("scores_add: argument 'name': expected a name, got NULL");
    ck_assert_str_eq(ts_error_op(), "scores_add");
    ck_assert_ptr_nonnull(ts_error_site());
    ck_assert_int_eq(ts_scores_add(&scores, "a", NULL, 2), TS_ERR_NULL);
    SAYS("scores_add: argument 'values': expected 2 entries, got NULL");
    ck_assert_int_eq(ts_scores_add(&scores, "a", values, -2), TS_ERR_VALUE);
    SAYS("scores_add: argument 'n': expected at least 0, got -2");
    ck_assert_int_eq(ts_scores_add(&scores, "a", values, 4), TS_ERR_VALUE);
    SAYS("scores_add: argument 'n': expected at most 3, got 4");
}

TS_TEST(an_object_of_null_passes_a_failure_on_and_a_pointer_does_not)
{
    TS_SCOPE;
    char text[] = "scores";
    ck_assert_ptr_null(ts_add(ts_ones(TS_SIZES(2), TS_F32), ts_ones(TS_SIZES(3), TS_F32)));
    ck_assert_int_eq(ts_scores_add(NULL, "a", NULL, 0), TS_ERR_SHAPE);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "add: argument 'other'"));
    ck_assert_int_eq(ts_scores_add(text, NULL, NULL, 0), TS_ERR_NULL);
    ts_error_clear();
    ck_assert_int_eq(ts_scores_add(NULL, "a", NULL, 0), TS_ERR_NULL);
    SAYS("scores_add: argument 'scores': expected an object, got NULL");
}

static ts_status each(ts_tensor *a, ts_tensor *b, const char *const *names,
                      ts_tensor *const *tensors, int n)
{
    TS_TRY(TS_CHECK_TENSORS(a, b));
    TS_TRY(TS_CHECK_STRINGS(names, n));
    return TS_CHECK_TENSOR_LIST(tensors, n);
}

TS_TEST(tensors_and_entries_of_lists_are_required)
{
    TS_SCOPE;
    ts_tensor *x = ts_ones(TS_SIZES(2), TS_F32), *list[] = {x, TS_NONE}, *missing[] = {x, NULL};
    const char *names[] = {"a", NULL}, *both[] = {"a", "b"};
    ck_assert_int_eq(each(x, x, names, list, 1), TS_OK);
    ck_assert_int_eq(each(x, TS_NONE, names, list, 1), TS_ERR_NULL);
    SAYS("each: argument 'b': expected a tensor, got TS_NONE");
    ck_assert_int_eq(each(x, x, names, list, 2), TS_ERR_NULL);
    SAYS("each: argument 'names[1]': expected a string, got NULL");
    ck_assert_int_eq(each(x, x, both, list, 2), TS_ERR_NULL);
    SAYS("each: argument 'tensors[1]': expected a tensor, got TS_NONE");
    ts_error_clear();
    ck_assert_int_eq(each(x, x, both, missing, 2), TS_ERR_NULL);
    SAYS("each: argument 'tensors[1]': expected a tensor, got NULL");
    ck_assert_int_eq(each(x, NULL, both, list, 2), TS_ERR_NULL); /* keeps the recorded failure */
    SAYS("each: argument 'tensors[1]': expected a tensor, got NULL");
}

/* ------------------------------------------------------------------------------- options ---- */

typedef struct run_opts {
    size_t size;
    double rate;
    int64_t steps;
} run_opts;
/** run_opts in an older version of the header, and (new_opts) in a newer one. */
typedef struct old_opts {
    size_t size;
    double rate;
} old_opts;
typedef struct new_opts {
    run_opts run;
    bool later;
} new_opts;

/* as in a library: the compiler does not see both sides */
__attribute__((noinline)) static ts_status run(const run_opts *opts, run_opts *read)
{
    run_opts o;
    memset(&o, 0xff, sizeof o);
    TS_TRY(TS_CHECK_OPTS(&o, opts));
    *read = o;
    return TS_OK;
}

TS_TEST(options_of_older_headers_are_completed_with_zeros)
{
    run_opts read;
    old_opts old = {.size = sizeof old, .rate = 0.5};
    ck_assert_int_eq(run(TS_OPTS(run_opts, .rate = 2, .steps = 7), &read), TS_OK);
    ck_assert(read.size == sizeof read && read.rate == 2 && read.steps == 7);
    ck_assert_int_eq(run((const run_opts *)(const void *)&old, &read), TS_OK);
    ck_assert(read.size == sizeof read && read.rate == 0.5 && read.steps == 0);
    ck_assert_int_eq(run(NULL, &read), TS_OK);
    ck_assert(read.size == sizeof read && read.rate == 0 && read.steps == 0);
}

TS_TEST(options_without_a_size_or_of_newer_headers_are_refused)
{
    run_opts read;
    new_opts newer = {.run.size = sizeof newer};
    ck_assert_int_eq(run(&newer.run, &read), TS_ERR_VALUE);
    SAYS("run: argument 'opts': expected a .size of 24, or a smaller multiple of 8 "
         "from an earlier version, got 32");
    ck_assert_int_eq(run(&(run_opts){.rate = 1}, &read), TS_ERR_VALUE);
    SAYS("run: argument 'opts': expected a .size of 24, or a smaller multiple of 8 "
         "from an earlier version, got 0");
    ck_assert_ptr_nonnull(strstr(ts_error_hint(), "TS_OPTS()"));
    ck_assert_int_eq(run(&(run_opts){.size = 4}, &read), TS_ERR_VALUE);
}

/* as in a library: the compiler does not see both sides */
__attribute__((noinline)) static ts_status name_it(const char *name, const char *without,
                                                   const char *reserved)
{
    return TS_CHECK_NAME(name, 20, without, reserved);
}

TS_TEST(a_name_is_short_printable_and_not_reserved)
{
    static const char *const good[] = {"a", "layers.0.weight", "A-b_c:d", "01234567890123456789"};
    static const char *const bad[] = {"",          " ",       "a b",          "a\n",
                                      "\x1b[31m",  "\xc3\xa9", "\x7f",          "\xe2\x80\xae",
                                      "a\xc2\x9b", "a\t",     "012345678901234567890"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        ck_assert_int_eq(name_it(good[i], "", "none of them"), TS_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ck_assert_int_eq(name_it(bad[i], "", ""), TS_ERR_VALUE);
        ck_assert_ptr_nonnull(strstr(ts_error_message(), "argument 'name': expected a name of 1 to "
                                                         "20 printable ASCII characters"));
        ck_assert_ptr_nonnull(strstr(ts_error_message(), ", got '"));
    }
    for (int c = 1; c < 256; c++) {
        const char name[] = {'x', (char)c, 0};
        bool shown = c > ' ' && c < 0x7f && c != '.' && c != ':';
        ck_assert_int_eq(name_it(name, ".:", "auto"), shown ? TS_OK : TS_ERR_VALUE);
    }
    ck_assert_int_eq(name_it("__metadata__", "", ""), TS_ERR_VALUE);
    SAYS("name_it: argument 'name': expected a name that is not reserved, got '__metadata__'");
    ck_assert_int_eq(name_it("auto", "", "? auto"), TS_ERR_VALUE);
    ck_assert_int_eq(name_it("aut", "", "? auto"), TS_OK);
    ck_assert_int_eq(name_it(NULL, "", ""), TS_ERR_NULL);
    SAYS("name_it: argument 'name': expected a name, got NULL");
}

TS_TEST(options_of_every_odd_size_are_refused)
{
    run_opts read;
    for (size_t size = 0; size < 64; size++) {
        size_t opts[8] = {size};
        bool known = size >= 8 && size <= sizeof read && size % 8 == 0;
        ck_assert_int_eq(run((const run_opts *)(const void *)opts, &read),
                         known ? TS_OK : TS_ERR_VALUE);
    }
}
