/** @file trace.c  Tests of traces: each call with its layers, lost calls, ended threads. */
// SPDX-License-Identifier: MIT
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/testing.h"
#include "dispatch/timers_state.h"
#include "profile/profile.h"
#include "tests/dispatch/common.h"
#include "tests/profile/take.h"

/** The first call of `op` in a trace, from call `from` on. */
static const ts_call_event *find_event(const ts_profile *p, const char *op, int from)
{
    for (int64_t i = from; i < p->nevents; i++)
        if (strcmp(ts_op_name(p->events[i].event.op), op) == 0)
            return &p->events[i];
    ck_abort_msg("no %s at or after call %d of %lld", op, from, (long long)p->nevents);
}

/** A page fault in the buffer of events would add to the time of a call. */
TS_TEST(pages_of_a_trace_are_touched_before_calls_use_them)
{
    BEGIN;
    long page = sysconf(_SC_PAGESIZE);
    ts_tensor *a = one();
    OK(ts_prof_start(TS_OPTS(ts_prof_opts, .trace = true)));
    for (int i = 0; i < 2500; i++) {
        ts_drop(ts_add(a, a));
        const ts_tally_table *r = &ts_tls.timers->record;
        int64_t n = atomic_load(&r->nevents);
        unsigned char resident;
        if (n % TS_EVENT_PIECE == 0)
            continue; /* the next call touches them */
        uintptr_t next = (uintptr_t)ts_event_at(r, n);
        ck_assert_int_eq(mincore((void *)(next & ~(uintptr_t)(page - 1)), 1, &resident), 0);
        ck_assert_int_eq(resident & 1, 1);
    }
    ts_profile_free(take());
}

TS_TEST(a_trace_has_each_call_with_its_layers_inside_its_caller)
{
    BEGIN;
    ts_tensor *w = ts_set_requires_grad(ts_ones(TS_SIZES(3, 3), TS_F32), true);
    OK(ts_prof_start(TS_OPTS(ts_prof_opts, .trace = true)));
    for (int i = 0; i < 50; i++) {
        TS_SCOPE;
        TS_PROF_SCOPE("part");
        ts_tensor *y = ts_linear_gelu(w, w, TS_NONE, false, NULL); /* a composite of two ops */
        OK(ts_backward(ts_sum(y)));
        ts_prof_step();
    }
    ts_profile *p = take();
    int64_t calls = 0;
    for (int64_t i = 0; i < p->count; i++)
        calls += p->entries[i].kernel ? p->entries[i].calls : 0;
    ck_assert_int_eq(p->nevents, calls);
    ck_assert_int_eq(p->lost_events, 0);
    const ts_event *whole = &find_event(p, "linear_gelu", 0)->event,
                   *inner = &find_event(p, "linear", 0)->event;
    ck_assert_ptr_eq(whole, &p->events[inner->parent - 1].event);
    ck_assert_int_ge(whole->layers, 2);
    ck_assert_int_eq(whole->keys[0], TS_KEY_AUTOGRAD);
    ck_assert_str_eq(p->calls[inner->row], "linear((3, 3) f32, (3, 3) f32, none)");
    for (int64_t i = 0; i < p->nevents; i++) {
        const ts_event *e = &p->events[i].event;
        ck_assert_int_eq(e->inside, 0);
        for (int k = 0; k + 1 < e->layers; k++) {
            ck_assert_uint_le(k ? e->enter[k - 1] : 0, e->enter[k]);
            ck_assert_uint_le(e->leave[k + 1], e->leave[k]);
        }
        if (e->parent) {
            const ts_event *outer = &p->events[e->parent - 1].event;
            ck_assert_int_ge(e->begin, outer->begin);
            ck_assert_int_le(e->begin + e->leave[0], outer->begin + outer->leave[0]);
        }
    }
    sums(p);
    ts_profile_free(p);
    OK(ts_prof_start(NULL));
    OK(ts_exp(w));
    p = take();
    ck_assert_int_eq(p->nevents, 0);
    FAILS(TS_ERR_STATE, ts_profile_write(p, stdout, TS_PROFILE_CHROME));
    ts_profile_free(p);
}

static void *trace_many(void *arg)
{
    ts_tensor *a = one();
    for (int64_t i = 0; i < *(int64_t *)arg; i++)
        ts_exp_out(a, a);
    return NULL;
}

/** Calls beyond the trace's limit are counted as lost in the trace, and as usual in the rows. */
TS_TEST(calls_beyond_the_cap_are_counted_as_lost, .threads = true)
{
    BEGIN;
    ts_event_chunks_most = 4;
    int64_t room = (int64_t)TS_EVENT_CHUNK * ts_event_chunks_most, each = room / 2 + 1000;
    pthread_t thread;
    OK(ts_prof_start(TS_OPTS(ts_prof_opts, .trace = true)));
    pthread_create(&thread, NULL, trace_many, &each);
    pthread_join(thread, NULL);
    trace_many(&each);
    ts_profile *p = take();
    ck_assert_int_eq(must_find(p, "exp(")->calls, 2 * each);
    ck_assert_int_gt(p->lost_events, 0);
    ck_assert_int_eq(p->nevents + p->lost_events, 2 * each + 2); /* 2 calls in one() */
    sums(p);
    ts_profile_free(p);
}

/** Thread number *arg makes *arg % 7 + 1 calls of exp on *arg % 3 + 1 elements. */
static void *trace_few(void *arg)
{
    TS_SCOPE;
    int64_t number = *(int64_t *)arg;
    ts_tensor *a = ts_ones(TS_SIZES(1 + number % 3), TS_F32);
    for (int64_t i = 0; i <= number % 7; i++)
        OK(ts_exp(a));
    return NULL;
}

/** A trace has room for the calls of many short-lived threads, each with its own number. */
TS_TEST(a_trace_keeps_the_calls_of_ended_threads, .threads = true, .loop = 2)
{
    BEGIN;
    enum { THREADS = TS_TIMERS_ENDED + 140 };
    ts_event_chunks_most = 4;
    OK(ts_prof_start(TS_OPTS(ts_prof_opts, .trace = true, .flight = _i)));
    int64_t want[3] = {0}, got[3] = {0}, calls = 0;
    for (int64_t i = 0; i < THREADS; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, trace_few, &i);
        pthread_join(thread, NULL);
        want[i % 3] += i % 7 + 1;
        calls += i % 7 + 2;
    }
    ts_profile *p = take();
    ck_assert_int_eq(p->lost_events, 0);
    ck_assert_int_eq(p->nevents, calls);
    ck_assert_int_eq(p->threads, THREADS);
    int threads = 0;
    for (int64_t i = 0; i < p->nevents; i++) {
        const ts_call_event *c = &p->events[i];
        threads += i == 0 || c[-1].thread != c->thread;
        int size = 0;
        if (sscanf(p->calls[c->event.row], "exp((%d) f32)", &size) == 1)
            got[size - 1]++;
        else
            ck_assert_str_eq(ts_op_name(c->event.op), "full");
    }
    ck_assert_int_eq(threads, THREADS);
    for (int k = 0; k < 3; k++)
        ck_assert_int_eq(got[k], want[k]);
    sums(p);
    ts_profile_free(p);
}
