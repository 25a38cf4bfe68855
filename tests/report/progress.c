/**
 * @file progress.c
 * The progress line, under a clock that the test moves: on a pipe, on a terminal, resumed.
 */
// SPDX-License-Identifier: MIT
#include <tessera/ops.h>
#include <tessera/report.h>

#include "report/text.h"
#include "tests/harness.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

static double now;

static double test_clock(void)
{
    return now;
}

static void plain_environment(void)
{
    setenv("LC_ALL", "C.UTF-8", 1);
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
    unsetenv("COLUMNS");
}

static ts_tensor *scalar(float value)
{
    ts_tensor *t = ts_from_array(&value, TS_F32, NULL, 0);
    ck_assert_ptr_nonnull(t);
    return t;
}

/* Makes n steps of one second each, with a constant loss and 1,000 items per step. */
static void steps(ts_progress *p, int n, float loss)
{
    for (int i = 0; i < n; i++) {
        TS_SCOPE;
        now += 1;
        ck_assert_int_eq(ts_progress_add_items(p, 1000), TS_OK);
        ck_assert_int_eq(ts_progress_step(p, scalar(loss)), TS_OK);
    }
}

TS_TEST(progress_on_a_pipe_prints_plain_lines, .setup = plain_environment)
{
    char buffer[4096] = "";
    int ends[2];

    ck_assert_int_eq(pipe(ends), 0);
    FILE *stream = fdopen(ends[1], "w");
    ts_progress *p =
        ts_progress_new(100, TS_OPTS(ts_progress_opts, .label = "train", .item_unit = "tokens",
                                     .stream = stream, .clock = test_clock));
    steps(p, 11, 2.5f);
    ck_assert_int_eq(ts_progress_message(p, "val %.1f", 1.5), TS_OK);
    ck_assert_int_eq(ts_progress_end(p), TS_OK);
    ck_assert_int_eq(ts_progress_end(p), TS_OK);
    ts_progress_free(p);
    fclose(stream);
    ck_assert_int_gt(read(ends[0], buffer, sizeof buffer - 1), 0);
    close(ends[0]);
    // The first step, then each 5 percent or 5 seconds.
    ck_assert_str_eq(buffer, "train    1/100  loss 2.5000  1.00 k tokens/s  0:01  ETA 1:39\n"
                             "train    5/100  loss 2.5000  1.00 k tokens/s  0:05  ETA 1:35\n"
                             "train   10/100  loss 2.5000  1.00 k tokens/s  0:10  ETA 1:30\n"
                             "val 1.5\n"
                             "train: 11 steps in 0:11, 1.00 k tokens/s, loss 2.5000\n");
}

/* A progress line whose output goes to memory. */
typedef struct capture {
    FILE *stream;
    char *data;
    size_t size;
} capture;

static ts_progress *start(capture *c, int64_t total, ts_progress_opts opts)
{
    c->stream = open_memstream(&c->data, &c->size);
    opts.size = sizeof opts;
    opts.stream = c->stream;
    opts.clock = test_clock;
    ts_progress *p = ts_progress_new(total, &opts);
    ck_assert_ptr_nonnull(p);
    return p;
}

static void finish(capture *c, ts_progress *p)
{
    ts_progress_free(p);
    fclose(c->stream);
    free(c->data);
}

TS_TEST(no_text_of_a_progress_line_controls_a_terminal, .setup = plain_environment)
{
    static const char text[] = "a\x1b[2J\xc2\x9b\xe2\x80\xae\n\xff",
                      shown[] = "a\\x1b[2J\\xc2\\x9b\\xe2\\x80\\xae\\x0a\\xff";
    capture c;
    ts_progress *p = start(&c, 10, (ts_progress_opts){.label = text, .item_unit = text,
                                                      .mode = TS_PROGRESS_PLAIN});
    steps(p, 10, 1);
    ck_assert_int_eq(ts_progress_message(p, "seen %s, %d", text, 7), TS_OK);
    ck_assert_int_eq(ts_progress_end(p), TS_OK);
    fflush(c.stream);
    int seen = 0, lines = 0;
    for (const char *at = c.data; (at = strstr(at, shown)); at++)
        seen++;
    for (const char *at = c.data; *at; at++) {
        lines += *at == '\n';
        ck_assert(*at == '\n' || (*at >= ' ' && *at < 0x7f));
    }
    ck_assert_ptr_nonnull(strstr(c.data, "\nseen a\\x1b"));
    ck_assert_int_ge(lines, 4);
    ck_assert_int_eq(seen, 2 * lines - 1); // label and unit; the message has one
    finish(&c, p);
}

TS_TEST(progress_of_a_resumed_run_has_the_right_eta, .setup = plain_environment)
{
    capture c;
    ts_progress *p =
        start(&c, 1000, (ts_progress_opts){.start_step = 900, .mode = TS_PROGRESS_PLAIN});

    steps(p, 41, 1);
    fflush(c.stream);
    // One second a step: 59 steps are left, and 41 seconds went by.
    ck_assert_ptr_nonnull(strstr(c.data, " 941/1000  loss 1.0000  1.00 k items/s  0:41  ETA 0:59"));
    ck_assert_double_eq_tol(ts_progress_items_per_second(p), 1000, 1e-9);
    ts_progress_end(p);
    ck_assert_ptr_nonnull(strstr(c.data, "41 steps in 0:41"));
    finish(&c, p);
}

TS_TEST(progress_rate_follows_the_recent_past, .setup = plain_environment)
{
    capture c;
    ts_progress *p = start(&c, 0, (ts_progress_opts){.mode = TS_PROGRESS_QUIET});

    now += 1000; // a slow start, e.g. reading data
    steps(p, 60, 1);
    ck_assert_double_eq_tol(ts_progress_items_per_second(p), 1000, 1e-9);
    finish(&c, p);
}

TS_TEST(progress_draws_at_most_ten_times_a_second, .setup = plain_environment)
{
    capture c;
    ts_progress *p = start(&c, 100000, (ts_progress_opts){.mode = TS_PROGRESS_BAR});
    int drawn = 0;

    for (int i = 0; i < 2000; i++) {
        TS_SCOPE;
        now += 1e-3;
        ck_assert_int_eq(ts_progress_step(p, scalar(1)), TS_OK);
    }
    fflush(c.stream);
    for (char *at = strchr(c.data, '\r'); at; at = strchr(at + 1, '\r'))
        drawn++;
    ck_assert_int_ge(drawn, 18);
    ck_assert_int_le(drawn, 21);
    finish(&c, p);
}

TS_TEST(progress_smooths_but_shows_nan_at_once, .setup = plain_environment)
{
    capture c;
    ts_progress *p = start(
        &c, 0, (ts_progress_opts){.mode = TS_PROGRESS_PLAIN, .interval = 1, .smoothing = 0.5});

    steps(p, 1, 4);
    steps(p, 1, 1);
    fflush(c.stream);
    // Weights 1/4 and 1/2, corrected by their sum: (4/4 + 1/2) / (3/4).
    ck_assert_ptr_nonnull(strstr(c.data, "step 1  loss 4.0000"));
    ck_assert_ptr_nonnull(strstr(c.data, "step 2  loss 2.0000"));
    steps(p, 1, NAN);
    fflush(c.stream);
    ck_assert_ptr_nonnull(strstr(c.data, "step 3  loss nan"));
    steps(p, 1, 2);
    fflush(c.stream);
    ck_assert_ptr_null(strstr(c.data, "step 4  loss nan"));
    finish(&c, p);
}

TS_TEST(progress_failed_step_propagates, .setup = plain_environment)
{
    capture c;
    ts_progress *p = start(&c, 10, (ts_progress_opts){0});

    ts_error_set(TS_ERR_SHAPE, "the root failure");
    ck_assert_int_eq(ts_progress_step(p, NULL), TS_ERR_SHAPE);
    ck_assert_str_eq(ts_error_message(), "the root failure");
    finish(&c, p);
}

TS_TEST(progress_reads_the_loss_only_when_it_draws, .setup = plain_environment)
{
    TS_SCOPE;
    capture c;
    ts_tensor *unreadable = ts_empty_on(NULL, 0, TS_F32, TS_DEVICE_META);
    ts_progress *p = start(&c, 100, (ts_progress_opts){.mode = TS_PROGRESS_PLAIN, .interval = 50});

    ck_assert_int_eq(ts_progress_step(p, scalar(1)), TS_OK);
    ck_assert_int_eq(ts_progress_step(p, unreadable), TS_OK);
    now += 60;
    ck_assert_int_eq(ts_progress_step(p, unreadable), TS_ERR_DEVICE);
    finish(&c, p);
}

TS_TEST(progress_refuses_bad_arguments, .setup = plain_environment)
{
    TS_SCOPE;
    capture c;

    ck_assert_ptr_null(ts_progress_new(-1, NULL));
    ck_assert_ptr_null(ts_progress_new(5, TS_OPTS(ts_progress_opts, .start_step = 6)));
    ck_assert_int_eq(ts_error_code(), TS_ERR_VALUE);
    ck_assert_ptr_null(ts_progress_new(5, TS_OPTS(ts_progress_opts, .smoothing = 1)));
    ts_progress *p = start(&c, 10, (ts_progress_opts){0});
    ck_assert_int_eq(ts_progress_add_items(p, -1), TS_ERR_VALUE);
    ck_assert_int_eq(ts_progress_end(p), TS_OK);
    ck_assert_int_eq(ts_progress_step(p, scalar(1)), TS_ERR_STATE);
    finish(&c, p);
    ts_progress_free(NULL);
}

/* ---------------------------------------------------------------------- terminals ---- */

/* The last line drawn on a pseudo-terminal of `columns`, without escapes, in a static buffer. */
static const char *drawn(int columns, bool *colour)
{
    static char raw[32768], line[2048];
    struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)columns};
    int master = posix_openpt(O_RDWR | O_NOCTTY);

    if (master < 0 || grantpt(master) || unlockpt(master))
        return NULL;
    int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    ck_assert_int_ge(slave, 0);
    ck_assert_int_eq(ioctl(slave, TIOCSWINSZ, &size), 0);
    FILE *stream = fdopen(slave, "w");
    ts_progress *p =
        ts_progress_new(100, TS_OPTS(ts_progress_opts, .label = "train", .item_unit = "tokens",
                                     .stream = stream, .clock = test_clock));
    steps(p, 50, 2.5f);
    ts_progress_free(p);
    fclose(stream);
    // Terminals deliver output in pieces; read() fails at its end, because the slave is closed.
    size_t size_read = 0;
    for (ssize_t n; (n = read(master, raw + size_read, sizeof raw - 1 - size_read)) > 0;)
        size_read += (size_t)n;
    close(master);
    while (size_read && (raw[size_read - 1] == '\n' || raw[size_read - 1] == '\r'))
        size_read--;
    raw[size_read] = '\0';
    *colour = strstr(raw, "\x1b[36m") != NULL;
    const char *from = strrchr(raw, '\r');
    size_t length = 0;
    for (from = from ? from : raw; *from; from++) {
        if (*from == '\x1b')
            from += strcspn(from, "mK"); // an escape ends with its letter
        else if (*from != '\r')
            line[length++] = *from;
    }
    line[length] = '\0';
    return line;
}

TS_TEST(progress_fits_the_terminal, .setup = plain_environment)
{
    bool colour;

    for (int columns = 16; columns <= 140; columns++) {
        now = 0;
        const char *line = drawn(columns, &colour);
        if (!line)
            TS_SKIP("no pseudo-terminals here");
        ck_assert(colour || columns < 80);
        ck_assert_msg(ts_text_width(line) < columns, "%d columns: %s", columns, line);
        ck_assert_ptr_nonnull(strstr(line, "50/100"));
        ck_assert(columns < 24 || strstr(line, "loss 2.5000"));
    }
    now = 0;
    ck_assert_str_eq(drawn(120, &colour),
                     "train  ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━   50/100  loss 2.5000"
                     "  1.00 k tokens/s  0:50  ETA 0:50");
}

TS_TEST(progress_honours_no_color_and_dumb_terminals, .setup = plain_environment)
{
    bool colour;

    setenv("NO_COLOR", "1", 1);
    now = 0;
    const char *line = drawn(120, &colour);
    if (!line)
        TS_SKIP("no pseudo-terminals here");
    ck_assert(!colour);
    ck_assert_str_eq(line, "train  ━━━━━━━━━━━━━━━                  50/100  loss 2.5000"
                           "  1.00 k tokens/s  0:50  ETA 0:50");
    setenv("LC_ALL", "C", 1);
    now = 0;
    ck_assert_str_eq(drawn(120, &colour),
                     "train  [###############...............]   50/100  loss 2.5000"
                     "  1.00 k tokens/s  0:50  ETA 0:50");
    setenv("TERM", "dumb", 1);
    now = 0;
    line = drawn(120, &colour);
    ck_assert(!colour);
    ck_assert_ptr_nonnull(strstr(line, "50/100  loss 2.5000"));
    ck_assert_ptr_null(strchr(line, '#'));
}

TS_TEST(progress_of_a_loop_without_a_loss_shows_none, .setup = plain_environment)
{
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);
    ts_progress *p =
        ts_progress_new(10, TS_OPTS(ts_progress_opts, .item_unit = "ops", .stream = stream,
                                    .clock = test_clock, .mode = TS_PROGRESS_PLAIN));
    for (int i = 0; i < 10; i++) {
        now += 10;
        ck_assert_int_eq(ts_progress_step(p, TS_NONE), TS_OK);
    }
    ck_assert_int_eq(ts_progress_end(p), TS_OK);
    ts_progress_free(p);
    fclose(stream);
    ck_assert_ptr_nonnull(strstr(text, "10/10"));
    ck_assert_ptr_null(strstr(text, "loss"));
    free(text);
}
