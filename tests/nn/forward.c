// Forward hooks, the path of a module in errors, summaries.
// SPDX-License-Identifier: MIT
#include <stdlib.h>
#include <string.h>

#include "include/tessera/tessera.h"
#include "tests/harness.h"

/** net = Sequential(Linear(4, 3), Sequential(ReLU, Linear(3, 2))) */
static ts_module *make_net(void)
{
    ts_module *net = ts_sequential_new(), *tail = ts_sequential_new();
    ck_assert_int_eq(ts_sequential_add(tail, ts_activation_new("ReLU", ts_relu)), TS_OK);
    ck_assert_int_eq(ts_sequential_add(tail, ts_linear_new(3, 2, true)), TS_OK);
    ck_assert_int_eq(ts_sequential_add(net, ts_linear_new(4, 3, true)), TS_OK);
    ck_assert_int_eq(ts_sequential_add(net, tail), TS_OK);
    return net;
}

static char order[64];

typedef struct seen {
    char before, after; /* letters that the hooks append to the notes; 0: no letter */
    int released;
} seen;

static ts_tensor *note_before(void *payload, ts_module *m, ts_tensor *x)
{
    (void)m;
    strncat(order, &((seen *)payload)->before, 1);
    return ts_mul_scalar(x, 2);
}

static ts_tensor *note_after(void *payload, ts_module *m, ts_tensor *x, ts_tensor *y)
{
    (void)m, (void)x;
    strncat(order, &((seen *)payload)->after, 1);
    return ts_add_scalar(y, 1);
}

static void note_release(void *payload) { ((seen *)payload)->released++; }

static int64_t add_hook(ts_module *m, seen *s)
{
    int64_t id;
    ck_assert_int_eq(ts_module_add_forward_hook(m,
                                                TS_OPTS(ts_forward_hook, .before = note_before,
                                                        .after = note_after, .payload = s,
                                                        .release = note_release),
                                                &id),
                     TS_OK);
    return id;
}

static double value_of(ts_tensor *t)
{
    double value;
    ck_assert_int_eq(ts_item(t, &value), TS_OK);
    return value;
}

TS_TEST(hooks_change_argument_and_result_in_the_order_in_which_they_were_added)
{
    TS_SCOPE;
    seen a = {'a', 'A', 0}, b = {'b', 'B', 0};
    ts_module *m = ts_activation_new("ReLU", ts_relu);
    order[0] = 0;
    int64_t first = add_hook(m, &a);
    add_hook(m, &b);
    ts_tensor *x = ts_full(TS_SIZES(1), TS_SCALAR(3.0), TS_F32);
    ck_assert_double_eq(value_of(ts_forward(m, x)), 3 * 2 * 2 + 1 + 1);
    ck_assert_str_eq(order, "abAB");
    ck_assert_int_eq(ts_module_remove_forward_hook(m, first), TS_OK);
    ck_assert_int_eq(a.released, 1);
    ck_assert_double_eq(value_of(ts_forward(m, x)), 3 * 2 + 1);
    ck_assert_int_eq(ts_module_remove_forward_hook(m, first), TS_ERR_INDEX);
    ts_module_free(m);
    ck_assert_int_eq(b.released, 1);
}

TS_TEST(an_id_of_a_removed_hook_names_no_later_hook)
{
    TS_SCOPE;
    seen s[4] = {{'a', 'A', 0}, {'b', 'B', 0}, {'c', 'C', 0}, {'d', 'D', 0}};
    ts_module *m = ts_activation_new("ReLU", ts_relu);
    int64_t ids[4];
    for (int i = 0; i < 3; i++) {
        ids[i] = add_hook(m, &s[i]);
        for (int k = 0; k < i; k++)
            ck_assert_int_ne(ids[i], ids[k]);
        if (i) /* all hooks but the first are removed again */
            ck_assert_int_eq(ts_module_remove_forward_hook(m, ids[i]), TS_OK);
    }
    ck_assert_int_eq(ts_module_remove_forward_hook(m, ids[0]), TS_OK);
    ids[3] = add_hook(m, &s[3]);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(ts_module_remove_forward_hook(m, ids[i]), TS_ERR_INDEX);
        ck_assert_int_eq(s[i].released, 1);
    }
    ts_error_clear();
    order[0] = 0;
    ck_assert_ptr_nonnull(ts_forward(m, ts_ones(TS_SIZES(1), TS_F32)));
    ck_assert_str_eq(order, "dD");
    ck_assert_int_eq(ts_module_remove_forward_hook(m, ids[3]), TS_OK);
    ts_module_free(m);
}

static ts_tensor *weigh(ts_module *m, ts_tensor *const *inputs, int n) // sum of (i + 1) inputs[i]
{
    (void)m;
    ts_tensor *y = inputs[0];
    for (int i = 1; i < n; i++)
        y = ts_add(y, ts_mul_scalar(inputs[i], i + 1));
    return y;
}

static ts_status swap_ends(void *payload, ts_module *m, ts_tensor **inputs, int n)
{
    (void)m;
    ts_tensor *first = inputs[0];
    inputs[0] = inputs[n - 1], inputs[n - 1] = first;
    strncat(order, payload, 1);
    return TS_OK;
}

static ts_status drop_last(void *payload, ts_module *m, ts_tensor **inputs, int n)
{
    (void)payload, (void)m;
    inputs[n - 1] = NULL;
    return TS_OK;
}

static ts_tensor *add_inputs(void *payload, ts_module *m, ts_tensor *const *inputs, int n,
                             ts_tensor *y)
{
    (void)payload, (void)m;
    for (int i = 0; i < n; i++)
        y = ts_add(y, ts_mul_scalar(inputs[i], 1000));
    return y;
}

static ts_tensor *add_first(void *payload, ts_module *m, ts_tensor *x, ts_tensor *y)
{
    (void)payload, (void)m;
    return ts_add(y, ts_mul_scalar(x, 1000000));
}

TS_TEST(hooks_of_a_list_see_and_replace_all_inputs)
{
    TS_SCOPE;
    ts_module *m = ts_activation_new("ReLU", ts_relu);
    char letter[] = "s";
    const ts_forward_hook hook = {.size = sizeof hook, .before_list = swap_ends, .payload = letter,
                                  .after = add_first, .after_list = add_inputs};
    ck_assert_int_eq(ts_module_set_forward_list(m, weigh), TS_OK);
    ts_tensor *x[] = {ts_full(TS_SIZES(1), TS_SCALAR(1.0), TS_F64),
                      ts_full(TS_SIZES(1), TS_SCALAR(10.0), TS_F64),
                      ts_full(TS_SIZES(1), TS_SCALAR(100.0), TS_F64)},
              *given[] = {x[0], x[1], x[2]};
    ck_assert_double_eq(value_of(ts_forward_list(m, x, 3)), 1 + 20 + 300);
    ck_assert_int_eq(ts_module_add_forward_hook(m, &hook, NULL), TS_OK);
    order[0] = 0;
    ck_assert_double_eq(value_of(ts_forward_list(m, x, 3)), 100 + 20 + 3 + 111000 + 100000000);
    ck_assert_mem_eq(x, given, sizeof x); /* the caller's list */
    ck_assert_double_eq(value_of(ts_forward(m, x[1])), 10 + 10000 + 10000000);
    ck_assert_str_eq(order, "ss");
    ck_assert_int_eq(ts_module_add_forward_hook(m, TS_OPTS(ts_forward_hook,
                                                           .before_list = drop_last), NULL),
                     TS_OK);
    ck_assert_int_eq(ts_module_add_forward_hook(m, &hook, NULL), TS_OK);
    ck_assert_ptr_null(ts_forward_list(m, x, 2));
    ck_assert_int_eq(ts_error_code(), TS_ERR_NULL);
    ck_assert_str_eq(ts_error_message(),
                     "forward: a hook of a ReLU failed without recording an error (in ReLU)");
    ck_assert_str_eq(order, "sss"); /* no hook runs after the one that failed */
    ts_error_clear();
    ts_module_free(m);
}

static ts_tensor *refuse(void *payload, ts_module *m, ts_tensor *x)
{
    (void)x;
    const ts_forward_hook another = {.size = sizeof another};
    *(ts_status *)payload = ts_module_add_forward_hook(m, &another, NULL);
    return NULL;
}

TS_TEST(hooks_do_not_change_while_their_module_runs_and_NULL_fails_the_forward)
{
    TS_SCOPE;
    ts_status inside = TS_OK;
    ts_module *m = ts_activation_new("ReLU", ts_relu);
    const ts_forward_hook hook = {.size = sizeof hook, .before = refuse, .payload = &inside};
    ck_assert_int_eq(ts_module_add_forward_hook(m, &hook, NULL), TS_OK);
    ck_assert_ptr_null(ts_forward(m, ts_ones(TS_SIZES(2), TS_F32)));
    ck_assert_int_eq(inside, TS_ERR_STATE);
    ts_error_clear();
    ts_module_free(m);
}

TS_TEST(an_error_names_the_innermost_module_by_its_path)
{
    TS_SCOPE;
    ts_module *net = make_net();
    ck_assert_ptr_null(ts_forward(net, ts_ones(TS_SIZES(5, 7), TS_F32)));
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "linear: "));
    ck_assert_str_eq(strrchr(ts_error_message(), '('), "(in 0)");
    ts_module *tail = ts_module_child(net, 1);
    ck_assert_ptr_null(ts_forward(tail, ts_ones(TS_SIZES(5, 4), TS_F32)));
    ck_assert_str_eq(strrchr(ts_error_message(), '('), "(in 1.1)");
    ts_error_clear();
    ts_module *alone = ts_linear_new(2, 2, true);
    ck_assert_ptr_null(ts_forward(alone, ts_ones(TS_SIZES(5, 4), TS_F32)));
    ck_assert_str_eq(strrchr(ts_error_message(), '('), "(in Linear)");
    ts_error_clear();
    ts_module_free(alone);
    ts_module_free(net);
}

static ts_tensor *negate(void *payload, ts_module *m, ts_tensor *x, ts_tensor *y)
{
    (void)payload, (void)m, (void)x;
    return ts_neg(y);
}

TS_TEST(a_fused_layer_of_an_mlp_runs_its_hooks_and_has_a_row_in_the_summary)
{
    TS_SCOPE;
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    ts_module *mlp = ts_mlp_new(4, 6, NULL);
    ts_tensor *x = ts_full(TS_SIZES(5, 4), TS_SCALAR(0.3), TS_F32), *y = ts_forward(mlp, x);
    ck_assert_int_eq(ts_module_summary(mlp, x, out), TS_OK);
    fclose(out);
    ck_assert_ptr_nonnull(strstr(strstr(text, "\nfc "), "(5, 6)"));
    int64_t id;
    ck_assert_int_eq(ts_module_add_forward_hook(ts_module_child(mlp, 0),
                                                TS_OPTS(ts_forward_hook, .after = negate), &id),
                     TS_OK);
    double difference;
    ck_assert_int_eq(ts_item(ts_amax(ts_abs(ts_sub(y, ts_forward(mlp, x)))), &difference), TS_OK);
    ck_assert_double_gt(difference, 0);
    free(text);
    ts_module_free(mlp);
}

TS_TEST(a_summary_has_sizes_parameters_and_the_FLOPs_of_each_module)
{
    TS_SCOPE;
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    ts_module *net = make_net();
    ck_assert_int_eq(ts_module_summary(net, ts_ones(TS_SIZES(5, 4), TS_F32), out), TS_OK);
    fclose(out);
    long long parameters[5];
    double flops[5];
    char *line = strchr(text, '\n') + 1;
    for (int i = 0; i < 5; i++, line = strchr(line, '\n') + 1)
        ck_assert_int_eq(sscanf(strchr(line, ')') + 1, "%lld %lf", &parameters[i], &flops[i]), 2);
    /* Linear(4, 3) of 5 rows: 2 * 5 * 4 * 3, and the bias; ReLU of (5, 3); Linear(3, 2) likewise */
    double first = flops[1], relu = flops[3], last = flops[4];
    ck_assert_double_ge(first, 120);
    ck_assert_double_le(first, 120 + 15);
    ck_assert_double_eq(relu, 15);
    ck_assert_double_ge(last, 60);
    ck_assert_double_le(last, 60 + 10);
    ck_assert_double_eq(flops[2], relu + last);
    ck_assert_double_eq(flops[0], first + relu + last);
    ck_assert_int_eq(parameters[1], 15);
    ck_assert_int_eq(parameters[4], 8);
    ck_assert_ptr_nonnull(strstr(text, "1.1 "));
    ck_assert_ptr_nonnull(strstr(text, "(5, 2)"));
    ck_assert_ptr_nonnull(strstr(text, "23 parameters"));
    ck_assert_int_eq(ts_module_summary(net, ts_ones(TS_SIZES(5, 9), TS_F32), stderr), TS_ERR_SHAPE);
    ts_error_clear();
    ck_assert_int_eq(ts_module_remove_forward_hook(net, 1), TS_ERR_INDEX); /* no hook is left */
    ts_error_clear();
    free(text);
    ts_module_free(net);
}
