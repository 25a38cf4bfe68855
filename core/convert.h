/** @file convert.h  One value from a dtype to another: the rounding that scalars and copies share. */
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
/** The upper half of an f32, to nearest even; every NaN becomes 0x7fc0. */
TS_INLINE uint16_t ts_f32_to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
TS_INLINE float ts_f16_to_f32(uint16_t h)
{
    _Float16 x;
    memcpy(&x, &h, 2);
    return (float)x;
}
TS_INLINE uint16_t ts_f32_to_f16(float x)
{
    _Float16 h = (_Float16)x;
    uint16_t bits;
    memcpy(&bits, &h, 2);
    return bits;
}

/**
 * f32 on the way to bf16 or f16: what f32 cannot hold is kept in its last bit (rounding to odd), so that
 * the second rounding gives what one rounding would have given.
 */
TS_INLINE float ts_odd_f32(double x)
{
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    if ((double)f == x || x != x)
        return f;
    bits -= (f < 0 ? -(double)f : (double)f) > (x < 0 ? -x : x); /* towards 0; of Inf the largest number */
    bits |= 1;
    memcpy(&f, &bits, 4);
    return f;
}
/** The same of an integer: what lies below 53 bits is kept in the last of them. */
TS_INLINE float ts_odd_f32_of(int64_t i)
{
    bool large = i > INT64_C(1) << 53 || i < -(INT64_C(1) << 53);
    return ts_odd_f32((double)(large ? (i & ~INT64_C(0x7ff)) | (int64_t)((i & 0x7ff) != 0) << 11 : i));
}

/* Out of range and NaN have no value in an integer; they become the most negative one, on every ISA. */
TS_INLINE int64_t ts_trunc_i64(double x)
{
    return x >= -9.2233720368547758e18 && x < 9.2233720368547758e18 ? (int64_t)x : INT64_MIN;
}
TS_INLINE int32_t ts_trunc_i32(double x)
{
    return x > -2147483649.0 && x < 2147483648.0 ? (int32_t)x : INT32_MIN;
}

#endif
