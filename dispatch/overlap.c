/**
 * @file overlap.c  Whether two strided tensors have a byte in common.
 *
 * Element i of a and element j of b have a byte in common if
 *
 *     a.data + sum of a's strides * i + u  =  b.data + sum of b's strides * j + v
 *
 * for bytes u and v of the elements. If both tensors have elements of one size, and their addresses
 * differ by a multiple of it, u and v are omitted, and c and t below are in elements.
 *
 * Indices whose terms would be negative on the left side are counted from their ends. All terms are
 * then on the left, none of them negative: sum of c[k] * x[k] = t with 0 <= x[k] <= n[k]. A search
 * over x, the largest c[k] first, skips remainders that the greatest common divisor of the later
 * c[k] does not divide or that exceed the sum of the later c[k] * n[k]. If it tries more than
 * VISITS values, or the sums do not fit 63 bits, the tensors count as overlapping.
 */
// SPDX-License-Identifier: MIT
#include "dispatch/entries.h"

enum { TERMS = 2 * TS_MAX_DIMS + 1,
       VISITS = 4096 /* values of x[k] that a search tries; then it ends undecided */ };

typedef struct equation {
    int64_t c[TERMS], n[TERMS];
    int64_t divisor[TERMS + 1], most[TERMS + 1]; /* of terms k and later: greatest common divisor of
                                                    c; sum of c * n */
    int count, visits;
    bool fits; /* all sums fit 63 bits */
} equation;

static int64_t divisor_of(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/** Adds the term c * x with 0 <= x <= n, unless it is always 0. Terms with the same c become one.
 *  Terms are sorted, the largest c first. */
static void add_term(equation *e, int64_t c, int64_t n)
{
    int k = 0;
    if (!c || !n)
        return;
    while (k < e->count && e->c[k] > c)
        k++;
    if (k < e->count && e->c[k] == c) {
        e->fits &= !__builtin_add_overflow(e->n[k], n, &e->n[k]);
        return;
    }
    for (int i = e->count++; i > k; i--) {
        e->c[i] = e->c[i - 1];
        e->n[i] = e->n[i - 1];
    }
    e->c[k] = c;
    e->n[k] = n;
}

/** Adds t's terms, in units of `unit` bytes. */
static void add_tensor(equation *e, const ts_tensor *t, int64_t unit)
{
    int64_t scale = ts_dtype_sizes[t->dtype] / unit, stride;
    for (int d = 0; d < t->ndim; d++) {
        e->fits &= !__builtin_mul_overflow(t->strides[d], scale, &stride);
        add_term(e, stride < 0 ? -stride : stride, t->sizes[d] - 1);
    }
}

/** False if terms k and later cannot have the sum `rest`. True also if the search is undecided. */
static bool has_solution(equation *e, int k, int64_t rest)
{
    if (rest == 0)
        return true;
    if (rest < 0 || k == e->count || rest > e->most[k] || rest % e->divisor[k])
        return false;
    if (k == e->count - 1)
        return true;
    int64_t c = e->c[k], left = rest - e->most[k + 1], x = rest / c;
    x = x < e->n[k] ? x : e->n[k];
    for (int64_t least = left > 0 ? (left + c - 1) / c : 0; x >= least; x--) {
        if (!e->visits--)
            return true;
        if (has_solution(e, k + 1, rest - c * x) || e->visits < 0)
            return true;
    }
    return false;
}

/** First and last byte that t's elements touch, as offsets from its data. */
static void extent(const ts_tensor *t, int64_t *first, int64_t *last)
{
    int64_t low = 0, high = 0, item = ts_dtype_sizes[t->dtype];
    for (int d = 0; d < t->ndim; d++) {
        int64_t reach = (t->sizes[d] - 1) * t->strides[d];
        low += reach < 0 ? reach : 0;
        high += reach > 0 ? reach : 0;
    }
    *first = low * item;
    *last = high * item + item - 1;
}

bool ts_tensors_overlap(const ts_tensor *a, const ts_tensor *b)
{
    if (!a->numel || !b->numel || !a->data)
        return false;
    int64_t first[2], last[2], item = ts_dtype_sizes[a->dtype],
            apart = (int64_t)((uintptr_t)b->data - (uintptr_t)a->data);
    extent(a, &first[0], &last[0]);
    extent(b, &first[1], &last[1]);
    if (first[0] > apart + last[1] || apart + first[1] > last[0])
        return false;
    bool elements = item == ts_dtype_sizes[b->dtype] && apart % item == 0;
    int64_t unit = elements ? item : 1, other = ts_dtype_sizes[b->dtype];
    equation e = {.visits = VISITS, .fits = true};
    add_tensor(&e, a, unit);
    add_tensor(&e, b, unit);
    if (!elements)
        add_term(&e, 1, item - 1 + other - 1);
    e.most[e.count] = e.divisor[e.count] = 0;
    for (int k = e.count - 1; k >= 0; k--) {
        int64_t reach;
        e.fits &= !__builtin_mul_overflow(e.c[k], e.n[k], &reach) &&
                  !__builtin_add_overflow(e.most[k + 1], reach, &e.most[k]);
        e.divisor[k] = divisor_of(e.divisor[k + 1], e.c[k]);
    }
    /* all x are 0 for the first byte or element of a and the last one of b, t apart */
    return !e.fits || has_solution(&e, 0, (apart + (elements ? last[1] - item + 1 : last[1]) -
                                           first[0]) / unit);
}
