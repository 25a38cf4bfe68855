/**
 * @file attention.h
 * Scaled dot-product attention: softmax(scale · query · keyᵀ) · value, without the matrix
 * of scores in memory (FlashAttention, Dao et al. 2022). Query, key and value have one dtype: f64,
 * f32, bf16 or f16; bf16 and f16 are computed in f32. They may have any strides. docs/attention.md
 * defines each option and the gradients. Errors: TS_ERR_SHAPE, TS_ERR_DTYPE, TS_ERR_DEVICE,
 * TS_ERR_VALUE, TS_ERR_NULL, TS_ERR_MEMORY.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_ATTENTION_H
#define TESSERA_OPS_ATTENTION_H

#include "../core.h"

TS_BEGIN_DECLS

/**
 * Options of attention; zero is default. A row is a position of query (Sq rows), a key a position
 * of key and value (Sk keys). A row sees a key if the key is part of the row's softmax. Windows
 * count from the row's own key, which is key i + Sk - Sq for row i: the last row owns the last key.
 */
typedef struct ts_attention_opts {
    size_t size;  /**< sizeof(ts_attention_opts) */
    double scale; /**< factor of query · keyᵀ; 0: 1 / sqrt(D) */
    bool causal;  /**< each row sees the keys up to its own key: window_right is then 0, whatever
                       the field says */
    /**
     * Address of a mask that broadcasts to (B, H, Sq, Sk), 0 to 4 dims; NULL, or the address of
     * TS_NONE: none. A bool mask is true where a row sees a key. Any other mask is added to the
     * scores; it has the query's dtype, or may be f32 if the query is bf16 or f16. The mask has no
     * gradient.
     */
    ts_tensor *const *mask;
    /**
     * Packed sequences of different lengths: an array of two tensors, the first for query, the
     * second for key and value; NULL: not packed. Each tensor is (B + 1) i32, starts at 0, never
     * decreases and ends at the number of tokens. Sequence b has the tokens from element b up to,
     * but not including, element b + 1. Query is (1, H, tokens, D), such as the transpose of a
     * (1, tokens, H, D) tensor; key and value likewise.
     */
    ts_tensor *const *cu_seqlens;
    int64_t max_seqlen_q, max_seqlen_k; /**< required with cu_seqlens: at least the length of the
                                             longest sequence of query and of key. They are Sq and
                                             Sk of the mask and of dropout's random numbers */
    bool window;                        /**< use window_left and window_right; if false, both must
                                             be 0 */
    int64_t window_left, window_right;  /**< number of keys that a row sees before and after its own
                                             key; -1: all */
    double softcap;                     /**< scores become softcap · tanh(score / softcap);
                                             0: unchanged */
    double dropout_p;                   /**< probability, 0 to 1, with which a weight of the softmax
                                             is set to 0; the others are multiplied by
                                             1 / (1 - dropout_p) */
    ts_rng_state rng;                   /**< for ts_scaled_dot_product_attention_backward() with
                                             dropout: ts_rng_get_state() before the forward call */
    /**
     * For padded keys and values, such as a KV cache: address of a (B) i32 tensor with the number
     * of keys of each batch entry, from 0 to Sk; NULL: all entries have Sk keys. Keys beyond the
     * number are not seen and not read, and their gradients are 0. The number replaces Sk in the
     * position of the row's own key. Not with cu_seqlens.
     */
    ts_tensor *const *key_lengths;
} ts_attention_opts;

/**
 * Attention with the default options. H is the number of query heads, G the number of key heads.
 * @param query  (B, H, Sq, D)
 * @param key    (B, G, Sk, D); H is a multiple of G, and H / G query heads share one key head
 * @param value  (B, G, Sk, E)
 * @return (B, H, Sq, E), with heads and rows in memory in query's order: if query is the transpose
 *         of a (B, Sq, H, D) tensor, reshaping to (B, Sq, H · E) needs no copy. Rows that see no
 *         key are 0.
 */
TS_API ts_tensor *ts_scaled_dot_product_attention(ts_tensor *query, ts_tensor *key,
                                                  ts_tensor *value);
/**
 * Like ts_scaled_dot_product_attention(), with options; shapes are the same.
 * @param lse   receives the natural logarithm of each row's sum of exponentials, (B, H, Sq), before
 *              dropout; -Inf for rows that see no key; f32 for bf16 and f16. May be NULL
 * @param opts  NULL for defaults
 */
TS_API ts_tensor *ts_scaled_dot_product_attention_ex(ts_tensor *query, ts_tensor *key,
                                                     ts_tensor *value, ts_tensor **lse,
                                                     const ts_attention_opts *opts);
/**
 * Gradients of attention. The scores are recomputed tile by tile. If autograd records the call
 * (create_graph), it runs as separate ops, with matrices of Sq · Sk scores in memory.
 * @param grad      gradient of the result, (B, H, Sq, E)
 * @param grad_lse  gradient of lse, (B, H, Sq), or TS_NONE
 * @param out, lse  results of the forward call
 * @param opts      options of the forward call; with dropout also rng
 * @param grads     addresses that receive the gradients of query, key and value, with the sizes and
 *                  dtype of these; NULL for a gradient that is not needed
 */
TS_API ts_status ts_scaled_dot_product_attention_backward(
    ts_tensor *grad, ts_tensor *grad_lse, ts_tensor *query, ts_tensor *key, ts_tensor *value,
    ts_tensor *out, ts_tensor *lse, const ts_attention_opts *opts, ts_tensor **grads[3]);

TS_END_DECLS
#endif
