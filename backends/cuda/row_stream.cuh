/**
 * @file row_stream.cuh  Kernels over long rows: persistent blocks that load the next rows while
 * they compute.
 *
 * A row of n elements is divided among CLUSTER blocks, a segment of n / CLUSTER elements each, and
 * within a block among its warps, which own contiguous ranges of vectors. Each warp uses the copy
 * engine to load its part of the next rows into its own ring in shared memory. Each warp sends two
 * numbers per row to all other warps of the row; the order of combination depends on the shape
 * only. For sm_90 and later.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ROW_STREAM_CUH
#define TS_CUDA_ROW_STREAM_CUH

#include "backends/cuda/instructions/barrier.cuh"
#include "backends/cuda/launch_rows.cuh"
#include "backends/cuda/runtime/runtime.h"

namespace ts {

/** How a row is divided: THREADS threads of VECS vectors in each of CLUSTER blocks, with a ring of
 * STAGES rows. BLOCKS blocks should fit on a multiprocessor. */
template <int THREADS_, int VECS_, int CLUSTER_, int STAGES_, int BLOCKS_, bool FULL_ = false>
struct stream_shape {
    static constexpr int threads = THREADS_, vecs = VECS_, cluster = CLUSTER_, stages = STAGES_,
                         blocks = BLOCKS_;
    static constexpr int warps = threads / 32;
    static constexpr bool full = FULL_; /* the row is as long as the shape can hold */
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/**
 * ARRAYS inputs of (rows, n) elements, read row by row. run() takes a formula with
 *   float2 first(stream)                      the two numbers of a thread's elements
 *   base_of(), share(), join(), whole(), adjust()
 *                                             functions of combine() for the row's numbers
 *   void second(stream, float2 whole)         writes the row
 * A warp waits only for its own data and the other warps' numbers. If a row has several warps,
 * first() of a row runs before second() of the previous row, which hides the latency of the
 * exchange.
 */
template <class T, class S, int ARRAYS> struct row_stream {
    static constexpr int V = vec16<T>, vecs = S::vecs;
    using vector = vec<T, V>;
    static constexpr int slots = 32 * vecs;             /* vectors per warp, input and stage */
    static constexpr int parts = S::warps * S::cluster; /* parts of a row: one per warp */
    static_assert((parts & (parts - 1)) == 0, "lanes share them evenly");

    /* Numbers that the warps of a row exchange, for four turns (rows), because a warp may be two
     * turns ahead of a warp that still reads the previous turn. */
    struct exchange_numbers {
        float2 shares[4][parts];
        uint64_t full[S::stages][S::warps], all[4]; /* barriers */
    };

    const T *in[2]; /* the ARRAYS inputs */
    int64_t rows, n;
    vector *ring; /* this warp's part of the block's (stages, ARRAYS, warps, 32 * vecs) vectors */
    exchange_numbers *exchange;
    int64_t row, step; /* row that first() or second() works on; distance to the next row */
    int count;         /* vectors of this block's segment */
    int chunk, own;    /* vectors of a warp with a full share; vectors of this warp */
    float elements;    /* number of this thread's elements */
    int stage;         /* stage of the ring with the row */
    int turn;          /* number of the row among this block's rows */
    uint64_t policy;   /* L2 cache policy of the loads */

    static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
    static __device__ __forceinline__ int warp() { return threadIdx.x / 32; }
    __device__ __forceinline__ int64_t segment() const
    {
        return S::cluster > 1 ? (int64_t)cluster_rank() * count * V : 0;
    }
    __device__ __forceinline__ int64_t column(int j) const
    {
        return segment() + (int64_t)(warp() * chunk + j * 32 + lane()) * V;
    }
    __device__ __forceinline__ bool inside(int j) const { return S::full || lane() + j * 32 < own; }
    /** False only if no thread of the block has a vector j. There is no test for the first half of
     * the vectors, which in most rows exist. */
    __device__ __forceinline__ bool used(int j) const
    {
        return S::full || j <= S::vecs / 2 || j * 32 < chunk;
    }
    /** This thread's vector j of an input's row. */
    __device__ __forceinline__ vector at(int a, int j) const
    {
        return ring[(stage * ARRAYS + a) * S::warps * slots + j * 32 + lane()];
    }
    __device__ __forceinline__ void get(int a, int j, float (&x)[V]) const
    {
        unpack<T, V>(at(a, j), x);
    }
    __device__ __forceinline__ void put(T *out, int j, const vector &x) const
    {
        if (inside(j))
            store_stream((vector *)(out + row * n + column(j)), x);
    }
    __device__ __forceinline__ void put(T *out, int j, const float (&x)[V]) const
    {
        put(out, j, pack<T, V>(x));
    }
    /** Number of elements in a part of the row. */
    __device__ __forceinline__ float part_count(int part) const
    {
        if (S::full)
            return slots * V;
        return (float)(min(max(count - part % S::warps * chunk, 0), chunk) * V);
    }
    /** Starts the loads of this warp's part of row r into stage `to`. */
    __device__ __forceinline__ void fetch(int to, int64_t r)
    {
        if (r >= rows || own == 0)
            return;
        int64_t from = r * n + segment() + (int64_t)warp() * chunk * V;
        uint32_t full = shared_address(&exchange->full[to][warp()]);
        if (lane() == 0) {
            barrier_expect(full, ARRAYS * own * 16);
#pragma unroll
            for (int a = 0; a < ARRAYS; a++)
                bulk_load(shared_address(ring + (to * ARRAYS + a) * S::warps * slots), in[a] + from,
                          own * 16, full, policy);
        }
    }
    /** Initialises the barriers and starts the first loads. Every thread must call. `none`: value
     * of elements outside the row, which formulas may read. */
    __device__ __forceinline__ void begin(vector *memory, exchange_numbers *numbers, T none)
    {
        ring = memory + warp() * slots;
        exchange = numbers;
        row = blockIdx.x / S::cluster;
        step = gridDim.x / S::cluster;
        if (S::full)
            n = (int64_t)S::threads * S::vecs * S::cluster * V;
        policy = read_once(rows * n * (int64_t)sizeof(T)).policy;
        count = (int)(n / V / S::cluster);
        chunk = (count + S::threads - 1) / S::threads * 32;
        own = S::full ? slots : min(max(count - warp() * chunk, 0), chunk);
        if (threadIdx.x == 0) {
            for (int s = 0; s < S::stages; s++)
                for (int w = 0; w < S::warps; w++)
                    barrier_init(shared_address(&exchange->full[s][w]), 1);
            for (int t = 0; t < 4; t++)
                barrier_init(shared_address(&exchange->all[t]), S::cluster > 1 ? 1 : S::warps);
            barriers_ready();
        }
        if constexpr (S::cluster > 1)
            cluster_sync();
        else
            __syncthreads();
        elements = 0;
#pragma unroll
        for (int j = 0; j < S::vecs; j++) {
            elements += inside(j) ? V : 0;
            if (!inside(j))
                for (int s = 0; s < S::stages * ARRAYS; s++)
                    ring[s * S::warps * slots + j * 32 + lane()] = all_of<T, V>(none);
        }
#pragma unroll
        for (int s = 0; s < S::stages; s++)
            fetch(s, row + s * step);
    }
    /** Combines the numbers of the warp's threads. */
    template <class F> __device__ __forceinline__ float2 over_warp(const F &f, float2 own) const
    {
        const float2 one[1] = {own};
        return combine(32, one, [&](int) { return elements; }, part_count(warp()), f);
    }
    /** Sends the warp's two numbers to all warps of the row. */
    __device__ __forceinline__ void send(float2 x)
    {
        uint32_t all = shared_address(&exchange->all[turn & 3]);
        float2 *shares = exchange->shares[turn & 3];
        if constexpr (S::cluster == 1) {
            if (lane() == 0) {
                shares[warp()] = x;
                barrier_arrive(all);
            }
        } else {
            if (threadIdx.x == 0)
                barrier_expect(all, parts * 8);
            if (lane() < S::cluster)
                peer_store(peer_address(shared_address(&shares[cluster_rank() * S::warps + warp()]),
                                        lane()),
                           x, peer_address(all, lane()));
        }
    }
    /** Waits for the numbers of all warps of the row and combines them. */
    template <class F> __device__ __forceinline__ float2 whole(const F &f)
    {
        constexpr int width = parts < 32 ? parts : 32, each = parts / width;
        uint32_t all = shared_address(&exchange->all[turn & 3]);
        if constexpr (S::cluster == 1)
            barrier_wait(all, turn >> 2 & 1);
        else
            barrier_wait_peers(all, turn >> 2 & 1);
        float2 share[each];
#pragma unroll
        for (int e = 0; e < each; e++)
            share[e] = exchange->shares[turn & 3][e * width + lane() % width];
        return combine(
            width,
            share, [&](int e) { return part_count(e * width + lane() % width); }, (float)n, f);
    }
    /**
     * Like run(), for formulas whose first() keeps the data of second() in registers: second() of a
     * row directly follows first(), and the row's stage of the ring is free before the exchange.
     */
    template <class F> __device__ __forceinline__ void run_held(F &&f)
    {
        int parity = 0;
        stage = turn = 0;
        for (; row < rows; row += step, turn++) {
            if (own)
                barrier_wait(shared_address(&exchange->full[stage][warp()]), parity);
            float2 x = f.first(*this);
            __syncwarp();
            fetch(stage, row + S::stages * step);
            x = over_warp(f, x);
            if constexpr (parts > 1) {
                send(x);
                x = whole(f);
            }
            f.second(*this, x);
            if (++stage == S::stages) {
                stage = 0;
                parity ^= 1;
            }
        }
    }
    /** Applies a formula to all rows of this block. */
    template <class F> __device__ __forceinline__ void run(F &&f)
    {
        int parity = 0, before = 0;
        stage = turn = 0;
        for (;; turn++) {
            bool some = row < rows;
            float2 x = {0, 0};
            if (some) {
                if (own)
                    barrier_wait(shared_address(&exchange->full[stage][warp()]), parity);
                x = over_warp(f, f.first(*this));
                if constexpr (parts > 1)
                    send(x);
            }
            if constexpr (parts == 1) { /* no exchange */
                if (!some)
                    break;
                f.second(*this, x);
                __syncwarp();
                fetch(stage, row + S::stages * step);
            } else {
                if (turn) {
                    int now = stage;
                    stage = before;
                    row -= step;
                    turn--;
                    f.second(*this, whole(f));
                    __syncwarp();
                    fetch(stage, row + S::stages * step);
                    turn++;
                    row += step;
                    stage = now;
                }
                if (!some)
                    break;
                before = stage;
            }
            if (++stage == S::stages) {
                stage = 0;
                parity ^= 1;
            }
            row += step;
        }
    }
};

/** Base class of formulas whose two numbers are sums. */
struct plain_sums : plain_parts {
    __device__ __forceinline__ float join(float a, float b) const { return a + b; }
    __device__ __forceinline__ float adjust(float2 own, float, float, float) const { return own.y; }
};

/** Defines a row_stream `name` over `rows` rows of the inputs (the last arguments), with `none`
 * outside the row. The ring, ts_ring, is the kernel's dynamic shared memory. */
#define TS_STREAM(name, T, S, ARRAYS, none, rows, n, ...)                                          \
    extern __shared__ __align__(128) unsigned char ts_ring[];                                      \
    __shared__ typename row_stream<T, S, ARRAYS>::exchange_numbers ts_exchange;                    \
    row_stream<T, S, ARRAYS> name = {{__VA_ARGS__}, rows, n};                                      \
    name.begin(reinterpret_cast<vec<T, vec16<T>> *>(ts_ring), &ts_exchange, narrow<T>(none))

#endif /* sm_90 */

/** Bytes of the ring. */
template <class T, class S, int ARRAYS>
constexpr int ring_bytes = S::stages * ARRAYS * S::threads * S::vecs * 16;

/* ------------------------------------------------------------------------- host side ---- */

/** The blocks of a launch; no threads: no kernel was found. */
struct stream_grid {
    unsigned threads, cluster, shared; /* threads of a block, blocks of a row, bytes of a block */
};

/** The grid of a launch of `clusters` clusters. */
inline ts_cuda_grid stream_blocks(const stream_grid &g, int64_t clusters)
{
    return {dim3((unsigned)(clusters * g.cluster)), dim3(g.threads), g.shared, g.cluster};
}

/** Number of clusters for a launch: as many as can be resident at once, at most one per row; 0 if
 * none can be resident or no kernel was found. */
template <class... P>
int64_t stream_clusters(void (*kernel)(P...), const stream_grid &g, int64_t rows)
{
    ts_cuda_grid grid = stream_blocks(g, 1);
    int64_t most = g.threads ? ts_cuda_clusters((const void *)kernel, &grid) : 0;
    return rows < most ? rows : most;
}

/** Launches kernel(args...) with a number of clusters from stream_clusters(); cudaErrorNotSupported
 * if that is 0. */
template <class... P, class... A>
cudaError_t stream_launch(void (*kernel)(P...), const stream_grid &g, int64_t clusters,
                          cudaStream_t stream, A... args)
{
    return clusters < 1 ? cudaErrorNotSupported
                        : launch(kernel, stream_blocks(g, clusters), stream,
                                 static_cast<P>(args)...);
}

/** Which kernels of an entry exist. EXACT: for rows that fill the shape; without branches, more
 * loads are in flight, which needs more registers. ANY: for shorter rows. */
enum stream_fill { EXACT = 1, ANY = 2, BOTH = EXACT | ANY };

/** An entry of a table of kernels: rows of up to MOST vectors can have this stream_shape. */
template <stream_fill FILL, int MOST, int THREADS, int VECS, int CLUSTER, int STAGES, int BLOCKS>
struct stream {
    using exact = stream_shape<THREADS, VECS, CLUSTER, STAGES, BLOCKS, true>;
    using any = stream_shape<THREADS, VECS, CLUSTER, STAGES, BLOCKS>;

    /** True if take.operator()<shape>() was called, which returns the bytes of dynamic shared
     * memory that the kernel needs. */
    template <class F> static bool find(int64_t v, stream_grid &g, F &&take)
    {
        unsigned bytes = 0;
        if constexpr ((FILL & EXACT) != 0) {
            static_assert(THREADS * VECS * CLUSTER == MOST, "what the shape holds");
            if (v == MOST)
                bytes = take.template operator()<exact>();
        }
        if constexpr ((FILL & ANY) != 0)
            if (!bytes && v <= MOST && v % CLUSTER == 0)
                bytes = take.template operator()<any>();
        if (bytes)
            g = {THREADS, CLUSTER, bytes};
        return bytes;
    }
};

/** A table of kernels for rows of more than MORE_THAN vectors; registers (rows.cuh) are faster for
 * shorter rows. */
template <int MORE_THAN, class... E> struct streams {
    template <class F> static stream_grid find(int64_t v, F &&take)
    {
        stream_grid g = {};
        (void)(v > MORE_THAN && (E::find(v, g, take) || ...));
        return g;
    }
};

/**
 * Kinds of kernels, which select the table. rows_wide_*: rows too long for registers; `kept` means
 * that a thread keeps data per column, such as weights, in registers.
 */
enum stream_way {
    rows_wide,            /* one input */
    rows_wide_log,        /* one input; writing a row needs no exponentials */
    rows_wide_held,       /* one input; for run_held() */
    rows_wide_kept,       /* one input, with data per column */
    rows_wide_pairs,      /* two inputs */
    rows_wide_pairs_kept, /* two inputs, with data per column */
    rows_sum              /* two inputs, rows of any length; a thread keeps sums over many rows */
};

/** The table of a kind for elements of ITEM bytes. */
template <stream_way WAY, int ITEM> struct stream_table;

/* clang-format off */
template <> struct stream_table<rows_wide, 2>
    : streams<4096, stream<ANY, 5120, 512, 5, 2, 3, 1>, stream<ANY, 12288, 512, 6, 4, 3, 1>,
              stream<BOTH, 16384, 512, 4, 8, 3, 1>> {};
template <> struct stream_table<rows_wide_log, 2>
    : streams<4096, stream<ANY, 12288, 512, 6, 4, 3, 1>, stream<BOTH, 16384, 512, 4, 8, 3, 1>> {};
template <> struct stream_table<rows_wide, 4>
    : streams<4096, stream<EXACT, 10240, 512, 5, 4, 3, 1>, stream<ANY, 12288, 512, 6, 4, 3, 1>,
              stream<EXACT, 16384, 256, 8, 8, 5, 1>, stream<ANY, 16384, 512, 8, 4, 3, 1>,
              stream<ANY, 20480, 512, 5, 8, 3, 1>, stream<BOTH, 32768, 256, 8, 16, 3, 2>> {};
template <> struct stream_table<rows_wide_log, 4>
    : streams<4096, stream<EXACT, 10240, 512, 5, 4, 3, 1>, stream<ANY, 12288, 512, 6, 4, 3, 1>,
              stream<BOTH, 16384, 512, 8, 4, 3, 1>, stream<ANY, 20480, 512, 5, 8, 3, 1>,
              stream<BOTH, 32768, 256, 8, 16, 3, 2>> {};

/* a thread holds 64 elements of a half, or 16 of f32 */
template <int THREADS>
using held_streams =
    streams<2048, stream<ANY, 4096, THREADS, 4096 / THREADS, 1, 3, 1>,
            stream<ANY, 8192, THREADS, 4096 / THREADS, 2, 3, 1>,
            stream<ANY, 16384, THREADS, 4096 / THREADS, 4, 3, 1>,
            stream<ANY, 32768, THREADS, 4096 / THREADS, 8, 3, 1>>;
template <> struct stream_table<rows_wide_held, 2> : held_streams<512> {};
template <> struct stream_table<rows_wide_held, 4> : held_streams<1024> {};

template <> struct stream_table<rows_wide_kept, 2>
    : streams<2048, stream<ANY, 3584, 128, 7, 4, 3, 4>, stream<BOTH, 4096, 256, 4, 4, 3, 2>,
              stream<ANY, 4096, 256, 8, 2, 3, 1>, stream<EXACT, 5120, 256, 5, 4, 4, 2>,
              stream<ANY, 5120, 128, 8, 8, 3, 4>, stream<BOTH, 6144, 128, 6, 8, 4, 4>,
              stream<EXACT, 7168, 256, 7, 4, 3, 1>, stream<ANY, 7168, 128, 7, 8, 3, 4>,
              stream<BOTH, 8192, 128, 8, 8, 3, 4>, stream<ANY, 8192, 256, 8, 4, 3, 1>,
              stream<EXACT, 16384, 256, 4, 16, 3, 2>, stream<ANY, 16384, 256, 8, 8, 3, 1>> {};
template <> struct stream_table<rows_wide_kept, 4>
    : streams<4096, stream<EXACT, 5120, 256, 5, 4, 3, 2>, stream<EXACT, 6144, 256, 6, 4, 3, 2>,
              stream<EXACT, 7168, 256, 7, 4, 3, 2>, stream<BOTH, 8192, 256, 8, 4, 3, 2>,
              stream<EXACT, 10240, 256, 5, 8, 3, 2>, stream<BOTH, 16384, 256, 8, 8, 3, 2>,
              stream<EXACT, 32768, 512, 4, 16, 3, 1>, stream<ANY, 32768, 256, 8, 16, 3, 2>> {};
template <> struct stream_table<rows_wide_pairs_kept, 2>
    : streams<1024, stream<ANY, 2048, 512, 4, 1, 3, 1>, stream<ANY, 4096, 512, 4, 2, 3, 1>,
              stream<BOTH, 8192, 512, 4, 4, 3, 1>, stream<BOTH, 16384, 512, 4, 8, 3, 1>> {};
template <> struct stream_table<rows_wide_pairs_kept, 4>
    : streams<4096, stream<BOTH, 8192, 512, 4, 4, 3, 1>, stream<BOTH, 16384, 512, 4, 8, 3, 1>,
              stream<BOTH, 32768, 512, 4, 16, 3, 1>> {};

template <class... E>
using wide_pairs = streams<4096, stream<ANY, 8192, 256, 4, 8, 3, 2>,
                           stream<ANY, 16384, 256, 4, 16, 3, 2>, E...>;
template <> struct stream_table<rows_wide_pairs, 2> : wide_pairs<> {};
template <> struct stream_table<rows_wide_pairs, 4>
    : wide_pairs<stream<ANY, 32768, 512, 4, 16, 3, 1>> {};

/* sums of 16 to 64 columns a thread */
template <> struct stream_table<rows_sum, 2>
    : streams<0, stream<EXACT, 96, 32, 3, 1, 4, 12>, stream<ANY, 96, 32, 4, 1, 4, 12>,
              stream<BOTH, 128, 64, 2, 1, 4, 10>, stream<EXACT, 160, 32, 5, 1, 4, 8>,
              stream<ANY, 192, 64, 3, 1, 4, 8>, stream<ANY, 256, 64, 4, 1, 4, 5>,
              stream<BOTH, 320, 64, 5, 1, 4, 6>, stream<ANY, 384, 128, 3, 1, 4, 4>,
              stream<ANY, 512, 128, 4, 1, 4, 3>, stream<EXACT, 640, 128, 5, 1, 3, 3>,
              stream<ANY, 768, 128, 6, 1, 3, 2>, stream<BOTH, 1024, 128, 4, 2, 4, 3>,
              stream<ANY, 1024, 256, 4, 1, 3, 2>, stream<BOTH, 1280, 128, 5, 2, 4, 2>,
              stream<ANY, 1536, 128, 3, 4, 4, 4>, stream<BOTH, 2048, 128, 4, 4, 4, 3>,
              stream<EXACT, 2560, 128, 5, 4, 4, 2>, stream<BOTH, 3072, 128, 6, 4, 4, 2>,
              stream<BOTH, 4096, 128, 4, 8, 4, 3>, stream<EXACT, 5120, 128, 5, 8, 4, 2>,
              stream<ANY, 6144, 256, 6, 4, 3, 1>, stream<ANY, 8192, 256, 8, 4, 3, 1>,
              stream<ANY, 12288, 256, 6, 8, 3, 1>, stream<ANY, 16384, 256, 8, 8, 3, 1>> {};
template <> struct stream_table<rows_sum, 4>
    : streams<0, stream<ANY, 128, 64, 2, 1, 4, 8>, stream<ANY, 192, 64, 3, 1, 5, 6>,
              stream<ANY, 256, 128, 2, 1, 5, 5>, stream<ANY, 512, 128, 4, 1, 4, 4>,
              stream<ANY, 768, 128, 6, 1, 4, 3>, stream<ANY, 1024, 128, 4, 2, 5, 2>,
              stream<ANY, 1024, 256, 4, 1, 3, 2>, stream<EXACT, 1280, 256, 5, 1, 4, 1>,
              stream<ANY, 1536, 128, 6, 2, 4, 3>, stream<ANY, 2048, 256, 4, 2, 5, 1>,
              stream<ANY, 3072, 128, 6, 4, 4, 3>, stream<ANY, 4096, 128, 4, 8, 4, 3>,
              stream<EXACT, 5120, 128, 5, 8, 3, 3>, stream<BOTH, 6144, 256, 6, 4, 3, 1>,
              stream<BOTH, 8192, 128, 8, 8, 3, 2>, stream<ANY, 16384, 512, 4, 8, 3, 1>,
              stream<ANY, 32768, 512, 4, 16, 3, 1>> {};
/* clang-format on */

/**
 * Finds the kernel for rows of n elements of T. take.operator()<shape>() stores it and returns the
 * bytes of dynamic shared memory that it needs. Finds none if no shape holds the rows, if registers
 * (rows.cuh) are faster, or if the device has no clusters.
 */
template <class T, stream_way WAY, class F>
stream_grid find_stream(int64_t n, bool aligned, const ts_cuda_device *d, F &&take)
{
    if (!d->clusters || !aligned || n % vec16<T>)
        return {};
    return stream_table<WAY, sizeof(T)>::find(n / vec16<T>, take);
}

} // namespace ts

#endif
