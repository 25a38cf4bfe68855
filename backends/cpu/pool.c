/**
 * @file pool.c
 * Max pooling and its gradient, for f64, f32, bf16 and f16. The second result of an op locates each
 * maximum: by its index in the plane (i64), or by its tap (u8), the index in its window.
 *
 *   channels-last             vectors of channels, pixel by pixel
 *   contiguous, few channels  for each row of windows: the maximum of each column and its row, then
 *                             the maximum over the columns of each window
 *   small contiguous planes   the planes are transposed and pooled as channels
 *
 * The gradient is added at the indices in a fixed order: one thread computes a plane, or CHANNELS
 * channels of a sample. So results do not depend on the number of threads.
 */
// SPDX-License-Identifier: MIT
#include "backends/cpu/axes.h"
#include "backends/cpu/loops.h"
#include "backends/cpu/pack.h"
#include "backends/cpu/slots.h"
#include "include/tessera/ops.h"

#include <math.h>
#include <stdatomic.h>

typedef struct pool_job {
    const void *x;
    void *y;
    int64_t *indices;       /* indices of the maxima in their planes, or NULL */
    uint8_t *taps;          /* taps of the maxima in their windows, or NULL */
    const void *added;      /* backward: a tensor like y that is added to the result, or NULL */
    int64_t planes, channels; /* channels-last: samples and channels; else all planes and 1 */
    ts_axis axis[3];
    bool last;              /* channels-last */
    bool in_order;          /* forward: the pixels of a window are read in the order of memory */
    int64_t block;          /* backward: channels per task */
    int64_t size, out;      /* elements of a plane of the forward op's argument and result */
    ts_slots *slots;        /* scratch memory */
    atomic_bool outside;    /* backward: an index is outside its plane, or a tap its window */
} pool_job;

enum { SMALL_PLANE = 1024 }; /* most elements of planes that are transposed */

/** Elements of a window along one dim that are inside the image: `count` elements from index
 *  `first`, `step` apart. `skipped` elements of the window precede them, in the padding. */
typedef struct window {
    int64_t first, count, step, skipped;
} window;
/** Window of element o of the result. */
TS_INLINE window window_of(const ts_axis *a, int64_t o)
{
    if (a->map == TS_AXIS_ADAPTIVE) {
        int64_t first = o * a->in / a->out;
        return (window){first, ts_ceil_div((o + 1) * a->in, a->out) - first, 1, 0};
    }
    if (a->map != TS_AXIS_WINDOW) /* an added dim of size 1 */
        return (window){0, 1, 1, 0};
    int64_t first = o * a->stride - a->padding, count = a->kernel, skipped = 0;
    if (first < 0) {
        skipped = ts_ceil_div(-first, a->dilation);
        first += skipped * a->dilation;
        count -= skipped;
    }
    int64_t most = first < a->in ? (a->in - 1 - first) / a->dilation + 1 : 0;
    count = ts_min64(count, most);
    return count > 0 ? (window){first, count, a->dilation, skipped} : (window){0, 0, 1, 0};
}

/** Number of elements of a window along a dim, padding included; 1 unless TS_AXIS_WINDOW. */
TS_INLINE int64_t kernel_of(const ts_axis *a) { return a->map == TS_AXIS_WINDOW ? a->kernel : 1; }

/** Tap of element (i, j, k) of the part of a window that is in the image. */
TS_INLINE int64_t tap_of(const ts_axis *a, window d, window h, window w, int64_t i, int64_t j,
                         int64_t k)
{
    return ((d.skipped + i) * kernel_of(&a[1]) + h.skipped + j) * kernel_of(&a[2]) + w.skipped + k;
}

/** Index in the plane of a window's tap; -1 if the tap is outside the window or the image. */
TS_INLINE int64_t index_of(const ts_axis *a, window d, window h, window w, int64_t tap)
{
    int64_t row = tap / kernel_of(&a[2]), k = tap % kernel_of(&a[2]) - w.skipped,
            j = row % kernel_of(&a[1]) - h.skipped, i = row / kernel_of(&a[1]) - d.skipped;
    if (i < 0 || i >= d.count || j < 0 || j >= h.count || k < 0 || k >= w.count)
        return -1;
    return ((d.first + i * d.step) * a[1].in + h.first + j * h.step) * a[2].in + w.first +
           k * w.step;
}

/** Stores the location of a maximum as element `to` of the indices or taps. row: index of its line
 *  in the plane, inside windows d and h. column: its index in the line. tap: its tap along the last
 *  dim. */
TS_INLINE void store_maximum(const pool_job *job, int64_t to, window d, window h, int64_t row,
                             int64_t column, int64_t tap)
{
    const ts_axis *a = job->axis;
    if (job->indices)
        job->indices[to] = row * a[2].in + column;
    if (job->taps)
        job->taps[to] = (uint8_t)tap_of(a, d, h, (window){.skipped = tap},
                                        (row / a[1].in - d.first) / d.step,
                                        (row % a[1].in - h.first) / h.step, 0);
}

/** Number of padding columns before a line. */
TS_INLINE int64_t padding_of(const ts_axis *a)
{
    return a->map == TS_AXIS_WINDOW ? a->padding : 0;
}
TS_INLINE int64_t stride_of(const ts_axis *a) { return a->map == TS_AXIS_WINDOW ? a->stride : 1; }
/** Number of columns of a line, including the padding that windows read. */
TS_INLINE int64_t columns_of(const ts_axis *a)
{
    if (a->map != TS_AXIS_WINDOW)
        return a->in;
    int64_t end = (a->out - 1) * a->stride + (a->kernel - 1) * a->dilation + 1;
    return ts_max64(a->padding + a->in, end);
}
/** True if a line of n channels is pooled window by window: windows differ in size, the results of
 * a few long windows would not fill a vector, or 32 bits do not hold the offsets of windows. */
TS_INLINE bool is_by_window(const ts_axis *a, int64_t n, int lanes)
{
    return a->map == TS_AXIS_ADAPTIVE || columns_of(a) > INT32_MAX / n ||
           (a->map == TS_AXIS_WINDOW && a->out * n < lanes && a->kernel >= 2 * lanes);
}

#define TS_REAL 32
#include "backends/cpu/pool_real.h"
#undef TS_REAL
#define TS_REAL 64
#include "backends/cpu/pool_real.h"
#undef TS_REAL

/** Decodes the call. Taps are numbered in the order of the dims, so for them dims are swapped only
 *  if that keeps their numbers. */
static ts_resampling axes_of(const ts_frame *f, bool taps)
{
    ts_resampling r = ts_kernel_resampling(f);
    const ts_axis *a = r.axis;
    bool renumbers = kernel_of(&a[2]) > 1 || (ts_axis_is_one(&a[1]) && kernel_of(&a[1]) > 1);
    return taps && renumbers ? r : ts_cpu_resampling(f);
}

/** Sets planes, channels, axes, sizes and layout of a job. The layout is channels-last if it is
 * that of all `count` tensors, one of which has dtype u8 if there are taps. */
static void describe(pool_job *job, const ts_frame *f, const ts_tensor *const *tensors, int count)
{
    bool taps = false;
    for (int i = 0; i < count; i++)
        taps = taps || tensors[i]->dtype == TS_U8;
    ts_resampling r = axes_of(f, taps);
    job->planes = r.planes;
    job->channels = 1;
    job->last = true;
    memcpy(job->axis, r.axis, sizeof job->axis);
    job->size = job->out = 1;
    for (int d = 0; d < 3; d++) {
        job->size *= job->axis[d].in;
        job->out *= job->axis[d].out;
    }
    for (int i = 0; i < count; i++)
        job->last = job->last && ts_is_last_image(&r, tensors[i]);
    if (job->last) {
        job->planes = tensors[0]->sizes[0];
        job->channels = tensors[0]->sizes[1];
    }
}

/** (self, ...) -> (maxima, indices or taps). TS_ERR_UNSUPPORTED for planes of 2^31 elements or
 *  more, TS_ERR_MEMORY. */
static ts_status max_pool(ts_frame *f)
{
    const ts_tensor *x = f->args[0].t, *y = f->rets[0].t,
                    *indices = f->rets[1].tag == TS_TAG_TENSOR ? f->rets[1].t : y;
    pool_job job = {.x = x->data, .y = y->data};
    describe(&job, f, (const ts_tensor *[]){x, y, indices}, 3);
    if (indices != y && indices->dtype == TS_U8)
        job.taps = (uint8_t *)indices->data;
    else if (indices != y)
        job.indices = (int64_t *)(void *)indices->data;
    static const ts_parallel_body bodies[] = {[TS_F64] = pool_rows_f64, [TS_F32] = pool_rows_f32,
                                              [TS_BF16] = pool_rows_bf16, [TS_F16] = pool_rows_f16};
    static const ts_parallel_body by_planes[] = {
        [TS_F64] = pool_small_f64, [TS_F32] = pool_small_f32, [TS_BF16] = pool_small_bf16,
        [TS_F16] = pool_small_f16};
    const ts_axis *a = job.axis;
    bool wide = f->plan->compute == TS_F64;
    int64_t lanes = wide ? VD_LANES : VF_LANES, item = wide ? 8 : 4, n = job.channels;
    /* pixels that windows share are rather kept in the L1 cache */
    job.in_order = n > PIXEL_VECTORS * lanes && stride_of(&a[2]) >= kernel_of(&a[2]) &&
                   x->numel * ts_dtype_sizes[x->dtype] >= TS_LARGE_IMAGE;
    int64_t rows = job.planes * a[0].out * a[1].out, cost = 4 * (a[2].in + a[2].out) * n;
    ts_slots slots;
    if (rows <= 0)
        return TS_OK;
    if (job.size > INT32_MAX) /* indices of f32 lanes have 32 bits */
        return ts_fail_arg(f, 0, TS_ERR_UNSUPPORTED,
                           "expected fewer than 2^31 elements per channel, got %lld",
                           (long long)job.size);
    bool few = a[2].in <= lanes || a[2].map == TS_AXIS_ADAPTIVE; /* results per line, for vectors */
    bool planes = n == 1 && few && job.planes >= lanes / 2 && job.size <= SMALL_PLANE &&
                  job.out <= SMALL_PLANE;
    int64_t bytes = 2 * (columns_of(&a[2]) * n + 2 * lanes) * item + (a[2].out * n + lanes) * 4;
    if (planes) {
        rows = ts_ceil_div(job.planes, lanes);
        cost = 4 * (job.size + job.out) * lanes;
        bytes = (job.size + job.out + ts_max64(job.size, job.out)) * lanes * item +
                8 * job.out * lanes;
    }
    TS_TRY(ts_slots_begin(f, &slots, rows, bytes, "rows of an image"));
    job.slots = &slots;
    ts_parallel_for(rows, TS_CPU_GRAIN(1) / (cost + 1) + 1,
                    (planes ? by_planes : bodies)[f->plan->compute], &job);
    ts_slots_end(f, &slots);
    return TS_OK;
}

/** Returns a tensor whose memory holds the elements of t (N, C, ...) in row-major order, or with
 *  `last` in channels-last order: t or a copy, which the current scope owns. NULL with an error. */
static ts_tensor *in_order(ts_tensor *t, bool last)
{
    int64_t order[TS_MAX_DIMS] = {0};
    for (int d = 1; d < t->ndim; d++)
        order[d] = d < t->ndim - 1 ? d + 1 : 1;
    return ts_contiguous(last ? ts_permute(t, order, t->ndim) : t);
}

/** Channels per task of a channels-last backward: all if each thread gets a sample, because whole
 *  pixels are cleared and added to faster. Results do not depend on it. Halves have few, whose sums
 *  fit in caches. */
static int64_t block_of(const pool_job *job, bool halves)
{
    return !halves && job->planes >= ts_num_threads() ? ts_max64(job->channels, 1) : CHANNELS;
}

/** (grad, indices or taps, ...) -> dx, plus `added` unless it is NULL. TS_ERR_INDEX if an index is
 *  outside its plane or a tap outside its window. */
static ts_status add_gradients(ts_frame *f, ts_tensor *added)
{
    TS_SCOPE;
    const ts_tensor *g = f->args[0].t, *indices = f->args[1].t, *y = f->rets[0].t;
    bool taps = indices->dtype == TS_U8;
    pool_job job = {.x = g->data, .y = y->data,
                    .indices = taps ? NULL : (int64_t *)(void *)indices->data,
                    .taps = taps ? (uint8_t *)indices->data : NULL};
    describe(&job, f, (const ts_tensor *[]){g, indices, y}, 3);
    if (added) {
        TS_TRY(added = in_order(added, job.last));
        job.added = added->data;
    }
    static const ts_parallel_body bodies[] = {[TS_F64] = pool_backward_f64,
                                              [TS_F32] = pool_backward_f32,
                                              [TS_BF16] = pool_backward_bf16,
                                              [TS_F16] = pool_backward_f16};
    bool halves = f->plan->compute == TS_BF16 || f->plan->compute == TS_F16;
    job.block = block_of(&job, halves);
    int64_t tasks = job.planes * ts_ceil_div(job.channels, job.block);
    int64_t some = ts_min64(job.channels, job.block);
    if (tasks <= 0)
        return TS_OK;
    ts_slots slots;
    int64_t floats = halves ? ts_max64(job.size * some, PLANES) : 0;
    TS_TRY(ts_slots_begin(f, &slots, tasks, 4 * floats, "planes of an image"));
    job.slots = &slots;
    ts_parallel_for(tasks, TS_CPU_GRAIN(2) / ((job.size + job.out) * some + 1) + 1,
                    bodies[f->plan->compute], &job);
    ts_slots_end(f, &slots);
    if (!atomic_load_explicit(&job.outside, memory_order_relaxed))
        return TS_OK;
    return taps ? ts_fail_arg(f, 1, TS_ERR_INDEX, "expected taps in their windows")
                : ts_fail_arg(f, 1, TS_ERR_INDEX, "expected indices from 0 to %lld",
                              (long long)job.size - 1);
}

static ts_status max_pool_backward(ts_frame *f) { return add_gradients(f, NULL); }
/** (grad, taps, added, ...) -> dx */
static ts_status max_pool_taps_backward(ts_frame *f)
{
    return add_gradients(f, f->args[2].tag == TS_TAG_TENSOR ? f->args[2].t : NULL);
}

#define FLOATS {TS_DT_FLOATS | TS_DT_HALVES, 0}
TS_CPU_FAMILY(pool,
    {TS_OP_max_pool, max_pool, FLOATS},
    {TS_OP_adaptive_max_pool, max_pool, FLOATS},
    {TS_OP_max_pool_taps, max_pool, FLOATS},
    {TS_OP_max_pool_backward, max_pool_backward, FLOATS},
    {TS_OP_max_pool_taps_backward, max_pool_taps_backward, FLOATS})
