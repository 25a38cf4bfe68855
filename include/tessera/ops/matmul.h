/**
 * @file matmul.h  Matrix products with options or several results. The section matmul of
 * generated.h states the dtypes and errors.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_MATMUL_H
#define TESSERA_OPS_MATMUL_H

#include "../core.h"

TS_BEGIN_DECLS

/** Options of ts_addmm_ex(), which computes beta self + alpha mat1 mat2; zero is default. */
typedef struct ts_addmm_opts {
    size_t size;            /**< sizeof(ts_addmm_opts) */
    const ts_scalar *beta;  /**< factor of self; NULL: 1. If it is 0, self is not read */
    const ts_scalar *alpha; /**< factor of the product; NULL: 1 */
} ts_addmm_opts;

/**
 * Gradients of ts_linear(): grad · weight, gradᵀ · input and the column sums of grad. Errors: those
 * of all matrix products, and TS_ERR_NULL if a requested gradient needs a tensor that is TS_NONE.
 * @param grad         gradient of the result, (…, N)
 * @param input        (…, K); may be TS_NONE if grad_weight is NULL
 * @param weight       (N, K); may be TS_NONE if grad_input is NULL
 * @param grad_input   receives (…, K); NULL if the gradient is not needed, as for the other two
 * @param grad_weight  receives (N, K)
 * @param grad_bias    receives (N)
 */
TS_API ts_status ts_linear_backward(ts_tensor *grad, ts_tensor *input, ts_tensor *weight,
                                    ts_tensor **grad_input, ts_tensor **grad_weight,
                                    ts_tensor **grad_bias);

TS_END_DECLS
#endif
