/** @file grad.c  Public functions: requires_grad, gradients, backward, grad mode. */
// SPDX-License-Identifier: MIT
#include "autograd/engine.h"
#include "core/device.h"
#include "core/recorder.h"
#include "include/tessera/check.h"
#include "include/tessera/ops.h"
#include "ops/ops.h"

#include <string.h>

/* -------------------------------------------------------------------------------- leaves ---- */

ts_tensor *ts_set_requires_grad(ts_tensor *t, bool on)
{
    TS_TRY_NULL(TS_CHECK_TENSORS(t));
    if (on && !ts_dtype_is_float((ts_dtype)t->dtype)) {
        ts_fail_op(TS_ERR_DTYPE, "set_requires_grad", NULL, NULL,
                   "argument 't': expected a floating dtype, got %s",
                   ts_dtype_name((ts_dtype)t->dtype));
        return NULL;
    }
    if (!on && t->node) {
        ts_fail_op(TS_ERR_AUTOGRAD, "set_requires_grad", NULL, "use ts_detach()",
                   "argument 't': expected a leaf, got a result of '%s'", ts_node_name(t->node));
        return NULL;
    }
    if (on != ts_requires_grad(t))
        ts_epoch_ends_for(t->storage);
    if (on) {
        ts_storage_own(t->storage, TS_OWNER_PARAMETER);
        t->flags |= TS_TENSOR_REQUIRES_GRAD;
        t->keys |= TS_KEYSET(TS_KEY_AUTOGRAD);
    } else {
        t->flags &= (uint8_t)~TS_TENSOR_REQUIRES_GRAD;
        t->keys &= ~TS_KEYSET(TS_KEY_AUTOGRAD);
    }
    return t;
}

bool ts_requires_grad(const ts_tensor *t) { return t && (t->flags & TS_TENSOR_REQUIRES_GRAD); }
bool ts_is_leaf(const ts_tensor *t) { return t && !t->node; }
ts_tensor *ts_grad(const ts_tensor *t)
{
    TS_TRY_NULL(TS_CHECK_OBJECTS(t));
    if (!t->grad || !t->grad->grad) {
        TS_REPORT_EVENT(&ts_tls, grad_absent, (ts_tensor *)t);
        return TS_NONE;
    }
    TS_REPORT_EVENT(&ts_tls, grad_read, (ts_tensor *)t, t->grad->grad);
    return t->grad->grad;
}

static void drop_grad(ts_tensor *t)
{
    ts_tensor *g = t->grad->grad;
    t->grad->grad = NULL;
    if (g)
        ts_tensor_unref(g);
}

void ts_zero_grad(ts_tensor *t)
{
    if (t && t->grad && t->grad->grad) {
        TS_REPORT_EVENT(&ts_tls, grad_set, t, NULL);
        drop_grad(t);
    } else if (t) {
        TS_REPORT_EVENT(&ts_tls, grad_absent, t);
    }
}

/** Checks that a gradient from the caller has t's sizes, dtype and device. */
static ts_status check_like(const char *op, const void *site, const char *name, const ts_tensor *t,
                            const ts_tensor *grad)
{
    ts_shape s;
    ts_shape_fill(&s, t);
    if (!ts_shape_fits(&s, grad))
        return ts_fail_op(TS_ERR_SHAPE, op, site, NULL, "argument '%s': expected %s, got %s", name,
                          TS_SHAPE_TEXT(t), TS_SHAPE_TEXT(grad));
    if (!ts_same_device(t->device, grad->device))
        return ts_fail_op(TS_ERR_DEVICE, op, site, ts_move_hint(grad->device, t->device),
                          "argument '%s': expected a tensor on %s, got one on %s", name,
                          ts_device_name(t->device), ts_device_name(grad->device));
    return TS_OK;
}

ts_status ts_set_grad(ts_tensor *t, ts_tensor *grad)
{
    TS_TRY(TS_CHECK_TENSORS(t));
    if (grad == TS_NONE) {
        ts_zero_grad(t);
        return TS_OK;
    }
    TS_TRY(TS_CHECK_TENSORS(grad));
    TS_TRY(check_like("set_grad", __builtin_return_address(0), "grad", t, grad));
    ts_grad_meta *m = ts_grad_meta_of(t);
    TS_TRY(m);
    if (grad->node)
        ts_break_cycle(grad->node);
    TS_TRY(grad = ts_gradient_to_keep(ts_thread_self(), grad, true));
    drop_grad(t);
    m->grad = grad;
    TS_REPORT_EVENT(&ts_tls, grad_set, t, grad);
    return TS_OK;
}

/* ------------------------------------------------------------------------------ backward ---- */

/**
 * Finds the root's node and the gradient to start with, which the caller owns. A gradient of ones
 * that is made here has no other owner, so the run may store it in a leaf without a copy.
 * @param argument  name of the argument `root`
 */
static ts_status start(const char *name, const char *argument, const void *site, ts_tensor *root,
                       ts_tensor *given, ts_node **node, ts_tensor **gradient)
{
    if (!ts_requires_grad(root))
        return ts_fail_op(TS_ERR_AUTOGRAD, name, site,
                          "make a leaf it depends on with ts_set_requires_grad()",
                          "argument '%s': expected a tensor that requires grad, got one that does "
                          "not", argument);
    ts_tensor *g = given != TS_NONE ? given : NULL;
    if (g)
        TS_TRY(check_like(name, site, "gradient", root, g));
    else if (root->numel != 1)
        return ts_fail_op(
            TS_ERR_SHAPE, name, site, "reduce it, or give its gradient to ts_backward_ex()",
            "argument '%s': expected one element, got sizes %s", argument, TS_SIZES_TEXT(root));
    *node = ts_gradient_node(root);
    TS_TRY(*node);
    if (g) {
        *gradient = ts_tensor_ref(g);
        return TS_OK;
    }
    g = ts_ones_like(root);
    TS_TRY(g);
    *gradient = ts_scope_disown(g);
    return TS_OK;
}

/** Runs a backward from root. With captures the gradients are returned in them; without, they are
 *  accumulated in leaves. A recorder sees one region that contains the ops of the rules. */
static ts_status run(const char *name, const char *argument, const void *site, ts_tensor *root,
                     ts_tensor *gradient, const ts_backward_opts *opts, ts_capture *captures, int n)
{
    TS_SCOPE;
    ts_node *node = NULL;
    ts_tensor *g = NULL;
    uint32_t region = ts_region_enter(&ts_tls, name, site);
    ts_status status = start(name, argument, site, root, gradient, &node, &g);
    bool retain = opts->create_graph || opts->retain_graph;
    if (status == TS_OK)
        status = ts_engine_run(node, root->output, g, opts->create_graph, retain, captures, n);
    ts_region_leave(&ts_tls, region);
    return status;
}

ts_status ts_backward_ex(ts_tensor *root, ts_tensor *gradient, const ts_backward_opts *opts)
{
    ts_backward_opts o;
    TS_TRY(TS_CHECK_TENSORS(root));
    if (gradient != TS_NONE)
        TS_TRY(TS_CHECK_TENSORS(gradient));
    TS_TRY(TS_CHECK_OPTS(&o, opts));
    return run("backward", "root", __builtin_return_address(0), root, gradient, &o, NULL, 0);
}

ts_status ts_backward(ts_tensor *loss)
{
    const ts_backward_opts defaults = {.size = sizeof defaults};
    TS_TRY(TS_CHECK_TENSORS(loss));
    return run("backward", "loss", __builtin_return_address(0), loss, TS_NONE, &defaults, NULL, 0);
}

/** A captured gradient (owned) in the caller's scope. */
static ts_tensor *adopt_captured(ts_tensor *c)
{
    if (!c->link)
        return ts_scope_adopt(ts_thread_self(), c);
    /* the tensor is in a scope already; an alias keeps the history for create_graph */
    TS_ENABLE_GRAD;
    ts_tensor *alias = ts_invoke(TS_OP_alias, (ts_value[]){V_T(c)}, 1, 1);
    ts_tensor_unref(c);
    return alias;
}

ts_status ts_grad_of(ts_tensor *output, ts_tensor *gradient, ts_tensor *const *inputs, int n,
                     ts_tensor **grads, const ts_backward_opts *opts)
{
    enum { MOST = 256 };
    const void *site = __builtin_return_address(0);
    ts_backward_opts o;
    TS_TRY(TS_CHECK_TENSORS(output));
    if (gradient != TS_NONE)
        TS_TRY(TS_CHECK_TENSORS(gradient));
    TS_TRY(TS_CHECK_VALUE(n, n <= MOST, "at most 256"));
    TS_TRY(TS_CHECK_TENSOR_LIST(inputs, n));
    TS_TRY(TS_CHECK_LIST(grads, n));
    TS_TRY(TS_CHECK_OPTS(&o, opts));
    ts_capture captures[MOST];
    for (int i = 0; i < n; i++) {
        if (!ts_requires_grad(inputs[i]))
            return ts_fail_op(TS_ERR_AUTOGRAD, "grad_of", site, NULL,
                              "argument 'inputs[%d]': expected a tensor that requires grad, got "
                              "one that does not", i);
        ts_node *node = ts_gradient_node(inputs[i]);
        TS_TRY(node);
        captures[i] = (ts_capture){node, inputs[i]->output, NULL};
    }
    ts_status status = run("grad_of", "output", site, output, gradient, &o, captures, n);
    for (int i = 0; i < n; i++) {
        ts_tensor *c = captures[i].grad;
        if (status == TS_OK)
            status = TS_STATUS_OF(grads[i] = c ? adopt_captured(c) : TS_NONE);
        else if (c)
            ts_tensor_unref(c);
    }
    return status;
}

/* ----------------------------------------------------------------------------- grad mode ---- */

bool ts_grad_enabled(void) { return !(ts_thread_self()->exclude & TS_KEYSET(TS_KEY_AUTOGRAD)); }

ts_mask_guard ts_grad_push(bool enabled)
{
    ts_mask_guard before = ts_mask_get();
    ts_keyset grad = TS_KEYSET(TS_KEY_AUTOGRAD);
    ts_thread_self()->exclude = enabled ? before.exclude & ~grad : before.exclude | grad;
    return before;
}
