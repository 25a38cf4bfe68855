/*
 * Philox4x32-10: random bits as a pure function of (seed, counter), after Salmon et al., "Parallel
 * random numbers: as easy as 1, 2, 3" (SC 2011).
 *
 * Every backend computes the formulas below, and all give the same words and uniform numbers.
 * Normals may differ in the last bits; those in f32 are computed in f64 on the CPU and in f32 on
 * CUDA.
 *
 * Key: the 64-bit seed as two words, low first. Counter: (low, high, 0, 0) of a 64-bit position. A
 * draw of n elements reserves blocks of four words w0 to w3, starting at position `offset`:
 *
 *   f32 and 32-bit draws  element i takes word i % 4 of block offset + i / 4
 *   f64 draws             element i takes words 2 * (i % 2) and the next of block offset + i / 2
 *   uniform f32 in [0,1)  (w >> 8) * 2^-24
 *   uniform f64 in [0,1)  ((w1 << 32 | w0) >> 11) * 2^-53
 *   normal f32            Box-Muller on the words (0, 1) and (2, 3) of a block:
 *                         u1 = (float)w0 * 2^-32 + 2^-33 in (0,1], u2 = (float)w1 * 2^-32,
 *                         r = sqrt(-2 ln u1); even element r cos(2 pi u2), odd r sin(2 pi u2)
 *   normal f64            the same on the two 53-bit numbers k0, k1 of a block:
 *                         u1 = (k0 + 1) * 2^-53 in (0,1], u2 = k1 * 2^-53
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CORE_PHILOX_H
#define TS_CORE_PHILOX_H

#include <math.h>
#include <stdint.h>

// Multipliers of the paper.
#define TS_PHILOX_M0 0xD2511F53u
#define TS_PHILOX_M1 0xCD9E8D57u
// Added to the key's words between rounds: fractions of the golden ratio and sqrt(3), times 2^32.
#define TS_PHILOX_W0 0x9E3779B9u
#define TS_PHILOX_W1 0xBB67AE85u

typedef struct ts_philox_block {
    uint32_t w[4];
} ts_philox_block;

/** Ten rounds on a whole counter and key. Draws use ts_philox(). */
static inline ts_philox_block ts_philox_raw(ts_philox_block c, uint32_t k0, uint32_t k1)
{
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)TS_PHILOX_M0 * c.w[0];
        uint64_t p1 = (uint64_t)TS_PHILOX_M1 * c.w[2];
        c = (ts_philox_block){{(uint32_t)(p1 >> 32) ^ c.w[1] ^ k0, (uint32_t)p1,
                               (uint32_t)(p0 >> 32) ^ c.w[3] ^ k1, (uint32_t)p0}};
        k0 += TS_PHILOX_W0;
        k1 += TS_PHILOX_W1;
    }
    return c;
}

/** Four random words at a position of a seed's stream. */
static inline ts_philox_block ts_philox(uint64_t seed, uint64_t position)
{
    ts_philox_block counter = {{(uint32_t)position, (uint32_t)(position >> 32), 0, 0}};
    return ts_philox_raw(counter, (uint32_t)seed, (uint32_t)(seed >> 32));
}

/** Blocks that a draw of n elements reserves, for elements of 32 and of 64 bits. */
static inline uint64_t ts_philox_blocks_32(uint64_t n) { return n / 4 + (n % 4 != 0); }
static inline uint64_t ts_philox_blocks_64(uint64_t n) { return n / 2 + (n % 2 != 0); }

/** The random bits of element i of the draw at `offset`: 32 or 64. */
static inline uint32_t ts_philox_u32(uint64_t seed, uint64_t offset, uint64_t i)
{
    return ts_philox(seed, offset + i / 4).w[i % 4];
}
static inline uint64_t ts_philox_join(uint32_t low, uint32_t high)
{
    return (uint64_t)high << 32 | low;
}
static inline uint64_t ts_philox_u64(uint64_t seed, uint64_t offset, uint64_t i)
{
    ts_philox_block b = ts_philox(seed, offset + i / 2);
    return ts_philox_join(b.w[2 * (i % 2)], b.w[2 * (i % 2) + 1]);
}

static inline float ts_philox_to_f32(uint32_t bits) { return (float)(bits >> 8) * 0x1p-24f; }
static inline double ts_philox_to_f64(uint64_t bits) { return (double)(bits >> 11) * 0x1p-53; }

/** Uniform in [0, 1): element i of the draw at `offset`. */
static inline float ts_philox_uniform_f32(uint64_t seed, uint64_t offset, uint64_t i)
{
    return ts_philox_to_f32(ts_philox_u32(seed, offset, i));
}
static inline double ts_philox_uniform_f64(uint64_t seed, uint64_t offset, uint64_t i)
{
    return ts_philox_to_f64(ts_philox_u64(seed, offset, i));
}

#define TS_PHILOX_2PI 6.283185307179586476925

/** Two standard normals from two words, computed in f64 and rounded to f32. */
static inline void ts_philox_normal_pair_f32(uint32_t w0, uint32_t w1, float z[2])
{
    float u1 = (float)w0 * 0x1p-32f + 0x1p-33f, u2 = (float)w1 * 0x1p-32f;
    double r = sqrt(-2.0 * log((double)u1)), angle = TS_PHILOX_2PI * (double)u2;
    z[0] = (float)(r * cos(angle));
    z[1] = (float)(r * sin(angle));
}
static inline void ts_philox_normal_pair_f64(uint64_t bits0, uint64_t bits1, double z[2])
{
    double u1 = (double)((bits0 >> 11) + 1) * 0x1p-53, u2 = ts_philox_to_f64(bits1);
    double r = sqrt(-2.0 * log(u1)), angle = TS_PHILOX_2PI * u2;
    z[0] = r * cos(angle);
    z[1] = r * sin(angle);
}

/** Standard normal: element i of the draw at `offset`. */
static inline float ts_philox_normal_f32(uint64_t seed, uint64_t offset, uint64_t i)
{
    ts_philox_block b = ts_philox(seed, offset + i / 4);
    float z[2];
    ts_philox_normal_pair_f32(b.w[i & 2], b.w[(i & 2) + 1], z);
    return z[i & 1];
}
static inline double ts_philox_normal_f64(uint64_t seed, uint64_t offset, uint64_t i)
{
    ts_philox_block b = ts_philox(seed, offset + i / 2);
    double z[2];
    ts_philox_normal_pair_f64(ts_philox_join(b.w[0], b.w[1]), ts_philox_join(b.w[2], b.w[3]), z);
    return z[i & 1];
}

#endif
