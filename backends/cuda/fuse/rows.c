/**
 * @file rows.c
 * Fused groups with calls by rows (norms, softmax, reductions): supported ops, and the layout of
 * rows on threads.
 *
 * Each supported op has a function in group_rows.cuh. Sums over all rows take two kernels: each
 * block of the group's kernel writes a line of partial sums, and sums.cu adds the lines. The number
 * of lines depends on sizes and dtypes only, so results are reproducible.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/fuse/fuse.h"

#include <string.h>

enum {
    LONGEST_OF_SINGLES = 4096, /* maximum elements of a row if an access has one element */
    LIVE = 84,                 /* target of share_row(): registers per thread for values of rows */
    MOST_REGISTERS = 112,      /* maximum registers per thread for values of rows */
    PROCESSORS = 132           /* multiprocessors that a kernel with sums over rows is sized for */
};

/** An op by rows and its functions in group_rows.cuh. */
typedef struct row_op {
    const char *op, *function, *summed; /* summed: for calls with sums over all rows; NULL: none */
    int8_t args, arg[TS_KERNEL_OPERANDS - 1]; /* indices of the op's arguments that it takes */
} row_op;
static const row_op ops[] = {
    {"sum", "sum", "sum_rows", 1, {0}},
    {"sum_to_size", NULL, "sum_rows", 1, {0}},
    {"mean", "mean", NULL, 1, {0}},
    {"amax", "amax", NULL, 1, {0}},
    {"amin", "amin", NULL, 1, {0}},
    {"softmax", "softmax", NULL, 1, {0}},
    {"log_softmax", "log_softmax", NULL, 1, {0}},
    {"softmax_backward", "softmax_backward", NULL, 2, {0, 1}},
    {"log_softmax_backward", "log_softmax_backward", NULL, 2, {0, 1}},
    {"layer_norm", "layer_norm", NULL, 4, {0, 2, 3, 4}},
    {"rms_norm", "rms_norm", NULL, 3, {0, 2, 3}},
    {"layer_norm_backward", NULL, "layer_norm_backward", 5, {0, 1, 2, 3, 4}},
    {"rms_norm_backward", NULL, "rms_norm_backward", 4, {0, 1, 2, 3}},
};

bool ts_cuda_group_by_rows(ts_cuda_group *g, ts_cuda_group_call *call, ts_frame *f, int dims,
                           bool summed)
{
    const row_op *op = NULL;
    const char *name = ts_op_name(f->op);
    ts_dtype dtype = ts_kernel_dtype(f);
    for (size_t i = 0; i < sizeof ops / sizeof *ops && !op; i++)
        op = strcmp(ops[i].op, name) == 0 ? &ops[i] : NULL;
    call->rows = !op ? NULL : summed ? op->summed : op->function;
    if (!call->rows || (dtype != TS_F32 && dtype != TS_BF16 && dtype != TS_F16) ||
        (g->rows && g->rows != dims))
        return false;
    if (!g->rows)
        g->space = f->args[0].t;
    g->rows = dims;
    call->compute = (uint8_t)dtype;
    call->formula.names = call->rows;
    call->formula.operands = op->args + 1;
    call->value[0] = -1;
    for (int k = 1; k <= op->args; k++) {
        const ts_value *v = &f->args[op->arg[k - 1]];
        call->formula.host[k] = v->tag == TS_TAG_FLOAT;
        call->formula.number[k] = v->tag == TS_TAG_FLOAT ? v->d : 0;
        call->value[k] = -1;
        if (v->tag != TS_TAG_TENSOR)
            continue;
        call->value[k] = (int16_t)ts_cuda_group_value_of(g, v->t);
        ts_cuda_group_value *operand = &g->values[call->value[k]];
        operand->read |= operand->data && !operand->written;
    }
    call->results = f->nrets;
    for (int i = 0; i < f->nrets; i++) {
        call->result[i] = -1;
        if (f->rets[i].tag != TS_TAG_TENSOR)
            continue;
        const ts_tensor *t = f->rets[i].t;
        call->result[i] = (int16_t)ts_cuda_group_value_of(g, t);
        ts_cuda_group_value *result = &g->values[call->result[i]];
        result->written = result->data != NULL;
        result->sums = summed && ts_numel(t) != ts_numel(g->space);
        result->left = !summed && ts_ndim(t) != ts_ndim(g->space);
    }
    return true;
}

/** Stride in bytes of a tensor along dim d of the space; 0 where the tensor is broadcast. */
static int64_t step_of(const ts_cuda_group_value *v, int ndim, int d)
{
    int at = v->left ? d : d - (ndim - ts_ndim(v->tensor));
    return at < 0 || at >= ts_ndim(v->tensor) || ts_sizes(v->tensor)[at] == 1
               ? 0
               : ts_strides(v->tensor)[at] * v->item;
}

/** Sets sizes and strides of the space without the row, with dims merged where all tensors allow
 * it. */
static void collapse(ts_cuda_group *g, int ndim)
{
    int n = 0;
    for (int d = ndim - g->rows - 1; d >= 0; d--) {
        int64_t size = ts_sizes(g->space)[d];
        bool merge = n > 0;
        if (size == 1)
            continue;
        for (int i = 0; i < g->nvalues && merge; i++) {
            const ts_cuda_group_value *v = &g->values[i];
            merge = !v->data || v->sums ||
                    step_of(v, ndim, d) == v->strides[n - 1] * g->sizes[n - 1];
        }
        if (merge) {
            g->sizes[n - 1] *= size;
            continue;
        }
        g->sizes[n] = size;
        for (int i = 0; i < g->nvalues; i++)
            g->values[i].strides[n] = step_of(&g->values[i], ndim, d);
        n++;
    }
    if (!n)
        g->sizes[n++] = 1;
    g->ndim = n;
}

/** True if a tensor has several elements along a row. */
static bool varies(const ts_cuda_group *g, const ts_cuda_group_value *v, int ndim)
{
    bool some = false;
    for (int d = ndim - g->rows; d < ndim; d++) {
        int at = d - (ndim - ts_ndim(v->tensor));
        some |= !v->left && at >= 0 && ts_sizes(v->tensor)[at] != 1 && ts_strides(v->tensor)[at];
    }
    return some || v->sums;
}

/** Elements per access: 16 bytes of the widest tensor if all tensors allow it, else 1. */
static int width_of(const ts_cuda_group *g)
{
    int widest = 2;
    for (int i = 0; i < g->nvalues; i++)
        if (g->values[i].way == TS_CUDA_ARRAY && g->values[i].item > widest)
            widest = g->values[i].item;
    int width = 16 / widest;
    for (int i = 0; i < g->nvalues; i++) {
        const ts_cuda_group_value *v = &g->values[i];
        if (v->way != TS_CUDA_ARRAY || v->sums)
            continue;
        if ((uintptr_t)v->data % (uint64_t)(v->item * width))
            return 1;
        for (int d = 0; d < g->ndim; d++)
            if (v->strides[d] % (v->item * width))
                return 1;
    }
    return g->columns % width ? 1 : width;
}

/**
 * Chooses the number of threads per row and of accesses per thread: as many accesses per thread as
 * LIVE registers allow, so that all loads are in flight before the first reduction, and preferably
 * a number by which all accesses are inside the row. Rows of up to 32 accesses use one warp or
 * less, which needs no barriers. live: tensors of which a thread holds a part of the row.
 */
static void share_row(ts_cuda_group *g, int live)
{
    int64_t vectors = g->columns / g->width, threads = 1;
    int most = LIVE / (live * g->width);
    most = most < 1 ? 1 : most > 8 ? 8 : most;
    if (vectors <= 32) {
        while (threads < vectors)
            threads *= 2;
        g->accesses = 1;
    } else {
        int64_t least = (vectors + 511) / 512; /* accesses, of blocks of 512 threads */
        int a = most < least ? (int)least : most;
        while (a > least && (vectors % a || vectors / a % 32))
            a--;
        if (vectors % a || vectors / a % 32) /* none fits exactly */
            a = most < least ? (int)least : most;
        while (a > 1 && (vectors + a - 1) / a < 32)
            a--;
        g->accesses = a;
        threads = ((vectors + a - 1) / a + 31) / 32 * 32;
    }
    g->lanes = (int)threads;
}

bool ts_cuda_group_lay_rows(ts_cuda_group *g)
{
    int ndim = ts_ndim(g->space), live = 1;
    bool sums = false;
    g->columns = 1;
    for (int d = ndim - g->rows; d < ndim; d++)
        g->columns *= ts_sizes(g->space)[d];
    g->numel = ts_numel(g->space);
    g->lines = 0;
    int64_t count = g->columns ? g->numel / g->columns : 0;
    if (!count || count >= (int64_t)1 << 31)
        return false;
    collapse(g, ndim);
    for (int i = 0; i < g->nvalues; i++) {
        ts_cuda_group_value *v = &g->values[i];
        v->each = !varies(g, v, ndim);
        v->way = !v->data ? TS_CUDA_INSIDE : v->each ? TS_CUDA_ONE : TS_CUDA_ARRAY;
        live += !v->each && (v->read || (v->sums && v->data));
        sums |= v->sums && v->data;
    }
    g->width = width_of(g);
    if (g->width == 1 && g->columns > LONGEST_OF_SINGLES)
        return false;
    share_row(g, live);
    g->together = g->lanes < 32 || sums ? 128 / g->lanes : 1;
    g->together = g->together ? g->together : 1;
    g->threads = g->lanes * g->together;
    int registers = live * g->accesses * g->width;
    g->full = (int64_t)g->lanes * g->accesses * g->width == g->columns && count % g->together == 0;
    g->resident = (registers <= 40 ? 1024 : registers <= 52 ? 768 : 512) / g->threads;
    g->resident = g->resident > 32 ? 32 : g->resident ? g->resident : 1;
    g->blocks = (count + g->together - 1) / g->together;
    if (sums) {
        int64_t most = (int64_t)PROCESSORS * g->resident;
        g->lines = g->blocks = g->blocks < most ? g->blocks : most;
    }
    return registers <= MOST_REGISTERS;
}
