/**
 * @file row_stream.cuh
 * Kernels over long rows: blocks that stay, and rows that are on their way while others are worked on.
 *
 * A row of n elements belongs to CLUSTER blocks, a segment of n / CLUSTER elements each. One thread has
 * the copy engine bring the segments of the next rows into a ring in shared memory; a thread reads its
 * vectors t, t + threads, ... there. A row is described by two numbers that cross threads, warps and
 * blocks, in an order that the shape alone decides. For sm_90 and later.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ROW_STREAM_CUH
#define TS_CUDA_ROW_STREAM_CUH

#include <functional>

#include "backends/cuda/barrier.cuh"
#include "backends/cuda/launch_rows.cuh"
#include "backends/cuda/runtime.h"

namespace ts {

/** How a row is spread; BLOCKS of them are to fit on a multiprocessor. */
template <int THREADS_, int VECS_, int CLUSTER_, int STAGES_, int BLOCKS_> struct stream_shape {
    static constexpr int threads = THREADS_, vecs = VECS_, cluster = CLUSTER_, stages = STAGES_, blocks = BLOCKS_;
    static constexpr int warps = threads / 32;
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/**
 * ARRAYS inputs of (rows, n) elements, read row by row. run() takes a formula with
 *   float2 first(stream)                      the two numbers of a thread's elements
 *   float join(float, float)                  of the first numbers of two parts
 *   float adjust(float2 own, float whole, float own_count, float whole_count)
 *                                             a part's second number, once the whole's first is known;
 *                                             second numbers so adjusted are added
 *   void second(stream, float2 whole)         writes the row
 * first() of a row comes before second() of the row before it, so the time in which numbers cross the
 * block and the cluster is used.
 */
template <class T, class S, int ARRAYS> struct row_stream {
    static constexpr int V = vec16<T>, vecs = S::vecs;
    using vector = vec<T, V>;
    static constexpr int slots = S::threads * S::vecs;
    static_assert((S::warps & (S::warps - 1)) == 0 && S::warps <= 32, "warps that one warp can add up");

    struct exchange_place { /* four turns: a block may be two ahead of another one, which reads the last */
        float2 shares[4][S::warps];
        float2 across[4][S::cluster];
        uint64_t full[S::stages], sent[4]; /* barriers */
    };

    const T *in[ARRAYS];
    int64_t rows, n;
    vector *ring; /* (stages, ARRAYS, threads * vecs) */
    exchange_place *place;
    int64_t row, step; /* row that first() or second() works on */
    int count;         /* vectors of this block's segment */
    int stage;         /* where the row lies */
    int turn;          /* which row of this block's it is */

    __device__ __forceinline__ int64_t column(int j) const
    {
        int64_t at = (j * S::threads + threadIdx.x) * V;
        if constexpr (S::cluster > 1)
            at += (int64_t)cluster_rank() * count * V;
        return at;
    }
    __device__ __forceinline__ bool inside(int j) const { return (int)threadIdx.x + j * S::threads < count; }
    /** This thread's vector j of an input's row. */
    __device__ __forceinline__ void get(int a, int j, float (&x)[V]) const
    {
        unpack<T, V>(ring[(stage * ARRAYS + a) * slots + j * S::threads + threadIdx.x], x);
    }
    __device__ __forceinline__ void put(T *out, int j, const float (&x)[V]) const
    {
        store_stream((vector *)(out + row * n + column(j)), pack<T, V>(x));
    }
    /** Elements of a thread, of a warp. */
    __device__ __forceinline__ float own_count() const
    {
        int c = 0;
#pragma unroll
        for (int j = 0; j < S::vecs; j++)
            c += inside(j);
        return (float)(c * V);
    }
    __device__ __forceinline__ float warp_count(int warp) const
    {
        int c = 0;
#pragma unroll
        for (int j = 0; j < S::vecs; j++)
            c += max(0, min(32, count - (j * S::threads + 32 * warp)));
        return (float)(c * V);
    }
    __device__ __forceinline__ void fetch(int to, int64_t r)
    {
        if (threadIdx.x == 0 && r < rows) {
            int64_t from = r * n + (S::cluster > 1 ? cluster_rank() * (int64_t)count * V : 0);
            uint32_t full = shared_address(&place->full[to]);
            barrier_expect(full, ARRAYS * count * 16);
#pragma unroll
            for (int a = 0; a < ARRAYS; a++)
                bulk_load(shared_address(ring + (to * ARRAYS + a) * slots), in[a] + from, count * 16, full);
        }
    }
    __device__ __forceinline__ void begin(vector *memory, exchange_place *exchange)
    {
        ring = memory;
        place = exchange;
        row = blockIdx.x / S::cluster;
        step = gridDim.x / S::cluster;
        count = (int)(n / V / S::cluster);
        if (threadIdx.x == 0) {
            for (int s = 0; s < S::stages; s++)
                barrier_init(shared_address(&place->full[s]), 1);
            for (int t = 0; t < 4; t++)
                barrier_init(shared_address(&place->sent[t]), 1);
            barriers_ready();
        }
        if constexpr (S::cluster > 1)
            cluster_meet();
        else
            __syncthreads();
#pragma unroll
        for (int s = 0; s < S::stages; s++)
            fetch(s, row + s * step);
    }
    /** The two numbers of WIDTH parts, one in each lane. */
    template <int WIDTH, class F>
    static __device__ __forceinline__ float2 combine(float2 own, float own_count, float whole_count, const F &f)
    {
        float x = own.x;
#pragma unroll
        for (int lane = WIDTH / 2; lane; lane >>= 1)
            x = f.join(x, __shfl_xor_sync(0xffffffffu, x, lane));
        float y = f.adjust(own, x, own_count, whole_count);
#pragma unroll
        for (int lane = WIDTH / 2; lane; lane >>= 1)
            y += __shfl_xor_sync(0xffffffffu, y, lane);
        return make_float2(x, y);
    }
    template <class F> __device__ __forceinline__ float2 over_block(const F &f) const
    {
        int warp = threadIdx.x % S::warps;
        return combine<S::warps>(place->shares[turn & 3][warp], warp_count(warp), (float)(count * V), f);
    }
    /** Sends the block's numbers to all blocks of the cluster. */
    __device__ __forceinline__ void send(float2 x)
    {
        uint32_t sent = shared_address(&place->sent[turn & 3]);
        if (threadIdx.x == 0)
            barrier_expect(sent, S::cluster * 8);
        if (threadIdx.x < S::cluster)
            peer_store(peer_address(shared_address(&place->across[turn & 3][cluster_rank()]), threadIdx.x), x,
                       peer_address(sent, threadIdx.x));
    }
    template <class F> __device__ __forceinline__ float2 whole(const F &f)
    {
        if constexpr (S::cluster == 1)
            return over_block(f);
        barrier_wait_peers(shared_address(&place->sent[turn & 3]), turn >> 2 & 1);
        return combine<S::cluster>(place->across[turn & 3][threadIdx.x % S::cluster], (float)(count * V), (float)n, f);
    }
    template <class F> __device__ __forceinline__ void run(F &&f)
    {
        int parity = 0;
        stage = turn = 0;
        if constexpr (S::warps == 1) { /* nobody to wait for */
            for (; row < rows; row += step, turn++) {
                barrier_wait(shared_address(&place->full[stage]), parity);
                float2 x = combine<32>(f.first(*this), own_count(), (float)(count * V), f);
                f.second(*this, x);
                __syncwarp();
                fetch(stage, row + S::stages * step);
                if (++stage == S::stages) {
                    stage = 0;
                    parity ^= 1;
                }
            }
        } else {
            int before = 0;
            for (;; turn++) {
                bool some = row < rows;
                if (some) {
                    barrier_wait(shared_address(&place->full[stage]), parity);
                    float2 x = combine<32>(f.first(*this), own_count(), warp_count(threadIdx.x / 32), f);
                    if (threadIdx.x % 32 == 0)
                        place->shares[turn & 3][threadIdx.x / 32] = x;
                    __syncthreads();
                    if constexpr (S::cluster > 1)
                        if (threadIdx.x < 32)
                            send(over_block(f));
                    if (turn >= 2) /* everyone is done with the row before the one before */
                        fetch(before ? before - 1 : S::stages - 1, row + (S::stages - 2) * step);
                }
                int now = stage;
                if (turn) {
                    stage = before;
                    row -= step;
                    turn--;
                    f.second(*this, whole(f));
                    turn++;
                    row += step;
                }
                if (!some)
                    break;
                before = now;
                stage = now + 1;
                if (stage == S::stages) {
                    stage = 0;
                    parity ^= 1;
                }
                row += step;
            }
        }
    }
    /**
     * For formulas whose first() leaves in registers what their second() needs: second() follows at once, and
     * the row's place in the ring is free before the numbers have crossed.
     */
    template <class F> __device__ __forceinline__ void run_held(F &&f)
    {
        int parity = 0;
        stage = turn = 0;
        for (; row < rows; row += step, turn++) {
            barrier_wait(shared_address(&place->full[stage]), parity);
            float2 x = combine<32>(f.first(*this), own_count(), warp_count(threadIdx.x / 32), f);
            if (threadIdx.x % 32 == 0)
                place->shares[turn & 3][threadIdx.x / 32] = x;
            __syncthreads();
            fetch(stage, row + S::stages * step);
            if constexpr (S::cluster > 1)
                if (threadIdx.x < 32)
                    send(over_block(f));
            f.second(*this, whole(f));
            if (++stage == S::stages) {
                stage = 0;
                parity ^= 1;
            }
        }
    }
};

/** Numbers that are added. */
struct plain_sums {
    __device__ __forceinline__ float join(float a, float b) const { return a + b; }
    __device__ __forceinline__ float adjust(float2 own, float, float, float) const { return own.y; }
};

/** A stream `name` over `rows` rows of the inputs that follow; the ring lies in dynamic shared memory. */
#define TS_STREAM(name, T, S, ARRAYS, rows, n, ...)                                   \
    extern __shared__ __align__(128) unsigned char ts_ring[];                         \
    __shared__ typename row_stream<T, S, ARRAYS>::exchange_place ts_exchange;         \
    row_stream<T, S, ARRAYS> name = {{__VA_ARGS__}, rows, n};                         \
    name.begin(reinterpret_cast<vec<T, vec16<T>> *>(ts_ring), &ts_exchange)

#endif /* sm_90 */

/** Bytes of the ring. */
template <class T, class S, int ARRAYS> constexpr int ring_bytes = S::stages * ARRAYS * S::threads * S::vecs * 16;

/** Clusters that fit on the device at once. */
template <class S> int64_t blocks_that_stay(const void *kernel, int shared, int sms)
{
    int fit = 0;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    if (S::cluster == 1) {
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, kernel, S::threads, shared);
        cudaGetLastError(); /* of a GPU with less shared memory, where none fit */
        return fit * sms;
    }
    if (S::cluster > 8)
        cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {S::cluster, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(S::cluster);
    config.blockDim = dim3(S::threads);
    config.dynamicSmemBytes = shared;
    config.attrs = &cluster;
    config.numAttrs = 1;
    cudaOccupancyMaxActiveClusters(&fit, kernel, &config);
    cudaGetLastError();
    return fit;
}

/**
 * Host side: launches kernel<<<...>>>(args...) with as many blocks as stay at once. prepare(clusters)
 * is told how many clusters that are, at most one for each row, before the arguments are read.
 */
template <class S, class F, class... P, class... A>
cudaError_t stream_launch(void (*kernel)(P...), int shared, int64_t rows, int sms, cudaStream_t stream, F &&prepare, A... args)
{
    static const int64_t most = blocks_that_stay<S>((const void *)kernel, shared, sms); /* asked once */
    if (most < 1)
        return cudaErrorNotSupported;
    int64_t clusters = rows < most ? rows : most;
    prepare(clusters);
    ts_cuda_grid grid = {dim3((unsigned)(clusters * S::cluster)), dim3(S::threads), (unsigned)shared, S::cluster};
    return launch(kernel, grid, stream, static_cast<P>(args)...);
}

/**
 * rows_wide: rows too long for registers, of one input; rows_wide_held: the same for run_held(); rows_wide_kept:
 * with what belongs to columns in registers; rows_wide_pairs: of two inputs. rows_sum: rows of any length of two
 * inputs, in blocks that keep sums over many of them.
 */
enum stream_way { rows_wide, rows_wide_held, rows_wide_kept, rows_wide_pairs, rows_sum };

/** Like rows_dispatch(), for rows whose segments fill whole vectors. */
template <class T, stream_way WAY, class F> cudaError_t stream_dispatch(int64_t n, bool aligned, const ts_cuda_device *d, F &&f)
{
    constexpr int V = vec16<T>;
    int64_t v = n / V;
    constexpr int64_t short_of = WAY <= rows_wide_held ? 2048 : WAY == rows_wide_pairs ? 1024 : WAY == rows_wide_kept ? 4096 / V : 0;
    if (!d->clusters || !aligned || n % V || v <= short_of) /* too short for it to be the better way */
        return cudaErrorNotSupported;
#define TS_SHAPE(most, THREADS, VECS, CLUSTER, STAGES, BLOCKS) \
    if (v <= most && v % CLUSTER == 0)                         \
        return f.template operator()<stream_shape<THREADS, VECS, CLUSTER, STAGES, BLOCKS>>();
    if constexpr (WAY == rows_wide) {
        TS_SHAPE(4096, 512, 4, 2, 4, 1)
        TS_SHAPE(8192, 512, 4, 4, 3, 2)
        TS_SHAPE(16384, 512, 4, 8, 3, 2)
        if constexpr (sizeof(T) == 4) {
            TS_SHAPE(32768, 512, 8, 8, 3, 1)
        }
    } else if constexpr (WAY == rows_wide_held) {
        constexpr int threads = sizeof(T) == 2 ? 512 : 1024, vecs = 4096 / threads; /* a thread holds 64 numbers, or 16 */
        TS_SHAPE(4096, threads, vecs, 1, 3, 1)
        TS_SHAPE(8192, threads, vecs, 2, 3, 1)
        TS_SHAPE(16384, threads, vecs, 4, 3, 1)
        TS_SHAPE(32768, threads, vecs, 8, 3, 1)
    } else if constexpr (WAY == rows_wide_kept) {
        TS_SHAPE(1024, 256, 4, 1, 4, 2)
        TS_SHAPE(2048, 512, 4, 1, 4, 1)
        TS_SHAPE(4096, 512, 4, 2, 4, 1)
        TS_SHAPE(8192, 512, 4, 4, 4, 1)
        TS_SHAPE(16384, 512, 4, 8, 4, 1)
        if constexpr (sizeof(T) == 4) {
            TS_SHAPE(32768, 512, 4, 16, 4, 1)
        }
    } else if constexpr (WAY == rows_wide_pairs) {
        TS_SHAPE(2048, 512, 4, 1, 3, 1)
        TS_SHAPE(4096, 512, 4, 2, 3, 1)
        TS_SHAPE(8192, 512, 4, 4, 3, 1)
        TS_SHAPE(16384, 512, 4, 8, 3, 1)
        if constexpr (sizeof(T) == 4) {
            TS_SHAPE(32768, 512, 4, 16, 3, 1)
        }
    } else if constexpr (sizeof(T) == 2) { /* sums of 16 or 32 columns a thread */
        TS_SHAPE(128, 32, 4, 1, 4, 12)
        TS_SHAPE(256, 128, 2, 1, 4, 6)
        TS_SHAPE(512, 128, 4, 1, 4, 3)
        TS_SHAPE(1024, 256, 4, 1, 3, 2)
        TS_SHAPE(2048, 512, 2, 2, 5, 1)
        TS_SHAPE(4096, 512, 2, 4, 5, 1)
        TS_SHAPE(8192, 256, 4, 8, 3, 2)
        TS_SHAPE(16384, 512, 4, 8, 3, 1)
    } else {
        TS_SHAPE(128, 64, 2, 1, 4, 8)
        TS_SHAPE(256, 64, 4, 1, 4, 6)
        TS_SHAPE(512, 128, 4, 1, 4, 4)
        TS_SHAPE(1024, 256, 4, 1, 3, 2)
        TS_SHAPE(2048, 512, 2, 2, 5, 1)
        TS_SHAPE(4096, 512, 2, 4, 5, 1)
        TS_SHAPE(8192, 256, 4, 8, 3, 2)
        TS_SHAPE(16384, 512, 4, 8, 3, 1)
        TS_SHAPE(32768, 512, 4, 16, 3, 1)
    }
#undef TS_SHAPE
    return cudaErrorNotSupported;
}

} // namespace ts

#endif
