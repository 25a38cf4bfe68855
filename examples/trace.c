/**
 * @file trace.c
 * Records a training step as a graph, prints the graph, and continues training by replaying it.
 *
 *     trace            the graph as text, then the losses
 *     trace dot        for Graphviz: trace dot | dot -Tsvg > step.svg
 *     trace json
 */
// SPDX-License-Identifier: MIT
#include <stdio.h>
#include <string.h>

#include <tessera/tessera.h>

typedef struct trainer {
    ts_module *net;
    ts_optimizer *sgd;
} trainer;

/** One training step. inputs: x (32, 2), y (32, 1); outputs: the loss, 0-dim. */
static ts_status step(void *ctx, ts_tensor *const *inputs, int n, ts_tensor **outputs, int m)
{
    (void)n, (void)m;
    trainer *t = ctx;
    TS_SCOPE;
    ts_tensor *loss = ts_mse_loss(ts_forward(t->net, inputs[0]), inputs[1]);
    TS_TRY(ts_backward(loss));
    TS_TRY(ts_optimizer_step(t->sgd));
    ts_optimizer_zero_grad(t->sgd);
    return TS_STATUS_OF(outputs[0] = ts_keep(ts_detach(loss)));
}

static ts_status build(trainer *t)
{
    ts_group_opts opts = ts_optimizer_defaults(TS_SGD, 0.1);
    t->net = ts_sequential_new();
    TS_TRY(ts_sequential_add(t->net, ts_linear_new(2, 16, true)));
    TS_TRY(ts_sequential_add(t->net, ts_activation_new("Tanh", ts_tanh)));
    TS_TRY(ts_sequential_add(t->net, ts_linear_new(16, 1, true)));
    return TS_STATUS_OF(t->sgd = ts_optimizer_for(t->net, TS_SGD, &opts));
}

/** A batch of points and the product of their coordinates. */
static ts_status batch(ts_tensor **xy)
{
    xy[0] = ts_uniform(TS_SIZES(32, 2), -1, 1, TS_F32);
    xy[1] = ts_mul(ts_narrow(xy[0], 1, 0, 1), ts_narrow(xy[0], 1, 1, 1));
    return TS_STATUS_OF(xy[1]);
}

static ts_status run(trainer *t, ts_graph **graph, const char *form)
{
    ts_tensor *xy[2], *loss;
    double value;
    ts_manual_seed(1);
    TS_TRY(build(t));
    TS_TRY(batch(xy));
    TS_TRY(ts_trace(step, t, xy, 2, &loss, 1, graph));
    bool dot = strcmp(form, "dot") == 0, json = strcmp(form, "json") == 0;
    TS_TRY(ts_graph_write(*graph, stdout,
                          dot    ? TS_GRAPH_DOT
                          : json ? TS_GRAPH_JSON
                                 : TS_GRAPH_TEXT));
    for (int i = 1; i <= 1000 && !dot && !json; i++) {
        TS_SCOPE;
        TS_TRY(batch(xy));
        TS_TRY(ts_replay(*graph, xy, 2, &loss, 1));
        TS_TRY(ts_item(loss, &value));
        if (i % 250 == 0)
            printf("step %4d  loss %.4f\n", i, value);
    }
    return TS_OK;
}

int main(int argc, char **argv)
{
    const char *form = "text";
    int ended;
    const ts_argument arguments[] = {
        {"FORM", "format of the printed graph", .text = &form, .one_of = "text|dot|json"}};
    if (!ts_program_begin(argc, argv, "Records a training step and trains by replaying it.",
                          arguments, 1, &ended))
        return ended;
    TS_SCOPE;
    trainer t = {NULL, NULL};
    ts_graph *graph = NULL;
    ts_status status = run(&t, &graph, form);
    if (status != TS_OK)
        ts_error_print();
    ts_graph_free(graph);
    ts_optimizer_free(t.sgd);
    ts_module_free(t.net);
    return ts_program_end(status != TS_OK);
}
