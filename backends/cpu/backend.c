/** @file backend.c  The CPU backend registers itself: one variant of each kernel family. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/isa.h"
#include "backends/cpu/gemm.h"
#include "backends/cpu/loops.h"
#include "backends/cpu/onednn.h"
#include "init.h"

#define FAMILY(name) TS_ISA_DECLARE(extern const ts_cpu_family, ts_cpu_##name, [1]);
#define POINTWISE(name)                                                               \
    FAMILY(name)                                                                      \
    TS_ISA_DECLARE(extern const ts_cpu_recipes, ts_cpu_recipes_of_##name, [1]);
#include "backends/cpu/families.h"
#undef FAMILY
#undef POINTWISE

ts_status ts_cpu_install(void)
{
    ts_blas_install();
    ts_onednn_install();
#define FAMILY(name) TS_ISA_PICK(ts_cpu_##name),
#define POINTWISE FAMILY
    const ts_cpu_family *families[] = {
#include "backends/cpu/families.h"
    };
#undef FAMILY
#undef POINTWISE
#define FAMILY(name)
#define POINTWISE(name) TS_ISA_PICK(ts_cpu_recipes_of_##name),
    const ts_cpu_recipes *recipes[] = {
#include "backends/cpu/families.h"
    };
#undef FAMILY
#undef POINTWISE
    for (int i = 0; i < TS_COUNTOF(recipes); i++)
        ts_register_recipes(recipes[i]->recipes, recipes[i]->count);
    for (int i = 0; i < TS_COUNTOF(families); i++)
        TS_TRY(ts_register_kernels(TS_KEY_CPU, families[i]->defs, families[i]->count, "cpu"));
    return TS_OK;
}
