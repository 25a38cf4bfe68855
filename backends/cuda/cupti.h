/** @file cupti.h  Times of kernels, copies and memsets, recorded by CUPTI, for the slots profile_*
 * of the backend's table. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_CUPTI_H
#define TS_CUDA_CUPTI_H

#include "tessera/backend.h"

TS_BEGIN_DECLS

/* `state`, that of the backend, is not used. */

/** Starts recording, or drops what was recorded so far. TS_ERR_UNSUPPORTED if CUPTI is missing or
 *  another tool uses it. */
ts_status ts_cupti_begin(void *state);
/** Tags the work that the calling thread queues from now on. */
void ts_cupti_tag(void *state, uint64_t tag);
/** The time now on the clock of the records, in ns; 0 unless CUPTI records. */
int64_t ts_cupti_clock(void *state);
/** What a device runs at once; all zero: unknown. */
typedef struct ts_cupti_limits {
    uint32_t processors;                 /* multiprocessors */
    uint32_t threads, registers, shared; /* threads, registers and bytes of each of them */
} ts_cupti_limits;
/** Sets the limits of a device, from which the waves of its kernels are computed. */
void ts_cupti_set_limits(int device, const ts_cupti_limits *of);
/** Ends recording. Call when the devices have no work left. */
ts_status ts_cupti_end(ts_device_record *record);

TS_END_DECLS
#endif
