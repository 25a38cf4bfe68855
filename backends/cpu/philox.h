/**
 * @file philox.h  Vectorized Philox4x32-10: generates groups of 16 blocks, one block per 64-bit
 * lane. A block is the four 32-bit words of one counter. core/philox.h defines which words an
 * element uses. attention.c and random.c include this file.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_PHILOX_H
#define TS_BACKENDS_CPU_PHILOX_H

#include "backends/cpu/vec.h"
#include "core/philox.h"

#include <string.h>

enum { PHILOX_BLOCKS = 16, PHILOX_WORDS = 4 * PHILOX_BLOCKS };

typedef uint64_t vu64 __attribute__((vector_size(VEC_BYTES)));
/* Counters of VD_LANES blocks, or the words that the rounds have made of them: words 0 to 3 of each
 * block. The lower 32 bits of a 64-bit lane are the word; the upper 32 bits are unspecified and not
 * used. */
typedef struct philox_lanes {
    vl c0, c1, c2, c3;
} philox_lanes;

/** One round of Philox with the key (k0, k1). */
VEC_FN philox_lanes philox_round(philox_lanes c, vl k0, vl k1)
{
    vl p0 = vl_mul_u32(c.c0, vl_set1(TS_PHILOX_M0)), p1 = vl_mul_u32(c.c2, vl_set1(TS_PHILOX_M1));
    return (philox_lanes){(vl)((vu64)p1 >> 32) ^ c.c1 ^ k0, p1, (vl)((vu64)p0 >> 32) ^ c.c3 ^ k1,
                          p0};
}

/** Counters of the blocks position to position + VD_LANES - 1, one block per lane. */
VEC_FN philox_lanes philox_counters(uint64_t position)
{
    vu64 at = (vu64)vl_set1((int64_t)position); /* unsigned: positions may wrap */
    for (int i = 0; i < VD_LANES; i++)
        at[i] += (uint64_t)i;
    return (philox_lanes){(vl)at, (vl)(at >> 32), vl_set1(0), vl_set1(0)};
}

/** Stores the four words of each of VD_LANES blocks, block by block. */
VEC_FN void philox_store(uint32_t *w, philox_lanes c)
{
    vl low = vl_set1(0xffffffff), a = (c.c0 & low) | (c.c1 << 32), b = (c.c2 & low) | (c.c3 << 32);
    vl first = VEC_ZIP_LOW(a, b, VD_LANES), second = VEC_ZIP_HIGH(a, b, VD_LANES);
    memcpy(w, &first, sizeof first);
    memcpy(w + 2 * VD_LANES, &second, sizeof second);
}

/** Writes the PHILOX_WORDS words of the blocks position to position + 15 of a seed's stream to w,
 *  in order: those of ts_philox(). */
static inline void philox_group(uint64_t seed, uint64_t position, uint32_t *w)
{
    /* two independent sequences of rounds, to hide the latency of the multiplications */
    for (int i = 0; i < PHILOX_BLOCKS; i += 2 * VD_LANES) {
        philox_lanes a = philox_counters(position + (uint64_t)i),
                     b = philox_counters(position + (uint64_t)(i + VD_LANES));
        uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
        for (int round = 0; round < 10; round++) {
            a = philox_round(a, vl_set1(k0), vl_set1(k1));
            b = philox_round(b, vl_set1(k0), vl_set1(k1));
            k0 += TS_PHILOX_W0;
            k1 += TS_PHILOX_W1;
        }
        philox_store(w + 4 * i, a);
        philox_store(w + 4 * (i + VD_LANES), b);
    }
}

#endif
