/**
 * @file record.c  The AUTOGRAD layer: redispatches, then attaches a node
 * that keeps what the rule needs.
 *
 * One kernel serves all ops: it is the fallback of the AUTOGRAD key. Everything that can fail is
 * done before the call goes on, so a failed recording never leaves a written tensor behind.
 */
// SPDX-License-Identifier: MIT
#include "autograd/anomaly.h"
#include "autograd/recompute.h"
#include "core/recorder.h"

#include <string.h>

TS_INLINE bool requires_grad(const ts_tensor *t) { return t->flags & TS_TENSOR_REQUIRES_GRAD; }

/* ------------------------------------------------------------------- the in-place rule ---- */

static ts_status refuse_write(const char *op, const void *site, const char *what, const char *why)
{
    return ts_fail_op(TS_ERR_AUTOGRAD, op, site,
                      "write to ts_clone() of it, use ts_slice_scatter() for a part, or wrap the "
                      "write in TS_NO_GRAD",
                      "cannot write %s in place: it %s", what, why);
}

static ts_status refuse(const ts_frame *f, const char *what, const char *why)
{
    return refuse_write(ts_op_name(f->op), f->site, what, why);
}

ts_status ts_check_write(const char *op, const void *site, const ts_tensor *t, const char *what)
{
    if (requires_grad(t) && !t->node)
        return refuse_write(op, site, what, "is a leaf that requires grad");
    if (t->flags & TS_TENSOR_VIEW)
        return refuse_write(op, site, what, "is a view");
    if (atomic_load_explicit(&t->storage->refs, memory_order_relaxed) > 1)
        return refuse_write(op, site, what, "shares its memory with another live tensor");
    return TS_OK;
}

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
        const ts_value *v = &f->args[i];
        uint32_t n = v->tag == TS_TAG_TENSOR ? 1 : v->tag == TS_TAG_TENSORS ? v->count : 0;
        for (uint32_t k = 0; k < n; k++) {
            const ts_tensor *t = v->tag == TS_TAG_TENSOR ? v->t : v->list[k];
            if (requires_grad(t))
                return refuse(f, f->table->info->schema.args[i].name, "requires grad");
        }
    }
    return TS_OK;
}

/* -------------------------------------------------------------------------------- nodes ---- */

static size_t ints_bytes(const ts_value *v)
{
    return v->tag == TS_TAG_INTS ? v->count * sizeof(int64_t) : 0;
}
static size_t string_bytes(const ts_value *v)
{
    return v->tag == TS_TAG_STRING ? (strlen(v->str) + 8) & ~(size_t)7 : 0;
}

/** A node with room for the call's arguments; inputs are filled but nothing is saved. */
static ts_node *node_new(const ts_frame *f)
{
    uint32_t ninputs = 0;
    size_t tail = 0, trail = ts_trail_bytes();
    for (int i = 0; i < f->nargs; i++) {
        const ts_value *v = &f->args[i];
        ninputs += v->tag == TS_TAG_TENSOR ? 1 : v->tag == TS_TAG_TENSORS ? v->count : 0;
        tail += ints_bytes(v) + string_bytes(v);
    }
    size_t bytes = sizeof(ts_node) + f->nargs * sizeof(ts_value) +
                   (size_t)ninputs * sizeof(ts_input) + f->nrets * sizeof(ts_output) + tail + trail;
    ts_node *n = bytes <= UINT32_MAX ? ts_alloc(f->thread, bytes) : NULL;
    if (!n) {
        ts_fail_memory("a node of the graph", (int64_t)bytes);
        return NULL;
    }
    atomic_init(&n->refs, 1);
    n->op = f->op;
    n->nargs = f->nargs;
    n->nrets = f->nrets;
    n->saves = n->guarded = n->freed = n->trail = false;
    atomic_init(&n->owner, 0);
    n->ninputs = ninputs;
    n->bytes = (uint32_t)bytes;
    n->seq = 0;
    n->vjp = f->table->vjp;
    n->site = f->site;
    n->rng = f->rng;
    n->leaf = NULL;
    n->hooks = NULL;
    n->inputs = (ts_input *)(n + 1);
    n->outputs = (ts_output *)(n->inputs + ninputs);
    n->args = (ts_value *)(n->outputs + f->nrets);
    char *p = (char *)(n->args + f->nargs);
    int k = 0;
    for (int i = 0; i < f->nargs; i++) {
        const ts_value *v = &f->args[i];
        n->args[i] = *v;
        if (v->tag == TS_TAG_INTS) {
            if (v->count) /* an empty list may be NULL */
                memcpy(p, v->ints, ints_bytes(v));
            n->args[i].ints = (int64_t *)p;
            p += ints_bytes(v);
        } else if (v->tag == TS_TAG_STRING) {
            strcpy(p, v->str);
            n->args[i].str = p;
            p += string_bytes(v);
        }
        uint32_t count = v->tag == TS_TAG_TENSOR ? 1 : v->tag == TS_TAG_TENSORS ? v->count : 0;
        for (uint32_t m = 0; m < count; m++, k++) {
            ts_input_fill(&n->inputs[k], i, v->tag == TS_TAG_TENSOR ? v->t : v->list[m]);
        }
    }
    for (int i = 0; i < f->nrets; i++) {
        n->outputs[i].saved = NULL;
        n->outputs[i].packed = false;
        n->outputs[i].ndim = 0;
    }
    if (TS_UNLIKELY(trail))
        ts_trail_take(n);
    return n;
}

/** Edges to the makers of the inputs, and the saved arguments. Before the call: may fail. */
static ts_status node_connect(ts_node *n, const ts_frame *f, uint32_t *reads)
{
    uint64_t seq = f->thread->seq;
    const ts_vjp *vjp = n->vjp;
    *reads = vjp ? vjp->always : 0;
    int k = 0;
    for (int i = 0; i < f->nargs; i++) {
        const ts_value *v = &f->args[i];
        uint32_t count = v->tag == TS_TAG_TENSOR ? 1 : v->tag == TS_TAG_TENSORS ? v->count : 0;
        for (uint32_t m = 0; m < count; m++, k++) {
            ts_tensor *t = v->tag == TS_TAG_TENSOR ? v->t : v->list[m];
            if (!requires_grad(t) || !ts_dtype_is_float((ts_dtype)t->dtype))
                continue;
            ts_node *next = ts_gradient_node(t);
            if (!next)
                return ts_error_code();
            n->inputs[k].next = ts_node_ref(next);
            n->inputs[k].output = t->output;
            seq = seq > next->seq ? seq : next->seq;
            if (vjp)
                *reads |= vjp->saves[i];
        }
    }
    n->seq = f->thread->seq = seq + 1;
    n->saves = n->guarded = *reads != 0;
    for (uint32_t left = *reads & (TS_SAVE_RET(0) - 1); left; left &= left - 1) {
        int i = __builtin_ctz(left);
        const ts_value *v = &f->args[i];
        uint32_t count = v->tag == TS_TAG_TENSOR ? 1 : v->tag == TS_TAG_TENSORS ? v->count : 0;
        k = count ? ts_node_input(n, i, 0) : 0;
        for (uint32_t m = 0; m < count; m++, k++) {
            ts_tensor *t = v->tag == TS_TAG_TENSOR ? v->t : v->list[m];
            ts_input *in = &n->inputs[k];
            if (TS_UNLIKELY(f->thread->tape != NULL) &&
                ts_tape_take(f->thread->tape, n, t, &in->version)) {
                in->packed = true;
                continue;
            }
            bool overwritten = (f->given & 1) && f->rets[0].t == t;
            /* an alias of what this very call overwrites: no cycle,
             * and unpacking it names the write */
            in->saved = overwritten
                            ? ts_tensor_alias(f->thread, t, t->sizes, t->strides, t->ndim, 0)
                            : ts_tensor_ref(t);
            if (!in->saved)
                return ts_error_code();
            in->version = t->storage->version;
        }
    }
    /* in place nothing may fail behind the write, so the alias
     * of the result is made in front of it */
    for (int i = 0; f->given >> i; i++) {
        ts_tensor *t = f->rets[i].t;
        if ((f->given >> i & 1) && (*reads & TS_SAVE_RET(i)) && !f->thread->tape &&
            !(n->outputs[i].saved =
                  ts_tensor_alias(f->thread, t, t->sizes, t->strides, t->ndim, 0)))
            return ts_error_code();
    }
    return TS_OK;
}

/** After the call: results get the node, and the rule its results.
 * The alias of a new one may fail. */
static ts_status node_attach(ts_node *n, ts_frame *f, uint32_t reads, uint8_t wanted)
{
    for (int i = 0; i < f->nrets; i++) {
        if (f->rets[i].tag != TS_TAG_TENSOR)
            continue;
        ts_tensor *t = f->rets[i].t;
        ts_output *o = &n->outputs[i];
        ts_output_fill(o, t);
        bool extra = !(wanted >> i & 1) && !(f->given >> i & 1);
        if (TS_UNLIKELY(f->thread->tape != NULL) && (reads & TS_SAVE_RET(i)) &&
            ts_tape_take(f->thread->tape, n, t, &o->version)) {
            o->packed = true;
            if (extra) {
                TS_TELL(f->thread, extra, i, t);
                ts_tensor_unref(t);
            }
        } else if (reads & TS_SAVE_RET(i)) {
            if (extra) {
                o->saved = t; /* made for the rule only */
                TS_TELL(f->thread, extra, i, t);
            } else if (!o->saved && !(o->saved = ts_tensor_alias(f->thread, t, t->sizes, t->strides,
                                                                 t->ndim, 0))) {
                return ts_error_code();
            }
            if (o->saved)
                o->saved->flags = t->flags;
            o->version = t->storage->version;
        } else if (extra) {
            ts_tensor_unref(t);
        }
        if (extra)
            f->rets[i] = ts_value_none();
    }
    for (int i = 0; i < f->nrets; i++) {
        ts_tensor *t = f->rets[i].tag == TS_TAG_TENSOR ? f->rets[i].t : NULL;
        if (!t || !ts_dtype_is_float((ts_dtype)t->dtype))
            continue;
        ts_node_attach(n, t, i);
    }
    return TS_OK;
}

static bool any_requires_grad(const ts_frame *f)
{
    for (int i = 0; i < f->nargs; i++) {
        const ts_value *v = &f->args[i];
        if (v->tag == TS_TAG_TENSOR && requires_grad(v->t))
            return true;
        for (uint32_t k = 0; v->tag == TS_TAG_TENSORS && k < v->count; k++)
            if (requires_grad(v->list[k]))
                return true;
    }
    return false;
}

/** The composite with AUTOGRAD on: its ops record themselves, also in a trace of calls. */
static ts_status by_parts(ts_frame *f)
{
    ts_recorder *r = f->thread->recorder;
    ts_keyset exclude = f->thread->exclude;
    uint32_t region = TS_UNLIKELY(r != NULL) ? r->parts(r, f) : TS_NO_REGION;
    ts_status status = ts_run_parts(f, f->table->info->composite);
    if (TS_UNLIKELY(region != TS_NO_REGION)) {
        r->parts_end(r, region, f);
        f->thread->exclude = exclude;
    }
    return status;
}

/** The AUTOGRAD layer of every op. */
ts_status ts_record(ts_frame *f)
{
    const ts_op_info *info = f->table->info;
    bool inputs = any_requires_grad(f);
    if (info->flags & TS_OP_NODIFF || !inputs) {
        if (f->given || f->table->written)
            TS_TRY(check_writes(f, false));
        return ts_redispatch(f);
    }
    if ((info->flags & TS_OP_BY_PARTS) && !f->table->vjp) {
        if (f->given)
            return refuse(f, "'out'", "takes part in recording; this op has no in-place gradient");
        return by_parts(f);
    }
    if (f->given || f->table->written)
        TS_TRY(check_writes(f, true));

    ts_node *n = node_new(f);
    if (!n)
        return TS_ERR_MEMORY;
    uint32_t reads;
    uint8_t want = f->want;
    ts_status status = node_connect(n, f, &reads);
    if (status == TS_OK) {
        if (n->vjp)
            f->want |= n->vjp->want;
        status = ts_redispatch(f);
        f->want = want;
    }
    if (status == TS_OK) {
        status = node_attach(n, f, reads, want);
        if (status != TS_OK) /* out of memory for an alias: results without history would lie */
            for (int i = 0; i < f->nrets; i++)
                if (f->rets[i].tag == TS_TAG_TENSOR && !(f->given >> i & 1)) {
                    ts_tensor_unref(f->rets[i].t);
                    f->rets[i] = ts_value_none();
                }
    }
    ts_node_unref_new(n); /* results hold it now, or nobody */
    return status;
}
