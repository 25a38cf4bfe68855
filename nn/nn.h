/** @file nn.h  What the files of this room share. */
// SPDX-License-Identifier: MIT
#ifndef TS_NN_NN_H
#define TS_NN_NN_H

#include "tessera/tessera.h"

/** A NULL argument: what failed before is left alone, else it is a failure of its own. */
ts_status ts_nn_null(const char *function, const char *argument);
/** Zeroed memory; NULL with TS_ERR_MEMORY. */
void *ts_nn_alloc(int64_t count, size_t item, const char *what);
/** True in the list of n tensors. */
bool ts_nn_contains(ts_tensor *const *list, int64_t n, const ts_tensor *t);

/** Learning rate that a group began with. */
double ts_nn_initial_lr(const ts_optimizer *o, int group);
/** A step that the device leaves out unless the one element of `found` (f32) is 0; the host does not wait. Steps left
 *  out do not count. */
ts_status ts_nn_step_unless(ts_optimizer *o, ts_tensor *found);

#endif
