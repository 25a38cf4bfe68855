/**
 * @file kernels.c  Kernels in f32 for training a small network. All other calls run on the CPU
 * (fallback).
 *
 * There are three kinds: loops over the iteration space of a pointwise op, reductions over the dims
 * in a mask, and loops over contiguous matrices.
 */
// SPDX-License-Identifier: MIT
#include "my_backend.h"

#include <math.h>
#include <string.h>

#define F32 TS_DTYPE_BIT(TS_F32)

/** Host address of a tensor's first element; NULL without elements. */
static float *at(const ts_tensor *t)
{
    void *data = ts_kernel_data(t);
    return data ? my_real(data) : NULL;
}

/* --------------------------------------------------------------------------- pointwise ---- */

/** A result element from elements x[0], x[1], ... of the operands. */
typedef float (*function)(const float *x);

static float f_copy(const float *x) { return x[0]; }
static float f_add(const float *x) { return x[0] + x[1]; }
static float f_sub(const float *x) { return x[0] - x[1]; }
static float f_mul(const float *x) { return x[0] * x[1]; }
static float f_div(const float *x) { return x[0] / x[1]; }
static float f_neg(const float *x) { return -x[0]; }
static float f_exp(const float *x) { return expf(x[0]); }
static float f_sin(const float *x) { return sinf(x[0]); }
static float f_cos(const float *x) { return cosf(x[0]); }
static float f_tanh(const float *x) { return tanhf(x[0]); }
static float f_tanh_backward(const float *x) { return x[0] * (1 - x[1] * x[1]); }
static float f_relu(const float *x) { return x[0] < 0 ? 0 : x[0]; }

/** Applies fn to the space, row by row along dim 0, the innermost. */
static ts_status pointwise(ts_frame *f, function fn)
{
    ts_space s;
    TS_TRY(ts_kernel_space(f, &s));
    char *base[TS_KERNEL_OPERANDS];
    float host[TS_KERNEL_OPERANDS]; /* values of operands in host memory */
    for (int k = 0; k < s.operands; k++) {
        if (s.operand[k].host) {
            host[k] = (float)ts_operand_number(&s.operand[k]);
            base[k] = (char *)&host[k];
        } else {
            base[k] = s.numel ? my_real(s.operand[k].data) : NULL;
        }
    }
    for (int64_t row = 0; s.numel && row < s.numel / s.sizes[0]; row++) {
        char *p[TS_KERNEL_OPERANDS];
        int64_t rest = row;
        memcpy(p, base, sizeof p);
        for (int d = 1; d < s.ndim; d++) {
            for (int k = 0; k < s.operands; k++)
                p[k] += rest % s.sizes[d] * s.operand[k].strides[d];
            rest /= s.sizes[d];
        }
        for (int64_t i = 0; i < s.sizes[0]; i++) {
            float x[TS_KERNEL_OPERANDS];
            for (int k = 1; k < s.operands; k++)
                x[k - 1] = *(float *)(p[k] + i * s.operand[k].strides[0]);
            *(float *)(p[0] + i * s.operand[0].strides[0]) = fn(x);
        }
    }
    return TS_OK;
}

#define POINTWISE(name) \
    static ts_status name##_kernel(ts_frame *f) { return pointwise(f, f_##name); }
POINTWISE(copy)
POINTWISE(add)
POINTWISE(sub)
POINTWISE(mul)
POINTWISE(div)
POINTWISE(neg)
POINTWISE(exp)
POINTWISE(sin)
POINTWISE(cos)
POINTWISE(tanh)
POINTWISE(tanh_backward)
POINTWISE(relu)

/* -------------------------------------------------------------------------- reductions ---- */

/** Sum or mean over the dims in ts_kernel_reduced()'s mask, accumulated in double. The argument is
 * contiguous. */
static ts_status reduce(ts_frame *f, bool mean)
{
    const ts_tensor *t = f->args[0].t;
    const int64_t *sizes = ts_sizes(t);
    int64_t mask = ts_kernel_reduced(f), n = ts_numel(f->rets[0].t), terms = 1;
    float *out = at(f->rets[0].t);
    const float *in = at(t);
    int ndim = ts_ndim(t);
    for (int d = 0; d < ndim; d++)
        terms *= mask >> d & 1 ? sizes[d] : 1;
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int64_t k = 0; k < terms; k++) {
            int64_t kept = i, gone = k, place = 0, span = 1;
            for (int d = ndim - 1; d >= 0; d--) {
                int64_t *index = mask >> d & 1 ? &gone : &kept;
                place += *index % sizes[d] * span;
                *index /= sizes[d];
                span *= sizes[d];
            }
            sum += in[place];
        }
        out[i] = (float)(mean ? sum / (double)terms : sum);
    }
    return TS_OK;
}
static ts_status sum_kernel(ts_frame *f) { return reduce(f, false); }
static ts_status mean_kernel(ts_frame *f) { return reduce(f, true); }

/* ---------------------------------------------------------------------------- matrices ---- */

/** linear(input (R, K), weight (N, K), bias? (N)) -> (R, N); leading dims of input are rows. */
static ts_status linear_kernel(ts_frame *f)
{
    const ts_tensor *y = f->rets[0].t;
    const float *x = at(f->args[0].t), *w = at(f->args[1].t);
    const float *bias = f->args[2].tag == TS_TAG_TENSOR ? at(f->args[2].t) : NULL;
    float *out = at(y);
    int64_t n = ts_size(f->args[1].t, 0), k = ts_size(f->args[1].t, 1),
            rows = n ? ts_numel(y) / n : 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < n; j++) {
            float sum = bias ? bias[j] : 0;
            for (int64_t i = 0; i < k; i++)
                sum += x[r * k + i] * w[j * k + i];
            out[r * n + j] = sum;
        }
    return TS_OK;
}

/** linear_backward(grad (R, N), input? (R, K), weight? (N, K)) -> (R, K),
 * (N, K), (N), each only if the caller requests it. */
static ts_status linear_backward_kernel(ts_frame *f)
{
    const ts_tensor *g = f->args[0].t;
    const float *grad = at(g);
    int64_t n = ts_size(g, -1), rows = n ? ts_numel(g) / n : 0;
    if (f->rets[0].tag == TS_TAG_TENSOR) {
        const float *w = at(f->args[2].t);
        int64_t k = ts_size(f->args[2].t, 1);
        float *out = at(f->rets[0].t);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = 0; i < k; i++) {
                float sum = 0;
                for (int64_t j = 0; j < n; j++)
                    sum += grad[r * n + j] * w[j * k + i];
                out[r * k + i] = sum;
            }
    }
    if (f->rets[1].tag == TS_TAG_TENSOR) {
        const float *x = at(f->args[1].t);
        int64_t k = ts_size(f->args[1].t, -1);
        float *out = at(f->rets[1].t);
        for (int64_t j = 0; j < n; j++)
            for (int64_t i = 0; i < k; i++) {
                float sum = 0;
                for (int64_t r = 0; r < rows; r++)
                    sum += grad[r * n + j] * x[r * k + i];
                out[j * k + i] = sum;
            }
    }
    if (f->rets[2].tag == TS_TAG_TENSOR) {
        float *out = at(f->rets[2].t);
        for (int64_t j = 0; j < n; j++) {
            float sum = 0;
            for (int64_t r = 0; r < rows; r++)
                sum += grad[r * n + j];
            out[j] = sum;
        }
    }
    return TS_OK;
}

/* --------------------------------------------------------------------------- optimizer ---- */

/** adamw(params, grads, exp_avg, exp_avg_sq, steps, lr, beta1, beta2, eps, weight_decay,
 *  decoupled, found, skipped, grad_scale). A gradient scaler passes found and skipped; those calls
 *  run on the CPU. */
static ts_status adamw_kernel(ts_frame *f)
{
    const ts_value *a = f->args;
    double lr = a[5].d, beta1 = a[6].d, beta2 = a[7].d, eps = a[8].d, decay = a[9].d;
    double scale = a[13].tag == TS_TAG_TENSOR ? *at(a[13].t) : 1;
    bool decoupled = a[10].i;
    for (uint32_t t = 0; t < a[0].count; t++) {
        float *p = at(a[0].list[t]), *m = at(a[2].list[t]), *v = at(a[3].list[t]);
        const float *grad = at(a[1].list[t]);
        double step = (double)a[4].ints[t], c1 = 1 - pow(beta1, step),
               c2 = sqrt(1 - pow(beta2, step));
        for (int64_t i = 0; i < ts_numel(a[0].list[t]); i++) {
            double g = scale * grad[i] + (decoupled ? 0 : decay * p[i]);
            double x = decoupled ? p[i] * (1 - lr * decay) : p[i];
            m[i] = (float)(beta1 * m[i] + (1 - beta1) * g);
            v[i] = (float)(beta2 * v[i] + (1 - beta2) * g * g);
            p[i] = (float)(x - lr / c1 * m[i] / (sqrt(v[i]) / c2 + eps));
        }
    }
    return TS_OK;
}

/* ------------------------------------------------------------------------ registration ---- */

/** A kernel and the schema it is written for. If the op has another schema, loading the backend
 * fails with an error that names the op. */
typedef struct row {
    const char *op;
    ts_kernel kernel;
    const char *schema;
} row;

static const row rows[] = {
    {"copy", copy_kernel, "copy(Tensor self) -> Tensor"},
    {"add", add_kernel, "add(Tensor|Scalar self, Tensor|Scalar other) -> Tensor"},
    {"sub", sub_kernel, "sub(Tensor|Scalar self, Tensor|Scalar other) -> Tensor"},
    {"mul", mul_kernel, "mul(Tensor|Scalar self, Tensor|Scalar other) -> Tensor"},
    {"div", div_kernel, "div(Tensor|Scalar self, Tensor|Scalar other) -> Tensor"},
    {"neg", neg_kernel, "neg(Tensor self) -> Tensor"},
    {"exp", exp_kernel, "exp(Tensor self) -> Tensor"},
    {"sin", sin_kernel, "sin(Tensor self) -> Tensor"},
    {"cos", cos_kernel, "cos(Tensor self) -> Tensor"},
    {"tanh", tanh_kernel, "tanh(Tensor self) -> Tensor"},
    {"tanh_backward", tanh_backward_kernel, "tanh_backward(Tensor grad, Tensor result) -> Tensor"},
    {"relu", relu_kernel, "relu(Tensor self) -> Tensor"},
    {"full", copy_kernel, "full(int[] sizes, Scalar value, dtype dtype, device device) -> Tensor"},
    {"sum", sum_kernel, "sum(Tensor self, int[]? dims, bool keepdim) -> Tensor"},
    {"mean", mean_kernel, "mean(Tensor self, int[]? dims, bool keepdim) -> Tensor"},
    {"linear", linear_kernel, "linear(Tensor input, Tensor weight, Tensor? bias) -> Tensor"},
    {"linear_backward", linear_backward_kernel,
     "linear_backward(Tensor grad, Tensor? input, Tensor? weight) -> (Tensor, Tensor, Tensor)"},
    {"adamw", adamw_kernel,
     "adamw(Tensor[](a!) params, Tensor[] grads, Tensor[](b!) exp_avg, Tensor[](c!) exp_avg_sq, "
     "int[] steps, float lr, float beta1, float beta2, float eps, float weight_decay, bool "
     "decoupled, Tensor? found, Tensor[]?(d!) skipped, Tensor? grad_scale) -> ()"},
};

static int adamw = -1, copy = -1;

ts_status my_kernels_install(ts_key key)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ts_kernel_opts opts = {.size = sizeof opts, .schema = rows[i].schema, .dtypes = F32};
        TS_TRY(ts_register_kernel_ex(rows[i].op, key, rows[i].kernel, &opts, NULL));
    }
    adamw = ts_op_by_name("adamw");
    copy = ts_op_by_name("copy");
    return TS_OK;
}

/* The library checks dtypes, and layouts of single tensors. It does not check lists, and a copy
 * into a given tensor may convert. A call that is refused here runs on the CPU. */
bool my_kernels_support(const ts_frame *f)
{
    if (f->op == copy)
        return !f->given || ts_dtype_of(f->rets[0].t) == ts_dtype_of(f->args[0].t);
    if (f->op == adamw && f->args[11].tag == TS_TAG_TENSOR)
        return false; // a call with a gradient scaler
    for (int a = 0; f->op == adamw && a < 4; a++)
        for (uint32_t k = 0; k < f->args[a].count; k++)
            if (ts_dtype_of(f->args[a].list[k]) != TS_F32 || !ts_is_contiguous(f->args[a].list[k]))
                return false;
    return true;
}
