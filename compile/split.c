/** @file split.c  Order of the dims of a group on the CPU, and its division into tiles. */
// SPDX-License-Identifier: MIT
#include "compile/tile.h"
#include "core/checked.h"

void ts_tile_order_dims(tile_value *values, uint32_t nvalues, const ts_step *s, int64_t *sizes)
{
    int64_t sums[TS_MAX_DIMS] = {0};
    int order[TS_MAX_DIMS];
    for (uint32_t i = 0; i < nvalues; i++) {
        ts_tensor *t = &values[i].t;
        int shift = s->ndim - t->ndim;
        if (t->numel == 1)
            continue;
        for (int d = s->ndim - 1; d >= 0; d--) {
            t->sizes[d] = d < shift ? 1 : t->sizes[d - shift];
            t->strides[d] = d < shift ? 0 : t->strides[d - shift];
            sums[d] += t->sizes[d] > 1 ? t->strides[d] : 0;
        }
        t->ndim = s->ndim;
    }
    for (int d = 0; d < s->ndim; d++) {
        int at = d;
        for (; at > 0 && sums[order[at - 1]] < sums[d]; at--)
            order[at] = order[at - 1];
        order[at] = d;
    }
    for (uint32_t i = 0; i < nvalues; i++) {
        ts_tensor *t = &values[i].t, old = *t;
        for (int d = 0; d < s->ndim && t->numel != 1; d++) {
            t->sizes[d] = old.sizes[order[d]];
            t->strides[d] = old.strides[order[d]];
        }
        t->flags = ts_strides_contiguous(t->sizes, t->strides, t->ndim) ? TS_TENSOR_CONTIGUOUS : 0;
    }
    for (int d = 0; d < s->ndim; d++)
        sizes[d] = s->sizes[order[d]];
}

int64_t ts_tile_divide(const int64_t *sizes, int ndim, int64_t n, int *split, int64_t *chunk,
                       int64_t *inner)
{
    int64_t row = 1, least = 1;
    for (int d = *split; d < ndim; d++)
        row *= sizes[d];
    bool few = *split < ndim && row && row <= TS_SHORT_ROW; /* a tile has no fewer rows than that */
    n = few ? ts_max64(n, TS_FEW_ROWS * row) : n;
    *inner = row;
    /* each call of a kernel has a fixed cost, so a tile may be half larger */
    while (*split > 0 && *inner * sizes[*split - 1] <= n + n / 2)
        *inner *= sizes[--*split];
    if (!*split) {
        *chunk = ndim ? sizes[0] : 1;
        *inner = ndim ? *inner / ts_max64(sizes[0], 1) : 1;
        return *chunk;
    }
    int64_t size = sizes[--*split], some = ts_max64(n / *inner, 1),
            tiles = ts_max64((size + some / 2) / some, 1);
    *chunk = ts_ceil_div(size, tiles);
    if (*chunk > 64) /* whole cache lines */
        *chunk = (*chunk + 15) & ~(int64_t)15;
    if (few)
        least = ts_ceil_div(TS_FEW_ROWS, *inner / row);
    *chunk = ts_max64(*chunk, least);
    int64_t rest = size % *chunk;
    return size > *chunk && rest < least ? *chunk + rest : *chunk;
}
