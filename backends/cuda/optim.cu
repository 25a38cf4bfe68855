/** @file optim.cu  Optimizer steps over lists of tensors, scaling of lists, and their norm. */
// SPDX-License-Identifier: MIT
#include <math.h>

#include "backends/cuda/lines.cuh"
#include "backends/cuda/optim_lists.cuh"

using namespace ts;

/* --------------------------------------------------------------------- scales of gradients ---- */

/** Pointer to the factor of gradients in device memory; NULL: the factor is 1. */
static const float *grad_scale(const ts_frame *f, int arg)
{
    return f->args[arg].tag == TS_TAG_TENSOR ? (const float *)ts_kernel_data(f->args[arg].t)
                                             : nullptr;
}
template <class S> static __device__ __forceinline__ S read_scale(const float *at)
{
    return at ? (S)*at : (S)1;
}

/** Products that the compiler must not fuse with a sum, so that a factor of 1 does not change the
 *  bits. */
static __device__ __forceinline__ float times(float a, float b) { return __fmul_rn(a, b); }
static __device__ __forceinline__ double times(double a, double b) { return __dmul_rn(a, b); }

/* -------------------------------------------------------------------------------- adamw ---- */

struct adamw_numbers {
    double lr, decay, beta1, beta2, eps;
    bool decoupled;
    const float *grad_scale;
};

/** Bias corrections of step number `step`, from 1: `scale` multiplies the root of the second
 * average, and `rate` is -lr / (1 - beta1^step). */
static __host__ __device__ __forceinline__ void adamw_factors(const adamw_numbers &c, double step,
                                                              double &scale, double &rate)
{
    scale = 1 / sqrt(1 - pow(c.beta2, step));
    rate = -c.lr / (1 - pow(c.beta1, step));
}

/** adamw_factors() of a member: computed on the host, or on the device if steps may have been
 * skipped. */
static __device__ __forceinline__ void factors_of(const step_table<4> &t, const share &s,
                                                  const adamw_numbers &c, double &scale,
                                                  double &rate)
{
    scale = t.number[0][s.member];
    rate = t.number[1][s.member];
    if (!t.found)
        return;
    __shared__ double both[2];
    if (threadIdx.x == 0)
        adamw_factors(c, t.number[0][s.member] - (double)*t.skipped[s.member], both[0], both[1]);
    __syncthreads();
    scale = both[0];
    rate = both[1];
}

/** P, G, M: types of parameters, gradients and state. All arithmetic is in S. */
template <class P, class G, class M>
static __global__ void __launch_bounds__(THREADS)
    adamw_kernel(const __grid_constant__ step_table<4> t, adamw_numbers c)
{
    using S = wide_t<P>;
    share s = share_of(t);
    if (is_skipped(t, s))
        return;
    double of_root, of_quotient;
    factors_of(t, s, c, of_root, of_quotient);
    void *p = t.data[0][s.member], *g = t.data[1][s.member], *m = t.data[2][s.member],
         *v = t.data[3][s.member];
    S scale = (S)of_root, rate = (S)of_quotient, decay = (S)c.decay, eps = (S)c.eps;
    S blend1 = (S)(1 - c.beta1), keep1 = (S)c.beta1, keep2 = (S)c.beta2, blend2 = (S)(1 - c.beta2),
      by = read_scale<S>(c.grad_scale);
    over_share<vec16<S>>(s, aligned_all(t, s.member), [&]<int V>(int64_t i) {
        vec<P, V> x = load_at<V, P>(p, i);
        vec<G, V> up = load_at<V, G>(g, i);
        S first[V], second[V];
        unpack<M, V>(load_at<V, M>(m, i), first);
        unpack<M, V>(load_at<V, M>(v, i), second);
#pragma unroll
        for (int e = 0; e < V; e++) {
            S w = (S)widen(x.at[e]), d = times((S)widen(up.at[e]), by);
            if (c.decoupled)
                w *= decay;
            else if (c.decay != 0) /* 0 * w would be NaN for an infinite w */
                d += decay * w;
            if (blend1 < (S)0.5) /* computed from the nearer operand, like lerp */
                first[e] += blend1 * (d - first[e]);
            else
                first[e] = d + keep1 * (first[e] - d);
            second[e] = blend2 * d * d + keep2 * second[e];
            w += rate * (first[e] / (sqrt(second[e]) * scale + eps));
            x.at[e] = narrow<P>(w);
        }
        store_at<V, P>(p, i, x);
        store_at<V, M>(m, i, pack<M, V>(first));
        store_at<V, M>(v, i, pack<M, V>(second));
    });
}

/** Like over_members() with a step_table. If argument `guard` (found) is a tensor, the device
 * decides whether to skip the step; argument guard + 1 then is the list of counters of skipped
 * steps. */
template <int LISTS, class N, class F>
static ts_status over_steps(ts_frame *f, const int (&args)[LISTS], int64_t like, int guard,
                            N &&numbers, F &&launch)
{
    bool guarded = f->args[guard].tag == TS_TAG_TENSOR;
    step_table<LISTS> t(guarded ? (const float *)ts_kernel_data(f->args[guard].t) : nullptr);
    auto all_numbers = [&](step_table<LISTS> &t, int m, int64_t i) {
        numbers(t, m, i);
        if (guarded)
            t.skipped[m] = (float *)ts_kernel_data(f->args[guard + 1].list[i]);
    };
    return over_members(f, t, args, like, all_numbers, launch);
}

/** Calls fn<P, G, M>() for the dtypes of a member's parameter, gradient and state. f32 parameters,
 *  such as master weights of halves, may have half gradients. Half parameters may have f32 state;
 *  without a state list, M is f32. */
template <int LISTS, class F>
static ts_status with_types(const ts_frame *f, const int (&args)[LISTS], int64_t member, F &&fn)
{
    ts_dtype g = dtype_of(f, 1, member);
    bool wide = LISTS < 3 || dtype_of(f, 2, member) == TS_F32;
    switch (dtype_of(f, 0, member)) {
    case TS_F64: return fn.template operator()<double, double, double>();
    case TS_BF16:
        return wide ? fn.template operator()<bf16, bf16, float>()
                    : fn.template operator()<bf16, bf16, bf16>();
    case TS_F16:
        return wide ? fn.template operator()<f16, f16, float>()
                    : fn.template operator()<f16, f16, f16>();
    default:
        return g == TS_BF16  ? fn.template operator()<float, bf16, float>()
               : g == TS_F16 ? fn.template operator()<float, f16, float>()
                             : fn.template operator()<float, float, float>();
    }
}

/** Both averages of a member are computed in the wider of their dtypes; one may be f32 and the
 *  other a half. */
static ts_dtype averages_alike(const ts_frame *f, int arg, int64_t member)
{
    bool average = arg == 2 || arg == 3;
    return average && dtype_of(f, 2, member) != dtype_of(f, 3, member) ? TS_F32
                                                                       : dtype_of(f, arg, member);
}

/** adamw(params, grads, exp_avg, exp_avg_sq, steps, lr, beta1, beta2, eps, weight_decay, decoupled,
 * found, skipped, grad_scale) */
static ts_status adamw(ts_frame *f)
{
    double lr = f->args[5].d, beta1 = f->args[6].d, beta2 = f->args[7].d, decay = f->args[9].d;
    bool decoupled = f->args[10].i;
    adamw_numbers c = {lr, decoupled ? 1 - lr * decay : decay, beta1, beta2, f->args[8].d,
                       decoupled, grad_scale(f, 13)};
    auto numbers = [&](step_table<4> &t, int m, int64_t i) {
        double step = (double)f->args[4].ints[i];
        if (t.found)
            t.number[0][m] = step;
        else
            adamw_factors(c, step, t.number[0][m], t.number[1][m]);
    };
    const int args[] = {0, 1, 2, 3};
    return by_dtypes(f, args, [&](int64_t like) {
        return with_types(f, args, like, [&]<class P, class G, class M> {
            return over_steps<4>(f, args, like, 11, numbers,
                                 [&](const auto &t, unsigned blocks, cudaStream_t stream) {
                                     adamw_kernel<P, G, M><<<blocks, THREADS, 0, stream>>>(t, c);
                                 });
        });
    });
}

/* ---------------------------------------------------------------------------------- sgd ---- */

struct sgd_numbers {
    double lr, momentum, blend, decay;
    bool nesterov;
    const float *grad_scale;
};

template <int LISTS>
static __device__ __forceinline__ bool is_first(const step_table<LISTS> &t, int member)
{
    double skipped = t.found ? (double)*t.skipped[member] : 0;
    return t.number[0][member] - skipped == 1;
}

template <class P, class G, class M, int LISTS>
static __global__ void __launch_bounds__(THREADS)
    sgd_kernel(const __grid_constant__ step_table<LISTS> t, sgd_numbers c)
{
    using S = wide_t<P>;
    share s = share_of(t);
    if (is_skipped(t, s))
        return;
    bool first = is_first(t, s.member);
    S by = read_scale<S>(c.grad_scale);
    over_share<vec16<S>>(s, aligned_all(t, s.member), [&]<int V>(int64_t i) {
        vec<P, V> x = load_at<V, P>(t.data[0][s.member], i);
        vec<G, V> up = load_at<V, G>(t.data[1][s.member], i);
        vec<M, V> b;
        if constexpr (LISTS == 3)
            if (!first)
                b = load_at<V, M>(t.data[2][s.member], i);
#pragma unroll
        for (int e = 0; e < V; e++) {
            S w = (S)widen(x.at[e]), g = times((S)widen(up.at[e]), by);
            if (c.decay != 0) /* as in adamw_kernel() */
                g += (S)c.decay * w;
            if constexpr (LISTS == 3) {
                S step = first ? g : (S)c.momentum * (S)widen(b.at[e]) + (S)c.blend * g;
                g = c.nesterov ? g + (S)c.momentum * step : step;
                b.at[e] = narrow<M>(step);
            }
            x.at[e] = narrow<P>(w - (S)c.lr * g);
        }
        store_at<V, P>(t.data[0][s.member], i, x);
        if constexpr (LISTS == 3)
            store_at<V, M>(t.data[2][s.member], i, b);
    });
}

/** sgd(params, grads, momentum_buffers, steps, lr, momentum, dampening, weight_decay, nesterov,
 *  found, skipped, grad_scale) */
static ts_status sgd(ts_frame *f)
{
    sgd_numbers c = {f->args[4].d, f->args[5].d, 1 - f->args[6].d, f->args[7].d, f->args[8].i != 0,
                     grad_scale(f, 11)};
    bool buffers = c.momentum != 0;
    auto numbers = [&](auto &t, int m, int64_t i) { t.number[0][m] = (double)f->args[3].ints[i]; };
    auto run = [&]<int LISTS>(const int (&args)[LISTS]) {
        return by_dtypes(f, args, [&](int64_t like) {
            return with_types(f, args, like, [&]<class P, class G, class M> {
                return over_steps<LISTS>(
                    f, args, like, 9, numbers,
                    [&](const auto &t, unsigned blocks, cudaStream_t stream) {
                        sgd_kernel<P, G, M, LISTS><<<blocks, THREADS, 0, stream>>>(t, c);
                    });
            });
        });
    };
    const int two[] = {0, 1}, three[] = {0, 1, 2};
    return buffers ? run(three) : run(two);
}

/* ------------------------------------------------------------------ scaling and the norm ---- */

static auto no_numbers = [](table<1> &, int, int64_t) {};

/** A factor from a number on the host or in device memory. For clipping, the factor is
 * most / (number + 1e-6); the kernel does nothing if it is 1 or more. */
struct factor_of {
    double number;
    const void *data;
    ts_dtype dtype;
    double most; /* maximum norm for clipping; 0: no clipping */

    factor_of(const ts_value &v, double limit)
        : number(0), data(nullptr), dtype(TS_F32), most(limit)
    {
        if (v.tag == TS_TAG_TENSOR) {
            data = ts_kernel_data(v.t);
            dtype = ts_dtype_of(v.t);
            if (ts_device_of(v.t).backend == TS_DEVICE_CPU.backend) {
                number = read();
                data = nullptr;
            }
        } else {
            number = number_of(&v);
        }
    }
    __host__ __device__ __forceinline__ double read() const
    {
        return dtype == TS_F64    ? *(const double *)data
               : dtype == TS_F32  ? (double)*(const float *)data
               : dtype == TS_BF16 ? (double)(float)*(const bf16 *)data
                                  : (double)(float)*(const f16 *)data;
    }
    __device__ __forceinline__ double get() const
    {
        double x = data ? read() : number;
        return most > 0 ? most / (x + 1e-6) : x;
    }
};

/** Multiplies each element by the factor. Sets *found to 1 if a product is not finite. */
template <class P> static __global__ void __launch_bounds__(THREADS)
    scale_kernel(const __grid_constant__ table<1> t, factor_of how, float *found)
{
    using A = wide_t<P>;
    double by = how.get();
    if (how.most > 0 && by >= 1) /* false for NaN, which must reach the gradients */
        return;
    A factor = (A)by;
    share s = share_of(t);
    bool odd = false;
    over_share<vec16<P>>(s, aligned_all(t, s.member), [&]<int V>(int64_t i) {
        vec<P, V> x = load_at<V, P>(t.data[0][s.member], i);
#pragma unroll
        for (int e = 0; e < V; e++) {
            x.at[e] = narrow<P>(widen(x.at[e]) * factor);
            A y = widen(x.at[e]);
            odd = odd || y - y != 0;
        }
        store_at<V, P>(t.data[0][s.member], i, x);
    });
    if (found && odd)
        *found = 1;
}

static ts_status run_scale(ts_frame *f, const factor_of &how, float *found)
{
    const int args[] = {0};
    return by_dtypes(f, args, [&](int64_t like) {
        table<1> t;
        return over_members(
            f, t, args, like, no_numbers,
            [&](const table<1> &t, unsigned blocks, cudaStream_t stream) {
                switch (dtype_of(f, 0, like)) {
                case TS_F64:
                    scale_kernel<double><<<blocks, THREADS, 0, stream>>>(t, how, found);
                    break;
                case TS_BF16:
                    scale_kernel<bf16><<<blocks, THREADS, 0, stream>>>(t, how, found);
                    break;
                case TS_F16:
                    scale_kernel<f16><<<blocks, THREADS, 0, stream>>>(t, how, found);
                    break;
                default:
                    scale_kernel<float><<<blocks, THREADS, 0, stream>>>(t, how, found);
                }
            });
    });
}
static ts_status scale(ts_frame *f) { return run_scale(f, factor_of(f->args[1], 0), nullptr); }
static ts_status clip_norm(ts_frame *f)
{
    return run_scale(f, factor_of(f->args[1], f->args[2].d), nullptr);
}
static ts_status unscale(ts_frame *f)
{
    float *found = (float *)ts_kernel_data(f->rets[0].t);
    TS_CUDA_TRY(on_device(
        f, [&](const call &c) { return cudaMemsetAsync(found, 0, sizeof *found, c.stream); }));
    return run_scale(f, factor_of(f->args[1], 0), found);
}

/** Stores the sum of squares of each block's share. t.number[0]: index in parts of the member's
 * first block. */
template <class P>
static __global__ void __launch_bounds__(THREADS)
    squares_kernel(const __grid_constant__ table<1> t, double *parts)
{
    share s = share_of(t);
    double sum = 0;
    constexpr int together = vec16<P> < vec16<float> ? vec16<P> : vec16<float>;
    over_share<together>(s, aligned_all(t, s.member), [&]<int V>(int64_t i) {
        vec<P, V> x = load_at<V, P>(t.data[0][s.member], i);
#pragma unroll
        for (int e = 0; e < V; e++)
            sum += (double)widen(x.at[e]) * (double)widen(x.at[e]);
    });
#pragma unroll
    for (int lane = 16; lane; lane >>= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, lane);
    __shared__ double warps[THREADS / 32];
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < THREADS / 32; w++)
            sum += warps[w];
        parts[(int64_t)t.number[0][s.member] + blockIdx.x - t.first[s.member]] = sum;
    }
}
template <class R> static __global__ void root_kernel(const double *parts, int64_t n, R *out)
{
    double sum = 0;
    for (int64_t i = threadIdx.y; i < n; i += 1024)
        sum += parts[i];
    sum = line_reduce<1, 1024, op_sum>(sum);
    if (threadIdx.y == 0)
        *out = narrow<R>((wide_t<R>)sqrt(sum));
}

/** global_norm(tensors) -> a number */
static ts_status global_norm(ts_frame *f)
{
    auto blocks_of = [&](int64_t i) {
        return (ts_numel(f->args[0].list[i]) + SHARE - 1) / SHARE;
    };
    int64_t blocks = 0;
    for (uint32_t i = 0; i < f->args[0].count; i++)
        blocks += blocks_of(i);
    ts_device where = ts_kernel_device(f);
    double *parts = (double *)ts_scratch_take(where, (blocks + 1) * 8);
    if (!parts)
        return ts_error_code();
    const int args[] = {0};
    ts_status status = by_dtypes(f, args, [&](int64_t like) {
        int64_t at = 0, before = 0; /* parts of members before `at`: partial sums are in the order
                                       of the list, whatever the members' dtypes */
        auto first_part = [&](table<1> &t, int m, int64_t i) {
            for (; at < i; at++)
                before += blocks_of(at);
            t.number[0][m] = (double)before;
        };
        table<1> t;
        return over_members(
            f, t, args, like, first_part,
            [&](const table<1> &t, unsigned some, cudaStream_t stream) {
                switch (dtype_of(f, 0, like)) {
                case TS_F64:
                    squares_kernel<double><<<some, THREADS, 0, stream>>>(t, parts);
                    break;
                case TS_BF16:
                    squares_kernel<bf16><<<some, THREADS, 0, stream>>>(t, parts);
                    break;
                case TS_F16:
                    squares_kernel<f16><<<some, THREADS, 0, stream>>>(t, parts);
                    break;
                default:
                    squares_kernel<float><<<some, THREADS, 0, stream>>>(t, parts);
                }
            });
    });
    if (status == TS_OK)
        status = on_device(f, [&](const call &c) {
            void *out = ts_kernel_data(f->rets[0].t);
            switch (ts_dtype_of(f->rets[0].t)) {
            case TS_F64:
                root_kernel<double>
                    <<<1, dim3(1, 1024), 0, c.stream>>>(parts, blocks, (double *)out);
                break;
            case TS_BF16:
                root_kernel<bf16>
                    <<<1, dim3(1, 1024), 0, c.stream>>>(parts, blocks, (bf16 *)out);
                break;
            case TS_F16:
                root_kernel<f16>
                    <<<1, dim3(1, 1024), 0, c.stream>>>(parts, blocks, (f16 *)out);
                break;
            default:
                root_kernel<float>
                    <<<1, dim3(1, 1024), 0, c.stream>>>(parts, blocks, (float *)out);
            }
            return cudaPeekAtLastError();
        });
    ts_scratch_give(where, parts, (blocks + 1) * 8);
    return status;
}

/** Kernel of an op over lists of any strides. Bit a of WRITTEN: the op writes list a. TAKEN: the
 * dtype that KERNEL requires of each member. */
template <ts_kernel KERNEL, uint32_t WRITTEN, taken_fn TAKEN = dtype_of>
static ts_status of_lists(ts_frame *f)
{
    return run_on_dense_copies(f, WRITTEN, KERNEL, TAKEN);
}

TS_CUDA_FAMILY(optim,
    {"adamw", of_lists<adamw, 1 << 0 | 1 << 2 | 1 << 3, averages_alike>, 0, true},
    {"sgd", of_lists<sgd, 1 << 0 | 1 << 2>, 0, true},
    {"scale", of_lists<scale, 1 << 0>, 0, true},
    {"unscale", of_lists<unscale, 1 << 0>, 0, true},
    {"clip_norm", of_lists<clip_norm, 1 << 0>, 0, true},
    {"global_norm", of_lists<global_norm, 0>, 0, true},
)
