/**
 * @file chart.h
 * The data of a chart, collected by chart.c and drawn by svg.c.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_REPORT_CHART_H
#define TS_REPORT_CHART_H

#include <tessera/report.h>

#include "report/text.h"

typedef struct ts_chart_series {
    char *name;     // "" for the unnamed series of bars
    double *x, *y;  // n each, owned; NULL for bars
    double *smooth; // n moving averages of y, owned; NULL without smoothing
    int64_t n;
    bool bridge_gaps, markers; // connect across points without a value; a dot at each point
} ts_chart_series;

typedef struct ts_chart_reference_line {
    char *name;
    double y;
} ts_chart_reference_line;

typedef struct ts_chart_bar_value {
    int label, series; // indices into labels and series
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

/** Appends the chart as SVG to `out`; ts_text_status() reports a failed allocation. */
void ts_chart_draw(const ts_chart *chart, ts_text *out);

#endif
