/** @file html.c  Writes a profile as one HTML page: verdict, advice, charts (roofline, steps,
 * memory), and tables by operator, layer, module and call. */
// SPDX-License-Identifier: MIT
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "html.h"
#include "page.h"

enum { DOTS_MOST = 10, ROWS_MOST = 40 };

double number(json_t *object, const char *name)
{
    return json_number_value(json_object_get(object, name));
}

const char *text(json_t *object, const char *name)
{
    const char *s = json_string_value(json_object_get(object, name));
    return s ? s : "";
}

void print_text(FILE *out, const char *s)
{
    for (; *s; s++)
        switch (*s) {
        case '<': fputs("&lt;", out); break;
        case '>': fputs("&gt;", out); break;
        case '&': fputs("&amp;", out); break;
        case '"': fputs("&quot;", out); break;
        default: fputc(*s, out);
        }
}

static int by_time(const void *a, const void *b)
{
    const op_sum *x = a, *y = b;
    if (x->device_ns != y->device_ns)
        return (x->device_ns < y->device_ns) - (x->device_ns > y->device_ns);
    return (x->self_ns < y->self_ns) - (x->self_ns > y->self_ns);
}

/** The time that an op's rates divide by. */
static double time_of(const page *p, const op_sum *o)
{
    return p->device ? o->device_ns : o->self_ns;
}

static void add_regime(op_sum *o, const char *regime, double ns)
{
    int k = 0;
    while (k < REGIMES_MOST - 1 && o->in[k].regime && strcmp(o->in[k].regime, regime) != 0)
        k++;
    o->in[k].regime = regime;
    o->in[k].ns += ns;
}

/** The regime in which the op spends most of its time. */
static const char *regime_of(const op_sum *o)
{
    int most = 0;
    for (int k = 1; k < REGIMES_MOST && o->in[k].regime; k++)
        most = o->in[k].ns > o->in[most].ns ? k : most;
    return o->in[most].regime;
}

static void sum_ops(page *p)
{
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(p->root, "rows"), i, row) {
        const char *name = text(row, "op");
        int k = 0;
        if (!json_is_true(json_object_get(row, "kernel")))
            continue;
        while (k < p->nops && strcmp(p->ops[k].name, name) != 0)
            k++;
        if (k == OPS_MOST)
            continue;
        p->nops += k == p->nops;
        op_sum *o = &p->ops[k];
        o->name = name;
        o->calls += number(row, "calls");
        o->self_ns += number(row, "self_ns");
        o->flops += number(row, "flops");
        o->bytes += number(row, "bytes");
        o->roof_ns += number(row, "roof_ns");
        o->overhead_ns += number(row, "overhead_ns");
        o->device_ns += number(row, "device_ns");
        add_regime(o, text(row, "regime"), number(row, p->device ? "device_ns" : "self_ns"));
    }
    qsort(p->ops, (size_t)p->nops, sizeof p->ops[0], by_time);
}

/* ------------------------------------------------------------------------------- charts ---- */

/** Inserts a chart into the page: report/ writes it to a file, whose content is copied. */
static ts_status inline_chart(const page *p, const ts_chart *chart)
{
    char path[4096], buffer[4096];
    size_t n;
    if (snprintf(path, sizeof path, "%s.part.svg", p->path) >= (int)sizeof path)
        return TS_ERR_VALUE;
    TS_TRY(ts_chart_write(chart, path));
    FILE *in = fopen(path, "r");
    while (in && (n = fread(buffer, 1, sizeof buffer, in)) > 0) {
        const char *begin = buffer;
        if (n > 5 && strncmp(buffer, "<?xml", 5) == 0) {
            const char *end = memchr(buffer, '\n', n);
            begin = end ? end + 1 : buffer;
        }
        fwrite(begin, 1, n - (size_t)(begin - buffer), p->out);
    }
    if (in)
        fclose(in);
    unlink(path);
    return TS_OK;
}

static ts_status add_roof(ts_chart *chart, const char *name, double flops, double bandwidth)
{
    enum { POINTS = 41 };
    double x[POINTS], y[POINTS];
    for (int i = 0; i < POINTS; i++) {
        x[i] = pow(10, -2 + 6.0 * i / (POINTS - 1));
        y[i] = fmin(flops, x[i] * bandwidth) / 1e9;
    }
    return ts_chart_line(chart, name, x, y, POINTS, NULL);
}

/** Draws the roofline: operations per second over operations per byte, one dot per op. */
static ts_status draw_roofline(const page *p, ts_chart *chart)
{
    json_t *m = json_object_get(p->device ? p->device : p->root, "machine");
    json_t *curve = json_object_get(m, "bandwidth");
    double memory = json_number_value(
        json_array_get(json_array_get(curve, json_array_size(curve) - 1), 1));
    double cache = 0;
    size_t i;
    json_t *pair;
    json_array_foreach(curve, i, pair)
        cache = fmax(cache, json_number_value(json_array_get(pair, 1)));
    TS_TRY(add_roof(chart, "products, memory", number(m, "gemm_flops"), memory));
    if (p->device)
        TS_TRY(add_roof(chart, "products in 16 bits", number(p->device, "half_flops"), memory));
    TS_TRY(add_roof(chart, "elementwise, memory", number(m, "vector_flops"), memory));
    TS_TRY(add_roof(chart, "elementwise, caches", number(m, "vector_flops"), cache));
    ts_line_opts dot = {.size = sizeof dot, .markers = true};
    for (int k = 0, dots = 0; k < p->nops && dots < DOTS_MOST; k++) {
        const op_sum *o = &p->ops[k];
        double work_ns = time_of(p, o) - o->overhead_ns;
        if (o->flops <= 0 || o->bytes <= 0 || work_ns <= 0)
            continue;
        double x = o->flops / o->bytes, y = o->flops / work_ns;
        TS_TRY(ts_chart_line(chart, o->name, &x, &y, 1, &dot));
        dots++;
    }
    return inline_chart(p, chart);
}

static ts_status draw_steps(const page *p, ts_chart *chart)
{
    static const char *const names[] = {"wall", "kernels", "layers", "outside of calls", "",
                                        "device busy", "device idle"};
    json_t *steps = json_object_get(p->root, "steps");
    size_t n = json_array_size(steps);
    double first = number(p->root, "first_step");
    double *x = malloc((n + 1) * 2 * sizeof *x);
    ts_status status = x ? TS_OK : TS_ERR_MEMORY;
    for (int part = 0; part < (p->device ? 7 : 4) && status == TS_OK; part++) {
        if (!names[part][0])
            continue;
        for (size_t i = 0; i < n; i++) {
            x[i] = first + (double)i;
            x[n + i] = json_number_value(json_array_get(json_array_get(steps, i),
                                                        (size_t)part)) / 1e6;
        }
        status = ts_chart_line(chart, names[part], x, x + n, (int64_t)n, NULL);
    }
    free(x);
    return status == TS_OK ? inline_chart(p, chart) : status;
}

/** Draws memory over time. Each line adds an owner to the sum of the owners after it in the list,
 *  and its name begins with "+", except for the last owner. */
static ts_status draw_memory(const page *p, ts_chart *chart)
{
    json_t *memory = json_object_get(p->root, "memory");
    json_t *points = json_object_get(memory, "points");
    json_t *owners = json_object_get(memory, "owners");
    size_t n = json_array_size(points), most = json_array_size(owners);
    double *x = malloc((n + 1) * 2 * sizeof *x);
    ts_status status = x ? TS_OK : TS_ERR_MEMORY;
    for (size_t i = 0; i < n && x; i++)
        x[n + i] = 0;
    for (size_t k = most; k-- > 0 && status == TS_OK;) {
        for (size_t i = 0; i < n; i++) {
            json_t *point = json_array_get(points, i);
            x[i] = number(point, "ns") / 1e9;
            x[n + i] += json_number_value(json_array_get(json_object_get(point, "bytes"), k)) /
                        1048576;
        }
        char name[64];
        snprintf(name, sizeof name, "%s%.40s", k + 1 < most ? "+ " : "",
                 json_string_value(json_array_get(owners, k)));
        status = ts_chart_line(chart, name, x, x + n, (int64_t)n, NULL);
    }
    free(x);
    return status == TS_OK ? inline_chart(p, chart) : status;
}

static ts_status draw(const page *p, const ts_chart_opts *opts,
                      ts_status (*fill)(const page *p, ts_chart *chart))
{
    ts_chart *chart = ts_chart_new(opts);
    ts_status status = chart ? fill(p, chart) : ts_error_code();
    ts_chart_free(chart);
    return status;
}

/* ------------------------------------------------------------------------------- tables ---- */

void print_number(FILE *out, double value, int digits)
{
    if (value > 0 && isfinite(value))
        fprintf(out, "<td>%.*f</td>", digits, value);
    else
        fputs("<td>–</td>", out);
}

static void print_bar(const page *p)
{
    static const char *const names[] = {"compute", "memory", "overhead", "outside", "profiler",
                                        "unknown"};
    json_t *shares = json_object_get(p->root, "shares");
    fputs("<div class=bar>", p->out);
    for (int i = 0; i < 6; i++)
        if (number(shares, names[i]) > 0)
            fprintf(p->out, "<span class=%s style=\"width:%.2f%%\"></span>", names[i],
                    100 * number(shares, names[i]));
    fputs("</div><p>", p->out);
    for (int i = 0; i < 6; i++)
        fprintf(p->out, "<span class=\"key %s\"></span> %s %.1f %% ", names[i], names[i],
                100 * number(shares, names[i]));
    fputs("</p>\n", p->out);
}

static void print_ops(const page *p)
{
    fprintf(p->out,
            "<h2>Operators</h2><table><tr><th>op<th>calls<th>self ms%s<th>GFLOP/s<th>GB/s"
            "<th>%% of ceiling<th>regime</tr>\n",
            p->device ? "<th>device ms<th>% of device" : "<th>% of wall");
    for (int i = 0; i < p->nops && i < ROWS_MOST; i++) {
        const op_sum *o = &p->ops[i];
        fputs("<tr><td>", p->out);
        print_text(p->out, o->name);
        fputs("</td>", p->out);
        print_number(p->out, o->calls, 0);
        print_number(p->out, o->self_ns / 1e6, 2);
        double ns = time_of(p, o);
        if (p->device)
            print_number(p->out, o->device_ns / 1e6, 2);
        print_number(p->out, 100 * ns / p->time_ns, 1);
        print_number(p->out, o->flops / ns, 2);
        print_number(p->out, o->bytes / ns, 2);
        print_number(p->out, fmin(100, 100 * o->roof_ns / (ns - o->overhead_ns)), 0);
        fputs("<td>", p->out);
        print_text(p->out, regime_of(o));
        fputs("</td></tr>\n", p->out);
    }
    fputs("</table>\n", p->out);
}

static void print_rows(const page *p)
{
    size_t i;
    json_t *row;
    fprintf(p->out,
            "<h2>Calls, by shape, layer and scope</h2><table><tr><th>call<th>layer<th>phase"
            "<th>scope<th>calls<th>self ms%s<th>regime</tr>\n",
            p->device ? "<th>device ms<th>kernels<th>% of device" : "<th>% of wall");
    json_array_foreach(json_object_get(p->root, "rows"), i, row) {
        static const char *const columns[] = {"call", "layer", "phase", "scope"};
        if (i == ROWS_MOST)
            break;
        fputs("<tr>", p->out);
        for (int k = 0; k < 4; k++) {
            fputs("<td>", p->out);
            print_text(p->out, text(row, columns[k]));
            fputs("</td>", p->out);
        }
        print_number(p->out, number(row, "calls"), 0);
        print_number(p->out, number(row, "self_ns") / 1e6, 2);
        if (p->device) {
            print_number(p->out, number(row, "device_ns") / 1e6, 3);
            print_number(p->out, number(row, "kernels"), 0);
        }
        print_number(p->out,
                     100 * number(row, p->device ? "device_ns" : "self_ns") / p->time_ns, 1);
        fputs("<td>", p->out);
        print_text(p->out, text(row, "regime"));
        fputs("</td></tr>\n", p->out);
    }
    fputs("</table>\n", p->out);
}

static void print_advice(const page *p)
{
    size_t i;
    json_t *advice, *all = json_object_get(p->root, "advice");
    fputs("<h2>Advice</h2>\n<ul>\n", p->out);
    json_array_foreach(all, i, advice) {
        fputs("<li><b>", p->out);
        print_text(p->out, text(advice, "id"));
        fputs("</b> ", p->out);
        print_text(p->out, text(advice, "what"));
        fputs(", because ", p->out);
        print_text(p->out, text(advice, "evidence"));
        fprintf(p->out, "; gain at most %.0f %%</li>\n", 100 * number(advice, "gain_at_most"));
    }
    if (!json_array_size(all))
        fputs("<li>There is no advice for this profile.</li>\n", p->out);
    fputs("</ul>\n", p->out);
}

static void print_idle(const page *p)
{
    json_t *idle = json_object_get(p->device, "idle"), *ns;
    const char *cause;
    size_t i;
    json_t *exposed;
    if (!p->device || number(p->device, "idle_ns") <= 0)
        return;
    fputs("<h2>Idle time of the device</h2><table><tr><th>cause<th>ms<th>% of device</tr>\n",
          p->out);
    json_object_foreach(idle, cause, ns) {
        if (json_number_value(ns) <= 0)
            continue;
        fprintf(p->out, "<tr><td>%s</td>", cause);
        print_number(p->out, json_number_value(ns) / 1e6, 3);
        print_number(p->out, 100 * json_number_value(ns) / p->time_ns, 1);
        fputs("</tr>\n", p->out);
    }
    fputs("</table>\n", p->out);
    if (!json_array_size(json_object_get(p->root, "exposed")))
        return;
    fputs("<table><tr><th>scope or layer of the host during idle time<th>ms</tr>\n", p->out);
    json_array_foreach(json_object_get(p->root, "exposed"), i, exposed) {
        if (i == 20)
            break;
        fputs("<tr><td>", p->out);
        print_text(p->out, text(exposed, "name")[0] ? text(exposed, "name") : "(program)");
        fputs(json_is_true(json_object_get(exposed, "layer")) ? " (layer)</td>" : "</td>", p->out);
        print_number(p->out, number(exposed, "ns") / 1e6, 3);
        fputs("</tr>\n", p->out);
    }
    fputs("</table>\n", p->out);
}

static ts_status print_memory(const page *p)
{
    json_t *memory = json_object_get(p->root, "memory"), *holder;
    json_t *owners = json_object_get(memory, "owners");
    size_t i;
    if (!json_array_size(json_object_get(memory, "points")))
        return TS_OK;
    fprintf(p->out, "<h2>Memory of tensors</h2>\n<p>Peak %.2f MiB on ",
            number(memory, "peak_bytes") / 1048576);
    print_text(p->out, text(memory, "device"));
    fprintf(p->out,
            ", after %.3f s, in recorded and other steps. In the chart, each line that begins with "
            "+ adds an owner to the line below it.</p>\n",
            number(memory, "peak_ns") / 1e9);
    TS_TRY(draw(p, &(ts_chart_opts){.size = sizeof(ts_chart_opts), .x_title = "s",
                                    .y_title = "MiB", .height = 320},
                draw_memory));
    fputs("<table><tr><th>op at the peak<th>for<th>scope<th>MiB<th>blocks</tr>\n", p->out);
    json_array_foreach(json_object_get(memory, "holders"), i, holder) {
        const char *owner = json_string_value(
            json_array_get(owners, (size_t)number(holder, "owner")));
        fputs("<tr><td>", p->out);
        print_text(p->out, text(holder, "op"));
        fprintf(p->out, "</td><td>%s</td><td>", owner ? owner : "");
        print_text(p->out, text(holder, "scope"));
        fputs("</td>", p->out);
        print_number(p->out, number(holder, "bytes") / 1048576, 3);
        print_number(p->out, number(holder, "blocks"), 0);
        fputs("</tr>\n", p->out);
    }
    fputs("</table>\n", p->out);
    return TS_OK;
}

static const char *threads_of(json_t *object)
{
    return number(object, "threads") == 1 ? "thread" : "threads";
}

static void print_head(const page *p)
{
    json_t *m = json_object_get(p->root, "machine"), *i = json_object_get(p->root, "integrity");
    json_t *memory = json_object_get(p->root, "memory");
    fputs("<!DOCTYPE html>\n<html lang=en><head><meta charset=utf-8><title>Profile</title>\n"
          "<style>\n"
          "body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;"
          "color-scheme:light dark}\n"
          "table{border-collapse:collapse;font-variant-numeric:tabular-nums;display:block;"
          "overflow-x:auto}\n"
          "td,th{padding:.15rem .6rem;text-align:right;border-bottom:1px solid #8884}\n"
          "td:first-child,th:first-child{text-align:left;min-width:7rem;max-width:26rem;"
          "overflow-wrap:anywhere}\n"
          ".bar{display:flex;height:1.6rem;border-radius:.3rem;overflow:hidden}\n"
          ".key{display:inline-block;width:.8em;height:.8em}\nsvg{max-width:100%;height:auto}\n"
          ".compute{background:#2a7f4f}.memory{background:#2b6cb0}.overhead{background:#c05621}\n"
          ".outside{background:#888}.profiler{background:#b7950b}.unknown{background:#7b3fa0}\n"
          "</style></head><body>\n<h1>",
          p->out);
    print_text(p->out, text(p->root, "verdict"));
    fprintf(p->out, "</h1>\n<p>%.3f s in %.0f %s, on ", p->wall_ns / 1e9,
            number(p->root, "threads"), threads_of(p->root));
    print_text(p->out, text(m, "name"));
    fprintf(p->out,
            ", whose ceilings with %.0f %s were measured as %.1f GFLOP/s in products and %.1f "
            "elementwise. Rows sum to the wall time within %.4f %%; %.0f rows are above a ceiling; "
            "%.0f steps are lost; %.0f calls are in rows without shapes.",
            number(m, "threads"), threads_of(m), number(m, "gemm_flops") / 1e9,
            number(m, "vector_flops") / 1e9,
            100 * fabs(number(i, "missing_share")), number(i, "errors"), number(i, "lost_steps"),
            number(i, "shared_calls"));
    if (number(i, "lost_calls") > 0)
        fprintf(p->out, " INCOMPLETE: %.0f calls are missing from the trace, which is full.",
                number(i, "lost_calls"));
    if (number(memory, "lost") > 0)
        fprintf(p->out, " INCOMPLETE: %.0f allocations are missing from the log, which is full.",
                number(memory, "lost"));
    if (number(i, "overwritten_calls") > 0)
        fprintf(p->out, " The trace has the latest calls; %.0f older ones were overwritten.",
                number(i, "overwritten_calls"));
    fputs("</p>\n", p->out);
    const char *note = text(json_object_get(p->root, "device_times"), "note");
    if (p->device) {
        fputs("<p>The shares are of the time of ", p->out);
        print_text(p->out, text(p->root, "device"));
        fputs(", by ", p->out);
        print_text(p->out, text(p->device, "source"));
        fprintf(p->out,
                ": busy %.3f ms with %.0f kernels and %.0f copies, idle %.3f ms. %.0f records were "
                "lost; %.3f ms belong to no row.</p>\n",
                number(p->device, "busy_ns") / 1e6, number(p->device, "kernels"),
                number(p->device, "copies"), number(p->device, "idle_ns") / 1e6,
                number(p->device, "lost"), number(p->device, "untagged_ns") / 1e6);
    }
    if (note[0]) {
        fputs("<p>", p->out);
        print_text(p->out, note);
        fputs("</p>\n", p->out);
    }
}

static ts_status print_page(FILE *out, void *ctx)
{
    page *p = ctx;
    TS_C_LOCALE;
    p->out = out;
    sum_ops(p);
    print_head(p);
    print_bar(p);
    print_advice(p);
    if (json_is_true(json_object_get(p->device ? p->device : p->root, "measured"))) {
        fputs("<h2>Roofline</h2>\n", out);
        TS_TRY(draw(p, &(ts_chart_opts){.size = sizeof(ts_chart_opts), .x_title = "FLOP/byte",
                                        .y_title = "GFLOP/s", .log_x = true, .log_y = true},
                    draw_roofline));
    }
    if (json_array_size(json_object_get(p->root, "steps"))) {
        fputs("<h2>Steps</h2>\n", out);
        TS_TRY(draw(p, &(ts_chart_opts){.size = sizeof(ts_chart_opts), .x_title = "step",
                                        .y_title = "ms", .height = 320},
                    draw_steps));
    }
    print_idle(p);
    TS_TRY(print_memory(p));
    print_ops(p);
    TS_TRY(print_layers(p));
    TS_TRY(print_scopes(p));
    print_rows(p);
    fputs("</body></html>\n", out);
    return TS_OK;
}

ts_status write_html(const ts_profile *profile, const char *path)
{
    char *json = NULL;
    size_t bytes = 0;
    FILE *memory = open_memstream(&json, &bytes);
    ts_status status = memory ? ts_profile_write(profile, memory, TS_PROFILE_JSON) : TS_ERR_MEMORY;
    if (memory)
        fclose(memory);
    page *p = status == TS_OK ? calloc(1, sizeof *p) : NULL;
    if (status == TS_OK && !p)
        status = TS_ERR_MEMORY;
    if (p) {
        p->root = json_loadb(json, bytes, 0, NULL);
        p->path = path;
        p->wall_ns = p->time_ns = number(p->root, "wall_ns");
        p->device = json_object_get(p->root, "device_times");
        if (number(p->device, "busy_ns") > 0)
            p->time_ns = number(p->device, "busy_ns") + number(p->device, "idle_ns");
        else
            p->device = NULL;
        status = p->root ? ts_replace_file("report", path, print_page, p) : TS_ERR_MEMORY;
        json_decref(p->root);
    }
    free(p);
    free(json);
    return status;
}
