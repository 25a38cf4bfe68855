/** @file norm.cu  Layer and RMS normalisation over the last dims, forward and backward. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/aligned.cuh"
#include "backends/cuda/frame.cuh"
#include "backends/cuda/line_tiles.cuh"
#include "backends/cuda/norm_backward_few.cuh"
#include "backends/cuda/norm_backward_rows.cuh"
#include "backends/cuda/norm_rows.cuh"
#include "backends/cuda/statistics.cuh"
#include "tessera/ops.h"

using namespace ts;

/* ---------------------------------- rows without a shape in rows.cuh and row_stream.cuh ---- */

enum { LONG = 256 }; /* threads per block; blocks may share a row (lines.cuh) */

template <class T, bool RMS>
static __global__ void __launch_bounds__(LONG)
    long_kernel(const __grid_constant__ lines l, const T *x, const T *weight, const T *bias, T *y,
                wide_t<T> *mean, wide_t<T> *rstd, double eps)
{
    using A = wide_t<T>;
    int64_t n = l.count, from = blockIdx.y * LONG + threadIdx.y, step = (int64_t)LONG * l.shares;
    const T *row = x + blockIdx.x * n;
    A sum = 0, centre = 0;
    int turn = 0; /* index of the next lines_reduce() */
    if constexpr (!RMS) {
        /* The second pass adds the mean deviation from the first mean, so that the mean of equal
         * elements is exact. */
        for (; turn < 2 && isfinite(centre); sum = 0) {
#pragma unroll 4
            for (int64_t i = from; i < n; i += step)
                sum += widen(row[i]) - centre;
            centre += lines_reduce<1, LONG, op_sum>(l, turn++, sum) / (A)n;
        }
    }
#pragma unroll 4
    for (int64_t i = from; i < n; i += step) {
        A d = widen(row[i]) - centre;
        sum += d * d;
    }
    A factor = rsqrt(lines_reduce<1, LONG, op_sum>(l, turn, sum) / (A)n + (A)eps);
    if (blockIdx.y == 0 && threadIdx.y == 0) {
        if (mean)
            mean[blockIdx.x] = centre;
        if (rstd)
            rstd[blockIdx.x] = factor;
    }
#pragma unroll 4
    for (int64_t i = from; i < n; i += step) {
        A z = (widen(row[i]) - centre) * factor;
        z = weight ? z * widen(weight[i]) : z;
        y[blockIdx.x * n + i] = narrow<T>(bias ? z + widen(bias[i]) : z);
    }
}

/** With ALONE there is one row, whose terms are the gradients of weight and bias. */
template <class T, bool RMS, bool ALONE>
static __global__ void __launch_bounds__(LONG)
    long_backward_kernel(const __grid_constant__ lines l, const T *g, const T *x, const T *weight,
                         const wide_t<T> *mean, const wide_t<T> *rstd, T *dx, T *dweight, T *dbias)
{
    using A = wide_t<T>;
    int64_t n = l.count, first = blockIdx.x * n, from = blockIdx.y * LONG + threadIdx.y,
            step = (int64_t)LONG * l.shares;
    A centre = RMS ? (A)0 : mean[blockIdx.x], factor = rstd[blockIdx.x], dot = 0, shift = 0;
#pragma unroll 4
    for (int64_t i = from; i < n; i += step) {
        A q = widen(g[first + i]) * (weight ? widen(weight[i]) : (A)1);
        dot += q * (widen(x[first + i]) - centre) * factor;
        shift += q;
    }
    dot = lines_reduce<1, LONG, op_sum>(l, 0, dot) / (A)n;
    shift = RMS ? (A)0 : lines_reduce<1, LONG, op_sum>(l, 1, shift) / (A)n;
#pragma unroll 4
    for (int64_t i = from; i < n; i += step) {
        A up = widen(g[first + i]), h = (widen(x[first + i]) - centre) * factor;
        dx[first + i] = narrow<T>(
            factor * (up * (weight ? widen(weight[i]) : (A)1) - shift - h * dot));
        if (ALONE && dweight)
            dweight[i] = narrow<T>(up * h);
        if (ALONE && dbias)
            dbias[i] = narrow<T>(up);
    }
}

/** A short row of gradients g with elements x becomes the gradient of x. */
template <class T, bool RMS> struct norm_gradient_of {
    const T *weight; /* NULL: 1 */
    const wide_t<T> *mean, *rstd;

    template <class L> __device__ __forceinline__ void operator()(const L &l) const
    {
        using A = wide_t<T>;
        bool some = l.count > 0; /* else there is no such row */
        A centre = RMS || !some ? (A)0 : mean[l.number], factor = some ? rstd[l.number] : (A)0,
          dot = 0, shift = 0, n = (A)l.count;
        auto weighted = [&](int i) {
            return l.get(0, i) * (weight ? widen(weight[i]) : (A)1);
        };
        l.each([&](int i) {
            A q = weighted(i);
            dot += q * (l.get(1, i) - centre) * factor;
            shift += q;
        });
        dot = l.template reduce<op_sum>(dot) / n;
        shift = RMS ? (A)0 : l.template reduce<op_sum>(shift) / n;
        l.each([&](int i) {
            l.put(i, factor * (weighted(i) - shift - (l.get(1, i) - centre) * factor * dot));
        });
    }
};

/** Partial gradients of weight and bias: for each column, sums of g times the normalized x, and of
 * g, over the rows of share blockIdx.y. They become row blockIdx.y of dweight and dbias, each
 * (shares, line_of<T>(n)) or NULL. A block has X columns with Y threads each. */
template <class T, bool RMS, class OUT, int X, int Y>
static __global__ void columns_kernel(const T *g, const T *x, const wide_t<T> *mean,
                                      const wide_t<T> *rstd, OUT *dweight, OUT *dbias,
                                      int64_t rows, int64_t n)
{
    using A = wide_t<T>;
    int64_t i = (int64_t)blockIdx.x * X + threadIdx.x;
    A dw = 0, db = 0;
    if (i < n)
        for (int64_t r = (int64_t)blockIdx.y * Y + threadIdx.y; r < rows; r += gridDim.y * Y) {
            A a = widen(g[r * n + i]);
            dw += a * ((widen(x[r * n + i]) - (RMS ? (A)0 : mean[r])) * rstd[r]);
            db += a;
        }
    dw = line_reduce<X, Y, op_sum>(dw);
    db = line_reduce<X, Y, op_sum>(db);
    if (i < n && threadIdx.y == 0) {
        if (dweight)
            dweight[blockIdx.y * line_of<T>(n) + i] = narrow<OUT>(dw);
        if (dbias)
            dbias[blockIdx.y * line_of<T>(n) + i] = narrow<OUT>(db);
    }
}

template <class T, bool RMS>
static cudaError_t backward_long(const T *g, const T *x, const T *weight, const wide_t<T> *mean,
                                 const wide_t<T> *rstd, T *dx, T *dweight, T *dbias,
                                 wide_t<T> *scratch, int64_t shares, const lines &l,
                                 const lines_scratch &shared, cudaStream_t stream)
{
    int64_t rows = l.outer, n = l.count;
    cudaError_t e = cudaSuccess;
    line_tiles tiles;
    auto columns = [&]<class OUT, int X, int Y>(OUT *dw, OUT *db) {
        dim3 grid((unsigned)((n + X - 1) / X), (unsigned)shares);
        columns_kernel<T, RMS, OUT, X, Y>
            <<<grid, dim3(X, Y), 0, stream>>>(g, x, mean, rstd, dw, db, rows, n);
        return cudaPeekAtLastError();
    };
    if (dx && line_tiles_of<T>(l, tiles))
        e = tiles_launch<T, 2>(tiles, norm_gradient_of<T, RMS>{weight, mean, rstd}, {g, x}, dx,
                               stream);
    else if (dx) {
        e = lines_launch(rows == 1 ? long_backward_kernel<T, RMS, true>
                                   : long_backward_kernel<T, RMS, false>,
                         l, dim3(1, LONG), shared, stream, g, x, weight, mean, rstd, dx, dweight,
                         dbias);
        if (rows == 1)
            return e;
    }
    if ((!dweight && !dbias) || e != cudaSuccess)
        return e;
    if (rows < 16) /* no partial sums */
        return columns.template operator()<T, 256, 1>(dweight, dbias);
    wide_t<T> *dw = dweight ? scratch : nullptr,
              *db = dbias ? scratch + (dweight ? shares * line_of<T>(n) : 0) : nullptr;
    e = columns.template operator()<wide_t<T>, 32, 16>(dw, db);
    return e == cudaSuccess ? column_sums<T>(scratch, dweight, dbias, shares, n, stream) : e;
}

/* ------------------------------------------------------------------------------- kernels ---- */

template <bool RMS> static ts_status forward(ts_frame *f, int bias_arg, double eps)
{
    ts_rows r = ts_kernel_rows(f);
    lines l = {r.outer, r.count, 1};
    lines_scratch shared(f, l);
    if (shared.failed())
        return ts_error_code();
    return with_float(f, [&]<class T>(const call &c) {
        using A = wide_t<T>;
        const T *x = data_of<T>(f->args[0]), *weight = data_of<T>(f->args[2]);
        const T *bias = bias_arg ? data_of<T>(f->args[bias_arg]) : nullptr;
        T *y = data_of<T>(f->rets[0]);
        A *mean = RMS ? nullptr : data_of<A>(f->rets[1]), *rstd = data_of<A>(f->rets[RMS ? 1 : 2]);
        if (!r.outer)
            return cudaSuccess;
        if constexpr (sizeof(T) < 8) {
            norm_rows<T> a = {x, nullptr, weight, bias, y, nullptr, mean, rstd, r.outer, r.count,
                              (float)eps};
            cudaError_t e = r.count ? norm_forward<T, RMS, false>(a, c.device, c.stream)
                                    : cudaErrorNotSupported; /* an empty row has the mean NaN */
            if (e != cudaErrorNotSupported)
                return e;
        }
        return lines_launch(long_kernel<T, RMS>, l, dim3(1, LONG), shared, c.stream, x, weight,
                            bias, y, mean, rstd, eps);
    });
}

/** layer_norm(self, dims, weight, bias, eps) -> (result, mean, rstd) */
static ts_status layer_norm(ts_frame *f) { return forward<false>(f, 3, f->args[4].d); }
/** rms_norm(self, dims, weight, eps) -> (result, rstd) */
static ts_status rms_norm(ts_frame *f) { return forward<true>(f, 0, f->args[3].d); }

/** add_layer_norm(self, residual, dims, weight, bias, eps) -> (result, sum, mean, rstd) */
static ts_status add_layer_norm(ts_frame *f)
{
    TS_SCOPE;
    ts_rows r = ts_kernel_rows(f);
    ts_tensor *x = f->args[0].t, *residual = f->args[1].t,
              *sum = f->rets[1].tag == TS_TAG_TENSOR ? f->rets[1].t : nullptr;
    double eps = f->args[5].d;
    auto rows = [&]<class T>(const call &c) {
        if constexpr (sizeof(T) < 8) {
            norm_rows<T> a = {data_of<T>(f->args[0]), data_of<T>(f->args[1]),
                              data_of<T>(f->args[3]), data_of<T>(f->args[4]),
                              data_of<T>(f->rets[0]), data_of<T>(f->rets[1]),
                              data_of<float>(f->rets[2]),
                              data_of<float>(f->rets[3]), r.outer, r.count, (float)eps};
            return norm_forward<T, false, true>(a, c.device, c.stream);
        }
        return cudaErrorNotSupported;
    };
    bool held = false;
    TS_CUDA_TRY(with_float(f, [&]<class T>(const call &c) {
        cudaError_t e = !r.outer  ? cudaSuccess
                        : r.count ? rows.template operator()<T>(c)
                                  : cudaErrorNotSupported;
        held = e != cudaErrorNotSupported;
        return held ? e : cudaSuccess;
    }));
    if (held)
        return TS_OK;
    if (!(sum = sum ? ts_add_out(sum, x, residual) : ts_add(x, residual)))
        return ts_error_code();
    lines l = {r.outer, r.count, 1};
    lines_scratch shared(f, l);
    if (shared.failed())
        return ts_error_code();
    return with_float(f, [&]<class T>(const call &c) {
        const T *from = (const T *)ts_kernel_data(sum), *weight = data_of<T>(f->args[3]),
                *bias = data_of<T>(f->args[4]);
        return lines_launch(long_kernel<T, false>, l, dim3(1, LONG), shared, c.stream, from, weight,
                            bias, data_of<T>(f->rets[0]), data_of<wide_t<T>>(f->rets[2]),
                            data_of<wide_t<T>>(f->rets[3]), eps);
    });
}

/** backward() of few elements (are_few()); only grad, self and weight may be strided. */
template <bool RMS> static ts_status backward_few(ts_frame *f)
{
    TS_SCOPE;
    ts_rows r = ts_kernel_rows(f);
    const ts_tensor *g = f->args[0].t, *x = f->args[1].t, *rstds = statistics(f->args[RMS ? 2 : 3]),
                    *means = RMS ? nullptr : statistics(f->args[2]);
    if (!rstds || !(RMS || means))
        return ts_error_code();
    const ts_value &weight = f->args[RMS ? 3 : 4];
    const ts_tensor *w = weight.tag == TS_TAG_TENSOR ? weight.t : nullptr;
    const int64_t *const strides[2] = {ts_strides(g), ts_strides(x)},
                  *const own[1] = {w ? ts_strides(w) : nullptr};
    walk<uint32_t, 2> elements(ts_sizes(x), ts_ndim(x), strides);
    walk<uint32_t, 1> weights(w ? ts_sizes(w) : nullptr, w ? ts_ndim(w) : 0, own);
    return with_float(f, [&]<class T>(const call &c) {
        using A = wide_t<T>;
        few_gradients<T> k = {(const T *)ts_kernel_data(g),
                              (const T *)ts_kernel_data(x),
                              data_of<T>(weight),
                              RMS ? nullptr : (const A *)ts_kernel_data(means),
                              (const A *)ts_kernel_data(rstds),
                              data_of<T>(f->rets[0]),
                              data_of<T>(f->rets[1]),
                              RMS ? nullptr : data_of<T>(f->rets[2]),
                              (uint32_t)r.outer,
                              (uint32_t)r.count,
                              0,
                              elements,
                              weights};
        return launch_few<T, RMS>(k, c.stream);
    });
}

/** backward() of contiguous tensors, aligned as on_aligned() ensures. */
template <bool RMS> static ts_status backward_rows(ts_frame *f)
{
    TS_SCOPE;
    ts_rows r = ts_kernel_rows(f);
    ts_tensor *rstds = statistics(f->args[RMS ? 2 : 3]),
              *means = RMS ? nullptr : statistics(f->args[2]);
    if (!rstds || !(RMS || means))
        return ts_error_code();
    bool sums = f->rets[1].tag == TS_TAG_TENSOR || (!RMS && f->rets[2].tag == TS_TAG_TENSOR);
    ts_device where = ts_kernel_device(f);
    ts_cuda_device *device = ts_cuda_use(where.index);
    if (!device)
        return ts_error_code();
    /* most lines of partial sums: one per block that can be resident */
    int64_t most = (int64_t)device->sms * 16, item = ts_kernel_dtype(f) == TS_F64 ? 8 : 4;
    most = most < r.outer ? most : r.outer;
    int64_t bytes = sums && r.count ? 2 * most * line_of<bf16>(r.count) * item : 0;
    lines l = {r.outer, r.count, 1};
    lines_scratch shared(f, l);
    void *scratch = nullptr;
    if (shared.failed())
        return ts_error_code();
    if (bytes && !(scratch = ts_scratch_take(where, bytes)))
        return ts_error_code();
    ts_status status = with_float(f, [&]<class T>(const call &c) {
        using A = wide_t<T>;
        const T *g = data_of<T>(f->args[0]), *x = data_of<T>(f->args[1]),
                *weight = data_of<T>(f->args[RMS ? 3 : 4]);
        const A *mean = RMS ? nullptr : (const A *)ts_kernel_data(means),
                *rstd = (const A *)ts_kernel_data(rstds);
        T *dx = data_of<T>(f->rets[0]), *dw = data_of<T>(f->rets[1]),
          *db = RMS ? nullptr : data_of<T>(f->rets[2]);
        if (!r.count)
            return cudaSuccess;
        if (!r.outer) { /* the sums are 0 */
            if (dw)
                cudaMemsetAsync(dw, 0, r.count * sizeof(T), c.stream);
            if (db)
                cudaMemsetAsync(db, 0, r.count * sizeof(T), c.stream);
            return cudaPeekAtLastError();
        }
        /* short odd rows: tiles are faster than a stream */
        bool tiles = r.count % vec16<T> && r.count <= LONGEST_IN_TILE;
        if constexpr (sizeof(T) < 8) {
            cudaError_t e = tiles ? cudaErrorNotSupported
                                  : norm_backward_rows<T, RMS>(g, x, weight, mean, rstd, dx, dw, db,
                                                               (A *)scratch, r.outer, r.count,
                                                               c.device, c.stream);
            if (e != cudaErrorNotSupported)
                return e;
        }
        int64_t shares = r.outer / 64 < 1 ? 1 : r.outer / 64 < most ? r.outer / 64 : most;
        return backward_long<T, RMS>(g, x, weight, mean, rstd, dx, dw, db, (A *)scratch, shares, l,
                                     shared, c.stream);
    });
    if (scratch)
        ts_scratch_give(where, scratch, bytes);
    return status;
}
/** (grad, self, mean unless RMS, rstd, weight) -> (dx, dweight, dbias unless RMS) */
template <bool RMS> static ts_status backward(ts_frame *f)
{
    ts_rows r = ts_kernel_rows(f);
    bool walked = are_few(r.outer, r.count);
    for (int i = 2; i < (RMS ? 3 : 4); i++) /* the statistics */
        walked = walked && !is_strided(f->args[i]);
    for (int i = 0; i < f->nrets; i++)
        walked = walked && !is_strided(f->rets[i]);
    if (walked)
        return backward_few<RMS>(f);
    return has_strides(f) ? on_packed(f, backward<RMS>) : on_aligned<backward_rows<RMS>>(f);
}
static ts_status layer_norm_backward(ts_frame *f) { return backward<false>(f); }
static ts_status rms_norm_backward(ts_frame *f) { return backward<true>(f); }

TS_CUDA_FAMILY(norm,
    {"layer_norm", on_aligned<layer_norm>, floats, false},
    {"layer_norm_backward", layer_norm_backward, floats, true},
    {"add_layer_norm", on_aligned<add_layer_norm>, floats, false},
    {"rms_norm", on_aligned<rms_norm>, floats, false},
    {"rms_norm_backward", rms_norm_backward, floats, true},
)
