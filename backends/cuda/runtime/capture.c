/**
 * @file capture.c  CUDA graphs: captured from a stream, updated in part, launched as a whole.
 *
 * A capture has its own stream, on which one thread queues work. Launches of this backend and of
 * cuBLASLt become nodes of a graph, in a linear order. ts_cuda_capture_order() replaces the edges
 * between parts. Changed parts are captured into a second graph, and the parameters of its nodes
 * are copied to the nodes of the executable graph, which costs about 1 us per node.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/runtime/capture.h"
#include "backends/cuda/runtime/fill.h"

#include <cuda.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/** A node, and the part that it belongs to. */
typedef struct unit {
    cudaGraphNode_t node;
    enum cudaGraphNodeType type;
    CUfunction function; /* kernels */
    cudaGraphNode_t before; /* node of its edge in the linear order; NULL: none */
    cudaGraphEdgeData edge;
    int part;
    bool fills; /* a memset whose node is a kernel */
} unit;

/** Nodes in the order in which they were queued. */
typedef struct units {
    unit *all;
    int count, capacity;
} units;

struct ts_capture {
    cudaStream_t stream;
    cudaGraph_t graph; /* owns the nodes of kept */
    cudaGraphExec_t exec;
    units kept, fresh; /* nodes of `graph`; nodes of the current capture */
    int *parts;        /* parts of the current capture, including parts without a launch */
    int nparts, capacity;
    int *order;        /* part of each node of kept; NULL until ts_cuda_capture_parts() */
    ts_part_pair *pairs; /* order of the parts of the current capture; NULL: their number */
    int npairs;
    bool capturing;
    cudaGraphNode_t last; /* last collected node of the current capture; NULL: none */
};

typedef CUresult (*get_fn)(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *parameters);
typedef CUresult (*set_fn)(CUgraphExec exec, CUgraphNode node,
                           const CUDA_KERNEL_NODE_PARAMS *parameters);
/* The driver's functions, as in launch.c: the runtime's functions reject kernels of other
 * libraries. The second pointer is set last. */
static _Atomic(get_fn) get_parameters;
static _Atomic(set_fn) set_parameters;

static cudaError_t find_driver(void)
{
    enum cudaDriverEntryPointQueryResult result;
    void *get = NULL, *set = NULL;
    cudaError_t error = cudaGetDriverEntryPointByVersion("cuGraphKernelNodeGetParams", &get, 12000,
                                                         cudaEnableDefault, &result);
    if (error == cudaSuccess)
        error = cudaGetDriverEntryPointByVersion("cuGraphExecKernelNodeSetParams", &set, 12000,
                                                 cudaEnableDefault, &result);
    if (error != cudaSuccess || !get || !set)
        return error != cudaSuccess ? error : cudaErrorNotSupported;
    atomic_store(&get_parameters, (get_fn)get);
    atomic_store_explicit(&set_parameters, (set_fn)set, memory_order_release);
    return cudaSuccess;
}

/** Grows an array of `count` items so that n more fit. False if memory is exhausted. */
static bool reserve(void **all, int *capacity, int count, int n, size_t item)
{
    if (count + n <= *capacity)
        return true;
    int now = 2 * (count + n) + 64;
    void *larger = realloc(*all, (size_t)now * item);
    if (!larger)
        return false;
    *all = larger;
    *capacity = now;
    return true;
}

/* -------------------------------------------------------------------------------- nodes ---- */

/** Sets the node's type and function. Sets *why if the node cannot be replayed and updated; only
 * kernels, memsets and copies on the device can. */
static cudaError_t look_at(unit *u, const char **why)
{
    CUDA_KERNEL_NODE_PARAMS kernel;
    struct cudaMemcpy3DParms copy;
    cudaError_t error = cudaGraphNodeGetType(u->node, &u->type);
    u->function = NULL;
    if (error != cudaSuccess)
        return error;
    switch (u->type) {
    case cudaGraphNodeTypeKernel:
        error = (cudaError_t)atomic_load(&get_parameters)((CUgraphNode)u->node, &kernel);
        if (error == cudaSuccess)
            u->function = kernel.func ? kernel.func : (CUfunction)kernel.kern;
        return error;
    case cudaGraphNodeTypeMemset: return cudaSuccess;
    case cudaGraphNodeTypeMemcpy:
        error = cudaGraphMemcpyNodeGetParams(u->node, &copy);
        if (error == cudaSuccess && copy.kind != cudaMemcpyDeviceToDevice)
            *why = "a copy from or to the host cannot be captured";
        return error;
    default:
        *why = "only kernels, copies and memsets can be captured";
        return cudaSuccess;
    }
}

/** Appends the nodes queued since the last call to c->fresh, as nodes of `part`. TS_ERR_UNSUPPORTED
 * for work that cannot be captured. */
static ts_status collect(ts_capture *c, int part)
{
    enum cudaStreamCaptureStatus state;
    const cudaGraphNode_t *ends = NULL;
    const cudaGraphEdgeData *edges = NULL;
    const char *why = NULL;
    size_t n = 0;
    cudaError_t error =
        cudaStreamGetCaptureInfo(c->stream, &state, NULL, NULL, &ends, &edges, &n);
    if (error == cudaSuccess && state != cudaStreamCaptureStatusActive)
        error = cudaErrorStreamCaptureInvalidated;
    int first = c->fresh.count;
    cudaGraphNode_t node = n == 1 ? ends[0] : NULL;
    while (error == cudaSuccess && !why && node != c->last) {
        cudaGraphNode_t before[2];
        cudaGraphEdgeData data[2];
        if (!node || n > 1) {
            why = "work on several streams cannot be captured";
            break;
        }
        if (!reserve((void **)&c->fresh.all, &c->fresh.capacity, c->fresh.count, 1, sizeof(unit)))
            return ts_error_set(TS_ERR_MEMORY, "no memory for a graph");
        unit *u = &c->fresh.all[c->fresh.count++];
        *u = (unit){.node = node, .part = part};
        error = look_at(u, &why);
        n = 2;
        if (error == cudaSuccess)
            error = cudaGraphNodeGetDependencies(node, before, data, &n);
        if (error == cudaSuccess && n) {
            u->before = before[0];
            u->edge = data[0];
        }
        node = u->before;
    }
    for (int a = first, b = c->fresh.count - 1; a < b; a++, b--) { /* the last node came first */
        unit u = c->fresh.all[a];
        c->fresh.all[a] = c->fresh.all[b];
        c->fresh.all[b] = u;
    }
    if (c->fresh.count > first)
        c->last = c->fresh.all[c->fresh.count - 1].node;
    if (why)
        return ts_error_set(TS_ERR_UNSUPPORTED, "%s", why);
    return ts_cuda_check(error, "capture of launches");
}

/** Ends the stream's capture; *graph is NULL if the capture failed. */
static cudaError_t stop(ts_capture *c, cudaGraph_t *graph)
{
    *graph = NULL;
    c->capturing = false;
    cudaError_t error = cudaStreamEndCapture(c->stream, graph);
    ts_cuda_capture_leave();
    return error;
}

/* ------------------------------------------------------------------------------- slots ---- */

ts_status ts_cuda_capture_begin(void *state, int device, ts_capture **capture, ts_stream **stream)
{
    (void)state;
    const ts_cuda_device *d = ts_cuda_use(device);
    ts_capture *c = *capture;
    if (!d)
        return ts_error_code();
    if (ts_cuda_synchronous())
        return ts_error_set(TS_ERR_UNSUPPORTED, "TS_SYNC=1 waits for each call");
    if (!atomic_load_explicit(&set_parameters, memory_order_acquire))
        TS_TRY(ts_cuda_check(find_driver(), "functions of graphs"));
    if (!c) {
        if (!(c = calloc(1, sizeof *c)))
            return ts_error_set(TS_ERR_MEMORY, "no memory for a graph");
        ts_status status =
            ts_cuda_check(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking),
                          "a stream of cuda:%d", device);
        if (status != TS_OK) {
            free(c);
            return status;
        }
        *capture = c;
    }
    c->last = NULL;
    c->fresh.count = c->nparts = c->npairs = 0;
    free(c->pairs);
    c->pairs = NULL;
    ts_cuda_capture_enter();
    cudaError_t error = cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal);
    if (error != cudaSuccess)
        ts_cuda_capture_leave();
    TS_TRY(ts_cuda_check(error, "cuda:%d: begin of a capture", device));
    c->capturing = true;
    *stream = (ts_stream *)c->stream;
    return TS_OK;
}

ts_status ts_cuda_capture_part(void *state, int device, ts_capture *c, int part)
{
    (void)state, (void)device;
    if (c->nparts)
        TS_TRY(collect(c, c->parts[c->nparts - 1]));
    if (!reserve((void **)&c->parts, &c->capacity, c->nparts, 1, sizeof *c->parts))
        return ts_error_set(TS_ERR_MEMORY, "no memory for a graph");
    c->parts[c->nparts++] = part;
    return TS_OK;
}

/** Index of the first node whose part is >= `part`. */
static int find_part(const units *u, int part)
{
    int low = 0, high = u->count;
    while (low < high) {
        int mid = low + (high - low) / 2;
        if (u->all[mid].part < part)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/** Replaces short memsets of a new graph by kernels, which the device starts sooner: between two
 *  kernels, a memset of 0.8 us costs 5 us, and a kernel that fills costs 1.2. */
static cudaError_t fill_by_kernels(const ts_capture *c, cudaGraph_t graph)
{
    static const cudaGraphEdgeData full;
    cudaError_t error = cudaSuccess;
    for (int i = 0; i < c->fresh.count && error == cudaSuccess; i++) {
        unit *u = &c->fresh.all[i], *next = i + 1 < c->fresh.count ? u + 1 : NULL;
        struct cudaMemsetParams set;
        ts_cuda_fill fill;
        if (u->type != cudaGraphNodeTypeMemset)
            continue;
        error = cudaGraphMemsetNodeGetParams(u->node, &set);
        if (error != cudaSuccess || !ts_cuda_fill_of(&set, &fill))
            continue;
        error = cudaGraphDestroyNode(u->node); /* and its edges */
        if (error == cudaSuccess)
            error = cudaGraphAddKernelNode(&u->node, graph, &u->before, u->before != NULL,
                                           &fill.node);
        u->fills = true;
        u->edge = full;
        if (next && error == cudaSuccess) {
            next->before = u->node;
            next->edge = full;
            error = cudaGraphAddDependencies(graph, &u->node, &next->node, &full, 1);
        }
    }
    return error;
}

/** First and last node of a part in the new graph. */
typedef struct ends {
    cudaGraphNode_t first, last;
    bool kernel; /* the last node is a kernel */
} ends;

static int by_part(const void *x, const void *y)
{
    const ts_part_pair *a = x, *b = y;
    return a->after != b->after ? (a->after > b->after) - (a->after < b->after)
                                : (a->before > b->before) - (a->before < b->before);
}

/** Removes the edge between the first node of a part and the part before it. */
static cudaError_t cut(cudaGraph_t graph, const unit *u)
{
    return u->before ? cudaGraphRemoveDependencies(graph, &u->before, &u->node, &u->edge, 1)
                     : cudaSuccess;
}

/** The kind of the edges to a part's first node `u` (NULL: none) if it runs after one part, whose
 *  ends are *before. A kernel that was launched early may also begin early after another kernel. */
static const cudaGraphEdgeData *single_edge(const unit *u, const ends *before)
{
    static const cudaGraphEdgeData full;
    return u && u->before && before->kernel ? &u->edge : &full;
}

/** Replaces the edges between the parts of a new graph by those of c->pairs. A part without nodes
 *  gets an empty one. */
static cudaError_t rewire(const ts_capture *c, cudaGraph_t graph, ends *parts)
{
    static const cudaGraphEdgeData full;
    cudaError_t error = cudaSuccess;
    int at = 0, pair = 0;
    qsort(c->pairs, (size_t)c->npairs, sizeof *c->pairs, by_part);
    for (int i = 0; i < c->nparts && error == cudaSuccess; i++) {
        ends *own = &parts[c->parts[i]];
        const unit *u = at < c->fresh.count && c->fresh.all[at].part == c->parts[i]
                            ? &c->fresh.all[at]
                            : NULL;
        int first = pair;
        while (pair < c->npairs && c->pairs[pair].after == c->parts[i])
            pair++;
        if (u) {
            own->first = u->node;
            for (; at < c->fresh.count && c->fresh.all[at].part == c->parts[i]; at++) {
                own->last = c->fresh.all[at].node;
                own->kernel = c->fresh.all[at].type == cudaGraphNodeTypeKernel;
            }
            error = cut(graph, u);
        } else {
            error = cudaGraphAddEmptyNode(&own->first, graph, NULL, 0);
            own->last = own->first;
        }
        for (int k = first; k < pair && error == cudaSuccess; k++) {
            const ends *before = &parts[c->pairs[k].before];
            const cudaGraphEdgeData *edge = pair == first + 1 ? single_edge(u, before) : &full;
            error = cudaGraphAddDependencies(graph, &before->last, &own->first, edge, 1);
        }
    }
    return error;
}

/** rewire() if the capture has an order of its own. */
static ts_status order(const ts_capture *c, cudaGraph_t graph)
{
    if (!c->pairs || !c->nparts)
        return TS_OK;
    ends *parts = calloc((size_t)c->parts[c->nparts - 1] + 1, sizeof *parts);
    if (!parts)
        return ts_error_set(TS_ERR_MEMORY, "no memory for a graph");
    cudaError_t error = rewire(c, graph, parts);
    free(parts);
    return ts_cuda_check(error, "order of a graph");
}

ts_status ts_cuda_capture_order(void *state, int device, ts_capture *c, const ts_part_pair *pairs,
                                int n)
{
    (void)state, (void)device;
    free(c->pairs);
    c->npairs = n;
    if (!(c->pairs = malloc(((size_t)n + 1) * sizeof *pairs)))
        return ts_error_set(TS_ERR_MEMORY, "no memory for a graph");
    if (n)
        memcpy(c->pairs, pairs, (size_t)n * sizeof *pairs);
    return TS_OK;
}

/** Copies the parameters of node `from` to node `to` of the executable graph. */
static cudaError_t change(cudaGraphExec_t exec, const unit *to, const unit *from)
{
    CUDA_KERNEL_NODE_PARAMS kernel;
    struct cudaMemsetParams set;
    struct cudaMemcpy3DParms copy;
    ts_cuda_fill fill;
    cudaError_t error;
    switch (to->type) {
    case cudaGraphNodeTypeKernel:
        error = (cudaError_t)atomic_load(&get_parameters)((CUgraphNode)from->node, &kernel);
        return error != cudaSuccess
                   ? error
                   : (cudaError_t)atomic_load(&set_parameters)((CUgraphExec)exec,
                                                               (CUgraphNode)to->node, &kernel);
    case cudaGraphNodeTypeMemset:
        error = cudaGraphMemsetNodeGetParams(from->node, &set);
        if (error == cudaSuccess && to->fills && ts_cuda_fill_of(&set, &fill))
            return cudaGraphExecKernelNodeSetParams(exec, to->node, &fill.node);
        return error != cudaSuccess ? error
                                    : cudaGraphExecMemsetNodeSetParams(exec, to->node, &set);
    default:
        error = cudaGraphMemcpyNodeGetParams(from->node, &copy);
        return error != cudaSuccess ? error
                                    : cudaGraphExecMemcpyNodeSetParams(exec, to->node, &copy);
    }
}

/** True if a kernel can replace the node, a memset. */
static bool is_short(const unit *u)
{
    struct cudaMemsetParams set;
    ts_cuda_fill fill;
    return cudaGraphMemsetNodeGetParams(u->node, &set) == cudaSuccess &&
           ts_cuda_fill_of(&set, &fill);
}

/** Updates the executable graph's nodes of the parts that were captured again. TS_ERR_STATE if a
 * part has other kernels or another number of launches than before. */
static ts_status replace(const ts_capture *c)
{
    int at = 0;
    for (int i = 0; i < c->nparts; i++) {
        int part = c->parts[i], to = find_part(&c->kept, part);
        for (; at < c->fresh.count && c->fresh.all[at].part == part; at++, to++) {
            const unit *old = &c->kept.all[to], *now = &c->fresh.all[at];
            if (to == c->kept.count || old->part != part || old->type != now->type ||
                old->function != now->function || (old->fills && !is_short(now)))
                return ts_error_set(TS_ERR_STATE,
                                    "a part has other kernels or more launches than before");
            TS_TRY(ts_cuda_check(change(c->exec, old, now), "a node of a graph"));
        }
        if (to < c->kept.count && c->kept.all[to].part == part)
            return ts_error_set(TS_ERR_STATE, "a part has fewer launches than before");
    }
    return TS_OK;
}

ts_status ts_cuda_capture_end(void *state, int device, ts_capture *c, int64_t *launches)
{
    (void)state;
    const ts_cuda_device *d = ts_cuda_use(device);
    cudaGraph_t graph;
    if (!d)
        return ts_error_code();
    ts_status status = c->nparts ? collect(c, c->parts[c->nparts - 1]) : TS_OK;
    cudaError_t error = stop(c, &graph);
    /* captured work did not run, so reports of errors must not name it */
    ts_cuda_waited(device, c->stream, ts_cuda_launches());
    if (status == TS_OK)
        status = ts_cuda_check(error, "cuda:%d: end of a capture", device);
    if (status == TS_OK && c->exec) {
        status = replace(c);
    } else if (status == TS_OK &&
               (status = ts_cuda_check(fill_by_kernels(c, graph), "memsets of a graph")) ==
                   TS_OK &&
               (status = order(c, graph)) == TS_OK &&
               (status = ts_cuda_check(cudaGraphInstantiate(&c->exec, graph, 0),
                                       "cuda:%d: a graph", device)) == TS_OK) {
        units kept = c->kept;
        free(c->order);
        c->order = NULL;
        c->kept = c->fresh;
        c->fresh = kept;
        c->graph = graph;
        graph = NULL;
    }
    if (graph)
        cudaGraphDestroy(graph);
    cudaGetLastError();
    *launches = c->kept.count;
    return status;
}

ts_status ts_cuda_capture_replay(void *state, int device, ts_capture *c, ts_stream *stream)
{
    (void)state;
    const ts_cuda_device *d = ts_cuda_use(device);
    if (!d)
        return ts_error_code();
    cudaStream_t own = ts_cuda_stream(d, stream);
    ts_cuda_replayed(own);
    return ts_cuda_check(cudaGraphLaunch(c->exec, own), "cuda:%d: launch of a graph", device);
}

int ts_cuda_capture_parts(void *state, int device, ts_capture *c, const int **parts)
{
    (void)state, (void)device;
    if (!c->order && c->kept.count) {
        if (!(c->order = malloc((size_t)c->kept.count * sizeof *c->order)))
            return 0;
        for (int i = 0; i < c->kept.count; i++)
            c->order[i] = c->kept.all[i].part;
    }
    *parts = c->order;
    return c->kept.count;
}

void ts_cuda_capture_free(void *state, int device, ts_capture *c)
{
    (void)state;
    if (!ts_cuda_is_lost(device) && ts_cuda_use(device)) {
        cudaGraph_t graph = NULL;
        if (c->capturing)
            stop(c, &graph);
        if (graph)
            cudaGraphDestroy(graph);
        ts_cuda_waited(device, c->stream, ts_cuda_launches());
        ts_cuda_wait_for_device(true);
        if (c->exec)
            cudaGraphExecDestroy(c->exec);
        if (c->graph)
            cudaGraphDestroy(c->graph);
        cudaStreamDestroy(c->stream);
        cudaGetLastError();
    }
    free(c->kept.all);
    free(c->fresh.all);
    free(c->parts);
    free(c->pairs);
    free(c->order);
    free(c);
}
