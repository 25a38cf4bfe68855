/**
 * @file index.h
 * Reading and writing by tensors of indices (i64 or i32). Indices are checked before anything is
 * written: TS_ERR_INDEX names the index, its position and the bound; negative ones are errors.
 * Sums over equal indices run in the order of the indices, whatever the number of threads.
 * Other errors: TS_ERR_DTYPE, TS_ERR_SHAPE, TS_ERR_DEVICE, TS_ERR_MEMORY.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_INDEX_H
#define TESSERA_OPS_INDEX_H

#include "../core.h"

TS_BEGIN_DECLS

/**
 * Rows of a table.
 * @param weight       (V, C)
 * @param index        any sizes, e.g. (B, T); values 0 to V-1
 * @param padding_idx  a row that gets no gradient; -1 for none
 * @return (B, T, C)
 */
TS_API ts_tensor *ts_embedding(ts_tensor *weight, ts_tensor *index, int64_t padding_idx);
/** Gradient of ts_embedding(): (num_weights, C), each row the sum
 * of the rows of g with its index. */
TS_API ts_tensor *ts_embedding_backward(ts_tensor *g, ts_tensor *index, int64_t num_weights,
                                        int64_t padding_idx);

/** Elements of dim in the order of index (one dim or none). */
TS_API ts_tensor *ts_index_select(ts_tensor *self, int dim, ts_tensor *index);
/** Copy of self with slice k of src added to slice index[k].
 * src has self's sizes but index's length in dim. */
TS_API ts_tensor *ts_index_add(ts_tensor *self, int dim, ts_tensor *index, ts_tensor *src);
TS_API ts_tensor *ts_index_add_(ts_tensor *self, int dim, ts_tensor *index, ts_tensor *src);

/**
 * out[i][j][k] = self[i][index[i][j][k]][k] for dim 1, and so on.
 * @param index  as many dims as self, no larger than self in the other dims;
 *               gives the result's sizes
 */
TS_API ts_tensor *ts_gather(ts_tensor *self, int dim, ts_tensor *index);
/** ts_gather() with self and index broadcast against each other in all dims but dim. */
TS_API ts_tensor *ts_take_along_dim(ts_tensor *self, ts_tensor *index, int dim);
/**
 * Copy of self with out[i][index[i][j][k]][k] = src[i][j][k] for dim 1, and so on; the last one of
 * equal indices wins. index is nowhere larger than src, nor than self in the other dims.
 */
TS_API ts_tensor *ts_scatter(ts_tensor *self, int dim, ts_tensor *index, ts_tensor *src);
TS_API ts_tensor *ts_scatter_(ts_tensor *self, int dim, ts_tensor *index, ts_tensor *src);
/** The same with one number. */
TS_API ts_tensor *ts_scatter_value(ts_tensor *self, int dim, ts_tensor *index, ts_scalar value);
TS_API ts_tensor *ts_scatter_value_(ts_tensor *self, int dim, ts_tensor *index, ts_scalar value);
/** As ts_scatter(), adding. */
TS_API ts_tensor *ts_scatter_add(ts_tensor *self, int dim, ts_tensor *index, ts_tensor *src);
TS_API ts_tensor *ts_scatter_add_(ts_tensor *self, int dim, ts_tensor *index, ts_tensor *src);

/** i64 zeros of index's sizes and a last dim of num_classes >= 1, with a one at each index. */
TS_API ts_tensor *ts_one_hot(ts_tensor *index, int64_t num_classes);

#ifndef __cplusplus
#define ts_scatter_value(self, dim, index, value)                                                  \
    ts_scatter_value(self, dim, index, TS_SCALAR(value))
#define ts_scatter_value_(self, dim, index, value)                                                 \
    ts_scatter_value_(self, dim, index, TS_SCALAR(value))
#endif

TS_END_DECLS
#endif
