/** @file json_read.c  Reads profile.json, with every field checked. */
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

static const char *const op = "profile_read";

static ts_status fail_field(const char *path, const char *field, const char *expected)
{
    return ts_fail_op(TS_ERR_FORMAT, op, NULL, NULL, "'%.200s': '%s': expected %s", path, field,
                      expected);
}

/** An object of the file, and the file's path for errors. */
typedef struct source {
    const char *path;
    json_t *object;
} source;

/* Each get_NAME() reads one field of an object. TS_ERR_FORMAT, with path and field, if the field is
 * missing or has another type. */

/** Kinds of numbers, each with the range that a field of this kind may have. */
typedef enum number_kind { TIME, SELF, BYTES, WORK, RATE, SHARE } number_kind;
static const struct {
    double least, most;
    const char *expected;
} ranges[] = {[TIME] = {0, 1e19, "a time from 0 to 1e19"},
              [SELF] = {-1e19, 1e19, "a time from -1e19 to 1e19"}, /* see check_self() */
              [BYTES] = {0, 1e19, "a number of bytes from 0 to 1e19"},
              [WORK] = {0, 1e30, "a number from 0 to 1e30"},
              [RATE] = {1, 1e21, "0 or a rate from 1 to 1e21"},
              [SHARE] = {-1, 1e9, "a share from -1 to 1e9"}};

static ts_status take_number(const char *path, const char *name, json_t *v, number_kind kind,
                             double *value)
{
    double x = json_is_number(v) ? json_number_value(v) : NAN;
    bool none = kind == RATE && x == 0;
    if (!none && !(x >= ranges[kind].least && x <= ranges[kind].most)) /* also if x is NaN */
        return fail_field(path, name, ranges[kind].expected);
    *value = x;
    return TS_OK;
}

static ts_status get_number(const source *s, const char *name, number_kind kind, double *value)
{
    return take_number(s->path, name, json_object_get(s->object, name), kind, value);
}

/** TS_ERR_FORMAT if the part is larger than the whole, apart from rounding. */
static ts_status check_part(const char *path, const char *name, double part, double whole)
{
    return part <= 1.01 * whole + 100 ? TS_OK : fail_field(path, name, "no more than its whole");
}

/** TS_ERR_FORMAT unless a self time can be a part of `wall`. It may be negative, because the cost
 *  of each stamp is subtracted from it; the subtracted costs add up to `profiler`. */
static ts_status check_self(const char *path, const char *name, double self, double wall,
                            double profiler)
{
    TS_TRY(check_part(path, name, -self, profiler));
    return check_part(path, name, self, wall + profiler);
}

static ts_status get_count(const source *s, const char *name, int64_t *value)
{
    const int64_t MOST = (int64_t)1 << 53;
    json_t *v = json_object_get(s->object, name);
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > MOST)
        return fail_field(s->path, name, "a whole number from 0 to 2^53");
    *value = json_integer_value(v);
    return TS_OK;
}

static ts_status get_flag(const source *s, const char *name, bool *value)
{
    json_t *v = json_object_get(s->object, name);
    if (!json_is_boolean(v))
        return fail_field(s->path, name, "true or false");
    *value = json_is_true(v);
    return TS_OK;
}

static ts_status get_text(const source *s, const char *name, char *text, size_t size)
{
    json_t *v = json_object_get(s->object, name);
    if (!json_is_string(v) || json_string_length(v) >= size ||
        strlen(json_string_value(v)) != json_string_length(v))
        return fail_field(s->path, name, "a string that fits its field");
    ts_escape_text(text, size, json_string_value(v)); /* it may be printed on a terminal */
    return TS_OK;
}

static ts_status get_list(const source *s, const char *name, json_t **list)
{
    *list = json_object_get(s->object, name);
    return json_is_array(*list) ? TS_OK : fail_field(s->path, name, "a list");
}

/** Reads "bandwidth": TS_PROF_CURVE pairs of bytes and bytes per second. */
static ts_status read_pairs(const source *s, ts_prof_machine *m)
{
    json_t *list;
    TS_TRY(get_list(s, "bandwidth", &list));
    for (size_t i = 0; i < TS_PROF_CURVE; i++) {
        json_t *pair = json_array_get(list, i);
        TS_TRY(take_number(s->path, "bandwidth", json_array_get(pair, 0), BYTES, &m->bytes_at[i]));
        TS_TRY(take_number(s->path, "bandwidth", json_array_get(pair, 1), RATE, &m->bandwidth[i]));
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
    TS_TRY(get_number(&s, "gemm_flops", RATE, &m->gemm_flops));
    TS_TRY(get_number(&s, "vector_flops", RATE, &m->vector_flops));
    TS_TRY(get_number(&s, "call_ns", TIME, &m->call_ns));
    TS_TRY(get_number(&s, "entry_ns", TIME, &m->entry_ns));
    TS_TRY(get_number(&s, "stamp_ns", TIME, &m->stamp_ns));
    TS_TRY(get_number(&s, "record_ns", TIME, &m->record_ns));
    TS_TRY(get_number(&s, "measured_at", TIME, &m->measured_at));
    if (json_object_get(object, "kernel_ns")) { /* missing in a file of an older version */
        TS_TRY(get_number(&s, "double_flops", RATE, &m->double_flops));
        TS_TRY(get_number(&s, "kernel_ns", TIME, &m->kernel_ns));
    }
    TS_TRY(read_pairs(&s, m));
    bool positive = m->gemm_flops > 0 && m->vector_flops > 0 && ts_machine_bandwidth(m, 0) > 0;
    return positive || !measured ? TS_OK : fail_field(path, "machine", "ceilings above 0");
}

/** Reads the object "device_times", which older profiles lack. */
static ts_status read_device(const char *path, json_t *object, ts_device_part *d)
{
    source s = {path, object};
    if (!object)
        return TS_OK;
    TS_TRY(get_text(&s, "source", d->source, sizeof d->source));
    TS_TRY(get_text(&s, "note", d->note, sizeof d->note));
    if (json_object_get(object, "incomplete")) /* missing in a file of an older version */
        TS_TRY(get_flag(&s, "incomplete", &d->incomplete));
    TS_TRY(get_count(&s, "kernels", &d->kernels));
    TS_TRY(get_count(&s, "copies", &d->copies));
    TS_TRY(get_count(&s, "lost", &d->lost));
    TS_TRY(get_count(&s, "untagged", &d->untagged));
    TS_TRY(get_number(&s, "busy_ns", TIME, &d->busy_ns));
    TS_TRY(get_number(&s, "idle_ns", TIME, &d->idle_ns));
    TS_TRY(get_number(&s, "untagged_ns", TIME, &d->untagged_ns));
    TS_TRY(get_flag(&s, "measured", &d->measured));
    TS_TRY(read_machine(path, json_object_get(object, "machine"), &d->machine, d->measured));
    TS_TRY(get_number(&s, "half_flops", RATE, &d->machine.half_flops));
    json_t *idle = json_object_get(object, "idle");
    if (!idle) /* a file of an older version, without causes of idle time */
        return TS_OK;
    source causes = {path, idle};
    for (int i = 0; i < TS_IDLE_COUNT; i++)
        TS_TRY(get_number(&causes, ts_idle_names[i], TIME, &d->idle[i]));
    TS_TRY(get_count(&s, "waits", &d->waits));
    TS_TRY(get_count(&s, "allocations", &d->allocations));
    TS_TRY(get_count(&s, "late_allocations", &d->late_allocations));
    if (json_object_get(object, "lost_scopes")) /* missing in a file of an older version */
        TS_TRY(get_count(&s, "lost_scopes", &d->lost_scopes));
    TS_TRY(get_count(&s, "kernel_launches", &d->kernel_launches));
    TS_TRY(get_number(&s, "delay_ns", TIME, &d->delay_ns));
    TS_TRY(get_number(&s, "wait_ns", TIME, &d->wait_ns));
    TS_TRY(get_text(&s, "wait_row", d->wait_row, sizeof d->wait_row));
    return get_text(&s, "kernel", d->kernel, sizeof d->kernel);
}

static ts_status read_exposed(const char *path, json_t *list, ts_profile *p)
{
    size_t n = json_array_size(list);
    p->exposed = ts_sys_calloc((n + 1) * sizeof *p->exposed);
    if (!p->exposed)
        return ts_error_memory("a profile", (int64_t)n);
    for (; p->nexposed < (int64_t)n; p->nexposed++) {
        ts_exposed *e = &p->exposed[p->nexposed];
        source s = {path, json_array_get(list, (size_t)p->nexposed)};
        TS_TRY(get_text(&s, "name", e->name, sizeof e->name));
        TS_TRY(get_flag(&s, "layer", &e->layer));
        TS_TRY(get_number(&s, "ns", TIME, &e->ns));
    }
    return TS_OK;
}

static ts_status read_bytes(const source *s, const char *name, double *bytes)
{
    json_t *list;
    TS_TRY(get_list(s, name, &list));
    for (size_t i = 0; i < TS_OWNERS; i++) {
        json_t *v = json_array_get(list, i);
        TS_TRY(take_number(s->path, name, v, BYTES, &bytes[i]));
    }
    return TS_OK;
}

static double sum_of(const double *bytes)
{
    double sum = 0;
    for (int i = 0; i < TS_OWNERS; i++)
        sum += bytes[i];
    return sum;
}

/** The peak is the sum over the owners. Memory that nothing touches yet may exceed the capacity. */
static ts_status check_peak(const char *path, const ts_memory_part *m)
{
    enum { TIMES = 1024 };
    if (fabs(sum_of(m->peak) - m->peak_bytes) > TS_OWNERS)
        return fail_field(path, "peak_bytes", "the sum of 'peak'");
    if (m->capacity > 0 && m->capacity < (m->peak_bytes + m->before) / TIMES)
        return fail_field(path, "capacity", "0 or the memory of a device, at least the peak");
    return TS_OK;
}

static ts_status read_memory(const char *path, json_t *object, ts_memory_part *m)
{
    source s = {path, object};
    json_t *points, *holders;
    if (!object) /* a file of an older version */
        return TS_OK;
    TS_TRY(get_text(&s, "device", m->device, sizeof m->device));
    TS_TRY(get_number(&s, "before", BYTES, &m->before));
    TS_TRY(get_number(&s, "capacity", BYTES, &m->capacity));
    TS_TRY(get_number(&s, "peak_ns", TIME, &m->peak_ns));
    TS_TRY(get_number(&s, "peak_bytes", BYTES, &m->peak_bytes));
    TS_TRY(get_count(&s, "lost", &m->lost));
    TS_TRY(read_bytes(&s, "peak", m->peak));
    TS_TRY(check_peak(path, m));
    TS_TRY(get_list(&s, "points", &points));
    TS_TRY(get_list(&s, "holders", &holders));
    if (json_array_size(points) > TS_MEMORY_POINTS || json_array_size(holders) > TS_MEMORY_HOLDERS)
        return fail_field(path, "memory", "no more points and holders than a profile can hold");
    for (size_t i = 0; i < json_array_size(points); i++) {
        source at = {path, json_array_get(points, i)};
        TS_TRY(get_number(&at, "ns", TIME, &m->points[i].ns));
        TS_TRY(read_bytes(&at, "bytes", m->points[i].bytes));
        TS_TRY(check_part(path, "points", sum_of(m->points[i].bytes), m->peak_bytes));
    }
    m->npoints = (int64_t)json_array_size(points);
    for (size_t i = 0; i < json_array_size(holders); i++) {
        ts_memory_holder *h = &m->holders[i];
        source at = {path, json_array_get(holders, i)};
        int64_t owner = 0;
        TS_TRY(get_text(&at, "op", h->op, sizeof h->op));
        TS_TRY(get_text(&at, "scope", h->scope, sizeof h->scope));
        TS_TRY(get_number(&at, "bytes", BYTES, &h->bytes));
        TS_TRY(check_part(path, "holders", h->bytes, m->peak_bytes));
        TS_TRY(get_count(&at, "blocks", &h->blocks));
        TS_TRY(get_count(&at, "owner", &owner));
        if (owner >= TS_OWNERS)
            return fail_field(path, "owner", "the number of an owner");
        h->owner = (int)owner;
    }
    m->nholders = (int64_t)json_array_size(holders);
    return TS_OK;
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
    e->chained = (double)e->calls; /* of a file of an older version, which does not say */
    if (json_object_get(object, "chained"))
        TS_TRY(get_number(&s, "chained", WORK, &e->chained));
    e->chained = e->chained < (double)e->calls ? e->chained : (double)e->calls;
    TS_TRY(get_number(&s, "self_ns", SELF, &e->self_ns));
    TS_TRY(get_number(&s, "flops", WORK, &e->flops));
    TS_TRY(get_number(&s, "bytes", BYTES, &e->bytes));
    if (!json_object_get(object, "device_ns")) /* a file of an older version */
        return TS_OK;
    TS_TRY(get_number(&s, "device_ns", TIME, &e->device_ns));
    TS_TRY(get_count(&s, "kernels", &e->kernels));
    if (!json_object_get(object, "part")) /* a file of an older version */
        return TS_OK;
    TS_TRY(get_text(&s, "part", e->part, sizeof e->part));
    TS_TRY(get_number(&s, "delay_ns", TIME, &e->delay_ns));
    TS_TRY(get_number(&s, "idle_ns", TIME, &e->idle_ns));
    TS_TRY(get_number(&s, "partial_ns", TIME, &e->partial_ns));
    TS_TRY(get_number(&s, "pageable_ns", TIME, &e->pageable_ns));
    return get_number(&s, "wait_ns", TIME, &e->wait_ns);
}

static ts_status read_step(const char *path, json_t *list, ts_step_times *t)
{
    double *const values[] = {&t->wall_ns,     &t->kernels_ns, &t->layers_ns, &t->outside_ns,
                              &t->profiler_ns, &t->busy_ns,    &t->idle_ns};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        json_t *v = json_array_get(list, i);
        if (!v && i >= 5) /* a file of an older version */
            break;
        bool self = i > 0 && i < 4;
        TS_TRY(take_number(path, "steps", v, self ? SELF : TIME, values[i]));
    }
    for (size_t i = 1; i < 4; i++)
        TS_TRY(check_self(path, "steps", *values[i], t->wall_ns, t->profiler_ns));
    return TS_OK;
}

/** The times of a profile are parts of its wall time, or of the time of its devices. */
static ts_status check_sums(const char *path, const ts_profile *p)
{
    enum { LANES = 4096 }; /* work at once on all devices */
    double sum = p->profiler_ns, steps = 0, all = LANES * ts_profile_time(p);
    double busy = LANES * p->device.busy_ns;
    bool device = ts_profile_is_of_device(p);
    for (int64_t i = 0; i < p->count; i++)
        sum += p->entries[i].self_ns;
    if (fabs(sum - (1 + p->own_share) * p->wall_ns) > 1e-6 * fabs(sum) + 1)
        return fail_field(path, "wall_ns", "the sum of 'self_ns' and 'profiler_ns', apart from "
                                      "'missing_share'");
    for (int64_t i = 0; i < p->count; i++) {
        const ts_entry *e = &p->entries[i];
        TS_TRY(check_self(path, "self_ns", e->self_ns, p->wall_ns, p->profiler_ns));
        if (device)
            TS_TRY(check_part(path, "device_ns", e->device_ns, busy));
        if (device)
            TS_TRY(check_part(path, "idle_ns", e->idle_ns, all));
    }
    for (int64_t i = 0; i < p->nsteps; i++)
        steps += p->steps[i].wall_ns;
    TS_TRY(check_part(path, "steps", steps, p->wall_ns));
    if (device)
        TS_TRY(check_part(path, "untagged_ns", p->device.untagged_ns, busy));
    for (int i = 0; i < TS_IDLE_COUNT && device; i++)
        TS_TRY(check_part(path, ts_idle_names[i], p->device.idle[i], all));
    for (int64_t i = 0; i < p->nexposed && device; i++)
        TS_TRY(check_part(path, "exposed", p->exposed[i].ns, all));
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
    TS_TRY(get_number(s, "wall_ns", TIME, &p->wall_ns));
    TS_TRY(get_number(s, "profiler_ns", TIME, &p->profiler_ns));
    if (json_object_get(s->object, "preempted_ns")) /* a file of an older version lacks it */
        TS_TRY(get_number(s, "preempted_ns", TIME, &p->preempted_ns));
    TS_TRY(get_number(&integrity, "missing_share", SHARE, &p->own_share));
    TS_TRY(get_count(&integrity, "lost_steps", &p->lost_steps));
    TS_TRY(get_count(&integrity, "shared_calls", &p->shared_calls));
    if (json_object_get(integrity.object, "lost_calls")) { /* a file of an older version lacks it */
        TS_TRY(get_count(&integrity, "lost_calls", &p->lost_events));
        TS_TRY(get_count(&integrity, "overwritten_calls", &p->overwritten));
    }
    TS_TRY(read_machine(s->path, json_object_get(s->object, "machine"), &p->machine, p->measured));
    TS_TRY(read_device(s->path, json_object_get(s->object, "device_times"), &p->device));
    TS_TRY(read_exposed(s->path, json_object_get(s->object, "exposed"), p));
    TS_TRY(read_memory(s->path, json_object_get(s->object, "memory"), &p->memory));
    if (json_object_get(s->object, "command"))
        TS_TRY(get_text(s, "command", p->command, sizeof p->command));
    for (size_t i = 0; i < json_array_size(steps); i++)
        TS_TRY(read_step(s->path, json_array_get(steps, i), &p->steps[i]));
    p->nsteps = (int64_t)json_array_size(steps);
    for (size_t i = 0; i < json_array_size(rows); i++)
        TS_TRY(read_entry(s->path, json_array_get(rows, i), &p->entries[i]));
    p->count = (int64_t)json_array_size(rows);
    return check_sums(s->path, p);
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

/** Reads a whole file of at most 64 MiB. The caller frees *text with ts_sys_free(). Errors:
 *  TS_ERR_IO, TS_ERR_FORMAT if it is longer, TS_ERR_MEMORY. */
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
