/**
 * @file loss_rows.cuh  Cross-entropy over rows of logits. loss.cu calls cross_entropy_grad_rows():
 * one pass computes the gradient for an upstream gradient of 1, and the terms from which loss.cu
 * then computes the losses.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_LOSS_ROWS_CUH
#define TS_CUDA_LOSS_ROWS_CUH

#include "backends/cuda/exponentials.cuh"
#include "backends/cuda/index.cuh"
#include "backends/cuda/softmax_rows.cuh"

namespace ts {

/** Inputs and outputs of a pass over rows of logits. */
template <class T> struct logit_rows {
    using A = wide_t<T>;
    enum { IGNORED = -2, NO_CLASS = -1 /* an invalid target, which another kernel reports */ };
    const T *x;                      /* logits, (rows, n): n classes */
    indices target;                  /* (rows) */
    T *dx;                           /* gradient, (rows, n); may be x; aligned like x */
    const unsigned long long *count; /* device memory: the gradient is divided by *count; NULL: 1 */
    exponentials<A> *known;          /* per row: largest logit and sum of exponentials; total = 0 */
    A *own;                          /* per row: the target's logit; unset if the target is ignored
                                        or invalid */
    A *totals;                       /* (parts, rows): the sum of the logits in each part of a row
                                        (logit_parts()); NULL: not requested */
    int64_t rows, n, ignored;        /* ignored: target of rows without a loss */
    A even, hot; /* the target distribution: each class has the share `even`, and the target class
                    `hot` in addition */

    /** A target as a class, IGNORED or NO_CLASS. */
    __device__ __forceinline__ int goal(int64_t c) const
    {
        return c == ignored ? IGNORED : c >= 0 && c < n ? (int)c : NO_CLASS;
    }
    /** Factor of a row's gradient. */
    __device__ __forceinline__ A factor() const { return count ? (A)1 / (A)*count : (A)1; }
    /** Stores the target's logit, and overwrites dx of the target class. The caller is the thread
     * that has written this element by the formula of the other classes. p_factor: the class's
     * probability times `factor`. */
    __device__ __forceinline__ void correct(int64_t row, int goal, A logit, A p_factor,
                                            A factor) const
    {
        own[row] = logit;
        dx[row * n + goal] = narrow<T>(p_factor - even * factor - hot * factor);
    }
};

/** Upper bound of the number of partial sums of logits per row (`totals`): one per warp of a
 * cluster, or 1 for short rows. */
inline int64_t logit_parts(int64_t n) { return n > 8192 ? 32 * 8 : 1; }

/** The sum of the first `count` of V elements. */
template <class A, int V> __device__ __forceinline__ A sum_of(const A (&z)[V], int count)
{
    A sum = 0;
#pragma unroll
    for (int k = 0; k < V; k++)
        sum += k < count ? z[k] : 0;
    return sum;
}

/** Replaces V exponentials e by dx of classes that are not the target: e scale is a class's
 * probability and `even` its share of the target distribution, both times the row's factor. */
template <class A, int V> __device__ __forceinline__ void slopes_of(A (&e)[V], A scale, A even)
{
#pragma unroll
    for (int k = 0; k < V; k++)
        e[k] = fma(e[k], scale, -even);
}

/* ------------------------------------------------------------------- rows in registers ---- */

/** The pass for rows of which each thread holds a part in registers. */
template <class T, class S, int V>
__global__ void __launch_bounds__(S::most, 1)
    cross_entropy_grad_kernel(const __grid_constant__ logit_rows<T> a)
{
    using A = wide_t<T>;
    using part_t = row_part<T, S, V>;
    A *memory = row_memory<S, 1, A>();
    int64_t r = row_index<S>(), m = r < a.rows ? a.n : 0;
    bool first = part_t::first() == 0 && m;
    part_t part;
    part.load(a.x + r * a.n, m, narrow<T>(minus_infinity<A>()),
              read_once(a.rows * a.n * (int64_t)sizeof(T)));
    int goal = m ? a.goal(a.target.at(r)) : a.IGNORED;
    bool mine = goal >= 0 && goal / V % S::width() == part_t::first();
    A logit = mine ? widen(a.x[r * a.n + goal]) : (A)0;
    if (a.totals) {
        A total[1] = {0};
#pragma unroll
        for (int j = 0; j < S::vecs; j++)
            if (part_t::inside(j, m))
                total[0] += sum_of(unpacked<T, V>(part.at[j]).at, V);
        row_reduce<S, op_sum>(total, memory, 1);
        if (first)
            a.totals[r] = total[0];
    }
    row_exps<T, S, V> all;
    all.of(part, row_memory<S, 1, float2>());
    if (first)
        a.known[r] = {all.top, all.sum, 0};
    A factor = a.factor(), scale = factor / all.sum, even = a.even * factor,
      own_scale = scale * all.shift();
#pragma unroll
    for (int j = 0; j < S::vecs; j++) {
        slopes_of(all.e[j], own_scale, even);
        part.at[j] = goal == a.IGNORED ? vec<T, V>{} : pack<T, V>(all.e[j]);
    }
    part.store(a.dx + r * a.n, m);
    if (mine)
        a.correct(r, goal, logit, exp_from<T>(all.top)(logit) * scale, factor);
}

/* --------------------------------------------------------------- rows in shared memory ---- */

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/** Formula of row_stream::run_held(): a thread keeps its part of a row in registers as
 * exponentials. */
template <class T, int VECS>
struct cross_entropy_grad_formula : exp_sums<T>, own_exps<T, VECS, vec16<T>> {
    const logit_rows<T> &a;
    float factor;
    int64_t next; /* target of the next row, loaded ahead; used only in that row */
    int goal;     /* target of this row, or a constant of logit_rows */
    bool mine;    /* the target is one of this thread's classes */
    T own;        /* if `mine`, the target's logit, loaded ahead */

    __device__ __forceinline__ explicit cross_entropy_grad_formula(const logit_rows<T> &rows)
        : a(rows), factor(rows.factor())
    {
    }
    __device__ __forceinline__ void fetch(int64_t row)
    {
        if (row < a.rows)
            next = a.target.at(row);
    }
    template <class R> __device__ __forceinline__ float2 first(const R &r)
    {
        goal = a.goal(next);
        fetch(r.row + r.step);
        mine = false;
#pragma unroll
        for (int j = 0; j < VECS; j++)
            mine |= (unsigned)(goal - (int)r.column(j)) < R::V && r.inside(j);
        if (mine)
            own = a.x[r.row * r.n + goal];
        if (a.totals)
            leave_total(r);
#pragma unroll
        for (int j = 0; j < VECS; j++)
            if (r.inside(j))
                r.get(0, j, this->e[j]);
        this->take([&](int j) { return r.inside(j); });
        return make_float2(this->top, this->sum);
    }
    template <class R> __device__ __forceinline__ void second(const R &r, float2 whole)
    {
        this->set_maximum_and_sum(whole);
        if (r.column(0) == 0)
            a.known[r.row] = {whole.x, whole.y, 0};
        if (goal == a.IGNORED) {
            const float none[R::V] = {};
#pragma unroll
            for (int j = 0; j < VECS; j++)
                if (r.stored(j))
                    r.put(a.dx, j, none);
            return;
        }
        float scale = factor / whole.y, own_scale = scale * this->shift(), even = a.even * factor;
#pragma unroll
        for (int j = 0; j < VECS; j++)
            if (r.stored(j)) {
                slopes_of(this->e[j], own_scale, even);
                r.put(a.dx, j, this->e[j]);
            }
        if constexpr (R::shifted)
            __syncwarp(); /* another lane may have stored the target's element */
        if (mine)
            a.correct(r.row, goal, widen(own), exp_from<T>(whole.x)(widen(own)) * scale, factor);
    }
    /** Each warp writes the sum of its logits to a.totals. */
    template <class R> __device__ __forceinline__ void leave_total(const R &r) const
    {
        float total = 0;
#pragma unroll
        for (int j = 0; j < VECS; j++)
            if (r.inside(j)) {
                float z[R::V];
                r.get(0, j, z);
                total += sum_of(z, r.inside_count(j));
            }
#pragma unroll
        for (int lane = 16; lane; lane >>= 1)
            total += __shfl_xor_sync(0xffffffffu, total, lane);
        if (threadIdx.x % 32 == 0)
            a.totals[(cluster_rank() * (blockDim.x / 32) + threadIdx.x / 32) * a.rows + r.row] =
                total;
    }
};

#endif /* sm_90 */

/** The pass for rows that stream through shared memory. Empty before sm_90. */
template <class T, class S>
__global__ void __launch_bounds__(S::threads, S::blocks)
    cross_entropy_grad_stream_kernel(const __grid_constant__ logit_rows<T> a)
{
#if __CUDA_ARCH__ >= 900
    TS_STREAM(s, T, S, 1, -INFINITY, a.rows, a.n, a.x);
    cross_entropy_grad_formula<T, S::vecs> f(a);
    f.fetch(s.row);
    s.run_held(f);
#endif
}

/* ------------------------------------------------------------------------- host side ---- */

/** Launches the pass. Sets *parts to the number of partial sums per row in a.totals. Returns
 * cudaErrorNotSupported if no kernel supports the row length on the device. If a row is a multiple
 * of 16 bytes, x and dx must be 16-byte aligned, which on_aligned() ensures. */
template <class T>
cudaError_t cross_entropy_grad_rows(const logit_rows<T> &a, int *parts, const ts_cuda_device *d,
                                    cudaStream_t stream)
{
    using table = aligned_rows<up_to<2048, row_fit<4>>, up_to<288, row_fit<3>>>;
    void (*kernel)(logit_rows<T>) = nullptr;
    row_grid g = find_rows<T, table, single_rows>(a.n, [&]<class S, int V>() {
        kernel = cross_entropy_grad_kernel<T, S, V>;
        return true;
    });
    *parts = 1;
    if (g.rows)
        return rows_launch(kernel, g, a.rows, stream, a);
    stream_grid s = find_stream<T, rows_wide_held>(a.n, a.rows, d, [&]<class S>() {
        kernel = cross_entropy_grad_stream_kernel<T, S>;
        return ring_bytes<T, S, 1>;
    });
    if (s.threads)
        *parts = (int)(s.threads / 32 * s.cluster);
    return stream_launch(kernel, s, stream_clusters(kernel, s, a.rows), stream, a);
}

} // namespace ts

#endif
