/** @file function.c  User functions with their own backward (ts_function), recorded as one node. */
// SPDX-License-Identifier: MIT
#include "autograd/function.h"
#include "dispatch/timers.h"
#include "include/tessera/check.h"
#include "include/tessera/ops.h"

#include <string.h>

enum { DIRTY = 1, CONSTANT = 2 }; /* bits of ts_function_call.marks: of an input, of an output */
enum { MOST_OUTPUTS = UINT8_MAX };

static ts_status rule(ts_vjp_call *b);
static ts_status once_only(ts_vjp_call *b);
static const ts_vjp function_vjp = {.rule = rule};
static const ts_vjp once_vjp = {.rule = once_only};

/** Adds the function's name to the error of its callback, or records an error if there is none. */
static ts_status fail_in(const ts_function_call *call, const char *where, ts_status status)
{
    const char *name = call->fn.name;
    if (ts_error_code() == TS_OK)
        return ts_fail_callback(status, name, call->node->site, where);
    return ts_fail_op(ts_error_code(), name, call->node->site, ts_error_hint(), "in %s: %s", where,
                      ts_error_message());
}

/* --------------------------------------------------------------------------------- node ---- */

/** Makes a node with memory for the call and fills its inputs, with edges if the node records. NULL
 *  with an error. */
static ts_node *node_new(const ts_function *fn, void *ctx, ts_tensor *const *inputs, int n, int m,
                         bool records, const void *site)
{
    ts_thread *thread = ts_thread_self();
    size_t tail = (sizeof(ts_function_call) + (size_t)n + (size_t)m + 7) & ~(size_t)7;
    ts_node *node = ts_node_new(thread, TS_NODE_FUNCTION, 1, (uint32_t)n, (uint8_t)m, tail, site);
    if (!node)
        return NULL;
    node->saves = node->guarded = true;
    node->vjp = &function_vjp;
    node->needs = 0;
    node->args[0] = ts_value_tensors((void *)node->inputs, n);
    ts_function_call *call = ts_function_of(node);
    *call = (ts_function_call){.fn = *fn, .ctx = ctx, .node = node, .marks = (uint8_t *)(call + 1)};
    memset(call->marks, 0, (size_t)(n + m));
    ts_status status = TS_OK;
    for (int i = 0; i < n && status == TS_OK; i++) {
        ts_end *in = &node->inputs[i];
        status = ts_node_add_input(node, in, inputs[i], records);
        call->records |= in->next != NULL;
        if (inputs[i] == TS_NONE)
            in->shape.dtype = TS_DTYPE_NONE;
        else
            in->saved.version = inputs[i]->storage->version; /* see check_forward() */
    }
    thread->seq = ++node->seq;
    node->scope = (uint16_t)ts_timer_scope(thread, 0);
    if (status == TS_OK)
        return node;
    call->fn.release = NULL; /* the caller still has ctx */
    ts_node_unref(node);
    return NULL;
}

void ts_function_end(ts_node *n)
{
    ts_function_call *call = ts_function_of(n);
    if (call->saved)
        ts_free(&ts_tls, call->saved, (size_t)call->nsaved * sizeof *call->saved);
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
    if (call->inputs)
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
    for (int i = 0; i < n; i++) {
        if (!tensors[i])
            return ts_check_null(TS_CHECK_HERE, "tensors", 0, true);
        if (ts_tensor_is_dead(tensors[i]))
            return ts_fail_dead("function_save", __builtin_return_address(0), "tensors",
                                tensors[i]);
    }
    if (!call->records)
        return TS_OK;
    size_t had = (size_t)call->nsaved * sizeof(ts_end), bytes = had + (size_t)n * sizeof(ts_end);
    ts_end *saved = ts_alloc(ts_thread_self(), bytes);
    if (!saved)
        return ts_error_memory("the list of saved tensors", (int64_t)bytes);
    if (call->saved) {
        memcpy(saved, call->saved, had);
        ts_free(&ts_tls, call->saved, had);
    }
    call->saved = saved;
    for (int i = 0; i < n; i++) {
        ts_tensor *t = tensors[i];
        ts_end *s = &saved[call->nsaved++];
        *s = (ts_end){.saved.t = t};
        if (t == TS_NONE)
            continue;
        s->saved.version = ts_tensor_ref(t)->storage->version;
        ts_shape_fill(&s->shape, t);
    }
    return TS_OK;
}

ts_status ts_function_mark_constant(ts_function_call *call, int k)
{
    TS_TRY(TS_CHECK_OBJECTS(call));
    TS_TRY(only_in_forward(call, "ts_function_mark_constant"));
    if (k < 0 || k >= call->node->nrets)
        return ts_fail_op(TS_ERR_INDEX, call->fn.name, NULL, NULL,
                          "function_mark_constant: argument 'k': expected an output below %d, got "
                          "%d", call->node->nrets, k);
    call->marks[call->node->ninputs + (uint32_t)k] |= CONSTANT;
    return TS_OK;
}

ts_status ts_function_mark_dirty(ts_function_call *call, int i)
{
    TS_TRY(TS_CHECK_OBJECTS(call));
    TS_TRY(only_in_forward(call, "ts_function_mark_dirty"));
    if (i < 0 || (uint32_t)i >= call->node->ninputs ||
        call->node->inputs[i].shape.dtype == TS_DTYPE_NONE)
        return ts_fail_op(TS_ERR_INDEX, call->fn.name, NULL, NULL,
                          "function_mark_dirty: argument 'i': expected an input below %u that is a "
                          "tensor, got %d", call->node->ninputs, i);
    char what[32];
    snprintf(what, sizeof what, "input %d", i);
    if (call->records)
        TS_TRY(ts_check_write(call->fn.name, call->node->site, call->inputs[i], what));
    call->marks[i] |= DIRTY;
    return TS_OK;
}

ts_tensor *ts_function_saved_tensor(ts_function_call *call, int i)
{
    TS_TRY_NULL(TS_CHECK_OBJECTS(call));
    const ts_user_code *in = ts_thread_self()->user_code;
    while (in && !(in->call && in->node == call->node))
        in = in->outer;
    if (!in || i < 0 || i >= call->nsaved) {
        ts_fail_op(TS_ERR_INDEX, call->fn.name, NULL, NULL,
                   "function_saved_tensor: argument 'i': expected a saved tensor below %d, in "
                   "backward, got %d", call->nsaved, i);
        return NULL;
    }
    ts_vjp_call *b = in->call;
    const ts_end *s = &call->saved[i];
    if (s->saved.t == TS_NONE)
        return TS_NONE;
    char what[48];
    snprintf(what, sizeof what, "saved tensor %d", i);
    ts_tensor *t = ts_saved_read(b, s, what);
    /* packed tensors and outputs were saved without history; a saved input has its own */
    return s->saved.packed || s->next == call->node ? ts_relink(b, t, s->next, s->shape.output) : t;
}

/* ------------------------------------------------------------------------------- forward ---- */

static int find(ts_tensor *const *list, int n, const ts_tensor *t)
{
    for (int i = 0; i < n; i++)
        if (list[i] == t)
            return i;
    return -1;
}

/** Checks that forward kept its contract. */
static ts_status check_forward(const ts_function_call *call, ts_tensor *const *inputs,
                               ts_tensor *const *outputs)
{
    const char *name = call->fn.name;
    const void *site = call->node->site;
    int n = (int)call->node->ninputs, m = call->node->nrets;
    for (int k = 0; k < m; k++) {
        if (!outputs[k] && ts_error_code() != TS_OK)
            return fail_in(call, "forward", TS_ERR_NULL);
        if (!outputs[k] || outputs[k] == TS_NONE)
            return ts_fail_op(TS_ERR_NULL, name, site, NULL, "forward gave %s output %d",
                              outputs[k] ? "TS_NONE for" : "no", k);
        if (ts_tensor_is_dead(outputs[k]))
            return ts_fail_dead(name, site, "outputs", outputs[k]);
    }
    for (int i = 0; i < n; i++) {
        if (inputs[i] == TS_NONE)
            continue;
        if (!(call->marks[i] & DIRTY)) {
            if (inputs[i]->storage->version == call->node->inputs[i].saved.version)
                continue;
            return ts_fail_op(TS_ERR_AUTOGRAD, name, site,
                              "call ts_function_mark_dirty() before the write",
                              "forward wrote to input %d in place without marking it dirty", i);
        }
        int k = find(outputs, m, inputs[i]);
        if (k < 0)
            return ts_fail_op(TS_ERR_AUTOGRAD, name, site, "return it as an output",
                              "input %d is marked dirty but is not an output", i);
        if (call->marks[n + k] & CONSTANT)
            return ts_fail_op(TS_ERR_AUTOGRAD, name, site, NULL,
                              "output %d is a dirty input and marked constant", k);
        if (find(outputs + k + 1, m - k - 1, inputs[i]) >= 0)
            return ts_fail_op(TS_ERR_AUTOGRAD, name, site, NULL,
                              "input %d is marked dirty but is two of the outputs", i);
    }
    return TS_OK;
}

/** An alias of t without history; one reference. It is marked as a view only if t is. */
static ts_tensor *alias_of(const ts_tensor *t)
{
    ts_tensor *alias = ts_whole_alias(ts_thread_self(), t);
    if (alias)
        alias->flags = t->flags & (uint8_t)~TS_TENSOR_REQUIRES_GRAD;
    return alias;
}

/** Classifies each saved tensor as input, output or other (ts_function_call.saved). Replaces a
 *  saved dirty input by an alias without history, because the input itself will own this node. */
static ts_status name_saved(ts_function_call *call, ts_tensor *const *inputs,
                            ts_tensor *const *outputs)
{
    int n = (int)call->node->ninputs;
    for (int i = 0; i < call->nsaved; i++) {
        ts_end *s = &call->saved[i];
        ts_tensor *t = s->saved.t;
        if (t == TS_NONE)
            continue;
        int input = find(inputs, n, t), output = find(outputs, call->node->nrets, t);
        bool dirty = input >= 0 && call->marks[input] & DIRTY;
        if (input >= 0 && !dirty) {
            s->next = call->node->inputs[input].next;
            s->shape.output = call->node->inputs[input].shape.output;
        } else if (output >= 0 && !(call->marks[n + output] & CONSTANT)) {
            s->next = call->node;
            s->shape.output = (uint8_t)output;
        }
        if (!dirty)
            continue;
        ts_tensor *alias = alias_of(t);
        TS_TRY(alias);
        s->saved.t = alias;
        s->saved.version = alias->storage->version;
        ts_tensor_unref(t);
    }
    return TS_OK;
}

/** Completes the node after forward: classifies the saved tensors, then replaces each output by the
 *  result, which is the dirty input itself or an alias, with one reference. */
static ts_status finish(ts_function_call *call, ts_tensor *const *inputs, ts_tensor **outputs)
{
    ts_node *node = call->node;
    int n = (int)node->ninputs, m = node->nrets;
    TS_TRY(name_saved(call, inputs, outputs));
    for (int k = 0; k < m; k++) {
        int i = find(inputs, n, outputs[k]);
        bool dirty = i >= 0 && call->marks[i] & DIRTY;
        if ((outputs[k] = dirty ? ts_tensor_ref(outputs[k]) : alias_of(outputs[k])))
            continue;
        while (k--)
            ts_tensor_unref(outputs[k]);
        return ts_error_code();
    }
    for (int i = 0; i < call->nsaved; i++) {
        ts_saved *s = &call->saved[i].saved;
        if (s->t != TS_NONE && ts_saved_pack(ts_thread_self(), node, s->t, s))
            ts_saved_drop(s);
    }
    for (int k = 0; k < m; k++) {
        ts_shape_fill(&node->outputs[k].shape, outputs[k]);
        if (!ts_dtype_is_float((ts_dtype)outputs[k]->dtype))
            call->marks[n + k] |= CONSTANT;
        if (!call->records || (call->marks[n + k] & CONSTANT))
            continue;
        const ts_node *before = outputs[k]->node;
        ts_node_attach(node, outputs[k], k);
        ts_break_write_cycle(outputs[k], before);
    }
    return TS_OK;
}

/** Runs forward, completes the node and writes the results, which the caller's scope owns, to
 *  outputs. */
static ts_status run_forward(ts_function_call *call, ts_tensor *const *given, ts_tensor **outputs)
{
    ts_thread *thread = ts_thread_self();
    int n = (int)call->node->ninputs, m = call->node->nrets;
    size_t bytes = (size_t)n * sizeof(ts_tensor *);
    ts_tensor **inputs = ts_alloc(thread, bytes); /* a copy: outputs may be the same array */
    if (!inputs)
        return ts_error_memory("a function's inputs", (int64_t)bytes);
    for (int i = 0; i < n; i++)
        inputs[i] = given[i];
    memset(outputs, 0, (size_t)m * sizeof *outputs);
    ts_status status;
    {
        TS_SCOPE;
        ts_mask_guard masks = ts_grad_push(false);
        call->inputs = inputs;
        uint64_t scope = ts_tls.scope->serial;
        status = call->fn.forward(call, call->ctx, inputs, n, outputs, m);
        call->inputs = NULL;
        ts_mask_pop(masks);
        if (status != TS_OK)
            status = fail_in(call, "forward", status);
        status = ts_end_open_scopes(status, scope, call->fn.name, call->node->site, "forward");
        if (status == TS_OK)
            status = check_forward(call, inputs, outputs);
        if (status == TS_OK)
            status = finish(call, inputs, outputs);
    }
    ts_free(thread, inputs, bytes);
    for (int k = 0; k < m && status == TS_OK; k++)
        ts_adopt(outputs[k]);
    return status;
}

ts_status ts_check_ends(ts_check_place at, ts_tensor *const *inputs, int n, ts_tensor **outputs,
                        int m, int most, const char *expected)
{
    TS_TRY(ts_check_list(at, "inputs", "n", inputs, n));
    TS_TRY(ts_check_list(at, "outputs", "m", outputs, m));
    if (m < 1 || m > most)
        return ts_check_refuse(at, "m", expected, ts_scalar_int(m));
    for (int i = 0; i < n; i++)
        if (inputs[i] != TS_NONE)
            TS_TRY(ts_check_tensors(at, "inputs", (const ts_tensor *const *)&inputs[i], 1));
    return TS_OK;
}

/** Errors for functions that cannot be applied. */
static ts_status check_apply(const ts_function *fn, ts_tensor *const *inputs, int n,
                             ts_tensor **outputs, int m, const void *site)
{
    ts_check_place at = {fn->name ? fn->name : "function_apply", site};
    if (!fn->name || !fn->forward || !fn->backward)
        return ts_fail_op(TS_ERR_NULL, at.function, site, NULL,
                          "argument 'fn': expected a name, forward and backward, got NULL as .%s",
                          !fn->name      ? "name"
                          : !fn->forward ? "forward"
                                         : "backward");
    return ts_check_ends(at, inputs, n, outputs, m, MOST_OUTPUTS, "1 to 255");
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
    bool records = ts_grad_enabled();
    ts_node *node = status == TS_OK ? node_new(&f, ctx, inputs, n, m, records, site) : NULL;
    if (!node) {
        for (int k = 0; k < m && k < MOST_OUTPUTS && outputs; k++)
            outputs[k] = NULL;
        if (f.release)
            f.release(ctx);
        return status == TS_OK ? ts_error_code() : status;
    }
    status = run_forward(ts_function_of(node), inputs, outputs);
    for (int k = 0; k < m && status != TS_OK; k++)
        outputs[k] = NULL;
    ts_node_unref(node); /* only the results own the node now */
    return status;
}

/* ------------------------------------------------------------------------------ backward ---- */

/** Fills grads with the gradients of the results as backward gets them: where none arrived, zeros,
 *  or TS_NONE for constant results and with fn.none_grads. */
static ts_status fill_grads(const ts_vjp_call *b, const ts_function_call *call, ts_tensor **grads)
{
    const ts_node *node = b->node;
    for (int k = 0; k < node->nrets; k++) {
        const ts_shape *o = &node->outputs[k].shape;
        grads[k] = b->grads[k];
        if (grads[k])
            continue;
        grads[k] = TS_NONE;
        if (call->fn.none_grads || call->marks[node->ninputs + (uint32_t)k] & CONSTANT)
            continue;
        TS_TRY(grads[k] = ts_rule_zeros((ts_meta){o->sizes, 0, {o->kind}}));
    }
    return TS_OK;
}

/** Checks g, which backward wrote as the gradient of input i, and stores it in b->given. */
static ts_status take(ts_vjp_call *b, const ts_function_call *call, int i, ts_tensor *g)
{
    const ts_shape *s = &b->node->inputs[i].shape;
    const char *name = call->fn.name;
    const void *site = b->node->site;
    if (!b->node->inputs[i].next)
        return TS_OK; /* the input needs no gradient */
    if (!g)
        return ts_error_code() != TS_OK
                   ? fail_in(call, "backward", TS_ERR_NULL)
                   : ts_fail_op(TS_ERR_NULL, name, site, "set TS_NONE where there is none",
                                "backward gave no gradient for input %d", i);
    if (g == TS_NONE)
        return TS_OK;
    if (ts_tensor_is_dead(g))
        return ts_fail_dead(name, site, "input_grads", g);
    if (!ts_shape_sizes_fit(s, g))
        return ts_fail_op(TS_ERR_SHAPE, name, site, NULL,
                          "backward's gradient of input %d: expected sizes %s, got %s", i,
                          TS_SIZES_TEXT(s), TS_SIZES_TEXT(g));
    if (g->dtype != s->dtype)
        return ts_fail_op(TS_ERR_DTYPE, name, site, "cast it with ts_to()",
                          "backward's gradient of input %d: expected dtype %s, got %s", i,
                          ts_dtype_name((ts_dtype)s->dtype), ts_dtype_name((ts_dtype)g->dtype));
    if (!ts_same_device(g->storage->device, s->device))
        return ts_fail_op(TS_ERR_DEVICE, name, site, NULL,
                          "backward's gradient of input %d: expected a tensor on %s, got one on %s",
                          i, ts_device_name(s->device), ts_device_name(g->storage->device));
    b->given[i] = g;
    return TS_OK;
}

/** Gives each gradient a node whose rule is an error, because a gradient that is not made of ops
 *  cannot be differentiated again. */
static ts_status forbid_second_gradient(ts_vjp_call *b, const ts_function_call *call)
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
        ts_tensor *alias = ts_whole_alias(b->run->thread, b->given[i]);
        TS_TRY(alias);
        b->given[i] = ts_scope_adopt(b->run->thread, alias);
        ts_node *bar = node_new(&barred, NULL, of, edges, 1, true, node->site);
        TS_TRY(bar);
        bar->vjp = &once_vjp;
        ts_shape_fill(&bar->outputs[0].shape, alias);
        ts_node_attach(bar, alias, 0);
        ts_node_unref(bar);
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
    ts_tensor *grads[MOST_OUTPUTS], **made;
    ts_held block TS_HELD = {b->run->thread, NULL, (size_t)n * sizeof *made};
    made = block.at = ts_alloc(b->run->thread, block.bytes);
    if (!made)
        return ts_error_memory("a function's gradients", (int64_t)block.bytes);
    memset(made, 0, block.bytes);
    ts_status status = fill_grads(b, call, grads);
    if (status == TS_OK) {
        ts_mask_guard masks __attribute__((cleanup(ts_grad_pop), unused)) =
            ts_grad_push(b->run->record && !bar);
        TS_USER_CODE(b->run, .node = b->node, .call = b);
        uint64_t scope = ts_tls.scope->serial;
        status = call->fn.backward(call, call->ctx, grads, b->node->nrets, made, n);
        if (status != TS_OK)
            status = fail_in(call, "backward", status);
        status = ts_end_open_scopes(status, scope, call->fn.name, b->node->site, "backward");
    }
    for (int i = 0; i < n && status == TS_OK; i++)
        status = take(b, call, i, made[i]);
    return status == TS_OK && bar ? forbid_second_gradient(b, call) : status;
}
