/**
 * @file scenes.h  Images with the class of each pixel: drawn scenes of discs and boxes, or pairs of
 * PNG files in a folder.
 */
// SPDX-License-Identifier: MIT
#ifndef EXAMPLES_SCENES_H
#define EXAMPLES_SCENES_H

#include <tessera/tessera.h>

enum { SCENE_CLASSES = 3 }; // background, disc, box

/** A source of images. Its dataset has two fields: the image (3, size, size) f32, with values from
 *  -1 to 1 (drawn scenes: noise and patterns exceed this range by at most 0.42), and the classes
 *  (size, size) i64. The dataset's payload is this struct, which must not move while a loader uses
 *  it. */
typedef struct scenes {
    ts_dataset dataset;
    uint64_t seed;  // of drawn scenes
    int64_t size;
    // the following fields are used only for pairs of files
    char *folder;
    char **names;   // names of n files, sorted
    int64_t n, classes;
    bool augment;   // true: random crops, flips and colours; false: the middle of each image
} scenes;

/**
 * Sets *s to a dataset of 2^41 drawn scenes. A scene depends only on seed, size and its index.
 * Shapes are brighter than the background on average; only their outlines distinguish discs from
 * boxes.
 * TS_ERR_VALUE unless classes is SCENE_CLASSES.
 */
ts_status scenes_draw(scenes *s, uint64_t seed, int64_t size, int64_t classes);

/**
 * Sets *s to a dataset of the PNG files in `folder`/images, with masks of the same names in
 * `folder`/masks. The class of a pixel is the mask's grey value or palette index, below `classes`.
 * Images are at least size x size. The function checks the sizes of all files; the loader's threads
 * read them and check the classes. Errors: TS_ERR_IO if there are no PNG files or an image or mask
 * cannot be read, TS_ERR_FORMAT, TS_ERR_SHAPE, TS_ERR_MEMORY. Call scenes_close() also after an
 * error.
 */
ts_status scenes_open(scenes *s, const char *folder, int64_t size, int64_t classes, bool augment);
/** Frees the memory that scenes_open() allocated. */
void scenes_close(scenes *s);

/** Writes a PNG with three rows of pictures: the images x (n, 3, size, size) f32, their classes y,
 *  and the classes `found` by a model, both (n, size, size) i64. CPU tensors; y and found must be
 *  contiguous. */
ts_status scenes_save(const char *path, ts_tensor *x, ts_tensor *y, ts_tensor *found);

#endif
