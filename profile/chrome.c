/**
 * @file chrome.c  Writes a trace in the Trace Event JSON of Perfetto and chrome://tracing.
 *
 * A call is a complete event ("X") with its layers as arguments; a step encloses the calls of the
 * thread that marked it. Times are in microseconds with three decimals, since the start of the
 * first thread.
 */
// SPDX-License-Identifier: MIT
#include "core/error.h"
#include "profile/profile.h"

#include <math.h>
#include <stdlib.h>

static double ns_of(const ts_profile *p, const ts_event *e, uint32_t ticks)
{
    return (double)((int64_t)ticks << e->shift) * p->tick_ns;
}

/** Prints ns as microseconds with three decimals. Integers are printed faster than a double. */
static void print_us(FILE *out, double ns)
{
    long long n = llround(ns);
    fprintf(out, "%s%lld.%03lld", n < 0 ? "-" : "", llabs(n) / 1000, llabs(n) % 1000);
}

static void print_call(const ts_profile *p, const ts_call_event *c, FILE *out)
{
    char scope[TS_SCOPE_TEXT];
    const ts_event *e = &c->event;
    ts_scope_path(scope, sizeof scope, e->scope);
    fputs("{\"ph\": \"X\", \"pid\": 1, \"name\": ", out);
    ts_profile_print_text(out, ts_op_name(e->op));
    fprintf(out, ", \"tid\": %d, \"ts\": ", c->thread);
    print_us(out, c->begin_ns);
    fputs(", \"dur\": ", out);
    print_us(out, ns_of(p, e, e->leave[0]));
    fputs(", \"args\": {\"call\": ", out);
    ts_profile_print_text(out, p->calls[e->row]);
    fputs(", \"scope\": ", out);
    ts_profile_print_text(out, scope);
    if (e->failed)
        fputs(", \"failed\": true", out);
    fputs(", \"layers_ns\": {", out);
    for (int i = 0; i < e->layers; i++) {
        double from = i ? ns_of(p, e, e->enter[i - 1]) : 0, to = ns_of(p, e, e->leave[i]);
        double inner = 0;
        if (i + 1 < e->layers)
            inner = ns_of(p, e, e->leave[i + 1]) - ns_of(p, e, e->enter[i]);
        fprintf(out, "%s\"%s\": %lld", i ? ", " : "", ts_key_name(e->keys[i]),
                llround(to - from - inner));
    }
    fputs("}}}", out);
}

ts_status ts_profile_write_chrome(const ts_profile *p, FILE *out)
{
    if (!p->traced)
        return ts_error_set(TS_ERR_STATE, "profile_write: this profile has no trace");
    fprintf(out,
            "{\"displayTimeUnit\": \"ns\", \"otherData\": {\"lost_calls\": %lld, "
            "\"profiler_share\": %.6f}, \"traceEvents\": [\n"
            "{\"ph\": \"M\", \"pid\": 1, \"name\": \"process_name\", \"args\": {\"name\": "
            "\"tessera\"}}",
            (long long)p->lost_events, p->shares.profiler);
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
        fputs(",\n", out);
        print_call(p, &p->events[i], out);
    }
    fputs("\n]}\n", out);
    return TS_OK;
}
