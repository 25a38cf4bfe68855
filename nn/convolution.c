/** @file convolution.c  Convolutions and transposed convolutions as modules. */
// SPDX-License-Identifier: MIT
#include "nn/nn.h"

#include <math.h>

typedef ts_tensor *(*convolve)(ts_tensor *input, ts_tensor *weight, ts_tensor *bias,
                               const ts_conv_opts *opts);

typedef struct convolution {
    /* weight: (out, in / groups, kernel ...), transposed (in, out / groups, kernel ...);
     * bias: (out) or TS_NONE */
    ts_tensor *weight, *bias;
    ts_conv_opts opts;
    convolve function;
} convolution;

static ts_tensor *convolution_forward(ts_module *m, ts_tensor *x)
{
    const convolution *c = ts_module_payload(m);
    return c->function(x, c->weight, c->bias, &c->opts);
}

#define TYPE(name) {sizeof(ts_module_type), name, sizeof(convolution), convolution_forward, NULL}
static const ts_module_type types[2][3] = {
    {TYPE("Conv1d"), TYPE("Conv2d"), TYPE("Conv3d")},
    {TYPE("ConvTranspose1d"), TYPE("ConvTranspose2d"), TYPE("ConvTranspose3d")}};
static const convolve functions[2][3] = {
    {ts_conv1d, ts_conv2d, ts_conv3d},
    {ts_conv_transpose1d, ts_conv_transpose2d, ts_conv_transpose3d}};

/** Adds the parameters, uniform in ±1 / sqrt(n), where n is the product of the weight's sizes after
 *  the first. sizes: of the weight; out: size of the bias. */
static ts_status build(ts_module *m, const int64_t *sizes, int ndim, int64_t out, bool bias)
{
    convolution *c = ts_module_payload(m);
    double inputs = 1;
    for (int d = 1; d < ndim; d++)
        inputs *= (double)sizes[d];
    double bound = 1 / sqrt(inputs);
    TS_SCOPE;
    TS_TRY(ts_module_add_parameter(m, "weight", ts_uniform(sizes, ndim, -bound, bound, TS_F32),
                                   &c->weight));
    return ts_module_add_parameter(
        m, "bias", bias ? ts_uniform(&out, 1, -bound, bound, TS_F32) : TS_NONE, &c->bias);
}

static ts_module *convolution_new(const int64_t *sizes, int ndim, int64_t out, bool bias,
                                  const ts_conv_opts *opts, bool transposed)
{
    ts_module *m = ts_module_new(&types[transposed][ndim - 3]);
    if (!m)
        return NULL;
    convolution *c = ts_module_payload(m);
    c->opts = *opts;
    c->function = functions[transposed][ndim - 3];
    return ts_nn_built(m, build(m, sizes, ndim, out, bias));
}

/* Checks the arguments of a constructor and writes the kernel's sizes to sizes[2], sizes[3], ...
 * A macro, because the errors name the constructor. */
#define CHECK_ARGUMENTS(o, sizes)                                                                  \
    do {                                                                                           \
        TS_TRY_NULL(TS_CHECK_OPTS(&(o), opts));                                                    \
        TS_TRY_NULL(TS_CHECK_LIST(kernel, nkernel));                                               \
        TS_TRY_NULL(TS_CHECK_VALUE(nkernel, nkernel >= 1 && nkernel <= 3, "1 to 3"));              \
        (o).groups = (o).groups ? (o).groups : 1;                                                  \
        TS_TRY_NULL(TS_CHECK_VALUE((o).groups, (o).groups >= 1, "at least 1"));                    \
        TS_TRY_NULL(TS_CHECK_VALUE(in, in >= 1 && in % (o).groups == 0,                            \
                                   "a multiple of the number of groups"));                         \
        TS_TRY_NULL(TS_CHECK_VALUE(out, out >= 1 && out % (o).groups == 0,                         \
                                   "a multiple of the number of groups"));                         \
        for (int d = 0; d < nkernel; d++) {                                                        \
            static const char *const names[] = {"kernel[0]", "kernel[1]", "kernel[2]"};            \
            if (kernel[d] < 1)                                                                     \
                TS_TRY_NULL(ts_check_refuse(TS_CHECK_HERE, names[d], "at least 1",                 \
                                            TS_SCALAR(kernel[d])));                                \
            (sizes)[2 + d] = kernel[d];                                                            \
        }                                                                                          \
    } while (0)

ts_module *ts_conv_new(int64_t in, int64_t out, const int64_t *kernel, int nkernel, bool bias,
                       const ts_conv_opts *opts)
{
    ts_conv_opts o;
    int64_t sizes[5];
    CHECK_ARGUMENTS(o, sizes);
    sizes[0] = out;
    sizes[1] = in / o.groups;
    return convolution_new(sizes, 2 + nkernel, out, bias, &o, false);
}

ts_module *ts_conv_transpose_new(int64_t in, int64_t out, const int64_t *kernel, int nkernel,
                                 bool bias, const ts_conv_opts *opts)
{
    ts_conv_opts o;
    int64_t sizes[5];
    CHECK_ARGUMENTS(o, sizes);
    sizes[0] = in;
    sizes[1] = out / o.groups;
    return convolution_new(sizes, 2 + nkernel, out, bias, &o, true);
}
