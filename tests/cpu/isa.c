// Variants of the CPU kernels: names, and the choice by TS_ISA.
// SPDX-License-Identifier: MIT
#include "backends/cpu/isa.h"
#include "include/tessera/core.h"
#include "tests/harness.h"

#include <string.h>

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

static int warned;
static void note_warning(void *payload, const char *topic, const char *line)
{
    (void)payload;
    warned += strcmp(topic, "warning") == 0 && strstr(line, "TS_ISA: expected baseline, avx2");
}

TS_TEST(unknown_variant_keeps_the_best)
{
    ts_log_set_callback(note_warning, NULL);
    ck_assert_int_eq(ts_isa_choose("avx512"), ts_cpu_isa_supported());
    ck_assert_int_eq(ts_isa_choose(""), ts_cpu_isa_supported());
    ck_assert_int_eq(warned, 0);
    ck_assert_int_eq(ts_isa_choose("avx1024"), ts_cpu_isa_supported());
    ck_assert_int_eq(warned, 1);
    ts_log_set_callback(NULL, NULL);
}
