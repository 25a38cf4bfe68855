/**
 * @file cudnn.c
 * cuDNN's graph interface: a convolution is a graph of operations, for which a heuristic lists
 * engines. The file opens the library at run time and declares the parts of its interface that it
 * uses; their values are equal in all versions 9.
 *
 * Only engines whose results are the same in each run are used, and none that rounds operands or
 * sums below f32 (for f32 products see TS_CUDA_TF32).
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/convolution/cudnn_graph.h"
#include "backends/cuda/product/gemm.h"
#include "tessera/program.h"

#include <dlfcn.h>
#include <glob.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------ library ---- */

typedef ts_cudnn_descriptor descriptor;
typedef ts_cudnn_graph graph;
typedef ts_cudnn_key key;

/** cudnnBackendDescriptorType_t */
enum { CONVOLUTION = 1, ENGINE = 2, ENGINE_CONFIG = 3, HEURISTIC = 4, PLAN = 5, POINTWISE = 0,
       POINTWISE_OPERATION = 13, GRAPH = 15, PACK = 16, TENSOR = 17 };
/** cudnnBackendAttributeType_t */
enum { HANDLE = 0, DATA_TYPE = 1, BOOLEAN = 2, INT64 = 3, FLOAT = 4, POINTER = 6, MODE = 7,
       HEURISTIC_MODE = 8, NUMERICAL_NOTE = 11, POINTWISE_MODE = 14, DESCRIPTOR = 15,
       BEHAVIOR_NOTE = 19 };
/** cudnnBackendAttributeName_t */
enum {
    POINTWISE_OF = 0, POINTWISE_PRECISION = 1,
    CONVOLUTION_PRECISION = 100, CONVOLUTION_MODE = 101, DILATIONS = 102, STRIDES = 103,
    PADDING_AFTER = 104, PADDING_BEFORE = 105, SPATIAL_DIMS = 106,
    HEURISTIC_KIND = 200, HEURISTIC_GRAPH = 201, HEURISTIC_RESULTS = 202,
    CONFIG_ENGINE = 300, PLAN_HANDLE = 400, PLAN_CONFIG = 401, PLAN_WORKSPACE = 402,
    OPERATION_POINTWISE = 750, OPERATION_X = 751, OPERATION_B = 752, OPERATION_Y = 753,
    GRAPH_HANDLE = 800, GRAPH_OPERATIONS = 801,
    TENSOR_ALIGNMENT = 900, TENSOR_TYPE = 901, TENSOR_SIZES = 902, TENSOR_STRIDES = 903,
    TENSOR_ID = 906, TENSOR_VIRTUAL = 907,
    PACK_IDS = 1000, PACK_POINTERS = 1001, PACK_WORKSPACE = 1003, ENGINE_INDEX = 1301,
    ENGINE_NOTES = 1303, ENGINE_BEHAVIOR = 1305,
};
/** Operations of the convolution's results: descriptor type, and the attribute alpha; beta,
 *  convolution, weight, x and y follow. */
static const struct {
    int type, alpha;
} operations[] = {[TS_CUDA_CONV_Y] = {10, 700}, [TS_CUDA_CONV_X] = {12, 706},
                  [TS_CUDA_CONV_WEIGHT] = {11, 712}};
enum { DATA_FLOAT = 0, DATA_HALF = 2, DATA_BFLOAT16 = 9 }; /* cudnnDataType_t */
enum { CROSS_CORRELATION = 1, HEURISTIC_A = 3, ADD = 0 };
/** Bits of cudnnBackendNumericalNote_t. */
enum { TENSOR_CORE = 1 << 0, ROUNDS_INPUTS = 1 << 1, ROUNDS_SUMS = 1 << 2, FFT = 1 << 3,
       NONDETERMINISTIC = 1 << 4, WINOGRAD = 15 << 5 };
enum { COMPILES = 1 << 0 }; /* bit of cudnnBackendBehaviorNote_t */

static struct {
    size_t (*version)(void);
    const char *(*text)(int status);
    int (*open)(void **handle);
    int (*stream)(void *handle, cudaStream_t stream);
    int (*create)(int type, descriptor *made);
    int (*destroy)(descriptor d);
    int (*set)(descriptor d, int name, int type, int64_t n, const void *values);
    int (*get)(descriptor d, int name, int type, int64_t most, int64_t *n, void *values);
    int (*finish)(descriptor d);
    int (*execute)(void *handle, descriptor plan, descriptor pack);
    char why[160]; /* reason why cuDNN cannot be used; empty if it can */
} cudnn;

/** Opens a file that matches `pattern`, or a library by its name if the pattern has no `*`. */
static void *open_matching(const char *pattern)
{
    if (!strchr(pattern, '*'))
        return dlopen(pattern, RTLD_NOW | RTLD_LOCAL);
    glob_t found;
    void *library = NULL;
    if (glob(pattern, 0, NULL, &found) != 0)
        return NULL;
    for (size_t i = 0; i < found.gl_pathc && !library; i++)
        library = dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_LOCAL);
    globfree(&found);
    return library;
}

#define FILE_NAME "libcudnn.so.9"
#define PACKAGE "-packages/nvidia/cudnn/lib/" FILE_NAME

/** Opens cuDNN. The library that the process has loaded comes first, then that of the active
 * environment of pip or conda, which PyTorch would load too. NULL if there is none. */
static void *open_library(void)
{
    static const struct {
        const char *variable, *pattern; /* variable: names the folder before the pattern, or NULL */
    } candidates[] = {
        {"VIRTUAL_ENV", "/lib/python3*/site" PACKAGE},
        {"CONDA_PREFIX", "/lib/" FILE_NAME},
        {"CONDA_PREFIX", "/lib/python3*/site" PACKAGE},
        {NULL, FILE_NAME},
        {NULL, "/usr/local/cuda/lib64/" FILE_NAME},
        {"HOME", "/.local/lib/python3*/site" PACKAGE},
        {NULL, "/usr/local/lib/python3*/*" PACKAGE},
    };
    void *library = dlopen(FILE_NAME, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    for (size_t i = 0; i < sizeof candidates / sizeof *candidates && !library; i++) {
        const char *folder = candidates[i].variable ? getenv(candidates[i].variable) : "";
        char path[4096];
        if (!folder || (candidates[i].variable && *folder != '/'))
            continue;
        int length = snprintf(path, sizeof path, "%s%s", folder, candidates[i].pattern);
        if (length > 0 && (size_t)length < sizeof path)
            library = open_matching(path);
    }
    return library;
}

static void load(void)
{
    const struct {
        void *address;
        const char *name;
    } functions[] = {
        {&cudnn.version, "cudnnGetVersion"},         {&cudnn.text, "cudnnGetErrorString"},
        {&cudnn.open, "cudnnCreate"},                {&cudnn.stream, "cudnnSetStream"},
        {&cudnn.create, "cudnnBackendCreateDescriptor"},
        {&cudnn.destroy, "cudnnBackendDestroyDescriptor"},
        {&cudnn.set, "cudnnBackendSetAttribute"},    {&cudnn.get, "cudnnBackendGetAttribute"},
        {&cudnn.finish, "cudnnBackendFinalize"},     {&cudnn.execute, "cudnnBackendExecute"},
    };
    const char *named = getenv("TS_CUDA_CUDNN");
    void *library = NULL;
    if (named && *named) {
        library = strcmp(named, "0") == 0 ? NULL : dlopen(named, RTLD_NOW | RTLD_LOCAL);
        if (!library)
            snprintf(cudnn.why, sizeof cudnn.why, "TS_CUDA_CUDNN=%.100s", named);
    } else {
        if (!(library = open_library()))
            snprintf(cudnn.why, sizeof cudnn.why, FILE_NAME " is not found");
    }
    for (size_t i = 0; library && !cudnn.why[0] && i < sizeof functions / sizeof *functions; i++) {
        void *function = dlsym(library, functions[i].name);
        if (!function)
            snprintf(cudnn.why, sizeof cudnn.why, "cuDNN has no function %s", functions[i].name);
        memcpy(functions[i].address, &function, sizeof function);
    }
    if (!cudnn.why[0] && cudnn.version() / 10000 != 9)
        snprintf(cudnn.why, sizeof cudnn.why, "expected cuDNN 9, got version %zu", cudnn.version());
    if (ts_log_on("convolution")) {
        if (cudnn.why[0])
            ts_log_write("convolution", "cuda, no cuDNN: %s", cudnn.why);
        else
            ts_log_write("convolution", "cuda, cuDNN %zu", cudnn.version());
    }
}

bool ts_cudnn_is_available(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    return !cudnn.why[0];
}

/* ------------------------------------------------------------------------------- graphs ---- */

enum { X, WEIGHT, Y, BIAS, SUM, TENSORS }; /* ids of tensors; SUM: the result before the bias */
enum { RESULTS = 16 }; /* engines that the heuristic is asked for */
#define MIB ((int64_t)1 << 20)

static descriptor create(graph *a, int type)
{
    descriptor d = NULL;
    if (!a->status && !(a->status = cudnn.create(type, &d)))
        a->made[a->nmade++] = d;
    return d;
}
static void set(graph *a, descriptor d, int name, int type, int64_t n, const void *values)
{
    if (!a->status)
        a->status = cudnn.set(d, name, type, n, values);
}
static descriptor finished(graph *a, descriptor d)
{
    if (!a->status)
        a->status = cudnn.finish(d);
    return d;
}
void ts_cudnn_drop_plan(ts_cudnn_plan *p)
{
    cudnn.destroy(p->plan);
    cudnn.destroy(p->config);
}
void ts_cudnn_drop(graph *a)
{
    while (a->nmade)
        cudnn.destroy(a->made[--a->nmade]);
}

static int type_of(int64_t dtype)
{
    return dtype == TS_BF16 ? DATA_BFLOAT16 : dtype == TS_F16 ? DATA_HALF : DATA_FLOAT;
}

/** Sizes (first, second, spatial sizes); a call with one spatial dim has two. */
static descriptor tensor(graph *a, int64_t id, int64_t first, int64_t second,
                         const int64_t *size)
{
    const int64_t ones[] = {1, 1, 1};
    const key *k = &a->key;
    int n = (int)(k->dims < 2 ? 2 : k->dims), type = id == SUM ? DATA_FLOAT : type_of(k->dtype);
    int64_t sizes[5] = {first, second}, strides[5], aligned = 16, stride = second;
    for (int d = n - 1; d >= 0; d--) {
        sizes[2 + d] = (size ? size : ones)[3 - n + d];
        strides[2 + d] = stride;
        stride *= sizes[2 + d];
    }
    strides[0] = stride;
    strides[1] = 1;
    bool is_virtual = id == SUM;
    descriptor t = create(a, TENSOR);
    set(a, t, TENSOR_TYPE, DATA_TYPE, 1, &type);
    set(a, t, TENSOR_SIZES, INT64, n + 2, sizes);
    set(a, t, TENSOR_STRIDES, INT64, n + 2, strides);
    set(a, t, TENSOR_ID, INT64, 1, &id);
    set(a, t, TENSOR_ALIGNMENT, INT64, 1, &aligned);
    set(a, t, TENSOR_VIRTUAL, BOOLEAN, 1, &is_virtual);
    return finished(a, t);
}

/** Number of zeros after x's last element along dim d with which a convolution computes exactly
 *  k->y_size[d] positions; -1 if there is no such number. */
static int64_t padding_after(const key *k, int d)
{
    int64_t end = (k->y_size[d] - 1) * k->stride[d] + k->dilation[d] * (k->kernel[d] - 1) + 1,
            least = end - k->size[d] - k->padding[d]; /* up to stride - 1 more add no position */
    if (k->padding[d] >= least && k->padding[d] < least + k->stride[d])
        return k->padding[d];
    return least >= 0 ? least : least + k->stride[d] > 0 ? 0 : -1;
}

static descriptor convolution(graph *a)
{
    const key *k = &a->key;
    int64_t n = k->dims < 2 ? 2 : k->dims, after[3];
    int precision = DATA_FLOAT, mode = CROSS_CORRELATION;
    for (int d = 0; d < 3; d++)
        after[d] = padding_after(k, d);
    descriptor c = create(a, CONVOLUTION);
    set(a, c, CONVOLUTION_PRECISION, DATA_TYPE, 1, &precision);
    set(a, c, CONVOLUTION_MODE, MODE, 1, &mode);
    set(a, c, SPATIAL_DIMS, INT64, 1, &n);
    set(a, c, DILATIONS, INT64, n, k->dilation + 3 - n);
    set(a, c, STRIDES, INT64, n, k->stride + 3 - n);
    set(a, c, PADDING_BEFORE, INT64, n, k->padding + 3 - n);
    set(a, c, PADDING_AFTER, INT64, n, after + 3 - n);
    return finished(a, c);
}

static descriptor add(graph *a, descriptor x, descriptor bias, descriptor y)
{
    int precision = DATA_FLOAT, mode = ADD;
    descriptor what = create(a, POINTWISE);
    set(a, what, POINTWISE_OF, POINTWISE_MODE, 1, &mode);
    set(a, what, POINTWISE_PRECISION, DATA_TYPE, 1, &precision);
    finished(a, what);
    descriptor op = create(a, POINTWISE_OPERATION);
    set(a, op, OPERATION_POINTWISE, DESCRIPTOR, 1, &what);
    set(a, op, OPERATION_X, DESCRIPTOR, 1, &x);
    set(a, op, OPERATION_B, DESCRIPTOR, 1, &bias);
    set(a, op, OPERATION_Y, DESCRIPTOR, 1, &y);
    return finished(a, op);
}

static descriptor graph_of(graph *a, void *handle)
{
    const key *k = &a->key;
    bool to_x = k->result == TS_CUDA_CONV_X;
    descriptor operands[] = {
        tensor(a, WEIGHT, k->features, k->channels / k->groups, k->kernel),
        tensor(a, X, k->batch, k->channels, k->size),
        tensor(a, Y, k->batch, k->features, k->y_size)};
    int64_t channels = to_x ? k->channels : k->features, count = 1;
    descriptor *result = &operands[to_x ? 1 : 2], to = *result, all[2];
    if (k->bias)
        *result = tensor(a, SUM, k->batch, channels, to_x ? k->size : k->y_size);
    descriptor how = convolution(a), op = create(a, operations[k->result].type);
    int attribute = operations[k->result].alpha;
    set(a, op, attribute, FLOAT, 1, &(float){1});
    set(a, op, attribute + 1, FLOAT, 1, &(float){0});
    set(a, op, attribute + 2, DESCRIPTOR, 1, &how);
    for (int i = 0; i < 3; i++)
        set(a, op, attribute + 3 + i, DESCRIPTOR, 1, &operands[i]);
    all[0] = finished(a, op);
    if (k->bias)
        all[count++] = add(a, *result, tensor(a, BIAS, 1, channels, NULL), to);
    descriptor g = create(a, GRAPH);
    set(a, g, GRAPH_HANDLE, HANDLE, 1, &handle);
    set(a, g, GRAPH_OPERATIONS, DESCRIPTOR, count, all);
    return finished(a, g);
}

/** True if an engine has none of the notes in `banned`, a bit per note. */
static bool lacks(descriptor engine, int name, int type, int banned)
{
    int notes[32];
    int64_t n = 0;
    if (cudnn.get(engine, name, type, 32, &n, notes))
        return false;
    for (int i = 0; i < n && i < 32; i++)
        if (notes[i] < 31 && banned >> notes[i] & 1)
            return false;
    return true;
}

/* Some kernels of this engine for the gradient of x never end, for example for bf16 images of two
 * channels and 38 x 43 pixels, 16 features and 2 x 3 taps. */
enum { ENDLESS_OF_X = 73 };

/** True if the engine is ENDLESS_OF_X. */
static bool may_not_end(const key *k, descriptor engine)
{
    int64_t index = 0, n = 0;
    return k->result == TS_CUDA_CONV_X &&
           (cudnn.get(engine, ENGINE_INDEX, INT64, 1, &n, &index) || index == ENDLESS_OF_X);
}

/** True if an engine's results are the same in each run and as exact as the dtype's promise, all
 *  its kernels end, and it needs no compiler, which takes seconds. */
static bool is_admitted(const key *k, descriptor config)
{
    descriptor engine = NULL;
    int banned = ROUNDS_INPUTS | ROUNDS_SUMS | FFT | NONDETERMINISTIC | WINOGRAD;
    int64_t n = 0;
    if (k->dtype == TS_F32)
        banned = ts_cuda_tf32() ? banned & ~ROUNDS_INPUTS : banned | TENSOR_CORE;
    if (cudnn.create(ENGINE, &engine))
        return false;
    bool good = !cudnn.get(config, CONFIG_ENGINE, DESCRIPTOR, 1, &n, &engine) &&
                !may_not_end(k, engine) &&
                lacks(engine, ENGINE_NOTES, NUMERICAL_NOTE, banned) &&
                lacks(engine, ENGINE_BEHAVIOR, BEHAVIOR_NOTE, COMPILES);
    cudnn.destroy(engine);
    return good;
}

/** Maximum workspace of an engine in bytes. Engines for groups and for few channels copy operands,
 *  so it grows with them. */
static int64_t most_workspace(const key *k)
{
    int64_t x = k->batch * k->channels, y = k->batch * k->features,
            weight = k->features * (k->channels / k->groups);
    for (int d = 0; d < 3; d++)
        x *= k->size[d], y *= k->y_size[d], weight *= k->kernel[d];
    int64_t copies = (x + y + weight) * (k->dtype == TS_F32 ? 4 : 2) + 64 * MIB;
    return copies > 256 * MIB ? copies : 256 * MIB;
}

/** Makes the plan of an engine; NULL if the engine cannot run the graph or needs a workspace of
 *  more than `most` bytes. */
static descriptor plan_of(void *handle, descriptor config, int64_t most, int64_t *workspace)
{
    descriptor p = NULL;
    int64_t n = 0;
    if (cudnn.create(PLAN, &p))
        return NULL;
    if (!cudnn.set(p, PLAN_HANDLE, HANDLE, 1, &handle) &&
        !cudnn.set(p, PLAN_CONFIG, DESCRIPTOR, 1, &config) && !cudnn.finish(p) &&
        !cudnn.get(p, PLAN_WORKSPACE, INT64, 1, &n, workspace) && *workspace <= most)
        return p;
    cudnn.destroy(p);
    return NULL;
}

int ts_cudnn_plans(graph *a, void *handle, int only, ts_cudnn_plan found[TS_CUDNN_PLANS])
{
    descriptor configs[RESULTS] = {NULL}, g = graph_of(a, handle), h = create(a, HEURISTIC);
    int mode = HEURISTIC_A, count = 0;
    int64_t n = 0, most = most_workspace(&a->key);
    set(a, h, HEURISTIC_GRAPH, DESCRIPTOR, 1, &g);
    set(a, h, HEURISTIC_KIND, HEURISTIC_MODE, 1, &mode);
    finished(a, h);
    for (int i = 0; i < RESULTS && !a->status; i++)
        a->status = cudnn.create(ENGINE_CONFIG, &configs[i]);
    if (!a->status)
        a->status = cudnn.get(h, HEURISTIC_RESULTS, DESCRIPTOR, RESULTS, &n, configs);
    for (int i = 0; i < RESULTS && configs[i]; i++) {
        ts_cudnn_plan *c = &found[count];
        if (!a->status && i < n && (only < 0 || i == only) && count < TS_CUDNN_PLANS &&
            is_admitted(&a->key, configs[i]) &&
            (c->plan = plan_of(handle, configs[i], most, &c->workspace))) {
            c->config = configs[i];
            c->index = i;
            count++;
        } else {
            cudnn.destroy(configs[i]);
        }
    }
    return count;
}

bool ts_cudnn_is_supported(const key *k)
{
    int64_t x = k->batch * k->channels, y = k->batch * k->features,
            w = k->features * (k->channels / k->groups), most = INT32_MAX;
    for (int d = 0; d < 3; d++) {
        if (k->size[d] < 1 || k->y_size[d] < 1 || k->kernel[d] < 1 || x < 1 || y < 1 || w < 1 ||
            k->size[d] > most / x || k->y_size[d] > most / y || k->kernel[d] > most / w ||
            padding_after(k, d) < 0)
            return false;
        x *= k->size[d];
        y *= k->y_size[d];
        w *= k->kernel[d];
    }
    return true;
}

/* ---------------------------------------------------------------------------- execution ---- */

/* held from the call that sets a handle's stream until the plan is queued */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

int64_t ts_cudnn_version(void) { return (int64_t)cudnn.version(); }
const char *ts_cudnn_text(int status) { return cudnn.text(status); }
int ts_cudnn_open(void **handle) { return cudnn.open(handle); }

int ts_cudnn_queue(const ts_cudnn_plan *plan, const ts_cuda_conv_operands *o, void *workspace,
                   void *handle, cudaStream_t stream)
{
    const int64_t ids[] = {X, WEIGHT, Y, BIAS};
    void *const pointers[] = {o->x, o->weight, o->y, o->bias};
    int64_t n = o->bias ? 4 : 3;
    descriptor pack = NULL;
    int status = cudnn.create(PACK, &pack);
    if (!status)
        status = cudnn.set(pack, PACK_IDS, INT64, n, ids);
    if (!status)
        status = cudnn.set(pack, PACK_POINTERS, POINTER, n, pointers);
    if (!status)
        status = cudnn.set(pack, PACK_WORKSPACE, POINTER, 1, &workspace);
    if (!status)
        status = cudnn.finish(pack);
    if (!status) {
        pthread_mutex_lock(&lock);
        status = cudnn.stream(handle, stream);
        if (!status)
            status = cudnn.execute(handle, plan->plan, pack);
        pthread_mutex_unlock(&lock);
    }
    if (pack)
        cudnn.destroy(pack);
    return status;
}
