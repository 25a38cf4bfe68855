/**
 * @file ops.c
 * Out-of-memory sweeps of every row of ops.def: the samples' calls in all forms, forward and
 * backward.
 */
// SPDX-License-Identifier: MIT
#include "conformance/drive.h"
#include "tests/faults/fault.h"

#include <stdio.h>
#include <string.h>

typedef enum form {
    FORM_NEW,
    FORM_OUT,        /* a given destination that the kernel can write to */
    FORM_SHADOW,     /* a given destination that needs a temporary */
    FORM_IN_PLACE,
    FORM_GRAD,       /* a recorded call, then backward */
    FORM_DOUBLE,     /* a backward with create_graph, then a backward of its gradients */
    FORM_GRAD_IN_PLACE,
    FORM_COUNT
} form;
static const char *const form_names[] = {"new", "out=", "out= transposed", "in place", "gradient",
                                         "double backward",
                                         "gradient in place"};

typedef struct op_call {
    ts_case c;
    form form;
} op_call;

static ts_status boxed(const op_call *o, const ts_made *m, ts_value *rets, const ts_value *given)
{
    memcpy(rets, given, TS_MAX_RETS * sizeof *rets);
    return ts_call_boxed(o->c.op, m->args, m->nargs, rets, o->c.info->nrets);
}

/** Backward of each result that has a history; the graph is kept, so it may run again. */
static ts_status backward(const op_call *o, const ts_value *rets, ts_tensor *const *seeds)
{
    for (int i = 0; i < o->c.info->nrets; i++)
        if (seeds[i]) {
            ts_backward_opts opts = {.size = sizeof opts, .retain_graph = true};
            TS_TRY(ts_backward_ex(rets[i].t, seeds[i], &opts));
        }
    return TS_OK;
}

/** Gradients of the call with create_graph, then a backward from the first of them that requires
 *  grad. */
static ts_status twice(const op_call *o, const ts_made *m, const ts_value *rets,
                       ts_tensor *const *seeds, ts_tensor **out)
{
    ts_tensor *inputs[MADE_MOST];
    int n = 0;
    for (int i = 0; i < m->ntensors; i++)
        if (m->tensors[i].differentiable)
            inputs[n++] = m->tensors[i].t;
    for (int i = 0; i < o->c.info->nrets; i++) {
        ts_backward_opts opts = {.size = sizeof opts, .create_graph = true};
        if (!seeds[i])
            continue;
        TS_TRY(ts_grad_of(rets[i].t, seeds[i], inputs, n, out, &opts));
        for (int k = 0; k < n; k++)
            if (out[k] != TS_NONE && ts_requires_grad(out[k])) {
                /* without create_graph: .grad would reference a graph that references its leaf */
                opts = (ts_backward_opts){.size = sizeof opts, .retain_graph = true};
                TS_TRY(ts_backward_ex(out[k], ts_ones_like(out[k]), &opts));
                return TS_OK;
            }
    }
    return TS_OK;
}

static void zero_grads(const ts_made *m)
{
    for (int i = 0; i < m->ntensors; i++)
        ts_zero_grad(m->tensors[i].t);
}

static void call_op(fault_try *f, void *ctx)
{
    const op_call *o = ctx;
    const ts_case *c = &o->c;
    int nrets = c->info->nrets;
    TS_SCOPE;
    ts_made m;
    ts_value rets[TS_MAX_RETS], given[TS_MAX_RETS];
    bool grad = o->form >= FORM_GRAD;
    for (int i = 0; i < TS_MAX_RETS; i++)
        given[i] = ts_value_none();
    ck_assert(made_build(&m, c, NULL));
    for (int i = 0; grad && i < m.ntensors; i++)
        if (m.tensors[i].differentiable)
            ck_assert_ptr_nonnull(ts_set_requires_grad(m.tensors[i].t, true));
    if (o->form == FORM_GRAD_IN_PLACE) {
        m.args[0] = ts_value_tensor(ts_mul_scalar(m.tensors[0].t, 1.0));
        ck_assert_ptr_nonnull(m.args[0].t);
    }
    if (o->form == FORM_IN_PLACE || o->form == FORM_GRAD_IN_PLACE)
        given[0] = m.args[0];
    if (o->form == FORM_OUT || o->form == FORM_SHADOW) {
        ts_rng_set_state((ts_rng_state){1234, 0});
        ck_assert_int_eq(boxed(o, &m, rets, given), TS_OK);
        for (int i = 0; i < nrets; i++)
            if (rets[i].tag == TS_TAG_TENSOR) {
                ts_tensor *y = ts_adopt(rets[i].t);
                given[i] = ts_value_tensor(tensor_make(
                    NULL, ts_dtype_of(y), ts_sizes(y), ts_ndim(y),
                    o->form == FORM_OUT ? LAYOUT_OFFSET : LAYOUT_TRANSPOSED, TS_DEVICE_CPU, NULL));
            }
    }
    for (int i = 0; i < m.ntensors && i < 10; i++)
        if (m.tensors[i].written || m.tensors[i].t == given[0].t)
            fault_watch_written(f, m.tensors[i].t);
        else
            fault_watch(f, m.tensors[i].t);
    for (int i = 0; i < nrets; i++)
        if (given[i].tag == TS_TAG_TENSOR && given[i].t != m.tensors[0].t)
            fault_watch_written(f, given[i].t);

    ts_rng_set_state((ts_rng_state){1234, 0});
    fault_begin(f);
    ts_status status = boxed(o, &m, rets, given);
    fault_end(f);
    if (status != TS_OK && fault_judge(f, c->s->op, status)) {
        ts_rng_set_state((ts_rng_state){1234, 0});
        status = boxed(o, &m, rets, given);
    }
    fault_repeated(f, c->s->op, status);
    fault_unwatch(f);
    if (status == TS_OK) {
        for (int i = 0; i < nrets; i++)
            if (rets[i].tag == TS_TAG_TENSOR) {
                if (given[i].tag != TS_TAG_TENSOR)
                    ts_adopt(rets[i].t);
                if (!c->s->undefined)
                    fault_see(f, rets[i].t);
            }
        for (int i = 0; i < m.ntensors; i++)
            if (m.tensors[i].written)
                fault_see(f, m.tensors[i].t);
    }
    if (status == TS_OK && grad) {
        ts_tensor *seeds[TS_MAX_RETS] = {0}, *out[MADE_MOST] = {0};
        for (int i = 0; i < nrets; i++)
            if (rets[i].tag == TS_TAG_TENSOR && ts_requires_grad(rets[i].t) &&
                !(c->s->grad_rets && !(c->s->grad_rets >> i & 1)))
                seeds[i] = ts_full_like(rets[i].t, 0.75);
        for (int i = 0; i < m.ntensors && i < 10; i++)
            fault_watch(f, m.tensors[i].t);
        bool two = o->form == FORM_DOUBLE;
        fault_begin(f);
        status = two ? twice(o, &m, rets, seeds, out) : backward(o, rets, seeds);
        fault_end(f);
        if (status != TS_OK && fault_judge(f, "backward", status)) {
            zero_grads(&m);
            status = two ? twice(o, &m, rets, seeds, out) : backward(o, rets, seeds);
        }
        fault_repeated(f, "backward", status);
        for (int i = 0; i < m.ntensors; i++)
            fault_see(f, ts_grad(m.tensors[i].t));
        for (int i = 0; i < MADE_MOST && out[i]; i++)
            fault_see(f, out[i]);
        fault_unwatch(f);
    }
    made_free(&m);
}

/** True if the call succeeds without a fault; forms that an op refuses are not swept. */
static bool succeeds(const op_call *o)
{
    TS_SCOPE;
    ts_made m;
    ts_value rets[TS_MAX_RETS], given[TS_MAX_RETS];
    for (int i = 0; i < TS_MAX_RETS; i++)
        given[i] = ts_value_none();
    ck_assert(made_build(&m, &o->c, NULL));
    bool grad = o->form >= FORM_GRAD, leaf = false;
    for (int i = 0; grad && i < m.ntensors; i++)
        if (m.tensors[i].differentiable)
            leaf = ts_set_requires_grad(m.tensors[i].t, true) != NULL;
    if (o->form == FORM_GRAD_IN_PLACE && leaf)
        m.args[0] = ts_value_tensor(ts_mul_scalar(m.tensors[0].t, 1.0));
    ts_status status = grad && !leaf ? TS_ERR_VALUE : TS_OK;
    if (status == TS_OK && (o->form == FORM_IN_PLACE || o->form == FORM_GRAD_IN_PLACE))
        given[0] = m.args[0];
    if (status == TS_OK)
        status = boxed(o, &m, rets, given);
    if (status == TS_OK && (o->form == FORM_OUT || o->form == FORM_SHADOW)) {
        for (int i = 0; i < o->c.info->nrets; i++)
            if (rets[i].tag == TS_TAG_TENSOR) {
                ts_tensor *y = ts_adopt(rets[i].t);
                given[i] = ts_value_tensor(ts_empty_like(y));
            }
        status = boxed(o, &m, rets, given);
    }
    for (int i = 0; status == TS_OK && i < o->c.info->nrets; i++)
        if (rets[i].tag == TS_TAG_TENSOR && given[i].tag != TS_TAG_TENSOR)
            ts_adopt(rets[i].t);
    if (status == TS_OK && grad) {
        ts_tensor *seeds[TS_MAX_RETS] = {0}, *out[MADE_MOST];
        for (int i = 0; i < o->c.info->nrets; i++)
            if (rets[i].tag == TS_TAG_TENSOR && ts_requires_grad(rets[i].t) &&
                !(o->c.s->grad_rets && !(o->c.s->grad_rets >> i & 1)))
                seeds[i] = ts_full_like(rets[i].t, 0.75);
        status = o->form == FORM_DOUBLE ? twice(o, &m, rets, seeds, out) : backward(o, rets, seeds);
    }
    made_free(&m);
    return status == TS_OK;
}

static bool has_form(const op_call *o)
{
    const ts_sample *s = o->c.s;
    const ts_op_description *info = o->c.info;
    switch (o->form) {
    case FORM_NEW: return true;
    case FORM_OUT:
    case FORM_SHADOW: return info->nrets && info->kind != TS_VIEW && succeeds(o);
    case FORM_IN_PLACE: return s->inplace && succeeds(o);
    case FORM_GRAD_IN_PLACE:
        return s->inplace && s->grad && s->args[0].tag == TS_TAG_TENSOR && !s->args[0].nograd &&
               succeeds(o);
    default: return s->grad && sample_is_differentiable(info) && succeeds(o);
    }
}

static void sweep_family(const ts_sample_family *family)
{
    long points = 0;
    ts_set_num_threads(1);
    for (int k = 0; k < family->count; k++) {
        const ts_sample *s = &family->samples[k];
        uint16_t dtypes = s->dtypes ? s->dtypes : DT_FLOATS_;
        for (int d = 0; d < TS_DTYPE_COUNT; d++) {
            if (!(dtypes >> d & 1) || (!fault_whole() && d != __builtin_ctz(dtypes)))
                continue;
            for (int l = 0; l < (s->no_layouts || !fault_whole() ? 1 : 2); l++)
                for (int form = 0; form < FORM_COUNT; form++) {
                    op_call o = {.form = (enum form)form};
                    char name[128];
                    ck_assert(sample_case(s, &o.c));
                    o.c.dtype = (ts_dtype)d;
                    o.c.sweep = 3;
                    o.c.layout = l ? LAYOUT_MIXED : LAYOUT_CONTIGUOUS;
                    o.c.form = form_names[form];
                    if ((form >= FORM_GRAD && !ts_dtype_is_float(o.c.dtype)) || !has_form(&o))
                        continue;
                    snprintf(name, sizeof name, "%s '%s' %s%s, %s", s->op, s->name,
                             ts_dtype_name(o.c.dtype), l ? " mixed" : "", form_names[form]);
                    points += fault_sweep(name, call_op, &o, 0);
                }
        }
    }
    printf("%s: %ld injection points\n", family->name, points);
}

#define TS_FAMILY(family) \
    TS_TEST(family##_runs_out_of_memory, .timeout = 600) { sweep_family(&ts_family_##family); }
#include "conformance/families.def"

TS_TEST(a_whole_sweep_of_ops_has_ten_thousand_points)
{
    if (!fault_whole())
        TS_SKIP("needs TS_FAULTS=all");
    printf("%ld injection points in ops\n", fault_points());
    ck_assert_int_ge(fault_points(), 10000);
}
