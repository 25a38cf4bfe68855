/** @file bytes.h  Inline copies and fills of runs of bytes, for kernels whose runs are short.
 * Copies of more than 512 bytes call memcpy(). */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_BYTES_H
#define TS_BACKENDS_CPU_BYTES_H

#include "core/base.h"

#include <string.h>

enum { TS_FILL_LINE = 32 }; /* bytes of the pattern of ts_fill_bytes() */

/** Copies fewer than 32 bytes, by two stores that may overlap each other, or byte by byte if there
 * are fewer than 4. The ranges `from` and `to` must not overlap. */
TS_INLINE void ts_copy_few_bytes(char *to, const char *from, int64_t bytes)
{
    if (bytes >= 16) {
        memcpy(to, from, 16);
        memcpy(to + bytes - 16, from + bytes - 16, 16);
    } else if (bytes >= 8) {
        memcpy(to, from, 8);
        memcpy(to + bytes - 8, from + bytes - 8, 8);
    } else if (bytes >= 4) {
        memcpy(to, from, 4);
        memcpy(to + bytes - 4, from + bytes - 4, 4);
    } else {
        for (int64_t i = 0; i < bytes; i++)
            to[i] = from[i];
    }
}

/** Copies any number of bytes. The ranges must not overlap. */
TS_INLINE void ts_copy_bytes(char *to, const char *from, int64_t bytes)
{
    if (bytes > 512) {
        memcpy(to, from, (size_t)bytes);
    } else if (bytes >= 32) {
        for (int64_t i = 0; i + 32 < bytes; i += 32)
            memcpy(to + i, from + i, 32);
        memcpy(to + bytes - 32, from + bytes - 32, 32); /* may overlap the last store of the loop */
    } else {
        ts_copy_few_bytes(to, from, bytes);
    }
}

/** Fills `to` with copies of an element. line: TS_FILL_LINE bytes of copies of the element, whose
 * size divides 8 and `bytes`. */
TS_INLINE void ts_fill_bytes(char *to, int64_t bytes, const char *line)
{
    if (bytes < TS_FILL_LINE) {
        ts_copy_few_bytes(to, line, bytes);
        return;
    }
    for (int64_t i = 0; i + TS_FILL_LINE < bytes; i += TS_FILL_LINE)
        memcpy(to + i, line, TS_FILL_LINE);
    memcpy(to + bytes - TS_FILL_LINE, line, TS_FILL_LINE);
}

#endif
