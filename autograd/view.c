/** @file view.c  Gradient rules of views. */
// SPDX-License-Identifier: MIT
#include "autograd/rule.h"

#include <string.h>

/** reshape is also the rule of other views that keep the order of the elements. */
VIEW_RULE(reshape, ts_reshape(g, SIZES(0)))
VIEW_RULE(transpose, ts_transpose(g, DIM(1), DIM(2)))

static ts_tensor *permute_back(ts_tensor *g, const ts_value *dims)
{
    int n = (int)dims->count;
    int64_t back[TS_MAX_DIMS];
    for (int i = 0; i < n; i++)
        back[dims->ints[i] < 0 ? dims->ints[i] + n : dims->ints[i]] = i;
    return ts_permute(g, back, n);
}
VIEW_RULE(permute, permute_back(g, ts_rule_arg(b, 1)))

/* ------------------------------------------------------------------------- any strides ---- */

/** Positions of a tensor's elements in its storage; strides and offset in elements. */
typedef struct layout {
    int64_t strides[TS_MAX_DIMS], offset;
    const int64_t *sizes;
    int ndim;
} layout;

/** Widens the range of positions [*low, *end) so that it contains all elements. */
static void enclose(const layout *p, int64_t *low, int64_t *end)
{
    int64_t last = p->offset;
    for (int d = 0; d < p->ndim; d++) {
        if (p->sizes[d] == 0)
            return;
        last += (p->sizes[d] - 1) * p->strides[d];
    }
    *low = p->offset < *low ? p->offset : *low;
    *end = last >= *end ? last + 1 : *end;
}

/** The positions of all elements in row-major order, as an i64 tensor of sizes (numel). */
static ts_tensor *layout_indices(const layout *p, ts_device device)
{
    ts_meta one = ts_meta_of(NULL, TS_I64, device, 0, 1);
    ts_tensor *index = ts_rule_full(one, ts_value_int(p->offset));
    for (int d = 0; index && d < p->ndim; d++) {
        ts_tensor *steps = ts_to_device(ts_arange(0, p->sizes[d], 1, TS_I64), device);
        index = ts_add(ts_unsqueeze(index, -1), ts_mul_scalar(steps, p->strides[d]));
    }
    return ts_reshape(index, (int64_t[]){-1}, 1);
}

/** Adds the elements of src to n zeros of like's dtype and device, at the positions p. Elements at
 *  equal positions are summed. */
static ts_tensor *add_at(const layout *p, ts_tensor *src, int64_t n, ts_meta like)
{
    ts_tensor *index = layout_indices(p, like.device);
    like.sizes = &n;
    like.ndim = 1;
    return ts_index_add_(ts_rule_zeros(like), 0, index, ts_reshape(src, (int64_t[]){-1}, 1));
}

/**
 * Sums the gradient over expanded dims of the result. If the argument is contiguous, and the
 * result's positions without those dims are distinct and inside the argument, the sum is given as
 * the gradient of a part of the argument. Otherwise it is added to a buffer with the layout of the
 * storage, at the positions of the result's elements. Each element of the argument then gets the
 * value at its position, divided by the number of the argument's elements at that position.
 */
static ts_status as_strided(ts_vjp_call *b)
{
    ts_meta m = ts_rule_arg_meta(b, 0);
    const ts_value *strides = ts_rule_arg(b, 2);
    layout arg = {.sizes = m.sizes, .ndim = m.ndim};
    ts_positions part = {.offset = INT(3)};
    TS_TRY(ts_rule_saved_layout(b, 0, arg.strides, &arg.offset));
    for (uint32_t d = 0; d < strides->count; d++)
        part.strides[d] = strides->ints[d];
    ts_tensor *g = ts_positions_sum_expanded(GRAD(0), part.strides);
    TS_TRY(g);
    layout res = {.offset = part.offset, .sizes = g->sizes, .ndim = g->ndim};
    memcpy(res.strides, part.strides, sizeof res.strides);
    bool distinct = ts_positions_distinct(g->sizes, res.strides, g->ndim);
    int64_t low = INT64_MAX, end = 0;
    enclose(&arg, &low, &end);
    int64_t arg_end = end;
    enclose(&res, &low, &end);
    if (distinct && ts_strides_contiguous(m.sizes, arg.strides, m.ndim) && low == arg.offset &&
        end == arg_end) {
        part.offset -= arg.offset;
        return ts_rule_give_positions(b, g, &part);
    }
    if (low >= end)
        return ts_rule_give(b, 0, ts_rule_zeros(m)); /* neither has elements */
    arg.offset = m.numel ? arg.offset - low : 0;
    part.offset = res.offset = g->numel ? res.offset - low : 0;
    ts_tensor *sum = distinct ? ts_rule_spread(g, &part, end - low) : add_at(&res, g, end - low, m);
    if (!ts_positions_distinct(m.sizes, arg.strides, m.ndim)) {
        ts_tensor *count = add_at(&arg, ts_rule_full(m, ts_value_int(1)), end - low, m);
        sum = ts_div(sum, ts_clamp_min(count, 1));
    }
    ts_tensor *found = ts_as_strided(sum, m.sizes, arg.strides, m.ndim, arg.offset);
    return ts_rule_give(b, 0, ts_contiguous(found));
}
const ts_vjp ts_vjp_as_strided = {.rule = as_strided, .saves = {[0] = READS_X}};
