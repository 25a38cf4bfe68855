/** @file callbacks.c  Callbacks that randomly violate their contract, and backends with them. */
// SPDX-License-Identifier: MIT
#include <stdlib.h>

#include "tests/misuse/misuse.h"

/** Side effects of a callback: usually none. */
static void random_side_effect(void)
{
    if (!one_in(3))
        return;
    my->disturbed = true;
    int own = my->nmade - my->nborrowed; /* borrowed ones may be used in other threads */
    ts_scope *scope;
    switch (below(8)) {
    case 0: case 1: nested_call(); break;
    case 2:
        if (!dead_allowed)
            break; /* would make the callback's result a released tensor */
        my->unbalanced = true;
        scope = arena(sizeof *scope);
        if (scope)
            ts_scope_enter(scope, "callback");
        break;
    case 3: my->unbalanced = true, ts_grad_push(one_in(2)); break;
    case 4:
        my->unbalanced = true;
        ts_autocast_region *region = arena(sizeof *region);
        if (region)
            ts_autocast_enter(region, TS_DEVICE_CPU, one_in(2) ? TS_BF16 : TS_F32);
        break;
    case 5:
        if (own && my->held)
            ts_drop(my->made[my->nborrowed + below(own)].t);
        break;
    case 6:
        if (my->nmade) {
            ts_tensor *t = my->made[below(my->nmade)].t;
            ts_backward_ex(t, ts_ones_like(t), NULL);
        }
        break;
    default: {
        int hook = pick_object(HOOK, my->nlent);
        if (hook >= 0 && own)
            ts_hook_remove(my->made[my->nborrowed + below(own)].t, my->objects[hook].p);
        break;
    }
    }
}

static ts_status odd_status(ts_status right)
{
    random_side_effect();
    switch (below(12)) {
    case 0: return TS_ERR_VALUE; /* sets no error record */
    case 1: return ts_error_set(TS_ERR_STATE, "a callback failed: \x1b%s", pick_text());
    case 2: return one_in(4) ? (ts_status)77 : TS_ERR_IO;
    default: return right;
    }
}
static ts_tensor *odd_tensor(ts_tensor *right)
{
    random_side_effect();
    my->disturbed |= !right; /* NULL: the call failed, and below a tensor may replace it */
    switch (below(14)) {
    case 0: return NULL;
    case 1: return TS_NONE;
    case 2: return pick_tensor();
    case 3: {
        ts_tensor *dead = ts_ones(my->shape, my->dims, TS_F32);
        if (dead_allowed)
            ts_drop(dead);
        return dead;
    }
    default: return right;
    }
}

static void release_blob(void *payload, void *data, int64_t bytes)
{
    (void)payload, (void)data, (void)bytes;
}
static ts_tensor *odd_activation(ts_tensor *x) { return odd_tensor(ts_relu(x)); }
static ts_tensor *odd_module_forward(ts_module *m, ts_tensor *x)
{
    (void)m;
    return odd_tensor(ts_neg(x));
}
static ts_tensor *odd_forward_list(ts_module *m, ts_tensor *const *inputs, int n)
{
    (void)m;
    return odd_tensor(ts_neg(inputs[n - 1] == TS_NONE ? inputs[0] : inputs[n - 1]));
}
static bool odd_filter(void *ctx, const char *name, ts_tensor *parameter)
{
    (void)ctx;
    return strlen(name) % 2 || ts_ndim(parameter) == 1;
}
static ts_tensor *odd_before(void *payload, ts_module *m, ts_tensor *x)
{
    (void)payload, (void)m;
    return odd_tensor(x);
}
static ts_tensor *odd_after(void *payload, ts_module *m, ts_tensor *x, ts_tensor *y)
{
    (void)payload, (void)m, (void)x;
    return odd_tensor(y);
}
static ts_status odd_before_list(void *payload, ts_module *m, ts_tensor **inputs, int n)
{
    (void)payload, (void)m;
    if (one_in(4))
        inputs[below(n)] = odd_tensor(inputs[0]);
    return odd_status(TS_OK);
}
static ts_tensor *odd_after_list(void *payload, ts_module *m, ts_tensor *const *inputs, int n,
                                 ts_tensor *y)
{
    (void)payload, (void)m;
    return odd_tensor(one_in(4) ? inputs[below(n)] : y);
}
static ts_status odd_write(FILE *out, void *ctx)
{
    (void)ctx;
    fputs(pick_text(), out);
    return odd_status(TS_OK);
}
static ts_tensor *call_of(ts_tensor *const *inputs, int n)
{
    ts_tensor *t = n > 0 && inputs && inputs[0] && inputs[0] != TS_NONE ? ts_neg(inputs[0]) : NULL;
    my->disturbed |= !t;
    return t ? t : ts_ones(my->shape, my->dims, TS_F32);
}
static void fill(ts_tensor **outputs, int m, ts_tensor *const *inputs, int n)
{
    for (int i = 0; i < m; i++)
        outputs[i] = odd_tensor(call_of(inputs, n));
}
static ts_status odd_forward(ts_function_call *call, void *ctx, ts_tensor *const *inputs, int n,
                             ts_tensor **outputs, int m)
{
    (void)ctx;
    add_object(FUNCTION_CALL, call);
    fill(outputs, m, inputs, n);
    if (one_in(2))
        ts_function_save(call, inputs, n);
    ts_status status = odd_status(TS_OK);
    for (int i = my->nobjects - 1; i >= 0; i--)
        if (my->objects[i].p == call)
            my->objects[i] = my->objects[--my->nobjects];
    return status;
}
static ts_status odd_backward(ts_function_call *call, void *ctx, ts_tensor *const *grads, int m,
                              ts_tensor **input_grads, int n)
{
    (void)ctx;
    add_object(FUNCTION_CALL, call);
    for (int i = 0; i < n; i++) {
        ts_tensor *saved = ts_function_saved_tensor(call, i);
        ts_tensor *like = saved && saved != TS_NONE ? saved : m > 0 ? grads[0] : NULL;
        input_grads[i] = odd_tensor(like && like != TS_NONE ? ts_ones_like(like) : TS_NONE);
    }
    ts_status status = odd_status(TS_OK);
    for (int i = my->nobjects - 1; i >= 0; i--)
        if (my->objects[i].p == call)
            my->objects[i] = my->objects[--my->nobjects];
    return status;
}
static double odd_clock(void)
{
    static _Thread_local double time;
    random_side_effect();
    return one_in(4) ? pick_double() : (time += 1);
}
static void odd_end(void *ctx) { (void)ctx; }
static ts_work odd_cost(const ts_frame *f)
{
    return (ts_work){f->nargs, one_in(2) ? -1.0 : 1e300};
}

static uint64_t odd_reserve(const ts_frame *frame)
{
    (void)frame;
    return one_in(4) ? next() : 4;
}
static ts_tensor *odd_grad_hook(void *payload, ts_tensor *grad)
{
    (void)payload;
    return odd_tensor(grad);
}
static ts_status odd_pre_hook(void *payload, ts_node *node, ts_tensor **grads, int n)
{
    (void)payload, (void)node;
    if (n && one_in(4))
        grads[below(n)] = odd_tensor(grads[0]);
    return odd_status(TS_OK);
}
static ts_status odd_post_hook(void *payload, ts_node *node, ts_tensor **input_grads, int n,
                               ts_tensor *const *grads, int m)
{
    (void)payload, (void)node, (void)grads, (void)m;
    if (n && one_in(4))
        input_grads[below(n)] = odd_tensor(input_grads[0]);
    return odd_status(TS_OK);
}
static ts_status odd_part(void *ctx, ts_tensor *const *inputs, int n, ts_tensor **outputs, int m)
{
    (void)ctx;
    fill(outputs, m, inputs, n);
    return odd_status(TS_OK);
}
static ts_status odd_visit(void *ctx, const char *text, ts_tensor *t, ts_member_kind kind)
{
    (void)ctx, (void)text, (void)t, (void)kind;
    return odd_status(TS_OK);
}
static void odd_report(void *payload, const ts_layer_report *report)
{
    (void)payload, (void)report;
    random_side_effect();
}
static void odd_log(void *payload, const char *topic, const char *line)
{
    (void)payload, (void)topic, (void)line;
    random_side_effect();
}
static ts_status odd_kernel(ts_frame *frame)
{
    add_object(FRAME, frame);
    ts_status status = TS_OK;
    switch (below(6)) {
    case 0: status = ts_redispatch(frame); break;
    case 1: status = ts_redispatch_new(frame, frame->args); break;
    case 2:
        status = ts_call_for(frame, frame->op, frame->args, frame->nargs, frame->rets,
                             frame->nrets);
        break;
    case 3: {
        ts_tensor *t = pick_tensor();
        if (frame->nrets)
            status = ts_kernel_give(frame, 0, t);
        break;
    }
    case 4: {
        ts_space space;
        if (ts_kernel_space(frame, &space) == TS_OK)
            for (int i = 1; i < space.operands; i++)
                if (space.operand[i].host)
                    ts_operand_number(&space.operand[i]);
        break;
    }
    default: break;
    }
    bool ran = status == TS_OK;
    status = odd_status(status);
    my->disturbed |= ran && status != TS_OK; /* the layers below may have written arguments */
    for (int i = my->nobjects - 1; i >= 0; i--)
        if (my->objects[i].p == frame)
            my->objects[i] = my->objects[--my->nobjects];
    return status;
}
static void odd_ready(ts_profile *profile, int64_t cycle, void *user)
{
    (void)cycle, (void)user;
    if (one_in(4))
        ts_prof_stop();
    ts_profile_free(profile);
}
static ts_status odd_rule(ts_vjp_call *call)
{
    add_object(RULE_CALL, call);
    for (int i = 0; i < 2; i++)
        if (ts_rule_needs(call, i))
            ts_rule_give(call, i, odd_tensor(ts_rule_grad(call, 0)));
    ts_status status = odd_status(TS_OK);
    for (int i = my->nobjects - 1; i >= 0; i--)
        if (my->objects[i].p == call)
            my->objects[i] = my->objects[--my->nobjects];
    return status;
}

/** Defines draw_NAME(), which draws a callback or, sometimes, NULL. */
#define DRAW_CALLBACK(type, name, callback)                                                        \
    type draw_##name(const char *argument)                                                         \
    {                                                                                              \
        type drawn = one_in(my->mostly_right ? 40 : 8) ? NULL : callback;                          \
        say_name(argument);                                                                        \
        say(drawn ? "callback" : "NULL");                                                          \
        return drawn;                                                                              \
    }
DRAW_CALLBACK(blob_release, blob_release, release_blob)
DRAW_CALLBACK(activation, activation, odd_activation)
DRAW_CALLBACK(module_forward, module_forward, odd_module_forward)
DRAW_CALLBACK(before_forward, before_forward, odd_before)
DRAW_CALLBACK(after_forward, after_forward, odd_after)
DRAW_CALLBACK(before_list, before_list, odd_before_list)
DRAW_CALLBACK(after_list, after_list, odd_after_list)
DRAW_CALLBACK(replace_write, replace_write, odd_write)
DRAW_CALLBACK(function_forward, forward, odd_forward)
DRAW_CALLBACK(function_forward, backward, odd_backward)
DRAW_CALLBACK(progress_clock, clock, odd_clock)
DRAW_CALLBACK(profile_ready, ready, odd_ready)
DRAW_CALLBACK(end_of_context, end_of_context, odd_end)
DRAW_CALLBACK(op_reserve, reserve, odd_reserve)
DRAW_CALLBACK(ts_cost, cost, odd_cost)
DRAW_CALLBACK(ts_grad_hook, grad_hook, odd_grad_hook)
DRAW_CALLBACK(ts_node_pre_hook, pre_hook, odd_pre_hook)
DRAW_CALLBACK(ts_node_post_hook, post_hook, odd_post_hook)
DRAW_CALLBACK(ts_recompute_fn, part, odd_part)
DRAW_CALLBACK(ts_module_visit, visit, odd_visit)
DRAW_CALLBACK(ts_parameter_filter, filter, odd_filter)
DRAW_CALLBACK(ts_forward_list_fn, forward_list, odd_forward_list)
DRAW_CALLBACK(ts_layer_report_fn, report_fn, odd_report)
DRAW_CALLBACK(ts_log_fn, log_fn, odd_log)
DRAW_CALLBACK(ts_kernel, kernel, odd_kernel)
DRAW_CALLBACK(ts_vjp_rule, rule, odd_rule)

/* ------------------------------------------------------------------------------- backend ---- */

static void *odd_allocate(void *s, int device, int64_t bytes, ts_stream *on)
{
    (void)s, (void)device, (void)on;
    return one_in(8) || bytes > MOST_BYTES ? NULL
                                           : aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64);
}
static void odd_free(void *s, int device, void *data, int64_t bytes)
{
    (void)s, (void)device, (void)bytes;
    free(data);
}
static ts_status odd_copy(void *s, int device, void *to, const void *from, int64_t bytes,
                          ts_stream *on)
{
    (void)s, (void)device, (void)on;
    memcpy(to, from, (size_t)bytes);
    return odd_status(TS_OK);
}
static ts_status odd_install(void *s, ts_key key)
{
    (void)s;
    if (one_in(2))
        ts_register_kernel("relu", key, odd_kernel, NULL, NULL);
    return odd_status(TS_OK);
}
static int odd_count(void *s) { return (void)s, one_in(6) ? (int)odd_number() : 2; }

const ts_backend *draw_backend(const char *argument)
{
    static ts_backend backends[8]; /* static: never unregistered */
    static int n;
    say_name(argument);
    say("backend");
    if (one_in(20) || n == TS_COUNTOF(backends))
        return NULL;
    ts_backend *b = &backends[n++];
    *b = (ts_backend){.struct_size = one_in(8) ? (uint32_t)below(400) : sizeof *b,
                      .abi_version = one_in(12) ? 7 : TS_BACKEND_ABI,
                      .name = one_in(2) ? "MINE" : pick_text(),
                      .flags = one_in(3) ? next() : TS_BACKEND_CPU_FALLBACK,
                      .install = one_in(3) ? NULL : odd_install,
                      .device_count = one_in(2) ? NULL : odd_count,
                      .allocate = one_in(20) ? NULL : odd_allocate,
                      .free = one_in(20) ? NULL : odd_free,
                      .copy_in = one_in(20) ? NULL : odd_copy,
                      .copy_out = one_in(20) ? NULL : odd_copy,
                      .copy_within = one_in(20) ? NULL : odd_copy};
    return b;
}
