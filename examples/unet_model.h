/** @file unet_model.h  The U-Net of Ronneberger et al. (2015), with padding and batch norm. */
// SPDX-License-Identifier: MIT
#ifndef EXAMPLES_UNET_MODEL_H
#define EXAMPLES_UNET_MODEL_H

#include <tessera/tessera.h>

/**
 * Makes a U-Net that maps images (B, 3, H, W) to logits (B, classes, H, W); H and W are multiples
 * of 16. Its five levels have width, 2 width, ..., 16 width channels. The caller frees it with
 * ts_module_free(). NULL after an error.
 */
ts_module *unet_new(int64_t width, int64_t classes);

/**
 * Cross entropy plus a Dice loss (Milletari et al. 2016), 0-dim. The Dice loss of a class is
 * 1 - 2 sum(p t) / (sum(p + t) + 1) over all pixels of the batch, with softmax probabilities p and
 * targets t (1 in the class, else 0). Its mean over the classes gives a class of few pixels the
 * weight of the background.
 * @param logits  (B, classes, H, W) f32
 * @param y       (B, H, W) i64
 */
ts_tensor *unet_loss(ts_tensor *logits, ts_tensor *y);

#endif
