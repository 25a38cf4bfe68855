/**
 * @file bench_cuda_profile.c  The cost of a profile on a GPU, and the times that it reports.
 *
 * Prints the host time of a launch before, during and after a profile, twice. Then prints a
 * profile's device times of the bf16 product of two 4096 x 4096 matrices and of a relu of 64 Mi
 * elements, for comparison with torch.profiler.
 */
// SPDX-License-Identifier: MIT
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <tessera/tessera.h>

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/** Shortest time of a relu of one element over several runs, in us. */
static double time_launch(ts_device device, ts_tensor *x)
{
    enum { RUNS = 10, CALLS = 2000 };
    double best = 1e30;
    for (int run = 0; run < RUNS; run++) {
        ts_synchronize(device);
        double begin = seconds();
        for (int i = 0; i < CALLS; i++)
            ts_relu_(x);
        double us = 1e6 * (seconds() - begin) / CALLS;
        best = us < best ? us : best;
    }
    return best;
}

static ts_status run(void)
{
    ts_device device;
    TS_SCOPE;
    TS_TRY(ts_device_open("cuda", &device, NULL, 0));
    ts_tensor *one = ts_fill_(ts_empty_on(TS_SIZES(1), TS_F32, device), 1);
    TS_TRY(one);
    printf("launch before: %.3f us\n", time_launch(device, one));
    for (int i = 0; i < 2; i++) {
        TS_TRY(ts_prof_start(NULL));
        double during = time_launch(device, one);
        TS_TRY(ts_prof_stop());
        printf("launch during: %.3f us, after: %.3f us\n", during, time_launch(device, one));
    }
    ts_tensor *m = ts_fill_(ts_empty_on(TS_SIZES(4096, 4096), TS_BF16, device), 0.37),
              *big = ts_fill_(ts_empty_on(TS_SIZES(64 << 20), TS_F32, device), -1);
    for (int pass = 0; pass < 2; pass++) { /* the first loads kernels */
        if (pass)
            TS_TRY(ts_prof_start(NULL));
        for (int i = 0; i < 20; i++) {
            TS_SCOPE;
            TS_TRY(ts_mm(m, m));
            TS_TRY(ts_relu(big));
        }
        TS_TRY(ts_synchronize(device));
    }
    TS_TRY(ts_prof_stop());
    ts_profile *p = ts_profile_take();
    TS_TRY(p);
    ts_status status = ts_profile_write(p, stdout, TS_PROFILE_CSV);
    if (status == TS_OK)
        status = ts_profile_write(p, stdout, TS_PROFILE_TABLES);
    ts_profile_free(p);
    return status;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--help") == 0)
        return puts("usage: bench_cuda_profile [--help]\n\n"
                    "Prints the cost of a profile on a GPU, and its device times.") == EOF;
    if (run() == TS_OK)
        return 0;
    fprintf(stderr, "%s\n", ts_error_message());
    return 1;
}
