/** @file watch.h  Common functions of watching layers, which observe calls: registration,
 * switching, reports. */
// SPDX-License-Identifier: MIT
#ifndef TS_LAYERS_WATCH_H
#define TS_LAYERS_WATCH_H

#include "core/tensor.h"
#include "dispatch/op.h"
#include "include/tessera/layers.h"

/** A watching layer; its key is registered when the layer is first enabled. */
typedef struct ts_watcher {
    const char *name;  /* in reports and TS_LAYERS */
    const char *layer; /* name of the key */
    ts_kernel kernel;  /* fallback for all ops */
    ts_key key;        /* set by registration */
    bool registered;   /* the key is registered */
} ts_watcher;

/** Installs fork handlers for the lock of the watchers. */
void ts_watchers_install(void);
/** Enables or disables a layer for the calling thread or all threads; the first call registers the
 *  layer. TS_ERR_VALUE for an invalid scope; errors of the registration. */
ts_status ts_watcher_switch(ts_watcher *w, ts_layer_scope scope, bool on);
/** Passes a report to the target of ts_layers_report_to(), or to the log topic "layers" if there is
 *  no target. `what` is the finding, printed after the call; NULL: none. */
void ts_watcher_report(const ts_watcher *w, const ts_frame *f, const char *what);
/** Writes "add((2, 3) f32, ...) -> (2, 3) f32: WHAT [site]", cut to size. what may be NULL. Returns
 *  buffer. */
const char *ts_watcher_describe(const ts_frame *f, const char *what, char *buffer, size_t size);

/** True if the op writes argument i, (a!) in the schema. */
TS_INLINE bool ts_is_written_arg(const ts_frame *f, int i) { return f->table->written >> i & 1; }
/** True if t has elements with values: not absent, empty or on META. */
TS_INLINE bool ts_has_values(const ts_tensor *t)
{
    return t && !ts_is_none(t) && t->numel && t->data;
}

extern ts_watcher ts_watch_nans, ts_watch_shapes, ts_watch_determinism;

#endif
