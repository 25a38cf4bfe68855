/**
 * @file drawn_images.c
 * Drawn calls of the operators over images, valid and invalid ones, on the CPU and on META: results
 * and gradients have the same sizes, dtypes and strides, errors have the same texts, and the work
 * (FLOPs and bytes) is that of formulas. TS_TEST_SEED sets the seed, by default the time;
 * TS_TEST_CALLS sets the number of calls. With TS_TEST_SHOW the error texts are printed.
 */
// SPDX-License-Identifier: MIT
#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "core/testing.h"
#include "dispatch/op.h"
#include "ops/ops.h"
#include "tests/expect.h"

/* ------------------------------------------------------------------------- random numbers ---- */

static uint64_t state, seed;

static int64_t below(int64_t n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((state >> 33) % (uint64_t)n);
}
static bool one_in(int64_t n) { return below(n) == 0; }

static void start(void)
{
    const char *given = getenv("TS_TEST_SEED");
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    seed = given ? strtoull(given, NULL, 10) : (uint64_t)now.tv_nsec ^ (uint64_t)now.tv_sec << 20;
    state = seed;
    below(2);
}

static int wrong; /* one in `wrong` numbers is replaced by an unusual one; 0: none */
static int64_t maybe_odd(int64_t usual)
{
    static const int64_t odd[] = {0, -1, -3, 2, 3, 1000, INT32_MAX, (int64_t)INT32_MAX + 1,
                                  INT32_MIN, (int64_t)1 << 40, (int64_t)1 << 62, INT64_MAX,
                                  INT64_MAX / 2, INT64_MAX - 1, INT64_MIN, INT64_MIN + 1};
    return wrong && one_in(wrong) ? odd[below(TS_COUNTOF(odd))] : usual;
}

/* ---------------------------------------------------------------------------- a drawn call ---- */

enum { CONV, CONV_TRANSPOSE, MAX_POOL, AVG_POOL, ADAPTIVE_MAX, ADAPTIVE_AVG, INTERPOLATE, PAD,
       BATCH_NORM, BATCH_NORM_RELU, GROUP_NORM, INSTANCE_NORM, SHUFFLE, UNSHUFFLE, FAMILIES };
enum { ABSENT, FAILED, CONTIGUOUS, LAST, TURNED, STEPS, REPEATED, LAST_PART, LAYOUTS };

typedef struct drawn_tensor {
    int layout, ndim;
    int64_t sizes[6];
    ts_dtype dtype;
} drawn_tensor;

/** A call. t: self or input, weight, bias, running_mean, running_var. */
typedef struct drawn_call {
    int family, n, npadding;
    drawn_tensor t[5];
    ts_conv_opts conv;
    ts_pool_opts pool;
    ts_interpolate_opts resize;
    int64_t list[6], mode, count;
    bool no_opts, indices, leaf, training;
    double momentum, eps;
} drawn_call;

static ts_dtype drawn_dtype(void)
{
    static const ts_dtype dtypes[] = {TS_F32, TS_F32, TS_F64, TS_BF16, TS_F16};
    return wrong && one_in(3 * wrong) ? (ts_dtype)below(TS_DTYPE_COUNT) : dtypes[below(5)];
}

static drawn_tensor tensor(int ndim, const int64_t *sizes, ts_dtype dtype)
{
    drawn_tensor t = {.layout = CONTIGUOUS + (int)below(LAYOUTS - CONTIGUOUS), .ndim = ndim,
                      .dtype = dtype};
    for (int d = 0; d < ndim; d++)
        t.sizes[d] = sizes[d];
    if (wrong && one_in(wrong)) {
        t.ndim = (int)below(6);
        for (int d = 0; d < t.ndim; d++)
            t.sizes[d] = d < ndim && !one_in(4) ? sizes[d] : below(5);
    }
    if (wrong && one_in(3 * wrong))
        t.dtype = drawn_dtype();
    if (wrong && one_in(6 * wrong))
        t.layout = (int)below(2);
    return t;
}

/** Draws sizes (batch, channels, n spatial dims), without the batch if `single`. Returns the number
 *  of dims. */
static int image(int64_t *sizes, int n, int64_t channels, bool single)
{
    int ndim = 0;
    if (!single)
        sizes[ndim++] = one_in(15) ? 0 : 1 + below(3);
    sizes[ndim++] = channels;
    for (int d = 0; d < n; d++)
        sizes[ndim++] = one_in(40) ? 0 : 1 + below(9);
    return ndim;
}

static void draw_convolution(drawn_call *c)
{
    int64_t groups = 1 + below(3), in = groups * (1 + below(3)), out = groups * (1 + below(3)),
            sizes[6], w[6];
    ts_dtype dtype = drawn_dtype();
    c->t[0] = tensor(image(sizes, c->n, in, one_in(4)), sizes, dtype);
    w[0] = c->family == CONV ? out : in;
    w[1] = (c->family == CONV ? in : out) / groups;
    c->conv.groups = maybe_odd(groups == 1 ? below(2) : groups);
    c->conv.same = c->family == CONV ? one_in(5) : wrong && one_in(9);
    for (int d = 0; d < c->n; d++) {
        w[2 + d] = 1 + below(4);
        bool plain = c->conv.same && !one_in(20);
        c->conv.stride[d] = maybe_odd(plain ? below(2) : below(4));
        c->conv.padding[d] = maybe_odd(plain ? 0 : below(4));
        c->conv.dilation[d] = maybe_odd(below(3));
        c->conv.output_padding[d] = maybe_odd(c->family == CONV ? 0 : one_in(3));
    }
    c->t[1] = tensor(2 + c->n, w, dtype);
    c->t[2] = tensor(1, &out, dtype);
    if (one_in(3))
        c->t[2].layout = ABSENT;
}

static void draw_pool(drawn_call *c)
{
    int64_t sizes[6];
    c->t[0] = tensor(image(sizes, c->n, 1 + below(4), one_in(4)), sizes, drawn_dtype());
    for (int d = 0; d < c->n; d++) {
        c->pool.kernel[d] = maybe_odd(1 + below(4));
        c->pool.stride[d] = maybe_odd(below(4));
        c->pool.dilation[d] = maybe_odd(c->family == MAX_POOL ? below(3) : below(2));
        c->pool.padding[d] = maybe_odd(below(1 + ts_max64(0, ts_min64(c->pool.kernel[d], 4)) / 2));
        c->list[d] = maybe_odd(1 + below(6));
    }
    c->npadding = wrong && one_in(wrong) ? (int)below(6) - 1 : c->n;
    c->pool.ceil = one_in(3);
    c->pool.exclude_padding = one_in(2);
    c->pool.divisor = maybe_odd(one_in(3) ? 1 + below(5) : 0);
}

static void draw_resample(drawn_call *c)
{
    static const double odd[] = {-1, NAN, INFINITY, 1e300, 1e-300, 0, 1e9, -0.0};
    int64_t sizes[6];
    c->t[0] = tensor(image(sizes, c->n, 1 + below(4), c->family == PAD && one_in(3)), sizes,
                     drawn_dtype());
    c->mode = maybe_odd(below(c->family == PAD ? 4 : c->n == 2 ? 3 : 2));
    c->resize.mode = (ts_interpolation)c->mode;
    c->resize.align_corners = c->mode && one_in(2);
    bool factor = one_in(2);
    for (int d = 0; d < c->n; d++) {
        if (factor)
            c->resize.scale_factor[d] = wrong && one_in(wrong) ? odd[below(8)]
                                                               : 0.5 * (double)(1 + below(6));
        else
            c->resize.sizes[d] = maybe_odd(1 + below(12));
    }
    c->npadding = wrong && one_in(wrong) ? (int)below(9) - 1 : 2 * (1 + (int)below(c->n));
    for (int k = 0; k < 6; k++)
        c->list[k] = maybe_odd(below(5) - 1);
}

static void draw_norm(drawn_call *c)
{
    static const double odd[] = {-1, NAN, INFINITY, 2, 0, 1};
    int64_t sizes[6], channels = 1 + below(6);
    int ndim = image(sizes, (int)below(4), channels, false);
    ts_dtype dtype = drawn_dtype(),
             other = dtype != TS_F64 && one_in(2) && ts_dtype_is_float(dtype) ? TS_F32 : dtype;
    c->t[0] = tensor(ndim, sizes, dtype);
    for (int i = 1; i < 5; i++) {
        c->t[i] = tensor(1, &channels, other);
        if (i < 3 && one_in(3))
            c->t[i].layout = ABSENT;
        else if (i > 2 && c->t[i].layout > CONTIGUOUS && !one_in(9))
            c->t[i].layout = CONTIGUOUS;
    }
    if (c->training && one_in(3))
        c->t[3].layout = c->t[4].layout = ABSENT;
    c->momentum = wrong && one_in(wrong) ? odd[below(6)] : 0.1;
    c->eps = wrong && one_in(wrong) ? odd[below(6)] : 1e-5;
    int64_t divisor = 1 + below(channels);
    c->count = maybe_odd(channels % divisor ? channels : divisor);
}

static void draw_shuffle(drawn_call *c)
{
    int64_t f = 1 + below(3), sizes[6];
    int ndim = image(sizes, 2, (1 + below(3)) * (c->family == SHUFFLE ? f * f : 1), one_in(4));
    for (int d = ndim - 2; d < ndim; d++)
        sizes[d] *= c->family == SHUFFLE ? 1 : f;
    c->t[0] = tensor(ndim, sizes, drawn_dtype());
    c->count = maybe_odd(f);
}

static drawn_call draw(void)
{
    drawn_call c = {.family = (int)below(FAMILIES), .n = 1 + (int)below(3)};
    wrong = one_in(2) ? 0 : 4 + (int)below(16);
    c.conv.size = wrong && one_in(30) ? (size_t)maybe_odd(8) : sizeof c.conv;
    c.pool.size = wrong && one_in(30) ? (size_t)maybe_odd(8) : sizeof c.pool;
    c.resize.size = wrong && one_in(30) ? (size_t)maybe_odd(8) : sizeof c.resize;
    c.no_opts = wrong && one_in(20);
    c.indices = one_in(2);
    c.leaf = one_in(3);
    c.training = one_in(2);
    switch (c.family) {
    case CONV:
    case CONV_TRANSPOSE: draw_convolution(&c); break;
    case MAX_POOL:
    case AVG_POOL:
    case ADAPTIVE_MAX:
    case ADAPTIVE_AVG: draw_pool(&c); break;
    case INTERPOLATE:
    case PAD: draw_resample(&c); break;
    case SHUFFLE:
    case UNSHUFFLE: draw_shuffle(&c); break;
    default: draw_norm(&c);
    }
    for (int d = c.n; d < 3 && wrong && one_in(6); d++)
        c.conv.padding[d] = c.pool.kernel[d] = c.resize.sizes[d] = below(2);
    return c;
}

/* --------------------------------------------------------------------------- the call made ---- */

static ts_tensor *make(const drawn_tensor *t, ts_device device, bool leaf)
{
    int64_t sizes[6];
    int n = t->ndim, end = n - 1, layout = t->layout;
    if (layout < CONTIGUOUS)
        return layout == ABSENT ? TS_NONE : NULL;
    memcpy(sizes, t->sizes, sizeof sizes);
    if (n < 1 || ((layout == LAST || layout == LAST_PART) && (n < 3 || n > 5)))
        layout = CONTIGUOUS;
    if (layout == TURNED)
        sizes[end] = t->sizes[0], sizes[0] = t->sizes[end];
    else if (layout == STEPS)
        sizes[end] *= 2;
    else if (layout == REPEATED)
        sizes[0] = 1;
    else if (layout == LAST_PART)
        sizes[1] += 2;
    ts_tensor *y = ts_empty_on(sizes, n, t->dtype, device);
    OK(y);
    if (device.backend == TS_DEVICE_CPU.backend)
        OK(ts_zero_(y));
    switch (layout) {
    case LAST: y = ts_to_channels_last(y); break;
    case TURNED: y = ts_transpose(y, 0, end); break;
    case STEPS: y = ts_slice(y, end, 0, INT64_MAX, 2); break;
    case REPEATED: y = ts_expand(y, t->sizes, n); break;
    case LAST_PART: y = ts_slice(ts_to_channels_last(y), 1, 1, 1 + t->sizes[1], 1); break;
    }
    OK(y);
    if (leaf && ts_dtype_is_float(t->dtype))
        OK(y = ts_set_requires_grad(ts_detach(y), true));
    return y;
}

typedef ts_tensor *conv_fn(ts_tensor *, ts_tensor *, ts_tensor *, const ts_conv_opts *);
typedef ts_tensor *max_fn(ts_tensor *, const ts_pool_opts *, ts_tensor **);
typedef ts_tensor *avg_fn(ts_tensor *, const ts_pool_opts *);

/** Makes the call with tensors t; *indices receives the second result of max pools. */
static ts_tensor *call(const drawn_call *c, ts_tensor **t, ts_tensor **indices)
{
    static conv_fn *const conv[] = {ts_conv1d, ts_conv2d, ts_conv3d},
                   *const back[] = {ts_conv_transpose1d, ts_conv_transpose2d, ts_conv_transpose3d};
    static max_fn *const max[] = {ts_max_pool1d, ts_max_pool2d, ts_max_pool3d};
    static avg_fn *const avg[] = {ts_avg_pool1d, ts_avg_pool2d, ts_avg_pool3d};
    const ts_conv_opts *co = c->no_opts ? NULL : &c->conv;
    const ts_pool_opts *po = c->no_opts ? NULL : &c->pool;
    switch (c->family) {
    case CONV: return conv[c->n - 1](t[0], t[1], t[2], co);
    case CONV_TRANSPOSE: return back[c->n - 1](t[0], t[1], t[2], co);
    case MAX_POOL: return max[c->n - 1](t[0], po, c->indices ? indices : NULL);
    case AVG_POOL: return avg[c->n - 1](t[0], po);
    case ADAPTIVE_MAX:
        return ts_adaptive_max_pool(t[0], c->no_opts ? NULL : c->list, c->npadding,
                                    c->indices ? indices : NULL);
    case ADAPTIVE_AVG: return ts_adaptive_avg_pool(t[0], c->no_opts ? NULL : c->list, c->npadding);
    case INTERPOLATE: return ts_interpolate(t[0], c->no_opts ? NULL : &c->resize);
    case PAD: return ts_pad(t[0], c->no_opts ? NULL : c->list, c->npadding, c->mode, TS_SCALAR(2));
    case BATCH_NORM:
        return ts_batch_norm(t[0], t[3], t[4], t[1], t[2], c->training, c->momentum, c->eps);
    case BATCH_NORM_RELU:
        return ts_batch_norm_relu(t[0], t[3], t[4], t[1], t[2], c->training, c->momentum, c->eps);
    case GROUP_NORM: return ts_group_norm(t[0], c->count, t[1], t[2], c->eps);
    case INSTANCE_NORM: return ts_instance_norm(t[0], t[1], t[2], c->eps);
    case SHUFFLE: return ts_pixel_shuffle(t[0], c->count);
    default: return ts_pixel_unshuffle(t[0], c->count);
    }
}

/** True if a max pool saves one byte per maximum for the gradient, not the index. */
static bool by_taps(const drawn_call *c)
{
    double taps = 1;
    for (int d = 0; d < c->n; d++)
        taps *= (double)c->pool.kernel[d];
    return c->leaf && !c->indices && taps <= 256;
}

static int op_of(const drawn_call *c)
{
    switch (c->family) {
    case CONV:
    case CONV_TRANSPOSE: return TS_OP_convolution;
    case MAX_POOL: return by_taps(c) ? TS_OP_max_pool_taps : TS_OP_max_pool;
    case AVG_POOL: return TS_OP_avg_pool;
    case ADAPTIVE_MAX: return TS_OP_adaptive_max_pool;
    case ADAPTIVE_AVG: return TS_OP_adaptive_avg_pool;
    case INTERPOLATE: return TS_OP_interpolate;
    case PAD: return TS_OP_pad;
    case BATCH_NORM: return TS_OP_batch_norm;
    case BATCH_NORM_RELU: return TS_OP_batch_norm_relu;
    case GROUP_NORM:
    case INSTANCE_NORM: return TS_OP_group_norm;
    case SHUFFLE: return TS_OP_pixel_shuffle;
    default: return TS_OP_pixel_unshuffle;
    }
}

static int watched_op;
static struct { ts_work work; int calls; } watched;

/** A layer that counts the calls of watched_op and records the work of the last one. */
static ts_status watch(ts_frame *f)
{
    ts_status status = ts_redispatch(f);
    if (status == TS_OK && f->op == watched_op) {
        watched.calls++;
        TS_TRY(ts_op_cost(f, &watched.work));
    }
    return status;
}

static bool too_large(size_t bytes) { return bytes > (size_t)64 << 20; }

typedef struct outcome {
    ts_tensor *y, *indices, *args[5];
    ts_status code;
    char text[1200], hint[256];
    ts_work work;
    int calls;
} outcome;

static void run(const drawn_call *c, ts_device device, outcome *o)
{
    ts_error_clear();
    *o = (outcome){.indices = TS_NONE};
    for (int i = 0; i < 5; i++)
        o->args[i] = make(&c->t[i], device, c->leaf && i < 3);
    watched_op = op_of(c);
    watched.calls = 0;
    ts_alloc_fault = too_large;
    o->y = call(c, o->args, &o->indices);
    ts_alloc_fault = NULL;
    o->work = watched.work;
    o->calls = watched.calls;
    o->code = o->y ? TS_OK : ts_error_code();
    snprintf(o->hint, sizeof o->hint, "%s", ts_error_hint());
    snprintf(o->text, sizeof o->text, "%s", ts_error_message());
}

/* --------------------------------------------------------------------------------- checks ---- */

static const char *words(const drawn_call *c)
{
    static char text[1500];
    static const char *const names[] = {"conv", "conv_transpose", "max_pool", "avg_pool",
        "adaptive_max_pool", "adaptive_avg_pool", "interpolate", "pad", "batch_norm",
        "batch_norm_relu", "group_norm", "instance_norm", "pixel_shuffle", "pixel_unshuffle"};
    int used = snprintf(text, sizeof text, "seed %llu: %s, n %d", (unsigned long long)seed,
                        names[c->family], c->n);
    for (int i = 0; i < 5; i++) {
        char sizes[100];
        ts_format_sizes(sizes, sizeof sizes, c->t[i].sizes, c->t[i].ndim);
        used += snprintf(text + used, sizeof text - (size_t)used, "; %s %s layout %d", sizes,
                         ts_dtype_name(c->t[i].dtype), c->t[i].layout);
    }
    for (int d = 0; d < 3; d++)
        used += snprintf(text + used, sizeof text - (size_t)used,
                         "; dim %d: conv s%lld p%lld d%lld o%lld, pool k%lld s%lld p%lld d%lld, "
                         "to %lld x%g, list %lld %lld", d, (long long)c->conv.stride[d],
                         (long long)c->conv.padding[d], (long long)c->conv.dilation[d],
                         (long long)c->conv.output_padding[d], (long long)c->pool.kernel[d],
                         (long long)c->pool.stride[d], (long long)c->pool.padding[d],
                         (long long)c->pool.dilation[d], (long long)c->resize.sizes[d],
                         c->resize.scale_factor[d], (long long)c->list[2 * d],
                         (long long)c->list[2 * d + 1]);
    snprintf(text + used, sizeof text - (size_t)used,
             "; groups %lld same %d mode %lld count %lld ceil %d divisor %lld npadding %d no_opts "
             "%d indices %d leaf %d training %d", (long long)c->conv.groups, c->conv.same,
             (long long)c->mode, (long long)c->count, c->pool.ceil, (long long)c->pool.divisor,
             c->npadding, c->no_opts, c->indices, c->leaf, c->training);
    return text;
}

/** Bytes of t's elements with distinct addresses. */
static double bytes_of(const ts_tensor *t)
{
    if (t == TS_NONE)
        return 0;
    double n = (double)ts_dtype_size(ts_dtype_of(t));
    for (int d = 0; d < ts_ndim(t); d++)
        n *= ts_strides(t)[d] == 0 && ts_size(t, d) > 0 ? 1 : (double)ts_size(t, d);
    return n;
}

static double product_of(const ts_tensor *t, int first)
{
    double n = 1;
    for (int d = first; d < ts_ndim(t); d++)
        n *= (double)ts_size(t, d);
    return n;
}

/** FLOPs and bytes of a call that succeeded. */
static ts_work work_of(const drawn_call *c, const outcome *o)
{
    const ts_tensor *x = o->args[0], *w = o->args[1], *y = o->y;
    double most = fmax((double)ts_numel(x), (double)ts_numel(y)), bytes = bytes_of(x) + bytes_of(y),
           groups = c->no_opts || !c->conv.groups ? 1 : (double)c->conv.groups, wide;
    bool batch = c->family == BATCH_NORM || c->family == BATCH_NORM_RELU,
         norm = batch || c->family == GROUP_NORM || c->family == INSTANCE_NORM;
    for (int i = 1; i < 5 && norm; i++) /* an empty image is smaller than its parameters */
        if (o->args[i] != TS_NONE && (i < 3 || (batch && !c->training)))
            most = fmax(most, (double)ts_numel(o->args[i]));
    bool half = ts_dtype_of(x) == TS_BF16 || ts_dtype_of(x) == TS_F16;
    switch (c->family) {
    case CONV: /* for each element of y, the elements of a window in the group's channels */
        return (ts_work){2 * (double)ts_numel(y) * product_of(w, 1),
                         bytes + bytes_of(w) + bytes_of(o->args[2])};
    case CONV_TRANSPOSE: /* for each element of x, a window in the features of its group */
        return (ts_work){2 * (double)ts_numel(x) * product_of(w, 1),
                         bytes + bytes_of(w) + bytes_of(o->args[2])};
    case MAX_POOL: /* taps are one byte, indices eight */
        if (c->leaf || c->indices)
            bytes += (by_taps(c) ? 1 : 8) * (double)ts_numel(y);
        return (ts_work){most, bytes};
    case ADAPTIVE_MAX: /* the gradient needs the indices */
        return (ts_work){most, bytes + (c->indices || c->leaf ? 8 * (double)ts_numel(y) : 0)};
    case AVG_POOL:
    case ADAPTIVE_AVG: return (ts_work){most, bytes};
    case INTERPOLATE: return (ts_work){4 * most, bytes};
    case BATCH_NORM:
    case BATCH_NORM_RELU:
        wide = half ? 4 : (double)ts_dtype_size(ts_dtype_of(x));
        bytes += bytes_of(o->args[1]) + bytes_of(o->args[2]);
        if (!c->training)
            bytes += bytes_of(o->args[3]) + bytes_of(o->args[4]);
        if (c->leaf || (c->training && o->args[3] != TS_NONE))
            bytes += 2 * wide * (double)ts_size(x, 1), most = fmax(most, (double)ts_size(x, 1));
        return (ts_work){(c->family == BATCH_NORM ? 7 : 8) * most, bytes};
    case GROUP_NORM:
    case INSTANCE_NORM:
        wide = half ? 4 : (double)ts_dtype_size(ts_dtype_of(x));
        groups = c->family == GROUP_NORM ? (double)c->count
                                         : fmax(1, (double)ts_size(x, 1));
        bytes += bytes_of(o->args[1]) + bytes_of(o->args[2]);
        if (c->leaf)
            bytes += 2 * wide * (double)ts_size(x, 0) * groups,
                most = fmax(most, (double)ts_size(x, 0) * groups);
        return (ts_work){7 * most, bytes};
    default: return (ts_work){0, bytes}; /* pad, shuffles */
    }
}

static void expect_same(const ts_tensor *a, const ts_tensor *b, const char *what)
{
    ck_assert_msg((a == TS_NONE) == (b == TS_NONE), "%s: one result is absent", what);
    if (a == TS_NONE)
        return;
    ck_assert_msg(ts_dtype_of(a) == ts_dtype_of(b), "%s: dtype %s and %s", what,
                  ts_dtype_name(ts_dtype_of(a)), ts_dtype_name(ts_dtype_of(b)));
    ck_assert_msg(ts_ndim(a) == ts_ndim(b), "%s: %d and %d dims", what, ts_ndim(a), ts_ndim(b));
    for (int d = 0; d < ts_ndim(a); d++)
        ck_assert_msg(ts_size(a, d) == ts_size(b, d) && ts_strides(a)[d] == ts_strides(b)[d],
                      "%s: dim %d has size %lld and stride %lld on the CPU, %lld and %lld on META",
                      what, d, (long long)ts_size(a, d), (long long)ts_strides(a)[d],
                      (long long)ts_size(b, d), (long long)ts_strides(b)[d]);
}

/** Gradients of the arguments of both calls have the same sizes, dtypes and strides. */
static void check_gradients(const outcome *cpu, const outcome *meta, const char *what)
{
    ck_assert_msg(ts_requires_grad(cpu->y) == ts_requires_grad(meta->y), "%s: recorded once", what);
    if (!ts_requires_grad(cpu->y))
        return;
    ts_status status[] = {ts_backward_ex(cpu->y, ts_ones_like(cpu->y), NULL),
                          ts_backward_ex(meta->y, ts_ones_like(meta->y), NULL)};
    ck_assert_msg(status[0] == TS_OK && status[1] == TS_OK, "%s: backward: %s", what,
                  ts_error_message());
    for (int i = 0; i < 3; i++)
        if (cpu->args[i] != TS_NONE)
            expect_same(ts_grad(cpu->args[i]), ts_grad(meta->args[i]), what);
}

static void expect_text(const outcome *o, const char *what)
{
    bool named = strstr(o->text, ": argument '") || strstr(o->text, ": a new tensor: ");
    ck_assert_msg(named && strstr(o->text, ": expected ") && strstr(o->text, "got "),
                  "%s: no argument, expected or got: %s", what, o->text);
}

static void check(const drawn_call *c, ts_work (*expected)(const drawn_call *, const outcome *))
{
    TS_SCOPE;
    outcome cpu, meta;
    run(c, TS_DEVICE_CPU, &cpu);
    run(c, TS_DEVICE_META, &meta);
    const char *what = words(c);
    if (cpu.code == TS_ERR_MEMORY) /* META allocates no memory for elements */
        return;
    ck_assert_msg(cpu.code == meta.code && strcmp(cpu.text, meta.text) == 0 &&
                      strcmp(cpu.hint, meta.hint) == 0,
                  "%s: on the CPU '%s' (%s), on META '%s' (%s)", what, cpu.text, cpu.hint,
                  meta.text, meta.hint);
    if (getenv("TS_TEST_SHOW") && cpu.code != TS_OK)
        fprintf(stderr, "%s\n", cpu.text);
    if (cpu.code != TS_OK) {
        expect_text(&cpu, what);
        ts_tally_as(TS_COUNT_WRONG_CALLS, 1, 0, 0);
        return;
    }
    expect_same(cpu.y, meta.y, what);
    expect_same(cpu.indices, meta.indices, what);
    check_gradients(&cpu, &meta, what);
    if (!expected)
        return;
    ts_work want = expected(c, &cpu);
    if ((c->family == PAD && (cpu.calls != 1 || c->mode == TS_PAD_CIRCULAR)) ||
        (c->leaf && (c->family == SHUFFLE || c->family == UNSHUFFLE)))
        return; /* several calls, copies, or, of a recorded shuffle, calls of other ops */
    ck_assert_msg(cpu.calls == meta.calls && cpu.calls >= 1, "%s: %d and %d calls", what,
                  cpu.calls, meta.calls);
    const outcome *both[] = {&cpu, &meta};
    for (int i = 0; i < 2 && cpu.calls == 1; i++)
        ck_assert_msg(both[i]->work.flops == want.flops && both[i]->work.bytes == want.bytes,
                      "%s: on %s, expected %.0f FLOPs and %.0f bytes, got %.0f and %.0f", what,
                      i ? "META" : "the CPU", want.flops, want.bytes, both[i]->work.flops,
                      both[i]->work.bytes);
}

static int calls_of_a_run(void)
{
    const char *more = getenv("TS_TEST_CALLS");
    return more ? atoi(more) : 4000;
}

TS_TEST(drawn_calls_agree_on_cpu_and_meta_and_have_the_work_of_formulas)
{
    ts_key key;
    start();
    OK(ts_register_layer("work", "backends", &key));
    OK(ts_register_fallback(key, watch, NULL));
    OK(ts_layer_enable(key, true));
    for (int i = 0; i < calls_of_a_run(); i++) {
        drawn_call c = draw();
        check(&c, work_of);
    }
}

/** In a region, convolutions run in its dtype, group norm in f32, and all other calls in the dtypes
 *  of their arguments; f64 is never cast. */
TS_TEST(drawn_calls_have_the_dtypes_of_the_autocast_policies)
{
    start();
    for (int i = 0; i < calls_of_a_run(); i++) {
        TS_SCOPE;
        drawn_call c = draw();
        ts_dtype region = one_in(2) ? TS_BF16 : TS_F16, self = c.t[0].dtype;
        TS_AUTOCAST(TS_DEVICE_CPU, region);
        TS_AUTOCAST(TS_DEVICE_META, region);
        check(&c, NULL);
        outcome o;
        run(&c, TS_DEVICE_META, &o);
        ts_dtype want = self == TS_F64                                   ? TS_F64
                        : c.family == CONV || c.family == CONV_TRANSPOSE ? region
                        : c.family == GROUP_NORM                         ? TS_F32
                                                                         : self;
        if (o.y)
            ck_assert_msg(ts_dtype_of(o.y) == want, "%s in a region of %s: expected %s, got %s",
                          words(&c), ts_dtype_name(region), ts_dtype_name(want),
                          ts_dtype_name(ts_dtype_of(o.y)));
    }
}
