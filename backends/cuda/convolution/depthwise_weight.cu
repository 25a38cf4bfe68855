/**
 * @file depthwise_weight.cu
 * The gradient of a weight with one channel and one feature per group. Each kernel writes partial
 * sums (parts, taps, channels); a last kernel adds the parts in their order and rounds.
 *
 * Images of bf16, f16 and f32 with 3 x 3, 5 x 5 or 7 x 7 taps and stride 1 or 2 use
 * weigh_rows_kernel (depthwise_weight_rows.cuh), if a pixel has a multiple of 16 bytes or an even
 * number of halves.
 *
 * Other calls with stride 1 or 2 along the last dim use weigh_runs_kernel: a thread keeps the
 * pixels of a run of adjacent taps in registers and moves along a line, so it loads a pixel once
 * for all taps of the run. It is limited by multiply-adds. The remaining calls use
 * weigh_taps_kernel, which loads a pixel for each tap.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/convolution/depthwise.h"
#include "backends/cuda/convolution/depthwise_weight_rows.cuh"
#include "backends/cuda/image.cuh"
#include "backends/cuda/runtime/launch.h"
#include "backends/cuda/convolution/windows.cuh"

namespace ts {

enum {
    PROCESSORS = 132, /* of an H100; fixed, so that all GPUs get the same bits */
    WEIGH_THREADS = 256,
    TAPS = 5, /* taps of a thread of weigh_taps_kernel */
    MOST_PARTS = 1024,
    PART_BLOCKS = PROCESSORS * 8,
    PART_ROWS = 16,
    RUN_VECTOR = 4,    /* channels of a thread of weigh_runs_kernel */
    RUN_UNITS = 8,     /* most runs of taps of a block */
    RUN_RESIDENT = 16, /* warps that are resident on a multiprocessor, by their registers */
    RUN_WAVES = 2,     /* blocks, relative to the resident ones */
    LINE_STEPS = 6     /* a segment of a line has at most LINE_STEPS times as many windows as a run
                          has taps */
};

/* ---------------------------------------------------------------------------- any taps ---- */

/** Block (vectors of channels, chunk of taps, part) of threads (columns, rows): a thread adds the
 * products of its channels and TAPS taps over windows of the part, `rows` apart; row 0 adds up the
 * rows. */
template <class T, class I, int V>
static __global__ void __launch_bounds__(WEIGH_THREADS)
    weigh_taps_kernel(const __grid_constant__ window_set<I> w, const T *__restrict__ y,
                      int64_t count, wide_t<T> *__restrict__ to)
{
    using A = wide_t<T>;
    __shared__ A memory[V][WEIGH_THREADS];
    int columns = (int)blockDim.x, rows = (int)blockDim.y, x = (int)threadIdx.x,
        r = (int)threadIdx.y;
    I c = ((I)blockIdx.x * columns + x) * V, first = (I)blockIdx.y * TAPS;
    bool inside = c < w.channels;
    const window_axis<I> &a0 = w.axis[0], &a1 = w.axis[1], &a2 = w.axis[2];
    I off[TAPS][3];
#pragma unroll
    for (int t = 0; t < TAPS; t++) {
        I tap = min(first + t, w.taps - 1), plane = tap / a2.taps;
        off[t][0] = plane / a1.taps * a0.shift + a0.base;
        off[t][1] = plane % a1.taps * a1.shift + a1.base;
        off[t][2] = tap % a2.taps * a2.shift + a2.base;
    }
    A sum[TAPS][V] = {};
    I at = (I)(count * blockIdx.z / gridDim.z), end = (I)(count * (blockIdx.z + 1) / gridDim.z);
    at += r;
    window_at<I> p = window_of(w, at);
    const T *image = (const T *)w.image + c;
    for (; at < end && inside; at += rows) {
        A g[V];
        load_wide<T, V>(g, y + (int64_t)at * w.channels + c);
#pragma unroll
        for (int t = 0; t < TAPS; t++) {
            I i0 = p.i[0] * a0.move + off[t][0], i1 = p.i[1] * a1.move + off[t][1],
              i2 = p.i[2] * a2.move + off[t][2];
            A xs[V] = {};
            if (i0 >= 0 && i0 < a0.size && i1 >= 0 && i1 < a1.size && i2 >= 0 && i2 < a2.size)
                load_wide<T, V>(
                    xs, image + (int64_t)(((p.n * a0.size + i0) * a1.size + i1) * a2.size + i2) *
                                    w.channels);
#pragma unroll
            for (int v = 0; v < V; v++)
                sum[t][v] += xs[v] * g[v];
        }
        p.i[2] += rows;
        while (p.i[2] >= a2.count) {
            p.i[2] -= a2.count;
            if (++p.i[1] == a1.count) {
                p.i[1] = 0;
                if (++p.i[0] == a0.count) {
                    p.i[0] = 0;
                    p.n++;
                }
            }
        }
    }
#pragma unroll
    for (int t = 0; t < TAPS; t++) {
        __syncthreads();
#pragma unroll
        for (int v = 0; v < V; v++)
            memory[v][r * columns + x] = sum[t][v];
        __syncthreads();
        for (int v = r; v < V && inside && first + t < w.taps; v += rows) {
            A whole = memory[v][x];
            for (int i = 1; i < rows; i++)
                whole += memory[v][i * columns + x];
            to[((int64_t)blockIdx.z * w.taps + first + t) * w.channels + c + v] = whole;
        }
    }
}

/* ------------------------------------------------------------------------ runs of taps ---- */

/** How the windows are divided along the last dim. A thread moves from window to window in steps of
 * `phases` windows, which move a pixel by ADVANCE elements of a run. An item is a segment of a line
 * in one phase; items are numbered with the lines of a plane fastest, so that consecutive items
 * read almost the same pixels. */
struct run_division {
    int phases, segments, steps; /* steps: windows of an item */
    int items, runs, units;      /* number of items; runs of a row of taps; runs of all rows */
};

/** Loads V elements, up to 16 bytes. */
template <class T, int V>
__device__ __forceinline__ word_of<vec<T, V>> load_piece(const T *p)
{
    return __ldg(reinterpret_cast<const word_of<vec<T, V>> *>(p));
}

/** Block (vectors of channels, units, part) of threads (columns, rows, units): a thread adds the
 * products of V channels and the RUN taps of a unit over the items of its part. Each row of threads
 * is a part. */
template <class T, int V, int RUN, int ADVANCE>
static __global__ void __launch_bounds__(32 * RUN_UNITS)
    weigh_runs_kernel(const __grid_constant__ window_set<int> w, const T *__restrict__ y,
                      const __grid_constant__ run_division division, wide_t<T> *__restrict__ to)
{
    using A = wide_t<T>;
    using piece = word_of<vec<T, V>>;
    const window_axis<int> &a0 = w.axis[0], &a1 = w.axis[1], &a2 = w.axis[2];
    int c = ((int)blockIdx.x * (int)blockDim.x + (int)threadIdx.x) * V,
        unit = (int)blockIdx.y * (int)blockDim.z + (int)threadIdx.z;
    if (c >= w.channels || unit >= division.units)
        return;
    int row = unit / division.runs, tap = (unit - row * division.runs) * RUN, j0 = row / a1.taps,
        j1 = row - j0 * a1.taps;
    int64_t parts = (int64_t)gridDim.z * blockDim.y,
            part = (int64_t)blockIdx.z * blockDim.y + threadIdx.y;
    int at = (int)(division.items * part / parts), end = (int)(division.items * (part + 1) / parts);
    A sum[RUN][V] = {};
    for (; at < end; at++) {
        unsigned plane = (unsigned)at / (unsigned)a1.count,
                 h = (unsigned)at - plane * (unsigned)a1.count,
                 volume = plane / (unsigned)(division.segments * division.phases),
                 place = plane - volume * (unsigned)(division.segments * division.phases),
                 segment = place / (unsigned)division.phases, n = volume / (unsigned)a0.count,
                 d = volume - n * (unsigned)a0.count;
        int first = (int)segment * division.steps * division.phases +
                    (int)(place - segment * (unsigned)division.phases);
        int i0 = (int)d * a0.move + a0.base + j0 * a0.shift,
            i1 = (int)h * a1.move + a1.base + j1 * a1.shift;
        if (i0 < 0 || i0 >= a0.size || i1 < 0 || i1 >= a1.size || first >= a2.count)
            continue;
        int left = min(division.steps, (a2.count - first + division.phases - 1) / division.phases);
        const T *grad = y + (((int64_t)volume * a1.count + h) * a2.count + first) * w.channels + c,
                *line = (const T *)w.image +
                        (((int64_t)n * a0.size + i0) * a1.size + i1) * a2.size * w.channels + c;
        int next = first * a2.move + a2.base + tap * a2.shift; /* index of the next pixel to load */
        auto load = [&] {
            bool inside = next >= 0 && next < a2.size;
            piece x = load_piece<T, V>(line + (int64_t)(inside ? next : 0) * w.channels);
            next += a2.shift;
            return inside ? x : piece{};
        };
        A xs[RUN][V];
        piece ahead[RUN];
#pragma unroll
        for (int t = 0; t < RUN - ADVANCE; t++)
            ahead[t] = load();
#pragma unroll
        for (int t = 0; t < RUN - ADVANCE; t++)
            unpack<T, V>(from_word<vec<T, V>>(ahead[t]), xs[t]);
        piece gs[RUN], more[RUN * ADVANCE]; /* of the next RUN windows */
        auto load_windows = [&](int count) {
#pragma unroll
            for (int u = 0; u < RUN; u++) {
                gs[u] = load_piece<T, V>(grad);
                grad += u + 1 < count ? division.phases * w.channels : 0;
#pragma unroll
                for (int t = 0; t < ADVANCE; t++)
                    more[u * ADVANCE + t] = load();
            }
        };
        load_windows(left);
        for (; left > 0; left -= RUN) {
            piece g_now[RUN], x_now[RUN * ADVANCE];
#pragma unroll
            for (int u = 0; u < RUN; u++)
                g_now[u] = gs[u];
#pragma unroll
            for (int u = 0; u < RUN * ADVANCE; u++)
                x_now[u] = more[u];
            if (left > RUN) /* these loads overlap the products */
                load_windows(left - RUN);
#pragma unroll
            for (int u = 0; u < RUN; u++) {
                A g[V];
                unpack<T, V>(from_word<vec<T, V>>(g_now[u]), g);
#pragma unroll
                for (int t = 0; t < ADVANCE; t++)
                    unpack<T, V>(from_word<vec<T, V>>(x_now[u * ADVANCE + t]),
                                 xs[(u * ADVANCE + RUN - ADVANCE + t) % RUN]);
                if (u < left) {
#pragma unroll
                    for (int t = 0; t < RUN; t++)
#pragma unroll
                        for (int v = 0; v < V; v++)
                            sum[t][v] += xs[(u * ADVANCE + t) % RUN][v] * g[v];
                }
            }
        }
    }
    to += ((part * w.taps) + row * a2.taps + tap) * w.channels + c;
#pragma unroll
    for (int t = 0; t < RUN; t++)
        if (tap + t < a2.taps)
#pragma unroll
            for (int v = 0; v < V; v++)
                to[t * w.channels + v] = sum[t][v];
}

/* -------------------------------------------------------------------------------- rows ---- */

/** A call of weigh_rows_kernel, or taps 0 if it cannot compute the gradient. Depends only on the
 * shape. */
struct weigh_rows_plan {
    weigh_rows_call call;
    int taps, stride, strips, copy; /* copy: COPY of the kernel */
};

/** Estimate of the cycles of a plan: the tiles of a block, one after another, by resident warps. */
static double weigh_rows_cycles(const weigh_rows_plan &p)
{
    const weigh_rows_call &q = p.call;
    int k = p.taps, s = p.stride, per_block = (q.tiles + q.parts - 1) / q.parts;
    double row = k * k * ROWS_COLUMNS * weigh_rows_channels(k) * 1.05 / s + 110,
           warps = (double)q.sets * q.parts * p.strips / (4.0 * (double)PROCESSORS),
           full = warps * row, alone = 1.3 * row + 150,
           pixels = per_block * (q.h.length * s + k - s);
    return pixels * (full > alone ? full : alone) + (double)q.parts * k * k * q.channels / 500;
}

static weigh_rows_plan weigh_rows_plan_of(const ts_cuda_window_product &q)
{
    const ts_cuda_windows &w = q.windows;
    weigh_rows_plan p = {}, best = {};
    int64_t taps = w.axis[2].taps, stride = w.axis[2].move;
    rows_axis &h = p.call.h, &v = p.call.w;
    p.copy = w.item == 2 && w.channels % 8 ? 4 : 16;
    if (!rows_are_flat(q) || w.axis[1].taps != taps || (taps != 3 && taps != 5 && taps != 7) ||
        !rows_axis_of(q, 1, stride, &h) || !rows_axis_of(q, 2, stride, &v) || w.item > 4 ||
        w.channels * w.item % p.copy || ((uintptr_t)w.image | (uintptr_t)q.other) % 16 ||
        !is_small(w, q.all * w.channels))
        return p;
    p.taps = (int)taps;
    p.stride = (int)stride;
    p.call.channels = (int)w.channels;
    int set = ROWS_LANES * weigh_rows_channels(p.taps), rows = rows_pieces(h, 1),
        planes = (int)(q.all / (w.axis[1].count * w.axis[2].count));
    p.call.sets = (p.call.channels + set - 1) / set;
    double least = 0;
    for (p.strips = 2; p.strips <= ROWS_STRIPS; p.strips *= 2) {
        v.length = ROWS_COLUMNS * p.strips;
        v.pieces = rows_pieces(v, v.length);
        if ((2 * ((v.length - 1) * stride + taps) + 2 / stride * v.length) * set * w.item *
                ROWS_STAGES > ROWS_MEMORY)
            break;
        int resident = (p.taps == 7 ? 12 : 16) / p.strips * PROCESSORS,
            most = resident < p.call.sets ? 1 : resident / p.call.sets;
        for (int pieces = 1;; pieces *= 2) {
            h.length = (rows + pieces - 1) / pieces;
            h.pieces = rows_pieces(h, h.length);
            p.call.tiles = v.pieces * v.every * h.pieces * h.every * planes;
            int per_block = (p.call.tiles + most - 1) / most;
            p.call.parts = (p.call.tiles + per_block - 1) / per_block;
            double cycles = weigh_rows_cycles(p);
            if (!best.taps || cycles < least)
                least = cycles, best = p;
            if (h.length <= 8)
                break;
        }
    }
    return best;
}

template <class T, int K, int S, int COPY>
static cudaError_t run_weigh_rows(const weigh_rows_plan &p, const ts_cuda_window_product &q,
                                  float *to, cudaStream_t stream)
{
    constexpr int V = weigh_rows_channels(K), PIXEL = rows_pixel<T, V, COPY>::BYTES;
    int pixels = 2 * ((p.strips * ROWS_COLUMNS - 1) * S + K) + 2 / S * p.strips * ROWS_COLUMNS,
        stages = ROWS_STAGES * pixels * PIXEL, sums = p.strips * K * ROWS_LANES * V * 4;
    ts_cuda_grid grid = {dim3((unsigned)(p.call.sets * p.call.parts)),
                         dim3((unsigned)(p.strips * ROWS_LANES)),
                         (unsigned)(stages > sums ? stages : sums), 1};
    return launch(weigh_rows_kernel<T, K, S, COPY>, grid, stream, p.call,
                  (const T *)q.windows.image, (const T *)q.other, to);
}

template <class T, int COPY>
static cudaError_t weigh_rows_by(const weigh_rows_plan &p, const ts_cuda_window_product &q,
                                 float *to, cudaStream_t stream)
{
    auto run = [&]<int K>() {
        return p.stride == 1 ? run_weigh_rows<T, K, 1, COPY>(p, q, to, stream)
                             : run_weigh_rows<T, K, 2, COPY>(p, q, to, stream);
    };
    return p.taps == 3   ? run.template operator()<3>()
           : p.taps == 5 ? run.template operator()<5>()
                         : run.template operator()<7>();
}

template <class T>
static cudaError_t weigh_rows(const weigh_rows_plan &p, const ts_cuda_window_product &q, float *to,
                              cudaStream_t stream)
{
    if constexpr (is_half<T>)
        if (p.copy == 4)
            return weigh_rows_by<T, 4>(p, q, to, stream);
    return weigh_rows_by<T, 16>(p, q, to, stream);
}

/* ------------------------------------------------------------------------------- parts ---- */

enum { ADD_COLUMNS = 32, ADD_ROWS = 8 };

/** Adds parts (parts, taps, channels) and stores the rounded sums (channels, taps). Block
 * (channels, tap) of threads (ADD_COLUMNS, ADD_ROWS). */
template <class T>
static __global__ void __launch_bounds__(ADD_COLUMNS *ADD_ROWS)
    add_weights_kernel(const wide_t<T> *__restrict__ from, int64_t parts, int64_t taps,
                       int64_t channels, T *__restrict__ to)
{
    using A = wide_t<T>;
    __shared__ A rows[ADD_ROWS][ADD_COLUMNS];
    int64_t c = (int64_t)blockIdx.x * ADD_COLUMNS + threadIdx.x, tap = blockIdx.y;
    A sum = 0;
    if (c < channels) {
#pragma unroll 8
        for (int64_t p = threadIdx.y; p < parts; p += ADD_ROWS)
            sum += from[(p * taps + tap) * channels + c];
    }
    rows[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || c >= channels)
        return;
#pragma unroll
    for (int r = 1; r < ADD_ROWS; r++)
        sum += rows[r][threadIdx.x];
    to[c * taps + tap] = narrow<T>(sum);
}

/* ------------------------------------------------------------------------------- plans ---- */

/** A launch, and the number of its parts. Depends only on the shape. */
struct weigh_plan {
    dim3 threads, blocks;
    int64_t parts;
    int width;        /* channels of a thread */
    int run, advance; /* 0: weigh_taps_kernel */
    run_division division;
};

static int columns_for(int64_t vectors)
{
    int columns = 1;
    while (columns < vectors && columns < 32)
        columns *= 2;
    return columns;
}

static weigh_plan plan_of(const ts_cuda_window_product &q)
{
    const ts_cuda_windows &w = q.windows;
    int item = w.item;
    const ts_window_axis *a = w.axis;
    weigh_plan p = {};
    int64_t taps = a[0].taps * a[1].taps * a[2].taps, step = a[2].shift, move = a[2].move;
    bool aligned = ((uintptr_t)w.image | (uintptr_t)q.other) % 16 == 0;
    int64_t phases = step == 1 || move % step == 0 ? 1 : step;
    p.advance = (int)(phases * move / step);
    if (item < 8 && p.advance <= 2 && (phases == 1 || move == 1) &&
        is_small(w, q.all * w.channels)) {
        p.run = a[2].taps <= 3 ? 3 : a[2].taps <= 5 ? 5 : 7;
        p.width = aligned && w.channels % RUN_VECTOR == 0 ? RUN_VECTOR : 1;
        int64_t vectors = w.channels / p.width, columns = columns_for(vectors), rows = 32 / columns;
        run_division &d = p.division;
        d.phases = (int)phases;
        d.runs = (int)((a[2].taps + p.run - 1) / p.run);
        d.units = d.runs * (int)(a[0].taps * a[1].taps);
        int64_t line = (a[2].count + phases - 1) / phases, most_steps = p.run * LINE_STEPS;
        d.segments = (int)((line + most_steps - 1) / most_steps);
        d.steps = (int)((line + d.segments * p.run - 1) / (d.segments * p.run)) * p.run;
        d.items = (int)(q.all / a[2].count * d.segments * phases);
        int64_t groups = (d.units + RUN_UNITS - 1) / RUN_UNITS,
                units = (d.units + groups - 1) / groups, sets = (vectors + columns - 1) / columns,
                parts = RUN_WAVES * PROCESSORS * (RUN_RESIDENT / units) / (sets * groups),
                /* partial sums are at most a quarter of the operands' bytes */
            most = q.all * item / (taps * 16);
        parts = parts < most / rows ? parts : most / rows;
        parts = parts < d.items / (2 * rows) ? parts : d.items / (2 * rows);
        parts = parts < 1 ? 1 : parts > MOST_PARTS ? MOST_PARTS : parts;
        p.threads = dim3((unsigned)columns, (unsigned)rows, (unsigned)units);
        p.blocks = dim3((unsigned)sets, (unsigned)groups, (unsigned)parts);
        p.parts = parts * rows;
        return p;
    }
    p.width = aligned && w.channels * item % 16 == 0 ? 16 / item : 1;
    int64_t vectors = w.channels / p.width, columns = columns_for(vectors),
            rows = WEIGH_THREADS / columns, sets = (vectors + columns - 1) / columns,
            groups = (taps + TAPS - 1) / TAPS, blocks = sets * groups,
            room = q.all / (PART_ROWS * rows);
    p.parts = (PART_BLOCKS + blocks - 1) / blocks;
    p.parts = p.parts < room ? p.parts : room;
    p.parts = p.parts < 1 ? 1 : p.parts > MOST_PARTS ? MOST_PARTS : p.parts;
    p.threads = dim3((unsigned)columns, (unsigned)rows);
    p.blocks = dim3((unsigned)sets, (unsigned)groups, (unsigned)p.parts);
    return p;
}

template <class T, int V, int RUN>
static cudaError_t weigh_runs(const weigh_plan &p, const ts_cuda_window_product &q, void *to,
                              cudaStream_t stream)
{
    ts_cuda_grid grid = {p.blocks, p.threads, 0, 1};
    auto run = [&]<int ADVANCE>() {
        return launch(weigh_runs_kernel<T, V, RUN, ADVANCE>, grid, stream, set_of<int>(q.windows),
                      (const T *)q.other, p.division, (wide_t<T> *)to);
    };
    return p.advance == 1 ? run.template operator()<1>() : run.template operator()<2>();
}

template <class T, int V>
static cudaError_t weigh_runs_of(const weigh_plan &p, const ts_cuda_window_product &q, void *to,
                                 cudaStream_t stream)
{
    return p.run == 3   ? weigh_runs<T, V, 3>(p, q, to, stream)
           : p.run == 5 ? weigh_runs<T, V, 5>(p, q, to, stream)
                        : weigh_runs<T, V, 7>(p, q, to, stream);
}

template <class T>
static cudaError_t weigh(const weigh_plan &p, const ts_cuda_window_product &q, void *to,
                         cudaStream_t stream)
{
    if constexpr (sizeof(T) < 8)
        if (p.run)
            return p.width == 1 ? weigh_runs_of<T, 1>(p, q, to, stream)
                                : weigh_runs_of<T, RUN_VECTOR>(p, q, to, stream);
    ts_cuda_grid grid = {p.blocks, p.threads, 0, 1};
    return with_indices(q.windows, q.all * q.windows.channels, [&]<class I>() {
        auto run = [&]<int V>() {
            return launch(weigh_taps_kernel<T, I, V>, grid, stream, set_of<I>(q.windows),
                          (const T *)q.other, q.all, (wide_t<T> *)to);
        };
        return p.width == 1 ? run.template operator()<1>() : run.template operator()<vec16<T>>();
    });
}

} // namespace ts

using namespace ts;

ts_status ts_cuda_weigh_channels(ts_frame *f, const ts_cuda_window_product *q)
{
    const ts_cuda_windows &w = q->windows;
    ts_device where = ts_kernel_device(f);
    int64_t taps = w.axis[0].taps * w.axis[1].taps * w.axis[2].taps;
    weigh_rows_plan rows = weigh_rows_plan_of(*q);
    weigh_plan p = rows.taps ? weigh_plan{} : plan_of(*q);
    if (rows.taps)
        p.parts = rows.call.parts;
    int64_t bytes = p.parts * taps * w.channels * (w.item == 8 ? 8 : 4);
    void *sums = ts_scratch_take(where, bytes);
    if (!sums)
        return ts_error_code();
    ts_status status = with_float(f, [&]<class T>(const call &at) {
        cudaError_t e;
        if constexpr (sizeof(T) < 8)
            e = rows.taps ? weigh_rows<T>(rows, *q, (float *)sums, at.stream)
                          : weigh<T>(p, *q, sums, at.stream);
        else
            e = weigh<T>(p, *q, sums, at.stream);
        if (e != cudaSuccess)
            return e;
        return launch(
            add_weights_kernel<T>,
            {dim3((unsigned)((w.channels + ADD_COLUMNS - 1) / ADD_COLUMNS), (unsigned)taps),
             dim3(ADD_COLUMNS, ADD_ROWS), 0, 1},
            at.stream, (const wide_t<T> *)sums, p.parts, taps, w.channels, (T *)q->to);
    });
    ts_scratch_give(where, sums, bytes);
    return status;
}
