/**
 * @file layers.h
 * Debugging layers: a finder of NaN and infinity, a logger of shapes and dtypes, a checker of
 * determinism, a counter of work.
 *
 * Each is a dispatch layer above the backends and below autograd. It sees all ops that run, with
 * the dtypes that autocast chose, including the ops of backward. One call switches a layer on or
 * off for the calling thread or, except for the counter of work, for all threads. Errors of these
 * calls: TS_ERR_VALUE for an invalid scope, TS_ERR_REGISTRY if no dispatch key is free,
 * TS_ERR_MEMORY.
 *
 * The environment variable TS_LAYERS lists layers, as in TS_LAYERS=nan,shapes,determinism. The
 * library switches them on for all threads when it loads; their reports go to stderr until
 * ts_layers_report_to() is called.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_LAYERS_H
#define TESSERA_LAYERS_H

#include <stdio.h>

#include "dispatch.h"

TS_BEGIN_DECLS

/** The threads for which a layer is switched on or off. */
typedef enum ts_layer_scope {
    TS_THIS_THREAD,
    TS_ALL_THREADS /**< present and future threads */
} ts_layer_scope;

/** A report of a layer. Strings and frame are valid during the callback. */
typedef struct ts_layer_report {
    const char *layer;     /**< "nan", "shapes" or "determinism" */
    const ts_frame *frame; /**< the call, with its results */
    const char *text;      /**< one line: the call with shapes and dtypes, the problem found, if
                                any, and the call site */
    const void *site;      /**< return address of the public function
                                that was called; may be NULL */
} ts_layer_report;
/** Receives reports, in the thread of the call. The callback may call ops, which the layer does not
 *  see. */
typedef void (*ts_layer_report_fn)(void *payload, const ts_layer_report *report);

/**
 * Sets where the reports of all threads go: to callback; if that is NULL, to file, one line each;
 * if both are NULL, to the log's topic "layers". Call it before the layers are switched on.
 */
TS_API void ts_layers_report_to(ts_layer_report_fn callback, void *payload, FILE *file);

/**
 * Switches the NaN finder on or off. The finder checks the floating results and written tensors of
 * each op for NaN and infinity. The first op that has such a value in its output, and none in its
 * arguments (tensors and numbers), is reported and fails with TS_ERR_VALUE; the message has the op,
 * its arguments and the result. Tensors that the op wrote in place stay written. After that, ops
 * are not checked in any thread until ts_nan_finder_reset(). Each check waits for the device. Ops
 * with uninitialised results (empty) and META tensors are not checked.
 */
TS_API ts_status ts_nan_finder(ts_layer_scope scope, bool on);
/** Makes the NaN finder check ops again after it has found a NaN or an infinity. */
TS_API void ts_nan_finder_reset(void);

/** Switches the shape logger on or off. The logger reports each call that succeeds, with the sizes
 *  and dtypes of its arguments and results. */
TS_API ts_status ts_shape_logger(ts_layer_scope scope, bool on);

/**
 * Switches the determinism checker on or off. The checker runs each op twice with the same random
 * numbers, the first time on copies of the tensors that the op writes, and compares the results bit
 * by bit. A difference is reported, and the call fails with TS_ERR_STATE. Views and ops with
 * uninitialised results (empty) are skipped.
 */
TS_API ts_status ts_determinism_checker(ts_layer_scope scope, bool on);

/** Switches the work counter of the calling thread on or off. The counter starts at zero and adds
 *  up the minimum work (ts_op_cost()) of the thread's calls, backward included. An op without a
 *  cost formula adds 0, but the ops that it calls are counted. */
TS_API ts_status ts_work_counter(bool on);
/** The calling thread's sum since its last ts_work_counter(true). */
TS_API ts_work ts_work_counted(void);

TS_END_DECLS
#endif
