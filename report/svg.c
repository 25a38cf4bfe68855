/**
 * @file svg.c
 * Draws a chart as one self-contained SVG: no scripts, no fonts, no links.
 */
// SPDX-License-Identifier: MIT
#include "report/chart.h"
#include "report/ticks.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MARGIN = 24,
    COLOURS = 8, // series beyond wrap around
    TEXT = 12,   // font size in pixels
    LEGEND_ROW = 20,
};

/* Positions while drawing; the plot is the rectangle of the data. */
typedef struct canvas {
    const ts_chart *chart;
    ts_text *out;
    int width, height;
    double left, right, top, bottom;
    ts_axis x, y;
} canvas;

/* The hues are far apart in the light and in the dark scheme. Colours of the dark scheme are
   lighter, so that both schemes have a contrast of at least 4.5:1. */
static const char style[] =
    "<style>\n"
    "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;"
    "font-size:12px}\n"
    ".bg{fill:#fff}.t{fill:#111827}.m{fill:#4b5563}.n{font-variant-numeric:tabular-nums}\n"
    ".h{stroke:#fff;stroke-width:4px;stroke-linejoin:round;paint-order:stroke}\n"
    ".g{stroke:#e5e7eb}.a{stroke:#9ca3af}.r{stroke:#6b7280;stroke-dasharray:6 4}\n"
    ".l{fill:none;stroke:currentColor;stroke-width:2;stroke-linejoin:round;"
    "stroke-linecap:round}.w{stroke-width:1;stroke-opacity:.3}.f{fill:currentColor}\n"
    ".c0{color:#2563eb}.c1{color:#c2410c}.c2{color:#15803d}.c3{color:#9333ea}"
    ".c4{color:#be185d}.c5{color:#0e7490}.c6{color:#a16207}.c7{color:#475569}\n"
    "@media(prefers-color-scheme:dark){\n"
    ".bg{fill:#0d1117}.t{fill:#e6edf3}.m{fill:#9da7b3}.h{stroke:#0d1117}\n"
    ".g{stroke:#21262d}.a{stroke:#57606a}.r{stroke:#8b949e}\n"
    ".c0{color:#60a5fa}.c1{color:#fb923c}.c2{color:#4ade80}.c3{color:#c084fc}"
    ".c4{color:#f472b6}.c5{color:#22d3ee}.c6{color:#facc15}.c7{color:#94a3b8}\n"
    "}\n"
    "</style>\n";

/* SVG cannot measure text: 0.58 em is the mean advance of the fonts named above. */
static double text_width(const char *text, double font_size)
{
    return 0.58 * font_size * ts_text_width(text);
}

static void put_text(canvas *c, double x, double y, const char *classes, const char *anchor,
                     const char *text)
{
    ts_text_printf(c->out, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", classes,
                   x, y, anchor);
    ts_text_xml(c->out, text);
    ts_text_string(c->out, "</text>\n");
}

static void put_line(canvas *c, const char *classes, double x1, double y1, double x2, double y2)
{
    ts_text_printf(c->out, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n",
                   classes, x1, y1, x2, y2);
}

/* Formats a value for display: four significant digits, or an integer from 1000 to 1e6. */
static void format_value(char *buffer, size_t size, double value)
{
    double magnitude = fabs(value);

    if (magnitude >= 1000 && magnitude < 1e6)
        ts_format(buffer, size, "%.0f", value);
    else
        ts_format(buffer, size, "%.4g", value);
}

/* ------------------------------------------------------------------ title and legend ---- */

static double last_value(const ts_chart_series *s)
{
    const double *y = s->smooth ? s->smooth : s->y;

    for (int64_t i = s->n - 1; i >= 0; i--)
        if (isfinite(y[i]))
            return y[i];
    return NAN;
}

/* Lays out the legend, and draws it if `draw`. Returns its height. */
static double legend(canvas *c, double top, bool draw)
{
    const ts_chart *chart = c->chart;
    double x = MARGIN, y = top;
    int shown = 0;

    for (int i = 0; i < chart->nseries; i++) {
        const ts_chart_series *s = &chart->series[i];
        char value[32] = "";
        if (!*s->name)
            continue;
        if (!chart->nbars && isfinite(last_value(s)))
            format_value(value, sizeof value, last_value(s));
        double width = 28 + text_width(s->name, TEXT) + 8 + text_width(value, TEXT) + 16;
        if (shown++ && x + width > c->width - MARGIN) {
            x = MARGIN;
            y += LEGEND_ROW;
        }
        if (draw) {
            ts_text_printf(c->out,
                           "<rect class=\"f c%d\" x=\"%.1f\" y=\"%.1f\" width=\"18\" height=\"4\" "
                           "rx=\"2\"/>\n<text class=\"t\" x=\"%.1f\" y=\"%.1f\">",
                           i % COLOURS, x, y - 6, x + 26, y);
            ts_text_xml(c->out, s->name);
            ts_text_printf(c->out, " <tspan class=\"m n\" dx=\"3\">%s</tspan></text>\n", value);
        }
        x += width;
    }
    return shown ? y - top + LEGEND_ROW : 0;
}

/* Lays out everything above the plot, and draws it if `draw`. Returns the y of the plot's top. */
static double head(canvas *c, bool draw)
{
    const ts_chart_opts *opts = &c->chart->opts;
    double y = MARGIN;

    if (*opts->title) {
        double size = fmin(17, 17 * (c->width - 2 * MARGIN) / (text_width(opts->title, 17) + 1));
        if (draw) {
            ts_text_printf(c->out,
                           "<text class=\"t\" x=\"%d\" y=\"%.1f\" "
                           "style=\"font-size:%.1fpx;font-weight:600\">",
                           MARGIN, y + 10, size);
            ts_text_xml(c->out, opts->title);
            ts_text_string(c->out, "</text>\n");
        }
        y += 22;
    }
    y += legend(c, y + 14, draw);
    if (*opts->y_title) {
        if (draw)
            put_text(c, MARGIN, y + 16, "m", "start", opts->y_title);
        y += 18;
    }
    return y + 12;
}

/* ----------------------------------------------------------------------------- axes ---- */

static double place_x(const canvas *c, double x)
{
    return c->left + ts_axis_position(&c->x, x) * (c->right - c->left);
}

static double place_y(const canvas *c, double y)
{
    return c->bottom - ts_axis_position(&c->y, y) * (c->bottom - c->top);
}

static void draw_y_axis(canvas *c)
{
    char label[48];

    for (int i = 0; i < c->y.nticks; i++) {
        double y = place_y(c, c->y.ticks[i]);
        ts_axis_label(&c->y, c->y.ticks[i], label, sizeof label);
        put_line(c, "g", c->left, y, c->right, y);
        put_text(c, c->left - 8, y + 4, "m n", "end", label);
    }
}

static void draw_x_axis(canvas *c, bool grid)
{
    char label[48];

    for (int i = 0; i < c->x.nticks; i++) {
        double x = place_x(c, c->x.ticks[i]);
        ts_axis_label(&c->x, c->x.ticks[i], label, sizeof label);
        if (grid)
            put_line(c, "g", x, c->top, x, c->bottom);
        else
            put_line(c, "a", x, c->bottom, x, c->bottom + 5);
        put_text(c, x, c->bottom + 20, "m n", "middle", label);
    }
    if (*c->chart->opts.x_title)
        put_text(c, (c->left + c->right) / 2, c->bottom + 40, "m", "middle",
                 c->chart->opts.x_title);
}

/* ---------------------------------------------------------------------------- lines ---- */

static bool drawable(const canvas *c, double x, double y)
{
    return isfinite(x) && isfinite(y) && (!c->chart->opts.log_x || x > 0) &&
           (!c->chart->opts.log_y || y > 0);
}

/* Points that share a pixel column, reduced to four: first, lowest, highest, last. */
typedef struct column {
    int64_t count;
    double pixel;
    double x[4], y[4];
    int64_t at[4];
} column;

enum { FIRST, LOW, HIGH, LAST };

typedef struct pen {
    ts_text *out;
    bool down;     // a point of this stroke was written
    int64_t alone; // points written since the pen was set down
} pen;

static void pen_point(pen *p, double x, double y)
{
    ts_text_printf(p->out, "%s%.1f %.1f", p->down ? "L" : "M", x, y);
    p->down = true;
    p->alone++;
}

static void pen_up(pen *p)
{
    // A lone point would be invisible: a stroke of no length shows its round caps.
    if (p->down && p->alone == 1)
        ts_text_string(p->out, "h0");
    p->down = false;
    p->alone = 0;
}

static void flush_column(pen *p, column *k)
{
    bool swap = k->at[LOW] > k->at[HIGH];
    const int order[] = {FIRST, swap ? HIGH : LOW, swap ? LOW : HIGH, LAST};
    int64_t written = -1;

    for (int i = 0; k->count && i < 4; i++) {
        int which = order[i];
        if (k->at[which] > written) {
            pen_point(p, k->x[which], k->y[which]);
            written = k->at[which];
        }
    }
    k->count = 0;
}

static void column_add(column *k, int64_t at, double x, double y)
{
    bool set[4] = {k->count == 0, k->count == 0 || y > k->y[LOW], k->count == 0 || y < k->y[HIGH],
                   true};

    for (int i = 0; i < 4; i++) {
        if (set[i]) {
            k->x[i] = x;
            k->y[i] = y;
            k->at[i] = at;
        }
    }
    k->pixel = floor(x);
    k->count++;
}

static void draw_line(canvas *c, const ts_chart_series *s, const double *y, int colour,
                      const char *extra)
{
    bool thin = s->n > 2 * (int64_t)(c->right - c->left);
    pen p = {.out = c->out};
    column k = {0};

    ts_text_printf(c->out, "<path class=\"l c%d%s\" d=\"", colour, extra);
    for (int64_t i = 0; i < s->n; i++) {
        if (!drawable(c, s->x[i], y[i])) {
            if (!s->bridge_gaps) {
                flush_column(&p, &k);
                pen_up(&p);
            }
            continue;
        }
        double px = place_x(c, s->x[i]), py = place_y(c, y[i]);
        if (k.count && (!thin || floor(px) != k.pixel))
            flush_column(&p, &k);
        column_add(&k, i, px, py);
    }
    flush_column(&p, &k);
    pen_up(&p);
    ts_text_string(c->out, "\"/>\n");
}

static void draw_markers(canvas *c, const ts_chart_series *s, int colour)
{
    for (int64_t i = 0; i < s->n; i++)
        if (drawable(c, s->x[i], s->y[i]))
            ts_text_printf(c->out, "<circle class=\"f c%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>\n",
                           colour, place_x(c, s->x[i]), place_y(c, s->y[i]));
}

static void draw_references(canvas *c)
{
    double previous = -INFINITY;

    for (int i = 0; i < c->chart->nreferences; i++) {
        const ts_chart_reference_line *r = &c->chart->references[i];
        const char *separator = *r->name ? "  " : "";
        char value[32];
        ts_text label = {0};
        if (c->chart->opts.log_y && r->y <= 0)
            continue;
        double y = place_y(c, r->y);
        put_line(c, "r", c->left, y, c->right, y);
        format_value(value, sizeof value, r->y);
        ts_text_printf(&label, "%s%s%s", r->name, separator, value);
        // If two labels have nearly the same height, the second is below its line.
        bool crowded = fabs(y - previous) < 16 || y - 16 < c->top - 10;
        if (label.failed)
            c->out->failed = true;
        else
            put_text(c, c->right - 4, crowded ? y + 15 : y - 6, "m h n", "end", label.data);
        previous = y;
        ts_text_free(&label);
    }
}

static void widen(double *low, double *high, double value)
{
    *low = fmin(*low, value); // fmin ignores the NaN at the start
    *high = fmax(*high, value);
}

/* Computes the ranges of all drawable values; NaN if there are none. False if no line has one. */
static bool measure_lines(const canvas *c, double x[2], double y[2])
{
    bool any = false;

    x[0] = x[1] = y[0] = y[1] = NAN;
    for (int i = 0; i < c->chart->nseries; i++) {
        const ts_chart_series *s = &c->chart->series[i];
        for (int64_t j = 0; j < s->n; j++) {
            if (!drawable(c, s->x[j], s->y[j]))
                continue;
            any = true;
            widen(&x[0], &x[1], s->x[j]);
            widen(&y[0], &y[1], s->y[j]);
        }
    }
    for (int i = 0; i < c->chart->nreferences; i++)
        if (!c->chart->opts.log_y || c->chart->references[i].y > 0)
            widen(&y[0], &y[1], c->chart->references[i].y);
    return any;
}

static double widest_tick(const ts_axis *axis)
{
    double widest = 0;
    char label[48];

    for (int i = 0; i < axis->nticks; i++) {
        ts_axis_label(axis, axis->ticks[i], label, sizeof label);
        widest = fmax(widest, text_width(label, TEXT));
    }
    return widest;
}

static bool lay_out_lines(canvas *c)
{
    const ts_chart_opts *opts = &c->chart->opts;
    double x[2], y[2];
    bool any = measure_lines(c, x, y);

    c->top = head(c, false);
    c->bottom = fmax(c->top + 40, c->height - MARGIN - 22 - (*opts->x_title ? 18 : 0));
    c->y = ts_axis_make(y[0], y[1], opts->log_y, (int)fmax(2, (c->bottom - c->top) / 60), true);
    c->left = MARGIN + widest_tick(&c->y) + 8;
    c->right = c->width - MARGIN;
    c->x = ts_axis_make(x[0], x[1], opts->log_x, (int)fmax(2, (c->right - c->left) / 90), false);
    return any;
}

static void draw_lines(canvas *c, bool any)
{
    const ts_chart *chart = c->chart;

    draw_y_axis(c);
    draw_x_axis(c, false);
    put_line(c, "a", c->left, c->bottom, c->right, c->bottom);
    // Faint raw lines first, so that no series hides another's trend.
    for (int i = 0; i < chart->nseries; i++)
        if (chart->series[i].smooth)
            draw_line(c, &chart->series[i], chart->series[i].y, i % COLOURS, " w");
    for (int i = 0; i < chart->nseries; i++) {
        const ts_chart_series *s = &chart->series[i];
        draw_line(c, s, s->smooth ? s->smooth : s->y, i % COLOURS, "");
        if (s->markers)
            draw_markers(c, s, i % COLOURS);
    }
    draw_references(c);
    if (!any)
        put_text(c, (c->left + c->right) / 2, (c->top + c->bottom) / 2, "m h", "middle",
                 "no data yet");
}

/* ----------------------------------------------------------------------------- bars ---- */

static void lay_out_bars(canvas *c)
{
    const ts_chart *chart = c->chart;
    double low = NAN, high = NAN, labels = 0, values = 0;
    char value[32];

    for (int i = 0; i < chart->nbars; i++) {
        if (chart->bars[i].value > 0 || !chart->opts.log_x)
            widen(&low, &high, chart->bars[i].value);
        format_value(value, sizeof value, chart->bars[i].value);
        values = fmax(values, text_width(value, TEXT));
    }
    for (int i = 0; i < chart->nlabels; i++)
        labels = fmax(labels, text_width(chart->labels[i], TEXT));
    c->top = head(c, false);
    c->left = MARGIN + fmin(labels, 0.45 * c->width) + 8;
    c->right = c->width - MARGIN - values - 8;
    int below = MARGIN + 22 + (*chart->opts.x_title ? 18 : 0);
    if (!chart->opts.height)
        c->height = (int)c->top + chart->nlabels * (14 * chart->nseries + 12) + below;
    c->bottom = fmax(c->top + 20, c->height - below);
    // On a logarithmic axis the smallest bar gets a visible length too.
    low = chart->opts.log_x ? pow(10, floor(log10(low * 0.7))) : 0;
    high = high > 0 ? high : 1;
    c->x =
        ts_axis_make(low, high, chart->opts.log_x, (int)fmax(2, (c->right - c->left) / 90), false);
    if (!chart->opts.log_x)
        c->x.low = 0;
}

static void draw_bars(canvas *c)
{
    const ts_chart *chart = c->chart;
    double band = (c->bottom - c->top) / chart->nlabels;
    double height = band * 0.72 / chart->nseries;
    char value[32];

    draw_x_axis(c, true);
    for (int i = 0; i < chart->nlabels; i++)
        put_text(c, c->left - 8, c->top + (i + 0.5) * band + 4, "t", "end", chart->labels[i]);
    for (int i = 0; i < chart->nbars; i++) {
        const ts_chart_bar_value *bar = &chart->bars[i];
        double y = c->top + (bar->label + 0.14) * band + bar->series * height;
        double end = bar->value > 0 ? place_x(c, bar->value) : c->left;
        ts_text_printf(c->out,
                       "<rect class=\"f c%d\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
                       "rx=\"%.1f\"/>\n",
                       bar->series % COLOURS, c->left, y, fmax(end - c->left, 0.5),
                       fmax(height - 1, 1), fmin(3, height / 4));
        format_value(value, sizeof value, bar->value);
        put_text(c, end + 6, y + height / 2 + 4, "m h n", "start", value);
    }
    put_line(c, "a", c->left, c->top, c->left, c->bottom);
}

void ts_chart_draw(const ts_chart *chart, ts_text *out)
{
    canvas c = {.chart = chart, .out = out};
    bool any = false;

    c.width = chart->opts.width ? chart->opts.width : 860;
    c.height = chart->opts.height ? chart->opts.height : 480;
    if (chart->nbars)
        lay_out_bars(&c);
    else
        any = lay_out_lines(&c);
    ts_text_printf(out,
                   "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                   "viewBox=\"0 0 %d %d\" role=\"img\">\n<title>",
                   c.width, c.height, c.width, c.height);
    ts_text_xml(out, *chart->opts.title ? chart->opts.title : "chart");
    ts_text_string(out, "</title>\n");
    ts_text_string(out, style);
    ts_text_printf(out, "<rect class=\"bg\" width=\"%d\" height=\"%d\" rx=\"6\"/>\n", c.width,
                   c.height);
    head(&c, true);
    if (chart->nbars)
        draw_bars(&c);
    else
        draw_lines(&c, any);
    ts_text_string(out, "</svg>\n");
}
