/** @file calls_profile.c  Out-of-memory sweeps: profiles. */
// SPDX-License-Identifier: MIT
#include "tests/faults/calls.h"
#include "tests/io/run.h"
#include "tests/profile/machine.h"
#include "tests/profile/small.h"

static void receive(ts_profile *p, int64_t cycle, void *user)
{
    (void)cycle, (void)user;
    ts_profile_free(p);
}

CALLS_WITH(recording, 0, .loop = 0)
{
#if !TS_TIMERS
    TS_SKIP("built without timers");
#endif
    TS_SCOPE;
    ts_profile *p = NULL;
    ts_tensor *t = ts_ones(TS_SIZES(2, 3), TS_F32);
    ts_prof_machine machine = {.size = sizeof machine};
    use_fixed_machine();
    FAULTY(f, ts_prof_calibrate(false, &machine));
    ts_prof_opts traced = {.size = sizeof traced, .trace = true, .memory = true};
    FAULTY(f, ts_prof_start(&traced));
    FAULTY(f, ts_prof_enter("scope"));
    NEW(ts_exp(t));
    QUIET(f, ts_prof_hold(t, TS_HOLD_INPUT));
    QUIET(f, ts_prof_active());
    FAULTY(f, ts_prof_stop());
    FAULTY(f, p = ts_profile_take());
    QUIET(f, ts_profile_free(p));
}

CALLS_WITH(schedule, 0, .loop = 0)
{
#if !TS_TIMERS
    TS_SKIP("built without timers");
#endif
    use_fixed_machine();
    ts_prof_opts opts = {.size = sizeof opts, .wait = 1, .active = 1, .ready = receive};
    FAULTY(f, ts_prof_start(&opts));
    FAULTY(f, ts_prof_stop());
}

CALLS_WITH(profiles, 0, IN_FOLDER)
{
    ts_profile *p = NULL;
    ts_profile_shares shares = {.size = sizeof shares};
    FILE *out = fopen("/dev/null", "w");
    write_file(in_folder("profile.json"), small_profile, sizeof small_profile - 1);
    FAULTY(f, p = ts_profile_read(in_folder("profile.json")));
    for (int format = TS_PROFILE_TABLES; format <= TS_PROFILE_FOLDED; format++)
        if (format != TS_PROFILE_CHROME)
            FAULTY(f, ts_profile_write(p, out, (ts_profile_format)format));
    FAULTY(f, ts_profile_compare(p, p, out));
    QUIET(f, ts_profile_get_shares(p, &shares));
    fault_see_number(f, shares.memory);
    QUIET(f, ts_profile_free(p));
    fclose(out);
}
