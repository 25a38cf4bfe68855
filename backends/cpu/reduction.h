/**
 * @file reduction.h
 * A pass of a reduction over dims (reduce.c explains passes): its layout, and iteration over its
 * elements. Included by reduce.c and reduce_whole.c.
 *
 * A result is the fold of the elements of the reduced dims. A run is the elements along the
 * innermost reduced dim. A part is a share of a result's elements; one task folds all of a part.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_REDUCTION_H
#define TS_BACKENDS_CPU_REDUCTION_H

#include "backends/cpu/rows.h"
#include "core/parallel.h"
#include "ops/kernel.h"

enum { RUN_BLOCK = TS_PIECE /* most elements of a part in an inner pass; length of a piece */ };

/** One pass: dims innermost first, steps in bytes. A comment that starts with "inner", "outer" or
 * "transposed" is about members for passes of this kind. */
typedef struct reduction {
    const char *x;
    char *out;          /* results or parts, contiguous */
    const void *params; /* one per result, or NULL (map() in fold_real.h) */
    int kept, reduced;  /* numbers of dims that are kept and reduced, after merging */
    int64_t kept_sizes[TS_MAX_DIMS], kept_steps[TS_MAX_DIMS];
    int64_t sizes[TS_MAX_DIMS], steps[TS_MAX_DIMS];
    int64_t results, length; /* products of kept_sizes and of sizes; the columns of an outer pass
                                (width) are not in results */
    int64_t parts;                  /* parts of a result */
    int64_t all_runs;               /* inner: runs of a result */
    int64_t pieces;                 /* inner: pieces of a run; if several, each piece is a part */
    int64_t runs;                   /* inner: runs of a part, if a run is one piece; else 1 */
    int64_t width, tiles;           /* outer: columns, and tiles of columns; width is 0 in other
                                       passes */
    int64_t transposed;             /* transposed: results per task; 0 in other passes */
    bool widen;                     /* x has the dtype `half` and is folded in f32 */
    ts_dtype half;
} reduction;

/* ---------------------------------------------------------------------- iteration --------- */

/** A multi-index into n dims, innermost first, and its offset in bytes. */
typedef struct walker {
    int n;
    const int64_t *sizes, *steps;
    int64_t at[TS_MAX_DIMS], offset;
} walker;

/** Returns a walker at element `index` in the order of the dims. Borrows sizes and steps. */
VEC_FN walker walker_at(int n, const int64_t *sizes, const int64_t *steps, int64_t index)
{
    walker w;
    w.n = n;
    w.sizes = sizes;
    w.steps = steps;
    w.offset = 0;
    for (int d = 0; d < n; d++) {
        w.at[d] = index;
        /* the last dim takes the rest without division; most reductions have one dim */
        if (d + 1 < n) {
            w.at[d] = index % sizes[d];
            index /= sizes[d];
        }
        w.offset += w.at[d] * steps[d];
    }
    return w;
}
/** Advances by n positions of the innermost dim, at most to its end, where it carries to the next
 *  dim. */
VEC_FN void walker_move(walker *w, int64_t n)
{
    for (int d = 0; d < w->n; d++, n = 1) {
        w->offset += n * w->steps[d];
        if ((w->at[d] += n) < w->sizes[d])
            return;
        w->offset -= w->sizes[d] * w->steps[d];
        w->at[d] = 0;
    }
}
VEC_FN void walker_next(walker *w) { walker_move(w, 1); }
/** Number of positions to the end of the innermost dim, at most n. */
VEC_FN int64_t walker_run(const walker *w, int64_t n)
{
    return w->n ? ts_min64(w->sizes[0] - w->at[0], n) : n;
}
/** Step of the innermost dim in bytes; 0 without dims. */
VEC_FN int64_t walker_step(const walker *w) { return w->n ? w->steps[0] : 0; }

/* ---------------------------------------------------------------------- layouts ----------- */

/** Appends a dim to n dims, innermost first, or merges it with the last one if the steps allow.
 *  Dims of size 1 are dropped. Returns the new number of dims. */
VEC_FN int add_dim(int n, int64_t *sizes, int64_t *steps, int64_t size, int64_t step)
{
    if (size == 1)
        return n;
    if (n && steps[n - 1] * sizes[n - 1] == step) {
        sizes[n - 1] *= size;
        return n;
    }
    sizes[n] = size;
    steps[n] = step;
    return n + 1;
}

/** True if a dim with step a is ordered inside a dim with step b. Broadcast dims are outermost. */
VEC_FN bool is_inner_step(int64_t a, int64_t b) { return a && (!b || a < b); }

/** Plans the first pass over t. It is an outer pass (width > 0) if the innermost kept dim is dense.
 *  Bit d of mask: dim d is reduced. Every size is at least 1. Does not set x, out, params,
 *  transposed and the division into parts and tiles. */
VEC_FN void plan_first(reduction *r, const ts_tensor *t, int64_t mask)
{
    int64_t item = ts_dtype_sizes[t->dtype];
    r->half = (ts_dtype)t->dtype;
    r->widen = ts_dtype_is_half(r->half);
    r->kept = r->reduced = 0;
    r->results = r->length = 1;
    r->width = 0;
    for (int d = t->ndim - 1; d >= 0; d--) {
        int64_t size = t->sizes[d], step = t->strides[d] * item;
        if (mask >> d & 1) {
            r->reduced = add_dim(r->reduced, r->sizes, r->steps, size, step);
            r->length *= size;
        } else {
            r->kept = add_dim(r->kept, r->kept_sizes, r->kept_steps, size, step);
            r->results *= size;
        }
    }
    if (!r->reduced) {
        r->sizes[0] = 1;
        r->steps[0] = item;
        r->reduced = 1;
    }
    if (r->kept && r->kept_steps[0] == item) {
        r->width = r->kept_sizes[0];
        r->results /= r->width;
        r->kept--;
        memmove(r->kept_sizes, r->kept_sizes + 1, sizeof(int64_t) * (size_t)r->kept);
        memmove(r->kept_steps, r->kept_steps + 1, sizeof(int64_t) * (size_t)r->kept);
        return;
    }
    /* in the order of memory, so that dims of a permuted tensor merge to long runs; broadcast dims
     * are outermost */
    for (int i = 1; i < r->reduced; i++)
        for (int d = i; d > 0 && is_inner_step(r->steps[d], r->steps[d - 1]); d--) {
            int64_t size = r->sizes[d], step = r->steps[d];
            r->sizes[d] = r->sizes[d - 1];
            r->steps[d] = r->steps[d - 1];
            r->sizes[d - 1] = size;
            r->steps[d - 1] = step;
        }
    int reduced = 0;
    for (int d = 0; d < r->reduced; d++)
        reduced = add_dim(reduced, r->sizes, r->steps, r->sizes[d], r->steps[d]);
    r->reduced = reduced ? reduced : 1;
}

/* ---------------------------------------------------------------------- whole results ----- */

/** Folds whose value does not depend on the order of the elements. */
typedef enum whole_fold { WHOLE_SUM, WHOLE_PROD, WHOLE_MAX, WHOLE_MIN } whole_fold;

/** Folds integers (i64, i32, u8 or bool) over the dims of mask (as in plan_first()) to results of
 *  the same dtype, contiguous in the order of the kept dims. t is not empty. In reduce_whole.c. */
void TS_V(ts_reduce_integers)(const ts_tensor *t, int64_t mask, whole_fold how, void *results);
/** Stores 1 or 0 per result: whether all elements (with `all`; else any element) over the dims of
 *  mask are not 0. t, of any dtype, is not empty. In reduce_whole.c. */
void TS_V(ts_reduce_truth)(const ts_tensor *t, int64_t mask, bool all, uint8_t *results);

#endif
