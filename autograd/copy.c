/** @file copy.c  Gradient rules of copies and conversions. */
// SPDX-License-Identifier: MIT
#include "autograd/rule.h"

/* The rule of ops that only broadcast or convert; ts_rule_give() undoes both. */
VIEW_RULE(copy, g)
RULE(to_device, 0,
     ts_same_device(g->device, ts_rule_arg_meta(b, 0).device)
         ? g
         : ts_to_device(g, ts_rule_arg_meta(b, 0).device))
