/** @file take.c  Turns the counters of all threads into a profile. */
// SPDX-License-Identifier: MIT
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "dispatch/timers.h"
#include "ops/kernel.h"
#include "profile/profile.h"

enum { BESIDE = TS_MAX_OPS - 1 }; /* the op of rows that are no calls */

ts_profile *ts_profile_new(int64_t count, int64_t nsteps)
{
    ts_profile *p = ts_sys_calloc(sizeof *p);
    if (p) {
        p->entries = ts_sys_calloc((size_t)(count + 1) * sizeof *p->entries);
        p->steps = ts_sys_calloc((size_t)(nsteps + 1) * sizeof *p->steps);
        if (p->entries && p->steps)
            return p;
    }
    ts_profile_free(p);
    ts_fail_memory("a profile", (int64_t)(count * (int64_t)sizeof(ts_entry)));
    return NULL;
}

void ts_profile_free(ts_profile *profile)
{
    if (profile) {
        ts_sys_free(profile->entries);
        ts_sys_free(profile->steps);
        ts_sys_free(profile);
    }
}

/** "step/attention" from the outermost scope on. */
static void print_scope(char *text, size_t size, uint32_t scope)
{
    uint32_t path[16];
    int depth = 0;
    for (; scope && depth < TS_COUNTOF(path); scope = ts_scope_get(scope).parent)
        path[depth++] = scope;
    text[0] = 0;
    for (size_t used = 0; depth > 0 && used + 1 < size; used = strlen(text))
        snprintf(text + used, size - used, "%s%s", used ? "/" : "",
                 ts_scope_get(path[--depth]).name);
}

static bool is_product(int op)
{
    switch (op) {
    case TS_OP_mm:
    case TS_OP_bmm:
    case TS_OP_matmul:
    case TS_OP_addmm:
    case TS_OP_linear:
    case TS_OP_linear_gelu:
    case TS_OP_linear_backward:
    case TS_OP_scaled_dot_product_attention:
    case TS_OP_scaled_dot_product_attention_backward:
        return true;
    default:
        return false;
    }
}

static bool is_update(int op)
{
    return op == TS_OP_adamw || op == TS_OP_sgd || op == TS_OP_scale || op == TS_OP_global_norm ||
           op == TS_OP_clip_norm;
}

static int64_t load(const _Atomic int64_t *place)
{
    return atomic_load_explicit(place, memory_order_relaxed);
}

typedef struct gathering {
    ts_profile *p;
    int64_t room, rows;
    double tick_ns;
} gathering;

static void add_entry(ts_profile *p, const ts_tally_row *row, double tick_ns)
{
    ts_entry e = {.calls = load(&row->cell.calls),
                  .unknown = load(&row->unknown),
                  .self_ns = (double)load(&row->cell.ticks) * tick_ns,
                  .flops = atomic_load_explicit(&row->flops, memory_order_relaxed),
                  .bytes = atomic_load_explicit(&row->bytes, memory_order_relaxed)};
    bool call = row->op != BESIDE;
    snprintf(e.op, sizeof e.op, "%.47s", call ? ts_op_name(row->op) : row->call);
    snprintf(e.layer, sizeof e.layer, "%s", call ? ts_key_name(row->key) : "-");
    snprintf(e.call, sizeof e.call, "%s", row->call);
    snprintf(e.dtype, sizeof e.dtype, "%s",
             row->dtype < TS_DTYPE_COUNT ? ts_dtype_name((ts_dtype)row->dtype) : "-");
    print_scope(e.scope, sizeof e.scope, row->scope);
    e.kernel = call && row->key < 16;
    e.product = call && is_product(row->op);
    e.update = call && is_update(row->op);
    for (int64_t i = 0; i < p->count; i++) { /* the same class in another thread */
        ts_entry *same = &p->entries[i];
        if (same->kernel == e.kernel && strcmp(same->op, e.op) == 0 &&
            strcmp(same->layer, e.layer) == 0 && strcmp(same->scope, e.scope) == 0 &&
            strcmp(same->call, e.call) == 0) {
            same->calls += e.calls;
            same->unknown += e.unknown;
            same->self_ns += e.self_ns;
            same->flops += e.flops;
            same->bytes += e.bytes;
            return;
        }
    }
    p->entries[p->count++] = e;
}

static void gather(const ts_tally_table *r, int thread, double wall_ns, double stamps_ns, void *ctx)
{
    gathering *g = ctx;
    (void)thread;
    int n = atomic_load_explicit(&r->count, memory_order_acquire);
    g->rows += n;
    if (!g->p)
        return;
    g->p->wall_ns += wall_ns;
    g->p->profiler_ns += stamps_ns;
    g->p->shared_calls += load(&r->shared);
    g->p->threads++;
    for (int i = 0; i < n; i++) {
        const ts_tally_row *row = ts_tally_at(r, i);
        bool used = load(&row->cell.calls) || load(&row->cell.ticks);
        if (used && g->p->count < g->room)
            add_entry(g->p, row, g->tick_ns);
    }
}

static void copy_steps(ts_profile *p, const ts_step *steps, int64_t n, double tick_ns)
{
    ts_step before = {0};
    for (int64_t i = 0; i < n; i++) {
        const ts_step *s = &steps[i];
        p->steps[i] = (ts_step_times){
            .wall_ns = (double)(s->wall - before.wall) * tick_ns,
            .kernels_ns = (double)(s->parts[TS_PART_KERNELS] - before.parts[TS_PART_KERNELS]) *
                          tick_ns,
            .layers_ns = (double)(s->parts[TS_PART_LAYERS] - before.parts[TS_PART_LAYERS]) *
                         tick_ns,
            .outside_ns = (double)(s->parts[TS_PART_OUTSIDE] - before.parts[TS_PART_OUTSIDE]) *
                          tick_ns,
            .profiler_ns = (double)(s->stamps - before.stamps) * tick_ns};
        before = *s;
    }
    p->nsteps = n;
}

ts_profile *ts_profile_take(void)
{
    int64_t nsteps, first, lost;
    if (ts_timers_recording()) {
        ts_error_set(TS_ERR_STATE, "profile_take: a profile records; stop it first");
        return NULL;
    }
    const ts_step *steps = ts_timers_steps(&nsteps, &first, &lost);
    gathering g = {.tick_ns = ts_timers_tick_ns()};
    ts_timers_each_record(gather, &g);
    ts_profile *p = ts_profile_new(g.rows, nsteps);
    if (!p)
        return NULL;
    g = (gathering){.p = p, .room = g.rows, .tick_ns = g.tick_ns};
    ts_timers_each_record(gather, &g);
    copy_steps(p, steps, nsteps, g.tick_ns);
    p->first_step = first;
    p->lost_steps = lost;
    double sum = p->profiler_ns;
    for (int64_t i = 0; i < p->count; i++)
        sum += p->entries[i].self_ns;
    p->own_share = p->wall_ns > 0 ? (sum - p->wall_ns) / p->wall_ns : 0;
    p->machine.size = sizeof p->machine;
    p->measured = ts_prof_find_machine(&p->machine) == TS_OK;
    if (!p->measured)
        ts_error_clear();
    ts_profile_sort(p);
    ts_profile_judge(p);
    return p;
}
