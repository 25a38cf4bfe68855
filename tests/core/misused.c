/**
 * @file misused.c  Misuse of the API: released tensors, callbacks that fail without an error
 * record, events of another device, loss gradients written into their first argument.
 */
// SPDX-License-Identifier: MIT
#include <string.h>
#include <unistd.h>

#include "include/tessera/tessera.h"
#include "tests/core/dead.h"

/** Asserts that expr fails with this code, and that the message contains the text. */
#define REFUSED(expr, code, text)                                                                  \
    do {                                                                                           \
        ts_error_clear();                                                                          \
        ck_assert_int_eq(TS_STATUS_OF(expr), code);                                                \
        ck_assert_int_eq(ts_error_code(), code);                                                   \
        ck_assert_msg(strstr(ts_error_message(), text), "%s", ts_error_message());                 \
    } while (0)

static ts_tensor *dead(void)
{
    ts_tensor *t = ts_ones((int64_t[]){2}, 1, TS_F32);
    ts_drop(t);
    return t;
}
static ts_tensor *alive(bool grad)
{
    return ts_set_requires_grad(ts_ones((int64_t[]){2}, 1, TS_F32), grad);
}

/* ------------------------------------------------------------------------------ callbacks ---- */

enum { SILENT, GIVES_DEAD, GIVES_NONE };

static ts_status part(void *ctx, ts_tensor *const *inputs, int n, ts_tensor **outputs, int m)
{
    (void)n;
    int how = *(int *)ctx;
    for (int i = 0; i < m; i++)
        outputs[i] = how == GIVES_DEAD ? dead() : i ? NULL : ts_neg(inputs[0]);
    return how == SILENT ? TS_ERR_VALUE : TS_OK;
}
static ts_status forward(ts_function_call *call, void *ctx, ts_tensor *const *inputs, int n,
                         ts_tensor **outputs, int m)
{
    (void)call;
    return part(ctx, inputs, n, outputs, m);
}
static ts_status backward(ts_function_call *call, void *ctx, ts_tensor *const *grads, int m,
                          ts_tensor **input_grads, int n)
{
    (void)call, (void)ctx, (void)grads, (void)m, (void)n;
    input_grads[0] = dead();
    return TS_OK;
}
static ts_status forward_well(ts_function_call *call, void *ctx, ts_tensor *const *inputs, int n,
                              ts_tensor **outputs, int m)
{
    (void)call, (void)ctx, (void)n, (void)m;
    return TS_STATUS_OF(outputs[0] = ts_neg(inputs[0]));
}
static ts_tensor *dead_hook(void *payload, ts_tensor *grad)
{
    (void)payload, (void)grad;
    return dead();
}
static ts_status silent_write(FILE *out, void *ctx)
{
    (void)out, (void)ctx;
    return TS_ERR_IO;
}
static ts_status silent_visit(void *ctx, const char *name, ts_tensor *t, ts_member_kind kind)
{
    (void)ctx, (void)name, (void)t, (void)kind;
    return TS_ERR_STATE;
}
static ts_tensor *silent_forward(ts_module *m, ts_tensor *x)
{
    (void)m, (void)x;
    return NULL;
}

TS_TEST(callbacks_that_fail_without_a_message_leave_a_record)
{
    TS_SCOPE;
    int how = SILENT;
    ts_tensor *x = alive(true), *y = x;
    ts_graph *graph = NULL;
    REFUSED(ts_trace(part, &how, &x, 1, &y, 1, &graph), TS_ERR_VALUE, "without recording an error");
    ck_assert_ptr_null(y);
    ts_graph_free(graph);
    REFUSED(ts_recompute(part, &how, &x, 1, &y, 1), TS_ERR_VALUE, "without recording an error");
    REFUSED(ts_replace_file("save", "/tmp/tessera-never", silent_write, NULL), TS_ERR_IO,
            "without recording an error");
    ck_assert_int_ne(access("/tmp/tessera-never", F_OK), 0);
    ts_module *m = ts_linear_new(2, 2, true);
    REFUSED(ts_module_each(m, silent_visit, NULL), TS_ERR_STATE, "without recording an error");
    ts_module_free(m);
    static const ts_module_type type = {.size = sizeof type, .name = "Odd",
                                        .forward = silent_forward};
    m = ts_module_new(&type);
    REFUSED(ts_forward(m, x), TS_ERR_NULL, "without recording an error");
    ts_module_free(m);
}

TS_TEST(a_trace_that_fails_delivers_nothing)
{
    TS_SCOPE;
    int how = GIVES_NONE;
    ts_tensor *x = alive(false), *y[2] = {x, x};
    ts_graph *graph = NULL;
    REFUSED(ts_trace(part, &how, &x, 1, y, 2, &graph), TS_ERR_NULL, "output 1");
    ck_assert_ptr_null(y[0]);
    ts_graph_free(graph);
}

/* ----------------------------------------------------------------------------------- dead ---- */

TS_TEST(dead_handles_are_refused_from_every_source)
{
    NEEDS_HEAP;
    TS_SCOPE;
    static const char text[] = "that was released";
    int how = GIVES_DEAD;
    ts_tensor *x = alive(true), *d, *y = NULL;
    ts_graph *graph = NULL;
    static const ts_function function = {.size = sizeof function, .name = "odd",
                                         .forward = forward, .backward = backward};
    static const ts_function half = {.size = sizeof half, .name = "half",
                                     .forward = forward_well, .backward = backward};
    REFUSED(ts_recompute(part, &how, (d = dead(), &d), 1, &y, 1), TS_ERR_STATE, text);
    REFUSED(ts_function_apply(&function, &how, (d = dead(), &d), 1, &y, 1), TS_ERR_STATE, text);
    REFUSED(ts_trace(part, &how, (d = dead(), &d), 1, &y, 1, &graph), TS_ERR_STATE, text);
    REFUSED(ts_recompute(part, &how, &x, 1, &y, 1), TS_ERR_STATE, text);
    REFUSED(ts_function_apply(&function, &how, &x, 1, &y, 1), TS_ERR_STATE, text);
    REFUSED(ts_trace(part, &how, &x, 1, &y, 1, &graph), TS_ERR_STATE, text);
    ts_graph_free(graph);
    REFUSED(ts_set_grad(x, dead()), TS_ERR_STATE, text);
    ts_tensor *sum = ts_sum(x);
    REFUSED(ts_backward_ex(sum, dead(), NULL), TS_ERR_STATE, text);
    REFUSED(ts_grad_of(sum, dead(), &x, 1, &y, NULL), TS_ERR_STATE, text);
    REFUSED(ts_record_stream(dead()), TS_ERR_STATE, text);
    ts_module *m = ts_sequential_new();
    REFUSED(ts_module_add_parameter(m, "a", dead(), NULL), TS_ERR_STATE, text);
    REFUSED(ts_module_add_buffer(m, "a", dead(), true, NULL), TS_ERR_STATE, text);
    ts_module_free(m);
    ts_progress *p = ts_progress_new(3, TS_OPTS(ts_progress_opts, .mode = TS_PROGRESS_QUIET));
    REFUSED(ts_progress_step(p, dead()), TS_ERR_STATE, text);
    ts_progress_free(p);
    ck_assert_int_eq(ts_function_apply(&half, NULL, &x, 1, &y, 1), TS_OK);
    REFUSED(ts_backward(ts_sum(y)), TS_ERR_STATE, text);
    ck_assert_int_eq(ts_register_hook(x, dead_hook, NULL, NULL), TS_OK);
    REFUSED(ts_backward(ts_sum(x)), TS_ERR_STATE, text);
}

/* ---------------------------------------------------------------------------------- others ---- */

TS_TEST(a_device_without_events_refuses_those_of_another)
{
    int64_t other = 0;
    ts_event *event = (ts_event *)&other;
    for (int i = 0; i < 2; i++) {
        ts_device device = i ? TS_DEVICE_META : TS_DEVICE_CPU;
        REFUSED(ts_event_record(device, event), TS_ERR_VALUE, "'event'");
        REFUSED(ts_event_wait(device, event), TS_ERR_VALUE, "'event'");
        REFUSED(ts_event_synchronize(device, event), TS_ERR_VALUE, "'event'");
    }
}

TS_TEST(places_and_sizes_that_are_null_are_refused)
{
    TS_SCOPE;
    float data[4] = {0};
    ts_tensor *x = ts_ones((int64_t[]){1, 1, 2, 2}, 4, TS_F32);
    REFUSED(ts_from_array(data, TS_F32, NULL, 2), TS_ERR_NULL, "'sizes'");
    REFUSED(ts_scaled_dot_product_attention_backward(x, TS_NONE, x, x, x, x, x, NULL, NULL),
            TS_ERR_NULL, "'grads'");
    ck_assert_str_eq(ts_format_sizes(NULL, 9, NULL, 2), "");
    int status = 0;
    static char word[] = "program", *words[] = {word, NULL};
    static const ts_argument unnamed = {.help = "nothing"};
    ts_error_clear();
    ck_assert(!ts_program_begin(1, words, "about", &unnamed, 1, &status));
    ck_assert_int_eq(status, 2);
    ck_assert_int_eq(ts_error_code(), TS_ERR_NULL);
}

/** ts_rule_arg() returns NULL for an argument that does not exist, so its callers may pass NULL. */
TS_TEST(a_missing_number_is_0)
{
    ck_assert(ts_value_number(NULL) == 0);
    ck_assert(ts_value_unbox(NULL).kind == TS_SCALAR_BOOL && ts_value_unbox(NULL).i == 0);
}

TS_TEST(numbers_of_operands_without_host_memory_are_refused)
{
    double two = 2;
    ts_operand operand = {.data = &two, .dtype = TS_F64, .host = true};
    ck_assert(ts_operand_number(&operand) == 2);
    operand.host = false;
    ck_assert(ts_operand_number(&operand) == 0);
    ck_assert_int_eq(ts_error_code(), TS_ERR_VALUE);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "operand_number: argument 'operand'"));
}

TS_TEST(an_empty_path_changes_nothing_in_the_working_folder)
{
    TS_SCOPE;
    REFUSED(ts_npy_save("", ts_ones(NULL, 0, TS_F32)), TS_ERR_IO, "''");
}

/** A recorded loss gradient whose given result is its first argument is an error, as without
 *  recording. */
TS_TEST(gradients_of_losses_refuse_their_first_argument_as_a_result)
{
    static const char *const ops[] = {"kl_div_backward", "huber_loss_backward", "mse_loss_backward",
                                      "l1_loss_backward", "smooth_l1_loss_backward"};
    for (int k = 0; k < 10; k++) {
        TS_SCOPE;
        const char *op = ops[k / 2];
        bool flag = k < 2, bound = k / 2 == 1 || k / 2 == 4;
        ts_tensor *g = ts_full((int64_t[]){2}, 1, TS_SCALAR(3), TS_F32), *x = alive(true),
                  *t = ts_full((int64_t[]){2}, 1, TS_SCALAR(0.5), TS_F32);
        ts_value args[] = {ts_value_tensor(g), ts_value_tensor(x), ts_value_tensor(t),
                           ts_value_int(TS_REDUCTION_NONE),
                           flag ? ts_value_bool(false) : ts_value_float(0.25)};
        ts_value given[2] = {ts_value_none(), ts_value_none()}, fresh[2] = {given[0], given[0]};
        int number = ts_op_by_name(op), nargs = 4 + (flag || bound);
        given[k % 2] = ts_value_tensor(g);
        ck_assert_msg(ts_call_boxed(number, args, nargs, fresh, 2) == TS_OK, "%s",
                      ts_error_message());
        REFUSED(ts_call_boxed(number, args, nargs, given, 2), TS_ERR_VALUE, "'grad'");
        ts_adopt(fresh[0].t);
        ts_adopt(fresh[1].t);
    }
}
