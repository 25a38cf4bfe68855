/**
 * @file amp.h
 * Gradient scaling for training in f16, where small gradients become 0. The scaler multiplies the
 * loss by a scale. The step divides the gradients by the scale as it reads them; if a gradient is
 * infinite or NaN, the device skips the step. bf16 has the range of f32 and needs no scaling.
 * autocast.h has the regions in which ops run in f16.
 *
 *     TS_TRY(ts_backward(ts_grad_scaler_scale(scaler, loss)));
 *     TS_TRY(ts_grad_scaler_step(scaler, opt)); // skipped when a gradient is not finite
 *     TS_TRY(ts_grad_scaler_update(scaler));
 *     ts_optimizer_zero_grad(opt);
 *
 * If ts_optimizer_set_max_norm() is set, the step also clips. To look at gradients before the step,
 * call ts_grad_scaler_unscale() first.
 *
 * ts_grad_scaler_update() follows the rule of torch.amp.GradScaler: after a step with a gradient
 * that is not finite it multiplies the scale by backoff_factor, but not below the smallest normal
 * f32; after growth_interval updates in a row without such a gradient it multiplies the scale by
 * growth_factor, unless the scale would not be finite in f32. The scale and the result of the check
 * stay on the device, so a step does not wait for the device. Functions that return numbers of the
 * scaler wait for the device.
 *
 * Only one thread at a time may use a scaler. After the first steps, calls of a scaler do not call
 * the system allocator.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_NN_AMP_H
#define TESSERA_NN_AMP_H

#include "optimizer.h"

TS_BEGIN_DECLS

/** Holds the scale, its rule, and the number of skipped steps. */
typedef struct ts_grad_scaler ts_grad_scaler;

/** Options of ts_grad_scaler_new(); 0 means the default, which is in brackets. */
typedef struct ts_grad_scaler_opts {
    size_t size;             /**< sizeof(ts_grad_scaler_opts) */
    double init_scale;       /**< a normal positive number of f32 [65536] */
    double growth_factor;    /**< > 1 [2] */
    double backoff_factor;   /**< in (0, 1) [0.5] */
    int64_t growth_interval; /**< steps, 1 to 2^24 [2000] */
    bool disabled;           /**< neither scale nor skip, so that a program can keep its calls of
                                  the scaler when it trains in bf16 or f32 */
} ts_grad_scaler_opts;

/** Makes a scaler; opts may be NULL. Owned by the caller; NULL with TS_ERR_VALUE or
 *  TS_ERR_MEMORY. */
TS_API ts_grad_scaler *ts_grad_scaler_new(const ts_grad_scaler_opts *opts);
/** Frees a scaler. NULL-safe. */
TS_API void ts_grad_scaler_free(ts_grad_scaler *s);

/** Returns loss times the scale, in f64 for an f64 loss, else in f32, in the innermost scope; loss
 *  itself if disabled. NULL with TS_ERR_NULL or an error of the ops. */
TS_API ts_tensor *ts_grad_scaler_scale(ts_grad_scaler *s, ts_tensor *loss);
/**
 * Divides the gradients of o's parameters by the scale, in place, and records whether all are
 * finite. Only needed to look at gradients before the step; call it at most once per optimizer
 * between two updates. Does nothing if disabled.
 * Errors: TS_ERR_STATE for a second call, or a call after the step, before the update; TS_ERR_DTYPE
 * for f16 parameters with a gradient, which would become 0 (ts_grad_scaler_step() accepts them);
 * TS_ERR_NULL, TS_ERR_MEMORY, and those of ts_unscale_by_().
 */
TS_API ts_status ts_grad_scaler_unscale(ts_grad_scaler *s, ts_optimizer *o);
/** Steps o. If ts_grad_scaler_unscale() did not divide the gradients, the step divides them as it
 *  reads them, without writing them. If o clips, the norm is that of the divided gradients. The
 *  device skips the step if a gradient is not finite; without ts_grad_scaler_unscale() also if the
 *  norm of all gradients is not finite in f32 (f64 if a gradient is f64). If disabled, the same as
 *  ts_optimizer_step(). Errors: TS_ERR_STATE for a second step before an update, TS_ERR_DEVICE for
 *  gradients on several devices, and those of ts_optimizer_step(). */
TS_API ts_status ts_grad_scaler_step(ts_grad_scaler *s, ts_optimizer *o);
/** Adapts the scale to the steps and ts_grad_scaler_unscale() calls since the last update.
 *  TS_ERR_STATE if there were none. Does nothing if disabled. */
TS_API ts_status ts_grad_scaler_update(ts_grad_scaler *s);

/** The current scale; waits for the device. 1 if disabled or NULL. */
TS_API double ts_grad_scaler_get_scale(const ts_grad_scaler *s);
/** Number of steps skipped so far; waits for the device. 0 for NULL. */
TS_API int64_t ts_grad_scaler_skipped(const ts_grad_scaler *s);

/** Writes at most `capacity` of the scaler's numbers to out, for checkpoints; out may be NULL.
 * Returns how many the scaler has; 0 for NULL. Waits for the device. */
TS_API int64_t ts_grad_scaler_numbers(const ts_grad_scaler *s, ts_named_number *out,
                                      int64_t capacity);
/** Sets a number by its name. Errors: TS_ERR_INDEX for an unknown name, TS_ERR_VALUE for an invalid
 *  value, TS_ERR_NULL. */
TS_API ts_status ts_grad_scaler_set_number(ts_grad_scaler *s, const char *name, double value);

TS_END_DECLS
#endif
