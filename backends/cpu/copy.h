/** @file copy.h  Copies between memory of any strides and dtypes, for kernels that move parts. */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_COPY_H
#define TS_BACKENDS_CPU_COPY_H

#include "backends/cpu/loops.h"

/** The loop that converts one operand to the result. */
ts_loop TS_V(ts_cpu_copy_loop)(ts_dtype to, ts_dtype from);
/** Copies memory with strides in elements, converted. */
void TS_V(ts_cpu_copy_part)(char *to, const int64_t *to_strides, ts_dtype to_dtype,
                            const char *from, const int64_t *from_strides, ts_dtype from_dtype,
                            const int64_t *sizes, int ndim);

#endif
