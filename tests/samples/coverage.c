/** @file coverage.c  The registered families, and the test that no row of ops.def lacks a sample. */
// SPDX-License-Identifier: MIT
#include "tests/samples/drive.h"

#include <stdio.h>
#include <string.h>

ts_sample_family *ts_sample_families;

void ts_samples_register(ts_sample_family *family)
{
    family->next = ts_sample_families;
    ts_sample_families = family;
}

/** Rows whose samples are still to be written, one name a line. */
static const char *const pending[] = {
#include "tests/samples/pending.txt"
    NULL
};

static bool is_pending(const char *op)
{
    for (int i = 0; pending[i]; i++)
        if (strcmp(pending[i], op) == 0)
            return true;
    return false;
}

static bool has_sample(const char *op, bool grad)
{
    for (const ts_sample_family *f = ts_sample_families; f; f = f->next)
        for (int i = 0; i < f->count; i++)
            if (strcmp(f->samples[i].op, op) == 0 && (f->samples[i].grad || !grad))
                return true;
    return false;
}

TS_TEST(every_row_has_a_sample)
{
    int lacking = 0;
    for (int op = 0; op < ts_op_count(); op++) {
        const char *name = ts_op_name(op);
        if (ts_ops[op].flags & TS_OP_RUNTIME || is_pending(name))
            continue;
        if (!has_sample(name, false)) {
            printf("no sample drives '%s'\n", name);
            lacking++;
        }
    }
    ck_assert_msg(lacking == 0, "%d rows of ops.def have no sample: write one in tests/samples/<family>.c", lacking);
}

TS_TEST(every_differentiable_row_has_a_gradient_sample)
{
    int lacking = 0;
    for (int op = 0; op < ts_op_count(); op++) {
        const char *name = ts_op_name(op);
        if (ts_ops[op].flags & TS_OP_RUNTIME || is_pending(name) || !sample_is_differentiable(&ts_ops[op]))
            continue;
        if (!has_sample(name, true)) {
            printf("no sample checks the gradient of '%s'\n", name);
            lacking++;
        }
    }
    ck_assert_msg(lacking == 0, "%d differentiable rows of ops.def have no sample with .grad", lacking);
}

TS_TEST(nothing_is_pending_without_need)
{
    for (int i = 0; pending[i]; i++) {
        int op = ts_op_by_name(pending[i]);
        bool covered = op >= 0 && has_sample(pending[i], false) &&
                       (!sample_is_differentiable(&ts_ops[op]) || has_sample(pending[i], true));
        ck_assert_msg(!covered, "'%s' has its samples: remove it from pending.txt", pending[i]);
    }
}
