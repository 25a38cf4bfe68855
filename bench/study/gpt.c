/**
 * @file gpt.c  Lessons about the training step of a GPT: its classes of operators, the profiler's
 * advice, the profiler's cost.
 */
// SPDX-License-Identifier: MIT
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../compare_gpt.h"
#include "study.h"

/** A GPT, which step() makes again when a knob has changed. */
typedef struct training {
    study *s;
    int64_t dims[6]; /* the model's own batch, tokens, channels, heads, layers, vocabulary */
    double dropout;
    int64_t batch, words, half, compiled, graph; /* the knobs; words: size of the vocabulary */
    int64_t made[5];                             /* values of the knobs when gpt was made */
    compare_gpt *gpt;                            /* NULL before the first step; end() frees it */
} training;

static ts_status choose(study *s, training *t)
{
    static const struct {
        const char *name;
        int64_t dims[6];
        double dropout;
    } models[] = {{"small", {16, 128, 128, 4, 4, 256}, 0},
                  {"character", {64, 256, 384, 6, 6, 65}, 0.2},
                  {"gpt2", {4, 1024, 768, 12, 12, 50257}, 0}};
    *t = (training){.s = s, .half = s->half};
    for (int i = 0; i < 3; i++)
        if (strcmp(models[i].name, s->model) == 0) {
            memcpy(t->dims, models[i].dims, sizeof t->dims);
            t->dropout = models[i].dropout;
        }
    t->batch = s->batch ? s->batch : t->dims[0];
    t->words = t->dims[5];
    return TS_OK;
}

/** Makes a new model if a knob has changed, then queues a step. */
static ts_status step(void *ctx)
{
    training *t = ctx;
    int64_t now[] = {t->batch, t->words, t->half, t->compiled, t->graph};
    if (!t->gpt || memcmp(now, t->made, sizeof now) != 0) {
        int64_t dims[] = {t->batch,   t->dims[1], t->dims[2], t->dims[3],
                          t->dims[4], t->words,   t->half};
        if (t->gpt)
            compare_gpt_free(t->gpt);
        t->gpt = NULL;
        TS_TRY(ts_synchronize(t->s->device));
        ts_manual_seed(1);
        TS_TRY(t->gpt = compare_gpt_new(dims, t->dropout, NULL, NULL, NULL));
        if ((t->compiled || t->graph) && compare_gpt_compile(t->gpt, t->graph, t->graph, 0) != 0)
            return ts_error_code();
        memcpy(t->made, now, sizeof now);
    }
    return compare_gpt_step(t->gpt);
}

/** Runs n steps and waits for the device; *ms is the mean time of a step. */
static ts_status steps(training *t, int64_t n, double *ms)
{
    TS_TRY(ts_synchronize(t->s->device));
    double begin = study_now();
    for (int64_t i = 0; i < n; i++) {
        TS_TRY(step(t));
        TS_TRY(ts_progress_step(t->s->progress, TS_NONE));
    }
    TS_TRY(ts_synchronize(t->s->device));
    *ms = 1e3 * (study_now() - begin) / (double)n;
    return TS_OK;
}

/** Frees the model and returns `status`. */
static ts_status end(training *t, ts_status status)
{
    if (t->gpt)
        compare_gpt_free(t->gpt);
    return status;
}

/** Trains for some steps. An optimizer's update ends a step, so TS_PROF=steps=4:8 selects five. */
ts_status study_train(study *s)
{
    training t;
    double ms = 0;
    TS_TRY(choose(s, &t));
    int64_t n = s->steps ? s->steps : 10;
    ts_status status = steps(&t, n, &ms);
    study_row(s, "%s\t%lld\t%.3f", s->model, (long long)n, ms);
    return end(&t, status);
}

static ts_status try_knobs(study *s, training *t, ts_knob *knobs, int n)
{
    char model[64];
    snprintf(model, sizeof model, "%s, B %lld, %s%s", s->model, (long long)t->batch,
             t->half ? "bf16" : "f32", t->compiled ? ", compiled" : "");
    TS_TRY(ts_prof_try(step, t, knobs, n,
                       TS_OPTS(ts_try_opts, .out = stderr, .steps = s->steps)));
    for (int i = 0; i < n; i++) {
        const ts_knob *k = &knobs[i];
        study_row(s, "%s\t%s\t%lld\t%lld\t%.3f\t%.3f\t%.2f\t%.2f\t%.2f\t%.2f", model, k->name,
                  (long long)*k->value, (long long)k->trial, k->before_ns / 1e6,
                  k->after_ns / 1e6, 100 * k->predicted, 100 * k->measured,
                  100 * k->noise, k->predicted != 0 ? k->measured / k->predicted : NAN);
    }
    return TS_OK;
}

/** ts_prof_try() with the knobs that change the model; on a GPU then a graph of the compiled
 *  step. */
ts_status study_try(study *s)
{
    training t;
    TS_TRY(choose(s, &t));
    ts_knob knobs[4], graph = {.name = "graph", .kind = TS_KNOB_GRAPH, .value = &t.graph,
                               .trial = 1};
    int n = 0;
    knobs[n++] = (ts_knob){.name = "batch", .kind = TS_KNOB_BATCH, .value = &t.batch,
                           .trial = 2 * t.batch};
    if (t.words % 64)
        knobs[n++] = (ts_knob){.name = "vocabulary", .kind = TS_KNOB_PADDING, .value = &t.words,
                               .trial = (t.words + 63) / 64 * 64};
    if (!t.half)
        knobs[n++] = (ts_knob){.name = "bf16", .kind = TS_KNOB_AUTOCAST, .value = &t.half,
                               .trial = 1};
    knobs[n++] = (ts_knob){.name = "compile", .kind = TS_KNOB_COMPILE, .value = &t.compiled,
                           .trial = 1};
    ts_status status = try_knobs(s, &t, knobs, n);
    if (status == TS_OK && s->gpu) {
        t.compiled = 1;
        status = try_knobs(s, &t, &graph, 1);
    }
    return end(&t, status);
}

/* ------------------------------------------------------------------------------- cost ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

enum { ROUNDS = 15, STATES = 4, LAUNCHES = 100, BATCHES = 40 };

/** Sets *us to the host time of a ts_relu_() of one element: the mean of the fastest of several
 *  batches, because other programs disturb some. ctx is the tensor. */
static ts_status launches(void *ctx, double *us)
{
    ts_tensor *one = ctx;
    *us = 1e30;
    for (int batch = 0; batch < BATCHES; batch++) {
        TS_TRY(ts_synchronize(ts_device_of(one)));
        double begin = study_now();
        for (int i = 0; i < LAUNCHES; i++)
            TS_TRY(ts_relu_(one));
        double each = 1e6 * (study_now() - begin) / LAUNCHES;
        *us = each < *us ? each : *us;
    }
    return ts_synchronize(ts_device_of(one));
}

/** Sets *us to the mean time of five training steps. ctx is the training. */
static ts_status five_steps(void *ctx, double *us)
{
    double ms;
    TS_TRY(steps(ctx, 5, &ms));
    *us = 1e3 * ms;
    return TS_OK;
}

/** Sets *us to the time of run(ctx, us) while a profile with these options records. */
static ts_status recorded(const ts_prof_opts *o, ts_status (*run)(void *, double *), void *ctx,
                          double *us)
{
    TS_TRY(ts_prof_start(o));
    ts_status status = run(ctx, us); /* a warm-up */
    if (status == TS_OK)
        status = run(ctx, us);
    TS_TRY(ts_prof_stop());
    TS_TRY(status);
    double warm;
    return run(ctx, &warm); /* the device was idle while the recording ended */
}

/** Runs run(ctx, &us) in rounds: before a profile, then in turns during a profile, during one with
 *  a trace, and after them. Writes a row for each of these states: shortest and median time in us.
 *  Only the first call of a process measures a state before any profile. */
static ts_status compare_states(study *s, const char *what, ts_status (*run)(void *, double *),
                                void *ctx)
{
    static const char *const states[STATES] = {"before", "during", "during, trace", "after"};
    double us[STATES][ROUNDS], warm;
    TS_TRY(run(ctx, &warm));
    TS_TRY(run(ctx, &warm));
    for (int round = 0; round < ROUNDS; round++)
        TS_TRY(run(ctx, &us[0][round]));
    for (int round = 0; round < ROUNDS; round++) {
        TS_TRY(recorded(NULL, run, ctx, &us[1][round]));
        TS_TRY(recorded(TS_OPTS(ts_prof_opts, .trace = true), run, ctx, &us[2][round]));
        TS_TRY(run(ctx, &us[3][round]));
    }
    for (int i = 0; i < STATES; i++) {
        qsort(us[i], ROUNDS, sizeof us[i][0], by_value);
        study_row(s, "%s\t%s\t%.3f\t%.3f\t%.4f", what, states[i], us[i][0], us[i][ROUNDS / 2],
                  us[i][0] / us[0][0]);
    }
    return TS_OK;
}

/** Times ts_profile_take() and the writing of Perfetto's JSON for a trace of a million calls, and
 *  writes a row for each. */
static ts_status write_events(study *s)
{
    enum { EVENTS = 1000000, TURNS = 5 };
    double us[2][TURNS];
    ts_tensor *one = ts_ones(TS_SIZES(1), TS_F32);
    TS_TRY(one);
    for (int turn = 0; turn < TURNS; turn++) {
        TS_TRY(ts_prof_start(TS_OPTS(ts_prof_opts, .trace = true)));
        ts_status status = TS_OK;
        for (int i = 0; i < EVENTS && status == TS_OK; i++)
            status = TS_STATUS_OF(ts_relu_(one));
        TS_TRY(ts_prof_stop());
        TS_TRY(status);
        FILE *out = fopen("/dev/null", "w");
        double begin = study_now();
        ts_profile *p = ts_profile_take();
        double taken = study_now();
        status = p && out ? ts_profile_write(p, out, TS_PROFILE_CHROME) : TS_ERR_IO;
        us[0][turn] = 1e6 * (taken - begin);
        us[1][turn] = 1e6 * (study_now() - taken);
        ts_profile_free(p);
        if (out)
            fclose(out);
        TS_TRY(status);
    }
    for (int i = 0; i < 2; i++) {
        qsort(us[i], TURNS, sizeof us[i][0], by_value);
        study_row(s, "1,000,000 calls of a trace\t%s\t%.3f\t%.3f\t-", i ? "written" : "taken",
                  us[i][0], us[i][TURNS / 2]);
    }
    return TS_OK;
}

ts_status study_cost(study *s)
{
    training t;
    char name[64];
    TS_TRY(choose(s, &t));
    snprintf(name, sizeof name, "step of %s", s->model);
    ts_tensor *one = ts_ones(TS_SIZES(1), TS_F32);
    TS_TRY(one);
    ts_status status = compare_states(s, name, five_steps, &t);
    if (status == TS_OK)
        status = compare_states(s, "relu of one element", launches, one);
    if (status == TS_OK && !s->gpu)
        status = write_events(s);
    return end(&t, status);
}

/* ---------------------------------------------------------------------------- classes ---- */

enum { CLASSES = 9, FIELDS = 19 };

static const struct {
    const char *name, *ops; /* ops: names of the class's ops, with a space around each */
} classes[CLASSES] = {
    {"matrix products", " mm bmm matmul linear linear_backward linear_gelu "
                        "linear_gelu_backward addmm convolution convolution_backward "},
    {"attention", " scaled_dot_product_attention scaled_dot_product_attention_backward "},
    {"norms, softmax, loss", " layer_norm layer_norm_backward softmax softmax_backward "
                             "cross_entropy cross_entropy_backward cross_entropy_grad_ "
                             "cross_entropy_grad "},
    {"embedding", " embedding embedding_backward "},
    {"update", " adamw sgd global_norm "},
    {"casts, copies", " to copy contiguous clone fill "},
    {"other pointwise", NULL}, /* all other kernels */
    {"idle device", NULL},     /* "calls, program" if the profile has no device times */
    {"unattributed", NULL},
};
enum { OTHER = 6, IDLE = 7 };

/** Splits a line of CSV in place; quotes are removed. Returns the number of fields. */
static int split(char *line, char **fields)
{
    int n = 0;
    for (char *at = line; n < FIELDS; at++) {
        bool quoted = *at == '"';
        fields[n++] = at += quoted;
        at += quoted ? strcspn(at, "\"") : strcspn(at, ",\n");
        if (quoted && *at)
            *at++ = 0;
        if (*at != ',')
            break;
        *at = 0;
    }
    return n;
}

static int class_of(const char *op)
{
    char name[64];
    snprintf(name, sizeof name, " %.60s ", op);
    for (int i = 0; i < OTHER; i++)
        if (strstr(classes[i].ops, name))
            return i;
    return OTHER;
}

/** Reads the profile.json `path`, and writes a row and two bars for each class: number of calls,
 *  share of the FLOPs, share of the time (of a GPU if the profile has its times). */
static ts_status classify(study *s, const char *path)
{
    double flops[CLASSES] = {0}, ns[CLASSES] = {0}, calls[CLASSES] = {0}, host[CLASSES] = {0};
    double busy = 0, all_flops = 0, short_ns = 0; /* short_ns: of kernels that are overhead */
    char *text = NULL, line[1024], program[64];
    size_t bytes;
    ts_profile *p = ts_profile_read(path);
    TS_TRY(p);
    ts_profile_shares shares = {.size = sizeof shares};
    FILE *memory = open_memstream(&text, &bytes);
    ts_status status = memory ? ts_profile_write(p, memory, TS_PROFILE_CSV)
                              : ts_error_set(TS_ERR_MEMORY, "study: no memory");
    if (status == TS_OK)
        status = ts_profile_get_shares(p, &shares);
    ts_profile_free(p);
    if (memory)
        fclose(memory);
    FILE *in = status == TS_OK ? fmemopen(text, bytes, "r") : NULL;
    for (int row = 0; in && fgets(line, sizeof line, in); row++) {
        char *f[FIELDS];
        if (split(line, f) < 16 || !row)
            continue;
        bool kernel = strcmp(f[1], "CPU") == 0 || strcmp(f[1], "CUDA") == 0;
        int c = kernel ? class_of(f[0]) : IDLE;
        double device = atof(f[14]);
        calls[c] += kernel ? atof(f[6]) : 0;
        flops[c] += atof(f[8]);
        all_flops += atof(f[8]);
        host[c] += atof(f[7]);
        if (!kernel && device > 0)
            c = CLASSES - 1;
        ns[c] += device;
        busy += device;
        short_ns += strcmp(f[13], "overhead") == 0 ? device : 0;
    }
    if (in)
        fclose(in);
    free(text);
    TS_TRY(status);
    if (busy > 0) /* overhead is short kernels and idle time */
        ns[IDLE] = shares.overhead < 1
                       ? (busy * shares.overhead - short_ns) / (1 - shares.overhead)
                       : 0;
    else
        memcpy(ns, host, sizeof ns);
    double all = 0;
    for (int i = 0; i < CLASSES; i++)
        all += ns[i];
    const char *slash = strrchr(path, '/');
    snprintf(program, sizeof program, "%.*s", slash ? (int)(slash - path) : 60, path);
    slash = strrchr(program, '/');
    for (int i = 0; i < CLASSES && all > 0; i++) {
        const char *name = i == IDLE && busy <= 0 ? "calls, program" : classes[i].name;
        double part = 100 * ns[i] / all, work = all_flops > 0 ? 100 * flops[i] / all_flops : 0;
        if (part < 0.005 && work < 0.005)
            continue;
        study_row(s, "%s\t%s\t%.0f\t%.2f\t%.2f", slash ? slash + 1 : program, name, calls[i], work,
                  part);
        char label[96];
        snprintf(label, sizeof label, "%s, %s", slash ? slash + 1 : program, name);
        TS_TRY(study_bar(s, label, "FLOPs", work));
        TS_TRY(study_bar(s, label, "time", part));
    }
    return TS_OK;
}

ts_status study_classes(study *s)
{
    if (!s->profile)
        return ts_error_set(TS_ERR_VALUE, "study: classes needs --profile FILE, the profile.json "
                                          "that TS_PROF=1,out=FOLDER writes");
    TS_TRY(classify(s, s->profile));
    return s->second ? classify(s, s->second) : TS_OK;
}
