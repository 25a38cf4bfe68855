/** @file copy.c  Copies and conversions between all pairs of dtypes. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/bytes.h"
#include "backends/cpu/copy.h"
#include "backends/cpu/tiling.h"
#include "core/convert.h"
#include "core/parallel.h"
#include "ops/kernel.h"

#define KEEP(x) (x)
#define NOT_ZERO(x) ((x) != 0)

/* One loop per pair of dtypes. S: storage type of the source, converted by decode(). R: storage
 * type of the result, converted by encode(). */
#define PAIR(from, S, decode, to, R, encode)                                                       \
    TS_SCALAR_LOOP1(R, S, from##_to_##to, encode(decode(x)))

/* to_i64, to_i32: encode() to integers */
#define FROM(from, S, to_i64, to_i32)            \
    PAIR(from, S, KEEP, f64, double, KEEP)       \
    PAIR(from, S, KEEP, f32, float, KEEP)        \
    PAIR(from, S, KEEP, i64, int64_t, to_i64)    \
    PAIR(from, S, KEEP, i32, int32_t, to_i32)    \
    PAIR(from, S, KEEP, u8, uint8_t, to_i64)     \
    PAIR(from, S, KEEP, bool, uint8_t, NOT_ZERO)
/* single: f32 rounded to odd, so the conversion to a half rounds once */
#define TO_HALVES(from, S, single)                        \
    PAIR(from, S, single, bf16, uint16_t, ts_f32_to_bf16) \
    PAIR(from, S, single, f16, uint16_t, ts_f32_to_f16)

FROM(f64, double, ts_trunc_i64, ts_trunc_i32)
FROM(f32, float, ts_trunc_i64, ts_trunc_i32)
FROM(i64, int64_t, KEEP, KEEP)
FROM(i32, int32_t, KEEP, KEEP)
FROM(u8, uint8_t, KEEP, KEEP)
TO_HALVES(f32, float, KEEP)
TO_HALVES(i64, int64_t, ts_odd_f32_of)
TO_HALVES(i32, int32_t, ts_odd_f32)
TO_HALVES(u8, uint8_t, KEEP)
PAIR(bf16, uint16_t, ts_bf16_to_f32, f32, float, KEEP)
PAIR(f16, uint16_t, ts_f16_to_f32, f32, float, KEEP)

/* same dtype: copies bits */
TS_SCALAR_LOOP1(uint64_t, uint64_t, move_64, x)
TS_SCALAR_LOOP1(uint32_t, uint32_t, move_32, x)
TS_SCALAR_LOOP1(uint16_t, uint16_t, move_16, x)
TS_SCALAR_LOOP1(uint8_t, uint8_t, move_8, x)

/* Half dtypes to and from f32. Strided elements pass through a buffer, so that all of them are
 * converted by vectors; single elements are converted as scalars, with the same rounding. */
enum { STRIDED = 512 }; /* elements of the buffer */
#define HALF(kind)                                                                                 \
    VEC_FN void kind##_widen_run(float *to, const uint16_t *from, int64_t n)                       \
    {                                                                                              \
        int64_t i = 0;                                                                             \
        TS_UNROLL(4) for (; i + VF_LANES <= n; i += VF_LANES)                                      \
            vf_store(to + i, vf_load_##kind(from + i));                                            \
        if (i < n)                                                                                 \
            vf_store_n(to + i, vf_load_##kind##_n(from + i, n - i), n - i);                        \
    }                                                                                              \
    VEC_FN void kind##_narrow_run(uint16_t *to, const float *from, int64_t n)                      \
    {                                                                                              \
        int64_t i = 0;                                                                             \
        for (; i + 2 * VF_LANES <= n; i += 2 * VF_LANES)                                           \
            vf_store2_##kind(to + i, vf_load(from + i), vf_load(from + i + VF_LANES));             \
        for (; i + VF_LANES <= n; i += VF_LANES)                                                   \
            vf_store_##kind(to + i, vf_load(from + i));                                            \
        if (i < n)                                                                                 \
            vf_store_##kind##_n(to + i, vf_load_n(from + i, n - i), n - i);                        \
    }                                                                                              \
    static __attribute__((noinline)) void kind##_widen_strided(char *const *d, const int64_t *s,   \
                                                               int64_t n, const void *params)      \
    {                                                                                              \
        if (s[0] != 4 || !s[1] || n < VF_LANES) {                                                  \
            kind##_to_f32(d, s, n, params);                                                        \
            return;                                                                                \
        }                                                                                          \
        uint16_t buffer[STRIDED];                                                                  \
        for (int64_t i = 0, some; i < n; i += some) {                                              \
            some = ts_min64(STRIDED, n - i);                                                       \
            move_16((char *[]){(char *)buffer, d[1] + i * s[1]}, (int64_t[]){2, s[1]}, some,       \
                    NULL);                                                                         \
            kind##_widen_run((float *)d[0] + i, buffer, some);                                     \
        }                                                                                          \
    }                                                                                              \
    static __attribute__((noinline)) void kind##_narrow_strided(char *const *d, const int64_t *s,  \
                                                                int64_t n, const void *params)     \
    {                                                                                              \
        if (s[1] != 4 || n < VF_LANES) {                                                           \
            f32_to_##kind(d, s, n, params);                                                        \
            return;                                                                                \
        }                                                                                          \
        uint16_t buffer[STRIDED];                                                                  \
        for (int64_t i = 0, some; i < n; i += some) {                                              \
            some = ts_min64(STRIDED, n - i);                                                       \
            kind##_narrow_run(buffer, (const float *)d[1] + i, some);                              \
            move_16((char *[]){d[0] + i * s[0], (char *)buffer}, (int64_t[]){s[0], 2}, some,       \
                    NULL);                                                                         \
        }                                                                                          \
    }                                                                                              \
    static void kind##_widen(char *const *d, const int64_t *s, int64_t n, const void *params)      \
    {                                                                                              \
        if (s[0] == 4 && s[1] == 2)                                                                \
            kind##_widen_run((float *)d[0], (const uint16_t *)d[1], n);                            \
        else                                                                                       \
            kind##_widen_strided(d, s, n, params);                                                 \
    }                                                                                              \
    static void kind##_narrow(char *const *d, const int64_t *s, int64_t n, const void *params)     \
    {                                                                                              \
        if (s[0] == 2 && s[1] == 4)                                                                \
            kind##_narrow_run((uint16_t *)d[0], (const float *)d[1], n);                           \
        else                                                                                       \
            kind##_narrow_strided(d, s, n, params);                                                \
    }
HALF(bf16)
HALF(f16)

/* f64 is rounded to odd f32 first, so the conversion to a half rounds once. */
#define F64_TO_HALF(kind)                                                                          \
    static void f64_narrow_##kind(char *const *d, const int64_t *s, int64_t n, const void *params) \
    {                                                                                              \
        float buffer[STRIDED];                                                                     \
        for (int64_t i = 0, some; i < n; i += some) {                                              \
            some = ts_min64(STRIDED, n - i);                                                       \
            for (int64_t k = 0; k < some; k++)                                                     \
                buffer[k] = ts_odd_f32(*(const double *)(d[1] + (i + k) * s[1]));                  \
            kind##_narrow((char *[]){d[0] + i * s[0], (char *)buffer}, (int64_t[]){s[0], 4}, some, \
                          params);                                                                 \
        }                                                                                          \
    }
F64_TO_HALF(bf16)
F64_TO_HALF(f16)

/* Integers whose block is in the range of exact floats are converted by vectors; single integers
 * are rounded to odd first. */
#define INTS_TO_HALF(T, from, kind)                                                                \
    static void from##_narrow_##kind(char *const *d, const int64_t *s, int64_t n,                  \
                                     const void *params)                                           \
    {                                                                                              \
        enum { EXACT = 1 << 24 };                                                                  \
        float buffer[STRIDED];                                                                     \
        for (int64_t i = 0, some; i < n; i += some) {                                              \
            some = ts_min64(STRIDED, n - i);                                                       \
            const T *x = (const T *)(d[1] + i * s[1]);                                             \
            char *to[] = {d[0] + i * s[0], (char *)x};                                             \
            bool fits = s[0] == 2 && s[1] == (int64_t)sizeof(T);                                   \
            uint64_t far = 0;                                                                      \
            for (int64_t k = 0; fits && k < some; k++)                                             \
                far |= (uint64_t)x[k] + EXACT;                                                     \
            if (!fits || far >= 2 * EXACT) {                                                       \
                from##_to_##kind(to, s, some, params);                                             \
                continue;                                                                          \
            }                                                                                      \
            for (int64_t k = 0; k < some; k++)                                                     \
                buffer[k] = (float)(int32_t)x[k];                                                  \
            kind##_narrow_run((uint16_t *)to[0], buffer, some);                                    \
        }                                                                                          \
    }
INTS_TO_HALF(int64_t, i64, bf16)
INTS_TO_HALF(int64_t, i64, f16)
INTS_TO_HALF(int32_t, i32, bf16)
INTS_TO_HALF(int32_t, i32, f16)
INTS_TO_HALF(uint8_t, u8, bf16)
INTS_TO_HALF(uint8_t, u8, f16)

/* Floats whose block is in the range of i32 are truncated by vectors, to any integer dtype. */
#define FLOAT_TO_INTS(T, from, limit, R, to)                                                       \
    static void from##_truncate_##to(char *const *d, const int64_t *s, int64_t n,                  \
                                     const void *params)                                           \
    {                                                                                              \
        for (int64_t i = 0, some; i < n; i += some) {                                              \
            some = ts_min64(STRIDED, n - i);                                                       \
            const T *x = (const T *)(d[1] + i * s[1]);                                             \
            R *out = (R *)(d[0] + i * s[0]);                                                       \
            bool fits = s[0] == (int64_t)sizeof(R) && s[1] == (int64_t)sizeof(T);                  \
            int far = 0;                                                                           \
            for (int64_t k = 0; fits && k < some; k++)                                             \
                far |= !(x[k] > -(limit) && x[k] < (limit));                                       \
            if (!fits || far) {                                                                    \
                from##_to_##to((char *[]){(char *)out, (char *)x}, s, some, params);               \
                continue;                                                                          \
            }                                                                                      \
            TS_INDEPENDENT                                                                         \
            for (int64_t k = 0; k < some; k++)                                                     \
                out[k] = (R)(int32_t)x[k];                                                         \
        }                                                                                          \
    }
#define FLOAT_TO_ALL_INTS(T, from, limit)                                                          \
    FLOAT_TO_INTS(T, from, limit, int64_t, i64)                                                    \
    FLOAT_TO_INTS(T, from, limit, int32_t, i32)                                                    \
    FLOAT_TO_INTS(T, from, limit, uint8_t, u8)
FLOAT_TO_ALL_INTS(double, f64, 0x1p31)
FLOAT_TO_ALL_INTS(float, f32, 0x1p31f)

/* Halves to dtypes other than f32, by blocks of f32. */
#define HALF_TO(from, to, convert)                                                                 \
    static void from##_convert_##to(char *const *d, const int64_t *s, int64_t n,                   \
                                    const void *params)                                            \
    {                                                                                              \
        float buffer[STRIDED];                                                                     \
        for (int64_t i = 0, some; i < n; i += some) {                                              \
            some = ts_min64(STRIDED, n - i);                                                       \
            from##_widen((char *[]){(char *)buffer, d[1] + i * s[1]}, (int64_t[]){4, s[1]}, some,  \
                         params);                                                                  \
            convert((char *[]){d[0] + i * s[0], (char *)buffer}, (int64_t[]){s[0], 4}, some,       \
                    params);                                                                       \
        }                                                                                          \
    }
#define HALF_TO_ALL(from, other)                                                                   \
    HALF_TO(from, f64, f32_to_f64)                                                                 \
    HALF_TO(from, other, other##_narrow)                                                           \
    HALF_TO(from, i64, f32_truncate_i64)                                                           \
    HALF_TO(from, i32, f32_truncate_i32)                                                           \
    HALF_TO(from, u8, f32_truncate_u8)                                                             \
    HALF_TO(from, bool, f32_to_bool)
HALF_TO_ALL(bf16, f16)
HALF_TO_ALL(f16, bf16)

#define FLOAT_ROW(from, to_f32, to_bf16, to_f16)                                               \
    {[TS_F64] = from##_to_f64, [TS_F32] = to_f32, [TS_BF16] = to_bf16, [TS_F16] = to_f16,      \
     [TS_I64] = from##_truncate_i64, [TS_I32] = from##_truncate_i32,                           \
     [TS_U8] = from##_truncate_u8, [TS_BOOL] = from##_to_bool}

#define HALF_ROW(from, to_bf16, to_f16)                                                        \
    {[TS_F64] = from##_convert_f64, [TS_F32] = from##_widen, [TS_BF16] = to_bf16,              \
     [TS_F16] = to_f16, [TS_I64] = from##_convert_i64, [TS_I32] = from##_convert_i32,          \
     [TS_U8] = from##_convert_u8, [TS_BOOL] = from##_convert_bool}

#define INT_ROW(from)                                                                          \
    {[TS_F64] = from##_to_f64, [TS_F32] = from##_to_f32, [TS_BF16] = from##_narrow_bf16,       \
     [TS_F16] = from##_narrow_f16, [TS_I64] = from##_to_i64, [TS_I32] = from##_to_i32,         \
     [TS_U8] = from##_to_u8, [TS_BOOL] = from##_to_bool}

static const ts_loop pairs[TS_DTYPE_COUNT][TS_DTYPE_COUNT] = {
    [TS_F64] = FLOAT_ROW(f64, f64_to_f32, f64_narrow_bf16, f64_narrow_f16),
    [TS_F32] = FLOAT_ROW(f32, f32_to_f32, bf16_narrow, f16_narrow),
    [TS_BF16] = HALF_ROW(bf16, move_16, bf16_convert_f16),
    [TS_F16] = HALF_ROW(f16, f16_convert_bf16, move_16),
    [TS_I64] = INT_ROW(i64), [TS_I32] = INT_ROW(i32), [TS_U8] = INT_ROW(u8),
    [TS_BOOL] = INT_ROW(u8),
};

/* --------------------------------------------------------------------------- same dtype ---- */

/** Copies contiguous bytes. A task is a block of 64 bytes. */
static void move_lines(void *ctx, int64_t begin, int64_t end)
{
    const ts_iter *it = ctx;
    int64_t bytes = it->numel * it->strides[0][0], last = ts_min64(end * 64, bytes);
    memcpy(it->data[0] + begin * 64, it->data[1] + begin * 64, (size_t)(last - begin * 64));
}

/** Offsets in bytes of both operands at row `row` of the dims starting at `first`, without `skip`.
 */
VEC_FN void offsets(const ts_iter *it, int first, int skip, int64_t row, int64_t *to, int64_t *from)
{
    *to = *from = 0;
    for (int d = first; d < it->ndim; d++) {
        if (d == skip)
            continue;
        int64_t i = row % it->sizes[d];
        row /= it->sizes[d];
        *to += i * it->strides[d][0];
        *from += i * it->strides[d][1];
    }
}

enum { LONG_ROW = 1024 }; /* bytes from which memcpy(), which aligns its stores, is faster */

/** Copies rows along dim 0, which are contiguous in the source and in the destination. */
static void move_rows(void *ctx, int64_t begin, int64_t end)
{
    const ts_iter *it = ctx;
    int64_t bytes = it->sizes[0] * it->strides[0][0], n = it->sizes[1];
    while (begin < end) {
        int64_t to, from, many = ts_min64(n - begin % n, end - begin);
        offsets(it, 1, 0, begin, &to, &from);
        for (int64_t r = 0; r < many; r++) {
            char *t = it->data[0] + to + r * it->strides[1][0];
            const char *f = it->data[1] + from + r * it->strides[1][1];
            int64_t k = 0;
            if (bytes >= LONG_ROW) {
                memcpy(t, f, (size_t)bytes);
                continue;
            }
            for (; k + VEC_BYTES <= bytes; k += VEC_BYTES) {
                vf v; /* memcpy: a row of bytes may be unaligned */
                memcpy(&v, f + k, sizeof v);
                memcpy(t + k, &v, sizeof v);
            }
            if (k && k < bytes) { /* the last vector overlaps the one before it */
                vf v;
                memcpy(&v, f + bytes - VEC_BYTES, sizeof v);
                memcpy(t + bytes - VEC_BYTES, &v, sizeof v);
            } else if (k < bytes) {
                ts_copy_bytes(t, f, bytes);
            }
        }
        begin += many;
    }
}

/* Transposes an L x L tile in registers: log2(L) perfect shuffles of the rows. */
#define TILE(T, L, name)                                                                          \
    typedef T name##_row __attribute__((vector_size(L * sizeof(T)), may_alias));                  \
    typedef name##_row name##_row_unaligned __attribute__((aligned(sizeof(T))));                  \
    VEC_FN void name(char *to, int64_t to_step, const char *from, int64_t from_step)              \
    {                                                                                             \
        name##_row a[L], b[L];                                                                    \
        TS_UNROLL(16) for (int i = 0; i < L; i++)                                                 \
            a[i] = *(const name##_row_unaligned *)(from + i * from_step);                         \
        TS_UNROLL(16) for (int step = 1; step < L; step *= 2) {                                   \
            TS_UNROLL(16) for (int i = 0; i < L / 2; i++) {                                       \
                b[2 * i] = VEC_ZIP_LOW(a[i], a[i + L / 2], L);                                    \
                b[2 * i + 1] = VEC_ZIP_HIGH(a[i], a[i + L / 2], L);                               \
            }                                                                                     \
            TS_UNROLL(16) for (int i = 0; i < L; i++)                                             \
                a[i] = b[i];                                                                      \
        }                                                                                         \
        TS_UNROLL(16) for (int i = 0; i < L; i++)                                                 \
            *(name##_row_unaligned *)(to + i * to_step) = a[i];                                   \
    }

/* Transposes a matrix by large tiles, small tiles, and single elements at the edges. */
#define TRANSPOSE(T, LARGE, SMALL, name)                                                          \
    TILE(T, LARGE, name##_large)                                                                  \
    TILE(T, SMALL, name##_small)                                                                  \
    static void name(char *to, int64_t to_row, const char *from, int64_t from_row, int64_t rows,  \
                     int64_t columns)                                                             \
    {                                                                                             \
        const int64_t z = sizeof(T);                                                              \
        for (int64_t r = 0, high; r < rows; r += high) {                                          \
            int64_t c = 0;                                                                        \
            high = rows - r >= LARGE ? LARGE : rows - r >= SMALL ? SMALL : rows - r;              \
            char *out = to + r * to_row;                                                          \
            const char *in = from + r * z;                                                        \
            for (; high == LARGE && c + LARGE <= columns; c += LARGE)                             \
                name##_large(out + c * z, to_row, in + c * from_row, from_row);                   \
            for (; high >= SMALL && c + SMALL <= columns; c += SMALL)                             \
                for (int64_t i = 0; i < high; i += SMALL)                                         \
                    name##_small(out + i * to_row + c * z, to_row, in + c * from_row + i * z,     \
                                 from_row);                                                       \
            for (; c < columns; c++)                                                              \
                for (int64_t i = 0; i < high; i++)                                                \
                    *(T *)(out + i * to_row + c * z) = *(const T *)(in + c * from_row + i * z);   \
        }                                                                                         \
    }
TRANSPOSE(uint8_t, 16, 8, transpose_8)
TRANSPOSE(uint16_t, VF_LANES, 4, transpose_16)
TRANSPOSE(uint32_t, VF_LANES, 4, transpose_32)
TRANSPOSE(uint64_t, VD_LANES, 2, transpose_64)

void TS_V(ts_cpu_transpose)(char *to, int64_t to_row, const char *from, int64_t from_row,
                            int64_t rows, int64_t columns, int item)
{
    switch (item) {
    case 1: transpose_8(to, to_row, from, from_row, rows, columns); break;
    case 2: transpose_16(to, to_row, from, from_row, rows, columns); break;
    case 4: transpose_32(to, to_row, from, from_row, rows, columns); break;
    default: transpose_64(to, to_row, from, from_row, rows, columns);
    }
}

/** A copy to a destination that is contiguous along dim 0, from a source contiguous along `dim`. */
typedef struct transposition {
    const ts_iter *it;
    int dim;
} transposition;

/** Tasks: strips of STRIP rows of the destination, over all other dims. */
enum { STRIP = 16,
       PICKED = 4, PICKED_ROW = 64, /* pick_8(): most elements apart, fewest elements of a row */
       FEW = 32 }; /* most elements of a plane that a shuffle copies faster */
static void transpose_strips(void *ctx, int64_t begin, int64_t end)
{
    const transposition *t = ctx;
    const ts_iter *it = t->it;
    int64_t nb = it->sizes[t->dim], strips = ts_ceil_div(nb, STRIP);
    int64_t tb = it->strides[t->dim][0], fa = it->strides[0][1];
    for (; begin < end; begin++) {
        int64_t to, from, b = begin % strips * STRIP;
        offsets(it, 1, t->dim, begin / strips, &to, &from);
        TS_V(ts_cpu_transpose)(it->data[0] + to + b * tb, tb,
                               it->data[1] + from + b * it->items[0], fa,
                               ts_min64(STRIP, nb - b), it->sizes[0], it->items[0]);
    }
}

/** Blocks of few elements whose order changes: the innermost dims of a space. */
typedef struct shuffle {
    int64_t count;
    int64_t from[512]; /* distance of each element from the block's first in the source, in bytes */
} shuffle;

/* Gathers elements that are 2 to PICKED elements apart; compilers shuffle vectors for constants. */
#define PICK(T, name)                                                                             \
    static void name(char *const *d, const int64_t *s, int64_t n, const void *params)             \
    {                                                                                             \
        T *to = (T *)d[0];                                                                        \
        const T *from = (const T *)d[1];                                                          \
        (void)params;                                                                             \
        switch (s[1] / (int64_t)sizeof(T)) {                                                      \
        case 2: PICK_STEP(2) break;                                                               \
        case 3: PICK_STEP(3) break;                                                               \
        default: PICK_STEP(4)                                                                     \
        }                                                                                         \
    }
#define PICK_STEP(step)                                                                           \
    TS_INDEPENDENT                                                                                \
    for (int64_t i = 0; i < n; i++)                                                               \
        to[i] = from[i * step];
PICK(uint8_t, pick_8)
PICK(uint16_t, pick_16)
PICK(uint32_t, pick_32)
PICK(uint64_t, pick_64)

/* The loop of one block of `count` elements per step. */
#define SHUFFLE(T, name)                                                                          \
    static void name(char *const *d, const int64_t *s, int64_t n, const void *params)             \
    {                                                                                             \
        const shuffle *f = params;                                                                \
        int64_t count = f->count;                                                                 \
        for (int64_t k = 0; k < n; k++) {                                                         \
            T *to = (T *)(d[0] + k * s[0]);                                                       \
            const char *from = d[1] + k * s[1];                                                   \
            TS_INDEPENDENT                                                                        \
            TS_UNROLL(8) for (int64_t i = 0; i < count; i++)                                      \
                to[i] = *(const T *)(from + f->from[i]);                                          \
        }                                                                                         \
    }
SHUFFLE(uint8_t, shuffle_8)
SHUFFLE(uint16_t, shuffle_16)
SHUFFLE(uint32_t, shuffle_32)
SHUFFLE(uint64_t, shuffle_64)

/** Copies a space whose two innermost dims or more are dense in the destination and have few
 *  elements together. Returns false, and copies nothing, for other spaces. */
static bool shuffle_blocks(const ts_iter *it, int item)
{
    static const ts_loop loops[9] = {
        [1] = shuffle_8, [2] = shuffle_16, [4] = shuffle_32, [8] = shuffle_64};
    shuffle f = {.count = 1};
    ts_iter rest = *it;
    int m = 0;
    for (; m < it->ndim && it->strides[m][0] == f.count * item &&
           f.count * it->sizes[m] <= (int64_t)TS_COUNTOF(f.from);
         m++)
        f.count *= it->sizes[m];
    if (m < 2 || m == it->ndim)
        return false;
    f.from[0] = 0;
    for (int64_t d = 0, filled = 1; d < m; filled *= it->sizes[d++])
        for (int64_t i = filled; i < filled * it->sizes[d]; i++)
            f.from[i] = f.from[i - filled] + it->strides[d][1];
    int64_t each = f.count, part = 1; /* elements of the next dim that a block has, too */
    if (it->strides[m][0] == each * item)
        for (part = (int64_t)TS_COUNTOF(f.from) / each; it->sizes[m] % part;)
            part--;
    f.count = each * part;
    if (f.count < 8)
        return false;
    for (int64_t i = each; i < f.count; i++)
        f.from[i] = f.from[i - each] + it->strides[m][1];
    rest.ndim -= m;
    rest.numel /= f.count;
    memmove(rest.sizes, it->sizes + m, (size_t)rest.ndim * sizeof *rest.sizes);
    memmove(rest.strides, it->strides + m, (size_t)rest.ndim * sizeof *rest.strides);
    rest.sizes[0] /= part;
    for (int k = 0; k < 2; k++)
        rest.strides[0][k] *= part;
    ts_cpu_run_each(&rest, loops[item], &f, 2 * (int)f.count);
    return true;
}

static void move(ts_iter *it, int item)
{
    static const ts_loop moves[9] = {[1] = move_8, [2] = move_16, [4] = move_32, [8] = move_64};
    static const ts_loop picks[9] = {[1] = pick_8, [2] = pick_16, [4] = pick_32, [8] = pick_64};
    bool to = it->strides[0][0] == item, from = it->strides[0][1] == item;
    if (TS_LIKELY(it->ndim == 1 && to && from)) {
        int64_t bytes = it->numel * item;
        if (bytes <= 65536)
            memcpy(it->data[0], it->data[1], (size_t)bytes);
        else
            ts_parallel_for(ts_ceil_div(bytes, 64), 1024, move_lines, it);
        return;
    }
    if (it->ndim > 1 && to && from && it->sizes[0] * item >= 16) {
        ts_parallel_for(it->numel / it->sizes[0], 65536 / (it->sizes[0] * item) + 1, move_rows, it);
        return;
    }
    /* long rows of one repeated element: each tile of a transposition would load it again */
    bool same = it->strides[0][1] == 0 && it->sizes[0] >= VEC_BYTES;
    for (int d = 1; to && !same && d < it->ndim; d++) {
        if (it->strides[d][1] != item)
            continue;
        int64_t step = it->strides[0][1] / item;
        if (it->sizes[d] < 4 && it->sizes[0] >= PICKED_ROW && step > 1 && step <= PICKED) {
            ts_cpu_run_each(it, picks[item], NULL, 2);
            return;
        }
        bool few = ts_min64(it->sizes[0], it->sizes[d]) < 4 || it->sizes[0] * it->sizes[d] <= FEW;
        if (few && shuffle_blocks(it, item))
            return;
        transposition t = {it, d};
        int64_t strips =
            ts_ceil_div(it->sizes[d], STRIP) * (it->numel / (it->sizes[0] * it->sizes[d]));
        ts_parallel_for(strips, 65536 / (it->sizes[0] * item * STRIP) + 1, transpose_strips, &t);
        return;
    }
    if (!shuffle_blocks(it, item))
        ts_cpu_run_ragged(it, moves[item], NULL, 2);
}

/** Copies operand 1 of the space to operand 0, converted. */
static void run_copy(ts_iter *it, ts_dtype to, ts_dtype from)
{
    if (!it->numel)
        return;
    it->items[0] = ts_dtype_sizes[to];
    it->items[1] = ts_dtype_sizes[from];
    if (to == from)
        move(it, ts_dtype_sizes[from]);
    else
        ts_cpu_run_ragged(it, pairs[from][to], NULL, 2);
}

ts_loop TS_V(ts_cpu_copy_loop)(ts_dtype to, ts_dtype from) { return pairs[from][to]; }

void TS_V(ts_cpu_copy_part)(char *to, const int64_t *to_strides, ts_dtype to_dtype,
                            const char *from, const int64_t *from_strides, ts_dtype from_dtype,
                            const int64_t *sizes, int ndim)
{
    ts_iter it = {.operands = 2, .numel = 1, .data = {to, (char *)from}};
    for (int d = 0; d < ndim; d++) {
        it.numel *= sizes[d];
        it.strides[d][0] = to_strides[d] * ts_dtype_sizes[to_dtype];
        it.strides[d][1] = from_strides[d] * ts_dtype_sizes[from_dtype];
    }
    ts_iter_collapse(&it, sizes, ndim, false);
    run_copy(&it, to_dtype, from_dtype);
}

static ts_status copy(ts_frame *f)
{
    run_copy(&f->plan->iter, (ts_dtype)f->rets[0].t->dtype, (ts_dtype)f->args[0].t->dtype);
    return TS_OK;
}

TS_CPU_RECIPES(copy,
    {.op = TS_OP_to, .kernel = copy, .variant = VEC_ISA, .casts = true, TS_TEXTS("a"), .i32 = "a",
     .boolean = "a"},
    {.op = TS_OP_copy, .kernel = copy, .variant = VEC_ISA, .casts = true, TS_TEXTS("a"),
     .i32 = "a", .boolean = "a"},
    {.op = TS_OP_contiguous, .kernel = copy, .variant = VEC_ISA, .casts = true, TS_TEXTS("a"),
     .i32 = "a", .boolean = "a"})

TS_CPU_FAMILY(copy,
    {TS_OP_copy, copy, {0, 1}},
    {TS_OP_contiguous, copy, {0, 1}},
    {TS_OP_to, copy, {0, 1}},
    {TS_OP_to_device, copy, {0, 1}})
