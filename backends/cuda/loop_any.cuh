/** @file loop_any.cuh  A pointwise kernel over operands of any dtypes, computed in one type: single
 * elements, which are converted as they are loaded and stored. loops.cuh launches it. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_LOOP_ANY_CUH
#define TS_CUDA_LOOP_ANY_CUH

#include "backends/cuda/loop_space.cuh"

namespace ts {

/** A space whose operands have different dtypes. */
template <int N> struct any_space : loop_space<N> {
    uint8_t dtype[N]; /* ts_dtype of each operand; not used for host numbers */
    uint8_t compute;  /* ts_dtype to which arguments are rounded before fn is applied */
};

/** Word for the bits of an element: 64 bits if A has 8 bytes, else 32, which hold elements of up to
 * 4 bytes. */
template <class A> using any_bits = std::conditional_t<sizeof(A) == 8, uint64_t, uint32_t>;

/** Rounds elements to the compute dtype. */
template <class A, int RUN>
__device__ __forceinline__ void any_round(int compute, A (&x)[RUN])
{
#define TS_EACH(expr) _Pragma("unroll") for (int u = 0; u < RUN; u++) x[u] = (A)(expr);
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

/** Converts elements of `dtype`, whose bits are in `raw`, to A, rounded to the compute dtype. W is
 * any_bits<A>, or uint64_t for elements of 8 bytes where any_bits<A> has 32 bits. */
template <class A, class W>
__device__ __forceinline__ void any_convert(const W (&raw)[LOOP_RUN], int dtype, int compute,
                                            A (&x)[LOOP_RUN])
{
    constexpr bool large = sizeof(W) == 8, small = std::is_same_v<W, any_bits<A>>;
#define TS_EACH(condition, expr)                            \
    if constexpr (condition) {                              \
        _Pragma("unroll") for (int u = 0; u < LOOP_RUN; u++) \
        {                                                   \
            W bits = raw[u];                                \
            x[u] = (A)(expr);                               \
        }                                                   \
    }                                                       \
    break;
    constexpr bool floating = std::is_floating_point_v<A>;
    switch (dtype) {
    case TS_I64: TS_EACH(large, (int64_t)bits)
    case TS_F64:
        if constexpr (large && std::is_same_v<A, float>)
            if (compute != TS_F32) {
                TS_EACH(true, float_beside(__longlong_as_double(bits)))
            }
        TS_EACH(large && floating, __longlong_as_double(bits))
    case TS_I32: TS_EACH(small, (int32_t)bits)
    case TS_F32: TS_EACH(small && floating, __uint_as_float((uint32_t)bits))
    case TS_BF16: TS_EACH(small && floating, __uint_as_float((uint32_t)bits << 16))
    case TS_F16: TS_EACH(small && floating, __half2float(__ushort_as_half((unsigned short)bits)))
    default: TS_EACH(small, (uint8_t)bits) /* u8 and bool */
    }
#undef TS_EACH
    if (dtype != compute)
        any_round(compute, x);
}

/** Stores the thread's results x as elements of the result's dtype. */
template <class B, int N>
__device__ __forceinline__ void any_store(const any_space<N> &s, const loop_elements<N> &at,
                                          const B (&x)[LOOP_RUN])
{
    auto store = [&]<class T>(auto &&convert) {
        using W = word_of<vec<T, 1>>;
        W bits[LOOP_RUN];
#pragma unroll
        for (int u = 0; u < LOOP_RUN; u++)
            bits[u] = to_word(vec<T, 1>{convert(x[u])});
        at.store(s, bits);
    };
    int dtype = s.dtype[0];
    if constexpr (std::is_same_v<B, bool> || std::is_same_v<B, double>) {
        store.template operator()<B>([](B v) { return v; });
    } else if constexpr (std::is_same_v<B, float>) {
        if (dtype == TS_F32)
            store.template operator()<float>([](B v) { return v; });
        else if (dtype == TS_BF16)
            store.template operator()<bf16>([](B v) { return narrow<bf16>(v); });
        else
            store.template operator()<f16>([](B v) { return narrow<f16>(v); });
    } else {
        if (dtype == TS_I64)
            store.template operator()<int64_t>([](B v) { return v; });
        else if (dtype == TS_I32)
            store.template operator()<int32_t>([](B v) { return (int32_t)v; });
        else
            store.template operator()<uint8_t>(
                [&](B v) { return dtype == TS_BOOL ? (uint8_t)(v != 0) : (uint8_t)v; });
    }
}

/** Body of any_kernel(): loads all operands before it converts the first. Exception: elements of 8
 * bytes for a smaller A are converted at once, because `raw` cannot hold them. */
template <class A, class F, int N, int... K>
__device__ __forceinline__ void any_body(const any_space<N> &s, const F &fn,
                                         std::integer_sequence<int, K...>)
{
    loop_elements<N> at(s);
    if (!at.some)
        return;
    any_bits<A> raw[N - 1][LOOP_RUN];
    A x[N - 1][LOOP_RUN];
    auto fetch = [&]<int I>() {
        auto load = [&]<class W>() {
            W bits[LOOP_RUN];
            at.load(s, I + 1, bits);
            if constexpr (sizeof(W) > sizeof(any_bits<A>)) {
                any_convert(bits, s.dtype[I + 1], s.compute, x[I]);
            } else {
#pragma unroll
                for (int u = 0; u < LOOP_RUN; u++)
                    raw[I][u] = bits[u];
            }
        };
        if (s.way[I + 1] == way_number)
            return;
        switch (s.dtype[I + 1]) {
        case TS_F64:
        case TS_I64: load.template operator()<uint64_t>(); break;
        case TS_F32:
        case TS_I32: load.template operator()<uint32_t>(); break;
        case TS_BF16:
        case TS_F16: load.template operator()<uint16_t>(); break;
        default: load.template operator()<uint8_t>();
        }
    };
    auto convert = [&]<int I>() {
        int dtype = s.dtype[I + 1];
        if (s.way[I + 1] == way_number) {
#pragma unroll
            for (int u = 0; u < LOOP_RUN; u++)
                x[I][u] = bits_as<A>(s.number[I + 1]);
        } else if (sizeof(any_bits<A>) == 8 || (dtype != TS_F64 && dtype != TS_I64)) {
            any_convert(raw[I], dtype, s.compute, x[I]);
        }
    };
    (fetch.template operator()<K>(), ...);
    (convert.template operator()<K>(), ...);
    using B = std::conditional_t<std::is_same_v<decltype(fn(x[K][0]...)), bool>, bool, A>;
    B y[LOOP_RUN];
    bool near = false;
    if constexpr (std::is_same_v<A, float> && requires { fn.near(x[K][0]...); })
        if ((near = s.dtype[0] != TS_F32)) {
#pragma unroll
            for (int u = 0; u < LOOP_RUN; u++)
                y[u] = fn.near(x[K][u]...);
        }
    if (!near)
#pragma unroll
        for (int u = 0; u < LOOP_RUN; u++)
            if (!loop_reports<F> || at.has(u))
                y[u] = fn(x[K][u]...);
    any_store(s, at, y);
}

/** Applies fn in A to the elements of a space whose dtypes are known only at run time. */
template <class A, class F, int N>
__global__ void __launch_bounds__(LOOP_THREADS)
    any_kernel(const __grid_constant__ any_space<N> s, const F fn)
{
    any_body<A>(s, fn, std::make_integer_sequence<int, N - 1>());
}

/** Stores the bits of a host operand in *number as an A. If `wide` (the call computes in bf16 or
 * f16 and has at least two operands) and o.wide, the stored f32 is the argument itself, not rounded
 * to the dtype first. */
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

} // namespace ts

#endif
