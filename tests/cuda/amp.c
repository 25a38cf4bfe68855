/** @file amp.c  Mixed precision on a GPU: skipped steps, steps without a host sync, and the loss
 * curve compared with f32. */
// SPDX-License-Identifier: MIT
#include "tests/cuda/driver.h"

#include <math.h>

enum { STEPS = 60, ROWS = 128 };

typedef struct run {
    ts_module *net;
    ts_optimizer *optimizer;
    ts_grad_scaler *scaler;
    ts_dtype region;       /* dtype of autocast; TS_DTYPE_NONE: no autocast */
    bool fused;            /* the step unscales and clips; false: separate passes do */
    bool cast;             /* parameters and data are bf16 or f16, and the optimizer keeps f32
                              copies of the parameters */
} run;

/** A new run; its random weights are always the same. scale: initial loss scale; 0: none. */
static run run_new(ts_device device, ts_dtype region, ts_dtype params, double scale)
{
    run r = {.net = ts_sequential_new(), .region = region, .cast = params != TS_F32};
    ts_manual_seed(1);
    OK(ts_set_default_device(device));
    OK(ts_sequential_add(r.net, ts_mlp_new(2, 64, NULL)));
    OK(ts_sequential_add(r.net, ts_linear_new(2, 1, true)));
    if (r.cast)
        OK(ts_module_to(r.net, params));
    ts_group_opts opts = ts_optimizer_defaults(TS_ADAMW, 0.01);
    r.optimizer = ts_optimizer_for(r.net, TS_ADAMW, &opts);
    r.scaler = ts_grad_scaler_new(&(ts_grad_scaler_opts){
        .size = sizeof(ts_grad_scaler_opts), .init_scale = scale, .disabled = scale == 0});
    ck_assert_msg(r.optimizer && r.scaler, "%s", ts_error_message());
    return r;
}

static void run_free(run *r)
{
    ts_grad_scaler_free(r->scaler);
    ts_optimizer_free(r->optimizer);
    ts_module_free(r->net);
}

/** Trains one step on y = sin(3 a) b. Returns the loss, whose value is not read. */
static ts_tensor *step(run *r, ts_tensor *x)
{
    int64_t n;
    ts_tensor *const *params = ts_optimizer_params(r->optimizer, &n), *loss;
    ts_tensor *y = ts_mul(ts_sin(ts_mul_scalar(ts_narrow(x, 1, 0, 1), 3)), ts_narrow(x, 1, 1, 1));
    ts_dtype dtype = ts_dtype_of(params[0]);
    {
        TS_AUTOCAST(ts_device_of(x), r->region);
        ts_tensor *guess = ts_forward(r->net, r->cast ? ts_to(x, dtype) : x);
        loss = ts_mse_loss(r->cast ? ts_to(guess, TS_F32) : guess, y);
    }
    OK(ts_backward(ts_grad_scaler_scale(r->scaler, loss)));
    OK(ts_optimizer_set_max_norm(r->optimizer, r->fused ? 10 : 0));
    if (!r->fused) {
        OK(ts_grad_scaler_unscale(r->scaler, r->optimizer));
        OK(ts_clip_grad_norm(params, n, 10.0, NULL));
    }
    OK(ts_grad_scaler_step(r->scaler, r->optimizer));
    OK(ts_grad_scaler_update(r->scaler));
    ts_optimizer_zero_grad(r->optimizer);
    return loss;
}

static ts_tensor *points(void) { return ts_uniform(TS_SIZES(ROWS, 2), -1, 1, TS_F32); }

TS_TEST(a_scaled_step_does_not_wait_for_the_device, .loop = 2)
{
    GPU(device);
    TS_SCOPE;
    ts_stream *stream;
    OK(ts_stream_new(device, &stream));
    OK(ts_stream_use(device, stream));
    run r = run_new(device, TS_F16, TS_F32, 65536);
    r.fused = _i;
    ts_tensor *x = points(), *flag = ts_empty_pinned(TS_SIZES(1), TS_I32, device);
    volatile int32_t *open = ts_data_mut(flag);
    double loss;
    for (int i = 0; i < 3; i++) /* loads kernels and allocates memory */
        step(&r, x);
    OK(ts_synchronize(device));
    stop_stream(stream, open);
    ts_tensor *last = NULL;
    for (int i = 0; i < 3; i++)
        last = step(&r, x);
    ck_assert_msg(*open == 0, "the host waited until the kernel before it gave up");
    *open = 1;
    OK(ts_item(last, &loss));
    ck_assert(isfinite(loss));
    run_free(&r);
    OK(ts_stream_use(device, NULL));
    ts_stream_free(device, stream);
}

/** Hash of the bits of all parameters and of the optimizer's state. */
static uint64_t hash_of(const run *r)
{
    ts_named_tensors state;
    uint64_t hash = 0xcbf29ce484222325u;
    int64_t n;
    ts_tensor *const *params = ts_optimizer_params(r->optimizer, &n);
    OK(ts_optimizer_state(r->optimizer, &state)); /* includes "steps" */
    for (int64_t i = 0; i < n + state.n; i++) {
        TS_SCOPE;
        ts_tensor *t = ts_to(ts_detach(i < n ? params[i] : state.tensors[i - n]), TS_F32);
        float *values = values_of(t);
        const unsigned char *bytes = (const unsigned char *)values;
        for (int64_t k = 0; k < ts_numel(t) * 4; k++)
            hash = (hash ^ bytes[k]) * 0x100000001b3u;
        free(values);
    }
    ts_named_tensors_free(&state);
    return hash;
}

TS_TEST(a_step_that_overflows_changes_no_parameter_and_is_not_counted, .loop = 4)
{
    GPU(device);
    TS_SCOPE;
    ts_dtype params = _i % 2 ? TS_BF16 : TS_F32;
    run plain = run_new(device, TS_DTYPE_NONE, params, 1024),
        odd = run_new(device, TS_DTYPE_NONE, params, 1024);
    plain.fused = odd.fused = _i / 2;
    ts_manual_seed(9);
    ts_tensor *x = points(), *y = points();
    step(&plain, x);
    step(&odd, x);
    uint64_t before = hash_of(&odd);
    ck_assert_uint_eq(before, hash_of(&plain));
    step(&odd, ts_mul_scalar(y, INFINITY));
    ck_assert_msg(hash_of(&odd) == before, "the step was not skipped");
    ck_assert_int_eq(ts_grad_scaler_skipped(odd.scaler), 1);
    ck_assert_double_eq(ts_grad_scaler_get_scale(odd.scaler), 512);
    step(&plain, y);
    step(&odd, y);
    ck_assert_msg(hash_of(&odd) == hash_of(&plain), "the next step was another one");
    run_free(&plain);
    run_free(&odd);
}

static void train(ts_device device, ts_dtype region, ts_dtype params, double scale, double *losses,
                  int64_t *skipped)
{
    TS_SCOPE;
    run r = run_new(device, region, params, scale);
    ts_tensor *kept[STEPS];
    ts_manual_seed(2);
    for (int k = 0; k < STEPS; k++) {
        TS_SCOPE;
        kept[k] = ts_retain(ts_detach(step(&r, points())));
    }
    for (int k = 0; k < STEPS; k++) {
        OK(ts_item(kept[k], &losses[k]));
        ts_release(kept[k]);
    }
    *skipped = ts_grad_scaler_skipped(r.scaler);
    run_free(&r);
}

/* Products in bf16 and f16 have relative errors of about 2^-8 and 2^-11, a few per step. */
TS_TEST(training_in_halves_follows_the_curve_of_f32)
{
    GPU(device);
    double full[STEPS], half[STEPS];
    int64_t skipped;
    train(device, TS_DTYPE_NONE, TS_F32, 0, full, &skipped);
    ck_assert_msg(full[STEPS - 1] < 0.5 * full[0], "nothing was learned: %g to %g", full[0],
                  full[STEPS - 1]);
    const struct {
        const char *name;
        ts_dtype region, params;
        double scale, eps;
    } modes[] = {{"autocast to bf16", TS_BF16, TS_F32, 0, 0x1p-8},
                 {"autocast to f16", TS_F16, TS_F32, 256, 0x1p-11},
                 {"parameters of bf16", TS_DTYPE_NONE, TS_BF16, 0, 0x1p-8}};
    for (int m = 0; m < 3; m++) {
        int differ = 0;
        train(device, modes[m].region, modes[m].params, modes[m].scale, half, &skipped);
        ck_assert_int_eq(skipped, 0);
        for (int k = 0; k < STEPS; k++) {
            ck_assert_msg(fabs(half[k] - full[k]) <= 8 * modes[m].eps * full[0],
                          "%s, step %d: %.9g, in f32 %.9g", modes[m].name, k, half[k], full[k]);
            differ += half[k] != full[k];
        }
        ck_assert_msg(differ > STEPS / 2, "%s: nothing was cast", modes[m].name);
    }
}

TS_TEST(a_gradient_scale_that_overflows_decreases)
{
    GPU(device);
    double losses[STEPS];
    int64_t skipped;
    train(device, TS_F16, TS_F32, 0x1p30, losses, &skipped);
    ck_assert_msg(skipped > 5 && skipped < 20, "%lld steps were skipped", (long long)skipped);
    ck_assert_double_lt(losses[STEPS - 1], losses[0]);
}
