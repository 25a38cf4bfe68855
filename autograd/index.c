/** @file index.c  Gradient rules of reads by index, which are additions at the index, and of writes
 *  by index, which are reads. */
// SPDX-License-Identifier: MIT
#include "autograd/rule.h"

#include <string.h>

#define ZEROS ts_rule_zeros(ts_rule_arg_meta(b, 0))

RULE(embedding, READS(1), ts_embedding_backward(g, ARG(1), ts_rule_arg_meta(b, 0).sizes[0], INT(2)))

/** The gradient of grad of embedding_backward: the rows of gg at the indices, with 0 for the
 *  padding row. gg: gradient of the result, which has the weight's sizes. */
static ts_tensor *rows(ts_vjp_call *b, ts_tensor *gg)
{
    int64_t padding = INT(3);
    if (padding >= 0) {
        ts_tensor *zeros = ts_zeros_like(ts_slice(gg, 0, padding, padding + 1, 1));
        gg = ts_slice_scatter(gg, zeros, 0, padding, padding + 1, 1);
    }
    return ts_embedding(gg, ARG(1), -1);
}
RULE(embedding_backward, READS(1), rows(b, g))

RULE(index_select, READS(2), ts_index_add_(ZEROS, DIM(1), ARG(2), g))
RULES(index_add, (0, 0, g), (3, READS(2), ts_index_select(g, DIM(1), ARG(2))))
RULE(gather, READS(2), ts_scatter_add_(ZEROS, DIM(1), ARG(2), g))

/** The elements of g at the written positions, in src's sizes; src may be larger than index. */
static ts_tensor *read_back(ts_vjp_call *b, ts_tensor *g)
{
    ts_meta m = ts_rule_arg_meta(b, 3);
    ts_tensor *part = ts_gather(g, DIM(1), ARG(2));
    for (int d = 0; part && d < m.ndim; d++) {
        int64_t sizes[TS_MAX_DIMS], n = part->sizes[d];
        if (n == m.sizes[d])
            continue;
        memcpy(sizes, part->sizes, sizeof sizes);
        sizes[d] = m.sizes[d];
        part = ts_slice_backward(part, sizes, m.ndim, d, 0, n, 1);
    }
    return part;
}
RULES(scatter, (0, READS(2), ts_scatter_value(g, DIM(1), ARG(2), 0)),
      (3, READS(2), read_back(b, g)))
RULES(scatter_add, (0, 0, g), (3, READS(2), read_back(b, g)))
