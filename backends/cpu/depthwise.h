/**
 * @file depthwise.h
 * Depthwise convolutions (each group has one channel of x and one of y) of images with channels
 * innermost: vectors run along channels. Included by convolution.c only. A tap is an element of the
 * kernel; a position is an element of the result without its channel.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_DEPTHWISE_H
#define TS_BACKENDS_CPU_DEPTHWISE_H

#include "backends/cpu/vec.h"
#include "backends/cpu/windows.h"

enum {
    DEPTHWISE_TAPS = 32,     /* most taps that a result adds before it is stored */
    DEPTHWISE_POSITIONS = 4, /* positions that share the loads of a tap's weights */
    DEPTHWISE_GRADIENTS = 9  /* most taps whose gradients are summed in registers together */
};

/** A loop over all channels. It computes y, the gradient of the weight, or the positions of x with
 * one remainder modulo the stride (a form of ts_kernel_windows() in kernel.h). */
typedef struct depthwise {
    windows w;        /* image that windows read, axes (shifts are positive), item; the other
                         members are not used */
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
