/** @file axes.h  The order of spatial dims in loops of pooling, padding and resizing. Included by
 * pool.c and resample.c. */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_AXES_H
#define TS_BACKENDS_CPU_AXES_H

#include "core/tensor.h"
#include "include/tessera/kernel.h"

/* An argument of at least this many bytes (16 MiB) is taken to be in memory, not in a cache. Loops
 * over channels-last images with many channels then read pixels that windows do not share in the
 * order of memory, because the processor prefetches them. */
#define TS_LARGE_IMAGE ((int64_t)16 << 20)

/** True if the dim has size 1 in the argument and in the result. */
TS_INLINE bool ts_axis_is_one(const ts_axis *a) { return a->in == 1 && a->out == 1; }

/** Decodes the call. If the last spatial dim has size 1 in the argument and in the result, it is
 * swapped with the nearest dim for which this is not so: loops along the last dim then have work.
 * The elements keep their order in memory, because all dims between the two have size 1. */
TS_INLINE ts_resampling ts_cpu_resampling(const ts_frame *f)
{
    ts_resampling r = ts_kernel_resampling(f);
    int other = ts_axis_is_one(&r.axis[1]) ? 0 : 1;
    if (ts_axis_is_one(&r.axis[2]) && !ts_axis_is_one(&r.axis[other])) {
        ts_axis one = r.axis[2];
        r.axis[2] = r.axis[other];
        r.axis[other] = one;
    }
    return r;
}

/** True if t, an argument or result of the call, is (N, C, ...) in channels-last. The number of
 * planes is compared too, because (C, H, W) with dims of size 1 may have channels-last strides. */
TS_INLINE bool ts_is_last_image(const ts_resampling *r, const ts_tensor *t)
{
    return ts_is_dense_last(t) && t->sizes[0] * t->sizes[1] == r->planes;
}

#endif
