/**
 * @file f32.cu
 * Products of f32 matrices on tensor cores (3xTF32, instructions/mma.cuh), for sizes at which
 * cuBLASLt's f32 kernels are slower: up to 2^30 multiplications, if the tiles of the result and the
 * parts of the inner dim occupy the GPU.
 *
 * A block computes a tile of SIDE x SIDE results. Its four warps compute a quarter each; DEPTH
 * elements along k of SIDE rows of a and SIDE columns of b pass through shared memory, STAGES of
 * them at a time. If there are fewer tiles than multiprocessors, the blocks of a cluster share the
 * inner dim of a tile, and add their sums in a fixed order over distributed shared memory.
 *
 * Accuracy: tensor cores truncate sums. Each piece of DEPTH products is therefore summed from zero,
 * and the sums of pieces are added in f32. An infinity or a number above the largest TF32 number
 * gives NaN, so results that are not finite are computed again from the operands by FMAs.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/instructions/barrier.cuh"
#include "backends/cuda/runtime/early.cuh"
#include "backends/cuda/frame.cuh"
#include "backends/cuda/product/gemm.h"
#include "backends/cuda/runtime/launch.h"
#include "backends/cuda/instructions/mma.cuh"

namespace ts {

/* Shared memory holds a piece as lines of k (k is dense in the operand) or of rows. The padding
 * puts the elements that a warp loads at once into different banks. */
enum {
    SIDE = 64, /* columns of a tile, and maximum of its rows */
    DEPTH = 32,
    STAGES = 3,
    THREADS = 128,
    MOST_BLOCKS = 8,       /* maximum blocks of a cluster */
    PROCESSORS = 132,      /* multiprocessors that a grid is sized for */
    LINE_OF_K = DEPTH + 4, /* floats of a padded line of k */
    TILE_LINE = SIDE + 4   /* floats of a padded row of the tile of results */
};
constexpr int line_of_rows(int side)
{
    return side + 8;
}
/** Floats of a piece of `side` rows or columns, in either form. */
constexpr int piece(int side)
{
    return side * LINE_OF_K > DEPTH * line_of_rows(side) ? side * LINE_OF_K
                                                         : DEPTH * line_of_rows(side);
}
constexpr int stage(int rows)
{
    return piece(rows) + piece(SIDE);
}
constexpr int bytes(int rows)
{
    return STAGES * stage(rows) * 4;
}
static_assert(stage(32) * STAGES >= 32 * TILE_LINE + 32 &&
                  stage(SIDE) * STAGES >= SIDE * TILE_LINE + SIDE,
              "the tile and the sums replace the pieces");

struct f32_product {
    const float *a, *b;
    int64_t a_step, b_step, a_batch, b_batch; /* steps between dense lines */
    float *c;
    int64_t c_row, c_batch;
    int rows, columns, inner;
    const float *bias, *added;
    float *sums; /* receives the sums of a's rows */
    float alpha, beta;
    bool relu;   /* applied to what is stored */
    bool beside; /* runs beside the kernel in front, ts_cuda_epilogue.beside */
};

/** Copies the pieces of an operand, one after the other. WIDTH: rows or columns of a piece. OF_K: k
 * is dense. */
template <bool OF_K, int WIDTH> struct piece_reader {
    static constexpr int chunks = (OF_K ? DEPTH : WIDTH) / 4, lines = OF_K ? WIDTH : DEPTH,
                         together = THREADS / chunks; /* lines that all threads copy at once */
    const float *from;
    int64_t hop, advance; /* elements to this thread's next line, and to the next piece */
    uint32_t to;
    int rows, inner; /* remaining sizes of the operand starting at this thread's next element */

    __device__ __forceinline__ piece_reader(const float *operand, int64_t step, int rows, int inner)
    {
        int line = (int)threadIdx.x / chunks, at = (int)threadIdx.x % chunks * 4;
        from = operand + line * step + at;
        hop = together * step;
        advance = OF_K ? DEPTH : DEPTH * step;
        to = (uint32_t)(line * (OF_K ? LINE_OF_K : line_of_rows(WIDTH)) + at) * 4;
        this->rows = rows - (OF_K ? line : at);
        this->inner = inner - (OF_K ? at : line);
    }
    /** Starts the copies of the next piece; elements outside the operand become zero. */
    __device__ __forceinline__ void next(uint32_t base)
    {
        int length = OF_K ? inner : rows, limit = OF_K ? rows : inner;
        int bytes = min(max(length, 0), 4) * 4;
#pragma unroll
        for (int i = 0; i < lines / together; i++)
            asm volatile(
                "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                    base + to +
                    (uint32_t)(i * together * (OF_K ? LINE_OF_K : line_of_rows(WIDTH)) * 4)),
                "l"(from + i * hop), "r"(i * together < limit ? bytes : 0)
                : "memory");
        from += advance;
        inner -= DEPTH;
    }
};

/** Element k of row `row` of a piece. */
template <bool OF_K, int WIDTH>
static __device__ __forceinline__ split_f32 element(const float *piece, int row, int k)
{
    return split_f32(
        __float_as_uint(OF_K ? piece[row * LINE_OF_K + k] : piece[k * line_of_rows(WIDTH) + row]));
}

/** The result in row i and column j, computed by FMAs from the operands in global memory. */
template <bool A_K, bool B_K>
static __device__ __noinline__ float exactly(const f32_product &p, const float *a, const float *b,
                                             int i, int j)
{
    float sum = 0;
    for (int k = 0; k < p.inner; k++)
        sum = fmaf(A_K ? a[i * p.a_step + k] : a[k * p.a_step + i],
                   B_K ? b[j * p.b_step + k] : b[k * p.b_step + j], sum);
    return sum;
}

/** Four numbers of block `rank` of the cluster, at the place of `mine` in its shared memory. */
static __device__ __forceinline__ float4 peer_numbers(const float *mine, int rank)
{
    float4 x = {};
#if __CUDA_ARCH__ >= 900
    asm("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
        : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
        : "r"(peer_address(shared_address(mine), (uint32_t)rank))
        : "memory");
#endif
    return x;
}
/** Adds up four numbers of all blocks of the cluster, in order. */
static __device__ __forceinline__ float4 sums_of(const float *mine, int blocks)
{
    if (blocks == 1)
        return *(const float4 *)mine;
    float4 x[MOST_BLOCKS];
#pragma unroll
    for (int from = 0; from < MOST_BLOCKS;
         from++) /* all loads are in flight before the first sum */
        x[from] = from < blocks ? peer_numbers(mine, from) : float4{};
#pragma unroll
    for (int from = 1; from < MOST_BLOCKS; from++) {
        x[0].x += x[from].x;
        x[0].y += x[from].y;
        x[0].z += x[from].z;
        x[0].w += x[from].w;
    }
    return x[0];
}
/** Loads four numbers, of which `some` exist. vectors: `from` is a multiple of 16 bytes. */
static __device__ __forceinline__ float4 load_four(const float *from, bool vectors, int some)
{
    if (vectors && some == 4)
        return *(const float4 *)from;
    return {from[0], some > 1 ? from[1] : 0, some > 2 ? from[2] : 0, some > 3 ? from[3] : 0};
}
static __device__ __forceinline__ void meet(int blocks)
{
#if __CUDA_ARCH__ >= 900
    if (blocks > 1) {
        cluster_sync();
        return;
    }
#endif
    __syncthreads();
}

/** A_K, B_K: k is the dense dim of the operand. ROWS: rows of a tile. log_blocks: binary logarithm
 * of the number of blocks of a cluster, which share the inner dim. */
template <bool A_K, bool B_K, int ROWS>
static __global__ void __launch_bounds__(THREADS, ROWS == 32 ? 5 : 3)
    f32_product_kernel(const __grid_constant__ f32_product p, int log_blocks)
{
    constexpr int M = ROWS / 32; /* fragments of a warp's rows */
    extern __shared__ __align__(128) float pieces[];
    int blocks = 1 << log_blocks, rank = (int)blockIdx.x & (blocks - 1),
        column = ((int)blockIdx.x >> log_blocks) * SIDE, row = (int)blockIdx.y * ROWS,
        batch = (int)blockIdx.z;
    const float *a = p.a + batch * p.a_batch, *b = p.b + batch * p.b_batch;
    int count = (p.inner + DEPTH - 1) / DEPTH, begin = count * rank >> log_blocks,
        end = count * (rank + 1) >> log_blocks, skipped = begin * DEPTH;
    piece_reader<A_K, ROWS> of_a(a + (A_K ? row * p.a_step + skipped : row + skipped * p.a_step),
                                 p.a_step, p.rows - row, p.inner - skipped);
    piece_reader<B_K, SIDE> of_b(
        b + (B_K ? column * p.b_step + skipped : column + skipped * p.b_step), p.b_step,
        p.columns - column, p.inner - skipped);
    uint32_t base = shared_address(pieces);
    auto start = [&](int i) {
        if (i < end) {
            uint32_t to = base + (uint32_t)((i - begin) % STAGES * stage(ROWS) * 4);
            of_a.next(to);
            of_b.next(to + piece(ROWS) * 4);
        }
        copies_commit();
    };
    /* All kernels before the one in front have ended: that one waited for them before it let this
     * one begin. */
    if (!p.beside) {
        wait_for_kernel_in_front();
        begin_next_kernel();
    }
    for (int s = 0; s < STAGES - 1; s++)
        start(begin + s);

    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, own_row = warp / 2 * (ROWS / 2),
        own_column = warp % 2 * 32, group = lane / 4, quad = lane % 4;
    bool sums = p.sums && column == 0;
    float total[M][4][4] = {}, line = 0;
    for (int i = begin; i < end; i++) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        start(i + STAGES - 1);
        const float *left = pieces + (i - begin) % STAGES * stage(ROWS),
                    *right = left + piece(ROWS);
        float sum[M][4][4] = {};
#pragma unroll
        for (int k = 0; k < DEPTH; k += 8) {
            auto x = [&](int m, int e) {
                return element<A_K, ROWS>(left, own_row + 16 * m + group + e % 2 * 8,
                                          k + quad + e / 2 * 4);
            };
            const split_f32 u[2][4] = {{x(0, 0), x(0, 1), x(0, 2), x(0, 3)},
                                       {x(M - 1, 0), x(M - 1, 1), x(M - 1, 2), x(M - 1, 3)}};
            auto y = [&](int n, int e) {
                return element<B_K, SIDE>(right, own_column + 8 * n + group, k + quad + e * 4);
            };
            const split_f32 v[4][2] = {
                {y(0, 0), y(0, 1)}, {y(1, 0), y(1, 1)}, {y(2, 0), y(2, 1)}, {y(3, 0), y(3, 1)}};
            /* the three products of a sum are far apart, because each waits for the one before */
#pragma unroll
            for (int part = 0; part < 3; part++)
#pragma unroll
                for (int n = 0; n < 4; n++)
#pragma unroll
                    for (int m = 0; m < M; m++) {
                        auto left_of = [&](int e) {
                            return part == 0 ? u[m][e].low : u[m][e].high;
                        };
                        auto right_of = [&](int e) {
                            return part == 1 ? v[n][e].low : v[n][e].high;
                        };
                        mma_tf32(sum[m][n], left_of(0), left_of(1), left_of(2), left_of(3),
                                 right_of(0), right_of(1));
                    }
        }
        if (sums && threadIdx.x < ROWS)
#pragma unroll 8
            for (int k = 0; k < DEPTH; k++)
                line += A_K ? left[threadIdx.x * LINE_OF_K + k]
                            : left[k * line_of_rows(ROWS) + threadIdx.x];
#pragma unroll
        for (int e = 0; e < 16 * M; e++)
            total[e / 16][e / 4 % 4][e % 4] += sum[e / 16][e / 4 % 4][e % 4];
    }
    copies_wait<0>();
    __syncthreads();

    float *lines = pieces + ROWS * TILE_LINE;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                *(float2 *)(pieces + (own_row + 16 * m + group + 8 * half) * TILE_LINE +
                            own_column + 8 * n +
                            quad * 2) = {total[m][n][2 * half], total[m][n][2 * half + 1]};
    if (threadIdx.x < ROWS)
        lines[threadIdx.x] = line;
    meet(blocks);
    int share = ROWS >> log_blocks; /* rows that this block adds up and stores */
    bool vectors = p.c_row % 4 == 0;
    for (int index = threadIdx.x; index < share * (SIDE / 4); index += THREADS) {
        int r = rank * share + index / (SIDE / 4), k = index % (SIDE / 4) * 4;
        if (row + r >= p.rows || column + k >= p.columns)
            continue;
        float4 joined = sums_of(pieces + r * TILE_LINE + k, blocks);
        float x[4] = {joined.x, joined.y, joined.z, joined.w};
        int64_t to = batch * p.c_batch + (row + r) * p.c_row + column + k;
        int some = min(p.columns - column - k, 4);
        float4 bias = {}, added = {};
        if (p.bias)
            bias = load_four(p.bias + column + k, true, some);
        if (p.beta != 0)
            added = load_four(p.added + to, vectors, some);
        const float biases[4] = {bias.x, bias.y, bias.z, bias.w},
                    others[4] = {added.x, added.y, added.z, added.w};
        if (!isfinite((x[0] - x[0]) + (x[1] - x[1]) + (x[2] - x[2]) + (x[3] - x[3])))
            for (int e = 0; e < some; e++)
                if (!isfinite(x[e]))
                    x[e] = exactly<A_K, B_K>(p, a, b, row + r, column + k + e);
#pragma unroll
        for (int e = 0; e < 4; e++)
            x[e] = fmaf(p.beta, others[e], x[e] * p.alpha) + biases[e];
        if (p.relu)
#pragma unroll
            for (int e = 0; e < 4; e++)
                x[e] = x[e] < 0 ? 0 : x[e];
        if (vectors && some == 4)
            *(float4 *)(p.c + to) = {x[0], x[1], x[2], x[3]};
        else
            for (int e = 0; e < some; e++)
                p.c[to + e] = x[e];
    }
    if (sums && rank == 0 && threadIdx.x < ROWS / 4) {
        float4 joined = sums_of(lines + threadIdx.x * 4, blocks);
        const float x[4] = {joined.x, joined.y, joined.z, joined.w};
        for (int e = 0; e < 4; e++)
            if (row + (int)threadIdx.x * 4 + e < p.rows)
                p.sums[row + threadIdx.x * 4 + e] = x[e];
    }
    if (blocks > 1) /* the others may still read this block's memory */
        meet(blocks);
    if (p.beside) /* kernels after this one wait for it alone */
        wait_for_kernel_in_front();
}

/** Number of blocks that share the inner dim of a tile. It depends on sizes only. */
static int blocks_of(int64_t tiles, int64_t inner)
{
    int blocks = 1;
    while (blocks < MOST_BLOCKS && tiles * blocks < 2 * PROCESSORS &&
           inner >= (int64_t)blocks * 4 * DEPTH)
        blocks *= 2;
    return blocks;
}
static int64_t tiles_of(int64_t rows, int64_t columns, int64_t batches, int side)
{
    return batches * ((columns + SIDE - 1) / SIDE) * ((rows + side - 1) / side);
}
/** Rows of a tile: 32 if tiles of 64 rows would not give each multiprocessor two blocks. */
static int rows_of(int64_t rows, int64_t columns, int64_t batches)
{
    return tiles_of(rows, columns, batches, SIDE) < 2 * PROCESSORS ? 32 : SIDE;
}

} // namespace ts

using namespace ts;

/** The step between the dense lines of an operand; 0 if 16-byte copies cannot load them. */
static int64_t step_of(const ts_cuda_matrix *m, int64_t batches)
{
    int64_t step = m->column == 1 ? m->row : m->column;
    return step % 4 || (batches > 1 && m->batch % 4) ? 0 : step;
}

bool ts_cuda_takes_f32(const ts_cuda_device *device, const ts_cuda_matrix *a,
                       const ts_cuda_matrix *b, const ts_cuda_matrix *c, int64_t batches,
                       const ts_cuda_epilogue *then)
{
    constexpr double most = 1 << 30; /* multiplications; larger products are cuBLASLt's */
    constexpr int64_t longest = 384; /* inner dim of a block, where multiprocessors are idle */
    int64_t tiles = tiles_of(c->rows, c->columns, batches, rows_of(c->rows, c->columns, batches));
    int blocks = blocks_of(tiles, a->columns);
    if (tiles * blocks < 2 * PROCESSORS && a->columns > longest * blocks)
        return false;
    double work = (double)c->rows * (double)c->columns * (double)a->columns * (double)batches;
    return device->clusters && !then->gelu && !then->gelu_of && work <= most && a->columns >= 16 &&
           c->rows >= 16 && c->columns >= 16 && step_of(a, batches) && step_of(b, batches) &&
           c->rows <= 1 << 20 && batches <= UINT16_MAX && (!then->sums || batches == 1);
}

template <bool A_K, bool B_K, int ROWS>
static cudaError_t start(const f32_product &p, int64_t batches, cudaStream_t stream)
{
    int64_t tiles = tiles_of(p.rows, p.columns, batches, ROWS);
    int blocks = blocks_of(tiles, p.inner);
    ts_cuda_grid grid = {dim3((unsigned)((p.columns + SIDE - 1) / SIDE * blocks),
                              (unsigned)((p.rows + ROWS - 1) / ROWS), (unsigned)batches),
                         dim3(THREADS), bytes(ROWS), (unsigned)blocks};
    return launch_early(f32_product_kernel<A_K, B_K, ROWS>, grid, stream, p,
                        __builtin_ctz((unsigned)blocks));
}
template <bool A_K, bool B_K>
static cudaError_t start(const f32_product &p, int64_t batches, cudaStream_t stream)
{
    return rows_of(p.rows, p.columns, batches) == 32 ? start<A_K, B_K, 32>(p, batches, stream)
                                                     : start<A_K, B_K, SIDE>(p, batches, stream);
}

ts_status ts_cuda_gemm_f32(const ts_frame *f, const ts_cuda_matrix *a, const ts_cuda_matrix *b,
                           const ts_cuda_matrix *c, int64_t batches, const ts_cuda_epilogue *then)
{
    f32_product p = {};
    p.a = (const float *)a->data;
    p.b = (const float *)b->data;
    p.c = (float *)c->data;
    p.a_step = step_of(a, batches);
    p.b_step = step_of(b, batches);
    p.a_batch = a->batch;
    p.b_batch = b->batch;
    p.c_row = c->row;
    p.c_batch = c->batch;
    p.rows = (int)c->rows;
    p.columns = (int)c->columns;
    p.inner = (int)a->columns;
    p.bias = (const float *)then->bias;
    p.alpha = then->factors ? (float)then->factors[0] : 1;
    p.beta = then->factors ? (float)then->factors[1] : 0;
    p.added = (const float *)(then->added ? then->added : c->data);
    p.sums = (float *)then->sums;
    p.relu = then->relu;
    p.beside = then->beside;
    bool a_k = a->column == 1, b_k = b->row == 1 && b->column != 1;
    call at = call_of(f);
    if (!at.device)
        return ts_error_code();
    cudaError_t e = a_k   ? b_k ? start<true, true>(p, batches, at.stream)
                                : start<true, false>(p, batches, at.stream)
                      : b_k ? start<false, true>(p, batches, at.stream)
                          : start<false, false>(p, batches, at.stream);
    return ts_cuda_launched(f, e, at.stream);
}
