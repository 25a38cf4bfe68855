/**
 * @file index.c  Gather, scatter, and selection and addition of slices by index. Exactly one thread
 * writes an element of the result and adds its terms in the order of the indices, so sums do not
 * depend on the number of threads.
 */
// SPDX-License-Identifier: MIT
#include "backends/cpu/bytes.h"
#include "backends/cpu/copy.h"
#include "core/parallel.h"
#include "include/tessera/ops/copy.h"
#include "ops/kernel.h"

#include <stdatomic.h>

typedef struct indices {
    const void *data;
    bool wide; /* i64, else i32 */
} indices;

/** Index number k. */
VEC_FN int64_t at(indices v, int64_t k)
{
    return v.wide ? ((const int64_t *)v.data)[k] : ((const int32_t *)v.data)[k];
}

static indices indices_of(const ts_tensor *t) { return (indices){t->data, t->dtype == TS_I64}; }

/** Returns a TS_ERR_INDEX error that names the first index outside [0, bound); one must exist. */
static TS_COLD ts_status fail_index(const ts_frame *f, int arg, const ts_tensor *t, int64_t bound)
{
    indices v = indices_of(t);
    int64_t k = 0, position[TS_MAX_DIMS];
    while (at(v, k) >= 0 && at(v, k) < bound)
        k++;
    int64_t rest = k;
    for (int d = t->ndim - 1; d >= 0; d--) {
        position[d] = rest % t->sizes[d];
        rest /= t->sizes[d];
    }
    if (f->plan)
        ts_wrote_nothing(f);
    char text[192];
    return ts_fail_arg(f, arg, TS_ERR_INDEX,
                       "expected indices from 0 to %lld, got %lld at position %s",
                       (long long)bound - 1, (long long)at(v, k),
                       ts_format_sizes(text, sizeof text, position, t->ndim));
}

/** Indices whose range is checked. */
typedef struct range_check {
    indices index;
    int64_t last; /* largest index in the range, at least -1 */
    atomic_bool outside;
} range_check;

/* True if one of the indices begin to end - 1 is outside: its sign, or that of last - index, is
 * set. */
#define ANY_OUTSIDE(I, name)                                                                       \
    VEC_FN bool name(const range_check *r, int64_t begin, int64_t end)                             \
    {                                                                                              \
        const I *p = r->index.data;                                                                \
        I last = (I)r->last, signs = 0;                                                            \
        for (int64_t k = begin; k < end; k++)                                                      \
            signs |= p[k] | (last - p[k]);                                                         \
        return signs >> (8 * sizeof(I) - 1);                                                       \
    }
ANY_OUTSIDE(uint64_t, any_outside_i64)
ANY_OUTSIDE(uint32_t, any_outside_i32)

static void check_part(void *ctx, int64_t begin, int64_t end)
{
    range_check *r = ctx;
    if (r->index.wide ? any_outside_i64(r, begin, end) : any_outside_i32(r, begin, end))
        atomic_store_explicit(&r->outside, true, memory_order_relaxed);
}

/** Checks that all indices of args[arg] are in [0, bound), before any write; else TS_ERR_INDEX. */
static ts_status check_range(const ts_frame *f, int arg, int64_t bound)
{
    const ts_tensor *t = f->args[arg].t;
    range_check r = {.index = indices_of(t), .last = bound - 1};
    if (!r.index.wide)
        r.last = ts_min64(r.last, INT32_MAX);
    ts_parallel_for(t->numel, TS_CPU_GRAIN(1), check_part, &r);
    bool outside = atomic_load_explicit(&r.outside, memory_order_relaxed);
    return TS_LIKELY(!outside) ? TS_OK : fail_index(f, arg, t, bound);
}

/* ------------------------------------------------------------------------- rows by index ---- */

/** A tensor viewed as (outer, n, inner), where n is the indexed dim. bytes: size of a row, which is
 * a run of `inner` elements. count: number of indices. */
typedef struct rows {
    char *to;
    const char *from;
    indices index;
    int64_t outer, n, count, inner, bytes;
    int64_t outer_step, step; /* select: bytes from a row of `from` to that of the next outer index
                                 and to the next row */
    int64_t skip;   /* an index to skip, or -1 */
    bool zero;      /* run_add() sets the destination to 0 first */
} rows;

static rows rows_of(const int64_t *sizes, int ndim, int64_t dim, const ts_tensor *index, int item)
{
    rows r = {.index = indices_of(index), .outer = 1, .n = ndim ? sizes[dim] : 1,
              .count = index->numel, .inner = 1, .skip = -1};
    for (int d = 0; d < ndim; d++) {
        if (d < dim)
            r.outer *= sizes[d];
        else if (d > dim)
            r.inner *= sizes[d];
    }
    r.bytes = r.inner * item;
    return r;
}

/** Copies n bytes of any alignment. A memcpy() call per row would cost as much as a short row. */
VEC_FN void copy_bytes(char *to, const char *from, int64_t n)
{
    if (n < VEC_BYTES) {
        ts_copy_bytes(to, from, n);
        return;
    }
    for (int64_t i = 0; i + VEC_BYTES < n; i += VEC_BYTES)
        memcpy(to + i, from + i, VEC_BYTES);
    memcpy(to + n - VEC_BYTES, from + n - VEC_BYTES, VEC_BYTES); /* may overlap the one before */
}

/* Rows of `length` bytes, which is a constant where memcpy() is the copy. */
#define SELECT_ROWS(name, length, copy)                                     \
    static void name(void *ctx, int64_t begin, int64_t end)                 \
    {                                                                       \
        const rows *r = ctx;                                                \
        int64_t bytes = (length), o = begin / r->count;                     \
        while (begin < end) {                                               \
            int64_t first = begin - o * r->count;                           \
            int64_t stop = ts_min64(end - o * r->count, r->count);          \
            const char *base = r->from + o * r->outer_step;                 \
            char *to = r->to + begin * bytes;                               \
            if (r->index.wide)                                              \
                SELECT_RUN(int64_t, copy)                                   \
            else                                                            \
                SELECT_RUN(int32_t, copy)                                   \
            begin += stop - first;                                          \
            o++;                                                            \
        }                                                                   \
    }
#define SELECT_RUN(I, copy)                                                 \
    {                                                                       \
        const I *index = r->index.data;                                     \
        int64_t step = r->step; /* a copy, because `to` may alias r */      \
        for (int64_t k = first; k < stop; k++, to += bytes)                 \
            copy(to, base + index[k] * step, bytes);                        \
    }
SELECT_ROWS(select_1, 1, memcpy)
SELECT_ROWS(select_2, 2, memcpy)
SELECT_ROWS(select_4, 4, memcpy)
SELECT_ROWS(select_8, 8, memcpy)
SELECT_ROWS(select_16, 16, memcpy)
SELECT_ROWS(select_any, r->bytes, copy_bytes)

/** Sets the steps of the rows of t. Returns false if a row is not one run of memory, or if rows
 * with the same index are not equally spaced. */
static bool find_steps(rows *r, const ts_tensor *t, int64_t dim)
{
    int64_t item = ts_dtype_sizes[t->dtype], run = 1, outer = 1;
    r->step = r->bytes;
    r->outer_step = r->n * r->bytes;
    if (t->flags & TS_TENSOR_CONTIGUOUS) /* also an empty tensor, with any strides */
        return true;
    for (int d = t->ndim - 1; d >= 0; d--) {
        int64_t size = t->sizes[d], stride = t->strides[d];
        if (d == dim) {
            r->step = stride * item;
            continue;
        }
        if (size == 1)
            continue;
        if (d > dim ? stride != run : outer > 1 && stride * item != outer * r->outer_step)
            return false;
        if (d < dim && outer == 1)
            r->outer_step = stride * item;
        run *= d > dim ? size : 1;
        outer *= d < dim ? size : 1;
    }
    return true;
}

static ts_status gather(ts_frame *f);

/** Copies rows by index. gather() copies the elements of an index_select whose rows are not runs of
 * memory; the weight of an embedding is contiguous. */
static ts_status run_select(ts_frame *f, int index_arg, int64_t dim)
{
    const ts_tensor *self = f->args[0].t;
    rows r =
        rows_of(self->sizes, self->ndim, dim, f->args[index_arg].t, ts_dtype_sizes[self->dtype]);
    if (!find_steps(&r, self, dim))
        return gather(f);
    TS_TRY(check_range(f, index_arg, r.n));
    r.from = self->data;
    r.to = f->rets[0].t->data;
    static const ts_parallel_body bodies[17] = {[1] = select_1, [2] = select_2, [4] = select_4,
                                                [8] = select_8, [16] = select_16};
    ts_parallel_body body = r.bytes <= 16 && bodies[r.bytes] ? bodies[r.bytes] : select_any;
    if (r.bytes && r.count)
        ts_parallel_for(r.outer * r.count, TS_CPU_GRAIN(1) * 4 / r.bytes + 1, body, &r);
    return TS_OK;
}

static ts_status embedding(ts_frame *f) { return run_select(f, 1, 0); }

/* A task is a strip of the destination, one cache line wide, over all its rows; so threads do not
 * write the same elements. */
#define ADD_ROWS(T, name)                                                                          \
    enum { name##_strip = 64 / sizeof(T) };                                                        \
    static void name(void *ctx, int64_t begin, int64_t end)                                        \
    {                                                                                              \
        const rows *r = ctx;                                                                       \
        int64_t strips = ts_ceil_div(r->inner, name##_strip);                                      \
        while (begin < end) {                                                                      \
            int64_t o = begin / strips, first = begin % strips;                                    \
            int64_t many = ts_min64(strips - first, end - begin);                                  \
            int64_t c = first * name##_strip, w = ts_min64(many * name##_strip, r->inner - c);     \
            T *to = (T *)r->to + o * r->n * r->inner + c;                                          \
            const T *from = (const T *)r->from + o * r->count * r->inner + c;                      \
            for (int64_t i = 0; r->zero && i < r->n; i++)                                          \
                memset(to + i * r->inner, 0, (size_t)w * sizeof(T));                               \
            for (int64_t k = 0; k < r->count; k++) {                                               \
                int64_t i = at(r->index, k);                                                       \
                if (i == r->skip)                                                                  \
                    continue;                                                                      \
                T *row = to + i * r->inner;                                                        \
                const T *add = from + k * r->inner;                                                \
                for (int64_t j = 0; j < w; j++)                                                    \
                    row[j] = (T)(row[j] + add[j]);                                                 \
            }                                                                                      \
            begin += many;                                                                         \
        }                                                                                          \
    }
ADD_ROWS(float, add_rows_f32)
ADD_ROWS(double, add_rows_f64)
ADD_ROWS(uint64_t, add_rows_i64)
ADD_ROWS(uint32_t, add_rows_i32)
ADD_ROWS(uint8_t, add_rows_u8)

#define ADDABLE (TS_DT_FLOATS | TS_DT(TS_I64) | TS_DT(TS_I32) | TS_DT(TS_U8))

static void run_add(const rows *r, ts_dtype dtype, int item)
{
    static const ts_parallel_body bodies[TS_DTYPE_COUNT] = {
        [TS_F32] = add_rows_f32, [TS_F64] = add_rows_f64, [TS_I64] = add_rows_i64,
        [TS_I32] = add_rows_i32, [TS_U8] = add_rows_u8,
    };
    int64_t strip = 64 / item, down = r->count + (r->zero ? r->n : 0);
    if (r->inner && r->outer)
        ts_parallel_for(r->outer * ts_ceil_div(r->inner, strip),
                        TS_CPU_GRAIN(2) / (strip * down + 1) + 1, bodies[dtype], (void *)r);
}

static ts_status embedding_backward(ts_frame *f)
{
    const ts_tensor *g = f->args[0].t;
    ts_tensor *out = f->rets[0].t;
    int item = ts_dtype_sizes[g->dtype];
    TS_TRY(check_range(f, 1, out->sizes[0]));
    rows r = rows_of(out->sizes, 2, 0, f->args[1].t, item);
    r.from = g->data;
    r.to = out->data;
    r.skip = f->args[3].i;
    r.zero = true;
    run_add(&r, (ts_dtype)g->dtype, item);
    return TS_OK;
}

/** Copies self to out, unless they share memory. */
static void start_from(ts_tensor *out, const ts_tensor *self)
{
    if (out->data != self->data)
        ts_cpu_copy_to(out, self);
}

/** Runs a kernel on contiguous copies of the arguments from 2 to `last`, and, unless last is 2,
 * with a contiguous result. */
static ts_status with_packed(ts_frame *f, ts_kernel kernel, int last)
{
    ts_tensor *out = f->rets[0].t;
    bool direct = last == 2 || (out->flags & TS_TENSOR_CONTIGUOUS), packed = direct;
    for (int i = 2; i <= last; i++)
        packed = packed && (f->args[i].t->flags & TS_TENSOR_CONTIGUOUS);
    if (packed)
        return kernel(f);
    TS_SCOPE;
    ts_value args[4], made = f->rets[0];
    ts_frame inner = *f;
    memcpy(args, f->args, sizeof args);
    for (int i = 2; i <= last; i++)
        TS_TRY(args[i].t = ts_contiguous(f->args[i].t));
    if (!direct)
        TS_TRY(made.t = ts_tensor_new(f->thread, (ts_dtype)out->dtype, out->sizes, out->ndim,
                                      out->storage->device));
    inner.args = args;
    inner.rets = &made;
    ts_status status = kernel(&inner);
    if (!direct) {
        if (status == TS_OK)
            ts_cpu_copy_to(out, made.t);
        ts_tensor_unref(made.t);
    }
    return status;
}

static ts_status index_add_packed(ts_frame *f)
{
    const ts_tensor *self = f->args[0].t;
    ts_tensor *out = f->rets[0].t;
    int item = ts_dtype_sizes[self->dtype];
    rows r = rows_of(self->sizes, self->ndim, f->plan->dim, f->args[2].t, item);
    TS_TRY(check_range(f, 2, r.n));
    start_from(out, self);
    r.from = f->args[3].t->data;
    r.to = out->data;
    run_add(&r, (ts_dtype)self->dtype, item);
    return TS_OK;
}

static ts_status index_add(ts_frame *f) { return with_packed(f, index_add_packed, 3); }

/* ------------------------------------------------------------------------ lines by index ---- */

/**
 * The index tensor viewed as lines along the indexed dim. One thread processes a whole line,
 * because only elements of the same line can address the same element. Neighbouring lines are
 * processed together, so memory is read in order.
 */
typedef struct lines {
    char *indexed;       /* self of gather, result of the scatters */
    char *plain;         /* result of gather, src of the scatters */
    indices index;
    int ndim;            /* of lines: all dims except the indexed one, innermost first */
    int64_t length;      /* of a line */
    int64_t sizes[TS_MAX_DIMS];
    int64_t to_indexed[TS_MAX_DIMS], to_plain[TS_MAX_DIMS], to_index[TS_MAX_DIMS]; /* strides */
    int64_t along_indexed, along_plain, along_index;
} lines;

/** Lines that are processed together: offsets of the first line in elements, and their number. */
typedef struct bundle {
    int64_t indexed, plain, index, many;
} bundle;

/** The loops over a bundle; steps in elements. */
typedef struct span {
    int64_t rows, columns, step, p_row, p_column, q_row, q_column, index_row, index_column;
} span;

VEC_FN bundle bundle_at(const lines *l, int64_t line, int64_t end)
{
    bundle b = {0, 0, 0, ts_min64(l->sizes[0] - line % l->sizes[0], end - line)};
    for (int d = 0; d < l->ndim; d++) {
        int64_t i = line % l->sizes[d];
        line /= l->sizes[d];
        b.indexed += i * l->to_indexed[d];
        b.plain += i * l->to_plain[d];
        b.index += i * l->to_index[d];
    }
    return b;
}

/*
 * todo: a statement on *p, the indexed element, and *q, the element at the index's position. The
 * inner loop runs along a line if there is one line, or if the strides of index and plain elements
 * along it are smaller than those between lines; else across the lines. In both cases the elements
 * of a line are processed in order.
 */
#define LINES(T, name, todo)                                                                       \
    static void name(void *ctx, int64_t begin, int64_t end)                                        \
    {                                                                                              \
        const lines *l = ctx;                                                                      \
        bool along = l->sizes[0] == 1 ||                                                           \
                     l->along_index + l->along_plain < l->to_index[0] + l->to_plain[0];            \
        while (begin < end) {                                                                      \
            bundle b = bundle_at(l, begin, end);                                                   \
            span s = {.rows = along ? b.many : l->length, .columns = along ? l->length : b.many,   \
                      .step = l->along_indexed,                                                    \
                      .p_row = along ? l->to_indexed[0] : 0,                                       \
                      .p_column = along ? 0 : l->to_indexed[0],                                    \
                      .q_row = along ? l->to_plain[0] : l->along_plain,                            \
                      .q_column = along ? l->along_plain : l->to_plain[0],                         \
                      .index_row = along ? l->to_index[0] : l->along_index,                        \
                      .index_column = along ? l->along_index : l->to_index[0]};                    \
            T *indexed = (T *)l->indexed + b.indexed, *plain = (T *)l->plain + b.plain;            \
            if (l->index.wide)                                                                     \
                LINES_OF(T, int64_t, todo)                                                         \
            else                                                                                   \
                LINES_OF(T, int32_t, todo)                                                         \
            begin += b.many;                                                                       \
        }                                                                                          \
    }
#define LINES_OF(T, I, todo)                                                                       \
    {                                                                                              \
        const I *index = (const I *)l->index.data + b.index;                                       \
        bool dense = s.index_column == 1 && s.q_column == 1 && !s.p_column;                        \
        int64_t step = s.step, n = s.columns; /* copies, because stores of bytes may alias s */    \
        for (int64_t r = 0; r < s.rows; r++) {                                                     \
            const I *each = index + r * s.index_row;                                               \
            T *row = plain + r * s.q_row, *base = indexed + r * s.p_row;                           \
            for (int64_t c = 0; dense && c < n; c++) {                                             \
                T *p = base + each[c] * step, *q = row + c;                                        \
                todo;                                                                              \
            }                                                                                      \
            for (int64_t c = 0; !dense && c < n; c++) {                                            \
                T *p = base + each[c * s.index_column] * step + c * s.p_column;                    \
                T *q = row + c * s.q_column;                                                       \
                todo;                                                                              \
            }                                                                                      \
        }                                                                                          \
    }
LINES(uint8_t, gather_1, *q = *p)
LINES(uint16_t, gather_2, *q = *p)
LINES(uint32_t, gather_4, *q = *p)
LINES(uint64_t, gather_8, *q = *p)
LINES(uint8_t, scatter_1, *p = *q)
LINES(uint16_t, scatter_2, *p = *q)
LINES(uint32_t, scatter_4, *p = *q)
LINES(uint64_t, scatter_8, *p = *q)
LINES(float, scatter_add_f32, *p += *q)
LINES(double, scatter_add_f64, *p += *q)
LINES(uint64_t, scatter_add_i64, *p += *q)
LINES(uint32_t, scatter_add_i32, *p += *q)
LINES(uint8_t, scatter_add_u8, *p = (uint8_t)(*p + *q))

/** Runs a body over all lines. If plain is NULL, *number replaces each of its elements. An index
 * with fewer dims than the indexed tensor is one line, which all lines of plain use. */
static void run_lines(const ts_frame *f, ts_tensor *indexed, const ts_tensor *plain, char *number,
                      ts_parallel_body body)
{
    const ts_tensor *index = f->args[2].t;
    bool alone = index->ndim < indexed->ndim;
    const ts_tensor *shape = alone ? plain : index;
    int64_t dim = f->plan->dim;
    lines l = {.indexed = indexed->data, .plain = plain ? plain->data : number,
               .index = indices_of(index), .length = 1};
    if (!shape->numel)
        return;
    for (int d = shape->ndim - 1; d >= 0; d--) {
        if (d == dim) {
            l.length = shape->sizes[d];
            l.along_indexed = indexed->strides[d];
            l.along_plain = plain ? plain->strides[d] : 0;
            l.along_index = alone ? 1 : index->strides[d];
            continue;
        }
        l.sizes[l.ndim] = shape->sizes[d];
        l.to_indexed[l.ndim] = indexed->strides[d];
        l.to_plain[l.ndim] = plain ? plain->strides[d] : 0;
        l.to_index[l.ndim++] = alone ? 0 : index->strides[d];
    }
    if (!l.ndim)
        l.sizes[l.ndim++] = 1;
    ts_parallel_for(shape->numel / l.length, TS_CPU_GRAIN(4) / l.length + 1, body, &l);
}

/** Exclusive bound of the indices: the size of the indexed dim, 1 for a 0-dim tensor. */
static int64_t bound_of(const ts_frame *f)
{
    const ts_tensor *self = f->args[0].t;
    return self->ndim ? self->sizes[f->plan->dim] : 1;
}

static ts_status gather(ts_frame *f)
{
    static const ts_parallel_body bodies[9] = {
        [1] = gather_1, [2] = gather_2, [4] = gather_4, [8] = gather_8};
    ts_tensor *self = f->args[0].t;
    TS_TRY(check_range(f, 2, bound_of(f)));
    run_lines(f, self, f->rets[0].t, NULL, bodies[ts_dtype_sizes[self->dtype]]);
    return TS_OK;
}

static ts_status index_select(ts_frame *f) { return run_select(f, 2, f->plan->dim); }

static ts_status scatter_packed(ts_frame *f)
{
    static const ts_parallel_body bodies[9] = {
        [1] = scatter_1, [2] = scatter_2, [4] = scatter_4, [8] = scatter_8};
    const ts_tensor *self = f->args[0].t;
    ts_tensor *out = f->rets[0].t;
    bool one = f->args[3].tag != TS_TAG_TENSOR;
    uint64_t number = 0;
    TS_TRY(check_range(f, 2, bound_of(f)));
    if (one)
        ts_scalar_store(&f->args[3], (ts_dtype)self->dtype, &number);
    start_from(out, self);
    run_lines(f, out, one ? NULL : f->args[3].t, (char *)&number,
              bodies[ts_dtype_sizes[self->dtype]]);
    return TS_OK;
}

static ts_status scatter_add_packed(ts_frame *f)
{
    static const ts_parallel_body bodies[TS_DTYPE_COUNT] = {
        [TS_F32] = scatter_add_f32, [TS_F64] = scatter_add_f64, [TS_I64] = scatter_add_i64,
        [TS_I32] = scatter_add_i32, [TS_U8] = scatter_add_u8,
    };
    const ts_tensor *self = f->args[0].t;
    ts_tensor *out = f->rets[0].t;
    TS_TRY(check_range(f, 2, bound_of(f)));
    start_from(out, self);
    run_lines(f, out, f->args[3].t, NULL, bodies[self->dtype]);
    return TS_OK;
}

static ts_status scatter(ts_frame *f) { return with_packed(f, scatter_packed, 2); }
static ts_status scatter_add(ts_frame *f) { return with_packed(f, scatter_add_packed, 2); }

typedef struct one_hot_job {
    indices index;
    int64_t classes, *out;
} one_hot_job;
enum { ZEROED = 4096 }; /* elements that are cleared together: they stay in the L1 cache */

static void one_hot_rows(void *ctx, int64_t begin, int64_t end)
{
    const one_hot_job *job = ctx;
    int64_t together = ts_max64(1, ZEROED / job->classes);
    for (int64_t k = begin; k < end;) {
        int64_t stop = ts_min64(k + together, end), *out = job->out + k * job->classes;
        memset(out, 0, (size_t)((stop - k) * job->classes) * sizeof *out);
        for (; k < stop; k++, out += job->classes)
            out[at(job->index, k)] = 1;
    }
}

static ts_status one_hot(ts_frame *f)
{
    const ts_tensor *index = f->args[0].t;
    one_hot_job job = {indices_of(index), f->args[1].i, (int64_t *)f->rets[0].t->data};
    TS_TRY(check_range(f, 0, job.classes));
    if (index->numel)
        ts_parallel_for(index->numel, TS_CPU_GRAIN(1) / job.classes + 1, one_hot_rows, &job);
    return TS_OK;
}

TS_CPU_FAMILY(index,
    {TS_OP_embedding, embedding, {0, 0}},
    {TS_OP_embedding_backward, embedding_backward, {ADDABLE, 0}},
    {TS_OP_index_select, index_select, {0, 0}},
    {TS_OP_index_add, index_add, {ADDABLE, TS_TAKES_STRIDES}},
    {TS_OP_gather, gather, {0, 0}},
    {TS_OP_scatter, scatter, {0, TS_TAKES_STRIDES}},
    {TS_OP_scatter_add, scatter_add, {ADDABLE, TS_TAKES_STRIDES}},
    {TS_OP_one_hot, one_hot, {0, 0}})
