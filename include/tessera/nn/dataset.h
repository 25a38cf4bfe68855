/**
 * @file dataset.h  Datasets, and random augmentation of images. A dataset gives samples by index; a
 * loader (loader.h) makes batches of them.
 *
 * A dataset is a struct of two functions:
 *
 *     static int64_t scenes_length(void *payload) { return 10000; }
 *     static ts_status scenes_get(void *payload, int64_t index, ts_tensor **sample)
 *     {
 *         sample[0] = draw_image(index);              // (3, H, W) f32
 *         return TS_STATUS_OF(sample[1] = ts_scalar_tensor(TS_SCALAR(class_of(index)), TS_I64));
 *     }
 *     const ts_dataset scenes = {sizeof scenes, scenes_length, scenes_get};
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_NN_DATASET_H
#define TESSERA_NN_DATASET_H

#include "../core.h"

TS_BEGIN_DECLS

/** Largest number of tensors in a sample. */
#define TS_SAMPLE_FIELDS 8

/** A source of samples. The functions may be called from several threads at once. */
typedef struct ts_dataset {
    size_t size; /**< sizeof(ts_dataset) */
    /** Returns the number of samples; a negative number, after ts_error_set(), is a failure.
     *  ts_loader_new() calls it once. */
    int64_t (*length)(void *payload);
    /**
     * Makes sample `index`, from 0 to length - 1: writes `fields` CPU tensors in the caller's
     * scope, of at most 7 dims each, to `sample`. A field has the same sizes and dtype in all
     * samples of a batch. During the call gradients are not recorded, and the default device is the
     * CPU. The loader's seed, the epoch and `index` determine the state of the thread's random
     * generator, so random functions do not depend on threads or on the order of the samples.
     * @return TS_OK, or the code of a recorded error, which ts_loader_next() returns
     */
    ts_status (*get)(void *payload, int64_t index, ts_tensor **sample);
    void *payload; /**< passed to the functions */
    int fields;    /**< tensors of a sample, 1 to TS_SAMPLE_FIELDS; 0: 2 */
} ts_dataset;

/**
 * Makes a dataset of tensors in memory: field f of sample i is entry i of the first dim of
 * tensors[f]. The dataset keeps references to the tensors.
 * @param tensors  n CPU tensors, 1 to TS_SAMPLE_FIELDS, with the same size of the first dim
 * @return owned by the caller (ts_tensor_dataset_free()); NULL with TS_ERR_NULL, TS_ERR_VALUE,
 *         TS_ERR_SHAPE, TS_ERR_DEVICE or TS_ERR_MEMORY
 */
TS_API const ts_dataset *ts_tensor_dataset_new(ts_tensor *const *tensors, int n);
/** Frees a dataset of ts_tensor_dataset_new(); close its loaders first. NULL-safe. */
TS_API void ts_tensor_dataset_free(const ts_dataset *dataset);

/** Options of ts_augment(); zero leaves the images as they are. */
typedef struct ts_augment_opts {
    size_t size;            /**< sizeof(ts_augment_opts) */
    double flip;            /**< probability of a horizontal flip (left and right exchanged) */
    double flip_vertical;   /**< probability of a vertical flip (top and bottom exchanged) */
    int64_t padding;        /**< pixels of reflection padding on each side before the crop; less
                                 than the image's height and width */
    int64_t height, width;  /**< sizes of a random crop of the padded image; 0: the image's
                                 size before padding */
    double brightness;      /**< 0 to 1: multiplies the first image by a random factor from
                                 1 - brightness to 1 + brightness */
    double contrast;        /**< 0 to 1: scales the difference from the image's mean grey value by
                                 a random factor from 1 - contrast to 1 + contrast */
    double saturation;      /**< 0 to 1: the same for the difference from each pixel's grey value */
} ts_augment_opts;

/**
 * Augments images: random flips and crop, then random brightness, contrast and saturation, in this
 * order. All n images get the same flips and the same crop, so a mask stays aligned with its image.
 * Brightness, contrast and saturation change the first image only, which must then be (C, H, W) of
 * a floating dtype with values from 0 to 1; each of the three clamps its result to this range. Grey
 * is 0.299 R + 0.587 G + 0.114 B for C = 3, else the mean of the channels. Each call takes the same
 * number of random numbers from the calling thread's generator (Philox).
 * @param images  n CPU tensors of any dtype, 1 to TS_SAMPLE_FIELDS; the last two dims are height
 *                and width, equal in all images
 * @param opts    NULL: no change
 * @param out     receives n tensors in the caller's scope; may be `images`
 * Errors: TS_ERR_NULL, TS_ERR_VALUE, TS_ERR_SHAPE, TS_ERR_DTYPE, TS_ERR_DEVICE, TS_ERR_MEMORY.
 */
TS_API ts_status ts_augment(ts_tensor *const *images, int n, const ts_augment_opts *opts,
                            ts_tensor **out);

TS_END_DECLS
#endif
