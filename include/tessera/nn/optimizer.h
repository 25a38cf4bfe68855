/**
 * @file optimizer.h
 * SGD, Adam and AdamW over groups of parameters, learning-rate schedules, clipping.
 *
 * A step is one op call for all parameters of a group that have a gradient; the others, and their
 * count of steps, stay unchanged. Parameters are f64, f32, bf16 or f16. In steady state a step
 * calls no system allocator. An optimizer belongs to one thread at a time.
 *
 * For a bf16 or f16 parameter the optimizer holds an f32 copy, made when the parameter is
 * added: steps update that copy and the f32 state beside it, then round it into the parameter,
 * so that steps smaller than the parameter's last bit add up. Values written to such a parameter
 * later are overwritten.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_NN_OPTIMIZER_H
#define TESSERA_NN_OPTIMIZER_H

#include "module.h"

TS_BEGIN_DECLS

typedef struct ts_optimizer ts_optimizer;

typedef enum ts_optimizer_kind { TS_SGD, TS_ADAM, TS_ADAMW } ts_optimizer_kind;

/** Numbers of a group; may be changed between steps. Formulas: ops/optim.h. They begin as
 *  ts_optimizer_defaults(), which sets the size too. */
typedef struct ts_group_opts {
    size_t size; /**< sizeof(ts_group_opts) */
    double lr;
    double weight_decay; /**< in the gradient for SGD and Adam, decoupled for AdamW */
    double momentum;     /**< SGD; a group that starts with 0 has no buffers and keeps 0 */
    double dampening;    /**< SGD */
    bool nesterov;       /**< SGD */
    double beta1, beta2, eps; /**< Adam, AdamW */
} ts_group_opts;

/** PyTorch's defaults with this learning rate: betas 0.9, 0.999, eps 1e-8;
 * weight decay 0.01 for AdamW. */
TS_API ts_group_opts ts_optimizer_defaults(ts_optimizer_kind kind, double lr);

/** An optimizer without groups. */
TS_API ts_optimizer *ts_optimizer_new(ts_optimizer_kind kind);
/** An optimizer with one group, the parameters of m. */
TS_API ts_optimizer *ts_optimizer_for(ts_module *m, ts_optimizer_kind kind,
                                      const ts_group_opts *opts);
/** Releases parameters and state. NULL-safe. */
TS_API void ts_optimizer_free(ts_optimizer *o);

/**
 * Adds a group and makes its state.
 * @param names   names of the parameters, for the names of their state; distinct over all groups
 * @param params  n leaves that require grad, none in another group; held by reference
 * Errors: TS_ERR_VALUE, TS_ERR_MEMORY; the optimizer is as before.
 */
TS_API ts_status ts_optimizer_add_group(ts_optimizer *o, const char *const *names,
                                        ts_tensor *const *params, int64_t n,
                                        const ts_group_opts *opts);
/** Number of groups. */
TS_API int ts_optimizer_num_groups(const ts_optimizer *o);
/** Numbers of group `index`, to be read and changed; NULL when out of range.
 * Valid until a group is added. */
TS_API ts_group_opts *ts_optimizer_group(ts_optimizer *o, int index);
/** Parameters of all groups, borrowed, with their number; valid until a group is added. */
TS_API ts_tensor *const *ts_optimizer_params(const ts_optimizer *o, int64_t *n);

/**
 * Clips in each later step: the rule multiplies every gradient by min(1, max_norm / (norm + 1e-6)),
 * where norm is that of all gradients of all groups, which must be on one device. The gradients
 * themselves are not written, unlike with ts_clip_grad_norm(); the host does not wait. A norm that
 * is not finite makes the parameters not finite. The factor is f32, also for f64 gradients. It is
 * not part of the optimizer's state.
 * @param max_norm  finite and >= 0; 0, the default: no clipping
 * Errors: TS_ERR_VALUE, TS_ERR_NULL; the step's: TS_ERR_DEVICE, before it writes.
 */
TS_API ts_status ts_optimizer_set_max_norm(ts_optimizer *o, double max_norm);

/** Updates the parameters by their gradients, which are only read. */
TS_API ts_status ts_optimizer_step(ts_optimizer *o);
/** Removes the gradients; the next ones are stored without a sum. */
TS_API void ts_optimizer_zero_grad(ts_optimizer *o);

/* ------------------------------------------------------------------------- checkpoints ---- */

/**
 * Returns the state as named tensors: "exp_avg.NAME" and "exp_avg_sq.NAME" or
 * "momentum_buffer.NAME", "master.NAME" for bf16 and f16 parameters, and "steps", (n) i64, the
 * number of steps of each parameter. "steps" is a copy; the others are the state's own tensors.
 */
TS_API ts_status ts_optimizer_state(const ts_optimizer *o, ts_named_tensors *list);
/** Copies the values of a state of ts_optimizer_state() into the optimizer. Names and sizes must
 *  match exactly; on TS_ERR_VALUE nothing changes. */
TS_API ts_status ts_optimizer_load_state(ts_optimizer *o, const char *const *names,
                                         ts_tensor *const *tensors, int64_t n);

/** A number of a group under a name such as "groups.0.lr". */
typedef struct ts_named_number {
    char name[48];
    double value;
} ts_named_number;
/** Writes at most `room` numbers of the groups (initial_lr included) to out;
 * returns how many there are. */
TS_API int64_t ts_optimizer_numbers(const ts_optimizer *o, ts_named_number *out, int64_t room);
/** Sets a number by such a name; TS_ERR_INDEX for an unknown one. */
TS_API ts_status ts_optimizer_set_number(ts_optimizer *o, const char *name, double value);

/* ----------------------------------------------------------------------------- clipping ---- */

/**
 * Scales the gradients of params in place so that their common 2-norm is at most max_norm. As in
 * PyTorch, a norm that is not finite makes all gradients NaN or 0. To clip without writing the
 * gradients, use ts_optimizer_set_max_norm().
 * @param norm  receives the norm before scaling, 0-dim, in the caller's scope; may be NULL
 */
TS_API ts_status ts_clip_grad_norm(ts_tensor *const *params, int64_t n, double max_norm,
                                   ts_tensor **norm);

/* ---------------------------------------------------------------------------- schedules ---- */

typedef enum ts_schedule_kind {
    TS_SCHEDULE_CONSTANT, /**< 1 */
    TS_SCHEDULE_LINEAR,   /**< linear from 1 to final_ratio, from warmup_steps to total_steps */
    TS_SCHEDULE_COSINE,   /**< half a cosine from 1 to final_ratio, over the same steps */
    TS_SCHEDULE_WSD       /**< warmup-stable-decay: 1, then linear to final_ratio over the last
                               decay_steps */
} ts_schedule_kind;

/** The learning rate as a factor of the initial learning rate; a function of the step only. */
typedef struct ts_schedule {
    ts_schedule_kind kind;
    int64_t warmup_steps; /**< step s < warmup_steps gives (s + 1) / (warmup_steps + 1),
                               for any kind */
    int64_t total_steps;  /**< the step from which on the factor is final_ratio */
    int64_t decay_steps;  /**< WSD: length of the decay */
    double final_ratio;
} ts_schedule;

/** The factor at step 0, 1, ...; NAN for a NULL or unknown schedule. */
TS_API double ts_schedule_at(const ts_schedule *schedule, int64_t step);
/** Sets each group's lr to its initial lr times the factor. */
TS_API ts_status ts_schedule_apply(const ts_schedule *schedule, ts_optimizer *o, int64_t step);

TS_END_DECLS
#endif
