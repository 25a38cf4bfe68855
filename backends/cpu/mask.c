/** @file mask.c  tril and triu; nonzero, masked_select and masked_scatter. The result sizes of
 * nonzero and masked_select depend on the data. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/copy.h"
#include "core/parallel.h"
#include "ops/kernel.h"

/* ------------------------------------------------------------------------------ triangles ---- */

/** tril or triu of contiguous matrices (rows, columns). */
typedef struct triangle {
    char *to;
    const char *from;
    int64_t rows, columns, diagonal;
    int item;   /* bytes of an element */
    bool lower; /* tril */
} triangle;

/** Copies elements first to last - 1 of all matrices, or fills them with 0 unless `copied`. */
static void triangle_part(const triangle *t, int64_t first, int64_t last, bool copied)
{
    size_t at = (size_t)(first * t->item), bytes = (size_t)((last - first) * t->item);
    if (!copied)
        memset(t->to + at, 0, bytes);
    else if (t->to != t->from)
        memcpy(t->to + at, t->from + at, bytes);
}

/** Returns the column that divides row r of a matrix: tril copies the columns before it, triu the
 *  others. */
VEC_FN int64_t triangle_cut(const triangle *t, int64_t r)
{
    int64_t cut = r + (t->lower ? 1 : 0);
    return t->diagonal > t->columns - cut ? t->columns : t->diagonal < -cut ? 0 : cut + t->diagonal;
}

/** Computes rows begin to end - 1 of all matrices. Adjacent rows that are copied or cleared as a
 *  whole are one part. */
static void triangle_rows(void *ctx, int64_t begin, int64_t end)
{
    const triangle *t = ctx;
    while (begin < end) {
        int64_t cut = triangle_cut(t, begin % t->rows);
        int64_t first = begin * t->columns, last = begin + 1;
        if (cut == 0 || cut == t->columns) {
            int64_t most = ts_min64(end, begin + t->rows - begin % t->rows);
            while (last < most && triangle_cut(t, last % t->rows) == cut)
                last++;
        }
        int64_t middle = first + (cut == t->columns ? (last - begin) * t->columns : cut);
        triangle_part(t, first, middle, t->lower);
        triangle_part(t, middle, last * t->columns, !t->lower);
        begin = last;
    }
}

static ts_status cut(ts_frame *f, bool lower)
{
    const ts_tensor *self = f->args[0].t;
    ts_tensor *out = f->rets[0].t;
    triangle t = {out->data, self->data, self->sizes[self->ndim - 2], self->sizes[self->ndim - 1],
                  f->args[1].i,
                  ts_dtype_sizes[self->dtype], lower};
    if (!(self->flags & TS_TENSOR_CONTIGUOUS)) { /* copies the columns that some row keeps */
        int last = self->ndim - 1, item = t.item;
        int64_t first = lower ? 0 : triangle_cut(&t, 0), sizes[TS_MAX_DIMS];
        memcpy(sizes, self->sizes, (size_t)self->ndim * sizeof *sizes);
        sizes[last] = (lower ? triangle_cut(&t, t.rows - 1) : t.columns) - first;
        TS_V(ts_cpu_copy_part)(out->data + first * out->strides[last] * item, out->strides,
                               (ts_dtype)out->dtype,
                               self->data + first * self->strides[last] * item, self->strides,
                               (ts_dtype)self->dtype, sizes, self->ndim);
        t.from = t.to;
    }
    if (self->numel)
        ts_parallel_for(self->numel / t.columns, TS_CPU_GRAIN(1) / t.columns + 1, triangle_rows,
                        &t);
    return TS_OK;
}

static ts_status tril(ts_frame *f) { return cut(f, true); }
static ts_status triu(ts_frame *f) { return cut(f, false); }

/* -------------------------------------------------------------------------------- nonzero ---- */

/** Returns t, or a contiguous copy of it that is broadcast to these sizes and converted to dtype.
 * The caller owns a reference. NULL with an error. */
static ts_tensor *packed(ts_frame *f, ts_tensor *t, ts_dtype dtype, const int64_t *sizes, int ndim)
{
    if (t->dtype == dtype && (t->flags & TS_TENSOR_CONTIGUOUS) && t->ndim == ndim &&
        !memcmp(t->sizes, sizes, (size_t)ndim * sizeof *sizes))
        return ts_tensor_ref(t);
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

/** Number of true elements of a contiguous bool tensor. */
static int64_t count(const ts_tensor *mask)
{
    int64_t n = 0;
    for (int64_t i = 0, last; i < mask->numel; i = last) {
        uint8_t some = 0; /* u8, so that a vector holds many counters */
        last = ts_min64(i + 255, mask->numel);
        for (int64_t k = i; k < last; k++)
            some += mask->data[k] != 0;
        n += some;
    }
    return n;
}

/** Writes the index of each true element of a contiguous mask as a row of ndim numbers. */
static void write_indices(const ts_tensor *mask, int64_t *to)
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
    ts_tensor *t = f->args[0].t, *mask = packed(f, t, TS_BOOL, t->sizes, t->ndim);
    TS_TRY(mask);
    int64_t sizes[2] = {count(mask), t->ndim};
    ts_tensor *out = ts_tensor_new(f->thread, TS_I64, sizes, 2, t->storage->device);
    if (out) {
        write_indices(mask, (int64_t *)out->data);
        f->rets[0] = ts_value_tensor(out);
    }
    ts_tensor_unref(mask);
    return out ? TS_OK : ts_error_code();
}

/* ---------------------------------------------------------------------------------- masks ---- */

/* Elements move by their size, a constant, without branches on the mask. select_T() fills `to` with
 * n elements; scatter_T() replaces elements by the next ones of `source`. */
#define MOVE_MASKED(T)                                                                             \
    static void select_##T(T *to, int64_t n, const T *from, const uint8_t *mask)                   \
    {                                                                                              \
        for (T *end = to + n; to < end; to += *mask++ != 0)                                        \
            *to = *from++;                                                                         \
    }                                                                                              \
    static void scatter_##T(T *to, int64_t n, const T *from, const T *source, const uint8_t *mask) \
    {                                                                                              \
        for (int64_t i = 0; i < n; i++) {                                                          \
            to[i] = *(mask[i] ? source : from + i);                                                \
            source += mask[i] != 0;                                                                \
        }                                                                                          \
    }
MOVE_MASKED(uint8_t)
MOVE_MASKED(uint16_t)
MOVE_MASKED(uint32_t)
MOVE_MASKED(uint64_t)
/* Runs name_T for elements of `item` bytes; its arguments are void pointers and numbers. */
#define BY_ITEM(item, name, ...)                                 \
    ((item) == 1   ? name##_uint8_t(__VA_ARGS__)                 \
     : (item) == 2 ? name##_uint16_t(__VA_ARGS__)                \
     : (item) == 4 ? name##_uint32_t(__VA_ARGS__)                \
                   : name##_uint64_t(__VA_ARGS__))

static ts_status masked_select(ts_frame *f)
{
    TS_TRY(f->table->info->infer(f));
    ts_tensor *self = f->args[0].t, *m = f->args[1].t;
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
        BY_ITEM(item, select, (void *)out->data, n, (void *)from->data, (void *)mask->data);
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
    ts_tensor *self = f->args[0].t, *source = f->args[2].t, *out = f->rets[0].t;
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
    if (status == TS_OK)
        BY_ITEM(item, scatter, (void *)out->data, out->numel, (void *)from->data,
                (void *)source->data, (void *)mask->data);
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
