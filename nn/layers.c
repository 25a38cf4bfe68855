/** @file layers.c  Linear, embedding, norms, dropout, activations, MLP, Sequential. */
// SPDX-License-Identifier: MIT
#include "nn/nn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------- linear ---- */

typedef struct linear {
    ts_tensor *weight, *bias; // (out, in), (out) or TS_NONE
} linear;

static ts_tensor *linear_forward(ts_module *m, ts_tensor *x)
{
    const linear *l = ts_module_payload(m);
    return ts_linear(x, l->weight, l->bias);
}

static const ts_module_type linear_type = {sizeof(ts_module_type), "Linear", sizeof(linear),
                                           linear_forward, NULL};

static ts_status linear_build(ts_module *m, int64_t in, int64_t out, bool bias)
{
    linear *l = ts_module_payload(m);
    double bound = 1 / sqrt((double)in);
    TS_SCOPE;
    TS_TRY(ts_module_add_parameter(
        m, "weight", ts_uniform(TS_SIZES(out, in), -bound, bound, TS_F32), &l->weight));
    return ts_module_add_parameter(
        m, "bias", bias ? ts_uniform(TS_SIZES(out), -bound, bound, TS_F32) : TS_NONE, &l->bias);
}

ts_module *ts_linear_new(int64_t in, int64_t out, bool bias)
{
    TS_TRY_NULL(TS_CHECK_VALUE(in, in >= 1, "at least 1"));
    TS_TRY_NULL(TS_CHECK_VALUE(out, out >= 1, "at least 1"));
    ts_module *m = ts_module_new(&linear_type);
    return m ? ts_nn_built(m, linear_build(m, in, out, bias)) : NULL;
}

/* ---------------------------------------------------------------------------- embedding ---- */

static ts_tensor *embedding_forward(ts_module *m, ts_tensor *x)
{
    return ts_embedding(*(ts_tensor **)ts_module_payload(m), x, -1);
}

static const ts_module_type embedding_type = {sizeof(ts_module_type), "Embedding",
                                              sizeof(ts_tensor *), embedding_forward, NULL};

ts_module *ts_embedding_new(int64_t count, int64_t width)
{
    TS_TRY_NULL(TS_CHECK_VALUE(count, count >= 1, "at least 1"));
    TS_TRY_NULL(TS_CHECK_VALUE(width, width >= 1, "at least 1"));
    ts_module *m = ts_module_new(&embedding_type);
    if (!m)
        return NULL;
    TS_SCOPE;
    ts_tensor *weight = ts_normal(TS_SIZES(count, width), 0, 1, TS_F32);
    return ts_nn_built(m, ts_module_add_parameter(m, "weight", weight, ts_module_payload(m)));
}

/* -------------------------------------------------------------------------------- norms ---- */

typedef struct norm {
    ts_tensor *weight, *bias; // (width); bias may be TS_NONE
    ts_normalization_opts opts;
} norm;

static ts_tensor *layer_norm_forward(ts_module *m, ts_tensor *x)
{
    const norm *n = ts_module_payload(m);
    return ts_layer_norm_ex(x, n->weight, n->bias, &n->opts);
}

static ts_tensor *rms_norm_forward(ts_module *m, ts_tensor *x)
{
    const norm *n = ts_module_payload(m);
    return ts_rms_norm_ex(x, n->weight, &n->opts);
}

static const ts_module_type layer_norm_type = {sizeof(ts_module_type), "LayerNorm", sizeof(norm),
                                               layer_norm_forward, NULL};
static const ts_module_type rms_norm_type = {sizeof(ts_module_type), "RMSNorm", sizeof(norm),
                                             rms_norm_forward, NULL};

static ts_module *norm_new(const ts_module_type *type, int64_t width, double eps, bool bias)
{
    ts_module *m = ts_module_new(type);
    if (!m)
        return NULL;
    TS_SCOPE;
    norm *n = ts_module_payload(m);
    n->opts = (ts_normalization_opts){.size = sizeof n->opts, .eps = eps, .dims = 1};
    ts_status status = ts_module_add_parameter(m, "weight", ts_ones(&width, 1, TS_F32), &n->weight);
    if (status == TS_OK)
        status = ts_module_add_parameter(m, "bias", bias ? ts_zeros(&width, 1, TS_F32) : TS_NONE,
                                         &n->bias);
    return ts_nn_built(m, status);
}

ts_module *ts_layer_norm_new(int64_t width, double eps, bool bias)
{
    TS_TRY_NULL(TS_CHECK_VALUE(width, width >= 1, "at least 1"));
    TS_TRY_NULL(TS_CHECK_VALUE(eps, eps >= 0, "at least 0"));
    return norm_new(&layer_norm_type, width, eps, bias);
}

ts_module *ts_rms_norm_new(int64_t width, double eps)
{
    TS_TRY_NULL(TS_CHECK_VALUE(width, width >= 1, "at least 1"));
    TS_TRY_NULL(TS_CHECK_VALUE(eps, eps >= 0, "at least 0"));
    return norm_new(&rms_norm_type, width, eps, false);
}

/* ------------------------------------------------------------------ dropout, activations ---- */

static ts_tensor *dropout_forward(ts_module *m, ts_tensor *x)
{
    return ts_dropout(x, *(const double *)ts_module_payload(m), ts_module_training(m));
}

static const ts_module_type dropout_type = {sizeof(ts_module_type), "Dropout", sizeof(double),
                                            dropout_forward, NULL};

ts_module *ts_dropout_new(double p)
{
    TS_TRY_NULL(TS_CHECK_VALUE(p, p >= 0 && p <= 1, "a probability from 0 to 1"));
    ts_module *m = ts_module_new(&dropout_type);
    if (m)
        *(double *)ts_module_payload(m) = p;
    return m;
}

ts_status ts_nn_add_dropout(ts_module *m, double p, ts_module **dropout)
{
    return p != 0 ? ts_module_add(m, "dropout", ts_dropout_new(p), dropout) : TS_OK;
}

/* Each activation module has its own ts_module_type, because the type holds the name. */
typedef struct activation {
    ts_module_type type;
    ts_tensor *(*function)(ts_tensor *x);
    char name[32];
} activation;

static ts_tensor *activation_forward(ts_module *m, ts_tensor *x)
{
    return (*(activation **)ts_module_payload(m))->function(x);
}

static void activation_free(void *payload) { free(*(activation **)payload); }

ts_module *ts_activation_new(const char *name, ts_tensor *(*function)(ts_tensor *x))
{
    TS_TRY_NULL(TS_CHECK_POINTERS(name, function));
    activation *a = ts_nn_alloc(1, sizeof *a, "an activation");
    if (!a)
        return NULL;
    snprintf(a->name, sizeof a->name, "%s", name);
    a->function = function;
    a->type =
        (ts_module_type){sizeof a->type, a->name, sizeof a, activation_forward, activation_free};
    ts_module *m = ts_module_new(&a->type);
    if (m)
        *(activation **)ts_module_payload(m) = a;
    else
        free(a);
    return m;
}

/* ---------------------------------------------------------------------------------- mlp ---- */

typedef struct mlp {
    ts_module *fc, *proj, *dropout;
    ts_tensor *(*activation)(ts_tensor *x);
} mlp;

static ts_tensor *forward_gelu(ts_module *m, ts_tensor *x)
{
    const linear *fc = ts_module_payload(m);
    return ts_linear_gelu(x, fc->weight, fc->bias, false, NULL);
}

static ts_tensor *forward_gelu_tanh(ts_module *m, ts_tensor *x)
{
    const linear *fc = ts_module_payload(m);
    return ts_linear_gelu(x, fc->weight, fc->bias, true, NULL);
}

static ts_tensor *mlp_forward(ts_module *m, ts_tensor *x)
{
    const mlp *p = ts_module_payload(m);
    TS_SCOPE;
    ts_nn_forward_fn fused = p->fc->hooks                      ? NULL /* they see fc's result */
                             : p->activation == ts_gelu        ? forward_gelu
                             : p->activation == ts_gelu_tanh   ? forward_gelu_tanh
                                                               : NULL;
    ts_tensor *h = fused ? ts_nn_forward_by(p->fc, x, fused)
                         : p->activation(ts_forward(p->fc, x)); // (..., hidden)
    ts_tensor *y = ts_forward(p->proj, h);
    return ts_keep(p->dropout ? ts_forward(p->dropout, y) : y);
}

static const ts_module_type mlp_type = {sizeof(ts_module_type), "MLP", sizeof(mlp), mlp_forward,
                                        NULL};

static ts_status mlp_build(ts_module *m, int64_t width, int64_t hidden, const ts_mlp_opts *opts)
{
    mlp *p = ts_module_payload(m);
    p->activation = opts->activation ? opts->activation : ts_gelu;
    TS_TRY(ts_module_add(m, "fc", ts_linear_new(width, hidden, !opts->no_bias), &p->fc));
    TS_TRY(ts_module_add(m, "proj", ts_linear_new(hidden, width, !opts->no_bias), &p->proj));
    return ts_nn_add_dropout(m, opts->dropout, &p->dropout);
}

ts_module *ts_mlp_new(int64_t width, int64_t hidden, const ts_mlp_opts *opts)
{
    ts_mlp_opts o;
    TS_TRY_NULL(TS_CHECK_VALUE(width, width >= 1, "at least 1"));
    TS_TRY_NULL(TS_CHECK_VALUE(hidden, hidden >= 1, "at least 1"));
    TS_TRY_NULL(TS_CHECK_OPTS(&o, opts));
    ts_module *m = ts_module_new(&mlp_type);
    return m ? ts_nn_built(m, mlp_build(m, width, hidden, &o)) : NULL;
}

/* --------------------------------------------------------------------------- sequential ---- */

static void release_held(ts_tensor **t) { ts_release(*t); }

/** Holds a reference to a child's result until the next child has returned, because the result may
 *  belong to an outer scope. `cleanup` releases the reference if an exception ends the forward. */
static ts_tensor *sequential_forward(ts_module *m, ts_tensor *x)
{
    ts_tensor *y __attribute__((cleanup(release_held))) = NULL;
    for (int i = 0, n = m->nmembers; i < n; i++)
        if (m->members[i].child) {
            TS_SCOPE;
            ts_tensor *next = ts_retain(ts_forward(m->members[i].child, y ? y : x));
            ts_release(y);
            y = next;
            TS_TRY_NULL(y);
        }
    ts_tensor *last = y;
    y = NULL;
    return last ? ts_adopt(last) : x;
}

static const ts_module_type sequential_type = {sizeof(ts_module_type), "Sequential", 0,
                                               sequential_forward, NULL};

ts_module *ts_sequential_new(void) { return ts_module_new(&sequential_type); }

ts_status ts_sequential_add(ts_module *sequential, ts_module *child)
{
    char name[16];
    ts_status status = TS_CHECK_OBJECTS(sequential, child);
    if (status != TS_OK) {
        ts_module_free(child);
        return status;
    }
    snprintf(name, sizeof name, "%d", ts_module_num_children(sequential));
    return ts_module_add(sequential, name, child, NULL);
}
