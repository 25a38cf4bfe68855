/**
 * @file scenes.h  Images with the class of each pixel: drawn scenes of discs and boxes, or pairs of
 * PNG files in a folder.
 */
// SPDX-License-Identifier: MIT
#ifndef EXAMPLES_SCENES_H
#define EXAMPLES_SCENES_H

#include <tessera/tessera.h>

enum { SCENE_CLASSES = 3 }; // background, disc, box

/** A source of images: its dataset has fields (3, size, size) f32, -1 to 1 up to noise, and
 *  (size, size) i64, the classes. The dataset's payload is the struct, which must not move. */
typedef struct scenes {
    ts_dataset dataset;
    uint64_t seed;  // of drawn scenes
    int64_t size;
    // of pairs of files
    char *folder;
    char **names;   // n, sorted
    int64_t n, classes;
    bool vary;      // random crops, flips and colours; else the middle of each image
} scenes;

/**
 * Drawn scenes, 2^41 of them: a scene depends on the seed and its number alone. Shapes are brighter
 * than the background on average; only outlines tell discs from boxes.
 */
void scenes_draw(scenes *s, uint64_t seed, int64_t size);

/**
 * Pairs of PNG files with the same name in `folder`/images and `folder`/masks. A mask's grey value,
 * or the index in its palette, is the class. Images are at least size x size. Files are read when
 * the loader needs them.
 */
ts_status scenes_open(scenes *s, const char *folder, int64_t size, int64_t classes, bool vary);
/** Frees the names of files. */
void scenes_close(scenes *s);

/** Writes a PNG with three rows: the images x, their classes y, and the classes that a model
 *  found. */
ts_status scenes_save(const char *path, ts_tensor *x, ts_tensor *y, ts_tensor *found);

#endif
