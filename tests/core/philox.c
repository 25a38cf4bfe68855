// Known answers of Philox4x32-10 and the mapping from words to numbers.
// SPDX-License-Identifier: MIT
#include "core/philox.h"
#include "tests/harness.h"

/* The three vectors that the Random123 library publishes for philox4x32-10. */
static const struct {
    ts_philox_block counter;
    uint32_t key[2];
    ts_philox_block answer;
} known[] = {
    {{{0, 0, 0, 0}}, {0, 0}, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
    {{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
     {0xffffffff, 0xffffffff},
     {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
    {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
     {0xa4093822, 0x299f31d0},
     {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
};

TS_TEST(known_answers, .loop = 3)
{
    ts_philox_block b = ts_philox_raw(known[_i].counter, known[_i].key[0], known[_i].key[1]);
    for (int i = 0; i < 4; i++)
        ck_assert_uint_eq(b.w[i], known[_i].answer.w[i]);
}

TS_TEST(seed_and_position_are_split_low_word_first)
{
    ts_philox_block counter = {{0x9abcdef0, 0x12345678, 0, 0}};
    ts_philox_block want = ts_philox_raw(counter, 0x55667788, 0x11223344);
    ts_philox_block got = ts_philox(0x1122334455667788, 0x123456789abcdef0);
    for (int i = 0; i < 4; i++)
        ck_assert_uint_eq(got.w[i], want.w[i]);
}

TS_TEST(elements_are_lanes_of_consecutive_blocks)
{
    for (uint64_t i = 0; i < 64; i++) {
        ck_assert_uint_eq(ts_philox_u32(7, 1000, i), ts_philox(7, 1000 + i / 4).w[i % 4]);
        ts_philox_block b = ts_philox(7, 1000 + i / 2);
        uint64_t want = i % 2 ? (uint64_t)b.w[3] << 32 | b.w[2] : (uint64_t)b.w[1] << 32 | b.w[0];
        ck_assert_uint_eq(ts_philox_u64(7, 1000, i), want);
    }
    /* the number of counters that a draw uses; the next draw begins after them */
    ck_assert_uint_eq(ts_philox_blocks_32(0), 0);
    ck_assert_uint_eq(ts_philox_blocks_32(5), 2);
    ck_assert_uint_eq(ts_philox_blocks_64(5), 3);
    ck_assert_uint_eq(ts_philox_blocks_32(UINT64_MAX), (uint64_t)1 << 62);
}

TS_TEST(uniforms_lie_in_the_half_open_interval)
{
    ck_assert(ts_philox_to_f32(0) == 0.0f);
    ck_assert(ts_philox_to_f32(UINT32_MAX) == 1.0f - 0x1p-24f);
    ck_assert(ts_philox_to_f64(0) == 0.0);
    ck_assert(ts_philox_to_f64(UINT64_MAX) == 1.0 - 0x1p-53);
    ck_assert(ts_philox_to_f32(0x80000000) == 0.5f);
}

/* Moments of 2^20 draws, within five standard errors of their expected values. */
TS_TEST(moments_are_those_of_the_distributions)
{
    enum { N = 1 << 20 };
    double u[2] = {0}, u2[2] = {0}, z[2] = {0}, z2[2] = {0}, z4[2] = {0};
    for (uint64_t i = 0; i < N; i++) {
        double v[2] = {ts_philox_uniform_f32(3, 5, i), ts_philox_uniform_f64(3, 5, i)};
        double g[2] = {ts_philox_normal_f32(3, 5, i), ts_philox_normal_f64(3, 5, i)};
        for (int k = 0; k < 2; k++) {
            u[k] += v[k] / N;
            u2[k] += v[k] * v[k] / N;
            z[k] += g[k] / N;
            z2[k] += g[k] * g[k] / N;
            z4[k] += g[k] * g[k] * g[k] * g[k] / N;
        }
    }
    double error = 5.0 / 1024;
    for (int k = 0; k < 2; k++) {
        ck_assert_double_eq_tol(u[k], 0.5, error * sqrt(1.0 / 12));
        ck_assert_double_eq_tol(u2[k], 1.0 / 3, error * sqrt(4.0 / 45));
        ck_assert_double_eq_tol(z[k], 0.0, error);
        ck_assert_double_eq_tol(z2[k], 1.0, error * sqrt(2.0));
        ck_assert_double_eq_tol(z4[k], 3.0, error * sqrt(96.0));
    }
}

TS_TEST(normals_are_finite_at_the_ends)
{
    const uint32_t ends[] = {0, 1, 0x7fffffff, 0x80000000, UINT32_MAX};
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 5; j++) {
            float z[2];
            double d[2];
            ts_philox_normal_pair_f32(ends[i], ends[j], z);
            ts_philox_normal_pair_f64((uint64_t)ends[i] << 32, (uint64_t)ends[j] << 32, d);
            ck_assert(isfinite(z[0]) && isfinite(z[1]) && isfinite(d[0]) && isfinite(d[1]));
        }
    float largest[2];
    ts_philox_normal_pair_f32(0, 0, largest);
    ck_assert_float_eq_tol(largest[0], 6.7637f, 1e-3f); // sqrt(66 ln 2)
}
