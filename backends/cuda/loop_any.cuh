/** @file loop_any.cuh  A pointwise kernel over operands of any dtypes, computed in one type. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_LOOP_ANY_CUH
#define TS_CUDA_LOOP_ANY_CUH

#include "backends/cuda/loop_space.cuh"

namespace ts {

/** A space whose operands have different dtypes. */
template <int N> struct any_space : loop_space<N> {
    uint8_t dtype[N]; /* ts_dtype; for numbers from the host: compute */
    uint8_t compute;  /* elements are first rounded to this dtype */
};

/** Converts elements of `dtype`, whose bits are in `raw`, to A, rounded to the compute
 * dtype. */
template <class A>
__device__ __forceinline__ void any_convert(const uint64_t (&raw)[LOOP_RUN], int dtype,
                                            int compute, A (&x)[LOOP_RUN])
{
#define TS_EACH(expr)                                                                              \
    _Pragma("unroll") for (int u = 0; u < LOOP_RUN; u++)                                              \
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
#define TS_EACH(expr) _Pragma("unroll") for (int u = 0; u < LOOP_RUN; u++) x[u] = (A)(expr);
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

/** Stores fn's values as elements of a dtype. */
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

template <class A, class F, int N, int... K>
__device__ __forceinline__ void any_body(const any_space<N> &s, const F &fn,
                                         std::integer_sequence<int, K...>)
{
    loop_elements<N> at(s);
    if (!at.some)
        return;
    uint64_t raw[N - 1][LOOP_RUN];
    A x[N - 1][LOOP_RUN];
    auto fetch = [&]<int I>() {
        auto load = [&]<class W>() {
            W bits[LOOP_RUN];
            at.load(s, I + 1, bits);
#pragma unroll
            for (int u = 0; u < LOOP_RUN; u++)
                raw[I][u] = bits[u];
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
            for (int u = 0; u < LOOP_RUN; u++)
                x[I][u] = bits_as<A>(s.number[I + 1]);
            return;
        }
        any_convert(raw[I], s.dtype[I + 1], s.compute, x[I]);
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
                if (at.has(u))
                    y[u] = fn.near(x[K][u]...);
        }
    if (!near)
#pragma unroll
        for (int u = 0; u < LOOP_RUN; u++)
            if (at.has(u))
                y[u] = fn(x[K][u]...);
    any_store(s, at, y);
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

} // namespace ts

#endif
