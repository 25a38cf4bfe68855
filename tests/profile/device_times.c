/** @file device_times.c  Tests that the kernels of a device are assigned to the rows and steps that
 * queued them. */
// SPDX-License-Identifier: MIT
#include <dlfcn.h>
#include <pthread.h>

#include "backends/cuda/cupti.h"
#include "dispatch/marks.h"
#include "dispatch/timers_state.h"
#include "init.h"
#include "tests/dispatch/offset.h"
#include "tests/profile/fake_cupti.h"
#include "tests/profile/machine.h"

#define BEGIN                                                                                      \
    if (!TS_TIMERS)                                                                                \
        TS_SKIP("built without timers");                                                           \
    prepare()

char ran[64];

/* ------------------------------------------------------------------------------ backend ---- */

static fake_launch_fn launch;
static fake_wait_fn wait_call;
static fake_device *fake;

static ts_status relu(ts_frame *f)
{
    (void)f;
    launch(FAKE_KERNEL, 0, 1000, 1);
    return TS_OK;
}
/** Queues one launch of two kernels, as of a graph, and a memset. */
static ts_status exponential(ts_frame *f)
{
    (void)f;
    launch(FAKE_KERNEL, 100, 400, 2);
    launch(FAKE_MEMSET, 0, 50, 1);
    return TS_OK;
}
static ts_status install(void *state, ts_key key)
{
    (void)state;
    TS_TRY(ts_register_kernel("relu", key, relu, NULL, NULL));
    return ts_register_kernel("exp", key, exponential, NULL, NULL);
}
static ts_status profile_end(void *state, ts_device_record *record)
{
    (void)state;
    return ts_cupti_end(record);
}

static offset_state memory = {.devices = 1};
static const ts_backend backend = {
    OFFSET_BACKEND("SCRIPTED", TS_BACKEND_CPU_FALLBACK, &memory),
    .install = install,
    .profile_begin = ts_cupti_begin,
    .profile_tag = ts_cupti_tag,
    .profile_end = profile_end,
    .profile_clock = ts_cupti_clock,
};

static ts_device on_device(void)
{
    ts_key key;
    OK(ts_register_backend(&backend, &key));
    return (ts_device){key, 0};
}

/** Sets the ceilings of the scripted device: 1 TFLOP/s and 1 GB/s. A relu of 100 elements moves 800
 *  bytes and takes at least 800 ns. */
static void prepare(void)
{
    ts_device_part d = {.measured = true, .half_flops = 2e12};
    d.machine = (ts_prof_machine){.size = sizeof d.machine, .name = "scripted:0", .threads = 1,
                                  .gemm_flops = 1e12, .vector_flops = 1e12};
    for (int i = 0; i < TS_PROF_CURVE; i++) {
        d.machine.bytes_at[i] = 32768 * (double)(1 << 2 * i);
        d.machine.bandwidth[i] = 1e9;
    }
    use_fixed_machine();
    ts_prof_assume_device(&d);
    setenv("TS_CUDA_CUPTI", FAKE_CUPTI, 1);
    void *library = dlopen(FAKE_CUPTI, RTLD_NOW), *at = dlsym(library, "fake_launch");
    ck_assert_ptr_nonnull(at);
    memcpy(&launch, &at, sizeof at);
    at = dlsym(library, "fake_wait");
    memcpy(&wait_call, &at, sizeof at);
    fake = dlsym(library, "fake");
    *fake = (fake_device){.clock = 5000};
}

static ts_profile *take(void)
{
    OK(ts_prof_stop());
    ts_profile *p = ts_profile_take();
    OK(p);
    return p;
}

static const ts_entry *must_find(const ts_profile *p, const char *op, const char *scope)
{
    for (int64_t i = 0; i < p->count; i++)
        if (strcmp(p->entries[i].op, op) == 0 && strcmp(p->entries[i].scope, scope) == 0)
            return &p->entries[i];
    ck_abort_msg("no row of %s in '%s'", op, scope);
    return NULL;
}

static char *as_text(const ts_profile *p, ts_profile_format format)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    OK(ts_profile_write(p, out, format));
    fclose(out);
    return text;
}

static void expect_text(const ts_profile *p, const char *words)
{
    char *text = as_text(p, TS_PROFILE_TABLES);
    ck_assert_msg(strstr(text, words) != NULL, "'%s' is not in:\n%s", words, text);
    free(text);
}

/* -------------------------------------------------------------------------------- cases ---- */

TS_TEST(rows_have_the_time_of_the_kernels_that_they_queued)
{
    BEGIN;
    TS_SCOPE;
    ts_tensor *x = ts_to_device(ts_ones(TS_SIZES(250), TS_F32), on_device());
    launch(FAKE_KERNEL, 0, 777, 1); /* before the profile */
    OK(ts_prof_start(NULL));
    for (int i = 0; i < 3; i++)
        OK(ts_relu(x));
    {
        TS_PROF_SCOPE("part");
        OK(ts_relu(x));
        OK(ts_exp(x));
        launch(FAKE_KERNEL, 0, 30, 1); /* outside of calls */
    }
    OK(ts_mul(ts_ones(TS_SIZES(2), TS_F32), ts_ones(TS_SIZES(2), TS_F32)));
    ts_profile *p = take();
    ck_assert_double_eq(must_find(p, "relu", "")->device_ns, 3000);
    ck_assert_int_eq(must_find(p, "relu", "")->kernels, 3);
    ck_assert_double_eq(must_find(p, "relu", "part")->device_ns, 1000);
    ck_assert_double_eq(must_find(p, "exp", "part")->device_ns, 850);
    ck_assert_int_eq(must_find(p, "exp", "part")->kernels, 2);
    ck_assert_double_eq(must_find(p, "(unattributed)", "part")->device_ns, 30);
    ck_assert_double_eq(must_find(p, "mul", "")->device_ns, 0);
    ck_assert_int_eq(p->device.kernels, 7);
    ck_assert_int_eq(p->device.copies, 1);
    ck_assert_int_eq(p->device.untagged, 0);
    ck_assert_double_eq(p->device.busy_ns, 3000 + 1000 + 850 + 30);
    ck_assert_double_eq(p->device.idle_ns, 200); /* the gaps of exp */
    ck_assert_int_eq(fake->kinds, 0);
    ck_assert_int_eq(fake->subscribers, 0);
    ts_profile_free(p);
}

/** A step on the device begins with its first work, so host and device need no common clock. */
TS_TEST(steps_have_busy_and_idle_time)
{
    BEGIN;
    TS_SCOPE;
    ts_tensor *x = ts_to_device(ts_ones(TS_SIZES(250), TS_F32), on_device());
    OK(ts_prof_start(NULL));
    for (int step = 0; step < 3; step++) {
        OK(ts_relu(x));
        fake->clock += 500 * step; /* nothing runs */
        OK(ts_relu(x));
        fake->clock += 40;
        ts_prof_step();
    }
    ts_profile *p = take();
    ck_assert_int_eq(p->nsteps, 3);
    for (int step = 0; step < 3; step++) {
        ck_assert_double_eq(p->steps[step].busy_ns, 2000);
        ck_assert_double_eq(p->steps[step].idle_ns, 500 * step + (step < 2 ? 40 : 0));
    }
    ck_assert_double_eq(p->device.busy_ns, 6000);
    ck_assert_double_eq(p->device.idle_ns, 1580);
    ts_profile_free(p);
}

/** Steps before the first recorded one leave no device time. */
TS_TEST(work_before_the_first_recorded_step_is_dropped)
{
    BEGIN;
    TS_SCOPE;
    ts_tensor *x = ts_to_device(ts_ones(TS_SIZES(250), TS_F32), on_device());
    OK(ts_prof_start(&(ts_prof_opts){.size = sizeof(ts_prof_opts), .first_step = 3}));
    for (int step = 1; step <= 4; step++) {
        OK(ts_relu(x));
        if (step == 4)
            OK(ts_exp(x));
        ts_prof_step();
    }
    ts_profile *p = take();
    ck_assert_int_eq(must_find(p, "relu", "")->kernels, 2);
    ck_assert_double_eq(p->device.busy_ns, 2850);
    ck_assert_int_eq(p->nsteps, 2);
    ck_assert_double_eq(p->steps[0].busy_ns, 1000);
    ck_assert_double_eq(p->steps[1].busy_ns, 1850);
    ts_profile_free(p);
}

static void *in_thread(void *x)
{
    TS_SCOPE;
    for (int i = 0; i < 20; i++) {
        OK(ts_relu(x));
        OK(ts_exp(x));
    }
    return NULL;
}

TS_TEST(threads_tag_their_own_work)
{
    BEGIN;
    TS_SCOPE;
    pthread_t threads[3];
    ts_tensor *x = ts_to_device(ts_ones(TS_SIZES(250), TS_F32), on_device());
    OK(ts_prof_start(NULL));
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, in_thread, x), 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    ts_profile *p = take();
    ck_assert_double_eq(must_find(p, "relu", "")->device_ns, 60000);
    ck_assert_double_eq(must_find(p, "exp", "")->device_ns, 60 * 850);
    ck_assert_int_eq(p->device.untagged, 0);
    ts_profile_free(p);
}

TS_TEST(each_profile_has_its_own_work)
{
    BEGIN;
    TS_SCOPE;
    ts_tensor *x = ts_to_device(ts_ones(TS_SIZES(250), TS_F32), on_device());
    for (int i = 1; i <= 3; i++) {
        OK(ts_prof_start(NULL));
        for (int k = 0; k < i; k++)
            OK(ts_relu(x));
        ts_profile *p = take();
        ck_assert_double_eq(must_find(p, "relu", "")->device_ns, 1000 * i);
        ts_profile_free(p);
        OK(ts_relu(x)); /* between profiles */
    }
}

TS_TEST(a_backend_that_is_loaded_while_a_profile_records_takes_part)
{
    BEGIN;
    TS_SCOPE;
    OK(ts_prof_start(NULL));
    ts_tensor *x = ts_to_device(ts_ones(TS_SIZES(250), TS_F32), on_device());
    OK(ts_relu(x));
    ts_profile *p = take();
    ck_assert_double_eq(must_find(p, "relu", "")->device_ns, 1000);
    ts_profile_free(p);
}

enum { READ = 23 };
static char report_path[96];

/** An exit() handler that is registered first, so it runs last, after the report is written. */
static void read_report(void)
{
    char text[4096] = "";
    fflush(stderr);
    FILE *in = fopen(report_path, "r");
    bool good = in && fread(text, 1, sizeof text - 1, in) > 0 &&
                strstr(text, "device times of CUPTI 7: 2 kernels") != NULL;
    if (in)
        fclose(in);
    unlink(report_path);
    _exit(good ? READ : 1);
}

/** The profile of TS_PROF is read before CUPTI ends, although CUPTI registers its exit() handler
 *  after the library's. */
TS_TEST(a_profile_that_ends_with_the_process_has_device_times, .exit = READ)
{
    BEGIN;
    ck_assert_int_eq(atexit(read_report), 0);
    snprintf(report_path, sizeof report_path, "/tmp/tessera-report-%d", (int)getpid());
    setenv("TS_PROF", "1", 1);
    ts_profile_from_environment();
    {
        TS_SCOPE;
        ts_tensor *x = ts_to_device(ts_ones(TS_SIZES(250), TS_F32), on_device());
        OK(ts_relu(x));
        OK(ts_relu(x));
    }
    ck_assert_ptr_nonnull(freopen(report_path, "w", stderr));
    exit(0);
}

TS_TEST(lost_records_are_counted_and_make_the_verdict_unreliable)
{
    BEGIN;
    TS_SCOPE;
    ts_tensor *x = ts_to_device(ts_ones(TS_SIZES(250), TS_F32), on_device());
    OK(ts_prof_start(NULL));
    OK(ts_relu(x));
    fake->zero_times = true;
    OK(ts_relu(x));
    fake->dropped = 3;
    ts_profile *p = take();
    ck_assert_int_eq(p->device.lost, 4);
    ck_assert_int_eq(p->device.kernels, 1);
    ck_assert_str_eq(p->shares.verdict, "unreliable");
    expect_text(p, "INCOMPLETE: 4 kernels and copies lost or with an invalid time");
    ts_profile_free(p);
}

/** Work without a tag counts as busy time but belongs to no row, not even by its time. */
TS_TEST(work_without_a_tag_belongs_to_no_row)
{
    BEGIN;
    TS_SCOPE;
    ts_tensor *x = ts_to_device(ts_ones(TS_SIZES(100), TS_F32), on_device());
    OK(ts_prof_start(NULL));
    OK(ts_relu(x));
    fake->no_tags = true;
    OK(ts_relu(x));
    OK(ts_relu(x));
    ts_profile *p = take();
    ck_assert_double_eq(must_find(p, "relu", "")->device_ns, 1000);
    ck_assert_int_eq(p->device.untagged, 2);
    ck_assert_double_eq(p->device.untagged_ns, 2000);
    ck_assert_double_eq(p->device.busy_ns, 3000);
    ck_assert_int_eq(p->shares.errors, 1); /* three calls' work in the time of one */
    ck_assert_str_eq(p->shares.verdict, "unreliable");
    ts_profile_free(p);
}

TS_TEST(without_cupti_the_profile_says_why_and_has_host_times)
{
    BEGIN;
    TS_SCOPE;
    setenv("TS_CUDA_CUPTI", "/nowhere/libcupti.so", 1);
    ts_tensor *x = ts_to_device(ts_ones(TS_SIZES(250), TS_F32), on_device());
    OK(ts_prof_start(NULL));
    OK(ts_relu(x));
    ts_profile *p = take();
    ck_assert_int_eq(must_find(p, "relu", "")->calls, 1);
    ck_assert_double_eq(must_find(p, "relu", "")->device_ns, 0);
    ck_assert_str_eq(p->device.note, "no GPU times: TS_CUDA_CUPTI=/nowhere/libcupti.so");
    expect_text(p, p->device.note);
    ts_profile_free(p);
}

TS_TEST(another_tool_keeps_cupti_until_it_ends)
{
    BEGIN;
    TS_SCOPE;
    ts_tensor *x = ts_to_device(ts_ones(TS_SIZES(250), TS_F32), on_device());
    fake->taken = true;
    for (int i = 0; i < 2; i++, fake->taken = false) {
        OK(ts_prof_start(NULL));
        OK(ts_relu(x));
        ts_profile *p = take();
        ck_assert_double_eq(must_find(p, "relu", "")->device_ns, i ? 1000 : 0);
        ck_assert_str_eq(p->device.note,
                         i ? "" : "no GPU times: another tool uses CUPTI in this process");
        ts_profile_free(p);
        ck_assert_int_eq(fake->kinds, 0);
    }
}

TS_TEST(the_verdict_rests_on_device_time)
{
    BEGIN;
    TS_SCOPE;
    ts_device device = on_device();
    ts_tensor *x = ts_to_device(ts_ones(TS_SIZES(100), TS_F32), device),
              *wrong = ts_to_device(ts_ones(TS_SIZES(1000), TS_F32), device);
    OK(ts_prof_start(NULL));
    for (int i = 0; i < 4; i++)
        OK(ts_relu(x)); /* 800 bytes in 1,000 ns */
    ts_profile *p = take();
    ck_assert_int_eq(must_find(p, "relu", "")->regime, TS_REGIME_MEMORY);
    ck_assert_str_eq(p->shares.verdict, "memory-bound");
    ck_assert_double_eq(p->shares.memory, 1);
    ck_assert_double_eq(must_find(p, "relu", "")->roof_ns, 3200);
    ts_profile *before = p;

    OK(ts_prof_start(NULL)); /* the host is late */
    for (int i = 0; i < 4; i++, fake->clock += 3000)
        OK(ts_relu(x));
    p = take();
    ck_assert_str_eq(p->shares.verdict, "overhead-bound");
    ck_assert_double_eq_tol(p->shares.overhead, 9000.0 / 13000, 1e-9);
    ck_assert_double_eq_tol(p->shares.memory, 4000.0 / 13000, 1e-9);
    expect_text(p, "A1 ");
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    OK(ts_profile_compare(before, p, out));
    fclose(out);
    ck_assert_msg(strstr(text, "times of the device:") && strstr(text, "0.0040      0.0040"),
                  "%s", text);
    free(text);
    ts_profile_free(before);
    ts_profile_free(p);

    OK(ts_prof_start(NULL)); /* 8,000 bytes in 1,000 ns */
    OK(ts_relu(wrong));
    p = take();
    ck_assert_int_eq(must_find(p, "relu", "")->regime, TS_REGIME_ERROR);
    ck_assert_str_eq(p->shares.verdict, "unreliable");
    ts_profile_free(p);
}

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

/** The k-th work of a launch belongs to the k-th row; if works are missing, to the launch. */
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
    fake->clock += 5; /* an event takes time of the device */
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
        }
        ts_prof_step();
        OK(ts_prof_stop());
        ck_assert_str_eq(ranges, on ? "step outer inner end end end step " : "");
    }
    ts_prof_step(); /* no profile records */
    ck_assert_str_eq(ranges, "step outer inner end end end step ");
}

/* ----------------------------------------------------------------------------- idle time ---- */

/** Each gap has one cause, by the time of the call that ends it. */
TS_TEST(idle_time_has_causes)
{
    BEGIN;
    TS_SCOPE;
    ts_tensor *x = ts_to_device(ts_ones(TS_SIZES(250), TS_F32), on_device());
    OK(ts_prof_start(NULL));
    fake->call_ns = 100;
    fake->called = 4000;
    OK(ts_relu(x)); /* 5,000 to 6,000 */
    fake->called = 5500;
    fake->clock += 10;
    OK(ts_relu(x)); /* queued before the gap of 10: between kernels; to 7,010 */
    fake->called = 6500;
    fake->clock += 40000;
    OK(ts_relu(x)); /* queued before a gap of 40,000: it waited; to 48,010 */
    fake->called = fake->clock + 300;
    fake->clock += 1000;
    OK(ts_relu(x)); /* 300 of the host, 700 on its way; to 50,010 */
    wait_call(false, 49000, fake->clock + 50);
    fake->called = fake->clock + 250;
    fake->clock += 250;
    OK(ts_relu(x)); /* 250 after a wait; to 51,260 */
    wait_call(true, fake->clock + 20, fake->clock + 90);
    fake->called = fake->clock + 100;
    fake->clock += 100;
    OK(ts_exp(x)); /* 70 in the allocator, 30 of the host, 100 on its way, 100 inside */
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

/** The host's part of idle time belongs to the scope, and in a trace to the layer, in which the
 *  host was. */
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

TS_TEST(kernels_have_names_waves_and_copies_their_memory)
{
    BEGIN;
    TS_SCOPE;
    ts_cupti_set_limits(0, &(ts_cupti_limits){100, 2048, 65536, 200000});
    ts_tensor *x = ts_to_device(ts_ones(TS_SIZES(250), TS_F32), on_device());
    OK(ts_prof_start(NULL));
    fake->name = "_Z4odd'name";
    fake->blocks = 1000; /* 8 of 256 threads fit a processor: 1.25 waves */
    OK(ts_relu(x));
    fake->blocks = 300; /* the same number on each processor */
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

TS_TEST(device_times_survive_a_file)
{
    BEGIN;
    TS_SCOPE;
    char path[96];
    ts_tensor *x = ts_to_device(ts_ones(TS_SIZES(100), TS_F32), on_device());
    OK(ts_prof_start(NULL));
    for (int step = 0; step < 2; step++, fake->clock += 100) {
        OK(ts_relu(x));
        OK(ts_exp(x));
        ts_prof_step();
    }
    ts_profile *p = take();
    snprintf(path, sizeof path, "%s/profile.json", own_cache());
    FILE *out = fopen(path, "w");
    ck_assert_ptr_nonnull(out);
    OK(ts_profile_write(p, out, TS_PROFILE_JSON));
    fclose(out);
    ts_profile *again = ts_profile_read(path);
    OK(again);
    ck_assert_int_eq(memcmp(&again->device, &p->device, sizeof p->device), 0);
    ck_assert_str_eq(again->shares.verdict, p->shares.verdict);
    for (int i = 0; i < 2; i++) {
        ck_assert_double_eq(again->steps[i].busy_ns, p->steps[i].busy_ns);
        ck_assert_double_eq(again->steps[i].idle_ns, p->steps[i].idle_ns);
    }
    ck_assert_double_eq(must_find(again, "exp", "")->device_ns, 1700);
    ck_assert_int_eq(must_find(again, "exp", "")->kernels, 4);
    ts_profile_free(p);
    ts_profile_free(again);
    end_cache();
}

TS_TEST(a_backend_that_records_needs_all_slots)
{
    ts_backend partial = backend;
    partial.profile_tag = NULL;
    ck_assert_int_eq(ts_register_backend(&partial, NULL), TS_ERR_FORMAT);
    ck_assert_str_eq(ts_error_message(),
                     "register_backend: the slot 'profile_tag' is required and NULL");
    partial.profile_tag = ts_cupti_tag;
    partial.profile_end = NULL;
    ck_assert_int_eq(ts_register_backend(&partial, NULL), TS_ERR_FORMAT);
    ck_assert_str_eq(ts_error_message(),
                     "register_backend: the slot 'profile_end' is required and NULL");
}
