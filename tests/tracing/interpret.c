/** @file interpret.c  The interpreter of graphs: aliases made without calls, chosen nodes, kept
 * registers, layers that insert calls. */
// SPDX-License-Identifier: MIT
#include "tests/tracing/common.h"
#include "tracing/graph.h"

/* ---------------------------------------------------------------- aliases without calls ---- */

/** A view of the last two rows of t, made without a call of an op. */
static ts_tensor *last_rows(ts_tensor *t)
{
    int64_t sizes[] = {2, ts_size(t, 1)};
    ts_tensor *alias = ts_tensor_alias(&ts_tls, t, sizes, ts_strides(t), 2,
                                       (ts_size(t, 0) - 2) * ts_strides(t)[0]);
    OK(alias);
    return ts_adopt(alias);
}

static ts_status uses_aliases(TRACED) // (4, 3)
{
    TS_SCOPE;
    ts_tensor *twice = ts_add(in[0], in[0]);
    TS_TRY(twice);
    TS_TRY(ts_neg_(last_rows(twice)));
    out[0] = ts_keep(ts_add(last_rows(twice), last_rows(in[0])));
    out[1] = ts_keep(twice);
    return TS_STATUS_OF(out[0]);
}

TS_TEST(aliases_made_without_a_call_follow_their_memory)
{
    TS_SCOPE;
    ts_tensor *a = numbers(1, TS_SIZES(4, 3)), *b = numbers(2, TS_SIZES(4, 3));
    check_replay(uses_aliases, NULL, &a, &b, &b, 1, 2);
    ts_graph *graph;
    ts_tensor *out[2], *turned = ts_transpose(numbers(2, TS_SIZES(3, 4)), 0, 1);
    OK(ts_trace(uses_aliases, NULL, &a, 1, out, 2, &graph));
    ck_assert_int_eq(ts_graph_get_info(graph).captures, 0);
    /* this input has other strides */
    FAILS(TS_ERR_VALUE, ts_replay(graph, &turned, 1, out, 2));
    SAYS("of a tensor that now has other strides");
    char *text = written(graph, TS_GRAPH_TEXT);
    ck_assert_ptr_nonnull(strstr(text, "= alias(%0, (2, 3), (3, 1), 6)"));
    free(text);
    ts_graph_free(graph);
}

static ts_status uses_more_than_the_input(TRACED) // row 1 of (4, 3), from which row 2 is reached
{
    int64_t sizes[] = {3};
    ts_tensor *next = ts_adopt(ts_tensor_alias(&ts_tls, in[0], sizes, ts_strides(in[0]), 1, 3));
    return TS_STATUS_OF(out[0] = ts_add(in[0], next));
}

TS_TEST(an_alias_beyond_the_memory_of_an_input_is_refused)
{
    TS_SCOPE;
    ts_tensor *whole = numbers(1, TS_SIZES(4, 3)), *row = ts_select(whole, 0, 1),
              *last = ts_select(whole, 0, 3), *out, *want;
    ts_graph *graph;
    OK(ts_trace(uses_more_than_the_input, NULL, &row, 1, &out, 1, &graph));
    row = ts_select(whole, 0, 2);
    OK(ts_replay(graph, &row, 1, &out, 1));
    OK(uses_more_than_the_input(NULL, &row, 1, &want, 1));
    ck_assert(same(out, want));
    FAILS(TS_ERR_VALUE, ts_replay(graph, &last, 1, &out, 1));
    SAYS("of a tensor whose storage is now too small for it");
    ts_graph_free(graph);
}

/* ---------------------------------------------------------------------- chosen nodes ---- */

static ts_status two_ways(TRACED)
{
    TS_SCOPE;
    ts_tensor *a = ts_exp(in[0]), *b = ts_neg(in[0]);
    out[0] = ts_keep(ts_mul(a, a));
    out[1] = ts_keep(ts_add(b, b));
    return TS_STATUS_OF(out[1]);
}

static void choose(void *ctx, int arg, ts_id id)
{
    (void)arg;
    *(uint64_t *)ctx |= (uint64_t)1 << ts_id_index(id);
}

/** Nodes that value `id` depends on, in a graph of at most 64 nodes and values. */
static uint64_t ancestors(const ts_graph *g, ts_id id)
{
    uint64_t values = (uint64_t)1 << ts_id_index(id), nodes = 0;
    for (uint32_t i = g->nodes.count; i-- > 0;) {
        const ts_graph_node *n = ts_graph_node_at(g, i);
        for (int k = 0; k < n->nrets; k++)
            if (n->rets[k] && (values >> ts_id_index(n->rets[k]) & 1))
                nodes |= (uint64_t)1 << i;
        if (nodes >> i & 1)
            ts_graph_each_arg(g, n, choose, &values);
    }
    return nodes;
}

TS_TEST(chosen_nodes_run_alone_and_registers_can_be_kept)
{
    TS_SCOPE;
    ts_tensor *x = numbers(1, TS_SIZES(5)), *y[2], *registers[8] = {NULL};
    ts_graph *g;
    OK(ts_trace(two_ways, NULL, &x, 1, y, 2, &g));
    ck_assert_uint_eq(g->nodes.count, 4);
    ck_assert_uint_eq(g->values.count, 5);
    ts_id second = ts_graph_id_at(&g->outputs, 1), first = ts_graph_id_at(&g->outputs, 0);
    uint64_t chosen = ancestors(g, second);
    registers[ts_id_index(ts_graph_id_at(&g->inputs, 0))] = x;
    OK(ts_interpret(
        g, registers,
        &(ts_interpretation){.chosen = &chosen, .keep = true, .rng = ts_rng_get_state()}));
    ck_assert_int_eq(__builtin_popcountll(chosen), 2);
    ck_assert(same(registers[ts_id_index(second)], y[1]));
    ck_assert_ptr_null(registers[ts_id_index(first)]);
    int held = 0;
    for (int i = 0; i < 5; i++)
        held += registers[i] != NULL;
    ck_assert_int_eq(held, 3); /* input, intermediate, result */
    chosen = ancestors(g, first) & ~ancestors(g, second);
    chosen &= chosen - 1; /* removes a node whose result others need */
    FAILS(TS_ERR_INTERNAL,
          ts_interpret(g, registers,
                       &(ts_interpretation){.chosen = &chosen, .rng = ts_rng_get_state()}));
    ts_registers_clear(g, registers);
    ck_assert_ptr_null(registers[ts_id_index(second)]);
    ts_graph_free(g);
}

/* ------------------------------------------------------------------- layers that call ---- */

/** A layer that calls abs before it redispatches. */
static ts_status busy(ts_frame *f)
{
    TS_SCOPE;
    TS_TRY(ts_abs(f->args[0].t));
    return ts_redispatch(f);
}

static ts_status square(TRACED) { return TS_STATUS_OF(out[0] = ts_mul(in[0], in[0])); }

TS_TEST(calls_of_a_layer_above_are_marked)
{
    TS_SCOPE;
    ts_key high;
    OK(ts_register_layer("BUSY", "TRACING", &high));
    OK(ts_register_kernel("mul", high, busy, NULL, NULL));
    OK(ts_layer_enable(high, true));
    ts_tensor *x = numbers(1, TS_SIZES(3)), *y;
    ts_graph *g;
    OK(ts_trace(square, NULL, &x, 1, &y, 1, &g));
    OK(ts_layer_enable(high, false));
    ck_assert_uint_eq(g->nodes.count, 2);
    ck_assert(ts_graph_node_at(g, 0)->flags & TS_NODE_INSERTED);
    ck_assert(!(ts_graph_node_at(g, 1)->flags & TS_NODE_INSERTED));
    char *text = written(g, TS_GRAPH_TEXT);
    ck_assert_ptr_nonnull(strstr(text, "inserted by a layer above"));
    free(text);
    ts_graph_free(g);
}
