/** @file recompute.c  ts_recompute(): the same gradients as without it, and less memory. */
// SPDX-License-Identifier: MIT
#include "core/testing.h"
#include "tests/autograd/common.h"
#include "tests/blocks.h"

enum { WIDTH = 16, BATCH = 8 };

/** Part of a network: `layers` times a product, an activation and dropout. */
typedef struct part {
    ts_tensor *weights[32];
    int layers, runs;
    double dropout;
    int change; /* fault from the second run on: 1: another op, 2: other sizes, 3: one op more,
                   4: an error, 5: another output; 0: none */
} part;

static ts_status part_run(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    part *p = ctx;
    ck_assert(n == 1 && m == 1);
    int change = p->runs++ ? p->change : 0;
    ts_tensor *x = in[0];
    for (int i = 0; i < p->layers; i++) {
        x = ts_mm(x, p->weights[i]);
        x = change == 1 ? ts_sigmoid(x) : ts_tanh(x);
        if (p->dropout > 0)
            x = ts_dropout(x, p->dropout, true);
    }
    if (change == 2) {
        x = ts_cat((ts_tensor *[]){x, x}, 2, 0);
        x = ts_narrow(ts_mul(x, x), 0, 0, BATCH);
    } else {
        x = ts_mul(x, x);
    }
    if (change == 3)
        x = ts_exp(x);
    if (change == 4)
        return ts_error_set(TS_ERR_STATE, "not again");
    out[0] = change == 5 ? ts_to(x, TS_F32) : x;
    return TS_OK;
}

static part part_new(int layers, double dropout)
{
    part p = {.layers = layers, .dropout = dropout};
    for (int i = 0; i < layers; i++)
        p.weights[i] = parameter(WIDTH, WIDTH);
    return p;
}

/** Runs part a, then part b, with ts_recompute() if `again`, and stores the gradients of x and of
 *  all weights in `grads`. create: create_graph. */
static void two_parts(part *a, part *b, ts_tensor *x, bool again, uint64_t seed, ts_tensor **grads,
                      bool create)
{
    ts_manual_seed(seed);
    ts_tensor *y, *z, *wrt[65];
    int n = 0;
    wrt[n++] = x;
    for (int i = 0; i < a->layers; i++)
        wrt[n++] = a->weights[i];
    for (int i = 0; i < b->layers; i++)
        wrt[n++] = b->weights[i];
    ts_tensor *h = ts_mul_scalar(x, 1.5);
    OK(again ? ts_recompute(part_run, a, &h, 1, &y, 1) : part_run(a, &h, 1, &y, 1));
    OK(again ? ts_recompute(part_run, b, &y, 1, &z, 1) : part_run(b, &y, 1, &z, 1));
    uint64_t offset = ts_rng_get_state().offset;
    ts_backward_opts opts = {.size = sizeof opts, .create_graph = create};
    OK(ts_grad_of(ts_sum(z), TS_NONE, wrt, n, grads, &opts));
    ck_assert_uint_eq(ts_rng_get_state().offset, offset); /* the random stream continues from its
                                                             position */
}

TS_TEST(recomputation_with_dropout_leaves_gradients_bit_identical)
{
    for (int i = 0; i < 2; i++) {
        TS_SCOPE;
        part a = part_new(3, i ? 0.3 : 0), b = part_new(2, i ? 0.5 : 0);
        ts_tensor *x = parameter(BATCH, WIDTH), *g[2][8];
        two_parts(&a, &b, x, false, 7, g[0], false);
        two_parts(&a, &b, x, true, 7, g[1], false);
        ck_assert(a.runs == 3 && b.runs == 3);
        for (int k = 0; k < 6; k++)
            ck_assert_double_eq(distance(g[0][k], g[1][k]), 0);
    }
}

TS_TEST(leaves_of_the_context_get_gradients_and_hooks_run_once)
{
    TS_SCOPE;
    part a = part_new(2, 0);
    ts_tensor *x = ts_detach(parameter(BATCH, WIDTH)), *y; /* no input requires grad */
    OK(ts_recompute(part_run, &a, &x, 1, &y, 1));
    ck_assert(ts_requires_grad(y));
    OK(ts_backward(ts_sum(y)));
    ts_tensor *g[2] = {ts_clone(ts_grad(a.weights[0])), ts_clone(ts_grad(a.weights[1]))};
    ts_zero_grad(a.weights[0]), ts_zero_grad(a.weights[1]);
    OK(part_run(&a, &x, 1, &y, 1));
    OK(ts_backward(ts_sum(y)));
    for (int k = 0; k < 2; k++)
        ck_assert_double_eq(distance(g[k], ts_grad(a.weights[k])), 0);
}

TS_TEST(recomputation_leaves_a_second_backward_bit_identical)
{
    TS_SCOPE;
    part a = part_new(2, 0.2), b = part_new(1, 0);
    ts_tensor *x = parameter(BATCH, WIDTH), *g[2][8], *gg[2];
    for (int i = 0; i < 2; i++) {
        two_parts(&a, &b, x, i, 3, g[i], true);
        OK(ts_grad_of(ts_sum(ts_mul(g[i][0], ts_mul(g[i][0], g[i][0]))), TS_NONE, &x, 1, &gg[i],
                      NULL));
    }
    ck_assert_double_gt(value(ts_max(ts_abs(gg[0]))), 1e-6);
    ck_assert_double_le(distance(gg[0], gg[1]), 1e-12 * value(ts_max(ts_abs(gg[0]))));
}

TS_TEST(a_retained_graph_computes_again_for_each_backward)
{
    TS_SCOPE;
    part a = part_new(2, 0.2);
    ts_tensor *x = parameter(BATCH, WIDTH), *y, *first;
    OK(ts_recompute(part_run, &a, &x, 1, &y, 1));
    ts_backward_opts retain = {.size = sizeof retain, .retain_graph = true};
    OK(ts_backward_ex(y, ts_ones_like(y), &retain));
    ck_assert_int_eq(a.runs, 2);
    first = ts_clone(ts_grad(x));
    ts_zero_grad(x);
    retain.retain_graph = false;
    OK(ts_backward_ex(y, ts_ones_like(y), &retain));
    ck_assert_int_eq(a.runs, 3);
    ck_assert_double_eq(distance(first, ts_grad(x)), 0);
    FAILS(TS_ERR_AUTOGRAD, ts_backward_ex(y, ts_ones_like(y), &retain));
    SAYS("second time");
}

/** A recomputed function that calls other recomputed functions. */
typedef struct nest {
    part *parts;
    int n;
    struct nest *inner; /* n inner nests in place of parts; NULL: parts */
} nest;

static ts_status nest_run(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)n, (void)m;
    nest *s = ctx;
    ts_tensor *x = ts_sin(in[0]);
    for (int i = 0; i < s->n; i++) {
        ts_tensor *y;
        TS_TRY(s->inner ? ts_recompute(nest_run, s->inner + i, &x, 1, &y, 1)
                        : ts_recompute(part_run, s->parts + i, &x, 1, &y, 1));
        x = ts_mul(ts_cos(y), x);
    }
    out[0] = x;
    return TS_OK;
}

TS_TEST(parts_inside_parts_give_the_same_gradients)
{
    TS_SCOPE;
    part parts[4];
    for (int i = 0; i < 4; i++)
        parts[i] = part_new(2, 0.25);
    nest inner[2] = {{parts, 2, NULL}, {parts + 2, 2, NULL}}, outer = {NULL, 2, inner};
    ts_tensor *x = parameter(BATCH, WIDTH), *y, *g[2][9], *gg[2], *wrt[9] = {x};
    for (int i = 0; i < 8; i++)
        wrt[i + 1] = parts[i / 2].weights[i % 2];
    for (int i = 0; i < 2; i++) {
        ts_manual_seed(5);
        if (i) {
            OK(ts_recompute(nest_run, &outer, &x, 1, &y, 1));
        } else { /* the same ops, without recomputation */
            y = ts_sin(x);
            for (int k = 0; k < 2; k++) {
                ts_tensor *z = ts_sin(y), *w;
                for (int j = 0; j < 2; j++) {
                    OK(part_run(&parts[2 * k + j], &z, 1, &w, 1));
                    z = ts_mul(ts_cos(w), z);
                }
                y = ts_mul(ts_cos(z), y);
            }
        }
        ts_backward_opts create = {.size = sizeof create, .create_graph = true};
        OK(ts_grad_of(ts_sum(y), TS_NONE, wrt, 9, g[i], &create));
        OK(ts_grad_of(ts_sum(ts_mul(g[i][0], g[i][1] == TS_NONE ? x : ts_sum(g[i][1]))),
                      TS_NONE, &x, 1, &gg[i], NULL));
    }
    for (int k = 0; k < 9; k++)
        ck_assert_double_eq(distance(g[0][k], g[1][k]), 0);
    ck_assert_double_le(distance(gg[0], gg[1]), 1e-12 * value(ts_max(ts_abs(gg[0]))));
}

TS_TEST(a_change_between_the_two_runs_is_an_error_that_names_it)
{
    static const struct {
        ts_status status;
        const char *says;
    } cases[] = {{TS_ERR_STATE, "the second run called 'sigmoid' where the first called 'tanh'"},
                 {TS_ERR_STATE, "a tensor that is saved for backward is (16, 16) f64; "
                                "in the first run it was (8, 16) f64"},
                 {TS_ERR_STATE, "the second run saved 5 tensors for backward, the first run 4"},
                 {TS_ERR_STATE, "not again"},
                 {TS_ERR_STATE, "an output is (8, 16) f32; in the first run it was (8, 16) f64"}};
    for (int i = 0; i < 5; i++) {
        TS_SCOPE;
        part a = part_new(1, 0);
        a.change = i + 1;
        ts_tensor *x = parameter(BATCH, WIDTH), *y;
        OK(ts_recompute(part_run, &a, &x, 1, &y, 1));
        FAILS(cases[i].status, ts_backward(ts_sum(y)));
        SAYS(cases[i].says);
        ck_assert_ptr_eq(ts_grad(x), TS_NONE);
        ck_assert(ts_grad_enabled());
    }
}

static ts_status writes_input(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    out[0] = ts_mul(ts_mul_scalar_(in[0], 2), in[0]);
    return TS_OK;
}

static ts_status backward_inside(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    out[0] = ts_mul(in[0], in[0]);
    return ts_backward(ts_sum(out[0]));
}

TS_TEST(wrong_use_is_named)
{
    TS_SCOPE;
    part a = part_new(1, 0);
    ts_tensor *x = leaf(3), *y, *in = ts_mul_scalar(x, 1);
    FAILS(TS_ERR_AUTOGRAD, ts_recompute(writes_input, NULL, &in, 1, &y, 1));
    SAYS("wrote to input 0");
    ck_assert_ptr_null(y);
    in = x;
    FAILS(TS_ERR_AUTOGRAD, ts_recompute(backward_inside, NULL, &in, 1, &y, 1));
    SAYS("before the function was done");
    FAILS(TS_ERR_NULL, ts_recompute(NULL, NULL, &in, 1, &y, 1));
    FAILS(TS_ERR_VALUE,
          ts_recompute_ex(part_run, &a, &in, 1, &y, 1, &(ts_recompute_opts){.size = 1}));
    in = NULL;
    FAILS(TS_ERR_NULL, ts_recompute(part_run, &a, &in, 1, &y, 1));
    /* an input that was written before the recomputation is an error */
    x = ts_normal(TS_SIZES(BATCH, WIDTH), 0, 1, TS_F64);
    OK(ts_recompute(part_run, &a, &x, 1, &y, 1));
    ts_mul_scalar_(x, 2);
    FAILS(TS_ERR_AUTOGRAD, ts_backward(ts_sum(y)));
    SAYS("input 0");
    SAYS("last by 'mul'");
    OK(ts_recompute(part_run, &a, &x, 1, &y, 1));
    {
        TS_NO_GRAD;
        ts_mul_scalar_(a.weights[0], 2);
    }
    x = parameter(BATCH, WIDTH);
    OK(ts_recompute(part_run, &a, &x, 1, &y, 1));
    {
        TS_NO_GRAD;
        ts_mul_scalar_(a.weights[0], 2);
    }
    FAILS(TS_ERR_AUTOGRAD, ts_backward(ts_sum(y)));
    SAYS("written in place since");
    in = ts_mul_scalar(x, 1);
    OK(ts_recompute(part_run, &a, &in, 1, &y, 1));
    FAILS(TS_ERR_AUTOGRAD, ts_mul_scalar_(in, 2)); /* the part keeps an alias */
    SAYS("shares its memory");
}

static int released;
static void count_release(void *ctx) { (void)ctx, released++; }

TS_TEST(the_context_ends_with_the_graph_or_at_once)
{
    part a;
    ts_recompute_opts opts = {.size = sizeof opts, .release = count_release};
    TS_SCOPE;
    a = part_new(1, 0);
    ts_tensor *y;
    {
        TS_SCOPE;
        ts_tensor *x = parameter(BATCH, WIDTH);
        OK(ts_recompute_ex(part_run, &a, &x, 1, &y, 1, &opts));
        OK(ts_backward(ts_sum(y)));
        ck_assert_int_eq(released, 1); /* recomputation is impossible: the graph has been freed */
        OK(ts_recompute_ex(part_run, &a, &x, 1, &y, 1, &opts));
        ck_assert_int_eq(released, 1);
    }
    ck_assert_int_eq(released, 2);
    TS_NO_GRAD;
    ts_tensor *x = ts_ones(TS_SIZES(BATCH, WIDTH), TS_F64);
    OK(ts_recompute_ex(part_run, &a, &x, 1, &y, 1, &opts));
    ck_assert(released == 3 && !ts_requires_grad(y));
}

/** Peak memory in bytes, above the bytes in use at the start, of forward and backward of n parts.
 *  again: with ts_recompute(). */
static int64_t peak(part *parts, int n, bool again)
{
    TS_SCOPE;
    ts_tensor *x = ts_ones(TS_SIZES(512, WIDTH), TS_F64);
    int64_t before = ts_memory_get_stats().in_use;
    ts_memory_reset_peak();
    for (int i = 0; i < n; i++) {
        TS_SCOPE;
        ts_tensor *y;
        OK(again ? ts_recompute(part_run, &parts[i], &x, 1, &y, 1)
                 : part_run(&parts[i], &x, 1, &y, 1));
        x = ts_keep(y);
    }
    OK(ts_backward(ts_sum(x)));
    return ts_memory_get_stats().peak - before;
}

TS_TEST(recomputation_reduces_memory_to_the_square_root)
{
    enum { SEGMENTS = 16 };
    TS_SCOPE;
    part parts[SEGMENTS];
    for (int i = 0; i < SEGMENTS; i++)
        parts[i] = part_new(SEGMENTS, 0);
    peak(parts, SEGMENTS, false); /* allocates the gradients, which stay */
    int64_t all = peak(parts, SEGMENTS, false), less = peak(parts, SEGMENTS, true);
    /* 256 layers keep a tensor each; 16 parts of 16 keep 16 inputs and, one at a time, 16 layers.
     * The other memory of a backward is the same for both, except for a few tensors at the border
     * of a part. */
    int64_t tensor = 512 * WIDTH * (int64_t)sizeof(double), layers = SEGMENTS * SEGMENTS;
    ck_assert_msg(all - less >= (layers - 2 * SEGMENTS - 4) * tensor,
                  "%lld of %lld bytes, %lld a tensor", (long long)less, (long long)all,
                  (long long)tensor);
}

TS_TEST(a_chain_of_1000_recomputed_parts_runs)
{
    int64_t before[2];
    for (int round = 0; round < 2; round++) {
        {
            TS_SCOPE;
            part a = part_new(1, 0.1);
            ts_tensor *x = parameter(BATCH, WIDTH), *y = x;
            for (int i = 0; i < 1000; i++)
                OK(ts_recompute(part_run, &a, &y, 1, &y, 1));
            OK(ts_backward(ts_sum(y)));
            ck_assert_int_eq(a.runs, 2000);
        }
        before[round] = ts_memory_get_stats().in_use;
    }
    ck_assert_int_eq(before[0], before[1]);
}

static int failing_after;
static bool fail_alloc(size_t bytes) { (void)bytes; return failing_after-- == 0; }

TS_TEST(out_of_memory_in_a_part_is_an_ordinary_error)
{
    if (!blocks_from_malloc())
        TS_SKIP(TOO_LATE);
    int failures = 0;
    TS_SCOPE;
    part parts[2] = {part_new(1, 0.5), part_new(1, 0)};
    nest outer = {parts, 2, NULL};
    for (int n = 0; n < 2000; n++) {
        TS_SCOPE;
        ts_tensor *x = parameter(BATCH, WIDTH), *y = NULL;
        ts_error_clear();
        failing_after = n;
        ts_alloc_fault = fail_alloc;
        ts_status s = ts_recompute(nest_run, &outer, &x, 1, &y, 1);
        if (s == TS_OK)
            s = ts_backward(ts_sum(y));
        ts_alloc_fault = NULL;
        if (s == TS_OK)
            break;
        failures++;
        ck_assert_int_eq(s, TS_ERR_MEMORY);
        ck_assert(ts_grad_enabled() && ts_tls.tape == NULL);
    }
    ck_assert_int_gt(failures, 50);
    ck_assert_int_lt(failures, 1999);
}
