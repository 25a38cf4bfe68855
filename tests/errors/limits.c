/** @file limits.c  Calls beyond a contract's limits fail, and neither crash nor pass silently. */
// SPDX-License-Identifier: MIT
#include <limits.h>

#include "core/tensor.h"
#include "tests/expect.h"


/* ------------------------------------------------------------------------ names and checks ---- */

TS_TEST(a_long_name_of_a_function_is_cut)
{
    static char long_name[3001];
    int64_t value;
    int fd;
    memset(long_name, 'n', sizeof long_name - 1);
    FAILS(TS_ERR_VALUE, ts_parse_int(long_name, "x", 0, 1, &value));
    SAYS("n: expected a whole number from 0 to 1, got 'x'");
    FAILS(TS_ERR_IO, ts_open_file(long_name, "/nowhere/file", 0, &fd));
    SAYS("n: cannot open '/nowhere/file'");
    FAILS(TS_ERR_NULL, ts_check_list((ts_check_place){long_name, NULL}, "list", "n", NULL, 2));
    SAYS("n: argument 'list': expected 2 entries, got NULL");
}

TS_TEST(checks_without_names_or_limits_fail_with_a_message)
{
    const ts_check_place nameless = {NULL, NULL}, at = {"ts_scores", NULL};
    FAILS(TS_ERR_NULL, ts_check_list(nameless, NULL, NULL, NULL, 2));
    SAYS("argument '?': expected 2 entries, got NULL");
    FAILS(TS_ERR_NULL, ts_check_null(at, NULL, 0, false));
    SAYS("scores: argument '?': expected a pointer, got NULL");
    FAILS(TS_ERR_NULL, ts_check_null(at, "first, second", 7, false));
    SAYS("scores: argument 'second': expected a pointer, got NULL");
    FAILS(TS_ERR_VALUE, ts_check_refuse(at, NULL, NULL, ts_scalar_int(3)));
    OK(ts_check_name(at, "name", "good", 8, NULL, NULL));
    FAILS(TS_ERR_VALUE, ts_check_name(at, "name", "good", INT_MIN, NULL, NULL));
}

TS_TEST(a_log_line_without_a_format_is_written)
{
    ts_log_write("warning", NULL);
}

TS_TEST(a_description_of_a_command_line_has_one_target_per_entry)
{
    bool flag = false;
    int64_t number = 1;
    int status;
    char program[] = "program", option[] = "--x", *words[] = {program, option, NULL};
    const ts_argument wrong[] = {{.name = "--x", .help = "nothing to set"},
                                 {.name = "--x", .help = "two", .flag = &flag, .number = &number}};
    for (int i = 0; i < 2; i++) {
        ck_assert(!ts_program_begin(2, words, "About.\n", &wrong[i], 1, &status));
        ck_assert_int_eq(ts_error_code(), TS_ERR_VALUE);
        SAYS(i ? "one of flag, number and text in each entry, got 2" : "in each entry, got 0");
    }
    ck_assert(!ts_program_begin(2, NULL, "About.\n", wrong, 0, &status));
    SAYS("program_begin: argument 'argv': expected 2 entries, got NULL");
}

/* ---------------------------------------------------------------------- boxed calls, rules ---- */

static ts_status without_args(ts_frame *f) { return ts_redispatch_new(f, NULL); }
static ts_status copy_kernel(ts_frame *f) { return ts_kernel_give(f, 0, ts_clone(f->args[0].t)); }

TS_TEST(boxed_calls_without_lists_fail)
{
    TS_SCOPE;
    ts_tensor *x = ts_ones(TS_SIZES(2), TS_F32);
    ts_value two[] = {ts_value_tensor(x), ts_value_tensor(x)}, result = ts_value_none();
    ts_registration *layer;
    int add = ts_op_by_name("add");
    FAILS(TS_ERR_NULL, ts_call_boxed(add, NULL, 2, &result, 1));
    FAILS(TS_ERR_NULL, ts_call_boxed(add, two, 2, NULL, 1));
    OK(ts_register_kernel("add", TS_KEY_TRACING, without_args, NULL, &layer));
    OK(ts_layer_enable(TS_KEY_TRACING, true));
    FAILS(TS_ERR_NULL, ts_add(x, x));
    SAYS("redispatch_new: argument 'args': expected 2 values, got NULL");
    OK(ts_layer_enable(TS_KEY_TRACING, false));
    OK(ts_unregister(layer));
}

TS_TEST(errors_of_registrations_name_the_argument)
{
    ts_key key;
    FAILS(TS_ERR_FORMAT, ts_register_op("limits.x", NULL));
    SAYS("register_op: argument 'schema': expected '(' at column 9, got 'limits.x'");
    FAILS(TS_ERR_FORMAT, ts_register_kernel("add", TS_KEY_CPU, without_args, "add(", NULL));
    SAYS("register_kernel: argument 'schema': expected a type");
    FAILS(TS_ERR_REGISTRY, ts_register_kernel("a b", TS_KEY_CPU, without_args, NULL, NULL));
    SAYS("register_kernel: argument 'op'");
    FAILS(TS_ERR_REGISTRY, ts_register_layer("limits", "ABSENT", &key));
    SAYS("register_layer: argument 'above'");
    FAILS(TS_ERR_VALUE,
          ts_register_kernel_ex("add", TS_KEY_CPU, without_args,
                                TS_OPTS(ts_kernel_opts, .dtypes = 1u << 31), NULL));
    SAYS("register_kernel_ex: argument 'dtypes': expected bits of 0xff, got 0x80000000");
}

static int step; /* which wrong call the function below makes */

static ts_status rule_in_a_kernel(ts_frame *f)
{
    switch (step) {
    case 0: return ts_rule_result(f, 0, NULL, 0, TS_F32);
    case 1: return ts_rule_pointwise(f, 1, TS_F32, false);
    case 2: ts_rule_compute(f, TS_F32, 1); return ts_error_code();
    default: ts_rule_rows(f, (ts_rows){1, 1, 1}); return ts_error_code();
    }
}
static ts_status rule_with_a_wrong_dtype(ts_frame *f)
{
    return ts_rule_pointwise(f, 1, (ts_dtype)99, false);
}

TS_TEST(shape_rules_refuse_wrong_places_and_dtypes)
{
    TS_SCOPE;
    int op;
    ts_value x = ts_value_tensor(ts_ones(TS_SIZES(2), TS_F32)), y = ts_value_none();
    OK(ts_register_op("limits.no_rule(Tensor x) -> Tensor", &op));
    OK(ts_register_kernel("limits.no_rule", TS_KEY_CPU, rule_in_a_kernel, NULL, NULL));
    for (step = 0; step < 4; step++) {
        FAILS(TS_ERR_STATE, ts_call_boxed(op, &x, 1, &y, 1));
        SAYS("expected a call in the op's shape rule");
    }
    OK(ts_register_op_ex("limits.dtype(Tensor x) -> Tensor",
                         TS_OPTS(ts_op_opts, .rule = rule_with_a_wrong_dtype), &op));
    OK(ts_register_kernel("limits.dtype", TS_KEY_CPU, copy_kernel, NULL, NULL));
    FAILS(TS_ERR_DTYPE, ts_call_boxed(op, &x, 1, &y, 1));
    SAYS("rule_pointwise: argument 'dtype': expected a dtype, got number 99");
}

/* ------------------------------------------------------------------------------- gradients ---- */

/** True if the header of a released tensor stays readable, as it does in the library's heap. */
static bool headers_stay(void) { return !ts_alloc_system || ts_scopes_watched; }

static ts_tensor *released(void)
{
    ts_tensor *t = ts_ones(TS_SIZES(2), TS_F32);
    ts_drop(t);
    return t;
}

enum { FIRST_GIVEN = 8, SILENT = 11 };

static ts_status wrong_gradient(ts_vjp_call *call)
{
    ts_tensor *g = ts_rule_grad(call, 0);
    switch (step) {
    case 0: return TS_STATUS_OF(ts_rule_grad(call, 1));
    case 1: return TS_STATUS_OF(ts_rule_saved_arg(call, 99));
    case 2: return TS_STATUS_OF(ts_rule_saved_member(call, -1, 3));
    case 3: return TS_STATUS_OF(ts_rule_saved_ret(call, 7));
    case 4: return TS_STATUS_OF(ts_rule_arg(call, 50));
    case 5: return ts_rule_give(call, 1, g);
    case 6: return ts_rule_give_member(call, -1, 0, g);
    case 7: return TS_STATUS_OF(ts_rule_reduce_to(call, 1, g));
    case FIRST_GIVEN: return ts_rule_give(call, 0, TS_NONE);
    case FIRST_GIVEN + 1: return ts_rule_give(call, 0, released());
    case FIRST_GIVEN + 2:
        return ts_rule_needs(call, 64) || ts_rule_needs(call, -1) ||
                       ts_rule_needs_member(call, 64, 0)
                   ? TS_OK
                   : ts_error_set(TS_ERR_INDEX, "no such argument needs a gradient");
    default: return TS_ERR_IO;
    }
}

TS_TEST(gradient_rules_refuse_wrong_indices_and_gradients)
{
    const ts_status given[] = {TS_ERR_NULL, TS_ERR_STATE, TS_ERR_INDEX, TS_ERR_IO};
    int op;
    OK(ts_register_op("limits.copy(Tensor x) -> Tensor", &op));
    OK(ts_register_kernel("limits.copy", TS_KEY_CPU, copy_kernel, NULL, NULL));
    OK(ts_register_vjp("limits.copy", wrong_gradient, NULL));
    for (step = 0; step <= SILENT; step++) {
        TS_SCOPE;
        if (step == FIRST_GIVEN + 1 && !headers_stay())
            continue;
        ts_value x = ts_value_tensor(
                     ts_set_requires_grad(ts_ones(TS_SIZES(2), TS_F32), true)),
                 y = ts_value_none();
        OK(ts_call_boxed(op, &x, 1, &y, 1));
        ts_tensor *sum = ts_sum(ts_adopt(y.t));
        FAILS(step < FIRST_GIVEN ? TS_ERR_INTERNAL : given[step - FIRST_GIVEN], ts_backward(sum));
        if (step == SILENT)
            SAYS("limits.copy: the gradient rule failed without recording an error");
    }
}

static ts_tensor *hook_without_result(void *payload, ts_tensor *grad)
{
    return (void)payload, (void)grad, NULL;
}
static ts_status part_with_a_released_output(void *ctx, ts_tensor *const *inputs, int n,
                                             ts_tensor **outputs, int m)
{
    (void)ctx, (void)inputs, (void)n, (void)m;
    outputs[0] = released();
    return TS_OK;
}

TS_TEST(user_functions_that_return_no_tensor_are_named)
{
    TS_SCOPE;
    ts_tensor *w = ts_set_requires_grad(ts_ones(TS_SIZES(2), TS_F32), true), *out;
    ts_tensor *y = ts_mul(w, w);
    OK(ts_register_hook(y, hook_without_result, NULL, NULL));
    FAILS(TS_ERR_NULL, ts_backward(ts_sum(y)));
    SAYS("mul: argument 'result of a hook': expected a tensor, got NULL");
    if (!headers_stay())
        return;
    FAILS(TS_ERR_STATE, ts_recompute(part_with_a_released_output, NULL, &w, 1, &out, 1));
    SAYS("recompute: argument 'outputs': expected a tensor, got one that was released");
}

/* ----------------------------------------------------------------------- modules and files ---- */

static ts_tensor *run_myself(ts_module *m, ts_tensor *x) { return ts_forward(m, x); }

TS_TEST(a_module_that_runs_itself_fails)
{
    TS_SCOPE;
    static const ts_module_type type = {.size = sizeof type, .name = "Loop", .forward = run_myself};
    ts_module *m = ts_module_new(&type);
    FAILS(TS_ERR_STATE, ts_forward(m, ts_ones(TS_SIZES(1), TS_F32)));
    SAYS("got a Loop that runs 256 times inside itself");
    FAILS(TS_ERR_STATE, ts_forward(m, ts_ones(TS_SIZES(1), TS_F32)));
    ts_module_free(m);
}

static int64_t four(void *payload) { return (void)payload, 4; }
static ts_status get_pair(void *payload, int64_t index, ts_tensor **sample)
{
    (void)payload, (void)index;
    sample[0] = sample[1] = ts_ones(TS_SIZES(1), TS_F32);
    return TS_STATUS_OF(sample[0]);
}

TS_TEST(a_loader_accepts_epochs_that_leave_room_to_count)
{
    TS_SCOPE;
    ts_batch batch;
    const ts_dataset set = {sizeof set, four, get_pair, NULL, 2};
    ts_loader *loader = ts_loader_new(&set, TS_OPTS(ts_loader_opts, .batch = 4));
    FAILS(TS_ERR_VALUE, ts_loader_set_state(loader, (ts_loader_state){INT64_MAX, 0}));
    SAYS("expected an epoch from 0 to 2^53");
    OK(ts_loader_set_state(loader, (ts_loader_state){(int64_t)1 << 53, 0}));
    OK(ts_loader_next(loader, &batch));
    OK(ts_loader_next(loader, &batch));
    ck_assert_int_eq(batch.epoch, ((int64_t)1 << 53) + 1);
    ts_loader_close(loader);
}

TS_TEST(outputs_of_a_run_stay_in_its_folder)
{
    const char *outside[] = {"../log.csv"}, *nothing[] = {""};
    FAILS(TS_ERR_VALUE,
          ts_run_open("no-run", TS_OPTS(ts_run_opts, .outputs = outside, .noutputs = 1)));
    SAYS("argument 'outputs[0]': expected the name of a file in the folder, got '../log.csv'");
    FAILS(TS_ERR_VALUE,
          ts_run_open("no-run", TS_OPTS(ts_run_opts, .outputs = nothing, .noutputs = 1)));
}

TS_TEST(counts_are_checked_before_lists_are_read)
{
    const char *name = "a";
    ts_tensor *none = NULL;
    FAILS(TS_ERR_VALUE, ts_npz_save("never.npz", &name, &none, 65535));
    SAYS("npz_save: argument 'n': expected at most 65,534, got 65535");
}

TS_TEST(options_are_named_one_by_one)
{
    TS_SCOPE;
    double y = 1;
    ts_prof_machine machine = {.size = sizeof machine};
    ts_chart *chart = ts_chart_new(NULL);
    ts_progress *line = ts_progress_new(4, TS_OPTS(ts_progress_opts, .mode = TS_PROGRESS_QUIET));
    FAILS(TS_ERR_VALUE,
          ts_chart_line(chart, "a", NULL, &y, 1, TS_OPTS(ts_line_opts, .smoothing = 1)));
    SAYS("chart_line: argument 'smoothing': expected at least 0 and less than 1, got 1");
    FAILS(TS_ERR_SHAPE, ts_progress_step(line, ts_ones(TS_SIZES(2, 3), TS_F32)));
    SAYS("progress_step: argument 'loss': expected one element, got sizes (2, 3)");
    FAILS(TS_ERR_VALUE, ts_checkpoint_save("never", -1, NULL, 0, NULL, NULL));
    SAYS("checkpoint_save: argument 'step': expected at least 0, got -1");
    FAILS(TS_ERR_DEVICE, ts_prof_calibrate_device(TS_DEVICE_META, false, &machine));
    SAYS("prof_calibrate_device: argument 'device': expected a device with a backend of its own");
    ts_progress_free(line);
    ts_chart_free(chart);
}
