/**
 * @file grouped.cuh  Reduce by key: sums of rows with equal keys, in the order of the rows, for the
 * gradient of an embedding, index_add and scatter_add (index.cu). Keys are sorted with the rows'
 * positions (sort.cuh), unless there are few rows of one element (grouped_few_kernel()). Then each
 * key has one group of threads, its owner, which adds the key's rows; for long rows, several groups
 * divide the columns. So there are no atomic additions and results are bitwise reproducible.
 *
 * For a frequent key, one group would add a long chain of rows. Therefore other groups first add
 * the rows of each span that has a single key: a span is SPAN consecutive sorted rows. Then they
 * add the sums of SPAN consecutive spans in the same way. The owner adds the sums of the largest
 * spans within its key, so its chain is up to SPAN * SPAN times shorter. The order of additions
 * depends only on the keys and sizes.
 *
 * Memory traffic besides the sort: each row is read once. The sums of spans, of which there are
 * about 1/32 as many as rows, or fewer, are written and read once. Each row of the result that has
 * a key is read and written once; or, if the call sets every row of the result (`every`), each row
 * is written once and none is read.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_GROUPED_CUH
#define TS_CUDA_GROUPED_CUH

#include "backends/cuda/launch_rows.cuh"
#include "backends/cuda/sort.cuh"

namespace ts {

enum { SPAN = 32,            /* rows of a span; a span of the second level has SPAN spans */
       GROUPED_BLOCKS = 2048 /* blocks that fill a device: more than 132 multiprocessors (H100) hold
                                at once */ };

/** Sizes of a call: x is (outer, count, inner), the result (outer, bound, inner). Row (o, k) of x,
 * which has `inner` elements, is added to row (o, key of k) of the result. Rows whose key is >=
 * bound are ignored. */
struct grouping {
    int64_t outer, count, inner, bound;
};

/** The sorted keys, and for each the position of its row before the sort. */
template <class I> struct sorted {
    const I *keys, *positions;
};

/** Sets first[r] to the index of the first sorted key >= r (lower bound), for r < bound. */
template <class I>
static __global__ void grouped_first_kernel(sorted<I> s, I count, I bound, I *first)
{
    for (I r = (I)blockIdx.x * blockDim.x + threadIdx.x; r < bound;
         r += (I)gridDim.x * blockDim.x) {
        I low = 0, high = count;
        while (low < high) {
            I middle = low + (high - low) / 2;
            if (s.keys[middle] < r)
                low = middle + 1;
            else
                high = middle;
        }
        first[r] = low;
    }
}

/** A thread's sums of rows: COLS vectors of V elements, blockDim.x vectors apart. */
template <class A, int V, int COLS> struct grouped_sum {
    A at[COLS][V];

    __device__ __forceinline__ grouped_sum()
    {
#pragma unroll
        for (int c = 0; c < COLS; c++)
#pragma unroll
            for (int e = 0; e < V; e++)
                at[c][e] = 0;
    }
    /** Adds a row. `row` points to this thread's first vector; the row has `left` vectors starting
     * at it. */
    template <class T> __device__ __forceinline__ void add(const T *row, int64_t left)
    {
        vec<T, V> x[COLS];
#pragma unroll
        for (int c = 0; c < COLS; c++)
            if ((int64_t)c * blockDim.x < left)
                x[c] = *reinterpret_cast<const vec<T, V> *>(row + (int64_t)c * blockDim.x * V);
#pragma unroll
        for (int c = 0; c < COLS; c++)
            if ((int64_t)c * blockDim.x < left)
#pragma unroll
                for (int e = 0; e < V; e++)
                    at[c][e] += widen(x[c].at[e]);
    }
    /** Stores the sums, rounded to T; arguments as in add(). */
    template <class T> __device__ __forceinline__ void store(T *row, int64_t left) const
    {
#pragma unroll
        for (int c = 0; c < COLS; c++)
            if ((int64_t)c * blockDim.x < left) {
                vec<T, V> x;
#pragma unroll
                for (int e = 0; e < V; e++)
                    x.at[e] = narrow<T>(at[c][e]);
                *reinterpret_cast<vec<T, V> *>(row + (int64_t)c * blockDim.x * V) = x;
            }
    }
};

/**
 * Sets spans[o][t] to the sum of sorted rows t * step to (t + 1) * step - 1 if all have the same
 * key, below the bound; otherwise leaves it unset. With step SPAN, adds SPAN rows of x at
 * s.positions; with step SPAN * SPAN, x holds the sums of the previous level, and adds SPAN
 * consecutive ones.
 */
template <class T, class X, int V, int COLS, class I>
static __global__ void __launch_bounds__(256)
    grouped_spans_kernel(grouping g, sorted<I> s, int64_t step, const X *__restrict__ x,
                         wide_t<T> *spans)
{
    int64_t t = (int64_t)blockIdx.x * blockDim.y + threadIdx.y, all = g.count / step,
            units = g.inner / V;
    if (t >= all || s.keys[t * step] != s.keys[t * step + step - 1] ||
        (int64_t)s.keys[t * step] >= g.bound)
        return;
    bool rows = step == SPAN;
    int64_t below = rows ? g.count : g.count / (step / SPAN);
    for (int64_t o = blockIdx.y; o < g.outer; o += gridDim.y)
        for (int64_t c = (int64_t)blockIdx.z * COLS * blockDim.x + threadIdx.x; c < units;
             c += (int64_t)gridDim.z * COLS * blockDim.x) {
            grouped_sum<wide_t<T>, V, COLS> sum;
#pragma unroll 4
            for (int q = 0; q < SPAN; q++)
                sum.add(
                    x +
                        (o * below + (rows ? (int64_t)s.positions[t * SPAN + q] : t * SPAN + q)) *
                            g.inner +
                        c * V,
                    units - c);
            sum.store(spans + (o * all + t) * g.inner + c * V, units - c);
        }
}

/** The threads with the same threadIdx.y are a group, which sums the rows of one key. With `first`
 * (grouped_first_kernel()), there is a group for each key below the bound, which writes its row of
 * the result. Without, there is a group for each sorted row, and the group of a key's first row
 * adds to its row of the result. spans, spans2: sums of the first and second level
 * (grouped_spans_kernel()). */
template <class T, int V, int COLS, class I>
static __global__ void __launch_bounds__(256)
    grouped_kernel(grouping g, sorted<I> s, const I *first, const T *__restrict__ x,
                   const wide_t<T> *__restrict__ spans, const wide_t<T> *__restrict__ spans2,
                   T *out)
{
    constexpr int ROWS = COLS > 1 ? 1 : 8; /* rows whose loads start together */
    int64_t i = (int64_t)blockIdx.x * blockDim.y + threadIdx.y, units = g.inner / V;
    if (i >= (first ? g.bound : g.count))
        return;
    I key = first ? (I)i : s.keys[i];
    int64_t begin = first ? (int64_t)first[i] : i;
    if (!first && ((int64_t)key >= g.bound || (i && s.keys[i - 1] == key)))
        return;
    auto same = [&](int64_t q) { return q < g.count && s.keys[q] == key; };
    int64_t end = begin, far = 1; /* end of the key's rows, by exponential search */
    if (same(begin)) {
        for (; same(end + far); far *= 2)
            end += far;
        for (; far; far /= 2)
            if (same(end + far))
                end += far;
        end++;
    }
    for (int64_t o = blockIdx.y; o < g.outer; o += gridDim.y)
        for (int64_t c = (int64_t)blockIdx.z * COLS * blockDim.x + threadIdx.x; c < units;
             c += (int64_t)gridDim.z * COLS * blockDim.x) {
            grouped_sum<wide_t<T>, V, COLS> sum;
            T *to = out + (o * g.bound + (int64_t)key) * g.inner + c * V;
            if (!first)
                sum.add(to, units - c);
            auto row = [&](I position) {
                return x + (o * g.count + (int64_t)position) * g.inner + c * V;
            };
            auto whole = [&](int64_t q, int step) { return q % step == 0 && q + step <= end; };
            for (int64_t q = begin; q < end;)
                if (!whole(q, SPAN)) {
                    int64_t stop = (q / SPAN + 1) * SPAN;
                    stop = stop < end ? stop : end;
                    for (; q < stop; q += ROWS) {
                        I at[ROWS];
#pragma unroll
                        for (int r = 0; r < ROWS; r++)
                            at[r] = s.positions[q + r < stop ? q + r : q];
#pragma unroll
                        for (int r = 0; r < ROWS; r++)
                            sum.add(row(at[r]), q + r < stop ? units - c : 0);
                    }
                    q = stop;
                } else if (!whole(q, SPAN * SPAN)) {
                    sum.add(spans + (o * (g.count / SPAN) + q / SPAN) * g.inner + c * V, units - c);
                    q += SPAN;
                } else {
                    sum.add(spans2 + (o * (g.count / (SPAN * SPAN)) + q / (SPAN * SPAN)) * g.inner +
                                c * V,
                            units - c);
                    q += SPAN * SPAN;
                }
            sum.store(to, units - c);
        }
}

enum { GROUPED_FEW = 2048 /* up to this many rows, comparing keys is faster than a sort */ };

/** Adds rows of one element to the elements of out whose keys occur, without a sort. A warp per
 * row: the warp of a key's first row adds the rows of this key, of which lane l has rows l, l + 32,
 * ... of x; the other warps do nothing. */
template <class T, class I, class F>
static __global__ void __launch_bounds__(256)
    grouped_few_kernel(grouping g, const __grid_constant__ F key_of, const T *__restrict__ x,
                       T *out)
{
    __shared__ I keys[GROUPED_FEW];
    int count = (int)g.count, lane = threadIdx.x % 32,
        mine = (int)(blockIdx.x * 8 + threadIdx.x / 32);
    I position;
    for (int i = threadIdx.x; i < count; i += 256)
        keys[i] = key_of((I)i, position);
    __syncthreads();
    if (mine >= count || (int64_t)keys[mine] >= g.bound)
        return;
    I key = keys[mine];
    wide_t<T> sum = 0;
    for (int i = lane; i - lane < count; i += 32) {
        bool same = i < count && keys[i] == key;
        if (__any_sync(~0u, same && i < mine))
            return;
        if (same) {
            key_of((I)i, position);
            sum += widen(x[position]);
        }
    }
#pragma unroll
    for (int step = 16; step; step /= 2)
        sum += __shfl_xor_sync(~0u, sum, step);
    if (lane == 0)
        out[key] = narrow<T>(widen(out[key]) + sum);
}

/** Bytes for the sums of spans of `step` rows, rounded up to a multiple of 32. */
template <class T> int64_t spans_bytes(const grouping &g, int64_t step)
{
    return (g.outer * (g.count / step) * g.inner * (int64_t)sizeof(wide_t<T>) + 31) / 32 * 32;
}

/** Bytes of scratch besides the sorter's: sums of spans, and `first` if every row is written. */
template <class T, class I> int64_t grouped_bytes(const grouping &g, bool every)
{
    return spans_bytes<T>(g, SPAN) + spans_bytes<T>(g, SPAN * SPAN) +
           (every ? g.bound * (int64_t)sizeof(I) : 0);
}

/**
 * Adds rows of x, (outer, count, inner), to rows of out, (outer, bound, inner), by keys.
 * @param sort     a sorter of g.count pairs
 * @param key_of   functor of sort_by(): key and position of each of g.count rows
 * @param scratch  grouped_bytes() bytes, aligned to 32
 * @param every    true: writes every row of out, with 0 for keys without rows of x; false: adds to
 *                 the rows of out whose keys occur
 */
template <class T, class I, class F>
cudaError_t grouped_run(const grouping &g, sorter<I> &sort, const F &key_of, const T *x, T *out,
                        void *scratch, bool every, cudaStream_t stream)
{
    using A = wide_t<T>;
    if constexpr (sizeof(I) == 4 && !std::is_integral_v<T>)
        if (!every && g.outer * g.inner == 1 && g.count <= GROUPED_FEW) {
            grouped_few_kernel<T, I>
                <<<(unsigned)(g.count + 7) / 8, 256, 0, stream>>>(g, key_of, x, out);
            return cudaPeekAtLastError();
        }
    char *behind = (char *)scratch + spans_bytes<T>(g, SPAN);
    A *spans = (A *)scratch, *spans2 = (A *)behind;
    I *first = every ? (I *)(behind + spans_bytes<T>(g, SPAN * SPAN)) : nullptr;
    bool counted = false;
    cudaError_t e = sort_by(sort, key_of, (uint64_t)g.bound, first, &counted, stream);
    if (e != cudaSuccess)
        return e;
    sorted<I> s = {sort.keys[sort.now], sort.positions[sort.now]};
    auto launch = [&]<int V, int COLS>() {
        int64_t across = (g.inner / V + COLS - 1) / COLS;
        unsigned width = 1;
        while (width < across && width < 256)
            width *= 2;
        dim3 block(width, 256 / width);
        /* a launch with few rows also divides the columns among blocks */
        auto grid = [&](int64_t rows) {
            int64_t blocks = (rows + block.y - 1) / block.y, pieces = (across + width - 1) / width,
                    outer = g.outer < 65535 ? g.outer : 65535,
                    parts = (GROUPED_BLOCKS + blocks * outer - 1) / (blocks * outer);
            return dim3((unsigned)blocks, (unsigned)outer,
                        (unsigned)(parts < pieces ? parts : pieces));
        };
        if (g.count >= SPAN)
            grouped_spans_kernel<T, T, V, COLS, I>
                <<<grid(g.count / SPAN), block, 0, stream>>>(g, s, SPAN, x, spans);
        if (g.count >= SPAN * SPAN)
            grouped_spans_kernel<T, A, V, COLS, I>
                <<<grid(g.count / (SPAN * SPAN)), block, 0,
                stream>>>(g, s, SPAN * SPAN, spans, spans2);
        grouped_kernel<T, V, COLS, I><<<grid(every ? g.bound : g.count), block, 0,
            stream>>>(g, s, first, x, spans, spans2, out);
    };
    if (every && !counted)
        grouped_first_kernel<I>
            <<<(unsigned)((g.bound + 255) / 256 < 65535 ? (g.bound + 255) / 256 : 65535), 256, 0,
               stream>>>(s, (I)g.count, (I)g.bound, first);
    constexpr int V = vec16<T>;
    if (g.inner % V == 0 && aligned16(x) && aligned16(out)) {
        if (g.inner / V >= 64)
            launch.template operator()<V, 4>();
        else
            launch.template operator()<V, 1>();
    } else {
        launch.template operator()<1, 1>();
    }
    return cudaPeekAtLastError();
}

} // namespace ts

#endif
