/**
 * @file reduce.cu  Reductions over any dims.
 *
 * The dims that stay and the dims that go are each walked in the order of the tensor. Where the innermost
 * dim goes, 256 threads share a result's elements; where it stays, 32 neighbouring results share a block, so
 * that reads meet. Long sums for few results are cut in shares that a second launch adds. The order is a
 * function of the shape alone.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/frame.cuh"
#include "backends/cuda/lines.cuh"
#include "backends/cuda/loops.cuh"

using namespace ts;

/** Sizes and steps, in elements, of the dims that stay (0) and go (1), innermost first. */
struct reduction {
    int ndim[2];
    int64_t sizes[2][TS_MAX_DIMS], steps[2][TS_MAX_DIMS];
    int64_t results, count; /* products of the sizes */
    int64_t share;          /* elements that one block of a result takes */
};

static __device__ __forceinline__ int64_t offset_of(const reduction &r, int which, int64_t i)
{
    int64_t offset = 0;
    for (int d = 0; d < r.ndim[which]; d++) {
        int64_t q = i / r.sizes[which][d];
        offset += (i - q * r.sizes[which][d]) * r.steps[which][d];
        i = q;
    }
    return offset;
}

struct fold_sum {
    template <class A> static __device__ __forceinline__ A none() { return 0; }
    template <class A> static __device__ __forceinline__ A of(A a, A b) { return a + b; }
};
struct fold_product {
    template <class A> static __device__ __forceinline__ A none() { return 1; }
    template <class A> static __device__ __forceinline__ A of(A a, A b) { return a * b; }
};
template <class A> static __host__ __device__ constexpr A lowest_of()
{
    if constexpr (std::is_floating_point_v<A>)
        return -(A)INFINITY;
    else if constexpr (std::is_signed_v<A>)
        return (A)((A)1 << (sizeof(A) * 8 - 1));
    else
        return 0;
}
struct fold_max {
    template <class A> static __device__ __forceinline__ A none() { return lowest_of<A>(); }
    template <class A> static __device__ __forceinline__ A of(A a, A b)
    {
        if constexpr (std::is_floating_point_v<A>)
            return a > b || a != a ? a : b; /* NaN wins */
        else
            return a > b ? a : b;
    }
};
struct fold_min {
    template <class A> static __device__ __forceinline__ A none()
    {
        if constexpr (std::is_floating_point_v<A>)
            return (A)INFINITY;
        else if constexpr (std::is_same_v<A, bool>)
            return true;
        else
            return (A)~lowest_of<A>();
    }
    template <class A> static __device__ __forceinline__ A of(A a, A b)
    {
        if constexpr (std::is_floating_point_v<A>)
            return a < b || a != a ? a : b;
        else
            return a < b ? a : b;
    }
};

/* What is done to an element before, and to the whole after. */
struct keep {
    template <class A> __device__ __forceinline__ A operator()(A x) const { return x; }
};
struct times {
    double factor;
    template <class A> __device__ __forceinline__ A operator()(A x) const { return x * (A)factor; }
};
struct absolute {
    template <class A> __device__ __forceinline__ A operator()(A x) const { return fabs(x); }
};
struct squared {
    template <class A> __device__ __forceinline__ A operator()(A x) const { return x * x; }
};
struct rooted {
    template <class A> __device__ __forceinline__ A operator()(A x) const { return sqrt(x); }
};

template <class T, class R, int X, int Y, class FOLD, class PRE, class POST>
static __global__ void __launch_bounds__(X *Y)
    reduce_kernel(const __grid_constant__ reduction r, const T *x, R *y, PRE pre, POST post)
{
    using A = wide_t<T>;
    int64_t result = (int64_t)blockIdx.x * X + threadIdx.x;
    int64_t end = (int64_t)(blockIdx.y + 1) * r.share;
    if (end > r.count)
        end = r.count;
    A sum = FOLD::template none<A>();
    if (result < r.results) {
        const T *from = x + offset_of(r, 0, result);
        for (int64_t i = (int64_t)blockIdx.y * r.share + threadIdx.y; i < end; i += Y)
            sum = FOLD::of(sum, (A)pre(widen(from[offset_of(r, 1, i)])));
    }
    sum = line_reduce<X, Y, FOLD>(sum);
    if (threadIdx.y == 0 && result < r.results)
        y[(int64_t)blockIdx.y * r.results + result] = narrow<R>(post(sum));
}

/** Adds the shares of each result. */
template <class A, class R, class FOLD, class POST>
static __global__ void shares_kernel(const A *parts, R *y, int64_t results, int shares, POST post)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= results)
        return;
    A sum = parts[i];
    for (int s = 1; s < shares; s++)
        sum = FOLD::of(sum, parts[s * results + i]);
    y[i] = narrow<R>(post(sum));
}

static reduction describe(const ts_tensor *t, int64_t mask)
{
    reduction r = {};
    r.results = r.count = 1;
    for (int d = ts_ndim(t) - 1; d >= 0; d--) {
        int which = mask >> d & 1, n = r.ndim[which];
        int64_t size = ts_sizes(t)[d], step = ts_strides(t)[d];
        (which ? r.count : r.results) *= size;
        if (size == 1)
            continue;
        if (n && step == r.steps[which][n - 1] * r.sizes[which][n - 1]) {
            r.sizes[which][n - 1] *= size;
            continue;
        }
        r.sizes[which][n] = size;
        r.steps[which][n] = step;
        r.ndim[which]++;
    }
    return r;
}

template <class T, class R, class FOLD, class PRE, class POST>
static ts_status run(ts_frame *f, const PRE &pre, const POST &post)
{
    using A = wide_t<T>;
    const ts_tensor *t = f->args[0].t;
    reduction r = describe(t, ts_kernel_rows(f).count);
    if (!r.results)
        return TS_OK;
    bool beside = r.results > 1 && r.ndim[0] && (!r.ndim[1] || r.steps[0][0] < r.steps[1][0]);
    int64_t blocks = beside ? (r.results + 31) / 32 : r.results;
    /* shares of at least 4096 elements, until there is work for the whole device */
    int64_t shares = 1;
    while (shares < 256 && blocks * shares < 1024 && r.count / (2 * shares) >= 4096)
        shares *= 2;
    r.share = (r.count + shares - 1) / shares;
    ts_device where = ts_kernel_device(f);
    int64_t bytes = shares > 1 ? shares * r.results * (int64_t)sizeof(A) : 0;
    A *parts = nullptr;
    if (bytes && !(parts = (A *)ts_scratch_take(where, bytes)))
        return ts_error_code();
    ts_status status = on_device(f, [&](const call &c) {
        const T *x = data_of<T>(f->args[0]);
        R *y = data_of<R>(f->rets[0]);
        auto launch = [&]<class O, class P>(O *out, const P &last) {
            dim3 grid((unsigned)blocks, (unsigned)shares);
            if (beside)
                reduce_kernel<T, O, 32, 16, FOLD><<<grid, dim3(32, 16), 0, c.stream>>>(r, x, out, pre, last);
            else
                reduce_kernel<T, O, 1, 256, FOLD><<<grid, dim3(1, 256), 0, c.stream>>>(r, x, out, pre, last);
        };
        if (shares == 1) {
            launch(y, post);
        } else {
            launch(parts, keep{});
            shares_kernel<A, R, FOLD><<<(unsigned)((r.results + 255) / 256), 256, 0, c.stream>>>(parts, y, r.results,
                                                                                             (int)shares, post);
        }
        return cudaPeekAtLastError();
    });
    if (parts)
        ts_scratch_give(where, parts, bytes);
    return status;
}

template <class FOLD, class PRE, class POST> static ts_status real(ts_frame *f, const PRE &pre, const POST &post)
{
    switch (ts_kernel_dtype(f)) {
    case TS_F64: return run<double, double, FOLD>(f, pre, post);
    case TS_BF16: return run<bf16, bf16, FOLD>(f, pre, post);
    case TS_F16: return run<f16, f16, FOLD>(f, pre, post);
    default: return run<float, float, FOLD>(f, pre, post);
    }
}
template <class FOLD> static ts_status whole(ts_frame *f)
{
    switch (ts_kernel_dtype(f)) {
    case TS_I64: return run<int64_t, int64_t, FOLD>(f, keep{}, keep{});
    case TS_I32: return run<int32_t, int32_t, FOLD>(f, keep{}, keep{});
    case TS_U8: return run<uint8_t, uint8_t, FOLD>(f, keep{}, keep{});
    case TS_BOOL: return run<bool, bool, FOLD>(f, keep{}, keep{});
    default: return real<FOLD>(f, keep{}, keep{});
    }
}

static ts_status sum(ts_frame *f) { return whole<fold_sum>(f); }
static ts_status prod(ts_frame *f) { return whole<fold_product>(f); }
static ts_status amax(ts_frame *f) { return whole<fold_max>(f); }
static ts_status amin(ts_frame *f) { return whole<fold_min>(f); }
static ts_status all(ts_frame *f) { return run<bool, bool, fold_min>(f, keep{}, keep{}); }
static ts_status any(ts_frame *f) { return run<bool, bool, fold_max>(f, keep{}, keep{}); }

/** Of nothing the mean is NaN. */
static ts_status mean(ts_frame *f)
{
    int64_t n = 1, mask = ts_kernel_rows(f).count;
    for (int d = 0; d < ts_ndim(f->args[0].t); d++)
        n *= mask >> d & 1 ? ts_sizes(f->args[0].t)[d] : 1;
    return real<fold_sum>(f, keep{}, times{n ? 1.0 / (double)n : (double)NAN});
}

static ts_status norm(ts_frame *f)
{
    double p = f->args[3].d;
    return p == 1 ? real<fold_sum>(f, absolute{}, keep{}) : p == 2 ? real<fold_sum>(f, squared{}, rooted{})
                                                                   : real<fold_max>(f, absolute{}, keep{});
}

TS_CUDA_FAMILY(reduce,
    {"sum_to_size", sum, everything, false},
    {"sum", sum, floats | TS_DTYPE_BIT(TS_I64), false},
    {"mean", mean, floats, false},
    {"prod", prod, floats | TS_DTYPE_BIT(TS_I64), false},
    {"amax", amax, everything, false},
    {"amin", amin, everything, false},
    {"all", all, booleans, false},
    {"any", any, booleans, false},
    {"norm", norm, floats, false},
)
