/** @file scenes.c  Draws scenes and saves pictures of them. */
// SPDX-License-Identifier: MIT
#include <math.h>
#include <stdlib.h>

#include "scenes.h"
#ifdef WITH_PNG
#include <png.h>
#endif

typedef struct shape {
    int32_t class, pattern;              // pattern: flat, stripes or checks
    float x, y, cos, sin, width, height; // centre; rotation; half sides, or radius in `width`
    float colour[3], contrast, period;   // colour; contrast and period of the pattern
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

ts_status scenes_draw(uint64_t seed, int64_t first, int64_t n, int64_t size, ts_tensor **x,
                      ts_tensor **y)
{
    ts_tensor *pixels = ts_empty_on(TS_SIZES(n, size, size, 3), TS_F32, TS_DEVICE_CPU);
    *y = ts_empty_on(TS_SIZES(n, size, size), TS_I64, TS_DEVICE_CPU);
    TS_TRY(pixels);
    TS_TRY(*y);
    float *at = ts_data_mut(pixels);
    int64_t *classes = ts_data_mut(*y);
    for (int64_t i = first; i < first + n; i++, at += size * size * 3, classes += size * size) {
        uint64_t state = seed * 0xd1342543de82ef95u + (uint64_t)i * 0xaef17502108ef2d9u;
        shape s = draw_shape(&state, (float)size, true);
        paint(&s, size, at, classes);
        for (int shapes = (int)draw(&state, 1, 5); shapes > 0; shapes--) {
            s = draw_shape(&state, (float)size, false);
            paint(&s, size, at, classes);
        }
        for (int64_t k = 0; k < size * size * 3; k++)
            at[k] = 2 * at[k] - 1 + draw(&state, -0.12F, 0.12F);
    }
    return TS_STATUS_OF(*x = ts_permute(pixels, TS_SIZES(0, 3, 1, 2)));
}

#ifdef WITH_PNG
typedef struct picture {
    png_image image;
    unsigned char *rgb;
} picture;

static ts_status write_png(FILE *out, void *ctx)
{
    picture *p = ctx;
    return png_image_write_to_stdio(&p->image, out, 0, p->rgb, 0, NULL)
               ? TS_OK
               : ts_error_set(TS_ERR_IO, "scenes_save: %s", p->image.message);
}

ts_status scenes_save(const char *path, ts_tensor *x, ts_tensor *y, ts_tensor *found)
{
    static const unsigned char colours[SCENE_CLASSES][3] = {
        {30, 30, 40}, {240, 160, 40}, {60, 140, 240}};
    TS_SCOPE;
    x = ts_contiguous(ts_permute(x, TS_SIZES(0, 2, 3, 1))); // (n, size, size, 3)
    TS_TRY(x);
    const float *pixels = ts_data(x);
    const int64_t *classes[] = {NULL, ts_data(y), ts_data(found)};
    int64_t n = ts_size(x, 0), size = ts_size(x, 1), area = size * size;
    picture p = {.image = {.version = PNG_IMAGE_VERSION, .format = PNG_FORMAT_RGB,
                           .width = (unsigned)(n * size), .height = (unsigned)(3 * size)}};
    if (!(p.rgb = malloc((size_t)(9 * n * area))))
        return ts_error_memory("a picture", 9 * n * area);
    unsigned char *at = p.rgb;
    for (int64_t row = 0; row < 3 * size; row++)
        for (int64_t column = 0; column < n * size; column++) {
            int64_t pixel = column / size * area + row % size * size + column % size;
            for (int c = 0; c < 3; c++)
                *at++ = row / size ? colours[classes[row / size][pixel]][c]
                                   : (unsigned char)(127.5F * fminf(fmaxf(pixels[3 * pixel + c] + 1,
                                                                          0), 2));
        }
    ts_status status = ts_replace_file("scenes_save", path, write_png, &p);
    free(p.rgb);
    return status;
}
#else
ts_status scenes_save(const char *path, ts_tensor *x, ts_tensor *y, ts_tensor *found)
{
    (void)x, (void)y, (void)found;
    return ts_error_set(TS_ERR_UNSUPPORTED, "scenes_save: %s needs a build with libpng", path);
}
#endif
