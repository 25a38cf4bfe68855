/** @file function.c  Functions with a backward of their own. */
// SPDX-License-Identifier: MIT
#include "core/testing.h"
#include "tests/autograd/common.h"
#include "tests/blocks.h"

static int released;
static void count_release(void *ctx) { (void)ctx, released++; }

/** Fault that the function y = x0² x1 makes in its forward or backward. */
typedef enum fault {
    NONE, FORWARD_FAILS, FORWARD_SILENT, NO_OUTPUT, ABSENT_OUTPUT, UNMARKED_WRITE, BACKWARD_FAILS,
    NO_GRADIENT, WRONG_SIZES,
    WRONG_DTYPE, SAVE_LATE
} fault;

static ts_status cubic_forward(ts_function_call *call, void *ctx, ts_tensor *const *in, int n,
                               ts_tensor **out, int m)
{
    const fault *f = ctx;
    ck_assert(n == 2 && m == 1 && !ts_grad_enabled());
    out[0] = ts_mul(ts_mul(in[0], in[0]), in[1]);
    if (*f == FORWARD_FAILS)
        return TS_STATUS_OF(ts_add(in[0], ts_ones(TS_SIZES(2, 2, 2), TS_I64)) ? ts_mm(in[0], in[0])
                            : NULL);
    if (*f == FORWARD_SILENT)
        return TS_ERR_STATE;
    if (*f == NO_OUTPUT)
        out[0] = NULL;
    if (*f == ABSENT_OUTPUT)
        out[0] = TS_NONE;
    if (*f == UNMARKED_WRITE)
        ts_mul_scalar_(in[1], 2);
    return ts_function_save(call, in, n);
}

static ts_status cubic_backward(ts_function_call *call, void *ctx, ts_tensor *const *grads, int m,
                                ts_tensor **out, int n)
{
    const fault *f = ctx;
    ck_assert(n == 2 && m == 1);
    if (*f == BACKWARD_FAILS)
        return ts_error_set(TS_ERR_STATE, "no today");
    if (*f == SAVE_LATE)
        return ts_function_save(call, grads, 1);
    ts_tensor *x = ts_function_saved_tensor(call, 0), *w = ts_function_saved_tensor(call, 1);
    if (ts_function_needs(call, 0) && *f != NO_GRADIENT)
        out[0] = ts_mul(grads[0], ts_mul_scalar(ts_mul(x, w), 2));
    if (ts_function_needs(call, 1))
        out[1] = ts_mul(grads[0], ts_mul(x, x));
    if (*f == WRONG_SIZES)
        out[0] = ts_ones(TS_SIZES(3), TS_F64);
    if (*f == WRONG_DTYPE)
        out[0] = ts_to(out[0], TS_F32);
    return TS_OK;
}

static const ts_function cubic = {.size = sizeof(ts_function),
                                  .name = "cubic",
                                  .forward = cubic_forward,
                                  .backward = cubic_backward,
                                  .release = count_release};

TS_TEST(a_function_runs_forward_and_backward_twice)
{
    fault none = NONE;
    {
        TS_SCOPE;
        ts_tensor *in[2] = {leaf(3), leaf(5)}, *y, *g[2], *gg[2];
        OK(ts_function_apply(&cubic, &none, in, 2, &y, 1));
        ck_assert(value(y) == 45 && ts_requires_grad(y) && !ts_is_leaf(y));
        ck_assert_str_eq(ts_node_name(ts_grad_node(y)), "cubic");
        char text[64];
        ts_node_describe(ts_grad_node(y), text, sizeof text);
        ck_assert_str_eq(text, "cubic([(1) f64, (1) f64])");
        ts_backward_opts create = {.size = sizeof create, .create_graph = true};
        OK(ts_grad_of(ts_mul_scalar(y, 2), TS_NONE, in, 2, g, &create));
        ck_assert(value(g[0]) == 60 && value(g[1]) == 18);
        OK(ts_grad_of(g[0], TS_NONE, in, 2, gg, &create)); /* 4 x0 x1 */
        ck_assert(value(gg[0]) == 20 && value(gg[1]) == 12);
        ck_assert_int_eq(released, 0);
    }
    ck_assert_int_eq(released, 1); /* with the graph */
}

TS_TEST(a_function_is_recorded_only_for_inputs_that_require_grad)
{
    fault none = NONE;
    TS_SCOPE;
    ts_tensor *in[2] = {ts_detach(leaf(3)), leaf(5)}, *y;
    OK(ts_function_apply(&cubic, &none, in, 2, &y, 1));
    OK(ts_backward(y));
    ck_assert_double_eq(value(ts_grad(in[1])), 9);
    FAILS(TS_ERR_AUTOGRAD, ts_backward(y));
    SAYS("cubic");
    SAYS("second time");
    in[1] = ts_detach(in[1]);
    OK(ts_function_apply(&cubic, &none, in, 2, &y, 1));
    ck_assert(!ts_requires_grad(y) && released == 1);
    in[1] = leaf(5);
    {
        TS_NO_GRAD;
        OK(ts_function_apply(&cubic, &none, in, 2, &y, 1));
        ck_assert(!ts_requires_grad(y) && released == 2);
    }
    OK(ts_function_apply(&cubic, &none, in, 2, &y, 1));
    ts_mul_scalar_(in[0], 2); /* writes a saved tensor */
    FAILS(TS_ERR_AUTOGRAD, ts_backward(y));
    SAYS("cubic");
    SAYS("saved tensor 0");
    SAYS("last by 'mul'");
}

TS_TEST(errors_of_a_function_name_function_and_cause)
{
    static const struct {
        fault fault;
        bool forward;
        ts_status status;
        const char *says;
    } cases[] = {{FORWARD_FAILS, true, TS_ERR_SHAPE, "in forward: "},
                 {FORWARD_SILENT, true, TS_ERR_STATE, "forward failed without recording an error"},
                 {NO_OUTPUT, true, TS_ERR_NULL, "forward gave no output 0"},
                 {ABSENT_OUTPUT, true, TS_ERR_NULL, "TS_NONE for output 0"},
                 {UNMARKED_WRITE, true, TS_ERR_AUTOGRAD,
                  "wrote to input 1 in place without marking"},
                 {BACKWARD_FAILS, false, TS_ERR_STATE, "in backward: no today"},
                 {NO_GRADIENT, false, TS_ERR_NULL, "backward gave no gradient for input 0"},
                 {WRONG_SIZES, false, TS_ERR_SHAPE,
                  "backward's gradient of input 0: expected sizes (1), got (3)"},
                 {WRONG_DTYPE, false, TS_ERR_DTYPE,
                  "backward's gradient of input 0: expected dtype f64, got f32"},
                 {SAVE_LATE, false, TS_ERR_STATE,
                  "ts_function_save may be called in forward only"}};
    TS_SCOPE;
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        fault f = cases[i].fault;
        ts_tensor *in[2] = {leaf(3), leaf(5)}, *y = in[0];
        if (cases[i].forward) {
            FAILS(cases[i].status, ts_function_apply(&cubic, &f, in, 2, &y, 1));
            ck_assert_ptr_null(y);
            ck_assert_int_eq(released, i + 1);
        } else {
            OK(ts_function_apply(&cubic, &f, in, 2, &y, 1));
            FAILS(cases[i].status, ts_backward(y));
            ck_assert_ptr_eq(ts_grad(in[1]), TS_NONE);
            ts_drop(y);
        }
        SAYS("cubic: ");
        SAYS(cases[i].says);
        ck_assert_str_eq(ts_error_op(), "cubic");
        ts_error_clear();
    }
    fault none = NONE;
    ts_tensor *in[2] = {leaf(3), NULL}, *y, *many[300];
    FAILS(TS_ERR_NULL, ts_function_apply(&cubic, &none, in, 2, &y, 1));
    ts_function odd = cubic;
    odd.backward = NULL;
    FAILS(TS_ERR_NULL, ts_function_apply(&odd, &none, in, 1, &y, 1));
    FAILS(TS_ERR_NULL, ts_function_apply(NULL, &none, in, 1, &y, 1));
    odd.size = sizeof odd + 8;
    FAILS(TS_ERR_VALUE, ts_function_apply(&odd, &none, in, 1, &y, 1));
    FAILS(TS_ERR_VALUE, ts_function_apply(&cubic, &none, in, 1, many, 300));
}

/* Inputs x, a and TS_NONE; ten results: x doubled in place, the sign of a (marked constant), an i64
 * tensor, a itself, and a + k for k from 4 to 9. */
enum { RESULTS = 10 };
static ts_status many_forward(ts_function_call *call, void *ctx, ts_tensor *const *in, int n,
                              ts_tensor **out, int m)
{
    (void)ctx;
    ck_assert(n == 3 && m == RESULTS && in[2] == TS_NONE && !ts_function_needs(call, 2));
    OK(ts_function_mark_dirty(call, 0));
    FAILS(TS_ERR_INDEX, ts_function_mark_dirty(call, 2));
    FAILS(TS_ERR_INDEX, ts_function_mark_constant(call, RESULTS));
    ts_error_clear();
    out[0] = ts_mul_scalar_(in[0], 2);
    out[1] = ts_div(in[1], ts_abs(in[1]));
    OK(ts_function_mark_constant(call, 1));
    out[2] = ts_ones(TS_SIZES(1), TS_I64);
    out[3] = in[1]; /* an unchanged input */
    for (int k = 4; k < m; k++)
        out[k] = ts_add_scalar(in[1], k);
    ts_tensor *saved[] = {out[0], TS_NONE};
    return ts_function_save(call, saved, 2);
}

static ts_status many_backward(ts_function_call *call, void *seen, ts_tensor *const *g, int m,
                               ts_tensor **out, int n)
{
    (void)n;
    ck_assert(g[1] == TS_NONE && g[2] == TS_NONE);
    ck_assert(ts_function_saved_tensor(call, 1) == TS_NONE);
    *(double *)seen = value(ts_function_saved_tensor(call, 0));
    FAILS(TS_ERR_INDEX, ts_function_saved_tensor(call, 2));
    ts_error_clear();
    out[0] = ts_mul_scalar(g[0], 2);
    ts_tensor *sum = g[3];
    for (int k = 4; k < m; k++)
        sum = ts_add(sum, ts_mul_scalar(g[k], k));
    out[1] = sum;
    return TS_OK;
}

TS_TEST(results_may_be_dirty_inputs_constants_inputs_and_many)
{
    TS_SCOPE;
    double seen = 0;
    ts_function f = {
        .size = sizeof f, .name = "many", .forward = many_forward, .backward = many_backward};
    ts_tensor *x = leaf(3), *a = leaf(-5), *y = ts_mul_scalar(x, 1), *in[3] = {y, a, TS_NONE},
              *out[RESULTS];
    OK(ts_function_apply(&f, &seen, in, 3, out, RESULTS));
    ck_assert(out[0] == y && value(y) == 6); /* the handle stays */
    ck_assert_str_eq(ts_node_name(ts_grad_node(y)), "many");
    ck_assert(!ts_requires_grad(out[1]) && !ts_requires_grad(out[2]) && value(out[1]) == -1);
    ck_assert(out[3] != a && value(out[3]) == -5 && ts_grad_node(out[3]) == ts_grad_node(y));
    /* only y, out[3] and out[9] are used: the gradients of the other results are zeros */
    OK(ts_backward(ts_add(ts_mul_scalar(y, 3), ts_add(out[3], out[9]))));
    ck_assert(value(ts_grad(x)) == 6 && value(ts_grad(a)) == 1 + 9 && seen == 6);
}

static ts_status write_leaf(ts_function_call *call, void *ctx, ts_tensor *const *in, int n,
                            ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    TS_TRY(ts_function_mark_dirty(call, 0));
    out[0] = ts_mul_scalar_(in[0], 2);
    return TS_OK;
}

static ts_status returns_copy_of_dirty(ts_function_call *call, void *ctx, ts_tensor *const *in,
                                       int n, ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    TS_TRY(ts_function_mark_dirty(call, 0));
    out[0] = ts_clone(ts_mul_scalar_(in[0], 2));
    return TS_OK;
}

static ts_status pass_back(ts_function_call *call, void *ctx, ts_tensor *const *g, int m,
                           ts_tensor **out, int n)
{
    (void)call, (void)ctx, (void)m, (void)n;
    out[0] = g[0];
    return TS_OK;
}

TS_TEST(in_place_functions_obey_the_rule_for_writes)
{
    TS_SCOPE;
    ts_function f = {
        .size = sizeof f, .name = "twice", .forward = write_leaf, .backward = pass_back};
    ts_tensor *x = leaf(3), *y, *in = x;
    FAILS(TS_ERR_AUTOGRAD, ts_function_apply(&f, NULL, &in, 1, &y, 1));
    SAYS("twice");
    SAYS("input 0");
    SAYS("leaf that requires grad");
    ck_assert_double_eq(value(x), 3);
    in = ts_view(ts_mul(x, x), TS_SIZES(1, 1));
    FAILS(TS_ERR_AUTOGRAD, ts_function_apply(&f, NULL, &in, 1, &y, 1));
    SAYS("is a view");
    {
        TS_NO_GRAD;
        in = x;
        OK(ts_function_apply(&f, NULL, &in, 1, &y, 1));
        ck_assert(y == x && value(x) == 6);
    }
    f.forward = returns_copy_of_dirty;
    in = ts_mul_scalar(x, 1);
    FAILS(TS_ERR_AUTOGRAD, ts_function_apply(&f, NULL, &in, 1, &y, 1));
    SAYS("marked dirty but is not an output");
}

static ts_status two_forward(ts_function_call *call, void *ctx, ts_tensor *const *in, int n,
                             ts_tensor **out, int m)
{
    (void)call, (void)ctx, (void)n, (void)m;
    out[0] = ts_mul_scalar(in[0], 2);
    out[1] = ts_mul_scalar(in[0], 3);
    return TS_OK;
}

static ts_status two_backward(ts_function_call *call, void *none, ts_tensor *const *g, int m,
                              ts_tensor **out, int n)
{
    (void)call, (void)m, (void)n;
    ck_assert((g[1] == TS_NONE) == *(bool *)none);
    if (!*(bool *)none)
        ck_assert_double_eq(value(g[1]), 0);
    out[0] = ts_mul_scalar(g[0], 2);
    return TS_OK;
}

TS_TEST(absent_gradients_are_zeros_or_none_as_the_function_requests)
{
    for (int i = 0; i < 2; i++) {
        TS_SCOPE;
        bool none = i;
        ts_function f = {.size = sizeof f, .name = "two", .forward = two_forward,
                         .backward = two_backward, .none_grads = none};
        ts_tensor *x = leaf(3), *out[2];
        OK(ts_function_apply(&f, &none, &x, 1, out, 2));
        OK(ts_backward(out[0]));
        ck_assert_double_eq(value(ts_grad(x)), 2);
    }
}

/* y = 1 / x; forward saves the result, and the backward cannot be differentiated again */
static ts_status inverse_forward(ts_function_call *call, void *ctx, ts_tensor *const *in, int n,
                                 ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    out[0] = ts_reciprocal(in[0]);
    return ts_function_save(call, out, 1);
}

static ts_status inverse_backward(ts_function_call *call, void *ctx, ts_tensor *const *g, int m,
                                  ts_tensor **out, int n)
{
    (void)ctx, (void)m, (void)n;
    ts_tensor *y = ts_function_saved_tensor(call, 0);
    out[0] = ts_neg(ts_mul(g[0], ts_mul(y, y)));
    return TS_OK;
}

TS_TEST(a_saved_result_keeps_its_history_unless_the_function_is_once_differentiable)
{
    TS_SCOPE;
    ts_function f = {.size = sizeof f, .name = "inverse", .forward = inverse_forward,
                     .backward = inverse_backward};
    ts_backward_opts create = {.size = sizeof create, .create_graph = true};
    ts_tensor *x = leaf(2), *y, *g, *gg, *ggg;
    OK(ts_function_apply(&f, NULL, &x, 1, &y, 1));
    OK(ts_grad_of(y, TS_NONE, &x, 1, &g, &create));
    OK(ts_grad_of(g, TS_NONE, &x, 1, &gg, &create));
    OK(ts_grad_of(gg, TS_NONE, &x, 1, &ggg, NULL));
    ck_assert(value(g) == -0.25 && value(gg) == 0.25 && value(ggg) == -0.375);
    f.once = true;
    OK(ts_function_apply(&f, NULL, &x, 1, &y, 1));
    OK(ts_grad_of(ts_mul(y, x), TS_NONE, &x, 1, &g, &create)); /* 0 = y + x y' */
    ck_assert_double_eq(value(g), 0);
    FAILS(TS_ERR_AUTOGRAD, ts_grad_of(g, TS_NONE, &x, 1, &gg, NULL));
    SAYS("inverse");
    SAYS("once only");
    ts_tensor *v = leaf(1); /* also an error by way of the incoming gradient, v */
    OK(ts_function_apply(&f, NULL, &x, 1, &y, 1));
    OK(ts_grad_of(ts_mul(y, v), TS_NONE, &x, 1, &g, &create));
    FAILS(TS_ERR_AUTOGRAD, ts_grad_of(g, TS_NONE, &v, 1, &gg, NULL));
    SAYS("once only");
}

TS_TEST(functions_leak_no_memory)
{
    int64_t before[2];
    fault none = NONE, bad = BACKWARD_FAILS;
    double seen;
    ts_function many = {
        .size = sizeof many, .name = "many", .forward = many_forward, .backward = many_backward};
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 50; i++) {
            TS_SCOPE;
            ts_tensor *x = leaf(3), *in[3] = {ts_mul_scalar(x, 1), leaf(2), TS_NONE}, *y,
                      *out[RESULTS];
            OK(ts_function_apply(&cubic, i % 2 ? &none : &bad, in, 2, &y, 1));
            ts_backward_opts opts = {.size = sizeof opts, .create_graph = i % 4 == 1};
            ck_assert((ts_backward_ex(y, TS_NONE, &opts) == TS_OK) == i % 2);
            OK(ts_function_apply(&many, &seen, in, 3, out, RESULTS));
            if (i % 3)
                OK(ts_backward(out[3 + i % 7]));
            ts_zero_grad(x);
            ts_zero_grad(in[1]);
            ts_error_clear();
        }
        before[round] = ts_memory_get_stats().in_use;
    }
    ck_assert_int_eq(before[0], before[1]);
}

static int failing_after;
static bool fail_alloc(size_t bytes) { (void)bytes; return failing_after-- == 0; }

TS_TEST(out_of_memory_in_a_function_is_an_ordinary_error)
{
    if (!blocks_from_malloc())
        TS_SKIP(TOO_LATE);
    fault none = NONE;
    int failures = 0, applied = 0;
    for (int n = 0; n < 300; n++) {
        TS_SCOPE;
        ts_tensor *in[2] = {leaf(3), leaf(5)}, *y = NULL;
        ts_error_clear();
        failing_after = n;
        ts_alloc_fault = fail_alloc;
        applied++;
        ts_status s = ts_function_apply(&cubic, &none, in, 2, &y, 1);
        if (s == TS_OK)
            s = ts_backward(y);
        ts_alloc_fault = NULL;
        if (s == TS_OK)
            break;
        failures++;
        ck_assert_int_eq(s, TS_ERR_MEMORY);
        ts_error_clear();
    }
    ck_assert_int_gt(failures, 10);
    ck_assert_int_lt(failures, 299);
    ck_assert_int_eq(released, applied);
}
