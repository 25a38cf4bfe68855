/**
 * @file emit.c  Groups as machine code: each operator with a recipe, alone between two others,
 * against eager calls, for random and special elements. Run it with TS_ISA=avx2 for AVX2.
 */
// SPDX-License-Identifier: MIT
#include "compile/emit.h"
#include "compile/testing.h"
#include "tests/compile/explains.h"
#include "tests/tracing/common.h"

#include <errno.h>
#include <math.h>
#include <sys/mman.h>

#define N ts_scalar_float(number)
#define MASK(x) ts_gt(x, b)

static double number; /* of the next call */

/* A case is an expression of tensors a, b, c of equal dtypes. reals, wholes, bools: the dtypes that
 * the operator takes. */
#define CASES(X)                                                                              \
    X(add, ts_add(a, b), 7) X(sub, ts_sub(a, b), 3) X(mul, ts_mul(a, b), 7)                   \
    X(div, ts_div(a, b), 1) X(add_number, ts_add_scalar(a, number), 1)                        \
    X(mul_number, ts_mul_scalar(a, number), 1) X(rsub, ts_sub(ts_neg(a), b), 3)               \
    X(neg, ts_neg(a), 3) X(abs, ts_abs(a), 3) X(sign, ts_sign(a), 1)                          \
    X(square, ts_square(a), 3) X(floor, ts_floor(a), 1) X(ceil, ts_ceil(a), 1)                \
    X(round, ts_round(a), 1) X(trunc, ts_trunc(a), 1) X(frac, ts_frac(a), 1)                  \
    X(sqrt, ts_sqrt(a), 1) X(rsqrt, ts_rsqrt(a), 1) X(reciprocal, ts_reciprocal(a), 1)        \
    X(exp, ts_exp(a), 1) X(sigmoid, ts_sigmoid(a), 1) X(tanh, ts_tanh(a), 1)                  \
    X(silu, ts_silu(a), 1) X(gelu, ts_gelu(a), 1) X(gelu_tanh, ts_gelu_tanh(a), 1)            \
    X(exp2, ts_exp2(a), 1) X(expm1, ts_expm1(a), 1) X(log, ts_log(a), 1)                      \
    X(log2, ts_log2(a), 1) X(log1p, ts_log1p(a), 1) X(elu, ts_elu(a, number), 1)              \
    X(silu_backward, ts_silu_backward(a, b), 1)                                               \
    X(elu_backward, ts_elu_backward(a, b, number), 1)                                         \
    X(gelu_backward, ts_gelu_backward(a, b, false), 1)                                        \
    X(gelu_tanh_backward, ts_gelu_backward(a, b, true), 1)                                    \
    X(maximum, ts_maximum(a, b), 3) X(minimum, ts_minimum(a, b), 3)                           \
    X(relu, ts_relu(a), 3) X(leaky_relu, ts_leaky_relu(a, number), 1)                         \
    X(clamp, ts_clamp(a, ts_scalar_float(-0.3), N), 1)                                        \
    X(pow2, ts_pow_scalar(a, ts_scalar_float(2)), 1)                                          \
    X(pow_half, ts_pow_scalar(a, ts_scalar_float(0.5)), 1)                                    \
    X(lerp, ts_lerp(a, b, c), 1) X(lerp_number, ts_lerp_scalar(a, b, N), 1)                   \
    X(addcmul, ts_addcmul(a, b, c, N), 1) X(addcdiv, ts_addcdiv(a, b, c, N), 1)               \
    X(addcmul_bool, ts_addcmul(a, b, c, ts_scalar_bool(true)), 1)                             \
    X(eq, ts_to(ts_eq(a, b), TS_F32), 7) X(ne, ts_ne(a, b), 7) X(lt, ts_lt(a, b), 7)          \
    X(le, ts_le(a, b), 7) X(gt, ts_gt(a, b), 7) X(ge, ts_ge(a, b), 7)                         \
    X(logical_and, ts_logical_and(a, b), 7) X(logical_or, ts_logical_or(a, b), 7)             \
    X(logical_xor, ts_logical_xor(a, b), 7) X(logical_not, ts_logical_not(a), 7)              \
    X(bitwise_and, ts_bitwise_and(a, b), 6) X(bitwise_or, ts_bitwise_or(a, b), 6)             \
    X(bitwise_xor, ts_bitwise_xor(a, b), 6) X(bitwise_not, ts_bitwise_not(a), 6)              \
    X(isnan, ts_isnan(a), 1) X(isinf, ts_isinf(a), 1) X(isfinite, ts_isfinite(a), 1)          \
    X(where, ts_where(MASK(a), a, c), 7) X(masked_fill, ts_masked_fill_scalar(a, MASK(c), N), 1)

enum { REALS = 1, WHOLES = 2, BOOLS = 4 };
#define BODY(name, expression, dtypes)                                                        \
    static ts_tensor *name##_of(ts_tensor *a, ts_tensor *b, ts_tensor *c)                     \
    {                                                                                         \
        (void)b, (void)c;                                                                     \
        return expression;                                                                    \
    }
CASES(BODY)
typedef struct one {
    const char *name;
    ts_tensor *(*of)(ts_tensor *a, ts_tensor *b, ts_tensor *c);
    int dtypes;
} one;
#define ROW(name, expression, dtypes) {#name, name##_of, dtypes},
static const one cases[] = {CASES(ROW)};


/** The case between two other calls. */
static ts_status between(TRACED)
{
    const one *c = ctx;
    ts_tensor *a = ts_dtype_of(in[0]) == TS_BOOL ? ts_logical_xor(in[0], in[1]) : ts_neg(in[0]);
    ts_tensor *y = a ? c->of(a, in[1], in[2]) : NULL;
    out[0] = y;
    out[1] = !y ? NULL : ts_dtype_of(y) == TS_BOOL ? ts_logical_not(y) : ts_neg(y);
    return out[1] ? TS_OK : ts_error_code();
}

/** A tensor of drawn bits, in which every third element is special: limits, denormals, zeros. */
static ts_tensor *drawn(uint64_t *state, ts_dtype dtype, const int64_t *sizes, int ndim)
{
    static const double special[] = {0, -0.0, 1, -1, 0.5, INFINITY, -INFINITY, NAN, 1e-40, -1e-40,
                                     3.4e38, -3.4e38, 88.7, -104, 65504, 6e-8, 15, 2.5, -3.5};
    ts_tensor *t = ts_empty(sizes, ndim, dtype);
    OK(t);
    char *to = ts_data_mut(t);
    for (int64_t i = 0; i < ts_numel(t); i++) {
        *state = *state * 6364136223846793005ull + 1442695040888963407ull;
        uint64_t bits = *state >> 16;
        int item = ts_dtype_sizes[dtype];
        if (dtype == TS_BOOL)
            bits &= 1;
        else if (dtype == TS_F64 || dtype == TS_I64)
            bits = bits * 0x10001;
        memcpy(to + i * item, &bits, (size_t)item);
        ts_value v = ts_value_float(bits % 3 ? (double)(int64_t)(*state >> 20 & 0xffff) / 4096 - 8
                                             : special[*state / 7 % TS_COUNTOF(special)]);
        if (ts_dtype_is_float(dtype) && bits % 5)
            ts_scalar_store(&v, dtype, to + i * item);
    }
    return t;
}

/** The size of tensors after n in the tests below: most are small. TS_TEST_SMALL takes fewer,
 *  TS_TEST_BRIEF of these none of more than two pieces. */
static int64_t next_size(int64_t n)
{
    if (getenv("TS_TEST_SMALL"))
        return n < 20 ? n + 1 : n > 2000 && getenv("TS_TEST_BRIEF") ? INT64_MAX : 4 * n + 3;
    return n + (n < 100 ? 1 : n * 3 / 2);
}

/** True if the tensors have the same bits, all NaNs counting as equal. */
static bool equal(ts_tensor *a, ts_tensor *b)
{
    if (ts_dtype_is_float(ts_dtype_of(a))) {
        a = ts_masked_fill_scalar(a, ts_isnan(a), ts_scalar_float(NAN));
        b = ts_masked_fill_scalar(b, ts_isnan(b), ts_scalar_float(NAN));
    }
    return same(ts_contiguous(a), ts_contiguous(b));
}

/** Calls fn compiled and eagerly with these inputs. `emits`: the group must be machine code, if
 *  this variant has any. */
static void check_code(ts_trace_fn fn, const void *ctx, const char *name, ts_tensor *const *in,
                       int n, int m, bool emits)
{
    ts_tensor *want[4], *got[4], *mine[4], *theirs[4];
    ts_compiled *c = ts_compile(fn, (void *)(uintptr_t)ctx, NULL);
    for (int turn = 0; turn < 3; turn++) {
        TS_SCOPE;
        number = 0.7 * turn - 0.4;
        for (int i = 0; i < n; i++) {
            mine[i] = turn == 1 ? ts_clone(in[i]) : in[i];
            theirs[i] = turn == 1 ? ts_clone(in[i]) : in[i];
        }
        OK(fn((void *)(uintptr_t)ctx, mine, n, want, m));
        OK(ts_compiled_call(c, theirs, n, got, m));
        for (int i = 0; i < m; i++)
            ck_assert_msg(equal(want[i], got[i]), "%s, %s, %lld elements, turn %d: output %d",
                          name, ts_dtype_name(ts_dtype_of(in[0])), (long long)ts_numel(in[0]),
                          turn, i);
    }
    if (emits && ts_machine_of(ts_emit_variant()))
        ck_assert_msg(explains(c, "are machine code"), "%s", name);
    ts_compiled_free(c);
}

static const ts_dtype dtypes[] = {TS_F32, TS_BF16, TS_F16, TS_F64, TS_I32, TS_I64, TS_BOOL};
static bool takes(const one *c, ts_dtype dtype)
{
    bool whole = dtype == TS_I32 || dtype == TS_I64;
    return c->dtypes & (whole ? WHOLES : dtype == TS_BOOL ? BOOLS : REALS);
}

/** The f64 loops of some functions have no recipe; some recipes are too long for 16 registers, or
 *  need too many masks; AVX2 and NEON do not multiply i64; a move of f16 would change signalling
 *  NaNs. */
static bool has_code(const one *c, ts_dtype dtype)
{
    static const char *const only_f32[] = {"gelu", "gelu_backward", "log", "log2", "log1p"},
                      *const products[] = {"mul", "square"};
    const char *const *names = dtype == TS_F64 ? only_f32 : products;
    int n = dtype == TS_F64 ? TS_COUNTOF(only_f32)
            : dtype == TS_I64 && ts_emit_variant() != 2 ? TS_COUNTOF(products) : 0;
    for (int i = 0; i < n; i++)
        if (strcmp(c->name, names[i]) == 0)
            return false;
    static const char *const longest[] = {"log1p", "gelu", "gelu_backward", "gelu_tanh_backward"};
    int too_long = ts_emit_variant() == 1 ? TS_COUNTOF(longest) : ts_emit_variant() == 2;
    for (int i = 0; i < too_long; i++)
        if (strcmp(c->name, longest[i]) == 0)
            return false;
    return dtype != TS_F16 || strcmp(c->name, "masked_fill") != 0;
}

TS_TEST(each_operator_has_the_bits_of_its_kernel, .loop = TS_COUNTOF(cases), .timeout = 300)
{
    const one *c = &cases[_i];
    uint64_t state = (uint64_t)_i + 1;
    for (int k = 0; k < TS_COUNTOF(dtypes); k++)
        for (int64_t n = 1; n < 40000 && takes(c, dtypes[k]); n = next_size(n)) {
            TS_SCOPE;
            ts_tensor *in[3];
            for (int i = 0; i < 3; i++)
                in[i] = drawn(&state, dtypes[k], TS_SIZES(n));
            check_code(between, c, c->name, in, 3, 2, has_code(c, dtypes[k]));
        }
}

/* Rows: a is a part of a wider tensor, b has one row and c one column. Short rows have no code. */
TS_TEST(operands_are_views_and_broadcast, .loop = TS_COUNTOF(cases), .timeout = 300)
{
    static const int64_t columns[] = {1, 3, 16, 17, 53, 130};
    const one *c = &cases[_i];
    uint64_t state = (uint64_t)_i + 99;
    for (int k = 0; k < TS_COUNTOF(dtypes); k++)
        for (int j = 0; j < TS_COUNTOF(columns) && takes(c, dtypes[k]); j++) {
            TS_SCOPE;
            int64_t m = columns[j];
            ts_tensor *in[] = {
                ts_narrow(drawn(&state, dtypes[k], TS_SIZES(7, m + 5)), 1, 2, m),
                drawn(&state, dtypes[k], TS_SIZES(m)), drawn(&state, dtypes[k], TS_SIZES(7, 1))};
            check_code(between, c, c->name, in, 3, 2, m >= 32 && has_code(c, dtypes[k]));
        }
}

/* One program: casts, in-place calls, a call that stays a kernel, results that are stored. */
static ts_status program(TRACED)
{
    ts_tensor *x = ts_clone(ts_add(in[0], in[1]));
    TS_TRY(x);
    TS_TRY(ts_mul_(x, in[1]));
    TS_TRY(ts_add_scalar_(x, number));
    ts_tensor *h = ts_to(x, TS_BF16), *f = ts_to(ts_mul(h, h), TS_F32);
    ts_tensor *w = ts_to(ts_to(x, TS_F16), TS_F32);
    out[0] = ts_sub(ts_sin(ts_add(f, w)), x);
    out[1] = ts_to(ts_where(ts_gt(out[0], w), f, ts_neg(w)), TS_BF16);
    out[2] = ts_mul(ts_to(ts_isnan(out[0]), TS_F32), ts_add_scalar(ts_abs(x), 1));
    TS_TRY(ts_relu_(x));
    out[3] = x;
    return out[0] && out[1] && out[2] ? TS_OK : ts_error_code();
}

TS_TEST(programs_with_casts_and_writes_have_the_bits_of_calls, .timeout = 300)
{
    uint64_t state = 5;
    for (int64_t n = 1; n < 100000; n += 1 + n / 3) {
        TS_SCOPE;
        ts_tensor *in[] = {drawn(&state, TS_F32, TS_SIZES(n)), drawn(&state, TS_F32, TS_SIZES(n))};
        check_code(program, NULL, "program", in, 2, 4, true);
    }
}

/* More values at a time than there are registers: several parts. */
static ts_status many(TRACED)
{
    ts_tensor *kept[40], *sum = in[0];
    for (int i = 0; i < 40; i++)
        kept[i] = ts_mul_scalar(i ? kept[i - 1] : in[1], 1 + i * 0.01);
    for (int i = 0; i < 40 && sum; i++)
        sum = ts_add(sum, kept[i]);
    return TS_STATUS_OF(out[0] = sum);
}

TS_TEST(a_group_with_many_values_is_divided)
{
    uint64_t state = 6;
    TS_SCOPE;
    ts_tensor *in[] = {drawn(&state, TS_F32, TS_SIZES(3001)),
                       drawn(&state, TS_F32, TS_SIZES(3001))};
    check_code(many, NULL, "many", in, 2, 1, true);
}

static int refuse(void *at, size_t bytes, int protection)
{
    (void)at, (void)bytes, (void)protection;
    errno = EACCES;
    return -1;
}

TS_TEST(without_executable_memory_groups_run_their_kernels)
{
    uint64_t state = 7;
    TS_SCOPE;
    ts_emit_protect = refuse;
    ts_tensor *in[] = {drawn(&state, TS_F32, TS_SIZES(501)), drawn(&state, TS_F32, TS_SIZES(501))};
    ts_compiled *c = ts_compile(many, NULL, NULL);
    ts_tensor *want, *got;
    OK(many(NULL, in, 2, &want, 1));
    OK(ts_compiled_call(c, in, 2, &got, 1));
    ck_assert(equal(want, got));
    ck_assert(!explains_quietly(c, "are machine code"));
    ts_compiled_free(c);
    ts_emit_protect = mprotect;
}

TS_TEST(emission_can_be_switched_off)
{
    uint64_t state = 8;
    TS_SCOPE;
    ts_emit_switch(false);
    ts_tensor *in[] = {drawn(&state, TS_F32, TS_SIZES(501)), drawn(&state, TS_F32, TS_SIZES(501))};
    ts_compiled *c = ts_compile(many, NULL, NULL);
    ts_tensor *got;
    OK(ts_compiled_call(c, in, 2, &got, 1));
    ck_assert(!explains_quietly(c, "are machine code"));
    ts_compiled_free(c);
    ts_emit_switch(true);
}

/** Runs the program with its code dumped, and checks that objdump knows each instruction and that
 *  the last one returns. */
TS_TEST(a_disassembler_reads_the_code)
{
    char folder[] = "/tmp/tessera-code-XXXXXX", line[800], command[128];
    uint64_t state = 9;
    int returns = 0;
    if (system("objdump --version > /dev/null 2>&1") != 0 || ts_machine_of(0)) {
        ts_test_note_skip("no objdump for this machine");
        return;
    }
    TS_SCOPE;
    ck_assert(mkdtemp(folder));
    setenv("TS_DUMP", folder, 1);
    ts_tensor *in[] = {drawn(&state, TS_F32, TS_SIZES(99)), drawn(&state, TS_F32, TS_SIZES(99))};
    check_code(program, NULL, "program", in, 2, 4, true);
    unsetenv("TS_DUMP");
    snprintf(command, sizeof command,
             "for f in %s/code-*; do objdump -D -b binary -m i386:x86-64 $f; done", folder);
    FILE *text = popen(command, "r");
    ck_assert(text);
    while (fgets(line, sizeof line, text)) {
        ck_assert_msg(!strstr(line, "(bad)"), "%s", line);
        returns += strstr(line, "\tret") != NULL;
    }
    pclose(text);
    ck_assert(returns >= 2 || !ts_machine_of(ts_emit_variant()));
    snprintf(command, sizeof command, "rm -r %s", folder);
    ck_assert_int_eq(system(command), 0);
}

#ifdef __aarch64__
/* The encoder's instructions for NEON beside those of the assembler, in the same order. Registers
 * are those of the row: result, operands. */
#define NEON(X)                                                                               \
    X(ADD, 0, 0, 1, 2, 3, "fadd v1.4s, v2.4s, v3.4s")                                         \
    X(ADD, 0, 1, 29, 30, 17, "fadd v29.2d, v30.2d, v17.2d")                                   \
    X(SUB, 0, 0, 1, 2, 3, "fsub v1.4s, v2.4s, v3.4s")                                         \
    X(SUB, 0, 1, 1, 2, 3, "fsub v1.2d, v2.2d, v3.2d")                                         \
    X(MUL, 0, 0, 1, 2, 3, "fmul v1.4s, v2.4s, v3.4s")                                         \
    X(MUL, 0, 1, 1, 2, 3, "fmul v1.2d, v2.2d, v3.2d")                                         \
    X(DIV, 0, 0, 1, 2, 3, "fdiv v1.4s, v2.4s, v3.4s")                                         \
    X(DIV, 0, 1, 1, 2, 3, "fdiv v1.2d, v2.2d, v3.2d")                                         \
    X(SQRT, 0, 0, 1, 2, -1, "fsqrt v1.4s, v2.4s")                                             \
    X(SQRT, 0, 1, 1, 2, -1, "fsqrt v1.2d, v2.2d")                                             \
    X(AND, 0, 1, 1, 2, 3, "and v1.16b, v2.16b, v3.16b")                                       \
    X(OR, 0, 0, 1, 2, 3, "orr v1.16b, v2.16b, v3.16b")                                        \
    X(XOR, 0, 0, 1, 2, 3, "eor v1.16b, v2.16b, v3.16b")                                       \
    X(ROUND, 8, 0, 1, 2, -1, "frintn v1.4s, v2.4s")                                           \
    X(ROUND, 9, 0, 1, 2, -1, "frintm v1.4s, v2.4s")                                           \
    X(ROUND, 10, 1, 1, 2, -1, "frintp v1.2d, v2.2d")                                          \
    X(ROUND, 11, 1, 1, 2, -1, "frintz v1.2d, v2.2d")                                          \
    X(COMPARE, 0, 0, 1, 2, 3, "fcmeq v1.4s, v2.4s, v3.4s")                                    \
    X(COMPARE, 4, 1, 1, 2, 3, "fcmeq v1.2d, v2.2d, v3.2d; mvn v1.16b, v1.16b")                \
    X(COMPARE, 0x11, 0, 1, 2, 3, "fcmgt v1.4s, v3.4s, v2.4s")                                 \
    X(COMPARE, 0x12, 0, 1, 2, 3, "fcmge v1.4s, v3.4s, v2.4s")                                 \
    X(COMPARE, 0x1e, 1, 1, 2, 3, "fcmgt v1.2d, v2.2d, v3.2d")                                 \
    X(COMPARE, 0x1d, 1, 1, 2, 3, "fcmge v1.2d, v2.2d, v3.2d")                                 \
    X(COMPARE, 3, 0, 1, 2, 3, "fcmeq v31.4s, v2.4s, v2.4s; fcmeq v1.4s, v3.4s, v3.4s;"        \
                              "and v1.16b, v1.16b, v31.16b; mvn v1.16b, v1.16b")              \
    X(MIN, 0, 0, 1, 2, 3, "fcmgt v31.4s, v3.4s, v2.4s; mov v1.16b, v31.16b;"                  \
                          "bsl v1.16b, v2.16b, v3.16b")                                       \
    X(MAX, 0, 1, 2, 2, 3, "fcmgt v31.2d, v2.2d, v3.2d; bif v2.16b, v3.16b, v31.16b")          \
    X(MAX, 0, 0, 3, 2, 3, "fcmgt v31.4s, v2.4s, v3.4s; bit v3.16b, v2.16b, v31.16b")          \
    X(IADD, 0, 0, 1, 2, 3, "add v1.4s, v2.4s, v3.4s")                                         \
    X(IADD, 0, 1, 1, 2, 3, "add v1.2d, v2.2d, v3.2d")                                         \
    X(ISUB, 0, 0, 1, 2, 3, "sub v1.4s, v2.4s, v3.4s")                                         \
    X(IMUL, 0, 0, 1, 2, 3, "mul v1.4s, v2.4s, v3.4s")                                         \
    X(IABS, 0, 0, 1, 2, -1, "abs v1.4s, v2.4s")                                               \
    X(IMIN, 0, 0, 1, 2, 3, "smin v1.4s, v2.4s, v3.4s")                                        \
    X(IMAX, 0, 0, 1, 2, 3, "smax v1.4s, v2.4s, v3.4s")                                        \
    X(IEQ, 0, 0, 1, 2, 3, "cmeq v1.4s, v2.4s, v3.4s")                                         \
    X(IGT, 0, 0, 1, 2, 3, "cmgt v1.4s, v2.4s, v3.4s")                                         \
    X(IGT, 0, 1, 1, 2, 3, "cmgt v1.2d, v2.2d, v3.2d")                                         \
    X(SHL, 16, 0, 1, 2, -1, "shl v1.4s, v2.4s, 16")                                           \
    X(SHL, 52, 1, 1, 2, -1, "shl v1.2d, v2.2d, 52")                                           \
    X(SHR, 31, 0, 1, 2, -1, "ushr v1.4s, v2.4s, 31")                                          \
    X(SHR, 63, 1, 1, 2, -1, "ushr v1.2d, v2.2d, 63")                                          \
    X(SAR, 1, 0, 1, 2, -1, "sshr v1.4s, v2.4s, 1")                                            \
    X(TOINT, 0, 0, 1, 2, -1, "fcvtzs v1.4s, v2.4s")                                           \
    X(TOFLOAT, 0, 0, 1, 2, -1, "scvtf v1.4s, v2.4s")                                          \
    X(TO_F16, 0, 0, 1, 2, -1, "fcvtn v1.4h, v2.4s")                                           \
    X(FROM_F16, 0, 0, 1, 2, -1, "fcvtl v1.4s, v2.4h")                                         \
    X(FMA, 0, 0, 4, 2, 3, "fmla v4.4s, v2.4s, v3.4s")                                         \
    X(FMA, 0, 1, 1, 2, 3, "mov v1.16b, v4.16b; fmla v1.2d, v2.2d, v3.2d")                     \
    X(SELECT, 0, 0, 2, 2, 3, "bsl v2.16b, v3.16b, v4.16b")                                    \
    X(SELECT, 0, 0, 3, 2, 3, "bif v3.16b, v4.16b, v2.16b")                                    \
    X(SELECT, 0, 0, 4, 2, 3, "bit v4.16b, v3.16b, v2.16b")                                    \
    X(LOAD, TS_FORM_FULL, 0, 1, 0, 0, "ldr q1, [x5, 16]")                                     \
    X(LOAD, TS_FORM_FULL, 1, 1, 0, 0, "ldr q1, [x5, 16]")                                     \
    X(LOAD, TS_FORM_WORD, 0, 1, 0, 0, "ldr d1, [x5, 8]; ushll v1.4s, v1.4h, 0")               \
    X(LOAD, TS_FORM_F16, 0, 1, 0, 0, "ldr d1, [x5, 8]; fcvtl v1.4s, v1.4h")                   \
    X(LOAD, TS_FORM_BYTE, 0, 1, 0, 0,                                                         \
      "ldr s1, [x5, 4]; ushll v1.8h, v1.8b, 0; ushll v1.4s, v1.4h, 0")                        \
    X(LOAD, TS_FORM_BYTE, 1, 1, 0, 0, "ldr h1, [x5, 2]; ushll v1.8h, v1.8b, 0;"               \
      "ushll v1.4s, v1.4h, 0; ushll v1.2d, v1.2s, 0")                                         \
    X(STORE, TS_FORM_FULL, 0, 0, 2, 0, "str q2, [x5, 16]")                                    \
    X(STORE, TS_FORM_WORD, 0, 0, 2, 0, "xtn v31.4h, v2.4s; str d31, [x5, 8]")                 \
    X(STORE, TS_FORM_F16, 0, 0, 2, 0, "fcvtn v31.4h, v2.4s; str d31, [x5, 8]")                \
    X(STORE, TS_FORM_BYTE, 0, 0, 2, 0, "xtn v31.4h, v2.4s; xtn v31.8b, v31.8h;"               \
      "str s31, [x5, 4]")                                                                     \
    X(STORE, TS_FORM_BYTE, 1, 0, 2, 0, "xtn v31.2s, v2.2d; xtn v31.4h, v31.4s;"               \
      "xtn v31.8b, v31.8h; str h31, [x5, 2]")
#define WORDS(op, form, wide, to, x, y, text) text "\n"
#define NEON_LOOP                                                                             \
    "stp d8, d9, [sp, -64]!; stp d10, d11, [sp, 16]; stp d12, d13, [sp, 32];"                 \
    "stp d14, d15, [sp, 48]; ldr x3, [x0]; ldr x4, [x0, 8]; ldr q7, [x2, 192];"               \
    "subs x1, x1, 8; b.mi 2f; 1: nop; add x3, x3, 32; add x4, x4, 16; subs x1, x1, 8;"        \
    "b.pl 1b; 2: add x1, x1, 8; ldp d14, d15, [sp, 48]; ldp d12, d13, [sp, 32];"              \
    "ldp d10, d11, [sp, 16]; ldp d8, d9, [sp], 64; ret\n"
__asm__(".pushsection .rodata\nneon_words:\n" NEON(WORDS) NEON_LOOP ".word 0\n.popsection\n");
extern const uint8_t neon_words[] __asm__("neon_words");

TS_TEST(the_encoder_agrees_with_the_assembler)
{
#define NODE(op, form, wide, to, x, y, text) {TS_DO_##op, form, wide, to, x, y, text},
    static const struct {
        uint8_t op, form;
        bool wide;
        int8_t to, x, y;
        const char *text;
    } rows[] = {NEON(NODE)};
    static ts_emit_block b;
    const ts_machine *m = b.machine = ts_machine_of(0);
    const uint8_t *want = neon_words;
    for (int i = 0; i < TS_COUNTOF(rows); i++) {
        uint8_t code[64];
        ts_code_writer w = {code, code + sizeof code, false};
        ts_emit_node n = {.op = rows[i].op, .form = rows[i].form, .slot = 2,
                          .in = {0, rows[i].y < 0 ? -1 : 0, 0}};
        b.wide = rows[i].wide;
        m->node(&w, &b, &n, (ts_emit_registers){.to = rows[i].to, .copy = 1,
                                                .in = {rows[i].x, rows[i].y, 4}}, false);
        ck_assert_msg(memcmp(code, want, (size_t)(w.at - code)) == 0, "%s", rows[i].text);
        want += w.at - code;
    }
    uint8_t code[256], *skip;
    ts_code_writer w = {code, code + sizeof code, false};
    b.wide = false;
    b.npointers = b.nnodes = 2;
    b.nodes[0] = (ts_emit_node){.op = TS_DO_LOAD, .form = TS_FORM_FULL, .slot = 0};
    b.nodes[1] = (ts_emit_node){.op = TS_DO_STORE, .form = TS_FORM_WORD, .slot = 1};
    m->begin(&w, &b);
    m->number(&w, &b, 3, 7);
    uint8_t *start = m->loop(&w, &b, 2, &skip);
    memcpy(w.at, (uint32_t[]){0xd503201f}, 4); /* nop */
    w.at += 4;
    m->loop_end(&w, &b, 2, start, skip);
    m->end(&w, &b, m->tail(&w, &b));
    memset(w.at, 0, 4); /* the words of the assembler end with 0 */
    ck_assert_mem_eq(code, want, (size_t)(w.at + 4 - code));
}
#endif
