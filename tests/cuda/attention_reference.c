/** @file attention_reference.c  Attention computed by separate ops, and the comparison with it. */
// SPDX-License-Identifier: MIT
#include "tests/cuda/attention.h"

#include <math.h>

void keep_to(int which)
{
    static const char *const kernels[KERNELS] = {NULL, "mma", "plain"};
    if (kernels[which])
        setenv("TS_CUDA_ATTENTION", kernels[which], 1);
    else
        unsetenv("TS_CUDA_ATTENTION");
}

/* ------------------------------------------------------------------------------ operands ---- */

static ts_tensor *normal(ts_device device, ts_dtype dtype, int64_t a, int64_t b, int64_t c,
                         int64_t d)
{
    ts_tensor *t = ts_normal_on(TS_SIZES(a, b, c, d), 0, 1, dtype, device);
    OK(t);
    return t;
}

/** A copy of t, as the first rows and columns of a tensor with `below` more rows and `beside` more
 *  columns of NaN. */
static ts_tensor *framed(ts_tensor *t, int64_t below, int64_t beside)
{
    const int64_t *n = ts_sizes(t);
    ts_tensor *base = ts_empty_on(TS_SIZES(n[0], n[1], n[2] + below, n[3] + beside), ts_dtype_of(t),
                                  ts_device_of(t));
    OK(ts_fill_(base, NAN));
    return ts_copy_(ts_narrow(ts_narrow(base, 2, 0, n[2]), 3, 0, n[3]), t);
}

static ts_tensor *laid(ts_tensor *t, layout lies)
{
    switch (lies) {
    case SWAPPED:
        t = ts_transpose(ts_contiguous(ts_transpose(t, 1, 2)), 1, 2);
        break;
    case FRAMED:
        t = framed(t, 5, 8);
        break;
    case REPEATED:
        t = ts_expand_as(ts_clone(ts_narrow(t, 1, 0, 1)), t);
        break;
    case ODD:
        t = framed(t, 0, 1);
        break;
    default:
        break;
    }
    OK(t);
    return t;
}

/** Number of rows (if `keys`, number of keys) of packed sequence b: `most` for sequence 0, and 0 to
 *  `most` for the others. */
static int64_t length_of(const problem *p, int64_t b, bool keys)
{
    int64_t most = keys ? p->keys : p->rows;
    if (p->lengths && b > 0) {
        uint32_t x = p->lengths * 2654435761u + (uint32_t)(2 * b + keys) * 2246822519u;
        x = (x ^ x >> 15) * 2654435769u;
        x ^= x >> 13;
        int64_t drawn = x % 8 == 0 ? 0 : (int64_t)(x >> 3) % (most + 1);
        /* With dropout and few keys, gradients of scores cancel except for the rounding of `out`,
           which a backward reads and separate ops do not. */
        return keys && drawn && drawn < 16 && p->dropout_p > 0 ? (most < 16 ? most : 16) : drawn;
    }
    static const int shares[2][SEQUENCES] = {{8, 0, 3, 1, 8, 5, 2, 7}, {8, 4, 0, 3, 7, 5, 2, 6}};
    return most * shares[keys][b] / 8;
}

static void starts_of(const problem *p, operands *o)
{
    for (int64_t b = 0; b < p->batch; b++) {
        o->q_starts[b + 1] = o->q_starts[b] + (int32_t)length_of(p, b, false);
        o->k_starts[b + 1] = o->k_starts[b] + (int32_t)length_of(p, b, true);
    }
}

static ts_tensor *draw_mask(const problem *p, ts_device device)
{
    int64_t sizes[4], spread[4];
    int n = (int)strlen(p->mask);
    for (int d = 0; d < n; d++) {
        char c = p->mask[d];
        spread[d] = strchr("bB", c)   ? p->batch
                    : strchr("hH", c) ? p->heads
                    : c == 'q'        ? p->rows
                    : c == 'k'        ? p->keys
                                      : 1;
        sizes[d] = c == 'B' || c == 'H' ? 1 : spread[d];
    }
    ts_tensor *x = ts_normal_on(sizes, n, 0, 1, TS_F32, device), *hidden = ts_gt_scalar(x, 0.8);
    x = p->mask_dtype == TS_BOOL
            ? ts_logical_not(hidden)
            : ts_to(ts_masked_fill_scalar(x, hidden, -INFINITY), p->mask_dtype);
    OK(x = ts_expand(x, spread, n));
    return x;
}

operands draw(const problem *p, ts_device device)
{
    operands o = {0};
    int64_t values = p->value_depth ? p->value_depth : p->depth, batch = p->batch, rows = p->rows,
            keys = p->keys;
    o.numbers = (ts_attention_opts){.size = sizeof o.numbers, .scale = p->scale,
                                    .causal = p->causal,
                                    .window = p->window, .window_left = p->left,
                                    .window_right = p->right, .softcap = p->softcap,
                                    .dropout_p = p->dropout_p};
    if (p->packed) {
        starts_of(p, &o);
        ts_tensor *q_starts = ts_from_array(o.q_starts, TS_I32, TS_SIZES(batch + 1));
        ts_tensor *k_starts = ts_from_array(o.k_starts, TS_I32, TS_SIZES(batch + 1));
        OK(o.starts[0] = ts_to_device(q_starts, device));
        OK(o.starts[1] = ts_to_device(k_starts, device));
        o.numbers.max_seqlen_q = rows;
        o.numbers.max_seqlen_k = keys;
        rows = o.q_starts[batch];
        keys = o.k_starts[batch];
        batch = 1;
    }
    if (p->padded) {
        for (int64_t b = 0; b < batch; b++)
            o.k_lengths[b] = (int32_t)length_of(p, b, true);
        OK(o.key_lengths =
               ts_to_device(ts_from_array(o.k_lengths, TS_I32, TS_SIZES(batch)), device));
    }
    o.q = laid(normal(device, p->dtype, batch, p->heads, rows, p->depth), p->lies);
    o.k = laid(normal(device, p->dtype, batch, p->groups, keys, p->depth), p->lies);
    o.v = laid(normal(device, p->dtype, batch, p->groups, keys, values), p->lies);
    o.g = laid(normal(device, p->dtype, batch, p->heads, rows, values),
               (layout)((p->lies + 1) % LAYOUTS));
    ts_dtype wide = p->dtype == TS_F64 ? TS_F64 : TS_F32;
    ts_tensor *g_lse = normal(device, wide, batch, p->heads, rows, 1);
    o.g_lse = p->lse_gradient ? ts_select(g_lse, 3, 0) : TS_NONE;
    if (p->mask)
        o.mask = draw_mask(p, device);
    o.numbers.rng = ts_rng_get_state();
    return o;
}

operands operands_to(const problem *p, const operands *o, ts_device device)
{
    operands to = *o;
    ts_tensor **all[] = {&to.q, &to.k, &to.v, &to.g, p->lse_gradient ? &to.g_lse : NULL,
                         &to.mask, &to.starts[0], &to.starts[1], &to.key_lengths};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i] && *all[i])
            OK(*all[i] = ts_to_device(*all[i], device));
    return to;
}

ts_attention_opts options_of(const operands *o)
{
    ts_attention_opts opts = o->numbers;
    opts.mask = o->mask ? &o->mask : NULL;
    opts.cu_seqlens = o->starts[0] ? o->starts : NULL;
    opts.key_lengths = o->key_lengths ? &o->key_lengths : NULL;
    return opts;
}

/* --------------------------------------------------------------------------- computations ---- */

results by_attention(const operands *o)
{
    results r = {0};
    ts_attention_opts opts = options_of(o);
    ts_rng_set_state(opts.rng);
    r.all[OUT] = ts_scaled_dot_product_attention_ex(o->q, o->k, o->v, &r.lse, &opts);
    OK(r.all[OUT]);
    ts_tensor **wanted[] = {&r.all[DQ], &r.all[DK], &r.all[DV]};
    OK(ts_scaled_dot_product_attention_backward(o->g, o->g_lse, o->q, o->k, o->v, r.all[OUT], r.lse,
                                                &opts, wanted));
    return r;
}

/** Numbers 0 to n - 1. */
static ts_tensor *count(int64_t n, ts_device device)
{
    return ts_to_device(ts_arange(0, n, 1, TS_I64), device);
}

/** Sequence b's part, rows by keys, of a tensor that broadcasts to the pairs of all sequences; for
 * dense problems the whole tensor. */
static ts_tensor *pairs_of(const problem *p, ts_tensor *t, int64_t b, int64_t rows, int64_t keys)
{
    if (!t || !(p->packed || p->padded))
        return t;
    int n = ts_ndim(t);
    if (n == 4 && ts_size(t, 0) > 1)
        t = ts_narrow(t, 0, b, 1);
    if (n > 1 && ts_size(t, n - 2) > 1)
        t = ts_narrow(t, n - 2, 0, rows);
    if (n > 0 && ts_size(t, n - 1) > 1)
        t = ts_narrow(t, n - 1, 0, keys);
    OK(t);
    return t;
}

/** t * x, computed in at least f32 and rounded to t's dtype once; x itself is not rounded. */
static ts_tensor *times(ts_tensor *t, double x)
{
    ts_dtype dtype = ts_dtype_of(t);
    return dtype == TS_F64 ? ts_mul_scalar(t, x) : ts_to(ts_mul_scalar(ts_to(t, TS_F32), x), dtype);
}

/** Scores of one sequence, -Inf where hidden; hidden pairs are marked in `hidden`. */
static ts_tensor *scores(const problem *p, ts_tensor *q, ts_tensor *k, ts_tensor *mask,
                         ts_tensor **hidden)
{
    int64_t batch = ts_size(q, 0), rows = ts_size(q, 2), keys = ts_size(k, 2),
            share = p->heads / p->groups;
    double scale = p->scale != 0 ? p->scale : 1 / sqrt((double)p->depth);
    q = ts_reshape(q, TS_SIZES(batch, p->groups, share * rows, p->depth));
    ts_tensor *s = ts_matmul(q, ts_transpose(times(k, scale), 2, 3));
    s = ts_reshape(s, TS_SIZES(batch, p->heads, rows, keys));
    if (p->softcap > 0)
        s = times(ts_tanh(times(s, 1 / p->softcap)), p->softcap);

    ts_device device = ts_device_of(q);
    int64_t left = p->window ? p->left : -1, right = p->causal ? 0 : p->window ? p->right : -1;
    ts_tensor *own = ts_unsqueeze(ts_add_scalar(count(rows, device), keys - rows), 1);
    ts_tensor *ahead = ts_sub(count(keys, device), own);
    *hidden = ts_gt_scalar(ahead, right < 0 ? keys + rows : right);
    if (left >= 0)
        *hidden = ts_logical_or(*hidden, ts_lt_scalar(ahead, -left));
    if (mask && ts_dtype_of(mask) == TS_BOOL) {
        *hidden = ts_logical_or(*hidden, ts_logical_not(mask));
    } else if (mask) {
        *hidden = ts_logical_or(*hidden, ts_eq_scalar(mask, -INFINITY));
        s = ts_add(s, ts_to(mask, ts_dtype_of(s)));
    }
    s = ts_masked_fill_scalar(s, *hidden, -INFINITY);
    OK(s);
    return s;
}

/** Attention of one packed sequence or of a dense problem. kept: factors of dropout, or NULL. Sets
 *  *lse, and *dead to true for rows that see no key. */
static ts_tensor *attend(const problem *p, ts_tensor *q, ts_tensor *k, ts_tensor *v,
                         ts_tensor *mask, ts_tensor *kept, ts_tensor **lse, ts_tensor **dead)
{
    int64_t batch = ts_size(q, 0), rows = ts_size(q, 2), keys = ts_size(k, 2),
            share = p->heads / p->groups;
    ts_tensor *hidden, *s = scores(p, q, k, mask, &hidden),
                       *top = ts_amax_dim(ts_detach(s), 3, true);
    *dead = ts_eq_scalar(top, -INFINITY);
    top = ts_masked_fill_scalar(top, *dead, 0);
    ts_tensor *sum = ts_sum_dim(ts_exp(ts_sub(s, top)), 3, true);
    *lse = ts_select(ts_add(ts_log(ts_masked_fill_scalar(sum, *dead, 1)), top), 3, 0);
    ts_tensor *w = ts_masked_fill_scalar(ts_softmax(s, 3), *dead, 0);
    if (kept)
        w = ts_mul(w, ts_to(kept, ts_dtype_of(w)));
    w = ts_reshape(w, TS_SIZES(batch, p->groups, share * rows, keys));
    ts_tensor *y = ts_reshape(ts_matmul(w, v), TS_SIZES(batch, p->heads, rows, ts_size(v, 3)));
    *dead = ts_select(*dead, 3, 0);
    OK(y);
    OK(*lse);
    return y;
}

/** Result of a packed sequence without keys: zeros; *lse: zeros; *dead: true for all rows. */
static ts_tensor *nothing(ts_tensor *q, int64_t values, ts_tensor **lse, ts_tensor **dead)
{
    const int64_t *n = ts_sizes(q);
    *lse = ts_zero_(ts_empty_on(TS_SIZES(n[0], n[1], n[2]), ts_dtype_of(q), ts_device_of(q)));
    *dead = ts_fill_(ts_empty_on(TS_SIZES(n[0], n[1], n[2]), TS_BOOL, ts_device_of(q)), true);
    OK(*lse);
    OK(*dead);
    const int64_t sizes[] = {n[0], n[1], n[2], values};
    return ts_zero_(ts_empty_on(sizes, 4, ts_dtype_of(q), ts_device_of(q)));
}

results by_ops(const problem *p, const operands *o, ts_dtype dtype)
{
    results r = {0};
    ts_tensor *in[3] = {o->q, o->k, o->v}, *kept = NULL, *ys[SEQUENCES], *lses[SEQUENCES],
              *deads[SEQUENCES];
    for (int i = 0; i < 3; i++)
        OK(in[i] = ts_set_requires_grad(ts_detach(ts_contiguous(ts_to(in[i], dtype))), true));
    if (p->dropout_p > 0) {
        ts_rng_set_state(o->numbers.rng);
        const int64_t sizes[] = {p->batch, p->heads, p->rows, p->keys};
        kept = ts_empty_on(sizes, 4, TS_F32, ts_device_of(o->q));
        OK(kept = ts_dropout(ts_fill_(kept, 1), p->dropout_p, true));
    }
    int n = 0;
    bool parts = p->packed || p->padded;
    int along = p->padded ? 0 : 2; /* dim of the parts */
    for (int64_t b = 0; b < (parts ? p->batch : 1); b++) {
        ts_tensor *q = in[0], *k = in[1], *v = in[2];
        if (p->packed) {
            q = ts_narrow(q, 2, o->q_starts[b], o->q_starts[b + 1] - o->q_starts[b]);
            k = ts_narrow(k, 2, o->k_starts[b], o->k_starts[b + 1] - o->k_starts[b]);
            v = ts_narrow(v, 2, o->k_starts[b], o->k_starts[b + 1] - o->k_starts[b]);
        }
        if (p->padded) {
            q = ts_narrow(q, 0, b, 1);
            k = ts_narrow(ts_narrow(k, 0, b, 1), 2, 0, o->k_lengths[b]);
            v = ts_narrow(ts_narrow(v, 0, b, 1), 2, 0, o->k_lengths[b]);
        }
        int64_t rows = ts_size(q, 2), keys = ts_size(k, 2);
        if (!rows)
            continue;
        ys[n] = keys ? attend(p, q, k, v, pairs_of(p, o->mask, b, rows, keys),
                              pairs_of(p, kept, b, rows, keys), &lses[n], &deads[n])
                     : nothing(q, ts_size(v, 3), &lses[n], &deads[n]);
        n++;
    }
    ts_tensor *y = n > 1 ? ts_cat(ys, n, along) : ys[0],
              *lse = n > 1 ? ts_cat(lses, n, along) : lses[0];
    r.dead = n > 1 ? ts_cat(deads, n, along) : deads[0];
    OK(y);
    ts_tensor *objective = ts_sum(ts_mul(y, ts_to(o->g, dtype)));
    if (p->lse_gradient) {
        ts_tensor *of_lse = ts_masked_fill_scalar(ts_mul(lse, ts_to(o->g_lse, dtype)), r.dead, 0);
        objective = ts_add(objective, ts_sum(of_lse));
    }
    OK(ts_grad_of(objective, TS_NONE, in, 3, r.all + DQ, NULL));
    r.all[OUT] = ts_detach(y);
    r.lse = ts_detach(lse);
    for (int i = 0; i < RESULTS; i++)
        OK(r.all[i] = ts_to(r.all[i], p->dtype));
    return r;
}

/* ----------------------------------------------------------------------------- comparison ---- */

double largest(ts_tensor *t)
{
    TS_SCOPE;
    TS_NO_GRAD;
    double x = 0;
    if (t && ts_numel(t) == 0)
        return 0;
    OK(t);
    OK(ts_item(ts_max(ts_abs(ts_to(t, TS_F64))), &x));
    return isfinite(x) ? x : INFINITY;
}

double apart(ts_tensor *a, ts_tensor *b)
{
    TS_SCOPE;
    TS_NO_GRAD;
    return largest(ts_sub(ts_to(a, TS_F64), ts_to(b, TS_F64)));
}

bool same_bits(ts_tensor *a, ts_tensor *b)
{
    TS_SCOPE;
    size_t bytes = (size_t)ts_numel(a) * ts_dtype_size(ts_dtype_of(a));
    char *x = malloc(2 * bytes + 1), *y = x + bytes;
    OK(ts_copy_to(ts_contiguous(a), x, bytes));
    OK(ts_copy_to(ts_contiguous(b), y, bytes));
    bool same = ts_numel(a) == ts_numel(b) && memcmp(x, y, bytes) == 0;
    free(x);
    return same;
}

static void describe(const problem *p, char *text, size_t size)
{
    static const char *const layouts[LAYOUTS] = {"dense", "swapped", "framed", "repeated", "odd"};
    snprintf(text, size,
             "%s %s (%lld, %lld/%lld, %lld x %lld, %lld/%lld)%s%s scale %g window %lld %lld "
             "softcap %g dropout %g mask %s%s%s%s",
             ts_dtype_name(p->dtype), layouts[p->lies], (long long)p->batch, (long long)p->heads,
             (long long)p->groups, (long long)p->rows, (long long)p->keys, (long long)p->depth,
             (long long)p->value_depth, p->packed ? " packed" : p->padded ? " padded" : "",
             p->causal ? " causal" : "",
             p->scale, p->window ? (long long)p->left : -1, p->window ? (long long)p->right : -1,
             p->softcap, p->dropout_p, p->mask ? ts_dtype_name(p->mask_dtype) : "",
             p->mask ? p->mask : "none", p->lse_gradient ? ", gradient of lse" : "",
             ts_deterministic() ? ", deterministic" : "");
}

/** Sets the largest allowed differences from ref (f64). low: results of separate ops in the
 *  problem's dtype if it is bf16 or f16; NULL: f32. */
static void bounds_of(const problem *p, const results *ref, const results *low,
                      double most[RESULTS])
{
    for (int i = 0; i < RESULTS; i++) {
        bool softcap = i > OUT && p->softcap > 0;
        if (!low) {
            most[i] = 32 * 0x1p-24 * sqrt((double)p->depth) * fmax(1, largest(ref->all[i]));
            continue;
        }
        ts_tensor *more = ts_to(ts_add_scalar(ts_to(ref->all[i], TS_F64), 0.3), p->dtype);
        ts_tensor *rounded = ts_to(ts_sub_scalar(ts_to(more, TS_F64), 0.3), p->dtype);
        most[i] = (softcap ? 3 : 2) * apart(low->all[i], ref->all[i]) +
                  2 * apart(rounded, ref->all[i]) + (softcap ? 3e-4 : 0);
    }
}

/** Compares results, gradients and lse with ref, and checks the rows that see no key. Prints each
 *  failed check and returns their number. All tensors are on one device. */
static int wrong_results(const char *text, const results *got, const results *ref,
                         const double most[RESULTS])
{
    static const char *const names[RESULTS] = {"out", "gradient of query", "gradient of key",
                                               "gradient of value"};
    int wrong = 0;
    for (int i = 0; i < RESULTS; i++) {
        double is = apart(got->all[i], ref->all[i]);
        if (!(is <= most[i]) && ++wrong)
            printf("%s: %s is %g off, at most %g\n", text, names[i], is, most[i]);
    }
    ts_tensor *dead = ref->dead, *rows = ts_unsqueeze(ts_to(dead, ts_dtype_of(got->all[OUT])), 3);
    for (int i = OUT; i <= DQ; i++)
        if (largest(ts_mul(got->all[i], rows)) != 0 && ++wrong)
            printf("%s: %s is not 0 where a row sees no key\n", text, names[i]);
    if (largest(ts_ne(ts_eq_scalar(got->lse, -INFINITY), dead)) != 0 && ++wrong)
        printf("%s: lse is not -Inf where a row sees no key, and nowhere else\n", text);
    ts_tensor *alive = ts_to(ts_masked_fill_scalar(got->lse, dead, 0), TS_F64),
              *want = ts_masked_fill_scalar(ref->lse, dead, 0);
    ts_tensor *allowed = ts_mul_scalar(ts_add_scalar(ts_abs(want), 1), 1e-5);
    double beyond = largest(ts_relu(ts_sub(ts_abs(ts_sub(alive, want)), allowed)));
    if (beyond != 0 && ++wrong)
        printf("%s: lse is %g off beyond 1e-5\n", text, beyond);
    return wrong;
}

void judge(const problem *p, ts_device device, ts_device where)
{
    TS_SCOPE;
    char text[320];
    double most[RESULTS];
    int wrong = 0;
    operands o = draw(p, device), there = operands_to(p, &o, where);
    bool half = p->dtype == TS_BF16 || p->dtype == TS_F16;
    results ref = by_ops(p, &there, TS_F64), low = {0};
    if (half)
        low = by_ops(p, &there, p->dtype);
    TS_NO_GRAD;
    bounds_of(p, &ref, half ? &low : NULL, most);
    for (int deterministic = 0; deterministic < 2; deterministic++) {
        OK(ts_set_deterministic(deterministic));
        describe(p, text, sizeof text);
        results got = by_attention(&o);
        for (int i = 0; i < RESULTS; i++)
            OK(got.all[i] = ts_to_device(got.all[i], where));
        OK(got.lse = ts_to_device(got.lse, where));
        wrong += wrong_results(text, &got, &ref, most);
    }
    OK(ts_set_deterministic(false));
    ts_tally(!wrong, wrong > 0, 0);
}
