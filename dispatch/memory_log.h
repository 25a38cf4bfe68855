/**
 * @file memory_log.h  The log of tensors' memory. While a profile with memory records, each storage
 * whose data is a separate allocation of the library gets an entry. Storages with data in their own
 * block (up to TS_INLINE_DATA bytes on the CPU) and foreign memory get none.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_DISPATCH_MEMORY_LOG_H
#define TS_DISPATCH_MEMORY_LOG_H

#include "core/tensor.h"

/** The life of a storage. */
typedef struct ts_memory_life {
    int64_t allocated, freed; /* ticks; freed 0: not yet freed */
    int64_t bytes;
    ts_storage *alive;  /* the storage; NULL after it is freed and after ts_memory_log_end() */
    uint32_t next;      /* number + 1 of the next life in the log's hash list; 0: none */
    uint32_t scope;     /* scope of the profile in which it was allocated */
    uint16_t op;        /* op that ran when it was allocated, or TS_ROW_OUTSIDE */
    uint8_t owner;      /* a ts_owner: purpose when the storage was freed or the log ended */
    uint8_t device;     /* ts_device.backend */
} ts_memory_life;

void ts_memory_log_install(void);
/** True while storages are logged. */
bool ts_memory_log_is_on(void);
/** Empties the log and, if `on`, starts it. A reset of the timers does not change the log. */
void ts_memory_log_begin(bool on);
/** Stops the log. Storages that are freed later keep `freed` 0. */
void ts_memory_log_end(void);
/** For a report after a crash: stops and empties the log if its lock stays held for a second,
 *  because the last entry may be unfinished. Call it before ts_process_break_locks(). */
void ts_memory_log_abandon(void);
/** The lives in the order of their allocation, borrowed until the next recording; *lost: number of
 *  lives that the full log does not contain; *begun: tick at which the log began. The count is 0 if
 *  memory was not recorded. */
const ts_memory_life *ts_memory_lives(int64_t *count, int64_t *lost, int64_t *begun);

#endif
