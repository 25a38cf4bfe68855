/**
 * @file batch_norm.cu
 * Batch norm and group norm, and their gradients.
 *
 * A unit is a channel: of all samples for batch norm (one set of units), of one sample for group
 * norm (one set per sample). Pass 1 sums parts (splits) of each unit's elements, pass 2 combines
 * the splits into statistics and coefficients, and pass 3 reads the elements again and writes the
 * result. The order of additions does not depend on scheduling.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/image.cuh"
#include "tessera/ops.h"

#include <initializer_list>

using namespace ts;

namespace {

enum { THREADS = 256, PARTS = 3, UNROLL = 4 };

/** A contiguous parameter or statistic of any floating dtype, or none. */
struct parameter {
    const void *data;
    int dtype;

    parameter(const ts_value &v)
        : data(v.tag == TS_TAG_TENSOR ? ts_kernel_data(v.t) : nullptr),
          dtype(data ? ts_dtype_of(v.t) : TS_F32)
    {
    }
    template <class A> __device__ __noinline__ A at(int64_t i, A absent) const
    {
        if (!data)
            return absent;
        switch (dtype) {
        case TS_F64: return (A)((const double *)data)[i];
        case TS_BF16: return (A)widen(((const bf16 *)data)[i]);
        case TS_F16: return (A)widen(((const f16 *)data)[i]);
        default: return (A)((const float *)data)[i];
        }
    }
    template <class A> __device__ __noinline__ void put(int64_t i, A x) const
    {
        void *to = const_cast<void *>(data);
        if (!to)
            return;
        switch (dtype) {
        case TS_F64: ((double *)to)[i] = (double)x; break;
        case TS_BF16: ((bf16 *)to)[i] = narrow<bf16>((float)x); break;
        case TS_F16: ((f16 *)to)[i] = narrow<f16>((float)x); break;
        default: ((float *)to)[i] = (float)x;
        }
    }
};

/** Sizes of a call: (samples, sets, channels C, positions S). Element (n, set, c, s) is at
 * ((n sets + set) C + c) S + s if contiguous, at (set S + s) C + c in channels-last, where samples
 * is 1. */
struct shape {
    int64_t samples, sets, channels, positions;
    int64_t groups;  /* groups of channels; statistics are (sets, groups) */
    int64_t splits;  /* splits per unit */
    double eps;

    __device__ __forceinline__ int64_t statistic(int64_t unit) const
    {
        return unit / channels * groups + unit % channels / (channels / groups);
    }
};

/** Sums over elements of a unit. Forward: a, b are the sums of x - shift and of its square, where
 * shift is the first element; finish() turns them into mean and squared deviations. GRADIENT: a, b
 * are the sums of g and g (x - shift), where shift is the mean. */
template <class A> struct sums {
    A count = 0, a = 0, b = 0, shift = 0;

    template <bool GRADIENT> __device__ __forceinline__ void add(A x, A g)
    {
        if constexpr (GRADIENT) {
            a += g;
            b += g * (x - shift);
        } else {
            if (count == 0)
                shift = x;
            A d = x - shift;
            a += d;
            b += d * d;
        }
        count += 1;
    }
    /** Forward: sets a to the mean and b to the sum of squared deviations from it. */
    template <bool GRADIENT> __device__ __forceinline__ void finish()
    {
        if constexpr (!GRADIENT)
            if (count > 0) {
                A by = a / count;
                b = b - a * by;
                b = b < 0 ? (A)0 : b;
                a = shift + by;
            }
    }
    template <bool GRADIENT> __device__ __forceinline__ void merge(A count2, A a2, A b2)
    {
        if constexpr (GRADIENT) {
            a += a2;
            b += b2;
        } else if (count2 > 0) {
            A all = count + count2, apart = a2 - a;
            b += b2 + apart * apart * (count * (count2 / all));
            a += apart * (count2 / all);
            count = all;
        }
    }
};

/** Merges the sums of a block's threads (x, y) over y, 0 <= y < rows, a power of two; thread (x, 0)
 * has the result. columns: number of x. */
template <bool GRADIENT, class A, int N>
__device__ __forceinline__ void merge_rows(sums<A> (&s)[N], int columns, int rows, int x, int y)
{
    __shared__ A memory[PARTS][THREADS * (N > 1 ? N : 1)];
    for (int half = rows / 2; half; half /= 2) {
        __syncthreads();
        if (y >= half && y < 2 * half)
#pragma unroll
            for (int k = 0; k < N; k++) {
                int at = ((y - half) * columns + x) * N + k;
                memory[0][at] = s[k].count;
                memory[1][at] = s[k].a;
                memory[2][at] = s[k].b;
            }
        __syncthreads();
        if (y < half)
#pragma unroll
            for (int k = 0; k < N; k++) {
                int at = (y * columns + x) * N + k;
                s[k].template merge<GRADIENT>(memory[0][at], memory[1][at], memory[2][at]);
            }
    }
}

template <class T, int V>
__device__ __forceinline__ void fetch(wide_t<T> (&x)[V], const T *p)
{
    unpack<T, V>(*reinterpret_cast<const vec<T, V> *>(p), x);
}

/** Pass 1, contiguous: block (unit, split) writes count, a and b of its split to `parts`
 * (units, splits, PARTS). */
template <class T, int V, bool GRADIENT>
__global__ void __launch_bounds__(THREADS)
    unit_sums(const T *x, const T *g, shape s, parameter mean, split<uint32_t> row,
              wide_t<T> *parts)
{
    using A = wide_t<T>;
    int64_t unit = blockIdx.x, units = s.sets * s.channels;
    uint32_t all = (uint32_t)(s.samples * (s.positions / V)),
             each = (uint32_t)((all + s.splits - 1) / s.splits),
             from = blockIdx.y * each, end = min(from + each, all);
    sums<A> sum[1];
    if (GRADIENT)
        sum[0].shift = mean.at<A>(s.statistic(unit), 0);
    for (uint32_t i = from + threadIdx.x; i < end; i += THREADS) {
        uint32_t n = row.of(i);
        int64_t at = ((int64_t)n * units + unit) * s.positions + (int64_t)(i - n * row.d) * V;
        A xs[V], gs[V];
        fetch<T, V>(xs, x + at);
        if (GRADIENT)
            fetch<T, V>(gs, g + at);
#pragma unroll
        for (int k = 0; k < V; k++)
            sum[0].template add<GRADIENT>(xs[k], GRADIENT ? gs[k] : 0);
    }
    sum[0].template finish<GRADIENT>();
    merge_rows<GRADIENT>(sum, 1, THREADS, 0, (int)threadIdx.x);
    if (threadIdx.x == 0) {
        A *to = parts + (unit * s.splits + blockIdx.y) * PARTS;
        to[0] = sum[0].count;
        to[1] = sum[0].a;
        to[2] = sum[0].b;
    }
}

/** Pass 1, channels-last: block (vectors of channels of a set, split) of threads (columns, rows),
 * where a column is a vector of channels. */
template <class T, int V, bool GRADIENT>
__global__ void __launch_bounds__(THREADS)
    pixel_sums(const T *x, const T *g, shape s, parameter mean, wide_t<T> *parts)
{
    using A = wide_t<T>;
    int64_t blocks = (s.channels / V + blockDim.x - 1) / blockDim.x, set = blockIdx.x / blocks,
            c = ((int64_t)blockIdx.x % blocks * blockDim.x + threadIdx.x) * V,
            each = (s.positions + s.splits - 1) / s.splits, from = blockIdx.y * each,
            end = min(from + each, s.positions);
    sums<A> sum[V];
    if (c < s.channels) {
        if (GRADIENT)
#pragma unroll
            for (int k = 0; k < V; k++)
                sum[k].shift = mean.at<A>(s.statistic(set * s.channels + c + k), 0);
        for (int64_t i = from + threadIdx.y; i < end; i += blockDim.y) {
            int64_t at = (set * s.positions + i) * s.channels + c;
            A xs[V], gs[V];
            fetch<T, V>(xs, x + at);
            if (GRADIENT)
                fetch<T, V>(gs, g + at);
#pragma unroll
            for (int k = 0; k < V; k++)
                sum[k].template add<GRADIENT>(xs[k], GRADIENT ? gs[k] : 0);
        }
#pragma unroll
        for (int k = 0; k < V; k++)
            sum[k].template finish<GRADIENT>();
    }
    merge_rows<GRADIENT>(sum, (int)blockDim.x, (int)blockDim.y, (int)threadIdx.x,
                         (int)threadIdx.y);
    if (threadIdx.y == 0 && c < s.channels)
#pragma unroll
        for (int k = 0; k < V; k++) {
            A *to = parts + ((set * s.channels + c + k) * s.splits + blockIdx.y) * PARTS;
            to[0] = sum[k].count;
            to[1] = sum[k].a;
            to[2] = sum[k].b;
        }
}

/** Sum over the lanes of a warp, in every lane. */
template <class A> __device__ __forceinline__ A warp_sum(A x)
{
#pragma unroll
    for (int by = 16; by; by /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, by);
    return x;
}

/** Arrays of one coefficient per unit: the result is g slope + (x - mean) scale + add. */
template <class A> struct coefficients {
    A *mean, *scale, *add, *slope;

    coefficients(void *memory, int64_t units)
        : mean((A *)memory), scale(mean + units), add(scale + units), slope(add + units)
    {
    }
};

/** Pass 2 of the forward op, one warp per statistic: writes mean and variance, combined from the
 * splits of its units or copied from the given ones, and the coefficients of its units. */
template <class A>
__global__ void __launch_bounds__(THREADS)
    combine_moments(const A *parts, shape s, parameter mean, parameter var, parameter given_mean,
                    parameter given_var, parameter weight, parameter bias, coefficients<A> to)
{
    int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32;
    int lane = threadIdx.x % 32;
    if (at >= s.sets * s.groups)
        return;
    int64_t width = s.channels / s.groups, n = width * s.splits, first = at % s.groups * width,
            unit = at / s.groups * s.channels + first;
    A m, v;
    if (given_mean.data) {
        m = given_mean.at<A>(at, 0);
        v = given_var.at<A>(at, 0);
    } else {
        const A *from = parts + unit * s.splits * PARTS;
        double count = 0, sum = 0, squares = 0; /* double: the mean of equal elements is exact */
        for (int64_t i = lane; i < n; i += 32) {
            count += from[i * PARTS];
            sum += (double)from[i * PARTS] * from[i * PARTS + 1];
        }
        count = warp_sum(count);
        double whole = warp_sum(sum) / count;
        for (int64_t i = lane; i < n; i += 32) { /* an empty split has no mean */
            double d = from[i * PARTS] > 0 ? from[i * PARTS + 1] - whole : 0;
            squares += from[i * PARTS + 2] + from[i * PARTS] * d * d;
        }
        m = (A)whole;
        v = (A)(warp_sum(squares) / count);
    }
    if (lane == 0) {
        mean.put(at, m);
        var.put(at, v);
    }
    A rstd = rsqrt(v + (A)s.eps);
    for (int64_t k = lane; k < width; k += 32) {
        to.mean[unit + k] = m;
        to.scale[unit + k] = rstd * weight.at<A>(first + k, 1);
        to.add[unit + k] = bias.at<A>(first + k, 0);
    }
}

/** Pass 2 of the backward op, from the sums of g and g (x - mean) per unit and split. The first
 * sets * groups warps write the coefficients of the units of one statistic each; the next
 * `channels` warps compute dw and db of one channel each. constant: the statistics were given. */
template <class A>
__global__ void __launch_bounds__(THREADS)
    combine_sums(const A *parts, shape s, parameter mean, parameter var, parameter weight,
                 bool constant, coefficients<A> to, parameter dw, parameter db)
{
    int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32, all = s.sets * s.groups,
            width = s.channels / s.groups;
    int lane = threadIdx.x % 32;
    A shift = 0, along = 0;
    if (at < all) {
        int64_t first = at % s.groups * width, unit = at / s.groups * s.channels + first;
        A rstd = rsqrt(var.at<A>(at, 0) + (A)s.eps), m = mean.at<A>(at, 0),
          n = (A)(s.samples * s.positions * width);
        if (!constant) {
            const A *from = parts + unit * s.splits * PARTS;
            for (int64_t i = lane; i < width * s.splits; i += 32) {
                A w = weight.at<A>(first + i / s.splits, 1);
                shift += w * from[i * PARTS + 1];
                along += w * from[i * PARTS + 2];
            }
            shift = warp_sum(shift);
            along = warp_sum(along);
        }
        for (int64_t k = lane; k < width; k += 32) {
            to.mean[unit + k] = m;
            to.scale[unit + k] = -rstd * rstd * rstd * along / n;
            to.add[unit + k] = -rstd * shift / n;
            to.slope[unit + k] = rstd * weight.at<A>(first + k, 1);
        }
        return;
    }
    int64_t c = at - all;
    if (c >= s.channels || !(dw.data || db.data))
        return;
    for (int64_t i = lane; i < s.sets * s.splits; i += 32) {
        int64_t unit = i / s.splits * s.channels + c;
        const A *from = parts + (unit * s.splits + i % s.splits) * PARTS;
        shift += from[1];
        along += from[2] * rsqrt(var.at<A>(s.statistic(unit), 0) + (A)s.eps);
    }
    shift = warp_sum(shift);
    along = warp_sum(along);
    if (lane == 0) {
        dw.put(c, along);
        db.put(c, shift);
    }
}

/** Pass 3 for V elements from `at` on. MODE 0: the result; 1: the gradient of x; 2: the gradient of
 * x for constant statistics, which reads g only. N: number of channels, 1 or V. */
template <class T, int V, int MODE, int N>
__device__ __forceinline__ void apply(const T *x, const T *g, T *y, int64_t at,
                                      const wide_t<T> (&mean)[N], const wide_t<T> (&scale)[N],
                                      const wide_t<T> (&add)[N], const wide_t<T> (&slope)[N])
{
    using A = wide_t<T>;
    A xs[V], gs[V], ys[V];
    if (MODE < 2)
        fetch<T, V>(xs, x + at);
    if (MODE > 0)
        fetch<T, V>(gs, g + at);
#pragma unroll
    for (int i = 0; i < V; i++) {
        constexpr int own = N > 1;
        int k = own * i;
        A v = MODE < 2 ? (xs[i] - mean[k]) * scale[k] + add[k] : (A)0;
        ys[i] = MODE == 0 ? v : MODE == 1 ? gs[i] * slope[k] + v : gs[i] * slope[k];
    }
    *reinterpret_cast<word_of<vec<T, V>> *>(y + at) = to_word(pack<T, V>(ys));
}

template <class A, int N, int MODE>
__device__ __forceinline__ void load_coefficients(const coefficients<A> &k, int64_t unit,
                                                  A (&mean)[N], A (&scale)[N], A (&add)[N],
                                                  A (&slope)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        mean[i] = MODE < 2 ? k.mean[unit + i] : (A)0;
        scale[i] = MODE < 2 ? k.scale[unit + i] : (A)0;
        add[i] = MODE < 2 ? k.add[unit + i] : (A)0;
        slope[i] = MODE > 0 ? k.slope[unit + i] : (A)0;
    }
}

template <class T, int V, int MODE, class I>
__global__ void __launch_bounds__(THREADS)
    unit_results(const T *x, const T *g, T *y, coefficients<wide_t<T>> k, split<I> row,
                 split<I> units, I count)
{
    I first = (I)blockIdx.x * (THREADS * UNROLL) + threadIdx.x;
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        I i = first + u * THREADS;
        if (i >= count)
            return;
        I r = row.of(i), unit = r - units.of(r) * units.d;
        wide_t<T> mean[1], scale[1], add[1], slope[1];
        load_coefficients<wide_t<T>, 1, MODE>(k, unit, mean, scale, add, slope);
        apply<T, V, MODE>(x, g, y, (int64_t)i * V, mean, scale, add, slope);
    }
}

/** Pass 3, channels-last: a thread loads the coefficients of V channels once for several
 * positions. */
template <class T, int V, int MODE>
__global__ void __launch_bounds__(THREADS)
    pixel_results(const T *x, const T *g, T *y, shape s, coefficients<wide_t<T>> k, int64_t each)
{
    int64_t blocks = (s.channels / V + blockDim.x - 1) / blockDim.x, set = blockIdx.x / blocks,
            c = ((int64_t)blockIdx.x % blocks * blockDim.x + threadIdx.x) * V,
            from = blockIdx.y * each, end = min(from + each, s.positions);
    if (c >= s.channels)
        return;
    wide_t<T> mean[V], scale[V], add[V], slope[V];
    load_coefficients<wide_t<T>, V, MODE>(k, set * s.channels + c, mean, scale, add, slope);
#pragma unroll 2
    for (int64_t i = from + threadIdx.y; i < end; i += blockDim.y)
        apply<T, V, MODE>(x, g, y, (set * s.positions + i) * s.channels + c, mean, scale, add,
                          slope);
}

/* ------------------------------------------------------------------------------ launches ---- */

/** A decoded call. */
struct norm_call {
    shape s;
    bool last; /* channels-last */
    const void *x, *g;
    void *y;
};

int power_of_two(int64_t n, int most)
{
    int p = 1;
    while (p < n && p < most)
        p *= 2;
    return p;
}

/** Block of THREADS threads (columns, rows) for `vectors` vectors of channels. */
dim3 pixel_block(int64_t vectors)
{
    int columns = power_of_two(vectors, 32);
    return dim3((unsigned)columns, (unsigned)(THREADS / columns));
}

norm_call describe(ts_frame *f, int x_arg, int64_t groups, bool batch, double eps, int sms)
{
    norm_call c = {};
    const ts_tensor *x = f->args[x_arg].t;
    c.x = ts_kernel_data(x);
    c.g = x_arg ? ts_kernel_data(f->args[0].t) : nullptr;
    c.y = f->rets[0].tag == TS_TAG_TENSOR ? ts_kernel_data(f->rets[0].t) : nullptr;
    shape &s = c.s;
    s.samples = ts_size(x, 0);
    s.channels = ts_size(x, 1);
    s.positions = 1;
    for (int d = 2; d < ts_ndim(x); d++)
        s.positions *= ts_size(x, d);
    s.groups = batch ? s.channels : groups;
    s.eps = eps;
    c.last = s.positions == 1 || all_last({&f->args[0], &f->args[x_arg], &f->rets[0]});
    s.sets = batch ? 1 : s.samples;
    if (c.last && batch)
        s.positions *= s.samples;
    if (c.last || !batch)
        s.samples = 1;
    int64_t units = s.sets * (c.last ? (s.channels + 127) / 128 : s.channels),
            least = c.last ? 64 : 4096, room = s.samples * s.positions / least,
            splits = units ? ((int64_t)sms * 8 + units - 1) / units : 1;
    s.splits = splits < room ? splits : room;
    s.splits = s.splits < 1 ? 1 : s.splits > 1024 ? 1024 : s.splits;
    return c;
}

template <class T, int V, bool GRADIENT>
cudaError_t sum_pass(const norm_call &c, parameter mean, wide_t<T> *parts, cudaStream_t stream)
{
    const shape &s = c.s;
    const T *x = (const T *)c.x, *g = (const T *)c.g;
    if (c.last) {
        dim3 block = pixel_block(s.channels / V);
        dim3 grid((unsigned)((s.channels / V + block.x - 1) / block.x * s.sets),
                  (unsigned)s.splits);
        pixel_sums<T, V, GRADIENT><<<grid, block, 0, stream>>>(x, g, s, mean, parts);
    } else {
        dim3 grid((unsigned)(s.sets * s.channels), (unsigned)s.splits);
        unit_sums<T, V, GRADIENT><<<grid, THREADS, 0, stream>>>(
            x, g, s, mean, split<uint32_t>(s.positions / V), parts);
    }
    return cudaPeekAtLastError();
}

template <class T, int V, int MODE>
cudaError_t result_pass(const norm_call &c, coefficients<wide_t<T>> k, cudaStream_t stream)
{
    const shape &s = c.s;
    const T *x = (const T *)c.x, *g = (const T *)c.g;
    T *y = (T *)c.y;
    if (c.last) {
        dim3 block = pixel_block(s.channels / V);
        int64_t each = (int64_t)block.y * 8, blocks = (s.positions + each - 1) / each;
        if (blocks > 65535) {
            each *= (blocks + 65534) / 65535;
            blocks = (s.positions + each - 1) / each;
        }
        dim3 grid((unsigned)((s.channels / V + block.x - 1) / block.x * s.sets),
                  (unsigned)blocks);
        pixel_results<T, V, MODE><<<grid, block, 0, stream>>>(x, g, y, s, k, each);
        return cudaPeekAtLastError();
    }
    int64_t units = s.sets * s.channels, count = s.samples * units * (s.positions / V);
    return with_numbers(count, [&]<class I>() {
        unit_results<T, V, MODE, I>
            <<<(unsigned)((count + THREADS * UNROLL - 1) / (THREADS * UNROLL)), THREADS, 0,
               stream>>>(x, g, y, k, split<I>(s.positions / V), split<I>(units), (I)count);
        return cudaPeekAtLastError();
    });
}

/** Calls f.operator()<V>() with the elements of 16-byte vectors if sizes and addresses allow them,
 * else with 1. Pass y = nullptr for sums: the order of additions depends on V and must not depend
 * on the address of the result. */
template <class T, class F> cudaError_t with_vectors(const norm_call &c, const void *y, F &&f)
{
    int64_t run = c.last ? c.s.channels : c.s.positions;
    if (in_vectors<T>(run, {c.x, c.g, y}))
        return f.template operator()<vec16<T>>();
    return f.template operator()<1>();
}

unsigned warps(int64_t n) { return (unsigned)((n * 32 + THREADS - 1) / THREADS); }

/** Runs the forward op. given: mean and var, or nullptr to compute them. weight_arg: index of the
 * weight; bias and eps follow it. Statistics that are not requested go to temporary tensors. */
ts_status forward(ts_frame *f, int64_t groups, bool batch, const ts_value *given, int weight_arg)
{
    ts_device where = ts_kernel_device(f);
    ts_cuda_device *device = ts_cuda_use(where.index);
    if (!device)
        return ts_error_code();
    norm_call c = describe(f, 0, groups, batch, f->args[weight_arg + 2].d, device->sms);
    TS_SCOPE;
    ts_value mean = f->rets[1], var = f->rets[2];
    ts_dtype dtype = ts_kernel_dtype(f) == TS_F64 ? TS_F64 : TS_F32;
    int64_t statistics = c.s.sets * c.s.groups;
    for (ts_value *v : {&mean, &var})
        if (v->tag != TS_TAG_TENSOR) {
            *v = ts_value_tensor(ts_empty_on(&statistics, 1, dtype, where));
            TS_CUDA_TRY(ts_status_of_pointer(v->t));
        }
    int64_t units = c.s.sets * c.s.channels, item = dtype == TS_F64 ? 8 : 4,
            parts_bytes = given ? 0 : (units * c.s.splits * PARTS * item + 15) / 16 * 16,
            bytes = parts_bytes + units * 4 * item;
    void *parts = nullptr;
    if (bytes && !(parts = ts_scratch_take(where, bytes)))
        return ts_error_code();
    ts_value none = ts_value_none();
    ts_status status = with_float(f, [&]<class T>(const call &on) {
        using A = wide_t<T>;
        parameter given_mean(given ? given[0] : none), given_var(given ? given[1] : none);
        coefficients<A> k((char *)parts + parts_bytes, units);
        if (!statistics)
            return cudaSuccess;
        cudaError_t e = cudaSuccess;
        bool elements = c.s.samples * c.s.sets * c.s.positions > 0;
        if (!given && elements)
            e = with_vectors<T>(c, nullptr, [&]<int V>() {
                return sum_pass<T, V, false>(c, given_mean, (A *)parts, on.stream);
            });
        else if (!given && bytes)
            e = cudaMemsetAsync(parts, 0, (size_t)bytes, on.stream);
        if (e != cudaSuccess)
            return e;
        combine_moments<A><<<warps(statistics), THREADS, 0, on.stream>>>(
            (const A *)parts, c.s, parameter(mean), parameter(var), given_mean, given_var,
            parameter(f->args[weight_arg]), parameter(f->args[weight_arg + 1]), k);
        if (!elements)
            return cudaPeekAtLastError();
        return with_vectors<T>(c, c.y, [&]<int V>() {
            return result_pass<T, V, 0>(c, k, on.stream);
        });
    });
    if (parts)
        ts_scratch_give(where, parts, bytes);
    return status;
}

/** batch_norm(self, mean, var, weight, bias, eps) -> (result, mean, var) */
ts_status batch_norm(ts_frame *f)
{
    return forward(f, 0, true, f->args[1].tag == TS_TAG_TENSOR ? &f->args[1] : nullptr, 3);
}
/** group_norm(self, groups, weight, bias, eps) -> (result, mean, var) */
ts_status group_norm(ts_frame *f) { return forward(f, f->args[1].i, false, nullptr, 2); }

/** (grad, self, mean, var, weight, ...) -> (dx, dw, db) */
ts_status backward(ts_frame *f, int64_t groups, bool batch, double eps, bool constant)
{
    ts_device where = ts_kernel_device(f);
    ts_cuda_device *device = ts_cuda_use(where.index);
    if (!device)
        return ts_error_code();
    norm_call c = describe(f, 1, groups, batch, eps, device->sms);
    bool dx = f->rets[0].tag == TS_TAG_TENSOR,
         parameters = f->rets[1].tag == TS_TAG_TENSOR || f->rets[2].tag == TS_TAG_TENSOR,
         sums = parameters || !constant;
    int64_t item = ts_kernel_dtype(f) == TS_F64 ? 8 : 4, statistics = c.s.sets * c.s.groups,
            units = c.s.sets * c.s.channels,
            parts_bytes = sums ? (units * c.s.splits * PARTS * item + 15) / 16 * 16 : 0,
            bytes = parts_bytes + units * 4 * item;
    void *parts = nullptr;
    if (bytes && !(parts = ts_scratch_take(where, bytes)))
        return ts_error_code();
    ts_status status = with_float(f, [&]<class T>(const call &on) {
        using A = wide_t<T>;
        parameter mean(f->args[2]), var(f->args[3]), weight(f->args[4]);
        coefficients<A> k((char *)parts + parts_bytes, units);
        cudaError_t e = cudaSuccess;
        bool elements = c.s.samples * c.s.sets * c.s.positions > 0;
        if (!c.s.channels)
            return cudaSuccess;
        if (sums && elements)
            e = with_vectors<T>(c, nullptr, [&]<int V>() {
                return sum_pass<T, V, true>(c, mean, (A *)parts, on.stream);
            });
        else if (sums && bytes)
            e = cudaMemsetAsync(parts, 0, (size_t)bytes, on.stream);
        if (e != cudaSuccess)
            return e;
        combine_sums<A><<<warps(statistics + c.s.channels), THREADS, 0, on.stream>>>(
            (const A *)parts, c.s, mean, var, weight, constant, k, parameter(f->rets[1]),
            parameter(f->rets[2]));
        if (!dx || !elements)
            return cudaPeekAtLastError();
        return with_vectors<T>(c, c.y, [&]<int V>() {
            return constant ? result_pass<T, V, 2>(c, k, on.stream)
                            : result_pass<T, V, 1>(c, k, on.stream);
        });
    });
    if (parts)
        ts_scratch_give(where, parts, bytes);
    return status;
}

/** batch_norm_backward(grad, self, mean, var, weight, eps, constant) -> (dx, dw, db) */
ts_status batch_norm_backward(ts_frame *f)
{
    return backward(f, 0, true, f->args[5].d, f->args[6].i);
}
/** group_norm_backward(grad, self, mean, var, weight, groups, eps) -> (dx, dw, db) */
ts_status group_norm_backward(ts_frame *f)
{
    return backward(f, f->args[5].i, false, f->args[6].d, false);
}

template <class A>
__global__ void update_kernel(parameter running_mean, parameter running_var, parameter mean,
                              parameter var, int64_t n, A rate, A unbiased)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n)
        return;
    running_mean.put(i, running_mean.at<A>(i, 0) * (1 - rate) + rate * mean.at<A>(i, 0));
    running_var.put(i, running_var.at<A>(i, 0) * (1 - rate) + rate * unbiased * var.at<A>(i, 0));
}

/** batch_norm_update(running_mean, running_var, mean, var, count, momentum) */
ts_status batch_norm_update(ts_frame *f)
{
    int64_t n = ts_numel(f->args[0].t);
    double count = (double)f->args[4].i;
    if (!n)
        return TS_OK;
    return with_float(f, [&]<class T>(const call &on) {
        using A = wide_t<T>;
        update_kernel<A><<<(unsigned)((n + THREADS - 1) / THREADS), THREADS, 0, on.stream>>>(
            parameter(f->args[0]), parameter(f->args[1]), parameter(f->args[2]),
            parameter(f->args[3]), n, (A)f->args[5].d, (A)(count / (count - 1)));
        return cudaPeekAtLastError();
    });
}

} // namespace

TS_CUDA_FAMILY(batch_norm,
    {"batch_norm", batch_norm, floats, false, false, true},
    {"batch_norm_backward", batch_norm_backward, floats, false, false, true},
    {"batch_norm_update", batch_norm_update, floats, false, false, true},
    {"group_norm", group_norm, floats, false, false, true},
    {"group_norm_backward", group_norm_backward, floats, false, false, true},
)
