/** @file cases.c  Three cases per family of the table of samples;
 * each sample counts as a case of its own. */
// SPDX-License-Identifier: MIT
#include "conformance/drive.h"
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>

static int complaints;

static void passed(void *ctx, const ts_case *c)
{
    (void)ctx;
    (void)c;
    ts_tally(1, 0, 0);
}

/** Prints the first few. */
static void failed(void *ctx, const ts_case *c, const char *text)
{
    (void)ctx;
    (void)c;
    ts_tally(0, 1, 0);
    if (++complaints > 20)
        return;
    printf("%s\n", text);
    fflush(stdout);
}

/** TS_TEST_SMALL leaves out the large samples. */
static void drive(void (*part)(const ts_sample_family *family), const ts_sample_family *family)
{
    sample_run = (ts_sample_run){
        .small = getenv("TS_TEST_SMALL"), .passed = passed, .failed = failed};
    part(family);
}

#define TS_FAMILY(family)                                                                          \
    TS_TEST(family##_values, .timeout = 200)                                                       \
    {                                                                                              \
        drive(ts_samples_values, &ts_family_##family);                                             \
    }                                                                                              \
    TS_TEST(family##_gradients, .timeout = 200)                                                    \
    {                                                                                              \
        drive(ts_samples_gradients, &ts_family_##family);                                          \
    }                                                                                              \
    TS_TEST(family##_bad_input, .timeout = 200)                                                    \
    {                                                                                              \
        drive(ts_samples_bad_input, &ts_family_##family);                                          \
    }
#include "conformance/families.def"
