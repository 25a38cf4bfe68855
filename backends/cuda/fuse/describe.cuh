/** @file describe.cuh  Describes a pointwise kernel's functor to the fused group that contains the
 * call. The launchers of pointwise loops (loops.cuh) call describe() instead of launching while a
 * group is being described (fuse.c). */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_DESCRIBE_CUH
#define TS_CUDA_DESCRIBE_CUH

#include <type_traits>
#include <utility>

#include "backends/cuda/apply.cuh"
#include "backends/cuda/fuse/describe.h"
#include "backends/cuda/frame.cuh"

namespace ts {

/** Stores the bits of an operand that is a number of the host in *number, as the kernel expects
 * them: `item` bytes of the operand's dtype or, with `wide` (number_is_wide in apply.cuh: a half in
 * a functor of two or more operands besides the result), as f32. If o.wide, the f32 is the argument
 * itself, not rounded to the half first. */
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

/** Static text with the C++ names of the types X; the same types give the same address. */
template <class... X> constexpr const char *names_of() { return __PRETTY_FUNCTION__; }

/** The types of a loop, for host code, which is thus compiled once for all functors and element
 * types. N counts the result, which has index 0, and the operands. */
template <int N> struct loop_types {
    const char *names; /* names_of<functor, result, operands...>() */
    int bytes;         /* bytes of the functor's members; 0: none */
    bool draws;        /* ts_cuda_formula.draws */
    int item[N];       /* bytes of an element */
    bool wide[N];      /* a number of the host in place of the operand is passed as f32 */
};

/** A loop that applies F to elements of T and makes elements of R. */
template <class F, class R, class... T> constexpr loop_types<sizeof...(T) + 1> loop_types_of()
{
    static_assert(sizeof(F) <= TS_CUDA_FORMULA_BYTES, "room for the functor");
    return {names_of<F, R, T...>(),
            std::is_empty_v<F> ? 0 : (int)sizeof(F),
            requires { F::draws; },
            {(int)sizeof(R), (int)sizeof(T)...},
            {false, number_is_wide<T, sizeof...(T) + 1>...}};
}

/** Passes the functor at `fn` to the group that is being described. Call only if
 * ts_cuda_describing(), or after ts_cuda_use() has returned NULL; if no group is being described,
 * returns the error that ts_cuda_use() recorded. */
template <int N>
__attribute__((noinline)) ts_status describe(const ts_frame *f, const ts_space &space,
                                             const loop_types<N> &types, const void *fn)
{
    if (!ts_cuda_describing())
        return ts_error_code();
    ts_cuda_formula formula = {types.names, N, types.bytes, types.draws};
    memcpy(formula.members, fn, types.bytes);
    for (int k = 1; k < N; k++) {
        const ts_operand &o = space.operand[k];
        formula.arg[k] = o.arg;
        if ((formula.host[k] = o.host))
            loop_number(f, o, types.item[k], types.wide[k], &formula.number[k]);
    }
    ts_cuda_describe(&formula);
    return TS_OK;
}
/** The same for a functor F, results R and operands T. */
template <class F, class R, class... T>
ts_status describe(const ts_frame *f, const ts_space &space, const F &fn)
{
    static constexpr auto types = loop_types_of<F, R, T...>();
    return describe(f, space, types, &fn);
}

} // namespace ts

#endif
