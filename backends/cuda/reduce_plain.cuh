/**
 * @file reduce_plain.cuh  Reductions whose state is one number, and declarations shared by the
 * files of the reduce family.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_REDUCE_PLAIN_CUH
#define TS_CUDA_REDUCE_PLAIN_CUH

#include "backends/cuda/reduce.cuh"

namespace ts {

/** Reduces argument 0, with elements of T, over the dims of the call by plain_fold (fold.cuh). */
template <class T, class OP, class PRE>
ts_status plain(ts_frame *f, double factor, bool root)
{
    return reduce<T>(f, plain_fold<wide_t<T>, OP, PRE>{factor, root});
}
/** plain() for the call's floating dtype. */
template <class OP, class PRE>
ts_status real(ts_frame *f, double factor = 1, bool root = false)
{
    switch (ts_kernel_dtype(f)) {
    case TS_F64: return plain<double, OP, PRE>(f, factor, root);
    case TS_BF16: return plain<bf16, OP, PRE>(f, factor, root);
    case TS_F16: return plain<f16, OP, PRE>(f, factor, root);
    default: return plain<float, OP, PRE>(f, factor, root);
    }
}

/** Number of elements that are reduced to one result. */
inline int64_t length_of(const ts_frame *f)
{
    int64_t n = 1, mask = ts_kernel_reduced(f);
    for (int d = 0; d < ts_ndim(f->args[0].t); d++)
        n *= mask >> d & 1 ? ts_sizes(f->args[0].t)[d] : 1;
    return n;
}

/* Kernels in the family's other files. The driver compiles PTX per file, so several files take less
   time than one large file. */
ts_status reduce_amax(ts_frame *f);
ts_status reduce_amin(ts_frame *f);
ts_status reduce_all(ts_frame *f);
ts_status reduce_any(ts_frame *f);
ts_status reduce_var(ts_frame *f);
ts_status reduce_std(ts_frame *f);
ts_status reduce_logsumexp(ts_frame *f);

} // namespace ts

#endif
