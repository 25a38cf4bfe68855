/**
 * @file ticks.h  Axes: mapping of data to positions from 0 to 1, and placement of ticks.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_REPORT_TICKS_H
#define TS_REPORT_TICKS_H

#include <stdbool.h>
#include <stddef.h>

enum { TS_MOST_TICKS = 32 };

/** One axis: the range it shows and its ticks. */
typedef struct ts_axis {
    bool log;
    double low, high; /**< low < high; both positive when log */
    int nticks;
    double ticks[TS_MOST_TICKS];
    int decimals;       /**< decimal places of labels on a linear axis, after the division */
    double divisor;     /**< power of 1000 that labels are divided by */
    const char *suffix; /**< SI prefix of the divisor: "", "k", "M", ... */
} ts_axis;

/**
 * Returns an axis for [low, high] with about `wanted` ticks, at most TS_MOST_TICKS. A linear axis
 * has ticks at multiples of a step of 1, 2 or 5 times a power of ten. A logarithmic axis has ticks
 * at 1, 2, 3 or 5 times powers of ten, or those of a linear axis if high is at most 3 times low.
 * Each end of an axis with linear ticks is widened to the next tick if that is less than 1 % of the
 * range away.
 * @param snap  widens a linear axis to whole steps, however far away they are, and a logarithmic
 *              axis of more than one decade to whole decades
 * Any range gives a usable axis: a range that is empty, reversed, not finite, or not positive on a
 * logarithmic axis is replaced.
 */
ts_axis ts_axis_make(double low, double high, bool log, int wanted, bool snap);
/** Position of a value, 0 at low and 1 at high. */
double ts_axis_position(const ts_axis *axis, double value);
/** Writes the label of a tick at `value` to buffer, cut to `size` bytes with its NUL. */
void ts_axis_label(const ts_axis *axis, double value, char *buffer, size_t size);

#endif
