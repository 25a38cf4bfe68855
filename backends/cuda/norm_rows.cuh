/**
 * @file norm_rows.cuh  Layer and RMS normalisation over rows, forward and backward.
 *
 * In the backward a thread owns the same columns in every row of its block, so sums over rows for the
 * weight's and the bias' gradients stay in registers; a second kernel adds the blocks.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_NORM_ROWS_CUH
#define TS_CUDA_NORM_ROWS_CUH

#include "backends/cuda/row_stream.cuh"

namespace ts {

/* ------------------------------------------------------------------- rows in registers ---- */

template <class T, class S, int V, bool RMS>
__global__ void __launch_bounds__(S::threads *S::rows)
    norm_kernel(const T *x, const T *weight, const T *bias, T *y, wide_t<T> *mean, wide_t<T> *rstd, int64_t rows, int64_t n,
                double eps)
{
    using A = wide_t<T>;
    using part_t = row_part<T, S, V>;
    A *place = row_place<S, 1, A>();
    int64_t r = row_index<S>();
    int64_t m = r < rows ? n : 0;
    part_t part;
    part.load(x + r * n, m, narrow<T>((A)0));
    A scale = (A)1 / (A)n, centre = 0, sums[1] = {0}, z[V], w[V], b[V];
    if constexpr (!RMS) {
#pragma unroll
        for (int j = 0; j < S::vecs; j++) {
            unpack<T, V>(part.at[j], z);
#pragma unroll
            for (int k = 0; k < V; k++)
                sums[0] += z[k];
        }
        row_reduce<S, op_sum>(sums, place, 0);
        centre = sums[0] * scale;
        sums[0] = 0;
    }
#pragma unroll
    for (int j = 0; j < S::vecs; j++)
        if (part.inside(j, n)) {
            unpack<T, V>(part.at[j], z);
#pragma unroll
            for (int k = 0; k < V; k++)
                sums[0] += (z[k] - centre) * (z[k] - centre);
        }
    row_reduce<S, op_sum>(sums, place, 1);
    A factor = rsqrt(sums[0] * scale + (A)eps), minus = -centre * factor;
    if (part_t::first() == 0 && m) {
        if (mean)
            mean[r] = centre;
        if (rstd)
            rstd[r] = factor;
    }
#pragma unroll
    for (int j = 0; j < S::vecs; j++) {
        int64_t i = (int64_t)(part_t::first() + j * S::threads) * V;
        if (i >= m)
            continue;
        unpack<T, V>(part.at[j], z);
        if (weight)
            unpack<T, V>(*reinterpret_cast<const vec<T, V> *>(weight + i), w);
        if (bias)
            unpack<T, V>(*reinterpret_cast<const vec<T, V> *>(bias + i), b);
#pragma unroll
        for (int k = 0; k < V; k++) {
            z[k] = z[k] * factor + minus;
            if (weight)
                z[k] *= w[k];
            if (bias)
                z[k] += b[k];
        }
        part.at[j] = pack<T, V>(z);
    }
    part.store(y + r * n, m);
}

/* ------------------------------------------------------------- rows in shared memory ---- */

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/** The sum, and the sum of squares of distances from the mean (Chan, Golub, LeVeque 1983). */
struct mean_sums {
    __device__ __forceinline__ float join(float a, float b) const { return a + b; }
    __device__ __forceinline__ float adjust(float2 own, float sum, float own_count, float whole_count) const
    {
        float d = own.x - own_count * sum / whole_count;
        return own_count > 0 ? own.y + d * d / own_count : 0;
    }
};

template <class T, class S, bool RMS> struct norm_formula : mean_sums {
    static constexpr int V = vec16<T>;
    T *y;
    float *mean, *rstd, eps;
    vec<T, V> w[S::vecs], b[S::vecs];

    template <class R> __device__ __forceinline__ void begin(const R &r, const T *weight, const T *bias)
    {
#pragma unroll
        for (int j = 0; j < S::vecs; j++) {
#pragma unroll
            for (int k = 0; k < V; k++) {
                w[j].at[k] = narrow<T>(1.0f);
                b[j].at[k] = narrow<T>(0.0f);
            }
            if (weight && r.inside(j))
                w[j] = *reinterpret_cast<const vec<T, V> *>(weight + r.column(j));
            if (bias && r.inside(j))
                b[j] = *reinterpret_cast<const vec<T, V> *>(bias + r.column(j));
        }
    }
    __device__ __forceinline__ float adjust(float2 own, float sum, float own_count, float whole_count) const
    {
        return RMS ? own.y : mean_sums::adjust(own, sum, own_count, whole_count);
    }
    template <class R> __device__ __forceinline__ float2 first(const R &r) const
    {
        /* relative to an element of this thread's own: what it costs in precision, it brings in distance */
        float z[V], sum = 0, squares = 0, pivot = 0, own = r.own_count();
#pragma unroll
        for (int j = 0; j < S::vecs; j++)
            if (r.inside(j)) {
                r.get(0, j, z);
                if (!RMS && j == 0)
                    pivot = z[0];
#pragma unroll
                for (int k = 0; k < V; k++) {
                    float d = z[k] - pivot;
                    sum += d;
                    squares = fmaf(d, d, squares);
                }
            }
        if (!RMS && own > 0) {
            squares = fmaxf(squares - sum * sum / own, 0.0f);
            sum = fmaf(own, pivot, sum);
        }
        return make_float2(sum, squares);
    }
    template <class R> __device__ __forceinline__ void second(const R &r, float2 whole) const
    {
        float n = (float)r.n, centre = RMS ? 0 : whole.x / n, factor = rsqrtf(whole.y / n + eps), minus = -centre * factor;
        if (r.column(0) == 0) {
            if (mean)
                mean[r.row] = centre;
            if (rstd)
                rstd[r.row] = factor;
        }
#pragma unroll
        for (int j = 0; j < S::vecs; j++)
            if (r.inside(j)) {
                float z[V], wz[V], bz[V];
                r.get(0, j, z);
                unpack<T, V>(w[j], wz);
                unpack<T, V>(b[j], bz);
#pragma unroll
                for (int k = 0; k < V; k++)
                    z[k] = fmaf(fmaf(z[k], factor, minus), wz[k], bz[k]);
                r.put(y, j, z);
            }
    }
};

/**
 * dx, and for each block its share of the weight's and the bias' gradients. With h = (x - mean) rstd
 * and q = g weight: dx = rstd (q - avg(q) - h avg(q h)); RMS lacks avg(q).
 */
template <class T, class S, bool RMS> struct norm_backward_formula : plain_sums {
    static constexpr int V = vec16<T>;
    T *dx;
    vec<T, V> *w; /* of this thread, in shared memory */
    const float *mean, *rstd;
    float2 next, even, odd; /* mean and rstd of the row to come; -mean rstd and rstd of those that are worked on */
    float dw[S::vecs][V], db[RMS ? 1 : S::vecs][V];

    template <class R> __device__ __forceinline__ void begin(const R &r, const T *weight)
    {
#pragma unroll
        for (int j = 0; j < S::vecs; j++) {
            vec<T, V> one;
#pragma unroll
            for (int k = 0; k < V; k++) {
                one.at[k] = narrow<T>(1.0f);
                dw[j][k] = 0;
                if constexpr (!RMS)
                    db[j][k] = 0;
            }
            if (r.inside(j))
                w[j * S::threads] = weight ? *reinterpret_cast<const vec<T, V> *>(weight + r.column(j)) : one;
        }
        fetch(r.row, r.rows);
    }
    __device__ __forceinline__ void fetch(int64_t row, int64_t rows)
    {
        if (row < rows)
            next = make_float2(RMS ? 0 : mean[row], rstd[row]);
    }
    template <class R> __device__ __forceinline__ float2 first(const R &r)
    {
        float factor = next.y, minus = -next.x * factor;
        if (r.turn & 1)
            odd = make_float2(minus, factor);
        else
            even = make_float2(minus, factor);
        fetch(r.row + r.step, r.rows);
        float2 sum = {0, 0};
#pragma unroll
        for (int j = 0; j < S::vecs; j++)
            if (r.inside(j)) {
                float up[V], in[V], wj[V];
                r.get(0, j, up);
                r.get(1, j, in);
                unpack<T, V>(w[j * S::threads], wj);
#pragma unroll
                for (int k = 0; k < V; k++) {
                    float h = fmaf(in[k], factor, minus), q = up[k] * wj[k];
                    sum.x = fmaf(q, h, sum.x);
                    dw[j][k] = fmaf(up[k], h, dw[j][k]);
                    if constexpr (!RMS) {
                        sum.y += q;
                        db[j][k] += up[k];
                    }
                }
            }
        return sum;
    }
    template <class R> __device__ __forceinline__ void second(const R &r, float2 whole) const
    {
        if (!dx)
            return;
        float2 here = r.turn & 1 ? odd : even;
        float minus = here.x, factor = here.y, scale = 1 / (float)r.n;
        float along = -factor * whole.x * scale, slope = along * factor;
        float shift = RMS ? 0 : fmaf(along, minus, -factor * whole.y * scale);
#pragma unroll
        for (int j = 0; j < S::vecs; j++)
            if (r.inside(j)) {
                float up[V], in[V], wj[V];
                r.get(0, j, up);
                r.get(1, j, in);
                unpack<T, V>(w[j * S::threads], wj);
#pragma unroll
                for (int k = 0; k < V; k++)
                    up[k] = fmaf(factor * up[k], wj[k], fmaf(slope, in[k], shift));
                r.put(dx, j, up);
            }
    }
    /** Writes the block's line of sums. */
    template <class R> __device__ __forceinline__ void end(const R &r, float *out, const float (&sums)[S::vecs][V]) const
    {
#pragma unroll
        for (int j = 0; j < S::vecs; j++)
            if (r.inside(j))
#pragma unroll
                for (int k = 0; k < V; k += 4)
                    *reinterpret_cast<float4 *>(out + r.column(j) + k) =
                        make_float4(sums[j][k], sums[j][k + 1], sums[j][k + 2], sums[j][k + 3]);
    }
};

#endif /* sm_90 */

template <class T, class S, bool RMS>
__global__ void __launch_bounds__(S::threads, S::blocks)
    norm_stream_kernel(const T *x, const T *weight, const T *bias, T *y, float *mean, float *rstd, int64_t rows, int64_t n,
                       float eps)
{
#if __CUDA_ARCH__ >= 900
    TS_STREAM(s, T, S, 1, rows, n, x);
    norm_formula<T, S, RMS> f;
    f.y = y, f.mean = mean, f.rstd = rstd, f.eps = eps;
    f.begin(s, weight, bias);
    s.run(f);
#endif
}

template <class T, class S, bool RMS>
__global__ void __launch_bounds__(S::threads, S::blocks)
    norm_backward_stream_kernel(const T *g, const T *x, const T *weight, const float *mean, const float *rstd, T *dx,
                                float *dweight, float *dbias, int64_t rows, int64_t n)
{
#if __CUDA_ARCH__ >= 900
    TS_STREAM(s, T, S, 2, rows, n, g, x);
    norm_backward_formula<T, S, RMS> f;
    f.dx = dx, f.mean = mean, f.rstd = rstd;
    f.w = reinterpret_cast<vec<T, vec16<T>> *>(ts_ring + ring_bytes<T, S, 2>) + threadIdx.x;
    f.begin(s, weight);
    s.run(f);
    int64_t line = (int64_t)(blockIdx.x / S::cluster) * n;
    if (dweight)
        f.end(s, dweight + line, f.dw);
    if constexpr (!RMS)
        if (dbias)
            f.end(s, dbias + line, f.db);
#endif
}

/**
 * Sums of columns of (lines, n) in a fixed order: 32 columns and 32 shares of the lines a block. Two
 * matrices at once, one after the other in memory; an output that is NULL has none.
 */
template <class T>
__global__ void __launch_bounds__(1024) column_sum_kernel(const wide_t<T> *part, T *first, T *second, int64_t lines, int64_t n)
{
    using A = wide_t<T>;
    __shared__ A share[32][33];
    T *out = blockIdx.y || !first ? second : first;
    part += blockIdx.y * lines * n;
    int64_t column = (int64_t)blockIdx.x * 32 + threadIdx.x;
    A sum = 0;
    if (column < n)
#pragma unroll 4
        for (int64_t i = threadIdx.y; i < lines; i += 32)
            sum += part[i * n + column];
    share[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    sum = share[threadIdx.x][threadIdx.y];
#pragma unroll
    for (int lane = 16; lane; lane >>= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, lane);
    column = (int64_t)blockIdx.x * 32 + threadIdx.y;
    if (threadIdx.x == 0 && column < n)
        out[column] = narrow<T>(sum);
}

/* ------------------------------------------------------------------------- host side ---- */

template <class T, bool RMS>
cudaError_t norm_rows(const T *x, const T *weight, const T *bias, T *y, wide_t<T> *mean, wide_t<T> *rstd, int64_t rows,
                      int64_t n, double eps, const ts_cuda_device *d, cudaStream_t stream)
{
    bool aligned = aligned16(x) && aligned16(y) && aligned16(weight) && aligned16(bias);
    cudaError_t e = stream_dispatch<T, rows_wide_kept>(n, aligned, d, [&]<class S>() {
        return stream_launch<S>(norm_stream_kernel<T, S, RMS>, ring_bytes<T, S, 1>, rows, d->sms, stream, [](int64_t) {}, x,
                                weight, bias, y, mean, rstd, rows, n, eps);
    });
    if (e == cudaErrorNotSupported)
        e = rows_dispatch<T>(n, aligned, [&]<class S, int V>() {
            return rows_launch<S>(norm_kernel<T, S, V, RMS>, rows, stream, x, weight, bias, y, mean, rstd, rows, n, eps);
        });
    return e;
}

/** Adds the lines of one or two matrices of sums. */
template <class T>
cudaError_t column_sums(const wide_t<T> *part, T *first, T *second, int64_t lines, int64_t n, cudaStream_t stream)
{
    dim3 grid((unsigned)((n + 31) / 32), (first != nullptr) + (second != nullptr));
    if (grid.y)
        column_sum_kernel<T><<<grid, dim3(32, 32), 0, stream>>>(part, first, second, lines, n);
    return cudaPeekAtLastError();
}

/** scratch: a line of n for each block that stays, for each sum that is wanted. */
template <class T, bool RMS>
cudaError_t norm_backward_rows(const T *g, const T *x, const T *weight, const wide_t<T> *mean, const wide_t<T> *rstd, T *dx,
                               T *dweight, T *dbias, wide_t<T> *scratch, int64_t rows, int64_t n, const ts_cuda_device *d,
                               cudaStream_t stream)
{
    bool aligned = aligned16(x) && aligned16(g) && aligned16(dx) && aligned16(weight);
    return stream_dispatch<T, rows_sum>(n, aligned, d, [&]<class S>() {
        constexpr int shared = ring_bytes<T, S, 2> + S::threads * S::vecs * 16;
        float *dw = nullptr, *db = nullptr;
        int64_t lines = 0;
        auto place = [&](int64_t clusters) {
            lines = clusters;
            dw = dweight ? scratch : nullptr;
            db = dbias ? scratch + (dweight ? lines * n : 0) : nullptr;
        };
        cudaError_t e = stream_launch<S>(norm_backward_stream_kernel<T, S, RMS>, shared, rows, d->sms, stream, place, g, x,
                                         weight, mean, rstd, dx, std::ref(dw), std::ref(db), rows, n);
        return e == cudaSuccess ? column_sums<T>(scratch, dweight, dbias, lines, n, stream) : e;
    });
}

} // namespace ts

#endif
