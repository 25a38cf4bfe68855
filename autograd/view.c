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
typedef struct place {
    int64_t strides[TS_MAX_DIMS], offset;
    const int64_t *sizes;
    int ndim;
} place;

/** One more than the last element's position; 0 without elements. */
static int64_t place_end(const place *p)
{
    int64_t last = p->offset;
    for (int d = 0; d < p->ndim; d++) {
        if (p->sizes[d] == 0)
            return 0;
        last += (p->sizes[d] - 1) * p->strides[d];
    }
    return last + 1;
}

/** The positions of all elements in row-major order, as an i64 tensor of sizes (numel). */
static ts_tensor *place_index(const place *p, ts_device device)
{
    ts_meta one = ts_meta_of(NULL, TS_I64, device, 0, 1);
    ts_tensor *index = ts_rule_full(one, ts_value_int(p->offset));
    for (int d = 0; index && d < p->ndim; d++) {
        ts_tensor *steps = ts_to_device(ts_arange(0, p->sizes[d], 1, TS_I64), device);
        index = ts_add(ts_unsqueeze(index, -1), ts_mul_scalar(steps, p->strides[d]));
    }
    return ts_reshape(index, (int64_t[]){-1}, 1);
}

/** A tensor of n zeros with the elements of src added at `index`, with the dtype and device of
 *  `like`. */
static ts_tensor *scatter(ts_tensor *index, ts_tensor *src, int64_t n, ts_meta like)
{
    like.sizes = &n;
    like.ndim = 1;
    return ts_index_add_(ts_rule_zeros(like), 0, index, ts_reshape(src, (int64_t[]){-1}, 1));
}

/**
 * If the argument is contiguous and the result's elements are distinct and within it, the result is
 * a part of the argument. Otherwise the gradient is added into a buffer with the layout of the
 * storage, at the positions of the result's elements. Each element of the argument then gets the
 * sum at its position, divided by the number of the argument's elements at that position.
 */
static ts_status as_strided(ts_vjp_call *b)
{
    ts_meta m = ts_rule_arg_meta(b, 0);
    const ts_value *sizes = ts_rule_arg(b, 1), *strides = ts_rule_arg(b, 2);
    place of = {.sizes = m.sizes, .ndim = m.ndim};
    place to = {.offset = INT(3), .sizes = sizes->ints, .ndim = (int)sizes->count};
    TS_TRY(ts_rule_saved_layout(b, 0, of.strides, &of.offset));
    for (int d = 0; d < to.ndim; d++)
        to.strides[d] = strides->ints[d];
    int64_t end = place_end(&of), other = place_end(&to);
    ts_places part = {.offset = to.offset - of.offset};
    memcpy(part.strides, to.strides, sizeof part.strides);
    if (ts_strides_contiguous(m.sizes, of.strides, m.ndim) && part.offset >= 0 &&
        other - of.offset <= m.numel && ts_places_distinct(to.sizes, to.strides, to.ndim))
        return ts_rule_give_places(b, GRAD(0), &part);
    end = end > other ? end : other;
    ts_tensor *index = place_index(&of, m.device),
              *sum = scatter(place_index(&to, m.device), GRAD(0), end, m),
              *count = scatter(index, ts_rule_full(m, ts_value_int(1)), end, m);
    ts_tensor *g = ts_index_select(ts_div(sum, ts_clamp_min(count, 1)), 0, index);
    return ts_rule_give(b, 0, ts_reshape(g, m.sizes, m.ndim));
}
const ts_vjp ts_vjp_as_strided = {.rule = as_strided, .saves = {[0] = READS_X}};
