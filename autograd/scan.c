/** @file scan.c  Gradient rule of cumulative sums: the reversed cumulative sum of the gradient. */
// SPDX-License-Identifier: MIT
#include "autograd/rule.h"

RULE(cumsum, 0, INT(2) ? ts_cumsum(g, DIM(1)) : ts_cumsum_reversed(g, DIM(1)))
