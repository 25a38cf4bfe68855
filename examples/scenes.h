/**
 * @file scenes.h  Images of discs and boxes with the class of each pixel, drawn from a seed.
 */
// SPDX-License-Identifier: MIT
#ifndef EXAMPLES_SCENES_H
#define EXAMPLES_SCENES_H

#include <tessera/tessera.h>

enum { SCENE_CLASSES = 3 }; // background, disc, box

/**
 * Draws scenes first .. first + n - 1 of a seed; a scene depends on the seed and its number alone.
 * Shapes are brighter than the background on average; only outlines tell discs from boxes.
 * @param x  receives the images (n, 3, size, size), channels-last, f32, about -1 to 1
 * @param y  receives the classes (n, size, size), i64
 */
ts_status scenes_draw(uint64_t seed, int64_t first, int64_t n, int64_t size, ts_tensor **x,
                      ts_tensor **y);

/** Writes a PNG with three rows: the images, their classes, and the classes that a model found.
 *  TS_ERR_UNSUPPORTED in a build without libpng. */
ts_status scenes_save(const char *path, ts_tensor *x, ts_tensor *y, ts_tensor *found);

#endif
