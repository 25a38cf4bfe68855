/**
 * @file optim.c  Update rules over lists of tensors.
 *
 * All elements of a list form one range that is divided evenly among threads, independent of tensor
 * boundaries. Non-contiguous tensors, and bf16 and f16, which compute in f32, are copied through
 * small buffers in row-major order, so the arithmetic is the same for every layout.
 */
// SPDX-License-Identifier: MIT
#include "backends/cpu/copy.h"
#include "core/parallel.h"
#include "ops/kernel.h"

#define TS_REAL 64
#include "backends/cpu/fold_real.h"
#undef TS_REAL

enum {
    LISTS = 4,     /* most lists of a rule */
    STAGED = 256,  /* elements a buffer holds */
    BLOCK = 8192,  /* elements that one partial sum of a norm covers */
    NUMBERS = 9    /* numbers that a rule computes once per tensor */
};

/** An update over lists: list k is args[k]; `written` lists are stored back. */
typedef struct job {
    const ts_value *args;
    int lists;
    unsigned written;
    int64_t n;           /* tensors per list */
    int64_t *starts;     /* (n + 1): first index of tensor i in the common range */
    const int64_t *steps;    /* step number of each tensor; NULL for rules without steps */
    const ts_value *skipped; /* list of f32 counts of skipped steps per tensor, or absent */
    /** Computes the numbers of tensor i, before its elements are updated; NULL for no numbers. */
    void (*prepare)(struct job *job, int64_t i);
    /** Updates n contiguous elements of tensor i. data[k] are those of list k, in the dtype of
     *  compute_of(). */
    void (*update)(const struct job *job, int64_t i, void *const *data, int64_t n);
    double numbers[NUMBERS];
    double lr, beta1, beta2, eps, decay, momentum, dampening;
    double factor;       /* factor of the gradients, or of the elements for scale and unscale */
    bool decoupled, nesterov;
    bool stored;         /* update() computes on the stored dtypes, without conversion to f32 */
    double *sums;        /* partial sums of a norm, one per block */
    bool *found;         /* set by any thread that computes a non-finite product */
} job;

/* -------------------------------------------------------------- elements of any layout ---- */

/** Byte offset in t->data of the element with row-major index `at`. */
static int64_t byte_offset(const ts_tensor *t, int64_t at)
{
    int64_t offset = 0;
    for (int d = t->ndim - 1; d >= 0; d--) {
        offset += at % t->sizes[d] * t->strides[d];
        at /= t->sizes[d];
    }
    return offset * ts_dtype_sizes[t->dtype];
}

static void gather(const ts_tensor *t, int64_t first, int64_t n, char *buffer)
{
    int item = ts_dtype_sizes[t->dtype];
    for (int64_t i = 0; i < n; i++)
        memcpy(buffer + i * item, t->data + byte_offset(t, first + i), (size_t)item);
}

static void scatter(const ts_tensor *t, int64_t first, int64_t n, const char *buffer)
{
    int item = ts_dtype_sizes[t->dtype];
    for (int64_t i = 0; i < n; i++)
        memcpy(t->data + byte_offset(t, first + i), buffer + i * item, (size_t)item);
}

/** Copies n <= STAGED elements of t to `to`, converted to `compute`: from row-major index `first`,
 *  or with `flat` from index `first` of the memory. store() copies back. */
static void load(const ts_tensor *t, bool flat, int64_t first, int64_t n, ts_dtype compute,
                 void *to)
{
    int item = ts_dtype_sizes[t->dtype];
    double raw[STAGED];
    char *from = t->data + first * item;
    if (!flat) {
        gather(t, first, n, (char *)raw);
        from = (char *)raw;
    }
    if (t->dtype == compute)
        memcpy(to, from, (size_t)(n * item));
    else
        TS_V(ts_cpu_copy_loop)(compute, (ts_dtype)t->dtype)(
            (char *[]){to, from}, (int64_t[]){ts_dtype_sizes[compute], item}, n, NULL);
}

static void store(const ts_tensor *t, bool flat, int64_t first, int64_t n, ts_dtype compute,
                  void *from)
{
    int item = ts_dtype_sizes[t->dtype];
    double raw[STAGED];
    char *to = flat ? t->data + first * item : (char *)raw;
    if (t->dtype == compute)
        memcpy(to, from, (size_t)(n * item));
    else
        TS_V(ts_cpu_copy_loop)((ts_dtype)t->dtype, compute)(
            (char *[]){to, from}, (int64_t[]){item, ts_dtype_sizes[compute]}, n, NULL);
    if (!flat)
        scatter(t, first, n, to);
}

/** Dtype in which update() receives the tensors i of all lists: the stored dtype with `stored`;
 *  else f64 for f64, and f32 for other dtypes. */
static ts_dtype compute_of(const job *j, int64_t i)
{
    ts_dtype dtype = (ts_dtype)j->args[0].list[i]->dtype;
    return j->stored || dtype == TS_F64 ? dtype : TS_F32;
}

/** True if the tensors i of all lists are dense in one order: contiguous, or channels-last. */
static bool is_flat(const job *j, int64_t i)
{
    const ts_tensor *first = j->args[0].list[i];
    bool contiguous = first->flags & TS_TENSOR_CONTIGUOUS;
    for (int k = 0; k < j->lists; k++) {
        const ts_tensor *t = j->args[k].list[i];
        if (contiguous ? !(t->flags & TS_TENSOR_CONTIGUOUS) : !ts_is_dense_last(t))
            return false;
    }
    return true;
}

/** Updates the elements [first, first + n) of tensor i of each list. */
static void update_part(job *j, int64_t i, int64_t first, int64_t n)
{
    void *data[LISTS];
    if (j->prepare)
        j->prepare(j, i);
    ts_dtype compute = compute_of(j, i);
    bool together = j->written && is_flat(j, i); /* sums keep the row-major order */
    unsigned staged = 0, flat = 0; /* bit k: list k is copied through a buffer; its `flat` */
    for (int k = 0; k < j->lists; k++) {
        const ts_tensor *t = j->args[k].list[i];
        flat |= (unsigned)(together || (t->flags & TS_TENSOR_CONTIGUOUS)) << k;
        if (!(flat >> k & 1) || t->dtype != compute)
            staged |= 1u << k;
    }
    double buffers[LISTS][STAGED];
    for (int64_t m; n > 0; first += m, n -= m) {
        m = staged ? ts_min64(n, STAGED) : n;
        for (int k = 0; k < j->lists; k++) {
            const ts_tensor *t = j->args[k].list[i];
            data[k] = staged >> k & 1 ? (void *)buffers[k]
                                      : t->data + first * ts_dtype_sizes[t->dtype];
            if (staged >> k & 1)
                load(t, flat >> k & 1, first, m, compute, buffers[k]);
        }
        j->update(j, i, data, m);
        for (int k = 0; k < j->lists; k++)
            if (j->written & staged & 1u << k)
                store(j->args[k].list[i], flat >> k & 1, first, m, compute, buffers[k]);
    }
}

/** Index of the tensor that holds element `at` of the common range. */
static int64_t member_at(const int64_t *starts, int64_t n, int64_t at)
{
    int64_t low = 0, high = n - 1;
    while (low < high) {
        int64_t middle = low + (high - low + 1) / 2;
        if (starts[middle] <= at)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static void update_range(void *ctx, int64_t begin, int64_t end)
{
    job j = *(const job *)ctx; /* a copy, because threads prepare different tensors */
    for (int64_t i = member_at(j.starts, j.n, begin); begin < end; i++) {
        int64_t stop = ts_min64(j.starts[i + 1], end);
        if (stop > begin)
            update_part(&j, i, begin - j.starts[i], stop - begin);
        begin = ts_max64(begin, stop);
    }
}

static size_t starts_bytes(const ts_frame *f)
{
    return ((size_t)f->args[0].count + 1) * sizeof(int64_t);
}

/** Start of each tensor of list 0, and the end, in blocks of `unit` elements: count + 1 numbers,
 *  which the caller frees. NULL with TS_ERR_MEMORY. */
static int64_t *make_starts(ts_frame *f, int64_t unit)
{
    int64_t *starts = ts_alloc(f->thread, starts_bytes(f));
    if (!starts) {
        ts_error_memory("the offsets of a list's tensors", (int64_t)starts_bytes(f));
        return NULL;
    }
    starts[0] = 0;
    for (uint32_t k = 0; k < f->args[0].count; k++)
        starts[k + 1] = starts[k] + ts_ceil_div(f->args[0].list[k]->numel, unit);
    return starts;
}

static ts_status run(ts_frame *f, job *j, int cost)
{
    j->args = f->args;
    j->n = f->args[0].count;
    j->starts = make_starts(f, 1);
    TS_TRY(j->starts);
    ts_parallel_for(j->starts[j->n], TS_CPU_GRAIN(cost), update_range, j);
    ts_free(f->thread, j->starts, starts_bytes(f));
    return TS_OK;
}

/** True if the step must be skipped because args[guard] (`found`) is not 0. It then increments the
 *  counters in the list args[guard + 1] (`skipped`). */
static bool is_skipped(const ts_frame *f, int guard)
{
    const ts_value *found = &f->args[guard], *skipped = &f->args[guard + 1];
    if (found->tag != TS_TAG_TENSOR || *(const float *)found->t->data == 0)
        return false;
    for (uint32_t i = 0; i < skipped->count; i++)
        *(float *)skipped->list[i]->data += 1;
    return true;
}

/** Step number of tensor i, from 1, without its skipped steps. */
static int64_t step_of(const job *j, int64_t i)
{
    return j->steps[i] - (j->skipped->tag == TS_TAG_TENSORS
                              ? (int64_t)*(const float *)j->skipped->list[i]->data
                              : 0);
}

/** The factor of the gradients in a step: args[arg], an f32 tensor, or 1, which is exact. */
static double grad_scale(const ts_frame *f, int arg)
{
    return f->args[arg].tag == TS_TAG_TENSOR ? (double)*(const float *)f->args[arg].t->data : 1;
}

#define IS_F32(j, i) (compute_of(j, i) == TS_F32)

/* ------------------------------------------------------------------------------- adamw ---- */

/* One source for f32 and f64: T scalar, V vector, p prefix, L lanes. c: the numbers that
 * adamw_prepare() computes. The moving average of the gradients is interpolated from the nearer
 * end, like lerp. */
#define ADAMW(T, V, p, L, name)                                                               \
    VEC_FN void name##_lanes(T *param, const T *grad, T *m, T *v, int64_t n, const T *c,      \
                             bool decoupled)                                                  \
    {                                                                                         \
        V x = p##_load_n(param, n), g = p##_set1(c[7]) * p##_load_n(grad, n);                 \
        V a = p##_load_n(m, n), b = p##_load_n(v, n);                                         \
        if (decoupled)                                                                        \
            x = x * p##_set1(c[0]);                                                           \
        else if (c[0] != 0) /* must not read x, which may be infinite */                      \
            g = p##_fma(p##_set1(c[0]), x, g);                                                \
        a = c[1] < (T)0.5 ? p##_fma(p##_set1(c[1]), g - a, a)                                 \
                          : p##_fma(p##_set1(c[8]), a - g, g);                                \
        b = p##_fma(p##_set1(c[3]) * g, g, p##_set1(c[2]) * b);                               \
        V root = p##_fma(p##_sqrt(b), p##_set1(c[4]), p##_set1(c[5]));                        \
        p##_store_n(param, p##_fma(p##_set1(c[6]), a / root, x), n);                          \
        p##_store_n(m, a, n);                                                                 \
        p##_store_n(v, b, n);                                                                 \
    }                                                                                         \
    static void name(T *param, const T *grad, T *m, T *v, int64_t n, const double *numbers,  \
                     bool decoupled)                                                          \
    {                                                                                         \
        T c[NUMBERS];                                                                         \
        int64_t k = 0;                                                                        \
        for (int q = 0; q < NUMBERS; q++)                                                     \
            c[q] = (T)numbers[q];                                                             \
        for (; k + L <= n; k += L)                                                            \
            name##_lanes(param + k, grad + k, m + k, v + k, L, c, decoupled);                 \
        if (k < n)                                                                            \
            name##_lanes(param + k, grad + k, m + k, v + k, n - k, c, decoupled);             \
    }
ADAMW(float, vf, vf, VF_LANES, adamw_f32)
ADAMW(double, vd, vd, VD_LANES, adamw_f64)

static void adamw_prepare(job *j, int64_t i)
{
    double step = (double)step_of(j, i);
    double numbers[NUMBERS] = {j->decoupled ? 1 - j->lr * j->decay : j->decay,
                               1 - j->beta1,
                               j->beta2,
                               1 - j->beta2,
                               1 / sqrt(1 - pow(j->beta2, step)),
                               j->eps,
                               -j->lr / (1 - pow(j->beta1, step)),
                               j->factor,
                               j->beta1};
    memcpy(j->numbers, numbers, sizeof numbers);
}

static void adamw_update(const job *j, int64_t i, void *const *data, int64_t n)
{
    if (IS_F32(j, i))
        adamw_f32(data[0], data[1], data[2], data[3], n, j->numbers, j->decoupled);
    else
        adamw_f64(data[0], data[1], data[2], data[3], n, j->numbers, j->decoupled);
}

static ts_status adamw(ts_frame *f)
{
    job j = {.lists = 4,
             .written = 1 | 4 | 8,
             .steps = f->args[4].ints,
             .prepare = adamw_prepare,
             .update = adamw_update,
             .lr = f->args[5].d,
             .beta1 = f->args[6].d,
             .beta2 = f->args[7].d,
             .eps = f->args[8].d,
             .decay = f->args[9].d,
             .decoupled = f->args[10].i,
             .skipped = &f->args[12],
             .factor = grad_scale(f, 13)};
    return is_skipped(f, 11) ? TS_OK : run(f, &j, 4);
}

/* --------------------------------------------------------------------------------- sgd ---- */

/* T: the elements; C: their compute type; kind: as for SCALE. */
#define SGD(T, V, p, L, kind, C, name)                                                             \
    VEC_FN void name##_lanes(T *param, const T *grad, T *buffer, int64_t n, const C *c,            \
                             bool first, bool nesterov)                                            \
    {                                                                                              \
        V x = p##_load##kind##_n(param, n);                                                        \
        V g = p##_set1(c[4]) * p##_load##kind##_n(grad, n);                                        \
        if (c[0] != 0) /* must not read x, which may be infinite */                                \
            g = p##_fma(p##_set1(c[0]), x, g);                                                     \
        if (buffer) {                                                                              \
            V b = g;                                                                               \
            if (!first)                                                                            \
                b = p##_fma(p##_set1(c[1]), p##_load##kind##_n(buffer, n), p##_set1(c[2]) * g);    \
            p##_store##kind##_n(buffer, b, n);                                                     \
            g = nesterov ? p##_fma(p##_set1(c[1]), b, g) : b;                                      \
        }                                                                                          \
        p##_store##kind##_n(param, p##_fma(p##_set1(c[3]), g, x), n);                              \
    }                                                                                              \
    static void name(T *param, const T *grad, T *buffer, int64_t n, const job *j, bool first)      \
    {                                                                                              \
        C c[5] = {(C)j->decay, (C)j->momentum, (C)(1 - j->dampening), (C)-j->lr, (C)j->factor};    \
        int64_t k = 0;                                                                             \
        for (; k + L <= n; k += L)                                                                 \
            name##_lanes(param + k, grad + k, buffer ? buffer + k : NULL, L, c, first,             \
                         j->nesterov);                                                             \
        if (k < n)                                                                                 \
            name##_lanes(param + k, grad + k, buffer ? buffer + k : NULL, n - k, c, first,         \
                         j->nesterov);                                                             \
    }
SGD(float, vf, vf, VF_LANES, , float, sgd_f32)
SGD(double, vd, vd, VD_LANES, , double, sgd_f64)
SGD(uint16_t, vf, vf, VF_LANES, _bf16, float, sgd_bf16)
SGD(uint16_t, vf, vf, VF_LANES, _f16, float, sgd_f16)

static void sgd_update(const job *j, int64_t i, void *const *data, int64_t n)
{
    void *buffer = j->lists == 3 ? data[2] : NULL;
    bool first = step_of(j, i) == 1;
    switch (compute_of(j, i)) {
    case TS_F64: sgd_f64(data[0], data[1], buffer, n, j, first); break;
    case TS_BF16: sgd_bf16(data[0], data[1], buffer, n, j, first); break;
    case TS_F16: sgd_f16(data[0], data[1], buffer, n, j, first); break;
    default: sgd_f32(data[0], data[1], buffer, n, j, first);
    }
}

/** True if the tensors of each index have one dtype, so that no list needs a conversion. */
static bool have_equal_dtypes(const ts_frame *f, int lists)
{
    for (uint32_t i = 0; i < f->args[0].count; i++)
        for (int k = 1; k < lists; k++)
            if (f->args[k].list[i]->dtype != f->args[0].list[i]->dtype)
                return false;
    return true;
}

static ts_status sgd(ts_frame *f)
{
    job j = {.lists = f->args[5].d != 0 ? 3 : 2,
             .written = 1 | 4,
             .steps = f->args[3].ints,
             .update = sgd_update,
             .stored = have_equal_dtypes(f, f->args[5].d != 0 ? 3 : 2),
             .lr = f->args[4].d,
             .momentum = f->args[5].d,
             .dampening = f->args[6].d,
             .decay = f->args[7].d,
             .nesterov = f->args[8].i,
             .skipped = &f->args[10],
             .factor = grad_scale(f, 11)};
    return is_skipped(f, 9) ? TS_OK : run(f, &j, 3);
}

/* ------------------------------------------------------------------------------- scale ---- */

/* Multiplies n elements by factor; returns whether a stored product is not finite: its magnitude is
 * not below `limit`, the least that rounds to infinity. p, m: prefixes of vectors and masks; kind:
 * _bf16, _f16 or nothing. */
#define SCALE(T, V, p, m, L, kind, C, name, limit)                                                 \
    static bool name(T *x, int64_t n, C factor)                                                    \
    {                                                                                              \
        V by = p##_set1(factor), top = p##_set1(limit), odd = p##_zero(), one = p##_set1(1);       \
        int64_t k = 0;                                                                             \
        for (; k + L <= n; k += L) {                                                               \
            V y = p##_load##kind(x + k) * by;                                                      \
            odd = p##_select(p##_lt(p##_abs(y), top), odd, one);                                   \
            p##_store##kind(x + k, y);                                                             \
        }                                                                                          \
        if (k < n) {                                                                               \
            V y = p##_load##kind##_n(x + k, n - k) * by;                                           \
            p##_store##kind##_n(x + k, y, n - k);                                                  \
            m unused = m##_not(m##_first_n(n - k)); /* NaN if the factor is infinite */            \
            odd = p##_select(m##_or(unused, p##_lt(p##_abs(y), top)), odd, one);                   \
        }                                                                                          \
        return p##_hsum(odd) != 0;                                                                 \
    }
SCALE(float, vf, vf, vm, VF_LANES, , float, scale_f32, INFINITY)
SCALE(double, vd, vd, vdm, VD_LANES, , double, scale_f64, (double)INFINITY)
SCALE(uint16_t, vf, vf, vm, VF_LANES, _bf16, float, scale_bf16, 0x1.ffp127f)
SCALE(uint16_t, vf, vf, vm, VF_LANES, _f16, float, scale_f16, 65520.0f)

static bool scale_part(const job *j, int64_t i, void *data, int64_t n)
{
    float factor = (float)j->factor;
    switch (j->args[0].list[i]->dtype) {
    case TS_F64: return scale_f64(data, n, j->factor);
    case TS_BF16: return scale_bf16(data, n, factor);
    case TS_F16: return scale_f16(data, n, factor);
    default: return scale_f32(data, n, factor);
    }
}

static void scale_update(const job *j, int64_t i, void *const *data, int64_t n)
{
    if (scale_part(j, i, data[0], n) && j->found)
        __atomic_store_n(j->found, true, __ATOMIC_RELAXED);
}

static double number_of(const ts_value *v)
{
    if (v->tag == TS_TAG_TENSOR) {
        double x;
        load(v->t, true, 0, 1, TS_F64, &x);
        return x;
    }
    return v->tag == TS_TAG_FLOAT ? v->d : (double)v->i;
}

static ts_status scale(ts_frame *f)
{
    job j = {.lists = 1, .written = 1, .stored = true, .update = scale_update,
             .factor = number_of(&f->args[1])};
    return run(f, &j, 1);
}

static ts_status unscale(ts_frame *f)
{
    bool found = false;
    job j = {.lists = 1, .written = 1, .stored = true, .update = scale_update,
             .factor = number_of(&f->args[1]), .found = &found};
    TS_TRY(run(f, &j, 1));
    *(float *)f->rets[0].t->data = found;
    return TS_OK;
}

static ts_status clip_norm(ts_frame *f)
{
    job j = {.lists = 1, .written = 1, .stored = true, .update = scale_update};
    j.factor = f->args[2].d / (number_of(&f->args[1]) + 1e-6);
    return j.factor >= 1 ? TS_OK : run(f, &j, 1); /* a NaN factor propagates to the gradients */
}

/* -------------------------------------------------------------------------------- norm ---- */

/** Sum of squares in f64, where squares of f32 are exact. Every variant uses 16 running sums. */
static double squares_f32(const float *x, int64_t n)
{
    enum { LOADS = 16 / VF_LANES };
    vd sums[2 * LOADS] = {0};
    for (int64_t k = 0; k < n; k += 16)
        for (int i = 0; i < LOADS; i++) {
            int64_t at = k + i * VF_LANES, left = ts_max64(n - at, 0);
            vf v = left >= VF_LANES ? vf_load(x + at) : vf_load_n(x + at, left);
            vd low = vf_widen_lo(v), high = vf_widen_hi(v);
            sums[2 * i] = vd_fma(low, low, sums[2 * i]);
            sums[2 * i + 1] = vd_fma(high, high, sums[2 * i + 1]);
        }
    for (int w = LOADS; w; w /= 2)
        for (int i = 0; i < w; i++)
            sums[i] += sums[i + w];
    return vd_hsum(sums[0]);
}

static void sum_update(const job *j, int64_t i, void *const *data, int64_t n)
{
    const char *x = data[0];
    int item = IS_F32(j, i) ? 4 : 8;
    /* in parts of STAGED elements, like the buffers of non-contiguous tensors: the same bits */
    for (; n > 0; n -= STAGED, x += STAGED * item) {
        int64_t m = ts_min64(n, STAGED);
        *j->sums +=
            IS_F32(j, i) ? squares_f32((const float *)x, m) : row_squares_f64((const double *)x, m);
    }
}

static void sum_blocks(void *ctx, int64_t begin, int64_t end)
{
    const job *j = ctx;
    int64_t i = member_at(j->starts, j->n, begin);
    for (int64_t b = begin; b < end; b++) {
        while (b >= j->starts[i + 1])
            i++;
        int64_t first = (b - j->starts[i]) * BLOCK;
        double sum = 0;
        job part = *j;
        part.sums = &sum;
        update_part(&part, i, first, ts_min64(BLOCK, j->args[0].list[i]->numel - first));
        j->sums[b] = sum;
    }
}

static ts_status global_norm(ts_frame *f)
{
    job j = {.args = f->args, .lists = 1, .n = f->args[0].count, .update = sum_update};
    j.starts = make_starts(f, BLOCK);
    TS_TRY(j.starts);
    int64_t blocks = j.starts[j.n];
    size_t bytes = (size_t)blocks * sizeof(double);
    j.sums = ts_alloc(f->thread, bytes);
    if (j.sums) {
        ts_parallel_for(blocks, TS_CPU_GRAIN(BLOCK), sum_blocks, &j);
        double sum = 0;
        for (int64_t b = 0; b < blocks; b++)
            sum += j.sums[b];
        ts_tensor *out = f->rets[0].t;
        if (out->dtype == TS_F32)
            *(float *)out->data = (float)sqrt(sum);
        else
            *(double *)out->data = sqrt(sum);
        ts_free(f->thread, j.sums, bytes);
    }
    ts_free(f->thread, j.starts, starts_bytes(f));
    return j.sums ? TS_OK : ts_error_memory("partial sums of a norm", (int64_t)bytes);
}

TS_CPU_FAMILY(optim,
    {TS_OP_adamw, adamw, {0, 1}},
    {TS_OP_sgd, sgd, {0, 1}},
    {TS_OP_global_norm, global_norm, {0, 1}},
    {TS_OP_scale, scale, {0, 1}},
    {TS_OP_unscale, unscale, {0, 1}},
    {TS_OP_clip_norm, clip_norm, {0, 1}})
