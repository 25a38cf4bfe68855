/**
 * @file cheat_sheet.c
 * Runs the code in tables of docs/. test_docs.py writes rows.h: a function for each cell, and
 * ROWS(X), which lists them with their places and the errors that they give. The names below are
 * those that the pages use.
 */
// SPDX-License-Identifier: MIT
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tessera/tessera.h>

ts_tensor *x, *y, *z, *w, *i, *m, *q, *s, *loss, *gradient, *where, *parts[2];
double number;
float numbers[12], data[6];
ts_device device;
ts_memory_stats memory;
ts_module *model;
ts_group_opts group;
ts_optimizer *optimizer;
ts_schedule schedule = {.kind = TS_SCHEDULE_COSINE, .total_steps = 100};
int64_t step;
ts_loader *loader;
ts_batch batch;
ts_training training = {.size = sizeof training};
ts_grad_scaler *scaler;
ts_ema *average;
int64_t handle;

__attribute__((unused)) static ts_tensor *see(void *payload, ts_module *of, ts_tensor *input,
                                              ts_tensor *result)
{
    (void)payload, (void)of, (void)input;
    return result;
}

#include "rows.h"

static ts_status begin(void)
{
    const ts_loader_opts tokens = {.size = sizeof tokens, .batch = 2, .length = 4, .dtype = TS_U8};
    TS_TRY(x = ts_normal(TS_SIZES(3, 4), 0, 1, TS_F32));
    TS_TRY(y = ts_normal(TS_SIZES(3, 4), 0, 1, TS_F32));
    TS_TRY(z = ts_zeros_like(x));
    TS_TRY(w = ts_set_requires_grad(ts_normal(TS_SIZES(5, 4), 0, 1, TS_F32), true));
    TS_TRY(i = ts_from_array((int64_t[]){2, 0, 1}, TS_I64, TS_SIZES(3)));
    TS_TRY(m = ts_gt_scalar(x, 0));
    TS_TRY(q = ts_normal(TS_SIZES(1, 2, 3, 4), 0, 1, TS_F32));
    TS_TRY(s = ts_sum(x));
    TS_TRY(loss = ts_sum(ts_matmul(x, ts_t(w))));
    TS_TRY(model = ts_sequential_new());
    TS_TRY(ts_sequential_add(model, ts_linear_new(4, 4, true)));
    group = ts_optimizer_defaults(TS_ADAMW, 1e-3);
    TS_TRY(optimizer = ts_optimizer_for(model, TS_ADAMW, &group));
    TS_TRY(ts_backward(ts_sum(ts_forward(model, x))));
    TS_TRY(loader = ts_loader_open(__FILE__, &tokens));
    TS_TRY(average = ts_ema_new(model, 0.5));
    TS_TRY(scaler = ts_grad_scaler_new(NULL));
    TS_TRY(ts_grad_scaler_scale(scaler, s));
    training.model = model;
    training.optimizer = optimizer;
    return TS_OK;
}

static void end(void)
{
    ts_ema_free(average);
    ts_optimizer_free(optimizer);
    ts_module_free(model);
    ts_loader_close(loader);
    ts_grad_scaler_free(scaler);
    ts_timers_enable(false);
    ts_set_deterministic(false);
}

/** Runs a row, which must succeed, or fail with this text. */
static int run(ts_status (*row)(void), const char *where, const char *text)
{
    TS_SCOPE;
    char got[1200] = "";
    if (begin() != TS_OK) {
        ts_error_print();
        return 1;
    }
    row();
    if (ts_error_code() != TS_OK)
        snprintf(got, sizeof got, "%s: %s%s%s", ts_status_name(ts_error_code()),
                 ts_error_message(), ts_error_hint()[0] ? " | " : "", ts_error_hint());
    ts_error_clear();
    end();
    if (!strcmp(got, text))
        return 0;
    printf("%s: expected: %s\n%s: got:      %s\n", where, text, where, got);
    return 1;
}

int main(void)
{
    int failed = 0;
#define RUN(name, where, text) failed += run(name, where, text);
    ROWS(RUN)
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
