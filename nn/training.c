/** @file training.c  Saves and resumes a training: tensors as sections of a checkpoint, numbers as
 * JSON. */
// SPDX-License-Identifier: MIT
#include "nn/nn.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

enum { SCALER_NUMBERS = 16, MOST_PATH = 1024 };

/* -------------------------------------------------------------------------------- numbers ---- */

/** n named numbers as an object; NULL out of memory. */
static json_t *pack_numbers(const ts_named_number *list, int64_t n)
{
    json_t *numbers = json_object();
    for (int64_t i = 0; i < n && numbers; i++)
        if (json_object_set_new(numbers, list[i].name, json_real(list[i].value)) != 0) {
            json_decref(numbers);
            numbers = NULL;
        }
    return numbers;
}

/** The position of a loader and, if it reads a file of tokens, that file; NULL out of memory. */
static json_t *pack_loader(const ts_loader *l)
{
    ts_loader_state at = ts_loader_get_state(l);
    const ts_nn_source *source = ts_nn_loader_source(l);
    json_t *root =
        json_pack("{s:I, s:I}", "epoch", (json_int_t)at.epoch, "index", (json_int_t)at.index);
    if (!root || !source || !source->path)
        return root;
    char path[MOST_PATH], hash[24];
    snprintf(hash, sizeof hash, "%llu", (unsigned long long)source->hash);
    json_t *file = json_pack("{s:s, s:I, s:s}", "file",
                             ts_escape_text(path, sizeof path, source->path), "bytes",
                             (json_int_t)source->bytes, "hash", hash);
    if (!file || json_object_update(root, file) != 0) {
        json_decref(root);
        root = NULL;
    }
    json_decref(file);
    return root;
}

/** The run's numbers as JSON text, which the caller frees with free(); NULL out of memory. Doubles
 * are written with 17 digits. */
static char *describe(const ts_training *t)
{
    ts_rng_state rng = ts_rng_get_state();
    /* unsigned 64-bit words are stored as strings, because JSON integers here are signed */
    char seed[24], offset[24];
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)rng.seed);
    snprintf(offset, sizeof offset, "%llu", (unsigned long long)rng.offset);
    int64_t n = t->optimizer ? ts_optimizer_numbers(t->optimizer, NULL, 0) : 0;
    ts_named_number *list = calloc((size_t)n + 1, sizeof *list), scaler[SCALER_NUMBERS];
    if (list && n)
        ts_optimizer_numbers(t->optimizer, list, n);
    json_t *numbers = list ? pack_numbers(list, n) : NULL;
    free(list);
    json_t *scaling =
        pack_numbers(scaler, ts_grad_scaler_numbers(t->scaler, scaler, SCALER_NUMBERS));
    json_t *loader = pack_loader(t->loader);
    if (!numbers || !scaling || !loader) {
        json_decref(numbers);
        json_decref(scaling);
        json_decref(loader);
        return NULL;
    }
    json_t *root = json_pack("{s:o, s:{s:s, s:s}, s:o, s:o}", "loader", loader, "rng", "seed", seed,
                             "offset", offset, "optimizer", numbers, "scaler", scaling);
    if (root && t->run && json_object_set_new(root, "run", json_integer(ts_run_id(t->run))) != 0) {
        json_decref(root);
        root = NULL;
    }
    /* json_dumps() is not used, because its text lacks parts if it runs out of memory */
    size_t flags = JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17),
           size = root ? json_dumpb(root, NULL, 0, flags) : 0;
    char *text = size ? calloc(size + 1, 1) : NULL;
    if (text && json_dumpb(root, text, size, flags) != size) {
        free(text);
        text = NULL;
    }
    json_decref(root);
    return text;
}

/** Reads the number GROUP.KEY, an unsigned 64-bit number that the manifest stores as a string. */
static ts_status word_at(const ts_checkpoint *c, const char *group, const char *key, uint64_t *word)
{
    char text[24], *end;
    TS_TRY(ts_checkpoint_text(c, (const char *[]){group, key}, 2, text, sizeof text));
    *word = strtoull(text, &end, 10);
    return *end || end == text
               ? ts_error_set(TS_ERR_FORMAT,
                              "training_resume: '%s': expected digits as %s.%s, got '%s'",
                              ts_checkpoint_path(c), group, key, text)
               : TS_OK;
}

static ts_status number_at(const ts_checkpoint *c, const char *group, const char *key,
                           ts_scalar *number)
{
    return ts_checkpoint_number(c, (const char *[]){group, key}, 2, number);
}

static double as_double(ts_scalar x) { return x.kind == TS_SCALAR_INT ? (double)x.i : x.d; }

/** Sets the scaler's numbers. A missing number is an error. */
static ts_status take_scaling(ts_grad_scaler *s, const ts_checkpoint *c)
{
    ts_named_number own[SCALER_NUMBERS];
    ts_scalar number;
    int64_t n = ts_grad_scaler_numbers(s, own, SCALER_NUMBERS);
    for (int64_t i = 0; i < n; i++) {
        ts_status status = number_at(c, "scaler", own[i].name, &number);
        if (status == TS_ERR_INDEX)
            return ts_error_set_hint(
                TS_ERR_VALUE, "resume without a scaler, or set its numbers by hand",
                "training_resume: the manifest in '%s' has no '%s' for the scaler",
                ts_checkpoint_path(c), own[i].name);
        TS_TRY(status);
        TS_TRY(ts_grad_scaler_set_number(s, own[i].name, as_double(number)));
    }
    return TS_OK;
}

/** Sets the loader's position and the numbers of scaler and optimizer. *rng receives the state of
 * the generator, which the caller sets last, because that cannot fail. */
static ts_status take_numbers(ts_training *t, const ts_checkpoint *c, const ts_named_number *names,
                              int64_t n, ts_rng_state *rng)
{
    ts_scalar epoch, index, number;
    TS_TRY(number_at(c, "loader", "epoch", &epoch));
    TS_TRY(number_at(c, "loader", "index", &index));
    TS_TRY(word_at(c, "rng", "seed", &rng->seed));
    TS_TRY(word_at(c, "rng", "offset", &rng->offset));
    if (epoch.kind != TS_SCALAR_INT || index.kind != TS_SCALAR_INT)
        return ts_error_set(TS_ERR_FORMAT,
                            "training_resume: '%s': expected integers as loader.epoch and .index",
                            ts_checkpoint_path(c));
    if (t->loader)
        TS_TRY(ts_loader_set_state(t->loader, (ts_loader_state){epoch.i, index.i}));
    TS_TRY(take_scaling(t->scaler, c));
    for (int64_t i = 0; i < n; i++) {
        TS_TRY(number_at(c, "optimizer", names[i].name, &number));
        TS_TRY(ts_optimizer_set_number(t->optimizer, names[i].name, as_double(number)));
    }
    return TS_OK;
}

/* --------------------------------------------------------------------------------- tensors ---- */

/** A section's tensors, as by ts_nn_read_all(). */
static ts_status read_section(const ts_checkpoint *c, const char *section, ts_named_tensors *list)
{
    const ts_safetensors *file = ts_checkpoint_section_of(c, section);
    TS_TRY(file);
    return ts_nn_read_all(file, list);
}

/** State of a run before a checkpoint is loaded, to restore if a part does not fit. */
typedef struct before {
    ts_named_tensors model;
    ts_tensor **copies; /* copies of its tensors; NULL: not yet made */
    ts_loader_state position;
    ts_named_number *numbers, scaler[SCALER_NUMBERS];
    int64_t n;
} before;

static ts_status take_snapshot(const ts_training *t, before *b)
{
    TS_TRY(ts_module_state_dict(t->model, &b->model));
    b->copies = calloc((size_t)b->model.n + 1, sizeof *b->copies);
    if (!b->copies)
        return ts_error_memory("the tensors of a model", b->model.n * (int64_t)sizeof *b->copies);
    for (int64_t i = 0; i < b->model.n; i++) {
        b->copies[i] = ts_retain(ts_clone(ts_detach(b->model.tensors[i])));
        TS_TRY(b->copies[i]);
    }
    b->position = ts_loader_get_state(t->loader);
    ts_grad_scaler_numbers(t->scaler, b->scaler, SCALER_NUMBERS);
    b->n = t->optimizer ? ts_optimizer_numbers(t->optimizer, NULL, 0) : 0;
    b->numbers = calloc((size_t)b->n + 1, sizeof *b->numbers);
    if (!b->numbers)
        return ts_error_memory("the numbers of a run", b->n * (int64_t)sizeof *b->numbers);
    if (t->optimizer)
        ts_optimizer_numbers(t->optimizer, b->numbers, b->n);
    return TS_OK;
}

/* Restores the run without allocating, because the load may have failed for lack of memory. */
static void restore_snapshot(ts_training *t, const before *b)
{
    TS_NO_GRAD;
    for (int64_t i = 0; i < b->model.n; i++)
        ts_copy_(b->model.tensors[i], b->copies[i]);
    if (t->loader)
        ts_loader_set_state(t->loader, b->position);
    for (int64_t i = ts_grad_scaler_numbers(t->scaler, NULL, 0) - 1; i >= 0; i--)
        ts_grad_scaler_set_number(t->scaler, b->scaler[i].name, b->scaler[i].value);
    for (int64_t i = 0; i < b->n; i++)
        ts_optimizer_set_number(t->optimizer, b->numbers[i].name, b->numbers[i].value);
}

/** Loads the model, the numbers, and last the states of optimizer and averages, which change
 *  completely or not at all. */
static ts_status take_parts(ts_training *t, const ts_checkpoint *c, const before *b,
                            const ts_named_tensors *model, const ts_named_tensors *state,
                            const ts_named_tensors *ema)
{
    ts_rng_state rng;
    TS_TRY(ts_module_load_state_dict(t->model, model->names, model->tensors, model->n, true, NULL));
    TS_TRY(take_numbers(t, c, b->numbers, b->n, &rng));
    if (t->ema)
        TS_TRY(ts_nn_ema_check(t->ema, ema->names, ema->tensors, ema->n, NULL));
    if (t->optimizer)
        TS_TRY(ts_optimizer_load_state(t->optimizer, state->names, state->tensors, state->n));
    if (t->ema)
        TS_TRY(ts_ema_load_state(t->ema, ema->names, ema->tensors, ema->n));
    ts_rng_set_state(rng);
    t->step = ts_checkpoint_step(c);
    return TS_OK;
}

/** Error if the checkpoint belongs to another run, for example after a copy into the folder. */
static ts_status check_run(const ts_training *t, const ts_checkpoint *c)
{
    ts_scalar id = ts_scalar_int(0);
    if (!t->run)
        return TS_OK;
    ts_status status = ts_checkpoint_number(c, (const char *[]){"run"}, 1, &id);
    if (status != TS_OK && status != TS_ERR_INDEX)
        return status;
    if (status == TS_OK && id.kind == TS_SCALAR_INT && id.i == ts_run_id(t->run))
        return TS_OK;
    return ts_error_set_hint(
        TS_ERR_STATE, "move it away to resume from an earlier checkpoint",
        "training_resume: '%s': expected a checkpoint of run %lld, got one of %lld (0: no run)",
        ts_checkpoint_path(c), (long long)ts_run_id(t->run), (long long)id.i);
}

/** Error if the loader reads another file of tokens than that of the checkpoint. A file with the
 *  same contents may have another path. */
static ts_status check_data(const ts_training *t, const ts_checkpoint *c)
{
    const ts_nn_source *own = ts_nn_loader_source(t->loader);
    char saved[MOST_PATH], path[MOST_PATH];
    ts_scalar bytes;
    uint64_t hash;
    if (!own || !own->path)
        return TS_OK;
    ts_status status = number_at(c, "loader", "bytes", &bytes);
    if (status == TS_ERR_INDEX) { /* the saved loader had no file of tokens */
        ts_error_clear();
        return TS_OK;
    }
    TS_TRY(status);
    TS_TRY(word_at(c, "loader", "hash", &hash));
    TS_TRY(ts_checkpoint_text(c, (const char *[]){"loader", "file"}, 2, saved, sizeof saved));
    if (as_double(bytes) == (double)own->bytes && hash == own->hash)
        return TS_OK;
    ts_escape_text(path, sizeof path, own->path);
    return ts_error_set_hint(
        TS_ERR_STATE, "resume with the data of the saved run, or start a new run",
        "training_resume: expected the data of the saved run, %.0f bytes of '%.400s', got other "
        "data, %lld bytes of '%.400s' (checkpoint '%s')",
        as_double(bytes), saved, (long long)own->bytes, path, ts_checkpoint_path(c));
}

static ts_status load_checkpoint(ts_training *t, const ts_checkpoint *c)
{
    TS_SCOPE;
    ts_named_tensors model = {0}, state = {0}, ema = {0};
    before b = {0};
    ts_status status = check_run(t, c);
    if (status == TS_OK)
        status = check_data(t, c);
    if (status == TS_OK)
        status = read_section(c, "model", &model);
    if (status == TS_OK && t->optimizer)
        status = read_section(c, "state", &state);
    if (status == TS_OK && t->ema)
        status = read_section(c, "ema", &ema);
    if (status == TS_OK)
        status = take_snapshot(t, &b);
    if (status == TS_OK && (status = take_parts(t, c, &b, &model, &state, &ema)) != TS_OK)
        restore_snapshot(t, &b);
    for (int64_t i = 0; b.copies && i < b.model.n; i++)
        ts_release(b.copies[i]);
    free(b.copies);
    ts_named_tensors_free(&b.model);
    free(b.numbers);
    free(model.names);
    free(state.names);
    free(ema.names);
    return status;
}

/* ---------------------------------------------------------------------------------- public ---- */

ts_status ts_training_save(const ts_training *training, const char *dir)
{
    ts_training t;
    TS_TRY(TS_CHECK_POINTERS(training, dir));
    TS_TRY(TS_CHECK_OPTS(&t, training));
    TS_TRY(TS_CHECK_OBJECTS(t.model));
    ts_named_tensors model = {0}, state = {0}, ema = {0};
    ts_status status = ts_module_state_dict(t.model, &model);
    if (status == TS_OK && t.optimizer)
        status = ts_optimizer_state(t.optimizer, &state);
    if (status == TS_OK && t.ema)
        status = ts_ema_state(t.ema, &ema);
    char *text = status == TS_OK ? describe(&t) : NULL;
    if (status == TS_OK && !text)
        status = ts_error_memory("the numbers of a run", 0);
    ts_checkpoint_section sections[] = {{"model", model.names, model.tensors, model.n},
                                        {"state", state.names, state.tensors, state.n},
                                        {"ema", ema.names, ema.tensors, ema.n}};
    if (status == TS_OK)
        status = ts_checkpoint_save(dir, t.step, sections, t.ema ? 3 : 2, text, NULL);
    free(text);
    ts_named_tensors_free(&model);
    ts_named_tensors_free(&state);
    ts_named_tensors_free(&ema);
    return status;
}

ts_status ts_training_resume(ts_training *training, const char *dir, char *text, size_t text_size)
{
    ts_training t;
    TS_TRY(TS_CHECK_POINTERS(training, dir));
    TS_TRY(TS_CHECK_OPTS(&t, training));
    TS_TRY(TS_CHECK_OBJECTS(t.model));
    ts_checkpoint *c = NULL;
    TS_TRY(ts_checkpoint_find(dir, &c));
    if (!c)
        return ts_error_set_hint(TS_ERR_STATE, "start a new run",
                                 "training_resume: there is no checkpoint under '%s'", dir);
    ts_status status = load_checkpoint(&t, c);
    if (status == TS_OK)
        training->step = t.step;
    if (status == TS_OK && text) {
        char path[1024];
        snprintf(text, text_size, "step %lld from %s%s%s", (long long)t.step,
                 ts_escape_text(path, sizeof path, ts_checkpoint_path(c)),
                 ts_checkpoint_report(c)[0] ? "; " : "", ts_checkpoint_report(c));
    }
    ts_checkpoint_close(c);
    return status;
}
