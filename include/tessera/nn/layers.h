/**
 * @file layers.h
 * Modules with parameters, activations, containers. Parameters are f32 on the calling thread's
 * default device, initialised from its generator; ts_module_to() changes their dtype. Sizes are at
 * least 1. A constructor returns a module that the caller owns until ts_module_add() takes
 * ownership, or NULL with TS_ERR_VALUE, TS_ERR_NULL, TS_ERR_MEMORY or an error of the device.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_NN_LAYERS_H
#define TESSERA_NN_LAYERS_H

#include "../ops/convolution.h"
#include "module.h"

TS_BEGIN_DECLS

/**
 * x · weightᵀ + bias: (..., in) -> (..., out). Parameters "weight" (out, in) and, if `bias`, "bias"
 * (out), uniform between -1 / sqrt(in) and 1 / sqrt(in), as torch.nn.Linear.
 */
TS_API ts_module *ts_linear_new(int64_t in, int64_t out, bool bias);

/**
 * Convolution over nkernel spatial dims, 1 to 3: (N, in, spatial dims) -> (N, out, spatial dims),
 * or one sample without N. ts_conv_new(64, 128, TS_SIZES(3, 3), true, &opts) is a 3 × 3
 * convolution. Parameters "weight" (out, in / groups, kernel) and, if `bias`, "bias" (out), uniform
 * between -b and b, where b = 1 / sqrt(in / groups · elements of the kernel), as torch.nn.Conv2d.
 * @param in, out  multiples of opts->groups
 * @param kernel   nkernel sizes of the window
 * @param opts     copied; NULL for stride 1, no padding and one group. The constructor checks
 *                 opts->groups, each forward the other fields
 */
TS_API ts_module *ts_conv_new(int64_t in, int64_t out, const int64_t *kernel, int nkernel,
                              bool bias, const ts_conv_opts *opts);
/** Transposed convolution; arguments and shapes as for ts_conv_new(). Parameters "weight"
 *  (in, out / groups, kernel) and, if `bias`, "bias" (out), uniform between -b and b, where
 *  b = 1 / sqrt(out / groups · elements of the kernel), as torch.nn.ConvTranspose2d. */
TS_API ts_module *ts_conv_transpose_new(int64_t in, int64_t out, const int64_t *kernel,
                                        int nkernel, bool bias, const ts_conv_opts *opts);

/**
 * Looks up rows of a table: (...) i64 or i32 -> (..., width). Parameter "weight" (count, width),
 * standard normal. The forward fails with TS_ERR_INDEX for an index outside 0 to count - 1.
 */
TS_API ts_module *ts_embedding_new(int64_t count, int64_t width);

/** (x - mean) / sqrt(var + eps) * weight + bias over the last dim, of size width. Parameters
 *  "weight", ones, and, if `bias`, "bias", zeros, both (width). eps 0 means 1e-5; a negative one is
 *  TS_ERR_VALUE. */
TS_API ts_module *ts_layer_norm_new(int64_t width, double eps, bool bias);
/** x / sqrt(mean(x^2) + eps) * weight over the last dim, of size width. Parameter "weight" (width),
 *  ones. eps 0 means the epsilon of f64 if x is f64, else of f32; a negative one is
 *  TS_ERR_VALUE. */
TS_API ts_module *ts_rms_norm_new(int64_t width, double eps);

/** ts_dropout() with probability p, 0 to 1: in training, zeroes elements with probability p and
 *  scales the others by 1 / (1 - p); otherwise, and for p = 0, the result is an alias of x. */
TS_API ts_module *ts_dropout_new(double p);

/** A function of one tensor as a module: ts_activation_new("GELU", ts_gelu). The name is copied and
 *  cut to 31 bytes; it follows the rules of ts_module_type.name. */
TS_API ts_module *ts_activation_new(const char *name, ts_tensor *(*function)(ts_tensor *x));

/** Options of ts_mlp_new(); zero is default. */
typedef struct ts_mlp_opts {
    size_t size;                            /**< sizeof(ts_mlp_opts) */
    bool no_bias;                           /**< neither linear layer has a bias */
    double dropout;                         /**< probability of dropout after the second layer */
    ts_tensor *(*activation)(ts_tensor *x); /**< NULL: ts_gelu */
} ts_mlp_opts;
/** Two linear layers with an activation between them: (..., width) -> (..., width). Children "fc",
 *  width to hidden, and "proj", hidden to width; "dropout" if opts->dropout is not 0. If the
 *  activation is ts_gelu or ts_gelu_tanh, the forward calls ts_linear_gelu() with the parameters of
 *  "fc", unless "fc" has forward hooks. */
TS_API ts_module *ts_mlp_new(int64_t width, int64_t hidden, const ts_mlp_opts *opts);

/** Options of ts_multihead_new(); zero is default. */
typedef struct ts_multihead_opts {
    size_t size;      /**< sizeof(ts_multihead_opts) */
    int64_t kv_heads; /**< G, number of heads of keys and values; divides H. H / G query heads share
                           one head of keys and values. 0: H */
    bool causal;      /**< each position attends to itself and earlier ones; false: to all */
    bool no_bias;     /**< neither linear layer has a bias */
    double dropout;   /**< probability of dropout of the result of "proj" */
} ts_multihead_opts;
/**
 * Self-attention: (B, T, width) -> (B, T, width), with the scale 1 / sqrt(width / H). An input
 * without three dims is TS_ERR_SHAPE. Children: "qkv", a linear layer from width to (H + 2 G) *
 * width / H, whose result is queries, keys and values in this order; "proj", a linear layer from
 * width to width; "dropout" if opts->dropout is not 0.
 * @param heads  H, divides width
 */
TS_API ts_module *ts_multihead_new(int64_t width, int64_t heads, const ts_multihead_opts *opts);

/** A module that runs its children in the order in which they were added: the first child on x,
 *  each other child on the result of the previous child. The children's names are "0", "1", ...
 *  Without children, the result is x itself. */
TS_API ts_module *ts_sequential_new(void);
/** Adds a child and takes ownership of it; ownership after an error, and errors, as
 *  ts_module_add(). */
TS_API ts_status ts_sequential_add(ts_module *sequential, ts_module *child);

TS_END_DECLS
#endif
