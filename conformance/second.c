/**
 * @file second.c
 * Tests second gradients in f64. With results y, weights v of the results and weights u of the
 * gradients, Q(x, v) = sum(u · d(sum(v · y(x)))/dx). The gradient of Q, from a backward that is
 * recorded, is compared with central differences of Q, from a backward that is not recorded and
 * therefore runs the fused kernels.
 */
// SPDX-License-Identifier: MIT
#include "conformance/drive.h"

#include <math.h>
#include <string.h>

static const double step = 1e-6, absolute = 1e-5, relative = 1e-3;

enum { LEAVES_MOST = MADE_MOST + TS_MAX_RETS };

/** Variables of Q: the differentiable arguments, then the weights of results. */
typedef struct leaves {
    int n, narguments;
    double *values[LEAVES_MOST]; /* borrowed for arguments, owned for weights */
    int64_t numel[LEAVES_MOST];
    double *u[MADE_MOST];        /* owned; per argument */
    int arg[MADE_MOST];          /* index of the op's argument */
} leaves;

static double *numbers(int64_t n, uint64_t *seed)
{
    double *x = malloc((size_t)(n + 1) * sizeof *x);
    for (int64_t e = 0; e < n; e++)
        x[e] = round_to(random_normal(seed), TS_F32);
    return x;
}

static ts_tensor *like(const ts_case *c, const ts_tensor *t, double *values)
{
    return tensor_make(values, ts_dtype_of(t), ts_sizes(t), ts_ndim(t), LAYOUT_CONTIGUOUS,
                       c->device, NULL);
}

/** Returns sum + sum(t · w), where a `sum` of NULL counts as 0; NULL on failure. */
static ts_tensor *add_product(ts_tensor *sum, ts_tensor *t, ts_tensor *w)
{
    ts_tensor *product = ts_sum(ts_mul(t, w));
    return sum ? ts_add(sum, product) : product;
}

/**
 * Returns Q, NULL on failure. On the first call (l->n is 0), sets l->n and generates u and the
 * weights.
 * @param create  record the backward. `places` then receives the l->n leaves: the differentiable
 *                arguments, then the weights of results
 */
static ts_tensor *second_value(const ts_case *c, ts_made *m, leaves *l, bool create,
                               ts_tensor **places)
{
    static const uint64_t seeds[] = {7, 13};
    uint64_t seed = seeds[0];
    ts_value rets[TS_MAX_RETS];
    ts_tensor *x[MADE_MOST], *grads[MADE_MOST], *sum = NULL, *q = NULL;
    bool fresh = !l->n;
    int n = 0;
    for (int i = 0; i < TS_MAX_RETS; i++)
        rets[i] = ts_value_none();
    for (int i = 0; i < m->ntensors; i++)
        if (m->tensors[i].differentiable)
            x[n++] = ts_set_requires_grad(m->tensors[i].t, true);
    if (sample_call(c, m, rets) != TS_OK)
        return NULL;
    int at = l->narguments = n;
    for (int i = 0; i < c->info->nrets; i++) {
        ts_tensor *y = rets[i].tag == TS_TAG_TENSOR ? rets[i].t : NULL;
        if (!y || !ts_requires_grad(y) || (c->s->grad_rets && !(c->s->grad_rets >> i & 1)))
            continue;
        if (fresh) {
            l->numel[at] = ts_numel(y);
            l->values[at] = numbers(ts_numel(y), &seed);
        }
        ts_tensor *v = like(c, y, l->values[at]);
        if (!v || !ts_set_requires_grad(v, create) || !(sum = add_product(sum, y, v)))
            return NULL;
        if (create)
            places[at] = v;
        at++;
    }
    l->n = at;
    for (int k = 0; create && k < n; k++)
        places[k] = x[k];
    ts_backward_opts opts = {.size = sizeof opts, .create_graph = create};
    if (!sum || ts_grad_of(sum, TS_NONE, x, n, grads, &opts) != TS_OK)
        return NULL;
    seed = seeds[1];
    for (int k = 0; k < n; k++) {
        if (fresh)
            l->u[k] = numbers(ts_numel(x[k]), &seed);
        if (grads[k] != TS_NONE && !(q = add_product(q, grads[k], like(c, x[k], l->u[k]))))
            return NULL;
    }
    return q ? q : ts_zero_(ts_empty_on(NULL, 0, c->dtype, c->device));
}

/** Q through fused kernels, with `values` as arguments. NaN if a call fails. */
static double second_at(const ts_case *c, double *const *values, leaves *l)
{
    TS_SCOPE;
    ts_made m;
    double q = NAN;
    if (!made_build(&m, c, values))
        return q;
    ts_tensor *t = second_value(c, &m, l, false, NULL);
    if (t && ts_item(t, &q) != TS_OK)
        q = NAN;
    made_free(&m);
    return q;
}

/** Compares elements of grads with central differences of Q. False after a reported failure. */
static bool differences(const ts_case *c, const ts_made *m, leaves *l, double **grads)
{
    double *values[MADE_MOST];
    for (int i = 0; i < m->ntensors; i++)
        values[i] = m->tensors[i].values;
    for (int k = 0; k < l->n; k++)
        for (int64_t e = 0; e < l->numel[k]; e += sample_run.few ? 4 : 1) {
            double at = l->values[k][e];
            l->values[k][e] = at + step;
            double above = second_at(c, values, l);
            l->values[k][e] = at - step;
            double below = second_at(c, values, l);
            l->values[k][e] = at;
            double want = (above - below) / (2 * step), got = grads[k] ? grads[k][e] : 0;
            if (fabs(got - want) <= absolute + relative * fabs(want))
                continue;
            const char *name = k < l->narguments ? c->info->args[l->arg[k]].name : "the weights";
            sample_failed(
                c, "second gradient of '%s' (leaf %d) element %lld is %.10g, differences say %.10g",
                name, k, (long long)e, got, want);
            return false;
        }
    return true;
}

/** Computes *q and its gradients with respect to all leaves through a recorded backward; the caller
 * frees grads[]. False after a reported failure. */
static bool analytic(const ts_case *c, ts_made *m, leaves *l, double *q, double **grads)
{
    ts_tensor *places[LEAVES_MOST], *g[LEAVES_MOST];
    ts_tensor *t = second_value(c, m, l, true, places);
    if (!t || ts_item(t, q) != TS_OK ||
        (ts_requires_grad(t) && ts_grad_of(t, TS_NONE, places, l->n, g, NULL) != TS_OK)) {
        sample_refused(c);
        return false;
    }
    for (int k = 0; k < l->n; k++)
        grads[k] = ts_requires_grad(t) && g[k] != TS_NONE ? tensor_values(g[k]) : NULL;
    return true;
}

void sample_check_second(ts_case c)
{
    TS_SCOPE;
    c.dtype = TS_F64;
    c.layout = LAYOUT_CONTIGUOUS;
    c.form = "second gradient";
    ts_made m;
    leaves l = {0};
    double *grads[LEAVES_MOST] = {0}, recorded = 0;
    if (!made_build(&m, &c, NULL))
        return;
    for (int i = 0, k = 0; i < m.ntensors; i++)
        if (m.tensors[i].differentiable) {
            l.values[k] = m.tensors[i].values;
            l.numel[k] = ts_numel(m.tensors[i].t);
            l.arg[k++] = m.tensors[i].arg;
        }
    bool good = analytic(&c, &m, &l, &recorded, grads);
    if (good) {
        double *values[MADE_MOST];
        for (int i = 0; i < m.ntensors; i++)
            values[i] = m.tensors[i].values;
        double fused = second_at(&c, values, &l);
        good = fabs(recorded - fused) <= 1e-9 * (1 + fabs(fused));
        if (!good)
            sample_failed(&c, "recorded gradients sum to %.17g, those of fused kernels to %.17g",
                          recorded, fused);
    }
    if (good && differences(&c, &m, &l, grads))
        sample_passed(&c);
    for (int k = 0; k < LEAVES_MOST; k++)
        free(grads[k]);
    for (int k = 0; k < l.narguments; k++)
        free(l.u[k]);
    for (int k = l.narguments; k < l.n; k++)
        free(l.values[k]);
    made_free(&m);
}
