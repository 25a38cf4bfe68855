/**
 * @file png.c  PNG images by libpng, which is opened at first use. libpng reports a failure by a
 * function that must not return, so each call into it is below a setjmp() of this file.
 */
// SPDX-License-Identifier: MIT
#include "io/library.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/tensor.h"
#include "include/tessera/autograd.h"
#include "include/tessera/io.h"
#include "include/tessera/ops.h"
#include "io/files.h"

/* ----------------------------------------------------------------------------- libpng ---- */

/* libpng's structs are opaque, and its functions have had these types since version 1.5. */
typedef struct png png;
typedef struct info info;
typedef void (*report)(png *p, const char *message);
typedef void (*transfer)(png *p, unsigned char *data, size_t bytes);
typedef void *(*allocate)(png *p, size_t bytes);
typedef void (*release)(png *p, void *block);

static struct {
    const char *(*version)(const png *);
    png *(*new_reader)(const char *version, void *ctx, report error, report warning, void *memory,
                       allocate, release);
    png *(*new_writer)(const char *version, void *ctx, report error, report warning, void *memory,
                       allocate, release);
    info *(*new_info)(const png *);
    void (*free_reader)(png **, info **, info **);
    void (*free_writer)(png **, info **);
    void *(*error_context)(const png *);
    void *(*memory_context)(const png *);
    void *(*transfer_context)(const png *);
    void (*set_read)(png *, void *ctx, transfer);
    void (*set_write)(png *, void *ctx, transfer, void (*flush)(png *));
    void (*set_limits)(png *, uint32_t width, uint32_t height);
    void (*set_chunk_limit)(png *, uint32_t chunks);
    void (*set_chunk_bytes)(png *, size_t bytes);
    void (*read_info)(png *, info *);
    uint32_t (*get_header)(const png *, const info *, uint32_t *width, uint32_t *height, int *depth,
                           int *colour, int *interlace, int *compression, int *filter);
    void (*scale_16)(png *);
    void (*unpack)(png *);
    void (*expand_grey)(png *);
    void (*palette_to_rgb)(png *);
    void (*transparency_to_alpha)(png *);
    uint32_t (*get_valid)(const png *, const info *, uint32_t chunk);
    void (*grey_to_rgb)(png *);
    void (*rgb_to_grey)(png *, int action, int32_t red, int32_t green);
    void (*strip_alpha)(png *);
    void (*add_alpha)(png *, uint32_t alpha, int where);
    int (*set_interlacing)(png *);
    void (*update)(png *, info *);
    size_t (*row_bytes)(const png *, const info *);
    void (*read_row)(png *, unsigned char *row, unsigned char *display);
    void (*read_end)(png *, info *);
    void (*set_header)(png *, info *, uint32_t width, uint32_t height, int depth, int colour,
                       int interlace, int compression, int filter);
    void (*write_info)(png *, const info *);
    void (*write_row)(png *, const unsigned char *row);
    void (*write_end)(png *, info *);
} lib;

/* In the order of the struct. */
static const char *const names[] = {
    "png_get_libpng_ver", "png_create_read_struct_2", "png_create_write_struct_2",
    "png_create_info_struct", "png_destroy_read_struct", "png_destroy_write_struct",
    "png_get_error_ptr", "png_get_mem_ptr", "png_get_io_ptr", "png_set_read_fn", "png_set_write_fn",
    "png_set_user_limits", "png_set_chunk_cache_max", "png_set_chunk_malloc_max", "png_read_info",
    "png_get_IHDR", "png_set_scale_16", "png_set_packing", "png_set_expand_gray_1_2_4_to_8",
    "png_set_palette_to_rgb", "png_set_tRNS_to_alpha", "png_get_valid", "png_set_gray_to_rgb",
    "png_set_rgb_to_gray_fixed", "png_set_strip_alpha", "png_set_add_alpha",
    "png_set_interlace_handling", "png_read_update_info", "png_get_rowbytes", "png_read_row",
    "png_read_end", "png_set_IHDR", "png_write_info", "png_write_row", "png_write_end",
};
_Static_assert(sizeof names / sizeof *names == sizeof lib / sizeof(void *), "one name a function");

static ts_library libpng = {"libpng16.so.16", "TS_LIBPNG", names, (void **)&lib,
                            sizeof names / sizeof *names, 0};

enum { GREY = 0, PALETTE = 3, COLOUR = 2, ALPHA = 4, TRANSPARENCY = 0x10, FILLER_AFTER = 1 };
enum { MOST_CHUNKS = 1000, MOST_CHUNK_BYTES = 8 << 20 };

/** A call, with the failure that ends it. */
typedef struct call {
    jmp_buf out;
    const char *op, *path;
    int fd;
    int64_t at, bytes; /* of the file that is read */
    ts_writer *writer;
    bool no_memory;
    ts_status status; /* of the file, if that failed; its error is recorded */
    char message[128];
} call;

static void fail(png *p, const char *message)
{
    call *c = lib.error_context(p);
    snprintf(c->message, sizeof c->message, "%s", message);
    longjmp(c->out, 1);
}
static void ignore(png *p, const char *message) { (void)p, (void)message; }

static void *take_memory(png *p, size_t bytes)
{
    call *c = lib.memory_context(p);
    void *block = ts_sys_alloc(bytes);
    c->no_memory |= !block;
    return block;
}
static void give_memory(png *p, void *block) { (void)p, ts_sys_free(block); }

/** Records the failure of a call of libpng. */
static ts_status failed(const call *c)
{
    if (c->status != TS_OK)
        return c->status;
    if (c->no_memory)
        return ts_error_memory("a PNG image", 0);
    return ts_fail_op(c->writer ? TS_ERR_IO : TS_ERR_FORMAT, c->op, NULL, NULL,
                      "'%s': expected a PNG image; libpng says: %s", c->path, ts_quote(c->message));
}

/* ---------------------------------------------------------------------------- reading ---- */

static void read_bytes(png *p, unsigned char *data, size_t bytes)
{
    call *c = lib.transfer_context(p);
    if ((int64_t)bytes > c->bytes - c->at)
        fail(p, "the file ends too early");
    c->status = ts_file_read(c->op, c->path, c->fd, data, (int64_t)bytes, c->at);
    if (c->status != TS_OK)
        longjmp(c->out, 1);
    c->at += (int64_t)bytes;
}

/** Makes libpng convert rows to 8 bits and the channels that the options want. */
static void convert(png *p, info *i, const ts_png_opts *o, int depth, int colour)
{
    bool alpha = (colour & ALPHA) || lib.get_valid(p, i, TRANSPARENCY);
    if (depth == 16)
        lib.scale_16(p);
    if (colour == PALETTE && o->indices) {
        lib.unpack(p);
        return;
    }
    if (colour == PALETTE)
        lib.palette_to_rgb(p);
    if (colour == GREY && depth < 8)
        lib.expand_grey(p);
    if (lib.get_valid(p, i, TRANSPARENCY))
        lib.transparency_to_alpha(p);
    if (o->channels >= 3 && !(colour & COLOUR))
        lib.grey_to_rgb(p);
    if ((o->channels == 1 || o->channels == 2) && (colour & COLOUR))
        lib.rgb_to_grey(p, 1, -1, -1); /* without a warning, by the standard weights */
    if (alpha && (o->channels == 1 || o->channels == 3))
        lib.strip_alpha(p);
    if (!alpha && (o->channels == 2 || o->channels == 4))
        lib.add_alpha(p, 255, FILLER_AFTER);
}

/** Reads everything into *pixels (H, W, C), which outlives a jump out of this function. */
static void read_image(png *p, info *i, call *c, const ts_png_opts *o, ts_tensor **pixels)
{
    uint32_t width, height;
    int depth, colour, interlaced;
    lib.set_read(p, c, read_bytes);
    lib.set_limits(p, INT32_MAX, INT32_MAX);
    lib.set_chunk_limit(p, MOST_CHUNKS);
    lib.set_chunk_bytes(p, MOST_CHUNK_BYTES);
    lib.read_info(p, i);
    lib.get_header(p, i, &width, &height, &depth, &colour, &interlaced, NULL, NULL);
    if ((int64_t)width * height > o->max_pixels) {
        c->status = ts_fail_op(TS_ERR_FORMAT, c->op, NULL, "raise max_pixels of the options",
                               "'%s': expected at most %lld pixels, got %u x %u", c->path,
                               (long long)o->max_pixels, width, height);
        longjmp(c->out, 1);
    }
    /* deflate shrinks data to no less than 1/1032: a short file cannot claim a large image */
    int channels = colour == PALETTE ? 1 : (colour & COLOUR ? 3 : 1) + (colour & ALPHA ? 1 : 0);
    if ((double)width * height * channels * depth / 8 > 1032.0 * (double)c->bytes)
        fail(p, "the file is too short for its image");
    convert(p, i, o, depth, colour);
    int passes = lib.set_interlacing(p);
    lib.update(p, i);
    int64_t row = (int64_t)lib.row_bytes(p, i);
    *pixels = ts_empty_on(TS_SIZES(height, width, row / width), TS_U8, TS_DEVICE_CPU);
    if (!*pixels) {
        c->status = ts_error_code();
        longjmp(c->out, 1);
    }
    for (int pass = 0; pass < passes; pass++)
        for (int64_t y = 0; y < height; y++)
            lib.read_row(p, (unsigned char *)(*pixels)->data + y * row, NULL);
    lib.read_end(p, NULL);
}

/** *pixels outlives the jump; `p` and `i` are set before setjmp() and not changed after it. */
static ts_status read_all(call *c, const ts_png_opts *o, ts_tensor **pixels)
{
    png *p = lib.new_reader(lib.version(NULL), c, fail, ignore, c, take_memory, give_memory);
    info *i = p ? lib.new_info(p) : NULL;
    bool ok = false;
    if (!i) {
        c->no_memory = true;
    } else if (!setjmp(c->out)) {
        read_image(p, i, c, o, pixels);
        ok = true;
    }
    if (p)
        lib.free_reader(&p, i ? &i : NULL, NULL);
    return ok ? TS_OK : failed(c);
}

ts_tensor *ts_png_load(const char *path, const ts_png_opts *opts)
{
    ts_png_opts o;
    TS_SCOPE;
    TS_TRY_NULL(TS_CHECK_POINTERS(path));
    TS_TRY_NULL(TS_CHECK_OPTS(&o, opts));
    TS_TRY_NULL(TS_CHECK_VALUE(o.channels, o.channels >= 0 && o.channels <= 4, "0 to 4"));
    TS_TRY_NULL(TS_CHECK_VALUE(o.max_pixels, o.max_pixels >= 0 && o.max_pixels <= INT64_C(1) << 40,
                               "0 to 2^40"));
    o.max_pixels = o.max_pixels ? o.max_pixels : INT64_C(1) << 26;
    TS_TRY_NULL(ts_library_open(&libpng, "png_load"));
    call c = {.op = "png_load", .path = path};
    TS_TRY_NULL(ts_file_open(c.op, path, &c.fd, &c.bytes));
    ts_tensor *pixels = NULL;
    ts_status status = read_all(&c, &o, &pixels);
    ts_file_close(c.fd);
    return status == TS_OK ? ts_keep(ts_permute(pixels, TS_SIZES(2, 0, 1))) : NULL;
}

/* ---------------------------------------------------------------------------- writing ---- */

static void write_bytes(png *p, unsigned char *data, size_t bytes)
{
    call *c = lib.transfer_context(p);
    c->status = ts_writer_write(c->writer, data, (int64_t)bytes);
    if (c->status != TS_OK)
        longjmp(c->out, 1);
}
static void no_flush(png *p) { (void)p; }

/** pixels: (H, W, C), contiguous. */
static void write_image(png *p, info *i, call *c, const ts_tensor *pixels)
{
    static const int colours[] = {0, GREY, GREY | ALPHA, COLOUR, COLOUR | ALPHA};
    int64_t height = pixels->sizes[0], row = pixels->sizes[1] * pixels->sizes[2];
    lib.set_write(p, c, write_bytes, no_flush);
    lib.set_limits(p, INT32_MAX, INT32_MAX);
    lib.set_header(p, i, (uint32_t)pixels->sizes[1], (uint32_t)height, 8, colours[pixels->sizes[2]],
                   0, 0, 0);
    lib.write_info(p, i);
    for (int64_t y = 0; y < height; y++)
        lib.write_row(p, (const unsigned char *)pixels->data + y * row);
    lib.write_end(p, i);
}

static ts_status write_png(ts_writer *w, void *ctx)
{
    call c = {.op = w->op, .path = w->path, .writer = w};
    png *p = lib.new_writer(lib.version(NULL), &c, fail, ignore, &c, take_memory, give_memory);
    info *i = p ? lib.new_info(p) : NULL;
    bool ok = false;
    if (!i) {
        c.no_memory = true;
    } else if (!setjmp(c.out)) {
        write_image(p, i, &c, ctx);
        ok = true;
    }
    if (p)
        lib.free_writer(&p, i ? &i : NULL);
    return ok ? TS_OK : failed(&c);
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
    return ts_writer_replace(op, path, write_png, pixels);
}
