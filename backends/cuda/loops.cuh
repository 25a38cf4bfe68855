/**
 * @file loops.cuh
 * Pointwise kernels. A kernel family defines a functor of elements; ts::pointwise() runs it over
 * the call's space.
 *
 * If every operand has the functor's dtype and is contiguous and aligned along the innermost dim,
 * or has one element for all of it, a kernel per functor and dtype moves 16 bytes of the widest
 * operand per thread (loop_is_wide() has the exact condition on layouts). Otherwise a thread moves
 * four single elements. Then a functor whose operands have one dtype has a kernel per
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

/** One access of V elements; the last block also computes the tail. A flat space needs no offsets,
 * and no test in blocks before the last one. */
template <int V, class F, class R, class... T, int... K>
__device__ __forceinline__ void loop_body_wide(const loop_space<sizeof...(T) + 1> &s, const F &fn,
                                               std::integer_sequence<int, K...>)
{
    constexpr int N = sizeof...(T) + 1;
    using words = std::tuple<word_of<vec<T, V>>...>;
    uint32_t i = blockIdx.x * LOOP_THREADS + threadIdx.x;
    words in;
    char *to;
    auto store = [&] {
        *reinterpret_cast<word_of<vec<R, V>> *>(to) =
            loop_apply<V, F, R, T...>(fn, widened<K + 1, V, T>(s, std::get<K>(in))...);
    };
    if (s.flat && blockIdx.x < gridDim.x - 1) {
        read_once read((int64_t)s.accesses * 16, false);
        in = words(fetch_flat<K + 1, V, T>(s, i, read)...);
        to = s.data[0] + (int64_t)i * sizeof(vec<R, V>);
        if constexpr (N > 2) { /* a separate copy of fn for this path: 4 % faster up to 8 MB */
            store();
            return;
        }
    } else {
        if (blockIdx.x == gridDim.x - 1 && threadIdx.x < s.tail) {
            int64_t e = (int64_t)s.accesses * V + threadIdx.x;
            *reinterpret_cast<word_of<vec<R, 1>> *>(s.data[0] + e * s.one[0]) =
                loop_apply<1, F, R, T...>(
                    fn, widened<K + 1, 1, T>(s, fetch<K + 1, 1, T>(s, e * s.one[K + 1]))...);
        }
        if (i >= s.accesses)
            return;
        int64_t offset[1][N];
        loop_offsets(s, i, offset);
        in = words(fetch<K + 1, V, T>(s, offset[0][K + 1])...);
        to = s.data[0] + offset[0][0];
    }
    store();
}

/** loop_unroll<1> accesses of one element. */
template <class F, class R, class... T, int... K>
__device__ __forceinline__ void loop_body_single(const loop_space<sizeof...(T) + 1> &s, const F &fn,
                                                 std::integer_sequence<int, K...>)
{
    constexpr int N = sizeof...(T) + 1, unroll = loop_unroll<1>;
    uint32_t first = blockIdx.x * (LOOP_THREADS * unroll) + threadIdx.x;
    int64_t offset[unroll][N];
    loop_offsets(s, first, offset);
    std::tuple<word_of<vec<T, 1>>...> in[unroll];
#pragma unroll
    for (int u = 0; u < unroll; u++)
        if (first + u * LOOP_THREADS < s.accesses)
            in[u] = std::tuple<word_of<vec<T, 1>>...>(fetch<K + 1, 1, T>(s, offset[u][K + 1])...);
#pragma unroll
    for (int u = 0; u < unroll; u++)
        if (first + u * LOOP_THREADS < s.accesses)
            *reinterpret_cast<word_of<vec<R, 1>> *>(s.data[0] + offset[u][0]) =
                loop_apply<1, F, R, T...>(fn, widened<K + 1, 1, T>(s, std::get<K>(in[u]))...);
}

template <int V, class F, class R, class... T>
__global__ void __launch_bounds__(LOOP_THREADS)
    loop_kernel(const __grid_constant__ loop_space<sizeof...(T) + 1> s, const F fn)
{
    constexpr auto operands = std::make_integer_sequence<int, (int)sizeof...(T)>();
    if constexpr (V > 1)
        loop_body_wide<V, F, R, T...>(s, fn, operands);
    else
        loop_body_single<F, R, T...>(s, fn, operands);
}

/** A loop kernel as the host launches it. The type does not depend on functor or element types. */
template <int N> struct loop_launcher {
    const void *kernel; /* takes the space, at `space`, and the functor, at `fn` */
    const void *fn;
    loop_space<N> *space;
    int width;          /* elements of an access: a power of 2 */
    int item[N];        /* bytes of an element */
    bool wide[N];       /* loop_number() */
    /* Stores the bits of a host operand. */
    void (*number)(const ts_frame *f, const ts_operand &o, int item, bool wide, double *number);

    ts_cuda_grid fill(const ts_frame *f, const ts_space &of, int64_t from, int64_t size) const;
};

/** For several dims: fills the sizes of all dims but the last, and the strides of all but the
 * first. A separate function, so that the common launch with one dim stays short. Returns the
 * number of accesses of all dims, of which the last has last_size indices. */
template <int N>
__attribute__((noinline)) int64_t loop_outer_dims(loop_space<N> &s, const ts_space &space,
                                                  int shift, int64_t last_size)
{
    int last = space.ndim - 1;
    int64_t accesses = last_size;
    for (int d = 0; d < last; d++) {
        int64_t within = d == 0 ? space.sizes[0] >> shift : space.sizes[d];
        s.sizes[d] = divisor((uint32_t)within);
        accesses *= within;
    }
    for (int k = 0; k < N; k++)
        for (int d = 1; d <= last; d++)
            s.strides[k][d] = (int32_t)space.operand[k].strides[d];
    return accesses;
}

/** Fills the kernel's space with a part of a space: `size` indices of its outermost dim, beginning
 * with index `from`. The part has fewer than 2^31 accesses. Returns the grid. */
template <int N>
ts_cuda_grid loop_launcher<N>::fill(const ts_frame *f, const ts_space &of, int64_t from,
                                    int64_t size) const
{
    loop_space<N> &s = *space;
    int last = of.ndim - 1, shift = __builtin_ctz((unsigned)width);
    bool flat = last == 0;
    s.ndim = of.ndim;
    s.tail = last == 0 ? (uint32_t)(size & (width - 1)) : 0;
    for (int k = 0; k < N; k++) {
        const ts_operand &o = of.operand[k];
        bool array = o.strides[0] == item[k];
        s.one[k] = o.strides[0];
        s.strides[k][0] = (int32_t)(o.strides[0] << shift);
        if (__builtin_expect(!o.host, 1)) {
            s.data[k] = (char *)o.data + from * o.strides[last];
            s.way[k] = array ? way_array : way_one;
            flat = flat && array;
        } else {
            s.data[k] = (char *)o.data;
            s.way[k] = way_number;
            flat = flat && N > 2;
            number(f, o, item[k], wide[k], &s.number[k]);
        }
    }
    s.flat = flat;
    int64_t accesses = last == 0 ? size >> shift : loop_outer_dims(s, of, shift, size);
    s.accesses = (uint32_t)accesses;
    int64_t per_block = LOOP_THREADS * (width > 1 ? loop_unroll<2> : loop_unroll<1>),
            blocks = (accesses + per_block - 1) / per_block;
    return {dim3((unsigned)(blocks ? blocks : 1)), dim3(LOOP_THREADS), 0, 1};
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

/** Outermost dim along which an operand's byte stride exceeds INT32_MAX; -1 if there is none. */
inline int loop_far_dim(const ts_space &space)
{
    int d = space.ndim - 1;
    for (; d >= 0; d--)
        for (int k = 0; k < space.operands; k++)
            if (space.operand[k].strides[d] > INT32_MAX)
                return d;
    return d;
}

/** Launches a kernel over parts along the outermost dim with fewer than 2^31 accesses each. Before
 * that, a dim with a stride of more than 31 bits is split into its single indices; so is the
 * outermost dim if one index of it is already too large for a part. */
template <int N>
__attribute__((noinline)) ts_status loop_parts(ts_frame *f, const ts_space &space,
                                               cudaStream_t stream, const loop_launcher<N> &to)
{
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
            TS_CUDA_TRY(loop_parts(f, part, stream, to));
            for (int k = 0; k < space.operands; k++)
                if (!space.operand[k].host)
                    part.operand[k].data =
                        (char *)part.operand[k].data + space.operand[k].strides[each];
        }
        return TS_OK;
    }
    for (int64_t from = 0; from < whole; from += step) {
        int64_t size = whole - from < step ? whole - from : step;
        ts_cuda_grid grid = to.fill(f, space, from, size);
        void *addresses[] = {to.space, (void *)to.fn};
        cudaError_t e = ts_cuda_launch(to.kernel, &grid, addresses, stream);
        TS_CUDA_TRY(ts_cuda_launched(f, e, stream));
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

/** The kernels of a functor and element types; pointwise() selects one of them. */
template <int N> struct loop_kernels {
    loop_types<N> types;
    const void *wide; /* accesses of `width` elements */
    int width;
    const void *single; /* loop_kernel with V = 1, or any_kernel */
    void (*number)(const ts_frame *, const ts_operand &, int, bool, double *); /* of any_kernel */
};

/** Launches one of the kernels with accesses of `width` elements of the functor's types. */
template <int N>
__attribute__((noinline)) ts_status loop_typed(ts_frame *f, const ts_space &space,
                                               const loop_kernels<N> &kernels, int width,
                                               const void *fn)
{
    call c = call_of(f);
    if (!c.device)
        return describe(f, space, kernels.types, fn);
    loop_space<N> s;
    loop_launcher<N> to = {width > 1 ? kernels.wide : kernels.single, fn, &s, width};
    memcpy(to.item, kernels.types.item, sizeof to.item);
    memcpy(to.wide, kernels.types.wide, sizeof to.wide);
    to.number = loop_number;
    return loop_parts(f, space, c.stream, to);
}
/** Runs fn over a space. R is the element type of the result, T... those of the operands. */
template <class F, class R, class... T>
ts_status loop_run(ts_frame *f, const ts_space &space, const F &fn)
{
    constexpr int V = loop_width<R, T...>;
    static const loop_kernels<sizeof...(T) + 1> kernels = {
        loop_types_of<F, R, T...>(), (const void *)loop_kernel<V, F, R, T...>, V,
        (const void *)loop_kernel<1, F, R, T...>, nullptr};
    return loop_typed(f, space, kernels, loop_is_wide(space, kernels.types.item, V) ? V : 1, &fn);
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
__attribute__((noinline)) void any_number(const ts_frame *f, const ts_operand &o, int, bool wide,
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

/** The kernels of F over N - 1 operands of T. any_kernel computes in A. */
template <class F, class R, class T, int... I>
const loop_kernels<sizeof...(I) + 1> &loop_same(std::integer_sequence<int, I...>)
{
    using A = std::conditional_t<!std::is_integral_v<T>, wide_t<T>,
                                 std::conditional_t<std::is_same_v<T, bool>, bool, int64_t>>;
    constexpr int N = sizeof...(I) + 1, V = loop_width<R, T>;
    static const loop_kernels<N> kernels = {
        loop_types_of<F, R, std::conditional_t<I >= 0, T, T>...>(),
        (const void *)loop_kernel<V, F, R, std::conditional_t<I >= 0, T, T>...>, V,
        (const void *)any_kernel<A, F, N>, any_number<A>};
    return kernels;
}

/** Launches any_kernel over operands of any dtypes and strides. */
template <int N>
__attribute__((noinline)) ts_status any_run(ts_frame *f, const ts_space &space,
                                            const loop_kernels<N> &kernels, const void *fn)
{
    call c = call_of(f);
    if (!c.device)
        return describe(f, space, kernels.types, fn);
    ts_dtype compute = ts_kernel_dtype(f);
    any_space<N> s;
    loop_launcher<N> to = {kernels.single, fn, &s, 1};
    s.compute = (uint8_t)compute;
    for (int k = 0; k < N; k++) {
        s.dtype[k] = (uint8_t)space.operand[k].dtype;
        to.item[k] = (int)ts_dtype_size(space.operand[k].dtype);
        to.wide[k] = N > 2 && ts_dtype_is_half(compute);
    }
    to.number = kernels.number;
    return loop_parts(f, space, c.stream, to);
}

/** Runs the functor at `fn`; kernels NULL: returns TS_ERR_DTYPE. Accesses are wide if the operands
 * have the dtype of the computation and their layouts allow it. */
template <int N>
__attribute__((noinline)) ts_status pointwise_run(ts_frame *f, const loop_kernels<N> *kernels,
                                                  const void *fn)
{
    ts_space space;
    TS_CUDA_TRY(ts_kernel_space(f, &space));
    ts_dtype compute = ts_kernel_dtype(f);
    if (!kernels)
        return ts_kernel_error(f, 0, TS_ERR_DTYPE, "cast with ts_to()", "no kernel for dtype %s",
                               ts_dtype_name(compute));
    bool alike = true;
    for (int k = 1; k < N; k++)
        alike = alike && (space.operand[k].host || space.operand[k].dtype == compute);
    return alike && loop_is_wide(space, kernels->types.item, kernels->width)
               ? loop_typed(f, space, *kernels, kernels->width, fn)
               : any_run(f, space, *kernels, fn);
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
    auto kernels = [&]<uint32_t D, class T>() -> const loop_kernels<N + 1> * {
        using result = std::conditional_t<std::is_same_v<R, same_as_operands>, T, R>;
        if constexpr ((DTYPES & TS_DTYPE_BIT(D)) != 0)
            return &loop_same<F, result, T>(std::make_integer_sequence<int, N>());
        else
            return nullptr;
    };
    const loop_kernels<N + 1> *of = nullptr;
    switch (ts_kernel_dtype(f)) {
    case TS_F64: of = kernels.template operator()<TS_F64, double>(); break;
    case TS_F32: of = kernels.template operator()<TS_F32, float>(); break;
    case TS_BF16: of = kernels.template operator()<TS_BF16, bf16>(); break;
    case TS_F16: of = kernels.template operator()<TS_F16, f16>(); break;
    case TS_I64: of = kernels.template operator()<TS_I64, int64_t>(); break;
    case TS_I32: of = kernels.template operator()<TS_I32, int32_t>(); break;
    case TS_U8: of = kernels.template operator()<TS_U8, uint8_t>(); break;
    default: of = kernels.template operator()<TS_BOOL, bool>();
    }
    return pointwise_run(f, of, &fn);
}

} // namespace ts

#endif
