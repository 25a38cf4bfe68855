/**
 * @file float_env.h  The floating-point environment that kernels compute in.
 *
 * Results do not depend on the program's rounding mode or flush-to-zero setting: if these differ
 * from the default, the generic entries (dispatch/fill.c, enter.c) set the default with
 * TS_PLAIN_FLOATS while a kernel runs.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CORE_FLOAT_ENV_H
#define TS_CORE_FLOAT_ENV_H

#include "core/base.h"

#include <fenv.h>

/** The bits of the control register that change results: rounding mode, flush to zero; on other
 *  ISAs than x86-64 and AArch64 the rounding mode only. */
#if defined(__x86_64__)
typedef unsigned ts_float_control;
#define TS_FLOAT_BITS 0xe040u /* rounding control, flush to zero, denormals are zero */
TS_INLINE ts_float_control ts_float_control_get(void) { return __builtin_ia32_stmxcsr(); }
TS_INLINE void ts_float_control_set(ts_float_control c) { __builtin_ia32_ldmxcsr(c); }
#elif defined(__aarch64__)
typedef uint64_t ts_float_control;
#define TS_FLOAT_BITS (3ull << 22 | 1ull << 24 | 1ull << 19) /* rounding mode, FZ, FZ16 */
TS_INLINE ts_float_control ts_float_control_get(void)
{
    ts_float_control c;
    __asm__ volatile("mrs %0, fpcr" : "=r"(c));
    return c;
}
TS_INLINE void ts_float_control_set(ts_float_control c)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(c));
}
#else
typedef int ts_float_control;
#define TS_FLOAT_BITS (~0)
TS_INLINE ts_float_control ts_float_control_get(void) { return fegetround(); }
TS_INLINE void ts_float_control_set(ts_float_control c) { fesetround(c); }
#endif

/** True if the thread rounds to nearest and keeps subnormal numbers. */
TS_INLINE bool ts_float_env_is_plain(void) { return !(ts_float_control_get() & TS_FLOAT_BITS); }

/** Restores the mode; exception flags raised in between stay set. */
TS_INLINE void ts_float_env_restore(const ts_float_control *before)
{
    ts_float_control now = ts_float_control_get();
    ts_float_control_set((now & ~TS_FLOAT_BITS) | (*before & TS_FLOAT_BITS));
}
/** Sets rounding to nearest with subnormal numbers; the end of the enclosing block restores the
 *  mode. */
#define TS_PLAIN_FLOATS                                                                            \
    const ts_float_control floats_before __attribute__((cleanup(ts_float_env_restore), unused)) =  \
        ts_float_control_get();                                                                    \
    ts_float_control_set(floats_before & ~TS_FLOAT_BITS)

#endif
