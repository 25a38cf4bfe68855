/** @file mask.c  tril and triu; nonzero, masked_select and masked_scatter. The result sizes of
 * nonzero and masked_select depend on the data. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/copy.h"
#include "core/parallel.h"
#include "ops/kernel.h"

/* ------------------------------------------------------------------------------ triangles ---- */

typedef struct triangle {
    char *to;
    const char *from;
    int64_t rows, columns, diagonal;
    int item;
    bool lower;
} triangle;

static void triangle_rows(void *ctx, int64_t begin, int64_t end)
{
    const triangle *t = ctx;
    for (int64_t r = begin; r < end; r++) {
        /* tril: the first column of this row that becomes 0; triu: the first that is kept */
        int64_t cut = r % t->rows + (t->lower ? 1 : 0);
        cut = t->diagonal > t->columns - cut ? t->columns
              : t->diagonal < -cut           ? 0
                                             : cut + t->diagonal;
        int64_t first = t->lower ? 0 : cut, keep = t->lower ? cut : t->columns - cut;
        int64_t zero = t->lower ? cut : 0, zeros = t->columns - keep;
        char *to = t->to + r * t->columns * t->item;
        if (t->to != t->from)
            memcpy(to + first * t->item, t->from + (r * t->columns + first) * t->item,
                   (size_t)(keep * t->item));
        memset(to + zero * t->item, 0, (size_t)(zeros * t->item));
    }
}

static ts_status cut(ts_frame *f, bool lower)
{
    const ts_tensor *self = f->args[0].t;
    ts_tensor *out = f->rets[0].t;
    triangle t = {out->data, self->data, self->sizes[self->ndim - 2], self->sizes[self->ndim - 1],
                  f->args[1].i,
                  ts_dtype_sizes[self->dtype], lower};
    if (self->numel)
        ts_parallel_for(self->numel / t.columns, TS_CPU_GRAIN(1) / t.columns + 1, triangle_rows,
                        &t);
    return TS_OK;
}

static ts_status tril(ts_frame *f) { return cut(f, true); }
static ts_status triu(ts_frame *f) { return cut(f, false); }

/* -------------------------------------------------------------------------------- nonzero ---- */

/** A contiguous copy of t, broadcast to these sizes and converted to dtype. The caller owns it.
 * NULL with an error. */
static ts_tensor *packed(ts_frame *f, const ts_tensor *t, ts_dtype dtype, const int64_t *sizes,
                         int ndim)
{
    ts_tensor *c = ts_tensor_new(f->thread, dtype, sizes, ndim, t->storage->device);
    if (!c)
        return NULL;
    int64_t strides[TS_MAX_DIMS];
    for (int d = 0; d < ndim; d++) {
        int s = d - (ndim - t->ndim);
        strides[d] = s < 0 || t->sizes[s] != sizes[d] ? 0 : t->strides[s];
    }
    TS_V(ts_cpu_copy_part)(c->data, c->strides, dtype, t->data, strides, (ts_dtype)t->dtype, sizes,
                           ndim);
    return c;
}

static int64_t count(const ts_tensor *mask)
{
    int64_t n = 0;
    for (int64_t i = 0; i < mask->numel; i++)
        n += mask->data[i] != 0;
    return n;
}

/** Writes the index of each nonzero element of a mask as a row of ndim numbers. */
static void write_places(const ts_tensor *mask, int64_t *to)
{
    int last = mask->ndim - 1;
    int64_t at[TS_MAX_DIMS] = {0}, length = last < 0 ? 1 : mask->sizes[last];
    for (int64_t row = 0; row < mask->numel; row += length) {
        for (int64_t i = 0; i < length; i++) {
            if (!mask->data[row + i] || last < 0)
                continue;
            for (int d = 0; d < last; d++)
                to[d] = at[d];
            to[last] = i;
            to += mask->ndim;
        }
        for (int d = last - 1; d >= 0 && ++at[d] == mask->sizes[d]; d--)
            at[d] = 0;
    }
}

static ts_status nonzero(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t;
    ts_tensor *mask = packed(f, t, TS_BOOL, t->sizes, t->ndim);
    TS_TRY(mask);
    int64_t sizes[2] = {count(mask), t->ndim};
    ts_tensor *out = ts_tensor_new(f->thread, TS_I64, sizes, 2, t->storage->device);
    if (out) {
        write_places(mask, (int64_t *)out->data);
        f->rets[0] = ts_value_tensor(out);
    }
    ts_tensor_unref(mask);
    return out ? TS_OK : ts_error_code();
}

/* ---------------------------------------------------------------------------------- masks ---- */

static ts_status masked_select(ts_frame *f)
{
    TS_TRY(f->table->info->infer(f));
    const ts_tensor *self = f->args[0].t, *m = f->args[1].t;
    ts_dtype dtype = (ts_dtype)self->dtype;
    int64_t sizes[TS_MAX_DIMS];
    int ndim = self->ndim > m->ndim ? self->ndim : m->ndim, item = ts_dtype_sizes[dtype];
    for (int d = 0; d < ndim; d++) {
        int a = d - (ndim - self->ndim), b = d - (ndim - m->ndim);
        sizes[d] = a < 0 || (b >= 0 && self->sizes[a] == 1) ? m->sizes[b] : self->sizes[a];
    }
    ts_tensor *mask = packed(f, m, TS_BOOL, sizes, ndim);
    ts_tensor *from = mask ? packed(f, self, dtype, sizes, ndim) : NULL;
    int64_t n = from ? count(mask) : 0;
    ts_tensor *out = from ? ts_tensor_new(f->thread, dtype, &n, 1, self->storage->device) : NULL;
    if (out) {
        char *to = out->data;
        for (int64_t i = 0; i < mask->numel; i++)
            if (mask->data[i]) {
                memcpy(to, from->data + i * item, (size_t)item);
                to += item;
            }
        f->rets[0] = ts_value_tensor(out);
    }
    if (mask)
        ts_tensor_unref(mask);
    if (from)
        ts_tensor_unref(from);
    return out ? TS_OK : ts_error_code();
}

static ts_status masked_scatter(ts_frame *f)
{
    const ts_tensor *self = f->args[0].t, *source = f->args[2].t;
    ts_tensor *out = f->rets[0].t;
    int item = ts_dtype_sizes[self->dtype];
    ts_tensor *mask = packed(f, f->args[1].t, TS_BOOL, out->sizes, out->ndim);
    ts_tensor *from = mask ? packed(f, self, (ts_dtype)self->dtype, out->sizes, out->ndim) : NULL;
    ts_status status = from ? TS_OK : ts_error_code();
    int64_t n = from ? count(mask) : 0;
    if (n > source->numel) {
        ts_wrote_nothing(f);
        status =
            ts_fail_arg(f, 2, TS_ERR_SHAPE,
                        "expected at least %lld elements, one for each true of 'mask', got %lld",
                        (long long)n, (long long)source->numel);
    }
    if (status == TS_OK) {
        const char *next = source->data;
        for (int64_t i = 0; i < out->numel; i++) {
            const char *take = mask->data[i] ? next : from->data + i * item;
            memcpy(out->data + i * item, take, (size_t)item);
            next += mask->data[i] ? item : 0;
        }
    }
    if (mask)
        ts_tensor_unref(mask);
    if (from)
        ts_tensor_unref(from);
    return status;
}

TS_CPU_FAMILY(mask,
    {TS_OP_tril, tril, {0, 0}},
    {TS_OP_triu, triu, {0, 0}},
    {TS_OP_nonzero, nonzero, {0, 1}},
    {TS_OP_masked_select, masked_select, {0, 1}},
    {TS_OP_masked_scatter, masked_scatter, {0, 0}})
