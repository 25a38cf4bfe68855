/** @file watch.c  The NaN finder, the shape logger, the determinism checker. */
// SPDX-License-Identifier: MIT
#include "init.h"
#include "tests/expect.h"
#include "tests/threads.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char lines[16][1000];
static char layers[16][16];
static int nlines;
static void keep(void *payload, const ts_layer_report *report)
{
    (void)payload;
    ts_drop(ts_ones(TS_SIZES(1), TS_F32)); /* ops in a log callback are not logged */
    if (nlines < 16) {
        snprintf(layers[nlines], sizeof layers[0], "%s", report->layer);
        snprintf(lines[nlines++], sizeof lines[0], "%s", report->text);
    }
}
static void capture_reports(void)
{
    nlines = 0;
    ts_error_clear();
    ts_layers_report_to(keep, NULL, NULL);
}
static void expect_text(const char *text, const char *part)
{
    ck_assert_msg(strstr(text, part), "'%s' is not in: %s", part, text);
}

TS_TEST(the_nan_finder_names_the_first_op_its_arguments_and_its_caller)
{
    TS_SCOPE;
    capture_reports();
    OK(ts_nan_finder(TS_THIS_THREAD, true));
    ts_tensor *x = ts_sub_scalar(ts_arange(0, 4, 1, TS_F32), 1); /* -1 0 1 2 */
    OK(ts_exp(x));
    ck_assert_ptr_null(ts_log(x));
    ck_assert_int_eq(ts_error_code(), TS_ERR_VALUE);
    ck_assert_str_eq(ts_error_op(), "log");
    expect_text(ts_error_message(),
                "log((4) f32) -> (4) f32: the first NaN or infinity, in result 0 [");
    ck_assert_int_eq(nlines, 1);
    ck_assert_str_eq(layers[0], "nan");
    OK(ts_log(x)); /* the finder reports only the first NaN ... */
    ts_nan_finder_reset();
    ts_error_clear();
    ck_assert_ptr_null(ts_log_(x)); /* ... after a reset the next one; in place */
    expect_text(ts_error_message(), "log((4) f32)");
    OK(ts_nan_finder(TS_THIS_THREAD, false));
    ts_nan_finder_reset();
    OK(ts_log(x));
}

TS_TEST(the_nan_finder_ignores_ops_with_arguments_that_are_not_finite)
{
    TS_SCOPE;
    capture_reports();
    float bad[2] = {1, INFINITY};
    ts_tensor *x = ts_from_array(bad, TS_F32, TS_SIZES(2)),
              *mask = ts_gt_scalar(ts_ones(TS_SIZES(2), TS_F32), 0);
    OK(ts_nan_finder(TS_THIS_THREAD, true));
    OK(ts_mul(x, x));
    OK(ts_mul_(x, x));
    OK(ts_masked_fill_scalar(ts_ones(TS_SIZES(2), TS_F32), mask, -INFINITY)); /* by request */
    OK(ts_empty(TS_SIZES(100), TS_F32));
    ck_assert_int_eq(nlines, 0);
    ts_tensor *w = ts_set_requires_grad(ts_zeros(TS_SIZES(2), TS_F32), true);
    ts_tensor *loss = ts_sum(ts_sqrt(w));
    /* backward finds Inf, the gradient of sqrt at 0 */
    ck_assert_int_eq(ts_backward(loss), TS_ERR_VALUE);
    ck_assert_int_eq(nlines, 1);
    OK(ts_nan_finder(TS_THIS_THREAD, false));
    ts_nan_finder_reset();
}

static void *add_in_thread(void *arg)
{
    (void)arg;
    TS_SCOPE;
    ts_tensor *a = ts_ones(TS_SIZES(2, 3), TS_F32);
    OK(ts_add(a, a));
    return NULL;
}

TS_TEST(the_shape_logger_reports_each_op_for_one_thread_or_for_all)
{
    TS_SCOPE;
    pthread_t thread;
    capture_reports();
    ts_tensor *a = ts_ones(TS_SIZES(2, 3), TS_F32);
    OK(ts_shape_logger(TS_THIS_THREAD, true));
    OK(ts_mm(a, ts_transpose(a, 0, 1)));
    ck_assert_int_eq(nlines, 2);
    expect_text(lines[0], "transpose((2, 3) f32, 0, 1) -> (3, 2) f32 [");
    expect_text(lines[1], "mm((2, 3) f32, (3, 2) f32) -> (2, 2) f32 [");
    pthread_create(&thread, NULL, add_in_thread, NULL);
    pthread_join(thread, NULL);
    ck_assert_int_eq(nlines, 2); /* other threads are not logged */
    OK(ts_shape_logger(TS_ALL_THREADS, true));
    pthread_create(&thread, NULL, add_in_thread, NULL);
    pthread_join(thread, NULL);
    ck_assert_int_eq(nlines, 4);
    OK(ts_shape_logger(TS_ALL_THREADS, false));
    OK(ts_shape_logger(TS_THIS_THREAD, false));
    OK(ts_add(a, a));
    ck_assert_int_eq(nlines, 4);
    ck_assert_int_eq(ts_shape_logger((ts_layer_scope)7, true), TS_ERR_VALUE);
    /* into a file */
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    ts_layers_report_to(NULL, NULL, file);
    OK(ts_shape_logger(TS_THIS_THREAD, true));
    OK(ts_neg(a));
    OK(ts_shape_logger(TS_THIS_THREAD, false));
    fclose(file);
    expect_text(text, "shapes: neg((2, 3) f32) -> (2, 3) f32");
    free(text);
    ts_layers_report_to(NULL, NULL, NULL);
}

/* A kernel whose results differ from run to run. */
static float counter;
static ts_status drift(ts_frame *f)
{
    int64_t one = 1;
    TS_TRY(ts_kernel_result(f, 0, &one, 1, TS_F32));
    *(float *)ts_kernel_data(f->rets[0].t) = counter++;
    return TS_OK;
}

static bool ask_layers(int number, void *found)
{
    TS_SCOPE;
    ts_tensor *x = ts_sub_scalar(ts_ones(TS_SIZES(4), TS_F32), 2);
    if (ts_nan_finder(TS_THIS_THREAD, true) != TS_OK ||
        ts_determinism_checker(TS_THIS_THREAD, true) != TS_OK)
        return false;
    for (int i = 0; i < 100; i++) {
        TS_SCOPE;
        if (!ts_add(x, x))
            return false;
    }
    ((bool *)found)[number] = !ts_log(x);
    return ts_nan_finder(TS_THIS_THREAD, false) == TS_OK &&
           ts_determinism_checker(TS_THIS_THREAD, false) == TS_OK;
}

TS_TEST(one_of_several_threads_that_enable_layers_finds_the_first_nan, .threads = true)
{
    bool found[4] = {false};
    capture_reports();
    ck_assert_int_eq(ts_together(4, ask_layers, found), 4);
    ck_assert_int_eq(found[0] + found[1] + found[2] + found[3], 1);
    ck_assert_int_eq(nlines, 1);
    ts_nan_finder_reset();
}

TS_TEST(the_determinism_checker_finds_an_op_that_gives_other_bits)
{
    TS_SCOPE;
    int op;
    capture_reports();
    OK(ts_register_op("test.drift(Tensor x) -> Tensor", &op));
    OK(ts_register_kernel("test.drift", TS_KEY_CPU, drift, NULL, NULL));
    OK(ts_determinism_checker(TS_THIS_THREAD, true));
    ts_tensor *x = ts_ones(TS_SIZES(3), TS_F32);
    ts_value arg = ts_value_tensor(x), ret = ts_value_none();
    ck_assert_int_eq(ts_call_boxed(op, &arg, 1, &ret, 1), TS_ERR_STATE);
    expect_text(ts_error_message(), "test.drift");
    expect_text(ts_error_message(), "other bits in result 0");
    ck_assert_int_eq(ret.tag, TS_TAG_NONE);
    ck_assert_int_eq(nlines, 1);
    OK(ts_determinism_checker(TS_THIS_THREAD, false));
}

static double train(bool checked)
{
    TS_SCOPE;
    double loss = 0;
    OK(ts_determinism_checker(TS_THIS_THREAD, checked));
    ts_manual_seed(9);
    ts_module *net = ts_mlp_new(4, 8, &(ts_mlp_opts){.size = sizeof(ts_mlp_opts), .dropout = 0.25});
    ts_group_opts opts = ts_optimizer_defaults(TS_ADAMW, 0.05);
    ts_optimizer *adamw = ts_optimizer_for(net, TS_ADAMW, &opts);
    OK(adamw);
    for (int step = 0; step < 3; step++) {
        TS_SCOPE;
        ts_tensor *x = ts_normal(TS_SIZES(6, 4), 0, 1, TS_F32), *y = ts_forward(net, x);
        ts_tensor *error = ts_mean(ts_square(ts_sub(y, x)));
        OK(ts_backward(error));
        OK(ts_optimizer_step(adamw));
        ts_optimizer_zero_grad(adamw);
        OK(ts_item(error, &loss));
    }
    ts_optimizer_free(adamw);
    ts_module_free(net);
    OK(ts_determinism_checker(TS_THIS_THREAD, false));
    return loss;
}

TS_TEST(a_checked_training_gives_the_same_bits_with_dropout_and_writes_in_place)
{
    capture_reports();
    double plain = train(false), checked = train(true);
    ck_assert_double_eq(plain, checked);
    ck_assert_int_eq(nlines, 0);
    /* in place, by another handle, and a written argument */
    TS_SCOPE;
    OK(ts_determinism_checker(TS_THIS_THREAD, true));
    ts_tensor *x = ts_arange(0, 6, 1, TS_F32);
    OK(ts_mul_(x, x));
    OK(ts_add_(ts_view(x, TS_SIZES(2, 3)), ts_view(x, TS_SIZES(2, 3))));
    OK((ts_fill_)(ts_select(x, 0, 0), ts_scalar_int(7)));
    OK(ts_determinism_checker(TS_THIS_THREAD, false));
    float got[6];
    OK(ts_copy_to(x, got, sizeof got));
    ck_assert(got[0] == 7 && got[1] == 2 && got[5] == 50);
}

TS_TEST(switching_a_layer_that_the_environment_enabled)
{
    TS_SCOPE;
    OK(ts_neg(ts_ones(TS_SIZES(2), TS_F32)));
}

TS_TEST(the_environment_enables_layers_without_a_change_of_the_program)
{
    char self[2000] = "", command[2200], text[4000];
    ck_assert_int_gt(readlink("/proc/self/exe", self, sizeof self - 1), 0);
    snprintf(command, sizeof command,
             "TS_LAYERS=nan,shapes TS_LOG= '%s' switching_a_layer_that 2>&1", self);
    FILE *output = popen(command, "r");
    ck_assert_ptr_nonnull(output);
    text[fread(text, 1, sizeof text - 1, output)] = 0;
    ck_assert_int_eq(pclose(output), 0);
    expect_text(text, "shapes: neg((2) f32) -> (2) f32");
}

static char warnings[512];
static void add_warning(void *payload, const char *topic, const char *line)
{
    (void)payload;
    if (strcmp(topic, "warning") == 0)
        snprintf(warnings + strlen(warnings), sizeof warnings - strlen(warnings), "%s\n", line);
}

TS_TEST(an_unknown_name_in_the_environment_is_one_warning)
{
    ts_log_set_callback(add_warning, NULL);
    setenv("TS_LAYERS", "shape,nan,\x1b[1m", 1);
    ts_layers_from_environment();
    ts_log_set_callback(NULL, NULL);
    ck_assert_str_eq(warnings,
                     "TS_LAYERS: expected nan, shapes or determinism, got 'shape'; the word is "
                     "ignored\n"
                     "TS_LAYERS: expected nan, shapes or determinism, got '\\x1b[1m'; the "
                     "word is ignored\n");
}
