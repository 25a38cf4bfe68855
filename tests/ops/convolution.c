/**
 * @file convolution.c
 * Convolutions and their gradients against sums over windows, in every layout; public forms.
 */
// SPDX-License-Identifier: MIT
#include "tests/expect.h"
#include "tests/harness.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "core/tensor.h"

/** A convolution over two dims, from x to y; if transposed, from y to x. */
typedef struct shape {
    int64_t batch, channels, size[2], features, kernel[2];
    ts_conv_opts opts;
    bool transposed;
} shape;

#define OPTS(...) {.size = sizeof(ts_conv_opts), __VA_ARGS__}
static const shape shapes[] = {
    {2, 3, {9, 11}, 5, {3, 3}, OPTS(.padding = {1, 1}), false},
    {3, 40, {37, 41}, 24, {3, 3}, OPTS(.padding = {1, 1}), false},
    {2, 3, {45, 38}, 33, {7, 7}, OPTS(.padding = {3, 3}, .stride = {2, 2}), false},
    {5, 64, {7, 7}, 96, {1, 1}, OPTS(.stride = {0}), false},
    {2, 64, {33, 20}, 48, {1, 1}, OPTS(.stride = {2, 2}), false},
    {2, 17, {25, 19}, 31, {2, 5}, OPTS(.padding = {0, 4}, .dilation = {3, 2}), false},
    {2, 24, {18, 23}, 24, {3, 3}, OPTS(.padding = {1, 1}, .groups = 24), false},
    {1, 24, {18, 23}, 48, {3, 3}, OPTS(.stride = {1, 2}, .groups = 12), false},
    {4, 128, {14, 14}, 128, {3, 3}, OPTS(.padding = {1, 1}, .groups = 4), false},
    {1, 1, {200, 300}, 1, {5, 5}, OPTS(.padding = {2, 2}), false},
    {9, 12, {4, 5}, 10, {1, 1}, OPTS(.stride = {0}), false},
    {8, 11, {5, 3}, 19, {3, 2}, OPTS(.padding = {1, 1}, .stride = {1, 2}), false},
    {3, 19, {5, 6}, 19, {2, 3}, OPTS(.padding = {0, 1}, .groups = 19), false},
    {10, 9, {4, 3}, 8, {2, 2}, OPTS(.stride = {2, 1}), true},
    {2, 32, {20, 21}, 40, {2, 2}, OPTS(.stride = {2, 2}), true},
    {2, 20, {9, 10}, 30, {4, 3}, OPTS(.stride = {3, 2}, .padding = {2, 1}, .dilation = {1, 3},
                                     .output_padding = {1, 2}, .groups = 2), true},
};

static double value(uint32_t seed, int64_t i)
{
    uint32_t x = (uint32_t)i * 2654435761u ^ seed * 40503u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return (double)(x % 4096) / 2048 - 1;
}

/** A random 4-dim tensor; last: channels-last, which is dim 1 innermost in memory. */
static ts_tensor *filled(uint32_t seed, ts_dtype dtype, const int64_t *sizes, bool last)
{
    const int64_t inside_out[] = {0, 3, 1, 2};
    ts_tensor *t = last ? ts_permute(ts_empty(TS_SIZES(sizes[0], sizes[2], sizes[3], sizes[1]),
                                              dtype), inside_out, 4)
                        : ts_empty(sizes, 4, dtype);
    ck_assert_ptr_nonnull(t);
    for (int64_t i = 0; i < t->numel; i++)
        if (dtype == TS_F32)
            ((float *)t->data)[i] = (float)value(seed, i);
        else
            ((double *)t->data)[i] = value(seed, i);
    return t;
}

static double at(const ts_tensor *t, int64_t a, int64_t b, int64_t c, int64_t d)
{
    int64_t i = a * t->strides[0] + b * t->strides[1] + c * t->strides[2] + d * t->strides[3];
    return t->dtype == TS_F32 ? ((const float *)t->data)[i] : ((const double *)t->data)[i];
}

static int64_t or_one(int64_t n) { return n ? n : 1; }

/** The tensors of a call: the wide side x, the narrow side y, and w. */
typedef struct sides {
    const shape *s;
    const ts_tensor *x, *y, *w;
    int64_t groups, channels, features; /* channels and features of one group */
} sides;

/** The sum of products of the two tensors that are not `of` ('x', 'y' or 'w') over the pairs that
 *  belong to element e of `of`, and of their magnitudes. */
static double sum_of(const sides *v, char of, const int64_t *e, double *size)
{
    const ts_conv_opts *o = &v->s->opts;
    const ts_tensor *x = v->x, *y = v->y, *w = v->w;
    double sum = 0;
    *size = 0;
    for (int64_t n = of == 'w' ? 0 : e[0]; n < (of == 'w' ? x->sizes[0] : e[0] + 1); n++)
        for (int64_t i = of == 'y' ? e[2] : 0; i < (of == 'y' ? e[2] + 1 : y->sizes[2]); i++)
            for (int64_t k0 = 0; k0 < w->sizes[2]; k0++) {
                int64_t p = i * or_one(o->stride[0]) - o->padding[0] + k0 * or_one(o->dilation[0]);
                if (p < 0 || p >= x->sizes[2] || (of == 'x' && p != e[2]) ||
                    (of == 'w' && k0 != e[2]))
                    continue;
                int64_t begin = of == 'y' ? e[3] : 0, end = of == 'y' ? e[3] + 1 : y->sizes[3];
                for (int64_t k = begin * w->sizes[3]; k < end * w->sizes[3]; k++) {
                    int64_t j = k / w->sizes[3], k1 = k % w->sizes[3];
                    int64_t q = j * or_one(o->stride[1]) - o->padding[1] +
                                k1 * or_one(o->dilation[1]);
                    if (q < 0 || q >= x->sizes[3] || (of == 'x' && q != e[3]) ||
                        (of == 'w' && k1 != e[3]))
                        continue;
                    int64_t group = of == 'x' ? e[1] / v->channels
                                              : (of == 'y' ? e[1] : e[0]) / v->features;
                    int64_t terms = of == 'x' ? v->features : of == 'y' ? v->channels : 1;
                    for (int64_t t = 0; t < terms; t++) {
                        int64_t f = of == 'x' ? group * v->features + t : of == 'y' ? e[1] : e[0];
                        int64_t c = of == 'x' ? e[1] % v->channels : of == 'y' ? t : e[1];
                        double product =
                            (of == 'x' ? 1 : at(x, n, group * v->channels + c, p, q)) *
                            (of == 'y' ? 1 : at(y, n, f, i, j)) *
                            (of == 'w' ? 1 : at(w, f, c, k0, k1));
                        sum += product;
                        *size += fabs(product);
                    }
                }
            }
    return sum;
}

/** Compares some elements of `got` with their sums, plus the bias of their channel (dim 1) unless
 *  it is NULL. */
static void compare(const sides *v, char of, const ts_tensor *got, const ts_tensor *bias,
                    int index)
{
    double eps = got->dtype == TS_F32 ? 0x1p-23 : 0x1p-52;
    for (int k = 0; k < 60; k++) {
        int64_t left = (int64_t)(value((uint32_t)(k + index * 100), 7) * 1e6 + 1e6), e[4];
        left = k == 0 ? 0 : k == 1 ? got->numel - 1 : left % got->numel;
        for (int d = 3; d >= 0; d--) {
            e[d] = left % got->sizes[d];
            left /= got->sizes[d];
        }
        double size, want = sum_of(v, of, e, &size), found = at(got, e[0], e[1], e[2], e[3]);
        if (bias)
            want += bias->dtype == TS_F32 ? ((const float *)bias->data)[e[1]]
                                          : ((const double *)bias->data)[e[1]];
        ck_assert_msg(fabs(found - want) <= 8 * eps * (size + 4),
                      "shape %d: %c (%lld, %lld, %lld, %lld): %.9g, expected %.9g", index, of,
                      (long long)e[0], (long long)e[1], (long long)e[2], (long long)e[3], found,
                      want);
    }
}

static bool is_last(ts_tensor *t) { return ts_is_contiguous(ts_movedim(t, 1, -1)); }

/** Largest difference of two tensors. */
static double distance(ts_tensor *a, ts_tensor *b)
{
    double largest;
    OK(ts_item(ts_amax(ts_abs(ts_sub(a, b))), &largest));
    return largest;
}

/* layout: channels-last input (bit 0), weight (bit 1), gradient of the result (bit 2).
 * TS_TEST_SMALL takes two of the eight. */
static void run_shape(const shape *s, int index, ts_dtype dtype, int layout)
{
    TS_SCOPE;
    int64_t groups = or_one(s->opts.groups), in = s->channels, out = s->features;
    const int64_t sizes[] = {s->batch, in, s->size[0], s->size[1]};
    const int64_t w_sizes[] = {s->transposed ? in : out, (s->transposed ? out : in) / groups,
                               s->kernel[0], s->kernel[1]};
    ts_tensor *x = ts_set_requires_grad(filled(1, dtype, sizes, layout & 1), true),
              *w = ts_set_requires_grad(filled(2, dtype, w_sizes, layout & 2), true);
    ts_tensor *b = ts_set_requires_grad(
        ts_flatten(filled(3, dtype, (int64_t[]){out, 1, 1, 1}, false), 0, 3), true);
    ts_tensor *y = s->transposed ? ts_conv_transpose2d(x, w, b, &s->opts)
                                 : ts_conv2d(x, w, b, &s->opts);
    OK(y);
    bool weight_last = (layout & 2) && ts_numel(w) > w_sizes[0]; /* (n, 1, 1, 1) is contiguous */
    if (in > 1 && out > 1)
        ck_assert_msg((layout & 1) || weight_last ? is_last(y) : ts_is_contiguous(y),
                      "shape %d: layout %d", index, layout);
    ts_tensor *g = filled(4, dtype, y->sizes, layout & 4);
    OK(ts_backward(ts_sum(ts_mul(y, g))));
    sides v = {s, s->transposed ? y : x, s->transposed ? x : y, w, groups,
               (s->transposed ? out : in) / groups, (s->transposed ? in : out) / groups};
    compare(&v, s->transposed ? 'x' : 'y', y, b, index);
    *(s->transposed ? &v.x : &v.y) = g;
    compare(&v, s->transposed ? 'y' : 'x', ts_grad(x), NULL, index);
    compare(&v, 'w', ts_grad(w), NULL, index);
    ts_tensor *sums = ts_sum_dims(g, (int64_t[]){0, 2, 3}, 3, false);
    ck_assert(distance(ts_grad(b), sums) < 1e-3);
}

/** y and the gradients of x and w, in f32. */
static void results_of(const shape *s, int layout, int threads, ts_tensor **results)
{
    int64_t groups = or_one(s->opts.groups);
    const int64_t sizes[] = {s->batch, s->channels, s->size[0], s->size[1]};
    const int64_t w_sizes[] = {s->transposed ? s->channels : s->features,
                               (s->transposed ? s->features : s->channels) / groups, s->kernel[0],
                               s->kernel[1]};
    ts_tensor *x = ts_set_requires_grad(filled(1, TS_F32, sizes, layout & 1), true),
              *w = ts_set_requires_grad(filled(2, TS_F32, w_sizes, layout & 2), true);
    OK(ts_set_num_threads(threads));
    ts_tensor *y = s->transposed ? ts_conv_transpose2d(x, w, TS_NONE, &s->opts)
                                 : ts_conv2d(x, w, TS_NONE, &s->opts);
    OK(y);
    OK(ts_backward(ts_sum(ts_mul(y, y))));
    results[0] = y;
    results[1] = ts_grad(x);
    results[2] = ts_grad(w);
}

TS_TEST(elements_are_sums_over_windows, .loop = TS_COUNTOF(shapes))
{
    for (int layout = 0; layout < 8; layout++) {
        if (getenv("TS_TEST_SMALL") && (layout + _i) % 4)
            continue;
        run_shape(&shapes[_i], _i, TS_F32, layout);
        if (layout % 3 == 0)
            run_shape(&shapes[_i], _i, TS_F64, layout);
    }
}

/** A number from least to most; *state: of the generator, advanced. */
static int64_t drawn(uint64_t *state, int64_t least, int64_t most)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return least + (int64_t)((*state >> 33) % (uint64_t)(most - least + 1));
}

/** A shape of the classes that kernels distinguish: few or many channels on either side, groups,
 *  kernels as large as their stride, images of a few pixels. False if no window fits. */
static bool draw_shape(uint64_t *state, shape *s)
{
    static const int64_t channels[] = {1, 2, 3, 4, 5, 16, 17, 40, 64};
    int64_t groups = drawn(state, 0, 3) ? 1 : drawn(state, 2, 5), large = drawn(state, 0, 1);
    bool patches = drawn(state, 0, 3) == 0;
    *s = (shape){.batch = drawn(state, 1, 4), .transposed = drawn(state, 0, 2) == 0,
                 .channels = groups * channels[drawn(state, 0, groups > 1 ? 6 : 8)],
                 .features = groups * channels[drawn(state, 0, groups > 1 ? 6 : 8)],
                 .opts = {.size = sizeof(ts_conv_opts), .groups = groups}};
    bool fits = true;
    for (int d = 0; d < 2; d++) {
        s->size[d] = drawn(state, 1, large ? 30 : 8);
        s->kernel[d] = drawn(state, 1, 4);
        s->opts.stride[d] = patches ? s->kernel[d] : drawn(state, 1, 3);
        s->opts.dilation[d] = patches ? 1 : drawn(state, 0, 3) ? 1 : 2;
        s->opts.padding[d] = patches ? 0 : drawn(state, 0, s->kernel[d] / 2);
        int64_t reach = (s->kernel[d] - 1) * s->opts.dilation[d] + 1;
        if (s->transposed)
            fits = fits && (s->size[d] - 1) * s->opts.stride[d] + reach > 2 * s->opts.padding[d];
        else
            fits = fits && s->size[d] + 2 * s->opts.padding[d] >= reach;
    }
    return fits;
}

/** Compares a convolution of bf16, on one and on two threads, with that of its elements in f32. */
static void check_half(const shape *s, int layout, int index)
{
    TS_SCOPE;
    const int64_t sizes[] = {s->batch, s->channels, s->size[0], s->size[1]};
    const int64_t w_sizes[] = {s->transposed ? s->channels : s->features,
                               (s->transposed ? s->features : s->channels) / s->opts.groups,
                               s->kernel[0], s->kernel[1]};
    ts_tensor *x = ts_to(filled(1, TS_F32, sizes, layout & 1), TS_BF16),
              *w = ts_to(filled(2, TS_F32, w_sizes, layout & 2), TS_BF16),
              *b = ts_to(ts_flatten(filled(3, TS_F32, (int64_t[]){s->features, 1, 1, 1}, false), 0,
                                    3),
                         TS_BF16),
              *y[3];
    for (int i = 0; i < 3; i++) { /* 0: f32; 1 and 2: threads of bf16 */
        ts_dtype dtype = i ? TS_BF16 : TS_F32;
        OK(ts_set_num_threads(i ? i : 1));
        y[i] = (s->transposed ? ts_conv_transpose2d : ts_conv2d)(
            ts_to(x, dtype), ts_to(w, dtype), ts_to(b, dtype), &s->opts);
        OK(y[i]);
    }
    ck_assert(memcmp(y[1]->data, y[2]->data, (size_t)y[1]->numel * 2) == 0);
    double above;
    OK(ts_item(ts_amax(ts_sub(ts_abs(ts_sub(ts_to(y[1], TS_F32), y[0])),
                              ts_mul_scalar(ts_abs(y[0]), 0x1p-8))),
               &above));
    ck_assert_msg(above < 1e-3, "shape %d, layout %d: bf16 differs by %g", index, layout, above);
}

TS_TEST(drawn_shapes_are_sums_over_windows)
{
    const char *text = getenv("TS_TEST_SEED");
    uint64_t state = text ? strtoull(text, NULL, 10) : 1;
    int i = 0;
    for (int tried = 0; i < 150 && tried < 1000; tried++) {
        shape s;
        if (!draw_shape(&state, &s))
            continue;
        run_shape(&s, i, TS_F32, (int)drawn(&state, 0, 7));
        run_shape(&s, i, TS_F64, (int)drawn(&state, 0, 7));
        ts_tensor *one[3], *two[3];
        int layout = (int)drawn(&state, 0, 3);
        TS_SCOPE;
        check_half(&s, layout, i);
        results_of(&s, layout, 1, one);
        results_of(&s, layout, 2, two);
        for (int k = 0; k < 3; k++)
            ck_assert_msg(memcmp(one[k]->data, two[k]->data, (size_t)one[k]->numel * 4) == 0,
                          "drawn shape %d, result %d", i, k);
        i++;
    }
    ck_assert_int_eq(i, 150);
}

TS_TEST(bits_do_not_depend_on_the_number_of_threads, .loop = TS_COUNTOF(shapes))
{
    for (int layout = 0; layout < 4; layout++) {
        TS_SCOPE;
        ts_tensor *one[3], *three[3];
        results_of(&shapes[_i], layout, 1, one);
        results_of(&shapes[_i], layout, 3, three);
        for (int i = 0; i < 3; i++)
            ck_assert_msg(memcmp(one[i]->data, three[i]->data, (size_t)one[i]->numel * 4) == 0,
                          "shape %d, layout %d, result %d", _i, layout, i);
    }
}

static atomic_bool stop;

/** Sets changing numbers of threads until the test stops. */
static void *change_threads(void *ctx)
{
    (void)ctx;
    for (int i = 0; !atomic_load(&stop); i++)
        ts_set_num_threads(1 + i % 24);
    return NULL;
}

/* ThreadSanitizer reports a race from one turn in which both threads access the memory. */
#ifdef __SANITIZE_THREAD__
enum { turns = 8 };
#else
enum { turns = 20 };
#endif

/* Scratch that is sized for the old number must not be used by as many threads as the new one. */
TS_TEST(the_number_of_threads_may_change_meanwhile, .loop = TS_COUNTOF(shapes), .threads = true)
{
    TS_SCOPE;
    ts_tensor *want[3], *got[3], *softmax[2];
    ts_tensor *halves = ts_to(filled(5, TS_F32, (int64_t[]){64, 1, 3, 70}, false), TS_BF16);
    results_of(&shapes[_i], 1, 1, want);
    OK(softmax[0] = ts_softmax(halves, 3));
    pthread_t thread;
    atomic_store(&stop, false);
    ck_assert_int_eq(pthread_create(&thread, NULL, change_threads, NULL), 0);
    bool same = true;
    for (int turn = 0; turn < turns; turn++) {
        TS_SCOPE;
        results_of(&shapes[_i], 1, 2, got);
        for (int i = 0; i < 3; i++)
            same = same && memcmp(got[i]->data, want[i]->data, (size_t)got[i]->numel * 4) == 0;
        OK(softmax[1] = ts_softmax(halves, 3));
        same = same && memcmp(softmax[1]->data, softmax[0]->data, (size_t)halves->numel * 2) == 0;
    }
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    ck_assert(same);
}

TS_TEST(padding_same_keeps_the_sizes)
{
    TS_SCOPE;
    ts_conv_opts same = {.size = sizeof same, .same = true, .dilation = {2, 1}};
    ts_tensor *x = filled(1, TS_F64, (int64_t[]){2, 3, 9, 8}, false),
              *w = filled(2, TS_F64, (int64_t[]){4, 3, 3, 4}, false);
    ts_tensor *y = ts_conv2d(x, w, TS_NONE, &same);
    OK(y);
    ck_assert(ts_size(y, 2) == 9 && ts_size(y, 3) == 8);
    /* 2 rows at both ends; 1 column before and 2 after */
    ts_conv_opts wide = {.size = sizeof wide, .padding = {2, 2}, .dilation = {2, 1}};
    ts_tensor *all = ts_conv2d(x, w, TS_NONE, &wide); /* one more column before */
    ck_assert(distance(y, ts_narrow(all, 3, 1, 8)) < 1e-12);
    same.stride[1] = 2;
    FAILS(TS_ERR_VALUE, ts_conv2d(x, w, TS_NONE, &same));
    SAYS("conv2d: argument 'stride': expected 1 beside opts.same, got 2");
    same.stride[1] = 0;
    same.padding[0] = 1;
    FAILS(TS_ERR_VALUE, ts_conv2d(x, w, TS_NONE, &same));
    SAYS("0 beside opts.same");
    same.padding[0] = 0;
    FAILS(TS_ERR_VALUE, ts_conv_transpose2d(x, w, TS_NONE, &same));
    SAYS("false for a transposed convolution");
}

TS_TEST(one_sample_needs_no_batch)
{
    TS_SCOPE;
    ts_tensor *x = filled(1, TS_F64, (int64_t[]){1, 3, 5, 8}, false),
              *w = filled(2, TS_F64, (int64_t[]){4, 3, 3, 2}, false);
    ts_tensor *y = ts_conv2d(ts_select(x, 0, 0), w, TS_NONE, NULL);
    OK(y);
    ck_assert_int_eq(ts_ndim(y), 3);
    ck_assert(distance(ts_unsqueeze(y, 0), ts_conv2d(x, w, TS_NONE, NULL)) == 0);
    x = ts_flatten(x, 2, 3);
    w = ts_select(w, 2, 0);
    ck_assert(distance(ts_conv1d(ts_select(x, 0, 0), w, TS_NONE, NULL),
                       ts_select(ts_conv1d(x, w, TS_NONE, NULL), 0, 0)) == 0);
}

TS_TEST(a_convolution_of_one_dim_equals_one_of_an_image_with_one_row)
{
    TS_SCOPE;
    ts_tensor *x = filled(1, TS_F64, (int64_t[]){2, 3, 1, 30}, false),
              *w = filled(2, TS_F64, (int64_t[]){4, 3, 1, 5}, false);
    ts_conv_opts one = {.size = sizeof one, .stride = {2}, .padding = {3}},
                 two = {.size = sizeof two, .stride = {1, 2}, .padding = {0, 3}},
                 three = {.size = sizeof three, .stride = {1, 1, 2}, .padding = {0, 0, 3}};
    ts_tensor *y = ts_conv2d(x, w, TS_NONE, &two);
    OK(y);
    ck_assert(distance(ts_conv1d(ts_select(x, 2, 0), ts_select(w, 2, 0), TS_NONE, &one),
                       ts_select(y, 2, 0)) == 0);
    ck_assert(distance(ts_conv3d(ts_unsqueeze(x, 2), ts_unsqueeze(w, 2), TS_NONE, &three),
                       ts_unsqueeze(y, 2)) == 0);
    one.padding[1] = 1;
    FAILS(TS_ERR_VALUE, ts_conv1d(ts_select(x, 2, 0), ts_select(w, 2, 0), TS_NONE, &one));
    SAYS("conv1d: argument 'opts': expected 0 in lists after the last spatial dim, got 1");
    FAILS(TS_ERR_SHAPE, ts_conv3d(x, w, TS_NONE, NULL));
    SAYS("expected 5 dims as argument 'input'");
    FAILS(TS_ERR_SHAPE, ts_conv1d(x, w, TS_NONE, NULL));
    SAYS("conv1d: argument 'input': expected 3 dims, or 2 for one sample, got sizes (2, 3, 1, 30)");
    FAILS(TS_ERR_SHAPE, ts_conv1d(ts_ones(TS_SIZES(4, 30), TS_F32),
                                  ts_ones(TS_SIZES(2, 3, 5), TS_F32), TS_NONE, NULL));
    SAYS("conv1d: argument 'input': expected 3 channels in dim 0 of one sample, got sizes (4, 30)");
}

TS_TEST(an_image_without_pixels_is_all_padding)
{
    TS_SCOPE;
    for (int64_t groups = 1; groups <= 2; groups++) {
        ts_conv_opts o = {.size = sizeof o, .padding = {2}, .groups = groups};
        ts_tensor *x = ts_set_requires_grad(ts_ones(TS_SIZES(1, 2, 0), TS_F32), true),
                  *w = ts_set_requires_grad(ts_ones(TS_SIZES(4, 2 / groups, 3), TS_F32), true),
                  *y = ts_conv1d(x, w, TS_NONE, &o);
        OK(y);
        ck_assert_int_eq(ts_size(y, 2), 2);
        ck_assert(distance(y, ts_zeros(TS_SIZES(1, 4, 2), TS_F32)) == 0);
        OK(ts_backward(ts_sum(y)));
        ck_assert(distance(ts_grad(w), ts_zeros_like(w)) == 0);
        ck_assert_int_eq(ts_numel(ts_grad(x)), 0);
    }
}

/* PyTorch's rule for sizes that leave the order of dims open */
TS_TEST(channels_last_is_distinguished_from_contiguous)
{
    TS_SCOPE;
    ts_tensor *w = ts_ones(TS_SIZES(4, 3, 1, 1), TS_F32),
              *w_last = ts_movedim(ts_ones(TS_SIZES(4, 2, 2, 3), TS_F32), -1, 1);
    ts_tensor *x = ts_ones(TS_SIZES(2, 3, 5, 5), TS_F32), *one = ts_narrow(x, 1, 0, 1),
              *last = ts_movedim(ts_ones(TS_SIZES(2, 5, 5, 3), TS_F32), -1, 1);
    ck_assert(ts_is_contiguous(ts_conv2d(x, w, TS_NONE, NULL)));
    ck_assert(is_last(ts_conv2d(x, w_last, TS_NONE, NULL)));
    ck_assert(is_last(ts_conv2d(last, w, TS_NONE, NULL)));
    /* one channel, apart as in a contiguous tensor */
    ck_assert(ts_is_contiguous(ts_conv2d(one, ts_narrow(w, 1, 0, 1), TS_NONE, NULL)));
}

/* The gradient of a convolution's result may be a slice or expanded. If the image is channels-last,
 * the gradient rule makes a channels-last copy of the gradient, which all kernels read. */
TS_TEST(gradients_of_other_strides_equal_dense_ones)
{
    const char *text = getenv("TS_TEST_SEED");
    uint64_t state = text ? strtoull(text, NULL, 10) : 1;
    for (int i = 0; i < 40; i++) {
        TS_SCOPE;
        int64_t n = drawn(&state, 1, 3), in = drawn(&state, 2, 20), out = drawn(&state, 2, 20),
                h = drawn(&state, 3, 12), w = drawn(&state, 3, 12), skip = drawn(&state, 1, 5);
        bool transposed = drawn(&state, 0, 1), sum = drawn(&state, 0, 3) == 0;
        ts_conv_opts opts = {.size = sizeof opts, .stride = {2, 2}};
        const int64_t w_sizes[] = {transposed ? in : out, transposed ? out : in, 2, 2};
        ts_tensor *x = filled(1, TS_F64, (int64_t[]){n, in, h, w}, true),
                  *weight = filled(2, TS_F64, w_sizes, true),
                  *bias = ts_zeros(TS_SIZES(out), TS_F64), *grads[2][3];
        for (int k = 0; k < 2; k++) {
            ts_tensor *leaves[3] = {x, weight, bias};
            for (int j = 0; j < 3; j++)
                leaves[j] = ts_set_requires_grad(ts_detach(leaves[j]), true);
            ts_tensor *y = (transposed ? ts_conv_transpose2d : ts_conv2d)(leaves[0], leaves[1],
                                                                         leaves[2], &opts);
            OK(y);
            ts_tensor *beside = filled(3, TS_F64, (int64_t[]){n, skip, ts_size(y, 2),
                                                              ts_size(y, 3)}, true),
                      *g = filled(4, TS_F64, (int64_t[]){n, skip + out, ts_size(y, 2),
                                                         ts_size(y, 3)}, true);
            ts_tensor *own = sum ? ts_ones(TS_SIZES(n, out, ts_size(y, 2), ts_size(y, 3)), TS_F64)
                                 : ts_narrow(g, 1, skip, out);
            ts_tensor *loss = k     ? ts_sum(ts_mul(y, ts_clone(own)))
                              : sum ? ts_sum(y)
                                    : ts_sum(ts_mul(ts_cat((ts_tensor *[]){beside, y}, 2, 1), g));
            OK(ts_backward(loss));
            for (int j = 0; j < 3; j++)
                grads[k][j] = ts_grad(leaves[j]);
        }
        for (int j = 0; j < 3; j++)
            ck_assert(distance(grads[0][j], grads[1][j]) < 1e-12);
        ck_assert(is_last(grads[0][0]) && is_last(grads[0][1]));
    }
}

/* Sizes and gradients are those of torch.nn.functional.conv_transpose2d. */
TS_TEST(a_transposed_convolution_may_have_an_empty_result)
{
    static const ts_dtype dtypes[] = {TS_F32, TS_F64, TS_BF16};
    for (int k = 0; k < 6; k++) {
        TS_SCOPE;
        ts_dtype dtype = dtypes[k % 3];
        ts_conv_opts one = {.size = sizeof one, .padding = {1, 0}},
                     two = {.size = sizeof two, .padding = {2, 0}};
        ts_tensor *in[] = {ts_ones(TS_SIZES(2, 3, 1, 4), dtype),
                           ts_ones(TS_SIZES(3, 5, 2, 3), dtype), ts_ones(TS_SIZES(5), dtype)};
        if (k >= 3)
            in[0] = ts_to_channels_last(in[0]);
        for (int i = 0; i < 3; i++)
            OK(ts_set_requires_grad(in[i] = ts_detach(in[i]), true));
        ts_tensor *y = ts_conv_transpose2d(in[0], in[1], in[2], &one);
        OK(y);
        const int64_t sizes[] = {2, 5, 0, 6};
        for (int d = 0; d < 4; d++)
            ck_assert_int_eq(ts_size(y, d), sizes[d]);
        OK(ts_backward(ts_sum(y)));
        for (int i = 0; i < 3; i++) {
            double most = 1;
            OK(ts_item(ts_max(ts_abs(ts_to(ts_grad(in[i]), TS_F64))), &most));
            ck_assert_double_eq(most, 0);
        }
        FAILS(TS_ERR_SHAPE, ts_conv_transpose2d(in[0], in[1], in[2], &two));
        FAILS(TS_ERR_SHAPE, ts_conv_transpose2d(ts_narrow(in[0], 2, 0, 0), in[1], in[2], NULL));
    }
}

/** Small multiples of 1/4, whose sums of products are exact in f32. */
static ts_tensor *quarters(uint64_t *state, const int64_t *sizes, int ndim)
{
    ts_tensor *t = ts_empty(sizes, ndim, TS_F64);
    double *x = ts_data_mut(t);
    for (int64_t i = 0; i < t->numel; i++)
        x[i] = 0.25 * (double)(drawn(state, 0, 16) - 8);
    return t;
}

/* The products of halves add in f32, and round each result once. */
TS_TEST(gradients_of_windows_of_one_element_are_rounded_once)
{
    const char *text = getenv("TS_TEST_SEED");
    uint64_t state = text ? strtoull(text, NULL, 10) : 1;
    for (int i = 0; i < 60; i++) {
        TS_SCOPE;
        ts_dtype dtype = i % 2 ? TS_BF16 : TS_F16;
        int dims = 1 + i / 2 % 3, last = dims == 2 && drawn(&state, 0, 1);
        ts_conv_opts opts = {.size = sizeof opts};
        int64_t x_sizes[5] = {drawn(&state, 1, 3), drawn(&state, 1, 40)},
                w_sizes[5] = {drawn(&state, 1, 40), x_sizes[1], 1, 1, 1};
        for (int d = 0; d < dims; d++) {
            x_sizes[2 + d] = drawn(&state, 1, 12);
            opts.stride[d] = drawn(&state, 1, 3);
        }
        ts_tensor *x = quarters(&state, x_sizes, dims + 2), *grads[2][3];
        ts_tensor *w = quarters(&state, w_sizes, dims + 2),
                  *b = quarters(&state, TS_SIZES(w_sizes[0])), *g = NULL;
        if (last)
            x = ts_to_channels_last(x);
        for (int k = 0; k < 2; k++) {
            ts_tensor *leaves[3] = {x, w, b};
            for (int j = 0; j < 3; j++)
                OK(ts_set_requires_grad(
                    leaves[j] = ts_detach(ts_to(leaves[j], k ? dtype : TS_F64)), true));
            ts_tensor *y = (dims == 1   ? ts_conv1d
                            : dims == 2 ? ts_conv2d
                                        : ts_conv3d)(leaves[0], leaves[1], leaves[2], &opts);
            OK(y);
            g = g ? g : quarters(&state, y->sizes, y->ndim);
            OK(ts_backward(ts_sum(ts_mul(ts_to(y, TS_F64), g))));
            for (int j = 0; j < 3; j++)
                grads[k][j] = ts_contiguous(ts_to(ts_grad(leaves[j]), dtype));
        }
        for (int j = 0; j < 3; j++)
            ck_assert_msg(!memcmp(ts_data(grads[0][j]), ts_data(grads[1][j]),
                                  2 * (size_t)grads[0][j]->numel),
                          "case %d: gradient %d differs", i, j);
    }
}
