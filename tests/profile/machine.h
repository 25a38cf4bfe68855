/** @file machine.h  Fixed machine ceilings and a private cache folder, so that tests do not measure
 * the machine. */
// SPDX-License-Identifier: MIT
#ifndef TESTS_PROFILE_MACHINE_H
#define TESTS_PROFILE_MACHINE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/testing.h"
#include "profile/profile.h"
#include "tests/expect.h"

/** Creates a temporary folder and sets XDG_CACHE_HOME to it; returns its path. */
static inline const char *own_cache(void)
{
    static char folder[64];
    if (!folder[0]) {
        snprintf(folder, sizeof folder, "/tmp/tessera-profile-XXXXXX");
        ck_assert_ptr_nonnull(mkdtemp(folder));
        setenv("XDG_CACHE_HOME", folder, 1);
    }
    return folder;
}

/** Removes the folder of own_cache(). */
static inline void end_cache(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", own_cache());
    ck_assert_int_eq(system(command), 0);
}

/** Sets ceilings like those of a small server. */
static inline void use_fixed_machine(void)
{
    ts_prof_machine m = {.size = sizeof m, .name = "fixed", .threads = 2, .gemm_flops = 2e12,
                         .vector_flops = 1e12, .measured_at = 1};
    for (int i = 0; i < TS_PROF_CURVE; i++) {
        m.bytes_at[i] = 32768 * (double)(1 << 2 * i);
        m.bandwidth[i] = i < TS_PROF_CURVE / 2 ? 1e12 : 2e11;
    }
    ts_prof_assume(&m);
}

#endif
