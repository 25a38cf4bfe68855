/** @file aligned.cuh  Runs kernels over rows (rows.cuh, row_stream.cuh) on copies of tensors that
 *  do not begin at a multiple of 16 bytes (on_aligned()) or are not contiguous (on_packed()). If
 *  the length of a row is a multiple of 16 bytes, kernels over rows access 16-byte vectors. A
 *  kernel that chose its accesses by address would make the order of sums depend on addresses.
 *  Softmax, norms, losses and cumulative sums use these functions. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ALIGNED_CUH
#define TS_CUDA_ALIGNED_CUH

#include <string.h>

#include "backends/cuda/frame.cuh"
#include "backends/cuda/launch_rows.cuh"
#include "tessera/dispatch.h"
#include "tessera/ops.h"

namespace ts {

/** True if v is a tensor whose data is not aligned to 16 bytes. */
inline bool is_unaligned(const ts_value &v)
{
    return v.tag == TS_TAG_TENSOR && !aligned16(ts_kernel_data(v.t));
}

/** Runs the kernel with aligned copies of the unaligned arguments, and with new tensors for the
 *  unaligned results, whose data are then copied to the results on the call's stream. The copies
 *  are released before the return. Errors: those of the allocations, of the kernel and of CUDA. */
inline ts_status call_with_copies(ts_frame *f, ts_kernel kernel)
{
    TS_SCOPE;
    ts_value args[TS_MAX_ARGS], rets[TS_MAX_RETS];
    memcpy(args, f->args, f->nargs * sizeof *args);
    memcpy(rets, f->rets, f->nrets * sizeof *rets);
    for (int i = 0; i < f->nargs; i++)
        if (is_unaligned(args[i]) && !(args[i].t = ts_clone(args[i].t)))
            return ts_error_code();
    for (int i = 0; i < f->nrets; i++)
        if (is_unaligned(rets[i]) && !(rets[i].t = ts_empty_like(rets[i].t)))
            return ts_error_code();
    ts_frame moved = *f;
    moved.args = args;
    moved.rets = rets;
    TS_CUDA_TRY(kernel(&moved));
    return on_device(f, [&](const call &c) {
        cudaError_t e = cudaSuccess;
        for (int i = 0; i < f->nrets && e == cudaSuccess; i++)
            if (is_unaligned(f->rets[i]))
                e = cudaMemcpyAsync(ts_kernel_data(f->rets[i].t), ts_kernel_data(rets[i].t),
                                    ts_numel(rets[i].t) * ts_dtype_size(ts_dtype_of(rets[i].t)),
                                    cudaMemcpyDeviceToDevice, c.stream);
        return e;
    });
}

/** Runs KERNEL, a kernel over rows, with aligned copies of unaligned tensors if the length of a row
 *  is a multiple of 16 bytes. The kernels for other rows take tensors at any address. */
template <ts_kernel KERNEL> ts_status on_aligned(ts_frame *f)
{
    bool copies = false;
    for (int i = 0; i < f->nargs; i++)
        copies = copies || is_unaligned(f->args[i]);
    for (int i = 0; i < f->nrets; i++)
        copies = copies || is_unaligned(f->rets[i]);
    bool whole = ts_kernel_rows(f).count * (int64_t)ts_dtype_size(ts_kernel_dtype(f)) % 16 == 0;
    return copies && whole ? call_with_copies(f, KERNEL) : KERNEL(f);
}

/** True for a tensor that is not contiguous. */
inline bool is_strided(const ts_value &v)
{
    return v.tag == TS_TAG_TENSOR && !ts_is_contiguous(v.t);
}
/** True if a tensor of the call is not contiguous. */
inline bool has_strides(const ts_frame *f)
{
    bool some = false;
    for (int i = 0; i < f->nargs; i++)
        some = some || is_strided(f->args[i]);
    for (int i = 0; i < f->nrets; i++)
        some = some || is_strided(f->rets[i]);
    return some;
}

/** Calls run(frame) with contiguous copies of strided arguments and new contiguous tensors for
 *  strided results, and then copies the new tensors to these results. Errors: those of the
 *  allocations, of run() and of the copies. */
template <class F> ts_status on_packed(ts_frame *f, F &&run)
{
    TS_SCOPE;
    ts_value args[TS_MAX_ARGS], rets[TS_MAX_RETS];
    memcpy(args, f->args, f->nargs * sizeof *args);
    memcpy(rets, f->rets, f->nrets * sizeof *rets);
    for (int i = 0; i < f->nargs; i++)
        if (is_strided(args[i]) && !(args[i].t = ts_contiguous(args[i].t)))
            return ts_error_code();
    for (int i = 0; i < f->nrets; i++) {
        const ts_tensor *t = f->rets[i].t;
        if (is_strided(rets[i]) && !(rets[i].t = ts_empty_on(ts_sizes(t), ts_ndim(t),
                                                             ts_dtype_of(t), ts_device_of(t))))
            return ts_error_code();
    }
    ts_frame packed = *f;
    packed.args = args;
    packed.rets = rets;
    TS_CUDA_TRY(run(&packed));
    for (int i = 0; i < f->nrets; i++)
        if (is_strided(f->rets[i]))
            TS_CUDA_TRY(ts_status_of_pointer(ts_copy_(f->rets[i].t, rets[i].t)));
    return TS_OK;
}

} // namespace ts

#endif
