/** @file timers.c  The timers account for every tick, in the right row. */
// SPDX-License-Identifier: MIT
#include "tests/dispatch/common.h"

#include <pthread.h>

static double spun; /* ns, measured inside the layer itself */

static void spin(double ns)
{
    double t0 = seconds();
    while ((seconds() - t0) * 1e9 < ns)
        ;
    spun += (seconds() - t0) * 1e9;
}

static ts_status layer_spins(ts_frame *f)
{
    spin(1e6);
    return ts_redispatch(f);
}
static ts_status layer_passes(ts_frame *f) { return ts_redispatch(f); }

TS_TEST(a_planted_spin_moves_only_its_layers_row)
{
#if !TS_TIMERS
    TS_SKIP("built without timers");
#endif
    ts_key spins, passes;
    OK(ts_register_layer("SPINS", "AUTOGRAD", &spins));
    OK(ts_register_layer("PASSES", "", &passes));
    OK(ts_register_kernel("add", spins, layer_spins, NULL, NULL));
    OK(ts_register_kernel("add", passes, layer_passes, NULL, NULL));
    OK(ts_layer_enable(spins, true));
    OK(ts_layer_enable(passes, true));
    ts_tensor *w = ts_set_requires_grad(one(), true), *a = one();
    OK(ts_timers_enable(true));
    ts_timers_reset();
    for (int i = 0; i < 60; i++)
        ts_drop(ts_add(w, a));
    OK(ts_timers_enable(false));
    ts_timer_cell spin_row = ts_timers_get("add", "SPINS");
    ck_assert_uint_eq(spin_row.calls, 60);
    ck_assert_double_le(spin_row.self_ns, spun * 1.05);
    ck_assert_double_ge(spin_row.self_ns, spun * 0.95);
    const char *const others[] = {"PASSES", "AUTOGRAD", "CPU"};
    for (int i = 0; i < 3; i++) {
        ts_timer_cell row = ts_timers_get("add", others[i]);
        ck_assert_uint_eq(row.calls, 60);
        ck_assert_msg(row.self_ns < 0.05 * spun, "%s has %g of %g ns", others[i], row.self_ns, spun);
    }
}

TS_TEST(rows_and_overhead_and_unattributed_time_sum_to_the_wall)
{
#if !TS_TIMERS
    TS_SKIP("built without timers");
#endif
    ts_tensor *a = one();
    OK(ts_timers_enable(true));
    ts_timers_reset();
    double t0 = seconds();
    for (int i = 0; i < 50; i++) {
        ts_drop(ts_add(a, a));
        spin(2e5); /* outside any call */
    }
    double wall = (seconds() - t0) * 1e9;
    OK(ts_timers_enable(false));
    ts_timer_totals t = ts_timers_totals();
    ck_assert_double_le(t.wall_ns, wall * 1.02);
    ck_assert_double_ge(t.wall_ns, wall * 0.98);
    double sum = t.attributed_ns + t.overhead_ns + t.unattributed_ns;
    ck_assert_double_le(sum - t.wall_ns, 1.0);
    ck_assert_double_le(t.wall_ns - sum, 1.0);
    ck_assert_double_ge(t.unattributed_ns, 0.95 * spun);
    ck_assert_double_le(t.unattributed_ns, 1.05 * spun);
}

TS_TEST(calls_of_layers_are_counted_and_reported_without_a_rebuild)
{
#if !TS_TIMERS
    TS_SKIP("built without timers");
#endif
    ts_tensor *w = ts_set_requires_grad(one(), true), *a = one();
    ts_drop(ts_add(w, a));
    ck_assert_uint_eq(ts_timers_get("add", "AUTOGRAD").calls, 0); /* off: nothing is counted */
    OK(ts_timers_enable(true));
    for (int i = 0; i < 7; i++) {
        TS_SCOPE;
        OK(ts_backward(ts_add(w, a)));
    }
    OK(ts_timers_enable(false));
    ts_drop(ts_add(w, a));
    ck_assert_uint_eq(ts_timers_get("add", "AUTOGRAD").calls, 7);
    char text[16384];
    for (int format = TS_TIMERS_TABLE; format <= TS_TIMERS_JSON; format++) {
        FILE *file = tmpfile();
        OK(ts_timers_write(file, (ts_timers_format)format));
        rewind(file);
        text[fread(text, 1, sizeof text - 1, file)] = 0;
        fclose(file);
        ck_assert_ptr_nonnull(strstr(text, "AUTOGRAD"));
        ck_assert_ptr_nonnull(strstr(text, "(unattributed)"));
        ck_assert_ptr_nonnull(strstr(text, "(timers)"));
        ck_assert_ptr_nonnull(strstr(text, "(backward engine)"));
    }
    FAILS(TS_ERR_NULL, ts_timers_write(NULL, TS_TIMERS_CSV));
}

static void *work(void *arg)
{
    (void)arg;
    ts_tensor *a = one();
    for (int i = 0; i < 100; i++)
        ts_drop(ts_add(a, a));
    return NULL;
}

TS_TEST(threads_that_ended_keep_their_rows)
{
#if !TS_TIMERS
    TS_SKIP("built without timers");
#endif
    OK(ts_timers_enable(true));
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, work, NULL);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    OK(ts_timers_enable(false));
    ck_assert_uint_eq(ts_timers_get("add", "CPU").calls, 400);
    ts_timers_reset();
    ck_assert_uint_eq(ts_timers_get("add", "CPU").calls, 0);
}
