/** @file resample.c  Average pooling, padding and resizing, which are weighted sums over the last
 * dims: decoding of calls (also of max pools), shape rules, composites and public functions. */
// SPDX-License-Identifier: MIT
#include "include/tessera/check.h"
#include "core/checked.h"
#include "ops/parts.h"
#include "ops/spatial.h"

#include <math.h>
#include <string.h>

/* ------------------------------------------------------------------------------ decoding ---- */

/** The kind of an op, and the indices of its arguments; 0 if the op has no such argument (argument
 *  0 is always the tensor). sizes: spatial sizes of the result; count: true if averages count the
 *  padding. */
typedef struct arg_indices {
    ts_axis_map map;
    bool transposed;
    int sizes, kernel, stride, padding, dilation, ceil, count, divisor, mode;
} arg_indices;

static const arg_indices *arguments_of(const ts_frame *f)
{
    static const arg_indices
        max_pool = {.map = TS_AXIS_WINDOW, .kernel = 1, .stride = 2, .padding = 3, .dilation = 4,
                    .ceil = 5},
        max_pool_backward = {.map = TS_AXIS_WINDOW, .transposed = true, .sizes = 2, .kernel = 3,
                             .stride = 4, .padding = 5, .dilation = 6},
        max_pool_taps_backward = {.map = TS_AXIS_WINDOW, .transposed = true, .sizes = 3,
                                  .kernel = 4, .stride = 5, .padding = 6, .dilation = 7},
        avg_pool = {.map = TS_AXIS_WINDOW, .kernel = 1, .stride = 2, .padding = 3, .ceil = 4,
                    .count = 5, .divisor = 6},
        avg_pool_backward = {.map = TS_AXIS_WINDOW, .transposed = true, .sizes = 1, .kernel = 2,
                             .stride = 3, .padding = 4, .ceil = 5, .count = 6, .divisor = 7},
        adaptive = {.map = TS_AXIS_ADAPTIVE, .sizes = 1},
        adaptive_backward = {.map = TS_AXIS_ADAPTIVE, .transposed = true, .sizes = 1},
        resize = {.map = TS_AXIS_NEAREST, .sizes = 1, .mode = 2},
        resize_backward = {.map = TS_AXIS_NEAREST, .transposed = true, .sizes = 1, .mode = 2},
        pad = {.map = TS_AXIS_CONSTANT, .padding = 1, .mode = 2},
        pad_backward = {.map = TS_AXIS_CONSTANT, .transposed = true, .padding = 1, .mode = 2};
    switch (f->op) {
    case TS_OP_max_pool:
    case TS_OP_max_pool_taps: return &max_pool;
    case TS_OP_max_pool_taps_backward: return &max_pool_taps_backward;
    case TS_OP_max_pool_backward: return &max_pool_backward;
    case TS_OP_avg_pool: return &avg_pool;
    case TS_OP_avg_pool_backward: return &avg_pool_backward;
    case TS_OP_adaptive_avg_pool_backward: return &adaptive_backward;
    case TS_OP_interpolate: return &resize;
    case TS_OP_interpolate_backward: return &resize_backward;
    case TS_OP_pad: return &pad;
    case TS_OP_pad_backward: return &pad_backward;
    case TS_OP_adaptive_avg_pool:
    case TS_OP_adaptive_max_pool: return &adaptive;
    default: return NULL;
    }
}

/** Number of spatial dims of a call. For padding: the dims after (N, C), at most 3, or more if the
 * list has numbers for more. */
static int dims_of(const ts_frame *f, const arg_indices *at)
{
    if (at->map == TS_AXIS_CONSTANT) {
        int given = (int)f->args[at->padding].count / 2, all = f->args[0].t->ndim - 2;
        all = all < TS_MAX_SPATIAL ? all : TS_MAX_SPATIAL;
        return given > all ? given : all;
    }
    if (at->sizes)
        return (int)f->args[at->sizes].count;
    return (int)f->args[at->kernel].count;
}

/** Returns ts_axis.scale: input elements per output element. given: the scale factor; 0: none. As
 * in PyTorch, the factor is ignored if the size stays (except cubic) or TS_NEAREST doubles it. */
static double scale_of(const ts_axis *axis, double given)
{
    if ((axis->map != TS_AXIS_CUBIC && axis->out == axis->in) ||
        (axis->map == TS_AXIS_NEAREST && axis->out == 2 * axis->in))
        given = 0;
    double ratio = given > 0 ? 1 / given : (double)axis->in / (double)axis->out;
    if (axis->map == TS_AXIS_NEAREST)
        return given > 0 ? (double)(float)ratio : (double)((float)axis->in / (float)axis->out);
    if (axis->corners)
        return axis->out > 1 ? (double)(axis->in - 1) / (double)(axis->out - 1) : 0;
    return ratio;
}

/** Decodes spatial dim d of n; have: its size in argument 0. */
static ts_axis axis_of(const ts_frame *f, const arg_indices *at, int d, int n, int64_t have)
{
    const ts_value *a = f->args;
    ts_axis axis = {.map = at->map, .in = have, .out = have, .stride = 1, .dilation = 1};
    if (at->map == TS_AXIS_CONSTANT) {
        static const int64_t nothing[2];
        int k = n - 1 - d;
        const int64_t *p = (uint32_t)k < a[at->padding].count / 2 ? a[at->padding].ints + 2 * k
                                                                  : nothing;
        axis.map = TS_AXIS_CONSTANT + (ts_axis_map)a[at->mode].i;
        axis.padding = p[0];
        *(at->transposed ? &axis.in : &axis.out) += (at->transposed ? -1 : 1) * (p[0] + p[1]);
        return axis;
    }
    if (at->sizes)
        *(at->transposed ? &axis.in : &axis.out) = a[at->sizes].ints[d];
    if (at->map == TS_AXIS_NEAREST) {
        axis.map = TS_AXIS_NEAREST + (ts_axis_map)a[at->mode].i;
        axis.corners = a[at->mode + 1].i;
        axis.scale = scale_of(&axis, a[at->mode + 2 + d].d);
    } else if (at->map == TS_AXIS_WINDOW && a[at->kernel].count) {
        axis.kernel = ts_spatial_number(&a[at->kernel], d);
        axis.stride = ts_spatial_number(&a[at->stride], d);
        axis.padding = ts_spatial_number(&a[at->padding], d);
        axis.dilation = at->dilation ? ts_spatial_number(&a[at->dilation], d) : 1;
        axis.padded = at->count && a[at->count].i;
        axis.sum = at->divisor && a[at->divisor].i;
        if (!at->transposed)
            axis.out = ts_window_count(axis.in, axis.kernel, axis.stride, axis.dilation,
                                       axis.padding, axis.padding, at->ceil && a[at->ceil].i);
    } else {
        axis.map = TS_AXIS_ADAPTIVE;
    }
    return axis;
}

ts_resampling ts_kernel_resampling(const ts_frame *f)
{
    if (TS_CHECK_LENT(f, "frame") != TS_OK)
        return (ts_resampling){0};
    const arg_indices *at = arguments_of(f);
    if (!at) {
        ts_fail_decoder(f, "kernel_resampling");
        return (ts_resampling){0};
    }
    const ts_tensor *t = f->args[0].t;
    int n = dims_of(f, at);
    ts_resampling r = {.transposed = at->transposed, .planes = 1, .factor = 1};
    if (at->divisor && f->args[at->divisor].i)
        r.factor = 1 / (double)f->args[at->divisor].i;
    for (int d = 0; d < t->ndim - n; d++)
        r.planes *= t->sizes[d];
    for (int k = 0; k < TS_MAX_SPATIAL; k++) {
        int d = k - (TS_MAX_SPATIAL - n);
        if (d >= 0)
            r.axis[k] = axis_of(f, at, d, n, t->sizes[t->ndim - n + d]);
        else
            r.axis[k] = (ts_axis){.map = TS_AXIS_CONSTANT, .in = 1, .out = 1};
    }
    return r;
}

/* --------------------------------------------------------------------------------- rules ---- */

/** Checks that n is 1 to 3 and that argument 0 has n dims and, unless `any`, C and optionally N
 * before them. arg: the list with n numbers, for the error. */
static ts_status check_dims(ts_frame *f, int arg, int n, bool any)
{
    const ts_tensor *t = f->args[0].t;
    if (n < 1 || n > TS_MAX_SPATIAL)
        return ts_fail_arg(f, arg, TS_ERR_VALUE, "expected numbers for 1 to %d dims, got %s",
                           TS_MAX_SPATIAL, TS_LIST_TEXT(f->args[arg].ints,
                           ts_min64(f->args[arg].count, TS_MAX_DIMS)));
    if (any && t->ndim < n)
        return ts_fail_arg(f, 0, TS_ERR_SHAPE, "expected %d dims at least, got sizes %s", n,
                           TS_SIZES_TEXT(t));
    if (!any && t->ndim != n + 1 && t->ndim != n + 2)
        return ts_fail_arg(f, 0, TS_ERR_SHAPE,
                           "expected %d dims, or %d for one sample, got sizes %s", n + 2, n + 1,
                           TS_SIZES_TEXT(t));
    return ts_check_one_device(f);
}

/** Checks kernel, stride, padding and dilation. */
static ts_status check_window(ts_frame *f, const arg_indices *at, int n)
{
    int64_t kernel[TS_MAX_SPATIAL], padding[TS_MAX_SPATIAL], some[TS_MAX_SPATIAL],
        dilation[TS_MAX_SPATIAL] = {1, 1, 1};
    if (f->args[at->kernel].count != (uint32_t)n)
        return ts_fail_arg(f, at->kernel, TS_ERR_VALUE, "expected %d numbers, got %s", n,
                           TS_LIST_TEXT(f->args[at->kernel].ints,
                                        ts_min64(f->args[at->kernel].count, TS_MAX_DIMS)));
    TS_TRY(ts_spatial_list(f, at->kernel, n, 1, kernel));
    TS_TRY(ts_spatial_list(f, at->stride, n, 1, some));
    TS_TRY(ts_spatial_list(f, at->padding, n, 0, padding));
    if (at->dilation)
        TS_TRY(ts_spatial_list(f, at->dilation, n, 1, dilation));
    for (int d = 0; d < n; d++) {
        int64_t extent = dilation[d] * (kernel[d] - 1) + 1;
        if (padding[d] > extent / 2)
            return ts_fail_arg(f, at->padding, TS_ERR_VALUE,
                               "expected at most half of a window of %lld, got %lld",
                               (long long)extent, (long long)padding[d]);
    }
    return TS_OK;
}

/** Plans the results' sizes and layout from checked arguments. least: smallest valid spatial size
 * of argument and result. */
static ts_status plan_result(ts_frame *f, int n, int64_t least)
{
    const ts_tensor *t = f->args[0].t;
    ts_resampling r = ts_kernel_resampling(f);
    int64_t sizes[TS_MAX_DIMS];
    for (int d = 0; d < t->ndim - n; d++)
        sizes[d] = t->sizes[d];
    for (int d = 0; d < n; d++) {
        const ts_axis *axis = &r.axis[TS_MAX_SPATIAL - n + d];
        int64_t made = r.transposed ? axis->in : axis->out, have = t->sizes[t->ndim - n + d];
        if (have < least || have > INT32_MAX)
            return ts_fail_arg(f, 0, TS_ERR_SHAPE,
                               "expected %lld to 2147483647 elements in dim %d, got sizes %s",
                               (long long)least, t->ndim - n + d, TS_SIZES_TEXT(t));
        sizes[t->ndim - n + d] = made;
        if (made < least || made > INT32_MAX)
            return ts_fail_arg(f, 0, TS_ERR_SHAPE,
                               "expected sizes that give %lld to 2147483647 elements in dim %d, "
                               "got sizes %s, which give %lld", (long long)least, t->ndim - n + d,
                               TS_SIZES_TEXT(t), (long long)made);
    }
    f->plan->compute = t->dtype;
    ts_plan_result(f->plan, 0, sizes, t->ndim, (ts_dtype)t->dtype, t->storage->device);
    for (int i = 1; i < f->nrets; i++)
        ts_plan_result(f->plan, i, sizes, t->ndim,
                       f->op == TS_OP_max_pool_taps ? TS_U8 : TS_I64, t->storage->device);
    bool has_positions = f->op == TS_OP_max_pool_backward || f->op == TS_OP_max_pool_taps_backward;
    if (t->ndim == n + 2)
        ts_plan_layout(f, has_positions, has_positions ? 3 : 1, (1u << f->nrets) - 1);
    return TS_OK;
}

/** Checks that the gradient, argument 0, has the sizes of the forward op's result. An op without
 * the argument `ceil` accepts the sizes of either rounding. */
static ts_status check_grad(ts_frame *f, const arg_indices *at, int n)
{
    const ts_tensor *t = f->args[0].t;
    ts_resampling r = ts_kernel_resampling(f);
    int64_t sizes[TS_MAX_DIMS];
    for (int d = 0; d < t->ndim; d++)
        sizes[d] = t->sizes[d];
    for (int d = 0; d < n && f->args[at->kernel].count; d++) {
        const ts_axis *axis = &r.axis[TS_MAX_SPATIAL - n + d];
        int64_t made[2], have = axis->out;
        for (int ceil = 0; ceil < 2; ceil++)
            made[ceil] = ts_window_count(axis->in, axis->kernel, axis->stride, axis->dilation,
                                         axis->padding, axis->padding, ceil);
        if (at->ceil)
            sizes[t->ndim - n + d] = made[f->args[at->ceil].i];
        else
            sizes[t->ndim - n + d] = have == made[1] ? have : made[0];
    }
    return ts_check_sizes(f, 0, sizes, t->ndim);
}

ts_status ts_infer_pool_of(ts_frame *f)
{
    const arg_indices *at = arguments_of(f);
    bool adaptive = !at->kernel || !f->args[at->kernel].count;
    int n = dims_of(f, at);
    int64_t some[TS_MAX_SPATIAL];
    TS_TRY(ts_check_float(f, 0));
    TS_TRY(check_dims(f, at->sizes ? at->sizes : at->kernel, n, false));
    if (at->sizes)
        TS_TRY(ts_spatial_list(f, at->sizes, n, 1, some));
    if (!adaptive || (at->kernel && !at->transposed))
        TS_TRY(check_window(f, at, n));
    if (at->divisor && f->args[at->divisor].i < 0)
        return ts_fail_arg(f, at->divisor, TS_ERR_VALUE, "expected 0 or more, got %lld",
                           (long long)f->args[at->divisor].i);
    if (at->transposed && !adaptive)
        TS_TRY(check_grad(f, at, n));
    return plan_result(f, n, 1);
}

ts_status ts_infer_avg_pool(ts_frame *f) { return ts_infer_pool_of(f); }
ts_status ts_infer_avg_pool_backward(ts_frame *f) { return ts_infer_pool_of(f); }
ts_status ts_infer_adaptive_avg_pool(ts_frame *f) { return ts_infer_pool_of(f); }
ts_status ts_infer_adaptive_avg_pool_backward(ts_frame *f) { return ts_infer_pool_of(f); }

ts_status ts_infer_interpolate(ts_frame *f)
{
    const arg_indices *at = arguments_of(f);
    int n = dims_of(f, at);
    int64_t some[TS_MAX_SPATIAL], mode = f->args[2].i;
    TS_TRY(ts_check_float(f, 0));
    TS_TRY(check_dims(f, 1, n, false));
    TS_TRY(ts_spatial_list(f, 1, n, 1, some));
    if (mode < TS_NEAREST || mode > TS_CUBIC || (mode == TS_CUBIC && n != 2))
        return ts_fail_arg(f, 2, TS_ERR_VALUE,
                           "expected TS_NEAREST, TS_LINEAR or, for two spatial dims, TS_CUBIC, "
                           "got %lld for %d", (long long)mode, n);
    if (mode == TS_NEAREST && f->args[3].i)
        return ts_fail_arg(f, 3, TS_ERR_VALUE, "expected false for TS_NEAREST, got true");
    for (int d = 0; d < TS_MAX_SPATIAL; d++)
        if (!(f->args[4 + d].d >= 0) || isinf(f->args[4 + d].d))
            return ts_fail_arg(f, 4 + d, TS_ERR_VALUE, "expected a finite number from 0, got %g",
                               f->args[4 + d].d);
    return plan_result(f, n, 1);
}
ts_status ts_infer_interpolate_backward(ts_frame *f) { return ts_infer_interpolate(f); }

ts_status ts_infer_pad(ts_frame *f)
{
    const arg_indices *at = arguments_of(f);
    const ts_value *p = &f->args[1];
    const ts_tensor *t = f->args[0].t;
    int n = (int)p->count / 2;
    int64_t mode = f->args[2].i;
    if (at->transposed)
        TS_TRY(ts_check_float(f, 0));
    if (p->count % 2)
        return ts_fail_arg(f, 1, TS_ERR_VALUE, "expected two numbers per dim, got %s",
                           TS_LIST_TEXT(p->ints, ts_min64(p->count, TS_MAX_DIMS)));
    TS_TRY(check_dims(f, 1, n, true));
    if (mode < TS_PAD_CONSTANT || mode > TS_PAD_CIRCULAR)
        return ts_fail_arg(f, 2, TS_ERR_VALUE, "expected a ts_pad_mode, got %lld", (long long)mode);
    for (int d = 0; d < n; d++) {
        const int64_t *q = p->ints + 2 * (n - 1 - d);
        int64_t size = t->sizes[t->ndim - n + d], most = ts_max64(q[0], q[1]);
        if (q[0] < -INT32_MAX || q[1] < -INT32_MAX || most > INT32_MAX)
            return ts_fail_arg(f, 1, TS_ERR_VALUE,
                               "expected numbers from -2147483647 to 2147483647, got %s",
                               TS_LIST_TEXT(p->ints, p->count));
        size -= at->transposed ? q[0] + q[1] : 0;
        if ((mode == TS_PAD_REFLECT && most >= size) || (mode == TS_PAD_CIRCULAR && most > size))
            return ts_fail_arg(f, 1, TS_ERR_VALUE, "expected %s %lld for dim %d, got %lld",
                               mode == TS_PAD_CIRCULAR ? "at most" : "less than", (long long)size,
                               t->ndim - n + d, (long long)most);
    }
    return plan_result(f, dims_of(f, at), mode != TS_PAD_CONSTANT);
}
ts_status ts_infer_pad_backward(ts_frame *f) { return ts_infer_pad(f); }

/* ------------------------------------------------------------------------------ by parts ---- */

/** Pixel shuffle: views (..., C f f, H, W) as (..., C, f, f, H, W), moves each f to after its H or
 * W, and merges them. back: the inverse. */
static ts_status shuffle(ts_frame *f, bool back)
{
    TS_SCOPE;
    ts_tensor *t = f->args[0].t;
    int64_t by = f->args[1].i, square;
    if (t->ndim < 3)
        return ts_fail_arg(f, 0, TS_ERR_SHAPE, "expected sizes (..., C, H, W), got %s",
                           TS_SIZES_TEXT(t));
    if (by < 1 || !ts_mul_size(by, by, &square))
        return ts_fail_arg(f, 1, TS_ERR_VALUE, "expected at least 1, got %lld", (long long)by);
    const int64_t *last = t->sizes + t->ndim - 3;
    if (back ? last[1] % by || last[2] % by : last[0] % square)
        return ts_fail_arg(f, 0, TS_ERR_SHAPE,
                           back ? "expected H and W that are multiples of %lld, got sizes %s"
                                : "expected channels that are a multiple of %lld, got sizes %s",
                           (long long)(back ? by : square), TS_SIZES_TEXT(t));
    int64_t batch = 1, c = last[0], h = last[1], w = last[2], sizes[TS_MAX_DIMS];
    for (int d = 0; d < t->ndim; d++) {
        batch *= d < t->ndim - 3 ? t->sizes[d] : 1;
        sizes[d] = t->sizes[d];
    }
    /* orders of the parts in the result's memory; both layouts have the same two */
    static const int64_t forward[6] = {0, 1, 4, 2, 5, 3}, backward[6] = {0, 1, 3, 5, 2, 4};
    bool is_last = t->ndim == 4 && ts_is_channels_last(t);
    ts_tensor *parts;
    if (is_last) { /* views of (N, H, W, C), so that the gradient is channels-last, too */
        t = ts_permute(t, (const int64_t[]){0, 2, 3, 1}, 4);
        parts = back ? ts_reshape(t, TS_SIZES(batch, h / by, by, w / by, by, c))
                     : ts_reshape(t, TS_SIZES(batch, h, w, c / square, by, by));
    } else {
        parts = back ? ts_reshape(t, TS_SIZES(batch, c, h / by, by, w / by, by))
                     : ts_reshape(t, TS_SIZES(batch, c / square, by, by, h, w));
    }
    ts_tensor *y = ts_permute(parts, back ? backward : forward, 6);
    y = y && (y->flags & TS_TENSOR_CONTIGUOUS) ? ts_clone(y) : ts_contiguous(y);
    c = back ? c * square : c / square;
    h = back ? h / by : h * by;
    w = back ? w / by : w * by;
    sizes[t->ndim - 3] = c;
    sizes[t->ndim - 2] = h;
    sizes[t->ndim - 1] = w;
    if (is_last)
        y = ts_permute(ts_view(y, TS_SIZES(batch, h, w, c)), (const int64_t[]){0, 3, 1, 2}, 4);
    else
        y = ts_view(y, sizes, t->ndim);
    TS_TRY(y);
    f->rets[0] = V_T(ts_retain(y));
    return TS_OK;
}
ts_status ts_composite_pixel_shuffle(ts_frame *f) { return shuffle(f, false); }
ts_status ts_composite_pixel_unshuffle(ts_frame *f) { return shuffle(f, true); }

/* -------------------------------------------------------------------------- public forms ---- */

/** Checks sizes and scale factors for the n spatial dims of self, and sets o->sizes. */
static ts_status read_sizes(ts_interpolate_opts *o, const ts_tensor *self, int n, ts_check_place at)
{
    const int64_t *sizes = o->sizes;
    const double *factors = o->scale_factor;
    TS_TRY(ts_check_spatial_unused(at, sizes + n, TS_MAX_SPATIAL - n));
    bool by_factor = !(sizes[0] | sizes[1] | sizes[2]);
    for (int d = 0; d < TS_MAX_SPATIAL; d++) {
        if (factors[d] != 0 && (!by_factor || d >= n))
            return ts_check_refuse(at, "opts.scale_factor",
                                   by_factor ? "0 after the last spatial dim" : "0 beside sizes",
                                   ts_scalar_float(factors[d]));
        if (d >= n)
            continue;
        if (!by_factor && sizes[d] < 1)
            return ts_check_refuse(at, "opts.sizes", "1 or more for each spatial dim",
                                   ts_scalar_int(sizes[d]));
        double made = floor((double)self->sizes[2 + d] * factors[d]);
        if (by_factor && !(factors[d] > 0 && made <= INT32_MAX))
            return ts_check_refuse(at, "opts.scale_factor",
                                   factors[d] > 0
                                       ? "factors that give at most 2147483647 elements per dim"
                                       : "a positive factor, or a size in opts.sizes, for each "
                                         "spatial dim",
                                   ts_scalar_float(factors[d]));
        if (by_factor)
            o->sizes[d] = (int64_t)made;
    }
    return TS_OK;
}

ts_tensor *ts_interpolate(ts_tensor *self, const ts_interpolate_opts *opts)
{
    const ts_check_place at = TS_CHECK_HERE;
    ts_interpolate_opts o;
    TS_TRY_NULL(TS_CHECK_TENSORS(self));
    TS_TRY_NULL(TS_CHECK_POINTERS(opts));
    TS_TRY_NULL(TS_CHECK_OPTS(&o, opts));
    int n = self->ndim - 2;
    if (n < 1 || n > TS_MAX_SPATIAL) {
        ts_fail_op(TS_ERR_SHAPE, "interpolate", at.site, NULL,
                   "argument 'self': expected 1 to %d spatial dims after batch and channels, got "
                   "sizes %s", TS_MAX_SPATIAL, TS_SIZES_TEXT(self));
        return NULL;
    }
    TS_TRY_NULL(read_sizes(&o, self, n, at));
    ts_value args[] = {V_T(self), V_IS(o.sizes, n), V_I(o.mode), V_B(o.align_corners),
                       V_F(o.scale_factor[0]), V_F(o.scale_factor[1]), V_F(o.scale_factor[2])};
    return ts_invoke(TS_OP_interpolate, args, TS_N(args), 1);
}

/** Pads dims first to first + n - 1 of t, in mode TS_PAD_CONSTANT; pads[d]: numbers of dim d. n: 1
 *  to 3, or to 2 if dims follow, which the op sees as one dim. */
static ts_tensor *pad_some(ts_tensor *t, int first, int n, int64_t (*pads)[2], ts_value value)
{
    int64_t sizes[TS_MAX_SPATIAL + 1] = {1}, made[TS_MAX_DIMS], list[2 * TS_MAX_SPATIAL] = {0};
    bool inner = first + n < t->ndim;
    int axes = n + inner;
    for (int d = 0; d < t->ndim; d++) {
        made[d] = t->sizes[d];
        if (d < first)
            sizes[0] *= t->sizes[d];
        else if (d >= first + n)
            sizes[axes] = (d == first + n ? 1 : sizes[axes]) * t->sizes[d];
        else
            sizes[1 + d - first] = t->sizes[d];
    }
    for (int k = 0; k < n; k++)
        for (int side = 0; side < 2; side++) {
            int64_t number = pads[first + k][side];
            list[2 * (axes - 1 - k) + side] = number;
            made[first + k] += number;
        }
    ts_tensor *y = TS_INVOKE(TS_OP_pad, V_T(ts_reshape(t, sizes, 1 + axes)), V_IS(list, 2 * axes),
                             V_I(TS_PAD_CONSTANT), value);
    return ts_view(y, made, t->ndim);
}

/** Pads any number of dims of t in mode TS_PAD_CONSTANT; the calls fit together to a new tensor. */
static ts_tensor *pad_all(ts_tensor *t, int64_t (*pads)[2], ts_value value)
{
    ts_tensor *y = t;
    for (int end = t->ndim; end > 0;) {
        int n = end == t->ndim ? TS_MAX_SPATIAL : TS_MAX_SPATIAL - 1;
        n = n < end ? n : end;
        end -= n;
        int64_t some = 0;
        for (int d = end; d < end + n; d++)
            some |= pads[d][0] | pads[d][1];
        if (some)
            TS_TRY_NULL(y = pad_some(y, end, n, pads, value));
    }
    return y == t ? ts_clone(t) : y;
}

/** Checks the numbers for dim d of t, for errors with the sizes of t. */
static bool pads_fit(const ts_tensor *t, int d, const int64_t *numbers, const void *site)
{
    bool small = true;
    for (int side = 0; side < 2; side++)
        small = small && numbers[side] >= -INT32_MAX && numbers[side] <= INT32_MAX;
    int64_t made = small ? t->sizes[d] + numbers[0] + numbers[1] : 0;
    if (!small)
        ts_fail_op(TS_ERR_VALUE, "pad", site, NULL,
                   "argument 'padding': expected numbers from -2147483647 to 2147483647, got "
                   "(%lld, %lld) for dim %d", (long long)numbers[0], (long long)numbers[1], d);
    else if (made < 0 || made > INT32_MAX)
        ts_fail_op(TS_ERR_SHAPE, "pad", site, NULL,
                   "argument 'self': expected sizes that give 0 to 2147483647 elements in dim %d, "
                   "got sizes %s, which give %lld", d, TS_SIZES_TEXT(t), (long long)made);
    return small && made >= 0 && made <= INT32_MAX;
}

/** True if circular padding first removes elements: a number is negative, and every dim keeps one
 *  element or more. */
static bool removes_elements(const ts_tensor *t, const int64_t *padding, int n)
{
    bool some = false;
    for (int k = 0; k < n; k++) {
        const int64_t *p = padding + 2 * k;
        int64_t size = k < t->ndim ? t->sizes[t->ndim - 1 - k] : 0;
        if (p[0] <= -size || p[1] <= -size || size + ts_min64(p[0], 0) + ts_min64(p[1], 0) < 1)
            return false; /* the shape rule reports it */
        some = some || p[0] < 0 || p[1] < 0;
    }
    return some;
}

/** Pads with the elements that remain after negative numbers removed some, as PyTorch does. */
static ts_tensor *pad_rest(ts_tensor *t, const int64_t *padding, int n, ts_value value,
                           const void *site)
{
    TS_SCOPE;
    int64_t added[2 * TS_MAX_SPATIAL];
    bool last = ts_is_channels_last(t);
    for (int k = 0; k < n; k++) {
        int d = t->ndim - 1 - k;
        int64_t left = ts_min64(padding[2 * k], 0), right = ts_min64(padding[2 * k + 1], 0);
        if (left || right)
            TS_TRY_NULL(t = ts_slice(t, d, -left, t->sizes[d] + right, 1));
        added[2 * k] = ts_max64(padding[2 * k], 0);
        added[2 * k + 1] = ts_max64(padding[2 * k + 1], 0);
    }
    if (last)
        TS_TRY_NULL(t = ts_to_channels_last(t));
    ts_value args[] = {V_T(t), V_IS(added, 2 * n), V_I(TS_PAD_CIRCULAR), value},
             y = ts_value_none();
    TS_TRY_NULL(ts_call(TS_OP_pad, args, TS_N(args), &y, 1, 0, 1, site));
    return ts_keep(ts_adopt_result(&ts_tls, y.t, TS_OP_pad, site));
}

ts_tensor *ts_pad(ts_tensor *self, const int64_t *padding, int npadding, int64_t mode,
                  ts_scalar value)
{
    const void *site = __builtin_return_address(0);
    int n = npadding / 2;
    bool fits = padding && npadding > TS_MAX_DIMS && npadding <= 2 * TS_MAX_DIMS;
    if (!fits && !ts_ints_ok(padding, npadding, "pad", "padding", site))
        return NULL;
    if (mode == TS_PAD_CIRCULAR && npadding % 2 == 0 && n >= 1 && n <= TS_MAX_SPATIAL) {
        if (!ts_tensor_ok(self, "pad", "self", site))
            return NULL;
        if (removes_elements(self, padding, n))
            return pad_rest(self, padding, n, V_S(value), site);
    }
    /* the op keeps channels-last if only spatial dims are padded */
    bool inner = n >= 1 && n <= TS_MAX_SPATIAL &&
                 !(self && self->ndim == n + 1 && ts_tensor_ok(self, "pad", "self", site) &&
                   ts_is_channels_last(self));
    if (mode != TS_PAD_CONSTANT || npadding % 2 || inner)
        return TS_INVOKE(TS_OP_pad, V_T(self), V_IS(padding, npadding), V_I(mode), V_S(value));
    if (!ts_tensor_ok(self, "pad", "self", site))
        return NULL;
    if (n > self->ndim) {
        ts_fail_op(TS_ERR_SHAPE, "pad", site, NULL,
                   "argument 'self': expected %d dims at least, got sizes %s", n,
                   TS_SIZES_TEXT(self));
        return NULL;
    }
    TS_SCOPE;
    int64_t pads[TS_MAX_DIMS][2] = {{0}}, turned[TS_MAX_DIMS][2];
    int ndim = self->ndim;
    for (int k = 0; k < n; k++) {
        int d = ndim - 1 - k;
        memcpy(pads[d], padding + 2 * k, sizeof pads[d]);
        if (!pads_fit(self, d, pads[d], site))
            return NULL;
    }
    if (!ts_is_channels_last(self))
        return ts_keep(pad_all(self, pads, V_S(value)));
    for (int d = 0; d < ndim; d++)
        memcpy(turned[d == 0 ? 0 : d == 1 ? ndim - 1 : d - 1], pads[d], sizeof *turned);
    ts_tensor *y = ts_movedim(pad_all(ts_movedim(self, 1, -1), turned, V_S(value)), -1, 1);
    return y ? ts_keep(ts_is_channels_last(y) ? y : ts_to_channels_last(y)) : NULL;
}
