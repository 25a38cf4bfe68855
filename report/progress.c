/**
 * @file progress.c
 * The progress line. A step counts and reads the clock; the loss is read from its device only when
 * the line is drawn.
 */
// SPDX-License-Identifier: MIT
#include <tessera/ops.h>
#include <tessera/program.h>
#include <tessera/report.h>

#include "report/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { SAMPLES = 32 };
#define CLEAR_LINE "\r\x1b[K" // to the first column, and clear to the end
static const double sample_interval = 0.5; // 31 intervals: a window of fifteen seconds

typedef struct sample {
    double time;
    int64_t step;
    int64_t items;
} sample;

struct ts_progress {
    char *label;
    char *item_unit;
    FILE *stream;
    double (*clock)(void);
    ts_progress_mode mode; // resolved, never AUTO
    bool colour, utf8, ended, line_open;
    int64_t total, start, step, items; // total: 0 if unknown
    double interval, begin, last_draw; // seconds; begin and last_draw as the clock gives them
    int64_t drawn_step;                // step of the last drawn line
    ts_tensor *loss;   // loss of the last step, one reference; NULL: none
    double last_loss;  // value of the last reading
    double smoothing;  // decay per step
    double mean, mass; // moving average and the weight in it
    int64_t mean_step; // step of the last reading
    sample ring[SAMPLES];
    int nsamples, newest;
};

static double monotonic_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static bool is_set(const char *name)
{
    const char *value = getenv(name);
    return value && *value;
}

static ts_progress_mode resolve(ts_progress_mode mode, FILE *stream)
{
    const char *term = getenv("TERM");

    if (mode != TS_PROGRESS_AUTO)
        return mode;
    bool redraws = isatty(fileno(stream)) && term && *term && strcmp(term, "dumb") != 0;
    return redraws ? TS_PROGRESS_BAR : TS_PROGRESS_PLAIN;
}

ts_progress *ts_progress_new(int64_t total_steps, const ts_progress_opts *opts)
{
    ts_progress_opts o;
    TS_TRY_NULL(TS_CHECK_OPTS(&o, opts));
    TS_TRY_NULL(TS_CHECK_VALUE(total_steps, total_steps >= 0, "at least 0"));
    TS_TRY_NULL(TS_CHECK_VALUE(o.start_step,
                               o.start_step >= 0 && (!total_steps || o.start_step <= total_steps),
                               "0 to total_steps"));
    TS_TRY_NULL(TS_CHECK_VALUE(o.interval, o.interval >= 0, "at least 0 seconds"));
    TS_TRY_NULL(
        TS_CHECK_VALUE(o.smoothing, o.smoothing >= 0 && o.smoothing < 1, "at least 0 and below 1"));
    TS_TRY_NULL(TS_CHECK_VALUE(o.mode, o.mode <= TS_PROGRESS_QUIET, "a ts_progress_mode"));
    ts_progress *p = calloc(1, sizeof *p);
    if (!p || !ts_copy_shown(&p->label, o.label ? o.label : "") ||
        !ts_copy_shown(&p->item_unit, o.item_unit ? o.item_unit : "items")) {
        ts_progress_free(p);
        ts_error_memory("a progress line", sizeof *p);
        return NULL;
    }
    p->stream = o.stream ? o.stream : stderr;
    p->clock = o.clock ? o.clock : monotonic_seconds;
    p->mode = resolve(o.mode, p->stream);
    p->utf8 = ts_locale_is_utf8();
    p->colour = p->mode == TS_PROGRESS_BAR && !is_set("NO_COLOR");
    p->total = total_steps;
    p->start = p->step = p->mean_step = o.start_step;
    p->interval = o.interval > 0 ? o.interval : p->mode == TS_PROGRESS_BAR ? 0.1 : 5;
    p->smoothing = o.smoothing > 0 ? o.smoothing : 0.95;
    p->begin = p->clock();
    p->last_draw = -INFINITY;
    p->ring[0] = (sample){p->begin, p->step, 0};
    p->nsamples = 1;
    return p;
}

/* ---------------------------------------------------------------------------- rates ---- */

static void take_sample(ts_progress *p, double now)
{
    if (now - p->ring[p->newest].time < sample_interval)
        return;
    p->newest = (p->newest + 1) % SAMPLES;
    p->ring[p->newest] = (sample){now, p->step, p->items};
    p->nsamples += p->nsamples < SAMPLES;
}

/* Steps and items per second from the oldest sample to `now`. */
static void rates(const ts_progress *p, double now, double *steps, double *items)
{
    const sample *oldest = &p->ring[(p->newest + SAMPLES - p->nsamples + 1) % SAMPLES];
    double time = now - oldest->time;

    *steps = time > 0 ? (double)(p->step - oldest->step) / time : 0;
    *items = time > 0 ? (double)(p->items - oldest->items) / time : 0;
}

double ts_progress_items_per_second(const ts_progress *p)
{
    double steps, items;

    if (!p)
        return 0;
    rates(p, p->clock(), &steps, &items);
    return items;
}

/* ----------------------------------------------------------------------------- loss ---- */

/* Adds the held loss to the moving average. A reading n steps after the last one decays the average
   by smoothing^n. */
static ts_status read_loss(ts_progress *p)
{
    double value, keep;

    if (!p->loss || p->mean_step == p->step)
        return TS_OK;
    TS_TRY(ts_item(p->loss, &value));
    keep = pow(p->smoothing, (double)(p->step - p->mean_step));
    p->mean_step = p->step;
    p->last_loss = value;
    if (!isfinite(value))
        return TS_OK;
    p->mean = keep * p->mean + (1 - keep) * value;
    p->mass = keep * p->mass + (1 - keep);
    return TS_OK;
}

static double shown_loss(const ts_progress *p)
{
    // Show a NaN or infinite loss at once instead of the average.
    return isfinite(p->last_loss) && p->mass > 0 ? p->mean / p->mass : p->last_loss;
}

/* ---------------------------------------------------------------------------- lines ---- */

static void format_time(char *buffer, size_t size, double seconds)
{
    int64_t s = seconds > 0 && seconds < 1e9 ? (int64_t)(seconds + 0.5) : 0;

    if (s >= 3600)
        ts_format(buffer, size, "%" PRId64 ":%02d:%02d", s / 3600, (int)(s / 60 % 60),
                  (int)(s % 60));
    else
        ts_format(buffer, size, "%d:%02d", (int)(s / 60), (int)(s % 60));
}

/* The parts of a line as text; "" if a part is absent. */
typedef struct parts {
    char label[64], step[64], loss[48], rate[96], elapsed[32], eta[40];
} parts;

static void make_parts(const ts_progress *p, double now, parts *out)
{
    double steps, items;
    char number[32], unit[48], time[24];

    *out = (parts){0};
    rates(p, now, &steps, &items);
    ts_escape_text(out->label, sizeof out->label, p->label); // cuts between characters
    if (p->total) {
        int digits = snprintf(NULL, 0, "%" PRId64, p->total);
        ts_format(out->step, sizeof out->step, "%*" PRId64 "/%" PRId64, digits, p->step, p->total);
    } else {
        ts_format(out->step, sizeof out->step, "step %" PRId64, p->step);
    }
    if (p->loss)
        ts_format(out->loss, sizeof out->loss, "loss %.4f", shown_loss(p));
    if (p->items && items > 0) {
        ts_format_si(number, sizeof number, items, 3, "", !p->utf8);
        ts_escape_text(unit, sizeof unit, p->item_unit);
        ts_format(out->rate, sizeof out->rate, "%s %s/s", number, unit);
    } else if (steps > 0) {
        ts_format_si(number, sizeof number, steps, 3, "", !p->utf8);
        ts_format(out->rate, sizeof out->rate, "%s steps/s", number);
    }
    format_time(out->elapsed, sizeof out->elapsed, now - p->begin);
    if (p->total && steps > 0 && p->step < p->total) {
        format_time(time, sizeof time, (double)(p->total - p->step) / steps);
        ts_format(out->eta, sizeof out->eta, "ETA %s", time);
    }
}

static int terminal_width(const ts_progress *p)
{
    struct winsize size;
    const char *columns = getenv("COLUMNS");

    if (ioctl(fileno(p->stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        return size.ws_col;
    int width = columns ? atoi(columns) : 0;
    return width > 0 && width < 10000 ? width : 80;
}

static void add_bar(const ts_progress *p, ts_text *line, int width)
{
    double done = (double)p->step / (double)p->total * width;
    int full = (int)done;
    bool half = p->utf8 && done - full >= 0.5;

    ts_text_string(line, p->colour ? "\x1b[36m" : p->utf8 ? "" : "[");
    ts_text_repeat(line, p->utf8 ? "\xe2\x94\x81" : "#", full);
    if (half)
        ts_text_string(line, "\xe2\x95\xb8");
    if (p->colour)
        ts_text_string(line, "\x1b[90m");
    // Without colour the rest of the bar would look done: leave it blank.
    ts_text_repeat(line, !p->utf8 ? "." : p->colour ? "\xe2\x94\x81" : " ", width - full - half);
    ts_text_string(line, p->colour ? "\x1b[0m" : p->utf8 ? "" : "]");
}

/* Drops the least important parts until the line fits `width` columns; returns the remaining
   parts. */
static int fit(parts *out, int width)
{
    char *const order[] = {out->elapsed, out->rate, out->label, out->eta, out->loss};
    const char *const all[] = {out->label, out->step, out->loss, out->rate, out->elapsed, out->eta};
    int left = 0;

    for (size_t drop = 0;; drop++) {
        left = width;
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            left -= *all[i] ? ts_text_width(all[i]) + 2 : 0;
        left += 2;
        if (left >= 0 || drop == sizeof order / sizeof *order)
            return left;
        *order[drop] = '\0';
    }
}

/* Writes a line and frees it. A line whose allocation failed is skipped. */
static void write_line(ts_progress *p, ts_text *line)
{
    if (!line->failed) {
        fwrite(line->data, 1, line->size, p->stream);
        fflush(p->stream);
    }
    ts_text_free(line);
}

/* Appends a part, separated from earlier parts by two spaces. */
static void add_part(ts_text *line, const char **gap, const char *part)
{
    if (!*part)
        return;
    ts_text_printf(line, "%s%s", *gap, part);
    *gap = "  ";
}

static void draw_line(ts_progress *p, double now)
{
    enum { LEAST_BAR = 6, MOST_BAR = 30 };
    bool redrawn = p->mode == TS_PROGRESS_BAR;
    parts out;
    ts_text line = {0};
    const char *gap = "";

    make_parts(p, now, &out);
    // Leaves the last column free: some terminals wrap after writing it.
    int left = redrawn ? fit(&out, terminal_width(p) - 1) - 2 - (p->utf8 ? 0 : 2) : 0;
    const char *const after[] = {out.step, out.loss, out.rate, out.elapsed, out.eta};

    ts_text_string(&line, redrawn ? CLEAR_LINE : "");
    add_part(&line, &gap, out.label);
    if (p->total && left >= LEAST_BAR) {
        ts_text_string(&line, gap);
        add_bar(p, &line, left < MOST_BAR ? left : MOST_BAR);
        gap = "  ";
    }
    for (size_t i = 0; i < sizeof after / sizeof *after; i++)
        add_part(&line, &gap, after[i]);
    ts_text_string(&line, redrawn ? "" : "\n");
    p->line_open |= redrawn && !line.failed;
    write_line(p, &line);
}

/* A plain log also gets a line at each 5 percent, unless a fast run would flood it. */
static bool is_due(const ts_progress *p, double now)
{
    double since = now - p->last_draw;

    if (p->mode == TS_PROGRESS_QUIET)
        return false;
    if (since >= p->interval || p->mode == TS_PROGRESS_BAR || !p->total)
        return since >= p->interval;
    return since >= p->interval / 5 && p->step * 20 / p->total > p->drawn_step * 20 / p->total;
}

static ts_status draw(ts_progress *p, double now)
{
    TS_TRY(read_loss(p));
    draw_line(p, now);
    p->last_draw = now;
    p->drawn_step = p->step;
    return TS_OK;
}

ts_status ts_progress_step(ts_progress *progress, ts_tensor *loss)
{
    TS_TRY(TS_CHECK_OBJECTS(progress));
    if (loss != TS_NONE)
        TS_TRY(TS_CHECK_TENSORS(loss));
    if (progress->ended)
        return ts_error_set(TS_ERR_STATE, "progress_step: the progress line has ended");
    if (loss != TS_NONE && ts_numel(loss) != 1)
        return ts_error_set(TS_ERR_SHAPE,
                            "progress_step: argument 'loss': expected one element, got sizes %s",
                            ts_format_sizes((char[192]){0}, 192, ts_sizes(loss), ts_ndim(loss)));
    ts_tensor *previous = progress->loss;
    progress->loss = loss == TS_NONE ? NULL : ts_retain(loss);
    ts_release(previous);
    progress->step++;
    double now = progress->clock();
    take_sample(progress, now);
    return is_due(progress, now) ? draw(progress, now) : TS_OK;
}

ts_status ts_progress_add_items(ts_progress *progress, int64_t items)
{
    TS_TRY(TS_CHECK_OBJECTS(progress));
    if (items < 0 || items > INT64_MAX - progress->items)
        return ts_error_set(TS_ERR_VALUE,
                            "progress_add_items: argument 'items': expected 0 to %" PRId64 ", got %"
                            PRId64, INT64_MAX - progress->items, items);
    progress->items += items;
    return TS_OK;
}

ts_status ts_progress_message(ts_progress *progress, const char *format, ...)
{
    va_list args;
    ts_text text = {0};
    char *shown = NULL;

    TS_TRY(TS_CHECK_OBJECTS(progress));
    TS_TRY(TS_CHECK_POINTERS(format));
    if (progress->mode == TS_PROGRESS_QUIET)
        return TS_OK;
    va_start(args, format);
    ts_text_vprintf(&text, format, args);
    va_end(args);
    bool made = !text.failed && ts_copy_shown(&shown, text.data ? text.data : "");
    ts_text_free(&text);
    if (!made)
        return ts_error_memory("a message", (int64_t)text.capacity);
    bool redraw = progress->line_open;
    if (redraw)
        fputs(CLEAR_LINE, progress->stream);
    progress->line_open = false;
    fprintf(progress->stream, "%s\n", shown);
    fflush(progress->stream);
    free(shown);
    return redraw ? draw(progress, progress->clock()) : TS_OK;
}

ts_status ts_progress_end(ts_progress *progress)
{
    char time[24], number[32];

    TS_TRY(TS_CHECK_OBJECTS(progress));
    if (progress->ended)
        return TS_OK;
    progress->ended = true;
    ts_status status = read_loss(progress);
    double taken = progress->clock() - progress->begin;
    if (progress->mode != TS_PROGRESS_QUIET) {
        ts_text line = {0};
        format_time(time, sizeof time, taken);
        ts_text_printf(&line, "%s%s%s%" PRId64 " steps in %s",
                       progress->line_open ? CLEAR_LINE : "", progress->label,
                       *progress->label ? ": " : "", progress->step - progress->start, time);
        if (progress->items && taken > 0) {
            ts_format_si(number, sizeof number, (double)progress->items / taken, 3, "",
                         !progress->utf8);
            ts_text_printf(&line, ", %s %s/s", number, progress->item_unit);
        }
        if (progress->loss && status == TS_OK)
            ts_text_printf(&line, ", loss %.4f", shown_loss(progress));
        ts_text_string(&line, "\n");
        progress->line_open = false;
        write_line(progress, &line);
    }
    ts_release(progress->loss);
    progress->loss = NULL;
    return status;
}

void ts_progress_free(ts_progress *p)
{
    if (!p)
        return;
    if (p->line_open) {
        fputc('\n', p->stream);
        fflush(p->stream);
    }
    ts_release(p->loss);
    free(p->label);
    free(p->item_unit);
    free(p);
}
