/** @file device_times.c  Tests that the kernels of a device are assigned to the rows and steps that
 * queued them. */
// SPDX-License-Identifier: MIT
#include "tests/profile/scripted.h"

char ran[64];

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

/** Work after the last step has rows, so the busy time contains it; the idle time is of steps. */
TS_TEST(rows_of_work_after_the_last_step_are_part_of_the_busy_time)
{
    BEGIN;
    TS_SCOPE;
    ts_tensor *x = ts_to_device(ts_ones(TS_SIZES(250), TS_F32), on_device());
    OK(ts_prof_start(NULL));
    OK(ts_relu(x));
    ts_prof_step();
    for (int i = 0; i < 9; i++) {
        fake->clock += 700; /* nothing runs */
        OK(ts_relu(x));
    }
    ts_profile *p = take();
    ck_assert_double_eq(must_find(p, "relu", "")->device_ns, 10000);
    ck_assert_double_eq(p->device.busy_ns, 10000);
    ck_assert_double_eq(p->steps[0].busy_ns, 1000);
    ck_assert_double_le(p->device.idle_ns, 700);
    ts_profile_free(p);
}

/** The profile drops work of steps before the first recorded step. */
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

/** Work without a tag counts as busy time, but belongs to no row, even if it ran between works of
 *  one row. */
TS_TEST(work_without_a_tag_belongs_to_no_row)
{
    BEGIN;
    TS_SCOPE;
    ts_tensor *x = ts_to_device(ts_ones(TS_SIZES(100), TS_F32), on_device());
    OK(ts_prof_start(NULL));
    OK(ts_relu(x));
    fake->no_calls = true;
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

TS_TEST(without_cupti_the_profile_has_the_reason_and_host_times)
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

TS_TEST(device_times_survive_a_file)
{
    BEGIN;
    TS_SCOPE;
    ts_device_part ceilings = {
        .measured = true,
        .machine = {.size = sizeof ceilings.machine, .name = "fake", .threads = 1,
                    .gemm_flops = 1e12, .vector_flops = 1e11, .half_flops = 2e12}};
    for (int i = 0; i < TS_PROF_CURVE; i++)
        ceilings.machine.bytes_at[i] = ceilings.machine.bandwidth[i] = 1e12;
    ts_prof_assume_device(&ceilings);
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
    ck_assert_double_gt(p->device.machine.half_flops, 0);
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
    ts_prof_assume_device(NULL);
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
