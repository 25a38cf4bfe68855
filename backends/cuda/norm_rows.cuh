/**
 * @file norm_rows.cuh  Layer and RMS normalisation over rows, of a tensor or of a sum of two;
 * norm.cu calls norm_forward().
 *
 * One reduction combines mean and variance. The parts of a row are the elements of one thread, then
 * those of one warp; each part contributes its mean and its sum of squared deviations from this
 * mean. Means are added as differences from the first part's mean, so for equal elements the mean
 * is exact and the variance is 0.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_NORM_ROWS_CUH
#define TS_CUDA_NORM_ROWS_CUH

#include "backends/cuda/launch_stream.cuh"

namespace ts {

/** Arguments of a forward pass, for T float, bf16 or f16. Tensors are contiguous: x, residual, y
 * and sum (rows, n), weight and bias (n), mean and rstd (rows). rstd is 1 / sqrt(variance + eps);
 * RMS takes the mean of the squares in place of the variance. */
template <class T> struct norm_rows {
    const T *x, *residual;  /* residual: only with ADD, which normalizes x + residual */
    const T *weight, *bias; /* NULL: none; an RMS norm has no bias */
    T *y, *sum;             /* sum: only with ADD, receives x + residual; NULL: not requested */
    float *mean, *rstd;     /* NULL: not requested */
    int64_t rows, n;
    float eps;
};

/** Formula of combine() (rows.cuh) for parts (mean, sum of squared deviations), after Chan, Golub
 * and LeVeque (1983); RMS: parts (0, sum of squares). */
template <bool RMS> struct norm_sums {
    __device__ __forceinline__ float2 none() const { return make_float2(0, 0); }
    __device__ __forceinline__ float base_of(float mean, int width) const
    {
        return RMS ? 0 : __shfl_sync(0xffffffffu, mean, 0, width);
    }
    __device__ __forceinline__ float share(float mean, float base, float count) const
    {
        return RMS ? 0 : count * (mean - base);
    }
    __device__ __forceinline__ float join(float a, float b) const { return a + b; }
    __device__ __forceinline__ float whole(float sum, float base, float count) const
    {
        return RMS || count == 0 ? 0 : base + __fdividef(sum, count);
    }
    __device__ __forceinline__ float adjust(float2 own, float sum, float own_count,
                                            float whole_count) const
    {
        if (RMS)
            return own.y;
        float d = own.x - own_count * __fdividef(sum, whole_count);
        return own_count > 0 ? own.y + __fdividef(d * d, own_count) : 0;
    }
};

/** A thread's mean and sum of squared deviations, accumulated relative to its first element; with
 * RMS 0 and the sum of squares. */
template <bool RMS> struct norm_own_sums {
    float pivot = 0, sum = 0, squares = 0;

    /** Adds V elements. `some`: 1, or 0 if they are outside the row; `first`: the first call. */
    template <int V>
    __device__ __forceinline__ void take(const float (&z)[V], float some, bool first)
    {
        if (!RMS && first)
            pivot = z[0];
        float shift = -pivot * some;
#pragma unroll
        for (int k = 0; k < V; k++) {
            float d = RMS ? z[k] : fmaf(z[k], some, shift);
            if (!RMS)
                sum += d;
            squares = fmaf(d, d, squares);
        }
    }
    /** Adds the first `count` of V elements; the others are 0. */
    template <int V>
    __device__ __forceinline__ void take_some(float (&z)[V], int count, bool first)
    {
        if (!RMS && first)
            pivot = z[0];
#pragma unroll
        for (int k = 0; k < V; k++)
            z[k] = RMS || k < count ? z[k] : pivot;
        take(z, 1, false);
    }
    /** The two numbers of a thread with `count` elements. */
    __device__ __forceinline__ float2 of(float count) const
    {
        if (RMS || count == 0)
            return make_float2(0, squares);
        return make_float2(pivot + __fdividef(sum, count),
                           fmaxf(squares - __fdividef(sum * sum, count), 0.0f));
    }
};

/** A row's mean (`centre`, 0 with RMS) and rstd (`factor`). */
template <bool RMS> struct norm_factor {
    float centre, factor;

    __device__ __forceinline__ norm_factor(float2 whole, float count, float eps)
    {
        centre = whole.x;
        factor = rsqrtf(__fdividef(whole.y, count) + eps);
    }
    /** Stores the row's mean and rstd, where requested. */
    template <class T>
    __device__ __forceinline__ void leave(const norm_rows<T> &a, int64_t row) const
    {
        if (a.mean)
            a.mean[row] = centre;
        if (a.rstd)
            a.rstd[row] = factor;
    }
    /** Replaces elements z of the row by the result. */
    template <class T, int V>
    __device__ __forceinline__ void apply(float (&z)[V], const vec<T, V> &weight,
                                          const vec<T, V> &bias) const
    {
        float w[V], b[V];
        unpack<T, V>(weight, w);
        unpack<T, V>(bias, b);
#pragma unroll
        for (int k = 0; k < V; k++)
            z[k] = RMS ? z[k] * factor * w[k] : fmaf((z[k] - centre) * factor, w[k], b[k]);
    }
};

/** x + y, rounded to T. */
template <class T, int V>
__device__ __forceinline__ vec<T, V> rounded_sum(const vec<T, V> &x, const vec<T, V> &y)
{
    float a[V], b[V];
    unpack<T, V>(x, a);
    unpack<T, V>(y, b);
#pragma unroll
    for (int k = 0; k < V; k++)
        a[k] += b[k];
    return pack<T, V>(a);
}

/* ------------------------------------------------------------------- rows in registers ---- */

/** True if a kernel for bf16 or f16 requires weight and, except with RMS, bias to be present,
 * because testing for them would spill registers. */
template <class T, class S, bool ADD>
constexpr bool norm_with_all =
    is_half<T> && S::dense && (S::fits ? S::vecs >= (ADD ? 4 : 5) : S::vecs == 8);

/** Threads per multiprocessor that __launch_bounds__ requests: fewer where a thread needs more
 * registers. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int norm_threads_with_all = 512;
#else
constexpr int norm_threads_with_all = 1024;
#endif
template <class T, class S, int V, bool ADD>
constexpr int norm_threads = norm_with_all<T, S, ADD> ? norm_threads_with_all
                             : S::dense               ? 1024
                             : V == 1 || ADD          ? 512
                                                      : 640;

/** Normalizes rows that fit in registers. */
template <class T, class S, int V, bool RMS, bool ADD>
__global__ void __launch_bounds__(S::most, norm_threads<T, S, V, ADD> / S::most)
    norm_kernel(const __grid_constant__ norm_rows<T> a)
{
    using part_t = row_part<T, S, V, false>;
    float2 *memory = row_memory<S, 1, float2>();
    int64_t n = row_elements<S, V>(a.n);
    int64_t r = row_index<S>(), m = S::rows == 1 || r < a.rows ? n : 0, at = r * n;
    read_once read(a.rows * n * (int64_t)sizeof(T));
    part_t row;
    row.load(a.x + at, m, narrow<T>(0.0f), read);
    if constexpr (ADD) {
        part_t residual;
        residual.load(a.residual + at, m, narrow<T>(0.0f), read);
#pragma unroll
        for (int j = 0; j < S::vecs; j++)
            row.at[j] = rounded_sum<T, V>(row.at[j], residual.at[j]);
        if (a.sum)
            row.store(a.sum + at, m);
    }
    norm_own_sums<RMS> own;
    float count = 0, z[V];
#pragma unroll
    for (int j = 0; j < S::vecs; j++) {
        float some = part_t::inside(j, m) ? 1 : 0;
        count += some * V;
        unpack<T, V>(row.at[j], z);
        own.take(z, some, j == 0);
    }
    norm_factor<RMS> f(row_combine<S, V>(own.of(count), count, (int)n, norm_sums<RMS>(), memory),
                       (float)n, a.eps);
    if (part_t::first() == 0 && m)
        f.leave(a, r);
    /* with_all: weight and bias are known to be present. Without the tests per vector the kernel is
       3 % faster (docs/decisions.md, "Norms have two loops") but needs more registers. */
    auto write = [&](auto with_all) {
        const T *weight = a.weight, *bias = RMS ? nullptr : a.bias;
#pragma unroll
        for (int j = 0; j < S::vecs; j++) {
            if constexpr (S::dense)
                row.renew(j);
            unpack<T, V>(row.at[j], z);
            if constexpr (decltype(with_all)::value)
                f.apply(z, part_t::there(weight, j, m, narrow<T>(0.0f)),
                        part_t::there(RMS ? weight : bias, j, m, narrow<T>(0.0f)));
            else
                f.apply(z, part_t::kept(weight, j, m, narrow<T>(1.0f)),
                        part_t::kept(bias, j, m, narrow<T>(0.0f)));
            /* storing before the next weights are loaded is faster than storing all at the end */
            part_t::put(a.y + at, j, m, pack<T, V>(z));
        }
    };
    if constexpr (norm_with_all<T, S, ADD>)
        write(std::true_type());
    else if (S::dense && S::rows == 1 && a.weight && (RMS || a.bias))
        write(std::true_type());
    else
        write(std::false_type());
}

/* ------------------------------------------------------------- rows in shared memory ---- */

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/** Formula of row_stream::run(). A thread keeps weight and bias of its columns in registers. */
template <class T, class S, bool RMS, bool ADD> struct norm_formula : norm_sums<RMS> {
    static constexpr int V = vec16<T>;
    const norm_rows<T> &a;
    vec<T, V> weight[S::vecs], bias[S::vecs];

    template <class R>
    __device__ __forceinline__ norm_formula(const R &r, const norm_rows<T> &rows) : a(rows)
    {
#pragma unroll
        for (int j = 0; j < S::vecs; j++) {
            weight[j] = r.there(a.weight, j, narrow<T>(1.0f));
            bias[j] = r.there(a.bias, j, narrow<T>(0.0f));
        }
    }
    template <class R> __device__ __forceinline__ vec<T, V> get(const R &r, int j) const
    {
        return ADD ? rounded_sum<T, V>(r.at(0, j), r.at(1, j)) : r.at(0, j);
    }
    template <class R> __device__ __forceinline__ float2 first(const R &r) const
    {
        norm_own_sums<RMS> own;
        float z[V];
#pragma unroll
        for (int j = 0; j < S::vecs; j++) {
            if (!r.used(j))
                break;
            vec<T, V> v = get(r, j);
            if (ADD && a.sum)
                r.put(a.sum, j, v);
            unpack<T, V>(v, z);
            if constexpr (S::shifted)
                own.take_some(z, r.inside_count(j), j == 0);
            else
                own.take(z, r.inside(j) ? 1 : 0, j == 0);
        }
        return own.of(r.elements);
    }
    template <class R> __device__ __forceinline__ void second(const R &r, float2 whole)
    {
        norm_factor<RMS> f(whole, (float)r.n, a.eps);
        if (r.column(0) == 0)
            f.leave(a, r.row);
        float z[V];
#pragma unroll
        for (int j = 0; j < S::vecs; j++) {
            if (!r.used(j))
                break;
            if constexpr (S::vecs >= 7) { /* saves registers, so that another block fits */
                renew(weight[j]);
                renew(bias[j]);
            }
            unpack<T, V>(get(r, j), z);
            f.apply(z, weight[j], bias[j]);
            r.put(a.y, j, pack<T, V>(z));
        }
    }
};

#endif /* sm_90 */

/** Normalizes rows that stream through shared memory. Empty before sm_90. */
template <class T, class S, bool RMS, bool ADD>
__global__ void __launch_bounds__(S::threads, S::full ? S::blocks : (S::blocks + 1) / 2)
    norm_stream_kernel(const __grid_constant__ norm_rows<T> a)
{
#if __CUDA_ARCH__ >= 900
    TS_STREAM(s, T, S, ADD + 1, 0.0f, a.rows, a.n, a.x, a.residual);
    norm_formula<T, S, RMS, ADD> f(s, a);
    s.run(f);
#endif
}

/* ------------------------------------------------------------------------- host side ---- */

/**
 * Tables of the kernels. full_row: a row length, in vectors, that has a kernel of its own with VECS
 * vectors per thread. V512, V1024, V4096: VECS for these lengths.
 *
 * A block computes one row, which takes 2 to 5 % less time than persistent blocks that compute
 * several (docs/decisions.md, "A row in registers has a block of its own"). Only the shortest rows
 * share a block, because for them the GPU cannot start blocks fast enough. VECS is small where
 * registers suffice for many threads. In layer_norm of bf16 and f16 the fixed cost per row matters,
 * so the shapes have fewer threads with more vectors.
 */
template <int VECTORS, int VECS>
using full_row =
    up_to<VECTORS, row_shape<VECTORS / VECS / 32, VECS, true, VECTORS < 96 ? 4 : 1>>;
template <int V512, int V1024, int V4096, class... E>
using norm_rows_table =
    row_table<up_to<31, row_lanes>, full_row<32, 1>, full_row<64, 2>, up_to<64, row_shape<1, 2>>,
              full_row<96, 3>, up_to<96, row_shape<1, 3>>, full_row<128, 2>,
              full_row<192, 3>, full_row<256, 2>, full_row<512, V512>, full_row<1024, V1024>,
              full_row<2048, 4>, full_row<4096, V4096>, E...>;

/* clang-format off */
template <class T, bool RMS, bool ADD> struct norm_table /* layer_norm of bf16 and f16 */
    : norm_rows_table<4, 4, 8, up_to<640, row_fit<4, 512, true>>, up_to<224, row_fit<7, 448>>,
                      up_to<320, row_fit<5>>, up_to<576, row_fit<4>>, up_to<1280, row_fit<5>>,
                      up_to<3072, row_fit<6, 512, true>>, up_to<3584, row_fit<7, 512, true>>,
                      up_to<2560, row_fit<5>>, up_to<3136, row_fit<7, 448>>,
                      up_to<2048, row_fit<4>>, up_to<288, row_fit<3>>> {};
template <class T> struct norm_table<T, true, false> /* rms_norm of bf16 and f16 */
    : norm_rows_table<2, 4, 8, up_to<1408, row_fit<4>>, up_to<288, row_fit<3>>,
                      up_to<2560, row_fit<5>>, up_to<3072, row_fit<6>>,
                      up_to<3584, row_fit<7, 512, true>>, up_to<4096, row_fit<8, 512, true>>,
                      up_to<2048, row_fit<4>>, up_to<5120, row_fit<5, 1024>>,
                      up_to<6144, row_fit<6, 1024>>> {};
template <class T, bool RMS> struct norm_table<T, RMS, true> /* add_layer_norm */
    : norm_rows_table<2, 2, 4, up_to<512, row_fit<2>>, up_to<1536, row_fit<3>>,
                      up_to<2048, row_fit<4>>, up_to<4096, row_fit<4, 1024>>> {};
template <> struct norm_table<float, false, false>
    : norm_rows_table<2, 2, 8, up_to<1536, row_fit<4>>, up_to<288, row_fit<3>>,
                      up_to<3072, row_fit<6>>, up_to<4096, row_fit<8>>> {};
template <> struct norm_table<float, true, false>
    : norm_rows_table<2, 2, 4, up_to<1536, row_fit<4>>, up_to<288, row_fit<3>>,
                      up_to<3072, row_fit<6>>, up_to<4096, row_fit<8>>,
                      up_to<5120, row_fit<5, 1024>>, up_to<6144, row_fit<6, 1024>>> {};
/* clang-format on */

/** Launches the forward kernel over at least one row that is not empty. Returns
 * cudaErrorNotSupported if no kernel supports the row length on the device. If a row is a multiple
 * of 16 bytes, all tensors must be 16-byte aligned, which on_aligned() ensures. */
template <class T, bool RMS, bool ADD>
cudaError_t norm_forward(const norm_rows<T> &a, const ts_cuda_device *d, cudaStream_t stream)
{
    void (*kernel)(norm_rows<T>) = nullptr;
    using single = std::conditional_t<ADD, single_rows, padded_rows>;
    /* rows of bf16 and f16 that are not whole vectors */
    bool stream_is_faster = is_half<T> && !ADD && d->clusters && a.n % vec16<T> && a.n > 4096;
    row_grid g;
    if (!stream_is_faster)
        g = find_rows<T, norm_table<T, RMS, ADD>, single>(a.n, [&]<class S, int V>() {
            kernel = norm_kernel<T, S, V, RMS, ADD>;
            /* calls without weight or bias use another shape, or a stream */
            return !norm_with_all<T, S, ADD> || (a.weight && (RMS || a.bias));
        });
    if (g.rows)
        return rows_launch(kernel, g, a.rows, stream, a);
    stream_grid s = find_stream<T, ADD ? rows_wide_pairs_kept : rows_wide_kept>(
        a.n, a.rows, d, [&]<class S>() {
            kernel = norm_stream_kernel<T, S, RMS, ADD>;
            return ring_bytes<T, S, ADD + 1>;
        });
    return stream_launch(kernel, s, stream_clusters(kernel, s, a.rows), stream, a);
}

} // namespace ts

#endif
