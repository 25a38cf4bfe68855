/** @file softmax.cu  softmax and log_softmax over one dim, and their gradients. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/aligned.cuh"
#include "backends/cuda/lines.cuh"
#include "backends/cuda/softmax_rows.cuh"

using namespace ts;

template <class T, int X, int Y, bool LOG>
static __global__ void __launch_bounds__(X *Y) lines_kernel(lines l, const T *x, T *y)
{
    using A = wide_t<T>;
    line_place<X, Y> at(l);
    A top = minus_infinity<A>(), sum = 0;
    if (at.some)
        for (int64_t i = threadIdx.y; i < l.count; i += Y)
            top = op_max::of(top, widen(x[at.first + i * at.step]));
    top = line_reduce<X, Y, op_max>(top);
    exp_from<T> above(top);
    if (at.some)
        for (int64_t i = threadIdx.y; i < l.count; i += Y)
            sum += above(widen(x[at.first + i * at.step]));
    sum = line_reduce<X, Y, op_sum>(sum);
    A scale = LOG ? log(sum) : 1 / sum;
    if (at.some)
        for (int64_t i = threadIdx.y; i < l.count; i += Y) {
            A z = widen(x[at.first + i * at.step]);
            y[at.first + i * at.step] = narrow<T>(LOG ? z - top - scale : above(z) * scale);
        }
}

template <class T, int X, int Y, bool LOG>
static __global__ void __launch_bounds__(X *Y)
    lines_backward_kernel(lines l, const T *g, const T *y, T *dx)
{
    using A = wide_t<T>;
    line_place<X, Y> at(l);
    A sum = 0;
    if (at.some)
        for (int64_t i = threadIdx.y; i < l.count; i += Y) {
            A a = widen(g[at.first + i * at.step]);
            sum += LOG ? a : a * widen(y[at.first + i * at.step]);
        }
    sum = line_reduce<X, Y, op_sum>(sum);
    exp_from<T> exp_of(0);
    if (at.some)
        for (int64_t i = threadIdx.y; i < l.count; i += Y) {
            A a = widen(g[at.first + i * at.step]), b = widen(y[at.first + i * at.step]);
            dx[at.first + i * at.step] = narrow<T>(LOG ? a - exp_of(b) * sum : b * (a - sum));
        }
}

template <bool LOG> static ts_status forward(ts_frame *f)
{
    return with_float(f, [&]<class T>(const call &c) {
        ts_rows r = ts_kernel_rows(f);
        const T *x = data_of<T>(f->args[0]);
        T *y = data_of<T>(f->rets[0]);
        if (!r.outer || !r.count || !r.inner)
            return cudaSuccess;
        if constexpr (sizeof(T) < 8)
            if (r.inner == 1) {
                cudaError_t e = softmax_rows<T, LOG>(x, y, r.outer, r.count, c.device, c.stream);
                if (e != cudaErrorNotSupported)
                    return e;
            }
        lines l = {r.outer, r.count, r.inner};
        lines_dispatch(l, [&]<int X, int Y>(dim3 grid, dim3 block) {
            lines_kernel<T, X, Y, LOG><<<grid, block, 0, c.stream>>>(l, x, y);
        });
        return cudaPeekAtLastError();
    });
}
static ts_status softmax(ts_frame *f) { return forward<false>(f); }
static ts_status log_softmax(ts_frame *f) { return forward<true>(f); }

template <bool LOG> static ts_status backward(ts_frame *f)
{
    return with_float(f, [&]<class T>(const call &c) {
        ts_rows r = ts_kernel_rows(f);
        const T *g = data_of<T>(f->args[0]), *y = data_of<T>(f->args[1]);
        T *dx = data_of<T>(f->rets[0]);
        if (!r.outer || !r.count || !r.inner)
            return cudaSuccess;
        if constexpr (sizeof(T) < 8)
            if (r.inner == 1) {
                cudaError_t e =
                    softmax_backward_rows<T, LOG>(g, y, dx, r.outer, r.count, c.device, c.stream);
                if (e != cudaErrorNotSupported)
                    return e;
            }
        lines l = {r.outer, r.count, r.inner};
        lines_dispatch(l, [&]<int X, int Y>(dim3 grid, dim3 block) {
            lines_backward_kernel<T, X, Y, LOG><<<grid, block, 0, c.stream>>>(l, g, y, dx);
        });
        return cudaPeekAtLastError();
    });
}
static ts_status softmax_backward(ts_frame *f) { return backward<false>(f); }
static ts_status log_softmax_backward(ts_frame *f) { return backward<true>(f); }

TS_CUDA_FAMILY(softmax,
    {"softmax", on_aligned<softmax>, floats, false},
    {"log_softmax", on_aligned<log_softmax>, floats, false},
    {"softmax_backward", on_aligned<softmax_backward>, floats, false},
    {"log_softmax_backward", on_aligned<log_softmax_backward>, floats, false},
)
