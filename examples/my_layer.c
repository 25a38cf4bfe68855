/**
 * @file my_layer.c  A user-defined layer between two others, which logs and counts calls.
 *
 *     build/examples/my_layer
 *
 * The layer is above AUTOGRAD and below TRACING: it sees the program's calls, the casts that
 * AUTOCAST adds, and in backward the calls of gradient rules. Exit status 0 if the layer sees the
 * same calls in two threads.
 */
// SPDX-License-Identifier: MIT
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <tessera/tessera.h>

static _Atomic int calls;

/** The whole layer: redispatches, prints and counts the call, returns the status. */
static ts_status log_shapes(ts_frame *f)
{
    char call[256];
    ts_frame_describe(f, call, sizeof call); // "mm((2, 3) f32, (3, 2) f32)"
    ts_status status = ts_redispatch(f);     // AUTOGRAD, then the backend
    printf("  %s%s\n", call, status == TS_OK ? "" : " failed");
    atomic_fetch_add(&calls, 1);
    return status;
}

/** Two ops and a backward. */
static ts_status compute(void)
{
    TS_SCOPE;
    ts_tensor *w = ts_set_requires_grad(ts_ones(TS_SIZES(2, 3), TS_F32), true);
    return ts_backward(ts_sum(ts_mul(w, w)));
}

static void *compute_in_thread(void *status)
{
    *(ts_status *)status = compute();
    return NULL;
}

static ts_status compute_elsewhere(void)
{
    pthread_t thread;
    ts_status status = TS_OK;
    if (pthread_create(&thread, NULL, compute_in_thread, &status) != 0)
        return ts_error_set(TS_ERR_STATE, "no thread");
    pthread_join(thread, NULL);
    return status;
}

static ts_status run(void)
{
    ts_key key;
    TS_TRY(ts_register_layer("SHAPE_LOG", "AUTOGRAD", &key)); // just above AUTOGRAD
    TS_TRY(ts_register_fallback(key, log_shapes, NULL));      // for every op, present and future

    printf("off:\n");
    TS_TRY(compute());
    printf("on for this thread:\n");
    TS_TRY(ts_layer_enable(key, true));
    TS_TRY(compute());
    TS_TRY(compute_elsewhere()); // prints nothing: the layer is off in other threads
    TS_TRY(ts_layer_enable(key, false));
    int here = atomic_load(&calls);
    printf("on for all threads:\n");
    TS_TRY(ts_layer_enable_all(key, true));
    TS_TRY(compute_elsewhere());
    TS_TRY(ts_layer_enable_all(key, false));
    int there = atomic_load(&calls) - here;
    printf("%d calls here, %d there\n", here, there);
    return here > 0 && there == here
               ? TS_OK
               : ts_error_set(TS_ERR_STATE, "expected the same calls from both threads");
}

int main(int argc, char **argv)
{
    int ended;
    static const char about[] =
        "Registers a layer between two others, and checks the calls that it sees.";
    if (!ts_program_begin(argc, argv, about, NULL, 0, &ended))
        return ended;
    ts_status status = run();
    ts_error_print(); // prints nothing without an error
    return ts_program_end(status == TS_OK ? EXIT_SUCCESS : EXIT_FAILURE);
}
