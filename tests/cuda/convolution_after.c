/**
 * @file convolution_after.c  Convolutions with epilogues in compiled functions on a GPU: drawn
 * convolutions with blocks of residual networks after them. Compiled and eager calls may use
 * different kernels for the convolution, so both are compared with f64: the error is at most twice
 * that of eager calls. With the same kernel the bits are equal.
 */
// SPDX-License-Identifier: MIT
#include "tests/cuda/epilogues.h"
#include "tests/cuda/errors.h"

enum { INPUTS = 8, BLOCKS = 9 };

typedef struct program {
    int block, dims;
    int64_t batch, channels, features, side[3], kernel;
    ts_conv_opts opts;
    ts_dtype dtype;
    bool bias, affine;
} program;

static const char *const block_names[BLOCKS] = {
    "batch norm", "batch norm with relu", "relu", "add", "batch norm, add, relu",
    "batch norm with relu, add to other", "batch norm, relu", "batch norm, add, used twice",
    "add to itself after batch norm"};

static uint64_t state;
static int64_t drawn(int64_t low, int64_t high)
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return low + (int64_t)((state >> 33) % (uint64_t)(high - low + 1));
}

static program draw_program(uint64_t seed)
{
    static const int64_t widths[] = {3, 8, 16, 24, 32, 64, 64, 72, 128, 136};
    state = seed * 0x9e3779b97f4a7c15ull + 11;
    drawn(0, 1);
    program p = {.block = (int)(seed % BLOCKS), .dims = (int)(seed % 7 ? 2 : drawn(1, 3))};
    int64_t groups = drawn(0, 4) ? 1 : drawn(2, 3);
    p.batch = drawn(1, 3);
    p.channels = groups * widths[drawn(groups == 1 ? 0 : 1, 9)];
    p.features = groups * (widths[drawn(0, 9)] + (drawn(0, 5) ? 0 : 2));
    p.kernel = drawn(0, 2) ? 3 : drawn(1, 2);
    p.opts = (ts_conv_opts){.size = sizeof p.opts, .groups = groups};
    for (int d = 0; d < p.dims; d++) {
        p.side[d] = drawn(5, p.dims == 3 ? 7 : 19);
        p.opts.padding[d] = drawn(0, p.kernel - 1);
        p.opts.stride[d] = drawn(0, 3) ? 1 : 2;
        p.opts.dilation[d] = drawn(0, 3) ? 1 : 2;
    }
    p.dtype = drawn(0, 1) ? TS_BF16 : TS_F16;
    p.bias = drawn(0, 1);
    p.affine = drawn(0, 3);
    return p;
}

static ts_tensor *last(ts_tensor *t)
{
    return ts_movedim(ts_contiguous(ts_movedim(t, 1, -1)), -1, 1);
}
static ts_tensor *convolve(const program *p, ts_tensor *const *in)
{
    ts_tensor *b = p->bias ? in[2] : TS_NONE;
    return p->dims == 1   ? ts_conv1d(in[0], in[1], b, &p->opts)
           : p->dims == 2 ? ts_conv2d(in[0], in[1], b, &p->opts)
                          : ts_conv3d(in[0], in[1], b, &p->opts);
}

/** Inputs on the CPU: image, weight, bias, mean, variance, weight and bias of the norm, and an
 *  image of the result's sizes. */
static void draw_inputs(const program *p, ts_tensor *in[INPUTS])
{
    int64_t x[5] = {p->batch, p->channels}, w[5] = {p->features, p->channels / p->opts.groups};
    double taps = 1;
    for (int d = 0; d < p->dims; d++) {
        x[2 + d] = p->side[d];
        w[2 + d] = p->kernel;
        taps *= (double)p->kernel;
    }
    in[0] = last(ts_to(ts_normal(x, p->dims + 2, 0.3, 1, TS_F32), p->dtype));
    in[1] = ts_to(ts_normal(w, p->dims + 2, 0, 1 / sqrt(taps * (double)w[1]), TS_F32), p->dtype);
    in[1] = drawn(0, 1) ? last(in[1]) : in[1];
    in[2] = ts_to(ts_normal(TS_SIZES(p->features), 0, 0.5, TS_F32), p->dtype);
    for (int i = 3; i < 7; i++)
        in[i] = ts_normal(TS_SIZES(p->features), i == 5, 0.5, TS_F32);
    in[4] = ts_add_scalar(ts_abs(in[4]), 0.1);
    ts_tensor *y = convolve(p, in);
    OK(y);
    in[7] = last(ts_to(ts_normal(ts_sizes(y), ts_ndim(y), 0, 1, TS_F32), p->dtype));
}

static ts_tensor *norm(const program *p, ts_tensor *y, ts_tensor *const *in, bool relu)
{
    return (relu ? ts_batch_norm_relu : ts_batch_norm)(
        y, in[3], in[4], p->affine ? in[5] : TS_NONE, p->affine ? in[6] : TS_NONE, false, 0.1,
        1e-5);
}

static ts_status function(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    const program *p = ctx;
    (void)n, (void)m;
    ts_tensor *y = convolve(p, in), *z;
    switch (p->block) {
    case 0: return TS_STATUS_OF(out[0] = norm(p, y, in, false));
    case 1: return TS_STATUS_OF(out[0] = norm(p, y, in, true));
    case 2: return TS_STATUS_OF(out[0] = ts_relu(y));
    case 3: return TS_STATUS_OF(out[0] = ts_add(y, in[7]));
    case 4: return TS_STATUS_OF(out[0] = ts_relu(ts_add(norm(p, y, in, false), in[7])));
    case 5: return TS_STATUS_OF(out[0] = ts_add(in[7], norm(p, y, in, true)));
    case 6: return TS_STATUS_OF(out[0] = ts_relu(norm(p, y, in, false)));
    case 7:
        z = ts_add(norm(p, y, in, false), in[7]);
        return TS_STATUS_OF(out[0] = ts_mul(ts_relu(z), ts_tanh(z)));
    default: return TS_STATUS_OF(out[0] = ts_add(norm(p, y, in, false), y));
    }
}

/** Compares runs of a random program; own: its convolution uses kernels of the library that do not
 *  depend on the epilogue. True if its convolution has an epilogue. */
static bool compare(uint64_t seed, ts_device device, bool graph, bool own_kernels)
{
    TS_SCOPE;
    program p = draw_program(seed);
    if (own_kernels) {
        /* eager 1 x 1 convolutions are products of matrices; wgmma kernels have epilogues only for
         * multiples of 8 features */
        p.kernel = 3, p.features = p.opts.groups * ((p.features / p.opts.groups + 7) / 8 * 8);
    }
    ts_compiled *c = ts_compile(function, &p, TS_OPTS(ts_compile_opts, .graph = graph));
    for (int run = 0; run < (graph ? 4 : 2); run++) {
        TS_SCOPE;
        TS_NO_GRAD;
        ts_tensor *in[INPUTS], *there[INPUTS], *wide[INPUTS], *got, *again, *want, *exact;
        ts_manual_seed(seed * 10 + (uint64_t)run);
        draw_inputs(&p, in);
        for (int k = 0; k < INPUTS; k++) {
            OK(there[k] = ts_to_device(in[k], device));
            OK(wide[k] = ts_to(in[k], TS_F64));
        }
        OK(ts_compiled_call(c, there, INPUTS, &got, 1));
        OK(ts_compiled_call(c, there, INPUTS, &again, 1));
        OK(function(&p, there, INPUTS, &want, 1));
        OK(function(&p, wide, INPUTS, &exact, 1));
        ck_assert_int_eq(ts_dtype_of(got), p.dtype);
        double own = error_of(got, exact), eager = error_of(want, exact),
               most = 2 * eager + 2 * rounding(p.dtype);
        if (!(own <= most)) {
            ts_explain(c, stderr);
            ck_abort_msg("seed %llu (%s; %lld channels, %lld features, %lld groups, kernel %lld, "
                         "%d dims) %s, run %d: an error of %g, eager calls %g",
                         (unsigned long long)seed, block_names[p.block], (long long)p.channels,
                         (long long)p.features, (long long)p.opts.groups, (long long)p.kernel,
                         p.dims, ts_dtype_name(p.dtype), run, own, eager);
        }
        ck_assert_msg(!own_kernels || error_of(got, want) == 0,
                      "seed %llu (%s): differs from eager calls by %g", (unsigned long long)seed,
                      block_names[p.block], error_of(got, want));
        ck_assert_msg(error_of(got, again) == 0, "seed %llu: two runs differ",
                      (unsigned long long)seed);
    }
    bool has = has_epilogue(c);
    ts_compiled_free(c);
    return has;
}

TS_TEST(drawn_convolutions_with_epilogues_are_as_exact_as_calls, .loop = 2, .timeout = 600)
{
    GPU(device);
    const char *more = getenv("TS_TEST_DRAWS");
    uint64_t count = more ? (uint64_t)atoi(more) : 8 * BLOCKS, with = 0;
    for (uint64_t seed = 0; seed < count; seed++)
        with += compare(seed + 10000 * (uint64_t)_i, device, _i, false);
    ck_assert_msg(with >= count / 2, "only %d of %d convolutions have an epilogue", (int)with,
                  (int)count);
}

TS_TEST(with_the_same_kernels_an_epilogue_has_the_bits_of_calls, .loop = 2, .timeout = 300)
{
    setenv("TS_CUDA_CONV", _i ? "mma" : "own", 1);
    GPU(device);
    for (uint64_t seed = 0; seed < 6 * BLOCKS; seed++)
        compare(seed + 30000, device, false, true);
}
