/**
 * @file layers.h
 * Debugging layers: a finder of NaN and infinity, a logger of shapes and dtypes, a checker of
 * determinism, a counter of work.
 *
 * Each is a dispatch layer directly above the backends. It sees all ops that run, those of backward
 * included, after autocast. One call switches a layer on for the calling thread or for all threads.
 * TS_LAYERS=nan,shapes,determinism switches these layers on for all threads when the library loads;
 * their reports then go to stderr.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_LAYERS_H
#define TESSERA_LAYERS_H

#include <stdio.h>

#include "dispatch.h"

TS_BEGIN_DECLS

/** The threads for which a layer is switched. */
typedef enum ts_layer_scope {
    TS_THIS_THREAD,
    TS_ALL_THREADS /**< present and future ones */
} ts_layer_scope;

/** A report of a layer. Strings and frame are valid during the callback. */
typedef struct ts_layer_report {
    const char *layer;     /**< "nan", "shapes" or "determinism" */
    const ts_frame *frame; /**< the call, with its results */
    const char *text;      /**< one line: the call with shapes and dtypes, the finding, the call
                                site */
    const void *site;      /**< return address of the public function
                                that was called; may be NULL */
} ts_layer_report;
/** Receives reports, in the thread of the call. The callback may call ops, which the layer does not
 *  see. */
typedef void (*ts_layer_report_fn)(void *payload, const ts_layer_report *report);

/**
 * Sets the destination of reports for all threads: a callback, else a file, line by line; both
 * NULL: the topic "layers" of the log. Call it before the layers are switched on.
 */
TS_API void ts_layers_report_to(ts_layer_report_fn callback, void *payload, FILE *file);

/**
 * The NaN finder checks the f64, f32, bf16 and f16 results and written tensors of each op for NaN
 * and infinity. The first op whose output has one while its inputs have none is reported and fails
 * with TS_ERR_VALUE, which names the op, its arguments and the result. Later ops pass until
 * ts_nan_finder_reset().
 */
TS_API ts_status ts_nan_finder(ts_layer_scope scope, bool on);
/** Makes the finder report the next op as the first again. */
TS_API void ts_nan_finder_reset(void);

/** The shape logger: reports each op with the sizes, dtypes and devices
 * of its arguments and results. */
TS_API ts_status ts_shape_logger(ts_layer_scope scope, bool on);

/**
 * The determinism checker runs each op twice with the same random numbers, on copies of the tensors
 * it writes, and compares the results bit by bit. A difference is reported, and the call fails with
 * TS_ERR_STATE. Ops with uninitialised results (empty) are skipped.
 */
TS_API ts_status ts_determinism_checker(ts_layer_scope scope, bool on);

/** The work counter: switched on, it begins at zero and adds up the least work (ts_op_cost()) of
 *  the calling thread's calls, backward included. Ops without a cost count as nothing. */
TS_API ts_status ts_work_counter(bool on);
/** The sum since the counter was switched on last. */
TS_API ts_work ts_work_counted(void);

TS_END_DECLS
#endif
