/** @file checkpoint_read.c  Finding, verifying and opening checkpoints. */
// SPDX-License-Identifier: MIT
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/checked.h"
#include "io/checkpoint.h"
#include "io/json.h"
#include "io/safetensors.h"

typedef struct section {
    char name[TS_SECTION_NAME];
    ts_safetensors *st;
} section;

struct ts_checkpoint {
    char *path, *json, *report;
    int64_t step;
    section *sections; /* nsections; each owns its open file */
    int nsections;
};

/* ----------------------------------------------------------------------- the folder's list ---- */

/* Parses STEP, STEP.old-PID or STEP.tmp-PID, where STEP has no leading zeros. Otherwise false. */
static bool read_name(const char *name, ts_checkpoint_folder *f)
{
    const char *at = name;
    f->step = 0;
    for (; *at >= '0' && *at <= '9'; at++)
        if (!ts_mul_size(f->step, 10, &f->step) || !ts_add_size(f->step, *at - '0', &f->step))
            return false;
    if (at == name || (*name == '0' && at > name + 1) || strlen(name) >= sizeof f->name)
        return false;
    strcpy(f->name, name);
    if (!*at)
        f->kind = TS_CHECKPOINT_WHOLE;
    else if (strncmp(at, ".old-", 5) == 0)
        f->kind = TS_CHECKPOINT_ASIDE;
    else if (strncmp(at, ".tmp-", 5) == 0)
        f->kind = TS_CHECKPOINT_TEMPORARY;
    else
        return false;
    return !*at || (at[5] && strspn(at + 5, "0123456789") == strlen(at + 5));
}

static ts_status add_name(const char *name, void *ctx)
{
    ts_checkpoint_list *list = ctx;
    ts_checkpoint_folder folder;
    if (!read_name(name, &folder))
        return TS_OK;
    if (list->count == list->capacity) {
        int64_t capacity = list->capacity ? 2 * list->capacity : 8;
        void *more = ts_sys_realloc(list->folders, (size_t)capacity * sizeof folder);
        if (!more)
            return ts_error_memory("a list of checkpoints", capacity * (int64_t)sizeof folder);
        list->folders = more;
        list->capacity = capacity;
    }
    list->folders[list->count++] = folder;
    return TS_OK;
}

static int newest_first(const void *a, const void *b)
{
    const ts_checkpoint_folder *x = a, *y = b;
    if (x->step != y->step)
        return x->step < y->step ? 1 : -1;
    return x->kind != y->kind ? (x->kind > y->kind ? 1 : -1) : strcmp(x->name, y->name);
}

ts_status ts_checkpoint_list_make(const char *op, const char *root, ts_checkpoint_list *list)
{
    *list = (ts_checkpoint_list){0};
    ts_status status = ts_folder_each(op, root, add_name, list);
    if (list->count)
        qsort(list->folders, (size_t)list->count, sizeof *list->folders, newest_first);
    return status;
}

void ts_checkpoint_list_free(ts_checkpoint_list *list)
{
    ts_sys_free(list->folders);
    *list = (ts_checkpoint_list){0};
}

/* -------------------------------------------------------------------------------- opening ---- */

static ts_status read_manifest(const char *op, const char *folder, ts_manifest *manifest)
{
    int fd = -1;
    int64_t bytes;
    char *text = NULL, *path = ts_path("%s/%s", folder, TS_MANIFEST);
    ts_status status = path ? ts_file_open(op, path, &fd, &bytes) : ts_error_code();
    if (status == TS_OK && bytes > TS_MANIFEST_MAX)
        status =
            ts_fail_op(TS_ERR_FORMAT, op, NULL, NULL, "'%s': expected at most %d bytes, got %lld",
                       path, TS_MANIFEST_MAX, (long long)bytes);
    if (status == TS_OK) {
        text = ts_sys_alloc((size_t)bytes);
        status = text ? ts_file_read(op, path, fd, text, bytes, 0)
                      : ts_error_memory("a manifest", bytes);
    }
    if (status == TS_OK)
        status = ts_manifest_parse(op, path, text, (size_t)bytes, manifest);
    ts_file_close(fd);
    ts_sys_free(text);
    ts_sys_free(path);
    return status;
}

/* Verifies size and hash of a section's file and opens it. Tensors are read later from the same
 * descriptor that was hashed. */
static ts_status open_section(const char *op, const char *folder, const ts_manifest_file *f,
                              section *section)
{
    static const ts_safetensors_opts limits = {sizeof limits, TS_ST_MAX_HEADER, TS_ST_MAX_TENSORS};
    int fd = -1;
    int64_t bytes;
    char hash[TS_HASH_TEXT];
    char *path = ts_path("%s/%s.safetensors", folder, f->name);
    ts_status status = path ? ts_file_open(op, path, &fd, &bytes) : ts_error_code();
    if (status == TS_OK && bytes != f->bytes)
        status = ts_fail_op(TS_ERR_FORMAT, op, NULL, NULL, "'%s': expected %lld bytes, got %lld",
                            path, (long long)f->bytes, (long long)bytes);
    if (status == TS_OK)
        status = ts_file_hash(op, path, fd, bytes, hash);
    if (status == TS_OK && strcmp(hash, f->hash) != 0)
        status = ts_fail_op(TS_ERR_FORMAT, op, NULL, NULL,
                            "'%s': expected contents with hash %s, got %s", path, f->hash, hash);
    if (status == TS_OK) {
        strcpy(section->name, f->name);
        section->st = ts_safetensors_open_fd(op, path, fd, bytes, &limits);
        status = TS_STATUS_OF(section->st);
    } else {
        ts_file_close(fd);
    }
    ts_sys_free(path);
    return status;
}

ts_checkpoint *ts_checkpoint_read(const char *op, const char *path)
{
    ts_manifest manifest;
    if (read_manifest(op, path, &manifest) != TS_OK)
        return NULL;
    ts_checkpoint *c = ts_sys_calloc(sizeof *c);
    section *sections = c ? ts_sys_calloc((size_t)manifest.nfiles * sizeof *sections) : NULL;
    ts_status status = sections ? TS_OK : ts_error_memory("a checkpoint", sizeof *c);
    if (status == TS_OK) {
        c->step = manifest.step;
        c->sections = sections;
        c->json = manifest.json;
        manifest.json = NULL;
        c->path = ts_path("%s", path);
        status = TS_STATUS_OF(c->path);
    }
    for (; status == TS_OK && c->nsections < manifest.nfiles; c->nsections++)
        status = open_section(op, path, &manifest.files[c->nsections], &sections[c->nsections]);
    ts_manifest_free(&manifest);
    if (status != TS_OK) {
        ts_checkpoint_close(c);
        return NULL;
    }
    return c;
}

ts_checkpoint *ts_checkpoint_open(const char *path)
{
    TS_TRY_NULL(TS_CHECK_POINTERS(path));
    return ts_checkpoint_read("checkpoint_open", path);
}

void ts_checkpoint_close(ts_checkpoint *c)
{
    if (!c)
        return;
    for (int i = 0; i < c->nsections; i++)
        ts_safetensors_close(c->sections[i].st);
    ts_sys_free(c->sections);
    ts_sys_free(c->path);
    ts_sys_free(c->json);
    ts_sys_free(c->report);
    ts_sys_free(c);
}

int64_t ts_checkpoint_step(const ts_checkpoint *c) { return c ? c->step : -1; }
const char *ts_checkpoint_path(const ts_checkpoint *c) { return c ? c->path : NULL; }
const char *ts_checkpoint_json(const ts_checkpoint *c) { return c ? c->json : NULL; }
const char *ts_checkpoint_report(const ts_checkpoint *c) { return c && c->report ? c->report : ""; }

/** The value at the path keys[0 .. nkeys); NULL with an error. *root receives the object that owns
 *  it, to be freed with ts_json_done(), or NULL if the JSON cannot be loaded. */
static const json_t *value_at(const char *op, const ts_checkpoint *c, const char *const *keys,
                              int nkeys, json_t **root)
{
    *root = ts_json_load(op, c->path, c->json, strlen(c->json), 0, 0, NULL);
    const json_t *value = *root;
    for (int i = 0; i < nkeys && value; i++) {
        value = json_object_get(value, keys[i]);
        if (!value)
            ts_fail_op(TS_ERR_INDEX, op, NULL, NULL,
                       "'%s': expected a value under '%s' (key %d), got none", c->path,
                       ts_quote(keys[i]), i);
    }
    return value;
}

static ts_status other_kind(const char *op, const ts_checkpoint *c, const char *expected)
{
    return ts_fail_op(TS_ERR_FORMAT, op, NULL, NULL,
                      "'%s': expected %s, got a value of another kind", c->path, expected);
}

ts_status ts_checkpoint_number(const ts_checkpoint *checkpoint, const char *const *keys, int nkeys,
                               ts_scalar *value)
{
    static const char op[] = "checkpoint_number";
    TS_TRY(TS_CHECK_OBJECTS(checkpoint));
    TS_TRY(TS_CHECK_STRINGS(keys, nkeys));
    TS_TRY(TS_CHECK_POINTERS(value));
    json_t *root;
    const json_t *found = value_at(op, checkpoint, keys, nkeys, &root);
    ts_status status = TS_OK;
    if (!found)
        status = ts_error_code();
    else if (json_is_integer(found))
        *value = ts_scalar_int(json_integer_value(found));
    else if (json_is_real(found))
        *value = ts_scalar_float(json_real_value(found));
    else
        status = other_kind(op, checkpoint, "a number");
    if (root)
        ts_json_done(root);
    return status;
}

ts_status ts_checkpoint_text(const ts_checkpoint *checkpoint, const char *const *keys, int nkeys,
                             char *text, size_t size)
{
    static const char op[] = "checkpoint_text";
    TS_TRY(TS_CHECK_OBJECTS(checkpoint));
    TS_TRY(TS_CHECK_STRINGS(keys, nkeys));
    TS_TRY(TS_CHECK_POINTERS(text));
    json_t *root;
    const json_t *value = value_at(op, checkpoint, keys, nkeys, &root);
    ts_status status = TS_OK;
    if (!value)
        status = ts_error_code();
    else if (!json_is_string(value))
        status = other_kind(op, checkpoint, "a text");
    else if (json_string_length(value) >= size)
        status = ts_fail_op(TS_ERR_VALUE, op, NULL, NULL,
                            "argument 'size': expected more than %zu bytes, got %zu",
                            json_string_length(value), size);
    else
        memcpy(text, json_string_value(value), json_string_length(value) + 1);
    if (root)
        ts_json_done(root);
    return status;
}

const ts_safetensors *ts_checkpoint_section_of(const ts_checkpoint *checkpoint, const char *name)
{
    TS_TRY_NULL(TS_CHECK_OBJECTS(checkpoint));
    TS_TRY_NULL(TS_CHECK_POINTERS(name));
    for (int i = 0; i < checkpoint->nsections; i++)
        if (strcmp(checkpoint->sections[i].name, name) == 0)
            return checkpoint->sections[i].st;
    ts_fail_op(TS_ERR_INDEX, "checkpoint_section_of", NULL, NULL,
               "'%s': expected the name of one of %d sections, got '%s'", checkpoint->path,
               checkpoint->nsections, ts_quote(name));
    return NULL;
}

/* -------------------------------------------------------------------------------- finding ---- */

/* Appends the recorded error to the report as a line, and logs it. */
static ts_status skip_checkpoint(const char *path, char **report)
{
    char shown[1024]; /* the escaped path; the message is already escaped */
    ts_log_write("io", "skipped checkpoint %s: %s", path, ts_error_message());
    ts_escape(shown, sizeof shown, path, false);
    char *longer = ts_path("%s%s: %s\n", *report ? *report : "", shown, ts_error_message());
    if (!longer)
        return TS_ERR_MEMORY;
    ts_sys_free(*report);
    *report = longer;
    return TS_OK;
}

static ts_status try_folder(const char *op, const char *root, const ts_checkpoint_folder *f,
                            char **report, ts_checkpoint **found)
{
    char *path = ts_path("%s/%s", root, f->name);
    TS_TRY(path);
    ts_checkpoint *c = ts_checkpoint_read(op, path);
    if (c && c->step != f->step) {
        ts_fail_op(TS_ERR_FORMAT, op, NULL, NULL,
                   "'%s': expected step %lld in the manifest, got %lld", path, (long long)f->step,
                   (long long)c->step);
        ts_checkpoint_close(c);
        c = NULL;
    }
    ts_status status = c ? TS_OK : ts_error_code();
    /* out of memory: other checkpoints would fail too, and this one may be valid */
    if (!c && status != TS_ERR_MEMORY)
        status = skip_checkpoint(path, report);
    ts_sys_free(path);
    *found = c;
    return status;
}

ts_status ts_checkpoint_find(const char *dir, ts_checkpoint **checkpoint)
{
    static const char op[] = "checkpoint_find";
    TS_TRY(TS_CHECK_POINTERS(dir, checkpoint));
    *checkpoint = NULL;
    ts_checkpoint_list list = {0};
    ts_checkpoint *found = NULL;
    char *report = NULL, *root = ts_path("%s/checkpoints", dir);
    int64_t tried = 0;
    ts_status status = root ? ts_checkpoint_list_make(op, root, &list) : ts_error_code();
    for (int64_t i = 0; status == TS_OK && !found && i < list.count; i++) {
        if (list.folders[i].kind == TS_CHECKPOINT_TEMPORARY)
            continue;
        tried++;
        status = try_folder(op, root, &list.folders[i], &report, &found);
    }
    if (status == TS_OK && tried && !found)
        status = ts_fail_op(TS_ERR_FORMAT, op, NULL, "move them away to start a new run",
                            "'%s': expected a checkpoint that verifies, got %lld that do not:\n%s",
                            root, (long long)tried, report);
    if (status == TS_OK && found) {
        if (report)
            ts_error_clear(); /* the errors of skipped checkpoints */
        found->report = report;
        report = NULL;
        *checkpoint = found;
    }
    ts_sys_free(report);
    ts_checkpoint_list_free(&list);
    ts_sys_free(root);
    return status;
}
