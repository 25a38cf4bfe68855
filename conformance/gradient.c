/**
 * @file gradient.c  Tests gradients: in f64 against central differences, in f32, bf16 and f16
 * against those in f64. Gradients of other devices are compared with the CPU's in f64.
 */
// SPDX-License-Identifier: MIT
#include "conformance/drive.h"

#include <math.h>
#include <string.h>

enum { SMALL = 3 }; /* size of the dims that the samples sweep */
/* central differences: distance from the value, and tolerances of the comparison */
static const double step = 1e-6, absolute = 1e-5, relative = 1e-3;

bool sample_is_differentiable(const ts_op_description *info)
{
    return info->gradient == TS_GRADIENT_RULE || info->gradient == TS_GRADIENT_PARTS;
}

/** The loss of a test is the sum of results times weights: n[i] weights w[i] for result i, or
 * NULL. */
typedef struct weights {
    double *w[TS_MAX_RETS];
    int64_t n[TS_MAX_RETS];
} weights;

static void results_none(ts_value *rets)
{
    for (int i = 0; i < TS_MAX_RETS; i++)
        rets[i] = ts_value_none();
}

/** Sum of results times weights with `values` as arguments. NaN if the call fails. */
static double loss_at(ts_case c, double *const *values, const weights *w)
{
    TS_SCOPE;
    TS_NO_GRAD;
    c.layout = LAYOUT_CONTIGUOUS;
    ts_made m;
    ts_value rets[TS_MAX_RETS];
    results_none(rets);
    if (!made_build(&m, &c, values))
        return NAN;
    double sum = 0;
    if (sample_call(&c, &m, rets) != TS_OK)
        sum = NAN;
    for (int i = 0; !isnan(sum) && i < c.info->nrets; i++) {
        if (!w->w[i])
            continue;
        double *y = tensor_values(rets[i].t);
        for (int64_t e = 0; e < w->n[i]; e++)
            sum += w->w[i][e] * y[e];
        free(y);
    }
    made_free(&m);
    return sum;
}

/**
 * Computes the gradients of the weighted sum of the results with respect to each differentiable
 * tensor; the caller frees grads and w with grads_free(). Generates weights that are absent. False
 * after a reported failure.
 */
static bool analytic(const ts_case *c, ts_made *m, weights *w, ts_layout weights_layout,
                     double **grads)
{
    ts_value rets[TS_MAX_RETS];
    results_none(rets);
    for (int i = 0; i < m->ntensors; i++)
        if (m->tensors[i].differentiable)
            ts_set_requires_grad(m->tensors[i].t, true);
    if (sample_call(c, m, rets) != TS_OK) {
        sample_refused(c);
        return false;
    }
    bool any = false;
    uint64_t seed = 99;
    for (int i = 0; i < c->info->nrets; i++) {
        ts_tensor *y = rets[i].tag == TS_TAG_TENSOR ? rets[i].t : NULL;
        if (!y || !ts_requires_grad(y) || (c->s->grad_rets && !(c->s->grad_rets >> i & 1)))
            continue;
        any = true;
        if (!w->w[i]) {
            w->n[i] = ts_numel(y);
            w->w[i] = malloc((size_t)(w->n[i] + 1) * sizeof(double));
            for (int64_t e = 0; e < w->n[i]; e++)
                w->w[i][e] = round_to(random_normal(&seed), c->dtype == TS_F64 ? TS_F32 : c->dtype);
        }
        ts_tensor *g = tensor_make(w->w[i], ts_dtype_of(y), ts_sizes(y), ts_ndim(y), weights_layout,
                                   c->device, NULL);
        if (!g) {
            sample_refused(c);
            return false;
        }
        ts_backward_opts opts = {.size = sizeof opts, .retain_graph = true};
        if (ts_backward_ex(y, g, &opts) != TS_OK) {
            if (sample_is_refusal(c, ts_error_code()))
                sample_refused(c);
            else
                sample_failed(c, "backward of result %d: %s", i, ts_error_message());
            return false;
        }
    }
    if (!any) {
        sample_failed(c, "no result requires grad");
        return false;
    }
    for (int i = 0; i < m->ntensors; i++) {
        ts_made_tensor *x = &m->tensors[i];
        if (!x->differentiable)
            continue;
        ts_tensor *g = ts_grad(x->t);
        bool fits =
            g == TS_NONE ||
            (ts_ndim(g) == ts_ndim(x->t) && ts_dtype_of(g) == ts_dtype_of(x->t) &&
             memcmp(ts_sizes(g), ts_sizes(x->t), (size_t)ts_ndim(g) * sizeof(int64_t)) == 0);
        if (!fits) {
            sample_failed(c, "the gradient of '%s' is %s, expected %s", c->info->args[x->arg].name,
                          meta_text(g), meta_text(x->t));
            return false;
        }
        if (on_meta(c->device))
            continue;
        grads[i] =
            g == TS_NONE ? calloc((size_t)ts_numel(x->t) + 1, sizeof(double)) : tensor_values(g);
        if (!grads[i]) {
            sample_failed(c, "the gradient of '%s' cannot be read: %s", c->info->args[x->arg].name,
                          ts_error_message());
            return false;
        }
    }
    return true;
}

static void grads_free(double **grads, weights *w)
{
    for (int i = 0; i < MADE_MOST; i++)
        free(grads[i]);
    for (int i = 0; w && i < TS_MAX_RETS; i++)
        free(w->w[i]);
}

/** Compares elements of grads with central differences. False after a reported failure. */
static bool differences(const ts_case *c, const ts_made *m, const weights *w, double **grads)
{
    double *values[MADE_MOST];
    for (int i = 0; i < m->ntensors; i++)
        values[i] = m->tensors[i].values;
    for (int i = 0; i < m->ntensors; i++) {
        const ts_made_tensor *x = &m->tensors[i];
        for (int64_t e = 0; x->differentiable && e < ts_numel(x->t); e += sample_run.few ? 4 : 1) {
            double at = x->values[e];
            x->values[e] = at + step;
            double above = loss_at(*c, values, w);
            x->values[e] = at - step;
            double below = loss_at(*c, values, w);
            x->values[e] = at;
            double want = (above - below) / (2 * step);
            if (!(fabs(grads[i][e] - want) <= absolute + relative * fabs(want))) {
                sample_failed(
                    c, "gradient of '%s' (tensor %d) element %lld is %.10g, differences say %.10g",
                    c->info->args[x->arg].name, i, (long long)e, grads[i][e], want);
                return false;
            }
        }
    }
    return true;
}

/** Tests the gradients of one case in f64 with central differences. In the expanded layout the
 * weights are equal along the expanded dim. */
static void check_f64(ts_case c, ts_layout weights_layout)
{
    TS_SCOPE;
    c.dtype = TS_F64;
    c.form = weights_layout == LAYOUT_CONTIGUOUS ? "gradient" : "gradient with expanded weights";
    ts_made m;
    weights w = {0};
    double *grads[MADE_MOST] = {0};
    if (!made_build(&m, &c, NULL))
        return;
    if (weights_layout == LAYOUT_EXPANDED) { /* weights that are equal along the expanded dim */
        TS_SCOPE;
        TS_NO_GRAD;
        ts_value rets[TS_MAX_RETS];
        results_none(rets);
        uint64_t seed = 99;
        if (sample_call(&c, &m, rets) == TS_OK)
            for (int i = 0; i < c.info->nrets; i++) {
                ts_tensor *y =
                    rets[i].tag == TS_TAG_TENSOR && ts_dtype_is_float(ts_dtype_of(rets[i].t))
                        ? rets[i].t
                        : NULL;
                if (!y || (c.s->grad_rets && !(c.s->grad_rets >> i & 1)))
                    continue;
                w.n[i] = ts_numel(y);
                w.w[i] = malloc((size_t)(w.n[i] + 1) * sizeof(double));
                for (int64_t e = 0; e < w.n[i]; e++)
                    w.w[i][e] = random_normal(&seed);
                tensor_make(w.w[i], TS_F64, ts_sizes(y), ts_ndim(y), LAYOUT_EXPANDED, TS_DEVICE_CPU,
                            NULL);
            }
    }
    if (analytic(&c, &m, &w, weights_layout, grads) && differences(&c, &m, &w, grads))
        sample_passed(&c);
    grads_free(grads, &w);
    made_free(&m);
}

/**
 * Compares the gradients in a dtype on the run's device with the CPU's in f64, for the same values.
 * In an expanded layout, weights are equal along the expanded dim in both. On META only sizes and
 * dtypes are compared.
 */
static void check_narrow(ts_case c, ts_dtype dtype, ts_layout weights_layout)
{
    static const char *const forms[] = {[TS_F64] = "gradient in f64",
                                        [TS_F32] = "gradient in f32",
                                        [TS_BF16] = "gradient in bf16",
                                        [TS_F16] = "gradient in f16"};
    TS_SCOPE;
    c.dtype = dtype;
    c.form = forms[dtype];
    ts_made single, wide;
    weights w = {0};
    double *grads[2][MADE_MOST] = {{0}}, *values[MADE_MOST];
    if (!made_build(&single, &c, NULL))
        return;
    for (int i = 0; i < single.ntensors; i++)
        values[i] = single.tensors[i].values;
    ts_case d = c;
    d.dtype = TS_F64;
    d.layout = LAYOUT_CONTIGUOUS;
    d.device = TS_DEVICE_CPU;
    if (!made_build(&wide, &d, values)) {
        made_free(&single);
        return;
    }
    bool good = analytic(&c, &single, &w, weights_layout, grads[0]) &&
                analytic(&d, &wide, &w, LAYOUT_CONTIGUOUS, grads[1]);
    double depth = c.s->depth == SWEEP ? SMALL : c.s->depth ? (double)c.s->depth : 1;
    double unit = (c.s->grad_c ? c.s->grad_c : 32) * dtype_eps(dtype) * sqrt(depth);
    for (int i = 0; good && !on_meta(c.device) && i < single.ntensors; i++) {
        double largest = 1;
        int64_t n = single.tensors[i].differentiable ? ts_numel(single.tensors[i].t) : 0;
        for (int64_t e = 0; e < n; e++)
            largest = fmax(largest, fabs(grads[1][i][e]));
        for (int64_t e = 0; good && e < n; e++)
            if (!(fabs(grads[0][i][e] - grads[1][i][e]) <= unit * largest)) {
                sample_failed(&c, "gradient of '%s' (tensor %d) element %lld is %.9g, in f64 %.9g",
                              c.info->args[single.tensors[i].arg].name, i, (long long)e,
                              grads[0][i][e], grads[1][i][e]);
                good = false;
            }
    }
    if (good)
        sample_passed(&c);
    grads_free(grads[0], &w);
    grads_free(grads[1], NULL);
    made_free(&single);
    made_free(&wide);
}

/** A tensor with the sizes, dtype and device of t, filled with one number. Calls no factory of the
 * device, which may lack it. */
static ts_tensor *filled(const ts_tensor *t, double number)
{
    double *values = malloc((size_t)(ts_numel(t) + 1) * sizeof *values);
    for (int64_t i = 0; i < ts_numel(t); i++)
        values[i] = number;
    ts_tensor *y = tensor_make(values, ts_dtype_of(t), ts_sizes(t), ts_ndim(t), LAYOUT_CONTIGUOUS,
                               ts_device_of(t), NULL);
    free(values);
    return y;
}

/** Tests ops without a gradient: backward through an op without a rule must be an error that names
 * the op, and results of a NODIFF op must not require grad. */
static void check_none(ts_case c)
{
    TS_SCOPE;
    c.dtype = sample_dtypes(c.s) >> TS_F32 & 1 ? TS_F32 : TS_F64;
    if (!(sample_dtypes(c.s) >> c.dtype & 1) && sample_run.dtypes)
        return;
    c.layout = LAYOUT_CONTIGUOUS;
    c.form = "no gradient";
    ts_made m;
    ts_value rets[TS_MAX_RETS];
    results_none(rets);
    if (!made_build(&m, &c, NULL))
        return;
    bool leaf = false, written = false;
    for (int i = 0; i < m.ntensors; i++) {
        written |= m.tensors[i].written;
        if (m.tensors[i].differentiable)
            leaf = ts_set_requires_grad(m.tensors[i].t, true) != NULL;
    }
    if (!leaf || written || sample_call(&c, &m, rets) != TS_OK) {
        made_free(&m);
        return;
    }
    bool nodiff = c.info->gradient == TS_GRADIENT_NEVER, good = true, compared = false;
    for (int i = 0; good && i < c.info->nrets; i++) {
        ts_tensor *y = rets[i].tag == TS_TAG_TENSOR ? rets[i].t : NULL;
        if (!y || !ts_dtype_is_float(ts_dtype_of(y)) || !ts_numel(y))
            continue;
        compared = true;
        ts_backward_opts opts = {.size = sizeof opts, .retain_graph = true};
        good = nodiff ? !ts_requires_grad(y)
                      : ts_backward_ex(y, filled(y, 1), &opts) == TS_ERR_AUTOGRAD &&
                            strstr(ts_error_message(), c.s->op) != NULL;
        if (!good)
            sample_failed(&c, "result %d: expected %s, got: %s", i,
                          nodiff ? "no history" : "a named error", ts_error_message());
    }
    if (good && compared)
        sample_passed(&c);
    made_free(&m);
}

/** Runs backward from the sum of the squared gradients, which have a history. */
static ts_status add_second(const ts_made *m)
{
    ts_tensor *sum = NULL;
    for (int i = 0; i < m->ntensors; i++) {
        ts_tensor *g = m->tensors[i].differentiable ? ts_grad(m->tensors[i].t) : TS_NONE;
        if (!ts_requires_grad(g))
            continue;
        ts_tensor *square = ts_sum(ts_square(g));
        TS_TRY(sum = sum ? ts_add(sum, square) : square);
    }
    return sum ? ts_backward(sum) : TS_OK;
}

/** Tests that the gradient through the in-place form, and in f64 also the second gradient, equal
 * those of the form with a new result. */
static void check_in_place(ts_case c, ts_dtype dtype)
{
    TS_SCOPE;
    c.dtype = dtype;
    c.layout = LAYOUT_CONTIGUOUS;
    c.form = "gradient in place";
    double *grads[2][MADE_MOST] = {{0}};
    bool good = true, compared = false;
    for (int k = 0; k < 2 && good; k++) { /* new, then in place on a copy of self */
        ts_made m;
        ts_value rets[TS_MAX_RETS];
        results_none(rets);
        if (!made_build(&m, &c, NULL)) {
            good = false;
            break;
        }
        for (int i = 0; i < m.ntensors; i++)
            if (m.tensors[i].differentiable)
                ts_set_requires_grad(m.tensors[i].t, true);
        ts_tensor *self = ts_mul_scalar(m.tensors[0].t, 1.0);
        if (!self) {
            sample_refused(&c);
            made_free(&m);
            good = false;
            break;
        }
        m.args[0] = ts_value_tensor(self);
        if (k)
            rets[0] = ts_value_tensor(self);
        ts_status status = sample_call(&c, &m, rets);
        if (status == TS_OK)
            status = ts_backward_ex(rets[0].t, filled(rets[0].t, 0.75),
                                    &(ts_backward_opts){.size = sizeof(ts_backward_opts),
                                                        .create_graph = dtype == TS_F64});
        if (status == TS_OK && dtype == TS_F64)
            status = add_second(&m);
        good = status == TS_OK;
        if (!good)
            sample_refused(&c);
        for (int i = 0; status == TS_OK && !on_meta(c.device) && i < m.ntensors; i++)
            if (m.tensors[i].differentiable && ts_grad(m.tensors[i].t) != TS_NONE)
                grads[k][i] = tensor_values(ts_grad(m.tensors[i].t));
        for (int i = 0; i < m.ntensors; i++)
            ts_zero_grad(m.tensors[i].t); /* the history of a gradient may hold the tensor */
        for (int i = 0; k && good && i < m.ntensors; i++)
            for (int64_t e = 0; good && grads[0][i] && e < ts_numel(m.tensors[i].t); e++) {
                compared = true;
                good = grads[1][i] && grads[0][i][e] == grads[1][i][e];
                if (!good)
                    sample_failed(
                        &c, "gradient of tensor %d element %lld is %.17g, the new form's %.17g", i,
                        (long long)e, grads[1][i] ? grads[1][i][e] : NAN, grads[0][i][e]);
            }
        made_free(&m);
    }
    if (good && compared)
        sample_passed(&c);
    grads_free(grads[0], NULL);
    grads_free(grads[1], NULL);
}

static bool in_place_differentiates(const ts_sample *s)
{
    return s->inplace && s->args[0].tag == TS_TAG_TENSOR && !s->args[0].nograd;
}

/** Tests the gradients of a device other than the CPU in all floating dtypes and layouts. */
static void check_device(ts_case c)
{
    uint16_t dtypes = sample_dtypes(c.s);
    if (on_meta(c.device) && c.s->no_meta)
        return;
    if (in_place_differentiates(c.s) && dtypes >> TS_F32 & 1)
        check_in_place(c, TS_F32);
    for (ts_dtype d = TS_F64; d <= TS_F16; d++) {
        if (!(dtypes >> d & 1))
            continue;
        for (int l = 0; l < (c.s->no_layouts ? 1 : LAYOUT_COUNT); l++) {
            c.layout = (ts_layout)l;
            check_narrow(c, d, LAYOUT_CONTIGUOUS);
        }
        c.layout = LAYOUT_CONTIGUOUS;
        check_narrow(c, d, LAYOUT_EXPANDED);
    }
}

/** Tests the CPU's gradients: f64 with central differences, narrower dtypes with f64. */
static void check_cpu(ts_case c)
{
    if (!sample_run.dtypes || sample_run.dtypes & TS_DT(TS_F64)) {
        if (in_place_differentiates(c.s))
            check_in_place(c, TS_F64);
        for (int l = 0; l < (c.s->no_layouts ? 1 : LAYOUT_COUNT); l++) {
            c.layout = (ts_layout)l;
            check_f64(c, LAYOUT_CONTIGUOUS);
        }
        c.layout = LAYOUT_CONTIGUOUS;
        check_f64(c, LAYOUT_EXPANDED);
    }
    c.layout = LAYOUT_CONTIGUOUS;
    for (ts_dtype d = TS_F32; d <= TS_F16; d++)
        if (sample_dtypes(c.s) >> d & 1)
            check_narrow(c, d, LAYOUT_CONTIGUOUS);
}

void ts_samples_gradients(const ts_sample_family *family)
{
    ts_set_num_threads(1);
    for (int k = 0; k < family->count; k++) {
        const ts_sample *s = &family->samples[k];
        ts_case c;
        if (!sample_case(s, &c))
            continue;
        c.sweep = SMALL;
        if (!sample_is_differentiable(c.info)) {
            check_none(c);
            continue;
        }
        if (!s->grad)
            continue;
        (on_cpu(c.device) ? check_cpu : check_device)(c);
        if (on_cpu(c.device))
            sample_check_second(c);
    }
}
