/**
 * @file blocks_copies.cu
 * Each kind of copy between global and shared memory that attention uses (instructions/wgmma.cuh,
 * barrier.cuh, instructions/tma.h), tested alone with arrays of integers, which must arrive
 * unchanged.
 */
// SPDX-License-Identifier: MIT
#include "tests/cuda/blocks.cuh"

namespace {

/* ------------------------------------------------------------------------- the copy engine ---- */

/** The loaded tile equals the stored one, whatever shared memory contained before. */
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

/** Loads batch 1, head 1 of (2, 3, 70, COLUMNS), starting at row FIRST. SWAPPED: rows are outside
 * heads in memory, else heads outside rows. */
template <class T, int ROWS, int DEPTH, int COLUMNS, int FIRST, bool SWAPPED> int load()
{
    constexpr int heads = 3, rows = 70;
    constexpr int64_t batch_step = heads * rows * COLUMNS,
                      head_step = SWAPPED ? COLUMNS : rows * COLUMNS,
                      row_step = SWAPPED ? heads * COLUMNS : COLUMNS;
    both<T> x(2 * (int)batch_step), out(ROWS * DEPTH);
    x.whole(6);
    out.all(NAN);
    CUtensorMap map;
    if (!tma_map<T>(&map, {x.device, batch_step, head_step, row_step}, COLUMNS, rows, heads, 2,
                    ROWS) ||
        !run(load_kernel<T, ROWS, DEPTH>, 1, 128, 1024 + ROWS * DEPTH * 2 + 8, map, FIRST, 1, 1,
             out.device))
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

/** Copies tiles through a ring of two stages to two warpgroups; each adds tile i, i + 1 times. */
template <class T>
__global__ void __launch_bounds__(384, 1)
    ring_kernel(const __grid_constant__ CUtensorMap map, int tiles, float *out)
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
                sum[k] += (float)(i + 1) *
                          widen(((const T *)(here + i % 2 * bytes))[k * 128 + threadIdx.x % 128]);
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
    if (!run(ring_kernel<T>, 1, 384, 1024 + 2 * 64 * 64 * 2 + tile_ring<2>::bytes,
             map_of(x, rows, 64, 64), tiles, out.device))
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

/** Each block adds the same numbers to global memory, twice. */
__global__ void __launch_bounds__(128) add_kernel(const float *x, float *sums)
{
#if HOPPER
    int i = threadIdx.x * 4;
    const float four[4] = {x[i], x[i + 1], x[i + 2], x[i + 3]};
    add_to_memory(sums + i, four);
    add_to_memory(sums + i, four);
#endif
}
int sums_in_memory()
{
    both<float> x(512), sums(512);
    x.whole(14);
    sums.all(5);
    if (!run(add_kernel, 40, 128, 0, x.device, sums.device))
        return -1;
    int wrong = 0;
    sums.down();
    for (int i = 0; i < 512; i++)
        wrong += sums[i] != 5 + 80 * x[i];
    return wrong;
}

/** Each of four blocks of a cluster stores its number in the shared memory of each block. */
__global__ void __launch_bounds__(32) __cluster_dims__(4, 1, 1) peers_kernel(float *out)
{
#if HOPPER
    __shared__ __align__(16) float2 received[4];
    __shared__ __align__(8) uint64_t barrier;
    uint32_t full = shared_address(&barrier), rank = cluster_rank();
    if (threadIdx.x == 0) {
        barrier_init(full, 1);
        barriers_ready();
        barrier_expect(full, sizeof received);
    }
    cluster_sync();
    if (threadIdx.x < 4)
        peer_store(peer_address(shared_address(received + rank), threadIdx.x),
                   {(float)rank, (float)threadIdx.x}, peer_address(full, threadIdx.x));
    barrier_wait_peers(full, 0);
    if (threadIdx.x < 4) {
        out[(rank * 4 + threadIdx.x) * 2] = received[threadIdx.x].x;
        out[(rank * 4 + threadIdx.x) * 2 + 1] = received[threadIdx.x].y;
    }
    cluster_sync();
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
            wrong += out[(to * 4 + from) * 2] != (float)from ||
                     out[(to * 4 + from) * 2 + 1] != (float)to;
    return wrong;
}

/* -------------------------------------------------------------------------------- results ---- */

/** Stores x times 2 or -1 to 128 rows of N columns, but only to existing rows and columns. The 8
 * elements between rows keep the value 55. */
template <int N, class T>
int wrong_results(const both<float> &x, const both<T> &out, int rows, int columns)
{
    int wrong = 0, step = N + 8;
    for (int r = 0; r < 128; r++)
        for (int c = 0; c < step; c++)
            wrong += out[r * step + c] !=
                     (r < rows && c < columns ? x[r * N + c] * (r % 16 < 8 ? 2 : -1) : 55);
    return wrong;
}

/** Two groups store 64 rows each: of 16 rows, the upper 8 times 2, the lower 8 times -1. */
template <class T, int N>
__global__ void __launch_bounds__(256)
    write_kernel(const float *x, T *out, int step, int rows, int columns)
{
#if HOPPER
    extern __shared__ char shared[];
    int group = threadIdx.x / 128;
    float d[N / 8][4];
    get(d, x + group * 64 * N);
    write_group<T, 128>(tiles_of(shared), group * 64, d, 2, -1, out + group * 64 * step, step,
                        rows - group * 64, columns);
#endif
}

template <class T, int N, int ROWS, int COLUMNS> int write()
{
    constexpr int step = N + 8;
    both<float> x(128 * N);
    both<T> out(128 * step);
    x.whole(9);
    out.all(55);
    if (!run(write_kernel<T, N>, 1, 256, 1024 + 128 * N * 2, x.device, out.device, step, ROWS,
             COLUMNS))
        return -1;
    return wrong_results<N>(x, out.down(), ROWS, COLUMNS);
}

/** The same stores by the copy engine, whose descriptor has the numbers of rows and columns. */
template <class T, int N>
__global__ void __launch_bounds__(256)
    store_kernel(const float *x, const __grid_constant__ CUtensorMap map)
{
#if HOPPER
    extern __shared__ char shared[];
    int group = threadIdx.x / 128;
    uint32_t tile = tiles_of(shared) + group * 64 * N * 2;
    float d[N / 8][4];
    get(d, x + group * 64 * N);
    put_group<T>(tile, d, 2, -1);
    tma_sees_shared();
    turn_wait(8 + group, 128);
    if (threadIdx.x % 128 == 0) {
        tma_store_tile<64, N>(tile, &map, group * 64, 0, 0);
        tma_stores_wait();
    }
#endif
}

template <class T, int N, int ROWS, int COLUMNS> int store()
{
    constexpr int step = N + 8;
    both<float> x(128 * N);
    both<T> out(128 * step);
    CUtensorMap map;
    x.whole(17);
    out.all(55);
    if (!tma_map<T>(&map, {out.device, 0, 0, step}, COLUMNS, ROWS, 1, 1, 64) ||
        !run(store_kernel<T, N>, 1, 256, 1024 + 128 * N * 2, x.device, map))
        return -1;
    return wrong_results<N>(x, out.down(), ROWS, COLUMNS);
}

} // namespace

/* --------------------------------------------------------------------------------- table ---- */

static const block_row rows[] = {
    HALVES("tile of 64 rows, dense", load, 64, 64, 64, 0, false),
    HALVES("tile of 128 rows, past the end of rows and columns", load, 128, 128, 72, 30, false),
    HALVES("tile of 192 rows, past the end of rows and columns", load, 192, 64, 40, 64, true),
    HALVES("tile of 128 rows, none of them there", load, 128, 64, 64, 70, true),
    {"bf16 ring of tiles to two groups", ring<bf16>},
    {"f16 ring of tiles to two groups", ring<f16>},
    {"copies of bytes", bulk},
    {"numbers that blocks add to memory", sums_in_memory},
    {"words to other blocks of a cluster", peers},
    HALVES("results, 64 columns, all rows", write, 64, 128, 64),
    HALVES("results, 128 columns, some rows and columns", write, 128, 101, 72),
    HALVES("results, 64 columns, no row of the second group", write, 64, 3, 64),
    HALVES("results by the copy engine, 64 columns, all rows", store, 64, 128, 64),
    HALVES("results by the copy engine, 128 columns, some rows and columns", store, 128, 101, 72),
    HALVES("results by the copy engine, 64 columns, no row of the second group", store, 64, 3, 40),
};
const block_table block_copies = {rows, sizeof rows / sizeof *rows};
