/**
 * @file depthwise.h
 * Depthwise convolutions of images with channels innermost: vectors run along channels. Included by
 * convolution.c only.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_DEPTHWISE_H
#define TS_BACKENDS_CPU_DEPTHWISE_H

#include "backends/cpu/vec.h"
#include "backends/cpu/windows.h"

enum {
    DEPTHWISE_TAPS = 32,     /* most taps that are summed together */
    DEPTHWISE_POSITIONS = 4, /* positions that share the loads of a tap's weights */
    DEPTHWISE_GRADIENTS = 9  /* taps whose gradients are summed together */
};

/** A call: all channels of y, of the elements of x of one form, or of the gradient of the
 * weight. */
typedef struct depthwise {
    windows w;        /* windows of all channels; shifts are positive */
    image to;         /* the result image; for the gradient of the weight: y */
    char *weight;     /* (taps, channels), or its gradient */
    const char *bias; /* (channels), or NULL */
    int64_t channels, batch, taps;
} depthwise;

#define REAL_BITS 32
#include "backends/cpu/depthwise_real.h"
#undef REAL_BITS
#define REAL_BITS 64
#include "backends/cpu/depthwise_real.h"
#undef REAL_BITS

#endif
