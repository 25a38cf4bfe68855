/**
 * @file chains.c  The lesson of pointwise calls as one loop: functions of several calls, eager and
 * compiled.
 */
// SPDX-License-Identifier: MIT
#include <stdlib.h>
#include <string.h>

#include "study.h"

enum { WIDTH = 1024, /* of the rows of `bias` */
       INPUTS = 4 };

static ts_status chain(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    ts_tensor *y = in[0];
    for (int i = 0; i < 5; i++)
        TS_TRY(y = ts_mul_scalar(ts_add(y, in[1]), 0.9));
    *out = y;
    return TS_OK;
}

static ts_status act(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    ts_tensor *y = ts_mul_scalar(ts_tanh(ts_add(in[0], in[1])), 0.5);
    TS_TRY(*out = ts_gelu(ts_sub(y, in[0])));
    return TS_OK;
}

/** in[2]: the bias of a row. */
static ts_status bias(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    ts_tensor *y = ts_mul_scalar(ts_relu(ts_add(in[0], in[2])), 0.5);
    y = ts_maximum(ts_mul(ts_add(y, in[1]), in[2]), in[1]);
    TS_TRY(*out = ts_sub(y, in[0]));
    return TS_OK;
}

/** Adam's update in place. in: gradient, parameter, and both moments. */
static ts_status adam(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)ctx, (void)n, (void)m;
    ts_tensor *gradient = in[0], *mean = in[2], *square = in[3];
    TS_TRY(ts_mul_scalar_(mean, 0.9));
    TS_TRY(ts_add_(mean, ts_mul_scalar(gradient, 0.1)));
    TS_TRY(ts_mul_scalar_(square, 0.999));
    TS_TRY(ts_addcmul_(square, gradient, gradient, ts_scalar_float(0.001)));
    ts_tensor *root = ts_add_scalar(ts_sqrt(ts_div_scalar(square, 0.9)), 1e-8);
    TS_TRY(*out = ts_addcdiv_(in[1], mean, root, ts_scalar_float(-1e-3)));
    return TS_OK;
}

static const struct {
    const char *name;
    ts_trace_fn fn;
    int inputs;
} functions[] = {{"chain", chain, 2}, {"act", act, 2}, {"bias", bias, 3}, {"adam", adam, 4}};

/** A call of functions[which], compiled unless `compiled` is NULL. */
typedef struct chained {
    int which;
    ts_tensor *in[INPUTS];
    ts_compiled *compiled;
} chained;

static ts_status run(void *ctx)
{
    chained *c = ctx;
    ts_tensor *y;
    int inputs = functions[c->which].inputs;
    if (c->compiled)
        return ts_compiled_call(c->compiled, c->in, inputs, &y, 1);
    return functions[c->which].fn(NULL, c->in, inputs, &y, 1);
}

static ts_status fill(study *s, chained *c, int64_t elements)
{
    int64_t rows[] = {elements / WIDTH, WIDTH};
    for (int i = 0; i < INPUTS; i++) {
        bool row = i == 2 && functions[c->which].fn == bias;
        TS_TRY(c->in[i] = row ? study_normal(s, &rows[1], 1, TS_F32)
                              : study_normal(s, rows, 2, TS_F32));
    }
    TS_TRY(c->in[3] = ts_abs(c->in[3])); /* a second moment */
    return TS_OK;
}

/** Functions of 5 to 10 pointwise calls over f32 arrays that fit a cache and that do not. With
 *  TS_COMPILE_EMIT=0 only the compiled functions, as "tiles". */
ts_status study_chains(study *s)
{
    const char *emit = getenv("TS_COMPILE_EMIT");
    bool tiles = emit && strcmp(emit, "0") == 0;
    for (int which = 0; which < (int)(sizeof functions / sizeof *functions); which++)
        for (int64_t elements = 1 << 20; elements <= 1 << 24; elements *= 16)
            for (int compiled = tiles; compiled < 2; compiled++) {
                TS_SCOPE;
                chained c = {.which = which};
                double ns;
                TS_TRY(fill(s, &c, elements));
                if (compiled)
                    TS_TRY(c.compiled = ts_compile(functions[which].fn, NULL, NULL));
                ts_status status = study_time(s, run, &c, &ns);
                ts_compiled_free(c.compiled);
                TS_TRY(status);
                study_row(s, "%s\t%lld\t%s\t%.1f", functions[which].name, (long long)elements,
                          tiles ? "tiles" : compiled ? "compiled" : "eager", ns / 1e3);
            }
    return TS_OK;
}
