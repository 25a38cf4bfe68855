/**
 * @file norm_backward_rows.cuh  Gradients of layer and RMS normalisation over rows; norm.cu calls
 * norm_backward_rows().
 *
 * Clusters of blocks stream rows through shared memory (row_stream.cuh). A thread owns the same
 * columns in every row of its cluster, so it keeps the sums over rows for the gradients of weight
 * and bias in registers. A second kernel, column_sum_kernel(), adds the sums of the clusters.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_NORM_BACKWARD_ROWS_CUH
#define TS_CUDA_NORM_BACKWARD_ROWS_CUH

#include "backends/cuda/launch_stream.cuh"

namespace ts {

/** Elements of a line of partial sums for n columns: n rounded up to whole vectors of T. */
template <class T> constexpr int64_t line_of(int64_t n)
{
    return (n + vec16<T> - 1) / vec16<T> * vec16<T>;
}

/** Bytes of shared memory for weights; 0 for f32, whose weights are kept in registers. */
template <class T, class S>
constexpr int kept_bytes = sizeof(T) == 4 ? 0 : S::threads * S::vecs * 16;

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/**
 * Formula of row_stream::run(): computes dx, and each thread's sums for the gradients of weight and
 * bias. With h = (x - mean) rstd and q = g weight: dx = rstd (q - avg(q) - h avg(q h)). For RMS,
 * mean = 0 and the term avg(q) is absent.
 */
template <class T, class S, bool RMS> struct norm_backward_formula : plain_sums {
    static constexpr int V = vec16<T>;
    static constexpr bool kept = !kept_bytes<T, S>; /* weights in registers */
    /* fair: registers per thread if S::blocks blocks share a multiprocessor's 65,536; available:
       the same, at most 255; sums: registers for sums; few: the sums leave enough registers to load
       vectors unconditionally. */
    static constexpr int fair = 65536 / (S::threads * S::blocks),
                         available = fair < 255 ? fair : 255, sums = S::vecs * V * (RMS ? 1 : 2);
    static constexpr bool few = S::warps > 1 && available >= 2.2 * sums;
    T *dx; /* NULL: not requested */
    vec<T, V> w[kept ? S::vecs : 1], *w_shared; /* this thread's weights: registers or shared */
    const float *mean, *rstd;
    float2 next, even, odd; /* mean and rstd of the next row, of the latest row with an even number,
                               and of the latest row with an odd number (row_stream::turn) */
    float dw[S::vecs][V], db[RMS ? 1 : S::vecs][V]; /* sums over the rows */

    /** Calls f(j, grad, x, weight) with the elements of each vector j of the row. */
    template <class R, class F> __device__ __forceinline__ void each(const R &r, F &&f) const
    {
#pragma unroll
        for (int j = 0; j < S::vecs; j++)
            if (few ? r.used(j) : r.stored(j)) { /* gradients outside the row are 0 */
                float up[V], in[V], wj[V];
                r.get(0, j, up);
                r.get(1, j, in);
                unpack<T, V>(kept ? w[j] : w_shared[j * S::threads], wj);
                f(j, up, in, wj);
            }
    }
    /** Clears the sums, and loads the weights and the first row's mean and rstd. */
    template <class R> __device__ __forceinline__ void begin(const R &r, const T *weight)
    {
#pragma unroll
        for (int j = 0; j < S::vecs; j++) {
#pragma unroll
            for (int k = 0; k < V; k++) {
                dw[j][k] = 0;
                if constexpr (!RMS)
                    db[j][k] = 0;
            }
            (kept ? w[j] : w_shared[j * S::threads]) = r.there(weight, j, narrow<T>(1.0f));
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
        float centre = next.x, factor = next.y;
        if (r.turn & 1)
            odd = next;
        else
            even = next;
        fetch(r.row + r.step, r.rows);
        float2 sum = {0, 0};
        each(r, [&](int j, const float(&up)[V], const float(&in)[V], const float(&wj)[V]) {
#pragma unroll
            for (int k = 0; k < V; k++) {
                /* the subtraction is first, so that h is exactly 0 at the mean; a multiply-add
                 * would leave a rounding error */
                float h = (RMS ? in[k] : in[k] - centre) * factor, q = up[k] * wj[k];
                sum.x = fmaf(q, h, sum.x);
                dw[j][k] = fmaf(up[k], h, dw[j][k]);
                if constexpr (!RMS) {
                    sum.y += q;
                    db[j][k] += up[k];
                }
            }
        });
        return sum;
    }
    template <class R> __device__ __forceinline__ void second(const R &r, float2 whole) const
    {
        if (!dx)
            return;
        float2 here = r.turn & 1 ? odd : even;
        float centre = here.x, factor = here.y, scale = 1 / (float)r.n;
        float along = -factor * whole.x * scale, slope = along * factor;
        float shift = RMS ? 0 : fmaf(-slope, centre, -factor * whole.y * scale);
        each(r, [&](int j, float(&up)[V], const float(&in)[V], const float(&wj)[V]) {
#pragma unroll
            for (int k = 0; k < V; k++)
                up[k] = fmaf(factor * up[k], wj[k], fmaf(slope, in[k], shift));
            r.put(dx, j, up);
        });
    }
    /** Writes the block's f32 sums of its columns to `out`, a line of whole vectors. */
    template <class R>
    __device__ __forceinline__ void end(const R &r, float *out,
                                        const float (&sums)[S::vecs][V]) const
    {
#pragma unroll
        for (int j = 0; j < S::vecs; j++)
            if (r.inside(j))
                store_whole(reinterpret_cast<vec<float, V> *>(out + r.column(j)),
                            pack<float, V>(sums[j]));
    }
};

#endif /* sm_90 */

/** Computes dx and partial sums for the gradients of weight and bias: cluster i writes row i of
 * dweight and dbias, each (clusters, line_of<T>(n)). dx, dweight, dbias NULL: not requested. mean
 * is not read with RMS. Empty before sm_90. */
template <class T, class S, bool RMS>
__global__ void __launch_bounds__(S::threads, S::blocks)
    norm_backward_stream_kernel(const T *g, const T *x, const T *weight, const float *mean,
                                const float *rstd, T *dx, float *dweight, float *dbias,
                                int64_t rows, int64_t n)
{
#if __CUDA_ARCH__ >= 900
    TS_STREAM(s, T, S, 2, 0.0f, rows, n, g, x);
    norm_backward_formula<T, S, RMS> f;
    f.dx = dx, f.mean = mean, f.rstd = rstd;
    f.w_shared = reinterpret_cast<vec<T, vec16<T>> *>(ts_ring + ring_bytes<T, S, 2>) + threadIdx.x;
    f.begin(s, weight);
    s.run(f);
    int64_t line = blockIdx.x / s.blocks * line_of<T>(n);
    if (dweight)
        f.end(s, dweight + line, f.dw);
    if constexpr (!RMS)
        if (dbias)
            f.end(s, dbias + line, f.db);
#endif
}

/**
 * Column sums of one or two (lines, line_of<T>(n)) matrices in a fixed order. A block adds COLUMNS
 * columns and divides the lines into SHARES shares. Two matrices are adjacent in `part`; an output
 * that is NULL has no matrix.
 */
template <class T, int COLUMNS, int SHARES>
__global__ void __launch_bounds__(COLUMNS *SHARES)
    column_sum_kernel(const wide_t<T> *part, T *first, T *second, int64_t lines, int64_t n)
{
    using A = wide_t<T>;
    __shared__ A share[SHARES][COLUMNS];
    T *out = blockIdx.y || !first ? second : first;
    part += blockIdx.y * lines * line_of<T>(n);
    int64_t column = (int64_t)blockIdx.x * COLUMNS + threadIdx.x;
    A sum = 0;
    if (column < n)
#pragma unroll 8
        for (int64_t i = threadIdx.y; i < lines; i += SHARES)
            sum += part[i * line_of<T>(n) + column];
    share[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || column >= n)
        return;
#pragma unroll
    for (int y = 1; y < SHARES; y++)
        sum += share[y][threadIdx.x];
    out[column] = narrow<T>(sum);
}

/* ------------------------------------------------------------------------- host side ---- */

/** Launches column_sum_kernel() for the outputs that are not NULL. */
template <class T>
cudaError_t column_sums(const wide_t<T> *part, T *first, T *second, int64_t lines, int64_t n,
                        cudaStream_t stream)
{
    unsigned outputs = (first != nullptr) + (second != nullptr);
    auto launch = [&]<int COLUMNS, int SHARES>() {
        dim3 grid((unsigned)((n + COLUMNS - 1) / COLUMNS), outputs);
        column_sum_kernel<T, COLUMNS, SHARES>
            <<<grid, dim3(COLUMNS, SHARES), 0, stream>>>(part, first, second, lines, n);
    };
    if (outputs && lines <= 128)
        launch.template operator()<32, 4>();
    else if (outputs && lines <= 512)
        launch.template operator()<32, 16>();
    else if (outputs)
        launch.template operator()<8, 64>();
    return cudaPeekAtLastError();
}

/**
 * Launches the backward pass over rows for T f32, bf16 or f16. g is the upstream gradient and x the
 * forward input; g, x and dx are (rows, n), weight, dweight and dbias (n), mean and rstd (rows).
 * weight may be NULL (all 1); dx, dweight and dbias may be NULL (not requested). With RMS, mean and
 * dbias are NULL. If a row is a multiple of 16 bytes, all tensors must be aligned to 16 bytes
 * (on_aligned()).
 * @param scratch  (lines, line_of<T>(n)) numbers for each requested one of dweight and dbias. lines
 *                 is the number of clusters that can be resident, at most `rows`; the caller
 *                 allocates min(rows, 16 * d->sms) lines
 * @return cudaErrorNotSupported if no kernel supports the row length on the device
 */
template <class T, bool RMS>
cudaError_t norm_backward_rows(const T *g, const T *x, const T *weight, const wide_t<T> *mean,
                               const wide_t<T> *rstd, T *dx, T *dweight, T *dbias,
                               wide_t<T> *scratch, int64_t rows, int64_t n, const ts_cuda_device *d,
                               cudaStream_t stream)
{
    void (*kernel)(const T *, const T *, const T *, const float *, const float *, T *, float *,
                   float *, int64_t, int64_t) = nullptr;
    stream_grid grid = find_stream<T, rows_sum>(n, rows, d, [&]<class S>() {
        kernel = norm_backward_stream_kernel<T, S, RMS>;
        return ring_bytes<T, S, 2> + kept_bytes<T, S>;
    });
    int64_t lines = stream_clusters(kernel, grid, rows);
    float *dw = dweight ? scratch : nullptr,
          *db = dbias ? scratch + (dweight ? lines * line_of<T>(n) : 0) : nullptr;
    cudaError_t e = stream_launch(kernel, grid, lines, stream, g, x, weight, mean, rstd, dx, dw, db,
                                  rows, n);
    return e == cudaSuccess ? column_sums<T>(scratch, dweight, dbias, lines, n, stream) : e;
}

} // namespace ts

#endif
