/** @file handles.c  Tests of replays, which keep tensor handles and storages bound: they leave the
 * same tensors as eager calls. */
// SPDX-License-Identifier: MIT
#include <time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "include/tessera/kernel.h"
#include "tests/compile/replay.h"
#include "tests/instructions.h"
#include "tests/threads.h"

enum { MOST = 40 };

/** Parameters, states and gradients of an optimizer that is part of the program. kind: 0 momentum,
 *  1 sign of a moving average, 2 two moments. */
typedef struct lists {
    ts_tensor *p[MOST], *m[MOST], *v[MOST], *g[MOST];
    int n, kind;
    double rate, shift;
} lists;

static uint64_t state;
static int64_t draw(int64_t least, int64_t most)
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return least + (int64_t)((state >> 33) % (uint64_t)(most - least + 1));
}

static lists lists_new(uint64_t seed, int n, int kind, int64_t most)
{
    lists l = {.n = n, .kind = kind, .rate = 0.01, .shift = 1e-8};
    state = seed;
    for (int i = 0; i < n; i++) {
        TS_SCOPE;
        int64_t columns = draw(1, 5), rows = draw(1, most / columns);
        ts_tensor **all[] = {&l.p[i], &l.m[i], &l.v[i], &l.g[i]};
        for (int k = 0; k < 4; k++)
            OK(*all[k] = ts_retain(ts_abs(numbers(seed + (uint64_t)(4 * i + k),
                                                  TS_SIZES(rows, columns)))));
    }
    return l;
}
static void lists_free(lists *l)
{
    for (int i = 0; i < l->n; i++) {
        ts_release(l->p[i]);
        ts_release(l->m[i]);
        ts_release(l->v[i]);
        ts_release(l->g[i]);
    }
}

static ts_status update_one(lists *l, int i)
{
    TS_SCOPE;
    ts_tensor *p = l->p[i], *m = l->m[i], *v = l->v[i], *g = l->g[i];
    if (l->kind == 0) {
        TS_TRY(ts_add_(ts_mul_scalar_(m, TS_SCALAR(0.9)), g));
        TS_TRY(ts_number_from("mul", "other", &l->rate));
        return TS_STATUS_OF(ts_sub_(p, ts_mul_scalar(m, TS_SCALAR(l->rate))));
    }
    if (l->kind == 1) {
        TS_TRY(ts_number_from("mul", "other", &l->rate));
        TS_TRY(ts_sub_(p, ts_mul_scalar(ts_sign(ts_lerp_scalar(m, g, 0.1)), TS_SCALAR(l->rate))));
        return TS_STATUS_OF(ts_add_(ts_mul_scalar_(m, TS_SCALAR(0.99)), g));
    }
    TS_TRY(ts_add_(ts_mul_scalar_(m, TS_SCALAR(0.9)), ts_mul_scalar(g, TS_SCALAR(0.1))));
    TS_TRY(ts_add_(ts_mul_scalar_(v, TS_SCALAR(0.99)), ts_mul(g, g)));
    TS_TRY(ts_number_from("add", "other", &l->shift));
    ts_tensor *root = ts_add_scalar(ts_sqrt(v), TS_SCALAR(l->shift));
    TS_TRY(ts_number_from("mul", "other", &l->rate));
    return TS_STATUS_OF(ts_sub_(p, ts_mul_scalar(ts_div(m, root), TS_SCALAR(l->rate))));
}

/** A ts_trace_fn: updates the lists (ctx). If there are inputs, it selects rows of in[0] by the
 *  indices in[1] after half of the updates. Output 0: the selected rows, or none. */
static ts_status update(TRACED)
{
    lists *l = ctx;
    ran++;
    for (int i = 0; i < l->n; i++) {
        if (n && i == l->n / 2)
            TS_TRY(out[0] = ts_index_select(in[0], 0, in[1]));
        TS_TRY(update_one(l, i));
    }
    return TS_OK;
}

static void versions_of(const lists *l, uint32_t *to)
{
    for (int i = 0; i < l->n; i++, to += 4) {
        to[0] = ts_version(l->p[i]);
        to[1] = ts_version(l->m[i]);
        to[2] = ts_version(l->v[i]);
        to[3] = ts_version(l->g[i]);
    }
}

/** Makes a compiled call for the lists `own` and an eager call for `other`. Checks that both
 *  succeed, or fail if `fails`, and that values are equal; after success, also that outputs and
 *  increments of versions are. */
static void check_update(ts_compiled *c, lists *own, lists *other, ts_tensor *const *in, int n,
                         bool fails)
{
    TS_SCOPE;
    ts_tensor *got[1], *want[1] = {0};
    uint32_t versions[2][2][4 * MOST];
    versions_of(own, versions[0][0]), versions_of(other, versions[1][0]);
    if (fails)
        FAILS(TS_ERR_INDEX, ts_compiled_call(c, in, n, got, n > 0));
    else
        OK(ts_compiled_call(c, in, n, got, n > 0));
    int before = ran;
    ts_status status = update(other, in, n, want, n > 0);
    ran = before;
    ck_assert_int_eq(status != TS_OK, fails);
    versions_of(own, versions[0][1]), versions_of(other, versions[1][1]);
    if (fails)
        ts_error_clear();
    else if (n)
        ck_assert(same(got[0], want[0]));
    for (int i = 0; i < own->n; i++)
        ck_assert(same(own->p[i], other->p[i]) && same(own->m[i], other->m[i]) &&
                  same(own->v[i], other->v[i]));
    for (int k = 0; k < 4 * own->n; k++) { /* after an error, calls that did not run count too */
        uint32_t new = versions[0][1][k] - versions[0][0][k],
                 want_new = versions[1][1][k] - versions[1][0][k];
        ck_assert(fails ? new >= want_new : new == want_new);
    }
}

/* Numbers change in each call. Some calls fail in the middle, some have an input of another dtype,
 * so that the function runs, some find that a gradient was replaced. */
TS_TEST(replays_of_drawn_updates_leave_the_tensors_of_eager_calls, .loop = 24)
{
    TS_SCOPE;
    uint64_t seed = (uint64_t)time(NULL) * 64 + (uint64_t)_i;
    bool inputs = _i % 4 > 1;
    state = seed;
    int count = (int)draw(2, MOST), kind = _i % 3;
    int64_t most = draw(1, 3) == 1 ? 20000 : 400;
    lists a = lists_new(seed, count, kind, most), b = lists_new(seed, count, kind, most);
    ts_compiled *c = replays_of(update, &a);
    ts_tensor *x = numbers(seed, TS_SIZES(5, 3));
    int replays = 0;
    for (int k = 0; k < 30; k++) {
        TS_SCOPE;
        int event = k < 5 || !inputs ? 0 : (int)draw(0, 11);
        int64_t places[] = {4, event == 1 ? 5 : draw(0, 4), 0};
        ts_tensor *rows = event == 2 ? ts_reshape(ts_arange(0, 15, 1, TS_I64), TS_SIZES(5, 3)) : x,
                  *at = ts_from_array(places, TS_I64, TS_SIZES(3)), *in[] = {rows, at};
        if (k > 8 && draw(0, 11) == 0) { /* another tensor in place of a gradient */
            int i = (int)draw(0, count - 1);
            ts_tensor *g = ts_neg(a.g[i]);
            ts_release(a.g[i]), ts_release(b.g[i]);
            OK(a.g[i] = ts_retain(g));
            OK(b.g[i] = ts_retain(ts_clone(g)));
        }
        a.rate = b.rate = 0.1 / (k + 1);
        a.shift = b.shift = draw(0, 1) ? 1e-8 : 1e-6;
        int before = ran;
        check_update(c, &a, &b, in, inputs ? 2 : 0, event == 1);
        replays += ran == before;
    }
    ck_assert_msg(replays >= (inputs ? 3 : 8), "seed %llu: %d replays",
                  (unsigned long long)seed, replays);
    ts_compiled_free(c);
    lists_free(&a), lists_free(&b);
}

/* -------------------------------------------------------------------------------- costs ---- */

static struct work {
    lists *l;
    ts_compiled *c;
} work;
static void call_compiled(void *ctx)
{
    (void)ctx;
    if (ts_compiled_call(work.c, NULL, 0, NULL, 0) != TS_OK)
        _exit(1);
}
static void call_eager(void *ctx)
{
    (void)ctx;
    if (update(work.l, NULL, 0, NULL, 0) != TS_OK)
        _exit(1);
}

/* An eager call of 4, 6 or 11 operations per tensor, and a replay of it. */
TS_TEST(a_replay_of_updates_of_tiny_tensors_executes_no_more_than_the_calls, .loop = 6,
        .timeout = 60)
{
    TS_SCOPE;
    ts_set_num_threads(1);
    lists l = lists_new((uint64_t)time(NULL) * 8 + (uint64_t)_i, 12, _i % 3, 300);
    work = (struct work){&l, replays_of(update, &l)};
    for (int k = 0; k < 4; k++)
        call_compiled(NULL);
    ck_assert_int_eq(ts_compiled_get_stats(work.c).skipped, 2);
    l.rate = 0.02; /* the next replay gets another number */
    long replay = ts_instructions(call_compiled, NULL), eager = ts_instructions(call_eager, NULL);
    if (!explains_quietly(work.c, "are machine code for")) /* each call runs its kernel on a tile */
        eager += eager / 4;
    if (replay >= 0 && eager >= 0)
        ck_assert_msg(replay <= eager, "kind %d: %ld instructions, %ld eagerly", l.kind, replay,
                      eager);
    ts_compiled_free(work.c);
    lists_free(&l);
}

/* ------------------------------------------------------------------------ kept references ---- */

static ts_tensor *kept[64];
static int nkept;
static bool keeps;
/** The kernel of test.keep: copies x, and keeps a reference to x if `keeps`. */
static ts_status keep(ts_frame *f)
{
    ts_tensor *x = f->args[0].t, *y = f->rets[0].t;
    memcpy(y->data, x->data, sizeof(float) * (size_t)x->numel);
    if (keeps)
        kept[nkept++] = ts_retain(x);
    return TS_OK;
}
static ts_status keep_rule(ts_frame *f) { return ts_rule_pointwise(f, 1, TS_DTYPE_NONE, true); }

static int keep_op;
static ts_status keeping(TRACED)
{
    lists *l = ctx;
    ran++;
    ts_value x = ts_value_tensor(l->p[0]), y[2] = {{0}};
    TS_TRY(ts_call_boxed(keep_op, &x, 1, &y[0], 1)); /* p[0] is the same tensor in each call */
    x = ts_value_tensor(in[0]);
    TS_TRY(ts_call_boxed(keep_op, &x, 1, &y[1], 1));
    out[0] = ts_add(ts_add(y[0].t, y[1].t), l->p[0]);
    ts_release(y[0].t), ts_release(y[1].t);
    return TS_STATUS_OF(out[0]);
}

/* Later replays neither change nor free a handle to which a kernel has kept a reference. */
TS_TEST(a_kernel_may_keep_the_tensors_of_a_replay)
{
    OK(ts_register_op_ex("test.keep(Tensor x) -> Tensor",
                         TS_OPTS(ts_op_opts, .rule = keep_rule, .not_differentiable = true),
                         &keep_op));
    OK(ts_register_kernel("test.keep", TS_KEY_CPU, keep, NULL, NULL));
    TS_SCOPE;
    lists l = lists_new(3, 1, 0, 200);
    ts_compiled *c = replays_of(keeping, &l);
    ts_tensor *values[64];
    for (int k = 0; k < 16; k++) {
        int first = nkept;
        ts_tensor *x = numbers(20 + (uint64_t)k, ts_sizes(l.p[0]), 2), *y, *want;
        keeps = k % 4 == 3;
        OK(ts_compiled_call(c, &x, 1, &y, 1));
        keeps = false;
        ck_assert(same(y, ts_add(ts_add(l.p[0], x), l.p[0])));
        for (int i = first; i < nkept; i++) {
            ck_assert(!ts_tensor_is_dead(kept[i]));
            OK(values[i] = ts_clone(kept[i]));
        }
        OK(want = ts_mul_scalar_(l.p[0], TS_SCALAR(1)));
    }
    ck_assert_int_eq(ran, 2);
    ck_assert_int_eq(nkept, 8);
    ts_compiled_free(c);
    for (int i = 0; i < nkept; i++) {
        ck_assert(same(kept[i], values[i]));
        ts_release(kept[i]);
    }
    lists_free(&l);
}

static int freed;
static void on_free(void *payload, void *data, int64_t bytes)
{
    (void)payload, (void)data, (void)bytes;
    freed++;
}
static ts_status double_and_add(TRACED)
{
    lists *l = ctx;
    return TS_STATUS_OF(out[0] = ts_add(ts_mul_scalar(in[0], TS_SCALAR(2)), l->p[0]));
}

/* Each plan has a reference to the tensor that the function takes from a variable. */
TS_TEST(a_tensor_that_several_plans_hold_may_be_replaced)
{
    lists l = {0};
    ts_compiled *c = replays_of(double_and_add, &l);
    for (int k = 0; k < 24; k++) {
        TS_SCOPE;
        ts_tensor *x = numbers((uint64_t)k, TS_SIZES(1 + k % 3, 5)), *y;
        if (k % 12 == 0) {
            TS_SCOPE;
            ts_release(l.p[0]);
            OK(l.p[0] = ts_retain(numbers(100 + (uint64_t)k, TS_SIZES(5))));
        }
        OK(ts_compiled_call(c, &x, 1, &y, 1));
        ck_assert_msg(same(y, ts_add(ts_mul_scalar(x, TS_SCALAR(2)), l.p[0])), "call %d", k);
    }
    ck_assert_int_eq(ts_compiled_get_stats(c).skipped, 24 - 2 * 3 * 2);
    ts_compiled_free(c);
    ts_release(l.p[0]);
}

/* Handles keep no memory: an input is freed with its last tensor, a tensor of the function by
 * ts_compiled_free(). */
TS_TEST(kept_handles_keep_no_memory)
{
    static float data[8][6], own[6] = {1, 2, 3, 4, 5, 6};
    TS_SCOPE;
    lists l = {0};
    {
        TS_SCOPE;
        OK(l.p[0] = ts_retain(ts_from_blob(own, TS_F32, TS_SIZES(6), on_free, NULL)));
    }
    ts_compiled *c = replays_of(double_and_add, &l);
    for (int k = 0; k < 8; k++) {
        {
            TS_SCOPE;
            ts_tensor *x = ts_from_blob(data[k], TS_F32, TS_SIZES(6), on_free, NULL), *y;
            OK(ts_compiled_call(c, &x, 1, &y, 1));
        }
        if (k) /* until then the input could be a tensor of the function */
            ck_assert_int_eq(freed, k + 1);
    }
    ck_assert_int_eq(ts_compiled_get_stats(c).skipped, 6);
    ts_release(l.p[0]);
    ts_compiled_free(c);
    ck_assert_int_eq(freed, 9);
}

/* ------------------------------------------------------------------- threads and processes ---- */

static lists *of_threads;
static ts_compiled *by_threads;
/** Calls the function that all threads share. Simultaneous runs of a plan have separate handles. */
static bool add_many(int number, void *ctx)
{
    (void)ctx;
    bool good = true;
    for (int k = 0; k < 40 && good; k++) {
        TS_SCOPE;
        ts_tensor *x = numbers((uint64_t)(number * 50 + k), ts_sizes(of_threads->p[0]), 2), *y;
        good = ts_compiled_call(by_threads, &x, 1, &y, 1) == TS_OK &&
               same(y, ts_add(ts_mul_scalar(x, TS_SCALAR(2)), of_threads->p[0]));
    }
    return good;
}
TS_TEST(threads_share_the_handles_of_a_plan, .threads = true)
{
    TS_SCOPE;
    lists l = lists_new(5, 1, 0, 300);
    of_threads = &l;
    by_threads = replays_of(double_and_add, &l);
    ck_assert_int_eq(ts_together(4, add_many, NULL), 4);
    ts_compiled_free(by_threads);
    lists_free(&l);
}

TS_TEST(a_forked_child_replays_too)
{
    TS_SCOPE;
    lists a = lists_new(9, 10, 2, 200), b = lists_new(9, 10, 2, 200);
    ts_compiled *c = replays_of(update, &a);
    for (int k = 0; k < 5; k++)
        check_update(c, &a, &b, NULL, 0, false);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    for (int k = 0; k < 5; k++)
        check_update(c, &a, &b, NULL, 0, false);
    ck_assert_int_eq(ran, 2);
    ts_compiled_free(c);
    if (!child)
        _exit(0);
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    lists_free(&a), lists_free(&b);
}
