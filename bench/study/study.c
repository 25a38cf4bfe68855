/**
 * @file study.c  Runs one lesson of docs/regimes.md: prints its table, and writes it and its chart
 * to files.
 *
 *     study LESSON [--device cuda] [--out TABLE.tsv] [--plot CHART.svg] [--commit HASH] ...
 *     study list
 */
// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "study.h"

static const lesson lessons[] = {
    {"repeat", "repeated multiplications and cosines of one array: when memory-bound turns "
               "compute-bound",
     "op\trepeats\tmode\tus\tGFLOP_per_s\tGB_per_s", study_repeat,
     "Repeated multiplication of one array", "multiplications of each element", "time (µs)", true,
     true, 0, 0, 0},
    {"softmax", "softmax of composed ops, as one compiled function, and as one operator",
     "rows\twidth\tway\tus\tGB_per_s", study_softmax, "Softmax of 8,192 rows, f32",
     "elements of a row", "GB/s of the least bytes", true, false, 2, 1, 4},
    {"chains", "functions of 5 to 10 pointwise calls: eager and compiled",
     "function\telements\tmode\tus", study_chains, NULL, NULL, NULL, false, false, 0, 0, 0},
    {"batch", "two wide layers over growing batches: latency, throughput",
     "batch\tus\tover_half_batch\tsamples_per_s", study_batch, "Two layers, by batch size",
     "batch", "samples per second", true, true, 0, 0, 0},
    {"launch", "a chain of 64 small calls: eager, compiled, as one graph",
     "elements\tmode\tus_per_op", study_launch, "A chain of 64 additions",
     "elements", "µs per addition", true, true, 1, 0, 2},
    {"streams", "eight independent chains of short kernels on several streams",
     "elements\tstreams\tmode\tus_per_op", study_streams, NULL, NULL, NULL, false, false, 0, 0, 0},
    {"layers", "an addition with one more part of a call's path at a time, by number of elements",
     "elements\tstations\tns", study_layers, "Share of an addition that is not its kernel",
     "elements", "% of the time", true, false, 0, 0, 0},
    {"precision", "matrix products and additions by dtype: rates and errors",
     "op\tdtype\tus\trate\tunit\trelative_error", study_precision, NULL, NULL, NULL, false,
     false, 0, 0, 0},
    {"classes", "time and FLOPs of a profile.json by class of operators",
     "program\tclass\tcalls\tflops_percent\ttime_percent", study_classes,
     "A training step by class of operators", "% of the step", NULL, false, false, 0, 0, 0},
    {"train", "trains a model for some steps; for TS_PROF=steps=4:8,out=DIR",
     "model\tsteps\tms_per_step", study_train, NULL, NULL, NULL, false, false, 0, 0, 0},
    {"try", "lets the profiler try its advice on a model",
     "model\tknob\tfrom\tto\tbefore_ms\tafter_ms\tpredicted_percent\tmeasured_percent\t"
     "noise_percent\tratio",
     study_try, NULL, NULL, NULL, false, false, 0, 0, 0},
    {"cost", "steps and launches before, during and after a profile",
     "what\tstate\tshortest_us\tmedian_us\tover_before", study_cost, NULL, NULL, NULL, false,
     false, 0, 0, 0},
    {"regimes", "programs with a known regime, and the verdicts of their profiles",
     "program\texpected\tverdict\tshare_percent", study_regimes, NULL, NULL, NULL, false,
     false, 0, 0, 0},
};

enum { LESSONS = sizeof lessons / sizeof *lessons, MOST_SERIES = 64, MOST_POINTS = 128 };

/** A line or a bar of the chart. name: of the line, or of the bar's series; label: the bar's. A bar
 *  has its value in y[0]. */
struct study_series {
    char name[96], label[96];
    bool bar;
    int n;
    double x[MOST_POINTS], y[MOST_POINTS];
};

double study_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static ts_status time_batch(study *s, ts_status (*run)(void *ctx), void *ctx, int64_t calls,
                            double *seconds)
{
    TS_TRY(ts_synchronize(s->device));
    double begin = study_now();
    for (int64_t i = 0; i < calls; i++) {
        TS_SCOPE;
        TS_TRY(run(ctx));
    }
    TS_TRY(ts_synchronize(s->device));
    *seconds = study_now() - begin;
    return TS_OK;
}

ts_status study_time(study *s, ts_status (*run)(void *ctx), void *ctx, double *ns)
{
    enum { WARM_UP = 6, LEAST = 7, MOST = 400 };
    const double batch = 2e-3, enough = s->gpu ? 0.06 : 1;
    double took;
    int64_t calls = 1;
    TS_TRY(time_batch(s, run, ctx, WARM_UP, &took));
    TS_TRY(time_batch(s, run, ctx, calls, &took));
    while (took < batch) {
        calls = took < batch / 20 ? 10 * calls : 2 * calls;
        TS_TRY(time_batch(s, run, ctx, calls, &took));
    }
    *ns = 1e9 * took / (double)calls;
    double begin = study_now();
    for (int i = 0; i < LEAST || (i < MOST && study_now() - begin < enough); i++) {
        TS_TRY(time_batch(s, run, ctx, calls, &took));
        if (1e9 * took / (double)calls < *ns)
            *ns = 1e9 * took / (double)calls;
    }
    return ts_progress_step(s->progress, TS_NONE);
}

void study_row(study *s, const char *format, ...)
{
    for (int i = 0; i < 2; i++) {
        FILE *out = i ? s->table : stdout;
        va_list words;
        if (!out)
            continue;
        va_start(words, format);
        vfprintf(out, format, words);
        va_end(words);
        putc('\n', out);
        fflush(out);
    }
}

static struct study_series *series_of(study *s, const char *name, const char *label)
{
    for (int i = 0; i < s->nseries && !label; i++)
        if (strcmp(s->series[i].name, name) == 0)
            return &s->series[i];
    if (s->nseries == MOST_SERIES)
        return NULL;
    struct study_series *new = &s->series[s->nseries++];
    *new = (struct study_series){.bar = label != NULL};
    snprintf(new->name, sizeof new->name, "%s", name);
    snprintf(new->label, sizeof new->label, "%s", label ? label : "");
    return new;
}

ts_status study_point(study *s, const char *line, double x, double y)
{
    struct study_series *of = series_of(s, line, NULL);
    if (!of || of->n == MOST_POINTS)
        return ts_error_set(TS_ERR_VALUE, "study: more points than a chart can show");
    of->x[of->n] = x;
    of->y[of->n++] = y;
    return TS_OK;
}

ts_status study_bar(study *s, const char *label, const char *series, double value)
{
    struct study_series *of = series_of(s, series, label);
    if (!of)
        return ts_error_set(TS_ERR_VALUE, "study: more bars than a chart can show");
    of->y[0] = value;
    return TS_OK;
}

ts_tensor *study_normal(study *s, const int64_t *sizes, int ndim, ts_dtype dtype)
{
    return ts_to(ts_normal_on(sizes, ndim, 0, 1, TS_F32, s->device), dtype);
}

/** Adds the rows of the file `path`, which torch_rows.py writes, to the table and the chart. */
static ts_status add_peers(study *s, const lesson *l, const char *path)
{
    int fd;
    char line[512];
    TS_TRY(ts_open_file("study", path, O_RDONLY, &fd));
    FILE *in = fdopen(fd, "r");
    ts_status status = in ? TS_OK : ts_error_set(TS_ERR_MEMORY, "study: no memory for a file");
    while (status == TS_OK && fgets(line, sizeof line, in)) {
        char *fields[8] = {0}, *rest = line;
        line[strcspn(line, "\n")] = 0;
        study_row(s, "%s", line);
        for (int i = 0; i < 8 && rest; i++)
            fields[i] = strsep(&rest, "\t");
        if (l->y && fields[l->y])
            status = study_point(s, fields[l->line], atof(fields[l->x]), atof(fields[l->y]));
    }
    if (in)
        fclose(in);
    return status;
}

static ts_status draw(const study *s, const lesson *l, const char *path)
{
    char title[160];
    snprintf(title, sizeof title, "%s, %s", l->title, s->gpu ? "on a GPU" : "on a CPU");
    ts_chart *chart = ts_chart_new(TS_OPTS(ts_chart_opts, .title = title, .x_title = l->x_title,
                                           .y_title = l->y_title, .log_x = l->log_x,
                                           .log_y = l->log_y, .width = 640,
                                           .height = l->y_title ? 360 : 0));
    TS_TRY(chart);
    ts_status status = TS_OK;
    for (int i = 0; i < s->nseries && status == TS_OK; i++) {
        const struct study_series *x = &s->series[i];
        status = x->bar ? ts_chart_bar(chart, x->label, x->name, x->y[0])
                        : ts_chart_line(chart, x->name, x->x, x->y, x->n,
                                        TS_OPTS(ts_line_opts, .markers = true));
    }
    if (status == TS_OK)
        status = ts_chart_write(chart, path);
    ts_chart_free(chart);
    return status;
}

/** Writes the head of the table's file: date, machine, commit, command and titles of columns. */
static ts_status write_head(study *s, const lesson *l, const char *commit, int argc, char **argv)
{
    char date[16];
    ts_prof_machine m = {.size = sizeof m}; /* gives the machine's name; measured only once */
    TS_TRY(s->gpu ? ts_prof_calibrate_device(s->device, false, &m) : ts_prof_calibrate(false, &m));
    time_t now = time(NULL);
    struct tm day;
    strftime(date, sizeof date, "%Y-%m-%d", gmtime_r(&now, &day));
    fprintf(s->table, "# date: %s\n# machine: %s, %ld cores\n# commit: %s\n# command: study", date,
            m.name, sysconf(_SC_NPROCESSORS_ONLN), commit);
    for (int i = 1; i < argc; i++) {
        bool file = strcmp(argv[i], "--out") == 0 || strcmp(argv[i], "--plot") == 0 ||
                    strcmp(argv[i], "--commit") == 0;
        if (!file)
            fprintf(s->table, " %s", argv[i]);
        i += file;
    }
    fprintf(s->table, "\n%s\n", l->columns);
    return TS_OK;
}

static ts_status run_lesson(study *s, const lesson *l, const char *out, const char *plot,
                            const char *commit, int argc, char **argv)
{
    TS_SCOPE;
    int fd;
    TS_TRY(ts_device_open(s->gpu ? "cuda" : "cpu", &s->device, NULL, 0));
    TS_TRY(ts_set_default_device(s->device));
    ts_manual_seed(1);
    TS_TRY(s->progress =
               ts_progress_new(0, TS_OPTS(ts_progress_opts, .label = l->name)));
    if (out) {
        TS_TRY(ts_open_file("study", out, O_WRONLY | O_CREAT | O_TRUNC, &fd));
        if (!(s->table = fdopen(fd, "w")))
            return ts_error_set(TS_ERR_MEMORY, "study: no memory for a file");
        TS_TRY(write_head(s, l, commit, argc, argv));
    }
    printf("%s\n", l->columns);
    ts_status status = l->run(s);
    ts_progress_end(s->progress);
    if (status == TS_OK && s->peers)
        status = add_peers(s, l, s->peers);
    if (status == TS_OK && plot && l->x_title)
        status = draw(s, l, plot);
    return status;
}

int main(int argc, char **argv)
{
    static struct study_series series[MOST_SERIES];
    study s = {.model = "small", .series = series};
    const char *name = NULL, *device = "cpu", *out = NULL, *plot = NULL, *commit = "unknown";
    int status;
    const ts_argument arguments[] = {
        {"LESSON", "the lesson; list prints them", .text = &name, .required = true},
        {"--device", "where to measure", .text = &device, .one_of = "cpu|cuda"},
        {"--out", "file for the table", .text = &out, .value = "FILE"},
        {"--plot", "file for the chart", .text = &plot, .value = "FILE"},
        {"--commit", "commit that the table names", .text = &commit, .value = "HASH"},
        {"--model", "train, try, cost: the model", .text = &s.model,
         .one_of = "small|character|gpt2"},
        {"--batch", "train, try, cost: batch size; 0: the model's own", .number = &s.batch,
         .most = 1 << 20},
        {"--bf16", "train, try, cost: autocast to bf16", .flag = &s.half},
        {"--peers", "softmax, launch: rows of PyTorch to add, written by torch_rows.py",
         .text = &s.peers, .value = "FILE"},
        {"--steps", "train: steps; try: steps per measurement; 0: 10", .number = &s.steps,
         .most = 1 << 20},
        {"--profile", "classes: a profile.json; required", .text = &s.profile, .value = "FILE"},
        {"--second", "classes: a profile.json of another program", .text = &s.second,
         .value = "FILE"},
    };
    if (!ts_program_begin(argc, argv, "Runs one lesson of docs/regimes.md.\n", arguments,
                          sizeof arguments / sizeof *arguments, &status))
        return status;
    const lesson *l = NULL;
    for (int i = 0; i < LESSONS; i++) {
        if (strcmp(name, "list") == 0)
            printf("%-10s %s\n", lessons[i].name, lessons[i].about);
        if (strcmp(name, lessons[i].name) == 0)
            l = &lessons[i];
    }
    if (strcmp(name, "list") == 0)
        return ts_program_end(0);
    if (!l) {
        fprintf(stderr, "study: no lesson \"%s\"; study list prints them\n", name);
        return 2;
    }
    s.gpu = strcmp(device, "cuda") == 0;
    ts_status done = run_lesson(&s, l, out, plot, commit, argc, argv);
    ts_progress_free(s.progress);
    if (s.table && fclose(s.table) != 0 && done == TS_OK)
        done = ts_error_set(TS_ERR_IO, "study: %s could not be written", out);
    if (done != TS_OK)
        ts_error_print();
    return ts_program_end(done != TS_OK);
}
