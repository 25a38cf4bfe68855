/**
 * @file arg.cu
 * Where the largest or smallest element is: the first among equals, the first NaN before all
 * numbers. That makes one best of any two, so the order of comparing does not matter. Rows whose
 * elements are neighbours are read in 16-byte vectors by a warp or a block; else 32 results side by
 * side share a block. Long lines of few results are cut in shares. Bytes: each element read once.
 */
// SPDX-License-Identifier: MIT
#include <limits>

#include "backends/cuda/frame.cuh"
#include "backends/cuda/launch_rows.cuh"
#include "backends/cuda/lines.cuh"

using namespace ts;

/** An element and its place. MAX looks for the largest. */
template <class A, bool MAX> struct best {
    A value;
    int64_t place;

    /** Nothing yet: loses against all. */
    static __device__ __forceinline__ best none()
    {
        if constexpr (std::is_floating_point_v<A>)
            return {MAX ? -(A)INFINITY : (A)INFINITY, INT64_MAX};
        else
            return {MAX ? std::numeric_limits<A>::lowest() : std::numeric_limits<A>::max(),
                    INT64_MAX};
    }
    static __device__ __forceinline__ bool beats(A x, A y) { return MAX ? x > y : x < y; }
    /** Of an element behind all that were seen. */
    __device__ __forceinline__ void see(A x, int64_t at)
    {
        if (beats(x, value) || (x != x && value == value) || place == INT64_MAX) {
            value = x;
            place = at;
        }
    }
    __device__ __forceinline__ void join(const best &b)
    {
        bool mine = value != value, other = b.value != b.value;
        bool wins = mine || other ? other && (!mine || b.place < place)
                                  : beats(b.value, value) || (b.value == value && b.place < place);
        if (wins)
            *this = b;
    }
};

/** The best of a warp's, in every lane. */
template <class A, bool MAX> static __device__ __forceinline__ void warp_best(best<A, MAX> &b)
{
#pragma unroll
    for (int lane = 16; lane; lane >>= 1)
        b.join({(A)__shfl_xor_sync(0xffffffffu, b.value, lane),
                __shfl_xor_sync(0xffffffffu, b.place, lane)});
}

/** Lines to search, and where results go: for several shares the bests of each share. */
template <class T> struct search {
    lines l;
    int64_t share;
    const T *x;
    T *values;       /* NULL: not wanted */
    int64_t *places; /* NULL: not wanted */
    best<wide_t<T>, true> *bests; /* of shares: [share][line]; of either kind */
};

template <class T, bool MAX>
static __device__ __forceinline__ void give(const search<T> &s, int64_t line,
                                            const best<wide_t<T>, MAX> &b)
{
    if (s.bests) {
        s.bests[blockIdx.y * s.l.outer * s.l.inner + line] = {b.value, b.place};
        return;
    }
    if (s.values)
        s.values[line] = narrow<T>(b.value);
    if (s.places)
        s.places[line] = b.place;
}

/** WARPS warps search a row; 8 warps a block. */
template <class T, bool MAX, int WARPS, int V>
static __global__ void __launch_bounds__(256) rows_kernel(const __grid_constant__ search<T> s)
{
    using B = best<wide_t<T>, MAX>;
    int64_t row = WARPS == 1 ? (int64_t)blockIdx.x * 8 + threadIdx.x / 32 : blockIdx.x;
    if (row >= s.l.outer)
        return;
    const T *x = s.x + row * s.l.count;
    int64_t begin = blockIdx.y * s.share, end = begin + s.share;
    end = end < s.l.count ? end : s.l.count;
    B b = B::none();
#pragma unroll 4
    for (int64_t i = begin + (threadIdx.x % (32 * WARPS)) * V; i < end; i += 32 * WARPS * V) {
        vec<T, V> v = *reinterpret_cast<const vec<T, V> *>(x + i);
#pragma unroll
        for (int e = 0; e < V; e++)
            b.see(widen(v.at[e]), i + e);
    }
    warp_best(b);
    if constexpr (WARPS > 1) {
        __shared__ B of[WARPS];
        if (threadIdx.x % 32 == 0)
            of[threadIdx.x / 32] = b;
        __syncthreads();
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            b.join(of[w]);
    }
    if (threadIdx.x % (32 * WARPS) == 0)
        give<T, MAX>(s, row, b);
}

template <class T, bool MAX, int X, int Y>
static __global__ void __launch_bounds__(X *Y) columns_kernel(const __grid_constant__ search<T> s)
{
    using B = best<wide_t<T>, MAX>;
    __shared__ B of[Y][X];
    line_place<X, Y> at(s.l);
    int64_t end = (int64_t)(blockIdx.y + 1) * s.share;
    end = end < s.l.count ? end : s.l.count;
    B b = B::none();
    if (at.some)
#pragma unroll 8
        for (int64_t i = (int64_t)blockIdx.y * s.share + threadIdx.y; i < end; i += Y)
            b.see(widen(s.x[at.first + i * s.l.inner]), i);
    of[threadIdx.y][threadIdx.x] = b;
    __syncthreads();
    if (threadIdx.y || !at.some)
        return;
    for (int y = 1; y < Y; y++)
        b.join(of[y][threadIdx.x]);
    give<T, MAX>(s, at.number, b);
}

/** The best of the shares of each line: a warp a line. */
template <class T, bool MAX>
static __global__ void __launch_bounds__(256)
    shares_kernel(search<T> s, int64_t count, int shares, const best<wide_t<T>, true> *bests)
{
    int64_t i = (int64_t)blockIdx.x * 8 + threadIdx.x / 32;
    if (i >= count)
        return;
    best<wide_t<T>, MAX> b = best<wide_t<T>, MAX>::none();
#pragma unroll 4
    for (int p = threadIdx.x % 32; p < shares; p += 32)
        b.join({bests[p * count + i].value, bests[p * count + i].place});
    warp_best(b);
    if (threadIdx.x % 32 == 0)
        give<T, MAX>(s, i, b);
}

template <class T, bool MAX>
static ts_status run(ts_frame *f, const ts_value *values, const ts_value *places)
{
    ts_rows r = ts_kernel_rows(f);
    search<T> s = {{r.outer, r.count, r.inner}, r.count, data_of<T>(f->args[0]),
                   values ? data_of<T>(*values) : nullptr,
                   places ? data_of<int64_t>(*places) : nullptr, nullptr};
    if (!ts_numel(f->args[0].t))
        return TS_OK;
    constexpr int V = vec16<T>;
    bool columns = r.inner > 1, wide = r.count % V == 0 && aligned16(s.x), brief = r.count <= 1024;
    int64_t results = r.outer * r.inner;
    int64_t blocks = columns ? r.outer * ((r.inner + 31) / 32)
                     : brief ? (r.outer + 7) / 8
                             : r.outer;
    int64_t shares = 1024 / blocks; /* results do not depend on it */
    int64_t most = r.count / (columns ? 512 : 8192);
    shares = shares < most ? shares : most;
    shares = shares > 1 ? shares : 1;
    s.share = ((r.count + shares - 1) / shares + 15) / 16 * 16;
    shares = (r.count + s.share - 1) / s.share;
    ts_device where = ts_kernel_device(f);
    int64_t bytes = shares > 1 ? shares * results * (int64_t)sizeof *s.bests : 0;
    if (bytes && !(s.bests = (best<wide_t<T>, true> *)ts_scratch_take(where, bytes)))
        return ts_error_code();
    ts_status status = on_device(f, [&](const call &c) {
        dim3 grid(grid_blocks(blocks), (unsigned)shares);
        if (columns)
            columns_kernel<T, MAX, 32, 16><<<grid, dim3(32, 16), 0, c.stream>>>(s);
        else if (brief)
            wide ? rows_kernel<T, MAX, 1, V><<<grid, 256, 0, c.stream>>>(s)
                 : rows_kernel<T, MAX, 1, 1><<<grid, 256, 0, c.stream>>>(s);
        else
            wide ? rows_kernel<T, MAX, 8, V><<<grid, 256, 0, c.stream>>>(s)
                 : rows_kernel<T, MAX, 8, 1><<<grid, 256, 0, c.stream>>>(s);
        if (shares > 1) {
            search<T> last = s;
            last.bests = nullptr;
            shares_kernel<T, MAX><<<(unsigned)((results + 7) / 8), 256, 0, c.stream>>>(
                last, results, (int)shares, s.bests);
        }
        return cudaPeekAtLastError();
    });
    if (s.bests)
        ts_scratch_give(where, s.bests, bytes);
    return status;
}

template <bool MAX>
static ts_status find(ts_frame *f, const ts_value *values, const ts_value *places)
{
    switch (ts_kernel_dtype(f)) {
    case TS_F64: return run<double, MAX>(f, values, places);
    case TS_BF16: return run<bf16, MAX>(f, values, places);
    case TS_F16: return run<f16, MAX>(f, values, places);
    case TS_I64: return run<int64_t, MAX>(f, values, places);
    case TS_I32: return run<int32_t, MAX>(f, values, places);
    case TS_U8:
    case TS_BOOL: return run<uint8_t, MAX>(f, values, places);
    default: return run<float, MAX>(f, values, places);
    }
}

static ts_status argmax(ts_frame *f) { return find<true>(f, nullptr, &f->rets[0]); }
static ts_status argmin(ts_frame *f) { return find<false>(f, nullptr, &f->rets[0]); }
static ts_status max_dim(ts_frame *f) { return find<true>(f, &f->rets[0], &f->rets[1]); }
static ts_status min_dim(ts_frame *f) { return find<false>(f, &f->rets[0], &f->rets[1]); }

TS_CUDA_FAMILY(arg,
    {"argmax", argmax, everything, false},
    {"argmin", argmin, everything, false},
    {"max_dim", max_dim, everything, false},
    {"min_dim", min_dim, everything, false},
)
