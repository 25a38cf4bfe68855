/** @file scenario.h  Saved steps before a failing save, and the states allowed after it. */
// SPDX-License-Identifier: MIT
#ifndef TS_TESTS_IO_SCENARIO_H
#define TS_TESTS_IO_SCENARIO_H

#include "tests/io/run.h"

/** A checkpoint holds the step and a `life`: 1 for the steps saved before, 2 for the save under
 *  test, 3 for the save after it. */
typedef struct scenario {
    const char *name;
    int before[4]; /* steps saved before, life 1, ended by -1 */
    int64_t step;  /* the save under test, life 2 */
} scenario;

static const scenario scenarios[] = {
    {"first save", {-1}, 10},
    {"next step", {10, -1}, 20},
    {"third step, the first one goes", {10, 20, -1}, 30},
    {"same step again", {20, -1}, 20},
    {"same step again beside an older one", {10, 20, -1}, 20},
};
enum { SCENARIOS = sizeof scenarios / sizeof *scenarios };

/* The run's folder. */
static char dir[128];

/* Makes the run's folder as before the save under test. */
static inline void make_folder(const scenario *s)
{
    snprintf(dir, sizeof dir, "%s", in_folder("run"));
    folder_remove(dir);
    for (const int *step = s->before; *step >= 0; step++)
        ck_ok(run_save(dir, *step, 1, 2));
}

/* Checks after a save that failed, was killed or succeeded that the folder holds the whole new
 * state or, unless must_be_new, the whole old one; and that the next save removes what an
 * unfinished save has left. */
static inline void check_after(const scenario *s, bool must_be_new, const char *place)
{
    int64_t step = -1, newest = -1;
    int life = 0;
    for (const int *before = s->before; *before >= 0; before++)
        newest = *before;
    bool found = run_find(dir, &step, &life);
    bool is_new = found && step == s->step && life == 2;
    bool is_old = newest < 0 ? !found : found && step == newest && life == 1;
    ck_assert_msg(is_new || (is_old && !must_be_new), "%s, %s: found step %lld of life %d", s->name,
                  place, (long long)step, life);

    ck_ok(run_save(dir, 40, 3, 1));
    ck_assert(run_find(dir, &step, &life) && step == 40 && life == 3);
    /* the folder `checkpoints`, the step's folder, the manifest and two sections */
    ck_assert_int_eq(count_files(dir), 1 + 1 + 3);
}

#endif
