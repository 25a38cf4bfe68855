/** @file view.c  Views: ops that make aliases of the same memory with other sizes and strides. */
// SPDX-License-Identifier: MIT
#include "include/tessera/autograd.h"
#include "include/tessera/ops.h"
#include "ops/ops.h"

#include <string.h>

ts_status ts_infer_alias(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t;
    return ts_give_alias(f, 0, t->sizes, t->strides, t->ndim, 0);
}

/* ------------------------------------------------------------------------ view, reshape ---- */

/** Reads the sizes in argument 1 and computes the one that is -1; error unless they have as many
 *  elements as t. */
static ts_status wanted_sizes(ts_frame *f, int64_t *sizes, int *ndim)
{
    const ts_tensor *t = f->args[0].t;
    const ts_value *v = &f->args[1];
    int64_t known = 1, unknown = -1, n = 0;
    if (v->count > TS_MAX_DIMS)
        return ts_fail_arg(f, 1, TS_ERR_SHAPE, "expected at most %d sizes, got %u", TS_MAX_DIMS,
                           v->count);
    *ndim = (int)v->count;
    bool fits = true;
    for (int d = 0; fits && d < *ndim; d++) {
        sizes[d] = v->ints[d];
        if (sizes[d] == -1 && unknown < 0)
            unknown = d;
        else
            fits = ts_mul_size(known, sizes[d], &known);
    }
    if (fits && unknown >= 0) {
        fits = known > 0 && t->numel % known == 0;
        sizes[unknown] = fits ? t->numel / known : -1;
    }
    /* a zero among the sizes hides an overflow of the others: the strides must fit too */
    if (fits && ts_tensor_bytes(sizes, *ndim, ts_dtype_sizes[t->dtype], &n, &known) &&
        n == t->numel)
        return TS_OK;
    return ts_fail_arg(
        f, 1, TS_ERR_SHAPE,
        "expected sizes for %lld elements of sizes %s, at most one of them -1, got %s",
        (long long)t->numel, TS_SIZES_TEXT(t), TS_LIST_TEXT(v->ints, *ndim));
}

/**
 * Computes the strides of a view of t with other sizes of the same numel; false if only a copy can
 * have these sizes. Adjacent dims that are contiguous to each other form a run; each run must split
 * into new dims exactly.
 */
static bool view_strides(const ts_tensor *t, const int64_t *sizes, int ndim, int64_t *strides)
{
    if ((t->flags & TS_TENSOR_CONTIGUOUS) || t->numel == 0) {
        ts_strides_fill(sizes, ndim, strides);
        return true;
    }
    int d = ndim - 1;
    for (int o = t->ndim - 1; o >= 0;) {
        int64_t step = t->strides[o], run = t->sizes[o], placed = 1;
        if (t->sizes[o--] == 1)
            continue;
        while (o >= 0 && (t->sizes[o] == 1 || t->strides[o] == step * run))
            run *= t->sizes[o--];
        for (; d >= 0 && placed < run; d--) {
            strides[d] = step * placed;
            placed *= sizes[d];
        }
        if (placed != run)
            return false;
    }
    for (; d >= 0; d--)
        strides[d] = 1;
    return true;
}

/** Stores an alias of argument 0 with the sizes of argument 1 as result 0. If only a copy can have
 * these sizes, stores nothing and sets *copies. */
TS_INLINE ts_status alias_of_sizes(ts_frame *f, int64_t *sizes, int *ndim, bool *copies)
{
    int64_t strides[TS_MAX_DIMS];
    TS_TRY(wanted_sizes(f, sizes, ndim));
    *copies = !view_strides(f->args[0].t, sizes, *ndim, strides);
    return *copies ? TS_OK : ts_give_alias(f, 0, sizes, strides, *ndim, 0);
}

ts_status ts_infer_view(ts_frame *f)
{
    int64_t sizes[TS_MAX_DIMS];
    int ndim;
    bool copies;
    const ts_tensor *t = f->args[0].t;
    TS_TRY(alias_of_sizes(f, sizes, &ndim, &copies));
    if (!copies)
        return TS_OK;
    return ts_fail_arg_hint(
        f, 1, TS_ERR_SHAPE, "use ts_reshape(), which copies then",
        "expected sizes that strides %s of sizes %s can have without a copy, got %s",
        TS_LIST_TEXT(t->strides, t->ndim), TS_SIZES_TEXT(t), TS_LIST_TEXT(sizes, ndim));
}

ts_status ts_infer_reshape(ts_frame *f)
{
    int64_t sizes[TS_MAX_DIMS];
    int ndim;
    bool copies;
    TS_TRY(alias_of_sizes(f, sizes, &ndim, &copies));
    if (!copies)
        return TS_OK;
    ts_tensor *copy = ts_above.convert(f->args[0].t, (ts_dtype)f->args[0].t->dtype);
    TS_TRY(copy);
    copy->ndim = (uint8_t)ndim; /* no other code has a reference yet */
    memcpy(copy->sizes, sizes, sizeof sizes);
    ts_strides_fill(sizes, ndim, copy->strides);
    f->rets[0] = V_T(copy);
    return TS_OK;
}

/* ------------------------------------------------------------------------- order of dims ---- */

ts_status ts_infer_permute(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t;
    const ts_value *dims = &f->args[1];
    int64_t sizes[TS_MAX_DIMS], strides[TS_MAX_DIMS];
    unsigned seen = 0;
    bool fits = dims->count == t->ndim;
    for (int i = 0; fits && i < t->ndim; i++) {
        int64_t d = dims->ints[i] < 0 ? dims->ints[i] + t->ndim : dims->ints[i];
        fits = d >= 0 && d < t->ndim && !(seen >> d & 1);
        if (!fits)
            break;
        seen |= 1u << d;
        sizes[i] = t->sizes[d];
        strides[i] = t->strides[d];
    }
    if (!fits)
        return ts_fail_arg(f, 1, TS_ERR_INDEX, "expected each of %d dims once, got %s", t->ndim,
                           TS_LIST_TEXT(dims->ints, dims->count));
    return ts_give_alias(f, 0, sizes, strides, t->ndim, 0);
}

ts_status ts_infer_transpose(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t;
    int64_t a, b, sizes[TS_MAX_DIMS], strides[TS_MAX_DIMS];
    TS_TRY(ts_check_dim(f, 1, f->args[1].i, t->ndim, &a));
    TS_TRY(ts_check_dim(f, 2, f->args[2].i, t->ndim, &b));
    memcpy(sizes, t->sizes, sizeof sizes);
    memcpy(strides, t->strides, sizeof strides);
    if (t->ndim) {
        sizes[a] = t->sizes[b];
        sizes[b] = t->sizes[a];
        strides[a] = t->strides[b];
        strides[b] = t->strides[a];
    }
    return ts_give_alias(f, 0, sizes, strides, t->ndim, 0);
}

/* -------------------------------------------------------------------- more and fewer dims ---- */

ts_status ts_infer_expand(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t;
    const ts_value *v = &f->args[1];
    int64_t sizes[TS_MAX_DIMS] = {0}, strides[TS_MAX_DIMS], numel, bytes;
    int n = (int)v->count, shift = n - t->ndim;
    bool fits = v->count <= TS_MAX_DIMS && shift >= 0;
    for (int d = 0; fits && d < n; d++) {
        int64_t had = d < shift ? 1 : t->sizes[d - shift];
        sizes[d] = v->ints[d] == -1 && d >= shift ? had : v->ints[d];
        fits = sizes[d] >= 0 && (had == sizes[d] || had == 1);
        strides[d] = d < shift || had != sizes[d] ? 0 : t->strides[d - shift];
    }
    if (fits && ts_tensor_bytes(sizes, n, ts_dtype_sizes[t->dtype], &numel, &bytes))
        return ts_give_alias(f, 0, sizes, strides, n, 0);
    return ts_fail_arg(f, 1, TS_ERR_SHAPE,
                       "expected at most %d sizes to which %s broadcasts, got %s", TS_MAX_DIMS,
                       TS_SIZES_TEXT(t), TS_LIST_TEXT(v->ints, n));
}

ts_status ts_infer_squeeze(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t;
    const ts_value *dims = &f->args[1];
    int64_t sizes[TS_MAX_DIMS], strides[TS_MAX_DIMS], at;
    bool all = dims->tag == TS_TAG_NONE;
    unsigned drop = all ? ~0u : 0;
    for (uint32_t i = 0; !all && i < dims->count; i++) {
        TS_TRY(ts_check_dim(f, 1, dims->ints[i], t->ndim, &at));
        drop |= 1u << at;
    }
    int n = 0;
    for (int d = 0; d < t->ndim; d++) {
        if ((drop >> d & 1) && t->sizes[d] == 1)
            continue;
        sizes[n] = t->sizes[d];
        strides[n++] = t->strides[d];
    }
    return ts_give_alias(f, 0, sizes, strides, n, 0);
}

ts_status ts_infer_unsqueeze(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t;
    int64_t sizes[TS_MAX_DIMS], strides[TS_MAX_DIMS], at;
    if (t->ndim == TS_MAX_DIMS)
        return ts_fail_arg(f, 0, TS_ERR_SHAPE, "expected fewer than %d dims, got %d", TS_MAX_DIMS,
                           t->ndim);
    TS_TRY(ts_check_dim(f, 1, f->args[1].i, t->ndim + 1, &at));
    for (int d = 0, o = 0; d <= t->ndim; d++) {
        if (d == at) {
            sizes[d] = 1;
            strides[d] = o < t->ndim ? t->strides[o] * t->sizes[o] : 1;
            continue;
        }
        sizes[d] = t->sizes[o];
        strides[d] = t->strides[o++];
    }
    return ts_give_alias(f, 0, sizes, strides, t->ndim + 1, 0);
}

ts_status ts_infer_as_strided(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t;
    const ts_value *sizes = &f->args[1], *strides = &f->args[2];
    int64_t item = ts_dtype_sizes[t->dtype], room = t->storage->bytes / item, offset = f->args[3].i,
            numel, bytes;
    if (sizes->count > TS_MAX_DIMS ||
        !ts_tensor_bytes(sizes->ints, (int)sizes->count, (size_t)item, &numel, &bytes))
        return ts_fail_arg(f, 1, TS_ERR_SHAPE,
                           "expected 0 to %d sizes >= 0 whose bytes fit 63 bits, got %s",
                           TS_MAX_DIMS, TS_LIST_TEXT(sizes->ints, sizes->count));
    if (strides->count != sizes->count)
        return ts_fail_arg(f, 2, TS_ERR_VALUE, "expected one stride per size: %u, got %u",
                           sizes->count, strides->count);
    int64_t last = offset;
    bool fits = offset >= 0;
    for (uint32_t d = 0; fits && d < sizes->count; d++) {
        int64_t reach = 0;
        fits = strides->ints[d] >= 0 &&
               (!numel || (ts_mul_size(sizes->ints[d] - 1, strides->ints[d], &reach) &&
                           ts_add_size(last, reach, &last)));
    }
    if (!fits || (numel ? last >= room : offset > room)) {
        return ts_fail_arg(
            f, 2, TS_ERR_VALUE,
            "expected strides >= 0 that keep within %lld elements of storage, got %s for sizes %s "
            "at offset %lld",
            (long long)room, TS_LIST_TEXT(strides->ints, strides->count),
            TS_LIST_TEXT(sizes->ints, sizes->count), (long long)offset);
    }
    /* the stride of a dim of size 1 is unused, and its bytes may overflow */
    int64_t kept[TS_MAX_DIMS];
    for (uint32_t d = 0; d < strides->count; d++)
        kept[d] = ts_min64(strides->ints[d], room);
    int64_t here = t->data ? (t->data - (char *)t->storage->data) / item : 0;
    return ts_give_alias(f, 0, sizes->ints, kept, (int)sizes->count, offset - here);
}

/* -------------------------------------------------------------------------- public forms ---- */

ts_tensor *ts_contiguous(ts_tensor *t)
{
    bool copies = t && !(t->flags & TS_TENSOR_CONTIGUOUS);
    return TS_INVOKE(copies ? TS_OP_contiguous : TS_OP_alias, V_T(t));
}

/** A new tensor t with its dims permuted, for functions that keep no handle of t. The result is no
 *  view for the checks of writes, because no other tensor has its memory. */
static ts_tensor *permuted_whole(ts_tensor *t, const int64_t *dims)
{
    ts_tensor *y = ts_permute(t, dims, t->ndim);
    if (y)
        y->flags &= (uint8_t)~TS_TENSOR_VIEW;
    return y;
}

ts_tensor *ts_invoke_ordered(const ts_tensor *t, int op, ts_value *args, int nargs,
                             const void *site)
{
    TS_SCOPE;
    ts_iter space;
    uint8_t order[TS_MAX_DIMS];
    int64_t sizes[TS_MAX_DIMS], back[TS_MAX_DIMS];
    ts_value made = ts_value_none();
    ts_iter_strides(&space, 0, t, t->ndim, 1);
    ts_iter_order(&space, t->ndim, 1, order);
    for (int i = 0; i < t->ndim; i++) {
        sizes[i] = t->sizes[order[i]];
        back[order[i]] = i;
    }
    args[0] = V_IS(sizes, t->ndim);
    if (ts_call(op, args, nargs, &made, 1, 0, 1, site) != TS_OK)
        return NULL;
    return ts_keep(permuted_whole(ts_adopt_result(&ts_tls, made.t, op, site), back));
}

ts_tensor *ts_to_channels_last(ts_tensor *t)
{
    const void *site = __builtin_return_address(0);
    if (!ts_tensor_ok(t, "to_channels_last", "t", site))
        return NULL;
    int n = t->ndim;
    if (n < 3 || n > 5) {
        ts_fail_op(TS_ERR_SHAPE, "to_channels_last", site, NULL,
                   "argument 't': expected 3 to 5 dims (N, C, ...), got sizes %s",
                   TS_SIZES_TEXT(t));
        return NULL;
    }
    int64_t last[5] = {0}, first[5] = {0, n - 1};
    for (int d = 1; d < n; d++)
        last[d] = d < n - 1 ? d + 1 : 1;
    for (int d = 2; d < n; d++)
        first[d] = d - 1;
    TS_SCOPE;
    ts_tensor *turned = ts_permute(t, last, n);
    if (!turned || (turned->flags & TS_TENSOR_CONTIGUOUS))
        return turned ? ts_keep(ts_permute(turned, first, n)) : NULL;
    ts_tensor *packed = ts_contiguous(turned);
    return packed ? ts_keep(permuted_whole(packed, first)) : NULL;
}

ts_tensor *ts_expand_as(ts_tensor *t, ts_tensor *other)
{
    if (!ts_tensor_ok(other, "expand_as", "other", __builtin_return_address(0)))
        return NULL;
    return ts_expand(t, other->sizes, other->ndim);
}

ts_tensor *ts_t(ts_tensor *t)
{
    const void *site = __builtin_return_address(0);
    if (!ts_tensor_ok(t, "t", "t", site))
        return NULL;
    if (t->ndim > 2) {
        ts_fail_op(TS_ERR_SHAPE, "t", site, "use ts_transpose()",
                   "argument 't': expected at most two dims, got %d", t->ndim);
        return NULL;
    }
    return t->ndim == 2 ? ts_transpose(t, 0, 1) : ts_transpose(t, 0, 0);
}

ts_tensor *ts_movedim(ts_tensor *t, int source, int destination)
{
    const void *site = __builtin_return_address(0);
    if (!ts_tensor_ok(t, "movedim", "t", site) ||
        !ts_dim_ok(&source, t->ndim, "movedim", "source", site) ||
        !ts_dim_ok(&destination, t->ndim, "movedim", "destination", site))
        return NULL;
    int64_t dims[TS_MAX_DIMS];
    for (int to = 0, from = 0; to < t->ndim; to++) {
        from += from == source;
        dims[to] = to == destination ? source : from++;
    }
    return ts_permute(t, dims, t->ndim);
}

ts_tensor *ts_flatten(ts_tensor *t, int start_dim, int end_dim)
{
    const void *site = __builtin_return_address(0);
    if (!ts_tensor_ok(t, "flatten", "t", site))
        return NULL;
    int n = t->ndim ? t->ndim : 1; /* a 0-dim tensor counts as one dim and becomes one */
    if (!ts_dim_ok(&start_dim, n, "flatten", "start_dim", site) ||
        !ts_dim_ok(&end_dim, n, "flatten", "end_dim", site))
        return NULL;
    if (end_dim < start_dim) {
        ts_fail_op(TS_ERR_INDEX, "flatten", site, NULL,
                   "argument 'end_dim': expected at least 'start_dim', %d, got %d", start_dim,
                   end_dim);
        return NULL;
    }
    int64_t sizes[TS_MAX_DIMS], run = 1;
    int to = 0;
    for (int d = 0; d < start_dim; d++)
        sizes[to++] = t->sizes[d];
    for (int d = start_dim; d <= end_dim && t->ndim; d++)
        run *= t->sizes[d];
    sizes[to++] = run;
    for (int d = end_dim + 1; d < t->ndim; d++)
        sizes[to++] = t->sizes[d];
    return ts_reshape(t, sizes, to);
}

ts_tensor *ts_unflatten(ts_tensor *t, int dim, const int64_t *sizes, int ndim)
{
    const void *site = __builtin_return_address(0);
    if (!ts_tensor_ok(t, "unflatten", "t", site) ||
        !ts_ints_ok(sizes, ndim, "unflatten", "sizes", site) ||
        !ts_dim_ok(&dim, t->ndim, "unflatten", "dim", site))
        return NULL;
    int64_t all[TS_MAX_DIMS], known = 1;
    int to = 0, unknown = -1, more = ndim - 1 + t->ndim;
    bool fits = ndim > 0 && more <= TS_MAX_DIMS;
    for (int d = 0; d < dim && fits; d++)
        all[to++] = t->sizes[d];
    for (int d = 0; d < ndim && fits; d++) {
        if (sizes[d] == -1 && unknown < 0)
            unknown = to;
        else
            fits = ts_mul_size(known, sizes[d], &known);
        all[to++] = sizes[d];
    }
    if (fits && unknown >= 0) {
        fits = known > 0 && t->sizes[dim] % known == 0;
        all[unknown] = fits ? t->sizes[dim] / known : 0;
    } else {
        fits = fits && known == t->sizes[dim];
    }
    if (!fits) {
        ts_fail_op(TS_ERR_SHAPE, "unflatten", site, NULL,
                   "argument 'sizes': expected 1 to %d sizes whose product is %lld, got %s",
                   TS_MAX_DIMS - t->ndim + 1, (long long)t->sizes[dim],
                   TS_LIST_TEXT(sizes, ndim));
        return NULL;
    }
    for (int d = dim + 1; d < t->ndim; d++)
        all[to++] = t->sizes[d];
    return ts_view(t, all, to);
}

ts_tensor *ts_as_strided(ts_tensor *t, const int64_t *sizes, const int64_t *strides, int ndim,
                         int64_t offset)
{
    const void *site = __builtin_return_address(0);
    if (!ts_ints_ok(sizes, ndim, "as_strided", "sizes", site) ||
        !ts_ints_ok(strides, ndim, "as_strided", "strides", site))
        return NULL;
    return TS_INVOKE(TS_OP_as_strided, V_T(t), V_IS(sizes, ndim), V_IS(strides, ndim), V_I(offset));
}
