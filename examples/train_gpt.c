/**
 * @file train_gpt.c
 * Trains a byte-level GPT on one file and prints the time of each op in each layer of the
 * dispatcher.
 *
 *     train_gpt --data FILE [--out DIR] [--device auto|cpu|cuda] [--steps N] [--seed N]
 *               [--resume | --overwrite] ...
 *
 * All output files are under DIR, which belongs to one run: without --overwrite a second run in DIR
 * is an error. Ctrl-C saves a checkpoint and ends; --resume continues bit for bit, also after a
 * kill.
 */
// SPDX-License-Identifier: MIT
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tessera/tessera.h>

enum { LAYERS = 4, HEADS = 4, C = 128, T = 128, B = 16, V = 256 };

/* --------------------------------------------------------------------------------- model ---- */

typedef struct block {
    ts_module *ln1, *attn, *ln2, *mlp;
} block;

static ts_tensor *block_forward(ts_module *m, ts_tensor *x) // (B, T, C) -> (B, T, C)
{
    block *b = ts_module_payload(m);
    x = ts_add(x, ts_forward(b->attn, ts_forward(b->ln1, x)));
    return ts_add(x, ts_forward(b->mlp, ts_forward(b->ln2, x)));
}

static ts_module *block_new(void)
{
    static const ts_module_type type = {sizeof type, "Block", sizeof(block), block_forward, NULL};
    ts_module *m = ts_module_new(&type);
    block *b = ts_module_payload(m);
    if (ts_module_add(m, "ln1", ts_layer_norm_new(C, 0, true), &b->ln1) == TS_OK &&
        ts_module_add(m, "attn",
                      ts_multihead_new(C, HEADS, TS_OPTS(ts_multihead_opts, .causal = true)),
                      &b->attn) == TS_OK &&
        ts_module_add(m, "ln2", ts_layer_norm_new(C, 0, true), &b->ln2) == TS_OK &&
        ts_module_add(m, "mlp",
                      ts_mlp_new(C, 4 * C, TS_OPTS(ts_mlp_opts, .activation = ts_gelu_tanh)),
                      &b->mlp) == TS_OK)
        return m;
    ts_module_free(m);
    return NULL;
}

typedef struct gpt {
    ts_tensor *wpe; // (T, C)
    ts_module *wte, *blocks, *ln, *head;
} gpt;

static ts_tensor *gpt_forward(ts_module *m, ts_tensor *tokens) // (B, T) i64 -> (B, T, V)
{
    gpt *g = ts_module_payload(m);
    ts_tensor *x = ts_add(ts_forward(g->wte, tokens), ts_narrow(g->wpe, 0, 0, ts_size(tokens, 1)));
    return ts_forward(g->head, ts_forward(g->ln, ts_forward(g->blocks, x)));
}

/** Small normal weights; projections into the residual stream get smaller ones, as in GPT-2. */
static ts_status init_weight(void *ctx, const char *name, ts_tensor *t, ts_member_kind kind)
{
    (void)ctx, (void)kind;
    if (ts_ndim(t) < 2)
        return strstr(name, "bias") ? ts_init_zeros(t) : TS_OK;
    return ts_init_normal(t, 0, strstr(name, "proj.weight") ? 0.02 / sqrt(2 * LAYERS) : 0.02);
}

static ts_module *gpt_new(void)
{
    static const ts_module_type type = {sizeof type, "GPT", sizeof(gpt), gpt_forward, NULL};
    TS_SCOPE;
    ts_module *m = ts_module_new(&type);
    gpt *g = ts_module_payload(m);
    bool ok =
        g && ts_module_add(m, "wte", ts_embedding_new(V, C), &g->wte) == TS_OK &&
        ts_module_add_parameter(m, "wpe", ts_empty(TS_SIZES(T, C), TS_F32), &g->wpe) == TS_OK &&
        ts_module_add(m, "blocks", ts_sequential_new(), &g->blocks) == TS_OK;
    for (int i = 0; i < LAYERS && ok; i++)
        ok = ts_sequential_add(g->blocks, block_new()) == TS_OK;
    if (ok && ts_module_add(m, "ln", ts_layer_norm_new(C, 0, true), &g->ln) == TS_OK &&
        ts_module_add(m, "head", ts_linear_new(C, V, false), &g->head) == TS_OK &&
        ts_module_each(m, init_weight, NULL) == TS_OK)
        return m;
    ts_module_free(m);
    return NULL;
}

/* ----------------------------------------------------------------------------------- run ---- */

typedef struct run {
    const char *data, *out, *device_name;
    ts_device device; // of model, optimizer and batches
    int64_t steps, seed, save_every, val_every, sample;
    bool resume, overwrite, compile, stopped; // stopped: a signal ended training or the report
    ts_compiled *compiled; // the step as a compiled function; NULL: eager
    ts_training state; // model, optimizer, loader of the training text, step, run
    ts_run *folder;    // the run, which holds the folder's lock
    ts_loader *val;    // batches of the validation text
    double entropy;    // unigram entropy of the validation text, nats per byte
    double seconds;    // time of the training loop
    char text[4096]; // the last path or message
} run;

static volatile sig_atomic_t interrupted; // number of the signal that arrived, or 0
static void interrupt(int number)
{
    interrupted = number;
    if (number == SIGINT)
        signal(SIGINT, SIG_DFL); // a second Ctrl-C ends the program at once
}

/** Handles the signals that end a run with a checkpoint, except signals that are ignored at the
 * start (nohup). Ignores SIGPIPE and SIGXFSZ, so a closed pipe or a file size limit is an error of
 * the write. */
static void set_signals(void)
{
    static const int endings[] = {SIGINT, SIGTERM, SIGHUP};
    for (int i = 0; i < 3; i++)
        if (signal(endings[i], interrupt) == SIG_IGN)
            signal(endings[i], SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}

/** Returns TS_ERR_STATE if a signal arrived, to end work other than training. */
static ts_status unless_interrupted(run *r)
{
    r->stopped = interrupted;
    return r->stopped ? ts_error_set(TS_ERR_STATE, "interrupted") : TS_OK;
}

/** Path of a file in the run's folder; valid until r->text is written again. */
static const char *in_out(run *r, const char *name)
{
    snprintf(r->text, sizeof r->text, "%s/%s", r->out, name);
    return r->text;
}

/** The tensor itself, or its copy on the model's device. */
static ts_tensor *to_model_device(run *r, ts_tensor *t)
{
    return r->device.backend ? ts_to_device(t, r->device) : t;
}

/** Mean loss of a batch, 0-dim. */
static ts_tensor *loss_of(run *r, ts_batch *b)
{
    ts_tensor *logits = ts_forward(r->state.model, to_model_device(r, b->x)); // (B, T, V)
    return ts_cross_entropy_last(logits, to_model_device(r, b->y));
}

/** Mean loss over the first `most` batches of the validation text, or over all if there are
 * fewer. */
static ts_status validate(run *r, int64_t most, double *mean)
{
    TS_NO_GRAD;
    int64_t n = ts_loader_batches(r->val) < most ? ts_loader_batches(r->val) : most;
    double sum = 0, one;
    TS_TRY(ts_loader_set_state(r->val, (ts_loader_state){0, 0}));
    for (int64_t i = 0; i < n; i++) {
        TS_SCOPE;
        ts_batch b;
        if (most == INT64_MAX)
            TS_TRY(unless_interrupted(r));
        TS_TRY(ts_loader_next(r->val, &b));
        TS_TRY(ts_item(loss_of(r, &b), &one));
        sum += one;
    }
    *mean = sum / (double)n;
    return TS_OK;
}

/** Entropy of single validation bytes, in nats: the loss of a model that knows only byte
 * frequencies. */
static ts_status unigram_entropy(run *r)
{
    double counts[V] = {0}, total = 0;
    for (int64_t i = 0; i < ts_loader_batches(r->val); i++) {
        TS_SCOPE;
        ts_batch b;
        TS_TRY(unless_interrupted(r));
        TS_TRY(ts_loader_next(r->val, &b));
        const int64_t *y = ts_data(b.y);
        for (int64_t k = 0; k < ts_numel(b.y); k++, total++)
            counts[y[k]]++;
    }
    for (int v = 0; v < V; v++)
        r->entropy -= counts[v] > 0 ? counts[v] / total * log(counts[v] / total) : 0;
    return TS_OK;
}

/** Computes one step on tokens in[0] and targets in[1], both (B, T) i64, and updates the
 * parameters. *out: the loss, 0-dim. */
static ts_status learn(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)n, (void)m;
    run *r = ctx;
    TS_SCOPE;
    ts_tensor *loss = loss_of(r, &(ts_batch){.x = in[0], .y = in[1]});
    TS_TRY(ts_backward(loss));
    TS_TRY(ts_optimizer_step(r->state.optimizer));
    ts_optimizer_zero_grad(r->state.optimizer);
    *out = ts_keep(ts_detach(loss));
    return TS_OK;
}

/** Runs, counts and logs one step. After a failure before the count, train() restores loader and
 * generator. */
static ts_status train_step(run *r, ts_csv *log, ts_progress *progress)
{
    TS_SCOPE;
    ts_training *s = &r->state;
    ts_schedule schedule = {.kind = TS_SCHEDULE_COSINE, .warmup_steps = r->steps / 20,
                            .total_steps = r->steps, .final_ratio = 0.1};
    ts_batch batch;
    double value, val = NAN;
    TS_TRY(ts_schedule_apply(&schedule, s->optimizer, s->step));
    TS_TRY(ts_loader_next(s->loader, &batch));
    ts_tensor *in[] = {batch.x, batch.y}, *loss;
    TS_TRY(r->compiled ? ts_compiled_call(r->compiled, in, 2, &loss, 1)
                       : learn(r, in, 2, &loss, 1));
    s->step++;
    TS_TRY(ts_item(loss, &value));
    if (s->step % r->val_every == 0)
        TS_TRY(validate(r, 8, &val));
    TS_TRY(ts_progress_add_items(progress, B * T));
    TS_TRY(ts_progress_step(progress, loss));
    double row[] = {(double)s->step, value, val, ts_optimizer_group(s->optimizer, 0)->lr,
                    ts_progress_items_per_second(progress), (double)ts_run_id(s->run)};
    return ts_csv_row(log, row, 6);
}

/** Trains until the last step, a signal or an error, then saves a checkpoint of the last finished
 * step. */
static ts_status train(run *r, ts_csv *log, ts_progress *progress)
{
    ts_training *s = &r->state;
    ts_status status = TS_OK, saving = TS_OK;
    int64_t saved = r->resume ? s->step : -1;
    while (s->step < r->steps && !interrupted && status == TS_OK && saving == TS_OK) {
        int64_t before = s->step;
        ts_loader_state place = ts_loader_get_state(s->loader);
        ts_rng_state rng = ts_rng_get_state();
        status = train_step(r, log, progress);
        if (status != TS_OK && s->step == before) {
            ts_loader_set_state(s->loader, place), ts_rng_set_state(rng);
            if (interrupted && status == TS_ERR_STATE) // while it waited for data
                status = TS_OK, ts_error_clear();
        }
        if (status == TS_OK && s->step % r->save_every == 0 && s->step < r->steps) {
            saving = ts_training_save(s, r->out);
            saved = s->step;
        }
    }
    ts_error_print(), ts_error_clear(); // the error that ended the run, before another save
    if (saved != s->step)
        saving = ts_training_save(s, r->out);
    r->stopped = interrupted;
    if (saving == TS_OK && (r->stopped || status != TS_OK))
        fprintf(stderr, "saved at step %lld; continue with RESUME=1 (--resume)\n",
                (long long)s->step);
    return status != TS_OK ? status : saving;
}

enum { SAMPLE_MOST = 10000 };

/** Prints r->sample sampled bytes, each drawn given the last T bytes. Bytes other than newlines and
 * printable ASCII are printed as \xNN. */
static ts_status sample(run *r)
{
    TS_NO_GRAD;
    static int64_t text[SAMPLE_MOST + 1] = {'\n'};
    for (int64_t n = 1; n <= r->sample; n++) {
        TS_SCOPE;
        TS_TRY(unless_interrupted(r));
        int64_t seen = n < T ? n : T;
        ts_tensor *seen_text = ts_from_array(text + n - seen, TS_I64, TS_SIZES(1, seen));
        ts_tensor *logits = ts_forward(r->state.model, to_model_device(r, seen_text));
        ts_tensor *last =
            ts_to_device(ts_select(ts_select(logits, 0, 0), 0, seen - 1), TS_DEVICE_CPU); // (V)
        TS_TRY(ts_item_int(ts_multinomial(ts_softmax(ts_div_scalar(last, 0.8), 0), 1, true),
                           &text[n]));
        printf(text[n] == '\n' || (text[n] >= ' ' && text[n] <= '~') ? "%c" : "\\x%02x",
               (int)text[n]);
    }
    return TS_OK;
}

static ts_status write_timers(FILE *out, void *unused)
{
    (void)unused;
    return ts_timers_write(out, TS_TIMERS_JSON);
}

/** Self time of an op in a layer. */
typedef struct timed {
    double ns;
    const char *op, *layer;
} timed;

static int costlier(const void *a, const void *b)
{
    double x = ((const timed *)a)->ns, y = ((const timed *)b)->ns;
    return (x < y) - (x > y);
}

/** Draws timers.svg: a bar for each of the costliest (op, layer), and one for the rest of the
 * training loop's time. The timers' own wall time is a sum over threads, with those of the loaders,
 * which mostly wait. */
static ts_status draw_timers(run *r)
{
    enum { BARS = 14 };
    int n = 0;
    timed *cells = calloc((size_t)ts_op_count() * TS_KEY_COUNT, sizeof *cells);
    if (!cells)
        return ts_error_memory("a chart", ts_op_count() * TS_KEY_COUNT * (int64_t)sizeof *cells);
    for (int op = 0; op < ts_op_count(); op++)
        for (int key = 0; key < TS_KEY_COUNT; key++) {
            timed *c = &cells[n];
            *c = (timed){.op = ts_op_name(op), .layer = ts_key_name((ts_key)key)};
            c->ns = ts_timers_get(c->op, c->layer).self_ns;
            n += c->ns > 0;
        }
    qsort(cells, (size_t)n, sizeof *cells, costlier);
    ts_chart *chart = ts_chart_new(
        TS_OPTS(ts_chart_opts, .title = "Where the time of a training run goes, by op and layer",
                .x_title = "share of the training loop's time (%)"));
    double wall = 1e9 * r->seconds, rest = 100;
    ts_status status = TS_STATUS_OF(chart);
    for (int i = 0; i < BARS && i < n && status == TS_OK; i++) {
        char label[128];
        snprintf(label, sizeof label, "%s  %s", cells[i].op, cells[i].layer);
        rest -= 100 * cells[i].ns / wall;
        status = ts_chart_bar(chart, label, NULL, 100 * cells[i].ns / wall);
    }
    if (status == TS_OK)
        status = ts_chart_bar(chart, "all other time", NULL, rest > 0 ? rest : 0);
    if (status == TS_OK)
        status = ts_chart_write(chart, in_out(r, "timers.svg"));
    ts_chart_free(chart);
    free(cells);
    return status;
}

static ts_status report(run *r)
{
    double val;
    ts_named_tensors model = {0};
    TS_TRY(ts_timers_enable(false));
    TS_TRY(validate(r, INT64_MAX, &val));
    ts_chart *chart = ts_chart_new(TS_OPTS(ts_chart_opts, .title = "Training a byte-level GPT",
                                           .x_title = "step", .y_title = "loss (nats a byte)"));
    TS_TRY(ts_chart_line_csv(chart, "training", in_out(r, "log.csv"), "step", "loss",
                             TS_OPTS(ts_line_opts, .smoothing = 0.95)));
    TS_TRY(ts_chart_line_csv(chart, "validation", r->text, "step", "val_loss",
                             TS_OPTS(ts_line_opts, .bridge_gaps = true, .markers = true)));
    TS_TRY(ts_chart_reference(chart, "unigram entropy", r->entropy));
    TS_TRY(ts_chart_write(chart, in_out(r, "loss.svg")));
    ts_chart_free(chart);
    TS_TRY(ts_module_state_dict(r->state.model, &model));
    TS_TRY(ts_safetensors_save(in_out(r, "model.safetensors"), model.names, model.tensors, model.n,
                               NULL, NULL, 0));
    ts_named_tensors_free(&model);
    TS_TRY(ts_replace_file("train_gpt", in_out(r, "timers.json"), write_timers, NULL));
    TS_TRY(draw_timers(r));
    printf("\nWhere the time went, by op and layer:\n\n");
    TS_TRY(ts_timers_write_top(stdout, 20));
    if (r->compiled) {
        printf("\nThe compiled step:\n\n");
        TS_TRY(ts_explain(r->compiled, stdout));
    }
    if (r->sample) {
        printf("\nA sample:\n\n");
        TS_TRY(sample(r));
        printf("\n");
    }
    printf("\nvalidation loss %.4f nats/byte, unigram entropy %.4f, ratio %.3f\n", val,
           r->entropy, val / r->entropy);
    printf("written: %s/{log.csv, loss.svg, timers.{json,svg}, model.safetensors}\n",
           ts_escape_text(r->text, sizeof r->text, r->out));
    return TS_OK;
}

/** Seconds of the monotonic clock. */
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static ts_status go(run *r)
{
    TS_SCOPE;
    static const char *const columns[] = {"step", "loss", "val_loss", "lr", "tokens_per_s", "run"},
                      *const outputs[] = {"loss.svg", "timers.json", "timers.svg",
                                         "model.safetensors"};
    uint64_t seed = (uint64_t)r->seed;
    ts_loader_opts data = {
        .size = sizeof data, .batch = B, .length = T, .dtype = TS_U8, .to = 0.9, .seed = seed,
        .stop = &interrupted};
    ts_loader_opts held_out = data;
    held_out.from = 0.9, held_out.to = 1, held_out.in_order = true;
    ts_group_opts adamw = ts_optimizer_defaults(TS_ADAMW, 1e-3);
    char why[256];
    TS_TRY(ts_device_open(r->device_name, &r->device, why, sizeof why));
    TS_TRY(ts_set_default_device(r->device));
    ts_manual_seed(seed);
    TS_TRY(r->state.loader = ts_loader_open(r->data, &data));
    TS_TRY(r->val = ts_loader_open(r->data, &held_out));
    TS_TRY(r->state.model = gpt_new());
    TS_TRY(r->state.optimizer = ts_optimizer_for(r->state.model, TS_ADAMW, &adamw));
    TS_TRY(ts_optimizer_set_max_norm(r->state.optimizer, 1));
    r->state.run = r->folder =
        ts_run_open(r->out, TS_OPTS(ts_run_opts, .resume = r->resume, .overwrite = r->overwrite,
                                    .outputs = outputs, .noutputs = 4));
    TS_TRY(r->folder);
    TS_TRY(ts_run_settings(r->folder, (const char *[]){"--seed"}, &r->seed, 1));
    if (r->resume) {
        TS_TRY(ts_training_resume(&r->state, r->out, r->text, sizeof r->text));
        fprintf(stderr, "resuming at %s\n", r->text);
    }
    if (r->state.step > r->steps)
        return ts_error_set(TS_ERR_VALUE, "train_gpt: argument '--steps': expected at least %lld, "
                            "the step of the checkpoint, got %lld", (long long)r->state.step,
                            (long long)r->steps);
    if (unigram_entropy(r) != TS_OK && !r->stopped)
        return ts_error_code();
    ts_error_clear();
    if (r->compile)
        TS_TRY(r->compiled =
                   ts_compile(learn, r, TS_OPTS(ts_compile_opts, .name = "step", .graph = true,
                                                .replay = true)));
    ts_csv *log = ts_run_log(r->folder, columns, 6, r->state.step);
    TS_TRY(log);
    ts_progress *progress =
        ts_progress_new(r->steps, TS_OPTS(ts_progress_opts, .label = "train", .item_unit = "tokens",
                                          .start_step = r->state.step));
    TS_TRY(progress);
    fprintf(stderr, "%ld parameters, on %s (%s), %d threads\n",
            (long)ts_module_num_parameters(r->state.model), ts_device_name(r->device), why,
            ts_num_threads());
    if (ts_timers_enable(true) != TS_OK)
        ts_error_print(); // a build without timers trains without them
    double begun = now();
    int64_t first = r->state.step;
    ts_status status = train(r, log, progress);
    r->seconds = now() - begun;
    ts_progress_end(progress), ts_progress_free(progress);
    fprintf(stderr, "%lld steps in %.0f s\n", (long long)(r->state.step - first), r->seconds);
    if (ts_csv_close(log) != TS_OK && status == TS_OK)
        status = ts_error_code();
    if (status == TS_OK && !r->stopped) {
        status = report(r);
        if (r->stopped) // a signal ended the report; a resumed run writes it again
            status = TS_OK, ts_error_clear();
    }
    return status;
}

int main(int argc, char **argv)
{
    run r = {.out = "runs/gpt", .device_name = "auto", .steps = 1600, .seed = 1, .save_every = 200,
             .val_every = 50, .sample = 300,
             .state.size = sizeof(ts_training)};
    enum { MOST = 1000000000 };
    const ts_argument arguments[] = {
        {"--data", "file to train on", .text = &r.data, .required = true, .value = "FILE"},
        {"--out", "folder of the run", .text = &r.out, .value = "DIR"},
        {"--device", "auto (CUDA or else CPU), cpu, cuda or a device name", .text = &r.device_name,
         .value = "NAME"},
        {"--steps", "steps of the whole run", .number = &r.steps, .least = 1, .most = MOST},
        {"--seed", "seed of weights and batches", .number = &r.seed, .most = INT64_MAX},
        {"--save-every", "steps between checkpoints", .number = &r.save_every, .least = 1,
         .most = MOST},
        {"--val-every", "steps between validations", .number = &r.val_every, .least = 1,
         .most = MOST},
        {"--sample", "bytes of the text that the trained model writes", .number = &r.sample,
         .most = SAMPLE_MOST},
        {"--compile", "run each step as a compiled function", .flag = &r.compile},
        {"--resume", "continue the run in the folder", .flag = &r.resume},
        {"--overwrite", "remove the run in the folder, then start a new one", .flag = &r.overwrite},
    };
    int status;
    if (!ts_program_begin(argc, argv, "Trains a byte-level GPT on one file.", arguments,
                          sizeof arguments / sizeof *arguments, &status))
        return status;
    set_signals();
    status = go(&r);
    if (status != TS_OK)
        ts_error_print();
    if (interrupted) // the loaders' threads may wait for data that never comes
        return ts_program_end(status != TS_OK ? 1 : r.stopped ? 128 + (int)interrupted : 0);
    ts_compiled_free(r.compiled);
    ts_optimizer_free(r.state.optimizer);
    ts_module_free(r.state.model);
    ts_loader_close(r.state.loader);
    ts_loader_close(r.val);
    ts_run_close(r.folder);
    return ts_program_end(status != TS_OK);
}
