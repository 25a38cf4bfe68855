/**
 * @file rows.c  Fused groups with calls by rows on a GPU. Their sums have another order than those
 * of eager calls, so both are compared with f64: the error is at most twice that of eager calls.
 */
// SPDX-License-Identifier: MIT
#include "tests/cuda/errors.h"
#include "tests/cuda/rows.h"

static void compare(uint64_t seed, ts_device device, bool graph, int64_t *fused)
{
    TS_SCOPE;
    row_program p = draw_rows(seed), exactly = p;
    exactly.exact = true;
    ts_tensor *host[ROW_INPUTS], *in[ROW_INPUTS], *wide[ROW_INPUTS], *got[ROW_OUTPUTS],
        *again[ROW_OUTPUTS], *want[ROW_OUTPUTS], *exact[ROW_OUTPUTS];
    ts_compiled *c = ts_compile(row_function, &p, TS_OPTS(ts_compile_opts, .graph = graph));
    for (int run = 0; run < (graph ? 5 : 2); run++) {
        TS_SCOPE;
        p.shift = exactly.shift = run * 0.25;
        ts_manual_seed(seed * 10 + (uint64_t)run);
        for (int k = 0; k < ROW_INPUTS; k++) {
            OK(host[k] = row_input(&p, k));
            OK(in[k] = ts_to_device(host[k], device));
            OK(wide[k] = ts_to(host[k], TS_F64));
        }
        OK(ts_compiled_call(c, in, ROW_INPUTS, got, ROW_OUTPUTS));
        OK(ts_compiled_call(c, in, ROW_INPUTS, again, ROW_OUTPUTS));
        OK(row_function(&p, in, ROW_INPUTS, want, ROW_OUTPUTS));
        OK(row_function(&exactly, wide, ROW_INPUTS, exact, ROW_OUTPUTS));
        for (int i = 0; i < ROW_OUTPUTS; i++) {
            if (want[i] == TS_NONE)
                continue;
            double own = error_of(got[i], exact[i]), eager = error_of(want[i], exact[i]),
                   most = 2 * eager + 2 * rounding(ts_dtype_of(want[i]));
            if (!(own <= most)) {
                ts_explain(c, stderr);
                ck_abort_msg("seed %llu (%s), (%lld, %lld, %lld) %s, run %d: result %d has an "
                             "error of %g, eager calls %g",
                             (unsigned long long)seed, row_kinds[p.kind], (long long)p.batch,
                             (long long)p.rows, (long long)p.columns, ts_dtype_name(p.dtype), run,
                             i, own, eager);
            }
            ck_assert_msg(error_of(got[i], again[i]) == 0, "seed %llu: two runs differ",
                          (unsigned long long)seed);
        }
    }
    *fused += ts_compiled_get_stats(c).fused;
    ts_compiled_free(c);
}

TS_TEST(drawn_groups_by_rows_are_as_exact_as_calls, .loop = 2, .timeout = 600)
{
    GPU(device);
    int64_t fused = 0;
    for (uint64_t seed = 0; seed < 96; seed++)
        compare(seed + 5000 * (uint64_t)_i, device, _i, &fused);
    ck_assert_int_gt(fused, 3 * 96 / 2);
}

/** Rows of equal elements: the mean is exact, and the variance 0. */
static ts_status norm_of_sum(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    return TS_STATUS_OF(out[0] = ts_layer_norm(ts_add(in[0], in[1]), TS_NONE, TS_NONE));
}
TS_TEST(a_layer_norm_of_equal_elements_in_a_group_is_zero)
{
    GPU(device);
    static const int64_t columns[] = {3, 128, 1000, 4096};
    for (int k = 0; k < 4; k++) {
        TS_SCOPE;
        ts_tensor *x = ts_reshape(full_on(device, 8 * columns[k], 1e6 + 0.3),
                                  TS_SIZES(8, columns[k]));
        ts_tensor *in[] = {x, ts_mul_scalar(x, 0.1)}, *y;
        ts_compiled *c = ts_compile(norm_of_sum, NULL, NULL);
        OK(ts_compiled_call(c, in, 2, &y, 1));
        ck_assert_int_eq(ts_compiled_get_stats(c).fused, 2);
        ck_assert(all_are(y, 0));
        ts_compiled_free(c);
    }
}

/** A NaN or infinity affects its row only. */
TS_TEST(NaN_stays_in_its_row)
{
    GPU(device);
    TS_SCOPE;
    ts_tensor *x = ts_to_device(ts_normal(TS_SIZES(16, 768), 0, 1, TS_F32), device);
    ts_tensor *in[] = {x, ts_mul_scalar(x, 0.0)}, *y;
    OK(ts_fill_(ts_select(ts_select(x, 0, 3), 0, 700), NAN));
    OK(ts_fill_(ts_select(ts_select(x, 0, 5), 0, 1), INFINITY));
    ts_compiled *c = ts_compile(norm_of_sum, NULL, NULL);
    OK(ts_compiled_call(c, in, 2, &y, 1));
    float *values = values_of(y);
    for (int64_t i = 0; i < 16 * 768; i++)
        ck_assert_msg(isfinite(values[i]) == (i / 768 != 3 && i / 768 != 5), "row %d",
                      (int)(i / 768));
    free(values);
    ts_compiled_free(c);
}


/** Two values that are used before and after products that need much memory. Outputs: the products
 *  of the values with in[1], before and after. */
static ts_status used_again(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    ts_tensor *norm = ts_to(ts_layer_norm(in[0], TS_NONE, TS_NONE), TS_BF16),
              *drawn = ts_dropout(ts_gelu(norm), 0.3, true),
              *large = ts_to(ts_mul_scalar(in[0], 0.01), TS_BF16);
    out[0] = ts_matmul(norm, in[1]);
    out[1] = ts_matmul(drawn, in[1]);
    large = ts_matmul(large, ts_transpose(large, 0, 1));
    for (int i = 0; i < 2; i++)
        large = ts_matmul(large, large);
    ts_tensor *some = ts_add(in[0], ts_tanh(ts_sum(large))),
              *soft = ts_to(ts_softmax(some, -1), TS_BF16); /* the norm joins its group */
    out[2] = ts_matmul(norm, in[1]);
    out[3] = ts_matmul(drawn, in[1]);
    return TS_STATUS_OF(out[4] = ts_matmul(soft, in[1]));
}
TS_TEST(recomputed_values_have_the_same_bits, .loop = 2)
{
    GPU(device);
    static const int64_t columns[] = {64, 256, 768, 1000, 2048};
    for (int k = 0; k < 5; k++) {
        TS_SCOPE;
        int64_t c = columns[k];
        ts_tensor *x = ts_to_device(ts_normal(TS_SIZES(4096, c), 0, 1, TS_F32), device),
                  *w = ts_to_device(ts_normal(TS_SIZES(c, 128), 0, 1, TS_BF16), device);
        ts_compiled *again = ts_compile(used_again, NULL, TS_OPTS(ts_compile_opts, .recompute = 1,
                                                                  .graph = _i));
        for (int run = 0; run < 4; run++) {
            ts_tensor *out[5];
            OK(ts_compiled_call(again, (ts_tensor *[]){x, w}, 2, out, 5));
            ck_assert(error_of(out[0], out[2]) == 0);
            ck_assert(error_of(out[1], out[3]) == 0);
        }
        ck_assert_int_gt(ts_compiled_get_stats(again).recomputed, 3);
        ts_compiled_free(again);
    }
}
