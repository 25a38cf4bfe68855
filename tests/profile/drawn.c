/** @file drawn.c  Profiles of drawn programs: their times sum up. */
// SPDX-License-Identifier: MIT
#include <pthread.h>
#include <unistd.h>

#include "dispatch/timers.h"
#include "tests/dispatch/common.h"
#include "tests/profile/take.h"

static _Thread_local uint64_t drawing;

static int draw(int below)
{
    drawing = drawing * 6364136223846793005u + 1442695040888963407u;
    return (int)((drawing >> 33) % (uint64_t)below);
}

/** A layer that draws calls of its own before it passes the call on. */
static ts_status draws_more(ts_frame *f)
{
    static _Thread_local bool inside;
    for (int i = inside ? 0 : draw(3); i > 0; i--) {
        TS_SCOPE;
        TS_NO_GRAD;
        inside = true;
        ts_sum(ts_exp(ts_ones(TS_SIZES(1 + draw(40)), TS_F32)));
        inside = false;
    }
    return ts_redispatch(f);
}

/** A drawn program: nested scopes, calls with and without gradients, backward passes, errors,
 *  pauses, steps. */
static void run_drawn(int depth, bool marks)
{
    for (int i = draw(6); i >= 0; i--) {
        TS_SCOPE;
        static const char *const names[] = {"data", "forward", "optimizer", "x"};
        ts_tensor *x = ts_set_requires_grad(ts_ones(TS_SIZES(2 + draw(30), 8), TS_F32), draw(2));
        switch (draw(7)) {
        case 0: {
            TS_PROF_SCOPE(names[draw(4)]);
            if (depth)
                run_drawn(depth - 1, marks);
            break;
        }
        case 1: OK(ts_linear_gelu(x, ts_ones(TS_SIZES(4, 8), TS_F32), TS_NONE, false, NULL)); break;
        case 2: OK(ts_softmax(ts_exp(x), 1)); break;
        case 3:
            if (ts_requires_grad(x))
                OK(ts_backward(ts_sum(ts_mul(x, ts_sin(x)))));
            break;
        case 4:
            if (!ts_mm(x, ts_ones(TS_SIZES(3, 3), TS_F32)))
                ts_error_clear();
            break;
        case 5: usleep((useconds_t)draw(50)); break;
        default:
            if (marks)
                ts_prof_step();
        }
    }
}

static void *run_drawn_thread(void *seed)
{
    drawing = *(const uint64_t *)seed;
    for (int i = 0; i < 6; i++)
        run_drawn(3, false);
    return NULL;
}

/** In drawn programs with nested calls, all rows sum to the wall time, and the parts of each step
 *  to the step's. */
TS_TEST(drawn_programs_sum_to_their_wall_time, .threads = true)
{
    BEGIN;
    enum { PROGRAMS = 24, THREADS = 2 };
    ts_key key;
    OK(ts_register_layer("DRAWS", "AUTOGRAD", &key));
    OK(ts_register_kernel("exp", key, draws_more, NULL, NULL));
    OK(ts_register_kernel("mul", key, draws_more, NULL, NULL));
    OK(ts_layer_enable(key, true));
    for (uint64_t i = 1; i <= PROGRAMS; i++) {
        pthread_t threads[THREADS];
        uint64_t seeds[THREADS] = {100 * i, 100 * i + 1};
        drawing = i;
        OK(ts_prof_start(TS_OPTS(ts_prof_opts, .trace = i % 3 == 1, .detail = i % 2)));
        for (int k = 0; k < THREADS; k++)
            pthread_create(&threads[k], NULL, run_drawn_thread, &seeds[k]);
        ts_prof_step();
        for (int k = 0; k < 6; k++)
            run_drawn(3, true);
        for (int k = 0; k < THREADS; k++)
            pthread_join(threads[k], NULL);
        ts_profile *p = take();
        sums(p);
        ck_assert_int_ge(p->nsteps, 1);
        for (int64_t k = 0; k < p->nsteps; k++) {
            const ts_step_times *s = &p->steps[k];
            ck_assert_double_eq_tol(s->kernels_ns + s->layers_ns + s->outside_ns + s->profiler_ns,
                                    s->wall_ns, 1);
        }
        for (int64_t k = 0; k < p->nevents; k++)
            ck_assert_int_eq(p->events[k].event.inside, 0);
        ts_profile_free(p);
    }
}
