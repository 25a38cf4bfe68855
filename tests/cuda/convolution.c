/** @file convolution.c  Convolutions on CUDA of random sizes, layouts, options and dtypes, compared
 * with the CPU in f64. */
// SPDX-License-Identifier: MIT
#include "tests/cuda/drawn.h"

/** A random integer from low to high, both included. */
static int64_t between(int64_t low, int64_t high) { return low + drawn(high - low + 1); }

/** A random call: input, weight, bias or TS_NONE, and gradient of the result, f64 on the CPU. */
typedef struct problem {
    int dims;
    bool transposed;
    ts_conv_opts opts;
    ts_tensor *x, *w, *b, *g;
} problem;

static ts_tensor *convolve(const problem *p, ts_tensor *x, ts_tensor *w, ts_tensor *b)
{
    if (p->transposed)
        return p->dims == 1   ? ts_conv_transpose1d(x, w, b, &p->opts)
               : p->dims == 2 ? ts_conv_transpose2d(x, w, b, &p->opts)
                              : ts_conv_transpose3d(x, w, b, &p->opts);
    return p->dims == 1   ? ts_conv1d(x, w, b, &p->opts)
           : p->dims == 2 ? ts_conv2d(x, w, b, &p->opts)
                          : ts_conv3d(x, w, b, &p->opts);
}

/** Random numbers that dtype represents exactly, as f64; half of the tensors are channels-last. */
static ts_tensor *numbers(const int64_t *sizes, int ndim, ts_dtype dtype)
{
    ts_tensor *t = ts_to(ts_to(ts_normal(sizes, ndim, 0, 1, TS_F32), dtype), TS_F64);
    return between(0, 1) && ndim > 1 ? ts_movedim(ts_contiguous(ts_movedim(t, 1, -1)), -1, 1) : t;
}

static void draw(problem *p, ts_dtype dtype, int turn)
{
    static const int64_t widths[] = {1, 2, 3, 4, 8, 16, 24, 40};
    int64_t groups = turn % 3 ? 1 : between(2, 5);
    *p = (problem){.dims = 1 + turn % 3, .transposed = turn / 3 % 2,
                   .opts = {.size = sizeof p->opts, .groups = groups}};
    int64_t in = groups * widths[between(0, turn % 2 ? 3 : 7)],
            out = groups * widths[between(0, turn % 4 < 2 ? 2 : 7)];
    if (turn % 8 == 7) /* depthwise, with and without vectors of channels */
        in = out = p->opts.groups = turn % 16 == 7 ? 8 * between(1, 9) : between(2, 40);
    int64_t x_sizes[5] = {between(1, 3), in}, w_sizes[5];
    w_sizes[0] = p->transposed ? in : out;
    w_sizes[1] = (p->transposed ? out : in) / p->opts.groups;
    for (int d = 0; d < p->dims; d++) {
        int64_t kernel = w_sizes[2 + d] = between(1, 4), stride = p->opts.stride[d] = between(1, 3);
        int64_t dilation = p->opts.dilation[d] = between(1, 2),
                extent = dilation * (kernel - 1) + 1;
        p->opts.padding[d] = between(0, extent / 2);
        int64_t most = (stride > dilation ? stride : dilation) - 1;
        p->opts.output_padding[d] = p->transposed ? between(0, most) : 0;
        x_sizes[2 + d] = extent + between(0, p->dims == 1 ? 300 : p->dims == 2 ? 20 : 6);
    }
    p->x = numbers(x_sizes, p->dims + 2, dtype);
    p->w = numbers(w_sizes, p->dims + 2, dtype);
    p->b = between(0, 1) ? numbers(&out, 1, dtype) : TS_NONE;
    ts_tensor *y = convolve(p, p->x, p->w, p->b);
    OK(y);
    p->g = numbers(ts_sizes(y), ts_ndim(y), dtype);
}

/** y, and the gradients of x, w and b. */
static void run(const problem *p, ts_device device, ts_dtype dtype, ts_tensor **results)
{
    ts_tensor *in[3] = {p->x, p->w, p->b};
    for (int i = 0; i < 3; i++)
        if (in[i] != TS_NONE)
            in[i] = ts_set_requires_grad(
                ts_detach(ts_to_device(ts_to(in[i], dtype), device)), true);
    results[0] = convolve(p, in[0], in[1], in[2]);
    OK(results[0]);
    ts_tensor *g = ts_to_device(ts_to(p->g, dtype), device);
    OK(ts_backward(ts_sum(ts_mul(results[0], g))));
    for (int i = 0; i < 3; i++)
        results[1 + i] = in[i] == TS_NONE ? NULL : ts_grad(in[i]);
}

static double item(ts_tensor *t)
{
    double value;
    OK(ts_item(t, &value));
    return value;
}

/** Asserts that got equals want (f64) up to rounding. For bf16 and f16, cuBLASLt rounds some sums
 *  before it adds the bias, and some partial sums: an error of one unit of the largest element. */
static void assert_results(ts_tensor *got, ts_tensor *want, ts_dtype dtype, const char *what,
                           int turn)
{
    double unit = dtype == TS_BF16  ? 0x1p-8
                  : dtype == TS_F16 ? 0x1p-10
                  : dtype == TS_F32 ? 0x1p-20
                                    : 0x1p-48;
    double sums = dtype == TS_F64 ? 0x1p-46 : dtype == TS_F32 ? 0x1p-17 : unit;
    got = ts_to(ts_to_device(got, TS_DEVICE_CPU), TS_F64);
    OK(got);
    double largest = item(ts_amax(ts_abs(want)));
    ts_tensor *allowed = ts_add_scalar(ts_mul_scalar(ts_abs(want), unit), sums * (largest + 1e-3));
    double worst = item(ts_amax(ts_sub(ts_abs(ts_sub(got, want)), allowed)));
    ck_assert_msg(worst <= 0, "%s of %s, turn %d: differs from the CPU by %g more than allowed; "
                  "largest element: %g", what, ts_dtype_name(dtype), turn, worst, largest);
}

static const ts_dtype dtypes[] = {TS_F32, TS_BF16, TS_F16, TS_F64};

/** Selects the library's kernels for even i, all kernels for odd i. Returns the number of turns out
 *  of `most`: with cuDNN a new shape takes a second, because engines are built and measured. */
static int select_kernels(int i, int most)
{
    setenv("TS_CUDA_CONV", i % 2 ? "auto" : "own", 1);
    return i % 2 ? most / 6 : most;
}

TS_TEST(convolutions_equal_those_of_the_CPU, .loop = 2 * 4, .timeout = 240)
{
    int turns = select_kernels(_i, 96);
    GPU(device);
    ts_dtype dtype = dtypes[_i / 2];
    seed_draws((uint64_t)(3 + _i));
    static const char *const names[] = {"y", "gradient of x", "gradient of w", "gradient of b"};
    for (int turn = 0; turn < turns; turn++) {
        TS_SCOPE;
        problem p;
        ts_tensor *want[4], *got[4];
        draw(&p, dtype, turn);
        run(&p, TS_DEVICE_CPU, TS_F64, want);
        run(&p, device, dtype, got);
        for (int i = 0; i < 4; i++)
            if (want[i])
                assert_results(got[i], want[i], dtype, names[i], turn);
        if (ts_is_contiguous(want[0]) != ts_is_contiguous(got[0]))
            ck_abort_msg("the layout of the result is not the CPU's");
    }
}

/** Depthwise calls for rows_kernel: square kernels with strides of 1 and 2, channels that are
 *  multiples of 8, even or odd, several pieces of rows and columns. */
static void draw_depthwise(problem *p, ts_dtype dtype, int turn)
{
    int64_t kernel = 3 + 2 * between(0, 2), stride = between(1, 2), dilation = 1,
            channels = turn % 3 == 0   ? 8 * between(1, 20)
                       : turn % 3 == 1 ? 2 * between(1, 60)
                                       : 2 * between(0, 60) + 1,
            extent, x_sizes[5] = {between(1, 3), channels}, w_sizes[5] = {channels, 1};
    if (stride == 1 && between(0, 2) == 0)
        dilation = between(2, 3);
    extent = dilation * (kernel - 1) + 1;
    *p = (problem){.dims = turn % 7 == 6 ? 3 : 2, .transposed = turn % 4 == 3,
                   .opts = {.size = sizeof p->opts, .groups = channels}};
    for (int d = 0; d < p->dims; d++) {
        bool flat = p->dims == 3 && d == 0; /* 1 x K x K */
        w_sizes[2 + d] = flat ? 1 : kernel;
        p->opts.stride[d] = flat ? 1 : stride;
        p->opts.dilation[d] = flat ? 1 : dilation;
        p->opts.padding[d] = flat ? 0 : between(0, extent / 2);
        x_sizes[2 + d] = flat ? between(1, 3) : extent + between(0, turn % 5 ? 24 : 70);
    }
    p->x = numbers(x_sizes, p->dims + 2, dtype);
    p->w = numbers(w_sizes, p->dims + 2, dtype);
    p->b = between(0, 1) ? numbers(&channels, 1, dtype) : TS_NONE;
    ts_tensor *y = convolve(p, p->x, p->w, p->b);
    OK(y);
    p->g = numbers(ts_sizes(y), ts_ndim(y), dtype);
}

TS_TEST(depthwise_convolutions_equal_those_of_the_CPU, .loop = 2 * 3, .timeout = 240)
{
    int turns = select_kernels(_i, 60);
    GPU(device);
    ts_dtype dtype = dtypes[_i / 2];
    seed_draws((uint64_t)(23 + _i));
    static const char *const names[] = {"y", "gradient of x", "gradient of w", "gradient of b"};
    for (int turn = 0; turn < turns; turn++) {
        TS_SCOPE;
        problem p;
        ts_tensor *want[4], *got[4];
        draw_depthwise(&p, dtype, turn);
        run(&p, TS_DEVICE_CPU, TS_F64, want);
        run(&p, device, dtype, got);
        for (int i = 0; i < 4; i++)
            if (want[i])
                assert_results(got[i], want[i], dtype, names[i], turn);
    }
}

/* Calls for the wgmma and mma kernels: several tiles per group, partial tiles, dilated and strided
 * taps, several parts of the windows. */
static void draw_wide(problem *p, ts_dtype dtype, int turn)
{
    int64_t groups = turn % 4 == 3 ? between(2, 4) : 1, each = 8 * between(1, turn % 2 ? 6 : 20),
            rows = turn % 8 == 5 ? between(1, 70) : 8 * between(1, turn % 3 ? 8 : 24),
            in = groups * (turn % 8 == 6 ? between(1, 70) : each), out = groups * rows,
            work = in * rows;
    *p = (problem){.dims = turn % 5 == 4 ? 3 : 1 + turn % 5 % 2, .transposed = turn % 7 == 6,
                   .opts = {.size = sizeof p->opts, .groups = groups}};
    p->dims = turn % 5 < 3 ? 2 : p->dims;
    int64_t x_sizes[5] = {between(1, 3), in}, w_sizes[5], extent[3];
    w_sizes[0] = p->transposed ? in : out;
    w_sizes[1] = (p->transposed ? out : in) / groups;
    for (int d = 0; d < p->dims; d++) {
        int64_t kernel = w_sizes[2 + d] = between(1, turn % 4 ? 3 : 5),
                stride = p->opts.stride[d] = turn % 3 ? 1 : between(1, turn % 9 ? 3 : 10),
                dilation = p->opts.dilation[d] = turn % 4 == 1 ? between(1, 3) : 1;
        extent[d] = dilation * (kernel - 1) + 1;
        p->opts.padding[d] = between(0, extent[d] / 2);
        int64_t most = (stride > dilation ? stride : dilation) - 1;
        p->opts.output_padding[d] = p->transposed ? between(0, most) : 0;
        work *= kernel;
    }
    /* about 20 million products on the CPU */
    double places = 2e7 / (double)work / (double)x_sizes[0], side = pow(places, 1.0 / p->dims);
    int64_t most = side < 1 ? 1 : side > 300 ? 300 : (int64_t)side;
    for (int d = 0; d < p->dims; d++)
        x_sizes[2 + d] = extent[d] + between(0, most);
    p->x = numbers(x_sizes, p->dims + 2, dtype);
    p->w = numbers(w_sizes, p->dims + 2, dtype);
    p->b = between(0, 1) ? numbers(&out, 1, dtype) : TS_NONE;
    ts_tensor *y = convolve(p, p->x, p->w, p->b);
    OK(y);
    p->g = numbers(ts_sizes(y), ts_ndim(y), dtype);
}

/** The same problem with absolute values: its results are the sums of absolute products. */
static problem absolute(const problem *p)
{
    problem a = *p;
    a.x = ts_abs(p->x), a.w = ts_abs(p->w), a.g = ts_abs(p->g);
    a.b = p->b == TS_NONE ? TS_NONE : ts_abs(p->b);
    return a;
}

/** Asserts that each element of got is a sum of `terms` exact products, added in f32 in any order
 *  and rounded once. An addition on tensor cores may truncate: an error of up to 2^-23 of the sum
 *  of absolute products (`sums`). */
static void assert_summed(ts_tensor *got, ts_tensor *want, ts_tensor *sums, double terms,
                          ts_dtype dtype, const char *what, int turn)
{
    double unit = dtype == TS_BF16 ? 0x1p-8 : 0x1p-11, least = dtype == TS_BF16 ? 0 : 0x1p-25;
    got = ts_to(ts_to_device(got, TS_DEVICE_CPU), TS_F64);
    OK(got);
    ts_tensor *before = ts_mul_scalar(sums, terms * 0x1p-23); /* the rounding */
    ts_tensor *allowed = ts_add(before, ts_mul_scalar(ts_add(ts_abs(want), before), unit));
    double worst = item(ts_amax(ts_sub(ts_abs(ts_sub(got, want)), ts_add_scalar(allowed, least))));
    ck_assert_msg(worst <= 0, "%s of %s, turn %d: error exceeds the bound by %g; largest element: "
                  "%g", what, ts_dtype_name(dtype), turn, worst, item(ts_amax(ts_abs(want))));
}

static const ts_dtype halves[] = {TS_BF16, TS_F16};

TS_TEST(convolutions_of_halves_accumulate_in_f32, .loop = 2 * 2, .timeout = 240)
{
    int turns = select_kernels(_i, 72);
    GPU(device);
    ts_dtype dtype = halves[_i / 2];
    seed_draws((uint64_t)(11 + _i));
    static const char *const names[] = {"y", "gradient of x", "gradient of w"};
    for (int turn = 0; turn < turns; turn++) {
        TS_SCOPE;
        problem p;
        ts_tensor *want[4], *sums[4], *got[4], *again[4];
        draw_wide(&p, dtype, turn);
        problem positive = absolute(&p);
        run(&p, TS_DEVICE_CPU, TS_F64, want);
        run(&positive, TS_DEVICE_CPU, TS_F64, sums);
        run(&p, device, dtype, got);
        run(&p, device, dtype, again);
        double w = (double)ts_numel(p.w), y = (double)ts_numel(p.g), x = (double)ts_numel(p.x);
        double terms[] = {w / (double)ts_size(p.w, p.transposed) + 1,
                          w / (double)ts_size(p.w, !p.transposed) + 1,
                          (p.transposed ? x : y) / (double)ts_size(p.transposed ? p.x : p.g, 1)};
        for (int i = 0; i < 3; i++) {
            assert_summed(got[i], want[i], sums[i], terms[i], dtype, names[i], turn);
            ck_assert_msg(item(ts_to_device(ts_all(ts_eq(got[i], again[i])), TS_DEVICE_CPU)) == 1,
                          "%s, turn %d: a second run gives other bits", names[i], turn);
        }
    }
}

/* The matrix of windows has 288 MiB, so it is gathered in two chunks. */
TS_TEST(convolutions_of_large_batches_are_split)
{
    GPU(device);
    TS_SCOPE;
    ts_manual_seed(1);
    ts_conv_opts opts = {.size = sizeof opts, .padding = {1, 1}};
    ts_tensor *x = ts_normal_on(TS_SIZES(8, 64, 128, 128), 0, 1, TS_F32, device),
              *w = ts_normal_on(TS_SIZES(32, 64, 3, 3), 0, 1, TS_F32, device);
    ts_set_requires_grad(w, true);
    ts_tensor *y = ts_conv2d(x, w, TS_NONE, &opts);
    OK(ts_backward(ts_sum(ts_mul(y, y))));
    ts_tensor *all = ts_clone(ts_grad(w)), *sum = NULL;
    for (int part = 0; part < 4; part++) {
        ts_zero_grad(w);
        ts_tensor *one = ts_conv2d(ts_narrow(x, 0, 2 * part, 2), w, TS_NONE, &opts);
        OK(ts_backward(ts_sum(ts_mul(one, one))));
        assert_results(ts_narrow(y, 0, 2 * part, 2),
                     ts_to(ts_to_device(ts_detach(one), TS_DEVICE_CPU), TS_F64), TS_F32, "y", part);
        ts_tensor *grad = ts_to(ts_to_device(ts_grad(w), TS_DEVICE_CPU), TS_F64);
        sum = sum ? ts_add(sum, grad) : grad;
    }
    assert_results(all, sum, TS_F32, "gradient of w", 0);
}

/** Integers from -2 to 2 as f32, channels-last. */
static ts_tensor *integers(const int64_t *sizes, int dims)
{
    ts_tensor *t = ts_to(ts_randint(sizes, dims + 2, -2, 3), TS_F32);
    return ts_movedim(ts_contiguous(ts_movedim(t, 1, -1)), -1, 1);
}

/* Sums of products of small integers are exact in f32, in any order. The weights have up to 3 x 3
 * taps and more positions than draw_wide() draws, so that many blocks share a tile: clusters,
 * parts, and positions beyond the image. */
TS_TEST(gradients_of_convolutions_of_integers_are_exact, .loop = 2, .timeout = 240)
{
    setenv("TS_CUDA_CONV", "own", 1);
    GPU(device);
    ts_dtype dtype = halves[_i];
    seed_draws((uint64_t)(29 + _i));
    for (int turn = 0; turn < 16; turn++) {
        TS_SCOPE;
        int64_t in = 8 * between(4, 17), out = 8 * between(1, 17), batch = between(1, 5),
                side = between(3, turn % 2 ? 16 : 90), kernel[] = {between(1, 3), between(2, 3)};
        problem p = {.dims = 2, .b = TS_NONE, .opts = {.size = sizeof p.opts}};
        int64_t x_sizes[] = {batch, in, side, side + between(0, 20)},
                w_sizes[] = {out, in, kernel[0], kernel[1]};
        for (int d = 0; d < 2; d++)
            p.opts.padding[d] = between(0, kernel[d] - 1);
        p.x = integers(x_sizes, 2);
        p.w = integers(w_sizes, 2);
        p.g = integers(ts_sizes(convolve(&p, p.x, p.w, p.b)), 2);
        OK(p.g);
        ts_tensor *want[4], *got[4];
        run(&p, TS_DEVICE_CPU, TS_F32, want);
        run(&p, device, dtype, got);
        for (int i = 1; i < 3; i++) {
            ts_tensor *right = ts_to(want[i], dtype), *found = ts_to_device(got[i], TS_DEVICE_CPU);
            ck_assert_msg(item(ts_all(ts_eq(found, right))) == 1,
                          "turn %d: the gradient of %s (%s) of %lldx%lldx%lldx%lld, %lld features, "
                          "kernel %lldx%lld is not exact",
                          turn, i == 1 ? "x" : "w", ts_dtype_name(dtype), (long long)batch,
                          (long long)in, (long long)x_sizes[2], (long long)x_sizes[3],
                          (long long)out, (long long)kernel[0], (long long)kernel[1]);
        }
    }
}

/** A random call in which x or y has fewer than 8 channels: strides, dilation and padding of all
 *  kinds, one or two dims, several tiles of positions; integers. */
static void draw_few(problem *p, int turn)
{
    bool of_x = turn % 3 != 2; /* x has few; else y, with stride 1 */
    int64_t few = between(1, 7), many = 8 * between(1, turn % 4 ? 9 : 20);
    *p = (problem){.dims = turn % 5 == 4 ? 1 : 2, .transposed = turn % 6 == 5,
                   .opts = {.size = sizeof p->opts}};
    int64_t in = of_x ? few : many, out = of_x ? many : few, x_sizes[5] = {between(1, 4), in},
            w_sizes[5] = {p->transposed ? in : out, p->transposed ? out : in};
    for (int d = 0; d < p->dims; d++) {
        int64_t kernel = w_sizes[2 + d] = between(1, turn % 2 ? 3 : 7),
                dilation = p->opts.dilation[d] = turn % 4 == 1 ? between(1, 3) : 1,
                extent = dilation * (kernel - 1) + 1;
        p->opts.stride[d] = of_x && !p->transposed ? between(1, 4) : 1;
        p->opts.padding[d] = between(0, extent - 1);
        x_sizes[2 + d] = extent + between(0, p->dims == 1 ? 900 : turn % 7 ? 40 : 90);
    }
    p->x = integers(x_sizes, p->dims);
    p->w = integers(w_sizes, p->dims);
    p->b = between(0, 1) ? ts_to(ts_randint(&out, 1, -2, 3), TS_F32) : TS_NONE;
    p->g = integers(ts_sizes(convolve(p, p->x, p->w, p->b)), p->dims);
    OK(p->g);
}

/** A random call of several groups whose channels need zeros up to a multiple of 8. */
static void draw_odd_groups(problem *p, int turn)
{
    int64_t groups = between(2, 5), in = groups * between(5, turn % 2 ? 14 : 70),
            out = groups * between(turn % 3 ? 5 : 1, turn % 2 ? 70 : 14);
    *p = (problem){.dims = turn % 5 == 4 ? 1 : 2, .transposed = turn % 4 == 3,
                   .opts = {.size = sizeof p->opts, .groups = groups}};
    int64_t x_sizes[5] = {between(1, 4), in},
            w_sizes[5] = {p->transposed ? in : out, (p->transposed ? out : in) / groups};
    for (int d = 0; d < p->dims; d++) {
        int64_t kernel = w_sizes[2 + d] = between(2, 4),
                dilation = p->opts.dilation[d] = between(1, 2),
                extent = dilation * (kernel - 1) + 1;
        p->opts.stride[d] = between(1, 2);
        p->opts.padding[d] = between(0, extent / 2);
        x_sizes[2 + d] = extent + between(0, p->dims == 1 ? 300 : 20);
    }
    p->x = integers(x_sizes, p->dims);
    p->w = integers(w_sizes, p->dims);
    p->b = between(0, 1) ? ts_to(ts_randint(&out, 1, -2, 3), TS_F32) : TS_NONE;
    p->g = integers(ts_sizes(convolve(p, p->x, p->w, p->b)), p->dims);
    OK(p->g);
}

/** Asserts that drawn calls on integers are exact. Run i: own kernels if even, else all. */
static void assert_exact(void (*draw_call)(problem *, int), int i)
{
    int turns = select_kernels(i, i % 2 ? 30 : 60);
    GPU(device);
    ts_dtype dtype = halves[i / 2];
    seed_draws((uint64_t)(41 + i));
    static const char *const names[] = {"y", "gradient of x", "gradient of w"};
    for (int turn = 0; turn < turns; turn++) {
        TS_SCOPE;
        problem p;
        ts_tensor *want[4], *got[4];
        draw_call(&p, turn);
        run(&p, TS_DEVICE_CPU, TS_F32, want);
        run(&p, device, dtype, got);
        /* with one tap, cuBLASLt computes the gradient of w and may round partial sums */
        int results = ts_numel(p.w) > ts_size(p.w, 0) * ts_size(p.w, 1) ? 3 : 2;
        for (int k = 0; k < results; k++) {
            ts_tensor *right = ts_to(want[k], dtype), *found = ts_to_device(got[k], TS_DEVICE_CPU);
            ck_assert_msg(item(ts_all(ts_eq(found, right))) == 1,
                          "turn %d: %s (%s) is not exact: %lld channels, %lld features, "
                          "%lld groups", turn, names[k], ts_dtype_name(dtype),
                          (long long)ts_size(p.x, 1), (long long)ts_size(p.g, 1),
                          (long long)p.opts.groups);
        }
    }
}

TS_TEST(convolutions_of_few_channels_of_integers_are_exact, .loop = 2 * 2, .timeout = 240)
{
    assert_exact(draw_few, _i);
}

TS_TEST(convolutions_of_odd_groups_of_integers_are_exact, .loop = 2 * 2, .timeout = 240)
{
    assert_exact(draw_odd_groups, _i);
}

/* A window's elements are padded to a multiple of 16 with weights of 0: the product of such a
 * weight and an infinite pixel would be NaN. */
TS_TEST(infinite_pixels_of_few_channels_make_infinite_sums)
{
    setenv("TS_CUDA_CONV", "own", 1);
    GPU(device);
    TS_SCOPE;
    ts_conv_opts opts = {.size = sizeof opts, .padding = {1, 1}};
    ts_tensor *x = ts_zeros(TS_SIZES(1, 3, 20, 20), TS_F32),
              *w = ts_ones(TS_SIZES(8, 3, 3, 3), TS_F32);
    OK(ts_fill_(ts_narrow(ts_narrow(x, 2, 10, 1), 3, 10, 1), INFINITY));
    ts_tensor *y = ts_conv2d(ts_to_device(ts_to(x, TS_BF16), device),
                             ts_to_device(ts_to(w, TS_BF16), device), TS_NONE, &opts);
    y = ts_to(ts_to_device(y, TS_DEVICE_CPU), TS_F32);
    OK(y);
    double zeros = item(ts_sum(ts_to(ts_eq(y, ts_zeros_like(y)), TS_F32)));
    ck_assert_double_eq(zeros, 8 * (20 * 20 - 9));
    ck_assert_double_eq(item(ts_sum(ts_to(ts_eq(y, y), TS_F32))), 8 * 20 * 20);
}
