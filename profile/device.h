/** @file device.h  Device work (kernels, copies, memsets), summed by row, while ts_profile_take()
 * makes a profile. Order of calls: ts_device_sums_make(), ts_device_timeline(), ts_device_claim()
 * for each entry, ts_device_rest(), ts_device_name_kernel(), ts_device_sums_free(). */
// SPDX-License-Identifier: MIT
#ifndef TS_PROFILE_DEVICE_H
#define TS_PROFILE_DEVICE_H

#include "dispatch/device_times.h"
#include "profile/profile.h"

/** Sums over the work of one row. */
typedef struct ts_device_row {
    uint64_t row; /* ts_tag_row() */
    double ns;    /* device time */
    double delay_ns, partial_ns, pageable_ns, idle_ns, wait_ns; /* as in ts_entry */
    int64_t kernels, works; /* works: kernels, copies and memsets */
    bool claimed; /* ts_device_claim() has added the row to an entry */
} ts_device_row;

/** Work since the last reset. */
typedef struct ts_device_sums {
    ts_device_work *work; /* sorted by begin after ts_device_timeline() */
    ts_device_row *rows;  /* sorted by row */
    int64_t nwork, nrows;
    ts_device_wait *waits; /* host calls that wait or allocate; sorted by end */
    int64_t nwaits;
} ts_device_sums;

/** Copies and sums the work of the last recording; sets source, note and counts of p->device. The
 *  caller frees *s with ts_device_sums_free(). Without work, *s is empty. On TS_ERR_MEMORY *s is
 *  empty, too. */
ts_status ts_device_sums_make(ts_device_sums *s, ts_profile *p);
void ts_device_sums_free(ts_device_sums *s);
/** Adds the device times and counts of the row with this hash to e, and sets e->row. Only the first
 *  call per row adds them. */
void ts_device_claim(ts_device_sums *s, uint64_t hash, ts_entry *e);
/** Sets busy and idle time of p->device and of each step, and the idle time by cause (p->device),
 *  by row (s->rows), and by scope and layer (p->exposed). Call it before ts_device_claim(), when
 *  steps and events are known. Without work it does nothing. Error: TS_ERR_MEMORY. */
ts_status ts_device_timeline(ts_device_sums *s, ts_profile *p);
/** Sets the time and number of works of rows that no entry has claimed (p->device.untagged_ns,
 *  untagged), and the call that waits longest. Call it after ts_device_claim() for all entries. */
void ts_device_rest(const ts_device_sums *s, ts_profile *p);
/** Sets p->device.kernel to the longest kernel of the entry with the largest device_ns - roof_ns,
 *  and kernel_launches to its launches. Call it after ts_profile_judge(). Does nothing if the
 *  kernel's name is unknown or does not fit. */
void ts_device_name_kernel(const ts_device_sums *s, ts_profile *p);
/** The row with this number (ts_tag_row()), or NULL. */
ts_device_row *ts_device_find(ts_device_sums *s, uint64_t row);
/** Part of ts_device_timeline(): divides the idle time from first_ns to last_ns on the device's
 *  clock by cause, row, scope and layer. s->work is sorted by begin. Error: TS_ERR_MEMORY. */
ts_status ts_device_idle(ts_device_sums *s, ts_profile *p, int64_t first_ns, int64_t last_ns);
/** Row of a text in ts_profile.calls. */
typedef struct ts_trace_row {
    uint64_t row;  /* ts_tag_row() */
    int64_t call;  /* number of the text */
    uint32_t scope;
} ts_trace_row;
/** Sets p->works if p has a trace and the clocks of host and device are known. Call it after
 *  ts_device_timeline(). rows: an entry per text of p->calls, in the order of the texts; the
 *  function sorts them. first_tick: zero of the trace's time axis. Error: TS_ERR_MEMORY. */
ts_status ts_trace_works(const ts_device_sums *s, ts_profile *p, ts_trace_row *rows,
                         int64_t first_tick);
/** Measures the ceilings of a device with the library's operators, in about a second, or reads the
 *  file of an earlier measurement. Later calls of the process for the same device return the kept
 *  result. Sets part->machine and measured. Errors: those of the operators and of the device. */
ts_status ts_device_measure(ts_device device, ts_device_part *part);
/** Measures the ceilings of the recorded device, if there is one, when the recording ends. At the
 *  exit of the process this may be too late, because libraries that the device needs have ended.
 *  Errors are ignored: ts_profile_take() measures again and reports them. */
void ts_device_measure_early(void);

#endif
