/** @file png.c  PNG images: all kinds of files, drawn; labels; damaged files; round trips. */
// SPDX-License-Identifier: MIT
#include "tests/io/folder.h"
#include "tests/io/png_file.h"

static const char *make(const void *bytes, size_t size)
{
    write_file(in_folder("p.png"), bytes, size);
    return in_folder("p.png");
}

static void ck_values(ts_tensor *t, ts_dtype dtype, const void *values, int64_t n)
{
    ck_ok(t);
    ck_assert_int_eq(ts_dtype_of(t), dtype);
    ck_assert_int_eq(ts_numel(t), n);
    ck_assert_mem_eq(ts_data(ts_contiguous(t)), values, (size_t)n * ts_dtype_size(dtype));
}

static bool no_libpng(void)
{
    TS_SCOPE;
    ts_tensor *t = ts_zeros(TS_SIZES(1, 1), TS_U8);
    return ts_png_save(in_folder("probe.png"), t) == TS_ERR_UNSUPPORTED;
}

/* -------------------------------------------------------------------------- all kinds ---- */

/** A number from least to most; *state: of the generator, advanced. */
static uint32_t drawn(uint64_t *state, uint32_t least, uint32_t most)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return least + (uint32_t)((*state >> 33) % (most - least + 1));
}

/** State of drawn(): TS_TEST_SEED, or 1. */
static uint64_t seed(void)
{
    const char *text = getenv("TS_TEST_SEED");
    return text ? strtoull(text, NULL, 10) : 1;
}

/* depth and colour type */
static const int kinds[][2] = {{1, 0}, {2, 0}, {4, 0}, {8, 0}, {16, 0}, {8, 2}, {16, 2}, {1, 3},
                               {2, 3}, {4, 3}, {8, 3}, {8, 4}, {16, 4}, {8, 6}, {16, 6}};
enum { KINDS = sizeof kinds / sizeof *kinds, SIDE = 24, PIXELS = SIDE * SIDE };

/** A drawn picture, the chunks of its file, and the pixels that reading must give. */
typedef struct drawing {
    png_picture is;
    uint16_t values[PIXELS * 4];
    unsigned char chunks[2000];
    size_t bytes;
    unsigned char file[65000 + 2000];
    size_t size;
    int channels;                        /* of the pixels */
    unsigned char pixels[4][PIXELS * 4]; /* converted to 1 to 4 channels, (C, H, W) */
} drawing;

/** Appends chunks that readers may use to change values: gamma, and the depth of the source. */
static void draw_gamma(drawing *d, unsigned char **end, uint64_t *state)
{
    unsigned char gamma[4];
    png_number(gamma, drawn(state, 0, 1) ? 100000 : drawn(state, 20000, 300000));
    *end = png_chunk(*end, "gAMA", gamma, 4);
    if (drawn(state, 0, 1))
        *end = png_chunk(*end, "sBIT", (unsigned char[]){1, 1, 1, 1},
                         d->is.colour == 3 ? 3 : (size_t)png_channels(d->is.colour));
}

/** A value of the file, 0 to 2^depth - 1, as 8 bits. */
static int scaled(const drawing *d, int value)
{
    int most = (1 << d->is.depth) - 1;
    return (2 * 255 * value + most) / (2 * most);
}

/** Sets *rgba to the pixel k; palette: entries of 4 bytes; key: the transparent colour, or NULL. */
static void pixel_of(const drawing *d, size_t k, const unsigned char *palette, const uint16_t *key,
                     unsigned char rgba[4])
{
    int n = png_channels(d->is.colour);
    const uint16_t *v = d->values + k * (size_t)n;
    if (d->is.colour == 3) {
        memcpy(rgba, palette + 4 * v[0], 4);
        return;
    }
    for (int c = 0; c < 3; c++)
        rgba[c] = (unsigned char)scaled(d, v[n < 3 ? 0 : c]);
    bool alpha = d->is.colour >= 4, clear = key && !memcmp(v, key, (size_t)n * sizeof *v);
    rgba[3] = (unsigned char)(alpha ? scaled(d, v[n - 1]) : clear ? 0 : 255);
}

static void expect(drawing *d, const unsigned char *palette, const uint16_t *key, bool clear)
{
    size_t area = (size_t)d->is.width * d->is.height;
    bool grey = d->is.colour == 0 || d->is.colour == 4;
    d->channels = (grey ? 1 : 3) + (d->is.colour >= 4 || clear);
    for (size_t k = 0; k < area; k++) {
        unsigned char rgba[4];
        pixel_of(d, k, palette, key, rgba);
        int mixed = (299 * rgba[0] + 587 * rgba[1] + 114 * rgba[2] + 500) / 1000;
        for (size_t n = 1; n <= 4; n++) {
            for (size_t c = 0; c < n; c++)
                d->pixels[n - 1][c * area + k] = n < 3 ? (unsigned char)mixed : rgba[c];
            if (n % 2 == 0)
                d->pixels[n - 1][(n - 1) * area + k] = rgba[3];
        }
    }
}

/** Draws a picture of a kind, with any sizes, palette, transparent colours and gamma. */
static void draw(drawing *d, int kind, bool interlaced, uint64_t *state)
{
    unsigned char palette[256 * 4], colours[256 * 3], alphas[256], *end = d->chunks, at[6];
    d->is = (png_picture){drawn(state, 1, SIDE), drawn(state, 1, SIDE), kinds[kind][0],
                          kinds[kind][1], interlaced, d->values};
    size_t n = (size_t)png_channels(d->is.colour), area = (size_t)d->is.width * d->is.height;
    uint32_t most = (1U << d->is.depth) - 1;
    if (d->is.colour == 3)
        most = drawn(state, 0, most);
    for (size_t k = 0; k < area * n; k++)
        d->values[k] = (uint16_t)drawn(state, 0, drawn(state, 0, 1) ? most : most < 3 ? most : 3);
    for (size_t k = 0; k < 256 * 4; k++)
        palette[k] = (unsigned char)drawn(state, 0, 255);
    if (drawn(state, 0, 1))
        draw_gamma(d, &end, state);
    bool clear = d->is.colour < 4 && drawn(state, 0, 1);
    uint32_t alpha = clear ? drawn(state, 1, most + 1) : 0; /* entries of the palette with alpha */
    for (uint32_t k = 0; k < 256; k++) {
        palette[4 * k + 3] = k < alpha ? palette[4 * k + 3] : 255;
        memcpy(colours + 3 * k, palette + 4 * k, 3);
        alphas[k] = palette[4 * k + 3];
    }
    const uint16_t *key = clear && d->is.colour < 3 ? d->values + n * drawn(state, 0, area - 1)
                                                    : NULL;
    for (size_t c = 0; c < n && key; c++)
        at[2 * c] = (unsigned char)(key[c] >> 8), at[2 * c + 1] = (unsigned char)key[c];
    if (d->is.colour == 3)
        end = png_chunk(end, "PLTE", colours, 3 * (most + 1));
    if (clear)
        end = key ? png_chunk(end, "tRNS", at, 2 * n) : png_chunk(end, "tRNS", alphas, alpha);
    d->size = png_write(d->file, &d->is, d->chunks, (size_t)(end - d->chunks));
    expect(d, palette, key, clear);
}

TS_TEST(pictures_of_each_kind_give_the_values_of_their_files, .loop = 2 * KINDS, IN_FOLDER)
{
    static drawing d;
    uint64_t state = seed() + (uint64_t)_i;
    if (no_libpng())
        TS_SKIP("no libpng");
    for (int turn = 0; turn < 40; turn++) {
        TS_SCOPE;
        draw(&d, _i / 2, _i % 2, &state);
        const char *path = make(d.file, d.size);
        for (int channels = 0; channels <= 4; channels++) {
            ts_tensor *t = ts_png_load(path, TS_OPTS(ts_png_opts, .channels = channels));
            int n = channels ? channels : d.channels;
            ck_ok(t);
            ck_assert_int_eq(ts_size(t, 0), n);
            ck_assert_int_eq(ts_size(t, 1), d.is.height);
            ck_assert_int_eq(ts_size(t, 2), d.is.width);
            ck_assert_int_eq(ts_strides(t)[0], 1);
            ck_values(t, TS_U8, d.pixels[n - 1], (int64_t)n * d.is.height * d.is.width);
            ts_tally(1, 0, 0);
        }
    }
}

TS_TEST(labels_are_the_integers_of_the_file, .loop = 2 * KINDS, IN_FOLDER)
{
    static drawing d;
    uint64_t state = seed() + 1000 + (uint64_t)_i;
    if (no_libpng())
        TS_SKIP("no libpng");
    for (int turn = 0; turn < 40; turn++) {
        TS_SCOPE;
        draw(&d, _i / 2, _i % 2, &state);
        const char *path = make(d.file, d.size);
        int64_t area = (int64_t)d.is.width * d.is.height, n = png_channels(d.is.colour);
        ts_tensor *t = ts_png_load(path, TS_OPTS(ts_png_opts, .channels = 4, .indices = true));
        ck_ok(t);
        if (d.is.colour == 2 || d.is.colour == 6) {
            ck_values(t, TS_U8, d.pixels[3], 4 * area);
            continue;
        }
        ck_assert_int_eq(ts_dtype_of(t), d.is.depth == 16 ? TS_I32 : TS_U8);
        ck_assert_int_eq(ts_ndim(t), 3);
        ck_assert_int_eq(ts_size(t, 0), 1);
        ck_assert_int_eq(ts_size(t, 1), d.is.height);
        t = ts_contiguous(ts_to(t, TS_I32));
        for (int64_t k = 0; k < area; k++)
            ck_assert_int_eq(((const int32_t *)ts_data(t))[k], d.values[k * n]);
        ts_tally(1, 0, 0);
    }
}

/* ------------------------------------------------------------------------ broken files ---- */

TS_TEST(a_file_cut_at_any_byte_is_refused, .loop = 2 * KINDS, IN_FOLDER)
{
    static drawing d;
    uint64_t state = seed() + 2000 + (uint64_t)_i;
    if (no_libpng())
        TS_SKIP("no libpng");
    draw(&d, _i / 2, _i % 2, &state);
    for (size_t size = 0; size < d.size; size++) {
        TS_SCOPE;
        bool labels = size & 1;
        ts_tensor *t = ts_png_load(make(d.file, size), TS_OPTS(ts_png_opts, .indices = labels));
        ck_assert(!t || size >= d.size - 16); /* the last chunk has no pixels */
        if (!t)
            ck_failed(TS_ERR_FORMAT, "p.png': expected a");
    }
    TS_SCOPE;
    unsigned char head[13]; /* twice as high as the pixels of the file */
    memcpy(head, d.file + 16, sizeof head);
    png_number(head + 4, 2 * d.is.height);
    png_chunk(d.file + 8, "IHDR", head, sizeof head);
    ck_assert_ptr_null(ts_png_load(make(d.file, d.size), NULL));
    ck_failed(TS_ERR_FORMAT, "libpng says: ");
}

TS_TEST(sizes_are_checked_before_memory_is_allocated, IN_FOLDER)
{
    TS_SCOPE;
    if (no_libpng())
        TS_SKIP("no libpng");
    static const struct {
        uint32_t width, height;
        int64_t most;
        const char *message;
    } wrong[] = {{0, 3, 0, "libpng says: "},
                 {3, 0, 0, "libpng says: "},
                 {0x80000000U, 1, 0, "libpng says: "},
                 {0x7fffffff, 0x7fffffff, 0, "at most 67108864 pixels, got 2147483647 x 2"},
                 {0x7fffffff, 1, INT64_C(1) << 40, "expected a longer file for 2147483647 x 1"},
                 {3000, 3000, 8999999, "at most 8999999 pixels, got 3000 x 3000"},
                 {3000, 3000, 9000000, "expected a longer file for 3000 x 3000 pixels"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        unsigned char head[13] = {[8] = 16, [9] = 6}, file[200], *end = file + 8;
        memcpy(file, "\x89PNG\r\n\x1a\n", 8);
        png_number(png_number(head, wrong[i].width), wrong[i].height);
        end = png_chunk(end, "IHDR", head, 13);
        end = png_chunk(end, "IDAT", "\x78\x01", 2);
        ck_assert_ptr_null(ts_png_load(make(file, (size_t)(end - file)),
                                       TS_OPTS(ts_png_opts, .max_pixels = wrong[i].most)));
        ck_failed(TS_ERR_FORMAT, wrong[i].message);
    }
}

/* A mask of 3 x 1 pixels with a palette of 3 colours and 2 bits each: indices 0, 1, 2. */
static const unsigned char palette[] = {
#include "tests/io/palette.h"
};

TS_TEST(indices_of_a_palette_are_classes, IN_FOLDER)
{
    TS_SCOPE;
    if (no_libpng())
        TS_SKIP("no libpng");
    const char *path = make(palette, sizeof palette);
    ck_values(ts_png_load(path, TS_OPTS(ts_png_opts, .indices = true)), TS_U8, "\0\1\2", 3);
    ck_values(ts_contiguous(ts_png_load(path, NULL)), TS_U8, "\12\24\36\50\62\74\106\120\132", 9);
    ck_assert_ptr_null(ts_png_load(path, TS_OPTS(ts_png_opts, .max_pixels = 2)));
    ck_failed(TS_ERR_FORMAT, "at most 2 pixels, got 3 x 1");
}

TS_TEST(broken_pictures_are_errors, IN_FOLDER)
{
    TS_SCOPE;
    if (no_libpng())
        TS_SKIP("no libpng");
    unsigned char bytes[sizeof palette];
    memcpy(bytes, palette, sizeof bytes);
    for (size_t size = 0; size < sizeof bytes; size++) {
        ts_tensor *t = ts_png_load(make(bytes, size), NULL);
        ck_assert(!t || size >= sizeof bytes - 16); /* the last chunk has no pixels */
        if (!t)
            ck_failed(TS_ERR_FORMAT, "libpng says: ");
    }
    int refused = 0;
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] ^= 0x41;
        ts_tensor *t = ts_png_load(make(bytes, sizeof bytes), NULL);
        refused += !t;
        ck_assert(t || ts_error_code() == TS_ERR_FORMAT);
        ts_error_clear();
        bytes[i] ^= 0x41;
    }
    ck_assert_int_gt(refused, (int)sizeof bytes / 2);
    memcpy(bytes, palette, sizeof bytes);
    ck_assert_int_eq(ts_png_save(in_folder("x.png"), ts_zeros(TS_SIZES(5, 2, 2), TS_U8)),
                     TS_ERR_SHAPE);
    ck_failed(TS_ERR_SHAPE, "1 to 4 channels, got (5, 2, 2)");
    ck_assert_int_eq(ts_png_save(in_folder("x.png"), ts_zeros(TS_SIZES(2, 2), TS_F32)),
                     TS_ERR_DTYPE);
    ck_assert_int_eq(ts_png_save(in_folder("no/x.png"), ts_zeros(TS_SIZES(2, 2), TS_U8)),
                     TS_ERR_IO);
    ck_assert_int_eq(ts_png_save(in_folder("x.png"), ts_zeros(TS_SIZES(0, 2), TS_U8)),
                     TS_ERR_SHAPE);
    ts_error_clear();
    ck_assert_int_eq(access(in_folder("x.png"), F_OK), -1);
}

/* ------------------------------------------------------------------------- round trips ---- */

TS_TEST(pictures_of_one_to_four_channels_round_trip, .loop = 4, IN_FOLDER)
{
    TS_SCOPE;
    if (no_libpng())
        TS_SKIP("no libpng");
    ts_tensor *t = ts_to(ts_reshape(ts_arange(0, (_i + 1) * 35, 1, TS_I64), TS_SIZES(_i + 1, 5, 7)),
                         TS_U8);
    ck_ok(ts_png_save(in_folder("a.png"), t));
    ts_tensor *u = ts_png_load(in_folder("a.png"), NULL);
    ck_values(u, TS_U8, ts_data(t), ts_numel(t));
    ck_assert_int_eq(ts_size(u, 0), _i + 1);
    ck_assert_int_eq(ts_strides(u)[0], 1);
    if (_i == 0) {
        ck_ok(ts_png_save(in_folder("b.png"), ts_select(t, 0, 0)));
        ck_values(ts_png_load(in_folder("b.png"), NULL), TS_U8, ts_data(t), 35);
    }
    /* converted to 1 to 4 channels */
    for (int channels = 1; channels <= 4; channels++) {
        u = ts_contiguous(ts_png_load(in_folder("a.png"),
                                      TS_OPTS(ts_png_opts, .channels = channels)));
        ck_ok(u);
        ck_assert_int_eq(ts_size(u, 0), channels);
        const unsigned char *own = ts_data(t), *got = ts_data(u);
        bool colour = _i >= 2, alpha = _i & 1;
        for (int k = 0; k < 35; k++) {
            if (channels >= 3)
                ck_assert_int_eq(got[k + 70], own[k + (colour ? 70 : 0)]);
            else if (!colour)
                ck_assert_int_eq(got[k], own[k]);
            if (channels % 2 == 0)
                ck_assert_int_eq(got[k + 35 * (channels - 1)], alpha ? own[k + 35 * _i] : 255);
        }
    }
}
