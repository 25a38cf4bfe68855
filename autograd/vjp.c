/** @file vjp.c  What a rule reads and gives. */
// SPDX-License-Identifier: MIT
#include "autograd/recompute.h"
#include "include/tessera/ops.h"
#include "ops/ops.h"

ts_tensor *ts_rule_grad(ts_vjp_call *b, int i) { return b->grads[i]; }

bool ts_rule_needs(const ts_vjp_call *b, int i)
{
    for (uint32_t k = 0; k < b->node->ninputs; k++)
        if (b->node->inputs[k].arg == i && b->node->inputs[k].next)
            return true;
    return false;
}

bool ts_rule_needs_member(const ts_vjp_call *b, int i, int k)
{
    int at = ts_node_input(b->node, i, k);
    return at >= 0 && b->node->inputs[at].next;
}

ts_tensor *ts_unpack(ts_vjp_call *b, ts_tensor *saved, uint32_t version, const char *what)
{
    if (!saved) {
        ts_fail_op(TS_ERR_INTERNAL, ts_node_name(b->node), b->node->site, NULL,
                   "the rule reads %s, which it does not save", what);
        return NULL;
    }
    if (saved->storage && saved->storage->version != version) {
        uint16_t writer = saved->storage->writer;
        ts_fail_op(TS_ERR_AUTOGRAD, ts_node_name(b->node), b->node->site,
                   "write to ts_clone() of it instead",
                   "%s is needed for the gradient but was written in place since, last by '%s' "
                   "(version %u, saved at %u)",
                   what, writer ? ts_op_name(writer) : "ts_data_mut", saved->storage->version,
                   version);
        return NULL;
    }
    return saved;
}

ts_tensor *ts_relink(ts_vjp_call *b, ts_tensor *t, ts_node *maker, int output)
{
    if (!t || !maker || !b->run->record || !ts_dtype_is_float((ts_dtype)t->dtype))
        return t;
    ts_tensor *live = ts_tensor_alias(b->run->thread, t, t->sizes, t->strides, t->ndim, 0);
    if (!live)
        return NULL;
    live->node = ts_node_ref(maker);
    live->output = (uint8_t)output;
    live->flags = t->flags | TS_TENSOR_REQUIRES_GRAD;
    live->keys |= TS_KEYSET(TS_KEY_AUTOGRAD);
    return ts_scope_adopt(b->run->thread, live);
}

/** What a checkpoint computed again for the node, with the checks of what was saved. */
static TS_COLD ts_tensor *unpack_again(ts_vjp_call *b, uint32_t slot, const ts_shape *expected,
                                       const char *what)
{
    const ts_kept *kept = ts_collected_get(b->run, b->node, slot, expected);
    return kept ? ts_unpack(b, kept->t, kept->version, what) : NULL;
}

static TS_COLD ts_tensor *unpack_arg(ts_vjp_call *b, int i, int at)
{
    char what[64];
    snprintf(what, sizeof what, "argument '%s'", ts_ops[b->node->op].schema.args[i].name);
    if (at < 0)
        return ts_unpack(b, NULL, 0, what);
    const ts_input *in = &b->node->inputs[at];
    if (!in->packed)
        return ts_unpack(b, in->saved, in->version, what);
    ts_shape expected = {in->dtype, in->ndim, {0}};
    for (int d = 0; d < in->ndim; d++)
        expected.sizes[d] = in->sizes[d];
    return ts_relink(b, unpack_again(b, in->version, &expected, what), in->next, in->output);
}

ts_tensor *ts_rule_saved_member(ts_vjp_call *b, int i, int k)
{
    if (b->node->args[i].tag == TS_TAG_NONE)
        return TS_NONE;
    int at = ts_node_input(b->node, i, k);
    const ts_input *in = &b->node->inputs[at];
    if (TS_LIKELY(at >= 0 && in->saved && in->saved->storage->version == in->version))
        return in->saved;
    return unpack_arg(b, i, at);
}

ts_tensor *ts_rule_saved_arg(ts_vjp_call *b, int i) { return ts_rule_saved_member(b, i, 0); }

ts_status ts_rule_saved_layout(ts_vjp_call *b, int i, int64_t *strides, int64_t *offset)
{
    int at = ts_node_input(b->node, i, 0);
    const ts_tensor *t = at < 0                       ? NULL
                         : b->node->inputs[at].packed ? ts_rule_saved_arg(b, i)
                                                      : b->node->inputs[at].saved;
    if (!t && at >= 0 && b->node->inputs[at].packed)
        return ts_error_code();
    if (!t)
        return ts_fail_op(TS_ERR_INTERNAL, ts_node_name(b->node), b->node->site, NULL,
                          "the rule asks for the layout of argument %d, which it does not save", i);
    for (int d = 0; d < t->ndim; d++)
        strides[d] = t->strides[d];
    *offset =
        t->data ? (t->data - (char *)t->storage->data) / (int64_t)ts_dtype_sizes[t->dtype] : 0;
    return TS_OK;
}

ts_tensor *ts_rule_saved_ret(ts_vjp_call *b, int i)
{
    const ts_output *o = &b->node->outputs[i];
    ts_tensor *t;
    if (TS_UNLIKELY(o->packed)) {
        ts_shape expected = {o->dtype, o->ndim, {0}};
        for (int d = 0; d < o->ndim; d++)
            expected.sizes[d] = o->sizes[d];
        t = unpack_again(b, o->version, &expected, "the result");
    } else {
        t = ts_unpack(b, o->saved, o->version, "the result");
    }
    /* the weak link is closed only for as long as the rule runs */
    return ts_relink(b, t, b->node, i);
}

const ts_value *ts_rule_arg(const ts_vjp_call *b, int i) { return &b->node->args[i]; }
ts_rng_state ts_rule_rng(const ts_vjp_call *b) { return b->node->rng; }

ts_meta ts_rule_member_meta(const ts_vjp_call *b, int i, int k)
{
    int at = ts_node_input(b->node, i, k);
    if (at < 0)
        return ts_meta_of(NULL, TS_DTYPE_NONE, TS_DEVICE_CPU, 0, 0);
    const ts_input *in = &b->node->inputs[at];
    int64_t numel = 1;
    for (int d = 0; d < in->ndim; d++)
        numel *= in->sizes[d];
    return ts_meta_of(in->sizes, (ts_dtype)in->dtype, in->device, in->ndim, numel);
}

ts_meta ts_rule_arg_meta(const ts_vjp_call *b, int i) { return ts_rule_member_meta(b, i, 0); }

ts_tensor *ts_rule_full(ts_meta m, ts_value value)
{
    return TS_INVOKE(TS_OP_full, V_IS(m.sizes, m.ndim), value, V_DT(m.dtype), V_DEV(m.device));
}

static bool fits_input(const ts_input *in, const ts_tensor *t)
{
    bool fits = in->ndim == t->ndim && in->dtype == t->dtype;
    for (int d = 0; fits && d < t->ndim; d++)
        fits = t->sizes[d] == in->sizes[d];
    return fits;
}

/** g summed to the sizes of an input and cast to its dtype. */
static ts_tensor *reduce_to(const ts_input *in, ts_tensor *g)
{
    bool same = in->ndim == g->ndim;
    for (int d = 0; same && d < g->ndim; d++)
        same = in->sizes[d] == g->sizes[d];
    if (!same)
        g = ts_sum_to_size(g, in->sizes, in->ndim);
    return g && g->dtype != in->dtype ? ts_to(g, (ts_dtype)in->dtype) : g;
}

ts_status ts_rule_give_member(ts_vjp_call *b, int i, int k, ts_tensor *grad)
{
    TS_TRY(grad);
    int at = ts_node_input(b->node, i, k);
    const ts_input *in = at < 0 ? NULL : &b->node->inputs[at];
    bool fits = in && fits_input(in, grad);
    if (!fits && in && in->ndim <= grad->ndim) { /* it was broadcast or promoted */
        grad = reduce_to(in, grad);
        TS_TRY(grad);
        fits = fits_input(in, grad);
    }
    if (!fits) {
        char got[192], want[192];
        return ts_fail_op(
            TS_ERR_INTERNAL, ts_node_name(b->node), b->node->site, NULL,
            "the gradient of argument %d is %s %s, expected %s %s", i,
            ts_format_sizes(got, sizeof got, grad->sizes, grad->ndim),
            ts_dtype_name((ts_dtype)grad->dtype),
            ts_format_sizes(want, sizeof want, in ? in->sizes : NULL, in ? in->ndim : 0),
            ts_dtype_name(in ? (ts_dtype)in->dtype : TS_DTYPE_NONE));
    }
    b->given[at] = grad;
    return TS_OK;
}

ts_status ts_rule_give(ts_vjp_call *b, int i, ts_tensor *grad)
{
    return ts_rule_give_member(b, i, 0, grad);
}

ts_tensor *ts_rule_reduce_to(ts_vjp_call *b, int i, ts_tensor *g)
{
    int at = ts_node_input(b->node, i, 0);
    return g && at >= 0 ? reduce_to(&b->node->inputs[at], g) : g;
}
