/** @file take.c  Turns the counters of all threads into a profile. */
// SPDX-License-Identifier: MIT
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "dispatch/timers.h"
#include "ops/kernel.h"
#include "profile/advice.h"
#include "profile/device.h"

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
    ts_error_memory("a profile", (int64_t)(count * (int64_t)sizeof(ts_entry)));
    return NULL;
}

void ts_profile_free(ts_profile *profile)
{
    if (profile) {
        ts_sys_free(profile->entries);
        ts_sys_free(profile->steps);
        ts_sys_free(profile->events);
        ts_sys_free(profile->calls);
        ts_sys_free(profile->works);
        for (int64_t i = 0; i < profile->nkernels; i++)
            ts_sys_free(profile->kernels[i].text);
        ts_sys_free(profile->kernels);
        ts_sys_free(profile->exposed);
        ts_sys_free(profile);
    }
}

void ts_scope_path(char *text, size_t size, uint32_t scope)
{
    uint32_t chain[TS_SCOPE_DEPTH];
    int depth = ts_scope_chain(scope, chain);
    text[0] = 0;
    for (size_t i = 0, used = 0; i < (size_t)depth && used + 1 < size; i++, used = strlen(text))
        snprintf(text + used, size - used, "%s%s", used ? "/" : "", ts_scope_get(chain[i]).name);
}

static bool is_product(int op)
{
    switch (op) {
    case TS_OP_mm:
    case TS_OP_bmm:
    case TS_OP_matmul:
    case TS_OP_addmm:
    case TS_OP_convolution:
    case TS_OP_convolution_backward:
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

bool ts_profile_chains(int op)
{
    return ts_advice_op_joins(op) && !is_product(op) && !is_update(op);
}

static int load_count(const _Atomic int *counter)
{
    return atomic_load_explicit(counter, memory_order_acquire);
}
static int64_t load(const _Atomic int64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

typedef struct gathering {
    ts_profile *p; /* the result */
    /* capacity: entries that p can hold; rows, events: numbers in all threads; first_tick: earliest
       start of a thread */
    int64_t capacity, rows, events, first_tick;
    bool called; /* a thread has called an op */
    double tick_ns;
    uint32_t *index, mask; /* open addressing: number of an entry + 1, by hash_entry() */
    ts_device_sums device;
    ts_trace_row *traced; /* rows of p->calls */
} gathering;

static uint64_t hash_entry(const ts_entry *e)
{
    uint64_t hash = 0;
    const char *const texts[] = {e->op, e->layer, e->scope, e->call, e->part};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        hash = ts_hash_word(ts_hash_string(hash, texts[i]), i);
    return hash ^ hash >> 32;
}

/** Adds a row to the entries. Returns its self time in ns. */
static double add_entry(gathering *g, const ts_tally_row *row)
{
    ts_profile *p = g->p;
    ts_entry e = {.calls = load(&row->cell.calls),
                  .unknown = load(&row->unknown),
                  .self_ns = (double)load(&row->cell.ticks) * g->tick_ns,
                  .flops = atomic_load_explicit(&row->flops, memory_order_relaxed),
                  .bytes = atomic_load_explicit(&row->bytes, memory_order_relaxed)};
    bool call = row->op != TS_ROW_OUTSIDE;
    int64_t examined = load(&row->examined);
    e.chained = examined ? (double)e.calls * (double)load(&row->chained) / (double)examined : 0;
    snprintf(e.op, sizeof e.op, "%.47s", call ? ts_row_op(row->op) : row->call);
    snprintf(e.layer, sizeof e.layer, "%s", call ? ts_key_name(row->key) : "-");
    snprintf(e.call, sizeof e.call, "%s", row->call);
    snprintf(e.dtype, sizeof e.dtype, "%s",
             row->dtype < TS_DTYPE_COUNT ? ts_dtype_name((ts_dtype)row->dtype) : "-");
    ts_scope_path(e.scope, sizeof e.scope, row->scope);
    static const char *const parts[] = {"", "rule", "allocation", "casts"};
    snprintf(e.part, sizeof e.part, "%s", parts[row->part % 4]);
    e.kernel = call && ts_key_runs(row->key) && !row->part;
    e.product = call && is_product(row->op);
    e.update = call && is_update(row->op);
    ts_device_claim(&g->device, row->hash, &e);
    uint32_t at = (uint32_t)hash_entry(&e) & g->mask;
    for (; g->index[at]; at = (at + 1) & g->mask) { /* adds to the equal row of another thread */
        ts_entry *same = &p->entries[g->index[at] - 1];
        if (same->kernel == e.kernel && strcmp(same->op, e.op) == 0 &&
            strcmp(same->layer, e.layer) == 0 && strcmp(same->scope, e.scope) == 0 &&
            strcmp(same->call, e.call) == 0 && strcmp(same->part, e.part) == 0) {
            same->calls += e.calls;
            same->unknown += e.unknown;
            same->chained += e.chained;
            same->self_ns += e.self_ns;
            same->flops += e.flops;
            same->bytes += e.bytes;
            same->device_ns += e.device_ns;
            same->kernels += e.kernels;
            same->delay_ns += e.delay_ns;
            same->idle_ns += e.idle_ns;
            same->partial_ns += e.partial_ns;
            same->pageable_ns += e.pageable_ns;
            same->wait_ns += e.wait_ns;
            same->row = e.device_ns > 0 ? e.row : same->row;
            return e.self_ns;
        }
    }
    p->entries[p->count++] = e;
    g->index[at] = (uint32_t)p->count;
    return e.self_ns;
}

static bool take_index(gathering *g)
{
    uint32_t capacity = 64;
    while (capacity < 2 * g->rows)
        capacity *= 2;
    g->mask = capacity - 1;
    g->index = ts_sys_calloc(capacity * sizeof *g->index);
    if (!g->index)
        ts_error_memory("a profile", capacity * (int64_t)sizeof *g->index);
    return g->index;
}

/** Counts rows and events, and finds the start of the first thread. */
static void count_records(const ts_thread_record *t, void *ctx)
{
    gathering *g = ctx;
    g->rows += load_count(&t->table->count);
    g->events += load(&t->table->nevents);
    for (const ts_event_list *l = t->table->ended; l; l = l->next)
        g->events += l->count;
    g->called |= ts_tally_has_calls(t->table);
    g->first_tick = g->first_tick && g->first_tick < t->begun ? g->first_tick : t->begun;
}

/** Appends an event. first: number of the thread's first event that is kept. */
static void copy_event(gathering *g, const ts_event *e, int64_t first, int thread)
{
    ts_profile *p = g->p;
    if (p->nevents == g->events)
        return;
    ts_call_event *c = &p->events[p->nevents++];
    c->event = *e;
    c->event.row += (uint32_t)p->ncalls;
    c->event.parent = c->event.parent > first ? c->event.parent - (uint32_t)first : 0;
    c->thread = thread;
    c->begin_ns = (double)(c->event.begin - g->first_tick) * g->tick_ns;
}

/** Appends a thread's events, and the call texts of its rows, to those of earlier threads. Adapts
 *  the row and parent numbers in the events. */
static void copy_events(gathering *g, const ts_thread_record *t, int nrows)
{
    ts_profile *p = g->p;
    int64_t n = load(&t->table->nevents), ring = t->table->ring;
    int64_t first = ring && n > ring ? n - ring : 0;
    p->overwritten += first;
    for (int64_t i = first; i < n; i++)
        copy_event(g, ts_event_at(t->table, i), first, t->thread);
    for (const ts_event_list *l = t->table->ended; l; l = l->next) {
        p->overwritten += l->overwritten;
        for (int64_t i = 0; i < l->count; i++)
            copy_event(g, &l->events[i], 0, l->thread);
    }
    for (int i = 0; i < nrows && p->ncalls < g->rows; i++, p->ncalls++) {
        const ts_tally_row *row = ts_tally_at(t->table, i);
        memcpy(p->calls[p->ncalls], row->call, sizeof p->calls[0]);
        g->traced[p->ncalls] = (ts_trace_row){row->hash >> TS_TAG_ROW, p->ncalls, row->scope};
    }
}

/** Adds a thread; leaves out a thread without a call if others have calls. If the program has
 *  steps, a thread that ends none, such as a loader's, often waits: only its time in calls
 *  counts. */
static void gather(const ts_thread_record *t, void *ctx)
{
    gathering *g = ctx;
    ts_profile *p = g->p;
    if (g->called && !ts_tally_has_calls(t->table))
        return;
    int n = load_count(&t->table->count);
    bool helps = p->steps_thread >= 0 && t->thread != p->steps_thread;
    double covered = t->stamps_ns, waited = 0; /* ns in rows; of these, in rows left out */
    p->profiler_ns += t->stamps_ns;
    p->preempted_ns += helps ? 0 : t->preempted_ns;
    p->shared_calls += load(&t->table->shared);
    p->lost_events += load(&t->table->lost_events);
    p->threads += t->threads;
    if (t->thread == p->steps_thread)
        p->steps_begin_ns = (double)(t->begun - g->first_tick) * g->tick_ns;
    for (int i = 0; i < n; i++) {
        const ts_tally_row *row = ts_tally_at(t->table, i);
        bool used = load(&row->cell.calls) || load(&row->cell.ticks);
        if (helps && strcmp(row->call, "(unattributed)") == 0)
            waited += (double)load(&row->cell.ticks) * g->tick_ns;
        else if (used && p->count < g->capacity)
            covered += add_entry(g, row);
    }
    p->wall_ns += fmax(t->wall_ns, fmin(covered + waited, t->most_ns)) - waited;
}

static void gather_events(const ts_thread_record *t, void *ctx)
{
    gathering *g = ctx;
    if (g->p->events)
        copy_events(g, t, load_count(&t->table->count));
}

static bool allocate_events(ts_profile *p, gathering *g)
{
    p->events = ts_sys_alloc((size_t)(g->events + 1) * sizeof *p->events);
    p->calls = ts_sys_alloc((size_t)(g->rows + 1) * sizeof *p->calls);
    g->traced = ts_sys_alloc((size_t)(g->rows + 1) * sizeof *g->traced);
    bool good = p->events && p->calls && g->traced;
    if (!good)
        ts_error_memory("a trace", g->events * (int64_t)sizeof *p->events);
    return good;
}

/** Moves a negative time to the profiler's. The cost of recording, which rows have paid, is then
 *  above what recording took, because it was measured while the machine was busier. */
static void move_negative(double *ns, double *profiler_ns)
{
    if (*ns < 0) {
        *profiler_ns += *ns;
        *ns = 0;
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
        ts_step_times *t = &p->steps[i];
        move_negative(&t->kernels_ns, &t->profiler_ns);
        move_negative(&t->layers_ns, &t->profiler_ns);
        move_negative(&t->outside_ns, &t->profiler_ns);
    }
    p->nsteps = n;
}

/** Sets *g->p from the records of all threads and, if `devices`, of the devices. Without `devices`
 *  it calls no backend. */
static ts_status fill(gathering *g, bool devices)
{
    ts_profile *p = g->p;
    if (devices)
        TS_TRY(ts_device_sums_make(&g->device, p));
    ts_timers_each_record(gather_events, g);
    TS_TRY(ts_device_timeline(&g->device, p));
    if (p->traced && devices)
        TS_TRY(ts_trace_works(&g->device, p, g->traced, g->first_tick));
    ts_timers_each_record(gather, g);
    ts_device_rest(&g->device, p);
    return ts_memory_study(p, g->first_tick, devices);
}

/** Finds the ceilings, and judges and sorts the rows. */
static void finish_rows(gathering *g, bool devices)
{
    ts_profile *p = g->p;
    double sum = p->profiler_ns;
    for (int64_t i = 0; i < p->count; i++) {
        sum += p->entries[i].self_ns;
        move_negative(&p->entries[i].self_ns, &p->profiler_ns);
    }
    p->own_share = p->wall_ns > 0 ? (sum - p->wall_ns) / p->wall_ns : 0;
    p->machine.size = sizeof p->machine;
    p->measured = ts_prof_find_machine(&p->machine) == TS_OK;
    if (!p->measured)
        ts_error_clear();
    if (devices && ts_profile_is_of_device(p) &&
        ts_device_measure(ts_device_of_times(), &p->device) != TS_OK) {
        snprintf(p->device.note, sizeof p->device.note, "no GPU ceilings, so no regimes: %.120s",
                 ts_error_message());
        ts_error_clear();
    }
    if (!devices && ts_device_times_exist()) {
        p->device.incomplete = true;
        snprintf(p->device.note, sizeof p->device.note,
                 "incomplete: a signal ended the program before its GPU times came");
    }
    ts_profile_sort(p);
    ts_profile_judge(p);
    ts_device_name_kernel(&g->device, p);
}

static ts_profile *take(bool devices)
{
    int64_t nsteps, first, lost;
    int thread;
    bool traced;
    const ts_step *steps = ts_timers_steps(&nsteps, &first, &lost, &thread, &traced);
    gathering g = {.tick_ns = ts_timers_tick_ns()};
    ts_timers_each_record(count_records, &g);
    ts_profile *p = g.p = ts_profile_new(g.rows, nsteps);
    if (!p)
        return NULL;
    g.capacity = g.rows;
    p->traced = traced;
    p->tick_ns = g.tick_ns;
    p->steps_thread = thread;
    p->first_step = first;
    p->lost_steps = lost;
    copy_steps(p, steps, nsteps, g.tick_ns);
    bool allocated = take_index(&g) && (!traced || allocate_events(p, &g));
    ts_status status = allocated ? fill(&g, devices) : TS_ERR_MEMORY;
    if (status == TS_OK)
        finish_rows(&g, devices);
    ts_sys_free(g.traced);
    ts_sys_free(g.index);
    ts_device_sums_free(&g.device);
    if (status != TS_OK) {
        ts_profile_free(p);
        return NULL;
    }
    ts_profile_name_program(p);
    return p;
}

ts_profile *ts_profile_take(void)
{
    if (ts_timers_recording()) {
        ts_error_set(TS_ERR_STATE, "profile_take: a profile records; stop it first");
        return NULL;
    }
    return take(true);
}

ts_profile *ts_profile_take_host(void) { return take(false); }
