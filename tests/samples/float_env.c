/**
 * @file float_env.c  What a program sets in the floating-point environment changes no bit of a
 * result or a gradient, and is as it was after the call. One case per family.
 */
// SPDX-License-Identifier: MIT
#include "core/float_env.h"
#include "tests/samples/call.h"

static const int roundings[] = {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};

/** Rounds in another way, and flushes subnormal numbers; turn chooses how. */
static ts_float_control disturb(int turn)
{
    fesetround(roundings[turn % 3]);
#if defined(__x86_64__)
    ts_float_control_set(ts_float_control_get() | (turn % 2 ? 0x8040u : 0));
#elif defined(__aarch64__)
    ts_float_control_set(ts_float_control_get() | (turn % 2 ? 1ull << 24 : 0));
#endif
    return ts_float_control_get() & TS_FLOAT_BITS;
}

static void equal_in_any_environment(const ts_case *c, ts_trace_fn fn, int turn)
{
    TS_SCOPE;
    enum { PLAIN, DISTURBED, SETS };
    ts_made m[SETS];
    ts_tensor *inputs[SETS][MADE_MOST], *outputs[SETS][TS_MAX_RETS + MADE_MOST];
    int built = 0, noutputs = c->info->nrets, n = 0;
    bool good = true;
    while (built < SETS && made_build(&m[built], c, NULL)) {
        n = m[built].ntensors;
        for (int i = 0; i < n; i++) {
            ts_made_tensor *x = &m[built].tensors[i];
            inputs[built][i] = x->t;
            noutputs += x->written && built == 0;
            if (fn == run_backward && x->differentiable)
                ts_set_requires_grad(x->t, true);
        }
        built++;
    }
    for (int set = 0; set < built && built == SETS && good; set++) {
        call one = {c, &m[set]};
        ts_rng_set_state((ts_rng_state){1234, 0});
        ts_float_control set_to = set == DISTURBED ? disturb(turn) : 0;
        ts_status status = fn(&one, inputs[set], n, outputs[set], noutputs);
        ts_float_control left = ts_float_control_get() & TS_FLOAT_BITS;
        fesetenv(FE_DFL_ENV);
        good = status == TS_OK && left == set_to;
        if (!good)
            sample_failed(c, "environment %x became %x; %s", (unsigned)set_to, (unsigned)left,
                          status == TS_OK ? "the call succeeded" : ts_error_message());
    }
    for (int i = 0; good && i < noutputs; i++)
        if (!c->s->undefined && !same(outputs[PLAIN][i], outputs[DISTURBED][i])) {
            sample_failed(c, "output %d depends on the environment", i);
            good = false;
        }
    for (int i = 0; good && i < n; i++)
        if (!same(ts_grad(inputs[PLAIN][i]), ts_grad(inputs[DISTURBED][i]))) {
            sample_failed(c, "the gradient of tensor %d depends on the environment", i);
            good = false;
        }
    if (good && built == SETS)
        sample_passed(c);
    while (built)
        made_free(&m[--built]);
}

static void drive(const ts_sample_family *family)
{
    sample_run = (ts_sample_run){.passed = passed, .failed = failed};
    int turn = 0;
    for (int i = 0; i < family->count; i++) {
        ts_case c;
        if (!sample_case(&family->samples[i], &c))
            continue;
        uint16_t dtypes = sample_dtypes(c.s);
        c.sweep = 17 <= (c.s->most ? c.s->most : 17) ? 17 : 3;
        c.form = "in another environment";
        for (int dtype = 0; dtype < TS_DTYPE_COUNT; dtype++) {
            c.dtype = (ts_dtype)dtype;
            if (dtypes >> dtype & 1)
                equal_in_any_environment(&c, run, turn++);
        }
        c.dtype = dtypes & TS_DT(TS_F32) ? TS_F32 : (ts_dtype)__builtin_ctz(dtypes);
        if (c.s->grad && sample_is_differentiable(c.info) && ts_dtype_is_float(c.dtype))
            equal_in_any_environment(&c, run_backward, turn++);
    }
}

#define TS_FAMILY(family) \
    TS_TEST(family##_samples_are_equal_in_any_float_environment) { drive(&ts_family_##family); }
#include "conformance/families.def"
