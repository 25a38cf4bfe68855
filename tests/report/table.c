/**
 * @file table.c
 * Tables: alignment, number formats, the three styles.
 */
// SPDX-License-Identifier: MIT
#include <tessera/report.h>

#include "report/text.h"
#include "tests/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void utf8(void)
{
    setenv("LC_ALL", "C.UTF-8", 1);
}

static ts_text_table *sample(void)
{
    ts_text_table *table =
        ts_text_table_new((ts_column[]){{.header = "op"},
                                   {.header = "calls", .format = TS_NUMBER_GENERAL},
                                   {.header = "self", .format = TS_NUMBER_SI, .unit = "s"},
                                   {.header = "share", .format = TS_NUMBER_PERCENT, .digits = 1}},
                     4);
    ck_assert_ptr_nonnull(table);
    ck_assert_int_eq(ts_text_table_text(table, "línear"), TS_OK);
    ck_assert_int_eq(ts_text_table_number(table, 24000), TS_OK);
    ck_assert_int_eq(ts_text_table_number(table, 1.2345), TS_OK);
    ck_assert_int_eq(ts_text_table_number(table, 0.8125), TS_OK);
    ts_text_table_text(table, "a|b, \"c\"");
    ts_text_table_number(table, 7);
    ts_text_table_number(table, 45.6e-6);
    ts_text_table_number(table, NAN);
    ck_assert_int_eq(ts_text_table_rule(table), TS_OK);
    ts_text_table_text(table, "all");
    return table;
}

static void assert_prints(const ts_text_table *table, ts_text_table_style style,
                          const char *expected)
{
    char *printed = NULL;
    size_t size;
    FILE *stream = open_memstream(&printed, &size);

    ck_assert_int_eq(ts_text_table_print(table, stream, style), TS_OK);
    fclose(stream);
    ck_assert_str_eq(printed, expected);
    free(printed);
}

TS_TEST(table_terminal_aligns_columns, .setup = utf8)
{
    ts_text_table *table = sample();

    assert_prints(table, TS_TEXT_TABLE_TERMINAL,
                  "op        calls     self  share\n"
                  "───────────────────────────────\n"
                  "línear    24000   1.23 s  81.2%\n"
                  "a|b, \"c\"      7  45.6 µs       \n"
                  "───────────────────────────────\n"
                  "all                            \n");
    setenv("LC_ALL", "C", 1);
    assert_prints(table, TS_TEXT_TABLE_TERMINAL,
                  "op        calls     self  share\n"
                  "-------------------------------\n"
                  "línear    24000   1.23 s  81.2%\n"
                  "a|b, \"c\"      7  45.6 us       \n"
                  "-------------------------------\n"
                  "all                            \n");
    ts_text_table_free(table);
}

TS_TEST(table_csv_keeps_numbers_unscaled)
{
    ts_text_table *table = sample();

    assert_prints(table, TS_TEXT_TABLE_CSV,
                  "op,calls,self,share\n"
                  "línear,24000,1.2345,0.8125\n"
                  "\"a|b, \"\"c\"\"\",7,4.56e-05,\n"
                  "all,,,\n");
    ts_text_table_free(table);
}

TS_TEST(table_markdown_is_a_pipe_table)
{
    ts_text_table *table = sample();

    assert_prints(table, TS_TEXT_TABLE_MARKDOWN,
                  "| op       | calls |    self | share |\n"
                  "|:---------|------:|--------:|------:|\n"
                  "| línear   | 24000 |  1.23 s | 81.2% |\n"
                  "| a\\|b, \"c\" |     7 | 45.6 µs |       |\n"
                  "| all      |       |         |       |\n");
    ts_text_table_free(table);
}

TS_TEST(table_alignment_can_be_chosen)
{
    ts_text_table *table = ts_text_table_new(
        (ts_column[]){{.header = "n", .align = TS_ALIGN_LEFT},
                      {.header = "t", .align = TS_ALIGN_RIGHT},
                      {.header = "x", .format = TS_NUMBER_FIXED, .digits = 2, .unit = "ms"}},
        3);

    for (int i = 0; i < 2; i++) {
        ts_text_table_number(table, i ? 100 : 5);
        ts_text_table_text(table, i ? "long" : "s");
        ts_text_table_number(table, i ? 1.005 : -12);
    }
    assert_prints(table, TS_TEXT_TABLE_TERMINAL + 2,
                  "| n   |    t |         x |\n"
                  "|:----|-----:|----------:|\n"
                  "| 5   |    s | -12.00 ms |\n"
                  "| 100 | long |   1.00 ms |\n");
    ts_text_table_free(table);
}

TS_TEST(table_si_prefixes_round_into_the_next)
{
    static const struct {
        double value;
        const char *unit, *expected;
    } cases[] = {
        {0, "s", "0 s"},
        {1, "", "1"},
        {999, "", "999"},
        {1000, "", "1.00 k"},
        {999.4e3, "", "999 k"},
        {999.6e3, "", "1.00 M"},
        {1.234e-6, "s", "1.23 µs"},
        {-12.34e-3, "s", "-12.3 ms"},
        {9.996, "s", "10.0 s"},
        {99.96, "s", "100 s"},
        {0.5, "", "500 m"},
        {2e-15, "s", "0.00 ps"},
        {3e18, "B", "3000 PB"},
        {INFINITY, "s", "inf s"},
    };
    char buffer[64];

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ts_format_si(buffer, sizeof buffer, cases[i].value, 3, cases[i].unit, false);
        ck_assert_str_eq(buffer, cases[i].expected);
    }
}

TS_TEST(table_width_counts_terminal_columns)
{
    ck_assert_int_eq(ts_text_width("plain"), 5);
    ck_assert_int_eq(ts_text_width("µs"), 2);
    ck_assert_int_eq(ts_text_width("e\xcc\x81"), 1); // combining acute accent
    ck_assert_int_eq(ts_text_width("漢字"), 4);
    ck_assert_int_eq(ts_text_width("\xff\xfe"), 2);     // invalid bytes, one each
    ck_assert_int_eq(ts_text_width("a\xe2\x82"), 3);    // cut in the middle of a character
    ck_assert_int_eq(ts_text_width("\xed\xa0\x80"), 3); // a surrogate
}

TS_TEST(table_refuses_bad_arguments)
{
    ts_text_table *table = ts_text_table_new((ts_column[]){{.header = "a"}, {.header = "b"}}, 2);

    ck_assert_ptr_null(ts_text_table_new(NULL, 1));
    ck_assert_ptr_null(ts_text_table_new((ts_column[]){{.digits = 99}}, 1));
    ck_assert_int_eq(ts_text_table_text(table, NULL), TS_ERR_NULL);
    ck_assert_int_eq(ts_text_table_text(table, "x"), TS_OK);
    ck_assert_int_eq(ts_text_table_rule(table), TS_ERR_STATE);
    ck_assert_int_eq(ts_text_table_print(table, NULL, TS_TEXT_TABLE_CSV), TS_ERR_NULL);
    ck_assert_int_eq(ts_text_table_print(table, stdout, 3), TS_ERR_VALUE);
    ts_text_table_free(table);
    ts_text_table_free(NULL);
}

TS_TEST(table_full_device_is_an_error)
{
    ts_text_table *table = ts_text_table_new((ts_column[]){{.header = "a"}}, 1);
    FILE *full = fopen("/dev/full", "w");

    ck_assert_ptr_nonnull(full);
    ck_assert_int_eq(ts_text_table_print(table, full, TS_TEXT_TABLE_TERMINAL), TS_ERR_IO);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "No space left"));
    fclose(full);
    ts_text_table_free(table);
}
