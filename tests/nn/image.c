// Layers over images: values, running statistics, state.
// SPDX-License-Identifier: MIT
#include <math.h>

#include "tests/expect.h"

static double at(const ts_tensor *t, int64_t i) { return (double)((const float *)ts_data(t))[i]; }

TS_TEST(batch_norm_module_tracks_and_evaluates)
{
    for (int cumulative = 0; cumulative < 2; cumulative++) {
        ts_batch_norm_opts opts = {.size = sizeof opts, .cumulative = cumulative};
        ts_module *m = ts_batch_norm_new(3, &opts);
        ck_assert_ptr_nonnull(m);
        TS_SCOPE;
        double sum = 0, expected = 0, batches = 0;
        for (int k = 0; k < 4; k++) {
            ts_tensor *x = ts_normal(TS_SIZES(4, 3, 2, 2), k, 1, TS_F32);
            OK(ts_forward(m, x));
            double mean = at(ts_mean_dims(x, TS_SIZES(0, 2, 3), false), 1);
            sum += mean;
            expected = cumulative ? sum / (k + 1) : 0.9 * expected + 0.1 * mean;
        }
        ck_assert_double_eq_tol(at(ts_module_tensor(m, "running_mean"), 1), expected, 1e-6);
        OK(ts_item(ts_module_tensor(m, "num_batches_tracked"), &batches));
        ck_assert_double_eq(batches, 4);
        ts_module_train(m, false);
        ts_tensor *x = ts_ones(TS_SIZES(1, 3, 1, 1), TS_F32), *y = ts_forward(m, x);
        OK(y);
        ck_assert_double_eq_tol(at(y, 1), (1 - expected) /
                                sqrt(at(ts_module_tensor(m, "running_var"), 1) + 1e-5), 1e-5);
        OK(ts_item(ts_module_tensor(m, "num_batches_tracked"), &batches));
        ck_assert_double_eq(batches, 4);
        ck_assert_int_eq(ts_module_num_parameters(m), 6);
        ts_module_free(m);
    }
}

TS_TEST(batch_norm_module_without_statistics_or_parameters)
{
    ts_batch_norm_opts opts = {.size = sizeof opts, .no_statistics = true, .no_affine = true};
    ts_module *m = ts_batch_norm_new(2, &opts);
    ck_assert_ptr_nonnull(m);
    TS_SCOPE;
    ts_module_train(m, false);
    ts_tensor *y = ts_forward(m, ts_normal(TS_SIZES(8, 2, 3), 5, 2, TS_F32));
    OK(y);
    ck_assert_double_eq_tol(at(ts_mean(y), 0), 0, 1e-5);
    ck_assert_int_eq(ts_module_num_parameters(m), 0);
    ts_module_free(m);
}

TS_TEST(image_modules_call_their_operators)
{
    TS_SCOPE;
    ts_tensor *x = ts_normal(TS_SIZES(2, 4, 6, 6), 0, 1, TS_F32);
    ts_pool_opts pool = {.size = sizeof pool, .kernel = {2, 2}};
    ts_interpolate_opts resize = {.size = sizeof resize, .scale_factor = {2, 2}, .mode = TS_LINEAR};
    ts_module *modules[] = {ts_group_norm_new(2, 4, 0, true), ts_max_pool_new(2, &pool),
                            ts_avg_pool_new(2, &pool), ts_adaptive_avg_pool_new(TS_SIZES(3, 2)),
                            ts_adaptive_max_pool_new(TS_SIZES(5, 1)), ts_upsample_new(&resize),
                            ts_group_norm_new(4, 4, 0, true)};
    ts_tensor *ones = ts_ones(TS_SIZES(4), TS_F32), *zeros = ts_zeros(TS_SIZES(4), TS_F32),
              *wanted[] = {ts_group_norm(x, 2, ones, zeros, 1e-5), ts_max_pool2d(x, &pool, NULL),
                           ts_avg_pool2d(x, &pool), ts_adaptive_avg_pool(x, TS_SIZES(3, 2)),
                           ts_adaptive_max_pool(x, TS_SIZES(5, 1), NULL),
                           ts_interpolate(x, &resize), ts_instance_norm(x, ones, zeros, 1e-5)};
    for (int k = 0; k < (int)(sizeof modules / sizeof *modules); k++) {
        OK(modules[k]);
        ts_tensor *y = ts_forward(modules[k], x);
        OK(y);
        ck_assert_mem_eq(ts_data(y), ts_data(wanted[k]), (size_t)ts_numel(y) * 4);
        ts_module_free(modules[k]);
    }
    expect_error(ts_group_norm_new(3, 4, 0, true), TS_ERR_VALUE, "divisor");
    expect_error(ts_batch_norm_new(0, NULL), TS_ERR_VALUE, "at least 1");
    expect_error(ts_max_pool_new(4, &pool), TS_ERR_VALUE, "1 to 3");
}
