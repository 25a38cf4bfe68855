/**
 * @file png_file.h  Writes PNG files of any depth, colour type and interlacing, without libpng. The
 * pixels are not compressed.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_TESTS_IO_PNG_FILE_H
#define TS_TESTS_IO_PNG_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/** A picture; its file has at most 60,000 bytes of pixels. */
typedef struct png_picture {
    uint32_t width, height;
    int depth, colour;      /* bits of a value; 0 grey, 2 RGB, 3 palette, 4 grey alpha, 6 RGBA */
    bool interlaced;
    const uint16_t *values; /* (height, width, channels) */
} png_picture;

static inline int png_channels(int colour)
{
    return (colour == 2 || colour == 6 ? 3 : 1) + (colour >= 4);
}

static inline unsigned char *png_number(unsigned char *at, uint32_t x)
{
    for (int shift = 24; shift >= 0; shift -= 8)
        *at++ = (unsigned char)(x >> shift);
    return at;
}

/** Appends a chunk to a file and returns the end. */
static inline unsigned char *png_chunk(unsigned char *at, const char *name, const void *data,
                                       size_t bytes)
{
    uint32_t crc = ~0U;
    at = png_number(at, (uint32_t)bytes);
    unsigned char *from = at;
    memcpy(at, name, 4);
    if (bytes)
        memcpy(at + 4, data, bytes);
    for (at += 4 + bytes; from < at; from++) {
        crc ^= *from;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320U : 0);
    }
    return png_number(at, ~crc);
}

/** Appends the values of every dy-th row and dx-th column from (y0, x0), each row after a filter
 *  byte. pass: y0, x0, dy, dx. */
static inline unsigned char *png_rows(unsigned char *at, const png_picture *p, const int pass[4])
{
    int channels = png_channels(p->colour);
    for (uint32_t y = (uint32_t)pass[0]; y < p->height; y += (uint32_t)pass[2]) {
        int used = 0; /* bits of *at */
        if ((uint32_t)pass[1] < p->width)
            *at++ = 0;
        for (uint32_t x = (uint32_t)pass[1]; x < p->width; x += (uint32_t)pass[3])
            for (int c = 0; c < channels; c++) {
                uint16_t v = p->values[(y * p->width + x) * (uint32_t)channels + (uint32_t)c];
                if (p->depth == 16)
                    *at++ = (unsigned char)(v >> 8);
                *at = (unsigned char)((used ? *at : 0) | (v & 0xff)
                                                             << (p->depth < 8 ? 8 - used - p->depth
                                                                              : 0));
                used = p->depth < 8 ? (used + p->depth) % 8 : 0;
                at += used == 0;
            }
        at += used > 0;
    }
    return at;
}

/** Writes a file to `file`, a buffer of 65,000 + `bytes` bytes, and returns its length. chunks:
 *  whole chunks that come before the pixels, `bytes` bytes. */
static inline size_t png_write(unsigned char *file, const png_picture *p, const void *chunks,
                               size_t bytes)
{
    static const int whole[4] = {0, 0, 1, 1}, passes[7][4] = {{0, 0, 8, 8}, {0, 4, 8, 8},
                                                             {4, 0, 8, 4}, {0, 2, 4, 4},
                                                             {2, 0, 4, 2}, {0, 1, 2, 2},
                                                             {1, 0, 2, 1}};
    static unsigned char stream[64000]; /* zlib: two bytes, one stored block, Adler-32 */
    unsigned char head[13] = {0}, *at = stream + 7, *end = file;
    png_number(png_number(head, p->width), p->height);
    head[8] = (unsigned char)p->depth;
    head[9] = (unsigned char)p->colour;
    head[12] = p->interlaced;
    for (int pass = 0; pass < (p->interlaced ? 7 : 1); pass++)
        at = png_rows(at, p, p->interlaced ? passes[pass] : whole);
    size_t n = (size_t)(at - stream) - 7;
    memcpy(stream, (unsigned char[]){0x78, 1, 1, (unsigned char)n, (unsigned char)(n >> 8),
                                     (unsigned char)~n, (unsigned char)(~n >> 8)}, 7);
    uint32_t low = 1, high = 0;
    for (size_t i = 0; i < n; i++) {
        low = (low + stream[7 + i]) % 65521;
        high = (high + low) % 65521;
    }
    at = png_number(at, high << 16 | low);
    memcpy(end, "\x89PNG\r\n\x1a\n", 8);
    end = png_chunk(end + 8, "IHDR", head, 13);
    if (bytes)
        memcpy(end, chunks, bytes);
    end = png_chunk(end + bytes, "IDAT", stream, (size_t)(at - stream));
    return (size_t)(png_chunk(end, "IEND", NULL, 0) - file);
}

#endif
