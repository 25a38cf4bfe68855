/** @file timers.c  Timers: the time and the calls of each row, and sums over rows and threads. */
// SPDX-License-Identifier: MIT
#include "dispatch/timers.h"
#include "tests/dispatch/common.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { TRIES = 8 };

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
    /* the operating system may suspend the thread between two stamps, so one of several tries must
     * succeed */
    bool right = false;
    char seen[512] = "";
    for (int tries = 0; tries < TRIES && !right; tries++) {
        spun = 0;
        OK(ts_timers_enable(true));
        ts_timers_reset();
        for (int i = 0; i < 60; i++)
            ts_drop(ts_add(w, a));
        OK(ts_timers_enable(false));
        ts_timer_cell row = ts_timers_get("add", "SPINS");
        ck_assert_uint_eq(row.calls, 60);
        right = row.self_ns <= spun * 1.05 && row.self_ns >= spun * 0.95;
        snprintf(seen, sizeof seen, "spun %.0f ns: SPINS %.0f", spun, row.self_ns);
        const char *const others[] = {"PASSES", "AUTOGRAD", "CPU"};
        for (int i = 0; i < 3; i++) {
            row = ts_timers_get("add", others[i]);
            ck_assert_uint_eq(row.calls, 60);
            right = right && row.self_ns < 0.05 * spun;
            snprintf(seen + strlen(seen), sizeof seen - strlen(seen), ", %s %.0f", others[i],
                     row.self_ns);
        }
    }
    ck_assert_msg(right, "%s", seen);
}

TS_TEST(rows_and_overhead_and_unattributed_time_sum_to_the_wall)
{
#if !TS_TIMERS
    TS_SKIP("built without timers");
#endif
    ts_tensor *a = one();
    bool right = false;
    char seen[512] = "";
    for (int tries = 0; tries < TRIES && !right; tries++) {
        spun = 0;
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
        double sum = t.attributed_ns + t.overhead_ns + t.unattributed_ns;
        ck_assert_double_le(sum - t.wall_ns, 1.0); /* exact under any load */
        ck_assert_double_le(t.wall_ns - sum, 1.0);
        right = t.wall_ns <= wall * 1.02 && t.wall_ns >= wall * 0.98 &&
                t.unattributed_ns >= 0.95 * spun && t.unattributed_ns <= 1.05 * spun;
        snprintf(seen, sizeof seen, "wall %.0f ns, measured %.0f; unattributed %.0f, spun %.0f",
                 wall, t.wall_ns, t.unattributed_ns, spun);
    }
    ck_assert_msg(right, "%s", seen);
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
    static char text[16384];
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
    FAILS(TS_ERR_VALUE, ts_timers_write(stdout, (ts_timers_format)3));
}

/** Sums over the rows of a printed table, without heading and wall time. more: rows left out;
 *  wall_calls, wall_ms: from the line of the wall time. */
typedef struct shown {
    int rows, more;
    unsigned long long calls, wall_calls;
    double ms, wall_ms;
} shown;

static shown table_of(int rows)
{
    shown s = {0};
    char text[256], name[29];
    FILE *file = tmpfile();
    OK(ts_timers_write_top(file, rows));
    rewind(file);
    ck_assert_ptr_nonnull(fgets(text, sizeof text, file));
    while (fgets(text, sizeof text, file)) {
        unsigned long long calls;
        double ms;
        /* columns of fixed width: op 37, layer 12, thread 6 */
        ck_assert_int_eq(sscanf(text + 57, "%llu %lf", &calls, &ms), 2);
        snprintf(name, sizeof name, "%.28s", text);
        if (strncmp(name, "wall ", 5) == 0) {
            s.wall_calls = calls;
            s.wall_ms = ms;
            continue;
        }
        sscanf(name, "(%d more rows)", &s.more);
        s.rows++;
        s.calls += calls;
        s.ms += ms;
    }
    fclose(file);
    return s;
}

TS_TEST(the_top_rows_and_the_rest_sum_to_all_time)
{
#if !TS_TIMERS
    TS_SKIP("built without timers");
#endif
    ts_tensor *w = ts_set_requires_grad(one(), true), *a = one();
    OK(ts_timers_enable(true));
    OK(ts_backward(ts_exp(ts_mul(ts_sub(ts_add(w, a), a), a))));
    OK(ts_timers_enable(false));
    shown all = table_of(1000), top = table_of(4), none = table_of(0);
    ck_assert_int_gt(all.rows, 6);
    ck_assert_int_eq(all.more, 0);
    ck_assert_int_eq(top.rows, 5);
    ck_assert_int_eq(top.more, all.rows - 4);
    ck_assert_int_eq(none.rows, 1);
    ck_assert_int_eq(none.more, all.rows);
    ck_assert_int_eq(table_of(all.rows).more, 0);
    for (int i = 0; i < 3; i++) {
        shown s = (shown[]){all, top, none}[i];
        ck_assert_uint_eq(s.calls, s.wall_calls);
        ck_assert_double_eq_tol(s.ms, s.wall_ms, 0.001 * (s.rows + 1)); /* rows have 3 decimals */
    }
    FAILS(TS_ERR_VALUE, ts_timers_write_top(stdout, -1));
    SAYS("rows");
    FAILS(TS_ERR_NULL, ts_timers_write_top(NULL, 3));
}

static void *work(void *arg)
{
    (void)arg;
    ts_tensor *a = one();
    for (int i = 0; i < 100; i++)
        ts_drop(ts_add(a, a));
    return NULL;
}

TS_TEST(threads_that_ended_keep_their_rows, .threads = true)
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

TS_TEST(rows_of_ended_threads_are_merged)
{
#if !TS_TIMERS
    TS_SKIP("built without timers");
#endif
    enum { THREADS = 3 * TS_TIMERS_ENDED };
    OK(ts_timers_enable(true));
    double wall = 0;
    for (int i = 0; i < THREADS; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, work, NULL);
        pthread_join(thread, NULL);
        ck_assert_double_gt(ts_timers_totals().wall_ns, wall);
        wall = ts_timers_totals().wall_ns;
    }
    OK(ts_timers_enable(false));
    ts_timer_rows all = {0};
    ts_timers_rows(&all);
    ck_assert(!all.failed);
    int rows = 0;
    uint64_t calls = 0;
    for (int i = 0; i < all.count; i++) {
        bool add = strcmp(all.items[i].op, "add") == 0 && strcmp(all.items[i].layer, "CPU") == 0;
        rows += add;
        calls += add ? all.items[i].calls : 0;
        if (add && all.items[i].thread == TS_TIMERS_MERGED)
            ck_assert_uint_eq(all.items[i].calls, 100 * (THREADS - TS_TIMERS_ENDED + 1));
    }
    ts_sys_free(all.items);
    ck_assert_int_eq(rows, TS_TIMERS_ENDED);
    ck_assert_uint_eq(calls, 100 * THREADS);
    ts_timer_totals t = ts_timers_totals();
    ck_assert_double_eq_tol(t.attributed_ns + t.overhead_ns + t.unattributed_ns, t.wall_ns,
                            1e-6 * t.wall_ns);
    ts_timers_reset();
    ck_assert_uint_eq(ts_timers_get("add", "CPU").calls, 0);
}

static atomic_int phase; /* 1: the thread has called; 2: it may continue; 3: it has called again */

static void call_some(void)
{
    ts_tensor *a = one();
    for (int i = 0; i < 10; i++)
        ts_drop(ts_add(a, a));
}

static void *work_twice(void *arg)
{
    call_some();
    atomic_store(&phase, 1);
    while (atomic_load(&phase) != 2)
        sched_yield();
    call_some();
    return arg;
}

TS_TEST(time_while_timers_are_off_is_not_counted, .threads = true)
{
#if !TS_TIMERS
    TS_SKIP("built without timers");
#endif
    const double off = 100e6; /* ns */
    pthread_t thread;
    atomic_store(&phase, 0);
    OK(ts_timers_enable(true));
    ts_timers_reset();
    double on_since = seconds();
    pthread_create(&thread, NULL, work_twice, NULL);
    while (atomic_load(&phase) != 1)
        sched_yield();
    call_some();
    OK(ts_timers_enable(false));
    double on = seconds() - on_since;
    spin(off);
    on_since = seconds();
    OK(ts_timers_enable(true));
    call_some();
    atomic_store(&phase, 2);
    pthread_join(thread, NULL);
    OK(ts_timers_enable(false));
    on += seconds() - on_since;
    ts_timer_totals t = ts_timers_totals();
    double sum = t.attributed_ns + t.overhead_ns + t.unattributed_ns;
    ck_assert_uint_eq(ts_timers_get("add", "CPU").calls, 40);
    ck_assert_double_eq_tol(sum, t.wall_ns, 1.0);
    ck_assert_double_le(t.wall_ns, 2.05 * on * 1e9 + 1e6); /* two threads, and nothing of `off` */
}

static atomic_bool stop;
static void *work_until_stopped(void *arg)
{
    ts_tensor *a = one();
    while (!atomic_load(&stop))
        ts_drop(ts_add(a, a));
    return arg;
}

/** Timers are read, reset and switched while threads call and end; TSan runs this case too. */
TS_TEST(timers_are_switched_and_read_while_threads_call, .threads = true)
{
#if !TS_TIMERS
    TS_SKIP("built without timers");
#endif
    for (int round = 0; round < 5; round++) {
        pthread_t threads[3];
        atomic_store(&stop, false);
        for (int i = 0; i < 3; i++)
            pthread_create(&threads[i], NULL, i < 2 ? work_until_stopped : work, NULL);
        for (int i = 0; i < 50; i++) {
            OK(ts_timers_enable(true));
            ck_assert(ts_timers_enabled());
            ts_timers_get("add", "CPU");
            ts_timer_totals t = ts_timers_totals();
            ck_assert_double_ge(t.attributed_ns, 0);
            if (i % 8 == 7)
                ts_timers_reset();
            OK(ts_timers_enable(i % 2));
        }
        OK(ts_timers_enable(true));
        ts_timers_reset();
        while (ts_timers_get("add", "CPU").calls < 1000)
            ;
        atomic_store(&stop, true);
        for (int i = 0; i < 3; i++)
            pthread_join(threads[i], NULL);
        OK(ts_timers_enable(false));
        ck_assert_uint_ge(ts_timers_get("add", "CPU").calls, 1000);
    }
}
