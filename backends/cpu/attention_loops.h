/*
 * The loops of attention for one element type; attention.c includes this file for f32 and for f64,
 * after it has defined these macros:
 *
 *   A_T        element type              A_V, A_L   its vector and lanes
 *   A_(name)   a function of this type   A_P(name)  a primitive of vec.h: vf_name or vd_name
 *   A_FIRST(n) mask of the first n lanes A_TRANSPOSE packs a transpose, as vf_pack_transposed()
 *   A_MICRO    table of micro-kernels    A_EXP      vector exponential
 *   A_BLOCK    transposes a block of A_L by A_L elements into A_L vectors
 *
 * A part is a batch element or a packed sequence; a row is a query token, a key is a key token, lse
 * is the logsumexp of a row's scores. The full score matrix is never stored: a task processes tiles
 * of rows and keys that fit in cache. Forward and backward compute the scores from Q and the scaled
 * K, so the scores have the same bits. A pair (row, key) is hidden if the mask or the window
 * excludes the key; hidden pairs contribute to no sum. attention_scores.h masks the scores of a
 * row.
 *
 * Packed matrices are made of panels: (k, A_PANEL) elements, for A_PANEL columns each. attention.c
 * defines the structs attention (a call), operand and part.
 */
// SPDX-License-Identifier: MIT

#define A_PANEL (2 * A_L)

/** Number of blocks of at most MICRO_ROWS rows that n rows are divided into. */
static int64_t A_(blocks)(int64_t n) { return ts_ceil_div(n, MICRO_ROWS); }

#include "backends/cpu/attention_scores.h"

/* ------------------------------------------------------------------------------ products ---- */

/**
 * Packs `from` (k, columns), whose rows are `row` elements apart, times scale, into panels. The
 * last panel is padded with zeros. Returns whether all packed elements are finite.
 */
static bool A_(pack)(A_T *to, const A_T *from, int64_t row, int64_t k, int64_t columns, A_T scale)
{
    A_V odd = A_P(zero)(); /* sum of 0 * x: NaN if some x is Inf or NaN, else 0 */
    for (int64_t j = 0; j < columns; j += A_PANEL)
        for (int64_t p = 0; p < k; p++, to += A_PANEL)
            for (int v = 0; v < 2; v++) {
                int64_t lanes = ts_max64(0, ts_min64(A_L, columns - j - v * A_L));
                const A_T *at = from + p * row + j + (lanes ? v * A_L : 0);
                A_V x = A_P(load_n)(at, lanes);
                if (lanes == A_L)
                    x = A_P(load)(at);
                x = x * A_P(set1)(scale);
                odd = A_P(fma)(x, A_P(zero)(), odd);
                A_P(store)(to + v * A_L, x);
            }
    return A_P(hsum)(odd) == 0;
}

/** True if all elements of `from` (k, columns), whose rows are `row` elements apart, are finite.
 * columns: a multiple of A_L. */
static bool A_(is_finite)(const A_T *from, int64_t row, int64_t k, int64_t columns)
{
    A_V odd[2] = {A_P(zero)(), A_P(zero)()}; /* sums of 0 * x, as in pack() */
    for (int64_t p = 0; p < k; p++, from += row) {
        int64_t j = 0;
        for (; j + 2 * A_L <= columns; j += 2 * A_L) {
            odd[0] = A_P(fma)(A_P(load)(from + j), A_P(zero)(), odd[0]);
            odd[1] = A_P(fma)(A_P(load)(from + j + A_L), A_P(zero)(), odd[1]);
        }
        if (j < columns)
            odd[0] = A_P(fma)(A_P(load)(from + j), A_P(zero)(), odd[0]);
    }
    return A_P(hsum)(odd[0] + odd[1]) == 0;
}

/** Packs the transpose of `from` (columns, k), whose rows are `row` elements apart, times scale,
 * into panels. The function does not look for non-finite elements, which affect only the scores of
 * their own key. */
static void A_(pack_transposed)(A_T *to, const A_T *from, int64_t row, int64_t k, int64_t columns,
                                A_T scale)
{
    for (int64_t j = 0; j < columns; j += A_PANEL, to += k * A_PANEL) {
        A_TRANSPOSE(to, A_PANEL, from + j * row, row, ts_min64(A_PANEL, columns - j), k);
        for (int64_t i = 0; i < k * A_PANEL; i += A_L)
            A_P(store)(to + i, A_P(load)(to + i) * A_P(set1)(scale));
    }
}

/**
 * c (m, n) = a (m, k) b (k, n); with `add` the product is added to c. m <= MICRO_ROWS. Strides are
 * in elements: a_row and a_step between rows and columns of a, c_row between rows of c, b_row
 * between rows of b, b_panel between groups of A_PANEL columns of b. Whole vectors of b are read.
 */
static void A_(multiply_panels)(int64_t m, int64_t n, int64_t k, const A_T *a, int64_t a_row,
                                int64_t a_step, const A_T *b, int64_t b_row, int64_t b_panel,
                                A_T *c, int64_t c_row, bool add)
{
    for (int64_t j = 0; j < n; j += A_PANEL, b += b_panel) {
        int64_t columns = ts_min64(A_PANEL, n - j);
        A_MICRO[m][columns > A_L](k, a, a_row, a_step, b, b_row, c + j, c_row, columns, NULL, add,
                                  b, 0);
    }
}

/** multiply_panels() for a packed b with panels of `depth` rows, of which the product uses the
 * first k. */
static void A_(multiply)(int64_t m, int64_t n, int64_t k, const A_T *a, int64_t a_row,
                         int64_t a_step, const A_T *b, int64_t depth, A_T *c, int64_t c_row,
                         bool add)
{
    A_(multiply_panels)(m, n, k, a, a_row, a_step, b, A_PANEL, depth * A_PANEL, c, c_row, add);
}

/** multiply() for an a of weights or of gradients of scores, which are 0 for hidden pairs. finite:
 * all elements of b are finite. Otherwise terms with a zero of a are skipped, because 0 * Inf is
 * NaN. */
static void A_(multiply_weights)(int64_t m, int64_t n, int64_t k, const A_T *a, int64_t a_row,
                                 int64_t a_step, const A_T *b, int64_t depth, bool finite, A_T *c,
                                 int64_t c_row, bool add)
{
    if (TS_LIKELY(finite)) {
        A_(multiply)(m, n, k, a, a_row, a_step, b, depth, c, c_row, add);
        return;
    }
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            A_T sum = add ? c[i * c_row + j] : 0;
            for (int64_t p = 0; p < k; p++)
                if (a[i * a_row + p * a_step] != 0)
                    sum += a[i * a_row + p * a_step] *
                           b[j / A_PANEL * A_PANEL * depth + p * A_PANEL + j % A_PANEL];
            c[i * c_row + j] = sum;
        }
}

/** Writes to c the dot products of the row a with n rows of b, which are `row` elements apart,
 * times scale. All rows have k elements. Pads c with zeros to whole vectors. The bits are those of
 * multiply() with pack_transposed(b), but b is transposed block by block instead of packed. */
static void A_(multiply_row)(A_T *c, const A_T *a, const A_T *b, int64_t row, int64_t k, int64_t n,
                             A_T scale)
{
    for (int64_t j = 0; j < n; j += A_L, b += A_L * row) {
        int64_t rows = ts_min64(A_L, n - j);
        A_V sum = A_P(zero)(), r[A_L];
        for (int64_t p = 0, lanes; p < k; p += lanes) {
            lanes = ts_min64(A_L, k - p);
            A_BLOCK(r, b + p, row, rows, lanes);
            if (lanes == A_L)
                TS_UNROLL(16) for (int i = 0; i < A_L; i++)
                    sum = A_P(fma)(A_P(set1)(a[p + i]), r[i] * A_P(set1)(scale), sum);
            else
                for (int64_t i = 0; i < lanes; i++)
                    sum = A_P(fma)(A_P(set1)(a[p + i]), r[i] * A_P(set1)(scale), sum);
        }
        A_P(store)(c + j, rows == A_L ? sum : A_P(select)(A_FIRST(rows), sum, A_P(zero)()));
    }
}

/** Scales n contiguous elements. */
static void A_(scale)(A_T *x, int64_t n, A_T factor)
{
    int64_t j = 0;
    for (; j + A_L <= n; j += A_L)
        A_P(store)(x + j, A_P(load)(x + j) * A_P(set1)(factor));
    if (j < n)
        A_P(store_n)(x + j, A_P(load_n)(x + j, n - j) * A_P(set1)(factor), n - j);
}

/* ----------------------------------------------------------------------------- forward ---- */

/** Address of the first element of head h of a part: A_ROWS for operands with one row per query
 * token, A_KEYS for operands with one row per key token. */
#define A_ROWS(x, at, h) (A_AT(x, (at)->batch, h) + (at)->row0 * (x).row)
#define A_KEYS(x, at, h) (A_AT(x, (at)->batch, h) + (at)->key0 * (x).row)

/** Computes out and, if requested, lse of rows first to first + count - 1 of one head. count <=
 * FORWARD_ROWS. */
static void A_(forward_rows)(const attention *s, A_T *scratch, const part *at, int64_t head,
                             int64_t first, int64_t count)
{
    A_T *kt = scratch, *v = kt + s->tile * s->depth_room, *x = v + s->tile * s->value_room;
    const A_T *q = A_ROWS(s->q, at, head) + first * s->q.row;
    const A_T *k_all = A_KEYS(s->k, at, head / s->share),
              *v_all = A_KEYS(s->v, at, head / s->share);
    A_T *out = A_ROWS(s->out, at, head) + first * s->out.row;
    A_(row_state) state[FORWARD_ROWS];
    for (int64_t i = 0; i < count; i++)
        state[i] = (A_(row_state)){-(A_T)INFINITY, 0};
    int64_t blocks = A_(blocks)(count), seen = A_(visible)(s, at, first + count - 1, 0, at->keys);
    int64_t begin = A_(left_of_window)(s, at, first, 0, seen);
    for (int64_t key = begin; key < seen; key += s->tile) {
        int64_t keys = ts_min64(s->tile, seen - key);
        const A_T *k_tile = k_all + key * s->k.row;
        if (count > 1)
            A_(pack_transposed)(kt, k_tile, s->k.row, s->depth, keys, (A_T)s->c.scale);
        const A_T *v_tile = v_all + key * s->v.row;
        /* a single block reads the values in place: packing costs more than its product */
        bool in_place = blocks == 1 && s->value_depth % A_L == 0 &&
                        A_(is_finite)(v_tile, s->v.row, keys, s->value_depth);
        bool finite = in_place || A_(pack)(v, v_tile, s->v.row, keys, s->value_depth, 1);
        for (int64_t b = 0; b < blocks; b++) {
            int64_t row = count * b / blocks, rows = count * (b + 1) / blocks - row;
            /* visible keys of the block's last row; earlier rows have no more */
            int64_t most = A_(visible)(s, at, first + row + rows - 1, key, keys);
            if (!most)
                continue;
            if (count == 1)
                A_(multiply_row)(x, q, k_tile, s->k.row, s->depth, most, (A_T)s->c.scale);
            else
                A_(multiply)(rows, ts_ceil_div(most, A_L) * A_L, s->depth, q + row * s->q.row,
                             s->q.row, 1, kt, s->depth, x, s->tile, false);
            for (int64_t i = 0; i < rows; i++) {
                int64_t at_row = first + row + i, n = A_(visible)(s, at, at_row, key, keys);
                if (s->masked && n)
                    A_(mask_scores)(s, at, head, at_row, key, x + i * s->tile, n, NULL);
                A_T factor = n ? A_(online_softmax)(&state[row + i], x + i * s->tile, n) : 1;
                if (s->c.dropout_p > 0)
                    A_(apply_dropout)(s, at, head, at_row, key, x + i * s->tile, n);
                for (int64_t j = ts_ceil_div(n, A_L) * A_L; j < most; j += A_L)
                    A_P(store)(x + i * s->tile + j, A_P(zero)());
                if (key > begin && factor != 1)
                    A_(scale)(out + (row + i) * s->out.row, s->value_depth, factor);
            }
            A_T *sums = out + row * s->out.row;
            if (in_place)
                A_(multiply_panels)(rows, s->value_depth, most, x, s->tile, 1, v_tile, s->v.row,
                                    A_PANEL, sums, s->out.row, key > begin);
            else
                A_(multiply_weights)(rows, s->value_depth, most, x, s->tile, 1, v, keys, finite,
                                     sums, s->out.row, key > begin);
        }
    }
    for (int64_t i = 0; i < count; i++) {
        bool any = state[i].sum != 0; /* true if the sum is NaN */
        A_T *to = out + i * s->out.row;
        if (any)
            A_(scale)(to, s->value_depth, 1 / state[i].sum);
        else
            memset(to, 0, (size_t)s->value_depth * sizeof *to);
        if (s->lse)
            ((A_T *)s->lse)[statistic(s, at, head, first + i)] =
                any ? state[i].most + (A_T)log((double)state[i].sum) : -(A_T)INFINITY;
    }
}

/** A task is a chunk of at most FORWARD_ROWS rows of one head of one part. All heads have `most`
 * tasks; tasks beyond the chunks of a shorter part do nothing. */
static void A_(forward)(void *ctx, int64_t begin, int64_t end)
{
    attention *s = ctx;
    A_T *scratch = ts_slot(&s->slots);
    int64_t most = ts_ceil_div(s->rows, FORWARD_ROWS);
    for (int64_t task = begin; task < end; task++) {
        part at = part_of(s, task / most / s->heads);
        int64_t chunk = task % most, head = task / most % s->heads,
                chunks = ts_ceil_div(at.rows, FORWARD_ROWS);
        if (chunk >= chunks)
            continue;
        int64_t first = at.rows * chunk / chunks;
        A_(forward_rows)(s, scratch, &at, head, first, at.rows * (chunk + 1) / chunks - first);
    }
}

/* ---------------------------------------------------------------------------- backward ---- */

/** delta[i] = dot(grad of out, out) - grad of lse, for all rows i of a head. */
static void A_(deltas)(const attention *s, A_T *delta, const part *at, int64_t head)
{
    for (int64_t i = 0; i < at->rows; i++) {
        const A_T *g = A_ROWS(s->g, at, head) + i * s->g.row,
                  *o = A_ROWS(s->out, at, head) + i * s->out.row;
        A_V sum = A_P(zero)();
        int64_t j = 0;
        for (; j + A_L <= s->value_depth; j += A_L)
            sum = A_P(fma)(A_P(load)(g + j), A_P(load)(o + j), sum);
        if (j < s->value_depth)
            sum = A_P(fma)(A_P(load_n)(g + j, s->value_depth - j),
                           A_P(load_n)(o + j, s->value_depth - j), sum);
        delta[i] = A_P(hsum)(sum);
        if (s->g_lse)
            delta[i] -= ((const A_T *)s->g_lse)[statistic(s, at, head, i)];
    }
}

/** Computes the requested ones of dq of all query heads that share key head `shared`, and dk and dv
 * of this key head. One task does so, so sums over heads and tiles have a fixed order. */
static void A_(backward_head)(const attention *s, A_T *scratch, const part *at, int64_t shared)
{
    int64_t tile = s->tile, chunk = BACKWARD_ROWS;
    A_T *kt = scratch, *vt = kt + tile * s->depth_room, *k = vt + tile * s->value_room,
        *q = k + tile * s->depth_room;
    A_T *g = q + chunk * s->depth_room, *p = g + chunk * s->value_room, *ds = p + chunk * tile;
    A_T *delta = ds + chunk * tile; /* (share, rows) */
    A_T scale = (A_T)s->c.scale;
    bool finite_k = true, finite_q = true, finite_g = true;
    bool by_rows = at->rows * s->share <= 2; /* packing would cost more than the products */
    for (int64_t h = 0; h < s->share; h++)
        A_(deltas)(s, delta + h * at->rows, at, shared * s->share + h);
    for (int64_t key = 0; key < at->keys; key += tile) {
        int64_t keys = ts_min64(tile, at->keys - key), key_blocks = A_(blocks)(keys);
        const A_T *k_from = A_KEYS(s->k, at, shared) + key * s->k.row,
                  *v_from = A_KEYS(s->v, at, shared) + key * s->v.row;
        if (!by_rows) {
            A_(pack_transposed)(kt, k_from, s->k.row, s->depth, keys, scale);
            A_(pack_transposed)(vt, v_from, s->v.row, s->value_depth, keys, 1);
        }
        if (s->dq.data)
            finite_k = A_(pack)(k, k_from, s->k.row, keys, s->depth, scale);
        bool added = s->zeroed; /* dk and dv of these keys are initialized: add to them */
        /* These keys are hidden from rows before `start` and from `end` on. Whole chunks of such
         * rows are skipped, except for the first tile if it initializes dq, dk and dv. */
        int64_t diagonal = key - (at->keys - at->rows),
                start = ts_max64(0, diagonal - s->c.right) / chunk * chunk;
        int64_t end = ts_min64(at->rows, diagonal + keys + s->c.left);
        for (int64_t h = 0; h < s->share; h++) {
            int64_t head = shared * s->share + h;
            const A_T *lse = (const A_T *)s->saved_lse + statistic(s, at, head, 0);
            for (int64_t first = key || s->zeroed ? start : 0; first < end; first += chunk) {
                int64_t count = ts_min64(chunk, at->rows - first), blocks = A_(blocks)(count);
                const A_T *q_from = A_ROWS(s->q, at, head) + first * s->q.row;
                const A_T *g_from = A_ROWS(s->g, at, head) + first * s->g.row;
                for (int64_t b = 0; b < blocks; b++) {
                    int64_t row = count * b / blocks, rows = count * (b + 1) / blocks - row;
                    int64_t most = A_(visible)(s, at, first + row + rows - 1, key, keys);
                    A_T *pb = p + row * tile, *db = ds + row * tile;
                    int64_t wide = ts_ceil_div(most, A_L) * A_L;
                    for (int64_t i = 0; by_rows && i < rows; i++) {
                        A_(multiply_row)(pb + i * tile, q_from + i * s->q.row, k_from, s->k.row,
                                         s->depth, most, scale);
                        A_(multiply_row)(db + i * tile, g_from + i * s->g.row, v_from, s->v.row,
                                         s->value_depth, most, 1);
                    }
                    if (!by_rows) {
                        A_(multiply)(rows, wide, s->depth, q_from + row * s->q.row, s->q.row, 1,
                                     kt, s->depth, pb, tile, false);
                        A_(multiply)(rows, wide, s->value_depth, g_from + row * s->g.row,
                                     s->g.row, 1, vt, s->value_depth, db, tile, false);
                    }
                    for (int64_t i = 0; i < rows; i++) {
                        int64_t r = first + row + i, n = A_(visible)(s, at, r, key, keys);
                        if (s->masked || s->c.dropout_p > 0)
                            A_(masked_gradient)(s, at, head, r, key, pb + i * tile, db + i * tile,
                                                 n, keys, lse[r], delta[h * at->rows + r]);
                        else
                            A_(row_gradient)(pb + i * tile, db + i * tile, n, keys, lse[r],
                                             delta[h * at->rows + r]);
                    }
                    if (s->dq.data)
                        A_(multiply_weights)(rows, s->depth, most, db, tile, 1, k, keys, finite_k,
                                             A_ROWS(s->dq, at, head) + (first + row) * s->dq.row,
                                             s->dq.row, key > 0 || s->zeroed);
                }
                if (s->dk.data)
                    finite_q = A_(pack)(q, q_from, s->q.row, count, s->depth, scale);
                if (s->dv.data)
                    finite_g = A_(pack)(g, g_from, s->g.row, count, s->value_depth, 1);
                for (int64_t b = 0; b < key_blocks; b++) {
                    int64_t row = keys * b / key_blocks, rows = keys * (b + 1) / key_blocks - row;
                    /* first row of the chunk for which a key of block b is visible */
                    int64_t from =
                        ts_min64(count, ts_max64(0, diagonal + row - s->c.right - first));
                    if (s->dv.data)
                        A_(multiply_weights)(
                            rows, s->value_depth, count - from, p + from * tile + row, 1, tile,
                            g + from * A_PANEL, count, finite_g,
                            A_KEYS(s->dv, at, shared) + (key + row) * s->dv.row, s->dv.row, added);
                    if (s->dk.data)
                        A_(multiply_weights)(
                            rows, s->depth, count - from, ds + from * tile + row, 1, tile,
                            q + from * A_PANEL, count, finite_q,
                            A_KEYS(s->dk, at, shared) + (key + row) * s->dk.row, s->dk.row, added);
                }
                added = true;
            }
        }
    }
}

/** A task is one key head of one part. */
static void A_(backward)(void *ctx, int64_t begin, int64_t end)
{
    attention *s = ctx;
    A_T *scratch = ts_slot(&s->slots);
    int64_t shared = s->heads / s->share; /* key heads */
    for (int64_t task = begin; task < end; task++) {
        part at = part_of(s, task / shared);
        A_(backward_head)(s, scratch, &at, task % shared);
    }
}

#undef A_PANEL
#undef A_ROWS
#undef A_KEYS
