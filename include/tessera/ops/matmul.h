/**
 * @file matmul.h
 * Products of matrices. Operands have one dtype (f32, f64, i64, i32, u8) and device;
 * any of them may be a transposed view, which costs nothing. A product over no elements is 0.
 * Errors: TS_ERR_SHAPE, TS_ERR_DTYPE, TS_ERR_DEVICE, TS_ERR_MEMORY.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_MATMUL_H
#define TESSERA_OPS_MATMUL_H

#include "../core.h"

TS_BEGIN_DECLS

/** self (m, k) times mat2 (k, n): (m, n). */
TS_API ts_tensor *ts_mm(ts_tensor *self, ts_tensor *mat2);
/** As ts_mm() into out (m, n), which must share no memory with the operands. */
TS_API ts_tensor *ts_mm_out(ts_tensor *out, ts_tensor *self, ts_tensor *mat2);
/** self (b, m, k) times mat2 (b, k, n), matrix by matrix: (b, m, n). */
TS_API ts_tensor *ts_bmm(ts_tensor *self, ts_tensor *mat2);
TS_API ts_tensor *ts_bmm_out(ts_tensor *out, ts_tensor *self, ts_tensor *mat2);
/** Options of ts_addmm_ex(); zero is default. */
typedef struct ts_addmm_opts {
    size_t size;            /**< sizeof(ts_addmm_opts) */
    const ts_scalar *beta;  /**< factor of self; NULL: 1. At 0 self is not read. */
    const ts_scalar *alpha; /**< factor of the product; NULL: 1 */
} ts_addmm_opts;

/**
 * self + mat1 · mat2.
 * @param self  broadcasts to (m, n); its dtype is the operands'
 * @param mat1  (m, k)
 * @param mat2  (k, n)
 * @return (m, n)
 */
TS_API ts_tensor *ts_addmm(ts_tensor *self, ts_tensor *mat1, ts_tensor *mat2);
/** beta · self + alpha · mat1 · mat2. Factors of integers are integers (TS_ERR_DTYPE). */
TS_API ts_tensor *ts_addmm_ex(ts_tensor *self, ts_tensor *mat1, ts_tensor *mat2,
                              const ts_addmm_opts *opts);
/** The same into out (m, n), which must share no memory with the operands. */
TS_API ts_tensor *ts_addmm_out(ts_tensor *out, ts_tensor *self, ts_tensor *mat1, ts_tensor *mat2,
                               const ts_addmm_opts *opts);
/**
 * The product of what self and other are: two vectors (K) give their dot product, a vector beside a
 * matrix stands for a row on the left and a column on the right, and leading dims of matrices
 * broadcast: (…, m, k) with (…, k, n) gives (…, m, n).
 */
TS_API ts_tensor *ts_matmul(ts_tensor *self, ts_tensor *other);
/**
 * input · weightᵀ + bias.
 * @param input   (…, K)
 * @param weight  (N, K)
 * @param bias    (N), or TS_NONE
 * @return (…, N)
 */
TS_API ts_tensor *ts_linear(ts_tensor *input, ts_tensor *weight, ts_tensor *bias);
TS_API ts_tensor *ts_linear_out(ts_tensor *out, ts_tensor *input, ts_tensor *weight,
                                ts_tensor *bias);
/**
 * Gradients of ts_linear(): grad · weight, gradᵀ · input and the column sums of grad.
 * @param grad         (…, N)
 * @param input        (…, K); TS_NONE when grad_weight is not wanted
 * @param weight       (N, K); TS_NONE when grad_input is not wanted
 * @param grad_input   receives (…, K); NULL when not wanted, as the other two
 * @param grad_weight  receives (N, K)
 * @param grad_bias    receives (N)
 */
TS_API ts_status ts_linear_backward(ts_tensor *grad, ts_tensor *input, ts_tensor *weight,
                                    ts_tensor **grad_input, ts_tensor **grad_weight,
                                    ts_tensor **grad_bias);
/**
 * The gelu of ts_linear() in one call: the first half of a transformer's MLP.
 * @param input      (…, K), of a floating dtype
 * @param weight     (N, K)
 * @param bias       (N), or TS_NONE
 * @param tanh_form  as ts_gelu_tanh(), else as ts_gelu()
 * @param linear     receives input · weightᵀ + bias (…, N), which
 *                   ts_gelu_backward() reads; may be NULL
 * @return (…, N)
 */
TS_API ts_tensor *ts_linear_gelu(ts_tensor *input, ts_tensor *weight, ts_tensor *bias,
                                 bool tanh_form, ts_tensor **linear);

TS_END_DECLS
#endif
