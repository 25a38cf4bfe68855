/** @file optimizer.h  An optimizer's parameter groups and state, for the step (optimizer.c) and for
 *  checkpoints (optimizer_state.c). */
// SPDX-License-Identifier: MIT
#ifndef TS_NN_OPTIMIZER_H
#define TS_NN_OPTIMIZER_H

#include "nn/nn.h"

/** Most states of a parameter, and the index in ts_nn_record.states of the f32 values that a bf16
 *  or f16 parameter has (master weights). */
enum { TS_NN_STATES = 3, TS_NN_MASTER = 2 };

/** A parameter and its state. */
typedef struct ts_nn_record {
    ts_tensor *param; /* owned reference */
    char *name;
    /* exp_avg and exp_avg_sq, or a momentum buffer; for a bf16 or f16 parameter also its f32
     * values. Owned, or NULL */
    ts_tensor *states[TS_NN_STATES];
    int64_t steps;
} ts_nn_record;

typedef struct ts_nn_group {
    ts_group_opts opts;
    double initial_lr;
    int64_t first, n; /* its parameters: params[first .. first + n) of the optimizer */
    ts_nn_record *records;  /* n */
    ts_tensor *skipped; /* (n) f32 on the parameters' device: per parameter, the steps that count in
                           `steps` but were skipped on the device; NULL: none */
} ts_nn_group;

/** Scratch of a step: the lists of the op that steps a group, one entry per parameter. first and
 *  second: states[0] and states[1] of the records. */
typedef struct ts_nn_step_lists {
    ts_tensor **values, **grads, **first, **second, **skipped;
    int64_t *steps, **counts; /* counts: addresses of the `steps` of the records */
} ts_nn_step_lists;

/* params and lists share one allocation, which starts with params. */
struct ts_optimizer {
    ts_optimizer_kind kind;
    double max_norm; /* 0: no clipping */
    ts_nn_group *groups;
    int ngroups;
    int64_t n;
    ts_tensor **params; /* n: the parameters of all groups, in order; borrowed from the records */
    ts_nn_step_lists lists;
};

/** Writes the number of steps of each parameter that were not skipped to steps[0..o->n). Waits for
 *  devices that count skipped steps. */
ts_status ts_nn_count_steps(const ts_optimizer *o, int64_t *steps);
/** Sets the number of steps of each parameter, and releases the counts of skipped steps. */
void ts_nn_set_steps(ts_optimizer *o, const int64_t *steps);

#endif
