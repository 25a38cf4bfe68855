/** @file describe.cuh  Describes a pointwise kernel's functor to the fused group that contains the
 * call. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_DESCRIBE_CUH
#define TS_CUDA_DESCRIBE_CUH

#include <type_traits>
#include <utility>

#include "backends/cuda/apply.cuh"
#include "backends/cuda/describe.h"
#include "backends/cuda/frame.cuh"

namespace ts {

/** Stores the bits of a host operand in *number, in the type that the kernel expects: `item` bytes
 * of the operand's dtype or, with `wide` (the kernel computes in halves), f32. If o.wide, the f32
 * is the argument itself, not rounded to the half first. */
__attribute__((noinline)) inline void loop_number(const ts_frame *f, const ts_operand &o, int item,
                                                  bool wide, double *number)
{
    float single;
    if (!wide) {
        memcpy(number, o.data, item);
        return;
    }
    if (o.wide)
        ts_scalar_store(&f->args[o.arg], TS_F32, &single);
    else
        single = (float)ts_operand_number(&o);
    memcpy(number, &single, sizeof single);
}

/** The C++ names of types as static text; the same types give the same address. */
template <class... X> const char *names_of() { return __PRETTY_FUNCTION__; }

/** Passes fn, with result type R and operand types T..., to the group that is being described. Call
 * only if the call has no device. If no group is being described, returns the error that the failed
 * use of the device recorded. */
template <class F, class R, class... T>
__attribute__((noinline)) ts_status describe(const ts_frame *f, const ts_space &space, const F &fn)
{
    constexpr int N = sizeof...(T) + 1;
    static_assert(sizeof(F) <= TS_CUDA_FORMULA_BYTES, "room for the functor");
    if (!ts_cuda_describing())
        return ts_error_code();
    ts_cuda_formula formula = {names_of<F, R, T...>(), N, std::is_empty_v<F> ? 0 : (int)sizeof(F),
                               requires { F::draws; }};
    memcpy(formula.members, &fn, sizeof fn);
    [&]<int... K>(std::integer_sequence<int, K...>) {
        auto number = [&](const ts_operand &o, int item, bool wide, int k) {
            formula.arg[k] = o.arg;
            if ((formula.host[k] = o.host))
                loop_number(f, o, item, wide, &formula.number[k]);
        };
        (number(space.operand[K + 1], sizeof(T), number_is_wide<T, N>, K + 1), ...);
    }(std::make_integer_sequence<int, N - 1>());
    ts_cuda_describe(&formula);
    return TS_OK;
}

} // namespace ts

#endif
