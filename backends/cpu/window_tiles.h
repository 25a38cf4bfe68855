/**
 * @file window_tiles.h
 * Products of windows and weights in f32 or bf16. Each worker (a task of the thread pool) gathers
 * the windows of a tile into its own scratch memory and multiplies them while they are in cache.
 * The results of a tile have channels innermost; they are written to the image directly if its
 * memory has this layout, else through scratch memory. Included by convolution.c only.
 *
 * A window is divided into slices. Each slice of a result is one chain of multiply-adds (vf_fma()),
 * or for bf16 of dot products of pairs, and the slices are added in order. Sums of bf16 are f32 and
 * rounded once. So results depend neither on the division into tiles nor on the number of threads.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_WINDOW_TILES_H
#define TS_BACKENDS_CPU_WINDOW_TILES_H

#include "backends/cpu/pack.h"
#include "backends/cpu/windows.h"

enum {
    TILE_DEPTH = 256,  /* most elements of a slice; twice as many for bf16 */
    TILE_BLOCKS = 4,   /* blocks of windows that use a panel of weights while it is in cache */
    TILE_WINDOWS = TILE_BLOCKS * MICRO_ROWS, /* most windows of a tile */
    TILE_PANEL = MICRO_COLUMNS_F             /* output channels of a panel of weights */
};

/** The product of one group's windows and weights. */
typedef struct tiles {
    windows w;           /* source image and axes of the windows */
    image to;            /* the result */
    const char *weight;  /* (rows, depth), dense */
    const char *bias;    /* (rows), or NULL */
    char *packed;        /* the weight in panels: (depth, tile_width()) for f32, (pairs, TILE_PANEL,
                            2) for bf16 */
    char *scratch;       /* per worker: gathered windows, sums of bf16, results unless `direct` */
    int64_t worker_bytes; /* bytes of a worker's scratch */
    int64_t sums, result; /* offsets of sums and results in a worker's scratch, in bytes */
    int64_t rows, depth; /* channels of the result; elements of a window */
    int64_t all, count;  /* numbers of windows and of tiles */
    int64_t step;        /* distance of positions in `to` in elements, if `direct` */
    int64_t workers;     /* number of workers */
    bool direct;         /* results are written to `to`, whose memory is a matrix (all, rows) */
    int item;            /* bytes of an element: 2 for bf16, else 4 */
} tiles;

/** Width of a packed panel for `columns` channels of the result: one or two vectors. */
TS_INLINE int64_t tile_width(int64_t columns) { return columns > VF_LANES ? TILE_PANEL : VF_LANES; }

/** Floats between rows of the sums of bf16: whole vectors. */
static int64_t sum_row(const tiles *t) { return ts_ceil_div(t->rows, VF_LANES) * VF_LANES; }

/** Sets t->count, workers (at most the number of threads), worker_bytes, sums and result. Returns
 *  the bytes of t->packed. */
static int64_t plan_tiles(tiles *t)
{
    const int64_t line = VF_LANES * (int64_t)sizeof(float), item = t->item;
    t->count = ts_ceil_div(t->all, TILE_WINDOWS);
    t->workers = ts_min64(ts_num_threads(), t->count);
    t->sums = ts_ceil_div(TILE_WINDOWS * t->depth * item, line) * line;
    t->result = t->sums + (item == 2 ? TILE_WINDOWS * sum_row(t) * (int64_t)sizeof(float) : 0);
    t->worker_bytes = t->result + (t->direct ? 0 : TILE_WINDOWS * t->rows * item);
    t->worker_bytes = ts_ceil_div(t->worker_bytes, line) * line;
    return ts_ceil_div(t->rows, TILE_PANEL) * TILE_PANEL * ((t->depth + 1) / 2 * 2) * item;
}

/** Packs panels begin to end - 1 of the weight. */
static void pack_weight(void *ctx, int64_t begin, int64_t end)
{
    const tiles *t = ctx;
    for (int64_t j = begin; j < end; j++) {
        int64_t columns = ts_min64(TILE_PANEL, t->rows - j * TILE_PANEL);
#if VEC_ISA == VEC_IS_avx512
        if (t->item == 2) {
            vhh_pack_columns((uint16_t *)t->packed + j * ((t->depth + 1) / 2) * MICRO_PAIR_BF16,
                             (const uint16_t *)t->weight + j * TILE_PANEL * t->depth, t->depth,
                             t->depth, columns);
            continue;
        }
#endif
        vf_pack_transposed((float *)t->packed + j * TILE_PANEL * t->depth, tile_width(columns),
                           (const float *)t->weight + j * TILE_PANEL * t->depth, t->depth, columns,
                           t->depth);
    }
}

/** to (count, rows) = windows (count, depth) times the packed weight (depth, rows), plus bias. row
 *  and step: strides of `windows` along count and depth; to_row: stride of `to` along count. */
static void multiply_rows(const tiles *t, const float *windows, int64_t row, int64_t step,
                          int64_t count, float *to, int64_t to_row)
{
    int64_t blocks = ts_ceil_div(count, MICRO_ROWS);
    for (int64_t p = 0, depth; p < t->depth; p += depth) {
        depth = ts_min64(TILE_DEPTH, t->depth - p);
        for (int64_t column = 0; column < t->rows; column += TILE_PANEL) {
            int64_t columns = ts_min64(TILE_PANEL, t->rows - column), width = tile_width(columns);
            const float *b = (const float *)t->packed + column * t->depth + p * width,
                        *bias = t->bias ? (const float *)t->bias + column : NULL;
            for (int64_t i = 0; i < blocks; i++) {
                int64_t first = count * i / blocks, n = count * (i + 1) / blocks - first;
                TS_V(ts_micro_f32)[n][width > VF_LANES](
                    depth, windows + first * row + p * step, row, step, b, width,
                    to + first * to_row + column, to_row, columns,
                    p ? NULL : bias, p > 0, b, 0);
            }
        }
    }
}

/** multiply_rows() for dense windows of bf16, (count, depth). sums: room for f32 (count,
 *  sum_row()). */
static void multiply_pairs(const tiles *t, const char *windows, int64_t count, float *sums,
                           uint16_t *to, int64_t to_row)
{
    int64_t row = t->depth * 2, blocks = ts_ceil_div(count, MICRO_ROWS), step = sum_row(t);
    int64_t p = 0, depth;
    do { /* also once for windows without elements, to set their sums to 0 */
        depth = ts_min64(2 * TILE_DEPTH, t->depth - p);
        for (int64_t column = 0; column < t->rows; column += TILE_PANEL) {
            const uint16_t *b = (const uint16_t *)t->packed +
                                (column / TILE_PANEL * ((t->depth + 1) / 2) + p / 2) *
                                    MICRO_PAIR_BF16;
            for (int64_t i = 0; i < blocks; i++) {
                int64_t first = count * i / blocks, n = count * (i + 1) / blocks - first;
                TS_V(ts_micro_bf16)[n][t->rows - column > VF_LANES](
                    (depth + 1) / 2, windows + first * row + p * 2, row, 4, b,
                    sums + first * step + column, step, (int)(depth & 1), p > 0);
            }
        }
        p += depth;
    } while (p < t->depth);
    const uint16_t *bias = (const uint16_t *)t->bias;
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < t->rows; j += VF_LANES) {
            int64_t lanes = ts_min64(VF_LANES, t->rows - j);
            vf y = vf_load(sums + i * step + j);
            if (bias)
                y = y + vf_load_bf16_n(bias + j, lanes);
            vf_store_bf16_n(to + i * to_row + j, y, lanes);
        }
}

/** Computes the results of windows first to first + count - 1. */
static void run_tile(const tiles *t, int64_t first, int64_t count, char *scratch)
{
    windows w = t->w;
    char *result = scratch + t->result,
         *to = t->direct ? position_at(&t->to, w.axis, first, t->item) : result;
    int64_t to_row = t->direct ? t->step : t->rows;
    w.to = scratch;
    w.first = first;
    w.count = w.row = count;
    if (w.by_window && t->depth)
        gather_by_window(&w, 0, count);
    else
        gather_by_tap(&w, 0, t->depth);
    if (t->item == 2)
        multiply_pairs(t, scratch, count, (float *)(scratch + t->sums), (uint16_t *)to, to_row);
    else
        multiply_rows(t, (const float *)scratch, w.by_window ? t->depth : 1,
                      w.by_window ? 1 : count, count, (float *)to, to_row);
    if (t->direct)
        return;
    strips out = {.image = t->to, .axis = t->w.axis, .channels = t->rows, .item = t->item,
                  .first = first, .count = count, .channel_step = 1, .position_step = t->rows,
                  .matrix = result, .back = true};
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
                     t->scratch + worker * t->worker_bytes);
        }
}

/** Packs the weight and computes all tiles on the thread pool. */
static void run_tiles(tiles *t)
{
    ts_parallel_for(ts_ceil_div(t->rows, TILE_PANEL), 1 + 65536 / (TILE_PANEL * t->depth + 1),
                    pack_weight, t);
    double work = (double)t->all * (double)t->rows * (double)t->depth;
    ts_parallel_for(t->workers, work > 1 << 18 ? 1 : t->workers, run_workers, t);
}

#endif
