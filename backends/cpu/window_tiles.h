/**
 * @file window_tiles.h
 * Products of windows and weights in f32, for results with channels innermost. Each worker (a task
 * of the thread pool) gathers the windows of a tile into its own scratch memory and multiplies them
 * while they are in cache. Included by convolution.c only.
 *
 * Each result is the sum of slices of the window in order; a slice is one chain of multiply-adds
 * (vf_fma()). So results depend neither on the division into tiles nor on the number of threads.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_WINDOW_TILES_H
#define TS_BACKENDS_CPU_WINDOW_TILES_H

#include "backends/cpu/pack.h"
#include "backends/cpu/windows.h"

enum {
    TILE_DEPTH = 256,  /* maximum number of elements of a slice */
    TILE_BLOCKS = 4,   /* blocks of windows that use a panel of weights while it is in cache */
    TILE_WINDOWS = TILE_BLOCKS * MICRO_ROWS, /* maximum number of windows of a tile */
    TILE_PANEL = MICRO_COLUMNS_F             /* output channels of a panel of weights */
};

/** The product of one group's windows and weights. */
typedef struct tiles {
    windows w;
    image to;
    const float *weight; /* (rows, depth), dense */
    const float *bias;   /* (rows), or NULL */
    float *packed;       /* the weight in panels of (depth, TILE_PANEL) */
    float *scratch;      /* per worker: gathered windows, then results unless `direct` */
    int64_t worker_floats; /* floats of a worker's scratch */
    int64_t result;      /* offset of the results in a worker's scratch */
    int64_t rows, depth; /* output channels; elements of a window */
    int64_t all, count;  /* numbers of windows and of tiles */
    int64_t step;        /* distance of positions in `to` in elements, if `direct` */
    int64_t workers;     /* number of workers */
    bool direct;         /* results are written to `to`, whose memory is a matrix (all, rows) */
} tiles;

/** Width of a packed panel with so many columns: one or two vectors. */
TS_INLINE int64_t tile_width(int64_t columns) { return columns > VF_LANES ? TILE_PANEL : VF_LANES; }

/** Sets t->count, workers, worker_floats and result. Returns the number of floats of t->packed. */
static int64_t plan_tiles(tiles *t)
{
    t->count = ts_ceil_div(t->all, TILE_WINDOWS);
    t->workers = ts_min64(ts_num_threads(), t->count);
    t->result = ts_ceil_div(TILE_WINDOWS * t->depth, VF_LANES) * VF_LANES;
    t->worker_floats = t->result + (t->direct ? 0 : TILE_WINDOWS * t->rows);
    t->worker_floats = ts_ceil_div(t->worker_floats, VF_LANES) * VF_LANES;
    return ts_ceil_div(t->rows, TILE_PANEL) * TILE_PANEL * t->depth;
}

/** Packs panels begin to end - 1 of the weight. */
static void pack_weight(void *ctx, int64_t begin, int64_t end)
{
    const tiles *t = ctx;
    for (int64_t j = begin; j < end; j++) {
        int64_t columns = ts_min64(TILE_PANEL, t->rows - j * TILE_PANEL);
        vf_pack_transposed(t->packed + j * TILE_PANEL * t->depth, tile_width(columns),
                           t->weight + j * TILE_PANEL * t->depth, t->depth, columns, t->depth);
    }
}

/** to (count, rows) = windows (count, depth) times weights (depth, rows), plus bias. row and step:
 *  strides of `windows` along count and depth; to_row: stride of `to` between rows. */
static void multiply_rows(const tiles *t, const float *windows, int64_t row, int64_t step,
                          int64_t count, float *to, int64_t to_row)
{
    int64_t blocks = ts_ceil_div(count, MICRO_ROWS);
    for (int64_t p = 0, depth; p < t->depth; p += depth) {
        depth = ts_min64(TILE_DEPTH, t->depth - p);
        for (int64_t column = 0; column < t->rows; column += TILE_PANEL) {
            int64_t columns = ts_min64(TILE_PANEL, t->rows - column), width = tile_width(columns);
            const float *b = t->packed + column * t->depth + p * width;
            for (int64_t i = 0; i < blocks; i++) {
                int64_t first = count * i / blocks, n = count * (i + 1) / blocks - first;
                TS_V(ts_micro_f32)[n][width > VF_LANES](
                    depth, windows + first * row + p * step, row, step, b, width,
                    to + first * to_row + column, to_row, columns,
                    t->bias && !p ? t->bias + column : NULL, p > 0, b, 0);
            }
        }
    }
}

/** Computes windows first to first + count - 1. */
static void run_tile(const tiles *t, int64_t first, int64_t count, float *scratch)
{
    windows w = t->w;
    float *result = scratch + t->result;
    float *to = t->direct ? (float *)position_at(&t->to, w.axis, first, sizeof(float)) : result;
    int64_t to_row = t->direct ? t->step : t->rows;
    w.to = (char *)scratch;
    w.first = first;
    w.count = w.row = count;
    if (w.by_window)
        gather_by_window(&w, 0, count);
    else
        gather_by_tap(&w, 0, t->depth);
    multiply_rows(t, scratch, w.by_window ? t->depth : 1, w.by_window ? 1 : count, count, to,
                  to_row);
    if (t->direct)
        return;
    strips out = {.image = t->to, .axis = t->w.axis, .channels = t->rows, .item = sizeof(float),
                  .first = first, .count = count, .channel_step = 1, .position_step = t->rows,
                  .matrix = (char *)result, .back = true};
    copy_strips(&out, 0, count);
}

/** Runs workers begin to end - 1. The numbers of tiles of two workers differ by at most one. */
static void run_workers(void *ctx, int64_t begin, int64_t end)
{
    const tiles *t = ctx;
    for (int64_t worker = begin; worker < end; worker++)
        for (int64_t i = t->count * worker / t->workers; i < t->count * (worker + 1) / t->workers;
             i++) {
            int64_t first = t->all * i / t->count;
            run_tile(t, first, t->all * (i + 1) / t->count - first,
                     t->scratch + worker * t->worker_floats);
        }
}

/** Packs the weight and computes all tiles on the thread pool. */
static void run_tiles(tiles *t)
{
    ts_parallel_for(ts_ceil_div(t->rows, TILE_PANEL), 1 + 65536 / (TILE_PANEL * t->depth),
                    pack_weight, t);
    double work = (double)t->all * (double)t->rows * (double)t->depth;
    ts_parallel_for(t->workers, work > 1 << 18 ? 1 : t->workers, run_workers, t);
}

#endif
