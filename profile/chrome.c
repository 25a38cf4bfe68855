/**
 * @file chrome.c  Writes a trace in the Trace Event JSON of Perfetto and chrome://tracing.
 *
 * A call is a complete event ("X") with its layers as arguments; a step encloses the calls of the
 * thread that marked it. Device work is in a separate process; operations that overlap in time are
 * in different lanes. Arrows ("s", "f") lead from a call to its device work, and from a forward
 * call to the first call of its backward rule. Counters ("C") show memory. Times are in
 * microseconds with three decimals, since the start of the first thread.
 */
// SPDX-License-Identifier: MIT
#include "core/alloc.h"
#include "core/error.h"
#include "profile/profile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double ns_of(const ts_profile *p, const ts_event *e, uint32_t ticks)
{
    return (double)((int64_t)ticks << e->shift) * p->tick_ns;
}

/* ---------------------------------------------------------------------------- fast text ---- */

/** Text that is written to a file in few pieces, because printf would take most of the time. */
typedef struct line {
    FILE *out;
    size_t size;
    char text[4096];
} line;

static void flush(line *l)
{
    fwrite(l->text, 1, l->size, l->out);
    l->size = 0;
}

static void add_char(line *l, char c)
{
    if (l->size == sizeof l->text)
        flush(l);
    l->text[l->size++] = c;
}

/** Adds a text that is shorter than the buffer. */
TS_INLINE void add(line *l, const char *text)
{
    size_t n = strlen(text);
    if (l->size + n > sizeof l->text)
        flush(l);
    memcpy(l->text + l->size, text, n);
    l->size += n;
}

/** Adds an integer with at least `digits` digits. */
static void add_int(line *l, int64_t value, int digits)
{
    char reversed[24];
    int n = 0;
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    for (; rest || n < digits; rest /= 10)
        reversed[n++] = (char)('0' + rest % 10);
    if (value < 0)
        add_char(l, '-');
    while (n)
        add_char(l, reversed[--n]);
}

/** Adds ns as microseconds with three decimals. */
static void add_us(line *l, double ns)
{
    int64_t n = llround(ns);
    if (n < 0)
        add_char(l, '-');
    n = n < 0 ? -n : n;
    add_int(l, n / 1000, 1);
    add_char(l, '.');
    add_int(l, n % 1000, 3);
}

/** Adds a JSON string. */
static void add_quoted(line *l, const char *text)
{
    const char *c = text;
    while ((unsigned char)*c >= ' ' && *c != '"' && *c != '\\')
        c++;
    if (*c || c - text >= (int)sizeof l->text) { /* with escapes */
        flush(l);
        ts_profile_print_text(l->out, text);
        return;
    }
    add_char(l, '"');
    add(l, text);
    add_char(l, '"');
}

static void add_track(line *l, int pid, int tid, double ns)
{
    add(l, "\"pid\": ");
    add_int(l, pid, 1);
    add(l, ", \"tid\": ");
    add_int(l, tid, 1);
    add(l, ", \"ts\": ");
    add_us(l, ns);
}

static void print_call(const ts_profile *p, const ts_call_event *c, FILE *out)
{
    char scope[TS_SCOPE_TEXT];
    const ts_event *e = &c->event;
    line l = {.out = out};
    ts_scope_path(scope, sizeof scope, e->scope);
    add(&l, ",\n{\"ph\": \"X\", ");
    add_track(&l, 1, c->thread, c->begin_ns);
    add(&l, ", \"dur\": ");
    add_us(&l, ns_of(p, e, e->leave[0]));
    add(&l, ", \"name\": ");
    add_quoted(&l, ts_op_name(e->op));
    add(&l, ", \"args\": {\"call\": ");
    add_quoted(&l, p->calls[e->row]);
    add(&l, ", \"scope\": ");
    add_quoted(&l, scope);
    add(&l, e->failed ? ", \"failed\": true, \"layers_ns\": {" : ", \"layers_ns\": {");
    for (int i = 0; i < e->layers; i++) {
        double from = i ? ns_of(p, e, e->enter[i - 1]) : 0, to = ns_of(p, e, e->leave[i]);
        double inner = 0;
        if (i + 1 < e->layers)
            inner = ns_of(p, e, e->leave[i + 1]) - ns_of(p, e, e->enter[i]);
        add(&l, i ? ", \"" : "\"");
        add(&l, ts_key_name(e->keys[i]));
        add(&l, "\": ");
        add_int(&l, llround(to - from - inner), 1);
    }
    add(&l, "}}}");
    flush(&l);
}

/* ------------------------------------------------------------------------------- arrows ---- */

/** Prints the start and the end of an arrow between two slices that begin at these times. */
static void print_arrow(FILE *out, const char *what, int64_t id, int tid, double from_ns,
                        int to_pid, int to_tid, double to_ns)
{
    line l = {.out = out};
    for (int end = 0; end < 2; end++) {
        add(&l, end ? ",\n{\"ph\": \"f\", \"bp\": \"e\"" : ",\n{\"ph\": \"s\"");
        add(&l, ", \"cat\": \"");
        add(&l, what);
        add(&l, "\", \"name\": \"");
        add(&l, what);
        add(&l, "\", \"id\": ");
        add_int(&l, id, 1);
        add(&l, ", ");
        add_track(&l, end ? to_pid : 1, end ? to_tid : tid, end ? to_ns : from_ns);
        add(&l, "}");
    }
    flush(&l);
}

/** A forward call with a node. */
typedef struct forward_call {
    uint32_t seq;
    int thread;
    int64_t event;
} forward_call;

static int by_seq(const void *a, const void *b)
{
    const forward_call *x = a, *y = b;
    if (x->seq != y->seq)
        return (x->seq > y->seq) - (x->seq < y->seq);
    return (x->thread > y->thread) - (x->thread < y->thread);
}

/** The forward call of a backward call: of the same thread, or the only one of its number. NULL:
 *  not in the trace, or unknown. */
static const forward_call *forward_of(const forward_call *all, int64_t n, const ts_call_event *c)
{
    int64_t low = 0, high = n;
    while (low < high) { /* the first of this number */
        int64_t mid = (low + high) / 2;
        if (all[mid].seq < c->event.seq)
            low = mid + 1;
        else
            high = mid;
    }
    const forward_call *only = low < n && all[low].seq == c->event.seq ? &all[low] : NULL;
    for (int64_t i = low; i < n && all[i].seq == c->event.seq; i++) {
        if (all[i].thread == c->thread)
            return &all[i];
        only = i > low ? NULL : only;
    }
    return only;
}

/** Prints an arrow from each forward call to the first call of its backward rule. */
static ts_status print_backward(const ts_profile *p, int64_t *id, FILE *out)
{
    forward_call *all = ts_sys_alloc((size_t)(p->nevents + 1) * sizeof *all);
    int64_t n = 0;
    if (!all)
        return ts_error_memory("a trace", p->nevents * (int64_t)sizeof *all);
    for (int64_t i = 0; i < p->nevents; i++)
        if (p->events[i].event.seq && !p->events[i].event.backward && !p->events[i].event.inside)
            all[n++] = (forward_call){p->events[i].event.seq, p->events[i].thread, i};
    if (n > 1)
        qsort(all, (size_t)n, sizeof *all, by_seq);
    const ts_call_event *last = NULL; /* the backward call before */
    for (int64_t i = 0; i < p->nevents; i++) {
        const ts_call_event *c = &p->events[i];
        if (!c->event.backward || c->event.inside) /* inside: no slice, see below */
            continue;
        bool first = !last || last->thread != c->thread || last->event.seq != c->event.seq;
        const forward_call *f = first ? forward_of(all, n, c) : NULL;
        last = c;
        if (f && p->events[f->event].begin_ns < c->begin_ns)
            print_arrow(out, "backward", ++*id, f->thread, p->events[f->event].begin_ns, 1,
                        c->thread, c->begin_ns);
    }
    ts_sys_free(all);
    return TS_OK;
}

/* -------------------------------------------------------------------------- device work ---- */

/** Prints the device work, each with an arrow from its call. Works that run at once are in
 *  different lanes, because slices of a lane must not overlap. */
static void print_works(const ts_profile *p, int64_t *id, FILE *out)
{
    enum { DEVICES = 16, LANES = 32 };
    double until[DEVICES][LANES] = {{0}};
    for (int64_t i = 0; i < p->nworks; i++) {
        const ts_work_event *w = &p->works[i];
        const char *text = w->call >= 0 ? p->calls[w->call] : "(unattributed)";
        double *lanes = until[w->device % DEVICES];
        char scope[TS_SCOPE_TEXT], op[sizeof p->calls[0]];
        int lane = 0;
        snprintf(op, sizeof op, "%.*s",
                 text[0] == '(' ? (int)strlen(text) : (int)strcspn(text, "("), text);
        while (lane + 1 < LANES && lanes[lane] > w->begin_ns)
            lane++;
        int tid = w->device % DEVICES * LANES + lane;
        if (lanes[lane] == 0)
            fprintf(out,
                    ",\n{\"ph\": \"M\", \"pid\": 2, \"tid\": %d, \"name\": \"thread_name\", "
                    "\"args\": {\"name\": \"device %d, lane %d\"}}",
                    tid, w->device, lane);
        lanes[lane] = w->begin_ns + w->ns;
        ts_scope_path(scope, sizeof scope, w->scope);
        line l = {.out = out};
        add(&l, ",\n{\"ph\": \"X\", ");
        add_track(&l, 2, tid, w->begin_ns);
        add(&l, ", \"dur\": ");
        add_us(&l, w->ns);
        add(&l, ", \"name\": ");
        add_quoted(&l, op);
        add(&l, ", \"args\": {\"call\": ");
        add_quoted(&l, text);
        add(&l, ", \"scope\": ");
        add_quoted(&l, scope);
        add(&l, ", \"kernel\": ");
        add_quoted(&l, w->kernel ? w->kernel : "");
        if (w->delay_ns >= 0) {
            add(&l, ", \"delay_us\": ");
            add_us(&l, w->delay_ns);
        }
        add(&l, "}}");
        flush(&l);
        if (w->event >= 0 && !p->events[w->event].event.inside &&
            p->events[w->event].begin_ns < w->begin_ns)
            print_arrow(out, "launch", ++*id, p->events[w->event].thread,
                        p->events[w->event].begin_ns, 2, tid, w->begin_ns);
    }
}

static void print_memory(const ts_profile *p, FILE *out)
{
    const ts_memory_part *m = &p->memory;
    for (int64_t i = 0; i < m->npoints; i++) {
        double ns = m->points[i].ns + m->shift_ns;
        bool last = i + 1 == m->npoints;
        if (ns < 0 && !last && m->points[i + 1].ns + m->shift_ns <= 0)
            continue; /* before the first recorded step; the latest such point is at its begin */
        line l = {.out = out};
        add(&l, ",\n{\"ph\": \"C\", \"name\": \"bytes of tensors\", ");
        add_track(&l, 1, 0, ns > 0 ? ns : 0);
        for (int k = 0; k < TS_OWNERS; k++) {
            add(&l, k ? ", \"" : ", \"args\": {\"");
            add(&l, ts_owner_names[k]);
            add(&l, "\": ");
            add_int(&l, (int64_t)m->points[i].bytes[k], 1);
        }
        add(&l, "}}");
        flush(&l);
    }
}

/** Names the threads of the calls. */
static void print_threads(const ts_profile *p, FILE *out)
{
    for (int64_t i = 0; i < p->nevents; i++) {
        int thread = p->events[i].thread;
        if (i && p->events[i - 1].thread == thread) /* a thread's events follow one another */
            continue;
        fprintf(out,
                ",\n{\"ph\": \"M\", \"pid\": 1, \"tid\": %d, \"name\": \"thread_name\", "
                "\"args\": {\"name\": \"thread %d%s\"}}",
                thread, thread, thread == p->steps_thread ? ", with the steps" : "");
    }
}

ts_status ts_profile_write_chrome(const ts_profile *p, FILE *out)
{
    int64_t arrows = 0;
    if (!p->traced)
        return ts_error_set(TS_ERR_STATE, "profile_write: this profile has no trace");
    fprintf(out,
            "{\"displayTimeUnit\": \"ns\", \"otherData\": {\"lost_calls\": %lld, "
            "\"profiler_share\": %.6f}, \"traceEvents\": [\n"
            "{\"ph\": \"M\", \"pid\": 1, \"name\": \"process_name\", \"args\": {\"name\": "
            "\"tessera\"}}",
            (long long)p->lost_events, p->shares.profiler);
    if (p->nworks) {
        fputs(",\n{\"ph\": \"M\", \"pid\": 2, \"name\": \"process_name\", \"args\": {\"name\": ",
              out);
        ts_profile_print_text(out, p->device.machine.name);
        fputs("}}", out);
    }
    print_threads(p, out);
    double at = p->steps_begin_ns;
    for (int64_t i = 0; i < p->nsteps; i++) {
        fprintf(out,
                ",\n{\"ph\": \"X\", \"pid\": 1, \"name\": \"step %lld\", \"tid\": %d, "
                "\"ts\": %.3f, \"dur\": %.3f}",
                (long long)(p->first_step + i), p->steps_thread, at / 1e3,
                p->steps[i].wall_ns / 1e3);
        at += p->steps[i].wall_ns;
    }
    for (int64_t i = 0; i < p->nevents; i++) {
        if (p->events[i].event.inside) /* calls still running when recording ended */
            continue;
        print_call(p, &p->events[i], out);
    }
    print_works(p, &arrows, out);
    print_memory(p, out);
    TS_TRY(print_backward(p, &arrows, out));
    fputs("\n]}\n", out);
    return TS_OK;
}
