/** @file scripted.h  A backend whose device runs scripted work under the fake CUPTI library of
 * fake_cupti.h. */
// SPDX-License-Identifier: MIT
#ifndef TESTS_PROFILE_SCRIPTED_H
#define TESTS_PROFILE_SCRIPTED_H

#include <dlfcn.h>
#include <pthread.h>

#include "backends/cuda/runtime/cupti.h"
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

/* ------------------------------------------------------------------------------ backend ---- */

static fake_launch_fn launch;
static fake_wait_fn wait_call;
static fake_device *fake;

/** Queues one kernel of 1000 ns. */
static inline ts_status relu(ts_frame *f)
{
    (void)f;
    launch(FAKE_KERNEL, 0, 1000, 1);
    return TS_OK;
}
/** Queues one launch of two kernels, as of a graph, and a memset. */
static inline ts_status exponential(ts_frame *f)
{
    (void)f;
    launch(FAKE_KERNEL, 100, 400, 2);
    launch(FAKE_MEMSET, 0, 50, 1);
    return TS_OK;
}
static inline ts_status install(void *state, ts_key key)
{
    (void)state;
    TS_TRY(ts_register_kernel("relu", key, relu, NULL, NULL));
    return ts_register_kernel("exp", key, exponential, NULL, NULL);
}
static inline ts_status profile_end(void *state, ts_device_record *record)
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

static inline ts_device on_device(void)
{
    ts_key key;
    OK(ts_register_backend(&backend, &key));
    return (ts_device){key, 0};
}

/** Sets the ceilings of the scripted device: 1 TFLOP/s and 1 GB/s. A relu of 100 elements moves 800
 *  bytes and takes at least 800 ns. */
static inline void prepare(void)
{
    ts_device_part d = {.measured = true, .machine.half_flops = 2e12};
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

static inline ts_profile *take(void)
{
    OK(ts_prof_stop());
    ts_profile *p = ts_profile_take();
    OK(p);
    return p;
}

static inline const ts_entry *must_find(const ts_profile *p, const char *op, const char *scope)
{
    for (int64_t i = 0; i < p->count; i++)
        if (strcmp(p->entries[i].op, op) == 0 && strcmp(p->entries[i].scope, scope) == 0)
            return &p->entries[i];
    ck_abort_msg("no row of %s in '%s'", op, scope);
    return NULL;
}

static inline char *as_text(const ts_profile *p, ts_profile_format format)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    OK(ts_profile_write(p, out, format));
    fclose(out);
    return text;
}

static inline void expect_text(const ts_profile *p, const char *words)
{
    char *text = as_text(p, TS_PROFILE_TABLES);
    ck_assert_msg(strstr(text, words) != NULL, "'%s' is not in:\n%s", words, text);
    free(text);
}

#endif
