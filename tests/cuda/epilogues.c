/**
 * @file epilogues.c  Products with epilogues in compiled functions on a GPU: drawn products with
 * drawn calls after them. A product with an epilogue rounds once, so both are compared with f64:
 * the error is at most twice that of eager calls.
 */
// SPDX-License-Identifier: MIT
#include "tests/cuda/epilogues.h"
#include "tests/cuda/errors.h"

enum { INPUTS = 6, OUTPUTS = 3, PRODUCTS = 5, CALLS = 11 };

typedef struct program {
    int product, calls; /* which product, and which calls after it */
    int64_t batch, m, n, k;
    ts_dtype dtype;
    bool bias, transposed;
    bool exact; /* computed in f64, without casts */
} program;

static const char *const product_names[PRODUCTS] = {
    "linear", "mm", "bmm", "gradient of input", "gradient of weight"};
static const char *const call_names[CALLS] = {
    "gelu, tanh form", "gelu", "gelu with its argument", "gradient of gelu", "add", "add to other",
    "to f32", "to f32, add", "add in place", "relu", "add, relu"};

static uint32_t draw(uint64_t *state, uint32_t n)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*state >> 33) % n;
}

static program draw_program(uint64_t seed)
{
    static const int64_t sizes[] = {1, 3, 8, 16, 24, 40, 64, 100, 128, 256, 500, 768};
    static const ts_dtype dtypes[] = {TS_BF16, TS_F32, TS_F16, TS_BF16};
    uint64_t s = seed * 0x9e3779b97f4a7c15ull + 5;
    draw(&s, 2);
    program p = {.product = (int)(seed % PRODUCTS), .calls = (int)(seed / PRODUCTS % CALLS)};
    p.batch = 1 + draw(&s, 3);
    p.m = sizes[draw(&s, 12)];
    p.n = sizes[draw(&s, 12)];
    p.k = sizes[draw(&s, 12)];
    if (draw(&s, 3)) { /* usually multiples of 8, for epilogues in bf16 and f16 */
        p.m = (p.m + 7) / 8 * 8;
        p.n = (p.n + 7) / 8 * 8;
        p.k = (p.k + 7) / 8 * 8;
    }
    p.dtype = dtypes[draw(&s, 4)];
    p.bias = draw(&s, 2);
    p.transposed = draw(&s, 2);
    return p;
}

/** Sizes of the product's result; returns the number of dims. */
static int sizes_of(const program *p, int64_t sizes[3])
{
    int ndim = p->product == 1 || p->product == 4 ? 2 : 3;
    sizes[0] = ndim == 3 ? p->batch : p->product == 4 ? p->n : p->m;
    sizes[1] = ndim == 3 ? p->m : p->product == 4 ? p->k : p->n;
    sizes[2] = p->product == 3 ? p->k : p->n;
    return ndim;
}

/** Input i on the CPU: two operands, bias, and three tensors of the result's sizes. */
static ts_tensor *input(const program *p, int i)
{
    int64_t sizes[3];
    int ndim = sizes_of(p, sizes);
    double scale = 1 / sqrt((double)p->k);
    ts_tensor *t = NULL;
    switch (i) {
    case 0:
        t = p->product == 1  ? ts_normal(TS_SIZES(p->m, p->k), 0, 1, TS_F32)
            : p->product > 2 ? ts_normal(TS_SIZES(p->batch, p->m, p->n), 0, 1, TS_F32)
                             : ts_normal(TS_SIZES(p->batch, p->m, p->k), 0, 1, TS_F32);
        break;
    case 1:
        t = p->product == 1   ? ts_normal(TS_SIZES(p->k, p->n), 0, scale, TS_F32)
            : p->product == 2 ? ts_normal(TS_SIZES(p->batch, p->k, p->n), 0, scale, TS_F32)
            : p->product == 4 ? ts_normal(TS_SIZES(p->batch, p->m, p->k), 0, 1, TS_F32)
                              : ts_normal(TS_SIZES(p->n, p->k), 0, scale, TS_F32);
        break;
    case 2: t = ts_normal(TS_SIZES(p->n), 0, 0.5, TS_F32); break;
    default: t = ts_normal(sizes, ndim, 0, 1, TS_F32);
    }
    bool wide = i == 5; /* stays f32 */
    return wide ? t : ts_to(t, p->dtype);
}

static ts_tensor *transposed_view(ts_tensor *t)
{
    return ts_transpose(ts_contiguous(ts_transpose(t, 0, 1)), 0, 1);
}

static ts_tensor *product_of(const program *p, ts_tensor *const *in)
{
    ts_tensor *y = NULL, *b = in[1];
    switch (p->product) {
    case 0: return ts_linear(in[0], in[1], p->bias ? in[2] : TS_NONE);
    case 1: return ts_mm(p->transposed ? transposed_view(in[0]) : in[0], b);
    case 2: return ts_bmm(in[0], b);
    case 3: return ts_linear_backward(in[0], TS_NONE, b, &y, NULL, NULL) == TS_OK ? y : NULL;
    default: return ts_linear_backward(in[0], b, TS_NONE, NULL, &y, NULL) == TS_OK ? y : NULL;
    }
}

/* Runs the program ctx. Outputs that it does not have are TS_NONE. */
static ts_status function(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    const program *p = ctx;
    (void)n;
    for (int i = 0; i < m; i++)
        out[i] = TS_NONE;
    ts_tensor *y = product_of(p, in), *sum;
    TS_TRY(y);
    switch (p->calls) {
    case 0: return TS_STATUS_OF(out[0] = ts_gelu_tanh(y));
    case 1: return TS_STATUS_OF(out[0] = ts_gelu(y));
    case 2:
        out[1] = y;
        return TS_STATUS_OF(out[0] = ts_gelu_tanh(y));
    case 3: return TS_STATUS_OF(out[0] = ts_gelu_backward(y, in[3], true));
    case 4: return TS_STATUS_OF(out[0] = ts_add(y, in[3]));
    case 5: return TS_STATUS_OF(out[0] = ts_tanh(ts_add(in[4], y)));
    case 6: return TS_STATUS_OF(out[0] = p->exact ? y : ts_to(y, TS_F32));
    case 9: return TS_STATUS_OF(out[0] = ts_relu(y));
    case 10: return TS_STATUS_OF(out[0] = ts_relu(ts_add(y, in[3])));
    case 7:
        return TS_STATUS_OF(out[0] = ts_add(in[5], p->exact ? y : ts_to(y, TS_F32)));
    default:
        sum = ts_mul_scalar(in[5], 0.5);
        return TS_STATUS_OF(out[0] = ts_add_(sum, p->exact ? y : ts_to(y, TS_F32)));
    }
}

/** Compares runs of a random program. True if its product has an epilogue. */
static bool compare(uint64_t seed, ts_device device, bool graph)
{
    TS_SCOPE;
    program p = draw_program(seed), exactly = p;
    exactly.exact = true;
    ts_tensor *host[INPUTS], *in[INPUTS], *wide[INPUTS], *got[OUTPUTS], *again[OUTPUTS],
        *want[OUTPUTS], *exact[OUTPUTS];
    ts_compiled *c = ts_compile(function, &p, TS_OPTS(ts_compile_opts, .graph = graph));
    for (int run = 0; run < (graph ? 5 : 2); run++) {
        TS_SCOPE;
        ts_manual_seed(seed * 10 + (uint64_t)run);
        for (int k = 0; k < INPUTS; k++) {
            OK(host[k] = input(&p, k));
            OK(in[k] = ts_to_device(host[k], device));
            OK(wide[k] = ts_to(host[k], TS_F64));
        }
        OK(ts_compiled_call(c, in, INPUTS, got, OUTPUTS));
        OK(ts_compiled_call(c, in, INPUTS, again, OUTPUTS));
        OK(function(&p, in, INPUTS, want, OUTPUTS));
        OK(function(&exactly, wide, INPUTS, exact, OUTPUTS));
        for (int i = 0; i < OUTPUTS; i++) {
            if (want[i] == TS_NONE)
                continue;
            ck_assert_int_eq(ts_dtype_of(got[i]), ts_dtype_of(want[i]));
            double own = error_of(got[i], exact[i]), eager = error_of(want[i], exact[i]),
                   most = 2 * eager + 2 * rounding(ts_dtype_of(want[i]));
            if (!(own <= most)) {
                ts_explain(c, stderr);
                ck_abort_msg("seed %llu (%s; %s), batch %lld of (%lld, %lld, %lld) %s, run %d: "
                             "result %d has an error of %g, eager calls %g",
                             (unsigned long long)seed, product_names[p.product],
                             call_names[p.calls], (long long)p.batch, (long long)p.m,
                             (long long)p.n, (long long)p.k, ts_dtype_name(p.dtype), run, i, own,
                             eager);
            }
            ck_assert_msg(error_of(got[i], again[i]) == 0, "seed %llu: two runs differ",
                          (unsigned long long)seed);
        }
    }
    bool has = has_epilogue(c);
    ts_compiled_free(c);
    return has;
}

TS_TEST(drawn_products_with_epilogues_are_as_exact_as_calls, .loop = 2, .timeout = 600)
{
    GPU(device);
    int count = 0;
    for (uint64_t seed = 0; seed < 4 * PRODUCTS * CALLS; seed++)
        count += compare(seed + 10000 * (uint64_t)_i, device, _i);
    ck_assert_msg(count > 4 * PRODUCTS * CALLS / 4, "only %d products have an epilogue", count);
}

/** A gradient that is kept from step to step: the products of its parts add to it. */
static ts_status accumulate(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    ts_tensor *dw = NULL;
    TS_TRY(ts_linear_backward(in[0], in[1], TS_NONE, NULL, &dw, NULL));
    return TS_STATUS_OF(out[0] = ts_add_(in[2], ts_to(dw, TS_F32)));
}
TS_TEST(a_weight_gradient_is_added_in_its_product)
{
    GPU(device);
    TS_SCOPE;
    ts_tensor *g = ts_to_device(ts_normal(TS_SIZES(512, 64), 0, 1, TS_BF16), device),
              *x = ts_to_device(ts_normal(TS_SIZES(512, 128), 0, 1, TS_BF16), device),
              *sum = ts_to_device(ts_zeros(TS_SIZES(64, 128), TS_F32), device),
              *in[] = {g, x, sum}, *y;
    ts_compiled *c = ts_compile(accumulate, NULL, NULL);
    for (int run = 0; run < 3; run++) {
        OK(ts_compiled_call(c, in, 3, &y, 1));
        ts_tensor *exact = ts_mul_scalar(
            ts_mm(ts_transpose(ts_to(g, TS_F64), 0, 1), ts_to(x, TS_F64)), run + 1.0);
        ck_assert_double_le(error_of(sum, exact), 1e-5); /* no rounding to bf16 */
    }
    ck_assert(has_epilogue(c));
    ts_compiled_free(c);
}
