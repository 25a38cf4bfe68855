/** @file train.c  Parity of 200 compiled and eager training steps of small networks. */
// SPDX-License-Identifier: MIT
#include "tests/compile/stages.h"
#include "tests/tracing/net.h"

/** A drawn network, its input and its number of classes; 0 classes: targets like its results. */
typedef struct task {
    ts_module *module;
    int64_t sizes[4], classes;
    int ndim;
} task;

static int64_t between(uint64_t *state, int64_t least, int64_t most)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return least + (int64_t)(*state >> 33) % (most - least + 1);
}

static void add(ts_module *to, ts_module *m) { OK(ts_sequential_add(to, m)); }

static task perceptron(uint64_t *state)
{
    task t = {ts_sequential_new(), {between(state, 2, 5), between(state, 3, 9)}, 0, 2};
    int64_t hidden = between(state, 4, 12);
    add(t.module, ts_linear_new(t.sizes[1], hidden, true));
    add(t.module, ts_activation_new("ReLU", ts_relu));
    add(t.module, ts_dropout_new(between(state, 0, 1) ? 0.5 : 0));
    add(t.module, ts_linear_new(hidden, 3, true));
    return t;
}

static ts_tensor *flatten(ts_tensor *x) { return ts_flatten(x, 1, -1); }

/** Two convolutions with batch norm and pooling, and a classifier. */
static task convolutions(uint64_t *state)
{
    const ts_conv_opts same = {.size = sizeof same, .padding = {1, 1}};
    const ts_pool_opts half = {.size = sizeof half, .kernel = {2, 2}};
    int64_t side = 4 * between(state, 1, 2), width = between(state, 2, 5);
    task t = {ts_sequential_new(), {between(state, 2, 3), between(state, 1, 2), side, side},
              between(state, 2, 5), 4};
    add(t.module, ts_conv_new(t.sizes[1], width, TS_SIZES(3, 3), true, &same));
    add(t.module, ts_batch_norm_new(width, NULL));
    add(t.module, ts_activation_new("ReLU", ts_relu));
    add(t.module, ts_max_pool_new(2, &half));
    add(t.module, ts_conv_new(width, width + 1, TS_SIZES(3, 3), true, &same));
    add(t.module, ts_activation_new("SiLU", ts_silu));
    add(t.module, ts_avg_pool_new(2, &half));
    add(t.module, ts_activation_new("Flatten", flatten));
    add(t.module, ts_linear_new((width + 1) * side * side / 16, t.classes, true));
    return t;
}

/** x + attention(norm(x)), then y + mlp(norm(y)), as in GPT-2. */
typedef struct block {
    ts_module *norms[2], *attention, *mlp;
} block;
static ts_tensor *block_forward(ts_module *m, ts_tensor *x)
{
    const block *b = ts_module_payload(m);
    x = ts_add(x, ts_forward(b->attention, ts_forward(b->norms[0], x)));
    return ts_add(x, ts_forward(b->mlp, ts_forward(b->norms[1], x)));
}

static task transformer(uint64_t *state)
{
    static const ts_module_type type = {sizeof type, "Block", sizeof(block), block_forward, NULL};
    int64_t heads = between(state, 1, 3), width = heads * 4 * between(state, 1, 2);
    task t = {ts_sequential_new(), {between(state, 1, 3), between(state, 2, 9), width},
              between(state, 3, 11), 3};
    ts_module *m = ts_module_new(&type);
    block *b = ts_module_payload(m);
    OK(ts_module_add(m, "ln1", ts_layer_norm_new(width, 0, true), &b->norms[0]));
    OK(ts_module_add(m, "attention", ts_multihead_new(width, heads, TS_OPTS(ts_multihead_opts,
                                                                            .causal = true)),
                     &b->attention));
    OK(ts_module_add(m, "ln2", ts_layer_norm_new(width, 0, true), &b->norms[1]));
    OK(ts_module_add(m, "mlp", ts_mlp_new(width, 4 * width, NULL), &b->mlp));
    add(t.module, m);
    add(t.module, ts_dropout_new(between(state, 0, 1) ? 0.2 : 0));
    add(t.module, ts_linear_new(width, t.classes, true));
    return t;
}

static ts_status step(TRACED)
{
    const net *t = ctx;
    TS_SCOPE;
    ts_tensor *y = ts_forward(t->module, in[0]),
              *loss = ts_dtype_of(in[1]) == TS_I64 ? ts_cross_entropy_last(y, in[1])
                                                   : ts_mse_loss(y, in[1]);
    TS_TRY(ts_backward(loss));
    TS_TRY(ts_optimizer_step(t->optimizer));
    ts_optimizer_zero_grad(t->optimizer);
    out[0] = ts_keep(ts_detach(loss));
    return TS_OK;
}

static net draw_net(task (*draw)(uint64_t *), uint64_t seed, ts_optimizer_kind kind, task *t)
{
    ts_manual_seed(seed);
    *t = draw(&seed);
    net n = {.module = t->module};
    ts_group_opts opts = ts_optimizer_defaults(kind, 0.05);
    OK(n.optimizer = ts_optimizer_for(n.module, kind, &opts));
    return n;
}

enum { NETS = 3, TURNS = 4 };
TS_TEST(two_hundred_steps_have_the_bits_of_calls, .loop = NETS * STAGES * TURNS / 2)
{
    static task (*const all[NETS])(uint64_t *) = {perceptron, convolutions, transformer};
    TS_SCOPE;
    ts_optimizer_kind kind = _i % 2 ? TS_ADAMW : TS_SGD;
    set_stage(stages[_i / 2 / NETS % STAGES]);
    task t, other;
    net a = draw_net(all[_i / 2 % NETS], 100 + (uint64_t)_i, kind, &t),
        b = draw_net(all[_i / 2 % NETS], 100 + (uint64_t)_i, kind, &other);
    ts_compiled *c = ts_compile(step, &a, NULL);
    ts_manual_seed(9);
    for (uint64_t k = 0; k < 200; k++) {
        TS_SCOPE;
        ts_tensor *loss, *want, *x = numbers(10 + k, t.sizes, t.ndim), *y, *batch[2] = {x};
        y = t.ndim == 3 ? numbers(20 + k, t.sizes, 2) : numbers(20 + k, TS_SIZES(t.sizes[0]));
        batch[1] = t.classes
                       ? ts_remainder_scalar(ts_to(ts_mul_scalar(ts_abs(y), 100), TS_I64),
                                             t.classes)
                       : numbers(20 + k, TS_SIZES(t.sizes[0], 3));
        ts_rng_state begin = ts_rng_get_state();
        OK(ts_compiled_call(c, batch, 2, &loss, 1));
        ts_rng_state end = ts_rng_get_state();
        ts_rng_set_state(begin);
        OK(step(&b, batch, 2, &want, 1));
        ck_assert_msg(same(loss, want), "step %d", (int)k);
        ck_assert_uint_eq(ts_rng_get_state().offset, end.offset);
        check_same_nets(a, b, false);
    }
    ts_compile_stats stats = ts_compiled_get_stats(c);
    ck_assert_int_eq(stats.calls, 200);
    ck_assert_int_eq(stats.breaks, 0);
    ck_assert_int_le(stats.compiles, 2); /* the optimizer has no state in the first step */
    ts_compiled_free(c);
    net_free(a);
    net_free(b);
}
