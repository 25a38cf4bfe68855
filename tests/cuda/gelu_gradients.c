/**
 * @file gelu_gradients.c  Gradients of tanh-form gelu and their sums, bias gradients, in the
 * products before them, which product/wgmma.cuh computes on Hopper: drawn sizes, compared with f64.
 */
// SPDX-License-Identifier: MIT
#include "tests/cuda/epilogues.h"

#include <math.h>

typedef struct layer {
    int64_t rows, columns, inner;
    ts_dtype dtype;
    bool summed, whole; /* whole: rows are a multiple of 8 */
    bool curved; /* gelu is computed too, after its gradient */
} layer;

static int64_t draw(uint64_t *state, int64_t n)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (int64_t)(*state >> 33) % n;
}

/** A layer with at least 132 tiles of 256 rows and 128 columns. */
static layer draw_layer(uint64_t seed)
{
    uint64_t s = seed * 0x9e3779b97f4a7c15ull + 7;
    draw(&s, 2);
    layer l = {.columns = 8 * (1 + draw(&s, 400)), .inner = 8 * (1 + draw(&s, 96))};
    int64_t wide = (l.columns + 127) / 128;
    l.rows = 256 * ((131 + wide) / wide) + draw(&s, 2000);
    l.whole = draw(&s, 4) > 0;
    if (l.whole)
        l.rows = l.rows / 8 * 8;
    l.dtype = draw(&s, 2) ? TS_BF16 : TS_F16;
    l.summed = draw(&s, 3) > 0;
    l.curved = draw(&s, 2);
    return l;
}

/** Largest difference relative to the largest exact value, computed on the device; 1e30 if an
 * element is not finite. */
static double error_there(ts_tensor *got, ts_tensor *exact)
{
    TS_SCOPE;
    double worst, most;
    OK(ts_item(ts_amax(ts_abs(ts_sub(ts_to(got, TS_F64), exact))), &worst));
    OK(ts_item(ts_amax(ts_abs(exact)), &most));
    return isfinite(worst) ? worst / most : 1e30;
}

static ts_tensor *normal(int64_t rows, int64_t columns, double scale, ts_dtype dtype,
                         ts_device device)
{
    return ts_to(ts_normal_on(TS_SIZES(rows, columns), 0, scale, TS_F32, device), dtype);
}

static void near_exact(const layer *l, uint64_t seed, const char *what, ts_tensor *got,
                       ts_tensor *exact)
{
    /* one rounding, and a little for sums in f32; a sum has the error of its terms' roundings */
    double error = error_there(got, exact), most = l->dtype == TS_BF16 ? 4.1e-3 : 5.2e-4;
    ck_assert_msg(error <= most, "seed %llu, (%lld, %lld, %lld) %s: %s has an error of %g",
                  (unsigned long long)seed, (long long)l->rows, (long long)l->columns,
                  (long long)l->inner, ts_dtype_name(l->dtype), what, error);
}

/* The gradient of gelu(x) that a later layer with weights in[1] gets, its sums, and gelu(x). */
static ts_status gradient(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    const layer *l = ctx;
    ts_tensor *y = NULL;
    (void)n, (void)m;
    TS_TRY(ts_linear_backward(in[0], TS_NONE, in[1], &y, NULL, NULL));
    TS_TRY(out[0] = ts_gelu_backward(y, in[2], true));
    out[1] = TS_NONE;
    if (l->summed)
        TS_TRY(out[1] = ts_sum_to_size(out[0], TS_SIZES(l->columns)));
    out[2] = TS_NONE;
    if (l->curved)
        TS_TRY(out[2] = ts_gelu_tanh(in[2]));
    return TS_OK;
}

/** True if the newest plan of c has these calls as a product and its epilogue. */
static bool has_product(ts_compiled *c, const char *calls)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    OK(ts_explain(c, out));
    fclose(out);
    bool has = strstr(text, calls) != NULL;
    free(text);
    return has;
}

static char last[1024];
static void keep_last(void *payload, const char *topic, const char *line)
{
    (void)payload;
    if (strcmp(topic, "attention") == 0)
        snprintf(last, sizeof last, "%s", line);
}
/** True if the device runs wgmma kernels, which the log topic `attention` names. */
static bool is_hopper(ts_device device)
{
    ts_tensor *x = ts_to_device(ts_normal(TS_SIZES(1, 2, 64, 64), 0, 1, TS_BF16), device);
    ts_log_set_callback(keep_last, NULL);
    OK(ts_scaled_dot_product_attention_ex(x, x, x, NULL, NULL));
    ts_log_set_callback(NULL, NULL);
    return strstr(last, "cuda, wgmma kernels") != NULL;
}

TS_TEST(drawn_gradients_of_gelu_are_summed_in_their_product, .loop = 2, .timeout = 300)
{
    GPU(device);
    int summed = 0, curved = 0;
    for (uint64_t k = 0; k < 16; k++) {
        TS_SCOPE;
        uint64_t seed = k + 100 * (uint64_t)_i;
        layer l = draw_layer(seed);
        ts_manual_seed(seed);
        ts_tensor *g = normal(l.rows, l.inner, 1, l.dtype, device),
                  *w = normal(l.inner, l.columns, 1 / sqrt((double)l.inner), l.dtype, device),
                  *x = normal(l.rows, l.columns, 1.5, l.dtype, device), *in[] = {g, w, x}, *got[3],
                  *again[3], *exact;
        ts_compiled *c = ts_compile(gradient, &l, TS_OPTS(ts_compile_opts, .graph = true));
        for (int run = 0; run < 4; run++)
            OK(ts_compiled_call(c, in, 3, got, 3));
        OK(ts_compiled_call(c, in, 3, again, 3));
        OK(exact =
               ts_gelu_backward(ts_mm(ts_to(g, TS_F64), ts_to(w, TS_F64)), ts_to(x, TS_F64), true));
        if (l.whole) { /* else separate calls round twice */
            near_exact(&l, seed, "the gradient", got[0], exact);
            if (l.summed)
                near_exact(&l, seed, "the bias gradient", got[1],
                           ts_sum_to_size(exact, TS_SIZES(l.columns)));
        }
        for (int i = 0; i < 1 + l.summed; i++)
            ck_assert(error_there(got[i], ts_to(again[i], TS_F64)) == 0);
        if (l.curved) { /* has the bits of the eager kernel */
            ck_assert(error_there(got[2], ts_to(ts_gelu_tanh(x), TS_F64)) == 0);
            ck_assert(error_there(again[2], ts_to(ts_gelu_tanh(x), TS_F64)) == 0);
        }
        summed += has_product(c, "linear_backward gelu_backward sum_to_size");
        curved += has_product(c, l.summed ? "linear_backward gelu_backward sum_to_size gelu"
                                          : "linear_backward gelu_backward gelu");
        ts_compiled_free(c);
    }
    ck_assert(!is_hopper(device) || (summed > 2 && curved > 2));
}
