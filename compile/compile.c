/** @file compile.c  Compiled functions: creation, calls, the cache of plans. */
// SPDX-License-Identifier: MIT
#include "compile/replay.h"
#include "compile/testing.h"
#include "core/process.h"
#include "include/tessera/autocast.h"
#include "include/tessera/check.h"
#include "include/tessera/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/** Values of the environment variable TS_COMPILE. It and TS_COMPILE_MAX_GROUPS are read once. */
enum { MODE_OFF, MODE_TRACE, MODE_LOWER, MODE_FUSE, MODE_FULL };
static int mode = MODE_FULL;
static int64_t most_groups; /* of TS_COMPILE_MAX_GROUPS: as ts_compile_opts.max_groups */
#define RECOMPUTE ((int64_t)4 << 30) /* default of ts_compile_opts.recompute, bytes */

uint64_t ts_plan_hash_mask = UINT64_MAX;

static pthread_mutex_t functions_lock = PTHREAD_MUTEX_INITIALIZER;
static ts_compiled *functions;

static void before_fork(void)
{
    pthread_mutex_lock(&functions_lock);
    for (ts_compiled *c = functions; c; c = c->next)
        pthread_mutex_lock(&c->lock);
}
static void after_fork(void)
{
    for (ts_compiled *c = functions; c; c = c->next)
        pthread_mutex_unlock(&c->lock);
    pthread_mutex_unlock(&functions_lock);
}
void ts_compiled_install(void) { TS_FORK_AROUND(before_fork, after_fork); }

void ts_compiled_from_environment(void)
{
    int choice = ts_variable_choice("TS_COMPILE", "off|trace|lower|fuse|full");
    mode = choice < 0 ? MODE_FULL : choice;
    const char *groups = getenv("TS_COMPILE_MAX_GROUPS");
    most_groups = 0;
    if (groups && *groups && !ts_read_int(groups, -1, INT64_MAX, &most_groups)) {
        most_groups = 0;
        ts_log_write("warning",
                     "TS_COMPILE_MAX_GROUPS: expected a whole number of at least -1, got '%.200s', "
                     "which changes nothing",
                     groups);
    }
}

/** The limit for groups in plans of c: the lower of its option and TS_COMPILE_MAX_GROUPS. */
static int64_t max_groups(const ts_compiled *c)
{
    int64_t own = c->opts.max_groups;
    return !most_groups || (own && own < most_groups) ? own : most_groups;
}

ts_compiled *ts_compile(ts_trace_fn fn, void *ctx, const ts_compile_opts *opts)
{
    const void *site = __builtin_return_address(0);
    const ts_check_place at = {"compile", site};
    ts_compile_opts o = {.size = sizeof o};
    if (opts)
        TS_TRY_NULL(ts_check_opts(at, "opts", &o, sizeof o, opts));
    TS_TRY_NULL(ts_check_pointers(at, "fn", (const void *[]){(void *)(uintptr_t)fn}, 1, false));
    if (o.max_plans < 0 || o.max_groups < -1 || o.verify < 0 || o.recompute < -1) {
        ts_fail_op(TS_ERR_VALUE, "compile", site, NULL,
                   "argument 'opts': expected max_plans >= 0, max_groups >= -1, verify >= 0 and "
                   "recompute >= -1, got %lld, %lld, %lld and %lld",
                   (long long)o.max_plans, (long long)o.max_groups, (long long)o.verify,
                   (long long)o.recompute);
        return NULL;
    }
    ts_compiled *c = ts_alloc(ts_thread_self(), sizeof *c);
    if (!c) {
        ts_error_memory("a compiled function", sizeof *c);
        return NULL;
    }
    memset(c, 0, sizeof *c);
    pthread_mutex_init(&c->lock, NULL);
    c->fn = fn;
    c->ctx = ctx;
    c->opts = o;
    if (!o.max_plans)
        c->opts.max_plans = 64;
    if (o.recompute <= 0)
        c->opts.recompute = o.recompute ? INT64_MAX : RECOMPUTE;
    snprintf(c->name, sizeof c->name, "%s", o.name ? o.name : "function");
    pthread_mutex_lock(&functions_lock);
    c->next = functions;
    c->link = &functions;
    if (c->next)
        c->next->link = &c->next;
    functions = c;
    pthread_mutex_unlock(&functions_lock);
    return c;
}

ts_compiled *ts_step_graph(ts_trace_fn fn, void *ctx)
{
    TS_TRY_NULL(TS_CHECK_POINTERS(fn));
    return ts_compile(fn, ctx, TS_OPTS(ts_compile_opts, .name = "step graph", .fullgraph = true,
                                       .max_groups = -1, .graph = true, .replay = true,
                                       .recompute = -1));
}

void ts_compiled_free(ts_compiled *c)
{
    if (!c)
        return;
    ts_thread *thread = ts_thread_self();
    pthread_mutex_lock(&functions_lock);
    *c->link = c->next;
    if (c->next)
        c->next->link = c->link;
    pthread_mutex_unlock(&functions_lock);
    int64_t n = c->nplans;
    c->nplans = 0; /* deleters of tensors that the plans hold may still ask for a report */
    c->newest = NULL;
    for (int64_t i = 0; i < n; i++)
        ts_exec_free(c->plans[i]);
    if (c->plans)
        ts_free(thread, c->plans, (size_t)c->room * sizeof *c->plans);
    pthread_mutex_destroy(&c->lock);
    ts_free(thread, c, sizeof *c);
}

/* -------------------------------------------------------------------------------- plans ---- */

ts_status ts_compiled_break(ts_compiled *c, const char *what, const void *site)
{
    char text[200];
    if (c->opts.fullgraph)
        return ts_fail_op(TS_ERR_STATE, c->name, site,
                          "return the tensor and read it after the call, or compile without "
                          "fullgraph",
                          "fullgraph: %s breaks the recording", what);
    pthread_mutex_lock(&c->lock);
    c->stats.breaks++;
    for (ts_break *b = c->breaks; b < c->breaks + TS_MAX_BREAKS; b++) {
        if (b->count && (b->site != site || strcmp(b->what, what) != 0))
            continue;
        if (!b->count++) {
            b->site = site;
            snprintf(b->what, sizeof b->what, "%s", what);
        }
        break;
    }
    pthread_mutex_unlock(&c->lock);
    if (ts_log_on("compile"))
        ts_log_write("compile", "%s: %s breaks the recording, called from %s", c->name, what,
                     ts_format_site(text, sizeof text, site));
    return TS_OK;
}

/** The plan of a recording, or NULL. *alike: a plan of the same calls serves other numbers. */
static ts_exec *find_plan(const ts_compiled *c, const ts_array *words, const uint64_t *numbers,
                          uint64_t hash, bool *alike)
{
    *alike = false;
    for (int64_t i = 0; i < c->nplans; i++) {
        ts_exec *e = c->plans[i];
        if (e->hash != hash || e->nwords != words->count ||
            memcmp(e->words, words->data, words->count * sizeof *e->words) != 0)
            continue;
        if (ts_exec_serves(e, numbers))
            return e;
        *alike = true;
    }
    return NULL;
}

/** Makes c->plans longer; false if out of memory. */
static bool grow_plans(ts_compiled *c)
{
    int64_t most = ts_min64(c->opts.max_plans, INT64_MAX / (int64_t)sizeof *c->plans),
            room = ts_min64(ts_max64(8, 2 * c->room), most);
    ts_exec **plans = ts_alloc(ts_thread_self(), (size_t)room * sizeof *plans);
    if (!plans)
        return false;
    if (c->plans) {
        memcpy(plans, c->plans, (size_t)c->nplans * sizeof *plans);
        ts_free(ts_thread_self(), c->plans, (size_t)c->room * sizeof *plans);
    }
    c->plans = plans;
    c->room = room;
    return true;
}

/** Adds a plan to c->plans. If there are max_plans plans, it takes the place of the least recently
 *  used one that is not running; *replaced receives that plan. False if all plans are running or
 *  memory runs out. */
static bool add_plan(ts_compiled *c, ts_exec *e, ts_exec **replaced)
{
    if (c->nplans < c->opts.max_plans && (c->nplans < c->room || grow_plans(c))) {
        c->plans[c->nplans++] = e;
        return true;
    }
    ts_exec **oldest = NULL;
    for (int64_t i = 0; i < c->nplans; i++)
        if (!c->plans[i]->runs && (!oldest || c->plans[i]->used < (*oldest)->used))
            oldest = &c->plans[i];
    if (!oldest)
        return false;
    *replaced = *oldest;
    *oldest = e;
    return true;
}

/** Makes a plan for a recording without one. *replaced receives the plan whose place it takes in
 *  c->plans. NULL with TS_ERR_MEMORY. */
static ts_exec *make_plan(ts_compiled *c, const ts_lazy *l, uint64_t hash, bool knows,
                          ts_exec **replaced)
{
    const ts_array *words = &l->words;
    int64_t begin = ts_small_clock();
    ts_cause_find(c, l);
    ts_plan_options how = {.max_groups = mode >= MODE_FUSE ? max_groups(c) : -1,
                           .lowers = mode >= MODE_LOWER, .merges = mode >= MODE_LOWER,
                           .folds = mode >= MODE_LOWER, .knows = knows,
                           .widens = mode >= MODE_LOWER && max_groups(c) != -1,
                           .by_rows = mode == MODE_FULL,
                           .recompute = mode == MODE_FULL ? c->opts.recompute : INT64_MAX};
    ts_exec *e = ts_exec_new(words->data, words->count, l->numbers.data, &how);
    if (!e)
        return NULL;
    e->uncached = !add_plan(c, e, replaced);
    if (!e->uncached)
        c->newest = e;
    e->hash = hash;
    ts_small_set(e);
    e->number = (uint64_t)c->stats.compiles + 1;
    ts_exec_dump(e, c->name);
    c->stats.compiles++;
    c->stats.compile_ms += (double)(ts_small_clock() - begin) / 1e6;
    c->stats.nodes = e->nnodes;
    c->stats.groups = e->ngroups;
    c->stats.fused = e->nfused;
    c->stats.bytes = e->bytes;
    c->stats.fused_bytes = e->fused_bytes;
    c->stats.peak = e->peak;
    c->stats.kept_peak = e->kept_peak;
    c->stats.recomputed = e->nrecomputed;
    c->stats.merged = e->merged.count;
    return e;
}

ts_exec *ts_compiled_plan(ts_compiled *c, const ts_lazy *l)
{
    const ts_array *words = &l->words;
    uint64_t hash = XXH3_64bits(words->data, words->count * sizeof(uint64_t)) & ts_plan_hash_mask;
    char made[600] = "";
    ts_exec *replaced = NULL;
    pthread_mutex_lock(&c->lock);
    bool alike;
    ts_exec *e = find_plan(c, words, l->numbers.data, hash, &alike);
    c->stats.segments++;
    if (e) {
        c->stats.hits++;
    } else {
        double before = c->stats.compile_ms;
        e = make_plan(c, l, hash, !alike, &replaced);
        if (e && ts_log_on("compile"))
            snprintf(made, sizeof made, "plan %lld of %u calls in %.3f ms, %u groups of %u calls; "
                     "at most %lld bytes, %u recomputed calls; %s", (long long)c->stats.compiles,
                     e->nnodes, c->stats.compile_ms - before, e->ngroups, e->nfused,
                     (long long)e->peak, e->nrecomputed, c->cause);
    }
    ts_small_recorded(c, e, e && e->runs == 0 && !e->used, ts_lazy_segment(l) == 0);
    if (e) {
        e->used = ++c->clock;
        e->segments |= (uint64_t)1 << ts_lazy_segment(l);
        e->runs++;
    }
    c->stats.plans = c->nplans;
    pthread_mutex_unlock(&c->lock);
    /* without the lock: deleters of tensors and the log's callback may use c */
    if (replaced)
        ts_exec_free(replaced);
    if (made[0])
        ts_log_write("compile", "%s: %s", c->name, made);
    return e;
}

bool ts_compiled_by_rows(const ts_compiled *c)
{
    return mode == MODE_FULL && max_groups(c) != -1;
}

void ts_compiled_kernel(ts_compiled *c, ts_group_kernel *k, const ts_group_report *report)
{
    pthread_mutex_lock(&c->lock);
    k->report = *report;
    atomic_store(&k->stage, TS_KERNEL_READY);
    bool made = report->compile_ms > 0;
    c->stats.kernels += made && !report->from_disk;
    c->stats.kernels_read += made && report->from_disk;
    c->stats.kernel_ms += report->compile_ms;
    pthread_mutex_unlock(&c->lock);
    if (made && ts_log_on("compile"))
        ts_log_write("compile", "%s: kernel of a group %s in %.1f ms", c->name,
                     report->from_disk ? "read" : "compiled", report->compile_ms);
}

void ts_compiled_refused(ts_compiled *c, ts_group_kernel *k, const char *why)
{
    pthread_mutex_lock(&c->lock);
    snprintf(k->why, sizeof k->why, "%s", why);
    atomic_store(&k->stage, TS_KERNEL_REFUSED);
    pthread_mutex_unlock(&c->lock);
    if (ts_log_on("compile"))
        ts_log_write("compile", "%s: a group runs call by call: %s", c->name, k->why);
}

void ts_compiled_ran(ts_compiled *c, ts_exec *e)
{
    pthread_mutex_lock(&c->lock);
    e->runs--;
    bool uncached = e->uncached; /* another thread may free a plan in the cache from now on */
    pthread_mutex_unlock(&c->lock);
    if (uncached)
        ts_exec_free(e);
}

ts_compile_stats ts_compiled_stats(const ts_compiled *c)
{
    ts_compile_stats stats = c->stats;
    stats.calls += atomic_load(&c->eager);
    return stats;
}

ts_compile_stats ts_compiled_get_stats(ts_compiled *c)
{
    ts_compile_stats stats = {0};
    if (!c)
        return stats;
    pthread_mutex_lock(&c->lock);
    stats = ts_compiled_stats(c);
    pthread_mutex_unlock(&c->lock);
    return stats;
}

/* -------------------------------------------------------------------------------- calls ---- */

/** Calls the function in a scope, which releases the temporaries before the recorded calls run, so
 *  the plan need not write them to memory. Checks and keeps the outputs. */
static ts_status call_in_scope(ts_compiled *c, ts_tensor *const *inputs, int ninputs,
                               ts_tensor **outputs, int noutputs, const void *site)
{
    TS_SCOPE;
    uint64_t scope = ts_tls.scope->serial;
    ts_status status = c->fn(c->ctx, inputs, ninputs, outputs, noutputs);
    if (TS_UNLIKELY(status != TS_OK))
        status = ts_fail_callback(status, c->name, site, "the function");
    if (TS_UNLIKELY(ts_tls.scope->serial > scope))
        status = ts_end_open_scopes(status, scope, c->name, site, "the function");
    for (int i = 0; i < noutputs && status == TS_OK; i++)
        if (outputs[i] && outputs[i] != TS_NONE && ts_tensor_is_dead(outputs[i]))
            status = ts_fail_dead(c->name, site, "outputs", outputs[i]);
        else
            ts_keep(outputs[i]);
    return status;
}

/** Holds the inputs of a call that notes are taken of, even if the function releases them. */
static void hold(ts_tensor *const *inputs, int ninputs, bool on)
{
    for (int i = 0; i < ninputs; i++)
        if (inputs[i] == TS_NONE)
            continue;
        else if (on)
            ts_tensor_ref(inputs[i]);
        else
            ts_tensor_unref(inputs[i]);
}

/** Records the function, then runs the recorded calls, even if the function failed: eager calls
 *  would have run before the error. */
static ts_status call_recorded(ts_compiled *c, ts_tensor *const *inputs, int ninputs,
                               ts_tensor **outputs, int noutputs, const void *site)
{
    ts_thread *thread = ts_thread_self();
    ts_lazy lazy;
    ts_notes notes;
    ts_lazy_begin(&lazy, c);
    ts_above.clear_cast_cache(); /* a cached cast would become an outside tensor of the plan */
    TS_KEEP_MODES;
    if (c->opts.replay && !c->replay_over) {
        hold(inputs, ninputs, true);
        ts_notes_begin(&notes, thread, inputs, ninputs, outputs, noutputs);
        ts_replay_expect(c, inputs, ninputs);
        lazy.notes = &notes;
        thread->recorder = &notes.events;
    }
    thread->include |= TS_KEYSET(TS_KEY_LAZY);
    thread->lazy = &lazy;
    ts_status status = call_in_scope(c, inputs, ninputs, outputs, noutputs, site);
    if (lazy.notes && status != TS_OK) { /* the outputs may be invalid */
        notes.failed = true;
        ts_notes_refuse(&notes, "an error", NULL);
    }
    for (int i = 0; lazy.notes && i < ninputs; i++)
        if (inputs[i] != TS_NONE && atomic_load(&inputs[i]->refs) == 1) { /* the one held here */
            notes.failed = true;
            ts_notes_refuse(&notes, "the release of an input", NULL);
        }
    ts_above.clear_cast_cache();
    if (lazy.notes)
        ts_notes_forget(&notes);
    ts_error before = *thread->error;
    ts_status ran = ts_lazy_flush(&lazy, NULL, site);
    if (ran == TS_OK && status != TS_OK) /* else the error of a call that was made before */
        *thread->error = before;
    ts_lazy_end(&lazy);
    if (lazy.notes) {
        ts_notes_end(&notes);
        hold(inputs, ninputs, false);
    }
    return ran != TS_OK ? ran : status;
}

/** Sets the outputs of a failed call to NULL. status: its error, or TS_OK if output i is NULL. */
__attribute__((cold, noinline)) static ts_status fail_outputs(const ts_compiled *c,
                                                              ts_tensor **outputs, int noutputs,
                                                              ts_status status, int i,
                                                              const void *site)
{
    if (status == TS_OK && (status = ts_error_code()) == TS_OK)
        status = ts_fail_op(TS_ERR_NULL, c->name, site, NULL, "the function left output %d NULL",
                            i);
    memset(outputs, 0, (size_t)noutputs * sizeof *outputs);
    return status;
}

/** Checks the outputs of a call that has returned `status`. recorded: outputs take the addresses
 *  that the plan has given them. */
static ts_status check_outputs(const ts_compiled *c, ts_tensor **outputs, int noutputs,
                               ts_status status, const void *site, bool recorded)
{
    int i = 0;
    for (; i < noutputs && status == TS_OK && outputs[i]; i++)
        if (recorded && outputs[i] != TS_NONE)
            ts_tensor_take_address(outputs[i]);
    return TS_LIKELY(status == TS_OK && i == noutputs)
               ? TS_OK
               : fail_outputs(c, outputs, noutputs, status, i, site);
}

/** A call whose inputs and outputs may be in one array. */
static ts_status call_overlapping(ts_compiled *c, ts_tensor *const *inputs, int ninputs,
                                  ts_tensor **outputs, int noutputs, const void *site);

static ts_status check_arguments(ts_check_place at, const ts_compiled *c, ts_tensor *const *inputs,
                                 int ninputs, ts_tensor *const *outputs, int noutputs)
{
    TS_TRY(ts_check_pointers(at, "compiled", (const void *[]){c}, 1, true));
    TS_TRY(ts_check_tensor_list(at, "inputs", "ninputs", inputs, ninputs));
    return ts_check_list(at, "outputs", "noutputs", outputs, noutputs);
}

static ts_status call_at(ts_compiled *c, ts_tensor *const *inputs, int ninputs,
                         ts_tensor **outputs, int noutputs, const void *site)
{
    ts_status checked = check_arguments((ts_check_place){"compiled_call", site}, c, inputs, ninputs,
                                        outputs, noutputs);
    if (TS_UNLIKELY(checked != TS_OK)) {
        if (outputs && noutputs > 0)
            memset(outputs, 0, (size_t)noutputs * sizeof *outputs);
        return checked;
    }
    ts_thread *thread = ts_thread_self();
    if (TS_UNLIKELY(inputs < outputs + noutputs && outputs < inputs + ninputs))
        return call_overlapping(c, inputs, ninputs, outputs, noutputs, site);
    if (noutputs)
        memset(outputs, 0, (size_t)noutputs * sizeof *outputs);
    bool inside = thread->lazy || thread->recorder ||
                  (thread->exclude & TS_KEYSET(TS_KEY_LAZY)) || mode == MODE_OFF;
    ts_status status = TS_OK;
    bool timed = !inside && atomic_load_explicit(&c->timed, memory_order_relaxed);
    int64_t begin = TS_UNLIKELY(timed) ? ts_small_clock() : 0;
    bool eager = ts_small_is_eager(c, inputs, ninputs);
    if (!eager)
        ts_small_count(c, inputs, ninputs);
    if (TS_LIKELY(eager) || inside)
        status = call_in_scope(c, inputs, ninputs, outputs, noutputs, site);
    else if (!c->opts.replay ||
             !ts_replay_call(c, inputs, ninputs, outputs, noutputs, &status))
        status = call_recorded(c, inputs, ninputs, outputs, noutputs, site);
    if (TS_UNLIKELY(timed) && status == TS_OK)
        ts_small_time(c, !eager, inputs, ninputs, begin);
    return check_outputs(c, outputs, noutputs, status, site, !inside);
}

static ts_status call_overlapping(ts_compiled *c, ts_tensor *const *inputs, int ninputs,
                                  ts_tensor **outputs, int noutputs, const void *site)
{
    size_t bytes = (size_t)ninputs * sizeof *inputs;
    ts_tensor **copies = ts_alloc(ts_thread_self(), bytes);
    if (!copies)
        return ts_error_memory("inputs of a compiled call", (int64_t)bytes);
    memcpy(copies, inputs, bytes);
    ts_status status = call_at(c, copies, ninputs, outputs, noutputs, site);
    ts_free(ts_thread_self(), copies, bytes);
    return status;
}

ts_status ts_compiled_call(ts_compiled *compiled, ts_tensor *const *inputs, int ninputs,
                           ts_tensor **outputs, int noutputs)
{
    return call_at(compiled, inputs, ninputs, outputs, noutputs, __builtin_return_address(0));
}
