/**
 * @file optimizer.h
 * SGD, Adam and AdamW over groups of parameters, learning-rate schedules, clipping.
 *
 * A step calls the update rule once per group, for all of its parameters that have a gradient.
 * Parameters without a gradient, and their step counts, stay unchanged. Parameters are f64, f32,
 * bf16 or f16. After the first steps a step calls no system allocator. Only one thread at a time
 * may use an optimizer.
 *
 * For each bf16 or f16 parameter the optimizer holds an f32 master copy, made when the parameter is
 * added. A step updates the master copy and its f32 state and rounds the copy into the parameter,
 * so updates that are smaller than the parameter's last bit add up. The next step in which such a
 * parameter has a gradient overwrites values that the program wrote to the parameter.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_NN_OPTIMIZER_H
#define TESSERA_NN_OPTIMIZER_H

#include "module.h"

TS_BEGIN_DECLS

/** Groups of parameters with their state and hyperparameters. */
typedef struct ts_optimizer ts_optimizer;

/** The update rule of an optimizer. */
typedef enum ts_optimizer_kind { TS_SGD, TS_ADAM, TS_ADAMW } ts_optimizer_kind;

/** Hyperparameters of a group; may be changed between steps. ops/optim.h has the formulas and
 *  ranges. Start from ts_optimizer_defaults(), which also sets the size: here zero is not the
 *  default. */
typedef struct ts_group_opts {
    size_t size; /**< sizeof(ts_group_opts) */
    double lr;           /**< learning rate */
    double weight_decay; /**< SGD, Adam: weight_decay * parameter is added to the gradient; AdamW:
                              decoupled, it scales the parameter itself */
    double momentum;     /**< SGD. A group that was added with momentum 0 has no momentum buffers;
                              if momentum is not 0 later, a step fails with TS_ERR_NULL */
    double dampening;    /**< SGD */
    bool nesterov;       /**< SGD */
    double beta1, beta2, eps; /**< Adam, AdamW */
} ts_group_opts;

/** PyTorch's defaults with this learning rate: for Adam and AdamW betas 0.9, 0.999 and eps 1e-8;
 *  for AdamW weight decay 0.01; all other numbers 0. */
TS_API ts_group_opts ts_optimizer_defaults(ts_optimizer_kind kind, double lr);

/** Makes an optimizer without groups. Owned by the caller; NULL with TS_ERR_VALUE or
 *  TS_ERR_MEMORY. */
TS_API ts_optimizer *ts_optimizer_new(ts_optimizer_kind kind);
/** Makes an optimizer with one group, which contains all parameters of m; each must require grad.
 *  To leave out frozen parameters, use ts_optimizer_add_group_where(). Owned by the caller; NULL
 *  with an error of ts_optimizer_new() or ts_optimizer_add_group(). */
TS_API ts_optimizer *ts_optimizer_for(ts_module *m, ts_optimizer_kind kind,
                                      const ts_group_opts *opts);
/** Frees an optimizer with its state and releases the parameters. NULL-safe. */
TS_API void ts_optimizer_free(ts_optimizer *o);

/**
 * Adds a group and makes its state.
 * @param names   n names, copied, from which ts_optimizer_state() makes the names of the state;
 *                distinct over all groups, 1 to 4,095 printable ASCII characters without blanks,
 *                not "__metadata__"
 * @param params  n leaves that require grad, none in another group; the optimizer keeps references
 * @param n       0 adds an empty group
 * @param opts    copied; must not be NULL
 * Errors: TS_ERR_VALUE, TS_ERR_NULL, TS_ERR_STATE (released), TS_ERR_MEMORY; the optimizer is then
 * unchanged.
 */
TS_API ts_status ts_optimizer_add_group(ts_optimizer *o, const char *const *names,
                                        ts_tensor *const *params, int64_t n,
                                        const ts_group_opts *opts);
/** Returns true to select a parameter, given its dotted name. */
typedef bool (*ts_parameter_filter)(void *ctx, const char *name, ts_tensor *parameter);
/** Adds a group of the parameters of m that are in no group yet and that `wanted` selects, such as
 *  all weights but not the biases. The group may be empty. `wanted` must not select a parameter
 *  that does not require grad. Errors as ts_optimizer_add_group().
 *  @param wanted  called with ctx; NULL: selects all */
TS_API ts_status ts_optimizer_add_group_where(ts_optimizer *o, const ts_module *m,
                                              ts_parameter_filter wanted, void *ctx,
                                              const ts_group_opts *opts);
/** Number of groups; 0 for NULL. */
TS_API int ts_optimizer_num_groups(const ts_optimizer *o);
/** Hyperparameters of group `index`, which the caller may read and change; NULL when out of range.
 *  The pointer is valid until a group is added. */
TS_API ts_group_opts *ts_optimizer_group(ts_optimizer *o, int index);
/** Parameters of all groups, borrowed; valid until a group is added. *n, unless n is NULL, receives
 *  their number. */
TS_API ts_tensor *const *ts_optimizer_params(const ts_optimizer *o, int64_t *n);

/**
 * Makes later steps clip: the update rule multiplies every gradient by the factor
 * min(1, max_norm / (norm + 1e-6)), where norm is the 2-norm of all gradients of all groups. The
 * gradients must be on one device, else a step fails with TS_ERR_DEVICE before it writes. Unlike
 * ts_clip_grad_norm(), this does not write the gradients. The host does not wait. If the norm is
 * not finite, each clipped gradient is NaN or 0. The factor is f32 even for f64 gradients. max_norm
 * is not part of the optimizer's state.
 * @param max_norm  finite and >= 0; 0, the initial value: no clipping
 * Errors: TS_ERR_VALUE, TS_ERR_NULL.
 */
TS_API ts_status ts_optimizer_set_max_norm(ts_optimizer *o, double max_norm);

/** Updates the parameters and the state by the gradients; does not write the gradients. Waits for a
 *  device on which ts_grad_scaler_step() counts skipped steps. Errors: TS_ERR_NULL, TS_ERR_MEMORY,
 *  those of ts_sgd_() or ts_adamw_() (ops/optim.h), and those of the wait. If the update of a group
 *  fails, the groups before it are already updated. */
TS_API ts_status ts_optimizer_step(ts_optimizer *o);
/** Removes the gradients of all parameters, so that the next backward stores its gradients without
 *  an addition. NULL-safe. */
TS_API void ts_optimizer_zero_grad(ts_optimizer *o);

/* ------------------------------------------------------------------------- checkpoints ---- */

/**
 * Writes the state as named tensors to *list: "exp_avg.NAME" and "exp_avg_sq.NAME" (Adam, AdamW) or
 * "momentum_buffer.NAME" (SGD with momentum), "master.NAME" for bf16 and f16 parameters, and
 * "steps", (n) i64, the number of steps of each of the n parameters of all groups. "steps" is a
 * copy; the others are the state's own tensors. Waits for a device on which ts_grad_scaler_step()
 * counts skipped steps. Errors: TS_ERR_NULL, TS_ERR_MEMORY, and those of the wait.
 */
TS_API ts_status ts_optimizer_state(const ts_optimizer *o, ts_named_tensors *list);
/** Copies a state of ts_optimizer_state() into the optimizer. Names, sizes and dtypes must match
 *  exactly, else TS_ERR_VALUE, and nothing changes. Other errors: those of ts_optimizer_state() and
 *  of ts_copy_(). */
TS_API ts_status ts_optimizer_load_state(ts_optimizer *o, const char *const *names,
                                         ts_tensor *const *tensors, int64_t n);

/** A number of a group under a name such as "groups.0.lr". */
typedef struct ts_named_number {
    char name[48];
    double value;
} ts_named_number;
/** Writes the hyperparameters of all groups except `nesterov`, and for each group "initial_lr", the
 *  lr with which it was added: at most `capacity` numbers, to out, which may be NULL. Returns how
 *  many numbers there are in total; 0 for NULL. */
TS_API int64_t ts_optimizer_numbers(const ts_optimizer *o, ts_named_number *out, int64_t capacity);
/** Sets a number by its name; the next step checks the value. TS_ERR_INDEX for an unknown name,
 *  TS_ERR_NULL. */
TS_API ts_status ts_optimizer_set_number(ts_optimizer *o, const char *name, double value);

/* ----------------------------------------------------------------------------- clipping ---- */

/**
 * Scales the gradients of params in place so that their common 2-norm is at most max_norm. As in
 * PyTorch, a norm that is not finite makes all gradients NaN or 0. To clip without writing the
 * gradients, use ts_optimizer_set_max_norm().
 * @param params  n tensors; those without a gradient are skipped
 * @param norm    receives the norm before scaling, 0-dim, in the caller's scope; may be NULL
 * Errors: those of ts_global_norm() and ts_clip_norm_() (ops/optim.h).
 */
TS_API ts_status ts_clip_grad_norm(ts_tensor *const *params, int64_t n, double max_norm,
                                   ts_tensor **norm);

/* ---------------------------------------------------------------------------- schedules ---- */

/** The factor of the learning rate after the warmup. */
typedef enum ts_schedule_kind {
    TS_SCHEDULE_CONSTANT, /**< always 1 */
    TS_SCHEDULE_LINEAR,   /**< linear from 1 at warmup_steps to final_ratio at total_steps */
    TS_SCHEDULE_COSINE,   /**< half a cosine from 1 at warmup_steps to final_ratio at total_steps */
    TS_SCHEDULE_WSD       /**< warmup-stable-decay: 1, then linear to final_ratio over the last
                               decay_steps before total_steps */
} ts_schedule_kind;

/** A learning-rate schedule: the factor of the initial learning rate as a function of the step. */
typedef struct ts_schedule {
    ts_schedule_kind kind;
    int64_t warmup_steps; /**< steps with a rising factor: (s + 1) / (warmup_steps + 1) at step s,
                               for every kind */
    int64_t total_steps;  /**< the first step with the factor final_ratio; CONSTANT ignores it */
    int64_t decay_steps;  /**< WSD: number of steps of the decay */
    double final_ratio;   /**< last factor; CONSTANT ignores it */
} ts_schedule;

/** The factor at step 0, 1, ...; a negative step counts as 0. NAN for NULL and, after the warmup,
 *  for an unknown kind. */
TS_API double ts_schedule_at(const ts_schedule *schedule, int64_t step);
/** Sets each group's lr to its initial lr (with which the group was added) times the factor at
 *  `step`. TS_ERR_VALUE if the factor is negative or NaN; TS_ERR_NULL. */
TS_API ts_status ts_schedule_apply(const ts_schedule *schedule, ts_optimizer *o, int64_t step);

TS_END_DECLS
#endif
