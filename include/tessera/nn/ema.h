/**
 * @file ema.h
 * Exponential moving averages of a module's tensors. Weights averaged over recent steps often
 * generalise better than the weights of the last step:
 *
 *     TS_TRY(ts_optimizer_step(opt));
 *     TS_TRY(ts_ema_update(ema));
 *     ...
 *     TS_TRY(ts_ema_swap(ema)); // the module has the averages
 *     TS_TRY(evaluate(model));
 *     TS_TRY(ts_ema_swap(ema)); // the module has its own values again
 *
 * An update sets each average of a floating parameter or persistent buffer to
 * average + (1 - d) · (value - average), where d = min(decay, (1 + steps) / (10 + steps)) and
 * `steps` counts earlier updates. d is small at first, so the initial values fade quickly. Averages
 * of f64 tensors are f64; those of f32, bf16 and f16 tensors are f32. Buffers of other dtypes are
 * copied. Only one thread at a time may use a ts_ema.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_NN_EMA_H
#define TESSERA_NN_EMA_H

#include "module.h"

TS_BEGIN_DECLS

/** The averages of one module's tensors. */
typedef struct ts_ema ts_ema;

/** Makes averages that start with the module's current values. The object keeps references to the
 *  module's tensors, so make a new one after ts_module_to(), which replaces them.
 *  @param decay  0 to 1, such as 0.999
 *  @return owned by the caller; NULL with TS_ERR_NULL, TS_ERR_VALUE or TS_ERR_MEMORY */
TS_API ts_ema *ts_ema_new(const ts_module *m, double decay);
/** Frees averages; the module keeps its values. NULL-safe. */
TS_API void ts_ema_free(ts_ema *ema);
/** Updates the averages by the module's current values, usually after each optimizer step. The host
 *  computes d, so call this function outside of compiled functions. Errors: TS_ERR_NULL,
 *  TS_ERR_MEMORY, TS_ERR_STATE while the module has the averages. */
TS_API ts_status ts_ema_update(ts_ema *ema);
/** Replaces the module's values by the averages, rounded to each tensor's dtype. The next call
 *  restores the values that the module had before. The averages do not change. Errors: TS_ERR_NULL,
 *  TS_ERR_MEMORY, and those of ts_copy_(). */
TS_API ts_status ts_ema_swap(ts_ema *ema);

/** Writes the averages, under the names of the state dict, and "steps", (1) i64, to *list. The
 *  tensors are the object's own, not copies. ts_training_save() saves them. Errors: TS_ERR_NULL,
 *  TS_ERR_MEMORY, TS_ERR_STATE while the module has the averages. */
TS_API ts_status ts_ema_state(const ts_ema *ema, ts_named_tensors *list);
/** Copies n tensors of ts_ema_state() into the averages. Names, sizes and dtypes must match
 *  exactly, else TS_ERR_VALUE, and nothing changes. Other errors: those of ts_ema_state() and of
 *  ts_copy_(). */
TS_API ts_status ts_ema_load_state(ts_ema *ema, const char *const *names,
                                   ts_tensor *const *tensors, int64_t n);

TS_END_DECLS
#endif
