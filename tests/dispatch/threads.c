/** @file threads.c  Several threads that register, switch layers and make first calls at once. */
// SPDX-License-Identifier: MIT
#include "tests/dispatch/common.h"
#include "tests/threads.h"

#include <stdatomic.h>

enum { WRITERS = 3, CALLERS = 2, ROUNDS = 100, OPS = 8 };

static ts_status nothing(ts_frame *f) { return f ? TS_OK : TS_ERR_NULL; }
static ts_status pass_on(ts_frame *f) { return ts_redispatch(f); }

/** Registers and removes ops of this thread, and kernels of an op that all threads change. */
static bool write_registry(int number)
{
    bool good = true;
    for (int i = 0; i < ROUNDS; i++) {
        ts_registration *kernel = NULL, *own = NULL;
        char schema[64], name[32];
        int op = -1;
        snprintf(name, sizeof name, "threads.op%d_%d", number, i % OPS);
        snprintf(schema, sizeof schema, "%s(Tensor a) -> ()", name);
        if (i < OPS)
            good &= ts_register_op(schema, &op) == TS_OK && ts_op_by_name(name) == op &&
                    strcmp(ts_op_name(op), name) == 0;
        good &= ts_register_kernel(name, TS_KEY_CPU, nothing, schema, &own) == TS_OK;
        good &= ts_register_kernel("noop", TS_KEY_TRACING, pass_on, NULL, &kernel) == TS_OK;
        ts_value args[] = {ts_value_tensor(one())};
        good &= ts_call_boxed(ts_op_by_name(name), args, 1, NULL, 0) == TS_OK;
        ts_drop(args[0].t);
        good &= ts_unregister(kernel) == TS_OK && ts_unregister(own) == TS_OK;
    }
    return good;
}

static bool call_and_read(ts_tensor *a, FILE *sink)
{
    bool good = true;
    for (int i = 0; i < 10 * ROUNDS; i++) {
        good &= ts_noop(a, a, ts_scalar_int(1)) == TS_OK;
        int op = ts_op_count() - 1;
        ts_op_description d = {.size = sizeof d};
        good &= ts_op_describe(op, &d) == TS_OK && ts_op_by_name(ts_op_name(op)) == op;
        if (i % 100 == 0)
            good &= ts_op_dump("noop", sink) == TS_OK;
    }
    return good;
}

static bool write_or_call(int number, void *ctx)
{
    if (number < WRITERS)
        return write_registry(number);
    FILE *sink = fopen("/dev/null", "w");
    bool good = sink && call_and_read(ctx, sink);
    fclose(sink);
    return good;
}

TS_TEST(threads_register_ops_and_kernels_while_others_call_and_read, .threads = true)
{
    ts_tensor *a = one();
    int ops = ts_op_count();
    ts_mask_guard guard = ts_mask_push(TS_KEYSET(TS_KEY_TRACING), 0);
    ck_assert_int_eq(ts_together(WRITERS + CALLERS, write_or_call, a), WRITERS + CALLERS);
    ck_assert_int_eq(ts_op_count(), ops + WRITERS * OPS);
    OK(ts_noop(a, a, ts_scalar_int(1)));
    ts_mask_pop(guard);
}

/* ------------------------------------------------------------------------------- layers ---- */

static atomic_long visits;
static ts_status visit(ts_frame *f)
{
    visits++;
    return ts_redispatch(f);
}

static bool switch_or_call(int number, void *layer)
{
    TS_SCOPE;
    bool good = true;
    ts_tensor *a = one();
    for (int i = 0; i < ROUNDS; i++) {
        if (number == 0)
            good &= ts_layer_enable_all(*(ts_key *)layer, i % 2 == 0) == TS_OK;
        else
            good &= ts_noop(a, a, ts_scalar_int(1)) == TS_OK;
    }
    return good;
}

TS_TEST(a_layer_is_switched_for_all_threads_while_they_call, .threads = true)
{
    ts_key layer;
    OK(ts_register_layer("SWITCHED", "backends", &layer));
    OK(ts_register_kernel("noop", layer, visit, NULL, NULL));
    /* threads that start while a layer is switched see the change, too */
    for (int round = 0; round < 20; round++)
        ck_assert_int_eq(ts_together(4, switch_or_call, &layer), 4);
    OK(ts_layer_enable_all(layer, true));
    visits = 0;
    ck_assert_int_eq(ts_together(4, switch_or_call, &(ts_key){layer}), 4);
    ck_assert_int_le(visits, 3 * ROUNDS);
    OK(ts_layer_enable_all(layer, false));
}

/* -------------------------------------------------------------------------- first calls ---- */

/** Makes first calls, which initialise shared state: the instruction set, BLAS, the thread pool. */
static bool call_first(int number, void *sums)
{
    TS_SCOPE;
    ts_manual_seed(7);
    ts_tensor *x = ts_normal(TS_SIZES(64, 64), 0, 1, TS_F32),
              *y = ts_softmax(ts_mm(x, ts_gelu(x)), 1);
    return ts_item(ts_sum(ts_mul(y, ts_exp(x))), (double *)sums + number) == TS_OK;
}

TS_TEST(threads_may_make_their_first_calls_at_once, .threads = true)
{
    double sums[4] = {0};
    ck_assert_int_eq(ts_together(4, call_first, sums), 4);
    for (int i = 1; i < 4; i++)
        ck_assert_double_eq(sums[i], sums[0]);
}
