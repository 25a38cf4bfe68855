/* Weighted sums over spatial dims for one real type T (real_names.h); included by resample.c, which
 * defines table, resample_job and line_job.
 *
 * A row is the elements along the last spatial dim; in channels-last, with all their channels. Rows
 * of the result are numbered by plane, then depth, then height. A tap is an element of the argument
 * that an element of the result reads, with its weight. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/kinds_real.h"

#ifndef TS_BACKENDS_CPU_RESAMPLE_REAL_H
#define TS_BACKENDS_CPU_RESAMPLE_REAL_H
enum { AVERAGED_VECTORS = 4, /* vectors of sums of average_planes() */
       LONG_TAPS = 16, /* fewest contiguous taps that are summed in vectors */
       PIXEL_VECTORS = 4, /* vectors that are summed together in registers */
       MANY_TAPS = 32,    /* fewest pixels of a window for which combine_window() is always used */
       SUMMED_CHANNELS = 1024 }; /* most channels that combine_window() sums together */
#endif

/** A row of the result, and the tables that list the argument's rows that it reads. */
typedef struct S(row_taps) {
    const table *depth, *height;
    int64_t d, h, plane; /* position of the row in the result */
} S(row_taps);

/** Row number `row` of the result. */
VEC_FN S(row_taps) S(taps_of_row)(const resample_job *job, int64_t row)
{
    const table *depth = &job->axis[0], *height = &job->axis[1];
    int64_t rest = row / height->out;
    S(row_taps) t = {depth, height, rest % depth->out, row % height->out, rest / depth->out};
    return t;
}

/** Loops over the argument's rows that row t reads: tap dk along depth, tap hk along height. */
#define EACH_ROW(t, dk, hk)                                                                        \
    for (int32_t dk = (t).depth->begin[(t).d]; dk < (t).depth->begin[(t).d + 1]; dk++)             \
        for (int32_t hk = (t).height->begin[(t).h]; hk < (t).height->begin[(t).h + 1]; hk++)
/** Returns the offset of the argument's row that taps dk and hk read; *weight: the product of their
 * weights and the factor. */
VEC_FN int64_t S(row_offset)(const resample_job *job, const S(row_taps) *t, int32_t dk, int32_t hk,
                             T *weight)
{
    *weight = (T)(t->depth->weight[dk] * t->height->weight[hk] * job->factor);
    return ((t->plane * t->depth->in + t->depth->index[dk]) * t->height->in +
            t->height->index[hk]) *
           job->axis[2].in * job->channels;
}

/** Writes elements i, i + 1, ... of the weighted sum of the argument's rows that row t reads to
 * acc: `vectors` vectors. left: LANES, or with one vector the number of elements that are read. */
VEC_FN void S(sum_vectors)(ts_dtype kind, const resample_job *job, const S(row_taps) *t, T *acc,
                           int64_t i, int vectors, int64_t left)
{
    V sum[PIXEL_VECTORS];
    for (int v = 0; v < vectors; v++)
        sum[v] = F(zero)();
    EACH_ROW(*t, dk, hk) {
        T weight;
        int64_t from = S(row_offset)(job, t, dk, hk, &weight) + i;
        V w = F(set1)(weight);
        for (int v = 0; v < vectors; v++)
            sum[v] = F(fma)(S(get)(kind, job->x, from + v * LANES, left), w, sum[v]);
    }
    for (int v = 0; v < vectors; v++)
        F(store)(acc + i + v * LANES, sum[v]);
}

/** Writes the weighted sum of the argument's rows that row t reads to acc. */
VEC_FN void S(sum_rows)(ts_dtype kind, const resample_job *job, const S(row_taps) *t, T *acc)
{
    int64_t n = job->axis[2].in, i = 0;
    for (; i + PIXEL_VECTORS * LANES <= n; i += PIXEL_VECTORS * LANES)
        S(sum_vectors)(kind, job, t, acc, i, PIXEL_VECTORS, LANES);
    for (; i + LANES <= n; i += LANES)
        S(sum_vectors)(kind, job, t, acc, i, 1, LANES);
    if (i < n)
        S(sum_vectors)(kind, job, t, acc, i, 1, n - i);
}

/** Weight of tap k of a table. */
VEC_FN T S(weight_at)(const table *t, int32_t k)
{
#if TS_REAL == 32
    return t->weight32[k];
#else
    return t->weight[k];
#endif
}

/** Computes element o of a row of the result from acc, the sum of the argument's rows (sum_rows()).
 * t: the table of the last dim. */
VEC_FN T S(combine_one)(const table *t, const T *acc, int64_t o)
{
    int32_t k = t->begin[o], end = t->begin[o + 1], n = end - k;
    T sum = 0;
    /* From tap to tap, an index grows by 0 or by the number of channels. If it grows by 1 first and
       by n - 1 in all, the n elements are adjacent. */
    if (n >= LONG_TAPS && t->index[k + 1] - t->index[k] == 1 &&
        t->index[end - 1] - t->index[k] == n - 1) {
        V sums = F(zero)();
        const T *x = acc + t->index[k];
#if TS_REAL == 32
        const T *w = t->weight32 + k;
#else
        const T *w = t->weight + k;
#endif
        for (int32_t i = 0; i < n; i += LANES)
            sums = F(fma)(S(load_some)(x + i, n - i, F(zero)()),
                          S(load_some)(w + i, n - i, F(zero)()), sums);
        return F(hsum)(sums);
    }
    if (n >= LONG_TAPS) {
        T sums[4] = {0};
        for (; k + 4 <= end; k += 4)
            for (int i = 0; i < 4; i++)
                sums[i] += S(weight_at)(t, k + i) * acc[t->index[k + i]];
        sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
    for (; k < end; k++)
        sum += S(weight_at)(t, k) * acc[t->index[k]];
    return sum;
}

#if TS_REAL == 32
/** Loads the elements of acc at columns[at] to columns[at + LANES - 1]; `at` is a multiple of
 * LANES. */
VEC_FN V S(column_elements)(const table *t, const T *acc, int64_t at)
{
    const T *first = acc + t->first[at / LANES];
    index_pattern pattern = t->pattern[at / LANES];
    if (pattern == PATTERN_EQUAL)
        return F(set1)(*first);
    if (pattern == PATTERN_CONSECUTIVE)
        return F(load)(first);
    vi columns = vi_load(t->columns + at);
    if (pattern == PATTERN_ANY)
        return vf_gather(acc, columns);
    vi lanes = columns - t->first[at / LANES];
    V x = pattern == PATTERN_ONE_VECTOR ? vf_permute(F(load)(first), lanes)
                           : vf_permute2(F(load)(first), F(load)(first + LANES), lanes);
    return F(select)(vi_eq(columns, vi_set1((int32_t)t->zero)), F(zero)(), x);
}
#endif

/** Computes a row y of the result from acc and the table t of the last dim. Elements with fewer
 * taps than others read acc[t->zero], which must be 0. */
VEC_FN void S(combine_row)(const table *t, const T *acc, T *y)
{
    int64_t o = 0;
#if TS_REAL == 32
    for (; t->taps && o < t->out; o += LANES) {
        V sum = F(zero)();
        for (int32_t k = 0; k < t->taps; k++) {
            int64_t at = k * t->step + o;
            sum = F(fma)(S(column_elements)(t, acc, at), F(load)(t->weights + at), sum);
        }
        S(store_some)(y + o, sum, t->out - o);
    }
#endif
    for (; t->taps == 1 && t->begin[t->out] == t->out && o < t->out; o++) /* one tap each */
        y[o] = (T)0 + S(weight_at)(t, (int32_t)o) * acc[t->index[o]];
    for (; o < t->out; o++)
        y[o] = S(combine_one)(t, acc, o);
}

/** Computes `vectors` vectors of channels, starting at channel c, of pixel o of a row of the
 * result. A single vector may have `left` < LANES channels. to: index of channel c in the result.
 */
VEC_FN void S(combine_pixel)(ts_dtype kind, const resample_job *job, const S(row_taps) *t,
                             int64_t to, int64_t o, int64_t c, int vectors, int64_t left)
{
    const table *width = &job->axis[2];
    V sum[PIXEL_VECTORS];
    for (int v = 0; v < vectors; v++)
        sum[v] = F(zero)();
    EACH_ROW(*t, dk, hk) {
        T weight;
        int64_t from = S(row_offset)(job, t, dk, hk, &weight) + c;
        for (int32_t k = width->begin[o]; k < width->begin[o + 1]; k++) {
            V w = F(set1)(weight * S(weight_at)(width, k));
            int64_t at = from + width->index[k] * job->channels;
            for (int v = 0; v < vectors; v++)
                sum[v] = F(fma)(S(get)(kind, job->x, at + v * LANES, left), w, sum[v]);
        }
    }
    for (int v = 0; v < vectors; v++)
        S(set)(kind, job->y, to + v * LANES, sum[v], left);
}

/** Computes all channels of pixel o as combine_pixel() does, but reads the pixels of the argument
 * in the order of memory and adds them to the sums of up to SUMMED_CHANNELS channels in acc. */
VEC_FN void S(combine_window)(ts_dtype kind, const resample_job *job, const S(row_taps) *t,
                              int64_t to, int64_t o, T *acc)
{
    const table *width = &job->axis[2];
    for (int64_t c = 0, n; c < job->channels; c += n) {
        n = ts_min64(SUMMED_CHANNELS, job->channels - c);
        for (int64_t i = 0; i < n; i += LANES)
            F(store)(acc + i, F(zero)());
        EACH_ROW(*t, dk, hk) {
            T weight;
            int64_t from = S(row_offset)(job, t, dk, hk, &weight) + c;
            for (int32_t k = width->begin[o]; k < width->begin[o + 1]; k++) {
                V w = F(set1)(weight * S(weight_at)(width, k));
                int64_t at = from + width->index[k] * job->channels, i = 0;
                for (; i + LANES <= n; i += LANES)
                    F(store)(acc + i, F(fma)(S(get)(kind, job->x, at + i, LANES), w,
                                             F(load)(acc + i)));
                if (i < n)
                    F(store)(acc + i, F(fma)(S(get)(kind, job->x, at + i, n - i), w,
                                             F(load)(acc + i)));
            }
        }
        for (int64_t i = 0; i < n; i += LANES)
            S(set)(kind, job->y, to + c + i, F(load)(acc + i), ts_min64(LANES, n - i));
    }
}

/** Number of the argument's pixels that pixel o of a row of the result reads. */
VEC_FN int64_t S(window_size)(const resample_job *job, const S(row_taps) *t, int64_t o)
{
    const table *w = &job->axis[2];
    return (int64_t)(t->depth->begin[t->d + 1] - t->depth->begin[t->d]) *
           (t->height->begin[t->h + 1] - t->height->begin[t->h]) * (w->begin[o + 1] - w->begin[o]);
}

/** True if combine_window() is faster for pixel o: its window has many pixels, or pixels of many
 * channels that come from memory and that the next window does not read. Processors prefetch whole
 * pixels that are read in order. */
VEC_FN bool S(is_in_order)(const resample_job *job, const S(row_taps) *t, int64_t o)
{
    const table *w = &job->axis[2];
    int32_t k = w->begin[o + 1];
    return S(window_size)(job, t, o) >= MANY_TAPS ||
           (job->large && job->channels > PIXEL_VECTORS * LANES && k > 0 &&
            (o + 1 == w->out || w->index[k] > w->index[k - 1]));
}

/** True if rows a and b of a table have the same taps. Rows of more than two taps are not compared
 * and count as different, unless a equals b. */
VEC_FN bool S(same_taps)(const table *t, int64_t a, int64_t b)
{
    int32_t from = t->begin[a], to = t->begin[b], n = t->begin[a + 1] - from;
    if (a == b)
        return true;
    bool same = n <= 2 && t->begin[b + 1] - to == n;
    for (int32_t k = 0; same && k < n; k++)
        same = t->index[from + k] == t->index[to + k] && t->weight[from + k] == t->weight[to + k];
    return same;
}

/** Computes rows begin to end - 1 of the result. A row with the same_taps() as the row before it in
 * this range is copied from that row. */
VEC_FN void S(resample_range)(ts_dtype kind, const resample_job *job, int64_t begin, int64_t end)
{
    const table *width = &job->axis[2];
    T *acc = ts_slot(job->slots), *out = acc + width->zero + LANES;
    S(row_taps) before = {0};
    int64_t item = ts_dtype_sizes[kind];
    for (int64_t row = begin; row < end; row++) {
        S(row_taps) t = S(taps_of_row)(job, row);
        int64_t n = job->channels, each = width->out * n, to = row * each;
        if (row > begin && t.plane == before.plane && S(same_taps)(t.depth, t.d, before.d) &&
            S(same_taps)(t.height, t.h, before.h)) {
            ts_copy_bytes((char *)job->y + to * item, (char *)job->y + (to - each) * item,
                          each * item);
            continue;
        }
        before = t;
        if (job->last) {
            for (int64_t o = 0; o < width->out; o++) {
                int64_t at = to + o * n, c = 0;
                if (S(is_in_order)(job, &t, o)) {
                    S(combine_window)(kind, job, &t, at, o, acc);
                    continue;
                }
                for (; c + PIXEL_VECTORS * LANES <= n; c += PIXEL_VECTORS * LANES)
                    S(combine_pixel)(kind, job, &t, at + c, o, c, PIXEL_VECTORS, LANES);
                for (; c + LANES <= n; c += LANES)
                    S(combine_pixel)(kind, job, &t, at + c, o, c, 1, LANES);
                if (c < n)
                    S(combine_pixel)(kind, job, &t, at + c, o, c, 1, n - c);
            }
            continue;
        }
        S(sum_rows)(kind, job, &t, acc);
        acc[width->zero] = 0;
        if (kind == TS_F32 || kind == TS_F64) {
            S(combine_row)(width, acc, (T *)job->y + to);
            continue;
        }
        S(combine_row)(width, acc, out);
        int64_t i = 0;
        for (; i + LANES <= width->out; i += LANES)
            S(set)(kind, job->y, to + i, F(load)(out + i), LANES);
        if (i < width->out)
            S(set)(kind, job->y, to + i, F(load_n)(out + i, width->out - i), width->out - i);
    }
}
#undef EACH_ROW

/* --------------------------------------------------------------------------------- lines ---- */

/** Element i of p, widened if `kind` is bf16 or f16. */
VEC_FN T S(element)(ts_dtype kind, const void *p, int64_t i)
{
    return kind == TS_BF16  ? (T)ts_bf16_to_f32(((const uint16_t *)p)[i])
           : kind == TS_F16 ? (T)ts_f16_to_f32(((const uint16_t *)p)[i])
                            : ((const T *)p)[i];
}

/** Sum of n elements starting at index i. Sums of LINE_PART elements are added in f64. */
VEC_FN T S(sum_run)(ts_dtype kind, const void *p, int64_t i, int64_t n)
{
    double total = 0;
    for (int64_t end = i + n, last; i < end; i = last) {
        V sum = F(zero)();
        last = ts_min64(i + LINE_PART, end);
        for (int64_t k = i; k < last; k += LANES)
            sum += S(get)(kind, p, k, last - k);
        total += (double)F(hsum)(sum);
    }
    return (T)total;
}

/** Processes elements o to o + count - 1 of the forward op's result, whose taps are t, for elements
 * `first` to first + n - 1 of a line of y, whose sums begin at `to`. In the forward op, y is the
 * result, and the function stores the elements. In the gradient, it adds the terms of their
 * gradients to the sums. x: index of the line's first element in job->x. */
VEC_FN void S(add_taps)(ts_dtype kind, const line_job *job, const taps *t, int64_t o, int64_t count,
                        int64_t x, int64_t first, int64_t n, T *to)
{
    const ts_axis *axis = job->axis;
    int64_t step = job->channels;
    bool back = job->transposed, windows = axis->map <= TS_AXIS_ADAPTIVE && !back && step == 1;
    for (int64_t j = 0; j < count; j++) {
        T g = back ? S(element)(kind, job->x, x + (o + j) * step) : (T)0, sum = 0;
        if (windows && t[j].count >= LONG_TAPS) {
            to[o + j - first] = (T)t[j].weight *
                                S(sum_run)(kind, job->x, x + t[j].first, t[j].count);
            continue;
        }
        if (back && axis->map <= TS_AXIS_ADAPTIVE) { /* a window may be much longer than a part */
            int64_t from = t[j].first - first, last = ts_min64(from + t[j].count, n);
            T term = (T)t[j].weight * g;
            for (int64_t i = ts_max64(from, 0); i < last; i++)
                to[i] += term;
            continue;
        }
        for (int64_t k = 0; k < t[j].count; k++) {
            int64_t i = index_of(axis, &t[j], k);
            T weight = (T)weight_of(axis, &t[j], k);
            if (!back)
                sum += weight * S(element)(kind, job->x, x + i * step);
            else if ((uint64_t)(i - first) < (uint64_t)n)
                to[i - first] += weight * g;
        }
        if (!back)
            to[o + j - first] = sum;
    }
}

/** Computes parts begin to end - 1 of all lines. A part is job->part elements of each line of y. */
VEC_FN void S(resample_parts)(ts_dtype kind, const line_job *job, int64_t begin, int64_t end)
{
    T *sums = ts_slot(job->slots);
    int64_t lines = job->planes * job->channels;
    taps t[LINE_TAPS];
    for (int64_t part = begin; part < end; part++) {
        int64_t first = part * job->part, n = ts_min64(job->part, job->out - first), o = first,
                last = first + n, count;
        if (job->transposed) {
            last = first_reader(job->axis, first + n, false);
            o = first_reader(job->axis, first, true);
        }
        memset(sums, 0, (size_t)(lines * job->part) * sizeof *sums);
        for (; o < last; o += count) {
            count = ts_min64(LINE_TAPS, last - o);
            for (int64_t j = 0; j < count; j++)
                t[j] = taps_of(job->axis, o + j);
            for (int64_t line = 0; line < lines; line++)
                S(add_taps)(kind, job, t, o, count,
                            line / job->channels * job->in * job->channels + line % job->channels,
                            first, n, sums + line * job->part);
        }
        V factor = F(set1)((T)job->factor);
        for (int64_t line = 0; line < lines; line++) {
            int64_t step = job->channels,
                    to = (line / step * job->out + first) * step + line % step;
            for (int64_t i = 0, some; i < n; i += some) {
                some = step > 1 ? 1 : ts_min64(LANES, n - i);
                S(set)(kind, job->y, to + i * step,
                       F(load_n)(sums + line * job->part + i, some) * factor, some);
            }
        }
    }
}

/** Averages whole planes begin to end - 1, in AVERAGED_VECTORS chains of vectors. */
static void S(average_planes)(void *ctx, int64_t begin, int64_t end)
{
    const average_job *job = ctx;
    int64_t n = job->size, whole = n / (AVERAGED_VECTORS * LANES) * (AVERAGED_VECTORS * LANES);
    for (int64_t plane = begin; plane < end; plane++) {
        const T *x = (const T *)job->x + plane * n;
        V sum[AVERAGED_VECTORS];
        for (int v = 0; v < AVERAGED_VECTORS; v++)
            sum[v] = F(zero)();
        for (int64_t i = 0; i < whole; i += AVERAGED_VECTORS * LANES)
            for (int v = 0; v < AVERAGED_VECTORS; v++)
                sum[v] = sum[v] + F(load)(x + i + v * LANES);
        for (int64_t i = whole; i < n; i += LANES)
            sum[0] = sum[0] + F(load_n)(x + i, ts_min64(LANES, n - i));
        ((T *)job->y)[plane] = F(hsum)((sum[0] + sum[1]) + (sum[2] + sum[3])) / (T)n;
    }
}

#define BODY(of, kind)                                                                             \
    static void resample_rows_##of(void *ctx, int64_t begin, int64_t end)                          \
    {                                                                                              \
        S(resample_range)(kind, ctx, begin, end);                                                  \
    }                                                                                              \
    static void resample_lines_##of(void *ctx, int64_t begin, int64_t end)                         \
    {                                                                                              \
        S(resample_parts)(kind, ctx, begin, end);                                                  \
    }
FOR_KINDS(BODY)
#undef BODY
