/**
 * @file scan.cu  Cumulative sums. A block processes a row, or 32 adjacent rows, in chunks in
 * registers: threads add their own elements, the block scans these sums, and a carry (f64 for
 * floats) is passed to the next chunk. If there are too few rows for the device, rows are divided
 * into shares: a first launch sums each share, and every share starts with the sum of the shares
 * before it. The order of additions depends on the shape only, unlike decoupled look-back. Bytes:
 * each element read and written once, and read once more if rows are divided.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/aligned.cuh"
#include "backends/cuda/block.cuh"
#include "backends/cuda/frame.cuh"
#include "backends/cuda/line_tiles.cuh"

using namespace ts;

/** Types of sums of T: `type` of the carry, `near` of sums over at most a warp's elements. */
template <class T> struct running { using type = double; using near = wide_t<T>; };
/* unsigned, because sums of integers wrap around */
template <> struct running<int64_t> { using type = uint64_t; using near = uint64_t; };

/** A tensor (outer, n, inner), scanned along the dim of size n. Share p of a line consists of
 * elements p * share to (p + 1) * share - 1, counted in the direction of the scan. */
struct scan {
    int64_t outer, n, inner, share;
    bool reverse;
};

/** Index of this block's share. Blocks start with the last share, which the previous launch read
 * last and which is therefore still in the L2 cache. */
static __device__ __forceinline__ unsigned own_share() { return gridDim.y - 1 - blockIdx.y; }

/** Sum of the shares before this one. */
template <class A>
static __device__ __forceinline__ A carry_of(const A *sums, int64_t lines, int64_t line)
{
    A carry = 0;
#pragma unroll 8
    for (unsigned p = 0; p < own_share(); p++)
        carry += sums[p * lines + line];
    return carry;
}

/* --------------------------------------------------------------------------------- rows ---- */

enum { ROW_VECS = 4, BLOCK_WARPS = 8 /* rows per block, if one warp processes a row */ };

/** Sum over the lanes before this one, from the inclusive sum `upto`. Subtracting the lane's own
 * value instead would turn Inf into NaN. */
template <class A> static __device__ __forceinline__ A before_lane(A upto)
{
    A below = __shfl_up_sync(0xffffffffu, upto, 1);
    return threadIdx.x % 32 ? below : 0;
}

/** Index of the row of this warp or block. */
template <int WARPS> static __device__ __forceinline__ int64_t own_row()
{
    return WARPS == 1 ? (int64_t)blockIdx.x * BLOCK_WARPS + threadIdx.x / 32 : blockIdx.x;
}

/** Writes the sum of each share of each row: sums[share][row]. */
template <class T, int WARPS, int V>
static __global__ void __launch_bounds__(32 * (WARPS == 1 ? BLOCK_WARPS : WARPS))
    row_totals_kernel(scan s, const T *x, typename running<T>::type *sums)
{
    using A = typename running<T>::type;
    using L = typename running<T>::near;
    constexpr int threads = 32 * WARPS;
    int64_t row = own_row<WARPS>(), last = s.n / V - 1, unit = blockIdx.y * s.share / V,
            end = unit + s.share / V;
    if (row >= s.outer)
        return;
    x += row * s.n;
    end = end <= last ? end : last + 1;
    A sum = 0;
#pragma unroll 4
    for (int64_t u = unit + threadIdx.x % threads; u < end; u += threads) {
        vec<T, V> v = *reinterpret_cast<const vec<T, V> *>(x + (s.reverse ? last - u : u) * V);
        L own = 0;
#pragma unroll
        for (int e = 0; e < V; e++)
            own += (L)widen(v.at[e]);
        sum += (A)own;
    }
#pragma unroll
    for (int by = 16; by; by /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, by);
    if constexpr (WARPS > 1) {
        __shared__ A part[WARPS];
        if (threadIdx.x % 32 == 0)
            part[threadIdx.x / 32] = sum;
        __syncthreads();
        sum = 0;
        for (int w = 0; w < WARPS; w++)
            sum += part[w];
    }
    if (threadIdx.x % threads == 0)
        sums[blockIdx.y * s.outer + row] = sum;
}

/**
 * WARPS warps process a row. A warp scans one vector per thread in L, the type of the elements; the
 * first warp scans the sums of the warps in A. So an element costs two additions and no conversion.
 */
template <class T, int WARPS, int V>
static __global__ void __launch_bounds__(32 * (WARPS == 1 ? BLOCK_WARPS : WARPS))
    rows_kernel(scan s, const T *x, T *y, const typename running<T>::type *sums)
{
    using A = typename running<T>::type;
    using L = typename running<T>::near;
    constexpr int threads = 32 * WARPS, own = ROW_VECS * WARPS, each = own / 32;
    __shared__ L part[own];
    __shared__ A base[own + 1];
    int lane = threadIdx.x % 32, warp = WARPS == 1 ? 0 : threadIdx.x / 32,
        thread = threadIdx.x % threads;
    int64_t row = own_row<WARPS>(), last = s.n / V - 1, unit = own_share() * s.share / V,
            end = unit + s.share / V;
    if (row >= s.outer)
        return;
    x += row * s.n;
    y += row * s.n;
    end = end <= last ? end : last + 1;
    A carry = carry_of(sums, s.outer, row);
    for (; unit < end; unit += threads * ROW_VECS) {
        vec<T, V> v[ROW_VECS];
        L upto[ROW_VECS];
        A before[ROW_VECS];
#pragma unroll
        for (int j = 0; j < ROW_VECS; j++) {
            int64_t u = unit + j * threads + thread;
            if (u < end)
                v[j] = *reinterpret_cast<const vec<T, V> *>(x + (s.reverse ? last - u : u) * V);
        }
#pragma unroll
        for (int j = 0; j < ROW_VECS; j++) {
            L sum = 0;
            if (unit + j * threads + thread < end)
#pragma unroll
                for (int e = 0; e < V; e++)
                    sum += (L)widen(v[j].at[s.reverse ? V - 1 - e : e]);
            upto[j] = warp_inclusive(sum);
            if (WARPS > 1 && lane == 31)
                part[j * WARPS + warp] = upto[j];
        }
        if constexpr (WARPS > 1) {
            __syncthreads();
            if (warp == 0) {
                A mine[each], sum = 0;
#pragma unroll
                for (int k = 0; k < each; k++) {
                    mine[k] = sum;
                    sum += (A)part[lane * each + k];
                }
                A all = warp_inclusive(sum), start = before_lane(all);
#pragma unroll
                for (int k = 0; k < each; k++)
                    base[lane * each + k] = start + mine[k];
                if (lane == 31)
                    base[own] = all;
            }
            __syncthreads();
#pragma unroll
            for (int j = 0; j < ROW_VECS; j++)
                before[j] = carry + base[j * WARPS + warp];
            carry += base[own];
        } else {
#pragma unroll
            for (int j = 0; j < ROW_VECS; j++) {
                before[j] = carry;
                carry += (A)__shfl_sync(0xffffffffu, upto[j], 31);
            }
        }
#pragma unroll
        for (int j = 0; j < ROW_VECS; j++) {
            int64_t u = unit + j * threads + thread;
            L start = (L)before[j], sum = before_lane(upto[j]);
            if (u >= end)
                continue;
#pragma unroll
            for (int e = 0; e < V; e++) {
                int k = s.reverse ? V - 1 - e : e;
                sum += (L)widen(v[j].at[k]);
                v[j].at[k] = narrow<T>(start + sum);
            }
            *reinterpret_cast<vec<T, V> *>(y + (s.reverse ? last - u : u) * V) = v[j];
        }
    }
}

/* ------------------------------------------------------------------------------ columns ---- */

enum { DEPTH = 16 /* consecutive elements of a thread */ };

/** A block processes X adjacent lines with Y threads along each. TOTAL: only writes the sum of each
 * share, sums[share][line]; else writes y and reads these sums. */
template <class T, int X, int Y, bool TOTAL>
static __global__ void __launch_bounds__(X *Y)
    columns_kernel(scan s, const T *x, T *y, typename running<T>::type *sums)
{
    using A = typename running<T>::type;
    using L = typename running<T>::near;
    __shared__ L part[2][Y][X];
    unsigned share = TOTAL ? blockIdx.y : own_share();
    int64_t tiles = (s.inner + X - 1) / X, o = blockIdx.x / tiles,
            column = blockIdx.x % tiles * X + threadIdx.x;
    bool some = column < s.inner;
    int64_t line = o * s.inner + column, first = o * s.n * s.inner + column,
            end = (int64_t)(share + 1) * s.share;
    end = end < s.n ? end : s.n;
    A carry = TOTAL || !some ? 0 : carry_of(sums, s.outer * s.inner, line);
    int turn = 0;
    for (int64_t begin = (int64_t)share * s.share; begin < end; begin += Y * DEPTH, turn ^= 1) {
        T v[DEPTH];
        int64_t k = begin + threadIdx.y * DEPTH;
        auto at = [&](int e) { return first + (s.reverse ? s.n - 1 - (k + e) : k + e) * s.inner; };
        L own = 0;
#pragma unroll
        for (int e = 0; e < DEPTH; e++)
            v[e] = some && k + e < end ? x[at(e)] : (T)0;
#pragma unroll
        for (int e = 0; e < DEPTH; e++)
            own += (L)widen(v[e]);
        part[turn][threadIdx.y][threadIdx.x] = own;
        __syncthreads(); /* the other half of `part` is free when all have come here */
        A sum = carry;
#pragma unroll 16
        for (int t = 0; t < Y; t++) {
            A other = (A)part[turn][t][threadIdx.x];
            sum += t < threadIdx.y ? other : 0;
            carry += other;
        }
        if constexpr (!TOTAL) {
            L start = (L)sum, upto = 0;
#pragma unroll
            for (int e = 0; e < DEPTH; e++) {
                upto += (L)widen(v[e]);
                if (some && k + e < end)
                    y[at(e)] = narrow<T>(start + upto);
            }
        }
    }
    if (TOTAL && some && threadIdx.y == 0)
        sums[blockIdx.y * s.outer * s.inner + line] = carry;
}

/* -------------------------------------------------------------------------- short lines ---- */

enum { SHORT = 64 /* elements that a thread adds one by one */ };

template <class T> struct sums_of {
    bool reverse;
    __device__ __forceinline__ void operator()(const tile_line<T, 1> &l) const
    {
        typename running<T>::type sum = 0;
        for (int i = 0; i < l.count; i++) {
            int at = (reverse ? l.count - 1 - i : i) * l.step;
            sum += l.get(0, at);
            l.put(at, (wide_t<T>)sum);
        }
    }
};

/* ------------------------------------------------------------------------------- launch ---- */

/** Divides the lines, which `blocks` blocks process in chunks of `chunk` elements, into shares of
 * whole chunks, until there are about 512 blocks. Sets s.share and returns the number of shares. */
static int64_t cut(scan &s, int64_t blocks, int64_t chunk)
{
    int64_t shares = blocks < 256 ? 512 / blocks : 1, chunks = (s.n + chunk - 1) / chunk;
    if (chunks < 4 || shares < 2)
        shares = 1;
    s.share = (chunks + shares - 1) / shares * chunk;
    return (s.n + s.share - 1) / s.share;
}

/** Runs launch.operator()<TOTAL>(shares, stream, sums): with several shares, computes their sums
 * first. */
template <class A, class F>
static ts_status in_shares(ts_frame *f, int64_t lines, int64_t shares, F &&launch)
{
    ts_device where = ts_kernel_device(f);
    int64_t bytes = shares > 1 ? shares * lines * (int64_t)sizeof(A) : 0;
    A *sums = nullptr;
    if (bytes && !(sums = (A *)ts_scratch_take(where, bytes)))
        return ts_error_code();
    ts_status status = on_device(f, [&](const call &c) {
        if (sums)
            launch.template operator()<true>((unsigned)shares, c.stream, sums);
        launch.template operator()<false>((unsigned)shares, c.stream, sums);
        return cudaPeekAtLastError();
    });
    if (sums)
        ts_scratch_give(where, sums, bytes);
    return status;
}

template <class T, int WARPS, int V>
static ts_status run_rows(ts_frame *f, scan s, const T *x, T *y)
{
    using A = typename running<T>::type;
    constexpr int rows = WARPS == 1 ? BLOCK_WARPS : 1, threads = 32 * WARPS * rows;
    int64_t blocks = (s.outer + rows - 1) / rows,
            shares = cut(s, blocks, 32 * WARPS * ROW_VECS * V);
    return in_shares<A>(
        f, s.outer, shares, [&]<bool TOTAL>(unsigned parts, cudaStream_t stream, A *sums) {
            if constexpr (TOTAL)
                row_totals_kernel<T, WARPS, V>
                    <<<dim3(grid_blocks(blocks), parts), threads, 0, stream>>>(s, x, sums);
            else
                rows_kernel<T, WARPS, V>
                    <<<dim3(grid_blocks(blocks), parts), threads, 0, stream>>>(s, x, y, sums);
        });
}

template <class T, int X, int Y> static ts_status run_columns(ts_frame *f, scan s, const T *x, T *y)
{
    using A = typename running<T>::type;
    int64_t blocks = s.outer * ((s.inner + X - 1) / X), shares = cut(s, blocks, Y * DEPTH);
    return in_shares<A>(f, s.outer * s.inner, shares,
                        [&]<bool TOTAL>(unsigned parts, cudaStream_t stream, A *sums) {
                            columns_kernel<T, X, Y, TOTAL>
                                <<<dim3(grid_blocks(blocks), parts), dim3(X, Y), 0, stream>>>(
                                    s, x, y, sums);
                        });
}

template <class T> static ts_status run(ts_frame *f)
{
    ts_rows r = ts_kernel_rows(f);
    scan s = {r.outer, r.count, r.inner, 0, f->args[2].i != 0};
    const T *x = data_of<T>(f->args[0]);
    T *y = data_of<T>(f->rets[0]);
    if (!ts_numel(f->rets[0].t))
        return TS_OK;
    line_tiles t;
    if (s.n <= SHORT && line_tiles_of<T>({s.outer, s.n, s.inner}, t, 1))
        return on_device(f, [&](const call &c) {
            return tiles_launch<T, 1>(t, sums_of<T>{s.reverse}, {x}, y, c.stream);
        });
    if (s.inner > 8)
        return run_columns<T, 32, 16>(f, s, x, y);
    if (s.inner > 1)
        return run_columns<T, 8, 64>(f, s, x, y);
    constexpr int V = vec16<T>;
    if (s.n % V) /* otherwise rows are 16-byte aligned: on_aligned() ensures it */
        return s.n <= 32 * ROW_VECS * 4 ? run_rows<T, 1, 1>(f, s, x, y)
                                        : run_rows<T, 16, 1>(f, s, x, y);
    int64_t vecs = s.n / V;
    return vecs <= 128 * ROW_VECS       ? run_rows<T, 1, V>(f, s, x, y)
           : vecs <= 512 * ROW_VECS / 2 ? run_rows<T, 8, V>(f, s, x, y)
                                        : run_rows<T, 16, V>(f, s, x, y);
}

static ts_status cumsum(ts_frame *f)
{
    switch (ts_kernel_dtype(f)) {
    case TS_F64: return run<double>(f);
    case TS_BF16: return run<bf16>(f);
    case TS_F16: return run<f16>(f);
    case TS_I64: return run<int64_t>(f);
    default: return run<float>(f);
    }
}

/** Runs cumsum(), with aligned copies of unaligned tensors if it loads vectors (inner = 1). */
static ts_status in_one_order(ts_frame *f)
{
    return ts_kernel_rows(f).inner > 1 ? cumsum(f) : on_aligned<cumsum>(f);
}

TS_CUDA_FAMILY(scan, {"cumsum", in_one_order, floats | TS_DTYPE_BIT(TS_I64), false})
