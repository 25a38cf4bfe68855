/** @file code.cu  For which GPUs the code was compiled that the driver chose. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/runtime.h"

static __global__ void any_kernel() {}

cudaError_t ts_cuda_code(int *capability)
{
    cudaFuncAttributes attributes = {};
    cudaError_t e = cudaFuncGetAttributes(&attributes, any_kernel);
    *capability = attributes.ptxVersion; /* of machine code too */
    return e;
}
