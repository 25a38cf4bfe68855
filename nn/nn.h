/** @file nn.h  Declarations shared by the files of this room. */
// SPDX-License-Identifier: MIT
#ifndef TS_NN_NN_H
#define TS_NN_NN_H

#include "tessera/tessera.h"

/** Zeroed memory; NULL with TS_ERR_MEMORY. */
void *ts_nn_alloc(int64_t count, size_t item, const char *what);
/** True in the list of n tensors. */
bool ts_nn_contains(ts_tensor *const *list, int64_t n, const ts_tensor *t);
bool ts_nn_same_sizes(const ts_tensor *a, const ts_tensor *b);

/** Adds the member "dropout" if p is not 0, and stores it in *dropout. */
ts_status ts_nn_add_dropout(ts_module *m, double p, ts_module **dropout);

/** Learning rate that a group began with. */
double ts_nn_initial_lr(const ts_optimizer *o, int group);
/** Norm of all gradients of an optimizer together, as ts_global_norm(); in the caller's scope. */
ts_tensor *ts_nn_grad_norm(ts_optimizer *o);
/**
 * A step without a host sync. The tensors are 0-dim, on the parameters' device, and may be NULL.
 * @param norm  norm of the gradients times factor, for clipping; NULL: computed if needed, without
 *              factor
 * @param factor  f32: multiplies gradients as they are read, before clipping
 * @param found   f32: if not 0, the device skips the step and does not count it
 */
ts_status ts_nn_step(ts_optimizer *o, ts_tensor *norm, ts_tensor *factor, ts_tensor *found);

#endif
