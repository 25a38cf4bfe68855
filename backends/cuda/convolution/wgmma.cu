/** @file wgmma.cu  Launches of wgmma.cuh, and the maps of the copy engine.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/convolution/taps.cuh"
#include "backends/cuda/convolution/wgmma.cuh"
#include "backends/cuda/runtime/launch.h"
#include "backends/cuda/instructions/tma.h"

namespace ts {

#ifdef TS_CUDA_SM90A /* else the kernels are empty */

/** Writes the TMA descriptor of the windows, for copies of `pixels` windows by 64 channels. Returns
 * false if the windows exceed TMA's limits: 8 bits (two spatial dims) or 5 bits (three) for the
 * corners of the bounding box and the distances of taps, and strides of at most 8. */
template <class T>
static bool map_of_windows(const conv_call &c, int pixels, CUtensorMap *map, conv_copies *copies)
{
    const conv_axis *a = c.axis;
    copies->volume = a[0].size != 1 || a[0].count != 1 || a[0].taps != 1 || a[0].base;
    int dims = copies->volume ? 3 : 2, least = dims == 2 ? -128 : -16, low[3], high[3];
    cuuint64_t sizes[5] = {(cuuint64_t)c.channels}, steps[4];
    cuuint32_t every[5] = {1, 1, 1, 1, 1};
    cuuint64_t step = (cuuint64_t)c.channels * 2;
    for (int d = 2; d >= 0; d--) {
        int reach = (a[d].taps - 1) * a[d].shift;
        copies->low[d] = a[d].base + (reach < 0 ? reach : 0);
        copies->back[d] = reach < 0 ? -reach : 0;
        if (d < 3 - dims)
            continue;
        int k = 2 - d, wide = reach < 0 ? -reach : reach;
        low[k] = copies->low[d];
        high[k] = low[k] + (a[d].count - 1) * a[d].move - (a[d].size - 1);
        if (low[k] < least || low[k] >= -least || high[k] < least || high[k] >= -least ||
            wide >= -2 * least || a[d].move > 8)
            return false;
        sizes[1 + k] = (cuuint64_t)a[d].size;
        every[1 + k] = (cuuint32_t)a[d].move;
        steps[k] = step;
        step *= (cuuint64_t)a[d].size;
    }
    steps[dims] = step;
    sizes[1 + dims] = (cuuint64_t)c.windows / (cuuint64_t)(a[0].count * a[1].count * a[2].count);
    auto encode = TMA_ENCODER(cuTensorMapEncodeIm2col);
    return encode && encode(map, tma_type<T>, (cuuint32_t)dims + 2, (void *)c.image, sizes, steps,
                            low, high, 64, (cuuint32_t)pixels, every, CU_TENSOR_MAP_INTERLEAVE_NONE,
                            CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/** Writes the TMA descriptor of a dense tensor (groups, rows, lines, columns), for boxes of 64
 * columns by `box_lines` lines by `box_rows` rows. Returns false if the driver rejects it. */
template <class T>
static bool map_of_matrix(const void *data, int64_t columns, int64_t lines, int64_t rows,
                          int64_t groups, int box_lines, int box_rows, CUtensorMap *map)
{
    cuuint64_t sizes[4] = {(cuuint64_t)columns, (cuuint64_t)lines, (cuuint64_t)rows,
                           (cuuint64_t)groups};
    cuuint64_t steps[3] = {(cuuint64_t)columns * 2, (cuuint64_t)(columns * lines) * 2,
                           (cuuint64_t)(columns * lines * rows) * 2};
    cuuint32_t box[4] = {64, (cuuint32_t)box_lines, (cuuint32_t)box_rows, 1},
               every[4] = {1, 1, 1, 1};
    auto encode = TMA_ENCODER(cuTensorMapEncodeTiled);
    return encode && encode(map, tma_type<T>, 4, (void *)data, sizes, steps, box, every,
                            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <class S> static int64_t tiles_of(const conv_call &c)
{
    return ((int64_t)c.windows + S::tall - 1) / S::tall * ((c.rows + S::wide - 1) / S::wide);
}
static int64_t steps_of(const conv_call &c)
{
    return (int64_t)c.taps * ((c.each + 63) / 64);
}
/** Estimated time in clock cycles on 132 multiprocessors: `clocks` per step of a tile, `fixed` for
 * a tile's stores. */
template <class S> static int64_t time_of(const conv_call &c, int clocks, int fixed)
{
    return (tiles_of<S>(c) * c.groups + 131) / 132 * (steps_of(c) * clocks + fixed);
}
template <class T, class S> static cudaError_t multiply(const conv_call &c, cudaStream_t stream)
{
    CUtensorMap image, weight;
    conv_copies copies;
    int64_t all = tiles_of<S>(c), tiles = all * c.groups, most = c.processors * S::blocks;
    if (!map_of_windows<T>(c, S::tall, &image, &copies) ||
        !map_of_matrix<T>(c.other, c.each, c.taps, c.rows, c.groups, 1, S::wide, &weight) ||
        tiles > INT32_MAX / 2)
        return cudaErrorNotSupported;
    return ts::launch(
        c.after.some ? conv_wgmma_kernel<T, S, true> : conv_wgmma_kernel<T, S, false>,
        {dim3((unsigned)(tiles < most ? tiles : most)), dim3(CONV_BLOCK), S::bytes, 1}, stream, c,
        image, weight, copies, (int)all);
}

template <class T> cudaError_t conv_wgmma(const conv_call &c, cudaStream_t stream)
{
    using small = conv_shape<1, 64, 4, 2>;
    using middle = conv_shape<1, 128, 3, 2>;
    using tall = conv_shape<2, 128, 4, 1>;
    using wide = conv_shape<1, 256, 4, 1>;
    /* a step's 64 channels must not reach into the next group; below 32 channels, more than half of
     * the products would be with zeros */
    if ((c.groups > 1 && c.each % 64) || c.each < 32 || (c.after.some && !c.vectors))
        return cudaErrorNotSupported;
    int64_t times[] = {time_of<small>(c, 460, 1000), time_of<middle>(c, 680, 1500),
                       time_of<tall>(c, 1250, 3000), time_of<wide>(c, 1200, 2000)};
    int best = 0;
    for (int i = 1; i < 4; i++)
        if (times[i] < times[best])
            best = i;
    return best == 0   ? multiply<T, small>(c, stream)
           : best == 1 ? multiply<T, middle>(c, stream)
           : best == 2 ? multiply<T, tall>(c, stream)
                       : multiply<T, wide>(c, stream);
}

template <class S> static conv_division division_of(const conv_call &c)
{
    constexpr int64_t BLOCKS = 132, /* multiprocessors of an H100; other GPUs get the same bits */
        LEAST = 8,                  /* steps of a block, if there are few */
        FIXED = 16,                 /* time of a part's begin and end, in steps */
        STEP_BYTES = 1 << 20,       /* bytes that memory moves in the time of a step */
        CACHED = 40 << 20;          /* operands up to this size remain in L2 */
    int slabs = c.taps * ((c.each + 63) / 64);
    int64_t pixels = (int64_t)c.axis[0].size * c.axis[1].size * c.axis[2].size,
            batch = c.windows / ((int64_t)c.axis[0].count * c.axis[1].count * c.axis[2].count);
    conv_division d = {};
    d.tiles = (c.rows + 64 * S::tall - 1) / (64 * S::tall) * ((slabs + S::wide - 1) / S::wide);
    d.all = d.tiles * c.groups;
    d.steps = (c.windows + 63) / 64;
    if ((batch * pixels * c.channels + (int64_t)c.windows * c.groups * c.rows) * 2 <= CACHED) {
        int64_t all = (int64_t)d.all * d.steps;
        d.each = (all + BLOCKS - 1) / BLOCKS;
        if (d.each < LEAST)
            d.each = d.steps < LEAST ? d.steps : LEAST;
        d.blocks = (int)((all + d.each - 1) / d.each);
        return d;
    }
    int64_t least = INT64_MAX;
    for (int64_t parts = 1; parts <= 256 && parts <= d.steps; parts++) {
        int64_t each = (d.steps + parts - 1) / parts, all = (d.steps + each - 1) / each;
        int64_t time = (d.all * all + BLOCKS - 1) / BLOCKS * (each + FIXED) +
                       (all > 1 ? FIXED + all * d.all * S::sums * 8 / STEP_BYTES : 0);
        if (time < least)
            least = time, d.each = each, d.parts = (int)all;
    }
    d.blocks = d.all * d.parts;
    return d;
}
/** True if blocks share tiles. */
static bool is_divided(const conv_division &d)
{
    return d.parts ? d.parts > 1 : d.each % d.steps;
}

/* Estimated times, in clock cycles on the 132 multiprocessors of an H100. */
enum {
    BY_STEP = 1200, TAPS_STEP = 1300, /* a step of a tile */
    START = 4000,                     /* a tile's first copies, and its stores */
    CLUSTER = 3000,                   /* the sums of a cluster */
    MERGE = 5000,                     /* the launch of a merge */
    PARTIAL_RATE = 1700 /* bytes of partial sums that are written or read per cycle */
};
static int64_t merge_time(int64_t pieces, int64_t sums)
{
    return MERGE + pieces * sums * 8 / PARTIAL_RATE;
}
template <class S> static int64_t time_by(const conv_call &c)
{
    conv_division d = division_of<S>(c);
    int64_t pieces = d.parts ? d.blocks : d.blocks + d.all;
    return (d.blocks + 131) / 132 * (START + d.each * BY_STEP) +
           (is_divided(d) ? merge_time(pieces, S::sums) : 0);
}
/** Calls f.operator()<S>() for the tiles of conv_wgmma_by_kernel whose steps take the least time.
 * A tile of 64 rows has half of the products of the others and takes 70 % of their time, because
 * of its loads. */
template <class F> static auto with_tiles(const conv_call &c, F &&f)
{
    auto time = [&]<class S>(int step) {
        int slabs = c.taps * ((c.each + 63) / 64);
        return (int64_t)((c.rows + 64 * S::tall - 1) / (64 * S::tall)) *
               ((slabs + S::wide - 1) / S::wide) * step;
    };
    int64_t high = time.template operator()<conv_by_shape<2, 4>>(10),
            middle = time.template operator()<conv_by_shape<2, 2>>(10),
            low = time.template operator()<conv_by_shape<1, 1>>(7);
    return high <= middle && high <= low ? f.template operator()<conv_by_shape<2, 4>>()
           : middle <= low               ? f.template operator()<conv_by_shape<2, 2>>()
                                         : f.template operator()<conv_by_shape<1, 1>>();
}

/** Number of images. */
static int batch_of(const conv_call &c)
{
    return c.windows / (c.axis[0].count * c.axis[1].count * c.axis[2].count);
}
/** Sets *plan to the plan of conv_taps_kernel with the least estimated time and returns the time;
 * INT64_MAX if the kernel does not support the call. */
static int64_t taps_time(const conv_call &c, conv_taps_plan *plan)
{
    /* clusters of 1, 2, 4 and 8 blocks that surely run at the same time: GPUs differ in the numbers
     * of multiprocessors that can form a cluster, but all get the same bits */
    static const int resident[] = {132, 64, 28, 12};
    const conv_axis *a = c.axis;
    bool plane = a[0].size == 1 && a[0].count == 1 && a[0].taps == 1 && a[0].base == 0;
    for (int d = 1; d < 3; d++)
        plane = plane && a[d].move == 1 && (a[d].shift == 1 || a[d].taps == 1);
    conv_boxes b = conv_boxes::of(c);
    int64_t tiles = (int64_t)((c.rows + 63) / 64) * b.pieces * b.chunks_tall * b.chunks_wide,
            all = tiles * c.groups, steps = (int64_t)batch_of(c) * b.tall * b.wide,
            least = INT64_MAX;
    if (!plane || all > INT32_MAX / 8)
        return INT64_MAX;
    for (int k = 0; k < 4; k++)
        for (int64_t rounds = 0; rounds <= 3; rounds++) {
            int64_t parts = rounds ? rounds * resident[k] / all : 1, blocks = parts << k;
            if (parts < 1 || (rounds && parts == 1) || blocks > steps)
                continue;
            int64_t each = (steps + blocks - 1) / blocks,
                    turns = (parts * all + resident[k] - 1) / resident[k],
                    time = turns * (START + each * TAPS_STEP + (k ? CLUSTER : 0)) +
                           (parts > 1 ? merge_time(parts * all, TAPS_SUMS * 4) : 0);
            if (time < least) {
                least = time;
                *plan = {(int)tiles, (int)all, (int)steps, 1 << k, (int)parts, (int)each};
            }
        }
    return least;
}

/** Calls f(plan) with the plan of conv_taps_kernel, or f.operator()<S>() with tiles of
 * conv_wgmma_by_kernel, by the least estimated time. */
template <class F> static auto with_shape(const conv_call &c, F &&f)
{
    conv_taps_plan plan;
    int64_t taps = taps_time(c, &plan);
    return with_tiles(c, [&]<class S>() {
        return taps <= time_by<S>(c) ? f(plan) : f.template operator()<S>();
    });
}

struct by_bytes {
    const conv_call &c;

    int64_t operator()(const conv_taps_plan &p) const
    {
        return p.parts > 1 ? (int64_t)p.parts * p.all * TAPS_SUMS * 16 : 0;
    }
    template <class S> int64_t operator()() const
    {
        conv_division d = division_of<S>(c);
        return is_divided(d) ? ((int64_t)d.blocks + d.all) * S::sums * 4 : 0;
    }
};
int64_t conv_wgmma_bytes(const conv_call &c)
{
    return with_shape(c, by_bytes{c});
}

template <class T> struct by_launch {
    const conv_call &c;
    cudaStream_t stream;

    cudaError_t operator()(const conv_taps_plan &p) const
    {
        const conv_axis &h = c.axis[1], &w = c.axis[2];
        CUtensorMap image, y;
        if (!map_of_matrix<T>(c.image, c.channels, w.size, h.size, batch_of(c), TAPS_LINE,
                              TAPS_LINE, &image) ||
            !map_of_matrix<T>(c.other, (int64_t)c.groups * c.rows, w.count, h.count, batch_of(c),
                              TAPS_SIDE, TAPS_SIDE, &y))
            return cudaErrorNotSupported;
        cudaError_t e = ts::launch(conv_taps_kernel<T>,
                                   {dim3((unsigned)(p.all * p.parts * p.cluster)), dim3(TAPS_BLOCK),
                                    TAPS_BYTES, (unsigned)p.cluster},
                                   stream, c, image, y, p);
        if (e != cudaSuccess || p.parts == 1)
            return e;
        return ts::launch_early(
            conv_taps_merge_kernel<T>,
            {dim3((unsigned)p.all, TAPS_SUMS / 32), dim3(TAPS_WARPS * 32), 0, 1}, stream, c, p);
    }
    template <class S> cudaError_t operator()() const
    {
        CUtensorMap image, y;
        conv_copies copies;
        conv_division d = division_of<S>(c);
        if (!map_of_windows<T>(c, 64, &image, &copies) ||
            !map_of_matrix<T>(c.other, (int64_t)c.groups * c.rows, c.windows, 1, 1, 64, 1, &y))
            return cudaErrorNotSupported;
        cudaError_t e = ts::launch(conv_wgmma_by_kernel<T, S>,
                                   {dim3((unsigned)d.blocks), dim3(CONV_BLOCK_BY), S::bytes, 1},
                                   stream, c, image, y, copies, d);
        if (e != cudaSuccess || !is_divided(d))
            return e;
        return ts::launch(conv_merge_kernel<T, S>,
                          {dim3((unsigned)d.all, 2 * S::sets * 16 / CONV_MERGED), dim3(128), 0, 1},
                          stream, c, d);
    }
};
template <class T> cudaError_t conv_wgmma_by(const conv_call &c, cudaStream_t stream)
{
    return c.each < 32 ? cudaErrorNotSupported : with_shape(c, by_launch<T>{c, stream});
}

#else

template <class T> cudaError_t conv_wgmma(const conv_call &, cudaStream_t)
{
    return cudaErrorNotSupported;
}
template <class T> cudaError_t conv_wgmma_by(const conv_call &, cudaStream_t)
{
    return cudaErrorNotSupported;
}
int64_t conv_wgmma_bytes(const conv_call &)
{
    return 0;
}

#endif

template cudaError_t conv_wgmma<bf16>(const conv_call &, cudaStream_t);
template cudaError_t conv_wgmma<f16>(const conv_call &, cudaStream_t);
template cudaError_t conv_wgmma_by<bf16>(const conv_call &, cudaStream_t);
template cudaError_t conv_wgmma_by<f16>(const conv_call &, cudaStream_t);

} // namespace ts
