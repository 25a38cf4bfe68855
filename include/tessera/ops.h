/** @file ops.h  All operators: the generated functions, and the handwritten ones with options or
 *  several results. */
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
