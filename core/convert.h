/** @file convert.h  Converts one value between dtypes. Boxed scalars and copies of tensors use
 * these functions, so both round alike. */
// SPDX-License-Identifier: MIT
#ifndef TS_CORE_CONVERT_H
#define TS_CORE_CONVERT_H

#include <string.h>

#include "core/base.h"

TS_INLINE float ts_bf16_to_f32(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
/** Rounds an f32 to bf16, to nearest even; every NaN becomes 0x7fc0. */
TS_INLINE uint16_t ts_f32_to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
/** Converts f16 to f32 exactly; a NaN becomes quiet. */
TS_INLINE float ts_f16_to_f32(uint16_t h)
{
    /* f16's exponent and fraction, moved to f32's bit positions, are the value times 2^-112. An
     * exponent of all ones marks Inf or NaN: `special` adds f32's bits for it. */
    uint32_t bits = (uint32_t)(h & 0x7fff) << 13, special = h & 0x3ff ? 0x7fc00000 : 0x7f800000;
    float x;
    memcpy(&x, &bits, 4);
    x *= 0x1p112f;
    memcpy(&bits, &x, 4);
    bits |= (h & 0x7c00) == 0x7c00 ? special : 0;
    bits |= (uint32_t)(h & 0x8000) << 16;
    memcpy(&x, &bits, 4);
    return x;
}
/** Rounds an f32 to f16, to nearest even. Magnitudes of at least 65520 become Inf; a NaN becomes
 *  quiet and keeps its sign. */
TS_INLINE uint16_t ts_f32_to_f16(float x)
{
    uint32_t bits, magnitude, small;
    memcpy(&bits, &x, 4);
    magnitude = bits & 0x7fffffff;
    /* below 2^-14: adding 0.5 rounds to multiples of 2^-24, as f16 does there */
    float sum = (x < 0 ? -x : x) + 0.5f;
    memcpy(&small, &sum, 4);
    small -= 0x3f000000;
    uint32_t h = (magnitude + 0xfff + (magnitude >> 13 & 1) - (112u << 23)) >> 13;
    h = magnitude < 0x38800000 ? small : h;
    h = magnitude > 0x477fffff ? 0x7c00 : h;
    h = magnitude > 0x7f800000 ? 0x7e00 | (magnitude >> 13 & 0x3ff) : h;
    return (uint16_t)(h | (bits >> 16 & 0x8000));
}

/**
 * Converts to f32, rounded to odd: an inexact result is rounded towards 0, and its last bit is set.
 * Rounding the result to bf16 or f16 then equals a single rounding of x.
 */
TS_INLINE float ts_odd_f32(double x)
{
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    if ((double)f == x || x != x)
        return f;
    /* towards 0; Inf becomes the largest number */
    bits -= (f < 0 ? -(double)f : (double)f) > (x < 0 ? -x : x);
    bits |= 1;
    memcpy(&f, &bits, 4);
    return f;
}
/** ts_odd_f32() of an integer. Beyond 2^53 the integer is first rounded to odd, to fit f64. */
TS_INLINE float ts_odd_f32_of(int64_t i)
{
    bool large = i > INT64_C(1) << 53 || i < -(INT64_C(1) << 53);
    return ts_odd_f32(
        (double)(large ? (i & ~INT64_C(0x7ff)) | (int64_t)((i & 0x7ff) != 0) << 11 : i));
}

/* Convert to an integer, rounding towards 0. NaN and values out of range become the most negative
 * integer, as x86 instructions do, on every ISA. */
TS_INLINE int64_t ts_trunc_i64(double x)
{
    return x >= -9.2233720368547758e18 && x < 9.2233720368547758e18 ? (int64_t)x : INT64_MIN;
}
TS_INLINE int32_t ts_trunc_i32(double x)
{
    return x > -2147483649.0 && x < 2147483648.0 ? (int32_t)x : INT32_MIN;
}

#endif
