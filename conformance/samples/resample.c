/** @file resample.c  Conformance samples of average pooling, padding and resizing. The expected
 * results are products with one weight matrix per dim. */
// SPDX-License-Identifier: MIT
#include "conformance/drive.h"
#include "include/tessera/ops/resample.h"

#include <math.h>
#include <string.h>

/** Weight matrix (out, in) of a dim. */
typedef struct matrix {
    int64_t in, out;
    double *w;
} matrix;

static matrix matrix_of(ts_ref *r, int64_t in, int64_t out)
{
    matrix m = {in, out, ref_scratch(r, in * out)};
    return m;
}
static double *at(const matrix *m, int64_t o, int64_t i)
{
    i = i < 0 ? 0 : i >= m->in ? m->in - 1 : i;
    return &m->w[o * m->in + i];
}

static int64_t member(const ts_ref_arg *a, int d) { return a->sizes[a->ndim == 1 ? 0 : d]; }

/** Averages over windows of `kernel` elements, which begin at -padding, -padding + stride, ... */
static matrix average(ts_ref *r, int64_t in, int64_t kernel, int64_t stride, int64_t padding,
                      bool ceil, bool count_padding, bool sum)
{
    int64_t n = 0;
    for (int64_t begin = -padding;; begin += stride, n++) {
        bool whole = begin + kernel <= in + padding;
        if (!whole && (!ceil || begin >= in || begin + kernel - stride >= in + padding))
            break;
    }
    matrix m = matrix_of(r, in, n);
    for (int64_t o = 0; o < n; o++) {
        int64_t begin = o * stride - padding, inside = 0, all = 0;
        for (int64_t i = begin; i < begin + kernel; i++) {
            all += i < in + padding;
            inside += i >= 0 && i < in;
        }
        for (int64_t i = begin; i < begin + kernel; i++)
            if (i >= 0 && i < in)
                *at(&m, o, i) = sum ? 1 : 1 / (double)(count_padding ? all : inside);
    }
    return m;
}

static matrix adaptive(ts_ref *r, int64_t in, int64_t out)
{
    matrix m = matrix_of(r, in, out);
    for (int64_t o = 0; o < out; o++) {
        int64_t begin = (int64_t)floor((double)(o * in) / (double)out),
                end = (int64_t)ceil((double)((o + 1) * in) / (double)out);
        for (int64_t i = begin; i < end; i++)
            *at(&m, o, i) = 1 / (double)(end - begin);
    }
    return m;
}

static double keys(long double x)
{
    const long double a = -0.75L;
    return (double)(x <= 1  ? (a + 2) * x * x * x - (a + 3) * x * x + 1
                    : x < 2 ? a * x * x * x - 5 * a * x * x + 8 * a * x - 4 * a
                            : 0);
}

static matrix resized(ts_ref *r, int64_t in, int64_t out, int mode, bool corners, double factor)
{
    matrix m = matrix_of(r, in, out);
    if ((mode != TS_CUBIC && in == out) || (mode == TS_NEAREST && out == 2 * in))
        factor = 0; /* PyTorch ignores the factor here */
    double step = factor > 0 ? 1 / factor : (double)in / (double)out;
    if (corners)
        step = out > 1 ? (double)(in - 1) / (double)(out - 1) : 0;
    for (int64_t o = 0; o < out; o++) {
        if (mode == TS_NEAREST) {
            float scale = factor > 0 ? (float)(1 / factor) : (float)in / (float)out;
            *at(&m, o, (int64_t)floorf((float)o * scale)) += 1;
            continue;
        }
        double place = corners ? (double)o * step : ((double)o + 0.5) * step - 0.5;
        if (mode == TS_LINEAR && place < 0)
            place = 0;
        int64_t first = (int64_t)floor(place);
        for (int64_t i = first - 1; i <= first + 2; i++) {
            double apart = fabs(place - (double)i);
            *at(&m, o, i) += mode == TS_CUBIC ? keys(apart) : fmax(0, 1 - apart);
        }
    }
    return m;
}

static matrix padded(ts_ref *r, int64_t in, int64_t before, int64_t after, int mode)
{
    matrix m = matrix_of(r, in, in + before + after);
    for (int64_t o = 0; o < m.out; o++) {
        int64_t i = o - before;
        if (mode == TS_PAD_CONSTANT && (i < 0 || i >= in))
            continue;
        if (mode == TS_PAD_REFLECT)
            i = i < 0 ? -i : i >= in ? 2 * in - 2 - i : i;
        if (mode == TS_PAD_CIRCULAR)
            i = (i + in) % in;
        *at(&m, o, i) = 1;
    }
    return m;
}

/** Computes result 0: argument 0 with each of the last n dims multiplied by its matrix, or by the
 * transposed matrix. */
static void multiply(ts_ref *r, const matrix *m, int n, bool transposed, double factor)
{
    const ts_ref_arg *x = &r->a[0];
    int64_t sizes[TS_MAX_DIMS], planes = ref_numel(x->sizes, x->ndim - n), have[3], made[3];
    memcpy(sizes, x->sizes, sizeof sizes);
    for (int k = 0; k < 3; k++) {
        have[k] = k < 3 - n ? 1 : transposed ? m[k].out : m[k].in;
        made[k] = k < 3 - n ? 1 : transposed ? m[k].in : m[k].out;
        if (k >= 3 - n)
            sizes[x->ndim - 3 + k] = made[k];
    }
    double *y = ref_ret(r, 0, sizes, x->ndim);
    r->scale[0] = ref_scratch(r, ref_numel(sizes, x->ndim));
    int64_t in = have[0] * have[1] * have[2], out = made[0] * made[1] * made[2];
    for (int64_t p = 0; p < planes; p++)
        for (int64_t o = 0; o < out; o++)
            for (int64_t i = 0; i < in; i++) {
                int64_t to[] = {o / made[2] / made[1], o / made[2] % made[1], o % made[2]},
                        from[] = {i / have[2] / have[1], i / have[2] % have[1], i % have[2]};
                double w = factor;
                for (int k = 3 - n; k < 3; k++)
                    w *= transposed ? m[k].w[from[k] * m[k].in + to[k]]
                                    : m[k].w[to[k] * m[k].in + from[k]];
                if (w != 0)
                    y[p * out + o] += w * x->x[p * in + i];
                r->scale[0][p * out + o] += fabs(w * x->x[p * in + i]);
            }
}

/** Spatial sizes of the forward op's argument: of argument 0; for a backward op, argument 1. */
static const int64_t *in_sizes(const ts_ref *r, int n, bool transposed)
{
    return transposed ? r->a[1].sizes : r->a[0].sizes + r->a[0].ndim - n;
}

static void average_of(ts_ref *r, bool transposed)
{
    int at = transposed ? 2 : 1, n = r->a[1].ndim;
    matrix m[3];
    const int64_t *in = in_sizes(r, n, transposed);
    int64_t divisor = r->a[at + 5].i;
    for (int d = 0; d < n; d++)
        m[3 - n + d] = average(r, in[d], member(&r->a[at], d), member(&r->a[at + 1], d),
                               member(&r->a[at + 2], d), r->a[at + 3].i, r->a[at + 4].i, divisor);
    multiply(r, m, n, transposed, divisor ? 1 / (double)divisor : 1);
}
static void ref_avg_pool(ts_ref *r) { average_of(r, false); }
static void ref_avg_pool_backward(ts_ref *r) { average_of(r, true); }

static void adaptive_of(ts_ref *r, bool transposed)
{
    int n = r->a[1].ndim;
    matrix m[3];
    const int64_t *last = r->a[0].sizes + r->a[0].ndim - n;
    for (int d = 0; d < n; d++)
        m[3 - n + d] = transposed ? adaptive(r, r->a[1].sizes[d], last[d])
                                  : adaptive(r, last[d], r->a[1].sizes[d]);
    multiply(r, m, n, transposed, 1);
}
static void ref_adaptive(ts_ref *r) { adaptive_of(r, false); }
static void ref_adaptive_backward(ts_ref *r) { adaptive_of(r, true); }

static void resize_of(ts_ref *r, bool transposed)
{
    int n = r->a[1].ndim;
    matrix m[3];
    const int64_t *last = r->a[0].sizes + r->a[0].ndim - n;
    for (int d = 0; d < n; d++) {
        int64_t in = transposed ? r->a[1].sizes[d] : last[d],
                out = transposed ? last[d] : r->a[1].sizes[d];
        m[3 - n + d] = resized(r, in, out, (int)r->a[2].i, r->a[3].i, r->a[4 + d].d);
    }
    multiply(r, m, n, transposed, 1);
}
static void ref_interpolate(ts_ref *r) { resize_of(r, false); }
static void ref_interpolate_backward(ts_ref *r) { resize_of(r, true); }

static void pad_of(ts_ref *r, bool transposed)
{
    int n = r->a[1].ndim / 2;
    matrix m[3];
    for (int d = 0; d < n; d++) {
        const int64_t *p = r->a[1].sizes + 2 * (n - 1 - d);
        int64_t have = r->a[0].sizes[r->a[0].ndim - n + d];
        m[3 - n + d] = padded(r, transposed ? have - p[0] - p[1] : have, p[0], p[1],
                              (int)r->a[2].i);
    }
    multiply(r, m, n, transposed, 1);
    if (transposed || r->a[2].i != TS_PAD_CONSTANT)
        return;
    /* elements that the matrices do not read get the value of the padding */
    ts_ref_arg x = r->a[0];
    double *kept = ref_scratch(r, r->ret[0].numel), *ones = ref_scratch(r, x.numel);
    memcpy(kept, r->ret[0].x, (size_t)r->ret[0].numel * sizeof *kept);
    for (int64_t i = 0; i < x.numel; i++)
        ones[i] = 1;
    r->a[0].x = ones;
    multiply(r, m, n, false, 1);
    r->a[0] = x;
    for (int64_t i = 0; i < r->ret[0].numel; i++)
        r->ret[0].x[i] = r->ret[0].x[i] != 0 ? kept[i] : round_to(r->a[3].d, r->dtype);
}
static void ref_pad(ts_ref *r) { pad_of(r, false); }
static void ref_pad_backward(ts_ref *r) { pad_of(r, true); }

/** Pixel shuffle by the definition: (..., C f f, H, W) to (..., C, H f, W f); back: the inverse. */
static void shuffled(ts_ref *r, bool back)
{
    const ts_ref_arg *x = &r->a[0];
    int64_t f = r->a[1].i, sizes[TS_MAX_DIMS];
    memcpy(sizes, x->sizes, sizeof sizes);
    int64_t *last = sizes + x->ndim - 3;
    last[0] = back ? last[0] * f * f : last[0] / (f * f);
    last[1] = back ? last[1] / f : last[1] * f;
    last[2] = back ? last[2] / f : last[2] * f;
    double *y = ref_ret(r, 0, sizes, x->ndim);
    const int64_t *wide = back ? x->sizes + x->ndim - 3 : last; /* C, H f, W f */
    for (int64_t i = 0; i < x->numel; i++) {
        int64_t w = i % wide[2], h = i / wide[2] % wide[1], c = i / wide[2] / wide[1];
        int64_t deep = ((c * f * f + h % f * f + w % f) * (wide[1] / f) + h / f) * (wide[2] / f) +
                       w / f;
        y[back ? deep : i] = x->x[back ? i : deep];
    }
}
static void ref_shuffle(ts_ref *r) { shuffled(r, false); }
static void ref_unshuffle(ts_ref *r) { shuffled(r, true); }

#define RESIZE(mode, corners) INT(mode), BOOL(corners), FLOAT(0), FLOAT(0), FLOAT(0)
#define LINEAR_SUM_OF(n) .c = 8, .grad = true, .most = 33, .many = n
#define LINEAR_SUM LINEAR_SUM_OF(1000)
static const ts_sample samples[] = {
    {"avg_pool", "2d", {T(SWEEP, 3, 6, 7), INTS(2, 3), INTS(2), INTS(0), BOOL(false), BOOL(true),
                        INT(0)},
     ref_avg_pool, LINEAR_SUM, .depth = 6,
     .bad = {{0, T(2, 3), TS_ERR_SHAPE, "expected 4 dims"}, {1, INTS(0, 2), TS_ERR_VALUE, "from 1"},
             {3, INTS(2), TS_ERR_VALUE, "half of a window"}, {6, INT(-1), TS_ERR_VALUE,
                                                              "0 or more"},
             {1, INTS(9, 2), TS_ERR_SHAPE, "expected sizes"},
             {0, T_OF(TS_I64, 2, 3, 6, 7), TS_ERR_DTYPE, "float"}}},
    {"avg_pool", "padding counts", {T(2, SWEEP, 7, 8), INTS(3, 3), INTS(2), INTS(1), BOOL(true),
                                    BOOL(true), INT(0)},
     ref_avg_pool, LINEAR_SUM, .depth = 9},
    {"avg_pool", "padding does not count", {T(2, 2, SWEEP), INTS(4), INTS(3), INTS(2), BOOL(true),
                                            BOOL(false), INT(0)},
     ref_avg_pool, LINEAR_SUM, .depth = 4, .no_empty = true},
    {"avg_pool", "divisor", {T(1, 2, 4, SWEEP, 5), INTS(2, 2, 2), INTS(1, 2, 3), INTS(1),
                             BOOL(false),
                             BOOL(true), INT(3)},
     ref_avg_pool, LINEAR_SUM_OF(300), .depth = 8, .no_empty = true},
    {"avg_pool", "large window", {T(2, 3, 50), INTS(40), INTS(3), INTS(0), BOOL(false), BOOL(true),
                                  INT(0)},
     ref_avg_pool, LINEAR_SUM, .depth = 40},
    {"avg_pool", "windows beyond the padding",
     {T(2, SWEEP, 3, 4), INTS(4, 7), INTS(2, 5), INTS(0, 1), BOOL(true), BOOL(true), INT(0)},
     ref_avg_pool, LINEAR_SUM, .depth = 12},
    {"avg_pool_backward", "2d",
     {T(SWEEP, 3, 4, 4), INTS(6, 7), INTS(3, 3), INTS(2), INTS(1), BOOL(true), BOOL(false),
      INT(0)},
     ref_avg_pool_backward, LINEAR_SUM, .depth = 4,
     .bad = {{1, INTS(9, 7), TS_ERR_SHAPE, "expected sizes"}}},
    {"adaptive_avg_pool", "2d", {T(SWEEP, 3, 7, 5), INTS(3, 2)}, ref_adaptive, LINEAR_SUM,
     .depth = 9,
     .bad = {{1, INTS(0, 2), TS_ERR_VALUE, "from 1"}, {0, T(2, 3), TS_ERR_SHAPE,
                                                       "expected 4 dims"}}},
    {"adaptive_avg_pool", "one element", {T(2, 5, SWEEP, 3), INTS(1, 1)}, ref_adaptive, LINEAR_SUM,
     .depth = SWEEP, .no_empty = true},
    {"adaptive_avg_pool_backward", "2d", {T(SWEEP, 3, 3, 2), INTS(7, 5)}, ref_adaptive_backward,
     LINEAR_SUM, .depth = 4},
    {"interpolate", "nearest", {T(SWEEP, 3, 4, 5), INTS(7, 3), RESIZE(TS_NEAREST, false)},
     ref_interpolate, LINEAR_SUM,
     .bad = {{2, INT(3), TS_ERR_VALUE, "TS_NEAREST"}, {3, BOOL(true), TS_ERR_VALUE, "false"},
             {1, INTS(7), TS_ERR_SHAPE, "expected 3 dims"}, {4, FLOAT(-1), TS_ERR_VALUE, "finite"},
             {0, T_OF(TS_I64, 2, 3, 6, 7), TS_ERR_DTYPE, "float"}}},
    {"interpolate", "linear", {T(2, 3, SWEEP), INTS(19), RESIZE(TS_LINEAR, false)},
     ref_interpolate, LINEAR_SUM, .no_empty = true},
    {"interpolate", "bilinear", {T(2, SWEEP, 5, 6), INTS(10, 12), RESIZE(TS_LINEAR, false)},
     ref_interpolate, LINEAR_SUM},
    {"interpolate", "bilinear, corners", {T(2, SWEEP, 5, 6), INTS(11, 4), RESIZE(TS_LINEAR, true)},
     ref_interpolate, LINEAR_SUM},
    {"interpolate", "bilinear, factors",
     {T(1, 2, 6, SWEEP), INTS(9, 5), INT(TS_LINEAR), BOOL(false), FLOAT(1.5), FLOAT(0.7), FLOAT(0)},
     ref_interpolate, LINEAR_SUM, .no_empty = true},
    {"interpolate", "nearest, factors",
     {T(1, 2, 6, SWEEP), INTS(12, 5), INT(TS_NEAREST), BOOL(false), FLOAT(2.1), FLOAT(0.7),
      FLOAT(0)},
     ref_interpolate, LINEAR_SUM, .no_empty = true},
    {"interpolate", "trilinear", {T(1, 2, 3, SWEEP, 4), INTS(4, 5, 3), RESIZE(TS_LINEAR, false)},
     ref_interpolate, LINEAR_SUM_OF(200), .no_empty = true},
    {"interpolate", "bicubic", {T(2, SWEEP, 5, 6), INTS(9, 4), RESIZE(TS_CUBIC, false)},
     ref_interpolate, LINEAR_SUM, .depth = 16,
     .bad = {{1, INTS(3), TS_ERR_SHAPE, "expected 3 dims"}}},
    {"interpolate", "bicubic, corners", {T(1, 2, SWEEP, 7), INTS(6, 20), RESIZE(TS_CUBIC, true)},
     ref_interpolate, LINEAR_SUM, .depth = 16, .no_empty = true},
    {"interpolate_backward", "bilinear", {T(SWEEP, 3, 9, 4), INTS(5, 6), RESIZE(TS_LINEAR, false)},
     ref_interpolate_backward, LINEAR_SUM, .depth = 8},
    {"interpolate_backward", "nearest", {T(SWEEP, 3, 9, 4), INTS(5, 6), RESIZE(TS_NEAREST, false)},
     ref_interpolate_backward, LINEAR_SUM, .depth = 4},
    {"interpolate_backward", "bicubic", {T(SWEEP, 3, 9, 4), INTS(5, 6), RESIZE(TS_CUBIC, true)},
     ref_interpolate_backward, LINEAR_SUM, .depth = 16},
    {"pad", "constant", {T(SWEEP, 3, 4, 5), INTS(1, 2, 0, 3), INT(TS_PAD_CONSTANT), FLOAT(0.5)},
     ref_pad, .c = 0, .grad = true, .most = 33, .many = 1000,
     .bad = {{1, INTS(1, 2, 3), TS_ERR_VALUE, "two numbers per dim"},
             {2, INT(4), TS_ERR_VALUE, "ts_pad_mode"},
             {1, INTS(-4, -4), TS_ERR_SHAPE, "expected sizes"},
             {0, T(), TS_ERR_SHAPE, "2 dims at least"}}},
    {"pad", "integers", {T(SWEEP, 3), INTS(1, 2), INT(TS_PAD_CONSTANT), FLOAT(3)}, ref_pad, .c = 0,
     .dtypes = DT_INTS | TS_DT(TS_BOOL)},
    {"pad", "cut off", {T(3, 4, SWEEP, 5), INTS(-1, 2, 1, 0, -1, -2), INT(TS_PAD_CONSTANT),
                        FLOAT(0)},
     ref_pad, .c = 0, .grad = true, .most = 33, .many = 130, .no_empty = true},
    {"pad", "reflect", {T(SWEEP, 2, 4, 5), INTS(4, 1, 2, 3), INT(TS_PAD_REFLECT), FLOAT(0)},
     ref_pad,
     .c = 0, .grad = true, .most = 33, .many = 1000,
     .bad = {{1, INTS(5, 0), TS_ERR_VALUE, "less than 5"}}},
    {"pad", "replicate", {T(2, SWEEP, 3), INTS(2, 7), INT(TS_PAD_REPLICATE), FLOAT(0)}, ref_pad,
     .c = 0, .grad = true, .most = 33, .many = 1000},
    {"pad", "circular", {T(1, SWEEP, 2, 4, 3), INTS(3, 1, 4, 2, 0, 2), INT(TS_PAD_CIRCULAR),
                         FLOAT(0)},
     ref_pad, .c = 0, .grad = true, .most = 33, .many = 300,
     .bad = {{1, INTS(4, 0), TS_ERR_VALUE, "at most 3"}}},
    {"pad_backward", "constant", {T(SWEEP, 3, 7, 8), INTS(1, 2, -1, 3), INT(TS_PAD_CONSTANT)},
     ref_pad_backward, LINEAR_SUM},
    {"pad_backward", "reflect", {T(SWEEP, 3, 9, 10), INTS(4, 1, 2, 3), INT(TS_PAD_REFLECT)},
     ref_pad_backward, LINEAR_SUM, .depth = 9},
    {"pad_backward", "replicate", {T(SWEEP, 3, 9), INTS(4, 3), INT(TS_PAD_REPLICATE)},
     ref_pad_backward, LINEAR_SUM, .depth = 5},
    {"pad_backward", "circular", {T(2, SWEEP, 9), INTS(4, 1), INT(TS_PAD_CIRCULAR)},
     ref_pad_backward, LINEAR_SUM, .depth = 3},
    {"pixel_shuffle", "images", {T(SWEEP, 12, 3, 2), INT(2)}, ref_shuffle, .c = 0, .grad = true,
     .bad = {{1, INT(0), TS_ERR_VALUE, "at least 1"}, {1, INT(5), TS_ERR_SHAPE, "multiple of 25"},
             {0, T(4, 4), TS_ERR_SHAPE, "expected sizes"}}},
    {"pixel_unshuffle", "images", {T(2, SWEEP, 6, 9), INT(3)}, ref_unshuffle, .c = 0, .grad = true,
     .bad = {{1, INT(2), TS_ERR_SHAPE, "multiples of 2"}}},
};
TS_SAMPLES(resample, samples)
