/**
 * @file rules.c  The rules of advice, A1 to A15.
 *
 * A gain is an upper bound of the share of ts_profile_time() that the change saves; for A15, of the
 * share of the wall time of all steps.
 */
// SPDX-License-Identifier: MIT
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dispatch/op.h"
#include "dispatch/registry.h"
#include "profile/advice.h"

#define share ts_advice_share
#define SAY(a, ...) snprintf((a).evidence, sizeof(a).evidence, __VA_ARGS__)

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

/** Sum of the times of the kernel entries for which `wanted` is true, in ns. */
static double kernel_time(const ts_profile *p, bool (*wanted)(const ts_entry *e))
{
    double ns = 0;
    for (int64_t i = 0; i < p->count; i++)
        if (p->entries[i].kernel && wanted(&p->entries[i]))
            ns += ts_entry_time(p, &p->entries[i]);
    return ns;
}

static double per_step(const ts_profile *p, double n)
{
    return p->nsteps ? n / (double)p->nsteps : 0;
}

/* --------------------------------------------------------------------------- A1: the host */

double ts_advice_late_host(const ts_profile *p)
{
    const double *idle = p->device.idle;
    return share(p, idle[TS_IDLE_HOST] + idle[TS_IDLE_LAUNCH] + idle[TS_IDLE_UNKNOWN]);
}

/** Fires for short kernels on a device that waits for the host; on a CPU, for overhead of calls. */
static ts_advice queue_ahead(const ts_profile *p)
{
    enum { SHORT = 20000 }; /* ns */
    ts_advice a = {0};
    if (!ts_profile_is_of_device(p)) {
        a.gain = p->shares.overhead;
        a.fires = a.gain >= 0.15;
        SAY(a, "%.0f%% of the time is the overhead of calls", 100 * a.gain);
        return a;
    }
    double each = p->device.kernels ? p->device.busy_ns / (double)p->device.kernels : 0;
    a.gain = ts_advice_late_host(p);
    a.fires = a.gain >= 0.15 && each < SHORT;
    SAY(a, "the device waits for the host for %.0f%% of the time, and a kernel takes %.1f us",
        100 * a.gain, each / 1e3);
    return a;
}

/* ------------------------------------------------------------------- A2: chains of ops */

bool ts_advice_op_joins(int op)
{
    const ts_op_info *info = &ts_ops[op];
    bool reads = false;
    for (int i = 0; i < info->schema.nargs; i++) {
        const ts_param *a = &info->schema.args[i];
        reads = reads || (a->kinds & (1 << TS_TAG_TENSOR));
        if (a->written)
            return false;
    }
    return reads && info->kind == TS_FILL && !(info->flags & (TS_OP_CHECKED | TS_OP_RUNTIME));
}

static bool joins_groups(const ts_entry *e)
{
    int op = ts_op_by_name(e->op);
    return op < 0 ? strcmp(e->op, "(fused group)") == 0 : ts_advice_op_joins(op);
}

/** Kernels of a device that are overhead are short; a fused group has fewer of them. */
static bool can_fuse(const ts_entry *e)
{
    bool is_short = e->regime == TS_REGIME_OVERHEAD && e->device_ns > 0;
    return !e->product && !e->update && (moves_memory(e) || is_short) && joins_groups(e);
}

/* An op with two operands moves three tensors; a fused group can save the store of the result and
 * its later load. */
double ts_advice_fusion(const ts_profile *p) { return share(p, kernel_time(p, can_fuse)) * 2 / 3; }

/** Only calls of chains count: ts_advice_fusion() also has those without a neighbour. */
static ts_advice fuse(const ts_profile *p)
{
    double calls = 0, ns = 0;
    for (int64_t i = 0; i < p->count; i++) {
        const ts_entry *e = &p->entries[i];
        if (!e->kernel || !can_fuse(e) || !e->calls)
            continue;
        calls += e->chained;
        ns += ts_entry_time(p, e) * e->chained / (double)e->calls;
    }
    ts_advice a = {.gain = share(p, ns) * 2 / 3};
    double each = p->nsteps ? per_step(p, calls) : calls;
    a.fires = a.gain > 0.05 && each >= 2; /* a single call is not a chain */
    SAY(a, "%.0f memory-bound calls that read one another's results take %.0f%% of the time", calls,
        150 * a.gain);
    return a;
}

/* ------------------------------------------------------------ A3: alignment; A4: waves */

/** A matrix whose rows are not multiples of 16 bytes needs more loads, and TMA cannot load it. */
static ts_advice pad_products(const ts_profile *p)
{
    enum { BYTES = 16 };
    ts_advice a = {0};
    double most = 0;
    int64_t odd = 0;
    for (int64_t i = 0; i < p->count && ts_profile_is_of_device(p); i++) {
        const ts_entry *e = &p->entries[i];
        ts_gemm_sizes s;
        int64_t item = strcmp(e->dtype, "f32") == 0 ? 4 : strcmp(e->dtype, "f64") == 0 ? 8 : 2;
        if (!e->kernel || !e->product || !ts_advice_product(e, &s))
            continue;
        int64_t wrong = s.n * item % BYTES ? s.n : s.k * item % BYTES ? s.k : 0;
        if (!wrong || e->roof_ns <= 0)
            continue;
        double lost = e->device_ns - e->roof_ns;
        a.gain += share(p, lost > 0 ? lost : 0);
        odd = lost > most ? wrong : odd;
        most = lost > most ? lost : most;
    }
    a.fires = a.gain > 0.02;
    SAY(a, "rows of %lld elements in a matrix product are not a multiple of %d bytes",
        (long long)odd, BYTES);
    return a;
}

static ts_advice fill_waves(const ts_profile *p)
{
    ts_advice a = {0};
    double most = 0;
    const char *call = "";
    for (int64_t i = 0; i < p->count; i++) {
        const ts_entry *e = &p->entries[i];
        a.gain += share(p, e->partial_ns);
        call = e->partial_ns > most ? e->call : call;
        most = e->partial_ns > most ? e->partial_ns : most;
    }
    a.fires = a.gain > 0.05;
    SAY(a, "grids of few waves leave %.0f%% of the device empty, most in %.60s", 100 * a.gain,
        call);
    return a;
}

/* ---------------------------------------------------------------------- A5: precision */

static bool is_f64(const ts_entry *e) { return strcmp(e->dtype, "f64") == 0; }
static bool is_f64_product(const ts_entry *e) { return e->product && is_f64(e); }
static bool is_f32_product(const ts_entry *e)
{
    return e->product && strcmp(e->dtype, "f32") == 0;
}

/** Share of a product's time that a dtype with the ceiling `narrow` saves over one with `wide`, in
 *  FLOP/s; `unknown` if one of the ceilings is 0. */
static double saved_by(double wide, double narrow, double unknown)
{
    return wide <= 0 || narrow <= 0 ? unknown : wide < narrow ? 1 - wide / narrow : 0;
}

static ts_advice narrower_dtype(const ts_profile *p)
{
    bool device = ts_profile_is_of_device(p);
    const ts_prof_machine *m = device ? &p->device.machine : &p->machine;
    double wide = share(p, kernel_time(p, is_f64));
    double wide_products = share(p, kernel_time(p, is_f64_product));
    double products = device ? share(p, kernel_time(p, is_f32_product)) : 0;
    double best = device && m->half_flops > m->gemm_flops ? m->half_flops : m->gemm_flops;
    ts_advice a = {.gain = (wide - wide_products) / 2 +
                           wide_products * saved_by(m->double_flops, best, 0.5) +
                           products * saved_by(m->gemm_flops, m->half_flops, 0)};
    a.fires = a.gain > 0.05;
    if (products > wide)
        SAY(a, "products in f32 take %.0f%% of the time", 100 * products);
    else
        SAY(a, "kernels in f64 take %.0f%% of the time", 100 * wide);
    return a;
}

/* ----------------------------------------------------- A6: waits; A7: copies; A8: data */

static ts_advice avoid_waits(const ts_profile *p)
{
    ts_advice a = {.gain = share(p, p->device.idle[TS_IDLE_SYNC])};
    a.fires = a.gain > 0.02 && p->device.waits > 0;
    SAY(a, "the host waits for the device %.1f times a step, longest in %.60s",
        per_step(p, (double)p->device.waits),
        p->device.wait_row[0] ? p->device.wait_row : "the program");
    return a;
}

static ts_advice pin(const ts_profile *p)
{
    ts_advice a = {0};
    for (int64_t i = 0; i < p->count; i++)
        a.gain += share(p, p->entries[i].pageable_ns);
    a.fires = a.gain > 0.02;
    SAY(a, "copies from or to ordinary host memory take %.0f%% of the time", 100 * a.gain);
    return a;
}

static ts_advice prefetch(const ts_profile *p)
{
    double ns = 0;
    for (int64_t i = 0; i < p->count; i++)
        if (strcmp(ts_entry_phase(&p->entries[i]), "data") == 0)
            ns += p->entries[i].self_ns;
    bool device = ts_profile_is_of_device(p);
    ts_advice a = {.gain = share(p, device ? p->device.idle[TS_IDLE_DATA] : ns)};
    a.fires = a.gain > 0.05;
    SAY(a, "%sthe scope 'data' %s %.0f%% of the time", device ? "the device waits for " : "",
        device ? "for" : "takes", 100 * a.gain);
    return a;
}

/* --------------------------------------------------- A9: updates; A10: device memory */

/** One call for a list of parameters does the work of a call for each. */
static ts_advice update_lists(const ts_profile *p)
{
    static const char *const updates[] = {"adamw", "sgd", NULL};
    ts_advice a = {0};
    double calls = 0, lost = 0;
    for (int64_t i = 0; i < p->count; i++) {
        const ts_entry *e = &p->entries[i];
        if (!e->kernel || !has_op(e, updates))
            continue;
        calls += (double)e->calls;
        lost += ts_profile_is_of_device(p) ? e->idle_ns : e->overhead_ns;
    }
    a.gain = share(p, lost);
    a.fires = per_step(p, calls) > 4 && a.gain > 0.02;
    SAY(a, "%.1f update calls a step, %.0f%% of the time in calls", per_step(p, calls),
        100 * a.gain);
    return a;
}

static ts_advice keep_memory(const ts_profile *p)
{
    double each = p->nsteps > 1 ? (double)p->device.late_allocations / (double)(p->nsteps - 1) : 0;
    ts_advice a = {.gain = share(p, p->device.idle[TS_IDLE_ALLOCATOR])};
    a.fires = p->nsteps >= 3 && each >= 1 && a.gain > 0.01;
    SAY(a, "each step after the first calls the system's allocator %.1f times", each);
    return a;
}

/* --------------------------------------------------------- A11: layers; A12: casts */

/** True if `layer` is a backend: an entry of a kernel has it. */
static bool is_backend(const ts_profile *p, const char *layer)
{
    for (int64_t i = 0; i < p->count; i++)
        if (p->entries[i].kernel && strcmp(p->entries[i].layer, layer) == 0)
            return true;
    return false;
}

/** The gain is the time of all layers but backends: idle time of a device, or host time. */
static ts_advice disable_layers(const ts_profile *p)
{
    ts_advice a = {0};
    double most = 0, ns = 0;
    const char *name = "";
    bool device = ts_profile_is_of_device(p);
    for (int64_t i = 0; i < (device ? p->nexposed : p->count); i++) {
        const ts_exposed *x = device ? &p->exposed[i] : NULL;
        const ts_entry *e = device ? NULL : &p->entries[i];
        const char *layer = device ? x->name : e->layer;
        double sum = device ? x->ns : 0;
        if (device ? !x->layer || is_backend(p, layer)
                   : e->kernel || e->part[0] || e->layer[0] == '-')
            continue;
        ns += device ? x->ns : e->self_ns;
        for (int64_t k = 0; k < p->count && !device; k++)
            sum += strcmp(p->entries[k].layer, layer) == 0 ? p->entries[k].self_ns : 0;
        if (sum > most) {
            most = sum;
            name = layer;
        }
    }
    a.gain = share(p, ns);
    a.fires = a.gain > 0.05;
    SAY(a, "layers take %.0f%% of the time, %.60s alone %.0f%%", 100 * a.gain, name,
        100 * share(p, most));
    return a;
}

static bool converts(const ts_entry *e)
{
    static const char *const ops[] = {"to", "copy", "contiguous", NULL};
    return has_op(e, ops);
}

static ts_advice keep_layout(const ts_profile *p)
{
    double ns = kernel_time(p, converts), casts = 0;
    for (int64_t i = 0; i < p->count && !ts_profile_is_of_device(p); i++)
        casts += strcmp(p->entries[i].part, "casts") == 0 ? p->entries[i].self_ns : 0;
    ts_advice a = {.gain = share(p, ns + casts)};
    a.fires = a.gain > 0.05;
    SAY(a, "copies that change dtype or layout take %.0f%% of the time", 100 * a.gain);
    return a;
}

/* ---------------------------------------- A13: memory; A14: nothing; A15: the first step */

/** Recomputation trades time for memory, so its gain in time is 0. */
static ts_advice recompute(const ts_profile *p)
{
    const ts_memory_part *m = &p->memory;
    ts_advice a = {0};
    double saved = m->peak_bytes > 0 ? m->peak[TS_OWNER_SAVED] / m->peak_bytes : 0;
    double full = m->capacity > 0 ? (m->peak_bytes + m->before) / m->capacity : 0;
    a.fires = saved >= 0.5 && full >= 0.85;
    SAY(a, "tensors saved for backward are %.0f%% of the peak, which is %.0f%% of the memory",
        100 * saved, 100 * full);
    return a;
}

static ts_advice warm_up(const ts_profile *p);

/** Has no gain: it says that most of the time is computation near the ceiling. */
static ts_advice near_ceilings(const ts_profile *p)
{
    ts_advice a = {0};
    double work = 0, roof = 0;
    for (int64_t i = 0; i < p->count; i++) {
        const ts_entry *e = &p->entries[i];
        if (e->regime == TS_REGIME_COMPUTE || e->regime == TS_REGIME_SLOW_COMPUTE) {
            work += ts_entry_time(p, e) - e->overhead_ns;
            roof += e->roof_ns;
        }
    }
    double reached = work > 0 ? roof / work : 0;
    bool cheap = false; /* another rule gains something in each step */
    for (int i = 0; i < TS_RULES; i++) {
        ts_advice other = {0};
        if (ts_rules[i].ask != near_ceilings && ts_rules[i].ask != warm_up)
            other = ts_rules[i].ask(p);
        cheap = cheap || (other.fires && other.gain > 0.05);
    }
    a.fires = p->shares.compute >= 0.7 && reached >= 0.8 && !cheap;
    SAY(a, "%.0f%% of the time computes, at %.0f%% of the ceiling", 100 * p->shares.compute,
        100 * (reached < 1 ? reached : 1));
    return a;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/** Compares the first step with the median of the later ones. The gain is a share of the time of
 *  all steps. */
static ts_advice warm_up(const ts_profile *p)
{
    enum { MOST = 512 };
    ts_advice a = {0};
    double later[MOST], all = 0;
    int64_t n = p->nsteps - 1 < MOST ? p->nsteps - 1 : MOST;
    for (int64_t i = 0; i < p->nsteps; i++)
        all += p->steps[i].wall_ns;
    for (int64_t i = 0; i < n; i++)
        later[i] = p->steps[i + 1].wall_ns;
    if (n < 2)
        return a;
    qsort(later, (size_t)n, sizeof *later, by_value);
    double lost = p->steps[0].wall_ns - ts_median_of(later, n);
    a.gain = all > 0 && lost > 0 ? lost / all : 0;
    a.fires = p->steps[0].wall_ns > 2 * ts_median_of(later, n) && a.gain > 0.05;
    SAY(a, "the first step takes %.3f ms, later steps %.3f ms", p->steps[0].wall_ns / 1e6,
        ts_median_of(later, n) / 1e6);
    return a;
}

const ts_rule ts_rules[TS_RULES] = {
    {"A1", "give the device more work a call: larger batches, ts_compiled_call()", queue_ahead},
    {"A2", "fuse pointwise chains: ts_compiled_call()", fuse},
    {"A3", "pad the sizes of matrix products to a multiple of 8; time the padded shape",
     pad_products},
    {"A4", "change batch or width, so that grids fill the device", fill_waves},
    {"A5", "compute in f32 instead of f64; on a device in bf16 (TS_AUTOCAST) or TF32",
     narrower_dtype},
    {"A6", "read values of the device later, or not in each step", avoid_waits},
    {"A7", "copy from pinned memory: ts_empty_pinned()", pin},
    {"A8", "prepare batches in other threads: a ts_loader with more workers", prefetch},
    {"A9", "update parameters in one list: ts_optimizer, not a call each", update_lists},
    {"A10", "keep device memory: allocate buffers once", keep_memory},
    {"A11", "run without the layer: TS_NO_GRAD where no gradient is needed, weights cast once",
     disable_layers},
    {"A12", "keep dtype and layout: cast once, channels-last throughout", keep_layout},
    {"A13", "recompute cheap tensors in backward: ts_recompute()", recompute},
    {"A14", "nothing cheap is left: lower precision or other hardware", near_ceilings},
    {"A15", "leave out the first step: it loads kernels, starts threads and fills caches", warm_up},
};
