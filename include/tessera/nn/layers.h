/**
 * @file layers.h
 * Layers. Parameters are f32 on the calling thread's default device and are initialised from its
 * generator; ts_module_to() changes their dtype. A constructor returns a module that the caller
 * owns until ts_module_add() takes ownership, or NULL with TS_ERR_VALUE or TS_ERR_MEMORY.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_NN_LAYERS_H
#define TESSERA_NN_LAYERS_H

#include "../ops/convolution.h"
#include "module.h"

TS_BEGIN_DECLS

/**
 * x · weightᵀ + bias: (..., in) -> (..., out). Parameters "weight" (out, in) and "bias" (out),
 * uniform within 1 / sqrt(in), as torch.nn.Linear.
 */
TS_API ts_module *ts_linear_new(int64_t in, int64_t out, bool bias);

/**
 * Convolution over as many dims as kernel has numbers, 1 to 3, which TS_SIZES() gives:
 * ts_conv_new(64, 128, TS_SIZES(3, 3), true, &opts). (N, in, spatial dims) -> (N, out, ...), or one
 * sample without N. Parameters "weight" (out, in / groups, kernel) and "bias" (out), uniform within
 * 1 / sqrt(in / groups · elements of the kernel), as torch.nn.Conv2d.
 * @param opts  NULL for stride 1, no padding and one group
 */
TS_API ts_module *ts_conv_new(int64_t in, int64_t out, const int64_t *kernel, int nkernel,
                              bool bias, const ts_conv_opts *opts);
/** Transposed convolution. "weight" (in, out / groups, kernel) and "bias" (out), uniform within
 *  1 / sqrt(out / groups · elements of the kernel), as torch.nn.ConvTranspose2d. */
TS_API ts_module *ts_conv_transpose_new(int64_t in, int64_t out, const int64_t *kernel,
                                        int nkernel, bool bias, const ts_conv_opts *opts);

/**
 * Rows of a table: indices of any sizes, i64 or i32, -> (..., width). Parameter "weight" (count,
 * width), standard normal. TS_ERR_INDEX for an index outside 0 to count - 1.
 */
TS_API ts_module *ts_embedding_new(int64_t count, int64_t width);

/** (x - mean) / sqrt(var + eps) * weight + bias over the last dim.
 * "weight", "bias" (width); eps 0 is 1e-5. */
TS_API ts_module *ts_layer_norm_new(int64_t width, double eps, bool bias);
/** x / sqrt(mean(x^2) + eps) * weight over the last dim. "weight" (width);
 * eps 0 is the dtype's epsilon. */
TS_API ts_module *ts_rms_norm_new(int64_t width, double eps);

/** In training, zeroes elements with probability p and scales the others by 1 / (1 - p); otherwise
 *  returns x. */
TS_API ts_module *ts_dropout_new(double p);

/** A function of one tensor as a module: ts_activation_new("GELU", ts_gelu). */
TS_API ts_module *ts_activation_new(const char *name, ts_tensor *(*function)(ts_tensor *x));

/** Options of ts_mlp_new(); zero is default. */
typedef struct ts_mlp_opts {
    size_t size;                            /**< sizeof(ts_mlp_opts) */
    bool no_bias;
    double dropout;                         /**< after the second layer */
    ts_tensor *(*activation)(ts_tensor *x); /**< NULL: ts_gelu */
} ts_mlp_opts;
/** Two linear layers "fc" (hidden, width) and "proj" (width, hidden) with an activation between:
 *  (..., width) -> (..., width). */
TS_API ts_module *ts_mlp_new(int64_t width, int64_t hidden, const ts_mlp_opts *opts);

/** Options of ts_multihead_new(); zero is default. */
typedef struct ts_multihead_opts {
    size_t size;      /**< sizeof(ts_multihead_opts) */
    int64_t kv_heads; /**< G, heads of keys and values, shared by H / G heads of queries; 0: H */
    bool causal;      /**< each position sees positions up to its own; otherwise all */
    bool no_bias;
    double dropout;   /**< of the result */
} ts_multihead_opts;
/**
 * Self-attention: (B, T, width) -> (B, T, width), scale 1 / sqrt(width / H). Children "qkv", a
 * linear layer to (H + 2 G) * width / H that gives queries, keys, values in this order, and "proj".
 * @param heads  H, divides width
 */
TS_API ts_module *ts_multihead_new(int64_t width, int64_t heads, const ts_multihead_opts *opts);

/** Runs its children in the order in which they were added; they are named "0", "1", ... */
TS_API ts_module *ts_sequential_new(void);
/** Adds a child and takes it over, also on failure. */
TS_API ts_status ts_sequential_add(ts_module *sequential, ts_module *child);

TS_END_DECLS
#endif
