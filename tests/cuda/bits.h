/** @file bits.h  Skips cases that compare the bits of compiled and eager calls on a GPU, unless
 * TS_COMPILE=fuse excludes the groups whose bits differ. */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_TESTS_CUDA_BITS_H
#define TESSERA_TESTS_CUDA_BITS_H

#include <stdlib.h>
#include <string.h>

/** Skips a case that compares bits if groups by rows may be fused: their sums differ in order. */
#define POINTWISE_GROUPS_ONLY                                               \
    if (!getenv("TS_COMPILE") || strcmp(getenv("TS_COMPILE"), "fuse") != 0) \
    TS_SKIP("the case compares bits with eager calls: run it with TS_COMPILE=fuse")

#endif
