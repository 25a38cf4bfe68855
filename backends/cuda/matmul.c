/** @file matmul.c  Products of matrices and linear layers. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/gemm.h"

#include "tessera/ops.h"

/** The last two dims of t, the one before them as batch. */
static ts_cuda_matrix matrix_of(const ts_tensor *t)
{
    int n = ts_ndim(t);
    const int64_t *sizes = ts_sizes(t), *strides = ts_strides(t);
    ts_cuda_matrix m = {ts_kernel_data(t), sizes[n - 2], sizes[n - 1], strides[n - 2], strides[n - 1], n > 2 ? strides[n - 3] : 0};
    /* a dim of one element has any stride: let the other one be dense, if it is not repeated */
    if (m.rows == 1 && m.columns == 1)
        m.row = m.column = 1;
    else if (m.rows == 1)
        m.row = m.column == 1 ? m.columns : 1;
    else if (m.columns == 1)
        m.column = m.row == 1 ? m.rows : 1;
    return m;
}

/** Whether the product takes it as it lies: rows or columns are dense and do not overlap. */
static bool is_plain(const ts_cuda_matrix *m)
{
    return (m->column == 1 && m->row >= m->columns) || (m->row == 1 && m->column >= m->rows);
}

/** All dims but the last as rows. */
static ts_cuda_matrix rows_of(const ts_tensor *t)
{
    int n = ts_ndim(t);
    const int64_t *sizes = ts_sizes(t), *strides = ts_strides(t);
    int64_t columns = sizes[n - 1], rows = columns ? ts_numel(t) / columns : 0, step = columns;
    for (int d = n - 2; d >= 0; d--)
        if (sizes[d] > 1) {
            step = strides[d];
            break;
        }
    return (ts_cuda_matrix){ts_kernel_data(t), rows, columns, step < columns ? columns : step, 1, 0};
}

static ts_cuda_matrix transposed(ts_cuda_matrix m)
{
    return (ts_cuda_matrix){m.data, m.columns, m.rows, m.column, m.row, m.batch};
}

/** c = a b; nothing to add up gives zeros, or the bias. */
static ts_status product(ts_frame *f, const ts_cuda_matrix *a, const ts_cuda_matrix *b, const ts_cuda_matrix *c,
                         int64_t batches, ts_tensor *result, ts_tensor *bias)
{
    if (!c->rows || !c->columns || !batches)
        return TS_OK;
    if (!a->columns) {
        TS_SCOPE;
        return bias ? ts_status_of_pointer(ts_copy_(result, bias)) : ts_status_of_pointer((ts_fill_)(result, ts_scalar_int(0)));
    }
    return ts_cuda_gemm(f, ts_kernel_dtype(f), a, b, c, batches, bias ? ts_kernel_data(bias) : NULL);
}

/** An operand as it lies, or a dense copy. */
static ts_status operand(ts_tensor *t, ts_cuda_matrix *m)
{
    *m = matrix_of(t);
    if (is_plain(m))
        return TS_OK;
    t = ts_contiguous(t);
    TS_TRY(t);
    *m = matrix_of(t);
    return TS_OK;
}

/* A transposed operand, as in gradients of weights, is read as it lies; only results are always dense. */
static ts_status mm(ts_frame *f)
{
    TS_SCOPE;
    ts_tensor *result = f->rets[0].t, *y = ts_is_contiguous(result) ? result : ts_contiguous(result);
    ts_cuda_matrix a, b, c;
    TS_TRY(y);
    TS_TRY(operand(f->args[0].t, &a));
    TS_TRY(operand(f->args[1].t, &b));
    c = matrix_of(y);
    c.row = c.columns;
    c.column = 1;
    TS_TRY(product(f, &a, &b, &c, ts_ndim(y) > 2 ? ts_size(y, 0) : 1, y, NULL));
    return y == result ? TS_OK : ts_status_of_pointer(ts_copy_(result, y));
}

/* input (..., K), weight (N, K), bias (N) -> (..., N) */
static ts_status linear(ts_frame *f)
{
    ts_tensor *y = f->rets[0].t;
    ts_cuda_matrix x = rows_of(f->args[0].t), w = transposed(matrix_of(f->args[1].t)), c = rows_of(y);
    return product(f, &x, &w, &c, 1, y, f->args[2].tag == TS_TAG_TENSOR ? f->args[2].t : NULL);
}

/* grad (..., N), input (..., K), weight (N, K) -> (..., K), (N, K), (N) */
static ts_status linear_backward(ts_frame *f)
{
    ts_tensor *grad = f->args[0].t;
    ts_cuda_matrix g = rows_of(grad);
    if (f->rets[0].tag == TS_TAG_TENSOR) {
        ts_cuda_matrix w = matrix_of(f->args[2].t), c = rows_of(f->rets[0].t);
        TS_TRY(product(f, &g, &w, &c, 1, f->rets[0].t, NULL));
    }
    if (f->rets[1].tag == TS_TAG_TENSOR) {
        ts_cuda_matrix up = transposed(g), x = rows_of(f->args[1].t), c = matrix_of(f->rets[1].t);
        TS_TRY(product(f, &up, &x, &c, 1, f->rets[1].t, NULL));
    }
    if (f->rets[2].tag == TS_TAG_TENSOR) {
        TS_SCOPE;
        int64_t n = ts_size(grad, -1);
        TS_TRY(ts_copy_(f->rets[2].t, ts_sum_to_size(grad, &n, 1)));
    }
    return TS_OK;
}

#define FLOATS (TS_DTYPE_BIT(TS_F64) | TS_DTYPE_BIT(TS_F32) | TS_DTYPE_BIT(TS_BF16) | TS_DTYPE_BIT(TS_F16))
static const ts_cuda_kernel kernels[] = {
    {"mm", mm, FLOATS, true},
    {"bmm", mm, FLOATS, true},
    {"linear", linear, FLOATS, false},
    {"linear_backward", linear_backward, FLOATS, false},
};
const ts_cuda_family ts_cuda_matmul = {kernels, sizeof kernels / sizeof *kernels};
