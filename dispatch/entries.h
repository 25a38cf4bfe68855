/** @file entries.h  The generic entries in the backend slots, and their common parts. */
// SPDX-License-Identifier: MIT
#ifndef TS_DISPATCH_ENTRIES_H
#define TS_DISPATCH_ENTRIES_H

#include "dispatch/registry.h"

/** Gives f a plan with the fields that a shape rule does not write. */
TS_INLINE void ts_plan_open(ts_frame *f, ts_plan *plan)
{
    plan->cast = plan->strided = plan->operands = 0;
    plan->ordered = plan->delivered = 0;
    plan->pointwise = plan->flat = plan->ragged = plan->converts = false;
    plan->compute = TS_F32;
    f->plan = plan;
}

/** Destinations fit the plan's results and are not read half-written. */
ts_status ts_check_given(const ts_frame *f);
/** out has the sizes, dtype and device of a result, and distinct elements. */
ts_status ts_check_fits_result(const ts_frame *f, const ts_tensor *out, const ts_meta *m);

/**
 * Gives f the results of another run of its call, and takes over their references. Results with a
 * destination or another dtype are copied, and those writes counted; other results replace f's.
 */
ts_status ts_deliver(ts_frame *f, ts_value *made, ts_status status);

/** Makes a result of f; NULL with an error. */
typedef ts_tensor *(*ts_make)(ts_frame *f, const ts_meta *m);
/** ts_enter_fill() with `make` to create results and `record` in place of the kernel. `record` gets
 *  arguments and destinations unadapted. */
ts_status ts_enter_deferred(ts_frame *f, ts_make make, ts_kernel record);
/** Completes the iteration space of a pointwise op after its result was allocated. */
void ts_fill_space(ts_frame *f);
/** ts_enter_whole() of `kernel`, whatever the table holds. */
ts_status ts_run_whole(ts_frame *f, ts_kernel kernel);

/** Makes missing results, runs the kernel and increments the versions of written tensors. */
ts_status ts_fill_run(ts_frame *f, ts_kernel kernel);
/** The same, with copies of the arguments and destinations that the kernel does not take. */
ts_status ts_fill_adapted(ts_frame *f, ts_accepts accepts, ts_kernel kernel);
/** A call in a dtype that the kernel does not take: in f32, over the CPU, or an error. */
TS_COLD ts_status ts_fill_unaccepted(ts_frame *f);
/** The kernel of META, where shapes are enough. */
ts_status ts_shapes_only(ts_frame *f);

#endif
