/**
 * @file few.cu
 * Launches of few.cuh, and products with few columns.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/convolution/cudnn.h"
#include "backends/cuda/convolution/few.cuh"
#include "backends/cuda/convolution/few.h"
#include "backends/cuda/frame.cuh"
#include "backends/cuda/runtime/launch.h"

#include "tessera/program.h"

namespace ts {

enum {
    FEW_PATCH = 24576, /* maximum elements of a patch */
    FEW_BLOCKS = 264,  /* blocks for the gradient of the weight: two per multiprocessor of an H100;
                          fixed, so that all GPUs get the same bits */
    FEW_COLUMNS = 7,   /* maximum columns of ts_cuda_few_columns() */
    FEW_LEAST = 16384, /* minimum rows; with fewer, cuBLASLt's product takes less time */
    FEW_INNER = 1024   /* maximum inner size */
};

/** Sets axis d of c, without the fields that depend on tiles. */
static few_axis axis_of(const ts_cuda_windows &w, int d)
{
    const ts_window_axis &a = w.axis[d];
    int reach = (int)((a.taps - 1) * a.shift);
    few_axis axis = {};
    axis.count = (int)a.count;
    axis.taps = (int)a.taps;
    axis.move = (int)a.move;
    axis.shift = (int)a.shift;
    axis.size = (int)w.size[d];
    axis.low = (int)a.base + (reach < 0 ? reach : 0);
    axis.back = reach < 0 ? -reach : 0;
    return axis;
}

/** Chooses the box of `positions` positions, a power of two, for which the tiles need the fewest
 * copies and products. Returns false if no patch fits. */
static bool plan_tiles(few_call &c, int positions)
{
    int64_t least = INT64_MAX;
    for (int log2 = 3; 1 << log2 <= positions; log2++) {
        few_axis a = c.axis[0], b = c.axis[1];
        a.wide = positions >> log2;
        b.wide = 1 << log2;
        auto finish = [](few_axis &axis) {
            int64_t reach = (int64_t)(axis.taps - 1) * axis.shift;
            int64_t patch = (int64_t)(axis.wide - 1) * axis.move + (reach < 0 ? -reach : reach) + 1;
            axis.tiles = (axis.count + axis.wide - 1) / axis.wide;
            axis.patch = (int)(patch < FEW_PATCH ? patch : FEW_PATCH + 1);
        };
        finish(a);
        finish(b);
        int64_t pitch = (int64_t)b.patch * c.channels, tiles = (int64_t)a.tiles * b.tiles * c.batch,
                time = tiles * (8 * positions + a.patch * ((pitch + 31) / 32 * 32));
        if (a.patch * pitch > FEW_PATCH || tiles > INT32_MAX / 2 || time >= least)
            continue;
        least = time;
        c.axis[0] = a, c.axis[1] = b;
        c.log2 = log2;
        c.pitch = (int)pitch;
        c.tiles = (int)tiles;
    }
    return least < INT64_MAX;
}

static few_call call_of_few(const ts_cuda_few &p)
{
    few_call c = {};
    c.axis[0] = axis_of(p.windows, 1);
    c.axis[1] = axis_of(p.windows, 2);
    c.image = p.windows.image;
    c.bias = p.bias;
    c.other = p.other;
    c.to = p.to;
    c.weight = p.weight;
    for (int i = 0; i < 4; i++)
        c.step[i] = p.step[i];
    c.after = conv_after::of(p.after, p.rows);
    c.batch = (int)(p.all / ((int64_t)c.axis[0].count * c.axis[1].count));
    c.rows = (int)p.rows;
    c.channels = (int)p.windows.channels;
    c.depth = c.axis[0].taps * c.axis[1].taps * c.channels;
    return c;
}
static unsigned patch_bytes(const few_call &c)
{
    return (unsigned)(c.axis[0].patch * c.pitch * 2);
}
static unsigned row_groups(const few_call &c)
{
    return (unsigned)((c.rows + FEW_ROWS - 1) / FEW_ROWS);
}

static void log_few(const few_call &c, const char *what)
{
    if (ts_log_on("convolution"))
        ts_log_write("convolution",
                     "cuda, kernels for few channels, %s; tiles: %d, rows: %d, elements of a "
                     "window: %d",
                     what, c.tiles, c.rows, c.depth);
}

template <class T> static cudaError_t multiply(const few_call &c, int sms, cudaStream_t stream)
{
    int steps = (c.depth + 15) / 16, most = 2 * sms;
    auto kernel = c.channels % 2 == 0
                      ? (c.after.some ? few_multiply_kernel<T, true, true>
                                      : few_multiply_kernel<T, true, false>)
                      : (c.after.some ? few_multiply_kernel<T, false, true>
                                      : few_multiply_kernel<T, false, false>);
    return launch(kernel,
                  {dim3((unsigned)(c.tiles < most ? c.tiles : most), row_groups(c)),
                   dim3(FEW_THREADS), (unsigned)(steps * (2048 + 32)) + patch_bytes(c), 1},
                  stream, c);
}

/** Number of blocks per group of rows for the gradient of the weight; depends on the shape only. */
static int blocks_of(const few_call &c)
{
    int most = FEW_BLOCKS / (int)row_groups(c), some = (c.tiles + 1) / 2;
    most = most < 1 ? 1 : most;
    return some < most ? some : most;
}
static int64_t weigh_bytes(const few_call &c)
{
    return (int64_t)blocks_of(c) * row_groups(c) * c.groups * FEW_SUMS * (int64_t)sizeof(float);
}
template <class T> static cudaError_t weigh(const few_call &c, cudaStream_t stream)
{
    int blocks = blocks_of(c),
        splits = c.groups == 1 ? 8 : c.groups == 2 ? 4 : c.groups <= 4 ? 2 : 1;
    cudaError_t e = launch(few_weigh_kernel<T>,
                           {dim3((unsigned)blocks, row_groups(c)),
                            dim3((unsigned)(c.groups * splits * 32)),
                            2 * FEW_BY_TILE * FEW_ROWS * 2 + 128 + patch_bytes(c), 1},
                           stream, c);
    if (e != cudaSuccess)
        return e;
    return launch(few_merge_kernel<T>,
                  {dim3(FEW_SUMS / 32, row_groups(c) * (unsigned)c.groups), dim3(FEW_THREADS), 0,
                   1},
                  stream, c, blocks);
}

/* ------------------------------------------------------------------------- few columns ---- */

/** A product c = a b: a (rows, inner) and c (rows, columns) dense by rows, b dense by columns. */
struct columns_call {
    const void *a, *b, *bias;
    void *c;
    int64_t rows, a_step, b_step, c_step; /* steps: from row to row of a and c, column to column
                                             of b */
    int inner, columns;
};

/**
 * A warp computes 32 rows at a time. A lane loads 16 bytes of a row, whose elements are the lane's
 * elements of two products; the lane's elements of b are the same ones of a column. So each row is
 * read once, in the order of the products' sums.
 */
template <class T>
static __global__ void __launch_bounds__(FEW_THREADS)
    few_columns_kernel(const __grid_constant__ columns_call c)
{
    extern __shared__ uint4 few_shared[];
    int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4, steps = (c.inner + 31) / 32;
    const T *b = (const T *)c.b;
    for (int e = (int)threadIdx.x; e < steps * 32; e += FEW_THREADS) {
        int column = e % 32 / 4, k = e / 32 * 32 + e % 4 * 8;
        few_shared[e] = column < c.columns && k < c.inner
                            ? __ldg((const uint4 *)(b + column * c.b_step + k))
                            : make_uint4(0, 0, 0, 0);
    }
    __syncthreads();
    float bias[2] = {};
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (c.bias && 2 * t + i < c.columns)
            bias[i] = widen(((const T *)c.bias)[2 * t + i]);
    int64_t turn = (int64_t)gridDim.x * FEW_THREADS;
    for (int64_t first = ((int64_t)blockIdx.x * FEW_THREADS + threadIdx.x) / 32 * 32;
         first < c.rows; first += turn) {
        float sums[2][4] = {};
        const T *row[4];
        bool some[4];
#pragma unroll
        for (int r = 0; r < 4; r++) {
            some[r] = first + r * 8 + g < c.rows;
            row[r] = (const T *)c.a + (first + r * 8 + g) * c.a_step + t * 8;
        }
#pragma unroll 2
        for (int s = 0; s < steps; s++) {
            uint4 x[4], y = few_shared[s * 32 + lane];
            bool inside = s * 32 + t * 8 < c.inner;
#pragma unroll
            for (int r = 0; r < 4; r++)
                x[r] = inside && some[r] ? __ldg((const uint4 *)(row[r] + s * 32))
                                         : make_uint4(0, 0, 0, 0);
#pragma unroll
            for (int m = 0; m < 2; m++) {
                uint32_t low[4] = {x[2 * m].x, x[2 * m + 1].x, x[2 * m].y, x[2 * m + 1].y},
                         high[4] = {x[2 * m].z, x[2 * m + 1].z, x[2 * m].w, x[2 * m + 1].w};
                mma<T>(sums[m], low, y.x, y.y);
                mma<T>(sums[m], high, y.z, y.w);
            }
        }
#pragma unroll
        for (int r = 0; r < 4; r++) {
            T *to = (T *)c.c + (first + r * 8 + g) * c.c_step + 2 * t;
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (some[r] && 2 * t + i < c.columns)
                    to[i] = narrow<T>(sums[r / 2][r % 2 * 2 + i] + bias[i]);
        }
    }
}

template <class T> static cudaError_t columns(const columns_call &c, int sms, cudaStream_t stream)
{
    int64_t blocks = (c.rows + FEW_THREADS - 1) / FEW_THREADS;
    int most = 4 * sms;
    return launch(few_columns_kernel<T>,
                  {dim3((unsigned)(blocks < most ? blocks : most)), dim3(FEW_THREADS),
                   (unsigned)((c.inner + 31) / 32 * 512), 1},
                  stream, c);
}

} // namespace ts

using namespace ts;

bool ts_cuda_few_fits(const ts_cuda_few *p)
{
    const ts_cuda_windows *w = &p->windows;
    ts_cuda_conv_kernels allowed = ts_cuda_conv_allowed();
    int64_t most = 1 << 20, depth = w->channels;
    const void *added = p->after ? p->after->added : nullptr;
    if (allowed == TS_CUDA_CONV_CUDNN || allowed == TS_CUDA_CONV_MATRIX || w->item != 2 ||
        w->groups != 1 || w->channels < 1 || w->channels > 7 || p->rows < 8 || p->rows % 8 ||
        p->rows > most || p->all < 1 || p->all > INT32_MAX ||
        ((uintptr_t)p->to | (uintptr_t)p->other | (uintptr_t)added) % 16)
        return false;
    for (int d = 0; d < 3; d++) {
        const ts_window_axis *a = &w->axis[d];
        if (a->taps < 1 || a->taps > FEW_DEPTH || a->count < 1 || a->move < 0 || a->move > most ||
            a->shift > most || a->shift < -most || a->base > most || a->base < -most ||
            w->size[d] > INT32_MAX / 8 || a->start != 0 || (a->step != 1 && a->count > 1))
            return false;
        depth *= a->taps;
    }
    const ts_window_axis *first = &w->axis[0];
    if (depth > FEW_DEPTH || w->size[0] != 1 || first->count != 1 || first->taps != 1 ||
        first->base)
        return false;
    few_call c = call_of_few(*p);
    return plan_tiles(c, FEW_TILE) && plan_tiles(c, FEW_BY_TILE);
}

ts_status ts_cuda_few_multiply(ts_frame *f, const ts_cuda_few *p)
{
    few_call c = call_of_few(*p);
    plan_tiles(c, FEW_TILE);
    log_few(c, "image");
    return on_device(f, [&](const call &at) {
        int sms = at.device->sms;
        return ts_kernel_dtype(f) == TS_BF16 ? multiply<bf16>(c, sms, at.stream)
                                             : multiply<f16>(c, sms, at.stream);
    });
}

ts_status ts_cuda_few_weigh(ts_frame *f, const ts_cuda_few *p)
{
    few_call c = call_of_few(*p);
    plan_tiles(c, FEW_BY_TILE);
    c.groups = (c.depth + 31) / 32;
    log_few(c, "weight");
    ts_device where = ts_kernel_device(f);
    int64_t bytes = weigh_bytes(c);
    if (!(c.partial = (float *)ts_scratch_take(where, bytes)))
        return ts_error_code();
    ts_status status = on_device(f, [&](const call &at) {
        return ts_kernel_dtype(f) == TS_BF16 ? weigh<bf16>(c, at.stream)
                                             : weigh<f16>(c, at.stream);
    });
    ts_scratch_give(where, c.partial, bytes);
    return status;
}

bool ts_cuda_few_columns_fit(ts_dtype dtype, const ts_cuda_matrix *a, const ts_cuda_matrix *b,
                             const ts_cuda_matrix *c, int64_t batches,
                             const ts_cuda_epilogue *then)
{
    bool plain = !then->gelu && !then->relu && !then->linear && !then->gelu_of && !then->columns &&
                 !then->wide && !then->sums && !then->factors && !then->added;
    return plain && ts_dtype_is_half(dtype) && batches == 1 && c->columns <= FEW_COLUMNS &&
           c->rows >= FEW_LEAST && a->columns <= FEW_INNER && a->columns % 8 == 0 &&
           a->column == 1 && a->row % 8 == 0 && b->row == 1 && b->column % 8 == 0 &&
           c->column == 1;
}

ts_status ts_cuda_few_columns(ts_frame *f, const ts_cuda_matrix *a, const ts_cuda_matrix *b,
                              const ts_cuda_matrix *c, const void *bias)
{
    const columns_call k = {a->data, b->data, bias,      c->data,         c->rows, a->row,
                            b->column, c->row, (int)a->columns, (int)c->columns};
    return on_device(f, [&](const call &at) {
        int sms = at.device->sms;
        return ts_kernel_dtype(f) == TS_BF16 ? columns<bf16>(k, sms, at.stream)
                                             : columns<f16>(k, sms, at.stream);
    });
}
