/** @file memory.c  Memory of tensors by owner and holder, the parts of calls, and flight
 * recordings. */
// SPDX-License-Identifier: MIT
#include <stdlib.h>

#include "dispatch/memory_log.h"
#include "dispatch/timers.h"
#include "profile/profile.h"
#include "tests/dispatch/common.h"
#include "tests/profile/take.h"

enum { KIB = 1024, SIDE = 64 }; /* a matrix of 16 KiB */

static const ts_memory_holder *holder(const ts_profile *p, const char *op, ts_owner owner)
{
    for (int64_t i = 0; i < p->memory.nholders; i++)
        if (strcmp(p->memory.holders[i].op, op) == 0 && p->memory.holders[i].owner == (int)owner)
            return &p->memory.holders[i];
    return NULL;
}

TS_TEST(memory_has_its_peak_and_the_holders_of_the_peak)
{
    BEGIN;
    OK(ts_prof_start(TS_OPTS(ts_prof_opts, .memory = true)));
    {
        TS_SCOPE;
        TS_PROF_SCOPE("first");
        ts_tensor *x = ts_ones(TS_SIZES(SIDE, SIDE), TS_F32);
        ts_tensor *y = ts_exp(x);
        ts_drop(ts_exp(y));
    }
    {
        TS_SCOPE;
        TS_PROF_SCOPE("second");
        ts_tensor *x = ts_ones(TS_SIZES(2 * SIDE, SIDE), TS_F32);
        OK(ts_sin(ts_sin(x)));
        OK(ts_ones(TS_SIZES(4), TS_F32)); /* too small to be logged */
    }
    ts_profile *p = take();
    ck_assert_str_eq(p->memory.device, "cpu");
    ck_assert_double_eq(p->memory.peak_bytes, 3 * 2 * 16 * KIB);
    ck_assert_double_eq(p->memory.peak[TS_OWNER_TEMPORARY], p->memory.peak_bytes);
    const ts_memory_holder *h = holder(p, "sin", TS_OWNER_TEMPORARY);
    ck_assert_ptr_nonnull(h);
    ck_assert_str_eq(h->scope, "second");
    ck_assert_double_eq(h->bytes, 2 * 32 * KIB);
    ck_assert_int_eq(h->blocks, 2);
    ck_assert_ptr_null(holder(p, "exp", TS_OWNER_TEMPORARY)); /* dead at the peak */
    const ts_memory_part *m = &p->memory;
    double most = 0, before = -1;
    for (int64_t i = 0; i < m->npoints; i++) {
        double sum = 0;
        for (int k = 0; k < TS_OWNERS; k++)
            sum += m->points[i].bytes[k];
        most = sum > most ? sum : most;
        ck_assert_double_gt(m->points[i].ns, before);
        before = m->points[i].ns;
    }
    ck_assert_double_eq(most, m->peak_bytes);
    ck_assert_int_eq(m->lost, 0);
    ts_profile_free(p);
}

/** In a training step, each owner has the expected bytes. */
TS_TEST(memory_has_owners)
{
    BEGIN;
    enum { BYTES = 16 * KIB };
    OK(ts_prof_start(TS_OPTS(ts_prof_opts, .memory = true)));
    ts_tensor *w = ts_set_requires_grad(ts_ones(TS_SIZES(SIDE, SIDE), TS_F32), true);
    ts_optimizer *o = ts_optimizer_new(TS_ADAMW);
    OK(o);
    OK(ts_optimizer_add_group(o, (const char *[]){"w"}, &w, 1,
                              TS_OPTS(ts_group_opts, .lr = 0.1)));
    ts_tensor *x = ts_ones(TS_SIZES(SIDE, SIDE), TS_F32);
    ts_prof_hold(x, TS_HOLD_INPUT);
    ts_prof_hold(NULL, TS_HOLD_INPUT);
    {
        TS_SCOPE;
        ts_tensor *h = ts_exp(ts_mm(x, w)); /* exp saves its result, mm its input */
        OK(ts_backward(ts_sum(h)));
        OK(ts_optimizer_step(o));
    }
    ts_profile *p = take();
    const double *peak = p->memory.peak;
    ck_assert_double_eq(peak[TS_OWNER_PARAMETER], BYTES);
    ck_assert_double_eq(peak[TS_OWNER_OPTIMIZER], 2 * BYTES);
    ck_assert_double_eq(peak[TS_OWNER_INPUT], BYTES);
    ck_assert_double_ge(peak[TS_OWNER_SAVED], BYTES);
    const ts_memory_holder *h = holder(p, "exp", TS_OWNER_SAVED);
    ck_assert_ptr_nonnull(h);
    ck_assert_double_eq(h->bytes, BYTES);
    bool gradient = false;
    for (int64_t i = 0; i < p->memory.npoints; i++)
        gradient = gradient || p->memory.points[i].bytes[TS_OWNER_GRADIENT] == BYTES;
    ck_assert(gradient);
    ts_optimizer_free(o);
    ts_profile_free(p);
}

/** Tensors that an earlier recording logged, or that were made before a recording, are not in its
 *  log. */
TS_TEST(logs_of_two_profiles_do_not_mix)
{
    BEGIN;
    for (int turn = 0; turn < 3; turn++) {
        ts_tensor *kept = ts_ones(TS_SIZES(SIDE, SIDE), TS_F32);
        OK(ts_prof_start(TS_OPTS(ts_prof_opts, .memory = true)));
        ts_tensor *later = ts_retain(ts_ones(TS_SIZES(SIDE, 2 * SIDE), TS_F32));
        ts_drop(kept);
        OK(ts_ones(TS_SIZES(SIDE, SIDE), TS_F32));
        ts_profile *p = take();
        ck_assert_double_eq(p->memory.peak_bytes, 48 * KIB);
        ts_release(later);
        ts_profile_free(p);
    }
    OK(ts_prof_start(NULL));
    OK(ts_ones(TS_SIZES(SIDE, SIDE), TS_F32));
    ts_profile *p = take();
    ck_assert_int_eq(p->memory.npoints, 0);
    ts_profile_free(p);
}

typedef struct moment {
    int64_t tick;
    double change;
} moment;

static int by_tick(const void *a, const void *b)
{
    const moment *x = a, *y = b;
    return (x->tick > y->tick) - (x->tick < y->tick);
}

/** Drawn allocations and releases: after each, the log's running sum is the sum of the tensors that
 *  live; the peak is the largest sum, and the last sum is 0. */
TS_TEST(the_log_sums_to_the_living_tensors_at_each_event)
{
    BEGIN;
    enum { PLACES = 40, EVENTS = 3000 };
    static double sums[EVENTS];
    static moment moments[2 * EVENTS];
    ts_tensor *at[PLACES] = {NULL};
    double now = 0, most = 0;
    srandom(16);
    OK(ts_prof_start(TS_OPTS(ts_prof_opts, .memory = true)));
    for (int i = 0; i < EVENTS; i++) {
        int place = i < EVENTS - PLACES ? (int)(random() % PLACES) : i - (EVENTS - PLACES);
        int64_t n = 300 + random() % 5000;
        if (at[place]) {
            now -= 4 * (double)ts_numel(at[place]);
            ts_release(at[place]);
            at[place] = NULL;
        } else if (i < EVENTS - PLACES) {
            OK(at[place] = ts_retain(ts_empty(TS_SIZES(n), TS_F32)));
            ts_drop(at[place]); /* the scope's reference */
            now += 4 * (double)n;
        }
        sums[i] = now;
        most = now > most ? now : most;
    }
    ts_profile *p = take();
    int64_t count, lost, begun, n = 0, event = 0;
    const ts_memory_life *lives = ts_memory_lives(&count, &lost, &begun);
    for (int64_t i = 0; i < count; i++) {
        moments[n++] = (moment){lives[i].allocated, (double)lives[i].bytes};
        ck_assert_int_gt(lives[i].freed, 0);
        moments[n++] = (moment){lives[i].freed, -(double)lives[i].bytes};
    }
    qsort(moments, (size_t)n, sizeof *moments, by_tick);
    ck_assert_int_gt(n, EVENTS / 2);
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        while (event < EVENTS && sums[event] == sum) /* no change: an empty place at the end */
            event++;
        sum += moments[i].change;
        ck_assert_double_eq(sum, sums[event]);
    }
    ck_assert_double_eq(sum, 0);
    ck_assert_double_eq(p->memory.peak_bytes, most);
    ts_profile_free(p);
}

/* -------------------------------------------------------------------------------- parts ---- */

static const ts_entry *part(const ts_profile *p, const char *op, const char *name)
{
    for (int64_t i = 0; i < p->count; i++)
        if (strcmp(p->entries[i].op, op) == 0 && strcmp(p->entries[i].layer, "CPU") == 0 &&
            strcmp(p->entries[i].part, name) == 0)
            return &p->entries[i];
    return NULL;
}

TS_TEST(detail_divides_a_backends_row)
{
    BEGIN;
    ts_tensor *a = ts_ones(TS_SIZES(256, 256), TS_F32);
    ts_tensor *t = ts_transpose(a, 0, 1);
    double whole[2], rows[2];
    for (int detail = 0; detail < 2; detail++) {
        OK(ts_prof_start(TS_OPTS(ts_prof_opts, .detail = detail)));
        for (int i = 0; i < 50; i++) {
            TS_SCOPE;
            OK(ts_exp(a));
            OK(ts_softmax(t, 1)); /* packs its argument */
            OK(ts_mm(a, a));      /* its kernel takes no strides, and none are here */
        }
        ts_profile *p = take();
        double sum = p->profiler_ns;
        whole[detail] = 0;
        for (int64_t i = 0; i < p->count; i++) {
            sum += p->entries[i].self_ns;
            whole[detail] += strcmp(p->entries[i].op, "exp") == 0 ? p->entries[i].self_ns : 0;
        }
        rows[detail] = (double)p->count;
        ck_assert_double_eq_tol(sum, p->wall_ns, 1e-9 * p->wall_ns + 1);
        const ts_entry *rule = part(p, "exp", "rule"), *made = part(p, "exp", "allocation"),
                       *kernel = part(p, "exp", ""), *casts = part(p, "softmax", "casts");
        ck_assert_int_eq(rule != NULL, detail);
        ck_assert_int_eq(made != NULL, detail);
        ck_assert_ptr_nonnull(kernel);
        ck_assert_int_eq(kernel->calls, 50);
        ck_assert_double_eq(kernel->flops, 50.0 * 256 * 256);
        if (detail) {
            ck_assert_double_gt(rule->self_ns, 0);
            ck_assert_double_gt(made->self_ns, 0);
            ck_assert(!rule->kernel && kernel->kernel);
            ck_assert_int_eq(casts != NULL, 1);
            ck_assert_double_gt(casts->self_ns, 0);
            ck_assert_double_gt(part(p, "softmax", "")->self_ns, 0.1 * casts->self_ns);
            ck_assert_ptr_null(part(p, "mm", "casts"));
        }
        ts_profile_free(p);
    }
    ck_assert_double_gt(rows[1], rows[0]);
}

/* ------------------------------------------------------------------------------- flight ---- */

TS_TEST(a_flight_recording_keeps_the_latest_calls)
{
    BEGIN;
    enum { CALLS = TS_EVENT_RING + 5000 };
    ts_tensor *a = one();
    OK(ts_prof_start(TS_OPTS(ts_prof_opts, .trace = true, .flight = true)));
    for (int64_t i = 0; i < CALLS; i++)
        ts_exp_out(a, a);
    for (int i = 0; i < 7; i++)
        ts_sin_out(a, a);
    ts_profile *p = take();
    ck_assert_int_eq(p->nevents, TS_EVENT_RING);
    ck_assert_int_eq(p->overwritten, 5000 + 7);
    ck_assert_int_eq(p->lost_events, 0);
    int64_t sines = 0;
    for (int64_t i = 0; i < p->nevents; i++) {
        ck_assert_int_eq(p->events[i].event.inside, 0);
        sines += strcmp(ts_op_name(p->events[i].event.op), "sin") == 0;
        if (i)
            ck_assert_double_ge(p->events[i].begin_ns, p->events[i - 1].begin_ns);
    }
    ck_assert_int_eq(sines, 7);
    ck_assert_str_eq(ts_op_name(p->events[p->nevents - 1].event.op), "sin");
    ts_profile_free(p);
}
