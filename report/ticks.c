/**
 * @file ticks.c
 * Nice ticks: steps of 1, 2 or 5 times a power of ten; decades on logarithmic axes.
 */
// SPDX-License-Identifier: MIT
#include "report/ticks.h"

#include "report/text.h"

#include <math.h>

/* The step among 1, 2, 5 · 10^k nearest above `range / wanted`. */
static double nice_step(double range, int wanted)
{
    double raw = range / wanted;
    double power = pow(10, floor(log10(raw)));
    double digit = raw / power;

    // 5 % of tolerance: a range of 10.001 should not halve the ticks.
    return power * (digit <= 1.05 ? 1 : digit <= 2.1 ? 2 : digit <= 5.25 ? 5 : 10);
}

static const char *const suffixes[] = {"", "k", "M", "G", "T", "P"};

/* Index of the suffix for a large number. */
static int group_of(double value)
{
    return (int)fmin(floor(log10(fabs(value)) / 3 + 1e-9), 5);
}

/* Labels of large numbers share one SI prefix, so that ticks stay comparable by eye. */
static void choose_labels(ts_axis *axis, double step)
{
    double largest = fmax(fabs(axis->low), fabs(axis->high));
    int group = largest >= 1e4 ? group_of(largest) : 0;

    axis->divisor = pow(10, 3 * group);
    axis->suffix = suffixes[group];
    axis->decimals = (int)fmax(0, -floor(log10(step / axis->divisor) + 1e-9));
}

static void linear_ticks(ts_axis *axis, int wanted, bool snap)
{
    double range = axis->high - axis->low;
    double step = nice_step(range, wanted);
    double low = floor(axis->low / step + 1e-9) * step;
    double high = ceil(axis->high / step - 1e-9) * step;

    // Extend the axis to a tick that is less than 1 % of the range away: 0 to 1999 ends at 2000.
    if (snap || axis->low - low < 0.01 * range)
        axis->low = low;
    if (snap || high - axis->high < 0.01 * range)
        axis->high = high;
    double first = ceil(axis->low / step - 1e-9);
    for (int i = 0; i < TS_MOST_TICKS; i++) {
        double tick = (first + i) * step;
        if (tick > axis->high + 1e-9 * step)
            break;
        axis->ticks[axis->nticks++] = tick == 0 ? 0 : tick;
    }
    choose_labels(axis, step);
}

static void log_ticks(ts_axis *axis, int wanted, bool snap)
{
    static const int few[] = {1}, some[] = {1, 3}, many[] = {1, 2, 5};
    double decades = log10(axis->high) - log10(axis->low);
    const int *digits = decades > 5 ? few : decades > 3 ? some : many;
    int ndigits = decades > 5 ? 1 : decades > 3 ? 2 : 3;
    int stride = (int)fmax(1, ceil(decades / wanted / 1.5));
    int bottom = (int)floor(log10(axis->low) + 1e-9), top = (int)ceil(log10(axis->high) - 1e-9);

    if (snap && decades > 1) {
        axis->low = pow(10, bottom);
        axis->high = pow(10, top);
    }
    axis->decimals = 0;
    axis->divisor = 1;
    axis->suffix = "";
    // Ticks are at multiples of the stride, so zooming does not shift them.
    for (int k = bottom - (bottom % stride + stride) % stride; k <= top; k += stride) {
        for (int i = 0; i < ndigits && axis->nticks < TS_MOST_TICKS; i++) {
            double tick = digits[i] * pow(10, k);
            if (tick >= axis->low * (1 - 1e-9) && tick <= axis->high * (1 + 1e-9))
                axis->ticks[axis->nticks++] = tick;
        }
    }
}

ts_axis ts_axis_make(double low, double high, bool log, int wanted, bool snap)
{
    ts_axis axis = {.log = log, .low = low, .high = high};

    if (!isfinite(low) || !isfinite(high) || high < low || (log && low <= 0)) {
        axis.low = log ? 1 : 0;
        axis.high = log ? 10 : 1;
    }
    // Keep the ends away from the limits of double, so that steps, ratios and snapped ends are
    // finite.
    axis.low = fmin(fmax(axis.low, log ? 1e-280 : -1e300), 1e300);
    axis.high = fmin(fmax(axis.high, log ? 1e-280 : -1e300), 1e300);
    double largest = fmax(fabs(axis.low), fabs(axis.high));
    if (!(axis.high - axis.low > fmax(1e-12 * largest, log ? 0 : 1e-280))) {
        // One value, or values so close that ticks would be indistinguishable.
        double margin = largest < 1e-280 ? 1 : largest * 0.1;
        axis.low = log ? axis.low / 2 : axis.low - margin;
        axis.high = log ? axis.high * 2 : axis.high + margin;
    }
    // A logarithmic axis over a factor of at most 3 shows no decades, so it gets linear ticks.
    if (log && axis.high / 3 > axis.low)
        log_ticks(&axis, wanted, snap);
    else
        linear_ticks(&axis, wanted, snap && !log);
    return axis;
}

double ts_axis_position(const ts_axis *axis, double value)
{
    if (axis->log)
        return (log(value) - log(axis->low)) / (log(axis->high) - log(axis->low));
    return (value - axis->low) / (axis->high - axis->low);
}

void ts_axis_label(const ts_axis *axis, double value, char *buffer, size_t size)
{
    double scaled = value / axis->divisor;

    if (axis->log && (fabs(value) >= 1e15 || fabs(value) < 1e-3))
        ts_format(buffer, size, "%.0e", value);
    else if (axis->log && fabs(value) >= 1e4)
        ts_format(buffer, size, "%.6g%s", value / pow(10, 3 * group_of(value)),
                  suffixes[group_of(value)]);
    else if (axis->log)
        ts_format(buffer, size, "%.6g", value);
    else if (axis->decimals > 4 || fabs(scaled) >= 1e6)
        ts_format(buffer, size, "%.6g", value);
    else
        ts_format(buffer, size, "%.*f%s", axis->decimals, scaled, value == 0 ? "" : axis->suffix);
}
