/**
 * @file pool.cu
 * Max pooling. An element of the gradient gathers from the windows that contain it, so sums have a
 * fixed order; if each pixel is in one window, a thread writes the pixels of a window instead. A
 * maximum is named by its index in the plane (i64), or by its tap (u8), its number
 * among the elements of its window.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/axes.cuh"
#include "tessera/ops.h"

#include <initializer_list>

using namespace ts;

namespace {

enum { THREADS = 256 };

struct pool_call {
    axis a[3];
    int64_t planes, channels; /* channels-last: samples and channels; else all planes and 1 */
    split<uint32_t> taps[2];  /* taps of a row of a window, and rows of a window */
    const void *added;        /* gradient: the tensor to which it is added, or NULL */
    int64_t pitch;            /* from one pixel of `added` to the next, in elements */
};

/** Elements of window o: `count` starting at `first`, `step` apart. The window's first `skipped`
 *  elements are outside of the image. */
struct window {
    int first, count, step, skipped;

    __device__ __forceinline__ window(const axis &a, int o)
        : first(0), count(1), step(1), skipped(0)
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
                skipped = (-first + step - 1) / step;
                first += skipped * step;
                count -= skipped;
            }
            count = min(count, first < a.in ? (a.in - 1 - first) / step + 1 : 0);
            if (count <= 0)
                first = count = skipped = 0;
        }
    }
};

/** Splits the index of a vector of the result into plane, depth d, height h, width w and channel
 * vector c; of() returns the plane. */
template <class I> struct index_split {
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
 * dilation, and all loads of a window are issued before the first comparison; 0: any window. at:
 * receives indices or taps; may be NULL. */
template <class T, class I, int V, int K, class AT>
__global__ void __launch_bounds__(THREADS)
    largest_kernel(const T *x, T *y, AT *at, const __grid_constant__ pool_call p,
                   index_split<I> index, I all)
{
    using A = wide_t<T>;
    constexpr bool TAPS = sizeof(AT) == 1;
    __shared__ int block[TAPS ? 1 : THREADS * V]; /* indices, to write them in adjacent pairs */
    I first_of_block = (I)blockIdx.x * THREADS,
      i = min(first_of_block + threadIdx.x, all - 1); /* surplus threads repeat the last vector */
    int d, h, w;
    int64_t c, n = index.of(i, d, h, w, c);
    int height = p.a[1].in, width = p.a[2].in, pixel = (int)p.channels;
    const T *from = x + n * p.a[0].in * height * width * p.channels + c * V;
    A best[V];
    int best_at[V];
    auto look = [&](const vec<T, V> &v, int q) {
        A xs[V];
        unpack<T, V>(v, xs);
#pragma unroll
        for (int k = 0; k < V; k++)
            if (xs[k] > best[k] || xs[k] != xs[k]) {
                best[k] = xs[k];
                best_at[k] = q;
            }
    };
    auto load = [&](int q) {
        return *reinterpret_cast<const vec<T, V> *>(from + (int64_t)q * pixel);
    };
    if constexpr (K > 0) {
        int top = h * p.a[1].stride - p.a[1].padding, left = w * p.a[2].stride - p.a[2].padding,
            first = TAPS ? max(-top, 0) * K + max(-left, 0)
                         : max(top, 0) * width + max(left, 0);
#pragma unroll
        for (int k = 0; k < V; k++) {
            best[k] = -INFINITY;
            best_at[k] = first;
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
                look(seen[j], TAPS ? j : r * width + s);
        }
    } else {
        window dw(p.a[0], d), hw(p.a[1], h), ww(p.a[2], w);
        auto tap = [&](int j, int k, int l) {
            return ((dw.skipped + j) * (int)p.taps[1].d + hw.skipped + k) * (int)p.taps[0].d +
                   ww.skipped + l;
        };
        int first = TAPS ? tap(0, 0, 0) : (dw.first * height + hw.first) * width + ww.first;
#pragma unroll
        for (int k = 0; k < V; k++) {
            best[k] = -INFINITY;
            best_at[k] = first;
        }
        for (int j = 0; j < dw.count; j++)
            for (int k = 0; k < hw.count; k++) {
                int row = ((dw.first + j * dw.step) * height + hw.first + k * hw.step) * width;
                for (int l = 0; l < ww.count; l++) {
                    int q = row + ww.first + l * ww.step;
                    look(load(q), TAPS ? tap(j, k, l) : q);
                }
            }
    }
    *reinterpret_cast<word_of<vec<T, V>> *>(y + (int64_t)i * V) = to_word(pack<T, V>(best));
    if (!at)
        return;
    if constexpr (TAPS) {
        vec<uint8_t, V> taps;
#pragma unroll
        for (int k = 0; k < V; k++)
            taps.at[k] = (uint8_t)best_at[k];
        *reinterpret_cast<word_of<vec<uint8_t, V>> *>(at + (int64_t)i * V) = to_word(taps);
    } else {
        constexpr int EACH = V > 1 ? 2 : 1, LANES = 32 * EACH;
        int *warp = block + threadIdx.x / 32 * 32 * V, lane = threadIdx.x % 32;
#pragma unroll
        for (int k = 0; k < V; k++)
            warp[lane * V + k] = best_at[k];
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
}

/** V elements of p.added that belong to pixel q of the image n, channels c to c + V - 1; 0 without
 *  `added`. pixels: of an image. */
template <class T, int V>
__device__ __forceinline__ void load_added(wide_t<T> (&x)[V], const pool_call &p, int64_t n,
                                           int64_t pixels, int64_t q, int64_t c)
{
    if (p.added) {
        load_wide<T, V>(x, (const T *)p.added + (n * pixels + q) * p.pitch + c);
    } else {
#pragma unroll
        for (int k = 0; k < V; k++)
            x[k] = 0;
    }
}

/** Loads V taps. */
template <int V> __device__ __forceinline__ void load_taps(int (&x)[V], const uint8_t *p)
{
    auto word = *reinterpret_cast<const word_of<vec<uint8_t, V>> *>(p);
    vec<uint8_t, V> taps = from_word<vec<uint8_t, V>>(word);
#pragma unroll
    for (int k = 0; k < V; k++)
        x[k] = taps.at[k];
}

/** Gradient y of max pooling with K x K windows in the last two dims that touch and cover the
 * input: a thread writes V channels of a window's pixels. `all`, `index`: of the windows. */
template <class T, int V, int K, class AT>
__global__ void __launch_bounds__(THREADS)
    spread_kernel(const T *g, const AT *at, T *y, const __grid_constant__ pool_call p,
                  index_split<uint32_t> index, uint32_t all)
{
    constexpr bool TAPS = sizeof(AT) == 1;
    int width = p.a[2].in;
    using A = wide_t<T>;
    uint32_t i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= all)
        return;
    int d, h, w, best_at[V];
    int64_t c, n = index.of(i, d, h, w, c), channels = (int64_t)index.channels.d * V;
    A gs[V];
    load_wide<T, V>(gs, g + (int64_t)i * V);
    if constexpr (TAPS)
        load_taps<V>(best_at, at + (int64_t)i * V);
#pragma unroll
    for (int k = 0; !TAPS && k < V; k += 2) {
        if constexpr (TAPS) {
        } else if constexpr (V > 1) {
            longlong2 two = *reinterpret_cast<const longlong2 *>(at + (int64_t)i * V + k);
            best_at[k] = (int)two.x, best_at[k + 1] = (int)two.y;
        } else {
            best_at[k] = (int)at[i];
        }
    }
    int first = h * K * width + w * K;
    int64_t pixels = (int64_t)index.height.d * K * width;
    T *to = y + n * pixels * channels + c * V;
    A ys[K * K][V];
#pragma unroll
    for (int j = 0; j < K * K; j++)
        load_added<T, V>(ys[j], p, n, pixels, first + j / K * width + j % K, c * V);
#pragma unroll
    for (int j = 0; j < K * K; j++) {
        int q = first + j / K * width + j % K;
#pragma unroll
        for (int k = 0; k < V; k++)
            ys[j][k] += best_at[k] == (TAPS ? j : q) ? gs[k] : (A)0;
        *reinterpret_cast<word_of<vec<T, V>> *>(to + q * channels) = to_word(pack<T, V>(ys[j]));
    }
}

/** Consecutive elements along the last dim that a thread of gradient_kernel() computes. */
template <class T, int V> constexpr int gradient_run = V > 1 ? 1 : sizeof(T) == 8 ? 2 : 4;

/** Gradient y of max pooling: each element sums g of the windows whose maximum it is. A thread
 * computes V channels of one element, or a run of elements of one channel, which share windows. at:
 * indices or taps of the maxima, from largest_kernel(); index: of runs; vector: a run is stored at
 * once. */
template <class T, class I, int V, class AT>
__global__ void __launch_bounds__(THREADS)
    gradient_kernel(const T *g, const AT *at, T *y, const __grid_constant__ pool_call p,
                    index_split<I> index, I all, bool vector)
{
    using A = wide_t<T>;
    constexpr int RUN = gradient_run<T, V>, SUMS = RUN * V;
    I i = (I)blockIdx.x * THREADS + threadIdx.x;
    if (i >= all)
        return;
    int d, h, w;
    int64_t c, n = index.of(i, d, h, w, c);
    w *= RUN;
    int run = min(RUN, p.a[2].in - w), pixel = (d * p.a[1].in + h) * p.a[2].in + w;
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
    int64_t pixels = (int64_t)p.a[0].in * p.a[1].in * p.a[2].in;
#pragma unroll
    for (int e = 0; e < RUN; e++) {
        A added[V] = {};
        if (e < run)
            load_added<T, V>(added, p, n, pixels, pixel + e, c * V);
#pragma unroll
        for (int k = 0; k < V; k++)
            sum[e * V + k] = added[k];
    }
    /* index of a tap of the window that begins (padding included) at `depth`, `row`, `column` */
    auto index_of = [&](uint32_t tap, int depth, int row, int column) {
        uint32_t r = p.taps[0].of(tap), s = p.taps[1].of(r);
        return ((depth + (int)s * p.a[0].dilation) * p.a[1].in + row +
                (int)(r - s * p.taps[1].d) * p.a[1].dilation) * p.a[2].in + column +
               (int)(tap - r * p.taps[0].d) * p.a[2].dilation;
    };
    auto begin_of = [](const axis &a, int o) {
        return a.map == TS_AXIS_WINDOW ? o * a.stride - a.padding : 0;
    };
    for (int j = 0; j < dr.count; j++)
        for (int k = 0; k < hr.count; k++) {
            int row = ((dr.first + j) * p.a[1].out + hr.first + k) * p.a[2].out + wr.first;
            for (int l = 0; l < wr.count; l++) {
                int64_t o = first + (int64_t)(row + l) * p.channels;
                A gs[V];
                load_wide<T, V>(gs, g + o);
#pragma unroll
                for (int v = 0; v < V; v++) {
                    int of;
                    if constexpr (sizeof(AT) == 1) {
                        of = index_of(at[o + v], begin_of(p.a[0], dr.first + j),
                                      begin_of(p.a[1], hr.first + k),
                                      begin_of(p.a[2], wr.first + l));
                    } else {
                        int64_t wide = at[o + v];
                        of = wide == (int)wide ? (int)wide : -1;
                    }
#pragma unroll
                    for (int e = 0; e < RUN; e++)
                        sum[e * V + v] += of == pixel + e ? gs[v] : (A)0;
                }
            }
        }
    T *to = y + (n * pixels + pixel) * p.channels + c * V;
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

/** values: the tensors of the call. *is_last: they are channels-last; may be NULL. */
pool_call describe(const ts_frame *f, std::initializer_list<const ts_value *> values,
                   bool *is_last = nullptr)
{
    ts_resampling r = ts_kernel_resampling(f);
    pool_call p = {};
    const ts_tensor *t = f->args[0].t;
    bool last = all_last_images(r, values);
    if (is_last)
        *is_last = last;
    p.planes = last ? ts_size(t, 0) : r.planes;
    p.channels = last ? ts_size(t, 1) : 1;
    for (int k = 0; k < 3; k++)
        p.a[k] = axis(r.axis[k]);
    for (int k = 0; k < 2; k++) {
        const axis &a = p.a[2 - k];
        p.taps[k] = split<uint32_t>(a.map == TS_AXIS_WINDOW ? a.kernel : 1);
    }
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

/** (self, ...) -> (largest, positions); positions are indices (AT: int64_t) or taps (uint8_t) */
template <class AT> ts_status max_pool(ts_frame *f)
{
    int64_t count = ts_numel(f->rets[0].t);
    if (!count)
        return TS_OK;
    pool_call p = describe(f, {&f->args[0], &f->rets[0], &f->rets[1]});
    return with_float(f, [&]<class T>(const call &on) {
        const T *x = data_of<T>(f->args[0]);
        T *y = data_of<T>(f->rets[0]);
        AT *named = data_of<AT>(f->rets[1]);
        return with_channels<T>(p, x, y, named, [&]<int V>() {
            int64_t all = count / V;
            return with_numbers(all, [&]<class I>() {
                index_split<I> at = {split<I>(p.channels / V), split<I>(p.a[2].out),
                                     split<I>(p.a[1].out), split<I>(p.a[0].out)};
                auto run = [&]<int K>() {
                    largest_kernel<T, I, V, K, AT>
                        <<<blocks(all), THREADS, 0, on.stream>>>(x, y, named, p, at, (I)all);
                    return cudaPeekAtLastError();
                };
                if constexpr (sizeof(I) == 4) {
                    if (square(p) == 2)
                        return run.template operator()<2>();
                    if (square(p) == 3)
                        return run.template operator()<3>();
                }
                return run.template operator()<0>();
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

/** Launches the gradient of p's windows. g and `from` are arguments 0 and 1, y result 0. */
template <class AT> ts_status launch_gradient(ts_frame *f, const pool_call &p)
{
    int64_t count = ts_numel(f->rets[0].t);
    return with_float(f, [&]<class T>(const call &on) {
        const T *g = data_of<T>(f->args[0]);
        T *y = data_of<T>(f->rets[0]);
        const AT *from = data_of<AT>(f->args[1]);
        return with_channels<T>(p, g, y, from, [&]<int V>() {
            if (touching(p) && count / V <= INT32_MAX) {
                auto spread = [&]<int K>() {
                    using I = uint32_t;
                    index_split<I> at = {split<I>(p.channels / V), split<I>(p.a[2].out),
                                         split<I>(p.a[1].out), split<I>(p.a[0].out)};
                    I windows = (I)(count / V / (K * K));
                    spread_kernel<T, V, K, AT>
                        <<<blocks(windows), THREADS, 0, on.stream>>>(g, from, y, p, at, windows);
                    return cudaPeekAtLastError();
                };
                return square(p) == 2 ? spread.template operator()<2>()
                                      : spread.template operator()<3>();
            }
            constexpr int RUN = gradient_run<T, V>;
            int64_t runs = (p.a[2].in + RUN - 1) / RUN, all = count / V / p.a[2].in * runs;
            return with_numbers(all, [&]<class I>() {
                index_split<I> at = {split<I>(p.channels / V), split<I>(runs), split<I>(p.a[1].in),
                                     split<I>(p.a[0].in)};
                bool vector = V > 1 || (p.channels == 1 && p.a[2].in % RUN == 0 &&
                                        (uintptr_t)y % (RUN * sizeof(T)) == 0);
                gradient_kernel<T, I, V, AT><<<blocks(all), THREADS, 0, on.stream>>>(
                    g, from, y, p, at, (I)all, vector);
                return cudaPeekAtLastError();
            });
        });
    });
}

/** (grad, indices, ...) -> dx */
ts_status max_pool_backward(ts_frame *f)
{
    if (!ts_numel(f->rets[0].t))
        return TS_OK;
    return launch_gradient<int64_t>(f, describe(f, {&f->args[0], &f->args[1], &f->rets[0]}));
}

/** Distance of t's pixels in elements, if they are equally far apart and the channels of a pixel
 *  are adjacent, in vectors of 16 bytes; else 0. */
int64_t pitch_of(const ts_tensor *t)
{
    const int64_t *sizes = ts_sizes(t), *strides = ts_strides(t);
    int n = ts_ndim(t);
    int64_t pitch = strides[n - 1], step = pitch,
            item = (int64_t)ts_dtype_size(ts_dtype_of(t));
    for (int d = n - 1; d >= 2; d--) {
        if (strides[d] != step)
            return 0;
        step *= sizes[d];
    }
    bool even = (pitch * item | (int64_t)(uintptr_t)ts_kernel_data(t)) % 16 == 0;
    return strides[1] == 1 && pitch >= sizes[1] && even && (sizes[0] == 1 || strides[0] == step)
               ? pitch
               : 0;
}

/** (grad, taps, added, ...) -> dx */
ts_status max_pool_taps_backward(ts_frame *f)
{
    if (!ts_numel(f->rets[0].t))
        return TS_OK;
    TS_SCOPE;
    bool last;
    pool_call p = describe(f, {&f->args[0], &f->args[1], &f->rets[0]}, &last);
    ts_tensor *added = f->args[2].tag == TS_TAG_TENSOR ? f->args[2].t : nullptr;
    int n = added ? ts_ndim(added) : 0;
    p.pitch = p.channels;
    if (added && last && (p.pitch = pitch_of(added)) == 0) {
        int64_t order[5] = {0, 0, 0, 0, 1};
        for (int d = 1; d < n; d++)
            order[d] = d < n - 1 ? d + 1 : 1;
        added = ts_contiguous(ts_permute(added, order, n));
        p.pitch = p.channels;
    } else if (added && !last) {
        added = ts_contiguous(added);
    }
    if (f->args[2].tag == TS_TAG_TENSOR)
        TS_CUDA_TRY(ts_status_of_pointer(added));
    p.added = added ? ts_kernel_data(added) : nullptr;
    return launch_gradient<uint8_t>(f, p);
}

} // namespace

TS_CUDA_FAMILY(pool,
    {"max_pool", max_pool<int64_t>, floats, false, false, true},
    {"max_pool_taps", max_pool<uint8_t>, floats, false, false, true},
    {"adaptive_max_pool", max_pool<int64_t>, floats, false, false, true},
    {"max_pool_backward", max_pool_backward, floats, false, false, true},
    {"max_pool_taps_backward", max_pool_taps_backward, floats, false, false, true},
)
