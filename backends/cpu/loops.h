/**
 * @file loops.h
 * Pointwise loops. A kernel provides, per dtype, a loop over one run of elements with a byte stride
 * per operand. ts_cpu_pointwise() iterates over the plan's dims and divides the work among threads.
 *
 * The templates in the second half build these loops from an expression of vectors (TS_LOOP1 to
 * TS_LOOP3) or of C scalars (TS_SCALAR_LOOP1, TS_SCALAR_LOOP2). Contiguous operands, some of which
 * may be broadcast, have their own inner loops. For other strides, loops of vectors gather the
 * elements into a vector first, so the arithmetic does not depend on an element's layout or
 * position.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_LOOPS_H
#define TS_BACKENDS_CPU_LOOPS_H

#include "dispatch/recipe.h"

/**
 * Computes n elements of one run.
 * @param data     first element of each operand; data[0] is the result
 * @param strides  bytes between elements of each operand
 * @param params   the kernel's params
 */
typedef void (*ts_loop)(char *const *data, const int64_t *strides, int64_t n, const void *params);

/**
 * Runs loops[f->plan->compute] over f->plan->iter. Operands that plan->cast names are converted to
 * the loop's dtype in blocks that fit the L1 cache. bf16 and f16 use the f32 loop, and f32 copies
 * of their operands, in two cases: if they have no loop of their own, and if a call combines a
 * tensor with a number and plan->pointwise is not TS_POINTWISE_ROUNDED (dispatch/op.h). The f32
 * loop receives numbers as f32; with TS_POINTWISE_ROUNDED they are first rounded to bf16 or f16.
 * @param loops  TS_DTYPE_COUNT loops, NULL where the op is not defined
 * @param cost   approximate cycles per element; determines when to use threads
 * @return TS_ERR_DTYPE if the dtype has no loop; nothing is written then
 */
ts_status ts_cpu_pointwise(ts_frame *f, const ts_loop *loops, const void *params, int cost);
/** Runs a loop over f->plan->iter on the thread pool; cost: as in ts_cpu_pointwise(). */
void ts_cpu_run_space(const ts_frame *f, ts_loop loop, const void *params, int cost);
/** Runs a loop over an iteration space whose it->items are set, on the thread pool. If runs are
 *  short or strided, and the space is not tiny, operands are copied through contiguous blocks or
 *  transposed in tiles. */
void ts_cpu_run_ragged(const ts_iter *it, ts_loop loop, const void *params, int cost);
/** Runs a loop over any iteration space, run by run, on the calling thread only, for loops whose
 *  runs write the same elements. */
void ts_cpu_run_serial(const ts_iter *it, ts_loop loop, const void *params);

/** Copies elements first to first + n - 1 of t in row-major order to contiguous memory at `block`.
 *  t may have any strides and any dtype. */
void ts_cpu_gather(const ts_tensor *t, int64_t first, int64_t n, char *block);
/** True if ts_cpu_gather() of consecutive blocks loads each cache line of t about once. */
bool ts_cpu_gathers_well(const ts_tensor *t);

/** Grain for ts_parallel_for() over elements: the fewest elements of a thread, which are about
 *  32768 cycles of work at `cost` cycles per element. */
#define TS_CPU_GRAIN(cost) (32768 / (cost) + 1)

/** The kernels of a file, for registration by backend.c. */
typedef struct ts_cpu_family {
    const ts_kernel_def *defs;
    int count;
} ts_cpu_family;
/** ts_accepts of a kernel that calls ts_cpu_pointwise(): all dtypes and strides. */
#define TS_CPU_POINTWISE {0, TS_TAKES_STRIDES | TS_TAKES_DTYPES}
/** Defines the table of kernels of a file (a family, families.h); a kernel file ends with it:
 *  TS_CPU_FAMILY(norm, {TS_OP_layer_norm, layer_norm, {dtypes, flags}}, ...) */
#define TS_CPU_FAMILY(name, ...)                                       \
    static const ts_kernel_def family_defs[] = {__VA_ARGS__};          \
    extern const ts_cpu_family TS_V(ts_cpu_##name)[1];                 \
    const ts_cpu_family TS_V(ts_cpu_##name)[1] = {{family_defs, TS_COUNTOF(family_defs)}};

/** The recipes of a kernel file, for registration by backend.c. */
typedef struct ts_cpu_recipes {
    const ts_recipe *recipes;
    int count;
} ts_cpu_recipes;
/** Defines the recipes of a kernel file, before TS_CPU_FAMILY():
 *  TS_CPU_RECIPES(unary, TS_RECIPE(neg, TS_TEXTS("a neg")), ...) */
#define TS_CPU_RECIPES(name, ...)                                                 \
    static const ts_recipe family_recipes[] = {__VA_ARGS__};                      \
    extern const ts_cpu_recipes TS_V(ts_cpu_recipes_of_##name)[1];                \
    const ts_cpu_recipes TS_V(ts_cpu_recipes_of_##name)[1] = {                    \
        {family_recipes, TS_COUNTOF(family_recipes)}};
/** The recipe of op `name`, whose kernel is name_kernel(). The other arguments set the texts. */
#define TS_RECIPE(name, ...) \
    {.op = TS_OP_##name, .kernel = name##_kernel, .variant = VEC_ISA, __VA_ARGS__}
/** The same text for f32 and f64. */
#define TS_TEXTS(text) .f32 = text, .f64 = text
/** The same text for i32 and i64. */
#define TS_WHOLES(text) .i32 = text, .i64 = text

#ifdef TS_VARIANT /* the templates are for kernel files */
#include "backends/cpu/vec.h"

/*
 * One set of loops per element type: T is the scalar type, V the vector type, p the prefix of its
 * functions, L the number of lanes. p##_loop1, 2 and 3 are loops of 1, 2 and 3 operands. If the
 * result and these are contiguous (some of several may be broadcast), whole vectors have their own
 * loop. A second loop, and so a second inlined copy of fn, handles tails and all other strides. d:
 * addresses of result and operands; s: their strides in bytes.
 */
#define TS_LOOP_ACCESS(T, V, p, L)                                                                 \
    /* loads or stores n <= L elements with any stride */                                          \
    VEC_FN V p##_get(const char *at, int64_t stride, int64_t n)                                    \
    {                                                                                              \
        if (stride == (int64_t)sizeof(T))                                                          \
            return p##_load_n((const T *)at, n);                                                   \
        if (stride == 0)                                                                           \
            return p##_set1(*(const T *)at);                                                       \
        T lanes[L] = {0};                                                                          \
        for (int64_t k = 0; k < n; k++)                                                            \
            lanes[k] = *(const T *)(at + k * stride);                                              \
        return p##_load(lanes);                                                                    \
    }                                                                                              \
    VEC_FN void p##_put(char *at, int64_t stride, int64_t n, V v)                                  \
    {                                                                                              \
        if (stride == (int64_t)sizeof(T)) {                                                        \
            p##_store_n((T *)at, v, n);                                                            \
            return;                                                                                \
        }                                                                                          \
        T lanes[L];                                                                                \
        p##_store(lanes, v);                                                                       \
        for (int64_t k = 0; k < n; k++)                                                            \
            *(T *)(at + k * stride) = lanes[k];                                                    \
    }                                                                                              \
    /* computes one element */                                                                     \
    VEC_FN void p##_single1(char *const *d, V (*fn)(V, const void *), const void *params)          \
    {                                                                                              \
        *(T *)d[0] = fn(p##_set1(*(const T *)d[1]), params)[0];                                    \
    }                                                                                              \
    VEC_FN void p##_single2(char *const *d, V (*fn)(V, V, const void *), const void *params)       \
    {                                                                                              \
        V a = p##_set1(*(const T *)d[1]), b = p##_set1(*(const T *)d[2]);                          \
        *(T *)d[0] = fn(a, b, params)[0];                                                          \
    }                                                                                              \
    VEC_FN void p##_loop1(char *const *d, const int64_t *s, int64_t n, V (*fn)(V, const void *),   \
                          const void *params)                                                      \
    {                                                                                              \
        const int64_t z = (int64_t)sizeof(T);                                                      \
        T *out = (T *)d[0];                                                                        \
        const T *x = (const T *)d[1];                                                              \
        int64_t i = 0;                                                                             \
        if (s[0] == z && s[1] == z)                                                                \
            for (; i + L <= n; i += L)                                                             \
                p##_store(out + i, fn(p##_load(x + i), params));                                   \
        for (; i < n; i += L) {                                                                    \
            int64_t m = n - i < L ? n - i : L;                                                     \
            p##_put(d[0] + i * s[0], s[0], m, fn(p##_get(d[1] + i * s[1], s[1], m), params));      \
        }                                                                                          \
    }                                                                                              \
    VEC_FN void p##_loop2(char *const *d, const int64_t *s, int64_t n,                             \
                          V (*fn)(V, V, const void *), const void *params)                         \
    {                                                                                              \
        const int64_t z = (int64_t)sizeof(T);                                                      \
        T *out = (T *)d[0];                                                                        \
        const T *a = (const T *)d[1], *b = (const T *)d[2];                                        \
        int64_t i = 0;                                                                             \
        if (n >= L && s[0] == z) {                                                                 \
            if (s[1] == z && s[2] == z) {                                                          \
                for (; i + L <= n; i += L)                                                         \
                    p##_store(out + i, fn(p##_load(a + i), p##_load(b + i), params));              \
            } else if (s[1] == z && s[2] == 0) {                                                   \
                V vb = p##_set1(*b);                                                               \
                for (; i + L <= n; i += L)                                                         \
                    p##_store(out + i, fn(p##_load(a + i), vb, params));                           \
            } else if (s[1] == 0 && s[2] == z) {                                                   \
                V va = p##_set1(*a);                                                               \
                for (; i + L <= n; i += L)                                                         \
                    p##_store(out + i, fn(va, p##_load(b + i), params));                           \
            }                                                                                      \
        }                                                                                          \
        for (; i < n; i += L) {                                                                    \
            int64_t m = n - i < L ? n - i : L;                                                     \
            p##_put(                                                                               \
                d[0] + i * s[0], s[0], m,                                                          \
                fn(p##_get(d[1] + i * s[1], s[1], m), p##_get(d[2] + i * s[2], s[2], m), params)); \
        }                                                                                          \
    }                                                                                              \
    /* Returns the address of an operand's vectors: `at`, or `same`, filled with copies of a       \
     * broadcast element. *step: elements to the next vector. */                                   \
    VEC_FN const T *p##_whole(const char *at, int64_t stride, T *same, int64_t *step)              \
    {                                                                                              \
        *step = stride ? L : 0;                                                                    \
        if (stride)                                                                                \
            return (const T *)at;                                                                  \
        p##_store(same, p##_set1(*(const T *)at));                                                 \
        return same;                                                                               \
    }                                                                                              \
    VEC_FN void p##_loop3(char *const *d, const int64_t *s, int64_t n,                             \
                          V (*fn)(V, V, V, const void *), const void *params)                      \
    {                                                                                              \
        const int64_t z = (int64_t)sizeof(T);                                                      \
        T *out = (T *)d[0];                                                                        \
        int64_t i = 0;                                                                             \
        if (n >= L && s[0] == z && (!s[1] || s[1] == z) && (!s[2] || s[2] == z) &&                 \
            (!s[3] || s[3] == z)) {                                                                \
            T same[3][L];                                                                          \
            int64_t sa, sb, sc;                                                                    \
            const T *a = p##_whole(d[1], s[1], same[0], &sa);                                      \
            const T *b = p##_whole(d[2], s[2], same[1], &sb);                                      \
            const T *c = p##_whole(d[3], s[3], same[2], &sc);                                      \
            for (; i + L <= n; i += L, a += sa, b += sb, c += sc)                                  \
                p##_store(out + i, fn(p##_load(a), p##_load(b), p##_load(c), params));             \
        }                                                                                          \
        for (; i < n; i += L) {                                                                    \
            int64_t m = n - i < L ? n - i : L;                                                     \
            p##_put(d[0] + i * s[0], s[0], m,                                                      \
                    fn(p##_get(d[1] + i * s[1], s[1], m), p##_get(d[2] + i * s[2], s[2], m),       \
                       p##_get(d[3] + i * s[3], s[3], m), params));                                \
        }                                                                                          \
    }

TS_LOOP_ACCESS(float, vf, vf, VF_LANES)
TS_LOOP_ACCESS(double, vd, vd, VD_LANES)

/* The same for bf16 and f16, computed in f32, for functions that cost less than f32 copies of the
 * operands. */
#define TS_HALF_ACCESS(kind)                                                                       \
    VEC_FN vf kind##_get(const char *at, int64_t stride, int64_t n)                                \
    {                                                                                              \
        if (stride == 2)                                                                           \
            return vf_load_##kind##_n((const uint16_t *)at, n);                                    \
        uint16_t lanes[VF_LANES] = {0};                                                            \
        for (int64_t k = 0; k < n; k++)                                                            \
            lanes[k] = *(const uint16_t *)(at + k * stride);                                       \
        return vf_load_##kind(lanes);                                                              \
    }                                                                                              \
    VEC_FN void kind##_put(char *at, int64_t stride, int64_t n, vf v)                              \
    {                                                                                              \
        if (stride == 2) {                                                                         \
            vf_store_##kind##_n((uint16_t *)at, v, n);                                             \
            return;                                                                                \
        }                                                                                          \
        uint16_t lanes[VF_LANES];                                                                  \
        vf_store_##kind(lanes, v);                                                                 \
        for (int64_t k = 0; k < n; k++)                                                            \
            *(uint16_t *)(at + k * stride) = lanes[k];                                             \
    }                                                                                              \
    VEC_FN const uint16_t *kind##_whole(const char *at, int64_t stride, uint16_t *same,            \
                                        int64_t *step)                                             \
    {                                                                                              \
        *step = stride ? 2 * VF_LANES : 0;                                                         \
        for (int k = 0; !stride && k < 2 * VF_LANES; k++)                                          \
            same[k] = *(const uint16_t *)at;                                                       \
        return stride ? (const uint16_t *)at : same;                                               \
    }                                                                                              \
    VEC_FN void kind##_loop1(char *const *d, const int64_t *s, int64_t n,                          \
                             vf (*fn)(vf, const void *), const void *params)                       \
    {                                                                                              \
        uint16_t *out = (uint16_t *)d[0];                                                          \
        const uint16_t *x = (const uint16_t *)d[1];                                                \
        int64_t i = 0;                                                                             \
        if (s[0] == 2 && s[1] == 2)                                                                \
            for (; i + 2 * VF_LANES <= n; i += 2 * VF_LANES)                                       \
                vf_store2_##kind(out + i, fn(vf_load_##kind(x + i), params),                       \
                                 fn(vf_load_##kind(x + i + VF_LANES), params));                    \
        for (; i < n; i += VF_LANES) {                                                             \
            int64_t m = n - i < VF_LANES ? n - i : VF_LANES;                                       \
            kind##_put(d[0] + i * s[0], s[0], m,                                                   \
                       fn(kind##_get(d[1] + i * s[1], s[1], m), params));                          \
        }                                                                                          \
    }                                                                                              \
    VEC_FN void kind##_loop2(char *const *d, const int64_t *s, int64_t n,                          \
                             vf (*fn)(vf, vf, const void *), const void *params)                   \
    {                                                                                              \
        uint16_t *out = (uint16_t *)d[0];                                                          \
        int64_t i = 0;                                                                             \
        if (n >= 2 * VF_LANES && s[0] == 2 && (!s[1] || s[1] == 2) && (!s[2] || s[2] == 2)) {      \
            uint16_t same[2][2 * VF_LANES];                                                        \
            int64_t sa, sb;                                                                        \
            const uint16_t *a = kind##_whole(d[1], s[1], same[0], &sa);                            \
            const uint16_t *b = kind##_whole(d[2], s[2], same[1], &sb);                            \
            for (; i + 2 * VF_LANES <= n; i += 2 * VF_LANES, a += sa, b += sb)                     \
                vf_store2_##kind(out + i, fn(vf_load_##kind(a), vf_load_##kind(b), params),        \
                                 fn(vf_load_##kind(a + VF_LANES), vf_load_##kind(b + VF_LANES),    \
                                    params));                                                      \
        }                                                                                          \
        for (; i < n; i += VF_LANES) {                                                             \
            int64_t m = n - i < VF_LANES ? n - i : VF_LANES;                                       \
            kind##_put(d[0] + i * s[0], s[0], m,                                                   \
                       fn(kind##_get(d[1] + i * s[1], s[1], m),                                    \
                          kind##_get(d[2] + i * s[2], s[2], m), params));                          \
        }                                                                                          \
    }                                                                                              \
    VEC_FN void kind##_loop3(char *const *d, const int64_t *s, int64_t n,                          \
                             vf (*fn)(vf, vf, vf, const void *), const void *params)               \
    {                                                                                              \
        uint16_t *out = (uint16_t *)d[0];                                                          \
        int64_t i = 0;                                                                             \
        if (n >= 2 * VF_LANES && s[0] == 2 && (!s[1] || s[1] == 2) && (!s[2] || s[2] == 2) &&      \
            (!s[3] || s[3] == 2)) {                                                                \
            uint16_t same[3][2 * VF_LANES];                                                        \
            int64_t sa, sb, sc;                                                                    \
            const uint16_t *a = kind##_whole(d[1], s[1], same[0], &sa);                            \
            const uint16_t *b = kind##_whole(d[2], s[2], same[1], &sb);                            \
            const uint16_t *c = kind##_whole(d[3], s[3], same[2], &sc);                            \
            for (; i + 2 * VF_LANES <= n; i += 2 * VF_LANES, a += sa, b += sb, c += sc)            \
                vf_store2_##kind(out + i,                                                          \
                                 fn(vf_load_##kind(a), vf_load_##kind(b), vf_load_##kind(c),       \
                                    params),                                                       \
                                 fn(vf_load_##kind(a + VF_LANES), vf_load_##kind(b + VF_LANES),    \
                                    vf_load_##kind(c + VF_LANES), params));                        \
        }                                                                                          \
        for (; i < n; i += VF_LANES) {                                                             \
            int64_t m = n - i < VF_LANES ? n - i : VF_LANES;                                       \
            kind##_put(d[0] + i * s[0], s[0], m,                                                   \
                       fn(kind##_get(d[1] + i * s[1], s[1], m),                                    \
                          kind##_get(d[2] + i * s[2], s[2], m),                                    \
                          kind##_get(d[3] + i * s[3], s[3], m), params));                          \
        }                                                                                          \
    }

TS_HALF_ACCESS(bf16)
TS_HALF_ACCESS(f16)

/** Defines the loops name_bf16 and name_f16 with the function of the loop name_f32, which has
 *  `operands` operands (1 to 3). */
#define TS_HALF_LOOPS(operands, name)                                                         \
    static void name##_bf16(char *const *d, const int64_t *s, int64_t n, const void *params)  \
    {                                                                                         \
        bf16_loop##operands(d, s, n, name##_f32_fn, params);                                  \
    }                                                                                         \
    static void name##_f16(char *const *d, const int64_t *s, int64_t n, const void *params)   \
    {                                                                                         \
        f16_loop##operands(d, s, n, name##_f32_fn, params);                                   \
    }

/** Defines the static loop `name` (a ts_loop) of one operand x, for f32 (p = vf) or f64 (p = vd).
 *  expr is the result, a vector; it may use x and params. */
#define TS_LOOP1(p, name, expr)                                                               \
    VEC_FN p name##_fn(p x, const void *params) { (void)params; return expr; }                \
    static __attribute__((noinline)) void name##_run(char *const *d, const int64_t *s,        \
                                                     int64_t n, const void *params)           \
    {                                                                                         \
        p##_loop1(d, s, n, name##_fn, params);                                                \
    }                                                                                         \
    static void name(char *const *d, const int64_t *s, int64_t n, const void *params)         \
    {                                                                                         \
        if (n == 1)                                                                           \
            p##_single1(d, name##_fn, params);                                                \
        else                                                                                  \
            name##_run(d, s, n, params);                                                      \
    }
/** TS_LOOP1() with two operands a and b. */
#define TS_LOOP2(p, name, expr)                                                               \
    VEC_FN p name##_fn(p a, p b, const void *params) { (void)params; return expr; }           \
    static __attribute__((noinline)) void name##_run(char *const *d, const int64_t *s,        \
                                                     int64_t n, const void *params)           \
    {                                                                                         \
        p##_loop2(d, s, n, name##_fn, params);                                                \
    }                                                                                         \
    static void name(char *const *d, const int64_t *s, int64_t n, const void *params)         \
    {                                                                                         \
        if (n == 1)                                                                           \
            p##_single2(d, name##_fn, params);                                                \
        else                                                                                  \
            name##_run(d, s, n, params);                                                      \
    }
/** TS_LOOP1() with three operands a, b and c. */
#define TS_LOOP3(p, name, expr)                                                               \
    VEC_FN p name##_fn(p a, p b, p c, const void *params) { (void)params; return expr; }      \
    static void name(char *const *d, const int64_t *s, int64_t n, const void *params)         \
    {                                                                                         \
        p##_loop3(d, s, n, name##_fn, params);                                                \
    }
/**
 * Defines the static loop `name` of one operand x in plain C: R is the result type, T the type of
 * x, expr the result. The compiler vectorizes the contiguous case. A result may alias an operand
 * exactly, but must not overlap it partially.
 */
#define TS_SCALAR_LOOP1(R, T, name, expr)                                                     \
    static void name(char *const *d, const int64_t *s, int64_t n, const void *params)         \
    {                                                                                         \
        (void)params;                                                                         \
        if (s[0] == (int64_t)sizeof(R) && s[1] == (int64_t)sizeof(T)) {                       \
            R *out = (R *)d[0];                                                               \
            const T *in = (const T *)d[1];                                                    \
            TS_INDEPENDENT                                                                    \
            for (int64_t i = 0; i < n; i++) {                                                 \
                T x = in[i];                                                                  \
                out[i] = (R)(expr);                                                           \
            }                                                                                 \
            return;                                                                           \
        }                                                                                     \
        if (s[0] == (int64_t)sizeof(R) && s[1] == 0 && n) {                                   \
            T x = *(const T *)d[1];                                                           \
            R y = (R)(expr), *out = (R *)d[0];                                                \
            for (int64_t i = 0; i < n; i++)                                                   \
                out[i] = y;                                                                   \
            return;                                                                           \
        }                                                                                     \
        char *to = d[0]; /* copies, because a result of bytes may alias d and s */            \
        const char *from = d[1];                                                              \
        int64_t to_step = s[0], from_step = s[1];                                             \
        for (int64_t i = 0; i < n; i++) {                                                     \
            T x = *(const T *)(from + i * from_step);                                         \
            *(R *)(to + i * to_step) = (R)(expr);                                             \
        }                                                                                     \
    }
/** TS_SCALAR_LOOP1() with two operands a and b. The compiler also vectorizes the case that one of
 *  them is broadcast and the other contiguous. */
#define TS_SCALAR_LOOP2(R, T, name, expr)                                                     \
    static void name(char *const *d, const int64_t *s, int64_t n, const void *params)         \
    {                                                                                         \
        (void)params;                                                                         \
        const int64_t z = (int64_t)sizeof(T);                                                 \
        bool packed = s[0] == (int64_t)sizeof(R) && n;                                        \
        R *out = (R *)d[0];                                                                   \
        const T *ia = (const T *)d[1], *ib = (const T *)d[2];                                 \
        if (packed && s[1] == z && s[2] == z) {                                               \
            TS_INDEPENDENT                                                                    \
            for (int64_t i = 0; i < n; i++) {                                                 \
                T a = ia[i], b = ib[i];                                                       \
                out[i] = (R)(expr);                                                           \
            }                                                                                 \
        } else if (packed && s[1] == z && s[2] == 0) {                                        \
            T b = ib[0];                                                                      \
            TS_INDEPENDENT                                                                    \
            for (int64_t i = 0; i < n; i++) {                                                 \
                T a = ia[i];                                                                  \
                out[i] = (R)(expr);                                                           \
            }                                                                                 \
        } else if (packed && s[1] == 0 && s[2] == z) {                                        \
            T a = ia[0];                                                                      \
            TS_INDEPENDENT                                                                    \
            for (int64_t i = 0; i < n; i++) {                                                 \
                T b = ib[i];                                                                  \
                out[i] = (R)(expr);                                                           \
            }                                                                                 \
        } else {                                                                              \
            char *to = d[0]; /* copies, because a result of bytes may alias d and s */        \
            const char *at_a = d[1], *at_b = d[2];                                            \
            int64_t step = s[0], step_a = s[1], step_b = s[2];                                \
            for (int64_t i = 0; i < n; i++) {                                                 \
                T a = *(const T *)(at_a + i * step_a), b = *(const T *)(at_b + i * step_b);   \
                *(R *)(to + i * step) = (R)(expr);                                            \
            }                                                                                 \
        }                                                                                     \
    }
#endif

#endif
