/**
 * @file row_stream.cuh  Kernels over long rows: persistent blocks that load the next rows while
 * they compute.
 *
 * A row of n elements is divided among the blocks of a cluster, one segment of whole vectors each.
 * Segments have n / CLUSTER elements; in an odd_stream the number is rounded up to whole vectors,
 * and the last segments may be shorter. A segment is divided among the block's warps, which own
 * contiguous ranges of vectors.
 *
 * Each warp uses the copy engine (TMA) to load its part of the next rows into its own ring in
 * shared memory. If a row has several warps, each sends two numbers per row to all of them, such as
 * a sum and a largest element. The order in which they are combined depends only on the row's
 * length and its division. Rows of an odd_stream may have any length and address (shifted.cuh). For
 * sm_90 and later.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ROW_STREAM_CUH
#define TS_CUDA_ROW_STREAM_CUH

#include "backends/cuda/instructions/barrier.cuh"
#include "backends/cuda/rows.cuh"
#include "backends/cuda/shifted.cuh"

namespace ts {

/** How a row is divided: THREADS threads of VECS vectors in each of CLUSTER blocks, with a ring of
 * STAGES rows. BLOCKS blocks should fit on a multiprocessor. */
template <int THREADS_, int VECS_, int CLUSTER_, int STAGES_, int BLOCKS_, bool FULL_ = false>
struct stream_shape {
    static constexpr int threads = THREADS_, vecs = VECS_, cluster = CLUSTER_, stages = STAGES_,
                         blocks = BLOCKS_;
    static constexpr int warps = threads / 32;
    static constexpr bool full = FULL_;    /* the row is as long as the shape can hold */
    static constexpr bool shifted = false; /* true in odd_stream */
};

/** Shape for rows of any number of elements at any address. If CLUSTER is not 1, the launch chooses
 * the number of blocks of a row, at most CLUSTER. */
template <int THREADS, int VECS, int CLUSTER, int STAGES, int BLOCKS>
struct odd_stream : stream_shape<THREADS, VECS, CLUSTER, STAGES, BLOCKS> {
    static constexpr bool shifted = true;
};

/** Vectors of a warp's stage of the ring, for one input; a shifted part covers one word more. */
template <class S> constexpr int stream_slots = 32 * S::vecs + S::shifted;

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
    static constexpr bool shifted = S::shifted;
    using vector = vec<T, V>;
    static constexpr int slots = stream_slots<S>;       /* vectors per warp, input and stage */
    static constexpr int parts = S::warps * S::cluster; /* most parts of a row: one per warp */
    static_assert((parts & (parts - 1)) == 0, "lanes share them evenly");

    /* Numbers that the warps of a row exchange. A turn is one row of the block. There is memory for
     * four turns, because other warps may send the numbers of turn t + 3 while a warp still reads
     * those of turn t. */
    struct exchange_numbers {
        float2 shares[4][parts];
        /* Barriers. full: a warp's part of a stage has been loaded; all: the numbers of a turn have
         * arrived. */
        uint64_t full[S::stages][S::warps], all[4];
    };

    const T *in[2]; /* the ARRAYS inputs */
    int64_t rows, n;
    vector *ring; /* this warp's part of the block's (stages, ARRAYS, warps, slots) vectors */
    exchange_numbers *exchange;
    int64_t row, step; /* row that first() or second() works on; distance to the next row */
    int blocks;        /* blocks of a row */
    int count;         /* vectors of a block's segment; the last ones may be shorter */
    int chunk, own;    /* vectors of a warp with a full share; vectors of this warp */
    int own_elements;  /* elements of this warp */
    float elements;    /* number of this thread's elements */
    T none;            /* value of elements outside the row */
    int stage;         /* stage of the ring with the row */
    int turn;          /* number of the row among this block's rows */
    uint64_t policy;   /* L2 cache policy of the loads */
    mutable uint4 carried; /* for store_shifted() */

    static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
    static __device__ __forceinline__ int warp() { return threadIdx.x / 32; }
    /** First column (element of the row) of this block's segment. */
    __device__ __forceinline__ int64_t segment() const
    {
        return S::cluster > 1 ? (int64_t)cluster_rank() * count * V : 0;
    }
    /** First column of this thread's vector j. */
    __device__ __forceinline__ int64_t column(int j) const
    {
        return segment() + (int64_t)(warp() * chunk + j * 32 + lane()) * V;
    }
    /** True if this thread's vector j has elements of the row. */
    __device__ __forceinline__ bool inside(int j) const { return S::full || lane() + j * 32 < own; }
    /** False only if no thread of the warp has a vector j. Tests each vector of shifted rows,
     * because such a vector takes many instructions. In other rows, it does not test vectors 0 to
     * vecs / 2, which most rows have. */
    __device__ __forceinline__ bool used(int j) const
    {
        if (S::shifted)
            return j * 32 < own;
        return S::full || j <= S::vecs / 2 || j * 32 < chunk;
    }
    /** Like used() if the row may be shifted: then put() needs all lanes. Else like inside(). */
    __device__ __forceinline__ bool stored(int j) const { return S::shifted ? used(j) : inside(j); }
    /** Number of elements of this thread's vector j that are inside the row. */
    __device__ __forceinline__ int inside_count(int j) const
    {
        if constexpr (S::shifted)
            return max(0, min(V, own_elements - (j * 32 + lane()) * V));
        else
            return inside(j) ? V : 0;
    }
    /** This thread's vector j of an input's row. */
    __device__ __forceinline__ vector at(int a, int j) const
    {
        const vector *from = ring + (stage * ARRAYS + a) * S::warps * slots + j * 32 + lane();
        if constexpr (S::shifted) {
            /* also the shift of the warp's part, which begins whole vectors into the row */
            int shift = shift_of(in[a] + row * n);
            return joined<T>(to_word(from[0]), to_word(from[1]), shift);
        } else
            return *from;
    }
    /** Vector j of a line that all rows use, such as a weight; `fill` outside the row, or if the
     * line is NULL. */
    __device__ __forceinline__ vector there(const T *line, int j, T fill) const
    {
        if constexpr (S::shifted)
            return line && inside(j) ? load_shifted(line, column(j), n, fill) : all_of<T, V>(fill);
        else
            return line && inside(j) ? *reinterpret_cast<const vector *>(line + column(j))
                                     : all_of<T, V>(fill);
    }
    /** The same as at(), unpacked. */
    __device__ __forceinline__ void get(int a, int j, float (&x)[V]) const
    {
        unpack<T, V>(at(a, j), x);
    }
    /** Stores x as this thread's vector j of the row in `out` (rows, n). With shifted rows, all
     * lanes must call, for j = 0, 1, ... (store_shifted()). */
    __device__ __forceinline__ void put(T *out, int j, const vector &x) const
    {
        if constexpr (S::shifted)
            store_shifted(out + row * n + segment() + (int64_t)warp() * chunk * V,
                          (j * 32 + lane()) * V, own_elements, x, carried);
        else if (inside(j))
            store_stream((vector *)(out + row * n + column(j)), x);
    }
    __device__ __forceinline__ void put(T *out, int j, const float (&x)[V]) const
    {
        put(out, j, pack<T, V>(x));
    }
    /** Number of elements in a part of the row: part i is that of warp i % warps in block
     * i / warps. */
    __device__ __forceinline__ float part_count(int part) const
    {
        if (S::full)
            return slots * V;
        int first = part % S::warps * chunk, vectors = min(max(count - first, 0), chunk);
        if constexpr (S::shifted) {
            int before = (part / S::warps * count + first) * V;
            return (float)max(0, min(vectors * V, (int)n - before));
        }
        return (float)(vectors * V);
    }
    /** Starts the loads of this warp's part of row r into stage `to`. */
    __device__ __forceinline__ void fetch(int to, int64_t r)
    {
        if (r >= rows || own == 0)
            return;
        int64_t from = r * n + segment() + (int64_t)warp() * chunk * V;
        uint32_t full = shared_address(&exchange->full[to][warp()]);
        if (lane() == 0) {
            int bytes[ARRAYS], shift[ARRAYS], all = 0;
#pragma unroll
            for (int a = 0; a < ARRAYS; a++) {
                shift[a] = S::shifted ? shift_of(in[a] + from) : 0;
                bytes[a] = S::shifted ? (shift[a] + own_elements + V - 1) / V * 16 : own * 16;
                all += bytes[a];
            }
            barrier_expect(full, all);
#pragma unroll
            for (int a = 0; a < ARRAYS; a++)
                bulk_load(shared_address(ring + (to * ARRAYS + a) * S::warps * slots),
                          in[a] + from - shift[a], bytes[a], full, policy);
        }
    }
    /** Waits for the loads of this warp's part of the row. parity: of the number of times that the
     * stage was used before. */
    __device__ __forceinline__ void wait(int parity) const
    {
        if (!own)
            return;
        barrier_wait(shared_address(&exchange->full[stage][warp()]), parity);
        if constexpr (S::shifted) { /* the last word may have elements that are not the warp's */
#pragma unroll
            for (int a = 0; a < ARRAYS; a++) {
                int e = shift_of(in[a] + row * n) + own_elements + lane();
                if (e < (own + 1) * V)
                    reinterpret_cast<T *>(ring + (stage * ARRAYS + a) * S::warps * slots)[e] = none;
            }
            before_bulk_loads();
            __syncwarp();
        }
    }
    /** Initialises the barriers and starts the first loads. Every thread must call. `outside`:
     * value of elements outside the row, which formulas may read. */
    __device__ __forceinline__ void begin(vector *memory, exchange_numbers *numbers, T outside)
    {
        ring = memory + warp() * slots;
        exchange = numbers;
        none = outside;
        blocks = S::shifted && S::cluster > 1 ? (int)cluster_blocks() : S::cluster;
        row = blockIdx.x / blocks;
        step = gridDim.x / blocks;
        if (S::full)
            n = (int64_t)S::threads * S::vecs * S::cluster * V;
        policy = read_once(rows * n * (int64_t)sizeof(T)).policy;
        count = S::shifted ? ((int)((n + V - 1) / V) + blocks - 1) / blocks
                           : (int)(n / V / S::cluster);
        chunk = (count + S::threads - 1) / S::threads * 32;
        int rank = S::cluster > 1 ? (int)cluster_rank() : 0;
        own_elements = (int)part_count(rank * S::warps + warp());
        own = S::full ? slots : (own_elements + V - 1) / V;
        if (threadIdx.x == 0) {
            for (int s = 0; s < S::stages; s++)
                for (int w = 0; w < S::warps; w++)
                    barrier_init(shared_address(&exchange->full[s][w]), 1);
            for (int t = 0; t < 4; t++)
                barrier_init(shared_address(&exchange->all[t]), blocks > 1 ? 1 : S::warps);
            barriers_ready();
        }
        if constexpr (S::cluster > 1)
            cluster_sync();
        else
            __syncthreads();
        elements = 0;
#pragma unroll
        for (int j = 0; j < S::vecs; j++)
            elements += (float)inside_count(j);
        for (int v = own + S::shifted + lane(); v < slots; v += 32) /* no load writes them */
            for (int s = 0; s < S::stages * ARRAYS; s++)
                ring[s * S::warps * slots + v] = all_of<T, V>(outside);
        __syncwarp();
#pragma unroll
        for (int s = 0; s < S::stages; s++)
            fetch(s, row + s * step);
    }
    /** Combines the numbers of the warp's threads. */
    template <class F> __device__ __forceinline__ float2 over_warp(const F &f, float2 own) const
    {
        const float2 one[1] = {own};
        return combine(32, one, [&](int) { return elements; }, (float)own_elements, f);
    }
    /** Sends the warp's two numbers to all warps of the row. */
    __device__ __forceinline__ void send(float2 x)
    {
        uint32_t all = shared_address(&exchange->all[turn & 3]);
        float2 *shares = exchange->shares[turn & 3];
        if (blocks == 1) { /* a launch without clusters has no peers' addresses */
            if (lane() == 0) {
                shares[warp()] = x;
                barrier_arrive(all);
            }
        } else if constexpr (S::cluster > 1) {
            if (threadIdx.x == 0)
                barrier_expect(all, S::warps * blocks * 8);
            if (lane() < blocks)
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
        auto over = [&]<int EACH>() {
            float2 share[EACH];
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                int part = e * width + lane() % width;
                share[e] = !S::shifted || part < S::warps * blocks
                               ? exchange->shares[turn & 3][part]
                               : f.none();
            }
            return combine(
                width, share, [&](int e) { return part_count(e * width + lane() % width); },
                (float)n, f);
        };
        if (S::shifted && S::warps * blocks <= width)
            return over.template operator()<1>();
        return over.template operator()<each>();
    }
    /**
     * Like run(), for formulas whose first() keeps the data that second() needs in registers:
     * second() of a row directly follows first(), and the row's stage of the ring is free before
     * the exchange.
     */
    template <class F> __device__ __forceinline__ void run_held(F &&f)
    {
        int parity = 0;
        stage = turn = 0;
        for (; row < rows; row += step, turn++) {
            wait(parity);
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
                wait(parity);
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
    __device__ __forceinline__ float2 none() const { return make_float2(0, 0); }
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

/** Bytes of a block's ring. */
template <class T, class S, int ARRAYS>
constexpr int ring_bytes = S::stages * ARRAYS * S::warps * stream_slots<S> * 16;

} // namespace ts

#endif
