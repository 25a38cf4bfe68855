/** @file entries.h  Common functions of the generic entries. A generic entry is the function in a
 * backend's slot of an op's table (op.h): it runs the shape rule, checks destinations, allocates
 * results and calls the backend's kernel. */
// SPDX-License-Identifier: MIT
#ifndef TS_DISPATCH_ENTRIES_H
#define TS_DISPATCH_ENTRIES_H

#include "dispatch/registry.h"

/** Sets f->plan to `plan` and initialises the fields that a shape rule may leave unset. f borrows
 *  the plan. */
TS_INLINE void ts_plan_open(ts_frame *f, ts_plan *plan)
{
    plan->cast = plan->strided = plan->last = plan->operands = 0;
    plan->ordered = plan->delivered = 0;
    plan->pointwise = plan->flat = plan->ragged = plan->converts = false;
    plan->compute = TS_F32;
    f->plan = plan;
}

/** True if t is an argument of the call, or a member of one. */
bool ts_is_argument(const ts_frame *f, const ts_tensor *t);

/** True if a result's number of elements is known, above 0 and at most 2^59. Its bytes then fit 63
 *  bits in every dtype, so the sizes need no check. */
TS_INLINE bool ts_meta_fits(const ts_meta *m) { return ((uint64_t)m->numel - 1) >> 59 == 0; }

/** True if two tensors have a byte in common. Also true for layouts for which an exact answer would
 *  take long. */
bool ts_tensors_overlap(const ts_tensor *a, const ts_tensor *b);
/** Checks that each destination fits the planned result and that no argument overlaps it in memory,
 *  except an operand with the same address, sizes, strides and dtype. TS_ERR_SHAPE, TS_ERR_DTYPE,
 *  TS_ERR_DEVICE, TS_ERR_VALUE. */
ts_status ts_check_given(const ts_frame *f);
/** Checks that the destination `out` has the sizes, dtype and device of `m` and is not expanded
 *  (stride 0 in a dim of size > 1). Errors: as ts_check_given(). */
ts_status ts_check_fits_result(const ts_frame *f, const ts_tensor *out, const ts_meta *m);

/**
 * Delivers `made` to f->rets and takes over the references. `made` are the results of a kernel that
 * creates its own results, or of a second run of f's call (in f32, or on the CPU). In f->rets
 *  - a destination gets the values by a copy. Its version is incremented, and its bit in
 *    f->plan->delivered is set if f has a plan;
 *  - a new result of another dtype gets the values by a copy;
 *  - any other entry is replaced by the result.
 * @param status  status of the kernel or run; an error only releases the results
 * @return status, or the error of a copy
 */
ts_status ts_deliver(ts_frame *f, ts_value *made, ts_status status);

/** Creates a result of f as m describes, owned by the caller; NULL with an error. */
typedef ts_tensor *(*ts_make)(ts_frame *f, const ts_meta *m);
/** ts_enter_fill() with `make` to create results and `record` in place of the kernel. `record` gets
 *  arguments and destinations unadapted. */
ts_status ts_enter_deferred(ts_frame *f, ts_make make, ts_kernel record);
/** Completes the iteration space of a pointwise op after its result was allocated. */
void ts_fill_space(ts_frame *f);
/** Runs `kernel`, which creates its own results, and copies each result that has a destination to
 *  its destination. Unlike ts_enter_whole() it does not set the floating-point environment. */
ts_status ts_run_whole(ts_frame *f, ts_kernel kernel);

/** Creates missing results, runs the kernel and increments the versions of written tensors. On an
 *  error it releases the new results. */
ts_status ts_fill_run(ts_frame *f, ts_kernel kernel);
/** ts_fill_run() for a caller whose time counts as the part "casts" (TS_PART_CASTS) in a profile
 *  with detail. The kernel and the allocation of results count as their own parts. */
ts_status ts_fill_run_part(ts_frame *f, ts_kernel kernel);
/** True if every kernel can take the tensors as they are: all are contiguous and none is cast. */
bool ts_fill_is_plain(const ts_frame *f);
/** Like ts_fill_run(), but passes copies in place of the arguments and destinations that `accepts`
 *  excludes. */
ts_status ts_fill_adapted(ts_frame *f, ts_accepts accepts, ts_kernel kernel);
/** Runs a call whose compute dtype the kernel does not accept: in f32 for halves, or by the CPU
 *  fallback; otherwise TS_ERR_DTYPE. */
TS_COLD ts_status ts_fill_unaccepted(ts_frame *f);
/** The kernel of META: does nothing, because META results have no data. */
ts_status ts_shapes_only(ts_frame *f);

#endif
