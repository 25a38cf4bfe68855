/**
 * @file calls.c  Lessons about calls: layers of the dispatcher, batch size, dtypes.
 */
// SPDX-License-Identifier: MIT
#include <math.h>
#include <string.h>

#include "study.h"

/* ------------------------------------------------------------------------------- layers ---- */

typedef struct addition {
    ts_tensor *a, *b, *leaf, *out;
    ts_dtype autocast;
} addition;

static ts_status into_given(void *ctx)
{
    addition *x = ctx;
    return TS_STATUS_OF(ts_add_out(x->out, x->a, x->b));
}
static ts_status new_result(void *ctx)
{
    addition *x = ctx;
    ts_tensor *y = ts_add(x->a, x->b);
    ts_drop(y);
    return TS_STATUS_OF(y);
}
static ts_status recorded(void *ctx)
{
    addition *x = ctx;
    ts_tensor *y = ts_add(x->leaf, x->b);
    ts_drop(y);
    return TS_STATUS_OF(y);
}
static ts_status with_gradient(void *ctx)
{
    addition *x = ctx;
    ts_tensor *y = ts_add(x->leaf, x->b);
    TS_TRY(ts_backward_ex(y, x->a, NULL));
    ts_zero_grad(x->leaf);
    ts_drop(y);
    return TS_OK;
}

enum { PASSING = 4 };
static ts_key passing[PASSING];

static ts_status pass_on(ts_frame *f) { return ts_redispatch(f); }

static ts_status switch_layers(int count, bool on)
{
    for (int i = 0; i < count; i++)
        TS_TRY(ts_layer_enable(passing[i], on));
    return TS_OK;
}

/** Times an addition of growing arrays with different parts of a call's path (stations): into a
 *  given result; with a new result; with four layers that only redispatch; with a node of autograd;
 *  with the node and a profile; with the node and its backward pass. */
ts_status study_layers(study *s)
{
    static const struct {
        const char *name;
        ts_status (*run)(void *ctx);
        int layers;
        bool profiled;
    } stations[] = {{"kernel, given result", into_given, 0, false},
                    {"new result", new_result, 0, false},
                    {"new result, 4 layers that pass on", new_result, PASSING, false},
                    {"recorded by AUTOGRAD", recorded, 0, false},
                    {"recorded, profiled", recorded, 0, true},
                    {"recorded, backward", with_gradient, 0, false}};
    enum { STATIONS = sizeof stations / sizeof *stations };
    const int64_t most = s->gpu ? 64 << 20 : 1 << 14;
    for (int i = 0; i < PASSING; i++) {
        char name[16];
        snprintf(name, sizeof name, "STUDY%d", i);
        TS_TRY(ts_register_layer(name, "backends", &passing[i]));
        TS_TRY(ts_register_kernel("add", passing[i], pass_on, NULL, NULL));
    }
    for (int64_t n = 1; n <= most; n *= n < 16 ? 16 : 8) {
        TS_SCOPE;
        double ns[STATIONS];
        addition x = {.a = study_normal(s, TS_SIZES(n), TS_F32),
                      .b = study_normal(s, TS_SIZES(n), TS_F32),
                      .out = study_normal(s, TS_SIZES(n), TS_F32)};
        TS_TRY(x.leaf = ts_set_requires_grad(study_normal(s, TS_SIZES(n), TS_F32), true));
        for (int i = 0; i < STATIONS; i++) {
            TS_TRY(switch_layers(stations[i].layers, true));
            if (stations[i].profiled)
                TS_TRY(ts_prof_start(NULL));
            ts_status status = study_time(s, stations[i].run, &x, &ns[i]);
            TS_TRY(ts_prof_stop());
            TS_TRY(switch_layers(stations[i].layers, false));
            TS_TRY(status);
            study_row(s, "%lld\t%s\t%.1f", (long long)n, stations[i].name, ns[i]);
        }
        for (int i = 1; i < STATIONS - 1; i++) {
            double share = 100 * (1 - ns[0] / ns[i]);
            TS_TRY(study_point(s, stations[i].name, (double)n, share > 0 ? share : 0));
        }
    }
    return TS_OK;
}

/* ------------------------------------------------------------------------- batch sizes ---- */

typedef struct layers {
    ts_tensor *x, *up, *down;
} layers;

static ts_status infer(void *ctx)
{
    layers *l = ctx;
    return TS_STATUS_OF(ts_linear(ts_relu(ts_linear(l->x, l->up, TS_NONE)), l->down, TS_NONE));
}

/** Runs growing batches through two linear layers. A small batch takes as long as loading the
 *  weights. */
ts_status study_batch(study *s)
{
    const int64_t width = s->gpu ? 4096 : 1024;
    const ts_dtype dtype = s->gpu ? TS_BF16 : TS_F32;
    layers l = {.up = study_normal(s, TS_SIZES(4 * width, width), dtype),
                .down = study_normal(s, TS_SIZES(width, 4 * width), dtype)};
    double before = 0;
    TS_NO_GRAD;
    TS_TRY(l.up);
    TS_TRY(l.down);
    for (int64_t batch = 1; batch <= (s->gpu ? 8192 : 512); batch *= 2) {
        TS_SCOPE;
        double ns;
        TS_TRY(l.x = study_normal(s, TS_SIZES(batch, width), dtype));
        TS_TRY(study_time(s, infer, &l, &ns));
        char over[16] = "-";
        if (before > 0)
            snprintf(over, sizeof over, "%.2f", ns / before);
        study_row(s, "%lld\t%.1f\t%s\t%.0f", (long long)batch, ns / 1e3, over,
                  1e9 * (double)batch / ns);
        TS_TRY(study_point(s, "samples per second", (double)batch, 1e9 * (double)batch / ns));
        before = ns;
    }
    return TS_OK;
}

/* -------------------------------------------------------------------------- precision ---- */

typedef struct product {
    ts_tensor *a, *b, *out;
} product;

static ts_status multiply(void *ctx)
{
    product *p = ctx;
    return TS_STATUS_OF(ts_mm_out(p->out, p->a, p->b));
}
static ts_status add(void *ctx)
{
    product *p = ctx;
    return TS_STATUS_OF(ts_add_out(p->out, p->a, p->b));
}

/** Sets *error to the root mean square of out - exact, divided by that of `exact` (f64). */
static ts_status error_of(ts_tensor *out, ts_tensor *exact, double *error)
{
    double of, all;
    ts_tensor *d = ts_sub(ts_to(out, TS_F64), exact);
    TS_TRY(ts_item(ts_sum(ts_mul(d, d)), &of));
    TS_TRY(ts_item(ts_sum(ts_mul(exact, exact)), &all));
    *error = sqrt(of / all);
    return TS_OK;
}

/** Times products and additions in each dtype, and compares their results for the same small
 *  matrices with f64. With TS_CUDA_TF32=1 on a GPU it measures only the f32 product, in TF32. */
ts_status study_precision(study *s)
{
    const int64_t n = s->gpu ? 8192 : 1024, small = 1024, length = s->gpu ? 64 << 20 : 8 << 20;
    static const struct {
        ts_dtype dtype;
        const char *name;
    } dtypes[] = {{TS_F64, "f64"}, {TS_F32, "f32"}, {TS_BF16, "bf16"}, {TS_F16, "f16"}};
    bool narrow = s->gpu && ts_variable_choice("TS_CUDA_TF32", "1|0") == 0;
    TS_NO_GRAD;
    ts_tensor *a = study_normal(s, TS_SIZES(small, small), TS_F64),
              *b = study_normal(s, TS_SIZES(small, small), TS_F64), *exact = ts_mm(a, b);
    TS_TRY(exact);
    for (int i = 0; i < (int)(sizeof dtypes / sizeof *dtypes); i++) {
        TS_SCOPE;
        ts_dtype dtype = dtypes[i].dtype;
        double ns, error, item = (double)ts_dtype_size(dtype);
        if (narrow && dtype != TS_F32)
            continue;
        TS_TRY(error_of(ts_mm(ts_to(a, dtype), ts_to(b, dtype)), exact, &error));
        product p = {study_normal(s, TS_SIZES(n, n), dtype), study_normal(s, TS_SIZES(n, n), dtype),
                     study_normal(s, TS_SIZES(n, n), dtype)};
        TS_TRY(p.out);
        TS_TRY(study_time(s, multiply, &p, &ns));
        study_row(s, "product of %lld\t%s\t%.1f\t%.1f\tGFLOP/s\t%.1e", (long long)n,
                  narrow ? "tf32" : dtypes[i].name, ns / 1e3,
                  2 * (double)n * (double)n * (double)n / ns, error);
        if (narrow)
            continue;
        TS_TRY(error_of(ts_add(ts_to(a, dtype), ts_to(b, dtype)), ts_add(a, b), &error));
        p = (product){study_normal(s, TS_SIZES(length), dtype),
                      study_normal(s, TS_SIZES(length), dtype),
                      study_normal(s, TS_SIZES(length), dtype)};
        TS_TRY(p.out);
        TS_TRY(study_time(s, add, &p, &ns));
        study_row(s, "sum of %lld\t%s\t%.1f\t%.1f\tGB/s\t%.1e", (long long)length, dtypes[i].name,
                  ns / 1e3, 3 * item * (double)length / ns, error);
    }
    return TS_OK;
}
