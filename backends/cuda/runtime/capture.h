/** @file capture.h  CUDA graphs: capture of a stream's launches and their replay. Declares the
 * functions of the backend's slots capture_*, which tessera/backend.h documents, and the lock that
 * keeps captures and device-wide waits apart. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_CAPTURE_H
#define TS_CUDA_CAPTURE_H

#include "backends/cuda/runtime/runtime.h"

TS_BEGIN_DECLS

ts_status ts_cuda_capture_begin(void *state, int device, ts_capture **capture, ts_stream **stream);
ts_status ts_cuda_capture_part(void *state, int device, ts_capture *capture, int part);
ts_status ts_cuda_capture_end(void *state, int device, ts_capture *capture, int64_t *launches);
ts_status ts_cuda_capture_replay(void *state, int device, ts_capture *capture, ts_stream *stream);
int ts_cuda_capture_parts(void *state, int device, ts_capture *capture, const int **parts);
ts_status ts_cuda_capture_order(void *state, int device, ts_capture *capture,
                                const ts_part_pair *pairs, int n);
void ts_cuda_capture_free(void *state, int device, ts_capture *capture);

/* Defined in runtime.c: */

/** Waits for the current device; returns the error of cudaDeviceSynchronize(). CUDA forbids this
 *  wait while any thread captures a stream of the device, so the call and captures exclude each
 *  other. With `patient` the call waits for captures to end; a thread that is capturing must
 *  pass false, or it would wait for itself. Without `patient` the call returns cudaErrorNotReady
 *  during a capture or another thread's wait. */
cudaError_t ts_cuda_wait_for_device(bool patient);
/** Locks out ts_cuda_wait_for_device(); waits while another thread runs it. Call it before a
 *  capture. Several threads may capture at the same time. */
void ts_cuda_capture_enter(void);
/** Call after the capture, in the thread that called ts_cuda_capture_enter(). */
void ts_cuda_capture_leave(void);

TS_END_DECLS
#endif
