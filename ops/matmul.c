/** @file matmul.c  Matrix products: shape rules, public functions, composites, costs. */
// SPDX-License-Identifier: MIT
#include "include/tessera/check.h"
#include "ops/parts.h"

/* ------------------------------------------------------------------------------- rules ---- */

/**
 * True if a backend can read the matrix in the last two dims without a copy: one dim has stride 1,
 * and the stride of the other is at least its size. Strides of leading dims are arbitrary. Other
 * layouts are copied first.
 */
static bool matrix_readable(const ts_tensor *t)
{
    int64_t rows = t->sizes[t->ndim - 2], columns = t->sizes[t->ndim - 1];
    int64_t row = t->strides[t->ndim - 2], column = t->strides[t->ndim - 1];
    return ((column == 1 || columns <= 1) && (row >= columns || rows <= 1)) ||
           ((row == 1 || rows <= 1) && (column >= rows || columns <= 1));
}

/** True if the last dim is dense and the other dims can be merged into one dim of rows. */
static bool rows_readable(const ts_tensor *t)
{
    int last = t->ndim - 1;
    if (t->flags & TS_TENSOR_CONTIGUOUS)
        return true;
    if (t->sizes[last] > 1 && t->strides[last] != 1)
        return false;
    int64_t expected = -1; /* step of the outer dim, once known */
    for (int d = last - 1; d >= 0; d--) {
        if (t->sizes[d] == 1)
            continue;
        if (expected < 0 ? t->strides[d] < t->sizes[last] : t->strides[d] != expected)
            return false;
        expected = t->strides[d] * t->sizes[d];
    }
    return true;
}

static ts_status check_dtype(ts_frame *f, int arg, int as)
{
    return ts_check_dtype_as(f, arg, as, "cast one with ts_to()");
}

static ts_status fail_inner(ts_frame *f, int arg, int64_t expected, int dim)
{
    const ts_tensor *t = f->args[arg].t;
    return ts_fail_arg(f, arg, TS_ERR_SHAPE, "expected %lld as size of dim %d, got sizes %s",
                       (long long)expected, dim, TS_SIZES_TEXT(t));
}

/** Plans the product of argument `at` (b…, m, k) and the next argument (b…, k, n). */
static ts_status infer_product(ts_frame *f, int at, int ndim)
{
    ts_plan *plan = f->plan;
    TS_TRY(ts_check_ndim(f, at, ndim));
    TS_TRY(ts_check_ndim(f, at + 1, ndim));
    const ts_tensor *a = f->args[at].t, *b = f->args[at + 1].t;
    TS_TRY(check_dtype(f, at + 1, at));
    TS_TRY(ts_check_one_device(f));
    if (ndim == 3 && a->sizes[0] != b->sizes[0])
        return fail_inner(f, at + 1, a->sizes[0], 0);
    if (a->sizes[ndim - 1] != b->sizes[ndim - 2])
        return fail_inner(f, at + 1, a->sizes[ndim - 1], ndim - 2);
    int64_t *sizes = plan->buffer[0];
    sizes[0] = a->sizes[0];
    sizes[ndim - 2] = a->sizes[ndim - 2];
    sizes[ndim - 1] = b->sizes[ndim - 1];
    plan->ret[0] = ts_meta_of(sizes, (ts_dtype)a->dtype, a->device, ndim, 0);
    plan->compute = (ts_dtype)a->dtype;
    plan->strided = (uint16_t)((matrix_readable(a) | matrix_readable(b) << 1) << at);
    return TS_OK;
}

ts_status ts_infer_mm(ts_frame *f) { return infer_product(f, 0, 2); }
ts_status ts_infer_bmm(ts_frame *f) { return infer_product(f, 0, 3); }

/** Checks that a factor of an integer product is a whole number. */
static ts_status check_factor(ts_frame *f, int arg)
{
    if (ts_dtype_is_float(f->plan->compute) || f->args[arg].tag != TS_TAG_FLOAT)
        return TS_OK;
    return ts_fail_arg(f, arg, TS_ERR_DTYPE, "expected a whole number for dtype %s, got %g",
                       ts_dtype_name(f->plan->compute), f->args[arg].d);
}

/* self (broadcast to m, n), mat1 (m, k), mat2 (k, n), beta, alpha */
ts_status ts_infer_addmm(ts_frame *f)
{
    TS_TRY(infer_product(f, 1, 2));
    TS_TRY(check_dtype(f, 0, 1));
    TS_TRY(ts_check_broadcasts(f, 0, f->plan->buffer[0], 2));
    f->plan->strided |= 1;
    TS_TRY(check_factor(f, 3));
    return check_factor(f, 4);
}

/* input (…, K), weight (N, K), bias (N) */
ts_status ts_infer_linear(ts_frame *f)
{
    ts_plan *plan = f->plan;
    const ts_tensor *x = f->args[0].t, *w = f->args[1].t;
    TS_TRY(ts_check_ndim(f, 1, 2));
    if (!x->ndim)
        return ts_fail_arg(f, 0, TS_ERR_SHAPE, "expected at least 1 dim, got none");
    TS_TRY(check_dtype(f, 1, 0));
    TS_TRY(ts_check_one_device(f));
    if (x->sizes[x->ndim - 1] != w->sizes[1])
        return fail_inner(f, 0, w->sizes[1], x->ndim - 1);
    if (f->args[2].tag == TS_TAG_TENSOR) {
        TS_TRY(ts_check_sizes(f, 2, w->sizes, 1));
        TS_TRY(check_dtype(f, 2, 0));
    }
    int64_t *sizes = plan->buffer[0];
    for (int d = 0; d < x->ndim - 1; d++)
        sizes[d] = x->sizes[d];
    sizes[x->ndim - 1] = w->sizes[0];
    plan->ret[0] = ts_meta_of(sizes, (ts_dtype)x->dtype, x->device, x->ndim, 0);
    plan->compute = (ts_dtype)x->dtype;
    plan->strided = (uint16_t)(rows_readable(x) | matrix_readable(w) << 1);
    return TS_OK;
}

/* Like linear -> (…, N), (…, N) */
ts_status ts_infer_linear_gelu(ts_frame *f)
{
    TS_TRY(ts_check_float(f, 0));
    TS_TRY(ts_infer_linear(f));
    f->plan->ret[1] = f->plan->ret[0];
    return TS_OK;
}

/*
 * grad (…, N), input (…, K), weight (N, K) -> (…, K), (N, K), (N). Arguments that the requested
 * results do not read may be absent: the first reads grad and weight, the second grad and input,
 * the third grad.
 */
ts_status ts_infer_linear_backward(ts_frame *f)
{
    static const char missing[] = "expected a tensor, since gradient %d is wanted; got none";
    ts_plan *plan = f->plan;
    const ts_tensor *g = f->args[0].t;
    const ts_tensor *x = f->args[1].tag == TS_TAG_TENSOR ? f->args[1].t : NULL;
    const ts_tensor *w = f->args[2].tag == TS_TAG_TENSOR ? f->args[2].t : NULL;
    ts_dtype dtype = (ts_dtype)g->dtype;
    int last = g->ndim - 1;
    if (!g->ndim)
        return ts_fail_arg(f, 0, TS_ERR_SHAPE, "expected at least 1 dim, got none");
    TS_TRY(ts_check_one_device(f));
    int64_t n = g->sizes[last], *sizes = plan->buffer[0];
    for (int d = 0; d <= last; d++)
        sizes[d] = g->sizes[d];
    plan->compute = dtype;
    plan->strided = (uint16_t)rows_readable(g);
    if (w) {
        TS_TRY(ts_check_ndim(f, 2, 2));
        TS_TRY(check_dtype(f, 2, 0));
        if (w->sizes[0] != n)
            return fail_inner(f, 2, n, 0);
        sizes[last] = w->sizes[1];
        plan->strided |= (uint16_t)(matrix_readable(w) << 2);
    } else if (f->want & 1) {
        return ts_fail_arg(f, 2, TS_ERR_NULL, missing, 0);
    }
    if (x) {
        TS_TRY(check_dtype(f, 1, 0));
        sizes[last] = w || !x->ndim ? sizes[last] : x->sizes[x->ndim - 1];
        TS_TRY(ts_check_sizes(f, 1, sizes, g->ndim));
        plan->strided |= (uint16_t)(rows_readable(x) << 1);
    } else if (f->want & 2) {
        return ts_fail_arg(f, 1, TS_ERR_NULL, missing, 1);
    }
    plan->ret[0] = ts_meta_of(sizes, dtype, g->device, g->ndim, x ? x->numel : 0);
    if (w)
        ts_plan_result_like(plan, 1, w, dtype);
    else
        ts_plan_result(plan, 1, (int64_t[]){n, sizes[last]}, 2, dtype, g->device);
    plan->ret[2] = ts_meta_of(&g->sizes[last], dtype, g->device, 1, g->numel ? n : 0);
    return TS_OK;
}

/* --------------------------------------------------------------------------- composites ---- */

/** Expands t's leading dims to `batch` and merges them: (count, rows, columns). */
static ts_tensor *as_batch(ts_tensor *t, const int64_t *batch, int nbatch)
{
    int64_t sizes[TS_MAX_DIMS];
    for (int d = 0; d < nbatch; d++)
        sizes[d] = batch[d];
    sizes[nbatch] = t->sizes[t->ndim - 2];
    sizes[nbatch + 1] = t->sizes[t->ndim - 1];
    int64_t count = 1;
    for (int d = 0; d < nbatch; d++)
        count *= batch[d];
    return ts_reshape(ts_expand(t, sizes, nbatch + 2),
                      (int64_t[]){count, sizes[nbatch], sizes[nbatch + 1]}, 3);
}

/* A 1-dim tensor is a row on the left and a column on the right; the result lacks the added dim. */
ts_status ts_composite_matmul(ts_frame *f)
{
    ts_tensor *a = f->args[0].t, *b = f->args[1].t;
    int na = a->ndim, nb = b->ndim, n = 0;
    int64_t sizes[TS_MAX_DIMS + 2];
    if (!na || !nb)
        return ts_fail_arg(f, na ? 1 : 0, TS_ERR_SHAPE, "expected at least 1 dim, got none");
    TS_TRY(check_dtype(f, 1, 0));
    TS_TRY(ts_check_one_device(f));
    int inner = nb == 1 ? 0 : nb - 2;
    if (a->sizes[na - 1] != b->sizes[inner])
        return fail_inner(f, 1, a->sizes[na - 1], inner);
    if (!ts_broadcast(a->sizes, na > 2 ? na - 2 : 0, b->sizes, nb > 2 ? nb - 2 : 0, sizes, &n)) {
        return ts_fail_arg(f, 1, TS_ERR_SHAPE,
                           "expected leading sizes that broadcast with those of %s, got %s",
                           TS_SIZES_TEXT(a), TS_SIZES_TEXT(b));
    }
    TS_SCOPE;
    ts_tensor *y;
    if (na <= 2 && nb <= 2) {
        y = ts_mm(na == 1 ? ts_unsqueeze(a, 0) : a, nb == 1 ? ts_unsqueeze(b, 1) : b);
    } else if (nb <= 2) { /* one product: the batch dims are merged into the rows */
        y = ts_linear(a, nb == 1 ? ts_unsqueeze(b, 0) : ts_transpose(b, 0, 1), TS_NONE);
    } else {
        y = ts_bmm(TS_STATUS_OF(a = na == 1 ? ts_unsqueeze(a, 0) : a) == TS_OK
                       ? as_batch(a, sizes, n)
                       : NULL,
                   as_batch(b, sizes, n));
    }
    TS_TRY(y);
    int ndim = n;
    if (na > 1)
        sizes[ndim++] = a->sizes[a->ndim - 2];
    if (nb > 1)
        sizes[ndim++] = b->sizes[nb - 1];
    if (na == 1 || nb == 1 || n > 1)
        TS_TRY(y = ts_reshape(y, sizes, ndim));
    f->rets[0] = V_T(ts_retain(y));
    return TS_OK;
}

/** t times a number; t itself if the number is 1. */
static ts_tensor *times(ts_tensor *t, const ts_value *factor)
{
    return ts_value_number(factor) == 1 ? t : (ts_mul_scalar)(t, ts_value_unbox(factor));
}

ts_status ts_composite_addmm(ts_frame *f)
{
    TS_SCOPE;
    const ts_value *args = f->args;
    ts_dtype dtype = ts_widened_dtype(f->plan->compute);
    ts_tensor *y = times(ts_mm(ts_as(args[1].t, dtype), ts_as(args[2].t, dtype)), &args[4]);
    if (ts_value_number(&args[3]) != 0)
        y = ts_add(y, times(ts_as(args[0].t, dtype), &args[3]));
    return ts_parts_give(f, &y, 1);
}

ts_status ts_composite_linear_gelu(ts_frame *f)
{
    TS_SCOPE;
    ts_tensor *bias = f->args[2].tag == TS_TAG_TENSOR ? f->args[2].t : TS_NONE;
    ts_tensor *x = ts_linear(f->args[0].t, f->args[1].t, bias);
    return ts_parts_give(f, (ts_tensor *[]){f->args[3].i ? ts_gelu_tanh(x) : ts_gelu(x), x}, 2);
}

/* -------------------------------------------------------------------------------- cost ---- */

static ts_work work(const ts_frame *f, double flops)
{
    double elements;
    return (ts_work){flops, ts_cost_bytes(f, &elements)};
}

/** Elements of result i; 0 when it is not wanted. */
static double made(const ts_frame *f, int i)
{
    return f->rets[i].tag == TS_TAG_TENSOR ? (double)f->rets[i].t->numel : 0;
}

/** 2 m n k, from the result's elements and the columns of the first argument. */
ts_work ts_cost_product(const ts_frame *f)
{
    const ts_tensor *a = f->args[0].t;
    return work(f, a->ndim ? 2 * made(f, 0) * (double)a->sizes[a->ndim - 1] : 0);
}

/** Per element of the result: 2 k for the product, 3 for beta, alpha and the sum. */
ts_work ts_cost_addmm(const ts_frame *f)
{
    return work(f, made(f, 0) * (2 * (double)f->args[1].t->sizes[1] + 3));
}

/** 2 m n k for each wanted product (gradients of input and weight), m n for the bias. */
ts_work ts_cost_linear_backward(const ts_frame *f)
{
    const ts_tensor *g = f->args[0].t;
    const ts_value *other = f->args[1].tag == TS_TAG_TENSOR ? &f->args[1] : &f->args[2];
    double products = (made(f, 0) > 0) + (made(f, 1) > 0), columns = 0;
    if (other->tag == TS_TAG_TENSOR)
        columns = (double)other->t->sizes[other->t->ndim - 1];
    return work(f, (double)g->numel * (2 * products * columns + (made(f, 2) > 0)));
}

/* -------------------------------------------------------------------------- public forms ---- */

ts_status ts_linear_backward(ts_tensor *grad, ts_tensor *input, ts_tensor *weight,
                             ts_tensor **grad_input, ts_tensor **grad_weight, ts_tensor **grad_bias)
{
    ts_value args[] = {V_T(grad), V_OPT(input), V_OPT(weight)};
    ts_tensor **outs[] = {grad_input, grad_weight, grad_bias};
    return ts_invoke_wanted(TS_OP_linear_backward, args, TS_N(args), outs, 3,
                            __builtin_return_address(0));
}
