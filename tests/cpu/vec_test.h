/*
 * Test cases that are compiled once per instruction-set variant (vec.h). VEC_TEST() skips the case
 * on a machine without the variant. The body is a separate function, so that no instruction of the
 * variant runs before the check. TS_TEST() would not check, so this header removes it.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_TESTS_CPU_VEC_TEST_H
#define TS_TESTS_CPU_VEC_TEST_H

#include "backends/cpu/isa.h"
#include "backends/cpu/vec.h"
#include "tests/harness.h"

#define VEC_TEST(title, ...)                                                              \
    static void title##_on_variant(int loop);                                                \
    TS_TEST_CASE(title, __VA_ARGS__)                                                      \
    {                                                                                     \
        if ((int)ts_cpu_isa_supported() < VEC_ISA)                                        \
            TS_SKIP("this machine has no %s", ts_isa_name((ts_isa)VEC_ISA));              \
        title##_on_variant(_i);                                                           \
    }                                                                                     \
    static __attribute__((noinline)) void title##_on_variant(int loop __attribute__((unused)))

#undef TS_TEST

/** An assertion for inner loops, cheaper than ck_assert(), which marks its line. */
#define MUST(condition, ...)                                                              \
    do {                                                                                  \
        if (!(condition))                                                                 \
            ck_abort_msg(__VA_ARGS__);                                                    \
    } while (0)

static inline uint32_t float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float bits_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/** True if the bits are equal or both are NaN. */
static inline bool same_float(float a, float b)
{
    return float_bits(a) == float_bits(b) || (isnan(a) && isnan(b));
}

#endif
