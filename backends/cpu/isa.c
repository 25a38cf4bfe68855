// Selects the instruction-set variant of the CPU kernels at run time. See isa.h.
// SPDX-License-Identifier: MIT
#include "backends/cpu/isa.h"
#include "include/tessera/core.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#if TS_WIDE_VARIANTS
#include <cpuid.h>
#endif

static const char *const isa_names[TS_ISA_COUNT] = {"baseline", "avx2", "avx512"};

const char *ts_isa_name(ts_isa isa)
{
    return (unsigned)isa < TS_ISA_COUNT ? isa_names[isa] : "?";
}

ts_isa ts_cpu_isa_supported(void)
{
#if TS_WIDE_VARIANTS
    unsigned a, b, c, d;
    __builtin_cpu_init();
    /* For AVX, __builtin_cpu_supports() also checks that the operating system saves the registers
     * (XCR0). Not every compiler accepts "f16c" as its argument. */
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_F16C) || !__builtin_cpu_supports("avx2") ||
        !__builtin_cpu_supports("fma"))
        return TS_ISA_BASELINE;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        return TS_ISA_AVX512;
    return TS_ISA_AVX2;
#else
    return TS_ISA_BASELINE;
#endif
}

ts_isa ts_isa_choose(const char *ts_isa_value)
{
    ts_isa best = ts_cpu_isa_supported();
    for (int isa = 0; ts_isa_value && *ts_isa_value && isa < TS_ISA_COUNT; isa++)
        if (strcmp(ts_isa_value, isa_names[isa]) == 0)
            return isa < (int)best ? (ts_isa)isa : best;
    if (ts_isa_value && *ts_isa_value)
        ts_log_write("warning",
                     "TS_ISA: expected baseline, avx2 or avx512, got '%.200s', which changes "
                     "nothing",
                     ts_isa_value);
    return best;
}

ts_isa ts_cpu_isa(void)
{
    static _Atomic int chosen = -1; // every thread would store the same value
    int isa = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (isa < 0) {
        isa = (int)ts_isa_choose(getenv("TS_ISA"));
        atomic_store_explicit(&chosen, isa, memory_order_relaxed);
    }
    return (ts_isa)isa;
}

bool ts_cpu_has_bf16(void)
{
#if TS_WIDE_VARIANTS
    static _Atomic int known = -1; // every thread would store the same value
    int has = atomic_load_explicit(&known, memory_order_relaxed);
    if (has < 0) {
        unsigned a, b, c, d;
        has = __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1) &&
              ts_cpu_isa() == TS_ISA_AVX512;
        atomic_store_explicit(&known, has, memory_order_relaxed);
    }
    return has;
#else
    return false;
#endif
}
