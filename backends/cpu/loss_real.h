/* Losses and their gradients for one real type T (real_names.h); included by loss.c, which explains
 * class_job and pair_job. half: the dtype bf16 or f16 of the tensors, or 0 if it is that of T. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/fold_real.h"

/** Loads min(left, LANES) elements starting at index i, widened if `half` is not 0. The other lanes
 * are 0. */
VEC_FN V S(load_pair)(ts_dtype half, const void *p, int64_t i, int64_t left)
{
#if TS_REAL == 32
    if (half)
        return load_halves((const uint16_t *)p + i, half, left);
#else
    (void)half;
#endif
    return S(load_some)((const T *)p + i, left, F(zero)());
}
/** Stores the first min(left, LANES) lanes of v from index i on, rounded to `half` if it is not
 * 0. */
VEC_FN void S(store_pair)(ts_dtype half, void *p, int64_t i, V v, int64_t left)
{
#if TS_REAL == 32
    if (half) {
        store_halves((uint16_t *)p + i, half, v, left);
        return;
    }
#else
    (void)half;
#endif
    S(store_some)((T *)p + i, v, left);
}
/** Element i, widened if `half` is not 0. */
VEC_FN T S(element)(ts_dtype half, const void *p, int64_t i)
{
#if TS_REAL == 32
    if (half) {
        uint16_t h = ((const uint16_t *)p)[i];
        return half == TS_BF16 ? ts_bf16_to_f32(h) : ts_f16_to_f32(h);
    }
#else
    (void)half;
#endif
    return ((const T *)p)[i];
}

/* ------------------------------------------------------- classes: logits (outer, n, inner) -- */

/** Results for positions, one per lane: log(sum(exp)) = top + rest, and the loss. */
typedef struct S(position) {
    V top, rest, loss;
} S(position);

/** Computes cross_entropy of positions, one per lane. top: largest logit; sum: sum of exp(x - top)
 * over the classes; own: logit of the target; spread: sum of x - top over the classes, which is
 * only used with label smoothing. */
VEC_FN S(position) S(position_of)(const class_job *job, V top, V sum, V own, V spread)
{
    S(position) p = {.top = top, .rest = F(log)(sum)};
    p.loss = F(set1)((T)(1 - job->smoothing)) * ((top - own) + p.rest);
    if (job->smoothing != 0)
        p.loss += F(set1)((T)job->smoothing) * (p.rest - spread / F(set1)((T)job->n));
    return p;
}

/** Number of positions, starting at r, that are processed together, one per lane. Their logits of
 * one class are adjacent. */
VEC_FN int64_t S(together)(const class_job *job, int64_t r, int64_t end)
{
    int64_t row = job->inner - r % job->inner;
    return ts_min64(ts_min64(row, end - r), LANES);
}
/** Index of the logit of class 0 at position r. */
VEC_FN int64_t S(first_class)(const class_job *job, int64_t r)
{
    return r / job->inner * job->n * job->inner + r % job->inner;
}

/** Sum over the n classes, which are `step` elements apart, of exp(x - shift) (exps) or of x -
 * shift, for `many` adjacent positions. Blocks of classes are summed first, so that the rounding
 * error grows less with n. */
VEC_FN V S(class_sum)(const T *x, bool exps, V shift, int64_t n, int64_t step, int64_t many)
{
    enum { BLOCK_OF_CLASSES = 64 };
    V total = F(zero)();
    for (int64_t block = 0; block < n; block += BLOCK_OF_CLASSES) {
        V sum = F(zero)();
        int64_t last = ts_min64(block + BLOCK_OF_CLASSES, n);
        for (int64_t i = block; i < last; i++) {
            V d = S(load_some)(x + i * step, many, F(zero)()) - shift;
            sum += exps ? F(exp)(d) : d;
        }
        total += sum;
    }
    return total;
}

/** cross_entropy of positions begin to end - 1: writes the losses (0 if ignored) and, unless
 * job->lse is NULL, log(sum(exp)). */
static void S(cross_entropy_rows)(void *ctx, int64_t begin, int64_t end)
{
    const class_job *job = ctx;
    int64_t n = job->n, step = job->inner, many;
    for (int64_t r = begin; r < end; r += many) {
        const T *x = (const T *)job->x + S(first_class)(job, r);
        many = S(together)(job, r, end);
        T own[LANES] = {0}, kept[LANES];
        bool any = job->lse;
        for (int64_t k = 0; k < many; k++) {
            int64_t target = target_at(job, r + k);
            kept[k] = target != job->ignore;
            any |= kept[k] != 0;
            own[k] = kept[k] != 0 ? x[target * step + k] : 0;
        }
        V top = F(set1)(-(T)INFINITY), spread = F(zero)(), sum;
        if (!any) {
            memset((T *)job->losses + r, 0, (size_t)many * sizeof(T));
            continue;
        }
        if (step == 1) {
            T largest = S(row_max)(x, n);
            top = F(set1)(largest);
            if (job->smoothing != 0)
                spread = F(set1)(SUM_OF(i, left, n, S(load_some)(x + i, left, top) - top));
            sum = F(set1)(S(row_exp)(NULL, x, largest, n));
        } else {
            for (int64_t i = 0; i < n; i++) {
                V xi = S(load_some)(x + i * step, many, top);
                top = F(select)(F(gt)(xi, top), xi, top);
            }
            if (job->smoothing != 0)
                spread = S(class_sum)(x, false, top, n, step, many);
            sum = S(class_sum)(x, true, top, n, step, many);
        }
        S(position) p = S(position_of)(job, top, sum, F(load)(own), spread);
        for (int64_t k = 0; k < many; k++)
            ((T *)job->losses)[r + k] = kept[k] != 0 ? p.loss[k] : 0;
        if (job->lse)
            S(store_some)((T *)job->lse + r, p.top + p.rest, many);
    }
}

/** Scale of the gradient of position r: the upstream gradient, times job->factor (1 / count for a
 * mean) if the loss is reduced. */
VEC_FN T S(class_scale)(const class_job *job, int64_t r)
{
    T g = S(element)(job->half, job->g, job->each ? r : 0);
    return job->each ? g : (T)(g * job->factor);
}

/** Gradient of cross_entropy for positions begin to end - 1:
 * dx = (exp(x - lse) - smoothing / n - (1 - smoothing) [class is the target]) * scale, or 0 at
 * ignored positions. lse: log(sum(exp)). */
static void S(cross_entropy_backward_rows)(void *ctx, int64_t begin, int64_t end)
{
    const class_job *job = ctx;
    int64_t n = job->n, step = job->inner, many;
    V low = F(set1)((T)(job->smoothing / (double)n));
    for (int64_t r = begin; r < end; r += many) {
        int64_t at = S(first_class)(job, r);
        const T *x = (const T *)job->x + at;
        T *dx = (T *)job->out + at, scale[LANES] = {0}, known[LANES] = {0}, kept[LANES] = {0};
        bool exact = true, any = false;
        many = S(together)(job, r, end);
        for (int64_t k = 0; k < many; k++) {
            known[k] = ((const T *)job->lse)[r + k];
            scale[k] = S(class_scale)(job, r + k);
            kept[k] = target_at(job, r + k) != job->ignore;
            any |= kept[k] != 0;
            exact = exact && known[k] >= -TS_LSE_EXACT && known[k] <= TS_LSE_EXACT;
        }
        V s = F(load)(scale), lse = F(load)(known), share = F(set1)(1), zero = F(zero)();
        VM counts = F(ne)(F(load)(kept), zero);
        for (int64_t i = 0; !any && i < n; i++)
            memset(dx + i * step, 0, (size_t)many * sizeof(T));
        if (!any)
            continue;
        /* a large lse is rounded so coarsely that probabilities do not sum to 1: normalize again */
        if (step == 1) {
            s = F(set1)(scale[0]);
            lse = F(set1)(known[0]);
            if (!exact)
                share = F(set1)(1 / S(row_exp)(NULL, x, known[0], n));
            for (int64_t i = 0; i < n; i += LANES) {
                V p = F(exp)(S(load_some)(x + i, n - i, zero) - lse);
                S(store_some)(dx + i, F(fma)(p, share, F(neg)(low)) * s, n - i);
            }
        } else {
            if (!exact) {
                VM coarse = M(not)(F(le)(F(abs)(lse), F(set1)(TS_LSE_EXACT)));
                V again = F(set1)(1) / S(class_sum)(x, true, lse, n, step, many);
                share = F(select)(coarse, again, share);
            }
            for (int64_t i = 0; i < n; i++) {
                V p = F(exp)(S(load_some)(x + i * step, many, zero) - lse);
                V d = F(fma)(p, share, F(neg)(low)) * s;
                S(store_some)(dx + i * step, F(select)(counts, d, zero), many);
            }
        }
        for (int64_t k = 0; k < many; k++)
            if (kept[k] != 0)
                dx[target_at(job, r + k) * step + k] -= (T)(1 - job->smoothing) * scale[k];
    }
}

static const T S(one) = 1;

/** cross_entropy_grad: computes the losses of some positions and, unless job->out is NULL, their
 * gradients while the logits are in cache. The gradients may overwrite the logits. */
static void S(cross_entropy_grad_rows)(void *ctx, int64_t begin, int64_t end)
{
    const class_job *job = ctx;
    for (int64_t r = begin, many; r < end; r += many) {
        many = S(together)(job, r, end);
        S(cross_entropy_rows)(ctx, r, r + many);
        if (job->out)
            S(cross_entropy_backward_rows)(ctx, r, r + many);
    }
}

/** nll_loss: losses[r] = -x[target], or 0 if position r is ignored. */
static void S(nll_rows)(void *ctx, int64_t begin, int64_t end)
{
    const class_job *job = ctx;
    int64_t n = job->n, step = job->inner;
    for (int64_t r = begin; r < end; r++) {
        int64_t target = target_at(job, r), at = r / step * n * step + r % step;
        T loss = target == job->ignore ? 0 : -S(element)(job->half, job->x, at + target * step);
        if (job->each)
            S(store_pair)(job->half, job->losses, r, F(set1)(loss), 1);
        else
            ((T *)job->losses)[r] = loss;
    }
}

/** Stores -scale at the targets of `many` positions from r on. The logit of class 0 of position
 *  r + k is at index at + k * row. `shared`: -scale of all positions; `own`: -scale of position
 *  r + k, if job->each. An ignored position stores 0 at class 0: with random targets, a branch
 *  would be mispredicted. */
#define STORE_SCALES(Type, shared, own)                                                            \
    for (int64_t k = 0; k < many; k++) {                                                           \
        int64_t target = target_at(job, r + k);                                                    \
        bool kept = target != job->ignore;                                                         \
        Type value = job->each ? own : shared;                                                     \
        ((Type *)job->out)[at + k * row + (kept ? target : 0) * job->inner] = kept ? value : 0;    \
    }
static void S(store_scales)(const class_job *job, int64_t r, int64_t many, int64_t at, int64_t row)
{
    T shared;
    S(store_pair)(job->half, &shared, 0, F(set1)(-S(class_scale)(job, r)), 1);
    if (job->half) {
        const uint16_t *g = job->g;
        uint16_t half;
        memcpy(&half, &shared, sizeof half);
        STORE_SCALES(uint16_t, half, (uint16_t)(g[r + k] ^ 0x8000)) /* the sign */
    } else {
        const T *g = job->g;
        STORE_SCALES(T, shared, -g[r + k])
    }
}
#undef STORE_SCALES

/** Gradient of nll_loss: -scale at the target of each position that is not ignored, 0 elsewhere. */
static void S(nll_backward_rows)(void *ctx, int64_t begin, int64_t end)
{
    const class_job *job = ctx;
    int64_t n = job->n, step = job->inner, item = job->half ? 2 : sizeof(T);
    for (int64_t r = begin, run; r < end; r += run) { /* run: positions that are cleared together */
        int64_t at = r / step * n * step + r % step, lines = n;
        run = step == 1 ? end - r : ts_min64(step - r % step, end - r);
        if (run % step == 0)
            lines = 1; /* whole rows */
        for (int64_t i = 0; i < lines; i++)
            memset((char *)job->out + (at + i * step) * item, 0, (size_t)(run * n / lines * item));
        S(store_scales)(job, r, run, at, step == 1 ? n : 1);
    }
}

/* ------------------------------------------------------------------ pairs of elements ------ */

/** The loss of x against the target t. beta: the threshold of smooth_l1 and huber. */
VEC_FN V S(pair)(pair_kind kind, V x, V t, V beta)
{
    V d = x - t, size = F(abs)(d), zero = F(zero)();
    switch (kind) {
    case PAIR_MSE: return d * d;
    case PAIR_L1: return size;
    case PAIR_SMOOTH_L1:
        return F(select)(F(lt)(size, beta), d * d * 0.5f / beta, size - beta * 0.5f);
    case PAIR_HUBER: return F(select)(F(le)(size, beta), d * d * 0.5f, beta * (size - beta * 0.5f));
    /* max(x, 0) - x t + log(1 + exp(-|x|)), without a difference of large products */
    case PAIR_BCE: {
        V share = F(select)(F(gt)(x, zero), F(set1)(1) - t, t), far = F(abs)(x);
        return F(fma)(far, share, F(log1p)(F(exp)(F(neg)(far))));
    }
    case PAIR_KL: {
        V y = t * (F(log)(t) - x);
        return F(select)(F(eq)(t, zero), zero, y);
    }
    default: return F(exp)(t) * d * -1; /* PAIR_KL_LOG */
    }
}

/** Derivative of S(pair) with respect to x, or to t if by_target. */
VEC_FN V S(pair_slope)(pair_kind kind, bool by_target, V x, V t, V beta)
{
    V d = x - t, one = F(set1)(1), zero = F(zero)(), slope;
    V sign = F(select)(F(gt)(d, zero), one, F(select)(F(lt)(d, zero), -one, d)); /* NaN stays */
    switch (kind) {
    case PAIR_MSE: slope = d * 2; break;
    case PAIR_L1: slope = sign; break;
    case PAIR_SMOOTH_L1: slope = F(select)(F(lt)(F(abs)(d), beta), d / beta, sign); break;
    case PAIR_HUBER: slope = F(select)(F(le)(F(abs)(d), beta), d, sign * beta); break;
    case PAIR_BCE:
        if (by_target)
            return -x;
        return F(sigmoid)(x) - t;
    case PAIR_KL:
        if (by_target)
            return F(log)(t) + one - x;
        return -t;
    default:
        if (by_target)
            return F(exp)(t) * (one - d);
        return -F(exp)(t);
    }
    if (by_target)
        slope = -slope;
    return slope;
}

/** A task is a block of PAIR_BLOCK elements. It stores each loss (job->each) or the block's sum. */
VEC_FN void S(pair_blocks)(pair_kind kind, const pair_job *job, int64_t begin, int64_t end)
{
    V beta = F(set1)((T)job->beta);
    char *room = job->slots ? ts_slot(job->slots) : NULL;
    for (int64_t block = begin; block < end; block++) {
        int64_t from = block * PAIR_BLOCK, n = ts_min64(PAIR_BLOCK, job->n - from);
        pair_block p = pair_block_at(job, from, n, room);
        if (job->each) {
            for (int64_t i = 0; i < n; i += LANES) {
                V loss = S(pair)(kind, S(load_pair)(job->half, p.x, i, n - i),
                                 S(load_pair)(job->half, p.t, i, n - i), beta);
                S(store_pair)(job->half, job->out, from + i, loss, n - i);
            }
            continue;
        }
        ((T *)job->parts)[block] =
            SUM_OF(i, left, n, S(pair)(kind, S(load_pair)(job->half, p.x, i, left),
                                       S(load_pair)(job->half, p.t, i, left), beta));
    }
}

/** A task is a block of elements. Stores the gradients of x and t whose pointers are not NULL. */
VEC_FN void S(pair_backward_blocks)(pair_kind kind, const pair_job *job, int64_t begin, int64_t end)
{
    V beta = F(set1)((T)job->beta), scale = F(zero)();
    char *room = job->slots ? ts_slot(job->slots) : NULL;
    if (!job->each)
        scale = F(set1)((T)(S(load_pair)(job->half, job->g->data, 0, 1)[0] * job->factor));
    for (int64_t block = begin; block < end; block++) {
        int64_t from = block * PAIR_BLOCK, n = ts_min64(PAIR_BLOCK, job->n - from);
        pair_block p = pair_block_at(job, from, n, room);
        for (int64_t i = 0; i < n; i += LANES) {
            V xi = S(load_pair)(job->half, p.x, i, n - i),
              ti = S(load_pair)(job->half, p.t, i, n - i);
            if (job->each)
                scale = S(load_pair)(job->half, p.g, i, n - i);
            if (job->out)
                S(store_pair)(job->half, job->out, from + i,
                              S(pair_slope)(kind, false, xi, ti, beta) * scale, n - i);
            if (job->dt)
                S(store_pair)(job->half, job->dt, from + i,
                              S(pair_slope)(kind, true, xi, ti, beta) * scale, n - i);
        }
    }
}

#define PAIR(name)                                                                              \
    static void S(pair_##name)(void *ctx, int64_t begin, int64_t end)                           \
    {                                                                                           \
        S(pair_blocks)(PAIR_##name, ctx, begin, end);                                           \
    }                                                                                           \
    static void S(pair_backward_##name)(void *ctx, int64_t begin, int64_t end)                  \
    {                                                                                           \
        S(pair_backward_blocks)(PAIR_##name, ctx, begin, end);                                  \
    }
PAIRS
#undef PAIR

static const ts_parallel_body S(pair_bodies)[PAIR_COUNT][2] = {
#define PAIR(name) [PAIR_##name] = {S(pair_##name), S(pair_backward_##name)},
    PAIRS
#undef PAIR
};

/** Stores at *out the sum of n parts times factor, summed in f64 in a fixed order. */
static void S(total)(const void *parts, int64_t n, double factor, void *out)
{
    double sums[4] = {0};
    for (int64_t i = 0; i < n; i++)
        sums[i & 3] += (double)((const T *)parts)[i];
    *(T *)out = (T)(((sums[0] + sums[1]) + (sums[2] + sums[3])) * factor);
}
