/** @file steps.c  Drawn training steps: compiled and eager steps have the same losses, parameters,
 *  gradients and generator, whatever changes from call to call. */
// SPDX-License-Identifier: MIT
#include "compile/compile.h"
#include "tests/compile/stages.h"
#include "tests/tracing/common.h"

enum { WIDTH = 12, LAYERS = 4, STEPS = 12, PARAMS = 2 * LAYERS };

/** The work of a step. The first fields are drawn once, the last for each call. */
typedef struct step {
    ts_tensor *w[LAYERS], *b[LAYERS];
    ts_optimizer *optimizer;
    ts_optimizer_kind kind;
    bool autocast, recomputes, hooks, clips, penalty, keeps_gradients;
    double dropout;
    int layer; /* the layer that layer_part() computes */
    int parts; /* backwards before the update */
    bool reads, seeds, fails, updates;
    int64_t rows;
} step;

static uint64_t state;
static uint32_t below(uint32_t n)
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(state >> 33) % n;
}

static ts_status layer_part(TRACED)
{
    const step *s = ctx;
    ts_tensor *h = ts_linear(in[0], in[1], in[2]);
    h = s->dropout > 0 ? ts_dropout(h, s->dropout, true) : h;
    return TS_STATUS_OF(out[0] = ts_add(in[0], ts_layer_norm(ts_gelu(h), TS_NONE, TS_NONE)));
}

static ts_tensor *halve(void *payload, ts_tensor *grad)
{
    (void)payload;
    return ts_mul_scalar(grad, 0.5);
}

/** A part of the step: forward and backward of in[0]. */
static ts_status add_gradients(step *s, ts_tensor *x, ts_tensor **loss)
{
    ts_tensor *h = x;
    for (int i = 0; i < LAYERS; i++) {
        ts_tensor *in[] = {h, s->w[i], s->b[i]};
        TS_TRY(s->recomputes ? ts_recompute(layer_part, s, in, 3, &h, 1)
                             : layer_part(s, in, 3, &h, 1));
        if (s->hooks && i == 1)
            TS_TRY(ts_register_hook(h, halve, NULL, NULL));
        if (s->fails && i == 2)
            TS_TRY(ts_index_select(h, 0, ts_arange(700, 701, 1, TS_I64)));
    }
    *loss = ts_mean(ts_square(ts_to(h, TS_F32)));
    if (s->penalty) { /* the norm of a gradient, which is differentiated again */
        ts_backward_opts create = {.size = sizeof create, .create_graph = true};
        ts_tensor *grad;
        TS_TRY(ts_grad_of(*loss, TS_NONE, &s->w[0], 1, &grad, &create));
        *loss = ts_add(*loss, ts_mean(ts_square(grad)));
    }
    return ts_backward(*loss);
}

static ts_status train(TRACED)
{
    TS_SCOPE;
    step *s = ctx;
    ts_tensor *loss = NULL, *sum = ts_zeros(TS_SIZES(1), TS_F32);
    double value;
    if (s->seeds)
        ts_manual_seed(77);
    ts_autocast_region region;
    TS_TRY(ts_autocast_enter(&region, ts_default_device(), s->autocast ? TS_BF16 : TS_DTYPE_NONE));
    for (int i = 0; i < s->parts; i++) {
        TS_TRY(add_gradients(s, in[0], &loss));
        TS_TRY(ts_add_(sum, ts_detach(loss)));
        if (s->reads) {
            TS_TRY(ts_item(loss, &value));
            TS_TRY(ts_add_scalar_(sum, value > 1 ? 1 : 2));
        }
    }
    TS_TRY(ts_autocast_exit(&region));
    if (s->updates)
        TS_TRY(ts_optimizer_step(s->optimizer));
    if (s->updates && !s->keeps_gradients)
        ts_optimizer_zero_grad(s->optimizer);
    out[0] = ts_keep(sum);
    return TS_OK;
}

static void begin(step *s)
{
    const char *names[PARAMS] = {"w0", "b0", "w1", "b1", "w2", "b2", "w3", "b3"};
    ts_tensor *params[PARAMS];
    for (int i = 0; i < LAYERS; i++) {
        params[2 * i] = s->w[i] = ts_mul_scalar(numbers((uint64_t)i, TS_SIZES(WIDTH, WIDTH)), 0.3);
        params[2 * i + 1] = s->b[i] = numbers(9 + (uint64_t)i, TS_SIZES(WIDTH));
    }
    for (int i = 0; i < PARAMS; i++)
        OK(ts_set_requires_grad(params[i], true));
    ts_group_opts opts = ts_optimizer_defaults(s->kind, 0.05);
    opts.momentum = s->kind == TS_SGD ? 0.9 : 0;
    OK(s->optimizer = ts_optimizer_new(s->kind));
    OK(ts_optimizer_add_group(s->optimizer, names, params, PARAMS, &opts));
    if (s->clips)
        OK(ts_optimizer_set_max_norm(s->optimizer, 0.5));
}

static void check_steps(uint64_t seed, const ts_compile_opts *opts)
{
    TS_SCOPE;
    state = seed * 0x9e3779b97f4a7c15ull + 1;
    step s = {.kind = (ts_optimizer_kind)below(3), .autocast = below(3) == 0,
              .recomputes = below(3) == 0, .hooks = below(3) == 0, .clips = below(2),
              .penalty = below(4) == 0, .keeps_gradients = below(4) == 0,
              .dropout = below(2) * 0.25};
    if (s.penalty)
        s.autocast = false;
    step eager = s, lazy = s;
    begin(&eager);
    begin(&lazy);
    ts_compiled *c = ts_compile(train, &lazy, opts);
    bool steady = below(2); /* nothing changes from call to call: replays */
    ts_rng_state rng[2] = {{seed, 64}, {seed, 64}};
    for (int i = 0; i < STEPS; i++) {
        TS_SCOPE;
        s = (step){.parts = steady ? 2 : 1 + (int)below(3), .rows = steady ? 5 : 1 + below(9),
                   .reads = !steady && below(5) == 0, .seeds = !steady && below(6) == 0,
                   .fails = !steady && below(6) == 0, .updates = steady || below(4) > 0};
        step *sides[] = {&eager, &lazy};
        ts_status got[2];
        ts_tensor *x = numbers(seed + (uint64_t)i, TS_SIZES(s.rows, WIDTH)), *loss[2];
        char text[2][300];
        for (int k = 0; k < 2; k++) {
            sides[k]->parts = s.parts;
            sides[k]->reads = s.reads;
            sides[k]->seeds = s.seeds;
            sides[k]->fails = s.fails;
            sides[k]->updates = s.updates;
            ts_state_changed();
            ts_rng_set_state(rng[k]);
            ts_error_clear();
            got[k] = k ? ts_compiled_call(c, &x, 1, &loss[k], 1) : train(&eager, &x, 1, loss, 1);
            rng[k] = ts_rng_get_state();
            snprintf(text[k], sizeof text[k], "%s", ts_error_message());
        }
        ck_assert_msg(got[0] == got[1] && strcmp(text[0], text[1]) == 0,
                      "steps %llu, call %d: %d '%s', not %d '%s'", (unsigned long long)seed, i,
                      got[1], text[1], got[0], text[0]);
        ck_assert_msg(got[0] != TS_OK || same(loss[0], loss[1]), "steps %llu, call %d: the loss",
                      (unsigned long long)seed, i);
        ck_assert_msg(rng[0].offset == rng[1].offset && rng[0].seed == rng[1].seed,
                      "steps %llu, call %d: the generator", (unsigned long long)seed, i);
        if (got[0] != TS_OK) /* recorded calls after the failed one have changed versions */
            break;
        for (int p = 0; p < LAYERS; p++)
            ck_assert_msg(same(eager.w[p], lazy.w[p]) && same(eager.b[p], lazy.b[p]) &&
                          same(ts_grad(eager.w[p]), ts_grad(lazy.w[p])) &&
                          ts_version(eager.w[p]) == ts_version(lazy.w[p]),
                          "steps %llu, call %d: parameter %d", (unsigned long long)seed, i, p);
    }
    ts_compiled_free(c);
    ts_optimizer_free(eager.optimizer);
    ts_optimizer_free(lazy.optimizer);
}

TS_TEST(drawn_training_steps_leave_the_state_of_eager_steps, .loop = 5 * STAGES, .timeout = 300)
{
    ts_compile_opts opts[] = {
        {.size = sizeof opts[0]}, {.size = sizeof opts[0], .replay = true},
        {.size = sizeof opts[0], .recompute = 1}, {.size = sizeof opts[0], .max_groups = -1},
        {.size = sizeof opts[0], .max_plans = 2, .replay = true, .verify = 2}};
    const char *seed = getenv("TS_TEST_SEED"), *programs = getenv("TS_TEST_PROGRAMS");
    uint64_t first = seed ? strtoull(seed, NULL, 10) : 1;
    int n = programs ? atoi(programs) / 4 : 40;
    set_stage(stages[_i / 5]);
    for (int i = 0; i < n; i++)
        check_steps(first + 1000 * (uint64_t)_i + (uint64_t)i, &opts[_i % 5]);
    set_stage("full");
}

/* Sizes that change on each call make at most max_plans plans. */
static ts_status any_size(TRACED)
{
    return TS_STATUS_OF(out[0] = ts_softmax(ts_mul(ts_exp(in[0]), in[0]), -1));
}
TS_TEST(plans_of_changing_sizes_are_freed)
{
    ts_compiled *c = ts_compile(any_size, NULL, NULL);
    int64_t bytes = 0;
    for (int i = 0; i < 3000; i++) {
        TS_SCOPE;
        ts_tensor *x = numbers(1, TS_SIZES(1 + i % 1000, 1 + i / 1000)), *y, *want;
        OK(ts_compiled_call(c, &x, 1, &y, 1));
        if (i % 97 == 0) {
            OK(any_size(NULL, &x, 1, &want, 1));
            ck_assert(same(y, want));
        }
        ck_assert_int_le(ts_compiled_get_stats(c).plans, 64);
        if (i == 1000)
            bytes = ts_memory_get_stats().in_use;
    }
    ck_assert_int_le(ts_memory_get_stats().in_use, bytes + (8 << 20));
    ts_compiled_free(c);
}

/* The function drops its input and a parameter, which the recorded calls still read. */
static ts_status drops_inputs(TRACED)
{
    ts_tensor **variable = ctx, *y = ts_mul(ts_exp(in[0]), *variable);
    ts_release(*variable);
    *variable = NULL;
    ts_drop(in[0]);
    ts_tensor *again = ts_full(TS_SIZES(8, 8), ts_scalar_float(3), TS_F32);
    return TS_STATUS_OF(out[0] = ts_add(y, again));
}
TS_TEST(a_function_may_free_its_inputs, .loop = 2)
{
    ts_tensor *variable = NULL;
    ts_compiled *c = ts_compile(drops_inputs, &variable, TS_OPTS(ts_compile_opts, .replay = _i));
    for (int i = 0; i < 5; i++) {
        TS_SCOPE;
        ts_tensor *y[2];
        for (int k = 0; k < 2; k++) {
            ts_tensor *x = numbers((uint64_t)i, TS_SIZES(8, 8));
            OK(ts_retain(variable = numbers(50 + (uint64_t)i, TS_SIZES(8, 8))));
            OK(k ? ts_compiled_call(c, &x, 1, &y[k], 1) : drops_inputs(&variable, &x, 1, &y[k], 1));
        }
        ck_assert(same(y[0], y[1]));
    }
    ts_compiled_free(c);
}

/* A function that calls itself, compiled. */
typedef struct nested {
    ts_compiled *self;
    int depth;
} nested;
static ts_status calls_itself(TRACED)
{
    nested *s = ctx;
    ts_tensor *y = ts_tanh(ts_mul_scalar(in[0], s->depth));
    if (s->depth-- > 0)
        TS_TRY(s->self ? ts_compiled_call(s->self, &y, 1, &y, 1) : calls_itself(s, &y, 1, &y, 1));
    return TS_STATUS_OF(out[0] = ts_add(ts_exp(y), in[0]));
}
TS_TEST(a_function_may_call_itself)
{
    for (int i = 0; i < 6; i++) {
        TS_SCOPE;
        nested eager = {NULL, i}, lazy = {.depth = i};
        OK(lazy.self = ts_compile(calls_itself, &lazy, NULL));
        ts_tensor *x = numbers(3, TS_SIZES(30, 40)), *want, *got;
        OK(calls_itself(&eager, &x, 1, &want, 1));
        OK(ts_compiled_call(lazy.self, &x, 1, &got, 1));
        ck_assert(same(want, got));
        ts_compiled_free(lazy.self);
    }
}
