/**
 * @file group_rows.cuh
 * Norms, softmax and reductions over rows in the generated kernels of fused groups (source.c).
 * NVRTC compiles this file at run time; rows.c lists the ops.
 *
 * L threads hold a row in registers: thread t has the accesses t, t + L, t + 2 L, ... of V elements
 * each. Reductions combine lanes and warps in a fixed order.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_GROUP_ROWS_CUH
#define TS_CUDA_GROUP_ROWS_CUH

#include "backends/cuda/fuse/group.cuh"
#include "backends/cuda/softmax_exp.cuh"

namespace ts {

/** Type of an argument that is TS_NONE, or of a result that is not requested. */
struct absent {};

template <class X> constexpr bool is_array = false;
template <class T, int E> constexpr bool is_array<T[E]> = true;

/** Element e of this thread's part of a row, or the row's one element; `otherwise` if absent. */
template <class X>
__device__ __forceinline__ float element(const X &x, int e, float otherwise = 0)
{
    if constexpr (std::is_same_v<X, absent>)
        return otherwise;
    else if constexpr (is_array<X>)
        return widen(x[e]);
    else
        return widen(x);
}

/**
 * The threads of a block, and the functions of rows that they compute. L: threads per row, a power
 * of two or a multiple of 32; R: rows per block; A: accesses per thread; V: elements per access.
 * FULL: all accesses are inside their row, and all blocks have R rows. An array of A V numbers has
 * a thread's elements of a row, access by access.
 */
template <int L, int R, int A, int V, bool FULL> struct group_rows {
    static constexpr int elements = A * V, threads = L * R, lanes = L < 32 ? L : 32;
    static constexpr int warps = L / 32;
    uint32_t columns; /* elements of a row */
    uint32_t lane;    /* index of this thread in the row */
    bool some;        /* the row exists; not used if FULL */
    float *memory;    /* shared memory, 128 numbers per row; NULL if L <= 32 */
    int turn;         /* number of join() calls; they alternate between the halves of `memory` */

    __device__ __forceinline__ group_rows(uint32_t n, float *shared)
        : columns(n), lane(threadIdx.x % L), some(true), memory(shared), turn(0)
    {
        if constexpr (warps > 1)
            memory += threadIdx.x / L * 128;
    }
    /** First column of the thread's access a. */
    __device__ __forceinline__ uint32_t column(int a) const { return (a * L + lane) * V; }
    __device__ __forceinline__ bool inside(int a) const
    {
        return FULL || (some && column(a) < columns);
    }
    /** Loads the thread's elements of a row at address `row`; elements outside are 0. */
    template <class T>
    __device__ __forceinline__ void load(in_register_t<T> (&to)[A * V], const char *row) const
    {
        using word = word_of<vec<T, V>>;
#pragma unroll
        for (int a = 0; a < A; a++) {
            vec<T, V> v = {};
            if (inside(a)) {
                const word w = *(const word *)(row + (size_t)column(a) * sizeof(T));
                v = from_word<vec<T, V>>(w);
            }
#pragma unroll
            for (int k = 0; k < V; k++)
                to[a * V + k] = to_register(v.at[k]);
        }
    }
    template <class T>
    __device__ __forceinline__ void store(char *row, const in_register_t<T> (&from)[A * V]) const
    {
#pragma unroll
        for (int a = 0; a < A; a++) {
            vec<T, V> v;
#pragma unroll
            for (int k = 0; k < V; k++)
                v.at[k] = from_register<T>(from[a * V + k]);
            if (inside(a))
                *(word_of<vec<T, V>> *)(row + (size_t)column(a) * sizeof(T)) = to_word(v);
        }
    }
    /** Stores the one element that a row has in a result such as a sum. */
    template <class T>
    __device__ __forceinline__ void store_one(char *to, in_register_t<T> x) const
    {
        if (lane == 0 && (FULL || some))
            *(T *)to = from_register<T>(x);
    }
    /** Stores a block's partial sums as a line (columns). sums: this thread's sums over all rows
     * that it has computed; they are added over the threads that have the same columns. total:
     * shared memory for L A V numbers; not used if the block has one row or one warp. */
    __device__ __forceinline__ void store_sums(float *line, float (&sums)[A * V],
                                               float *total) const
    {
        constexpr int share = L < 32 ? 32 : L, shares = threads / share;
        auto of_row = [&](auto take) {
#pragma unroll
            for (int a = 0; a < A; a++)
#pragma unroll
                for (int k = 0; k < V; k++)
                    if (threadIdx.x % share < L && (FULL || column(a) < columns))
                        take(column(a) + k, sums[a * V + k]);
        };
#pragma unroll
        for (int e = 0; e < A * V; e++)
#pragma unroll
            for (int by = L; by < 32; by *= 2)
                sums[e] += __shfl_xor_sync(0xffffffffu, sums[e], by);
        if constexpr (shares > 1) {
            for (int r = 0; r < shares; r++) {
                __syncthreads();
                if (threadIdx.x / share == r)
                    of_row([&](uint32_t i, float x) { total[i] = r ? total[i] + x : x; });
            }
            __syncthreads();
            for (uint32_t i = threadIdx.x; i < columns; i += threads)
                line[i] = total[i];
        } else {
            of_row([&](uint32_t i, float x) { line[i] = x; });
        }
    }

    /** Reduces N numbers over the row's threads with op; each thread gets the results. All threads
     * of the block call. */
    template <int N, class OP> __device__ __forceinline__ void join(float (&x)[N], OP op)
    {
#pragma unroll
        for (int c = 0; c < N; c++)
#pragma unroll
            for (int by = lanes / 2; by; by /= 2)
                x[c] = op(x[c], __shfl_xor_sync(0xffffffffu, x[c], by));
        if constexpr (warps > 1) {
            static_assert(N <= 2, "memory for two numbers");
            float *mine = memory + (turn++ & 1) * 64;
            if (lane % 32 == 0)
#pragma unroll
                for (int c = 0; c < N; c++)
                    mine[c * 32 + lane / 32] = x[c];
            __syncthreads();
#pragma unroll
            for (int c = 0; c < N; c++) {
                x[c] = mine[c * 32];
#pragma unroll
                for (int w = 1; w < warps; w++)
                    x[c] = op(x[c], mine[c * 32 + w]);
            }
        }
    }
    /** The sum over the row of f(e), where e is the index of an element of this thread. */
    template <class F> __device__ __forceinline__ float sum_of(F f)
    {
        float x[1] = {0};
        each([&](int e) { x[0] += f(e); });
        join(x, [](float a, float b) { return a + b; });
        return x[0];
    }
    /** Two sums over the row: f(e, x[0], x[1]) adds element e to both. */
    template <class F> __device__ __forceinline__ void two_sums(float (&x)[2], F f)
    {
        x[0] = x[1] = 0;
        each([&](int e) { f(e, x[0], x[1]); });
        join(x, [](float a, float b) { return a + b; });
    }
    /** Calls f(e) for this thread's elements inside the row. */
    template <class F> __device__ __forceinline__ void each(F f) const
    {
#pragma unroll
        for (int a = 0; a < A; a++)
            if (inside(a))
#pragma unroll
                for (int k = 0; k < V; k++)
                    f(a * V + k);
    }

    /* ---- the ops ----
     * Parameters are the results, then the arguments, in the order of rows.c. Arguments may be
     * arrays of the thread's elements, one element per row, or `absent`. Results are rounded to T,
     * except f32 statistics (mean, rstd) and sums over all rows (sum_rows, dw, db), which are added
     * to. */

    /** put() sets element e of a result; put_one() sets the one element that a row has in it; add()
     * adds to element e. They do nothing if the result is absent. */
    template <class T, class Y> __device__ __forceinline__ void put(Y &y, int e, float x) const
    {
        if constexpr (!std::is_same_v<Y, absent>)
            y[e] = result<T, T>(x);
    }
    template <class Y> __device__ __forceinline__ void put_one(Y &y, float x) const
    {
        if constexpr (!std::is_same_v<Y, absent>)
            y = x;
    }
    template <class Y> __device__ __forceinline__ void add(Y &y, int e, float x) const
    {
        if constexpr (!std::is_same_v<Y, absent>)
            y[e] += x;
    }
    template <class T, class X> __device__ __forceinline__ void sum(in_register_t<T> &y, const X &x)
    {
        y = result<T, T>(sum_of([&](int e) { return element(x, e); }));
    }
    template <class T, class X>
    __device__ __forceinline__ void mean(in_register_t<T> &y, const X &x)
    {
        y = result<T, T>(sum_of([&](int e) { return element(x, e); }) / columns);
    }
    template <class T, class X>
    __device__ __forceinline__ void amax(in_register_t<T> &y, const X &x)
    {
        float top[1] = {-INFINITY};
        each([&](int e) { top[0] = fn::larger(top[0], element(x, e)); });
        join(top, [](float a, float b) { return fn::larger(a, b); });
        y = result<T, T>(top[0]);
    }
    template <class T, class X>
    __device__ __forceinline__ void amin(in_register_t<T> &y, const X &x)
    {
        float least[1] = {INFINITY};
        each([&](int e) { least[0] = fn::smaller(least[0], element(x, e)); });
        join(least, [](float a, float b) { return fn::smaller(a, b); });
        y = result<T, T>(least[0]);
    }
    template <class T, class Y, class X> __device__ __forceinline__ void sum_rows(Y &y, const X &x)
    {
        each([&](int e) { add(y, e, element(x, e)); });
    }

    template <class X> __device__ __forceinline__ float largest(const X &x)
    {
        float top[1] = {-INFINITY};
        each([&](int e) { top[0] = fmaxf(top[0], element(x, e)); });
        join(top, [](float a, float b) { return fmaxf(a, b); });
        return top[0];
    }
    template <class T, class Y, class X> __device__ __forceinline__ void softmax(Y &y, const X &x)
    {
        exp_from<T> above(largest(x));
        float e_x[A * V];
        float scale = 1 / sum_of([&](int e) { return e_x[e] = above(element(x, e)); });
        each([&](int e) { put<T>(y, e, e_x[e] * scale); });
    }
    template <class T, class Y, class X>
    __device__ __forceinline__ void log_softmax(Y &y, const X &x)
    {
        float top = largest(x);
        exp_from<T> above(top);
        float scale = logf(sum_of([&](int e) { return above(element(x, e)); }));
        each([&](int e) { put<T>(y, e, element(x, e) - top - scale); });
    }
    template <class T, class Y, class G, class X>
    __device__ __forceinline__ void softmax_backward(Y &dx, const G &g, const X &y)
    {
        float sum = sum_of([&](int e) { return element(g, e) * element(y, e); });
        each([&](int e) { put<T>(dx, e, element(y, e) * (element(g, e) - sum)); });
    }
    template <class T, class Y, class G, class X>
    __device__ __forceinline__ void log_softmax_backward(Y &dx, const G &g, const X &y)
    {
        float sum = sum_of([&](int e) { return element(g, e); });
        exp_from<T> exp_of(0);
        each([&](int e) { put<T>(dx, e, element(g, e) - exp_of(element(y, e)) * sum); });
    }

    /** y = (x - mean) rstd weight + bias, rstd = 1 / sqrt(variance + eps). The variance is computed
     * from the differences to a first estimate of the mean. The mean of these differences corrects
     * the estimate: for equal elements the mean is exact and the variance almost 0. */
    template <class T, class Y, class M, class S, class X, class W, class B>
    __device__ __forceinline__ void layer_norm(Y &y, M &mean, S &rstd, const X &x, const W &weight,
                                               const B &bias, float eps)
    {
        float n = columns, first = sum_of([&](int e) { return element(x, e); }) / n, sums[2];
        two_sums(sums, [&](int e, float &sum, float &squares) {
            float d = element(x, e) - first;
            sum += d;
            squares = fmaf(d, d, squares);
        });
        float shift = sums[0] / n, centre = first + shift,
              factor = rsqrtf(fmaxf(sums[1] / n - shift * shift, 0.0f) + eps);
        if (!(sums[1] == sums[1])) /* NaN, which fmaxf() dropped */
            factor = sums[1];
        put_one(mean, centre);
        put_one(rstd, factor);
        each([&](int e) {
            put<T>(y, e, fmaf((element(x, e) - centre) * factor, element(weight, e, 1),
                              element(bias, e)));
        });
    }
    /** y = x rstd weight, rstd = 1 / sqrt(avg(x x) + eps). */
    template <class T, class Y, class S, class X, class W>
    __device__ __forceinline__ void rms_norm(Y &y, S &rstd, const X &x, const W &weight, float eps)
    {
        float squares = sum_of([&](int e) { return element(x, e) * element(x, e); });
        float factor = rsqrtf(squares / columns + eps);
        put_one(rstd, factor);
        each([&](int e) { put<T>(y, e, element(x, e) * factor * element(weight, e, 1)); });
    }
    /** With h = (x - mean) rstd and q = g weight: dx = rstd (q - avg(q) - h avg(q h)), dw += g h,
     * db += g. */
    template <class T, class Y, class DW, class DB, class G, class X, class W>
    __device__ __forceinline__ void layer_norm_backward(Y &dx, DW &dw, DB &db, const G &g,
                                                        const X &x, float mean, float rstd,
                                                        const W &weight)
    {
        float sums[2] = {0, 0};
        if constexpr (!std::is_same_v<Y, absent>)
            two_sums(sums, [&](int e, float &q_sum, float &qh_sum) {
                float q = element(g, e) * element(weight, e, 1);
                q_sum += q;
                qh_sum = fmaf(q, (element(x, e) - mean) * rstd, qh_sum);
            });
        float n = columns, shift = sums[0] / n, along = sums[1] / n;
        each([&](int e) {
            float h = (element(x, e) - mean) * rstd, q = element(g, e) * element(weight, e, 1);
            put<T>(dx, e, rstd * (q - shift - h * along));
            add(dw, e, element(g, e) * h);
            add(db, e, element(g, e));
        });
    }
    /** With h = x rstd and q = g weight: dx = rstd (q - h avg(q h)), dw += g h. */
    template <class T, class Y, class DW, class G, class X, class W>
    __device__ __forceinline__ void rms_norm_backward(Y &dx, DW &dw, const G &g, const X &x,
                                                      float rstd, const W &weight)
    {
        float along = 0;
        if constexpr (!std::is_same_v<Y, absent>)
            along = sum_of([&](int e) {
                return element(g, e) * element(weight, e, 1) * element(x, e) * rstd;
            }) / columns;
        each([&](int e) {
            float h = element(x, e) * rstd, q = element(g, e) * element(weight, e, 1);
            put<T>(dx, e, rstd * (q - h * along));
            add(dw, e, element(g, e) * h);
        });
    }
};

} // namespace ts

#endif
