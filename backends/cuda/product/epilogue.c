/**
 * @file epilogue.c  Reads the calls after a product as the product's epilogue: cuBLASLt's or that
 * of wgmma.cuh for a product of matrices, that of convolution/gemm.cuh for a convolution.
 *
 * Each op that can be in an epilogue has a function here, which adds the call to the epilogue so
 * far; the product then accepts or refuses the whole. A product of matrices computes in f32 and
 * rounds once, where calls round after each op; a convolution rounds as the calls do.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/product/epilogue.h"
#include "backends/cuda/fuse/fuse.h"

#include <string.h>

/** True if the epilogue so far is empty. */
static bool is_empty(const ts_cuda_after *a)
{
    return !a->gelu && !a->wide && !a->added && !a->gelu_of && !a->norm && !a->relu_first;
}

/** True if t is dense and has the sizes and the layout of the product's result. */
static bool is_alike(const ts_tensor *t, const ts_tensor *result)
{
    int n = ts_ndim(result);
    bool same = ts_ndim(t) == n;
    for (int d = 0; d < n && same; d++)
        same = ts_sizes(t)[d] == ts_sizes(result)[d] &&
               (ts_sizes(t)[d] == 1 || ts_strides(t)[d] == ts_strides(result)[d]);
    return same;
}

static int64_t bytes_of(const ts_tensor *t)
{
    return ts_numel(t) * (int64_t)ts_dtype_size(ts_dtype_of(t));
}

/* Each function below reads a call whose argument `at` is the result so far, a->result. */

/* In f32 the epilogue's gelu is less accurate than the kernel's. */
static bool gelu(ts_cuda_after *a, const ts_frame *f, int at)
{
    a->gelu = true;
    a->linear = ts_kernel_data(a->result) ? a->result : NULL;
    a->cost += bytes_of(a->result) / 2;
    return at == 0 && f->args[1].i && ts_dtype_is_half(ts_dtype_of(a->result));
}

static bool gelu_backward(ts_cuda_after *a, const ts_frame *f, int at)
{
    a->gelu_of = f->args[1].t;
    a->cost += bytes_of(a->result);
    return at == 0 && f->args[2].i && ts_dtype_is_half(ts_dtype_of(a->result)) &&
           ts_dtype_of(a->gelu_of) == ts_dtype_of(a->result);
}

/* Adding a tensor slows products of halves by more than its loads, so its bytes are a cost. */
static bool add(ts_cuda_after *a, const ts_frame *f, int at)
{
    const ts_value *other = &f->args[1 - at];
    if (a->added || a->relu_last || other->tag != TS_TAG_TENSOR || other->t == a->result ||
        !ts_kernel_data(other->t)) /* a value inside the epilogue is not in memory */
        return false;
    a->added = other->t;
    a->cost += ts_dtype_is_half(ts_dtype_of(a->added)) ? bytes_of(a->added) : 0;
    return ts_dtype_of(a->added) == ts_dtype_of(a->result);
}

static bool to(ts_cuda_after *a, const ts_frame *f, int at)
{
    a->wide = true;
    return at == 0 && ts_dtype_is_half(ts_dtype_of(a->result)) &&
           ts_dtype_of(f->rets[0].t) == TS_F32;
}

static bool relu(ts_cuda_after *a, const ts_frame *f, int at)
{
    (void)f, (void)at;
    *(a->added ? &a->relu_last : &a->relu_first) = true;
    return true;
}

/* Only with given statistics: those of the batch are sums over the product's result. */
static bool batch_norm(ts_cuda_after *a, const ts_frame *f, int at)
{
    a->norm = (ts_frame *)f;
    return at == 0 && f->args[1].tag == TS_TAG_TENSOR && f->args[2].tag == TS_TAG_TENSOR &&
           f->rets[1].tag != TS_TAG_TENSOR && f->rets[2].tag != TS_TAG_TENSOR;
}

static bool batch_norm_relu(ts_cuda_after *a, const ts_frame *f, int at)
{
    a->relu_first = true;
    return batch_norm(a, f, at);
}

static const struct {
    const char *op;
    bool (*read)(ts_cuda_after *a, const ts_frame *f, int at);
    bool first, keeps; /* first: only as the first call. keeps: can store its argument too */
    bool vectors;      /* arguments but the first may be parameters of channels */
} ops[] = {
    {"gelu", gelu, .first = true, .keeps = true},
    {"gelu_backward", gelu_backward, .first = true},
    {"add", add, .first = false},
    {"to", to, .first = true},
    {"relu", relu, .first = false},
    {"batch_norm", batch_norm, .first = true, .vectors = true},
    {"batch_norm_relu", batch_norm_relu, .first = true, .vectors = true},
};

/** Adds the sums of the columns of a gradient of gelu to the epilogue: a bias gradient. The result
 * so far stays the same. */
static bool sum_columns(ts_cuda_after *a, const ts_frame *f)
{
    const ts_tensor *sums = f->rets[0].tag == TS_TAG_TENSOR ? f->rets[0].t : NULL;
    if (!a->gelu_of || a->sums || !sums || f->args[0].t != a->result || ts_ndim(sums) != 1 ||
        ts_size(sums, 0) != ts_size(a->result, -1) || ts_ndim(a->result) < 2 ||
        ts_dtype_of(sums) != ts_dtype_of(a->result) || !ts_is_contiguous(sums) ||
        !ts_kernel_data(a->result))
        return false;
    a->sums = f->rets[0].t;
    return true;
}

/** Adds gelu at the arguments of the epilogue's gradient of gelu, which a plan computes again for
 * the weight's gradient. The result so far stays the same. */
static bool gelu_beside(ts_cuda_after *a, const ts_frame *f)
{
    const ts_tensor *curve = f->rets[0].tag == TS_TAG_TENSOR ? f->rets[0].t : NULL;
    if (a->curve || !curve || f->args[0].tag != TS_TAG_TENSOR || f->args[0].t != a->gelu_of ||
        !f->args[1].i || !is_alike(curve, a->result) ||
        ts_dtype_of(curve) != ts_dtype_of(a->result) || !ts_kernel_data(curve))
        return false;
    a->curve = f->rets[0].t;
    return true;
}

/** Adds a call to the epilogue. Returns false if the epilogue cannot compute it. */
static bool read_call(ts_cuda_after *a, const ts_group_call *call)
{
    const ts_frame *f = call->frame;
    const char *name = ts_op_name(f->op);
    int at = -1;
    bool alike = true; /* all tensors have the result's sizes and layout */
    if (strcmp(name, "sum_to_size") == 0)
        return ts_cuda_owns(call->kernel) && sum_columns(a, f);
    if (a->gelu_of && strcmp(name, "gelu") == 0)
        return ts_cuda_owns(call->kernel) && gelu_beside(a, f);
    for (int i = 0; i < f->nargs; i++)
        if (f->args[i].tag == TS_TAG_TENSOR) {
            at = f->args[i].t == a->result ? i : at;
            alike = alike && is_alike(f->args[i].t, a->result);
        }
    if (at < 0 || !ts_cuda_owns(call->kernel) || f->rets[0].tag != TS_TAG_TENSOR ||
        !is_alike(f->rets[0].t, a->result))
        return false;
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        if (strcmp(ops[i].op, name) != 0)
            continue;
        if (!(alike || ops[i].vectors) || (ops[i].first && !is_empty(a)) || a->gelu || a->gelu_of ||
            (!ops[i].keeps && ts_kernel_data(a->result)) || !ops[i].read(a, f, at))
            return false;
        a->result = f->rets[0].t;
        return true;
    }
    return false;
}

const ts_cuda_product *ts_cuda_product_of(ts_kernel kernel)
{
    for (int i = 0; i < TS_CUDA_MATMULS; i++)
        if (ts_cuda_matmul_products[i].kernel == kernel)
            return &ts_cuda_matmul_products[i];
    return ts_cuda_convolution_product.kernel == kernel ? &ts_cuda_convolution_product : NULL;
}

/** Reads all calls. Returns the product, or NULL if they are no product with an epilogue. */
static const ts_cuda_product *read_calls(ts_cuda_after *a, const ts_group_call *calls, int count)
{
    const ts_cuda_product *product = ts_cuda_product_of(calls[0].kernel);
    const ts_frame *f = calls[0].frame;
    *a = (ts_cuda_after){.of = -1};
    if (!product || count == 1)
        return product;
    for (int r = 0; r < f->nrets; r++)
        for (int i = 0; i < calls[1].frame->nargs; i++)
            if (f->rets[r].tag == TS_TAG_TENSOR && calls[1].frame->args[i].tag == TS_TAG_TENSOR &&
                calls[1].frame->args[i].t == f->rets[r].t) {
                a->of = r;
                a->result = f->rets[r].t;
            }
    if (a->of < 0)
        return NULL;
    for (int c = 1; c < count; c++)
        if (!read_call(a, &calls[c]))
            return NULL;
    return product->takes(f, a) ? product : NULL;
}

int64_t ts_cuda_epilogue_cost(void *state, const ts_group_call *calls, int count)
{
    (void)state;
    ts_cuda_after after;
    return read_calls(&after, calls, count) ? after.cost : -1;
}

ts_status ts_cuda_product_run(const ts_group_call *calls, int count)
{
    ts_cuda_after after;
    const ts_cuda_product *product = read_calls(&after, calls, count);
    if (!product)
        return ts_error_set(TS_ERR_UNSUPPORTED,
                            "%s: its tensors are not aligned or dense enough for an epilogue",
                            ts_op_name(calls[0].frame->op));
    return product->run(calls[0].frame, count > 1 ? &after : NULL);
}
