/** @file groups.c  Fused groups on a GPU: random compiled functions, compared with eager calls. */
// SPDX-License-Identifier: MIT
#include "tests/compile/explains.h"
#include "tests/cuda/folds.h"

/** True if two results have the same bits, sizes and strides; all NaNs count as equal. */
static bool same_bits(ts_tensor *a, ts_tensor *b)
{
    size_t item = ts_dtype_size(ts_dtype_of(a)), n = (size_t)ts_numel(a) * item;
    if (ts_dtype_of(a) != ts_dtype_of(b) || ts_ndim(a) != ts_ndim(b))
        return false;
    for (int d = 0; d < ts_ndim(a); d++)
        if (ts_sizes(a)[d] != ts_sizes(b)[d])
            return false;
    char *x = malloc(n + 1), *y = malloc(n + 1);
    OK(ts_copy_to(ts_contiguous(a), x, n));
    OK(ts_copy_to(ts_contiguous(b), y, n));
    bool same = memcmp(x, y, n) == 0;
    free(x), free(y);
    return same;
}

/** Compares a compiled random function (graph: as a graph) with eager calls, in several runs with
 *  other numbers. Adds the number of fused calls to *fused. */
static void compare(uint64_t seed, ts_device device, bool graph, int64_t *fused)
{
    TS_SCOPE;
    group_program p = draw_group(seed);
    ts_tensor *in[GROUP_INPUTS], *again[GROUP_INPUTS], *out[GROUP_OUTPUTS], *want[GROUP_OUTPUTS];
    ts_compiled *c = ts_compile(group_function, &p, TS_OPTS(ts_compile_opts, .graph = graph));
    for (int run = 0; run < (graph ? 5 : 2); run++) {
        TS_SCOPE;
        p.shift = run * 0.25;
        for (int copy = 0; copy < 2; copy++) { /* two copies: calls may write them */
            ts_manual_seed(seed + (uint64_t)run);
            for (int k = 0; k < GROUP_INPUTS; k++)
                OK((copy ? again : in)[k] = group_input(&p, k, device));
        }
        ts_rng_state begin = ts_rng_get_state();
        ts_status got = ts_compiled_call(c, in, GROUP_INPUTS, out, GROUP_OUTPUTS);
        ts_rng_state end = ts_rng_get_state();
        ts_rng_set_state(begin);
        ts_status expected = group_function(&p, again, GROUP_INPUTS, want, GROUP_OUTPUTS);
        ck_assert_msg(got == expected, "seed %llu: %s", (unsigned long long)seed,
                      ts_error_message());
        ts_error_clear();
        ck_assert_uint_eq(ts_rng_get_state().offset, end.offset);
        for (int i = 0; i < GROUP_OUTPUTS && got == TS_OK; i++)
            if (!same_bits(out[i], want[i])) {
                ts_explain(c, stderr);
                ck_abort_msg("seed %llu, run %d: result %d differs", (unsigned long long)seed, run,
                             i);
            }
        for (int i = 0; i < GROUP_INPUTS; i++)
            ck_assert_msg(same_bits(in[i], again[i]), "seed %llu, run %d: input %d differs",
                          (unsigned long long)seed, run, i);
    }
    *fused += ts_compiled_get_stats(c).fused;
    ts_compiled_free(c);
}

TS_TEST(drawn_groups_have_the_bits_of_calls, .loop = 2, .timeout = 600)
{
    GPU(device);
    int64_t fused = 0;
    for (uint64_t seed = 0; seed < 30; seed++)
        compare(seed + 5000 * (uint64_t)_i, device, _i, &fused);
    ck_assert_int_gt(fused, 100);
}

TS_TEST(drawn_groups_with_folds_have_the_bits_of_calls, .loop = 2, .timeout = 600)
{
    GPU(device);
    int64_t fused = 0;
    const char *more = getenv("TS_TEST_PROGRAMS"), *from = getenv("TS_TEST_SEED");
    int n = more ? atoi(more) : 60;
    for (int i = 0; i < n; i++) {
        TS_SCOPE;
        fold_program p = draw_fold((from ? strtoull(from, NULL, 10) : 0) + (uint64_t)i +
                                   7000 * (uint64_t)_i);
        ts_tensor *in[FOLD_INPUTS], *out[FOLD_OUTPUTS], *want[FOLD_OUTPUTS];
        ts_compiled *c = ts_compile(fold_function, &p, TS_OPTS(ts_compile_opts, .graph = _i));
        ts_manual_seed(p.seed);
        for (int k = 0; k < FOLD_INPUTS; k++)
            OK(in[k] = fold_input(&p, k, device));
        for (int run = 0; run < (_i ? 5 : 2); run++) {
            TS_SCOPE;
            p.shift = run * 0.25;
            OK(ts_compiled_call(c, in, FOLD_INPUTS, out, FOLD_OUTPUTS));
            OK(fold_function(&p, in, FOLD_INPUTS, want, FOLD_OUTPUTS));
            for (int k = 0; k < FOLD_OUTPUTS; k++)
                if (want[k] != TS_NONE && !same_bits(out[k], want[k])) {
                    ts_explain(c, stderr);
                    ck_abort_msg("seed %llu, run %d: result %d differs",
                                 (unsigned long long)p.seed, run, k);
                }
        }
        fused += ts_compiled_get_stats(c).fused;
        ts_compiled_free(c);
    }
    ck_assert_int_gt(fused, n);
}

/** The same calls on tensors of several sizes are one kernel. */
TS_TEST(drawn_calls_on_each_of_many_tensors_have_the_bits_of_calls, .loop = 2, .timeout = 300)
{
    GPU(device);
    int64_t joined = 0;
    for (uint64_t seed = 0; seed < 24; seed++) {
        TS_SCOPE;
        group_program p = draw_group(seed + 3000 * (uint64_t)_i);
        ts_tensor *in[ALIKE_INPUTS], *again[ALIKE_INPUTS], *out[ALIKE_INPUTS], *want[ALIKE_INPUTS];
        ts_compiled *c = ts_compile(alike_function, &p, TS_OPTS(ts_compile_opts, .graph = _i));
        for (int run = 0; run < 5; run++) {
            TS_SCOPE;
            p.shift = run * 0.25;
            for (int copy = 0; copy < 2; copy++) {
                ts_manual_seed(p.seed);
                for (int k = 0; k < ALIKE_INPUTS; k++)
                    OK((copy ? again : in)[k] = alike_input(&p, k, device));
            }
            OK(ts_compiled_call(c, in, ALIKE_INPUTS, out, ALIKE_INPUTS));
            OK(alike_function(&p, again, ALIKE_INPUTS, want, ALIKE_INPUTS));
            for (int i = 0; i < ALIKE_INPUTS; i++)
                if (!same_bits(out[i], want[i]) || !same_bits(in[i], again[i])) {
                    ts_explain(c, stderr);
                    ck_abort_msg("seed %llu, run %d: tensor %d differs",
                                 (unsigned long long)p.seed, run, i);
                }
        }
        joined += explains(c, "calls on each of");
        ts_compiled_free(c);
    }
    ck_assert_int_gt(joined, 20);
}

static ts_status chain(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)n, (void)m;
    const double *factor = ctx;
    return TS_STATUS_OF(out[0] = ts_gelu(ts_add(ts_mul_scalar(in[0], *factor), in[1])));
}

TS_TEST(a_graph_follows_a_group_to_other_alignments)
{
    GPU(device);
    TS_SCOPE;
    double factor = 1;
    ts_compiled *c = ts_compile(chain, &factor, TS_OPTS(ts_compile_opts, .graph = true));
    ts_tensor *line = ts_to_device(ts_normal(TS_SIZES(4099), 0, 1, TS_F32), device), *got, *want;
    for (int k = 0; k < 12; k++) { /* alignments need another kernel, loaded in a capture */
        TS_SCOPE;
        ts_tensor *in[] = {ts_narrow(line, 0, k < 4 ? 0 : k % 2, 4096),
                           ts_narrow(line, 0, 0, 4096)};
        factor = 1 + 0.1 * k;
        OK(ts_compiled_call(c, in, 2, &got, 1));
        OK(chain(&factor, in, 2, &want, 1));
        ck_assert_msg(same_bits(got, want), "call %d", k);
    }
    ck_assert_int_ge(ts_compiled_get_stats(c).replays, 6);
    ts_compiled_free(c);
}

TS_TEST(a_hundred_numbers_compile_one_kernel)
{
    GPU(device);
    TS_SCOPE;
    double factor = 1;
    ts_tensor *x = ts_to_device(ts_normal(TS_SIZES(1000), 0, 1, TS_F32), device), *in[] = {x, x},
              *y;
    ts_compiled *c = ts_compile(chain, &factor, NULL);
    for (int k = 0; k < 100; k++) { /* 100 numbers need one kernel */
        TS_SCOPE;
        factor = k;
        OK(ts_compiled_call(c, in, 2, &y, 1));
    }
    ts_compile_stats stats = ts_compiled_get_stats(c);
    ck_assert_int_eq(stats.groups, 1);
    ck_assert_int_eq(stats.kernels + stats.kernels_read, 1);
    ts_compiled_free(c);
}

static ts_status chain_of_bytes(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    return TS_STATUS_OF(out[0] = ts_maximum(ts_add(in[0], in[0]), in[0]));
}

TS_TEST(groups_of_more_than_2_to_the_32_elements_are_computed)
{
    GPU(device);
    TS_SCOPE;
    int64_t n = ((int64_t)1 << 31) + 4096 * 3 + 5, at[] = {0, n / 2, n - 1};
    ts_tensor *all = ts_empty_on(TS_SIZES(n + 1), TS_U8, device), *y;
    if (!all)
        TS_SKIP("%s", ts_error_message());
    OK(ts_fill_(all, 7));
    ts_tensor *x = ts_narrow(all, 0, 1, n); /* unaligned: accesses of 1 element */
    for (int i = 0; i < 3; i++)
        OK(ts_fill_(ts_narrow(x, 0, at[i], 1), 100 + i));
    ts_compiled *c = ts_compile(chain_of_bytes, NULL, NULL);
    OK(ts_compiled_call(c, &x, 1, &y, 1));
    ck_assert_int_eq(ts_compiled_get_stats(c).groups, 1);
    for (int i = 0; i < 3; i++) {
        double v;
        OK(ts_item(ts_narrow(y, 0, at[i], 1), &v));
        ck_assert_double_eq(v, 200 + 2 * i);
    }
    double v;
    OK(ts_item(ts_narrow(y, 0, n - 2, 1), &v));
    ck_assert_double_eq(v, 14);
    ts_compiled_free(c);
}
