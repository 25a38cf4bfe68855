/**
 * @file try_advice.c  Declares the knobs of a training step and lets the profiler try its advice.
 *
 *     try_advice [--device cuda] [--batch N] [--words N]
 *
 * The model is a small network over a vocabulary. The program declares the batch size, the size of
 * the vocabulary, autocast and compilation; ts_prof_try() prints the predicted gain of each beside
 * the measured one.
 */
// SPDX-License-Identifier: MIT
#include <stdio.h>
#include <string.h>

#include <tessera/tessera.h>

enum { FEATURES = 256 };

typedef struct program {
    int64_t batch, words, autocast, compiled; // the knobs
    int64_t made_batch, made_words;           // their values when the objects below were made
    ts_device device;
    ts_module *net;
    ts_optimizer *optimizer;
    ts_tensor *x, *y;
    ts_compiled *function;
} program;

static void free_program(program *p)
{
    ts_compiled_free(p->function);
    ts_optimizer_free(p->optimizer);
    ts_module_free(p->net);
    ts_release(p->x);
    ts_release(p->y);
    p->function = NULL;
    p->optimizer = NULL;
    p->net = NULL;
    p->x = p->y = NULL;
    p->made_batch = p->made_words = 0;
}

/** One training step on features in[0] and words in[1]; out[0] receives the loss. */
static ts_status train(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)n, (void)m;
    program *p = ctx;
    TS_SCOPE;
    ts_tensor *loss;
    {
        TS_AUTOCAST(p->device, p->autocast ? TS_BF16 : TS_DTYPE_NONE);
        loss = ts_cross_entropy(ts_forward(p->net, in[0]), in[1]);
    }
    TS_TRY(ts_backward(loss));
    TS_TRY(ts_optimizer_step(p->optimizer));
    ts_optimizer_zero_grad(p->optimizer);
    out[0] = ts_keep(ts_detach(loss));
    return TS_STATUS_OF(out[0]);
}

/** Makes model and batch for the current values of the knobs. */
static ts_status make(program *p)
{
    TS_SCOPE;
    free_program(p);
    TS_TRY(p->net = ts_sequential_new());
    TS_TRY(ts_sequential_add(p->net, ts_linear_new(FEATURES, FEATURES, true)));
    TS_TRY(ts_sequential_add(p->net, ts_activation_new("GELU", ts_gelu)));
    TS_TRY(ts_sequential_add(p->net, ts_layer_norm_new(FEATURES, 0, true)));
    TS_TRY(ts_sequential_add(p->net, ts_linear_new(FEATURES, p->words, true)));
    ts_group_opts opts = ts_optimizer_defaults(TS_ADAMW, 1e-3);
    TS_TRY(p->optimizer = ts_optimizer_for(p->net, TS_ADAMW, &opts));
    TS_TRY(p->x = ts_retain(ts_normal(TS_SIZES(p->batch, FEATURES), 0, 1, TS_F32)));
    TS_TRY(p->y = ts_retain(ts_randint(TS_SIZES(p->batch), 0, p->words)));
    TS_TRY(p->function = ts_compile(train, p, TS_OPTS(ts_compile_opts, .graph = true)));
    p->made_batch = p->batch;
    p->made_words = p->words;
    return TS_OK;
}

/** The step of ts_prof_try(): makes new objects if a knob changed their sizes, then trains. */
static ts_status step(void *ctx)
{
    program *p = ctx;
    if (p->made_batch != p->batch || p->made_words != p->words)
        TS_TRY(make(p));
    ts_tensor *in[] = {p->x, p->y}, *loss;
    return p->compiled ? ts_compiled_call(p->function, in, 2, &loss, 1)
                       : train(p, in, 2, &loss, 1);
}

int main(int argc, char **argv)
{
    program p = {.batch = 64, .words = 4093, .device = TS_DEVICE_CPU};
    const char *device = "cpu";
    int status;
    const ts_argument arguments[] = {
        {.name = "--device", .help = "cpu or cuda", .text = &device, .one_of = "cpu|cuda"},
        {.name = "--batch", .help = "batch size", .number = &p.batch, .least = 1,
         .most = 1 << 20},
        {.name = "--words", .help = "size of the vocabulary", .number = &p.words,
         .least = 2, .most = 1 << 20},
    };
    if (!ts_program_begin(argc, argv, "Tries the profiler's advice.\n", arguments,
                          sizeof arguments / sizeof arguments[0], &status))
        return status;
    ts_knob knobs[] = {
        {.name = "batch", .kind = TS_KNOB_BATCH, .value = &p.batch, .trial = 2 * p.batch},
        {.name = "words", .kind = TS_KNOB_PADDING, .value = &p.words,
         .trial = (p.words + 63) / 64 * 64},
        {.name = "bf16", .kind = TS_KNOB_AUTOCAST, .value = &p.autocast, .trial = 1},
        {.name = "compile", .kind = TS_KNOB_COMPILE, .value = &p.compiled, .trial = 1},
    };
    ts_status done = TS_OK;
    if (strcmp(device, "cuda") == 0)
        done = ts_device_open("cuda", &p.device, NULL, 0);
    if (done == TS_OK)
        done = ts_set_default_device(p.device);
    if (done == TS_OK)
        done = ts_prof_try(step, &p, knobs, 4, NULL);
    if (done != TS_OK)
        fprintf(stderr, "try_advice: %s\n", ts_error_message());
    free_program(&p);
    return ts_program_end(done == TS_OK ? 0 : 1);
}
