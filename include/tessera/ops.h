/**
 * @file ops.h  All operators: the generated functions, and the handwritten ones with options or
 * several results.
 *
 * The headers of ops/, and the sections of ops/generated.h, list the errors of their own checks.
 * Every operator may also return:
 *
 * - TS_ERR_NULL: an argument is NULL, or is TS_NONE where a tensor is required
 * - TS_ERR_STATE: a tensor was released
 * - TS_ERR_DEVICE: tensors are on different devices, or the device is lost
 * - TS_ERR_UNSUPPORTED: no kernel
 * - TS_ERR_MEMORY
 *
 * An in-place or _out form may also return:
 *
 * - TS_ERR_DTYPE, TS_ERR_SHAPE: the written tensor does not fit the result
 * - TS_ERR_VALUE: the written tensor is expanded or overlaps an argument in memory
 * - TS_ERR_AUTOGRAD, outside of TS_NO_GRAD: the written tensor is a leaf that requires grad;
 *   autograd would have to record the write but cannot, such as a write through a view; or an
 *   argument of an _out form requires grad
 *
 * On CUDA, an error that depends on values, such as an index out of range, is returned by the next
 * call that waits for the device (docs/cuda.md).
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
