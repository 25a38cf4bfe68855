/**
 * @file advice.c  Advice: rules with a trigger, evidence and an upper bound of the gain.
 *
 * The gain is the largest share of the wall time that the change can save.
 */
// SPDX-License-Identifier: MIT
#include <stdio.h>
#include <string.h>

#include "profile/profile.h"

typedef struct advice {
    bool fires;
    double gain;        /* share of the wall time, at most */
    char evidence[160];
} advice;

static double share(const ts_profile *p, double ns)
{
    double all = ts_profile_time(p);
    return all > 0 ? ns / all : 0;
}

static bool has_op(const ts_entry *e, const char *const *ops)
{
    for (; *ops; ops++)
        if (strcmp(e->op, *ops) == 0)
            return true;
    return false;
}

static bool moves_memory(const ts_entry *e)
{
    return e->regime == TS_REGIME_MEMORY || e->regime == TS_REGIME_SLOW_MEMORY ||
           e->regime == TS_REGIME_CACHE;
}

/** Memory-bound pointwise calls: a fused group loads and stores each tensor once. An op with two
 *  operands moves three tensors; fusion can save the store of the result and its later load. */
static advice fuse(const ts_profile *p)
{
    advice a = {0};
    double ns = 0, calls = 0;
    for (int64_t i = 0; i < p->count; i++) {
        const ts_entry *e = &p->entries[i];
        if (e->kernel && !e->product && !e->update && moves_memory(e)) {
            ns += ts_entry_time(p, e);
            calls += (double)e->calls;
        }
    }
    a.gain = share(p, ns) * 2 / 3;
    a.fires = a.gain > 0.05 && calls >= 2;
    snprintf(a.evidence, sizeof a.evidence,
             "%.0f memory-bound calls that are no products take %.0f%% of the time", calls,
             100 * share(p, ns));
    return a;
}

/** f64 work: f32 has half the bytes and twice the lanes. */
static advice narrow(const ts_profile *p)
{
    advice a = {0};
    double ns = 0;
    for (int64_t i = 0; i < p->count; i++)
        if (p->entries[i].kernel && strcmp(p->entries[i].dtype, "f64") == 0)
            ns += ts_entry_time(p, &p->entries[i]) - p->entries[i].overhead_ns;
    a.gain = share(p, ns) / 2;
    a.fires = a.gain > 0.05;
    snprintf(a.evidence, sizeof a.evidence, "kernels in f64 take %.0f%% of the time",
             100 * share(p, ns));
    return a;
}

static double in_phase(const ts_profile *p, const char *phase)
{
    double ns = 0;
    for (int64_t i = 0; i < p->count; i++)
        if (strcmp(ts_entry_phase(&p->entries[i]), phase) == 0)
            ns += p->entries[i].self_ns;
    return ns;
}

static advice prefetch(const ts_profile *p)
{
    advice a = {.gain = share(p, in_phase(p, "data"))};
    a.fires = a.gain > 0.05;
    snprintf(a.evidence, sizeof a.evidence, "the scope 'data' takes %.0f%% of the time",
             100 * a.gain);
    return a;
}

/** Many small updates: one call per list of parameters does the same work with fewer calls. */
static advice update_lists(const ts_profile *p)
{
    static const char *const rules[] = {"adamw", "sgd", NULL};
    advice a = {0};
    double calls = 0, overhead = 0;
    for (int64_t i = 0; i < p->count; i++)
        if (p->entries[i].kernel && has_op(&p->entries[i], rules)) {
            calls += (double)p->entries[i].calls;
            overhead += p->entries[i].overhead_ns;
        }
    double each = p->nsteps ? calls / (double)p->nsteps : 0;
    a.gain = share(p, overhead);
    a.fires = each > 4 && a.gain > 0.02;
    snprintf(a.evidence, sizeof a.evidence, "%.1f update calls a step, %.0f%% of the time in calls",
             each, 100 * a.gain);
    return a;
}

static advice layers(const ts_profile *p)
{
    advice a = {0};
    double most = 0, ns = 0;
    const char *name = "";
    for (int64_t i = 0; i < p->count; i++) {
        const ts_entry *e = &p->entries[i];
        double sum = 0;
        if (e->kernel || e->layer[0] == '-')
            continue;
        ns += e->self_ns;
        for (int64_t k = 0; k < p->count; k++)
            sum += strcmp(p->entries[k].layer, e->layer) == 0 ? p->entries[k].self_ns : 0;
        if (sum > most) {
            most = sum;
            name = e->layer;
        }
    }
    a.gain = share(p, ns);
    a.fires = a.gain > 0.05;
    snprintf(a.evidence, sizeof a.evidence, "layers take %.0f%% of the time, %s alone %.0f%%",
             100 * a.gain, name, 100 * share(p, most));
    return a;
}

/** Bound by compute near its ceiling. */
static advice nothing_left(const ts_profile *p)
{
    advice a = {0};
    double work = 0, roof = 0;
    for (int64_t i = 0; i < p->count; i++) {
        const ts_entry *e = &p->entries[i];
        if (e->regime == TS_REGIME_COMPUTE || e->regime == TS_REGIME_SLOW_COMPUTE) {
            work += ts_entry_time(p, e) - e->overhead_ns;
            roof += e->roof_ns;
        }
    }
    double reached = work > 0 ? roof / work : 0;
    a.fires = p->shares.compute >= 0.7 && reached >= 0.8;
    snprintf(a.evidence, sizeof a.evidence, "%.0f%% of the time computes, at %.0f%% of the ceiling",
             100 * p->shares.compute, 100 * (reached < 1 ? reached : 1));
    return a;
}

/** Fires if devices wait for the host. */
static advice queue_ahead(const ts_profile *p)
{
    advice a = {.gain = share(p, p->device.idle_ns)};
    a.fires = ts_profile_is_of_device(p) && a.gain >= 0.15;
    snprintf(a.evidence, sizeof a.evidence, "the device is idle for %.0f%% of the time",
             100 * a.gain);
    return a;
}

static const struct {
    const char *id, *what;
    advice (*ask)(const ts_profile *p);
    bool host; /* about host time; skipped in profiles of device time */
} rules[] = {
    {"A1", "give the device more work a call: larger batches, ts_compiled_call()", queue_ahead,
     false},
    {"A2", "fuse pointwise chains: ts_compiled_call()", fuse, false},
    {"A5", "compute in f32, or bf16 under TS_AUTOCAST, instead of f64", narrow, false},
    {"A8", "prepare batches in another thread: ts_loader with threads", prefetch, true},
    {"A9", "update parameters in one list: ts_optimizer, not a call each", update_lists, true},
    {"A11", "run without the layer: TS_NO_GRAD where no gradient is needed, weights cast once",
     layers, true},
    {"A14", "nothing cheap is left: lower precision or other hardware", nothing_left, false},
};

int ts_profile_write_advice(const ts_profile *p, FILE *out, bool json)
{
    int fired = 0;
    for (size_t i = 0; p->measured && i < sizeof rules / sizeof rules[0]; i++) {
        if (rules[i].host && ts_profile_is_of_device(p))
            continue;
        advice a = rules[i].ask(p);
        if (!a.fires)
            continue;
        if (json)
            fprintf(out,
                    "%s\n {\"id\": \"%s\", \"what\": \"%s\", \"evidence\": \"%s\", "
                    "\"gain_at_most\": %.4f}",
                    fired ? "," : "", rules[i].id, rules[i].what, a.evidence, a.gain);
        else
            fprintf(out, "  %-4s %s\n       because %s; gain at most %.0f%%\n", rules[i].id,
                    rules[i].what, a.evidence, 100 * a.gain);
        fired++;
    }
    return fired;
}
