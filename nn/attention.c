/** @file attention.c  Multi-head attention with one projection for queries, keys and values. */
// SPDX-License-Identifier: MIT
#include "nn/nn.h"

typedef struct attention {
    ts_module *qkv, *proj, *dropout;
    int64_t width, heads, groups;
    ts_attention_opts opts;
} attention;

/** parts: views of qkv (B, T, H + 2G, D) as query (B, H, T, D), key and value (B, G, T, D). */
static ts_status split_heads(const attention *a, ts_tensor *qkv, ts_tensor **parts)
{
    if (a->heads == a->groups) {
        TS_TRY(ts_split(qkv, a->heads, 2, parts, 3)); // its backward writes the gradient once
    } else {
        parts[0] = ts_narrow(qkv, 2, 0, a->heads);
        parts[1] = ts_narrow(qkv, 2, a->heads, a->groups);
        parts[2] = ts_narrow(qkv, 2, a->heads + a->groups, a->groups);
    }
    for (int i = 0; i < 3; i++)
        parts[i] = ts_transpose(parts[i], 1, 2);
    return TS_OK;
}

static ts_tensor *attention_forward(ts_module *m, ts_tensor *x) // (B, T, C)
{
    const attention *a = ts_module_payload(m);
    if (ts_ndim(x) != 3) {
        ts_error_set(TS_ERR_SHAPE,
                     "MultiheadAttention: argument 'x': expected sizes (B, T, %lld), got %d dims",
                     (long long)a->width, ts_ndim(x));
        return NULL;
    }
    TS_SCOPE;
    ts_tensor *parts[3] = {NULL}, *qkv = ts_forward(a->qkv, x); // (B, T, (H + 2G) * D)
    qkv = ts_unflatten(qkv, 2, TS_SIZES(a->heads + 2 * a->groups, a->width / a->heads));
    TS_TRY_NULL(split_heads(a, qkv, parts));
    ts_tensor *y = ts_scaled_dot_product_attention_ex(parts[0], parts[1], parts[2], NULL,
                                                      &a->opts); // (B, H, T, D)
    y = ts_forward(a->proj, ts_flatten(ts_transpose(y, 1, 2), 2, 3));
    return ts_keep(a->dropout ? ts_forward(a->dropout, y) : y);
}

static const ts_module_type attention_type = {sizeof(ts_module_type), "MultiheadAttention",
                                              sizeof(attention), attention_forward, NULL};

static ts_status build(ts_module *m, int64_t width, int64_t heads, const ts_multihead_opts *opts)
{
    attention *a = ts_module_payload(m);
    a->width = width;
    a->heads = heads;
    a->groups = opts->kv_heads;
    a->opts = (ts_attention_opts){.size = sizeof a->opts, .causal = opts->causal};
    TS_TRY(ts_module_add(
        m, "qkv", ts_linear_new(width, width / heads * (heads + 2 * a->groups), !opts->no_bias),
        &a->qkv));
    TS_TRY(ts_module_add(m, "proj", ts_linear_new(width, width, !opts->no_bias), &a->proj));
    return ts_nn_add_dropout(m, opts->dropout, &a->dropout);
}

ts_module *ts_multihead_new(int64_t width, int64_t heads, const ts_multihead_opts *opts)
{
    ts_multihead_opts o;
    TS_TRY_NULL(TS_CHECK_OPTS(&o, opts));
    o.kv_heads = o.kv_heads ? o.kv_heads : heads;
    if (heads < 1 || width < 1 || width > INT32_MAX || width % heads != 0 || o.kv_heads < 1 ||
        heads % o.kv_heads != 0) {
        ts_error_set(TS_ERR_VALUE,
                     "multihead_new: expected heads that divide the width and kv_heads that divide "
                     "the heads, got width %lld, heads %lld, kv_heads %lld",
                     (long long)width, (long long)heads, (long long)o.kv_heads);
        return NULL;
    }
    ts_module *m = ts_module_new(&attention_type);
    return m ? ts_nn_built(m, build(m, width, heads, &o)) : NULL;
}
