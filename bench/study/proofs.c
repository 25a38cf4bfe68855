/**
 * @file proofs.c  A lesson that checks the profiler: programs with a known regime.
 */
// SPDX-License-Identifier: MIT
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "study.h"

static struct {
    ts_device device;
    ts_tensor *one, *big, *other, *matrix, *product, *sample, *up, *down;
    ts_compiled *fused, *few, *many;
} data;

/* ---------------------------------------------------------------------------- regimes ---- */

static ts_status tiny_calls(void)
{
    for (int i = 0; i < 20000; i++)
        TS_TRY(ts_add_(data.one, data.one));
    return TS_OK;
}
static ts_status copies(void)
{
    for (int i = 0; i < 20; i++)
        TS_TRY(ts_copy_(data.other, data.big));
    return TS_OK;
}
static ts_status additions(void)
{
    for (int i = 0; i < 20; i++)
        TS_TRY(ts_add_out(data.other, data.other, data.big));
    return TS_OK;
}
static ts_status products(void)
{
    for (int i = 0; i < 20; i++)
        TS_TRY(ts_mm_out(data.product, data.matrix, data.matrix));
    return TS_OK;
}
static ts_status sleeps(void)
{
    for (int i = 0; i < 10; i++) {
        usleep(3000);
        TS_TRY(ts_add_(data.one, data.one));
        TS_TRY(ts_synchronize(data.device));
    }
    return TS_OK;
}

static ts_status multiply(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)n, (void)m;
    ts_tensor *y = in[0];
    for (int64_t i = 0; i < *(const int64_t *)ctx; i++)
        TS_TRY(y = ts_mul_scalar(y, 1.0001));
    *out = y;
    return TS_OK;
}
static ts_status repeat(ts_compiled *c)
{
    for (int i = 0; i < 20; i++) {
        TS_SCOPE;
        ts_tensor *y;
        TS_TRY(ts_compiled_call(c, &data.big, 1, &y, 1));
    }
    return TS_OK;
}
static ts_status few_multiplications(void) { return repeat(data.few); }
static ts_status many_multiplications(void) { return repeat(data.many); }

/** Runs a batch of one through 16 linear layers, 8 times `up` and `down`. It loads all weights for
 *  few FLOPs. */
static ts_status infer(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    ts_tensor *x = in[0];
    for (int i = 0; i < 8; i++)
        TS_TRY(x = ts_linear(ts_relu(ts_linear(x, data.up, TS_NONE)), data.down, TS_NONE));
    *out = x;
    return TS_OK;
}
static ts_status single_samples(void)
{
    for (int i = 0; i < 20; i++) {
        TS_SCOPE;
        ts_tensor *y;
        TS_TRY(ts_compiled_call(data.fused, &data.sample, 1, &y, 1));
    }
    return TS_OK;
}

/** Share of the time, in percent, that belongs to a verdict such as "memory-bound". */
static double share_of(const ts_profile_shares *s, const char *verdict)
{
    switch (verdict[0]) {
    case 'c': return 100 * s->compute;
    case 'm': return 100 * s->memory;
    default: return 100 * (strncmp(verdict, "over", 4) == 0 ? s->overhead : s->outside);
    }
}

static ts_status check(study *s, const char *name, const char *expected, ts_status (*run)(void),
                       bool *wrong)
{
    enum { TRIES = 4 }; /* other programs on the machine can change a verdict */
    ts_profile_shares shares = {.size = sizeof shares};
    for (int i = 0; i < TRIES; i++) {
        TS_TRY(run());
        TS_TRY(run()); /* warm: loads, compiles and captures */
        TS_TRY(ts_synchronize(s->device));
        TS_TRY(ts_prof_start(NULL));
        ts_status status = run();
        if (status == TS_OK)
            status = ts_synchronize(s->device);
        TS_TRY(ts_prof_stop());
        TS_TRY(status);
        ts_profile *p = ts_profile_take();
        TS_TRY(p);
        TS_TRY(ts_profile_get_shares(p, &shares));
        if (getenv("STUDY_TABLES"))
            ts_profile_write(p, stderr, TS_PROFILE_TABLES);
        ts_profile_free(p);
        if (strcmp(shares.verdict, expected) == 0)
            break;
    }
    *wrong = *wrong || strcmp(shares.verdict, expected) != 0;
    study_row(s, "%s\t%s\t%s\t%.1f", name, expected, shares.verdict,
              share_of(&shares, expected));
    return ts_progress_step(s->progress, TS_NONE);
}

/** Profiles programs whose regime is known. TS_ERR_VALUE if a verdict differs from the expected one
 *  in each of four tries. With STUDY_TABLES in the environment, prints the profiles to stderr. */
ts_status study_regimes(study *s)
{
    static int64_t few = 2, many = 256;
    const int64_t n = s->gpu ? 256 << 20 : 8 << 20, size = s->gpu ? 8192 : 768,
                  width = s->gpu ? 8192 : 2048;
    const ts_dtype half = s->gpu ? TS_BF16 : TS_F32;
    bool wrong = false;
    TS_NO_GRAD;
    data.device = s->device;
    data.one = study_normal(s, TS_SIZES(1), TS_F32);
    data.big = study_normal(s, TS_SIZES(n), TS_F32);
    data.other = study_normal(s, TS_SIZES(n), TS_F32);
    data.matrix = study_normal(s, TS_SIZES(size, size), half);
    data.product = study_normal(s, TS_SIZES(size, size), half);
    data.sample = study_normal(s, TS_SIZES(1, width), half);
    data.up = study_normal(s, TS_SIZES(width, width), half);
    TS_TRY(data.down = study_normal(s, TS_SIZES(width, width), half));
    TS_TRY(data.few = ts_compile(multiply, &few, NULL));
    TS_TRY(data.many = ts_compile(multiply, &many, NULL));
    TS_TRY(data.fused = ts_compile(infer, NULL, TS_OPTS(ts_compile_opts, .graph = s->gpu)));
    const struct {
        const char *name, *expected;
        ts_status (*run)(void);
        bool anywhere;
    } programs[] = {
        {"20,000 additions of one element", "overhead-bound", tiny_calls, true},
        /* idle time of a device is overhead, whatever the host does */
        {"a sleep between calls", s->gpu ? "overhead-bound" : "outside-bound", sleeps, true},
        {"copies of a large array", "memory-bound", copies, true},
        {"additions of large arrays", "memory-bound", additions, true},
        {"products of large matrices", "compute-bound", products, true},
        {"one sample through 16 layers, compiled", "memory-bound", single_samples, true},
        {"2 multiplications, one fused group", "memory-bound", few_multiplications, false},
        {"256 multiplications, one fused group", "compute-bound", many_multiplications, false},
    };
    ts_status status = TS_OK;
    for (int i = 0; i < (int)(sizeof programs / sizeof *programs) && status == TS_OK; i++)
        if (programs[i].anywhere || s->gpu) /* a fused group has no row on the CPU */
            status = check(s, programs[i].name, programs[i].expected, programs[i].run, &wrong);
    ts_compiled_free(data.few);
    ts_compiled_free(data.many);
    ts_compiled_free(data.fused);
    TS_TRY(status);
    return wrong ? ts_error_set(TS_ERR_VALUE, "study: a verdict differs from the expected one")
                 : TS_OK;
}
