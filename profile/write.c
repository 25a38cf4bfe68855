/** @file write.c  Writes a profile as text: verdict, tables, CSV, folded stacks. */
// SPDX-License-Identifier: MIT
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "include/tessera/check.h"
#include "include/tessera/program.h"
#include "profile/profile.h"

/* ------------------------------------------------------------------------------ groups ---- */

/** Sums over entries that share a name. in: time per regime. */
typedef struct group {
    const char *name;
    double calls, self_ns, flops, bytes, roof_ns, overhead_ns, device_ns, in[TS_REGIME_COUNT];
} group;

static int by_time(const void *a, const void *b)
{
    const group *x = a, *y = b;
    if (x->device_ns != y->device_ns)
        return (x->device_ns < y->device_ns) - (x->device_ns > y->device_ns);
    return (x->self_ns < y->self_ns) - (x->self_ns > y->self_ns);
}

/** Groups entries by the text of `name`, largest first; skips entries without one. Free with
 *  ts_sys_free(); NULL if out of memory. */
static group *make_groups(const ts_profile *p, const char *(*name)(const ts_entry *e), int *count)
{
    group *all = ts_sys_calloc((size_t)(p->count + 1) * sizeof *all);
    *count = 0;
    for (int64_t i = 0; all && i < p->count; i++) {
        const ts_entry *e = &p->entries[i];
        const char *text = name(e);
        int k = 0;
        if (!text)
            continue;
        while (k < *count && strcmp(all[k].name, text) != 0)
            k++;
        group *g = &all[k];
        *count += k == *count;
        g->name = text;
        g->calls += (double)e->calls;
        g->self_ns += e->self_ns;
        g->flops += e->flops;
        g->bytes += e->bytes;
        g->roof_ns += e->roof_ns;
        g->overhead_ns += e->overhead_ns;
        g->device_ns += e->device_ns;
        g->in[e->regime] += ts_entry_time(p, e);
    }
    if (*count > 1)
        qsort(all, (size_t)*count, sizeof *all, by_time);
    if (!all)
        ts_error_memory("a profile's table", p->count * (int64_t)sizeof *all);
    return all;
}

static const char *kernel_name(const ts_entry *e) { return e->kernel ? e->op : NULL; }
static const char *layer_name(const ts_entry *e) { return e->layer[0] == '-' ? e->op : e->layer; }
static const char *part_name(const ts_entry *e) { return e->part[0] ? e->part : NULL; }
static const char *scope_name(const ts_entry *e) { return e->scope[0] ? e->scope : "(program)"; }
static const char *call_name(const ts_entry *e) { return e->kernel ? e->call : NULL; }

/** The regime in which a group spends most of its time. */
static ts_regime regime_of(const group *g)
{
    int most = 0;
    for (int i = 1; i < TS_REGIME_COUNT; i++)
        most = g->in[i] > g->in[most] ? i : most;
    return (ts_regime)most;
}

/* ------------------------------------------------------------------------------- tables ---- */

static double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

/** Prints amount per ns as "12.34", or "-" if there is none. */
static void print_rate(FILE *out, double amount, double ns)
{
    if (amount > 0 && ns > 0)
        fprintf(out, " %8.2f", amount / ns); /* 1 FLOP/ns is 1 GFLOP/s */
    else
        fprintf(out, " %8s", "-");
}

/** Prints calls, self time, in a profile of device time also device time, and the share. */
static void print_times(FILE *out, const ts_profile *p, const group *g, int width)
{
    bool device = ts_profile_is_of_device(p);
    fprintf(out, "%-*.*s %9.0f %10.2f", width, width, g->name, g->calls, g->self_ns / 1e6);
    if (device)
        fprintf(out, " %9.2f", g->device_ns / 1e6);
    fprintf(out, " %5.1f%%", percent(device ? g->device_ns : g->self_ns, ts_profile_time(p)));
}

static void print_group(FILE *out, const ts_profile *p, const group *g, int width)
{
    double ns = ts_profile_is_of_device(p) ? g->device_ns : g->self_ns;
    double work = ns - g->overhead_ns, reached = percent(g->roof_ns, work);
    print_times(out, p, g, width);
    print_rate(out, g->flops, ns);
    print_rate(out, g->bytes, ns);
    if (g->roof_ns > 0 && work > 0 && regime_of(g) != TS_REGIME_OVERHEAD)
        fprintf(out, " %5.0f%%", reached < 100 ? reached : 100);
    else
        fprintf(out, " %6s", "-");
    fprintf(out, " %s\n", ts_regime_names[regime_of(g)]);
}

static ts_status print_groups(const ts_profile *p, FILE *out, const char *title,
                              const char *(*name)(const ts_entry *e), int most, int width)
{
    int count;
    group *all = make_groups(p, name, &count), rest = {0};
    if (!all)
        return ts_error_code();
    bool device = ts_profile_is_of_device(p);
    if (!count) {
        ts_sys_free(all);
        return TS_OK;
    }
    fprintf(out, "\n%-*s %9s %10s%s %6s %8s %8s %6s %s\n", width, title, "calls", "self ms",
            device ? " device ms" : "", device ? "device" : "wall", "GFLOP/s", "GB/s", "roof",
            "regime");
    for (int i = 0; i < count; i++) {
        if (i < most) {
            print_group(out, p, &all[i], width);
            continue;
        }
        rest.calls += all[i].calls;
        rest.self_ns += all[i].self_ns;
        rest.device_ns += all[i].device_ns;
    }
    if (count > most) {
        rest.name = "(others)";
        print_times(out, p, &rest, width);
        fputc('\n', out);
    }
    ts_sys_free(all);
    return TS_OK;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/** Prints median, 95th percentile and maximum of the step times, and the time of the first step. */
static ts_status print_steps(const ts_profile *p, FILE *out)
{
    if (!p->nsteps)
        return TS_OK;
    double *walls = ts_sys_alloc((size_t)p->nsteps * sizeof *walls);
    if (!walls)
        return ts_error_memory("a profile's table", p->nsteps * (int64_t)sizeof *walls);
    for (int64_t i = 0; i < p->nsteps; i++)
        walls[i] = p->steps[i].wall_ns / 1e6;
    double first = walls[0];
    qsort(walls, (size_t)p->nsteps, sizeof *walls, by_value);
    fprintf(out,
            "steps %lld to %lld: median %.3f ms, 95 %% %.3f ms, longest %.3f ms, first %.3f ms\n",
            (long long)p->first_step, (long long)(p->first_step + p->nsteps - 1),
            ts_median_of(walls, p->nsteps), walls[p->nsteps * 95 / 100], walls[p->nsteps - 1],
            first);
    ts_sys_free(walls);
    return TS_OK;
}

/** Prints the device's busy and idle time and how complete they are, or why there are none. */
static void print_device(const ts_profile *p, FILE *out)
{
    const ts_device_part *d = &p->device;
    double busiest = 0;
    if (d->note[0])
        fprintf(out, "%s\n", d->note);
    if (!ts_profile_is_of_device(p))
        return;
    for (int64_t i = 0; i < p->nsteps; i++)
        busiest = p->steps[i].busy_ns > busiest ? p->steps[i].busy_ns : busiest;
    fprintf(out,
            "device times of %s: %lld kernels, %lld copies; busy %.3f ms, idle %.3f ms (%.1f%%)",
            d->source, (long long)d->kernels, (long long)d->copies, d->busy_ns / 1e6,
            d->idle_ns / 1e6, percent(d->idle_ns, d->busy_ns + d->idle_ns));
    if (busiest > 0)
        fprintf(out, "; busiest step %.3f ms", busiest / 1e6);
    fputc('\n', out);
    if (d->untagged)
        fprintf(out, "%lld kernels and copies without a row take %.3f ms\n",
                (long long)d->untagged, d->untagged_ns / 1e6);
    if (d->lost)
        fprintf(out, "INCOMPLETE: %lld kernels and copies lost or with an invalid time\n",
                (long long)d->lost);
    if (d->lost_scopes)
        fprintf(out,
                "INCOMPLETE: %lld changes of scope are lost; later idle time has no scope\n",
                (long long)d->lost_scopes);
}

/** Percent of the profile's time in rows with ERROR; *worst: the row with most time, or NULL. */
static double error_share(const ts_profile *p, const ts_entry **worst)
{
    double sum = 0;
    *worst = NULL;
    for (int64_t i = 0; i < p->count; i++) {
        const ts_entry *e = &p->entries[i];
        if (e->regime != TS_REGIME_ERROR)
            continue;
        sum += ts_entry_time(p, e);
        *worst = !*worst || ts_entry_time(p, e) > ts_entry_time(p, *worst) ? e : *worst;
    }
    return percent(sum, ts_profile_time(p));
}

/** Prints the causes that can make a verdict unreliable (docs/profile.md). */
static void print_warnings(const ts_profile *p, FILE *out)
{
    const ts_device_part *d = &p->device;
    const ts_entry *worst;
    double works = (double)(d->kernels + d->copies + d->lost), errors = error_share(p, &worst);
    if (strcmp(p->shares.verdict, "unreliable") != 0)
        return;
    fprintf(out,
            "unreliable: ERROR rows take %.1f%%, ERROR and unknown work %.1f%%; the rows differ "
            "from the wall time by %.1f%%; %.1f%% of GPU work is lost%s\n",
            errors, 100 * p->shares.unknown, 100 * fabs(p->own_share),
            percent((double)d->lost, works), d->incomplete ? "; GPU times are missing" : "");
}

/** Prints how complete the profile is: known work, sum of rows, cost of the profiler, lost data. */
static void print_coverage(const ts_profile *p, FILE *out)
{
    double kernels = 0, known = 0, calls = 0;
    for (int64_t i = 0; i < p->count; i++) {
        const ts_entry *e = &p->entries[i];
        if (e->kernel) {
            kernels += e->self_ns;
            known += e->unknown ? 0 : e->self_ns;
            calls += (double)e->calls;
        }
    }
    fprintf(out,
            "work known for %.1f%% of kernel time; rows sum to the wall time %+.4f%%; the profiler "
            "took %.1f%% (%.0f calls)\n",
            percent(known, kernels), 100 * p->own_share, 100 * p->shares.profiler, calls);
    if (p->preempted_ns > TS_PREEMPTED_NOTED * p->wall_ns)
        fprintf(out,
                "the processors ran other threads for %.0f%% of the wall time; rows include it\n",
                percent(p->preempted_ns, p->wall_ns));
    if (p->overwritten)
        fprintf(out, "the trace has the latest calls; %lld older ones were overwritten\n",
                (long long)p->overwritten);
    if (p->lost_events)
        fprintf(out, "INCOMPLETE: %lld calls are missing from the trace, which is full\n",
                (long long)p->lost_events);
    if (p->lost_steps || p->shared_calls)
        fprintf(out, "INCOMPLETE: %lld steps are lost; %lld calls are in rows without shapes\n",
                (long long)p->lost_steps, (long long)p->shared_calls);
    print_warnings(p, out);
    for (int64_t i = 0; i < p->count; i++)
        if (p->entries[i].regime == TS_REGIME_ERROR)
            fprintf(out,
                    "ERROR: %s: %.0f%% of a measured ceiling: the op's cost or the ceiling is "
                    "wrong; measure again with ts-prof calibrate --anew\n",
                    p->entries[i].call,
                    percent(p->entries[i].roof_ns, ts_entry_time(p, &p->entries[i])));
}

void ts_profile_write_verdict(const ts_profile *p, FILE *out)
{
    const ts_profile_shares *s = &p->shares;
    const ts_prof_machine *m = &p->machine;
    fprintf(out,
            "%s: %.0f%% compute, %.0f%% memory, %.0f%% overhead, %.0f%% outside of calls",
            s->verdict, 100 * s->compute, 100 * s->memory, 100 * s->overhead, 100 * s->outside);
    const ts_entry *worst;
    double errors = error_share(p, &worst);
    if (s->unknown > 0.005)
        fprintf(out, ", %.0f%% unknown", 100 * s->unknown);
    if (s->unknown > 0.005 && worst)
        fprintf(out, " (%.0f%% above a ceiling, most in %s)", errors, worst->op);
    if (ts_profile_is_of_device(p))
        fprintf(out, " of %.3f s on %s; wall time %.3f s", ts_profile_time(p) / 1e9,
                p->device.machine.name, s->wall_ns / 1e9);
    else
        fprintf(out, " of %.*f s", s->wall_ns < 1e8 ? 6 : 3, s->wall_ns / 1e9);
    fprintf(out, " in %d thread%s\n", p->threads, p->threads == 1 ? "" : "s");
    const ts_prof_machine *d = &p->device.machine;
    if (p->device.measured)
        fprintf(out,
                "ceilings of %s: %.0f GFLOP/s in f32 products, %.0f in 16 bits, %.0f elementwise, "
                "%.0f GB/s (cache to %.0f)\n",
                d->name, d->gemm_flops / 1e9, d->half_flops / 1e9, d->vector_flops / 1e9,
                ts_machine_bandwidth(d, 0) / 1e9, ts_machine_bandwidth(d, 1) / 1e9);
    if (p->measured)
        fprintf(out,
                "ceilings of %s, %d thread%s: %.1f GFLOP/s in products, %.1f elementwise, "
                "%.1f GB/s (caches to %.1f); an empty call %.0f ns\n",
                m->name, m->threads, m->threads == 1 ? "" : "s", m->gemm_flops / 1e9,
                m->vector_flops / 1e9, ts_machine_bandwidth(m, 0) / 1e9,
                ts_machine_bandwidth(m, 1) / 1e9, m->call_ns + m->entry_ns);
    else
        fputs("this machine was not measured: no regimes\n", out);
}

static ts_status write_tables(const ts_profile *p, FILE *out)
{
    enum { WIDTH = 34, OPS = 20, CALLS = 12, SCOPES = 12 };
    fputs("\nprofile: ", out);
    ts_profile_write_verdict(p, out);
    TS_TRY(print_steps(p, out));
    print_device(p, out);
    print_coverage(p, out);
    TS_TRY(print_groups(p, out, "phase", ts_entry_phase, SCOPES, WIDTH));
    TS_TRY(print_groups(p, out, "op", kernel_name, OPS, WIDTH));
    TS_TRY(print_groups(p, out, "layer", layer_name, SCOPES, WIDTH));
    bool scoped = false;
    for (int64_t i = 0; i < p->count; i++)
        scoped = scoped || p->entries[i].scope[0];
    if (scoped)
        TS_TRY(print_groups(p, out, "scope", scope_name, SCOPES, WIDTH));
    TS_TRY(print_groups(p, out, "call", call_name, CALLS, 46));
    TS_TRY(print_groups(p, out, "part of a call", part_name, OPS, WIDTH));
    ts_profile_write_device(p, out);
    fputs("\nadvice\n", out);
    if (!ts_profile_write_advice(p, out, false))
        fputs("  no advice\n", out);
    return TS_OK;
}

/* ------------------------------------------------------------------------- other formats ---- */

/** Prints a CSV field with quotes (RFC 4180). */
static void print_quoted(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text; text++)
        fprintf(out, *text == '"' ? "\"\"" : "%c", *text);
    fputc('"', out);
}

static void write_csv(const ts_profile *p, FILE *out)
{
    fputs("op,layer,phase,scope,call,dtype,calls,self_ns,flops,bytes,unknown_calls,roof_ns,"
          "overhead_ns,regime,device_ns,kernels,part,delay_ns,idle_ns\n",
          out);
    for (int64_t i = 0; i < p->count; i++) {
        const ts_entry *e = &p->entries[i];
        fprintf(out, "%s,%s,%s,", e->op, e->layer, ts_entry_phase(e));
        print_quoted(out, e->scope);
        fputc(',', out);
        print_quoted(out, e->call);
        fprintf(out, ",%s,%lld,%.0f,%.17g,%.17g,%lld,%.0f,%.0f,%s,%.0f,%lld,%s,%.0f,%.0f\n",
                e->dtype,
                (long long)e->calls, e->self_ns, e->flops, e->bytes, (long long)e->unknown,
                e->roof_ns, e->overhead_ns, ts_regime_names[e->regime], e->device_ns,
                (long long)e->kernels, e->part, e->delay_ns, e->idle_ns);
    }
}

/** Prints a line "program;scope;op;layer;part ns" per entry, with a field per scope of a path. A
 *  scope, layer or part that the entry lacks is omitted. */
static void write_folded(const ts_profile *p, FILE *out)
{
    for (int64_t i = 0; i < p->count; i++) {
        const ts_entry *e = &p->entries[i];
        if (e->self_ns < 0.5)
            continue;
        fputs("program", out);
        for (const char *at = e->scope; *at; at += strcspn(at, "/"), at += *at == '/')
            fprintf(out, ";%.*s", (int)strcspn(at, "/"), at);
        fprintf(out, ";%s", e->op);
        if (e->layer[0] != '-')
            fprintf(out, ";%s", e->layer);
        if (e->part[0])
            fprintf(out, ";%s", e->part);
        fprintf(out, " %.0f\n", e->self_ns);
    }
    if (p->profiler_ns >= 0.5)
        fprintf(out, "program;(profiler) %.0f\n", p->profiler_ns);
}

ts_status ts_profile_flush(FILE *out, const char *op)
{
    bool good = fflush(out) == 0 && !ferror(out);
    return good ? TS_OK : ts_error_set(TS_ERR_IO, "%s: writing failed", op);
}

ts_status ts_profile_write(const ts_profile *profile, FILE *out, ts_profile_format format)
{
    TS_TRY(TS_CHECK_OBJECTS(profile));
    TS_TRY(TS_CHECK_POINTERS(out));
    TS_C_LOCALE;
    ts_status status = TS_OK;
    switch (format) {
    case TS_PROFILE_TABLES: status = write_tables(profile, out); break;
    case TS_PROFILE_JSON: status = ts_profile_write_json(profile, out); break;
    case TS_PROFILE_CHROME: status = ts_profile_write_chrome(profile, out); break;
    case TS_PROFILE_CSV: write_csv(profile, out); break;
    case TS_PROFILE_FOLDED: write_folded(profile, out); break;
    default:
        return ts_error_set(TS_ERR_VALUE,
                            "profile_write: argument 'format': expected a ts_profile_format, got "
                            "%d",
                            (int)format);
    }
    TS_TRY(status);
    return ts_profile_flush(out, "profile_write");
}
