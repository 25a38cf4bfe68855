/** @file optim.c  Optimizers on a GPU: a fused step that unscales and clips, compared with separate
 * calls. */
// SPDX-License-Identifier: MIT
#include "tests/cuda/cuda.h"

#include <float.h>
#include <math.h>

/* Lengths that fill no vector, no block, and many blocks. */
static const int64_t lengths[] = {1, 37, 4099, 70001};
static const char *const names[] = {"a", "b", "c", "d"};
enum { PARAMS = 4, STEPS = 6 };

typedef struct side {
    ts_tensor *params[PARAMS];
    ts_optimizer *optimizer;
    ts_grad_scaler *scaler;
} side;

/** Parameters start at 0, so that their values are the sum of the steps. */
static side side_new(ts_device device, ts_optimizer_kind kind)
{
    side s = {.optimizer = ts_optimizer_new(kind),
              .scaler = ts_grad_scaler_new(&(ts_grad_scaler_opts){
                  .size = sizeof(ts_grad_scaler_opts), .init_scale = 1024, .growth_interval = 2})};
    ts_group_opts opts = ts_optimizer_defaults(kind, 0.01);
    opts.momentum = kind == TS_SGD ? 0.9 : 0;
    for (int i = 0; i < PARAMS; i++)
        s.params[i] = ts_set_requires_grad(full_on(device, lengths[i], 0), true);
    OK(s.optimizer && s.scaler ? TS_OK : ts_error_code());
    OK(ts_optimizer_add_group(s.optimizer, names, s.params, PARAMS, &opts));
    return s;
}

static void side_free(side *s)
{
    ts_optimizer_free(s->optimizer);
    ts_grad_scaler_free(s->scaler);
}

/** Sets random gradients, multiplied by the loss scale. odd: last element of the last gradient,
 *  unless it is 0. Returns the last gradient, on the CPU. */
static ts_tensor *give(side *s, ts_device device, int step, float odd)
{
    ts_tensor *g = NULL;
    ts_manual_seed(100 + (uint64_t)step);
    for (int i = 0; i < PARAMS; i++) {
        g = ts_normal(TS_SIZES(lengths[i]), 0, 1, TS_F32);
        g = ts_mul_scalar(g, ts_grad_scaler_get_scale(s->scaler));
        if (odd != 0 && i == PARAMS - 1)
            ((float *)ts_data_mut(g))[lengths[i] - 1] = odd;
        OK(ts_set_grad(s->params[i], ts_to_device(g, device)));
    }
    return g;
}

/* Scales are powers of two, so unscaling is exact, and without clipping all bits are equal. A
 * separate pass of clipping rounds each gradient once more, and the norm of scaled gradients rounds
 * differently. Bound: 8 eps of the largest parameter; parameters start at 0. */
TS_TEST(a_fused_step_is_unscaling_clipping_and_a_step_and_leaves_gradients_alone, .loop = 9)
{
    static const double limits[] = {0, 1, 1e6}; /* none, below and above the norm */
    static const float odd[STEPS] = {0, 0, INFINITY, 0, NAN, 0};
    ts_optimizer_kind kind = (ts_optimizer_kind)(_i % 3);
    double max_norm = limits[_i / 3];
    GPU(device);
    TS_SCOPE;
    side fused = side_new(device, kind), parts = side_new(device, kind);
    OK(ts_optimizer_set_max_norm(fused.optimizer, max_norm));
    for (int i = 0; i < STEPS; i++) {
        TS_SCOPE;
        ts_tensor *given = give(&fused, device, i, odd[i]), *const *params = parts.params;
        give(&parts, device, i, odd[i]);
        OK(ts_grad_scaler_step(fused.scaler, fused.optimizer));
        OK(ts_grad_scaler_unscale(parts.scaler, parts.optimizer));
        if (max_norm > 0)
            OK(ts_clip_grad_norm(params, PARAMS, max_norm, NULL));
        OK(ts_grad_scaler_step(parts.scaler, parts.optimizer));
        OK(ts_grad_scaler_update(fused.scaler));
        OK(ts_grad_scaler_update(parts.scaler));
        float *left = values_of(ts_grad(fused.params[PARAMS - 1]));
        ck_assert_msg(memcmp(left, ts_data(given), (size_t)ts_numel(given) * sizeof *left) == 0,
                      "step %d wrote to the gradients", i);
        free(left);
        ck_assert_double_eq(ts_grad_scaler_get_scale(fused.scaler),
                            ts_grad_scaler_get_scale(parts.scaler));
        for (int p = 0; p < PARAMS; p++) {
            double off, most;
            ts_tensor *a = ts_detach(fused.params[p]), *b = ts_detach(parts.params[p]);
            OK(ts_item(ts_max(ts_abs(ts_sub(a, b))), &off));
            OK(ts_item(ts_max(ts_abs(b)), &most));
            ck_assert_msg(off <= (max_norm == 1 ? 8 * (double)FLT_EPSILON * most : 0),
                          "step %d, parameter %d: %g apart, largest %g", i, p, off, most);
        }
    }
    ck_assert_int_eq(ts_grad_scaler_skipped(fused.scaler), 2);
    ck_assert_int_eq(ts_grad_scaler_skipped(parts.scaler), 2);
    side_free(&fused);
    side_free(&parts);
}
