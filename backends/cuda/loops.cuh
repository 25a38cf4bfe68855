/**
 * @file loops.cuh
 * Pointwise kernels. A kernel family defines a functor of elements; ts::pointwise() runs it over
 * the call's space.
 *
 * If every operand has the functor's dtype and is contiguous and aligned along the innermost dim,
 * or has one element for all of it, a kernel per functor and dtype moves 16 bytes of the widest
 * operand per thread (loop_is_wide() has the exact condition on layouts). All other calls use:
 * - kernels of loop_rows.cuh for contiguous rows at any address, if elements have at most 4 bytes,
 *   and those of at least one operand fewer;
 * - else kernels of single elements. The layouts determine which four elements a thread moves
 *   (loop_walk in loop_space.cuh): consecutive elements along the innermost dim, accessed as one
 *   vector where an operand is contiguous and aligned, or separate elements.
 *
 * The kernels of single elements exist once per functor and arithmetic type (double, float,
 * int64_t, bool), the kernels of rows once per functor, for float; they convert elements as they
 * load and store them (loop_any.cuh). Copies and selections have a kernel per dtype instead.
 * Offsets along the other dims are computed by multiplications instead of divisions.
 *
 * For bf16 and f16, functors compute in f32. If a functor has at least two operands, those that are
 * numbers stay in f32; a number as the only operand is rounded to the dtype. If a functor has
 * near(), a faster formula that is accurate enough for results of bf16 and f16, the kernel calls
 * near() for these dtypes.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_LOOPS_CUH
#define TS_CUDA_LOOPS_CUH

#include <tuple>
#include <type_traits>

#include "backends/cuda/loop_rows.cuh"
#include "backends/cuda/read_once.cuh"

namespace ts {

/** Operand K, a number, repeated V times; a placeholder if widened() later inserts the number in
 * f32. */
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
 * Loads V elements of operand K, `offset` bytes from its start, into a word. A number, or the
 * element of an operand with stride 0, is repeated. Unpacking bf16 and f16 here would make each
 * load wait for the previous one.
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

/** Loads access i of operand K in a flat space, in which a single operand is never a number. */
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
        int64_t offset[N] = {};
        loop_offset(s, 0, i, offset);
        in = words(fetch<K + 1, V, T>(s, offset[K + 1])...);
        to = s.data[0] + offset[0];
    }
    store();
}

/** The words of a thread's elements of one operand. */
template <class T> struct loop_words {
    word_of<vec<T, 1>> at[LOOP_RUN];
};

/** Body of a kernel of single elements: LOOP_RUN elements per thread. */
template <class F, class R, class... T, int... K>
__device__ __forceinline__ void loop_body_single(const loop_space<sizeof...(T) + 1> &s, const F &fn,
                                                 std::integer_sequence<int, K...>)
{
    loop_elements<sizeof...(T) + 1> at(s);
    if (!at.some)
        return;
    std::tuple<loop_words<T>...> in;
    auto load = [&]<int I, class E>(loop_words<E> &x) {
        if (s.way[I] == way_number) {
#pragma unroll
            for (int u = 0; u < LOOP_RUN; u++)
                x.at[u] = splat<I, 1, E>(s);
        } else {
            at.load(s, I, x.at);
        }
    };
    (load.template operator()<K + 1, T>(std::get<K>(in)), ...);
    word_of<vec<R, 1>> out[LOOP_RUN];
#pragma unroll
    for (int u = 0; u < LOOP_RUN; u++)
        if (!loop_reports<F> || at.has(u))
            out[u] =
                loop_apply<1, F, R, T...>(fn, widened<K + 1, 1, T>(s, std::get<K>(in).at[u])...);
    at.store(s, out);
}

/** Applies fn to the elements of a space, in accesses of V elements. */
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
    const void *rows;   /* a kernel of loop_rows.cuh, or NULL */
    /* stores the bits of a host operand for any_kernel, as loop_launcher::number() */
    void (*number)(const ts_frame *, const ts_operand &, int, bool, double *);
};

/** Launches one of the kernels over operands of the functor's types: `wide` if width is above 1,
 * else `rows` or `single`. If the call is only described (fuse/describe.cuh), passes the functor at
 * `fn` to the group instead. */
template <int N>
__attribute__((noinline)) ts_status loop_typed(ts_frame *f, const ts_space &space,
                                               const loop_kernels<N> &kernels, int width,
                                               const void *fn)
{
    call c = call_of(f);
    if (!c.device)
        return describe(f, space, kernels.types, fn);
    loop_space<N> s;
    bool rows = width == 1 && kernels.rows && loop_has_rows(space, kernels.types.item);
    loop_launcher<N> to = {width > 1 ? kernels.wide : rows ? kernels.rows : kernels.single, fn, &s,
                           width, rows, {}};
    memcpy(to.item, kernels.types.item, sizeof to.item);
    memcpy(to.wide, kernels.types.wide, sizeof to.wide);
    to.number = loop_number;
    return loop_parts(f, width > 1 || rows ? space : loop_ordered<N>(space, &to.tiling), c.stream,
                      to);
}

/** loop_rows_kernel() for these types; NULL if it is not compiled for them. */
template <class F, class R, class... T> constexpr const void *loop_rows_of()
{
    if constexpr (row_types<R, T...>)
        return (const void *)loop_rows_kernel<F, R, T...>;
    else
        return nullptr;
}

/** Runs fn over a space. R is the element type of the result, T... those of the operands. */
template <class F, class R, class... T>
ts_status loop_run(ts_frame *f, const ts_space &space, const F &fn)
{
    constexpr int V = loop_width<R, T...>;
    static const loop_kernels<sizeof...(T) + 1> kernels = {
        loop_types_of<F, R, T...>(), (const void *)loop_kernel<V, F, R, T...>, V,
        (const void *)loop_kernel<1, F, R, T...>, loop_rows_of<F, R, T...>(), nullptr};
    return loop_typed(f, space, kernels, loop_is_wide(space, kernels.types.item, V) ? V : 1, &fn);
}

/** The kernels of F over N - 1 operands of T. any_kernel computes in A. */
template <class F, class R, class T, int... I>
const loop_kernels<sizeof...(I) + 1> &loop_same(std::integer_sequence<int, I...>)
{
    using A = std::conditional_t<!std::is_integral_v<T>, wide_t<T>,
                                 std::conditional_t<std::is_same_v<T, bool>, bool, int64_t>>;
    constexpr int N = sizeof...(I) + 1, V = loop_width<R, T>;
    const void *rows = nullptr;
    if constexpr (std::is_same_v<A, float>)
        rows = (const void *)any_rows_kernel<F, N>;
    static const loop_kernels<N> kernels = {
        loop_types_of<F, R, std::conditional_t<I >= 0, T, T>...>(),
        (const void *)loop_kernel<V, F, R, std::conditional_t<I >= 0, T, T>...>, V,
        (const void *)any_kernel<A, F, N>, rows, any_number<A>};
    return kernels;
}

/** Like loop_typed(), with the kernel of rows or of single elements over operands of any dtypes and
 * strides. */
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
    to.rows = kernels.rows && loop_has_rows(space, to.item);
    if (to.rows)
        to.kernel = kernels.rows;
    return loop_parts(f, to.rows ? space : loop_ordered<N>(space, &to.tiling), c.stream, to);
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
 * Runs the op of the frame as fn of N operands, in the call's dtype, to which operands of other
 * dtypes are converted. DTYPES: the supported dtypes; for other dtypes returns TS_ERR_DTYPE. R:
 * element type of the result if it is not that of the call's dtype (bool for comparisons).
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
