/** @file convolution.c  Samples of convolutions: sums over pairs of elements that a weight
 * connects. */
// SPDX-License-Identifier: MIT
#include "conformance/sample.h"

#include <math.h>

/** A call. x: sizes of the input of a convolution, or of the result of a transposed one; y: sizes
 * of the other side; stride and the following: a number for each dim. */
typedef struct problem {
    bool transposed;
    int dims;
    int64_t groups, channels, features; /* channels and features per group */
    int64_t x[5], y[5], w[5], stride[3], before[3], after[3], dilation[3];
} problem;

static int64_t number(const ts_ref_arg *list, int d)
{
    return list->sizes[list->ndim == 1 ? 0 : d];
}

/** numbers: stride, padding, dilation, transposed, output_padding, groups */
static problem problem_of(const int64_t *in, const int64_t *w, int ndim, const ts_ref_arg *numbers)
{
    problem p = {.transposed = numbers[3].i, .dims = ndim - 2, .groups = numbers[5].i,
                 .channels = w[1], .features = w[0] / numbers[5].i};
    int64_t *out = p.transposed ? p.x : p.y, *from = p.transposed ? p.y : p.x;
    for (int d = 0; d < ndim; d++) {
        from[d] = in[d];
        p.w[d] = w[d];
    }
    out[0] = in[0];
    out[1] = p.transposed ? w[1] * p.groups : w[0];
    for (int d = 0; d < p.dims; d++) {
        bool two = numbers[1].ndim == 2 * p.dims;
        p.stride[d] = number(&numbers[0], d);
        p.before[d] = number(&numbers[1], d);
        p.after[d] = two ? numbers[1].sizes[p.dims + d] : p.before[d];
        p.dilation[d] = number(&numbers[2], d);
        int64_t extent = p.dilation[d] * (w[2 + d] - 1) + 1, ends = p.before[d] + p.after[d];
        out[2 + d] = p.transposed
                         ? (in[2 + d] - 1) * p.stride[d] - ends + extent + number(&numbers[4], d)
                         : (in[2 + d] + ends - extent) / p.stride[d] + 1;
    }
    return p;
}

/** Calls visit for each connected pair, with the indices of the elements of x, y and the weight. */
static void each_pair(const problem *p, void (*visit)(void *to, int64_t x, int64_t y, int64_t w),
                      void *to)
{
    int64_t windows = ref_numel(p->y + 2, p->dims), taps = ref_numel(p->w + 2, p->dims),
            size = ref_numel(p->x + 2, p->dims);
    for (int64_t n = 0; n < p->y[0]; n++)
        for (int64_t q = 0; q < windows; q++)
            for (int64_t t = 0; t < taps; t++) {
                int64_t at = 0, scale = 1, left_q = q, left_t = t;
                bool inside = true;
                for (int d = p->dims - 1; d >= 0; d--) {
                    int64_t i = left_q % p->y[2 + d] * p->stride[d] - p->before[d] +
                                left_t % p->w[2 + d] * p->dilation[d];
                    inside = inside && i >= 0 && i < p->x[2 + d];
                    at += i * scale;
                    scale *= p->x[2 + d];
                    left_q /= p->y[2 + d];
                    left_t /= p->w[2 + d];
                }
                for (int64_t o = 0; inside && o < p->y[1]; o++)
                    for (int64_t c = 0; c < p->channels; c++) {
                        int64_t channel = o / p->features * p->channels + c;
                        visit(to, (n * p->x[1] + channel) * size + at,
                              (n * p->y[1] + o) * windows + q, (o * p->channels + c) * taps + t);
                    }
            }
}

/** Sums of products, and of their magnitudes, over pairs. */
typedef struct sums {
    const double *x, *y, *w;
    double *to_x, *to_y, *to_w, *size_x, *size_y, *size_w;
} sums;

static void add_pair(void *to, int64_t x, int64_t y, int64_t w)
{
    const sums *s = to;
    if (s->to_x) {
        s->to_x[x] += s->y[y] * s->w[w];
        s->size_x[x] += fabs(s->y[y] * s->w[w]);
    }
    if (s->to_y) {
        s->to_y[y] += s->x[x] * s->w[w];
        s->size_y[y] += fabs(s->x[x] * s->w[w]);
    }
    if (s->to_w) {
        s->to_w[w] += s->x[x] * s->y[y];
        s->size_w[w] += fabs(s->x[x] * s->y[y]);
    }
}

static double *result(ts_ref *r, int i, const int64_t *sizes, int ndim)
{
    double *to = ref_ret(r, i, sizes, ndim);
    r->scale[i] = ref_scratch(r, ref_numel(sizes, ndim));
    return to;
}

static void ref_forward(ts_ref *r)
{
    const ts_ref_arg *in = &r->a[0], *w = &r->a[1], *bias = &r->a[2];
    problem p = problem_of(in->sizes, w->sizes, in->ndim, &r->a[3]);
    double *to = result(r, 0, p.transposed ? p.x : p.y, in->ndim);
    sums s = {.x = in->x, .y = in->x, .w = w->x};
    *(p.transposed ? &s.to_x : &s.to_y) = to;
    *(p.transposed ? &s.size_x : &s.size_y) = r->scale[0];
    each_pair(&p, add_pair, &s);
    int64_t channels = r->ret[0].sizes[1], inner = ref_numel(r->ret[0].sizes + 2, p.dims);
    for (int64_t i = 0; bias->tag == TS_TAG_TENSOR && i < r->ret[0].numel; i++) {
        to[i] += bias->x[i / inner % channels];
        r->scale[0][i] += fabs(bias->x[i / inner % channels]);
    }
}

static void ref_backward(ts_ref *r)
{
    const ts_ref_arg *g = &r->a[0], *in = &r->a[1], *w = &r->a[2];
    problem p = problem_of(r->a[3].sizes, r->a[4].sizes, r->a[3].ndim, &r->a[5]);
    const double *from[] = {in->tag == TS_TAG_TENSOR ? in->x : NULL,
                            w->tag == TS_TAG_TENSOR ? w->x : NULL};
    double *to_input = result(r, 0, p.transposed ? p.y : p.x, p.dims + 2),
           *to_weight = result(r, 1, p.w, p.dims + 2),
           *to_bias = result(r, 2, g->sizes + 1, 1);
    sums s = {.x = p.transposed ? g->x : from[0], .y = p.transposed ? from[0] : g->x, .w = from[1],
              .to_w = to_weight, .size_w = r->scale[1]};
    *(p.transposed ? &s.to_y : &s.to_x) = to_input;
    *(p.transposed ? &s.size_y : &s.size_x) = r->scale[0];
    each_pair(&p, add_pair, &s);
    int64_t inner = ref_numel(g->sizes + 2, p.dims);
    for (int64_t i = 0; i < g->numel; i++) {
        to_bias[i / inner % g->sizes[1]] += g->x[i];
        r->scale[2][i / inner % g->sizes[1]] += fabs(g->x[i]);
    }
}

/* output_padding and groups come last */
#define PLAIN INTS(1), INTS(0), INTS(1), BOOL(false), INTS(0), INT(1)
#define FORWARD(name, ...) {"convolution", name, __VA_ARGS__, ref_forward, .c = 4, .depth = 9
#define BACKWARD(name, ...) {"convolution_backward", name, __VA_ARGS__, ref_backward, .c = 4, \
    .depth = 9

static const ts_sample samples[] = {
    FORWARD("1d", {T(2, 3, SWEEP), T(4, 3, 1), T(4), PLAIN}),
     .no_empty = true, .grad = true,
     .bad = {{0, T(2, 3), TS_ERR_SHAPE, "3 to 5 dims"},
             {0, T(2, 4, SWEEP), TS_ERR_SHAPE, "expected 3 channels"},
             {0, T_OF(TS_I64, 2, 3, SWEEP), TS_ERR_DTYPE, "dtype"},
             {1, T(4, 3, 1, 1), TS_ERR_SHAPE, "expected 3 dims"},
             {1, T(4, 3, 300), TS_ERR_SHAPE, "for kernel size 300"},
             {1, T(4, 3, 0), TS_ERR_SHAPE, "a window of 1"},
             {2, T(3), TS_ERR_SHAPE, "expected sizes"},
             {3, INTS(0), TS_ERR_VALUE, "from 1"}}},
    FORWARD("numbers", {T(SWEEP, 4, 5), T(6, 2, 3), ABSENT, INTS(2), INTS(1), INTS(1), BOOL(false),
         INTS(0), INT(2)}),
     .many = 5000, .grad = true,
     .bad = {{3, INTS(1, 1), TS_ERR_VALUE, "expected 1 number"},
             {4, INTS(-1), TS_ERR_VALUE, "from 0"},
             {5, INTS(0), TS_ERR_VALUE, "from 1"},
             {7, INTS(1), TS_ERR_VALUE, "not transposed"},
             {8, INT(0), TS_ERR_VALUE, "at least 1"},
             {8, INT(4), TS_ERR_SHAPE, "multiple of 4 groups"},
             {8, INT(3), TS_ERR_SHAPE, "expected 6 channels"}}},
    FORWARD("2d", {T(2, 3, SWEEP, 9), T(5, 3, 3, 2), T(5), INTS(1), INTS(1), INTS(1), BOOL(false),
         INTS(0), INT(1)}),
     .most = 65, .many = 600, .no_empty = true, .grad = true},
    FORWARD("strided", {T(2, 4, 11, SWEEP), T(6, 2, 3, 5), T(6), INTS(2, 3), INTS(1, 2), INTS(2, 1),
         BOOL(false), INTS(0), INT(2)}),
     .most = 65, .many = 600, .no_empty = true, .grad = true},
    FORWARD("ends", {T(1, 2, 6, SWEEP), T(3, 2, 4, 2), T(3), INTS(1), INTS(1, 0, 2, 1), INTS(1),
         BOOL(false), INTS(0), INT(1)}),
     .most = 65, .many = 600, .no_empty = true, .grad = true},
    FORWARD("channels", {T(1, SWEEP, 4, 5), T(7, SWEEP, 3, 3), T(7), INTS(1), INTS(1), INTS(1),
         BOOL(false), INTS(0), INT(1)}),
     .most = 65, .many = 300, .grad = true},
    FORWARD("depthwise", {T(2, 5, 6, SWEEP), T(10, 1, 3, 3), T(10), INTS(1), INTS(1), INTS(1),
         BOOL(false), INTS(0), INT(5)}),
     .most = 65, .many = 1000, .no_empty = true, .grad = true},
    FORWARD("3d", {T(1, 3, 4, SWEEP, 5), T(4, 3, 2, 3, 3), T(4), INTS(1, 2, 1), INTS(0, 1, 1),
         INTS(1), BOOL(false), INTS(0), INT(1)}),
     .most = 33, .many = 200, .no_empty = true, .grad = true},
    FORWARD("transposed 1d", {T(2, 4, SWEEP), T(4, 3, 3), T(6), INTS(2), INTS(1), INTS(1),
         BOOL(true), INTS(1), INT(2)}),
     .no_empty = true, .grad = true,
     .bad = {{7, INTS(2), TS_ERR_VALUE, "less than its stride"},
             {1, T(3, 4, 3), TS_ERR_SHAPE, "multiple of 2"},
             {0, T(2, 6, SWEEP), TS_ERR_SHAPE, "transposed weight"},
             {4, INTS(400), TS_ERR_SHAPE, "a result of 0 or more"}}},
    FORWARD("transposed", {T(2, 3, SWEEP, 3), T(3, 2, 3, 4), T(2), INTS(3, 2), INTS(1, 2),
         INTS(2, 3), BOOL(true), INTS(2, 1), INT(1)}),
     .most = 33, .many = 300, .no_empty = true, .grad = true},
    FORWARD("transposed, gaps", {T(SWEEP, 2, 3, 2), T(2, 2, 2, 1), ABSENT, INTS(3, 4), INTS(0),
         INTS(1), BOOL(true), INTS(0), INT(1)}),
     .most = 33, .many = 300, .grad = true},
    FORWARD("transposed 3d", {T(1, 2, 2, SWEEP, 3), T(2, 3, 3, 2, 3), T(3), INTS(2, 1, 2),
         INTS(1, 0, 1), INTS(1), BOOL(true), INTS(0), INT(1)}),
     .most = 33, .many = 100, .no_empty = true, .grad = true},

    BACKWARD("1d", {T(SWEEP, 4, 5), T(SWEEP, 3, 5), T(4, 3, 1), INTS(SWEEP, 3, 5), INTS(4, 3, 1),
         PLAIN}),
     .many = 2000, .grad = true},
    BACKWARD("2d", {T(2, 5, 3, 4), T(2, 4, 6, 7), T(5, 4, 3, 3), INTS(2, 4, 6, 7), INTS(5, 4, 3, 3),
         INTS(2), INTS(1), INTS(1), BOOL(false), INTS(0), INT(1)}),
     .grad = true,
     .bad = {{0, T(2, 5, 3, 5), TS_ERR_SHAPE, "expected sizes"},
             {1, T(2, 4, 6, 6), TS_ERR_SHAPE, "expected sizes"},
             {1, ABSENT, TS_ERR_NULL, "gradient 1 is wanted"},
             {2, ABSENT, TS_ERR_NULL, "gradient 0 is wanted"},
             {3, INTS(2, 4), TS_ERR_SHAPE, "3 to 5 dims"},
             {3, INTS(-2, 4, 6, 7), TS_ERR_SHAPE, "in dim 0"},
             {4, INTS(5, 4, 3), TS_ERR_SHAPE, "expected 4 dims"},
             {4, INTS(5, 4, -3, 3), TS_ERR_SHAPE, "a window of 1"}}},
    BACKWARD("groups", {T(2, 6, 4, 3), T(2, 4, 9, 6), T(6, 2, 3, 2), INTS(2, 4, 9, 6),
         INTS(6, 2, 3, 2), INTS(2, 3), INTS(1), INTS(2, 1), BOOL(false), INTS(0), INT(2)}),
     .grad = true},
    BACKWARD("3d", {T(1, 2, 2, 3, 4), T(1, 3, 3, 4, 4), T(2, 3, 2, 2, 3), INTS(1, 3, 3, 4, 4),
         INTS(2, 3, 2, 2, 3), INTS(1), INTS(0, 0, 1), INTS(1), BOOL(false), INTS(0), INT(1)}),
     .grad = true},
    BACKWARD("transposed", {T(2, 4, 7, 8), T(2, 4, 4, 4), T(4, 2, 3, 3), INTS(2, 4, 4, 4),
         INTS(4, 2, 3, 3), INTS(2), INTS(1), INTS(1), BOOL(true), INTS(0, 1), INT(2)}),
     .grad = true},
};
TS_SAMPLES(convolution, samples)
