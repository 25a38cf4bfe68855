/**
 * @file rows.c  Conditions under which norms, softmax and reductions ("calls by rows") and
 * reductions of any adjacent dims ("folds") join a fused group.
 *
 * The last dims of such a group's iteration space form a row, which one tile (CPU) or thread block
 * (GPU) computes as a whole. Values have the sizes of the space, one element per row, or one row
 * that all rows share.
 */
// SPDX-License-Identifier: MIT
#include "compile/compile.h"

enum {
    LONGEST = 8192, /* maximum elements of a row */
    SHORTEST = 16   /* minimum on the CPU, whose kernels have a fixed cost per row */
};

/** True if the last n sizes of t are `want`. */
static bool ends_with(const ts_tensor *t, const int64_t *want, int n)
{
    return t->ndim >= n && ts_same_sizes(t->sizes + t->ndim - n, want, n);
}

/** True if t is contiguous and has the sizes of `space`, one element per row, or the sizes of a
 *  row. */
static bool is_argument(const ts_tensor *t, const ts_tensor *space, int rows)
{
    int outer = space->ndim - rows;
    if (!(t->flags & TS_TENSOR_CONTIGUOUS))
        return false;
    if (t->ndim == rows)
        return ends_with(t, space->sizes + outer, rows);
    if (t->ndim != space->ndim || !ts_same_sizes(t->sizes, space->sizes, outer))
        return false;
    bool one = true;
    for (int d = outer; d < t->ndim; d++)
        one &= t->sizes[d] == 1;
    return one || ends_with(t, space->sizes, t->ndim);
}

ts_group_part ts_whole_part(const ts_frame *f)
{
    const ts_plan *p = f->plan;
    const ts_tensor *t = f->args[0].t;
    const ts_accepts *accepts = &f->table->accepts[f->key];
    bool takes = (accepts->takes & TS_TAKES_PIECES) && (t->flags & TS_TENSOR_CONTIGUOUS) &&
                 t->numel > 1 && p->reduced == ((int64_t)1 << t->ndim) - 1 &&
                 t->dtype == p->ret[0].dtype && t->dtype == f->rets[0].t->dtype &&
                 ts_dtype_is_float((ts_dtype)t->dtype) && !ts_dtype_is_half((ts_dtype)t->dtype);
    return (ts_group_part){.takes = takes, .rows = takes ? (uint8_t)t->ndim : 0,
                           .results = takes};
}

ts_group_part ts_rows_part(const ts_frame *f)
{
    const ts_plan *p = f->plan;
    const ts_tensor *space = f->args[0].t;
    bool summed = p->rows & TS_ROWS_SUMMED, host = f->key == TS_KEY_CPU;
    int rows = p->rows & ~TS_ROWS_SUMMED, outer = space->ndim - rows;
    ts_group_part part = {.rows = (uint8_t)rows}, none = {0};
    if (outer < 1 || !(f->table->accepts[f->key].dtypes >> p->compute & 1) ||
        (host && ts_dtype_is_half((ts_dtype)p->compute)))
        return none;
    int64_t n = 1;
    for (int d = outer; d < space->ndim; d++)
        n *= space->sizes[d];
    if (n < (host ? SHORTEST : 2) || n > LONGEST || space->numel == n)
        return none;
    for (int i = 0; i < f->nargs; i++)
        if (f->args[i].tag == TS_TAG_TENSOR &&
            (!is_argument(f->args[i].t, space, rows) ||
             ((p->cast >> i & 1) && f->args[i].t->dtype != p->compute)))
            return none;
    for (int i = 0; i < f->nrets; i++) {
        if (f->rets[i].tag != TS_TAG_TENSOR)
            continue;
        const ts_tensor *t = f->rets[i].t;
        bool like = t->ndim == space->ndim && ends_with(t, space->sizes, space->ndim);
        if (t->dtype != p->ret[i].dtype || !(t->flags & TS_TENSOR_CONTIGUOUS) ||
            (summed && !like && host)) /* CPU tiles cannot sum over rows */
            return none;
        if (!like && (summed || t->ndim != space->ndim))
            part.results |= (uint8_t)(1u << i);
    }
    part.takes = true;
    return part;
}

bool ts_rows_each(const ts_graph *g, const ts_graph_value *v, const int64_t *sizes, int ndim,
                  int rows)
{
    const int64_t *own = ts_graph_ints_at(g, v->ints);
    bool each = v->ndim == ndim && ts_same_sizes(own, sizes, ndim - rows);
    for (int d = ndim - rows; d < ndim && each; d++)
        each = own[d] == 1;
    return each;
}

bool ts_rows_fit(const ts_graph *g, const ts_graph_value *v, const int64_t *sizes, int ndim,
                 int rows)
{
    const int64_t *own = ts_graph_ints_at(g, v->ints), *strides = own + v->ndim;
    int shift = ndim - v->ndim;
    int64_t step = 1;
    bool one = true, whole = v->ndim >= rows;
    for (int d = ndim - 1; d >= ndim - rows; d--) {
        int at = d - shift;
        one &= at < 0 || own[at] == 1 || (!strides[at] && rows < ndim);
        whole = whole && own[at] == sizes[d] && (own[at] == 1 || strides[at] == step);
        step *= sizes[d];
    }
    return one || whole;
}

ts_group_part ts_fold_part(const ts_frame *f)
{
    const ts_plan *p = f->plan;
    const ts_tensor *t = f->args[0].t, *y = f->rets[0].t;
    ts_group_part part = {.dtype = t->dtype}, none = {0};
    int64_t count = 1;
    bool after = false; /* a kept dim follows the reduced ones */
    if (f->key == TS_KEY_CPU || f->nrets != 1 || !p->reduced || t->dtype != p->compute ||
        t->dtype != p->ret[0].dtype || t->dtype != y->dtype ||
        !ts_dtype_is_float((ts_dtype)t->dtype) || !(t->flags & y->flags & TS_TENSOR_CONTIGUOUS))
        return none;
    for (int d = 0; d < t->ndim; d++) {
        if (t->sizes[d] == 1)
            continue;
        bool reduced = p->reduced >> d & 1;
        if (reduced && after)
            return none;
        if (reduced) {
            part.from = part.folds ? part.from : (uint8_t)d;
            part.folds = (uint8_t)(d + 1 - part.from);
            count *= t->sizes[d];
        }
        after |= part.folds && !reduced;
    }
    if (count < 2)
        return none;
    part.takes = true;
    part.results = 1;
    return part;
}

bool ts_fold_fits(const ts_graph *g, const ts_graph_value *v, const ts_step *s)
{
    const int64_t *own = ts_graph_ints_at(g, v->ints);
    int shift = s->ndim - v->ndim;
    int64_t numel = 1;
    for (int d = 0; d < v->ndim; d++) {
        if (shift + d < 0 || (own[d] != 1 && own[d] != s->sizes[shift + d]))
            return false;
        numel *= own[d];
    }
    return numel != s->numel || ts_strides_contiguous(own, own + v->ndim, v->ndim);
}

bool ts_fold_is_result(const ts_graph *g, const ts_graph_value *v, const ts_step *s)
{
    const int64_t *own = ts_graph_ints_at(g, v->ints);
    int at = 0;
    if (!ts_strides_contiguous(own, own + v->ndim, v->ndim))
        return false;
    for (int d = 0; d < s->ndim; d++) {
        if (s->sizes[d] == 1 || (d >= s->from && d < s->from + s->folds))
            continue;
        while (at < v->ndim && own[at] == 1)
            at++;
        if (at == v->ndim || own[at++] != s->sizes[d])
            return false;
    }
    while (at < v->ndim && own[at] == 1)
        at++;
    return at == v->ndim;
}
