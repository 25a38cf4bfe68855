/**
 * @file attention_promises.c  Guarantees of attention on a GPU besides values: the CPU's dropout,
 * equal bits in each run, masked pairs, copies.
 */
// SPDX-License-Identifier: MIT
#include "tests/cuda/attention.h"

#include <math.h>

/* ------------------------------------------------------------------------------- dropout ---- */

/* Compares the dropout masks of GPU and CPU, which are the zeros of the weights. With equal scores
 * and the identity as values, the result is the weights. With the identity as the result's
 * gradient, the gradient of values is the transposed weights. */
static void compare_masks(ts_dtype dtype, int64_t length, ts_device device)
{
    TS_SCOPE;
    enum { BATCH = 2, HEADS = 4, DEPTH = 64 };
    const double p = 0.3;
    ts_manual_seed(length);
    OK(ts_uniform(TS_SIZES(9), 0, 1, TS_F32)); /* so that the draw does not begin at 0 */
    ts_tensor *zero = ts_zero_(ts_empty_on(TS_SIZES(BATCH, HEADS, length, DEPTH), dtype, device)),
              *lse;
    ts_tensor *eye = ts_to_device(ts_eye(length, length, dtype), device);
    ts_tensor *v = ts_expand(eye, TS_SIZES(BATCH, HEADS, length, length));
    ts_attention_opts opts = {.size = sizeof opts, .dropout_p = p, .rng = ts_rng_get_state()};
    ts_tensor *y = ts_scaled_dot_product_attention_ex(zero, zero, v, &lse, &opts), *dv,
              **wanted[3] = {NULL, NULL, &dv};
    OK(y);
    OK(ts_scaled_dot_product_attention_backward(v, TS_NONE, zero, zero, v, y, lse, &opts, wanted));
    uint64_t after = ts_rng_get_state().offset;

    ts_rng_set_state(opts.rng);
    ts_tensor *ones = ts_ones(TS_SIZES(BATCH, HEADS, length, length), TS_F32);
    ts_tensor *kept = ts_ne_scalar(ts_dropout(ones, p, true), 0);
    OK(kept);
    ck_assert_uint_eq(ts_rng_get_state().offset, after);
    ts_tensor *of_y = ts_ne_scalar(ts_to_device(y, TS_DEVICE_CPU), 0);
    ts_tensor *of_dv = ts_transpose(ts_ne_scalar(ts_to_device(dv, TS_DEVICE_CPU), 0), 2, 3);
    bool same = same_bits(of_y, kept), same_backward = same_bits(of_dv, kept);
    double part;
    OK(ts_item(ts_mean(ts_to(of_y, TS_F64)), &part));
    bool good = same && same_backward && fabs(part - (1 - p)) <= 0.01;
    if (!good)
        printf("%s, %lld rows: forward %s, backward %s, kept %g\n", ts_dtype_name(dtype),
               (long long)length, same ? "same" : "others", same_backward ? "same" : "others",
               part);
    ts_tally(good, !good, 0);
}

TS_TEST(dropout_of_attention_drops_the_same_pairs_as_on_the_CPU)
{
    static const ts_dtype dtypes[] = {TS_BF16, TS_F16, TS_F32, TS_F64};
    GPU(device);
    for (int i = 0; i < 4; i++)
        for (int64_t length = 32; length <= 256; length += 56)
            compare_masks(dtypes[i], length, device);
}

/* ----------------------------------------------------------------------------- same bits ---- */

TS_TEST(attention_in_deterministic_mode_has_the_same_bits_in_each_run, .loop = TENSOR_CORES)
{
    static const problem problems[] = {
        {TS_BF16, 2, 6, 2, 1023, 799, 64, .causal = true},
        {TS_F16, 2, 6, 2, 799, 1024, 128, .causal = false},
        {TS_BF16, 1, 4, 1, 512, 512, 192, .causal = true},
        {TS_BF16, 8, 4, 2, 512, 512, 128, .packed = true, .causal = true},
        {TS_F16, 5, 4, 2, 300, 500, 64, .padded = true, .softcap = 3, .dropout_p = 0.2},
        {TS_F16, 1, 4, 2, 300, 500, 72, .softcap = 2, .dropout_p = 0.2},
        {TS_BF16, 2, 6, 2, 1023, 799, 64, .mask = "BHqk", .mask_dtype = TS_BOOL, .dropout_p = 0.2},
        {TS_F16, 2, 6, 2, 799, 1024, 128, .mask = "BHqk", .mask_dtype = TS_F16},
        {TS_BF16, 60, 6, 3, 200, 120, 64, .causal = true},
        {TS_F32, 1, 4, 2, 300, 200, 40, .causal = true},
    };
    enum { REPEATS = 6 };
    keep_to(_i);
    GPU(device);
    OK(ts_set_deterministic(true));
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        TS_SCOPE;
        operands o = draw(&problems[i], device);
        results first = by_attention(&o);
        int other = 0;
        for (int k = 1; k < REPEATS; k++) {
            /* gives the results other addresses */
            ts_tensor *moved = ts_empty_on(TS_SIZES(1 << (10 + 2 * k)), TS_F32, device);
            OK(moved);
            results again = by_attention(&o);
            other += !same_bits(again.lse, first.lse);
            for (int n = 0; n < RESULTS; n++)
                other += !same_bits(again.all[n], first.all[n]);
        }
        if (other)
            printf("problem %d: %d of %d results have other bits\n", (int)i, other,
                   (REPEATS - 1) * (RESULTS + 1));
        ts_tally(!other, other > 0, 0);
    }
}

TS_TEST(a_gradient_of_attention_does_not_depend_on_which_others_are_requested, .loop = TENSOR_CORES)
{
    static const problem p = {TS_BF16, 1, 4, 2, 300, 500, 64, .causal = true};
    TS_SCOPE;
    keep_to(_i);
    GPU(device);
    OK(ts_set_deterministic(true));
    operands o = draw(&p, device);
    ts_attention_opts opts = options_of(&o);
    results r = by_attention(&o);
    for (int some = 1; some < 7; some++) {
        ts_tensor *grads[3], **wanted[3];
        for (int i = 0; i < 3; i++)
            wanted[i] = some >> i & 1 ? &grads[i] : NULL;
        OK(ts_scaled_dot_product_attention_backward(o.g, o.g_lse, o.q, o.k, o.v, r.all[OUT], r.lse,
                                                    &opts, wanted));
        for (int i = 0; i < 3; i++)
            ck_assert_msg(!wanted[i] || same_bits(grads[i], r.all[DQ + i]),
                          "gradient %d of choice %d", i, some);
    }
}

/* -------------------------------------------------------------------------------- hidden ---- */

static const double odd[] = {NAN, INFINITY, -INFINITY};

/** A copy of t in which all elements starting at row `first` are x. */
static ts_tensor *filled_from_row(ts_tensor *t, int64_t first, double x)
{
    t = ts_clone(t);
    OK(ts_fill_(ts_narrow(t, 2, first, ts_size(t, 2) - first), ts_scalar_float(x)));
    return t;
}

/** True if rows 0 to n - 1 have the same bits. */
static bool same_rows(ts_tensor *a, ts_tensor *b, int64_t n)
{
    return same_bits(ts_narrow(a, 2, 0, n), ts_narrow(b, 2, 0, n));
}

static const problem windowed[] = {
    {TS_BF16, 1, 2, 1, 1024, 1024, 64, .window = true, .left = 100, .right = 0},
    {TS_F16, 1, 2, 1, 1024, 1024, 128, .window = true, .left = 100, .right = 0},
    {TS_BF16, 1, 2, 1, 1024, 1024, 256, .window = true, .left = 100, .right = 0},
    {TS_BF16, 1, 2, 1, 1024, 1024, 64, .window = true, .left = 100, .right = 0, .softcap = 2},
    {TS_F32, 1, 2, 1, 1024, 1024, 40, .window = true, .left = 100, .right = 0},
};

TS_TEST(values_of_tiles_outside_a_rows_window_do_not_affect_it, .loop = TENSOR_CORES)
{
    keep_to(_i);
    GPU(device);
    OK(ts_set_deterministic(true));
    for (size_t i = 0; i < sizeof windowed / sizeof *windowed; i++)
        for (int k = 0; k < 3; k++) {
            TS_SCOPE;
            operands o = draw(&windowed[i], device), bad = o;
            bad.q = filled_from_row(o.q, 900, odd[k]);
            bad.k = filled_from_row(o.k, 800, odd[k]);
            bad.v = filled_from_row(o.v, 800, odd[k]);
            bad.g = filled_from_row(o.g, 900, odd[k]);
            results clean = by_attention(&o), r = by_attention(&bad);
            int wrong = 0;
            for (int n = 0; n < RESULTS; n++)
                wrong += !same_rows(r.all[n], clean.all[n], 512);
            if (wrong)
                printf("problem %d, %g: %d of %d results\n", (int)i, odd[k], wrong, RESULTS);
            ts_tally(!wrong, wrong > 0, 0);
        }
}

TS_TEST(values_of_other_packed_sequences_do_not_affect_a_sequence, .loop = TENSOR_CORES)
{
    static const problem problems[] = {
        {TS_BF16, 3, 4, 2, 203, 217, 64, .packed = true, .causal = true},
        {TS_F16, 3, 4, 2, 203, 217, 128, .packed = true},
        {TS_BF16, 3, 4, 2, 203, 217, 256, .packed = true, .softcap = 2},
        {TS_F32, 3, 4, 2, 203, 217, 24, .packed = true},
    };
    keep_to(_i);
    GPU(device);
    OK(ts_set_deterministic(true));
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        for (int k = 0; k < 3; k++) {
            TS_SCOPE;
            const problem *p = &problems[i];
            operands o = draw(p, device), bad = o;
            bad.q = filled_from_row(o.q, o.q_starts[1], odd[k]);
            bad.k = filled_from_row(o.k, o.k_starts[1], odd[k]);
            bad.v = filled_from_row(o.v, o.k_starts[1], odd[k]);
            bad.g = filled_from_row(o.g, o.q_starts[1], odd[k]);
            results clean = by_attention(&o), r = by_attention(&bad);
            bool same = true;
            for (int n = 0; n < RESULTS; n++)
                same = same &&
                       same_rows(r.all[n], clean.all[n], n < DK ? o.q_starts[1] : o.k_starts[1]);
            if (!same)
                printf("problem %d: %g of another sequence is seen\n", (int)i, odd[k]);
            ts_tally(same, !same, 0);
        }
}

/* A hidden score is replaced, never added to. */
TS_TEST(values_of_masked_keys_do_not_affect_the_result, .loop = TENSOR_CORES)
{
    static const problem problems[] = {
        {TS_BF16, 2, 4, 2, 203, 217, 64, .mask = "b11k", .mask_dtype = TS_BOOL},
        {TS_F16, 2, 4, 2, 203, 217, 128, .mask = "k", .mask_dtype = TS_F16},
        {TS_BF16, 2, 4, 2, 203, 217, 192, .mask = "k", .mask_dtype = TS_F32, .softcap = 2},
        {TS_F32, 2, 4, 2, 203, 217, 24, .mask = "k", .mask_dtype = TS_BOOL},
    };
    keep_to(_i);
    GPU(device);
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        for (int k = 0; k < 3; k++) {
            TS_SCOPE;
            const problem *p = &problems[i];
            operands o = draw(p, device);
            ts_attention_opts opts = options_of(&o);
            ts_tensor *hidden = ts_dtype_of(o.mask) == TS_BOOL
                                    ? ts_logical_not(o.mask)
                                    : ts_eq_scalar(o.mask, -INFINITY);
            int64_t batch = ts_ndim(hidden) > 1 ? p->batch : 1;
            hidden = ts_reshape(hidden, TS_SIZES(batch, 1, p->keys, 1));
            ts_tensor *bad = ts_masked_fill_scalar(o.k, hidden, ts_scalar_float(odd[k])), *lse[2],
                      *y[2];
            OK(y[0] = ts_scaled_dot_product_attention_ex(o.q, o.k, o.v, &lse[0], &opts));
            OK(y[1] = ts_scaled_dot_product_attention_ex(o.q, bad, o.v, &lse[1], &opts));
            bool same = same_bits(y[0], y[1]) && same_bits(lse[0], lse[1]) && isinf(largest(bad));
            if (!same)
                printf("problem %d: %g is seen\n", (int)i, odd[k]);
            ts_tally(same, !same, 0);
        }
}

/* Some programs hide a key by adding the lowest finite number to its score. Unlike with -Inf, a row
 * whose keys are all hidden that way has weights. */
TS_TEST(a_mask_that_adds_the_lowest_number_to_a_row_leaves_finite_weights, .loop = TENSOR_CORES)
{
    static const problem problems[] = {
        {TS_BF16, 1, 2, 2, 70, 90, 64, .mask = "qk", .mask_dtype = TS_BF16},
        {TS_BF16, 1, 2, 2, 70, 90, 128, .mask = "qk", .mask_dtype = TS_F32},
        {TS_BF16, 1, 2, 2, 70, 90, 192, .mask = "qk", .mask_dtype = TS_F32, .softcap = 2},
        {TS_BF16, 1, 2, 2, 3, 90, 128, .mask = "qk", .mask_dtype = TS_BF16}, /* few rows */
        {TS_F32, 1, 2, 2, 70, 90, 64, .mask = "qk", .mask_dtype = TS_F32},
    };
    keep_to(_i);
    GPU(device);
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        TS_SCOPE;
        operands o = draw(&problems[i], device);
        double lowest = problems[i].mask_dtype == TS_BF16 ? -0x1.FEp127 : -0x1.FFFFFEp127;
        OK(o.mask = ts_fill_(ts_clone(o.mask), lowest));
        OK(o.v = ts_fill_(ts_clone(o.v), 3));
        results r = by_attention(&o);
        double off = largest(ts_sub_scalar(r.all[OUT], 3)),
               most = largest(r.all[DQ]) + largest(r.all[DK]) + largest(r.all[DV]);
        if (!(off <= 0x1p-6) || !isfinite(most))
            printf("problem %d: %g off, gradients up to %g\n", (int)i, off, most);
        ts_tally(off <= 0x1p-6 && isfinite(most), !(off <= 0x1p-6 && isfinite(most)), 0);
    }
}

TS_TEST(attention_without_keys_has_zero_results_and_gradients, .loop = 3)
{
    static const ts_dtype dtypes[] = {TS_BF16, TS_F16, TS_F32};
    TS_SCOPE;
    GPU(device);
    problem p = {dtypes[_i], 2, 4, 2, 70, 0, 64, .causal = true};
    operands o = draw(&p, device);
    results r = by_attention(&o);
    for (int n = 0; n < RESULTS; n++)
        ck_assert_double_eq(largest(r.all[n]), 0);
    ck_assert_double_eq(largest(ts_ne_scalar(r.lse, -INFINITY)), 0);
}

TS_TEST(attention_of_depth_0_weighs_all_keys_equally, .loop = 3)
{
    static const ts_dtype dtypes[] = {TS_BF16, TS_F16, TS_F32};
    TS_SCOPE;
    GPU(device);
    for (int values = 0; values < 16; values += 8) {
        problem p = {dtypes[_i], 2, 4, 2, 70, 8, 0, .value_depth = values};
        operands o = draw(&p, device);
        o.v = ts_fill_(ts_empty_on(TS_SIZES(2, 2, 8, values), dtypes[_i], device), 3);
        o.g = ts_fill_(ts_empty_on(TS_SIZES(2, 4, 70, values), dtypes[_i], device), 1);
        results r = by_attention(&o);
        ck_assert_double_eq(largest(ts_sub_scalar(r.all[OUT], 3)), 0);
        ck_assert_double_le(largest(ts_sub_scalar(r.lse, log(8))), 1e-6);
        ck_assert_int_eq(ts_numel(r.lse), 2 * 4 * 70);
        ck_assert_double_le(largest(ts_sub_scalar(r.all[DV], 2 * 70 / 8.0)), 0x1p-8 * 18);
    }
}

/* ---------------------------------------------------------------------- copies, addresses ---- */

/* With TS_CUDA_ALLOC=system each block is a system allocation, and the statistics count it. */
TS_TEST(attention_copies_only_operands_that_tensor_cores_cannot_read,
        .loop = TENSOR_CORES)
{
    TS_SCOPE;
    keep_to(_i);
    setenv("TS_CUDA_ALLOC", "system", 1);
    GPU(device);
    uint64_t fewest = 0;
    for (int lies = 0; lies < LAYOUTS; lies++)
        for (int which = 0; which < 8; which++) {
            TS_SCOPE;
            problem p = {TS_BF16, 2, 4, 2, 130, 150, 64, .lies = (layout)lies}, plain = p;
            plain.lies = DENSE;
            operands o = draw(&p, device), dense = draw(&plain, device);
            ts_tensor **of[] = {&o.q, &o.k, &o.v}, *in[] = {dense.q, dense.k, dense.v};
            for (int i = 0; i < 3; i++)
                if (!(which >> i & 1))
                    *of[i] = in[i];
            ts_attention_opts opts = options_of(&o);
            uint64_t before = memory_of(device).system_allocs;
            OK(ts_scaled_dot_product_attention_ex(o.q, o.k, o.v, NULL, &opts));
            uint64_t blocks = memory_of(device).system_allocs - before;
            if (!lies && !which)
                fewest = blocks;
            uint64_t copies = lies == ODD ? (uint64_t)__builtin_popcount((unsigned)which) : 0;
            ck_assert_msg(blocks == fewest + copies,
                          "layout %d, operands %d: %d blocks, expected %d", lies, which,
                          (int)blocks, (int)(fewest + copies));
        }
    ck_assert_uint_gt(fewest, 0);
}

/* The stride of the batch dim exceeds 2^31 elements, so offsets need 64 bits. */
TS_TEST(operands_may_lie_more_than_2_to_the_31_elements_apart, .loop = KERNELS)
{
    TS_SCOPE;
    static const problem p = {TS_BF16, 2, 2, 1, 70, 90, 64, .causal = true};
    keep_to(_i);
    GPU(device);
    int64_t step = ((int64_t)1 << 31) + 4096;
    operands o = draw(&p, device), far = o;
    ts_tensor **to[] = {&far.q, &far.k, &far.v, &far.g};
    for (int i = 0; i < 4; i++) {
        ts_tensor *t = *to[i];
        const int64_t *n = ts_sizes(t);
        ts_tensor *base = ts_empty_on(TS_SIZES(step + ts_numel(t)), TS_BF16, device);
        OK(base);
        int64_t steps[] = {step, n[2] * n[3], n[3], 1};
        OK(*to[i] = ts_copy_(ts_as_strided(base, n, steps, 4, 0), t));
    }
    results near = by_attention(&o), r = by_attention(&far);
    ck_assert(same_bits(near.lse, r.lse));
    for (int n = 0; n < RESULTS; n++)
        ck_assert_msg(same_bits(near.all[n], r.all[n]), "result %d", n);
}
