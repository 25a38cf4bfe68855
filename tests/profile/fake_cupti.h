/** @file fake_cupti.h  Control of a fake CUPTI library, whose device runs the work that a test
 * scripts. */
// SPDX-License-Identifier: MIT
#ifndef TESTS_PROFILE_FAKE_CUPTI_H
#define TESTS_PROFILE_FAKE_CUPTI_H

#include <stdbool.h>
#include <stdint.h>

typedef struct fake_device {
    int64_t clock;      /* end of the last work, ns */
    bool taken;         /* cuptiSubscribe() fails as if another tool used CUPTI */
    bool no_tags;       /* no records of tags are written */
    bool zero_times;    /* the next work has invalid times, 0 */
    uint64_t dropped;   /* records that the next buffer reports as dropped */
    int subscribers, kinds; /* number of subscribers, number of enabled activity kinds */
} fake_device;

/** Values of CUpti_ActivityKind. */
enum { FAKE_MEMCPY = 1, FAKE_MEMSET = 2, FAKE_KERNEL = 10, FAKE_MEMCPY_PEER = 22 };

/** Records an API call that queues n works of a kind, as a graph launch does. Each takes `ns` ns
 *  and begins `gap` ns after the end of the work before it. */
void fake_launch(uint32_t kind, int64_t gap, int64_t ns, int n);
typedef void (*fake_launch_fn)(uint32_t kind, int64_t gap, int64_t ns, int n);

#endif
