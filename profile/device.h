/** @file device.h  Device work (kernels, copies, memsets) of a profile, summed by row. Used while a
 * profile is made from a recording. */
// SPDX-License-Identifier: MIT
#ifndef TS_PROFILE_DEVICE_H
#define TS_PROFILE_DEVICE_H

#include "dispatch/device_times.h"
#include "profile/profile.h"

/** Sums over the work of one row. */
typedef struct ts_device_row {
    uint64_t row; /* ts_tag_row() */
    double ns;    /* device time */
    int64_t kernels, works; /* works: kernels, copies and memsets */
    bool claimed; /* added to an entry by ts_device_claim() */
} ts_device_row;

/** Work since the last reset. */
typedef struct ts_device_sums {
    ts_device_work *work; /* sorted by tag; by begin after ts_device_timeline() */
    ts_device_row *rows;  /* sorted by row */
    int64_t nwork, nrows;
} ts_device_sums;

/** Copies and sums the work of the last recording; sets source, note and counts of p->device. The
 *  caller frees *s with ts_device_sums_free(). TS_ERR_MEMORY. */
ts_status ts_device_sums_make(ts_device_sums *s, ts_profile *p);
void ts_device_sums_free(ts_device_sums *s);
/** Adds device time and kernels of the row with this hash to e. Only the first call per row has an
 *  effect. */
void ts_device_claim(ts_device_sums *s, uint64_t hash, ts_entry *e);
/** Sets busy, idle and untagged time of p->device, and busy and idle time of each step. Call it
 *  after ts_device_claim() for all entries. TS_ERR_MEMORY. */
ts_status ts_device_timeline(ts_device_sums *s, ts_profile *p);
/** Measures the ceilings of a device (bandwidth, FLOP/s, launch time) with the library's operators,
 *  in about a second, and sets part->machine, half_flops and measured. */
ts_status ts_device_measure(ts_device device, ts_device_part *part);

#endif
