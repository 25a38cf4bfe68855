/** @file vjp.c  Functions that gradient rules call to read saved values and to give gradients. */
// SPDX-License-Identifier: MIT
#include "autograd/recompute.h"
#include "include/tessera/ops.h"
#include "ops/ops.h"

/** Records TS_ERR_INTERNAL for an index that the op does not have. */
static TS_COLD ts_status fail_index(const ts_vjp_call *b, const char *function, const char *what,
                                    int i)
{
    return ts_fail_op(TS_ERR_INTERNAL, ts_node_name(b->node), b->node->site, NULL,
                      "%s: argument 'i': expected the index of %s, got %d", function, what, i);
}

ts_tensor *ts_rule_grad(ts_vjp_call *b, int i)
{
    TS_TRY_NULL(TS_CHECK_LENT(b, "call"));
    if (TS_LIKELY((unsigned)i < b->node->nrets))
        return b->grads[i];
    fail_index(b, "rule_grad", "a result", i);
    return NULL;
}

bool ts_rule_needs(const ts_vjp_call *b, int i)
{
    return TS_CHECK_LENT(b, "call") == TS_OK && (unsigned)i < b->node->nargs &&
           b->node->needs >> i & 1;
}

bool ts_rule_needs_member(const ts_vjp_call *b, int i, int k)
{
    if (TS_CHECK_LENT(b, "call") != TS_OK)
        return false;
    const ts_end *in = ts_node_input(b->node, i, (uint32_t)k);
    return in && in->next;
}

ts_tensor *ts_saved_read(ts_vjp_call *b, const ts_end *end, const char *what)
{
    const ts_saved *saved = &end->saved;
    if (TS_UNLIKELY(saved->packed) && !(saved = ts_collected_get(b->run, b->node, end)))
        return NULL;
    ts_tensor *t = saved->t;
    if (TS_UNLIKELY(!t)) {
        ts_fail_op(TS_ERR_INTERNAL, ts_node_name(b->node), b->node->site, NULL,
                   "the rule reads %s, which it does not save", what);
        return NULL;
    }
    if (TS_UNLIKELY(t->storage && t->storage->version != saved->version)) {
        uint16_t writer = t->storage->writer;
        ts_fail_op(TS_ERR_AUTOGRAD, ts_node_name(b->node), b->node->site,
                   "write to ts_clone() of it instead",
                   "%s is needed for the gradient but was written in place since, last by '%s' "
                   "(version %u, saved at %u)",
                   what, writer ? ts_op_name(writer) : "ts_data_mut", t->storage->version,
                   saved->version);
        return NULL;
    }
    return t;
}

ts_tensor *ts_relink(ts_vjp_call *b, ts_tensor *t, ts_node *maker, int output)
{
    if (!t || !maker || !b->run->record || !ts_dtype_is_float((ts_dtype)t->dtype))
        return t;
    ts_tensor *live = ts_whole_alias(b->run->thread, t);
    if (!live)
        return NULL;
    live->node = ts_node_ref(maker);
    live->output = (uint8_t)output;
    live->flags = t->flags | TS_TENSOR_REQUIRES_GRAD;
    live->keys |= TS_KEYSET(TS_KEY_AUTOGRAD);
    return ts_scope_adopt(b->run->thread, live);
}

static const ts_end nothing;

/** The saved tensor of argument i, recomputed if it was packed; TS_NONE for an absent one. in: its
 *  input; NULL: there is none. NULL with an error. */
static TS_COLD ts_tensor *unpack_arg(ts_vjp_call *b, int i, const ts_end *in)
{
    char what[64];
    if ((unsigned)i >= b->node->nargs) {
        fail_index(b, "rule_saved_arg", "an argument", i);
        return NULL;
    }
    if (b->node->args[i].tag == TS_TAG_NONE)
        return TS_NONE;
    snprintf(what, sizeof what, "argument '%s'", ts_ops[b->node->op].schema.args[i].name);
    in = in ? in : &nothing;
    ts_tensor *t = ts_saved_read(b, in, what);
    /* a recomputed tensor lacks the history that a saved tensor has */
    return in->saved.packed ? ts_relink(b, t, in->next, in->shape.output) : t;
}

ts_tensor *ts_rule_saved_member(ts_vjp_call *b, int i, int k)
{
    TS_TRY_NULL(TS_CHECK_LENT(b, "call"));
    const ts_end *in = ts_node_input(b->node, i, (uint32_t)k);
    ts_tensor *t = in ? in->saved.t : NULL;
    return TS_LIKELY(t && t->storage->version == in->saved.version) ? t : unpack_arg(b, i, in);
}

ts_tensor *ts_rule_saved_arg(ts_vjp_call *b, int i)
{
    TS_TRY_NULL(TS_CHECK_LENT(b, "call"));
    return ts_rule_saved_member(b, i, 0);
}

ts_status ts_rule_saved_layout(ts_vjp_call *b, int i, int64_t *strides, int64_t *offset)
{
    const ts_end *in = ts_node_input(b->node, i, 0);
    const ts_tensor *t = in ? in->saved.t : NULL;
    if (in && in->saved.packed)
        TS_TRY(t = ts_rule_saved_arg(b, i));
    if (!t)
        return ts_fail_op(TS_ERR_INTERNAL, ts_node_name(b->node), b->node->site, NULL,
                          "the rule asks for the layout of argument %d, which it does not save", i);
    for (int d = 0; d < t->ndim; d++)
        strides[d] = t->strides[d];
    *offset = ts_tensor_byte_offset(t) / (int64_t)ts_dtype_sizes[t->dtype];
    return TS_OK;
}

ts_tensor *ts_rule_saved_ret(ts_vjp_call *b, int i)
{
    TS_TRY_NULL(TS_CHECK_LENT(b, "call"));
    const ts_end *o = (unsigned)i < b->node->nrets ? &b->node->outputs[i] : &nothing;
    /* a saved result has no link to its node, to avoid a cycle; the alias has one for the rule */
    return ts_relink(b, ts_saved_read(b, o, "the result"), b->node, i);
}

const ts_value *ts_rule_arg(const ts_vjp_call *b, int i)
{
    TS_TRY_NULL(TS_CHECK_LENT(b, "call"));
    if (TS_LIKELY((unsigned)i < b->node->nargs))
        return &b->node->args[i];
    fail_index(b, "rule_arg", "an argument", i);
    return NULL;
}

ts_rng_state ts_rule_rng(const ts_vjp_call *b)
{
    return TS_CHECK_LENT(b, "call") == TS_OK ? b->node->rng : (ts_rng_state){0, 0};
}

ts_meta ts_rule_member_meta(const ts_vjp_call *b, int i, int k)
{
    const ts_end *in = ts_node_input(b->node, i, (uint32_t)k);
    if (!in)
        return ts_meta_of(NULL, TS_DTYPE_NONE, TS_DEVICE_CPU, 0, 0);
    const ts_shape *s = &in->shape;
    int64_t numel = 1;
    for (int d = 0; d < s->ndim; d++)
        numel *= s->sizes[d];
    return (ts_meta){s->sizes, numel, {s->kind}};
}

ts_meta ts_rule_arg_meta(const ts_vjp_call *b, int i) { return ts_rule_member_meta(b, i, 0); }

ts_tensor *ts_rule_full(ts_meta m, ts_value value)
{
    return TS_INVOKE(TS_OP_full, V_IS(m.sizes, m.ndim), value, V_DT(m.dtype), V_DEV(m.device));
}

ts_tensor *ts_rule_operand(ts_vjp_call *b, int i)
{
    ts_tensor *g = ts_rule_grad(b, 0);
    const ts_value *v = ts_rule_arg(b, i);
    if (v->tag != TS_TAG_TENSOR)
        return ts_rule_full(ts_meta_of(NULL, (ts_dtype)g->dtype, g->storage->device, 0, 1), *v);
    ts_tensor *t = ts_rule_saved_arg(b, i);
    return TS_LIKELY(!t || t->dtype == g->dtype) ? t : ts_to(t, (ts_dtype)g->dtype);
}

/** Sums g to the sizes of an input, which undoes broadcasting. */
static ts_tensor *reduce_to(const ts_shape *s, ts_tensor *g)
{
    return ts_shape_sizes_fit(s, g) ? g : ts_sum_to_size(g, s->sizes, s->ndim);
}

/** Fits a gradient to its input: undoes broadcasting and promotion, or reports a wrong rule. */
static __attribute__((noinline)) ts_status give_other(ts_vjp_call *b, int i, const ts_end *in,
                                                      ts_tensor *grad)
{
    if (!in)
        return fail_index(b, "rule_give", "a tensor argument", i);
    const ts_shape *s = &in->shape;
    if (s->ndim <= grad->ndim) {
        TS_TRY(grad = reduce_to(s, grad));
        if (grad->dtype != s->dtype)
            TS_TRY(grad = ts_to(grad, (ts_dtype)s->dtype));
        if (ts_shape_fits(s, grad)) {
            b->given[in - b->node->inputs] = grad;
            return TS_OK;
        }
    }
    return ts_fail_op(TS_ERR_INTERNAL, ts_node_name(b->node), b->node->site, NULL,
                      "the rule's gradient of argument %d: expected %s, got %s", i,
                      TS_SHAPE_TEXT(s), TS_SHAPE_TEXT(grad));
}

/** The error for a gradient that is NULL, because an op of the rule failed, TS_NONE or released. */
static TS_COLD ts_status fail_given(const ts_vjp_call *b, const ts_tensor *grad)
{
    const char *name = ts_node_name(b->node);
    if (!grad)
        return ts_fail_null(name, b->node->site, "grad");
    if (grad != TS_NONE)
        return ts_fail_dead(name, b->node->site, "grad", grad);
    return ts_fail_op(TS_ERR_NULL, name, b->node->site, "give no gradient where there is none",
                      "rule_give: argument 'grad': expected a tensor, got TS_NONE");
}

ts_status ts_rule_give_member(ts_vjp_call *b, int i, int k, ts_tensor *grad)
{
    TS_TRY(TS_CHECK_LENT(b, "call"));
    if (TS_UNLIKELY(!grad || grad->keys >> TS_KEY_ABSENT))
        return fail_given(b, grad);
    const ts_end *in = ts_node_input(b->node, i, (uint32_t)k);
    if (TS_UNLIKELY(!in || !ts_shape_fits(&in->shape, grad)))
        return give_other(b, i, in, grad);
    b->given[in - b->node->inputs] = grad;
    return TS_OK;
}

ts_status ts_rule_give(ts_vjp_call *b, int i, ts_tensor *grad)
{
    TS_TRY(TS_CHECK_LENT(b, "call"));
    return ts_rule_give_member(b, i, 0, grad);
}

ts_tensor *ts_rule_reduce_to(ts_vjp_call *b, int i, ts_tensor *g)
{
    TS_TRY_NULL(TS_CHECK_LENT(b, "call"));
    const ts_end *in = ts_node_input(b->node, i, 0);
    if (TS_UNLIKELY(!g || (unsigned)i >= b->node->nargs)) {
        if (g)
            fail_index(b, "rule_reduce_to", "an argument", i);
        return NULL;
    }
    return in ? reduce_to(&in->shape, g) : g;
}

/** g, dense and channels-last: a copy, or a view if only strides of dims of size 1 differ. */
static ts_tensor *in_channels_last(ts_tensor *g)
{
    int64_t last[TS_MAX_DIMS] = {0}, first[TS_MAX_DIMS] = {0, g->ndim - 1}, sizes[TS_MAX_DIMS];
    for (int d = 1; d < g->ndim; d++)
        last[d] = d < g->ndim - 1 ? d + 1 : 1;
    for (int d = 2; d < g->ndim; d++)
        first[d] = d - 1;
    for (int d = 0; d < g->ndim; d++)
        sizes[d] = g->sizes[last[d]];
    ts_tensor *packed = ts_contiguous(ts_permute(g, last, g->ndim));
    return ts_permute(ts_view(packed, sizes, g->ndim), first, g->ndim);
}

ts_tensor *ts_rule_in_layout_of(ts_tensor *g, const ts_tensor *x)
{
    return g && x && g->ndim == x->ndim && ts_is_dense_last(x) && !ts_is_dense_last(g)
               ? in_channels_last(g)
               : g;
}

ts_tensor *ts_rule_in_format_of(ts_vjp_call *b, int i, ts_tensor *g)
{
    const ts_end *in = ts_node_input(b->node, i, 0);
    if (!g || !in || g->ndim != in->shape.ndim)
        return g;
    bool last = ts_is_channels_last(g);
    if (in->shape.last && !last)
        return in_channels_last(g);
    return last && !in->shape.last ? ts_view(ts_contiguous(g), g->sizes, g->ndim) : g;
}
