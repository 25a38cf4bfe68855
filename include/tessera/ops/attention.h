/**
 * @file attention.h
 * Scaled dot-product attention: softmax(scale · query · keyᵀ) · value, without the matrix of scores in
 * memory (FlashAttention, Dao et al. 2022). f32 and f64, any strides.
 * Errors: TS_ERR_SHAPE, TS_ERR_DTYPE, TS_ERR_DEVICE, TS_ERR_MEMORY.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_ATTENTION_H
#define TESSERA_OPS_ATTENTION_H

#include "../core.h"

TS_BEGIN_DECLS

/** Options of attention; zero is default. */
typedef struct ts_attention_opts {
    size_t size;  /**< sizeof(ts_attention_opts) */
    double scale; /**< 0 stands for 1 / sqrt(D) */
    bool causal;  /**< row i sees the keys 0 to i + T - S: the last row sees all */
} ts_attention_opts;

/**
 * @param query  (B, H, S, D)
 * @param key    (B, G, T, D); H is a multiple of G, and H / G heads of queries share one of keys
 * @param value  (B, G, T, E)
 * @return (B, H, S, E), with heads and rows in memory in the order of query's: after a transpose of a
 *         (B, S, H, D) tensor the way back to (B, S, H · E) needs no copy. Rows that see no key are 0.
 */
TS_API ts_tensor *ts_scaled_dot_product_attention(ts_tensor *query, ts_tensor *key, ts_tensor *value);
/**
 * The same with options.
 * @param lse   receives the natural logarithm of each row's sum of exponentials, (B, H, S), -Inf for rows
 *              that see no key; f32 for bf16 and f16; may be NULL
 * @param opts  NULL for defaults
 */
TS_API ts_tensor *ts_scaled_dot_product_attention_ex(ts_tensor *query, ts_tensor *key, ts_tensor *value, ts_tensor **lse,
                                                     const ts_attention_opts *opts);
/**
 * Gradients of attention. The scores are computed again, tile by tile. Only when these gradients are to
 * be differentiated once more (create_graph) do they come by parts, with the matrices of S · T scores in memory.
 * @param grad      gradient of the result, (B, H, S, E)
 * @param grad_lse  gradient of lse, (B, H, S), or TS_NONE
 * @param out, lse  what the forward call returned
 * @param opts      what the forward call got
 * @param grads     where the gradients of query, key and value go; NULL for one that is not wanted
 */
TS_API ts_status ts_scaled_dot_product_attention_backward(ts_tensor *grad, ts_tensor *grad_lse, ts_tensor *query,
                                                          ts_tensor *key, ts_tensor *value, ts_tensor *out, ts_tensor *lse,
                                                          const ts_attention_opts *opts, ts_tensor **grads[3]);

TS_END_DECLS
#endif
