/**
 * @file grouped.cuh  Sums of rows with equal keys, in the order of the rows, for the gradient of an
 * embedding, index_add and scatter_add. Keys are sorted with the rows' positions (sort.cuh); then
 * one group of threads owns a key and adds its rows, so there are no atomic additions and the bits
 * are always the same.
 *
 * A frequent key would keep one group busy for long. So other groups first add SPAN sorted rows
 * that have one key, then SPAN of these sums, and the owner uses the largest sums that fit. A chain
 * is SPAN * SPAN times shorter. The division depends only on the keys.
 *
 * Bytes for `count` rows of `inner` elements: each row once, each result that has rows once
 * (every result, where all are written), and about a thirty-second of the rows at most for sums
 * of spans, beside the sort.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_GROUPED_CUH
#define TS_CUDA_GROUPED_CUH

#include "backends/cuda/launch_rows.cuh"
#include "backends/cuda/sort.cuh"

namespace ts {

enum { SPAN = 32 };

/** Rows of (outer, count, inner) are added to rows of (outer, bound, inner); keys from bound on are
 * ignored. */
struct grouping {
    int64_t outer, count, inner, bound;
};

/** Positions of pairs after the sort. */
template <class I> struct sorted {
    const I *keys, *places;
};

/** first[r] is where the rows of key r begin, or would. */
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

/** COLS vectors of V elements side by side, steps of the block's width apart. */
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
    /** row points at this thread's first vector; `left` vectors are there from it on. */
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
 * spans[o][t]: sum of sorted rows t * step and on, `step` of them, where all have the same key;
 * of SPAN rows of x by their places, or of SPAN sums of the level below, which stand in order.
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
        for (int64_t c = threadIdx.x; c < units; c += COLS * blockDim.x) {
            grouped_sum<wide_t<T>, V, COLS> sum;
#pragma unroll 4
            for (int q = 0; q < SPAN; q++)
                sum.add(x +
                            (o * below + (rows ? (int64_t)s.places[t * SPAN + q] : t * SPAN + q)) *
                                g.inner +
                            c * V,
                        units - c);
            sum.store(spans + (o * all + t) * g.inner + c * V, units - c);
        }
}

/** With `first` the kernel writes the row of every key; otherwise it adds to the rows of keys that
 * occur. */
template <class T, int V, int COLS, class I>
static __global__ void __launch_bounds__(256)
    grouped_kernel(grouping g, sorted<I> s, const I *first, const T *__restrict__ x,
                   const wide_t<T> *__restrict__ spans, const wide_t<T> *__restrict__ spans2,
                   T *out)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.y + threadIdx.y, units = g.inner / V;
    if (i >= (first ? g.bound : g.count))
        return;
    I key = first ? (I)i : s.keys[i];
    int64_t begin = first ? (int64_t)first[i] : i;
    if (!first && ((int64_t)key >= g.bound || (i && s.keys[i - 1] == key)))
        return;
    for (int64_t o = blockIdx.y; o < g.outer; o += gridDim.y)
        for (int64_t c = threadIdx.x; c < units; c += COLS * blockDim.x) {
            grouped_sum<wide_t<T>, V, COLS> sum;
            T *to = out + (o * g.bound + (int64_t)key) * g.inner + c * V;
            if (!first)
                sum.add(to, units - c);
            auto whole = [&](int64_t q, int step) {
                return q % step == 0 && q + step <= g.count && s.keys[q + step - 1] == key;
            };
            for (int64_t q = begin; q < g.count && s.keys[q] == key;)
                if (!whole(q, SPAN)) {
                    sum.add(x + (o * g.count + (int64_t)s.places[q]) * g.inner + c * V, units - c);
                    q++;
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

/** Bytes for sums of `step` rows, to a multiple of 32, since something else follows. */
template <class T> int64_t spans_bytes(const grouping &g, int64_t step)
{
    return (g.outer * (g.count / step) * g.inner * (int64_t)sizeof(wide_t<T>) + 31) / 32 * 32;
}

/** Bytes of scratch beside the sorter: sums of spans, and `first` when every row is written. */
template <class T, class I> int64_t grouped_bytes(const grouping &g, bool every)
{
    return spans_bytes<T>(g, SPAN) + spans_bytes<T>(g, SPAN * SPAN) +
           (every ? g.bound * (int64_t)sizeof(I) : 0);
}

/** Adds rows of x by sorted keys; `scratch` is grouped_bytes() at a multiple of 32. */
template <class T, class I>
void grouped_run(const grouping &g, const sorter<I> &sort, const T *x, T *out, void *scratch,
                 bool every, cudaStream_t stream)
{
    sorted<I> s = {sort.keys[sort.now], sort.places[sort.now]};
    using A = wide_t<T>;
    char *behind = (char *)scratch + spans_bytes<T>(g, SPAN);
    A *spans = (A *)scratch, *spans2 = (A *)behind;
    I *first = every ? (I *)(behind + spans_bytes<T>(g, SPAN * SPAN)) : nullptr;
    auto launch = [&]<int V, int COLS>() {
        int64_t across = (g.inner / V + COLS - 1) / COLS;
        unsigned width = 1;
        while (width < across && width < 256)
            width *= 2;
        dim3 block(width, 256 / width);
        auto grid = [&](int64_t rows) {
            return dim3((unsigned)((rows + block.y - 1) / block.y),
                        (unsigned)(g.outer < 65535 ? g.outer : 65535));
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
    if (every)
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
}

} // namespace ts

#endif
