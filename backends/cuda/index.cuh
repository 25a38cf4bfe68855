/** @file index.cuh  Checks of indices and numbers in device memory. A kernel reports an invalid
 * index or number through ts_cuda_device.fault (runtime/runtime.h). The next call that waits for
 * the device returns the report as an error. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_INDEX_CUH
#define TS_CUDA_INDEX_CUH

#include "backends/cuda/frame.cuh"

namespace ts {

/** Reports invalid elements of one argument to the device's fault record. The first report is kept
 * until the host has read it. */
struct reporter {
    ts_cuda_caller caller;
    const char *expected; /* host pointer, not dereferenced on the device */
    ts_cuda_fault *fault;

    /** Reports elements of argument number `arg`. what: a static string that says in the error what
     * was expected; stored as `expected`. */
    reporter(const ts_frame *f, int arg, const char *what, ts_cuda_device *device)
        : caller{f->table, f->site, f->op, f->nargs, (uint8_t)arg}, expected(what),
          fault(device->fault)
    {
    }
    /** Reserves the fault record. True for one thread only, which must then call publish(). */
    __device__ __forceinline__ bool claim() const
    {
        return !*(volatile int32_t *)&fault->some && atomicCAS(&fault->some, 0, -1) == 0;
    }
    /** Completes the record. kind: 1 index, 2 number (ts_cuda_fault.some). */
    __device__ __forceinline__ void publish(int32_t kind, int64_t position) const
    {
        fault->caller = caller;
        fault->expected = expected;
        fault->position = position;
        __threadfence_system();
        *(volatile int32_t *)&fault->some = kind;
    }
    /** Reports element `position` of the argument: an index that is not in [0, bound). */
    __device__ __noinline__ void wrong_index(int64_t index, int64_t bound, int64_t position) const
    {
        if (!claim())
            return;
        fault->index = index;
        fault->bound = bound;
        publish(1, position);
    }
    /** Reports element `position` of the argument (-1: unknown): an invalid number. */
    __device__ __noinline__ void wrong_number(double number, int64_t position) const
    {
        if (!claim())
            return;
        fault->number = number;
        publish(2, position);
    }
};

/** An argument of i64 or i32 indices. */
struct indices {
    const void *data;
    bool is_short;
    reporter out;

    /** @param what  noun for the elements in the error */
    indices(const ts_frame *f, const ts_tensor *t, ts_cuda_device *device,
            const char *what = "indices")
        : data(ts_kernel_data(t)), is_short(ts_dtype_of(t) == TS_I32),
          out(f, place_of(f, t), what, device)
    {
    }
    __device__ __forceinline__ int64_t at(int64_t i) const
    {
        return is_short ? ((const int32_t *)data)[i] : ((const int64_t *)data)[i];
    }
    /** Returns the index at offset i; -1, with a report of element i, if not in [0, bound). */
    __device__ __forceinline__ int64_t checked(int64_t i, int64_t bound) const
    {
        return checked(i, bound, i);
    }
    /** Returns the index at offset `offset` in memory, which is element i of the argument; -1, with
     * a report of element i, if not in [0, bound). */
    __device__ __forceinline__ int64_t checked(int64_t offset, int64_t bound, int64_t i) const
    {
        int64_t index = at(offset);
        if (index >= 0 && index < bound)
            return index;
        out.wrong_index(index, bound, i);
        return -1;
    }

private:
    /** Number of the argument that is tensor t; nargs if none is. */
    static int place_of(const ts_frame *f, const ts_tensor *t)
    {
        int arg = 0;
        while (arg < f->nargs && !(f->args[arg].tag == TS_TAG_TENSOR && f->args[arg].t == t))
            arg++;
        return arg;
    }
};

} // namespace ts

#endif
