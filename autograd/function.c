/** @file function.c  Functions with a backward of their own: applied, recorded as one node, run. */
// SPDX-License-Identifier: MIT
#include "autograd/anomaly.h"
#include "autograd/function.h"
#include "include/tessera/check.h"
#include "include/tessera/ops.h"

#include <string.h>

enum { DIRTY = 1, CONSTANT = 2 }; /* marks of inputs and of outputs */
enum { MOST_OUTPUTS = UINT8_MAX };

static ts_status rule(ts_vjp_call *b);
static ts_status once_only(ts_vjp_call *b);
static const ts_vjp function_vjp = {.rule = rule};
static const ts_vjp once_vjp = {.rule = once_only};

/** Names the function in an error of its own code, or makes one when there is none. */
static ts_status fail_in(const ts_function_call *call, const char *where, ts_status status)
{
    const char *name = call->fn.name;
    if (ts_error_code() == TS_OK)
        return ts_fail_op(status, name, call->node->site, NULL, "%s failed without saying why",
                          where);
    return ts_fail_op(ts_error_code(), name, call->node->site, ts_error_hint(), "in %s: %s", where,
                      ts_error_message());
}

/* --------------------------------------------------------------------------------- node ---- */

/** A node with room for the call; edges are not made yet. NULL with an error. */
static ts_node *node_new(const ts_function *fn, void *ctx, ts_tensor *const *inputs, int n, int m,
                         const void *site)
{
    ts_thread *thread = ts_thread_self();
    size_t bytes = sizeof(ts_node) + sizeof(ts_value) + sizeof(ts_function_call) +
                   (size_t)n * (sizeof(ts_input) + 1) + (size_t)m * (sizeof(ts_output) + 1),
           trail = ts_trail_bytes();
    bytes = (bytes + trail + 7) & ~(size_t)7;
    ts_node *node = bytes <= UINT32_MAX ? ts_alloc(thread, bytes) : NULL;
    if (!node) {
        ts_fail_memory("a node of the graph", (int64_t)bytes);
        return NULL;
    }
    *node = (ts_node){.op = TS_NODE_FUNCTION, .nargs = 1, .nrets = (uint8_t)m,
                      .ninputs = (uint32_t)n, .saves = true, .guarded = true,
                      .bytes = (uint32_t)bytes, .vjp = &function_vjp, .site = site};
    atomic_init(&node->refs, 1);
    atomic_init(&node->owner, 0);
    node->inputs = (ts_input *)(node + 1);
    node->outputs = (ts_output *)(node->inputs + n);
    node->args = (ts_value *)(node->outputs + m);
    node->args[0] = ts_value_tensors(NULL, n);
    ts_function_call *call = ts_function_of(node);
    *call = (ts_function_call){.fn = *fn, .ctx = ctx, .node = node, .marks = (uint8_t *)(call + 1)};
    memset(call->marks, 0, (size_t)(n + m));
    memset(node->outputs, 0, (size_t)m * sizeof *node->outputs);
    memset(node->inputs, 0, (size_t)n * sizeof *node->inputs);
    for (int i = 0; i < n; i++) {
        if (inputs[i] == TS_NONE)
            node->inputs[i].dtype = TS_DTYPE_NONE;
        else
            ts_input_fill(&node->inputs[i], 0, inputs[i]);
    }
    if (trail)
        ts_trail_take(node);
    return node;
}

/** An edge to whatever made t, when t requires grad. */
static ts_status connect(ts_node *node, int i, ts_tensor *t)
{
    if (t == TS_NONE || !(t->flags & TS_TENSOR_REQUIRES_GRAD))
        return TS_OK;
    ts_thread *thread = ts_thread_self();
    ts_node *next = ts_gradient_node(t);
    TS_TRY(next);
    node->inputs[i].next = ts_node_ref(next);
    node->inputs[i].output = t->output;
    uint64_t seq = thread->seq > next->seq ? thread->seq : next->seq;
    node->seq = thread->seq = seq + 1;
    return TS_OK;
}

void ts_function_free_saved(ts_node *n)
{
    ts_function_call *call = ts_function_of(n);
    for (int i = 0; i < call->nsaved; i++) {
        ts_tensor *t = call->saved[i].t;
        call->saved[i].t = NULL;
        n->freed |= t != NULL;
        if (t && t != TS_NONE)
            ts_tensor_unref(t);
    }
}

void ts_function_end(ts_node *n)
{
    ts_function_call *call = ts_function_of(n);
    if (call->saved)
        ts_free(&ts_tls, call->saved, (size_t)call->room * sizeof *call->saved);
    if (call->fn.release)
        call->fn.release(call->ctx);
}

/* ------------------------------------------------------------------------ during a call ---- */

bool ts_function_needs(const ts_function_call *call, int i)
{
    return call && i >= 0 && (uint32_t)i < call->node->ninputs && call->node->inputs[i].next;
}

static ts_status only_in_forward(const ts_function_call *call, const char *what)
{
    if (call->forward)
        return TS_OK;
    return ts_fail_op(TS_ERR_STATE, call->fn.name, NULL, NULL, "%s may be called in forward only",
                      what);
}

ts_status ts_function_save(ts_function_call *call, ts_tensor *const *tensors, int n)
{
    TS_TRY(TS_CHECK_OBJECTS(call));
    TS_TRY(only_in_forward(call, "ts_function_save"));
    TS_TRY(TS_CHECK_LIST(tensors, n));
    TS_TRY(TS_CHECK_VALUE(n, n <= INT32_MAX / 2 - call->nsaved, "fewer tensors"));
    for (int i = 0; i < n; i++)
        if (!tensors[i])
            return ts_check_null(TS_CHECK_HERE, "tensors", 0, true);
    if (!call->records)
        return TS_OK;
    if (call->nsaved + n > call->room) {
        int room = call->nsaved + n > 4 ? 2 * (call->nsaved + n) : 4;
        ts_function_saved *saved = ts_alloc(ts_thread_self(), (size_t)room * sizeof *saved);
        if (!saved)
            return ts_fail_memory("the list of saved tensors",
                                  (int64_t)((size_t)room * sizeof *saved));
        if (call->saved) {
            memcpy(saved, call->saved, (size_t)call->nsaved * sizeof *saved);
            ts_free(&ts_tls, call->saved, (size_t)call->room * sizeof *saved);
        }
        call->saved = saved;
        call->room = room;
    }
    for (int i = 0; i < n; i++) {
        ts_tensor *t = tensors[i];
        call->saved[call->nsaved++] =
            t == TS_NONE ? (ts_function_saved){.t = t, .input = -1, .output = -1}
                         : (ts_function_saved){ts_tensor_ref(t), t->storage->version, -1, -1, false,
                                               ts_shape_of(t)};
    }
    return TS_OK;
}

ts_status ts_function_mark_constant(ts_function_call *call, int k)
{
    TS_TRY(TS_CHECK_OBJECTS(call));
    TS_TRY(only_in_forward(call, "ts_function_mark_constant"));
    if (k < 0 || k >= call->node->nrets)
        return ts_fail_op(TS_ERR_INDEX, call->fn.name, NULL, NULL,
                          "mark_constant: expected an output below %d, got %d", call->node->nrets,
                          k);
    call->marks[call->node->ninputs + (uint32_t)k] |= CONSTANT;
    return TS_OK;
}

ts_status ts_function_mark_dirty(ts_function_call *call, int i)
{
    TS_TRY(TS_CHECK_OBJECTS(call));
    TS_TRY(only_in_forward(call, "ts_function_mark_dirty"));
    if (i < 0 || (uint32_t)i >= call->node->ninputs || call->node->inputs[i].dtype == TS_DTYPE_NONE)
        return ts_fail_op(TS_ERR_INDEX, call->fn.name, NULL, NULL,
                          "mark_dirty: expected an input below %u, got %d", call->node->ninputs, i);
    char what[32];
    snprintf(what, sizeof what, "input %d", i);
    if (call->records)
        TS_TRY(ts_check_write(call->fn.name, call->node->site, call->node->args[0].list[i], what));
    call->marks[i] |= DIRTY;
    return TS_OK;
}

ts_tensor *ts_function_saved_tensor(ts_function_call *call, int i)
{
    TS_TRY_NULL(TS_CHECK_OBJECTS(call));
    if (!call->running || i < 0 || i >= call->nsaved) {
        ts_fail_op(TS_ERR_INDEX, call->fn.name, NULL, NULL,
                   "expected a saved tensor below %d, in backward, got %d", call->nsaved, i);
        return NULL;
    }
    ts_vjp_call *b = call->running;
    const ts_function_saved *s = &call->saved[i];
    char what[48];
    snprintf(what, sizeof what, "saved tensor %d", i);
    if (s->t == TS_NONE)
        return TS_NONE;
    if (s->packed) {
        const ts_kept *kept = ts_collected_get(b->run, call->node, s->version, &s->shape);
        ts_tensor *t = kept ? ts_unpack(b, kept->t, kept->version, what) : NULL;
        return s->input < 0 ? ts_relink(b, t, s->output < 0 ? NULL : call->node, s->output)
                            : ts_relink(b, t, call->node->inputs[s->input].next,
                                        call->node->inputs[s->input].output);
    }
    ts_tensor *t = ts_unpack(b, s->t, s->version, what);
    /* an input has its history itself */
    return ts_relink(b, t, s->output < 0 ? NULL : call->node, s->output);
}

/* ------------------------------------------------------------------------------- forward ---- */

/** What forward must not have done. */
static ts_status check_forward(const ts_function_call *call, ts_tensor *const *inputs,
                               const uint32_t *versions, ts_tensor *const *outputs)
{
    const char *name = call->fn.name;
    const void *site = call->node->site;
    int n = (int)call->node->ninputs, m = call->node->nrets;
    for (int k = 0; k < m; k++)
        if (!outputs[k] || outputs[k] == TS_NONE)
            return outputs[k] ? ts_fail_op(TS_ERR_NULL, name, site, NULL,
                                           "forward gave TS_NONE for output %d", k)
                   : ts_error_code() != TS_OK
                       ? fail_in(call, "forward", TS_ERR_NULL)
                       : ts_fail_op(TS_ERR_NULL, name, site, NULL, "forward gave no output %d", k);
    for (int i = 0; i < n; i++) {
        if (inputs[i] == TS_NONE)
            continue;
        bool dirty = call->marks[i] & DIRTY, found = false;
        if (!dirty && inputs[i]->storage->version != versions[i])
            return ts_fail_op(TS_ERR_AUTOGRAD, name, site,
                              "call ts_function_mark_dirty() before the write",
                              "forward wrote to input %d in place without marking it dirty", i);
        for (int k = 0; k < m; k++) {
            if (outputs[k] != inputs[i])
                continue;
            if (dirty && call->marks[n + k] & CONSTANT)
                return ts_fail_op(TS_ERR_AUTOGRAD, name, site, NULL,
                                  "output %d is a dirty input and marked constant", k);
            if (dirty && found)
                return ts_fail_op(TS_ERR_AUTOGRAD, name, site, NULL,
                                  "input %d is dirty and two outputs", i);
            found = true;
        }
        if (dirty && !found)
            return ts_fail_op(TS_ERR_AUTOGRAD, name, site, "return it as an output",
                              "input %d is dirty but no output", i);
    }
    return TS_OK;
}

static int find(ts_tensor *const *list, int n, const ts_tensor *t)
{
    for (int i = 0; i < n; i++)
        if (list[i] == t)
            return i;
    return -1;
}

/** An alias without history; one reference. It is a view only if forward made one. */
static ts_tensor *alias_of(const ts_tensor *t)
{
    ts_tensor *alias = ts_tensor_alias(ts_thread_self(), t, t->sizes, t->strides, t->ndim, 0);
    if (alias)
        alias->flags = t->flags & (uint8_t)~TS_TENSOR_REQUIRES_GRAD;
    return alias;
}

/** Says which saved tensor is what. A dirty one must not hold the node that holds it. */
static ts_status name_saved(ts_function_call *call, ts_tensor *const *inputs,
                            ts_tensor *const *outputs)
{
    int n = (int)call->node->ninputs;
    for (int i = 0; i < call->nsaved; i++) {
        ts_function_saved *s = &call->saved[i];
        if (s->t == TS_NONE)
            continue;
        s->input = find(inputs, n, s->t);
        s->output = find(outputs, call->node->nrets, s->t);
        bool dirty = s->input >= 0 && call->marks[s->input] & DIRTY;
        if (s->output >= 0 && (call->marks[n + s->output] & CONSTANT || (s->input >= 0 && !dirty)))
            s->output = -1;
        if (!dirty)
            continue;
        ts_tensor *alias = alias_of(s->t);
        TS_TRY(alias);
        ts_tensor_unref(s->t);
        s->t = alias;
        s->input = -1; /* what it was before is gone */
        s->version = alias->storage->version;
    }
    return TS_OK;
}

/** After forward: saved tensors, then results with one reference each:
 * the dirty input itself or an alias. */
static ts_status finish(ts_function_call *call, ts_tensor *const *inputs, ts_tensor **outputs)
{
    ts_node *node = call->node;
    ts_tape *tape = ts_thread_self()->tape;
    int n = (int)node->ninputs, m = node->nrets;
    ts_tensor *results[MOST_OUTPUTS];
    TS_TRY(name_saved(call, inputs, outputs));
    for (int k = 0; k < m; k++) {
        int i = find(inputs, n, outputs[k]);
        results[k] =
            i >= 0 && call->marks[i] & DIRTY ? ts_tensor_ref(outputs[k]) : alias_of(outputs[k]);
        if (results[k])
            continue;
        while (k--)
            ts_tensor_unref(results[k]);
        return ts_error_code();
    }
    for (int i = 0; i < call->nsaved && tape; i++) {
        ts_function_saved *s = &call->saved[i];
        s->packed = s->t != TS_NONE && ts_tape_take(tape, node, s->t, &s->version);
        if (s->packed) {
            ts_tensor_unref(s->t);
            s->t = NULL;
        }
    }
    for (int k = 0; k < m; k++) {
        ts_output_fill(&node->outputs[k], results[k]);
        if (!ts_dtype_is_float((ts_dtype)results[k]->dtype))
            call->marks[n + k] |= CONSTANT;
        if (call->records && !(call->marks[n + k] & CONSTANT))
            ts_node_attach(node, results[k], k);
        outputs[k] = results[k];
    }
    return TS_OK;
}

static ts_status run_forward(ts_function_call *call, ts_tensor *const *given, ts_tensor **outputs)
{
    ts_thread *thread = ts_thread_self();
    int n = (int)call->node->ninputs, m = call->node->nrets;
    size_t bytes = (size_t)n * (sizeof(ts_tensor *) + sizeof(uint32_t));
    ts_tensor **inputs = ts_alloc(thread, bytes); /* a copy: outputs may be the same array */
    if (!inputs)
        return ts_fail_memory("a function's inputs", (int64_t)bytes);
    uint32_t *versions = (uint32_t *)(inputs + n);
    for (int i = 0; i < n; i++) {
        inputs[i] = given[i];
        versions[i] = inputs[i] == TS_NONE ? 0 : inputs[i]->storage->version;
    }
    memset(outputs, 0, (size_t)m * sizeof *outputs);
    ts_status status;
    {
        TS_SCOPE;
        ts_mask_guard masks = ts_grad_push(false);
        call->forward = true;
        call->node->args[0].list = inputs;
        status = call->fn.forward(call, call->ctx, inputs, n, outputs, m);
        call->node->args[0].list = NULL;
        call->forward = false;
        ts_mask_pop(masks);
        if (status != TS_OK)
            status = fail_in(call, "forward", status);
        if (status == TS_OK)
            status = check_forward(call, inputs, versions, outputs);
        if (status == TS_OK)
            status = finish(call, inputs, outputs);
    }
    ts_free(thread, inputs, bytes);
    for (int k = 0; k < m && status == TS_OK; k++)
        ts_adopt(outputs[k]);
    return status;
}

/** An error for what cannot be applied. */
static ts_status check_apply(const ts_function *fn, ts_tensor *const *inputs, int n,
                             ts_tensor **outputs, int m, const void *site)
{
    const char *op = fn->name ? fn->name : "function_apply";
    if (!fn->name || !fn->forward || !fn->backward)
        return ts_fail_op(TS_ERR_NULL, op, site, NULL,
                          "argument 'fn': expected a name, forward and backward, got NULL");
    ts_check_place at = {op, site};
    TS_TRY(ts_check_list(at, "inputs", "n", inputs, n));
    TS_TRY(ts_check_list(at, "outputs", "m", outputs, m));
    if (m < 1 || m > MOST_OUTPUTS)
        return ts_check_refuse(at, "m", "1 to 255", ts_scalar_int(m));
    for (int i = 0; i < n; i++)
        if (!inputs[i])
            return ts_check_null(at, "inputs", 0, true);
    return TS_OK;
}

ts_status ts_function_apply(const ts_function *fn, void *ctx, ts_tensor *const *inputs, int n,
                            ts_tensor **outputs, int m)
{
    const void *site = __builtin_return_address(0);
    ts_function f;
    ts_status status = TS_CHECK_OPTS(&f, fn);
    if (status != TS_OK)
        f = (ts_function){0};
    else
        status = check_apply(&f, inputs, n, outputs, m, site);
    ts_node *node = status == TS_OK ? node_new(&f, ctx, inputs, n, m, site) : NULL;
    if (!node) {
        for (int k = 0; k < m && k < MOST_OUTPUTS && outputs; k++)
            outputs[k] = NULL;
        if (f.release)
            f.release(ctx);
        return status == TS_OK ? ts_error_code() : status;
    }
    ts_function_call *call = ts_function_of(node);
    for (int i = 0; i < n && status == TS_OK && ts_grad_enabled(); i++) {
        status = connect(node, i, inputs[i]);
        call->records |= node->inputs[i].next != NULL;
    }
    if (status == TS_OK)
        status = run_forward(call, inputs, outputs);
    for (int k = 0; k < m && status != TS_OK; k++)
        outputs[k] = NULL;
    ts_node_unref(node); /* results hold it now, or nobody */
    return status;
}

/* ------------------------------------------------------------------------------ backward ---- */

/** Gradients of the results as backward gets them. */
static ts_status fill_grads(const ts_vjp_call *b, const ts_function_call *call, ts_tensor **grads)
{
    const ts_node *node = b->node;
    for (int k = 0; k < node->nrets; k++) {
        const ts_output *o = &node->outputs[k];
        grads[k] = b->grads[k];
        if (grads[k])
            continue;
        grads[k] = TS_NONE;
        if (call->fn.none_grads || call->marks[node->ninputs + (uint32_t)k] & CONSTANT)
            continue;
        grads[k] = ts_empty_on(o->sizes, o->ndim, (ts_dtype)o->dtype, o->device);
        TS_TRY(ts_zero_(grads[k]));
    }
    return TS_OK;
}

/** What backward gave for input i. */
static ts_status take(ts_vjp_call *b, const ts_function_call *call, int i, ts_tensor *g)
{
    const ts_input *in = &b->node->inputs[i];
    const char *name = call->fn.name;
    const void *site = b->node->site;
    if (!in->next)
        return TS_OK; /* nobody asked */
    if (!g)
        return ts_error_code() != TS_OK
                   ? fail_in(call, "backward", TS_ERR_NULL)
                   : ts_fail_op(TS_ERR_NULL, name, site, "set TS_NONE where there is none",
                                "backward gave no gradient for input %d", i);
    if (g == TS_NONE)
        return TS_OK;
    char want[192], got[192];
    bool same = g->ndim == in->ndim;
    for (int d = 0; same && d < g->ndim; d++)
        same = g->sizes[d] == in->sizes[d];
    if (!same)
        return ts_fail_op(TS_ERR_SHAPE, name, site, NULL,
                          "backward gave sizes %s for the gradient of input %d, expected %s",
                          ts_format_sizes(got, sizeof got, g->sizes, g->ndim), i,
                          ts_format_sizes(want, sizeof want, in->sizes, in->ndim));
    if (g->dtype != in->dtype)
        return ts_fail_op(TS_ERR_DTYPE, name, site, "cast it with ts_to()",
                          "backward gave dtype %s for the gradient of input %d, expected %s",
                          ts_dtype_name((ts_dtype)g->dtype), i, ts_dtype_name((ts_dtype)in->dtype));
    if (!ts_same_device(g->storage->device, in->device))
        return ts_fail_op(TS_ERR_DEVICE, name, site, NULL,
                          "backward gave the gradient of input %d on %s, expected %s", i,
                          ts_device_name(g->storage->device), ts_device_name(in->device));
    b->given[i] = g;
    return TS_OK;
}

/** Gradients that are no functions of ops: whoever differentiates them is told. */
static ts_status bar_second(ts_vjp_call *b, const ts_function_call *call)
{
    ts_node *node = b->node;
    int n = (int)node->ninputs;
    ts_function barred = call->fn;
    barred.release = NULL;
    ts_tensor *of[MOST_OUTPUTS];
    int edges = 0;
    for (int k = 0; k < node->nrets; k++)
        if (b->grads[k] && b->grads[k]->flags & TS_TENSOR_REQUIRES_GRAD)
            of[edges++] = b->grads[k];
    for (int i = 0; i < n; i++) {
        if (!b->given[i])
            continue;
        ts_tensor *g = b->given[i];
        ts_tensor *alias = ts_tensor_alias(b->run->thread, g, g->sizes, g->strides, g->ndim, 0);
        TS_TRY(alias);
        b->given[i] = ts_scope_adopt(b->run->thread, alias);
        ts_node *bar = node_new(&barred, NULL, of, edges, 1, node->site);
        TS_TRY(bar);
        bar->vjp = &once_vjp;
        ts_status status = TS_OK;
        for (int e = 0; e < edges && status == TS_OK; e++)
            status = connect(bar, e, of[e]);
        bar->seq = ++b->run->thread->seq;
        ts_output_fill(&bar->outputs[0], alias);
        if (status == TS_OK)
            ts_node_attach(bar, alias, 0);
        ts_node_unref(bar);
        TS_TRY(status);
    }
    return TS_OK;
}

static ts_status once_only(ts_vjp_call *b)
{
    return ts_fail_op(
        TS_ERR_AUTOGRAD, ts_node_name(b->node), b->node->site, "write its backward with ops",
        "the function can be differentiated once only, and a gradient of its gradient is needed");
}

static ts_status rule(ts_vjp_call *b)
{
    ts_function_call *call = ts_function_of(b->node);
    int n = (int)b->node->ninputs;
    bool bar = call->fn.once && b->run->record;
    ts_tensor *grads[MOST_OUTPUTS], **made = ts_alloc(b->run->thread, (size_t)n * sizeof *made);
    if (!made)
        return ts_fail_memory("a function's gradients", (int64_t)((size_t)n * sizeof *made));
    memset(made, 0, (size_t)n * sizeof *made);
    ts_status status = fill_grads(b, call, grads);
    if (status == TS_OK) {
        ts_mask_guard masks = ts_grad_push(b->run->record && !bar);
        ts_vjp_call *outer = call->running;
        call->running = b;
        status = call->fn.backward(call, call->ctx, grads, b->node->nrets, made, n);
        call->running = outer;
        ts_mask_pop(masks);
        if (status != TS_OK)
            status = fail_in(call, "backward", status);
    }
    for (int i = 0; i < n && status == TS_OK; i++)
        status = take(b, call, i, made[i]);
    ts_free(b->run->thread, made, (size_t)n * sizeof *made);
    return status == TS_OK && bar ? bar_second(b, call) : status;
}
