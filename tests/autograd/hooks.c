/** @file hooks.c  Hooks before and after a node's backward, ts_retain_grad(), and walking and
 * printing a graph. */
// SPDX-License-Identifier: MIT
#include "tests/autograd/common.h"

static ts_status times_ten(void *payload, ts_node *node, ts_tensor **grads, int n)
{
    ck_assert_int_eq(n, ts_node_outputs(node));
    ++*(int *)payload;
    for (int i = 0; i < n; i++)
        if (grads[i] != TS_NONE)
            grads[i] = ts_mul_scalar(grads[i], 10);
    return TS_OK;
}

static ts_status sum_of_inputs(void *payload, ts_node *node, ts_tensor **made, int n,
                               ts_tensor *const *grads, int m)
{
    ck_assert(n == ts_node_inputs(node) && m == 1 && grads[0] != TS_NONE);
    for (int i = 0; i < n; i++)
        if (made[i] != TS_NONE)
            *(double *)payload += value(made[i]);
    return TS_OK;
}

static ts_status only_first(void *payload, ts_node *node, ts_tensor **made, int n,
                            ts_tensor *const *grads, int m)
{
    (void)payload, (void)node, (void)grads, (void)m;
    made[0] = ts_add_scalar(made[0], 1);
    for (int i = 1; i < n; i++)
        made[i] = TS_NONE;
    return TS_OK;
}

TS_TEST(hooks_before_and_after_a_rule_see_and_replace_gradients)
{
    TS_SCOPE;
    int before = 0;
    double sum = 0;
    ts_hook *first, *second;
    ts_backward_opts retain = {.size = sizeof retain, .retain_graph = true};
    ts_tensor *x = leaf(3), *y = leaf(4), *z = ts_mul(x, y);
    ts_node *node = ts_grad_node(z);
    OK(ts_node_hook_before(node, times_ten, &before, &first));
    OK(ts_node_hook_after(node, sum_of_inputs, &sum, NULL));
    OK(ts_backward_ex(z, TS_NONE, &retain));
    ck_assert(value(ts_grad(x)) == 40 && value(ts_grad(y)) == 30 && before == 1 && sum == 70);
    ts_node_hook_remove(node, first);
    OK(ts_node_hook_after(node, only_first, NULL, &second));
    OK(ts_backward_ex(z, TS_NONE, &retain));
    ck_assert(value(ts_grad(x)) == 40 + 5 && value(ts_grad(y)) == 30 && before == 1 && sum == 77);
    ts_node_hook_remove(node, second);
    OK(ts_backward(z));
    ck_assert(value(ts_grad(x)) == 49 && value(ts_grad(y)) == 33);
}

typedef struct self {
    ts_hook *own, *next;
    int runs;
} self;

static ts_status remove_both(void *payload, ts_node *node, ts_tensor **grads, int n)
{
    (void)grads, (void)n;
    self *s = payload;
    s->runs++;
    ts_node_hook_remove(node, s->own);
    ts_node_hook_remove(node, s->next);
    return TS_OK;
}

TS_TEST(a_hook_may_remove_itself_and_others_while_it_runs)
{
    TS_SCOPE;
    int before = 0;
    self s = {0};
    ts_tensor *x = leaf(3), *z = ts_mul(x, x);
    ts_backward_opts retain = {.size = sizeof retain, .retain_graph = true};
    OK(ts_node_hook_before(ts_grad_node(z), remove_both, &s, &s.own));
    OK(ts_node_hook_before(ts_grad_node(z), times_ten, &before, &s.next));
    for (int i = 0; i < 3; i++)
        OK(ts_backward_ex(z, TS_NONE, &retain));
    ck_assert(s.runs == 1 && before == 0 && value(ts_grad(x)) == 18);
}

static ts_status stop(void *payload, ts_node *node, ts_tensor **grads, int n)
{
    (void)payload, (void)node;
    for (int i = 0; i < n; i++)
        grads[i] = TS_NONE;
    return TS_OK;
}

static ts_status wrong_size(void *payload, ts_node *node, ts_tensor **grads, int n)
{
    (void)payload, (void)node, (void)n;
    grads[0] = ts_ones(TS_SIZES(2), TS_F64);
    return TS_OK;
}

static ts_status silent(void *payload, ts_node *node, ts_tensor **made, int n,
                        ts_tensor *const *grads, int m)
{
    (void)payload, (void)node, (void)made, (void)n, (void)grads, (void)m;
    return TS_ERR_STATE;
}

static ts_tensor *wrong_dtype(void *payload, ts_tensor *g)
{
    (void)payload;
    return ts_to(g, TS_F32);
}

TS_TEST(hooks_may_remove_gradients_but_not_change_sizes_or_dtype)
{
    TS_SCOPE;
    ts_tensor *x = leaf(3), *z = ts_mul(x, x);
    ts_hook *hook;
    ts_backward_opts retain = {.size = sizeof retain, .retain_graph = true};
    OK(ts_node_hook_before(ts_grad_node(z), stop, NULL, &hook));
    OK(ts_backward_ex(z, TS_NONE, &retain));
    ck_assert_ptr_eq(ts_grad(x), TS_NONE);
    ts_node_hook_remove(ts_grad_node(z), hook);
    OK(ts_node_hook_before(ts_grad_node(z), wrong_size, NULL, &hook));
    FAILS(TS_ERR_SHAPE, ts_backward_ex(z, TS_NONE, &retain));
    SAYS("mul");
    SAYS("(2) f64");
    ts_node_hook_remove(ts_grad_node(z), hook);
    OK(ts_node_hook_after(ts_grad_node(z), silent, NULL, &hook));
    FAILS(TS_ERR_STATE, ts_backward_ex(z, TS_NONE, &retain));
    SAYS("without recording an error");
    ts_node_hook_remove(ts_grad_node(z), hook);
    OK(ts_register_hook(z, wrong_dtype, NULL, NULL));
    FAILS(TS_ERR_SHAPE, ts_backward_ex(z, TS_NONE, &retain));
    SAYS("f32");
    FAILS(TS_ERR_NULL, ts_node_hook_before(NULL, stop, NULL, NULL));
    FAILS(TS_ERR_NULL, ts_node_hook_after(ts_grad_node(z), NULL, NULL, NULL));
    ck_assert_ptr_eq(ts_grad(x), TS_NONE);
}

TS_TEST(a_hook_behind_a_leaf_sees_its_whole_gradient)
{
    TS_SCOPE;
    double sum = 0;
    ts_tensor *x = leaf(3);
    /* a leaf's node has no inputs, so the hook adds nothing to sum */
    OK(ts_node_hook_after(ts_grad_node(x), sum_of_inputs, &sum, NULL));
    int before = 0;
    OK(ts_node_hook_before(ts_grad_node(x), times_ten, &before, NULL));
    OK(ts_backward(ts_mul(x, x)));
    OK(ts_backward(ts_mul(x, x)));
    ck_assert(value(ts_grad(x)) == 120 && before == 2 && sum == 0);
}

TS_TEST(a_kept_gradient_follows_in_place_writes_and_dies_with_its_tensor)
{
    TS_SCOPE;
    ts_tensor *x = leaf(3), *y = ts_mul(x, x);
    OK(ts_retain_grad(y));
    OK(ts_retain_grad(y)); /* a second call changes nothing */
    /* after the in-place write, y.grad is the gradient of the written value */
    ts_tensor *z = ts_mul_scalar_(y, 5);
    ck_assert_ptr_eq(z, y);
    ts_backward_opts retain = {.size = sizeof retain, .retain_graph = true};
    ts_tensor *loss = ts_mul_scalar(y, 2);
    OK(ts_backward_ex(loss, TS_NONE, &retain));
    OK(ts_backward_ex(loss, TS_NONE, &retain));
    ck_assert_double_eq(value(ts_grad(y)), 4); /* 2 and 2 */
    ck_assert_double_eq(value(ts_grad(x)), 120);
    ts_tensor *a = ts_mul(x, x), *b = ts_mul_scalar(a, 2);
    OK(ts_retain_grad(a));
    ts_drop(a); /* the graph stays alive, but no handle can read a.grad */
    OK(ts_backward(b));
    FAILS(TS_ERR_AUTOGRAD, ts_retain_grad(ts_ones(TS_SIZES(1), TS_F64)));
    OK(ts_retain_grad(x));
}

TS_TEST(grad_of_keeps_gradients_as_a_backward_does_except_in_leaves)
{
    enum { X = 1, Y = 2, BOTH = 3, Z = 4 }; /* the requested gradients; X and BOTH reach y */
    for (int wanted = X; wanted <= Z; wanted++) {
        TS_SCOPE;
        ts_tensor *x = leaf(1), *y = ts_mul_scalar(x, 2), *z = ts_mul_scalar(y, 3);
        ts_tensor *beside = ts_mul_scalar(x, 5), *grads[2];
        OK(ts_retain_grad(y));
        OK(ts_retain_grad(z));
        OK(ts_retain_grad(beside)); /* not in the graph of z */
        ts_tensor *of[2] = {wanted == Z ? z : wanted == X ? x : y, x};
        OK(ts_grad_of(ts_sum(z), TS_NONE, of, wanted == BOTH ? 2 : 1, grads, NULL));
        ck_assert_double_eq(value(ts_grad(z)), 1);
        if (wanted == Z)
            ck_assert_ptr_eq(ts_grad(y), TS_NONE);
        else
            ck_assert_double_eq(value(ts_grad(y)), 3);
        ck_assert_ptr_eq(ts_grad(x), TS_NONE);
        ck_assert_ptr_eq(ts_grad(beside), TS_NONE);
    }
}

TS_TEST(a_graph_can_be_walked_and_named)
{
    TS_SCOPE;
    ts_tensor *x = leaf(3), *y = leaf(4), *c = ts_ones(TS_SIZES(1), TS_F64);
    ts_tensor *z = ts_mul(ts_add(x, c), y);
    ts_node *mul = ts_grad_node(z);
    ck_assert_str_eq(ts_node_name(mul), "mul");
    ck_assert(ts_node_inputs(mul) == 2 && ts_node_outputs(mul) == 1);
    int output = 7;
    ts_node *add = ts_node_next(mul, 0, &output);
    ck_assert_str_eq(ts_node_name(add), "add");
    ck_assert_int_eq(output, 0);
    ck_assert_ptr_null(ts_node_next(add, 1, NULL)); /* c needs no gradient */
    ck_assert_ptr_null(ts_node_next(mul, 2, NULL));
    ck_assert_ptr_null(ts_node_next(mul, -1, NULL));
    ck_assert_str_eq(ts_node_name(ts_node_next(add, 0, NULL)), "leaf");
    ck_assert_ptr_eq(ts_node_leaf(ts_node_next(add, 0, NULL)), x);
    ck_assert_ptr_null(ts_node_leaf(mul));
    ck_assert_ptr_null(ts_grad_node(c));
    char text[128];
    ts_node_describe(add, text, sizeof text);
    ck_assert_str_eq(text, "add((1) f64, (1) f64)");
    ts_tensor *five[] = {x, y, x, x, y};
    ts_node_describe(ts_grad_node(ts_cat(five, 5, 0)), text, sizeof text);
    ck_assert_str_eq(text, "cat([(1) f64, (1) f64, (1) f64, (1) f64, … 5], 0)");
    /* cut to 7 characters and a NUL */
    ts_node_describe(ts_grad_node(ts_reshape(y, TS_SIZES(1, 1))), text, 8);
    ck_assert_uint_eq(strlen(text), 7);
    ts_node *kept = ts_node_retain(mul);
    ts_drop(z);
    ck_assert_str_eq(ts_node_name(ts_node_next(kept, 0, NULL)), "add");
    ts_node_release(kept);
    ts_node_release(NULL);
}

static char *printed(ts_tensor *t, ts_autograd_format format)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    OK(ts_autograd_write(t, file, format));
    fclose(file);
    return text;
}

TS_TEST(a_graph_prints_each_node_once_as_text_and_for_dot)
{
    TS_SCOPE;
    ts_tensor *x = leaf(3), *y = ts_mul(x, x), *z = ts_add(y, y);
    char *text = printed(z, TS_AUTOGRAD_TEXT);
    ck_assert_str_eq(text, "   0  add((1) f64, (1) f64)  -> 1, 1\n"
                           "   1  mul((1) f64, (1) f64)  -> 2, 2\n"
                           "   2  leaf (1) f64\n");
    free(text);
    text = printed(z, TS_AUTOGRAD_DOT);
    ck_assert_ptr_nonnull(strstr(text, "digraph graph {\n"));
    ck_assert_ptr_nonnull(strstr(text, "  n1 [label=\"mul((1) f64, (1) f64)\"];\n  n1 -> n2;\n"));
    ck_assert_ptr_nonnull(strstr(text, "  n2 [label=\"leaf (1) f64\", shape=box];\n}\n"));
    free(text);
    FAILS(TS_ERR_AUTOGRAD,
          ts_autograd_write(ts_ones(TS_SIZES(1), TS_F64), stdout, TS_AUTOGRAD_TEXT));
    FAILS(TS_ERR_NULL, ts_autograd_write(z, NULL, TS_AUTOGRAD_TEXT));
    FAILS(TS_ERR_NULL, ts_autograd_write(NULL, stdout, TS_AUTOGRAD_TEXT));
    FILE *full = fopen("/dev/full", "w");
    if (full) {
        setvbuf(full, NULL, _IONBF, 0);
        FAILS(TS_ERR_IO, ts_autograd_write(z, full, TS_AUTOGRAD_DOT));
        fclose(full);
    }
}
