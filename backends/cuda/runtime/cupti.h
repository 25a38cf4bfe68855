/** @file cupti.h  Times of kernels, copies and memsets, for the slots profile_* of the backend's
 * table. CUPTI, the CUDA Profiling Tools Interface, records them. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_CUPTI_H
#define TS_CUDA_CUPTI_H

#include "tessera/backend.h"

TS_BEGIN_DECLS

/* The functions do not use `state`. */

/** Starts recording; if a recording runs, drops its records. TS_ERR_UNSUPPORTED if CUPTI is
 *  missing or disabled (TS_CUDA_CUPTI=0), another tool uses it, or it fails to start. */
ts_status ts_cupti_begin(void *state);
/** If a recording runs, tags the work that the calling thread queues from now on, and its waits and
 *  allocations. */
void ts_cupti_tag(void *state, uint64_t tag);
/** Current time on the clock of the records, in ns; 0 if nothing is being recorded. */
int64_t ts_cupti_clock(void *state);
/** Resources of a device; all zero: unknown. */
typedef struct ts_cupti_limits {
    uint32_t processors;                 /* multiprocessors of the device */
    uint32_t threads, registers, shared; /* of one multiprocessor; shared: bytes of shared memory */
} ts_cupti_limits;
/** Sets the resources of a device. ts_device_work.waves of the device's kernels is computed from
 *  them. Call before ts_cupti_begin(). Ignores devices with an index above 15. */
void ts_cupti_set_limits(int device, const ts_cupti_limits *of);
/** Ends recording, detaches CUPTI and fills *record, whose arrays and names are valid until the
 *  next ts_cupti_begin(). Synchronize all devices first: CUPTI delivers records of finished work
 *  only. TS_ERR_STATE if nothing is being recorded, TS_ERR_UNSUPPORTED if CUPTI cannot deliver its
 *  records. */
ts_status ts_cupti_end(ts_device_record *record);

TS_END_DECLS
#endif
