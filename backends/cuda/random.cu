/**
 * @file random.cu
 * Random numbers. core/philox.h defines the words of each element. A thread computes as many blocks
 * of words as fill 16 bytes of results, so no block is computed twice and all accesses are wide.
 */
// SPDX-License-Identifier: MIT
#include <math.h>

#include "backends/cuda/dropout.cuh"
#include "backends/cuda/fuse/describe.cuh"
#include "backends/cuda/index.cuh"
#include "backends/cuda/sampling.cuh"
#include "backends/cuda/units.cuh"

using namespace ts;

/* --------------------------------------------------------------------------------- draws ---- */

enum { DRAW_THREADS = 256 };

/** Elements per thread: whole blocks of words, and at least 16 bytes of results. */
template <class F, class R>
constexpr int draw_count = vec16<R> > F::elements ? vec16<R> : F::elements;

/**
 * out[i] = fn(words of element i, in[i]). F defines the elements per block of words, whether there
 * is an operand, and of(block, operands, results, first element).
 */
template <class F, class R>
static __global__ void __launch_bounds__(DRAW_THREADS)
    draw_kernel(F fn, ts_rng_state rng, const R *in, R *out, int64_t n, bool aligned)
{
    constexpr int E = draw_count<F, R>, BLOCKS = E / F::elements, WIDE = E / vec16<R>;
    int64_t group = (int64_t)blockIdx.x * DRAW_THREADS + threadIdx.x, first = group * E;
    if (first >= n)
        return;
    int some = n - first < E ? (int)(n - first) : E;
    bool whole = aligned && some == E;
    alignas(16) R x[E], y[E];
    if constexpr (F::reads) {
        if (whole) {
#pragma unroll
            for (int v = 0; v < WIDE; v++)
                reinterpret_cast<uint4 *>(x)[v] = reinterpret_cast<const uint4 *>(in + first)[v];
        } else {
#pragma unroll
            for (int e = 0; e < E; e++)
                x[e] = e < some ? in[first + e] : narrow<R>((wide_t<R>)0);
        }
    }
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
        fn.of(philox_block(rng.seed, rng.offset + group * BLOCKS + b), x + b * F::elements,
              y + b * F::elements, first + b * F::elements);
    if (whole) {
#pragma unroll
        for (int v = 0; v < WIDE; v++)
            reinterpret_cast<uint4 *>(out + first)[v] = reinterpret_cast<const uint4 *>(y)[v];
    } else {
#pragma unroll
        for (int e = 0; e < E; e++)
            if (e < some)
                out[first + e] = y[e];
    }
}

template <class F, class R>
static cudaError_t draw(const call &c, const F &fn, ts_rng_state rng, const void *in, void *out,
                        int64_t n)
{
    constexpr int64_t share = (int64_t)DRAW_THREADS * draw_count<F, R>;
    if (n)
        draw_kernel<F, R><<<(unsigned)((n + share - 1) / share), DRAW_THREADS, 0, c.stream>>>(
            fn, rng, (const R *)in, (R *)out, n, (((uintptr_t)in | (uintptr_t)out) & 15) == 0);
    return cudaPeekAtLastError();
}

/** Fills the first result, of element type R, by fn. */
template <class R, class F> static ts_status fill(ts_frame *f, const F &fn)
{
    ts_tensor *t = f->rets[0].t;
    return on_device(f, [&](const call &c) {
        return draw<F, R>(c, fn, f->rng, nullptr, ts_kernel_data(t), ts_numel(t));
    });
}

/* ------------------------------------------------------------------------------- uniform ---- */

struct uniform_f32 { /* products are rounded before they are added, as on the CPU */
    static constexpr int elements = 4;
    static constexpr bool reads = false;
    float low, width, high, last; /* last: the largest number of the dtype below high */
    template <class R>
    __device__ __forceinline__ void of(const philox_block &b, const R *, R *y, int64_t) const
    {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float x = __fadd_rn(__fmul_rn(philox_f32(b.w[e]), width), low);
            y[e] = narrow<R>(x < high && x < last ? x : last);
        }
    }
};
struct uniform_f64 {
    static constexpr int elements = 2;
    static constexpr bool reads = false;
    double low, width, high, last;
    __device__ __forceinline__ void of(const philox_block &b, const double *, double *y,
                                       int64_t) const
    {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            double x = __dadd_rn(__dmul_rn(philox_f64(b.word64(e)), width), low);
            y[e] = x < high ? x : last;
        }
    }
};

/** Largest value of a half dtype below x. */
template <class R> static float half_below(double x, ts_dtype dtype)
{
    union {
        uint16_t bits;
        R value;
    } u = {0};
    ts_value v = ts_value_float(x);
    ts_scalar_store(&v, dtype, &u.bits);
    float y = (float)u.value;
    if (y < x)
        return y;
    u.bits = (uint16_t)(y > 0 ? u.bits - 1 : y < 0 ? u.bits + 1 : 0x8001);
    return (float)u.value;
}

/** uniform(sizes, low, high, dtype, device): numbers that rounding would raise to `high` become the
 * largest number below it. */
static ts_status uniform(ts_frame *f)
{
    double a = f->args[1].d, b = f->args[2].d;
    uniform_f32 single = {(float)a, (float)(b - a), (float)b, nextafterf((float)b, (float)a)};
    ts_dtype dtype = ts_kernel_dtype(f);
    switch (dtype) {
    case TS_F64: return fill<double>(f, uniform_f64{a, b - a, b, nextafter(b, a)});
    case TS_BF16:
        single.last = b > a ? half_below<bf16>(b, dtype) : (float)b;
        return fill<bf16>(f, single);
    case TS_F16:
        single.last = b > a ? half_below<f16>(b, dtype) : (float)b;
        return fill<f16>(f, single);
    default: return fill<float>(f, single);
    }
}

/* -------------------------------------------------------------------------------- normal ---- */

/*
 * Box-Muller: a radius from u, which is 2^-33 plus a multiple of 2^-32 and at most 1, and a 32-bit
 * angle. The functions omit special cases that such arguments cannot reach. The polynomials have
 * the smallest relative error among those whose coefficients are rounded to f32 one after the
 * other.
 */

/** sqrt(-2 ln u) for u in (0, 1]; the square root is accurate to 1 ulp. */
static __device__ __forceinline__ float radius_of(float u)
{
    /* splits u into a power of 2 and a factor in [2/3, 4/3) */
    uint32_t exponent = (__float_as_uint(u) - 0x3f2aaaabu) & 0xff800000u;
    float m = __uint_as_float(__float_as_uint(u) - exponent) - 1, s = m * m, odd, even, y;
    even = __fmaf_rn(-0.12885657f, s, -0.121857136f);
    odd = __fmaf_rn(0.139868975f, s, 0.140053064f);
    even = __fmaf_rn(even, s, -0.166803762f);
    odd = __fmaf_rn(odd, s, 0.20010446f);
    even = __fmaf_rn(even, s, -0.249998003f);
    y = __fmaf_rn(__fmaf_rn(__fmaf_rn(odd, m, even), m, 0.333332151f), m, -0.5f);
    y = __fmaf_rn((float)(int32_t)exponent, -2 * 0.693147182f * 0x1p-23f, -2 * __fmaf_rn(y, s, m));
    asm("sqrt.approx.ftz.f32 %0, %0;" : "+f"(y));
    return y;
}

/** Sine and cosine of the angle 2 pi bits / 2^32. */
static __device__ __forceinline__ void sincos_of_turn(uint32_t bits, float &sine, float &cosine)
{
    /* rounds to a whole number */
    float quarters = (float)bits * 0x1p-30f, nearest = quarters + 0x1.8p23f;
    float x = quarters - (nearest - 0x1.8p23f), s = x * x, near, far;
    uint32_t quarter = __float_as_uint(nearest);
    /* cos(pi/2 x) */
    far = __fmaf_rn(__fmaf_rn(0.000894486264f, s, -0.0208555963f), s, 0.253668547f);
    far = __fmaf_rn(__fmaf_rn(far, s, -1.23370051f), s, 1);
    /* sin(pi/2 x) */
    near = __fmaf_rn(__fmaf_rn(-0.00468387362f, s, 0.07971178f), s, -0.645966589f);
    /* pi/2 in two parts */
    near = __fmaf_rn(x, 1.57079637f, __fmaf_rn(near, s, -4.37113883e-08f) * x);
    sine = quarter & 1 ? far : near;
    cosine = quarter & 1 ? near : far;
    sine = __uint_as_float(__float_as_uint(sine) ^ (quarter << 30 & 0x80000000u));
    cosine = __uint_as_float(__float_as_uint(cosine) ^ ((quarter + 1) << 30 & 0x80000000u));
}

struct normal_f32 {
    static constexpr int elements = 4;
    static constexpr bool reads = false;
    float mean, std;
    template <class R>
    __device__ __forceinline__ void of(const philox_block &b, const R *, R *y, int64_t) const
    {
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            float r = radius_of(__fmaf_rn((float)b.w[e], 0x1p-32f, 0x1p-33f)), sine, cosine;
            sincos_of_turn(b.w[e + 1], sine, cosine);
            y[e] = narrow<R>(__fmaf_rn(r * cosine, std, mean));
            y[e + 1] = narrow<R>(__fmaf_rn(r * sine, std, mean));
        }
    }
};
struct normal_f64 {
    static constexpr int elements = 2;
    static constexpr bool reads = false;
    double mean, std;
    __device__ __forceinline__ void of(const philox_block &b, const double *, double *y,
                                       int64_t) const
    {
        double u1 = (double)((b.word64(0) >> 11) + 1) * 0x1p-53, sine, cosine;
        double r = sqrt(-2 * log(u1));
        /* the angle is rounded, as on the CPU */
        sincos(6.283185307179586476925 * philox_f64(b.word64(1)), &sine, &cosine);
        y[0] = fma(r * cosine, std, mean);
        y[1] = fma(r * sine, std, mean);
    }
};

/** normal(sizes, mean, std, dtype, device) */
static ts_status normal(ts_frame *f)
{
    double mean = f->args[1].d, std = f->args[2].d;
    normal_f32 single = {(float)mean, (float)std};
    switch (ts_kernel_dtype(f)) {
    case TS_F64: return fill<double>(f, normal_f64{mean, std});
    case TS_BF16: return fill<bf16>(f, single);
    case TS_F16: return fill<f16>(f, single);
    default: return fill<float>(f, single);
    }
}

/* ------------------------------------------------------------------------------ integers ---- */

struct whole_numbers {
    static constexpr int elements = 2;
    static constexpr bool reads = false;
    uint64_t low, range;
    template <class R>
    __device__ __forceinline__ void of(const philox_block &b, const R *, R *y, int64_t) const
    {
#pragma unroll
        for (int e = 0; e < 2; e++)
            y[e] = narrow<R>((wide_t<R>)(int64_t)(low + __umul64hi(b.word64(e), range)));
    }
};

/** Calls fill<R>(f, fn) for any dtype; bool is a byte of 0 or 1. */
template <class F> static ts_status fill_any(ts_frame *f, const F &fn)
{
    switch (ts_kernel_dtype(f)) {
    case TS_F64: return fill<double>(f, fn);
    case TS_F32: return fill<float>(f, fn);
    case TS_BF16: return fill<bf16>(f, fn);
    case TS_F16: return fill<f16>(f, fn);
    case TS_I64: return fill<int64_t>(f, fn);
    case TS_I32: return fill<int32_t>(f, fn);
    default: return fill<uint8_t>(f, fn);
    }
}

/** randint(sizes, low, high, dtype, device) */
static ts_status randint(ts_frame *f)
{
    uint64_t low = (uint64_t)f->args[1].i;
    return fill_any(f, whole_numbers{low, (uint64_t)f->args[2].i - low});
}

/* ----------------------------------------------------------------------------- bernoulli ---- */

/** For u = bits * 2^-24, u < p if and only if bits < threshold(p). */
static uint32_t threshold(double p) { return (uint32_t)ceil(p * 0x1p24); }

struct ones {
    static constexpr int elements = 4;
    static constexpr bool reads = false;
    uint32_t below;
    template <class R>
    __device__ __forceinline__ void of(const philox_block &b, const R *, R *y, int64_t) const
    {
#pragma unroll
        for (int e = 0; e < 4; e++)
            y[e] = narrow<R>((wide_t<R>)((b.w[e] >> 8) < below));
    }
};
struct ones_f64 {
    static constexpr int elements = 2;
    static constexpr bool reads = false;
    double p;
    __device__ __forceinline__ void of(const philox_block &b, const double *, double *y,
                                       int64_t) const
    {
#pragma unroll
        for (int e = 0; e < 2; e++)
            y[e] = philox_f64(b.word64(e)) < p;
    }
};
/** Each element has its own probability. */
template <int ELEMENTS> struct ones_each {
    static constexpr int elements = ELEMENTS;
    static constexpr bool reads = true;
    reporter out;
    template <class R>
    __device__ __forceinline__ void of(const philox_block &b, const R *p, R *y, int64_t first) const
    {
        using A = wide_t<R>;
#pragma unroll
        for (int e = 0; e < ELEMENTS; e++) {
            A chance = widen(p[e]), u;
            if constexpr (ELEMENTS == 2)
                u = (A)philox_f64(b.word64(e));
            else
                u = (A)philox_f32(b.w[e]);
            if (!(chance >= 0 && chance <= 1))
                out.wrong_number((double)chance, first + e);
            y[e] = narrow<R>((A)(u < chance));
        }
    }
};

/** bernoulli(p, sizes, dtype, device) */
static ts_status bernoulli(ts_frame *f)
{
    ts_dtype dtype = ts_kernel_dtype(f);
    if (f->args[0].tag != TS_TAG_TENSOR) {
        double p = number_of(&f->args[0]);
        return dtype == TS_F64 ? fill<double>(f, ones_f64{p}) : fill_any(f, ones{threshold(p)});
    }
    return with_float(f, [&]<class T>(const call &c) {
        reporter out(f, 0, "probabilities from 0 to 1", c.device);
        using F = ones_each<sizeof(T) == 8 ? 2 : 4>;
        return draw<F, T>(c, F{out}, f->rng, ts_kernel_data(f->args[0].t),
                          ts_kernel_data(f->rets[0].t), ts_numel(f->rets[0].t));
    });
}

/* ------------------------------------------------------------------------------- dropout ---- */

static ts_status drop(ts_frame *f, ts_rng_state rng)
{
    ts_space s;
    TS_CUDA_TRY(ts_kernel_space(f, &s));
    double p = f->args[1].d;
    fn::dropout_fn fn = {threshold(p), p < 1 ? 1 / (1 - p) : 0};
    if (!s.numel)
        return TS_OK;
    if (ts_cuda_describing()) {
        fn::dropout_at_fn at = {fn, rng.seed, rng.offset};
        switch (ts_kernel_dtype(f)) {
        case TS_F64: return describe<fn::dropout_at_fn, double, double>(f, s, at);
        case TS_BF16: return describe<fn::dropout_at_fn, bf16, bf16>(f, s, at);
        case TS_F16: return describe<fn::dropout_at_fn, f16, f16>(f, s, at);
        default: return describe<fn::dropout_at_fn, float, float>(f, s, at);
        }
    }
    return with_float(f, [&]<class T>(const call &c) {
        if (s.ndim == 1 && s.operand[0].strides[0] == sizeof(T) &&
            s.operand[1].strides[0] == sizeof(T))
            return draw<dropped, T>(c, dropped{fn}, rng, s.operand[1].data, s.operand[0].data,
                                    s.numel);
        return dropout_strided<T>(s, fn, rng, c.stream);
    });
}
static ts_status dropout(ts_frame *f) { return drop(f, f->rng); }
/** dropout_backward(grad, p, seed, offset) */
static ts_status dropout_backward(ts_frame *f)
{
    return drop(f, (ts_rng_state){(uint64_t)f->args[2].i, (uint64_t)f->args[3].i});
}

/* ------------------------------------------------------------------ permutations, samples ---- */

/** randperm(n, dtype, device) */
template <class I> static ts_status permutation_of(ts_frame *f)
{
    ts_device where = ts_kernel_device(f);
    if (!ts_cuda_use(where.index))
        return ts_error_code();
    int64_t n = ts_numel(f->rets[0].t), bytes = sorter<I>::bytes(n);
    void *scratch = ts_scratch_take(where, bytes), *out = ts_kernel_data(f->rets[0].t);
    if (!scratch)
        return ts_error_code();
    ts_status status = on_device(f, [&](const call &c) {
        return ts_kernel_dtype(f) == TS_I64
                   ? permute<int64_t, I>((int64_t *)out, n, f->rng, scratch, c.stream)
                   : permute<int32_t, I>((int32_t *)out, n, f->rng, scratch, c.stream);
    });
    ts_scratch_give(where, scratch, bytes);
    return status;
}
static ts_status randperm(ts_frame *f)
{
    int64_t n = ts_numel(f->rets[0].t);
    return n == 0           ? TS_OK
           : n < UINT32_MAX ? permutation_of<uint32_t>(f)
                            : permutation_of<uint64_t>(f);
}

/** multinomial(probs, num_samples, replacement) */
static ts_status multinomial(ts_frame *f)
{
    ts_rows r = ts_kernel_rows(f);
    bool replacement = f->args[2].i;
    int64_t draws = f->args[1].i;
    if (!r.outer)
        return TS_OK;
    ts_device where = ts_kernel_device(f);
    int64_t all = r.outer * r.count, bytes = replacement ? 0 : all * (int64_t)sizeof(double);
    double *times = nullptr;
    if (bytes && !(times = (double *)ts_scratch_take(where, bytes)))
        return ts_error_code();
    ts_status status = with_float(f, [&]<class T>(const call &c) {
        reporter out(f, 0, "finite weights >= 0, enough of them above 0", c.device);
        const T *p = data_of<T>(f->args[0]);
        int64_t *y = data_of<int64_t>(f->rets[0]);
        if (replacement) {
            sample_kernel<T><<<(unsigned)r.outer, sample_threads(r.count), 0, c.stream>>>(
                p, y, r.count, draws, f->rng, out);
        } else {
            int64_t blocks = (all + 255) / 256;
            arrivals_kernel<T>
                <<<(unsigned)(blocks < 65535 ? blocks : 65535), 256, 0, c.stream>>>(
                    p, times, all, f->rng, out);
            race_kernel<<<(unsigned)r.outer, SAMPLE_THREADS, 0, c.stream>>>(
                times, y, r.count, draws, out);
        }
        return cudaPeekAtLastError();
    });
    if (times)
        ts_scratch_give(where, times, bytes);
    return status;
}

TS_CUDA_FAMILY(random,
    {"uniform", uniform, floats, false},
    {"normal", normal, floats, false},
    {"randint", randint, everything, false},
    {"randperm", randperm, TS_DTYPE_BIT(TS_I64) | TS_DTYPE_BIT(TS_I32), false},
    {"bernoulli", bernoulli, everything, false},
    {"multinomial", multinomial, floats, false},
    {"dropout", dropout, floats, true},
    {"dropout_backward", dropout_backward, floats, true},
)
