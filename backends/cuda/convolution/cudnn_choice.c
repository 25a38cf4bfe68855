/**
 * @file cudnn_choice.c
 * The choice between cuDNN's engines and the library's kernels. The first call of a shape reads the
 * choice of an earlier process from disk (runtime/disk.h), or measures the engines and writes the
 * choice. Later calls of the shape in this process use the same choice.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/convolution/cudnn_graph.h"
#include "backends/cuda/runtime/disk.h"
#include "backends/cuda/product/gemm.h"
#include "backends/cuda/runtime/hash.h"
#include "tessera/program.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

ts_cuda_conv_kernels ts_cuda_conv_allowed(void)
{
    static _Atomic int known; /* the choice + 1; 0: not read yet */
    int is = atomic_load_explicit(&known, memory_order_relaxed);
    if (!is) {
        is = ts_variable_choice("TS_CUDA_CONV", "auto|own|cudnn|mma|matrix");
        is = is < 0 ? TS_CUDA_CONV_AUTO + 1 : is + 1;
        atomic_store_explicit(&known, is, memory_order_relaxed);
    }
    return (ts_cuda_conv_kernels)(is - 1);
}

/* -------------------------------------------------------------------------------- calls ---- */

enum { BUCKETS = 256, MOST_SHAPES = 4096 };
enum { UNKNOWN, OWN, CUDNN };
struct ts_cuda_cudnn {
    ts_cuda_cudnn *next;
    ts_cudnn_graph graph;
    _Atomic int choice;
    ts_cudnn_plan plan; /* the chosen engine's plan, if `choice` is CUDNN */
};
static _Atomic(ts_cuda_cudnn *) shapes[BUCKETS];
static int nshapes;
static void *handles[TS_CUDA_DEVICES];
/* `opening` guards handles; `choosing` guards the table of shapes and the measurements */
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER, choosing = PTHREAD_MUTEX_INITIALIZER;

static ts_cuda_cudnn *find(const ts_cudnn_key *k, size_t bucket)
{
    ts_cuda_cudnn *a = atomic_load_explicit(&shapes[bucket], memory_order_acquire);
    while (a && memcmp(&a->graph.key, k, sizeof *k) != 0)
        a = a->next;
    return a;
}

ts_cuda_cudnn *ts_cuda_cudnn_of(ts_frame *f, const ts_convolution *c, ts_cuda_conv_result result,
                                bool bias, int after)
{
    ts_cuda_conv_kernels allowed = ts_cuda_conv_allowed();
    ts_dtype dtype = ts_kernel_dtype(f);
    if (allowed == TS_CUDA_CONV_OWN || allowed > TS_CUDA_CONV_CUDNN || dtype == TS_F64 ||
        ts_deterministic() || !ts_cudnn_is_available())
        return NULL;
    ts_cudnn_key k;
    memset(&k, 0, sizeof k);
    k.device = ts_kernel_device(f).index;
    k.dtype = dtype, k.result = result, k.bias = bias, k.after = after, k.dims = c->dims;
    k.batch = c->batch, k.groups = c->groups, k.channels = c->channels, k.features = c->features;
    for (int d = 0; d < 3; d++) {
        k.size[d] = c->size[d], k.y_size[d] = c->y_size[d], k.kernel[d] = c->kernel[d];
        k.stride[d] = c->stride[d], k.dilation[d] = c->dilation[d], k.padding[d] = c->padding[d];
    }
    size_t bucket = ts_cuda_hash((const uint64_t *)&k, sizeof k / 8) % BUCKETS;
    ts_cuda_cudnn *a = find(&k, bucket);
    if (!a) {
        pthread_mutex_lock(&choosing);
        a = find(&k, bucket);
        if (!a && nshapes < MOST_SHAPES && (a = calloc(1, sizeof *a))) {
            nshapes++;
            a->graph.key = k;
            a->choice = ts_cudnn_is_supported(&k) ? UNKNOWN : OWN;
            a->next = atomic_load(&shapes[bucket]);
            atomic_store_explicit(&shapes[bucket], a, memory_order_release);
        }
        pthread_mutex_unlock(&choosing);
    }
    return a && atomic_load_explicit(&a->choice, memory_order_acquire) != OWN ? a : NULL;
}

static ts_status check(int status, const ts_frame *f)
{
    if (!status)
        return TS_OK;
    /* the error may belong to an earlier kernel */
    TS_TRY(ts_cuda_check(cudaPeekAtLastError(), "%s", ts_op_name(f->op)));
    return ts_error_set(TS_ERR_DEVICE, "%s: cuDNN reports %s", ts_op_name(f->op),
                        ts_cudnn_text(status));
}

/** Returns the device's handle, or NULL with an error. */
static void *handle_of(const ts_frame *f)
{
    void **handle = &handles[ts_kernel_device(f).index];
    pthread_mutex_lock(&opening);
    int status = *handle ? 0 : ts_cudnn_open(handle);
    pthread_mutex_unlock(&opening);
    return check(status, f) == TS_OK ? *handle : NULL;
}

/* --------------------------------------------------------------------------------- disk ---- */

static const ts_cuda_disk disk = {"convolutions", "convolution", "the choice of an engine"};

/** Key of a file: the shape, with device 0, and all that measured times depend on. library_size and
 *  library_time, in ns, are those of the file that contains the library's kernels. */
typedef struct disk_key {
    ts_cudnn_key shape;
    int64_t cudnn, driver, tf32, sms, memory, library_size, library_time;
    char gpu[256];
} disk_key;

/** Contents of a file: the choice, and the times of the measurement in microseconds. */
typedef struct disk_choice {
    int32_t choice, index; /* index: ts_cudnn_plan.index of the engine, for CUDNN */
    int64_t workspace;     /* of this engine */
    float own, cudnn;
} disk_choice;

/** Writes the key of a shape. False if choices are not kept: TS_CUDA_CONV names the engine, or the
 *  GPU cannot be described. */
static bool disk_key_of(const ts_cudnn_key *shape, disk_key *key)
{
    struct cudaDeviceProp p;
    Dl_info library;
    struct stat file;
    int driver = 0;
    memset(key, 0, sizeof *key);
    if (ts_cuda_conv_allowed() != TS_CUDA_CONV_AUTO ||
        cudaGetDeviceProperties(&p, (int)shape->device) != cudaSuccess ||
        cudaDriverGetVersion(&driver) != cudaSuccess || !dladdr(handles, &library) ||
        stat(library.dli_fname, &file) != 0)
        return false;
    key->shape = *shape;
    key->shape.device = 0;
    key->cudnn = ts_cudnn_version();
    key->driver = driver;
    key->tf32 = ts_cuda_tf32();
    key->sms = p.multiProcessorCount;
    key->memory = (int64_t)p.totalGlobalMem;
    key->library_size = (int64_t)file.st_size;
    key->library_time = (int64_t)file.st_mtim.tv_sec * 1000000000 + file.st_mtim.tv_nsec;
    memcpy(key->gpu, p.name, sizeof key->gpu);
    return true;
}

/** Sets the choice of `a` to that of an earlier process. False if there is none, or cuDNN no longer
 *  has the engine. */
static bool recall(ts_cuda_cudnn *a, void *handle, const disk_key *key, disk_choice *kept)
{
    ts_cudnn_plan found[TS_CUDNN_PLANS] = {0};
    size_t bytes = 0;
    disk_choice *file = ts_cuda_disk_read(&disk, key, sizeof *key, &bytes);
    bool good = file && bytes == sizeof *file &&
                (file->choice == OWN || (file->choice == CUDNN && file->index >= 0));
    if (good)
        *kept = *file;
    free(file);
    if (!good || kept->choice == OWN)
        return good;
    int count = ts_cudnn_plans(&a->graph, handle, kept->index, found);
    if (count && found[0].workspace == kept->workspace) {
        a->plan = found[0];
        return true;
    }
    if (count)
        ts_cudnn_drop_plan(&found[0]);
    ts_cudnn_drop(&a->graph);
    a->graph.status = 0;
    return false;
}

/* -------------------------------------------------------------------------- measurement ---- */

enum { REPEATS = 5, BATCHES = 3 };
#define SHORT_US 200.0f /* runs that take less are measured in BATCHES batches of REPEATS */
#define LAUNCH_US 20.0f /* most time that the first kernel of a batch may wait */

/** Runs of a call, by a plan of cuDNN or, without one, by the library's kernels. */
typedef struct runs {
    ts_frame *f;
    const ts_cuda_conv_operands *operands;
    void *workspace, *handle;
    const ts_cuda_conv_own *own;
    cudaStream_t stream;
    cudaEvent_t begin, end;
} runs;

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/** Holds the stream until the host has queued all repeats, so that times exclude the host's. */
static void hold(void *flag)
{
    double begin = seconds();
    while (!atomic_load_explicit((atomic_bool *)flag, memory_order_acquire) &&
           seconds() - begin < 1)
        ;
}

static ts_status run_once(const runs *r, const ts_cudnn_plan *plan)
{
    if (!plan)
        return r->own->run(r->own->context);
    TS_TRY(check(ts_cudnn_queue(plan, r->operands, r->workspace, r->handle, r->stream), r->f));
    return r->own->then ? r->own->then(r->own->context) : TS_OK;
}

/** Sets *us to the mean device time of `repeats` runs in microseconds. */
static ts_status time_batch(const runs *r, const ts_cudnn_plan *plan, int repeats, float *us)
{
    atomic_bool queued = false;
    float ms = 0;
    cudaError_t e = ts_cuda_synchronous() ? cudaSuccess /* each launch waits */
                                          : cudaLaunchHostFunc(r->stream, hold, &queued);
    ts_status status = TS_OK;
    if (e == cudaSuccess)
        e = cudaEventRecord(r->begin, r->stream);
    for (int i = 0; i < repeats && status == TS_OK && e == cudaSuccess; i++)
        status = run_once(r, plan);
    if (e == cudaSuccess)
        e = cudaEventRecord(r->end, r->stream);
    atomic_store_explicit(&queued, true, memory_order_release);
    cudaError_t waited = cudaStreamSynchronize(r->stream); /* `queued` is no longer used */
    TS_TRY(status);
    e = e == cudaSuccess ? waited : e;
    if (e == cudaSuccess)
        e = cudaEventElapsedTime(&ms, r->begin, r->end);
    *us = ms * 1e3f / (float)repeats;
    return ts_cuda_check(e, "%s", ts_op_name(r->f->op));
}

/** Sets *us to the device time of a run in microseconds, after one unmeasured run: that of one run
 *  if it is much slower than `least`, the least time of other engines, or 0; else the mean of a
 *  batch, or the least mean of several batches of short runs. */
static ts_status measure(const runs *r, const ts_cudnn_plan *plan, float least, float *us)
{
    float more;
    TS_TRY(run_once(r, plan));
    TS_TRY(ts_cuda_check(cudaStreamSynchronize(r->stream), "%s", ts_op_name(r->f->op)));
    TS_TRY(time_batch(r, plan, 1, us));
    if (least > 0 && *us > 2 * least + LAUNCH_US)
        return TS_OK;
    TS_TRY(time_batch(r, plan, REPEATS, us));
    for (int batch = 1; batch < BATCHES && *us < SHORT_US; batch++) {
        TS_TRY(time_batch(r, plan, REPEATS, &more));
        *us = more < *us ? more : *us;
    }
    return TS_OK;
}

/** how: where the choice comes from. */
static void log_choice(const ts_cuda_cudnn *a, float own, float cudnns, const char *how)
{
    static const char *const names[] = {"y", "gradient of x", "gradient of the weight"};
    const ts_cudnn_key *k = &a->graph.key;
    if (ts_log_on("convolution"))
        ts_log_write("convolution",
                     "cuda, %s of %lldx%lldx%lldx%lldx%lld, %lld features, kernel %lldx%lldx%lld, "
                     "%lld groups%s%s: own kernels %.1f us, cuDNN %.1f us (workspace %lld); %s "
                     "chosen, %s",
                     names[k->result], (long long)k->batch, (long long)k->channels,
                     (long long)k->size[0], (long long)k->size[1], (long long)k->size[2],
                     (long long)k->features, (long long)k->kernel[0], (long long)k->kernel[1],
                     (long long)k->kernel[2], (long long)k->groups, k->bias ? ", bias" : "",
                     k->after ? ", epilogue" : "",
                     (double)own, (double)cudnns, (long long)a->plan.workspace,
                     a->choice == CUDNN ? "cuDNN" : "own", how);
}

/** Chooses as an earlier process did; or measures the candidates, keeps the fastest one in `a`, or
 *  chooses own kernels. */
static ts_status choose(ts_cuda_cudnn *a, runs *r)
{
    ts_cudnn_plan found[TS_CUDNN_PLANS] = {0}, *best = NULL;
    double begin = seconds();
    disk_key key;
    disk_choice kept;
    bool keeps = disk_key_of(&a->graph.key, &key);
    if (keeps && recall(a, r->handle, &key, &kept)) {
        atomic_store_explicit(&a->choice, kept.choice, memory_order_release);
        log_choice(a, kept.own, kept.cudnn, "from disk");
        return TS_OK;
    }
    int count = ts_cudnn_plans(&a->graph, r->handle, -1, found);
    float own = 0, least = 0, us = 0;
    ts_status status = TS_OK;
    ts_device where = ts_kernel_device(r->f);
    if (count && ts_cuda_conv_allowed() == TS_CUDA_CONV_AUTO)
        status = measure(r, NULL, 0, &own);
    for (int i = 0; i < count && status == TS_OK; i++) {
        ts_cudnn_plan *p = &found[i];
        if (p->workspace && !(r->workspace = ts_scratch_take(where, p->workspace))) {
            ts_error_clear(); /* try engines that need less memory */
            continue;
        }
        if (measure(r, p, best ? least : own, &us) == TS_OK) {
            if (!best || us < least)
                best = p, least = us;
        } else if (cudaPeekAtLastError() != cudaSuccess || ts_cuda_is_lost(where.index)) {
            status = ts_error_code();
        } else {
            ts_error_clear();
        }
        if (p->workspace)
            ts_scratch_give(where, r->workspace, p->workspace);
        r->workspace = NULL;
    }
    bool chosen = status == TS_OK && best && (own == 0 || least < 0.97f * own);
    if (chosen)
        a->plan = *best;
    for (int i = 0; i < count; i++)
        if (!chosen || &found[i] != best)
            ts_cudnn_drop_plan(&found[i]);
    if (!chosen)
        ts_cudnn_drop(&a->graph);
    a->graph.status = 0;
    if (status == TS_OK) {
        char how[64];
        snprintf(how, sizeof how, "%d engines in %.0f ms", count, 1e3 * (seconds() - begin));
        atomic_store_explicit(&a->choice, chosen ? CUDNN : OWN, memory_order_release);
        log_choice(a, own, least, how);
        kept = (disk_choice){chosen ? CUDNN : OWN, chosen ? best->index : 0,
                             chosen ? best->workspace : 0, own, least};
        if (keeps)
            ts_cuda_disk_keep(&disk, &key, sizeof key, &kept, sizeof kept);
    }
    return status;
}

ts_status ts_cuda_cudnn_run(ts_frame *f, ts_cuda_cudnn *a, const ts_cuda_conv_operands *operands,
                            const ts_cuda_conv_own *own, bool *done)
{
    ts_device where = ts_kernel_device(f);
    const ts_cuda_device *device = ts_cuda_use(where.index);
    *done = false;
    if (!device)
        return ts_error_code();
    const ts_cuda_conv_operands *o = operands;
    if (((uintptr_t)o->x | (uintptr_t)o->weight | (uintptr_t)o->y | (uintptr_t)o->bias) % 16)
        return TS_OK;
    runs r = {.f = f, .operands = o, .own = own,
              .stream = ts_cuda_stream(device, ts_kernel_stream(f))};
    bool unknown = atomic_load_explicit(&a->choice, memory_order_acquire) == UNKNOWN;
    if (unknown) {
        enum cudaStreamCaptureStatus capturing;
        TS_TRY(ts_cuda_check(cudaStreamIsCapturing(r.stream, &capturing), "%s", ts_op_name(f->op)));
        if (capturing != cudaStreamCaptureStatusNone)
            return TS_OK;
    }
    /* not before: a new handle allocates memory, which ends a capture */
    TS_TRY(ts_status_of_pointer(r.handle = handle_of(f)));
    if (unknown) {
        pthread_mutex_lock(&choosing);
        ts_status status = TS_OK;
        if (atomic_load(&a->choice) == UNKNOWN) {
            cudaError_t e = cudaEventCreate(&r.begin);
            if (e == cudaSuccess)
                e = cudaEventCreate(&r.end);
            status = ts_cuda_check(e, "%s", ts_op_name(f->op));
            if (status == TS_OK)
                status = choose(a, &r);
            if (r.begin)
                cudaEventDestroy(r.begin);
            if (r.end)
                cudaEventDestroy(r.end);
        }
        pthread_mutex_unlock(&choosing);
        TS_TRY(status);
    }
    if (atomic_load_explicit(&a->choice, memory_order_acquire) != CUDNN)
        return TS_OK;
    int64_t bytes = a->plan.workspace;
    if (bytes && !(r.workspace = ts_scratch_take(where, bytes)))
        return ts_error_code();
    ts_status status = run_once(&r, &a->plan);
    if (bytes)
        ts_scratch_give(where, r.workspace, bytes);
    TS_TRY(status);
    *done = true;
    return ts_cuda_launched(f, cudaSuccess, r.stream);
}
