/**
 * @file bench_cuda_launch.cu  Host time of a call until its one-element kernel is queued, compared
 * with a manual launch in the same process. Batches of all cases take turns; a batch ends before
 * the queue is full.
 */
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <vector>

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <tessera/tessera.h>

static const int BATCH = 400, BATCHES = 400;

struct many { /* as many bytes of parameters as a pointwise kernel takes */
    char bytes[384];
};
__global__ void nothing() {}
__global__ void add(float *out, const float *a, const float *b) { *out = *a + *b; }
__global__ void add_many(const __grid_constant__ many m, float *out, const float *a, const float *b)
{
    *out = *a + *b + (float)m.bytes[7];
}

static ts_device device;
static ts_tensor *a, *b, *out;
static float *p, *q, *r;
static cudaStream_t stream;

static void raw_empty() { nothing<<<1, 256, 0, stream>>>(); }
static void raw() { add<<<1, 256, 0, stream>>>(r, p, q); }
/* host time of the driver alone */
static CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                          unsigned, CUstream, void **, void **);
static cudaFunction_t function;
static void by_driver()
{
    void *arguments[] = {&r, &p, &q};
    launch((CUfunction)function, 1, 1, 1, 256, 1, 1, 0, stream, arguments, nullptr);
}
static void raw_many() { add_many<<<1, 256, 0, stream>>>(many{}, r, p, q); }
static void add_1() { ts_drop(ts_add(a, b)); }
static void add_1_out() { ts_add_out(out, a, b); }
static void add_1_inplace() { ts_add_(out, b); }
static void empty_1()
{
    int64_t one = 1;
    ts_drop(ts_empty_on(&one, 1, TS_F32, device));
}

struct bench_case {
    const char *name;
    void (*run)();
    std::vector<double> ns;
};

static double now()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--help") == 0)
        return puts("usage: bench_cuda_launch [--help]\n\n"
                    "Prints the host time of ts_add() and of bare launches on a GPU.") == EOF;
    char why[512];
    int64_t one = 1;
    ts_scope scope __attribute__((cleanup(ts_scope_leave)));
    ts_scope_enter(&scope, NULL);
    if (ts_device_open("cuda", &device, why, sizeof why) != TS_OK) {
        printf("skipped: %s\n", ts_error_message());
        return 0;
    }
    ts_scalar number = ts_scalar_float(1);
    a = ts_fill_(ts_empty_on(&one, 1, TS_F32, device), number);
    b = ts_fill_(ts_empty_on(&one, 1, TS_F32, device), number);
    out = ts_fill_(ts_empty_on(&one, 1, TS_F32, device), number);
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaMalloc(&p, 4), cudaMalloc(&q, 4), cudaMalloc(&r, 4);
    cudaDriverEntryPointQueryResult found;
    if (cudaGetFuncBySymbol(&function, (const void *)add) != cudaSuccess ||
        cudaGetDriverEntryPointByVersion("cuLaunchKernel", (void **)&launch, 12000,
                                         cudaEnableDefault, &found) != cudaSuccess)
        return 1;
    bench_case cases[] = {{"raw launch", raw, {}},
                          {"raw launch, 384 bytes of parameters", raw_many, {}},
                          {"raw launch, empty kernel", raw_empty, {}},
                          {"by the driver's function", by_driver, {}}, {"add_1", add_1, {}},
                          {"add_1_out", add_1_out, {}}, {"add_1_inplace", add_1_inplace, {}},
                          {"empty_1", empty_1, {}}};
    for (int turn = -20; turn < BATCHES; turn++)
        for (bench_case &c : cases) {
            cudaDeviceSynchronize();
            double t0 = now();
            for (int i = 0; i < BATCH; i++)
                c.run();
            if (turn >= 0)
                c.ns.push_back((now() - t0) / BATCH);
        }
    if (ts_error_code() != TS_OK || cudaDeviceSynchronize() != cudaSuccess) {
        ts_error_print();
        return 1;
    }
    printf("%-38s %9s %9s\n", "host side of a call", "median", "fastest");
    double bare = 0;
    for (bench_case &c : cases) {
        std::sort(c.ns.begin(), c.ns.end());
        double median = c.ns[c.ns.size() / 2];
        bare = bare ? bare : median;
        printf("%-38s %6.0f ns %6.0f ns   %+.0f\n", c.name, median, c.ns[0], median - bare);
    }
    return 0;
}
