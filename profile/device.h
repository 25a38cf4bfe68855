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
    double delay_ns, partial_ns, pageable_ns, idle_ns; /* as in ts_entry */
    double wait_ns; /* time in which the host waited */
    int64_t kernels, works; /* works: kernels, copies and memsets */
    bool claimed; /* added to an entry by ts_device_claim() */
} ts_device_row;

/** Work since the last reset. */
typedef struct ts_device_sums {
    ts_device_work *work; /* sorted by begin after ts_device_timeline() */
    ts_device_row *rows;  /* sorted by row */
    int64_t nwork, nrows;
    ts_device_wait *waits; /* sorted by end */
    int64_t nwaits;
} ts_device_sums;

/** Copies and sums the work of the last recording; sets source, note and counts of p->device. The
 *  caller frees *s with ts_device_sums_free(). TS_ERR_MEMORY. */
ts_status ts_device_sums_make(ts_device_sums *s, ts_profile *p);
void ts_device_sums_free(ts_device_sums *s);
/** Adds device time and kernels of the row with this hash to e. Only the first call per row has an
 *  effect. */
void ts_device_claim(ts_device_sums *s, uint64_t hash, ts_entry *e);
/** Sets busy and idle time of p->device and of each step, and the idle time by cause and by row.
 *  Call it before ts_device_claim(), when steps and events are known. TS_ERR_MEMORY. */
ts_status ts_device_timeline(ts_device_sums *s, ts_profile *p);
/** Sets the untagged time of p->device, and the call that waits longest. Call it after
 *  ts_device_claim() for all entries. */
void ts_device_rest(const ts_device_sums *s, ts_profile *p);
/** Sets p->device.kernel to the longest kernel of the entry that loses most time, when all entries
 *  are judged. */
void ts_device_name_kernel(const ts_device_sums *s, ts_profile *p);
/** The row with this number, or NULL. */
ts_device_row *ts_device_find(ts_device_sums *s, uint64_t row);
/** Divides idle time by cause; adds idle_ns to the rows. Call it before ts_device_claim().
 *  first_ns, last_ns: the part of the timeline that counts. TS_ERR_MEMORY. */
ts_status ts_device_idle(ts_device_sums *s, ts_profile *p, int64_t first_ns, int64_t last_ns);
/** Measures the ceilings of a device (bandwidth, FLOP/s, launch time) with the library's operators,
 *  in about a second, once per process, and sets part->machine, half_flops and measured. */
ts_status ts_device_measure(ts_device device, ts_device_part *part);
/** Measures the ceilings of the recorded device, if there is one, when the recording ends: at the
 *  exit of the process, libraries that the device needs may have ended. */
void ts_device_measure_early(void);

#endif
