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

#endif
