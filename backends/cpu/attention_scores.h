/*
 * Converts a row of scores to weights, for one element type; attention_loops.h includes this file
 * and explains the A_ macros, parts, rows, keys and hidden pairs. A row x holds the scores of n
 * keys up to the right end of its window, and is padded to whole vectors. Hidden pairs among them
 * get the score -Inf.
 *
 * Row i of a part is aligned with key i + keys - rows. Its window is the keys from c.left before
 * this key to c.right after it.
 */
// SPDX-License-Identifier: MIT

/** Number of keys in [first, first + keys) up to the right end of row i's window. */
TS_INLINE int64_t A_(visible)(const attention *s, const part *at, int64_t i, int64_t first,
                              int64_t keys)
{
    return ts_max64(0, ts_min64(keys, i + at->keys - at->rows + s->c.right + 1 - first));
}

/** Number of keys in [first, first + n) left of row i's window. */
TS_INLINE int64_t A_(left_of_window)(const attention *s, const part *at, int64_t i, int64_t first,
                                     int64_t n)
{
    return ts_max64(0, ts_min64(n, i + at->keys - at->rows - s->c.left - first));
}

/** Softcap of n scores, in place: x = cap tanh(x / cap). slope, if not NULL, receives the n
 * derivatives. */
static void A_(cap)(A_T *x, int64_t n, A_T cap, A_T *slope)
{
    for (int64_t j = 0; j < n; j += A_L) {
        A_V u = A_P(tanh)(A_P(load)(x + j) / A_P(set1)(cap));
        A_P(store)(x + j, u * A_P(set1)(cap));
        if (slope)
            A_P(store)(slope + j, 1 - u * u);
    }
}

/** Applies the n mask elements that start at `mask` to the scores x: a false or -Inf element hides
 * the pair, other elements of a floating mask are added to the score. */
static void A_(add_mask)(const attention *s, const char *mask, A_T *x, int64_t n)
{
    int64_t step = s->mask[3];
    const A_T *bias = (const A_T *)mask;
    const bool *visible = (const bool *)mask;
    if (s->c.mask->dtype == TS_BOOL)
        for (int64_t j = 0; j < n; j++)
            x[j] = visible[j * step] ? x[j] : -(A_T)INFINITY;
    else
        for (int64_t j = 0; j < n; j++)
            x[j] = bias[j * step] == -(A_T)INFINITY ? -(A_T)INFINITY : x[j] + bias[j * step];
}

/** Applies the softcap, the mask and the left end of the window to the n scores of row i and keys
 * key to key + n - 1. With a softcap, slope receives its n derivatives, unless slope is NULL. */
static void A_(mask_scores)(const attention *s, const part *at, int64_t head, int64_t i,
                            int64_t key, A_T *x, int64_t n, A_T *slope)
{
    if (s->c.softcap > 0)
        A_(cap)(x, n, (A_T)s->c.softcap, slope);
    if (s->c.mask)
        A_(add_mask)(s,
                     s->c.mask->data + (at->index * s->mask[0] + head * s->mask[1] +
                                        i * s->mask[2] + key * s->mask[3]) *
                                           ts_dtype_sizes[s->c.mask->dtype],
                     x, n);
    for (int64_t j = 0, hidden = A_(left_of_window)(s, at, i, key, n); j < hidden; j++)
        x[j] = -(A_T)INFINITY;
}

/** Writes the dropout factors (0 or 1 / (1 - p)) of row i for keys key to key + n - 1. A
 * 32-bit draw of Philox (core/philox.h) decides: that of the element whose number is the index of
 * the pair in (parts, heads, c.rows, c.keys). */
static void A_(dropout_factors)(const attention *s, const part *at, int64_t head, int64_t i,
                                int64_t key, A_T *factor, int64_t n)
{
    uint32_t words[MOST_KEYS + 2 * PHILOX_WORDS] __attribute__((aligned(64)));
    uint64_t first =
        (((uint64_t)at->index * (uint64_t)s->heads + (uint64_t)head) * (uint64_t)s->c.rows +
         (uint64_t)i) *
            (uint64_t)s->c.keys +
        (uint64_t)key;
    const uint32_t *w = words + first % 4;
    for (int64_t j = 0; j < n + 3; j += PHILOX_WORDS)
        philox_group(s->c.rng.seed, s->c.rng.offset + first / 4 + (uint64_t)j / 4, words + j);
    for (int64_t j = 0; j < n; j++)
        factor[j] = w[j] >> 8 < s->threshold ? 0 : (A_T)s->dropout_scale;
}

/** Applies dropout to n weights in place: some become 0, the others are scaled by 1 / (1 - p). */
static void A_(apply_dropout)(const attention *s, const part *at, int64_t head, int64_t i,
                              int64_t key, A_T *x, int64_t n)
{
    A_T factor[MOST_KEYS];
    A_(dropout_factors)(s, at, head, i, key, factor, n);
    for (int64_t j = 0; j < n; j++)
        x[j] = factor[j] == 0 ? 0 : x[j] * factor[j];
}

/* ----------------------------------------------------------------------------- forward ---- */

/** State of a row after the tiles so far: largest score, and sum of exp(score - largest). */
typedef struct A_(row_state) {
    A_T most, sum;
} A_(row_state);

/**
 * Online softmax: replaces n scores by exponentials relative to the running maximum, pads them with
 * zeros to whole vectors, and updates the state. Returns the factor for the row's earlier sums.
 */
static A_T A_(online_softmax)(A_(row_state) *state, A_T *x, int64_t n)
{
    A_V most = A_P(set1)(state->most), low = A_P(set1)(-(A_T)INFINITY);
    int64_t j = 0, whole = n / A_L * A_L;
    /* the last vector: whole loads and stores, because a load after a partial store stalls */
    if (whole < n) {
        A_V last = A_P(select)(A_FIRST(n - whole), A_P(load)(x + whole), low);
        A_P(store)(x + whole, last);
        most = A_P(max)(most, last);
    }
    for (; j < whole; j += A_L)
        most = A_P(max)(most, A_P(load)(x + j));
    A_T now = A_P(hmax)(most);
    A_T factor = 1;
    if (state->most != now) /* 0 if no key was visible before: exp(-Inf) is slow */
        factor = state->most == -(A_T)INFINITY ? 0 : (A_T)exp((double)(state->most - now));
    /* if all pairs so far are hidden, subtract 0: -Inf - -Inf would be NaN */
    A_V top = A_P(set1)(now == -(A_T)INFINITY ? 0 : now), sum = A_P(zero)();
    for (j = 0; j < n; j += A_L) {
        A_V e = A_EXP(A_P(load)(x + j) - top);
        A_P(store)(x + j, e);
        sum = sum + e;
    }
    state->most = now;
    state->sum = state->sum * factor + A_P(hsum)(sum);
    return factor;
}

/* ---------------------------------------------------------------------------- backward ---- */

/**
 * Gradient of one row's scores. On entry p holds the scores and dp the gradients of the weights. On
 * return p holds the weights exp(score - lse), and dp the gradients of the scores, weight * (dp -
 * d), where d = dot(grad, out) - gradient of lse. Elements n to keys - 1, whose keys are hidden
 * from the row, become 0 in both.
 */
static void A_(row_gradient)(A_T *p, A_T *dp, int64_t n, int64_t keys, A_T lse, A_T d)
{
    for (int64_t j = 0; j < n; j += A_L) { /* rows are padded to whole vectors */
        A_V e = A_EXP(A_P(load)(p + j) - A_P(set1)(lse)),
            ds = e * (A_P(load)(dp + j) - A_P(set1)(d));
        if (n - j < A_L) {
            e = A_P(select)(A_FIRST(n - j), e, A_P(zero)());
            ds = A_P(select)(A_FIRST(n - j), ds, A_P(zero)());
        }
        A_P(store)(p + j, e);
        A_P(store)(dp + j, ds);
    }
    for (int64_t j = ts_ceil_div(n, A_L) * A_L; j < keys; j += A_L) {
        A_P(store)(p + j, A_P(zero)());
        A_P(store)(dp + j, A_P(zero)());
    }
}

/** row_gradient() with mask, window, softcap and dropout: p receives the weights after dropout.
 * Hidden pairs get 0 even if dp is not finite. */
static void A_(masked_gradient)(const attention *s, const part *at, int64_t head, int64_t i,
                                 int64_t key, A_T *p, A_T *dp, int64_t n, int64_t keys, A_T lse,
                                 A_T d)
{
    A_T factor[BACKWARD_KEYS], slope[BACKWARD_KEYS] __attribute__((aligned(64)));
    A_(mask_scores)(s, at, head, i, key, p, n, slope);
    if (s->c.dropout_p > 0)
        A_(dropout_factors)(s, at, head, i, key, factor, n);
    for (int64_t j = 0; j < n; j += A_L) {
        A_V x = A_P(load)(p + j);
        A_P(store)(p + j, A_P(select)(A_P(eq)(x, A_P(set1)(-(A_T)INFINITY)), A_P(zero)(),
                                      A_EXP(x - A_P(set1)(lse))));
    }
    for (int64_t j = 0; j < n; j++) {
        A_T e = p[j], scale = s->c.dropout_p > 0 ? factor[j] : 1,
            part = scale == 0 ? 0 : scale * dp[j];
        p[j] = scale * e;
        dp[j] = e == 0 ? 0 : e * (part - d) * (s->c.softcap > 0 ? slope[j] : 1);
    }
    for (int64_t j = n; j < keys; j++)
        p[j] = dp[j] = 0;
}
