/** @file code.cu  Reports the compute capability of the code that the driver chose. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/runtime/runtime.h"

static __global__ void any_kernel() {}

cudaError_t ts_cuda_code_capability(int *capability)
{
    cudaFuncAttributes attributes = {};
    cudaError_t e = cudaFuncGetAttributes(&attributes, any_kernel);
    *capability = attributes.ptxVersion; /* set for machine code too */
    return e;
}
