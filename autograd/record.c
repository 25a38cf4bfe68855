/**
 * @file record.c  The AUTOGRAD layer: redispatches, then attaches a node with the tensors that the
 * rule reads.
 *
 * One kernel serves all ops: it is the fallback of the AUTOGRAD key. In a call that writes to given
 * tensors, everything that can fail runs before redispatch, so no write is left without its record.
 */
// SPDX-License-Identifier: MIT
#include "autograd/recompute.h"
#include "core/recorder.h"
#include "dispatch/entries.h"
#include "dispatch/timers.h"
#include "include/tessera/ops.h"

#include <string.h>

TS_INLINE bool requires_grad(const ts_tensor *t) { return t->flags & TS_TENSOR_REQUIRES_GRAD; }

/* ------------------------------------------------------------------- the in-place rule ---- */

static const char instead[] = "write to ts_clone() of it, use ts_slice_scatter() for a part, or "
                              "wrap the write in TS_NO_GRAD";

static ts_status refuse_write(const char *op, const void *site, const char *what, const char *why)
{
    return ts_fail_op(TS_ERR_AUTOGRAD, op, site, instead, "cannot write %s in place: it %s", what,
                      why);
}

static ts_status refuse(const ts_frame *f, const char *what, const char *why)
{
    return refuse_write(ts_op_name(f->op), f->site, what, why);
}

/** Refuses member k of argument i, which the op writes. */
static ts_status refuse_argument(const ts_frame *f, int i, uint32_t k, const ts_tensor *t)
{
    int64_t member = f->args[i].tag == TS_TAG_TENSORS ? (int64_t)k : -1;
    return ts_fail_member(f, i, member, TS_ERR_AUTOGRAD, instead,
                          "expected a tensor that does not require grad, got %s that requires grad",
                          TS_SHAPE_TEXT(t));
}

ts_status ts_check_write(const char *op, const void *site, const ts_tensor *t, const char *what)
{
    if (requires_grad(t) && !t->node)
        return refuse_write(op, site, what, "is a leaf that requires grad");
    if (t->flags & TS_TENSOR_VIEW)
        return refuse_write(op, site, what, "is a view");
    if (ts_storage_shared(t->storage))
        return refuse_write(op, site, what, "shares its memory with another live tensor");
    return TS_OK;
}

/** TS_ERR_AUTOGRAD if the call must not write to a destination or to an argument that the op
 *  writes. records: the call gets a node. */
static ts_status check_writes(const ts_frame *f, bool records)
{
    for (int i = 0; i < f->nrets; i++) {
        if (!(f->given >> i & 1))
            continue;
        const ts_tensor *out = f->rets[i].t;
        bool in_place = f->nargs && f->args[0].tag == TS_TAG_TENSOR && f->args[0].t == out;
        if (records && !in_place)
            return refuse(f, "'out'", "takes part in recording; out= forms have no gradient");
        if (!records && !requires_grad(out))
            continue;
        TS_TRY(ts_check_write(ts_op_name(f->op), f->site, out, in_place ? "'self'" : "'out'"));
        if (!records)
            return refuse(f, in_place ? "'self'" : "'out'", "has a history that this op would cut");
    }
    for (int i = 0; f->table->written >> i; i++) {
        if (!(f->table->written >> i & 1))
            continue;
        uint32_t n;
        ts_tensor *const *members = ts_value_members(&f->args[i], &n);
        for (uint32_t k = 0; k < n; k++)
            if (requires_grad(members[k]))
                return refuse_argument(f, i, k, members[k]);
    }
    return TS_OK;
}

/* -------------------------------------------------------------------------------- nodes ---- */

/** The arguments that need gradients, and the sizes of a node for the call. */
typedef struct need {
    uint32_t inputs; /* number of tensors, members of lists included */
    uint32_t grads;  /* bit i: argument i requires grad */
    size_t tail;     /* bytes of lists of ints and of strings */
} need;

static size_t tail_bytes(const ts_value *v)
{
    return v->tag == TS_TAG_INTS     ? v->count * sizeof(int64_t)
           : v->tag == TS_TAG_STRING ? (strlen(v->str) + 8) & ~(size_t)7
                                     : 0;
}

TS_INLINE need measure(const ts_frame *f)
{
    need need = {0};
    for (int i = 0; i < f->nargs; i++) {
        const ts_value *v = &f->args[i];
        if (TS_LIKELY(v->tag == TS_TAG_TENSOR)) {
            need.inputs++;
            if (requires_grad(v->t))
                need.grads |= 1u << i;
        } else if (v->tag == TS_TAG_TENSORS) {
            need.inputs += v->count;
            for (uint32_t k = 0; k < v->count; k++)
                need.grads |= (uint32_t)requires_grad(v->list[k]) << i;
        } else if (v->tag > TS_TAG_TENSORS) {
            need.tail += tail_bytes(v);
        }
    }
    return need;
}

/** TS_SAVE_* bits of the arguments and results that the rule reads if the arguments in `grads` need
 *  gradients. */
TS_INLINE uint32_t reads_of(const ts_vjp *vjp, uint32_t grads)
{
    uint32_t reads = vjp ? vjp->always : 0;
    for (; vjp && grads; grads &= grads - 1)
        reads |= vjp->saves[__builtin_ctz(grads)];
    return reads;
}

/** Copies the list or text of a plain argument into the node. */
static char *keep_plain(ts_value *v, char *p)
{
    size_t bytes = tail_bytes(v);
    if (v->tag == TS_TAG_INTS) {
        if (v->count) /* an empty list may be NULL */
            memcpy(p, v->ints, bytes);
        v->ints = (int64_t *)p;
    } else if (v->tag == TS_TAG_STRING) {
        v->str = strcpy(p, v->str);
    }
    return p + bytes;
}

/** A copy, with history, of the tensor that the call is about to overwrite; one reference. NULL
 *  with an error. */
static TS_COLD ts_tensor *old_value(const ts_frame *f, const ts_tensor *t)
{
    ts_thread *thread = f->thread;
    ts_keyset exclude = thread->exclude;
    thread->exclude |= TS_KEYSET(TS_KEY_AUTOGRAD);
    if (thread->recorder)
        thread->recorder->before(thread->recorder);
    ts_tensor *copy = ts_clone((ts_tensor *)t);
    thread->exclude = exclude;
    TS_TRY_NULL(copy);
    ts_scope_disown(copy);
    if (t->node) {
        copy->node = ts_node_ref(t->node);
        copy->output = t->output;
        copy->flags |= TS_TENSOR_REQUIRES_GRAD;
        copy->keys |= TS_KEYSET(TS_KEY_AUTOGRAD);
    }
    return copy;
}

/** Saves t for the rule if the call overwrites it (then as a copy, made once per call) or if the
 *  thread has a tape, which may store a slot number instead. */
static TS_COLD ts_status save_rare(ts_node *n, const ts_frame *f, ts_end *in, ts_tensor *t,
                                   bool overwritten)
{
    ts_tensor *saved = overwritten && in > n->inputs ? n->inputs->saved.t : NULL;
    if (!overwritten || saved)
        saved = ts_tensor_ref(saved ? saved : t);
    else
        TS_TRY(saved = old_value(f, t));
    if (ts_saved_pack(f->thread, n, saved, &in->saved)) {
        ts_tensor_unref(saved);
        return TS_OK;
    }
    in->saved.t = saved;
    in->saved.version = saved->storage->version;
    ts_storage_own(saved->storage, TS_OWNER_SAVED);
    return TS_OK;
}

/** Fills *in, the node's next input, for t, and saves t if the rule reads it. */
TS_INLINE ts_status connect(ts_node *n, const ts_frame *f, ts_end *in, ts_tensor *t, bool read)
{
    TS_TRY(ts_node_add_input(n, in, t, true));
    if (!read)
        return TS_OK;
    bool overwritten = (f->given & 1) && f->rets[0].t == t;
    if (TS_UNLIKELY(overwritten || f->thread->tape))
        return save_rare(n, f, in, t, overwritten);
    in->saved.t = ts_tensor_ref(t);
    in->saved.version = t->storage->version;
    ts_storage_own(t->storage, TS_OWNER_SAVED);
    return TS_OK;
}

static __attribute__((noinline)) ts_status connect_list(ts_node *n, const ts_frame *f, ts_end *in,
                                                        const ts_value *v, bool read)
{
    for (uint32_t k = 0; k < v->count; k++)
        TS_TRY(connect(n, f, in + k, v->list[k], read));
    return TS_OK;
}

/** Copies arguments, adds edges to the tensors' nodes, and saves the arguments that the rule reads.
 *  May fail. */
TS_INLINE ts_status node_connect(ts_node *n, const ts_frame *f, uint32_t reads)
{
    const ts_value *v = f->args;
    ts_value *args = n->args;
    ts_end *in = n->inputs;
    char *p = (char *)(args + f->nargs);
    n->saves = n->guarded = reads != 0;
    for (int i = 0; i < f->nargs; i++, v++, args++) {
        *args = *v;
        if (TS_LIKELY(v->tag == TS_TAG_TENSOR)) {
            args->t = (void *)in;
            TS_TRY(connect(n, f, in++, v->t, reads >> i & 1));
        } else if (v->tag == TS_TAG_TENSORS) {
            args->t = (void *)in;
            TS_TRY(connect_list(n, f, in, v, reads >> i & 1));
            in += v->count;
        } else if (v->tag > TS_TAG_TENSORS) {
            p = keep_plain(args, p);
        }
    }
    f->thread->seq = ++n->seq;
    return TS_OK;
}

/** Saves the results that the rule reads, and removes results that only the rule requested from the
 * call. Making the alias of a new result may fail. */
static __attribute__((noinline)) ts_status node_save_results(ts_node *n, ts_frame *f,
                                                             uint32_t reads)
{
    for (int i = 0; i < f->nrets; i++) {
        if (f->rets[i].tag != TS_TAG_TENSOR)
            continue;
        ts_tensor *t = f->rets[i].t;
        ts_saved *s = &n->outputs[i].saved;
        bool extra = !((f->want | f->given) >> i & 1), read = reads & TS_SAVE_RET(i);
        if (extra) { /* the node keeps its meta, and the tensor if the rule reads it */
            ts_shape_fill(&n->outputs[i].shape, t);
            f->rets[i] = ts_value_none();
            if (read)
                TS_REPORT_EVENT(f->thread, extra, i, t);
        }
        if (read && !ts_saved_pack(f->thread, n, t, s)) {
            if (!s->t && !(s->t = extra ? ts_tensor_ref(t) : ts_whole_alias(f->thread, t)))
                return ts_error_code();
            s->t->flags = t->flags;
            s->version = t->storage->version;
            ts_storage_own(t->storage, TS_OWNER_SAVED);
        }
        if (extra)
            ts_tensor_unref(t);
    }
    return TS_OK;
}

/** Replaces result i by an alias if a layer below gave an argument as the result, because the
 *  argument keeps its own history. NULL with an error. */
static TS_COLD ts_tensor *own_handle(ts_frame *f, int i)
{
    ts_tensor *t = f->rets[i].t;
    if (!ts_is_argument(f, t))
        return t;
    ts_tensor *alias = ts_tensor_alias(f->thread, t, t->sizes, t->strides, t->ndim, 0);
    TS_TRY_NULL(alias);
    ts_tensor_unref(t);
    f->rets[i] = ts_value_tensor(alias);
    return alias;
}

/** After the call: saves the results that the rule reads and attaches the node to the results. */
TS_INLINE ts_status node_attach(ts_node *n, ts_frame *f, uint32_t reads)
{
    if (reads >= TS_SAVE_RET(0))
        TS_TRY(node_save_results(n, f, reads));
    for (int i = 0; i < f->nrets; i++) {
        if (f->rets[i].tag != TS_TAG_TENSOR)
            continue;
        ts_tensor *t = f->rets[i].t;
        bool shared = atomic_load_explicit(&t->refs, memory_order_relaxed) != 1;
        if (TS_UNLIKELY(shared) && !(f->given >> i & 1))
            TS_TRY(t = own_handle(f, i));
        ts_shape_fill(&n->outputs[i].shape, t);
        if (TS_LIKELY(t->dtype <= TS_F16))
            ts_node_attach(n, t, i);
    }
    return TS_OK;
}

/** Runs the call, saves the results that the rule reads and attaches the node. If that fails,
 *  releases the results, since they would lack their history. */
TS_INLINE ts_status run_recorded(ts_node *n, ts_frame *f, uint32_t reads)
{
    uint8_t want = f->want;
    if (reads >= TS_SAVE_RET(0))
        f->want |= (uint8_t)(reads / TS_SAVE_RET(0) & ~f->given);
    ts_status status = ts_redispatch(f);
    f->want = want;
    if (status == TS_OK && (status = node_attach(n, f, reads)) != TS_OK)
        ts_drop_results(f, status);
    return status;
}

/** run_recorded() for a call that writes to given tensors. It must not fail after the write, so the
 *  aliases of saved results are made before. */
static TS_COLD ts_status run_in_place(ts_node *n, ts_frame *f, uint32_t reads)
{
    const ts_node *before[TS_MAX_RETS] = {0};
    for (int i = 0; f->given >> i; i++) {
        if (!(f->given >> i & 1))
            continue;
        before[i] = f->rets[i].t->node;
        if ((reads & TS_SAVE_RET(i)) && !f->thread->tape &&
            !(n->outputs[i].saved.t = ts_whole_alias(f->thread, f->rets[i].t)))
            return ts_error_code();
    }
    TS_TRY(run_recorded(n, f, reads));
    for (int i = 0; f->given >> i; i++)
        if (f->given >> i & 1)
            ts_break_write_cycle(f->rets[i].t, before[i]);
    return TS_OK;
}

/** Runs the composite with the arguments' old values and copies its results, with their history, to
 *  the given destinations. */
static TS_COLD ts_status parts_in_place(ts_frame *f)
{
    TS_SCOPE;
    ts_value args[TS_MAX_ARGS], rets[TS_MAX_RETS];
    memcpy(args, f->args, f->nargs * sizeof *args);
    for (int i = 0; i < f->nrets; i++) {
        rets[i] = ts_value_none();
        ts_tensor *old = NULL;
        for (int a = 0; a < f->nargs && (f->given >> i & 1); a++)
            if (args[a].tag == TS_TAG_TENSOR && args[a].t == f->rets[i].t) {
                if (!old) {
                    TS_TRY(old = old_value(f, args[a].t));
                    ts_scope_adopt(f->thread, old);
                }
                args[a] = ts_value_tensor(old);
            }
    }
    ts_frame parts = *f;
    parts.args = args;
    parts.rets = rets;
    parts.given = 0;
    TS_TRY(ts_run_parts(&parts, f->table->info->composite));
    for (int i = 0; i < f->nrets; i++)
        if (rets[i].tag == TS_TAG_TENSOR)
            ts_scope_adopt(f->thread, rets[i].t);
    for (int i = 0; i < f->nrets; i++) /* all checks before the first write */
        if (f->given >> i & 1)
            TS_TRY(ts_check_fits_result(f, f->rets[i].t,
                                        &(ts_meta){rets[i].t->sizes, rets[i].t->numel,
                                                   {rets[i].t->kind}}));
    for (int i = 0; i < f->nrets; i++) {
        if (!(f->given >> i & 1))
            continue;
        TS_NO_GRAD;
        TS_TRY(ts_copy_(f->rets[i].t, rets[i].t));
    }
    for (int i = 0; i < f->nrets; i++) {
        ts_tensor *y = rets[i].tag == TS_TAG_TENSOR ? rets[i].t : NULL;
        if (!(f->given >> i & 1))
            f->rets[i] = y ? ts_value_tensor(ts_tensor_ref(y)) : rets[i];
        else if (y->node) {
            const ts_node *before = f->rets[i].t->node;
            ts_node_attach(y->node, f->rets[i].t, y->output);
            ts_break_write_cycle(f->rets[i].t, before);
        }
    }
    return TS_OK;
}

/** Runs the composite with AUTOGRAD on, so that its ops are recorded, as parts of a region in a
 *  trace. */
static __attribute__((noinline)) ts_status by_parts(ts_frame *f)
{
    ts_recorder *r = f->thread->recorder;
    ts_keyset exclude = f->thread->exclude;
    uint32_t region = TS_UNLIKELY(r != NULL) ? r->parts(r, f) : TS_NO_REGION;
    ts_status status = f->given ? parts_in_place(f) : ts_run_parts(f, f->table->info->composite);
    if (TS_UNLIKELY(region != TS_NO_REGION)) {
        r->parts_end(r, region, f);
        f->thread->exclude = exclude;
    }
    return status;
}

/** The AUTOGRAD layer of every op. */
ts_status ts_record(ts_frame *f)
{
    uint32_t flags = f->table->info->flags;
    need need = measure(f);
    if ((flags & TS_OP_NODIFF) || !need.grads) {
        if (f->given || f->table->written)
            TS_TRY(check_writes(f, false));
        return ts_redispatch(f);
    }
    if ((flags & TS_OP_BY_PARTS) && !f->table->vjp) {
        if (f->given)
            TS_TRY(check_writes(f, true));
        return by_parts(f);
    }
    if (f->given || f->table->written)
        TS_TRY(check_writes(f, true));

    ts_node *n = ts_node_new(f->thread, f->op, f->nargs, need.inputs, f->nrets, need.tail, f->site);
    if (!n)
        return TS_ERR_MEMORY;
    n->vjp = f->table->vjp;
    n->rng = f->rng;
    n->needs = (uint16_t)need.grads;
    uint32_t reads = reads_of(n->vjp, need.grads);
    ts_status status = node_connect(n, f, reads);
    n->scope = (uint16_t)ts_timer_scope(f->thread, n->seq);
    if (status == TS_OK)
        status = TS_UNLIKELY(f->given) ? run_in_place(n, f, reads) : run_recorded(n, f, reads);
    ts_node_unref_new(n); /* only results hold it now */
    return status;
}
