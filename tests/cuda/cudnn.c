/** @file cudnn.c  The choice between own kernels and cuDNN's engines, with a fake cuDNN and fake
 * functions of CUDA's runtime. Needs CUDA's headers, but neither its libraries nor a GPU. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/convolution/cudnn.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/cuda/product/gemm.h"
#include "tests/cuda/fake_cudnn.h"
#include "tests/expect.h"
#include "tests/harness.h"

/* ------------------------------------------------------ fake functions of the CUDA runtime ---- */

enum { OWN = FAKE_ENGINES }; /* number of own kernels, beside the engines */
static float times[FAKE_ENGINES + 1] = {1, 1, 1, 1, 1}; /* ms of a run */
static int recorded[2]; /* numbers of runs before the last two events */
static ts_dtype dtype = TS_BF16;
static bool capturing, own_fails;
static int own_runs, scratch, driver = 13000;
static bool gpu_known = true;
static fake_cudnn *fake;
static ts_cuda_device device = {.index = 0, .sms = 132};
static char event, memory[64] __attribute__((aligned(16)));

cudaError_t cudaEventCreate(cudaEvent_t *e)
{
    *e = (cudaEvent_t)&event;
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    (void)e;
    return cudaSuccess;
}
static int all_runs(void)
{
    int n = 0;
    for (int i = 0; i < FAKE_ENGINES; i++)
        n += fake->runs[i];
    return n;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t stream)
{
    (void)e, (void)stream;
    recorded[0] = recorded[1];
    recorded[1] = all_runs() + own_runs;
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    (void)begin, (void)end;
    *ms = times[fake->last] * (float)(recorded[1] - recorded[0]);
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    (void)stream;
    return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *data)
{
    (void)stream, (void)fn, (void)data;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version)
{
    *version = driver;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int index)
{
    (void)index;
    memset(p, 0, sizeof *p);
    strcpy(p->name, "a fake GPU");
    p->multiProcessorCount = 132;
    return gpu_known ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaPeekAtLastError(void) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    (void)stream;
    *status = capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

ts_cuda_device *ts_cuda_use(int index) { return index ? NULL : &device; }
bool ts_cuda_is_lost(int index) { return index != 0; }
bool ts_cuda_synchronous(void) { return false; }
bool ts_cuda_tf32(void) { return false; }
ts_status ts_cuda_check(cudaError_t error, const char *format, ...)
{
    (void)format;
    return error == cudaSuccess ? TS_OK : ts_error_set(TS_ERR_DEVICE, "CUDA");
}
ts_status ts_cuda_launched(const ts_frame *frame, cudaError_t error, cudaStream_t stream)
{
    (void)frame, (void)stream;
    return ts_cuda_check(error, "launch");
}
ts_dtype ts_kernel_dtype(const ts_frame *frame)
{
    (void)frame;
    return dtype;
}
ts_device ts_kernel_device(const ts_frame *frame)
{
    (void)frame;
    return TS_DEVICE_CPU;
}
ts_stream *ts_kernel_stream(const ts_frame *frame)
{
    (void)frame;
    return NULL;
}
void *ts_scratch_take(ts_device where, int64_t bytes)
{
    (void)where;
    if (bytes > (int64_t)sizeof memory)
        return NULL;
    scratch++;
    return memory;
}
void ts_scratch_give(ts_device where, void *data, int64_t bytes)
{
    (void)where, (void)data, (void)bytes;
    scratch--;
}

/* --------------------------------------------------------------------------------- calls ---- */

/** A 3 x 3 convolution with stride 2 and 2 groups. */
static const ts_convolution strided = {
    .dims = 2, .batch = 4, .groups = 2, .channels = 32, .features = 64, .size = {1, 8, 9},
    .y_size = {1, 4, 5}, .kernel = {1, 3, 3}, .stride = {1, 2, 2}, .dilation = {1, 1, 1},
    .padding = {0, 1, 1}};

static ts_frame frame;
static ts_cuda_conv_operands operands;

static ts_status own(void *context)
{
    (void)context;
    own_runs++;
    fake->last = OWN;
    return own_fails ? ts_error_set(TS_ERR_MEMORY, "own") : TS_OK;
}

static int after, after_runs; /* the calls after the convolution, and how often they ran */
static ts_status then(void *context)
{
    (void)context;
    after_runs++;
    return TS_OK;
}
static ts_cuda_conv_own own_calls = {own, NULL, NULL};

/** Opens the fake library, before the backend does. */
static void open_fake(int engines)
{
    if (!getenv("TS_CUDA_CACHE"))
        setenv("TS_CUDA_CACHE", "0", 1);
    void *library = dlopen(FAKE_CUDNN, RTLD_NOW);
    ck_assert_msg(library != NULL, "%s", dlerror());
    fake = dlsym(library, "fake");
    fake->engines = engines;
    setenv("TS_CUDA_CUDNN", FAKE_CUDNN, 1);
    operands = (ts_cuda_conv_operands){memory, memory + 16, memory + 32, NULL};
}

/** Runs a call and returns whether cuDNN ran it. */
static bool run(const ts_convolution *c, ts_cuda_conv_result result)
{
    ts_cuda_cudnn *a = ts_cuda_cudnn_of(&frame, c, result, operands.bias != NULL, after);
    bool done = false;
    if (!a)
        return false;
    OK(ts_cuda_cudnn_run(&frame, a, &operands, &own_calls, &done));
    ck_assert_int_eq(scratch, 0);
    return done;
}

TS_TEST(the_fastest_engine_runs)
{
    open_fake(3);
    times[0] = 5, times[1] = 2, times[2] = 4, times[OWN] = 9;
    fake->workspaces[1] = 64;
    ck_assert(run(&strided, TS_CUDA_CONV_Y));
    ck_assert_int_eq(fake->last, 1);
    ck_assert(fake->workspace == memory);
    ck_assert(own_runs > 0 && fake->runs[0] > 0 && fake->runs[2] > 0);
    int runs = all_runs(), owns = own_runs;
    ck_assert(run(&strided, TS_CUDA_CONV_Y)); /* not measured again */
    ck_assert_int_eq(all_runs(), runs + 1);
    ck_assert_int_eq(own_runs, owns);
    ck_assert(run(&strided, TS_CUDA_CONV_WEIGHT)); /* another choice */
    ck_assert_int_gt(all_runs(), runs + 2);
}

TS_TEST(slow_engines_are_timed_once)
{
    open_fake(3);
    times[0] = 2, times[1] = 30, times[2] = 1, times[OWN] = 9;
    ck_assert(run(&strided, TS_CUDA_CONV_Y));
    ck_assert_int_eq(fake->last, 2);
    ck_assert_int_eq(fake->runs[1], 2); /* and one unmeasured run */
    ck_assert_int_gt(fake->runs[0], 5);
}

TS_TEST(own_kernels_run_where_they_are_faster)
{
    open_fake(2);
    times[OWN] = 1, times[0] = 0.99f, times[1] = 3; /* a tie keeps the own kernels */
    ck_assert(!run(&strided, TS_CUDA_CONV_X));
    int runs = all_runs();
    ck_assert(ts_cuda_cudnn_of(&frame, &strided, TS_CUDA_CONV_X, false, 0) == NULL);
    ck_assert_int_eq(all_runs(), runs);
    ck_assert_int_eq(fake->live, 0); /* all descriptors are destroyed */
}

TS_TEST(cudnn_that_is_requested_is_not_timed_against_own_kernels)
{
    setenv("TS_CUDA_CONV", "cudnn", 1);
    open_fake(1);
    times[OWN] = 1, times[0] = 5;
    ck_assert(run(&strided, TS_CUDA_CONV_Y));
    ck_assert_int_eq(own_runs, 0);
}

TS_TEST(own_kernels_that_are_requested_run)
{
    setenv("TS_CUDA_CONV", "own", 1);
    open_fake(1);
    ck_assert(!run(&strided, TS_CUDA_CONV_Y));
    ck_assert_int_eq(all_runs(), 0);
}

TS_TEST(engines_that_are_inexact_or_vary_are_not_used)
{
    open_fake(4);
    times[OWN] = 9;
    fake->notes[0] = 1 << 4, fake->notes[1] = 1 << 2, fake->notes[2] = 1 << 6; /* varies; rounds
                                                               sums; Winograd's transform */
    fake->notes[3] = 1; /* tensor cores, which are exact for bf16 */
    ck_assert(run(&strided, TS_CUDA_CONV_Y));
    ck_assert_int_eq(all_runs(), fake->runs[3]);
    dtype = TS_F32;
    int runs = all_runs();
    ck_assert(!run(&strided, TS_CUDA_CONV_Y));
    ck_assert_int_eq(all_runs(), runs);
}

TS_TEST(engines_that_compile_are_not_used)
{
    open_fake(3);
    times[OWN] = 9;
    fake->behaviors[0] = fake->behaviors[1] = 1;
    ck_assert(run(&strided, TS_CUDA_CONV_Y));
    ck_assert_int_eq(all_runs(), fake->runs[2]);
}

TS_TEST(engines_that_fail_are_not_used)
{
    open_fake(4);
    times[OWN] = 9, times[3] = 8;
    fake->no_plan = 1, fake->fails = 2;
    fake->workspaces[2] = 1000; /* more memory than there is */
    ck_assert(run(&strided, TS_CUDA_CONV_Y));
    ck_assert_int_eq(fake->last, 3);
    ck_assert_int_eq(fake->runs[0] + fake->runs[2], 0);
    ck_assert_int_eq(ts_error_code(), TS_OK);
    fake->fails = 15;
    ck_assert(!run(&strided, TS_CUDA_CONV_X));
    bool done;
    ts_cuda_cudnn *a = ts_cuda_cudnn_of(&frame, &strided, TS_CUDA_CONV_Y, false, 0);
    FAILS(TS_ERR_DEVICE, ts_cuda_cudnn_run(&frame, a, &operands, &own_calls, &done));
    SAYS("FAKE_FAILED");
}

TS_TEST(a_failure_of_own_kernels_is_returned)
{
    open_fake(1);
    own_fails = true;
    bool done;
    ts_cuda_cudnn *a = ts_cuda_cudnn_of(&frame, &strided, TS_CUDA_CONV_Y, false, 0);
    FAILS(TS_ERR_MEMORY, ts_cuda_cudnn_run(&frame, a, &operands, &own_calls, &done));
    SAYS("own");
    own_fails = false;
    times[OWN] = 9;
    ck_assert(run(&strided, TS_CUDA_CONV_Y)); /* the choice was still open */
}

TS_TEST(no_engine_is_timed_during_a_capture)
{
    open_fake(1);
    times[OWN] = 9;
    capturing = true;
    ck_assert(!run(&strided, TS_CUDA_CONV_Y));
    ck_assert_int_eq(all_runs() + own_runs, 0);
    ck_assert_int_eq(fake->handles, 0); /* a capture forbids allocations */
    capturing = false;
    ck_assert(run(&strided, TS_CUDA_CONV_Y));
    int runs = all_runs();
    capturing = true; /* a known choice is captured */
    ck_assert(run(&strided, TS_CUDA_CONV_Y));
    ck_assert_int_eq(all_runs(), runs + 1);
}

TS_TEST(the_graph_describes_the_call)
{
    open_fake(1);
    times[OWN] = 9;
    operands.bias = memory + 48;
    ck_assert(run(&strided, TS_CUDA_CONV_Y));
    static const int64_t x[] = {4, 32, 8, 9}, w[] = {64, 16, 3, 3}, y[] = {4, 64, 4, 5},
                         x_strides[] = {2304, 1, 288, 32}, w_strides[] = {144, 1, 48, 16};
    ck_assert_mem_eq(fake->sizes[0], x, sizeof x);
    ck_assert_mem_eq(fake->sizes[1], w, sizeof w);
    ck_assert_mem_eq(fake->sizes[2], y, sizeof y);
    ck_assert_mem_eq(fake->strides[0], x_strides, sizeof x);
    ck_assert_mem_eq(fake->strides[1], w_strides, sizeof w);
    /* 8 rows: the last window ends at the last row; 9 columns: one after the last */
    ck_assert(fake->before[0] == 1 && fake->before[1] == 1);
    ck_assert(fake->after[0] <= 1 && fake->after[1] == 1);
    ck_assert(fake->operations == 2 && fake->is_virtual[4] && !fake->is_virtual[2]);
    ck_assert(fake->pointers[0] == operands.x && fake->pointers[1] == operands.weight &&
              fake->pointers[2] == operands.y && fake->pointers[3] == operands.bias);
}

TS_TEST(calls_that_cudnn_does_not_support_are_refused)
{
    open_fake(1);
    times[OWN] = 9;
    ts_convolution c = strided;
    c.batch = 0;
    ck_assert(!run(&c, TS_CUDA_CONV_Y));
    c = strided;
    c.size[2] = 14; /* five elements that no window reads: no padding gives 5 positions */
    ck_assert(!run(&c, TS_CUDA_CONV_Y));
    operands.x = memory + 2; /* misaligned: this call only */
    ck_assert(!run(&strided, TS_CUDA_CONV_Y));
    operands.x = memory;
    ck_assert(run(&strided, TS_CUDA_CONV_Y));
    dtype = TS_F64;
    ck_assert(!run(&strided, TS_CUDA_CONV_Y));
    dtype = TS_BF16;
    OK(ts_set_deterministic(true));
    ck_assert(!run(&strided, TS_CUDA_CONV_Y));
}

/** Runs calls of the same shape in a process of their own: returns 2 * (whether cuDNN ran the last
 *  one) + (whether engines were measured). */
static int in_a_process(void)
{
    int status;
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (!child) {
        bool done = run(&strided, TS_CUDA_CONV_Y);
        bool measured = own_runs + all_runs() > done;
        _exit(2 * done + measured);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status), "the process ended with %d", status);
    return WEXITSTATUS(status);
}

static char folder[64];
static void set_folder(void)
{
    strcpy(folder, "/tmp/tessera-choices-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    setenv("TS_CUDA_CACHE", folder, 1);
}
static void end_folder(void)
{
    char command[100];
    snprintf(command, sizeof command, "rm -r %s", folder);
    ck_assert_int_eq(system(command), 0);
}
#define FOLDER .setup = set_folder, .teardown = end_folder

TS_TEST(later_processes_read_the_choice_of_an_engine, FOLDER, .loop = 2)
{
    open_fake(3);
    times[OWN] = _i ? 1 : 9, times[0] = 5, times[1] = 2, times[2] = 4;
    int cudnn_runs = _i ? 0 : 2;
    ck_assert_int_eq(in_a_process(), cudnn_runs + 1);
    times[OWN] = _i ? 9 : 1; /* a measurement would choose the other */
    ck_assert_int_eq(in_a_process(), cudnn_runs);
    ck_assert_int_eq(in_a_process(), cudnn_runs);
    driver = 13010; /* another driver, version of cuDNN or dtype: another file */
    ck_assert_int_eq(in_a_process(), 2 - cudnn_runs + 1);
    driver = 13000;
    fake->version++;
    ck_assert_int_eq(in_a_process(), 2 - cudnn_runs + 1);
    fake->version--;
    dtype = TS_F16;
    ck_assert_int_eq(in_a_process(), 2 - cudnn_runs + 1);
    dtype = TS_BF16;
    after = 1;
    ck_assert_int_eq(in_a_process(), 2 - cudnn_runs + 1);
    after = 0;
    setenv("TS_CUDA_CACHE", "0", 1);
    ck_assert_int_eq(in_a_process(), 2 - cudnn_runs + 1);
    setenv("TS_CUDA_CACHE", folder, 1);
    gpu_known = false;
    ck_assert_int_eq(in_a_process(), 2 - cudnn_runs + 1);
    gpu_known = true;
    ck_assert_int_eq(in_a_process(), cudnn_runs);
    setenv("TS_CUDA_CONV", _i ? "cudnn" : "own", 1); /* overrides the stored choice */
    ck_assert_int_eq(in_a_process() & 2, 2 * _i);
}

TS_TEST(engines_are_timed_again_after_an_engine_changed, FOLDER)
{
    open_fake(3);
    times[OWN] = 9, times[0] = 5, times[1] = 2, times[2] = 4;
    ck_assert_int_eq(in_a_process(), 3);
    fake->workspaces[1] = 32;
    ck_assert_int_eq(in_a_process(), 3);
    ck_assert_int_eq(in_a_process(), 2);
    fake->engines = 1;
    ck_assert_int_eq(in_a_process(), 3);
    fake->engines = 3;
    fake->no_plan = 1; /* of the engine that is chosen now */
    ck_assert_int_eq(in_a_process(), 3);
    ck_assert_int_eq(in_a_process(), 2);
}

TS_TEST(the_calls_after_a_convolution_are_timed_and_run_with_it)
{
    open_fake(1);
    times[OWN] = 9;
    after = 3;
    own_calls.then = then;
    ck_assert(run(&strided, TS_CUDA_CONV_Y));
    ck_assert_int_eq(after_runs, fake->runs[0]);
    int runs = all_runs();
    ck_assert(run(&strided, TS_CUDA_CONV_Y));
    ck_assert_int_eq(after_runs, runs + 1);
    after = 0; /* the convolution alone is another shape */
    own_calls.then = NULL;
    ck_assert(run(&strided, TS_CUDA_CONV_Y));
    ck_assert_int_gt(all_runs(), runs + 2);
}

TS_TEST(an_unusable_cudnn_library_is_not_used, .loop = 3)
{
    open_fake(1);
    times[OWN] = 9;
    if (_i == 0)
        setenv("TS_CUDA_CUDNN", "0", 1);
    else if (_i == 1)
        setenv("TS_CUDA_CUDNN", "/nowhere/libcudnn.so.9", 1);
    else
        fake->version = 8907;
    ck_assert(!run(&strided, TS_CUDA_CONV_Y));
    ck_assert_int_eq(all_runs(), 0);
    ck_assert_int_eq(ts_error_code(), TS_OK);
}

TS_TEST(cudnn_of_the_active_environment_is_used, FOLDER, .loop = 3)
{
    static const char *const variables[] = {"VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_PREFIX"};
    static const char *const folders[] = {"lib/python3.12/site-packages/nvidia/cudnn/lib", "lib",
                                         "lib/python3.9/site-packages/nvidia/cudnn/lib"};
    open_fake(1);
    times[OWN] = 9;
    for (int i = 0; i < 3; i++)
        unsetenv(variables[i]);
    unsetenv("TS_CUDA_CUDNN");
    setenv(variables[_i], folder, 1);
    char command[PATH_MAX];
    snprintf(command, sizeof command, "mkdir -p %s/%s && ln -s %s %s/%s/libcudnn.so.9", folder,
             folders[_i], FAKE_CUDNN, folder, folders[_i]);
    ck_assert_int_eq(system(command), 0);
    ck_assert(run(&strided, TS_CUDA_CONV_Y));
    ck_assert_int_gt(fake->runs[0], 0);
}
