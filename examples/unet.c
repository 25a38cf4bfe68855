/**
 * @file unet.c
 * Trains a U-Net (unet_model.h) to find discs and boxes in scenes that it draws, or the
 * classes of pairs of PNG files in a folder (scenes.h).
 *
 *     unet [--data DIR --classes N] [--out DIR] [--device auto|cpu|cuda] [--amp] [--compile] ...
 *
 * On the CPU, a resumed run gives the same bits as an uninterrupted one. Validation uses scenes
 * whose numbers training never reaches, or the last tenth of the files.
 */
// SPDX-License-Identifier: MIT
#include <math.h>
#include <signal.h>
#include <time.h>

#include "scenes.h"
#include "unet_model.h"

enum { GRID = 8, MOST_CLASSES = 64, MOST = 1000000000 }; // GRID: images of a validation batch

/* ----------------------------------------------------------------------------------- run ---- */

typedef struct run {
    const char *out, *device_name, *data;
    ts_device device; // of model, optimizer and batches
    scenes train, held_out;
    ts_loader *validation;
    int64_t steps, seed, size, width, batch, save_every, val_every, classes;
    bool resume, overwrite, compile, amp;
    ts_compiled *compiled; // the step as a compiled function; NULL: eager
    ts_training state;     // model, optimizer, loader of training images, step, run
    ts_run *folder;
    ts_csv *log;
    ts_progress *progress;
    ts_chart *chart;
    char text[4096]; // the last path or message
} run;

static volatile sig_atomic_t interrupted;
static void interrupt(int number)
{
    interrupted = number;
    signal(number, SIG_DFL); // a second signal ends the program at once
}

/** Path of a file in the run's folder; valid until the next call. */
static const char *in_out(run *r, const char *name)
{
    snprintf(r->text, sizeof r->text, "%s/%s", r->out, name);
    return r->text;
}

/** Logits (B, classes, size, size) of images (B, 3, size, size). */
static ts_tensor *logits_of(run *r, ts_tensor *x)
{
    TS_AUTOCAST(r->device, r->amp ? TS_BF16 : TS_DTYPE_NONE);
    return ts_forward(r->state.model, x);
}

/** One training step on images in[0], (B, 3, size, size) f32, and their classes in[1],
 *  (B, size, size) i64. *out: the loss, 0-dim. */
static ts_status learn(void *ctx, ts_tensor *const *in, int n, ts_tensor **out, int m)
{
    (void)n, (void)m;
    run *r = ctx;
    TS_SCOPE;
    ts_tensor *loss = unet_loss(ts_to(logits_of(r, in[0]), TS_F32), in[1]);
    TS_TRY(ts_backward(loss));
    TS_TRY(ts_optimizer_step(r->state.optimizer));
    ts_optimizer_zero_grad(r->state.optimizer);
    *out = ts_keep(ts_detach(loss));
    return TS_OK;
}

/** Evaluates the model on at most batches * GRID images. *iou: intersection over union, averaged
 *  over the classes that occur; *accuracy: fraction of correct pixels. After the last step it also
 *  saves pictures of the first batch. */
static ts_status validate(run *r, int64_t batches, double *iou, double *accuracy)
{
    TS_NO_GRAD;
    double both[MOST_CLASSES] = {0}, either[MOST_CLASSES] = {0}, right = 0, all = 0, occur = 0;
    TS_TRY(ts_loader_set_state(r->validation, (ts_loader_state){0, 0}));
    ts_module_train(r->state.model, false);
    for (int64_t i = 0; i < batches && i < ts_loader_batches(r->validation); i++) {
        TS_SCOPE;
        ts_batch batch;
        TS_TRY(ts_loader_next(r->validation, &batch));
        ts_tensor *found = ts_to_device(ts_argmax_dim(logits_of(r, batch.x), 1, false),
                                        TS_DEVICE_CPU),
                  *y = ts_to_device(batch.y, TS_DEVICE_CPU);
        TS_TRY(found);
        TS_TRY(y);
        const int64_t *a = ts_data(y), *b = ts_data(found);
        for (int64_t k = 0; k < ts_numel(y); k++, all++)
            if (a[k] == b[k])
                both[a[k]]++, either[a[k]]++, right++;
            else
                either[a[k]]++, either[b[k]]++;
        if (i == 0 && r->state.step == r->steps &&
            scenes_save(in_out(r, "validation.png"), ts_to_device(batch.x, TS_DEVICE_CPU), y,
                        found) != TS_OK)
            ts_error_print(), ts_error_clear(); // not fatal: there may be no libpng
    }
    ts_module_train(r->state.model, true);
    *iou = 0, *accuracy = right / all;
    for (int k = 0; k < MOST_CLASSES; k++)
        if (either[k] > 0)
            *iou += both[k] / either[k], occur++;
    *iou /= occur;
    return TS_OK;
}

/** Runs one training step, with validation and a line of the log. */
static ts_status train_step(run *r)
{
    TS_SCOPE;
    ts_training *s = &r->state;
    ts_schedule schedule = {.kind = TS_SCHEDULE_COSINE, .warmup_steps = r->steps / 20,
                            .total_steps = r->steps, .final_ratio = 0.02};
    ts_tensor *loss;
    ts_batch batch;
    double value, iou = NAN, accuracy = NAN;
    TS_TRY(ts_schedule_apply(&schedule, s->optimizer, s->step));
    TS_TRY(ts_loader_next(s->loader, &batch));
    TS_TRY(r->compiled ? ts_compiled_call(r->compiled, batch.fields, 2, &loss, 1)
                       : learn(r, batch.fields, 2, &loss, 1));
    s->step++;
    TS_TRY(ts_item(loss, &value));
    if (s->step % r->val_every == 0)
        TS_TRY(validate(r, 4, &iou, &accuracy));
    TS_TRY(ts_progress_add_items(r->progress, r->batch));
    TS_TRY(ts_progress_step(r->progress, loss));
    double row[] = {(double)s->step, value, iou, accuracy, ts_optimizer_group(s->optimizer, 0)->lr,
                    ts_progress_items_per_second(r->progress), (double)ts_run_id(s->run)};
    return ts_csv_row(r->log, row, 7);
}

/** Trains until the last step, a signal or an error; then saves a checkpoint, except after an
 *  error. */
static ts_status train(run *r)
{
    ts_training *s = &r->state;
    ts_status status = TS_OK;
    while (s->step < r->steps && !interrupted && status == TS_OK) {
        status = train_step(r);
        if (status == TS_OK && s->step % r->save_every == 0 && s->step < r->steps)
            status = ts_training_save(s, r->out);
    }
    TS_TRY(status); // a failed step may have changed parameters: the last checkpoint remains
    TS_TRY(ts_training_save(s, r->out));
    if (interrupted)
        fprintf(stderr, "saved at step %lld; continue with RESUME=1 (--resume)\n",
                (long long)s->step);
    return TS_OK;
}

static ts_status report(run *r)
{
    double iou, accuracy;
    TS_TRY(validate(r, 16, &iou, &accuracy));
    ts_chart *chart = r->chart =
        ts_chart_new(TS_OPTS(ts_chart_opts, .title = "Training a U-Net", .x_title = "step",
                             .y_title = "loss, IoU"));
    TS_TRY(ts_chart_line_csv(chart, "training loss", in_out(r, "log.csv"), "step", "loss",
                             TS_OPTS(ts_line_opts, .smoothing = 0.9)));
    TS_TRY(ts_chart_line_csv(chart, "validation IoU", r->text, "step", "val_iou",
                             TS_OPTS(ts_line_opts, .bridge_gaps = true, .markers = true)));
    TS_TRY(ts_chart_write(chart, in_out(r, "loss.svg")));
    if (r->compiled)
        TS_TRY(ts_explain(r->compiled, stdout));
    printf("held-out scenes: IoU %.4f, pixel accuracy %.4f\nwritten: %s/{log.csv, loss.svg, "
           "validation.png}\n", iou, accuracy, ts_escape_text(r->text, sizeof r->text, r->out));
    return TS_OK;
}

/** Opens the loaders of drawn scenes, or of the folder --data. */
static ts_status open_data(run *r)
{
    bool drawn = !r->data, cpu = r->device.backend == TS_DEVICE_CPU.backend;
    int most = ts_num_threads() < 8 ? ts_num_threads() : 8, workers = cpu ? 2 - drawn : most;
    ts_loader_opts opts = {.size = sizeof opts, .batch = r->batch, .to = drawn ? 0.5 : 0.9,
                           .seed = (uint64_t)r->seed, .in_order = drawn, .drop_last = true,
                           .workers = workers, .device = r->device};
    scenes *parts[] = {&r->train, &r->held_out};
    for (int i = 0; i < 2; i++)
        if (drawn)
            TS_TRY(scenes_draw(parts[i], (uint64_t)r->seed, r->size, r->classes));
        else
            TS_TRY(scenes_open(parts[i], r->data, r->size, r->classes, i == 0));
    TS_TRY(r->state.loader = ts_loader_new(&r->train.dataset, &opts));
    opts.from = opts.to, opts.to = 1, opts.in_order = true, opts.batch = GRID;
    opts.drop_last = false;
    return TS_STATUS_OF(r->validation = ts_loader_new(&r->held_out.dataset, &opts));
}

static ts_status go(run *r)
{
    TS_SCOPE;
    static const char *const columns[] = {"step", "loss", "val_iou", "val_accuracy", "lr",
                                          "images_per_s", "run"},
                      *const outputs[] = {"loss.svg", "validation.png"},
                      *const settings[] = {"--batch", "--width", "--classes", "--size", "--seed"};
    ts_group_opts adamw = ts_optimizer_defaults(TS_ADAMW, 3e-3);
    adamw.beta2 = 0.99; // small batches: average the squared gradients over fewer steps
    if (r->size % 16)
        return ts_error_set(TS_ERR_VALUE, "unet: argument '--size': expected a multiple of 16, got "
                            "%lld", (long long)r->size);
    TS_TRY(ts_device_open(r->device_name, &r->device, r->text, sizeof r->text));
    TS_TRY(ts_set_default_device(r->device));
    ts_manual_seed((uint64_t)r->seed);
    TS_TRY(open_data(r));
    TS_TRY(r->state.model = unet_new(r->width, r->classes));
    TS_TRY(r->state.optimizer = ts_optimizer_for(r->state.model, TS_ADAMW, &adamw));
    TS_TRY(ts_optimizer_set_max_norm(r->state.optimizer, 1));
    fprintf(stderr, "%ld parameters, on %s (%s), %d threads\n",
            (long)ts_module_num_parameters(r->state.model), ts_device_name(r->device), r->text,
            ts_num_threads());
    r->state.run = r->folder =
        ts_run_open(r->out, TS_OPTS(ts_run_opts, .resume = r->resume, .overwrite = r->overwrite,
                                    .outputs = outputs, .noutputs = 2));
    TS_TRY(r->folder);
    TS_TRY(ts_run_settings(r->folder, settings, (int64_t[]){r->batch, r->width, r->classes, r->size,
                                                            r->seed}, 5));
    if (r->resume) {
        TS_TRY(ts_training_resume(&r->state, r->out, r->text, sizeof r->text));
        fprintf(stderr, "resuming at %s\n", r->text);
    }
    if (r->state.step > r->steps)
        return ts_error_set(TS_ERR_VALUE, "unet: argument '--steps': expected at least %lld, the "
                            "step of the checkpoint, got %lld", (long long)r->state.step,
                            (long long)r->steps);
    if (r->compile)
        TS_TRY(r->compiled = ts_compile(learn, r, TS_OPTS(ts_compile_opts, .name = "step",
                                                          .graph = true, .replay = true)));
    TS_TRY(r->log = ts_run_log(r->folder, columns, 7, r->state.step));
    TS_TRY(r->progress = ts_progress_new(r->steps, TS_OPTS(ts_progress_opts, .label = "train",
                                                           .item_unit = "images",
                                                           .start_step = r->state.step)));
    time_t begun = time(NULL);
    int64_t first = r->state.step;
    ts_status status = train(r), closed = ts_csv_close(r->log);
    r->log = NULL;
    ts_progress_end(r->progress);
    fprintf(stderr, "%lld steps in %.0f s\n", (long long)(r->state.step - first),
            difftime(time(NULL), begun));
    status = status == TS_OK ? closed : status;
    return status == TS_OK && !interrupted ? report(r) : status;
}

int main(int argc, char **argv)
{
    run r = {.out = "runs/unet", .device_name = "auto", .steps = 1000, .seed = 1, .size = 64,
             .width = 16, .batch = 8, .save_every = 250, .val_every = 100, .classes = SCENE_CLASSES,
             .state.size = sizeof(ts_training)};
    const ts_argument arguments[] = {
        {"--out", "folder of the run", .text = &r.out, .value = "DIR"},
        {"--data", "folder of images/*.png and masks/*.png, instead of drawn scenes",
         .text = &r.data, .value = "DIR"},
        {"--classes", "classes in the masks of --data; drawn scenes have 3", .number = &r.classes,
         .least = 2, .most = MOST_CLASSES},
        {"--device", "auto (CUDA or else CPU), cpu, cuda or a device name", .text = &r.device_name,
         .value = "NAME"},
        {"--steps", "steps of the whole run", .number = &r.steps, .least = 1, .most = MOST},
        {"--seed", "seed of weights and scenes", .number = &r.seed, .most = INT64_MAX},
        {"--size", "side of an image, a multiple of 16", .number = &r.size, .least = 16,
         .most = 4096},
        {"--width", "channels of the first level", .number = &r.width, .least = 1, .most = 1024},
        {"--batch", "images per step", .number = &r.batch, .least = 1, .most = 65536},
        {"--save-every", "steps between checkpoints", .number = &r.save_every, .least = 1,
         .most = MOST},
        {"--val-every", "steps between validations", .number = &r.val_every, .least = 1,
         .most = MOST},
        {"--amp", "run the forward pass with autocast to bf16", .flag = &r.amp},
        {"--compile", "run each step as a compiled function", .flag = &r.compile},
        {"--resume", "continue the run in the folder", .flag = &r.resume},
        {"--overwrite", "remove the run in the folder, then start a new one", .flag = &r.overwrite},
    };
    int status;
    if (!ts_program_begin(argc, argv,
                          "Trains a U-Net on scenes that it draws, or on pairs of PNG files.",
                          arguments, sizeof arguments / sizeof *arguments, &status))
        return status;
    signal(SIGINT, interrupt), signal(SIGTERM, interrupt);
    status = go(&r);
    if (status != TS_OK)
        ts_error_print();
    ts_csv_close(r.log), ts_progress_free(r.progress), ts_chart_free(r.chart);
    ts_compiled_free(r.compiled);
    ts_loader_close(r.state.loader), ts_loader_close(r.validation);
    scenes_close(&r.train), scenes_close(&r.held_out);
    ts_optimizer_free(r.state.optimizer);
    ts_module_free(r.state.model);
    ts_run_close(r.folder);
    return ts_program_end(status != TS_OK ? 1 : interrupted ? 128 + (int)interrupted : 0);
}
