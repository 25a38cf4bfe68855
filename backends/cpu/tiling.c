/** @file tiling.c  Pointwise loops over spaces whose operands are dense along different dims: tiles
 * of some operands are transposed. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/tiling.h"
#include "backends/cpu/isa.h"
#include "core/parallel.h"

/** Copies a transposed matrix; in copy.c. */
typedef void transposer(char *to, int64_t to_row, const char *from, int64_t from_row, int64_t rows,
                        int64_t columns, int item);
TS_ISA_DECLARE(void, ts_cpu_transpose,
               (char *to, int64_t to_row, const char *from, int64_t from_row, int64_t rows,
                int64_t columns, int item));

enum {
    TILE_BYTES = 12288, /* most bytes of all transposed tiles */
    TILE_LINE = 64,     /* bytes of a cache line: a tile has a multiple of so many bytes of rows */
    TURNED = 3          /* most operands that are transposed */
};

/** A space in which each operand is dense or broadcast along dim 0, or dense along `dim`. Tiles of
 * the latter operands are transposed, so the loop reads rows along dim 0. */
typedef struct tiling {
    const ts_iter *it;
    ts_loop loop;
    const void *params;
    transposer *transpose;
    int dim;
    int64_t columns, rows; /* of a tile, along dim 0 and `dim` */
    bool merged;           /* the rows of a tile are one run of the loop */
} tiling;

static bool is_turned(const ts_iter *it, int k)
{
    return it->strides[0][k] && it->strides[0][k] != it->items[k];
}

/** Describes the tiles of a space; false if it needs no transposition, or one that tiles do not
 * support: of the result, of more than TURNED operands, or of operands along different dims. */
static bool find_tiling(const ts_iter *it, tiling *t)
{
    int turned = 0, item = 1;
    t->dim = 0;
    for (int k = 0; k < it->operands; k++) {
        if (!is_turned(it, k))
            continue;
        item = it->items[k] > item ? it->items[k] : item;
        for (int d = 1; d < it->ndim && !t->dim; d++)
            if (it->strides[d][k] == it->items[k])
                t->dim = d;
        if (!k || ++turned > TURNED || !t->dim || it->strides[t->dim][k] != it->items[k])
            return false;
    }
    if (!turned || it->sizes[0] < 4 || it->sizes[t->dim] < 4)
        return false;
    int64_t most = TILE_BYTES / turned / item, line = TILE_LINE / item;
    t->columns = ts_min64(most / line, it->sizes[0]);
    t->rows = ts_min64(most / t->columns / line * line, it->sizes[t->dim]);
    t->merged = t->columns == it->sizes[0];
    for (int k = 0; k < it->operands; k++)
        t->merged = t->merged && (is_turned(it, k) || it->strides[t->dim][k] ==
                                                          t->columns * it->strides[0][k]);
    return true;
}

/** Runs the loop over tiles begin to end - 1, numbered along dim 0 first, `dim` second. */
static void run_tiles(void *ctx, int64_t begin, int64_t end)
{
    const tiling *t = ctx;
    const ts_iter *it = t->it;
    char memory[TILE_BYTES + TURNED * TILE_LINE] __attribute__((aligned(TILE_LINE)));
    int64_t across = ts_ceil_div(it->sizes[0], t->columns),
            down = ts_ceil_div(it->sizes[t->dim], t->rows);
    for (; begin < end; begin++) {
        int64_t column = begin % across * t->columns, row = begin / across % down * t->rows,
                columns = ts_min64(t->columns, it->sizes[0] - column),
                rows = ts_min64(t->rows, it->sizes[t->dim] - row);
        char *data[TS_MAX_OPERANDS];
        int64_t strides[TS_MAX_OPERANDS], next[TS_MAX_OPERANDS]; /* next: bytes between rows */
        char *tile = memory;
        for (int k = 0; k < it->operands; k++) {
            int64_t rest = begin / across / down;
            data[k] = it->data[k] + column * it->strides[0][k] + row * it->strides[t->dim][k];
            for (int d = 1; d < it->ndim; d++)
                if (d != t->dim) {
                    data[k] += rest % it->sizes[d] * it->strides[d][k];
                    rest /= it->sizes[d];
                }
            strides[k] = it->strides[0][k];
            next[k] = it->strides[t->dim][k];
            if (is_turned(it, k)) {
                strides[k] = it->items[k];
                next[k] = columns * it->items[k];
                t->transpose(tile, next[k], data[k], it->strides[0][k], rows, columns,
                             it->items[k]);
                data[k] = tile;
                tile += ts_ceil_div(rows * next[k], TILE_LINE) * TILE_LINE;
            }
        }
        if (t->merged) {
            t->loop(data, strides, rows * columns, t->params);
            continue;
        }
        for (int64_t r = 0; r < rows; r++) {
            t->loop(data, strides, columns, t->params);
            for (int k = 0; k < it->operands; k++)
                data[k] += next[k];
        }
    }
}

bool ts_cpu_run_tiles(const ts_iter *it, ts_loop loop, const void *params, int cost)
{
    tiling t = {.it = it, .loop = loop, .params = params};
    if (!find_tiling(it, &t))
        return false;
    int64_t tiles = ts_ceil_div(it->sizes[0], t.columns) *
                    ts_ceil_div(it->sizes[t.dim], t.rows) *
                    (it->numel / (it->sizes[0] * it->sizes[t.dim]));
    t.transpose = TS_ISA_PICK(ts_cpu_transpose);
    ts_parallel_for(tiles, TS_CPU_GRAIN(cost + 2) / (t.columns * t.rows) + 1, run_tiles, &t);
    return true;
}
