/** @file attention.c  Scaled dot-product attention: rules of shapes and public forms. */
// SPDX-License-Identifier: MIT
#include "ops/parts.h"

#include <math.h>

/** Rows are dense: a kernel reads any other strides. */
static bool rows_dense(const ts_tensor *t) { return t->strides[3] == 1 || t->sizes[3] <= 1; }

/** Result i is dense and follows t's order of heads and rows in memory. */
static void result_like(ts_plan *plan, int i, const ts_tensor *t, const int64_t *sizes)
{
    ts_plan_result(plan, i, sizes, 4, (ts_dtype)t->dtype, t->storage->device);
    if (t->strides[2] > t->strides[1] && t->sizes[1] > 1 && t->sizes[2] > 1)
        plan->swapped |= (uint8_t)(1u << i);
}

/** query (B, H, S, D), key (B, G, T, D), value (B, G, T, E) from argument `first` on; H is a multiple of G. */
static ts_status check_operands(ts_frame *f, int first)
{
    const ts_value *a = f->args + first;
    const ts_tensor *q = a[0].t, *k = a[1].t, *v = a[2].t;
    ts_device device;
    TS_TRY(ts_check_float(f, first));
    for (int i = 0; i < 3; i++) {
        TS_TRY(ts_check_ndim(f, first + i, 4));
        if (a[i].t->dtype != q->dtype)
            return ts_fail_arg_hint(f, first + i, TS_ERR_DTYPE, "cast with ts_to()", "expected dtype %s as argument 'query', got %s",
                                    ts_dtype_name((ts_dtype)q->dtype), ts_dtype_name((ts_dtype)a[i].t->dtype));
        f->plan->strided |= (uint16_t)(rows_dense(a[i].t) << (first + i));
    }
    TS_TRY(ts_check_devices(f, false, &device));
    if (k->sizes[0] != q->sizes[0] || k->sizes[3] != q->sizes[3] ||
        (k->sizes[1] ? q->sizes[1] % k->sizes[1] != 0 : q->sizes[1] != 0)) {
        char got[192];
        return ts_fail_arg(f, first + 1, TS_ERR_SHAPE,
                           "expected sizes (%lld, a divisor of %lld, any, %lld) to go with argument 'query', got %s",
                           (long long)q->sizes[0], (long long)q->sizes[1], (long long)q->sizes[3],
                           ts_format_sizes(got, sizeof got, k->sizes, 4));
    }
    return ts_check_sizes(f, first + 2, (int64_t[]){k->sizes[0], k->sizes[1], k->sizes[2], v->sizes[3]}, 4);
}

ts_status ts_infer_scaled_dot_product_attention(ts_frame *f)
{
    TS_TRY(check_operands(f, 0));
    const ts_tensor *q = f->args[0].t;
    f->plan->compute = (ts_dtype)q->dtype;
    result_like(f->plan, 0, q, (int64_t[]){q->sizes[0], q->sizes[1], q->sizes[2], f->args[2].t->sizes[3]});
    ts_plan_result(f->plan, 1, q->sizes, 3, ts_statistic_dtype((ts_dtype)q->dtype), q->storage->device);
    return TS_OK;
}

/* grad, grad_lse, query, key, value, out, lse, scale, causal */
ts_status ts_infer_scaled_dot_product_attention_backward(ts_frame *f)
{
    TS_TRY(check_operands(f, 2));
    const ts_tensor *q = f->args[2].t;
    int64_t sizes[] = {q->sizes[0], q->sizes[1], q->sizes[2], f->args[4].t->sizes[3]};
    static const uint8_t ndims[] = {[0] = 4, [1] = 3, [5] = 4, [6] = 3};
    f->plan->compute = (ts_dtype)q->dtype;
    for (int i = 0; i < 7; i++) {
        const ts_tensor *t = f->args[i].t;
        if (!ndims[i] || f->args[i].tag != TS_TAG_TENSOR)
            continue;
        TS_TRY(ts_check_sizes(f, i, sizes, ndims[i]));
        if (t->dtype != q->dtype && (ndims[i] == 4 || t->dtype != ts_statistic_dtype((ts_dtype)q->dtype)))
            return ts_fail_arg(f, i, TS_ERR_DTYPE, "expected dtype %s as argument 'query', got %s",
                               ts_dtype_name((ts_dtype)q->dtype), ts_dtype_name((ts_dtype)t->dtype));
        if (ndims[i] == 4)
            f->plan->strided |= (uint16_t)(rows_dense(t) << i);
    }
    for (int i = 0; i < 3; i++)
        result_like(f->plan, i, f->args[2 + i].t, f->args[2 + i].t->sizes);
    return TS_OK;
}

/* ------------------------------------------------------------------------------ by parts ---- */

/**
 * t (B, H, S, D) as (B G, H / G S, D): the rows of all heads that share keys. H = G for keys and values.
 */
static ts_tensor *by_keys(const ts_frame *f, ts_tensor *t)
{
    const ts_tensor *k = f->args[3].t;
    if (!t)
        return NULL;
    int64_t groups = k->sizes[0] * k->sizes[1], share = k->sizes[1] ? t->sizes[1] / k->sizes[1] : 1;
    t = ts_as(t, ts_parts_dtype(f->plan->compute));
    return t ? ts_reshape(t, (int64_t[]){groups, share * t->sizes[2], t->sizes[3]}, 3) : NULL;
}

/** true where row i of S may not see key j of T: j > i + T - S. */
static ts_tensor *hidden(const ts_tensor *q, const ts_tensor *k)
{
    int64_t sizes[] = {q->sizes[2], k->sizes[2]};
    ts_tensor *all = ts_empty_on(sizes, 2, TS_BOOL, q->storage->device);
    return all ? ts_triu_(ts_fill_(all, true), sizes[1] - sizes[0] + 1) : NULL;
}

/*
 * The whole matrix of scores, S T numbers a head, stands in memory here, several times over:
 *   p = exp(scale q kᵀ - lse), dp = g vᵀ, ds = p (dp - sum(g out) + g_lse) scale; dq = ds k, dk = dsᵀ q, dv = pᵀ g
 */
ts_status ts_composite_scaled_dot_product_attention_backward(ts_frame *f)
{
    TS_SCOPE;
    const ts_value *args = f->args, *scale = &args[7];
    const ts_tensor *query = args[2].t, *key = args[3].t;
    ts_dtype dtype = ts_parts_dtype(f->plan->compute);
    double factor = scale->tag == TS_TAG_NONE ? 1 / sqrt((double)query->sizes[3]) : ts_value_number(scale);
    ts_tensor *g = by_keys(f, args[0].t), *q = by_keys(f, args[2].t), *k = by_keys(f, args[3].t), *v = by_keys(f, args[4].t);
    TS_TRY(q);
    int64_t groups = q->sizes[0], keys = key->sizes[2], rows = query->sizes[2];
    int64_t share = rows ? q->sizes[1] / rows : 1;
    const int64_t heads[] = {groups, share, rows, keys}, flat[] = {groups, share * rows, keys};
    const int64_t each[] = {groups, share * rows, 1};

    ts_tensor *lse = ts_reshape(ts_as(args[6].t, dtype), each, 3);
    ts_tensor *scores = ts_sub(ts_mul_scalar(ts_bmm(q, ts_transpose(k, 1, 2)), factor),
                               ts_masked_fill_scalar(lse, ts_eq_scalar(lse, -INFINITY), 0)); /* rows without keys */
    if (args[8].i)
        scores = ts_reshape(ts_masked_fill_scalar(ts_reshape(scores, heads, 4), hidden(query, key), -INFINITY), flat, 3);
    ts_tensor *p = ts_exp(scores);
    ts_tensor *delta = ts_sum_dim(ts_mul(g, by_keys(f, args[5].t)), 2, true);
    if (args[1].tag == TS_TAG_TENSOR)
        delta = ts_sub(delta, ts_reshape(ts_as(args[1].t, dtype), each, 3));
    ts_tensor *ds = ts_mul_scalar(ts_mul(p, ts_sub(ts_bmm(g, ts_transpose(v, 1, 2)), delta)), factor);

    ts_tensor *results[3] = {NULL, NULL, NULL};
    if (f->want & 1)
        results[0] = ts_bmm(ds, k);
    if (f->want & 2)
        results[1] = ts_bmm(ts_transpose(ds, 1, 2), q);
    if (f->want & 4)
        results[2] = ts_bmm(ts_transpose(p, 1, 2), g);
    for (int i = 0; i < 3; i++)
        if (f->want >> i & 1)
            TS_TRY(results[i] = ts_reshape(results[i], f->plan->ret[i].sizes, 4));
    return ts_parts_give(f, results, 3);
}

/** 2 B H S T (D + E), half of it when causal. */
static double cost(const ts_frame *f, int first, const ts_value *causal)
{
    const ts_tensor *q = f->args[first].t, *k = f->args[first + 1].t, *v = f->args[first + 2].t;
    double scores = (double)q->sizes[0] * (double)q->sizes[1] * (double)q->sizes[2] * (double)k->sizes[2];
    return scores * (double)(q->sizes[3] + v->sizes[3]) * (causal->i ? 1 : 2);
}

double ts_cost_scaled_dot_product_attention(const ts_frame *f) { return cost(f, 0, &f->args[4]); }
/* five products to the forward's two */
double ts_cost_scaled_dot_product_attention_backward(const ts_frame *f) { return 2.5 * cost(f, 2, &f->args[8]); }

/* -------------------------------------------------------------------------- public forms ---- */

static const ts_attention_opts defaults = {sizeof defaults, 0, false};

/** 0 stands for 1 / sqrt(D), which the kernel works out. */
static ts_value scale_of(const ts_attention_opts *opts)
{
    return opts->scale == 0 ? ts_value_none() : V_F(opts->scale);
}

ts_tensor *ts_scaled_dot_product_attention(ts_tensor *query, ts_tensor *key, ts_tensor *value)
{
    ts_value args[] = {V_T(query), V_T(key), V_T(value), ts_value_none(), V_B(false)};
    ts_tensor **outs[2] = {NULL, NULL};
    return ts_invoke_many(TS_OP_scaled_dot_product_attention, args, TS_N(args), 2, outs);
}

ts_tensor *ts_scaled_dot_product_attention_ex(ts_tensor *query, ts_tensor *key, ts_tensor *value, ts_tensor **lse,
                                              const ts_attention_opts *opts)
{
    opts = opts ? opts : &defaults;
    ts_value args[] = {V_T(query), V_T(key), V_T(value), scale_of(opts), V_B(opts->causal)};
    ts_tensor **outs[2] = {NULL, lse};
    return ts_invoke_many(TS_OP_scaled_dot_product_attention, args, TS_N(args), 2, outs);
}

ts_status ts_scaled_dot_product_attention_backward(ts_tensor *grad, ts_tensor *grad_lse, ts_tensor *query, ts_tensor *key,
                                                   ts_tensor *value, ts_tensor *out, ts_tensor *lse,
                                                   const ts_attention_opts *opts, ts_tensor **grads[3])
{
    opts = opts ? opts : &defaults;
    ts_value args[] = {V_T(grad), V_OPT(grad_lse), V_T(query), V_T(key), V_T(value), V_T(out), V_T(lse), scale_of(opts),
                       V_B(opts->causal)};
    ts_value rets[3];
    int want = 0;
    for (int i = 0; i < 3; i++) {
        rets[i] = ts_value_none();
        if (grads[i]) {
            *grads[i] = NULL;
            want |= 1 << i;
        }
    }
    TS_TRY(ts_call(TS_OP_scaled_dot_product_attention_backward, args, TS_N(args), rets, 3, 0, want, __builtin_return_address(0)));
    for (int i = 0; i < 3; i++)
        if (grads[i])
            *grads[i] = ts_scope_adopt(&ts_tls, rets[i].t);
    return TS_OK;
}
