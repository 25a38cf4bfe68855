/** @file convert.c  Conversions of single values between dtypes, compared with the formats'
 * definition. */
// SPDX-License-Identifier: MIT
#include "core/convert.h"

#include <math.h>

#include "tests/harness.h"

static double f16_value(uint16_t h)
{
    int exponent = h >> 10 & 31, fraction = h & 1023;
    double v = ldexp(exponent ? 1024 + fraction : fraction, (exponent ? exponent : 1) - 25);
    return h & 0x8000 ? -v : v;
}

TS_TEST(every_f16_is_itself_in_f32_and_back)
{
    for (uint32_t h = 0; h < 0x10000; h++) {
        float wide = ts_f16_to_f32((uint16_t)h);
        bool last = (h & 0x7c00) == 0x7c00, nan = last && h & 0x3ff;
        ck_assert(nan ? isnan(wide) : last ? isinf(wide) : wide == f16_value((uint16_t)h));
        ck_assert(!signbit(wide) == !(h & 0x8000));
        ck_assert_uint_eq(ts_f32_to_f16(wide), nan ? h | 0x200 : h); /* a NaN becomes quiet */
    }
}

TS_TEST(f32_rounds_to_the_nearest_f16_ties_to_even)
{
    for (uint32_t h = 0; h < 0x7bff; h++) {
        float mid = (float)((f16_value((uint16_t)h) + f16_value((uint16_t)(h + 1))) / 2);
        ck_assert_uint_eq(ts_f32_to_f16(nextafterf(mid, 0)), h);
        ck_assert_uint_eq(ts_f32_to_f16(mid), h + (h & 1));
        ck_assert_uint_eq(ts_f32_to_f16(nextafterf(mid, INFINITY)), h + 1);
        ck_assert_uint_eq(ts_f32_to_f16(-mid), 0x8000 | (h + (h & 1)));
    }
    ck_assert_uint_eq(ts_f32_to_f16(nextafterf(65520, 0)), 0x7bff);
    ck_assert_uint_eq(ts_f32_to_f16(65520), 0x7c00);
    ck_assert_uint_eq(ts_f32_to_f16(-3e38f), 0xfc00);
    ck_assert_uint_eq(ts_f32_to_f16(0x1p-149f), 0);
    ck_assert_uint_eq(ts_f32_to_f16(-0.0f), 0x8000);
}
