/** @file attention.c  Scaled dot-product attention: rules of shapes and public forms. */
// SPDX-License-Identifier: MIT
#include "include/tessera/ops.h"
#include "ops/ops.h"

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
    ts_plan_result(f->plan, 1, q->sizes, 3, (ts_dtype)q->dtype, q->storage->device);
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
        if (t->dtype != q->dtype)
            return ts_fail_arg(f, i, TS_ERR_DTYPE, "expected dtype %s as argument 'query', got %s",
                               ts_dtype_name((ts_dtype)q->dtype), ts_dtype_name((ts_dtype)t->dtype));
        if (ndims[i] == 4)
            f->plan->strided |= (uint16_t)(rows_dense(t) << i);
    }
    for (int i = 0; i < 3; i++)
        result_like(f->plan, i, f->args[2 + i].t, f->args[2 + i].t->sizes);
    return TS_OK;
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
