/**
 * @file png.c  PNG images, with libpng's simplified interface, which returns errors instead of
 * calling longjmp(). libpng is opened at first use.
 */
// SPDX-License-Identifier: MIT
#include <string.h>

#include "core/alloc.h"
#include "core/tensor.h"
#include "include/tessera/autograd.h"
#include "include/tessera/io.h"
#include "include/tessera/ops.h"
#include "io/files.h"
#include "io/library.h"

/* ----------------------------------------------------------------------------- libpng ---- */

/** libpng's png_image, whose layout has not changed since version 1.6. */
typedef struct image {
    void *opaque;
    uint32_t version;
    uint32_t width, height;
    uint32_t format; /* the bits ALPHA, COLOUR and PALETTE; 0: grey */
    uint32_t flags;
    uint32_t colours; /* entries of the palette */
    uint32_t warning_or_error;
    char message[64];
} image;
enum { VERSION = 1, ALPHA = 1, COLOUR = 2, PALETTE = 8 };
enum { NOT_LINEAR = 4 }; /* flag: 16-bit values in a file without gamma are sRGB, as 8-bit ones */

static struct {
    int (*begin)(image *, const void *file, size_t bytes);
    int (*finish)(image *, const void *background, void *pixels, int32_t row, void *palette);
    int (*write)(image *, void *file, size_t *bytes, int to_8_bits, const void *pixels, int32_t row,
                 const void *palette);
    void (*free)(image *);
} lib;
static const char *const names[] = {"png_image_begin_read_from_memory", "png_image_finish_read",
                                    "png_image_write_to_memory", "png_image_free"};
static ts_library libpng = {"libpng16.so.16", "TS_LIBPNG", names, (void **)&lib, 4, 0};

/** Records the failure of a libpng call and frees the image's state. */
static ts_status failed(image *i, const char *op, const char *path)
{
    lib.free(i);
    if (strstr(i->message, "ut of memory") || strstr(i->message, "insufficient memory"))
        return ts_error_memory("a PNG image", 0);
    return ts_fail_op(TS_ERR_FORMAT, op, NULL, NULL,
                      "'%s': expected a PNG image; libpng says: %s", path, ts_quote(i->message));
}

/* ---------------------------------------------------------------------------- reading ---- */

/** Channels of pixels in this format, without a palette. */
static int channels_of(uint32_t format)
{
    return (format & COLOUR ? 3 : 1) + (format & ALPHA ? 1 : 0);
}

/** Converts a pixel of n channels to m channels; 1 and 2 are grey, 2 and 4 have alpha. */
static void convert_pixel(const unsigned char *from, int n, unsigned char *to, int m)
{
    bool grey = n < 3;
    if (m < 3)
        to[0] = grey ? from[0] : (unsigned char)((299 * from[0] + 587 * from[1] + 114 * from[2] +
                                                  500) / 1000);
    for (int c = 0; c < 3 && m >= 3; c++)
        to[c] = from[grey ? 0 : c];
    if (m % 2 == 0)
        to[m - 1] = n % 2 ? 255 : from[n - 1];
}

static ts_tensor *convert(ts_tensor *pixels, int channels) // (H, W, n) -> (H, W, channels)
{
    int n = (int)pixels->sizes[2];
    ts_tensor *made = ts_empty_on(TS_SIZES(pixels->sizes[0], pixels->sizes[1], channels), TS_U8,
                                  TS_DEVICE_CPU);
    const unsigned char *from = (const unsigned char *)pixels->data;
    for (int64_t k = 0; made && k < pixels->numel / n; k++)
        convert_pixel(from + k * n, n, (unsigned char *)made->data + k * channels, channels);
    return made;
}

/** Checks the sizes of an image in a file of `bytes` bytes: at most `most` pixels. */
static ts_status check_sizes(const image *i, const char *path, const unsigned char *file,
                             int64_t bytes, int64_t most)
{
    /* bit depth and colour type, in the first chunk of the file, give the bits of a pixel */
    static const int channels[] = {1, 0, 3, 1, 2, 0, 4};
    int depth = file[24], colour = file[25];
    double pixels = (double)i->width * i->height,
           raw = pixels * depth * (colour < TS_COUNTOF(channels) ? channels[colour] : 0) / 8;
    if (pixels > (double)most)
        return ts_fail_op(TS_ERR_FORMAT, "png_load", NULL, "raise max_pixels of the options",
                          "'%s': expected at most %lld pixels, got %u x %u", path, (long long)most,
                          i->width, i->height);
    /* deflate shrinks data to no less than 1/1032: a short file cannot claim a large image */
    return raw <= 1032.0 * (double)bytes
               ? TS_OK
               : ts_fail_op(TS_ERR_FORMAT, "png_load", NULL, NULL,
                            "'%s': expected a longer file for %u x %u pixels, got %lld bytes", path,
                            i->width, i->height, (long long)bytes);
}

/** The pixels (H, W, C) of a file in memory. */
static ts_tensor *decode(const char *path, const void *file, int64_t bytes, const ts_png_opts *o)
{
    unsigned char palette[256 * 4];
    image i = {.version = VERSION};
    if (!lib.begin(&i, file, (size_t)bytes)) {
        failed(&i, "png_load", path);
        return NULL;
    }
    if (check_sizes(&i, path, file, bytes, o->max_pixels) != TS_OK) {
        lib.free(&i);
        return NULL;
    }
    bool indices = o->indices && (i.format & PALETTE);
    i.format &= ALPHA | COLOUR | (indices ? PALETTE : 0);
    i.flags |= NOT_LINEAR;
    int own = indices ? 1 : channels_of(i.format);
    ts_tensor *pixels = ts_empty_on(TS_SIZES(i.height, i.width, own), TS_U8, TS_DEVICE_CPU);
    if (!pixels) {
        lib.free(&i);
        return NULL;
    }
    if (!lib.finish(&i, NULL, pixels->data, 0, palette)) {
        failed(&i, "png_load", path);
        return NULL;
    }
    return indices || !o->channels || own == o->channels ? pixels : convert(pixels, o->channels);
}

ts_tensor *ts_png_load(const char *path, const ts_png_opts *opts)
{
    static const char op[] = "png_load";
    ts_png_opts o;
    int fd;
    int64_t bytes;
    TS_SCOPE;
    TS_TRY_NULL(TS_CHECK_POINTERS(path));
    TS_TRY_NULL(TS_CHECK_OPTS(&o, opts));
    TS_TRY_NULL(TS_CHECK_VALUE(o.channels, o.channels >= 0 && o.channels <= 4, "0 to 4"));
    TS_TRY_NULL(TS_CHECK_VALUE(o.max_pixels, o.max_pixels >= 0 && o.max_pixels <= INT64_C(1) << 40,
                               "0 to 2^40"));
    o.max_pixels = o.max_pixels ? o.max_pixels : INT64_C(1) << 26;
    TS_TRY_NULL(ts_library_open(&libpng, op));
    TS_TRY_NULL(ts_file_open(op, path, &fd, &bytes));
    void *file = ts_sys_alloc((size_t)bytes + 1);
    ts_status status = file ? ts_file_read(op, path, fd, file, bytes, 0)
                            : ts_error_memory("a PNG image", bytes);
    ts_file_close(fd);
    ts_tensor *pixels = status == TS_OK ? decode(path, file, bytes, &o) : NULL;
    ts_sys_free(file);
    return pixels ? ts_keep(ts_permute(pixels, TS_SIZES(2, 0, 1))) : NULL;
}

/* ---------------------------------------------------------------------------- writing ---- */

/** A file in memory. */
typedef struct encoded {
    void *data;
    size_t bytes;
} encoded;

static ts_status write_encoded(ts_writer *w, void *ctx)
{
    const encoded *e = ctx;
    return ts_writer_write(w, e->data, (int64_t)e->bytes);
}

/** pixels: (H, W, C), contiguous. */
static ts_status encode_and_write(const char *path, const ts_tensor *pixels)
{
    static const uint32_t formats[] = {0, 0, ALPHA, COLOUR, COLOUR | ALPHA};
    image i = {.version = VERSION, .width = (uint32_t)pixels->sizes[1],
               .height = (uint32_t)pixels->sizes[0], .format = formats[pixels->sizes[2]]};
    /* deflate may store data, with a few bytes per block; chunks have 12 bytes more */
    int64_t raw = pixels->numel + pixels->sizes[0], most = raw + raw / 256 + 1024;
    encoded e = {ts_sys_alloc((size_t)most), (size_t)most};
    ts_status status = TS_OK;
    if (!e.data)
        status = ts_error_memory("a PNG image", most);
    else if (!lib.write(&i, e.data, &e.bytes, 0, pixels->data, 0, NULL))
        status = failed(&i, "png_save", path);
    if (status == TS_OK)
        status = ts_writer_replace("png_save", path, write_encoded, &e);
    ts_sys_free(e.data);
    return status;
}

ts_status ts_png_save(const char *path, ts_tensor *t)
{
    static const char op[] = "png_save";
    TS_TRY(TS_CHECK_POINTERS(path));
    TS_TRY(TS_CHECK_TENSORS(t));
    if (!ts_same_device(t->storage->device, TS_DEVICE_CPU))
        return ts_fail_op(TS_ERR_DEVICE, op, NULL, NULL,
                          "argument 't': expected a tensor on cpu, got %s",
                          ts_device_name(t->storage->device));
    if (t->dtype != TS_U8)
        return ts_fail_op(TS_ERR_DTYPE, op, NULL, "convert values to 0 to 255 with ts_to(t, TS_U8)",
                          "argument 't': expected u8, got %s", ts_dtype_name((ts_dtype)t->dtype));
    if ((t->ndim != 2 && t->ndim != 3) || !t->numel || (t->ndim == 3 && t->sizes[0] > 4) ||
        t->sizes[t->ndim - 2] > INT32_MAX || t->sizes[t->ndim - 1] > INT32_MAX / 4)
        return ts_fail_op(TS_ERR_SHAPE, op, NULL, NULL,
                          "argument 't': expected (H, W) or (C, H, W) with 1 to 4 channels, got %s",
                          TS_SIZES_TEXT(t));
    TS_SCOPE;
    TS_NO_GRAD;
    TS_TRY(ts_library_open(&libpng, op));
    TS_TRY(ts_resolve(t));
    ts_tensor *pixels = ts_contiguous(
        ts_permute(t->ndim == 2 ? ts_unsqueeze(t, 0) : t, TS_SIZES(1, 2, 0)));
    TS_TRY(pixels);
    return encode_and_write(path, pixels);
}
