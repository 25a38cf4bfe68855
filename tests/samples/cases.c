/** @file cases.c  Three cases per family of op samples: values, gradients, wrong calls. */
// SPDX-License-Identifier: MIT
#include "conformance/drive.h"
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>

static int complaints;
static ts_count_kind kind; /* kind of the checks that run now */

static void passed(void *ctx, const ts_case *c)
{
    (void)ctx;
    (void)c;
    ts_tally_as(kind, 1, 0, 0);
}

/** Counts a failed check; prints the first few. */
static void failed(void *ctx, const ts_case *c, const char *text)
{
    (void)ctx;
    (void)c;
    ts_tally_as(kind, 0, 1, 0);
    if (++complaints > 20)
        return;
    printf("%s\n", text);
    fflush(stdout);
}

/** TS_TEST_SMALL leaves out the large samples, TS_TEST_BRIEF four of six layouts and three of four
 * elements of gradients. */
static void drive(void (*part)(const ts_sample_family *family), ts_count_kind checks,
                  const ts_sample_family *family)
{
    kind = checks;
    sample_run = (ts_sample_run){
        .small = getenv("TS_TEST_SMALL"), .few = getenv("TS_TEST_BRIEF"),
        .passed = passed, .failed = failed};
    part(family);
}

#define TS_FAMILY(family)                                                                          \
    TS_TEST(family##_values, .timeout = 200)                                                       \
    {                                                                                              \
        drive(ts_samples_values, TS_COUNT_SAMPLES, &ts_family_##family);                           \
    }                                                                                              \
    TS_TEST(family##_gradients, .timeout = 200)                                                    \
    {                                                                                              \
        drive(ts_samples_gradients, TS_COUNT_GRADIENTS, &ts_family_##family);                      \
    }                                                                                              \
    TS_TEST(family##_bad_input, .timeout = 200)                                                    \
    {                                                                                              \
        drive(ts_samples_bad_input, TS_COUNT_WRONG_CALLS, &ts_family_##family);                    \
    }
#include "conformance/families.def"
