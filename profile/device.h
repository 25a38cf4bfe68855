/** @file device.h  Device work of a profile, summed by row while a profile is made. */
// SPDX-License-Identifier: MIT
#ifndef TS_PROFILE_DEVICE_H
#define TS_PROFILE_DEVICE_H

#include "dispatch/device_times.h"
#include "profile/profile.h"

typedef struct ts_device_row {
    uint64_t row; /* ts_tag_row() */
    double ns;
    int64_t kernels, works;
    bool claimed; /* an entry has it */
} ts_device_row;

typedef struct ts_device_sums {
    ts_device_work *work;
    ts_device_row *rows; /* sorted */
    int64_t nwork, nrows;
} ts_device_sums;

/** Copies and sums the work of the last recording; sets the counts of p->device. */
ts_status ts_device_sums_make(ts_device_sums *s, ts_profile *p);
void ts_device_sums_free(ts_device_sums *s);
/** Adds the work of the row with this hash to an entry, once. */
void ts_device_claim(ts_device_sums *s, uint64_t hash, ts_entry *e);
/** Sets busy and idle time of p->device and of each step; call after all entries are made. */
ts_status ts_device_timeline(ts_device_sums *s, ts_profile *p);
/** Measures the ceilings of a device with the library's operators, in about a second. */
ts_status ts_device_measure(ts_device device, ts_device_part *part);

#endif
