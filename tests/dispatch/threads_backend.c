/** @file threads_backend.c  Backends are registered while other threads read the registry and
 * compute. */
// SPDX-License-Identifier: MIT
#include "tests/dispatch/offset.h"
#include "tests/threads.h"

enum { ROUNDS = 100, BAD = 20 };

static offset_state memory[3] = {{.devices = 1}, {.devices = 1}, {.devices = 1}};
static const ts_backend good[2] = {{OFFSET_BACKEND("LEFT", TS_BACKEND_CPU_FALLBACK, &memory[0])},
                                   {OFFSET_BACKEND("RIGHT", TS_BACKEND_CPU_FALLBACK, &memory[1])}};

static ts_status refuse(void *state, ts_key key)
{
    (void)state;
    return ts_error_set(TS_ERR_STATE, "not key %d", key);
}

static bool register_and_use(const ts_backend *b)
{
    TS_SCOPE;
    ts_key key;
    ts_tensor *x = ts_ones(TS_SIZES(4), TS_F32);
    if (ts_register_backend(b, &key) != TS_OK)
        return false;
    ts_device there = {key, 0};
    for (int i = 0; i < ROUNDS; i++) {
        double sum;
        if (ts_item(ts_sum(ts_add(ts_to_device(x, there), ts_to_device(x, there))), &sum) !=
                TS_OK ||
            sum != 8)
            return false;
    }
    return true;
}

/** Registers backends whose install fails, so that the registry releases their keys. */
static bool fail_to_register(void)
{
    static char names[BAD][24];
    static ts_backend bad[BAD];
    bool refused = true;
    for (int i = 0; i < BAD; i++) {
        snprintf(names[i], sizeof names[i], "BAD%d", i);
        bad[i] = (ts_backend){OFFSET_BACKEND(names[i], TS_BACKEND_CPU_FALLBACK, &memory[2]),
                              .install = refuse};
        refused &= ts_register_backend(&bad[i], NULL) == TS_ERR_STATE;
    }
    return refused;
}

static bool read_names(void)
{
    bool right = true;
    ts_device device;
    ts_backend_stats stats;
    for (int i = 0; i < 20 * ROUNDS; i++) {
        right &= ts_key_by_name("CPU") == TS_KEY_CPU &&
                 ts_key_by_name("nothing of the kind") == TS_KEY_INVALID;
        ts_device_from_name("left:0", &device);
        for (uint8_t k = 1; k < 15; k++)
            if (ts_device_count(k))
                ts_backend_get_stats(k, &stats);
    }
    return right;
}

static bool act(int number, void *ctx)
{
    (void)ctx;
    return number < 2    ? register_and_use(&good[number])
           : number == 2 ? fail_to_register()
                         : read_names();
}

TS_TEST(backends_load_or_fail_to_load_while_other_threads_compute, .threads = true)
{
    ck_assert_int_eq(ts_together(4, act, NULL), 4);
    ck_assert_int_ne(ts_key_by_name("LEFT"), TS_KEY_INVALID);
    ck_assert_int_ne(ts_key_by_name("RIGHT"), TS_KEY_INVALID);
    ck_assert_int_eq(ts_key_by_name("BAD0"), TS_KEY_INVALID);
    ck_assert_int_eq(memory[0].live + memory[1].live, 0);
}
