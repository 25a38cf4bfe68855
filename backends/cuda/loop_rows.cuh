/**
 * @file loop_rows.cuh
 * Pointwise kernels over rows of elements of at most 4 bytes at any address; loops.cuh launches
 * them. At least one operand has elements of 1 or 2 bytes: if all have 4 bytes, kernels of single
 * elements are faster.
 *
 * A thread moves a run: ROW_RUN consecutive elements of a row. Runs begin where the result is
 * aligned, so the result is stored in vectors. An operand that is not aligned at the start of a run
 * is read in words of 4 bytes, which are shifted. A word that has a byte of the row lies within the
 * operand's allocation, since runtime/alloc.c rounds sizes up.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_LOOP_ROWS_CUH
#define TS_CUDA_LOOP_ROWS_CUH

#include <tuple>

#include "backends/cuda/loop_any.cuh"

namespace ts {

/** The bits of a run's elements of ITEM bytes, packed as in memory. */
template <int ITEM> using row_bits = uint32_t[ITEM * ROW_RUN / 4];

/** A thread's run: elements low to high - 1 of ROW_RUN exist. */
template <int N> struct row_run {
    int64_t first[N]; /* byte offset of element 0, even if that does not exist */
    int low, high;

    __device__ __forceinline__ explicit row_run(const loop_space<N> &s) : first{}, low(0), high(0)
    {
        uint32_t run = blockIdx.x * LOOP_THREADS + threadIdx.x;
        if (run >= s.accesses)
            return;
        if (s.ndim > 1) {
            uint32_t rest = s.sizes[0].of(run);
            run -= rest * s.sizes[0].d;
            loop_offset(s, 1, rest, first);
        }
        uint32_t element = (uint32_t)((uintptr_t)(s.data[0] + first[0]) >> s.item),
                 head = s.heads ? element % ROW_RUN : 0;
        int64_t begin = (int64_t)run * ROW_RUN - head, left = (int64_t)s.row - begin;
#pragma unroll
        for (int k = 0; k < N; k++)
            first[k] += begin * s.strides[k][0];
        low = begin < 0 ? (int)head : 0;
        high = left < ROW_RUN ? (int)left : ROW_RUN;
    }
    __device__ __forceinline__ bool some() const { return low < high; }
    __device__ __forceinline__ bool is_whole() const { return high - low == ROW_RUN; }

    /** Loads the run of operand k. Bits of elements that do not exist are undefined. */
    template <int ITEM>
    __device__ __forceinline__ void load(const loop_space<N> &s, int k, row_bits<ITEM> &x) const
    {
        constexpr int WORDS = ITEM * ROW_RUN / 4, WIDE = WORDS < 4 ? WORDS : 4;
        const char *from = s.data[k] + first[k];
        if (s.strides[k][0] == 0) {
            uint32_t same = *reinterpret_cast<const typename word<ITEM>::type *>(from);
            same *= ITEM == 1 ? 0x01010101u : ITEM == 2 ? 0x10001u : 1;
#pragma unroll
            for (int i = 0; i < WORDS; i++)
                x[i] = same;
            return;
        }
        if (is_whole() && (uintptr_t)from % (WIDE * 4) == 0) {
            using wide = typename word<WIDE * 4>::type;
#pragma unroll
            for (int i = 0; i < WORDS / WIDE; i++) {
                wide v = reinterpret_cast<const wide *>(from)[i];
                memcpy(&x[i * WIDE], &v, sizeof v);
            }
            return;
        }
        int odd = ITEM < 4 ? (int)((uintptr_t)from % 4) : 0, begin = low * ITEM + odd,
            end = high * ITEM + odd;
        const uint32_t *words = reinterpret_cast<const uint32_t *>(from - odd);
        uint32_t raw[WORDS + 1] = {};
#pragma unroll
        for (int i = 0; i < WORDS + (ITEM < 4); i++)
            if (4 * i < end && 4 * i + 4 > begin)
                raw[i] = words[i];
#pragma unroll
        for (int i = 0; i < WORDS; i++)
            x[i] = __funnelshift_r(raw[i], raw[i + 1], odd * 8);
    }
    /** Stores the elements of the run that exist to the result. */
    template <class T>
    __device__ __forceinline__ void store(const loop_space<N> &s, const vec<T, ROW_RUN> &v) const
    {
        T *to = reinterpret_cast<T *>(s.data[0] + first[0]);
        if (is_whole()) {
            *reinterpret_cast<vec<T, ROW_RUN> *>(to) = v;
            return;
        }
#pragma unroll
        for (int u = 0; u < ROW_RUN; u++)
            if (u >= low && u < high)
                to[u] = v.at[u];
    }
};

/* -------------------------------------------------------------- operands of any dtypes ---- */

/** Converts a run of `dtype`, whose elements have at most 4 bytes and are packed in `raw`, to
 * floats, rounded to the compute dtype. */
__device__ __forceinline__ void row_convert(const row_bits<4> &raw, int dtype, int compute,
                                            float (&x)[ROW_RUN])
{
#define TS_EACH(expr)                                        \
    _Pragma("unroll") for (int u = 0; u < ROW_RUN; u++) x[u] = (expr); \
    break;
    switch (dtype) {
    case TS_F32: TS_EACH(__uint_as_float(raw[u]))
    case TS_BF16: TS_EACH(__uint_as_float(u % 2 ? raw[u / 2] & 0xffff0000u : raw[u / 2] << 16))
    case TS_F16:
        TS_EACH(__half2float(__ushort_as_half((unsigned short)(raw[u / 2] >> u % 2 * 16))))
    case TS_I32: TS_EACH((float)(int32_t)raw[u])
    default: TS_EACH((float)(raw[u / 4] >> u % 4 * 8 & 255)) /* u8 and bool */
    }
#undef TS_EACH
    if (dtype != compute)
        any_round(compute, x);
}

/** Body of any_rows_kernel(). */
template <class F, int N, int... K>
__device__ __forceinline__ void any_rows_body(const any_space<N> &s, const F &fn,
                                              std::integer_sequence<int, K...>)
{
    row_run<N> at(s);
    if (!at.some())
        return;
    row_bits<4> raw[N - 1];
    float x[N - 1][ROW_RUN];
    auto fetch = [&]<int I>() {
        auto load = [&]<int ITEM>() {
            row_bits<ITEM> bits;
            at.template load<ITEM>(s, I + 1, bits);
#pragma unroll
            for (int i = 0; i < ITEM * ROW_RUN / 4; i++)
                raw[I][i] = bits[i];
        };
        if (s.way[I + 1] == way_number)
            return;
        switch (s.dtype[I + 1]) {
        case TS_F32:
        case TS_I32: load.template operator()<4>(); break;
        case TS_BF16:
        case TS_F16: load.template operator()<2>(); break;
        default: load.template operator()<1>();
        }
    };
    auto convert = [&]<int I>() {
        if (s.way[I + 1] != way_number) {
            row_convert(raw[I], s.dtype[I + 1], s.compute, x[I]);
        } else {
#pragma unroll
            for (int u = 0; u < ROW_RUN; u++)
                x[I][u] = bits_as<float>(s.number[I + 1]);
        }
    };
    (fetch.template operator()<K>(), ...);
    (convert.template operator()<K>(), ...);
    if constexpr (std::is_same_v<decltype(fn(x[K][0]...)), bool>) {
        vec<bool, ROW_RUN> y;
#pragma unroll
        for (int u = 0; u < ROW_RUN; u++)
            y.at[u] = fn(x[K][u]...);
        at.store(s, y);
    } else {
        float y[ROW_RUN];
        bool near = false;
        if constexpr (requires { fn.near(x[K][0]...); })
            if ((near = s.dtype[0] != TS_F32)) {
#pragma unroll
                for (int u = 0; u < ROW_RUN; u++)
                    y[u] = fn.near(x[K][u]...);
            }
        if (!near)
#pragma unroll
            for (int u = 0; u < ROW_RUN; u++)
                y[u] = fn(x[K][u]...);
        if (s.dtype[0] == TS_F32)
            at.store(s, pack<float, ROW_RUN>(y));
        else if (s.dtype[0] == TS_BF16)
            at.store(s, pack<bf16, ROW_RUN>(y));
        else
            at.store(s, pack<f16, ROW_RUN>(y));
    }
}

/** Applies fn, in f32, to rows of operands whose dtypes of at most 4 bytes are known only at run
 * time. */
template <class F, int N>
__global__ void __launch_bounds__(LOOP_THREADS)
    any_rows_kernel(const __grid_constant__ any_space<N> s, const F fn)
{
    any_rows_body(s, fn, std::make_integer_sequence<int, N - 1>());
}

/* ------------------------------------------------------------------- operands of types ---- */

/** True if loop_rows_kernel() is compiled for these types. */
template <class... T>
constexpr bool row_types = ((sizeof(T) <= 4) && ...) && ((sizeof(T) < 4) || ...);

/** Body of loop_rows_kernel(). */
template <class F, class R, class... T, int... K>
__device__ __forceinline__ void loop_rows_body(const loop_space<sizeof...(T) + 1> &s, const F &fn,
                                               std::integer_sequence<int, K...>)
{
    row_run<sizeof...(T) + 1> at(s);
    if (!at.some())
        return;
    std::tuple<vec<T, ROW_RUN>...> in;
    auto load = [&]<int I, class E>(vec<E, ROW_RUN> &x) {
        if (s.way[I] == way_number) {
#pragma unroll
            for (int u = 0; u < ROW_RUN; u++)
                x.at[u] = bits_as<E>(s.number[I]);
            return;
        }
        row_bits<(int)sizeof(E)> bits;
        at.template load<(int)sizeof(E)>(s, I, bits);
        memcpy(&x, bits, sizeof x);
    };
    (load.template operator()<K + 1, T>(std::get<K>(in)), ...);
    wide_t<R> y[ROW_RUN];
#pragma unroll
    for (int u = 0; u < ROW_RUN; u++)
        y[u] = apply_fn<R>(fn, widen(std::get<K>(in).at[u])...);
    at.store(s, pack<R, ROW_RUN>(y));
}

/** Applies fn to rows of operands of the element types T, with results of R. */
template <class F, class R, class... T>
__global__ void __launch_bounds__(LOOP_THREADS)
    loop_rows_kernel(const __grid_constant__ loop_space<sizeof...(T) + 1> s, const F fn)
{
    loop_rows_body<F, R, T...>(s, fn, std::make_integer_sequence<int, (int)sizeof...(T)>());
}

} // namespace ts

#endif
