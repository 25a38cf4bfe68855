/** @file copy.c  Copies and conversions between all pairs of dtypes. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/copy.h"
#include "ops/kernel.h"

static float from_bf16(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
static uint16_t to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static float from_f16(uint16_t h)
{
    _Float16 x;
    memcpy(&x, &h, 2);
    return (float)x;
}
static uint16_t to_f16(float x)
{
    _Float16 h = (_Float16)x;
    uint16_t bits;
    memcpy(&bits, &h, 2);
    return bits;
}

/* Out of range and NaN have no value in an integer; they become the most negative one, on every ISA. */
static int64_t trunc_i64(double x) { return x >= -9.2233720368547758e18 && x < 9.2233720368547758e18 ? (int64_t)x : INT64_MIN; }
static int32_t trunc_i32(double x) { return x > -2147483649.0 && x < 2147483648.0 ? (int32_t)x : INT32_MIN; }

#define KEEP(x) (x)
#define NOT_ZERO(x) ((x) != 0)

/* One loop a pair: S storage type and decoding of the source, R storage type and encoding of the result. */
#define PAIR(from, S, decode, to, R, encode) TS_SCALAR_LOOP1(R, S, from##_to_##to, encode(decode(x)))

#define FROM_FLOAT(from, S, decode)                     \
    PAIR(from, S, decode, f64, double, KEEP)            \
    PAIR(from, S, decode, f32, float, KEEP)             \
    PAIR(from, S, decode, bf16, uint16_t, to_bf16)      \
    PAIR(from, S, decode, f16, uint16_t, to_f16)        \
    PAIR(from, S, decode, i64, int64_t, trunc_i64)      \
    PAIR(from, S, decode, i32, int32_t, trunc_i32)      \
    PAIR(from, S, decode, u8, uint8_t, trunc_i64)       \
    PAIR(from, S, decode, bool, uint8_t, NOT_ZERO)
#define FROM_INT(from, S)                               \
    PAIR(from, S, KEEP, f64, double, KEEP)              \
    PAIR(from, S, KEEP, f32, float, KEEP)               \
    PAIR(from, S, KEEP, bf16, uint16_t, to_bf16)        \
    PAIR(from, S, KEEP, f16, uint16_t, to_f16)          \
    PAIR(from, S, KEEP, i64, int64_t, KEEP)             \
    PAIR(from, S, KEEP, i32, int32_t, KEEP)             \
    PAIR(from, S, KEEP, u8, uint8_t, KEEP)              \
    PAIR(from, S, KEEP, bool, uint8_t, NOT_ZERO)

FROM_FLOAT(f64, double, KEEP)
FROM_FLOAT(f32, float, KEEP)
FROM_FLOAT(bf16, uint16_t, from_bf16)
FROM_FLOAT(f16, uint16_t, from_f16)
FROM_INT(i64, int64_t)
FROM_INT(i32, int32_t)
FROM_INT(u8, uint8_t)

#define ROW(from)                                                                              \
    {[TS_F64] = from##_to_f64, [TS_F32] = from##_to_f32, [TS_BF16] = from##_to_bf16,           \
     [TS_F16] = from##_to_f16, [TS_I64] = from##_to_i64, [TS_I32] = from##_to_i32,             \
     [TS_U8] = from##_to_u8, [TS_BOOL] = from##_to_bool}

static const ts_loop pairs[TS_DTYPE_COUNT][TS_DTYPE_COUNT] = {
    [TS_F64] = ROW(f64), [TS_F32] = ROW(f32), [TS_BF16] = ROW(bf16), [TS_F16] = ROW(f16),
    [TS_I64] = ROW(i64), [TS_I32] = ROW(i32), [TS_U8] = ROW(u8),     [TS_BOOL] = ROW(u8),
};

/* Same dtype: bits move unchanged. */
TS_SCALAR_LOOP1(uint64_t, uint64_t, move_64, x)
TS_SCALAR_LOOP1(uint32_t, uint32_t, move_32, x)
TS_SCALAR_LOOP1(uint16_t, uint16_t, move_16, x)
TS_SCALAR_LOOP1(uint8_t, uint8_t, move_8, x)

void TS_V(ts_cpu_copy_run)(ts_iter *it, ts_dtype to, ts_dtype from)
{
    static const ts_loop moves[9] = {[1] = move_8, [2] = move_16, [4] = move_32, [8] = move_64};
    ts_cpu_run(it, from == to ? moves[ts_dtype_sizes[from]] : pairs[from][to], NULL, 2);
}

void TS_V(ts_cpu_copy_part)(char *to, const int64_t *to_strides, ts_dtype to_dtype, const char *from,
                            const int64_t *from_strides, ts_dtype from_dtype, const int64_t *sizes, int ndim)
{
    ts_iter it = {.operands = 2, .numel = 1, .data = {to, (char *)from}};
    for (int d = 0; d < ndim; d++) {
        it.numel *= sizes[d];
        it.strides[0][d] = to_strides[d] * ts_dtype_sizes[to_dtype];
        it.strides[1][d] = from_strides[d] * ts_dtype_sizes[from_dtype];
    }
    if (!it.numel)
        return;
    ts_iter_collapse(&it, sizes, ndim);
    TS_V(ts_cpu_copy_run)(&it, to_dtype, from_dtype);
}

static ts_status copy(ts_frame *f)
{
    TS_V(ts_cpu_copy_run)(&f->plan->iter, (ts_dtype)f->rets[0].t->dtype, (ts_dtype)f->args[0].t->dtype);
    return TS_OK;
}

TS_CPU_FAMILY(copy,
    {TS_OP_copy, copy, {0, 1}},
    {TS_OP_to, copy, {0, 1}})
