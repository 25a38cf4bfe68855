/*
 * Chooses the variant of the CPU kernels (baseline, AVX2, AVX-512) that runs on this machine.
 *
 * A kernel file is compiled once per variant and exports one symbol per variant (TS_V in vec.h).
 * Code that is compiled once, such as backend.c and loops.c, declares these symbols with
 * TS_ISA_DECLARE and selects one with TS_ISA_PICK:
 *
 *     TS_ISA_DECLARE(ts_loop, ts_cpu_copy_loop, (ts_dtype to, ts_dtype from));
 *     ts_loop loop = TS_ISA_PICK(ts_cpu_copy_loop)(to, from);
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_ISA_H
#define TS_BACKENDS_CPU_ISA_H

#include <stdbool.h>

typedef enum ts_isa { TS_ISA_BASELINE, TS_ISA_AVX2, TS_ISA_AVX512, TS_ISA_COUNT } ts_isa;

/** Best variant that the build contains (only x86-64 builds have AVX2 and AVX-512) and that both
 *  the processor and the operating system support. */
ts_isa ts_cpu_isa_supported(void);
/**
 * The variant in use, fixed at the first call: the best supported one, or a lower one named by the
 * environment variable TS_ISA (baseline, avx2, avx512). A variant that the machine does not support
 * has no effect; any other value has no effect and logs a warning.
 */
ts_isa ts_cpu_isa(void);
/** The variant that ts_cpu_isa() chooses if TS_ISA has this value; NULL or "": TS_ISA is not
 * set. */
ts_isa ts_isa_choose(const char *ts_isa_value);
/** True if the AVX-512 variant is in use and the processor has dot products of bf16 pairs
 *  (AVX512_BF16). */
bool ts_cpu_has_bf16(void);
/** Returns "baseline", "avx2" or "avx512"; "?" for any other value. */
const char *ts_isa_name(ts_isa isa);

#if TS_WIDE_VARIANTS
#define TS_ISA_DECLARE(type, name, params)                                                       \
    type name##_baseline params;                                                                 \
    type name##_avx2 params;                                                                     \
    type name##_avx512 params
#define TS_ISA_PICK(name)                                                                        \
    (ts_cpu_isa() == TS_ISA_AVX512 ? name##_avx512                                               \
     : ts_cpu_isa() == TS_ISA_AVX2 ? name##_avx2                                                 \
                                   : name##_baseline)
#else
#define TS_ISA_DECLARE(type, name, params) type name##_baseline params
#define TS_ISA_PICK(name) (name##_baseline)
#endif

#endif
