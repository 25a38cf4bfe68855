/** @file attention_options.c  Masks, windows, packed sequences, dropout and softcap: guarantees
 * besides values. */
// SPDX-License-Identifier: MIT
#include "tests/harness.h"

#include <math.h>
#include <string.h>

#include "core/tensor.h"
#include "tessera/tessera.h"

#define OK(call) ck_assert_msg(TS_STATUS_OF(call) == TS_OK, "%s", ts_error_message())

static ts_tensor *drawn(ts_dtype dtype, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return ts_normal(TS_SIZES(a, b, c, d), 0, 1, dtype);
}

static ts_tensor *leaf(ts_tensor *t) { return ts_set_requires_grad(ts_clone(t), true); }

/** Largest difference of two float tensors; infinite if an element of one is not finite. */
static double distance(ts_tensor *a, ts_tensor *b)
{
    TS_SCOPE;
    TS_NO_GRAD;
    ts_tensor *apart = ts_max(ts_abs(ts_sub(ts_to(a, TS_F64), ts_to(b, TS_F64))));
    double x = 0;
    OK(apart);
    OK(ts_item(apart, &x));
    return isfinite(x) ? x : INFINITY;
}

static ts_tensor *bounds_of(int n, const int32_t *bounds)
{
    int64_t size = n;
    return ts_from_array(bounds, TS_I32, &size, 1);
}

/** Returns y = attention(in); stores the gradients of sum(y · g) in grads: query, key, value. */
static ts_tensor *attend(ts_tensor *const *in, ts_tensor *g, const ts_attention_opts *opts,
                         ts_tensor **grads)
{
    ts_tensor *leaves[3];
    for (int i = 0; i < 3; i++)
        OK(leaves[i] = leaf(in[i]));
    ts_tensor *y = ts_scaled_dot_product_attention_ex(leaves[0], leaves[1], leaves[2], NULL, opts);
    OK(y);
    OK(ts_grad_of(y, g, leaves, 3, grads, NULL));
    return ts_detach(y);
}

TS_TEST(packed_sequences_are_each_its_own_call)
{
    TS_SCOPE;
    static const int32_t rows[] = {0, 70, 70, 73, 203, 210}, keys[] = {0, 80, 90, 90, 220, 221};
    enum { PARTS = 5 };
    ts_tensor *in[] = {drawn(TS_F32, 1, 4, 210, 8), drawn(TS_F32, 1, 2, 221, 8),
                       drawn(TS_F32, 1, 2, 221, 12)};
    ts_tensor *g = drawn(TS_F32, 1, 4, 210, 12), *grads[3], *mine[3];
    for (int window = 0; window < 2; window++) {
        ts_attention_opts opts = {
            .size = sizeof opts, .causal = true, .window = window, .window_left = window ? 20 : 0};
        ts_attention_opts packed = opts;
        packed.cu_seqlens =
            (ts_tensor *[]){bounds_of(PARTS + 1, rows), bounds_of(PARTS + 1, keys)};
        packed.max_seqlen_q = packed.max_seqlen_k = 130;
        ts_tensor *y = attend(in, g, &packed, grads);
        for (int b = 0; b < PARTS; b++) {
            int64_t at[] = {rows[b], keys[b], keys[b]},
                    n[] = {rows[b + 1] - rows[b], keys[b + 1] - keys[b], keys[b + 1] - keys[b]};
            ts_tensor *part[3];
            for (int i = 0; i < 3; i++)
                part[i] = ts_narrow(in[i], 2, at[i], n[i]);
            if (!n[0])
                continue;
            ts_tensor *alone = attend(part, ts_narrow(g, 2, at[0], n[0]), &opts, mine);
            ck_assert_double_eq(distance(ts_narrow(y, 2, at[0], n[0]), alone), 0);
            for (int i = 0; i < 3; i++)
                if (n[i])
                    ck_assert_double_eq(distance(ts_narrow(grads[i], 2, at[i], n[i]), mine[i]), 0);
        }
        /* the second sequence has no rows, so the gradients of its keys are 0 */
        ck_assert_double_eq(
            distance(ts_narrow(grads[1], 2, 80, 10), ts_zeros(TS_SIZES(1, 2, 10, 8), TS_F32)), 0);
    }
}

/* Forward and gradients of each batch equal those of a call with its keys alone. Keys beyond the
 * length may hold any values, and their gradients are 0. */
TS_TEST(key_lengths_hide_the_keys_after_them, .loop = 3)
{
    TS_SCOPE;
    enum { BATCH = 5, ROWS = 33, KEYS = 150 };
    ts_manual_seed((uint64_t)(7 + _i));
    ts_tensor *in[] = {drawn(TS_F32, BATCH, 4, ROWS, 8), drawn(TS_F32, BATCH, 2, KEYS, 8),
                       drawn(TS_F32, BATCH, 2, KEYS, 12)};
    ts_tensor *g = drawn(TS_F32, BATCH, 4, ROWS, 12), *grads[3], *mine[3];
    ts_tensor *lengths =
        ts_to(ts_mul_scalar(ts_uniform(TS_SIZES(BATCH), 0, 1, TS_F64), KEYS + 0.99), TS_I32);
    OK(ts_fill_(ts_narrow(lengths, 0, 1, 1), 0));
    OK(ts_fill_(ts_narrow(lengths, 0, 2, 1), KEYS));
    int32_t length[BATCH];
    OK(ts_copy_to(lengths, length, sizeof length));
    for (int b = 0; b < BATCH; b++)
        for (int i = 1; i < 3; i++)
            OK(ts_fill_(ts_narrow(ts_narrow(in[i], 0, b, 1), 2, length[b], KEYS - length[b]), NAN));
    ts_attention_opts alone = {.size = sizeof alone, .causal = _i == 1, .window = _i == 2,
                               .window_left = _i == 2 ? 20 : 0,
                               .window_right = _i == 2 ? 3 : 0},
                      opts = alone;
    opts.key_lengths = &lengths;
    ts_tensor *y = attend(in, g, &opts, grads);
    for (int b = 0; b < BATCH; b++) {
        ts_tensor *part[3];
        for (int i = 0; i < 3; i++)
            part[i] = ts_narrow(in[i], 0, b, 1);
        for (int i = 1; i < 3; i++)
            part[i] = ts_narrow(part[i], 2, 0, length[b]);
        ts_tensor *own = attend(part, ts_narrow(g, 0, b, 1), &alone, mine);
        ck_assert_double_eq(distance(ts_narrow(y, 0, b, 1), own), 0);
        for (int i = 0; i < 3; i++) {
            ts_tensor *all = ts_narrow(grads[i], 0, b, 1);
            int64_t seen = i ? length[b] : ROWS, beyond = i ? KEYS - length[b] : 0;
            if (seen)
                ck_assert_double_eq(distance(ts_narrow(all, 2, 0, seen), mine[i]), 0);
            if (beyond) {
                ts_tensor *rest = ts_narrow(all, 2, seen, beyond);
                ck_assert_double_eq(distance(rest, ts_zero_(ts_clone(rest))), 0);
            }
        }
    }
}

enum { BY_MASK, BY_SUM, BY_CAUSE, BY_WINDOW, BY_BOUNDS, WAYS };

/** Options that hide keys 40 and above from rows before 40, by a mask, a window, packed bounds or
 *  causality. Stores their tensors, at most two, in `held`. */
static ts_attention_opts hiding_options(int way, ts_tensor **held)
{
    static const int32_t rows[] = {0, 40, 80}, keys[] = {0, 40, 80};
    ts_attention_opts o = {.size = sizeof o};
    ts_tensor *seen = ts_logical_or(ts_lt_scalar(ts_arange(0, 80, 1, TS_I64), 40),
                                    ts_ge_scalar(ts_unsqueeze(ts_arange(0, 80, 1, TS_I64), 1), 40));
    if (way == BY_SUM)
        held[0] = ts_masked_fill_scalar(ts_zeros(TS_SIZES(80, 80), TS_F32), ts_logical_not(seen),
                                        -INFINITY);
    else
        held[0] = seen;
    o.mask = way <= BY_SUM ? held : NULL;
    o.causal = way == BY_CAUSE;
    o.window = way == BY_WINDOW;
    if (way == BY_BOUNDS) {
        held[0] = bounds_of(3, rows);
        held[1] = bounds_of(3, keys);
        o.cu_seqlens = held;
        o.max_seqlen_q = o.max_seqlen_k = 40;
    }
    return o;
}

TS_TEST(values_of_hidden_keys_do_not_affect_results, .loop = WAYS)
{
    TS_SCOPE;
    static const double odd[] = {INFINITY, -INFINITY, NAN};
    ts_tensor *held[2];
    ts_attention_opts opts = hiding_options(_i, held);
    ts_tensor *in[] = {drawn(TS_F32, 1, 2, 80, 20), drawn(TS_F32, 1, 2, 80, 20),
                       drawn(TS_F32, 1, 2, 80, 20)},
              *grads[2][3], *y[2];
    ts_tensor *g = drawn(TS_F32, 1, 2, 80, 20);
    for (int k = 0; k < 3; k++) {
        ts_tensor *bad[3] = {in[0], ts_clone(in[1]), ts_clone(in[2])};
        for (int i = 1; i < 3; i++)
            OK(ts_fill_(ts_narrow(bad[i], 2, 70, 5), ts_scalar_float(odd[k])));
        y[0] = attend(in, g, &opts, grads[0]);
        y[1] = attend(bad, g, &opts, grads[1]);
        /* tiles that are not finite are summed in another order: 80 terms of magnitude 1 */
        double tolerance = 64 * 0x1p-23;
        ck_assert_double_le(distance(ts_narrow(y[0], 2, 0, 40), ts_narrow(y[1], 2, 0, 40)),
                            tolerance);
        ck_assert_double_le(
            distance(ts_narrow(grads[0][0], 2, 0, 40), ts_narrow(grads[1][0], 2, 0, 40)),
            8 * tolerance);
        if (_i == BY_BOUNDS || _i == BY_WINDOW)
            for (int i = 1; i < 3; i++) /* rows that see bad keys do not see keys 0 to 39 */
                ck_assert_double_le(
                    distance(ts_narrow(grads[0][i], 2, 0, 40), ts_narrow(grads[1][i], 2, 0, 40)),
                    8 * tolerance);
    }
}

TS_TEST(rows_that_see_no_key_are_zero_with_finite_gradients, .loop = 4)
{
    TS_SCOPE;
    static const ts_dtype dtypes[] = {TS_F32, TS_F64, TS_BF16, TS_F16};
    ts_dtype dtype = dtypes[_i], own = _i < 2 ? dtype : TS_F32;
    ts_tensor *in[] = {drawn(dtype, 1, 2, 6, 8), drawn(dtype, 1, 2, 5, 8),
                       drawn(dtype, 1, 2, 5, 8)},
              *grads[3], *lse;
    ts_tensor *none = ts_ones(TS_SIZES(6, 5), TS_BOOL), *low = ts_zeros(TS_SIZES(6, 5), own);
    OK(ts_fill_(ts_select(none, 0, 3), false));
    OK(ts_fill_(ts_select(low, 0, 3), -INFINITY));
    ts_attention_opts masked = {.size = sizeof masked, .mask = &none, .dropout_p = 0.1,
                                .softcap = 5}, added = masked;
    added.mask = &low;
    for (int way = 0; way < 2; way++) {
        const ts_attention_opts *opts = way ? &added : &masked;
        ts_tensor *y = attend(in, ts_ones(TS_SIZES(1, 2, 6, 8), dtype), opts, grads),
                  *zero = ts_zeros(TS_SIZES(1, 2, 8), dtype);
        ck_assert_double_eq(distance(ts_select(y, 2, 3), zero), 0);
        ck_assert_double_gt(distance(ts_select(y, 2, 2), zero), 0);
        ck_assert_double_eq(distance(ts_select(grads[0], 2, 3), zero), 0);
        for (int i = 0; i < 3; i++)
            ck_assert_double_lt(distance(grads[i], ts_zeros_like(grads[i])), INFINITY);
        OK(ts_scaled_dot_product_attention_ex(in[0], in[1], in[2], &lse, opts));
        double x = 0;
        OK(ts_item(ts_max(ts_select(lse, 2, 3)), &x));
        ck_assert(x == -INFINITY && ts_dtype_of(lse) == own);
    }
}

/** Attention by separate ops: scores, softcap, mask, softmax, dropout. */
static ts_tensor *by_ops(ts_tensor *const *in, const ts_attention_opts *o)
{
    ts_tensor *s = ts_mul_scalar(ts_matmul(in[0], ts_transpose(in[1], 2, 3)), o->scale);
    s = ts_mul_scalar(ts_tanh(ts_div_scalar(s, o->softcap)), o->softcap);
    s = ts_add(s, *o->mask);
    return ts_matmul(ts_dropout(ts_softmax(s, -1), o->dropout_p, true), in[2]);
}

TS_TEST(attention_with_options_equals_separate_ops_with_the_same_dropout_mask)
{
    TS_SCOPE;
    ts_tensor *in[] = {drawn(TS_F64, 2, 3, 70, 8), drawn(TS_F64, 2, 3, 90, 8),
                       drawn(TS_F64, 2, 3, 90, 6)},
              *grads[3], *want[3];
    ts_tensor *g = drawn(TS_F64, 2, 3, 70, 6), *mask = drawn(TS_F64, 1, 3, 70, 90), *leaves[3];
    ts_attention_opts opts = {.size = sizeof opts, .scale = 0.5, .softcap = 3, .dropout_p = 0.25,
                              .mask = &mask};
    for (int i = 0; i < 3; i++)
        leaves[i] = leaf(in[i]);
    ts_manual_seed(11);
    /* so that the draw does not begin at 0 */
    ts_tensor *first = ts_uniform(TS_SIZES(5), 0, 1, TS_F32);
    OK(first);
    ts_rng_state before = ts_rng_get_state();
    ts_tensor *y = attend(in, g, &opts, grads);
    ts_rng_state after = ts_rng_get_state();
    ts_rng_set_state(before);
    ts_tensor *other = by_ops(leaves, &opts);
    OK(other);
    ck_assert_uint_eq(ts_rng_get_state().offset, after.offset);
    ck_assert_uint_eq(after.offset - before.offset, (2 * 3 * 70 * 90 + 3) / 4);
    OK(ts_grad_of(other, g, leaves, 3, want, NULL));
    ck_assert_double_le(distance(y, other), 1e-13); /* sums of 90 terms of order 1 in f64 */
    for (int i = 0; i < 3; i++)
        ck_assert_double_le(distance(grads[i], want[i]), 1e-12);

    ts_tensor *direct[3], **wanted[] = {&direct[0], &direct[1], &direct[2]}, *lse;
    ts_rng_set_state(before);
    opts.rng = before;
    y = ts_scaled_dot_product_attention_ex(in[0], in[1], in[2], &lse, &opts);
    OK(ts_scaled_dot_product_attention_backward(g, TS_NONE, in[0], in[1], in[2], y, lse, &opts,
                                                wanted));
    for (int i = 0; i < 3; i++)
        ck_assert_double_eq(distance(grads[i], direct[i]), 0);
}

TS_TEST(without_dropout_no_random_numbers_are_drawn)
{
    TS_SCOPE;
    ts_tensor *q = drawn(TS_F32, 1, 1, 3, 4);
    uint64_t offset = ts_rng_get_state().offset;
    OK(ts_scaled_dot_product_attention(q, q, q));
    ck_assert_uint_eq(ts_rng_get_state().offset, offset);
}

typedef struct setup {
    ts_attention_opts opts;
} setup;

static ts_status part_run(void *ctx, ts_tensor *const *x, int n, ts_tensor **y, int m)
{
    const setup *s = ctx;
    (void)n, (void)m;
    return TS_STATUS_OF(
        y[0] = ts_keep(ts_scaled_dot_product_attention_ex(x[0], x[1], x[2], NULL, &s->opts)));
}

TS_TEST(a_recomputed_part_has_the_same_dropout_mask)
{
    TS_SCOPE;
    setup s = {{.size = sizeof s.opts, .causal = true, .dropout_p = 0.5}};
    ts_tensor *in[3], *grads[2][3], *y;
    for (int i = 0; i < 3; i++)
        in[i] = leaf(drawn(TS_F32, 1, 2, 20, 8));
    for (int again = 0; again < 2; again++) {
        ts_manual_seed(3);
        OK(again ? ts_recompute(part_run, &s, in, 3, &y, 1) : part_run(&s, in, 3, &y, 1));
        OK(ts_grad_of(ts_sum(ts_square(y)), TS_NONE, in, 3, grads[again], NULL));
    }
    for (int i = 0; i < 3; i++)
        ck_assert_double_eq(distance(grads[0][i], grads[1][i]), 0);
}

/** The gradient of the query, by a recorded backward. */
static ts_status query_gradient(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    TS_SCOPE;
    (void)n, (void)m;
    const setup *s = ctx;
    ts_tensor *q = leaf(in[0]),
              *y = ts_scaled_dot_product_attention_ex(q, in[1], in[1], NULL, &s->opts), *g;
    TS_TRY(y);
    TS_TRY(ts_grad_of(ts_sum(ts_square(y)), TS_NONE, &q, 1, &g, NULL));
    return TS_STATUS_OF(out[0] = ts_keep(g));
}

TS_TEST(a_replay_has_the_dropout_mask_of_a_call_at_its_generator_state)
{
    TS_SCOPE;
    setup s = {{.size = sizeof s.opts, .dropout_p = 0.5}};
    ts_tensor *in[] = {drawn(TS_F32, 1, 2, 20, 8), drawn(TS_F32, 1, 2, 20, 8)}, *recorded, *called,
              *replayed;
    ts_graph *graph;
    ts_rng_state place = {5, 40};
    OK(ts_trace(query_gradient, &s, in, 2, &recorded, 1, &graph));
    ts_rng_set_state(place);
    OK(query_gradient(&s, in, 2, &called, 1));
    ts_rng_set_state(place);
    OK(ts_replay(graph, in, 2, &replayed, 1));
    ck_assert_double_eq(distance(called, replayed), 0);
    ck_assert_double_gt(distance(called, recorded), 0);
    ts_graph_free(graph);
}

TS_TEST(memory_grows_with_rows_not_with_pairs)
{
    TS_SCOPE;
    enum { LONG = 4096 };
    ts_tensor *in[] = {drawn(TS_F32, 1, 1, LONG, 8), drawn(TS_F32, 1, 1, LONG, 8),
                       drawn(TS_F32, 1, 1, LONG, 8)},
              *grads[3];
    ts_tensor *g = drawn(TS_F32, 1, 1, LONG, 8);
    ts_attention_opts opts = {.size = sizeof opts, .window = true, .window_left = 900,
                              .window_right = 100, .dropout_p = 0.1, .softcap = 10};
    opts.mask = (ts_tensor *[]){ts_ones(TS_SIZES(LONG), TS_BOOL)};
    ts_memory_stats before = ts_memory_get_stats();
    ts_memory_reset_peak();
    attend(in, g, &opts, grads);
    int64_t grown = ts_memory_get_stats().peak - before.in_use;
    /* far less than one matrix of all pairs, 64 MiB */
    ck_assert_msg(grown < 24 * LONG * 8 * 4, "%lld bytes", (long long)grown);
}

TS_TEST(a_window_is_aligned_at_the_last_key)
{
    TS_SCOPE;
    ts_tensor *q = drawn(TS_F32, 1, 1, 64, 8), *k = drawn(TS_F32, 1, 1, 5000, 8);
    ts_attention_opts opts = {
        .size = sizeof opts, .window = true, .window_left = 10, .window_right = 0};
    ts_tensor *y = ts_scaled_dot_product_attention_ex(q, k, k, NULL, &opts);
    ts_tensor *last = ts_narrow(k, 2, 5000 - 64 - 10, 64 + 10);
    ck_assert_double_eq(distance(y, ts_scaled_dot_product_attention_ex(q, last, last, NULL, &opts)),
                        0);
}

TS_TEST(options_of_an_older_size_are_read_and_others_refused)
{
    TS_SCOPE;
    ts_tensor *q = drawn(TS_F32, 1, 2, 9, 8);
    ts_attention_opts all = {.size = offsetof(ts_attention_opts, mask),
                             .causal = true,
                             .softcap = 0.5},
                      now = {.size = sizeof now, .causal = true};
    ck_assert_double_eq(distance(ts_scaled_dot_product_attention_ex(q, q, q, NULL, &all),
                                 ts_scaled_dot_product_attention_ex(q, q, q, NULL, &now)), 0);
    all.size = sizeof all + 8;
    ck_assert_ptr_null(ts_scaled_dot_product_attention_ex(q, q, q, NULL, &all));
    ck_assert_int_eq(ts_error_code(), TS_ERR_VALUE);
    ts_error_clear();
}

TS_TEST(a_tensor_of_the_options_that_failed_fails_the_call)
{
    TS_SCOPE;
    ts_tensor *q = drawn(TS_F32, 1, 1, 4, 4), *absent = TS_NONE;
    ts_tensor *failed = ts_reshape(q, TS_SIZES(5)), *grads[3];
    ts_tensor **wanted[] = {&grads[0], &grads[1], &grads[2]};
    ts_attention_opts masked = {.size = sizeof masked, .mask = &failed},
                      packed = {.size = sizeof packed, .cu_seqlens = (ts_tensor *[]){q, failed}};
    ck_assert_ptr_null(ts_scaled_dot_product_attention_ex(q, q, q, NULL, &masked));
    ck_assert_int_eq(ts_error_code(), TS_ERR_SHAPE); /* the failure of reshape */
    ck_assert_int_eq(
        ts_scaled_dot_product_attention_backward(q, TS_NONE, q, q, q, q, q, &masked, wanted),
        TS_ERR_SHAPE);
    ts_error_clear();
    ck_assert_ptr_null(ts_scaled_dot_product_attention_ex(q, q, q, NULL, &packed));
    ck_assert_int_eq(ts_error_code(), TS_ERR_NULL);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "argument 'cu_seqlens'"));
    ts_error_clear();
    masked.mask = &absent;
    OK(ts_scaled_dot_product_attention_ex(q, q, q, NULL, &masked));
}

TS_TEST(shapes_on_meta_are_those_of_the_cpu)
{
    TS_SCOPE;
    ts_tensor *q = ts_empty_on(TS_SIZES(1, 4, 21, 8), TS_BF16, TS_DEVICE_META),
              *k = ts_empty_on(TS_SIZES(1, 2, 30, 8), TS_BF16, TS_DEVICE_META);
    ts_tensor *bounds = ts_empty_on(TS_SIZES(3), TS_I32, TS_DEVICE_META), *lse;
    ts_attention_opts opts = {.size = sizeof opts, .cu_seqlens = (ts_tensor *[]){bounds, bounds},
                              .max_seqlen_q = 15, .max_seqlen_k = 20,
                              .dropout_p = 0.5};
    ts_tensor *y = ts_scaled_dot_product_attention_ex(q, k, k, &lse, &opts);
    OK(y);
    ck_assert(ts_sizes(y)[2] == 21 && ts_sizes(y)[3] == 8 && ts_dtype_of(y) == TS_BF16);
    ck_assert(ts_ndim(lse) == 3 && ts_sizes(lse)[2] == 21 && ts_dtype_of(lse) == TS_F32);
}

TS_TEST(autocast_lowers_operands_and_an_added_mask)
{
    TS_SCOPE;
    ts_tensor *q = drawn(TS_F32, 1, 2, 9, 8), *mask = drawn(TS_F32, 1, 1, 9, 9), *y = NULL;
    ts_attention_opts opts = {.size = sizeof opts, .mask = &mask};
    {
        TS_AUTOCAST(TS_DEVICE_CPU, TS_BF16);
        OK(y = ts_keep(ts_scaled_dot_product_attention_ex(q, q, q, NULL, &opts)));
    }
    ck_assert_int_eq(ts_dtype_of(y), TS_BF16);
    mask = ts_to(mask, TS_BF16);
    ts_tensor *low = ts_to(q, TS_BF16);
    ck_assert_double_eq(distance(y, ts_scaled_dot_product_attention_ex(low, low, low, NULL, &opts)),
                        0);
}

static char paths[4][512];
static int npaths;
static void keep_path(void *payload, const char *topic, const char *line)
{
    (void)payload;
    if (strcmp(topic, "attention") == 0 && npaths < 4)
        snprintf(paths[npaths++], sizeof paths[0], "%s", line);
}

TS_TEST(the_log_names_the_path_of_each_call)
{
    TS_SCOPE;
    ts_tensor *x = leaf(drawn(TS_F32, 1, 2, 5, 8));
    ts_attention_opts causal = {.size = sizeof causal, .causal = true, .softcap = 2};
    OK(ts_scaled_dot_product_attention_ex(x, x, x, NULL, &causal)); /* no log callback is set */
    ts_log_set_callback(keep_path, NULL);
    ts_tensor *y = ts_scaled_dot_product_attention_ex(x, x, x, NULL, NULL);
    OK(y);
    OK(ts_scaled_dot_product_attention_ex(x, x, x, NULL, &causal));
    OK(ts_backward(ts_sum(y)));
    ts_log_set_callback(NULL, NULL);
    ck_assert_int_eq(npaths, 3);
    ck_assert_ptr_nonnull(
        strstr(paths[0], "cpu, tiles in f32: scaled_dot_product_attention((1, 2, 5, 8) f32"));
    ck_assert_ptr_nonnull(strstr(
        paths[1], "cpu, tiles in f32, scores masked or capped: scaled_dot_product_attention("));
    ck_assert_ptr_nonnull(
        strstr(paths[2], "cpu, tiles in f32: scaled_dot_product_attention_backward("));
}
