/** @file ops.h  All operator families. */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_H
#define TESSERA_OPS_H

#include "ops/cat.h"
#include "ops/copy.h"
#include "ops/factory.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/slice.h"
#include "ops/view.h"

#endif
