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
/** Ends recording. Call when the devices have no work left. */
ts_status ts_cupti_end(ts_device_record *record);

TS_END_DECLS
#endif
