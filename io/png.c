/**
 * @file png.c  PNG images, by libpng, which is opened at first use. Reading uses libpng's full
 * interface, whose errors end in longjmp(). The simplified interface writes images. It is not used
 * for reading, because it converts values by the file's gamma, and in libpng 1.6.39 it misreads
 * interlaced images of 16 bits.
 */
// SPDX-License-Identifier: MIT
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/tensor.h"
#include "include/tessera/autograd.h"
#include "include/tessera/io.h"
#include "include/tessera/ops.h"
#include "io/files.h"
#include "io/library.h"

/* ----------------------------------------------------------------------------- libpng ---- */

typedef struct png png;           /* libpng's png_struct, which only libpng reads */
typedef struct png_info png_info; /* likewise */

/** libpng's png_image, whose layout has not changed since version 1.6. */
typedef struct image {
    void *opaque;
    uint32_t version;
    uint32_t width, height;
    uint32_t format; /* the bits ALPHA and COLOUR; 0: grey */
    uint32_t flags;
    uint32_t colours; /* entries of the palette */
    uint32_t warning_or_error;
    char message[64];
} image;
enum { VERSION = 1, ALPHA = 1, COLOUR = 2 };

/* colour types of a file; their bits are PALETTE 1, COLOUR and 4, alpha */
enum { GREY = 0, PALETTE = 3, GREY_ALPHA = 4 };
enum { SKIP_CHUNKS = 1, ALL_CHUNKS = -1 }; /* ALL_CHUNKS: those that libpng does not need */

static struct {
    png *(*create)(const char *version, void *owner, void (*error)(png *, const char *),
                   void (*warn)(png *, const char *), void *allocator,
                   void *(*alloc)(png *, size_t), void (*free)(png *, void *));
    png_info *(*create_info)(png *);
    void (*destroy)(png **, png_info **, png_info **);
    void *(*owner)(const png *);
    void (*set_input)(png *, void *file, void (*read)(png *, unsigned char *, size_t));
    void (*set_limits)(png *, uint32_t width, uint32_t height);
    void (*keep_chunks)(png *, int keep, const unsigned char *names, int n);
    void (*read_info)(png *, png_info *);
    uint32_t (*header)(const png *, const png_info *, uint32_t *width, uint32_t *height, int *depth,
                       int *colour, int *interlaced, int *compression, int *filter);
    void (*expand)(png *);
    void (*scale_16)(png *);
    void (*unpack)(png *);
    void (*strip_alpha)(png *);
    int (*passes)(png *);
    void (*update_info)(png *, png_info *);
    size_t (*row_bytes)(const png *, const png_info *);
    void (*read_row)(png *, unsigned char *row, unsigned char *display);
    int (*write)(image *, void *file, size_t *bytes, int to_8_bits, const void *pixels, int32_t row,
                 const void *palette);
    void (*free)(image *);
} lib;
static const char *const names[] = {"png_create_read_struct_2",
                                    "png_create_info_struct",
                                    "png_destroy_read_struct",
                                    "png_get_error_ptr",
                                    "png_set_read_fn",
                                    "png_set_user_limits",
                                    "png_set_keep_unknown_chunks",
                                    "png_read_info",
                                    "png_get_IHDR",
                                    "png_set_expand",
                                    "png_set_scale_16",
                                    "png_set_packing",
                                    "png_set_strip_alpha",
                                    "png_set_interlace_handling",
                                    "png_read_update_info",
                                    "png_get_rowbytes",
                                    "png_read_row",
                                    "png_image_write_to_memory",
                                    "png_image_free"};
_Static_assert(sizeof lib == sizeof names, "a name for each function");
static ts_library libpng = {"libpng16.so.16", "TS_LIBPNG", names, (void **)&lib, TS_COUNTOF(names),
                            0};

static ts_status refused(const char *op, const char *path, const char *message)
{
    return ts_fail_op(TS_ERR_FORMAT, op, NULL, NULL,
                      "'%s': expected a PNG image; libpng says: %s", path, ts_quote(message));
}

/* ---------------------------------------------------------------------------- reading ---- */

/** A file that libpng reads. */
typedef struct decoder {
    png *png;
    png_info *info;
    const unsigned char *at; /* the next of `left` bytes */
    size_t left;
    uint32_t width, height;
    int depth, colour; /* bits of a value, and colour type, in the file */
    bool labels;       /* the values of a pixel are read without scaling, alpha and palette */
    int passes;
    int64_t row_bytes;
    unsigned char *rows;
    bool out_of_memory; /* an allocation failed; libpng may read on without it */
    bool stopped;       /* by libpng's error, which has this message */
    char message[80];
    jmp_buf failed;
} decoder;

static void fail(png *p, const char *message)
{
    decoder *d = lib.owner(p);
    d->stopped = true;
    snprintf(d->message, sizeof d->message, "%s", message ? message : "");
    longjmp(d->failed, 1);
}

static void ignore(png *p, const char *message) { (void)p, (void)message; }

static void *allocate(png *p, size_t bytes)
{
    void *block = ts_sys_alloc(bytes);
    if (!block)
        ((decoder *)lib.owner(p))->out_of_memory = true;
    return block;
}

static void release(png *p, void *block)
{
    (void)p;
    ts_sys_free(block);
}

static void read_bytes(png *p, unsigned char *to, size_t bytes)
{
    decoder *d = lib.owner(p);
    if (bytes > d->left)
        fail(p, "the file ends early");
    memcpy(to, d->at, bytes);
    d->at += bytes, d->left -= bytes;
}

/** Runs a step of reading. False if libpng called fail(), which jumps into this function. */
static bool succeeds(decoder *d, void (*step)(decoder *))
{
    if (setjmp(d->failed))
        return false;
    step(d);
    return !d->out_of_memory;
}

/** Reads everything before the pixels. The step allocates no memory that grows with the image. */
static void read_header(decoder *d)
{
    lib.set_input(d->png, d, read_bytes);
    lib.set_limits(d->png, INT32_MAX, INT32_MAX);
    lib.keep_chunks(d->png, SKIP_CHUNKS, NULL, ALL_CHUNKS); /* gamma and colour profiles too */
    lib.read_info(d->png, d->info);
    lib.header(d->png, d->info, &d->width, &d->height, &d->depth, &d->colour, NULL, NULL, NULL);
}

/** Chooses the conversions, which determine the bytes of a row. */
static void begin_rows(decoder *d)
{
    if (d->labels) {
        lib.unpack(d->png);
        if (d->colour == GREY_ALPHA)
            lib.strip_alpha(d->png);
    } else {
        lib.expand(d->png); /* to 8 bits, a palette to RGB, a transparent colour to alpha */
        lib.scale_16(d->png);
    }
    d->passes = lib.passes(d->png);
    lib.update_info(d->png, d->info);
    d->row_bytes = (int64_t)lib.row_bytes(d->png, d->info);
}

static void read_rows(decoder *d)
{
    for (int pass = 0; pass < d->passes; pass++)
        for (uint32_t y = 0; y < d->height; y++)
            lib.read_row(d->png, d->rows + y * d->row_bytes, NULL);
}

/** Checks the sizes of an image in a file of `bytes` bytes: at most `most` pixels. */
static ts_status check_sizes(const decoder *d, const char *path, int64_t bytes, int64_t most)
{
    static const int channels[] = {1, 0, 3, 1, 2, 0, 4}; /* of a colour type, which libpng checks */
    double pixels = (double)d->width * d->height,
           raw = pixels * d->depth * channels[d->colour] / 8;
    if (pixels > (double)most)
        return ts_fail_op(TS_ERR_FORMAT, "png_load", NULL, "raise max_pixels of the options",
                          "'%s': expected at most %lld pixels, got %u x %u", path, (long long)most,
                          d->width, d->height);
    /* deflate shrinks data to no less than 1/1032: a short file cannot claim a large image */
    return raw <= 1032.0 * (double)bytes
               ? TS_OK
               : ts_fail_op(TS_ERR_FORMAT, "png_load", NULL, NULL,
                            "'%s': expected a longer file for %u x %u pixels, got %lld bytes", path,
                            d->width, d->height, (long long)bytes);
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

static ts_tensor *join_bytes(ts_tensor *pairs) // (H, W, 2) u8, big-endian -> (H, W, 1) i32
{
    ts_tensor *made = ts_empty_on(TS_SIZES(pairs->sizes[0], pairs->sizes[1], 1), TS_I32,
                                  TS_DEVICE_CPU);
    const unsigned char *from = (const unsigned char *)pairs->data;
    for (int64_t k = 0; made && k < made->numel; k++)
        ((int32_t *)(void *)made->data)[k] = from[2 * k] << 8 | from[2 * k + 1];
    return made;
}

/** Reads the rows of d as (H, W, C), with as many bytes per pixel as libpng writes. */
static ts_tensor *read_pixels(decoder *d, const char *path, int64_t bytes, const ts_png_opts *o)
{
    if (!succeeds(d, read_header) || check_sizes(d, path, bytes, o->max_pixels) != TS_OK)
        return NULL;
    d->labels = o->indices && (d->colour == GREY || d->colour == GREY_ALPHA ||
                               d->colour == PALETTE);
    if (!succeeds(d, begin_rows))
        return NULL;
    ts_tensor *pixels = ts_empty_on(TS_SIZES(d->height, d->width, d->row_bytes / d->width), TS_U8,
                                    TS_DEVICE_CPU);
    if (!pixels)
        return NULL;
    d->rows = (unsigned char *)pixels->data;
    return succeeds(d, read_rows) ? pixels : NULL;
}

/** The pixels (H, W, C) of a file in memory. */
static ts_tensor *decode(const char *path, const void *file, int64_t bytes, const ts_png_opts *o)
{
    decoder d = {.at = file, .left = (size_t)bytes};
    d.png = lib.create("1.6.0", &d, fail, ignore, NULL, allocate, release);
    d.info = d.png ? lib.create_info(d.png) : NULL;
    if (!d.info) {
        d.stopped = true;
        strcpy(d.message, "it is not version 1.6");
    }
    ts_tensor *pixels = d.info ? read_pixels(&d, path, bytes, o) : NULL;
    lib.destroy(&d.png, &d.info, NULL);
    if (!pixels && d.out_of_memory)
        ts_error_memory("a PNG image", 0);
    else if (d.stopped)
        refused("png_load", path, d.message);
    if (!pixels || d.labels)
        return pixels && d.depth == 16 ? join_bytes(pixels) : pixels;
    return o->channels && o->channels != pixels->sizes[2] ? convert(pixels, o->channels) : pixels;
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
    else if (!lib.write(&i, e.data, &e.bytes, 0, pixels->data, 0, NULL)) {
        lib.free(&i);
        status = strstr(i.message, "ut of memory") || strstr(i.message, "insufficient memory")
                     ? ts_error_memory("a PNG image", 0)
                     : refused("png_save", path, i.message);
    }
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
