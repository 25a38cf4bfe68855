/**
 * @file resample.cu
 * Average pooling, padding and resizing. A thread computes one position of the result in several
 * planes or channels and computes the weights once for them. Gradients also gather instead of
 * scattering, so sums have a fixed order.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/axes.cuh"
#include "tessera/ops.h"

#include <initializer_list>
#include <string.h>

using namespace ts;

namespace {

enum { THREADS = 256, PLANES = 8, CHANNELS = 4 };

/** A decoded call. Elements are (plane, position) or, in channels-last, (sample, position,
 * channel). */
struct geometry {
    axis a[3];
    int have[3], made[3]; /* spatial sizes of argument and result */
    int64_t planes, channels; /* channels-last: samples and channels; else all planes and 1 */
    double factor;            /* ts_resampling.factor */
};

/** Elements of the argument, with weights, that element i of the result reads along one dim. */
template <bool TRANSPOSED> struct reads {
    const axis &a;
    int i;
    std::conditional_t<TRANSPOSED, readers, taps> list;

    __device__ __forceinline__ reads(const axis &axis, int i) : a(axis), i(i), list(axis, i) {}
    __device__ __forceinline__ int count() const { return list.count; }
    /** Sets index and weight of element k of count(). False if it does not contribute. */
    __device__ __forceinline__ bool get(int k, int &at, double &weight) const
    {
        if constexpr (TRANSPOSED) {
            at = list.at(a, i, k);
            weight = at < 0 ? 0 : readers::weight(a, i, at);
        } else {
            at = list.index(a, k);
            weight = list.weight(a, k);
        }
        return !TRANSPOSED || weight != 0;
    }
};

/** Computes `count` <= N vectors of V elements at position (d, h, w) of the result. y: the first
 * vector, the next ones to_step apart; x: the argument's first plane, the next ones from_step
 * apart. pixel: distance of neighbours in the argument's last dim. */
template <class T, int V, int N, bool TRANSPOSED>
__device__ __forceinline__ void resample_position(const geometry &c, const T *x, T *y, int d, int h,
                                                  int w, int64_t from_step, int64_t to_step,
                                                  int64_t pixel, int count)
{
    using A = wide_t<T>;
    A sum[N][V];
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int v = 0; v < V; v++)
            sum[n][v] = 0;
    reads<TRANSPOSED> depth(c.a[0], d), height(c.a[1], h), width(c.a[2], w);
    int di, hi, wi;
    double dw, hw, ww;
    /* A gradient's weights take long to compute, and all rows have the same. */
    constexpr int KNOWN = TRANSPOSED ? 8 : 1;
    int columns[KNOWN];
    double weights[KNOWN];
    bool rows = TRANSPOSED && c.a[2].map != TS_AXIS_NEAREST && depth.count() * height.count() > 1;
#pragma unroll 1
    for (int k = 0; rows && k < KNOWN && k < width.count(); k++)
        width.get(k, columns[k], weights[k]);
    for (int i = 0; i < depth.count(); i++) {
        if (!depth.get(i, di, dw))
            continue;
        for (int j = 0; j < height.count(); j++) {
            if (!height.get(j, hi, hw))
                continue;
            const T *row = x + ((int64_t)di * c.have[1] + hi) * c.have[2] * pixel;
            hw *= dw * c.factor;
            auto vector_at = [&](int column, int n, A(&xs)[V]) {
                unpack<T, V>(*reinterpret_cast<const vec<T, V> *>(row + column * pixel +
                                                                  n * from_step), xs);
            };
            auto add = [&](int column, A weight) {
                A xs[N][V];
                /* Loads without conditions overlap, so vectors that do not exist are read as the
                   first one; their sums are not stored. N = PLANES has no registers for it. */
#pragma unroll
                for (int n = 0; n < N; n++)
                    if (N != PLANES)
                        vector_at(column, n < count ? n : 0, xs[n]);
#pragma unroll
                for (int n = 0; n < N; n++) {
                    if (N == PLANES && n >= count)
                        continue;
                    if (N == PLANES)
                        vector_at(column, n, xs[n]);
#pragma unroll
                    for (int v = 0; v < V; v++)
                        sum[n][v] += weight * xs[n][v];
                }
            };
            if (TRANSPOSED && c.a[2].map == TS_AXIS_NEAREST) { /* adjacent columns, weights 1 */
#pragma unroll 2
                for (int k = 0; k < width.count(); k++)
                    add(width.list.first + k, (A)hw);
                continue;
            }
            for (int k = 0; k < width.count(); k++) {
                bool known = rows && k < KNOWN;
                if (known)
                    wi = columns[k % KNOWN], ww = weights[k % KNOWN];
                if (known ? ww != 0 : width.get(k, wi, ww))
                    add(wi, (A)(hw * ww));
            }
        }
    }
#pragma unroll
    for (int n = 0; n < N; n++)
        if (n < count)
            *reinterpret_cast<word_of<vec<T, V>> *>(y + n * to_step) =
                to_word(pack<T, V>(sum[n]));
}

using count = split<uint32_t>;

/** Contiguous: a thread computes one position of up to PLANES planes. */
template <class T, bool TRANSPOSED>
__global__ void __launch_bounds__(THREADS)
    plane_kernel(const T *x, T *y, const __grid_constant__ geometry c, count positions, count width,
                 count height, uint32_t all)
{
    uint32_t i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= all)
        return;
    uint32_t group = positions.of(i), position = i - group * positions.d, row = width.of(position),
             d = height.of(row);
    int64_t plane = (int64_t)group * PLANES, have = (int64_t)c.have[0] * c.have[1] * c.have[2];
    int planes = (int)min(c.planes - plane, (int64_t)PLANES);
    resample_position<T, 1, PLANES, TRANSPOSED>(
        c, x + plane * have, y + plane * (int64_t)positions.d + position, (int)d,
        (int)(row - d * height.d), (int)(position - row * width.d), have, (int64_t)positions.d, 1,
        planes);
}

/** Channels-last: a thread computes a vector of V channels of one position or, if V is 1, up to
 * CHANNELS channels, `vectors` apart. */
template <class T, int V, bool TRANSPOSED>
__global__ void __launch_bounds__(THREADS)
    pixel_kernel(const T *x, T *y, const __grid_constant__ geometry c, count vectors,
                 count positions, count width, count height, uint32_t all)
{
    constexpr int N = V == 1 ? CHANNELS : 1;
    uint32_t i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= all)
        return;
    uint32_t pixel = vectors.of(i), n = positions.of(pixel), position = pixel - n * positions.d,
             row = width.of(position), d = height.of(row), own = i - pixel * vectors.d;
    int64_t have = (int64_t)c.have[0] * c.have[1] * c.have[2], k = (int64_t)own * V;
    int channels = N == 1 ? 1 : (int)((c.channels - own + vectors.d - 1) / vectors.d);
    resample_position<T, V, N, TRANSPOSED>(
        c, x + (int64_t)n * have * c.channels + k, y + (int64_t)pixel * c.channels + k, (int)d,
        (int)(row - d * height.d), (int)(position - row * width.d), vectors.d, vectors.d,
        c.channels, channels);
}

/** Calls launch(first, all) for pieces of groups of planes, or of samples: the piece begins at
 * `first` and has `all` threads, fewer than 2^31. each: threads of a group or sample. */
template <class F> cudaError_t in_pieces(int64_t groups, int64_t each, F &&launch)
{
    int64_t most = INT32_MAX / each;
    cudaError_t e = cudaSuccess;
    for (int64_t first = 0; first < groups && e == cudaSuccess; first += most) {
        int64_t n = groups - first < most ? groups - first : most;
        launch(first, (uint32_t)(n * each));
        e = cudaPeekAtLastError();
    }
    return e;
}

template <class T, bool TRANSPOSED>
cudaError_t launch_sums(geometry c, bool last, const T *x, T *y, cudaStream_t stream)
{
    int64_t positions = (int64_t)c.made[0] * c.made[1] * c.made[2],
            have = (int64_t)c.have[0] * c.have[1] * c.have[2], planes = c.planes;
    auto blocks = [](uint32_t n) { return (n + THREADS - 1) / THREADS; };
    count width(c.made[2]), height(c.made[1]);
    if (!last)
        return in_pieces((planes + PLANES - 1) / PLANES, positions, [&](int64_t g, uint32_t all) {
            c.planes = planes - g * PLANES;
            plane_kernel<T, TRANSPOSED><<<blocks(all), THREADS, 0, stream>>>(
                x + g * PLANES * have, y + g * PLANES * positions, c, count(positions), width,
                height, all);
        });
    auto run = [&]<int V>() {
        int64_t vectors = V > 1 ? c.channels / V : (c.channels + CHANNELS - 1) / CHANNELS;
        return in_pieces(planes, positions * vectors, [&](int64_t n, uint32_t all) {
            pixel_kernel<T, V, TRANSPOSED><<<blocks(all), THREADS, 0, stream>>>(
                x + n * have * c.channels, y + n * positions * c.channels, c, count(vectors),
                count(positions), width, height, all);
        });
    };
    if (in_vectors<T>(c.channels, {x, y}))
        return run.template operator()<vec16<T>>();
    return run.template operator()<1>();
}

enum {
    WINDOW_LONG = 1024, /* elements of a window that a block adds sooner than a thread */
    WINDOW_MIDDLE = 64, /* the same, for at most WINDOW_FEW windows */
    WINDOW_FEW = 16384,
    WINDOW_MOST = 1 << 28 /* elements of a window that has a 32-bit count */
};

/** Average pools of long windows of contiguous planes: a block adds one window. */
template <class T>
__global__ void __launch_bounds__(THREADS)
    window_kernel(const T *x, T *y, const __grid_constant__ geometry c)
{
    using A = wide_t<T>;
    __shared__ A sums[THREADS / 32];
    int64_t line = blockIdx.x / c.made[2], slice = line / c.made[1], plane = slice / c.made[0];
    taps d(c.a[0], (int)(slice % c.made[0])), h(c.a[1], (int)(line % c.made[1])),
        w(c.a[2], (int)(blockIdx.x % c.made[2]));
    x += ((plane * c.have[0] + d.first) * c.have[1] + h.first) * c.have[2] + w.first;
    uint32_t count = (uint32_t)(d.count * h.count * w.count);
    A sum = 0;
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
        uint32_t row = i / (uint32_t)w.count, depth = row / (uint32_t)h.count;
        sum += widen(x[((int64_t)depth * c.have[1] + (row - depth * h.count)) * c.have[2] +
                       (i - row * w.count)]);
    }
#pragma unroll
    for (int step = 16; step; step /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0)
        sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x)
        return;
    for (int i = 1; i < (int)blockDim.x / 32; i++)
        sum += sums[i];
    y[blockIdx.x] = narrow<T>(count ? sum * (A)(c.factor * d.t * h.t * w.t) : (A)0);
}

/** Elements of the largest window of an average pool; 0 for other resampling. */
int64_t window_of(const ts_resampling &r)
{
    int64_t n = 1;
    for (const ts_axis &a : r.axis) {
        if (a.map != TS_AXIS_WINDOW && a.map != TS_AXIS_ADAPTIVE)
            return 0;
        n *= a.map == TS_AXIS_WINDOW ? a.kernel < a.in ? a.kernel : a.in
                                     : (a.in + a.out - 1) / a.out;
    }
    return r.transposed ? 0 : n;
}

/** Functor for fill_units() of ops that copy: returns vector i of the result, V adjacent units of
 * U's bytes. A unit is one of the argument or, in constant padding, `value`. V > 1: a unit is an
 * element, the tensors are contiguous, and a row of the result has V units or more. */
template <class U, int V, class I> struct copied {
    const U *x;
    U value;
    geometry c;
    I from; /* index of the first unit */
    split<I> pixel, width, height, depth;

    /** Start in x of the row that row `row` of the result reads; -1: none. */
    __device__ __forceinline__ int64_t start(I row) const
    {
        I slice = height.of(row), n = depth.of(slice);
        taps d(c.a[0], (int)(slice - n * depth.d)), h(c.a[1], (int)(row - slice * height.d));
        int64_t q = ((int64_t)n * c.have[0] + d.first) * c.have[1] + h.first;
        return d.count && h.count ? q * c.have[2] * (V > 1 ? 1 : (int64_t)pixel.d) : -1;
    }

    /** A unit of the result whose row reads the row of x at `from`. */
    __device__ __forceinline__ U get(int64_t from, const taps &w, int64_t unit) const
    {
        return from >= 0 && w.count ? x[from + w.first * (V > 1 ? 1 : (int64_t)pixel.d) + unit]
                                    : value;
    }

    __device__ __forceinline__ vec<U, V> operator()(I i) const
    {
        I first = from + i * V, p = pixel.of(first), row = width.of(p), column = p - row * width.d;
        int64_t start0 = start(row), start1 = V > 1 ? start(row + 1) : 0;
        vec<U, V> y;
        auto fill = [&](int map) { /* a constant: one test of the map for all units */
                                   axis a = c.a[2];
                                   a.map = map;
#pragma unroll
                                   for (int v = 0; v < V; v++) {
                                       bool next = V > 1 && column + v >= width.d;
                                       y.at[v] =
                                           get(next ? start1 : start0,
                                               taps(a, (int)(column + v - (next ? width.d : 0))),
                                               first - p * pixel.d);
                                   }
        };
        if (c.a[2].map == TS_AXIS_CONSTANT)
            fill(TS_AXIS_CONSTANT);
        else if (V > 1 && sizeof(I) == 4 && c.a[2].map == TS_AXIS_NEAREST)
            fill(TS_AXIS_NEAREST);
        else
            fill(c.a[2].map);
        return y;
    }
};

/** Units `from` to n - 1 in whole vectors of V. Sets `from` to the first unit that is left. */
template <class U, int V, class I>
cudaError_t copy_units(const geometry &c, int64_t channels, const U *x, const U &value, U *y,
                       int64_t &from, int64_t n, cudaStream_t stream)
{
    copied<U, V, I> fn = {x, value, c, (I)from, split<I>(channels), split<I>(c.made[2]),
                          split<I>(c.made[1]), split<I>(c.made[0])};
    int64_t vectors = (n - from) / V;
    U *to = y + from;
    from += vectors * V;
    return fill_units<vec<U, V>, I>(to, vectors, fn, stream);
}

ts_status copy(ts_frame *f, const geometry &c, int64_t channels, const char *value)
{
    const ts_tensor *y = f->rets[0].t;
    const void *x = ts_kernel_data(f->args[0].t);
    void *to = ts_kernel_data(y);
    int64_t item = (int64_t)ts_dtype_size(ts_dtype_of(y)), bytes = ts_numel(y) * item;
    int unit = channels > 1 ? unit_of((uint64_t)(channels * item) | (uint64_t)(uintptr_t)x |
                                      (uint64_t)(uintptr_t)to)
                            : (int)item;
    return on_device(f, [&](const call &on) {
        return with_unit(unit, [&]<class U>() {
            return with_numbers(bytes / unit, [&]<class I>() {
                int64_t n = bytes / unit, units = channels * item / unit, from = 0;
                U fill;
                for (int k = 0; k < unit; k++)
                    ((char *)&fill)[k] = value[k % item];
                cudaError_t e = cudaSuccess;
                if constexpr (sizeof(U) < 16)
                    if (channels == 1 && c.made[2] >= vec16<U> && in_vectors<U>(0, {to}))
                        e = copy_units<U, vec16<U>, I>(c, units, (const U *)x, fill, (U *)to, from,
                                                       n, on.stream);
                return e == cudaSuccess ? copy_units<U, 1, I>(c, units, (const U *)x, fill,
                                                              (U *)to, from, n, on.stream)
                                        : e;
            });
        });
    });
}

ts_status resample(ts_frame *f)
{
    ts_resampling r = ts_kernel_resampling(f);
    const ts_tensor *x = f->args[0].t, *y = f->rets[0].t;
    if (!ts_numel(y))
        return TS_OK;
    bool last = all_last_images(r, {&f->args[0], &f->rets[0]}), average = !r.transposed,
         copies = true;
    for (const ts_axis &a : r.axis) {
        average = average && a.out == 1 && (a.map == TS_AXIS_ADAPTIVE || a.in == 1);
        copies = copies && (a.map == TS_AXIS_NEAREST || a.map >= TS_AXIS_CONSTANT);
    }
    if (average && ts_numel(x) > ts_numel(y)) {
        int64_t dims[] = {-1, -2, -3};
        int n = 0;
        for (const ts_axis &a : r.axis)
            n += a.map == TS_AXIS_ADAPTIVE;
        return ts_status_of_pointer(ts_mean_out(f->rets[0].t, f->args[0].t, dims, n, true));
    }
    if (r.transposed && r.axis[2].map == TS_AXIS_CONSTANT) { /* gradient: copies the inner part */
        r.transposed = false;
        for (ts_axis &a : r.axis) {
            int64_t in = a.in;
            a.in = a.out;
            a.out = in;
            a.padding = -a.padding;
        }
    }
    geometry c = {};
    c.planes = last ? ts_size(x, 0) : r.planes;
    c.channels = last ? ts_size(x, 1) : 1;
    c.factor = r.factor;
    for (int k = 0; k < 3; k++) {
        c.a[k] = axis(r.axis[k]);
        c.have[k] = r.transposed ? c.a[k].out : c.a[k].in;
        c.made[k] = r.transposed ? c.a[k].in : c.a[k].out;
    }
    if (copies && !r.transposed) {
        char value[8] = {0};
        if (!strcmp(ts_op_name(f->op), "pad"))
            ts_scalar_store(&f->args[3], ts_dtype_of(x), value);
        return copy(f, c, c.channels, value);
    }
    int64_t each =
        (int64_t)c.made[0] * c.made[1] * c.made[2] * ((c.channels + CHANNELS - 1) / CHANNELS);
    if (each > INT32_MAX)
        return ts_kernel_error(f, 0, TS_ERR_SHAPE, nullptr,
                               "expected fewer than 2^31 results per plane, and 2^33 per "
                               "channels-last image, on CUDA, got %lld",
                               (long long)(ts_numel(y) / c.planes));
    int64_t window = last ? 0 : window_of(r);
    bool blocks = ts_numel(y) <= (window < WINDOW_LONG ? WINDOW_FEW : INT32_MAX) &&
                  window >= WINDOW_MIDDLE && window <= WINDOW_MOST;
    return with_float(f, [&]<class T>(const call &on) {
        const T *from = (const T *)ts_kernel_data(x);
        T *to = (T *)ts_kernel_data(y);
        if (blocks) {
            unsigned threads = window < WINDOW_LONG ? 32 : THREADS;
            window_kernel<T><<<(unsigned)ts_numel(y), threads, 0, on.stream>>>(from, to, c);
            return cudaPeekAtLastError();
        }
        return r.transposed ? launch_sums<T, true>(c, last, from, to, on.stream)
                            : launch_sums<T, false>(c, last, from, to, on.stream);
    });
}

} // namespace

TS_CUDA_FAMILY(resample,
    {"avg_pool", resample, floats, false, false, true},
    {"avg_pool_backward", resample, floats, false, false, true},
    {"adaptive_avg_pool", resample, floats, false, false, true},
    {"adaptive_avg_pool_backward", resample, floats, false, false, true},
    {"interpolate", resample, floats, false, false, true},
    {"interpolate_backward", resample, floats, false, false, true},
    {"pad", resample, everything, false, false, true},
    {"pad_backward", resample, floats, false, false, true},
)
