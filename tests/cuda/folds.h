/**
 * @file folds.h  Random functions of reductions over adjacent dims, with pointwise calls before and
 * after them.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_TESTS_CUDA_FOLDS_H
#define TESSERA_TESTS_CUDA_FOLDS_H

#include "tests/cuda/groups.h"

enum { FOLD_INPUTS = 4, FOLD_OUTPUTS = 5 };

typedef struct fold_program {
    uint64_t seed;
    int64_t sizes[3];
    int ndim, first, dims; /* dims first .. first + dims - 1 are reduced */
    bool keep;             /* reduced dims stay, with size 1 */
    ts_dtype dtype;
    double shift; /* added to the numbers among the arguments; changes from call to call */
} fold_program;

static inline fold_program draw_fold(uint64_t seed)
{
    static const int64_t few[] = {1, 2, 3, 5, 8, 16, 17, 40}, many[] = {2, 7, 64, 129, 1000, 4096,
                                                                        8200, 20003, 65536};
    static const ts_dtype dtypes[] = {TS_F32, TS_BF16, TS_F16, TS_F32, TS_F64, TS_BF16};
    group_draw d = {seed * 0x9e3779b97f4a7c15ull + 17};
    below(&d, 2);
    fold_program p = {.seed = seed, .ndim = 1 + (int)below(&d, 3)};
    int large = (int)below(&d, (uint32_t)p.ndim), second = (int)below(&d, 3);
    for (int i = 0; i < p.ndim; i++)
        p.sizes[i] = i == large ? many[below(&d, 9)] : few[below(&d, i == second ? 8 : 5)];
    p.first = (int)below(&d, (uint32_t)p.ndim);
    p.dims = 1 + (int)below(&d, (uint32_t)(p.ndim - p.first));
    if (below(&d, 3) == 0) {
        p.first = 0;
        p.dims = p.ndim;
    }
    p.keep = below(&d, 2);
    p.dtype = dtypes[below(&d, 6)];
    return p;
}

/** Input k: 0 has the space's sizes, 1 those of a row, 2 one element per row, 3 those of the space,
 *  starting at the second element of its storage. */
static inline ts_tensor *fold_input(const fold_program *p, int k, ts_device device)
{
    int64_t sizes[3], n = 1;
    for (int i = 0; i < p->ndim; i++) {
        bool last = i == p->ndim - 1;
        n *= sizes[i] = (k == 1 && !last) || (k == 2 && last) ? 1 : p->sizes[i];
    }
    ts_tensor *t = ts_to_device(ts_to(ts_normal(TS_SIZES(n + 1), 0, 1, TS_F32), p->dtype), device);
    return ts_reshape(ts_narrow(t, 0, k == 3, n), sizes, p->ndim);
}

/** A drawn reduction of t over the program's dims; prod reduces the first of these only. */
static inline ts_tensor *fold_call(const fold_program *p, group_draw *d, ts_tensor *t)
{
    int64_t dims[3];
    for (int i = 0; i < p->dims; i++)
        dims[i] = p->first + i;
    switch (below(d, 7)) {
    case 0: return ts_sum_dims(t, dims, p->dims, p->keep);
    case 1: return ts_mean_dims(t, dims, p->dims, p->keep);
    case 2: return ts_amax_dims(t, dims, p->dims, p->keep);
    case 3: return ts_amin_dims(t, dims, p->dims, p->keep);
    case 4: return ts_prod_dim(t, dims[0], p->keep);
    case 5: return ts_norm_dims(t, below(d, 2) ? 2 : 1, dims, p->dims, p->keep);
    default: return ts_norm_dims(t, INFINITY, dims, p->dims, p->keep);
    }
}

/** The ts_trace_fn of a program; ctx is a fold_program. */
static inline ts_status fold_function(void *ctx, ts_tensor *const *in, int n, ts_tensor **out,
                                      int m)
{
    const fold_program *p = ctx;
    group_draw draw = {p->seed * 0xd1342543de82ef95ull + 29}, *d = &draw;
    below(d, 2);
    ts_tensor *t = in[below(d, 2) ? 0 : 3], *results[3];
    int count = 1 + (int)below(d, 3), calls = 1 + (int)below(d, 4);
    (void)n, (void)m;
    for (int i = 0; i < calls && t; i++)
        switch (below(d, 6)) {
        case 0: t = ts_add(t, in[1]); break;
        case 1: t = ts_mul(t, in[2]); break;
        case 2: t = ts_mul_scalar(t, 0.5 + p->shift); break;
        case 3: t = ts_sub(t, in[below(d, 2) ? 3 : 0]); break;
        case 4: t = ts_add_scalar(ts_to(ts_to(t, TS_F32), p->dtype), 0.25); break;
        default: t = below(d, 2) ? ts_abs(t) : ts_tanh(t);
        }
    out[0] = below(d, 2) ? t : TS_NONE;
    for (int i = 0; i < count && t; i++)
        if (!(results[i] = fold_call(p, d, t)))
            return ts_error_code();
    if (!t)
        return ts_error_code();
    ts_tensor *y = results[0], *last = results[count - 1];
    bool alike = ts_ndim(y) == ts_ndim(last) && ts_numel(y) == ts_numel(last);
    switch (below(d, 5)) {
    case 0: y = ts_sqrt(ts_abs(y)); break;
    case 1: y = alike ? ts_sub(ts_mul_scalar(y, 3 + p->shift), last) : ts_neg(y); break;
    case 2: y = ts_add_scalar_(ts_to(y, TS_F32), 1.5); break;
    case 3: y = alike ? ts_maximum(ts_exp(last), y) : ts_exp(y); break;
    default: break;
    }
    out[1] = y;
    out[2] = last;
    out[3] = below(d, 2) ? results[count / 2] : TS_NONE;
    out[4] = below(d, 2) && ts_numel(y) && p->keep ? ts_div(t, y) : TS_NONE; /* reads the results */
    return TS_STATUS_OF(y);
}

#endif
