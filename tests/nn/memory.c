// Lets each allocation fail once while a network and its optimizer are made and stepped: the result
// is TS_ERR_MEMORY, and no memory leaks.
// SPDX-License-Identifier: MIT
#include <stdlib.h>
#include <string.h>

#include "core/testing.h"
#include "include/tessera/tessera.h"
#include "tests/blocks.h"
#include "tests/harness.h"

static int failing_after;
static bool fail_once(size_t bytes)
{
    (void)bytes;
    return failing_after-- == 0;
}

/** A network and its optimizer, a step, and the optimizer's state; false when something failed. */
static bool build_and_step(void)
{
    TS_SCOPE;
    ts_module *net = ts_sequential_new();
    ts_optimizer *o = NULL;
    ts_grad_scaler *s = ts_grad_scaler_new(NULL);
    ts_named_tensors state = {0};
    ts_group_opts opts = ts_optimizer_defaults(TS_ADAMW, 0.1);
    bool ok = net && s && ts_sequential_add(net, ts_mlp_new(4, 8, NULL)) == TS_OK &&
              ts_sequential_add(net, ts_layer_norm_new(4, 0, true)) == TS_OK &&
              (o = ts_optimizer_for(net, TS_ADAMW, &opts)) != NULL &&
              ts_backward(ts_grad_scaler_scale(
                  s, ts_sum(ts_forward(net, ts_ones(TS_SIZES(2, 4), TS_F32))))) == TS_OK &&
              ts_grad_scaler_unscale(s, o) == TS_OK &&
              ts_clip_grad_norm(ts_optimizer_params(o, NULL), 6, 1, NULL) == TS_OK &&
              ts_grad_scaler_step(s, o) == TS_OK && ts_grad_scaler_update(s) == TS_OK &&
              ts_optimizer_state(o, &state) == TS_OK && ts_module_to(net, TS_F64) == TS_OK;
    ts_named_tensors_free(&state);
    ts_grad_scaler_free(s);
    ts_optimizer_free(o);
    ts_module_free(net);
    return ok;
}

TS_TEST(out_of_memory_leaks_no_partly_built_module)
{
    if (!blocks_from_malloc())
        TS_SKIP(TOO_LATE);
    ck_assert(build_and_step());
    int64_t before = ts_memory_get_stats().in_use;
    int failures = 0;
    for (int n = 0;; n++) {
        ck_assert_int_lt(n, 5000);
        ts_error_clear();
        failing_after = n;
        ts_alloc_fault = fail_once;
        bool ok = build_and_step();
        ts_alloc_fault = NULL;
        ck_assert_int_eq(ts_memory_get_stats().in_use, before);
        if (ok && failing_after >= 0)
            break;
        if (!ok) {
            ck_assert_int_eq(ts_error_code(), TS_ERR_MEMORY);
            failures++;
        }
    }
    ck_assert_int_gt(failures, 50);
    ck_assert(build_and_step());
}
