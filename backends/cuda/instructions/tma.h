/** @file tma.h  Host code that makes descriptors (CUtensorMap) for TMA, the Tensor Memory
 * Accelerator: the copy engine of sm_90 and later, which copies boxes of tensors between global and
 * shared memory. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_TMA_H
#define TS_CUDA_TMA_H

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "backends/cuda/attention/attention.cuh"

namespace ts {

/** Returns the driver's function `name`, of pointer type F, or NULL if the driver lacks it. The
 * CUDA runtime looks the function up, so that the library does not link to the driver. The result
 * is cached per type: use each type for one name only. */
template <class F> F tma_encoder(const char *name)
{
    static void *found;
    static bool asked;
    if (!__atomic_load_n(&asked, __ATOMIC_ACQUIRE)) {
        void *f = nullptr;
        cudaDriverEntryPointQueryResult result;
        if (cudaGetDriverEntryPointByVersion(name, &f, 12000, cudaEnableDefault, &result) !=
                cudaSuccess ||
            result != cudaDriverEntryPointSuccess)
            f = nullptr;
        __atomic_store_n(&found, f, __ATOMIC_RELAXED);
        __atomic_store_n(&asked, true, __ATOMIC_RELEASE);
    }
    return (F)__atomic_load_n(&found, __ATOMIC_RELAXED);
}
/** tma_encoder() for a function that <cuda.h> declares. */
#define TMA_ENCODER(function) ts::tma_encoder<decltype(&function)>(#function)

/** Element type of a descriptor for T, bf16 or f16. */
template <class T> constexpr CUtensorMapDataType tma_type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
template <> inline constexpr CUtensorMapDataType tma_type<f16> = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;

/** Writes the descriptor of x, (batches, heads, rows, columns) of bf16 or f16, for boxes of
 * box_rows rows and 64 columns. In shared memory a box has the 128-byte swizzle (wgmma.cuh); its
 * elements outside of x are zeros. Returns false if the driver has no descriptors or rejects this
 * one, for example because the address or a stride is not a multiple of 16 bytes. */
template <class T>
bool tma_map(CUtensorMap *map, const attention_operand &x, int columns, int rows, int heads,
             int batches, int box_rows)
{
    auto encode = TMA_ENCODER(cuTensorMapEncodeTiled);
    /* the step of a dim of size 1 is unused, but the driver checks it */
    auto step = [&](int size, int64_t elements) {
        return (cuuint64_t)(size > 1 ? elements * 2 : 16);
    };
    cuuint64_t sizes[4] = {(cuuint64_t)columns, (cuuint64_t)rows, (cuuint64_t)heads,
                           (cuuint64_t)batches};
    cuuint64_t steps[3] = {step(rows, x.row), step(heads, x.head), step(batches, x.batch)};
    cuuint32_t box[4] = {64, (cuuint32_t)box_rows, 1, 1}, every[4] = {1, 1, 1, 1};
    return encode && encode(map, tma_type<T>, 4, x.data, sizes, steps, box, every,
                            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

} // namespace ts

#endif
