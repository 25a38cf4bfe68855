/**
 * @file chart.h
 * The contents of a chart.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_REPORT_CHART_H
#define TS_REPORT_CHART_H

#include <tessera/report.h>

#include "report/text.h"

typedef struct ts_chart_series {
    char *name;     // "" for the unnamed series of bars
    double *x, *y;  // n; lines only
    double *smooth; // n; NULL without smoothing
    int64_t n;
    bool bridge_gaps, markers;
} ts_chart_series;

typedef struct ts_chart_reference_line {
    char *name;
    double y;
} ts_chart_reference_line;

typedef struct ts_chart_bar_value {
    int label, series; // indices
    double value;
} ts_chart_bar_value;

struct ts_chart {
    ts_chart_opts opts; // strings owned, "" when not given
    ts_chart_series *series;
    ts_chart_reference_line *references;
    char **labels; // of bars
    ts_chart_bar_value *bars;
    int nseries, nreferences, nlabels, nbars;
};

/** Draws the chart as SVG; a failed allocation sticks to `out`. */
void ts_chart_draw(const ts_chart *chart, ts_text *out);

#endif
