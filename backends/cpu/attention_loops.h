/*
 * The loops of attention for one element type; attention.c includes this file once for each.
 *
 *   A_T        element type              A_V, A_L   its vector and lanes
 *   A_(name)   a function of this type   A_P(name)  a primitive of vec.h: vf_name or vd_name
 *   A_FIRST(n) mask of the first n lanes
 *   A_MICRO    table of micro-kernels    A_EXP      vector exponential
 *
 * Scores never exist as a whole: a task works on a tile of rows and keys that fits the caches.
 * K is scaled when it is packed, so forward and backward see the same scores to the last bit.
 */
// SPDX-License-Identifier: MIT

#define A_PANEL (2 * A_L)

/** Rows of a block when n rows are dealt to blocks as evenly as can be. */
static int64_t A_(blocks)(int64_t n) { return ts_ceil_div(n, MICRO_ROWS); }

/** to = panels of (k, width): `columns` columns of k rows of a matrix, times scale; zeros fill the last panel. */
static void A_(pack)(A_T *to, const A_T *from, int64_t row, int64_t k, int64_t columns, A_T scale)
{
    for (int64_t j = 0; j < columns; j += A_PANEL)
        for (int64_t p = 0; p < k; p++, to += A_PANEL)
            for (int v = 0; v < 2; v++) {
                int64_t lanes = ts_max64(0, ts_min64(A_L, columns - j - v * A_L));
                const A_T *at = from + p * row + j + (lanes ? v * A_L : 0);
                A_V x = A_P(load_n)(at, lanes);
                if (lanes == A_L)
                    x = A_P(load)(at);
                A_P(store)(to + v * A_L, x * A_P(set1)(scale));
            }
}

/** The same of a transposed matrix: `columns` rows of k elements. */
static void A_(pack_transposed)(A_T *to, const A_T *from, int64_t row, int64_t k, int64_t columns, A_T scale)
{
    for (int64_t j = 0; j < columns; j += A_PANEL, to += k * A_PANEL) {
        A_TRANSPOSE(to, A_PANEL, from + j * row, row, ts_min64(A_PANEL, columns - j), k);
        for (int64_t i = 0; i < k * A_PANEL; i += A_L)
            A_P(store)(to + i, A_P(load)(to + i) * A_P(set1)(scale));
    }
}

/**
 * c (m, n) = a (m, k) b (k, n), or added to c, where b is packed in panels of `depth` rows, of which
 * the first k count.
 */
static void A_(multiply)(int64_t m, int64_t n, int64_t k, const A_T *a, int64_t a_row, int64_t a_step, const A_T *b,
                         int64_t depth, A_T *c, int64_t c_row, bool add)
{
    for (int64_t j = 0; j < n; j += A_PANEL) {
        int64_t columns = ts_min64(A_PANEL, n - j);
        A_MICRO[m][columns > A_L](k, a, a_row, a_step, b + j * depth, A_PANEL, c + j, c_row, columns, NULL, add, b, 0);
    }
}

/** Keys from `first` on that row i may see, of `keys`. */
TS_INLINE int64_t A_(visible)(const attention *s, int64_t i, int64_t first, int64_t keys)
{
    return s->causal ? ts_max64(0, ts_min64(keys, i + s->keys - s->rows + 1 - first)) : keys;
}

/* ----------------------------------------------------------------------------- forward ---- */

/** The state of a row over the tiles so far: largest score, sum of exponentials below it. */
typedef struct A_(row_state) {
    A_T most, sum;
} A_(row_state);

/**
 * n scores become exponentials under the largest score so far, zeros up to the end of a vector; the sum
 * follows. Returns the factor for what was summed before.
 */
static A_T A_(soften)(A_(row_state) *state, A_T *x, int64_t n)
{
    A_V most = A_P(set1)(state->most), low = A_P(set1)(-(A_T)INFINITY);
    int64_t j = 0, whole = n / A_L * A_L;
    if (whole < n) { /* the vector that n ends in: whole loads and stores, since partial ones delay each other */
        A_V last = A_P(select)(A_FIRST(n - whole), A_P(load)(x + whole), low);
        A_P(store)(x + whole, last);
        most = A_P(max)(most, last);
    }
    for (; j < whole; j += A_L)
        most = A_P(max)(most, A_P(load)(x + j));
    A_T now = A_P(hmax)(most);
    A_T factor = 1; /* the first tile has nothing to scale: no call of exp(-Inf), which is slow */
    if (state->most != now)
        factor = state->most == -(A_T)INFINITY ? 0 : (A_T)exp((double)(state->most - now));
    A_V top = A_P(set1)(now), sum = A_P(zero)();
    for (j = 0; j < n; j += A_L) {
        A_V e = A_EXP(A_P(load)(x + j) - top);
        A_P(store)(x + j, e);
        sum = sum + e;
    }
    state->most = now;
    state->sum = state->sum * factor + A_P(hsum)(sum);
    return factor;
}

static void A_(times)(A_T *x, int64_t n, A_T factor)
{
    int64_t j = 0;
    for (; j + A_L <= n; j += A_L)
        A_P(store)(x + j, A_P(load)(x + j) * A_P(set1)(factor));
    if (j < n)
        A_P(store_n)(x + j, A_P(load_n)(x + j, n - j) * A_P(set1)(factor), n - j);
}

/** Rows first to first + count of one head. */
static void A_(forward_rows)(const attention *s, A_T *scratch, int64_t batch, int64_t head, int64_t first, int64_t count)
{
    A_T *kt = scratch, *v = kt + s->tile * s->depth_room, *x = v + s->tile * s->value_room;
    const A_T *q = A_AT(s->q, batch, head) + first * s->q.row;
    const A_T *k_all = A_AT(s->k, batch, head / s->share), *v_all = A_AT(s->v, batch, head / s->share);
    A_T *out = A_AT(s->out, batch, head) + first * s->out.row;
    A_(row_state) state[FORWARD_ROWS];
    for (int64_t i = 0; i < count; i++)
        state[i] = (A_(row_state)){-(A_T)INFINITY, 0};
    int64_t blocks = A_(blocks)(count), seen = A_(visible)(s, first + count - 1, 0, s->keys);
    for (int64_t key = 0; key < seen; key += s->tile) {
        int64_t keys = ts_min64(s->tile, seen - key);
        A_(pack_transposed)(kt, k_all + key * s->k.row, s->k.row, s->depth, keys, (A_T)s->scale);
        A_(pack)(v, v_all + key * s->v.row, s->v.row, keys, s->value_depth, 1);
        for (int64_t b = 0; b < blocks; b++) {
            int64_t row = count * b / blocks, rows = count * (b + 1) / blocks - row;
            int64_t most = A_(visible)(s, first + row + rows - 1, key, keys); /* of the last row, which sees most */
            if (!most)
                continue;
            A_(multiply)(rows, ts_ceil_div(most, A_L) * A_L, s->depth, q + row * s->q.row, s->q.row, 1, kt, s->depth, x, s->tile, false);
            for (int64_t i = 0; i < rows; i++) {
                int64_t n = A_(visible)(s, first + row + i, key, keys);
                A_T factor = n ? A_(soften)(&state[row + i], x + i * s->tile, n) : 1;
                for (int64_t j = ts_ceil_div(n, A_L) * A_L; j < most; j += A_L)
                    A_P(store)(x + i * s->tile + j, A_P(zero)());
                if (key && factor != 1)
                    A_(times)(out + (row + i) * s->out.row, s->value_depth, factor);
            }
            A_(multiply)(rows, s->value_depth, most, x, s->tile, 1, v, keys, out + row * s->out.row, s->out.row, key > 0);
        }
    }
    for (int64_t i = 0; i < count; i++) {
        bool any = A_(visible)(s, first + i, 0, s->keys) > 0;
        A_T *to = out + i * s->out.row;
        if (any)
            A_(times)(to, s->value_depth, 1 / state[i].sum);
        else
            memset(to, 0, (size_t)s->value_depth * sizeof *to);
        if (s->lse)
            ((A_T *)s->lse)[(batch * s->heads + head) * s->rows + first + i] =
                any ? state[i].most + (A_T)log((double)state[i].sum) : -(A_T)INFINITY;
    }
}

static void A_(forward)(void *ctx, int64_t begin, int64_t end)
{
    attention *s = ctx;
    A_T *scratch = slot(s);
    int64_t chunks = ts_ceil_div(s->rows, FORWARD_ROWS);
    for (int64_t task = begin; task < end; task++) {
        int64_t chunk = task % chunks, head = task / chunks % s->heads, batch = task / chunks / s->heads;
        int64_t first = s->rows * chunk / chunks;
        A_(forward_rows)(s, scratch, batch, head, first, s->rows * (chunk + 1) / chunks - first);
    }
}

/* ---------------------------------------------------------------------------- backward ---- */

/**
 * With p = exp(score - lse) and d = grad · out - grad of lse, a row at a time: p and p (dp - d) over the
 * n visible of `keys` scores, zeros over the rest.
 */
static void A_(row_gradient)(A_T *p, A_T *dp, int64_t n, int64_t keys, A_T lse, A_T d)
{
    for (int64_t j = 0; j < n; j += A_L) { /* rows have room for whole vectors */
        A_V e = A_EXP(A_P(load)(p + j) - A_P(set1)(lse)), ds = e * (A_P(load)(dp + j) - A_P(set1)(d));
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

/** dot(grad, out) - grad of lse for all rows of a head. */
static void A_(deltas)(const attention *s, A_T *delta, int64_t batch, int64_t head)
{
    for (int64_t i = 0; i < s->rows; i++) {
        const A_T *g = A_AT(s->g, batch, head) + i * s->g.row, *o = A_AT(s->out, batch, head) + i * s->out.row;
        A_V sum = A_P(zero)();
        int64_t j = 0;
        for (; j + A_L <= s->value_depth; j += A_L)
            sum = A_P(fma)(A_P(load)(g + j), A_P(load)(o + j), sum);
        if (j < s->value_depth)
            sum = A_P(fma)(A_P(load_n)(g + j, s->value_depth - j), A_P(load_n)(o + j, s->value_depth - j), sum);
        delta[i] = A_P(hsum)(sum);
        if (s->g_lse)
            delta[i] -= ((const A_T *)s->g_lse)[(batch * s->heads + head) * s->rows + i];
    }
}

/** All heads that share one head of keys: one task, so sums over heads and tiles have one order. */
static void A_(backward_head)(const attention *s, A_T *scratch, int64_t batch, int64_t shared)
{
    int64_t tile = s->tile, chunk = BACKWARD_ROWS;
    A_T *kt = scratch, *vt = kt + tile * s->depth_room, *k = vt + tile * s->value_room, *q = k + tile * s->depth_room;
    A_T *g = q + chunk * s->depth_room, *p = g + chunk * s->value_room, *ds = p + chunk * tile;
    A_T *delta = ds + chunk * tile; /* (share, rows) */
    int64_t offset = s->causal ? s->keys - s->rows : 0;
    for (int64_t h = 0; h < s->share; h++)
        A_(deltas)(s, delta + h * s->rows, batch, shared * s->share + h);
    for (int64_t key = 0; key < s->keys; key += tile) {
        int64_t keys = ts_min64(tile, s->keys - key), key_blocks = A_(blocks)(keys);
        const A_T *k_from = A_AT(s->k, batch, shared) + key * s->k.row;
        A_(pack_transposed)(kt, k_from, s->k.row, s->depth, keys, (A_T)s->scale);
        A_(pack_transposed)(vt, A_AT(s->v, batch, shared) + key * s->v.row, s->v.row, s->value_depth, keys, 1);
        if (s->dq.data)
            A_(pack)(k, k_from, s->k.row, keys, s->depth, (A_T)s->scale);
        bool added = false; /* dk and dv of these keys hold something */
        for (int64_t h = 0; h < s->share; h++) {
            int64_t head = shared * s->share + h;
            const A_T *lse = (const A_T *)s->lse + (batch * s->heads + head) * s->rows;
            /* rows before this one see none of the keys; whole chunks of them are left out */
            int64_t start = s->causal ? ts_max64(0, key - offset) / chunk * chunk : 0;
            for (int64_t first = key ? start : 0; first < s->rows; first += chunk) {
                int64_t count = ts_min64(chunk, s->rows - first), blocks = A_(blocks)(count);
                const A_T *q_from = A_AT(s->q, batch, head) + first * s->q.row;
                const A_T *g_from = A_AT(s->g, batch, head) + first * s->g.row;
                for (int64_t b = 0; b < blocks; b++) {
                    int64_t row = count * b / blocks, rows = count * (b + 1) / blocks - row;
                    int64_t most = A_(visible)(s, first + row + rows - 1, key, keys);
                    A_T *pb = p + row * tile, *db = ds + row * tile;
                    int64_t wide = ts_ceil_div(most, A_L) * A_L;
                    A_(multiply)(rows, wide, s->depth, q_from + row * s->q.row, s->q.row, 1, kt, s->depth, pb, tile, false);
                    A_(multiply)(rows, wide, s->value_depth, g_from + row * s->g.row, s->g.row, 1, vt, s->value_depth, db,
                                 tile, false);
                    for (int64_t i = 0; i < rows; i++) {
                        int64_t at = first + row + i;
                        A_(row_gradient)(pb + i * tile, db + i * tile, A_(visible)(s, at, key, keys), keys, lse[at],
                                         delta[h * s->rows + at]);
                    }
                    if (s->dq.data)
                        A_(multiply)(rows, s->depth, most, db, tile, 1, k, keys,
                                     A_AT(s->dq, batch, head) + (first + row) * s->dq.row, s->dq.row, key > 0);
                }
                if (s->dk.data)
                    A_(pack)(q, q_from, s->q.row, count, s->depth, (A_T)s->scale);
                if (s->dv.data)
                    A_(pack)(g, g_from, s->g.row, count, s->value_depth, 1);
                for (int64_t b = 0; b < key_blocks; b++) {
                    int64_t row = keys * b / key_blocks, rows = keys * (b + 1) / key_blocks - row;
                    /* the first row of the chunk that sees one of these keys */
                    int64_t from = s->causal ? ts_min64(count, ts_max64(0, key + row - offset - first)) : 0;
                    if (s->dv.data)
                        A_(multiply)(rows, s->value_depth, count - from, p + from * tile + row, 1, tile,
                                     g + from * A_PANEL, count, A_AT(s->dv, batch, shared) + (key + row) * s->dv.row,
                                     s->dv.row, added);
                    if (s->dk.data)
                        A_(multiply)(rows, s->depth, count - from, ds + from * tile + row, 1, tile, q + from * A_PANEL,
                                     count, A_AT(s->dk, batch, shared) + (key + row) * s->dk.row, s->dk.row, added);
                }
                added = true;
            }
        }
    }
}

static void A_(backward)(void *ctx, int64_t begin, int64_t end)
{
    attention *s = ctx;
    A_T *scratch = slot(s);
    int64_t shared = s->heads / s->share;
    for (int64_t task = begin; task < end; task++)
        A_(backward_head)(s, scratch, task / shared, task % shared);
}

#undef A_PANEL
