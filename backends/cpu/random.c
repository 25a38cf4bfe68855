/**
 * @file random.c  Random numbers. core/philox.h defines which words an element uses.
 *
 * A group of words (backends/cpu/philox.h) serves 64 elements with 32-bit draws or 32 elements with
 * 64-bit draws. Work is divided among threads in whole groups.
 */
// SPDX-License-Identifier: MIT
#include "backends/cpu/philox.h"
#include "backends/cpu/rows.h"
#include "backends/cpu/vmath_d.h"
#include "core/convert.h"
#include "core/parallel.h"
#include "ops/kernel.h"

VEC_FN uint64_t word64(const uint32_t *w, int64_t i)
{
    return ts_philox_join(w[2 * i], w[2 * i + 1]);
}

/** A call: `fill` converts the random words of each group to elements. */
typedef struct draw {
    ts_rng_state rng;
    int64_t numel, share; /* elements in total, and per group */
    char *out;           /* contiguous */
    const char *in;      /* bernoulli: probabilities; dropout: argument; contiguous */
    double a, b;         /* uniform: low, high; normal: mean, std; bernoulli: a = p; dropout: b =
                            factor of kept elements */
    int64_t low;         /* randint: low, and high - low */
    uint64_t range;
    uint32_t threshold;  /* bernoulli, dropout: p in units of 2^-24 */
    ts_dtype half;       /* dtype of out, for uniform and dropout */
    /** Computes elements first to first + n - 1 from w, the words of their group. */
    void (*fill)(const struct draw *d, const uint32_t *w, int64_t first, int64_t n);
} draw;

static void fill_groups(void *ctx, int64_t begin, int64_t end)
{
    const draw *d = ctx;
    uint32_t w[PHILOX_WORDS] __attribute__((aligned(64)));
    for (int64_t g = begin; g < end; g++) {
        philox_group(d->rng.seed, d->rng.offset + (uint64_t)g * PHILOX_BLOCKS, w);
        d->fill(d, w, g * d->share, ts_min64(d->share, d->numel - g * d->share));
    }
}

/** Runs a draw on the thread pool. wide: an element uses 64-bit words, else 32-bit words. */
static ts_status run(draw *d, bool wide, int cost)
{
    d->share = wide ? PHILOX_WORDS / 2 : PHILOX_WORDS;
    ts_parallel_for(ts_ceil_div(d->numel, d->share), TS_CPU_GRAIN(cost * d->share), fill_groups, d);
    return TS_OK;
}

static draw result_of(ts_frame *f)
{
    return (draw){.rng = f->rng, .numel = f->rets[0].t->numel, .out = f->rets[0].t->data};
}

static float half_to_f32(uint16_t bits, ts_dtype dtype)
{
    return dtype == TS_BF16 ? ts_bf16_to_f32(bits) : ts_f16_to_f32(bits);
}

/* ----------------------------------------------------------------------------- uniform ---- */

static void uniform_f32(const draw *d, const uint32_t *w, int64_t first, int64_t n)
{
    float *out = (float *)d->out + first;
    float low = (float)d->a, width = (float)(d->b - d->a), high = (float)d->b;
    float last = nextafterf(high, low); /* rounding must not reach the open end */
    for (int64_t i = 0; i < n; i++) {
        float x = ts_philox_to_f32(w[i]) * width + low;
        out[i] = x < high ? x : last;
    }
}

static void uniform_f64(const draw *d, const uint32_t *w, int64_t first, int64_t n)
{
    double *out = (double *)d->out + first, last = nextafter(d->b, d->a);
    for (int64_t i = 0; i < n; i++) {
        double x = ts_philox_to_f64(word64(w, i)) * (d->b - d->a) + d->a;
        out[i] = x < d->b ? x : last;
    }
}

/** Largest value of a half dtype below x. */
static float half_below(double x, ts_dtype dtype)
{
    ts_value v = ts_value_float(x);
    uint16_t bits;
    ts_scalar_store(&v, dtype, &bits);
    float y = half_to_f32(bits, dtype);
    if (y < x)
        return y;
    return half_to_f32((uint16_t)(y > 0 ? bits - 1 : y < 0 ? bits + 1 : 0x8001), dtype);
}

/** Draws in f32 and rounds to the half dtype. Results are clamped to the largest number below the
 * upper end, which is exclusive. */
static void uniform_half(const draw *d, const uint32_t *w, int64_t first, int64_t n)
{
    float x[PHILOX_WORDS] __attribute__((aligned(64)));
    draw single = *d;
    single.out = (char *)x;
    uniform_f32(&single, w, 0, n);
    float last = d->b > d->a ? half_below(d->b, d->half) : (float)d->b;
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] < last ? x[i] : last;
    rows_narrow(d->out + first * 2, x, d->half, n);
}

static ts_status uniform(ts_frame *f)
{
    bool wide = f->plan->compute == TS_F64;
    draw d = result_of(f);
    d.a = f->args[1].d;
    d.b = f->args[2].d;
    d.half = f->plan->compute;
    d.fill = wide ? uniform_f64 : d.half == TS_F32 ? uniform_f32 : uniform_half;
    return run(&d, wide, 2);
}

/* ------------------------------------------------------------------------------ normal ---- */

/* Shuffles: the even lanes of a, then the odd lanes of b; interleaved lanes of the halves of a. */
#define EVEN_ODD_LANE(i, half) ((i) < (half) ? 2 * (i) : 2 * (i) + 1)
#define HALVES_LANE(i, half) ((i) / 2 + (i) % 2 * (half))

/* Computes ts_philox_normal_pair_f32(), one pair per lane. The last vector may read words past n,
 * because a group has words for whole vectors. */
static void normal_f32(const draw *d, const uint32_t *w, int64_t first, int64_t n)
{
    float *out = (float *)d->out + first;
    for (int64_t i = 0; i < n; i += VF_LANES) {
        vu words;
        memcpy(&words, w + i, sizeof words);
        vf odd = __builtin_convertvector(words, vf) * 0x1p-32f, even = odd + 0x1p-33f;
        vf u = __builtin_shufflevector(even, odd, VEC_INDICES(VF_LANES, EVEN_ODD_LANE, VD_LANES));
        vd sine, cosine, r = vd_sqrt(-2.0 * vd_log(vf_widen_lo(u)));
        vd_sin_cos(TS_PHILOX_2PI * vf_widen_hi(u), &sine, &cosine);
        vf z = vf_narrow(r * cosine, r * sine);
        z = __builtin_shufflevector(z, z, VEC_INDICES(VF_LANES, HALVES_LANE, VD_LANES));
        z = vf_narrow(vf_widen_lo(z) * d->b + d->a, vf_widen_hi(z) * d->b + d->a);
        if (n - i >= VF_LANES)
            vf_store(out + i, z);
        else
            vf_store_n(out + i, z, n - i);
    }
}

static void normal_f64(const draw *d, const uint32_t *w, int64_t first, int64_t n)
{
    double *out = (double *)d->out + first, z[2];
    for (int64_t i = 0; i < n; i += 2) {
        ts_philox_normal_pair_f64(word64(w, i), word64(w, i + 1), z);
        out[i] = z[0] * d->b + d->a;
        if (i + 1 < n)
            out[i + 1] = z[1] * d->b + d->a;
    }
}

static ts_status normal(ts_frame *f)
{
    bool wide = f->plan->compute == TS_F64;
    draw d = result_of(f);
    d.a = f->args[1].d;
    d.b = f->args[2].d;
    d.fill = wide ? normal_f64 : normal_f32;
    return run(&d, wide, 40);
}

/* ---------------------------------------------------------------------------- integers ---- */

/** Maps 64 random bits to [0, range): the high half of a product. The probability of a value is
 * 1 / range up to 2^-64. */
TS_INLINE uint64_t below(uint64_t bits, uint64_t range)
{
    return (uint64_t)((unsigned __int128)bits * range >> 64);
}

#define RANDINT(T, name)                                                              \
    static void name(const draw *d, const uint32_t *w, int64_t first, int64_t n)     \
    {                                                                                 \
        T *out = (T *)d->out + first;                                                 \
        for (int64_t i = 0; i < n; i++)                                               \
            out[i] = (T)(int64_t)((uint64_t)d->low + below(word64(w, i), d->range));  \
    }
RANDINT(double, randint_f64)
RANDINT(float, randint_f32)
RANDINT(int64_t, randint_i64)
RANDINT(int32_t, randint_i32)
RANDINT(uint8_t, randint_u8)

static ts_status randint(ts_frame *f)
{
    draw d = result_of(f);
    d.low = f->args[1].i;
    d.range = (uint64_t)f->args[2].i - (uint64_t)d.low;
    switch (f->plan->compute) {
    case TS_F64: d.fill = randint_f64; break;
    case TS_F32: d.fill = randint_f32; break;
    case TS_I64: d.fill = randint_i64; break;
    case TS_I32: d.fill = randint_i32; break;
    default: d.fill = randint_u8; /* u8, bool */
    }
    return run(&d, true, 3);
}

/* Fisher-Yates from the end: swaps element i with one of 0 .. i, chosen by random number i. */
#define SHUFFLE(T, name)                                                              \
    static void name(T *out, int64_t n, ts_rng_state rng)                             \
    {                                                                                 \
        for (int64_t i = 0; i < n; i++)                                               \
            out[i] = (T)i;                                                            \
        const int64_t share = PHILOX_WORDS / 2;                                       \
        uint32_t w[PHILOX_WORDS] __attribute__((aligned(64)));                        \
        for (int64_t g = ts_ceil_div(n, share) - 1, i = n - 1; g >= 0; g--) {         \
            philox_group(rng.seed, rng.offset + (uint64_t)g * PHILOX_BLOCKS, w);      \
            for (; i >= g * share && i > 0; i--) {                                    \
                int64_t j = (int64_t)below(word64(w, i % share), (uint64_t)i + 1);    \
                T other = out[j];                                                     \
                out[j] = out[i];                                                      \
                out[i] = other;                                                       \
            }                                                                         \
        }                                                                             \
    }
SHUFFLE(int64_t, shuffle_i64)
SHUFFLE(int32_t, shuffle_i32)

static ts_status randperm(ts_frame *f)
{
    ts_tensor *out = f->rets[0].t;
    if (f->plan->compute == TS_I64)
        shuffle_i64((int64_t *)out->data, out->numel, f->rng);
    else
        shuffle_i32((int32_t *)out->data, out->numel, f->rng);
    return TS_OK;
}

/* --------------------------------------------------------------------------- bernoulli ---- */

/** Returns p * 2^24, rounded up: bits < threshold exactly if bits * 2^-24 < p. p is in [0, 1],
 * which the op checks before. */
TS_INLINE uint32_t threshold(double p) { return (uint32_t)ceil(p * 0x1p24); }

static void bernoulli_f32(const draw *d, const uint32_t *w, int64_t first, int64_t n)
{
    const float *p = (const float *)d->in + first;
    float *out = (float *)d->out + first;
    for (int64_t i = 0; i < n; i++)
        out[i] = ts_philox_to_f32(w[i]) < p[i];
}

static void bernoulli_f64(const draw *d, const uint32_t *w, int64_t first, int64_t n)
{
    const double *p = (const double *)d->in + first;
    double *out = (double *)d->out + first;
    for (int64_t i = 0; i < n; i++)
        out[i] = ts_philox_to_f64(word64(w, i)) < p[i];
}

static void one_p_f64(const draw *d, const uint32_t *w, int64_t first, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        ((double *)d->out)[first + i] = ts_philox_to_f64(word64(w, i)) < d->a;
}

#define ONE_P(T, name)                                                                \
    static void name(const draw *d, const uint32_t *w, int64_t first, int64_t n)     \
    {                                                                                 \
        T *out = (T *)d->out + first;                                                 \
        for (int64_t i = 0; i < n; i++)                                               \
            out[i] = (w[i] >> 8) < d->threshold;                                      \
    }
ONE_P(float, one_p_f32)
ONE_P(int64_t, one_p_i64)
ONE_P(int32_t, one_p_i32)
ONE_P(uint8_t, one_p_u8)

static ts_status bernoulli(ts_frame *f)
{
    ts_dtype dtype = f->plan->compute;
    draw d = result_of(f);
    if (f->args[0].tag == TS_TAG_TENSOR) {
        const ts_tensor *p = f->args[0].t;
        for (int64_t i = 0; i < p->numel; i++) {
            double x = dtype == TS_F32 ? ((const float *)p->data)[i] : ((const double *)p->data)[i];
            if (!(x >= 0 && x <= 1))
                return ts_checked(
                    f, ts_fail_arg(f, 0, TS_ERR_VALUE,
                                   "expected probabilities from 0 to 1, element %lld is %g",
                                   (long long)i, x));
        }
        d.in = p->data;
        d.fill = dtype == TS_F32 ? bernoulli_f32 : bernoulli_f64;
        return run(&d, dtype == TS_F64, 2);
    }
    d.a = f->args[0].tag == TS_TAG_FLOAT ? f->args[0].d : (double)f->args[0].i;
    d.threshold = threshold(d.a);
    switch (dtype) {
    case TS_F64: d.fill = one_p_f64; break;
    case TS_F32: d.fill = one_p_f32; break;
    case TS_I64: d.fill = one_p_i64; break;
    case TS_I32: d.fill = one_p_i32; break;
    default: d.fill = one_p_u8; /* u8, bool */
    }
    return run(&d, dtype == TS_F64, 2);
}

/* ----------------------------------------------------------------------------- dropout ---- */

static void dropout_f32(const draw *d, const uint32_t *w, int64_t first, int64_t n)
{
    const float *in = (const float *)d->in + first;
    float *out = (float *)d->out + first;
    vf scale = vf_set1((float)d->b);
    vi last = vi_set1((int32_t)d->threshold - 1);
    for (int64_t i = 0; i < n; i += VF_LANES) {
        int64_t m = ts_min64(VF_LANES, n - i);
        vm keep = vi_gt(vi_shr_logical(vi_load((const int32_t *)w + i), 8), last);
        if (m == VF_LANES)
            vf_store(out + i, vf_select(keep, vf_load(in + i) * scale, vf_zero()));
        else
            vf_store_n(out + i, vf_select(keep, vf_load_n(in + i, m) * scale, vf_zero()), m);
    }
}

static void dropout_f64(const draw *d, const uint32_t *w, int64_t first, int64_t n)
{
    const double *in = (const double *)d->in + first;
    double *out = (double *)d->out + first;
    for (int64_t i = 0; i < n; i++)
        out[i] = (w[i] >> 8) >= d->threshold ? in[i] * d->b : 0;
}

static void dropout_half(const draw *d, const uint32_t *w, int64_t first, int64_t n)
{
    float x[PHILOX_WORDS] __attribute__((aligned(64)));
    draw single = *d;
    single.in = single.out = (char *)x;
    rows_widen(x, d->in + first * 2, d->half, n);
    dropout_f32(&single, w, 0, n);
    rows_narrow(d->out + first * 2, x, d->half, n);
}

/** Applies dropout to the elements at `from`, which may be to->data, and stores them in the
 * contiguous tensor `to`. */
static ts_status drop_packed(ts_frame *f, ts_rng_state rng, const char *from, const ts_tensor *to)
{
    double p = f->args[1].d;
    ts_dtype dtype = f->plan->compute;
    draw d = {.rng = rng, .numel = to->numel, .out = to->data, .in = from, .half = dtype,
              .threshold = threshold(p), .b = p < 1 ? 1 / (1 - p) : 0};
    d.fill = ts_dtype_is_half(dtype) ? dropout_half : dtype == TS_F64 ? dropout_f64 : dropout_f32;
    return run(&d, false, 2);
}

/** Applies dropout. A non-contiguous argument is first copied to the result, or to a temporary if
 * the result is not contiguous either. */
static ts_status drop(ts_frame *f, ts_rng_state rng)
{
    const ts_tensor *x = f->args[0].t;
    ts_tensor *out = f->rets[0].t, *to = out;
    ts_dtype dtype = f->plan->compute;
    if ((x->flags & out->flags & TS_TENSOR_CONTIGUOUS) && x->dtype == dtype)
        return drop_packed(f, rng, x->data, out);
    bool apart = !(out->flags & TS_TENSOR_CONTIGUOUS);
    if (apart && !(to = ts_tensor_new(f->thread, dtype, x->sizes, x->ndim, x->storage->device)))
        return ts_error_code();
    TS_V(ts_cpu_copy_part)(to->data, to->strides, dtype, x->data, x->strides, (ts_dtype)x->dtype,
                           x->sizes, x->ndim);
    ts_status status = drop_packed(f, rng, to->data, to);
    if (apart) {
        TS_V(ts_cpu_copy_part)(out->data, out->strides, dtype, to->data, to->strides, dtype,
                               x->sizes, x->ndim);
        ts_tensor_unref(to);
    }
    return status;
}

static ts_status dropout(ts_frame *f) { return drop(f, f->rng); }

static ts_status dropout_backward(ts_frame *f)
{
    return drop(f, (ts_rng_state){(uint64_t)f->args[2].i, (uint64_t)f->args[3].i});
}

/* ------------------------------------------------------------------------- multinomial ---- */

static double weight(const ts_tensor *p, int64_t i)
{
    return p->dtype == TS_F32 ? ((const float *)p->data)[i] : ((const double *)p->data)[i];
}

enum { SUMS = 8 }; /* sums of weights that are added side by side */
/* Returns the sum of weights and counts those above 0; -1 if one is negative or not finite. */
#define ADD_WEIGHTS(T, name)                                                                       \
    static double name(const void *weights, int64_t n, int64_t *positive)                          \
    {                                                                                              \
        const T *x = weights;                                                                      \
        double sums[SUMS] = {0};                                                                   \
        int64_t whole = n / SUMS * SUMS, some = 0, wrong = 0;                                      \
        for (int64_t i = 0; i < whole; i += SUMS)                                                  \
            for (int64_t k = 0; k < SUMS; k++)                                                     \
                sums[k] += (double)x[i + k];                                                       \
        for (int64_t i = whole; i < n; i++)                                                        \
            sums[i - whole] += (double)x[i];                                                       \
        for (int64_t i = 0; i < n; i++) {                                                          \
            wrong |= !(x[i] >= 0 && x[i] < (T)INFINITY);                                           \
            some += x[i] > 0;                                                                      \
        }                                                                                          \
        *positive = wrong ? -1 : some;                                                             \
        for (int k = 1; k < SUMS; k++)                                                             \
            sums[0] += sums[k];                                                                    \
        return sums[0];                                                                            \
    }
ADD_WEIGHTS(float, add_weights_f32)
ADD_WEIGHTS(double, add_weights_f64)

/** Names the first weight of a row that is negative or not finite; one must exist. */
static TS_COLD ts_status fail_weight(ts_frame *f, const ts_tensor *p, int64_t row)
{
    int64_t n = f->plan->count, c = 0;
    while (weight(p, row * n + c) >= 0 && !isinf(weight(p, row * n + c)))
        c++;
    return ts_fail_arg(f, 0, TS_ERR_VALUE, "expected finite weights >= 0, row %lld has %g at %lld",
                       (long long)row, weight(p, row * n + c), (long long)c);
}

static ts_status check_weights(ts_frame *f, const ts_tensor *p, bool replacement)
{
    const ts_plan *plan = f->plan;
    int64_t draws = f->args[1].i, n = plan->count;
    for (int64_t row = 0; row < plan->outer; row++) {
        int64_t positive = 0;
        double sum = (p->dtype == TS_F32 ? add_weights_f32 : add_weights_f64)(
            (const char *)p->data + row * n * ts_dtype_sizes[p->dtype], n, &positive);
        if (positive < 0)
            return fail_weight(f, p, row);
        if (!(sum > 0) || isinf(sum))
            return ts_fail_arg(f, 0, TS_ERR_VALUE,
                               "expected weights with a finite sum above 0, row %lld sums to %g",
                               (long long)row, sum);
        if (!replacement && positive < draws)
            return ts_fail_arg_hint(
                f, 1, TS_ERR_VALUE, "draw with replacement",
                "expected at most the %lld weights above 0 of row %lld, got %lld",
                (long long)positive, (long long)row, (long long)draws);
    }
    return TS_OK;
}

/** Random numbers in [0, 1), one per element of the call. w: the words of group `group`; -1: none
 * yet. */
typedef struct uniforms {
    ts_rng_state rng;
    int64_t group;
    uint32_t w[PHILOX_WORDS] __attribute__((aligned(64)));
} uniforms;

VEC_FN double uniform_at(uniforms *u, int64_t i)
{
    const int64_t share = PHILOX_WORDS / 2;
    if (u->group != i / share) {
        u->group = i / share;
        philox_group(u->rng.seed, u->rng.offset + (uint64_t)u->group * PHILOX_BLOCKS, u->w);
    }
    return ts_philox_to_f64(word64(u->w, i % share));
}

/* Stores the sums of weights 0 to c at cumulated[c]; returns the last index of a weight above 0. Of
 * four additions, one waits for the one before. */
#define CUMULATE(T, name)                                                                          \
    VEC_FN int64_t name(const T *x, int64_t n, double *cumulated)                                  \
    {                                                                                              \
        double sum = 0;                                                                            \
        int64_t c = 0, last = n - 1;                                                               \
        for (; c + 4 <= n; c += 4) {                                                               \
            double a = (double)x[c], b = a + (double)x[c + 1], d = b + (double)x[c + 2],           \
                   e = d + (double)x[c + 3];                                                       \
            cumulated[c] = sum + a;                                                                \
            cumulated[c + 1] = sum + b;                                                            \
            cumulated[c + 2] = sum + d;                                                            \
            sum = cumulated[c + 3] = sum + e;                                                      \
        }                                                                                          \
        for (; c < n; c++)                                                                         \
            sum = cumulated[c] = sum + (double)x[c];                                               \
        while (last > 0 && !(x[last] > 0))                                                         \
            last--;                                                                                \
        return last;                                                                               \
    }
CUMULATE(float, cumulate_f32)
CUMULATE(double, cumulate_f64)

/** Samples by the inverse of the cumulative weights, which are in scratch. */
static void with_replacement(const ts_frame *f, const ts_tensor *p, int64_t row, uniforms *u,
                             void *scratch, int64_t *out)
{
    double *cumulated = scratch;
    int64_t n = f->plan->count, draws = f->args[1].i, last;
    last = p->dtype == TS_F32 ? cumulate_f32((const float *)p->data + row * n, n, cumulated)
                              : cumulate_f64((const double *)p->data + row * n, n, cumulated);
    for (int64_t s = 0; s < draws; s++) { /* finds the first category whose sum exceeds `goal` */
        double goal = uniform_at(u, row * draws + s) * cumulated[n - 1];
        int64_t first = 0;
        for (int64_t left = last; left > 0;) { /* without branches, which would mispredict */
            int64_t half = left / 2;
            bool above = !(cumulated[first + half] > goal);
            first += above ? half + 1 : 0;
            left = above ? left - half - 1 : half;
        }
        out[s] = first;
    }
}

/** An element of the heap of without_replacement(). */
typedef struct arrival {
    double time;
    int64_t category;
} arrival;

/** Restores the order of a min-heap of n arrivals below index `at`. */
static void sift(arrival *heap, int64_t n, int64_t at)
{
    arrival moved = heap[at];
    for (int64_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && heap[child + 1].time < heap[child].time)
            child++;
        if (moved.time <= heap[child].time)
            break;
        heap[at] = heap[child];
    }
    heap[at] = moved;
}

/** Samples without replacement: draws an exponential arrival time per category, with its weight as
 * rate, and takes the earliest ones from a heap in scratch. */
static void without_replacement(const ts_frame *f, const ts_tensor *p, int64_t row, uniforms *u,
                                void *scratch, int64_t *out)
{
    arrival *heap = scratch;
    int64_t categories = f->plan->count, n = 0;
    for (int64_t c = 0; c < categories; c++) {
        double x = weight(p, row * categories + c);
        if (x > 0) /* 1 - uniform_at() is in (0, 1], so the logarithm is finite */
            heap[n++] = (arrival){-log1p(-uniform_at(u, row * categories + c)) / x, c};
    }
    for (int64_t i = n / 2; i-- > 0;)
        sift(heap, n, i);
    for (int64_t s = 0; s < f->args[1].i; s++) {
        out[s] = heap[0].category;
        heap[0] = heap[--n];
        sift(heap, n, 0);
    }
}

typedef struct sampling {
    ts_frame *f;
    ts_slots slots; /* one row's sums of weights, or arrivals */
} sampling;

static void sample_rows(void *ctx, int64_t begin, int64_t end)
{
    sampling *s = ctx;
    const ts_frame *f = s->f;
    int64_t *out = (int64_t *)f->rets[0].t->data;
    void *scratch = ts_slot(&s->slots);
    uniforms u = {.rng = f->rng, .group = -1};
    for (int64_t row = begin; row < end; row++)
        (f->args[2].i ? with_replacement : without_replacement)(
            f, f->args[0].t, row, &u, scratch, out + row * f->args[1].i);
}

static ts_status multinomial(ts_frame *f)
{
    int64_t categories = f->plan->count, rows = f->plan->outer, bytes;
    sampling s = {.f = f};
    TS_TRY(ts_checked(f, check_weights(f, f->args[0].t, f->args[2].i)));
    if (!rows)
        return TS_OK;
    if (!ts_mul_size(categories, sizeof(arrival), &bytes))
        return ts_error_memory("sums of weights", INT64_MAX);
    TS_TRY(ts_slots_begin(f, &s.slots, rows, bytes, "sums of weights"));
    ts_parallel_for(rows, TS_CPU_GRAIN(16) / ts_max64(categories, 1) + 1, sample_rows, &s);
    ts_slots_end(f, &s.slots);
    return TS_OK;
}

#define INTEGERS (TS_DT(TS_I64) | TS_DT(TS_I32))
#define NUMBERS (TS_DT_FLOATS | INTEGERS | TS_DT(TS_U8) | TS_DT(TS_BOOL))

TS_CPU_FAMILY(random,
    {TS_OP_uniform, uniform, {TS_DT_FLOATS | TS_DT_HALVES, 0}},
    {TS_OP_normal, normal, {TS_DT_FLOATS, 0}},
    {TS_OP_randint, randint, {NUMBERS, 0}},
    {TS_OP_randperm, randperm, {INTEGERS, 0}},
    {TS_OP_bernoulli, bernoulli, {NUMBERS, 0}},
    {TS_OP_multinomial, multinomial, {TS_DT_FLOATS, 0}},
    {TS_OP_dropout, dropout, {TS_DT_FLOATS | TS_DT_HALVES, 1}},
    {TS_OP_dropout_backward, dropout_backward, {TS_DT_FLOATS | TS_DT_HALVES, 1}})
