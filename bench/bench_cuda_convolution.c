/**
 * @file bench_cuda_convolution.c
 * Device times of y and of the gradient of the weight of 3 x 3 convolutions on a GPU, in bf16 and
 * channels-last, on random normal numbers. Naive kernels (naive_convolution.h) are the first
 * stages of docs/convolution.md; the library's kernels, which TS_CUDA_CONV selects, are the others.
 *
 *   bench_cuda_convolution              the naive kernels
 *   bench_cuda_convolution STAGE        the library's kernels, in a row with this name
 *
 * error is the norm of the difference from the naive kernels' result, over the norm of that result;
 * above LIMIT the program fails. FLOPs count all taps, also those outside of the image.
 */
// SPDX-License-Identifier: MIT
#include "bench/naive_convolution.h"
#include "cuda_clock.h"

enum { PARTS = 64, CALLS = 20 };
#define LIMIT 1e-2

static ts_stream *stream;

/** A layer. Tensors are dense (N, H, W, C), and weights (O, H, W, C). naive_*: results of the naive
 *  kernels. */
typedef struct layer {
    naive_shape shape;
    ts_tensor *x, *weight, *grad, *partial, *naive_y, *naive_w;
    int parts;
    ts_tensor *result; /* of the library; the gradient of the weight needs the recorded call */
} layer;

static ts_status launched(int error)
{
    return error ? ts_error_set(TS_ERR_DEVICE, "naive kernels: CUDA error %d", error) : TS_OK;
}

static ts_status naive_y(void *ctx, int i)
{
    layer *l = ctx;
    (void)i;
    return launched(naive_images(&l->shape, ts_data(l->x), ts_data(l->weight),
                                 ts_data_mut(l->naive_y), stream));
}
static ts_status naive_w(void *ctx, int i)
{
    layer *l = ctx;
    (void)i;
    return launched(naive_weight(&l->shape, ts_data(l->x), ts_data(l->grad), l->parts,
                                 ts_data_mut(l->partial), ts_data_mut(l->naive_w), stream));
}

/** View of a dense (N, H, W, C) as (N, C, H, W). */
static ts_tensor *second(ts_tensor *t) { return ts_permute(t, (int64_t[]){0, 3, 1, 2}, 4); }

static ts_tensor *convolved(const layer *l)
{
    return ts_conv2d(second(l->x), second(l->weight), TS_NONE,
                     TS_OPTS(ts_conv_opts, .padding = {l->shape.taps / 2, l->shape.taps / 2}));
}
static ts_status library_y(void *ctx, int i)
{
    TS_SCOPE;
    (void)i;
    return TS_STATUS_OF(convolved(ctx));
}
static ts_status library_w(void *ctx, int i)
{
    TS_SCOPE;
    layer *l = ctx;
    ts_tensor *found;
    (void)i;
    return ts_grad_of(l->result, second(l->grad), &l->weight, 1, &found,
                      TS_OPTS(ts_backward_opts, .retain_graph = true));
}

/** Sets *error to the relative error of `found` (N, C, H, W), compared with `right` (N, H, W, C);
 *  fails above LIMIT. */
static ts_status compare(ts_tensor *found, ts_tensor *right, double *error)
{
    TS_SCOPE;
    double norm, difference;
    ts_tensor *wide = ts_to(second(right), TS_F32);
    TS_TRY(ts_item(ts_norm(wide), &norm));
    TS_TRY(ts_item(ts_norm(ts_sub(ts_to(found, TS_F32), wide)), &difference));
    *error = difference / norm;
    return *error <= LIMIT ? TS_OK
                           : ts_error_set(TS_ERR_VALUE, "expected an error of at most %g, got %g",
                                          LIMIT, *error);
}

static void print_row(const layer *l, const char *result, const char *stage, double us,
                      const char *error)
{
    const naive_shape *s = &l->shape;
    double flops = 2.0 * s->batch * s->side * s->side * s->features * s->taps * s->taps *
                   s->channels;
    printf("%dx%dx%dx%d %dk%d\t%s\t%s\t%.1f\t%.1f\t%s\n", s->batch, s->channels, s->side, s->side,
           s->features, s->taps, result, stage, us, flops / us * 1e-6, error);
}

static ts_status measure_naive(layer *l)
{
    double us;
    TS_TRY(clock_median(naive_y, l, 1, &us));
    print_row(l, "y", "naive", us, "-");
    for (l->parts = 1; l->parts <= PARTS; l->parts *= PARTS) {
        TS_TRY(clock_median(naive_w, l, 1, &us));
        print_row(l, "weight", l->parts == 1 ? "naive" : "naive, split", us, "-");
    }
    return TS_OK;
}

static ts_status measure_library(layer *l, const char *stage)
{
    double us, error;
    char text[32];
    l->parts = PARTS;
    TS_TRY(naive_y(l, 0));
    TS_TRY(naive_w(l, 0));
    TS_TRY(compare(convolved(l), l->naive_y, &error));
    TS_TRY(clock_median(library_y, l, CALLS, &us));
    snprintf(text, sizeof text, "%.1e", error);
    print_row(l, "y", stage, us, text);
    TS_ENABLE_GRAD;
    ts_tensor *found;
    TS_TRY(ts_set_requires_grad(l->weight, true));
    TS_TRY(l->result = convolved(l));
    TS_TRY(ts_grad_of(l->result, second(l->grad), &l->weight, 1, &found,
                      TS_OPTS(ts_backward_opts, .retain_graph = true)));
    TS_TRY(compare(second(found), l->naive_w, &error));
    TS_TRY(clock_median(library_w, l, CALLS, &us));
    snprintf(text, sizeof text, "%.1e", error);
    print_row(l, "weight", stage, us, text);
    return TS_OK;
}

static ts_status each(int argc, char **argv)
{
    static const naive_shape shapes[] = {{16, 64, 256, 64, 3}, {64, 256, 14, 256, 3}};
    TS_TRY(ts_stream_new(device, &stream));
    TS_TRY(ts_stream_use(device, stream));
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        TS_SCOPE;
        layer l = {.shape = shapes[i]};
        int64_t n = l.shape.batch, c = l.shape.channels, side = l.shape.side,
                o = l.shape.features, taps = l.shape.taps;
        TS_TRY(l.x = drawn(TS_SIZES(n, side, side, c)));
        TS_TRY(l.weight = drawn(TS_SIZES(o, taps, taps, c)));
        TS_TRY(l.grad = drawn(TS_SIZES(n, side, side, o)));
        TS_TRY(l.naive_y = ts_zeros_like(l.grad));
        TS_TRY(l.naive_w = ts_zeros_like(l.weight));
        TS_TRY(l.partial = ts_empty_on(TS_SIZES(PARTS, o * taps * taps * c), TS_F32, device));
        TS_TRY(argc > 1 ? measure_library(&l, argv[1]) : measure_naive(&l));
    }
    return TS_OK;
}

int main(int argc, char **argv)
{
    int status = clock_main("usage: bench_cuda_convolution [STAGE]\n\n"
                            "Times 3 x 3 convolutions in bf16: naive kernels, or with STAGE, the\n"
                            "name of the rows, the library's kernels, which TS_CUDA_CONV selects.",
                            "layer\tresult\tstage\tus\ttflops\terror", each, argc, argv);
    ts_stream_free(device, stream);
    return status;
}
