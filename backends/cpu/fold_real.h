/*
 * Folds (reductions) of many elements to one value, for one real type T (real_names.h): sums,
 * products, extremes. A fold first maps each element to a term (map()), then folds the terms
 * (fold()). The order of operations depends only on the number of elements:
 *
 *   line     64 bytes of elements, the unit of a fold in every variant
 *   leaf     8 lines folded pairwise. A shorter rest of a row is the last leaf: the fold of 4
 *            lines, 2 lines, 1 line and a partial line, as far as the rest has them
 *   cascade  the leaves folded pairwise: two of one level make one of the next
 *   value    the line to which all leaves are folded, its upper half folded onto its lower half
 *            until one element is left
 *
 * So every variant folds equal terms to the same bits, and the error of a sum grows with the
 * logarithm of its length (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2).
 */
// SPDX-License-Identifier: MIT
#include "backends/cpu/kinds_real.h"

#ifndef TS_BACKENDS_CPU_FOLD_REAL_H
#define TS_BACKENDS_CPU_FOLD_REAL_H

#define FOLDS                                                                                      \
    FOLD(SUM) FOLD(PROD) FOLD(MAX) FOLD(MIN)                                                       \
    FOLD(SQUARES) FOLD(ABS) FOLD(DISTANCES) FOLD(DEVIATIONS) FOLD(EXP) FOLD(ABSMAX)
typedef enum fold {
#define FOLD(name) FOLD_##name,
    FOLDS
#undef FOLD
    FOLD_COUNT,
    FOLD_TOP = FOLD_COUNT, /* a maximum that may ignore NaN, for softmax and cross_entropy, whose
                              sum of exponentials is NaN anyway */
    FOLD_DOT               /* the sum of the products with a second row */
} fold;

enum {
    LINE_BYTES = 64,
    LINE_VECTORS = LINE_BYTES / VEC_BYTES,
    LEAF_LINES = 8,
    CASCADE_LEVELS = 40, /* a fold of 2^40 leaves is larger than any memory */
    TERMS = 1024,        /* terms that are buffered at a time */
    LONG_FOLD = 32,      /* least leaves of a run that is folded four leaves at a time */
    /* distance of prefetches in such a run, in leaves; 0: none, only the processor's prefetcher */
    FOLD_AHEAD = VEC_ISA == VEC_IS_avx512 ? 16 : 0
};

/** term(0) to term(n - 1) folded pairwise; n is 1, 2, 4 or 8. */
#define FOLD_TREE(how, n, term)                                                                    \
    ({                                                                                             \
        V tree_ = term(0);                                                                         \
        if ((n) > 1)                                                                               \
            tree_ = S(fold)(how, tree_, term(1));                                                  \
        if ((n) > 2)                                                                               \
            tree_ = S(fold)(how, tree_, S(fold)(how, term(2), term(3)));                           \
        if ((n) > 4)                                                                               \
            tree_ = S(fold)(how, tree_, S(fold)(how, S(fold)(how, term(4), term(5)),               \
                                                S(fold)(how, term(6), term(7))));                  \
        tree_;                                                                                     \
    })

/* Functions that process a whole row are not inlined: a call costs less than one more copy of their
 * code. */
#define FOLD_FN static __attribute__((noinline, unused))

/**
 * Sum of n terms. `term` is an expression for the vector of terms i to i + left - 1, where left <=
 * LANES. The caller chooses the names i and left. Lanes of the vector from `left` on are ignored.
 */
#define SUM_OF(i, left, n, term)                                                                   \
    ({                                                                                             \
        S(cascade) sums_;                                                                          \
        T terms_[TERMS];                                                                           \
        sums_.leaves = 0;                                                                          \
        for (int64_t from_ = 0; from_ < (n); from_ += TERMS) {                                     \
            int64_t i = from_, some_ = ts_min64((n) - from_, TERMS), left = LANES;                 \
            for (; i + LANES <= from_ + some_; i += LANES)                                         \
                F(store)(terms_ + (i - from_), term);                                              \
            left = from_ + some_ - i;                                                              \
            if (left)                                                                              \
                F(store)(terms_ + (i - from_), term);                                              \
            S(sum_run)(&sums_, terms_, some_);                                                     \
        }                                                                                          \
        S(sum_value)(&sums_);                                                                      \
    })

#endif

enum { S(LINE) = LINE_BYTES / sizeof(T), S(LEAF) = LEAF_LINES * S(LINE) };

typedef struct S(line) {
    V v[LINE_VECTORS];
} S(line);

/** Partial folds: if bit k of `leaves` is set, level k holds the fold of 2^k leaves. */
typedef struct S(cascade) {
    uint64_t leaves;
    S(line) level[CASCADE_LEVELS];
} S(cascade);

/* ------------------------------------------------------------------ terms of a fold ------- */

/** The value of an empty fold. */
VEC_FN V S(identity)(fold how)
{
    return F(set1)(how == FOLD_PROD                      ? 1
                   : how == FOLD_MAX || how == FOLD_TOP ? -(T)INFINITY
                   : how == FOLD_MIN                     ? (T)INFINITY
                                                         : 0);
}
VEC_FN S(line) S(identity_line)(fold how)
{
    S(line) line;
    for (int i = 0; i < LINE_VECTORS; i++)
        line.v[i] = S(identity)(how);
    return line;
}
/** Term of an element x. p is a parameter of the fold, the same for all elements of a result: a
 * mean (FOLD_DISTANCES, FOLD_DEVIATIONS) or the number that is subtracted from exponents
 * (FOLD_EXP). For FOLD_DOT, p is the other factor. */
VEC_FN V S(map)(fold how, V x, V p)
{
    switch (how) {
    case FOLD_SQUARES: return x * x;
    case FOLD_ABS:
    case FOLD_ABSMAX: return F(abs)(x);
    case FOLD_DISTANCES: return x - p;
    case FOLD_DEVIATIONS: return (x - p) * (x - p);
    case FOLD_EXP: return F(exp)(x - p);
    case FOLD_DOT: return x * p;
    default: return x;
    }
}
/** Folds two terms, or two partial folds. */
VEC_FN V S(fold)(fold how, V a, V b)
{
    switch (how) {
    case FOLD_PROD: return a * b;
    case FOLD_MAX:
    case FOLD_ABSMAX: return F(max)(a, b);
    case FOLD_MIN: return F(min)(a, b);
    case FOLD_TOP: return F(max_fast)(a, b);
    default: return a + b;
    }
}

VEC_FN S(line) S(fold_line)(fold how, S(line) a, S(line) b)
{
    for (int i = 0; i < LINE_VECTORS; i++)
        a.v[i] = S(fold)(how, a.v[i], b.v[i]);
    return a;
}

/** Folds the elements of a line to one value: the upper half onto the lower, until one is left. */
VEC_FN T S(fold_lanes)(fold how, S(line) line)
{
    for (int w = LINE_VECTORS / 2; w; w /= 2)
        for (int i = 0; i < w; i++)
            line.v[i] = S(fold)(how, line.v[i], line.v[i + w]);
    V v = line.v[0];
    switch (how) {
    case FOLD_MAX:
    case FOLD_ABSMAX: return F(hmax)(v);
    case FOLD_MIN: return F(hmin)(v);
    case FOLD_TOP: return F(hmax_fast)(v);
    case FOLD_PROD: break;
    default: return F(hsum)(v);
    }
    T lanes[LANES];
    F(store)(lanes, v);
    for (int w = LANES / 2; w; w /= 2)
        for (int i = 0; i < w; i++)
            lanes[i] *= lanes[i + w];
    return lanes[0];
}

/* ------------------------------------------------------------------- runs of elements ----- */

/** Adds `line`, the fold of 2^level leaves, to the cascade, whose levels below `level` are
 * empty. */
VEC_FN void S(cascade_add)(fold how, S(cascade) *c, S(line) line, int level)
{
    int k = level;
    for (; c->leaves >> k & 1; k++)
        line = S(fold_line)(how, c->level[k], line);
    c->level[k] = line;
    c->leaves += (uint64_t)1 << level;
}

/** Folds all levels, the lowest first, into one value; the identity if there are no leaves. */
VEC_FN T S(cascade_value)(fold how, const S(cascade) *c)
{
    if (!c->leaves)
        return S(identity)(how)[0];
    int k = __builtin_ctzll(c->leaves);
    S(line) line = c->level[k];
    while (c->leaves >> ++k)
        if (c->leaves >> k & 1)
            line = S(fold_line)(how, c->level[k], line);
    return S(fold_lanes)(how, line);
}

/** Folds `lines` (1, 2, 4 or 8) lines at x; for FOLD_DOT y has the other factors. */
VEC_FN S(line) S(leaf)(fold how, const T *x, const T *y, int lines, V p)
{
    S(line) leaf;
    for (int i = 0; i < LINE_VECTORS; i++, x += LANES, y += LANES) {
#define TERM(k)                                                                                    \
    S(map)(how, F(load)(x + (k) * S(LINE)), how == FOLD_DOT ? F(load)(y + (k) * S(LINE)) : p)
        leaf.v[i] = FOLD_TREE(how, lines, TERM);
#undef TERM
    }
    return leaf;
}

/** Folds fewer elements than a leaf has, possibly none: 4 lines, 2, 1 and a partial line. */
VEC_FN S(line) S(last_leaf)(fold how, const T *x, const T *y, int64_t n, V p)
{
    int64_t at = 0;
    S(line) all = S(identity_line)(how);
    if (n >= 4 * S(LINE)) {
        all = S(leaf)(how, x, y, 4, p);
        at = 4 * S(LINE);
    }
    if (n - at >= 2 * S(LINE)) {
        all = S(fold_line)(how, all, S(leaf)(how, x + at, y + at, 2, p));
        at += 2 * S(LINE);
    }
    if (n - at >= S(LINE)) {
        all = S(fold_line)(how, all, S(leaf)(how, x + at, y + at, 1, p));
        at += S(LINE);
    }
    if (at == n)
        return all;
    S(line) rest;
    /* unrolled: an index that is not a constant would put the line into memory */
    TS_UNROLL(4) for (int i = 0; i < LINE_VECTORS; i++, at += LANES) {
        int64_t left = ts_max64(ts_min64(n - at, LANES), 0);
        V v = S(map)(how, F(load_n_or)(x + at, left, S(identity)(how)),
                     how == FOLD_DOT ? F(load_n)(y + at, left) : p);
        rest.v[i] = how == FOLD_DISTANCES || how == FOLD_DEVIATIONS
                        ? F(select)(M(first_n)(left), v, S(identity)(how))
                        : v;
    }
    return n < S(LINE) ? rest : S(fold_line)(how, all, rest);
}

/** Adds the whole leaves of n contiguous elements to the cascade; returns the number of elements
 * folded. y: the other factors for FOLD_DOT, else x. p: as in map(). */
VEC_FN int64_t S(fold_leaves)(fold how, S(cascade) *c, const T *x, const T *y, int64_t n, V p)
{
    int64_t at = 0;
    if (n >= LONG_FOLD * S(LEAF)) /* fewer steps of the cascade; the order stays the same */
        for (; !(c->leaves & 3) && n - at >= 4 * S(LEAF); at += 4 * S(LEAF)) {
            S(line) four[4];
            TS_UNROLL(4) for (int k = 0; k < 4; k++) {
                for (int i = 0; FOLD_AHEAD > 0 && i < LEAF_LINES; i++)
                    __builtin_prefetch(x + at + (FOLD_AHEAD + k) * S(LEAF) + i * S(LINE));
                four[k] = S(leaf)(how, x + at + k * S(LEAF), y + at + k * S(LEAF), LEAF_LINES, p);
            }
            S(cascade_add)(how, c,
                           S(fold_line)(how, S(fold_line)(how, four[0], four[1]),
                                        S(fold_line)(how, four[2], four[3])),
                           2);
        }
    for (; n - at >= 2 * S(LEAF); at += 2 * S(LEAF)) {
        for (int i = 0; i < 2 * LEAF_LINES; i++) /* past n, the next run usually follows */
            __builtin_prefetch(x + at + 4 * S(LEAF) + i * S(LINE));
        S(line) first = S(leaf)(how, x + at, y + at, LEAF_LINES, p);
        S(line) second = S(leaf)(how, x + at + S(LEAF), y + at + S(LEAF), LEAF_LINES, p);
        S(cascade_add)(how, c, S(fold_line)(how, first, second), 1);
    }
    if (n - at >= S(LEAF)) {
        S(cascade_add)(how, c, S(leaf)(how, x + at, y + at, LEAF_LINES, p), 0);
        at += S(LEAF);
    }
    return at;
}

/** Adds n contiguous elements to the cascade: whole leaves, and the rest as one more leaf. */
VEC_FN void S(fold_run)(fold how, S(cascade) *c, const T *x, const T *y, int64_t n, V p)
{
    int64_t at = S(fold_leaves)(how, c, x, y, n, p);
    if (at < n)
        S(cascade_add)(how, c, S(last_leaf)(how, x + at, y + at, n - at, p), 0);
}

/* ------------------------------------------------------------------- rows ----------------- */

/** Adds the sum of n contiguous elements to a cascade; sum_value() returns the total. */
FOLD_FN void S(sum_run)(S(cascade) *c, const T *x, int64_t n)
{
    S(fold_run)(FOLD_SUM, c, x, x, n, F(zero)());
}
FOLD_FN T S(sum_value)(const S(cascade) *c) { return S(cascade_value)(FOLD_SUM, c); }

/** Returns the fold of a row of n contiguous elements; the identity if n is 0. y, p: as in
 * fold_leaves(). */
VEC_FN T S(row_fold)(fold how, const T *x, const T *y, int64_t n, T p)
{
    S(cascade) c;
    V param = F(set1)(p);
    c.leaves = 0;
    int64_t at = S(fold_leaves)(how, &c, x, y, n, param);
    if (at < n || !n) {
        S(line) last = S(last_leaf)(how, x + at, y + at, n - at, param);
        if (!at) /* short rows stay in registers */
            return S(fold_lanes)(how, last);
        S(cascade_add)(how, &c, last, 0);
    }
    return S(cascade_value)(how, &c);
}
FOLD_FN T S(row_sum)(const T *x, int64_t n) { return S(row_fold)(FOLD_SUM, x, x, n, 0); }
FOLD_FN T S(row_squares)(const T *x, int64_t n) { return S(row_fold)(FOLD_SQUARES, x, x, n, 0); }
/** Sum of (x - mean)^2. */
FOLD_FN T S(row_deviations)(const T *x, int64_t n, T mean)
{
    return S(row_fold)(FOLD_DEVIATIONS, x, x, n, mean);
}
/** Largest element of a row; -Inf for an empty row. NaN elements may be ignored. */
FOLD_FN T S(row_max)(const T *x, int64_t n) { return S(row_fold)(FOLD_TOP, x, x, n, 0); }

FOLD_FN T S(row_dot)(const T *x, const T *y, int64_t n)
{
    return S(row_fold)(FOLD_DOT, x, y, n, 0);
}

/** Returns exp(x - shift) of n < LINE elements as a line padded with zeros, and stores the n values
 * at y. The line is not loaded back from y, because a load after a partial store stalls. */
VEC_FN S(line) S(exp_rest)(T *y, const T *x, V shift, int64_t n)
{
    S(line) rest;
    TS_UNROLL(4) for (int i = 0; i < LINE_VECTORS; i++, x += LANES, y += LANES, n -= LANES) {
        int64_t left = ts_max64(ts_min64(n, LANES), 0);
        V v = F(exp)(F(load_n)(x, left) - shift);
        F(store_n)(y, v, left);
        rest.v[i] = F(select)(M(first_n)(left), v, F(zero)());
    }
    return rest;
}

/** Adds exp(x - shift) of n elements to a cascade and stores the terms at y, which may be x. The
 * elements after the last whole line become a leaf of their own. */
FOLD_FN void S(exp_run)(S(cascade) *c, T *y, const T *x, T shift, int64_t n)
{
    V s = F(set1)(shift);
    int64_t whole = n - n % S(LINE);
    for (int64_t i = 0; i < whole; i += LANES)
        F(store)(y + i, F(exp)(F(load)(x + i) - s));
    if (whole)
        S(sum_run)(c, y, whole);
    if (whole < n)
        S(cascade_add)(FOLD_SUM, c, S(exp_rest)(y + whole, x + whole, s, n - whole), 0);
}

/** Sum of exp(x - shift) over a row. Stores the terms at y unless y is NULL; y may be x. */
FOLD_FN T S(row_exp)(T *y, const T *x, T shift, int64_t n)
{
    S(cascade) c;
    T terms[TERMS];
    if (n < S(LINE))
        return S(fold_lanes)(FOLD_SUM, S(exp_rest)(y ? y : terms, x, F(set1)(shift), n));
    c.leaves = 0;
    for (int64_t i = 0; i < n; i += TERMS)
        S(exp_run)(&c, y ? y + i : terms, x + i, shift, ts_min64(n - i, TERMS));
    return S(sum_value)(&c);
}
