/** @file program.c  Numbers and command lines as users type them. */
// SPDX-License-Identifier: MIT
#include "tests/harness.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tessera/tessera.h>

static bool reads(const char *text, int64_t least, int64_t most, int64_t *value)
{
    ts_error_clear();
    ts_status status = ts_parse_int("--n", text, least, most, value);
    ck_assert(status == TS_OK || status == TS_ERR_VALUE);
    if (status != TS_OK)
        ck_assert_msg(strncmp(ts_error_message(), "--n: expected a whole number ", 29) == 0 &&
                          strstr(ts_error_message(), ", got '"),
                      "%s", ts_error_message());
    return status == TS_OK;
}

/* Integers near powers of two and ten, unchanged and with one byte inserted or removed. */
TS_TEST(whole_numbers_are_read_whole_or_refused)
{
    int64_t value;
    char text[64];
    uint64_t state = 1;
    for (int i = 0; i < 20000; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        int64_t n = (int64_t)((state ^ state >> 29) & (UINT64_MAX >> (i % 64)));
        n = i % 3 == 0 ? -n : i % 3 == 1 ? (int64_t)1 << (i % 63) : n;
        snprintf(text, sizeof text, "%" PRId64, n);
        ck_assert(reads(text, INT64_MIN, INT64_MAX, &value));
        ck_assert_int_eq(value, n);
        ck_assert(reads(text, n, n, &value));
        value = 77;
        ck_assert(n == INT64_MAX || !reads(text, n + 1, INT64_MAX, &value));
        ck_assert(n == INT64_MIN || !reads(text, INT64_MIN, n - 1, &value));
        ck_assert_int_eq(value, 77);
        /* with a byte that is not a digit, at any position, the text is not a number */
        char other = (char)(1 + (state >> 33) % 255);
        size_t length = strlen(text), at = (state >> 42) % (length + 1);
        if ((other >= '0' && other <= '9') || (other == '-' && at == 0))
            continue;
        memmove(text + at + 1, text + at, length + 1 - at);
        text[at] = other;
        ck_assert_msg(!reads(text, INT64_MIN, INT64_MAX, &value), "'%s'", text);
    }
    static const char *const wrong[] = {"", "-", "+1", " 1", "1 ", "0x10", "1e3", "1.0", "--1",
                                        "9223372036854775808", "-9223372036854775809",
                                        "99999999999999999999999", "1,000", "ten", "\n1"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        ck_assert_msg(!reads(wrong[i], INT64_MIN, INT64_MAX, &value), "'%s'", wrong[i]);
    ck_assert(reads("007", 0, 10, &value));
    ck_assert_int_eq(value, 7);
}

/* Result of a command line, "" if it is refused. */
static const char *parsed(int argc, const char *const *words)
{
    static char text[256];
    bool flag = false;
    int64_t number = 5;
    const char *file = NULL, *form = "a", *out = "none";
    int status = -1;
    const ts_argument arguments[] = {
        {"--out", "", .text = &out},
        {"FILE", "", .text = &file, .required = true},
        {"--number", "", .number = &number, .least = -3, .most = 9},
        {"--flag", "", .flag = &flag},
        {"FORM", "", .text = &form, .one_of = "a|bc"},
    };
    text[0] = 0;
    ts_error_clear();
    if (ts_program_begin(argc, (char **)(uintptr_t)words, "about", arguments, 5, &status))
        snprintf(text, sizeof text, "%s %s %s %d%s", file, form, out, (int)number,
                 flag ? " flag" : "");
    else
        ck_assert_int_eq(status, 2);
    return text;
}

#define PARSED(...)                                                                                \
    parsed((int)(sizeof((const char *[]){"program", __VA_ARGS__}) / sizeof(char *)),               \
           (const char *[]){"program", __VA_ARGS__})

TS_TEST(command_lines_are_read_strictly)
{
    ck_assert_str_eq(PARSED("f"), "f a none 5");
    ck_assert_str_eq(PARSED("--out", "x", "f", "--number=-3", "bc", "--flag"), "f bc x -3 flag");
    ck_assert_str_eq(PARSED("--number", "-1", "--out=--odd", "f"), "f a --odd -1");
    ck_assert_str_eq(PARSED("--", "--flag"), "--flag a none 5");
    ck_assert_str_eq(PARSED("-"), "- a none 5");
    ck_assert_str_eq(PARSED("f", "--number=1", "--number=2"), "f a none 2");
    ck_assert_str_eq(PARSED("--flag"), "");
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "FILE: expected a value, got none"));
    ck_assert_str_eq(PARSED("f", "b"), "");
    ck_assert_str_eq(PARSED("f", "a|bc"), "");
    ck_assert_str_eq(PARSED("f", "a", "more"), "");
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "unexpected argument 'more'"));
    ck_assert_str_eq(PARSED("f", "--fla"), "");
    ck_assert_str_eq(PARSED("f", "--flags"), "");
    ck_assert_str_eq(PARSED("f", "-f"), "");
    ck_assert_str_eq(PARSED("f", "--flag=1"), "");
    ck_assert_str_eq(PARSED("f", "--out"), "");
    ck_assert_str_eq(PARSED("f", "--out="), "");
    ck_assert_str_eq(PARSED("f", "--out", "--flag"), "");
    ck_assert_str_eq(PARSED("f", "--number=10"), "");
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "--number: expected a whole number from -3 "
                                                     "to 9, got '10'"));
    ck_assert_str_eq(PARSED(""), "");
}

TS_TEST(a_program_prints_no_text_that_controls_a_terminal)
{
    static const char ugly[] = "p\x1b[2J\xc2\x9b\xe2\x80\xae";
    const char *out = ugly;
    const ts_argument arguments[] = {{"--out", "a text", .text = &out}};
    char printed[4000] = "";
    for (int k = 0; k < 2; k++) {
        FILE *file = tmpfile();
        ck_assert_ptr_nonnull(file);
        char *words[] = {(char *)ugly, (char *)(k ? "--help" : ugly), NULL};
        int status, before[2] = {dup(1), dup(2)};
        ck_assert(dup2(fileno(file), 1) >= 0 && dup2(fileno(file), 2) >= 0);
        ck_assert(!ts_program_begin(2, words, "Prints.", arguments, 1, &status));
        fflush(stdout);
        ck_assert(dup2(before[0], 1) >= 0 && dup2(before[1], 2) >= 0);
        rewind(file);
        printed[fread(printed, 1, sizeof printed - 1, file)] = 0;
        fclose(file);
        ck_assert_ptr_nonnull(strstr(printed, "p\\x1b[2J\\xc2\\x9b\\xe2\\x80\\xae"));
        for (const char *at = printed; *at; at++)
            ck_assert(*at == '\n' || (*at >= ' ' && *at < 0x7f));
        ck_assert_ptr_nonnull(strstr(printed, k ? "default p\\x1b" : "unexpected argument"));
    }
}
