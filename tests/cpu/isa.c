// Names of the kernels' variants, and which of them runs.
// SPDX-License-Identifier: MIT
#include "backends/cpu/isa.h"
#include "tests/harness.h"

TS_TEST(names_of_variants)
{
    ck_assert_str_eq(ts_isa_name(TS_ISA_BASELINE), "baseline");
    ck_assert_str_eq(ts_isa_name(TS_ISA_AVX512), "avx512");
    ck_assert_str_eq(ts_isa_name(TS_ISA_COUNT), "?");
    ck_assert_int_le(ts_cpu_isa(), ts_cpu_isa_supported());
}

TS_TEST(environment_lowers_the_variant)
{
    ck_assert_int_eq(ts_isa_choose("baseline"), TS_ISA_BASELINE);
    ck_assert_int_eq(ts_isa_choose(NULL), ts_cpu_isa_supported());
}

TS_TEST(unknown_variant_keeps_the_best)
{
    ck_assert_int_eq(ts_isa_choose("avx1024"), ts_cpu_isa_supported());
}
