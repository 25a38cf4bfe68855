/** @file pool.c  Conformance samples of max pools. */
// SPDX-License-Identifier: MIT
#include "conformance/drive.h"

#include <math.h>
#include <string.h>

/** The windows of a dim; kernel 0: adaptive. Missing dims have size 1. */
typedef struct axis {
    int64_t in, out, kernel, stride, padding, dilation;
} axis;

static int64_t member(const ts_ref_arg *a, int d) { return a->sizes[a->ndim == 1 ? 0 : d]; }

/** Decodes the last n dims. at: index of the argument `kernel`; 0: adaptive windows. */
static void axes_of(const ts_ref *r, axis *axes, const int64_t *in, int n, int at)
{
    for (int k = 0; k < 3; k++) {
        int d = k - (3 - n);
        axes[k] = (axis){1, 1, 1, 1, 0, 1};
        if (d < 0)
            continue;
        axes[k].in = in[d];
        axes[k].kernel = at ? member(&r->a[at], d) : 0;
        if (at) {
            axes[k].stride = member(&r->a[at + 1], d);
            axes[k].padding = member(&r->a[at + 2], d);
            axes[k].dilation = member(&r->a[at + 3], d);
        }
    }
}

/** Number of windows by the definition: those that begin before the end of the elements. */
static int64_t places(const axis *a, bool ceil)
{
    int64_t n = 0, extent = a->dilation * (a->kernel - 1) + 1;
    for (int64_t begin = -a->padding;; begin += a->stride, n++) {
        bool whole = begin + extent <= a->in + a->padding;
        if (!whole && (!ceil || begin >= a->in || begin + extent - a->stride >= a->in + a->padding))
            return n;
    }
}

/** True if window o contains element i. */
static bool has(const axis *a, int64_t o, int64_t i)
{
    if (!a->kernel)
        return i >= o * a->in / a->out && i * a->out < (o + 1) * a->in;
    int64_t from = i - (o * a->stride - a->padding);
    return from >= 0 && from % a->dilation == 0 && from / a->dilation < a->kernel;
}

static void largest(ts_ref *r, int n, axis *axes)
{
    const ts_ref_arg *x = &r->a[0];
    int64_t sizes[TS_MAX_DIMS], planes = ref_numel(x->sizes, x->ndim - n), size = 1, out = 1;
    memcpy(sizes, x->sizes, sizeof sizes);
    for (int k = 0; k < 3; k++) {
        size *= axes[k].in;
        out *= axes[k].out;
        if (k >= 3 - n)
            sizes[x->ndim - 3 + k] = axes[k].out;
    }
    double *y = ref_ret(r, 0, sizes, x->ndim), *at = ref_ret(r, 1, sizes, x->ndim);
    for (int64_t p = 0; p < planes; p++)
        for (int64_t o = 0; o < out; o++) {
            int64_t w = o % axes[2].out, h = o / axes[2].out % axes[1].out,
                    d = o / axes[2].out / axes[1].out, best = -1;
            for (int64_t i = 0; i < size; i++)
                if (has(&axes[2], w, i % axes[2].in) &&
                    has(&axes[1], h, i / axes[2].in % axes[1].in) &&
                    has(&axes[0], d, i / axes[2].in / axes[1].in) &&
                    (best < 0 || x->x[p * size + i] > x->x[p * size + best] ||
                     isnan(x->x[p * size + i])))
                    best = i;
            y[p * out + o] = x->x[p * size + best];
            at[p * out + o] = (double)best;
        }
}

static void ref_max_pool(ts_ref *r)
{
    axis axes[3];
    int n = r->a[1].ndim;
    axes_of(r, axes, r->a[0].sizes + r->a[0].ndim - n, n, 1);
    for (int k = 3 - n; k < 3; k++)
        axes[k].out = places(&axes[k], r->a[5].i);
    largest(r, n, axes);
}
static void ref_adaptive(ts_ref *r)
{
    axis axes[3];
    int n = r->a[1].ndim;
    axes_of(r, axes, r->a[0].sizes + r->a[0].ndim - n, n, 0);
    for (int k = 3 - n; k < 3; k++)
        axes[k].out = r->a[1].sizes[k - (3 - n)];
    largest(r, n, axes);
}

static void ref_backward(ts_ref *r)
{
    const ts_ref_arg *g = &r->a[0], *at = &r->a[1];
    int n = r->a[2].ndim;
    int64_t sizes[TS_MAX_DIMS], planes = ref_numel(g->sizes, g->ndim - n);
    memcpy(sizes, g->sizes, sizeof sizes);
    memcpy(sizes + g->ndim - n, r->a[2].sizes, (size_t)n * sizeof *sizes);
    double *y = ref_ret(r, 0, sizes, g->ndim);
    int64_t size = ref_numel(r->a[2].sizes, n), out = planes ? g->numel / planes : 0;
    for (int64_t i = 0; i < g->numel; i++)
        y[i / out * size + (int64_t)at->x[i]] += g->x[i];
}

/** The tap that is element `index` of a plane, in the window o (depth, row, column). */
static int64_t tap_of(const axis *axes, const int64_t o[3], int64_t index)
{
    int64_t tap = 0, at[3] = {index / axes[2].in / axes[1].in, index / axes[2].in % axes[1].in,
                              index % axes[2].in};
    for (int k = 0; k < 3; k++) {
        const axis *a = &axes[k];
        tap = tap * a->kernel + (at[k] - (o[k] * a->stride - a->padding)) / a->dilation;
    }
    return tap;
}

/** max_pool with the index of each maximum converted to a tap. */
static void ref_max_pool_taps(ts_ref *r)
{
    axis axes[3];
    ref_max_pool(r);
    int n = r->a[1].ndim;
    axes_of(r, axes, r->a[0].sizes + r->a[0].ndim - n, n, 1);
    for (int k = 3 - n; k < 3; k++)
        axes[k].out = places(&axes[k], r->a[5].i);
    int64_t out[] = {axes[0].out, axes[1].out, axes[2].out}, all = out[0] * out[1] * out[2];
    for (int64_t i = 0; all && i < r->ret[1].numel; i++) {
        int64_t o = i % all;
        r->ret[1].x[i] = (double)tap_of(
            axes, (int64_t[]){o / out[2] / out[1], o / out[2] % out[1], o % out[2]},
            (int64_t)r->ret[1].x[i]);
    }
}

/** (grad, taps, added, sizes, kernel, stride, padding, dilation): taps outside of the image do not
 *  occur in samples. */
static void ref_taps_backward(ts_ref *r)
{
    const ts_ref_arg *g = &r->a[0], *taps = &r->a[1], *added = &r->a[2];
    int n = r->a[3].ndim;
    axis axes[3];
    int64_t sizes[TS_MAX_DIMS], planes = ref_numel(g->sizes, g->ndim - n);
    memcpy(sizes, g->sizes, sizeof sizes);
    memcpy(sizes + g->ndim - n, r->a[3].sizes, (size_t)n * sizeof *sizes);
    axes_of(r, axes, r->a[3].sizes, n, 4);
    for (int k = 3 - n; k < 3; k++)
        axes[k].out = g->sizes[g->ndim - 3 + k];
    double *y = ref_ret(r, 0, sizes, g->ndim);
    int64_t size = ref_numel(r->a[3].sizes, n), out = planes ? g->numel / planes : 0;
    for (int64_t i = 0; added->tag == TS_TAG_TENSOR && i < planes * size; i++)
        y[i] = added->x[i];
    for (int64_t i = 0; i < g->numel; i++) {
        int64_t tap = (int64_t)taps->x[i], o = i % out, index = 0, step = 1;
        for (int k = 2; k >= 0; k--) {
            const axis *a = &axes[k];
            int64_t window = o % a->out, place = window * a->stride - a->padding +
                                                 tap % a->kernel * a->dilation;
            o /= a->out, tap /= a->kernel;
            index += place * step;
            step *= a->in;
        }
        y[i / out * size + index] += g->x[i];
    }
}

#define PLACES .out = {0, OUT(TS_I64)}, .c = 0, .grad_rets = 1, .no_expand = true
#define TAPS .out = {0, OUT(TS_U8)}, .c = 0, .grad_rets = 1, .no_expand = true
/** Taps 0 <= x < bound. */
#define T_TAPS(bound, ...) {.tag = TS_TAG_TENSOR, .dtype = 1 + TS_U8, .gen = GEN_WHOLE,            \
                            .high = bound, SIZES_(__VA_ARGS__)}
#define NONE {.tag = TS_TAG_INTS}
static const ts_sample samples[] = {
    {"max_pool", "2d", {T(SWEEP, 3, 6, 7), INTS(2, 3), INTS(2, 3), INTS(0), INTS(1), BOOL(false)},
     ref_max_pool, PLACES, .grad = true, .most = 33, .many = 1200,
     .bad = {{0, T(2, 3), TS_ERR_SHAPE, "expected 4 dims"}, {1, INTS(0, 2), TS_ERR_VALUE, "from 1"},
             {2, INTS(0), TS_ERR_VALUE, "from 1"}, {3, INTS(2), TS_ERR_VALUE, "half of a window"},
             {4, INTS(-1), TS_ERR_VALUE, "from 1"}, {1, INTS(9, 2), TS_ERR_SHAPE, "expected sizes"},
             {0, T_OF(TS_I64, 2, 3, 6, 7), TS_ERR_DTYPE, "float"}}},
    {"max_pool", "overlapping",
     {T(2, SWEEP, 7, 8), INTS(3, 3), INTS(2), INTS(1), INTS(1), BOOL(true)},
     ref_max_pool, PLACES, .most = 65, .many = 1200,
     .bad = {{2, INTS(3, 3, 3), TS_ERR_VALUE, "expected 2 numbers"}}},
    {"max_pool", "windows beyond the padding",
     {T(2, SWEEP, 3, 4), INTS(4, 3), INTS(2, 4), INTS(0, 1), INTS(1, 2), BOOL(true)},
     ref_max_pool, PLACES, .grad = true, .most = 65, .many = 1200},
    {"max_pool", "1d, one sample", {T(3, 20), INTS(4), INTS(3), INTS(2), INTS(2), BOOL(true)},
     ref_max_pool, PLACES, .grad = true},
    {"max_pool", "3d", {T(1, 2, 4, SWEEP, 6), INTS(2, 2, 2), INTS(2, 1, 3), INTS(1), INTS(1),
                        BOOL(false)},
     ref_max_pool, PLACES, .grad = true, .no_empty = true, .most = 33, .many = 130},
    {"max_pool", "special", {T_SPECIAL(2, 3, 9, 9), INTS(3, 3), INTS(2), INTS(1), INTS(1),
                             BOOL(false)},
     ref_max_pool, PLACES},
    {"adaptive_max_pool", "2d", {T(SWEEP, 3, 7, 5), INTS(3, 2)}, ref_adaptive, PLACES, .grad = true,
     .most = 33, .many = 1200,
     .bad = {{1, INTS(0, 2), TS_ERR_VALUE, "from 1"}, {0, T(2, 3), TS_ERR_SHAPE,
                                                       "expected 4 dims"}}},
    {"adaptive_max_pool", "1d", {T(2, 3, SWEEP), INTS(4)}, ref_adaptive, PLACES, .grad = true,
     .no_empty = true},
    /* each window contains all elements */
    {"max_pool_backward", "2d",
     {T(SWEEP, 2, 4, 4), T_INDEX(16, SWEEP, 2, 4, 4), INTS(4, 4), INTS(7, 7), INTS(1), INTS(3),
      INTS(1)},
     ref_backward, .c = 8, .depth = 16, .scale = 4, .grad = true, .most = 65,
     .bad = {{1, T_INDEX(16, 3, 2, 4, 3), TS_ERR_SHAPE, "indices"},
             {2, INTS(9, 4), TS_ERR_SHAPE, "expected sizes"}}},
    {"max_pool_backward", "adaptive",
     {T(SWEEP, 2, 1), T_INDEX(7, SWEEP, 2, 1), INTS(7), NONE, NONE, NONE, NONE}, ref_backward,
     .c = 0, .grad = true},
    {"max_pool_taps", "2d",
     {T(SWEEP, 3, 6, 8), INTS(2, 2), INTS(2, 2), INTS(0), INTS(1), BOOL(false)},
     ref_max_pool_taps, TAPS, .grad = true, .most = 33, .many = 1200,
     .bad = {{1, INTS(0, 2), TS_ERR_VALUE, "from 1"},
             {0, T_OF(TS_I64, 2, 3, 6, 8), TS_ERR_DTYPE, "float"}}},
    {"max_pool_taps", "3x3",
     {T(2, SWEEP, 9, 6), INTS(3, 3), INTS(3), INTS(0), INTS(1), BOOL(false)},
     ref_max_pool_taps, TAPS, .grad = true, .most = 33, .many = 130},
    {"max_pool_taps", "overlapping",
     {T(2, SWEEP, 7, 8), INTS(3, 3), INTS(2), INTS(1), INTS(1), BOOL(true)},
     ref_max_pool_taps, TAPS, .grad = true, .most = 33, .many = 1200},
    {"max_pool_taps", "1d, one sample", {T(3, 20), INTS(4), INTS(3), INTS(2), INTS(2), BOOL(true)},
     ref_max_pool_taps, TAPS, .grad = true},
    {"max_pool_taps", "3d", {T(1, 2, 4, SWEEP, 6), INTS(2, 3, 2), INTS(2, 1, 3), INTS(1), INTS(1),
                             BOOL(false)},
     ref_max_pool_taps, TAPS, .grad = true, .no_empty = true, .most = 33, .many = 130},
    {"max_pool_taps", "large windows",
     {T(1, 2, 40, 41), INTS(16, 16), INTS(7, 5), INTS(3), INTS(2), BOOL(false)},
     ref_max_pool_taps, TAPS,
     .bad = {{1, INTS(16, 17), TS_ERR_VALUE, "at most 256 elements"}}},
    {"max_pool_taps", "special", {T_SPECIAL(2, 3, 9, 9), INTS(3, 3), INTS(2), INTS(1), INTS(1),
                                  BOOL(false)},
     ref_max_pool_taps, TAPS},
    {"max_pool_taps_backward", "2d",
     {T(SWEEP, 3, 3, 4), T_TAPS(4, SWEEP, 3, 3, 4), T(SWEEP, 3, 6, 8), INTS(6, 8), INTS(2, 2),
      INTS(2), INTS(0), INTS(1)},
     ref_taps_backward, .c = 8, .depth = 2, .scale = 4, .grad = true, .most = 33, .many = 1200,
     .bad = {{1, T_TAPS(4, 2, 3, 3, 3), TS_ERR_SHAPE, "taps"},
             {1, T_INDEX(4, 3, 3, 3, 4), TS_ERR_DTYPE, "u8"},
             {2, T(3, 3, 6, 7), TS_ERR_SHAPE, "added"},
             {4, INTS(2, 2, 2), TS_ERR_VALUE, "expected 2 numbers"},
             {4, NONE, TS_ERR_VALUE, "expected 2 numbers"}}},
    {"max_pool_taps_backward", "overlapping",
     {T(2, SWEEP, 3, 3), T_TAPS(9, 2, SWEEP, 3, 3), T(2, SWEEP, 7, 8), INTS(7, 8), INTS(3, 4),
      INTS(2), INTS(0), INTS(1)},
     ref_taps_backward, .c = 8, .depth = 13, .scale = 4, .grad = true, .most = 33, .many = 1200},
    {"max_pool_taps_backward", "alone",
     {T(2, SWEEP, 16), T_TAPS(3, 2, SWEEP, 16), ABSENT, INTS(20), INTS(3), INTS(1), INTS(0),
      INTS(2)},
     ref_taps_backward, .c = 8, .depth = 3, .scale = 4, .grad = true, .most = 33, .many = 1200},
};
TS_SAMPLES(pool, samples)
