/** @file compare.c  Comparisons, logical and bitwise ops, tests for NaN and Inf, and selection by a
 * bool tensor. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/loops.h"
#include "ops/kernel.h"

#define ALL_LOOPS(name)                                                                     \
    [TS_F32] = name##_f32, [TS_F64] = name##_f64, [TS_I64] = name##_i64, [TS_I32] = name##_i32, \
    [TS_U8] = name##_u8, [TS_BOOL] = name##_u8
#define KERNEL(name, ...)                                                \
    static ts_status name##_kernel(ts_frame *f)                          \
    {                                                                    \
        static const ts_loop loops[TS_DTYPE_COUNT] = {__VA_ARGS__};      \
        return ts_cpu_pointwise(f, loops, NULL, 2);                      \
    }

/* ------------------------------------------------------------------------- two operands ---- */

/* Every dtype compares into bool. */
#define COMPARE(name, expr)                              \
    TS_SCALAR_LOOP2(uint8_t, float, name##_f32, expr)    \
    TS_SCALAR_LOOP2(uint8_t, double, name##_f64, expr)   \
    TS_SCALAR_LOOP2(uint8_t, int64_t, name##_i64, expr)  \
    TS_SCALAR_LOOP2(uint8_t, int32_t, name##_i32, expr)  \
    TS_SCALAR_LOOP2(uint8_t, uint8_t, name##_u8, expr)   \
    KERNEL(name, ALL_LOOPS(name))

COMPARE(eq, a == b)
COMPARE(ne, a != b)
COMPARE(lt, a < b)
COMPARE(le, a <= b)
COMPARE(gt, a > b)
COMPARE(ge, a >= b)
COMPARE(logical_and, (a != 0) & (b != 0))
COMPARE(logical_or, (a != 0) | (b != 0))
COMPARE(logical_xor, (a != 0) ^ (b != 0))

#define BITWISE(name, op)                                        \
    TS_SCALAR_LOOP2(int64_t, int64_t, name##_i64, a op b)        \
    TS_SCALAR_LOOP2(int32_t, int32_t, name##_i32, a op b)        \
    TS_SCALAR_LOOP2(uint8_t, uint8_t, name##_u8, a op b)         \
    KERNEL(name, [TS_I64] = name##_i64, [TS_I32] = name##_i32, [TS_U8] = name##_u8,                \
           [TS_BOOL] = name##_u8)

BITWISE(bitwise_and, &)
BITWISE(bitwise_or, |)
BITWISE(bitwise_xor, ^)

/* ------------------------------------------------------------------------------- tests ---- */

#define TEST(name, float_expr, int_expr)                     \
    TS_SCALAR_LOOP1(uint8_t, float, name##_f32, float_expr)  \
    TS_SCALAR_LOOP1(uint8_t, double, name##_f64, float_expr) \
    TS_SCALAR_LOOP1(uint8_t, int64_t, name##_i64, int_expr)  \
    TS_SCALAR_LOOP1(uint8_t, int32_t, name##_i32, int_expr)  \
    TS_SCALAR_LOOP1(uint8_t, uint8_t, name##_u8, int_expr)

TEST(logical_not, x == 0, x == 0)
KERNEL(logical_not, ALL_LOOPS(logical_not))

/** Runs a test that all integers pass, or all fail. For integers, the loop reads only the first
 *  element: the operand's strides become 0. */
static ts_status test_of_floats(ts_frame *f, const ts_loop *loops)
{
    ts_dtype compute = f->plan->compute;
    bool reads = ts_dtype_is_float(compute) || ts_dtype_is_half(compute);
    for (int d = 0; !reads && d < f->plan->iter.ndim; d++)
        f->plan->iter.strides[d][1] = 0;
    return ts_cpu_pointwise(f, loops, NULL, 2);
}
#define TEST_OF_FLOATS(name)                                                     \
    static ts_status name##_kernel(ts_frame *f)                                  \
    {                                                                            \
        static const ts_loop loops[TS_DTYPE_COUNT] = {ALL_LOOPS(name)};          \
        return test_of_floats(f, loops);                                         \
    }

TEST(isnan, x != x, ((void)x, 0))
TEST(isinf, x == INFINITY || x == -INFINITY, ((void)x, 0))
TEST(isfinite, x > -INFINITY && x < INFINITY, ((void)x, 1))
TEST_OF_FLOATS(isnan)
TEST_OF_FLOATS(isinf)
TEST_OF_FLOATS(isfinite)

TS_SCALAR_LOOP1(int64_t, int64_t, bitwise_not_i64, ~x)
TS_SCALAR_LOOP1(int32_t, int32_t, bitwise_not_i32, ~x)
TS_SCALAR_LOOP1(uint8_t, uint8_t, bitwise_not_u8, ~x)
TS_SCALAR_LOOP1(uint8_t, uint8_t, bitwise_not_bool, !x)
KERNEL(bitwise_not, [TS_I64] = bitwise_not_i64, [TS_I32] = bitwise_not_i32,
       [TS_U8] = bitwise_not_u8, [TS_BOOL] = bitwise_not_bool)

/* ----------------------------------------------------------------------------- choices ---- */

/* Elements are copied as bits, so only the dtype's size matters. Operands: condition, a, b. */
#define CHOOSE(name, A, B)                             \
    TS_INDEPENDENT                                     \
    for (int64_t i = 0; i < n; i++) {                  \
        name x = A, y = B;                             \
        out[i] = c[i] ? x : y;                         \
    }
#define WHERE(T, name)                                                                            \
    static void name(char *const *d, const int64_t *s, int64_t n, const void *params)             \
    {                                                                                             \
        (void)params;                                                                             \
        const int64_t z = (int64_t)sizeof(T);                                                     \
        const uint8_t *c = (const uint8_t *)d[1];                                                 \
        T *out = (T *)d[0];                                                                       \
        const T *a = (const T *)d[2], *b = (const T *)d[3];                                       \
        bool packed = n && s[0] == z && s[1] == 1;                                                \
        if (packed && s[2] == z && s[3] == z) {                                                   \
            CHOOSE(T, a[i], b[i])                                                                 \
        } else if (packed && s[2] == z && s[3] == 0) {                                            \
            T only = b[0];                                                                        \
            CHOOSE(T, a[i], only)                                                                 \
        } else if (packed && s[2] == 0 && s[3] == z) {                                            \
            T only = a[0];                                                                        \
            CHOOSE(T, only, b[i])                                                                 \
        } else if (packed && s[2] == 0 && s[3] == 0) {                                            \
            T first = a[0], second = b[0];                                                        \
            CHOOSE(T, first, second)                                                              \
        } else if (n && s[0] == z && s[1] == 0 && s[c[0] ? 2 : 3] == z) {                         \
            memmove(out, c[0] ? a : b, (size_t)n * sizeof(T)); /* out may be a or b */            \
        } else {                                                                                  \
            for (int64_t i = 0; i < n; i++)                                                       \
                *(T *)(d[0] + i * s[0]) = *(const uint8_t *)(d[1] + i * s[1])                     \
                                              ? *(const T *)(d[2] + i * s[2])                     \
                                              : *(const T *)(d[3] + i * s[3]);                    \
        }                                                                                         \
    }
WHERE(uint8_t, where_8)
WHERE(uint16_t, where_16)
WHERE(uint32_t, where_32)
WHERE(uint64_t, where_64)

static const ts_loop choose[9] = {[1] = where_8, [2] = where_16, [4] = where_32, [8] = where_64};

static ts_status where_kernel(ts_frame *f)
{
    ts_cpu_run_space(f, choose[ts_dtype_sizes[f->plan->compute]], NULL, 2);
    return TS_OK;
}

/** Reorders the plan's operands self, mask, value to mask, value, self, and runs where. */
static ts_status masked_fill_kernel(ts_frame *f)
{
    static const int from[] = {2, 3, 1};
    ts_iter *it = &f->plan->iter;
    char *data[3];
    int64_t strides[3];
    uint8_t items[3];
    for (int k = 0; k < 3; k++) {
        data[k] = it->data[from[k]];
        items[k] = it->items[from[k]];
    }
    memcpy(&it->data[1], data, sizeof data);
    memcpy(&it->items[1], items, sizeof items);
    for (int d = 0; d < it->ndim; d++) {
        for (int k = 0; k < 3; k++)
            strides[k] = it->strides[d][from[k]];
        memcpy(&it->strides[d][1], strides, sizeof strides);
    }
    return where_kernel(f);
}

/* --------------------------------------------------------------------------- recipes ---- */

/* integers and bools are compared by eq and gt alone */
#define COMPARISON(name, whole, mask) \
    TS_RECIPE(name, TS_TEXTS("a b " #name), TS_WHOLES(whole), .boolean = mask)
#define LOGICAL(name, word) \
    TS_RECIPE(name, TS_TEXTS("a 0 ne b 0 ne " word), \
              TS_WHOLES("a #0 ieq not b #0 ieq not " word), .boolean = "a b " word)
#define BITS(name, word) TS_RECIPE(name, TS_WHOLES("a b b" word), .boolean = "a b " word)

TS_CPU_RECIPES(compare,
    COMPARISON(eq, "a b ieq", "a b xor not"), COMPARISON(ne, "a b ieq not", "a b xor"),
    COMPARISON(lt, "b a igt", "a not b and"), COMPARISON(le, "a b igt not", "a not b or"),
    COMPARISON(gt, "a b igt", "b not a and"), COMPARISON(ge, "b a igt not", "b not a or"),
    LOGICAL(logical_and, "and"), LOGICAL(logical_or, "or"), LOGICAL(logical_xor, "xor"),
    TS_RECIPE(logical_not, TS_TEXTS("a 0 eq"), TS_WHOLES("a #0 ieq"), .boolean = "a not"),
    BITS(bitwise_and, "and"), BITS(bitwise_or, "or"), BITS(bitwise_xor, "xor"),
    TS_RECIPE(bitwise_not, TS_WHOLES("a bnot"), .boolean = "a not"),
    TS_RECIPE(isnan, TS_TEXTS("a a ne")), TS_RECIPE(isinf, TS_TEXTS("a abs inf eq")),
    TS_RECIPE(isfinite, TS_TEXTS("a abs inf lt")),
    TS_RECIPE(where, TS_TEXTS("a b c sel"), TS_WHOLES("a b c sel"), .boolean = "a b c sel",
              .moves = true),
    TS_RECIPE(masked_fill, TS_TEXTS("b c a sel"), TS_WHOLES("b c a sel"), .boolean = "b c a sel",
              .moves = true))

#define ROW(name) {TS_OP_##name, name##_kernel, TS_CPU_POINTWISE}
#define CHOICE(name) {TS_OP_##name, name##_kernel, {0, TS_TAKES_STRIDES}}

TS_CPU_FAMILY(compare,
    ROW(eq), ROW(ne), ROW(lt), ROW(le), ROW(gt), ROW(ge),
    ROW(logical_and), ROW(logical_or), ROW(logical_xor), ROW(logical_not),
    ROW(bitwise_and), ROW(bitwise_or), ROW(bitwise_xor), ROW(bitwise_not),
    ROW(isnan), ROW(isinf), ROW(isfinite), CHOICE(where), CHOICE(masked_fill))
