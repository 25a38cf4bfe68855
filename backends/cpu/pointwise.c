/** @file pointwise.c  Binary arithmetic. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/loops.h"
#include "ops/kernel.h"

/* name, float expression on vectors, expression on integers, expression on bool (0 or 1) */
#define ARITHMETIC(name, float_expr, int_expr)                                       \
    TS_LOOP2(vf, name##_f32, float_expr)                                             \
    TS_LOOP2(vd, name##_f64, float_expr)                                             \
    TS_SCALAR_LOOP2(int64_t, int64_t, name##_i64, (int64_t)((uint64_t)a int_expr (uint64_t)b)) \
    TS_SCALAR_LOOP2(int32_t, int32_t, name##_i32, (int32_t)((uint32_t)a int_expr (uint32_t)b)) \
    TS_SCALAR_LOOP2(uint8_t, uint8_t, name##_u8, a int_expr b)

ARITHMETIC(add, a + b, +)
ARITHMETIC(sub, a - b, -)
ARITHMETIC(mul, a * b, *)
TS_SCALAR_LOOP2(uint8_t, uint8_t, add_bool, (a | b) != 0)
TS_SCALAR_LOOP2(uint8_t, uint8_t, mul_bool, (a & b) != 0)

#define LOOPS(name, bool_loop) \
    {[TS_F32] = name##_f32, [TS_F64] = name##_f64, [TS_I64] = name##_i64, [TS_I32] = name##_i32, [TS_U8] = name##_u8, [TS_BOOL] = bool_loop}

#define KERNEL(name, bool_loop)                                          \
    static ts_status name(ts_frame *f)                                   \
    {                                                                    \
        static const ts_loop loops[TS_DTYPE_COUNT] = LOOPS(name, bool_loop); \
        return ts_cpu_pointwise(f, loops, NULL, 2);                      \
    }

KERNEL(add, add_bool)
KERNEL(sub, NULL)
KERNEL(mul, mul_bool)

TS_CPU_FAMILY(pointwise,
    {TS_OP_add, add, {0, 1}},
    {TS_OP_sub, sub, {0, 1}},
    {TS_OP_mul, mul, {0, 1}})
