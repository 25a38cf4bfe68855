/**
 * @file blocks.cu
 * Each use that attention makes of wgmma.cuh, barrier.cuh, tma.h and mma.cuh, alone: one block of threads, whole
 * numbers from -3 to 3, and the host's sums, which are exact as those of the device must be.
 */
// SPDX-License-Identifier: MIT
#include "tests/cuda/blocks.h"

#include "backends/cuda/attention_mma.cuh"
#include "backends/cuda/tma.h"
#include "backends/cuda/wgmma.cuh"

#include <stdlib.h>

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define HOPPER 1
#else
#define HOPPER 0 /* other code is empty */
#endif

using namespace ts;

namespace {

/* --------------------------------------------------------------------------------- host ---- */

/** An array here and on the device. */
template <class T> struct both {
    int n;
    T *host, *device = nullptr;
    explicit both(int n) : n(n), host((T *)malloc(n * sizeof(T))) { cudaMalloc((void **)&device, n * sizeof(T)); }
    ~both()
    {
        free(host);
        cudaFree(device);
    }
    both(const both &) = delete;
    both &up()
    {
        cudaMemcpy(device, host, n * sizeof(T), cudaMemcpyHostToDevice);
        return *this;
    }
    both &down()
    {
        cudaMemcpy(host, device, n * sizeof(T), cudaMemcpyDeviceToHost);
        return *this;
    }
    both &whole(uint32_t seed)
    {
        for (int i = 0; i < n; i++) {
            uint32_t x = (uint32_t)i * 2654435761u ^ seed * 40503u;
            x = (x ^ x >> 15) * 2246822519u;
            host[i] = (T)(float)((int)((x ^ x >> 13) % 7) - 3);
        }
        return up();
    }
    both &all(float x)
    {
        for (int i = 0; i < n; i++)
            host[i] = (T)x;
        return up();
    }
    float operator[](int i) const { return (float)host[i]; }
};

cudaError_t failure;

/** A block of `threads` threads; false when CUDA reports an error. */
template <class... P, class... X> bool run(void (*kernel)(P...), int blocks, int threads, int bytes, const X &...x)
{
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    kernel<<<blocks, threads, bytes>>>(x...);
    failure = cudaGetLastError();
    if (failure == cudaSuccess)
        failure = cudaDeviceSynchronize();
    return failure == cudaSuccess;
}

/** A map of one matrix. */
template <class T> CUtensorMap map_of(const both<T> &x, int rows, int columns, int box_rows)
{
    CUtensorMap map = {};
    tma_map<T>(&map, {x.device, 0, 0, columns}, columns, rows, 1, 1, box_rows);
    return map;
}

/* ------------------------------------------------------------------------------- device ---- */

__device__ __forceinline__ uint32_t tiles_of(char *shared)
{
    return (shared_address(shared) + 1023) & ~1023u;
}
/** Where element e of accumulators n of a group lies in its 64 rows of `columns`. */
__device__ __forceinline__ int place(int n, int e, int columns)
{
    int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4 + e / 2 * 8;
    return row * columns + n * 8 + lane % 4 * 2 + e % 2;
}
template <int N> __device__ __forceinline__ void get(float (&d)[N][4], const float *from)
{
    for (int n = 0; n < N; n++)
        for (int e = 0; e < 4; e++)
            d[n][e] = from[place(n, e, N * 8)];
}
template <int N> __device__ __forceinline__ void give(float *to, const float (&d)[N][4])
{
    for (int n = 0; n < N; n++)
        for (int e = 0; e < 4; e++)
            to[place(n, e, N * 8)] = d[n][e];
}

/* -------------------------------------------- scores: both operands from shared memory, by columns ---- */

/** The lower 64 of 128 rows of a, times N rows of b. */
template <class T, int DEPTH, int N>
__global__ void __launch_bounds__(128)
    products_kernel(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map, float *out)
{
#if HOPPER
    extern __shared__ char shared[];
    uint32_t a = tiles_of(shared), b = a + 128 * DEPTH * 2, full = b + N * DEPTH * 2;
    if (threadIdx.x == 0) {
        barrier_init(full, 1);
        barriers_ready();
        barrier_expect(full, (128 + N) * DEPTH * 2);
        tma_load_tile<128, DEPTH>(a, &a_map, 0, 0, 0, full);
        tma_load_tile<N, DEPTH>(b, &b_map, 0, 0, 0, full);
    }
    __syncthreads();
    barrier_wait(full, 0);
    float d[N / 8][4];
    for (int n = 0; n < N / 8; n++)
        for (int e = 0; e < 4; e++)
            d[n][e] = 99; /* to be overwritten */
    settle(d);
    wgmma_begin();
    wgmma_products<T, DEPTH, 128, N>(d, a + 64 * 128, b);
    wgmma_commit();
    wgmma_wait<0>();
    settle(d);
    give(out, d);
#endif
}

template <class T, int DEPTH, int N, int COLUMNS> int products()
{
    both<T> a(128 * COLUMNS), b(N * COLUMNS);
    both<float> out(64 * N);
    a.whole(1);
    b.whole(2);
    out.all(NAN);
    if (!run(products_kernel<T, DEPTH, N>, 1, 128, 1024 + (128 + N) * DEPTH * 2 + 8, map_of(a, 128, COLUMNS, 128),
             map_of(b, N, COLUMNS, N), out.device))
        return -1;
    int wrong = 0;
    out.down();
    for (int i = 0; i < 64; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int c = 0; c < COLUMNS; c++)
                sum += a[(64 + i) * COLUMNS + c] * b[j * COLUMNS + c];
            wrong += out[i * N + j] != sum;
        }
    return wrong;
}

/* --------------------------------------------- sums: left operand from registers, right one by rows ---- */

/** 64 x ROWS accumulators, packed, times ROWS rows of b, added to 64 x N accumulators. */
template <class T, int ROWS, int N>
__global__ void __launch_bounds__(128)
    accumulate_kernel(const float *left, const __grid_constant__ CUtensorMap b_map, float *sums)
{
#if HOPPER
    extern __shared__ char shared[];
    uint32_t b = tiles_of(shared), full = b + ROWS * N * 2;
    if (threadIdx.x == 0) {
        barrier_init(full, 1);
        barriers_ready();
        barrier_expect(full, ROWS * N * 2);
        tma_load_tile<ROWS, N>(b, &b_map, 0, 0, 0, full);
    }
    __syncthreads();
    barrier_wait(full, 0);
    float s[ROWS / 8][4], d[N / 8][4];
    uint32_t p[ROWS / 16][4];
    get(s, left);
    get(d, sums);
    pack_left<T>(p, s);
    settle(d);
    wgmma_begin();
    wgmma_accumulate<T, ROWS>(d, p, b);
    wgmma_commit();
    wgmma_wait<0>();
    settle(d);
    give(sums, d);
#endif
}

template <class T, int ROWS, int N> int accumulate_rows()
{
    both<float> left(64 * ROWS), sums(64 * N), before(64 * N);
    both<T> b(ROWS * N);
    left.whole(3);
    b.whole(4);
    sums.whole(5);
    before.whole(5);
    if (!run(accumulate_kernel<T, ROWS, N>, 1, 128, 1024 + ROWS * N * 2 + 8, left.device, map_of(b, ROWS, N, ROWS), sums.device))
        return -1;
    int wrong = 0;
    sums.down();
    for (int i = 0; i < 64; i++)
        for (int j = 0; j < N; j++) {
            float sum = before[i * N + j];
            for (int r = 0; r < ROWS; r++)
                sum += left[i * ROWS + r] * b[r * N + j];
            wrong += sums[i * N + j] != sum;
        }
    return wrong;
}

/* ------------------------------------------------------------------------- the copy engine ---- */

/** Tile as it lies, whatever was there before. */
template <class T, int ROWS, int DEPTH>
__global__ void __launch_bounds__(128)
    load_kernel(const __grid_constant__ CUtensorMap map, int row, int head, int batch, T *out)
{
#if HOPPER
    extern __shared__ char shared[];
    uint32_t tile = tiles_of(shared), full = tile + ROWS * DEPTH * 2;
    char *here = shared + (tile - shared_address(shared));
    for (int i = threadIdx.x; i < ROWS * DEPTH; i += 128)
        ((T *)here)[i] = (T)77.0f;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    if (threadIdx.x == 0) {
        barrier_init(full, 1);
        barriers_ready();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        barrier_expect(full, ROWS * DEPTH * 2);
        tma_load_tile<ROWS, DEPTH>(tile, &map, row, head, batch, full);
    }
    barrier_wait(full, 0);
    for (int i = threadIdx.x; i < ROWS * DEPTH; i += 128)
        out[i] = ((T *)here)[i];
#endif
}

/** Batch 1, head 1 of (2, 3, 70, COLUMNS), from row FIRST on; heads outside rows or rows outside heads. */
template <class T, int ROWS, int DEPTH, int COLUMNS, int FIRST, bool SWAPPED> int load()
{
    constexpr int heads = 3, rows = 70;
    constexpr int64_t batch_step = heads * rows * COLUMNS, head_step = SWAPPED ? COLUMNS : rows * COLUMNS,
                      row_step = SWAPPED ? heads * COLUMNS : COLUMNS;
    both<T> x(2 * (int)batch_step), out(ROWS * DEPTH);
    x.whole(6);
    out.all(NAN);
    CUtensorMap map;
    if (!tma_map<T>(&map, {x.device, batch_step, head_step, row_step}, COLUMNS, rows, heads, 2, ROWS) ||
        !run(load_kernel<T, ROWS, DEPTH>, 1, 128, 1024 + ROWS * DEPTH * 2 + 8, map, FIRST, 1, 1, out.device))
        return -1;
    int wrong = 0;
    out.down();
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < DEPTH; c++) {
            bool inside = FIRST + r < rows && c < COLUMNS;
            float want = inside ? x[(int)(batch_step + head_step + (FIRST + r) * row_step) + c] : 0;
            wrong += out[c / 64 * ROWS * 64 + r * 64 + ((c % 64 / 8 ^ r % 8) * 8) + c % 8] != want;
        }
    return wrong;
}

/** Tiles through a ring of two places to two groups: each adds up tile i, i + 1 times. */
template <class T>
__global__ void __launch_bounds__(384, 1) ring_kernel(const __grid_constant__ CUtensorMap map, int tiles, float *out)
{
#if HOPPER
    extern __shared__ char shared[];
    constexpr int bytes = 64 * 64 * 2;
    uint32_t tile = tiles_of(shared);
    char *here = shared + (tile - shared_address(shared));
    tile_ring<2> ring{tile + 2 * bytes};
    if (threadIdx.x == 0) {
        ring.init(2);
        barriers_ready();
    }
    __syncthreads();
    int group = threadIdx.x / 128 - 1;
    if (group < 0) {
        registers_shrink<24>();
        if (threadIdx.x == 0)
            for (int i = 0; i < tiles; i++) {
                ring.wait_empty(i);
                barrier_expect(ring.full(i), bytes);
                tma_load_tile<64, 64>(tile + i % 2 * bytes, &map, i * 64, 0, 0, ring.full(i));
            }
    } else {
        registers_grow<240>();
        float sum[32] = {};
        for (int i = 0; i < tiles; i++) {
            ring.wait_full(i);
            for (int k = 0; k < 32; k++)
                sum[k] += (float)(i + 1) * widen(((const T *)(here + i % 2 * bytes))[k * 128 + threadIdx.x % 128]);
            turn_wait(1 + group, 128);
            if (threadIdx.x % 128 == 0)
                barrier_arrive(ring.empty(i));
        }
        for (int k = 0; k < 32; k++)
            out[(group * 32 + k) * 128 + threadIdx.x % 128] = sum[k];
    }
#endif
}

template <class T> int ring()
{
    constexpr int tiles = 9, rows = tiles * 64 - 10;
    both<T> x(rows * 64);
    both<float> out(2 * 64 * 64);
    x.whole(7);
    out.all(NAN);
    if (!run(ring_kernel<T>, 1, 384, 1024 + 2 * 64 * 64 * 2 + tile_ring<2>::bytes, map_of(x, rows, 64, 64), tiles, out.device))
        return -1;
    int wrong = 0;
    out.down();
    for (int r = 0; r < 64; r++)
        for (int c = 0; c < 64; c++) {
            float sum = 0;
            for (int i = 0; i < tiles; i++)
                if (i * 64 + r < rows)
                    sum += (float)(i + 1) * x[(i * 64 + r) * 64 + c];
            int at = r * 64 + ((c / 8 ^ r % 8) * 8) + c % 8;
            wrong += (out[at] != sum) + (out[64 * 64 + at] != sum);
        }
    return wrong;
}

/** Bytes by two copies that one barrier counts. */
__global__ void __launch_bounds__(128) bulk_kernel(const float *from, float *out)
{
#if HOPPER
    __shared__ __align__(128) float here[1024];
    __shared__ __align__(8) uint64_t barrier;
    uint32_t full = shared_address(&barrier);
    if (threadIdx.x == 0) {
        barrier_init(full, 1);
        barriers_ready();
        barrier_expect(full, sizeof here);
        bulk_load(shared_address(here), from, 1024, full);
        bulk_load(shared_address(here + 256), from + 256, 3072, full);
    }
    __syncthreads();
    barrier_wait(full, 0);
    for (int i = threadIdx.x; i < 1024; i += 128)
        out[i] = here[i];
#endif
}
int bulk()
{
    both<float> x(1024), out(1024);
    x.whole(8);
    out.all(NAN);
    if (!run(bulk_kernel, 1, 128, 0, x.device, out.device))
        return -1;
    int wrong = 0;
    out.down();
    for (int i = 0; i < 1024; i++)
        wrong += out[i] != x[i];
    return wrong;
}

/** Each of four blocks tells each its number. */
__global__ void __launch_bounds__(32) __cluster_dims__(4, 1, 1) peers_kernel(float *out)
{
#if HOPPER
    __shared__ __align__(16) float2 told[4];
    __shared__ __align__(8) uint64_t barrier;
    uint32_t full = shared_address(&barrier), rank = cluster_rank();
    if (threadIdx.x == 0) {
        barrier_init(full, 1);
        barriers_ready();
        barrier_expect(full, sizeof told);
    }
    cluster_meet();
    if (threadIdx.x < 4)
        peer_store(peer_address(shared_address(told + rank), threadIdx.x), {(float)rank, (float)threadIdx.x},
                   peer_address(full, threadIdx.x));
    barrier_wait_peers(full, 0);
    if (threadIdx.x < 4) {
        out[(rank * 4 + threadIdx.x) * 2] = told[threadIdx.x].x;
        out[(rank * 4 + threadIdx.x) * 2 + 1] = told[threadIdx.x].y;
    }
    cluster_meet();
#endif
}
int peers()
{
    both<float> out(32);
    out.all(NAN);
    if (!run(peers_kernel, 4, 32, 0, out.device))
        return -1;
    int wrong = 0;
    out.down();
    for (int to = 0; to < 4; to++)
        for (int from = 0; from < 4; from++)
            wrong += out[(to * 4 + from) * 2] != (float)from || out[(to * 4 + from) * 2 + 1] != (float)to;
    return wrong;
}

/* -------------------------------------------------------------------------------- results ---- */

/** Two groups write 64 rows each; the upper eight of sixteen rows times 2, the lower times -1. */
template <class T, int N>
__global__ void __launch_bounds__(256) write_kernel(const float *x, T *out, int step, int rows, int columns)
{
#if HOPPER
    extern __shared__ char shared[];
    int group = threadIdx.x / 128;
    float d[N / 8][4];
    get(d, x + group * 64 * N);
    write_group<T, 128>(tiles_of(shared), group * 64, d, 2, -1, out + group * 64 * step, step, rows - group * 64, columns);
#endif
}

template <class T, int N, int ROWS, int COLUMNS> int write()
{
    constexpr int step = N + 8;
    both<float> x(128 * N);
    both<T> out(128 * step);
    x.whole(9);
    out.all(55);
    if (!run(write_kernel<T, N>, 1, 256, 1024 + 128 * N * 2, x.device, out.device, step, ROWS, COLUMNS))
        return -1;
    int wrong = 0;
    out.down();
    for (int r = 0; r < 128; r++)
        for (int c = 0; c < step; c++)
            wrong += out[r * step + c] != (r < ROWS && c < COLUMNS ? x[r * N + c] * (r % 16 < 8 ? 2 : -1) : 55);
    return wrong;
}

/* --------------------------------------------------------------------- products of sm_80 ---- */

/** Warp w: rows 16 w to 16 w + 15 of a times 32 rows of b, by columns; then `left` times b, by rows. */
template <class T, int DEPTH>
__global__ void __launch_bounds__(128) mma_kernel(const T *a, const T *b, const float *left, int rows, int columns,
                                                  float *scores, float *sums)
{
    extern __shared__ __align__(128) char shared[];
    mma_tile<DEPTH> at{shared_address(shared)}, bt{at.base + 64 * DEPTH * 2};
    at.template load<64, 128>(a, columns, rows, columns);
    bt.template load<32, 128>(b, columns, 32, columns);
    copies_commit();
    copies_wait<0>();
    __syncthreads();
    int first = threadIdx.x / 32 * 16;
    float s[1][4][4], p[1][4][4], sum[1][DEPTH / 8][4] = {};
    ts::products<T, DEPTH, 1, 32>(s, at.from(first), bt);
    give(scores, s[0]);
    get(p[0], left);
    ts::accumulate<T, DEPTH, DEPTH, 1, 32>(sum, p, bt);
    give(sums, sum[0]);
}

template <class T, int DEPTH, int ROWS, int COLUMNS> int mma_tiles()
{
    both<T> a(64 * COLUMNS), b(32 * COLUMNS);
    both<float> left(64 * 32), scores(64 * 32), sums(64 * DEPTH);
    a.whole(10);
    b.whole(11);
    left.whole(12);
    scores.all(NAN);
    sums.all(NAN);
    if (!run(mma_kernel<T, DEPTH>, 1, 128, (64 + 32) * DEPTH * 2, a.device, b.device, left.device, ROWS, COLUMNS,
             scores.device, sums.device))
        return -1;
    int wrong = 0;
    scores.down();
    sums.down();
    for (int i = 0; i < 64; i++) {
        for (int j = 0; j < 32; j++) {
            float sum = 0;
            for (int c = 0; c < COLUMNS && i < ROWS; c++)
                sum += a[i * COLUMNS + c] * b[j * COLUMNS + c];
            wrong += scores[i * 32 + j] != sum;
        }
        for (int c = 0; c < DEPTH; c++) {
            float sum = 0;
            for (int r = 0; r < 32 && c < COLUMNS; r++)
                sum += left[i * 32 + r] * b[r * COLUMNS + c];
            wrong += sums[i * DEPTH + c] != sum;
        }
    }
    return wrong;
}

} // namespace

/* --------------------------------------------------------------------------------- table ---- */

#define HALVES(text, function, ...) {"bf16 " text, function<bf16, __VA_ARGS__>}, {"f16 " text, function<f16, __VA_ARGS__>}

const block_row block_rows[] = {
    /* scores of 64 rows: q kT and g vT forward and of a pass of queries, k qT and v gT of a pass of keys */
    HALVES("64 x 64, 64 deep, both by columns", products, 64, 64, 64),
    HALVES("64 x 64, 128 deep, both by columns", products, 128, 64, 128),
    HALVES("64 x 128, 64 deep, both by columns", products, 64, 128, 64),
    HALVES("64 x 128, 128 deep, both by columns", products, 128, 128, 128),
    HALVES("64 x 128, 40 of 64 deep, both by columns", products, 64, 128, 40),
    HALVES("64 x 128, 72 of 128 deep, both by columns", products, 128, 128, 72),
    /* p v forward, ds k of a pass of queries; pT g and dsT q of a pass of keys */
    HALVES("64 x 64 += registers, 64 rows", accumulate_rows, 64, 64),
    HALVES("64 x 64 += registers, 128 rows", accumulate_rows, 128, 64),
    HALVES("64 x 128 += registers, 64 rows", accumulate_rows, 64, 128),
    HALVES("64 x 128 += registers, 128 rows", accumulate_rows, 128, 128),
    HALVES("tile of 64 rows, dense", load, 64, 64, 64, 0, false),
    HALVES("tile of 128 rows, past the end of rows and columns", load, 128, 128, 72, 30, false),
    HALVES("tile of 192 rows, past the end of rows and columns", load, 192, 64, 40, 64, true),
    HALVES("tile of 128 rows, none of them there", load, 128, 64, 64, 70, true),
    {"bf16 ring of tiles to two groups", ring<bf16>},
    {"f16 ring of tiles to two groups", ring<f16>},
    {"copies of bytes", bulk},
    {"words to other blocks of a cluster", peers},
    HALVES("results, 64 columns, all rows", write, 64, 128, 64),
    HALVES("results, 128 columns, some rows and columns", write, 128, 101, 72),
    HALVES("results, 64 columns, no row of the second group", write, 64, 3, 64),
    HALVES("mma, 64 columns", mma_tiles, 64, 64, 64),
    HALVES("mma, 72 of 128 columns, 50 rows", mma_tiles, 128, 50, 72),
    HALVES("mma, 256 columns", mma_tiles, 256, 64, 256),
};
const int block_row_count = sizeof block_rows / sizeof *block_rows;

int block_device()
{
    int device = 0, major = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major == 9;
}

const char *block_error() { return cudaGetErrorString(failure); }
