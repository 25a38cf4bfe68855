/** @file reduce.cu  Sums, products, extremes, norms, variances and logarithms of sums over dims. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/exponentials.cuh"

using namespace ts;

/* ------------------------------------------------------------- folds of one number a state ---- */

/** What integers of a byte, and bool, are folded in. */
template <class X> using fold_t = std::conditional_t<(sizeof(X) < 4), int32_t, X>;

struct op_add {
    template <class A> static __device__ __forceinline__ A none() { return 0; }
    template <class A> static __device__ __forceinline__ A of(A a, A b) { return a + b; }
};
struct op_multiply {
    template <class A> static __device__ __forceinline__ A none() { return 1; }
    template <class A> static __device__ __forceinline__ A of(A a, A b) { return a * b; }
};
template <class A> static __device__ __forceinline__ A lowest_of()
{
    if constexpr (std::is_floating_point_v<A>)
        return -(A)INFINITY;
    else
        return (A)((A)1 << (sizeof(A) * 8 - 1));
}
struct op_largest {
    template <class A> static __device__ __forceinline__ A none() { return lowest_of<A>(); }
    /* NaN wins */
    template <class A> static __device__ __forceinline__ A of(A a, A b)
    {
        return a > b || a != a ? a : b;
    }
};
struct op_smallest {
    template <class A> static __device__ __forceinline__ A none()
    {
        if constexpr (std::is_floating_point_v<A>)
            return (A)INFINITY;
        else
            return (A)~lowest_of<A>();
    }
    template <class A> static __device__ __forceinline__ A of(A a, A b)
    {
        return a < b || a != a ? a : b;
    }
};

/* What is done to an element before. */
struct keep {
    template <class A> __device__ __forceinline__ A operator()(A x) const { return x; }
};
struct absolute {
    template <class A> __device__ __forceinline__ A operator()(A x) const { return fabs(x); }
};
struct squared {
    template <class A> __device__ __forceinline__ A operator()(A x) const { return x * x; }
};

/** Elements of X; of floats the whole is scaled, or its root taken, after. */
template <class X, class OP, class PRE> struct plain_fold {
    using state = fold_t<X>;
    double factor;
    bool root;

    __device__ __forceinline__ state none() const { return OP::template none<state>(); }
    __device__ __forceinline__ state merge(state a, state b) const { return OP::of(a, b); }
    template <int N> __device__ __forceinline__ void take(state &s, const X (&x)[N]) const
    {
#pragma unroll
        for (int e = 0; e < N; e++)
            s = OP::of(s, (state)PRE()(x[e]));
    }
    __device__ __forceinline__ state finish(state s) const
    {
        if constexpr (std::is_floating_point_v<X>) {
            s *= (X)factor;
            return root ? sqrt(s) : s;
        }
        return s;
    }
};

template <class T, class OP, class PRE>
static ts_status plain(ts_frame *f, double factor, bool root)
{
    return reduce<T>(f, plain_fold<wide_t<T>, OP, PRE>{factor, root});
}
template <class OP, class PRE>
static ts_status real(ts_frame *f, double factor = 1, bool root = false)
{
    switch (ts_kernel_dtype(f)) {
    case TS_F64: return plain<double, OP, PRE>(f, factor, root);
    case TS_BF16: return plain<bf16, OP, PRE>(f, factor, root);
    case TS_F16: return plain<f16, OP, PRE>(f, factor, root);
    default: return plain<float, OP, PRE>(f, factor, root);
    }
}
template <class OP> static ts_status whole(ts_frame *f)
{
    switch (ts_kernel_dtype(f)) {
    case TS_I64: return plain<int64_t, OP, keep>(f, 1, false);
    case TS_I32: return plain<int32_t, OP, keep>(f, 1, false);
    case TS_U8: return plain<uint8_t, OP, keep>(f, 1, false);
    case TS_BOOL: return plain<bool, OP, keep>(f, 1, false);
    default: return real<OP, keep>(f);
    }
}

static ts_status sum(ts_frame *f) { return whole<op_add>(f); }
static ts_status prod(ts_frame *f) { return whole<op_multiply>(f); }
static ts_status amax(ts_frame *f) { return whole<op_largest>(f); }
static ts_status amin(ts_frame *f) { return whole<op_smallest>(f); }

/** Elements of one result. */
static int64_t length_of(const ts_frame *f)
{
    int64_t n = 1, mask = ts_kernel_rows(f).count;
    for (int d = 0; d < ts_ndim(f->args[0].t); d++)
        n *= mask >> d & 1 ? ts_sizes(f->args[0].t)[d] : 1;
    return n;
}

/** Of nothing the mean is NaN. */
static ts_status mean(ts_frame *f)
{
    int64_t n = length_of(f);
    return real<op_add, keep>(f, n ? 1.0 / (double)n : (double)NAN);
}

static ts_status norm(ts_frame *f)
{
    double p = f->args[3].d;
    return p == 1   ? real<op_add, absolute>(f)
           : p == 2 ? real<op_add, squared>(f, 1, true)
                    : real<op_largest, absolute>(f);
}

/* ---------------------------------------------------------------------------------- truth ---- */

/** Of words X, without the bits that do not count: of all the smallest,
 * of any the bits together. */
template <class X, bool ALL> struct truth_fold {
    using state = std::conditional_t<sizeof(X) == 8, uint64_t, uint32_t>;
    X counts; /* not the sign of a float */

    __device__ __forceinline__ state none() const { return ALL ? (state)-1 : 0; }
    __device__ __forceinline__ state merge(state a, state b) const
    {
        return ALL ? (a < b ? a : b) : a | b;
    }
    template <int N> __device__ __forceinline__ void take(state &s, const X (&x)[N]) const
    {
#pragma unroll
        for (int e = 0; e < N; e++)
            s = merge(s, x[e] & counts);
    }
    __device__ __forceinline__ bool finish(state s) const { return s != 0; }
};

template <bool ALL> static ts_status truth(ts_frame *f)
{
    ts_dtype dtype = ts_kernel_dtype(f);
    int64_t size = (int64_t)ts_dtype_size(dtype);
    uint64_t counts = UINT64_MAX >> (64 - 8 * size + ts_dtype_is_float(dtype));
    switch (size) {
    case 8: return reduce<uint64_t, bool>(f, truth_fold<uint64_t, ALL>{counts});
    case 4: return reduce<uint32_t, bool>(f, truth_fold<uint32_t, ALL>{(uint32_t)counts});
    case 2: return reduce<uint16_t, bool>(f, truth_fold<uint16_t, ALL>{(uint16_t)counts});
    default: return reduce<uint8_t, bool>(f, truth_fold<uint8_t, ALL>{(uint8_t)counts});
    }
}
static ts_status all(ts_frame *f) { return truth<true>(f); }
static ts_status any(ts_frame *f) { return truth<false>(f); }

/* ----------------------------------------------------------------------------- variances ---- */

/**
 * Number of elements, their mean, and the sum of squared deviations from it. Pieces are
 * reduced in two passes over registers and merged by the formula of Chan, Golub and LeVeque
 * (1979), so nothing cancels.
 */
template <class X> struct moments {
    X n, mean, squares;
};
template <class X> struct moments_fold {
    using state = moments<X>;
    double degrees;
    bool root;

    __device__ __forceinline__ state none() const { return {0, 0, 0}; }
    __device__ __forceinline__ state merge(const state &a, const state &b) const
    {
        X n = a.n + b.n, part = n > 0 ? b.n / n : (X)0, d = b.mean - a.mean;
        return {n, a.mean + d * part, a.squares + b.squares + d * d * a.n * part};
    }
    template <int N> __device__ __forceinline__ void take(state &s, const X (&x)[N]) const
    {
        X mean = 0, squares = 0;
#pragma unroll
        for (int e = 0; e < N; e++)
            mean += x[e];
        mean /= N;
#pragma unroll
        for (int e = 0; e < N; e++)
            squares += (x[e] - mean) * (x[e] - mean);
        s = merge(s, {(X)N, mean, squares});
    }
    __device__ __forceinline__ X finish(const state &s) const
    {
        X v = s.n > 0 ? s.squares / (X)degrees : (X)NAN;
        return root ? sqrt(v) : v;
    }
};

static ts_status variance(ts_frame *f, bool root)
{
    double degrees = (double)length_of(f) - f->args[3].d;
    degrees = degrees > 0 ? degrees : 0;
    switch (ts_kernel_dtype(f)) {
    case TS_F64: return reduce<double>(f, moments_fold<double>{degrees, root});
    case TS_BF16: return reduce<bf16>(f, moments_fold<float>{degrees, root});
    case TS_F16: return reduce<f16>(f, moments_fold<float>{degrees, root});
    default: return reduce<float>(f, moments_fold<float>{degrees, root});
    }
}
static ts_status var(ts_frame *f) { return variance(f, false); }
static ts_status deviation(ts_frame *f) { return variance(f, true); }

/* --------------------------------------------------------------- sums of exponentials ---- */

static ts_status logsumexp(ts_frame *f)
{
    switch (ts_kernel_dtype(f)) {
    case TS_F64: return reduce<double>(f, exponentials_fold<double>{});
    case TS_BF16: return reduce<bf16>(f, exponentials_fold<bf16>{});
    case TS_F16: return reduce<f16>(f, exponentials_fold<f16>{});
    default: return reduce<float>(f, exponentials_fold<float>{});
    }
}

TS_CUDA_FAMILY(reduce,
    {"sum_to_size", sum, everything, false},
    {"sum", sum, floats | TS_DTYPE_BIT(TS_I64), false},
    {"mean", mean, floats, false},
    {"prod", prod, floats | TS_DTYPE_BIT(TS_I64), false},
    {"amax", amax, everything, false},
    {"amin", amin, everything, false},
    {"all", all, everything, false},
    {"any", any, everything, false},
    {"var", var, floats, false},
    {"std", deviation, floats, false},
    {"norm", norm, floats, false},
    {"logsumexp", logsumexp, floats, false},
)
