/** @file fake_cupti.h  A library with CUPTI's functions whose device is a script. */
// SPDX-License-Identifier: MIT
#ifndef TESTS_PROFILE_FAKE_CUPTI_H
#define TESTS_PROFILE_FAKE_CUPTI_H

#include <stdbool.h>
#include <stdint.h>

typedef struct fake_device {
    int64_t clock;      /* end of the last work, ns */
    bool taken;         /* another tool uses CUPTI */
    bool no_tags;       /* API calls have no records of tags */
    bool zero_times;    /* the next work has no time */
    uint64_t dropped;   /* records that the next buffer reports as dropped */
    int subscribers, kinds; /* subscribers; kinds that are enabled */
} fake_device;

/** Kinds of work of CUPTI. */
enum { FAKE_MEMCPY = 1, FAKE_MEMSET = 2, FAKE_KERNEL = 10, FAKE_MEMCPY_PEER = 22 };

/** An API call that runs work for ns, `gap` ns after the last; a graph of n kernels with gaps. */
void fake_launch(uint32_t kind, int64_t gap, int64_t ns, int n);
typedef void (*fake_launch_fn)(uint32_t kind, int64_t gap, int64_t ns, int n);

#endif
