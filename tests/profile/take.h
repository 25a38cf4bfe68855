/** @file take.h  Takes a profile and checks its sums, for tests with fixed ceilings. */
// SPDX-License-Identifier: MIT
#ifndef TESTS_PROFILE_TAKE_H
#define TESTS_PROFILE_TAKE_H

#include "tests/profile/machine.h"

/** Stops the recording and takes its profile. */
static inline ts_profile *take(void)
{
    OK(ts_prof_stop());
    ts_profile *p = ts_profile_take();
    OK(p);
    return p;
}

/** The entry whose `call` begins with the text; NULL if there is none. */
static inline const ts_entry *find(const ts_profile *p, const char *call)
{
    for (int64_t i = 0; i < p->count; i++)
        if (strncmp(p->entries[i].call, call, strlen(call)) == 0)
            return &p->entries[i];
    return NULL;
}

static inline const ts_entry *must_find(const ts_profile *p, const char *call)
{
    const ts_entry *e = find(p, call);
    ck_assert_msg(e != NULL, "no row of %s", call);
    return e;
}

/** Checks that the times of rows and the profiler's own time sum to the wall time, up to rounding,
 *  and that the shares sum to 1. */
static inline void sums(const ts_profile *p)
{
    double sum = p->profiler_ns;
    for (int64_t i = 0; i < p->count; i++)
        sum += p->entries[i].self_ns;
    ck_assert_double_eq_tol(sum, p->wall_ns, 1e-9 * p->wall_ns + 1);
    const ts_profile_shares *s = &p->shares;
    double shares = s->compute + s->memory + s->overhead + s->outside + s->profiler + s->unknown;
    ck_assert_double_eq_tol(shares, 1, 1e-6);
}

#if TS_TIMERS
#define BEGIN use_fixed_machine()
#else
#define BEGIN TS_SKIP("built without timers")
#endif

#endif
