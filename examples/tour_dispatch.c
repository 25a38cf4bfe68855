/**
 * @file tour_dispatch.c  Follows one ts_add() under {CPU, AUTOGRAD, TRACING} and prints the work
 * and the cost of each station, that is, of each layer and of the backend.
 *
 * Three layers of the example, which only print, are placed above and below TRACING and AUTOGRAD. A
 * time stamp costs more than a layer, so each cost is a difference: the same call with and without
 * the station, the fastest of many short batches. docs/tour-of-a-call.md explains the output.
 */
// SPDX-License-Identifier: MIT
#include <stdio.h>
#include <time.h>

#include <tessera/tessera.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static ts_tensor *a, *b, *w, *out, *meta;

/* ------------------------------------------------------------------------------ the tour ---- */

static ts_key above, between, below, passing;

static void print_keys(const char *title, ts_keyset keys)
{
    printf("%s {", title);
    const char *comma = "";
    for (int key = TS_KEY_COUNT - 1; key >= 0; key--) {
        bool named = ts_key_name((ts_key)key)[0] != '?' && key != TS_KEY_ABSENT && key != passing;
        if (!(keys & TS_KEYSET(key)) || !named)
            continue;
        printf("%s%s", comma, ts_key_name((ts_key)key));
        comma = ", ";
    }
    printf("}");
}

/** Kernel of the three layers: prints the keys that the call has still to visit and the keys masked
 * for nested calls, redispatches, and prints whether the result has a history. */
static int depth;
static ts_status look(ts_frame *f)
{
    char call[256];
    ts_frame_describe(f, call, sizeof call);
    printf("%*s%s: %s\n%*s", 2 * depth + 2, "", ts_key_name(f->key), call, 2 * depth + 4, "");
    print_keys("to visit", f->keys);
    print_keys(", masked", ts_mask_get().exclude);
    printf("\n");
    depth++;
    ts_status status = ts_redispatch(f);
    depth--;
    ts_tensor *y = status == TS_OK ? f->rets[0].t : NULL;
    printf("%*s%s: back with %s, which %s\n", 2 * depth + 2, "", ts_key_name(f->key),
           y ? "a result" : "an error",
           y && ts_requires_grad(y) ? "has a history now" : "has no history");
    return status;
}

static ts_status one_add(void *ctx, ts_tensor *const *inputs, int n, ts_tensor **outputs, int m)
{
    (void)ctx, (void)n, (void)m;
    return (outputs[0] = ts_add(inputs[0], inputs[1])) ? TS_OK : ts_error_code();
}

static ts_status tour(void)
{
    ts_tensor *y;
    ts_graph *graph;
    printf("The slots of add, highest first:\n\n");
    TS_TRY(ts_op_dump("add", stdout));
    printf("\nOne ts_add(w, b) in a trace; w requires grad:\n\n");
    ts_key watchers[] = {above, between, below};
    for (int i = 0; i < 3; i++)
        TS_TRY(ts_layer_enable(watchers[i], true));
    ts_status status = ts_trace(one_add, NULL, (ts_tensor *[]){w, b}, 2, &y, 1, &graph);
    for (int i = 0; i < 3; i++)
        TS_TRY(ts_layer_enable(watchers[i], false));
    TS_TRY(status);
    printf("\nWhat TRACING has recorded:\n\n");
    status = ts_graph_write(graph, stdout, TS_GRAPH_TEXT);
    ts_graph_free(graph);
    return status;
}

/* ----------------------------------------------------------------------------- the costs ---- */

static void call_noop(void) { ts_noop(a, b, ts_scalar_int(1)); }
static void add_meta(void) { ts_drop(ts_add(meta, meta)); }
static void add_out(void) { ts_add_out(out, a, b); }
static void add(void) { ts_drop(ts_add(a, b)); }
static void add_recorded(void) { ts_drop(ts_add(w, b)); }

enum { CALLS = 200 };

/** Makes the call in ctx CALLS times. A traced batch includes begin and end of the trace. */
static ts_status many(void *ctx, ts_tensor *const *inputs, int n, ts_tensor **outputs, int m)
{
    (void)inputs, (void)n, (void)outputs, (void)m;
    void (*const *call)(void) = ctx;
    for (int i = 0; i < CALLS; i++)
        (*call)();
    return TS_OK;
}

/** Nanoseconds per call: the fastest of 5,000 batches. */
static double cost(void (*call)(void), bool traced)
{
    double best = 1e18;
    for (int batch = 0; batch < 5000; batch++) {
        ts_graph *graph = NULL;
        double t0 = now();
        if (traced)
            ts_trace(many, &call, NULL, 0, NULL, 0, &graph);
        else
            many(&call, NULL, 0, NULL, 0);
        double t = (now() - t0) / CALLS;
        ts_graph_free(graph);
        best = t < best ? t : best;
    }
    return best;
}

static double cost_of_replay(void)
{
    double best = 1e18;
    void (*call)(void) = add;
    ts_graph *graph;
    if (ts_trace(many, &call, NULL, 0, NULL, 0, &graph) != TS_OK)
        return 0;
    for (int batch = 0; batch < 5000; batch++) {
        double t0 = now();
        ts_replay(graph, NULL, 0, NULL, 0);
        double t = (now() - t0) / CALLS;
        best = t < best ? t : best;
    }
    ts_graph_free(graph);
    return best;
}

static ts_status pass_on(ts_frame *f) { return ts_redispatch(f); }

static void row(const char *station, double ns, const char *what)
{
    printf("%-30s %7.1f ns   %s\n", station, ns, what);
}

static void costs(void)
{
    double call = cost(call_noop, false);
    ts_layer_enable(passing, true);
    double layer = cost(call_noop, false) - call;
    ts_layer_enable(passing, false);
    double shapes = cost(add_meta, false), in_place = cost(add_out, false),
           plain = cost(add, false);
    double recorded = cost(add_recorded, false), traced = cost(add, true),
           both = cost(add_recorded, true);

    printf("\nWhat each station costs, by differences:\n\n");
    row("call", call, "box the arguments, OR their keys, one indirect call");
    row("a layer that passes on", layer, "mask itself, redispatch, restore");
    row("shape rule and tensor header", shapes - call,
        "infer and a header from the free list (measured on META)");
    row("kernel", in_place - call,
        "the loop over one element into a given result, checks of the result");
    row("memory", plain - in_place,
        "a new result instead of a given one: storage and header, made and released");
    row("AUTOGRAD", recorded - plain, "a node that keeps what the rule needs, made and released");
    row("TRACING", traced - plain,
        "ids of the arguments, a node of the graph, an id for the result");
    row("TRACING above AUTOGRAD", both - recorded,
        "the same, over a call that is recorded for gradients too");
    row("ts_add", plain, "no layer");
    row("ts_add, recorded", recorded, "AUTOGRAD");
    row("ts_add, recorded and traced", both, "TRACING and AUTOGRAD");
    row("ts_add, replayed", cost_of_replay(), "called by the interpreter of graphs");
}

int main(int argc, char **argv)
{
    int ended;
    static const char about[] =
        "Follows one ts_add() through the dispatcher, and prints the cost of each station.";
    if (!ts_program_begin(argc, argv, about, NULL, 0, &ended))
        return ended;
    TS_SCOPE;
    a = ts_ones(TS_SIZES(1), TS_F32);
    b = ts_ones(TS_SIZES(1), TS_F32);
    out = ts_empty(TS_SIZES(1), TS_F32);
    w = ts_set_requires_grad(ts_ones(TS_SIZES(1), TS_F32), true);
    meta = ts_empty_on(TS_SIZES(1), TS_F32, TS_DEVICE_META);

    ts_register_layer("ABOVE", "TRACING", &above);
    ts_register_layer("BETWEEN", "AUTOGRAD", &between);
    ts_register_layer("BELOW", "backends", &below);
    ts_register_layer("PASSING", "backends", &passing);
    ts_register_kernel("add", above, look, NULL, NULL);
    ts_register_kernel("add", between, look, NULL, NULL);
    ts_register_kernel("add", below, look, NULL, NULL);
    ts_register_kernel("noop", passing, pass_on, NULL, NULL);
    if (ts_error_code() != TS_OK || tour() != TS_OK) {
        ts_error_print();
        return 1;
    }
    costs();
    return ts_program_end(ts_error_code() != TS_OK);
}
