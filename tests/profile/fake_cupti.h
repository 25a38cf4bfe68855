/** @file fake_cupti.h  Control of a fake CUPTI (CUDA Profiling Tools Interface): a library whose
 * device runs the work that a test scripts. */
// SPDX-License-Identifier: MIT
#ifndef TESTS_PROFILE_FAKE_CUPTI_H
#define TESTS_PROFILE_FAKE_CUPTI_H

#include <stdbool.h>
#include <stdint.h>

typedef struct fake_device {
    int64_t clock;      /* end of the last operation, ns */
    bool taken;         /* cuptiSubscribe() fails as if another tool used CUPTI */
    bool no_calls;      /* the subscriber is not called back */
    bool zero_times;    /* the next operation has invalid times, 0 */
    uint64_t dropped;   /* records that the next buffer reports as dropped */
    int subscribers, kinds; /* number of subscribers, number of enabled activity kinds */
    int finalized;          /* number of calls of cuptiFinalize() */
    int64_t called;     /* time at which the next API call begins; 0: the subscriber is called back
                           only at its end */
    int64_t call_ns;    /* duration of API calls */
    bool real;          /* use the device's clock: a call begins now, and its work 1 us later or
                           after the work before it */
    int64_t offset;     /* of the device's clock from CLOCK_MONOTONIC, ns */
    double drift;       /* ns by which the device's clock gains per ns starting at `drifts_from` */
    int64_t drifts_from; /* on CLOCK_MONOTONIC, ns */
    bool pageable;      /* copies are from pageable memory */
    const char *name;   /* of the next kernels */
    uint32_t blocks;    /* of the next kernels, with 256 threads and 32 registers each */
    /* called at the beginning of cuptiGetTimestamp() and cuptiActivityFlushAll(), and in API calls
       with the lock that flushing needs; NULL: nothing */
    void (*at_clock)(void), (*at_flush)(void), (*at_launch)(void);
} fake_device;

/** Values of CUpti_ActivityKind. */
enum { FAKE_MEMCPY = 1, FAKE_MEMSET = 2, FAKE_KERNEL = 10, FAKE_MEMCPY_PEER = 22 };

/** Records an API call that queues n operations of one kind, as a graph launch does. Each takes
 * `ns` ns and begins `gap` ns after the end of the operation before it. */
void fake_launch(uint32_t kind, int64_t gap, int64_t ns, int n);
/** Records an API call that waits for the device, or allocates, on the same clock. */
void fake_wait(bool allocates, int64_t begin, int64_t end);
typedef void (*fake_wait_fn)(bool allocates, int64_t begin, int64_t end);
typedef void (*fake_launch_fn)(uint32_t kind, int64_t gap, int64_t ns, int n);

#endif
