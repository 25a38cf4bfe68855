/** @file memory.c  Memory of training: no growth, no leaks, and the minimal peak. */
// SPDX-License-Identifier: MIT
#include "autograd/node.h"
#include "tests/blocks.h"
#include "tests/dispatch/common.h"

enum { V = 256 };

/** Sizes of a GPT and of its batches. */
typedef struct shape {
    int64_t layers, heads, width, length, batch;
    double dropout;
} shape;

typedef struct block {
    ts_module *ln1, *attention, *ln2, *mlp;
} block;

static ts_tensor *block_forward(ts_module *m, ts_tensor *x) // (B, T, C) -> (B, T, C)
{
    block *b = ts_module_payload(m);
    x = ts_add(x, ts_forward(b->attention, ts_forward(b->ln1, x)));
    return ts_add(x, ts_forward(b->mlp, ts_forward(b->ln2, x)));
}

static ts_module *block_new(const shape *s)
{
    static const ts_module_type type = {sizeof type, "Block", sizeof(block), block_forward, NULL};
    ts_module *m = ts_module_new(&type);
    block *b = ts_module_payload(m);
    ts_multihead_opts attention = {
        .size = sizeof attention, .causal = true, .dropout = s->dropout};
    ts_mlp_opts mlp = {.size = sizeof mlp, .activation = ts_gelu_tanh, .dropout = s->dropout};
    OK(ts_module_add(m, "ln1", ts_layer_norm_new(s->width, 0, true), &b->ln1));
    OK(ts_module_add(m, "attention", ts_multihead_new(s->width, s->heads, &attention),
                     &b->attention));
    OK(ts_module_add(m, "ln2", ts_layer_norm_new(s->width, 0, true), &b->ln2));
    OK(ts_module_add(m, "mlp", ts_mlp_new(s->width, 4 * s->width, &mlp), &b->mlp));
    return m;
}

static ts_module *gpt_new(const shape *s)
{
    ts_module *m = ts_sequential_new();
    OK(ts_sequential_add(m, ts_embedding_new(V, s->width)));
    for (int64_t i = 0; i < s->layers; i++)
        OK(ts_sequential_add(m, block_new(s)));
    OK(ts_sequential_add(m, ts_layer_norm_new(s->width, 0, true)));
    OK(ts_sequential_add(m, ts_linear_new(s->width, V, false)));
    return m;
}

static ts_tensor *loss_of(ts_module *m, const shape *s)
{
    ts_tensor *text = ts_randint(TS_SIZES(s->batch, s->length + 1), 0, V);
    ts_tensor *logits = ts_forward(m, ts_narrow(text, 1, 0, s->length)); // (B, T, V)
    return ts_cross_entropy_last(logits, ts_narrow(text, 1, 1, s->length));
}

static void finish_step(ts_optimizer *o, ts_tensor *loss)
{
    int64_t n;
    ts_tensor *const *params = ts_optimizer_params(o, &n);
    OK(ts_backward(loss));
    OK(ts_clip_grad_norm(params, n, 1.0, NULL));
    OK(ts_optimizer_step(o));
    ts_optimizer_zero_grad(o);
}

/** _i 0: the library's allocator makes no system allocations in later steps. 1: each block comes
 *  from malloc(), and bytes in use at the end equal those at the start. */
TS_TEST(training_memory_does_not_grow_and_is_all_freed, .loop = 2)
{
    if (_i && !blocks_from_malloc())
        TS_SKIP(TOO_LATE);
    const shape s = {
        .layers = 2, .heads = 4, .width = 32, .length = 24, .batch = 3, .dropout = 0.1};
    ts_manual_seed(1);
    ts_group_opts opts = ts_optimizer_defaults(TS_ADAMW, 1e-3);
    ts_memory_stats start = ts_memory_get_stats(), early = {0};
    ts_module *m = gpt_new(&s);
    ts_optimizer *o = ts_optimizer_for(m, TS_ADAMW, &opts);
    OK(o);
    for (int step = 1; step <= 25; step++) {
        {
            TS_SCOPE;
            finish_step(o, loss_of(m, &s));
        }
        if (step == 5)
            early = ts_memory_get_stats();
    }
    ts_memory_stats late = ts_memory_get_stats();
    ck_assert_int_gt(early.in_use, start.in_use);
    ck_assert_int_eq(late.in_use, early.in_use);
    ck_assert_int_eq(late.peak, early.peak);
    if (!ts_alloc_system)
        ck_assert_uint_eq(late.system_allocs, early.system_allocs);
    ts_optimizer_free(o);
    ts_module_free(m);
    if (ts_alloc_system) /* else the thread keeps slabs */
        ck_assert_int_eq(ts_memory_get_stats().in_use, start.in_use);
}

/* ------------------------------------------------------------------------------ the peak ---- */

enum { ROOM = 4096 };

/** Memory that a recorded graph keeps. */
typedef struct kept {
    const ts_storage *storages[ROOM];
    const ts_node *nodes[ROOM];
    int nstorages, nnodes;
    int64_t saved;   /* bytes of saved storages, each counted once, without those of parameters */
    int64_t headers; /* bytes of nodes */
    int64_t largest; /* bytes of operands and results of the largest op */
} kept;

static int64_t bytes_of(const int64_t *sizes, int ndim, uint8_t dtype)
{
    int64_t n = (int64_t)ts_dtype_size(dtype);
    for (int i = 0; i < ndim; i++)
        n *= sizes[i];
    return n;
}

static void keep_storage(kept *k, const ts_tensor *t, bool counts)
{
    for (int i = 0; t && i < k->nstorages; i++)
        if (k->storages[i] == t->storage)
            return;
    if (!t)
        return;
    ck_assert_int_lt(k->nstorages, ROOM);
    k->storages[k->nstorages++] = t->storage;
    k->saved += counts ? t->storage->bytes : 0;
}

static void keep_node(kept *k, const ts_node *node)
{
    for (int i = 0; node && i < k->nnodes; i++)
        if (k->nodes[i] == node)
            return;
    if (!node)
        return;
    ck_assert_int_lt(k->nnodes, ROOM);
    k->nodes[k->nnodes++] = node;
}

/** Sums what the graph of the loss keeps. Storages of parameters are in *k already, so they do not
 *  count. */
static void keep_graph(kept *k, const ts_node *root)
{
    keep_node(k, root);
    for (int at = 0; at < k->nnodes; at++) {
        const ts_node *node = k->nodes[at];
        int64_t bytes = 0;
        k->headers += node->bytes;
        for (uint32_t i = 0; i < node->ninputs; i++) {
            const ts_end *in = &node->inputs[i];
            keep_node(k, in->next);
            keep_storage(k, in->saved.t, true);
            bytes += bytes_of(in->shape.sizes, in->shape.ndim, in->shape.dtype);
        }
        for (int i = 0; i < node->nrets && node->op != TS_NODE_LEAF; i++) {
            const ts_end *out = &node->outputs[i];
            keep_storage(k, out->saved.t, true);
            bytes += bytes_of(out->shape.sizes, out->shape.ndim, out->shape.dtype);
        }
        k->largest = bytes > k->largest ? bytes : k->largest;
    }
}

TS_TEST(the_peak_is_the_live_bytes_of_a_step)
{
    if (ts_alloc_system)
        TS_SKIP("the system's allocator adds bytes to each block");
    const shape s = {.layers = 4, .heads = 4, .width = 128, .length = 128, .batch = 16};
    static kept k;
    int64_t parameters = 0, n, start = ts_memory_get_stats().in_use;
    ts_group_opts opts = ts_optimizer_defaults(TS_ADAMW, 1e-3);
    ts_manual_seed(1);
    ts_module *m = gpt_new(&s);
    ts_optimizer *o = ts_optimizer_for(m, TS_ADAMW, &opts);
    OK(o);
    ts_tensor *const *params = ts_optimizer_params(o, &n);
    for (int64_t i = 0; i < n; i++) {
        keep_storage(&k, params[i], false);
        parameters += params[i]->storage->bytes;
    }
    for (int step = 0; step < 2; step++) {
        TS_SCOPE;
        ts_memory_reset_peak();
        ts_tensor *loss = loss_of(m, &s);
        OK(loss);
        if (step == 1)
            keep_graph(&k, loss->node);
        finish_step(o, loss);
    }
    ck_assert_int_gt(k.saved, parameters);
    /* parameters, gradients, two moments */
    int64_t needed = 4 * parameters + k.saved + k.largest,
            peak = ts_memory_get_stats().peak - start;
    double ratio = (double)peak / (double)needed;
    printf("peak %.2f MB; parameters, gradients, state %.2f + saved %.2f + largest op %.2f = %.2f "
           "MB, ratio %.3f\n",
           (double)peak / 1e6, 4e-6 * (double)parameters, (double)k.saved / 1e6,
           (double)k.largest / 1e6, (double)needed / 1e6, ratio);
    ck_assert_msg(ratio <= 1.10, "peak %lld bytes, %.3f times the %lld that a step has to keep",
                  (long long)peak, ratio, (long long)needed);
    ts_optimizer_free(o);
    ts_module_free(m);
}
