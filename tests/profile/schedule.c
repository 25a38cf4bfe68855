/** @file schedule.c  Tests of schedules: which steps and calls the profile of each cycle has. */
// SPDX-License-Identifier: MIT
#include <pthread.h>
#include <stdlib.h>

#include "dispatch/timers.h"
#include "profile/profile.h"
#include "tests/dispatch/common.h"
#include "tests/profile/machine.h"

#if TS_TIMERS
#define BEGIN use_fixed_machine()
#else
#define BEGIN TS_SKIP("built without timers")
#endif

enum { MOST = 64 };

/** The profiles that a schedule delivered, and the number of calls that it must have. */
typedef struct delivered {
    int count;
    int64_t first[MOST], steps[MOST], calls[MOST], cycle[MOST];
    int stop_at; /* ts_prof_stop() in the function that receives this cycle; 0: never */
} delivered;

static int64_t calls_of(const ts_profile *p, const char *op)
{
    int64_t calls = 0;
    for (int64_t i = 0; i < p->count; i++)
        calls += strcmp(p->entries[i].op, op) == 0 ? p->entries[i].calls : 0;
    return calls;
}

static void receive(ts_profile *p, int64_t cycle, void *user)
{
    delivered *d = user;
    ck_assert_int_lt(d->count, MOST);
    int i = d->count++;
    d->cycle[i] = cycle;
    d->first[i] = p->first_step;
    d->steps[i] = p->nsteps;
    d->calls[i] = calls_of(p, "exp");
    if (cycle == d->stop_at)
        OK(ts_prof_stop());
    ts_profile_free(p);
}

/** Number of calls of exp in step k, from 1. */
static int calls_in(int64_t k) { return (int)(k * k % 7) + 1; }

/** Runs `steps` steps. marks: the program marks them; otherwise updates of parameters do. */
static void run_steps(int64_t steps, bool marks)
{
    ts_tensor *w = ts_ones(TS_SIZES(3), TS_F32), *g = ts_ones(TS_SIZES(3), TS_F32);
    for (int64_t k = 1; k <= steps; k++) {
        TS_SCOPE;
        for (int i = 0; i < calls_in(k); i++)
            OK(ts_exp(w));
        OK(ts_sgd_(&w, &g, NULL, &k, 1, &(ts_sgd_rule){.lr = 1e-3}));
        if (marks)
            ts_prof_step();
    }
}

/** The profiles that the schedule o must deliver for a program of `steps` steps. */
static delivered expect(const ts_prof_opts *o, int64_t steps, int stop_at)
{
    delivered d = {.stop_at = stop_at};
    int64_t begin = o->skip_first;
    for (int64_t cycle = 1; !o->repeat || cycle <= o->repeat; cycle++) {
        int64_t first = begin + o->wait + o->warmup + 1, last = first + o->active - 1;
        if (steps < first || (stop_at && cycle > stop_at))
            break; /* no active step has ended */
        int i = d.count++;
        d.cycle[i] = cycle;
        d.first[i] = first;
        d.steps[i] = (last < steps ? last : steps) - first + 1;
        for (int64_t k = first; k <= last && k <= steps; k++)
            d.calls[i] += calls_in(k);
        begin = last;
    }
    return d;
}

static uint64_t state;
static int64_t draw(int64_t most)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((state >> 33) % (uint64_t)(most + 1));
}

TS_TEST(drawn_schedules_record_their_active_steps)
{
    BEGIN;
    const char *seed = getenv("TS_TEST_SEED");
    state = seed ? strtoull(seed, NULL, 10) : 7;
    for (int turn = 0; turn < 150; turn++) {
        ts_prof_opts o = {.size = sizeof o, .skip_first = draw(4), .wait = draw(3),
                          .warmup = draw(3), .active = 1 + draw(3), .repeat = draw(3),
                          .trace = draw(1), .memory = draw(1), .ready = receive};
        bool marks = draw(1);
        int64_t steps = draw(40);
        delivered want = expect(&o, steps, (int)draw(5)), got = {.stop_at = want.stop_at};
        o.user = &got;
        OK(ts_prof_start(&o));
        run_steps(steps, marks);
        OK(ts_prof_stop());
        ck_assert(!ts_prof_active());
        ck_assert_int_eq(got.count, want.count);
        for (int i = 0; i < got.count; i++) {
            ck_assert_int_eq(got.cycle[i], want.cycle[i]);
            ck_assert_int_eq(got.first[i], want.first[i]);
            ck_assert_int_eq(got.steps[i], want.steps[i]);
            ck_assert_int_eq(got.calls[i], want.calls[i]);
        }
    }
}

TS_TEST(a_schedule_is_active_until_its_last_cycle)
{
    BEGIN;
    delivered got = {0};
    ts_prof_opts o = {.size = sizeof o, .wait = 2, .active = 1, .repeat = 2, .ready = receive,
                      .user = &got};
    OK(ts_prof_start(&o));
    for (int k = 1; k <= 7; k++) {
        ck_assert_int_eq(ts_prof_active(), k <= 6);
        ck_assert_int_eq(ts_timers_recording(), k == 3 || k == 6);
        FAILS(k <= 6 ? TS_ERR_STATE : TS_ERR_VALUE,
              ts_prof_start(TS_OPTS(ts_prof_opts, .first_step = k <= 6 ? 0 : -1)));
        ts_prof_machine m = {.size = sizeof m};
        if (k <= 6)
            FAILS(TS_ERR_STATE, ts_prof_calibrate(false, &m));
        OK(ts_ones(TS_SIZES(2), TS_F32));
        ts_prof_step();
    }
    ck_assert_int_eq(got.count, 2);
    /* while it waits, calls do not even look for updates, because the program marks its steps */
    OK(ts_prof_start(&o));
    ck_assert_uint_ne(atomic_load(&ts_tls.state) & TS_THREAD_WATCHING, 0);
    ts_prof_step();
    ck_assert_uint_eq(atomic_load(&ts_tls.state), TS_THREAD_READY);
    OK(ts_prof_stop());
    ck_assert_uint_eq(atomic_load(&ts_tls.state), TS_THREAD_READY);
}

static atomic_bool stops;
static void *compute(void *unused)
{
    while (!atomic_load(&stops)) {
        TS_SCOPE;
        ts_mul(ts_ones(TS_SIZES(2), TS_F32), ts_ones(TS_SIZES(2), TS_F32));
        ts_prof_step(); /* another thread marks the steps, so this one does not count */
    }
    return unused;
}

TS_TEST(one_thread_marks_the_steps_of_all_cycles, .threads = true)
{
    BEGIN;
    enum { THREADS = 3, CYCLES = 8 };
    pthread_t threads[THREADS];
    delivered got = {0};
    OK(ts_prof_start(TS_OPTS(ts_prof_opts, .wait = 1, .warmup = 1, .active = 2, .repeat = CYCLES,
                             .ready = receive, .user = &got)));
    ts_prof_step();
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, compute, NULL);
    run_steps(4 * CYCLES, true);
    atomic_store(&stops, true);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    ck_assert_int_eq(got.count, CYCLES);
    for (int i = 0; i < CYCLES; i++) { /* the step before the loop is one of the program's */
        ck_assert_int_eq(got.first[i], 4 * i + 3);
        ck_assert_int_eq(got.steps[i], 2);
        ck_assert_int_eq(got.calls[i], calls_in(4 * i + 2) + calls_in(4 * i + 3));
    }
}

TS_TEST(invalid_schedules_are_refused)
{
    BEGIN;
    FAILS(TS_ERR_VALUE, ts_prof_start(TS_OPTS(ts_prof_opts, .wait = 3, .ready = receive)));
    SAYS("'active': expected at least 1 step");
    FAILS(TS_ERR_VALUE, ts_prof_start(TS_OPTS(ts_prof_opts, .active = -1, .ready = receive)));
    SAYS("argument 'active': expected 0 to");
    FAILS(TS_ERR_VALUE,
          ts_prof_start(TS_OPTS(ts_prof_opts, .active = 1, .first_step = 2, .ready = receive)));
    SAYS("got both");
    FAILS(TS_ERR_NULL, ts_prof_start(TS_OPTS(ts_prof_opts, .active = 1)));
    SAYS("'ready'");
    ck_assert(!ts_prof_active());
}
