/**
 * @file device_ceilings.c  Ceilings of a device, measured with the library's operators between
 * events: matrix products in f64, f32 and bf16, a fused chain of f32 multiplications and additions,
 * copies of several sizes, and kernels of one element.
 */
// SPDX-License-Identifier: MIT
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/checked.h"
#include "core/device.h"
#include "core/error.h"
#include "core/testing.h"
#include "dispatch/timers.h"
#include "include/tessera/check.h"
#include "include/tessera/compile.h"
#include "include/tessera/ops.h"
#include "profile/device.h"

/** Operands of a timed call. chain: a compiled function that is timed; else NULL. */
typedef struct pair {
    ts_tensor *to, *from;
    ts_compiled *chain;
} pair;

static ts_status multiply(const pair *x)
{
    return ts_mm_out(x->to, x->from, x->from) ? TS_OK : ts_error_code();
}
static ts_status copy(const pair *x)
{
    return ts_copy_(x->to, x->from) ? TS_OK : ts_error_code();
}
static ts_status add_one(const pair *x)
{
    return ts_add_(x->to, x->to) ? TS_OK : ts_error_code();
}
static ts_status run_chain(const pair *x)
{
    ts_tensor *y;
    TS_TRY(ts_compiled_call(x->chain, (ts_tensor *const *)&x->from, 1, &y, 1));
    ts_drop(y);
    return TS_OK;
}

/** Sets *ns to the time per call of the fastest of several runs. Each run queues `calls` calls
 *  between two events; the first run is a warm-up. first: a product that keeps the device busy
 *  while the host queues short calls; NULL: none. */
static ts_status measure(ts_device device, ts_status (*run)(const pair *x), const pair *x,
                         const pair *first, int calls, double *ns)
{
    enum { RUNS = 6 };
    ts_event *begin = NULL, *end = NULL;
    ts_status status = ts_event_new(device, &begin);
    *ns = 1e30;
    if (status == TS_OK)
        status = ts_event_new(device, &end);
    for (int i = 0; i < RUNS && status == TS_OK; i++) {
        double ms = 0;
        if (first)
            status = multiply(first);
        if (status == TS_OK)
            status = ts_event_record(device, begin);
        for (int k = 0; k < calls && status == TS_OK; k++)
            status = run(x);
        if (status == TS_OK)
            status = ts_event_record(device, end);
        if (status == TS_OK)
            status = ts_event_synchronize(device, end);
        if (status == TS_OK)
            status = ts_event_elapsed(device, begin, end, &ms);
        if (i && ms > 0 && 1e6 * ms / calls < *ns)
            *ns = 1e6 * ms / calls;
    }
    if (begin)
        ts_event_free(device, begin);
    if (end)
        ts_event_free(device, end);
    return status;
}

/** An (n, n) matrix of pseudorandom numbers; products of constants take less power and run at a
 *  higher clock. It does not use the generator, so the program's random numbers do not change. */
static ts_tensor *numbers(int64_t n, ts_dtype dtype, ts_device device)
{
    ts_tensor *count = ts_to_device(ts_arange(0, n, 1, TS_F32), device);
    ts_tensor *row = ts_sin(ts_mul_scalar(count, 12.9898));
    return ts_to(ts_mul(ts_reshape(row, TS_SIZES(n, 1)), row), dtype);
}

static ts_status measure_product(ts_device device, ts_dtype dtype, int64_t n, double *rate)
{
    TS_SCOPE;
    double ns;
    pair x = {ts_empty_on(TS_SIZES(n, n), dtype, device), numbers(n, dtype, device), NULL};
    if (!x.to || !x.from)
        return ts_error_code();
    TS_TRY(measure(device, multiply, &x, NULL, 4, &ns));
    *rate = 2e9 * (double)n * (double)n * (double)n / ns;
    return TS_OK;
}

enum { CHAIN = 30 };

/** CHAIN multiplications and as many additions of each element. */
static ts_status make_chain(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    ts_tensor *y = in[0];
    for (int i = 0; i < CHAIN; i++)
        TS_TRY(y = ts_add_scalar(ts_mul_scalar(y, 0.999), 1e-3));
    *out = y;
    return TS_OK;
}

/** Rate of elementwise arithmetic: a fused chain on an array that the L2 cache holds.
 *  *rate is unchanged if calls are not fused (TS_COMPILE), or if the device has no fused groups. */
static ts_status measure_chain(ts_device device, const pair *busy, double *rate)
{
    TS_SCOPE;
    enum { LENGTH = 4 << 20 };
    double ns = 0;
    pair x = {NULL, ts_fill_(ts_empty_on(TS_SIZES(LENGTH), TS_F32, device), 0.5),
              ts_compile(make_chain, NULL, NULL)};
    ts_status status = TS_STATUS_OF(x.from);
    if (status == TS_OK)
        status = TS_STATUS_OF(x.chain);
    if (status == TS_OK)
        status = measure(device, run_chain, &x, busy, 8, &ns);
    ts_compile_stats stats = ts_compiled_get_stats(x.chain);
    ts_compiled_free(x.chain);
    TS_TRY(status);
    if (stats.groups == 1 && stats.kernels + stats.kernels_read > 0)
        *rate = 2e9 * CHAIN * LENGTH / ns;
    return TS_OK;
}

/** Measures the bandwidth of copies. Sizes count both arrays. Copies of less than the smallest size
 *  are bound by their launch; the steps are small where the sizes of L2 caches lie. */
static ts_status measure_copies(ts_device device, const pair *busy, ts_prof_machine *m)
{
    static const int mebibytes[TS_PROF_CURVE] = {2, 8, 16, 32, 48, 64, 128, 512};
    for (int i = TS_PROF_CURVE - 1; i >= 0; i--) {
        TS_SCOPE;
        int64_t bytes = (int64_t)mebibytes[i] << 20;
        double ns;
        m->bytes_at[i] = (double)bytes;
        pair x = {ts_empty_on(TS_SIZES(bytes / 8), TS_F32, device),
                  ts_empty_on(TS_SIZES(bytes / 8), TS_F32, device), NULL};
        if (!x.to || !x.from)
            return ts_error_code();
        TS_TRY(measure(device, copy, &x, busy, mebibytes[i] < 128 ? 64 : 8, &ns));
        m->bandwidth[i] = 1e9 * (double)bytes / ns;
        /* a smaller size is at least as fast, unless its launches limit it */
        if (i + 1 < TS_PROF_CURVE && m->bandwidth[i] < m->bandwidth[i + 1])
            m->bandwidth[i] = m->bandwidth[i + 1];
    }
    return TS_OK;
}

/** Measures kernels of one element: the time from one to the next, and the host's time of one. */
static ts_status measure_kernels(ts_device device, const pair *busy, ts_prof_machine *m)
{
    enum { CALLS = 100, RUNS = 20 };
    TS_SCOPE;
    pair x = {ts_fill_(ts_empty_on(TS_SIZES(1), TS_F32, device), 0), NULL, NULL};
    TS_TRY(x.to);
    TS_TRY(measure(device, add_one, &x, busy, CALLS, &m->kernel_ns));
    m->call_ns = 1e30;
    for (int run = 0; run < RUNS; run++) {
        struct timespec t[2];
        TS_TRY(ts_synchronize(device));
        clock_gettime(CLOCK_MONOTONIC, &t[0]);
        for (int i = 0; i < CALLS; i++)
            TS_TRY(add_one(&x));
        clock_gettime(CLOCK_MONOTONIC, &t[1]);
        double ns = (1e9 * (double)(t[1].tv_sec - t[0].tv_sec) +
                     (double)(t[1].tv_nsec - t[0].tv_nsec)) / CALLS;
        m->call_ns = ns < m->call_ns ? ns : m->call_ns;
    }
    return ts_synchronize(device);
}

/** Ceilings set by a test in place of measured ones; measured is false if there are none. */
static ts_device_part assumed;

/** The last measurement, which later profiles of the process use. */
static struct {
    pthread_mutex_t lock;
    ts_device device;
    ts_device_part part; /* measured is false if there is none */
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

static ts_status measure_device(void *ctx, ts_prof_machine *m)
{
    enum { BUSY = 8192 }; /* a product of this size takes longer than the host queues a run */
    ts_device device = *(const ts_device *)ctx;
    TS_SCOPE;
    PLAIN_CALLS;
    TS_TRY(ts_synchronize(device)); /* an error if the device has ended with the process */
    double small = 0; /* small products of f32 may run another kernel, which is faster */
    TS_TRY(measure_product(device, TS_F32, 4096, &m->gemm_flops));
    TS_TRY(measure_product(device, TS_F32, 1024, &small));
    m->gemm_flops = small > m->gemm_flops ? small : m->gemm_flops;
    TS_TRY(measure_product(device, TS_F64, 4096, &m->double_flops));
    TS_TRY(measure_product(device, TS_BF16, BUSY, &m->half_flops));
    pair busy = {ts_empty_on(TS_SIZES(BUSY, BUSY), TS_BF16, device), numbers(BUSY, TS_BF16, device),
                 NULL};
    if (!busy.to || !busy.from)
        return ts_error_code();
    TS_TRY(measure_copies(device, &busy, m));
    TS_TRY(measure_kernels(device, &busy, m));
    m->vector_flops = m->gemm_flops;
    TS_TRY(measure_chain(device, &busy, &m->vector_flops));
    m->measured_at = (double)time(NULL);
    return TS_OK;
}

void ts_prof_assume_device(const struct ts_device_part *part)
{
    assumed = part ? *part : (ts_device_part){0};
}

/** Fills kept for the device: from its file, or measured. Called with the lock. */
static ts_status find_device(ts_device device, bool anew)
{
    char model[256], identity[256];
    const ts_backend *b = ts_backend_of(device);
    ts_prof_machine *m = &kept.part.machine;
    kept.part = (ts_device_part){.machine = {.size = sizeof *m, .threads = 1}};
    kept.device = device;
    snprintf(m->name, sizeof m->name, "%s", ts_device_name(device));
    bool known = b && b->identify &&
                 b->identify(b->state, device.index, model, identity, sizeof model) == TS_OK;
    if (known)
        snprintf(m->name, sizeof m->name, "%.*s", (int)sizeof m->name - 1, model);
    else
        ts_error_clear();
    TS_TRY(ts_machine_kept(known ? identity : NULL, anew, measure_device, &device, m));
    kept.part.measured = true;
    return TS_OK;
}

static ts_status find_ceilings(ts_device device, bool anew, ts_prof_machine *machine)
{
    if (assumed.measured) {
        *machine = assumed.machine;
        return TS_OK;
    }
    pthread_mutex_lock(&kept.lock);
    ts_status status = TS_OK;
    if (anew || !kept.part.measured || !ts_same_device(kept.device, device))
        status = find_device(device, anew);
    if (status == TS_OK)
        *machine = kept.part.machine;
    pthread_mutex_unlock(&kept.lock);
    return status;
}

ts_status ts_device_measure(ts_device device, ts_device_part *part)
{
    TS_TRY(find_ceilings(device, false, &part->machine));
    part->measured = true;
    return TS_OK;
}

ts_status ts_prof_calibrate_device(ts_device device, bool anew, ts_prof_machine *machine)
{
    ts_prof_machine m;
    TS_TRY(TS_CHECK_POINTERS(machine));
    TS_TRY(TS_CHECK_OPTS(&m, machine));
    if (!TS_TIMERS)
        return ts_error_set(TS_ERR_UNSUPPORTED,
                            "prof_calibrate_device: this build has no timers (-Dtimers=false)");
    if (ts_prof_active())
        return ts_error_set(TS_ERR_STATE, "prof_calibrate_device: a profile records; stop it "
                                          "first");
    TS_TRY(ts_device_check(device, "prof_calibrate_device"));
    if (!ts_backend_of(device))
        return ts_error_set_hint(TS_ERR_DEVICE, "ts_prof_calibrate() measures the CPU",
                                 "prof_calibrate_device: argument 'device': expected a device with "
                                 "a backend of its own, got %s", ts_device_name(device));
    size_t size = machine->size;
    TS_TRY(find_ceilings(device, anew, &m));
    m.size = size;
    memcpy(machine, &m, size);
    return TS_OK;
}

void ts_device_measure_early(void)
{
    const char *note;
    ts_device_part part = {0};
    if (ts_device_times(&note)->count && ts_device_measure(ts_device_of_times(), &part) != TS_OK)
        ts_error_clear(); /* ts_profile_take() measures again and reports the error */
}
