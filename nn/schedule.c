/** @file schedule.c  Learning rates as functions of the step. */
// SPDX-License-Identifier: MIT
#include "nn/nn.h"

#include <math.h>

/** (step - from) / (to - from), limited to [0, 1]. If to <= from: 0 before `to`, then 1. */
static double progress(double step, double from, double to)
{
    if (step >= to)
        return 1;
    return step <= from ? 0 : (step - from) / (to - from);
}

double ts_schedule_at(const ts_schedule *s, int64_t step)
{
    if (!s)
        return NAN;
    if (step < 0)
        step = 0;
    if (step < s->warmup_steps)
        return (double)(step + 1) / ((double)s->warmup_steps + 1);
    double now = (double)step, end = (double)s->total_steps;
    double done = progress(now, (double)s->warmup_steps, end);
    switch (s->kind) {
    case TS_SCHEDULE_CONSTANT: return 1;
    case TS_SCHEDULE_LINEAR: break;
    case TS_SCHEDULE_COSINE: done = 0.5 * (1 - cos(M_PI * done)); break;
    case TS_SCHEDULE_WSD:
        done = progress(now, end - (double)s->decay_steps, end);
        break;
    default: return NAN;
    }
    return 1 + done * (s->final_ratio - 1);
}

ts_status ts_schedule_apply(const ts_schedule *schedule, ts_optimizer *o, int64_t step)
{
    TS_TRY(TS_CHECK_POINTERS(schedule));
    TS_TRY(TS_CHECK_OBJECTS(o));
    double factor = ts_schedule_at(schedule, step);
    if (!(factor >= 0))
        return ts_error_set(TS_ERR_VALUE,
                            "schedule_apply: argument 'schedule': expected a factor of at least 0 "
                            "at step %lld, got %g", (long long)step, factor);
    for (int i = 0; i < ts_optimizer_num_groups(o); i++)
        ts_optimizer_group(o, i)->lr = ts_nn_initial_lr(o, i) * factor;
    return TS_OK;
}
