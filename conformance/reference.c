/** @file reference.c  Helpers of references: plain loops over doubles. */
// SPDX-License-Identifier: MIT
#include "conformance/drive.h"

#include <string.h>

typedef struct block {
    struct block *next;
    double x[];
} block;

double *ref_scratch(ts_ref *r, int64_t n)
{
    block *b = calloc(1, sizeof *b + (size_t)(n + 1) * sizeof(double));
    b->next = r->blocks;
    r->blocks = b;
    return b->x;
}

int64_t ref_numel(const int64_t *sizes, int ndim)
{
    int64_t n = 1;
    for (int d = 0; d < ndim; d++)
        n *= sizes[d];
    return n;
}

double *ref_ret(ts_ref *r, int i, const int64_t *sizes, int ndim)
{
    ts_ref_arg *y = &r->ret[i];
    y->tag = TS_TAG_TENSOR;
    y->ndim = ndim;
    if (ndim > 0) /* sizes may be NULL for 0 dims */
        memcpy(y->sizes, sizes, (size_t)ndim * sizeof *sizes);
    y->numel = ref_numel(sizes, ndim);
    return y->x = ref_scratch(r, y->numel);
}

double *ref_ret_like(ts_ref *r, int i, const ts_ref_arg *a)
{
    return ref_ret(r, i, a->sizes, a->ndim);
}

double ref_at(const ts_ref_arg *a, const int64_t *sizes, int ndim, int64_t at)
{
    if (a->tag != TS_TAG_TENSOR)
        return a->d;
    int64_t index = 0, step = 1;
    for (int d = ndim - 1; d >= 0; d--) {
        int64_t k = at % sizes[d];
        int s = d - (ndim - a->ndim);
        at /= sizes[d];
        if (s < 0)
            continue;
        if (a->sizes[s] != 1)
            index += k * step;
        step *= a->sizes[s];
    }
    return a->x[index];
}

void ref_pointwise(ts_ref *r, int n, double (*fn)(const double *v))
{
    int64_t sizes[TS_MAX_DIMS];
    int ndim = 0;
    for (int i = 0; i < n; i++)
        if (r->a[i].tag == TS_TAG_TENSOR && r->a[i].ndim > ndim)
            ndim = r->a[i].ndim;
    for (int d = 0; d < ndim; d++) {
        sizes[d] = 1;
        for (int i = 0; i < n; i++) {
            int s = d - (ndim - r->a[i].ndim);
            if (r->a[i].tag == TS_TAG_TENSOR && s >= 0 && r->a[i].sizes[s] != 1)
                sizes[d] = r->a[i].sizes[s];
        }
    }
    double *y = ref_ret(r, 0, sizes, ndim);
    for (int64_t e = 0; e < r->ret[0].numel; e++) {
        double v[TS_MAX_ARGS] = {0};
        for (int i = 0; i < n; i++)
            v[i] = ref_at(&r->a[i], sizes, ndim, e);
        y[e] = fn(v);
    }
}

void ref_split(const ts_ref_arg *a, int64_t dim, int64_t *outer, int64_t *size, int64_t *inner)
{
    int at = (int)(dim < 0 ? dim + (a->ndim ? a->ndim : 1) : dim);
    *outer = *inner = 1;
    *size = a->ndim ? a->sizes[at] : 1;
    for (int d = 0; d < a->ndim; d++)
        *(d < at ? outer : d > at ? inner : &(int64_t){1}) *= a->sizes[d];
}

/* ------------------------------------------------------------------- arguments of a case ---- */

/** Copies sizes, dtype and values of a tensor to a; r owns the values. */
static void copy_tensor(ts_ref_arg *a, const ts_made_tensor *x, ts_ref *r)
{
    a->tag = TS_TAG_TENSOR;
    a->dtype = ts_dtype_of(x->t);
    a->ndim = ts_ndim(x->t);
    memcpy(a->sizes, ts_sizes(x->t), (size_t)a->ndim * sizeof(int64_t));
    a->numel = ts_numel(x->t);
    a->x = ref_scratch(r, a->numel);
    memcpy(a->x, x->values, (size_t)a->numel * sizeof(double));
}

/** The value of a number after rounding to bf16 or f16. */
static double rounded(const ts_value *v, ts_dtype half)
{
    uint16_t bits;
    ts_scalar_store(v, half, &bits);
    return ts_operand_number(&(ts_operand){.data = &bits, .dtype = half, .host = true});
}

void ref_open(ts_ref *r, const ts_case *c, const ts_made *m)
{
    memset(r, 0, sizeof *r);
    bool rounds = c->s->rounds && (DT_HALVES >> c->dtype & 1);
    r->dtype = c->dtype;
    r->nargs = m->nargs;
    r->nrets = c->info->nrets;
    int at = 0;
    for (int i = 0; i < m->nargs; i++) {
        const ts_value *v = &m->args[i];
        ts_ref_arg *a = &r->a[i];
        a->tag = v->tag;
        switch (v->tag) {
        case TS_TAG_TENSOR: copy_tensor(a, &m->tensors[at++], r); break;
        case TS_TAG_TENSORS:
            a->count = (int)v->count;
            a->list =
                (ts_ref_arg *)ref_scratch(r, (int64_t)(v->count * sizeof *a / sizeof(double)) + 1);
            for (int k = 0; k < a->count; k++)
                copy_tensor(&a->list[k], &m->tensors[at++], r);
            break;
        case TS_TAG_INTS:
            a->ndim = (int)v->count;
            memcpy(a->sizes, v->ints, v->count * sizeof *v->ints);
            break;
        case TS_TAG_FLOAT:
            a->d = rounds ? rounded(v, c->dtype) : v->d;
            a->i = (int64_t)a->d;
            break;
        case TS_TAG_BOOL:
        case TS_TAG_INT:
            a->i = v->i;
            a->d = (double)v->i;
            break;
        case TS_TAG_DTYPE:
            a->i = v->i;
            a->dtype = (ts_dtype)v->i;
            break;
        default: break;
        }
    }
}

void ref_close(ts_ref *r)
{
    for (block *b = r->blocks, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    r->blocks = NULL;
}
