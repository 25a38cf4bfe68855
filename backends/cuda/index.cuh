/** @file index.cuh  Indices in device memory: reading and checking them. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_INDEX_CUH
#define TS_CUDA_INDEX_CUH

#include "backends/cuda/frame.cuh"

namespace ts {

/** A list of i64 or i32, and where to report what is out of range. */
struct indices {
    const void *data;
    bool is_short;
    int32_t op;
    ts_cuda_fault *fault;

    indices(const ts_frame *f, const ts_tensor *t, ts_cuda_device *device)
        : data(ts_kernel_data(t)), is_short(ts_dtype_of(t) == TS_I32), op(f->op), fault(device->fault)
    {
    }
    __device__ __forceinline__ int64_t at(int64_t i) const
    {
        return is_short ? ((const int32_t *)data)[i] : ((const int64_t *)data)[i];
    }
    /** Index i, or -1 with a report when it is not within [0, bound). */
    __device__ __forceinline__ int64_t checked(int64_t i, int64_t bound) const
    {
        int64_t index = at(i);
        if (index >= 0 && index < bound)
            return index;
        report(index, bound);
        return -1;
    }
    __device__ __noinline__ void report(int64_t index, int64_t bound) const
    {
        if (*(volatile int32_t *)&fault->some)
            return;
        fault->op = op;
        fault->index = index;
        fault->bound = bound;
        __threadfence_system();
        *(volatile int32_t *)&fault->some = 1;
    }
};

} // namespace ts

#endif
