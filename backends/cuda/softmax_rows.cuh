/**
 * @file softmax_rows.cuh  Softmax, log-softmax and their gradients over contiguous rows of f32,
 * bf16 or f16.
 *
 * softmax_rows() and softmax_backward_rows() choose a kernel by dtype and row length:
 *   softmax_kernel, softmax_backward_kernel                the row is in registers
 *   softmax_packed_kernel                                  long rows of bf16 and f16, packed in
 *                                                          registers
 *   softmax_stream_kernel, softmax_backward_stream_kernel  longer rows, streamed through shared
 *                                                          memory (sm_90 and later)
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_SOFTMAX_ROWS_CUH
#define TS_CUDA_SOFTMAX_ROWS_CUH

#include "backends/cuda/launch_stream.cuh"
#include "backends/cuda/softmax_exp.cuh"

namespace ts {

/**
 * A thread's elements of a row as exponentials relative to the thread's largest element. One
 * reduction then combines the row's largest element and its sum of exponentials, and each element
 * costs one exponential.
 */
template <class T, int VECS, int V> struct own_exps {
    using A = wide_t<T>;
    A e[VECS][V];
    A base, top, sum; /* e = exp(x - base). top and sum are the thread's; set_maximum_and_sum()
                         makes them the row's, with exp(x - top) = e shift() */

    /** Replaces the elements in e, valid for vectors with inside(j), by exponentials; sets base,
     * top and sum. */
    template <class I> __device__ __forceinline__ void take(I &&inside)
    {
        top = minus_infinity<A>();
        sum = 0;
#pragma unroll
        for (int j = 0; j < VECS; j++)
            if (inside(j))
#pragma unroll
                for (int k = 0; k < V; k++)
                    top = op_max::of(top, e[j][k]);
        base = top == minus_infinity<A>() ? 0 : top;
        exp_from<T> above(base);
#pragma unroll
        for (int j = 0; j < VECS; j++)
            if (inside(j))
#pragma unroll
                for (int k = 0; k < V; k++)
                    sum += e[j][k] = above(e[j][k]);
    }
    /** Sets top and sum to the row's. If no element of the thread is above -Inf, its exponentials
     * are 0 or NaN, and its shift() is 1, or NaN if no element of the row is above -Inf. */
    __device__ __forceinline__ void set_maximum_and_sum(float2 whole)
    {
        if (top == minus_infinity<A>())
            base = whole.x;
        top = whole.x;
        sum = whole.y;
    }
    __device__ __forceinline__ A shift() const { return exp_from<T>(top)(base); }
};

/** Formula of combine() for parts (largest element, sum of exponentials relative to it). */
template <class T> struct joined_exps : plain_parts {
    __device__ __forceinline__ float2 none() const { return make_float2(-INFINITY, 0); }
    __device__ __forceinline__ float join(float a, float b) const { return fmaxf(a, b); }
    __device__ __forceinline__ float adjust(float2 own, float top, float, float) const
    {
        /* if the part's largest is -Inf, its elements are -Inf or NaN: own.y is 0 or NaN */
        return own.x == -INFINITY ? own.y : own.y * exp_from<T>(top)(own.x);
    }
};

/* ------------------------------------------------------------------- rows in registers ---- */

/** The exponentials of a row of which each thread holds a part in registers. */
template <class T, class S, int V> struct row_exps : own_exps<T, S::vecs, V> {
    using A = wide_t<T>;

    /** Computes the exponentials of the row part x, which must have -Inf outside the row. */
    template <class P> __device__ __forceinline__ void of(const P &x, float2 *memory)
    {
#pragma unroll
        for (int j = 0; j < S::vecs; j++)
            unpack<T, V>(x.at[j], this->e[j]);
        this->take([](int) { return true; });
        this->set_maximum_and_sum(
            row_combine<S, V>(make_float2(this->top, this->sum), 0, 0, joined_exps<T>(), memory));
    }
};

/** y = softmax(x) over rows of n elements; with LOG, log_softmax. */
template <class T, class S, int V, bool LOG>
__global__ void __launch_bounds__(S::most) softmax_kernel(const T *x, T *y, int64_t rows, int64_t n)
{
    using A = wide_t<T>;
    float2 *memory = row_memory<S, 1, float2>();
    n = row_elements<S, V>(n);
    int64_t r = row_index<S>(), m = S::rows == 1 || r < rows ? n : 0;
    row_part<T, S, V, false> part;
    part.load(x + r * n, m, narrow<T>(minus_infinity<A>()),
              read_once(rows * n * (int64_t)sizeof(T)));
    row_exps<T, S, V> all;
    all.of(part, memory);
    A scale = LOG ? log(all.sum) : all.shift() / all.sum;
    if (LOG)
        part.renew();
#pragma unroll
    for (int j = 0; j < S::vecs; j++) {
        A z[V];
        if constexpr (LOG)
            unpack<T, V>(part.at[j], z);
#pragma unroll
        for (int k = 0; k < V; k++)
            z[k] = LOG ? z[k] - all.top - scale : all.e[j][k] * scale;
        part.at[j] = pack<T, V>(z);
    }
    part.store(y + r * n, m);
}

/** The largest element of vectors of bf16 or f16, compared two at a time. */
template <class T, int VECS> __device__ __forceinline__ float largest(const vec<T, 8> (&x)[VECS])
{
    using pair = std::conditional_t<std::is_same_v<T, bf16>, __nv_bfloat162, __half2>;
    const pair *pairs = reinterpret_cast<const pair *>(x);
    pair top = pairs[0];
#pragma unroll
    for (int i = 1; i < VECS * 4; i++)
        top = __hmax2(top, pairs[i]);
    return fmaxf(__low2float(top), __high2float(top));
}

/**
 * softmax_kernel() for long rows of bf16 and f16, whose exponentials in f32 would take the
 * registers of a second resident block: keeps the row packed and, without LOG, computes each
 * exponential twice.
 */
template <class T, class S, bool LOG>
__global__ void __launch_bounds__(S::most, 1024 / S::most)
    softmax_packed_kernel(const T *x, T *y, int64_t n)
{
    constexpr int V = vec16<T>;
    n = row_elements<S, V>(n);
    float2 *memory = row_memory<S, 1, float2>();
    row_part<T, S, V, false> part;
    part.load(x + blockIdx.x * n, n, narrow<T>(-INFINITY),
              read_once(gridDim.x * n * (int64_t)sizeof(T)));
    float top = largest(part.at), sum = 0, z[V];
    exp_from<T> own(top == -INFINITY ? 0 : top);
#pragma unroll
    for (int j = 0; j < S::vecs; j++) {
        part.renew(j);
        unpack<T, V>(part.at[j], z);
#pragma unroll
        for (int k = 0; k < V; k++)
            sum += own(z[k]);
        settled(sum);
    }
    float2 whole = row_combine<S, V>(make_float2(top, sum), 0, 0, joined_exps<T>(), memory);
    /* log1p takes fewer registers than log here */
    float scale = LOG ? log1pf(whole.y - 1) : 1 / whole.y;
    exp_from<T> above(whole.x);
#pragma unroll
    for (int j = 0; j < S::vecs; j++) {
        part.renew(j);
        unpack<T, V>(part.at[j], z);
#pragma unroll
        for (int k = 0; k < V; k++)
            z[k] = LOG ? z[k] - whole.x - scale : above(z[k]) * scale;
        part.put(y + blockIdx.x * n, j, n, pack<T, V>(z));
        settled(scale);
    }
}

/** Gradient of softmax or, with LOG, of log_softmax, from its result y:
 * dx = y (g - sum(g y)); with LOG, dx = g - exp(y) sum(g). */
template <class T, class S, int V, bool LOG>
__global__ void __launch_bounds__(S::most, S::dense ? 1024 / S::most : 1)
    softmax_backward_kernel(const T *g, const T *y, T *dx, int64_t rows, int64_t n)
{
    using A = wide_t<T>;
    A *memory = row_memory<S, 1, A>();
    n = row_elements<S, V>(n);
    int64_t r = row_index<S>(), m = S::rows == 1 || r < rows ? n : 0;
    row_part<T, S, V, false> up, out;
    read_once read(rows * n * (int64_t)sizeof(T));
    up.load(g + r * n, m, narrow<T>((A)0), read);
    out.load(y + r * n, m, narrow<T>((A)0), read);
    A sum[1] = {0}, a[V], b[V];
#pragma unroll
    for (int j = 0; j < S::vecs; j++) {
        unpack<T, V>(up.at[j], a);
        unpack<T, V>(out.at[j], b);
#pragma unroll
        for (int k = 0; k < V; k++)
            sum[0] += LOG ? a[k] : a[k] * b[k];
    }
    row_reduce<S, op_sum>(sum, memory, 0);
    if (S::dense) {
        up.renew();
        out.renew();
    }
    exp_from<T> exp_of(0);
#pragma unroll
    for (int j = 0; j < S::vecs; j++) {
        unpack<T, V>(up.at[j], a);
        unpack<T, V>(out.at[j], b);
#pragma unroll
        for (int k = 0; k < V; k++)
            a[k] = LOG ? a[k] - exp_of(b[k]) * sum[0] : b[k] * (a[k] - sum[0]);
        up.at[j] = pack<T, V>(a);
    }
    up.store(dx + r * n, m);
}

/* ------------------------------------------------------------- rows in shared memory ---- */

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/** Applies f(j, z) to each vector j of a row of the first input and writes the result. */
template <class R, class T, class F>
__device__ __forceinline__ void rewrite(const R &r, T *out, F &&f)
{
#pragma unroll
    for (int j = 0; j < R::vecs; j++)
        if (r.used(j)) {
            float z[R::V];
            r.get(0, j, z);
            f(j, z);
            r.put(out, j, z);
        }
}

/** Part of formulas of row_stream. first() returns the largest of a thread's elements and the sum
 * of exponentials relative to it; the elements stay in the ring. */
template <class T> struct exp_sums : joined_exps<T> {
    template <class R> __device__ __forceinline__ float2 first(const R &r) const
    {
        float top = -INFINITY, sum = 0;
#pragma unroll
        for (int j = 0; j < R::vecs; j++)
            if (r.used(j)) {
                float z[R::V];
                r.get(0, j, z);
#pragma unroll
                for (int k = 0; k < R::V; k++)
                    top = fmaxf(top, z[k]);
            }
        exp_from<T> above(top == -INFINITY ? 0 : top);
#pragma unroll
        for (int j = 0; j < R::vecs; j++)
            if (r.used(j)) {
                float z[R::V];
                r.get(0, j, z);
#pragma unroll
                for (int k = 0; k < R::V; k++)
                    sum += above(z[k]);
            }
        return make_float2(top, sum);
    }
};

/** Formula of row_stream::run() for softmax and log_softmax. */
template <class T, bool LOG> struct softmax_formula : exp_sums<T> {
    T *y;

    template <class R> __device__ __forceinline__ void second(const R &r, float2 whole) const
    {
        /* log1p takes fewer registers than log */
        float scale = LOG ? log1pf(whole.y - 1) : 1 / whole.y;
        exp_from<T> above(whole.x);
        rewrite(r, y, [&](int, float(&z)[R::V]) {
#pragma unroll
            for (int k = 0; k < R::V; k++)
                z[k] = LOG ? z[k] - whole.x - scale : above(z[k]) * scale;
        });
    }
};

/** Formula of row_stream::run() for the gradients. */
template <class T, bool LOG> struct softmax_backward_formula : plain_sums {
    T *dx;

    template <class R> __device__ __forceinline__ float2 first(const R &r) const
    {
        float sum = 0;
#pragma unroll
        for (int j = 0; j < R::vecs; j++)
            if (r.used(j)) {
                float a[R::V], b[R::V];
                r.get(0, j, a);
                if constexpr (!LOG)
                    r.get(1, j, b);
#pragma unroll
                for (int k = 0; k < R::V; k++)
                    sum = LOG ? sum + a[k] : fmaf(a[k], b[k], sum);
            }
        return make_float2(sum, 0);
    }
    template <class R> __device__ __forceinline__ void second(const R &r, float2 whole) const
    {
        exp_from<T> exp_of(0);
        rewrite(r, dx, [&](int j, float(&a)[R::V]) {
            float b[R::V];
            r.get(1, j, b);
#pragma unroll
            for (int k = 0; k < R::V; k++)
                a[k] = LOG ? a[k] - exp_of(b[k]) * whole.x : b[k] * (a[k] - whole.x);
        });
    }
};

#endif /* sm_90 */

/** softmax_kernel() for rows that stream through shared memory. Empty before sm_90. */
template <class T, class S, bool LOG>
__global__ void __launch_bounds__(S::threads, S::blocks)
    softmax_stream_kernel(const T *x, T *y, int64_t rows, int64_t n)
{
#if __CUDA_ARCH__ >= 900
    TS_STREAM(s, T, S, 1, -INFINITY, rows, n, x);
    softmax_formula<T, LOG> f;
    f.y = y;
    s.run(f);
#endif
}

/** softmax_backward_kernel() for rows that stream through shared memory. Empty before sm_90. */
template <class T, class S, bool LOG>
__global__ void __launch_bounds__(S::threads, S::blocks)
    softmax_backward_stream_kernel(const T *g, const T *y, T *dx, int64_t rows, int64_t n)
{
#if __CUDA_ARCH__ >= 900
    TS_STREAM(s, T, S, 2, 0.0f, rows, n, g, y);
    softmax_backward_formula<T, LOG> f;
    f.dx = dx;
    s.run(f);
#endif
}

/* ------------------------------------------------------------------------- host side ---- */

/**
 * Tables of the kernels. A block waits only for the loads of its row, and other blocks of the
 * multiprocessor run meanwhile, so these kernels are faster than row_stream.cuh as long as the
 * registers of a block hold a row (docs/decisions.md, "A row in registers has a block of its own");
 * softmax_rows() has one exception. For short rows with a short formula (the gradient without LOG),
 * many threads with one vector per input are fastest.
 */
template <class... E>
using softmax_forward_table = aligned_rows<up_to<1536, row_fit<4>>, up_to<288, row_fit<3>>,
                                           up_to<2048, row_fit<5>>, E...>;
template <class T>
using softmax_table = std::conditional_t<
    sizeof(T) == 4, softmax_forward_table<up_to<4096, row_fit<8>>, up_to<8192, row_fit<8, 1024>>>,
    softmax_forward_table<>>;
template <bool LOG>
using softmax_backward_table = std::conditional_t<
    LOG,
    aligned_rows<up_to<2048, row_fit<4>>, up_to<288, row_fit<3>>, up_to<4096, row_fit<4, 1024>>>,
    aligned_rows<up_to<512, row_fit<1>>, up_to<768, row_fit<2>>, up_to<2048, row_fit<4>>,
                 up_to<4096, row_fit<4, 1024>>>>;

/** Launches softmax (with LOG, log_softmax) of x (rows, n) into y. Returns cudaErrorNotSupported if
 * no kernel supports the row length on the device. If a row is a multiple of 16 bytes, x and y must
 * be 16-byte aligned, which on_aligned() ensures. */
template <class T, bool LOG>
cudaError_t softmax_rows(const T *x, T *y, int64_t rows, int64_t n, const ts_cuda_device *d,
                         cudaStream_t stream)
{
    if constexpr (sizeof(T) == 2)
        if (int64_t v = n / 8; n % 8 == 0 && v > 1280) {
            void (*packed)(const T *, T *, int64_t) = nullptr;
            /* for 4,097 to 5,120 vectors softmax is faster as a stream over two blocks */
            row_grid g = row_table<up_to<4096, row_fit<8>>, up_to<8192, row_fit<8, 1024>>>::find<8>(
                v, [&]<class S, int V>() {
                    packed = softmax_packed_kernel<T, S, LOG>;
                    return S::most == 512 || LOG || v > 5120 || v % 2;
                });
            if (g.rows)
                return rows_launch(packed, g, rows, stream, x, y, n);
        }
    void (*kernel)(const T *, T *, int64_t, int64_t) = nullptr;
    row_grid g = find_rows<T, softmax_table<T>, single_rows>(n, [&]<class S, int V>() {
        kernel = softmax_kernel<T, S, V, LOG>;
        return true;
    });
    if (g.rows)
        return rows_launch(kernel, g, rows, stream, x, y, rows, n);
    stream_grid s = find_stream<T, LOG ? rows_wide_log : rows_wide>(n, rows, d, [&]<class S>() {
        kernel = softmax_stream_kernel<T, S, LOG>;
        return ring_bytes<T, S, 1>;
    });
    return stream_launch(kernel, s, stream_clusters(kernel, s, rows), stream, x, y, rows, n);
}

/** Like softmax_rows(), for the gradient: g, y and dx are (rows, n); y is the forward result. */
template <class T, bool LOG>
cudaError_t softmax_backward_rows(const T *g, const T *y, T *dx, int64_t rows, int64_t n,
                                  const ts_cuda_device *d, cudaStream_t stream)
{
    void (*kernel)(const T *, const T *, T *, int64_t, int64_t) = nullptr;
    row_grid grid = find_rows<T, softmax_backward_table<LOG>, padded_rows>(
        n, [&]<class S, int V>() {
            kernel = softmax_backward_kernel<T, S, V, LOG>;
            return true;
        });
    if (grid.rows)
        return rows_launch(kernel, grid, rows, stream, g, y, dx, rows, n);
    stream_grid s = find_stream<T, rows_wide_pairs>(n, rows, d, [&]<class S>() {
        kernel = softmax_backward_stream_kernel<T, S, LOG>;
        return ring_bytes<T, S, 2>;
    });
    return stream_launch(kernel, s, stream_clusters(kernel, s, rows), stream, g, y, dx, rows, n);
}

} // namespace ts

#endif
