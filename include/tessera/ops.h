/** @file ops.h  All operator families. */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_H
#define TESSERA_OPS_H

#include "ops/activation.h"
#include "ops/arg.h"
#include "ops/attention.h"
#include "ops/cat.h"
#include "ops/compare.h"
#include "ops/copy.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/loss.h"
#include "ops/mask.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/optim.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/scan.h"
#include "ops/slice.h"
#include "ops/softmax.h"
#include "ops/unary.h"
#include "ops/view.h"

#endif
