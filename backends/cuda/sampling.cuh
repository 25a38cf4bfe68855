/** @file sampling.cuh  Random permutations (randperm) and sampling by rows of weights
 * (multinomial), for random.cu. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_SAMPLING_CUH
#define TS_CUDA_SAMPLING_CUH

#include "backends/cuda/index.cuh"
#include "backends/cuda/philox.cuh"
#include "backends/cuda/sort.cuh"

namespace ts {

/* -------------------------------------------------------------------------- permutations ---- */

/*
 * The CPU's shuffle starts from 0, 1, ..., n - 1. For i from n - 1 down to 0, step i swaps elements
 * i and h(i), where the partner h(i) is one of 0 .. i; position i is final after step i. Its value
 * is the element at h(i) before step i. The last step j > i that wrote position h(i) is the
 * smallest j > i with h(j) = h(i); it brought the element at j. The last step that wrote position j
 * before that is the smallest k > j with h(k) = j, and so on. The result at i is therefore the last
 * position of the chain h(i), j, k, ... The expected length of a chain is below ln n.
 *
 * Steps are sorted by partner; steps with the same partner are then adjacent and in order.
 */

/** Stores the partner h(i) of each step i, and i. */
template <class I>
static __global__ void partners_kernel(I *partners, I *steps, int64_t n, ts_rng_state rng)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    partners[i] = (I)__umul64hi(philox_u64(rng.seed, rng.offset, (uint64_t)i), (uint64_t)i + 1);
    steps[i] = (I)i;
}

/** The step after sorted pair s if it has the same partner, else -1. */
template <class I>
static __device__ __forceinline__ I step_behind(const I *partners, const I *steps, int64_t n,
                                                int64_t s)
{
    return s + 1 < n && partners[s + 1] == partners[s] ? steps[s + 1] : (I)-1;
}

/** Sets first[q] to the smallest step above q whose partner is q; `first` is -1 before. */
template <class I>
static __global__ void first_kernel(const I *partners, const I *steps, int64_t n, I *first)
{
    int64_t s = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (s >= n || (s && partners[s - 1] == partners[s]))
        return;
    I q = partners[s];
    first[q] = steps[s] == q ? step_behind(partners, steps, n, s) : steps[s];
}

/** Follows the chain of each position and stores its end. */
template <class T, class I>
static __global__ void follow_kernel(const I *partners, const I *steps, const I *first, T *out,
                                     int64_t n)
{
    int64_t s = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (s >= n)
        return;
    const I none = (I)-1;
    I at = step_behind(partners, steps, n, s), end = partners[s];
    for (; at != none; at = first[at])
        end = at;
    out[steps[s]] = (T)end;
}

/** Writes a random permutation of 0 .. n - 1 to out, the same as the CPU's. scratch:
 * sorter<I>::bytes(n) bytes. I is an unsigned type; n > 0 is below its largest value. */
template <class T, class I>
cudaError_t permute(T *out, int64_t n, ts_rng_state rng, void *scratch, cudaStream_t stream)
{
    sorter<I> sort(scratch, n);
    unsigned blocks = (unsigned)((n + 255) / 256);
    partners_kernel<I><<<blocks, 256, 0, stream>>>(sort.keys[0], sort.positions[0], n, rng);
    cudaError_t e = sort.run((uint64_t)n - 1, stream);
    if (e != cudaSuccess)
        return e;
    I *partners = sort.keys[sort.now], *steps = sort.positions[sort.now],
      *first = sort.keys[sort.now ^ 1];
    cudaMemsetAsync(first, 0xff, n * sizeof(I), stream);
    first_kernel<I><<<blocks, 256, 0, stream>>>(partners, steps, n, first);
    follow_kernel<T, I><<<blocks, 256, 0, stream>>>(partners, steps, first, out, n);
    return cudaPeekAtLastError();
}

/* ----------------------------------------------------------------------- rows of weights ---- */

enum { SAMPLE_THREADS = 1024 };

/** Reports a weight that is negative, infinite or NaN. */
static __device__ __forceinline__ void check_weight(const reporter &out, double x, int64_t position)
{
    if (!(x >= 0) || isinf(x))
        out.wrong_number(x, position);
}

/** Threads of sample_kernel() for a row of n categories: a power of 2. */
inline unsigned sample_threads(int64_t n)
{
    unsigned threads = 32;
    while (threads < SAMPLE_THREADS && threads < n)
        threads *= 2;
    return threads;
}

/**
 * Sampling with replacement: p is (rows, n), y (rows, draws), and a block computes one row. A draw
 * is the first category at which the prefix sum of weights exceeds u times the total, u uniform in
 * [0, 1). A thread sums a run of categories; each draw finds its run by binary search and then
 * scans the run. If the total is not positive and finite, the row is reported and its draws are 0.
 */
template <class T>
static __global__ void __launch_bounds__(SAMPLE_THREADS)
    sample_kernel(const T *p, int64_t *y, int64_t n, int64_t draws, ts_rng_state rng, reporter out)
{
    /* before[r]: sum of all runs before run r; warps: sums of the warps' runs */
    __shared__ double before[SAMPLE_THREADS + 1], warps[32];
    const int threads = (int)blockDim.x;
    int64_t row = blockIdx.x, run = (n + threads - 1) / threads, from = threadIdx.x * run;
    int64_t to = from + run < n ? from + run : n;
    const T *weights = p + row * n;
    double sum = 0;
#pragma unroll 8
    for (int64_t c = from; c < to; c++) {
        double x = (double)widen(weights[c]);
        check_weight(out, x, row * n + c);
        sum += x;
    }
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        double below = __shfl_up_sync(0xffffffffu, sum, step);
        sum += lane >= step ? below : 0;
    }
    if (lane == 31)
        warps[warp] = sum;
    __syncthreads();
    for (int w = 0; w < warp; w++)
        sum += warps[w];
    before[threadIdx.x + 1] = sum;
    if (threadIdx.x == 0)
        before[0] = 0;
    __syncthreads();
    double all = before[threads];
    bool fine = all > 0 && !isinf(all);
    if (!fine && threadIdx.x == 0)
        out.wrong_number(all, row * n);
    for (int64_t s = threadIdx.x; s < draws; s += threads) {
        double u = philox_uniform(rng.seed, rng.offset, (uint64_t)(row * draws + s)) * all;
        int low = 0, high = threads - 1; /* the first run whose end exceeds u */
        while (low < high) {
            int middle = (low + high) / 2;
            if (before[middle + 1] > u)
                high = middle;
            else
                low = middle + 1;
        }
        double reached = before[low];
        int64_t at = -1;
        for (int64_t c = low * run; fine && c < n && !(at >= 0 && reached > u); c++) {
            double x = (double)widen(weights[c]);
            reached += x;
            at = x > 0 ? c : at;
        }
        /* no category found because u was rounded up to the total: take the last positive weight */
        for (int64_t c = low * run; fine && at < 0 && c-- > 0;)
            at = widen(weights[c]) > 0 ? c : -1;
        y[row * draws + s] = fine ? at : 0;
    }
}

/** Draws an exponential random time for each category, with the weight as rate; infinite unless the
 * weight is positive. The order of these arrival times is a sample without replacement. */
template <class T>
static __global__ void arrivals_kernel(const T *p, double *times, int64_t all, ts_rng_state rng,
                                       reporter out)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < all;
         i += (int64_t)gridDim.x * blockDim.x) {
        double x = (double)widen(p[i]);
        check_weight(out, x, i);
        times[i] = x > 0 ? -log1p(-philox_uniform(rng.seed, rng.offset, (uint64_t)i)) / x
                         : (double)INFINITY;
    }
}

/** The arrival time of a category. Of equal times, that of the lower category is first. */
struct arrival {
    double time;
    int64_t category;
    __device__ __forceinline__ bool before(const arrival &b) const
    {
        return time < b.time || (time == b.time && category < b.category);
    }
    /** Becomes the earlier of this arrival and b. */
    __device__ __forceinline__ void meet(const arrival &b)
    {
        if (b.before(*this))
            *this = b;
    }
    /** Becomes the earliest arrival of the warp's lanes. */
    __device__ __forceinline__ void meet_lanes()
    {
#pragma unroll
        for (int lane = 16; lane; lane >>= 1)
            meet({__shfl_xor_sync(0xffffffffu, time, lane),
                  __shfl_xor_sync(0xffffffffu, category, lane)});
    }
};

/**
 * Sampling without replacement: the `draws` earliest arrivals of a row, in order; each wins one
 * draw. A thread keeps the earliest of its categories that has not won; after that category wins,
 * the warp finds the thread's next one. A block computes one row. Draws for which no finite time is
 * left are reported and are 0.
 */
static __global__ void __launch_bounds__(SAMPLE_THREADS)
    race_kernel(const double *times, int64_t *y, int64_t n, int64_t draws, reporter out)
{
    int64_t row = blockIdx.x, own = threadIdx.x;
    int lane = threadIdx.x % 32;
    const double *time = times + row * n;
    const arrival never = {(double)INFINITY, INT64_MAX};
    __shared__ arrival firsts[2][32];
    arrival mine = never;
#pragma unroll 4
    for (int64_t c = own; c < n; c += SAMPLE_THREADS)
        mine.meet({time[c], c});
    for (int64_t s = 0; s < draws; s++) {
        arrival best = mine;
        best.meet_lanes();
        if (lane == 0)
            firsts[s & 1][threadIdx.x / 32] = best;
        __syncthreads();
        arrival won = firsts[s & 1][lane];
        won.meet_lanes();
        if (isinf(won.time) && threadIdx.x == 0)
            out.wrong_number((double)s, row * n);
        if (threadIdx.x == 0)
            y[row * draws + s] = isinf(won.time) ? 0 : won.category;
        unsigned winner = __ballot_sync(0xffffffffu, mine.category == won.category);
        if (!winner)
            continue;
        int64_t first = threadIdx.x - lane + (__ffs((int)winner) - 1);
        arrival next = never;
        for (int64_t c = first + (int64_t)lane * SAMPLE_THREADS; c < n; c += 32 * SAMPLE_THREADS) {
            arrival other = {time[c], c};
            if (won.before(other))
                next.meet(other);
        }
        next.meet_lanes();
        if (winner >> lane & 1)
            mine = next;
    }
}

} // namespace ts

#endif
