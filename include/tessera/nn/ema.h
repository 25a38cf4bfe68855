/**
 * @file ema.h
 * Exponential moving averages of a module's tensors. Averages of the last steps often generalise
 * better than the weights of the last step:
 *
 *     TS_TRY(ts_optimizer_step(opt));
 *     TS_TRY(ts_ema_update(ema));
 *     ...
 *     TS_TRY(ts_ema_swap(ema)); // the module has the averages
 *     TS_TRY(evaluate(model));
 *     TS_TRY(ts_ema_swap(ema)); // and its own values again
 *
 * An update sets each average of a floating parameter or persistent buffer to
 * average + (1 - d) · (value - average), where d = min(decay, (1 + steps) / (10 + steps)), so that
 * the first values are soon forgotten. Averages of f64 tensors are f64, other ones f32. Buffers of
 * other dtypes are copied. Only one thread at a time may use an object.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_NN_EMA_H
#define TESSERA_NN_EMA_H

#include "module.h"

TS_BEGIN_DECLS

typedef struct ts_ema ts_ema;

/** Begins averages with the module's present values. They keep references to its tensors, so
 *  ts_module_to() needs new ones.
 *  @param decay  0 to 1, such as 0.999
 *  @return owned by the caller; NULL with TS_ERR_NULL, TS_ERR_VALUE or TS_ERR_MEMORY */
TS_API ts_ema *ts_ema_new(const ts_module *m, double decay);
/** Frees averages; the module keeps its values. NULL-safe. */
TS_API void ts_ema_free(ts_ema *ema);
/** Adds the module's values to the averages. The factor d is a number of the host, so call the
 *  function outside of compiled functions. Errors: TS_ERR_NULL, TS_ERR_MEMORY, TS_ERR_STATE between
 *  two swaps. */
TS_API ts_status ts_ema_update(ts_ema *ema);
/** Exchanges the module's values and the averages; a second call restores both. A half parameter
 *  gets the rounded average. Errors: TS_ERR_NULL, TS_ERR_MEMORY. */
TS_API ts_status ts_ema_swap(ts_ema *ema);

/** Returns the averages under the names of the state dict, and "steps", (1) i64. ts_training_save()
 *  writes them. TS_ERR_STATE between two swaps. */
TS_API ts_status ts_ema_state(const ts_ema *ema, ts_named_tensors *list);
/** Copies a state of ts_ema_state(). Names, sizes and dtypes must match exactly, else TS_ERR_VALUE,
 *  and nothing changes. */
TS_API ts_status ts_ema_load_state(ts_ema *ema, const char *const *names,
                                   ts_tensor *const *tensors, int64_t n);

TS_END_DECLS
#endif
