/** @file compare.c  Compares two profiles, op by op. */
// SPDX-License-Identifier: MIT
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "include/tessera/check.h"
#include "include/tessera/program.h"
#include "profile/advice.h"

/** Calls and time of an op in a layer in both profiles: [0] before, [1] after. The time is device
 *  time if both profiles are of device time, else self time; both numbers are per step if both
 *  profiles have steps. */
typedef struct pair {
    const char *op, *layer;
    double calls[2], ns[2];
} pair;

static double difference(const pair *p) { return p->ns[1] - p->ns[0]; }

static int by_change(const void *a, const void *b)
{
    double x = fabs(difference(a)), y = fabs(difference(b));
    return (x < y) - (x > y);
}

/** Adds p's entries, times `scale`, to the pairs of their op and layer. side: 0 before, 1 after. */
static void add(pair *all, int64_t *count, const ts_profile *p, int side, double scale,
                bool device)
{
    for (int64_t i = 0; i < p->count; i++) {
        const ts_entry *e = &p->entries[i];
        int64_t k = 0;
        while (k < *count && (strcmp(all[k].op, e->op) != 0 || strcmp(all[k].layer, e->layer) != 0))
            k++;
        *count += k == *count;
        all[k].op = e->op;
        all[k].layer = e->layer;
        all[k].calls[side] += (double)e->calls * scale;
        all[k].ns[side] += (device ? e->device_ns : e->self_ns) * scale;
    }
}

/** Mean wall time of a step in ns; without steps, the wall time of the recording. */
static double step_time(const ts_profile *p)
{
    double sum = 0;
    for (int64_t i = 0; i < p->nsteps; i++)
        sum += p->steps[i].wall_ns;
    return p->nsteps ? sum / (double)p->nsteps : p->wall_ns;
}

ts_status ts_profile_compare(const ts_profile *before, const ts_profile *after, FILE *out)
{
    enum { MOST = 25 };
    TS_TRY(TS_CHECK_OBJECTS(before, after));
    TS_TRY(TS_CHECK_POINTERS(out));
    TS_C_LOCALE;
    pair *all = ts_sys_calloc((size_t)(before->count + after->count + 1) * sizeof *all);
    if (!all)
        return ts_error_memory("a comparison", before->count + after->count);
    bool steps = before->nsteps && after->nsteps;
    bool device = ts_profile_is_of_device(before) && ts_profile_is_of_device(after);
    int64_t count = 0;
    add(all, &count, before, 0, steps ? 1 / (double)before->nsteps : 1, device);
    add(all, &count, after, 1, steps ? 1 / (double)after->nsteps : 1, device);
    if (count > 1)
        qsort(all, (size_t)count, sizeof *all, by_change);
    const char *unit = steps ? "a step" : "in all";
    double wall[2] = {steps ? step_time(before) : before->wall_ns,
                      steps ? step_time(after) : after->wall_ns};
    fputs("before: ", out);
    ts_profile_write_verdict(before, out);
    fputs("after:  ", out);
    ts_profile_write_verdict(after, out);
    fprintf(out, "wall %s: %.3f ms -> %.3f ms, %.3f times\n", unit, wall[0] / 1e6, wall[1] / 1e6,
            wall[0] > 0 ? wall[1] / wall[0] : 0.0);
    if (device)
        fputs("\ntimes of the device:", out);
    fprintf(out, "\n%-34s %-10s %8s %8s %11s %11s %11s\n", "op", "layer", "calls", "calls",
            "before ms", "after ms", "change ms");
    for (int64_t i = 0; i < count && i < MOST; i++)
        fprintf(out, "%-34.34s %-10.10s %8.1f %8.1f %11.4f %11.4f %+11.4f\n", all[i].op,
                all[i].layer, all[i].calls[0], all[i].calls[1], all[i].ns[0] / 1e6,
                all[i].ns[1] / 1e6, difference(&all[i]) / 1e6);
    if (count > MOST)
        fprintf(out, "(%lld more)\n", (long long)(count - MOST));
    ts_profile_compare_advice(before, after, out);
    ts_sys_free(all);
    return ts_profile_flush(out, "profile_compare");
}
