/** @file coverage.c  Each row of ops.def has samples. */
// SPDX-License-Identifier: MIT
#include "conformance/drive.h"
#include "tests/harness.h"

#include <stdio.h>
#include <string.h>

static bool has_sample(const char *op, bool grad)
{
    for (int k = 0; k < ts_sample_family_count; k++) {
        const ts_sample_family *f = ts_sample_families[k];
        for (int i = 0; i < f->count; i++)
            if (strcmp(f->samples[i].op, op) == 0 && (f->samples[i].grad || !grad))
                return true;
    }
    return false;
}

TS_TEST(every_row_has_a_sample)
{
    int lacking = 0;
    for (int op = 0; op < ts_op_count(); op++) {
        const char *name = ts_op_name(op);
        ts_op_description d = {.size = sizeof d};
        if (ts_op_describe(op, &d) != TS_OK || d.runtime)
            continue;
        if (!has_sample(name, false)) {
            printf("no sample drives '%s'\n", name);
            lacking++;
        }
    }
    ck_assert_msg(lacking == 0,
                  "%d rows of ops.def have no sample: write one in conformance/samples/<family>.c",
                  lacking);
}

TS_TEST(every_differentiable_row_has_a_gradient_sample)
{
    int lacking = 0;
    for (int op = 0; op < ts_op_count(); op++) {
        const char *name = ts_op_name(op);
        ts_op_description d = {.size = sizeof d};
        if (ts_op_describe(op, &d) != TS_OK || d.runtime || !sample_is_differentiable(&d))
            continue;
        if (!has_sample(name, true)) {
            printf("no sample checks the gradient of '%s'\n", name);
            lacking++;
        }
    }
    ck_assert_msg(lacking == 0, "%d differentiable rows of ops.def have no sample with .grad",
                  lacking);
}

/** dtypes that the samples of an op run in; grad: those that check its gradient. */
static unsigned dtypes_of(const char *op, bool grad)
{
    unsigned dtypes = 0;
    for (int k = 0; k < ts_sample_family_count; k++) {
        const ts_sample_family *f = ts_sample_families[k];
        for (int i = 0; i < f->count; i++)
            if (strcmp(f->samples[i].op, op) == 0 && (f->samples[i].grad || !grad))
                dtypes |= f->samples[i].dtypes ? f->samples[i].dtypes : DT_FLOATS_;
    }
    return dtypes;
}

TS_TEST(every_row_that_runs_in_f32_runs_in_the_halves)
{
    int lacking = 0;
    for (int op = 0; op < ts_op_count(); op++)
        for (int grad = 0; grad < 2; grad++) {
            unsigned dtypes = dtypes_of(ts_op_name(op), grad);
            if (!(dtypes >> TS_F32 & 1) || (dtypes & DT_HALVES) == DT_HALVES)
                continue;
            printf("no sample drives %s'%s' in bf16 and f16\n", grad ? "the gradient of " : "",
                   ts_op_name(op));
            lacking++;
        }
    ck_assert_msg(lacking == 0, "%d rows lack samples of the halves", lacking);
}
