/** @file backend.c  The CPU backend registers itself: one variant of each kernel family. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/isa.h"
#include "backends/cpu/loops.h"

#define FAMILY(name) TS_ISA_DECLARE(extern const ts_cpu_family, ts_cpu_##name, [1]);
#include "backends/cpu/families.h"
#undef FAMILY

__attribute__((constructor(120))) static void install(void)
{
#define FAMILY(name) TS_ISA_PICK(ts_cpu_##name),
    const ts_cpu_family *families[] = {
#include "backends/cpu/families.h"
    };
#undef FAMILY
    for (int i = 0; i < TS_COUNTOF(families); i++)
        if (ts_register_kernels(TS_KEY_CPU, families[i]->defs, families[i]->count, "cpu") != TS_OK)
            return; /* logged; calls of what is missing report an error */
}
