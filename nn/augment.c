/** @file augment.c  Augmentation of images: random flips, crops and changes of colours. */
// SPDX-License-Identifier: MIT
#include "nn/nn.h"

#include <string.h>

/** The random numbers of a call, uniform in [0, 1). */
enum { FLIP, FLIP_VERTICAL, TOP, LEFT, BRIGHTNESS, CONTRAST, SATURATION, DRAWS };

static ts_status check_images(ts_tensor *const *images, int n, const ts_augment_opts *o)
{
    int ndim = ts_ndim(images[0]);
    int64_t height = ndim < 2 ? 0 : ts_size(images[0], -2), width = ndim < 2 ? 0
                                                                 : ts_size(images[0], -1);
    for (int i = 0; i < n; i++) {
        const ts_tensor *t = images[i];
        char got[100];
        if (ts_device_of(t).backend != 0)
            return ts_error_set(TS_ERR_DEVICE, "augment: image %d: expected one on cpu, got %s", i,
                                ts_device_name(ts_device_of(t)));
        if (ts_ndim(t) < 2 || ts_size(t, -2) != height || ts_size(t, -1) != width || !height ||
            !width)
            return ts_error_set(TS_ERR_SHAPE,
                                "augment: image %d: expected the height and width of image 0, "
                                "(%lld, %lld), not 0, got sizes %s", i, (long long)height,
                                (long long)width,
                                ts_format_sizes(got, sizeof got, ts_sizes(t), ts_ndim(t)));
    }
    if (o->padding >= height || o->padding >= width || o->height > height + 2 * o->padding ||
        o->width > width + 2 * o->padding)
        return ts_error_set(TS_ERR_SHAPE,
                            "augment: expected padding below both sizes and a crop within the "
                            "padded image; got padding %lld and a crop of (%lld, %lld) of "
                            "(%lld, %lld)", (long long)o->padding, (long long)o->height,
                            (long long)o->width, (long long)height, (long long)width);
    if ((o->brightness > 0 || o->contrast > 0 || o->saturation > 0) &&
        (ndim != 3 || !ts_dtype_is_float(ts_dtype_of(images[0]))))
        return ts_error_set(ndim != 3 ? TS_ERR_SHAPE : TS_ERR_DTYPE,
                            "augment: a change of colours: expected a floating image (C, H, W), "
                            "got %s of %d dims", ts_dtype_name(ts_dtype_of(images[0])), ndim);
    return TS_OK;
}

/** Indices of a crop of `count` pixels along a dim of `size` pixels with reflection padding, in
 *  reverse order if `flip`. position: position of the crop, from 0 (first) to 1 (last). */
static ts_tensor *crop_indices(int64_t size, int64_t count, int64_t padding, double position,
                               bool flip)
{
    ts_tensor *t = ts_empty_on(TS_SIZES(count), TS_I64, TS_DEVICE_CPU);
    int64_t *at = ts_data_mut(t),
            from = (int64_t)(position * (double)(size + 2 * padding - count + 1)) - padding;
    for (int64_t i = 0; i < count && t; i++) {
        int64_t k = from + (flip ? count - 1 - i : i);
        k = k < 0 ? -k : k;
        at[i] = k < size ? k : 2 * (size - 1) - k;
    }
    return t;
}

/** Maps draw, uniform in [0, 1), to a factor from 1 - most to 1 + most. */
static double factor(double most, double draw) { return 1 + most * (2 * draw - 1); }

static ts_tensor *grey(ts_tensor *image) // (C, H, W) -> (1, H, W)
{
    static const double weights[] = {0.299, 0.587, 0.114};
    ts_tensor *sum = NULL;
    if (ts_size(image, 0) != 3)
        return ts_mean_dim(image, 0, true);
    for (int c = 0; c < 3; c++) {
        ts_tensor *part = ts_mul_scalar(ts_slice(image, 0, c, c + 1, 1), weights[c]);
        sum = c ? ts_add(sum, part) : part;
    }
    return sum;
}

static ts_tensor *change_colours(ts_tensor *image, const ts_augment_opts *o, const double *draw)
{
    if (o->brightness > 0)
        image = ts_clamp(ts_mul_scalar(image, factor(o->brightness, draw[BRIGHTNESS])),
                         ts_scalar_float(0), ts_scalar_float(1));
    if (o->contrast > 0)
        image = ts_clamp(ts_lerp_scalar(ts_mean(grey(image)), image,
                                        factor(o->contrast, draw[CONTRAST])),
                         ts_scalar_float(0), ts_scalar_float(1));
    if (o->saturation > 0)
        image = ts_clamp(ts_lerp_scalar(grey(image), image,
                                        factor(o->saturation, draw[SATURATION])),
                         ts_scalar_float(0), ts_scalar_float(1));
    return image;
}

static ts_status augment(ts_tensor *const *images, int n, const ts_augment_opts *o, ts_tensor **out)
{
    TS_SCOPE;
    double draw[DRAWS];
    ts_tensor *random = ts_empty_on(TS_SIZES(DRAWS), TS_F64, TS_DEVICE_CPU);
    TS_TRY(ts_uniform_(random, 0, 1));
    memcpy(draw, ts_data(random), sizeof draw);
    int64_t height = ts_size(images[0], -2), width = ts_size(images[0], -1);
    ts_tensor *rows = crop_indices(height, o->height ? o->height : height, o->padding, draw[TOP],
                                   draw[FLIP_VERTICAL] < o->flip_vertical),
              *columns = crop_indices(width, o->width ? o->width : width, o->padding, draw[LEFT],
                                      draw[FLIP] < o->flip);
    ts_tensor *made[TS_SAMPLE_FIELDS];
    for (int i = 0; i < n; i++) {
        made[i] = ts_index_select(ts_index_select(images[i], -2, rows), -1, columns);
        if (i == 0)
            made[i] = change_colours(made[i], o, draw);
        TS_TRY(made[i]);
    }
    for (int i = 0; i < n; i++)
        out[i] = ts_keep(made[i]);
    return TS_OK;
}

ts_status ts_augment(ts_tensor *const *images, int n, const ts_augment_opts *opts, ts_tensor **out)
{
    ts_augment_opts o;
    TS_TRY(TS_CHECK_VALUE(n, n >= 1 && n <= TS_SAMPLE_FIELDS, "1 to 8"));
    TS_TRY(TS_CHECK_TENSOR_LIST(images, n));
    TS_TRY(TS_CHECK_POINTERS(out));
    TS_TRY(TS_CHECK_OPTS(&o, opts));
    const double fractions[] = {o.flip, o.flip_vertical, o.brightness, o.contrast, o.saturation};
    for (size_t i = 0; i < sizeof fractions / sizeof *fractions; i++)
        if (!(fractions[i] >= 0 && fractions[i] <= 1))
            return ts_error_set(TS_ERR_VALUE, "augment: expected probabilities and changes of 0 to "
                                "1, got %g", fractions[i]);
    TS_TRY(TS_CHECK_VALUE(o.padding, o.padding >= 0 && o.padding < INT32_MAX, "0 to 2^31 - 2"));
    TS_TRY(TS_CHECK_VALUE(o.height, o.height >= 0, "at least 0"));
    TS_TRY(TS_CHECK_VALUE(o.width, o.width >= 0, "at least 0"));
    TS_TRY(check_images(images, n, &o));
    return augment(images, n, &o, out);
}
