/**
 * @file loop_tiles.cuh
 * Tiles of a pointwise kernel of single elements, for an operand whose innermost dim is not that of
 * the result. The rows of a tile are along the result's innermost dims and its columns along the
 * operand's, so that a block uses all bytes of the sectors that it reads and writes.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_LOOP_TILES_CUH
#define TS_CUDA_LOOP_TILES_CUH

#include "tessera/kernel.h"

namespace ts {

enum {
    LOOP_THREADS = 256,
    LOOP_RUN = 4, /* elements per thread in kernels of single elements; kernels of vectors make one
                    16-byte access per thread: with more loads in flight, memory is 5 % slower */
    ROW_RUN = 8   /* elements per thread in the kernels of loop_rows.cuh */
};

/** How the dims of a space form tiles: rows are along dims 0 to inner - 1, columns along dims inner
 * to end - 1. inner = 0: no tiles. */
struct loop_tiling {
    int inner, end;
};

/** True if a 32-byte sector of operand o holds several elements along dim d, and fewer along dim 0:
 * at most four, or two if elements along dim d are less than 4 bytes apart. Threads should then
 * read along dim d. */
inline bool loop_lies_along(const ts_operand &o, int d)
{
    return !o.host && o.strides[d] > 0 && o.strides[d] <= 16 && o.strides[0] > o.strides[d] &&
           o.strides[0] >= (o.strides[d] < 4 ? 16 : 8);
}

/** How rows of `runs` runs of LOOP_RUN elements, and columns of `beside` elements, are divided into
 * tiles. A block computes a tile, and a thread computes a run of it. */
struct loop_tile {
    int lanes;         /* base-2 logarithm of a block's threads along a row */
    int64_t along, up; /* numbers of tiles along a row and a column */

    /** A tile has 8 runs in each of 32 rows; fewer runs in more rows if `runs` is small, more runs
     * in fewer rows if `beside` is small. */
    loop_tile(int64_t runs, int64_t beside) : lanes(0)
    {
        while (1 << lanes < runs && (lanes < 3 || LOOP_THREADS >> lanes >= 2 * beside))
            lanes++;
        int64_t high = LOOP_THREADS >> lanes;
        along = (runs + (1 << lanes) - 1) >> lanes;
        up = (beside + high - 1) / high;
    }
};

enum {
    TILE_NEAR = 64,     /* greatest stride in bytes of a dim that is worth adding to a short one */
    TILE_ELEMENTS = 32, /* dims are added until they have this many elements */
};

/** Appends the dims of a tile's rows to `order`, which has `n` dims: dim 0 and, if it is short, the
 * next ones below dim `except`. Returns the number of elements of these dims. */
inline int64_t loop_row_dims(const ts_space &space, int except, int *order, int *n)
{
    int64_t elements = space.sizes[order[(*n)++] = 0];
    for (int d = 1; d < space.ndim && space.sizes[0] < 2 * LOOP_RUN; d++) {
        if (d == except || elements >= TILE_ELEMENTS || space.operand[0].strides[d] > TILE_NEAR)
            break;
        elements *= space.sizes[order[(*n)++] = d];
    }
    return elements;
}
/** Appends the dims of a tile's columns: dim d of operand o and, if it is short, the unused dims
 * with the smallest strides. Returns the number of elements of these dims. */
inline int64_t loop_column_dims(const ts_space &space, const ts_operand &o, int d, int *order,
                                int *n)
{
    int64_t elements = space.sizes[order[(*n)++] = d];
    while (space.sizes[d] < 2 * LOOP_RUN && elements < TILE_ELEMENTS) {
        int next = -1;
        for (int e = 1; e < space.ndim; e++) {
            bool used = o.strides[e] <= 0 || o.strides[e] > TILE_NEAR;
            for (int i = 0; i < *n; i++)
                used = used || order[i] == e;
            if (!used && (next < 0 || o.strides[e] < o.strides[next]))
                next = e;
        }
        if (next < 0)
            break;
        elements *= space.sizes[order[(*n)++] = next];
    }
    return elements;
}

/** The space with dims ordered for a kernel of single elements. If an operand lies along a dim
 * above 0 (loop_lies_along()) and the tiles along that dim have enough elements, sets *tiling; the
 * dims of rows then come first, the dims of columns next. */
template <int N> ts_space loop_ordered(const ts_space &space, loop_tiling *tiling)
{
    *tiling = {};
    for (int d = 1; d < space.ndim; d++)
        for (int k = 1; k < N; k++) {
            if (!loop_lies_along(space.operand[k], d))
                continue;
            int order[TS_MAX_DIMS], n = 0;
            int64_t row = loop_row_dims(space, d, order, &n);
            int inner = n;
            int64_t beside = loop_column_dims(space, space.operand[k], d, order, &n);
            loop_tile tile((row + 2 * LOOP_RUN - 2) / LOOP_RUN, beside);
            if (row < 2 * LOOP_RUN || beside < 2 ||
                tile.along * tile.up * LOOP_THREADS * LOOP_RUN > 3 * row * beside)
                continue;
            *tiling = {inner, n};
            for (int e = 1; e < space.ndim; e++) {
                bool used = false;
                for (int i = 0; i < tiling->end; i++)
                    used = used || order[i] == e;
                if (!used)
                    order[n++] = e;
            }
            ts_space ordered = space;
            for (int e = 0; e < space.ndim; e++) {
                ordered.sizes[e] = space.sizes[order[e]];
                for (int m = 0; m < N; m++)
                    ordered.operand[m].strides[e] = space.operand[m].strides[order[e]];
            }
            return ordered;
        }
    return space;
}

} // namespace ts

#endif
