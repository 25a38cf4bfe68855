/** @file scenes.c  Draws scenes, reads pairs of files, and saves pictures. */
// SPDX-License-Identifier: MIT
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scenes.h"

enum { MOST_PATH = 4200 };

/** class: 0 background, 1 disc, 2 box. pattern: 0 flat, 1 stripes, 2 checks, which add or subtract
 *  `contrast` to the colour (0 to 1) and change every `period` pixels. (x, y): the centre; width
 *  and height: half the sides of a box, both the radius of a disc; all in pixels. cos, sin: of the
 *  rotation. */
typedef struct shape {
    int32_t class, pattern;
    float x, y, cos, sin, width, height;
    float colour[3], contrast, period;
} shape;

/** The next number of a SplitMix64 sequence, uniform in [low, high). */
static float draw(uint64_t *state, float low, float high)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return low + (high - low) * ((float)((z ^ z >> 31) >> 40) * 0x1p-24F);
}

static shape draw_shape(uint64_t *state, float size, bool background)
{
    shape s = {.class = background ? 0 : draw(state, 0, 1) < 0.5F ? 1 : 2};
    float angle = draw(state, 0, 3.14159265F);
    s.pattern = (int32_t)draw(state, 0, 3);
    s.cos = cosf(angle), s.sin = sinf(angle);
    s.x = draw(state, 0, size), s.y = draw(state, 0, size);
    s.width = background ? 2 * size : draw(state, size / 8, size / 4);
    s.height = s.class == 2 ? s.width * draw(state, 0.3F, 0.7F) : s.width;
    for (int c = 0; c < 3; c++)
        s.colour[c] = background ? draw(state, 0, 0.6F) : draw(state, 0.4F, 1);
    s.contrast = draw(state, 0.05F, 0.15F);
    s.period = draw(state, size / 24, size / 8);
    return s;
}

/** Paints a shape over pixels (size, size, 3) and writes its class to `classes` (size, size). */
static void paint(const shape *s, int64_t size, float *pixels, int64_t *classes)
{
    float reach = s->width + s->height, side = (float)size;
    int64_t top = (int64_t)fmaxf(s->y - reach, 0), bottom = (int64_t)fminf(s->y + reach + 1, side),
            left = (int64_t)fmaxf(s->x - reach, 0), right = (int64_t)fminf(s->x + reach + 1, side);
    for (int64_t y = top; y < bottom; y++)
        for (int64_t x = left; x < right; x++) {
            float dx = (float)x - s->x, dy = (float)y - s->y, u = s->cos * dx + s->sin * dy,
                  v = s->cos * dy - s->sin * dx;
            bool inside = s->class == 1 ? u * u + v * v < s->width * s->width
                                        : fabsf(u) < s->width && fabsf(v) < s->height;
            if (!inside)
                continue;
            int column = (int)floorf(u / s->period), row = (int)floorf(v / s->period);
            int bright = s->pattern == 0 ? 0 : s->pattern == 1 ? column & 1 : (column ^ row) & 1;
            for (int c = 0; c < 3; c++)
                pixels[(y * size + x) * 3 + c] =
                    s->colour[c] + (bright ? s->contrast : -s->contrast);
            classes[y * size + x] = s->class;
        }
}

static ts_status draw_scene(void *payload, int64_t index, ts_tensor **sample)
{
    const scenes *from = payload;
    int64_t size = from->size;
    ts_tensor *image = ts_empty_on(TS_SIZES(size, size, 3), TS_F32, TS_DEVICE_CPU);
    TS_TRY(image);
    TS_TRY(sample[1] = ts_empty_on(TS_SIZES(size, size), TS_I64, TS_DEVICE_CPU));
    float *at = ts_data_mut(image);
    int64_t *classes = ts_data_mut(sample[1]);
    uint64_t state = from->seed * 0xd1342543de82ef95u + (uint64_t)index * 0xaef17502108ef2d9u;
    shape s = draw_shape(&state, (float)size, true);
    paint(&s, size, at, classes);
    for (int shapes = (int)draw(&state, 1, 5); shapes > 0; shapes--) {
        s = draw_shape(&state, (float)size, false);
        paint(&s, size, at, classes);
    }
    for (int64_t k = 0; k < size * size * 3; k++)
        at[k] = 2 * at[k] - 1 + draw(&state, -0.12F, 0.12F);
    return TS_STATUS_OF(sample[0] = ts_permute(image, TS_SIZES(2, 0, 1)));
}

static int64_t all_scenes(void *payload) { return (void)payload, INT64_C(1) << 41; }

ts_status scenes_draw(scenes *s, uint64_t seed, int64_t size, int64_t classes)
{
    *s = (scenes){{sizeof s->dataset, all_scenes, draw_scene, s, 2}, .seed = seed, .size = size};
    return classes == SCENE_CLASSES
               ? TS_OK
               : ts_error_set_hint(TS_ERR_VALUE, "--classes is for masks of --data",
                                   "scenes: argument '--classes': expected %d for drawn scenes "
                                   "(background, disc, box), got %lld", SCENE_CLASSES,
                                   (long long)classes);
}

/* ----------------------------------------------------------------------- pairs of files ---- */

static int64_t count_pairs(void *payload) { return ((scenes *)payload)->n; }

/** Fails unless a mask has the image's height and width, which are `size` or more. */
static ts_status check_sizes(const scenes *s, char path[2][MOST_PATH], int64_t size[2][2])
{
    if (size[0][0] >= s->size && size[0][1] >= s->size && size[0][0] == size[1][0] &&
        size[0][1] == size[1][1])
        return TS_OK;
    return ts_error_set(TS_ERR_SHAPE, "scenes: expected an image of at least %lld x %lld and a "
                        "mask of the same sizes, got %lld x %lld in '%s' and %lld x %lld in '%s'",
                        (long long)s->size, (long long)s->size, (long long)size[0][0],
                        (long long)size[0][1], path[0], (long long)size[1][0],
                        (long long)size[1][1], path[1]);
}

/** Fails if the mask (1, H, W) has a class above the last. */
static ts_status check_classes(const scenes *s, const char *name, ts_tensor *mask)
{
    int64_t most = 0;
    TS_TRY(mask = ts_to(mask, TS_I64));
    const int64_t *at = ts_data(mask);
    for (int64_t k = 0; k < ts_numel(mask); k++)
        most = at[k] > most ? at[k] : most;
    return most < s->classes ? TS_OK
                             : ts_error_set(TS_ERR_VALUE, "scenes: '%s': expected classes below "
                                            "%lld in the mask, got %lld", name,
                                            (long long)s->classes, (long long)most);
}

/** Reads height and width, each 32 bits from the most significant byte on, from a PNG's header. */
static ts_status read_sizes(const char *path, int64_t size[2])
{
    unsigned char head[24];
    FILE *file = fopen(path, "rb");
    if (!file)
        return ts_error_set(TS_ERR_IO, "scenes: expected an image and a mask for each name, cannot "
                            "read '%s': %s", path, strerror(errno));
    size_t n = fread(head, 1, sizeof head, file);
    fclose(file);
    if (n < sizeof head || memcmp(head, "\x89PNG\r\n\x1a\n", 8) != 0)
        return ts_error_set(TS_ERR_FORMAT, "scenes: '%s': expected a PNG image, got a file of "
                            "another format or without an image", path);
    for (int d = 0; d < 2; d++) {
        const unsigned char *at = head + 20 - 4 * d;
        size[d] = (int64_t)at[0] << 24 | at[1] << 16 | at[2] << 8 | at[3];
    }
    return TS_OK;
}

/** The middle (C, size, size) of an image (C, H, W). */
static ts_tensor *middle(ts_tensor *t, int64_t size)
{
    for (int d = 1; d < 3; d++) {
        int64_t from = (ts_size(t, d) - size) / 2;
        t = ts_slice(t, d, from, from + size, 1);
    }
    return t;
}

/** Writes the path of file `index` of "images" or "masks". */
static void path_of(const scenes *s, const char *part, int64_t index, char path[MOST_PATH])
{
    snprintf(path, MOST_PATH, "%s/%s/%s", s->folder, part, s->names[index]);
}

static ts_status read_pair(void *payload, int64_t index, ts_tensor **sample)
{
    const scenes *s = payload;
    char path[2][MOST_PATH];
    path_of(s, "images", index, path[0]), path_of(s, "masks", index, path[1]);
    ts_tensor *image = ts_png_load(path[0], TS_OPTS(ts_png_opts, .channels = 3)),
              *mask = ts_png_load(path[1], TS_OPTS(ts_png_opts, .channels = 1, .indices = true));
    TS_TRY(image);
    TS_TRY(mask);
    int64_t size[2][2] = {{ts_size(image, 1), ts_size(image, 2)},
                          {ts_size(mask, 1), ts_size(mask, 2)}};
    TS_TRY(check_sizes(s, path, size)); // files may change after scenes_open()
    TS_TRY(check_classes(s, path[1], mask));
    image = ts_div_scalar(ts_to(image, TS_F32), 255);
    if (s->augment) {
        ts_tensor *pair[] = {image, mask};
        TS_TRY(ts_augment(pair, 2, TS_OPTS(ts_augment_opts, .flip = 0.5, .height = s->size,
                                           .width = s->size, .brightness = 0.2, .contrast = 0.2,
                                           .saturation = 0.2), pair));
        image = pair[0], mask = pair[1];
    }
    sample[0] = ts_add_scalar(ts_mul_scalar(middle(image, s->size), 2), -1);
    sample[1] = ts_to(ts_select(middle(mask, s->size), 0, 0), TS_I64);
    TS_TRY(sample[0]);
    return TS_STATUS_OF(sample[1]);
}

static int is_png(const struct dirent *entry)
{
    size_t n = strlen(entry->d_name);
    return n > 4 && strcmp(entry->d_name + n - 4, ".png") == 0;
}

ts_status scenes_open(scenes *s, const char *folder, int64_t size, int64_t classes, bool augment)
{
    char path[MOST_PATH];
    struct dirent **found = NULL;
    *s = (scenes){{sizeof s->dataset, count_pairs, read_pair, s, 2}, .size = size,
                  .classes = classes, .augment = augment, .folder = strdup(folder)};
    snprintf(path, sizeof path, "%s/images", folder);
    int n = s->folder ? scandir(path, &found, is_png, alphasort) : -1;
    if (n < 1) {
        free(found);
        return ts_error_set(TS_ERR_IO, "scenes: expected PNG files in '%s' and their masks in "
                            "'%s/masks', found no PNG file", path, folder);
    }
    s->names = calloc((size_t)n, sizeof *s->names);
    for (; s->n < n && s->names; s->n++)
        s->names[s->n] = strdup(found[s->n]->d_name);
    for (int i = 0; i < n; i++)
        free(found[i]);
    free(found);
    for (int64_t i = 0; i < n; i++)
        if (!s->names || !s->names[i])
            return ts_error_memory("the names of images", n);
    for (int64_t i = 0; i < s->n; i++) {
        char pair[2][MOST_PATH];
        int64_t sizes[2][2];
        path_of(s, "images", i, pair[0]), path_of(s, "masks", i, pair[1]);
        TS_TRY(read_sizes(pair[0], sizes[0]));
        TS_TRY(read_sizes(pair[1], sizes[1]));
        TS_TRY(check_sizes(s, pair, sizes));
    }
    return TS_OK;
}

void scenes_close(scenes *s)
{
    for (int64_t i = 0; s->names && i < s->n; i++)
        free(s->names[i]);
    free(s->names), free(s->folder);
}

/* ----------------------------------------------------------------------------- pictures ---- */

ts_status scenes_save(const char *path, ts_tensor *x, ts_tensor *y, ts_tensor *found)
{
    static const unsigned char colours[][3] = {{30, 30, 40}, {240, 160, 40}, {60, 140, 240},
                                               {80, 200, 120}, {220, 80, 90}, {170, 110, 220},
                                               {230, 220, 90}, {110, 210, 220}};
    enum { COLOURS = sizeof colours / sizeof *colours };
    TS_SCOPE;
    x = ts_contiguous(ts_permute(x, TS_SIZES(0, 2, 3, 1))); // (n, size, size, 3)
    TS_TRY(x);
    int64_t n = ts_size(x, 0), size = ts_size(x, 1), area = size * size;
    ts_tensor *picture = ts_empty_on(TS_SIZES(3 * size, n * size, 3), TS_U8, TS_DEVICE_CPU);
    TS_TRY(picture);
    const float *pixels = ts_data(x);
    const int64_t *classes[] = {NULL, ts_data(y), ts_data(found)};
    unsigned char *at = ts_data_mut(picture);
    for (int64_t row = 0; row < 3 * size; row++)
        for (int64_t column = 0; column < n * size; column++) {
            int64_t pixel = column / size * area + row % size * size + column % size;
            for (int c = 0; c < 3; c++)
                *at++ = row / size ? colours[classes[row / size][pixel] % COLOURS][c]
                                   : (unsigned char)(127.5F * fminf(fmaxf(pixels[3 * pixel + c] + 1,
                                                                          0), 2));
        }
    return ts_png_save(path, ts_permute(picture, TS_SIZES(2, 0, 1)));
}
