/** @file amp.c  The gradient scaler: scale updates, errors, clipping, checkpoints; and training in
 * bf16 and f16. */
// SPDX-License-Identifier: MIT
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "core/alloc.h"
#include "tests/io/folder.h"

static ts_grad_scaler *scaler_of(double scale, int64_t interval)
{
    ts_grad_scaler *s = ts_grad_scaler_new(
        TS_OPTS(ts_grad_scaler_opts, .init_scale = scale, .growth_interval = interval));
    ck_ok(s);
    return s;
}

/** A parameter of n ones with the gradient g in each element, and SGD of rate 1 over it. */
typedef struct one_param {
    ts_tensor *w;
    ts_optimizer *o;
} one_param;

static one_param make_param(int64_t n)
{
    one_param p = {.w = ts_set_requires_grad(ts_ones(TS_SIZES(n), TS_F32), true),
                   .o = ts_optimizer_new(TS_SGD)};
    ts_group_opts opts = ts_optimizer_defaults(TS_SGD, 1);
    ck_ok(ts_optimizer_add_group(p.o, (const char *const[]){"w"}, &p.w, 1, &opts));
    return p;
}

static void give(one_param *p, double g)
{
    ck_ok(ts_set_grad(p->w, ts_full(ts_sizes(p->w), 1, ts_scalar_float(g), TS_F32)));
}
static double at(const ts_tensor *t, int64_t i) { return (double)((const float *)ts_data(t))[i]; }

static bool fails(ts_status code, ts_status status, const char *text)
{
    bool right = status == code && ts_error_code() == code && strstr(ts_error_message(), text);
    if (!right)
        printf("%s: %s\n", ts_status_name(status), ts_error_message());
    ts_error_clear();
    return right;
}

/* -------------------------------------------------------------------------------- the rule ---- */

TS_TEST(a_scaled_step_is_the_plain_step)
{
    TS_SCOPE;
    ts_grad_scaler *s = scaler_of(1024, 0);
    one_param p = make_param(3), q = make_param(3);
    ts_tensor *x = ts_from_array((float[]){1, -2, 0.5f}, TS_F32, (int64_t[]){3}, 1);
    ck_ok(ts_backward(ts_sum(ts_mul(p.w, x))));
    ts_tensor *scaled = ts_grad_scaler_scale(s, ts_sum(ts_mul(q.w, x)));
    ck_ok(ts_backward(scaled));
    ck_assert_double_eq(at(ts_grad(q.w), 1), -2048);
    ck_ok(ts_optimizer_step(p.o));
    ck_ok(ts_grad_scaler_step(s, q.o));
    ck_ok(ts_grad_scaler_update(s));
    for (int i = 0; i < 3; i++)
        ck_assert_double_eq(at(p.w, i), at(q.w, i));
    ck_assert_int_eq(ts_grad_scaler_skipped(s), 0);
    ts_optimizer_free(p.o);
    ts_optimizer_free(q.o);
    ts_grad_scaler_free(s);
}

TS_TEST(an_overflow_skips_the_step_and_halves_the_scale)
{
    static const double odd[] = {INFINITY, -INFINITY, NAN};
    for (int k = 0; k < 3; k++) {
        TS_SCOPE;
        ts_grad_scaler *s = scaler_of(8, 0);
        one_param p = make_param(100);
        give(&p, 1);
        ck_ok(ts_fill_(ts_narrow(ts_grad(p.w), 0, 99 - k, 1), odd[k]));
        ck_ok(ts_grad_scaler_step(s, p.o));
        ck_assert_double_eq(at(p.w, 0), 1); /* unchanged */
        ck_assert_int_eq(ts_grad_scaler_skipped(s), 1);
        ck_ok(ts_grad_scaler_update(s));
        ck_assert_double_eq(ts_grad_scaler_get_scale(s), 4);
        give(&p, 4);
        ck_ok(ts_grad_scaler_step(s, p.o));
        ck_assert_double_eq(at(p.w, 0), 0);
        ts_optimizer_free(p.o);
        ts_grad_scaler_free(s);
    }
}

/* Adam divides by 1 - beta^t, so if a skipped step counted in t, later steps would differ. */
TS_TEST(a_skipped_step_does_not_count_with_or_without_the_scaler_afterwards, .loop = 2)
{
    TS_SCOPE;
    ts_grad_scaler *s = scaler_of(1, 0);
    ts_group_opts opts = ts_optimizer_defaults(TS_ADAM, 0.1);
    one_param p[2];
    for (int k = 0; k < 2; k++) {
        p[k] = (one_param){ts_set_requires_grad(ts_ones(TS_SIZES(3), TS_F32), true),
                           ts_optimizer_new(TS_ADAM)};
        ck_ok(ts_optimizer_add_group(p[k].o, (const char *const[]){"w"}, &p[k].w, 1, &opts));
    }
    static const double grads[] = {1, NAN, -3, 0.5};
    for (int i = 0; i < 4; i++) {
        give(&p[0], grads[i]);
        if (_i && i == 3) {
            ck_ok(ts_optimizer_step(p[0].o)); /* a step without the scaler */
        } else {
            ck_ok(ts_grad_scaler_step(s, p[0].o));
            ck_ok(ts_grad_scaler_update(s));
        }
        ck_ok(ts_grad_scaler_set_number(s, "scale", 1));
        if (i == 1)
            continue;
        give(&p[1], grads[i]);
        ck_ok(ts_optimizer_step(p[1].o));
        ck_assert_double_eq(at(p[0].w, 2), at(p[1].w, 2));
    }
    ts_named_tensors state;
    ck_ok(ts_optimizer_state(p[0].o, &state));
    ck_assert_str_eq(state.names[state.n - 1], "steps");
    ck_assert_int_eq(*(const int64_t *)ts_data(state.tensors[state.n - 1]), 3);
    ts_named_tensors_free(&state);
    for (int k = 0; k < 2; k++)
        ts_optimizer_free(p[k].o);
    ts_grad_scaler_free(s);
}

TS_TEST(the_scale_grows_after_an_interval_without_overflows_and_stays_finite)
{
    TS_SCOPE;
    ts_grad_scaler *s = scaler_of(2, 3);
    one_param p = make_param(1);
    double want[] = {2, 2, 4, 4, 2, 2, 2, 4}; /* step 5 overflows */
    for (int k = 0; k < 8; k++) {
        give(&p, k == 4 ? INFINITY : 0);
        ck_ok(ts_grad_scaler_step(s, p.o));
        ck_ok(ts_grad_scaler_update(s));
        ck_assert_double_eq(ts_grad_scaler_get_scale(s), want[k]);
    }
    ck_ok(ts_grad_scaler_set_number(s, "scale", 0x1p127));
    ck_ok(ts_grad_scaler_set_number(s, "growth_tracker", 2));
    give(&p, 0);
    ck_ok(ts_grad_scaler_step(s, p.o));
    ck_ok(ts_grad_scaler_update(s));
    ck_assert_double_eq(ts_grad_scaler_get_scale(s), 0x1p127);
    ck_ok(ts_grad_scaler_set_number(s, "scale", FLT_MIN)); /* the least scale */
    give(&p, NAN);
    ck_ok(ts_grad_scaler_step(s, p.o));
    ck_ok(ts_grad_scaler_update(s));
    ck_assert_double_eq(ts_grad_scaler_get_scale(s), FLT_MIN);
    ts_optimizer_free(p.o);
    ts_grad_scaler_free(s);
}

TS_TEST(clipping_sees_the_gradients_unscaled)
{
    TS_SCOPE;
    ts_grad_scaler *s = scaler_of(65536, 0);
    one_param p = make_param(2);
    give(&p, 65536 * 3.0);
    ck_ok(ts_grad_scaler_unscale(s, p.o));
    ck_assert_double_eq(at(ts_grad(p.w), 0), 3);
    ts_tensor *norm;
    double length;
    ck_ok(ts_clip_grad_norm(ts_optimizer_params(p.o, NULL), 1, 1, &norm));
    ck_ok(ts_item(norm, &length));
    ck_assert_double_eq_tol(length, 3 * sqrt(2), 1e-6);
    ck_ok(ts_grad_scaler_step(s, p.o)); /* gradients are unscaled already */
    ck_assert_double_eq_tol(at(p.w, 0), 1 - sqrt(0.5), 1e-6);
    ck_ok(ts_grad_scaler_update(s));
    ts_optimizer_free(p.o);
    ts_grad_scaler_free(s);
}

TS_TEST(each_optimizer_is_skipped_alone_and_the_scale_follows_all)
{
    TS_SCOPE;
    ts_grad_scaler *s = scaler_of(2, 0);
    enum { N = 9 };
    one_param p[N];
    for (int k = 0; k < N; k++) {
        p[k] = make_param(2);
        give(&p[k], k == 3 ? INFINITY : 2);
    }
    for (int k = 0; k < N; k++)
        ck_ok(ts_grad_scaler_unscale(s, p[k].o));
    for (int k = 0; k < N; k++)
        ck_ok(ts_grad_scaler_step(s, p[k].o));
    ck_ok(ts_grad_scaler_update(s));
    ck_assert_double_eq(ts_grad_scaler_get_scale(s), 1);
    ck_assert_int_eq(ts_grad_scaler_skipped(s), 1);
    for (int k = 0; k < N; k++) {
        ck_assert_double_eq(at(p[k].w, 1), k == 3 ? 1 : 0);
        ts_optimizer_free(p[k].o);
    }
    ts_grad_scaler_free(s);
}

TS_TEST(wrong_orders_and_numbers_are_errors)
{
    TS_SCOPE;
    ts_grad_scaler *s = scaler_of(2, 0);
    one_param p = make_param(2);
    give(&p, 2);
    ck_assert(fails(TS_ERR_STATE, ts_grad_scaler_update(s), "no gradients"));
    ck_ok(ts_grad_scaler_unscale(s, p.o));
    ck_assert(fails(TS_ERR_STATE, ts_grad_scaler_unscale(s, p.o), "unscaled already"));
    ck_ok(ts_grad_scaler_step(s, p.o));
    ck_assert(fails(TS_ERR_STATE, ts_grad_scaler_unscale(s, p.o), "unscaled already"));
    ck_assert(fails(TS_ERR_STATE, ts_grad_scaler_step(s, p.o), "stepped already"));
    ck_ok(ts_grad_scaler_update(s));
    ck_assert(fails(TS_ERR_STATE, ts_grad_scaler_update(s), "no gradients"));
    ck_assert(fails(TS_ERR_VALUE, ts_grad_scaler_set_number(s, "scale", 0), "scale"));
    ck_assert(fails(TS_ERR_VALUE, ts_grad_scaler_set_number(s, "scale", INFINITY), "scale"));
    ck_assert(fails(TS_ERR_VALUE, ts_grad_scaler_set_number(s, "growth_interval", 1.5), "whole"));
    ck_assert(fails(TS_ERR_VALUE, ts_grad_scaler_set_number(s, "growth_tracker", NAN), "whole"));
    ck_assert(fails(TS_ERR_INDEX, ts_grad_scaler_set_number(s, "speed", 1), "speed"));
    static const ts_grad_scaler_opts wrong[] = {{.init_scale = -1},
                                                {.growth_factor = 1},
                                                {.backoff_factor = 1},
                                                {.growth_interval = -1},
                                                {.init_scale = NAN}};
    for (int k = 0; k < 5; k++)
        ck_assert(!ts_grad_scaler_new(&wrong[k]) &&
                  fails(TS_ERR_VALUE, ts_error_code(), "expected"));
    ck_assert(!ts_grad_scaler_scale(s, NULL) && fails(TS_ERR_NULL, ts_error_code(), "loss"));
    ck_assert(fails(TS_ERR_NULL, ts_grad_scaler_step(NULL, p.o), "'s'"));
    ck_assert(fails(TS_ERR_NULL, ts_grad_scaler_unscale(s, NULL), "'o'"));
    ck_assert(fails(TS_ERR_NULL, ts_grad_scaler_update(NULL), "'s'"));
    ts_grad_scaler_free(NULL);
    ck_assert_double_eq(ts_grad_scaler_get_scale(NULL), 1);
    ts_optimizer_free(p.o);
    ts_grad_scaler_free(s);
}

TS_TEST(gradients_of_f16_are_not_unscaled_in_place)
{
    TS_SCOPE;
    ts_grad_scaler *s = scaler_of(2, 0);
    ts_optimizer *o = ts_optimizer_new(TS_SGD);
    ts_group_opts opts = ts_optimizer_defaults(TS_SGD, 1);
    ts_tensor *w = ts_set_requires_grad(ts_ones(TS_SIZES(2), TS_F16), true);
    ck_ok(ts_optimizer_add_group(o, (const char *const[]){"w"}, &w, 1, &opts));
    ck_ok(ts_backward(ts_grad_scaler_scale(s, ts_sum(w))));
    ck_assert(fails(TS_ERR_DTYPE, ts_grad_scaler_unscale(s, o), "gradients of f16"));
    ts_optimizer_free(o);
    ts_grad_scaler_free(s);
}

/* The unscaled gradient 2^-26 is 0 in f16, so the step must unscale in f32. */
TS_TEST(a_step_takes_gradients_of_f16_that_would_vanish_without_their_scale)
{
    TS_SCOPE;
    ts_grad_scaler *s = scaler_of(1024, 0);
    ts_optimizer *o = ts_optimizer_new(TS_SGD);
    ts_group_opts opts = ts_optimizer_defaults(TS_SGD, 0x1p26);
    ts_tensor *w = ts_set_requires_grad(ts_ones(TS_SIZES(2), TS_F16), true);
    double x;
    ck_ok(ts_optimizer_add_group(o, (const char *const[]){"w"}, &w, 1, &opts));
    ck_ok(ts_set_grad(w, ts_full(TS_SIZES(2), ts_scalar_float(0x1p-16), TS_F16)));
    ck_ok(ts_grad_scaler_step(s, o));
    ck_ok(ts_item(ts_select(ts_detach(w), 0, 1), &x));
    ck_assert_double_eq(x, 0);
    ts_optimizer_free(o);
    ts_grad_scaler_free(s);
}

/* Scales are powers of two, so unscaling on the way is exact, and only the norm of scaled gradients
 * rounds differently. */
TS_TEST(a_fused_step_is_unscaling_clipping_and_a_step_and_leaves_gradients_alone, .loop = 6)
{
    /* none, below and above norms */
    static const double grads[] = {1, -3, INFINITY, 0.5, NAN, 2}, limits[] = {0, 1, 1000};
    ts_optimizer_kind kind = _i % 2 ? TS_SGD : TS_ADAMW;
    double max_norm = limits[_i / 2];
    TS_SCOPE;
    ts_grad_scaler *s[2] = {scaler_of(1024, 2), scaler_of(1024, 2)};
    ts_group_opts opts = ts_optimizer_defaults(kind, 0.1);
    opts.momentum = kind == TS_SGD ? 0.9 : 0;
    one_param p[2];
    for (int k = 0; k < 2; k++) {
        p[k] = (one_param){ts_set_requires_grad(ts_ones(TS_SIZES(5), TS_F32), true),
                           ts_optimizer_new(kind)};
        ck_ok(ts_optimizer_add_group(p[k].o, (const char *const[]){"w"}, &p[k].w, 1, &opts));
    }
    ck_ok(ts_optimizer_set_max_norm(p[0].o, max_norm));
    for (int i = 0; i < 6; i++) {
        double scale = ts_grad_scaler_get_scale(s[0]), before = at(p[0].w, 1);
        ck_assert_double_eq(scale, ts_grad_scaler_get_scale(s[1]));
        for (int k = 0; k < 2; k++)
            give(&p[k], grads[i] * scale);
        ck_ok(ts_grad_scaler_step(s[0], p[0].o));
        ck_ok(ts_grad_scaler_unscale(s[1], p[1].o));
        if (max_norm > 0)
            ck_ok(ts_clip_grad_norm(&p[1].w, 1, max_norm, NULL));
        ck_ok(ts_grad_scaler_step(s[1], p[1].o));
        for (int k = 0; k < 2; k++)
            ck_ok(ts_grad_scaler_update(s[k]));
        ck_assert(at(ts_grad(p[0].w), 4) == grads[i] * scale || isnan(grads[i]));
        ck_assert(isfinite(grads[i]) != (at(p[0].w, 1) == before));
        for (int e = 0; e < 5; e++)
            ck_assert_double_le(fabs(at(p[0].w, e) - at(p[1].w, e)),
                                max_norm == 1 ? 8 * (double)FLT_EPSILON : 0);
    }
    ck_assert_int_eq(ts_grad_scaler_skipped(s[0]), 2);
    ck_assert_int_eq(ts_grad_scaler_skipped(s[1]), 2);
    for (int k = 0; k < 2; k++) {
        ts_optimizer_free(p[k].o);
        ts_grad_scaler_free(s[k]);
    }
}

TS_TEST(an_optimizer_that_clips_does_so_after_an_explicit_unscaling_too)
{
    TS_SCOPE;
    ts_grad_scaler *s = scaler_of(65536, 0);
    one_param p = make_param(2);
    ck_ok(ts_optimizer_set_max_norm(p.o, 1));
    give(&p, 65536 * 3.0);
    ck_ok(ts_grad_scaler_unscale(s, p.o));
    ck_ok(ts_grad_scaler_step(s, p.o));
    ck_assert_double_eq(at(ts_grad(p.w), 0), 3);
    ck_assert_double_eq_tol(at(p.w, 0), 1 - sqrt(0.5), 1e-6);
    ts_optimizer_free(p.o);
    ts_grad_scaler_free(s);
}

TS_TEST(a_disabled_scaler_changes_nothing)
{
    TS_SCOPE;
    ts_grad_scaler *s = ts_grad_scaler_new(TS_OPTS(ts_grad_scaler_opts, .disabled = true));
    one_param p = make_param(2);
    ts_tensor *loss = ts_sum(p.w);
    ck_assert_ptr_eq(ts_grad_scaler_scale(s, loss), loss);
    give(&p, INFINITY);
    ck_ok(ts_grad_scaler_unscale(s, p.o));
    ck_ok(ts_grad_scaler_step(s, p.o));
    ck_ok(ts_grad_scaler_update(s));
    ck_assert_double_eq(at(p.w, 0), -INFINITY);
    ck_assert_double_eq(ts_grad_scaler_get_scale(s), 1);
    ts_optimizer_free(p.o);
    ts_grad_scaler_free(s);
}

TS_TEST(a_loss_of_f16_is_scaled_in_f32)
{
    ts_grad_scaler *s = scaler_of(65536, 0);
    ts_tensor *loss = ts_set_requires_grad(ts_full(NULL, 0, ts_scalar_float(2), TS_F16), true);
    double scaled;
    ck_ok(ts_item(ts_grad_scaler_scale(s, loss), &scaled));
    ck_assert_double_eq(scaled, 131072); /* more than f16 can represent */
    ts_grad_scaler_free(s);
}

/* ---------------------------------------------------------------------------- checkpoints ---- */

TS_TEST(a_checkpoint_keeps_the_numbers_of_the_scaler)
{
    ts_grad_scaler *s = scaler_of(1024, 7), *again = scaler_of(2, 0);
    ts_module *m = ts_linear_new(2, 2, true);
    ck_ok(ts_grad_scaler_set_number(s, "growth_tracker", 5));
    ck_ok(ts_grad_scaler_set_number(s, "skipped", 3));
    ts_training run = {.size = sizeof run, .model = m, .step = 4, .scaler = s};
    ck_ok(ts_training_save(&run, in_folder("run")));
    run.scaler = again;
    ck_ok(ts_training_resume(&run, in_folder("run"), NULL, 0));
    ts_named_number a[16], b[16];
    int64_t n = ts_grad_scaler_numbers(s, a, 16);
    ck_assert_int_eq(ts_grad_scaler_numbers(again, b, 16), n);
    ck_assert_int_gt(n, 4);
    for (int64_t i = 0; i < n; i++)
        ck_assert_msg(a[i].value == b[i].value, "%s: %g and %g", a[i].name, a[i].value, b[i].value);
    run.scaler = NULL; /* a run without a scaler can resume from it ... */
    ck_ok(ts_training_resume(&run, in_folder("run"), NULL, 0));
    ck_ok(ts_training_save(&run, in_folder("plain")));
    run.scaler = again; /* ... but a run with a scaler needs the scaler's numbers */
    ck_assert(fails(TS_ERR_VALUE, ts_training_resume(&run, in_folder("plain"), NULL, 0),
                    "'scale' for the scaler"));
    ck_assert_double_eq(ts_grad_scaler_get_scale(again), 1024);
    ts_module_free(m);
    ts_grad_scaler_free(s);
    ts_grad_scaler_free(again);
}

/* ------------------------------------------------------------------------------- training ---- */

enum { STEPS = 60 };

/** Trains a small network on y = sin(3 a) b, and stores the loss of each step. scale: initial loss
 *  scale; 0: none. Returns the number of system allocations in the second half of the steps. */
static uint64_t train(ts_dtype dtype, double scale, double *losses, int64_t *skipped)
{
    ts_manual_seed(1);
    ts_module *net = ts_mlp_new(2, 64, NULL), *last = ts_linear_new(2, 1, true),
              *all = ts_sequential_new();
    ck_ok(ts_sequential_add(all, net));
    ck_ok(ts_sequential_add(all, last));
    ts_group_opts opts = ts_optimizer_defaults(TS_ADAMW, 0.01);
    ts_optimizer *o = ts_optimizer_for(all, TS_ADAMW, &opts);
    ts_grad_scaler *s = ts_grad_scaler_new(
        TS_OPTS(ts_grad_scaler_opts, .init_scale = scale, .disabled = scale == 0));
    uint64_t allocs = 0;
    for (int k = 0; k < STEPS; k++) {
        TS_SCOPE;
        if (k == STEPS / 2)
            allocs = ts_memory_get_stats().system_allocs;
        ts_tensor *x = ts_uniform(TS_SIZES(128, 2), -1, 1, TS_F32);
        ts_tensor *y =
            ts_mul(ts_sin(ts_mul_scalar(ts_narrow(x, 1, 0, 1), 3)), ts_narrow(x, 1, 1, 1));
        TS_AUTOCAST(TS_DEVICE_CPU, dtype);
        ts_tensor *loss = ts_mse_loss(ts_forward(all, x), y);
        ck_ok(ts_backward(ts_grad_scaler_scale(s, loss)));
        ck_ok(ts_grad_scaler_step(s, o));
        ck_ok(ts_grad_scaler_update(s));
        ts_optimizer_zero_grad(o);
        ck_ok(ts_item(loss, &losses[k]));
    }
    allocs = ts_memory_get_stats().system_allocs - allocs;
    *skipped = ts_grad_scaler_skipped(s);
    ts_grad_scaler_free(s);
    ts_optimizer_free(o);
    ts_module_free(all);
    return allocs;
}

TS_TEST(training_in_halves_follows_the_curve_of_f32)
{
    double full[STEPS], bf16[STEPS], f16[STEPS];
    int64_t skipped;
    train(TS_DTYPE_NONE, 0, full, &skipped);
    train(TS_BF16, 0, bf16, &skipped);
    train(TS_F16, 256, f16, &skipped);
    ck_assert_int_eq(skipped, 0);
    ck_assert_double_lt(full[STEPS - 1], 0.5 * full[0]);
    int differ = 0;
    for (int k = 0; k < STEPS; k++) {
        /* products have relative errors of about 2^-8 (bf16) and 2^-11 (f16), a few per step */
        ck_assert_double_eq_tol(bf16[k], full[k], 8 * 0x1p-8 * full[0]);
        ck_assert_double_eq_tol(f16[k], full[k], 8 * 0x1p-11 * full[0]);
        differ += bf16[k] != full[k];
    }
    ck_assert_int_gt(differ, STEPS / 2); /* else nothing was cast */
}

TS_TEST(a_scaled_step_in_a_region_allocates_nothing_in_the_steady_state)
{
    if (ts_alloc_system)
        TS_SKIP("every block comes from the system");
    double losses[STEPS];
    int64_t skipped;
    ck_assert_uint_eq(train(TS_F16, 0x1p30, losses, &skipped), 0);
    ck_assert_int_gt(skipped, 5);
    ck_assert_int_lt(skipped, 20); /* later steps are not skipped */
    ck_assert_double_lt(losses[STEPS - 1], losses[0]);
}
