/**
 * @file float_env.c  The program's floating-point environment changes no bit of a result or a
 * gradient, and each call restores it. One case per family.
 */
// SPDX-License-Identifier: MIT
#include "core/float_env.h"
#include "tests/samples/call.h"

static const int roundings[] = {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};

/** Sets another rounding mode and, for odd turns, flushing of subnormal numbers. Returns the bits
 *  that the library must restore. */
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

static void equal_in_any_environment(const ts_case *c, ts_trace_fn fn)
{
    enum { PLAIN, DISTURBED, SETS };
    static sets s;
    static int turn;
    TS_SCOPE;
    bool good = sets_build(&s, c, fn, SETS);
    for (int set = 0; set < SETS && good; set++) {
        ts_rng_set_state((ts_rng_state){1234, 0});
        ts_float_control set_to = set == DISTURBED ? disturb(turn++) : 0;
        ts_status status = sets_run(&s, fn, set);
        ts_float_control left = ts_float_control_get() & TS_FLOAT_BITS;
        fesetenv(FE_DFL_ENV);
        good = status == TS_OK && left == set_to;
        if (!good)
            sample_failed(c, "environment %x became %x; %s", (unsigned)set_to, (unsigned)left,
                          status == TS_OK ? "the call succeeded" : ts_error_message());
    }
    if (good && sets_equal(&s, PLAIN, DISTURBED))
        sample_passed(c);
    sets_free(&s);
}

#define TS_FAMILY(family)                                                                \
    TS_TEST(family##_samples_are_equal_in_any_float_environment)                         \
    {                                                                                    \
        each_sample(&ts_family_##family, "in another environment", equal_in_any_environment); \
    }
#include "conformance/families.def"
