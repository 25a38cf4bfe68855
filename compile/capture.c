/**
 * @file capture.c  Captures a plan as a device graph (CUDA graph) and replays it as one launch.
 *
 * A plan first runs call by call twice: the first run initialises libraries and compiles kernels,
 * the second measures the scratch memory of its calls. The backend captures the third run, each
 * step as a part. Intermediates are in an arena, which the graph owns. Results that outlive the
 * call are allocated in each run, so a later run never overwrites them.
 *
 * A graph contains the numbers and addresses of its capture. Before a replay, steps with a changed
 * number or address are captured again, and the backend replaces the old ones. The rest of the
 * graph is unchanged. A run that does not call the user's function (replay.c) knows most numbers of
 * the next run, and captures steps with these numbers while the device works.
 *
 * Calls that reach another device, such as the copy of a batch from the host, run before or after
 * the graph if the order of calls allows it.
 */
// SPDX-License-Identifier: MIT
#include "compile/capture.h"
#include "dispatch/device_times.h"
#include "dispatch/entries.h"

#include <stdio.h>
#include <string.h>

enum { MOST_CAPTURES = 8 /* captures of a whole plan; one more refuses it */ };
#define OUTLIVES "memory that the call allocated outlives it"

static uint64_t *words_of(const ts_array *a) { return a->data; }

/** Replaces the contents of `a` by n words; false if out of memory. */
static bool copy_words(ts_array *a, const void *words, uint32_t n)
{
    a->count = 0;
    if (n && !ts_array_reserve(a, n, sizeof(uint64_t)))
        return false;
    if (n)
        memcpy(a->data, words, n * sizeof(uint64_t));
    a->count = n;
    return true;
}

/* ------------------------------------------------------------------------------- refuse ---- */

/** Frees the graph, but not the arena; the plan may be captured again. */
static void drop_graph(ts_captured *k)
{
    if (k->capture)
        k->backend->capture_free(k->backend->state, k->device.index, k->capture);
    k->capture = NULL;
    k->profiled = 0;
}

static int64_t arena_bytes(const ts_captured *k) { return k->planned + k->lanes * k->scratch; }

/** Frees the graph and the arena. */
static void drop_graph_and_arena(ts_captured *k)
{
    drop_graph(k);
    if (k->arena)
        ts_device_release(k->device, k->arena, arena_bytes(k));
    k->arena = NULL;
}

void ts_captured_refuse(ts_captured *k, const ts_lazy *l, const char *why)
{
    drop_graph_and_arena(k);
    snprintf(k->why, sizeof k->why, "%s", why);
    atomic_store(&k->stage, REFUSED);
    if (ts_log_on("compile"))
        ts_log_write("compile", "%s: no graph: %s", l->compiled->name, k->why);
}

void ts_captured_refuse_step(ts_captured *k, const ts_run *r, const ts_lazy *l, uint32_t step,
                             const char *why)
{
    char site[160], text[sizeof k->why];
    uint32_t node = r->exec->order[r->exec->steps[step].first];
    snprintf(text, sizeof text, "%.40s, called from %.70s: %.100s",
             ts_graph_node_name(r->exec->graph, ts_graph_node_at(r->exec->graph, node)),
             ts_format_site(site, sizeof site, ts_run_site(r, node)), why);
    ts_captured_refuse(k, l, text);
}

/* ------------------------------------------------------------------------------ capture ---- */

static ts_status run_step(const ts_run *r, const ts_captured *k, uint32_t step)
{
    const part *p = (const part *)k->parts.data + step;
    for (uint32_t t = 0; t < p->touches; t++)
        TS_TRY(ts_exec_open(r, touches_of(k, p)[t].storage));
    const ts_step *s = &r->exec->steps[step];
    return s->fused ? ts_group_run(r, s) : ts_exec_call(r, r->exec->order[s->first]);
}

/** Runs the steps that are not in the graph: those before it, or those after it. */
static ts_status run_uncaptured(const ts_run *r, const ts_captured *k, where w)
{
    const part *p = k->parts.data;
    for (uint32_t s = 0; s < r->exec->nsteps && k->calls_outside; s++)
        if (p[s].where == w)
            TS_TRY(run_step(r, k, s));
    return TS_OK;
}

/** True if the graph's steps must run in the order of the plan. A profile requires this, because it
 *  identifies the device work of a step by its order. */
static bool runs_linear(const ts_run *r, const ts_captured *k)
{
    return !k->branches || ts_graph_period(r->thread);
}

/** Lets the device run independent steps of a new capture concurrently. */
static ts_status order_steps(const ts_run *r, ts_captured *k)
{
    ts_array pairs = {0};
    ts_status status = TS_OK;
    k->linear = runs_linear(r, k);
    if (!k->linear && ts_captured_order(k, r->exec, &pairs))
        status = k->backend->capture_order(k->backend->state, k->device.index, k->capture,
                                           pairs.data, (int)pairs.count);
    ts_array_free(&pairs, sizeof(ts_part_pair));
    return status;
}

/** Captures all steps, or those marked `anew`. On failure *step is the step that failed. */
static ts_status capture_steps(ts_run *r, ts_captured *k, bool all, uint32_t *step)
{
    const ts_exec *e = r->exec;
    part *p = k->parts.data;
    ts_stream *before = ts_stream_current(k->device), *stream = NULL;
    ts_workspace workspace = {.device = k->device, .bytes = k->scratch};
    *step = 0;
    TS_TRY(k->backend->capture_begin(k->backend->state, k->device.index, &k->capture, &stream));
    TS_TRY(ts_stream_use(k->device, stream));
    r->workspace = &workspace;
    ts_status status = TS_OK;
    for (uint32_t s = 0; s < e->nsteps && status == TS_OK; s++) {
        if (p[s].where != INSIDE || !(all || p[s].anew))
            continue;
        *step = s;
        workspace.base = k->arena + k->planned + s % k->lanes * k->scratch;
        workspace.most = 0;
        status = k->backend->capture_part(k->backend->state, k->device.index, k->capture, (int)s);
        if (status == TS_OK)
            status = run_step(r, k, s);
        p[s].scratch = workspace.most > 0;
        if (status == TS_OK && workspace.live)
            status = ts_error_set(TS_ERR_UNSUPPORTED, OUTLIVES);
    }
    ts_stream_use(k->device, before);
    r->workspace = NULL;
    int64_t launches = 0;
    if (status == TS_OK && all)
        status = order_steps(r, k);
    if (status == TS_OK)
        status = k->backend->capture_end(k->backend->state, k->device.index, k->capture, &launches);
    atomic_store(&k->launches, launches);
    return status;
}

/** The dispatch table of a node's op, which changes when a kernel is registered. */
static const void *table_of(const ts_exec *e, uint32_t node)
{
    const ts_graph_node *n = ts_graph_node_at(e->graph, node);
    return atomic_load_explicit(&ts_tables[n->op], memory_order_acquire);
}

/** Stores the numbers, addresses and tables of the capture. */
static bool store_state(ts_captured *k, const ts_run *r, const ts_lazy *l)
{
    bool ok = copy_words(&k->numbers, l->numbers.data, l->numbers.count) &&
              copy_words(&k->sites, l->sites.data, l->sites.count) &&
              ts_array_reserve(&k->addresses, r->exec->nstorages + 1, sizeof(void *)) &&
              ts_array_reserve(&k->tables, r->exec->graph->nodes.count, sizeof(void *));
    for (uint32_t i = 0; i < r->exec->nstorages && ok; i++)
        ((void **)k->addresses.data)[i] = r->storages[i] ? r->storages[i]->data : NULL;
    for (uint32_t n = 0; n < r->exec->graph->nodes.count && ok; n++)
        ((const void **)k->tables.data)[n] = table_of(r->exec, n);
    k->deterministic = ts_deterministic();
    return ok;
}

/** Allocates the results that outlive the call. */
static ts_status allocate_results(const ts_run *r)
{
    const ts_exec *e = r->exec;
    for (uint32_t i = 0; i < e->nstorages; i++) {
        const ts_plan_storage *s = &e->storages[i];
        ts_storage **made = &r->storages[i];
        if (!s->held || s->outside || s->first == UINT32_MAX)
            continue;
        if (!*made) /* another thread has released it in the meantime */
            TS_TRY(*made = ts_storage_new(r->thread, s->device, s->bytes));
        if (ts_is_promised((*made)->data) && !ts_storage_fulfil(r->thread, *made))
            return ts_error_code();
    }
    return TS_OK;
}

/** Captures a whole plan. On failure the plan is marked REFUSED, or SEEN if values need other
 * offsets, and false is returned. */
static bool capture(ts_run *r, ts_captured *k, const ts_lazy *l)
{
    uint32_t step = 0;
    drop_graph(k);
    if (k->captures++ == MOST_CAPTURES) {
        ts_captured_refuse(k, l, "its calls choose other kernels from run to run");
        return false;
    }
    ts_status status = capture_steps(r, k, true, &step);
    if (status == TS_OK && !store_state(k, r, l))
        status = ts_error_memory("a graph", 0);
    if (status != TS_OK && !ts_captured_has_offsets(k, r->exec)) {
        drop_graph_and_arena(k);
        atomic_store(&k->stage, SEEN); /* the next run measures and assigns offsets again */
        return false;
    }
    if (status != TS_OK) {
        ts_captured_refuse_step(k, r, l, step, ts_error_message());
        return false;
    }
    atomic_store(&k->stage, CAPTURED);
    if (ts_log_on("compile"))
        ts_log_write("compile", "%s: graph of %u calls, %lld launches and %lld bytes captured",
                     l->compiled->name, r->exec->nsteps, (long long)k->launches,
                     (long long)arena_bytes(k));
    return true;
}

/** The call site of a node, from the sites of a recording. */
static uint64_t site_of(const ts_exec *e, const ts_array *sites, uint32_t node)
{
    return words_of(sites)[ts_graph_node_at(e->graph, node)->end];
}

/** Sets `anew` of the steps whose scalars, call sites, kernels or addresses have changed; returns
 * their number. */
static uint32_t find_changed(const ts_run *r, ts_captured *k, const ts_lazy *l)
{
    const ts_exec *e = r->exec;
    part *p = k->parts.data;
    void *const *addresses = k->addresses.data;
    uint32_t changed = 0;
    for (uint32_t s = 0; s < e->nsteps; s++) {
        bool anew = false;
        if (p[s].where != INSIDE)
            continue;
        for (uint32_t i = e->steps[s].first; i < e->steps[s].first + e->steps[s].count; i++)
            anew |= site_of(e, &l->sites, e->order[i]) != site_of(e, &k->sites, e->order[i]) ||
                    table_of(e, e->order[i]) != ((const void *const *)k->tables.data)[e->order[i]];
        for (uint32_t i = p[s].first_number; i < p[s].last_number; i++)
            anew |= words_of(&l->numbers)[i] != words_of(&k->numbers)[i];
        for (uint32_t t = 0; t < p[s].touches; t++) {
            uint32_t i = touches_of(k, &p[s])[t].storage;
            anew |= r->storages[i] && r->storages[i]->data != addresses[i];
        }
        p[s].anew = anew;
        changed += anew;
    }
    return changed;
}

/** Allocates the arena if there is none; false, with an error, if out of memory. */
static bool take_arena(ts_run *r, ts_captured *k)
{
    int64_t bytes = arena_bytes(k);
    if (bytes && !k->arena && !(k->arena = ts_device_allocate(k->device, bytes, "a graph")))
        return false;
    r->arena = k->arena;
    r->offsets = k->offsets.data;
    return true;
}

/** Captures the steps that will change in the next run, with its expected numbers (l->ahead), while
 *  the device runs the current launch, which the changes do not affect. Returns the number of
 *  changed steps. */
static uint32_t capture_next(ts_run *r, ts_captured *k, const ts_lazy *l)
{
    ts_lazy next = *l;
    uint32_t changed, step;
    next.numbers = *l->ahead;
    r->numbers = next.numbers.data;
    changed = find_changed(r, k, &next);
    if (changed && (capture_steps(r, k, false, &step) != TS_OK || !store_state(k, r, &next))) {
        drop_graph(k); /* part of it may have changed: the next run captures all */
        atomic_store(&k->stage, READY);
    }
    r->numbers = l->numbers.data;
    return changed;
}

/** Sets k->rows and k->works for a profile, unless they are valid for this period. Error:
 *  TS_ERR_MEMORY. */
static ts_status find_rows(const ts_run *r, ts_captured *k, int64_t period)
{
    const int *order = NULL;
    uint32_t nsteps = r->exec->nsteps;
    const part *p = k->parts.data;
    if (k->profiled == period)
        return TS_OK;
    k->profiled = 0;
    k->rows.count = k->works.count = 0;
    if (!ts_array_reserve(&k->rows, nsteps + 1, sizeof(ts_graph_part)))
        return ts_error_memory("a profile's rows", nsteps);
    ts_graph_part *rows = k->rows.data;
    for (uint32_t s = 0; s < nsteps; s++) {
        rows[s] = (ts_graph_part){0};
        if (p[s].where == INSIDE)
            TS_TRY(ts_group_profile(r, &r->exec->steps[s], &rows[s]));
    }
    k->rows.count = nsteps;
    const ts_backend *b = k->backend;
    int n = b->capture_parts ? b->capture_parts(b->state, k->device.index, k->capture, &order) : 0;
    if (!ts_array_reserve(&k->works, (uint32_t)n + 1, sizeof(ts_graph_part *)))
        return ts_error_memory("a profile's rows", n);
    for (int i = 0; i < n; i++)
        ((const ts_graph_part **)k->works.data)[i] =
            order[i] >= 0 && (uint32_t)order[i] < nsteps ? &rows[order[i]] : NULL;
    k->works.count = (uint32_t)n;
    k->profiled = period;
    return TS_OK;
}

/** If a profile records, adds the launch to the rows of the graph's steps and tags the works that
 *  it will queue. Notes the calls of the graph, because updates of parameters end steps. */
static void profile_replay(const ts_run *r, ts_captured *k)
{
    const part *p = k->parts.data;
    bool watched = atomic_load_explicit(&r->thread->state, memory_order_relaxed) &
                   (TS_THREAD_RECORDING | TS_THREAD_WATCHING);
    for (uint32_t s = 0; s < r->exec->nsteps && watched; s++)
        if (p[s].where == INSIDE)
            ts_timer_note_launched(r->thread,
                                   ts_graph_node_at(r->exec->graph,
                                                    r->exec->order[r->exec->steps[s].first])->op);
    int64_t period = ts_graph_period(r->thread);
    if (!period)
        return;
    if (find_rows(r, k, period) != TS_OK) {
        ts_error_clear(); /* the graph's works then belong to the row of the launch */
        return;
    }
    ts_graph_launches(r->thread, k->capture, k->rows.data, (int)k->rows.count, k->works.data,
                      (int)k->works.count);
}

/** Captures the plan, or its changed steps, and replays the graph. *ran is set if the plan has run;
 *  otherwise the caller runs it call by call. */
static ts_status replay(ts_run *r, ts_captured *k, const ts_lazy *l, bool *ran)
{
    uint32_t changed = 0, step;
    ts_stream *stream = ts_stream_current(k->device);
    bool fresh = atomic_load(&k->stage) != CAPTURED || k->deterministic != ts_deterministic();
    if (!fresh && k->linear != runs_linear(r, k)) {
        fresh = true;
        k->captures--;
    }
    TS_TRY(allocate_results(r));
    if (!take_arena(r, k)) {
        ts_captured_refuse(k, l, ts_error_message());
        return TS_OK;
    }
    /* calls outside the graph write the arena, which a replay on another stream may still use */
    if (k->calls_outside && stream != k->stream)
        TS_TRY(ts_synchronize(k->device));
    k->stream = stream;
    TS_TRY(run_uncaptured(r, k, BEFORE));
    if (!fresh && (changed = find_changed(r, k, l)) != 0)
        fresh = capture_steps(r, k, false, &step) != TS_OK || !store_state(k, r, l);
    if (fresh && !capture(r, k, l))
        return TS_OK;
    ts_device_times_scope(r->thread, "compiled"); /* the profile's scope of the graph's kernels */
    profile_replay(r, k);
    ts_status status =
        k->backend->capture_replay(k->backend->state, k->device.index, k->capture, stream);
    ts_device_times_scope(r->thread, NULL);
    if (status != TS_OK) {
        ts_captured_refuse(k, l, ts_error_message());
        return TS_OK;
    }
    *ran = true;
    status = run_uncaptured(r, k, AFTER);
    if (status == TS_OK && l->ahead)
        changed += capture_next(r, k, l);
    pthread_mutex_lock(&l->compiled->lock);
    ts_compile_stats *stats = &l->compiled->stats;
    stats->captures += fresh;
    stats->replays++;
    stats->replaced += fresh ? 0 : changed;
    stats->launches = k->launches;
    pthread_mutex_unlock(&l->compiled->lock);
    return status;
}

/** Runs the plan call by call and measures the scratch memory of its calls. */
static ts_status measure(ts_run *r, ts_captured *k, const ts_lazy *l)
{
    ts_workspace workspace = {.device = k->device};
    uint32_t keeps = UINT32_MAX;
    r->workspace = &workspace;
    r->keeps = &keeps;
    ts_status status = ts_exec_steps(r);
    r->workspace = NULL;
    r->keeps = NULL;
    k->scratch = ts_max64(workspace.most, 1); /* a workspace of 0 bytes means measuring */
    if (workspace.live && keeps != UINT32_MAX)
        ts_captured_refuse_step(k, r, l, keeps, OUTLIVES);
    else if (status == TS_OK && ts_captured_assign_offsets(k, r->exec))
        atomic_store(&k->stage, READY);
    return status;
}

/** Runs a plan without a graph, call by call; with fullgraph a refused plan is an error. */
static ts_status run_eagerly(const ts_run *r, const ts_captured *k, const ts_lazy *l)
{
    const ts_compiled *c = l->compiled;
    if (!k || atomic_load(&k->stage) != REFUSED || !c->opts.fullgraph)
        return ts_exec_steps(r);
    return ts_fail_op(TS_ERR_UNSUPPORTED, c->name, NULL,
                      "compile without fullgraph: the calls then run one by one", "no graph: %s",
                      k->why);
}

ts_status ts_capture_run(ts_run *r, ts_exec *e, ts_lazy *l)
{
    pthread_mutex_lock(&l->compiled->lock);
    if (!e->captured && (e->captured = ts_alloc(r->thread, sizeof *e->captured)) != NULL)
        memset(e->captured, 0, sizeof *e->captured);
    ts_captured *k = e->captured;
    pthread_mutex_unlock(&l->compiled->lock);
    if (!k || !e->nsteps || atomic_load(&k->stage) == REFUSED || atomic_flag_test_and_set(&k->busy))
        return run_eagerly(r, k, l);
    bool ran = false;
    ts_status status = TS_OK;
    if (atomic_load(&k->stage) == COLD) {
        status = ts_captured_look(k, r, l) ? TS_OK : ts_error_memory("a graph", 0);
        if (status == TS_OK && atomic_load(&k->stage) == COLD)
            atomic_store(&k->stage, SEEN);
    } else if (atomic_load(&k->stage) == SEEN) {
        status = measure(r, k, l);
        ran = true;
    } else if (atomic_load(&k->stage) != REFUSED) {
        ts_error before = *r->thread->error;
        status = replay(r, k, l, &ran);
        for (uint32_t i = 0; i < e->nstorages && !ran; i++)
            ts_exec_close(r, i);
        r->arena = NULL;
        if (status == TS_OK) /* a failed capture is not an error of the call */
            *r->thread->error = before;
    }
    atomic_flag_clear(&k->busy);
    return ran || status != TS_OK ? status : run_eagerly(r, k, l);
}

void ts_captured_free(ts_captured *k)
{
    if (!k)
        return;
    drop_graph_and_arena(k);
    ts_array_free(&k->parts, sizeof(part));
    ts_array_free(&k->touches, sizeof(touch));
    ts_array_free(&k->offsets, sizeof(uint64_t));
    ts_array_free(&k->numbers, sizeof(uint64_t));
    ts_array_free(&k->sites, sizeof(uint64_t));
    ts_array_free(&k->addresses, sizeof(uint64_t));
    ts_array_free(&k->tables, sizeof(uint64_t));
    ts_array_free(&k->rows, sizeof(ts_graph_part));
    ts_array_free(&k->works, sizeof(ts_graph_part *));
    ts_free(&ts_tls, k, sizeof *k);
}

const char *ts_captured_text(const ts_captured *k, char *text, size_t size)
{
    int stage = k ? atomic_load(&k->stage) : COLD;
    if (stage == REFUSED)
        snprintf(text, size, "no graph: %s", k->why);
    else if (stage == CAPTURED)
        snprintf(text, size, "graph of %lld launches and %lld bytes", (long long)k->launches,
                 (long long)arena_bytes(k));
    else
        snprintf(text, size, "no graph yet: the third run of a plan is captured");
    return text;
}
