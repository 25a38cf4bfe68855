/** @file run.h  Functions that save and check checkpoints. The tensors contain the step and `life`,
 * a number that distinguishes saves of the same step, so run_check() detects a mixture of two
 * saves. */
// SPDX-License-Identifier: MIT
#ifndef TS_TESTS_IO_RUN_H
#define TS_TESTS_IO_RUN_H

#include "tests/io/folder.h"

/* Saves a checkpoint of `step`. `life` distinguishes several saves of the same step. */
static inline ts_status run_save(const char *dir, int64_t step, int life, int keep)
{
    TS_SCOPE;
    static const char *const model[] = {"weight", "bias"}, *const state[] = {"exp_avg"};
    char json[96];
    snprintf(json, sizeof json, "{\"step\": %lld, \"life\": %d, \"lr\": 0.1, \"who\": \"run\"}",
             (long long)step, life);
    ts_tensor *a[2] = {ts_full(TS_SIZES(40, 30), TS_SCALAR(step * 10 + life), TS_F32),
                       ts_full(TS_SIZES(3), TS_SCALAR(step), TS_F64)};
    ts_tensor *b[1] = {ts_full(TS_SIZES(7), TS_SCALAR(life), TS_I64)};
    TS_TRY(a[0]);
    TS_TRY(a[1]);
    TS_TRY(b[0]);
    const ts_checkpoint_section sections[] = {{"model", model, a, 2}, {"state", state, b, 1}};
    return ts_checkpoint_save(dir, step, sections, 2, json,
                              TS_OPTS(ts_checkpoint_opts, .keep = keep));
}

/* Checks that all tensors and the JSON of a checkpoint are from one save; returns its life. */
static inline int run_check(const ts_checkpoint *c)
{
    TS_SCOPE;
    float weight[1200];
    double bias[3];
    int64_t average[7], step = ts_checkpoint_step(c);
    const ts_safetensors *model = ts_checkpoint_section_of(c, "model"),
                         *state = ts_checkpoint_section_of(c, "state");
    ck_ok(model);
    ck_ok(state);
    ck_ok(ts_copy_to(ts_safetensors_load(model, "weight"), weight, sizeof weight));
    ck_ok(ts_copy_to(ts_safetensors_load(model, "bias"), bias, sizeof bias));
    ck_ok(ts_copy_to(ts_safetensors_load(state, "exp_avg"), average, sizeof average));
    int life = (int)average[6];
    for (int i = 0; i < 1200; i++)
        ck_assert_float_eq(weight[i], (float)(step * 10 + life));
    ck_assert_double_eq(bias[2], (double)step);
    char json[96];
    snprintf(json, sizeof json,
             "{\"step\":%lld,\"life\":%d,\"lr\":0.10000000000000001,\"who\":\"run\"}",
             (long long)step, life);
    ck_assert_str_eq(ts_checkpoint_json(c), json);
    return life;
}

/* Finds and checks the newest checkpoint and sets *step and *life; false if there is none. */
static inline bool run_find(const char *dir, int64_t *step, int *life)
{
    ts_checkpoint *c;
    ck_ok(ts_checkpoint_find(dir, &c));
    if (!c)
        return false;
    *step = ts_checkpoint_step(c);
    *life = run_check(c);
    ck_assert_str_eq(ts_checkpoint_report(c), "");
    ts_checkpoint_close(c);
    return true;
}

/* True if dir/checkpoints/NAME exists. */
static inline bool has(const char *dir, const char *name)
{
    char path[400];
    snprintf(path, sizeof path, "%s/checkpoints/%s", dir, name);
    return access(path, F_OK) == 0;
}

#endif
