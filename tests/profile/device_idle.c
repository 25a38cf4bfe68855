/** @file device_idle.c  Tests of graphs, events and ranges, and of the causes of idle time. */
// SPDX-License-Identifier: MIT
#include "tests/profile/scripted.h"

/* -------------------------------------------------------------------------------- graphs ---- */

/** The row of an op in the calling thread's table. */
static ts_tally_row *row_of_op(const char *op)
{
    ts_tally_table *t = &ts_tls.timers->record;
    for (int i = 0; i < atomic_load(&t->count); i++)
        if (strcmp(ts_row_op(ts_tally_at(t, i)->op), op) == 0 && ts_tally_at(t, i)->key < 16)
            return ts_tally_at(t, i);
    ck_abort_msg("no row of %s", op);
}

/** The k-th work of a launch belongs to the k-th row. If works are missing, all belong to the row
 *  of the launch. */
TS_TEST(works_of_a_graph_belong_to_their_ops)
{
    BEGIN;
    TS_SCOPE;
    ts_tensor *x = ts_to_device(ts_ones(TS_SIZES(250), TS_F32), on_device());
    int graph, other;
    OK(ts_prof_start(NULL));
    OK(ts_relu(x));
    OK(ts_exp(x));
    ts_graph_part parts[] = {{row_of_op("relu"), {10, 20}}, {row_of_op("exp"), {1, 2}}};
    const ts_graph_part *works[] = {&parts[0], &parts[1], &parts[1]},
                        *more[] = {&parts[1], &parts[0]};
    for (int i = 0; i < 2; i++) {
        ts_graph_launches(&ts_tls, &graph, parts, 2, works, 3);
        launch(FAKE_KERNEL, 0, 100, 3);
    }
    ts_graph_launches(&ts_tls, &other, parts, 2, more, 2);
    launch(FAKE_KERNEL, 0, 10, 2);
    ts_graph_launches(&ts_tls, &graph, parts, 2, works, 3);
    launch(FAKE_KERNEL, 0, 7, 2); /* one is missing */
    ts_profile *p = take();
    ck_assert_double_eq(must_find(p, "relu", "")->device_ns, 1000 + 2 * 100 + 10);
    ck_assert_double_eq(must_find(p, "exp", "")->device_ns, 850 + 4 * 100 + 10);
    ck_assert_int_eq(must_find(p, "exp", "")->kernels, 2 + 4 + 1);
    ck_assert_double_eq(must_find(p, "(unattributed)", "")->device_ns, 14);
    ck_assert_int_eq(must_find(p, "relu", "")->calls, 1 + 4);
    ck_assert_int_eq(p->device.untagged, 0);
    ts_profile_free(p);
}

/* -------------------------------------------------------------------------------- events ---- */

static ts_event *event_new(void *state, int device)
{
    (void)state, (void)device;
    return calloc(1, sizeof(int64_t));
}
static void event_free(void *state, int device, ts_event *event)
{
    (void)state, (void)device;
    free(event);
}
static ts_status event_record(void *state, int device, ts_event *event, ts_stream *stream)
{
    (void)state, (void)device, (void)stream;
    fake->clock += 5; /* device time of an event */
    *(int64_t *)event = fake->clock;
    return TS_OK;
}
static ts_status event_wait(void *state, int device, ts_event *event, ts_stream *stream)
{
    (void)state, (void)device, (void)event, (void)stream;
    return TS_OK;
}
static ts_status event_synchronize(void *state, int device, ts_event *event)
{
    (void)state, (void)device, (void)event;
    return TS_OK;
}
static ts_status event_elapsed(void *state, int device, ts_event *start, ts_event *end, double *ms)
{
    (void)state, (void)device;
    *ms = (double)(*(int64_t *)end - *(int64_t *)start) / 1e6;
    return TS_OK;
}

/** Without CUPTI each call has the time between its two events, and the report says so. */
TS_TEST(events_replace_cupti)
{
    BEGIN;
    TS_SCOPE;
    ts_key key;
    ts_backend with_events = backend;
    with_events.event_new = event_new;
    with_events.event_free = event_free;
    with_events.event_record = event_record;
    with_events.event_wait = event_wait;
    with_events.event_synchronize = event_synchronize;
    with_events.event_elapsed = event_elapsed;
    setenv("TS_CUDA_CUPTI", "0", 1);
    OK(ts_register_backend(&with_events, &key));
    ts_tensor *x = ts_to_device(ts_ones(TS_SIZES(100), TS_F32), (ts_device){key, 0});
    OK(ts_prof_start(NULL));
    for (int i = 0; i < 5000; i++) { /* more than one batch of events */
        OK(ts_relu(x));
        fake->clock += 70; /* outside of calls */
    }
    OK(ts_exp(x));
    ts_profile *p = take();
    ck_assert_int_eq(p->device.lost, 0);
    ck_assert_double_eq_tol(must_find(p, "relu", "")->device_ns, 5000 * 1000, 5000 * 2);
    ck_assert_int_eq(must_find(p, "relu", "")->kernels, 5000);
    ck_assert_double_eq_tol(must_find(p, "exp", "")->device_ns, 100 + 400 + 100 + 400 + 50, 2);
    ck_assert_int_eq(must_find(p, "relu", "")->regime, TS_REGIME_MEMORY);
    ck_assert_double_eq_tol(p->device.idle_ns, 5000 * 80, 5000 * 2);
    ck_assert_str_eq(p->device.note, "no GPU times: TS_CUDA_CUPTI=0");
    expect_text(p, "device times of events, gaps included: 5001 kernels");
    ts_profile_free(p);
}

/* -------------------------------------------------------------------------------- ranges ---- */

static char ranges[256];

static void note_range(void *state, const char *name)
{
    (void)state;
    size_t used = strlen(ranges);
    snprintf(ranges + used, sizeof ranges - used, "%s ", name ? name : "end");
}

TS_TEST(scopes_and_steps_are_ranges_of_other_tools)
{
    BEGIN;
    TS_SCOPE;
    ts_key key;
    ts_backend with_ranges = backend;
    with_ranges.profile_range = note_range;
    OK(ts_register_backend(&with_ranges, &key));
    for (int on = 0; on < 2; on++) {
        OK(ts_prof_start(&(ts_prof_opts){.size = sizeof(ts_prof_opts), .ranges = on}));
        ts_prof_step();
        {
            TS_PROF_SCOPE("outer");
            TS_PROF_SCOPE("inner");
            OK(ts_backward(ts_sum(ts_set_requires_grad(ts_ones(TS_SIZES(2), TS_F32), true))));
        }
        ts_prof_step();
        OK(ts_prof_stop());
        ck_assert_str_eq(ranges, on ? "step outer inner backward end end end end step " : "");
    }
    ts_prof_step(); /* no profile records */
    ck_assert_str_eq(ranges, "step outer inner backward end end end end step ");
}

/* ----------------------------------------------------------------------------- idle time ---- */

/** A gap is divided by cause, from the time of the call that queues the work after it. Comments
 *  give times in ns. */
TS_TEST(idle_time_has_causes)
{
    BEGIN;
    TS_SCOPE;
    ts_tensor *x = ts_to_device(ts_ones(TS_SIZES(250), TS_F32), on_device());
    OK(ts_prof_start(NULL));
    fake->call_ns = 100;
    fake->called = 4000;
    OK(ts_relu(x)); /* runs from 5,000 to 6,000 */
    fake->called = 5500;
    fake->clock += 10;
    OK(ts_relu(x)); /* queued before a gap of 10: device; ends at 7,010 */
    fake->called = 6500;
    fake->clock += 40000;
    OK(ts_relu(x)); /* queued before a gap of 40,000: dependency; ends at 48,010 */
    fake->called = fake->clock + 300;
    fake->clock += 1000;
    OK(ts_relu(x)); /* a gap of 300 host and 700 launch; ends at 50,010 */
    wait_call(false, 49000, fake->clock + 50);
    fake->called = fake->clock + 250;
    fake->clock += 250;
    OK(ts_relu(x)); /* a gap of 250 after a wait: sync; ends at 51,260 */
    wait_call(true, fake->clock + 20, fake->clock + 90);
    fake->called = fake->clock + 100;
    fake->clock += 100;
    OK(ts_exp(x)); /* gaps: 70 allocator, 30 host, 100 launch; then 100 between its kernels */
    ts_profile *p = take();
    const double *idle = p->device.idle;
    ck_assert_double_eq(idle[TS_IDLE_DEVICE], 10 + 100);
    ck_assert_double_eq(idle[TS_IDLE_DEPENDENCY], 40000);
    ck_assert_double_eq(idle[TS_IDLE_SYNC], 250);
    ck_assert_double_eq(idle[TS_IDLE_ALLOCATOR], 70);
    ck_assert_double_eq(idle[TS_IDLE_HOST], 300 + 30);
    ck_assert_double_eq(idle[TS_IDLE_LAUNCH], 700 + 100);
    ck_assert_double_eq(idle[TS_IDLE_UNKNOWN], 0);
    ck_assert_double_eq(idle[TS_IDLE_DATA], 0);
    double sum = 0;
    for (int i = 0; i < TS_IDLE_COUNT; i++)
        sum += idle[i];
    ck_assert_double_eq(sum, p->device.idle_ns);
    ck_assert_int_eq(p->device.waits, 1);
    ck_assert_int_eq(p->device.allocations, 1);
    ck_assert_double_eq(must_find(p, "relu", "")->idle_ns, 300);
    expect_text(p, "the host had waited for the device before");
    ts_profile_free(p);
}

/** Idle time in which the host is late belongs to the host's scope, and in a trace to its layer. */
TS_TEST(idle_time_belongs_to_scopes_and_layers)
{
    BEGIN;
    TS_SCOPE;
    ts_tensor *x = ts_to_device(ts_ones(TS_SIZES(250), TS_F32), on_device());
    OK(ts_prof_start(&(ts_prof_opts){.size = sizeof(ts_prof_opts), .trace = true}));
    fake->real = true;
    for (int i = 0; i < 5; i++) {
        OK(ts_relu(x));
        {
            TS_PROF_SCOPE("data");
            usleep(2000);
            OK(ts_mul(ts_ones(TS_SIZES(2), TS_F32), ts_ones(TS_SIZES(2), TS_F32)));
        }
        {
            TS_PROF_SCOPE("nap");
            usleep(4000);
        }
        OK(ts_relu(x));
    }
    ts_profile *p = take();
    double nap = 0, data = 0, layers = 0;
    for (int64_t i = 0; i < p->nexposed; i++) {
        const ts_exposed *e = &p->exposed[i];
        nap += !e->layer && strcmp(e->name, "nap") == 0 ? e->ns : 0;
        data += !e->layer && strcmp(e->name, "data") == 0 ? e->ns : 0;
        layers += e->layer ? e->ns : 0;
    }
    ck_assert_msg(nap > 0.95 * 5 * 4e6 && nap < p->device.idle_ns - 0.95 * 5 * 2e6, "%f", nap);
    ck_assert_msg(data > 0.95 * 5 * 2e6, "%f", data);
    ck_assert_msg(layers > 0 && layers < p->device.idle_ns, "%f", layers);
    ck_assert_double_gt(p->device.idle[TS_IDLE_DATA], 0.95 * 5 * 2e6);
    ck_assert_double_gt(p->device.idle[TS_IDLE_HOST], 0.95 * 5 * 4e6);
    ck_assert_double_ge(p->device.delay_ns, 1000);
    ts_profile_free(p);
}

/** Changes of scope that do not fit into the table are counted, and the idle time after the last
 * one that fits has no scope. */
TS_TEST(lost_changes_of_scope_are_reported)
{
    BEGIN;
    TS_SCOPE;
    ts_tensor *x = ts_to_device(ts_ones(TS_SIZES(250), TS_F32), on_device());
    fake->real = true;
    OK(ts_prof_start(NULL));
    OK(ts_relu(x));
    double begin = seconds();
    for (int i = 0; i < TS_MARKS_MOST; i += 2) {
        TS_PROF_SCOPE("short");
    }
    double most = 1.01e9 * (seconds() - begin) + 1e6;
    ck_assert_int_eq(ts_prof_enter("last"), TS_OK);
    usleep(50000);
    OK(ts_relu(x));
    ts_prof_leave();
    fake->real = false;
    ts_profile *p = take();
    ck_assert_int_eq(p->device.lost_scopes, 2);
    ck_assert_double_gt(p->device.idle_ns, 5e7);
    for (int64_t i = 0; i < p->nexposed; i++)
        ck_assert_msg(p->exposed[i].layer || p->exposed[i].ns < most, "%s has %.0f ns",
                      p->exposed[i].name, p->exposed[i].ns);
    char *text = as_text(p, TS_PROFILE_TABLES);
    ck_assert_msg(strstr(text, "INCOMPLETE: 2 changes of scope") != NULL, "%s", text);
    free(text);
    ts_profile_free(p);
}

/** A trace has the device's work in lanes, and an arrow from the call that queued each. */
TS_TEST(a_trace_has_the_device_work)
{
    BEGIN;
    TS_SCOPE;
    ts_tensor *x = ts_to_device(ts_ones(TS_SIZES(250), TS_F32), on_device());
    fake->real = true;
    fake->offset = 40000000000;
    OK(ts_prof_start(&(ts_prof_opts){.size = sizeof(ts_prof_opts), .trace = true}));
    fake->name = "_Z4relu";
    for (int i = 0; i < 5; i++) {
        TS_PROF_SCOPE("part");
        OK(ts_relu(x));
        usleep(100);
    }
    fake->name = NULL;
    launch(FAKE_KERNEL, 0, 1000000, 1); /* of no call */
    launch(FAKE_KERNEL, -20, 40, 1);    /* begins before the end of the kernel before it */
    fake->real = false;
    ts_profile *p = take();
    ck_assert_int_eq(p->nworks, 7);
    for (int i = 0; i < 5; i++) {
        const ts_work_event *w = &p->works[i];
        ck_assert_str_eq(p->calls[w->call], "relu((250) f32 scripted:0)");
        ck_assert_str_eq(w->kernel, "_Z4relu");
        ck_assert_int_eq(w->event, i);
        ck_assert_double_eq(w->ns, 1000);
        double late = w->begin_ns - p->events[i].begin_ns;
        ck_assert_msg(late > 0 && late < 1e9, "%f", late);
    }
    ck_assert_int_eq(p->works[6].event, -1);
    char *text = as_text(p, TS_PROFILE_CHROME), *at = text;
    int arrows = 0;
    while ((at = strstr(at, "\"ph\": \"f\", \"bp\": \"e\", \"cat\": \"launch\"")) != NULL)
        arrows++, at++;
    ck_assert_int_eq(arrows, 5);
    ck_assert_msg(strstr(text, "\"kernel\": \"_Z4relu\"") && strstr(text, "device 0, lane 1"), "%s",
                  text);
    free(text);
    ts_profile_free(p);
}

/** Sleeps `us` in a scope and runs two kernels. Sets ns[0] and ns[1] to the least and the longest
 *  time that the host was in the scope. */
static void sleep_between_calls(const char *scope, unsigned us, ts_tensor *x, double ns[2])
{
    OK(ts_relu(x));
    double outer = seconds();
    {
        TS_PROF_SCOPE(scope);
        double inner = seconds();
        usleep(us);
        ns[0] = 1e9 * (seconds() - inner);
    }
    ns[1] = 1e9 * (seconds() - outer);
    OK(ts_relu(x));
}

/** A device clock with an offset of seconds that drifts: kernels keep their rows, steps and times,
 *  and idle time its scopes, because the host's times are converted by two readings of both clocks.
 *  Without the correction of the drift, the later naps would be in a wrong place by the drift since
 *  the begin: at 2 % by 5 ms. */
TS_TEST(a_device_clock_may_be_offset_and_drift)
{
    BEGIN;
    TS_SCOPE;
    static const char *const scopes[] = {"first", "second", "third", "fourth"};
    enum { NAPS = sizeof scopes / sizeof *scopes, BUSY = 60000000 /* ns after each nap */,
           SLACK = 20000 /* the kernel before a nap ends inside it */ };
    static const struct {
        int64_t offset;
        double drift;
    } clocks[] = {{0, 0}, {7000000000, 50e-6}, {-900000, -50e-6}, {3000000000, 0.02}};
    ts_tensor *x = ts_to_device(ts_ones(TS_SIZES(250), TS_F32), on_device());
    for (int k = 0; k < (int)(sizeof clocks / sizeof *clocks); k++) {
        double napped[NAPS][2], rate = 1 + clocks[k].drift;
        fake->drifts_from = (int64_t)(1e9 * seconds());
        fake->offset = clocks[k].offset;
        fake->drift = clocks[k].drift;
        fake->clock = 0;
        fake->real = true;
        OK(ts_prof_start(NULL));
        for (int i = 0; i < NAPS; i++) {
            sleep_between_calls(scopes[i], 4000, x, napped[i]);
            launch(FAKE_KERNEL, 0, BUSY, 1); /* the clocks drift apart */
            usleep(BUSY / 1000);
            OK(ts_relu(x));
            ts_prof_step();
        }
        ts_profile *p = take();
        ck_assert_double_eq(must_find(p, "relu", "")->device_ns, 3 * NAPS * 1000);
        ck_assert_int_eq(must_find(p, "relu", "")->kernels, 3 * NAPS);
        ck_assert_int_eq(p->device.lost + p->device.untagged, 0);
        for (int i = 0; i < NAPS; i++) {
            double ns = 0;
            for (int64_t e = 0; e < p->nexposed; e++)
                ns += !p->exposed[e].layer && strcmp(p->exposed[e].name, scopes[i]) == 0
                          ? p->exposed[e].ns
                          : 0;
            ck_assert_double_eq(p->steps[i].busy_ns, 3000 + BUSY);
            ck_assert_msg(ns > rate * napped[i][0] - SLACK && ns < rate * napped[i][1] + SLACK,
                          "clock %d: %f ns, not %f to %f, are in the scope %s", k, ns,
                          rate * napped[i][0], rate * napped[i][1], scopes[i]);
        }
        ts_profile_free(p);
        fake->real = false;
    }
}

TS_TEST(kernels_have_names_waves_and_copies_their_memory)
{
    BEGIN;
    TS_SCOPE;
    ts_cupti_set_limits(0, &(ts_cupti_limits){100, 2048, 65536, 200000});
    ts_tensor *x = ts_to_device(ts_ones(TS_SIZES(250), TS_F32), on_device());
    OK(ts_prof_start(NULL));
    fake->name = "_Z4odd'name";
    fake->blocks = 1000; /* 100 processors hold 8 blocks each: 1.25 waves */
    OK(ts_relu(x));
    fake->blocks = 300; /* 3 blocks per processor */
    OK(ts_relu(x));
    fake->blocks = 801;
    fake->pageable = true;
    launch(FAKE_MEMCPY, 0, 500, 1);
    fake->pageable = false;
    launch(FAKE_MEMCPY, 0, 300, 1);
    ts_profile *p = take();
    ck_assert_double_eq(must_find(p, "relu", "")->partial_ns, 0); /* 1,000 is a multiple of 100 */
    ck_assert_double_eq(must_find(p, "(unattributed)", "")->pageable_ns, 500);
    ck_assert_str_eq(p->device.kernel, "_Z4odd'name");
    ck_assert_int_eq(p->device.kernel_launches, 2);
    expect_text(p, "--kernel-name '_Z4odd'\\''name' --launch-skip 1 --launch-count 1 ");
    ts_profile_free(p);
    OK(ts_prof_start(NULL));
    OK(ts_relu(x)); /* 801 blocks: 1.00125 waves of two */
    p = take();
    ck_assert_double_eq_tol(must_find(p, "relu", "")->partial_ns, 1000 * (1 - 1.00125 / 2), 0.01);
    ck_assert_int_eq(fake->finalized, 2);
    ck_assert_int_eq(fake->kinds, 0);
    ts_profile_free(p);
}
