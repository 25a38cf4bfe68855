/** @file view.c  Rules of views. */
// SPDX-License-Identifier: MIT
#include "autograd/rule.h"

static ts_status alias(ts_vjp_call *b) { return ts_rule_give(b, 0, ts_rule_grad(b, 0)); }
const ts_vjp ts_vjp_alias = {.rule = alias};

/** For all ops that keep the order of the elements. */
static ts_status reshape(ts_vjp_call *b)
{
    ts_meta m = ts_rule_arg_meta(b, 0);
    return ts_rule_give(b, 0, ts_reshape(ts_rule_grad(b, 0), m.sizes, m.ndim));
}
const ts_vjp ts_vjp_reshape = {.rule = reshape};

static ts_status permute(ts_vjp_call *b)
{
    const ts_value *dims = ts_rule_arg(b, 1);
    int n = (int)dims->count;
    int64_t back[TS_MAX_DIMS];
    for (int i = 0; i < n; i++)
        back[dims->ints[i] < 0 ? dims->ints[i] + n : dims->ints[i]] = i;
    return ts_rule_give(b, 0, ts_permute(ts_rule_grad(b, 0), back, n));
}
const ts_vjp ts_vjp_permute = {.rule = permute};

static ts_status transpose(ts_vjp_call *b)
{
    return ts_rule_give(
        b, 0,
        ts_transpose(ts_rule_grad(b, 0), (int)ts_rule_arg(b, 1)->i, (int)ts_rule_arg(b, 2)->i));
}
const ts_vjp ts_vjp_transpose = {.rule = transpose};

static ts_status expand(ts_vjp_call *b)
{
    return ts_rule_give(b, 0, ts_rule_grad(b, 0));
}
const ts_vjp ts_vjp_expand = {.rule = expand};

/* ------------------------------------------------------------------------- any strides ---- */

/** Where elements lie in the storage. */
typedef struct place {
    int64_t strides[TS_MAX_DIMS], offset;
    const int64_t *sizes;
    int ndim;
} place;

/** One more than the last element's place, 0 when there is none. */
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

/** The places of all elements, in order: (numel). */
static ts_tensor *place_index(const place *p, ts_device device)
{
    ts_tensor *index = ts_empty_on(NULL, 0, TS_I64, device);
    index = index ? ts_fill_(index, p->offset) : NULL;
    for (int d = 0; index && d < p->ndim; d++) {
        ts_tensor *steps = ts_to_device(ts_arange(0, p->sizes[d], 1, TS_I64), device);
        index = ts_add(ts_unsqueeze(index, -1), ts_mul_scalar(steps, p->strides[d]));
    }
    return ts_reshape(index, (int64_t[]){-1}, 1);
}

/** Zeros of n elements with src added at the places. */
static ts_tensor *spread(ts_tensor *index, ts_tensor *src, int64_t n, ts_meta like)
{
    ts_tensor *into = ts_empty_on(&n, 1, like.dtype, like.device);
    return into ? ts_index_add(ts_zero_(into), 0, index, ts_reshape(src, (int64_t[]){-1}, 1))
                : NULL;
}

/**
 * The gradient is summed where the result's elements lie in the storage and read
 * where the argument's do. Elements of the argument that lie in one place share what is there.
 */
static ts_status as_strided(ts_vjp_call *b)
{
    ts_meta m = ts_rule_arg_meta(b, 0);
    const ts_value *sizes = ts_rule_arg(b, 1), *strides = ts_rule_arg(b, 2);
    place of = {.sizes = m.sizes, .ndim = m.ndim};
    place to = {.offset = ts_rule_arg(b, 3)->i, .sizes = sizes->ints, .ndim = (int)sizes->count};
    TS_TRY(ts_rule_saved_layout(b, 0, of.strides, &of.offset));
    for (int d = 0; d < to.ndim; d++)
        to.strides[d] = strides->ints[d];
    int64_t end = place_end(&of), other = place_end(&to);
    end = end > other ? end : other;
    ts_tensor *index = place_index(&of, m.device),
              *sum = spread(place_index(&to, m.device), ts_rule_grad(b, 0), end, m);
    ts_tensor *ones = ts_empty_on(m.sizes, m.ndim, m.dtype, m.device);
    ts_tensor *count = ones ? spread(index, ts_fill_(ones, 1), end, m) : NULL;
    ts_tensor *g = ts_index_select(ts_div(sum, ts_clamp_min(count, 1)), 0, index);
    return ts_rule_give(b, 0, ts_reshape(g, m.sizes, m.ndim));
}
const ts_vjp ts_vjp_as_strided = {.rule = as_strided, .saves = {[0] = TS_SAVE_ARG(0)}};
