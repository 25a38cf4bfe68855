/* Losses and their gradients for one real type; included by loss.c. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/fold_real.h"

/* ------------------------------------------------------- classes: logits (outer, n, inner) -- */

/** Results for a position: log(sum(exp)) = top + rest, and the loss. */
typedef struct S(position) {
    T top, rest, loss;
} S(position);

/** Loss of one position. top: largest logit; sum: sum of exp(x - top) over the classes; own: logit
 * of the target; spread: sum of x - top over the classes, used with label smoothing. */
VEC_FN S(position) S(close_position)(const class_job *job, T top, T sum, T own, T spread)
{
    S(position) p = {.top = top, .rest = S(log_of)(sum)};
    p.loss = (T)(1 - job->smoothing) * ((top - own) + p.rest);
    if (job->smoothing != 0)
        p.loss += (T)job->smoothing * (p.rest - spread / (T)job->n);
    return p;
}

/** Sum of exp(x - shift) over the classes of a position. */
FOLD_FN T S(class_exps)(const T *x, T shift, int64_t n, int64_t step)
{
    if (step == 1)
        return S(row_exp)(NULL, x, shift, n);
    return SUM_OF(i, left, n, ({
                      T lanes[LANES] = {0};
                      for (int64_t k = 0; k < left; k++)
                          lanes[k] = x[(i + k) * step] - shift;
                      F(exp)(F(load)(lanes));
                  }));
}

/** cross_entropy of positions begin to end - 1: writes the losses (0 if ignored) and, unless
 * job->lse is NULL, log(sum(exp)). */
static void S(cross_entropy_rows)(void *ctx, int64_t begin, int64_t end)
{
    const class_job *job = ctx;
    int64_t n = job->n, step = job->inner;
    for (int64_t r = begin; r < end; r++) {
        int64_t target = target_at(job, r);
        bool ignored = target == job->ignore;
        if (ignored && !job->lse) {
            ((T *)job->losses)[r] = 0;
            continue;
        }
        const T *x = (const T *)job->x + r / step * n * step + r % step;
        T top = -(T)INFINITY, spread = 0;
        if (step == 1) {
            top = S(row_max)(x, n);
            if (job->smoothing != 0) {
                V shift = F(set1)(top);
                spread = SUM_OF(i, left, n, S(load_some)(x + i, left, shift) - shift);
            }
        } else {
            for (int64_t i = 0; i < n; i++)
                top = x[i * step] > top ? x[i * step] : top;
            for (int64_t i = 0; job->smoothing != 0 && i < n; i++)
                spread += x[i * step] - top;
        }
        T sum = S(class_exps)(x, top, n, step);
        S(position) p = S(close_position)(job, top, sum, ignored ? 0 : x[target * step], spread);
        ((T *)job->losses)[r] = ignored ? 0 : p.loss;
        if (job->lse)
            ((T *)job->lse)[r] = p.top + p.rest;
    }
}

/** Scale of a position's gradient: the upstream gradient, times 1 / count for a mean. */
VEC_FN T S(class_scale)(const class_job *job, int64_t r)
{
    const T *g = job->g;
    return job->each ? g[r] : (T)(g[0] * job->factor);
}

/** dx = (exp(x - lse) - smoothing / n - (1 - smoothing) [class is the target]) * scale */
static void S(cross_entropy_backward_rows)(void *ctx, int64_t begin, int64_t end)
{
    const class_job *job = ctx;
    int64_t n = job->n, step = job->inner;
    V low = F(set1)((T)(job->smoothing / (double)n));
    for (int64_t r = begin; r < end; r++) {
        int64_t target = target_at(job, r), at = r / step * n * step + r % step;
        const T *x = (const T *)job->x + at;
        T *dx = (T *)job->out + at, scale = S(class_scale)(job, r);
        T known = ((const T *)job->lse)[r];
        V s = F(set1)(scale), lse = F(set1)(known), share = F(set1)(1);
        if (target == job->ignore) {
            for (int64_t i = 0; i < n; i++)
                dx[i * step] = 0;
            continue;
        }
        /* a large lse is too coarse for the probabilities to sum to 1: normalize them again */
        if (!(known >= -TS_LSE_EXACT && known <= TS_LSE_EXACT))
            share = F(set1)(1 / S(class_exps)(x, known, n, step));
        if (step == 1) {
            for (int64_t i = 0; i < n; i += LANES) {
                V p = F(exp)(S(load_some)(x + i, n - i, F(zero)()) - lse);
                S(store_some)(dx + i, F(fma)(p, share, F(neg)(low)) * s, n - i);
            }
        } else {
            for (int64_t i = 0; i < n; i += LANES) {
                T lanes[LANES] = {0};
                int64_t some = ts_min64(LANES, n - i);
                for (int64_t k = 0; k < some; k++)
                    lanes[k] = x[(i + k) * step];
                F(store)(lanes, F(fma)(F(exp)(F(load)(lanes) - lse), share, F(neg)(low)) * s);
                for (int64_t k = 0; k < some; k++)
                    dx[(i + k) * step] = lanes[k];
            }
        }
        dx[target * step] -= (T)(1 - job->smoothing) * scale;
    }
}

static const T S(one) = 1;

/** cross_entropy_grad: computes a position's gradient while its logits are cached; the gradient may
 * overwrite them. */
static void S(cross_entropy_grad_rows)(void *ctx, int64_t begin, int64_t end)
{
    const class_job *job = ctx;
    for (int64_t r = begin; r < end; r++) {
        S(cross_entropy_rows)(ctx, r, r + 1);
        if (job->out)
            S(cross_entropy_backward_rows)(ctx, r, r + 1);
    }
}

/** nll_loss: losses[r] = -x[target], or 0 if position r is ignored. */
static void S(nll_rows)(void *ctx, int64_t begin, int64_t end)
{
    const class_job *job = ctx;
    int64_t n = job->n, step = job->inner;
    for (int64_t r = begin; r < end; r++) {
        int64_t target = target_at(job, r);
        const T *x = (const T *)job->x + r / step * n * step + r % step;
        ((T *)job->losses)[r] = target == job->ignore ? 0 : -x[target * step];
    }
}

static void S(nll_backward_rows)(void *ctx, int64_t begin, int64_t end)
{
    const class_job *job = ctx;
    int64_t n = job->n, step = job->inner;
    for (int64_t r = begin; r < end; r++) {
        int64_t target = target_at(job, r);
        T *dx = (T *)job->out + r / step * n * step + r % step;
        for (int64_t i = 0; i < n; i++)
            dx[i * step] = 0;
        if (target != job->ignore)
            dx[target * step] = -S(class_scale)(job, r);
    }
}

/* ------------------------------------------------------------------ pairs of elements ------ */

/** The loss of x against t. */
VEC_FN V S(pair)(pair_kind kind, V x, V t, V beta)
{
    V d = x - t, size = F(abs)(d), zero = F(zero)();
    switch (kind) {
    case PAIR_MSE: return d * d;
    case PAIR_L1: return size;
    case PAIR_SMOOTH_L1:
        return F(select)(F(lt)(size, beta), d * d * 0.5f / beta, size - beta * 0.5f);
    case PAIR_HUBER: return F(select)(F(le)(size, beta), d * d * 0.5f, beta * (size - beta * 0.5f));
    /* max(x, 0) - x t without a difference of large products */
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

/** The first min(left, LANES) elements from index i on, widened from halves; the others are 0. */
VEC_FN V S(load_pair)(const pair_job *job, const void *p, int64_t i, int64_t left)
{
#if TS_REAL == 32
    if (job->half)
        return load_halves((const uint16_t *)p + i, job->half, left);
#else
    (void)job;
#endif
    return S(load_some)((const T *)p + i, left, F(zero)());
}
VEC_FN void S(store_pair)(const pair_job *job, void *p, int64_t i, V v, int64_t left)
{
#if TS_REAL == 32
    if (job->half) {
        store_halves((uint16_t *)p + i, job->half, v, left);
        return;
    }
#else
    (void)job;
#endif
    S(store_some)((T *)p + i, v, left);
}

/** A task is a block of elements. It stores each loss (job->each) or the sum of the block. */
VEC_FN void S(pair_blocks)(pair_kind kind, const pair_job *job, int64_t begin, int64_t end)
{
    V beta = F(set1)((T)job->beta);
    for (int64_t block = begin; block < end; block++) {
        int64_t from = block * PAIR_BLOCK, n = ts_min64(PAIR_BLOCK, job->n - from);
        if (job->each) {
            for (int64_t i = from; i < from + n; i += LANES) {
                int64_t left = from + n - i;
                V loss = S(pair)(kind, S(load_pair)(job, job->x, i, left),
                                 S(load_pair)(job, job->t, i, left), beta);
                S(store_pair)(job, job->out, i, loss, left);
            }
            continue;
        }
        ((T *)job->parts)[block] =
            SUM_OF(i, left, n, S(pair)(kind, S(load_pair)(job, job->x, from + i, left),
                                       S(load_pair)(job, job->t, from + i, left), beta));
    }
}

/** A task is a block of elements. Stores the gradients of x and t whose pointers are not NULL. */
VEC_FN void S(pair_backward_blocks)(pair_kind kind, const pair_job *job, int64_t begin, int64_t end)
{
    V beta = F(set1)((T)job->beta), scale = F(zero)();
    if (!job->each)
        scale = F(set1)((T)(S(load_pair)(job, job->g, 0, 1)[0] * job->factor));
    int64_t last = ts_min64(end * PAIR_BLOCK, job->n);
    for (int64_t i = begin * PAIR_BLOCK; i < last; i += LANES) {
        V xi = S(load_pair)(job, job->x, i, last - i), ti = S(load_pair)(job, job->t, i, last - i);
        if (job->each)
            scale = S(load_pair)(job, job->g, i, last - i);
        if (job->out)
            S(store_pair)(job, job->out, i, S(pair_slope)(kind, false, xi, ti, beta) * scale,
                          last - i);
        if (job->dt)
            S(store_pair)(job, job->dt, i, S(pair_slope)(kind, true, xi, ti, beta) * scale,
                          last - i);
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

/** Stores at *out the sum of n parts times factor, summed in double in a fixed order. */
static void S(total)(const void *parts, int64_t n, double factor, void *out)
{
    double sums[4] = {0};
    for (int64_t i = 0; i < n; i++)
        sums[i & 3] += (double)((const T *)parts)[i];
    *(T *)out = (T)(((sums[0] + sums[1]) + (sums[2] + sums[3])) * factor);
}
