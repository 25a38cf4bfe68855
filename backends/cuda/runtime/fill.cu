/** @file fill.cu  The kernel that fills a short range, for graphs. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/runtime/fill.h"

#include <cstdint>

enum { FILL_BLOCK = 256, MOST_BYTES = 64 << 10 };

template <class U> static __global__ void fill_kernel(U *to, unsigned value, unsigned count)
{
    unsigned i = blockIdx.x * FILL_BLOCK + threadIdx.x;
    if (i < count)
        to[i] = (U)value;
}

bool ts_cuda_fill_of(const struct cudaMemsetParams *set, ts_cuda_fill *fill)
{
    size_t unit = set->elementSize, bytes = set->width * unit;
    unsigned value = set->value;
    if (set->height > 1 || !bytes || bytes > MOST_BYTES)
        return false;
    if (unit < 4 && bytes % 4 == 0 && (uintptr_t)set->dst % 4 == 0) {
        value = unit == 1 ? (value & 0xff) * 0x01010101u : (value & 0xffff) * 0x00010001u;
        unit = 4;
    }
    fill->to = set->dst;
    fill->value = value;
    fill->count = (unsigned)(bytes / unit);
    fill->arguments[0] = &fill->to;
    fill->arguments[1] = &fill->value;
    fill->arguments[2] = &fill->count;
    fill->node = {};
    fill->node.func = unit == 4   ? (void *)fill_kernel<uint32_t>
                      : unit == 2 ? (void *)fill_kernel<uint16_t>
                                  : (void *)fill_kernel<uint8_t>;
    fill->node.gridDim = dim3((fill->count + FILL_BLOCK - 1) / FILL_BLOCK);
    fill->node.blockDim = dim3(FILL_BLOCK);
    fill->node.kernelParams = fill->arguments;
    return true;
}
