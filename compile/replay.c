/** @file replay.c  Replays a plan without the user's function: decides when replays are allowed,
 * runs the plan and writes the function's effects. */
// SPDX-License-Identifier: MIT
#include "compile/replay.h"

#include <stdio.h>
#include <string.h>

#define AT(array, type, i) ((type *)(array).data + (i))

enum {
    EQUAL_CALLS = 2,   /* equal calls in a row after which a plan may be replayed */
    MOST_MISMATCHES = 4 /* unexpected calls after which the compiled function is never replayed */
};

_Atomic uint64_t ts_leaf_runs;

/* ------------------------------------------------------------------------------ numbers ---- */

/** Writes a call's numbers to `numbers`. Increments the counters that ts_counts_from() declares. */
static void take_numbers(const ts_repeat *p, uint64_t *numbers, ts_rng_state rng)
{
    for (uint32_t i = 0; i < p->rules.count; i++) {
        const ts_number_rule *r = AT(p->rules, ts_number_rule, i);
        switch ((ts_number_kind)r->kind) {
        case TS_NUMBER_FIXED: break;
        case TS_NUMBER_CELL: memcpy(&numbers[i], r->cell, sizeof *numbers); break;
        case TS_NUMBER_COUNT:
            numbers[i] = (uint64_t)++*(int64_t *)r->cell;
            break;
        case TS_NUMBER_SEED: numbers[i] = rng.seed; break;
        case TS_NUMBER_OFFSET: numbers[i] = rng.offset + r->distance; break;
        }
    }
}

static void undo_counts(const ts_repeat *p)
{
    for (uint32_t i = 0; i < p->rules.count; i++) {
        const ts_number_rule *r = AT(p->rules, ts_number_rule, i);
        if (r->kind == TS_NUMBER_COUNT)
            --*(int64_t *)r->cell;
    }
}

/* -------------------------------------------------------------------------------- grant ---- */

bool ts_replay_is_granted(const ts_exec *e)
{
    const ts_repeat *p = e->replay;
    return p && !p->refused && p->agreed >= EQUAL_CALLS;
}

/** Lines for the log, written after c->lock is released, because the callback of the log may use
 *  the compiled function. An empty text is not written. */
typedef struct lines {
    char cause[320];   /* why the function runs on each call */
    char warning[320]; /* why it is never replayed again */
    bool granted;      /* later calls run without the function */
} lines;

static void write_lines(const ts_compiled *c, const lines *l)
{
    if (l->warning[0])
        ts_log_write("warning", "%s: no more replays: %s", c->name, l->warning);
    if (!ts_log_on("compile"))
        return;
    if (l->cause[0])
        ts_log_write("compile", "%s: the function runs on each call: %s", c->name, l->cause);
    if (l->granted)
        ts_log_write("compile", "%s: later calls run without the function", c->name);
}

static void set_cause(ts_compiled *c, const char *why, lines *l)
{
    if (strcmp(c->replay_why, why) != 0)
        snprintf(l->cause, sizeof l->cause, "%s", why);
    snprintf(c->replay_why, sizeof c->replay_why, "%s", why);
}

void ts_replay_expect(ts_compiled *c, ts_tensor *const *inputs, int ninputs)
{
    const ts_thread *thread = ts_thread_self();
    struct ts_replay_modes modes = ts_replay_modes_now(thread);
    pthread_mutex_lock(&c->lock);
    for (int64_t i = 0; i < c->nplans; i++) {
        ts_repeat *p = c->plans[i]->replay;
        if (!p || p->busy)
            continue;
        p->matched = !p->refused && !ts_replay_check(p, &modes, inputs, ninputs, false);
        if (!p->matched)
            continue;
        ts_replay_unlock(p, inputs, p->leaves.count);
        take_numbers(p, p->predicted.data, thread->rng);
        undo_counts(p);
    }
    pthread_mutex_unlock(&c->lock);
}

/** Handles a call that differed from a replay of p although p's guards held: ends the replays of p
 *  for now, or all replays of c after MOST_MISMATCHES or if the call was a check (opts.verify). */
static void handle_mismatch(ts_compiled *c, ts_repeat *p, const char *why, lines *l)
{
    char text[sizeof c->replay_why];
    snprintf(text, sizeof text, "%s: %.200s",
             c->verifying ? "a check found another call than a replay makes"
                          : "calls differ although no guard does", why);
    p->refused |= c->verifying;
    p->agreed = 0;
    if (c->verifying || ++c->mismatches >= MOST_MISMATCHES) {
        c->replay_over = true;
        snprintf(l->warning, sizeof l->warning, "%s", text);
    }
    set_cause(c, text, l);
}

/** Calls handle_mismatch() for each plan whose guards held but whose replay would have differed
 *  from the call, which used plan e. equal: the call equals e's summary. */
static void check_matched_plans(ts_compiled *c, const ts_exec *e, bool equal, const char *why,
                                lines *l)
{
    for (int64_t i = 0; i < c->nplans; i++) {
        ts_repeat *p = c->plans[i]->replay;
        if (!p || !p->matched || p->busy)
            continue;
        if (c->plans[i] != e)
            handle_mismatch(c, p, c->cause[0] ? c->cause : "other calls", l);
        else if (!equal && ts_replay_is_granted(e))
            handle_mismatch(c, p, why, l);
    }
}

ts_status ts_replay_learn(const ts_lazy *l, ts_exec *e, ts_repeat *call, ts_status status)
{
    ts_compiled *c = l->compiled;
    char why[sizeof l->notes->why] = "";
    bool varies = false, equal = false;
    lines log = {0};
    pthread_mutex_lock(&c->lock);
    ts_repeat *before = e->replay, *unused = call; /* freed without the lock: it may run deleters */
    bool busy = before && before->busy;
    if (call && before && !busy)
        equal = ts_replay_agrees(e, before, call, &varies, why, sizeof why);
    else if (!call)
        snprintf(why, sizeof why, "%s", l->notes->why);
    bool crowded = l->leaves.count && l->notes->leaf_runs != atomic_load(&ts_leaf_runs);
    if (status == TS_OK && !l->notes->failed && (c->verifying || !crowded))
        check_matched_plans(c, e, equal, why, &log);
    for (int64_t i = 0; i < c->nplans; i++)
        if (c->plans[i]->replay)
            c->plans[i]->replay->matched = false;
    c->verifying = false;
    if (why[0] && !c->replay_over)
        set_cause(c, why, &log);
    bool never = !call || c->replay_over || (before && before->refused);
    if (!never && !busy && status == TS_OK) {
        call->agreed = equal ? before->agreed + 1 : 1;
        never = call->refused = varies && before->modes.epoch == call->modes.epoch;
        unused = before;
        e->replay = call;
        ts_replay_list(call);
        log.granted = call->agreed == EQUAL_CALLS;
    }
    snprintf(why, sizeof why, "%.*s", (int)sizeof why - 1, c->replay_why);
    pthread_mutex_unlock(&c->lock);
    ts_replay_free(unused);
    write_lines(c, &log);
    if (status == TS_OK && never && c->opts.fullgraph)
        return ts_fail_op(TS_ERR_STATE, c->name, NULL,
                          "compile without fullgraph: the function then runs on each call",
                          "fullgraph: no replay: %s", why);
    return status;
}

/* ---------------------------------------------------------------------------------- run ---- */

static ts_tensor *handle_on(ts_thread *thread, ts_storage *s, const ts_layout *l)
{
    ts_tensor base = {.keys = TS_KEYSET(s->device.backend), .storage = s, .data = s->data};
    base.dtype = l->dtype;
    base.device = s->device;
    ts_tensor *t = ts_tensor_alias(thread, &base, l->sizes, l->strides, l->ndim,
                                   l->offset / ts_dtype_sizes[l->dtype]);
    if (t)
        t->flags = l->flags;
    return t;
}

static ts_lazy_storage *run_storages(const ts_repeat *p) { return p->storages.data; }

static ts_storage *storage_at(const ts_repeat *p, ts_tensor *const *inputs, uint32_t i)
{
    const ts_holder *h = AT(p->holders, ts_holder, i);
    const ts_leaf_rule *leaf;
    switch ((ts_origin)h->origin) {
    case TS_ORIGIN_FIXED: return h->storage;
    case TS_ORIGIN_INPUT: return inputs[h->at]->storage;
    case TS_ORIGIN_GRADIENT:
        leaf = AT(p->leaves, ts_leaf_rule, h->at);
        return ts_leaf_tensor(leaf, ts_leaf_of(leaf, inputs))->storage;
    default: return run_storages(p)[i].storage;
    }
}

/** Number of ts_repeats that have run. */
static _Atomic uint64_t serials;

/** Allocates the storages of a run and the handles that it leaves, so that nothing after the run
 *  can fail. TS_ERR_MEMORY. */
static ts_status prepare(ts_repeat *p, const ts_exec *e, ts_thread *thread,
                         ts_tensor *const *inputs)
{
    ts_lazy_storage *storages = run_storages(p);
    ts_tensor **made = p->made.data;
    for (uint32_t k = 0; k < p->varying.count; k++)
        storages[*AT(p->varying, uint32_t, k)].storage = NULL;
    for (uint32_t i = 0; i < p->made.count; i++)
        made[i] = NULL;
    if (!p->serial) {
        p->serial = atomic_fetch_add(&serials, 1) + 1;
        for (uint32_t i = 0; i < e->nrecorded; i++)
            if (*AT(p->stays, bool, i))
                storages[i].storage = AT(p->holders, ts_holder, i)->storage;
    }
    for (uint32_t k = 0; k < p->varying.count; k++) {
        uint32_t i = *AT(p->varying, uint32_t, k);
        const ts_plan_storage *s = &e->storages[i];
        if (s->outside) {
            storages[i].storage = storage_at(p, inputs, i);
            atomic_fetch_add_explicit(&storages[i].storage->refs, 1, memory_order_relaxed);
        } else if (s->held) {
            TS_TRY(storages[i].storage = ts_storage_new(thread, s->device, s->bytes));
        }
    }
    for (uint32_t i = 0; i < p->leaves.count; i++) {
        const ts_leaf_rule *r = AT(p->leaves, ts_leaf_rule, i);
        if (r->after != TS_GRADIENT_NEW)
            continue;
        if (!r->slot)
            TS_TRY(ts_grad_meta_of(ts_leaf_of(r, inputs)));
        TS_TRY(made[i] = handle_on(thread, storage_at(p, inputs, r->holder), &r->now));
    }
    made += p->leaves.count;
    for (uint32_t i = 0; i < p->outputs.count; i++) {
        const ts_output_rule *r = AT(p->outputs, ts_output_rule, i);
        if (r->kind == TS_OUTPUT_NEW)
            TS_TRY(made[i] = handle_on(thread, storage_at(p, inputs, r->at), &r->layout));
    }
    return TS_OK;
}

/** Writes the versions of written storages. After an error too: some calls have written. */
static void write_versions(const ts_repeat *p, const ts_exec *e)
{
    for (uint32_t i = 0; i < e->nrecorded; i++) {
        const ts_holder *h = AT(p->holders, ts_holder, i);
        ts_storage *s = run_storages(p)[i].storage;
        if (!s || !h->writes)
            continue;
        uint32_t before = h->origin == TS_ORIGIN_FIXED ? h->version
                          : e->storages[i].outside      ? s->version
                                                        : 0;
        s->version = before + h->writes;
        s->writer = h->writer;
    }
}

/** Writes the function's effects: outputs, gradients, variables. */
static void write_effects(const ts_repeat *p, ts_tensor *const *inputs, ts_tensor **outputs,
                          ts_thread *thread)
{
    ts_tensor **made = p->made.data, **results = made + p->leaves.count;
    for (uint32_t i = 0; i < p->outputs.count; i++) {
        const ts_output_rule *r = AT(p->outputs, ts_output_rule, i);
        switch ((ts_output_kind)r->kind) {
        case TS_OUTPUT_NONE: outputs[i] = TS_NONE; break;
        case TS_OUTPUT_INPUT: outputs[i] = inputs[r->at]; break;
        case TS_OUTPUT_SAME: outputs[i] = outputs[r->at]; break;
        case TS_OUTPUT_GRADIENT: outputs[i] = made[r->at]; break;
        case TS_OUTPUT_HANDLE: outputs[i] = r->handle; break;
        case TS_OUTPUT_NEW: outputs[i] = ts_scope_adopt(thread, results[i]); break;
        }
        results[i] = NULL;
    }
    for (uint32_t i = 0; i < p->leaves.count; i++) {
        const ts_leaf_rule *r = AT(p->leaves, ts_leaf_rule, i);
        ts_tensor **slot = ts_leaf_slot(r, ts_leaf_of(r, inputs));
        if (r->after == TS_GRADIENT_KEPT || !slot)
            continue;
        ts_tensor *old = *slot;
        *slot = made[i];
        made[i] = NULL;
        ts_release(old);
    }
}

/** Releases the handles and storages of a run that write_effects() did not hand out. */
static void clean_up(const ts_repeat *p)
{
    ts_tensor **made = p->made.data;
    for (uint32_t i = 0; i < p->made.count; i++)
        if (made[i])
            ts_tensor_unref(made[i]);
    for (uint32_t k = 0; k < p->varying.count; k++) {
        ts_storage *s = run_storages(p)[*AT(p->varying, uint32_t, k)].storage;
        if (s)
            ts_storage_release(s);
    }
}

static ts_status run(ts_compiled *c, ts_exec *e, ts_tensor *const *inputs, ts_tensor **outputs)
{
    ts_repeat *p = e->replay;
    ts_thread *thread = ts_thread_self();
    ts_lazy l = {.compiled = c, .thread = thread, .numbers = p->numbers, .storages = p->storages,
                 .sites = p->sites, .repeat = p,
                 .ahead = c->opts.graph ? &p->predicted : NULL};
    ts_status status = prepare(p, e, thread, inputs);
    if (status == TS_OK) {
        take_numbers(p, p->numbers.data, thread->rng);
        if (l.ahead) {
            take_numbers(p, p->predicted.data,
                         (ts_rng_state){thread->rng.seed, thread->rng.offset + p->drawn});
            undo_counts(p);
        }
        thread->rng.offset += p->drawn;
        status = ts_exec_run(e, &l);
        write_versions(p, e);
        if (status == TS_OK)
            write_effects(p, inputs, outputs, thread);
        else
            undo_counts(p);
    }
    clean_up(p);
    return status;
}

/** True if numbers a and b will be equal in the next run. */
static bool equal_numbers(const ts_repeat *p, uint32_t a, uint32_t b)
{
    const ts_number_rule *rules = p->rules.data;
    const uint64_t *numbers = p->numbers.data;
    uint64_t now[2];
    for (int i = 0; i < 2; i++) {
        uint32_t at = i ? b : a;
        if (rules[at].kind == TS_NUMBER_CELL)
            memcpy(&now[i], rules[at].cell, sizeof now[i]);
        else
            now[i] = rules[at].kind == TS_NUMBER_OFFSET ? rules[at].distance : numbers[at];
    }
    bool drawn = rules[a].kind == TS_NUMBER_OFFSET || rules[b].kind == TS_NUMBER_OFFSET;
    return now[0] == now[1] && (!drawn || rules[a].kind == rules[b].kind);
}

/** True if a number will have these bits in the next run. */
static bool is_known(const ts_repeat *p, const ts_known_number *known)
{
    const ts_number_rule *rule = AT(p->rules, ts_number_rule, known->at);
    uint64_t now = *AT(p->numbers, uint64_t, known->at);
    if (rule->kind == TS_NUMBER_CELL)
        memcpy(&now, rule->cell, sizeof now);
    return now == known->bits && (rule->kind == TS_NUMBER_FIXED || rule->kind == TS_NUMBER_CELL);
}

/** NULL if the numbers of the next run are those on which the plan depends; else a reason. */
static const char *check_numbers(const ts_exec *e)
{
    const ts_equal_numbers *equal = e->equal.data;
    for (uint32_t i = 0; i < e->known.count; i++)
        if (!is_known(e->replay, AT(e->known, ts_known_number, i)))
            return "numbers that were folded differ";
    for (uint32_t i = 0; i < e->equal.count; i++)
        if (!equal_numbers(e->replay, equal[i].a, equal[i].b))
            return "numbers that were equal differ";
    return NULL;
}

/** Finds a plan whose replay is granted and whose guards hold, and locks its leaves; NULL if there
 *  is none, or if this call must run the function to check a replay (opts.verify). The caller holds
 *  c->lock. */
static ts_exec *find(ts_compiled *c, const ts_thread *thread, ts_tensor *const *inputs, int n,
                     lines *log)
{
    struct ts_replay_modes modes = ts_replay_modes_now(thread);
    const char *why = NULL;
    const ts_repeat *failed = NULL; /* the first whose guards fail, because of `why` */
    char text[200];
    for (int64_t i = 0; i < c->nplans; i++) {
        ts_exec *e = c->plans[(i + c->replayed) % c->nplans];
        if (!ts_replay_is_granted(e) || e->replay->busy)
            continue;
        const char *not = ts_replay_check(e->replay, &modes, inputs, n, true);
        if (!not && (not = check_numbers(e)))
            ts_replay_unlock(e->replay, inputs, e->replay->leaves.count);
        if (not && !why) {
            why = not;
            failed = e->replay;
        }
        if (not)
            continue;
        if (c->opts.verify && e->replay->since + 1 >= c->opts.verify) {
            e->replay->since = 0;
            c->verifying = true;
            c->stats.verified++;
            ts_replay_unlock(e->replay, inputs, e->replay->leaves.count);
            return NULL;
        }
        c->replayed = (i + c->replayed) % c->nplans;
        return e;
    }
    if (why) {
        ts_replay_name_miss(failed, &modes, inputs, n, why, text, sizeof text);
        set_cause(c, text, log);
    }
    return NULL;
}

bool ts_replay_call(ts_compiled *c, ts_tensor *const *inputs, int ninputs, ts_tensor **outputs,
                    int noutputs, ts_status *status)
{
    ts_thread *thread = ts_thread_self();
    uint32_t state = atomic_load_explicit(&thread->state, memory_order_relaxed);
    if (c->replay_over || thread->tape || thread->user_code ||
        state & (TS_THREAD_RECORDING | TS_THREAD_WATCHING) ||
        atomic_load_explicit(&ts_anomaly_on, memory_order_relaxed))
        return false;
    for (int i = 0; i < ninputs; i++)
        if (inputs[i] == TS_NONE || !ts_tensor_take_address(inputs[i]))
            return false;
    lines log;
    log.cause[0] = log.warning[0] = log.granted = 0;
    pthread_mutex_lock(&c->lock);
    ts_exec *e = find(c, thread, inputs, ninputs, &log);
    if (e && e->replay->outputs.count == (uint32_t)noutputs) {
        e->runs++;
        e->used = ++c->clock;
        e->replay->busy = true;
        e->replay->since++;
        c->stats.skipped++;
    } else if (e) {
        ts_replay_unlock(e->replay, inputs, e->replay->leaves.count);
        e = NULL;
    }
    pthread_mutex_unlock(&c->lock);
    if (TS_UNLIKELY(log.cause[0]))
        write_lines(c, &log);
    if (!e)
        return false;
    *status = run(c, e, inputs, outputs);
    atomic_fetch_add(&ts_leaf_runs, e->replay->leaves.count);
    ts_replay_unlock(e->replay, inputs, e->replay->leaves.count);
    pthread_mutex_lock(&c->lock);
    e->replay->busy = false;
    e->runs--;
    pthread_mutex_unlock(&c->lock);
    return true;
}
