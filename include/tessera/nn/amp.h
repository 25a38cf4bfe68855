/**
 * @file amp.h
 * Scaling of gradients for training in f16, whose smallest numbers vanish: the loss is
 * multiplied by a scale, the gradients divided by it as the step reads them, and a step
 * whose gradients overflowed is left out. With bf16, which has f32's range, none of this is
 * needed. Regions: autocast.h.
 *
 *     TS_TRY(ts_backward(ts_grad_scaler_scale(scaler, loss)));
 *     TS_TRY(ts_grad_scaler_step(scaler, opt)); // skipped when a gradient is not finite
 *     TS_TRY(ts_grad_scaler_update(scaler));
 *     ts_optimizer_zero_grad(opt);
 *
 * A step clips by the optimizer's own number, ts_optimizer_set_max_norm().
 * Whoever looks at gradients before the step calls ts_grad_scaler_unscale() first.
 *
 * The rule is that of torch.amp.GradScaler: a step with a gradient that is not finite multiplies
 * the scale by backoff_factor; growth_interval steps without one multiply it by growth_factor,
 * as long as it stays finite in f32. Whether a gradient is finite, the scale and what follows from
 * them stay on the device: a step does not wait for it. What reads a number of the scaler does.
 *
 * A scaler belongs to one thread at a time. In steady state it calls no system allocator.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_NN_AMP_H
#define TESSERA_NN_AMP_H

#include "optimizer.h"

TS_BEGIN_DECLS

typedef struct ts_grad_scaler ts_grad_scaler;

/** Options of ts_grad_scaler_new(); 0 is the default in brackets. */
typedef struct ts_grad_scaler_opts {
    size_t size;             /**< sizeof(ts_grad_scaler_opts) */
    double init_scale;       /**< > 0 [65536] */
    double growth_factor;    /**< > 1 [2] */
    double backoff_factor;   /**< in (0, 1) [0.5] */
    int64_t growth_interval; /**< steps, 1 to 2^24 [2000] */
    bool disabled;           /**< scales nothing, skips nothing: one program for all dtypes */
} ts_grad_scaler_opts;

/** A scaler; opts may be NULL. NULL with TS_ERR_VALUE or TS_ERR_MEMORY. */
TS_API ts_grad_scaler *ts_grad_scaler_new(const ts_grad_scaler_opts *opts);
/** NULL-safe. */
TS_API void ts_grad_scaler_free(ts_grad_scaler *s);

/** loss times the scale, in f32 at least; of the innermost scope. */
TS_API ts_tensor *ts_grad_scaler_scale(ts_grad_scaler *s, ts_tensor *loss);
/**
 * Divides the gradients of o's parameters by the scale, in one call that writes all, and notes
 * whether all are finite. A step does without; this is for those who look at gradients before it.
 * Once per optimizer and update. Errors: TS_ERR_STATE when that is done already, TS_ERR_DTYPE for
 * gradients of f16, which would vanish without their scale (a step takes them).
 */
TS_API ts_status ts_grad_scaler_unscale(ts_grad_scaler *s, ts_optimizer *o);
/** Steps o: by gradients that ts_grad_scaler_unscale() has divided, or else divided by the scale
 *  as they are read and left as they are. Clips if o does, by the norm of what is divided.
 *  The device leaves the step out when a gradient is not finite, of the second kind also when
 *  the norm of all is not, in f32 or, with gradients of f64, in f64. TS_ERR_STATE for a second
 *  step before an update. */
TS_API ts_status ts_grad_scaler_step(ts_grad_scaler *s, ts_optimizer *o);
/** Adapts the scale to what the steps since the last update found.
 * TS_ERR_STATE when there were none. */
TS_API ts_status ts_grad_scaler_update(ts_grad_scaler *s);

/** The present scale, once the device has been waited for; 1 when disabled or NULL. */
TS_API double ts_grad_scaler_get_scale(const ts_grad_scaler *s);
/** Number of steps left out so far, once the device has been waited for. */
TS_API int64_t ts_grad_scaler_skipped(const ts_grad_scaler *s);

/** Writes at most `room` of the scaler's numbers to out, for checkpoints;
 * returns how many there are. */
TS_API int64_t ts_grad_scaler_numbers(const ts_grad_scaler *s, ts_named_number *out, int64_t room);
/** Sets a number by its name; TS_ERR_INDEX for an unknown one, TS_ERR_VALUE for a wrong value. */
TS_API ts_status ts_grad_scaler_set_number(ts_grad_scaler *s, const char *name, double value);

TS_END_DECLS
#endif
