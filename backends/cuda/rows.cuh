/**
 * @file rows.cuh
 * Kernels over rows that are read once: a group of threads holds a whole row in its registers,
 * reduces it as often as the formula needs, and writes it once.
 *
 * A row is divided into vectors of 16 bytes, or of one element if rows do not consist of aligned
 * 16-byte vectors. Thread t of the group owns at most VECS vectors: t, t + threads, t + 2 threads,
 * ... Short rows share a block. Reductions combine lanes and warps in a fixed order, so results do
 * not depend on scheduling. row_stream.cuh handles rows that are too long for registers.
 *
 * A kernel is compiled for a shape S (row_shape, row_lanes, row_warps or row_fit) and gets its row
 * from row_index(), its elements from row_part, and sums from row_reduce() or row_combine().
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ROWS_CUH
#define TS_CUDA_ROWS_CUH

#include "backends/cuda/read_once.cuh"

namespace ts {

/** The number of warps and of vectors per thread for a row, and of rows per block. find_rows()
 * (launch_rows.cuh) selects a shape. */
template <int WARPS_, int VECS_, bool FULL_ = false, int ROWS_ = (WARPS_ >= 3 ? 1 : 4 / WARPS_)>
struct row_shape {
    static constexpr int warps = WARPS_, vecs = VECS_, rows = ROWS_;
    static constexpr int threads = 32 * warps;  /* threads per row */
    static constexpr int most = threads * rows; /* largest number of threads in a block */
    static constexpr bool full = FULL_;         /* the row is as long as the shape can hold */
    static constexpr bool fits = false;         /* the launch chooses the number of warps */
    static constexpr bool sub = false;          /* true in row_lanes: rows may share a warp */
    static constexpr int sure = FULL_ ? vecs : 0; /* vectors of each thread that are in the row */
    static constexpr bool dense = FULL_;        /* all but the last vector are in the row */

    static __device__ __forceinline__ int width() { return threads; }
    static dim3 block(int64_t) { return dim3(most); }
    static int rows_of(dim3) { return rows; }
    /** True if a row of `vectors` vectors can have this shape. */
    static bool holds(int64_t vectors)
    {
        return FULL_ ? vectors == threads * vecs : vectors <= threads * vecs;
    }
};

/** Shape for rows of at most 32 vectors, one per lane: a row has the least power of 2 of lanes that
 * holds it. */
struct row_lanes {
    static constexpr int warps = 1, vecs = 1, most = 128, rows = most, threads = 32;
    static constexpr bool full = false, fits = false, sub = true, dense = false;
    static constexpr int sure = 0;

    static __device__ __forceinline__ int width() { return blockDim.x; }
    static dim3 block(int64_t vectors)
    {
        int lanes = 1;
        while (lanes < vectors)
            lanes *= 2;
        return dim3(lanes, most / lanes);
    }
    static int rows_of(dim3 block) { return block.y; }
    static bool holds(int64_t vectors) { return vectors <= 32; }
};

/** Shape with one row per block and as many warps as the row needs, at most MOST / 32. */
template <int VECS_, int MOST> struct row_warps {
    static constexpr int warps = MOST / 32, vecs = VECS_, rows = 1, most = MOST, sure = 0;
    static constexpr bool full = false, fits = true, sub = false, dense = false;

    static __device__ __forceinline__ int width() { return blockDim.x; }
    static dim3 block(int64_t vectors)
    {
        return dim3((unsigned)((vectors + 32 * vecs - 1) / (32 * vecs)) * 32);
    }
    static int rows_of(dim3) { return 1; }
    static bool holds(int64_t vectors) { return vectors <= most * vecs; }
};

/** row_warps in which all vectors of a thread except the last one are inside the row; FULL: all
 * are. */
template <int VECS_, int MOST = 512, bool FULL_ = false> struct row_fit : row_warps<VECS_, MOST> {
    using base = row_warps<VECS_, MOST>;
    static constexpr bool full = FULL_, dense = true;
    static constexpr int sure = VECS_ - !FULL_;

    static bool holds(int64_t vectors)
    {
        return base::holds(vectors) && vectors >= (int64_t)base::block(vectors).x * sure;
    }
};

/* Operations of reductions: of() combines two numbers; none() is the neutral element. */
struct op_sum {
    template <class A> static __device__ __forceinline__ A of(A a, A b) { return a + b; }
    template <class A> static __device__ __forceinline__ A none() { return 0; }
};
/** The larger number; a NaN is ignored if the other one is a number. */
struct op_max {
    template <class A> static __device__ __forceinline__ A none() { return -(A)INFINITY; }
    static __device__ __forceinline__ float of(float a, float b) { return fmaxf(a, b); }
    static __device__ __forceinline__ double of(double a, double b) { return fmax(a, b); }
};

/** Lanes of a warp that share a row. */
template <class S> __device__ __forceinline__ int row_lanes_of()
{
    if constexpr (S::sub)
        return S::width();
    else
        return 32;
}

/**
 * Reduces COUNT values over the threads of a row and returns the results to every thread. `memory`
 * is the row's shared memory of 2 * COUNT * 32 numbers (row_memory()). Every thread of the block
 * must call. Consecutive calls must alternate the parity of `turn`; then they need no barrier in
 * between.
 */
template <class S, class OP, int COUNT, class A>
__device__ __forceinline__ void row_reduce(A (&x)[COUNT], A *memory, int turn)
{
#pragma unroll
    for (int c = 0; c < COUNT; c++)
#pragma unroll
        for (int lane = row_lanes_of<S>() / 2; lane; lane >>= 1)
            x[c] = OP::of(x[c], __shfl_xor_sync(0xffffffffu, x[c], lane));
    if constexpr (S::warps > 1) {
        A *mine = memory + (turn & 1) * COUNT * 32;
        int warp = threadIdx.x % S::width() / 32, lane = threadIdx.x % 32;
        if (lane == 0)
#pragma unroll
            for (int c = 0; c < COUNT; c++)
                mine[c * 32 + warp] = x[c];
        __syncthreads();
#pragma unroll
        for (int c = 0; c < COUNT; c++) {
            if constexpr (S::fits) {
                x[c] = lane < S::width() / 32 ? mine[c * 32 + lane] : OP::template none<A>();
#pragma unroll
                for (int other = 16; other; other >>= 1)
                    x[c] = OP::of(x[c], __shfl_xor_sync(0xffffffffu, x[c], other));
            } else {
                x[c] = mine[c * 32];
#pragma unroll
                for (int w = 1; w < S::warps; w++)
                    x[c] = OP::of(x[c], mine[c * 32 + w]);
            }
        }
    }
}

/** Base class of formulas of combine() without a common base: f.join() takes the parts' first
 * numbers unchanged. */
struct plain_parts {
    __device__ __forceinline__ float base_of(float, int) const { return 0; }
    __device__ __forceinline__ float share(float own, float, float) const { return own; }
    __device__ __forceinline__ float whole(float joined, float, float) const { return joined; }
};

/**
 * Combines two numbers (x, y) of a row, such as its largest element and its sum of exponentials,
 * from the two numbers of each part of the row. Each of `width` lanes has EACH parts. f is a
 * formula, a functor:
 *   base   = f.base_of(x of a lane's first part, width)
 *   share  = f.share(x of a part, base, count of the part)
 *   joined = the shares of all parts, combined two at a time by f.join(a, b)
 *   x = f.whole(joined, base, whole_count)
 *   y = the sum of f.adjust((share, y of a part), joined, count of the part, whole_count)
 * own_count(e): number of elements of this lane's part e.
 */
template <int EACH, class C, class F>
__device__ __forceinline__ float2 combine(int width, const float2 (&own)[EACH], C &&own_count,
                                          float whole_count, const F &f)
{
    float share[EACH], base = f.base_of(own[0].x, width);
#pragma unroll
    for (int e = 0; e < EACH; e++)
        share[e] = f.share(own[e].x, base, own_count(e));
    float x = share[0], y = 0;
#pragma unroll
    for (int e = 1; e < EACH; e++)
        x = f.join(x, share[e]);
#pragma unroll
    for (int lane = width / 2; lane; lane >>= 1)
        x = f.join(x, __shfl_xor_sync(0xffffffffu, x, lane));
#pragma unroll
    for (int e = 0; e < EACH; e++)
        y += f.adjust(make_float2(share[e], own[e].y), x, own_count(e), whole_count);
#pragma unroll
    for (int lane = width / 2; lane; lane >>= 1)
        y += __shfl_xor_sync(0xffffffffu, y, lane);
    return make_float2(f.whole(x, base, whole_count), y);
}

/** Combines a row's two numbers from those of its threads by combine(). `own`: this thread's
 * numbers. `count`: number of the row's n elements that this thread has. `memory`: from
 * row_memory(). f.none(): the two numbers of an empty part. Every thread of the block must call; a
 * second call with the same memory needs a barrier before it. */
template <class S, int V, class F>
__device__ __forceinline__ float2 row_combine(float2 own, float count, int n, const F &f,
                                              float2 *memory)
{
    auto part_count = [&](int warp) {
        if (S::full)
            return (float)(S::vecs * 32 * V);
        int c = S::sure * 32 * V;
#pragma unroll
        for (int j = S::sure; j < S::vecs; j++)
            c += max(0, min(32 * V, n - (j * S::width() + 32 * warp) * V));
        return (float)c;
    };
    const float2 one[1] = {own};
    int warp = threadIdx.x % S::width() / 32, lane = threadIdx.x % 32;
    auto own_count = [&](int) { return count; };
    float2 x = combine(row_lanes_of<S>(), one, own_count, S::warps == 1 ? n : part_count(warp), f);
    if constexpr (S::warps > 1) {
        if (lane == 0)
            memory[warp] = x;
        __syncthreads();
        if constexpr (S::fits) {
            bool some = lane < S::width() / 32;
            const float2 part[1] = {some ? memory[lane] : f.none()};
            x = combine(
                32, part, [&](int) { return some ? part_count(lane) : 0; }, (float)n, f);
        } else {
            static_assert((S::warps & (S::warps - 1)) == 0, "combine() takes halves of its lanes");
            const float2 part[1] = {memory[lane % S::warps]};
            x = combine(
                S::warps, part, [&](int) { return part_count(lane % S::warps); }, (float)n, f);
        }
    }
    return x;
}

/** A vector of N elements x. */
template <class T, int N> __device__ __forceinline__ vec<T, N> all_of(T x)
{
    vec<T, N> v;
#pragma unroll
    for (int e = 0; e < N; e++)
        v.at[e] = x;
    return v;
}

/** Makes the compiler unpack a vector of bf16 or f16 again after this point, instead of keeping the
 * unpacked f32 in twice the registers. */
template <class T, int N> __device__ __forceinline__ void renew(vec<T, N> &v)
{
    if constexpr (sizeof(T) == 2 && sizeof(v) == 16) {
        uint4 &u = reinterpret_cast<uint4 &>(v);
        asm volatile("" : "+r"(u.x), "+r"(u.y), "+r"(u.z), "+r"(u.w));
    }
}

/** Number of elements of a row; a compile-time constant if a row_shape is full. */
template <class S, int V> __device__ __forceinline__ int64_t row_elements(int64_t n)
{
    if constexpr (S::full)
        return (int64_t)S::width() * S::vecs * V;
    else
        return n;
}

/**
 * A thread's part of a row. V: elements per access, vec16<T> if rows are aligned, else 1.
 * STREAM: 16-byte stores are streaming stores (store_stream()).
 */
template <class T, class S, int V, bool STREAM = true> struct row_part {
    vec<T, V> at[S::vecs];

    /** Index of this thread among the threads of its row. */
    static __device__ __forceinline__ int first()
    {
        return S::rows > 1 && !S::sub ? threadIdx.x % S::width() : threadIdx.x;
    }
    /** First column (element of the row) of this thread's vector j. */
    static __device__ __forceinline__ int64_t column(int j)
    {
        return (int64_t)(first() + j * S::width()) * V;
    }
    /** Loads a row of n elements. Vectors outside the row are set to `fill`. */
    __device__ __forceinline__ void load(const T *row, int64_t n, T fill, const read_once &read)
    {
#pragma unroll
        for (int j = 0; j < S::vecs; j++) {
            if (inside(j, n)) {
                auto from = reinterpret_cast<const vec<T, V> *>(row + column(j));
                if constexpr (sizeof(at[j]) == 16)
                    at[j] = read(from);
                else
                    at[j] = *from;
            } else
                at[j] = all_of<T, V>(fill);
        }
    }
    /** Loads vector j of a line that all rows use, such as a weight, without a cache hint; `fill`
     * outside the line. */
    static __device__ __forceinline__ vec<T, V> there(const T *line, int j, int64_t n, T fill)
    {
        return inside(j, n) ? *reinterpret_cast<const vec<T, V> *>(line + column(j))
                            : all_of<T, V>(fill);
    }
    /** Like there() for a line that may be NULL; then all elements are `fill`. */
    static __device__ __forceinline__ vec<T, V> kept(const T *line, int j, int64_t n, T fill)
    {
        return line ? there(line, j, n, fill) : all_of<T, V>(fill);
    }
    /** Stores the vectors inside a row of n elements. */
    __device__ __forceinline__ void store(T *row, int64_t n) const
    {
#pragma unroll
        for (int j = 0; j < S::vecs; j++)
            put(row, j, n, at[j]);
    }
    /** Stores x as vector j if it is inside a row of n elements. */
    static __device__ __forceinline__ void put(T *row, int j, int64_t n, const vec<T, V> &x)
    {
        vec<T, V> *to = reinterpret_cast<vec<T, V> *>(row + column(j));
        if (!inside(j, n))
            return;
        if constexpr (STREAM && sizeof(x) == 16)
            store_stream(to, x);
        else if constexpr (S::rows > 1 || !S::full) /* some threads may not store */
            store_whole(to, x);
        else
            *to = x;
    }
    /** True if this thread's vector j is inside a row of n elements; n is 0 for a row that does not
     * exist. */
    static __device__ __forceinline__ bool inside(int j, int64_t n)
    {
        if constexpr (S::full)
            return S::fits || n > 0;
        else
            return j < S::sure || column(j) < n;
    }
    __device__ __forceinline__ void renew(int j) { ts::renew(at[j]); }
    __device__ __forceinline__ void renew()
    {
#pragma unroll
        for (int j = 0; j < S::vecs; j++)
            renew(j);
    }
};

/** Compiler barrier: the computation of x and earlier stores are scheduled before later code, which
 * reduces register pressure. */
__device__ __forceinline__ void settled(float &x) { asm volatile("" : "+f"(x)::"memory"); }

/** Index of this thread's row. It may be past the last row if a block has several rows. */
template <class S> __device__ __forceinline__ int64_t row_index()
{
    if constexpr (S::sub)
        return (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    else if constexpr (S::rows > 1)
        return (int64_t)blockIdx.x * S::rows + threadIdx.x / S::width();
    else
        return (int64_t)blockIdx.x;
}

/** The row's part of a block's shared memory for row_reduce() and row_combine(); NULL if a row has
 * only one warp. */
template <class S, int COUNT, class A> __device__ __forceinline__ A *row_memory()
{
    if constexpr (S::warps == 1)
        return nullptr;
    __shared__ A memory[S::rows * 2 * COUNT * 32];
    return memory + (S::rows > 1 ? threadIdx.x / S::width() : 0) * 2 * COUNT * 32;
}

} // namespace ts

#endif
