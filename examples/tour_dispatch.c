/**
 * @file tour_dispatch.c
 * Follows one ts_add() under {CPU, AUTOGRAD} and says what each station does and what it costs.
 *
 * A time stamp costs about as much as a layer, so costs come from differences: the same call with
 * and without the station, fastest of many short batches.
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

static void call_noop(void) { ts_noop(a, b, ts_scalar_int(1)); }
static void add_meta(void) { ts_drop(ts_add(meta, meta)); }
static void add_out(void) { ts_add_out(out, a, b); }
static void add(void) { ts_drop(ts_add(a, b)); }
static void add_recorded(void) { ts_drop(ts_add(w, b)); }

/** ns a call. */
static double cost(void (*call)(void))
{
    double best = 1e18;
    for (int batch = 0; batch < 5000; batch++) {
        double t0 = now();
        for (int i = 0; i < 200; i++)
            call();
        double t = (now() - t0) / 200;
        best = t < best ? t : best;
    }
    return best;
}

/* A layer that does nothing but pass on, and one that says that it was visited. */
static ts_status pass_on(ts_frame *f) { return ts_redispatch(f); }

static int depth;
static ts_status announce(ts_frame *f)
{
    char call[256];
    ts_frame_describe(f, call, sizeof call);
    printf("  %*s%-9s sees %s\n", 2 * depth, "", ts_key_name(f->key), call);
    depth++;
    ts_status status = ts_redispatch(f);
    depth--;
    printf("  %*s%-9s returns %s\n", 2 * depth, "", ts_key_name(f->key), status == TS_OK ? "a result" : "an error");
    return status;
}

static void row(const char *station, double ns, const char *what) { printf("%-34s %8.1f ns   %s\n", station, ns, what); }

int main(void)
{
    TS_SCOPE;
    a = ts_ones(TS_SIZES(1), TS_F32);
    b = ts_ones(TS_SIZES(1), TS_F32);
    out = ts_empty(TS_SIZES(1), TS_F32);
    w = ts_set_requires_grad(ts_ones(TS_SIZES(1), TS_F32), true);
    meta = ts_empty_on(TS_SIZES(1), TS_F32, TS_DEVICE_META);

    ts_key above, below, passing;
    ts_register_layer("ABOVE", "AUTOGRAD", &above);
    ts_register_layer("BELOW", "backends", &below);
    ts_register_layer("PASSING", "backends", &passing);
    ts_register_kernel("add", above, announce, NULL, NULL);
    ts_register_kernel("add", below, announce, NULL, NULL);
    ts_register_kernel("noop", passing, pass_on, NULL, NULL);
    if (ts_error_code() != TS_OK) {
        ts_error_print();
        return 1;
    }

    printf("The slots of add, highest first:\n\n");
    ts_op_dump("add", stdout);

    printf("\nOne ts_add(w, b), w requires grad, watched from above and below AUTOGRAD:\n\n");
    ts_layer_enable(above, true);
    ts_layer_enable(below, true);
    ts_tensor *y = ts_add(w, b);
    ts_layer_enable(above, false);
    ts_layer_enable(below, false);
    printf("  the result requires grad: %s\n", ts_requires_grad(y) ? "yes, AUTOGRAD attached a node" : "no");

    double call = cost(call_noop);
    ts_layer_enable(passing, true);
    double layer = cost(call_noop) - call;
    ts_layer_enable(passing, false);
    double shapes = cost(add_meta), in_place = cost(add_out), plain = cost(add), recorded = cost(add_recorded);

    printf("\nWhat each station costs, by differences:\n\n");
    row("call", call, "box the arguments, OR their keys, one indirect call");
    row("a layer that passes on", layer, "mask itself, redispatch, restore");
    row("shape rule and tensor header", shapes - call, "infer and a header from the free list (measured on META)");
    row("kernel", in_place - call, "the loop over one element into a given result, checks of the result");
    row("memory", plain - in_place, "a new result instead of a given one: storage and header, made and released");
    row("AUTOGRAD", recorded - plain, "a node that keeps what the rule needs, made and released");
    row("ts_add, no gradient", plain, "");
    row("ts_add, recorded", recorded, "");
    return y ? 0 : 1;
}
