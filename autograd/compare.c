/** @file compare.c  Gradient rules of where and masked_fill. Comparisons have no gradient. */
// SPDX-License-Identifier: MIT
#include "autograd/rule.h"

RULES(where, (1, READS(0), ts_where_scalar(ARG(0), g, 0)),
      (2, READS(0), ts_masked_fill_scalar(g, ARG(0), 0)))
RULES(masked_fill, (0, READS(1), ts_masked_fill_scalar(g, ARG(1), 0)),
      (2, READS(1), ts_where_scalar(ARG(1), g, 0)))
