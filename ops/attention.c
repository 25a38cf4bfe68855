/** @file attention.c  Scaled dot-product attention: shape rules, composite of the backward, public
 * functions. */
// SPDX-License-Identifier: MIT
#include "include/tessera/check.h"
#include "core/checked.h"
#include "core/philox.h"
#include "ops/parts.h"

#include <math.h>
#include <string.h>

/** Indices of a call's arguments: query, key, value starting at `first`, options starting at
 * `mask`. */
typedef struct indices {
    int first, mask, cu_seqlens, max_seqlens, scale, window, softcap, dropout_p;
} indices;
static const indices forward = {0, 3, 4, 5, 6, 7, 8, 9}, backward = {2, 7, 8, 9, 10, 11, 12, 13};
enum { SEED = 14, OFFSET = 15 }; /* indices of two arguments that only the backward has */

static bool is_backward(const ts_frame *f)
{
    return f->op == TS_OP_scaled_dot_product_attention_backward;
}

ts_attention ts_kernel_attention(const ts_frame *f)
{
    if (TS_CHECK_LENT(f, "frame") != TS_OK)
        return (ts_attention){0};
    if (f->op != TS_OP_scaled_dot_product_attention && !is_backward(f)) {
        ts_fail_decoder(f, "kernel_attention");
        return (ts_attention){0};
    }
    const indices *at = is_backward(f) ? &backward : &forward;
    const ts_value *a = f->args, *scale = &a[at->scale];
    const ts_tensor *q = a[at->first].t, *k = a[at->first + 1].t, *v = a[at->first + 2].t;
    ts_attention c = {.query = q, .key = k, .value = v,
                      .batch = q->sizes[0], .heads = q->sizes[1], .groups = k->sizes[1],
                      .rows = q->sizes[2], .keys = k->sizes[2],
                      .depth = q->sizes[3], .value_depth = v->sizes[3],
                      .softcap = a[at->softcap].d, .dropout_p = a[at->dropout_p].d};
    if (a[at->mask].tag == TS_TAG_TENSOR)
        c.mask = a[at->mask].t;
    if (a[at->cu_seqlens].tag == TS_TAG_TENSORS && a[at->cu_seqlens].count == 1) {
        c.key_lengths = a[at->cu_seqlens].list[0];
    } else if (a[at->cu_seqlens].tag == TS_TAG_TENSORS) {
        c.cu_seqlens_q = a[at->cu_seqlens].list[0];
        c.cu_seqlens_k = a[at->cu_seqlens].list[1];
        c.batch = c.cu_seqlens_q->sizes[0] - 1;
        c.rows = a[at->max_seqlens].ints[0];
        c.keys = a[at->max_seqlens].ints[1];
    }
    /* unsigned: the reserve function runs before the sizes are checked, so the sum may overflow */
    c.left = c.right = (int64_t)((uint64_t)c.rows + (uint64_t)c.keys);
    if (a[at->window].tag == TS_TAG_INTS) {
        const int64_t *window = a[at->window].ints;
        c.left = window[0] < 0 || window[0] > c.left ? c.left : window[0];
        c.right = window[1] < 0 || window[1] > c.right ? c.right : window[1];
    }
    c.scale = scale->tag == TS_TAG_NONE ? 1 / sqrt((double)c.depth) : ts_value_number(scale);
    c.rng = is_backward(f) ? (ts_rng_state){(uint64_t)a[SEED].i, (uint64_t)a[OFFSET].i} : f->rng;
    return c;
}

/* --------------------------------------------------------------------------------- rules ---- */

/** True if the last dim is dense; kernels accept any strides of the other dims. */
static bool rows_dense(const ts_tensor *t) { return t->strides[3] == 1 || t->sizes[3] <= 1; }

/** Plans result i with t's dtype and device and these 4 sizes: dense, with heads and rows in the
 *  order in which t has them in memory. */
static void result_like(ts_plan *plan, int i, const ts_tensor *t, const int64_t *sizes)
{
    ts_plan_result(plan, i, sizes, 4, (ts_dtype)t->dtype, t->storage->device);
    static const uint8_t rows_first[] = {0, 2, 1, 3};
    if (t->strides[2] > t->strides[1] && t->sizes[1] > 1 && t->sizes[2] > 1) {
        memcpy(plan->order, rows_first, sizeof rows_first);
        plan->ordered |= (uint8_t)(1u << i);
    }
}

/** Checks the three arguments starting at `first`: query (B, H, S, D), key (B, G, T, D) and value
 * (B, G, T, E), where H is a multiple of G, or both are 0. Sets plan->compute and plan->strided. */
static ts_status check_operands(ts_frame *f, int first)
{
    const ts_value *a = f->args + first;
    const ts_tensor *q = a[0].t, *k = a[1].t, *v = a[2].t;
    TS_TRY(ts_check_float(f, first));
    for (int i = 0; i < 3; i++) {
        TS_TRY(ts_check_ndim(f, first + i, 4));
        TS_TRY(ts_check_dtype_as(f, first + i, first, "cast with ts_to()"));
        f->plan->strided |= (uint16_t)(rows_dense(a[i].t) << (first + i));
    }
    TS_TRY(ts_check_one_device(f));
    if (k->sizes[0] != q->sizes[0] || k->sizes[3] != q->sizes[3] ||
        (k->sizes[1] && q->sizes[1] ? q->sizes[1] % k->sizes[1] != 0
                                    : q->sizes[1] != k->sizes[1])) {
        return ts_fail_arg(f, first + 1, TS_ERR_SHAPE,
                           "expected sizes (%lld, a divisor of %lld, any, %lld) to match argument "
                           "'query', got %s",
                           (long long)q->sizes[0], (long long)q->sizes[1], (long long)q->sizes[3],
                           TS_SIZES_TEXT(k));
    }
    f->plan->compute = (ts_dtype)q->dtype;
    return ts_check_sizes(f, first + 2,
                          (int64_t[]){k->sizes[0], k->sizes[1], k->sizes[2], v->sizes[3]}, 4);
}

/** Checks key lengths: a list of one tensor, i32 of sizes (batch). */
static ts_status check_key_lengths(ts_frame *f, const indices *at)
{
    const ts_tensor *t = f->args[at->cu_seqlens].list[0];
    if (t->dtype != TS_I32)
        return ts_fail_op(TS_ERR_DTYPE, ts_op_name(f->op), f->site, "cast with ts_to()",
                          "argument 'key_lengths': expected dtype i32, got %s",
                          ts_dtype_name((ts_dtype)t->dtype));
    if (t->ndim != 1 || t->sizes[0] != f->args[at->first].t->sizes[0])
        return ts_fail_op(TS_ERR_SHAPE, ts_op_name(f->op), f->site, NULL,
                          "argument 'key_lengths': expected sizes (%lld), as the batch, got %s",
                          (long long)f->args[at->first].t->sizes[0], TS_SIZES_TEXT(t));
    return TS_OK;
}

/** Checks the arguments of a packed batch: cu_seqlens, two tensors of sequence bounds (i32, sizes
 *  (sequences + 1)), and max_seqlens, two numbers. A single tensor holds key lengths instead. */
static ts_status check_packed(ts_frame *f, const indices *at)
{
    const ts_value *lists = &f->args[at->cu_seqlens], *most = &f->args[at->max_seqlens];
    if (lists->tag == TS_TAG_NONE && most->tag == TS_TAG_NONE)
        return TS_OK;
    if (lists->tag != TS_TAG_NONE && lists->count == 1 && most->tag == TS_TAG_NONE)
        return check_key_lengths(f, at);
    if (lists->tag == TS_TAG_NONE || lists->count != 2)
        return ts_fail_arg(f, at->cu_seqlens, TS_ERR_VALUE,
                           "expected two tensors of bounds, for queries and for keys, got %u",
                           lists->tag == TS_TAG_NONE ? 0 : lists->count);
    if (most->tag == TS_TAG_NONE || most->count != 2 || (uint64_t)most->ints[0] > INT32_MAX ||
        (uint64_t)most->ints[1] > INT32_MAX) {
        return ts_fail_arg(
            f, at->max_seqlens, TS_ERR_VALUE,
            "expected two numbers from 0 to 2147483647 with argument 'cu_seqlens', got %s",
            most->tag == TS_TAG_NONE ? "none" : TS_LIST_TEXT(most->ints, most->count));
    }
    for (int i = 0; i < 2; i++) {
        const ts_tensor *t = lists->list[i], *first = lists->list[0];
        if (t->dtype != TS_I32)
            return ts_fail_member(f, at->cu_seqlens, i, TS_ERR_DTYPE, "cast with ts_to()",
                                  "expected dtype i32, got %s",
                                  ts_dtype_name((ts_dtype)t->dtype));
        if (t->ndim != 1 || t->sizes[0] < 1 || t->sizes[0] != first->sizes[0])
            return ts_fail_member(f, at->cu_seqlens, i, TS_ERR_SHAPE, NULL,
                                  "expected %s, got sizes %s",
                                  i ? "the sizes of 'cu_seqlens[0]'" : "sizes (sequences + 1)",
                                  TS_SIZES_TEXT(t));
    }
    if (f->args[at->first].t->sizes[0] != 1)
        return ts_fail_arg(f, at->first, TS_ERR_SHAPE,
                           "expected sizes (1, heads, tokens, depth) with argument 'cu_seqlens', "
                           "got %lld batches",
                           (long long)f->args[at->first].t->sizes[0]);
    return TS_OK;
}

static ts_status check_mask(ts_frame *f, int arg, const int64_t *sizes)
{
    const ts_tensor *t = f->args[arg].t;
    ts_dtype own = f->plan->compute;
    if (t->dtype != TS_BOOL && t->dtype != own && t->dtype != ts_widened_dtype(own))
        return ts_fail_arg_hint(f, arg, TS_ERR_DTYPE, "cast with ts_to()",
                                "expected dtype bool%s or %s as argument 'query', got %s",
                                ts_dtype_is_half(own) ? ", f32" : "", ts_dtype_name(own),
                                ts_dtype_name((ts_dtype)t->dtype));
    f->plan->strided |= (uint16_t)(1u << arg);
    return ts_check_broadcasts(f, arg, sizes, 4);
}

static ts_status check_options(ts_frame *f, const indices *at)
{
    const ts_value *a = f->args, *window = &a[at->window];
    double softcap = a[at->softcap].d, p = a[at->dropout_p].d;
    if (window->tag == TS_TAG_INTS &&
        (window->count != 2 || window->ints[0] < -1 || window->ints[1] < -1)) {
        return ts_fail_arg(f, at->window, TS_ERR_VALUE,
                           "expected (left, right), each at least 0, or -1 for no bound, got %s",
                           TS_LIST_TEXT(window->ints, window->count));
    }
    if (!(softcap >= 0) || isinf(softcap))
        return ts_fail_arg(f, at->softcap, TS_ERR_VALUE,
                           "expected a finite number of at least 0, got %g", softcap);
    if (!(p >= 0 && p <= 1))
        return ts_fail_arg(f, at->dropout_p, TS_ERR_VALUE,
                           "expected a probability from 0 to 1, got %g", p);
    TS_TRY(check_packed(f, at));
    if (a[at->mask].tag == TS_TAG_NONE && p == 0)
        return TS_OK;
    ts_attention c = ts_kernel_attention(f);
    int64_t sizes[] = {c.batch, c.heads, c.rows, c.keys}, pairs;
    if (a[at->mask].tag == TS_TAG_TENSOR)
        TS_TRY(check_mask(f, at->mask, sizes));
    if (p > 0 && !ts_product(sizes, 4, &pairs))
        return ts_fail_arg(f, at->dropout_p, TS_ERR_SHAPE,
                           "expected fewer than 2^63 pairs of rows and keys, got sizes %s",
                           TS_LIST_TEXT(sizes, 4));
    return TS_OK;
}

/** One Philox counter covers four (row, key) pairs. If the call is invalid the count does not
 *  matter. */
uint64_t ts_reserve_scaled_dot_product_attention(const ts_frame *f)
{
    const ts_value *a = f->args, *lists = &a[forward.cu_seqlens], *most = &a[forward.max_seqlens];
    const ts_value *window = &a[forward.window];
    bool packed = lists->tag == TS_TAG_TENSORS && !(lists->count == 1 && most->tag == TS_TAG_NONE);
    if (!(a[forward.dropout_p].d > 0) || a[0].t->ndim != 4 || a[1].t->ndim != 4 ||
        (window->tag == TS_TAG_INTS && window->count != 2) ||
        (packed && (lists->count != 2 || lists->list[0]->ndim != 1 || most->tag != TS_TAG_INTS ||
                    most->count != 2)))
        return 0;
    ts_attention c = ts_kernel_attention(f);
    return ts_philox_blocks_32((uint64_t)c.batch * (uint64_t)c.heads * (uint64_t)c.rows *
                               (uint64_t)c.keys);
}

ts_status ts_infer_scaled_dot_product_attention(ts_frame *f)
{
    TS_TRY(check_operands(f, forward.first));
    TS_TRY(check_options(f, &forward));
    const ts_tensor *q = f->args[0].t;
    result_like(f->plan, 0, q,
                (int64_t[]){q->sizes[0], q->sizes[1], q->sizes[2], f->args[2].t->sizes[3]});
    ts_plan_result(f->plan, 1, q->sizes, 3, ts_widened_dtype((ts_dtype)q->dtype),
                   q->storage->device);
    return TS_OK;
}

ts_status ts_infer_scaled_dot_product_attention_backward(ts_frame *f)
{
    TS_TRY(check_operands(f, backward.first));
    TS_TRY(check_options(f, &backward));
    const ts_tensor *q = f->args[2].t;
    int64_t sizes[] = {q->sizes[0], q->sizes[1], q->sizes[2], f->args[4].t->sizes[3]};
    /* grad, grad_lse, out, lse */
    static const uint8_t ndims[] = {[0] = 4, [1] = 3, [5] = 4, [6] = 3};
    for (int i = 0; i < 7; i++) {
        const ts_tensor *t = f->args[i].t;
        if (!ndims[i] || f->args[i].tag != TS_TAG_TENSOR)
            continue;
        TS_TRY(ts_check_sizes(f, i, sizes, ndims[i]));
        if (ndims[i] == 4 || t->dtype != ts_widened_dtype((ts_dtype)q->dtype))
            TS_TRY(ts_check_dtype_as(f, i, backward.first, "cast with ts_to()"));
        if (ndims[i] == 4)
            f->plan->strided |= (uint16_t)(rows_dense(t) << i);
    }
    for (int i = 0; i < 3; i++)
        result_like(f->plan, i, f->args[2 + i].t, f->args[2 + i].t->sizes);
    return TS_OK;
}

/* ------------------------------------------------------------------------------ by parts ---- */

/**
 * Converts packed sequences (1, H, tokens, D) to a padded batch (B, H, S, D) and back. Padding
 * holds copies of arbitrary tokens, which the mask excludes.
 */
typedef struct padding {
    ts_tensor *from;   /* (B S) i64, token at each padded position; NULL: not packed */
    ts_tensor *to;     /* (tokens) i64, padded position of each token */
    ts_tensor *length; /* (B, 1, 1, 1) i64, number of tokens of each sequence; NULL: `most`. Keys
                          may have lengths without being packed */
    int64_t batch, most; /* B, and S, the padded length */
} padding;

/** 0 to n - 1 on a device, i64. */
static ts_tensor *count_up(int64_t n, ts_device device)
{
    ts_tensor *ones = ts_empty_on(&n, 1, TS_I64, device);
    return ones ? ts_sub_scalar(ts_cumsum(ts_fill_(ones, 1), 0), 1) : NULL;
}

/** Fills *p. bounds: (B + 1); tokens and most (the longest sequence) must not be 0. */
static ts_status padding_of(padding *p, ts_tensor *bounds, int64_t tokens, int64_t most)
{
    *p = (padding){.batch = bounds->sizes[0] - 1, .most = most};
    ts_device device = bounds->storage->device;
    bounds = ts_to(bounds, TS_I64);
    ts_tensor *start = ts_unsqueeze(ts_narrow(bounds, 0, 0, p->batch), 1),
              *end = ts_unsqueeze(ts_narrow(bounds, 0, 1, p->batch), 1);
    p->length = ts_reshape(ts_sub(end, start), (int64_t[]){p->batch, 1, 1, 1}, 4);
    p->from = ts_reshape(ts_clamp_max(ts_add(start, count_up(most, device)), tokens - 1),
                         (int64_t[]){p->batch * most}, 1);
    /* a token's sequence is the number of sequences that end before the token */
    ts_tensor *token = count_up(tokens, device),
              *sequence = ts_sum_dim(ts_le(end, token), 0, false);
    token = ts_sub(token, ts_index_select(bounds, 0, sequence));
    p->to = ts_add(token, ts_mul_scalar(sequence, most));
    return TS_STATUS_OF(p->to && p->from && p->length ? p->to : NULL);
}

/** (1, H, tokens, D) to (B, H, S, D). */
static ts_tensor *pad(const padding *p, ts_tensor *t)
{
    if (!p->from)
        return t;
    t = ts_index_select(t, 2, p->from);
    t = ts_unflatten(t, 2, (int64_t[]){p->batch, p->most}, 2); // (1, H, B, S, D)
    return ts_transpose(ts_squeeze_dim(t, 0), 0, 1);
}

/** (B, H, S, D) to (1, H, tokens, D). */
static ts_tensor *unpad(const padding *p, ts_tensor *t)
{
    if (!p->from)
        return t;
    t = ts_flatten(ts_transpose(t, 0, 1), 1, 2); /* (H, B S, D) */
    return ts_unsqueeze(ts_index_select(t, 1, p->to), 0);
}

/** Reshapes t from (B, H, S, D) to (B G, (H / G) S, D), so that all rows that share keys are in one
 * matrix. For keys and values H is G. */
static ts_tensor *by_keys(ts_tensor *t, int64_t groups)
{
    int64_t share = t && groups ? t->sizes[1] / groups : 1;
    return t ? ts_reshape(t, (int64_t[]){t->sizes[0] * groups, share * t->sizes[2], t->sizes[3]}, 3)
             : NULL;
}

static ts_tensor *mask_or(ts_tensor *a, ts_tensor *b)
{
    return a == TS_NONE ? b : ts_logical_or(a, b);
}

/** A bool mask that broadcasts to (B, H, S, T), true where a row must not attend to a key; TS_NONE
 *  if every row attends to every key. */
static ts_tensor *hidden(const ts_attention *c, const padding *rows, const padding *keys)
{
    ts_device device = c->query->storage->device;
    ts_tensor *all = TS_NONE, *key = count_up(c->keys, device);
    ts_tensor *row = ts_unsqueeze(count_up(c->rows, device), 1);
    /* position of a key minus the position of the row's own key, (S, T) or (B, 1, S, T) */
    ts_tensor *ahead = ts_sub(key, row);
    ahead = rows->length   ? ts_sub(ahead, ts_sub(keys->length, rows->length))
            : keys->length ? ts_sub(ahead, ts_sub_scalar(keys->length, c->rows))
                           : ts_sub_scalar(ahead, c->keys - c->rows);
    if (c->right < c->rows + c->keys)
        all = mask_or(all, ts_gt_scalar(ahead, c->right));
    if (c->left < c->rows + c->keys)
        all = mask_or(all, ts_lt_scalar(ahead, -c->left));
    if (rows->length)
        all = mask_or(all, ts_ge(row, rows->length));
    if (keys->length)
        all = mask_or(all, ts_ge(key, keys->length));
    if (c->mask)
        all = mask_or(all, c->mask->dtype == TS_BOOL
                              ? ts_logical_not((ts_tensor *)c->mask)
                              : ts_eq_scalar((ts_tensor *)c->mask, -INFINITY));
    return all;
}

/** The dropout factors of the attention weights: 0 or 1 / (1 - p), in the shape of by_keys(). */
static ts_tensor *dropout_factors(const ts_attention *c, ts_dtype dtype)
{
    int64_t sizes[] = {c->batch, c->heads, c->rows, c->keys};
    ts_tensor *ones = ts_empty_on(sizes, 4, dtype, c->query->storage->device);
    return by_keys(ones ? ts_dropout_backward(ts_fill_(ones, 1), c->dropout_p, c->rng) : NULL,
                   c->groups);
}

static ts_tensor *zeros(const ts_meta *m)
{
    ts_tensor *t = ts_empty_on(m->sizes, m->ndim, m->dtype, m->device);
    return t ? ts_zero_(t) : NULL;
}

/*
 * The composite stores several matrices of scores, each S × T numbers per head. docs/attention.md
 * has the formulas.
 */
ts_status ts_composite_scaled_dot_product_attention_backward(ts_frame *f)
{
    TS_SCOPE;
    const ts_value *args = f->args;
    ts_attention c = ts_kernel_attention(f);
    ts_dtype dtype = ts_widened_dtype(f->plan->compute);
    ts_tensor *results[3] = {NULL, NULL, NULL}, *in[7] = {NULL};
    padding rows = {0}, keys = {0};
    bool packed = c.cu_seqlens_q != NULL;
    if (packed && (!c.query->sizes[2] || !c.key->sizes[2])) { /* no token to index for padding */
        for (int i = 0; i < 3; i++)
            if (f->want >> i & 1)
                TS_TRY(results[i] = zeros(&f->plan->ret[i]));
        return ts_parts_give(f, results, 3);
    }
    if (packed) {
        TS_TRY(padding_of(&rows, (ts_tensor *)c.cu_seqlens_q, c.query->sizes[2], c.rows));
        TS_TRY(padding_of(&keys, (ts_tensor *)c.cu_seqlens_k, c.key->sizes[2], c.keys));
    }
    if (c.key_lengths) {
        keys.length = ts_reshape(ts_to((ts_tensor *)c.key_lengths, TS_I64),
                                 (int64_t[]){c.batch, 1, 1, 1}, 4);
        TS_TRY(keys.length);
    }
    for (int i = 0; i < 7; i++) { /* grad, grad_lse, query, key, value, out, lse */
        bool statistic = i == 1 || i == 6;
        if (args[i].tag != TS_TAG_TENSOR)
            continue;
        ts_tensor *t = ts_as(statistic ? ts_unsqueeze(args[i].t, 3) : args[i].t, dtype);
        TS_TRY(in[i] = by_keys(pad(i == 3 || i == 4 ? &keys : &rows, t), c.groups));
    }
    ts_tensor *g = in[0], *q = in[2], *k = in[3], *v = in[4], *lse = in[6];

    const int64_t heads[] = {c.batch, c.heads, c.rows, c.keys};
    ts_tensor *scores = ts_mul_scalar(ts_bmm(q, ts_transpose(k, 1, 2)), c.scale), *slope = TS_NONE;
    if (c.softcap > 0) {
        ts_tensor *tanh = ts_tanh(ts_mul_scalar(scores, 1 / c.softcap));
        slope = ts_rsub_scalar(ts_mul(tanh, tanh), 1);
        scores = ts_mul_scalar(tanh, c.softcap);
    }
    TS_TRY(scores);
    ts_tensor *masked = ts_reshape(scores, heads, 4), *hide = hidden(&c, &rows, &keys);
    if (c.mask && c.mask->dtype != TS_BOOL)
        masked = ts_add(masked, ts_as((ts_tensor *)c.mask, dtype));
    if (hide != TS_NONE)
        masked = ts_masked_fill_scalar(masked, hide, -INFINITY);
    scores = ts_reshape(masked, scores->sizes, 3);
    /* lse is -Inf for rows without keys; 0 makes their p 0 instead of NaN */
    lse = ts_masked_fill_scalar(lse, ts_eq_scalar(lse, -INFINITY), 0);
    ts_tensor *p = ts_exp(ts_sub(scores, lse));
    ts_tensor *dp = ts_bmm(g, ts_transpose(v, 1, 2)), *weights = p;
    if (c.dropout_p > 0) {
        ts_tensor *factor = dropout_factors(&c, dtype);
        dp = ts_mul(dp, factor);
        weights = ts_mul(p, factor);
    }
    ts_tensor *delta = ts_sum_dim(ts_mul(g, in[5]), 2, true);
    ts_tensor *dt = ts_mul(p, ts_sub(dp, in[1] ? ts_sub(delta, in[1]) : delta));
    dt = ts_mul_scalar(slope == TS_NONE ? dt : ts_mul(dt, slope), c.scale);

    if (f->want & 1)
        results[0] = ts_bmm(dt, k);
    if (f->want & 2)
        results[1] = ts_bmm(ts_transpose(dt, 1, 2), q);
    if (f->want & 4)
        results[2] = ts_bmm(ts_transpose(weights, 1, 2), g);
    for (int i = 0; i < 3; i++) {
        const padding *p = i ? &keys : &rows;
        const int64_t *sizes = f->plan->ret[i].sizes;
        const int64_t padded[] = {c.batch, sizes[1], i ? c.keys : c.rows, sizes[3]};
        if (f->want >> i & 1)
            TS_TRY(results[i] = unpad(p, ts_reshape(results[i], padded, 4)));
    }
    return ts_parts_give(f, results, 3);
}

/** Work of `products` matrix products over the (row, key) pairs inside the window. For packed
 * sequences each row counts with the keys of the longest sequence. */
static ts_work cost(const ts_frame *f, double products)
{
    ts_attention c = ts_kernel_attention(f);
    double pairs = 0, elements;
    for (int64_t i = 0; i < c.rows; i++) {
        int64_t at = i + c.keys - c.rows;
        int64_t first = ts_max64(0, at - c.left), last = ts_min64(c.keys - 1, at + c.right);
        pairs += (double)ts_max64(0, last - first + 1);
    }
    pairs *= (double)c.query->sizes[0] * (double)c.heads *
             (c.rows ? (double)c.query->sizes[2] / (double)c.rows : 0);
    return (ts_work){products * pairs * (double)(c.depth + c.value_depth),
                     ts_cost_bytes(f, &elements)};
}

ts_work ts_cost_scaled_dot_product_attention(const ts_frame *f) { return cost(f, 2); }
/* the backward computes five products, the forward two */
ts_work ts_cost_scaled_dot_product_attention_backward(const ts_frame *f) { return cost(f, 5); }

/* -------------------------------------------------------------------------- public forms ---- */

enum { OPTIONS = 7 }; /* number of arguments after the tensors, the same for both ops */

/** Storage for boxed options. */
typedef struct boxes {
    int64_t max_seqlens[2], window[2];
} boxes;

/** Boxes the options into args, with storage in *b; false with an error if they are invalid. */
static bool box_options(ts_value *args, boxes *b, const ts_attention_opts *o, const char *op,
                        const void *site)
{
    bool packed = o->cu_seqlens, bounded = o->window || o->causal;
    if (!o->window && (o->window_left || o->window_right)) {
        ts_fail_op(
            TS_ERR_VALUE, op, site, NULL,
            "argument 'window': expected true with window_left or window_right, got false");
        return false;
    }
    if (!packed && (o->max_seqlen_q || o->max_seqlen_k)) {
        ts_fail_op(TS_ERR_VALUE, op, site, NULL,
                   "argument 'cu_seqlens': expected two tensors with max_seqlen_q or "
                   "max_seqlen_k, got none");
        return false;
    }
    if (packed && o->key_lengths) {
        ts_fail_op(TS_ERR_VALUE, op, site, NULL,
                   "argument 'key_lengths': expected none with cu_seqlens, got lengths");
        return false;
    }
    *b = (boxes){{o->max_seqlen_q, o->max_seqlen_k},
                 {o->window ? o->window_left : -1,
                  o->causal ? 0 : o->window ? o->window_right : -1}};
    const ts_value boxed[OPTIONS] = {
        ts_value_at(o->mask),
        packed           ? V_TS(o->cu_seqlens, 2)
        : o->key_lengths ? V_TS(o->key_lengths, 1)
                         : ts_value_none(),
        packed ? V_IS(b->max_seqlens, 2) : ts_value_none(),
        /* 0: absent; the kernel then uses 1 / sqrt(D) */
        o->scale == 0 ? ts_value_none() : V_F(o->scale),
        bounded ? V_IS(b->window, 2) : ts_value_none(),
        V_F(o->softcap),
        V_F(o->dropout_p),
    };
    memcpy(args, boxed, sizeof boxed);
    return true;
}

ts_tensor *ts_scaled_dot_product_attention(ts_tensor *query, ts_tensor *key, ts_tensor *value)
{
    ts_value none = ts_value_none();
    ts_value args[] = {V_T(query), V_T(key), V_T(value), none, none, none,
                       none, none, V_F(0), V_F(0)};
    ts_tensor **outs[2] = {NULL, NULL};
    return ts_invoke_many(TS_OP_scaled_dot_product_attention, args, TS_N(args), 2, outs);
}

ts_tensor *ts_scaled_dot_product_attention_ex(ts_tensor *query, ts_tensor *key, ts_tensor *value,
                                              ts_tensor **lse, const ts_attention_opts *opts)
{
    const char *op = "scaled_dot_product_attention";
    ts_attention_opts o;
    boxes b;
    ts_value args[3 + OPTIONS] = {V_T(query), V_T(key), V_T(value)};
    if (lse)
        *lse = NULL;
    TS_TRY_NULL(TS_CHECK_OPTS(&o, opts));
    if (!box_options(args + 3, &b, &o, op, __builtin_return_address(0)))
        return NULL;
    ts_tensor **outs[2] = {NULL, lse};
    return ts_invoke_many(TS_OP_scaled_dot_product_attention, args, TS_N(args), 2, outs);
}

ts_status ts_scaled_dot_product_attention_backward(ts_tensor *grad, ts_tensor *grad_lse,
                                                   ts_tensor *query, ts_tensor *key,
                                                   ts_tensor *value, ts_tensor *out, ts_tensor *lse,
                                                   const ts_attention_opts *opts,
                                                   ts_tensor **grads[3])
{
    const char *op = "scaled_dot_product_attention_backward";
    ts_attention_opts o;
    boxes b;
    TS_TRY(TS_CHECK_LIST(grads, 3));
    ts_value args[9 + OPTIONS] = {V_T(grad),  V_OPT(grad_lse), V_T(query), V_T(key),
                                  V_T(value), V_T(out),        V_T(lse)};
    TS_TRY(TS_CHECK_POINTERS(grads));
    for (int i = 0; i < 3; i++)
        if (grads[i])
            *grads[i] = NULL;
    TS_TRY(TS_CHECK_OPTS(&o, opts));
    if (!box_options(args + 7, &b, &o, op, __builtin_return_address(0)))
        return ts_error_code();
    args[SEED] = V_I((int64_t)o.rng.seed);
    args[OFFSET] = V_I((int64_t)o.rng.offset);
    return ts_invoke_wanted(TS_OP_scaled_dot_product_attention_backward, args, TS_N(args), grads, 3,
                            __builtin_return_address(0));
}
