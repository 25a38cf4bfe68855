/**
 * @file pool.cu
 * Max pooling. Each element of the gradient gathers from the windows that contain it, so sums have
 * a fixed order.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/axes.cuh"

#include <initializer_list>

using namespace ts;

namespace {

enum { THREADS = 256 };

struct pool_call {
    axis a[3];
    int64_t planes, channels; /* channels-last: samples and channels; else all planes and 1 */
};

/** Elements of window o: `count` starting at `first`, `step` apart. */
struct window {
    int first, count, step;

    __device__ __forceinline__ window(const axis &a, int o) : first(0), count(1), step(1)
    {
        if (a.map == TS_AXIS_ADAPTIVE) {
            taps t(a, o);
            first = t.first;
            count = t.count;
        } else if (a.map == TS_AXIS_WINDOW) {
            step = a.dilation;
            first = o * a.stride - a.padding;
            count = a.kernel;
            if (first < 0) {
                int skipped = (-first + step - 1) / step;
                first += skipped * step;
                count -= skipped;
            }
            count = min(count, first < a.in ? (a.in - 1 - first) / step + 1 : 0);
            if (count <= 0)
                first = count = 0;
        }
    }
};

/** Splits the index of a vector of the result into plane, depth d, height h, width w and channel
 * vector c; of() returns the plane. */
template <class I> struct places {
    split<I> channels, width, height, depth;

    __device__ __forceinline__ I of(I i, int &d, int &h, int &w, int64_t &c) const
    {
        I p = channels.of(i), row = width.of(p), q = height.of(row), n = depth.of(q);
        c = i - p * channels.d;
        w = (int)(p - row * width.d);
        h = (int)(row - q * height.d);
        d = (int)(q - n * depth.d);
        return n;
    }
};

/** Max pooling, V channels per thread. K: the windows are K x K in the last two dims without
 * dilation, and all loads of a window are issued before the first comparison; 0: any window. */
template <class T, class I, int V, int K>
__global__ void __launch_bounds__(THREADS)
    largest_kernel(const T *x, T *y, int64_t *at, const __grid_constant__ pool_call p,
                   places<I> places, I all)
{
    using A = wide_t<T>;
    __shared__ int block[THREADS * V]; /* the positions, to write them in adjacent pairs */
    I first_of_block = (I)blockIdx.x * THREADS,
      i = min(first_of_block + threadIdx.x, all - 1); /* surplus threads repeat the last vector */
    int d, h, w;
    int64_t c, n = places.of(i, d, h, w, c);
    int height = p.a[1].in, width = p.a[2].in, pixel = (int)p.channels;
    const T *from = x + n * p.a[0].in * height * width * p.channels + c * V;
    A best[V];
    int place[V];
    auto look = [&](const vec<T, V> &v, int q) {
        A xs[V];
        unpack<T, V>(v, xs);
#pragma unroll
        for (int k = 0; k < V; k++)
            if (xs[k] > best[k] || xs[k] != xs[k]) {
                best[k] = xs[k];
                place[k] = q;
            }
    };
    auto load = [&](int q) {
        return *reinterpret_cast<const vec<T, V> *>(from + (int64_t)q * pixel);
    };
    if constexpr (K > 0) {
        int top = h * p.a[1].stride - p.a[1].padding, left = w * p.a[2].stride - p.a[2].padding,
            first = max(top, 0) * width + max(left, 0);
#pragma unroll
        for (int k = 0; k < V; k++) {
            best[k] = -INFINITY;
            place[k] = first;
        }
        vec<T, V> seen[K * K];
#pragma unroll
        for (int j = 0; j < K * K; j++) {
            int r = top + j / K, s = left + j % K;
            if (r >= 0 && r < height && s >= 0 && s < width)
                seen[j] = load(r * width + s);
        }
#pragma unroll
        for (int j = 0; j < K * K; j++) {
            int r = top + j / K, s = left + j % K;
            if (r >= 0 && r < height && s >= 0 && s < width)
                look(seen[j], r * width + s);
        }
    } else {
        window dw(p.a[0], d), hw(p.a[1], h), ww(p.a[2], w);
        int first = (dw.first * height + hw.first) * width + ww.first;
#pragma unroll
        for (int k = 0; k < V; k++) {
            best[k] = -INFINITY;
            place[k] = first;
        }
        for (int j = 0; j < dw.count; j++)
            for (int k = 0; k < hw.count; k++) {
                int row = ((dw.first + j * dw.step) * height + hw.first + k * hw.step) * width;
                for (int l = 0; l < ww.count; l++)
                    look(load(row + ww.first + l * ww.step), row + ww.first + l * ww.step);
            }
    }
    *reinterpret_cast<word_of<vec<T, V>> *>(y + (int64_t)i * V) = to_word(pack<T, V>(best));
    if (!at)
        return;
    constexpr int EACH = V > 1 ? 2 : 1, LANES = 32 * EACH;
    int *warp = block + threadIdx.x / 32 * 32 * V, lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < V; k++)
        warp[lane * V + k] = place[k];
    __syncwarp();
    int64_t begin = ((int64_t)first_of_block + threadIdx.x / 32 * 32) * V,
            left = (int64_t)all * V - begin;
#pragma unroll
    for (int k = lane * EACH; k < 32 * V; k += LANES)
        if (k < left) {
            if constexpr (V > 1)
                *reinterpret_cast<longlong2 *>(at + begin + k) = {warp[k], warp[k + 1]};
            else
                at[begin + k] = warp[k];
        }
}

/** Gradient y of max pooling with K x K windows in the last two dims that touch and cover the
 * input: a thread writes V channels of a window's pixels. `all`, `places`: of the windows. */
template <class T, class I, int V, int K>
__global__ void __launch_bounds__(THREADS)
    spread_kernel(const T *g, const int64_t *at, T *y, int width, places<I> places, I all)
{
    using A = wide_t<T>;
    I i = (I)blockIdx.x * THREADS + threadIdx.x;
    if (i >= all)
        return;
    int d, h, w, place[V];
    int64_t c, n = places.of(i, d, h, w, c), channels = (int64_t)places.channels.d * V;
    A gs[V];
    load_wide<T, V>(gs, g + (int64_t)i * V);
#pragma unroll
    for (int k = 0; k < V; k += 2) {
        if constexpr (V > 1) {
            longlong2 two = *reinterpret_cast<const longlong2 *>(at + (int64_t)i * V + k);
            place[k] = (int)two.x, place[k + 1] = (int)two.y;
        } else {
            place[k] = (int)at[i];
        }
    }
    int first = h * K * width + w * K;
    T *to = y + n * (int64_t)places.height.d * K * width * channels + c * V;
#pragma unroll
    for (int j = 0; j < K * K; j++) {
        int q = first + j / K * width + j % K;
        A ys[V];
#pragma unroll
        for (int k = 0; k < V; k++)
            ys[k] = place[k] == q ? gs[k] : (A)0;
        *reinterpret_cast<word_of<vec<T, V>> *>(to + q * channels) = to_word(pack<T, V>(ys));
    }
}

/** Consecutive elements along the last dim that a thread of gradient_kernel() computes. */
template <class T, int V> constexpr int gradient_run = V > 1 ? 1 : sizeof(T) == 8 ? 2 : 4;

/** Gradient y of max pooling: each element sums g of the windows whose maximum it is. A thread
 * computes V channels of one element, or a run of elements of one channel, which share windows. at:
 * positions of the maxima, from largest_kernel(); places: of runs; vector: a run is stored at
 * once. */
template <class T, class I, int V>
__global__ void __launch_bounds__(THREADS)
    gradient_kernel(const T *g, const int64_t *at, T *y, const __grid_constant__ pool_call p,
                    places<I> places, I all, bool vector)
{
    using A = wide_t<T>;
    constexpr int RUN = gradient_run<T, V>, SUMS = RUN * V;
    I i = (I)blockIdx.x * THREADS + threadIdx.x;
    if (i >= all)
        return;
    int d, h, w;
    int64_t c, n = places.of(i, d, h, w, c);
    w *= RUN;
    int run = min(RUN, p.a[2].in - w), place = (d * p.a[1].in + h) * p.a[2].in + w;
    int64_t first = n * p.a[0].out * p.a[1].out * p.a[2].out * p.channels + c * V;
    auto range = [](const axis &a, int i) {
        readers r(a, i);
        if (a.map != TS_AXIS_WINDOW && a.map != TS_AXIS_ADAPTIVE) {
            r.first = 0;
            r.count = 1;
        }
        return r;
    };
    readers dr = range(p.a[0], d), hr = range(p.a[1], h), wr = range(p.a[2], w);
    if (RUN > 1) { /* up to the last window of the run */
        readers last = range(p.a[2], w + run - 1);
        wr.count = last.first + last.count - wr.first;
    }
    A sum[SUMS];
#pragma unroll
    for (int k = 0; k < SUMS; k++)
        sum[k] = 0;
    for (int j = 0; j < dr.count; j++)
        for (int k = 0; k < hr.count; k++) {
            int row = ((dr.first + j) * p.a[1].out + hr.first + k) * p.a[2].out + wr.first;
            for (int l = 0; l < wr.count; l++) {
                int64_t o = first + (int64_t)(row + l) * p.channels;
                A gs[V];
                load_wide<T, V>(gs, g + o);
#pragma unroll
                for (int v = 0; v < V; v++) {
                    int64_t wide = at[o + v];
                    int of = wide == (int)wide ? (int)wide : -1;
#pragma unroll
                    for (int e = 0; e < RUN; e++)
                        sum[e * V + v] += of == place + e ? gs[v] : (A)0;
                }
            }
        }
    T *to = y + (n * p.a[0].in * p.a[1].in * p.a[2].in + place) * p.channels + c * V;
    if (vector) {
        *reinterpret_cast<word_of<vec<T, SUMS>> *>(to) = to_word(pack<T, SUMS>(sum));
        return;
    }
#pragma unroll
    for (int e = 0; e < RUN; e++)
        if (e < run)
#pragma unroll
            for (int v = 0; v < V; v++)
                to[e * p.channels + v] = narrow<T>(sum[e * V + v]);
}

pool_call describe(const ts_frame *f, bool last)
{
    ts_resampling r = ts_kernel_resampling(f);
    pool_call p = {};
    const ts_tensor *t = f->args[0].t;
    p.planes = last ? ts_size(t, 0) : r.planes;
    p.channels = last ? ts_size(t, 1) : 1;
    for (int k = 0; k < 3; k++)
        p.a[k] = axis(r.axis[k]);
    return p;
}

unsigned blocks(int64_t n) { return (unsigned)((n + THREADS - 1) / THREADS); }

/** True if the indices in a spatial plane fit 31 bits. */
bool fits(const pool_call &p)
{
    return (double)p.a[0].in * p.a[1].in * p.a[2].in < INT32_MAX &&
           (double)p.a[0].out * p.a[1].out * p.a[2].out < INT32_MAX;
}

/** Calls f.operator()<V>(), with V the channels of a 16-byte vector if layout and addresses allow
 * it, else 1. */
template <class T, class F>
cudaError_t with_channels(const pool_call &p, const void *x, const void *y, const void *at, F &&f)
{
    if (!fits(p))
        return cudaErrorInvalidValue;
    if (p.channels > 1 && in_vectors<T>(p.channels, {x, y, at}))
        return f.template operator()<vec16<T>>();
    return f.template operator()<1>();
}

/** K of largest_kernel() for the call's windows. */
int square(const pool_call &p)
{
    const axis &d = p.a[0], &h = p.a[1], &w = p.a[2];
    bool plain = d.map == TS_AXIS_CONSTANT && h.map == TS_AXIS_WINDOW && w.map == TS_AXIS_WINDOW &&
                 h.dilation == 1 && w.dilation == 1 && h.kernel == w.kernel;
    return plain && (h.kernel == 2 || h.kernel == 3) ? h.kernel : 0;
}

/** (self, ...) -> (largest, places) */
ts_status max_pool(ts_frame *f)
{
    int64_t count = ts_numel(f->rets[0].t);
    if (!count)
        return TS_OK;
    pool_call p = describe(f, all_last({&f->args[0], &f->rets[0], &f->rets[1]}));
    return with_float(f, [&]<class T>(const call &on) {
        const T *x = data_of<T>(f->args[0]);
        T *y = data_of<T>(f->rets[0]);
        return with_channels<T>(p, x, y, data_of<int64_t>(f->rets[1]), [&]<int V>() {
            int64_t all = count / V;
            return with_numbers(all, [&]<class I>() {
                places<I> at = {split<I>(p.channels / V), split<I>(p.a[2].out),
                                split<I>(p.a[1].out), split<I>(p.a[0].out)};
                auto run = [&]<int K>() {
                    largest_kernel<T, I, V, K><<<blocks(all), THREADS, 0, on.stream>>>(
                        x, y, data_of<int64_t>(f->rets[1]), p, at, (I)all);
                    return cudaPeekAtLastError();
                };
                int k = square(p);
                return k == 2   ? run.template operator()<2>()
                       : k == 3 ? run.template operator()<3>()
                                : run.template operator()<0>();
            });
        });
    });
}

/** True if each pixel is in exactly one window of square(p). */
bool touching(const pool_call &p)
{
    bool all = square(p) > 0;
    for (int d = 1; d < 3; d++)
        all = all && p.a[d].stride == p.a[d].kernel && p.a[d].padding == 0 &&
              p.a[d].out * p.a[d].kernel == p.a[d].in;
    return all;
}

/** (grad, places, ...) -> dx */
ts_status max_pool_backward(ts_frame *f)
{
    int64_t count = ts_numel(f->rets[0].t);
    if (!count)
        return TS_OK;
    pool_call p = describe(f, all_last({&f->args[0], &f->args[1], &f->rets[0]}));
    return with_float(f, [&]<class T>(const call &on) {
        const T *g = data_of<T>(f->args[0]);
        T *y = data_of<T>(f->rets[0]);
        const int64_t *from = data_of<int64_t>(f->args[1]);
        return with_channels<T>(p, g, y, from, [&]<int V>() {
            if (touching(p))
                return with_numbers(count / V, [&]<class I>() {
                    auto spread = [&]<int K>() {
                        places<I> at = {split<I>(p.channels / V), split<I>(p.a[2].out),
                                        split<I>(p.a[1].out), split<I>(p.a[0].out)};
                        I windows = (I)(count / V / (K * K));
                        spread_kernel<T, I, V, K><<<blocks(windows), THREADS, 0, on.stream>>>(
                            g, from, y, p.a[2].in, at, windows);
                        return cudaPeekAtLastError();
                    };
                    return square(p) == 2 ? spread.template operator()<2>()
                                          : spread.template operator()<3>();
                });
            constexpr int RUN = gradient_run<T, V>;
            int64_t runs = (p.a[2].in + RUN - 1) / RUN, all = count / V / p.a[2].in * runs;
            return with_numbers(all, [&]<class I>() {
                places<I> at = {split<I>(p.channels / V), split<I>(runs), split<I>(p.a[1].in),
                                split<I>(p.a[0].in)};
                bool vector = V > 1 || (p.channels == 1 && p.a[2].in % RUN == 0 &&
                                        (uintptr_t)y % (RUN * sizeof(T)) == 0);
                gradient_kernel<T, I, V><<<blocks(all), THREADS, 0, on.stream>>>(
                    g, from, y, p, at, (I)all, vector);
                return cudaPeekAtLastError();
            });
        });
    });
}

} // namespace

TS_CUDA_FAMILY(pool,
    {"max_pool", max_pool, floats, false, false, true},
    {"adaptive_max_pool", max_pool, floats, false, false, true},
    {"max_pool_backward", max_pool_backward, floats, false, false, true},
)
