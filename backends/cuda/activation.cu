/** @file activation.cu  Activation functions and their gradients. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/activation_fn.cuh"
#include "backends/cuda/loops.cuh"

using namespace ts;

/** The numbers in arguments `at` and at + 1; 0 for arguments that the call lacks. */
static fn::two_numbers numbers_of(const ts_frame *f, int at)
{
    fn::two_numbers n = {{0, 0}};
    for (int i = 0; i < 2 && at + i < f->nargs; i++)
        n.at[i] = number_of(&f->args[at + i]);
    return n;
}

/** Defines the kernel of functor `name` with N operands; its numbers are arguments AT and AT +
 * 1. */
#define KERNEL(name, dtypes, N, AT)                                                                \
    static ts_status name##_kernel(ts_frame *f)                                                    \
    {                                                                                              \
        return pointwise<dtypes, N>(f, fn::name##_fn{numbers_of(f, AT)});                          \
    }
KERNEL(relu, numbers, 1, 1)
KERNEL(threshold_backward, floats, 2, 2)
KERNEL(leaky_relu, floats, 1, 1)
KERNEL(leaky_relu_backward, floats, 2, 2)
KERNEL(elu, floats, 1, 1)
KERNEL(elu_backward, floats, 2, 2)
KERNEL(sigmoid, floats, 1, 1)
KERNEL(sigmoid_backward, floats, 2, 2)
KERNEL(tanh, floats, 1, 1)
KERNEL(tanh_backward, floats, 2, 2)
KERNEL(log_sigmoid, floats, 1, 1)
KERNEL(silu, floats, 1, 1)
KERNEL(silu_backward, floats, 2, 2)
KERNEL(softplus, floats, 1, 1)
KERNEL(softplus_backward, floats, 2, 2)
KERNEL(mish, floats, 1, 1)
KERNEL(mish_backward, floats, 2, 2)
KERNEL(gelu_erf, floats, 1, 2)
KERNEL(gelu_tanh, floats, 1, 2)
KERNEL(gelu_erf_backward, floats, 2, 3)
KERNEL(gelu_tanh_backward, floats, 2, 3)

static ts_status gelu_kernel(ts_frame *f)
{
    return f->args[1].i ? gelu_tanh_kernel(f) : gelu_erf_kernel(f);
}
static ts_status gelu_backward_kernel(ts_frame *f)
{
    return f->args[2].i ? gelu_tanh_backward_kernel(f) : gelu_erf_backward_kernel(f);
}

#define ROW(name) {#name, name##_kernel, floats, true, true}
TS_CUDA_FAMILY(activation,
    {"relu", relu_kernel, numbers, true, true},
    ROW(threshold_backward), ROW(leaky_relu), ROW(leaky_relu_backward), ROW(elu), ROW(elu_backward),
    ROW(sigmoid), ROW(sigmoid_backward), ROW(tanh), ROW(tanh_backward), ROW(log_sigmoid), ROW(silu),
    ROW(silu_backward), ROW(softplus), ROW(softplus_backward), ROW(mish), ROW(mish_backward),
    ROW(gelu), ROW(gelu_backward))
