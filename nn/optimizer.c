/** @file optimizer.c  Parameter groups, their state, and the step. */
// SPDX-License-Identifier: MIT
#include "nn/optimizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

ts_group_opts ts_optimizer_defaults(ts_optimizer_kind kind, double lr)
{
    ts_group_opts opts = {.size = sizeof opts, .lr = lr};
    if (kind != TS_SGD) {
        opts.beta1 = 0.9;
        opts.beta2 = 0.999;
        opts.eps = 1e-8;
        opts.weight_decay = kind == TS_ADAMW ? 0.01 : 0;
    }
    return opts;
}

/* ---------------------------------------------------------------------- create and free ---- */

ts_optimizer *ts_optimizer_new(ts_optimizer_kind kind)
{
    TS_TRY_NULL(TS_CHECK_VALUE(kind, kind == TS_SGD || kind == TS_ADAM || kind == TS_ADAMW,
                               "TS_SGD, TS_ADAM or TS_ADAMW"));
    ts_optimizer *o = ts_nn_alloc(1, sizeof *o, "an optimizer");
    if (o)
        o->kind = kind;
    return o;
}

static void free_group(ts_nn_group *g)
{
    for (ts_nn_record *r = g->records; r && r < g->records + g->n; r++) {
        ts_release(r->param);
        for (int k = 0; k < TS_NN_STATES; k++)
            ts_release(r->states[k]);
        free(r->name);
    }
    ts_release(g->skipped);
    free(g->records);
}

void ts_optimizer_free(ts_optimizer *o)
{
    if (!o)
        return;
    ts_state_changed();
    for (int i = 0; i < o->ngroups; i++)
        free_group(&o->groups[i]);
    free(o->params);
    free(o->groups);
    free(o);
}

ts_optimizer *ts_optimizer_for(ts_module *m, ts_optimizer_kind kind, const ts_group_opts *opts)
{
    ts_named_tensors list;
    ts_optimizer *o = ts_optimizer_new(kind);
    if (!o)
        return NULL;
    ts_status status = ts_module_parameters(m, &list);
    if (status == TS_OK) {
        status = ts_optimizer_add_group(o, list.names, list.tensors, list.n, opts);
        ts_named_tensors_free(&list);
    }
    if (status == TS_OK)
        return o;
    ts_optimizer_free(o);
    return NULL;
}

/* -------------------------------------------------------------------------------- groups ---- */

/** Grows params and lists to n parameters; keeps the entries of params. */
static ts_status reserve(ts_optimizer *o, int64_t n)
{
    enum { BYTES = 7 * sizeof(ts_tensor *) + sizeof(int64_t) };
    void *block = realloc(o->params, (size_t)(n ? n : 1) * BYTES);
    if (!block)
        return ts_error_memory("the lists of an optimizer", n * BYTES);
    o->params = block;
    o->lists.values = o->params + n;
    o->lists.grads = o->lists.values + n;
    o->lists.first = o->lists.grads + n;
    o->lists.second = o->lists.first + n;
    o->lists.skipped = o->lists.second + n;
    o->lists.counts = (int64_t **)(void *)(o->lists.skipped + n);
    o->lists.steps = (int64_t *)(void *)(o->lists.counts + n);
    return TS_OK;
}

/** True if a parameter of the optimizer has this name. */
static bool has_name(const ts_optimizer *o, const char *name)
{
    for (const ts_nn_group *g = o->groups; g < o->groups + o->ngroups; g++)
        for (const ts_nn_record *r = g->records; r < g->records + g->n; r++)
            if (strcmp(r->name, name) == 0)
                return true;
    return false;
}

static ts_status check_param(const ts_optimizer *o, const char *const *names,
                             ts_tensor *const *params, int64_t i)
{
    const char *name = names[i];
    const ts_check_place at = {"optimizer_add_group", __builtin_return_address(0)};
    TS_TRY(ts_check_name(at, "names", name, 4095, "", ""));
    if (!ts_requires_grad(params[i]) || !ts_is_leaf(params[i]))
        return ts_error_set(
            TS_ERR_VALUE, "optimizer_add_group: parameter '%s': expected a leaf that requires grad",
            name);
    bool twice = ts_nn_contains(o->params, o->n, params[i]) ||
                 ts_nn_contains(params, i, params[i]) || has_name(o, name);
    for (int64_t k = 0; k < i && !twice; k++)
        twice = strcmp(names[k], name) == 0;
    if (twice)
        return ts_error_set(
            TS_ERR_VALUE,
            "optimizer_add_group: parameter '%s': expected a tensor and a name that the optimizer "
            "does not have yet, got one of them again", name);
    return TS_OK;
}

static bool is_number_at_least_0(double x)
{
    return x >= 0 && isfinite(x);
}

static ts_status check_opts(const ts_optimizer *o, const ts_group_opts *p)
{
    bool sgd = o->kind == TS_SGD;
    if (!is_number_at_least_0(p->lr) || !is_number_at_least_0(p->weight_decay))
        return ts_error_set(TS_ERR_VALUE,
                            "optimizer_add_group: expected lr and weight_decay >= 0, got %g and %g",
                            p->lr, p->weight_decay);
    if (sgd && (!is_number_at_least_0(p->momentum) || !isfinite(p->dampening) ||
                (p->nesterov && (p->momentum == 0 || p->dampening != 0))))
        return ts_error_set(TS_ERR_VALUE,
                            "optimizer_add_group: expected momentum >= 0, with nesterov > 0 and "
                            "dampening 0; got momentum %g, dampening %g",
                            p->momentum, p->dampening);
    if (!sgd && !(p->beta1 >= 0 && p->beta1 < 1 && p->beta2 >= 0 && p->beta2 < 1 &&
                  is_number_at_least_0(p->eps)))
        return ts_error_set(
            TS_ERR_VALUE,
            "optimizer_add_group: expected betas in [0, 1) and eps >= 0, got %g, %g and %g",
            p->beta1, p->beta2, p->eps);
    return TS_OK;
}

/** Makes the records of a group. On an error, free_group() frees the records made so far. */
static ts_status fill_group(const ts_optimizer *o, ts_nn_group *g, const char *const *names,
                            ts_tensor *const *params)
{
    int states = o->kind == TS_SGD ? g->opts.momentum != 0 : 2;
    TS_SCOPE;
    TS_NO_GRAD;
    if (!(g->records = ts_nn_alloc(g->n, sizeof *g->records, "a parameter group")))
        return TS_ERR_MEMORY;
    for (int64_t i = 0; i < g->n; i++) {
        ts_nn_record *r = &g->records[i];
        r->param = ts_retain(params[i]);
        if (!(r->name = ts_nn_copy_text(names[i], "the name of a parameter")))
            return TS_ERR_MEMORY;
        bool half = ts_dtype_is_half(ts_dtype_of(r->param));
        ts_tensor *like = half ? ts_to(r->param, TS_F32) : r->param;
        TS_TRY(like);
        for (int k = 0; k < states; k++) {
            ts_tensor *state = ts_zeros_like(like);
            TS_TRY(state);
            ts_prof_hold(state, TS_HOLD_OPTIMIZER);
            r->states[k] = ts_retain(state);
            ts_drop(state);
        }
        if (half) {
            ts_prof_hold(like, TS_HOLD_OPTIMIZER);
            r->states[TS_NN_MASTER] = ts_retain(like);
            ts_drop(like);
        }
    }
    return TS_OK;
}

ts_status ts_optimizer_add_group(ts_optimizer *o, const char *const *names,
                                 ts_tensor *const *params, int64_t n, const ts_group_opts *opts)
{
    ts_group_opts p;
    TS_TRY(TS_CHECK_OBJECTS(o));
    TS_TRY(TS_CHECK_VALUE(n, n <= INT32_MAX, "at most 2^31 - 1"));
    TS_TRY(TS_CHECK_STRINGS(names, n));
    TS_TRY(TS_CHECK_TENSOR_LIST(params, n));
    TS_TRY(TS_CHECK_POINTERS(opts));
    TS_TRY(TS_CHECK_OPTS(&p, opts));
    TS_TRY(check_opts(o, &p));
    for (int64_t i = 0; i < n; i++)
        TS_TRY(check_param(o, names, params, i));

    ts_nn_group *groups = realloc(o->groups, (size_t)(o->ngroups + 1) * sizeof *groups);
    if (!groups)
        return ts_error_memory("a parameter group", sizeof *groups);
    o->groups = groups;
    TS_TRY(reserve(o, o->n + n));
    ts_nn_group *g = &groups[o->ngroups];
    *g = (ts_nn_group){.opts = p, .initial_lr = p.lr, .first = o->n, .n = n};
    ts_status status = fill_group(o, g, names, params);
    if (status != TS_OK) {
        free_group(g);
        return status;
    }
    if (n)
        memcpy(o->params + o->n, params, (size_t)n * sizeof *params);
    o->n += n;
    o->ngroups++;
    ts_state_changed();
    return TS_OK;
}

ts_status ts_optimizer_add_group_where(ts_optimizer *o, const ts_module *m,
                                       ts_parameter_filter wanted, void *ctx,
                                       const ts_group_opts *opts)
{
    ts_named_tensors list, chosen = {0};
    TS_TRY(TS_CHECK_OBJECTS(o, m));
    TS_TRY(TS_CHECK_POINTERS(opts));
    TS_TRY(ts_module_parameters(m, &list));
    chosen.names = ts_nn_alloc(2 * (list.n + 1), sizeof(void *), "a parameter group");
    ts_status status = chosen.names ? TS_OK : TS_ERR_MEMORY;
    if (status == TS_OK) {
        chosen.tensors = (ts_tensor **)(void *)(chosen.names + list.n + 1);
        for (int64_t i = 0; i < list.n; i++)
            if (!ts_nn_contains(o->params, o->n, list.tensors[i]) &&
                (!wanted || wanted(ctx, list.names[i], list.tensors[i]))) {
                chosen.names[chosen.n] = list.names[i];
                chosen.tensors[chosen.n++] = list.tensors[i];
            }
        status = ts_optimizer_add_group(o, chosen.names, chosen.tensors, chosen.n, opts);
    }
    free(chosen.names);
    ts_named_tensors_free(&list);
    return status;
}

int ts_optimizer_num_groups(const ts_optimizer *o)
{
    return o ? o->ngroups : 0;
}

ts_group_opts *ts_optimizer_group(ts_optimizer *o, int index)
{
    return o && index >= 0 && index < o->ngroups ? &o->groups[index].opts : NULL;
}

double ts_nn_initial_lr(const ts_optimizer *o, int index)
{
    return o->groups[index].initial_lr;
}

ts_status ts_optimizer_set_max_norm(ts_optimizer *o, double max_norm)
{
    TS_TRY(TS_CHECK_OBJECTS(o));
    TS_TRY(
        TS_CHECK_VALUE(max_norm, is_number_at_least_0(max_norm), "a finite number of at least 0"));
    o->max_norm = max_norm;
    ts_state_changed();
    return TS_OK;
}

ts_tensor *const *ts_optimizer_params(const ts_optimizer *o, int64_t *n)
{
    if (n)
        *n = o ? o->n : 0;
    return o ? o->params : NULL;
}

/* ---------------------------------------------------------------------------------- step ---- */

/** Makes the tensor in which a group's device counts skipped steps. */
static ts_status count_skipped(const ts_optimizer *o, ts_nn_group *g)
{
    if (g->skipped || !g->n)
        return TS_OK;
    TS_SCOPE;
    ts_tensor *counts =
        ts_fill_(ts_empty_on(&g->n, 1, TS_F32, ts_device_of(o->params[g->first])), 0);
    TS_TRY(counts);
    g->skipped = ts_retain(counts);
    return TS_OK;
}

/** Lists the gradients of those parameters that have one, and returns how many. */
static int64_t collect_grads(ts_tensor *const *params, int64_t n, ts_tensor **grads)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        if (ts_grad(params[i]) != TS_NONE)
            grads[count++] = ts_grad(params[i]);
    return count;
}

ts_tensor *ts_nn_grad_norm(ts_optimizer *o)
{
    return ts_global_norm(o->lists.grads, collect_grads(o->params, o->n, o->lists.grads));
}

/** min(1, max_norm / (norm + 1e-6)) in f32; NaN if the norm is NaN. */
static ts_tensor *clip_factor(const ts_optimizer *o, ts_tensor *norm)
{
    return ts_to(ts_minimum_scalar(ts_rdiv_scalar(ts_add_scalar(norm, 1e-6), o->max_norm), 1),
                 TS_F32);
}

/** Tells a compiled function from which variables the op reads its numbers for group g, so that a
 *  replay reads them again. n: number of parameters with a gradient; if 0, the op is not called. */
static ts_status declare_numbers(const ts_optimizer *o, const ts_nn_group *g, int64_t n)
{
    static const struct {
        const char *name;
        size_t offset;
        bool sgd, adam;
    } given[] = {
        {"lr", offsetof(ts_group_opts, lr), true, true},
        {"weight_decay", offsetof(ts_group_opts, weight_decay), true, true},
        {"momentum", offsetof(ts_group_opts, momentum), true, false},
        {"dampening", offsetof(ts_group_opts, dampening), true, false},
        {"beta1", offsetof(ts_group_opts, beta1), false, true},
        {"beta2", offsetof(ts_group_opts, beta2), false, true},
        {"eps", offsetof(ts_group_opts, eps), false, true},
    };
    bool sgd = o->kind == TS_SGD;
    const char *op = sgd ? "sgd" : "adamw";
    if (!n)
        return TS_OK;
    for (size_t i = 0; i < sizeof given / sizeof *given; i++)
        if (sgd ? given[i].sgd : given[i].adam)
            TS_TRY(ts_number_from(op, given[i].name,
                                  (const double *)((const char *)&g->opts + given[i].offset)));
    TS_TRY(ts_depends_on(&g->opts.nesterov, sizeof g->opts.nesterov));
    return ts_counts_from(op, "steps", o->lists.counts, n);
}

static ts_status step_group(ts_optimizer *o, const ts_nn_group *g, ts_tensor *factor,
                            ts_tensor *found)
{
    TS_SCOPE;
    const ts_group_opts *p = &g->opts;
    const ts_nn_step_lists *l = &o->lists;
    const ts_step_guard guard = {found, l->skipped}, *guarded = found ? &guard : NULL;
    ts_tensor *const *scale = factor ? &factor : NULL;
    int64_t n = 0;
    for (int64_t i = 0; i < g->n; i++) {
        const ts_nn_record *r = &g->records[i];
        ts_tensor *grad = ts_grad(r->param);
        if (grad == TS_NONE)
            continue;
        l->values[n] = r->states[TS_NN_MASTER] ? r->states[TS_NN_MASTER] : r->param;
        l->grads[n] = grad;
        l->first[n] = r->states[0];
        l->second[n] = r->states[1];
        if (found)
            TS_TRY(l->skipped[n] = ts_select(g->skipped, 0, i));
        l->counts[n] = &g->records[i].steps;
        l->steps[n++] = r->steps + 1;
    }
    TS_TRY(declare_numbers(o, g, n));
    if (o->kind == TS_SGD)
        TS_TRY(ts_sgd_(l->values, l->grads, l->first, l->steps, n,
                       &(ts_sgd_rule){p->lr, p->momentum, p->dampening, p->weight_decay,
                                      p->nesterov, guarded, scale}));
    else
        TS_TRY(ts_adamw_(l->values, l->grads, l->first, l->second, l->steps, n,
                         &(ts_adamw_rule){p->lr, p->beta1, p->beta2, p->eps, p->weight_decay,
                                          o->kind == TS_ADAMW, guarded, scale}));
    for (ts_nn_record *r = g->records; r < g->records + g->n; r++) {
        if (ts_grad(r->param) == TS_NONE)
            continue;
        r->steps++;
        if (r->states[TS_NN_MASTER])
            TS_TRY(ts_copy_(r->param, r->states[TS_NN_MASTER]));
    }
    return TS_OK;
}

ts_status ts_nn_step(ts_optimizer *o, ts_tensor *norm, ts_tensor *factor, ts_tensor *found)
{
    TS_SCOPE;
    TS_NO_GRAD;
    for (int i = 0; i < o->ngroups && found; i++)
        TS_TRY(count_skipped(o, &o->groups[i]));
    if (o->max_norm > 0) {
        ts_tensor *clip = clip_factor(o, norm ? norm : ts_nn_grad_norm(o));
        TS_TRY(factor = factor ? ts_mul(factor, clip) : clip);
    }
    for (int i = 0; i < o->ngroups; i++)
        TS_TRY(step_group(o, &o->groups[i], factor, found));
    return TS_OK;
}

ts_status ts_optimizer_step(ts_optimizer *o)
{
    TS_TRY(TS_CHECK_OBJECTS(o));
    TS_NO_GRAD;
    bool skipped = false;
    for (int i = 0; i < o->ngroups; i++)
        skipped = skipped || o->groups[i].skipped;
    if (skipped) { /* earlier steps had a scaler */
        TS_TRY(ts_nn_count_steps(o, o->lists.steps));
        ts_nn_set_steps(o, o->lists.steps);
    }
    return ts_nn_step(o, NULL, NULL, NULL);
}

void ts_optimizer_zero_grad(ts_optimizer *o)
{
    for (int64_t i = 0; o && i < o->n; i++)
        ts_zero_grad(o->params[i]);
}

/* -------------------------------------------------------------------------------- clipping ---- */

ts_status ts_clip_grad_norm(ts_tensor *const *params, int64_t n, double max_norm, ts_tensor **norm)
{
    enum { ON_STACK = 512 };
    ts_tensor *few[ON_STACK], **grads = few;
    TS_TRY(TS_CHECK_TENSOR_LIST(params, n));
    if (n > ON_STACK && !(grads = ts_nn_alloc(n, sizeof *grads, "a list of gradients")))
        return TS_ERR_MEMORY;
    int64_t count = collect_grads(params, n, grads);
    TS_NO_GRAD;
    ts_tensor *total = ts_global_norm(grads, count);
    ts_status status = total ? ts_clip_norm_(grads, count, total, max_norm) : ts_error_code();
    if (grads != few)
        free(grads);
    if (norm && status == TS_OK)
        *norm = total;
    else
        ts_drop(total);
    return status;
}
