/**
 * @file chart.c
 * Charts: axes, well-formed SVG, thinning, gaps, lines from CSV, atomic writing.
 */
// SPDX-License-Identifier: MIT
#include <tessera/report.h>

#include "report/ticks.h"
#include "tests/harness.h"
#include "tests/report/files.h"

#include <ctype.h>
#include <math.h>
#include <sys/stat.h>

/* ------------------------------------------------------------- a small XML checker ---- */

/* Checks entities and characters of text or of an attribute value; stops at `end`. */
static bool xml_text_ok(const char *from, const char *end)
{
    for (const char *c = from; c < end; c++) {
        if ((unsigned char)*c < 0x20 && *c != '\n' && *c != '\t')
            return false;
        if (*c == '<')
            return false;
        if (*c != '&')
            continue;
        static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&quot;"};
        bool known = false;
        for (int i = 0; i < 4; i++)
            known |= strncmp(c, entities[i], strlen(entities[i])) == 0;
        if (!known)
            return false;
    }
    return true;
}

/* Checks attributes name="value" up to the tag's end. Returns a pointer to '>', or NULL. */
static const char *xml_attributes(const char *c, bool *empty)
{
    for (;;) {
        while (isspace((unsigned char)*c))
            c++;
        *empty = *c == '/';
        if (*empty)
            c++;
        if (*c == '>')
            return c;
        if (*empty || !isalpha((unsigned char)*c))
            return NULL;
        while (isalnum((unsigned char)*c) || *c == '-' || *c == ':')
            c++;
        const char *close = strncmp(c, "=\"", 2) == 0 ? strchr(c + 2, '"') : NULL;
        if (!close || !xml_text_ok(c + 2, close))
            return NULL;
        c = close + 1;
    }
}

/* True if tags are balanced and texts escaped: enough to tell well-formed from broken here. */
static bool xml_ok(const char *xml)
{
    char open[32][16];
    int depth = 0, roots = 0;

    for (const char *c = xml; *c;) {
        const char *tag = strchrnul(c, '<');
        if (!xml_text_ok(c, tag) || (depth == 0 && strspn(c, " \n") < (size_t)(tag - c)))
            return false;
        if (!*tag)
            break;
        bool closing = tag[1] == '/', empty = false;
        const char *name = tag + 1 + closing;
        size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyz");
        if (length == 0 || length >= 16 || depth == 31)
            return false;
        const char *end = xml_attributes(name + length, &empty);
        if (!end || (closing && (depth == 0 || empty)))
            return false;
        if (closing) {
            depth--;
            if (strlen(open[depth]) != length || memcmp(open[depth], name, length) != 0)
                return false;
        } else if (!empty) {
            roots += depth == 0;
            snprintf(open[depth++], 16, "%.*s", (int)length, name);
        }
        c = end + 1;
    }
    return depth == 0 && roots == 1;
}

TS_TEST(chart_xml_checker_refuses_malformed_text)
{
    ck_assert(xml_ok("<a x=\"1\"><b/>t &amp; u<c>v</c></a>\n"));
    ck_assert(!xml_ok("<a><b></a></b>"));
    ck_assert(!xml_ok("<a>"));
    ck_assert(!xml_ok("<a x=1></a>"));
    ck_assert(!xml_ok("<a>R & D</a>"));
    ck_assert(!xml_ok("<a x=\"<\"></a>"));
    ck_assert(!xml_ok("<a></a><b></b>"));
    ck_assert(!xml_ok("<a>\x01</a>"));
}

/* Writes the chart, checks it and returns the owned SVG; frees the chart. */
static char *svg_of(ts_chart *chart)
{
    const char *path = test_path("chart.svg");

    ck_assert_int_eq(ts_chart_write(chart, path), TS_OK);
    ts_chart_free(chart);
    char *svg = test_read(path);
    ck_assert_msg(xml_ok(svg), "not well-formed:\n%s", svg);
    ck_assert_ptr_null(strstr(svg, "nan"));
    ck_assert_ptr_null(strstr(svg, "inf"));
    return svg;
}

static int count(const char *text, const char *what)
{
    int n = 0;

    for (text = strstr(text, what); text; text = strstr(text + 1, what))
        n++;
    return n;
}

/* --------------------------------------------------------------------------- ticks ---- */

static void assert_labels(ts_axis axis, const char *expected)
{
    char all[512] = "", label[48];

    for (int i = 0; i < axis.nticks; i++) {
        ts_axis_label(&axis, axis.ticks[i], label, sizeof label);
        strcat(strcat(all, i ? " " : ""), label);
    }
    ck_assert_str_eq(all, expected);
}

TS_TEST(chart_ticks_are_nice)
{
    assert_labels(ts_axis_make(0, 10, false, 5, true), "0 2 4 6 8 10");
    assert_labels(ts_axis_make(1.83, 5.61, false, 6, true), "1 2 3 4 5 6");
    assert_labels(ts_axis_make(0, 1999, false, 9, false), "0 500 1000 1500 2000");
    assert_labels(ts_axis_make(0, 1900, false, 9, false), "0 500 1000 1500");
    assert_labels(ts_axis_make(0, 48000, false, 5, true), "0 10k 20k 30k 40k 50k");
    assert_labels(ts_axis_make(-0.02, 0.031, false, 5, true),
                  "-0.02 -0.01 0.00 0.01 0.02 0.03 0.04");
    assert_labels(ts_axis_make(2.0e6, 2.5e6, false, 5, true), "2.0M 2.1M 2.2M 2.3M 2.4M 2.5M");
}

TS_TEST(chart_log_ticks_are_decades_and_their_parts)
{
    assert_labels(ts_axis_make(8, 150, true, 5, false), "10 20 50 100");
    assert_labels(ts_axis_make(12, 900, true, 5, true), "10 20 50 100 200 500 1000");
    assert_labels(ts_axis_make(1, 5e4, true, 5, false), "1 3 10 30 100 300 1000 3000 10k 30k");
    assert_labels(ts_axis_make(1e-12, 1e12, true, 4, false), "1e-12 1e-08 1e-04 1 10k 100M 1T");
    assert_labels(ts_axis_make(100, 150, true, 5, false), "100 110 120 130 140 150");
}

/* Whatever the data, an axis has a range and ticks within it, in order. */
TS_TEST(chart_axis_survives_any_range)
{
    static const double ends[] = {0,      1,      -1, 1e-300,    1e300,    -1e300,    1e308,
                                  -1e308, 1e-320, 3,  3 + 1e-15, INFINITY, -INFINITY, NAN};
    enum { N = sizeof ends / sizeof *ends };

    for (int i = 0; i < N * N * 4; i++) {
        bool log = i & 1, snap = i & 2;
        ts_axis axis = ts_axis_make(ends[i / 4 % N], ends[i / 4 / N], log, 5, snap);
        ck_assert_msg(axis.low < axis.high && isfinite(axis.high - axis.low), "%g %g",
                      ends[i / 4 % N], ends[i / 4 / N]);
        ck_assert_int_ge(axis.nticks, 1);
        for (int t = 0; t < axis.nticks; t++) {
            double place = ts_axis_position(&axis, axis.ticks[t]);
            ck_assert_msg(place > -0.01 && place < 1.01, "tick %g of [%g, %g] at %g", axis.ticks[t],
                          axis.low, axis.high, place);
            ck_assert(t == 0 || axis.ticks[t] > axis.ticks[t - 1]);
        }
    }
}

/* --------------------------------------------------------------------------- lines ---- */

TS_TEST(chart_line_shows_series_references_and_titles, .teardown = test_remove_files)
{
    const double x[] = {0, 1, 2, 3}, y[] = {4, 3, 2.5, 2.25};
    ts_chart *chart =
        ts_chart_new(TS_OPTS(ts_chart_opts, .title = "Loss", .x_title = "step", .y_title = "nats"));

    ck_assert_int_eq(
        ts_chart_line(chart, "training", x, y, 4, TS_OPTS(ts_line_opts, .smoothing = 0.5)), TS_OK);
    ck_assert_int_eq(ts_chart_line(chart, "validation", NULL, y, 4, NULL), TS_OK);
    ck_assert_int_eq(ts_chart_reference(chart, "unigram entropy", 3.3), TS_OK);
    char *svg = svg_of(chart);
    ck_assert_int_eq(count(svg, ">Loss<"), 2);
    ck_assert_int_eq(count(svg, ">step<"), 1);
    ck_assert_int_eq(count(svg, ">nats<"), 1);
    ck_assert_int_eq(count(svg, "unigram entropy  3.3<"), 1);
    ck_assert_int_eq(count(svg, "prefers-color-scheme:dark"), 1);
    // Faint raw line and bold average of the first, one line of the second.
    ck_assert_int_eq(count(svg, "class=\"l c0 w\""), 1);
    ck_assert_int_eq(count(svg, "class=\"l c0\""), 1);
    ck_assert_int_eq(count(svg, "class=\"l c1\""), 1);
    // Weights 1, 2, 4, 8 of 15: (4 + 2·3 + 4·2.5 + 8·2.25) / 15.
    ck_assert_ptr_nonnull(strstr(svg, ">2.533</tspan>"));
    free(svg);
}

TS_TEST(chart_text_is_escaped, .teardown = test_remove_files)
{
    const double y[] = {1, 2};
    ts_chart *chart = ts_chart_new(TS_OPTS(ts_chart_opts, .title = "<R&D> \"x\" \x01 \xff µ"));

    ts_chart_line(chart, "a<b", NULL, y, 2, NULL);
    ts_chart_reference(chart, "c&d", 1.5);
    char *svg = svg_of(chart);
    ck_assert_ptr_nonnull(strstr(svg, "&lt;R&amp;D&gt; &quot;x&quot; \xef\xbf\xbd \xef\xbf\xbd µ"));
    ck_assert_ptr_nonnull(strstr(svg, "a&lt;b"));
    ck_assert_ptr_nonnull(strstr(svg, "c&amp;d"));
    free(svg);
}

TS_TEST(chart_gaps_break_the_line, .teardown = test_remove_files)
{
    const double y[] = {1, 2, NAN, 3, INFINITY, 4, 5};
    char *svg;

    for (int bridge = 0; bridge < 2; bridge++) {
        ts_chart *chart = ts_chart_new(NULL);
        ts_chart_line(chart, "y", NULL, y, 7, TS_OPTS(ts_line_opts, .bridge_gaps = bridge));
        svg = svg_of(chart);
        const char *path = strstr(svg, "class=\"l c0\" d=\"");
        ck_assert_ptr_nonnull(path);
        char *end = strstr(path, "/>");
        *end = '\0';
        ck_assert_int_eq(count(path, "M"), bridge ? 1 : 3);
        ck_assert_int_eq(count(path, "L"), bridge ? 4 : 2);
        // The lone 3 is a dot.
        ck_assert_int_eq(count(path, "h0"), bridge ? 0 : 1);
        free(svg);
    }
}

/* A line of 200,000 points gives a small file that contains its highest and its lowest point. */
TS_TEST(chart_thinning_keeps_spikes, .teardown = test_remove_files)
{
    enum { N = 200000 };
    double *y = malloc(N * sizeof *y);

    for (int i = 0; i < N; i++)
        y[i] = 50 + sin(i * 0.7);
    y[77777] = 100;
    y[133333] = 0;
    ts_chart *chart = ts_chart_new(TS_OPTS(ts_chart_opts, .width = 600, .height = 300));
    ck_assert_int_eq(ts_chart_line(chart, "y", NULL, y, N, NULL), TS_OK);
    free(y);
    char *svg = svg_of(chart);
    ck_assert_uint_lt(strlen(svg), 60000);
    // The axis is 0 to 100, so the spikes touch the top grid line and the bottom axis.
    const char *path = strstr(svg, "class=\"l c0\" d=\"");
    char *at, *axis = strstr(svg, "<line class=\"a\" x1");
    double low = -1, high = 1e9, bottom = 0;
    for (at = axis; at; at = strstr(at + 1, "<line class=\"a\" x1"))
        bottom = fmax(bottom, strtod(strstr(at, "y1=\"") + 4, NULL));
    for (const char *c = path + strlen("class=\"l c0\" d=\""); *c && *c != '"';) {
        strtod(c + 1, &at);
        double py = strtod(at, &at);
        low = fmax(low, py);
        high = fmin(high, py);
        c = at;
    }
    ck_assert_double_eq_tol(low, bottom, 0.11);
    ck_assert_double_lt(high, 60);
    free(svg);
}

TS_TEST(chart_log_axes_skip_what_is_not_positive, .teardown = test_remove_files)
{
    const double x[] = {0, 1, 10, 100}, y[] = {1, 0, 0.5, 1000};
    ts_chart *chart = ts_chart_new(TS_OPTS(ts_chart_opts, .log_x = true, .log_y = true));

    ts_chart_line(chart, "y", x, y, 4, TS_OPTS(ts_line_opts, .markers = true));
    ck_assert_int_eq(ts_chart_reference(chart, "below", -1), TS_OK);
    char *svg = svg_of(chart);
    ck_assert_int_eq(count(svg, "<circle"), 2);
    ck_assert_int_eq(count(svg, "below"), 0);
    free(svg);
}

TS_TEST(chart_without_data_says_so, .loop = 3, .teardown = test_remove_files)
{
    const double nothing[] = {NAN, NAN};
    ts_chart *chart = ts_chart_new(NULL);

    if (_i > 0)
        ck_assert_int_eq(ts_chart_line(chart, "y", NULL, _i == 1 ? NULL : nothing, _i == 1 ? 0 : 2,
                                       TS_OPTS(ts_line_opts, .smoothing = 0.9)),
                         TS_OK);
    char *svg = svg_of(chart);
    ck_assert_ptr_nonnull(strstr(svg, "no data"));
    free(svg);
}

TS_TEST(chart_line_from_csv, .teardown = test_remove_files)
{
    const char *log = test_path("log.csv");

    test_write(log, "step,\"the, loss\",val\r\n1,4,\r\n2,2,7\r\n3,1.5,\r\n4,9");
    ts_chart *chart = ts_chart_new(NULL);
    const ts_line_opts markers = {.size = sizeof markers, .markers = true};
    ck_assert_int_eq(ts_chart_line_csv(chart, "loss", log, "step", "the, loss", &markers), TS_OK);
    ck_assert_int_eq(ts_chart_line_csv(chart, "val", log, "step", "val", &markers), TS_OK);
    ck_assert_int_eq(ts_chart_line_csv(chart, "x", log, "step", "speed", NULL), TS_ERR_FORMAT);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "'speed'"));
    test_write(log, "step,loss\n1,4\n2,fast\n");
    ck_assert_int_eq(ts_chart_line_csv(chart, "x", log, "step", "loss", NULL), TS_ERR_FORMAT);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "line 3"));
    unlink(log);
    ck_assert_int_eq(ts_chart_line_csv(chart, "x", log, "step", "loss", NULL), TS_ERR_IO);
    char *svg = svg_of(chart);
    // The unfinished last line is no point.
    ck_assert_int_eq(count(svg, "<circle class=\"f c0\""), 3);
    ck_assert_int_eq(count(svg, "<circle class=\"f c1\""), 1);
    ck_assert_ptr_nonnull(strstr(svg, ">1.5</tspan>"));
    free(svg);
}

/* ---------------------------------------------------------------------------- bars ---- */

/* Widths of the bars of one colour, in drawing order. */
static int bar_widths(const char *svg, const char *colour, double *widths)
{
    char start[32];
    int n = 0;

    snprintf(start, sizeof start, "<rect class=\"%s\"", colour);
    for (const char *c = strstr(svg, start); c; c = strstr(c + 1, start)) {
        double width = strtod(strstr(c, "width=\"") + 7, NULL);
        double height = strtod(strstr(c, "height=\"") + 8, NULL);
        if (height > 4) // not the legend's swatch
            widths[n++] = width;
    }
    return n;
}

TS_TEST(chart_bars_are_as_long_as_their_values, .teardown = test_remove_files)
{
    double ours[8], theirs[8];
    ts_chart *chart = ts_chart_new(TS_OPTS(ts_chart_opts, .title = "Cost", .x_title = "ns"));

    ck_assert_int_eq(ts_chart_bar(chart, "add", "ours", 30), TS_OK);
    ck_assert_int_eq(ts_chart_bar(chart, "add", "theirs", 300), TS_OK);
    ck_assert_int_eq(ts_chart_bar(chart, "mul", "ours", 60), TS_OK);
    ck_assert_int_eq(ts_chart_bar(chart, "mul", "theirs", 240), TS_OK);
    char *svg = svg_of(chart);
    ck_assert_int_eq(bar_widths(svg, "f c0", ours), 2);
    ck_assert_int_eq(bar_widths(svg, "f c1", theirs), 2);
    ck_assert_double_eq_tol(ours[1] / ours[0], 2, 0.01);
    ck_assert_double_eq_tol(theirs[0] / ours[0], 10, 0.05);
    ck_assert_double_eq_tol(theirs[1] / ours[1], 4, 0.02);
    ck_assert_int_eq(count(svg, ">add<"), 1);
    ck_assert_int_eq(count(svg, ">ours <"), 1);
    free(svg);
}

TS_TEST(chart_refuses_bad_arguments, .teardown = test_remove_files)
{
    const double y[] = {1, 2};
    ts_chart *lines = ts_chart_new(NULL), *bars = ts_chart_new(NULL);

    ck_assert_ptr_null(ts_chart_new(TS_OPTS(ts_chart_opts, .width = 10)));
    ck_assert_int_eq(ts_error_code(), TS_ERR_VALUE);
    ck_assert_int_eq(ts_chart_line(lines, NULL, NULL, y, 2, NULL), TS_ERR_NULL);
    ck_assert_int_eq(ts_chart_line(lines, "y", NULL, y, -1, NULL), TS_ERR_VALUE);
    ck_assert_int_eq(ts_chart_line(lines, "y", NULL, y, 2, TS_OPTS(ts_line_opts, .smoothing = 1)),
                     TS_ERR_VALUE);
    ck_assert_int_eq(ts_chart_reference(lines, "r", NAN), TS_ERR_VALUE);
    ck_assert_int_eq(ts_chart_line(lines, "y", NULL, y, 2, NULL), TS_OK);
    ck_assert_int_eq(ts_chart_bar(lines, "b", NULL, 1), TS_ERR_STATE);
    ck_assert_int_eq(ts_chart_bar(bars, "b", NULL, -1), TS_ERR_VALUE);
    ck_assert_int_eq(ts_chart_bar(bars, "b", NULL, 1), TS_OK);
    ck_assert_int_eq(ts_chart_line(bars, "y", NULL, y, 2, NULL), TS_ERR_STATE);
    /* NULL propagates the failure of the function that should have made the chart */
    ck_assert_int_eq(ts_chart_write(NULL, "x.svg"), TS_ERR_STATE);
    ts_error_clear();
    ck_assert_int_eq(ts_chart_write(NULL, "x.svg"), TS_ERR_NULL);
    ts_chart_free(lines);
    ts_chart_free(bars);
    ts_chart_free(NULL);
}

/* ------------------------------------------------------------------------- writing ---- */

TS_TEST(chart_write_replaces_the_file_as_a_whole, .teardown = test_remove_files)
{
    const char *path = test_path("chart.svg");
    ts_chart *chart = ts_chart_new(NULL);
    struct stat before, after;

    test_write(path, "old");
    ck_assert_int_eq(stat(path, &before), 0);
    ck_assert_int_eq(ts_chart_write(chart, path), TS_OK);
    ck_assert_int_eq(stat(path, &after), 0);
    // A new file under the old name: a reader of the old file keeps the old data.
    ck_assert_uint_ne(before.st_ino, after.st_ino);
    ck_assert_int_eq(test_count_files(), 1);
    ts_chart_free(chart);
}

TS_TEST(chart_write_errors_leave_nothing_behind, .teardown = test_remove_files)
{
    ts_chart *chart = ts_chart_new(NULL);
    const char *folder = test_path("folder.svg");

    ck_assert_int_eq(ts_chart_write(chart, "/nonexistent-folder/chart.svg"), TS_ERR_IO);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "No such file"));
    ck_assert_int_eq(ts_chart_write(chart, "/dev/full"), TS_ERR_IO);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "regular file, got a character device"));
    ck_assert_int_eq(mkdir(folder, 0777), 0);
    ck_assert_int_eq(ts_chart_write(chart, folder), TS_ERR_IO);
    rmdir(folder);
    ck_assert_int_eq(test_count_files(), 0);
    ts_chart_free(chart);
}
