/** @file shapes.c  The shape logger: each call with its sizes and dtypes. */
// SPDX-License-Identifier: MIT
#include "layers/watch.h"

static ts_status log_shapes(ts_frame *f)
{
    ts_status status = ts_redispatch(f);
    if (status == TS_OK)
        ts_watcher_report(&ts_watch_shapes, f, NULL);
    return status;
}

ts_watcher ts_watch_shapes = {.name = "shapes", .layer = "SHAPES", .kernel = log_shapes};

ts_status ts_shape_logger(ts_layer_scope scope, bool on)
{
    return ts_watcher_switch(&ts_watch_shapes, scope, on);
}
