/**
 * @file ops.h  All operators: the generated functions, and the handwritten ones with options or
 * several results.
 *
 * Each family lists the errors of its own checks. Every operator may also return TS_ERR_NULL (NULL,
 * or TS_NONE where a tensor is required), TS_ERR_STATE (a released tensor), TS_ERR_DEVICE (tensors
 * on different devices, or a lost device), TS_ERR_UNSUPPORTED (no kernel) and TS_ERR_MEMORY. An
 * in-place or _out form also returns TS_ERR_DTYPE or TS_ERR_SHAPE if the written tensor does not
 * fit the result, TS_ERR_VALUE if it is expanded or overlaps an argument in memory, and, outside of
 * TS_NO_GRAD, TS_ERR_AUTOGRAD for a write to a leaf that requires grad, for another write that
 * autograd would have to record but cannot (such as one through a view), and for an _out form with
 * an argument that requires grad. On CUDA, an error that depends on values, such as an index out of
 * range, is returned by the next call that waits for the device (docs/cuda.md).
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_H
#define TESSERA_OPS_H

#include "ops/attention.h"
#include "ops/batch_norm.h"
#include "ops/convolution.h"
#include "ops/copy.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/optim.h"
#include "ops/pool.h"
#include "ops/random.h"
#include "ops/resample.h"
#include "ops/slice.h"
#include "ops/view.h"

#include "ops/generated.h"

#endif
