/**
 * @file verdict.c  The regime of each entry, and of a profile.
 *
 * The work of a call takes at least max(FLOPs / compute ceiling, bytes / bandwidth). An entry that
 * reaches 60 % of that rate is bound by the larger term; a slower entry is inefficient. Overhead is
 * the time of layers and of the engine, and for each call of a kernel the time of an empty call, or
 * its whole time if its work takes less; on a device, kernels that take no longer than kernels of
 * one element. An entry that is faster than a ceiling has a wrong cost or count.
 */
// SPDX-License-Identifier: MIT
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "include/tessera/check.h"
#include "profile/profile.h"

const char *const ts_regime_names[TS_REGIME_COUNT] = {
    "-",            "overhead",    "compute", "memory",  "cache",
    "slow compute", "slow memory", "outside", "unknown", "ERROR"};

static double larger(double a, double b) { return a > b ? a : b; }
static double smaller(double a, double b) { return a < b ? a : b; }

/** Returns the compute ceiling in FLOP/s for e's kind of work. */
static double compute_ceiling(const ts_prof_machine *m, const ts_entry *e)
{
    bool wide = strcmp(e->dtype, "f64") == 0;
    bool half = strcmp(e->dtype, "bf16") == 0 || strcmp(e->dtype, "f16") == 0;
    if (e->product && half && m->half_flops > 0)
        return m->half_flops;
    if (e->product && wide && m->double_flops > 0)
        return m->double_flops;
    double rate = e->product ? m->gemm_flops : m->vector_flops;
    return wide ? rate / 2 : rate;
}

/** Sets the regime of an entry from the time of its work, `ns`, the ceilings of machine m, and
 *  least_ns, the time of its calls or kernels if each had one element. */
static void judge_kernel(const ts_prof_machine *m, ts_entry *e, double ns, double least_ns)
{
    bool runs = strcmp(e->layer, "META") != 0;
    e->overhead_ns = smaller(ns, least_ns);
    if (e->unknown) {
        e->regime = TS_REGIME_UNKNOWN;
        return;
    }
    if (!runs || (e->flops == 0 && e->bytes == 0)) { /* views, composites */
        e->overhead_ns = ns;
        e->regime = TS_REGIME_OVERHEAD;
        return;
    }
    double compute = 1e9 * e->flops / compute_ceiling(m, e);
    double memory = 1e9 * e->bytes / ts_machine_bandwidth(m, 0);
    double each = e->calls ? e->bytes / (double)e->calls : e->bytes;
    double near = 1e9 * e->bytes / ts_machine_bandwidth(m, each); /* in the nearest cache */
    bool cached = memory > compute && memory > ns * 1.05;
    memory = cached ? near : memory;
    e->roof_ns = larger(compute, memory);
    if (larger(compute, near) < least_ns)
        e->overhead_ns = ns;
    double work_ns = ns - e->overhead_ns, reached = e->roof_ns / larger(work_ns, 1e-9);
    if (e->roof_ns > TS_ROOF_TOLERANCE * ns)
        e->regime = TS_REGIME_ERROR;
    else if (ns < 2 * e->overhead_ns)
        e->regime = TS_REGIME_OVERHEAD;
    else if (cached && memory >= compute)
        e->regime = TS_REGIME_CACHE;
    else if (reached >= TS_ROOF_REACHED)
        e->regime = compute > memory ? TS_REGIME_COMPUTE : TS_REGIME_MEMORY;
    else
        e->regime = compute > memory ? TS_REGIME_SLOW_COMPUTE : TS_REGIME_SLOW_MEMORY;
}

/** The parts of the wall time, in ns: compute, memory, overhead, outside, profiler, unknown. */
typedef struct parts {
    double of[6], errors;
} parts;
enum { COMPUTE, MEMORY, OVERHEAD, OUTSIDE, PROFILER, UNKNOWN };
#define DEVICE_LOSS 0.005 /* share of lost device work above which a verdict is unreliable */
static const char *const words[] = {"compute-bound", "memory-bound", "overhead-bound",
                                    "outside-bound"};

/** calls: number of calls in the profile; 0: it is empty. */
static const char *choose_word(const parts *s, double wall, double missing, int64_t calls)
{
    int first = 0, second = -1;
    if (!(wall > 0) || !calls)
        return "empty";
    wall -= s->of[PROFILER]; /* of the program */
    if (s->errors > 0.05 * wall || s->of[UNKNOWN] > 0.5 * wall || fabs(missing) > 0.01)
        return "unreliable";
    for (int i = 1; i <= OUTSIDE; i++)
        first = s->of[i] > s->of[first] ? i : first;
    for (int i = 0; i <= OUTSIDE; i++)
        if (i != first && (second < 0 || s->of[i] > s->of[second]))
            second = i;
    return s->of[first] - s->of[second] < 0.1 * wall ? "mixed" : words[first];
}

static void add_work(parts *s, ts_regime regime, double work)
{
    switch (regime) {
    case TS_REGIME_COMPUTE:
    case TS_REGIME_SLOW_COMPUTE: s->of[COMPUTE] += work; break;
    case TS_REGIME_MEMORY:
    case TS_REGIME_SLOW_MEMORY:
    case TS_REGIME_CACHE: s->of[MEMORY] += work; break;
    case TS_REGIME_OUTSIDE: s->of[OUTSIDE] += work; break;
    case TS_REGIME_OVERHEAD: s->of[OVERHEAD] += work; break;
    default: s->of[UNKNOWN] += work;
    }
}

/** Judges a profile of device time. Rows without device work keep the regime of their host time.
 *  The rows' device times are scaled to add up to the busy time, because work on several streams
 *  can overlap. Idle time is overhead. */
static void judge_device(ts_profile *p)
{
    parts s = {{[UNKNOWN] = p->device.untagged_ns}, 0};
    double sum = p->device.untagged_ns, all = ts_profile_time(p);
    int64_t errors = 0;
    for (int64_t i = 0; i < p->count; i++) {
        ts_entry *e = &p->entries[i];
        if (e->device_ns <= 0)
            continue;
        e->roof_ns = e->overhead_ns = 0;
        e->regime = TS_REGIME_UNKNOWN;
        if (e->kernel && p->device.measured && e->flops + e->bytes > 0)
            judge_kernel(&p->device.machine, e, e->device_ns, 0);
        if (e->device_ns < (double)e->kernels * p->device.machine.kernel_ns &&
            e->regime != TS_REGIME_ERROR && e->regime != TS_REGIME_UNKNOWN) {
            e->regime = TS_REGIME_OVERHEAD; /* not longer than kernels of one element */
            e->overhead_ns = e->device_ns;
        }
        add_work(&s, e->regime, e->device_ns);
        sum += e->device_ns;
        errors += e->regime == TS_REGIME_ERROR;
        s.errors += e->regime == TS_REGIME_ERROR ? e->device_ns : 0;
    }
    double scale = sum > 0 ? p->device.busy_ns / sum : 0;
    for (int i = 0; i <= UNKNOWN; i++)
        s.of[i] *= scale;
    s.of[OVERHEAD] += p->device.idle_ns;
    s.errors *= scale;
    int64_t works = p->device.kernels + p->device.copies + p->device.lost;
    double lost = works ? (double)p->device.lost / (double)works : 0;
    p->shares.compute = s.of[COMPUTE] / all;
    p->shares.memory = s.of[MEMORY] / all;
    p->shares.overhead = s.of[OVERHEAD] / all;
    p->shares.unknown = s.of[UNKNOWN] / all;
    p->shares.outside = s.of[OUTSIDE] / all;
    p->shares.profiler = 0;
    p->shares.errors = errors;
    p->shares.verdict = lost > DEVICE_LOSS ? "unreliable" : choose_word(&s, all, 0, works);
}

void ts_profile_judge(ts_profile *p)
{
    parts s = {{[PROFILER] = p->profiler_ns}, 0};
    double entered = 0; /* calls whose boxing of arguments was timed as outside of calls */
    int64_t errors = 0, calls = 0;
    for (int64_t i = 0; i < p->count; i++) {
        ts_entry *e = &p->entries[i];
        e->roof_ns = e->overhead_ns = 0;
        calls += e->calls;
        if (e->kernel && p->measured) {
            judge_kernel(&p->machine, e, e->self_ns, (double)e->calls * p->machine.call_ns);
        } else if (e->kernel) {
            e->regime = TS_REGIME_UNKNOWN;
        } else {
            e->regime = strcmp(e->op, "(unattributed)") == 0 ? TS_REGIME_OUTSIDE
                                                             : TS_REGIME_OVERHEAD;
            e->overhead_ns = e->regime == TS_REGIME_OUTSIDE ? 0 : e->self_ns;
        }
        double work = e->self_ns - e->overhead_ns;
        s.of[OVERHEAD] += e->overhead_ns;
        add_work(&s, e->regime, work);
        if (e->regime == TS_REGIME_ERROR) {
            s.errors += e->self_ns;
            errors++;
        }
        if (e->kernel && strcmp(ts_entry_phase(e), "backward") != 0)
            entered += (double)e->calls;
    }
    double boxing = smaller(s.of[OUTSIDE], p->measured ? entered * p->machine.entry_ns : 0);
    boxing = larger(boxing, 0);
    s.of[OUTSIDE] -= boxing;
    s.of[OVERHEAD] += boxing;
    double wall = p->wall_ns, scale = wall > 0 ? 1 / wall : 0;
    p->shares = (ts_profile_shares){
        .size = sizeof p->shares,
        .wall_ns = wall,
        .compute = s.of[COMPUTE] * scale,
        .memory = s.of[MEMORY] * scale,
        .overhead = s.of[OVERHEAD] * scale,
        .outside = s.of[OUTSIDE] * scale,
        .profiler = s.of[PROFILER] * scale,
        .unknown = s.of[UNKNOWN] * scale,
        .verdict = p->device.incomplete ? "unreliable" : choose_word(&s, wall, p->own_share, calls),
        .steps = p->nsteps,
        .errors = errors,
    };
    if (ts_profile_is_of_device(p))
        judge_device(p);
}

ts_status ts_profile_get_shares(const ts_profile *profile, ts_profile_shares *shares)
{
    ts_profile_shares s;
    TS_TRY(TS_CHECK_OBJECTS(profile));
    TS_TRY(TS_CHECK_POINTERS(shares));
    TS_TRY(TS_CHECK_OPTS(&s, shares));
    size_t size = shares->size;
    s = profile->shares;
    s.size = size;
    memcpy(shares, &s, size);
    return TS_OK;
}

/** True if `name` is one of the names in a scope's path. */
static bool is_within(const char *scope, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = scope; *at; at += strcspn(at, "/"), at += *at == '/')
        if (strcspn(at, "/") == length && strncmp(at, name, length) == 0)
            return true;
    return false;
}

const char *ts_entry_phase(const ts_entry *e)
{
    static const char *const named[] = {"backward", "data", "optimizer", "forward"};
    if (e->update)
        return "optimizer";
    for (int i = 0; i < (int)(sizeof named / sizeof named[0]); i++)
        if (is_within(e->scope, named[i]))
            return named[i];
    bool other = strcmp(e->op, "(unattributed)") == 0 || is_within(e->scope, "loader thread");
    return other ? "other" : "forward";
}

static int by_time(const void *a, const void *b)
{
    const ts_entry *x = a, *y = b;
    if (x->device_ns != y->device_ns)
        return (x->device_ns < y->device_ns) - (x->device_ns > y->device_ns);
    return (x->self_ns < y->self_ns) - (x->self_ns > y->self_ns);
}

void ts_profile_sort(ts_profile *p)
{
    if (p->count > 1)
        qsort(p->entries, (size_t)p->count, sizeof *p->entries, by_time);
}
