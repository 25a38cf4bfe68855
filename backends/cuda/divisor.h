/** @file divisor.h  Division by a number that is fixed during a kernel, through a multiplication
 * and a shift (Granlund and Montgomery 1994). The host computes the constants; ts::divisor
 * (apply.cuh) divides on the device. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_DIVISOR_H
#define TS_CUDA_DIVISOR_H

#include <stdint.h>

/** n / d = (((n * magic) >> 32) + n) >> shift, for n < 2^31 and d > 0. */
typedef struct ts_cuda_divisor {
    uint32_t d, magic, shift;
} ts_cuda_divisor;

/** Computes the constants for 1 <= d <= 2^31. */
static inline ts_cuda_divisor ts_cuda_divisor_of(uint32_t d)
{
    uint32_t shift = 0;
    while ((1ull << shift) < d)
        shift++;
    ts_cuda_divisor by = {d, (uint32_t)(((1ull << 32) * ((1ull << shift) - d)) / d + 1), shift};
    return by;
}

#endif
