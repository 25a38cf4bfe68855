/** @file tile.h  Values and calls of a group on the CPU, for tile.c and emit.c. */
// SPDX-License-Identifier: MIT
#ifndef TS_COMPILE_TILE_H
#define TS_COMPILE_TILE_H

#include "compile/compile.h"
#include "dispatch/op.h"

/** A value of a group. */
typedef struct tile_value {
    ts_tensor t;               /* header of one tile of it */
    char *base;                /* address of its memory; NULL: it has a buffer */
    int64_t step[TS_MAX_DIMS]; /* strides in bytes along the space's dims; 0: broadcast */
    int shift;                 /* dim d of the value is dim d + shift of the space; gather() stores
                                  a flag here until lay_out() runs */
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

/** Sorts the dims of the space of step s and of the values by the sum of the values' strides, the
 *  largest first, so that tiles of values whose dims are permuted in memory are contiguous too.
 *  sizes receives the sizes of the space. All values with more than one element get its dims. */
void ts_tile_order_dims(tile_value *values, uint32_t nvalues, const ts_step *s, int64_t *sizes);
/** Chooses the dim that tiles divide, so that a tile has about n elements and whole rows, and at
 *  least TS_FEW_ROWS of them if they are short.
 *  @param split  the first dim of a row, or ndim; receives the divided dim
 *  @param chunk  receives a tile's elements of the divided dim
 *  @param inner  receives the product of the dims after it
 *  @return the elements of the divided dim in the last tile, if it takes a rest of too few rows;
 *          else *chunk */
int64_t ts_tile_divide(const int64_t *sizes, int ndim, int64_t n, int *split, int64_t *chunk,
                       int64_t *inner);

#endif
