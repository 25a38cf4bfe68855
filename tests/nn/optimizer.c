// Optimizers, clipping, schedules: against the update rules in plain C, and their checkpoints.
// SPDX-License-Identifier: MIT
#include <float.h>
#include <math.h>
#include <string.h>

#include "core/alloc.h"
#include "include/tessera/tessera.h"
#include "tests/harness.h"

enum { N = 3 };
static const char *const names[N] = {"a.weight", "a.bias", "b"};

/** Three leaves of 4, 2 and 1 elements, f64, in the innermost scope. */
static void make_params(ts_tensor **params)
{
    for (int i = 0; i < N; i++) {
        int64_t n = i == 0 ? 4 : i == 1 ? 2 : 1;
        params[i] = ts_zeros(&n, 1, TS_F64);
        for (int64_t k = 0; k < n; k++)
            ((double *)ts_data_mut(params[i]))[k] = sin(1 + i + (double)k);
        ts_set_requires_grad(params[i], true);
    }
}

static double gradient_at(int step, int i, int64_t k)
{
    return cos(step * 0.7 + i + 2 * (double)k);
}

/** Sets gradients of a step; `b` gets one only at even steps. */
static void set_grads(ts_tensor **params, int step)
{
    TS_SCOPE;
    for (int i = 0; i < N; i++) {
        if (i == 2 && step % 2)
            continue;
        ts_tensor *g = ts_zeros_like(ts_detach(params[i]));
        for (int64_t k = 0; k < ts_numel(g); k++)
            ((double *)ts_data_mut(g))[k] = gradient_at(step, i, k);
        ck_assert_int_eq(ts_set_grad(params[i], g), TS_OK);
    }
}

static double value(const ts_tensor *t, int64_t k) { return ((const double *)ts_data(t))[k]; }

/** Element k of parameter i after `steps` steps, computed in plain C. */
static double expected(ts_optimizer_kind kind, const ts_group_opts *p, int i, int64_t k, int steps)
{
    double x = sin(1 + i + (double)k), m = 0, v = 0;
    int t = 0;
    for (int step = 0; step < steps; step++) {
        if (i == 2 && step % 2)
            continue;
        double g = gradient_at(step, i, k);
        t++;
        if (kind == TS_ADAMW)
            x *= 1 - p->lr * p->weight_decay;
        else
            g += p->weight_decay * x;
        if (kind == TS_SGD) {
            m = t == 1 ? g : p->momentum * m + (1 - p->dampening) * g;
            x -= p->lr * (p->momentum == 0 ? g : p->nesterov ? g + p->momentum * m : m);
            continue;
        }
        m = p->beta1 * m + (1 - p->beta1) * g;
        v = p->beta2 * v + (1 - p->beta2) * g * g;
        x -= p->lr * (m / (1 - pow(p->beta1, t))) / (sqrt(v / (1 - pow(p->beta2, t))) + p->eps);
    }
    return x;
}

TS_TEST(steps_follow_the_rules_per_group, .loop = 4)
{
    ts_optimizer_kind kind = _i == 3 ? TS_SGD : (ts_optimizer_kind)_i;
    TS_SCOPE;
    ts_tensor *params[N];
    make_params(params);
    ts_group_opts first = ts_optimizer_defaults(kind, 0.05), second = first;
    first.weight_decay = 0.1;
    second.lr = 0.2;
    if (kind == TS_SGD) {
        first.momentum = 0.9;
        first.nesterov = _i == 3;
        first.dampening = _i == 3 ? 0 : 0.3;
    }
    ts_optimizer *o = ts_optimizer_new(kind);
    ck_assert_int_eq(ts_optimizer_add_group(o, names, params, 1, &first), TS_OK);
    ck_assert_int_eq(ts_optimizer_add_group(o, names + 1, params + 1, 2, &second), TS_OK);
    for (int step = 0; step < 5; step++) {
        ts_optimizer_zero_grad(o);
        set_grads(params, step);
        ck_assert_int_eq(ts_optimizer_step(o), TS_OK);
    }
    for (int i = 0; i < N; i++)
        for (int64_t k = 0; k < ts_numel(params[i]); k++)
            ck_assert_double_eq_tol(value(params[i], k),
                                    expected(kind, i ? &second : &first, i, k, 5), 1e-14);
    ts_optimizer_free(o);
}

TS_TEST(a_step_takes_no_memory_from_the_system)
{
    TS_SCOPE;
    ts_tensor *params[N];
    make_params(params);
    ts_group_opts opts = ts_optimizer_defaults(TS_ADAMW, 0.1);
    ts_optimizer *o = ts_optimizer_new(TS_ADAMW);
    ts_optimizer_add_group(o, names, params, N, &opts);
    uint64_t before = 0;
    for (int step = 0; step < 6; step++) {
        TS_SCOPE;
        if (step == 2)
            before = ts_memory_get_stats().system_allocs;
        set_grads(params, step);
        ts_tensor *norm;
        ck_assert_int_eq(ts_clip_grad_norm(params, N, 1, &norm), TS_OK);
        ck_assert_int_eq(ts_optimizer_set_max_norm(o, 0.5), TS_OK);
        ck_assert_int_eq(ts_optimizer_step(o), TS_OK);
        ts_optimizer_zero_grad(o);
    }
    if (!ts_alloc_system)
        ck_assert_uint_eq(ts_memory_get_stats().system_allocs, before);
    ts_optimizer_free(o);
}

TS_TEST(clipping_scales_all_gradients_together)
{
    TS_SCOPE;
    ts_tensor *params[N], *norm;
    make_params(params);
    ck_assert_int_eq(ts_clip_grad_norm(params, N, 1, &norm), TS_OK); /* none has a gradient */
    ck_assert_double_eq((double)*(const float *)ts_data(norm), 0);
    set_grads(params, 0);
    double sum = 0;
    for (int i = 0; i < N; i++)
        for (int64_t k = 0; k < ts_numel(params[i]); k++)
            sum += gradient_at(0, i, k) * gradient_at(0, i, k);
    ck_assert_int_eq(ts_clip_grad_norm(params, N, 0.5, &norm), TS_OK);
    ck_assert_double_eq_tol(*(const double *)ts_data(norm), sqrt(sum), 1e-14);
    for (int i = 0; i < N; i++)
        for (int64_t k = 0; k < ts_numel(params[i]); k++)
            ck_assert_double_eq_tol(value(ts_grad(params[i]), k),
                                    gradient_at(0, i, k) * 0.5 / (sqrt(sum) + 1e-6), 1e-14);
    ck_assert_int_eq(ts_clip_grad_norm(params, N, 0.6, NULL), TS_OK);
    ck_assert_double_eq_tol(value(ts_grad(params[2]), 0),
                            gradient_at(0, 2, 0) * 0.5 / (sqrt(sum) + 1e-6), 1e-14);
    ck_assert_int_eq(ts_clip_grad_norm(params, N, -1, NULL), TS_ERR_VALUE);
    ck_assert_int_eq(ts_clip_grad_norm(NULL, 1, 1, NULL) != TS_OK, 1);
}

/* The clip factor is an f32: it has the rounding errors of the ops that compute it. */
TS_TEST(a_step_that_clips_is_clipping_then_a_step_and_leaves_gradients_alone, .loop = 6)
{
    ts_optimizer_kind kind = (ts_optimizer_kind)(_i % 3);
    double max_norm = _i / 3 ? 100 : 0.3; /* above the norm, and below */
    TS_SCOPE;
    ts_tensor *params[2][N];
    ts_optimizer *o[2];
    ts_group_opts first = ts_optimizer_defaults(kind, 0.05),
                  second = ts_optimizer_defaults(kind, 0.2);
    first.momentum = kind == TS_SGD ? 0.9 : 0;
    for (int k = 0; k < 2; k++) {
        make_params(params[k]);
        o[k] = ts_optimizer_new(kind);
        ck_assert_int_eq(ts_optimizer_add_group(o[k], names, params[k], 1, &first), TS_OK);
        ck_assert_int_eq(ts_optimizer_add_group(o[k], names + 1, params[k] + 1, 2, &second), TS_OK);
    }
    ck_assert_int_eq(ts_optimizer_set_max_norm(o[0], max_norm), TS_OK);
    for (int step = 0; step < 5; step++) {
        for (int k = 0; k < 2; k++) {
            ts_optimizer_zero_grad(o[k]);
            set_grads(params[k], step);
            if (k == 1)
                ck_assert_int_eq(ts_clip_grad_norm(params[k], N, max_norm, NULL), TS_OK);
            ck_assert_int_eq(ts_optimizer_step(o[k]), TS_OK);
        }
        for (int i = 0; i < N; i++)
            for (int64_t j = 0; j < ts_numel(params[0][i]) && ts_grad(params[0][i]) != TS_NONE; j++)
                ck_assert_double_eq(value(ts_grad(params[0][i]), j), gradient_at(step, i, j));
    }
    for (int i = 0; i < N; i++)
        for (int64_t k = 0; k < ts_numel(params[0][i]); k++)
            ck_assert_double_le(fabs(value(params[0][i], k) - value(params[1][i], k)),
                                max_norm < 1 ? 4 * (double)FLT_EPSILON : 0);
    for (int k = 0; k < 2; k++)
        ts_optimizer_free(o[k]);
}

TS_TEST(clipping_in_steps_begins_and_ends_with_its_number)
{
    TS_SCOPE;
    ts_tensor *params[N];
    make_params(params);
    double x = value(params[2], 0), g = gradient_at(0, 2, 0);
    ts_group_opts opts = ts_optimizer_defaults(TS_SGD, 1);
    ts_optimizer *o = ts_optimizer_new(TS_SGD);
    ck_assert_int_eq(ts_optimizer_add_group(o, names + 2, params + 2, 1, &opts), TS_OK);
    ck_assert_int_eq(ts_optimizer_set_max_norm(o, 0.25 * fabs(g)), TS_OK);
    ck_assert_int_eq(ts_optimizer_step(o), TS_OK); /* no gradients, no norm */
    ck_assert_double_eq(value(params[2], 0), x);
    set_grads(params, 0);
    ck_assert_int_eq(ts_optimizer_step(o), TS_OK);
    /* the tolerance covers the 1e-6 that clipping adds to the norm */
    ck_assert_double_eq_tol(value(params[2], 0), x - 0.25 * g, 2e-6);
    ck_assert_int_eq(ts_optimizer_set_max_norm(o, -1), TS_ERR_VALUE);
    ck_assert_int_eq(ts_optimizer_set_max_norm(o, NAN), TS_ERR_VALUE);
    ck_assert_int_eq(ts_optimizer_set_max_norm(o, INFINITY), TS_ERR_VALUE);
    ck_assert_ptr_nonnull(
        strstr(ts_error_message(), "'max_norm': expected a finite number of at least 0, got inf"));
    ts_error_clear();
    ck_assert_int_eq(ts_optimizer_set_max_norm(NULL, 1), TS_ERR_NULL);
    x = value(params[2], 0);
    ck_assert_int_eq(ts_optimizer_set_max_norm(o, 0), TS_OK);
    ck_assert_int_eq(ts_optimizer_step(o), TS_OK);
    ck_assert_double_eq(value(params[2], 0), x - g);
    ts_optimizer_free(o);
}

/* ---------------------------------------------------------------------------- checkpoints ---- */

TS_TEST(training_from_a_saved_state_is_bit_identical, .loop = 2)
{
    ts_optimizer_kind kind = _i ? TS_SGD : TS_ADAMW;
    TS_SCOPE;
    ts_tensor *params[2][N];
    ts_optimizer *o[2];
    ts_group_opts opts = ts_optimizer_defaults(kind, 0.1);
    opts.momentum = _i ? 0.9 : 0;
    for (int k = 0; k < 2; k++) {
        make_params(params[k]);
        o[k] = ts_optimizer_new(kind);
        ck_assert_int_eq(ts_optimizer_add_group(o[k], names, params[k], N, &opts), TS_OK);
    }
    ts_schedule warm = {TS_SCHEDULE_COSINE, 2, 6, 0, 0.1};
    for (int step = 0; step < 6; step++) {
        if (step == 3) { /* o[1] gets the state of o[0] */
            ts_named_tensors state;
            ts_named_number numbers[32];
            ck_assert_int_eq(ts_optimizer_state(o[0], &state), TS_OK);
            ck_assert_int_eq(state.n, _i ? 4 : 7);
            ck_assert_str_eq(state.names[0], _i ? "momentum_buffer.a.weight" : "exp_avg.a.weight");
            ck_assert_str_eq(state.names[state.n - 1], "steps");
            ck_assert_int_eq(ts_optimizer_load_state(o[1], state.names, state.tensors, state.n),
                             TS_OK);
            ts_named_tensors_free(&state);
            int64_t count = ts_optimizer_numbers(o[0], numbers, 32);
            ck_assert_int_eq(count, 8);
            ck_assert_str_eq(numbers[0].name, "groups.0.lr");
            for (int64_t i = 0; i < count; i++)
                ck_assert_int_eq(ts_optimizer_set_number(o[1], numbers[i].name, numbers[i].value),
                                 TS_OK);
            TS_NO_GRAD;
            for (int i = 0; i < N; i++)
                ts_copy_(params[1][i], params[0][i]);
        }
        for (int k = step < 3 ? 0 : 1; k >= 0; k--) {
            ts_optimizer_zero_grad(o[k]);
            set_grads(params[k], step);
            ck_assert_int_eq(ts_schedule_apply(&warm, o[k], step), TS_OK);
            ck_assert_int_eq(ts_optimizer_step(o[k]), TS_OK);
        }
    }
    for (int i = 0; i < N; i++)
        ck_assert_mem_eq(ts_data(params[0][i]), ts_data(params[1][i]),
                         (size_t)ts_numel(params[0][i]) * 8);
    ts_optimizer_free(o[0]);
    ts_optimizer_free(o[1]);
}

TS_TEST(a_state_that_does_not_fit_changes_nothing)
{
    TS_SCOPE;
    ts_tensor *params[N];
    make_params(params);
    ts_group_opts opts = ts_optimizer_defaults(TS_ADAM, 0.1);
    ts_optimizer *o = ts_optimizer_new(TS_ADAM);
    ts_optimizer_add_group(o, names, params, N, &opts);
    set_grads(params, 0);
    ts_optimizer_step(o);
    ts_named_tensors state;
    ts_optimizer_state(o, &state);
    double before = value(state.tensors[0], 0);
    ts_tensor *zeros[7], *kept;
    for (int i = 0; i < 7; i++)
        zeros[i] = ts_zeros_like(state.tensors[i]);
    ck_assert_int_eq(ts_optimizer_load_state(o, state.names, zeros, 6), TS_ERR_VALUE);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "missing: steps"));
    kept = zeros[5];
    zeros[5] = ts_zeros(TS_SIZES(9), TS_F64);
    ck_assert_int_eq(ts_optimizer_load_state(o, state.names, zeros, 7), TS_ERR_VALUE);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "sizes differ: exp_avg_sq.b expected "));
    ck_assert_ptr_nonnull(strstr(ts_error_message(), " got (9)"));
    zeros[5] = kept;
    const char *more[8] = {"extra"};
    ts_tensor *tensors[8] = {kept};
    memcpy(more + 1, state.names, 7 * sizeof *more);
    memcpy(tensors + 1, zeros, 7 * sizeof *tensors);
    ck_assert_int_eq(ts_optimizer_load_state(o, more, tensors, 8), TS_ERR_VALUE);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "unexpected: extra"));
    ck_assert_double_eq(value(state.tensors[0], 0), before);
    ck_assert_int_eq(ts_optimizer_set_number(o, "groups.1.lr", 1), TS_ERR_INDEX);
    ts_named_tensors_free(&state);
    ts_optimizer_free(o);
}

TS_TEST(invalid_groups_are_refused)
{
    TS_SCOPE;
    ts_tensor *params[N];
    make_params(params);
    ts_group_opts good = ts_optimizer_defaults(TS_SGD, 0.1), bad = good;
    ts_optimizer *o = ts_optimizer_new(TS_SGD);
    bad.lr = NAN;
    ck_assert_int_eq(ts_optimizer_add_group(o, names, params, N, &bad), TS_ERR_VALUE);
    bad = good;
    bad.nesterov = true;
    ck_assert_int_eq(ts_optimizer_add_group(o, names, params, N, &bad), TS_ERR_VALUE);
    ck_assert_int_eq(ts_optimizer_add_group(o, names, params, 2, &good), TS_OK);
    ck_assert_int_eq(ts_optimizer_add_group(o, names, params, 1, &good), TS_ERR_VALUE);
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "'a.weight'"));
    /* the name is taken */
    ck_assert_int_eq(ts_optimizer_add_group(o, names, params + 2, 1, &good), TS_ERR_VALUE);
    ts_tensor *plain = ts_ones(TS_SIZES(2), TS_F32), *whole = ts_ones(TS_SIZES(2), TS_I64);
    ck_assert_int_eq(ts_optimizer_add_group(o, names + 2, &plain, 1, &good), TS_ERR_VALUE);
    ck_assert_int_eq(ts_optimizer_add_group(o, names + 2, &whole, 1, &good), TS_ERR_VALUE);
    ts_error_clear();
    ck_assert_int_eq(ts_optimizer_add_group(o, NULL, params, 1, &good), TS_ERR_NULL);
    int64_t n;
    ck_assert_ptr_eq(ts_optimizer_params(o, &n)[1], params[1]);
    ck_assert_int_eq(n, 2);
    ck_assert_int_eq(ts_optimizer_num_groups(o), 1);
    ck_assert_ptr_null(ts_optimizer_group(o, 1));
    ts_optimizer_free(o);
    ck_assert_ptr_null(ts_optimizer_new((ts_optimizer_kind)9));
    ck_assert_ptr_null(ts_optimizer_for(NULL, TS_SGD, &good));
    ts_optimizer_free(NULL);
}

TS_TEST(a_module_learns)
{
    ts_manual_seed(3);
    ts_module *m =
        ts_mlp_new(4, 16, &(ts_mlp_opts){.size = sizeof(ts_mlp_opts), .activation = ts_tanh});
    ts_group_opts opts = ts_optimizer_defaults(TS_ADAMW, 0.02);
    ts_optimizer *o = ts_optimizer_for(m, TS_ADAMW, &opts);
    ck_assert_ptr_nonnull(o);
    double first = 0, last = 0;
    TS_SCOPE;
    ts_tensor *x = ts_normal(TS_SIZES(64, 4), 0, 1, TS_F32), *want = ts_sin(x);
    for (int step = 0; step < 200; step++) {
        TS_SCOPE;
        ts_tensor *d = ts_sub(ts_forward(m, x), want), *loss = ts_mean(ts_mul(d, d));
        ck_assert_int_eq(ts_backward(loss), TS_OK);
        ck_assert_int_eq(ts_optimizer_step(o), TS_OK);
        ts_optimizer_zero_grad(o);
        ts_item(loss, step ? &last : &first);
    }
    ck_assert_double_lt(last, 0.05 * first);
    ts_optimizer_free(o);
    ts_module_free(m);
}

/* ------------------------------------------------------------------------------ schedules ---- */

TS_TEST(schedules_meet_their_points)
{
    ts_schedule s = {TS_SCHEDULE_CONSTANT, 0, 0, 0, 0};
    ck_assert_double_eq(ts_schedule_at(&s, 0), 1);
    ck_assert_double_eq(ts_schedule_at(&s, 1000000), 1);
    s = (ts_schedule){TS_SCHEDULE_CONSTANT, 4, 0, 0, 0};
    ck_assert_double_eq(ts_schedule_at(&s, 0), 0.2);
    ck_assert_double_eq(ts_schedule_at(&s, 3), 0.8);
    ck_assert_double_eq(ts_schedule_at(&s, 4), 1);
    s = (ts_schedule){TS_SCHEDULE_LINEAR, 10, 110, 0, 0.5};
    ck_assert_double_eq(ts_schedule_at(&s, 10), 1);
    ck_assert_double_eq(ts_schedule_at(&s, 60), 0.75);
    ck_assert_double_eq(ts_schedule_at(&s, 110), 0.5);
    ck_assert_double_eq(ts_schedule_at(&s, 200), 0.5);
    s = (ts_schedule){TS_SCHEDULE_COSINE, 10, 110, 0, 0.1};
    ck_assert_double_eq(ts_schedule_at(&s, 10), 1);
    ck_assert_double_eq_tol(ts_schedule_at(&s, 60), 0.55, 1e-15);
    ck_assert_double_eq_tol(ts_schedule_at(&s, 35), 0.1 + 0.45 * (1 + sqrt(0.5)), 1e-15);
    ck_assert_double_eq_tol(ts_schedule_at(&s, 110), 0.1, 1e-15);
    s = (ts_schedule){TS_SCHEDULE_WSD, 10, 110, 20, 0};
    ck_assert_double_eq(ts_schedule_at(&s, 90), 1);
    ck_assert_double_eq(ts_schedule_at(&s, 100), 0.5);
    ck_assert_double_eq(ts_schedule_at(&s, 110), 0);
    s = (ts_schedule){TS_SCHEDULE_LINEAR, INT64_MIN, INT64_MAX, 0, 0}; /* UBSan is quiet */
    ck_assert_double_eq(ts_schedule_at(&s, 0), 0.5);
    s = (ts_schedule){TS_SCHEDULE_WSD, 0, INT64_MIN, INT64_MAX, 0.25};
    ck_assert_double_eq(ts_schedule_at(&s, 5), 0.25);
    ck_assert(isnan(ts_schedule_at(NULL, 0)));
}

TS_TEST(a_schedule_sets_every_group_from_its_initial_rate)
{
    TS_SCOPE;
    ts_tensor *params[N];
    make_params(params);
    ts_group_opts a = ts_optimizer_defaults(TS_SGD, 1), b = ts_optimizer_defaults(TS_SGD, 4);
    ts_optimizer *o = ts_optimizer_new(TS_SGD);
    ts_optimizer_add_group(o, names, params, 1, &a);
    ts_optimizer_add_group(o, names + 1, params + 1, 2, &b);
    ts_schedule s = {TS_SCHEDULE_LINEAR, 0, 4, 0, 0};
    for (int64_t step = 0; step <= 4; step++) {
        ck_assert_int_eq(ts_schedule_apply(&s, o, step), TS_OK);
        ck_assert_double_eq(ts_optimizer_group(o, 0)->lr, 1 - (double)step / 4);
        ck_assert_double_eq(ts_optimizer_group(o, 1)->lr, 4 - (double)step);
    }
    s.final_ratio = -1;
    ck_assert_int_eq(ts_schedule_apply(&s, o, 4), TS_ERR_VALUE);
    ck_assert_int_eq(ts_schedule_apply(NULL, o, 4) != TS_OK, 1);
    ts_optimizer_free(o);
}

TS_TEST(names_of_parameters_are_checked)
{
    static const char *const bad[] = {"", "a b", "a\n", "\x1b[31m", "\xc3\xa9", "__metadata__"};
    TS_SCOPE;
    ts_tensor *params[N];
    make_params(params);
    ts_group_opts group = ts_optimizer_defaults(TS_SGD, 0.1);
    ts_optimizer *o = ts_optimizer_new(TS_SGD);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ck_assert_int_eq(ts_optimizer_add_group(o, &bad[i], params, 1, &group), TS_ERR_VALUE);
        ck_assert_ptr_nonnull(strstr(ts_error_message(), "optimizer_add_group: argument 'names'"));
    }
    ck_assert_int_eq(ts_optimizer_add_group(o, names, params, 1, &group), TS_OK);
    ck_assert_int_eq(ts_optimizer_add_group(o, names, params + 1, 1, &group), TS_ERR_VALUE);
    ts_optimizer_free(o);
    const ts_module_type type = {.size = sizeof type, .name = "a\x1b"};
    ck_assert_ptr_null(ts_module_new(&type));
    ck_assert_ptr_nonnull(strstr(ts_error_message(), "argument 'name': expected a name"));
}
