/** @file recompute.c  Activation checkpoints: the forward of a checkpointed function saves slot
 * numbers instead of tensors, and a backward runs the function again to get the tensors. */
// SPDX-License-Identifier: MIT
#include "autograd/function.h"
#include "include/tessera/check.h"

#include <limits.h>
#include <string.h>

/** A checkpointed function and the arguments of one run of it. */
typedef struct part {
    ts_recompute_fn fn;
    void *ctx;
    ts_tensor **inputs, **outputs;
    int n, m;         /* number of inputs, number of outputs */
    const void *site; /* call site of ts_recompute() */
    ts_tape *tape;    /* the thread's tape while fn runs; NULL: none */
} part;

/** An input of a segment: a saved tensor, or a slot number of the outer segment. */
typedef struct segment_input {
    ts_saved saved;
    ts_shape shape;
    bool requires_grad;
    uint32_t version;     /* storage version before the function ran */
    const ts_node *maker; /* the input's node before the function ran */
} segment_input;

/** One forward of a checkpointed function; the nodes that it recorded own references. */
struct ts_segment {
    _Atomic int32_t refs;
    uint32_t slots;   /* number of slots */
    uint32_t readers; /* nodes with slots, and inner segments whose inputs have slots here */
    bool open;        /* forward is running */
    bool broken;      /* forward failed, or wrote to an input */
    part part;        /* the function; its lists of inputs and outputs are no longer valid */
    void (*release)(void *ctx);
    ts_rng_state rng; /* rng, masks, autocast and device: state of the thread before forward */
    ts_mask_guard masks;
    uint32_t autocast;
    ts_device device;
    ts_segment *outer; /* owned; the segment that has the slots of packed inputs; NULL: no input is
                          packed */
    size_t bytes;      /* size of this block */
    ts_shape *outputs; /* shapes of the part.m outputs */
    segment_input inputs[];
};

/** Tensors recomputed for one segment in one backward. */
struct ts_collected {
    ts_collected *next;
    ts_segment *segment; /* owned */
    uint32_t count;      /* tensors collected */
    uint32_t left;       /* readers that have not run */
    size_t bytes;
    ts_saved kept[]; /* by slot number; segment->slots entries */
};

static const char op_name[] = "recompute";

/** Error: the second run differs from the first. */
#define fail_other(s, format, ...)                                                                 \
    ts_fail_op(TS_ERR_STATE, op_name, (s)->part.site,                                              \
               "the function must do the same each time it runs", "run again, " format,            \
               __VA_ARGS__)

static ts_status fail_shape(const ts_segment *s, const char *what, const ts_shape *expected,
                            const ts_tensor *t)
{
    return fail_other(s, "%s is %s; in the first run it was %s", what, TS_SHAPE_TEXT(t),
                      TS_SHAPE_TEXT(expected));
}

/* --------------------------------------------------------------------------------- tapes ---- */

static void drop_inputs(ts_segment *s)
{
    for (int i = 0; i < s->part.n; i++)
        ts_saved_drop(&s->inputs[i].saved);
}

void ts_segment_unref(ts_segment *s)
{
    if (atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1)
        return;
    drop_inputs(s);
    if (s->outer)
        ts_segment_unref(s->outer);
    if (s->release)
        s->release(s->part.ctx);
    ts_free(&ts_tls, s, s->bytes);
}

static ts_segment *segment_ref(ts_segment *s)
{
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
    return s;
}

/** True if nodes may save t itself: t is a leaf that requires grad, which its owner keeps alive and
 *  whose version is checked. Inputs of the part always get slot numbers, because the second run
 *  gets other handles for them. */
static bool is_held(const ts_tape *tape, const ts_tensor *t)
{
    if (t->node || !(t->flags & TS_TENSOR_REQUIRES_GRAD))
        return false;
    for (int i = 0; i < tape->n; i++)
        if (tape->inputs[i] == t)
            return false;
    return true;
}

/** First run: gives t a slot number. Second run: collects t. op: of the node that saves t. */
static void pack_or_collect(ts_tape *tape, ts_tensor *t, uint16_t op, ts_saved *s)
{
    ts_collected *c = tape->into;
    s->packed = true;
    if (tape->segment)
        s->version = tape->segment->slots++;
    else if (c && c->count++ < c->segment->slots)
        c->kept[c->count - 1] = (ts_saved){ts_tensor_ref(t), t->storage->version, op, false};
}

bool ts_tape_take(ts_tape *tape, ts_node *node, ts_tensor *t, ts_saved *s)
{
    if (is_held(tape, t))
        return false;
    pack_or_collect(tape, t, node->op, s);
    if (tape->segment && !node->segment) {
        node->segment = segment_ref(tape->segment);
        tape->segment->readers++;
    }
    return true;
}

/* ------------------------------------------------------------------------------- forward ---- */

/** Runs the function with its tape and keeps the results in the caller's scope. */
static ts_status run_part(void *ctx)
{
    const part *p = ctx;
    ts_thread *thread = ts_thread_self();
    ts_tape *before = thread->tape;
    ts_status status;
    {
        TS_SCOPE;
        thread->tape = p->tape;
        uint64_t scope = thread->scope->serial;
        status = p->fn(p->ctx, p->inputs, p->n, p->outputs, p->m);
        thread->tape = before;
        status = ts_fail_callback(status, op_name, p->site, "the function");
        status = ts_end_open_scopes(status, scope, op_name, p->site, "the function");
        for (int i = 0; i < p->m && status == TS_OK; i++)
            if (!p->outputs[i])
                status = ts_fail_null(op_name, p->site, "an output of the function");
            else if (ts_tensor_is_dead(p->outputs[i]))
                status = ts_fail_dead(op_name, p->site, "outputs", p->outputs[i]);
        for (int i = 0; i < p->m && status == TS_OK; i++)
            status = TS_STATUS_OF(ts_keep(p->outputs[i]));
    }
    for (int i = 0; i < p->m && status != TS_OK; i++)
        p->outputs[i] = NULL;
    return status;
}

/** A segment for a run of p. Saves the inputs; if the thread has a tape, packs those that the tape
 *  takes. NULL with an error; the caller then releases ctx. */
static ts_segment *segment_new(const part *p, void (*release)(void *))
{
    ts_thread *thread = ts_thread_self();
    size_t bytes =
        sizeof(ts_segment) + (size_t)p->n * sizeof(segment_input) + (size_t)p->m * sizeof(ts_shape);
    ts_segment *s = ts_alloc(thread, bytes);
    if (!s) {
        ts_error_memory("a checkpointed function", (int64_t)bytes);
        return NULL;
    }
    *s = (ts_segment){.open = true,
                      .part = *p,
                      .release = release,
                      .rng = thread->rng,
                      .masks = ts_mask_get(),
                      .autocast = thread->autocast,
                      .device = thread->device,
                      .bytes = bytes};
    atomic_init(&s->refs, 1);
    s->outputs = (ts_shape *)(s->inputs + p->n);
    ts_tape *outer = thread->tape;
    for (int i = 0; i < p->n; i++) {
        segment_input *in = &s->inputs[i];
        ts_tensor *t = p->inputs[i];
        *in = (segment_input){.saved.t = t};
        if (t == TS_NONE)
            continue;
        ts_shape_fill(&in->shape, t);
        in->maker = t->node;
        in->version = in->saved.version = t->storage->version;
        in->requires_grad = t->flags & TS_TENSOR_REQUIRES_GRAD;
        if (!outer || is_held(outer, t)) {
            ts_tensor_ref(t);
            continue;
        }
        in->saved.t = NULL;
        pack_or_collect(outer, t, TS_NODE_FUNCTION, &in->saved);
        if (!s->outer) {
            s->outer = segment_ref(outer->segment);
            outer->segment->readers++;
        }
    }
    return s;
}

/** Error if the function wrote to its inputs, whose values the second run needs. */
static ts_status check_inputs(const ts_segment *s, const part *p)
{
    for (int i = 0; i < p->n; i++) {
        const ts_tensor *t = p->inputs[i];
        const segment_input *in = &s->inputs[i];
        if (t != TS_NONE && (t->storage->version != in->version || t->node != in->maker))
            return ts_fail_op(TS_ERR_AUTOGRAD, op_name, p->site, "write to ts_clone() of it",
                              "the function wrote to input %d, which is needed to run it again", i);
    }
    return TS_OK;
}

/** Replaces the saved inputs by aliases after the first run: the history of an input's gradient, or
 *  of a later write to the input, may own the segment, so a reference could close a cycle. */
static ts_status hold_aliases(ts_segment *s)
{
    for (int i = 0; i < s->part.n; i++) {
        ts_saved *in = &s->inputs[i].saved;
        if (!in->t || in->t == TS_NONE)
            continue;
        ts_tensor *alias = ts_whole_alias(ts_thread_self(), in->t);
        TS_TRY(alias);
        ts_saved_drop(in);
        in->t = alias;
    }
    return TS_OK;
}

/** The first run; the segment owns ctx afterwards. */
static ts_status forward(part *p, void (*release)(void *))
{
    ts_segment *s = segment_new(p, release);
    if (!s) {
        if (release)
            release(p->ctx);
        return ts_error_code();
    }
    p->tape = &(ts_tape){.segment = s, .inputs = p->inputs, .n = p->n};
    ts_status status = run_part(p);
    if (status == TS_OK)
        status = check_inputs(s, p);
    if (status == TS_OK)
        status = hold_aliases(s);
    for (int i = 0; i < p->m; i++)
        if (status == TS_OK)
            ts_shape_fill(&s->outputs[i], p->outputs[i]);
        else
            p->outputs[i] = NULL;
    s->open = false;
    s->broken = status != TS_OK;
    if (s->broken)
        /* the history of an input that the function wrote may own the segment: a cycle */
        drop_inputs(s);
    ts_segment_unref(s);
    return status;
}

/** Runs an inner checkpointed function while the outer one is recomputed. Its nodes save no tensors
 *  for rules, because backward uses the graph of the first run. */
static ts_status run_inside(part *p, ts_tape *tape)
{
    for (int i = 0; i < p->n; i++) /* in the order in which segment_new() packed them */
        if (p->inputs[i] != TS_NONE && !is_held(tape, p->inputs[i]))
            pack_or_collect(tape, p->inputs[i], TS_NODE_FUNCTION, &(ts_saved){0});
    p->tape = &(ts_tape){.inputs = p->inputs, .n = p->n};
    return run_part(p);
}

static ts_status apply(part p, void (*release)(void *))
{
    ts_thread *thread = ts_thread_self();
    ts_tensor **given = p.inputs;
    ts_check_place at = {op_name, p.site};
    ts_status status = p.fn ? ts_check_ends(at, given, p.n, p.outputs, p.m, INT_MAX, "at least 1")
                            : ts_check_null(at, "fn", 0, false);
    size_t bytes = (size_t)(p.n > 0 ? p.n : 0) * sizeof *given;
    /* a copy of the list, because outputs may be the same array */
    p.inputs = status == TS_OK ? ts_alloc(thread, bytes) : NULL;
    if (status == TS_OK && !p.inputs)
        status = ts_error_memory("a function's inputs", (int64_t)bytes);
    for (int i = 0; i < p.n && p.inputs; i++)
        p.inputs[i] = given[i];
    for (int i = 0; i < p.m && p.outputs; i++)
        p.outputs[i] = NULL;
    p.tape = thread->tape;
    if (status == TS_OK && p.tape && !p.tape->segment) {
        status = run_inside(&p, p.tape);
    } else if (status == TS_OK && ts_grad_enabled()) {
        status = forward(&p, release);
        release = NULL;
    } else if (status == TS_OK) {
        status = run_part(&p);
    }
    if (p.inputs)
        ts_free(thread, p.inputs, bytes);
    if (release)
        release(p.ctx);
    return status;
}

ts_status ts_recompute(ts_recompute_fn fn, void *ctx, ts_tensor *const *inputs, int n,
                       ts_tensor **outputs, int m)
{
    const void *site = __builtin_return_address(0);
    return apply((part){fn, ctx, (ts_tensor **)inputs, outputs, n, m, site, NULL}, NULL);
}

ts_status ts_recompute_ex(ts_recompute_fn fn, void *ctx, ts_tensor *const *inputs, int n,
                          ts_tensor **outputs, int m, const ts_recompute_opts *opts)
{
    const void *site = __builtin_return_address(0);
    ts_recompute_opts o;
    TS_TRY(TS_CHECK_OPTS(&o, opts));
    return apply((part){fn, ctx, (ts_tensor **)inputs, outputs, n, m, site, NULL}, o.release);
}

/* --------------------------------------------------------------------------- recomputation ---- */

static ts_status collect(ts_run *run, ts_segment *s, ts_collected **out);

/** Makes input i of the second run: the values and requires_grad of the first, without history. */
static ts_status input_again(ts_run *run, ts_segment *s, int i, ts_collected *outer,
                             ts_tensor **out)
{
    const segment_input *in = &s->inputs[i];
    const ts_saved *saved = in->saved.packed ? &outer->kept[in->saved.version] : &in->saved;
    ts_tensor *t = saved->t;
    if (t == TS_NONE) {
        *out = t;
        return TS_OK;
    }
    if (!t)
        return ts_fail_op(TS_ERR_INTERNAL, op_name, s->part.site, NULL,
                          "input %d of an inner checkpointed function was already freed", i);
    if (!ts_shape_fits(&in->shape, t))
        return fail_shape(s, "an input of an inner checkpointed function", &in->shape, t);
    if (t->storage->version != saved->version) {
        uint16_t writer = t->storage->writer;
        return ts_fail_op(TS_ERR_AUTOGRAD, op_name, s->part.site,
                          "write to ts_clone() of it instead",
                          "input %d is needed to run the function again but was written in place "
                          "since, last by '%s'",
                          i, writer ? ts_op_name(writer) : "ts_data_mut");
    }
    ts_tensor *alias = ts_whole_alias(run->thread, t);
    TS_TRY(alias);
    if (in->requires_grad) {
        alias->flags |= TS_TENSOR_REQUIRES_GRAD;
        alias->keys |= TS_KEYSET(TS_KEY_AUTOGRAD);
    }
    *out = ts_scope_adopt(run->thread, alias);
    return TS_OK;
}

/** Drops the history of collected tensors. */
static ts_status drop_history(ts_run *run, ts_collected *c)
{
    for (uint32_t i = 0; i < c->count; i++) {
        ts_tensor *t = c->kept[i].t;
        if (!t->node && !(t->flags & TS_TENSOR_REQUIRES_GRAD))
            continue;
        ts_tensor *alias = ts_whole_alias(run->thread, t);
        TS_TRY(alias);
        c->kept[i].t = alias;
        ts_tensor_unref(t);
    }
    return TS_OK;
}

/** Runs the function again with the saved thread state, then restores the current state. */
static ts_status run_again(ts_run *run, const ts_segment *s, part *p)
{
    ts_thread *thread = run->thread;
    ts_rng_state rng = thread->rng;
    ts_device device = thread->device;
    ts_mask_guard masks = ts_mask_get();
    ts_keyset tracing = TS_KEYSET(TS_KEY_TRACING); /* tracing keeps its current state */
    thread->rng = s->rng;
    thread->device = s->device;
    thread->include = (s->masks.include & ~tracing) | (masks.include & tracing);
    thread->exclude = (s->masks.exclude & ~tracing) | (masks.exclude & tracing);
    ts_status status = ts_above.run_autocast(s->autocast, run_part, p);
    ts_mask_pop(masks);
    thread->device = device;
    thread->rng = rng;
    return status;
}

static void collected_free(ts_collected *c)
{
    uint32_t slots = c->segment->slots;
    for (uint32_t i = 0; i < c->count && i < slots; i++)
        ts_saved_drop(&c->kept[i]);
    ts_segment_unref(c->segment);
    ts_free(&ts_tls, c, c->bytes);
}
static void collected_end(ts_collected **c)
{
    if (*c)
        collected_free(*c);
}

static ts_collected **find(ts_run *run, const ts_segment *s)
{
    ts_collected **link = &run->collected;
    while (*link && (*link)->segment != s)
        link = &(*link)->next;
    return link;
}

/** Frees the tensors of the segment after its last reader. */
static void reader_done(ts_run *run, const ts_segment *s)
{
    ts_collected **link = find(run, s), *c = *link;
    if (c && --c->left == 0) {
        *link = c->next;
        collected_free(c);
    }
}

/** Runs the function of s again and collects the tensors of its slots in c. */
static ts_status recompute_segment(ts_run *run, ts_segment *s, ts_collected *c)
{
    TS_SCOPE;
    ts_collected *outer = NULL;
    if (s->outer)
        TS_TRY(collect(run, s->outer, &outer));
    part p = s->part;
    size_t bytes = (size_t)(p.n + p.m) * sizeof(ts_tensor *);
    ts_held block TS_HELD = {run->thread, ts_alloc(run->thread, bytes), bytes};
    p.inputs = block.at;
    if (!p.inputs)
        return ts_error_memory("the arguments of a recomputation", (int64_t)bytes);
    memset(p.inputs, 0, bytes);
    p.outputs = p.inputs + p.n;
    p.tape = &(ts_tape){.into = c, .inputs = p.inputs, .n = p.n};
    ts_status status = TS_OK;
    for (int i = 0; i < p.n && status == TS_OK; i++)
        status = input_again(run, s, i, outer, &p.inputs[i]);
    if (status == TS_OK)
        status = run_again(run, s, &p);
    for (int i = 0; i < p.m && status == TS_OK; i++)
        if (!ts_shape_fits(&s->outputs[i], p.outputs[i]))
            status = fail_shape(s, "an output", &s->outputs[i], p.outputs[i]);
    if (status == TS_OK && c->count != s->slots)
        status = fail_other(s, "the second run saved %u tensors for backward, the first run %u",
                            c->count, s->slots);
    if (status == TS_OK)
        status = drop_history(run, c);
    for (int i = 0; i < p.n && status == TS_OK && outer; i++)
        if (s->inputs[i].saved.packed)
            ts_saved_drop(&outer->kept[s->inputs[i].saved.version]);
    if (status == TS_OK && outer)
        reader_done(run, s->outer);
    return status;
}

/** Writes the run's collection of s to *out; computes it at the first call. */
static ts_status collect(ts_run *run, ts_segment *s, ts_collected **out)
{
    *out = *find(run, s);
    if (*out)
        return TS_OK;
    if (s->open)
        return ts_fail_op(
            TS_ERR_AUTOGRAD, op_name, s->part.site, "move the backward out of the function",
            "a backward through the function's ops was started before the function was done");
    if (s->broken)
        return ts_fail_op(TS_ERR_AUTOGRAD, op_name, s->part.site, NULL,
                          "backward through a checkpointed function whose forward failed");
    size_t bytes = sizeof(ts_collected) + s->slots * sizeof(ts_saved);
    ts_collected *c = ts_alloc(run->thread, bytes);
    if (!c)
        return ts_error_memory("recomputed tensors", (int64_t)bytes);
    *c = (ts_collected){.segment = segment_ref(s), .left = s->readers, .bytes = bytes};
    memset(c->kept, 0, s->slots * sizeof *c->kept);
    ts_collected *failed __attribute__((cleanup(collected_end))) = c;
    TS_TRY(recompute_segment(run, s, c));
    failed = NULL;
    c->next = run->collected;
    run->collected = c;
    *out = c;
    return TS_OK;
}

const ts_saved *ts_collected_get(ts_run *run, ts_node *node, const ts_end *packed)
{
    ts_segment *s = node->segment;
    ts_collected *c;
    if (!s) {
        ts_fail_op(TS_ERR_INTERNAL, ts_node_name(node), node->site, NULL,
                   "the rule reads a tensor that no checkpointed function recomputes");
        return NULL;
    }
    c = *find(run, s);
    if (!c) {
        TS_USER_CODE(run, .node = node);
        TS_TRY_NULL(collect(run, s, &c));
    }
    const ts_saved *k = &c->kept[packed->saved.version];
    if (k->op != node->op)
        fail_other(s, "the second run called '%s' where the first called '%s'",
                   k->op == TS_NODE_FUNCTION ? "a function" : ts_op_name(k->op),
                   ts_node_name(node));
    else if (!ts_shape_fits(&packed->shape, k->t))
        fail_shape(s, "a tensor that is saved for backward", &packed->shape, k->t);
    else
        return k;
    return NULL;
}

void ts_collected_done(ts_run *run, ts_node *n)
{
    ts_collected *c = *find(run, n->segment);
    const ts_saved *s;
    for (uint32_t i = 0; c && (s = ts_node_saved(n, i)); i++)
        if (s->packed)
            ts_saved_drop(&c->kept[s->version]);
    reader_done(run, n->segment);
}

void ts_collected_free(ts_run *run)
{
    while (run->collected) {
        ts_collected *c = run->collected;
        run->collected = c->next;
        collected_free(c);
    }
}
