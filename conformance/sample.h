/**
 * @file sample.h
 * The table of op samples. The driver calls each op through boxed calls over dtypes, layouts,
 * sizes, forms, devices and thread counts. It compares results with a reference in double, and
 * gradients with central differences. The test suite and ts-conformance share this table.
 *
 * To add a family, write conformance/samples/<family>.c, add it to conformance/families.def and
 * conformance/meson.build, and define rows:
 *
 *     #include "conformance/sample.h"
 *     REF_POINTWISE(ref_add, 2, a + b)             // or: static void ref_x(ts_ref *r) { … }
 *     static const ts_sample samples[] = {
 *         {"add", "broadcast", {T(SWEEP, 3), T(3)}, ref_add, .c = 1, .dtypes = DT_ALL,
 *          .grad = true, .inplace = true, .bad = {{1, T(2, 5), TS_ERR_SHAPE, "broadcast"}}},
 *     };
 *     TS_SAMPLES(pointwise, samples)
 *
 * tests/samples/ turns them into the tests pointwise_values, pointwise_gradients and
 * pointwise_bad_input; `build/tests/test_samples pointwise` runs them. A reference reads r->a[i]
 * (x, sizes, i, d, …) and writes to the memory of ref_ret(); it must not call the library.
 *
 * The tolerance of a result with expected value w is c · eps(dtype) · √depth · max(|w|, scale). For
 * bf16 and f16 the maximum is at least the dtype's smallest normal number. With c = 0 the result
 * must equal w rounded to the dtype, including the sign of zero. Large cases have a wider tolerance
 * (LARGE_FACTOR in drive.h).
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_CONFORMANCE_SAMPLE_H
#define TESSERA_CONFORMANCE_SAMPLE_H

#include "core/base.h"
#include "include/tessera/tessera.h"

/* rows omit zero fields */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

/* -------------------------------------------------------------------------- arguments ---- */

/** A size that takes the values 0, 1, 3, 17, 33, 65, 257 (at most sample.most) in tests of values,
 * sample.many in large cases, and 3 in tests of gradients and errors. */
#define SWEEP ((int64_t)1 << 40)

/** Distribution of a tensor's elements. Integer dtypes get whole numbers, u8 their absolute values,
 * and bool is true for positive numbers. */
typedef enum ts_gen {
    GEN_NORMAL,  /* mean 0, standard deviation 1 (integers: 3) */
    GEN_UNIFORM, /* low <= x < high */
    GEN_WHOLE,   /* whole numbers low <= x < high */
    GEN_BOUNDS,  /* 0 to high in even steps, rounded down: bounds of packed sequences */
    GEN_SPECIAL  /* in turn ±0, ±1, ±inf, NaN, denormals, largest, smallest, …; for integer dtypes
                    0, ±1, 2, 7, -128, 127, 255 */
} ts_gen;

/** An argument of a sample's call. */
typedef struct ts_sample_arg {
    uint8_t tag;   /* ts_tag; 0 is an absent optional */
    uint8_t gen;   /* a ts_gen */
    uint8_t dtype; /* of a tensor or a dtype argument: 0 is the run's dtype, otherwise 1 + dtype */
    bool nograd;   /* the op has no gradient for this floating tensor */
    int ndim;      /* dims of a tensor, or number of ints */
    int64_t sizes[TS_MAX_DIMS]; /* of a tensor, or the ints */
    double low, high;
    int64_t i;
    double d;
    const char *str;
    const struct ts_sample_arg *list; /* members of a list */
    int count;
} ts_sample_arg;

#define SIZES_(...)                                                                                \
    .ndim = (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), .sizes = {__VA_ARGS__}
/** Tensors by sizes; T() is 0-dim. */
#define T(...) {.tag = TS_TAG_TENSOR, SIZES_(__VA_ARGS__)}
#define T_UNIFORM(from, to, ...) {.tag = TS_TAG_TENSOR, .gen = GEN_UNIFORM, .low = from,           \
                                  .high = to, SIZES_(__VA_ARGS__)}
#define T_POSITIVE(...) T_UNIFORM(0.1, 3, __VA_ARGS__)
#define T_WHOLE(from, to, ...) {.tag = TS_TAG_TENSOR, .gen = GEN_WHOLE, .low = from, .high = to,   \
                                SIZES_(__VA_ARGS__)}
#define T_SPECIAL(...) {.tag = TS_TAG_TENSOR, .gen = GEN_SPECIAL, SIZES_(__VA_ARGS__)}
/** A tensor of a fixed dtype, in runs of any dtype. */
#define T_OF(type, ...) {.tag = TS_TAG_TENSOR, .dtype = 1 + (type), SIZES_(__VA_ARGS__)}
/** i64 indices 0 <= x < bound. */
#define T_INDEX(bound, ...) \
    {.tag = TS_TAG_TENSOR, .dtype = 1 + TS_I64, .gen = GEN_WHOLE, .high = bound,                   \
     SIZES_(__VA_ARGS__)}
/** n i32 bounds of packed sequences, from 0 to `top` tokens; top may be SWEEP. */
#define T_BOUNDS(top, n) {.tag = TS_TAG_TENSOR, .dtype = 1 + TS_I32, .gen = GEN_BOUNDS,            \
                          .high = (double)(top), .ndim = 1, .sizes = {n}}
/** Plain arguments. */
#define INT(v) {.tag = TS_TAG_INT, .i = (v)}
#define FLOAT(v) {.tag = TS_TAG_FLOAT, .d = (v)}
#define BOOL(v) {.tag = TS_TAG_BOOL, .i = (v)}
#define INTS(...) {.tag = TS_TAG_INTS, SIZES_(__VA_ARGS__)}
#define STRING(v) {.tag = TS_TAG_STRING, .str = (v)}
#define DTYPE(v) {.tag = TS_TAG_DTYPE, .dtype = 1 + (v)}
#define DTYPE_OF_RUN {.tag = TS_TAG_DTYPE}
/** The device of the run. */
#define DEVICE {.tag = TS_TAG_DEVICE}
#define ABSENT {.tag = TS_TAG_NONE}
/** A list of tensors, at most 8. */
#define LIST(...)                                                \
    {.tag = TS_TAG_TENSORS, .list = (const ts_sample_arg[]){__VA_ARGS__}, \
     .count = (int)(sizeof((const ts_sample_arg[]){__VA_ARGS__}) / sizeof(ts_sample_arg))}

/* -------------------------------------------------------------------------- references ---- */

/** An argument or result as the reference sees it: contiguous doubles, rounded to the dtype. */
typedef struct ts_ref_arg {
    uint8_t tag;
    ts_dtype dtype;
    int ndim;
    int64_t sizes[TS_MAX_DIMS]; /* for an ints argument: the ints, ndim of them */
    int64_t numel;
    double *x; /* numel */
    int64_t i; /* a number, as integer (i) and as double (d) */
    double d;
    int count;
    struct ts_ref_arg *list; /* count members */
} ts_ref_arg;

/** A call as the reference sees it. */
typedef struct ts_ref {
    ts_dtype dtype; /* of the run */
    int nargs, nrets;
    ts_ref_arg a[TS_MAX_ARGS];
    ts_ref_arg ret[TS_MAX_ARGS]; /* results, then arguments that the op writes, in their order */
    double *scale[TS_MAX_ARGS];  /* NULL, or a scale per element that replaces sample.scale; from
                                    ref_scratch() */
    void *blocks;
} ts_ref;

/** Sets the sizes of result i and returns its zeroed elements, owned by r. */
double *ref_ret(ts_ref *r, int i, const int64_t *sizes, int ndim);
/** ref_ret() with the sizes of argument a. */
double *ref_ret_like(ts_ref *r, int i, const ts_ref_arg *a);
/** Zeroed doubles that live as long as r. */
double *ref_scratch(ts_ref *r, int64_t n);
int64_t ref_numel(const int64_t *sizes, int ndim);
/** Computes result 0 as fn of the first n arguments, broadcast; numbers count as 0-dim tensors. */
void ref_pointwise(ts_ref *r, int n, double (*fn)(const double *v));
/** Views a as (outer, size, inner) around a dim, which may be negative: element (o, k, i) is
 * x[(o*size + k)*inner + i]. */
void ref_split(const ts_ref_arg *a, int64_t dim, int64_t *outer, int64_t *size, int64_t *inner);
/** Element of a, broadcast, at row-major index `at` of sizes. */
double ref_at(const ts_ref_arg *a, const int64_t *sizes, int ndim, int64_t at);

/** A reference for a pointwise op: an expression in a, b, c (the first three arguments). */
#define REF_POINTWISE(name, n, expr)                                            \
    static double name##_element(const double *v)                               \
    {                                                                           \
        double a = v[0], b = v[1], c = v[2];                                    \
        (void)a, (void)b, (void)c;                                              \
        return expr;                                                            \
    }                                                                           \
    static void name(ts_ref *r) { ref_pointwise(r, n, name##_element); }

/* ----------------------------------------------------------------------------- samples ---- */

#define DT_WIDE (TS_DT(TS_F64) | TS_DT(TS_F32))
#define DT_HALVES (TS_DT(TS_BF16) | TS_DT(TS_F16))
#define DT_FLOATS_ (DT_WIDE | DT_HALVES)
#define DT_INTS (TS_DT(TS_I64) | TS_DT(TS_I32) | TS_DT(TS_U8))
#define DT_NUMBERS (DT_FLOATS_ | DT_INTS)
#define DT_ALL (DT_NUMBERS | TS_DT(TS_BOOL))

/** Entries of sample.out, the dtype of a result: 0 for the run's, OUT(dtype), or one of these. */
#define OUT(type) (1 + (type))
enum {
    OUT_FLOAT = 100, /* the run's dtype if floating, else f32 */
    OUT_INT = 101,   /* the run's dtype if floating, else i64 */
    OUT_WIDE = 102   /* f64 if the run's dtype is f64, else f32 */
};

/** A call that must fail because argument `arg` is replaced by `value`. */
typedef struct ts_bad_call {
    int arg;
    ts_sample_arg value;
    ts_status code;   /* TS_OK: the entry is unused */
    const char *text; /* part of the message */
} ts_bad_call;

/** A row of the table: a call of an op, its reference and its tolerances. */
typedef struct ts_sample {
    const char *op, *name; /* name: distinguishes the samples of an op */
    ts_sample_arg args[TS_MAX_ARGS];
    void (*ref)(ts_ref *r); /* computes the expected results */
    /** Instead of ref, for random ops: judges the results in r->ret. */
    bool (*check)(const ts_ref *r);
    uint16_t dtypes; /* bit per dtype of the runs; 0 is all floats */
    double c, scale; /* tolerance; see the head of this file */
    double device_c; /* c on devices other than the CPU; 0 is c */
    int64_t depth;   /* number of additions per result; 0 is 1, SWEEP is the sweep's size */
    double grad_c;   /* tolerance of a gradient in a dtype against f64:
                        grad_c · eps(dtype) · √depth · max(1, largest |g|); 0 is 32 */
    uint8_t out[TS_MAX_RETS];
    int64_t most;    /* largest sweep; 0 is 257 */
    int64_t many;    /* SWEEP in large cases, which compare two threads with one on the CPU and
                        results with the reference on other devices except META; 0 is 40,009 */
    bool grad;       /* test first and second gradients (small sizes, floating tensors) */
    uint8_t grad_rets; /* bit per result that has a gradient; 0 is all */
    bool inplace;    /* test the form whose result 0 is argument 0 */
    bool no_empty;   /* the sweep skips size 0 */
    bool no_layouts; /* contiguous layouts only: values of the arguments depend on each other */
    bool no_expand;  /* no layouts with stride 0: the result for equal elements is undefined, or the
                        argument is written */
    bool no_meta;    /* no tests on META: result sizes depend on values */
    bool by_values;  /* errors depend on values, so META may accept a bad call */
    bool rounds;     /* with bf16 or f16, the reference gets FLOAT arguments rounded to the dtype */
    bool undefined;  /* result values are unspecified; only sizes and dtypes are checked */
    ts_bad_call bad[8];
} ts_sample;

/** The rows of a family. */
typedef struct ts_sample_family {
    const char *name;
    const ts_sample *samples;
    int count;
} ts_sample_family;

/** Defines a family from its rows; families.def names it. */
#define TS_SAMPLES(family, rows)                                                                   \
    const ts_sample_family ts_family_##family = {#family, rows, TS_COUNTOF(rows)};

#define TS_FAMILY(family) extern const ts_sample_family ts_family_##family;
#include "conformance/families.def"
#undef TS_FAMILY

/** All families. */
extern const ts_sample_family *const ts_sample_families[];
extern const int ts_sample_family_count;

/** Test the samples of a family and report the results to sample_run (drive.h). */
void ts_samples_values(const ts_sample_family *family);
void ts_samples_gradients(const ts_sample_family *family);
void ts_samples_bad_input(const ts_sample_family *family);

#endif
