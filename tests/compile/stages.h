/** @file stages.h  Sets the environment variable TS_COMPILE, which names the last stage that the
 * planner of compiled functions runs. */
// SPDX-License-Identifier: MIT
#ifndef TESTS_COMPILE_STAGES_H
#define TESTS_COMPILE_STAGES_H

#include <stdlib.h>

#include "compile/cache.h"

/** The values of TS_COMPILE that make plans, first to last. */
static const char *const stages[] = {"trace", "lower", "fuse", "full"};
enum { STAGES = 4 };

/** Makes later plans stop after a stage. */
static inline void set_stage(const char *stage)
{
    setenv("TS_COMPILE", stage, 1);
    ts_compiled_from_environment();
}

#endif
