/**
 * @file loops.cuh
 * Pointwise kernels. A kernel family defines a functor of elements; ts::pointwise() runs it over
 * the call's space.
 *
 * If every operand is contiguous along the innermost dim, or has one element for all of it, a
 * kernel per functor and dtype moves 16 bytes of the widest operand per thread. Otherwise a thread
 * moves four single elements. Then a functor whose operands have one dtype has a kernel per
 * arithmetic type (double, float, int64_t, bool), which converts elements as it loads and stores
 * them; copies and selections have a kernel per dtype. Offsets along the other dims are computed by
 * multiplications instead of divisions.
 *
 * For bf16 and f16, functors compute in f32 and get numbers in f32. If a functor has near(), the
 * kernel calls near() for bf16 and f16: a faster formula that is accurate enough for a half.
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

/** An operand along the innermost dim: contiguous, one element for all, or a number of the host. In
 * kernels of single elements (V = 1), way_one means any stride. */
enum access_way : uint8_t { way_array, way_one, way_number };

/** A kernel's iteration space: sizes in accesses, strides in bytes per access. */
template <int OPERANDS> struct loop_space {
    uint32_t accesses; /* of V elements each */
    uint32_t tail;     /* elements after the last access; 0 unless ndim is 1 */
    int ndim;
    divisor sizes[TS_MAX_DIMS];
    int32_t strides[OPERANDS][TS_MAX_DIMS];
    int64_t one[OPERANDS]; /* stride of one element in bytes, for the tail */
    char *data[OPERANDS];
    double number[OPERANDS]; /* bits of a host number, in the type of the computation */
    access_way way[OPERANDS];
    bool flat; /* one dim; the operands are arrays, or arrays and numbers */
};

enum { LOOP_THREADS = 256 };
/** Accesses per thread: one of 16 bytes, because more loads in flight make memory 5 % slower, or
 * four of one element. */
template <int V> constexpr int loop_unroll = V > 1 ? 1 : 4;

/** A number repeated V times; a placeholder if widened() inserts the number in f32. */
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
 * Loads V elements of operand K as whole words. Unpacking halves here would make each load wait for
 * the previous one.
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

/** Unpacks operand K into the wide type that fn takes. */
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

/** Applies fn to V elements of each operand and packs the results. */
template <int V, class F, class R, class... T>
__device__ __forceinline__ word_of<vec<R, V>> loop_apply(const F &fn, const unpacked<T, V> &...x)
{
    wide_t<R> out[V];
#pragma unroll
    for (int e = 0; e < V; e++)
        out[e] = apply_fn<R>(fn, x.at[e]...);
    return to_word(pack<R, V>(out));
}

/** Loads access i of operand K in a flat space. A single operand is never a number. */
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

/** Byte offsets of accesses first, first + LOOP_THREADS, ... of each operand. */
template <int N, int COUNT>
__device__ __forceinline__ void loop_offsets(const loop_space<N> &s, uint32_t first,
                                             int64_t (&offset)[COUNT][N])
{
#pragma unroll
    for (int u = 0; u < COUNT; u++) {
        uint32_t i = first + u * LOOP_THREADS;
#pragma unroll
        for (int k = 0; k < N; k++)
            offset[u][k] = 0;
        for (int d = 0; d < s.ndim - 1; d++) {
            uint32_t q = s.sizes[d].of(i), r = i - q * s.sizes[d].d;
#pragma unroll
            for (int k = 0; k < N; k++)
                offset[u][k] += (int64_t)(int32_t)r * s.strides[k][d];
            i = q;
        }
#pragma unroll
        for (int k = 0; k < N; k++)
            offset[u][k] += (int64_t)(int32_t)i * s.strides[k][s.ndim - 1];
    }
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
    loop_offsets(s, first, offset);
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

/** Fills the dims after the first one. A separate function, so that the common launch with one dim
 * stays short. Returns the number of accesses of all dims. */
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
            s.strides[k][d] = (int32_t)space.operand[k].strides[d];
    return accesses;
}

/** Fills s with indices from to from + size - 1 of a space's outermost dim, fewer than 2^31
 * accesses. Calls number(k) if operand k is a host number. Returns the grid. */
template <int V, int N, class F>
ts_cuda_grid loop_fill(loop_space<N> &s, const ts_space &space, const int (&item)[N], int64_t from,
                       int64_t size, F &&number)
{
    int last = space.ndim - 1;
    bool flat = last == 0;
    s.ndim = space.ndim;
    s.tail = V > 1 && last == 0 ? (uint32_t)(size % V) : 0;
    for (int k = 0; k < N; k++) {
        const ts_operand &o = space.operand[k];
        bool array = o.strides[0] == item[k];
        s.one[k] = o.strides[0];
        s.strides[k][0] = (int32_t)(o.strides[0] * V);
        if (__builtin_expect(!o.host, 1)) {
            s.data[k] = (char *)o.data + from * o.strides[last];
            s.way[k] = array ? way_array : way_one;
            flat = flat && array;
        } else {
            s.data[k] = (char *)o.data;
            s.way[k] = way_number;
            flat = flat && N > 2;
            number(k);
        }
    }
    s.flat = flat;
    int64_t accesses = last == 0 ? size / V : loop_outer_dims<V>(s, space, size);
    s.accesses = (uint32_t)accesses;
    int64_t per_block = LOOP_THREADS * loop_unroll<V>,
            blocks = (accesses + per_block - 1) / per_block;
    return {dim3((unsigned)(blocks ? blocks : 1)), dim3(LOOP_THREADS), 0, 1};
}

template <int V, class F, class R, class... T>
cudaError_t loop_launch(const ts_frame *f, const ts_space &space, int64_t from, int64_t size,
                        const F &fn, cudaStream_t stream)
{
    constexpr int N = sizeof...(T) + 1;
    constexpr int item[N] = {(int)sizeof(R), (int)sizeof(T)...};
    constexpr bool wide[N] = {false, number_is_wide<T, N>...};
    loop_space<N> s;
    ts_cuda_grid grid = loop_fill<V>(s, space, item, from, size, [&](int k) {
        loop_number(f, space.operand[k], item[k], wide[k], &s.number[k]);
    });
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

/** The outermost dim along which an operand's stride exceeds 31 bits; -1 if there is none. */
inline int loop_far_dim(const ts_space &space)
{
    int d = space.ndim - 1;
    for (; d >= 0; d--)
        for (int k = 0; k < space.operands; k++)
            if (space.operand[k].strides[d] > INT32_MAX)
                return d;
    return d;
}

/** Runs launch(space, from, size, stream) over parts along the outermost dim with fewer than 2^31
 * accesses each; over each index of a dim separately if one index has more accesses, or if a stride
 * of the dim exceeds 31 bits. Without a device, calls describe(). */
template <class F, class D>
ts_status loop_parts(ts_frame *f, const ts_space &space, F &&launch, D &&describe)
{
    call c = call_of(f);
    if (!c.device)
        return describe();
    if (space.numel == 0)
        return TS_OK;
    int last = space.ndim - 1, each = loop_far_dim(space);
    int64_t whole = space.sizes[last], most = ((int64_t)1 << 31) - 4096, step = whole;
    if (__builtin_expect(space.numel > most, 0)) {
        int64_t around = space.numel / whole;
        if (around > most && each < 0)
            each = last;
        step = most / around;
        if (last == 0)
            step = step / 4096 * 4096;
    }
    if (__builtin_expect(each >= 0, 0)) {
        ts_space part = space;
        int64_t size = space.sizes[each];
        part.numel /= size;
        part.ndim = last > 0 ? last : 1;
        part.sizes[each] = 1;
        for (int d = each; d < last; d++)
            part.sizes[d] = space.sizes[d + 1];
        for (int k = 0; k < space.operands; k++) {
            part.operand[k].strides[each] = 0;
            for (int d = each; d < last; d++)
                part.operand[k].strides[d] = space.operand[k].strides[d + 1];
        }
        for (int64_t i = 0; i < size; i++) {
            TS_CUDA_TRY(loop_parts(f, part, launch, describe));
            for (int k = 0; k < space.operands; k++)
                if (!space.operand[k].host)
                    part.operand[k].data =
                        (char *)part.operand[k].data + space.operand[k].strides[each];
        }
        return TS_OK;
    }
    for (int64_t from = 0; from < whole; from += step) {
        int64_t size = whole - from < step ? whole - from : step;
        cudaError_t e = launch(space, from, size, c.stream);
        TS_CUDA_TRY(ts_cuda_launched(f, e, c.stream));
    }
    return TS_OK;
}

/** Elements per access: 16 bytes of the widest type. */
template <class... T>
constexpr int loop_width = [] {
    int widest = 1;
    ((widest = (int)sizeof(T) > widest ? (int)sizeof(T) : widest), ...);
    return 16 / widest;
}();

template <class R, class... T> bool loop_is_wide(const ts_space &space)
{
    constexpr int item[] = {(int)sizeof(R), (int)sizeof(T)...};
    return loop_is_wide(space, item, loop_width<R, T...>);
}
template <class F, class R, class... T>
ts_status loop_run_wide(ts_frame *f, const ts_space &space, const F &fn)
{
    return loop_parts(
        f, space,
        [&](auto &part, int64_t from, int64_t size, cudaStream_t stream) {
            return loop_launch<loop_width<R, T...>, F, R, T...>(f, part, from, size, fn, stream);
        },
        [&] { return describe<F, R, T...>(f, space, fn); });
}
/** Runs fn over a space. R is the element type of the result, T... those of the operands. */
template <class F, class R, class... T>
ts_status loop_run(ts_frame *f, const ts_space &space, const F &fn)
{
    if (loop_is_wide<R, T...>(space))
        return loop_run_wide<F, R, T...>(f, space, fn);
    return loop_parts(
        f, space,
        [&](auto &part, int64_t from, int64_t size, cudaStream_t stream) {
            return loop_launch<1, F, R, T...>(f, part, from, size, fn, stream);
        },
        [&] { return describe<F, R, T...>(f, space, fn); });
}

/* ----------------------------------------------------------------- elements of any dtype ---- */

/** A space whose operands have different dtypes. */
template <int N> struct any_space : loop_space<N> {
    uint8_t dtype[N]; /* ts_dtype; for numbers from the host: compute */
    uint8_t compute;  /* elements are first rounded to this dtype */
};

/** Converts COUNT elements of `dtype`, whose bits are in `raw`, to A, rounded to the compute
 * dtype. */
template <class A, int COUNT>
__device__ __forceinline__ void any_convert(const uint64_t (&raw)[COUNT], int dtype, int compute,
                                            A (&x)[COUNT])
{
#define TS_EACH(expr)                                                                              \
    _Pragma("unroll") for (int u = 0; u < COUNT; u++)                                              \
    {                                                                                              \
        uint64_t bits = raw[u];                                                                    \
        x[u] = (A)(expr);                                                                          \
    }                                                                                              \
    break;
    switch (dtype) {
    case TS_I64:
        TS_EACH((int64_t)bits)
    case TS_I32:
        TS_EACH((int32_t)bits)
    case TS_F64:
        if constexpr (std::is_same_v<A, float>)
            if (compute != TS_F32) {
                TS_EACH(float_beside(__longlong_as_double(bits)))
            }
        if constexpr (std::is_floating_point_v<A>) {
            TS_EACH(__longlong_as_double(bits))
        }
        break;
    case TS_F32:
        if constexpr (std::is_floating_point_v<A>) {
            TS_EACH(__uint_as_float((uint32_t)bits))
        }
        break;
    case TS_BF16:
        if constexpr (std::is_floating_point_v<A>) {
            TS_EACH(__uint_as_float((uint32_t)bits << 16))
        }
        break;
    case TS_F16:
        if constexpr (std::is_floating_point_v<A>) {
            TS_EACH(__half2float(__ushort_as_half((unsigned short)bits)))
        }
        break;
    default:
        TS_EACH((uint8_t)bits) /* u8 and bool */
    }
    if (dtype == compute)
        return;
#undef TS_EACH
#define TS_EACH(expr) _Pragma("unroll") for (int u = 0; u < COUNT; u++) x[u] = (A)(expr);
    if constexpr (std::is_same_v<A, float>) {
        if (compute == TS_BF16) {
            TS_EACH(widen(narrow<bf16>(x[u])))
        } else if (compute == TS_F16) {
            TS_EACH(widen(narrow<f16>(x[u])))
        }
    } else if constexpr (std::is_same_v<A, int64_t>) {
        if (compute == TS_I32) {
            TS_EACH((int32_t)x[u])
        } else if (compute == TS_U8) {
            TS_EACH((uint8_t)x[u])
        }
    }
#undef TS_EACH
}

/** Stores fn's value as an element of a dtype. */
template <class B> __device__ __forceinline__ void any_store(char *to, int dtype, B x)
{
    if constexpr (std::is_same_v<B, bool>) {
        *reinterpret_cast<bool *>(to) = x;
    } else if constexpr (std::is_same_v<B, double>) {
        *reinterpret_cast<double *>(to) = x;
    } else if constexpr (std::is_same_v<B, float>) {
        if (dtype == TS_F32)
            *reinterpret_cast<float *>(to) = x;
        else if (dtype == TS_BF16)
            *reinterpret_cast<bf16 *>(to) = narrow<bf16>(x);
        else
            *reinterpret_cast<f16 *>(to) = narrow<f16>(x);
    } else {
        if (dtype == TS_I64)
            *reinterpret_cast<int64_t *>(to) = x;
        else if (dtype == TS_I32)
            *reinterpret_cast<int32_t *>(to) = (int32_t)x;
        else
            *reinterpret_cast<uint8_t *>(to) = dtype == TS_BOOL ? x != 0 : (uint8_t)x;
    }
}

template <class A, class F, int N, int... K>
__device__ __forceinline__ void any_body(const any_space<N> &s, const F &fn,
                                         std::integer_sequence<int, K...>)
{
    constexpr int COUNT = loop_unroll<1>;
    uint32_t first = blockIdx.x * (LOOP_THREADS * COUNT) + threadIdx.x;
    int64_t offset[COUNT][N];
    loop_offsets(s, first, offset);
    uint64_t raw[N - 1][COUNT];
    A x[N - 1][COUNT];
    auto fetch = [&]<int I>() {
        auto load = [&]<class W>() {
#pragma unroll
            for (int u = 0; u < COUNT; u++)
                raw[I][u] = first + u * LOOP_THREADS < s.accesses
                                ? *reinterpret_cast<const W *>(s.data[I + 1] + offset[u][I + 1])
                                : 0;
        };
        if (s.way[I + 1] == way_number)
            return;
        switch (s.dtype[I + 1]) {
        case TS_F64:
        case TS_I64:
            load.template operator()<uint64_t>();
            break;
        case TS_F32:
        case TS_I32:
            load.template operator()<uint32_t>();
            break;
        case TS_BF16:
        case TS_F16:
            load.template operator()<uint16_t>();
            break;
        default:
            load.template operator()<uint8_t>();
        }
    };
    auto convert = [&]<int I>() {
        if (s.way[I + 1] == way_number) {
#pragma unroll
            for (int u = 0; u < COUNT; u++)
                x[I][u] = bits_as<A>(s.number[I + 1]);
            return;
        }
        any_convert(raw[I], s.dtype[I + 1], s.compute, x[I]);
    };
    (fetch.template operator()<K>(), ...);
    (convert.template operator()<K>(), ...);
#pragma unroll
    for (int u = 0; u < COUNT; u++)
        if (first + u * LOOP_THREADS < s.accesses) {
            char *to = s.data[0] + offset[u][0];
            using B = std::conditional_t<std::is_same_v<decltype(fn(x[K][u]...)), bool>, bool, A>;
            if constexpr (std::is_same_v<A, float> && requires { fn.near(x[K][u]...); })
                if (s.dtype[0] != TS_F32) {
                    any_store<B>(to, s.dtype[0], fn.near(x[K][u]...));
                    continue;
                }
            any_store<B>(to, s.dtype[0], fn(x[K][u]...));
        }
}

template <class A, class F, int N>
__global__ void __launch_bounds__(LOOP_THREADS)
    any_kernel(const __grid_constant__ any_space<N> s, const F fn)
{
    any_body<A>(s, fn, std::make_integer_sequence<int, N - 1>());
}

/** Stores the bits of a host operand in *number as an A. With `wide`, as in loop_number(). */
template <class A>
__attribute__((noinline)) void any_number(const ts_frame *f, const ts_operand &o, bool wide,
                                          double *number)
{
    A x;
    if constexpr (std::is_floating_point_v<A>) {
        if (wide && o.wide)
            ts_scalar_store(&f->args[o.arg], TS_F32, &x);
        else
            x = (A)ts_operand_number(&o);
    } else if (o.dtype == TS_I64) {
        x = (A) * (const int64_t *)o.data;
    } else {
        x = (A)ts_operand_number(&o);
    }
    memcpy(number, &x, sizeof x);
}

/** Runs fn of N - 1 operands of any dtypes and strides; fn computes in A. */
template <class A, int N, class F, class D>
ts_status any_run(ts_frame *f, const ts_space &space, const F &fn, D &&describe)
{
    ts_dtype compute = ts_kernel_dtype(f);
    bool wide = N > 2 && ts_dtype_is_half(compute);
    int item[N];
    any_space<N> s;
    s.compute = (uint8_t)compute;
    for (int k = 0; k < N; k++) {
        s.dtype[k] = (uint8_t)space.operand[k].dtype;
        item[k] = (int)ts_dtype_size(space.operand[k].dtype);
    }
    return loop_parts(
        f, space,
        [&](auto &part, int64_t from, int64_t size, cudaStream_t stream) {
            ts_cuda_grid grid = loop_fill<1>(s, part, item, from, size, [&](int k) {
                any_number<A>(f, part.operand[k], wide, &s.number[k]);
            });
            return launch(any_kernel<A, F, N>, grid, stream, s, fn);
        },
        describe);
}

/** Runs fn of sizeof...(I) operands of T, with wide accesses if possible. */
template <class F, class R, class T, int... I>
ts_status loop_same(ts_frame *f, const ts_space &space, const F &fn,
                    std::integer_sequence<int, I...>)
{
    using A = std::conditional_t<!std::is_integral_v<T>, wide_t<T>,
                                 std::conditional_t<std::is_same_v<T, bool>, bool, int64_t>>;
    ts_dtype compute = ts_kernel_dtype(f);
    bool alike = ((space.operand[I + 1].host || space.operand[I + 1].dtype == compute) && ...);
    return alike && loop_is_wide<R, std::conditional_t<I >= 0, T, T>...>(space)
               ? loop_run_wide<F, R, std::conditional_t<I >= 0, T, T>...>(f, space, fn)
               : any_run<A, sizeof...(I) + 1>(f, space, fn, [&] {
                     return describe<F, R, std::conditional_t<I >= 0, T, T>...>(f, space, fn);
                 });
}

struct same_as_operands;

/**
 * Runs the op of the frame as fn of N operands of one dtype. DTYPES: the supported dtypes; for
 * other dtypes returns TS_ERR_DTYPE. R: element type of the result if it is not that of the
 * operands (bool for comparisons).
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
