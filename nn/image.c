/** @file image.c  Norms by channel, pooling, resizing. */
// SPDX-License-Identifier: MIT
#include "nn/nn.h"

#include <string.h>

/** New module whose payload is a copy of `payload`, of `bytes` bytes; NULL with an error. */
static ts_module *module_of(const ts_module_type *type, const void *payload, size_t bytes)
{
    ts_module *m = ts_module_new(type);
    if (m)
        memcpy(ts_module_payload(m), payload, bytes);
    return m;
}

/* -------------------------------------------------------------------------------- norms ---- */

typedef struct batch_norm {
    ts_tensor *weight, *bias, *mean, *var, // (channels), or TS_NONE
        *batches;                          // i64 (), or TS_NONE
    ts_batch_norm_opts opts;
} batch_norm;

static ts_tensor *batch_norm_forward(ts_module *m, ts_tensor *x)
{
    const batch_norm *n = ts_module_payload(m);
    bool training = ts_module_training(m), track = n->mean != TS_NONE;
    double momentum = n->opts.momentum;
    TS_SCOPE;
    if (training && track && n->opts.cumulative) {
        double before;
        TS_TRY_NULL(ts_item(n->batches, &before));
        momentum = 1 / (before + 1);
    }
    ts_tensor *y = (n->opts.relu ? ts_batch_norm_relu : ts_batch_norm)(
        x, n->mean, n->var, n->weight, n->bias, training || !track, momentum, n->opts.eps);
    if (y && training && track) {
        TS_NO_GRAD;
        TS_TRY_NULL(ts_add_scalar_(n->batches, 1));
    }
    return ts_keep(y);
}

static const ts_module_type batch_norm_type = {sizeof(ts_module_type), "BatchNorm",
                                               sizeof(batch_norm), batch_norm_forward, NULL};

static ts_status add_affine(ts_module *m, int64_t channels, bool affine, ts_tensor **weight,
                            ts_tensor **bias)
{
    TS_TRY(ts_module_add_parameter(m, "weight", affine ? ts_ones(&channels, 1, TS_F32) : TS_NONE,
                                   weight));
    return ts_module_add_parameter(m, "bias", affine ? ts_zeros(&channels, 1, TS_F32) : TS_NONE,
                                   bias);
}

static ts_status batch_norm_build(ts_module *m, int64_t channels)
{
    TS_SCOPE;
    batch_norm *n = ts_module_payload(m);
    bool track = !n->opts.no_statistics;
    TS_TRY(add_affine(m, channels, !n->opts.no_affine, &n->weight, &n->bias));
    TS_TRY(ts_module_add_buffer(m, "running_mean",
                                track ? ts_zeros(&channels, 1, TS_F32) : TS_NONE, true, &n->mean));
    TS_TRY(ts_module_add_buffer(m, "running_var", track ? ts_ones(&channels, 1, TS_F32) : TS_NONE,
                                true, &n->var));
    return ts_module_add_buffer(m, "num_batches_tracked",
                                track ? ts_zeros(NULL, 0, TS_I64) : TS_NONE, true, &n->batches);
}

ts_module *ts_batch_norm_new(int64_t channels, const ts_batch_norm_opts *opts)
{
    batch_norm n = {0};
    TS_TRY_NULL(TS_CHECK_VALUE(channels, channels >= 1, "at least 1"));
    TS_TRY_NULL(TS_CHECK_OPTS(&n.opts, opts));
    double eps = n.opts.eps, momentum = n.opts.momentum;
    TS_TRY_NULL(TS_CHECK_VALUE(eps, eps >= 0, "at least 0"));
    TS_TRY_NULL(TS_CHECK_VALUE(momentum, momentum >= 0 && momentum <= 1, "0 to 1"));
    n.opts.eps = eps != 0 ? eps : 1e-5;
    n.opts.momentum = momentum != 0 ? momentum : 0.1;
    ts_module *m = module_of(&batch_norm_type, &n, sizeof n);
    return m ? ts_nn_built(m, batch_norm_build(m, channels)) : NULL;
}

typedef struct group_norm {
    ts_tensor *weight, *bias; // (channels) or TS_NONE
    int64_t groups;
    double eps;
} group_norm;

static ts_tensor *group_norm_forward(ts_module *m, ts_tensor *x)
{
    const group_norm *n = ts_module_payload(m);
    return ts_group_norm(x, n->groups, n->weight, n->bias, n->eps);
}

static const ts_module_type group_norm_type = {sizeof(ts_module_type), "GroupNorm",
                                               sizeof(group_norm), group_norm_forward, NULL};

ts_module *ts_group_norm_new(int64_t groups, int64_t channels, double eps, bool affine)
{
    TS_TRY_NULL(TS_CHECK_VALUE(channels, channels >= 1, "at least 1"));
    TS_TRY_NULL(TS_CHECK_VALUE(groups, groups >= 1 && channels % groups == 0,
                               "a divisor of the channels"));
    TS_TRY_NULL(TS_CHECK_VALUE(eps, eps >= 0, "at least 0"));
    group_norm n = {.groups = groups, .eps = eps != 0 ? eps : 1e-5};
    ts_module *m = module_of(&group_norm_type, &n, sizeof n);
    if (!m)
        return NULL;
    TS_SCOPE;
    group_norm *made = ts_module_payload(m);
    return ts_nn_built(m, add_affine(m, channels, affine, &made->weight, &made->bias));
}

/* -------------------------------------------------------------------- pooling, resizing ---- */

typedef struct pool {
    ts_pool_opts opts;
    int dims;
} pool;

static ts_tensor *max_pool_forward(ts_module *m, ts_tensor *x)
{
    const pool *p = ts_module_payload(m);
    return p->dims == 1   ? ts_max_pool1d(x, &p->opts, NULL)
           : p->dims == 2 ? ts_max_pool2d(x, &p->opts, NULL)
                          : ts_max_pool3d(x, &p->opts, NULL);
}
static ts_tensor *avg_pool_forward(ts_module *m, ts_tensor *x)
{
    const pool *p = ts_module_payload(m);
    return p->dims == 1   ? ts_avg_pool1d(x, &p->opts)
           : p->dims == 2 ? ts_avg_pool2d(x, &p->opts)
                          : ts_avg_pool3d(x, &p->opts);
}

static const ts_module_type max_pool_type = {sizeof(ts_module_type), "MaxPool", sizeof(pool),
                                             max_pool_forward, NULL};
static const ts_module_type avg_pool_type = {sizeof(ts_module_type), "AvgPool", sizeof(pool),
                                             avg_pool_forward, NULL};

ts_module *ts_max_pool_new(int dims, const ts_pool_opts *opts)
{
    pool p = {.dims = dims};
    TS_TRY_NULL(TS_CHECK_VALUE(dims, dims >= 1 && dims <= 3, "1 to 3"));
    TS_TRY_NULL(TS_CHECK_POINTERS(opts));
    TS_TRY_NULL(TS_CHECK_OPTS(&p.opts, opts));
    p.opts.size = sizeof p.opts;
    return module_of(&max_pool_type, &p, sizeof p);
}

ts_module *ts_avg_pool_new(int dims, const ts_pool_opts *opts)
{
    pool p = {.dims = dims};
    TS_TRY_NULL(TS_CHECK_VALUE(dims, dims >= 1 && dims <= 3, "1 to 3"));
    TS_TRY_NULL(TS_CHECK_POINTERS(opts));
    TS_TRY_NULL(TS_CHECK_OPTS(&p.opts, opts));
    p.opts.size = sizeof p.opts;
    return module_of(&avg_pool_type, &p, sizeof p);
}

typedef struct adaptive {
    int64_t sizes[3];
    int dims;
} adaptive;

static ts_tensor *adaptive_avg_forward(ts_module *m, ts_tensor *x)
{
    const adaptive *a = ts_module_payload(m);
    return ts_adaptive_avg_pool(x, a->sizes, a->dims);
}
static ts_tensor *adaptive_max_forward(ts_module *m, ts_tensor *x)
{
    const adaptive *a = ts_module_payload(m);
    return ts_adaptive_max_pool(x, a->sizes, a->dims, NULL);
}

static const ts_module_type adaptive_avg_type = {sizeof(ts_module_type), "AdaptiveAvgPool",
                                                 sizeof(adaptive), adaptive_avg_forward, NULL};
static const ts_module_type adaptive_max_type = {sizeof(ts_module_type), "AdaptiveMaxPool",
                                                 sizeof(adaptive), adaptive_max_forward, NULL};

/** at: the public function, for errors. */
static ts_module *adaptive_new(ts_check_place at, const ts_module_type *type, const int64_t *sizes,
                               int ndim)
{
    adaptive a = {.dims = ndim};
    TS_TRY_NULL(ts_check_list(at, "sizes", "ndim", sizes, ndim));
    if (ndim < 1 || ndim > 3) {
        ts_check_refuse(at, "ndim", "1 to 3", ts_scalar_int(ndim));
        return NULL;
    }
    memcpy(a.sizes, sizes, (size_t)ndim * sizeof *sizes);
    return module_of(type, &a, sizeof a);
}

ts_module *ts_adaptive_avg_pool_new(const int64_t *sizes, int ndim)
{
    return adaptive_new(TS_CHECK_HERE, &adaptive_avg_type, sizes, ndim);
}
ts_module *ts_adaptive_max_pool_new(const int64_t *sizes, int ndim)
{
    return adaptive_new(TS_CHECK_HERE, &adaptive_max_type, sizes, ndim);
}

static ts_tensor *upsample_forward(ts_module *m, ts_tensor *x)
{
    return ts_interpolate(x, ts_module_payload(m));
}

static const ts_module_type upsample_type = {sizeof(ts_module_type), "Upsample",
                                             sizeof(ts_interpolate_opts), upsample_forward, NULL};

ts_module *ts_upsample_new(const ts_interpolate_opts *opts)
{
    ts_interpolate_opts o;
    TS_TRY_NULL(TS_CHECK_POINTERS(opts));
    TS_TRY_NULL(TS_CHECK_OPTS(&o, opts));
    o.size = sizeof o;
    return module_of(&upsample_type, &o, sizeof o);
}
