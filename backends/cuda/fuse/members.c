/**
 * @file members.c
 * Fused groups with members: one kernel runs the same calls over several sets of contiguous
 * tensors, the members. A table of the members' addresses, sizes and numbers is an argument of the
 * kernel; a block finds its member by binary search. Members that do not fit in one table need
 * further launches.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/runtime/current.h"
#include "backends/cuda/fuse/fuse.h"
#include "backends/cuda/runtime/launch.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_MEMBERS = 256,
       MOST_BYTES = 24000, /* maximum bytes of a table; CUDA allows 32,764 bytes of arguments */
       UNROLL = 4 /* accesses per thread */ };

/** Describes the calls of one member in *g, whose calls and values are stored at `block` (sizes:
 * ts_cuda_group_room_for()). False if one pointwise kernel over contiguous tensors cannot run
 * them. */
static bool describe(ts_cuda_group *g, char *block, const ts_group_call *calls, int count)
{
    ts_cuda_group_room bytes = ts_cuda_group_room_for(count);
    memset(block, 0, bytes.calls + bytes.values);
    *g = (ts_cuda_group){.calls = (ts_cuda_group_call *)block,
                         .values = (ts_cuda_group_value *)(block + bytes.calls)};
    if (!ts_cuda_group_gather(g, calls, count) || g->rows || g->folds || g->draws)
        return false;
    g->numel = ts_numel(calls[0].frame->rets[0].t);
    for (int i = 0; i < g->nvalues; i++) {
        ts_cuda_group_value *v = &g->values[i];
        bool whole = ts_numel(v->tensor) == g->numel;
        v->way = !v->data ? TS_CUDA_INSIDE : whole ? TS_CUDA_ARRAY : TS_CUDA_ONE;
        if (!ts_is_contiguous(v->tensor) || (!whole && (ts_numel(v->tensor) != 1 || v->written)))
            return false;
    }
    return g->numel < INT32_MAX; /* an access may have one element */
}

/** True if a and b differ only in addresses, sizes and numbers, so one kernel serves both. */
static bool alike(const ts_cuda_group *a, const ts_cuda_group *b)
{
    bool same = a->nvalues == b->nvalues;
    for (int i = 0; i < a->nvalues && same; i++) {
        const ts_cuda_group_value *v = &a->values[i], *w = &b->values[i];
        same = v->dtype == w->dtype && v->way == w->way && v->read == w->read &&
               v->written == w->written;
    }
    for (int c = 0; c < a->ncalls && same; c++) {
        const ts_cuda_formula *f = &a->calls[c].formula, *g = &b->calls[c].formula;
        same = f->names == g->names && f->operands == g->operands && f->bytes == g->bytes &&
               memcmp(f->members, g->members, f->bytes) == 0 &&
               memcmp(f->host, g->host, sizeof f->host) == 0 &&
               a->calls[c].compute == b->calls[c].compute &&
               memcmp(a->calls[c].value, b->calls[c].value,
                      (size_t)f->operands * sizeof *a->calls[c].value) == 0;
    }
    return same;
}

/** Elements per access of a member: 16 bytes of the widest type, or 1 if an address is not
 * aligned. */
static int width_of(const ts_cuda_group *g)
{
    int widest = 1;
    for (int i = 0; i < g->nvalues; i++)
        if (g->values[i].way == TS_CUDA_ARRAY && g->values[i].item > widest)
            widest = g->values[i].item;
    for (int i = 0; i < g->nvalues; i++)
        if (g->values[i].way == TS_CUDA_ARRAY &&
            (uintptr_t)g->values[i].data % (uint64_t)(g->values[i].item * (16 / widest)))
            return 1;
    return 16 / widest;
}

/** A table of members, in the layout of group_members (group.cuh). */
typedef struct table {
    uint32_t *count, *first, *accesses, *tail;
    char **data;     /* [tensor * most + member] */
    double *number;  /* [number * most + member] */
    int tensors, numbers, most;
    int64_t bytes;
} table;

static table table_of(const ts_cuda_group *g, int members)
{
    table t = {.most = 2};
    for (int i = 0; i < g->nvalues; i++)
        t.tensors += g->values[i].way != TS_CUDA_INSIDE;
    for (int c = 0; c < g->ncalls; c++)
        for (int k = 1; k < g->calls[c].formula.operands; k++)
            t.numbers += g->calls[c].formula.host[k];
    int64_t each = 12 + 8 * (t.tensors + (t.numbers ? t.numbers : 1));
    while (t.most < members && t.most < MOST_MEMBERS && 2 * t.most * each + 8 <= MOST_BYTES)
        t.most *= 2;
    t.bytes = t.most * each + 8;
    return t;
}

static void lay_out(table *t, char *memory)
{
    t->count = (uint32_t *)memory;
    t->first = t->count + 1;
    t->accesses = t->first + t->most + 1;
    t->tail = t->accesses + t->most;
    t->data = (char **)(t->tail + t->most);
    t->number = (double *)(t->data + t->tensors * t->most);
}

/** Writes member i of the table; returns its number of blocks. */
static uint32_t put(const table *t, int i, const ts_cuda_group *g, int width)
{
    int64_t accesses = (g->numel + width - 1) / width, share = TS_CUDA_GROUP_THREADS * UNROLL;
    int tensor = 0, number = 0;
    t->accesses[i] = (uint32_t)accesses;
    t->tail[i] = (uint32_t)(g->numel - (accesses - 1) * width);
    for (int k = 0; k < g->nvalues; k++)
        if (g->values[k].way != TS_CUDA_INSIDE)
            t->data[tensor++ * t->most + i] = g->values[k].data;
    for (int c = 0; c < g->ncalls; c++)
        for (int k = 1; k < g->calls[c].formula.operands; k++)
            if (g->calls[c].formula.host[k])
                t->number[number++ * t->most + i] = g->calls[c].formula.number[k];
    return (uint32_t)((accesses + share - 1) / share);
}

/** The state of a run. */
typedef struct run {
    const ts_group_call *calls;
    int count, members;
    ts_cuda_group first, own; /* the first member, and the current one */
    char *block, *second;     /* memory of `first` and of `own`; the words of the key and the
                                 addresses of arguments follow `second` */
    ts_cuda_group_room bytes;
    table table;
} run;

static const ts_group_call *calls_of(const run *r, int member)
{
    return r->calls + (size_t)member * (size_t)r->count;
}

/** Describes the first member and sets its kernel's layout. TS_ERR_UNSUPPORTED if a member cannot
 * be described or needs another kernel. */
static ts_status prepare(run *r)
{
    if (!describe(&r->first, r->block, r->calls, r->count))
        return ts_error_set(TS_ERR_UNSUPPORTED, "no kernel over members can run the group of %s",
                            ts_op_name(r->calls[0].frame->op));
    ts_cuda_group *g = &r->first;
    g->width = width_of(g);
    for (int m = 1; m < r->members; m++) {
        if (!describe(&r->own, r->second, calls_of(r, m), r->count) || !alike(g, &r->own))
            return ts_error_set(TS_ERR_UNSUPPORTED, "a member cannot use the first one's kernel");
        int width = width_of(&r->own);
        g->width = width < g->width ? width : g->width;
    }
    g->ndim = 1;
    g->unroll = UNROLL;
    g->tail = true;
    g->threads = TS_CUDA_GROUP_THREADS;
    g->resident = 1;
    g->members = table_of(g, r->members).most;
    return TS_OK;
}

static ts_status launch(run *r, void *function, void **arguments, cudaStream_t stream,
                        int64_t *launches)
{
    const ts_frame *f = r->calls[0].frame;
    table *t = &r->table;
    int n = 0;
    arguments[n++] = t->count;
    for (int c = 0; c < r->first.ncalls; c++)
        if (r->first.calls[c].formula.bytes)
            arguments[n++] = r->first.calls[c].formula.members;
    for (int m = 0; m < r->members; m += t->most) {
        int some = r->members - m < t->most ? r->members - m : t->most;
        *t->count = (uint32_t)some;
        t->first[0] = 0;
        for (int i = 0; i < some; i++) {
            describe(&r->own, r->second, calls_of(r, m + i), r->count);
            t->first[i + 1] = t->first[i] + put(t, i, &r->own, r->first.width);
        }
        TS_TRY(ts_cuda_launched(f, ts_cuda_launch_function(function, t->first[some],
                                                           TS_CUDA_GROUP_THREADS, arguments,
                                                           stream),
                                stream));
        ++*launches;
    }
    return TS_OK;
}

/** Takes memory, describes the members and calls then(r, ctx). */
static ts_status with_members(run *r, ts_status (*then)(run *r, void *ctx), void *ctx)
{
    r->bytes = ts_cuda_group_room_for(r->count);
    size_t group = r->bytes.calls + r->bytes.values,
           all = 2 * group + r->bytes.words + r->bytes.arguments;
    r->block = ts_scratch_take(TS_DEVICE_CPU, (int64_t)all);
    if (!r->block)
        return ts_error_code();
    r->second = r->block + group;
    ts_status status = prepare(r);
    if (status == TS_OK)
        status = then(r, ctx);
    ts_scratch_give(TS_DEVICE_CPU, r->block, (int64_t)all);
    return status;
}

typedef struct target {
    cudaStream_t stream;
    ts_group_report *report;
    int capability; /* for ts_cuda_members_compile() */
    ts_cuda_compiled *compiled;
} target;

static ts_status run_all(run *r, void *ctx)
{
    const target *to = ctx;
    void *functions[2] = {0};
    uint64_t *words = (uint64_t *)(r->second + r->bytes.calls + r->bytes.values);
    void **arguments = (void **)((char *)words + r->bytes.words);
    *to->report = (ts_group_report){0};
    TS_TRY(ts_cuda_group_kernel(&r->first, words, ts_cuda_group_words(&r->first, words), functions,
                                to->report));
    r->table = table_of(&r->first, r->members);
    char *memory = ts_scratch_take(TS_DEVICE_CPU, r->table.bytes);
    if (!memory)
        return ts_error_code();
    lay_out(&r->table, memory);
    memset(memory, 0, (size_t)r->table.bytes);
    ts_status status = launch(r, functions[0], arguments, to->stream, &to->report->launches);
    ts_scratch_give(TS_DEVICE_CPU, memory, r->table.bytes);
    return status;
}

ts_status ts_cuda_group_run_members(void *state, int device, const ts_group_call *calls, int count,
                                    int members, ts_stream *stream, ts_group_report *report)
{
    (void)state;
    ts_cuda_device *d = ts_cuda_use(device);
    if (!d)
        return ts_error_code();
    run r = {.calls = calls, .count = count, .members = members};
    return with_members(&r, run_all,
                        &(target){.stream = ts_cuda_stream(d, stream), .report = report});
}

static ts_status compile(run *r, void *ctx)
{
    const target *to = ctx;
    char *source = ts_cuda_group_source(&r->first);
    ts_status status = source ? ts_cuda_compile(source, to->capability, to->compiled)
                              : ts_error_set(TS_ERR_MEMORY, "no memory for the source of a group");
    free(source);
    return status;
}

ts_status ts_cuda_members_compile(const ts_group_call *calls, int count, int members,
                                  int capability, ts_cuda_compiled *compiled)
{
    run r = {.calls = calls, .count = count, .members = members};
    return with_members(&r, compile, &(target){.capability = capability, .compiled = compiled});
}
