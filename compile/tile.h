/** @file tile.h  Values and calls of a group on the CPU, for tile.c and emit.c. tile.c runs a group
 * tile by tile: all calls on the first tile of the space, then all on the next, so intermediate
 * values stay in the cache. */
// SPDX-License-Identifier: MIT
#ifndef TS_COMPILE_TILE_H
#define TS_COMPILE_TILE_H

#include "compile/compile.h"
#include "dispatch/op.h"

/** A value of a group. */
typedef struct tile_value {
    ts_tensor t;               /* header of one tile of the value */
    char *base;                /* address of its memory; NULL: it has a buffer */
    int64_t step[TS_MAX_DIMS]; /* strides in bytes along the space's dims; 0: broadcast */
    int shift;                 /* dim d of the value is dim d + shift of the space; a flag of
                                  gather() in tile_state.c until lay_out() runs */
    uint32_t number;           /* index in the graph */
    int32_t buffer;            /* number of its buffer; -1: none */
    int64_t whole[TS_MAX_DIMS]; /* its sizes; t has those of a tile */
} tile_value;

/** A call of a group, planned for one tile. */
typedef struct tile_call {
    ts_frame f;
    ts_plan plan;
    ts_value args[TS_MAX_ARGS], rets[TS_MAX_RETS];
    ts_kernel kernel;
    ts_iter space;  /* plan.iter as the shape rule made it */
    bool tried;     /* the kernel has run once since the call was planned */
    bool rewrites;  /* the kernel changes plan.iter, which is restored before each tile */
    bool whole;     /* a reduction of all elements, in pieces (ts_fold_share) */
    uint8_t operands; /* of plan.iter; 0 for a call by rows */
    uint16_t operand[TS_MAX_OPERANDS]; /* index of its value + 1; 0: a number */
    uint16_t arg[TS_MAX_ARGS], ret[TS_MAX_RETS]; /* index of the value + 1; 0: none */
    ts_tensor all;  /* whole: header of the whole argument */
} tile_call;

/** A worker's own values and calls. */
typedef struct tile_worker {
    tile_value *values;
    tile_call *calls;
    char *buffers;
    int64_t length; /* elements along the split dim for which the plans are made */
} tile_worker;

/** A number that a call of the group gets. */
typedef struct tile_number {
    uint64_t bits;     /* in the last run */
    uint32_t at, call; /* index in the recording's numbers; index of the call */
    bool list;         /* the call gets an address in the numbers of the run */
} tile_number;

/** The state of a group's run. If one worker runs the group, its next run uses the state again. */
typedef struct ts_tiles {
    const ts_run *run;
    const ts_step *step;
    tile_value *values; /* initial values and calls, which each worker copies */
    tile_call *calls;
    uint32_t nvalues, ncalls, nbuffers;
    int ndim, split;    /* dims of the space; dim that tiles divide. A tile has one index of each
                           dim before `split`, and all of each dim after it */
    int64_t sizes[TS_MAX_DIMS];
    int64_t chunk, along, outer; /* elements of the split dim per tile, the last may have more or
                                    fewer; tiles along the split dim; product of the dims before
                                    it */
    int64_t buffer;     /* bytes of a buffer */
    size_t worker;      /* bytes of a worker's values, calls and buffers */
    char *memory;       /* memory of the workers */
    int nworkers;
    char *parts;        /* npieces numbers for each whole call; NULL: none */
    int64_t npieces;
    _Atomic int workers, failed; /* workers that have begun; 1 if one failed */
    ts_error *error;    /* receives the record of the first worker that failed */
    int64_t grain;      /* fewest tiles for a worker */
    tile_worker only;        /* the worker of an undivided run; it uses `values` and `calls` */
    const struct ts_emitted *code; /* machine code of some or all calls; NULL: none */
    uint64_t *numbers;  /* code->nnumbers numbers that the code uses in this run */
    uint64_t epoch;     /* ts_epoch when the calls' tables were last compared with ts_tables */
    tile_number *passed; /* numbers of the calls */
    uint32_t npassed;
    size_t bytes;       /* of this state with its arrays, without `numbers` */
} ts_tiles;

/** The state of a group for a run: the kept one, with the addresses, call sites and numbers of this
 *  run, or a new one. NULL with an error. */
ts_tiles *ts_tiles_of(const ts_run *r, const ts_step *s);
/** Runs the call's shape rule for the current sizes of its tensors; false if it fails. */
bool ts_tile_plan(const tile_worker *own, tile_call *c);
/** Plans the worker's calls for tiles of `length` elements along the split dim; false if a call
 *  cannot be planned. */
bool ts_tile_prepare(const ts_tiles *w, tile_worker *own, int64_t length);

/** Sorts the dims of the space of step s and of the values by the sum of the values' strides, the
 *  largest first, so that tiles of values whose dims are permuted in memory are contiguous too.
 *  sizes receives the sizes of the space. All values with more than one element get its dims. */
void ts_tile_order_dims(tile_value *values, uint32_t nvalues, const ts_step *s, int64_t *sizes);
/** Chooses the dim that tiles divide, so that a tile has about n elements and whole rows, and at
 *  least TS_FEW_ROWS of them if they are short.
 *  @param split  the first dim of a row, or ndim; receives the divided dim
 *  @param chunk  receives a tile's elements of the divided dim
 *  @param inner  receives the product of the dims after it
 *  @return the elements of the divided dim in a larger last tile, which also takes the rest if that
 *          has too few rows for a tile; else *chunk */
int64_t ts_tile_divide(const int64_t *sizes, int ndim, int64_t n, int *split, int64_t *chunk,
                       int64_t *inner);

#endif
