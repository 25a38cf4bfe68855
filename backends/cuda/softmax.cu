/**
 * @file softmax.cu  softmax and log_softmax over one dim, and their gradients.
 *
 * softmax_rows.cuh has the kernels of f32, bf16 and f16 over the last dim. over_lines() launches
 * the kernels of all other calls: f64, another dim, and rows that those kernels do not support.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/aligned.cuh"
#include "backends/cuda/line_tiles.cuh"
#include "backends/cuda/softmax_rows.cuh"

using namespace ts;

/* ---------------------------------------------------------------------------- formulas ---- */

/** Replaces a line by its softmax, or log-softmax if `log`. */
template <class T> struct softmax_of {
    bool log;
    template <class L> __device__ __forceinline__ void operator()(const L &l) const
    {
        using A = wide_t<T>;
        A top = minus_infinity<A>(), sum = 0;
        l.each([&](auto i) { top = op_max::of(top, l.get(0, i)); });
        top = l.template reduce<op_max>(top);
        exp_from<T> above(top);
        l.each([&](auto i) { sum += above(l.get(0, i)); });
        sum = l.template reduce<op_sum>(sum);
        A scale = log ? ::log(sum) : 1 / sum;
        l.each([&](auto i) {
            A z = l.get(0, i);
            l.put(i, log ? z - top - scale : above(z) * scale);
        });
    }
};

/** A line of gradients g with results y: g becomes y (g - sum(g y)), or g - exp(y) sum(g) for
 * log-softmax. */
template <class T> struct softmax_gradient_of {
    bool log;
    template <class L> __device__ __forceinline__ void operator()(const L &l) const
    {
        using A = wide_t<T>;
        A sum = 0;
        l.each([&](auto i) { sum += log ? l.get(0, i) : l.get(0, i) * l.get(1, i); });
        sum = l.template reduce<op_sum>(sum);
        exp_from<T> exp_of(0);
        l.each([&](auto i) {
            A a = l.get(0, i), b = l.get(1, i);
            l.put(i, log ? a - exp_of(b) * sum : b * (a - sum));
        });
    }
};

/* ------------------------------------------------------------------------------- lines ---- */

/** A thread's line in device memory, with the interface of tile_line. In each block that shares the
 * line's tile, Y threads process the line; reduce() combines the values of all of them. */
template <class T, int INPUTS, int X, int Y> struct block_line {
    line_position<X, Y> position;
    const lines &of;
    const T *const *x;
    T *y;
    mutable int turn = 0;

    template <class F> __device__ __forceinline__ void each(F &&f) const
    {
        if (position.some)
#pragma unroll 4
            for (int64_t i = blockIdx.y * Y + threadIdx.y; i < of.count; i += Y * of.shares)
                f(position.first + i * position.step);
    }
    __device__ __forceinline__ wide_t<T> get(int input, int64_t i) const
    {
        return widen(x[input][i]);
    }
    __device__ __forceinline__ void put(int64_t i, wide_t<T> value) const
    {
        y[i] = narrow<T>(value);
    }
    template <class OP, class A> __device__ __forceinline__ A reduce(A value) const
    {
        return lines_reduce<X, Y, OP>(of, turn++, value);
    }
};

template <class T, int INPUTS, class F, int X, int Y>
static __global__ void __launch_bounds__(X *Y, 1024 / (X * Y))
    lines_kernel(const __grid_constant__ lines l,
                 const __grid_constant__ tiles_task<T, INPUTS, F> a)
{
    a.f(block_line<T, INPUTS, X, Y>{line_position<X, Y>(l), l, a.x, a.y});
}

/** Launches f over lines for which rows.cuh and row_stream.cuh have no shape: short lines in tiles
 * (line_tiles.cuh), others in device memory (lines.cuh). */
template <class T, int INPUTS, class F>
static cudaError_t over_lines(const lines &l, const F &f, const T *const (&x)[INPUTS], T *y,
                              const lines_scratch &scratch, cudaStream_t stream)
{
    tiles_task<T, INPUTS, F> a = {{l}, f, {}, y};
    if (line_tiles_of<T>(l, a.t))
        return tiles_launch(a.t, f, x, y, stream);
    for (int k = 0; k < INPUTS; k++)
        a.x[k] = x[k];
    return lines_dispatch(l, [&]<int X, int Y>(dim3 block) {
        return lines_launch(lines_kernel<T, INPUTS, F, X, Y>, l, block, scratch, stream, a);
    });
}

/** Calls launch.operator()<T>(call, lines, scratch), T the call's dtype, unless there are no
 * elements. scratch: for over_lines(). */
template <class F> static ts_status with_lines(ts_frame *f, F &&launch)
{
    ts_rows r = ts_kernel_rows(f);
    lines l = {r.outer, r.count, r.inner};
    lines_scratch scratch(f, l);
    if (scratch.failed())
        return ts_error_code();
    return with_float(f, [&]<class T>(const call &c) {
        return l.outer && l.count && l.inner ? launch.template operator()<T>(c, l, scratch)
                                             : cudaSuccess;
    });
}

/** True if line_tiles.cuh is fastest for rows: they are short, and their length is not a multiple
 * of 16 bytes. */
template <class T> static bool in_tiles(const lines &r)
{
    return r.count % vec16<T> && r.count <= LONGEST_IN_TILE;
}

template <bool LOG> static ts_status forward(ts_frame *f)
{
    return with_lines(f, [&]<class T>(const call &c, const lines &r, const lines_scratch &scratch) {
        const T *x = data_of<T>(f->args[0]);
        T *y = data_of<T>(f->rets[0]);
        if constexpr (sizeof(T) < 8)
            if (r.inner == 1 && !in_tiles<T>(r)) {
                cudaError_t e = softmax_rows<T, LOG>(x, y, r.outer, r.count, c.device, c.stream);
                if (e != cudaErrorNotSupported)
                    return e;
            }
        return over_lines<T, 1>(r, softmax_of<T>{LOG}, {x}, y, scratch, c.stream);
    });
}
static ts_status softmax(ts_frame *f) { return forward<false>(f); }
static ts_status log_softmax(ts_frame *f) { return forward<true>(f); }

template <bool LOG> static ts_status backward(ts_frame *f)
{
    return with_lines(f, [&]<class T>(const call &c, const lines &r, const lines_scratch &scratch) {
        const T *g = data_of<T>(f->args[0]), *y = data_of<T>(f->args[1]);
        T *dx = data_of<T>(f->rets[0]);
        if constexpr (sizeof(T) < 8)
            if (r.inner == 1 && !in_tiles<T>(r)) {
                cudaError_t e =
                    softmax_backward_rows<T, LOG>(g, y, dx, r.outer, r.count, c.device, c.stream);
                if (e != cudaErrorNotSupported)
                    return e;
            }
        return over_lines<T, 2>(r, softmax_gradient_of<T>{LOG}, {g, y}, dx, scratch, c.stream);
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
