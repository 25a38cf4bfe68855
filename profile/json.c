/** @file json.c  profile.json: written in one pass, read with every field checked. */
// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/files.h"
#include "include/tessera/check.h"
#include "include/tessera/program.h"
#include "io/json.h"
#include "profile/profile.h"

/* ------------------------------------------------------------------------------ writing ---- */

void ts_profile_print_text(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text; text++)
        if (*text == '"' || *text == '\\')
            fprintf(out, "\\%c", *text);
        else if ((unsigned char)*text < ' ')
            fprintf(out, "\\u%04x", *text);
        else
            fputc(*text, out);
    fputc('"', out);
}

static void print_text(FILE *out, const char *name, const char *text)
{
    fprintf(out, "\"%s\": ", name);
    ts_profile_print_text(out, text);
}

static void print_machine(const ts_prof_machine *m, FILE *out)
{
    print_text(out, "name", m->name);
    fprintf(out,
            ", \"threads\": %d, \"gemm_flops\": %.17g, \"vector_flops\": %.17g, "
            "\"call_ns\": %.17g, \"entry_ns\": %.17g, \"stamp_ns\": %.17g, "
            "\"record_ns\": %.17g, \"measured_at\": %.0f,\n"
            "  \"bandwidth\": [",
            m->threads, m->gemm_flops, m->vector_flops, m->call_ns, m->entry_ns, m->stamp_ns,
            m->record_ns, m->measured_at);
    for (int i = 0; i < TS_PROF_CURVE; i++)
        fprintf(out, "%s[%.0f, %.17g]", i ? ", " : "", m->bytes_at[i], m->bandwidth[i]);
    fputs("]", out);
}

static void print_device(const ts_device_part *d, FILE *out)
{
    fputs("\"device_times\": {", out);
    print_text(out, "source", d->source);
    fputs(", ", out);
    print_text(out, "note", d->note);
    fprintf(out,
            ", \"kernels\": %lld, \"copies\": %lld, \"lost\": %lld, \"untagged\": %lld, "
            "\"busy_ns\": %.17g, \"idle_ns\": %.17g, \"untagged_ns\": %.17g, "
            "\"measured\": %s, \"half_flops\": %.17g,\n  \"machine\": {",
            (long long)d->kernels, (long long)d->copies, (long long)d->lost,
            (long long)d->untagged, d->busy_ns, d->idle_ns, d->untagged_ns,
            d->measured ? "true" : "false", d->half_flops);
    print_machine(&d->machine, out);
    fputs("}},\n", out);
}

static void print_shares(const ts_profile_shares *s, FILE *out)
{
    fprintf(out,
            "\"verdict\": \"%s\",\n\"shares\": {\"compute\": %.6f, \"memory\": %.6f, "
            "\"overhead\": %.6f, \"outside\": %.6f, \"profiler\": %.6f, \"unknown\": %.6f},\n",
            s->verdict, s->compute, s->memory, s->overhead, s->outside, s->profiler, s->unknown);
}

static void print_entry(const ts_entry *e, FILE *out)
{
    fputs(" {", out);
    print_text(out, "op", e->op);
    fputs(", ", out);
    print_text(out, "layer", e->layer);
    fputs(", ", out);
    print_text(out, "scope", e->scope);
    fputs(", ", out);
    print_text(out, "call", e->call);
    fprintf(out,
            ", \"dtype\": \"%s\", \"phase\": \"%s\", \"regime\": \"%s\", \"kernel\": %s, "
            "\"product\": %s, \"update\": %s, \"calls\": %lld, \"unknown\": %lld, "
            "\"self_ns\": %.17g, \"flops\": %.17g, \"bytes\": %.17g, \"roof_ns\": %.1f, "
            "\"overhead_ns\": %.1f, \"device_ns\": %.17g, \"kernels\": %lld}",
            e->dtype, ts_entry_phase(e), ts_regime_names[e->regime], e->kernel ? "true" : "false",
            e->product ? "true" : "false", e->update ? "true" : "false", (long long)e->calls,
            (long long)e->unknown, e->self_ns, e->flops, e->bytes, e->roof_ns, e->overhead_ns,
            e->device_ns, (long long)e->kernels);
}

ts_status ts_profile_write_json(const ts_profile *p, FILE *out)
{
    fprintf(out,
            "{\"schema_version\": %d, \"library\": \"%s\", \"device\": \"%s\", "
            "\"measured\": %s, \"threads\": %d,\n",
            TS_PROFILE_SCHEMA, TS_VERSION,
            ts_profile_is_of_device(p) ? p->device.machine.name : "cpu",
            p->measured ? "true" : "false", p->threads);
    fputs("\"machine\": {", out);
    print_machine(&p->machine, out);
    fputs("},\n", out);
    print_device(&p->device, out);
    print_shares(&p->shares, out);
    fprintf(out,
            "\"wall_ns\": %.17g, \"profiler_ns\": %.17g,\n"
            "\"integrity\": {\"missing_share\": %.17g, "
            "\"lost_steps\": %lld, \"shared_calls\": %lld, \"errors\": %lld},\n",
            p->wall_ns, p->profiler_ns, p->own_share, (long long)p->lost_steps,
            (long long)p->shared_calls, (long long)p->shares.errors);
    fputs("\"advice\": [", out);
    ts_profile_write_advice(p, out, true);
    fprintf(out, "],\n\"first_step\": %lld,\n\"steps\": [\n", (long long)p->first_step);
    for (int64_t i = 0; i < p->nsteps; i++) {
        const ts_step_times *s = &p->steps[i];
        fprintf(out, " [%.17g, %.17g, %.17g, %.17g, %.17g, %.17g, %.17g]%s\n", s->wall_ns,
                s->kernels_ns, s->layers_ns, s->outside_ns, s->profiler_ns, s->busy_ns, s->idle_ns,
                i + 1 < p->nsteps ? "," : "");
    }
    fputs("],\n\"rows\": [\n", out);
    for (int64_t i = 0; i < p->count; i++) {
        print_entry(&p->entries[i], out);
        fputs(i + 1 < p->count ? ",\n" : "\n", out);
    }
    fputs("]}\n", out);
    return TS_OK;
}

/* ------------------------------------------------------------------------------ reading ---- */

static const char *const op = "profile_read";

static ts_status wrong(const char *path, const char *field, const char *expected)
{
    return ts_fail_op(TS_ERR_FORMAT, op, NULL, NULL, "'%.200s': '%s': expected %s", path, field,
                      expected);
}

/** Table of the fields read from one object. */
typedef struct source {
    const char *path;
    json_t *object;
} source;

static ts_status get_number(const source *s, const char *name, double *value)
{
    json_t *v = json_object_get(s->object, name);
    if (!json_is_number(v) || !isfinite(json_number_value(v)))
        return wrong(s->path, name, "a number");
    *value = json_number_value(v);
    return TS_OK;
}

static ts_status get_count(const source *s, const char *name, int64_t *value)
{
    json_t *v = json_object_get(s->object, name);
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return wrong(s->path, name, "a whole number of at least 0");
    *value = json_integer_value(v);
    return TS_OK;
}

static ts_status get_flag(const source *s, const char *name, bool *value)
{
    json_t *v = json_object_get(s->object, name);
    if (!json_is_boolean(v))
        return wrong(s->path, name, "true or false");
    *value = json_is_true(v);
    return TS_OK;
}

static ts_status get_text(const source *s, const char *name, char *text, size_t size)
{
    json_t *v = json_object_get(s->object, name);
    if (!json_is_string(v) || json_string_length(v) >= size ||
        strlen(json_string_value(v)) != json_string_length(v))
        return wrong(s->path, name, "a text that is not longer than what is written");
    ts_escape_text(text, size, json_string_value(v)); /* it may end on a terminal */
    return TS_OK;
}

static ts_status get_list(const source *s, const char *name, json_t **list)
{
    *list = json_object_get(s->object, name);
    return json_is_array(*list) ? TS_OK : wrong(s->path, name, "a list");
}

static ts_status read_pairs(const source *s, ts_prof_machine *m)
{
    json_t *list;
    TS_TRY(get_list(s, "bandwidth", &list));
    for (size_t i = 0; i < TS_PROF_CURVE; i++) {
        json_t *pair = json_array_get(list, i);
        m->bytes_at[i] = json_number_value(json_array_get(pair, 0));
        m->bandwidth[i] = json_number_value(json_array_get(pair, 1));
        if (!isfinite(m->bytes_at[i]) || !isfinite(m->bandwidth[i]) || m->bandwidth[i] < 0)
            return wrong(s->path, "bandwidth", "pairs of bytes and bytes/s");
    }
    return TS_OK;
}

static ts_status read_machine(const char *path, json_t *object, ts_prof_machine *m, bool measured)
{
    source s = {path, object};
    int64_t threads = 0;
    *m = (ts_prof_machine){.size = sizeof *m};
    TS_TRY(get_text(&s, "name", m->name, sizeof m->name));
    TS_TRY(get_count(&s, "threads", &threads));
    m->threads = threads < INT32_MAX ? (int)threads : INT32_MAX;
    TS_TRY(get_number(&s, "gemm_flops", &m->gemm_flops));
    TS_TRY(get_number(&s, "vector_flops", &m->vector_flops));
    TS_TRY(get_number(&s, "call_ns", &m->call_ns));
    TS_TRY(get_number(&s, "entry_ns", &m->entry_ns));
    TS_TRY(get_number(&s, "stamp_ns", &m->stamp_ns));
    TS_TRY(get_number(&s, "record_ns", &m->record_ns));
    TS_TRY(get_number(&s, "measured_at", &m->measured_at));
    TS_TRY(read_pairs(&s, m));
    bool positive = m->gemm_flops > 0 && m->vector_flops > 0 && ts_machine_bandwidth(m, 0) > 0;
    return positive || !measured ? TS_OK : wrong(path, "machine", "ceilings above 0");
}

/** Reads the object "device_times", which older profiles lack. */
static ts_status read_device(const char *path, json_t *object, ts_device_part *d)
{
    source s = {path, object};
    if (!object)
        return TS_OK;
    TS_TRY(get_text(&s, "source", d->source, sizeof d->source));
    TS_TRY(get_text(&s, "note", d->note, sizeof d->note));
    TS_TRY(get_count(&s, "kernels", &d->kernels));
    TS_TRY(get_count(&s, "copies", &d->copies));
    TS_TRY(get_count(&s, "lost", &d->lost));
    TS_TRY(get_count(&s, "untagged", &d->untagged));
    TS_TRY(get_number(&s, "busy_ns", &d->busy_ns));
    TS_TRY(get_number(&s, "idle_ns", &d->idle_ns));
    TS_TRY(get_number(&s, "untagged_ns", &d->untagged_ns));
    TS_TRY(get_number(&s, "half_flops", &d->half_flops));
    TS_TRY(get_flag(&s, "measured", &d->measured));
    return read_machine(path, json_object_get(object, "machine"), &d->machine, d->measured);
}

static ts_status read_entry(const char *path, json_t *object, ts_entry *e)
{
    source s = {path, object};
    TS_TRY(get_text(&s, "op", e->op, sizeof e->op));
    TS_TRY(get_text(&s, "layer", e->layer, sizeof e->layer));
    TS_TRY(get_text(&s, "scope", e->scope, sizeof e->scope));
    TS_TRY(get_text(&s, "call", e->call, sizeof e->call));
    TS_TRY(get_text(&s, "dtype", e->dtype, sizeof e->dtype));
    TS_TRY(get_flag(&s, "kernel", &e->kernel));
    TS_TRY(get_flag(&s, "product", &e->product));
    TS_TRY(get_flag(&s, "update", &e->update));
    TS_TRY(get_count(&s, "calls", &e->calls));
    TS_TRY(get_count(&s, "unknown", &e->unknown));
    TS_TRY(get_number(&s, "self_ns", &e->self_ns));
    TS_TRY(get_number(&s, "flops", &e->flops));
    TS_TRY(get_number(&s, "bytes", &e->bytes));
    if (!json_object_get(object, "device_ns")) /* written without device times */
        return TS_OK;
    TS_TRY(get_number(&s, "device_ns", &e->device_ns));
    return get_count(&s, "kernels", &e->kernels);
}

static ts_status read_step(const char *path, json_t *list, ts_step_times *t)
{
    double *const values[] = {&t->wall_ns,     &t->kernels_ns, &t->layers_ns, &t->outside_ns,
                              &t->profiler_ns, &t->busy_ns,    &t->idle_ns};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        json_t *v = json_array_get(list, i);
        if (!v && i >= 5) /* written without device times */
            break;
        if (!json_is_number(v) || !isfinite(json_number_value(v)))
            return wrong(path, "steps", "five or seven numbers a step");
        *values[i] = json_number_value(v);
    }
    return TS_OK;
}

static ts_status read_body(const source *s, ts_profile *p, json_t *steps, json_t *rows)
{
    int64_t threads = 0;
    source integrity = {s->path, json_object_get(s->object, "integrity")};
    TS_TRY(get_flag(s, "measured", &p->measured));
    TS_TRY(get_count(s, "threads", &threads));
    p->threads = threads < INT32_MAX ? (int)threads : INT32_MAX;
    TS_TRY(get_count(s, "first_step", &p->first_step));
    TS_TRY(get_number(s, "wall_ns", &p->wall_ns));
    TS_TRY(get_number(s, "profiler_ns", &p->profiler_ns));
    TS_TRY(get_number(&integrity, "missing_share", &p->own_share));
    TS_TRY(get_count(&integrity, "lost_steps", &p->lost_steps));
    TS_TRY(get_count(&integrity, "shared_calls", &p->shared_calls));
    TS_TRY(read_machine(s->path, json_object_get(s->object, "machine"), &p->machine, p->measured));
    TS_TRY(read_device(s->path, json_object_get(s->object, "device_times"), &p->device));
    for (size_t i = 0; i < json_array_size(steps); i++)
        TS_TRY(read_step(s->path, json_array_get(steps, i), &p->steps[i]));
    p->nsteps = (int64_t)json_array_size(steps);
    for (size_t i = 0; i < json_array_size(rows); i++)
        TS_TRY(read_entry(s->path, json_array_get(rows, i), &p->entries[i]));
    p->count = (int64_t)json_array_size(rows);
    return TS_OK;
}

static ts_profile *parse(const char *path, json_t *root)
{
    source s = {path, root};
    json_t *steps, *rows;
    int64_t schema = 0;
    if (get_count(&s, "schema_version", &schema) != TS_OK)
        return NULL;
    if (schema != TS_PROFILE_SCHEMA) {
        ts_fail_op(TS_ERR_FORMAT, op, NULL, NULL,
                   "'%.200s': expected schema_version %d, got %lld", path, TS_PROFILE_SCHEMA,
                   (long long)schema);
        return NULL;
    }
    if (get_list(&s, "steps", &steps) != TS_OK || get_list(&s, "rows", &rows) != TS_OK)
        return NULL;
    ts_profile *p = ts_profile_new((int64_t)json_array_size(rows), (int64_t)json_array_size(steps));
    if (p && read_body(&s, p, steps, rows) != TS_OK) {
        ts_profile_free(p);
        return NULL;
    }
    if (p) {
        ts_profile_sort(p);
        ts_profile_judge(p);
    }
    return p;
}

/** Reads a whole file; free *text with ts_sys_free(). */
static ts_status read_text(const char *path, char **text, size_t *bytes)
{
    enum { MOST = 64 << 20 };
    int fd;
    int64_t size;
    TS_TRY(ts_file_open(op, path, &fd, &size));
    ts_status status = TS_OK;
    *text = NULL;
    *bytes = 0;
    if (size > MOST)
        status = ts_fail_op(TS_ERR_FORMAT, op, NULL, NULL, "'%.200s': longer than %d bytes", path,
                            MOST);
    else if (!(*text = ts_sys_alloc((size_t)size + 1)))
        status = ts_error_memory("a profile's text", size);
    while (status == TS_OK && (int64_t)*bytes < size) {
        ssize_t n = ts_files.pread(fd, *text + *bytes, (size_t)size - *bytes, (off_t)*bytes);
        if (n < 0)
            status = ts_file_refused(op, "read", path);
        else if (n == 0)
            break;
        *bytes += n > 0 ? (size_t)n : 0;
    }
    ts_file_close(fd);
    if (status != TS_OK) {
        ts_sys_free(*text);
        *text = NULL;
    }
    return status;
}

ts_profile *ts_profile_read(const char *path)
{
    char *text;
    size_t bytes;
    TS_C_LOCALE;
    if (TS_CHECK_POINTERS(path) != TS_OK || read_text(path, &text, &bytes) != TS_OK)
        return NULL;
    ts_json_ready();
    json_t *root = ts_json_load(op, path, text, bytes, 0, 0, NULL);
    ts_profile *p = root ? parse(path, root) : NULL;
    ts_json_done(root);
    ts_sys_free(text);
    return p;
}
