/**
 * @file compare_gpt.c
 * A training step of a GPT for bench/compare.py, written as a user would: forward, backward,
 * clipping, AdamW. The step is called eagerly, as a compiled function, or as a graph.
 */
// SPDX-License-Identifier: MIT
#include <stdlib.h>
#include <string.h>

#include "compare_gpt.h"
#include "compare_steps.h"

enum { PER_BLOCK = 12, AROUND = 5, MOST_LAYERS = 64, MOST = PER_BLOCK * MOST_LAYERS + AROUND };

struct compare_gpt {
    int64_t B, T, C, H, L, V; // batch, tokens, channels, heads, layers, vocabulary
    int64_t half;             // not 0: the forward runs under autocast to bf16
    double dropout;
    compare_steps run;           // of step()
    ts_tensor *tokens, *targets; // (B, T), (B * T)
    ts_tensor *params[MOST], *grads[MOST], *mean[MOST], *square[MOST];
    int64_t steps[MOST], *counts[MOST];
    int64_t count;
};

/** Sizes of parameter i in the order of torch's parameters(); returns the number of dims. */
static int sizes_of(const compare_gpt *g, int64_t i, int64_t *sizes)
{
    int64_t C = g->C, last = 2 + PER_BLOCK * g->L;
    int64_t block[PER_BLOCK][2] = {{C, 0}, {C, 0}, {3 * C, C}, {3 * C, 0}, {C, C}, {C, 0},
                                   {C, 0}, {C, 0}, {4 * C, C}, {4 * C, 0}, {C, 4 * C}, {C, 0}};
    int64_t outer[AROUND][2] = {{g->V, C}, {g->T, C}, {C, 0}, {C, 0}, {g->V, C}};
    const int64_t *s = i < 2      ? outer[i]
                       : i < last ? block[(i - 2) % PER_BLOCK]
                                  : outer[2 + i - last];
    sizes[0] = s[0];
    sizes[1] = s[1];
    return s[1] ? 2 : 1;
}

static ts_status step(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m);

compare_gpt *compare_gpt_new(const int64_t *dims, double dropout, const float *const *values,
                             const int64_t *tokens, const int64_t *targets)
{
    compare_gpt *g = dims[4] <= MOST_LAYERS ? calloc(1, sizeof *g) : NULL;
    if (!g)
        return NULL;
    TS_SCOPE;
    memcpy(&g->B, dims, 7 * sizeof *dims);
    g->dropout = dropout;
    g->run = (compare_steps){.run = step, .ctx = g};
    int64_t n[] = {g->B * g->T};
    bool made = true;
    g->tokens = ts_retain(values ? compare_placed(tokens, TS_I64, TS_SIZES(g->B, g->T))
                                 : ts_randint((int64_t[]){g->B, g->T}, 2, 0, g->V));
    g->targets = ts_retain(values ? compare_placed(targets, TS_I64, n, 1)
                                  : ts_randint(n, 1, 0, g->V));
    g->count = AROUND + PER_BLOCK * g->L;
    for (int64_t i = 0; i < g->count; i++) {
        int64_t sizes[2];
        int ndim = sizes_of(g, i, sizes);
        ts_tensor *p = values ? compare_placed(values[i], TS_F32, sizes, ndim)
                              : ts_normal(sizes, ndim, 0, 0.02, TS_F32);
        g->params[i] = ts_set_requires_grad(ts_retain(p), true);
        g->mean[i] = ts_retain(ts_zeros(sizes, ndim, TS_F32));
        g->square[i] = ts_retain(ts_zeros(sizes, ndim, TS_F32));
        made = made && g->params[i] && g->mean[i] && g->square[i];
    }
    if (made && g->tokens && g->targets)
        return g;
    compare_gpt_free(g);
    return NULL;
}

void compare_gpt_free(compare_gpt *g)
{
    ts_compiled_free(g->run.compiled);
    for (int64_t i = 0; i < g->count; i++) {
        ts_release(g->params[i]);
        ts_release(g->mean[i]);
        ts_release(g->square[i]);
    }
    ts_release(g->tokens);
    ts_release(g->targets);
    free(g);
}

static ts_tensor *dropped(const compare_gpt *g, ts_tensor *x)
{
    return g->dropout > 0 ? ts_dropout(x, g->dropout, true) : x;
}

/* x (B, T, C); w: the block's twelve parameters */
static ts_tensor *attention(const compare_gpt *g, ts_tensor *x, ts_tensor *const *w)
{
    ts_tensor *qkv = ts_linear(ts_layer_norm(x, w[0], w[1]), w[2], w[3]); // (B, T, 3*C)
    ts_tensor *part[3];
    TS_TRY_NULL(ts_split(qkv, g->C, 2, part, 3));
    for (int i = 0; i < 3; i++) // (B, H, T, C/H)
        part[i] = ts_transpose(ts_view(part[i], TS_SIZES(g->B, g->T, g->H, g->C / g->H)), 1, 2);
    ts_tensor *y = ts_scaled_dot_product_attention_ex(
        part[0], part[1], part[2], NULL,
        TS_OPTS(ts_attention_opts, .causal = true, .dropout_p = g->dropout));
    y = ts_reshape(ts_transpose(y, 1, 2), TS_SIZES(g->B, g->T, g->C));
    return ts_add(x, dropped(g, ts_linear(y, w[4], w[5])));
}

static ts_tensor *mlp(const compare_gpt *g, ts_tensor *x, ts_tensor *const *w)
{
    ts_tensor *h = ts_linear_gelu(ts_layer_norm(x, w[6], w[7]), w[8], w[9], true, NULL);
    return ts_add(x, dropped(g, ts_linear(h, w[10], w[11])));
}

static ts_tensor *forward(const compare_gpt *g) // (B*T, V)
{
    TS_SCOPE;
    TS_AUTOCAST(ts_device_of(g->tokens), g->half ? TS_BF16 : TS_DTYPE_NONE);
    ts_tensor *const *w = g->params;
    ts_tensor *x = dropped(g, ts_add(ts_embedding(w[0], g->tokens, -1), w[1])); // (B, T, C)
    w += 2;
    for (int64_t l = 0; l < g->L; l++, w += PER_BLOCK)
        x = mlp(g, attention(g, x, w), w);
    ts_tensor *logits = ts_linear(ts_layer_norm(x, w[0], w[1]), w[2], TS_NONE); // (B, T, V)
    return ts_keep(ts_reshape(logits, TS_SIZES(g->B * g->T, g->V)));
}

/** Runs backward from the loss and returns the loss, 0-dim. Overwrites the logits with their
 *  gradient. */
static ts_tensor *backward(const compare_gpt *g, ts_tensor *logits)
{
    ts_tensor *gradient = ts_detach(logits),
              *loss = ts_cross_entropy_grad_(gradient, g->targets, NULL);
    TS_TRY_NULL(loss);
    TS_TRY_NULL(ts_backward_ex(logits, gradient, NULL));
    return loss;
}

static ts_status update(compare_gpt *g)
{
    TS_SCOPE;
    TS_NO_GRAD;
    ts_adamw_rule rule = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1,
                          .decoupled = true};
    for (int64_t i = 0; i < g->count; i++) {
        g->grads[i] = ts_grad(g->params[i]);
        g->steps[i]++;
        g->counts[i] = &g->steps[i];
    }
    TS_TRY(ts_counts_from("adamw", "steps", g->counts, g->count));
    ts_tensor *norm = ts_global_norm(g->grads, g->count);
    /* clips to 1 */
    ts_tensor *clip = ts_minimum_scalar(ts_rdiv_scalar(ts_add_scalar(norm, 1e-6), 1), 1);
    rule.grad_scale = &clip;
    TS_TRY(ts_adamw_(g->params, g->grads, g->mean, g->square, g->steps, g->count, &rule));
    for (int64_t i = 0; i < g->count; i++)
        ts_zero_grad(g->params[i]);
    return TS_OK;
}

static ts_status step(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)in, (void)n, (void)m;
    TS_SCOPE;
    TS_TRY(*out = backward(ctx, forward(ctx)));
    TS_TRY(update(ctx));
    return TS_STATUS_OF(*out = ts_keep(*out));
}

int compare_gpt_compile(compare_gpt *g, bool graph, bool replay, int64_t recompute)
{
    return compare_steps_compile(&g->run, "gpt", graph, replay, recompute);
}

ts_status compare_gpt_step(compare_gpt *g)
{
    TS_SCOPE;
    ts_tensor *loss;
    return compare_steps_once(&g->run, &loss);
}

double compare_gpt_run(compare_gpt *g, int turns, double *loss)
{
    return compare_steps_run(&g->run, turns, false, loss);
}

double compare_gpt_host(const compare_gpt *g) { return g->run.host_ns; }

int compare_gpt_explain(const compare_gpt *g)
{
    ts_compiled *c = g->run.compiled;
    return c && ts_explain(c, stdout) == TS_OK && fflush(stdout) == 0 ? 0 : -1;
}

int compare_gpt_memory(compare_gpt *g, int64_t *bytes)
{
    TS_SCOPE;
    ts_memory_reset_peak();
    bytes[0] = ts_memory_get_stats().in_use;
    ts_tensor *logits = forward(g);
    bytes[1] = ts_memory_get_stats().in_use;
    ts_status status = TS_STATUS_OF(backward(g, logits));
    if (status == TS_OK)
        status = update(g);
    bytes[2] = ts_memory_get_stats().peak;
    return status;
}

int compare_gpt_peak(bool reset, int64_t *bytes)
{
    ts_memory_stats stats;
    if (reset && ts_device_memory_reset_peak(ts_default_device()) != TS_OK)
        return -1;
    ts_status status = ts_device_memory_stats(ts_default_device(), &stats);
    *bytes = stats.peak;
    return status;
}
