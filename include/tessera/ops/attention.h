/**
 * @file attention.h
 * Scaled dot-product attention: softmax(scale · query · keyᵀ) · value, without the matrix
 * of scores in memory (FlashAttention, Dao et al. 2022). f64, f32, bf16 and f16 (computed in f32);
 * any strides. docs/attention.md defines each option and gives the formulas of the gradients.
 * Errors: TS_ERR_SHAPE, TS_ERR_DTYPE, TS_ERR_DEVICE, TS_ERR_VALUE, TS_ERR_NULL, TS_ERR_MEMORY.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_ATTENTION_H
#define TESSERA_OPS_ATTENTION_H

#include "../core.h"

TS_BEGIN_DECLS

/**
 * Options of attention; zero is default. Row i of Sq and key j of Sk are compared on the diagonal
 * that ends at the last row and the last key: row i corresponds to key i + Sk - Sq.
 */
typedef struct ts_attention_opts {
    size_t size;  /**< sizeof(ts_attention_opts); options of later versions
                       are zero for older callers */
    double scale; /**< 0 means 1 / sqrt(D) */
    bool causal;  /**< a row sees its own key and earlier ones, as with
                       window_right = 0; the last row sees all */
    /**
     * bool: true for visible pairs. Else numbers that are added to the scores, of the query's
     * dtype, or f32 beside bf16 or f16. 0 to 4 dims that broadcast to (B, H, Sq, Sk).
     * No gradient.
     */
    ts_tensor *const *mask;
    /**
     * Packed sequences of different lengths: two tensors, for query and for key and value, each
     * (B + 1) i32, from 0, never falling, up to the number of tokens. Sequence b has the tokens
     * from element b up to, not including, element b + 1. Query is (1, H, tokens, D), such as the
     * transpose of (1, tokens, H, D); key and value likewise.
     */
    ts_tensor *const *cu_seqlens;
    int64_t max_seqlen_q, max_seqlen_k; /**< largest lengths, Sq and Sk of mask and dropout;
                                             only with cu_seqlens */
    bool window;                        /**< window_left and window_right apply */
    int64_t window_left, window_right;  /**< number of keys before and after
                                             its own that a row sees; -1: all */
    double softcap;                     /**< scores become softcap · tanh(score / softcap);
                                             0: none */
    double dropout_p;                   /**< probability with which a weight is dropped;
                                             the others grow by 1 / (1 - p) */
    ts_rng_state rng;                   /**< backward with dropout: ts_rng_get_state()
                                             before the forward call */
} ts_attention_opts;

/**
 * @param query  (B, H, S, D)
 * @param key    (B, G, T, D); H is a multiple of G, and H / G heads of queries share one of keys
 * @param value  (B, G, T, E)
 * @return (B, H, S, E), with heads and rows in memory in query's order: if query is the transpose
 *         of a (B, S, H, D) tensor, reshaping to (B, S, H · E) needs no copy. Rows that see no key
 *         are 0.
 */
TS_API ts_tensor *ts_scaled_dot_product_attention(ts_tensor *query, ts_tensor *key,
                                                  ts_tensor *value);
/**
 * ts_attention() with options.
 * @param lse   receives the natural logarithm of each row's sum of exponentials, (B, H, S),
 *              -Inf for rows that see no key; f32 for bf16 and f16; without dropout; may be NULL
 * @param opts  NULL for defaults
 */
TS_API ts_tensor *ts_scaled_dot_product_attention_ex(ts_tensor *query, ts_tensor *key,
                                                     ts_tensor *value, ts_tensor **lse,
                                                     const ts_attention_opts *opts);
/**
 * Gradients of attention. The scores are recomputed tile by tile. With create_graph the gradients
 * run as separate ops, with matrices of S · T scores in memory.
 * @param grad      gradient of the result, (B, H, S, E)
 * @param grad_lse  gradient of lse, (B, H, S), or TS_NONE
 * @param out, lse  results of the forward call
 * @param opts      options of the forward call; with dropout also rng
 * @param grads     receive the gradients of query, key and value; NULL for a gradient that is not
 * requested
 */
TS_API ts_status ts_scaled_dot_product_attention_backward(
    ts_tensor *grad, ts_tensor *grad_lse, ts_tensor *query, ts_tensor *key, ts_tensor *value,
    ts_tensor *out, ts_tensor *lse, const ts_attention_opts *opts, ts_tensor **grads[3]);

TS_END_DECLS
#endif
