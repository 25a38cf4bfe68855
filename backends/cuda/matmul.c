/** @file matmul.c  Products of matrices and linear layers. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/product/epilogue.h"
#include "backends/cuda/convolution/few.h"
#include "backends/cuda/product/padding.h"

#include "tessera/ops.h"

/** Describes t by its last two dims; the dim before them is the batch. */
static ts_cuda_matrix matrix_of(const ts_tensor *t)
{
    int n = ts_ndim(t);
    const int64_t *sizes = ts_sizes(t), *strides = ts_strides(t);
    ts_cuda_matrix m = {ts_kernel_data(t), sizes[n - 2], sizes[n - 1], strides[n - 2],
                        strides[n - 1], n > 2 ? strides[n - 3] : 0};
    /* a dim of size 1 has an arbitrary stride: set strides so that one dim is dense, if possible */
    if (m.rows == 1 && m.columns == 1)
        m.row = m.column = 1;
    else if (m.rows == 1)
        m.row = m.column == 1 ? m.columns : 1;
    else if (m.columns == 1)
        m.column = m.row == 1 ? m.rows : 1;
    return m;
}

/** True if a product reads the matrix in place: rows or columns are dense and do not overlap. */
static bool is_plain(const ts_cuda_matrix *m)
{
    return (m->column == 1 && m->row >= m->columns) || (m->row == 1 && m->column >= m->rows);
}

/** Describes a dense tensor as one matrix: the last dim is a row, all other dims count rows. */
static ts_cuda_matrix rows_of(const ts_tensor *t)
{
    int64_t columns = ts_size(t, -1), rows = columns ? ts_numel(t) / columns : 0;
    return (ts_cuda_matrix){ts_kernel_data(t), rows, columns, columns ? columns : 1, 1, 0};
}

static ts_cuda_matrix transposed(ts_cuda_matrix m)
{
    return (ts_cuda_matrix){m.data, m.columns, m.rows, m.column, m.row, m.batch};
}

/* --------------------------------------------------------------------- where operands lie ---- */

/*
 * For unaligned data cuBLASLt uses other algorithms, which add in another order. To make results
 * depend bitwise on shapes only, all products use 16-byte aligned data. Unaligned data, which is
 * rare, is copied; for halves the copy costs less than an algorithm for unaligned data.
 */
static bool is_even(const ts_tensor *t) { return (uintptr_t)ts_kernel_data(t) % 16 == 0; }

static ts_tensor *even(ts_tensor *t) { return is_even(t) ? t : ts_clone(t); }

/** Describes t by its last two dims, in place or as a dense copy that the scope owns. */
static ts_status operand(ts_tensor *t, ts_cuda_matrix *m)
{
    *m = matrix_of(t);
    if (is_plain(m) && is_even(t))
        return TS_OK;
    TS_TRY(t = even(ts_contiguous(t)));
    *m = matrix_of(t);
    return TS_OK;
}

/** Describes t (..., K) as one matrix (rows, K), in place or as a dense copy that the scope
 * owns. */
static ts_status operand_rows(ts_tensor *t, ts_cuda_matrix *m)
{
    if (ts_ndim(t) == 2)
        return operand(t, m);
    if (!ts_is_contiguous(t) || !is_even(t))
        TS_TRY(t = even(ts_contiguous(t)));
    *m = rows_of(t);
    return TS_OK;
}

/** The tensor that a product writes: the result, or a temporary if the result is not dense or not
 * aligned. */
static ts_tensor *destination_for(ts_tensor *result)
{
    return ts_is_contiguous(result) && is_even(result)
               ? result
               : ts_empty_on(ts_sizes(result), ts_ndim(result), ts_dtype_of(result),
                             ts_device_of(result));
}
static ts_status deliver(ts_tensor *result, ts_tensor *y)
{
    return y == result ? TS_OK : ts_status_of_pointer(ts_copy_(result, y));
}

/* ------------------------------------------------------------------------------- products ---- */

/**
 * c = a b with an epilogue. For k = 0 the result is zero, or the bias.
 * @param ready  a padded copy of `a` that serves a padded product, or NULL
 */
static ts_status product_with(ts_frame *f, const ts_cuda_matrix *a, const ts_cuda_matrix *b,
                              const ts_cuda_matrix *c, int64_t batches, ts_tensor *y,
                              ts_tensor *bias, ts_cuda_epilogue then, const ts_cuda_matrix *ready)
{
    if (!c->rows || !c->columns || !batches)
        return TS_OK;
    if (!a->columns)
        return ts_status_of_pointer(bias ? ts_copy_(y, bias) : (ts_fill_)(y, ts_scalar_int(0)));
    if (bias) {
        if (!ts_is_contiguous(bias) || !is_even(bias))
            TS_TRY(bias = even(ts_contiguous(bias)));
        then.bias = ts_kernel_data(bias);
    }
    ts_dtype dtype = ts_kernel_dtype(f);
    if (!ts_dtype_is_float(dtype))
        return ts_cuda_gemm_integers(f, dtype, a, b, c, batches, then.bias);
    if (ts_cuda_few_columns_fit(dtype, a, b, c, batches, &then))
        return ts_cuda_few_columns(f, a, b, c, then.bias);
    ts_cuda_padding p;
    if (!ts_cuda_pads(dtype, a, b, c, batches, &then, &p)) {
        ts_cuda_log_direct(f, dtype, a, b, c, batches);
        return ts_cuda_gemm(f, dtype, a, b, c, batches, &then);
    }
    if (p.a && ready) {
        p.a = false;
        a = ready;
    }
    return ts_cuda_gemm_padded(f, dtype, a, b, c, batches, &then, &p);
}

static ts_status product(ts_frame *f, const ts_cuda_matrix *a, const ts_cuda_matrix *b,
                         const ts_cuda_matrix *c, int64_t batches, ts_tensor *y, ts_tensor *bias,
                         ts_cuda_epilogue then)
{
    return product_with(f, a, b, c, batches, y, bias, then, NULL);
}

static const ts_cuda_epilogue nothing = {0};

/* ------------------------------------------------------------------------------ epilogues ---- */

/** The fields of cuBLASLt's epilogue for the calls after a product; none if `after` is NULL.
 * factors: room for two numbers. */
static ts_cuda_epilogue epilogue_of(const ts_cuda_after *after, double factors[2])
{
    if (!after)
        return nothing;
    factors[0] = factors[1] = 1;
    return (ts_cuda_epilogue){.gelu = after->gelu,
                              .wide = after->wide,
                              .relu = after->relu_first || after->relu_last,
                              .linear = ts_kernel_data(after->linear),
                              .gelu_of = ts_kernel_data(after->gelu_of),
                              .curve = ts_kernel_data(after->curve),
                              .columns = ts_kernel_data(after->sums),
                              .added = ts_kernel_data(after->added),
                              .factors = after->added ? factors : NULL};
}

/** True if a product reads t in place: as rows if it has more than two dims and is not a batch. */
static bool is_in_place(const ts_frame *f, const ts_value *v, bool rows)
{
    if (v->tag != TS_TAG_TENSOR)
        return true;
    bool dense = ts_is_contiguous(v->t);
    if (ts_dtype_of(v->t) != ts_kernel_dtype(f) || !is_even(v->t) || !ts_numel(v->t))
        return false;
    if (ts_ndim(v->t) < 2 || (rows && ts_ndim(v->t) > 2))
        return dense;
    ts_cuda_matrix m = matrix_of(v->t);
    return is_plain(&m);
}

/** True if the frame's tensors are read in place, the tensors of the epilogue are aligned, and,
 * for halves, the lengths are multiples of 8 elements: other halves may be padded. */
static bool takes_epilogue(const ts_frame *f, const ts_cuda_after *after, bool rows)
{
    const ts_tensor *others[] = {after->result, after->added, after->gelu_of, after->linear,
                                 after->curve};
    bool takes = ts_dtype_is_float(ts_kernel_dtype(f)) && ts_is_contiguous(after->result) &&
                 !after->norm && !(after->relu_first && after->added) &&
                 !((after->relu_first || after->relu_last) &&
                   (after->wide || ts_kernel_dtype(f) == TS_F64));
    for (size_t i = 0; i < sizeof others / sizeof *others && takes; i++)
        takes = !others[i] || is_even(others[i]);
    for (int i = 0; i < f->nargs && takes; i++) {
        takes = is_in_place(f, &f->args[i], rows);
        for (int d = 0; takes && f->args[i].tag == TS_TAG_TENSOR && d < 2; d++)
            takes = !ts_dtype_is_half(ts_kernel_dtype(f)) ||
                    (ts_ndim(f->args[i].t) > d && ts_size(f->args[i].t, -1 - d) % 8 == 0) ||
                    (d && rows && ts_ndim(f->args[i].t) != 2);
    }
    return takes;
}

/** Sets the cost of an epilogue with gelu_of to 0 if product/wgmma.cuh computes the product of a
 * and b. False if the epilogue has sums or gelu, which need that kernel, and another one computes
 * the product. */
static bool takes_slope(const ts_frame *f, ts_cuda_after *after, const ts_cuda_matrix *a,
                        const ts_cuda_matrix *b)
{
    const ts_cuda_device *device = ts_cuda_use(ts_kernel_device(f).index);
    double factors[2];
    ts_cuda_epilogue then = epilogue_of(after, factors);
    ts_cuda_matrix c = rows_of(after->result);
    bool own = device && ts_cuda_takes_slope(device, ts_kernel_dtype(f), a, b, &c, 1, &then);
    after->cost = own ? 0 : after->cost;
    return own || !(after->sums || after->curve);
}

/* A transposed operand, as in gradients of weights, is read in place; only results are always
 * dense. */
static ts_status mm_with(ts_frame *f, const ts_cuda_after *after)
{
    TS_SCOPE;
    ts_tensor *result = after ? after->result : f->rets[0].t, *y = destination_for(result);
    double factors[2];
    ts_cuda_matrix a, b, c;
    TS_TRY(y);
    TS_TRY(operand(f->args[0].t, &a));
    TS_TRY(operand(f->args[1].t, &b));
    c = matrix_of(y);
    c.row = c.columns;
    c.column = 1;
    TS_TRY(product(f, &a, &b, &c, ts_ndim(y) > 2 ? ts_size(y, 0) : 1, y, NULL,
                   epilogue_of(after, factors)));
    return deliver(result, y);
}
static ts_status mm(ts_frame *f) { return mm_with(f, NULL); }
static bool mm_takes(const ts_frame *f, ts_cuda_after *after)
{
    bool one = ts_ndim(f->args[0].t) == 2 ||
               !(after->gelu || after->gelu_of || after->relu_first || after->relu_last);
    if (!one || !takes_epilogue(f, after, false))
        return false;
    ts_cuda_matrix a = matrix_of(f->args[0].t), b = matrix_of(f->args[1].t);
    return !after->gelu_of || takes_slope(f, after, &a, &b);
}

/** addmm of integer tensors: a product, then beta self + alpha product. */
static ts_status addmm_integers(ts_frame *f)
{
    TS_SCOPE;
    ts_tensor *y = ts_mul_scalar(ts_mm(f->args[1].t, f->args[2].t), f->args[4].i);
    y = ts_add(y, ts_mul_scalar(f->args[0].t, f->args[3].i));
    return ts_status_of_pointer(ts_copy_(f->rets[0].t, y));
}

static double factor_of(const ts_value *v) { return v->tag == TS_TAG_FLOAT ? v->d : (double)v->i; }

/** addmm(self, mat1, mat2, beta, alpha) as one product, rounded once. A self of one row is passed
 * as the product's bias, a dense self as the added matrix; any other self is copied to the result
 * first. */
static ts_status addmm(ts_frame *f)
{
    TS_SCOPE;
    if (!ts_dtype_is_float(ts_kernel_dtype(f)))
        return addmm_integers(f);
    ts_tensor *self = f->args[0].t, *result = f->rets[0].t, *y = destination_for(result);
    double factors[2] = {factor_of(&f->args[4]), factor_of(&f->args[3])};
    ts_cuda_epilogue then = {.factors = factors};
    int64_t columns = ts_size(result, 1);
    bool row = factors[1] == 1 && ts_ndim(self) > 0 && ts_size(self, -1) == columns &&
               ts_numel(self) == columns;
    ts_cuda_matrix a, b, c;
    TS_TRY(y);
    TS_TRY(operand(f->args[1].t, &a));
    TS_TRY(operand(f->args[2].t, &b));
    c = matrix_of(y);
    c.row = c.columns;
    c.column = 1;
    if (row)
        factors[1] = 0;
    if (factors[1] != 0) {
        if (a.columns && ts_numel(self) == ts_numel(y) && ts_is_contiguous(self) && is_even(self))
            then.added = ts_kernel_data(self);
        else
            TS_TRY(ts_copy_(y, self));
        if (!a.columns) {
            TS_TRY(ts_mul_scalar_(y, factors[1]));
            return deliver(result, y);
        }
    }
    TS_TRY(product(f, &a, &b, &c, 1, y, row ? self : NULL, then));
    return deliver(result, y);
}

static ts_tensor *bias_of(const ts_frame *f)
{
    return f->args[2].tag == TS_TAG_TENSOR ? f->args[2].t : NULL;
}

/** input (..., K), weight (N, K), bias (N) -> y (..., N), which is dense */
static ts_status linear_into(ts_frame *f, ts_tensor *y, ts_cuda_epilogue then)
{
    ts_cuda_matrix x, w, c = rows_of(y);
    TS_TRY(operand_rows(f->args[0].t, &x));
    TS_TRY(operand(f->args[1].t, &w));
    w = transposed(w);
    return product(f, &x, &w, &c, 1, y, bias_of(f), then);
}

static ts_status linear_with(ts_frame *f, const ts_cuda_after *after)
{
    TS_SCOPE;
    ts_tensor *result = after ? after->result : f->rets[0].t, *y = destination_for(result);
    double factors[2];
    TS_TRY(y);
    TS_TRY(linear_into(f, y, epilogue_of(after, factors)));
    return deliver(result, y);
}
static ts_status linear(ts_frame *f) { return linear_with(f, NULL); }
/** Describes an operand that is_in_place(), as rows if it has more than two dims. */
static ts_cuda_matrix rows_in_place(const ts_tensor *t)
{
    return ts_ndim(t) == 2 ? matrix_of(t) : rows_of(t);
}
static bool linear_takes(const ts_frame *f, ts_cuda_after *after)
{
    bool bare = !(after->wide || after->gelu_of); /* these have no bias */
    if ((!bare && bias_of(f)) || ts_ndim(f->args[0].t) < 2 || !takes_epilogue(f, after, true))
        return false;
    ts_cuda_matrix x = rows_in_place(f->args[0].t), w = transposed(matrix_of(f->args[1].t));
    return !after->gelu_of || takes_slope(f, after, &x, &w);
}

/** True if the epilogue can compute gelu: halves whose rows are multiples of 16 bytes. In f32 the
 * epilogue's gelu is less accurate than the kernel's and not faster. */
static bool is_half_in_vectors(const ts_frame *f)
{
    ts_dtype dtype = ts_kernel_dtype(f);
    int64_t columns = ts_size(f->args[1].t, 0), inner = ts_size(f->args[1].t, 1);
    return ts_dtype_is_half(dtype) && columns % 8 == 0 && inner % 8 == 0 && inner;
}

/* input (..., K), weight (N, K), bias (N), tanh -> gelu (..., N), its argument (..., N) */
static ts_status linear_gelu(ts_frame *f)
{
    TS_SCOPE;
    ts_tensor *result = f->rets[0].t, *kept = f->rets[1].tag == TS_TAG_TENSOR ? f->rets[1].t : NULL;
    ts_tensor *y = destination_for(result), *x = kept ? destination_for(kept) : y;
    TS_TRY(y);
    TS_TRY(x);
    if (f->args[3].i && is_half_in_vectors(f)) { /* epilogues have the tanh form only */
        TS_TRY(linear_into(
            f, y, (ts_cuda_epilogue){.gelu = true, .linear = kept ? ts_kernel_data(x) : NULL}));
    } else {
        TS_TRY(linear_into(f, x, nothing));
        TS_TRY(f->args[3].i ? ts_gelu_tanh_out(y, x) : ts_gelu_out(y, x));
    }
    TS_TRY(deliver(result, y));
    return kept ? deliver(kept, x) : TS_OK;
}

/** Sums of grad (..., N) over all dims but the last. */
static ts_status column_sums(ts_tensor *result, ts_tensor *grad)
{
    static const int64_t dims[TS_MAX_DIMS] = {0, 1, 2, 3, 4, 5, 6, 7};
    int leading = ts_ndim(grad) - 1;
    if (!ts_dtype_is_float(ts_dtype_of(grad))) /* ts_sum() of integers gives i64 */
        return ts_status_of_pointer(ts_copy_(result, ts_sum_to_size(grad, ts_sizes(result), 1)));
    return ts_status_of_pointer(leading ? ts_sum_out(result, grad, dims, leading, false)
                                        : ts_copy_(result, grad));
}

/** Operands of the products of a layer's gradients. */
typedef struct layer_gradients {
    ts_cuda_matrix grad, input, weight, of_input, of_weight;
    ts_tensor *y[3];       /* gradients of input, weight and bias; NULL: not wanted */
    bool summed;           /* the weight's product also gives the bias gradient */
    ts_cuda_padded padded; /* a copy of grad for both products; data NULL: none */
} layer_gradients;

enum {
    SUMMED_ROWS = 128,
    SUMMED_BYTES = 32 << 20 /* of grad; more are not in the second-level cache */
};

/** True if column_sums() computes the bias gradient faster than the epilogue's pass over grad. */
static bool is_long(const layer_gradients *l, ts_dtype dtype)
{
    return ts_dtype_is_half(dtype) && l->grad.rows * l->grad.columns * 2 > SUMMED_BYTES;
}

/** True if the epilogue of the weight's product computes the bias gradient. With this epilogue,
 * cuBLASLt is slow for few features and for large gradients; and it does not split the inner dim if
 * rows are not multiples of 16 bytes, which takes 80 times as long. */
static bool sums_in_epilogue(const ts_frame *f, const layer_gradients *l)
{
    ts_dtype dtype = ts_kernel_dtype(f);
    ts_cuda_matrix up = transposed(l->grad);
    const ts_cuda_matrix *c = &l->of_weight;
    if (!l->y[2] || !ts_dtype_is_float(dtype) || dtype == TS_F64 || c->rows < SUMMED_ROWS ||
        is_long(l, dtype) || !c->columns || !up.columns)
        return false;
    ts_cuda_epilogue then = {.sums = ts_kernel_data(l->y[2])};
    ts_cuda_padding p;
    return ts_cuda_pads(dtype, &up, &l->input, c, 1, &then, &p)
               ? ts_cuda_padded_gemm_is_there(f, dtype, &up, &l->input, c, 1, &then, &p)
               : !ts_cuda_is_uneven(dtype, &up, &l->input, c, 1) &&
                     ts_cuda_gemm_is_there(f, dtype, &up, &l->input, c, 1, &then);
}

/** Copies grad once if both products pad it. */
static ts_status pad_gradient(ts_frame *f, layer_gradients *l)
{
    ts_dtype dtype = ts_kernel_dtype(f);
    ts_cuda_matrix up = transposed(l->grad);
    ts_cuda_padding p, q;
    if (!l->y[0] || !l->y[1] || !l->grad.rows || !l->grad.columns || !l->weight.columns ||
        !ts_cuda_pads(dtype, &l->grad, &l->weight, &l->of_input, 1, &nothing, &p) ||
        !ts_cuda_pads(dtype, &up, &l->input, &l->of_weight, 1, &nothing, &q) || !p.a || !q.a)
        return TS_OK;
    return ts_cuda_pad_matrix(f, &l->grad, p.rows > q.inner ? p.rows : q.inner,
                              p.inner > q.rows ? p.inner : q.rows, &l->padded);
}

/** True if the weight's product may run beside the input's: ts_cuda_gemm_f32() computes that one,
 *  and it does not read what this one writes. */
static bool runs_beside(const ts_frame *f, const layer_gradients *l)
{
    const ts_cuda_device *device = ts_cuda_use(ts_kernel_device(f).index);
    return ts_kernel_dtype(f) == TS_F32 && device && l->y[0] && !ts_cuda_tf32() &&
           l->weight.data != l->of_weight.data &&
           ts_cuda_takes_f32(device, &l->grad, &l->weight, &l->of_input, 1, &nothing);
}

static ts_status gradient_products(ts_frame *f, layer_gradients *l, const ts_cuda_after *after)
{
    const ts_cuda_matrix *ready = l->padded.data ? &l->padded.matrix : NULL;
    double factors[2];
    if (l->y[0])
        TS_TRY(product_with(f, &l->grad, &l->weight, &l->of_input, 1, l->y[0], NULL,
                            epilogue_of(after && after->of == 0 ? after : NULL, factors), ready));
    if (!l->y[1])
        return TS_OK;
    ts_cuda_matrix up = transposed(l->grad), ready_up;
    if (ready)
        ready_up = transposed(*ready);
    ts_cuda_epilogue then = epilogue_of(after && after->of == 1 ? after : NULL, factors);
    then.sums = l->summed ? ts_kernel_data(l->y[2]) : NULL;
    then.beside = !after && runs_beside(f, l);
    return product_with(f, &up, &l->input, &l->of_weight, 1, l->y[1], NULL, then,
                        ready ? &ready_up : NULL);
}

/** Describes the operands and results. to[i] receives gradient i; NULL: not wanted. */
static ts_status describe_gradients(ts_frame *f, ts_tensor *const to[3], layer_gradients *l)
{
    for (int i = 0; i < 3; i++)
        if (to[i])
            TS_TRY(l->y[i] = destination_for(to[i]));
    TS_TRY(operand_rows(f->args[0].t, &l->grad));
    if (l->y[0]) {
        TS_TRY(operand(f->args[2].t, &l->weight));
        l->of_input = rows_of(l->y[0]);
    }
    if (l->y[1]) {
        TS_TRY(operand_rows(f->args[1].t, &l->input));
        l->of_weight = rows_of(l->y[1]);
        l->summed = sums_in_epilogue(f, l);
    }
    return TS_OK;
}
/** Sets to[i] to the tensor that receives result i, NULL if it is not wanted. */
static void find_results(const ts_frame *f, const ts_cuda_after *after, ts_tensor *to[3])
{
    for (int i = 0; i < 3; i++)
        to[i] = after && after->of == i                ? after->result
                : f->rets[i].tag == TS_TAG_TENSOR ? f->rets[i].t
                                                       : NULL;
}

/* grad (..., N), input (..., K), weight (N, K) -> (..., K), (N, K), (N) */
static ts_status linear_backward_with(ts_frame *f, const ts_cuda_after *after)
{
    TS_SCOPE;
    layer_gradients l = {0};
    ts_tensor *to[3];
    find_results(f, after, to);
    TS_TRY(describe_gradients(f, to, &l));
    TS_TRY(pad_gradient(f, &l));
    ts_status status = gradient_products(f, &l, after);
    if (l.padded.data)
        ts_scratch_give(ts_kernel_device(f), l.padded.data, l.padded.bytes);
    TS_TRY(status);
    if (l.y[2] && !l.summed)
        TS_TRY(column_sums(l.y[2], f->args[0].t));
    for (int i = 0; i < 3; i++)
        if (l.y[i])
            TS_TRY(deliver(to[i], l.y[i]));
    return TS_OK;
}
static ts_status linear_backward(ts_frame *f) { return linear_backward_with(f, NULL); }
/** False also if the bias gradient of a grad that is not long would need a separate kernel, if it
 * would need a second epilogue, or if a gradient that the calls do not read has no memory. */
static bool linear_backward_takes(const ts_frame *f, ts_cuda_after *after)
{
    ts_tensor *to[3];
    find_results(f, after, to);
    if (after->of > 1 || ts_ndim(f->args[0].t) < 2 || (to[2] && (after->of || !to[1])) ||
        !takes_epilogue(f, after, true))
        return false;
    for (int i = 0; i < 3; i++) /* a result that only these calls use has no memory */
        if (to[i] && !(ts_kernel_data(to[i]) && ts_is_contiguous(to[i]) && is_even(to[i])))
            return false;
    if ((after->sums || after->curve) && after->of)
        return false;
    if (after->gelu_of && !after->of) {
        ts_cuda_matrix grad = rows_in_place(f->args[0].t), weight = matrix_of(f->args[2].t);
        if (!takes_slope(f, after, &grad, &weight))
            return false;
    }
    if (!to[2])
        return true;
    layer_gradients l = {0};
    return describe_gradients((ts_frame *)f, to, &l) == TS_OK &&
           (l.summed || is_long(&l, ts_kernel_dtype(f)));
}

#define FLOATS                                                                                     \
    (TS_DTYPE_BIT(TS_F64) | TS_DTYPE_BIT(TS_F32) | TS_DTYPE_BIT(TS_BF16) | TS_DTYPE_BIT(TS_F16))
#define NUMBERS (FLOATS | TS_DTYPE_BIT(TS_I64) | TS_DTYPE_BIT(TS_I32) | TS_DTYPE_BIT(TS_U8))
static const ts_cuda_kernel kernels[] = {
    {"mm", mm, NUMBERS, .strided = true},
    {"bmm", mm, NUMBERS, .strided = true},
    {"addmm", addmm, NUMBERS, .strided = true},
    {"linear", linear, NUMBERS, .strided = true},
    {"linear_gelu", linear_gelu, FLOATS, .strided = true},
    {"linear_backward", linear_backward, NUMBERS, .strided = true},
};
const ts_cuda_product ts_cuda_matmul_products[TS_CUDA_MATMULS] = {
    {mm, mm_with, mm_takes},
    {linear, linear_with, linear_takes},
    {linear_backward, linear_backward_with, linear_backward_takes},
};
const ts_cuda_family ts_cuda_matmul = {kernels, sizeof kernels / sizeof *kernels};
