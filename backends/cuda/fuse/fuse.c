/**
 * @file fuse.c  Fused groups: describes the calls, lays out the group's kernel, caches compiled
 * kernels, and launches them.
 *
 * The key of a kernel is a list of words that determines its source: layout class, dtypes,
 * functors, data flow. Sizes, strides, addresses and numbers are parameters, so a change of sizes
 * or of a learning rate needs no compilation. Kernels are cached until the process ends.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/runtime/current.h"
#include "backends/cuda/product/epilogue.h"
#include "backends/cuda/fuse/fuse.h"
#include "backends/cuda/runtime/hash.h"
#include "backends/cuda/runtime/launch.h"

#include <cuda.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ------------------------------------------------------------------------- description ---- */

enum { TENSORS = 10 /* maximum number of tensors of a call */ };

/** The description that the thread requests from a kernel. */
typedef struct note {
    ts_cuda_formula *formula;
    int given; /* number of loops that the kernel has described */
} note;
static _Thread_local note *asked;

bool ts_cuda_describing(void) { return asked != NULL; }

void ts_cuda_describe(const ts_cuda_formula *formula)
{
    if (!asked->given++)
        *asked->formula = *formula;
}

/** Runs a kernel in describing mode, without a device. False if the kernel is not a single loop of
 *  a functor that NVRTC can compile. */
static bool describe(ts_frame *f, ts_kernel kernel, ts_cuda_formula *formula)
{
    ts_cuda_device *device = ts_cuda_current;
    note n = {.formula = formula};
    if (!ts_cuda_describes(kernel))
        return false;
    asked = &n;
    ts_cuda_current = NULL; /* makes ts_cuda_use() check ts_cuda_describing() */
    ts_status status = kernel(f);
    ts_cuda_current = device;
    asked = NULL;
    if (status != TS_OK || n.given != 1)
        return false;
    const char *functor = strstr(formula->names, "X = ");
    return functor && (strncmp(functor + 5, "fn::", 4) == 0 ||
                       strncmp(functor + 5, "ts::fn::", 8) == 0);
}

/* ------------------------------------------------------------------------------ layout ---- */

int ts_cuda_group_value_of(ts_cuda_group *g, const ts_tensor *t)
{
    for (int i = 0; i < g->nvalues; i++)
        if (g->values[i].tensor == t)
            return i;
    ts_dtype dtype = ts_dtype_of(t);
    g->values[g->nvalues] = (ts_cuda_group_value){.tensor = t, .data = ts_kernel_data(t),
                                                  .dtype = (uint8_t)dtype,
                                                  .item = (uint8_t)ts_dtype_size(dtype)};
    return g->nvalues++;
}

bool ts_cuda_group_gather(ts_cuda_group *g, const ts_group_call *calls, int count)
{
    for (int c = 0; c < count; c++) {
        ts_cuda_group_call *call = &g->calls[g->ncalls++];
        ts_cuda_formula *f = &call->formula;
        bool summed;
        int dims = ts_kernel_row_dims(calls[c].frame, &summed);
        if (!dims && ts_cuda_is_by_rows(calls[c].kernel)) {
            if (!ts_cuda_group_fold(g, call, calls[c].frame))
                return false;
            continue;
        }
        if (dims) {
            if (!ts_cuda_is_by_rows(calls[c].kernel) ||
                !ts_cuda_group_by_rows(g, call, calls[c].frame, dims, summed))
                return false;
            continue;
        }
        if (!describe(calls[c].frame, calls[c].kernel, f))
            return false;
        for (int k = 1; k < f->operands; k++) {
            call->value[k] = -1;
            if (f->host[k])
                continue;
            const ts_value *v = &calls[c].frame->args[f->arg[k]];
            call->value[k] = (int16_t)ts_cuda_group_value_of(g, v->t);
            ts_cuda_group_value *operand = &g->values[call->value[k]];
            operand->read |= operand->data && !operand->written;
        }
        call->value[0] = (int16_t)ts_cuda_group_value_of(g, calls[c].frame->rets[0].t);
        ts_cuda_group_value *result = &g->values[call->value[0]];
        result->written = result->data != NULL;
        g->draws |= f->draws;
        call->compute = (uint8_t)ts_kernel_dtype(calls[c].frame);
        if (!ts_cuda_group_casts(call, g->values))
            return false;
    }
    return !g->folds || (!g->rows && ts_cuda_group_sort_folds(g));
}

bool ts_cuda_group_takes(void *state, ts_frame *f, ts_kernel kernel)
{
    (void)state;
    ts_cuda_group_call call = {0};
    ts_cuda_group_value values[TENSORS];
    const char *why;
    ts_cuda_group g = {.calls = &call, .values = values};
    return ts_cuda_group_gather(&g, &(ts_group_call){f, kernel}, 1) && ts_cuda_nvrtc(&why);
}

/** Byte strides of a tensor along the dims of a result of `ndim` dims, outermost first. */
static void strides_in(const ts_cuda_group_value *v, int ndim, int64_t *strides)
{
    int shift = ndim - ts_ndim(v->tensor);
    for (int d = 0; d < ndim; d++)
        strides[d] = d < shift || ts_sizes(v->tensor)[d - shift] == 1
                         ? 0
                         : ts_strides(v->tensor)[d - shift] * v->item;
}

/** Sets `order` to the dims by decreasing stride of a tensor, so that memory is read and written in
 *  order. */
static void order_dims(const int64_t *strides, int ndim, int *order)
{
    for (int d = 0; d < ndim; d++) {
        int at = d;
        for (; at > 0 && strides[order[at - 1]] < strides[d] && strides[d]; at--)
            order[at] = order[at - 1];
        order[at] = d;
    }
}

/** Merges dims that are contiguous in all tensors in memory, and returns the remaining dims. */
static void collapse(ts_cuda_group *g, const ts_tensor *result)
{
    int ndim = ts_ndim(result), order[TS_MAX_DIMS], n = 0;
    int64_t steps[TS_MAX_DIMS];
    const ts_cuda_group_value *first = NULL;
    for (int i = 0; i < g->nvalues; i++)
        if (g->values[i].written && !first)
            first = &g->values[i];
    for (int d = 0; d < ndim; d++)
        order[d] = d;
    /* random words belong to elements by the order of the result */
    if (first && !g->draws && !g->folds) {
        strides_in(first, ndim, steps);
        order_dims(steps, ndim, order);
    }
    for (int d = ndim - 1; d >= 0; d--) {
        int64_t size = ts_sizes(result)[order[d]];
        bool merge = n > 0;
        if (size == 1)
            continue;
        for (int i = 0; i < g->nvalues && merge; i++) {
            ts_cuda_group_value *v = &g->values[i];
            strides_in(v, ndim, steps);
            merge = !v->data || (g->folds && !v->read && !v->written) ||
                    steps[order[d]] == v->strides[n - 1] * g->sizes[n - 1];
        }
        if (merge) {
            g->sizes[n - 1] *= size;
            continue;
        }
        g->sizes[n] = size;
        for (int i = 0; i < g->nvalues; i++) {
            strides_in(&g->values[i], ndim, steps);
            g->values[i].strides[n] = steps[order[d]];
        }
        n++;
    }
    if (!n) /* one element */
        g->sizes[n++] = 1;
    g->ndim = n;
}

/** Elements per access: 16 bytes of the widest contiguous tensor if all tensors can be accessed so,
 *  else 1. */
static int width_of(const ts_cuda_group *g)
{
    int widest = 1;
    for (int i = 0; i < g->nvalues; i++)
        if (g->values[i].way == TS_CUDA_ARRAY && g->values[i].item > widest)
            widest = g->values[i].item;
    int width = 16 / widest;
    if (g->sizes[0] < width || (g->ndim > 1 && g->sizes[0] % width))
        return 1;
    for (int i = 0; i < g->nvalues; i++) {
        const ts_cuda_group_value *v = &g->values[i];
        int64_t bytes = (int64_t)v->item * width;
        if (v->way == TS_CUDA_STRIDED)
            return 1;
        if (v->way != TS_CUDA_ARRAY)
            continue;
        if ((uintptr_t)v->data % (uint64_t)bytes)
            return 1;
        for (int d = 1; d < g->ndim; d++)
            if (v->strides[d] % bytes)
                return 1;
    }
    return width;
}

static bool lay_out(ts_cuda_group *g, const ts_tensor *result)
{
    if (g->rows)
        return ts_cuda_group_lay_rows(g);
    if (g->folds)
        result = g->space;
    g->threads = TS_CUDA_GROUP_THREADS;
    g->resident = 1;
    g->numel = ts_numel(result);
    collapse(g, result);
    for (int i = 0; i < g->nvalues; i++) {
        ts_cuda_group_value *v = &g->values[i];
        v->way = !v->data                     ? TS_CUDA_INSIDE
                 : v->strides[0] == 0         ? TS_CUDA_ONE
                 : v->strides[0] == v->item   ? TS_CUDA_ARRAY
                                              : TS_CUDA_STRIDED;
        if (v->written && v->way == TS_CUDA_ONE) /* of one element */
            v->way = TS_CUDA_STRIDED;
    }
    if (g->folds) {
        ts_cuda_group_lay_folds(g);
    } else {
        g->width = width_of(g);
        g->unroll = g->width > 1 ? 1 : 4;
    }
    for (int i = 0; i < g->nvalues; i++)
        g->values[i].strides[0] *= g->width;
    g->tail = g->numel % g->width != 0;
    g->large = g->numel / g->width >= ((int64_t)1 << 31) - (g->folds ? 1 << 20 : 4096);
    if (g->folds)
        return g->blocks <= INT32_MAX;
    int64_t share = (int64_t)TS_CUDA_GROUP_THREADS * g->unroll;
    g->blocks = ((g->numel + g->width - 1) / g->width + share - 1) / share;
    return true;
}

/* ----------------------------------------------------------------------------- kernels ---- */

/** A compiled kernel, or the record of a kernel that could not be compiled or loaded. */
typedef struct kernel {
    uint64_t hash;
    CUfunction functions[2]; /* `group`, and `merge` of groups with folds. [0] NULL: `why` says the
                                reason */
    const char *why;     /* NVRTC's message */
    int nwords;
    uint64_t words[];
} kernel;

typedef CUresult (*load_fn)(CUmodule *module, const void *image);
typedef CUresult (*find_fn)(CUfunction *function, CUmodule module, const char *name);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static kernel **kernels; /* open addressing */
static int nkernels, capacity;

static kernel **slot_of(const uint64_t *words, int n, uint64_t hash)
{
    int at = (int)(hash >> 40) & (capacity - 1);
    for (kernel *k; (k = kernels[at]); at = (at + 1) & (capacity - 1))
        if (k->hash == hash && k->nwords == n && memcmp(k->words, words, (size_t)n * 8) == 0)
            break;
    return &kernels[at];
}

static bool grow(void)
{
    if (2 * nkernels < capacity)
        return true;
    kernel **before = kernels,
           **larger = calloc(capacity ? 2 * (size_t)capacity : 64, sizeof *larger);
    int n = capacity;
    if (!larger)
        return false;
    kernels = larger;
    capacity = n ? 2 * n : 64;
    for (int i = 0; i < n; i++)
        if (before[i])
            *slot_of(before[i]->words, before[i]->nwords, before[i]->hash) = before[i];
    free(before);
    return true;
}

/** Loads machine code into the current device. This may happen during a capture, if a group's
 *  tensors have moved to other alignments and need another kernel. */
static ts_status load(const void *image, CUfunction functions[2], bool merges)
{
    enum cudaDriverEntryPointQueryResult result;
    void *loads = NULL, *finds = NULL;
    CUmodule module;
    cudaError_t error = cudaGetDriverEntryPointByVersion("cuModuleLoadData", &loads, 12000,
                                                         cudaEnableDefault, &result);
    if (error == cudaSuccess)
        error = cudaGetDriverEntryPointByVersion("cuModuleGetFunction", &finds, 12000,
                                                 cudaEnableDefault, &result);
    if (error == cudaSuccess && (!loads || !finds))
        error = cudaErrorNotSupported;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    if (error == cudaSuccess)
        error = cudaThreadExchangeStreamCaptureMode(&mode);
    if (error == cudaSuccess) {
        error = (cudaError_t)((load_fn)loads)(&module, image);
        if (error == cudaSuccess)
            error = (cudaError_t)((find_fn)finds)(&functions[0], module, "group");
        if (error == cudaSuccess && merges)
            error = (cudaError_t)((find_fn)finds)(&functions[1], module, "merge");
        cudaThreadExchangeStreamCaptureMode(&mode);
    }
    switch ((int)error) { /* the driver or the device does not support the code */
    case cudaErrorInvalidKernelImage:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidPtx:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorSymbolNotFound:
    case cudaErrorNotSupported:
        return ts_error_set(TS_ERR_UNSUPPORTED, "the driver does not load the kernel: %s",
                            cudaGetErrorString(error));
    default: return ts_cuda_check(error, "kernel of a group");
    }
}

/** Compiles and loads a group's kernel. */
static ts_status make(const ts_cuda_group *g, CUfunction functions[2], ts_group_report *report)
{
    struct timespec begin, end;
    int major = 0, minor = 0, device = ts_cuda_current->index;
    ts_cuda_compiled compiled = {0};
    clock_gettime(CLOCK_MONOTONIC, &begin);
    TS_TRY(ts_cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                         "cuda:%d", device));
    TS_TRY(ts_cuda_check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
                         "cuda:%d", device));
    char *source = ts_cuda_group_source(g);
    if (!source)
        return ts_error_set(TS_ERR_MEMORY, "no memory for the source of a group");
    ts_status status = ts_cuda_compile(source, 10 * major + minor, &compiled);
    free(source);
    if (status == TS_OK)
        status = load(compiled.image, functions, g->folds && !g->direct);
    free(compiled.image);
    clock_gettime(CLOCK_MONOTONIC, &end);
    report->from_disk = compiled.from_disk;
    report->compile_ms = (double)(end.tv_sec - begin.tv_sec) * 1e3 +
                         (double)(end.tv_nsec - begin.tv_nsec) * 1e-6;
    return status;
}

ts_status ts_cuda_group_kernel(const ts_cuda_group *g, const uint64_t *words, int n,
                               void *functions[2], ts_group_report *report)
{
    uint64_t hash = ts_cuda_hash(words, (size_t)n);
    ts_status status = TS_OK;
    pthread_mutex_lock(&lock);
    kernel *k = capacity ? *slot_of(words, n, hash) : NULL;
    if (!k && grow() && (k = malloc(sizeof *k + (size_t)n * sizeof *words))) {
        *k = (kernel){.hash = hash, .nwords = n};
        memcpy(k->words, words, (size_t)n * sizeof *words);
        status = make(g, k->functions, report);
        if (status == TS_ERR_UNSUPPORTED)
            k->why = strdup(ts_error_message());
        if (status == TS_OK || k->why) {
            *slot_of(words, n, hash) = k;
            nkernels++;
        } else {
            free(k);
        }
    } else if (!k) {
        status = ts_error_set(TS_ERR_MEMORY, "no memory for the kernel of a group");
    } else if (!k->functions[0]) {
        status = ts_error_set(TS_ERR_UNSUPPORTED, "%s", k->why);
    }
    for (int i = 0; i < 2 && status == TS_OK; i++)
        functions[i] = k->functions[i];
    pthread_mutex_unlock(&lock);
    return status;
}

/* -------------------------------------------------------------------------------- launch ---- */

/** Launches the group's kernel, and the kernel `merge` of a group with folds. */
static ts_status launch(const ts_cuda_group *g, void *const functions[2], const ts_frame *f,
                        void **arguments, cudaStream_t stream)
{
    ts_cuda_group_space space = {0};
    int n = 0;
    for (int d = 0; d < g->ndim; d++) {
        int64_t size = d || g->rows ? g->sizes[d] : g->sizes[0] / g->width;
        space.sizes[d] = (uint64_t)size;
        if (!g->large)
            space.by[d] = ts_cuda_divisor_of((uint32_t)size);
    }
    if (g->rows) {
        space.accesses = (uint64_t)(g->numel / g->columns);
        space.tail = (uint32_t)g->columns;
    } else {
        space.accesses = (uint64_t)((g->numel + g->width - 1) / g->width);
        space.tail = (uint32_t)(g->numel % g->width); /* not 0 only if the space has one dim */
    }
    arguments[n++] = &space;
    if (g->folds)
        arguments[n++] = (void *)&g->division;
    for (int i = 0; i < g->nvalues; i++)
        if (g->values[i].way != TS_CUDA_INSIDE) /* `data` begins a group_tensor */
            arguments[n++] = g->values[i].sums ? (void *)&g->values[i].parts
                                               : (void *)&g->values[i].data;
    for (int c = 0; c < g->ncalls; c++) {
        ts_cuda_formula *of = &g->calls[c].formula;
        for (int k = 1; k < of->operands; k++)
            if (of->host[k])
                arguments[n++] = &of->number[k];
        if (of->bytes)
            arguments[n++] = of->members;
        if (g->calls[c].fold) {
            arguments[n++] = &g->calls[c].factor;
            arguments[n++] = &g->calls[c].parts;
        }
    }
    cudaError_t e = ts_cuda_launch_function(functions[0], (unsigned)g->blocks,
                                            (unsigned)g->threads, arguments, stream);
    if (e == cudaSuccess && functions[1]) {
        uint64_t each = g->division.merges;
        e = ts_cuda_launch_function(functions[1],
                                    (unsigned)((g->division.results + each - 1) / each),
                                    (unsigned)g->threads, arguments, stream);
    }
    return ts_cuda_launched(f, e, stream);
}

/** Launches a group with folds whose states need memory. */
static ts_status launch_with_parts(const ts_cuda_group *g, void *const functions[2],
                                   const ts_frame *f, void **arguments, ts_device where,
                                   cudaStream_t stream, ts_group_report *report)
{
    int64_t each = (ts_cuda_group_parts(g) + 255) / 256 * 256, folds = 0;
    for (int c = 0; c < g->ncalls; c++)
        folds += g->calls[c].fold != NULL;
    char *parts = ts_scratch_take(where, folds * each), *next = parts;
    if (!parts)
        return ts_error_code();
    for (int c = 0; c < g->ncalls; c++)
        if (g->calls[c].fold) {
            g->calls[c].parts = next;
            next += each;
        }
    ts_status status = launch(g, functions, f, arguments, stream);
    report->launches = 2;
    ts_scratch_give(where, parts, folds * each);
    return status;
}

/** Launches a group that has sums over rows, and adds the partial sums. */
static ts_status launch_with_sums(const ts_cuda_group *g, void *const functions[2],
                                  const ts_frame *f,
                                  void **arguments, ts_device where, cudaStream_t stream,
                                  ts_group_report *report)
{
    ts_cuda_sums sums = {.lines = g->lines, .columns = g->columns};
    int64_t each = g->lines * g->columns, bytes;
    for (int i = 0; i < g->nvalues; i++) {
        const ts_cuda_group_value *v = &g->values[i];
        if (!v->sums || !v->data)
            continue;
        if (sums.count == (int)(sizeof sums.parts / sizeof *sums.parts))
            return ts_error_set(TS_ERR_UNSUPPORTED, "a group has more than %d sums over rows",
                                sums.count);
        sums.sums[sums.count] = v->data;
        sums.dtypes[sums.count++] = v->dtype;
    }
    bytes = sums.count * each * (int64_t)sizeof(float);
    float *parts = ts_scratch_take(where, bytes);
    if (!parts)
        return ts_error_code();
    for (int i = 0, k = 0; i < g->nvalues; i++)
        if (g->values[i].sums && g->values[i].data) {
            sums.parts[k] = parts + k * each;
            g->values[i].parts = parts + k * each;
            k++;
        }
    ts_status status = launch(g, functions, f, arguments, stream);
    if (status == TS_OK)
        status = ts_cuda_launched(f, ts_cuda_add_lines(&sums, stream), stream);
    report->launches = 2;
    ts_scratch_give(where, parts, bytes);
    return status;
}

ts_cuda_group_room ts_cuda_group_room_for(int count)
{
    size_t n = (size_t)count, operands = TENSORS;
    return (ts_cuda_group_room){.calls = n * sizeof(ts_cuda_group_call),
                                .values = n * operands * sizeof(ts_cuda_group_value),
                                .words = (2 + n * operands + 4 * n) * sizeof(uint64_t),
                                .arguments = (2 + n * (2 * operands + 3)) * sizeof(void *)};
}

/** Describes a group and lays it out in `block`, host scratch memory from ts_scratch_take(). */
static ts_status prepare(ts_cuda_group *g, char *block, const ts_group_call *calls, int count)
{
    ts_cuda_group_room bytes = ts_cuda_group_room_for(count);
    memset(block, 0, bytes.calls + bytes.values);
    *g = (ts_cuda_group){.calls = (ts_cuda_group_call *)block,
                         .values = (ts_cuda_group_value *)(block + bytes.calls)};
    if (!ts_cuda_group_gather(g, calls, count))
        return ts_error_set(TS_ERR_UNSUPPORTED, "the kernel of a group cannot compute %s",
                            ts_op_name(calls[g->ncalls - 1].frame->op));
    if (!lay_out(g, calls[0].frame->rets[0].t))
        return ts_error_set(TS_ERR_UNSUPPORTED, "rows of %lld elements do not fit the registers",
                            (long long)g->columns);
    return TS_OK;
}

ts_status ts_cuda_group_run(void *state, int device, const ts_group_call *calls, int count,
                            ts_stream *stream, ts_group_report *report)
{
    (void)state;
    ts_cuda_device *d = ts_cuda_use(device);
    ts_cuda_group g;
    void *functions[2] = {0};
    ts_cuda_group_room bytes = ts_cuda_group_room_for(count);
    int64_t all = (int64_t)(bytes.calls + bytes.values + bytes.words + bytes.arguments);
    *report = (ts_group_report){.launches = 1};
    if (d && ts_cuda_product_of(calls[0].kernel))
        return ts_cuda_product_run(calls, count);
    char *block = d ? ts_scratch_take(TS_DEVICE_CPU, all) : NULL;
    if (!block)
        return ts_error_code();
    uint64_t *words = (uint64_t *)(block + bytes.calls + bytes.values);
    ts_status status = prepare(&g, block, calls, count);
    if (status == TS_OK && g.numel)
        status = ts_cuda_group_kernel(&g, words, ts_cuda_group_words(&g, words), functions,
                                      report);
    void **arguments = (void **)((char *)words + bytes.words);
    ts_device where = {calls[0].frame->key, (uint8_t)device};
    if (status == TS_OK && g.lines)
        status = launch_with_sums(&g, functions, calls[0].frame, arguments, where,
                                  ts_cuda_stream(d, stream), report);
    else if (status == TS_OK && g.folds && !g.direct)
        status = launch_with_parts(&g, functions, calls[0].frame, arguments, where,
                                   ts_cuda_stream(d, stream), report);
    else if (status == TS_OK && g.numel)
        status = launch(&g, functions, calls[0].frame, arguments, ts_cuda_stream(d, stream));
    ts_scratch_give(TS_DEVICE_CPU, block, all);
    return status;
}

ts_status ts_cuda_group_compile(const ts_group_call *calls, int count, int capability,
                                ts_cuda_compiled *compiled)
{
    ts_cuda_group g;
    ts_cuda_group_room bytes = ts_cuda_group_room_for(count);
    int64_t all = (int64_t)(bytes.calls + bytes.values);
    char *block = ts_scratch_take(TS_DEVICE_CPU, all), *source = NULL;
    if (!block)
        return ts_error_code();
    ts_status status = prepare(&g, block, calls, count);
    if (status == TS_OK && !(source = ts_cuda_group_source(&g)))
        status = ts_error_set(TS_ERR_MEMORY, "no memory for the source of a group");
    if (status == TS_OK)
        status = ts_cuda_compile(source, capability, compiled);
    free(source);
    ts_scratch_give(TS_DEVICE_CPU, block, all);
    return status;
}
