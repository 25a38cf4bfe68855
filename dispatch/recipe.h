/**
 * @file recipe.h
 * Recipes: the arithmetic of a pointwise CPU kernel as text, from which compile/ makes machine code
 * for groups of calls. A kernel file declares a recipe beside its loop. The recipe must compute the
 * loop's bits: the same operations in the same order, all NaNs counting as equal.
 *
 * The text is in postfix notation, with words divided by spaces. The last value is the result.
 *
 *   a b c d          operands of the iteration space, without the result
 *   n0 ... n7        numbers of the call: argument i, unless `choose` sets numbers[i]
 *   0.5 -0x1p3 inf   constants; f32 rounds them as a cast of a double does
 *   #fffff000        the bits of a constant, in hexadecimal digits
 *   =t               takes the last value off the stack and names it t (letters e to m, o to z)
 *   t                a named value
 *
 * Functions take their arguments off the stack, the last argument first:
 *
 *   add sub mul div sqrt fma        x y z fma: x * y + z with one rounding
 *   min max                         min: x < y ? x : y; max: x > y ? x : y
 *   neg abs copysign                copysign: magnitude of x, sign of y
 *   rint floor ceil trunc
 *   eq ne lt le gt ge               masks; NaN compares as in C
 *   and or xor not                  of masks
 *   sel                             m x y sel: x where m is true, else y
 *   band bor bxor bnot shl shr sar  bits; the shifts' second argument is a constant as #17
 *   iadd isub imul iabs imin imax ieq igt   of integers
 *   toint, tofloat                  between f32 and 32-bit integers; toint truncates
 *   ldexp                           x n ldexp: x * 2^n in f32, as vf_ldexp_fast() computes it
 *                                   (backends/cpu/vec.h)
 */
// SPDX-License-Identifier: MIT
#ifndef TS_DISPATCH_RECIPE_H
#define TS_DISPATCH_RECIPE_H

#include "dispatch/op.h"

enum { TS_RECIPE_NUMBERS = 8 };

/** The recipes of one kernel. */
typedef struct ts_recipe {
    int op;
    ts_kernel kernel;    /* whose bits the text computes */
    uint8_t variant;     /* of the kernel: 0 baseline (NEON on AArch64), 1 AVX2, 2 AVX-512 */
    bool moves;          /* the kernel copies elements of the compute dtype without arithmetic, so a
                            bf16 or f16 result is not rounded and numbers are in that dtype */
    bool casts;          /* the kernel converts operand a to the result's dtype */
    const char *f32, *f64, *i32, *i64, *boolean; /* text per compute dtype; bf16 and f16 use f32;
                                                    NULL: the dtype has no recipe */
    /** Returns the text for this call, and may set numbers, which hold the arguments that are
     *  numbers. NULL: the call has no recipe. If `choose` is set, the texts above are not used. */
    const char *(*choose)(const ts_frame *f, double *numbers);
} ts_recipe;

/** Registers recipes of CPU kernels, which must stay in memory. */
void ts_register_recipes(const ts_recipe *recipes, int count);
/** The recipe of an op's kernel on the CPU. NULL if it has none, for example because a kernel from
 *  outside has replaced the library's. */
const ts_recipe *ts_kernel_recipe(const ts_op_table *t);

#endif
