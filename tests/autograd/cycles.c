/** @file cycles.c  Reference cycles are freed with the last handle. */
// SPDX-License-Identifier: MIT
#include "tests/autograd/common.h"

static const ts_backward_opts create = {.size = sizeof create, .create_graph = true};

static const ts_function function = {
    .size = sizeof function, .name = "square",
    .forward = square_forward, .backward = square_backward};

static ts_status part(void *w, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)n, (void)m;
    out[0] = ts_mul(ts_tanh(ts_mul(in[0], w)), in[0]);
    return TS_STATUS_OF(out[0]);
}

static ts_tensor *same(void *payload, ts_tensor *g) { (void)payload; return g; }

enum { WAYS = 13 };

/** Builds a reference cycle of tensors, nodes, gradients or hooks. The end of the scope releases
 *  its last handles. */
static void build(int way)
{
    TS_SCOPE;
    ts_tensor *x = ts_set_requires_grad(ts_ones(TS_SIZES(300), TS_F64), true), *y = x, *parts[300];
    ts_tensor *w = ts_set_requires_grad(ts_ones(TS_SIZES(300), TS_F64), true);
    switch (way) {
    case 0: OK(y = ts_mul(x, ts_mul(x, x))); break;
    case 1: OK(ts_function_apply(&function, NULL, &x, 1, &y, 1)); break;
    case 2: OK(ts_recompute(part, w, &x, 1, &y, 1)); break;
    case 3: /* ts_retain_grad() of an intermediate result */
        OK(y = ts_mul(x, x));
        OK(ts_retain_grad(y));
        OK(y = ts_mul(y, y));
        break;
    case 4: /* in-place ops overwrite a saved tensor */
        OK(y = ts_mul_scalar(x, 2));
        OK(ts_mul_(y, y));
        OK(ts_sin_(y));
        break;
    case 5: /* a result that its node saves */
        OK(y = ts_exp_(ts_mul_scalar(x, 0.5)));
        break;
    case 6:
        OK(ts_unbind(x, 0, parts, 300));
        OK(y = ts_mul(ts_stack(parts, 300, 0), x));
        break;
    case 7: /* a hook whose user data is the tensor */
        OK(y = ts_mul(x, x));
        OK(ts_register_hook(y, same, y, NULL));
        OK(ts_register_hook(x, same, x, NULL));
        break;
    case 8: OK(ts_set_grad(x, x)); return;
    case 9: /* a gradient set by the user whose history contains the leaf */
        OK(ts_set_grad(x, ts_mul(x, x)));
        return;
    case 10: OK(y = ts_mish_(ts_mul(x, x))); break;
    case 11: /* an input of a recomputed part keeps its gradient */
        OK(parts[0] = ts_mul_scalar(x, 2));
        OK(ts_retain_grad(parts[0]));
        OK(ts_recompute(part, w, parts, 1, &y, 1));
        break;
    default: OK(y = ts_matmul(ts_unsqueeze(x, 0), ts_unsqueeze(x, 1)));
    }
    OK(ts_backward_ex(ts_sum(y), TS_NONE, &create));
    OK(ts_backward_ex(ts_sum(ts_square(ts_grad(x))), TS_NONE, &create)); /* adds to x.grad */
}

TS_TEST(reference_cycles_are_freed, .loop = WAYS)
{
    for (int i = 0; i < 3; i++)
        build(_i);
    int64_t before = ts_memory_get_stats().in_use;
    for (int i = 0; i < 50; i++)
        build(_i);
    ck_assert_int_eq(ts_memory_get_stats().in_use, before);
}

/** y += z as a function with a dirty input. */
static ts_status add_forward(ts_function_call *call, void *ctx, ts_tensor *const *in, int n,
                             ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    TS_TRY(ts_function_mark_dirty(call, 0));
    out[0] = in[0];
    return TS_STATUS_OF(ts_add_(in[0], in[1]));
}

static const ts_function adder = {
    .size = sizeof adder, .name = "adder",
    .forward = add_forward, .backward = square_backward};

enum { WRITES = 7 };

/** Writes in place to a tensor that the history of the new value has saved, without a backward. */
static void build_written(int way)
{
    TS_SCOPE;
    ts_tensor *w = ts_set_requires_grad(ts_ones(TS_SIZES(20, 20), TS_F64), true);
    ts_tensor *y = ts_mul_scalar(w, 2), *z = NULL, *out;
    switch (way) {
    case 0: z = ts_mul(y, y); break;
    case 1: z = ts_linear(y, w, TS_NONE); break;
    case 2: /* written before, by an op whose graph does not contain z */
        z = ts_mul(y, y);
        OK(ts_add_(y, w));
        break;
    case 3: /* no history before the write */
        OK(y = ts_ones(TS_SIZES(20, 20), TS_F64));
        OK(z = ts_mul(y, w));
        break;
    case 4: OK(ts_function_apply(&function, NULL, &y, 1, &z, 1)); break;
    case 5:
        OK(z = ts_mul(y, y));
        OK(ts_function_apply(&adder, NULL, (ts_tensor *[]){y, z}, 2, &out, 1));
        return;
    default: /* the rule saves the new value */
        OK(z = ts_mul(y, y));
        OK(ts_mul_(y, z));
        OK(ts_exp_(y));
        return;
    }
    OK(z);
    OK(ts_add_(y, z));
}

TS_TEST(a_write_to_a_tensor_saved_by_its_own_history_leaks_nothing, .loop = WRITES)
{
    for (int i = 0; i < 3; i++)
        build_written(_i);
    int64_t before = ts_memory_get_stats().in_use;
    for (int i = 0; i < 50; i++)
        build_written(_i);
    ck_assert_int_eq(ts_memory_get_stats().in_use, before);
}

TS_TEST(a_tensor_that_was_saved_and_written_can_be_written_again_but_has_no_gradient)
{
    TS_SCOPE;
    ts_tensor *y = ts_mul_scalar(leaf(3), 2), *z = ts_mul(y, y);
    OK(ts_add_(y, z));
    OK(ts_add_(y, z));
    ck_assert_double_eq(value(y), 78);
    FAILS(TS_ERR_AUTOGRAD, ts_backward(y));
    SAYS("written in place since, last by 'add' (version 1, saved at 0)");
}

static ts_tensor *other(void *payload, ts_tensor *g)
{
    return ts_numel(payload) == ts_numel(g) ? payload : g;
}

/** Makes up to MOST tensors of one shape each other's gradients by 30 random operations: set_grad,
 *  backward, hooks, retain_grad. */
static void draw(uint64_t seed)
{
    enum { MOST = 24 };
    static const ts_backward_opts keep = {.size = sizeof keep, .retain_graph = true};
    TS_SCOPE;
    ts_tensor *t[MOST], *g;
    int n = 4;
    for (int i = 0; i < n; i++) {
        OK(t[i] = ts_ones(TS_SIZES(300), TS_F64));
        OK(ts_set_requires_grad(t[i], i > 0));
    }
    for (int step = 0; step < 30; step++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        ts_tensor *a = t[(seed >> 40) % (uint64_t)n], *b = t[(seed >> 50) % (uint64_t)n], *y = NULL;
        bool records = ts_requires_grad(a);
        switch ((seed >> 33) % 8) {
        case 0: OK(ts_set_grad(a, b)); break;
        case 1: y = ts_mul(a, b); break;
        case 2: y = ts_exp(a); break;
        case 3: if (records) OK(ts_backward_ex(a, b, &create)); break;
        case 4: if (records) OK(ts_backward_ex(a, b, &keep)); break;
        case 5: if (records) OK(ts_retain_grad(a)); break;
        case 6: if (records) OK(ts_register_hook(a, other, b, NULL)); break;
        default: if (records) OK(ts_grad_of(a, b, &a, 1, &g, &create));
        }
        if (y && n < MOST)
            t[n++] = y;
    }
}

TS_TEST(tensors_that_are_each_others_gradients_are_freed, .loop = 50)
{
    int64_t before = 0;
    for (int run = 0; run < 100; run++) { /* the first ones fill the free lists */
        if (run == 20)
            before = ts_memory_get_stats().in_use;
        draw((uint64_t)(100 * _i + run % 10));
    }
    ck_assert_int_eq(ts_memory_get_stats().in_use, before);
}

TS_TEST(a_gradient_keeps_values_and_history_in_a_ring)
{
    TS_SCOPE;
    ts_tensor *a = leaf(1), *b = leaf(2), *c = leaf(3), *g;
    OK(ts_set_grad(a, b));
    OK(ts_set_grad(b, c));
    OK(ts_set_grad(c, a)); /* closes the ring: c gets an alias of a */
    ck_assert_ptr_eq(ts_grad(ts_grad(a)), c);
    ck_assert_double_eq(value(ts_grad(c)), 1);
    ck_assert_ptr_eq(ts_grad(ts_grad(c)), TS_NONE);
    OK(ts_grad_of(ts_mul(ts_grad(c), ts_grad(c)), TS_NONE, &a, 1, &g, NULL));
    ck_assert_double_eq(value(g), 2);
}

TS_TEST(releasing_a_leaf_frees_its_gradient_and_the_gradients_graph)
{
    TS_SCOPE;
    ts_tensor *x = leaf(3), *g, *gg;
    OK(ts_backward_ex(ts_mul(ts_mul(x, x), x), TS_NONE, &create));
    OK(g = ts_grad(x)); /* 3 x², and it still depends on x */
    OK(ts_grad_of(g, TS_NONE, &x, 1, &gg, &create));
    ck_assert_double_eq(value(gg), 18);
    ts_zero_grad(x);
    OK(ts_backward(gg));
    ck_assert_double_eq(value(ts_grad(x)), 6);
}
