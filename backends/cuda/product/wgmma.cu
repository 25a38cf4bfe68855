/** @file wgmma.cu  Launches the kernel of wgmma.cuh: a product of halves times the derivative of
 * gelu, with the sums of the result's columns. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/frame.cuh"
#include "backends/cuda/fuse/fuse.h"
#include "backends/cuda/product/gemm.h"
#include "backends/cuda/product/wgmma.cuh"
#include "backends/cuda/runtime/launch.h"
#include "backends/cuda/instructions/tma.h"

using namespace ts;

enum {
    PROCESSORS = 132,  /* multiprocessors of an H100. A pair of them computes a tile of 256 rows;
                          with fewer than two tiles for each pair, other kernels are faster */
    SHARED = 512,      /* least inner dim at which clusters of four blocks pay */
    LONGEST = 2048,    /* with a longer inner dim, cuBLASLt's product and a pass are faster */
    CACHED = 16 << 20, /* bytes of b that stay in the second-level cache */
    BAND = 8           /* tiles of columns that are computed for all rows before the next ones, if b
                          is larger than CACHED */
};

static int64_t wide_of(const ts_cuda_matrix *c)
{
    return (c->columns + SLOPE_SIDE - 1) / SLOPE_SIDE;
}
static int64_t tall_of(const ts_cuda_matrix *c)
{
    return (c->rows + 2 * SLOPE_SIDE - 1) / (2 * SLOPE_SIDE);
}

/** True if rows of m are dense and begin at multiples of 16 bytes. */
static bool has_even_rows(const ts_cuda_matrix *m)
{
    return m->column == 1 && m->row % 8 == 0 && m->columns % 8 == 0;
}

bool ts_cuda_takes_slope(const ts_cuda_device *device, ts_dtype dtype, const ts_cuda_matrix *a,
                         const ts_cuda_matrix *b, const ts_cuda_matrix *c, int64_t batches,
                         const ts_cuda_epilogue *then)
{
    return device->hopper && ts_dtype_is_half(dtype) && then->gelu_of && batches == 1 &&
           has_even_rows(a) && has_even_rows(b) && has_even_rows(c) && a->columns &&
           a->columns <= LONGEST && c->rows <= INT32_MAX / 2 && c->columns <= INT32_MAX / 2 &&
           wide_of(c) * tall_of(c) >= PROCESSORS && wide_of(c) * tall_of(c) <= INT32_MAX / 4;
}

#ifdef TS_CUDA_SM90A

template <class T>
static bool map_of(CUtensorMap *map, const void *data, const ts_cuda_matrix *m, int box)
{
    return tma_map<T>(map, {(void *)data, 0, 0, m->row}, (int)m->columns, (int)m->rows, 1, 1, box);
}

/** Number of clusters of 2 WIDE blocks that run, and of tiles that one of them computes. */
struct slope_division {
    int clusters, turns;
};
template <class T, int WIDE> static slope_division divide(const ts_cuda_matrix *c, bool curve)
{
    ts_cuda_grid grid = {dim3(2 * WIDE), dim3(SLOPE_BLOCK), SLOPE_BYTES, 2 * WIDE};
    auto kernel = curve ? slope_kernel<T, true, WIDE> : slope_kernel<T, false, WIDE>;
    int clusters = ts_cuda_clusters((const void *)kernel, &grid),
        all = (int)((wide_of(c) + WIDE - 1) / WIDE * tall_of(c));
    return {all < clusters ? all : clusters, clusters ? (all + clusters - 1) / clusters : 0};
}

template <class T, int WIDE>
static cudaError_t start(const ts_cuda_matrix *a, const ts_cuda_matrix *b, const ts_cuda_matrix *c,
                         const ts_cuda_epilogue *then, float *sums, int clusters,
                         cudaStream_t stream)
{
    slope_product p = {};
    p.rows = (int)c->rows;
    p.columns = (int)c->columns;
    p.inner = (int)a->columns;
    p.wide = (int)(wide_of(c) + WIDE - 1) / WIDE;
    p.tall = (int)tall_of(c);
    p.band = (int64_t)p.wide * WIDE * SLOPE_SIDE * p.inner * 2 <= CACHED ? p.wide : BAND / WIDE;
    p.sums = sums;
    CUtensorMap left, right, x, y, curve;
    if (!map_of<T>(&left, a->data, a, SLOPE_SIDE / WIDE) || !map_of<T>(&right, b->data, b, 64) ||
        !map_of<T>(&x, then->gelu_of, c, 16) || !map_of<T>(&y, c->data, c, 16))
        return cudaErrorNotSupported;
    curve = y;
    if (then->curve && !map_of<T>(&curve, then->curve, c, 16))
        return cudaErrorNotSupported;
    ts_cuda_grid grid = {dim3(2 * WIDE * (unsigned)clusters), dim3(SLOPE_BLOCK), SLOPE_BYTES,
                         2 * WIDE};
    auto kernel = then->curve ? slope_kernel<T, true, WIDE> : slope_kernel<T, false, WIDE>;
    return launch_early(kernel, grid, stream, p, left, right, x, y, curve);
}

/** If rows of a begin within sectors of 32 bytes, loads limit long products: blocks then share the
 *  loads in clusters of four, unless that takes more than 5 / 4 of the turns of clusters of two.
 *  Clusters of two can use more multiprocessors and compute all other products. */
template <class T>
static cudaError_t start(const ts_cuda_matrix *a, const ts_cuda_matrix *b, const ts_cuda_matrix *c,
                         const ts_cuda_epilogue *then, float *sums, cudaStream_t stream)
{
    slope_division two = divide<T, 1>(c, then->curve), four = {};
    if (a->row % 16 && a->columns >= SHARED)
        four = divide<T, 2>(c, then->curve);
    if (four.clusters && 4 * four.turns <= 5 * two.turns)
        return start<T, 2>(a, b, c, then, sums, four.clusters, stream);
    return two.clusters ? start<T, 1>(a, b, c, then, sums, two.clusters, stream)
                        : cudaErrorNotSupported;
}

#else

template <class T>
static cudaError_t start(const ts_cuda_matrix *, const ts_cuda_matrix *, const ts_cuda_matrix *,
                         const ts_cuda_epilogue *, float *, cudaStream_t)
{
    return cudaErrorNotSupported;
}

#endif

ts_status ts_cuda_gemm_slope(const ts_frame *f, ts_dtype dtype, const ts_cuda_matrix *a,
                             const ts_cuda_matrix *b, const ts_cuda_matrix *c,
                             const ts_cuda_epilogue *then)
{
    call at = call_of(f);
    if (!at.device)
        return ts_error_code();
    ts_device where = ts_kernel_device(f);
    ts_cuda_sums sums = {};
    sums.sums[0] = then->columns;
    sums.dtypes[0] = (uint8_t)dtype;
    sums.count = 1;
    sums.lines = 2 * tall_of(c);
    sums.columns = c->columns;
    int64_t bytes = then->columns ? sums.lines * sums.columns * (int64_t)sizeof(float) : 0;
    float *parts = bytes ? (float *)ts_scratch_take(where, bytes) : nullptr;
    if (bytes && !parts)
        return ts_error_code();
    cudaError_t e = dtype == TS_BF16 ? start<bf16>(a, b, c, then, parts, at.stream)
                                     : start<f16>(a, b, c, then, parts, at.stream);
    ts_status status = ts_cuda_launched(f, e, at.stream);
    if (status == TS_OK && bytes) {
        sums.parts[0] = parts;
        status = ts_cuda_launched(f, ts_cuda_add_lines(&sums, at.stream), at.stream);
    }
    if (bytes)
        ts_scratch_give(where, parts, bytes);
    return status;
}
