/**
 * @file loops.cuh
 * Pointwise kernels. A family gives a function of elements;
 * ts::pointwise() runs it over the call's space.
 *
 * There is one kernel per function and dtype, in two widths. Where every operand of the innermost
 * dim is contiguous (or one element for all of it), a thread moves 16 bytes of the widest operand;
 * else four single elements. The other dims are walked by multiplications that stand for divisions.
 * Functions compute in f32 for bf16 and f16, and get numbers beside them in f32;
 * one that has a member near() is asked for what a half does not tell from the result.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_LOOPS_CUH
#define TS_CUDA_LOOPS_CUH

#include <string.h>
#include <tuple>
#include <type_traits>
#include <utility>

#include "backends/cuda/describe.cuh"
#include "backends/cuda/launch.h"
#include "backends/cuda/read_once.cuh"

namespace ts {

enum access_way : uint8_t { way_array, way_one, way_number };

/** A kernel's iteration space: sizes in accesses, strides in bytes per access. */
template <int OPERANDS> struct loop_space {
    uint32_t accesses;   /* of V elements */
    uint32_t tail;       /* elements behind them; only where ndim is 1 */
    int ndim;
    divisor sizes[TS_MAX_DIMS];
    int64_t strides[OPERANDS][TS_MAX_DIMS];
    int64_t one[OPERANDS]; /* bytes of one element's step, for the tail */
    char *data[OPERANDS];
    double number[OPERANDS]; /* bits of a number that the host gave,
                                in the type that the operand is computed in */
    access_way way[OPERANDS];
    bool flat; /* one dim, along which operands are arrays, or beside arrays numbers */
};

enum { LOOP_THREADS = 256 };
/** Accesses of a thread. One of 16 bytes: more in flight on the device
 * than it needs cost the memory's rate 5 %. */
template <int V> constexpr int loop_unroll = V > 1 ? 1 : 4;

/** A number as V elements, or what stands for it until widened(). */
template <int K, int V, class T, int N>
__device__ __forceinline__ word_of<vec<T, V>> splat(const loop_space<N> &s)
{
    vec<T, V> v;
#pragma unroll
    for (int e = 0; e < V; e++)
        if constexpr (number_is_wide<T, N>)
            v.at[e] = T();
        else
            v.at[e] = bits_as<T>(s.number[K]);
    return to_word(v);
}

/**
 * Loads V elements of operand K, as the words in which they move:
 * to take halves apart here would make each access wait for the one before it.
 */
template <int K, int V, class T, int N>
__device__ __forceinline__ word_of<vec<T, V>> fetch(const loop_space<N> &s, int64_t offset)
{
    if (V > 1 && s.way[K] == way_array)
        return *reinterpret_cast<const word_of<vec<T, V>> *>(s.data[K] + offset);
    if (s.way[K] == way_number)
        return splat<K, V, T>(s);
    vec<T, V> v;
    v.at[0] = *reinterpret_cast<const T *>(s.data[K] + offset);
#pragma unroll
    for (int e = 1; e < V; e++)
        v.at[e] = v.at[0];
    return to_word(v);
}

/** Operand K as fn takes it. */
template <int K, int V, class T, int N>
__device__ __forceinline__ unpacked<T, V> widened(const loop_space<N> &s,
                                                  const word_of<vec<T, V>> &in)
{
    unpacked<T, V> x(from_word<vec<T, V>>(in));
    if constexpr (number_is_wide<T, N>)
        if (s.way[K] == way_number) {
#pragma unroll
            for (int e = 0; e < V; e++)
                x.at[e] = bits_as<float>(s.number[K]);
        }
    return x;
}

/** fn of V elements of each operand. */
template <int V, class F, class R, class... T>
__device__ __forceinline__ word_of<vec<R, V>> loop_apply(const F &fn, const unpacked<T, V> &...x)
{
    wide_t<R> out[V];
#pragma unroll
    for (int e = 0; e < V; e++)
        out[e] = apply_fn<R>(fn, x.at[e]...);
    return to_word(pack<R, V>(out));
}

/** Access i of operand K in the flat space. Where there is but one operand, it is no number. */
template <int K, int V, class T, int N>
__device__ __forceinline__ word_of<vec<T, V>> fetch_flat(const loop_space<N> &s, uint32_t i,
                                                         const read_once &read)
{
    using word = word_of<vec<T, V>>;
    if (N == 2 || s.way[K] == way_array) {
        const word *from = reinterpret_cast<const word *>(s.data[K]) + i;
        if constexpr (sizeof(word) == 16)
            return read(from);
        else
            return *from;
    }
    return splat<K, V, T>(s);
}

template <int V, class F, class R, class... T, int... K>
__device__ __forceinline__ void loop_flat(const loop_space<sizeof...(T) + 1> &s, const F &fn,
                                          uint32_t i, std::integer_sequence<int, K...>)
{
    read_once read((int64_t)s.accesses * 16, false);
    std::tuple<word_of<vec<T, V>>...> in(fetch_flat<K + 1, V, T>(s, i, read)...);
    reinterpret_cast<word_of<vec<R, V>> *>(s.data[0])[i] =
        loop_apply<V, F, R, T...>(fn, widened<K + 1, V, T>(s, std::get<K>(in))...);
}

template <int V, class F, class R, class... T, int... K>
__device__ __forceinline__ void loop_body(const loop_space<sizeof...(T) + 1> &s, const F &fn,
                                          std::integer_sequence<int, K...>)
{
    constexpr int N = sizeof...(T) + 1;
    constexpr int unroll = loop_unroll<V>;
    uint32_t first = blockIdx.x * (LOOP_THREADS * unroll) + threadIdx.x;
    if (V > 1 && s.flat && blockIdx.x < gridDim.x - 1) {
        loop_flat<V, F, R, T...>(s, fn, first, std::integer_sequence<int, K...>());
        return;
    }
    int64_t offset[unroll][N];
#pragma unroll
    for (int u = 0; u < unroll; u++) {
        uint32_t i = first + u * LOOP_THREADS;
#pragma unroll
        for (int k = 0; k < N; k++)
            offset[u][k] = 0;
        for (int d = 0; d < s.ndim - 1; d++) {
            uint32_t q = s.sizes[d].of(i), r = i - q * s.sizes[d].d;
#pragma unroll
            for (int k = 0; k < N; k++)
                offset[u][k] += r * s.strides[k][d];
            i = q;
        }
#pragma unroll
        for (int k = 0; k < N; k++)
            offset[u][k] += i * s.strides[k][s.ndim - 1];
    }
    std::tuple<word_of<vec<T, V>>...> in[unroll];
#pragma unroll
    for (int u = 0; u < unroll; u++)
        if (first + u * LOOP_THREADS < s.accesses)
            in[u] = std::tuple<word_of<vec<T, V>>...>(fetch<K + 1, V, T>(s, offset[u][K + 1])...);
#pragma unroll
    for (int u = 0; u < unroll; u++)
        if (first + u * LOOP_THREADS < s.accesses)
            *reinterpret_cast<word_of<vec<R, V>> *>(s.data[0] + offset[u][0]) =
                loop_apply<V, F, R, T...>(fn, widened<K + 1, V, T>(s, std::get<K>(in[u]))...);
    if (V > 1 && blockIdx.x == gridDim.x - 1 && threadIdx.x < s.tail) {
        int64_t i = (int64_t)s.accesses * V + threadIdx.x;
        *reinterpret_cast<word_of<vec<R, 1>> *>(s.data[0] + i * s.one[0]) =
            loop_apply<1, F, R, T...>(
                fn, widened<K + 1, 1, T>(s, fetch<K + 1, 1, T>(s, i * s.one[K + 1]))...);
    }
}

template <int V, class F, class R, class... T>
__global__ void __launch_bounds__(LOOP_THREADS)
    loop_kernel(const __grid_constant__ loop_space<sizeof...(T) + 1> s, const F fn)
{
    loop_body<V, F, R, T...>(s, fn, std::make_integer_sequence<int, (int)sizeof...(T)>());
}

/** The dims behind the first one; apart, so that the common launch of one dim stays short.
 * Returns their accesses. */
template <int V, int N>
__attribute__((noinline)) int64_t loop_outer_dims(loop_space<N> &s, const ts_space &space,
                                                  int64_t last_size)
{
    int last = space.ndim - 1;
    int64_t accesses = last_size;
    for (int d = 0; d < last; d++) {
        int64_t within = d == 0 ? space.sizes[0] / V : space.sizes[d];
        s.sizes[d] = divisor((uint32_t)within);
        accesses *= within;
    }
    for (int k = 0; k < N; k++)
        for (int d = 1; d <= last; d++)
            s.strides[k][d] = space.operand[k].strides[d];
    return accesses;
}

/** Launches `size` of the outermost dim of a space, from `from` on: fewer than 2^31 accesses. */
template <int V, class F, class R, class... T>
cudaError_t loop_launch(const ts_frame *f, const ts_space &space, int64_t from, int64_t size,
                        const F &fn, cudaStream_t stream)
{
    constexpr int N = sizeof...(T) + 1;
    constexpr int item[N] = {(int)sizeof(R), (int)sizeof(T)...};
    constexpr bool wide[N] = {false, number_is_wide<T, N>...};
    int last = space.ndim - 1;
    bool flat = last == 0;
    loop_space<N> s;
    s.ndim = space.ndim;
    s.tail = V > 1 && last == 0 ? (uint32_t)(size % V) : 0;
    auto operand = [&]<int K>() {
        const ts_operand &o = space.operand[K];
        bool array = o.strides[0] == item[K];
        s.one[K] = o.strides[0];
        s.strides[K][0] = o.strides[0] * V;
        if (__builtin_expect(!o.host, 1)) {
            s.data[K] = (char *)o.data + from * o.strides[last];
            s.way[K] = array ? way_array : way_one;
            flat = flat && array;
        } else {
            s.data[K] = (char *)o.data;
            s.way[K] = way_number;
            flat = flat && N > 2;
            loop_number(f, o, item[K], wide[K], &s.number[K]);
        }
    };
    [&]<int... K>(std::integer_sequence<int, K...>) {
        (operand.template operator()<K>(), ...);
    }(std::make_integer_sequence<int, N>());
    s.flat = flat;
    int64_t accesses = last == 0 ? size / V : loop_outer_dims<V>(s, space, size);
    s.accesses = (uint32_t)accesses;
    int64_t per_block = LOOP_THREADS * loop_unroll<V>,
            blocks = (accesses + per_block - 1) / per_block;
    ts_cuda_grid grid = {dim3((unsigned)(blocks ? blocks : 1)), dim3(LOOP_THREADS), 0, 1};
    return launch(loop_kernel<V, F, R, T...>, grid, stream, s, fn);
}

/** Whether every operand of the innermost dim can be moved V elements at a time. */
template <int N> bool loop_is_wide(const ts_space &space, const int (&item)[N], int V)
{
    if (V == 1 || (space.ndim > 1 && space.sizes[0] % V) || space.sizes[0] < V)
        return false;
    for (int k = 0; k < N; k++) {
        const ts_operand &o = space.operand[k];
        int64_t bytes = (int64_t)item[k] * V;
        if (o.host)
            continue;
        if (o.strides[0] == 0 && k > 0)
            continue;
        if (o.strides[0] != item[k] || (uintptr_t)o.data % bytes)
            return false;
        for (int d = 1; d < space.ndim; d++)
            if (o.strides[d] % bytes)
                return false;
    }
    return true;
}

template <class F, class R, class... T>
ts_status loop_run(ts_frame *f, const ts_space &space, const F &fn);

/** Each of the outermost dim by itself, where already one has more accesses than 31 bits count. */
template <class F, class R, class... T>
__attribute__((noinline)) ts_status loop_each(ts_frame *f, const ts_space &space, const F &fn)
{
    int last = space.ndim - 1;
    ts_space part = space;
    part.ndim = last;
    part.numel = space.numel / space.sizes[last];
    for (int64_t i = 0; i < space.sizes[last]; i++) {
        for (int k = 0; k < 1 + (int)sizeof...(T); k++)
            if (!space.operand[k].host)
                part.operand[k].data =
                    (char *)space.operand[k].data + i * space.operand[k].strides[last];
        TS_CUDA_TRY((loop_run<F, R, T...>(f, part, fn)));
    }
    return TS_OK;
}

/** Runs fn over a space: R the result's element, T... the operands'. */
template <class F, class R, class... T>
ts_status loop_run(ts_frame *f, const ts_space &space, const F &fn)
{
    constexpr int N = sizeof...(T) + 1;
    constexpr int item[N] = {(int)sizeof(R), (int)sizeof(T)...};
    constexpr int widest = [] {
        constexpr int sizes[N] = {(int)sizeof(R), (int)sizeof(T)...};
        int most = 1;
        for (int k = 0; k < N; k++)
            most = sizes[k] > most ? sizes[k] : most;
        return most;
    }();
    constexpr int V = 16 / widest;
    call c = call_of(f);
    if (!c.device)
        return describe<F, R, T...>(f, space, fn);
    if (space.numel == 0)
        return TS_OK;
    bool wide = loop_is_wide<N>(space, item, V);
    /* parts along the outermost dim whose accesses can be counted in 31 bits */
    int last = space.ndim - 1;
    int64_t whole = space.sizes[last], most = ((int64_t)1 << 31) - 4096, step = whole;
    if (space.numel > most) {
        int64_t around = space.numel / whole;
        if (around > most)
            return loop_each<F, R, T...>(f, space, fn);
        step = most / around;
        if (last == 0)
            step = step / 4096 * 4096;
    }
    for (int64_t from = 0; from < whole; from += step) {
        int64_t size = whole - from < step ? whole - from : step;
        cudaError_t e = wide ? loop_launch<V, F, R, T...>(f, space, from, size, fn, c.stream)
                             : loop_launch<1, F, R, T...>(f, space, from, size, fn, c.stream);
        TS_CUDA_TRY(ts_cuda_launched(f, e, c.stream));
    }
    return TS_OK;
}

/** N operands of T. */
template <class F, class R, class T, int... I>
ts_status loop_same(ts_frame *f, const ts_space &space, const F &fn,
                    std::integer_sequence<int, I...>)
{
    return loop_run<F, R, std::conditional_t<I >= 0, T, T>...>(f, space, fn);
}

struct same_as_operands;

/**
 * The running op as fn of N operands of one dtype, which is among DTYPES;
 * R is the result's element type where it differs (bool for comparisons).
 */
template <uint32_t DTYPES, int N, class R = same_as_operands, class F>
ts_status pointwise(ts_frame *f, const F &fn)
{
    ts_space space;
    TS_CUDA_TRY(ts_kernel_space(f, &space));
    auto run = [&]<class T>() {
        using result = std::conditional_t<std::is_same_v<R, same_as_operands>, T, R>;
        return loop_same<F, result, T>(f, space, fn, std::make_integer_sequence<int, N>());
    };
    ts_dtype dtype = ts_kernel_dtype(f);
    if constexpr (DTYPES & TS_DTYPE_BIT(TS_F32))
        if (dtype == TS_F32)
            return run.template operator()<float>();
    if constexpr (DTYPES & TS_DTYPE_BIT(TS_BF16))
        if (dtype == TS_BF16)
            return run.template operator()<bf16>();
    if constexpr (DTYPES & TS_DTYPE_BIT(TS_F16))
        if (dtype == TS_F16)
            return run.template operator()<f16>();
    if constexpr (DTYPES & TS_DTYPE_BIT(TS_F64))
        if (dtype == TS_F64)
            return run.template operator()<double>();
    if constexpr (DTYPES & TS_DTYPE_BIT(TS_I64))
        if (dtype == TS_I64)
            return run.template operator()<int64_t>();
    if constexpr (DTYPES & TS_DTYPE_BIT(TS_I32))
        if (dtype == TS_I32)
            return run.template operator()<int32_t>();
    if constexpr (DTYPES & TS_DTYPE_BIT(TS_U8))
        if (dtype == TS_U8)
            return run.template operator()<uint8_t>();
    if constexpr (DTYPES & TS_DTYPE_BIT(TS_BOOL))
        if (dtype == TS_BOOL)
            return run.template operator()<bool>();
    return ts_kernel_error(f, 0, TS_ERR_DTYPE, "cast with ts_to()", "no kernel for dtype %s",
                           ts_dtype_name(dtype));
}

} // namespace ts

#endif
