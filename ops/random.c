/** @file random.c  Random fills, multinomial draws, dropout. core/philox.h defines the bits. */
// SPDX-License-Identifier: MIT
#include "core/philox.h"
#include "include/tessera/ops.h"
#include "ops/ops.h"

#include <math.h>
#include <string.h>

/* ------------------------------------------------------------------ counters of a call ---- */

/* These run before infer checks the arguments; invalid arguments reserve nothing. */

/** Number of elements of a list of sizes; 0 if the list is invalid. */
static uint64_t elements(const ts_value *sizes)
{
    int64_t n;
    if (sizes->count > TS_MAX_DIMS ||
        !ts_product(sizes->ints, (int)sizes->count, &n))
        return 0;
    return (uint64_t)n;
}

/** Number of Philox counters for n random elements of this dtype. */
static uint64_t philox_blocks(uint64_t n, int64_t dtype)
{
    return dtype == TS_F64 ? ts_philox_blocks_64(n) : ts_philox_blocks_32(n);
}

uint64_t ts_reserve_draw(const ts_frame *f)
{
    return philox_blocks(elements(&f->args[0]), f->args[3].i);
}

uint64_t ts_reserve_randint(const ts_frame *f)
{
    return ts_philox_blocks_64(elements(&f->args[0]));
}

uint64_t ts_reserve_randperm(const ts_frame *f)
{
    return f->args[0].i > 0 ? ts_philox_blocks_64((uint64_t)f->args[0].i) : 0;
}

uint64_t ts_reserve_bernoulli(const ts_frame *f)
{
    const ts_value *p = &f->args[0];
    if (p->tag == TS_TAG_TENSOR)
        return philox_blocks((uint64_t)p->t->numel, p->t->dtype);
    return philox_blocks(elements(&f->args[1]), f->args[2].i);
}

uint64_t ts_reserve_multinomial(const ts_frame *f)
{
    const ts_tensor *p = f->args[0].t;
    int64_t rows, draws = f->args[1].i;
    if (p->ndim < 1 || p->ndim > 2 || draws < 1)
        return 0;
    if (!f->args[2].i)
        return ts_philox_blocks_64((uint64_t)p->numel);
    rows = p->ndim == 2 ? p->sizes[0] : 1;
    return ts_mul_size(rows, draws, &draws) ? ts_philox_blocks_64((uint64_t)draws) : 0;
}

uint64_t ts_reserve_dropout(const ts_frame *f)
{
    return ts_philox_blocks_32((uint64_t)f->args[0].t->numel);
}

/* ------------------------------------------------------------------------------- rules ---- */

ts_status ts_infer_uniform(ts_frame *f)
{
    double low = f->args[1].d, high = f->args[2].d;
    if (!isfinite(low))
        return ts_fail_arg(f, 1, TS_ERR_VALUE, "expected a finite number, got %g", low);
    if (!(low <= high) || !isfinite(high) || !isfinite(high - low))
        return ts_fail_arg(f, 2, TS_ERR_VALUE,
                           "expected a finite number of at least low = %g, got %g", low, high);
    return ts_infer_sizes(f, 0, 3);
}

ts_status ts_infer_normal(ts_frame *f)
{
    double std = f->args[2].d;
    if (!(std >= 0))
        return ts_fail_arg(f, 2, TS_ERR_VALUE,
                           "expected a standard deviation of at least 0, got %g", std);
    return ts_infer_sizes(f, 0, 3);
}

/** Smallest and largest integer that a dtype holds; for floating dtypes, the range in which all
 *  integers are exact. */
static void integers_of(int64_t dtype, int64_t *low, int64_t *high)
{
    *low = INT64_MIN;
    *high = INT64_MAX;
    switch (dtype) {
    case TS_F64: *high = (int64_t)1 << 53; *low = -*high; break;
    case TS_F32: *high = (int64_t)1 << 24; *low = -*high; break;
    case TS_F16: *high = 2048; *low = -*high; break;
    case TS_BF16: *high = 256; *low = -*high; break;
    case TS_I32: *high = INT32_MAX; *low = INT32_MIN; break;
    case TS_U8: *high = 255; *low = 0; break;
    case TS_BOOL: *high = 1; *low = 0; break;
    default: break;
    }
}

ts_status ts_infer_randint(ts_frame *f)
{
    int64_t low = f->args[1].i, high = f->args[2].i, least, most;
    if (low >= high)
        return ts_fail_arg(f, 2, TS_ERR_VALUE, "expected more than low = %lld, got %lld",
                           (long long)low, (long long)high);
    TS_TRY(ts_infer_sizes(f, 0, 3));
    integers_of(f->args[3].i, &least, &most);
    if (low < least || high - 1 > most)
        return ts_fail_arg(f, low < least ? 1 : 2, TS_ERR_VALUE,
                           "expected integers from %lld to %lld for dtype %s, got [%lld, %lld)",
                           (long long)least, (long long)most, ts_dtype_name((ts_dtype)f->args[3].i),
                           (long long)low, (long long)high);
    return TS_OK;
}

ts_status ts_infer_randperm(ts_frame *f)
{
    int64_t n = f->args[0].i, dtype = f->args[1].i, bytes, least, most;
    TS_TRY(ts_check_dtype_number(f, 1));
    integers_of(dtype, &least, &most);
    if (n < 0 || n - 1 > most || !ts_mul_size(n, ts_dtype_sizes[dtype], &bytes))
        return ts_fail_arg(f, 0, TS_ERR_VALUE, "expected 0 to %lld for dtype %s, got %lld",
                           (long long)most, ts_dtype_name((ts_dtype)dtype), (long long)n);
    f->plan->compute = (ts_dtype)dtype;
    ts_plan_result(f->plan, 0, &n, 1, (ts_dtype)dtype, f->args[2].device);
    return TS_OK;
}

static ts_status check_probability(ts_frame *f, int arg, double p)
{
    if (p >= 0 && p <= 1)
        return TS_OK;
    return ts_fail_arg(f, arg, TS_ERR_VALUE, "expected a probability from 0 to 1, got %g", p);
}

ts_status ts_infer_bernoulli(ts_frame *f)
{
    const ts_value *p = &f->args[0];
    if (p->tag == TS_TAG_TENSOR) {
        const ts_value *sizes = &f->args[1];
        TS_TRY(ts_check_float(f, 0));
        if (sizes->count != p->t->ndim ||
            (sizes->count && memcmp(sizes->ints, p->t->sizes, sizes->count * 8) != 0))
            return ts_fail_arg(f, 1, TS_ERR_SHAPE, "expected the sizes of p, %s, got %s",
                               TS_SIZES_TEXT(p->t), TS_LIST_TEXT(sizes->ints, sizes->count));
        if (f->args[2].i != p->t->dtype)
            return ts_fail_arg(f, 2, TS_ERR_DTYPE, "expected p's %s, got number %lld",
                               ts_dtype_name((ts_dtype)p->t->dtype), (long long)f->args[2].i);
        ts_plan_like(f->plan, p->t);
        return TS_OK;
    }
    TS_TRY(check_probability(f, 0, p->tag == TS_TAG_FLOAT ? p->d : (double)p->i));
    return ts_infer_sizes(f, 1, 2);
}

/** The plan has `outer` rows of `count` categories. Result 0's last size is the number of samples
 *  per row. */
ts_status ts_infer_multinomial(ts_frame *f)
{
    const ts_tensor *p = f->args[0].t;
    int64_t draws = f->args[1].i, numel, bytes, sizes[2];
    TS_TRY(ts_check_float(f, 0));
    if (p->ndim < 1 || p->ndim > 2 || p->sizes[p->ndim - 1] < 1)
        return ts_fail_arg(f, 0, TS_ERR_SHAPE, "expected sizes (C) or (N, C) with C >= 1, got %s",
                           TS_SIZES_TEXT(p));
    int64_t categories = p->sizes[p->ndim - 1];
    if (draws < 1)
        return ts_fail_arg(f, 1, TS_ERR_VALUE, "expected at least 1, got %lld", (long long)draws);
    if (!f->args[2].i && draws > categories)
        return ts_fail_arg_hint(
            f, 1, TS_ERR_VALUE, "draw with replacement",
            "expected at most the %lld categories without replacement, got %lld",
            (long long)categories, (long long)draws);
    sizes[0] = p->ndim == 2 ? p->sizes[0] : draws;
    sizes[1] = draws;
    if (!ts_tensor_bytes(sizes, p->ndim, 8, &numel, &bytes))
        return ts_fail_arg(f, 1, TS_ERR_VALUE,
                           "expected a number of samples whose bytes fit 63 bits, got %lld",
                           (long long)draws);
    f->plan->compute = (ts_dtype)p->dtype;
    f->plan->outer = p->ndim == 2 ? p->sizes[0] : 1;
    f->plan->count = categories;
    ts_plan_result(f->plan, 0, sizes, p->ndim, TS_I64, p->storage->device);
    return TS_OK;
}

ts_status ts_infer_dropout(ts_frame *f)
{
    TS_TRY(ts_check_float(f, 0));
    TS_TRY(check_probability(f, 1, f->args[1].d));
    TS_TRY(ts_infer_pointwise(f, 1, TS_DTYPE_NONE, false));
    f->plan->pointwise = TS_POINTWISE_IN_ORDER;
    return TS_OK;
}

/* ------------------------------------------------------------------------ public forms ---- */

/** True if dropout keeps all elements: p is 0, or not in training and p is valid. */
static bool keeps_all(double p, bool train) { return p == 0 || (!train && p > 0 && p <= 1); }

ts_tensor *ts_dropout(ts_tensor *x, double p, bool train)
{
    ts_value args[] = {V_T(x), V_F(p)};
    if (keeps_all(p, train))
        return ts_tensor_ok(x, "dropout", "self", __builtin_return_address(0))
                   ? ts_invoke(TS_OP_alias, args, 1, 1)
                   : NULL;
    return ts_invoke(TS_OP_dropout, args, TS_N(args), 1);
}

ts_tensor *ts_dropout_(ts_tensor *x, double p, bool train)
{
    if (keeps_all(p, train))
        return ts_tensor_ok(x, "dropout", "self", __builtin_return_address(0)) ? x : NULL;
    return TS_INVOKE_OUT(x, TS_OP_dropout, V_T(x), V_F(p));
}

ts_tensor *ts_dropout_backward(ts_tensor *grad, double p, ts_rng_state at)
{
    return TS_INVOKE(TS_OP_dropout_backward, V_T(grad), V_F(p), V_I((int64_t)at.seed),
                     V_I((int64_t)at.offset));
}
