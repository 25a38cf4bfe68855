/** @file frame.cuh  Host code that all families share: device and stream of a call, data of its
 * tensors, the element type that it computes in. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_FRAME_CUH
#define TS_CUDA_FRAME_CUH

#include "backends/cuda/runtime/runtime.h"
#include "backends/cuda/types.cuh"

/** Evaluates expr, a status; returns it from the enclosing function unless it is TS_OK. */
#define TS_CUDA_TRY(expr)                 \
    do {                                  \
        ts_status ts_try_status = (expr); \
        if (ts_try_status != TS_OK)       \
            return ts_try_status;         \
    } while (0)

namespace ts {

/** Sets of dtypes, for registration. */
enum : uint32_t {
    halves = TS_DTYPE_BIT(TS_BF16) | TS_DTYPE_BIT(TS_F16),
    floats = TS_DTYPE_BIT(TS_F64) | TS_DTYPE_BIT(TS_F32) | halves,
    integers = TS_DTYPE_BIT(TS_I64) | TS_DTYPE_BIT(TS_I32) | TS_DTYPE_BIT(TS_U8),
    booleans = TS_DTYPE_BIT(TS_BOOL),
    numbers = floats | integers,
    everything = numbers | booleans
};

/** The number in a value, which must be a float, an integer or a bool. */
inline double number_of(const ts_value *v) { return v->tag == TS_TAG_FLOAT ? v->d : (double)v->i; }
/** Data of the tensor in a value; NULL if it has no tensor (absent, or a result not requested). */
template <class T> T *data_of(const ts_value &v)
{
    return v.tag == TS_TAG_TENSOR ? (T *)ts_kernel_data(v.t) : nullptr;
}

/** Device and stream of a call. */
struct call {
    ts_cuda_device *device;
    cudaStream_t stream;
};

/** The device and stream of a frame. Without a usable device, device is NULL, and an error is
 *  recorded. If the call is only described for a fused group (fuse/describe.h), device is NULL
 *  without an error. */
inline call call_of(const ts_frame *f)
{
    ts_device where = ts_kernel_device(f);
    ts_cuda_device *device = ts_cuda_use(where.index);
    return {device, device ? ts_cuda_stream(device, ts_stream_current(where)) : nullptr};
}

/** Runs launch(call), which returns CUDA's error, on the frame's device and stream. Errors: those
 * of call_of() and of ts_cuda_launched(). */
template <class F> ts_status on_device(ts_frame *f, F &&launch)
{
    call c = call_of(f);
    if (!c.device)
        return ts_error_code();
    return ts_cuda_launched(f, launch(c), c.stream);
}

/** on_device() for launch.operator()<T>(call), where T is the floating dtype that the call computes
 * in. */
template <class F> ts_status with_float(ts_frame *f, F &&launch)
{
    ts_dtype dtype = ts_kernel_dtype(f);
    return on_device(f, [&](const call &c) {
        switch (dtype) {
        case TS_F64: return launch.template operator()<double>(c);
        case TS_BF16: return launch.template operator()<bf16>(c);
        case TS_F16: return launch.template operator()<f16>(c);
        default: return launch.template operator()<float>(c);
        }
    });
}

} // namespace ts

#endif
